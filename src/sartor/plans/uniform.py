"""Uniform: everyone is treated as the strictest holder asks, which is what libraries without individual budgets do."""

from __future__ import annotations

from sartor.accounting import noise_for
from sartor.plans.problem import Parameters, Problem, everyone
from sartor.plans.registry import register


@register("uniform")
def uniform(problem: Problem) -> Parameters:
    """Common rate and common clip, with the noise that the strictest group needs."""
    rate = problem.mean_rate
    noise = noise_for(problem.epsilon, problem.delta, rate=rate, steps=problem.steps, accountant=problem.accountant)
    return Parameters(everyone(rate, problem.epsilon), everyone(noise.max(), problem.epsilon))
