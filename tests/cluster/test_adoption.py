"""T12: the scripts of docs/examples, as they are, through growth and shrink on a real Slurm."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

import pytest

from slurm_elastic.observe.events import read_events
from slurm_elastic.observe.ledger import read_ledger
from slurm_elastic.observe.status import Status
from slurm_elastic.testbed.cluster import Cluster
from tests.cluster.running import Running

pytestmark = pytest.mark.cluster

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "docs" / "examples"
LEVEL1_STEPS, LEVEL0_STEPS = 96, 200
SAVE_EVERY = 10  # steps, of the level-0 scripts


class Example(Running):
    """A run of an example script that takes its time until `hurry`."""

    @classmethod
    def start(cls, cluster: Cluster, folder: Path, script: str, **settings: dict[str, object]) -> Example:
        (folder / "pace").touch()
        env = {
            "PYTHONPATH": str(HERE),
            "ELASTIC_WARM": "paced_steps",
            "PACE": str(folder / "pace"),
            "TRACE": str(folder / "trace"),
            "CHECKPOINT": str(folder / "own.pt"),
            "STEPS": str(LEVEL0_STEPS),
            "OMP_NUM_THREADS": "1",
        }
        run = {"command": ["python", str(EXAMPLES / script)], "env": env, **settings.pop("run", {})}
        elastic = {"scaling_timeout": "1s", **settings.pop("elastic", {})}
        batch = {"global_batch_size": 32, "micro_batch_size": 16}
        started = cls.submit(cluster, folder, run=run, elastic=elastic, batch=batch, **settings)
        assert isinstance(started, Example)
        return started

    @property
    def folder(self) -> Path:
        return self.run.path.parent

    def worlds(self) -> list[tuple[int, int]]:
        """(generation, world size) of every step that rank 0 made, in order."""
        trace = self.folder / "trace"
        lines = trace.read_text().splitlines() if trace.exists() else []
        return [(int(line.split()[0]), int(line.split()[1])) for line in lines]

    def wait_for_steps(self, world: int, more: int = 3) -> None:
        """The newest generation has `world` workers and has made some steps."""

        def stepping(status: Status) -> bool:
            assert status.state != "failed", self.story()
            return [size for _, size in self.worlds()[-more:]] == [world] * more and len(
                set(self.worlds()[-more:])
            ) == 1

        self.wait(stepping, f"{more} steps with {world} workers", 120)

    def hurry(self) -> None:
        (self.folder / "pace").unlink()

    def finish(self, said: str) -> None:
        """It goes on to its end, says so once, and leaves nothing in Slurm."""
        self.hurry()
        self.wait(lambda status: status.state == "finished", "the end of the training", 120)
        self.wait_for_end()
        assert self.run.done.exists()
        logs = "".join(log.read_text() for log in self.run.logs.glob("gen-*/*.log"))
        assert logs.count(said) == 1, logs

    def sizes(self) -> list[int]:
        """World sizes that trained, one after the other."""
        return [world for (_, world), _ in groupby(self.worlds())]


def expect_every_step_once(example: Example, sizes: list[int]) -> None:
    lines = list(read_ledger(example.run.ledger))
    assert [line.step for line in lines] == list(range(1, LEVEL1_STEPS + 1))
    assert example.worlds() == [(line.generation, line.world) for line in lines]  # none was done and then lost
    assert example.sizes() == sizes


@pytest.mark.parametrize("script", ["level1_ddp.py", "level1_fsdp2.py", "level2_fsdp2.py"])
def test_it_grows_and_shrinks_without_losing_a_step(script: str, cluster: Cluster, tmp_path: Path) -> None:
    example = Example.start(cluster, tmp_path, script)
    example.wait_for_steps(3)
    example.command("scale", str(example.run.path), "--nodes", "2")
    example.wait_for_steps(2)
    example.finish(f"trained for {LEVEL1_STEPS} steps")

    expect_every_step_once(example, [2, 3, 2])
    assert [done.kind for done in example.transitions()] == ["grow", "shrink"]
    mode = "live" if script.startswith("level2") else "relaunch"
    assert {done.mode for done in example.transitions()} == {mode}


def test_level_0_goes_on_from_its_own_checkpoint_at_every_size(cluster: Cluster, tmp_path: Path) -> None:
    example = Example.start(cluster, tmp_path, "level0_ddp.py")
    example.wait_for_steps(3)
    example.command("scale", str(example.run.path), "--nodes", "2")
    example.wait_for_steps(2)
    example.finish(f"trained for {LEVEL0_STEPS} steps")

    assert example.sizes() == [2, 3, 2]
    assert LEVEL0_STEPS <= len(example.worlds()) <= LEVEL0_STEPS + 2 * SAVE_EVERY
    assert [done.kind for done in example.transitions()] == ["grow", "shrink"]


def preempt(example: Example, nodes: int) -> int:
    """An urgent job takes so many nodes. The run saves, leaves early, and is back in the queue. The urgent job's id."""
    cluster = example.cluster
    urgent = cluster.submit("-q", "urgent", f"-N{nodes}", "--exclusive", "-o", "/dev/null", "--wrap", "exec sleep 600")
    cluster.wait_job(example.job_id, "PENDING", 120)
    cluster.wait_job(urgent, "RUNNING", 60)
    assert cluster.job(example.job_id)["Restarts"] == "1"
    assert [event.kind for event in read_events(example.run.events)][-2:] == ["stopped", "requeued"]
    # Slurm would hold it for 120 s.
    cluster.tell("scontrol", "update", f"JobId={example.job_id}", "StartTime=now")
    return urgent


def test_a_single_preemptible_job_comes_back_at_another_size(cluster: Cluster, tmp_path: Path) -> None:
    elastic: dict[str, object] = {"min_nodes": 1, "max_nodes": 2}
    example = Example.start(cluster, tmp_path, "level1_ddp.py", run={"layout": "single"}, elastic=elastic)
    example.wait_for_steps(2)
    preempt(example, 5)
    example.wait_for_steps(1)
    example.finish(f"trained for {LEVEL1_STEPS} steps")

    expect_every_step_once(example, [2, 1])


def test_one_mpi_world_is_preempted_comes_back_smaller_and_is_submitted_again_larger(
    cluster: Cluster, tmp_path: Path
) -> None:
    run: dict[str, object] = {"layout": "single", "launcher": "mpi"}
    elastic: dict[str, object] = {"min_nodes": 2, "max_nodes": 3}
    example = Example.start(cluster, tmp_path, "level1_mpi.py", run=run, elastic=elastic)
    example.wait_for_steps(3)
    urgent = preempt(example, 4)
    example.wait_for_steps(2)
    cluster.tell("scancel", str(urgent))
    cluster.wait_job(urgent, "CANCELLED")
    example.command("stop", str(example.run.path), "--wait")
    example.command("submit", str(example.run.path))
    example.wait_for_steps(3)
    example.finish(f"trained for {LEVEL1_STEPS} steps")

    expect_every_step_once(example, [3, 2, 3])
