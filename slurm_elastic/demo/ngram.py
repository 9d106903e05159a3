"""The baseline that a language model must beat: an order-3 n-gram over bytes with interpolated back-off."""

from __future__ import annotations

import math
from collections import Counter, defaultdict

ORDER = 3  # bytes of context
BYTES = 256


class Ngram:
    """Counts of every context up to `ORDER` bytes, interpolated by Witten and Bell's rule.

    Source: I. H. Witten, T. C. Bell, "The zero-frequency problem", IEEE Trans. Inf. Theory 37(4), 1991: a context
    seen n times with d distinct successors trusts its own counts with weight n / (n + d).
    """

    def __init__(self, text: bytes) -> None:
        self._counts: list[dict[bytes, Counter[int]]] = []
        for order in range(ORDER + 1):
            table: dict[bytes, Counter[int]] = defaultdict(Counter)
            for at in range(order, len(text)):
                table[text[at - order : at]][text[at]] += 1
            self._counts.append(dict(table))
        self._totals = [{context: c.total() for context, c in table.items()} for table in self._counts]

    def probability(self, context: bytes, byte: int) -> float:
        """P(byte | last ORDER bytes of context), never 0."""
        p = 1 / BYTES
        for order in range(ORDER + 1):
            if order > len(context):
                break
            key = context[len(context) - order :]
            counts = self._counts[order].get(key)
            if counts is None:
                break
            seen = self._totals[order][key]
            p = (counts[byte] + len(counts) * p) / (seen + len(counts))
        return p

    def loss(self, text: bytes) -> float:
        """Mean negative log-likelihood in nats per byte."""
        total = sum(-math.log(self.probability(text[max(0, at - ORDER) : at], text[at])) for at in range(len(text)))
        return total / len(text)
