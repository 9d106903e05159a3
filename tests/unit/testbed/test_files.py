"""The configuration a testbed gives Slurm, the mounts it calls its own, and the packages it asks for."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from slurm_elastic.errors import MissingDependency
from slurm_elastic.testbed import configuration, mounts, packages
from slurm_elastic.testbed.nodes import init_script
from slurm_elastic.testbed.options import Options
from slurm_elastic.testbed.place import Place

HERE = Place("here", Path("/tmp/bed"), 3, False)


def conf(options: Options) -> list[str]:
    return configuration.slurm_conf(HERE, options, host="vm", user="root").splitlines()


def test_no_line_is_a_key_without_a_value() -> None:
    for options in (Options(), Options(accounting=False), Options(notice="sigterm"), Options(gpus=2)):
        for line in conf(options):
            key, _, value = line.partition("=")
            assert key and value, line  # (Slurm refuses `SlurmctldParameters=`)


def test_every_key_is_given_once() -> None:
    keys = [line.partition("=")[0] for line in conf(Options(gpus=2))]
    many = ("NodeName", "PartitionName")
    assert len([key for key in keys if key not in many]) == len({key for key in keys if key not in many})


def test_a_user_signal_is_sent_only_where_it_was_asked_for() -> None:
    line = "SlurmctldParameters=preempt_send_user_signal"
    assert line in conf(Options(notice="user-signal"))
    assert line not in conf(Options(notice="sigterm"))
    assert line not in conf(Options(notice="none"))


def test_without_accounting_partitions_stand_for_the_qos() -> None:
    lines = conf(Options(accounting=False, grace_s=9, preempt_mode="CANCEL"))
    assert "PreemptType=preempt/partition_prio" in lines
    elastic = next(line for line in lines if line.startswith("PartitionName=elastic"))
    assert "GraceTime=9" in elastic and "PreemptMode=CANCEL" in elastic
    assert "PreemptType=preempt/qos" in conf(Options())


def test_releases_that_look_for_cgroups_are_told_that_there_are_none() -> None:
    assert configuration.cgroup_conf(Options(), (22, 5)) == ""  # (it would not know the key)
    assert "disabled" in configuration.cgroup_conf(Options(), (24, 11))
    assert "cgroup/v1" in configuration.cgroup_conf(Options(process_tracking="cgroup"), (24, 11))


def test_a_node_knows_the_controller_and_every_other_node_by_name() -> None:
    text = configuration.hosts(HERE, Options(nodes=2), host="vm")
    assert text.splitlines() == ["127.0.0.1 localhost", "10.78.3.254 ctl vm", "10.78.3.1 n1", "10.78.3.2 n2"]


def test_only_with_cgroups_a_node_gets_a_subtree_of_its_own() -> None:
    assert "freezer" not in init_script(HERE, Options())
    assert "freezer/se3br " in init_script(HERE, Options(process_tracking="cgroup"))


def test_only_mounts_of_ours_below_our_directory_are_unmounted_and_the_inner_ones_first() -> None:
    text = (
        "36 35 0:1 / /tmp/bed rw - tmpfs slurm-elastic-testbed rw\n"
        "37 36 0:2 / /tmp/bed/disk rw shared:1 - tmpfs slurm-elastic-testbed rw\n"
        "38 35 0:3 / /tmp/bed/disk2 rw - ext4 /dev/vdb rw\n"
        "39 35 0:4 / /tmp/bedroom rw - tmpfs slurm-elastic-testbed rw\n"
        "40 35 0:5 / /tmp/be\\040d rw - tmpfs slurm-elastic-testbed rw\n"
    )
    assert mounts.ours(Path("/tmp/bed"), text) == (Path("/tmp/bed/disk"), Path("/tmp/bed"))
    assert mounts.ours(Path("/tmp/be d"), text) == (Path("/tmp/be d"),)


def test_a_missing_program_comes_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {"slurmctld", "slurmd", "munged", "munge", "ip", "unshare", "nsenter", "sbatch"}
    monkeypatch.setattr(shutil, "which", lambda name, path=None: f"/usr/sbin/{name}" if name in there else None)
    assert packages.missing_packages(accounting=False) == ()
    assert packages.missing_packages() == ("mariadb-server", "slurmdbd")
    with pytest.raises(MissingDependency, match="apt-get install -y --no-install-recommends mariadb-server slurmdbd"):
        packages.require()


def test_system_programs_are_found_by_users_whose_path_lacks_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/home/anna/bin")
    assert packages.search_path().startswith("/home/anna/bin:")
    assert "/usr/sbin" in packages.search_path().split(":")
