import pytest

from slurm_elastic.slurm.states import Meaning, job_state, meaning, node_state, state_code

from .shared_samples import sample


@pytest.mark.parametrize(
    ("printed", "state"),
    [
        ("CG", "COMPLETING"),
        ("R", "RUNNING"),
        ("CANCELLED by 4001", "CANCELLED"),
        ("CANCELLED+", "CANCELLED"),
        ("SIGNALING", "RUNNING"),
        ("RESIZING", "RUNNING"),
        ("OOM", "OUT_OF_MEMORY"),
        ("running", "RUNNING"),
    ],
)
def test_codes_and_long_names_come_under_one_name(printed, state):
    assert job_state(printed) == state


@pytest.mark.parametrize("strange", ["QUANTUM", "X", ""])
def test_an_unknown_state_is_shown_as_it_is_and_means_unknown(strange):
    assert job_state(strange) == strange
    assert state_code(strange) == strange
    assert meaning(strange) is Meaning.UNKNOWN


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("CG", Meaning.LEAVING),
        ("RQ", Meaning.WAITING),
        ("RH", Meaning.WAITING),
        ("SE", Meaning.WAITING),
        ("PR", Meaning.OVER),
        ("S", Meaning.PAUSED),
        ("CF", Meaning.HOLDS),
        ("NF", Meaning.OVER),
        ("BF", Meaning.OVER),
        ("OOM", Meaning.OVER),
        ("DL", Meaning.OVER),
        ("RV", Meaning.OVER),
    ],
)
def test_each_state_has_a_defined_meaning(code, expected):
    assert meaning(job_state(code)) is expected
    assert state_code(job_state(code)) == code


@pytest.mark.parametrize("state", ["PREEMPTED", "NODE_FAIL", "BOOT_FAIL"])
def test_a_job_that_may_be_requeued_is_not_over_when_it_is_preempted_or_loses_its_node(state):
    assert meaning(state, requeue=True) is Meaning.LEAVING
    assert meaning("COMPLETED", requeue=True) is Meaning.OVER


@pytest.mark.parametrize(
    ("printed", "base", "flags"),
    [
        ("IDLE", "IDLE", set()),
        ("ALLOCATED+DRAIN+REBOOT_REQUESTED", "ALLOCATED", {"DRAIN", "REBOOT_REQUESTED"}),
        ("DOWN*+DRAIN", "DOWN", {"NOT_RESPONDING", "DRAIN"}),
        ("draining@", "ALLOCATED", {"DRAIN", "REBOOT_REQUESTED"}),
        ("down*", "DOWN", {"NOT_RESPONDING"}),
        ("idle~", "IDLE", {"POWERED_DOWN"}),
        ("fail", "IDLE", {"FAIL"}),
        ("maint", "IDLE", {"MAINTENANCE"}),
        ("boot^", "DOWN", {"REBOOT_ISSUED"}),
        ("MIXED+CLOUD", "MIXED", {"CLOUD"}),
        ("what is this", "what is this", set()),
    ],
)
def test_node_states_are_a_base_and_flags(printed, base, flags):
    assert node_state(printed) == (base, frozenset(flags))


def test_every_recorded_node_state_is_understood():
    for printed in sample("scontrol_show_node_state_strings.txt").split():
        base, _ = node_state(printed)

        assert base in {"ALLOCATED", "IDLE", "MIXED", "DOWN", "FUTURE"}, printed


def test_reasons_of_a_held_requeue_do_not_change_the_state():
    assert "JobState=PENDING" in sample("requeue_held__reasons.txt")
    assert job_state("PENDING (launch failed requeued held)") == "PENDING"
