"""Membership scores of one group, and what they say by themselves: ROC curve, AUC, TPR at low FPR, best accuracy, bootstrap intervals.

A score says how much a member looks like somebody who took part. Whatever is computed here describes one attack on one sample; a statement
about epsilon that holds with a stated confidence comes from `sartor.audit.bounds`.

Scores follow from private data and are sensitive: their repr shows how many there are and nothing else.

Two tests say whether an attack does better on one group than on another, from figures of their members or of several target models. Both
are one-sided: a small p says that the first group's figures are higher than chance explains. Welch's t is for many figures, or for normal
ones; the permutation test is exact if the two groups' figures are exchangeable where the attack does equally well, however few they are,
and close to it for many figures of different spread, as it compares Welch's t (Janssen 1997).

Breaks if: figures are dependent, such as those of one target model counted as if each came from another.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sartor.errors import SartorError
from sartor.immutable import immutable
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


@dataclass(frozen=True, repr=False, eq=False)
class Scores:
    """Membership scores of one group: of those who took part, and of those who did not. Higher says: took part. Sensitive."""

    inside: Array
    outside: Array

    def __post_init__(self) -> None:
        for name in ("inside", "outside"):
            try:
                values = np.asarray(getattr(self, name)).astype(float, casting="same_kind")
            except (TypeError, ValueError, RuntimeError):
                raise SartorError("scores are plain numbers: high ones say that somebody took part.") from None
            if values.ndim != 1:
                raise SartorError(f"scores come as one number for each member, not as an array of shape {values.shape}.")
            if not np.isfinite(values).all():
                unusable = int((~np.isfinite(values)).sum())
                raise SartorError(f"scores must be finite, and {unusable} of {values.size} {name} are not: clip logarithms before scoring.")
            object.__setattr__(self, name, immutable(values))

    def __repr__(self) -> str:
        return f"Scores({self.inside.size} inside, {self.outside.size} outside)"


@dataclass(frozen=True, eq=False)
class Roc:
    """The rates at which members (`tpr`) and others (`fpr`) score at least a threshold, from (0, 0) to (1, 1). Sensitive."""

    fpr: Array = field(repr=False)
    tpr: Array = field(repr=False)


def roc(scores: Scores) -> Roc:
    """One point for each distinct score, and (0, 0).

    >>> curve = roc(Scores([2.0, 1.0], [1.0, 0.0]))
    >>> curve.fpr.tolist(), curve.tpr.tolist()
    ([0.0, 0.0, 0.5, 1.0], [0.0, 0.5, 1.0, 1.0])
    """
    if not (scores.inside.size and scores.outside.size):
        raise SartorError(f"rates need scores on both sides, and there are {scores.inside.size} inside and {scores.outside.size} outside.")
    thresholds = np.unique(np.concatenate([scores.inside, scores.outside]))[::-1]
    fpr, tpr = (share_at_least(side, thresholds) for side in (scores.outside, scores.inside))
    return Roc(immutable(np.append(0.0, fpr)), immutable(np.append(0.0, tpr)))


def share_at_least(values: Array, thresholds: Array) -> Array:
    """The share of values at or above each threshold."""
    return np.asarray((values.size - np.searchsorted(np.sort(values), thresholds, side="left")) / values.size, float)


def lots(scores: Scores, seed: int | None) -> Array:
    """A number for each score, inside and then outside, that orders those which are equal; none is equal to another.

    Under a seed they follow from it and from which scores there are, as a hash of both: other scores have other lots, and the same seed
    elsewhere, as in the generator that drew the scores, has nothing to do with them. Without one they are drawn anew each time.
    """
    check_seed(seed)
    count = scores.inside.size + scores.outside.size
    if seed is None:
        return np.random.default_rng().random(count)
    _, ranks = np.unique(np.concatenate([scores.inside, scores.outside]), return_inverse=True)
    of = blake2b(f"{seed} {scores.inside.size} ".encode() + ranks.astype("<i8").tobytes(), digest_size=32, person=b"ties of scores")
    return np.random.default_rng(int.from_bytes(of.digest())).random(count)


def auc(scores: Scores) -> float:
    """How often a member scores higher than somebody else, where a tie counts half."""
    curve = roc(scores)
    return float(np.diff(curve.fpr) @ (curve.tpr[1:] + curve.tpr[:-1]) / 2)


def tpr_at(scores: Scores, fpr: float) -> float:
    """The largest rate of members found by a threshold that takes at most `fpr` of the others for members.

    Nothing is interpolated: it is a rate that some threshold reaches, so with fewer than 1/fpr others it is that of no false positive.
    """
    if not 0 <= fpr <= 1:
        raise SartorError(f"a false positive rate lies between 0 and 1, not at {fpr}.")
    curve = roc(scores)
    return float(curve.tpr[curve.fpr <= fpr][-1])


def best_accuracy(scores: Scores) -> float:
    """The accuracy of the best threshold where members and others are equally frequent: (TPR + 1 - FPR) / 2, at least 1/2.

    The threshold is chosen on the scores that it is counted on, so the figure is high for few scores.
    """
    curve = roc(scores)
    return float((curve.tpr + 1 - curve.fpr).max() / 2)


def bootstrap(
    statistic: Callable[[Scores], float], scores: Scores, confidence: float, *, resamples: int = 1000, seed: int = 0
) -> tuple[float, float]:
    """An interval of a statistic from its quantiles over scores drawn anew, with replacement, on each side.

    It shows how far the figure would move with other members, and is no bound on epsilon.
    """
    if not 0 < confidence < 1:
        raise SartorError(f"a confidence lies between 0 and 1, not at {confidence}.")
    if resamples < 1:
        raise SartorError(f"an interval needs at least one resample, not {resamples}.")
    check_seed(seed)
    generator = np.random.default_rng(seed)
    found = [statistic(Scores(_again(scores.inside, generator), _again(scores.outside, generator))) for _ in range(resamples)]
    low, high = np.quantile(found, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def _again(values: Array, generator: np.random.Generator) -> Array:
    """As many values, drawn from them with replacement."""
    return values[generator.integers(values.size, size=values.size)] if values.size else values
