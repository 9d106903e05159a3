"""Linear assignment by several keys in order of importance, exactly: integers in, no rounding."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from slurm_elastic.migrate.boxes import Ints

Mask = npt.NDArray[np.bool_]
EXACT = 2**53  # below this a float64 holds every integer


class NoAssignment(Exception):
    """Not all rows can get an allowed column."""


def assign(keys: Sequence[Ints], allowed: Mask | None = None) -> Ints:
    """The column of each row, all different: least total of the first key, then of the second, and so on.

    Matrices are rows x columns with rows <= columns and no negative entries. Equal input gives equal output.
    """
    folded = fold(keys)
    if folded is None:
        keys = [_reduced(key) for key in keys]
        folded = fold(keys)
    return _one_by_one(keys, allowed) if folded is None else _solve(folded, allowed)


def _reduced(key: Ints) -> Ints:
    """The same choice with smaller numbers: less each row's least, over the common divisor."""
    if not key.size:
        return key
    low = key - key.min(axis=1, keepdims=True)
    return np.asarray(low // max(1, int(np.gcd.reduce(low, axis=None))))


def fold(keys: Sequence[Ints]) -> Ints | None:
    """One matrix whose least total has the least totals of all keys in order; None if it does not fit."""
    total, most = keys[-1], _most(keys[-1])
    for key in reversed(keys[:-1]):
        span = most + 1
        most = _most(key) * span + most
        if most >= EXACT:
            return None
        total = key * span + total
    return np.asarray(total) if most < EXACT else None


def _most(key: Ints) -> int:
    """No total is larger."""
    return int(key.max(axis=1, initial=0).sum()) if key.size else 0


def _solve(cost: Ints, allowed: Mask | None) -> Ints:
    from scipy.optimize import linear_sum_assignment

    real = cost.astype(np.float64)
    if allowed is not None:
        real[~allowed] = np.inf
    try:
        _, columns = linear_sum_assignment(real)
    except ValueError as infeasible:
        raise NoAssignment from infeasible
    return np.asarray(columns, np.int64)


def _one_by_one(keys: Sequence[Ints], allowed: Mask | None) -> Ints:
    """Solve for one key, then allow only what every optimum of it may use, and go on with the next.

    Rows are added until the matrix is square: then the optima are exactly the assignments on tight entries.
    """
    rows, columns = keys[0].shape
    mask = np.ones((columns, columns), bool)
    if allowed is not None:
        mask[:rows] = allowed
    chosen = np.arange(columns)
    for key in keys:
        square = np.zeros((columns, columns), np.int64)
        square[:rows] = key
        chosen = _solve(square, mask)
        mask &= _tight(square, chosen, mask)
    return chosen[:rows]


def _tight(cost: Ints, chosen: Ints, mask: Mask) -> Mask:
    """Entries without reduced cost, by potentials that are shortest distances in the residual graph."""
    n = len(cost)
    own = cost[np.arange(n), chosen]
    far = np.int64(2**62)
    step = np.where(mask, cost - own[:, None], far)
    price = np.zeros(n, np.int64)
    for _ in range(n + 1):
        reach = np.where(mask, step + price[chosen][:, None], far).min(axis=0)
        lower = np.minimum(price, reach)
        if (lower == price).all():
            return np.asarray(mask & (step + price[chosen][:, None] == price[None, :]))
        price = lower
    raise ArithmeticError("an assignment was not optimal: its costs are too large for exact arithmetic")
