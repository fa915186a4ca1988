"""Schemes that draw everyone at the same rate: uniform, scale, equal, exclude.

Uniform: everyone is treated as the strictest holder asks, which is what libraries without individual budgets do.

Scale: each group's clip follows its budget (IDP-SGD, Algorithm 3). Each group gets the noise multiplier that its budget needs at the common
rate. One noise is added for all, so a group's multiplier is met by its clip; the plan's noise multiplier is the harmonic mean, which makes
the mean clip the one asked for. Guarantee: each group's mechanism is the uniform one at its own budget, whatever the others chose.

Equal: everyone is clipped alike, and budgets become units of a filter. The noise is what the most open budget needs at full norm; stricter
holders begin with fewer units, and rest sooner (the assignment of IDP-SGD, section 5, under individual accounting). Without a filter there
is no such plan.

Exclude: holders stricter than a threshold are left out, the others are treated uniformly (IDP-SGD, baseline E.1). Who is left out is
decided by budgets alone, and a holder who is left out spends nothing.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sartor.accounting import noise_for
from sartor.errors import Infeasible, SartorError
from sartor.plans.problem import Parameters, Problem, everyone, register


@register("uniform")
def uniform(problem: Problem) -> Parameters:
    """Common rate and common clip, with the noise that the strictest group needs."""
    return Parameters(everyone(problem.mean_rate, problem.epsilon), everyone(_noise(problem).max(), problem.epsilon))


@register("equal")
def equal(problem: Problem) -> Parameters:
    """Common rate and common clip, with the noise that the most open group needs."""
    return Parameters(everyone(problem.mean_rate, problem.epsilon), everyone(_noise(problem).min(), problem.epsilon))


@register("exclude", options=("threshold",))
def exclude(problem: Problem, threshold: float | None = None) -> Parameters:
    """Drop the groups with epsilon below `threshold`; the strictest that stays sets the noise."""
    if threshold is None or not threshold > 0:
        raise SartorError('scheme "exclude" needs a threshold: the smallest epsilon that takes part.')
    kept = problem.epsilon >= threshold
    remaining = float(problem.weight[kept].sum())
    if remaining == 0:
        raise Infeasible(f"nobody is left at a threshold of {threshold:g}: every finite budget is stricter.")
    rate = problem.mean_rate * float(problem.weight.sum()) / remaining
    if rate > 1:
        raise Infeasible(f"the holders that a threshold of {threshold:g} leaves cannot fill the batch; lower the batch or the threshold.")
    noise = noise_for(problem.epsilon[kept], problem.delta[kept], rate=rate, steps=problem.steps, accountant=problem.accountant).max()
    return Parameters(np.where(kept, rate, 0.0), everyone(noise, problem.epsilon))


@register("scale")
def scale(problem: Problem) -> Parameters:
    """Common rate, personal clips."""
    return Parameters(everyone(problem.mean_rate, problem.epsilon), _noise(problem))


def _noise(problem: Problem) -> NDArray[np.float64]:
    """The noise multiplier that each group's budget needs at the common rate."""
    rate, steps = problem.mean_rate, problem.steps
    return np.asarray(noise_for(problem.epsilon, problem.delta, rate=rate, steps=steps, accountant=problem.accountant))
