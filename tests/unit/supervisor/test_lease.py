from __future__ import annotations

from pathlib import Path

import pytest

from slurm_elastic.errors import Superseded
from slurm_elastic.rundir import RunDirectory
from slurm_elastic.supervisor.lease import Claimant, claim, read_endpoint


def claimant(job_id: int = 5, restart_count: int = 0) -> Claimant:
    return Claimant(node="n1", pid=1, job_id=job_id, restart_count=restart_count)


def test_every_start_has_a_higher_epoch(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    first = claim(run, claimant())
    first.publish("10.0.0.1", 4000)
    second = claim(run, claimant())

    assert (first.epoch, second.epoch) == (1, 2)
    assert read_endpoint(run)["epoch"] == 2


def test_two_starts_at_the_same_time_never_share_an_epoch(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)

    assert {claim(run, claimant()).epoch for _ in range(5)} == {1, 2, 3, 4, 5}


def test_epochs_go_on_when_endpoint_json_is_lost(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    claim(run, claimant()).publish("10.0.0.1", 4000)
    run.endpoint.unlink()

    assert claim(run, claimant()).epoch == 2


def test_the_claim_alone_stops_the_older_one(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    old = claim(run, claimant())
    old.publish("10.0.0.1", 4000)
    claim(run, claimant())

    with pytest.raises(Superseded):
        old.check()


def test_an_older_supervisor_stops_as_soon_as_a_newer_one_has_published(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    old = claim(run, claimant())
    old.publish("10.0.0.1", 4000)
    old.check()
    claim(run, claimant()).publish("10.0.0.2", 4000)

    with pytest.raises(Superseded, match="epoch 2"):
        old.check()


def test_an_older_supervisor_never_takes_the_endpoint_back(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    old = claim(run, claimant())
    claim(run, claimant()).publish("10.0.0.2", 4000)

    with pytest.raises(Superseded):
        old.publish("10.0.0.1", 4000)
    assert read_endpoint(run)["host"] == "10.0.0.2"


def test_the_ghost_of_an_earlier_start_of_the_same_job_does_not_get_an_epoch(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    claim(run, claimant(restart_count=1)).publish("10.0.0.2", 4000)

    with pytest.raises(Superseded, match="restart 1 of job 5"):
        claim(run, claimant(restart_count=0))
    assert claim(run, claimant(job_id=6)).epoch == 2


@pytest.mark.parametrize("damage", ["", "{torn", "[]", '{"epoch": "x"}'])
def test_a_damaged_endpoint_json_is_written_anew(tmp_path: Path, damage: str) -> None:
    run = RunDirectory(tmp_path)
    lease = claim(run, claimant())
    lease.publish("10.0.0.1", 4000)
    lease.check()
    run.endpoint.write_text(damage)

    lease.check()
    assert read_endpoint(run)["host"] == "10.0.0.1"
    run.endpoint.write_text(damage)
    assert claim(run, claimant()).epoch == 2
    with pytest.raises(Superseded):
        lease.check()
