from slurm_elastic.slurm.environment import for_queries, scrubbed

INSIDE_A_JOB = {
    "PATH": "/usr/bin",
    "HOME": "/home/alice",
    "SLURM_CONF": "/etc/slurm/slurm.conf",
    "SLURM_JOB_ID": "7",
    "SLURM_NTASKS_PER_NODE": "2",
    "SLURM_CPUS_PER_TASK": "4",
    "SLURM_EXPORT_ENV": "NONE",
    "SLURM_JWT": "secret",
    "SLURMD_NODENAME": "n1",
    "SRUN_CPUS_PER_TASK": "4",
    "SBATCH_QOS": "base",
    "SQUEUE_FORMAT": "%i",
    "PMI_RANK": "0",
    "PMIX_NAMESPACE": "x",
    "LC_ALL": "de_DE.UTF-8",
    "OMP_NUM_THREADS": "3",
}


def test_nothing_of_the_job_around_reaches_a_new_job_or_step():
    assert scrubbed(INSIDE_A_JOB) == {
        "PATH": "/usr/bin",
        "HOME": "/home/alice",
        "SLURM_CONF": "/etc/slurm/slurm.conf",
        "LC_ALL": "de_DE.UTF-8",
        "OMP_NUM_THREADS": "3",
    }


def test_answers_are_in_english_with_times_in_unix_seconds():
    environ = for_queries(INSIDE_A_JOB)

    assert (environ["LC_ALL"], environ["SLURM_TIME_FORMAT"]) == ("C.UTF-8", "%s")
    assert "SQUEUE_FORMAT" not in environ
    assert environ["SLURM_CONF"] == "/etc/slurm/slurm.conf"
