"""Equal: everyone is drawn at the same rate and clipped alike, and budgets become units of a filter.

The noise is what the most open budget needs at full norm; stricter holders begin with fewer units, and rest sooner (the assignment of
IDP-SGD, section 5, under individual accounting). Without a filter there is no such plan.
"""

from __future__ import annotations

from sartor.accounting import noise_for
from sartor.plans.problem import Parameters, Problem, everyone
from sartor.plans.registry import register


@register("equal")
def equal(problem: Problem) -> Parameters:
    """Common rate and common clip, with the noise that the most open group needs."""
    rate = problem.mean_rate
    noise = noise_for(problem.epsilon, problem.delta, rate=rate, steps=problem.steps, accountant=problem.accountant)
    return Parameters(everyone(rate, problem.epsilon), everyone(noise.min(), problem.epsilon))
