"""A finished run in figures: its transitions, what they cost, and whether any sample was lost. For summary.json."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from slurm_elastic.observe.events import Happening
from slurm_elastic.observe.ledger import LedgerLine, audit

KINDS = frozenset({"shrink", "grow", "replace", "restart"})


class Transition(msgspec.Struct, frozen=True, kw_only=True):
    """One change of the membership, with what it cost. `samples_*` are 0 unless something went wrong."""

    time: float
    generation: int  # the one it led to
    kind: str
    mode: str
    reason: str
    from_workers: int
    to_workers: int
    stall_s: float
    steps_lost: int  # done again
    planned: bool
    samples_lost: int = 0
    samples_repeated: int = 0


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    transitions: tuple[Transition, ...]
    steps: int
    generations: int
    samples_lost: int
    samples_repeated: int
    steps_lost: int
    stall_s: float
    final_loss: float | None
    fixed_size_final_loss: float | None = None
    ngram_loss: float | None = None


def transitions(events: Iterable[Happening]) -> tuple[Transition, ...]:
    """The transitions among `events`, in order: one per generation, the last record counts."""
    found: dict[int, Transition] = {}
    for event in events:
        figures = event.figures
        if event.kind == "transition" and figures.get("transition") in KINDS:
            found[event.generation] = Transition(
                time=event.time,
                generation=event.generation,
                kind=str(figures["transition"]),
                mode=str(figures.get("mode", "relaunch")),
                reason=event.reason,
                from_workers=int(figures.get("from_workers", 0)),
                to_workers=int(figures.get("to_workers", 0)),
                stall_s=float(figures.get("stall_s", 0.0)),
                steps_lost=int(figures.get("steps_lost", 0)),
                planned=bool(figures.get("planned", True)),
            )
    return tuple(found[generation] for generation in sorted(found))


def summary_of(
    events: Iterable[Happening],
    lines: Sequence[LedgerLine],
    *,
    reference: Sequence[LedgerLine] = (),
    fixed_size_final_loss: float | None = None,
    ngram_loss: float | None = None,
) -> Summary:
    """`lines`: the run's ledger; `reference`: that of the same training at a fixed size, if there is one."""
    by_step = {line.step: line for line in reference}
    whole = audit(lines, by_step)
    rows = tuple(_with_samples(row, lines, by_step) for row in transitions(events))
    losses = [line.loss for line in lines if line.loss is not None]
    return Summary(
        transitions=rows,
        steps=whole.steps,
        generations=len({line.generation for line in lines}),
        samples_lost=whole.samples_lost,
        samples_repeated=whole.samples_repeated,
        steps_lost=sum(row.steps_lost for row in rows),
        stall_s=round(sum(row.stall_s for row in rows), 3),
        final_loss=losses[-1] if losses else None,
        fixed_size_final_loss=fixed_size_final_loss,
        ngram_loss=ngram_loss,
    )


def report(summary: Summary) -> str:
    """The summary as text for a terminal."""
    rows = [
        f"{row.kind:8} {row.from_workers:>3} -> {row.to_workers:<3} {row.stall_s:7.2f} s  "
        f"{row.steps_lost:>5} steps lost  {row.samples_lost + row.samples_repeated:>3} samples lost or repeated  "
        f"{row.reason}"
        for row in summary.transitions
    ]
    counts = f"{summary.steps} steps in {summary.generations} generations, {len(rows)} transitions"
    samples = f"samples lost: {summary.samples_lost}, repeated: {summary.samples_repeated}"
    end = [
        f"{counts}; training stood still for {summary.stall_s:.1f} s in all",
        f"{samples}; steps done again: {summary.steps_lost}",
    ]
    for name, loss in (
        ("final loss", summary.final_loss),
        ("at a fixed size", summary.fixed_size_final_loss),
        ("order-3 n-gram", summary.ngram_loss),
    ):
        if loss is not None:
            end.append(f"{name:16} {loss:.4f}")
    return "\n".join([*rows, *end])


def _with_samples(row: Transition, lines: Sequence[LedgerLine], reference: Mapping[int, LedgerLine]) -> Transition:
    """Charge a transition with what is wrong from the last step before it to the last of its generation."""
    own = [line for line in lines if line.generation == row.generation]
    if not own:
        return row
    before = max((line.step for line in lines if line.step < own[0].step), default=0)
    found = audit(own, reference, after=before)
    return msgspec.structs.replace(row, samples_lost=found.samples_lost, samples_repeated=found.samples_repeated)
