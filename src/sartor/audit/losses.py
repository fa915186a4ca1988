"""The loss-threshold attack (Sablayrolles et al. 2019; individual accounting, appendix D): who has a small loss took part.

It needs no shadow models to be carried out: any signal that falls as the loss grows is a score. What it achieves is told as the appendix
does: a threshold is chosen on one half of the scores and its success counted on the other, so that no threshold is praised for the noise
that it was chosen by.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from sartor.audit.lira import attacked, checked
from sartor.audit.scores import Scores
from sartor.audit.shadows import Shadows
from sartor.audit.signals import Array
from sartor.errors import SartorError

_HALVED = 0x68616C66  # keeps its random numbers apart from others of the same seed


@dataclass(frozen=True)
class Success:
    """What one threshold achieves: the share of right guesses on the half that it was not chosen by, on how many scores, by how many it
    was chosen. Sensitive."""

    accuracy: float = field(repr=False)
    counted: int
    chosen_by: int


def losses(shadows: Shadows, *, models: Sequence[int] | None = None) -> dict[int, Scores]:
    """Scores per group of the plan: the signals themselves, of these shadow models (all by default)."""
    chosen = attacked(shadows, models)
    return shadows.by_group(shadows.signals[chosen], shadows.inside[chosen])


def losses_on(shadows: Shadows, signals: ArrayLike, inside: ArrayLike) -> dict[int, Scores]:
    """Scores per group from one more model: its signal of each target, and who of them it was trained on."""
    return shadows.by_group(*checked(shadows, signals, inside))


def threshold_success(scores: Scores, *, seed: int = 0) -> Success:
    """How many a threshold tells right: as many who are in as who are out, halved at random, chosen on one half, counted on the other.

    >>> success = threshold_success(Scores(np.linspace(1, 2, 100), np.linspace(-2, -1, 100)))
    >>> success.accuracy, success.counted
    (1.0, 100)
    """
    count = min(len(scores.inside), len(scores.outside))
    if count < 2:
        raise SartorError("a threshold is chosen on one half of the scores and counted on the other: two or more of each kind are needed.")
    generator = np.random.default_rng([seed, _HALVED])
    inside, outside = (generator.permutation(side)[:count] for side in (scores.inside, scores.outside))
    half = count // 2
    threshold = _best(inside[:half], outside[:half])
    right = np.concatenate([inside[half:] >= threshold, outside[half:] < threshold])
    return Success(float(right.mean()), len(right), 2 * half)


def _best(inside: Array, outside: Array) -> float:
    """The threshold that tells most right, if those at or above it are said to be in."""
    values = np.unique(np.concatenate([inside, outside]))
    candidates = np.concatenate([[-np.inf], values[:-1] + np.diff(values) / 2, [np.inf]])
    below_in, below_out = (np.searchsorted(np.sort(side), candidates, side="left") for side in (inside, outside))
    right = len(inside) - below_in + below_out
    return float(candidates[int(np.argmax(right))])
