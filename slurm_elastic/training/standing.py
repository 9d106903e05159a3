"""Where this worker's training stands, and what it stands on: shared by the session and its loop."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from slurm_elastic.checkpoint.manifest import About
from slurm_elastic.errors import UserMistake
from slurm_elastic.machine.batch import BatchPlan, batch_plan
from slurm_elastic.migrate.parts import Parts as LiveParts
from slurm_elastic.training.checkpointing import Saver
from slurm_elastic.training.live import Live
from slurm_elastic.training.objects import Objects
from slurm_elastic.training.opening import Parts
from slurm_elastic.training.planning import Point
from slurm_elastic.training.pulse import Pulse
from slurm_elastic.training.recent import Both
from slurm_elastic.training.schedule import Schedule
from slurm_elastic.training.world import World
from slurm_elastic.wire.messages import Leaving


class Standing:
    """`step`: optimizer steps done; `cursor`: samples they used; `signature`: of the data they came from.

    `parts` is replaced, with what hangs on it, when the generation changes in place. `share`: this rank's place among
    those that divide a global batch, and their number.
    """

    def __init__(self, seed: int, parts: Parts) -> None:
        self.seed = seed
        self.parts = parts
        self.pulse = Pulse(parts.world.agreement, parts.world.size, parts.ledger)
        self.step = 0
        self.cursor = 0
        self.signature: dict[str, Any] = {}
        self.share = (parts.world.global_rank, parts.world.size)
        self.live: Live | None = None
        self.objects: Objects | None = None
        self.optimizer: torch.optim.Optimizer | None = None
        self.modules: tuple[torch.nn.Module, ...] = ()
        self.schedules: list[Schedule] = []
        self.has_left = False
        self._plan: BatchPlan | None = None  # the same for a whole generation
        self._scheduled: list[tuple[Schedule, str]] = []  # while the generation changes: by the optimizer's name

    @property
    def world(self) -> World:
        return self.parts.world

    @property
    def saver(self) -> Saver:
        assert self.parts.saver is not None, "only a worker with a seat saves"
        return self.parts.saver

    @property
    def plan(self) -> BatchPlan:
        """How a full global batch is divided at this world size."""
        if self._plan is None:
            self._plan = self._make_plan()
        return self._plan

    def _make_plan(self) -> BatchPlan:
        settings = self.parts.settings
        if not settings.batch.global_batch_size:
            raise UserMistake(
                "the global batch size is not set",
                fix="set batch.global_batch_size in run.yaml, or call elastic.init(global_batch_size=...)",
            )
        return batch_plan(self.share[1], settings.batch, reference_workers=settings.reference_workers)

    @property
    def point(self) -> Point:
        return Point(step=self.step, cursor=self.cursor, signature=self.signature)

    def stand_at(self, point: Point) -> None:
        self.step, self.cursor, self.signature = point.step, point.cursor, point.signature
        self.parts.control.note_step(self.step)

    def name_state(self, objects: Mapping[str, object]) -> Objects:
        """What belongs to the state from now on."""
        self.objects = found = Objects(objects)
        self.modules = tuple(found.models.values())
        self.optimizer = next(iter(found.optimizers.values()), None)
        return found

    def load(self, objects: Mapping[str, object], resume: Path) -> None:
        """Name the state and fill it from a public checkpoint. Collective."""
        found = self.name_state(objects)
        state = found.state()
        about = self.saver.load(state, resume)
        found.load(state)
        samples = int(about.cursor.get("samples", 0))
        self.stand_at(Point(step=about.step, cursor=samples, signature=about.cursor.get("data", {})))

    def take(self, parts: LiveParts) -> None:
        """Level 2: the training as it was built for this world."""
        found = self.name_state(parts.objects())
        self.share = parts.data_parallel or (self.world.global_rank, self.world.size)
        self._plan = None
        for schedule, name in self._scheduled:
            schedule.move_to(found.optimizers[name])
        self._scheduled = []

    def take_parts(self, parts: Parts, live: Live) -> None:
        """Level 2: the generation that this worker is in now."""
        self.parts = parts
        self.pulse = Pulse(parts.world.agreement, parts.world.size, Both(live.recent, parts.ledger))

    def let_go(self) -> None:
        """Level 2: refer to nothing that was built. DDP must be gone before its process group is."""
        found = self.objects.optimizers if self.objects is not None else {}
        self._scheduled += [
            (schedule, name)
            for schedule in self.schedules
            for name, optimizer in found.items()
            if schedule.optimizer is optimizer
        ]
        for schedule, _ in self._scheduled:
            schedule.optimizer = None
        self.objects, self.optimizer, self.modules = None, None, ()

    def save(self, wait_s: float) -> bool:
        """False: it failed. Nothing to do when this step is saved already, or there is nothing to save. Collective."""
        saver = self.saver
        if self.objects is None or (saver.settle() and saver.saved_step == self.step):
            return True
        state = self.objects.state()
        if self.live is not None:
            self.live.torn = False  # torch makes a step with nothing in it to find out what state there is
        return saver.save(state, self._about(), wait_s=wait_s)

    def flush_ledger(self) -> None:
        if self.parts.ledger is not None:
            self.parts.ledger.flush()

    def leave(self, why: str) -> None:
        if not self.has_left:
            self.has_left = True
            self.parts.control.send(Leaving(generation=self.parts.generation, why=why, step=self.step))

    def _about(self) -> About:
        batch = self.parts.settings.batch
        settings = f"{self.seed} {batch.global_batch_size} {batch.policy} {sorted(self.signature.items())}"
        return About(
            step=self.step,
            generation=self.parts.generation,
            world=self.world.size,
            cursor={"samples": self.cursor, "data": self.signature},
            config_hash=hashlib.sha256(settings.encode()).hexdigest()[:16],
            saved_at=time.time(),
        )
