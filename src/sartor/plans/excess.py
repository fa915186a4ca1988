"""Excess: how far a group's risk may lie above what its members would get if everyone had their budget.

An epsilon is one point of a curve. Two mechanisms that meet the same (epsilon, delta) can differ elsewhere on it, and under personal
sampling rates the mechanism that a holder gets depends on everybody's budgets (Kaiser et al., "Your Privacy Depends on Others").
The measure is the Delta-divergence between the mechanism that the holder gets and the uniform one at their budget (Kaissis et al. 2024):
the largest, over epsilon >= 0 and both directions, of (delta_got(epsilon) - delta_alone(epsilon)) / (1 + e^epsilon), and at least 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sartor.accounting import SampledGaussian, noise_for, pld
from sartor.budgets import spendable

if TYPE_CHECKING:
    from sartor.plans.plan import Plan

Array = NDArray[np.float64]

_POINTS = 400


def divergence(got: SampledGaussian, alone: SampledGaussian) -> float:
    """The Delta-divergence of one exposure over another, from their privacy profiles; 0 if it is nowhere worse."""
    if got == alone or got.rate == 0 or got.steps == 0:
        return 0.0
    return highest(pld.Profile(got), pld.Profile(alone), max(_reach(got), 1e-6))


def highest(got: pld.Profile, alone: pld.Profile, top: float) -> float:
    """The largest of (delta_got - delta_alone) / (1 + e^epsilon) over epsilon in [0, top] and both directions, and at least 0."""
    grid = np.linspace(0.0, top, _POINTS)
    best = 0.0
    for _ in range(3):  # the whole curve first, then twice around its highest point
        got_profile, alone_profile = got.delta(grid), alone.delta(grid)
        height = np.max([(got_profile[way] - alone_profile[way]) / (1 + np.exp(grid)) for way in ("remove", "add")], axis=0)
        peak = int(np.argmax(height))
        best = max(best, float(height[peak]))
        grid = np.linspace(grid[max(peak - 1, 0)], grid[min(peak + 1, _POINTS - 1)], _POINTS)
    return best


def _reach(exposure: SampledGaussian) -> float:
    """An epsilon beyond which the profile is too small to matter."""
    delta = np.array([1e-6])
    return float(np.minimum(pld.epsilon_bounds(exposure, delta, pld.PLANNING_ACCURACY)[2], 700.0)[0])


def of_plan(plan: Plan) -> Array:
    """The excess of each group of a plan; public records, who asked for no protection, have none."""
    out = np.zeros(len(plan))
    finite = np.flatnonzero(np.isfinite(plan.epsilon) & (plan.rate > 0))
    if not len(finite):
        return out
    rate = min(1.0, plan.batch / float(plan.holders.sum()))
    epsilon, delta = spendable(plan.epsilon, plan.reserve)[finite], spendable(plan.delta, plan.reserve)[finite]
    noise = noise_for(epsilon, delta, rate=rate, steps=plan.steps, accountant=plan.accountant)
    known: dict[tuple[SampledGaussian, SampledGaussian], float] = {}
    for i, own in zip(finite, noise, strict=True):
        alone = SampledGaussian(rate, float(own), plan.steps)
        got = plan.exposure(int(i))
        if _weaker(got, alone):
            continue
        if (got, alone) not in known:
            known[got, alone] = divergence(got, alone)
        out[i] = known[got, alone]
    return out


def _weaker(got: SampledGaussian, alone: SampledGaussian) -> bool:
    """Whether a mechanism is plainly no worse: no more often, no less noise (but for rounding of the clip) and no longer."""
    return (
        got.rate <= alone.rate * (1 + 1e-12) and got.noise_multiplier >= alone.noise_multiplier * (1 - 1e-12) and got.steps <= alone.steps
    )
