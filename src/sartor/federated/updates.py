"""What one client contributes: an update, checked and clipped as one vector over all of its arrays.

Arrays of an answer are matched with the model's by name, never by their order. Numbers are float64, arrays of no dimension and all-zero
updates included. Nothing is shared between clients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sartor.errors import SartorError

Array = NDArray[np.float64]
Arrays = list[Array]
Named = Mapping[str, NDArray[Any]]
"""The arrays of a model, each under its name."""

_MARGIN = 1e-9  # by which a clipped update is shorter than its clip: more than rounding of its norm could hide
_SAFE = (1e-200, 1e200)  # squares of norms that are neither lost nor overflowing
_LEAST = 1e-300  # a clip below it has too few digits to be kept within


class Malformed(SartorError):
    """An answer that is not an update: a wrong shape or name, a missing array, a number that is none."""


def update_of(answer: Named, model: Named) -> Arrays:
    """What a client changed, in the model's order: its arrays less the model's of the same names, or `Malformed`.

    Arrays of other kinds (counters, masks) count as unchanged.

    >>> model = {"weight": np.zeros(2), "bias": np.ones(2)}
    >>> [part.tolist() for part in update_of({"bias": np.ones(2), "weight": np.full(2, 3.0)}, model)]
    [[3.0, 3.0], [0.0, 0.0]]
    """
    if answer.keys() != model.keys():
        raise Malformed("an answer has arrays of other names than the model's.")
    found = []
    for name, ours in model.items():
        theirs = answer[name]
        if np.shape(theirs) != np.shape(ours) or np.asarray(theirs).dtype.kind not in "fiub":
            raise Malformed("an answer has an array of another shape or kind than the model's.")
        if np.asarray(ours).dtype.kind != "f":
            found.append(np.zeros(np.shape(ours)))
            continue
        if np.asarray(theirs).dtype.kind == "b":
            raise Malformed("an answer has truth values where the model has numbers.")
        with np.errstate(all="ignore"):
            found.append(np.subtract(theirs, ours, dtype=np.float64))
    if not all(np.isfinite(change).all() for change in found):
        raise Malformed("an answer has numbers that are not finite.")
    return found


def norm(update: Sequence[Array]) -> float:
    """The length of an update as one vector, without overflow or loss of small numbers."""
    flat = [np.asarray(part, np.float64).reshape(-1) for part in update]
    with np.errstate(all="ignore"):
        square = sum(float(part @ part) for part in flat)
    if _SAFE[0] < square < _SAFE[1]:
        return sqrt(square)
    largest = max((float(np.abs(part).max()) for part in flat if part.size), default=0.0)
    if not largest:
        return 0.0
    return largest * sqrt(sum(float((part / largest) @ (part / largest)) for part in flat))


def clipped(update: Sequence[Array], clip: float) -> tuple[Arrays, float]:
    """An update no longer than `clip`, and how long it was.

    Guarantee: the result's length is at most `clip`, whatever finite numbers the update holds. Under a clip below 1e-300 it is all zeros.

    >>> [part.tolist() for part in clipped([np.array([3.0, 0.0]), np.array(4.0)], 10.0)[0]]
    [[3.0, 0.0], 4.0]
    """
    length = norm(update)
    if clip < _LEAST:
        return [np.zeros(np.shape(part)) for part in update], length
    if length <= clip * (1 - _MARGIN):
        return [np.asarray(part, np.float64) for part in update], length
    if length < _SAFE[1] and clip > 1 / _SAFE[1] * length:
        return _scaled(update, clip / length), length
    largest = max(float(np.abs(part).max()) for part in update if np.size(part))  # a factor so small would lose digits
    smaller = [np.asarray(part) / largest for part in update]
    return _scaled(smaller, clip / norm(smaller)), length


def _scaled(update: Sequence[Array], factor: float) -> Arrays:
    return [np.asarray(part, np.float64) * (factor * (1 - _MARGIN)) for part in update]
