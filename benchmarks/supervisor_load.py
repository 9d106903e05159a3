"""What 10,000 connected workers cost the supervisor: `python -m benchmarks.supervisor_load [--workers N] [--json]`.

A real supervisor on one processor, with a Slurm in memory that counts its queries. Workers are simulated by other
processes through the real wire: each beats once a second, rank 0 reports ten steps a second. A probe in the
supervisor's loop asks to be called every 10 ms; what it is called later is the lag. The same loop before anybody
has connected is the measure of the machine; what the kernel counts as waiting for the processor is told apart.
Two shapes: few nodes with many workers, many nodes with few.
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
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

from benchmarks import simulated_workers
from benchmarks.limits import pin, raise_descriptors, split_cpus, stand_alone
from benchmarks.load_figures import Found, Sample, found, starved_s, table, usage
from benchmarks.simulated_workers import Seat, Signs
from slurm_elastic.config_model import Base, Control, Elastic, Run, RunConfig
from slurm_elastic.machine.events import StepHeld
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


# ---- the supervisor's process


def be_supervisor(run_dir: Path, config: RunConfig, nodes: tuple[str, ...], pipe: Connection, cpus: list[int]) -> None:
    """Supervise until something comes through `pipe`; then send the probe's samples back."""
    stand_alone()
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

    def probe(due: float, starved_before: float) -> None:
        now, starved = loop.time(), starved_s()
        samples.append(Sample(due, now - due, slurm.queries, starved - starved_before))
        loop.call_at(now + PROBE_S, probe, now + PROBE_S, starved)

    probe(loop.time(), starved_s())
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
            marks = [usage(supervisor.pid)]
            time.sleep(EMPTY_S)
            marks.append(usage(supervisor.pid))
            signs = Signs(mp.Event(), *(mp.Value("i", 0) for _ in range(5)))
            with _agent(self.run, self.names), _running(self._crowds(signs, others)):
                _wait(lambda: self._all_train(signs), CONNECT_S, lambda: f"all workers train; {signs}")
                marks.append(usage(supervisor.pid))
                time.sleep(SETTLE_S)
                marks.append(usage(supervisor.pid))
                time.sleep(self.seconds)
                marks.append(usage(supervisor.pid))
                refused, lost = signs.refused.value, signs.lost.value
                ours.send("stop")
                samples: list[Sample] = ours.recv()
                signs.stop.set()
        return found(marks, samples, nodes=self.nodes, workers=self.workers, refused=refused, lost=lost)

    def _all_train(self, signs: Signs) -> bool:
        if signs.fenced.value:
            raise SystemExit(f"the supervisor gave workers up, they were silent for too long: {signs}. {_load()}")
        return signs.training.value == self.workers

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
    steps: list[StepHeld] = []  # told with every connection: a node without one has lost its workers

    def hello(address: str) -> m.AgentHello:
        return m.AgentHello(job_id=BASE, role="base", nodes=nodes, incarnation="one", qos="base", steps=tuple(steps))

    channel = Channel(run, hello, heartbeat_s=1.0, give_up_after_s=30.0)
    channel.start()
    try:
        while not steps:
            arrival = channel.inbox.get(timeout=60)
            if isinstance(arrival, m.Launch):
                steps += [StepHeld(generation=arrival.generation, node=node) for node in arrival.nodes]
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
        control=Control(launch_timeout=CONNECT_S),
    )


def _wait(holds: Callable[[], bool], timeout_s: float, what: Callable[[], str]) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > deadline:
            raise SystemExit(f"not within {timeout_s:.0f} s: {what()}. {_load()}")
        time.sleep(0.05)


def _load() -> str:
    return f"The load average is {os.getloadavg()[0]:.1f}: is the machine busy?"


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
    shapes: list[Found] = []
    for nodes in options.nodes:
        with tempfile.TemporaryDirectory(prefix="slurm-elastic-load-") as folder:
            run = RunDirectory(Path(folder) / "run")
            shapes.append(Shape(nodes, max(1, options.workers // nodes), run, options.seconds).measure())
    if options.json:
        print(json.dumps([asdict(one) for one in shapes], indent=2))
        return
    print(table(shapes))
    if max(one.steady.p99_ms for one in shapes) > TARGET_LAG_MS:
        print(f"steady p99 is over the target of {TARGET_LAG_MS:.0f} ms")
    if max(one.queries_per_minute for one in shapes) > TARGET_QUERIES:
        print(f"over the target of {TARGET_QUERIES:.0f} queries per minute")


if __name__ == "__main__":
    main()
