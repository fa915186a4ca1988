"""The robust membership attack (RMIA; Zarifzadeh, Liu and Shokri 2024): does training explain a record better than it explains others?

A record x is compared with many records z that nobody trained on. With p(x | model) the probability of x's true class, and p(x) its mean
over reference models, the score is the share of z for which (p(x | model) / p(x)) / (p(z | model) / p(z)) is at least gamma. It needs few
reference models, since no distribution is fitted. `rmia` has reference models with and without the target; `offline_rmia` only those
without, from which p(x) is extrapolated as (1 + a) / 2 of their mean plus (1 - a) / 2.

Scores are shares, so many may be equal. Their dependence is that of `lira`'s.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit

from sartor.audit.lira import Mask, attacked, checked
from sartor.audit.scores import Scores
from sartor.audit.shadow_training import Array
from sartor.audit.shadows import Shadows
from sartor.errors import SartorError

GAMMA = 2.0
"""How much better a record must be explained than another; the authors' choice."""
EXTRAPOLATED = 0.3
"""How much of the way from models with the target to a sure one those without have gone; the authors' `a` for images."""


def rmia(
    shadows: Shadows, *, models: Sequence[int] | None = None, references: int | None = None, gamma: float = GAMMA
) -> dict[int, Scores]:
    """Scores per group of the plan, where each of these models (all by default) is attacked by means of `references` of the others."""
    return _in_turn(shadows, models, references, gamma, None)


def offline_rmia(
    shadows: Shadows,
    *,
    models: Sequence[int] | None = None,
    references: int | None = None,
    gamma: float = GAMMA,
    extrapolated: float = EXTRAPOLATED,
) -> dict[int, Scores]:
    """The same with those of the references alone that the target was out of."""
    return _in_turn(shadows, models, references, gamma, extrapolated)


def rmia_on(shadows: Shadows, signals: ArrayLike, inside: ArrayLike, population: ArrayLike, *, gamma: float = GAMMA) -> dict[int, Scores]:
    """Scores per group from one more model: its signals of targets and of the population, and who it was trained on."""
    observed, said = checked(shadows, signals, inside)
    others = np.asarray(population, float)
    if others.shape != shadows.population.shape[1:]:
        raise SartorError("a model that is attacked has a signal for each record of the shadow models' population.")
    every = np.arange(len(shadows))
    return shadows.by_group(_scores(shadows, every, observed, others, gamma, None), said)


def _in_turn(
    shadows: Shadows, models: Sequence[int] | None, references: int | None, gamma: float, extrapolated: float | None
) -> dict[int, Scores]:
    chosen, most = attacked(shadows, models), len(shadows) - 2
    count = most if references is None else references
    if not 2 <= count <= most or count % 2:
        raise SartorError(f"references come in pairs: an even number from 2 to {most}, not {count}.")
    found = []
    for model in chosen:
        # the pairs that follow, so that models are not all judged by the same few
        rest = np.roll(shadows.others(model), -(model // 2 * 2))[:count]
        found.append(_scores(shadows, rest, shadows.signals[model], shadows.population[model], gamma, extrapolated))
    return shadows.by_group(np.stack(found), shadows.inside[chosen])


def _scores(
    shadows: Shadows, references: NDArray[np.intp], observed: Array, population: Array, gamma: float, extrapolated: float | None
) -> Array:
    if not shadows.population.shape[1]:
        raise SartorError("RMIA compares targets with records that nobody trained on: train the shadow models with population=.")
    if not 0 < gamma < np.inf or (extrapolated is not None and not 0 <= extrapolated <= 1):
        raise SartorError("gamma is above 0 and finite, and what is extrapolated lies in [0, 1].")
    own, others = expit(shadows.signals[references]), expit(shadows.population[references])
    if extrapolated is None:
        usual, usual_of_others = own.mean(axis=0), others.mean(axis=0)
    else:
        out: Mask = ~shadows.inside[references]
        usual = _extrapolated(np.where(out, own, 0.0).sum(axis=0) / out.sum(axis=0), extrapolated)
        usual_of_others = _extrapolated(others.mean(axis=0), extrapolated)
    ratio, ratios = _ratio(observed, usual), np.sort(_ratio(population, usual_of_others))
    return np.asarray(np.searchsorted(ratios, ratio - np.log(gamma), side="right") / len(ratios))


def _extrapolated(mean: Array, share: float) -> Array:
    return 0.5 * ((1 + share) * mean + (1 - share))


def _ratio(signals: Array, usual: Array) -> Array:
    """log of the probability of a true class, whose log-odds are the signal, over what is usual."""
    return np.asarray(-np.logaddexp(0, -signals) - np.log(np.maximum(usual, np.finfo(float).tiny)))
