"""Is this record the same in that batch? Two collated batches compared at one record's place in each.

What differs is told apart by what it may carry. Padding is one constant beyond a record's own extent, and an integer that is a size of the
batch's own tensors (its longest length). Everything else that differs and is no row of the record itself may carry others' data.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from enum import IntEnum
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from sartor.sgd import trees

_CLOSE = 1e-5
_SMALL = 1e-7


class Likeness(IntEnum):
    """How alike a record is in two batches, from the best to the worst."""

    SAME = 0
    PADDED = 1
    """The same but for constant padding around it, or for a whole number that is a size of the batch's tensors (its longest length)."""
    COMMON = 2
    """Something that is not the record's own differs: sums, packed sequences, statistics, keys, what stands around it."""
    OTHER = 3
    UNSEEN = 4
    """There is something in the batch that cannot be looked into."""


def likeness(one: Any, place: int, rows: int, two: Any, other: int, others: int) -> Likeness:
    """How alike the record at `place` of a batch of `rows` is to the one at `other` of a batch of `others`.

    >>> a, b = torch.tensor([[1, 2, 3, 4], [5, 6, 0, 0]]), torch.tensor([[5, 6]])
    >>> likeness(a, 1, 2, b, 0, 1).name, likeness(a, 0, 2, b, 0, 1).name
    ('PADDED', 'OTHER')
    """
    return _Comparison(place, rows, other, others).of(one, two)


class _Comparison:
    """One record in two batches. Whole numbers are judged last, when the sizes of all tensors are known."""

    def __init__(self, place: int, rows: int, other: int, others: int) -> None:
        self._place, self._rows, self._other, self._others = place, rows, other, others
        self._sizes: set[tuple[int, int]] = set()
        self._integers: list[tuple[int, int]] = []
        self._begun: dict[tuple[int, int], tuple[Any, Any]] = {}

    def of(self, one: Any, two: Any) -> Likeness:
        found = self._walked(one, two)
        return max([found, *(Likeness.PADDED if pair in self._sizes else Likeness.COMMON for pair in self._integers)])

    def _walked(self, one: Any, two: Any) -> Likeness:
        left, right = trees.children(one), trees.children(two)
        if left is None or right is None:
            return self._leaves(one, two) if left is None and right is None else _different(one, two)
        if type(one) is not type(two):
            return _different(one, two)
        if (id(one), id(two)) in self._begun:
            return Likeness.SAME  # as far as what is found further up, where they are compared already
        self._begun[id(one), id(two)] = one, two
        if isinstance(one, PackedSequence):  # its rows are those of steps in time, whatever their number
            alike = _Comparison(-1, -1, -1, -1).of(tuple(one), tuple(two))
            return alike if alike in (Likeness.SAME, Likeness.UNSEEN) else Likeness.COMMON
        # an item and an attribute may have the same name
        named = ({(type(key), key): part for key, part in parts} for parts in (left, right))
        return self._parts(one, next(named), two, next(named))

    def _parts(self, one: Any, left: dict[Any, Any], two: Any, right: dict[Any, Any]) -> Likeness:
        worst = Likeness.SAME
        if isinstance(one, list | tuple):
            # a list with an entry for each record; (inputs, targets) of two records is none, as its entries have rows themselves
            listed = (len(one), len(two)) == (self._rows, self._others)
            if listed and (self._rows != self._others or not any(_has_rows(leaf, self._rows) for leaf in trees.leaves(one))):
                worst = self._walked(one[self._place], two[self._other])
                left, right = ({key: part for key, part in parts.items() if key[0] is not int} for parts in (left, right))
            elif len(one) != len(two):
                return _different(one, two)
        if isinstance(one, Mapping) and list(left) != list(right) and set(left) == set(right):
            worst = max(worst, Likeness.COMMON)  # an order can carry something as well
        if set(left) != set(right):
            worst = max(worst, _different(one, two))
        return max([worst, *(self._walked(left[key], right[key]) for key in left if key in right)])

    def _leaves(self, one: Any, two: Any) -> Likeness:
        if not (trees.is_seen(one) and trees.is_seen(two)):
            return Likeness.UNSEEN
        if isinstance(one, np.ndarray) and isinstance(two, np.ndarray):
            if not one.ndim and not two.ndim:
                return self._leaves(one[()], two[()])
            pair = _as_tensors(one, two)
            return Likeness.OTHER if pair is None else self._tensors(*pair)
        if isinstance(one, Tensor) and isinstance(two, Tensor):
            return self._tensors(one, two)
        if type(one) is not type(two):
            return Likeness.COMMON
        if one is two or one == two or (one != one and two != two):
            return Likeness.SAME
        return self._integer(int(one), int(two)) if _is_integer(one) else Likeness.COMMON

    def _integer(self, one: int, two: int) -> Likeness:
        self._integers.append((one, two))
        return Likeness.SAME

    def _tensors(self, one: Tensor, two: Tensor) -> Likeness:
        if one.dtype != two.dtype or one.dim() != two.dim():
            return Likeness.OTHER
        self._sizes.update(zip(one.shape, two.shape, strict=True))
        for d in range(one.dim()):
            if one.shape[d] == self._rows and two.shape[d] == self._others:
                return _rows(one.select(d, self._place), two.select(d, self._other))
        if one.shape == two.shape and _equal(one, two):
            return Likeness.SAME
        counts = not one.dim() and not one.is_floating_point() and not one.is_complex() and one.dtype != torch.bool
        return self._integer(int(one), int(two)) if counts else Likeness.COMMON


def _different(one: Any, two: Any) -> Likeness:
    """What is made in another way in each batch, so that there is nothing to compare."""
    seen = all(trees.is_seen(leaf) for value in (one, two) for leaf in trees.leaves(value))
    return Likeness.COMMON if seen else Likeness.UNSEEN


def _has_rows(leaf: Any, rows: int) -> bool:
    return isinstance(leaf, Tensor | np.ndarray) and bool(leaf.ndim) and len(leaf) == rows


def _is_integer(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _as_tensors(one: np.ndarray[Any, Any], two: np.ndarray[Any, Any]) -> tuple[Tensor, Tensor] | None:
    """Two arrays as tensors that are equal where they are; None where they hold different kinds of things."""
    if one.dtype != two.dtype and not (one.dtype.kind == two.dtype.kind and one.dtype.kind in "SU"):
        return None
    wide = {"b": np.bool_, "i": np.int64, "u": np.int64, "f": np.float64, "c": np.complex128}.get(one.dtype.kind)
    if wide is not None:
        return torch.from_numpy(np.array(one, wide, order="C")), torch.from_numpy(np.array(two, wide, order="C"))
    kind = np.result_type(one, two)  # texts, dates and records by their bytes
    first, second = (np.array(value, kind, order="C")[..., None].view(np.uint8) for value in (one, two))
    return torch.from_numpy(first), torch.from_numpy(second)


def _rows(one: Tensor, two: Tensor) -> Likeness:
    if one.shape == two.shape:
        return Likeness.SAME if _equal(one, two) else Likeness.OTHER
    best = Likeness.OTHER
    for begins in _alignments(one, two):
        mine, its = _window(one, two, begins), _window(two, one, begins)
        if _equal(one[mine], two[its]):
            if _is_constant_beyond(one, mine) and _is_constant_beyond(two, its):
                return Likeness.PADDED
            best = Likeness.COMMON
    return best


def _window(value: Tensor, beside: Tensor, begins: tuple[int, ...]) -> tuple[slice, ...]:
    """Where a tensor overlaps with another that begins there in every dimension in which this one is longer."""
    sizes = zip(begins, value.shape, beside.shape, strict=True)
    return tuple(slice(begin, begin + shorter) if size > shorter else slice(None) for begin, size, shorter in sizes)


def _alignments(one: Tensor, two: Tensor) -> Iterator[tuple[int, ...]]:
    """Where the shorter may begin in the longer, in each dimension: padding stands behind, in front, or on both sides."""
    spare = [abs(a - b) for a, b in zip(one.shape, two.shape, strict=True)]
    return itertools.product(*(dict.fromkeys((0, more, more // 2, more - more // 2)) for more in spare))


def _is_constant_beyond(value: Tensor, inside: tuple[slice, ...]) -> bool:
    beyond = torch.ones(value.shape, dtype=torch.bool, device=value.device)
    beyond[inside] = False
    rest = value[beyond]
    return not len(rest) or bool((rest == rest[0]).all()) or bool((rest != rest).all())


def _equal(one: Tensor, two: Tensor) -> bool:
    """Up to rounding: relative to each number, and to the largest of them where they are small."""
    if not (one.is_floating_point() or one.is_complex()):
        return torch.equal(one, two)
    sizes = torch.cat([value.abs().reshape(-1).double() for value in (one, two)])
    largest = float(sizes[sizes.isfinite()].amax()) if bool(sizes.isfinite().any()) else 0.0
    return torch.allclose(one, two, rtol=_CLOSE, atol=_SMALL * min(1.0, largest), equal_nan=True)
