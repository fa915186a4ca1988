"""Records that are tested together: whose they are, batches of some of them, and whether those come again as they were."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sartor.sgd.batches import is_same, leaves, shapes, taken

FEW = 4
"""Holders who are looked at one by one."""
TRIES = 4
"""Seeds, and repetitions, by which what is random is told from what is not."""


class Repeats(Enum):
    """What comes when the same is asked for again under the same random numbers."""

    SAME = 0
    REMEMBERED = 1
    """The same, but for what was asked for in between."""
    OTHER = 2


@dataclass(frozen=True, eq=False)
class Lot:
    """The records of a piece, whose they are, and what makes a batch of some of them, by their places, under a seed."""

    items: Sequence[Any]
    counts: Sequence[int]
    clips: Tensor
    shares: Tensor | None
    make: Callable[[Sequence[int], int], Any]
    seed: int

    @cached_property
    def everything(self) -> list[int]:
        """The places of all records."""
        return list(range(len(self.items)))

    @cached_property
    def whole(self) -> Any:
        """The batch of all."""
        return self.make(self.everything, self.seed)

    @cached_property
    def draws(self) -> bool:
        """Whether batches are made with random numbers."""
        return not all(is_same(self.whole, self.make(self.everything, self.seed + k)) for k in range(1, TRIES))

    def rows(self, holder: int) -> list[int]:
        """The places of a holder's records."""
        begin = sum(self.counts[:holder])
        return list(range(begin, begin + self.counts[holder]))

    def fixed(self, rows: Sequence[int], seed: int) -> Any:
        """A batch of some rows of the whole one, as they are there."""
        return taken(self.whole, rows, len(self.items))

    def exchanged(self, kept: Sequence[int]) -> list[int]:
        """The places of all records, but those of others than the `kept` holders become one of each shape."""
        own = {row for holder in kept for row in self.rows(holder)}
        first: dict[Any, int] = {}
        forms = [tuple(shapes(item).items()) for item in self.items]
        return [row if row in own else first.setdefault(forms[row], row) for row in self.everything]


def chosen(lot: Lot, generator: np.random.Generator) -> list[int]:
    """A few holders: the largest, the smallest, and some at random."""
    sizes = [_size([lot.items[row] for row in lot.rows(holder)]) for holder in range(len(lot.counts))]
    order = sorted(range(len(sizes)), key=lambda holder: sizes[holder])
    some = generator.permutation(len(sizes))[:FEW].tolist()
    return list(dict.fromkeys([order[-1], order[0], *some]))[:FEW]


def _size(items: Any) -> tuple[float, float]:
    """How many numbers or letters records hold, and how large the numbers are."""
    count = magnitude = 0.0
    for leaf in leaves(items):
        if isinstance(leaf, Tensor | np.ndarray) and not (isinstance(leaf, np.ndarray) and leaf.dtype.kind not in "biuf"):
            value = torch.as_tensor(leaf).double()
            count, magnitude = count + value.numel(), magnitude + float(value.square().sum())
        else:
            count += len(leaf) if hasattr(leaf, "__len__") else 1
    return count, magnitude if math.isfinite(magnitude) else 0.0


def repeats(make: Callable[[], Any], between: Callable[[], Any]) -> Repeats:
    """Ask twice, then for something else, and once more; what differs at random is told from memory by doing it again."""
    for _ in range(TRIES):
        one, two = make(), make()
        if not is_same(one, two):
            return Repeats.OTHER
        between()
        if is_same(two, make()):
            return Repeats.SAME
    return Repeats.REMEMBERED
