"""Whose the rows are: from one name for each row to people, of whom each has one budget however many rows they lent.

The order of people is that in which rows first name them, so with one row each it is the order of the rows. No message names a key or
tells how many rows somebody has.

No holder may be under two names, who would have two budgets and be protected less than they asked for; and no holder's row is taken to be
public. No message shows a row.

Columns that say what people allow are never features: a model that has seen budgets as a feature shows what they go with, and needs them
from everyone whom it is asked about. The column that is given as the budget is known; here are the others: those that say it by their name,
and those that say the same in a copy or in other words.

A column says it in other words if the budget follows from its value for 99 of 100 holders, where a column of the same values that has
nothing to do with budgets is wrong four times as often. So neither keys, which tell everything by chance, nor a budget that nearly all
have, count. Where holders have several rows, all rows of one holder count as much as the only row of another: what repeats is no evidence.

Breaks if: a column has many values (more than ten for each budget, as measurements have); or it takes several columns to say it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import TensorDataset

from sartor.budgets import Budgets
from sartor.data.columns import coded, is_missing, is_numeric, numbers
from sartor.data.dataset import Columns
from sartor.errors import SartorError
from sartor.names import alike, of_nobody, of_several
from sartor.overlap import shared
from sartor.ownership import Ownership

Codes = NDArray[np.intp]

_NAMES = frozenset(("holder", "budget", "consent", "level", "epsilon", "delta"))
_HOLDERS_EACH = 10  # so many holders for each value: then one-to-one is not chance
_VALUES_EACH = 10  # words for one budget
_WRONG, _RATIO, _SHUFFLES = 0.01, 4, 20


def by_name(columns: Iterable[str]) -> list[str]:
    """Columns that are called as what people allow is called here.

    Example:
        >>> by_name(["age", "Delta"])
        ['Delta']
    """
    return [column for column in columns if column.strip().casefold() in _NAMES]


def refuse_copies(
    table: Columns,
    features: Sequence[str],
    told: Mapping[str, Sequence[str]],
    budgets: Budgets | None,
    ownership: Ownership | None = None,
) -> None:
    """Refuse features that repeat a column in `told`, or the budgets of these rows: the same values, or others one to one.

    `budgets` has one for each row; `ownership` says whose the rows are, where holders have several.
    """
    for column in features:
        texts = table[column]
        same = [name for name, values in told.items() if _is_copy(texts, values)]
        if same:
            raise SartorError(f'the column "{column}" is a copy of "{same[0]}" and cannot be a feature: drop it (drop=, or in the schema).')
        if budgets is not None and _says_budgets(texts, column, budgets, ownership):
            raise SartorError(
                f'the column "{column}" holds budgets of the holders and cannot be a feature: drop it (drop=, or in the schema).'
            )


def refuse_budget_features(features: NDArray[np.generic], budgets: Budgets) -> None:
    """Refuse arrays that hold the budgets of their rows as a feature."""
    if any(_has(features, values) for values in (budgets.epsilon, budgets.delta)):
        raise SartorError("one of the features equals the holders' budgets: remove it from the arrays.")


def refuse_name_features(features: NDArray[np.generic], names: NDArray[np.generic]) -> None:
    """Refuse arrays that hold the number of the holder as a feature."""
    if names.dtype.kind in "iu" and _has(features, names):
        raise SartorError("one of the features equals the holders' numbers: remove it from the arrays.")


def _has(features: NDArray[np.generic], values: NDArray[np.generic]) -> bool:
    """Whether one of the features equals the values in every row, and not all values are the same."""
    flat = features.reshape(len(features), -1)
    own = values.astype(flat.dtype) if flat.dtype.kind == "f" else values
    return len(np.unique(values)) > 1 and bool((flat == own[:, None]).all(0).any())


def _is_copy(texts: Sequence[str], values: Sequence[str]) -> bool:
    """Whether two columns say the same in every row, in whatever spelling, and not all rows say the same."""
    return all(one == other or alike(one) == alike(other) for one, other in zip(texts, values, strict=True)) and len(set(texts)) > 1


def _says_budgets(texts: Sequence[str], column: str, budgets: Budgets, ownership: Ownership | None) -> bool:
    kinds, codes = coded(texts)
    if is_numeric(kinds) and not any(is_missing(text) for text in kinds):
        values = numbers(kinds, column)[codes]
        if any(len(np.unique(own)) > 1 and np.array_equal(values, own) for own in (budgets.epsilon, budgets.delta)):
            return True
    groups, count = budgets.groups.of_holder, len(budgets.groups)
    people = len(texts) if ownership is None else ownership.holders
    if 1 < count == len(kinds) == len(set(zip(codes.tolist(), groups.tolist(), strict=True))) and people >= _HOLDERS_EACH * count:
        return True
    return _tells_budgets(codes, len(kinds), groups, count, ownership)


def _tells_budgets(codes: Codes, kinds: int, groups: Codes, count: int, ownership: Ownership | None) -> bool:
    """Whether groups follow from the values for nearly all holders, and far better than they would by chance."""
    people = len(codes) if ownership is None else ownership.holders
    if kinds > min(_VALUES_EACH * count, people / _HOLDERS_EACH):
        return False
    weight = None if ownership is None else 1 / ownership.counts[ownership.of_record]
    wrong = _wrong(codes, groups, kinds, count, weight)
    if wrong > _WRONG * people:
        return False
    draw = np.random.default_rng(0)
    by_chance = min(_wrong(codes, _shuffled(groups, ownership, draw), kinds, count, weight) for _ in range(_SHUFFLES))
    return by_chance >= _HOLDERS_EACH and _RATIO * wrong <= by_chance


def _shuffled(groups: Codes, ownership: Ownership | None, draw: np.random.Generator) -> Codes:
    """The groups of rows if people had each other's budgets."""
    if ownership is None:
        return draw.permutation(groups)
    own = np.empty(ownership.holders, groups.dtype)
    own[ownership.of_record] = groups
    return draw.permutation(own)[ownership.of_record]


def _wrong(codes: Codes, groups: Codes, kinds: int, count: int, weight: NDArray[np.float64] | None) -> float:
    """Holders whose group is not the most frequent one of their value; a holder's rows share their one vote."""
    table = np.bincount(codes * count + groups, weight, minlength=kinds * count).reshape(kinds, count)
    return float(table.sum() - table.max(1).sum())


def refuse_two_spellings(names: Sequence[str], where: str) -> None:
    """Refuse different names that may be one person."""
    again = len(names) - len({alike(name) for name in names})
    if again:
        raise SartorError(
            f"{again} of {len(names)} holders in {where} differ from another only in spaces, case or the way a number is written, so both "
            "may be one person: write every holder in one way, on all of their rows."
        )


def refuse_shared(names: Sequence[str], others: Sequence[str]) -> None:
    """Refuse test rows of holders whose data are trained on."""
    known = {alike(name) for name in names}
    shared = sum(alike(name) in known for name in others)
    if shared:
        raise SartorError(
            f"{shared} of {len(others)} test rows are of holders who are in the table that is trained on: accuracy on them would be a "
            "figure about people who are protected; give test rows of others, who agreed to that."
        )


def refuse_trained(private: Sequence[TensorDataset], test: TensorDataset, owners: NDArray[np.int64] | None = None) -> None:
    """Refuse test rows that are the private rows: all of them in any order, or more of them than chance explains (`overlap`).

    Rows are compared as a model sees them, so neither their order nor formats, nor columns that are no features, make a difference.
    `owners` says whose each private row is, part after part. Equal rows of one holder tell nothing of how often strangers agree, so rows
    are then also compared with each holder's counted once.
    """
    if not len(test):
        return
    public, rows = Counter(_digests(test)), [digest for part in private for digest in _digests(part)]
    ways = [Counter(rows)]
    if owners is not None:
        ways.append(Counter(digest for _, digest in set(zip(owners.tolist(), rows, strict=True))))
    tested = max(shared(way, public) for way in ways)
    if tested:
        raise SartorError(
            f"{tested} of {len(test)} test rows are rows of the private data: accuracy on them would be a figure about people who are "
            "protected; give test rows of others, who agreed to that."
        )


def _digests(rows: TensorDataset) -> Iterable[bytes]:
    inputs, labels = rows.tensors
    flat = (inputs.flatten(1) + 0).numpy()  # adding 0 makes one of both zeros
    return (blake2b(x.tobytes() + y.tobytes(), digest_size=16).digest() for x, y in zip(flat, labels.numpy(), strict=True))


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
