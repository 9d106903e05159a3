from __future__ import annotations

from slurm_elastic.observe.events import Happening
from slurm_elastic.observe.ledger import LedgerLine
from slurm_elastic.observe.plot import curve
from slurm_elastic.observe.summary import report, summary_of


def line(step: int, generation: int, sha: str = "") -> LedgerLine:
    return LedgerLine(
        step=step, generation=generation, world=2, samples=8, samples_sha256=sha or f"sha{step}", loss=3.0 / step
    )


def transition(generation: int, kind: str, lost: int = 0) -> Happening:
    figures = {"transition": kind, "mode": "relaunch", "from_workers": 2, "to_workers": 3, "stall_s": 1.25}
    return Happening(float(generation), "transition", generation, f"why {kind}", {**figures, "steps_lost": lost})


LINES = [line(1, 1), line(2, 1), line(3, 2), line(4, 2), line(5, 3)]
SAVED = Happening(1.5, "checkpoint", 1, "")
EVENTS = [transition(1, "start"), SAVED, transition(2, "grow"), transition(3, "restart", 1)]


def test_a_summary_has_the_transitions_of_the_run_and_what_they_cost() -> None:
    summary = summary_of(EVENTS, LINES, reference=LINES, fixed_size_final_loss=0.6, ngram_loss=1.9)

    assert [(t.kind, t.reason, t.from_workers, t.to_workers, t.steps_lost) for t in summary.transitions] == [
        ("grow", "why grow", 2, 3, 0),
        ("restart", "why restart", 2, 3, 1),
    ]
    assert (summary.steps, summary.generations, summary.stall_s, summary.steps_lost) == (5, 3, 2.5, 1)
    assert (summary.samples_lost, summary.samples_repeated, summary.final_loss) == (0, 0, 0.6)


def test_lost_and_repeated_samples_are_charged_to_the_transition_they_happened_in() -> None:
    broken = [line(1, 1), line(2, 1), line(4, 2, "sha3"), line(5, 3)]

    grow, restart = summary_of(EVENTS, broken, reference=LINES).transitions

    assert (grow.samples_lost, grow.samples_repeated) == (16, 8)
    assert (restart.samples_lost, restart.samples_repeated) == (0, 0)


def test_a_report_names_every_transition_and_the_losses() -> None:
    text = report(summary_of(EVENTS, LINES, ngram_loss=1.9))

    assert "why grow" in text and "why restart" in text
    assert "5 steps in 3 generations, 2 transitions" in text
    assert "order-3 n-gram   1.9000" in text and "fixed size" not in text


def test_a_run_without_steps_has_a_summary_too() -> None:
    assert summary_of([], []).final_loss is None


def test_a_curve_fits_its_width_and_shows_its_range() -> None:
    rows = curve([4.0 - 0.01 * n for n in range(300)], width=60, height=5, label="step").splitlines()

    assert len(rows) == 6
    assert rows[0].lstrip().startswith("3.98") and rows[4].lstrip().startswith("1.03")
    assert all(len(row) <= 70 + len("  step") for row in rows)
    assert curve([]) == "" and curve([1.0, 1.0]) != ""
