"""The figures of the supervisor's load: what is taken while it runs, what is made of it, and the table."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

HEAD = (
    "nodes x workers",
    "load before / after",
    "connected in (processor)",
    "nobody connected p50 / p99 ms",
    "connecting p99 / worst ms",
    "steady p50 / p99 / worst ms",
    "of it our own p99 / worst ms",
    "waited for the processor",
    "processor",
    "memory MiB",
    "queries per minute",
    "tried again / lost",
)


@dataclass(frozen=True, slots=True)
class Sample:
    """One call of the probe. `due` is monotonic; `queries`: asked of Slurm so far.

    `starved_s`: how long, since the call before, the supervisor was ready to run while others had the processor.
    """

    due: float
    lag_s: float
    queries: int
    starved_s: float


@dataclass(frozen=True, slots=True)
class Usage:
    """What the supervisor had used at `when` (monotonic)."""

    when: float
    cpu_s: float
    starved_s: float
    mib: float
    load: float


@dataclass(frozen=True, slots=True)
class Lag:
    """`own`: what is left when the time is taken away in which the machine ran others; a lower bound."""

    p50_ms: float
    p99_ms: float
    worst_ms: float
    own_p99_ms: float
    own_worst_ms: float


@dataclass(frozen=True, slots=True)
class Found:
    """One shape's figures. `cpu` and `starved`: shares of time; memory is the supervisor's resident set."""

    nodes: int
    workers: int
    load_before: float
    load_after: float
    connect_s: float
    connect_cpu_s: float
    empty: Lag
    connecting: Lag
    steady: Lag
    cpu: float
    starved: float
    empty_mib: float
    steady_mib: float
    queries_per_minute: float
    refused: int  # connections that had to be tried again
    lost: int


def found(
    marks: Sequence[Usage], samples: Sequence[Sample], *, nodes: int, workers: int, refused: int, lost: int
) -> Found:
    """`marks`: at the start, before the first connection, when all train, and around the steady state."""
    start, empty, connected, begin, end = marks

    def lag(since: Usage, until: Usage) -> Lag:
        return lag_of([sample for sample in samples if since.when <= sample.due < until.when])

    steady = [sample for sample in samples if begin.when <= sample.due < end.when]
    seconds = end.when - begin.when
    return Found(
        nodes=nodes,
        workers=workers,
        load_before=start.load,
        load_after=end.load,
        connect_s=connected.when - empty.when,
        connect_cpu_s=connected.cpu_s - empty.cpu_s,
        empty=lag(start, empty),
        connecting=lag(empty, connected),
        steady=lag(begin, end),
        cpu=(end.cpu_s - begin.cpu_s) / seconds,
        starved=(end.starved_s - begin.starved_s) / seconds,
        empty_mib=empty.mib,
        steady_mib=end.mib,
        queries_per_minute=(steady[-1].queries - steady[0].queries) / (seconds / 60) if steady else 0.0,
        refused=refused,
        lost=lost,
    )


def lag_of(samples: Sequence[Sample]) -> Lag:
    if not samples:
        return Lag(0.0, 0.0, 0.0, 0.0, 0.0)
    seen = sorted(sample.lag_s for sample in samples)
    own = sorted(max(0.0, sample.lag_s - sample.starved_s) for sample in samples)
    values = (_at(seen, 0.5), _at(seen, 0.99), seen[-1], _at(own, 0.99), own[-1])
    return Lag(*(round(1e3 * value, 3) for value in values))


def _at(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def usage(pid: int) -> Usage:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ticks = int(fields[11]) + int(fields[12])
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return Usage(
        when=time.monotonic(),
        cpu_s=ticks / os.sysconf("SC_CLK_TCK"),
        starved_s=starved_s(f"/proc/{pid}/schedstat"),
        mib=pages * resource.getpagesize() / (1 << 20),
        load=os.getloadavg()[0],
    )


def starved_s(schedstat: str = "/proc/thread-self/schedstat") -> float:
    """How long this thread (a process: its main one) was ready to run and did not; 0 if the kernel does not count."""
    try:
        return int(Path(schedstat).read_text().split()[1]) / 1e9
    except FileNotFoundError:
        return 0.0


def table(all_found: Sequence[Found]) -> str:
    rows = [HEAD, ("---",) * len(HEAD), *map(_row, all_found)]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _row(one: Found) -> tuple[str, ...]:
    empty, connecting, steady = one.empty, one.connecting, one.steady
    return (
        f"{one.nodes:,} x {one.workers // one.nodes:,}",
        f"{one.load_before:.1f} / {one.load_after:.1f}",
        f"{one.connect_s:.0f} s ({one.connect_cpu_s:.1f} s)",
        f"{empty.p50_ms:.2f} / {empty.p99_ms:.1f}",
        f"{connecting.p99_ms:.0f} / {connecting.worst_ms:.0f}",
        f"{steady.p50_ms:.2f} / {steady.p99_ms:.1f} / {steady.worst_ms:.0f}",
        f"{steady.own_p99_ms:.1f} / {steady.own_worst_ms:.0f}",
        f"{100 * one.starved:.0f} %",
        f"{100 * one.cpu:.0f} %",
        f"{one.empty_mib:.0f} -> {one.steady_mib:.0f}",
        f"{one.queries_per_minute:.1f}",
        f"{one.refused} / {one.lost}",
    )
