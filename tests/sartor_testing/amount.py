"""How much of what takes long is run: a part by `make test`, all of it by `make test-long`, which gives pytest --long."""

from collections.abc import Iterable
from typing import Any

import pytest

long = False  # set by conftest.py before tests are collected


def examples(quick: int, whole: int) -> int:
    """The number of Hypothesis's examples."""
    return whole if long else quick


def most_are_long(cases: Iterable[Any], quick: int) -> list[Any]:
    """Cases to parametrize with, of which the first few are always run."""
    return [case if place < quick else pytest.param(case, marks=pytest.mark.long) for place, case in enumerate(cases)]
