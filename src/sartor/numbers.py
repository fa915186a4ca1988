"""Numbers as files carry them: JSON has no infinity, so infinity is the string "inf"."""

from __future__ import annotations

import math
from typing import Any


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
