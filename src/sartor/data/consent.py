"""Which columns say what people allow: they are never features.

A model that has seen budgets as a feature shows what they go with, and needs them from everyone whom it is asked about. The column that is
given as the budget is known; here are the others: those that say it by their name, and those that say the same in a copy or in other words.

A column says it in other words if the budget follows from its value in 99 of 100 rows, where a column of the same values that has nothing
to do with budgets is wrong four times as often. So neither keys, which tell everything by chance, nor a budget that nearly all have, count.

Breaks if: a column has many values (more than ten for each budget, as measurements have); or it takes several columns to say it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from sartor.budgets import Budgets
from sartor.data.columns import is_missing, is_numeric, numbers
from sartor.data.table_files import Columns
from sartor.errors import SartorError

_NAMES = frozenset(("holder", "budget", "consent", "level", "epsilon", "delta"))
_ROWS_EACH = 10  # so many rows for each value: then one-to-one is not chance
_VALUES_EACH = 10  # words for one budget
_WRONG, _RATIO, _SHUFFLES = 0.01, 4, 20


def by_name(columns: Iterable[str]) -> list[str]:
    """Columns that are called as what people allow is called here.

    Example:
        >>> by_name(["age", "Delta"])
        ['Delta']
    """
    return [column for column in columns if column.strip().casefold() in _NAMES]


def refuse_copies(table: Columns, features: Sequence[str], told: Mapping[str, Sequence[str]], budgets: Budgets | None) -> None:
    """Refuse features that repeat a column in `told`, or the budgets of these rows: the same values, or others one to one."""
    for column in features:
        texts = table[column]
        same = [name for name, values in told.items() if texts == list(values) and len(set(texts)) > 1]
        if same:
            raise SartorError(f'the column "{column}" is a copy of "{same[0]}" and cannot be a feature: drop it (drop=, or in the schema).')
        if budgets is not None and _says_budgets(texts, column, budgets):
            raise SartorError(
                f'the column "{column}" holds budgets of the holders and cannot be a feature: drop it (drop=, or in the schema).'
            )


def refuse_budget_features(features: NDArray[np.generic], budgets: Budgets) -> None:
    """Refuse arrays that hold the budgets as a feature."""
    flat = features.reshape(len(features), -1)
    for values in (budgets.epsilon, budgets.delta):
        own = values.astype(flat.dtype) if flat.dtype.kind == "f" else values
        if len(np.unique(values)) > 1 and bool((flat == own[:, None]).all(0).any()):
            raise SartorError("one of the features equals the holders' budgets: remove it from the arrays.")


def _says_budgets(texts: Sequence[str], column: str, budgets: Budgets) -> bool:
    if is_numeric(texts) and not any(is_missing(text) for text in texts):
        values = numbers(texts, column)
        if any(len(np.unique(own)) > 1 and np.array_equal(values, own) for own in (budgets.epsilon, budgets.delta)):
            return True
    count = len(budgets.groups)
    pairs = set(zip(texts, budgets.groups.of_holder.tolist(), strict=True))
    if 1 < count == len(set(texts)) == len(pairs) and len(texts) >= _ROWS_EACH * count:
        return True
    return _tells_budgets(texts, budgets.groups.of_holder, count)


def _tells_budgets(texts: Sequence[str], groups: NDArray[np.intp], count: int) -> bool:
    """Whether groups follow from the values in nearly all rows, and far better than they would by chance."""
    values = np.unique(np.asarray(texts), return_inverse=True)[1].reshape(-1)
    kinds = int(values.max()) + 1
    if kinds > min(_VALUES_EACH * count, len(values) / _ROWS_EACH):
        return False
    wrong, draw = _wrong(values, groups, kinds, count), np.random.default_rng(0)
    by_chance = min(_wrong(values, draw.permutation(groups), kinds, count) for _ in range(_SHUFFLES))
    return by_chance >= _ROWS_EACH and wrong <= _WRONG * len(values) and _RATIO * wrong <= by_chance


def _wrong(values: NDArray[np.intp], groups: NDArray[np.intp], kinds: int, count: int) -> int:
    """Rows whose group is not the most frequent one of their value."""
    table = np.bincount(values * count + groups, minlength=kinds * count).reshape(kinds, count)
    return int(len(values) - table.max(1).sum())
