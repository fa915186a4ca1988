"""Scale: everyone is drawn at the same rate, and each group's clip follows its budget (IDP-SGD, Algorithm 3).

Each group gets the noise multiplier that its budget needs at the common rate. One noise is added for all, so a group's multiplier is met
by its clip; the plan's noise multiplier is the harmonic mean, which makes the mean clip the one asked for.

Guarantee: each group's mechanism is the uniform one at its own budget, whatever the others chose: its excess is zero.
"""

from __future__ import annotations

from sartor.accounting import noise_for
from sartor.plans.problem import Parameters, Problem, everyone
from sartor.plans.registry import register


@register("scale")
def scale(problem: Problem) -> Parameters:
    """Common rate, personal clips."""
    rate = problem.mean_rate
    noise = noise_for(problem.epsilon, problem.delta, rate=rate, steps=problem.steps, accountant=problem.accountant)
    return Parameters(everyone(rate, problem.epsilon), noise)
