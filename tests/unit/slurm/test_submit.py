import json
import shlex
from types import SimpleNamespace

import pytest

from slurm_elastic import config
from slurm_elastic.cli import main
from slurm_elastic.cli.submitted import not_reported
from slurm_elastic.errors import SlurmUnknown
from slurm_elastic.rundir import RunDirectory, replace_json
from slurm_elastic.slurm import command_client, run_jobs
from slurm_elastic.testing.memory_slurm import MemorySlurm

YAML = """\
run:
  name: demo
  dir: my run
  command: [python, train.py]
base:
  nodes: 2
  qos: base
  time: 2h
elastic:
  min_nodes: 2
  max_nodes: 4
"""


@pytest.fixture
def slurm(monkeypatch):
    slurm = MemorySlurm()
    monkeypatch.setattr(command_client, "CommandSlurm", lambda: slurm)
    return slurm


@pytest.fixture
def yaml(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(YAML)
    return path


@pytest.fixture
def run(tmp_path):
    return RunDirectory(tmp_path / "my run")


def submit(*words):
    return main.run(["submit", *map(str, words)])


def test_a_run_is_submitted_and_told_how_to_watch(slurm, yaml, run, capsys):
    assert submit(yaml) == 0

    (request,) = slurm.requests
    (job,) = slurm.known_jobs.values()
    said = capsys.readouterr().out
    assert f"submitted base job {job.job_id}" in said
    assert f"slurm-elastic status {shlex.quote(str(run.path))} --watch" in said
    assert (job.name, job.num_nodes, job.requeue) == ("demo", 2, True)
    assert run_jobs.token_of(run, job.comment).startswith("base-")
    assert request.script.parent == run.jobs
    assert f"run_dir='{run.path}'" in request.script.read_text()


def test_the_run_keeps_settings_that_mean_the_same_from_its_own_directory(slurm, yaml, run):
    submit(yaml)

    assert config.load(run.config) == config.load(yaml)
    assert config.load(run.config).run.workdir == str(yaml.parent)


def test_json_has_the_job_and_the_directory(slurm, yaml, run, capsys):
    assert submit(yaml, "--json") == 0

    said = json.loads(capsys.readouterr().out)
    assert said == {
        "job_id": 1,
        "name": "demo",
        "run_dir": str(run.path),
        "script": str(slurm.requests[0].script),
    }


def test_a_dry_run_shows_everything_and_touches_nothing(slurm, yaml, run, capsys):
    assert submit(yaml, "--dry-run") == 0

    said = capsys.readouterr().out
    assert "#SBATCH --nodes=2" in said
    assert said.rstrip().splitlines()[-1].startswith("sbatch --parsable --job-name=demo")
    assert slurm.queries == 0
    assert not run.path.exists()


def test_preparing_makes_the_script_but_no_job(slurm, yaml, run, capsys):
    assert submit(yaml, "--prepare") == 0

    program, script = shlex.split(capsys.readouterr().out)
    assert program == "sbatch"
    assert "#SBATCH --comment=slurm-elastic:" in (run.jobs / script).read_text()
    assert slurm.known_jobs == {}


def test_a_finished_run_is_not_run_again(slurm, yaml, run, capsys):
    run.create()
    run.done.write_text("{}")

    assert submit(yaml) == 2
    assert "is finished" in capsys.readouterr().err
    assert slurm.known_jobs == {}


@pytest.mark.parametrize("state", ["PENDING", "RUNNING", "COMPLETING", "PREEMPTED", "STRANGE"])
def test_a_run_that_may_still_run_is_not_submitted_again_and_keeps_its_settings(slurm, yaml, run, capsys, state):
    submit(yaml)
    slurm.end(1, state)
    before = run.config.read_text()
    yaml.write_text(YAML.replace("max_nodes: 4", "max_nodes: 6"))

    assert submit(yaml) == 2
    how = "waits in the queue" if state == "PENDING" else "is running"
    assert f"{how} already: base job 1 is {state}" in capsys.readouterr().err
    assert list(slurm.known_jobs) == [1]
    assert run.config.read_text() == before


@pytest.mark.parametrize("again", ["the file", "the run directory"])
def test_a_run_whose_base_job_is_gone_goes_on(slurm, yaml, run, again):
    submit(yaml)
    slurm.end(1, "CANCELLED")

    assert submit(yaml if again == "the file" else run.path) == 0
    assert list(slurm.known_jobs) == [1, 2]
    assert slurm.known_jobs[1].comment != slurm.known_jobs[2].comment


def test_nothing_is_submitted_while_slurm_does_not_say_what_runs(slurm, yaml, run, capsys):
    run.create()
    slurm.silent = "connect failure"

    assert submit(yaml) == 3
    assert "got no answer" in capsys.readouterr().err
    assert slurm.known_jobs == {}


def test_a_directory_that_cannot_be_made_is_the_users_to_mend(slurm, yaml, run, capsys):
    run.path.write_text("a file in the way")

    assert submit(yaml) == 2
    assert "cannot make the run directory" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("setting", "said"),
    [("qos: elastik", "elastic.qos: Slurm has no QOS 'elastik'"), ("partition: x", "partition 'x'")],
)
def test_a_companion_that_slurm_would_refuse_is_not_submitted(slurm, yaml, run, capsys, setting, said):
    slurm.known_qos = {"base": {}, "elastic": {}}
    slurm.known_partitions = {"main": {}}
    yaml.write_text(YAML + f"  {setting}\n")

    assert submit(yaml) == 2
    assert said in capsys.readouterr().err
    assert not slurm.known_jobs and not run.path.exists()


def test_names_that_cannot_be_asked_about_stop_nothing(slurm, yaml, monkeypatch):
    def away(_):
        raise SlurmUnknown("away")

    monkeypatch.setattr(MemorySlurm, "qos", away)
    yaml.write_text(YAML + "  qos: elastik\n")

    assert submit(yaml) == 0


def test_a_missing_file_is_named(slurm, tmp_path, capsys):
    assert submit(tmp_path / "no.yaml") == 2
    assert "no.yaml" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("launcher", "template"), [("torch", "Slurm starts it at whatever size"), ("mpi", "one MPI world")]
)
def test_a_single_job_of_either_launcher(slurm, yaml, launcher, template, capsys):
    yaml.write_text(YAML.replace("  name: demo", f"  name: demo\n  layout: single\n  launcher: {launcher}"))

    assert submit(yaml, "--dry-run") == 0
    said = capsys.readouterr().out
    assert template in said
    assert "#SBATCH --nodes=2-4" in said


def test_a_run_that_has_just_stopped_is_given_the_time_to_leave(slurm, yaml, run, monkeypatch):
    submit(yaml)
    slurm.end(1, "COMPLETING")
    stopped = SimpleNamespace(state="stopped", supervisor=SimpleNamespace(epoch=1))
    monkeypatch.setattr("slurm_elastic.observe.status.read_status", lambda path: stopped)
    monkeypatch.setattr("slurm_elastic.cli.submitted.read_status", lambda path: stopped)
    monkeypatch.setattr("slurm_elastic.cli.submit.time.sleep", lambda _: slurm.end(1, "COMPLETED"))

    assert submit(yaml) == 0
    assert list(slurm.known_jobs) == [1, 2]


def test_the_submitted_job_is_written_down(slurm, yaml, run):
    run.create()
    replace_json(run.endpoint, {"epoch": 4, "job_id": 9})
    submit(yaml)

    submitted = not_reported(run)
    assert (submitted.job_id, submitted.after_epoch) == (1, 4)


def test_a_job_that_starts_after_a_stop_is_not_taken_for_one_that_leaves(slurm, yaml, run, monkeypatch, capsys):
    submit(yaml)
    slurm.start(1, "n1")
    monkeypatch.setattr("slurm_elastic.observe.status.read_status", lambda path: SimpleNamespace(state="stopped"))
    monkeypatch.setattr("slurm_elastic.cli.submit.time.sleep", lambda _: pytest.fail("it waits for its end"))

    assert submit(yaml) == 2
    assert "is running already: base job 1 is RUNNING" in capsys.readouterr().err


def test_of_two_submissions_at_the_same_time_one_is_refused(slurm, yaml, run, monkeypatch, capsys):
    plain, codes = slurm.submit, []  # bound before it is replaced

    def submit_meanwhile(request):
        codes.append(submit(yaml))
        return plain(request)

    monkeypatch.setattr(MemorySlurm, "submit", lambda self, request: submit_meanwhile(request))

    assert submit(yaml) == 0
    assert codes == [2]
    assert len(slurm.known_jobs) == 1
    assert "another `submit`" in capsys.readouterr().err


def test_faults_of_the_file_are_json_when_that_is_asked_for(slurm, yaml, capsys):
    yaml.write_text(YAML + "  max_nods: 3\n")

    assert submit(yaml, "--json") == 2
    (fault,) = json.loads(capsys.readouterr().out)["faults"]
    assert (fault["key"], fault["line"]) == ("elastic.max_nods", 12)


def test_a_run_whose_submission_failed_is_prepared_and_needs_no_slurm_for_what_asks_nothing_of_it(
    slurm, yaml, run, capsys
):
    slurm.silent = "no controller"
    assert submit(yaml) == 3
    capsys.readouterr()

    assert main.run(["status", str(run.path), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["state"], shown["run"]) == ("prepared", "demo")
    assert submit(yaml, "--prepare") == 0
    assert main.run(["stop", str(run.path)]) == 2
    assert "was never submitted" in capsys.readouterr().err
    assert submit(yaml) == 3  # this asks for a job: only Slurm knows whether one waits already
    slurm.silent = ""
    assert submit(yaml) == 0


def test_a_run_that_was_submitted_is_not_prepared_again_while_slurm_says_nothing(slurm, yaml):
    submit(yaml)
    slurm.silent = "no controller"

    assert submit(yaml, "--prepare") == 3
