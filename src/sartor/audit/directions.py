"""Directions of canaries: vectors of length 1 whose numbers are random signs, in the space of all parameters or of some of them.

Each array of a model has a share of the coordinates, however small it is, so that noise that is missing anywhere is in sight. Directions
are at right angles to each other as long as there are not more of them than coordinates: then no canary hides another.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sartor.errors import SartorError

Array = NDArray[np.float64]
Places = NDArray[np.int64]

MOST = 8192
"""Coordinates that directions have at most, unless there are very many arrays: with more, memory grows and no attack becomes better."""
_LEAST = 64  # of every array, if it has as many


class Directions:
    """Directions for `count` canaries in a model whose arrays have these sizes; memory is `count` times the coordinates.

    >>> some = Directions([300, 5], count=10, seed=1)
    >>> some
    Directions(10 in 256 of 305 coordinates)
    >>> parts = some.summed(np.array([3]), np.array([2.0]))
    >>> round(float(sum(part @ part for part in parts)), 6)
    4.0
    >>> some.dots(parts).sum(1).round(3).tolist()[2:5]
    [0.0, 2.0, 0.0]
    """

    def __init__(self, sizes: Sequence[int], count: int, seed: int) -> None:
        if count < 1 or not sizes or min(sizes) < 1:
            raise SartorError("directions need a canary and arrays with numbers in them.")
        random = np.random.default_rng([seed, 0])
        self.count, self.sizes = int(count), tuple(int(size) for size in sizes)
        self.places = _places(self.sizes, random)
        self.blocks: Places = np.array([len(places) for places in self.places])
        """How many coordinates each array has a part in."""
        total = int(self.blocks.sum())
        self._ends = np.cumsum(self.blocks)
        self._vectors = (_signs(self.count, total, random) / np.sqrt(total)).astype(np.float32)

    @staticmethod
    def room(sizes: Sequence[int]) -> int:
        """How many can be at right angles in a model whose arrays have these sizes."""
        coordinates = sum(len(places) for places in _places(tuple(sizes), np.random.default_rng(0)))
        return coordinates if _can_be_at_right_angles(1, coordinates) else 0

    @property
    def at_right_angles(self) -> bool:
        """Whether every two directions are at right angles to each other."""
        return _can_be_at_right_angles(self.count, self.coordinates)

    @property
    def coordinates(self) -> int:
        """Coordinates in which directions are not zero."""
        return int(self._ends[-1])

    def at(self, arrays: Sequence[Array]) -> list[Array]:
        """The coordinates of a model's arrays, or of its gradient's, that directions have."""
        return [np.asarray(array, float).reshape(-1)[places] for array, places in zip(arrays, self.places, strict=True)]

    def summed(self, members: Places, lengths: Array) -> list[Array]:
        """The sum of the directions of some canaries, each of these lengths, at the coordinates."""
        found = lengths.astype(np.float32) @ self._vectors[members]
        return np.split(found.astype(float), self._ends[:-1])

    def full(self, member: int, length: float) -> list[Array]:
        """One direction of a length, as flat arrays of the model's sizes."""
        found = [np.zeros(size) for size in self.sizes]
        for array, places, part in zip(found, self.places, np.split(self._vectors[member], self._ends[:-1]), strict=True):
            array[places] = length * part
        return found

    def dots(self, parts: Sequence[Array]) -> Array:
        """For each canary the dot product with what is `at` the coordinates, array by array: (canaries, arrays)."""
        columns = np.split(self._vectors, self._ends[:-1], axis=1)
        return np.stack([own @ part.astype(np.float32) for own, part in zip(columns, parts, strict=True)], axis=1).astype(float)

    def __repr__(self) -> str:
        return f"Directions({self.count} in {self.coordinates} of {sum(self.sizes)} coordinates)"


def _places(sizes: Sequence[int], random: np.random.Generator) -> list[Places]:
    """The coordinates of each array: as many in all as a power of two, where that leaves each its share, chosen at random."""
    wanted = 1 << int(np.log2(min(sum(sizes), MOST)))
    own = np.array(sizes)
    counts = np.minimum(own, min(_LEAST, max(1, wanted // (2 * len(sizes)))))
    while (missing := wanted - int(counts.sum())) > 0:
        room = own - counts
        more = np.minimum(room, np.ceil(missing * room / room.sum()).astype(np.int64))
        beyond = np.cumsum(more) - missing
        counts = counts + np.clip(more - np.maximum(beyond, 0), 0, None)
    return [np.sort(random.choice(size, int(count), replace=False)) for size, count in zip(sizes, counts, strict=True)]


def _can_be_at_right_angles(count: int, total: int) -> bool:
    return count <= total and not total & (total - 1)


def _signs(count: int, total: int, random: np.random.Generator) -> NDArray[np.int8]:
    """Rows of random signs; where there are few enough, rows of a Hadamard matrix (Sylvester's) whose columns have random signs."""
    if not _can_be_at_right_angles(count, total):
        return 1 - 2 * random.integers(2, size=(count, total), dtype=np.int8)
    signs = 1 - 2 * random.integers(2, size=total, dtype=np.int8)
    rows, columns = random.choice(total, count, replace=False), np.arange(total)
    odd = np.zeros((count, total), np.int8)
    for bit in range(total.bit_length() - 1):
        odd ^= np.outer(((rows >> bit) & 1).astype(np.int8), ((columns >> bit) & 1).astype(np.int8))
    return np.asarray(signs * (1 - 2 * odd), np.int8)
