"""What the demo shows at the end: every transition, the loss curve, and the comparison with the fixed-size run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from slurm_elastic.demo.ngram import Ngram
from slurm_elastic.demo.reference import Reference, final_loss
from slurm_elastic.demo.stage import Stage
from slurm_elastic.demo.text import load_text, split
from slurm_elastic.observe.events import read_events
from slurm_elastic.observe.ledger import LedgerLine, read_ledger
from slurm_elastic.observe.plot import curve
from slurm_elastic.observe.summary import Summary, report, summary_of
from slurm_elastic.rundir import replace_text


def summarise(stage: Stage, reference: Reference) -> tuple[Summary, tuple[LedgerLine, ...]]:
    """The finished run against the fixed-size one and the n-gram baseline; also its ledger."""
    training, held_out = split(load_text()[1])
    lines = tuple(read_ledger(stage.run.ledger))
    summary = summary_of(
        read_events(stage.run.events),
        lines,
        reference=reference.ledger(),
        fixed_size_final_loss=reference.final_loss(),
        ngram_loss=Ngram(training).loss(held_out),
    )
    return msgspec.structs.replace(summary, final_loss=final_loss(stage.run.path / "result.json")), lines


def write(summary: Summary, directory: Path) -> Path:
    """summary.json in the run directory."""
    path = directory / "summary.json"
    replace_text(path, msgspec.json.format(msgspec.json.encode(summary), indent=2).decode() + "\n")
    return path


def text_of(summary: Summary, lines: Sequence[LedgerLine]) -> str:
    """The whole closing as text for a terminal."""
    return f"{plot(lines)}\n\n{report(summary)}\n{verdict(summary)}"


def verdict(summary: Summary) -> str:
    """Whether what the demo claims holds, in words."""
    final, fixed, ngram = summary.final_loss, summary.fixed_size_final_loss, summary.ngram_loss
    if final is None or fixed is None or ngram is None:
        return "no final loss: the run did not finish"
    same = abs(final / fixed - 1)
    return (
        f"{same:.3%} from the run of fixed size{'' if same <= 0.01 else ' (MORE THAN 1 %)'}; "
        f"{'better' if final < ngram else 'NOT BETTER'} than the n-gram"
    )


def plot(lines: Sequence[LedgerLine]) -> str:
    """Training loss over steps."""
    losses = [line.loss for line in lines if line.loss is not None]
    return f"loss in nats per byte\n{curve(losses, label=f'{len(losses)} steps')}"
