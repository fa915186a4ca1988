"""A record is made of its own row alone: it must come out the same when everybody else's rows in the data set are replaced.

A data set holds all records, so it may mix them where it makes one: partners for mixup, negatives for triplets, neighbours, statistics of
all. Such a record is the same alone as in its batch. So records are made once more by copies of the data set in whose stores
(`sartor.sgd.stores`) every other row is a row of somebody else's, under the same random numbers. Others' rows are drawn from one half of
the rows, then from the other half: whoever decides a statistic of all (the nearest, the largest) is missing in one of them.

A record may have another row than its number says (an order of its own, an index). Then one row of each store is looked for, by halves,
that makes the record by itself.

Guarantee: a data set or collate function that makes a record of several rows of a store, at the records and under the random numbers that
    were drawn, is refused before the batch's step; a refusal names no record.
Cost: in a checked step two copies of the stores (of up to `stores.LARGEST` bytes each), and `alone.RECORDS` records thrice, each alone; in
    the first check under `alone.SEEDS` random numbers.
Breaks if: records lie where no store is found (`sartor.sgd.stores`), or others are read so rarely that no draw sees it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sartor.errors import SartorError
from sartor.sgd.rows import Likeness, likeness
from sartor.sgd.stores import Store, Stores

_DRAWS = 8

Made = Callable[[Mapping[int, Any], int, int], Any]
"""A record, by its number and under a seed, as a batch of its own; with other things in the place of some that the data set holds."""
Rows = NDArray[np.int64]


class Reach:
    """Compares records of one data set with themselves among others."""

    def __init__(self, stores: Stores, make: Made, generator: np.random.Generator) -> None:
        self._stores, self._make, self._generator = stores.found, make, generator
        self._made: dict[tuple[int, int], Any] = {}

    def refuse(self, records: Sequence[int], seeds: Sequence[int]) -> bool:
        """Refuse records that are made of several rows. Says whether it could be seen: a data set that fails on others' rows hides it."""
        seen = not self._stores
        for drawn in self._halves():
            taken = {id(store): store.take(drawn[store.length]) for store in self._stores}
            for record in records:
                with self._among(taken, drawn, {id(store): store.row_of(record) for store in self._stores}) as instead:
                    found = {seed: self._is_same(instead, record, seed) for seed in seeds}
                seen = seen or any(same is not None for same in found.values())
                for seed in (seed for seed, same in found.items() if same is False):
                    self._refuse_several(record, seed)
        return seen

    def _halves(self) -> Iterator[dict[int, Rows]]:
        """Rows of one half of all in everybody's place, then of the other half; by the lengths of stores."""
        lengths = {store.length: None for store in self._stores}
        halves = {length: np.array_split(self._generator.permutation(length), 2) for length in lengths}
        for half in range(2 if halves else 0):
            yield {length: self._generator.choice(parts[half], length) for length, parts in halves.items()}

    @contextmanager
    def _among(self, taken: dict[int, Any], drawn: Mapping[int, Rows], own: Mapping[int, int | None]) -> Iterator[dict[int, Any]]:
        """The stores with others' rows and each its own one, which is taken out again afterwards."""
        instead = dict(taken)
        places = [(store, row) for store in self._stores if (row := own[id(store)]) is not None and 0 <= row < store.length]
        for store, row in places:
            instead[id(store)] = store.put(taken[id(store)], _with(drawn[store.length], row), row)
        try:
            yield {id(store.value): instead[id(store)] for store in self._stores}
        finally:
            for store, row in places:
                store.put(taken[id(store)], drawn[store.length], row)

    def _is_same(self, instead: Mapping[int, Any], record: int, seed: int) -> bool | None:
        """Whether a record comes out the same with other things in their place; None where it does not come out."""
        if (record, seed) not in self._made:
            self._made[record, seed] = self._make({}, record, seed)
        try:
            made = self._make(instead, record, seed)
        except Exception:  # whatever code makes of rows that do not go together: it proves nothing
            return None
        found = likeness(self._made[record, seed], 0, 1, made, 0, 1)
        return None if found is Likeness.UNSEEN else found is Likeness.SAME

    def _refuse_several(self, record: int, seed: int) -> None:
        """A record that changed with others' rows has either another row than its number says, or several."""
        own = {id(store): self._own_row(store, record, seed) for store in self._stores}
        for group in {store.group for store in self._stores}:
            # what is read at the record's number may say where its row is in the others
            rows = {own[id(store)] for store in self._stores if store.group == group and not _says_where(store, own[id(store)], record)}
            if len(rows - {None}) > 1:
                _refuse()
        for drawn in self._halves():
            taken = {id(store): store.take(drawn[store.length]) for store in self._stores}
            with self._among(taken, drawn, own) as instead:
                if self._is_same(instead, record, seed) is False:
                    _refuse()

    def _own_row(self, store: Store, record: int, seed: int) -> int | None:
        """The one row of a store that makes the record, whoever the others are; None if it needs none, and refused if it needs several."""
        if self._is_made_of(store, np.zeros(0, np.int64), record, seed):
            return None
        rows = [store.row_of(record), *(other.number(row) for other in self._stores if (row := other.row_of(record)) is not None)]
        for row in dict.fromkeys(rows):
            if row is not None and 0 <= row < store.length and self._is_made_of(store, np.array([row]), record, seed):
                return row
        part = np.arange(store.length)
        while len(part) > 1:
            found = {half: self._is_made_of(store, some, record, seed) for half, some in enumerate(np.array_split(part, 2))}
            if True not in found.values():
                if None in found.values():
                    return store.row_of(record)  # not seen: it fails on others' rows
                _refuse()
            part = np.array_split(part, 2)[0 if found[0] else 1]
        return int(part[0])

    def _is_made_of(self, store: Store, rows: Rows, record: int, seed: int) -> bool | None:
        """Whether a record is the same with all rows of one store replaced but these."""
        found = [self._is_same({id(store.value): store.take(self._others(store, rows))}, record, seed) for _ in range(2)]
        return None if None in found else all(found)

    def _others(self, store: Store, kept: Rows) -> Rows:
        """Rows of others in the place of all but some, such that they differ where they can."""
        drawn = self._generator.integers(store.length, size=store.length)
        for _ in range(_DRAWS):
            alike = ~store.differs(drawn)
            drawn[alike] = self._generator.integers(store.length, size=int(alike.sum()))
        drawn[kept] = kept
        return drawn


def _says_where(store: Store, row: int | None, record: int) -> bool:
    return store.counts and row == store.row_of(record)


def _with(rows: Rows, row: int) -> Rows:
    changed = rows.copy()
    changed[row] = row
    return changed


def _refuse() -> None:
    raise SartorError(
        "a record comes out otherwise when other people's records in the data set are replaced: the data set or the collate function makes "
        "it of several (as mixup, triplets, features of neighbours and statistics of all do), so no one's influence can be bounded; make "
        "each record from its own row alone. A public table with exactly as many rows as there are records looks the same: keep it in a "
        "global variable or in the class."
    )
