"""Laws of what one holder undergoes in rounds, from every way their coins can fall: exact for discrete pairs.

A round is a pair of distributions of its output, with the holder (P) and without (Q). What a holder undergoes is a mixture over the ways
their coins fall; its likelihood ratio against the run without them, and the mass that the latter gives to it, are its *law*, from which
every epsilon and delta follows, in both directions.

In the sound form round r is entered with probability pi_r whatever happened before, so the ratio is the product of 1 - pi_r + pi_r l_r,
with l_r = P_r / Q_r. In the published form (PDP-SGD, Algorithm 1; AdaPDP) a holder keeps their budget after a round that missed them, and
pays the threshold after one that drew them, so later coins depend on earlier ones: with b left, round r draws them with probability 1 if
b >= tau_r, and then b falls by tau_r; otherwise with (e^b - 1) / (e^tau_r - 1), and then nothing is left. One budget is alive at a time,
so from the last round backwards

    R_r = l_r R_(r+1)                             where b_r >= tau_r,
    R_r = (1 - pi_r) R_(r+1) + pi_r l_r           otherwise.

Proof: what follows a draw by a coin is without the holder, so its ratio is 1; outputs of different rounds are independent without the
    holder, and dominating pairs may be put in place of rounds that look at earlier ones (Zhu, Dong and Wang 2022).
Breaks if: thresholds, rates, noise or weights follow from who was drawn, as they do in the published algorithms: they are held fixed here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sartor.accounting.losses import Pair

Array = NDArray[np.float64]

_MOST_EXACT = 1 << 13  # values of a ratio that are kept as they are
_HIGHEST = 700.0
_LEAST = 1e-4  # logarithm of a ratio around which points are no closer to each other


@dataclass(frozen=True, eq=False)
class Law:
    """Values of the ratio P / Q and the mass that Q gives to each; `lost` is the mass of P where Q has none."""

    ratio: Array
    mass: Array
    lost: float = 0.0

    @classmethod
    def of(cls, with_holder: ArrayLike, without: ArrayLike) -> Law:
        """That of a discrete pair: the probability of each output with the holder and without.

        >>> round(Law.of([0.75, 0.25], [0.25, 0.75]).epsilon(0.0), 4)
        1.0986
        """
        p, q = np.asarray(with_holder, float), np.asarray(without, float)
        if p.shape != q.shape or p.ndim != 1 or np.any(p < 0) or np.any(q < 0) or max(abs(p.sum() - 1), abs(q.sum() - 1)) > 1e-9:
            raise ValueError("a discrete pair is two lists of probabilities of the same outputs, each adding up to 1.")
        some = q > 0
        return cls(p[some] / q[some], q[some], float(p[~some].sum()))

    @classmethod
    def of_losses(cls, pair: Pair) -> Law:
        """That of losses on a grid: at least as easy to tell apart as what was put there."""
        loss = (pair.remove.offset + np.arange(len(pair.remove.mass))) * pair.grid
        some = pair.remove.mass > 0
        ratio = np.exp(np.clip(loss[some], -_HIGHEST, _HIGHEST))
        mass = pair.remove.mass[some] / ratio
        missing = max(0.0, 1 - float(mass.sum()))  # outputs that the holder never makes
        return cls(np.append(ratio, 0.0), np.append(mass, missing), pair.remove.infinite)

    def delta(self, epsilon: float) -> float:
        """The divergence at epsilon, in the worse direction."""
        scale = float(np.exp(min(epsilon, _HIGHEST)))
        remove = float(np.maximum(self.ratio - scale, 0.0) @ self.mass) + self.lost
        with np.errstate(over="ignore"):  # beyond all numbers it is above 1, and counts as nothing
            add = float(np.maximum(1 - scale * self.ratio, 0.0) @ self.mass)
        return max(remove, add)

    def epsilon(self, delta: float) -> float:
        """The smallest epsilon at which the divergence is at most delta; infinite if there is none."""
        if delta == 0:
            used = self.mass > 0
            if self.lost > 0 or np.any(self.ratio[used] == 0):
                return float("inf")
            return float(np.max(np.abs(np.log(self.ratio[used]))))
        if self.delta(_HIGHEST) > delta:
            return float("inf")
        low, high = 0.0, 1.0
        while self.delta(high) > delta:
            high *= 2
        if self.delta(0.0) <= delta:
            return 0.0
        while high - low > 1e-10 * max(high, 1e-3):
            middle = (low + high) / 2
            low, high = (middle, high) if self.delta(middle) > delta else (low, middle)
        return high


def sound(rounds: Sequence[Law], chances: Sequence[float], grid: float | None = None) -> Law:
    """The law of rounds that are entered by coins of their own, whatever happened before."""
    found = _nothing()
    for one, chance in zip(rounds, chances, strict=True):
        ratio = np.multiply.outer(1 - chance + chance * one.ratio, found.ratio)
        found = _law(ratio, np.multiply.outer(one.mass, found.mass), 1 - (1 - chance * one.lost) * (1 - found.lost), grid)
    return found


def published(rounds: Sequence[Law], thresholds: Sequence[float], budget: float, grid: float | None = None) -> Law:
    """The law of the published process for a holder with this budget, with this sequence of thresholds held fixed.

    `grid` is the width, as a share of the logarithm of the ratio, to which values that are too many are put together, so that nothing
    becomes harder to tell apart; without one all are kept. A share, as coins that fall rarely leave ratios close to 1.

    >>> true = np.exp(0.8) / (1 + np.exp(0.8))
    >>> response = Law.of([true, 1 - true], [1 - true, true])
    >>> [round(published([response] * count, [0.8] * count, 0.5).epsilon(0.0), 3) for count in (1, 2, 3, 5, 10)]
    [0.5, 0.67, 0.741, 0.787, 0.8]
    """
    left, coins = budget, list[float]()
    for tau in thresholds:
        coins.append(chance_of(left, tau))
        left = left - tau if coins[-1] == 1 else left
    found = _nothing()
    for one, chance in zip(reversed(rounds), reversed(coins), strict=True):
        if chance == 0:
            continue
        if chance == 1:
            ratio, lost = np.multiply.outer(one.ratio, found.ratio), 1 - (1 - one.lost) * (1 - found.lost)
        else:
            ratio, lost = np.add.outer(chance * one.ratio, (1 - chance) * found.ratio), chance * one.lost + (1 - chance) * found.lost
        found = _law(ratio, np.multiply.outer(one.mass, found.mass), lost, grid)
    return found


def chance_of(budget: float, tau: float) -> float:
    """The published probability of being drawn with this much left: (e^b - 1) / (e^tau - 1), and 1 from the threshold on."""
    if budget <= 0:
        return 0.0
    return 1.0 if budget >= tau else float(np.expm1(budget) / np.expm1(tau))


def _nothing() -> Law:
    return Law(np.ones(1), np.ones(1))


def _law(ratio: Array, mass: Array, lost: float, grid: float | None) -> Law:
    ratio, mass = ratio.ravel(), mass.ravel()
    some = mass > 0
    ratio, mass = ratio[some], mass[some]
    if grid is None or len(ratio) <= _MOST_EXACT:
        return Law(ratio, mass, lost)
    none = ratio <= np.exp(-_HIGHEST)
    place = np.floor(np.arcsinh(np.log(ratio[~none]) / _LEAST) / grid).astype(np.int64)
    first, count = int(place.min()), int(place.max() - place.min()) + 2
    ends = np.exp(_LEAST * np.sinh((first + np.arange(count)) * grid))
    low = place - first
    up = np.clip((ratio[~none] - ends[low]) / (ends[low + 1] - ends[low]), 0.0, 1.0) * mass[~none]
    out = np.bincount(low, mass[~none] - up, count) + np.bincount(low + 1, up, count)
    some = out > 0
    return Law(np.append(ends[some], 0.0), np.append(out[some], float(mass[none].sum())), lost)
