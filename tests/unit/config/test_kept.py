"""A run that is under way reads settings that work, whatever is edited into its run.yaml."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_elastic import config
from slurm_elastic.config_kept import keep, load_of_run
from slurm_elastic.errors import ConfigError
from slurm_elastic.rundir import RunDirectory

YAML = "run: {name: demo, dir: ., command: [python, train.py]}\ncheckpoint: {dir: saves}\n"


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    run = RunDirectory(tmp_path)
    run.config.write_text(YAML)
    return run


def test_valid_settings_are_taken_as_they_are(run: RunDirectory) -> None:
    keep(run, config.load(run.config))
    run.config.write_text(YAML.replace("demo", "edited"))

    settings, problem = load_of_run(run)
    assert (settings.run.name, problem) == ("edited", "")


@pytest.mark.parametrize("fault", ["run: {name: [}", "run: {name: demo, nodes: 3}", "", None])
def test_settings_with_a_fault_are_replaced_by_those_before_and_the_fault_is_told(
    run: RunDirectory, fault: str | None
) -> None:
    before = config.load(run.config)
    keep(run, before)
    run.config.unlink()
    if fault is not None:
        run.config.write_text(fault)

    settings, problem = load_of_run(run)
    assert settings == before
    assert str(run.config) in problem


def test_without_settings_before_the_fault_is_the_users_to_mend(run: RunDirectory) -> None:
    run.config.write_text("run: {name: [}")

    with pytest.raises(ConfigError, match=r"run\.yaml:1"):
        load_of_run(run)


def test_settings_that_cannot_be_kept_stop_nothing(run: RunDirectory) -> None:
    run.last_valid.mkdir()

    keep(run, config.load(run.config))
