"""Records that are tested together: batches of some of them, whether those come again as they were, and whether rows follow other rows.

Randomness is told from mixing by repeating under the same random numbers; what no seed repeats is not refused, but said.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property, partial
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from sartor.errors import SartorError
from sartor.sgd.batches import Likeness, is_opaque, is_same, leaves, likeness, shapes, taken
from sartor.sgd.forks import reseed
from sartor.sgd.pieces import Piece

T = TypeVar("T")
Fetch = Callable[[Sequence[int]], list[Any]]
Collate = Callable[[list[Any]], Any]
Say = Callable[[str], None]

FEW = 4
"""Holders who are looked at one by one."""
TRIES = 4
"""Seeds, and repetitions, by which what is random is told from what is not."""
_FETCHED = 8


class Repeats(Enum):
    """What comes when the same is asked for again under the same random numbers."""

    SAME = 0
    REMEMBERED = 1
    """The same, but for what was asked for in between."""
    OTHER = 2


MIXED = "{} mixes examples: one record changes what another contributes; make each row, output and loss from its own record alone."
PADDED = (
    "a record's gradient follows how far others' records pad its batch; mask padding in the model and the loss (ignore_index), or pad all "
    "records to one length."
)
_COMMON = (
    "the collate function returns something that has no row for each record and follows who is in the batch; return rows alone, or give "
    "the loss (loss=, sartor.fit)."
)
_REMEMBERS = (
    "the data set or the collate function remembers records, and what it makes of one follows those before; keep nothing, or only what is "
    "looked up by a record's own number."
)
_UNSEEDED = (
    "{} draws random numbers that no seed repeats, or remembers, so whether it mixes records is not seen; draw from torch, numpy or random."
)


@dataclass(frozen=True, eq=False)
class Lot:
    """The records of a piece, whose they are, and what makes a batch of some of them, by their places, under a seed."""

    items: Sequence[Any]
    counts: Sequence[int]
    clips: Tensor
    shares: Tensor | None
    make: Callable[[Sequence[int], int], Any]
    seed: int
    whole: Any

    @cached_property
    def everything(self) -> list[int]:
        """The places of all records."""
        return list(range(len(self.items)))

    @cached_property
    def draws(self) -> bool:
        """Whether batches are made with random numbers."""
        return not all(is_same(self.whole, self.make(self.everything, self.seed + k)) for k in range(1, TRIES))

    def rows(self, holder: int) -> list[int]:
        """The places of a holder's records."""
        begin = sum(self.counts[:holder])
        return list(range(begin, begin + self.counts[holder]))

    def fixed(self, rows: Sequence[int], seed: int = 0) -> Any:
        """A batch of some rows of the whole one, as they are there, under any seed."""
        return taken(self.whole, rows, len(self.items))

    def of(self, holders: Sequence[int]) -> Any:
        """A batch of some holders: made anew, or rows of the whole one where batches are made with random numbers."""
        rows = [row for holder in holders for row in self.rows(holder)]
        return self.fixed(rows) if self.draws else self.make(rows, self.seed)

    def exchanged(self, kept: Sequence[int]) -> list[int]:
        """The places of all records, but those of others than the `kept` holders become one of each shape, of middling size; who is alone
        in theirs becomes the one of the commonest."""
        own, alike = {row for holder in kept for row in self.rows(holder)}, defaultdict[Any, list[int]](list)
        forms = [tuple(shapes(item).items()) for item in self.items]
        for row in sorted(self.everything, key=lambda row: size(self.items[row])):
            if row not in own:
                alike[forms[row]].append(row)
        common = max(alike.values(), key=len, default=[])

        def instead(row: int) -> int:
            same = alike[forms[row]] if len(alike[forms[row]]) > 1 else common
            return same[len(same) // 2]

        return [row if row in own else instead(row) for row in self.everything]


def lot_of(piece: Piece, fetch: Fetch, collate: Collate, seed: int, say: Say) -> Lot:
    """Fetch a piece's records, and refuse a data set or collate function that mixes or remembers as it makes them."""
    counts = [1] * piece.rows if piece.owners is None else piece.owners.counts.tolist()
    heads = [piece.indices[sum(counts[:i])] for i in range(min(len(counts), 2 * _FETCHED))]

    def fetched(some: Sequence[int]) -> list[Any]:
        reseed(seed)
        return fetch(some)

    _refuse_fetching(fetched, heads[: len(heads) // 2], heads[len(heads) // 2 :], say)
    items = fetched(piece.indices)

    def collated(rows: Sequence[int], seed: int) -> Any:
        reseed(seed)
        return collate([items[row] for row in rows])

    # the whole batch before all others: what is made of it later is compared with it
    lot = Lot(items, counts, piece.clips, piece.shares, collated, seed, collated(range(len(items)), seed))
    half = lot.everything[: max(1, len(items) // 2)]
    found = repeats(partial(collated, lot.everything, seed), partial(asked, partial(collated, half[::-1], seed)))
    if found is Repeats.REMEMBERED:
        raise SartorError(_REMEMBERS)
    if found is Repeats.SAME:
        return lot
    say(_UNSEEDED.format("the collate function"))
    return replace(lot, make=lot.fixed)


def _refuse_fetching(fetched: Fetch, some: Sequence[int], others: Sequence[int], say: Say) -> None:
    """Refuse a data set that mixes or remembers the records that are fetched."""
    found = repeats(partial(fetched, some), partial(fetched, others))
    if found is Repeats.REMEMBERED:
        raise SartorError(_REMEMBERS)
    if found is Repeats.OTHER:
        say(_UNSEEDED.format("the data set"))
        return
    for own in (some[0], some[-1]):
        # first among others it meets the same random numbers as alone, if they are drawn for one record after the other, and otherwise as
        # among copies of itself
        for _ in range(TRIES):
            first = fetched([own, *others])[0]
            if is_same(first, fetched([own])[0]) or is_same(first, fetched([own] * (1 + len(others)))[0]):
                break
        else:
            raise SartorError(MIXED.format("the data set"))


def refuse_rows(lot: Lot, few: Sequence[int], say: Say) -> None:
    """Refuse a collate function that lets a record's row follow others', where no loss is seen."""
    if is_opaque(lot.whole):
        say("batches hold objects that show nothing of their records, so whether these mix is not seen; give loss=, or tensors.")
    if refuse_exchanged_rows(lot, kept_of(few)) is Likeness.COMMON:
        raise SartorError(_COMMON)
    for holder in few:
        own = lot.rows(holder)
        first = [*own, *(row for row in lot.everything if row not in own)] if lot.draws else lot.everything
        places = range(len(own)) if lot.draws else own
        found = likeness(lot.make(first, lot.seed), places, len(lot.items), asked(partial(lot.make, own, lot.seed)))
        if found is Likeness.PADDED:
            say("records are padded to the longest of their batch, and your loss is not seen: it must leave padding out; give loss=.")
        elif found is Likeness.COMMON:
            raise SartorError(_COMMON)
        elif found is Likeness.OTHER and not lot.draws:
            raise SartorError(MIXED.format("the collate function"))


def refuse_exchanged_rows(lot: Lot, kept: Sequence[int]) -> Likeness:
    """Refuse rows of the kept holders that do not stay as they are under the same random numbers, with others of the same shapes."""
    rows, count, worst = [row for holder in kept for row in lot.rows(holder)], len(lot.items), Likeness.SAME
    for seed in range(lot.seed, lot.seed + (TRIES if lot.draws else 1)):
        whole, among = lot.make(lot.everything, seed), asked(partial(lot.make, lot.exchanged(kept), seed))
        if shapes(among) == shapes(whole):
            worst = max(worst, likeness(whole, rows, count, taken(among, rows, count)))
    if worst is Likeness.OTHER:
        raise SartorError(MIXED.format("the collate function"))
    return worst


def asked(ask: Callable[[], T]) -> T:
    """What user code makes of other batches than the one that was drawn; whatever it says of an error may show a record."""
    try:
        return ask()
    except SartorError:
        raise
    except Exception as error:
        raise SartorError(
            f"the collate function, model or loss fails on some records of a batch alone ({type(error).__name__}); make them take any "
            "number of records from 1."
        ) from None


def chosen(lot: Lot, generator: np.random.Generator) -> list[int]:
    """A few holders: the largest, the smallest, and some at random."""
    sizes = [size([lot.items[row] for row in lot.rows(holder)]) for holder in range(len(lot.counts))]
    order = sorted(range(len(sizes)), key=lambda holder: sizes[holder])
    some = generator.permutation(len(sizes))[:FEW].tolist()
    return list(dict.fromkeys([order[-1], order[0], *some]))[:FEW]


def kept_of(few: Sequence[int]) -> Sequence[int]:
    """Those of the chosen who stay when others are exchanged: neither the largest nor the smallest, whom statistics of all hang on."""
    return few[2:] or few[1:]


def size(items: Any) -> tuple[float, float]:
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
    """Ask again and again, then for something else, and once more; what differs at random is told from memory by doing it again."""
    for _ in range(TRIES):
        make()
        one, two = make(), make()
        if not is_same(one, two):
            return Repeats.OTHER
        between()
        if is_same(two, make()):
            return Repeats.SAME
    return Repeats.REMEMBERED
