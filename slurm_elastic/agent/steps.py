"""The srun steps of one agent: start, watch, kill. Each step is watched by a thread of its own."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO

from slurm_elastic.agent.failure import Ending, ending_of, srun_log, task_failed
from slurm_elastic.rundir import RunDirectory

log = logging.getLogger(__name__)

# srun ends a step by SIGKILL when it gets SIGTERM; a second one makes it stop waiting for tasks that do not answer.
_KILL_ROUNDS_S = (2.0, 3.0, 5.0)
_AGAIN_S = 30.0
_KEPT_BYTES = 65_536  # of what srun says


@dataclass(frozen=True, slots=True)
class StepSpec:
    """Workers of one generation on one node (or, for an MPI world, on all of them at once)."""

    generation: int
    nodes: tuple[str, ...]
    argv: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StepOver:
    """srun has ended."""

    spec: StepSpec
    ending: Ending


@dataclass(frozen=True, slots=True)
class StepPlace:
    """Where steps run: the run directory (for logs), the folder the workers start in, their environment."""

    run_dir: RunDirectory
    workdir: str
    environ: Mapping[str, str] = field(repr=False)


class Steps:
    """Running steps by (generation, node). `over` is called from a thread, once for every step that was started."""

    def __init__(
        self, place: StepPlace, over: Callable[[StepOver], None], sweep: Callable[[int, tuple[str, ...]], None]
    ) -> None:
        """`sweep(generation, nodes)` ends, through Slurm, what is left of a step whose srun was killed."""
        self._place = place
        self._over = over
        self._sweep = sweep
        self._running: dict[tuple[int, str], _Step] = {}
        self._lock = threading.Lock()

    def held(self) -> tuple[tuple[int, str], ...]:
        with self._lock:
            return tuple(sorted(self._running))

    def start(self, spec: StepSpec) -> None:
        """Start a step in the background; it is reported by `over` if even srun cannot be started."""
        step = _Step(spec, self._place)
        with self._lock:
            for node in spec.nodes:
                self._running[spec.generation, node] = step
        threading.Thread(target=self._watch, args=(step,), name=f"step {spec.generation}", daemon=True).start()

    def kill(self, generation: int, nodes: Sequence[str] = (), *, alone: bool = False) -> None:
        """End the steps of `generation` and, unless `alone`, of older ones on `nodes` (none named: all).

        Returns at once; it takes 10 s at most.
        """
        with self._lock:
            doomed = {
                id(step): step
                for (number, node), step in self._running.items()
                if (number == generation or (number < generation and not alone)) and (not nodes or node in nodes)
            }
        for step in doomed.values():
            step.doom()

    def _watch(self, step: _Step) -> None:
        ending, abrupt = step.run()
        if abrupt:
            self._sweep(step.spec.generation, step.spec.nodes)
        with self._lock:
            for node in step.spec.nodes:
                if self._running.get((step.spec.generation, node)) is step:
                    del self._running[step.spec.generation, node]
        self._over(StepOver(step.spec, ending))


class _Step:
    """One srun."""

    def __init__(self, spec: StepSpec, place: StepPlace) -> None:
        self.spec = spec
        self._place = place
        self._process: subprocess.Popen[bytes] | None = None
        self._started = threading.Event()
        self._doomed = False
        self._lock = threading.Lock()

    def run(self) -> tuple[Ending, bool]:
        """Until srun has ended: how, and whether it ended so abruptly that tasks may be left."""
        spec, run_dir = self.spec, self._place.run_dir
        path = srun_log(run_dir, spec.generation, spec.nodes[0] if len(spec.nodes) == 1 else "mpi")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("ab", buffering=0) as log_file:
                try:
                    process = self._start()
                finally:
                    self._started.set()
                said = self._listen(process, log_file)
        except OSError as broken:
            return Ending(127, 0, f"cannot start {spec.argv[0]}: {broken}"), False
        return ending_of(run_dir, spec.generation, said, process.wait()), process.returncode < 0

    def _start(self) -> subprocess.Popen[bytes]:
        self._process = subprocess.Popen(
            self.spec.argv,
            env=dict(self._place.environ),
            cwd=self._place.workdir or None,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # `scancel --full` signals our process group: srun would end the step
        )
        return self._process

    def _listen(self, process: subprocess.Popen[bytes], log_file: IO[bytes]) -> str:
        """Copy what srun says into its log, and end the step as soon as one task has failed.

        srun's own --kill-on-bad-exit sends SIGTERM, which workers take for a notice, and SIGKILL only after KillWait.
        """
        said = b""
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                log_file.write(line)
                said = (said + line)[:_KEPT_BYTES] if len(said) < _KEPT_BYTES else said
                if task_failed(line):
                    self.doom()
        return said.decode("utf-8", "replace")

    def doom(self) -> None:
        """End it, in the background. Safe to repeat."""
        with self._lock:
            first, self._doomed = not self._doomed, True
        if first:
            threading.Thread(target=self._kill, name="kill", daemon=True).start()

    def _kill(self) -> None:
        self._started.wait()
        process = self._process
        if process is None:
            return
        for wait_s in _KILL_ROUNDS_S:
            process.terminate()
            try:
                process.wait(wait_s)
                return
            except subprocess.TimeoutExpired:
                log.warning("srun of generation %d on %s still runs", self.spec.generation, ",".join(self.spec.nodes))
        os.killpg(process.pid, signal.SIGKILL)  # srun has a child of its own


class SideStep:
    """A step that runs for as long as we do: started again when it fails, left alone when it has nothing more to do."""

    def __init__(self, spec: StepSpec, place: StepPlace) -> None:
        self._spec = spec
        self._place = place
        self._ending = threading.Event()
        self._step = _Step(spec, place)
        threading.Thread(target=self._keep, name="deputy", daemon=True).start()

    def end(self) -> None:
        self._ending.set()
        self._step.doom()

    def _keep(self) -> None:
        while not self._ending.is_set():
            ending, _ = self._step.run()
            if not ending.exit_code and not ending.signal:
                return
            log.warning("the step on %s ended: %s", self._spec.nodes[0], ending)
            if self._ending.wait(_AGAIN_S):
                return
            self._step = _Step(self._spec, self._place)
