"""Where a data set keeps its records: what it holds that has a row for each of them, and the same with other people's rows in it.

A store is a tensor, array, list, tuple or dictionary with as many rows as the data set has records, wherever it lies in the
data set, the collate function, or a data set within (a `Subset` of something, the parts of a `ConcatDataset`).

Breaks if: records lie elsewhere: in global variables, class attributes, files and data bases, or in stores of another length. Whole numbers
    in ascending order are where records begin in something else (offsets), and are left as they are.
"""

from __future__ import annotations

import bisect
import copy
import functools
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import ConcatDataset, Dataset, Subset

from sartor.sgd.packages import package_of
from sartor.sgd.pristine import SOME, deep
from sartor.sgd.trees import attributes

LARGEST = 2**30
"""Bytes of a store that is not copied for a comparison."""
_FEWEST = 4  # records from which on a length tells something
_MOST = 2000  # objects that are looked into
_LEAVES = (type(None), bool, int, float, complex, str, bytes, range, set, frozenset, np.generic, type, types.ModuleType)


@dataclass(frozen=True, eq=False)
class Store:
    """Something with a row for each record of a data set, and where a record's own row should be."""

    value: Any
    group: int
    """Stores of one data set have the same."""
    length: int
    row_of: Callable[[int], int | None]

    @property
    def counts(self) -> bool:
        """Whether it holds one whole number for each record: classes, or places in other stores."""
        return _numbers(self.value) is not None

    def number(self, row: int) -> int | None:
        """The whole number that it holds for a record, if it `counts`."""
        found = _numbers(self.value)
        return None if found is None else int(found[row])

    def take(self, rows: NDArray[np.int64]) -> Any:
        """The same store with these rows of it in order."""
        value = self.value
        if isinstance(value, Tensor):
            return value.detach().index_select(0, torch.from_numpy(rows).to(value.device))  # far quicker than by brackets
        if isinstance(value, np.ndarray):
            return value.take(rows, 0)
        keys = list(value) if isinstance(value, dict) else range(len(value))
        entries = [value[keys[row]] for row in rows]
        entries = deep(entries, {}) if len(value) <= SOME else entries  # a small one would be copied with its entries
        if isinstance(value, dict):
            made = copy.copy(value)
            made.update(zip(keys, entries, strict=True))
            return made
        return entries if type(value) is list else tuple(entries)

    def put(self, taken: Any, rows: NDArray[np.int64], at: int) -> Any:
        """What was taken by these rows, of which one is another by now: the same object, where it can be changed."""
        if isinstance(taken, Tensor | np.ndarray):
            taken[at] = self.value[int(rows[at])]
        elif isinstance(taken, list) and len(taken) > SOME:
            taken[at] = self.value[rows[at]]
        else:
            return self.take(rows)
        return taken

    def differs(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """In which rows it would be seen that these were taken; where rows cannot be compared it is taken for granted."""
        value = self.value if isinstance(self.value, np.ndarray | Tensor) else _numbers(self.value)
        if value is None or (isinstance(value, np.ndarray) and value.dtype.hasobject):
            return np.ones(self.length, bool)
        array = value if isinstance(value, np.ndarray) else value.detach().cpu().numpy()
        return np.asarray((array[rows] != array).reshape(self.length, -1).any(1))


@dataclass(frozen=True, eq=False)
class Stores:
    """What was found, and the kinds of things that hold rows but cannot be replaced."""

    found: list[Store] = field(default_factory=list)
    unseen: set[str] = field(default_factory=set)


def stores(dataset: Any, collate: Any) -> Stores:
    """The stores of a data set, and of a collate function.

    >>> len(stores(torch.utils.data.TensorDataset(torch.zeros(10, 2), torch.zeros(10)), None).found)
    2
    """
    walk = _Walk()
    walk.group(dataset, lambda row: row)
    walk.visit(collate, 0, len(dataset), lambda row: row)
    return walk.stores


class _Walk:
    def __init__(self) -> None:
        self.stores, self._met, self._groups = Stores(), dict[int, Any](), 0

    def group(self, dataset: Any, row_of: Callable[[int], int | None]) -> None:
        """A data set whose own numbers of records are its stores' rows."""
        number, length = self._groups, len(dataset)
        self._groups += 1
        if isinstance(dataset, Dataset) or attributes(dataset):
            self._met[id(dataset)] = dataset
            for part in attributes(dataset).values():
                if isinstance(part, Dataset):
                    self._inner(dataset, part, row_of)
                elif isinstance(dataset, ConcatDataset) and part is dataset.datasets:
                    for place, inner in enumerate(part):
                        self._enter(inner, functools.partial(_in_part, dataset.cumulative_sizes, place, row_of))
                else:
                    self.visit(part, number, length, row_of)
        if not isinstance(dataset, Dataset):
            self._met.pop(id(dataset), None)
            self.visit(dataset, number, length, row_of)

    def _inner(self, outer: Any, dataset: Any, row_of: Callable[[int], int | None]) -> None:
        self._enter(dataset, functools.partial(_in_subset, outer.indices, row_of) if isinstance(outer, Subset) else row_of)

    def _enter(self, dataset: Any, row_of: Callable[[int], int | None]) -> None:
        if id(dataset) in self._met:
            return
        try:
            self.group(dataset, row_of)
        except (TypeError, NotImplementedError):  # without a length
            self._met[id(dataset)] = dataset

    def visit(self, value: Any, group: int, length: int, row_of: Callable[[int], int | None]) -> None:
        if isinstance(value, _LEAVES) or id(value) in self._met or len(self._met) > _MOST:
            return
        self._met[id(value)] = value
        if isinstance(value, Dataset):
            self._met.pop(id(value))
            self._enter(value, row_of)
        elif length >= _FEWEST and _length(value) == length:
            self._store(Store(value, group, length, row_of))
        else:
            for part in _within(value):
                self.visit(part, group, length, row_of)

    def _store(self, store: Store) -> None:
        value = store.value
        if _is_ascending(value):
            return
        if not (isinstance(value, Tensor | np.ndarray | dict) or type(value) in (list, tuple)):
            self._around(store)
        elif isinstance(value, np.memmap) or (isinstance(value, Tensor) and value.layout is not torch.strided):
            self.stores.unseen.add(type(value).__name__)
        elif isinstance(value, Tensor | np.ndarray) and value.nbytes > LARGEST:
            self.stores.unseen.add(f"{type(value).__name__} of {value.nbytes >> 20} MiB")
        else:
            self.stores.found.append(store)

    def _around(self, store: Store) -> None:
        """Something with rows: of a class of the user's, that is made of other stores, or else what cannot be replaced."""
        before = len(self.stores.found) + len(self.stores.unseen)
        for part in _within(store.value) if package_of(type(store.value)) is None else ():
            self.visit(part, store.group, store.length, store.row_of)
        if len(self.stores.found) + len(self.stores.unseen) == before:
            self.stores.unseen.add(type(store.value).__name__)


def _in_subset(indices: Any, row_of: Callable[[int], int | None], record: int) -> int | None:
    row = row_of(record)
    return None if row is None or not 0 <= row < len(indices) else int(indices[row])


def _in_part(ends: list[int], place: int, row_of: Callable[[int], int | None], record: int) -> int | None:
    row = row_of(record)
    if row is None or bisect.bisect_right(ends, row) != place:
        return None
    return row - (ends[place - 1] if place else 0)


def _within(value: Any) -> Iterator[Any]:
    if isinstance(value, Tensor | np.ndarray):
        return
    if isinstance(value, Mapping | list | tuple):
        if len(value) <= SOME:
            yield from value.values() if isinstance(value, Mapping) else value
    elif isinstance(value, types.FunctionType):
        for cell in value.__closure__ or ():
            try:
                yield cell.cell_contents
            except ValueError:  # not filled yet
                continue
    elif isinstance(value, types.MethodType):
        yield value.__self__
    else:
        yield from attributes(value).values()


def _length(value: Any) -> int | None:
    if isinstance(value, Tensor | np.ndarray):
        return len(value) if value.ndim else None
    if not hasattr(value, "__getitem__") or not hasattr(value, "__len__"):
        return None
    try:
        return len(value)
    except Exception:  # whatever a class makes of being asked
        return None


def _numbers(value: Any) -> NDArray[np.int64] | None:
    """A store of one whole number for each record as an array, or None where it is another."""
    if isinstance(value, Tensor):
        whole = value.dim() == 1 and not (value.is_floating_point() or value.is_complex() or value.dtype == torch.bool)
        return value.detach().cpu().numpy().astype(np.int64) if whole else None
    if isinstance(value, np.ndarray):
        return value.astype(np.int64) if value.ndim == 1 and value.dtype.kind in "iu" else None
    if type(value) in (list, tuple) and all(type(entry) is int or isinstance(entry, np.integer) for entry in value):
        return np.array(value, np.int64)
    return None


def _is_ascending(value: Any) -> bool:
    found = _numbers(value)
    return found is not None and bool((np.diff(found) >= 0).all())
