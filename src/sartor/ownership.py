"""Whose each record is: people with several records keep one budget, however much data they lent.

`Budgets` has one entry for each holder; an `Ownership` says of each record which of them it belongs to. The holder is then drawn, clipped
and charged as one (`sartor.sgd`), or taught to the same teachers (`sartor.pate`). A record belongs to one holder: where two people own one,
zeroing one of them moves the other's clipped vector, so no charge of one person bounds it.

How many holders and how many records there are is public; whose a record is, and how many a holder has, is not.

Example:
    >>> import sartor
    >>> budgets = sartor.Budgets([1.0, 3.0], delta=1e-5, holders=["ann", "bob"])
    >>> sartor.Ownership.of(["ann", "bob", "ann", "ann"], budgets)
    Ownership(2 holders, 4 records)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sartor.budgets import Budgets
from sartor.errors import InvalidBudget
from sartor.immutable import immutable
from sartor.mixing import STEP, mixed
from sartor.names import alike, of_nobody, of_several

Places = NDArray[np.int64]

_SEVERAL = (list, tuple, set, frozenset, dict, np.ndarray)


class Ownership:
    """The holder of each record, by their place in the budgets; every holder has a record at least. Made by `Ownership.of`.

    One that was made by names keeps them, and serves no budgets with other names or in another order.
    """

    of_record: Places
    holders: int
    names: tuple[str, ...] | None

    def __init__(self, of_record: ArrayLike, holders: int, names: Sequence[str] | None = None) -> None:
        given = np.asarray(of_record)
        if given.ndim != 1 or not given.size or given.dtype.kind not in "iu":
            raise InvalidBudget("an ownership needs the holder of each record as one whole number, their place in the budgets.")
        if isinstance(holders, bool) or not isinstance(holders, int | np.integer):
            raise InvalidBudget(f"the number of holders is a whole number, not {holders}.")
        if given.min() < 0 or given.max() >= holders:
            raise InvalidBudget(f"records name a holder outside 0 to {holders - 1}.")
        if names is not None and len(names) != holders:
            raise InvalidBudget(f"there are {len(names)} names for {holders} holders.")
        values = {"of_record": immutable(given, np.int64), "holders": int(holders), "names": None if names is None else tuple(names)}
        for name, value in values.items():
            object.__setattr__(self, name, value)
        without = int((self.counts == 0).sum())
        if without:
            raise InvalidBudget(
                f"{without} of {self.holders} budgets are for holders who have no record: leave them out of the budgets, or bring their "
                "records."
            )

    @classmethod
    def of(cls, record_holders: Iterable[Any], budgets: Budgets) -> Ownership:
        """From one name for each record, found among the names of the budgets. Names are compared as text: 7 is "7"."""
        if not isinstance(budgets, Budgets):
            raise InvalidBudget("give one name for each record first, and then the budgets.")
        if budgets.names is None:
            raise InvalidBudget("these budgets carry no names: give them with holders=[...], one name for each budget.")
        names = _names(record_holders)
        place = {str(name).strip(): i for i, name in enumerate(budgets.names)}
        found = np.fromiter((place.get(name, -1) for name in names), np.int64, len(names))
        unknown = int((found < 0).sum())
        if unknown:
            known = {alike(name) for name in place}
            near = sum(alike(name) in known for name, i in zip(names, found, strict=True) if i < 0)
            how = f" ({near} of them differ from one only in spaces, case or the way a number is written)" if near else ""
            raise InvalidBudget(f"{unknown} of {len(names)} records name a holder who has no budget{how}: every holder needs one.")
        return cls(found, len(budgets), budgets.names)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("an ownership cannot be changed: a run that has begun would not follow; make another one.")

    def check(self, budgets: Budgets) -> None:
        """Refuse budgets of other people, or in another order than these places are in."""
        if self.holders != len(budgets):
            raise InvalidBudget(f"the ownership is of {self.holders} holders, but there are {len(budgets)} budgets.")
        if self.names is not None and self.names != budgets.names:
            raise InvalidBudget(
                "the ownership was made for budgets with other names, or in another order, so records would get other people's budgets: "
                "make it from these budgets (sartor.Ownership.of(names, budgets))."
            )

    @classmethod
    def gather(cls, record_holders: Iterable[Any], budgets: Budgets, *, strictest: bool = False) -> tuple[Budgets, Ownership]:
        """From a name and a budget for each record: one budget for each holder, in the order in which they first appear, and whose is what.

        Budgets that differ within one holder are refused; with `strictest` the smallest epsilon and the smallest delta of all that a
        holder said hold for all of their records.

        >>> budgets = Budgets([1.0, 3.0, 2.0], delta=1e-5)
        >>> people, owners = Ownership.gather(["ann", "bob", "ann"], budgets, strictest=True)
        >>> people.names, people.epsilon.tolist(), owners
        (('ann', 'bob'), [1.0, 3.0], Ownership(2 holders, 3 records))
        """
        names = _names(record_holders)
        if len(names) != len(budgets):
            raise InvalidBudget(f"there are {len(budgets)} budgets for {len(names)} records: give one for each record.")
        place: dict[str, int] = {}
        of_record = np.fromiter((place.setdefault(name, len(place)) for name in names), np.int64, len(names))
        least = np.full((2, len(place)), np.inf)
        most = np.full((2, len(place)), -np.inf)
        for row, values in enumerate((budgets.epsilon, budgets.delta)):
            np.minimum.at(least[row], of_record, values)
            np.maximum.at(most[row], of_record, values)
        differ = int((least != most).any(0).sum())
        if differ and not strictest:
            raise InvalidBudget(
                f"{differ} of {len(place)} holders have records with different budgets: give every holder one budget, or let the strictest "
                "hold (strictest=True, --strictest)."
            )
        people = Budgets(least[0], delta=least[1], holders=list(place), reserve=budgets.reserve)
        return people, cls(of_record, len(place), people.names)

    def __len__(self) -> int:
        """Records."""
        return len(self.of_record)

    @cached_property
    def counts(self) -> Places:
        """How many records each holder has. Sensitive."""
        return immutable(np.bincount(self.of_record, minlength=self.holders), np.int64)

    @property
    def is_plain(self) -> bool:
        """Whether record i is the only one of holder i, as without an ownership."""
        return len(self) == self.holders and bool(np.array_equal(self.of_record, np.arange(self.holders)))

    @cached_property
    def _order(self) -> Places:
        return immutable(np.argsort(self.of_record, kind="stable"), np.int64)

    @cached_property
    def _begin(self) -> Places:
        return immutable(np.cumsum(self.counts) - self.counts, np.int64)

    def records_of(self, holders: Places, most: int | None = None, secret: int = 0) -> tuple[Places, Places]:
        """The records of some holders, holder after holder, and how many of each; of those with more, `most` distinct ones at random.

        Which ones follows from the secret number, the holder and the number of their records alone, so nobody's choice depends on who
        else was drawn. What it costs grows with the records of these holders, not with all that there are.
        """
        counts = self.counts[holders]
        slot = np.repeat(np.arange(len(holders)), counts)
        place = np.arange(len(slot)) - np.repeat(np.cumsum(counts) - counts, counts)
        records = self._order[self._begin[holders][slot] + place]
        if most is None or not np.any(counts > most):
            return records, counts
        # a key for each record; those of a holder with the smallest keys are taken, in their own order
        with np.errstate(over="ignore"):
            own = mixed(np.uint64(secret) + STEP * (holders[slot].astype(np.uint64) + np.uint64(1)))
            key = mixed(own + STEP * place.astype(np.uint64))
        by_key = np.lexsort((key, slot))
        kept = np.zeros(len(slot), bool)
        kept[by_key[place < most]] = True  # ranks within a holder are what places are
        return records[kept], np.minimum(counts, most)

    def only(self, records: Places, budgets: Budgets) -> tuple[Budgets, Ownership]:
        """The budgets and the ownership of some records alone: holders of none of them are left out."""
        self.check(budgets)
        owners = self.of_record[records]
        kept = np.unique(owners)
        names = None if budgets.names is None else [budgets.names[i] for i in kept]
        people = Budgets(budgets.epsilon[kept], delta=budgets.delta[kept], holders=names, reserve=budgets.reserve)
        return people, Ownership(np.searchsorted(kept, owners), len(kept), None if self.names is None else people.names)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Ownership):
            return NotImplemented
        return (self.holders, self.names) == (other.holders, other.names) and np.array_equal(self.of_record, other.of_record)

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        return Ownership, (self.of_record, self.holders, self.names)

    def __repr__(self) -> str:
        return f"Ownership({self.holders:,} holders, {len(self):,} records)"


def _names(record_holders: Iterable[Any]) -> Sequence[str]:
    """One name for each record, as text."""
    if isinstance(record_holders, str | bytes | Budgets):
        raise InvalidBudget("give one name for each record first, and then the budgets.")
    given = list(record_holders.tolist() if hasattr(record_holders, "tolist") else record_holders)
    several = sum(isinstance(name, _SEVERAL) for name in given)
    if several:
        raise InvalidBudget(
            f"{several} of {len(given)} records name several holders: what one allows would bind the others' data too, so no budget covers "
            "such a record; leave it out, or give it to one holder (a name of several parts as one text)."
        )
    names = [_name(name) for name in given]
    nobody = sum(not name for name in names)
    if nobody:
        raise InvalidBudget(f"{nobody} of {len(names)} records have no holder: every record needs one.")
    if not names:
        raise InvalidBudget("there are no records.")
    nobody = of_nobody(names)
    if nobody:
        raise InvalidBudget(
            f"{nobody} of {len(names)} records name nobody, by a word such as ?, NaN or unknown, so they may be of several people: give "
            "each of them its holder, or leave them out."
        )
    several = of_several(names)
    if several:
        raise InvalidBudget(
            f"{several} of the holders are several others, one behind the other: no budget of one person covers what several own; leave "
            "such records out, or give each to one holder."
        )
    return names


def _name(given: Any) -> str:
    """A name as text: "" for none. Only what is written in one way is taken: floats lose digits, and other things their identity."""
    value = given.item() if hasattr(given, "item") else given
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if value is None or type(value).__name__ in ("NAType", "NaTType") or (isinstance(value, float) and value != value):
        return ""
    raise InvalidBudget(f"a holder is named by a text or a whole number, not by {type(value).__name__}: write the names as text.")
