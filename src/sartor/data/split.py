"""Which rows are held out: an order that depends on the number of rows and a seed alone, and is the same on every machine and version."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray


def held_out(count: int, test: int, *, seed: int = 0) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Training and test rows, each in their original order: `test` of `count` rows, chosen by a hash of their position.

    Example:
        >>> train, test = held_out(10, 3)
        >>> len(train), len(test), sorted([*train, *test]) == list(range(10))
        (7, 3, True)
    """
    marks = [hashlib.sha256(f"{seed}:{row}".encode()).digest() for row in range(count)]
    order = sorted(range(count), key=marks.__getitem__)
    return np.array(sorted(order[test:]), np.intp), np.array(sorted(order[:test]), np.intp)
