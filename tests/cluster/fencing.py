"""What must hold when workers come back whose generation is over: they end, and have written nothing."""

from __future__ import annotations

from itertools import pairwise

from slurm_elastic.checkpoint import layout
from slurm_elastic.observe.ledger import parse_line
from slurm_elastic.testbed.cluster import Cluster
from slurm_elastic.testbed.processes import Running as Process
from tests.cluster.running import Running


def workers_of(cluster: Cluster, generation: int, node: str | None = None) -> list[Process]:
    return [one for one in cluster.workers(node) if ("--generation", str(generation)) in pairwise(one.arguments)]


def assert_nobody_is_left_of(cluster: Cluster, running: Running, generation: int) -> None:
    """Nor a checkpoint that one of them has begun."""
    cluster.wait_until(lambda: not workers_of(cluster, generation), 60, f"no worker of generation {generation}")
    drafts = [path.name for path in running.run.checkpoints.iterdir()]
    assert not [name for name in drafts if layout.generation_of_draft(name) == generation]


def assert_one_generation_wrote_after_the_other(running: Running) -> None:
    """The file itself has each step once, whoever reads it."""
    with running.run.ledger.open("rb") as ledger:
        lines = [line for raw in ledger if (line := parse_line(raw)) is not None]
    assert [line.step for line in lines] == list(range(1, len(lines) + 1))
    generations = [line.generation for line in lines]
    assert generations == sorted(generations)
