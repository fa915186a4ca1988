"""The data set of the second run: other people's records stand in a holder's places, and what could not be replaced is said.

Records are replaced where they lie (`sartor.sgd.stores`), so that whatever a data set makes of several of them has others to be made of.
A record may lie in another place than its number says, in an order of its own; then it is looked for, by halves.

Breaks if: records lie where no store is found, or a data set remembers something of them beside: what could be a statistic of them all, a
    number or an array that has no row for each, is named as unseen.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import TensorDataset

from sartor.audit.reached import beside
from sartor.sgd.contents import content
from sartor.sgd.generators import repeatable
from sartor.sgd.pristine import light
from sartor.sgd.stores import Store, stores
from sartor.sgd.trees import attributes

Rows = NDArray[np.integer]

_TURNS = 8  # how often others are drawn by lot
_LARGER = 1_000.0
_LOOKED_AT = 10  # records that are fetched to see whether they were replaced, or were not


def without(dataset: Any, rows: Rows) -> tuple[Any, set[str]]:
    """The data set with other people's records in some places, and what could not be replaced in it.

    The others are drawn by lot, and again a few times until none of their records has a part that equals the one that it replaces, such as
    a class: or else what follows that part alone would not be seen.
    """
    if type(dataset) is TensorDataset:
        order = torch.from_numpy(_unlike(dataset.tensors, rows))
        replaced = TensorDataset(*(tensor[order] for tensor in dataset.tensors))
        return replaced, {"records in TensorDataset"} if _some_are_the_same(dataset.tensors, replaced.tensors, rows) else set()
    try:
        known = stores(dataset, None)
    except TypeError:  # no data set: whoever trains has the records elsewhere
        return dataset, {f"records in {type(dataset).__name__}"}
    unseen = {f"records in {name}" for name in known.unseen} | beside(dataset, [store.value for store in known.found])
    before, best, missed, kept = copied(dataset), dataset, math.inf, True
    for turn in range(_TURNS):
        replaced = _with_others(dataset, before, known.found, rows, turn)
        if replaced is None:
            break
        alike = _parts_in_common(before, copied(replaced), rows)
        if alike < missed:
            best, missed, kept = replaced, alike, _has_kept(before, copied(replaced), rows, turn)
        if not missed:
            break
    if kept:
        unseen |= {f"records in {type(dataset).__name__}"}
    return best, unseen


def extreme(dataset: Any, rows: Rows) -> Any:
    """The same with numbers far larger than anybody's in these places; nothing, where there are none that can be set.

    Whoever is not drawn may have any record, and a scale or a range of all is that of the largest.
    """
    instead, _ = without(dataset, rows)
    if type(instead) is TensorDataset:
        found = [_enlarged(tensor, rows) for tensor in instead.tensors]
        larger = [tensor if changed is None else changed for tensor, changed in zip(instead.tensors, found, strict=True)]
        return TensorDataset(*larger) if any(changed is not None for changed in found) else None
    try:
        known = stores(instead, None)
    except TypeError:
        return None
    changed = {id(store.value): _enlarged(store.value, _by_number(store, rows)) for store in known.found}
    made = {place: value for place, value in changed.items() if value is not None}
    dressed = _light(instead, made) if made else None
    return dressed if made and _others_are_the_same(copied(instead), copied(dressed), rows) else None


def _enlarged(value: Any, rows: Rows) -> Any:
    """An array with rows far larger than all others; nothing, of what is no array of real numbers."""
    if isinstance(value, torch.Tensor) and value.is_floating_point() and value.numel() and len(rows):
        found = value.detach().clone()
        found[torch.from_numpy(rows)] += _LARGER * (1 + value.detach().abs().nan_to_num(0.0, 0.0, 0.0).max())
        return found
    if isinstance(value, np.ndarray) and value.dtype.kind == "f" and value.size and len(rows):
        array = value.copy()
        array[rows] += _LARGER * (1 + np.nan_to_num(np.abs(value), nan=0.0, posinf=0.0).max())
        return array
    return None


def _some_are_the_same(before: tuple[torch.Tensor, ...], after: tuple[torch.Tensor, ...], rows: Rows) -> bool:
    """Whether a record that was to be replaced is as it was, as where nobody has another."""
    places = torch.from_numpy(rows)
    same = [(new[places] == old[places]).reshape(len(rows), -1).all(1) for new, old in zip(after, before, strict=True)]
    return bool(torch.stack(same).all(0).any()) if same else False


def _with_others(dataset: Any, before: Any, found: list[Store], rows: Rows, turn: int) -> Any:
    """The data set with others' records in these places, who are drawn anew in each turn; nothing, where it has no such places."""
    replaced = _replaced(dataset, [(store, _by_number(store, rows)) for store in found], turn)
    if replaced is not None and not _others_are_the_same(before, copied(replaced), rows):
        looked_for = _replaced(dataset, [(store, _looked_for(dataset, store, rows)) for store in found], turn)
        if looked_for is not None and _others_are_the_same(before, copied(looked_for), rows):
            return looked_for  # or else records are made of several rows, and what that moves is for the replay to see
    return replaced


def _unlike(tensors: tuple[torch.Tensor, ...], rows: Rows) -> NDArray[np.int64]:
    """All places in order, with others' instead of these, whose single numbers (classes, say) are other ones where there are such."""
    order, length = np.arange(len(tensors[0])), len(tensors[0])
    others, generator = np.setdiff1d(order, rows), np.random.default_rng(rows[:1].tolist())
    single = [tensor.detach().cpu().numpy() for tensor in tensors if tensor.numel() == length and not tensor.is_complex()]
    for row in rows.tolist() if len(others) else ():
        differ = [(values[others] != values[row]).reshape(len(others)) for values in single]
        unlike = [others[np.logical_and.reduce(differ)], *(others[one] for one in differ), others] if differ else [others]
        order[row] = generator.choice(next(places for places in unlike if len(places)))
    return order


def _parts_in_common(before: Any, after: Any, rows: Rows) -> float:
    """How many parts of a few records are as they were; a record that shows nothing counts as other."""
    pairs = ((_fetched(before, row), _fetched(after, row)) for row in rows[:_LOOKED_AT].tolist())
    return sum(sum(was == is_ for was, is_ in zip(one or [], other or [], strict=False)) for one, other in pairs)


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


def is_random(make: Any, *owners: Any) -> bool:
    """Whether something comes out otherwise under other random numbers."""
    try:
        return bool(content(repeatable(1, make, *owners)) != content(repeatable(2, make, *owners)))
    except Exception:  # whatever it makes of being asked, or what shows nothing
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


def _replaced(dataset: Any, places: list[tuple[Store, Rows]], turn: int) -> Any:
    """The data set with others' rows in these places of its stores; nothing, where there is no such place."""
    instead = {id(store.value): store.take(_others_for(rows, store.length, turn)) for store, rows in places if 0 < len(rows) < store.length}
    return _light(dataset, instead) if instead else None


def _others_for(rows: Rows, length: int, turn: int) -> NDArray[np.int64]:
    """All places in order, with those of others instead of these; the same others for stores of one length, and other ones in each turn."""
    order = np.arange(length)
    others = np.setdiff1d(order, rows)
    if len(others):
        order[rows] = np.random.default_rng([turn, *rows[:1].tolist()]).permutation(others)[np.arange(len(rows)) % len(others)]
    return order


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


def _has_kept(before: Any, after: Any, rows: Rows, turn: int) -> bool:
    """Whether a record that was to be replaced still comes out as it was, although another's would be different."""
    order = _others_for(rows, len(before), turn)
    for row in rows[:_LOOKED_AT].tolist():
        own, now, other = _fetched(before, row), _fetched(after, row), _fetched(before, int(order[row]))
        if own is None or now is None or other is None or len(own) != len(now) or len(own) != len(other):
            return True
        if any(was == is_ and was != others for was, is_, others in zip(own, now, other, strict=True)):
            return True
    return False
