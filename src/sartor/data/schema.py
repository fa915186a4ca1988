"""A schema: what is publicly known of a table's columns, written down before anyone looks at the rows.

target = "income"
classes = ["<=50K", ">50K"]
id_column = "person"
drop = ["comment"]

[columns.age]
bounds = [17, 90]

[columns.sex]
categories = ["Male", "Female"]
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, TypedDict, cast

from sartor.documents import read_toml
from sartor.errors import SartorError

_TEXTS = ("target", "id_column", "budget_column")
_LISTS = ("features", "drop", "classes")
_NUMBERS = ("delta", "test_share", "seed")


class Schema(TypedDict, total=False):
    """Arguments of `read_table`: use as `read_table(path, **schema)`."""

    target: str
    id_column: str
    budget_column: str
    features: list[str]
    drop: list[str]
    classes: list[str]
    delta: float
    test_share: float
    seed: int
    bounds: dict[str, tuple[float, float]]
    categories: dict[str, list[str]]


def read_schema(path: str | os.PathLike[str]) -> Schema:
    """Read a schema from a TOML file."""
    name = Path(path).name
    document = read_toml(path, "the schema")
    columns = document.pop("columns", {})
    for key, value in document.items():
        _check(name, key, value)
    if not isinstance(columns, dict) or not all(isinstance(column, dict) for column in columns.values()):
        raise SartorError(f"the schema {name} needs a table [columns.NAME] for each column that it describes.")
    schema: dict[str, Any] = {key: [str(item) for item in value] if key in _LISTS else value for key, value in document.items()}
    schema["bounds"] = {column: _bounds(name, column, what["bounds"]) for column, what in columns.items() if "bounds" in what}
    schema["categories"] = {
        column: _categories(name, column, what["categories"]) for column, what in columns.items() if "categories" in what
    }
    for column, what in columns.items():
        if set(what) not in ({"bounds"}, {"categories"}):
            raise SartorError(f"the schema {name} must give the column {column} either bounds or categories, and nothing else.")
    return cast("Schema", schema)


def _check(name: str, key: str, value: Any) -> None:
    kinds: dict[str, Any] = {**dict.fromkeys(_TEXTS, str), **dict.fromkeys(_LISTS, list), **dict.fromkeys(_NUMBERS, (int, float))}
    if key not in kinds:
        raise SartorError(f'the schema {name} has an unknown key "{key}"; it may have columns, {", ".join(kinds)}.')
    if not isinstance(value, kinds[key]) or isinstance(value, bool):
        what = "a text" if key in _TEXTS else "a list" if key in _LISTS else "a number"
        raise SartorError(f"in the schema {name}, {key} must be {what}.")


def _bounds(name: str, column: str, value: Any) -> tuple[float, float]:
    try:
        low, high = value
        return float(low), float(high)
    except (TypeError, ValueError):
        raise SartorError(f"in the schema {name}, the bounds of {column} must be two numbers.") from None


def _categories(name: str, column: str, value: Any) -> list[str]:
    if not isinstance(value, list) or not value:
        raise SartorError(f"in the schema {name}, the categories of {column} must be a list.")
    return [str(item) for item in value]
