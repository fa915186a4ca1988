"""Tables on disk as columns of text: CSV (plain, .gz or .xz) and Parquet. What a column means is decided elsewhere."""

from __future__ import annotations

import csv
import importlib
import io
import os
from pathlib import Path
from typing import Any

from sartor.data.files import opened, reading
from sartor.errors import SartorError

Columns = dict[str, list[str]]


def read_columns(path: str | os.PathLike[str]) -> Columns:
    """Every column of a table, by name; an absent value is an empty text."""
    file = Path(path)
    if not file.is_file():
        raise SartorError(f"there is no table {file}.")
    columns = _parquet(file) if file.suffix in (".parquet", ".pq") else _csv(file)
    if not columns or not next(iter(columns.values())):
        raise SartorError(f"{file.name} has no rows below its line of column names.")
    return columns


def _csv(path: Path) -> Columns:
    with reading(path, "a CSV file in UTF-8"), opened(path) as file:
        reader = csv.reader(io.TextIOWrapper(file, encoding="utf-8-sig", newline=""), skipinitialspace=True)
        try:
            names = [name.strip() for name in next(reader, [])]
            if len(set(names)) < len(names) or not all(names):
                raise SartorError(f"the first line of {path.name} must name every column, each by its own name.")
            rows = []
            for row in reader:
                if row and len(row) != len(names):
                    raise SartorError(f"line {reader.line_num} of {path.name} has {len(row)} fields; its first line names {len(names)}.")
                if row:
                    rows.append(row)
        except csv.Error:
            raise SartorError(f"line {reader.line_num} of {path.name} is not CSV.") from None
    columns = zip(*rows, strict=True) if rows else ((),) * len(names)
    return {name: list(map(str.strip, column)) for name, column in zip(names, columns, strict=True)}


def _parquet(path: Path) -> Columns:
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise SartorError('reading Parquet needs pyarrow: pip install "sartor[parquet]".') from None
    with reading(path, "a Parquet file"):
        table = parquet.read_table(path).to_pydict()
    return {str(name): [_text(value) for value in values] for name, values in table.items()}


def _text(value: Any) -> str:
    """A value as CSV would write it: whole numbers without a fraction, so that 1 and 1.0 are the same category."""
    if value is None or value != value:
        return ""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).strip()
