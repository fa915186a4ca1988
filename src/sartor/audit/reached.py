"""What code refers to beside its arguments, by names: closures, defaults, attributes, and globals of whatever code of the user's it names.

Whoever replaces a holder in a data set must know where else their records, or what follows from them, may come from: an array in a global
variable, a scaler that was fitted on everybody, a cache in a module, a vocabulary. Such things are named, as nobody can say what they
follow from; and what was not there before a run, or was otherwise, is what the run remembers.

Installed packages are not looked into, but for those that use this library, or that the root itself is from: these are the user's own.

Breaks if: code reaches something by computed names, or in other packages' own memory; what follows from records is a single number or a
    short text.
"""

from __future__ import annotations

import dis
import functools
import gc
import importlib.util
import itertools
import re
import sys
import types
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import PurePath
from typing import Any

import numpy as np
import torch
from torch import nn

from sartor.sgd.contents import content
from sartor.sgd.packages import BY_VERSION, package, package_of
from sartor.sgd.trees import attributes

_OWN = __name__.partition(".")[0]
_OF_RECORDS = f"{_OWN}.data."
_MOST, _SOME = 5_000, 100  # objects that are looked into, entries of a collection
_FEW, _LONG = 8, 1_000  # whole numbers in a list, and letters in a text, that are no setting
_SCALARS = (type(None), bool, int, float, complex, str, bytes, range, PurePath, np.generic, torch.dtype, torch.device)
_TELLING = (float, str, np.floating, list, tuple)
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
    own = frozenset(name for root in roots if (name := _package_of(root)) is not None)
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
        if isinstance(value, torch.Tensor | np.ndarray) or _has_shape(value) or _is_buffer(value):
            found[name] = value
            continue
        if isinstance(value, _COLLECTIONS) or _is_cache(value):
            found[name] = value
        parts = list(_parts(value, names, own))
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
            found[name] = str(value.cache_info()[1:]).encode() if _is_cache(value) else content(value)  # hits teach nothing
    return found


def warm(*roots: Any) -> list[str]:
    """The names of caches (`functools`) in which something lies that may follow from records."""
    return sorted(name for name, value in reached(*roots).items() if _is_cache(value) and of_records(reached([*_cached(value)])))


def _cached(cache: Any) -> Iterator[Any]:
    """All that a cache keeps, which it shows to the garbage collector alone."""
    for part in gc.get_referents(cache):
        if isinstance(part, dict) and part is not vars(cache):
            yield from part.values()
        elif part is not vars(cache) and part is not cache.__wrapped__ and not isinstance(part, type):
            yield part


def of_records(found: Mapping[str, Any], *, floats: bool = False) -> list[str]:
    """The names under which something may follow from records: arrays, collections, and, if asked for, `floats` by themselves."""
    names = sorted({re.sub(r"(\.\d+)+$", "", name) or name for name, value in found.items() if _may_follow(value, floats)})
    return [name for name in names if not any(name.startswith(f"{other}.") for other in names)]


def told(names: list[str], most: int = 5) -> str:
    """A few names as a text."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _may_follow(value: Any, floats: bool) -> bool:
    if isinstance(value, float | np.floating):
        return floats
    if isinstance(value, str | bytes):
        return len(value) > _LONG
    if isinstance(value, _SCALARS) or _is_cache(value):
        return False
    if isinstance(value, Mapping | set | frozenset):
        return bool(value)
    if isinstance(value, list | tuple | deque):
        some = list(itertools.islice(value, _SOME))
        whole = bool(some) and all(isinstance(part, int | np.integer) for part in some)
        return any(isinstance(part, _TELLING) for part in some) or (whole and (len(value) > _FEW or (floats and isinstance(value, list))))
    return bool(np.prod(value.shape)) if _has_shape(value) else _is_buffer(value)


def _asked(value: Any, name: str) -> Any:
    """An attribute, or nothing where there is none, or where an object does not let itself be asked."""
    try:
        return getattr(value, name, None)
    except Exception:  # whatever an object makes of being asked, as an array that has no size yet
        return None


def _has_shape(value: Any) -> bool:
    """Arrays of whatever package, and tables."""
    return not isinstance(value, type) and isinstance(_asked(value, "shape"), tuple)


def _is_buffer(value: Any) -> bool:
    """What holds plain memory."""
    try:
        with memoryview(value) as found:
            return found.nbytes > 0
    except (TypeError, ValueError, BufferError):
        return False


def _is_cache(value: Any) -> bool:
    return not isinstance(value, types.ModuleType | type) and callable(_asked(value, "cache_info"))


def _package_of(root: Any) -> str | None:
    """The installed package that a function is from, unless it stands for its version alone."""
    found = package_of(root) if isinstance(root, types.FunctionType) else None
    return None if found in BY_VERSION else found


def _is_users(name: str | None, own: frozenset[str]) -> bool:
    """Whether code of a package is looked into: no package, that of a root, or one that uses this library."""
    return name is None or name in own or (name not in BY_VERSION and _uses_us(name, len(sys.modules)))


@functools.lru_cache(maxsize=4096)
def _uses_us(name: str, modules: int) -> bool:
    """Whether some module of a package names this library, or something of it, now that so many modules are loaded."""
    own = [module for other, module in list(sys.modules.items()) if other.partition(".")[0] == name and module is not None]
    return any(_is_ours(value) for module in own for value in list(vars(module).values()))


def _is_ours(value: Any) -> bool:
    """Code and objects of this library, which are what is looked at and not what it is told; but for data and networks."""
    if isinstance(value, nn.Module) or (not isinstance(value, type) and str(_asked(type(value), "__module__")).startswith(_OF_RECORDS)):
        return False
    if isinstance(value, types.ModuleType):
        name = value.__name__
    elif isinstance(value, types.FunctionType):
        name = str(value.__globals__.get("__name__", ""))
    else:
        name = str(_asked(value if isinstance(value, type) else type(value), "__module__"))
    return name.partition(".")[0] == _OWN


def _parts(value: Any, names: frozenset[str], own: frozenset[str]) -> Named:
    """What something refers to; of a module what is named beside it."""
    if isinstance(value, types.FunctionType):
        yield from _of_function(value, own)
    elif isinstance(value, types.MethodType):
        yield from (("", value.__self__), ("", value.__func__))
    elif isinstance(value, functools.partial):
        yield from (("", value.func), *((str(place), part) for place, part in enumerate(value.args)), *value.keywords.items())
    elif _is_cache(value) and hasattr(value, "__wrapped__"):
        yield "", value.__wrapped__
    elif isinstance(value, types.ModuleType):
        if _is_users(package(value.__name__, getattr(value, "__file__", None)), own):
            yield from ((name, getattr(value, name)) for name in sorted(names) if hasattr(value, name))
    elif isinstance(value, type):
        yield from _of_class(value, own)
    elif isinstance(value, Mapping):
        yield from ((str(key), part) for key, part in itertools.islice(value.items(), _SOME) if not isinstance(part, _SCALARS))
    elif isinstance(value, _COLLECTIONS):
        yield from ((str(place), part) for place, part in enumerate(itertools.islice(value, _SOME)) if not isinstance(part, _SCALARS))
    elif not isinstance(value, types.BuiltinFunctionType):
        yield from attributes(value).items()
        yield "", type(value)


def _of_function(function: types.FunctionType, own: frozenset[str]) -> Named:
    if not _is_users(package_of(function), own) or _is_ours(function):
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
    yield from ((name, function.__globals__[name]) for name in sorted(_globals_in(code)) if name in function.__globals__)
    for level, name in _imported_in(code):
        with suppress(ImportError, ValueError):
            full = importlib.util.resolve_name("." * level + name, function.__globals__.get("__package__"))
            yield from ((part, sys.modules[part]) for part in {full, full.partition(".")[0]} if part in sys.modules)


def _of_class(kind: type, own: frozenset[str]) -> Named:
    for base in kind.__mro__:
        if base is object or not _is_users(package_of(base), own) or _is_ours(base):
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


@functools.lru_cache(maxsize=4096)
def _globals_in(code: types.CodeType) -> frozenset[str]:
    """What code and the code within it looks up in its module."""
    found = {one.argval for one in dis.get_instructions(code) if one.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    return frozenset(found).union(*(_globals_in(part) for part in code.co_consts if isinstance(part, types.CodeType)))


@functools.lru_cache(maxsize=4096)
def _imported_in(code: types.CodeType) -> frozenset[tuple[int, str]]:
    """Modules that code and the code within it imports where it runs: how many folders up, and the name."""
    line = [one for one in dis.get_instructions(code) if one.opname != "EXTENDED_ARG"]
    found = {(int(line[place - 2].argval or 0), str(one.argval)) for place, one in enumerate(line) if one.opname == "IMPORT_NAME"}
    return frozenset(found).union(*(_imported_in(part) for part in code.co_consts if isinstance(part, types.CodeType)))


def beside(dataset: Any, known: Iterable[Any] = ()) -> set[str]:
    """What a data set or a collate function holds beside its `known` records that could be a statistic of them all."""
    return {f"{name}, which may follow from all records" for name in of_records(reached(dataset, known=known), floats=True)}
