"""How long training stands still: `python -m benchmarks.stall [--repeats N] [--json]`. Root, as for the testbed.

From the last completed step before a change to the first one after it, at a growth, at the unplanned loss of a worker
(SIGKILL) and at a planned shrink. slurm-elastic on a testbed's real Slurm (a companion starts, dies, is preempted by an
urgent job), with workers that change in place (level 2) and with workers that are started anew (level 1), and torchrun
tuned as well as it goes (an agent joins, its worker dies, the agent leaves by SIGTERM), with the same model, pace and
checkpoint interval, in turn on the same machine. Steps lost are those done again.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.stall_runs import Contender, SlurmElastic, Torchrun, wait
from benchmarks.stall_steps import read_steps
from slurm_elastic.testbed.cluster import Cluster
from slurm_elastic.testbed.options import Options

SETTLED_STEPS = 50  # of one generation, before the next event
EVENT_S = 120.0
EVENTS = ("growth", "loss", "shrink")
CONTENDERS = ("live", "relaunch", "torchrun")


@dataclass(frozen=True, slots=True)
class Stall:
    contender: str
    event: str
    repeat: int
    stall_s: float
    steps_lost: int
    load: float


def measure(contender: Contender, repeat: int, say: Callable[[str], None]) -> list[Stall]:
    """All events, one after the other, on one run."""
    causes = {"growth": (contender.grow, 3), "loss": (contender.lose, 3), "shrink": (contender.shrink, 2)}
    found = []
    try:
        contender.start()
        _settle(contender, 0, 2)
        for event in EVENTS:
            cause, workers = causes[event]
            before = len(read_steps(contender.steps))
            cause()
            _settle(contender, before, workers)
            found.append(_stall(contender, event, repeat, before))
            one = found[-1]
            say(f"{one.contender} {event}: {one.stall_s:.2f} s, {one.steps_lost} steps lost (load {one.load:.1f})")
    finally:
        contender.stop()
    return found


def _settle(contender: Contender, before: int, workers: int) -> None:
    """A generation of so many workers, none that was there when `before` steps were logged, has made its steps."""

    def settled() -> bool:
        steps = read_steps(contender.steps)
        old = {done.life for done in steps[:before]}
        last = steps[-SETTLED_STEPS:]
        return len(last) == SETTLED_STEPS and all(
            done.life == last[0].life and done.life not in old and done.world == workers for done in last
        )

    wait(settled, EVENT_S, f"{contender.name} makes steps with {workers} workers")


def _stall(contender: Contender, event: str, repeat: int, before: int) -> Stall:
    steps = read_steps(contender.steps)
    trained = steps[before - 1].life
    old = max(index for index, done in enumerate(steps) if done.life == trained)
    last, first = steps[old], steps[old + 1]
    return Stall(
        contender=contender.name,
        event=event,
        repeat=repeat,
        stall_s=round(first.time - last.time, 3),
        steps_lost=last.step - (first.step - 1),
        load=round(os.getloadavg()[0], 1),
    )


def _table(found: list[Stall]) -> str:
    """Medians, and of ours the ratio to torchrun's."""
    lines = [f"{'event':8} " + " ".join(f"{name:>18}" for name in CONTENDERS) + "   steps lost (most)"]
    for event in EVENTS:
        of = {name: [one for one in found if one.event == event and one.contender == name] for name in CONTENDERS}
        if not all(of.values()):
            continue
        medians = {name: statistics.median(one.stall_s for one in part) for name, part in of.items()}
        shown = [f"{median:7.2f} s x {median / medians['torchrun']:5.3f}" for median in medians.values()]
        lost = " : ".join(str(max(one.steps_lost for one in part)) for part in of.values())
        lines.append(f"{event:8} " + " ".join(f"{text:>18}" for text in shown) + f"   {lost}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    found: list[Stall] = []
    cluster = Cluster(f"stall-{os.getpid()}", Options(nodes=3, cpus=4, grace_s=20))
    with tempfile.TemporaryDirectory(prefix="slurm-elastic-stall-") as folder:
        cluster.up()
        try:
            for repeat in range(options.repeats):
                places = {name: Path(folder) / f"{name}-{repeat}" for name in CONTENDERS}
                for place in places.values():
                    place.mkdir()
                for name in ("live", "relaunch"):
                    found += measure(SlurmElastic(cluster, places[name], name), repeat, say)
                found += measure(Torchrun(places["torchrun"]), repeat, say)
        finally:
            cluster.down()
    print(json.dumps([asdict(one) for one in found], indent=2) if options.json else _table(found))


if __name__ == "__main__":
    main()
