"""Exclude: holders stricter than a threshold are left out, the others are treated uniformly (IDP-SGD, baseline E.1).

Who is left out is decided by budgets alone, and a holder who is left out spends nothing.
"""

from __future__ import annotations

import numpy as np

from sartor.accounting import noise_for
from sartor.errors import Infeasible, SartorError
from sartor.plans.problem import Parameters, Problem, everyone
from sartor.plans.registry import register


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
