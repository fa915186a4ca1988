"""The likelihood-ratio attack (Carlini et al. 2022; IDP-SGD, appendix B.5): is a signal more like those of models with the target, or those
of models without?

For each target two Gaussians are fitted, to the signals of the models that it was in and of those that it was out of. The score of another
model's signal is the logarithm of the ratio of their densities (`lira`); or, where nobody has trained with the target (`offline_lira`), how
many deviations it lies above the models without. Either attacks the shadow models in turn, each by means of the others, or one model that
was released (`lira_on`, `offline_lira_on`).

Scores of several models share shadow models, and those of one model share the model: a bound that takes them for independent is as good as
that is true. Under no influence at all, scores of those in and out have the same distribution exactly: the model's pair, whose coins tell
who is in, is left out of the fits.

The loss-threshold attack (Sablayrolles et al. 2019; individual accounting, appendix D) says that who has a small loss took part. It needs
no shadow models to be carried out: any signal that falls as the loss grows is a score. What it achieves is told as the appendix does: a
threshold is chosen on one half of the scores and its success counted on the other, so that no threshold is praised for the noise that it
was chosen by.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sartor.audit.scores import Scores
from sartor.audit.shadow_training import Array
from sartor.audit.shadows import Shadows
from sartor.errors import SartorError

Mask = NDArray[np.bool_]

ENOUGH = 64
"""Models on a side from which on a target's variance is estimated from its own signals; with fewer, all targets share one."""
_LEAST = 1e-12  # of a variance


def lira(shadows: Shadows, *, models: Sequence[int] | None = None) -> dict[int, Scores]:
    """Scores per group of the plan, where each of these shadow models (all by default) is attacked by means of the others."""
    return _in_turn(shadows, models, _online)


def offline_lira(shadows: Shadows, *, models: Sequence[int] | None = None) -> dict[int, Scores]:
    """The same without models that the target was in."""
    return _in_turn(shadows, models, _offline)


def lira_on(shadows: Shadows, signals: ArrayLike, inside: ArrayLike) -> dict[int, Scores]:
    """Scores per group from one more model: its signal of each target, and who of them it was trained on."""
    observed, said = checked(shadows, signals, inside)
    return shadows.by_group(_online(shadows.signals, shadows.inside, observed), said)


def offline_lira_on(shadows: Shadows, signals: ArrayLike, inside: ArrayLike) -> dict[int, Scores]:
    """The same without models that the target was in."""
    observed, said = checked(shadows, signals, inside)
    return shadows.by_group(_offline(shadows.signals, shadows.inside, observed), said)


def checked(shadows: Shadows, signals: ArrayLike, inside: ArrayLike) -> tuple[Array, Mask]:
    """A released model's signals, and who was in, as arrays with one entry for each target."""
    observed, said = np.asarray(signals, float), np.asarray(inside)
    if observed.shape != shadows.groups.shape or said.shape != shadows.groups.shape or said.dtype != bool:
        raise SartorError("a model that is attacked has a signal for each target of the shadow models, and true or false for who was in.")
    return observed, said


def attacked(shadows: Shadows, models: Sequence[int] | None) -> list[int]:
    """The models to attack, all by default."""
    chosen = list(range(len(shadows))) if models is None else list(models)
    if not chosen or len(set(chosen)) < len(chosen) or min(chosen) < 0 or max(chosen) >= len(shadows):
        raise SartorError(f"the models to attack are different whole numbers from 0 to {len(shadows) - 1}.")
    return chosen


def _in_turn(shadows: Shadows, models: Sequence[int] | None, score: Callable[[Array, Mask, Array], Array]) -> dict[int, Scores]:
    if len(shadows) < 6:
        raise SartorError(f"{len(shadows)} shadow models are too few for fits beside the one that is attacked: train 6 or more.")
    chosen, found = attacked(shadows, models), []
    for model in chosen:
        rest = shadows.others(model)
        found.append(score(shadows.signals[rest], shadows.inside[rest], shadows.signals[model]))
    return shadows.by_group(np.stack(found), shadows.inside[chosen])


def _online(signals: Array, inside: Mask, observed: Array) -> Array:
    """log of N(observed; those in) over N(observed; those out), for each target."""
    total = np.zeros(observed.shape)
    for sign, side in ((1, inside), (-1, ~inside)):
        mean, variance = _fitted(signals, side)
        total -= sign * 0.5 * (np.log(variance) + (observed - mean) ** 2 / variance)
    return total


def _offline(signals: Array, inside: Mask, observed: Array) -> Array:
    mean, variance = _fitted(signals, ~inside)
    return np.asarray((observed - mean) / np.sqrt(variance))


def _fitted(signals: Array, side: Mask) -> tuple[Array, Array]:
    """Mean and variance of each target's signals on one side; the variance of all together, where a target has few."""
    count = side.sum(axis=0)
    if np.any(count < 2):
        raise SartorError("a target has fewer than two shadow models on a side: train more.")
    mean = np.where(side, signals, 0.0).sum(axis=0) / count
    squares = np.where(side, (signals - mean) ** 2, 0.0).sum(axis=0)
    own = squares / (count - 1)
    common = squares.sum() / (count - 1).sum()
    return mean, np.maximum(np.where(count >= ENOUGH, own, common), _LEAST)


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
