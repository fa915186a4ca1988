"""What many sampled Gaussians cost, each at its own delta: the one function that plans and solvers ask.

The answer depends on nothing but the four numbers of each mechanism, so a plan that is checked later, or elsewhere, gets the same figure.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sartor.accounting import accountants, pld
from sartor.accounting.use import ever
from sartor.errors import SartorError
from sartor.exposure import MOST_STEPS, SampledGaussian

Array = NDArray[np.float64]


def spend(
    rate: ArrayLike,
    noise_multiplier: ArrayLike,
    steps: ArrayLike,
    delta: ArrayLike,
    accountant: str = "pld",
    accuracy: float = pld.PLANNING_ACCURACY,
) -> Array:
    """Epsilon (upper bound) of each sampled Gaussian at its delta; `accuracy` is what the tight accountant's grid may add to it.

    Example:
        >>> spend([0.01, 0.02], 1.0, 1_000, 1e-5).round(2).tolist()
        [1.83, 3.9]
    """
    columns = np.broadcast_arrays(*(np.atleast_1d(np.asarray(c, float)) for c in (rate, noise_multiplier, steps, delta)))
    _check(*columns)
    table = np.stack(
        [_rounded(columns[0], np.ceil, np.maximum, 1.0), _rounded(columns[1], np.floor, np.minimum, np.inf), *columns[2:]], axis=1
    )
    distinct, back = _distinct(table)
    keys = [(accountant, accuracy, *row) for row in distinct.tolist()]
    new = np.array([key not in _memory for key in keys], bool)
    if new.any():
        values = _evaluated(distinct[new], accountant, accuracy)
        if len(_memory) + len(values) > _MOST_REMEMBERED:
            _memory.clear()
            new[:], values = True, _evaluated(distinct, accountant, accuracy)
        _memory.update(zip((key for key, is_new in zip(keys, new, strict=True) if is_new), values.tolist(), strict=True))
    return np.array([_memory[key] for key in keys])[back]


def _check(rate: Array, noise_multiplier: Array, steps: Array, delta: Array) -> None:
    for name, fits in {
        "rates must lie in [0, 1]": (rate >= 0) & (rate <= 1),
        "noise multipliers must be 0 or more": noise_multiplier >= 0,
        f"steps must be whole numbers from 0 to {MOST_STEPS:g}": (steps >= 0) & (steps <= MOST_STEPS) & (steps == np.round(steps)),
        "deltas must lie strictly between 0 and 1": (delta > 0) & (delta < 1),
    }.items():
        if not np.all(fits):
            raise ValueError(f"{name}.")


_memory: dict[tuple[float | str, ...], float] = {}  # what is known is a function of its key alone, so it is never stale
_MOST_REMEMBERED = 1 << 18


def _evaluated(table: Array, accountant: str, accuracy: float) -> Array:
    q, z, t, d = table.T
    out = np.zeros(len(table))
    used = (q > 0) & (t > 0) & np.isfinite(z)
    used &= ever(q, t) > d  # used at all with probability at most delta: nothing is spent
    out[used & (z == 0)] = np.inf
    rows = np.flatnonzero(used & (z > 0))
    if len(rows):
        part, judge = (q[rows], z[rows], t[rows], d[rows]), accountants.find(accountant)
        for mechanism in zip(*(column.tolist() for column in part[:3]), strict=True):
            if not judge.supports(SampledGaussian(*mechanism)):
                raise SartorError(f'the accountant "{accountant}" cannot judge a rate of {mechanism[0]:.3g} at this noise.')
        out[rows] = judge.spend(*part, accuracy)
    return out


def _rounded(values: Array, towards: np.ufunc, costlier: np.ufunc, most: float) -> Array:
    """Values at twelve digits, rounded to the costlier side, so that equal mechanisms written differently are evaluated once.

    What has no more digits, from 1e-10 on, stays what it is to the last bit: a rate of 1 must not become one below it.
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        scale = 10.0 ** (11 - np.floor(np.log10(values)))
        short = np.rint(values * scale) / scale == values
        rounded = np.where(short, values, costlier(towards(values * scale) / scale, values))
    return np.minimum(np.where(np.isfinite(rounded) & (values > 0), rounded, values), most)


def _distinct(table: Array) -> tuple[Array, NDArray[np.intp]]:
    order = np.lexsort(table.T)
    ordered = table[order]
    new = np.append(True, np.any(ordered[1:] != ordered[:-1], axis=1))
    back = np.empty(len(order), np.intp)
    back[order] = np.cumsum(new) - 1
    return ordered[new], back
