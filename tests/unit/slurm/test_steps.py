from slurm_elastic.slurm.steps import mpi_step_argv, output_pattern, probe_argv, worker_step_argv


def worker_step(**changed):
    wanted = {
        "job_id": 7,
        "node": "n2",
        "generation": 3,
        "workers": 4,
        "cpus": 8,
        "command": ("python", "-m", "slurm_elastic.agent.shim"),
        **changed,
    }
    return worker_step_argv(**wanted)


def test_workers_of_a_node_are_one_step_of_their_own_with_every_number_given():
    assert worker_step(gpus=4, output="/run/logs/gen-0003/n2-%t.log") == (
        *("srun", "--jobid=7", "--overlap", "--kill-on-bad-exit=0", "--wait=0", "--input=none", "--no-kill"),
        *("--nodes=1", "--ntasks=4", "--nodelist=n2", "--cpus-per-task=8", "--gres=gpu:4", "--mpi=none"),
        *("--job-name=gen-0003", "--output=/run/logs/gen-0003/n2-%t.log", "--open-mode=append"),
        *("python", "-m", "slurm_elastic.agent.shim"),
    )


def test_without_gpus_none_are_asked_for():
    assert not [word for word in worker_step() if word.startswith("--gres")]


def test_an_mpi_world_is_one_step_over_all_nodes_that_ends_when_a_node_is_lost():
    argv = mpi_step_argv(
        job_id=7, nodes=("n1", "n2", "n3"), generation=1, workers=2, cpus=1, command=("python", "train.py")
    )

    assert argv[-2:] == ("python", "train.py")
    assert {"--nodes=3", "--ntasks=6", "--ntasks-per-node=2", "--nodelist=n[1-3]", "--mpi=pmix", "--overlap"} < set(
        argv
    )
    assert "--no-kill" not in argv


def test_a_probe_takes_nothing_from_the_workers():
    argv = probe_argv(job_id=7, node="n2")

    assert {"--overlap", "--gres=none", "--nodelist=n2", "--ntasks=1", "--mpi=none"} < set(argv)
    assert argv[-1] == "true"


def test_percent_signs_of_a_directory_are_meant_literally():
    assert output_pattern("/data/100%/x") + "-%t" == "/data/100%%/x-%t"
