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
from slurm_elastic.observe.summary import Summary, report, summary_of
from slurm_elastic.rundir import replace_text

PLOT_WIDTH = 72
PLOT_HEIGHT = 12


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
    """Training loss over steps, and under it the number of workers, in plain characters."""
    known = [line for line in lines if line.loss is not None]
    if len(known) < 2:
        return "(too few steps for a plot)"
    columns = [_column(known, at) for at in range(PLOT_WIDTH)]
    losses = [sum(line.loss or 0.0 for line in column) / len(column) for column in columns]
    low, high = min(losses), max(losses)
    scale = (PLOT_HEIGHT - 1) / ((high - low) or 1.0)
    heights = [round((loss - low) * scale) for loss in losses]
    rows = []
    for level in range(PLOT_HEIGHT - 1, -1, -1):
        mark = f"{low + level / scale:5.2f} |" if level % 3 == 0 else "      |"
        rows.append(mark + "".join("*" if height == level else " " for height in heights).rstrip())
    workers = "".join(str(column[-1].world) if column[-1].world < 10 else "+" for column in columns)
    axis = f"      +{'-' * PLOT_WIDTH}\nworkers {workers[1:]}  ({known[-1].step} steps)"
    return "\n".join(["loss in nats per byte", *rows, axis])


def _column(lines: Sequence[LedgerLine], at: int) -> Sequence[LedgerLine]:
    start = at * len(lines) // PLOT_WIDTH
    return lines[start : max(start + 1, (at + 1) * len(lines) // PLOT_WIDTH)]
