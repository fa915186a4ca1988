"""Sample and hybrid: budgets become personal rates, or personal rates and personal clips together (IDP-SGD, Algorithm 2 and D.6).

Every group has an intensity v. With a mix m, its rate is q v^m and its noise multiplier z v^-(1-m): all of the difference between groups
goes into rates at m = 1 (Sample), all into clips at m = 0 (Scale). Each group's v is what its budget allows, and z is chosen so that the
mean rate is the one asked for. A rate never exceeds 1; a group that meets this limit under Sample leaves some of its budget unspent, and
the plan says so; with m < 1 its clip takes up the rest: from there on its noise multiplier falls as 1/v, so that no mix is too close to 1.

Guarantee: every mean rate below 1 has its noise, but where a group would be left out (see `mixed`).
Proof: the mean rate grows with z, from what costs nothing without any noise up to 1, where z affords everybody every step. It is bracketed
    by steps that double, then cut down.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sartor.accounting import accountants, noise_for, rdp
from sartor.accounting.solve import MOST_WASTE, Family, Search, are_few, expected_waste, intensities, interpolated, rare_rate
from sartor.accounting.use import ever
from sartor.errors import Infeasible, SartorError
from sartor.plans.one_rate import scale
from sartor.plans.problem import Parameters, Problem, everyone, register

Array = NDArray[np.float64]

_FIRST = rdp.NAME  # asked before another that is slower
_CLOSE = 5e-4  # of the mean rate to the one asked for
_ROUGH = 4e-4  # waste while searching
_COARSE = 0.02  # the same for the tight accountant, while the mean rate is far off
_FEW_KNOTS = 5  # that stand for more groups than these while the tight accountant is asked where the noise lies
_REACH = 1.5  # of a first step, in logarithms of the noise
_LEAST_SLOPE = 1e-9  # of the mean rate in the noise: it is about the mix, and less where groups are drawn at every step
_FOLLOW = 10.0  # by how much more than the noise intensities may move
_STALLED = 3  # trials in which secants should have halved the gap; if not, the bracket is halved
_MOST_TRIALS = 200


@register("sample")
def sample(problem: Problem) -> Parameters:
    """Personal rates, common clip."""
    return mixed(problem, 1.0)


@register("hybrid", options=("mix", "max_excess"))
def hybrid(problem: Problem, mix: float = 0.5) -> Parameters:
    """Personal rates and personal clips; `mix` is the share of sampling. (`max_excess` chooses it: see `sartor.plan`.)"""
    return mixed(problem, mix)


def mixed(problem: Problem, mix: float) -> Parameters:
    """Rates and noise multipliers at a mix of sampling (1) and scaling (0)."""
    if not 0 <= mix <= 1:
        raise SartorError(f"mix is the share of sampling and must lie in [0, 1], not {mix:g}.")
    one_budget = len(problem.epsilon) == 1
    if mix == 0 or one_budget or (mix < 1 and problem.mean_rate >= 1):
        return scale(problem)
    if problem.mean_rate >= 1:
        noise = noise_for(problem.epsilon, problem.delta, rate=1.0, steps=problem.steps, accountant=problem.accountant)
        return Parameters(everyone(1.0, problem.epsilon), everyone(noise.max(), problem.epsilon))
    seldom = np.minimum(np.exp(rare_rate(problem.steps)(problem.delta)), 1.0)
    if (mean := float(np.average(seldom, weights=problem.weight))) >= problem.mean_rate:
        # everybody can be used at all with a probability below their delta, which costs nothing
        return Parameters(seldom * (problem.mean_rate / mean), everyone(0.0, problem.epsilon))
    log_noise, v, slope = _balance(problem, mix, _FIRST, *_start(problem), 1.0)
    if accountants.find(problem.accountant).refines:
        log_noise, v, _ = _balance(problem, mix, problem.accountant, *_shift(problem, log_noise, v), slope)
    rate, noise = _family(problem, mix, log_noise)(v)
    unused = ever(rate, problem.steps) <= problem.delta
    if unused.any():
        raise Infeasible(
            f"{problem.name(int(np.flatnonzero(unused)[0]))} would be drawn at all with a probability of at most its delta, beside "
            f'budgets so much more open: sampling leaves it out; use scheme "scale" or a hybrid with a smaller mix than {mix:g}.'
        )
    return Parameters(rate, noise)


def _family(problem: Problem, mix: float, log_noise: float) -> Family:
    with np.errstate(over="ignore"):
        always = np.power(problem.mean_rate, -1 / mix)  # the intensity at which a group is drawn at every step

    def family(v: Array) -> tuple[Array, Array]:
        with np.errstate(over="ignore"):
            rate = problem.mean_rate * v**mix
        noise = np.exp(log_noise) * np.minimum(v, always) ** (mix - 1)
        if mix < 1:
            noise = noise / np.maximum(v / always, 1.0)
        return np.where(rate > 1 - 1e-12, 1.0, rate), noise

    return family


def _top(problem: Problem, mix: float) -> float:
    return 1 / problem.mean_rate if mix == 1 else np.inf


def _start(problem: Problem) -> tuple[float, Array]:
    """A guess: intensities in proportion to epsilon, and the noise that their mean needs."""
    mean = float(np.average(problem.epsilon, weights=problem.weight))
    like = float(np.average(problem.delta, weights=problem.weight))
    noise = noise_for(mean, like, rate=problem.mean_rate, steps=problem.steps, accountant=_FIRST)
    return float(np.log(max(noise, 1e-2))), problem.epsilon / mean


def _shift(problem: Problem, log_noise: float, v: Array) -> tuple[float, Array]:
    """From the Rényi solution towards the tight one: by how much less noise one typical budget needs."""
    middle = int(np.argsort(problem.epsilon)[len(problem.epsilon) // 2])
    both = [
        noise_for(problem.epsilon[middle], problem.delta[middle], rate=problem.mean_rate, steps=problem.steps, accountant=accountant)
        for accountant in (_FIRST, problem.accountant)
    ]
    shift = float(np.log(both[1] / both[0])) if min(both) > 0 else 0.0
    return log_noise + shift, v


def _balance(problem: Problem, mix: float, accountant: str, log_noise: float, v: Array, slope: float) -> tuple[float, Array, float]:
    """The noise at which the mean rate is the one asked for, the intensities there, and by how much the mean rate grows with the noise.

    With many groups, or some by the tight accountant, the search runs on interpolated intensities, aiming ahead by what solving will leave
    unspent; what is returned was solved for every group. The tight accountant is asked rarely: while the mean rate is far off, intensities
    need not be close.
    """
    top, many, rare = _top(problem, mix), not are_few(problem.delta), rare_rate(problem.steps)
    warm = accountants.find(accountant).refines
    some = warm and not many and len(problem.delta) > 2 * _FEW_KNOTS - 2 and np.ptp(problem.delta) == 0

    def floor(delta: Array) -> Array:
        # further down than this, noise makes up for any rate
        return np.asarray(np.maximum((rare(delta) - np.log(problem.mean_rate)) / mix, -600.0))

    def search(family: Family) -> Search:
        return Search(problem.epsilon, problem.delta, family, problem.steps, accountant, top, floor, warm)

    def predicted(family: Family, start: Array, waste: float) -> Array:
        knots: dict[str, Any] = {"count": _FEW_KNOTS, "waste": waste, "width": waste / 8} if some else {}
        log_v, _ = interpolated(search(family), start=start, **knots)
        return np.exp(np.minimum(log_v, np.log(top)))

    def roughly(family: Family, start: Array, waste: float) -> Array:
        return intensities(search(family), start=start, waste=waste, width=waste / 8)

    def solved(family: Family, start: Array, _waste: float) -> Array:
        return intensities(search(family), start=start)

    ahead = mix * expected_waste(len(problem.epsilon))
    coarse = _COARSE if warm and not many else _ROUGH
    log_noise, v, slope = _search(problem, mix, predicted if many or some else roughly, log_noise, v, slope, ahead, coarse, warm)
    if accountant != problem.accountant:
        return log_noise, v, slope
    return _search(problem, mix, solved, log_noise, v, slope if warm else 1.0, 0.0, _ROUGH, warm)


def _search(
    problem: Problem,
    mix: float,
    solve: Callable[[Family, Array, float], Array],
    log_noise: float,
    v: Array,
    slope: float,
    goal: float,
    waste: float,
    warm: bool,
) -> tuple[float, Array, float]:
    """Bracketed secants on the logarithm of the mean rate over the one asked for, towards `goal`.

    `waste` is how coarsely intensities are solved at first; a gap that this could explain is looked at again before it counts. What is
    spent follows v over the noise, so where each evaluation counts (`warm`), intensities are carried along with the noise, by as much as
    they moved with it last.
    """
    low, high, reach = -np.inf, np.inf, _REACH
    last: tuple[float, float] | None = None
    before, follow = v, np.ones_like(v)
    gaps: list[float] = []
    for _ in range(_MOST_TRIALS):
        family = _family(problem, mix, log_noise)
        v = solve(family, v, waste)
        gap = _gap(problem, family, v) - goal
        if waste > _ROUGH and abs(gap) < 4 * waste:
            if waste > MOST_WASTE:  # what guesses said of where the noise lies is not what the accountant says
                low, high, last, gaps = -np.inf, np.inf, None, []
            waste = max(_ROUGH, min(abs(gap), waste, MOST_WASTE) / 10)
            continue
        if abs(gap) < _CLOSE:
            return log_noise, v, slope
        if high - low < 1e-12:  # the mean rate jumps here: with less noise somebody is left out, with more the batch is too large
            return low, solve(_family(problem, mix, low), v, waste), slope
        low, high = (log_noise, high) if gap < 0 else (low, log_noise)
        if last is not None and log_noise != last[0]:
            slope = float(np.clip((gap - last[1]) / (log_noise - last[0]), _LEAST_SLOPE, 20.0))
            follow = np.clip(np.log(v / before) / (log_noise - last[0]), 0.0, _FOLLOW)
        before = v
        last = (log_noise, gap)
        step = float(np.clip(-gap / slope, -reach, reach))
        reach = 2 * reach if abs(step) == reach else _REACH
        gaps.append(abs(gap))
        stalled = len(gaps) > _STALLED and gaps[-1] > gaps[-1 - _STALLED] / 2
        inside = low < log_noise + step < high and not stalled
        log_noise = log_noise + step if inside or np.isinf(high - low) else (low + high) / 2
        waste = float(np.clip(abs(gap) / 10, _ROUGH, waste)) if waste <= MOST_WASTE else waste
        if warm:
            v = v * np.exp(np.clip(follow * (log_noise - last[0]), -10.0, 10.0))
    raise Infeasible(
        f'no noise gives rates with a mean of {problem.mean_rate:.3g} under these budgets; ask for another batch, or use scheme "scale".'
    )


def _gap(problem: Problem, family: Family, v: Array) -> float:
    mean = float(np.average(family(v)[0], weights=problem.weight))
    return float(np.log(mean / problem.mean_rate))
