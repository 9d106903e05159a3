from __future__ import annotations

import re

import pytest

from slurm_elastic.cli.main import run
from slurm_elastic.config import load, loads


def test_what_init_writes_is_valid_and_has_the_asked_sizes(tmp_path, capsys):
    path = tmp_path / "big.yaml"

    assert run(["init", str(path), "--nodes", "2-16", "--gpus", "8", "--name", "big"]) == 0
    config = load(path)
    assert (config.base.nodes, config.elastic.min_nodes, config.elastic.max_nodes) == (2, 2, 16)
    assert (config.run.name, config.workers_per_node) == ("big", 8)
    assert run(["check", "--offline", str(path)]) == 0
    assert "no faults" in capsys.readouterr().out


def test_the_defaults_in_comments_are_the_defaults(tmp_path):
    path = tmp_path / "run.yaml"
    assert run(["init", str(path)]) == 0
    written = path.read_text()

    switched_on = re.sub(r"^(\s*)# ([a-z_]+:( \S+)?)$", r"\1\2", written, flags=re.MULTILINE)
    switched_on = re.sub(r"^  [a-z_]+:\n", "", switched_on, flags=re.MULTILINE)  # those without a default
    assert switched_on.count("\n  ") > 20
    assert loads(switched_on, path) == load(path)


def test_a_folder_gets_a_run_yaml_named_after_it(tmp_path):
    folder = tmp_path / "my project"
    folder.mkdir()

    assert run(["init", str(folder)]) == 0
    assert load(folder / "run.yaml").run.name == "my-project"


def test_a_file_that_is_there_stays_unless_forced(tmp_path, capsys):
    path = tmp_path / "run.yaml"
    path.write_text("mine")

    assert run(["init", str(path)]) == 2
    assert path.read_text() == "mine" and "--force" in capsys.readouterr().err
    assert run(["init", str(path), "--force"]) == 0
    assert load(path)


@pytest.mark.parametrize("nodes", ["", "x", "4-", "-4", "4-2", "0-3", "1-99999999", "1-2-3", "٣"])
def test_nodes_that_make_no_range_write_nothing(nodes, tmp_path, capsys):
    assert run(["init", str(tmp_path / "run.yaml"), f"--nodes={nodes}"]) == 2
    assert not (tmp_path / "run.yaml").exists()
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("name", ["a b", "a\n  b: c", '"', "x" * 99])
def test_a_name_cannot_break_the_file(name, tmp_path):
    assert run(["init", str(tmp_path / "run.yaml"), "--name", name]) == 2
    assert not (tmp_path / "run.yaml").exists()


def test_a_folder_that_is_missing_is_a_clear_error(tmp_path, capsys):
    assert run(["init", str(tmp_path / "no" / "run.yaml")]) == 2
    assert "cannot write" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "flag"), [(["--nodes", "8-2"], "--nodes"), (["--nodes", "0-3"], "--nodes"), (["--gpus", "-1"], "--gpus")]
)
def test_a_flag_that_makes_no_valid_file_is_named(words, flag, tmp_path, capsys):
    assert run(["init", *words, str(tmp_path / "x.yaml")]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: {flag} ") and "x.yaml" not in said
