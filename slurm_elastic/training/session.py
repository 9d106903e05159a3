"""One worker's part in a run: `init` → `data` → `restore` (or `build`) → `steps`; the same calls on all ranks."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, Unpack

import torch

from slurm_elastic.errors import UserMistake
from slurm_elastic.machine.batch import BatchPlan
from slurm_elastic.training.batches import Batch
from slurm_elastic.training.control import Alone, Supervised
from slurm_elastic.training.data import Line
from slurm_elastic.training.live import Build, Current, Live, Terms, begin
from slurm_elastic.training.loader import Data
from slurm_elastic.training.opening import Parts, connect, open_parts
from slurm_elastic.training.orders import agree_on_stop
from slurm_elastic.training.schedule import Schedule
from slurm_elastic.training.settings import Overrides
from slurm_elastic.training.standing import Standing
from slurm_elastic.training.stepping import Stepping
from slurm_elastic.training.world import average_gradients

log = logging.getLogger(__name__)

FLUSH_S = 10.0  # for the last reports to reach the supervisor
LAST_LOSS_S = 5.0  # for the other ranks' part of the last step's loss, when a script leaves its loop by itself

_current: ContextVar[Session | None] = ContextVar("slurm_elastic_session", default=None)


def init(seed: int = 0, *, communicator: Any = None, **overrides: Unpack[Overrides]) -> Session:
    """Join the run: process group, device, connection. Collective; once per process, before CUDA or DDP are used.

    Works under slurm-elastic, under torchrun, and in a plain `python train.py`. `communicator`: MPI.COMM_WORLD of
    mpi4py where MPI launched the workers. Raises UserMistake for wrong settings.
    """
    session = Session(seed, communicator, open_parts(os.environ, communicator, overrides))
    _current.set(session)
    atexit.register(session.close)
    return session


def elastic_event_detected() -> bool:
    """For scripts with a loop and checkpoints of their own: whether to save now and exit with code 0.

    To be called by all ranks once per step, at its end. All ranks get True at the same call. Calls `init` if needed.
    """
    session = _current.get() or init()
    return session.elastic_event_detected()


class Session:
    """What `init` returns."""

    def __init__(self, seed: int, communicator: Any, parts: Parts) -> None:
        self._communicator = communicator
        self._at = Standing(seed, parts)
        self._loop = Stepping(self._at)
        self._stopping = False  # a loop of the script's own was told to stop
        self._closed = False
        self._pid = os.getpid()

    # ---- who we are

    @property
    def seed(self) -> int:
        return self._at.seed

    @property
    def step(self) -> int:
        """Optimizer steps done."""
        return self._at.step

    @property
    def cursor(self) -> int:
        """Samples that were used for them."""
        return self._at.cursor

    @property
    def is_finished(self) -> bool:
        """The run is complete: time to export the model."""
        return self._loop.is_finished

    @property
    def global_rank(self) -> int:
        return self._at.world.global_rank

    @property
    def world_size(self) -> int:
        return self._at.world.size

    @property
    def local_rank(self) -> int:
        return self._at.world.local_rank

    @property
    def device(self) -> torch.device:
        return self._at.world.device

    @property
    def generation(self) -> int:
        return self._at.parts.generation

    @property
    def plan(self) -> BatchPlan:
        """How a full global batch is divided at this world size."""
        return self._at.plan

    # ---- before the loop

    def data(
        self,
        source: Any,
        *,
        epochs: int | None = None,
        steps: int | None = None,
        shuffle: bool = True,
        **loader_options: Any,
    ) -> Data:
        """The data of the whole run, for `steps`. `source`: a map-style data set, or its length.

        `loader_options` go to torch's DataLoader (num_workers, collate_fn, pin_memory, ...), which feeds `micro.data`.
        """
        length = source if isinstance(source, int) else len(source)
        return Data(source, Line(length, self.seed, shuffle, epochs=epochs, steps=steps), loader_options)

    def restore(self, **objects: object) -> int:
        """Name what belongs to the state, and load the checkpoint that this generation starts from, if any.

        Modules after DDP or `fully_shard`. Returns the steps already done. Raises CheckpointError naming each tensor
        that is missing in the checkpoint, or would be left behind in it.
        """
        if self._at.parts.resume is None:
            self._at.name_state(objects)
        else:
            self._at.load(objects, self._at.parts.resume)
        return self.step

    def build(self, build: Build) -> Current:
        """Level 2: `build(world)` makes the training for a world, on the meta device, and is called for every one.

        Loads the checkpoint that this generation starts from, if any. From then on a change of the workers keeps this
        process and its state; put each step in `with batch:` so that the loss of a peer in it ends nothing. Returns
        once this worker has its seat. Raises UserMistake for a `build` that does not fit.
        """
        at, parts, control = self._at, self._at.parts, self._at.parts.control
        if not isinstance(control, Supervised):  # alone: one generation is all there will be
            built = begin(build, parts.world, self.seed)
            self.restore(**built.objects())
            at.take(built)
            return Current(lambda: built)
        at.live = live = Live(build, control, parts.sockets, Terms(self.seed, self.device, parts.settings.backend))
        if parts.saver is None:
            connect(control, os.environ)
            self._loop.change(live, None)
        else:
            live.start(parts.world)
            self.restore(**live.parts.objects())
            live.torn = False
            at.take(live.parts)
            at.take_parts(parts, live)
        return Current(lambda: live.parts)

    def schedule(self, optimizer: torch.optim.Optimizer, factor: Callable[[int], float]) -> Schedule:
        """Let lr = base lr x factor(steps done), set before each step of `steps`; also applies policy scale_batch's."""
        schedule = Schedule(optimizer, factor)
        self._at.schedules.append(schedule)
        return schedule

    # ---- the loop

    def steps(self, data: Data) -> Iterator[Batch]:
        """One batch per optimizer step, until the run is complete or all ranks agreed to stop; saves before it ends.

        After the loop `is_finished` tells which: a script that was drained should just exit with code 0.
        """
        return self._loop.steps(data)

    def elastic_event_detected(self) -> bool:
        """See the function of this name. Inside `steps` it says whether the loop will end after this step."""
        if os.getpid() != self._pid:
            return False
        if self._loop.has_begun:
            return self._loop.verdict.drain
        at, control = self._at, self._at.parts.control
        at.step += 1
        control.note_step(at.step)
        verdict = at.pulse.beat(None, drain=control.order is not None, save=False)
        if not at.parts.settings.overlap:
            verdict |= at.pulse.finish()
        if verdict.drain and not self._stopping:
            at.pulse.finish()
            stop = agree_on_stop(at.world.agreement, control.order, 0.0, time.time())
            log.info("stopping: %s", stop.reason)
            atexit.register(at.leave, stop.why)
        self._stopping |= verdict.drain
        return self._stopping

    def average_gradients(self, module: torch.nn.Module) -> None:
        """For plain modules at more than one worker: what DDP does by itself. Once per step, before the optimizer's."""
        average_gradients(module, self._at.world, self._communicator)

    def request_stop(self, reason: str = "the script asked") -> None:
        """Standalone: stop at the next agreed boundary; one rank is enough. SIGTERM and SIGUSR1 do the same."""
        control = self._at.parts.control
        if not isinstance(control, Alone):
            raise UserMistake("request_stop is for standalone runs", fix="use `slurm-elastic stop RUN`")
        control.stop(reason)

    def save(self, step: int | None = None, *, wait_s: float = 0.0) -> bool:
        """Save what `restore` named, for scripts with a loop of their own (`step`: theirs). Collective.

        Raises UserMistake inside `steps` when the state is already that of a step that was not committed.
        """
        at, batch = self._at, self._loop.batch
        if batch is not None and batch.loss is not None and not batch.is_committed:
            raise UserMistake(
                f"step {batch.step} is computed and not committed: after a restart it would be done again",
                fix="call batch.commit() after optimizer.step() and before run.save() or break",
            )
        at.step = at.step if step is None else step
        at.pulse.finish()  # a flag that is heard here is raised again at the next boundary
        at.flush_ledger()
        return at.save(wait_s)

    def close(self) -> None:
        """Send what is left and end the connection. Called at exit; safe to repeat; nothing in a forked child.

        After a crash nothing is waited for: the other ranks may hang until this one is gone.
        """
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        at, parts = self._at, self._at.parts
        crashed = not at.has_left and hasattr(sys, "last_value")  # an exception that nobody handled
        if not crashed:
            if parts.saver is not None:
                parts.saver.settle()
            at.pulse.abandon(LAST_LOSS_S)
        if parts.ledger is not None:
            parts.ledger.close()
        if not crashed:
            parts.control.flush(FLUSH_S)
        parts.control.close()
