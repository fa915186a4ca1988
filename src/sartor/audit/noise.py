"""Whether numbers are noise as it should be: of deviation 1, each number by itself, in every place and in every release.

Noise comes in units of the deviation that it should have, a row for each release, whose columns belong to arrays of given sizes. Beside its
deviation, in all, in each array and in each place, and its shape, every two releases, every two arrays, and a release with itself moved or
turned around are compared: noise that comes again, at once or with the other sign, shows there.

Proof: products of different numbers of noise have signs of their own. So a sum of products over the root of the sum of their squares is
    above t with probability at most 2 exp(-t^2 / 2), however few there are (Hoeffding). Squares are chi-squared. What is named would be
    seen of right noise with probability `UNLIKELY` in each kind of comparison.
Breaks if: noise comes again in an order that is neither that of its places nor the reverse.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr
from scipy.stats import chi2

from sartor.audit.draws import UNLIKELY

Array = NDArray[np.float64]

_LOOKED_AT = 16  # releases that are compared with themselves
_SAME = 1e-4  # how far numbers may be from each other that are the same but for rounding

FINITE = "a sum or its noise is not finite."
DEVIATION = "the noise is not of the deviation that the plan says."
STEPS = "the noise of steps is not independent."
ARRAYS = "the noise of arrays is not independent."
SHAPE = "the noise is not normal."
WITHIN = "the noise within a sum is not independent."


def faults_of_noise(values: Array, sizes: Sequence[int]) -> list[str]:
    """What is wrong with it, if anything."""
    edges = np.cumsum([0, *sizes])
    blocks = [values[:, begin:end] for begin, end in itertools.pairwise(edges) if end > begin]
    if not np.isfinite(values).all():
        return [FINITE]
    if not _releases_are_apart(values):
        usual = np.sqrt(np.mean(values**2, axis=0))  # as many numbers as are sure to be different ones
        return [STEPS] if _has_deviation(usual, 1) else [DEVIATION, STEPS]
    if not all(_has_deviation(block, 1 + len(blocks)) for block in (values, *blocks)) or not _is_everywhere(values):
        return [DEVIATION]
    if not _is_normal(values):
        return [SHAPE]
    if not _arrays_are_apart(blocks):
        return [ARRAYS]
    return [] if _are_apart_from_themselves(values) else [WITHIN]


def _has_deviation(block: Array, tests: int) -> bool:
    square, count = float(np.sum(block**2)), block.size
    return not count or min(chi2.cdf(square, count), chi2.sf(square, count)) >= UNLIKELY / tests


def _is_normal(values: Array) -> bool:
    """Whether the share of numbers below any bound is as near to a normal variable's as it must be (Dvoretzky, Kiefer and Wolfowitz)."""
    found = np.sort(values, axis=None)
    expected, count = ndtr(found), found.size
    ranks = np.arange(count + 1) / max(1, count)
    apart = max(float(np.max(ranks[1:] - expected, initial=0.0)), float(np.max(expected - ranks[:-1], initial=0.0)))
    return apart <= math.sqrt(math.log(2 / UNLIKELY) / (2 * max(1, count)))


def _is_everywhere(values: Array) -> bool:
    """Whether every place has noise in some release."""
    releases, places = values.shape
    squares = np.sum(values**2, axis=0)
    risk = UNLIKELY / (2 * max(1, places))
    return bool(np.all((squares >= chi2.ppf(risk, releases)) & (squares <= chi2.isf(risk, releases))))


def _releases_are_apart(values: Array) -> bool:
    """Whether every two releases, and all that are as far apart as each other, have noise of their own."""
    products, squares = values @ values.T, values**2 @ (values**2).T
    releases, width = values.shape
    above, lags = np.triu_indices(releases, 1), range(1, releases)
    sums, roots = ([*one[above], *(np.trace(one, lag) for lag in lags)] for one in (products, squares))
    if not _are_apart(np.array(sums), np.array(roots)):
        return False
    few = values[:, : min(width, 8)]
    return not _come_again(few[above[0]], few[above[1]])


def _arrays_are_apart(blocks: Sequence[Array]) -> bool:
    """Whether every two arrays have noise of their own."""
    sums, squares = [], []
    for one, other in itertools.combinations(blocks, 2):
        shared = min(one.shape[1], other.shape[1])
        products = one[:, :shared] * other[:, :shared]
        sums.append(float(products.sum()))
        squares.append(float(np.sum(products**2)))
        if _come_again(*(part[:, :shared].reshape(1, -1)[:, :8] for part in (one, other))):
            return False
    return _are_apart(np.array(sums), np.array(squares))


def _are_apart_from_themselves(values: Array) -> bool:
    """Whether no part of a release comes again further on, nor in reverse."""
    size = values.shape[1]
    if size < 2:
        return True
    length = 1 << (2 * size - 1).bit_length()
    products, squares = (np.zeros((2, 2 * size - 1)) for _ in range(2))
    for row in values[:_LOOKED_AT]:
        for total, numbers in ((products, row), (squares, row**2)):
            found = np.fft.rfft(numbers, length)
            total[0, 1:size] += np.fft.irfft(np.abs(found) ** 2, length)[1:size]  # moved so far
            turned = np.fft.irfft(found**2, length)[: 2 * size - 1]
            turned[::2] -= numbers**2  # a number by itself
            total[1] += turned / 2
    return _are_apart(products, squares, rounding=1e-9 * size)


def _are_apart(products: Array, squares: Array, rounding: float = 0.0) -> bool:
    """Whether sums of products are such as chance makes, by the sums of their squares."""
    bound = math.sqrt(2 * math.log(2 * max(1, products.size) / UNLIKELY))
    return bool(np.all(np.abs(products) <= bound * np.sqrt(np.maximum(squares, 0.0)) + rounding))


def _come_again(one: Array, other: Array) -> bool:
    """Whether the few numbers of some row are those of the same row in the other, or with the other sign."""
    if not one.size:
        return False
    near = min(_SAME, (UNLIKELY / len(one)) ** (1 / one.shape[1]))
    return bool(np.any(np.minimum(np.abs(one - other).max(axis=1), np.abs(one + other).max(axis=1)) <= near))
