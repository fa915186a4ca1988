"""What batches are made of: tensors in tuples, lists, dictionaries and other mappings, and each record's row in them.

Parts are found as torch's pytrees find them, and in any mapping (tokenizers return such); no object is looked into beyond that.
"""

from __future__ import annotations

import copy
import itertools
import numbers
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from enum import IntEnum
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map

_CLOSE, _SMALL = 1e-5, 1e-7
_PLAIN = (str, bytes, numbers.Number, type(None), np.generic, torch.dtype, torch.device, range, slice)

Path = tuple[Any, ...]


def leaves(value: Any) -> Iterator[Any]:
    """Everything in a value that has no parts.

    >>> list(leaves({"x": 1, "y": (2, [3])}))
    [1, 2, 3]
    """
    for _, leaf in _named(value, ()):
        yield leaf


def _named(value: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    found = _parts(value)
    if found is None:
        yield path, value
    else:
        for key, part in found:
            yield from _named(part, (*path, key))


def _parts(value: Any) -> list[tuple[Any, Any]] | None:
    if isinstance(value, Tensor | np.ndarray | str):
        return None
    if isinstance(value, Mapping):
        return list(value.items())
    if isinstance(value, list | tuple):
        return list(enumerate(value))
    flat, form = tree_flatten(value)
    return None if form.is_leaf() else list(enumerate(flat))


def mapped(change: Callable[[Any], Any], value: Any, whole: Callable[[Any], bool] = lambda part: False) -> Any:
    """The same value with every leaf changed, and what is to be taken `whole`; mappings that cannot be filled become dictionaries.

    >>> mapped(lambda leaf: leaf + 1, {"x": 1, "y": (2, [3])})
    {'x': 2, 'y': (3, [4])}
    """

    def changed(leaf: Any) -> Any:
        if not isinstance(leaf, Mapping) or whole(leaf):
            return change(leaf)
        again: Any = copy.copy(leaf) if isinstance(leaf, MutableMapping) else {}
        again.update({key: mapped(change, part, whole) for key, part in leaf.items()})
        return again

    return tree_map(changed, value, is_leaf=whole)


def has_rows(leaf: Any, rows: int) -> bool:
    """Whether a tensor has a row for each example."""
    return isinstance(leaf, Tensor) and bool(leaf.dim()) and len(leaf) == rows


def cut(value: Any, begin: int, end: int, rows: int) -> Any:
    """Some examples of a batch: those rows of every tensor that has a row for each of its `rows` examples."""
    return mapped(lambda leaf: leaf[begin:end] if has_rows(leaf, rows) else leaf, value)


def taken(value: Any, places: Sequence[int], rows: int) -> Any:
    """Examples of a batch by their places, which may repeat: of tensors, arrays, and lists with an entry for each of its `rows` examples.

    >>> taken({"x": torch.arange(3), "of": ["a", "b", "c"], "size": 3}, [2, 0, 0], 3)
    {'x': tensor([2, 0, 0]), 'of': ['c', 'a', 'a'], 'size': 3}
    """

    def some(leaf: Any) -> Any:
        if isinstance(leaf, list):
            return [leaf[place] for place in places]
        if not isinstance(leaf, Tensor | np.ndarray) or rows not in leaf.shape:
            return leaf
        where, index = leaf.shape.index(rows), torch.tensor(places, dtype=torch.int64)
        return leaf.index_select(where, index) if isinstance(leaf, Tensor) else leaf.take(index.numpy(), where)

    return mapped(some, value, lambda part: _is_listed(part, rows))


def _is_listed(value: Any, rows: int) -> bool:
    """Whether a list has an entry for each example; (inputs, targets) of two examples is none, as its entries have rows themselves."""
    if not isinstance(value, list) or len(value) != rows:
        return False
    return not any(isinstance(leaf, Tensor | np.ndarray) and rows in leaf.shape[:1] for leaf in leaves(value))


def is_opaque(value: Any) -> bool:
    """Whether something in a value shows nothing of what it holds."""
    return not all(isinstance(leaf, _PLAIN) or _is_seen(leaf) for leaf in leaves(value))


def _is_seen(leaf: Any) -> bool:
    if isinstance(leaf, np.ndarray):
        return not leaf.dtype.hasobject
    return isinstance(leaf, Tensor) and leaf.layout == torch.strided and not leaf.is_nested


def is_same(one: Any, two: Any) -> bool:
    """Whether two values are the same, bit by bit; what shows nothing of itself is taken to be."""
    mine, other = dict(_named(one, ())), dict(_named(two, ()))
    return mine.keys() == other.keys() and all(_is_equal(leaf, other[path]) for path, leaf in mine.items())


def _is_equal(one: Any, two: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(two, Tensor):
        same = one.shape == two.shape and one.dtype == two.dtype
        return not _is_seen(one) or (same and bool(((one == two) | ((one != one) & (two != two))).all()))
    if isinstance(one, np.ndarray) and isinstance(two, np.ndarray):
        return one.shape == two.shape and bool(np.all((one == two) | ((one != one) & (two != two))))
    if type(one) is not type(two) or getattr(type(one), "__eq__", None) is object.__eq__:
        return type(one) is type(two)
    try:
        return bool(one == two or (one != one and two != two))
    except (RuntimeError, ValueError):  # tensors or arrays in an object, which are not seen
        return True


def shapes(value: Any) -> dict[Path, Any]:
    """The form of a value: of tensors and arrays their shapes, of texts their lengths, by their paths."""
    return {path: tuple(leaf.shape) if hasattr(leaf, "shape") else (type(leaf), _length(leaf)) for path, leaf in _named(value, ())}


def _length(leaf: Any) -> int:
    return len(leaf) if isinstance(leaf, str | bytes) else 0


class Likeness(IntEnum):
    """How alike records are in two batches, from the best to the worst."""

    SAME = 0
    PADDED = 1
    """The same but for constant padding around them, or for a whole number that is a size of the batch's tensors (its longest length)."""
    COMMON = 2
    """Something that has no row for each record differs: sums, statistics, packed sequences."""
    OTHER = 3


def likeness(one: Any, places: Sequence[int], rows: int, two: Any) -> Likeness:
    """How alike the records at some places of a batch of `rows` are to those of a batch of them alone.

    >>> a, b = torch.tensor([[1, 2, 3, 4], [5, 6, 0, 0]]), torch.tensor([[5, 6]])
    >>> likeness(a, [1], 2, b).name, likeness(a, [0], 2, b).name
    ('PADDED', 'OTHER')
    """
    return _Comparison(places, rows).of(one, two)


class _Comparison:
    """Records in a batch and alone. Whole numbers are judged last, when the sizes of all tensors are known."""

    def __init__(self, places: Sequence[int], rows: int) -> None:
        self._places, self._rows = places, rows
        self._sizes: set[tuple[int, int]] = set()
        self._integers: list[tuple[int, int]] = []

    def of(self, one: Any, two: Any) -> Likeness:
        found = self._walked(one, two)
        return max([found, *(Likeness.PADDED if pair in self._sizes else Likeness.COMMON for pair in self._integers)])

    def _walked(self, one: Any, two: Any) -> Likeness:
        if _is_listed(one, self._rows) and isinstance(two, list) and len(two) == len(self._places):
            one = [one[place] for place in self._places]
        left, right = _parts(one), _parts(two)
        if left is None or right is None:
            return self._leaves(one, two)
        mine, other = dict(left), dict(right)
        if mine.keys() != other.keys():
            return Likeness.COMMON
        return max((self._walked(part, other[key]) for key, part in mine.items()), default=Likeness.SAME)

    def _leaves(self, one: Any, two: Any) -> Likeness:
        one, two = _as_tensor(one), _as_tensor(two)
        if not isinstance(one, Tensor | np.ndarray) or not isinstance(two, Tensor | np.ndarray):
            if type(one) is int and type(two) is int and one != two:
                self._integers.append((one, two))
                return Likeness.SAME
            return Likeness.SAME if _is_equal(one, two) else Likeness.COMMON
        texts = isinstance(one, np.ndarray) and isinstance(two, np.ndarray) and one.dtype.kind == two.dtype.kind
        if (one.dtype != two.dtype and not texts) or one.ndim != two.ndim:
            return Likeness.OTHER
        self._sizes.update(zip(one.shape, two.shape, strict=True))
        for d in range(one.ndim):
            if one.shape[d] == self._rows and two.shape[d] == len(self._places):
                return _rows(taken(one, self._places, self._rows), two)
        return Likeness.SAME if one.shape == two.shape and _is_close(one, two) else Likeness.COMMON


def _as_tensor(value: Any) -> Any:
    """An array of numbers as a tensor that equals others where it does; texts and the like stay as they are."""
    wide = {"b": np.bool_, "i": np.int64, "u": np.int64, "f": np.float64, "c": np.complex128}
    kind = wide.get(value.dtype.kind) if isinstance(value, np.ndarray) else None
    return value if kind is None else torch.from_numpy(np.array(value, kind, order="C"))


def _rows(one: Any, two: Any) -> Likeness:
    if one.shape == two.shape:
        return Likeness.SAME if _is_close(one, two) else Likeness.OTHER
    for begins in _alignments(one, two):
        mine, its = _window(one, two, begins), _window(two, one, begins)
        if _is_close(one[mine], two[its]) and _is_constant_beyond(one, mine) and _is_constant_beyond(two, its):
            return Likeness.PADDED
    return Likeness.OTHER


def _alignments(one: Any, two: Any) -> Iterator[tuple[int, ...]]:
    """Where the shorter may begin in the longer, in each dimension: padding stands behind, in front, or on both sides."""
    spare = [abs(a - b) for a, b in zip(one.shape, two.shape, strict=True)]
    return itertools.product(*(dict.fromkeys((0, more, more // 2, more - more // 2)) for more in spare))


def _window(value: Any, beside: Any, begins: tuple[int, ...]) -> tuple[slice, ...]:
    """Where a tensor overlaps with another that begins there in every dimension in which this one is longer."""
    sizes = zip(begins, value.shape, beside.shape, strict=True)
    return tuple(slice(begin, begin + shorter) if size > shorter else slice(None) for begin, size, shorter in sizes)


def _is_constant_beyond(value: Any, inside: tuple[slice, ...]) -> bool:
    beyond = torch.ones(tuple(value.shape), dtype=torch.bool)
    beyond[inside] = False
    rest = value[beyond] if isinstance(value, Tensor) else value[beyond.numpy()]
    return not len(rest) or bool((rest == rest[0]).all()) or bool((rest != rest).all())


def _is_close(one: Any, two: Any) -> bool:
    """Up to rounding: relative to each number, and to the largest of them where they are small."""
    if not isinstance(one, Tensor) or not (one.is_floating_point() or one.is_complex()):
        return _is_equal(one, two)
    sizes = torch.cat([value.abs().reshape(-1).double() for value in (one, two)])
    largest = float(sizes[sizes.isfinite()].amax()) if bool(sizes.isfinite().any()) else 0.0
    return torch.allclose(one, two, rtol=_CLOSE, atol=_SMALL * min(1.0, largest), equal_nan=True)
