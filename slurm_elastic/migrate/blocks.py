"""The assignment that saves most, cut into blocks: ranks and hosts that share nothing never meet.

Ranks that find no host with anything of theirs get the hosts that are left, in order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from slurm_elastic.migrate.assign import assign
from slurm_elastic.migrate.boxes import Ints
from slurm_elastic.migrate.stock import Stock

SMALL = 4_096  # pairs of a rank and a host; below this cutting costs more than it saves


def assign_in_blocks(s: Stock, gains: Sequence[Any], hosts: Ints | None = None) -> Ints:
    """Host (index into `problem.hosts`) of each rank: the largest total gain in the first key, then the second ..

    `gains`: sparse, rank class x host class, nothing negative. `hosts`: only these may be used.
    """
    ranks = s.problem.ranks
    out = np.full(ranks, -1)
    allowed = np.zeros(len(s.problem.hosts), bool)
    allowed[:] = hosts is None
    if hosts is not None:
        allowed[hosts] = True
    home = _homes(s, allowed)
    for rows, columns, dense in _blocks(s, gains):
        free = [mine[allowed[mine]] for mine in (s.hosts_of[e] for e in columns)]
        _match([s.ranks_of[c] for c in rows], free, dense, home, out)
    _rest(out, allowed, home)
    return out


def _homes(s: Stock, allowed: Any) -> Ints:
    """Per new rank the host of the old rank of its number, or -1."""
    position = np.full(len(s.problem.devices) + 1, -1)
    position[s.problem.hosts[allowed]] = np.flatnonzero(allowed)
    home = np.full(s.problem.ranks, -1)
    n = min(len(home), len(s.problem.previous))
    home[:n] = position[s.problem.previous[:n]]
    return home


def _blocks(s: Stock, gains: Sequence[Any]) -> Iterator[tuple[Ints, Ints, list[Ints]]]:
    """(rank classes, host classes, their dense gains) for each connected part with any gain."""
    from scipy.sparse import bmat
    from scipy.sparse.csgraph import connected_components

    rows, columns = len(s.ranks_of), len(s.hosts_of)
    if rows * columns <= SMALL and len(s.rank_class) * len(s.host_class) <= SMALL:
        if rows and columns and gains:
            yield np.arange(rows), np.arange(columns), [each.toarray() for each in gains]
        return
    any_gain = sum(gains[1:], start=gains[0]).tocoo() if gains else None
    if any_gain is None or not any_gain.nnz:
        return
    _, label = connected_components(bmat([[None, any_gain], [any_gain.T, None]], format="csr"), directed=False)
    by_label = np.argsort(label, kind="stable")
    local = np.zeros(rows + columns, np.int64)
    parts = np.split(by_label, np.flatnonzero(np.diff(label[by_label])) + 1)
    for part in parts:
        split = int(np.searchsorted(part, rows))
        local[part] = np.arange(len(part))
        local[part[split:]] -= split
    entries = []
    for each in gains:
        coo = each.tocoo()
        order = np.argsort(label[coo.row], kind="stable")
        bounds = np.searchsorted(label[coo.row][order], np.arange(len(parts) + 1))
        entries.append((local[coo.row[order]], local[rows + coo.col[order]], coo.data[order], bounds))
    for k, part in enumerate(parts):
        split = int(np.searchsorted(part, rows))
        if split == 0 or split == len(part):
            continue
        dense = []
        for row, column, value, bounds in entries:
            mine = slice(bounds[k], bounds[k + 1])
            block = np.zeros((split, len(part) - split), np.int64)
            np.add.at(block, (row[mine], column[mine]), value[mine])
            dense.append(block)
        yield part[:split], part[split:] - rows, dense


def _match(ranks_of: list[Ints], hosts_of: list[Ints], gains: list[Ints], home: Ints, out: Ints) -> None:
    """Within one block. Ranks may stay without a host only where ranks are more than hosts."""
    if _each_its_best(ranks_of, hosts_of, gains, home, out):
        return
    ranks, hosts = np.concatenate(ranks_of), np.concatenate(hosts_of)
    if not len(hosts):
        return
    rank_class = np.repeat(np.arange(len(ranks_of)), [len(r) for r in ranks_of])
    host_class = np.repeat(np.arange(len(hosts_of)), [len(h) for h in hosts_of])
    none = max(0, len(ranks) - len(hosts))
    strange = np.ones((len(ranks), len(hosts) + none), np.int64)
    strange[:, : len(hosts)] = home[ranks][:, None] != hosts[None, :]
    keys = []
    for each in gains:
        spare = np.pad(each, ((0, 0), (0, 1 if none else 0)))
        cost = spare.max(axis=1, keepdims=True) - spare
        keys.append(cost[np.ix_(rank_class, np.r_[host_class, np.full(none, each.shape[1])])])
    columns = assign([*keys, strange])
    real = np.flatnonzero(columns < len(hosts))
    useful = np.zeros(len(real), bool)
    for each in gains:
        useful |= each[rank_class[real], host_class[columns[real]]] > 0
    real = real[useful]
    out[ranks[real]] = hosts[columns[real]]


def _each_its_best(ranks_of: list[Ints], hosts_of: list[Ints], gains: list[Ints], home: Ints, out: Ints) -> bool:
    """Give every rank one of its best hosts if they suffice for all: then nothing can be better. At home first."""
    best = np.ones(gains[0].shape, bool)
    best[:, [k for k, hosts in enumerate(hosts_of) if not len(hosts)]] = False
    for each in gains:
        possible = np.where(best, each, -1)
        best &= possible == possible.max(axis=1, keepdims=True)
    if sum(map(len, ranks_of)) > sum(map(len, hosts_of)):
        return False
    where = {int(h): k for k, hosts in enumerate(hosts_of) for h in hosts}
    chosen: dict[int, int] = {}
    waiting: list[tuple[int, int]] = []
    used: set[int] = set()
    for c, ranks in enumerate(ranks_of):
        for rank in ranks.tolist():
            at = int(home[rank])
            if at in where and at not in used and best[c, where[at]]:
                chosen[rank] = at
                used.add(at)
            else:
                waiting.append((c, rank))
    free = [[h for h in reversed(hosts.tolist()) if h not in used] for hosts in hosts_of]
    for c, rank in waiting:
        option = next((k for k in np.flatnonzero(best[c]).tolist() if free[k]), None)
        if option is None:
            return False
        chosen[rank] = free[option].pop()
    for rank, host in chosen.items():
        out[rank] = host
    return True


def _rest(out: Ints, allowed: Any, home: Ints) -> None:
    taken = np.zeros(len(allowed), bool)
    taken[out[out >= 0]] = True
    for rank in np.flatnonzero(out < 0).tolist():
        if home[rank] >= 0 and not taken[home[rank]]:
            out[rank] = home[rank]
            taken[home[rank]] = True
    free = np.flatnonzero(allowed & ~taken)
    empty = np.flatnonzero(out < 0)
    out[empty] = free[: len(empty)]
