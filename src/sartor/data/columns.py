"""Columns of text to features: numbers scaled by bounds, categories one-hot. Both are arguments: nothing is learned here.

A missing value is an empty field, "?" or NaN. A missing number becomes the middle of its bounds, a missing or unlisted category a row of
zeros: the number of features never depends on who left something out.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat

import numpy as np
from numpy.typing import NDArray

from sartor.errors import SartorError
from sartor.numbers import number

Features = NDArray[np.float32]

_MISSING = frozenset(("", "?"))


def is_missing(text: str) -> bool:
    """Whether a field says that its value is not known."""
    return text in _MISSING


def numbers(texts: Sequence[str], column: str) -> NDArray[np.float64]:
    """The numbers in a column, NaN where they are missing.

    Example:
        >>> numbers(["3", "?", "1e2"], "age").tolist()
        [3.0, nan, 100.0]
    """
    kinds, codes = coded(texts)
    values = [_number(text) for text in kinds]
    wrong = int(np.array([value is None for value in values], bool)[codes].sum())
    if wrong:
        raise SartorError(f'{wrong} of {len(texts)} rows have no number in the column "{column}"; give it categories, or drop it.')
    return np.array(values, np.float64)[codes]


def is_numeric(texts: Sequence[str]) -> bool:
    """Whether every value that is there is a number, and there is one."""
    return all(_number(text) is not None for text in texts) and not all(is_missing(text) for text in texts)


def scaled(values: NDArray[np.float64], low: float, high: float) -> Features:
    """Numbers clamped to their bounds and scaled to [0, 1], as one feature; a missing one stands in the middle.

    Example:
        >>> scaled(np.array([0.0, 5.0, 99.0, np.nan]), 0, 10).ravel().tolist()
        [0.0, 0.5, 1.0, 0.5]
    """
    known = np.where(np.isnan(values), (low + high) / 2, values)
    width = high - low
    inside = (np.clip(known, low, high) - low) / width if width > 0 else np.zeros(len(known))
    return inside.astype(np.float32)[:, None]


def one_hot(texts: Sequence[str], categories: Sequence[str]) -> Features:
    """One feature for each category; a row of zeros for a value that is missing or not listed.

    Example:
        >>> one_hot(["b", "?"], ["a", "b"]).tolist()
        [[0.0, 1.0], [0.0, 0.0]]
    """
    position = {category: i for i, category in enumerate(categories)}
    codes = np.fromiter(map(position.get, texts, repeat(-1)), np.intp, len(texts))
    features = np.zeros((len(texts), len(categories)), np.float32)
    listed = np.flatnonzero(codes >= 0)
    features[listed, codes[listed]] = 1
    return features


def coded(texts: Sequence[str]) -> tuple[list[str], NDArray[np.intp]]:
    """The different texts of a column in the order in which they come, and which of them each row holds.

    Example:
        >>> kinds, codes = coded(["b", "a", "b"])
        >>> kinds, codes.tolist()
        (['b', 'a'], [0, 1, 0])
    """
    place = {text: i for i, text in enumerate(dict.fromkeys(texts))}
    return list(place), np.fromiter(map(place.__getitem__, texts), np.intp, len(texts))


def _number(text: str) -> float | None:
    if is_missing(text):
        return float("nan")
    try:
        return number(text)
    except ValueError:
        return None
