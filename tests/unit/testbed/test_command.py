"""The command `testbed`, as far as it goes without a cluster."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from slurm_elastic.cli.testbed import fault
from slurm_elastic.cli.testbed import testbed as command_group
from slurm_elastic.errors import UserMistake
from slurm_elastic.testbed.configuration import env_sh
from slurm_elastic.testbed.faults import Faults
from slurm_elastic.testbed.options import Options
from slurm_elastic.testbed.place import (
    DIRECTORY_VARIABLE,
    NAME_VARIABLE,
    Place,
    default_directory,
    known_places,
    write_marker,
)


@pytest.fixture(autouse=True)
def no_env_sh(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (NAME_VARIABLE, DIRECTORY_VARIABLE):
        monkeypatch.delenv(name, raising=False)


PROMISED = {
    *("kill-node", "revive-node", "cut-network", "heal-network", "suspend-job", "resume-job", "drain-node"),
    *("undrain-node", "fail-node", "stop-controller", "start-controller", "slow-controller", "kill-worker"),
    *("freeze-worker", "thaw-worker", "kill-supervisor", "fill-disk", "free-disk"),
}


def test_every_promised_fault_is_a_command_with_help() -> None:
    assert set(fault.commands) >= PROMISED
    for name, command in fault.commands.items():
        said = CliRunner().invoke(command_group, ["fault", name, "--help"])
        assert said.exit_code == 0 and command.help, name


def test_a_testbed_that_is_not_up_is_named_with_what_to_do(tmp_path: Path) -> None:
    where = ["--name", "nowhere", "--dir", str(tmp_path / "bed")]
    for argv in (["status"], ["fault", "kill-node", "n1"], ["exec", "squeue"], ["fault", "suspend-job", "1"]):
        split = 2 if argv[0] == "fault" else 1
        said = CliRunner().invoke(command_group, [*argv[:split], *where, *argv[split:]])
        assert isinstance(said.exception, UserMistake)
        assert "nowhere" in str(said.exception) and "testbed up" in str(said.exception)


def test_down_where_nothing_is_up_is_no_error(tmp_path: Path) -> None:
    said = CliRunner().invoke(command_group, ["down", "--dir", str(tmp_path / "bed")])
    assert (said.exit_code, said.output) == (0, "no testbed 'default' was up\n")
    assert not (tmp_path / "bed").exists()


@pytest.mark.parametrize("argv", [["--nodes", "many"], ["--notice", "letter"], ["--preempt-mode", "GANG"]])
def test_a_wrong_option_of_up_is_refused_before_anything_starts(argv: list[str], tmp_path: Path) -> None:
    said = CliRunner().invoke(command_group, ["up", "--dir", str(tmp_path / "bed"), *argv])
    assert said.exit_code == 2
    assert not (tmp_path / "bed").exists()


def test_a_node_that_does_not_exist_cannot_lose_power(tmp_path: Path) -> None:
    place = Place("bed", tmp_path, 3, False)

    with pytest.raises(UserMistake, match="no node 'n9'"):
        Faults(place, Options(nodes=4)).kill_node("n9")


def test_after_env_sh_its_testbed_is_the_default_and_a_name_means_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place("mine", tmp_path / "bed", 3, False)
    place.directory.mkdir()
    env = [line.removeprefix("export ") for line in env_sh(place).splitlines()]
    for name, _, value in (line.partition("=") for line in env if line.startswith("SLURM_ELASTIC")):
        monkeypatch.setenv(name, value)

    said = CliRunner().invoke(command_group, ["fault", "kill-node", "n1"])
    assert f"no testbed 'mine' is up in {tmp_path}/bed" in str(said.exception)
    said = CliRunner().invoke(command_group, ["fault", "kill-node", "--name", "nowhere", "n1"])
    assert f"no testbed 'nowhere' is up in {default_directory('nowhere')}" in str(said.exception)
    assert "testbed up --name nowhere`" in str(said.exception)


def test_what_is_to_be_typed_names_the_testbed(tmp_path: Path) -> None:
    assert Place("default", default_directory("default"), 1, False).flags == ""
    assert Place("mine", default_directory("mine"), 1, False).flags == " --name mine"
    assert Place("mine", tmp_path, 1, False).flags == f" --name mine --dir {tmp_path}"


def test_testbeds_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    assert "no testbed" in CliRunner().invoke(command_group, ["list"]).output
    for name in ("two", "one"):
        place = Place(name, default_directory(name), 3, False)
        place.directory.mkdir()
        write_marker(place, Options())

    assert [place.name for place in known_places()] == ["one", "two"]
    lines = CliRunner().invoke(command_group, ["list"]).output.splitlines()
    assert [line.split() for line in lines] == [[name, str(default_directory(name))] for name in ("one", "two")]


def test_no_line_of_the_commands_is_cut() -> None:
    for words in ([], ["fault"]):
        assert "..." not in CliRunner().invoke(command_group, [*words, "--help"]).output.partition("Commands:")[2]
