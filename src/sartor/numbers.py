"""Numbers as files and command lines carry them: JSON has no infinity, so infinity is the string "inf"; lists have commas."""

from __future__ import annotations

import math
from typing import Any

from sartor.errors import SartorError


def to_json_number(value: float) -> float | str:
    """A float that JSON can hold."""
    return "inf" if math.isinf(value) else float(value)


def from_json_number(value: Any) -> float:
    """The float behind a JSON value."""
    if value == "inf":
        return math.inf
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"a number was expected, not {type(value).__name__}")
    return float(value)


def number(text: Any) -> float:
    """The number that a text is, as people and tables write it: Python's underscores are no part of one.

    >>> number("1e-5"), number(" inf")
    (1e-05, inf)
    """
    if "_" in str(text):
        raise ValueError(f"{text} is not a number")
    return float(text)


def numbers(text: str, option: str) -> list[float]:
    """Numbers separated by commas."""
    try:
        return [number(part) for part in text.split(",")]
    except ValueError:
        raise SartorError(f'{option} takes numbers separated by commas, not "{text}".') from None
