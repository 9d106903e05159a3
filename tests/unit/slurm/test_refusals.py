import pytest

from slurm_elastic.errors import SlurmCommandError, SlurmUnknown
from slurm_elastic.slurm.back_off import LONGEST_S, BackOff
from slurm_elastic.slurm.refusals import job_is_gone, job_is_pending, no_accounting, refusal

ARGV = ("sbatch", "x")


@pytest.mark.parametrize(
    "said",
    [
        "slurm_load_jobs error: Unable to contact slurm controller (connect failure)",
        "slurm_load_partitions: Unable to contact slurm controller (connect failure)",
        "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)",
        "srun: error: Unable to confirm allocation for job 105: Unable to contact slurm controller (connect failure)",
        "srun: Check SLURM_JOB_ID environment variable. Expired or invalid job 105",
        "scancel: error: Kill job error on job id 5: Socket timed out on send/recv operation",
        "slurm_load_jobs error: Zero Bytes were transmitted or received",
        "slurm_load_jobs error: Slurm backup controller in standby mode",
        "sacctmgr: error: Problem talking to the database: Connection refused",
        "squeue: fatal: Could not establish a configuration source",
        "sbatch: error: fetch_config: DNS SRV lookup failed",
        'sbatch: error: Munge encode failed: Failed to access "/run/munge/munge.socket.2": No such file or directory',
    ],
)
def test_nobody_answered_is_unknown_and_never_a_refusal(said):
    assert isinstance(refusal(ARGV, 1, said), SlurmUnknown)


@pytest.mark.parametrize(
    "said",
    [
        "sbatch: error: Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)",
        "sbatch: error: QOSMaxSubmitJobPerUserLimit",
        "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying",
        "sbatch: error: Batch job submission failed: Requested partition configuration not available now",
        "srun: error: Unable to create step for job 7: Job/step creation temporarily disabled, retrying",
    ],
)
def test_not_now_may_be_asked_again(said):
    refused = refusal(ARGV, 1, said)

    assert isinstance(refused, SlurmCommandError)
    assert refused.retryable


@pytest.mark.parametrize(
    "said",
    [
        "allocation failure: Requested node configuration is not available",
        "sbatch: error: invalid partition specified: nope",
        "allocation failure: Invalid qos specification",
        "sbatch: error: Invalid --time specification",
        "Access/permission denied",
        "",
    ],
)
def test_a_plain_no_is_for_good(said):
    refused = refusal(ARGV, 1, said)

    assert isinstance(refused, SlurmCommandError)
    assert not refused.retryable


def test_jobs_that_are_gone_or_pending_and_clusters_without_accounts_are_told_apart():
    def said(text):
        return SlurmCommandError(ARGV, 1, text)

    assert job_is_gone(said("scancel: error: Kill job error on job id 9: Invalid job id specified"))
    assert job_is_gone(said("Job/step already completing or completed"))
    assert not job_is_gone(said("Access/permission denied"))
    assert job_is_pending(said("Job is pending execution for job 7"))
    assert no_accounting(said("You are not running a supported accounting_storage plugin"))


def test_a_silent_controller_is_left_alone_for_longer_and_longer_but_never_for_long():
    back_off = BackOff()
    waits = []
    for _ in range(8):
        back_off = back_off.after_silence(100.0)
        waits.append(back_off.wait_s(100.0))

    assert waits == [1, 2, 4, 8, 16, LONGEST_S, LONGEST_S, LONGEST_S]
    assert back_off.wait_s(1000.0) == 0
