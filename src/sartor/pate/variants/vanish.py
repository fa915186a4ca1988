"""Vanish: teachers hold people of one budget and rest by it, and the same number of them votes on every query.

Votes are scaled to the size of the ensemble, so a participant weighs teachers over participants: the paper's proposition 4 has 1 there.
"""

from __future__ import annotations

import numpy as np

from sartor.pate.variants.pools import pools
from sartor.pate.variants.registry import Array, Counts, Request, Treatment, register

_POWERS = np.linspace(0.25, 4.0, 76)


@register("vanish", apart=True, rests=True)
def vanish(asked: Request) -> Treatment:
    """How many teachers of each pool take part in a query: a power of the budgets, with `tune` the one that lasts longest."""
    found = pools(asked)
    best: tuple[float, Counts] | None = None
    for power in _POWERS if asked.tune else (asked.power,):
        active = np.clip(np.round((found.strictest / found.strictest.max()) ** power * found.size), 1, found.size).astype(np.int64)
        # until the first teacher is out: each takes part in about active / size of the queries, rounded up, at teachers / participants
        lasts = _longest(found.strictest**2, active / found.size, asked.teachers / int(active.sum()), asked.price)
        best = (lasts, active) if best is None or lasts > best[0] else best
    assert best is not None
    active = best[1]
    return Treatment(
        asked.teachers,
        duplicates=1,
        begin=found.begin,
        end=found.end,
        weight=asked.teachers / int(active.sum()),
        taking_part=active[found.of_group],
    )


def _longest(allowance: Array, frequency: Array, weight: float, price: float) -> float:
    """How many answered queries a schedule lasts: a teacher that can pay for n of them takes part in one more at worst."""
    payable = np.floor(allowance / (weight**2 * price))
    return float(np.min(np.where(frequency == 1, payable, (payable - 1) / frequency)))
