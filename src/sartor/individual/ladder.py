"""Which rung each holder gets for a stretch, and what is left of their units: whole numbers only.

Guarantee: nobody's units become fewer than none, and nobody rests while a rung still fits.
Proof: a rung is chosen among those that cost no more than what is left, and its cost is taken away in the same call; who rests had less
    left than the lowest rung costs, for the lowest is always among those looked at. What units are worth: `sartor.accounting.filtered`.
Breaks if: it is called after the coins of the stretch were seen, or with norms of which one follows another holder's records.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sartor.plans.filters import Filter

Array = NDArray[np.float64]
Counts = NDArray[np.int64]


def climb(filter: Filter, group: NDArray[np.integer], fraction: Array, left: Counts) -> tuple[Counts, Counts]:
    """The rung of each holder (0: rests, then from the lowest up) for the next stretch, and the units that they have left after it.

    `fraction` is each holder's tracked norm over their group's clip. It gets the lowest rung that covers it, or, where units do not pay for
    that, the highest that they do pay for. Norms above the clip, and such as are no number, need the highest rung.

    >>> plan = Filter("ladder", 10, 100, rungs=[[0.5, 1.0]], costs=[[1, 4]], units=[40])
    >>> rung, left = climb(plan, np.zeros(3, int), np.array([0.2, 0.7, 0.7]), np.array([40, 4, 3]))
    >>> rung.tolist(), left.tolist()
    ([1, 2, 1], [39, 0, 2])
    """
    count = filter.rungs.shape[1]
    needed, fits = np.full(len(group), count, np.int64), np.zeros(len(group), np.int64)
    for rung in range(count - 1, -1, -1):  # few: rungs, not holders
        needed = np.where(fraction <= filter.rungs[group, rung], rung + 1, needed)
    for rung in range(count):
        fits = np.where(filter.costs[group, rung] <= left, rung + 1, fits)
    taken = np.minimum(needed, fits)
    cost = np.where(taken > 0, filter.costs[group, np.maximum(taken, 1) - 1], 0)
    return taken, left - cost


def fractions(filter: Filter, group: NDArray[np.integer], rung: Counts) -> Array:
    """Rungs as fractions of the group's clip; 0 for who rests."""
    return np.where(rung > 0, filter.rungs[group, np.maximum(rung, 1) - 1], 0.0)
