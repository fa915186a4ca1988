"""A table of one's own as data: which columns are features, whose each row is, and what each holder allows.

A holder may have several rows. All of them are trained on or all are held out, and one budget covers them (`sartor.data.people`).

Bounds, categories and classes should be given: they are then public, and features reveal nothing but what training protects. What is not
given is taken from the training rows, which no budget covers, and the warning `PrivateScaling` names the columns. Test rows come from a
file of their own, of people who agreed to that, and are none of the training rows. Rows that are held out of the private table instead are
never trained on and never public: the warning `HeldOut` says that figures about them protect nobody. Messages name columns and count rows;
they never show a value.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import TensorDataset

from sartor.budgets import Budgets, Policy
from sartor.data.columns import Features, is_missing, is_numeric, numbers, one_hot, scaled
from sartor.data.dataset import ONE_ROW, Columns, Data, dataset, held_out, read_columns
from sartor.data.people import People, Rows, by_name, refuse_copies, refuse_shared, refuse_trained
from sartor.errors import SartorError, SartorWarning

Bounds = Mapping[str, tuple[float, float]]
Categories = Mapping[str, Sequence[str]]

_MOST_CATEGORIES = 100


class PrivateScaling(SartorWarning):
    """Bounds, categories or classes were taken from private rows, which no budget covers."""


class HeldOut(SartorWarning):
    """Rows were held out of the private table: figures about them are about people who are not protected, so they are sensitive."""


def read_table(
    path: str | os.PathLike[str],
    target: str,
    *,
    features: Sequence[str] | None = None,
    id_column: str | None = None,
    budget_column: str | None = None,
    policy: Policy | None = None,
    delta: float | None = None,
    budgets: Budgets | None = None,
    strictest: bool = False,
    bounds: Bounds | None = None,
    categories: Categories | None = None,
    classes: Sequence[str] | None = None,
    test: str | os.PathLike[str] | None = None,
    test_share: float = 0.0,
    seed: int = 0,
    drop: Sequence[str] = (),
    attributes: Sequence[str] = (),
) -> Data:
    """Read a CSV or Parquet table. A row is a holder, or all rows with one name in `id_column` are.

    Features are the columns in `features`, in that order, otherwise all but the target, the id, the budget, `drop` and what says by its
    name what people allow. A number is clamped to its `bounds` and scaled to [0, 1], a category is one-hot. A missing number (empty, "?"
    or NaN) becomes the middle of its bounds, and is an error where bounds are not given; a missing or unlisted category is a row of zeros.
    `budget_column` holds epsilons, which need `delta`, or levels of the `policy`, and is refused where rows of one holder differ, unless
    the `strictest` of them is to hold; `budgets` are found by the id instead, or are in the order of the rows. `test` is a table of public
    rows; `test_share` of the private holders are held out with all of their rows, which are not public. `attributes` are columns to be
    kept as they are, beside the features.

    Guarantee: with bounds, categories and classes given, a training row's features and label depend on that row alone.
    Breaks if: `PrivateScaling` was warned of; or bounds, categories or classes were chosen by looking at the rows.
    """
    if not 0 <= test_share < 1:
        raise SartorError(f"test_share must lie in [0, 1), not {test_share}.")
    if budgets is not None and budget_column is not None:
        raise SartorError("budgets are given twice: give either a column of the table or budgets.")
    table = read_columns(path)
    reserved = [column for column in (target, id_column, budget_column) if column is not None]
    _check_columns(Path(path).name, table, [*reserved, *drop, *(features or ()), *(bounds or ()), *(categories or ()), *attributes])
    listed = {*reserved, *drop, *(bounds or ()), *(categories or ())}
    named = [column for column in by_name(table) if column not in listed] if features is None else []
    chosen = _features(table, features, reserved, [*drop, *named])
    everyone = People.of_rows(len(table[target])) if id_column is None else People.of_names(table[id_column], f'the column "{id_column}"')
    train, held = _split(len(everyone), test_share, seed)
    rows, aside = everyone.rows_of(train), everyone.rows_of(held)
    own, people = _taken(table, rows), everyone.only(train)
    public = None if test is None else _public(path, test, [target, *chosen], everyone.names, id_column)
    encoding = _encoding(own, chosen, target, bounds or {}, categories or {}, classes)
    if budgets is not None:
        budgets = _of_holders(budgets, everyone, train)
    elif budget_column is not None:
        budgets, as_said = _budgets(own[budget_column], budget_column, policy, delta, people, strictest)
        refuse_copies(own, chosen, {}, as_said)
    told = {name: own[name] for name in reserved[1:]}
    refuse_copies(own, chosen, told, None if budgets is None else people.by_row(budgets), people.ownership)
    training, apart = _encoded(encoding, own), _encoded(encoding, _taken(table, aside))
    testing = _encoded(encoding, _taken(table, aside[:0]) if public is None else public)
    owners = None if everyone.ownership is None else everyone.owners.of_record[np.concatenate([rows, aside])]
    refuse_trained((training, apart), testing, owners)
    return Data(
        Path(path).name.split(".")[0],
        training,
        testing,
        classes=len(encoding.classes),
        shape=tuple(training.tensors[0].shape[1:]),
        holders=people.names,
        budgets=budgets,
        notes=_warned(encoding, _held(everyone, len(held)), test is not None, named),
        from_private=_from_private(encoding),
        held_out=apart if len(held) else None,
        ownership=people.ownership,
        one_holder=ONE_ROW if people.ownership is None else f'all rows that name them in "{id_column}"',
        labels=None if classes is None else tuple(encoding.classes),
        attributes={name: tuple(own[name]) for name in attributes},
    )


def _public(
    path: str | os.PathLike[str], test: str | os.PathLike[str], needed: Sequence[str], holders: Sequence[str] | None, id_column: str | None
) -> Columns:
    """The table of test rows, which is not the one that is trained on and names none of its holders."""
    if Path(test).exists() and os.path.samefile(path, test):
        raise SartorError("the test file is the file that is trained on: give public rows of others, who agreed to that.")
    public = read_columns(test)
    _check_columns(Path(test).name, public, needed)
    for column in public:
        if holders is not None and id_column is not None and column.strip().casefold() == id_column.strip().casefold():
            refuse_shared(holders, public[column])
    return public


def _of_holders(budgets: Budgets, everyone: People, train: Rows) -> Budgets:
    """The budgets of those who are trained on: by name where rows have one, otherwise in the order of the table."""
    if everyone.names is not None:
        budgets = budgets.ordered_as(everyone.names)
    if len(budgets) != len(everyone):
        raise SartorError(
            f"there are {len(budgets)} budgets for {len(everyone)} rows: give one for each row in their order, or name the column of "
            "holders (id_column=, --id-column)."
        )
    names = None if budgets.names is None else [budgets.names[holder] for holder in train]
    return Budgets(budgets.epsilon[train], delta=budgets.delta[train], holders=names, reserve=budgets.reserve)


@dataclass(frozen=True, repr=False)
class _Encoding:
    """How columns become features, and what of that was taken from private rows."""

    target: str
    bounds: Mapping[str, tuple[float, float]]
    categories: Mapping[str, Sequence[str]]
    classes: Sequence[str]
    columns: Sequence[str]
    private: Mapping[str, Sequence[str]]

    def inputs(self, table: Columns) -> Features:
        return np.hstack([self._one(table[column], column) for column in self.columns])

    def _one(self, texts: Sequence[str], column: str) -> Features:
        if column in self.categories:
            return one_hot(texts, self.categories[column])
        return scaled(numbers(texts, column), *self.bounds[column])

    def labels(self, table: Columns) -> NDArray[np.int64]:
        position = {value: i for i, value in enumerate(self.classes)}
        codes = np.array([position.get(text, -1) for text in table[self.target]], np.int64)
        unknown = int((codes < 0).sum())
        if unknown:
            raise SartorError(f'{unknown} of {len(codes)} rows have none of the {len(self.classes)} classes in the column "{self.target}".')
        return codes


def check_column(path: str | os.PathLike[str], column: str) -> None:
    """Refuse a column that the table in a file does not have; which ones it has is public."""
    _check_columns(Path(path).name, read_columns(path), [column])


def _check_columns(name: str, table: Columns, wanted: Iterable[str]) -> None:
    missing = sorted({column for column in wanted if column not in table})
    if missing:
        raise SartorError(f"{name} has no column {_listed(missing)}; it has {_listed(table)}.")


def _features(order: Iterable[str], features: Sequence[str] | None, reserved: Sequence[str], drop: Sequence[str]) -> list[str]:
    if len(set(reserved)) < len(reserved):
        raise SartorError("the target, the id and the budget must be three different columns.")
    both = [column for column in features or () if column in reserved or column in drop]
    if both:
        raise SartorError(f"{_listed(both)} cannot be features: they are the target, the id, the budget or dropped.")
    chosen = list(features) if features is not None else [column for column in order if column not in reserved and column not in drop]
    if not chosen or len(set(chosen)) < len(chosen):
        raise SartorError("the table needs at least one column of features, and each of them once.")
    return chosen


def _split(count: int, share: float, seed: int) -> tuple[Rows, Rows]:
    """Holders who are trained on, and those who are held out: never some of a holder's rows."""
    test = min(max(round(share * count), 1), count - 1) if share else 0
    if share and not test:
        raise SartorError("one holder cannot be both trained on and held out; leave test_share out.")
    return held_out(count, test, seed=seed)


def _encoded(encoding: _Encoding, table: Columns) -> TensorDataset:
    return dataset(encoding.inputs(table), encoding.labels(table))


def _taken(table: Columns, rows: Rows) -> Columns:
    """Some rows, in their order."""
    if len(rows) == len(next(iter(table.values()))):
        return table
    places = rows.tolist()
    return {column: [values[place] for place in places] for column, values in table.items()}


def _encoding(
    table: Columns, columns: Sequence[str], target: str, bounds: Bounds, categories: Categories, classes: Sequence[str] | None
) -> _Encoding:
    ranges, lists = _checked_bounds(bounds), {column: _distinct(given, column) for column, given in categories.items()}
    twice = sorted(set(ranges) & set(lists))
    if twice:
        raise SartorError(f"{_listed(twice)} cannot have both bounds and categories.")
    private: dict[str, list[str]] = {"bounds": [], "categories": [], "classes": []}
    for column in columns:
        if column in lists:
            if set(lists[column]).isdisjoint(table[column]):
                raise SartorError(f'none of the categories given for the column "{column}" is in it; check how they are spelled.')
        elif column in ranges:
            continue
        elif is_numeric(table[column]):
            ranges[column] = _seen_bounds(table[column], column)
            private["bounds"].append(column)
        else:
            lists[column] = _seen_categories(table[column], column)
            private["categories"].append(column)
    if classes is None:
        classes = _seen_classes(table[target], target)
        private["classes"].append(target)
    return _Encoding(target, ranges, lists, _distinct(classes, target), columns, private)


def _checked_bounds(bounds: Bounds) -> dict[str, tuple[float, float]]:
    for column, pair in bounds.items():
        if len(pair) != 2 or not (math.isfinite(pair[0]) and math.isfinite(pair[1]) and pair[0] < pair[1]):
            raise SartorError(f'the bounds of the column "{column}" must be two finite numbers, the lower one first.')
    return {column: (float(low), float(high)) for column, (low, high) in bounds.items()}


def _distinct(values: Sequence[str], column: str) -> list[str]:
    texts = [str(value).strip() for value in values]
    if len(set(texts)) < len(texts) or not texts:
        raise SartorError(f'the categories or classes of the column "{column}" must be listed once each.')
    return texts


def _seen_bounds(texts: Sequence[str], column: str) -> tuple[float, float]:
    values = numbers(texts, column)
    unknown = int((~np.isfinite(values)).sum())
    if unknown:
        raise SartorError(f'{unknown} of {len(texts)} rows have no finite number in the column "{column}": give its bounds, or drop it.')
    return float(values.min()), float(values.max())


def _seen_categories(texts: Sequence[str], column: str) -> list[str]:
    seen = sorted({text for text in texts if not is_missing(text)})
    if not seen:
        raise SartorError(f'the column "{column}" has no values: drop it.')
    if len(seen) > _MOST_CATEGORIES:
        raise SartorError(
            f'the column "{column}" has more than {_MOST_CATEGORIES} different texts: if it names the holder, give it as id_column; '
            "otherwise list its categories or drop it."
        )
    return seen


def _seen_classes(texts: Sequence[str], column: str) -> list[str]:
    missing = sum(is_missing(text) for text in texts)
    if missing:
        raise SartorError(f'{missing} of {len(texts)} rows have no class in the column "{column}".')
    seen = sorted(set(texts))
    if is_numeric(seen):
        if any(not float(text).is_integer() for text in seen):
            raise SartorError(f'the column "{column}" holds measurements and not classes: choose another target, or list its classes.')
        seen.sort(key=float)
    if len(seen) < 2:
        raise SartorError(f'the column "{column}" has a single class in the training rows: list the classes.')
    return seen


def _budgets(
    texts: Sequence[str], column: str, policy: Policy | None, delta: float | None, people: People, strictest: bool
) -> tuple[Budgets, Budgets | None]:
    """What each holder allows; and what each row says, if that is not the same."""
    first, place = people.said_once(texts)
    said = _said([texts[row] for row in first], column, policy, delta)
    budgets = people.one_each(first, said, strictest=strictest)
    as_said = Budgets(said.epsilon[place], delta=said.delta[place])
    return budgets, None if as_said == people.by_row(budgets) else as_said


def _said(texts: Sequence[str], column: str, policy: Policy | None, delta: float | None) -> Budgets:
    if policy is not None:
        return Budgets.from_policy(policy, texts)
    if any(is_missing(text) for text in texts) or not is_numeric(texts):
        raise SartorError(f'the column "{column}" must hold a number in every row; if it holds levels, give the policy that has them.')
    if delta is None:
        raise SartorError(f'the epsilons in the column "{column}" need a delta.')
    return Budgets(numbers(texts, column), delta=delta)


def _held(everyone: People, count: int) -> str:
    """Who is held out, if anybody is. How many rows they have is theirs."""
    if not count:
        return ""
    return f"{count} rows were" if everyone.ownership is None else f"{count} holders, with all of their rows, were"


def _from_private(encoding: _Encoding) -> str:
    """What rows of private people decided: bounds and categories of columns that nobody gave any of."""
    return "; the ".join(f"{what} of {_listed(columns)}" for what, columns in encoding.private.items() if columns)


def _warned(encoding: _Encoding, held: str, separate: bool, named: Sequence[str]) -> tuple[str, ...]:
    """Warn of what was taken from private rows, and return the notes that say the same."""
    notes, taken = [], _from_private(encoding)
    if taken:
        arguments = " and ".join(f"{what}=" for what, columns in encoding.private.items() if columns)
        notes.append(f"The {taken} were taken from private rows, which no budget covers.")
        warnings.warn(f"{notes[-1][:-1]}: give {arguments}, or a schema.", PrivateScaling, stacklevel=3)
    if named:
        notes.append(f"By its name {_listed(named)} says what people allow, so it is no feature; if it is one, list it in the schema.")
    if held:
        notes.append(f"{held} held out of the private table: figures about them are about people who are not protected.")
        warnings.warn(f"{notes[-1][:-1]}; give a public table (test=).", HeldOut, stacklevel=3)
    if separate:
        notes.append("Test rows come from a table of their own, which is taken to be public.")
    return tuple(notes)


def _listed(columns: Iterable[str]) -> str:
    return ", ".join(f'"{column}"' for column in columns)
