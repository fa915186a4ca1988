"""What batches are made of: tensors in tuples, lists, mappings and objects, whoever wrote their classes.

A batch is whatever a collate function returns, so its tensors may lie in a dictionary, a dataclass or an object of some library. Here they
are found and replaced. What cannot be looked into is not `is_seen`: whoever checks a batch must refuse it, not pass over it.
"""

from __future__ import annotations

import copy
import numbers
from collections import UserDict, UserList
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sartor.sgd.packages import package_of

_PLAIN = (str, bytes, bool, numbers.Number, type(None), np.generic, np.ndarray, torch.dtype, torch.device, torch.Size, range, slice, type)


def children(value: Any) -> list[tuple[Any, Any]] | None:
    """The parts of a value by their keys, or None where it has none. A tensor or array with attributes has itself and them as parts.

    >>> children({"x": 1, "y": (2, 3)})
    [('x', 1), ('y', (2, 3))]
    """
    if isinstance(value, Tensor | np.ndarray):
        # torch.compile cannot trace attributes of tensors; batches are compared outside of it
        if torch.compiler.is_compiling() or not (is_seen(value) and getattr(value, "__dict__", None)):
            return None
        bare = value.as_subclass(Tensor) if isinstance(value, Tensor) else np.asarray(value)
        return [(_ITSELF, bare), *vars(value).items()]
    if isinstance(value, _PLAIN) or callable(value):
        return None
    if isinstance(value, Mapping):
        return list(value.items()) + _beside(value)
    if isinstance(value, list | tuple):
        return [*enumerate(value), *_beside(value)]
    found = attributes(value)
    return list(found.items()) if found else None


class _Beside(str):
    """The name of what a collection carries beside its items."""


_ITSELF = _Beside("itself")


def _beside(value: Any) -> list[tuple[Any, Any]]:
    """What a collection carries beside its items. What a package's class keeps under names of its own is its own affair: private names,
    and where it keeps the items."""
    if type(value) in (dict, list, tuple):
        return []
    own = package_of(type(value)) is not None
    items = "data" if isinstance(value, UserDict | UserList) else None
    return [(_Beside(name), part) for name, part in attributes(value).items() if name != items and not (own and name.startswith("_"))]


def attributes(value: Any) -> dict[str, Any]:
    """What an object carries by names: its slots and its dictionary."""
    slots = [name for kind in type(value).__mro__ for name in _names(getattr(kind, "__slots__", ()))]
    return {**{name: getattr(value, name) for name in slots if hasattr(value, name)}, **getattr(value, "__dict__", {})}


def _names(slots: Any) -> tuple[str, ...]:
    return (slots,) if isinstance(slots, str) else tuple(slots)


def leaves(value: Any) -> Iterator[Any]:
    """Everything in a value that has no parts; what refers back to something that it lies in is not walked again."""
    yield from _leaves(value, ())


def _leaves(value: Any, above: tuple[int, ...]) -> Iterator[Any]:
    parts = children(value)
    if parts is None:
        yield value
    elif id(value) not in above:
        for _, part in parts:
            yield from _leaves(part, (*above, id(value)))


def is_seen(leaf: Any) -> bool:
    """Whether a leaf shows what it holds."""
    if isinstance(leaf, Tensor):
        # a class that answers torch's operations itself may hold anything
        own = type(leaf).__torch_dispatch__ is not Tensor.__torch_dispatch__
        return leaf.layout == torch.strided and not leaf.is_nested and not own
    if isinstance(leaf, np.ndarray):
        return not leaf.dtype.hasobject
    return isinstance(leaf, _PLAIN)


def mapped(change: Callable[[Any], Any], value: Any) -> Any:
    """The same value with every leaf changed; objects are copied, never altered. Mappings that cannot be filled become dictionaries.

    >>> mapped(lambda leaf: leaf + 1, {"x": 1, "y": (2, [3])})
    {'x': 2, 'y': (3, [4])}
    """
    return _mapped(change, value, {})


def _mapped(change: Callable[[Any], Any], value: Any, known: dict[int, tuple[Any, Any]]) -> Any:
    """`known` has what was copied already, beside its original (which must live as long as its id is used)."""
    if id(value) in known:
        return known[id(value)][1]
    parts = children(value)
    if parts is None:
        return change(value)
    if isinstance(value, tuple | Tensor | np.ndarray):  # these are made after their parts
        made = [(key, _mapped(change, part, known)) for key, part in parts]
        again = _tuple(value, made) if isinstance(value, tuple) else _with_attributes(value, made)
        known[id(value)] = value, again
        return again
    again = _to_fill(value)
    known[id(value)] = value, again  # before its parts, which may refer back to it
    # what lies beside items first: a class may keep its items there
    for key, part in sorted(parts, key=lambda named: not isinstance(named[0], _Beside)):
        new = _mapped(change, part, known)
        if isinstance(key, _Beside) or not isinstance(value, list | Mapping):
            _set(again, key, new)
        elif isinstance(again, list) and key >= len(again):
            again.append(new)
        else:
            again[key] = new
    return again


def _to_fill(value: Any) -> Any:
    if type(value) in (dict, list):
        return type(value)()
    if not isinstance(value, Mapping) or isinstance(value, MutableMapping):
        return copy.copy(value)
    return {}


def _set(again: Any, name: str, part: Any) -> None:
    if name in getattr(again, "__dict__", {}):
        vars(again)[str(name)] = part
    elif type(again) is not dict:
        object.__setattr__(again, name, part)


def _tuple(value: tuple[Any, ...], made: list[tuple[Any, Any]]) -> Any:
    inner = [part for key, part in made if not isinstance(key, _Beside)]
    try:
        again = tuple.__new__(type(value), inner)  # not by the class's own `__new__`, which may take anything
    except TypeError:
        return type(value)(inner)  # results of torch.max and the like
    if hasattr(value, "__dict__"):
        vars(again).update({**vars(value), **{str(key): part for key, part in made if isinstance(key, _Beside)}})
    return again


def _with_attributes(value: Any, made: list[tuple[Any, Any]]) -> Any:
    """A tensor or array that was changed, as what it was before: of its class and with its attributes."""
    (_, again), *attributes = made
    if isinstance(value, Tensor) and isinstance(again, Tensor):
        again = again.as_subclass(type(value))
    elif isinstance(value, np.ndarray) and isinstance(again, np.ndarray):
        again = again.view(type(value))
    else:
        return again
    vars(again).update(attributes)
    return again


def cut(value: Any, begin: int, end: int, rows: int) -> Any:
    """Some examples of a batch: those rows of every tensor that has a row for each of its `rows` examples."""

    def some(leaf: Any) -> Any:
        return leaf[begin:end] if has_rows(leaf, rows) else leaf

    return mapped(some, value)


def has_rows(leaf: Any, rows: int) -> bool:
    """Whether a tensor has a row for each example."""
    return isinstance(leaf, Tensor) and bool(leaf.dim()) and len(leaf) == rows
