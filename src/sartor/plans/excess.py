"""Excess: how far a group's risk may lie above what its members would get if everyone had their budget.

An epsilon is one point of a curve. Two mechanisms that meet the same (epsilon, delta) can differ elsewhere on it, and under personal
sampling rates the mechanism that a holder gets depends on everybody's budgets (Kaiser et al., "Your Privacy Depends on Others").
The measure is the Delta-divergence between the mechanism that the holder gets and the uniform one at their budget (Kaissis et al. 2024):
the largest, over epsilon >= 0 and both directions, of (delta_got(epsilon) - delta_alone(epsilon)) / (1 + e^epsilon), and at least 0.

It is a figure to look at, and no promise depends on it. Of a plan with a filter, full norm is compared, for as many steps as it pays for.
On either side of the budget that is drawn at the mean rate the excess follows epsilon smoothly, so of many budgets with one delta some are
computed, more of them near that budget, and the others read between them, to a hundredth.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sartor.accounting import Exposure, Filtered, SampledGaussian, noise_for, pld, rdp
from sartor.budgets import spendable
from sartor.errors import Infeasible

if TYPE_CHECKING:
    from sartor.plans.plan import Plan

Array = NDArray[np.float64]
Indices = NDArray[np.intp]

MOST = 0.5
"""The largest excess there can be; also shown where none can be computed."""

_POINTS = 400
_LEAST_DELTA = 1e-6  # where profiles are below it they are too small to matter
_KNOTS = 12  # of many budgets with one delta, on either side of the mean rate
_FEW = 32  # budgets that are computed one by one
_NOISE_KNOTS = 5  # of the noise that budgets would have alone, and one more for each e-fold between them


def divergence(got: Exposure, alone: SampledGaussian) -> float:
    """The Delta-divergence of one exposure over another, from their privacy profiles; 0 if it is nowhere worse."""
    if got == alone:
        return 0.0
    of_got, of_alone = (pld.Profile(exposure, _at(exposure, pld.PROFILE_DELTA)) for exposure in (got, alone))
    return highest(of_got, of_alone, max(min(_at(got, _LEAST_DELTA)[0], 700.0), 1e-6))


def highest(got: pld.Profile, alone: pld.Profile, top: float) -> float:
    """The largest of (delta_got - delta_alone) / (1 + e^epsilon) over epsilon in [0, top] and both directions, and at least 0.

    Where delta_got is too small to matter, it does not count.
    """
    grid = np.linspace(0.0, top, _POINTS)
    best = 0.0
    for _ in range(3):  # the whole curve first, then twice around its highest point
        got_profile, alone_profile = got.delta(grid), alone.delta(grid)
        matters = np.maximum(got_profile["remove"], got_profile["add"]) >= _LEAST_DELTA
        height = np.max([(got_profile[way] - alone_profile[way]) / (1 + np.exp(grid)) for way in ("remove", "add")], axis=0) * matters
        peak = int(np.argmax(height))
        best = max(best, float(height[peak]))
        grid = np.linspace(grid[max(peak - 1, 0)], grid[min(peak + 1, _POINTS - 1)], _POINTS)
    return best


def _at(exposure: Exposure, delta: float) -> tuple[float, float]:
    """Rényi's epsilon at delta, and the order that gave it."""
    if isinstance(exposure, SampledGaussian):
        epsilon, order = rdp.epsilon_and_order(
            *(np.array([value]) for value in (exposure.rate, exposure.noise_multiplier, exposure.steps, delta))
        )
        return float(epsilon[0]), float(order[0])
    values = rdp.curve(exposure) - np.log(delta) / (rdp.ORDERS - 1)
    return float(values.min()), float(rdp.ORDERS[int(np.argmin(values))])


def of_plan(plan: Plan) -> Array:
    """The excess of each group of a plan; public records, who asked for no protection, have none."""
    out = np.zeros(len(plan))
    finite = np.flatnonzero(np.isfinite(plan.epsilon) & (plan.rate > 0))
    steps = plan.steps if plan.filter is None else plan.filter.full_steps
    rate = min(1.0, plan.batch / float(plan.holders.sum()))
    epsilon, delta = spendable(plan.epsilon, plan.reserve), spendable(plan.delta, plan.reserve)
    if np.all(plan.rate[finite] == rate):  # treated alike but for noise: who is no worse off than alone is told exactly
        finite = finite[~_no_worse(plan, finite, rate, epsilon, delta)]
    known = _read_noise(plan, finite, rate, epsilon, delta)
    for same in _alike(finite, delta, plan.rate > rate):
        knots = _knots(same, epsilon, plan.rate[same[0]] > rate)
        try:
            noise = known[knots] if known is not None else _noise(epsilon[knots], delta[knots], rate, steps, plan.accountant)
            alone = (SampledGaussian(rate, float(own), steps) for own in noise)
            found = np.array([_one(_exposure(plan, int(i)), own) for i, own in zip(knots, alone, strict=True)])
        except Infeasible:  # next to no noise, or budgets beyond what can be computed
            out[same] = MOST
        else:
            out[same] = _between(np.log(epsilon[same]), np.log(epsilon[knots]), found)
    return out


def _noise(epsilon: Array, delta: Array, rate: float, steps: int, accountant: str) -> Array:
    """The noise with which each budget would be met alone."""
    return np.asarray(noise_for(epsilon, delta, rate=rate, steps=steps, accountant=accountant))


def _read_noise(plan: Plan, groups: Indices, rate: float, epsilon: Array, delta: Array) -> Array | None:
    """That noise for all groups, read between a few of them, to about a ten-thousandth; None where each is to be solved by itself.

    For plans with coins: other exposures may be the very ones that members would get alone, which is told by equal digits.
    """
    from scipy.interpolate import CubicSpline

    if plan.filter is not None or np.all(plan.parts.inclusion == 1) or len(np.unique(delta[groups])) > 1:
        return None
    place = np.log(epsilon[groups])
    count = _NOISE_KNOTS + int(np.ptp(place)) if len(groups) else 0
    if len(groups) <= count + 1:
        return None
    knots = np.linspace(place.min(), place.max(), count)
    try:
        solved = _noise(np.exp(knots), np.full(count, delta[groups[0]]), rate, plan.steps, plan.accountant)
    except Infeasible:  # of one of them
        return None
    if np.any(solved <= 0):
        return None
    out = np.zeros(len(plan))
    out[groups] = np.exp(CubicSpline(knots, np.log(solved))(place))
    return out


def _exposure(plan: Plan, group: int) -> Exposure:
    """What a member undergoes; with a filter, one of full norm."""
    found = plan.exposure(group)
    return found.at_full if isinstance(found, Filtered) else found


def _no_worse(plan: Plan, groups: Indices, rate: float, epsilon: Array, delta: Array) -> NDArray[np.bool_]:
    """Groups that get the noise that they would get alone."""
    if not len(groups):
        return np.empty(0, bool)
    steps = plan.steps if plan.filter is None else plan.filter.full_steps
    noise = noise_for(epsilon[groups], delta[groups], rate=rate, steps=steps, accountant=plan.accountant)
    alone = (SampledGaussian(rate, float(own), steps) for own in noise)
    return np.array([_weaker(_exposure(plan, int(i)), own) for i, own in zip(groups, alone, strict=True)], bool)


def _alike(groups: Indices, delta: Array, often: NDArray[np.bool_]) -> list[Indices]:
    """Groups among which values are read: of one delta, on one side of the mean rate; where groups are few, each by itself."""
    if len(groups) <= _FEW:
        return [groups[i : i + 1] for i in range(len(groups))]
    sets = (groups[(delta[groups] == value) & (often[groups] == side)] for value in np.unique(delta[groups]) for side in (False, True))
    return [found for found in sets if len(found)]


def _knots(groups: Indices, epsilon: Array, often: bool) -> Indices:
    """The groups that are computed, by ascending epsilon: all, or some, closer to each other towards the mean rate, with both ends."""
    ascending = groups[np.argsort(epsilon[groups], kind="stable")]
    if len(groups) <= _KNOTS:
        return np.asarray(ascending)
    place, share = np.log(epsilon[ascending]), np.linspace(0.0, 1.0, _KNOTS) ** 2
    found = np.searchsorted(place, place[0] + np.ptp(place) * (share if often else (1 - share)[::-1]))
    return np.asarray(ascending[np.unique(np.minimum(found, len(place) - 1))])


def _between(places: Array, knots: Array, values: Array) -> Array:
    """Values at places, from those at knots, which ascend: no value between two knots lies beyond both."""
    from scipy.interpolate import PchipInterpolator

    if len(knots) == 1:
        return np.full(len(places), values[0])
    return np.asarray(PchipInterpolator(knots, values)(places))


def _one(got: Exposure, alone: SampledGaussian) -> float:
    return 0.0 if _weaker(got, alone) else divergence(got, alone)


def _weaker(got: Exposure, alone: SampledGaussian) -> bool:
    """Whether a mechanism is plainly no worse: no more often, no less noise (but for rounding of the clip) and no longer."""
    return (
        isinstance(got, SampledGaussian)
        and got.rate <= alone.rate * (1 + 1e-12)
        and got.noise_multiplier >= alone.noise_multiplier * (1 - 1e-12)
        and got.steps <= alone.steps
    )
