"""What every SlurmClient must do. The command client runs over scripted commands; tests/cluster has the real ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_elastic.errors import SlurmCommandError, SlurmUnknown
from slurm_elastic.slurm.api import BatchRequest, Node
from slurm_elastic.slurm.command_client import CommandSlurm
from slurm_elastic.testing.memory_slurm import MemorySlurm

from .scripted_commands import ScriptedCommands

PREFIX = "slurm-elastic:0123456789ab:"


class Clock:
    now = 1_000_000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def controller(clock):
    """The other side: what a test does to jobs, whatever the client."""
    return MemorySlurm(
        clock=clock,
        known_nodes={
            "n1": Node(name="n1", state="IDLE", cpus=4, partitions=("main",)),
            "n2": Node(
                name="n2", state="ALLOCATED", flags=frozenset({"DRAIN"}), reason="fan broken", cpus=4, gres="gpu:2"
            ),
        },
        settings={"KillWait": "30 sec", "ClusterName": "mini"},
        known_partitions={"main": {"PartitionName": "main", "MaxTime": "UNLIMITED"}},
        known_qos={"base": {"Name": "base", "Priority": "100"}},
    )


@pytest.fixture(params=["command", "memory"])
def slurm(request, controller, clock):
    if request.param == "memory":
        return controller
    return CommandSlurm(ScriptedCommands(controller), clock=clock, environ={"PATH": "/bin"})


def companion(count=1, **options):
    wanted = {"job-name": "companion", "nodes": "1", "no-requeue": True, **options}
    return BatchRequest(script=Path("/run/jobs/c.sbatch"), options=wanted, token=f"{PREFIX}companion-{count:05d}")


class TestSubmitting:
    def test_a_submitted_job_is_found_by_its_id_and_by_its_token(self, slurm):
        job_id = slurm.submit(companion())

        (by_id,) = slurm.jobs([job_id])
        (by_token,) = slurm.jobs(token_prefix=PREFIX)
        assert by_id == by_token
        assert (by_id.state, by_id.name, by_id.num_nodes, by_id.requeue) == ("PENDING", "companion", 1, False)
        assert by_id.comment == PREFIX + "companion-00001"

    def test_one_token_never_makes_two_jobs(self, slurm, controller):
        first = slurm.submit(companion())

        assert slurm.submit(companion()) == first
        assert len(controller.known_jobs) == 1
        assert slurm.submit(companion(2)) != first

    def test_a_job_that_ended_already_still_owns_its_token(self, slurm, controller):
        job_id = slurm.submit(companion())
        controller.end(job_id, "PREEMPTED")

        assert slurm.submit(companion()) == job_id

    def test_a_lost_answer_does_not_lead_to_a_second_job(self, slurm, controller):
        controller.lose_answer = True
        try:
            job_id = slurm.submit(companion())
        except SlurmUnknown:
            job_id = slurm.submit(companion())

        assert list(controller.known_jobs) == [job_id]

    def test_a_refusal_says_whether_to_ask_again(self, slurm, controller):
        controller.refuse = ("sbatch: error: QOSMaxSubmitJobPerUserLimit", True)
        with pytest.raises(SlurmCommandError, match="QOSMaxSubmit") as refusal:
            slurm.submit(companion())
        assert refusal.value.retryable

        controller.refuse = ("sbatch: error: Invalid qos specification", False)
        with pytest.raises(SlurmCommandError, match="Invalid qos") as refusal:
            slurm.submit(companion())
        assert not refusal.value.retryable
        with pytest.raises(SlurmCommandError, match="Invalid qos"):
            slurm.test_only(companion())

    def test_a_test_makes_no_job(self, slurm, controller):
        assert "to start at" in slurm.test_only(companion())
        assert controller.known_jobs == {}


class TestJobs:
    def test_a_running_job_shows_its_nodes_and_its_end(self, slurm, controller, clock):
        job_id = slurm.submit(companion())
        controller.start(job_id, "n1", "n2")
        controller.preempt(job_id, grace_s=20)

        (job,) = slurm.jobs([job_id])
        assert (job.state, job.nodes, job.batch_host) == ("RUNNING", ("n1", "n2"), "n1")
        assert (job.preempt_time, job.end_time) == (clock.now, clock.now + 20)

    def test_a_lost_node_leaves_the_job(self, slurm, controller):
        job_id = slurm.submit(companion())
        controller.start(job_id, "n1", "n2")
        controller.lose_node(job_id, "n2")

        assert slurm.jobs([job_id])[0].nodes == ("n1",)

    def test_ids_that_slurm_has_forgotten_are_missing_from_the_answer(self, slurm, controller):
        first, second = slurm.submit(companion()), slurm.submit(companion(2))
        controller.forget(first)

        assert [job.job_id for job in slurm.jobs([first, second, 999])] == [second]

    def test_all_jobs_of_a_run_take_one_query(self, slurm, controller):
        ids = [slurm.submit(companion(count)) for count in range(5)]
        before = controller.queries

        assert len(slurm.jobs(ids, token_prefix=PREFIX)) == 5
        assert controller.queries == before + 1

    def test_jobs_of_other_runs_and_users_are_left_out(self, slurm, controller):
        slurm.submit(BatchRequest(script=Path("x"), token="slurm-elastic:ffffffffffff:base-1"))
        mine = slurm.submit(companion())

        assert [job.job_id for job in slurm.jobs(token_prefix=PREFIX)] == [mine]
        assert slurm.jobs([mine], user="bob") == ()
        assert len(slurm.jobs()) == 2


class TestCancelAndRequeue:
    def test_cancelling_twice_or_what_never_was_is_success(self, slurm):
        job_id = slurm.submit(companion())
        slurm.cancel(job_id)
        slurm.cancel(job_id)
        slurm.cancel(999)

        assert slurm.jobs([job_id])[0].state == "CANCELLED"

    def test_a_requeued_job_waits_again_and_counts_it(self, slurm, controller):
        job_id = slurm.submit(companion())
        controller.start(job_id, "n1")
        slurm.requeue(job_id)
        slurm.requeue(job_id)

        (job,) = slurm.jobs([job_id])
        assert (job.state, job.nodes, job.restarts) == ("PENDING", (), 1)

    def test_a_job_that_is_gone_cannot_come_back(self, slurm):
        with pytest.raises(SlurmCommandError, match="Invalid job id"):
            slurm.requeue(999)


class TestSilence:
    @pytest.mark.parametrize("silence", ["connect failure", "no answer within 30 s"])
    def test_a_controller_that_is_away_is_unknown_for_every_question(self, slurm, controller, clock, silence):
        controller.silent = silence
        questions = (
            slurm.version,
            slurm.jobs,
            slurm.nodes,
            slurm.config,
            slurm.partitions,
            slurm.qos,
            lambda: slurm.submit(companion()),
            lambda: slurm.test_only(companion()),
            lambda: slurm.cancel(1),
            lambda: slurm.requeue(1),
        )
        for question in questions:
            clock.now += 60
            with pytest.raises(SlurmUnknown):
                question()

    def test_it_goes_on_when_the_controller_is_back(self, slurm, controller, clock):
        job_id = slurm.submit(companion())
        controller.silent = "connect failure"
        with pytest.raises(SlurmUnknown):
            slurm.jobs([job_id])
        controller.silent = ""
        clock.now += 30

        assert slurm.jobs([job_id])[0].job_id == job_id


class TestTheCluster:
    def test_nodes_with_their_flags_and_reasons(self, slurm):
        first, second = slurm.nodes()

        assert (first.name, first.state, first.flags, first.partitions) == ("n1", "IDLE", frozenset(), ("main",))
        assert (second.state, second.flags, second.reason, second.gres) == (
            "ALLOCATED",
            {"DRAIN"},
            "fan broken",
            "gpu:2",
        )

    def test_an_unknown_node_is_missing_from_the_answer(self, slurm):
        assert [node.name for node in slurm.nodes(["n1", "n77"])] == ["n1"]
        assert slurm.nodes(["n77"]) == ()

    def test_version_settings_partitions_and_qos(self, slurm):
        assert slurm.version() == (22, 5, 8)
        assert slurm.config()["KillWait"] == "30 sec"
        assert slurm.partitions()["main"]["MaxTime"] == "UNLIMITED"
        assert slurm.qos()["base"]["Priority"] == "100"
