"""Whose the rows are: from one name for each row to people, of whom each has one budget however many rows they lent.

The order of people is that in which rows first name them, so with one row each it is the order of the rows. No message names a key or
tells how many rows somebody has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sartor.budgets import Budgets
from sartor.data.holders import refuse_two_spellings
from sartor.errors import SartorError
from sartor.names import of_nobody, of_several
from sartor.ownership import Ownership

Places = NDArray[np.int64]
Rows = NDArray[np.intp]


@dataclass(frozen=True, repr=False, eq=False)
class People:
    """The holders of some rows: their names, where rows have any, and whose each row is."""

    names: tuple[str, ...] | None
    owners: Ownership

    @classmethod
    def of_rows(cls, count: int) -> People:
        """One nameless holder for each row."""
        return cls(None, Ownership(np.arange(count), count))

    @classmethod
    def of_names(cls, names: Sequence[str], where: str) -> People:
        """From the name in each row; refuses rows without one, and names that may be one person, or several.

        >>> people = People.of_names(["ann", "bob", "ann"], "the table")
        >>> people.names, people.ownership
        (('ann', 'bob'), Ownership(2 holders, 3 records))
        """
        missing = sum(not name for name in names)
        if missing:
            raise SartorError(f"{missing} of {len(names)} rows have no holder in {where}: every row needs one.")
        times = Counter(names)
        _refuse_unclear(names, where)
        refuse_two_spellings(list(times), where)
        place = {name: i for i, name in enumerate(times)}
        return cls(tuple(place), Ownership(np.fromiter(map(place.__getitem__, names), np.int64, len(names)), len(place)))

    def __len__(self) -> int:
        """Holders."""
        return self.owners.holders

    @property
    def ownership(self) -> Ownership | None:
        """Whose each row is; None where row i is the only one of holder i."""
        return None if self.owners.is_plain else self.owners

    def rows_of(self, holders: Rows) -> Rows:
        """All rows of some holders, in the order of the rows."""
        chosen = np.zeros(len(self), bool)
        chosen[holders] = True
        return np.flatnonzero(chosen[self.owners.of_record])

    def only(self, holders: Rows) -> People:
        """Some holders, given in their order, and their rows alone."""
        place = np.full(len(self), -1)
        place[holders] = np.arange(len(holders))
        names = None if self.names is None else tuple(self.names[i] for i in holders)
        return People(names, Ownership(place[self.owners.of_record[self.rows_of(holders)]], len(holders)))

    def said_once(self, values: Sequence[Hashable]) -> tuple[Rows, Places]:
        """The rows in which holders say a value for the first time, and for each row which of these says the same."""
        place: dict[tuple[int, Hashable], int] = {}
        pairs = zip(self.owners.of_record.tolist(), values, strict=True)
        said = np.fromiter((place.setdefault(pair, len(place)) for pair in pairs), np.int64, len(values))
        return np.unique(said, return_index=True)[1], said

    def one_each(self, rows: Rows, said: Budgets, *, strictest: bool) -> Budgets:
        """One budget for each holder, from what they say in some rows, each of them in one at least (`Ownership.gather`)."""
        if self.names is None:
            return said
        return Ownership.gather([self.names[i] for i in self.owners.of_record[rows]], said, strictest=strictest)[0]

    def by_row(self, budgets: Budgets) -> Budgets:
        """What the holder of each row allows."""
        owners = self.owners.of_record
        return Budgets(budgets.epsilon[owners], delta=budgets.delta[owners], reserve=budgets.reserve)


def _refuse_unclear(names: Sequence[str], where: str) -> None:
    """Refuse several rows under a word for a name that is not known, and rows that name several people."""
    nobody = of_nobody(names)
    if nobody:
        raise SartorError(
            f"{nobody} of {len(names)} rows name nobody in {where}, by a word such as ?, NaN or unknown, so they may be of several people: "
            "give each of them its holder, or leave them out."
        )
    several = of_several(names)
    if several:
        raise SartorError(
            f"{several} of the holders in {where} are several others, one behind the other: no budget of one person covers what "
            "several own; leave such rows out, or give each to one holder."
        )
