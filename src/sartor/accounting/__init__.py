"""Accounting: what an exposure costs, by Rényi divergences ("rdp") or privacy-loss distributions ("pld").

`epsilon` and `delta` say what an exposure costs, with a lower and an upper bound; promises use the upper one. `noise_for`, `rate_for` and
`steps_for` choose a parameter so that a budget is kept. Everything is vectorised over groups.

Guarantee: `upper` is at least the true figure for the holder whose exposure it is, under zeroing that holder's contributions in either
direction. For "pld" `lower` is a proven lower bound; for "rdp" numerics leave no gap, so all three are the Rényi bound itself.

Example:
    >>> from sartor.accounting import SampledGaussian, epsilon
    >>> cost = epsilon(SampledGaussian(rate=0.04, noise_multiplier=2.2, steps=5_000), delta=1e-5)
    >>> round(cost.estimate, 2)
    6.31
    >>> round(epsilon(SampledGaussian(0.04, 2.2, 5_000), delta=1e-5, accountant="rdp").upper, 2)
    6.81
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, overload

import numpy as np
from numpy.typing import ArrayLike

from sartor.accounting import pld, rdp, solve
from sartor.accounting.rdp import Conversion
from sartor.accounting.solve import noise_for, rate_for, steps_for
from sartor.accounting.spending import ACCOUNTANTS, Accountant, Array, check_accountant, spend
from sartor.exposure import Composition, Exposure, Included, SampledGaussian

__all__ = [
    "ACCOUNTANTS",
    "Accountant",
    "ArrayBounds",
    "Bounds",
    "Composition",
    "Exposure",
    "Included",
    "SampledGaussian",
    "delta",
    "epsilon",
    "noise_for",
    "profile",
    "rate_for",
    "solve",
    "spend",
    "steps_for",
]


class Bounds(NamedTuple):
    """A figure between two bounds; promises use `upper`."""

    lower: float
    estimate: float
    upper: float


class ArrayBounds(NamedTuple):
    """Figures between two bounds each; promises use `upper`."""

    lower: Array
    estimate: Array
    upper: Array


@overload
def epsilon(
    exposure: Exposure, delta: float, accountant: str = ..., *, orders: ArrayLike | None = ..., conversion: Conversion = ...
) -> Bounds: ...
@overload
def epsilon(
    exposure: Sequence[Exposure],
    delta: ArrayLike,
    accountant: str = ...,
    *,
    orders: ArrayLike | None = ...,
    conversion: Conversion = ...,
) -> ArrayBounds: ...
def epsilon(
    exposure: Exposure | Sequence[Exposure],
    delta: ArrayLike,
    accountant: str = "pld",
    *,
    orders: ArrayLike | None = None,
    conversion: Conversion = "balle",
) -> Bounds | ArrayBounds:
    """The epsilon that an exposure costs at delta; for a sequence of exposures, one figure each.

    `orders` and `conversion` ("balle", or "mironov" for comparing with papers) are for the Rényi accountant.
    """
    many = _as_list(exposure)
    deltas = np.broadcast_to(np.asarray(delta, float), (len(many),)).copy()
    if np.any(~((deltas > 0) & (deltas < 1))):
        raise ValueError("delta must lie strictly between 0 and 1.")
    if check_accountant(accountant) == "rdp":
        value = rdp.epsilon_of(many, deltas, rdp.ORDERS if orders is None else orders, conversion)
        return _result(exposure, value, value, value)
    columns = [pld.epsilon_bounds(e, deltas[i : i + 1], pld.REPORTING_ACCURACY) for i, e in enumerate(many)]
    return _result(exposure, *(np.array([float(c[k][0]) for c in columns]) for k in range(3)))


@overload
def delta(
    exposure: Exposure, epsilon: float, accountant: str = ..., *, orders: ArrayLike | None = ..., conversion: Conversion = ...
) -> Bounds: ...
@overload
def delta(
    exposure: Sequence[Exposure],
    epsilon: ArrayLike,
    accountant: str = ...,
    *,
    orders: ArrayLike | None = ...,
    conversion: Conversion = ...,
) -> ArrayBounds: ...
def delta(
    exposure: Exposure | Sequence[Exposure],
    epsilon: ArrayLike,
    accountant: str = "pld",
    *,
    orders: ArrayLike | None = None,
    conversion: Conversion = "balle",
) -> Bounds | ArrayBounds:
    """The delta that an exposure costs at epsilon; for a sequence of exposures, one figure each."""
    many = _as_list(exposure)
    epsilons = np.broadcast_to(np.asarray(epsilon, float), (len(many),)).copy()
    if np.any(~(epsilons >= 0)):
        raise ValueError("epsilon must be 0 or more.")
    if check_accountant(accountant) == "rdp":
        value = rdp.delta_of(many, epsilons, rdp.ORDERS if orders is None else orders, conversion)
        return _result(exposure, value, value, value)
    columns = [pld.delta_bounds(e, epsilons[i : i + 1], pld.REPORTING_ACCURACY) for i, e in enumerate(many)]
    return _result(exposure, *(np.array([float(c[k][0]) for c in columns]) for k in range(3)))


def profile(exposure: Exposure, epsilon: ArrayLike) -> Array:
    """The whole privacy profile: delta at each epsilon, in the worse direction, as an upper bound."""
    by_direction = pld.Profile(exposure).delta(np.atleast_1d(np.asarray(epsilon, float)))
    return np.maximum(by_direction["remove"], by_direction["add"])


def _as_list(exposure: Exposure | Sequence[Exposure]) -> list[Exposure]:
    return list(exposure) if isinstance(exposure, Sequence) else [exposure]


def _result(exposure: object, lower: Array, estimate: Array, upper: Array) -> Bounds | ArrayBounds:
    if isinstance(exposure, Sequence):
        return ArrayBounds(lower, estimate, upper)
    return Bounds(float(lower[0]), float(estimate[0]), float(upper[0]))
