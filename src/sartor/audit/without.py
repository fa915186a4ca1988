"""The data set of the second run: other people's records stand in a holder's places.

Raw records (a tensor, an array, a `TensorDataset`, columns by name or in a tuple) are copied with other rows in these places, so whatever
`train` makes of several of them is made of others. Of any other data set records are handed out by their places alone (`Taken`): what it
makes of several records inside, a mean or a neighbour, still holds the holder's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset

from sartor.data.dataset import Data

Rows = NDArray[np.integer]
Made = Callable[[list[Any]], Any]

_LARGER = 1_000.0


class Taken(Dataset[Any]):
    """A data set in another order: the record in place i is that in place `order[i]` of the first. It has nothing but records."""

    def __init__(self, dataset: Any, order: Rows) -> None:
        self._dataset, self._order = dataset, order

    def __len__(self) -> int:
        return len(self._order)

    def __getitem__(self, place: int) -> Any:
        return self._dataset[int(self._order[place])]

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"replay hands out records of this data set by their places and cannot replace a holder in its {name}: give replay the raw "
            "records, as tensors, and make the data set in train."
        )


def fresh(dataset: Any) -> Any:
    """The data set as a run is given it: a copy of raw records, or records by their places."""
    return _taken(dataset, None if (count := _count(dataset)) is None else np.arange(count))


def without(dataset: Any, rows: Rows) -> tuple[Any, set[str]]:
    """The data set with other people's records in some places, and what could not be replaced.

    The others are drawn by lot from those whose single numbers, such as a class, are other ones, where there are such.
    """
    unseen, count = {f"records in {type(dataset).__name__}"}, _count(dataset)
    if count is None:
        return dataset, unseen
    kept = _arrays(dataset)
    arrays = [] if kept is None else kept[0]
    order = _with_others(arrays, count, rows)
    same = np.all([_rows_alike(array, order, rows) for array in arrays], 0) if arrays else order[rows] == rows
    instead = _taken(dataset, order)
    inside = {f"records that {type(dataset).__name__} makes of several people's inside: give replay the raw ones, and make it in train"}
    return instead, (unseen if np.any(same) else set()) | (inside if isinstance(instead, Taken) else set())


def extreme(dataset: Any, rows: Rows) -> Any:
    """The same with numbers far larger than anybody's in these places; None where there are none that can be set.

    Whoever is not drawn may have any record, and a scale or a range of all is that of the largest.
    """
    kept = _arrays(dataset)
    if kept is None:
        return None
    arrays, made = kept
    return made([_enlarged(array, rows) for array in arrays]) if any(map(_is_float, arrays)) else None


def _is_float(array: Any) -> bool:
    is_float = array.is_floating_point() if isinstance(array, torch.Tensor) else array.dtype.kind == "f"
    return bool(is_float and np.prod(array.shape))


def _enlarged(array: Any, rows: Rows) -> Any:
    if not _is_float(array):
        return array
    values = torch.as_tensor(array).clone()
    values[torch.from_numpy(rows)] += _LARGER * (1 + values.abs().nan_to_num(0.0, 0.0, 0.0).max())
    return values if isinstance(array, torch.Tensor) else values.numpy()


def _is_array(value: Any) -> bool:
    return isinstance(value, torch.Tensor | np.ndarray) and value.ndim > 0


def _arrays(dataset: Any) -> tuple[list[Any], Made] | None:
    """The arrays with a row for each record that raw records are, and what makes such records of others like them."""
    if _is_array(dataset):
        return [dataset], lambda new: new[0]
    if type(dataset) is TensorDataset:
        return list(dataset.tensors), lambda new: TensorDataset(*new)
    if isinstance(dataset, Data):
        return list(dataset.train.tensors), lambda new: replace(dataset, train=TensorDataset(*new))
    if type(dataset) is Subset and (kept := _arrays(dataset.dataset)) is not None:
        return [array[np.asarray(dataset.indices)] for array in kept[0]], kept[1]
    if isinstance(dataset, Mapping):
        return _columns(list(dataset.values()), lambda new: dict(zip(dataset, new, strict=True)))
    return _columns(list(dataset), tuple) if isinstance(dataset, tuple) else None


def _columns(columns: list[Any], made: Made) -> tuple[list[Any], Made] | None:
    is_table = bool(columns) and all(map(_is_array, columns)) and len({len(column) for column in columns}) == 1
    return (columns, made) if is_table else None


def _count(dataset: Any) -> int | None:
    """How many records there are; None of what hands out none by their places."""
    kept = _arrays(dataset)
    if kept is not None:
        return len(kept[0][0]) if kept[0] else None
    is_map = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
    return None if isinstance(dataset, IterableDataset | Mapping | str) or not is_map else len(dataset)


def _taken(dataset: Any, order: Rows | None) -> Any:
    kept = _arrays(dataset)
    if order is None:
        return dataset
    if kept is not None:
        return kept[1]([array[order] for array in kept[0]])
    return [dataset[place] for place in order.tolist()] if type(dataset) is list else Taken(dataset, order)


def _with_others(arrays: list[Any], count: int, rows: Rows) -> Rows:
    """All places in order, with those of others instead of these, the same others whenever it is asked."""
    order, generator = np.arange(count), np.random.default_rng(rows[:1].tolist())
    others = np.setdiff1d(order, rows)
    single = [np.asarray(array).reshape(count) for array in arrays if np.prod(array.shape) == count]
    for row in rows.tolist() if len(others) else ():
        differ = [values[others] != values[row] for values in single]
        unlike = [others[np.logical_and.reduce(differ)], *(others[one] for one in differ), others] if differ else [others]
        order[row] = generator.choice(next(places for places in unlike if len(places)))
    return order


def _rows_alike(array: Any, order: Rows, rows: Rows) -> NDArray[np.bool_]:
    """In which of these rows it would not be seen that others were taken."""
    alike = np.asarray(array[order[rows]] == array[rows]).reshape(len(rows), -1)
    return np.asarray(alike.all(1))
