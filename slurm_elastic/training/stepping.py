"""The loop: one batch per optimizer step, and what happens between two of them."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator

from slurm_elastic.errors import CheckpointError, UserMistake
from slurm_elastic.training.batches import Batch
from slurm_elastic.training.control import Order
from slurm_elastic.training.data import Line
from slurm_elastic.training.live import Live
from slurm_elastic.training.loader import Data, plan_for
from slurm_elastic.training.opening import report, seated
from slurm_elastic.training.orders import Stop, agree_on_stop
from slurm_elastic.training.pulse import Done, LossCopy, Verdict
from slurm_elastic.training.schedule import rate_of
from slurm_elastic.training.standing import Standing
from slurm_elastic.wire.messages import Regroup, Stayed, Warned

log = logging.getLogger(__name__)

SAVE_AGAIN_S = 1.0  # after a save before a forced stop has failed
LAST_SAVE_S = 1200.0  # at most, for the last checkpoint to become public; gloo waits for 1800 s


class Stepping:
    """`batch`: what the body of the loop works on. `verdict`: what was agreed at the last boundary."""

    def __init__(self, standing: Standing) -> None:
        self.verdict = Verdict()
        self.batch: Batch | None = None
        self.is_finished = False
        self.has_begun = False
        self._at = standing
        self._lr: float | None = None

    def steps(self, data: Data) -> Iterator[Batch]:
        """Until the run is complete or all ranks agreed to stop; saves before it ends."""
        at = self._at
        self.has_begun = True
        self._check_start(data.line)
        data.start(at.step, at.cursor, at.plan, at.share[0])
        while not data.line.is_over(at.step, at.cursor):
            self.batch = self._next_batch(data)
            yield self.batch
            if not self._stays(data, self.batch):
                return
        self._finish()

    def change(self, live: Live, data: Data | None) -> bool:
        """Level 2: into the generation that the supervisor has ordered, in place. False: this worker departs."""
        at = self._at
        before, plan_before = at.parts, at.plan if data is not None else None
        if before.ledger is not None:
            before.ledger.close()
        before.world.agreement.close()
        at.let_go()
        if self.batch is not None:
            self.batch.let_go()
        order, arrival, world = live.change(at.point)
        if world is None:
            at.leave("drained")
            return False
        with before.sockets.noting():
            at.take_parts(seated(before, world, order.generation), live)
        self.verdict = Verdict()
        while data is not None and plan_before is not None and at.step < arrival.point.step:  # completed without us
            indices = data.reader.batch(at.cursor, plan_before.global_batch)
            at.step, at.cursor = at.step + 1, at.cursor + len(indices)
            live.committed(Done(at.step, indices, None, self._lr, time.time()), before.world.size)
        at.stand_at(arrival.point)
        at.take(live.parts)
        if at.parts.ledger is not None:
            self._complete_ledger(live, order)
        if data is not None:
            data.start(at.step, at.cursor, at.plan, at.share[0])
        return True

    # ---- inside

    def _check_start(self, line: Line) -> None:
        at = self._at
        if at.parts.resume is not None and at.objects is None:
            raise UserMistake(
                f"there is a checkpoint to go on from, {at.parts.resume.name}, but nothing to load it into",
                fix="call run.restore(model=..., optimizer=...) before run.steps(...)",
            )
        if at.objects is None:
            at.parts.control.send(Warned(text="run.restore was not called: no checkpoints are written"))
        signature = line.signature()
        if at.signature and at.signature != signature:
            raise CheckpointError(
                f"the data has changed: {signature} now, {at.signature} in the checkpoint",
                fix="samples would be lost or repeated; use the same data set, seed and shuffle, or a new run",
            )
        at.signature = signature

    def _next_batch(self, data: Data) -> Batch:
        at, plan = self._at, self._at.plan
        indices = data.reader.batch(at.cursor, plan.global_batch)
        for schedule in at.schedules:
            schedule.apply(at.step, plan.lr_factor)
        self._lr = rate_of(at.optimizer)
        return Batch(
            at.step + 1,
            indices,
            plan_for(indices, plan),
            at.share[0],
            seed=at.seed if at.parts.settings.reseed else None,
            modules=at.modules,
            fetch=data.fetch,
            on_commit=self._committed,
            survives=self._survives,
        )

    def _stays(self, data: Data, batch: Batch) -> bool:
        """The body of the loop is over. False: so is the loop."""
        at = self._at
        try:
            if not batch.is_lost:
                batch.commit()
                at.parts.progress.note(data.line, at.step, at.cursor, at.plan.global_batch)
                return self._boundary(data)
        except Exception as error:
            if not self._survives(error):
                raise
        assert at.live is not None  # else nothing would be survived
        return self.change(at.live, data)

    def _survives(self, error: BaseException) -> bool:
        return self._at.live is not None and self._at.live.survives(error, self._at.step)

    def _committed(self, batch: Batch) -> None:
        """The critical path of every step: two small steps of bookkeeping, one wait that is over, one launch."""
        at = self._at
        control = at.parts.control
        at.step = batch.step
        at.cursor += batch.size
        control.note_step(at.step)
        copies = at.world.size // at.share[1]  # ranks that compute the same samples tell the same loss
        loss = None if batch.loss is None else LossCopy(batch.loss if copies == 1 else batch.loss / copies)
        done = Done(at.step, batch.all_indices, loss, self._lr, time.time())
        if at.live is not None:
            at.live.committed(done, at.world.size)
        is_told = control.order is not None or control.regroup > 0
        self.verdict = at.pulse.beat(done, drain=is_told, save=at.saver.wants)
        if not at.parts.settings.overlap:
            self.verdict |= at.pulse.finish()

    def _boundary(self, data: Data) -> bool:
        """Act on what was agreed; False: stop here. All state is that of `step`."""
        at, verdict = self._at, self.verdict
        if not (verdict.drain or verdict.save or at.saver.due(at.step)):
            return True
        verdict |= at.pulse.finish()
        at.flush_ledger()
        if not verdict.drain:
            at.save(0.0)
            return True
        order, regroup = at.parts.control.order, at.parts.control.regroup
        stop = agree_on_stop(at.world.agreement, order, at.saver.need_s(), time.time(), regroup)
        if stop.regroup and at.live is not None:
            at.saver.settle()
            at.live.prepare()
            return self.change(at.live, data)
        return self._drain(stop, order)

    def _drain(self, stop: Stop, order: Order | None) -> bool:
        """False: all ranks leave. True: the state cannot be saved, nobody takes the nodes, so they train on."""
        at = self._at
        log.info("stopping after step %d: %s", at.step, stop.reason)
        if not stop.save or (stop.fits and self._save_to_leave(stop)):
            at.leave(stop.why)
            return False
        late = f"it needs {stop.need_s:.1f} s, {stop.left_s:.1f} s are left"
        words = f"no save at step {at.step}: {at.saver.problem if stop.fits else late}"
        is_first = at.world.global_rank == 0
        if stop.may_stay:
            log.warning("training on: %s", words)
            at.parts.control.forget(order)
            self.verdict = Verdict()
            if is_first:
                at.parts.control.send(Stayed(generation=at.parts.generation, reason=words))
            return True
        if is_first:
            at.parts.control.send(Warned(text=f"{words}; work since step {at.saver.saved_step} is lost"))
        at.leave(stop.why)
        return False

    def _save_to_leave(self, stop: Stop) -> bool:
        """Until the state is public, as often as the time allows where staying is no choice. All ranks alike."""
        at = self._at
        end = time.monotonic() + min(at.parts.settings.drain_s, stop.left_s)
        while True:
            left_s = max(1.0, end - time.monotonic())
            at.save(left_s)
            failed = bool(at.saver.confirm(left_s))
            again = not stop.may_stay and end - time.monotonic() >= stop.need_s + 2 * SAVE_AGAIN_S
            rows = at.world.agreement.exchange([float(failed), float(again)])
            if not any(row[0] for row in rows):
                return True
            if not rows[0][1]:
                return False
            time.sleep(SAVE_AGAIN_S)

    def _finish(self) -> None:
        """A run that is finished is never run again: so it is not before its last state is public.

        Raises CheckpointError on all ranks when it cannot be: the run goes on from the checkpoint before.
        """
        at = self._at
        at.pulse.finish()
        at.flush_ledger()
        wait_s = min(at.parts.settings.control.supervisor_timeout, LAST_SAVE_S)
        at.save(wait_s)
        problem = at.saver.confirm(wait_s)
        if any(row[0] for row in at.world.agreement.exchange([float(bool(problem))])):
            raise CheckpointError(
                f"the last state of the run, of step {at.step}, is not saved: {problem or 'global rank 0 says why'}",
                fix="check space, quota and rights of the checkpoint directory",
            )
        self.is_finished = True
        at.leave("finished")

    def _complete_ledger(self, live: Live, order: Regroup) -> None:
        """Rank 0: steps that the supervisor has not heard of, because the worker that told it is gone."""
        entries = live.recent.after(order.ledger_step, self._at.step)
        if entries:
            steps = tuple(entry.hashed() for entry in entries)
            self._at.parts.control.send(report(order.before, steps, self._at.parts.progress))
