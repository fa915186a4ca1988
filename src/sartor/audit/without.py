"""The data set of the second run: other people's records stand in a holder's places, and what could not be replaced is said.

Records are replaced where they lie (`sartor.sgd.stores`), so that whatever a data set makes of several of them has others to be made of.
A record may lie in another place than its number says, in an order of its own; then it is looked for, by halves.

Breaks if: records lie where no store is found, or a data set remembers something of them beside: what could be a statistic of them all, a
    number or an array that has no row for each, is named as unseen.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset, TensorDataset

from sartor.sgd.contents import content
from sartor.sgd.generators import repeatable
from sartor.sgd.pristine import light
from sartor.sgd.stores import Store, stores
from sartor.sgd.trees import attributes

Rows = NDArray[np.integer]

_LOOKED_AT = 10  # records that are fetched to see whether they were replaced, or were not


def without(dataset: Any, rows: Rows) -> tuple[Any, set[str]]:
    """The data set with other people's records in some places, and what could not be replaced in it."""
    if type(dataset) is TensorDataset:
        order = torch.from_numpy(_others_for(rows, len(dataset)))
        return TensorDataset(*(tensor[order] for tensor in dataset.tensors)), set()
    try:
        found = stores(dataset, None)
    except TypeError:  # no data set: whoever trains has the records elsewhere
        return dataset, {f"records in {type(dataset).__name__}"}
    unseen = {f"records in {name}" for name in found.unseen} | set(beside(dataset, [store.value for store in found.found]))
    before = copied(dataset)
    replaced = _replaced(dataset, [(store, _by_number(store, rows)) for store in found.found])
    if replaced is not None and not _others_are_the_same(before, copied(replaced), rows):
        looked_for = _replaced(dataset, [(store, _looked_for(dataset, store, rows)) for store in found.found])
        if looked_for is not None and _others_are_the_same(before, copied(looked_for), rows):
            replaced = looked_for  # or else records are made of several rows, and what that moves is for the replay to see
    if replaced is None or _has_kept(before, copied(replaced), rows):
        unseen |= {f"records in {type(dataset).__name__}"}
    return (dataset if replaced is None else replaced), unseen


def copied(dataset: Any) -> Any:
    """A copy, so that what a run leaves in its data set, as a cache does, is not there in the next; what cannot be copied is shared."""
    try:
        return copy.deepcopy(dataset)
    except Exception:  # whatever a class makes of being copied
        pass
    try:
        return copy.deepcopy(dataset, _spared(dataset))
    except Exception:  # the same, of the whole
        return dataset


def beside(dataset: Any, known: list[Any]) -> Iterator[str]:
    """What a data set or a collate function holds beside records that could follow from all: arrays and numbers, by their names."""
    held = _named(dataset)
    for name, value in held.items():
        if any(value is one for one in known):
            continue
        if isinstance(value, Dataset):
            yield from beside(value, known)
        elif isinstance(value, float | torch.Tensor | np.ndarray | np.floating) and np.size(value):
            yield f"{name}, which may follow from all records"


def is_random(make: Any, *owners: Any) -> bool:
    """Whether something comes out otherwise under other random numbers."""
    try:
        return bool(content(repeatable(1, make, *owners)) != content(repeatable(2, make, *owners)))
    except Exception:  # whatever it makes of being asked, or what shows nothing
        return False


def _named(value: Any) -> dict[str, Any]:
    code = getattr(value, "__code__", None)
    if code is None:
        return attributes(value) | _named(getattr(value, "func", None)) if value is not None else {}
    cells = value.__closure__ or ()
    return {name: cell.cell_contents for name, cell in zip(code.co_freevars, cells, strict=False) if _is_filled(cell)}


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _spared(dataset: Any) -> dict[int, Any]:
    """What in a data set cannot be copied (a lock, a file), by its id, as what stands for it."""
    found = {}
    for value in attributes(dataset).values():
        try:
            copy.deepcopy(value)
        except Exception:  # whatever a class makes of being copied
            found[id(value)] = value
    return found


def _light(dataset: Any, instead: Mapping[int, Any]) -> Any:
    try:
        return light(dataset, dict(instead))
    except Exception:  # whatever a class makes of being copied
        return light(dataset, {**_spared(dataset), **instead})


def _replaced(dataset: Any, places: list[tuple[Store, Rows]]) -> Any:
    """The data set with others' rows in these places of its stores; nothing, where there is no such place."""
    instead = {id(store.value): _without(store, rows) for store, rows in places if 0 < len(rows) < store.length}
    return _light(dataset, instead) if instead else None


def _others_for(rows: Rows, length: int) -> NDArray[np.int64]:
    """All places in order, with those of others instead of these."""
    order = np.arange(length)
    others = np.setdiff1d(order, rows)
    if len(others):
        order[rows] = others[np.arange(len(rows)) % len(others)]
    return order


def _without(store: Store, rows: Rows) -> Any:
    return store.take(_others_for(rows, store.length))


def _by_number(store: Store, rows: Rows) -> Rows:
    """Where records are, as their numbers say."""
    found = [row for record in rows.tolist() if (row := store.row_of(int(record))) is not None and 0 <= row < store.length]
    return np.array(found, np.int64)


def _looked_for(dataset: Any, store: Store, rows: Rows) -> Rows:
    """Where records are, wherever that is; nowhere, where they are made of none of the store's rows, or of several."""
    found = [row for record in rows.tolist() if (row := _own_row(dataset, store, int(record))) is not None]
    return np.array(found, np.int64)


def _own_row(dataset: Any, store: Store, record: int) -> int | None:
    own = _fetched(copied(dataset), record)

    def is_made_of(part: Rows) -> bool:
        kept = np.zeros(store.length, bool)
        kept[part] = True
        others = np.roll(np.arange(store.length), 1)  # everybody has their neighbour's row
        changed = _light(dataset, {id(store.value): store.take(np.where(kept, np.arange(store.length), others))})
        return _fetched(changed, record) == own

    part = np.arange(store.length)
    if own is None or is_made_of(part[:0]):
        return None
    while len(part) > 1:
        halves = [half for half in np.array_split(part, 2) if is_made_of(half)]
        if not halves:
            return None
        part = halves[0]
    return int(part[0])


def _fetched(dataset: Any, record: int) -> list[bytes] | None:
    """The digests of a record's parts, under the same random numbers whenever it is asked for."""
    try:
        found = repeatable(0, partial(dataset.__getitem__, record), dataset)
        return [content(part) for part in (found if isinstance(found, tuple | list) else [found])]
    except Exception:  # whatever a data set makes of being asked, or a record that shows nothing
        return None


def _others_are_the_same(before: Any, after: Any, rows: Rows) -> bool:
    others = np.setdiff1d(np.arange(len(before)), rows)
    some = others[np.linspace(0, len(others) - 1, min(len(others), 2 * _LOOKED_AT)).astype(int)] if len(others) else others
    return all(_fetched(before, record) == _fetched(after, record) for record in some.tolist())


def _has_kept(before: Any, after: Any, rows: Rows) -> bool:
    """Whether a record that was to be replaced still comes out as it was, although another's would be different."""
    order = _others_for(rows, len(before))
    for row in rows[:_LOOKED_AT].tolist():
        own, now, other = _fetched(before, row), _fetched(after, row), _fetched(before, int(order[row]))
        if own is None or now is None or other is None or len(own) != len(now) or len(own) != len(other):
            return True
        if any(was == is_ and was != others for was, is_, others in zip(own, now, other, strict=True)):
            return True
    return False
