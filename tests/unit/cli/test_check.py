from __future__ import annotations

import json
from dataclasses import dataclass, field

import pytest

from slurm_elastic.cli.check import ask_cluster
from slurm_elastic.cli.check_cluster import ClusterFacts, judge
from slurm_elastic.cli.main import run
from slurm_elastic.config import loads
from slurm_elastic.errors import SlurmCommandError, SlurmUnknown
from slurm_elastic.slurm.api import BatchRequest

FILE = """\
run: {name: x, dir: /tmp/x, command: [python]}
base: {nodes: 2, qos: high, partition: main, time: 1h}
elastic: {max_nodes: 5, qos: low, partition: main, time: 30m}
checkpoint: {every: 5m}
"""
GOOD = ClusterFacts(
    config={"PreemptType": "preempt/qos", "PreemptMode": "REQUEUE", "KillWait": "30 sec"},
    partitions={"main": {"State": "UP", "TotalNodes": "6", "MaxNodes": "UNLIMITED", "MaxTime": "UNLIMITED"}},
    qos={
        "normal": {},
        "high": {"Preempt": ""},
        "low": {"GraceTime": "00:01:00", "PreemptMode": "cluster"},
        "urgent": {"Preempt": "low"},
    },
)


def judged(text: str = FILE, **facts) -> list[tuple[str, str, str]]:
    given = ClusterFacts(**({"config": GOOD.config, "partitions": GOOD.partitions, "qos": GOOD.qos} | facts))
    return [(each.level, each.key, each.message) for each in judge(loads(text, "/a/run.yaml"), given)]


def test_a_cluster_that_fits_gives_no_findings():
    assert judged() == []


@pytest.mark.parametrize(
    ("old", "new", "level", "key", "said"),
    [
        ("partition: main, time: 1h", "partition: mian, time: 1h", "error", "base.partition", "did you mean 'main'"),
        ("qos: low", "qos: lo", "error", "elastic.qos", "did you mean 'low'"),
        ("qos: low", "qos: normal", "warning", "elastic.qos", "no QOS preempts"),
        ("qos: high", "qos: low", "warning", "base.qos", "itself preempted"),
        ("{nodes: 2", "{nodes: 7", "error", "base.partition", "6 nodes, 7"),
    ],
)
def test_names_and_counts_are_compared_with_the_cluster(old, new, level, key, said):
    text = FILE.replace(old, new, 1).replace("max_nodes: 5", "max_nodes: 9" if "7" in new else "max_nodes: 5")

    assert [found for found in judged(text) if found[:2] == (level, key) and said in found[2]]


def test_the_only_job_of_a_single_layout_has_the_qos_of_elastic():
    text = FILE.replace("[python]", "[python], layout: single").replace("qos: high", "qos: gone")

    assert judged(text) == []
    assert [found[1] for found in judged(text.replace("qos: low", "qos: lo"))] == ["elastic.qos"]


def test_limits_of_partition_and_qos_are_compared():
    short = {"main": {**GOOD.partitions["main"], "MaxTime": "00:20:00", "MaxNodes": "1"}}
    strict = {**GOOD.qos, "low": {**GOOD.qos["low"], "MaxWall": "00:10:00"}}

    found = judged(partitions=short, qos=strict)
    assert {key for level, key, _ in found if level == "error"} == {"base.partition", "base.time", "elastic.time"}


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"config": {"PreemptType": "preempt/none"}}, "preempts nothing"),
        ({"config": {**GOOD.config, "PreemptMode": "SUSPEND,GANG"}}, "freeze"),
        (
            {"qos": {**GOOD.qos, "low": {"GraceTime": "00:00:00"}}, "config": {"PreemptType": "preempt/qos"}},
            "GraceTime",
        ),
    ],
)
def test_deadly_combinations_get_a_warning(facts, said):
    assert [message for level, _, message in judged(**facts) if level == "warning" and said in message]


@dataclass
class AnsweringSlurm:
    """Answers with GOOD, or fails everything with `error`; refuses jobs whose partition is `refused`."""

    error: Exception | None = None
    refused: str = ""
    tested: list[BatchRequest] = field(default_factory=list)

    def _answer(self, value):
        if self.error:
            raise self.error
        return value

    def config(self):
        return self._answer(GOOD.config)

    def partitions(self):
        return self._answer(GOOD.partitions)

    def qos(self):
        return self._answer(GOOD.qos)

    def test_only(self, request):
        assert request.script.read_text().startswith("#!")
        self.tested.append(request)
        if self.refused and request.options["qos"] == self.refused:
            raise SlurmCommandError(("sbatch",), 1, "Invalid account or account/partition combination specified")
        return ""


def test_base_and_companion_are_tried_with_test_only_and_leave_no_file():
    slurm = AnsweringSlurm()

    assert list(ask_cluster(loads(FILE, "/a/run.yaml"), slurm)) == []
    assert [request.options["qos"] for request in slurm.tested] == ["high", "low"]
    assert not any(request.script.exists() for request in slurm.tested)


def test_what_sbatch_refuses_is_an_error_with_slurms_words():
    (found,) = ask_cluster(loads(FILE, "/a/run.yaml"), AnsweringSlurm(refused="low"))

    assert (found.level, found.key) == ("error", "elastic")
    assert "Invalid account" in found.message


def test_no_answer_is_unknown_and_not_an_error_of_the_file():
    found = list(ask_cluster(loads(FILE, "/a/run.yaml"), AnsweringSlurm(error=SlurmUnknown("controller away"))))

    assert {each.level for each in found} == {"unknown"}


def test_offline_answers_from_the_file_alone(tmp_path, capsys):
    (tmp_path / "run.yaml").write_text(FILE)

    assert run(["check", "--offline", "--json", str(tmp_path / "run.yaml")]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["ok"], answer["cluster_asked"], answer["findings"]) == (True, False, [])


def test_a_wrong_file_exits_2_and_names_the_line(tmp_path, capsys):
    (tmp_path / "run.yaml").write_text(FILE + "batch:\n  glbal_batch_size: 3\n")

    assert run(["check", str(tmp_path / "run.yaml")]) == 2
    error = capsys.readouterr().err
    assert f"{tmp_path}/run.yaml:6: batch.glbal_batch_size is not a setting; did you mean 'global_batch_size'?" in error


@pytest.mark.parametrize("command", ["check", "sizes"])
def test_faults_are_json_when_that_is_asked_for(command, tmp_path, capsys):
    (tmp_path / "run.yaml").write_text(FILE + "batch:\n  glbal_batch_size: 3\n")

    assert run([command, str(tmp_path), "--json"]) == 2  # a run directory stands for its run.yaml
    (fault,) = json.loads(capsys.readouterr().out)["faults"]
    assert (fault["key"], fault["line"]) == ("batch.glbal_batch_size", 6)
    assert "did you mean" in fault["reason"]


def test_without_an_answering_cluster_it_is_not_said_to_have_been_asked(tmp_path, capsys, monkeypatch):
    (tmp_path / "run.yaml").write_text(FILE)
    away = AnsweringSlurm(error=SlurmCommandError(("squeue",), 1, "squeue: fatal: Could not establish a configuration"))
    monkeypatch.setattr("slurm_elastic.slurm.command_client.CommandSlurm", lambda: away)
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}")

    assert run(["check", str(tmp_path / "run.yaml")]) == 1
    said = capsys.readouterr().out
    assert "no Slurm can be reached from here" in said and "SLURM_CONF" in said
    assert said.rstrip().endswith("the cluster did not answer")


@pytest.mark.parametrize(
    ("command", "key", "said"),
    [
        ("[python, gone.py]", "run.command", "there is no"),
        ("[./gone]", "run.command", "there is no"),
        ("[pyhton, there.py]", "run.command", "did you mean 'python'"),
        ("[sh, there.py]", "", ""),
        ('["python train.py"]', "run.command", "one word with blanks"),
        ("[python, there.py]", "", ""),
        ("[python, -m, module]", "", ""),
    ],
)
def test_files_that_the_command_names_are_looked_for(command, key, said, tmp_path, capsys):
    (tmp_path / "there.py").touch()
    (tmp_path / "run.yaml").write_text(FILE.replace("[python]", command))

    assert run(["check", "--offline", "--json", str(tmp_path / "run.yaml")]) == 0
    found = json.loads(capsys.readouterr().out)["findings"]
    assert [each["key"] for each in found] == ([key] if key else [])
    assert all(said in each["message"] for each in found)


def test_a_workdir_that_is_missing_is_a_warning(tmp_path, capsys):
    (tmp_path / "run.yaml").write_text(FILE.replace("[python]", "[python, train.py], workdir: nowhere"))

    assert run(["check", "--offline", str(tmp_path / "run.yaml")]) == 0
    assert f"warning: run.workdir: there is no folder {tmp_path}/nowhere" in capsys.readouterr().out


@pytest.mark.parametrize(("limit", "grace", "warned"), [("1m", "30s", True), ("5m", "30s", False), ("5m", "10m", True)])
def test_a_time_limit_shorter_than_its_notice_is_a_warning(limit, grace, warned, tmp_path, capsys):
    file = tmp_path / "run.yaml"
    file.write_text(
        f"run: {{name: t, dir: t, command: [python]}}\nbase: {{nodes: 1, time: {limit}}}\n"
        f"elastic: {{graceful_shutdown_timeout: {grace}}}\n"
    )

    assert run(["check", str(file), "--offline"]) == 0
    assert ("warning: base.time" in capsys.readouterr().out) is warned
