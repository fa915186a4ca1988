"""Which columns say what people allow: they are never features.

A model that has seen budgets as a feature shows what they go with, and needs them from everyone whom it is asked about. The column that is
given as the budget is known; here are the others: those that say it by their name, and those that say the same in a copy or in other words.

A column says it in other words if the budget follows from its value for 99 of 100 holders, where a column of the same values that has
nothing to do with budgets is wrong four times as often. So neither keys, which tell everything by chance, nor a budget that nearly all
have, count. Where holders have several rows, all rows of one holder count as much as the only row of another: what repeats is no evidence.

Breaks if: a column has many values (more than ten for each budget, as measurements have); or it takes several columns to say it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from sartor.budgets import Budgets
from sartor.data.columns import coded, is_missing, is_numeric, numbers
from sartor.data.table_files import Columns
from sartor.errors import SartorError
from sartor.names import alike
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
