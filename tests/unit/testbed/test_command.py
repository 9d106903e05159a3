"""The command `testbed`, as far as it goes without a cluster."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from slurm_elastic.cli.testbed import fault
from slurm_elastic.cli.testbed import testbed as command_group
from slurm_elastic.errors import UserMistake
from slurm_elastic.testbed.faults import Faults
from slurm_elastic.testbed.options import Options
from slurm_elastic.testbed.place import Place

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
