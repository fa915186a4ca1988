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
from functools import lru_cache
from typing import NamedTuple, overload

import numpy as np
from numpy.typing import ArrayLike

from sartor.accounting import accountants, pld, rdp, solve
from sartor.accounting.accountants import Accountant, ArrayBounds
from sartor.accounting.rdp import Conversion
from sartor.accounting.solve import noise_for, rate_for, steps_for
from sartor.accounting.spending import Array, spend
from sartor.errors import SartorError
from sartor.exposure import Composition, Exposure, Filtered, Included, SampledGaussian, SampledRecords

__all__ = [
    "Accountant",
    "ArrayBounds",
    "Bounds",
    "Composition",
    "Exposure",
    "Filtered",
    "Included",
    "SampledGaussian",
    "SampledRecords",
    "accountants",
    "delta",
    "epsilon",
    "floor",
    "noise_for",
    "profile",
    "rate_for",
    "solve",
    "spend",
    "spend_on",
    "steps_for",
]


class Bounds(NamedTuple):
    """A figure between two bounds; promises use `upper`."""

    lower: float
    estimate: float
    upper: float


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
    judge = _judge(accountant, many)
    if not _as_papers_do(judge, orders, conversion):
        return _result(exposure, judge.epsilon(many, deltas, pld.REPORTING_ACCURACY))
    value = rdp.epsilon_of(many, deltas, rdp.ORDERS if orders is None else orders, conversion)
    return _result(exposure, ArrayBounds(value, value, value))


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
    judge = _judge(accountant, many)
    if not _as_papers_do(judge, orders, conversion):
        return _result(exposure, judge.delta(many, epsilons, pld.REPORTING_ACCURACY))
    value = rdp.delta_of(many, epsilons, rdp.ORDERS if orders is None else orders, conversion)
    return _result(exposure, ArrayBounds(value, value, value))


def profile(exposure: Exposure, epsilon: ArrayLike, accountant: str = "pld") -> Array:
    """The whole privacy profile: delta at each epsilon, in the worse direction, as an upper bound."""
    return _judge(accountant, [exposure]).profile(exposure, np.atleast_1d(np.asarray(epsilon, float)))


def spend_on(exposures: Sequence[Exposure], delta: ArrayLike, accountant: str = "pld") -> Array:
    """Epsilon (upper bound) of each exposure, of any kind, at its delta, as plans are solved and checked.

    Example:
        >>> spend_on([Included(0.5, SampledGaussian(0.01, 1.0, 1_000))], 1e-5).round(2).tolist()
        [1.21]
    """
    many, deltas = list(exposures), np.broadcast_to(np.asarray(delta, float), (len(exposures),)).copy()
    judge = _judge(accountant, many)
    return np.array([_remembered(judge.name, one, at) for one, at in zip(many, deltas.tolist(), strict=True)])


@lru_cache(maxsize=1 << 14)
def _remembered(accountant: str, exposure: Exposure, delta: float) -> float:
    """What an exposure costs, which follows from it alone: a plan that was just solved is not judged a second time."""
    return float(accountants.find(accountant).epsilon([exposure], np.array([delta]), pld.PLANNING_ACCURACY).upper[0])


def floor(exposures: Sequence[Exposure], delta: ArrayLike, accountant: str = "pld") -> Array:
    """An epsilon that each exposure costs at least, at its delta: what no accountant can go below; 0 where nothing is proven."""
    many, deltas = list(exposures), np.broadcast_to(np.asarray(delta, float), (len(exposures),)).copy()
    return _judge(accountant, many).floor(many, deltas)


def _judge(name: str, exposures: list[Exposure]) -> Accountant:
    """The accountant of this name, where it can judge these exposures."""
    judge = accountants.find(name)
    for exposure in exposures:
        if not judge.supports(exposure):
            what = "" if rdp.knows(exposure) else "several records of one holder, "
            others = "".join(f'; "{other}" can' for other in accountants.names() if accountants.find(other).supports(exposure))
            raise SartorError(f'the accountant "{name}" cannot judge this exposure ({what}{exposure.relation.name}){others}.')
    return judge


def _as_papers_do(judge: Accountant, orders: ArrayLike | None, conversion: Conversion) -> bool:
    """Whether Rényi's figure is asked for by orders or a conversion of its own, for comparing with papers."""
    return judge.name == rdp.NAME and (orders is not None or conversion != "balle")


def _as_list(exposure: Exposure | Sequence[Exposure]) -> list[Exposure]:
    return list(exposure) if isinstance(exposure, Sequence) else [exposure]


def _result(exposure: object, found: ArrayBounds) -> Bounds | ArrayBounds:
    return found if isinstance(exposure, Sequence) else Bounds(*(float(figures[0]) for figures in found))
