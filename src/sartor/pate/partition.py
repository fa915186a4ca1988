"""Who is taught to which teacher: by a keyed hash of the holder, so that nobody's place depends on anybody else.

Guarantee: under one plan and key, adding, removing or changing a holder changes the records of that holder's teachers alone, at most
    `duplicates` of them and none twice.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from sartor.budgets import Budgets
from sartor.errors import SartorError
from sartor.mixing import STEP, mixed
from sartor.pate.plan import PatePlan

_PERSON = b"sartor.teachers"


@dataclass(frozen=True, eq=False)
class Partition:
    """The rows of the data that each teacher learns from. Sensitive: it says who is in which group."""

    teachers: int
    rows: NDArray[np.int64] = field(repr=False)
    of_row: NDArray[np.int64] = field(repr=False)

    def slices(self) -> list[NDArray[np.int64]]:
        """For each teacher the rows that it learns from, in their order."""
        order = np.lexsort((self.rows, self.of_row))
        edges = np.searchsorted(self.of_row[order], np.arange(1, self.teachers))
        return np.split(self.rows[order], edges)


def partition(plan: PatePlan, budgets: Budgets, key: bytes | None = None, *, holders: Sequence[str] | None = None) -> Partition:
    """Place everyone. Holders are known by name: the given ones, those of the budgets, or else their row.

    Without a key one is drawn; keep it to place newcomers later. Where rows are the names, a holder who leaves must leave an empty row.

    >>> import sartor
    >>> from sartor.pate.build import plan
    >>> people = sartor.Budgets.from_groups([(1.0, 600), (2.0, 400)], delta=1e-5)
    >>> placed = partition(plan(people, "upsample", teachers=20), people, b"key")
    >>> len(placed.slices()), sum(len(rows) for rows in placed.slices())
    (28, 1400)
    """
    names = holders if holders is not None else budgets.names
    if names is not None and len(names) != len(budgets):
        raise SartorError(f"there are {len(names):,} names for {len(budgets):,} budgets.")
    if names is not None and len(set(names)) != len(names):
        raise SartorError("two holders have the same name: one of them would be taught twice; join their records or tell them apart.")
    group = plan.groups_of(budgets)
    state = _hashes(names if names is not None else range(len(budgets)), secrets.token_bytes(32) if key is None else key)
    begin, size, wanted = plan.begin[group], (plan.end - plan.begin)[group].astype(np.uint64), plan.duplicates[group]
    placed = np.full((len(budgets), int(wanted.max())), -1, np.int64)
    for column in range(placed.shape[1]):
        open_rows = np.flatnonzero(wanted > column)
        while len(open_rows):
            state[open_rows] += STEP
            drawn = begin[open_rows] + (mixed(state[open_rows]) % size[open_rows]).astype(np.int64)
            again = np.any(placed[open_rows, :column] == drawn[:, None], axis=1)
            placed[open_rows[~again], column] = drawn[~again]
            open_rows = open_rows[again]
    rows, columns = np.nonzero(placed >= 0)
    return Partition(plan.teachers, rows.astype(np.int64), placed[rows, columns])


def _hashes(names: Sequence[str] | range, key: bytes) -> NDArray[np.uint64]:
    """64 bits of each holder, from which their places follow."""
    keyed = blake2b(key, digest_size=32, person=_PERSON).digest()
    digests = b"".join(
        blake2b(str(name).encode(errors="surrogatepass"), digest_size=8, key=keyed, person=_PERSON).digest() for name in names
    )
    return np.frombuffer(digests, np.uint64).copy()
