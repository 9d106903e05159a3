"""Level 2 of a session: the training is built anew for every generation, and lives through changes of its workers."""

from __future__ import annotations

import gc
import logging
import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from slurm_elastic.errors import MigrationError, RegroupError, StateLost, UserMistake
from slurm_elastic.migrate.capture import capture
from slurm_elastic.migrate.capture_buffers import share_buffers
from slurm_elastic.migrate.parts import Parts, construct
from slurm_elastic.migrate.parts_start import start
from slurm_elastic.training import environment
from slurm_elastic.training.control import Supervised
from slurm_elastic.training.environment import Ranks
from slurm_elastic.training.groups import Sockets, end_groups
from slurm_elastic.training.ledger import Entry
from slurm_elastic.training.meeting import OwnStore, Store, prefixed, store_of
from slurm_elastic.training.planning import Point, warm_up
from slurm_elastic.training.pulse import Done
from slurm_elastic.training.recent import Recent
from slurm_elastic.training.regroup import Arrival, Holding, Surroundings, regroup
from slurm_elastic.training.seating import STAGE_STANDBY, Seating
from slurm_elastic.training.world import World, join_at
from slurm_elastic.wire import messages as m

log = logging.getLogger(__name__)

Build = Callable[[World], Parts]


@dataclass(frozen=True, slots=True)
class Terms:
    """`backend`: of process groups, "" for the default. `patience_s`: for peers, and for the supervisor's next word."""

    seed: int
    device: torch.device
    backend: str
    patience_s: float = 60.0


class Current:
    """What `run.build` returns: the parts of the present generation. Keep this, and not what is in it."""

    def __init__(self, parts: Callable[[], Parts]) -> None:
        self._parts = parts

    @property
    def model(self) -> Any:
        """The module to call: what `wrap` made of it, where there is one."""
        return self._parts().model

    @property
    def optimizer(self) -> Any:
        return self._parts().optimizer

    @property
    def scheduler(self) -> Any:
        return self._parts().scheduler

    @property
    def extra(self) -> Mapping[str, Any]:
        return self._parts().extra


class Live:
    """`start`, or `stand_by` and `change`; then `change` at every transition.

    `parts` is what `build` gave for the present generation. `torn`: an optimizer is, or was left, in the middle of a
    step, or has made one that was not committed.
    """

    def __init__(self, build: Build, control: Supervised, sockets: Sockets, terms: Terms) -> None:
        self.parts = Parts(torch.nn.Module())
        self.recent = Recent()
        self.torn = False
        self._build = build
        self._control = control
        self._terms = terms
        self._holding = Holding()
        self._world: World | None = None
        self._store = OwnStore()
        self._sockets = sockets
        self._sockets.store_port = self._store.port
        self._seating.frees(self._sockets.cut)
        self._seating.store_port = self._store.port
        warm_up()
        gc.collect()
        gc.freeze()  # what is there by now stays: the collections to come look at the training only, and are short

    @property
    def _seating(self) -> Seating:
        return self._control.seating

    def start(self, world: World) -> None:
        """First values, in a generation that starts together."""
        with self._sockets.noting():
            parts = begin(self._build, world, self._terms.seed)
        self._take(parts)
        self._world = world
        self._control.introduce_again()

    def change(self, point: Point) -> tuple[m.Regroup, Arrival, World | None]:
        """Go where the newest order says, and on until one of them succeeds. `point`: where this worker stands.

        Raises RegroupError when there is no way left. The world is None for a worker that departs.
        """
        stands_by = self._seating.now.stage == STAGE_STANDBY  # for as long as there is a supervisor
        patience_s = math.inf if stands_by else self._terms.patience_s
        order = self._seating.wait(self._seating.now.generation + 1, patience_s)
        if order is None:
            raise RegroupError("the supervisor did not say how to go on")
        self._bring(point)
        began = time.monotonic()
        while True:
            try:
                arrival = regroup(order, self._surroundings(order), self._holding)
                break
            except (StateLost, UserMistake) as hopeless:
                self._control.send(m.RegroupFailed(generation=order.generation, reason=str(hopeless)))
                raise
            except (RegroupError, MigrationError, RuntimeError) as broken:
                log.warning("generation %d did not come about: %s", order.generation, broken)
                words = str(broken).partition("\n")[0][:500]
                self._control.send(m.Stumbled(generation=order.generation, step=point.step, error=words))
                newer = self._seating.wait(order.generation + 1, self._terms.patience_s)
                if newer is None:
                    self._control.send(m.RegroupFailed(generation=order.generation, reason=str(broken)))
                    raise RegroupError(f"generation {order.generation} did not come about: {broken}") from broken
                order = newer
        if arrival.parts is not None and arrival.ranks is not None:
            self._take(arrival.parts)
            self._seating.sit(order.generation, arrival.ranks)
            self._control.send(_regrouped(order, arrival, time.monotonic() - began))
        return order, arrival, self._world

    def prepare(self) -> None:
        """Before a planned change, while all peers are there. Collective."""
        if self.parts.data_parallel is None:  # else ranks may have different parts of the model, and other buffers
            share_buffers(self.parts.objects())

    def committed(self, done: Done, world: int) -> None:
        """A step is part of the run, and this worker's state is that after it."""
        self.torn = False
        self.recent.note(Entry(done.step, world, done.indices, None, done.lr, done.time))

    def survives(self, error: BaseException, step: int) -> bool:
        """Whether an error in the middle of training is the loss of a peer, and there is a generation to go on in."""
        if not is_peer_loss(error):
            return False
        generation = self._seating.now.generation
        words = str(error).partition("\n")[0]
        log.warning("step %d was interrupted: %s", step + 1, words)
        self._control.send(m.Stumbled(generation=generation, step=step, error=words[:500]))
        return self._seating.wait(generation + 1, self._terms.patience_s) is not None

    # ---- inside

    def _take(self, parts: Parts) -> None:
        self.parts = parts
        self.torn = False
        optimizers = [o for o in parts.objects().values() if isinstance(o, torch.optim.Optimizer)]
        for optimizer in optimizers:
            optimizer.register_step_pre_hook(self._tear)

    def _tear(self, *_: object) -> None:
        self.torn = True

    def _bring(self, point: Point) -> None:
        """What this worker holds, and nobody else in this process: so that its memory is free as it is moved."""
        if self.torn or self._world is None:
            self._holding = Holding()
        else:
            captured = capture(self.parts.objects(), self._world.global_rank)
            self._holding = Holding(point, captured.described, dict(captured.local))
        self.parts = Parts(torch.nn.Module())

    def _surroundings(self, order: m.Regroup) -> Surroundings:
        return Surroundings(
            seat=self._seating.seat,
            device=self._terms.device,
            timeout_s=self._terms.patience_s,
            store_at=self._store_at,
            leave=self._leave,
            enter=lambda store, ranks: self._enter(store, order.generation, ranks),
            build=self._build,
            called_off=self._called_off(order),
            sockets=self._sockets,
        )

    def _called_off(self, order: m.Regroup) -> Callable[[], str]:
        return lambda: self._seating.is_newer_than(order.generation)

    def _store_at(self, order: m.Regroup) -> Store:
        if order.seats[0] == self._seating.seat:
            store: Store = self._store.store
        else:
            called_off = self._called_off(order)
            store = store_of(order.store_addr, order.store_port, self._terms.patience_s, called_off)
        return prefixed(store, f"generation-{order.generation}")

    def _leave(self) -> None:
        """DDP is part of reference cycles, and hangs for good when it is freed after its process group."""
        self._world = None
        gc.collect()
        end_groups()
        self._sockets.forget()

    def _enter(self, store: Store, generation: int, ranks: Ranks) -> World:
        environment.tell(os.environ, generation, ranks)
        self._world = join_at(store, generation, ranks, self._terms.backend)
        return self._world


def begin(build: Build, world: World, seed: int) -> Parts:
    """Built for `world`, with first values. Collective where `build` is."""
    parts = construct(build, world)
    start(parts, seed, world.global_rank, world.device)
    return parts


def is_peer_loss(error: BaseException) -> bool:
    """What torch raises when a collective cannot go on. gloo's errors are plain RuntimeErrors: only words tell."""
    if isinstance(error, dist.DistError):
        return True
    words = str(error)
    signs = ("gloo", "NCCL", "Connection closed by peer")
    return isinstance(error, RuntimeError) and any(sign in words for sign in signs)


def _regrouped(order: m.Regroup, arrival: Arrival, took_s: float) -> m.Regrouped:
    return m.Regrouped(
        generation=order.generation,
        step=arrival.point.step,
        received_bytes=arrival.received_bytes,
        sent_bytes=arrival.sent_bytes,
        moved_s=arrival.moved_s,
        regroup_s=took_s,
    )
