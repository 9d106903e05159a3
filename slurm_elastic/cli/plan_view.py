"""What `slurm-elastic plan` prints of a plan, for people."""

from __future__ import annotations

from collections.abc import Iterator

import click
import numpy as np

from slurm_elastic.cli.show import as_table
from slurm_elastic.migrate.model import Plan
from slurm_elastic.migrate.planner import Outline, Planned, claims
from slurm_elastic.migrate.score import received
from slurm_elastic.migrate.transfers import bytes_of
from slurm_elastic.units import format_size

MOST_ROWS = 64


def show(planned: Planned, bandwidth: float) -> None:
    """One transition: a table of workers, one of node links, and the sums."""
    if planned.outline is None:
        _show_refusal(planned.plan)
        return
    rows = list(_workers(planned.outline))
    busiest = sorted(rows, key=lambda row: -max(row[4], row[5]))[:MOST_ROWS]
    shown = rows if len(rows) <= MOST_ROWS else busiest
    sizes = [(*row[:3], *map(format_size, row[3:])) for row in shown]
    as_table(("rank", "device", "node", "keeps", "receives", "sends"), sizes)
    if len(rows) > len(shown):
        click.echo(f"and {len(rows) - len(shown)} more with less to move")
    links = _links(planned.outline)
    if links:
        most = links if len(links) <= MOST_ROWS else sorted(links, key=lambda link: -max(link[1:]))[:MOST_ROWS]
        as_table(("node link", "in", "out"), [(node, format_size(a), format_size(b)) for node, a, b in most])
        if len(links) > len(most):
            click.echo(f"and {len(links) - len(most)} more with less traffic")
    for line in _sums(planned, links, rows, bandwidth):
        click.echo(line)


def _show_refusal(plan: Plan) -> None:
    if plan.status == "infeasible":
        click.echo("infeasible: fewer devices can host than the new layout has workers")
        return
    click.echo("unrecoverable: no device that is left holds")
    for piece in plan.lost[:MOST_ROWS]:
        click.echo(f"  {piece.tensor} offset {list(piece.offset)} size {list(piece.size)}")
    if len(plan.lost) > MOST_ROWS:
        click.echo(f"  and {len(plan.lost) - MOST_ROWS} more boxes")


Row = tuple[object, str, str, int, int, int]


def _workers(outline: Outline) -> Iterator[Row]:
    """(new rank, device, node, bytes kept, received, sent); then devices that only send."""
    s, host = outline.stock, outline.hosting.host
    devices = s.problem.devices
    need = s.need[s.rank_class] if len(s.rank_class) else s.need
    got, loads = received(s, host), outline.moves.loads
    for rank, d in enumerate(host.tolist()):
        yield rank, devices[d].id, devices[d].node, int(need[rank] - got[rank]), int(got[rank]), int(loads[d])
    for d in np.flatnonzero(loads).tolist():
        if d not in host:
            yield "-", devices[d].id, devices[d].node, 0, 0, int(loads[d])


def _links(outline: Outline) -> list[tuple[str, int, int]]:
    """Per node the bytes that come in from other nodes, and that go out."""
    problem, t = outline.stock.problem, outline.moves.travels
    if not len(t):
        return []
    size = bytes_of(outline.stock, t)
    source, target = problem.nodes[t.source], problem.nodes[t.target]
    crosses = source != target
    count = int(problem.nodes.max()) + 1
    into, out = np.zeros(count, np.int64), np.zeros(count, np.int64)
    np.add.at(into, target[crosses], size[crosses])
    np.add.at(out, source[crosses], size[crosses])
    names = {int(n): device.node for n, device in zip(problem.nodes, problem.devices, strict=True)}
    return [(names[n], int(into[n]), int(out[n])) for n in range(count) if into[n] or out[n]]


def _sums(planned: Planned, links: list[tuple[str, int, int]], rows: list[Row], bandwidth: float) -> Iterator[str]:
    outline = planned.outline
    assert outline is not None
    total = claims(outline)
    whole = sum(row[3] + row[4] for row in rows)
    yield (
        f"moves {format_size(total.total_bytes)} of {format_size(whole)} (lower bound {format_size(_bound(outline))}), "
        f"{format_size(total.inter_node_bytes)} of that between nodes"
    )
    if outline.hosting.value != outline.hosting.bound:
        yield f"not proven to be the best: objective {outline.hosting.value}, bound {outline.hosting.bound}"
    yield f"memory: at most {format_size(max(0, planned.peak_extra))} above the larger of before and after"
    busiest = max([0, *(max(row[4], row[5]) for row in rows), *(max(a, b) for _, a, b in links)])
    yield f"expected time: {busiest / bandwidth:.3g} s at {format_size(int(bandwidth))}/s per worker and per node link"


def _bound(outline: Outline) -> int:
    """Bytes that must enter devices under the chosen host map."""
    return int(received(outline.stock, outline.hosting.host).sum())
