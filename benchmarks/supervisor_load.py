"""What 10,000 connected workers cost the supervisor: `python -m benchmarks.supervisor_load [--workers N] [--json]`.

A real supervisor on one processor, with a Slurm in memory that counts its queries. Workers are simulated by other
processes through the real wire: each beats once a second, rank 0 reports ten steps a second. A probe in the
supervisor's loop asks to be called every 10 ms; what it is called later is the lag. The same loop before anybody
has connected is the measure of the machine. Two shapes: few nodes with many workers, many nodes with few.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import multiprocessing as mp
import os
import queue
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

from benchmarks import simulated_workers
from benchmarks.limits import pin, raise_descriptors, split_cpus
from benchmarks.simulated_workers import Seat, Signs
from slurm_elastic.config_model import Base, Control, Elastic, Run, RunConfig
from slurm_elastic.rundir import RunDirectory
from slurm_elastic.slurm.api import Job
from slurm_elastic.slurm.run_jobs import comment_of
from slurm_elastic.supervisor.assembly import Surroundings, supervise
from slurm_elastic.supervisor.lease import Claimant
from slurm_elastic.testing.memory_slurm import MemorySlurm
from slurm_elastic.wire import messages as m
from slurm_elastic.wire.channel import Channel

BASE = 1
PROBE_S = 0.01
EMPTY_S = 5.0
CONNECT_S = 240.0  # at most
SETTLE_S = 3.0
CROWDS = 4  # processes that simulate
TARGET_LAG_MS = 20.0
TARGET_QUERIES = 4.0


@dataclass(frozen=True, slots=True)
class Sample:
    """One call of the probe. `due` is monotonic; `queries`: asked of Slurm so far."""

    due: float
    lag_s: float
    queries: int


@dataclass(frozen=True, slots=True)
class Lag:
    p50_ms: float
    p99_ms: float
    worst_ms: float


@dataclass(frozen=True, slots=True)
class Found:
    """One shape's figures. `cpu`: of one processor; memory is the supervisor's resident set."""

    nodes: int
    workers: int
    connect_s: float
    empty: Lag
    connecting: Lag
    steady: Lag
    cpu: float
    empty_mib: float
    steady_mib: float
    queries_per_minute: float
    refused: int  # connections that had to be tried again
    lost: int


@dataclass(frozen=True, slots=True)
class Usage:
    when: float
    cpu_s: float
    mib: float


# ---- the supervisor's process


def be_supervisor(run_dir: Path, config: RunConfig, nodes: tuple[str, ...], pipe: Connection, cpus: list[int]) -> None:
    """Supervise until something comes through `pipe`; then send the probe's samples back."""
    raise_descriptors()
    pin(cpus)
    run = RunDirectory(run_dir)
    logging.basicConfig(filename=run.logs / "supervisor.log", level=logging.INFO)
    slurm = MemorySlurm(clock=time.time)
    slurm.known_jobs[BASE] = Job(
        job_id=BASE, state="RUNNING", user=slurm.user, nodes=nodes, comment=comment_of(run, "base")
    )
    around = Surroundings(
        run=run,
        config=config,
        slurm=slurm,
        claimant=Claimant(node="n0", pid=os.getpid(), job_id=BASE, restart_count=0),
        host="127.0.0.1",
    )
    pipe.send(asyncio.run(_probed(around, slurm, pipe)))


async def _probed(around: Surroundings, slurm: MemorySlurm, pipe: Connection) -> list[Sample]:
    loop = asyncio.get_running_loop()
    samples: list[Sample] = []
    work = loop.create_task(supervise(around))
    loop.add_reader(pipe.fileno(), work.cancel)

    def probe(due: float) -> None:
        now = loop.time()
        samples.append(Sample(due, now - due, slurm.queries))
        loop.call_at(now + PROBE_S, probe, now + PROBE_S)

    probe(loop.time())
    with contextlib.suppress(asyncio.CancelledError):
        await work
    loop.remove_reader(pipe.fileno())
    return samples


# ---- around it


@dataclass(slots=True)
class Shape:
    """One measurement: so many nodes with so many workers each."""

    nodes: int
    per_node: int
    run: RunDirectory
    seconds: float

    @property
    def workers(self) -> int:
        return self.nodes * self.per_node

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"n{index}" for index in range(self.nodes))

    def measure(self) -> Found:
        self.run.create()
        ours, theirs = mp.Pipe()
        measured, others = split_cpus()
        config = _config(self.run, self.nodes, self.per_node)
        argv = (self.run.path, config, self.names, theirs, measured)
        with _running([mp.Process(target=be_supervisor, args=argv)]) as (supervisor,):
            _wait(self.run.endpoint.exists, 20, lambda: "the supervisor listens")
            assert supervisor.pid is not None
            marks = [_usage(supervisor.pid)]
            time.sleep(EMPTY_S)
            marks.append(_usage(supervisor.pid))
            signs = Signs(mp.Event(), *(mp.Value("i", 0) for _ in range(4)))
            with _agent(self.run, self.names), _running(self._crowds(signs, others)):
                _wait(lambda: signs.training.value == self.workers, CONNECT_S, lambda: f"all workers train; {signs}")
                marks.append(_usage(supervisor.pid))
                time.sleep(SETTLE_S)
                marks.append(_usage(supervisor.pid))
                time.sleep(self.seconds)
                marks.append(_usage(supervisor.pid))
                refused, lost = signs.refused.value, signs.lost.value
                ours.send("stop")
                samples: list[Sample] = ours.recv()
                signs.stop.set()
        return self._found(marks, samples, refused, lost)

    def _crowds(self, signs: Signs, cpus: list[int]) -> list[BaseProcess]:
        seats = [
            Seat(name, rank, index * self.per_node + rank)
            for index, name in enumerate(self.names)
            for rank in range(self.per_node)
        ]
        parts = [seats[index::CROWDS] for index in range(CROWDS)]
        return [
            mp.Process(target=simulated_workers.live, args=(self.run.path, part, signs, cpus)) for part in parts if part
        ]

    def _found(self, marks: Sequence[Usage], samples: Sequence[Sample], refused: int, lost: int) -> Found:
        start, empty, connected, begin, end = marks

        def lag(since: Usage, until: Usage) -> Lag:
            return _lag([sample.lag_s for sample in samples if since.when <= sample.due < until.when])

        steady = [sample for sample in samples if begin.when <= sample.due < end.when]
        minutes = (end.when - begin.when) / 60
        return Found(
            nodes=self.nodes,
            workers=self.workers,
            connect_s=connected.when - empty.when,
            empty=lag(start, empty),
            connecting=lag(empty, connected),
            steady=lag(begin, end),
            cpu=(end.cpu_s - begin.cpu_s) / (end.when - begin.when),
            empty_mib=empty.mib,
            steady_mib=end.mib,
            queries_per_minute=(steady[-1].queries - steady[0].queries) / minutes,
            refused=refused,
            lost=lost,
        )


@contextlib.contextmanager
def _running(processes: list[BaseProcess]) -> Iterator[list[BaseProcess]]:
    """They are started, and none is left afterwards."""
    try:
        for process in processes:
            process.start()
        yield processes
        for process in processes:
            process.join(30)
    finally:
        for process in processes:
            process.kill()
            process.join()


@contextlib.contextmanager
def _agent(run: RunDirectory, nodes: tuple[str, ...]) -> Iterator[None]:
    """The base job's agent: connected, and told to launch."""

    def hello(address: str) -> m.AgentHello:
        return m.AgentHello(job_id=BASE, role="base", nodes=nodes, incarnation="one", qos="base")

    channel = Channel(run, hello, heartbeat_s=1.0, give_up_after_s=30.0)
    channel.start()
    try:
        while not isinstance(channel.inbox.get(timeout=60), m.Launch):
            pass
        yield
    except queue.Empty:
        raise SystemExit("the supervisor did not launch workers within 60 s") from None
    finally:
        channel.close()


def _config(run: RunDirectory, nodes: int, per_node: int) -> RunConfig:
    return RunConfig(
        run=Run(name="load", dir=str(run.path), command=("train",)),
        base=Base(nodes=nodes, workers_per_node=per_node),
        elastic=Elastic(min_nodes=nodes, max_nodes=nodes),
        control=Control(launch_timeout=240.0),
    )


def _usage(pid: int) -> Usage:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ticks = int(fields[11]) + int(fields[12])
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return Usage(time.monotonic(), ticks / os.sysconf("SC_CLK_TCK"), pages * resource.getpagesize() / (1 << 20))


def _lag(seconds: Sequence[float]) -> Lag:
    ordered = sorted(seconds)
    if not ordered:
        return Lag(0.0, 0.0, 0.0)
    at = [ordered[min(len(ordered) - 1, int(share * len(ordered)))] for share in (0.5, 0.99, 1.0)]
    return Lag(*(round(1e3 * value, 3) for value in at))


def _wait(holds: Callable[[], bool], timeout_s: float, what: Callable[[], str]) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > deadline:
            raise SystemExit(f"not within {timeout_s:.0f} s: {what()}. Is the machine busy?")
        time.sleep(0.05)


def _say(found: Found) -> None:
    print(f"{found.workers} workers on {found.nodes} nodes, connected in {found.connect_s:.1f} s")
    print(f"  connections tried again {found.refused}, lost {found.lost}")
    for name, lag in (("nobody connected", found.empty), ("connecting", found.connecting), ("steady", found.steady)):
        print(f"  lag {name:17} p50 {lag.p50_ms:6.2f}  p99 {lag.p99_ms:6.2f}  worst {lag.worst_ms:7.2f} ms")
    print(f"  processor {100 * found.cpu:.0f} %, memory {found.empty_mib:.0f} -> {found.steady_mib:.0f} MiB")
    print(f"  queries to Slurm {found.queries_per_minute:.1f} per minute")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--workers", type=int, default=10_000)
    parser.add_argument("--nodes", type=int, nargs="+", default=[10, 1000], help="one measurement for each")
    parser.add_argument("--seconds", type=float, default=60.0, help="steady state that is measured")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    allowed = raise_descriptors()
    if options.workers + 100 > allowed:
        sys.exit(f"{options.workers} workers need more open files than the {allowed} allowed here: ulimit -Hn")
    mp.set_start_method("spawn")
    found = []
    for nodes in options.nodes:
        with tempfile.TemporaryDirectory(prefix="slurm-elastic-load-") as folder:
            run = RunDirectory(Path(folder) / "run")
            found.append(Shape(nodes, max(1, options.workers // nodes), run, options.seconds).measure())
        if not options.json:
            _say(found[-1])
    if options.json:
        print(json.dumps({"load": os.getloadavg()[0], "shapes": [asdict(one) for one in found]}, indent=2))
    elif max(one.steady.p99_ms for one in found) > TARGET_LAG_MS:
        print(f"over the target of {TARGET_LAG_MS:.0f} ms")
    elif max(one.queries_per_minute for one in found) > TARGET_QUERIES:
        print(f"over the target of {TARGET_QUERIES:.0f} queries per minute")


if __name__ == "__main__":
    main()
