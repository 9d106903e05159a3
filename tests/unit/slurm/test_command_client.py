"""What is the command client's own: arguments, exit codes, time-outs, garbled answers, back-off."""

import subprocess
import sys
from pathlib import Path

import pytest

from slurm_elastic.errors import MissingDependency, SlurmCommandError, SlurmUnknown
from slurm_elastic.slurm.api import BatchRequest
from slurm_elastic.slurm.command_client import CommandSlurm, run_command, sbatch_argv
from slurm_elastic.slurm.parse_tables import FIELDS, RECORD, UNIT

HEADER = "JOBID" + UNIT + UNIT.join(FIELDS[1:]) + UNIT + RECORD + "\n"
REQUEST = BatchRequest(
    script=Path("/run/a b.sbatch"),
    arguments=("$(id)", "-x"),
    options={"nodes": "2", "requeue": True, "exclusive": False, "qos": "", "job-name": "a;b 'c'"},
    token="run:base-1",
)


class Script:
    """Answers in turn: (exit code, stdout, stderr) or an exception to raise."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.calls = []
        self.environs = []

    def __call__(self, argv, environ, deadline_s):
        self.calls.append(tuple(argv))
        self.environs.append(dict(environ))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        code, stdout, stderr = answer
        return subprocess.CompletedProcess(argv, code, stdout, stderr)


class Clock:
    now = 50.0

    def __call__(self):
        return self.now


def client(*answers, clock=None, environ=None):
    script = Script(*answers)
    return CommandSlurm(script, clock=clock or Clock(), environ=environ or {"PATH": "/bin"}), script


def row(job_id, comment):
    cells = dict.fromkeys(FIELDS, "N/A") | {"JobID": str(job_id), "State": "PENDING", "Comment": comment, "Name": "x"}
    return UNIT.join(cells.values()) + UNIT + RECORD + "\n"


class TestSubmit:
    def test_values_are_whole_arguments_and_come_before_a_double_dash(self):
        assert sbatch_argv(REQUEST, "--parsable") == (
            *("sbatch", "--parsable", "--nodes=2", "--requeue", "--job-name=a;b 'c'", "--comment=run:base-1"),
            *("--", "/run/a b.sbatch", "$(id)", "-x"),
        )

    def test_exit_code_and_job_id_decide_whatever_a_plugin_prints(self):
        slurm, _ = client(
            (0, HEADER, ""),
            (
                0,
                "sbatch: lua: hello\n42;mini\n",
                "sbatch: error: spank: plugin.so: Incompatible Slurm plugin version\n",
            ),
        )

        assert slurm.submit(REQUEST) == 42

    def test_success_without_a_job_id_is_looked_up(self):
        slurm, script = client((0, HEADER, ""), (0, "", ""), (0, HEADER + row(7, "run:base-1"), ""))

        assert slurm.submit(REQUEST) == 7
        assert [call[0] for call in script.calls] == ["squeue", "sbatch", "squeue"]

    def test_a_time_out_is_looked_up_and_unknown_when_nothing_is_found(self):
        late = subprocess.TimeoutExpired(["sbatch"], 30)
        slurm, script = client((0, HEADER, ""), late, (0, HEADER + row(7, "run:base-10"), ""))

        with pytest.raises(SlurmUnknown, match="no answer within 30 s"):
            slurm.submit(REQUEST)
        assert len(script.calls) == 3

    def test_nothing_is_submitted_while_the_lookup_is_unanswered(self):
        slurm, script = client((1, "", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"))

        with pytest.raises(SlurmUnknown):
            slurm.submit(REQUEST)
        assert [call[0] for call in script.calls] == ["squeue"]

    def test_a_refusal_is_not_looked_up(self):
        slurm, script = client((0, HEADER, ""), (1, "", "sbatch: error: Invalid qos specification"))

        with pytest.raises(SlurmCommandError, match="Invalid qos"):
            slurm.submit(REQUEST)
        assert len(script.calls) == 2

    def test_neither_jobs_nor_orders_inherit_the_job_around(self):
        inside = {"PATH": "/bin", "SLURM_NTASKS": "9", "SLURM_CONF": "/c", "LANG": "de_DE.UTF-8"}
        slurm, script = client((0, HEADER, ""), (0, "1\n", ""), environ=inside)
        slurm.submit(REQUEST)

        assert script.environs[1] == {"PATH": "/bin", "SLURM_CONF": "/c", "LANG": "de_DE.UTF-8"}
        assert script.environs[0]["SLURM_TIME_FORMAT"] == "%s"


class TestUnknown:
    @pytest.mark.parametrize(
        "answer",
        [
            (0, "", ""),
            (0, "slurm: something else\n", ""),
            (0, HEADER + row(1, "x")[:30], ""),
            (0, HEADER + row("x", "x"), ""),
            subprocess.TimeoutExpired(["squeue"], 30),
            OSError(11, "Resource temporarily unavailable"),
        ],
    )
    def test_an_answer_that_is_none_is_unknown_and_not_an_empty_queue(self, answer):
        slurm, _ = client(answer)

        with pytest.raises(SlurmUnknown):
            slurm.jobs()

    def test_a_silent_controller_is_asked_less_and_less_often(self):
        clock = Clock()
        late = subprocess.TimeoutExpired(["squeue"], 30)
        slurm, script = client(late, late, (0, HEADER, ""), (0, HEADER, ""), clock=clock)

        for at, calls in ((50.0, 1), (50.5, 1), (51.0, 2), (52.9, 2)):
            clock.now = at
            with pytest.raises(SlurmUnknown):
                slurm.jobs()
            assert len(script.calls) == calls
        clock.now = 53.0
        assert slurm.jobs() == ()
        assert slurm.jobs() == ()

    def test_orders_are_given_all_the_same(self):
        late = subprocess.TimeoutExpired(["squeue"], 30)
        slurm, script = client(late, (0, "", ""))
        with pytest.raises(SlurmUnknown):
            slurm.jobs()
        slurm.cancel(5)

        assert script.calls[-1] == ("scancel", "5")

    def test_nodes_without_a_single_node_are_unknown(self):
        slurm, _ = client((0, "", ""))

        with pytest.raises(SlurmUnknown):
            slurm.nodes()


class TestOrders:
    @pytest.mark.parametrize(
        "said",
        [
            "scancel: error: Kill job error on job id 5: Invalid job id specified",
            "scancel: error: Kill job error on job id 5: Job/step already completing or completed",
        ],
    )
    def test_cancelling_what_is_gone_is_success(self, said):
        slurm, _ = client((1, "", said))

        slurm.cancel(5)

    def test_cancelling_what_is_not_ours_is_a_refusal(self):
        slurm, _ = client((1, "", "scancel: error: Kill job error on job id 5: Access/permission denied"))

        with pytest.raises(SlurmCommandError, match="denied"):
            slurm.cancel(5)

    def test_requeueing_what_waits_already_is_success(self):
        slurm, _ = client((1, "", "Job is pending execution for job 5"))

        slurm.requeue(5)


def test_a_cluster_without_accounts_has_no_qos():
    slurm, _ = client((1, "", "You are not running a supported accounting_storage plugin\n"))

    assert slurm.qos() == {}


def test_the_version_is_asked_once():
    slurm, script = client((0, "slurm 26.05.1\n", ""))

    assert (slurm.version(), slurm.version()) == ((26, 5, 1), (26, 5, 1))
    assert len(script.calls) == 1


def test_a_machine_without_slurm_says_so():
    with pytest.raises(MissingDependency, match="no `squeue` on PATH"):
        CommandSlurm(environ={"PATH": "/nowhere"}).jobs()


def test_the_real_runner_has_a_deadline_and_survives_any_bytes():
    done = run_command((sys.executable, "-c", "import os; os.write(1, b'a\\xff')"), {}, 20.0)
    assert done.stdout == "a\ufffd"
    with pytest.raises(subprocess.TimeoutExpired):
        run_command((sys.executable, "-c", "import time; time.sleep(20)"), {}, 0.2)
