"""When to save, whether it still fits, and who hears that a checkpoint is complete."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from slurm_elastic.checkpoint import dcp
from slurm_elastic.checkpoint.manifest import About
from slurm_elastic.checkpoint.publish import publish
from slurm_elastic.checkpoint.retention import prune
from slurm_elastic.config_model import Checkpoint
from slurm_elastic.errors import CheckpointError
from slurm_elastic.training.control import Control
from slurm_elastic.wire import messages as m

log = logging.getLogger(__name__)

MARGIN_S = 2.0  # added to 1.5 x p95 of the saves so far, before a deadline
SAVE_TIMEOUT_S = 3600.0  # a background save that takes longer counts as failed


class Keeper(Protocol):
    """Makes complete drafts public. Rank 0 only."""

    def keep(self, saved: dcp.Saved, wait_s: float) -> None:
        """`wait_s` > 0: return only when it is public. Raises CheckpointError when it was refused, or not in time."""
        ...

    def confirm(self, step: int, wait_s: float) -> None:
        """Return when what was kept of `step` is public. Raises CheckpointError as `keep` does."""
        ...


class SupervisorKeeper:
    """The supervisor publishes: it is told by Saved and answers Published."""

    def __init__(self, control: Control, generation: int) -> None:
        self._control = control
        self._generation = generation

    def keep(self, saved: dcp.Saved, wait_s: float) -> None:
        self._control.send(
            m.Saved(
                generation=self._generation,
                step=saved.step,
                directory=saved.draft,
                save_s=saved.save_s,
                size_bytes=saved.size_bytes,
            )
        )
        if wait_s:
            self.confirm(saved.step, wait_s)

    def confirm(self, step: int, wait_s: float) -> None:
        answer = self._control.published(step, wait_s)
        if answer is None:
            raise CheckpointError(f"no answer within {wait_s:.0f} s whether step {step} is published")
        if not answer.ok:
            raise CheckpointError(f"the checkpoint of step {step} was refused: {answer.reason}")


class OwnKeeper:
    """Standalone: rank 0 publishes at once."""

    def __init__(self, directory: Path, keep: int, generation: int) -> None:
        self._directory = directory
        self._keep = keep
        self._generation = generation

    def keep(self, saved: dcp.Saved, wait_s: float) -> None:
        publish(self._directory, saved.draft, saved.step)
        for warning in prune(self._directory, self._keep, generation=self._generation).warnings:
            log.warning("%s", warning)

    def confirm(self, step: int, wait_s: float) -> None:
        """It was published when it was kept."""


@dataclass(frozen=True, slots=True)
class Pending:
    """A save in the background, and on rank 0 the thread that hands it over."""

    step: int
    saving: dcp.Saving
    handing_over: threading.Thread | None


class Saver:
    """Saves on the policy's terms. `save` is collective: all ranks decide alike, by `due` or by the agreement."""

    def __init__(
        self,
        policy: Checkpoint,
        directory: Path,
        keeper: Keeper | None,
        control: Control,
        generation: int,
        clock: Callable[[], float],
    ) -> None:
        """`keeper` on rank 0 only. `clock`: monotonic seconds. Collective: makes a process group of its own."""
        self._policy = policy
        self._directory = directory
        self._keeper = keeper
        self._control = control
        self._generation = generation
        self._clock = clock
        self._group = dcp.checkpoint_group()
        self._taken_s: list[float] = []
        self._pending: Pending | None = None
        self._last_at = clock()
        self.saved_step = 0  # the last step that was saved, or loaded
        self.problem = ""  # why the last save is not public, as far as this rank knows
        self._handed_over = 0  # rank 0: step of the last draft given to the keeper

    def load(self, state: dict[str, Any], path: Path) -> About:
        """Fill `state` from a public checkpoint. Collective. Raises CheckpointError naming what does not fit."""
        about = dcp.load(state, path, self._group)
        self.saved_step = about.step
        return about

    def due(self, step: int) -> bool:
        """By steps: known to every rank alone."""
        return self._policy.every_steps > 0 and step % self._policy.every_steps == 0

    @property
    def wants(self) -> bool:
        """By time: rank 0's opinion, which the others hear through the agreement."""
        return (
            self._keeper is not None
            and self._policy.every > 0
            and (self._pending is None or self._pending.saving.is_done)
            and self._clock() - self._last_at >= self._policy.every
        )

    def need_s(self) -> float:
        """How long before a deadline a save must start; 0 while none was measured."""
        if not self._taken_s:
            return 0.0
        ordered = sorted(self._taken_s)
        p95 = ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]
        return 1.5 * p95 + MARGIN_S

    def save(self, state: dict[str, Any], about: About, *, wait_s: float = 0.0) -> bool:
        """Save, in the background if the policy says so and nobody waits. False: it failed, on every rank alike.

        `wait_s` > 0: returns when it is complete and, on rank 0, public or `wait_s` is over. A failure is logged and
        reported, never raised: the checkpoint before this one is still there.
        """
        self._last_at = self._clock()
        self.settle()
        background = self._policy.async_save and not wait_s
        saving = dcp.save(state, self._directory, about, self._group, background=background)
        if background:
            self._pending = Pending(about.step, saving, self._in_thread(saving, about.step))
            return True
        self._hand_over(saving, about.step, wait_s)
        return self._count(saving, about.step)

    def confirm(self, wait_s: float) -> str:
        """Why the last save is not public, "" when it is. Only rank 0 knows, and waits for the answer."""
        if self._keeper is not None and not self.problem and self._handed_over == self.saved_step != 0:
            try:
                self._keeper.confirm(self.saved_step, wait_s)
            except CheckpointError as broken:
                self.problem = broken.problem
        return self.problem

    def settle(self) -> bool:
        """Wait for the save in the background, if any. False: it failed, on every rank alike."""
        if self._pending is None:
            return True
        pending, self._pending = self._pending, None
        if pending.handing_over is not None:
            pending.handing_over.join(SAVE_TIMEOUT_S)
        return self._count(pending.saving, pending.step)

    def _count(self, saving: dcp.Saving, step: int) -> bool:
        """Only what all ranks see alike may change what they decide: a complete draft, not whether it was published."""
        try:
            self._taken_s.append(saving.wait(SAVE_TIMEOUT_S).save_s)
        except CheckpointError as broken:
            self.problem = broken.problem
            log.error("the checkpoint of step %d failed: %s", step, broken)
            return False
        self.saved_step = step
        return True

    def _in_thread(self, saving: dcp.Saving, step: int) -> threading.Thread | None:
        if self._keeper is None:
            return None
        thread = threading.Thread(
            target=self._hand_over, args=(saving, step, 0.0), name="slurm-elastic hand-over", daemon=True
        )
        thread.start()
        return thread

    def _hand_over(self, saving: dcp.Saving, step: int, wait_s: float) -> None:
        """Rank 0: tell the outcome, and have the checkpoint published."""
        self.problem = ""
        if self._keeper is None:
            return
        try:
            saved = saving.wait(SAVE_TIMEOUT_S)
        except CheckpointError as broken:
            self._control.send(m.SaveFailed(generation=self._generation, step=step, reason=broken.problem))
            return
        self._handed_over = step
        try:
            self._keeper.keep(saved, wait_s)
        except CheckpointError as broken:
            self.problem = broken.problem
            self._control.send(m.Warned(text=broken.problem))
