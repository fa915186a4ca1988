"""Sample and hybrid: budgets become personal rates, or personal rates and personal clips together (IDP-SGD, Algorithm 2 and D.6).

Every group has an intensity v. With a mix m, its rate is q v^m and its noise multiplier z v^-(1-m): all of the difference between groups
goes into rates at m = 1 (Sample), all into clips at m = 0 (Scale). Each group's v is what its budget allows, and z is chosen so that the
mean rate is the one asked for. A rate never exceeds 1; a group that meets this limit under Sample leaves some of its budget unspent, and
the plan says so; with m < 1 its clip takes up the rest.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from sartor.accounting import Accountant, noise_for
from sartor.accounting.solve import Family, are_few, expected_waste, intensities, interpolated, rare_rate
from sartor.errors import Infeasible, SartorError
from sartor.plans.problem import Parameters, Problem, everyone
from sartor.plans.registry import register
from sartor.plans.scale import scale

Array = NDArray[np.float64]

_CLOSE = 5e-4  # of the mean rate to the one asked for
_ROUGH = 4e-4  # waste while searching


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
    log_noise, v = _balance(problem, mix, "rdp", *_start(problem))
    if problem.accountant == "pld":
        log_noise, v = _balance(problem, mix, "pld", *_shift(problem, log_noise, v))
    rate, noise = _family(problem, mix, log_noise)(v)
    unused = -np.expm1(problem.steps * np.log1p(-np.minimum(rate, 1 - 1e-16))) <= problem.delta
    if unused.any():
        raise Infeasible(
            f"{problem.name(int(np.flatnonzero(unused)[0]))} would be drawn at all with a probability of at most its delta, beside "
            f'budgets so much more open: sampling leaves it out; use scheme "scale" or a hybrid with a smaller mix than {mix:g}.'
        )
    return Parameters(rate, noise)


def _family(problem: Problem, mix: float, log_noise: float) -> Family:
    def family(v: Array) -> tuple[Array, Array]:
        with np.errstate(over="ignore"):
            rate = problem.mean_rate * v**mix
        return np.where(rate > 1 - 1e-12, 1.0, rate), np.exp(log_noise) * v ** (mix - 1)

    return family


def _top(problem: Problem, mix: float) -> float:
    return 1 / problem.mean_rate if mix == 1 else np.inf


def _start(problem: Problem) -> tuple[float, Array]:
    """A guess: intensities in proportion to epsilon, and the noise that their mean needs."""
    mean = float(np.average(problem.epsilon, weights=problem.weight))
    like = float(np.average(problem.delta, weights=problem.weight))
    noise = noise_for(mean, like, rate=problem.mean_rate, steps=problem.steps, accountant="rdp")
    return float(np.log(max(noise, 1e-2))), problem.epsilon / mean


def _shift(problem: Problem, log_noise: float, v: Array) -> tuple[float, Array]:
    """From the Rényi solution towards the tight one: by how much less noise one typical budget needs."""
    middle = int(np.argsort(problem.epsilon)[len(problem.epsilon) // 2])
    both = [
        noise_for(problem.epsilon[middle], problem.delta[middle], rate=problem.mean_rate, steps=problem.steps, accountant=accountant)
        for accountant in ("rdp", "pld")
    ]
    shift = float(np.log(both[1] / both[0])) if min(both) > 0 else 0.0
    return log_noise + shift, v


def _balance(problem: Problem, mix: float, accountant: Accountant, log_noise: float, v: Array) -> tuple[float, Array]:
    """The noise at which the mean rate is the one asked for, and the intensities there: the mean rate grows with the noise.

    With many groups, the search runs on interpolated intensities, aiming ahead by what solving will leave unspent; what is returned was
    solved for every group.
    """
    top, many, rare = _top(problem, mix), not are_few(problem.delta), rare_rate(problem.steps)
    warm = accountant == "pld"

    def floor(delta: Array) -> Array:
        # further down than this, noise makes up for any rate
        return np.asarray(np.maximum((rare(delta) - np.log(problem.mean_rate)) / mix, -600.0))

    def predicted(family: Family, start: Array) -> Array:
        log_v, _ = interpolated(
            problem.epsilon, problem.delta, family, problem.steps, accountant, start=start, top=top, floor=floor, warm=warm
        )
        return np.exp(np.minimum(log_v, np.log(top)))

    def roughly(family: Family, start: Array) -> Array:
        return intensities(
            problem.epsilon, problem.delta, family, problem.steps, accountant, start=start, top=top, floor=floor, warm=warm, waste=_ROUGH
        )

    def solved(family: Family, start: Array) -> Array:
        return intensities(problem.epsilon, problem.delta, family, problem.steps, accountant, start=start, top=top, floor=floor, warm=warm)

    ahead = mix * expected_waste(len(problem.epsilon))
    log_noise, v = _search(problem, mix, predicted if many else roughly, log_noise, v, ahead)
    if accountant != problem.accountant:
        return log_noise, v
    return _search(problem, mix, solved, log_noise, v, 0.0)


def _search(
    problem: Problem, mix: float, solve: Callable[[Family, Array], Array], log_noise: float, v: Array, goal: float
) -> tuple[float, Array]:
    """Bracketed secants on the logarithm of the mean rate over the one asked for, towards `goal`."""
    low, high, slope = -np.inf, np.inf, 1.0
    last: tuple[float, float] | None = None
    for _ in range(80):
        family = _family(problem, mix, log_noise)
        v = solve(family, v)
        gap = _gap(problem, family, v) - goal
        if abs(gap) < _CLOSE or high - low < 1e-12:
            return log_noise, v
        low, high = (log_noise, high) if gap < 0 else (low, log_noise)
        if last is not None and log_noise != last[0]:
            slope = float(np.clip((gap - last[1]) / (log_noise - last[0]), 0.2, 20.0))
        last = (log_noise, gap)
        trial = log_noise - float(np.clip(gap / slope, -1.5, 1.5))
        log_noise = trial if low < trial < high else (low + high) / 2
    raise Infeasible(
        f'no noise gives rates with a mean of {problem.mean_rate:.3g} under these budgets; ask for another batch, or use scheme "scale".'
    )


def _gap(problem: Problem, family: Family, v: Array) -> float:
    mean = float(np.average(family(v)[0], weights=problem.weight))
    return float(np.log(mean / problem.mean_rate))
