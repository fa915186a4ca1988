"""Numbers as files and command lines carry them: JSON has no infinity, so infinity is the string "inf"; lists have commas. And
the numbers that no run can go on with."""

from __future__ import annotations

import math
from numbers import Integral
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


def several(count: int, thing: str) -> str:
    """So many things, in words: the plural ends on s.

    >>> several(1, "step"), several(1_200, "step")
    ('1 step', '1,200 steps')
    """
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


def check_seed(seed: int | None) -> None:
    """Refuse a seed that not every generator takes."""
    whole = isinstance(seed, Integral) and not isinstance(seed, bool)
    if seed is not None and not (whole and 0 <= seed < 2**63):
        raise SartorError(f"a seed must be a whole number from 0 to 2^63 - 1, not {seed!r}.")


def check_pace(lr: float, momentum: float) -> None:
    """Refuse a learning rate or a momentum that no training can go on with."""
    if not (lr > 0 and math.isfinite(lr)):
        raise SartorError(f"the learning rate must be positive and finite, not {lr}.")
    if not (momentum >= 0 and math.isfinite(momentum)):
        raise SartorError(f"the momentum must be 0 or more and finite, not {momentum}.")
