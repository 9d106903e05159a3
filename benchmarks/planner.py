"""How long the planner takes, and how much its plans move: `python -m benchmarks.planner [--json] [--repeat N]`.

Speed: host map and transfers of grids (PP x TP x DP) and sharded data parallelism, best and median of several runs.
Volume: our one optimisation of movement and placement against three stages, as published: pair, then defragment, then
coalesce (an independent Hungarian pairing, occupancy and efficiency defragmentation; what a device sends and gets back
counts once). Both obey the same rule of placement: ranks of a group on one node where groups are given, else as few
nodes as possible.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterable, Iterator

import numpy as np
from scipy.optimize import linear_sum_assignment

from slurm_elastic.migrate.boxes import Ints, ints, table
from slurm_elastic.migrate.model import Box, Device, Plan, Tensor
from slurm_elastic.migrate.planner import Outline, outline
from slurm_elastic.migrate.problem import Key, Pattern, Problem, problem
from slurm_elastic.migrate.score import measure
from slurm_elastic.migrate.stock import Stock, stock

BYTES: tuple[Key, ...] = ((("bytes", 1),),)
SPAN: tuple[Key, ...] = ((("span", 1),), *BYTES)
NODES: tuple[Key, ...] = ((("nodes", 1),), *BYTES)
KINDS = ((4096, 0), (4096, 1), (12288, 0), (1024, None), (16384, 1))  # (rows and columns, cut dimension or None)
Row = tuple[int, list[int], list[int], list[int]]  # pattern, lo, hi, owners
Grid = tuple[int, int, int]  # PP, TP, DP; ranks of a TP group are neighbours, then DP, then PP


def grid_problem(old: Grid, new: Grid, tensors: int, per_node: int, objective: tuple[Key, ...] = BYTES) -> Problem:
    """`tensors` matrices and vectors, bf16, in equal stages; both grids start at device 0."""
    size = [pp * tp * dp for pp, tp, dp in (old, new)]
    groups: dict[tuple[int, int, int], list[str]] = {}
    for k in range(tensors):
        stages = k * old[0] // tensors, k * new[0] // tensors
        groups.setdefault((k % len(KINDS), *stages), []).append(f"t{k:05d}")
    patterns: list[Pattern] = []
    before: list[Row] = []
    after: list[Row] = []
    for number, ((kind, stage, next_stage), names) in enumerate(groups.items()):
        rows, axis = KINDS[kind]
        shape = (rows,) if axis is None else (rows, rows)
        patterns.append(Pattern(tuple(names), shape, 2))
        before += list(_cuts(number, shape, axis, old, stage))
        after += list(_cuts(number, shape, axis, new, next_stage))
    return Problem(
        tuple(patterns),
        _devices(max(size), per_node),
        size[1],
        table(before, 2),
        table(after, 2),
        ints(range(size[0])),
        tuple(tuple(range(g, g + new[1])) for g in range(0, size[1], new[1])),
        objective,
    )


def _devices(count: int, per_node: int) -> tuple[Device, ...]:
    return tuple(Device(f"d{k}", f"n{k // per_node}") for k in range(count))


def _cuts(pattern: int, shape: tuple[int, ...], axis: int | None, grid: Grid, stage: int) -> Iterator[Row]:
    _, tp, dp = grid
    first = stage * tp * dp
    if axis is None:
        yield pattern, [0] * len(shape), list(shape), list(range(first, first + tp * dp))
        return
    for t in range(tp):
        lo, hi = [0] * len(shape), list(shape)
        lo[axis], hi[axis] = shape[axis] * t // tp, shape[axis] * (t + 1) // tp
        yield pattern, lo, hi, [first + d * tp + t for d in range(dp)]


def sharded_problem(old: int, new: int, tensors: int, per_node: int) -> Problem:
    """FSDP: every tensor cut in rows over all ranks; 12 different shapes."""
    shapes = [(1000 + 3001 * k, 4096) for k in range(12)]
    patterns: list[Pattern] = []
    before: list[Row] = []
    after: list[Row] = []
    for number, shape in enumerate(shapes):
        names = tuple(f"t{k:05d}" for k in range(number, tensors, len(shapes)))
        patterns.append(Pattern(names, shape, 2))
        for ranks, rows in ((old, before), (new, after)):
            step = -(-shape[0] // ranks)
            for r in range(-(-shape[0] // step)):
                rows.append((number, [r * step, 0], [min(shape[0], (r + 1) * step), shape[1]], [r]))
    devices = _devices(max(old, new), per_node)
    return Problem(tuple(patterns), devices, new, table(before, 2), table(after, 2), ints(range(old)))


def measured(make: Problem, repeat: int) -> tuple[float, float, float]:
    """Milliseconds of host map and transfers: best and median by the clock, best by CPU time (for a busy machine)."""
    times, cpu = [], []
    for _ in range(repeat):
        began, used = time.perf_counter(), time.process_time()
        found = outline(make)
        times.append(1000 * (time.perf_counter() - began))
        cpu.append(1000 * (time.process_time() - used))
        assert not isinstance(found, Plan)
    return min(times), statistics.median(times), min(cpu)


SPEED: tuple[tuple[str, Callable[[], Problem], float | None], ...] = (
    ("PP8 -> PP16, 148 tensors", lambda: grid_problem((8, 1, 1), (16, 1, 1), 148, 4), 7.5),
    ("PP4 TP2 -> PP6 TP4, 180 tensors", lambda: grid_problem((4, 2, 1), (6, 4, 1), 180, 4), 7.5),
    ("PP4 TP2 DP3 -> PP4 TP8, 180 tensors", lambda: grid_problem((4, 2, 3), (4, 8, 1), 180, 4), 7.5),
    ("PP8 TP8 -> PP4 TP8, 400 tensors", lambda: grid_problem((8, 8, 1), (4, 8, 1), 400, 8), 7.5),
    ("PP8 TP4 -> PP16 TP4, 400 tensors", lambda: grid_problem((8, 4, 1), (16, 4, 1), 400, 8), 7.5),
    ("PP16 TP4 -> PP8 TP8, 400 tensors", lambda: grid_problem((16, 4, 1), (8, 8, 1), 400, 8), 7.5),
    ("PP8 TP8 DP16 -> DP15, 1,000 tensors", lambda: grid_problem((8, 8, 16), (8, 8, 15), 1000, 8), 150),
    ("PP8 TP8 DP8 -> DP16, 1,000 tensors", lambda: grid_problem((8, 8, 8), (8, 8, 16), 1000, 8), 150),
    ("PP16 TP8 DP8 -> PP8 TP8 DP14, 1,000 tensors", lambda: grid_problem((16, 8, 8), (8, 8, 14), 1000, 8), 150),
    ("PP16 TP8 DP8 -> PP16 TP4 DP16, 1,000 tensors", lambda: grid_problem((16, 8, 8), (16, 4, 16), 1000, 8), 150),
    ("PP8 TP8 DP32 -> DP30, 600 tensors", lambda: grid_problem((8, 8, 32), (8, 8, 30), 600, 8), 250),
    ("PP16 TP8 DP16 -> PP8 TP8 DP31, 600 tensors", lambda: grid_problem((16, 8, 16), (8, 8, 31), 600, 8), 250),
    ("the same, TP groups on nodes", lambda: grid_problem((16, 8, 16), (8, 8, 31), 600, 8, SPAN), None),
    ("DP2048 -> DP1920, 600 tensors", lambda: grid_problem((1, 1, 2048), (1, 1, 1920), 600, 8), 250),
    ("FSDP 1024 -> 960, 1,000 tensors", lambda: sharded_problem(1024, 960, 1000, 8), None),
    ("FSDP 2048 -> 1920, 600 tensors", lambda: sharded_problem(2048, 1920, 600, 8), None),
)


def paper_hosts(s: Stock) -> Ints:
    """Device of each new rank after pairing and defragmentation as published, indices repaired."""
    p = s.problem
    cost = s.per_rank(s.cost)
    held = np.unique(p.old.owner)
    old = [k for k, d in enumerate(p.hosts.tolist()) if d in set(held.tolist())]
    role: list[int | None] = [None] * len(p.hosts)
    rows, columns = linear_sum_assignment(cost[:, old])
    for rank, column in zip(rows.tolist(), columns.tolist(), strict=True):
        role[old[column]] = rank
    placed = {rank for rank in role if rank is not None}
    free = iter([k for k, rank in enumerate(role) if rank is None])
    for rank in range(p.ranks):
        if rank not in placed:
            role[next(free)] = rank
    idle = [k for k, rank in enumerate(role) if rank is None]
    busy = [k for k in reversed(range(len(role))) if role[k] is not None]
    for a, b in zip(idle, busy, strict=False):
        if a >= b:
            break
        role[a], role[b] = role[b], None
    if len({name for key in p.objective for name, _ in key} & {"span"}):
        role = [k if k < p.ranks else None for k in range(len(role))]
    where = {rank: k for k, rank in enumerate(role) if rank is not None}
    return p.hosts[ints(where[rank] for rank in range(p.ranks))]


VOLUME: tuple[tuple[str, Callable[[], Problem]], ...] = (
    ("PP8 -> PP4, 2 nodes of 4, one freed", lambda: grid_problem((8, 1, 1), (4, 1, 1), 120, 4, NODES)),
    ("PP16 -> PP8, 4 nodes of 4, two freed", lambda: grid_problem((16, 1, 1), (8, 1, 1), 160, 4, NODES)),
    ("PP4 TP2 -> PP6 TP4, nodes of 4", lambda: grid_problem((4, 2, 1), (6, 4, 1), 60, 4, SPAN)),
    ("PP2 TP4 -> PP2 TP8, nodes of 8", lambda: grid_problem((2, 4, 1), (2, 8, 1), 40, 8, SPAN)),
    ("PP8 TP2 -> PP8 TP4, nodes of 4", lambda: grid_problem((8, 2, 1), (8, 4, 1), 80, 4, SPAN)),
    ("PP4 TP2 DP3 -> PP4 TP8, nodes of 8", lambda: grid_problem((4, 2, 3), (4, 8, 1), 180, 8, SPAN)),
    ("PP4 TP4 DP4 -> PP4 TP4 DP2, nodes of 8", lambda: grid_problem((4, 4, 4), (4, 4, 2), 80, 8, NODES)),
)


def volumes() -> Iterator[dict[str, object]]:
    for name, make in VOLUME:
        p = make()
        found = outline(p)
        assert isinstance(found, Outline)
        s = stock(p)
        rule = "span" if any(key == (("span", 1),) for key in p.objective) else "nodes"
        staged = paper_hosts(s)
        theirs = {name: measure(s, staged, name) for name in (rule, "bytes")}
        ours = {name: measure(s, found.hosting.host, name) for name in (rule, "bytes")}
        assert (ours[rule], ours["bytes"]) <= (theirs[rule], theirs["bytes"]), "a joint optimum is never worse"
        ratio = theirs["bytes"] / ours["bytes"] if ours["bytes"] else None
        yield {"case": name, "ours": ours["bytes"], "staged": theirs["bytes"], "ratio": ratio, "rule": rule} | {
            f"{rule}_ours": ours[rule],
            f"{rule}_staged": theirs[rule],
        }


def grouping_ms(ranks: int, tensors: int) -> float:
    """Milliseconds to group plain holdings of an FSDP layout, box by box, into a problem."""
    names = {f"t{k}": Tensor((ranks * 4, 8), "float32") for k in range(tensors)}
    holds = [{name: [Box((4 * r, 0), (4, 8))] for name in names} for r in range(ranks)]
    began = time.perf_counter()
    problem(names, _devices(ranks, 8), list(enumerate(holds)), holds)
    return 1000 * (time.perf_counter() - began)


def speeds(repeat: int) -> Iterable[dict[str, object]]:
    measured(SPEED[0][1](), 3)  # imports
    for name, make, target in SPEED:
        best, median, cpu = (round(each, 2) for each in measured(make(), repeat))
        yield {"case": name, "best_ms": best, "median_ms": median, "cpu_ms": cpu, "target_ms": target}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--repeat", type=int, default=7)
    options = parser.parse_args()
    speed, volume = list(speeds(options.repeat)), list(volumes())
    grouping = round(grouping_ms(256, 200))
    if options.json:
        print(json.dumps({"speed": speed, "volume": volume, "grouping_51200_boxes_ms": grouping}))
        return
    print(f"{'host map and transfers, ms':46} {'best':>8} {'median':>8} {'CPU':>8} {'target':>6}")
    for row in speed:
        print(
            f"{row['case']:46} {row['best_ms']:8} {row['median_ms']:8} {row['cpu_ms']:8} {row['target_ms'] or '-':>6}"
        )
    print(f"{'bytes moved':42} {'ours':>12} {'staged':>12} {'ratio':>6}")
    for row in volume:
        ratio = f"{row['ratio']:.2f}" if isinstance(row["ratio"], float) else "-"
        print(f"{row['case']:42} {row['ours']:>12} {row['staged']:>12} {ratio:>6}")
    print(f"grouping 256 ranks x 200 tensors, box by box, on both sides: {grouping} ms")


if __name__ == "__main__":
    main()
