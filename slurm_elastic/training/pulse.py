"""What ranks tell each other at every boundary, overlapped with the step that follows.

At the end of step s each rank launches one small sum: "I was told to drain", "a save is due", and its part of the
loss. The answer is taken at the end of step s+1. So all ranks hear a flag at the same boundary, and the critical
path pays for asking and for a wait that is normally over already.
"""

from __future__ import annotations

import logging
import time
from typing import NamedTuple, Protocol

import torch

from slurm_elastic.training.consensus import Agreement
from slurm_elastic.training.data import Indices
from slurm_elastic.training.ledger import Entry

log = logging.getLogger(__name__)

ABANDON_LOOK_S = 0.01


class LossCopy:
    """A loss on its way to the CPU, without waiting for the device that computes it."""

    def __init__(self, loss: torch.Tensor | float) -> None:
        self._event: torch.cuda.Event | None = None
        if isinstance(loss, torch.Tensor) and loss.is_cuda:
            host = torch.empty((), dtype=loss.dtype, pin_memory=True)
            host.copy_(loss, non_blocking=True)
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record(torch.cuda.current_stream(loss.device))
            loss = host
        self._loss = loss

    @property
    def is_late(self) -> bool:
        """Whether reading it now would wait for a device."""
        return self._event is not None

    def value(self) -> float:
        if self._event is not None:
            self._event.synchronize()
        return float(self._loss)


class Done(NamedTuple):
    """A step this rank has finished. `loss`: its part of the global batch's mean loss; None: not told."""

    step: int
    indices: Indices
    loss: LossCopy | None
    lr: float | None
    time: float


class Verdict(NamedTuple):
    """What all ranks heard at this boundary."""

    drain: bool = False
    save: bool = False

    def __or__(self, other: Verdict) -> Verdict:
        return Verdict(self.drain or other.drain, self.save or other.save)


class Sink(Protocol):
    def add(self, entry: Entry) -> None:
        """A step whose loss has come together."""
        ...


class Pulse:
    """`beat` once per step; `finish` before acting on a verdict, so that nothing is in flight any more.

    `ledger`: rank 0's. Losses that come from a device travel one boundary later: reading them at once would make
    the host wait for the device at every step.
    """

    def __init__(self, agreement: Agreement, world: int, ledger: Sink | None) -> None:
        self._agreement = agreement
        self._world = world
        self._ledger = ledger
        self._in_flight = False
        self._told: Done | None = None  # whose loss is in flight
        self._held: Done | None = None  # whose loss has not been launched yet

    def beat(self, done: Done | None, *, drain: bool, save: bool) -> Verdict:
        """Take the last boundary's answer, launch this one's question."""
        verdict = self._collect()
        telling: Done | None = done
        if done is not None and done.loss is not None and done.loss.is_late:
            telling, self._held = self._held, done
        self._launch(telling, drain, save)
        return verdict

    def finish(self) -> Verdict:
        """The answer to the last question. The ledger then has every step."""
        verdict = self._collect()
        if self._held is not None:
            telling, self._held = self._held, None
            self._launch(telling, False, False)
            verdict |= self._collect()
        return verdict

    def abandon(self, wait_s: float) -> None:
        """Give the ledger every step, without the other ranks, which may be gone: a loss that is late stays unknown."""
        if self._ledger is None:
            return
        end = time.monotonic() + wait_s
        while self._in_flight and not self._agreement.is_ready and time.monotonic() < end:
            time.sleep(ABANDON_LOOK_S)
        if self._in_flight and self._agreement.is_ready:
            try:
                self._collect()
            except RuntimeError as broken:  # the connection to another rank
                log.warning("the loss of the last step is not known: %s", broken)
        for done in (self._told if self._in_flight else None, self._held):
            if done is not None:
                self._ledger.add(Entry(done.step, self._world, done.indices, None, done.lr, done.time))
        self._in_flight, self._told, self._held = False, None, None

    def _launch(self, telling: Done | None, drain: bool, save: bool) -> None:
        self._told = telling
        self._in_flight = True
        loss = telling.loss.value() if telling is not None and telling.loss is not None else None
        told = 0.0 if loss is None else 1.0
        self._agreement.launch((float(drain), float(save), loss or 0.0, told))

    def _collect(self) -> Verdict:
        if not self._in_flight:
            return Verdict()
        drain, save, loss, told = self._agreement.take()
        self._in_flight = False
        if self._ledger is not None and self._told is not None:
            done = self._told
            self._ledger.add(Entry(done.step, self._world, done.indices, loss if told else None, done.lr, done.time))
        return Verdict(drain > 0, save > 0)
