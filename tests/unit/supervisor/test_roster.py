"""What the roster makes of a worker's notice."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from slurm_elastic.supervisor.roster import Roster
from slurm_elastic.wire import messages as m


def roster(poked: list[str], workers: Any) -> Roster:
    generation = SimpleNamespace(everyone=(SimpleNamespace(node="n3"),))
    course: Any = SimpleNamespace(
        state=SimpleNamespace(over=False, generation=1), expected=lambda launch, node: generation, epoch=1
    )
    nobody: Any = None
    return Roster(course, nobody, workers, nobody, lambda: poked.append("asked"), heartbeat_s=1.0)


def test_a_worker_that_heard_a_signal_makes_us_ask_slurm_and_its_connection_is_no_second_worker() -> None:
    poked: list[str] = []
    hello = m.WorkerHello(generation=1, node="n3", local_rank=0, pid=5, stage="notice", job_id=9)
    link: Any = SimpleNamespace(hello=hello)
    workers = SimpleNamespace(is_fenced=lambda *place: False)  # knows nothing that could join or close

    here = roster(poked, workers)
    assert isinstance(here.connected(link, hello), m.Welcome)
    here.received(link, m.WorkerNotice(source="SIGTERM"))

    assert poked == ["asked"]
