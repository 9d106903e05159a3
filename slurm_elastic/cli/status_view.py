"""One run's status for a terminal. Takes the document that --json prints, so that both always agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from slurm_elastic.slurm.hostlist import fold
from slurm_elastic.units import format_duration

_STYLES = {
    "training": "green",
    "prepared": "yellow",
    "submitted": "yellow",
    "finished": "green",
    "failed": "red",
    "waiting": "yellow",
    "draining": "yellow",
}


def view(shown: Mapping[str, Any], now: float) -> RenderableType:
    """Head, figures, jobs, problems: what is to be known first comes first."""
    parts: list[RenderableType] = [_head(shown)]
    if shown.get("stale"):
        age = format_duration(shown["supervisor_age_s"])
        parts.append(Text(f"supervisor last seen {age} ago: all below is as it was then", style="bold red"))
    if "jobs" in shown:
        parts.append(_figures(shown, now))
        parts += [_jobs(shown["jobs"], now)] if shown["jobs"] else []
        parts += [_problem(problem) for problem in shown["problems"]]
    return Group(*parts)


def _head(shown: Mapping[str, Any]) -> Text:
    state = shown["state"]
    head = Text.assemble((shown["run"], "bold"), "  ", (state, _STYLES.get(state, "cyan")))
    return head.append(f"  {shown['reason']}") if shown.get("reason") else head


def _figures(shown: Mapping[str, Any], now: float) -> RenderableType:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for name, text in _rows(shown, now):
        table.add_row(Text(name, style="dim"), Text(text))
    return table


def _rows(shown: Mapping[str, Any], now: float) -> list[tuple[str, str]]:
    in_place = ", changes in place" if shown.get("mode") == "live" else ""
    standby = f", generation {shown['standby']} warms up" if shown["standby"] else ""
    step = f"{shown['step']}" + (f" of {shown['total_steps']}" if shown["total_steps"] else "")
    rate = f", {shown['steps_per_s']:.3g} steps/s" if shown["steps_per_s"] else ""
    loss = f", loss {shown['loss']:.4f}" if shown["loss"] is not None else ""
    supervisor = shown["supervisor"]
    nodes = f"{shown['nodes']} train ({shown['workers']} workers), {shown['wanted_nodes']} wanted"
    limits = f"{shown['min_nodes']} to {shown['max_nodes']} allowed, {shown['pending_companions']} companions pending"
    return [
        ("directory", shown["run_dir"]),
        ("nodes", f"{nodes}, {limits}"),
        ("generation", f"{shown['generation']}{in_place}{standby}"),
        ("step", step + rate + loss),
        ("checkpoint", _checkpoint(shown["checkpoint"], now)),
        ("last change", _transition(shown["last_transition"], now)),
        ("supervisor", f"epoch {supervisor['epoch']} on {supervisor['host']}, pid {supervisor['pid']}"),
    ]


def _checkpoint(checkpoint: Mapping[str, Any] | None, now: float) -> str:
    if checkpoint is None:
        return "none yet"
    return f"step {checkpoint['step']}, {format_duration(max(0.0, now - checkpoint['time']))} ago"


def _transition(done: Mapping[str, Any] | None, now: float) -> str:
    if done is None:
        return "none yet"
    when = f", {format_duration(max(0.0, now - done['time']))} ago" if done["time"] else ""
    cost = f"stall {format_duration(done['stall_s'])}, {done['steps_lost']} steps done again"
    return f"{done['kind']} {done['from_workers']} → {done['to_workers']} workers: {done['reason']} ({cost}{when})"


def _jobs(jobs: Sequence[Mapping[str, Any]], now: float) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    for column in ("job", "role", "QOS", "status", "nodes", "train", "notice"):
        table.add_column(column, justify="right" if column in ("job", "train") else "left")
    for job in jobs:
        nodes = fold(job["nodes"]) if job["nodes"] else "-"
        cells = (job["job_id"], job["role"], job["qos"] or "-", job["status"], nodes, len(job["training"]))
        table.add_row(*(Text(str(cell)) for cell in cells), Text(_notice(job, now)))
    return table


def _notice(job: Mapping[str, Any], now: float) -> str:
    if job["notice_deadline"] is None:
        return f"{job['notice']}, soon" if job["notice"] else ""
    left = job["notice_deadline"] - now
    when = f"in {format_duration(left)}" if left > 0 else f"{format_duration(-left)} overdue"
    return f"{job['notice']}: goes {when}"


def _problem(problem: Mapping[str, Any]) -> Text:
    line = Text.assemble(("! ", "bold red"), problem["problem"])
    return line.append(f"\n  {problem['hint']}", style="dim") if problem["hint"] else line
