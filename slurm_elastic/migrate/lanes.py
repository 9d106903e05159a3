"""The programs while they are written: for each device its steps, and the memory they will take."""

from __future__ import annotations

from dataclasses import dataclass, field

from slurm_elastic.migrate.model import Piece, Receiving, Sending, Step


@dataclass
class Draft:
    """A step being filled. `round`: when, among all devices; None while it is local (refers and releases only)."""

    round: int | None = None
    refer: list[Piece] = field(default_factory=list)
    send: list[Sending] = field(default_factory=list)
    recv: list[Receiving] = field(default_factory=list)
    release: list[Piece] = field(default_factory=list)
    out: int = 0
    into: int = 0
    freed: int = 0  # bytes that its releases give back at its end

    def done(self) -> Step:
        return Step(tuple(self.refer), tuple(self.send), tuple(self.recv), tuple(self.release))


@dataclass
class Lane:
    """One device: `live` bytes now, at most `most` wanted, `chunk` bytes out and in per step."""

    live: int
    most: int
    chunk: int
    peak: int = 0
    rounds: int = -1  # the last round used
    steps: list[Draft] = field(default_factory=list)

    @property
    def step(self) -> Draft:
        return self.steps[-1]

    def room(self) -> int:
        """Bytes that may be added to the step being filled."""
        return self.most - self.live - self.step.out - self.step.into if self.steps else self.fresh_room()

    def fresh_room(self) -> int:
        """Bytes that may be in a step begun now."""
        return self.most - self.live + (self.step.freed if self.steps else 0)

    def begin(self, at: int | None = None) -> Draft:
        """Ends the step being filled and begins one: its releases have happened."""
        if self.steps:
            self.live -= self.step.freed
            self.step.freed = 0
        self.steps.append(Draft())
        if at is not None:
            self.enter(at)
        return self.step

    def enter(self, at: int) -> None:
        """The step being filled takes part in round `at`."""
        self.step.round = self.rounds = at

    def grow(self, allocated: int, out: int = 0, into: int = 0) -> None:
        self.live += allocated
        self.step.out += out
        self.step.into += into
        self.peak = max(self.peak, self.live + self.step.out + self.step.into)

    def free(self, piece: Piece, size: int, at: int) -> None:
        """Releases an old box at the end of step number `at`."""
        self.steps[at].release.append(piece)
        if at == len(self.steps) - 1:
            self.step.freed += size
        else:
            self.live -= size
