"""One shape for all data: training rows that belong to holders, test rows that are public, and what a model must know of both.

Rows that were held out of a private table are neither: they are not trained on, no budget covers them, and figures about them are
sensitive.

Inputs are float32, or int64 where they are tokens; labels are int64. `budgets` and `holders`, where there are any, have one entry for each
holder. Row i of `train` belongs to holder i, or to the one that `ownership` says where holders have several rows. Nothing here prints a
record, a key or a budget, nor how many rows somebody has.

Its files lie in one of the layouts in which a data set is handed around, or one clear error says where it was looked for. Tables are read
as columns of text, from CSV (plain, .gz or .xz) and Parquet; what a column means is decided elsewhere. Which rows are held out depends on
the number of rows and a seed alone, and is the same on every machine and version.
"""

from __future__ import annotations

import contextlib
import csv
import gzip
import hashlib
import importlib
import io
import json
import lzma
import os
import pickle
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import TensorDataset

from sartor.budgets import Budgets
from sartor.errors import SartorError
from sartor.ownership import Ownership
from sartor.run import sealed

Folder = str | os.PathLike[str] | None

_BROKEN = (
    OSError,
    EOFError,
    ValueError,
    KeyError,
    IndexError,
    TypeError,
    AttributeError,
    lzma.LZMAError,
    zlib.error,
    pickle.UnpicklingError,
)


class Layout(NamedTuple):
    """One way in which a data set is stored: folders that may hold it, and its files, each under any of several names."""

    name: str
    places: tuple[str, ...]
    files: tuple[tuple[str, ...], ...]


class Found(NamedTuple):
    """The layout that was found, its folder, and its files in the order of the layout."""

    layout: str
    folder: Path
    files: tuple[Path, ...]


def root(folder: Folder) -> Path:
    """The folder given, otherwise the one that the environment variable SARTOR_DATA names, otherwise `data` in the working folder."""
    return Path(folder if folder is not None else os.environ.get("SARTOR_DATA") or "data")


def find(dataset: str, folder: Folder, layouts: Sequence[Layout]) -> Found:
    """The first layout that is complete under the folder."""
    base = root(folder)
    if not base.is_dir():
        raise SartorError(
            f"{dataset} cannot be read: there is no folder {base}; say where it is with --data (folder= in Python) or in SARTOR_DATA."
        )
    for layout in layouts:
        for place in layout.places:
            paths = [next((base / place / name for name in names if (base / place / name).exists()), None) for names in layout.files]
            if all(path is not None for path in paths):
                return Found(layout.name, base / place, tuple(path for path in paths if path is not None))
    wanted = "; or ".join(f"{', '.join(names[0] for names in layout.files)} (in {' or '.join(layout.places)})" for layout in layouts)
    raise SartorError(f"{dataset} was not found under {base}: looked for {wanted}.")


def opened(path: Path) -> IO[bytes]:
    """A file for reading bytes; .gz and .xz are decompressed on the way."""
    if path.suffix == ".gz":
        return cast("IO[bytes]", gzip.open(path))
    if path.suffix == ".xz":
        return lzma.open(path)
    return path.open("rb")


@contextlib.contextmanager
def reading(path: Path, kind: str) -> Iterator[None]:
    """Turn whatever goes wrong with a broken file into one sentence without its contents."""
    try:
        yield
    except SartorError:
        raise
    except _BROKEN as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise SartorError(f"{path} cannot be read as {kind}: {reason}.") from None


def lines(path: Path) -> list[str]:
    """The lines of a UTF-8 text, split at line feeds alone, without empty ones."""
    with reading(path, "UTF-8 text"), opened(path) as file:
        return [line for line in file.read().decode("utf-8").split("\n") if line.strip()]


def held_out(count: int, test: int, *, seed: int = 0) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Training and test rows, each in their original order: `test` of `count` rows, chosen by a hash of their position.

    Example:
        >>> train, test = held_out(10, 3)
        >>> len(train), len(test), sorted([*train, *test]) == list(range(10))
        (7, 3, True)
    """
    marks = [hashlib.sha256(f"{seed}:{row}".encode()).digest() for row in range(count)]
    order = sorted(range(count), key=marks.__getitem__)
    return np.array(sorted(order[test:]), np.intp), np.array(sorted(order[:test]), np.intp)


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


ONE_ROW = "one training row"


@dataclass(frozen=True, eq=False, repr=False)
class Data:
    """Training and test rows, the classes, the shape of one input, and who holds the rows.

    `vocabulary` is how many tokens there are, padding (token 0) included, where inputs are tokens. `holders` are the names of the holders,
    where the source has any, each once. `ownership` says whose the training rows are; it is None where each is a holder's only one.
    `held_out` are private rows that are not trained on, of holders who have no training row. `notes` say in words what a reader of results
    should know about the source, and `one_holder` what counts as one holder. `labels` name the classes, where the names are public.
    `attributes` are further columns that were asked for, with one text for each training row. `from_private` says what was taken from
    private rows before anything was trained, and so follows them outside of every budget; it is empty where nothing was.
    """

    name: str
    train: TensorDataset
    test: TensorDataset
    classes: int
    shape: tuple[int, ...]
    vocabulary: int | None = None
    holders: tuple[str, ...] | None = None
    budgets: Budgets | None = None
    notes: tuple[str, ...] = ()
    held_out: TensorDataset | None = None
    ownership: Ownership | None = None
    one_holder: str = ONE_ROW
    labels: tuple[str, ...] | None = None
    attributes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    from_private: str = ""

    def __post_init__(self) -> None:
        if self.ownership is not None and len(self.ownership) != len(self.train):
            raise SartorError(f"{self.name} has {len(self.train)} training rows, but the ownership is of {len(self.ownership)} records.")
        unit, several = ("row", "training rows") if self.ownership is None else ("holder", "holders")
        for what, of in (("names of holders", self.holders), ("budgets", self.budgets)):
            if of is not None and len(of) != self.people:
                raise SartorError(f"{self.name} has {self.people} {several} but {len(of)} {what}; give one for each {unit}.")
        held = () if self.held_out is None else (("held-out", self.held_out),)
        for part, pairs in (("training", self.train), ("test", self.test), *held):
            inputs, labels = pairs.tensors
            if tuple(inputs.shape[1:]) != self.shape:
                raise SartorError(f"the {part} rows of {self.name} have shape {tuple(inputs.shape[1:])} instead of {self.shape}.")
            outside = int(((labels < 0) | (labels >= self.classes)).sum())
            if outside:
                raise SartorError(f"{outside} {part} rows of {self.name} have a label outside 0 to {self.classes - 1}.")

    @property
    def people(self) -> int:
        """How many holders there are."""
        return len(self.train) if self.ownership is None else self.ownership.holders

    @property
    def names_of_classes(self) -> tuple[str, ...]:
        """A public name for each class: its own, or its number among the outputs of the model, which everybody sees."""
        return tuple(str(place) for place in range(self.classes)) if self.labels is None else self.labels

    def fingerprint(self) -> str:
        """By which the same training rows of the same holders, in the same order, are known again. Sensitive: it follows from the rows."""
        return sealed.digest(self._content())

    def _content(self) -> Iterator[bytes]:
        owners = None if self.ownership is None else self.ownership.of_record.tolist()
        shapes = [list(tensor.shape) for tensor in self.train.tensors]
        yield json.dumps([shapes, self.holders, owners]).encode()
        for tensor in self.train.tensors:
            yield np.ascontiguousarray(tensor.numpy()).tobytes()

    def __repr__(self) -> str:
        rows = f"{len(self.train)} training and {len(self.test)} test rows"
        if self.ownership is not None:
            rows = f"{len(self.train)} training rows of {self.people} holders and {len(self.test)} test rows"
        tokens = f", {self.vocabulary} tokens" if self.vocabulary else ""
        return f"Data({self.name}: {rows} of shape {self.shape}, {self.classes} classes{tokens})"


def dataset(inputs: NDArray[np.generic] | torch.Tensor, labels: NDArray[np.generic]) -> TensorDataset:
    """Inputs and labels as tensors of one row each: integers become int64 tokens, everything else float32."""
    x = inputs if isinstance(inputs, torch.Tensor) else torch.from_numpy(np.ascontiguousarray(inputs))
    y = torch.from_numpy(np.array(labels, np.int64))
    if len(x) != len(y):
        raise SartorError(f"there are {len(x)} inputs but {len(y)} labels.")
    return TensorDataset(x.to(torch.float32 if x.is_floating_point() else torch.int64), y)
