"""Host maps that count nodes: ranks of a group together (span), few nodes in use (nodes).

Small problems are solved exactly as an integer program over classes of ranks and hosts; large ones by slots.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from slurm_elastic.migrate.allowed import best_allowed
from slurm_elastic.migrate.boxes import Ints
from slurm_elastic.migrate.problem import Key
from slurm_elastic.migrate.score import fewest, values
from slurm_elastic.migrate.slots import filled_nodes, good_maps
from slurm_elastic.migrate.stock import Stock, members

LARGEST_NUMBER = 1e7  # in what the solver sees
LARGEST_PROGRAM = 4_096  # choices of a rank class and a host class
MOST_NODES = 20_000  # of the solver's search tree: a limit that is the same on every machine


def best_places(s: Stock, keys: tuple[Key, ...]) -> tuple[Ints, bool]:
    """(device per rank, whether it is proven to be the best)."""
    exact = filled_nodes(s, keys)
    if exact is not None:
        return exact, True
    maps = []
    program = Program(s, keys)
    if program.rows * program.columns <= LARGEST_PROGRAM:
        solved = program.solve()
        if solved is not None and solved[1]:
            return solved
        maps += [solved[0]] if solved is not None else []
    maps += good_maps(s, keys)
    return min(maps, key=lambda host: values(s, host, keys)), False


@dataclass
class Program:
    """x[c, e]: how many ranks of class c run on hosts of class e; y[v]: node v is used; z[g, v]: group g touches it."""

    s: Stock
    keys: tuple[Key, ...]

    def __post_init__(self) -> None:
        names = {name for key in self.keys for name, _ in key}
        self.groups = self.s.problem.groups if "span" in names else ()
        self.ranks_of = self._rank_classes(single="max_recv" in names)
        self.nodes = np.unique(self.s.class_node)
        self.rows, self.columns = len(self.ranks_of), len(self.s.hosts_of)
        self.free = np.array([len(h) for h in self.s.hosts_of])
        self.crowd = np.array([len(r) for r in self.ranks_of])
        self.kind = self.s.rank_class[[int(r[0]) for r in self.ranks_of]]
        self.limits: list[tuple[list[tuple[int, float]], float, float]] = []

    def _rank_classes(self, *, single: bool) -> list[Ints]:
        """Ranks that need the same and are in the same group; with `single`, each for itself."""
        problem = self.s.problem
        if single:
            return [np.array([r]) for r in range(problem.ranks)]
        group = np.zeros(problem.ranks, np.int64)
        for number, ranks in enumerate(self.groups, start=1):
            group[list(ranks)] = number
        both = self.s.rank_class * (len(self.groups) + 1) + group
        return members(np.unique(both, return_inverse=True)[1])

    # -- variables

    def x(self, c: int, e: int) -> int:
        return c * self.columns + e

    def y(self, v: int) -> int:
        return self.rows * self.columns + v

    def z(self, g: int, v: int) -> int:
        return self.rows * self.columns + len(self.nodes) * (1 + g) + v

    @property
    def size(self) -> int:
        return self.z(len(self.groups), 0) + 1  # the last one is max_recv over `top`

    @cached_property
    def top(self) -> int:
        return max(1, int(self.cost.max(initial=0)))

    @cached_property
    def cost(self) -> Ints:
        return self.s.cost[self.kind]

    def limit(self, entries: list[tuple[int, float]], low: float, high: float) -> None:
        self.limits.append((entries, low, high))

    def _build(self) -> None:
        every = range(self.columns)
        for c in range(self.rows):
            self.limit([(self.x(c, e), 1) for e in every], self.crowd[c], self.crowd[c])
        for v, node in enumerate(self.nodes):
            mine = [e for e in every if self.s.class_node[e] == node]
            room = int(self.free[mine].sum())
            for e in mine:
                column = [(self.x(c, e), 1.0) for c in range(self.rows)]
                self.limit([*column, (self.y(v), -float(self.free[e]))], -np.inf, 0)
            for g, group in enumerate(self.groups):
                for c in range(self.rows):
                    if int(self.ranks_of[c][0]) in group:
                        most = float(min(self.crowd[c], room))
                        self.limit([*((self.x(c, e), 1.0) for e in mine), (self.z(g, v), -most)], -np.inf, 0)
        self._at_least()
        if any(name == "max_recv" for key in self.keys for name, _ in key):
            for c in range(self.rows):
                row = [(self.x(c, e), float(self.cost[c, e]) / self.top) for e in every]
                self.limit([*row, (self.size - 1, -1.0)], -np.inf, 0)

    def _at_least(self) -> None:
        """So many nodes are needed in any case; the solver need not find that out."""
        rooms = [int(self.free[self.s.class_node == node].sum()) for node in self.nodes]
        every = range(len(self.nodes))
        self.limit([(self.y(v), 1) for v in every], fewest(rooms, self.s.problem.ranks), np.inf)
        for g, group in enumerate(self.groups):
            self.limit([(self.z(g, v), 1) for v in every], fewest(rooms, len(group)), np.inf)

    def _coefficients(self, key: Key) -> npt.NDArray[np.float64]:
        out = np.zeros(self.size)
        cells = self.rows * self.columns
        for name, weight in key:
            if name == "bytes":
                out[:cells] += weight * self.cost.ravel()
            elif name == "inter":
                out[:cells] += weight * self.s.inter[self.kind].ravel()
            elif name == "nodes":
                out[cells : cells + len(self.nodes)] += weight
            elif name == "span":
                out[cells + len(self.nodes) : self.size - 1] += weight
            else:
                out[self.size - 1] += weight * self.top
        return out

    def solve(self) -> tuple[Ints, bool] | None:
        """One key after the other, each optimum fixed for the next. None if the solver found nothing to go by.

        The solver works with rounded numbers. So only the choice of nodes is taken from it; who goes where on these
        is solved exactly.
        """
        self._build()
        proven, host = True, None
        for number, key in enumerate(self.keys, start=1):
            goal = self._coefficients(key)
            unit = self._unit(goal, key)
            scale = unit * max(1.0, goal.max() / unit / LARGEST_NUMBER)
            result = self._run(goal / scale)
            found = None if result.x is None else self._hosts(result.x)
            if found is None:
                return None if host is None else (host, False)
            host = self._polished(found, self.keys[:number])
            (value,) = values(self.s, host, (key,))
            proven &= result.status == 0 and value - result.mip_dual_bound * scale < unit * (1 - 1e-6)
            most = value / scale + max(0.5 * unit / scale, 1e-9 * value / scale)
            self.limit([(k, v / scale) for k, v in enumerate(goal.tolist()) if v], -np.inf, most)
        return None if host is None else (host, proven)

    def _unit(self, goal: npt.NDArray[np.float64], key: Key) -> int:
        """All values of a key are multiples of this."""
        busiest = dict(key).get("max_recv", 0) * math.gcd(*self.cost.ravel().tolist())
        return math.gcd(busiest, *(int(v) for v in goal[:-1])) or 1

    def _polished(self, host: Ints, keys: tuple[Key, ...]) -> Ints:
        """The best of all maps that use no other nodes, in all and for each group."""
        s = self.s
        names = {name for key in keys for name, _ in key}
        at, node = s.problem.nodes[host], s.problem.nodes[s.problem.hosts]
        allowed = np.ones((s.problem.ranks, len(s.problem.hosts)), bool)
        if "nodes" in names:
            allowed[:] = np.isin(node, at)
        for group in s.problem.groups if "span" in names else ():
            allowed[list(group)] &= np.isin(node, at[list(group)])
        plain = (tuple(term for term in key if term[0] not in ("nodes", "span")) for key in keys)
        return best_allowed(s, tuple(key for key in plain if key), allowed)

    def _run(self, goal: npt.NDArray[np.float64]) -> Any:
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import csr_matrix

        row = [r for r, (entries, _, _) in enumerate(self.limits) for _ in entries]
        column = [k for entries, _, _ in self.limits for k, _ in entries]
        value = [v for entries, _, _ in self.limits for _, v in entries]
        matrix = csr_matrix((value, (row, column)), shape=(len(self.limits), self.size))
        most = np.ones(self.size)
        cells = self.rows * self.columns
        most[:cells] = np.minimum(self.crowd[:, None], self.free[None, :]).ravel()
        bounds = [limit[1] for limit in self.limits], [limit[2] for limit in self.limits]
        return milp(
            goal,
            constraints=LinearConstraint(matrix, *bounds),
            integrality=np.append(np.ones(self.size - 1), 0),
            bounds=Bounds(0, most),
            options={"mip_rel_gap": 0.0, "node_limit": MOST_NODES},
        )

    def _hosts(self, found: npt.NDArray[np.float64]) -> Ints | None:
        """Devices of all ranks for a solution; None if rounding breaks it."""
        s = self.s
        count = np.rint(found[: self.rows * self.columns]).astype(np.int64).reshape(self.rows, self.columns)
        if (count.sum(axis=1) != self.crowd).any() or (count.sum(axis=0) > self.free).any() or (count < 0).any():
            return None
        out = np.full(s.problem.ranks, -1)
        free = [iter(s.problem.hosts[hosts].tolist()) for hosts in s.hosts_of]
        for c, ranks in enumerate(self.ranks_of):
            classes = np.repeat(np.arange(self.columns), count[c]).tolist()
            for rank, e in zip(ranks.tolist(), classes, strict=True):
                out[rank] = next(free[e])
        return out
