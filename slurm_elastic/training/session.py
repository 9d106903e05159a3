"""One worker's part in a run: `init` → `data` → `restore` → `steps`; all ranks make the same calls in this order."""

from __future__ import annotations

import atexit
import hashlib
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, Unpack

import torch

from slurm_elastic.checkpoint.manifest import About
from slurm_elastic.errors import CheckpointError, UserMistake
from slurm_elastic.machine.batch import BatchPlan, batch_plan
from slurm_elastic.training.batches import Batch
from slurm_elastic.training.control import Alone
from slurm_elastic.training.data import Line
from slurm_elastic.training.loader import Data, plan_for
from slurm_elastic.training.objects import Objects
from slurm_elastic.training.opening import Parts, open_parts
from slurm_elastic.training.orders import Stop, agree_on_stop
from slurm_elastic.training.pulse import Done, LossCopy, Pulse, Verdict
from slurm_elastic.training.schedule import Schedule, rate_of
from slurm_elastic.training.settings import Overrides
from slurm_elastic.training.world import average_gradients
from slurm_elastic.wire.messages import Leaving, Stayed, Warned

log = logging.getLogger(__name__)

FLUSH_S = 10.0  # for the last reports to reach the supervisor
LAST_LOSS_S = 5.0  # for the other ranks' part of the last step's loss, when a script leaves its loop by itself
SAVE_AGAIN_S = 1.0  # after a save before a forced stop has failed
LAST_SAVE_S = 1200.0  # at most, for the last checkpoint to become public; gloo waits for 1800 s

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
    """What `init` returns. `step`: optimizer steps done; `cursor`: samples they used."""

    def __init__(self, seed: int, communicator: Any, parts: Parts) -> None:
        self.seed = seed
        self.step = 0
        self.cursor = 0
        self.is_finished = False  # the run is complete: time to export the model
        self._communicator = communicator
        self._parts = parts
        self._pulse = Pulse(parts.world.agreement, parts.world.size, parts.ledger)
        self._objects: Objects | None = None
        self._optimizer: torch.optim.Optimizer | None = None
        self._schedules: list[Schedule] = []
        self._modules: tuple[torch.nn.Module, ...] = ()
        self._signature: dict[str, Any] = {}
        self._verdict = Verdict()
        self._batch: Batch | None = None  # the one that the body of the loop works on
        self._lr: float | None = None
        self._in_steps = False
        self._left = False
        self._closed = False
        self._pid = os.getpid()

    # ---- who we are

    @property
    def global_rank(self) -> int:
        return self._parts.world.global_rank

    @property
    def world_size(self) -> int:
        return self._parts.world.size

    @property
    def local_rank(self) -> int:
        return self._parts.world.local_rank

    @property
    def device(self) -> torch.device:
        return self._parts.world.device

    @property
    def generation(self) -> int:
        return self._parts.generation

    @property
    def plan(self) -> BatchPlan:
        """How a full global batch is divided at this world size."""
        settings = self._parts.settings
        if not settings.batch.global_batch_size:
            raise UserMistake(
                "the global batch size is not set",
                fix="set batch.global_batch_size in run.yaml, or call elastic.init(global_batch_size=...)",
            )
        return batch_plan(self.world_size, settings.batch, reference_workers=settings.reference_workers)

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
        self._objects = Objects(objects)
        self._modules = tuple(self._objects.models.values())
        self._optimizer = next(iter(self._objects.optimizers.values()), None)
        if self._parts.resume is None:
            return 0
        state = self._objects.state()
        about = self._parts.saver.load(state, self._parts.resume)
        self._objects.load(state)
        self.step = about.step
        self.cursor = int(about.cursor.get("samples", 0))
        self._signature = about.cursor.get("data", {})
        self._parts.control.note_step(self.step)
        return self.step

    def schedule(self, optimizer: torch.optim.Optimizer, factor: Callable[[int], float]) -> Schedule:
        """Let lr = base lr x factor(steps done), set before each step of `steps`; also applies policy scale_batch's."""
        schedule = Schedule(optimizer, factor)
        self._schedules.append(schedule)
        return schedule

    # ---- the loop

    def steps(self, data: Data) -> Iterator[Batch]:
        """One batch per optimizer step, until the run is complete or all ranks agreed to stop; saves before it ends.

        After the loop `is_finished` tells which: a script that was drained should just exit with code 0.
        """
        plan = self.plan
        self._in_steps = True
        self._check_start(data.line)
        data.start(self.step, self.cursor, plan, self.global_rank)
        while not data.line.is_over(self.step, self.cursor):
            indices = data.reader.batch(self.cursor, plan.global_batch)
            batch_plan_now = plan_for(indices, plan)
            for schedule in self._schedules:
                schedule.apply(self.step, plan.lr_factor)
            self._lr = rate_of(self._optimizer)
            batch = Batch(
                self.step + 1,
                indices,
                batch_plan_now,
                self.global_rank,
                seed=self.seed if self._parts.settings.reseed else None,
                modules=self._modules,
                fetch=data.fetch,
                on_commit=self._committed,
            )
            self._batch = batch
            yield batch
            batch.commit()
            self._parts.progress.passes = self.cursor / data.line.length
            self._parts.progress.total_steps = data.line.total_steps(self.step, self.cursor, plan.global_batch)
            if self._boundary():
                return
        self._finish()

    def elastic_event_detected(self) -> bool:
        """See the function of this name. Inside `steps` it says whether the loop will end after this step."""
        if os.getpid() != self._pid:
            return False
        if self._in_steps:
            return self._verdict.drain
        self.step += 1
        self._parts.control.note_step(self.step)
        verdict = self._pulse.beat(None, drain=self._parts.control.order is not None, save=False)
        if not self._parts.settings.overlap:
            verdict |= self._pulse.finish()
        if verdict.drain and not self._verdict.drain:
            self._pulse.finish()
            stop = agree_on_stop(self._parts.world.agreement, self._parts.control.order, 0.0, time.time())
            log.info("stopping: %s", stop.reason)
            atexit.register(self._leave, stop.why)
        self._verdict |= verdict
        return self._verdict.drain

    def average_gradients(self, module: torch.nn.Module) -> None:
        """For plain modules at more than one worker: what DDP does by itself. Once per step, before the optimizer's."""
        average_gradients(module, self._parts.world, self._communicator)

    def request_stop(self, reason: str = "the script asked") -> None:
        """Standalone: stop at the next agreed boundary; one rank is enough. SIGTERM and SIGUSR1 do the same."""
        if not isinstance(self._parts.control, Alone):
            raise UserMistake("request_stop is for standalone runs", fix="use `slurm-elastic stop RUN`")
        self._parts.control.stop(reason)

    def save(self, step: int | None = None, *, wait_s: float = 0.0) -> bool:
        """Save what `restore` named, for scripts with a loop of their own (`step`: theirs). Collective.

        Raises UserMistake inside `steps` when the state is already that of a step that was not committed.
        """
        batch = self._batch
        if batch is not None and batch.loss is not None and not batch.is_committed:
            raise UserMistake(
                f"step {batch.step} is computed and not committed: after a restart it would be done again",
                fix="call batch.commit() after optimizer.step() and before run.save() or break",
            )
        self.step = self.step if step is None else step
        self._pulse.finish()  # a flag that is heard here is raised again at the next boundary
        self._flush_ledger()
        return self._save(wait_s)

    def close(self) -> None:
        """Send what is left and end the connection. Called at exit; safe to repeat; nothing in a forked child.

        After a crash nothing is waited for: the other ranks may hang until this one is gone.
        """
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        crashed = not self._left and hasattr(sys, "last_value")  # an exception that nobody handled
        if not crashed:
            self._parts.saver.settle()
            self._pulse.abandon(LAST_LOSS_S)
        if self._parts.ledger is not None:
            self._parts.ledger.close()
        if not crashed:
            self._parts.control.flush(FLUSH_S)
        self._parts.control.close()

    # ---- inside

    def _check_start(self, line: Line) -> None:
        if self._parts.resume is not None and self._objects is None:
            raise UserMistake(
                f"there is a checkpoint to go on from, {self._parts.resume.name}, but nothing to load it into",
                fix="call run.restore(model=..., optimizer=...) before run.steps(...)",
            )
        if self._objects is None:
            self._parts.control.send(Warned(text="run.restore was not called: no checkpoints are written"))
        signature = line.signature()
        if self._signature and self._signature != signature:
            raise CheckpointError(
                f"the data has changed: {signature} now, {self._signature} in the checkpoint",
                fix="samples would be lost or repeated; use the same data set, seed and shuffle, or a new run",
            )
        self._signature = signature

    def _committed(self, batch: Batch) -> None:
        """The critical path of every step: two small steps of bookkeeping, one wait that is over, one launch."""
        parts = self._parts
        self.step = batch.step
        self.cursor += batch.size
        parts.control.note_step(self.step)
        loss = None if batch.loss is None else LossCopy(batch.loss)
        done = Done(self.step, batch.all_indices, loss, self._lr, time.time())
        self._verdict = self._pulse.beat(done, drain=parts.control.order is not None, save=parts.saver.wants)
        if not parts.settings.overlap:
            self._verdict |= self._pulse.finish()

    def _boundary(self) -> bool:
        """Act on what was agreed; True: stop here. The body of the loop is over: all state is that of `step`."""
        verdict = self._verdict
        if not (verdict.drain or verdict.save or self._parts.saver.due(self.step)):
            return False
        verdict |= self._pulse.finish()
        self._flush_ledger()
        if verdict.drain:
            return self._drain()
        self._save(0.0)
        return False

    def _drain(self) -> bool:
        """True: all ranks leave. False: the state cannot be saved, nobody takes the nodes, so they train on."""
        parts, order = self._parts, self._parts.control.order
        stop = agree_on_stop(parts.world.agreement, order, parts.saver.need_s(), time.time())
        log.info("stopping after step %d: %s", self.step, stop.reason)
        if not stop.save or (stop.fits and self._save_to_leave(stop)):
            self._leave(stop.why)
            return True
        late = f"it needs {stop.need_s:.1f} s, {stop.left_s:.1f} s are left"
        problem = parts.saver.problem if stop.fits else late
        if stop.may_stay:
            log.warning("training on after step %d: %s", self.step, problem)
            parts.control.forget(order)
            self._verdict = Verdict()
            if self.global_rank == 0:
                parts.control.send(Stayed(generation=self.generation, reason=f"no save at step {self.step}: {problem}"))
            return False
        if self.global_rank == 0:
            lost = f"work since step {parts.saver.saved_step} is lost"
            parts.control.send(Warned(text=f"no save at step {self.step}: {problem}; {lost}"))
        self._leave(stop.why)
        return True

    def _save_to_leave(self, stop: Stop) -> bool:
        """Until the state is public, as often as the time allows where staying is no choice. All ranks alike."""
        parts = self._parts
        end = time.monotonic() + min(parts.settings.drain_s, stop.left_s)
        while True:
            left_s = max(1.0, end - time.monotonic())
            self._save(left_s)
            failed = bool(parts.saver.confirm(left_s))
            again = not stop.may_stay and end - time.monotonic() >= stop.need_s + 2 * SAVE_AGAIN_S
            rows = parts.world.agreement.exchange([float(failed), float(again)])
            if not any(row[0] for row in rows):
                return True
            if not rows[0][1]:
                return False
            time.sleep(SAVE_AGAIN_S)

    def _finish(self) -> None:
        """A run that is finished is never run again: so it is not before its last state is public.

        Raises CheckpointError on all ranks when it cannot be: the run goes on from the checkpoint before.
        """
        parts = self._parts
        self._pulse.finish()
        self._flush_ledger()
        wait_s = min(parts.settings.control.supervisor_timeout, LAST_SAVE_S)
        self._save(wait_s)
        problem = parts.saver.confirm(wait_s)
        if any(row[0] for row in parts.world.agreement.exchange([float(bool(problem))])):
            raise CheckpointError(
                f"the last state of the run, of step {self.step}, is not saved: {problem or 'global rank 0 says why'}",
                fix="check space, quota and rights of the checkpoint directory",
            )
        self.is_finished = True
        self._leave("finished")

    def _save(self, wait_s: float) -> bool:
        """False: it failed. Nothing to do when this step is saved already, or there is nothing to save."""
        saver = self._parts.saver
        if self._objects is None or (saver.settle() and saver.saved_step == self.step):
            return True
        return saver.save(self._objects.state(), self._about(), wait_s=wait_s)

    def _about(self) -> About:
        batch = self._parts.settings.batch
        settings = f"{self.seed} {batch.global_batch_size} {batch.policy} {sorted(self._signature.items())}"
        return About(
            step=self.step,
            generation=self.generation,
            world=self.world_size,
            cursor={"samples": self.cursor, "data": self._signature},
            config_hash=hashlib.sha256(settings.encode()).hexdigest()[:16],
            saved_at=time.time(),
        )

    def _flush_ledger(self) -> None:
        if self._parts.ledger is not None:
            self._parts.ledger.flush()

    def _leave(self, why: str) -> None:
        if not self._left:
            self._left = True
            self._parts.control.send(Leaving(generation=self.generation, why=why, step=self.step))
