"""Putting a worker together: who it is, what it talks to, where it starts. The library's one wiring place."""

from __future__ import annotations

import os
import time
from collections.abc import MutableMapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from slurm_elastic import config_kept
from slurm_elastic.checkpoint.layout import step_name
from slurm_elastic.checkpoint.publish import newest
from slurm_elastic.rundir import RunDirectory
from slurm_elastic.training import environment
from slurm_elastic.training.checkpointing import Keeper, OwnKeeper, Saver, SupervisorKeeper
from slurm_elastic.training.control import Alone, Control, Supervised
from slurm_elastic.training.data import Line
from slurm_elastic.training.environment import Contract, Ranks, RunFacts
from slurm_elastic.training.groups import Sockets
from slurm_elastic.training.ledger import Ledger, LedgerFile
from slurm_elastic.training.mpi import ranks_of
from slurm_elastic.training.settings import Overrides, Settings, from_config, override
from slurm_elastic.training.world import World, join, provisional
from slurm_elastic.wire.messages import StepDone, Steps, Warned

ADDRESS_WAIT_S = 5.0  # for the connection that tells which interface leads to the others


class Progress:
    """How far the data is, for reports."""

    passes = 0.0
    total_steps = 0

    def note(self, line: Line, step: int, cursor: int, global_batch: int) -> None:
        self.passes = cursor / line.length
        self.total_steps = line.total_steps(step, cursor, global_batch)


@dataclass(frozen=True, slots=True)
class Parts:
    """Everything a session works with. `ledger` on rank 0 only. `resume` None: from the start.

    `saver` None: this worker stands by, it is in no generation yet.
    """

    settings: Settings
    world: World
    control: Control
    saver: Saver | None
    ledger: Ledger | None
    progress: Progress
    generation: int
    resume: Path | None
    sockets: Sockets = field(default_factory=Sockets)  # of the generation's groups


def open_parts(environ: MutableMapping[str, str], communicator: Any, overrides: Overrides) -> Parts:
    """Connect, and join the other workers: collective over all ranks.

    Raises UserMistake and ConfigError for settings that are wrong.
    """
    contract = environment.read(environ)
    ranks = ranks_of(communicator, environment.launched_tasks(environ)) if communicator is not None else contract.ranks
    if contract.run is not None:
        return _supervised(environ, contract.run, ranks, communicator, overrides)
    return _alone(Contract(ranks, None), communicator, overrides)


def _supervised(
    environ: MutableMapping[str, str], run: RunFacts, ranks: Ranks | None, communicator: Any, overrides: Overrides
) -> Parts:
    directory = RunDirectory(run.directory)
    config, problem = config_kept.load_of_run(directory)
    settings = override(from_config(config, run.directory), overrides, standalone=False)
    times = settings.control
    control = Supervised(run, ranks or Ranks(), times.heartbeat, times.supervisor_timeout, leave=os._exit)
    opened = Parts(
        settings=settings,
        world=provisional(ranks or Ranks()),
        control=control,
        saver=None,
        ledger=None,
        progress=Progress(),
        generation=run.generation,
        resume=settings.checkpoints / run.resume if run.resume else None,
    )
    if run.standby:
        return opened
    connect(control, environ)
    with opened.sockets.noting():
        opened = seated(opened, join(ranks, communicator, settings.backend), run.generation)
    if problem and opened.ledger is not None:
        control.send(Warned(text=problem))
    return opened


def connect(control: Supervised, environ: MutableMapping[str, str]) -> None:
    """Introduce this worker. Process groups use the interface that leads to the supervisor from then on."""
    control.start()
    environment.steer_to_interface(environ, control.address(ADDRESS_WAIT_S))


def seated(opened: Parts, world: World, generation: int) -> Parts:
    """The same under a supervisor, as a worker of `world` in `generation`. Collective: makes process groups."""
    control, progress = opened.control, opened.progress
    is_first = world.global_rank == 0
    keeper: Keeper | None = SupervisorKeeper(control, generation) if is_first else None
    return replace(
        opened,
        world=world,
        saver=_saver(opened.settings, keeper, control, generation),
        ledger=Ledger(lambda steps: control.send(report(generation, steps, progress))) if is_first else None,
        generation=generation,
    )


def report(generation: int, steps: tuple[StepDone, ...], progress: Progress) -> Steps:
    return Steps(generation=generation, steps=steps, epoch_of_data=progress.passes, total_steps=progress.total_steps)


def _alone(contract: Contract, communicator: Any, overrides: Overrides) -> Parts:
    settings = override(Settings(), overrides, standalone=True)
    control = Alone()
    control.listen()
    world = join(contract.ranks, communicator, settings.backend)
    is_first = world.global_rank == 0
    found = (0.0, 1.0)
    file = LedgerFile(settings.directory / "ledger.jsonl")
    if is_first:
        settings.checkpoints.mkdir(parents=True, exist_ok=True)
        found = (_newest_step(settings.checkpoints, control), float(file.last_generation() + 1))
    step, generation = (int(value) for value in world.agreement.exchange(found)[0])
    keeper: Keeper | None = None
    if is_first:
        keeper = OwnKeeper(settings.checkpoints, settings.checkpoint.keep, generation)
        file.begin(generation, step)
    return Parts(
        settings=settings,
        world=world,
        control=control,
        saver=_saver(settings, keeper, control, generation),
        ledger=Ledger(file.write) if is_first else None,
        progress=Progress(),
        generation=generation,
        resume=settings.checkpoints / step_name(step) if step else None,
    )


def _saver(settings: Settings, keeper: Keeper | None, control: Control, generation: int) -> Saver:
    return Saver(settings.checkpoint, settings.checkpoints, keeper, control, generation, time.monotonic)


def _newest_step(checkpoints: Path, control: Control) -> float:
    found = newest(checkpoints)
    for warning in found.warnings:
        control.send(Warned(text=warning))
    return float(found.checkpoint.step) if found.checkpoint else 0.0
