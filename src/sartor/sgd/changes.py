"""What a piece of code changed in objects: their state by paths, before and after, and the same changes made in copies.

Callbacks and loops may change public settings between steps: a curriculum, a rate of augmentation, a temperature. Copies that examples are
compared by must follow these changes and no others: what forward passes and fetching left behind is what a comparison is to show.

Breaks if: a change cannot be seen by its path: inside of large containers and arrays (`SOME` entries, `_BYTES`), or in global variables,
    which copies share.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from torch import Tensor, nn

from sartor.sgd.generators import COMMON
from sartor.sgd.pristine import SOME, light
from sartor.sgd.trees import attributes

_BYTES, _DEEPEST, _MOST = 2**16, 8, 10_000
_PLAIN = (type(None), bool, int, float, complex, str, bytes, range, type, np.generic)
_OF_MODULES = frozenset(vars(nn.Module())) - {"_modules"}

Path = tuple[tuple[str, Any], ...]


def state(roots: Mapping[str, Any]) -> dict[Path, Any]:
    """What can be seen of some objects, by paths; equal where nothing was changed. Parameters and buffers are left out.

    >>> class Setting:
    ...     level = {"noise": 1}
    >>> setting = Setting()
    >>> before = state({"it": setting})
    >>> setting.rate = 2
    >>> changed(before, state({"it": setting}))
    [(('root', 'it'), ('attribute', 'rate'))]
    """
    found: dict[Path, Any] = {}
    met: dict[int, Any] = {}
    for name, root in roots.items():
        _look(root, (("root", name),), found, met)
    return found


def changed(before: Mapping[Path, Any], after: Mapping[Path, Any]) -> list[Path]:
    """The paths at which something was changed, came or went; of those within one another the outermost."""
    paths = [path for path in {**before, **after} if path not in before or path not in after or not _equal(before[path], after[path])]
    moved = set(paths)
    return [path for path in paths if not any(path[:end] in moved for end in range(1, len(path)))]


def follow(paths: list[Path], live: Mapping[str, Any], copies: Mapping[str, Any], shared: Iterable[Any]) -> None:
    """Make changes in copies that were made in what they are copies of; `shared` is what both use themselves."""
    memo = {id(value): value for value in (*shared, *COMMON)}
    memo.update((id(root), copies[name]) for name, root in live.items() if root is not None)
    for path in paths:
        (_, root), *inner = path
        try:
            owner, there = functools.reduce(_at, inner[:-1], live[root]), functools.reduce(_at, inner[:-1], copies[root])
            if inner:
                _put(there, inner[-1], owner, dict(memo))
        except (KeyError, IndexError, AttributeError, TypeError, ValueError):
            continue  # what is not in the copies, or cannot be changed there, stays: a comparison will tell


def _look(value: Any, path: Path, found: dict[Path, Any], met: dict[int, Any]) -> None:
    if isinstance(value, _PLAIN):
        found[path] = value
        return
    found[path] = _token(value)
    if id(value) in met or len(path) > _DEEPEST or len(found) > _MOST:
        return
    met[id(value)] = value
    for step, part in _within(value):
        _look(part, (*path, step), found, met)


def _token(value: Any) -> Any:
    """What tells a value from another beside its parts. The value is kept, as the id of one that was freed may be given out again."""
    if isinstance(value, Tensor):
        return _Same(value), value._version
    if isinstance(value, np.ndarray):
        return _Same(value), value.tobytes() if value.nbytes <= _BYTES and not value.dtype.hasobject else None
    return _Same(value), len(value) if isinstance(value, list | tuple | dict | set) else None


class _Same:
    """Equal to itself, by identity."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self._value is other._value

    __hash__ = None  # type: ignore[assignment]


def _equal(one: Any, two: Any) -> bool:
    return type(one) is type(two) and bool(one == two or (one != one and two != two))


def _within(value: Any) -> list[tuple[tuple[str, Any], Any]]:
    if isinstance(value, Tensor | np.ndarray | types.ModuleType):
        return []
    if isinstance(value, dict | list | tuple):
        named = value.items() if isinstance(value, dict) else enumerate(value)
        return [(("item", key), part) for key, part in named] if len(value) <= SOME else []
    if isinstance(value, types.FunctionType):
        return [(("cell", i), cell.cell_contents) for i, cell in enumerate(value.__closure__ or ()) if _is_filled(cell)]
    skipped = _OF_MODULES if isinstance(value, nn.Module) else frozenset()
    return [(("attribute", name), part) for name, part in attributes(value).items() if name not in skipped]


def _is_filled(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False


def _at(value: Any, step: tuple[str, Any]) -> Any:
    kind, key = step
    if kind == "attribute":
        return attributes(value)[key]
    return value.__closure__[key].cell_contents if kind == "cell" else value[key]


def _put(there: Any, step: tuple[str, Any], owner: Any, memo: dict[int, Any]) -> None:
    kind, key = step
    try:
        part = _at(owner, step)
    except (KeyError, IndexError):
        object.__delattr__(there, key) if kind == "attribute" else there.pop(key)
        return
    made = light(part, memo)
    if kind == "attribute":
        object.__setattr__(there, key, made)
    elif kind == "cell":
        there.__closure__[key].cell_contents = made
    elif isinstance(there, list) and key == len(there):
        there.append(made)
    else:
        there[key] = made
