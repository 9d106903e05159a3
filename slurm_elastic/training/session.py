"""One worker's part in a run: `init` → `data` → `restore` (or `build`) → `steps`; the same calls on all ranks."""

from __future__ import annotations

import atexit
import hashlib
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any, Unpack

import torch

from slurm_elastic.checkpoint.manifest import About
from slurm_elastic.errors import CheckpointError, UserMistake
from slurm_elastic.machine.batch import BatchPlan, batch_plan
from slurm_elastic.migrate.parts import Parts as LiveParts
from slurm_elastic.training.batches import Batch
from slurm_elastic.training.checkpointing import Saver
from slurm_elastic.training.control import Alone, Supervised
from slurm_elastic.training.data import Line
from slurm_elastic.training.live import Build, Current, Live, Terms, begin
from slurm_elastic.training.loader import Data, plan_for
from slurm_elastic.training.objects import Objects
from slurm_elastic.training.opening import Parts, connect, open_parts, report, seated
from slurm_elastic.training.orders import Stop, agree_on_stop
from slurm_elastic.training.planning import Point
from slurm_elastic.training.pulse import Done, LossCopy, Pulse, Verdict
from slurm_elastic.training.recent import Both
from slurm_elastic.training.schedule import Schedule, rate_of
from slurm_elastic.training.settings import Overrides
from slurm_elastic.training.world import average_gradients
from slurm_elastic.wire.messages import Leaving, Regroup, Warned

log = logging.getLogger(__name__)

FLUSH_S = 10.0  # for the last reports to reach the supervisor
PATIENCE_S = 60.0  # for the supervisor's word, and for peers, in a change of generations
LAST_LOSS_S = 5.0  # for the other ranks' part of the last step's loss, when a script leaves its loop by itself
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
        self._live: Live | None = None
        self._objects: Objects | None = None
        self._optimizer: torch.optim.Optimizer | None = None
        self._schedules: list[Schedule] = []
        self._modules: tuple[torch.nn.Module, ...] = ()
        self._signature: dict[str, Any] = {}
        self._share = (parts.world.global_rank, parts.world.size)  # of each global batch
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
        return batch_plan(self._share[1], settings.batch, reference_workers=settings.reference_workers)

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
        found = self._name_state(objects)
        if self._parts.resume is None:
            return 0
        state = found.state()
        about = self._saver.load(state, self._parts.resume)
        found.load(state)
        self.step = about.step
        self.cursor = int(about.cursor.get("samples", 0))
        self._signature = about.cursor.get("data", {})
        self._parts.control.note_step(self.step)
        return self.step

    def build(self, build: Build) -> Current:
        """Level 2: `build(world)` makes the training for a world, on the meta device, and is called for every one.

        Loads the checkpoint that this generation starts from, if any. From then on a change of the workers keeps this
        process and its state; put each step in `with batch:` so that the loss of a peer in it ends nothing. Returns
        once this worker has its seat. Raises UserMistake for a `build` that does not fit.
        """
        opened, control = self._parts, self._parts.control
        if not isinstance(control, Supervised):  # alone: one generation is all there will be
            parts = begin(build, opened.world, self.seed)
            self.restore(**parts.objects())
            self._take(parts)
            return Current(lambda: parts)
        terms = Terms(self.seed, self.device, opened.settings.backend, PATIENCE_S)
        self._live = live = Live(build, control, opened.sockets, terms)
        if opened.saver is None:
            connect(control, os.environ)
            self._change(None)
        else:
            live.start(opened.world)
            self.restore(**live.parts.objects())
            self._take(live.parts)
            self._pulse = Pulse(opened.world.agreement, self.world_size, Both(live.recent, opened.ledger))
        return Current(lambda: live.parts)

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
        self._in_steps = True
        self._check_start(data.line)
        data.start(self.step, self.cursor, self.plan, self._share[0])
        while not data.line.is_over(self.step, self.cursor):
            self._batch = batch = self._next_batch(data)
            yield batch
            try:
                if batch.is_lost:
                    stays = self._change(data)
                else:
                    batch.commit()
                    self._parts.progress.note(data.line, self.step, self.cursor, self.plan.global_batch)
                    stays = self._boundary(data)
            except Exception as error:
                if not self._survives(error):
                    raise
                stays = self._change(data)
            if not stays:
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
            if self._parts.saver is not None:
                self._parts.saver.settle()
            self._pulse.abandon(LAST_LOSS_S)
        if self._parts.ledger is not None:
            self._parts.ledger.close()
        if not crashed:
            self._parts.control.flush(FLUSH_S)
        self._parts.control.close()

    # ---- inside

    @property
    def _saver(self) -> Saver:
        assert self._parts.saver is not None, "only a worker with a seat saves"
        return self._parts.saver

    def _name_state(self, objects: Mapping[str, object]) -> Objects:
        self._objects = found = Objects(objects)
        self._modules = tuple(found.models.values())
        self._optimizer = next(iter(found.optimizers.values()), None)
        return found

    def _take(self, parts: LiveParts) -> None:
        self._name_state(parts.objects())
        self._share = parts.data_parallel or (self.global_rank, self.world_size)

    def _next_batch(self, data: Data) -> Batch:
        plan = self.plan
        indices = data.reader.batch(self.cursor, plan.global_batch)
        for schedule in self._schedules:
            schedule.apply(self.step, plan.lr_factor)
        self._lr = rate_of(self._optimizer)
        return Batch(
            self.step + 1,
            indices,
            plan_for(indices, plan),
            self._share[0],
            seed=self.seed if self._parts.settings.reseed else None,
            modules=self._modules,
            fetch=data.fetch,
            on_commit=self._committed,
            survives=self._survives,
        )

    def _survives(self, error: BaseException) -> bool:
        return self._live is not None and self._live.survives(error, self.step)

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
        copies = self.world_size // self._share[1]  # ranks that compute the same samples tell the same loss
        loss = None if batch.loss is None else LossCopy(batch.loss / copies)
        done = Done(self.step, batch.all_indices, loss, self._lr, time.time())
        if self._live is not None:
            self._live.committed(done, self.world_size)
        is_told = parts.control.order is not None or parts.control.regroup > 0
        self._verdict = self._pulse.beat(done, drain=is_told, save=self._saver.wants)
        if not parts.settings.overlap:
            self._verdict |= self._pulse.finish()

    def _boundary(self, data: Data) -> bool:
        """Act on what was agreed; False: stop here. The body of the loop is over: all state is that of `step`."""
        verdict = self._verdict
        if not (verdict.drain or verdict.save or self._saver.due(self.step)):
            return True
        verdict |= self._pulse.finish()
        self._flush_ledger()
        if not verdict.drain:
            self._save(0.0)
            return True
        parts = self._parts
        need_s, regroup = self._saver.need_s(), parts.control.regroup
        stop = agree_on_stop(parts.world.agreement, parts.control.order, need_s, time.time(), regroup)
        if stop.regroup and self._live is not None:
            self._saver.settle()
            self._live.prepare()
            return self._change(data)
        self._drain(stop)
        return False

    def _change(self, data: Data | None) -> bool:
        """Level 2: into the generation that the supervisor has ordered, in place. False: this worker departs."""
        assert self._live is not None
        before = self._parts
        if before.ledger is not None:
            before.ledger.close()
        self._objects, self._optimizer, self._modules = None, None, ()  # DDP must be gone before its process group is
        order, arrival, world = self._live.change(Point(step=self.step, cursor=self.cursor, signature=self._signature))
        if world is None:
            self._leave("drained")
            return False
        with before.sockets.noting():
            self._parts = parts = seated(before, world, order.generation)
        self._pulse = Pulse(world.agreement, world.size, Both(self._live.recent, parts.ledger))
        self._verdict = Verdict()
        while data is not None and self.step < arrival.point.step:  # the others have completed it without us
            indices = data.reader.batch(self.cursor, before.settings.batch.global_batch_size)
            self.step, self.cursor = self.step + 1, self.cursor + len(indices)
            self._live.committed(Done(self.step, indices, None, self._lr, time.time()), before.world.size)
        self.step, self.cursor, self._signature = arrival.point.step, arrival.point.cursor, arrival.point.signature
        self._take(self._live.parts)
        if parts.ledger is not None:
            self._complete_ledger(order)
        if data is not None:
            data.start(self.step, self.cursor, self.plan, self._share[0])
        return True

    def _complete_ledger(self, order: Regroup) -> None:
        """Rank 0: steps that the supervisor has not heard of, because the worker that told it is gone."""
        assert self._live is not None
        entries = self._live.recent.after(order.ledger_step, self.step)
        if entries:
            steps = tuple(entry.hashed() for entry in entries)
            self._parts.control.send(report(order.before, steps, self._parts.progress))

    def _drain(self, stop: Stop) -> None:
        parts = self._parts
        log.info("stopping after step %d: %s", self.step, stop.reason)
        if stop.save and stop.fits:
            self._save(max(1.0, min(parts.settings.drain_s, stop.left_s)))
        elif stop.save and self.global_rank == 0:
            parts.control.send(
                Warned(
                    text=f"no save at step {self.step}: it needs {stop.need_s:.1f} s, {stop.left_s:.1f} s are left; "
                    f"work since step {self._saver.saved_step} is lost"
                )
            )
        self._leave(stop.why)

    def _finish(self) -> None:
        """A run that is finished is never run again: so it is not before its last state is public.

        Raises CheckpointError on all ranks when it cannot be: the run goes on from the checkpoint before.
        """
        parts = self._parts
        self._pulse.finish()
        self._flush_ledger()
        wait_s = min(parts.settings.control.supervisor_timeout, LAST_SAVE_S)
        self._save(wait_s)
        problem = self._saver.confirm(wait_s)
        if any(row[0] for row in parts.world.agreement.exchange([float(bool(problem))])):
            raise CheckpointError(
                f"the last state of the run, of step {self.step}, is not saved: {problem or 'global rank 0 says why'}",
                fix="check space, quota and rights of the checkpoint directory",
            )
        self.is_finished = True
        self._leave("finished")

    def _save(self, wait_s: float) -> bool:
        """False: it failed. Nothing to do when this step is saved already, or there is nothing to save."""
        saver = self._saver
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
