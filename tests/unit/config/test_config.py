"""Good files are read; every fault of a bad one is reported at once, with its key and line."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_elastic.config import dump, load, loads
from slurm_elastic.config_advice import advice, loss_bound
from slurm_elastic.config_keys import MEANING, fields, reference
from slurm_elastic.errors import ConfigError

GOOD = """\
run:
  name: gpt
  dir: runs/gpt
  command: [python, train.py, --lr, 1e-3]
  env: {OMP_NUM_THREADS: 4, FLAG: yes}
base:
  nodes: 2
  time: 1-12:00:00
  workers_per_node: 2
  sbatch: {mem: 4G, exclusive: true, nice: 100}
elastic:
  max_nodes: 6
  time: 2h
  qos: preemptible
batch:
  global_batch_size: 48
checkpoint:
  every: 10m
  async: no
"""


def faults_of(text: str) -> tuple[tuple[int | None, str, str], ...]:
    with pytest.raises(ConfigError) as refused:
        loads(text, "run.yaml")
    return refused.value.faults


def test_a_good_file_becomes_typed_values(tmp_path):
    (tmp_path / "run.yaml").write_text(GOOD)
    config = load(tmp_path / "run.yaml")

    assert config.run.command == ("python", "train.py", "--lr", "1e-3")
    assert config.run.env == {"OMP_NUM_THREADS": "4", "FLAG": "yes"}
    assert config.run.dir == str(tmp_path / "runs/gpt")
    assert config.run.workdir == str(tmp_path)
    assert config.base.time == 129600
    assert config.base.sbatch == {"mem": "4G", "exclusive": True, "nice": "100"}
    assert (config.elastic.min_nodes, config.elastic.max_nodes, config.elastic.time) == (2, 6, 7200)
    assert (config.checkpoint.every, config.checkpoint.async_save) == (600, False)


def test_what_is_dumped_reads_back_from_any_folder():
    config = loads(GOOD, "/some/where/run.yaml")

    assert loads(dump(config), "/else/where.yaml") == config


def test_discrete_sizes_read_back_too():
    text = GOOD.replace("  max_nodes: 6", "  max_nodes: 6\n  replica_discrete_values: [2, 4, 6]\n  companion_nodes: 2")
    config = loads(text, "/a/run.yaml")

    assert loads(dump(config), "/a/run.yaml") == config


def test_sizes_that_are_left_out_follow_the_base():
    text = GOOD.replace("  max_nodes: 6\n", "").replace("nodes: 2", "nodes: 3")
    config = loads(text, "/a/run.yaml")

    assert (config.elastic.min_nodes, config.elastic.max_nodes) == (3, 3)


def test_every_fault_is_reported_at_once_with_key_line_and_suggestion():
    text = """\
run:
  name: two words
  command: python train.py
  env:
    RANK: 3
elastic:
  min_node: 2
  max_nodes: many
  scaling_timeout: soon
bse: {}
checkpoint:
  every: 5m
  every: 6m
base:
  sbatch:
    requeue: true
"""
    faults = faults_of(text)

    assert [(line, key) for line, key, _ in faults] == [
        (1, "run.dir"),
        (2, "run.name"),
        (3, "run.command"),
        (5, "run.env.RANK"),
        (7, "elastic.min_node"),
        (8, "elastic.max_nodes"),
        (9, "elastic.scaling_timeout"),
        (10, "bse"),
        (13, "checkpoint.every"),
        (16, "base.sbatch.requeue"),
    ]
    reasons = {key: why for _, key, why in faults}
    assert "did you mean 'min_nodes'?" in reasons["elastic.min_node"]
    assert "did you mean 'base'?" in reasons["bse"]
    assert "[python, train.py]" in reasons["run.command"]
    assert "first on line 12" in reasons["checkpoint.every"]


def test_a_key_in_the_wrong_section_is_sent_to_the_right_one():
    (fault,) = faults_of(GOOD.replace("  nodes: 2", "  nodes: 2\n  max_nodes: 7"))

    assert "belongs below `elastic:`" in fault[2]


def test_a_fault_does_not_bring_follow_up_faults():
    (fault,) = faults_of(GOOD.replace("max_nodes: 6", "max_nodes: six"))

    assert fault[:2] == (12, "elastic.max_nodes")


@pytest.mark.parametrize(
    ("old", "new", "line", "key", "said"),
    [
        ("max_nodes: 6", "max_nodes: 1", 12, "elastic.max_nodes", "below min_nodes"),
        ("max_nodes: 6", "max_nodes: 6\n  min_nodes: 1", 13, "elastic.min_nodes", "always members"),
        ("max_nodes: 6", "max_nodes: 6\n  companion_nodes: 2", 13, "elastic.companion_nodes", "whole companions"),
        ("max_nodes: 6", "max_nodes: 6\n  replica_discrete_values: [2, 7]", 13, "elastic.replica_discrete_values", "7"),
        ("size: 48", "size: 11", 16, "batch.global_batch_size", "12 workers"),
        ("size: 48", "size: 49\n  uneven: false", 16, "batch.global_batch_size", "fits no allowed size"),
        ("size: 48", "size: 49\n  policy: scale_batch", 16, "batch.global_batch_size", "multiple of the 4"),
        ("every: 10m", "every: 100ms", 18, "checkpoint.every", "every_steps"),
        ("time: 2h", "time: 30", 13, "elastic.time", "minutes"),
        ("dir: runs/gpt", "dir: $SCRATCH/x", 3, "run.dir", "not expanded"),
        ("dir: runs/gpt", "dir: runs/%j", 3, "run.dir", "sbatch"),
        ("dir: runs/gpt", 'dir: "a\\nb"', 3, "run.dir", "line break"),
        ("dir: runs/gpt", 'dir: "a\\0b"', 3, "run.dir", "NUL"),
        ("  name: gpt", "  name: gpt\n  launcher: mpi", 3, "run.launcher", "single"),
        ("nice: 100", "nodelist: n1", 10, "base.sbatch.nodelist", "never start"),
        ("nice: 100", "--nice: 1", 10, "base.sbatch.--nice", "write 'nice'"),
        ("nice: 100", "signal: USR1", 10, "base.sbatch.signal", "notice"),
        ("\nbatch:", "\ncontrol: {heartbeat: 9s}\nbatch:", 15, "control.worker_timeout", "two heartbeats"),
    ],
)
def test_values_that_do_not_go_together_are_refused_where_they_stand(old, new, line, key, said):
    faults = faults_of(GOOD.replace(old, new, 1))

    found = [(n, k, why) for n, k, why in faults if k == key]
    assert found and found[0][0] == line and said in found[0][2], faults


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("run:\n\tname: x\n", 2, "tab"),
        ("a: &a [x]\nb: *a\n", 1, "anchors"),
        ("run: !!python/object/apply:os.system [ls]\n", 1, "tag"),
        ("run: {name: x\n", 2, "not YAML"),
        ("- run\n", 1, "not a mapping"),
        ("", 1, "empty"),
        ("run: x\n---\nrun: y\n", 2, "not YAML"),
        ("run:\n  name: x\x07\n", 2, "control character"),
        ("a: " + "[" * 100_000, 1, "nested"),
        ('a: "\\UFFFFFFFF"', None, "not YAML"),
    ],
)
def test_a_text_that_is_no_plain_document_says_where(text, line, said):
    (fault,) = faults_of(text)

    assert fault[0] == line and said in fault[2], fault


def test_files_that_cannot_be_read_are_faults_too(tmp_path):
    (tmp_path / "latin").write_bytes(b"run:\n  name: caf\xe9\n")
    (tmp_path / "big").write_text("#" * 70_000)
    (tmp_path / "folder").mkdir()
    for name, said in (
        ("latin", "UTF-8"),
        ("big", "larger"),
        ("folder", "directory"),
        ("none", "not there"),
        ("\0", "null"),
    ):
        with pytest.raises(ConfigError, match=said):
            load(tmp_path / name)
    with pytest.raises(ConfigError, match=":2: the file is not UTF-8"):
        load(tmp_path / "latin")


def test_a_pipe_does_not_make_it_wait(tmp_path):
    import os

    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="regular file"):
        load(tmp_path / "pipe")


def test_hundreds_of_faults_are_cut():
    text = GOOD + "".join(f"key{n}: 1\n" for n in range(400))

    faults = faults_of(text)
    assert len(faults) == 51
    assert "350 more" in faults[-1][2]


def test_advice_says_what_an_unplanned_failure_costs():
    quiet = loads(GOOD, "/a/run.yaml")
    risky = loads(GOOD.replace("every: 10m", "every: 0").replace("  qos: preemptible\n", ""), "/a/run.yaml")

    assert advice(quiet) == ()
    assert loss_bound(quiet) == "at most 10m of work"
    assert {key for key, _ in advice(risky)} == {"checkpoint.every", "elastic.qos"}


@pytest.mark.parametrize(
    ("setting", "value", "key", "said"),
    [
        ("max_nodes", "5\n  replica_increment_step: 4", "elastic.max_nodes", "2 nodes: the run never grows"),
        ("max_nodes", "7\n  replica_increment_step: 4", "elastic.max_nodes", "7 is never reached, the largest"),
    ],
)
def test_advice_on_sizes_that_are_never_reached(setting, value, key, said):
    text = GOOD.replace(f"  {setting}: 6", f"  {setting}: {value}")

    assert [found for found, message in advice(loads(text, "/a/run.yaml")) if said in message] == [key]


def test_advice_on_what_a_single_job_ignores():
    text = GOOD.replace("  name: gpt", "  name: gpt\n  layout: single").replace("  nodes: 2", "  nodes: 2\n  qos: base")
    text = text.replace("  max_nodes: 6", "  max_nodes: 6\n  companion_nodes: 2")

    assert {key for key, _ in advice(loads(text, "/a/run.yaml"))} == {
        "base.qos",
        "base.time",
        "elastic.companion_nodes",
    }


def test_a_file_that_is_not_there_is_said_to_be_missing(tmp_path):
    with pytest.raises(ConfigError) as missing:
        load(tmp_path / "y.yaml")

    assert missing.value.problem == f"{tmp_path}/y.yaml: the file is not there"
    assert "init" in missing.value.fix


def test_every_key_is_documented_and_the_reference_is_up_to_date():
    assert set(MEANING) == set(fields())
    assert (Path(__file__).parents[3] / "docs" / "run-yaml.md").read_text() == reference()
