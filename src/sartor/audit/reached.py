"""What code refers to beside its arguments, by names: closures, defaults, attributes, and globals of whatever code of the user's it names.

Whoever replaces a holder in a data set must know where else their records, or what follows from them, may come from: an array in a global
variable, a scaler that was fitted on everybody, a cache in a module, a vocabulary. Such things are named, as nobody can say what they
follow from; and what was not there before a run, or was otherwise, is what the run remembers.

Breaks if: code reaches something by computed names, or in packages' own memory.
"""

from __future__ import annotations

import functools
import itertools
import types
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import PurePath
from typing import Any

import numpy as np
import torch

from sartor.sgd.contents import content
from sartor.sgd.packages import package, package_of
from sartor.sgd.trees import attributes

_OWN = __name__.partition(".")[0]
_MOST, _SOME = 5_000, 100  # objects that are looked into, entries of a collection
_SCALARS = (type(None), bool, int, float, complex, str, bytes, range, PurePath, np.generic, torch.dtype, torch.device)
_COLLECTIONS = (Mapping, list, tuple, set, frozenset, deque)

Named = Iterator[tuple[str, Any]]


def reached(*roots: Any, known: Iterable[Any] = ()) -> dict[str, Any]:
    """Everything that holds numbers or texts, by its names; what was met twice once, and what is `known` not at all.

    >>> class Scaler:
    ...     def __init__(self, rows):
    ...         self.mean = rows.mean(0)
    >>> list(reached(Scaler(torch.ones(3, 2))))
    ['mean']
    """
    found: dict[str, Any] = {}
    met: dict[int, Any] = {id(value): value for value in known}
    waiting: deque[tuple[str, Any, frozenset[str]]] = deque(("", root, frozenset[str]()) for root in roots)
    first = {id(root) for root in roots}
    while waiting and len(met) < _MOST:
        name, value, names = waiting.popleft()
        while name in found:  # an attribute of an object and of its class
            name += "'"
        if isinstance(value, _SCALARS):
            found[name] = value
            continue
        if id(value) in met or (_is_ours(value) and id(value) not in first):
            continue
        met[id(value)] = value
        if isinstance(value, torch.Tensor | np.ndarray) or _has_shape(value):
            found[name] = value
            continue
        if isinstance(value, _COLLECTIONS) or hasattr(value, "cache_info"):
            found[name] = value
        parts = list(_parts(value, names))
        if not parts and not isinstance(value, types.ModuleType | type) and not callable(value):
            found[name] = value
        inner = _names(value)
        waiting.extend((f"{name}.{own}".strip("."), part, inner or names) for own, part in parts)
    return found


def digests(*roots: Any) -> dict[str, bytes]:
    """What is reached, as digests; what shows nothing is left out."""
    found: dict[str, bytes] = {}
    for name, value in reached(*roots).items():
        with suppress(Exception):  # whatever an object makes of being looked into
            found[name] = str(value.cache_info()[1:]).encode() if hasattr(value, "cache_info") else content(value)  # hits teach nothing
    return found


def of_records(found: Mapping[str, Any], *, floats: bool = False) -> list[str]:
    """The names under which something may follow from records: arrays, collections, and, if asked for, `floats` by themselves."""
    names = sorted(name for name, value in found.items() if _may_follow(value, floats))
    return [name for name in names if not any(name.startswith(f"{other}.") for other in names)]


def told(names: list[str], most: int = 5) -> str:
    """A few names as a text."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _may_follow(value: Any, floats: bool) -> bool:
    if isinstance(value, float | np.floating):
        return floats
    if isinstance(value, _SCALARS) or hasattr(value, "cache_info"):
        return False
    if isinstance(value, Mapping | set | frozenset):
        return bool(value)
    if isinstance(value, list | tuple | deque):
        return any(isinstance(part, float | str | np.floating | list | tuple) for part in itertools.islice(value, _SOME))
    return bool(np.prod(value.shape)) if _has_shape(value) else False


def _has_shape(value: Any) -> bool:
    """Arrays of whatever package, and tables."""
    return not isinstance(value, type) and isinstance(getattr(value, "shape", None), tuple)


def _is_ours(value: Any) -> bool:
    """Code and objects of this library, which are what is looked at and not what it is told."""
    if isinstance(value, types.ModuleType):
        name = value.__name__
    elif isinstance(value, types.FunctionType):
        name = str(value.__globals__.get("__name__", ""))
    else:
        name = value.__module__ if isinstance(value, type) else type(value).__module__
    return name.partition(".")[0] == _OWN


def _parts(value: Any, names: frozenset[str]) -> Named:
    """What something refers to; of a module what is named beside it."""
    if isinstance(value, types.FunctionType):
        yield from _of_function(value)
    elif isinstance(value, types.MethodType):
        yield from (("", value.__self__), ("", value.__func__))
    elif isinstance(value, functools.partial):
        yield from (("", value.func), *((str(place), part) for place, part in enumerate(value.args)), *value.keywords.items())
    elif hasattr(value, "cache_info") and hasattr(value, "__wrapped__"):
        yield "", value.__wrapped__
    elif isinstance(value, types.ModuleType):
        if package(value.__name__, getattr(value, "__file__", None)) is None:
            yield from ((name, getattr(value, name)) for name in sorted(names) if hasattr(value, name))
    elif isinstance(value, type):
        yield from _of_class(value)
    elif isinstance(value, Mapping):
        yield from ((str(key), part) for key, part in itertools.islice(value.items(), _SOME) if not isinstance(part, _SCALARS))
    elif isinstance(value, _COLLECTIONS):
        yield from ((str(place), part) for place, part in enumerate(itertools.islice(value, _SOME)) if not isinstance(part, _SCALARS))
    elif not isinstance(value, types.BuiltinFunctionType):
        yield from attributes(value).items()
        yield "", type(value)


def _of_function(function: types.FunctionType) -> Named:
    if package_of(function) is not None or _is_ours(function):
        return
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # not filled yet
            yield name, cell.cell_contents
    code = function.__code__
    parameters = code.co_varnames[: code.co_argcount]
    defaults = function.__defaults__ or ()
    yield from zip(parameters[len(parameters) - len(defaults) :], defaults, strict=True)
    yield from (function.__kwdefaults__ or {}).items()
    yield from vars(function).items()
    yield from ((name, function.__globals__[name]) for name in sorted(_named_in(code)) if name in function.__globals__)


def _of_class(kind: type) -> Named:
    for base in kind.__mro__:
        if base is object or package_of(base) is not None or _is_ours(base):
            continue
        for name, part in vars(base).items():
            inner = getattr(part, "__func__", None) or getattr(part, "fget", None) or part
            if isinstance(inner, types.FunctionType) or not (name.startswith("__") or hasattr(type(inner), "__get__")):
                yield name, inner


def _names(value: Any) -> frozenset[str]:
    return _named_in(value.__code__) if isinstance(value, types.FunctionType) else frozenset()


@functools.lru_cache(maxsize=4096)
def _named_in(code: types.CodeType) -> frozenset[str]:
    """All that code and the code within it names."""
    return frozenset(code.co_names).union(*(_named_in(part) for part in code.co_consts if isinstance(part, types.CodeType)))


def beside(dataset: Any, known: Iterable[Any] = ()) -> set[str]:
    """What a data set or a collate function holds beside its `known` records that could be a statistic of them all."""
    return {f"{name}, which may follow from all records" for name in of_records(reached(dataset, known=known), floats=True)}
