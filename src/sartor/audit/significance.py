"""Whether an attack does better on one group than on another, from figures of their members or of several target models.

Both tests are one-sided: a small p says that the first group's figures are higher than chance explains. Welch's t is for many figures, or
for normal ones; the permutation test is exact if the two groups' figures are exchangeable where the attack does equally well, however few
they are, and close to it for many figures of different spread, as it compares Welch's t (Janssen 1997).

Breaks if: figures are dependent, such as those of one target model counted as if each came from another.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sartor.errors import SartorError
from sartor.numbers import check_seed

Array = NDArray[np.float64]

_AT_ONCE = 1 << 20
_PERMUTED = 0x7065726D  # keeps its random numbers apart from others of the same seed


@dataclass(frozen=True)
class Difference:
    """How much higher the first group's figures are on average, over its standard error (t), and how probable by chance. Sensitive."""

    mean: float = field(repr=False)
    t: float = field(repr=False)
    p: float = field(repr=False)


def welch(first: ArrayLike, second: ArrayLike) -> Difference:
    """Welch's t-test of whether the first figures are higher on average (Welch 1947), which allows different spreads.

    >>> found = welch([3.0, 4.0, 5.0], [1.0, 2.0, 3.0])
    >>> round(found.t, 4), round(found.p, 4)
    (2.4495, 0.0352)
    """
    from scipy import special

    a, b = _figures(first), _figures(second)
    t = float(_t(a[None], b[None])[0])
    parts = np.array([a.var(ddof=1) / a.size, b.var(ddof=1) / b.size])
    if parts.sum() == 0:
        raise SartorError("figures without any spread tell nothing of chance by Welch's t: take the permutation test.")
    freedom = parts.sum() ** 2 / (parts**2 / np.array([a.size - 1, b.size - 1])).sum()
    return Difference(float(a.mean() - b.mean()), t, float(special.stdtr(freedom, -t)))


def permutation(first: ArrayLike, second: ArrayLike, *, permutations: int = 9_999, seed: int = 0) -> Difference:
    """A permutation test of the same: how often random groups of the same sizes differ as much, by Welch's t.

    The given order counts as one of the permutations, so p is never 0 and at most the stated share of equal groups fall below a level.
    """
    check_seed(seed)
    a, b = _figures(first), _figures(second)
    if permutations < 1:
        raise SartorError(f"a permutation test needs at least one permutation, not {permutations}.")
    pooled, generator = np.concatenate([a, b]), np.random.default_rng([seed, _PERMUTED])
    t = float(_t(a[None], b[None])[0])
    least = t - 1e-9 * abs(t) if np.isfinite(t) else t  # the same groups in another order are rounded differently
    left, higher = permutations, 0
    while left:
        rows = min(left, max(1, _AT_ONCE // pooled.size))
        drawn = generator.permuted(np.broadcast_to(pooled, (rows, pooled.size)), axis=1)
        higher += int((_t(drawn[:, : a.size], drawn[:, a.size :]) >= least).sum())
        left -= rows
    return Difference(float(a.mean() - b.mean()), t, (1 + higher) / (1 + permutations))


def _t(first: Array, second: Array) -> Array:
    """Welch's t of each row; infinite where two constants differ, 0 where they do not."""
    difference = first.mean(axis=1) - second.mean(axis=1)
    error = np.sqrt(first.var(axis=1, ddof=1) / first.shape[1] + second.var(axis=1, ddof=1) / second.shape[1])
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(difference == 0, 0.0, difference / error)


def _figures(values: ArrayLike) -> Array:
    """At least two finite figures."""
    figures = np.asarray(values, float)
    if figures.ndim != 1 or figures.size < 2 or not np.isfinite(figures).all():
        raise SartorError("a difference between groups needs two or more finite figures of each: give one figure for each member or model.")
    return figures
