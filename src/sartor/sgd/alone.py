"""An example alone equals its part in the batch: records are fetched and collated alone, and compared.

Whatever lies between a record and its gradient (fetching, collating, padding, the loss) is the user's code, and any of it may let one
person's record change what another contributes. Then no clip bounds anybody's influence. One law tells all such code from honest code: an
example that is taken alone, by code that nothing went through before, must come out as it does in its batch. It is tried in real batches,
on examples and at steps drawn at random from the run's own secret stream: in the first batch of two people or more, always, and up to
`MOST` times later. Of people with several records the first and the last are tried, beside which somebody else's stand.

Here records are compared (`Alone`); `fit`, which sees the loss too, goes on to losses and gradients (`sartor.sgd.part`). Random changes
(augmentation, masking) are told from mixing by repeating both under the same random numbers, with the others replaced.

Guarantee: code that lets an example's record, as the model gets it, depend on others in the batches and at the places that were drawn is
    refused before that batch's step; a refusal names no record.
Cost: in a checked step, fetching and collating up to `RECORDS` records once more, each alone; where they change at random, the batch
    about seven times for each of `REPEATED` records (`SEEDS` times as often in the first).
Breaks if: records are mixed so rarely, or by so little (rows.py), that no draw sees it; steps before the one that is refused stay charged
    and released.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from sartor.errors import SartorError
from sartor.run.stream import Stream
from sartor.sgd.pieces import Piece
from sartor.sgd.rows import Likeness, likeness

MOST = 16
RECORDS = 8
SEEDS = 4
REPEATED = 2


class Way(Protocol):
    """The way from numbers of records to a batch, by copies of the data set and the collate function that nothing went through before."""

    def fetch(self, indices: Sequence[int], seed: int) -> list[Any]:
        """Some records under the random numbers of a seed."""
        ...

    def collate(self, items: list[Any], seed: int) -> Any:
        """Records as one batch, likewise."""
        ...

    def batch(self, indices: Sequence[int], seed: int) -> Any:
        """Both, as the loader does it: under random numbers that go on from one to the other."""
        ...


@dataclass(frozen=True, eq=False)
class Pair:
    """One example in two batches: the real one and by itself, or, where records change at random, in two made for the comparison."""

    one: Any
    place: int
    rows: int
    two: Any
    other: int
    real: bool
    likeness: Likeness
    only: Callable[[], Any]
    """The first batch again with everybody else replaced by the example, in the same shapes."""


class Alone:
    """When and on whom examples are compared, and the comparison of records."""

    def __init__(self, stream: Stream, steps: int) -> None:
        self._stream, self._count, self.has_passed = stream, steps, False

    @cached_property
    def _steps(self) -> set[int]:
        drawn = self._stream.generator("alone", 0).integers(self._count, size=min(MOST, self._count))
        return {int(step) for step in drawn}

    def is_due(self, piece: Piece) -> bool:
        """Whether the examples of this batch, or of this piece of one (its first, its last or one drawn at random), are compared."""
        if not self.has_passed and len(piece.clips) > 1:
            return True  # records of one person alone could not show that they reach others
        if piece.step not in self._steps:
            return False
        chosen = int(self._stream.generator("piece alone", piece.step).integers(piece.pieces))
        return piece.last or piece.number in (0, chosen)

    def passed(self, holders: int) -> None:
        """A whole comparison went well: from here on the steps drawn at random count."""
        self.has_passed = self.has_passed or holders > 1

    def pairs(self, way: Callable[[], Way], piece: Piece, batch: Any) -> Iterator[Pair]:
        """Examples drawn at random, each in the batch and alone; refuses those that differ."""
        repeated = 0
        for place in places(piece, self._stream.generator("alone", piece.step + 1)):
            compared = _Compared(way, piece.seed, piece.indices, place, 1 if self.has_passed else SEEDS)
            pair = compared.pair(batch)
            yield pair
            repeated += not pair.real
            if repeated == REPEATED:
                return


def places(piece: Piece, generator: np.random.Generator) -> list[int]:
    """Which rows of a piece are looked at: drawn at random; where holders have several, the first and the last of drawn holders, as whoever
    reaches for a neighbour reaches somebody else there. Secret, like everything that tells who was drawn."""
    if piece.owners is None or len(piece.owners) == 1:
        return [int(place) for place in generator.choice(piece.rows, size=min(RECORDS, piece.rows), replace=False)]
    drawn = generator.choice(len(piece.owners), size=min(RECORDS // 2, len(piece.owners)), replace=False)
    ends = np.cumsum(piece.owners.counts.numpy())
    begins = ends - piece.owners.counts.numpy()
    return list(dict.fromkeys(int(place) for holder in drawn for place in (begins[holder], ends[holder] - 1)))


class _Compared:
    """One example of a batch under comparison; each call of the user's code by a copy of its own."""

    def __init__(self, way: Callable[[], Way], seed: int, indices: Sequence[int], place: int, seeds: int) -> None:
        self._way, self._seed, self._indices, self._place, self._seeds = way, seed, list(indices), place, seeds
        self._rows, self._index = len(self._indices), indices[place]

    def pair(self, batch: Any) -> Pair:
        """The example in the batch and alone, or, where records change at random, in two batches made for it."""
        alone = self._alone(self._seed)
        found = likeness(batch, self._place, self._rows, alone, 0, 1)
        if found is Likeness.UNSEEN:
            raise SartorError(
                "the collate function returns something that cannot be looked into, so nobody can see whether it mixes records; return "
                "tensors in tuples, lists, dictionaries or plain objects."
            )
        if found <= Likeness.PADDED or (found is Likeness.COMMON and self._is_repeatable(alone)):
            return Pair(batch, self._place, self._rows, alone, 0, True, found, self._only)
        return self._random(batch)

    def _only(self) -> Any:
        return self._way().collate(self._replaced(self._way().fetch(self._indices, self._seed)), self._seed)

    def _alone(self, seed: int) -> Any:
        items = self._way().fetch([self._index], seed)
        try:
            return self._way().collate(items, seed)
        except SartorError:
            raise
        except Exception as error:  # whatever it says may show the record
            raise SartorError(
                f"the collate function fails on one record alone ({type(error).__name__}), so its rows cannot be compared with those of a "
                "batch; make it take any number of records from 1."
            ) from None

    def _is_repeatable(self, alone: Any) -> bool:
        """Whether the record comes out the same under many random numbers."""
        return all(likeness(alone, 0, 1, self._alone(self._seed + k), 0, 1) is Likeness.SAME for k in range(1, 3 * SEEDS))

    def _random(self, real: Any) -> Pair:
        """A record that is not the same alone may change at random: then it must be the same, under the same random numbers, whoever the
        others are, when it is fetched and when it is collated; and, as far as can be seen, however many they are."""
        mine = self._place
        again = self._way().batch(self._indices, self._seed)
        if likeness(real, mine, self._rows, again, mine, self._rows) is not Likeness.SAME or self._remembers():
            _refuse()
        for seed in range(self._seed, self._seed + self._seeds):
            items = self._way().fetch(self._indices, seed)
            if not self._is_fetched_alike(items, seed):
                _refuse()
            batch, only = self._way().collate(items, seed), self._way().collate(self._replaced(items), seed)
            if likeness(batch, mine, self._rows, only, mine, self._rows) is not Likeness.SAME:
                _refuse()
        # first in its batch, the example meets the same random numbers as alone, if they are drawn for one record after the other
        ordered = [items[mine], *items[:mine], *items[mine + 1 :]]
        first, alone = self._way().collate(ordered, self._seed), self._way().collate(items[mine : mine + 1], self._seed)
        found = likeness(first, 0, self._rows, alone, 0, 1)
        if found <= Likeness.PADDED:
            others = [_resized(items[mine], item) for item in ordered[1:]]
            return Pair(first, 0, self._rows, alone, 0, False, found, lambda: self._way().collate([items[mine], *others], self._seed))
        if self._is_repeatable(self._alone(self._seed)):
            _refuse()
        return Pair(batch, mine, self._rows, only, mine, False, Likeness.SAME, lambda: only)

    def _remembers(self) -> bool:
        """Whether a record comes out otherwise, under the same random numbers, once others were fetched."""
        way = self._way()
        way.fetch([index for i, index in enumerate(self._indices) if i != self._place], self._seed)
        return not _same(way.fetch([self._index], self._seed)[0], self._way().fetch([self._index], self._seed)[0])

    def _is_fetched_alike(self, items: list[Any], seed: int) -> bool:
        """Whether the item is the same beside itself alone, or else at the head of others: most draw for one record after the other."""
        if _same(items[self._place], self._way().fetch([self._index] * self._rows, seed)[self._place]):
            return True
        others = [index for i, index in enumerate(self._indices) if i != self._place]
        return _same(self._way().fetch([self._index, *others], seed)[0], self._way().fetch([self._index], seed)[0])

    def _replaced(self, items: list[Any]) -> list[Any]:
        own = items[self._place]
        return [own if i == self._place else _resized(own, item) for i, item in enumerate(items)]


def _refuse() -> None:
    raise SartorError(
        "a record is not the same alone as in its batch, nor the same in two batches under the same random numbers: the data set or the "
        "collate function reorders, mixes or remembers records (as sorting by length, mixup, scaling by the batch's maximum and scalers "
        "fitted on the way do), or draws random numbers that no seed repeats, so no one's influence can be bounded; keep their order, make "
        "each row from its own record alone, and draw from torch, numpy, random or a generator in an attribute."
    )


def _same(one: Any, two: Any) -> bool:
    """Whether two records are the same; no tensor has as many rows as are named here, so each is compared whole."""
    return likeness((one,), 0, -1, (two,), 0, -1) is Likeness.SAME


def _resized(own: Any, like: Any) -> Any:
    """A record with the content of one and the shape of another, so that random numbers are drawn for it in the same way."""
    if type(own) is not type(like):
        return own
    if isinstance(own, Tensor):
        if own.shape == like.shape or own.dim() != like.dim() or not own.numel():
            return own
        return torch.cat([own.reshape(-1)] * (like.numel() // own.numel() + 1))[: like.numel()].reshape(like.shape)
    if isinstance(own, np.ndarray):
        return own if own.shape == like.shape or not own.size else np.resize(own, like.shape)
    if type(own) is dict and own.keys() == like.keys():
        return {key: _resized(own[key], like[key]) for key in own}
    if type(own) is list and own and all(isinstance(part, int | float | str) for part in own):
        return (own * (len(like) // len(own) + 1))[: len(like)]
    if type(own) in (list, tuple) and len(own) == len(like):
        return type(own)(_resized(a, b) for a, b in zip(own, like, strict=True))
    return own
