"""Whose turn it is to be zeroed: the holders that a replay tries, given by their places or by how many there shall be."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sartor.errors import SartorError


def chosen(holders: int | Sequence[int], group: NDArray[np.integer], seed: int, drawn: NDArray[np.integer] | None = None) -> list[int]:
    """Places in the budgets: those given, or so many of all groups in turn.

    Those who were `drawn` most often come first, and those who never were at last. `group` is each holder's.
    """
    count = len(group)
    if isinstance(holders, int | np.integer):
        return _in_turn(whole(holders, "holders"), group, seed, np.zeros(count, np.int64) if drawn is None else drawn)
    places = list(holders)
    if not places or any(isinstance(place, bool) or not isinstance(place, int | np.integer) or not 0 <= place < count for place in places):
        raise SartorError(f"holders are how many shall be tried, or their places in the budgets, from 0 to {count - 1}, one at least.")
    return [int(place) for place in places]


def whole(number: object, name: str) -> int:
    """A number of things, one at least."""
    if isinstance(number, bool) or not isinstance(number, int | np.integer) or number < 1:
        raise SartorError(f"{name} is a whole number of 1 or more, not {number}.")
    return int(number)


def _in_turn(count: int, group: NDArray[np.integer], seed: int, drawn: NDArray[np.integer]) -> list[int]:
    mixed = np.random.default_rng(seed).permutation(len(group))
    order = mixed[np.argsort(-drawn[mixed], kind="stable")]
    queues = [order[group[order] == own].tolist() for own in np.unique(group)]
    ranks = [queue[place] for place in range(min(count, len(group))) for queue in queues if place < len(queue)]
    return sorted(ranks, key=lambda holder: bool(drawn.any()) and drawn[holder] == 0)[:count]
