"""Spreads: how budgets are spread over rounds, as formulas, and the coins, rates and noise that follow.

A schedule has k rounds. Round r has n_r steps, a threshold tau_r, one rate q_r and one noise for all, and of each group g the probability
pi_gr that a member takes part in it at all. C(parts; delta) is what a composition of such rounds costs, each behind its coin, by the plan's
accountant, and delta* the smallest delta of all. Rates follow from the coins: q_r = batch / (sum over g of holders_g pi_gr), 1 at most.

- `onion`, thresholds ascending, tau_0 = 0: in round r every holder may spend the part of their budget between tau_(r-1) and tau_r.
  Steps are in proportion to (mu_r^2 - mu_(r-1)^2) size_r^2, with mu_r the ratio of a Gaussian that costs tau_r, and size_r how many are
  expected by the published coins: so all rounds have about the same noise.
  The noise of round r is the least with C(rounds 1 to r, all for sure; delta*) <= tau_r. A group with eps >= tau_r is in it for sure, one
  with eps <= tau_(r-1) not at all, and one between by the largest coin with C(rounds 1 to r-1 for sure, round r by pi; delta) <= eps.
- `even`: a k-th of every budget, composed, is spent in each round. The noise of round r is the least with C(k times round r, for sure;
  delta*) <= tau_r. A group with eps >= tau_r is in it for sure, every other by the largest coin with C(k times round r by pi; delta)
  <= eps.

Every holder is charged every round by plan, drawn or not. Where thresholds differ from round to round, rounds whose k-fold composition
fits need not fit together, and figures that lead a search are not those that judge: so in the end all groups are judged by the plan's
accountant, coins of those who would spend too much are lowered, or, where there is no coin to lower, all noise is raised.

Many budgets are rounded down to at most 128 levels, at equal ratios from the strictest to the most open, with the smallest delta of all:
that wastes up to a 127th of the logarithm of their ratio (0.6 % of budgets from 0.5 to 1). Otherwise a solver wastes about 0.2 %; by
Rényi's accountant, whose figure for coins before many steps hardly falls with them, several hundredths, and the strict are left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import takewhile

import numpy as np
from numpy.typing import NDArray

from sartor.accounting import Composition, Exposure, Included, SampledGaussian, accountants, rounds, spend_on
from sartor.accounting.accountants import LossDistributions
from sartor.accounting.bracket import largest_fitting
from sartor.accounting.gaussian import mu_for
from sartor.accounting.losses import Pair
from sartor.errors import Infeasible
from sartor.plans.filters import levels
from sartor.plans.problem import Problem

Array = NDArray[np.float64]
Indices = NDArray[np.intp]

_WASTE = 6e-4  # share of a budget that a solved coin or noise may leave unspent
_APART = 3e-4  # by which what leads the search may differ from what judges
_ROUGH = 1e-2  # the same while rates are still being found
_PASSES, _DAMPED, _MOST_PASSES = 12, 3, 40  # until rates do not fall any more, from which on they move half-way, and at most
_NEAR = 5e-3  # by which rates may lie above those that follow from the coins, while there are passes left
_SPARE = 1e-3  # by which rates are solved too high, so that those that follow from the coins are never above them
_CELLS = 500  # of the smallest epsilon: the grid of losses
_SMALLEST = 0.01  # of the largest threshold: budgets below are solved on a grid for this one
_LEAST_NOISE = 0.05  # that a round is given, however much its threshold allows
_LOWERED = 1.5e-3  # what is taken off a coin or added to noise where the accountant says more than the search did
_MOST_CHANGES = 60


@dataclass(frozen=True, eq=False)
class Round:
    """A round: its steps, its rate and noise, the threshold it was made for, and of each group the probability of taking part."""

    steps: int
    rate: float
    noise_multiplier: float
    threshold: float
    inclusion: Array = field(repr=False)


@dataclass(frozen=True)
class _Steps:
    """What those who take part in a round undergo."""

    rate: float
    noise_multiplier: float
    steps: int

    def behind(self, chance: float) -> Exposure:
        one = SampledGaussian(self.rate, self.noise_multiplier, self.steps)
        return one if chance == 1 else Included(chance, one)


Part = tuple[_Steps, float, int]
"""A round, the probability of taking part in it, and how often it occurs."""
Cost = Callable[[tuple[Part, ...], float], float]


def exposure_of(parts: tuple[Part, ...]) -> Exposure:
    """What a holder undergoes in these rounds."""
    found = [steps.behind(chance) for steps, chance, count in parts for _ in range(count) if chance > 0]
    if not found:
        return SampledGaussian(0.0, np.inf, 0)
    return found[0] if len(found) == 1 else Composition(tuple(found))


def costs(accountant: str, epsilon: float, delta: float, count: int) -> Cost:
    """A function from rounds behind coins to about what they cost; the smallest epsilon and delta in question say how fine it must be."""
    if not isinstance(accountants.find(accountant), LossDistributions):
        return lambda parts, at: float(spend_on([exposure_of(parts)], at, accountant)[0])
    grid = rounds.Grid(epsilon / _CELLS, delta, count)

    @lru_cache(maxsize=64)
    def losses(steps: _Steps) -> Pair:
        return rounds.inner(steps.rate, steps.noise_multiplier, steps.steps, grid)

    @lru_cache(maxsize=64)
    def together(sure: tuple[_Steps, ...]) -> Pair:
        return losses(sure[0]) if len(sure) == 1 else rounds.joined([together(sure[:-1]), losses(sure[-1])], grid)

    def cost(parts: tuple[Part, ...], at: float) -> float:
        before = tuple(steps for steps, chance, count in takewhile(lambda part: part[1:] == (1.0, 1), parts[:-1]))
        rest = parts[len(before) :]
        own = [(losses(steps), chance, count) for steps, chance, count in rest]
        return rounds.cost([(together(before), 1.0, 1), *own] if before else own, at, grid)

    return cost


@dataclass(frozen=True, eq=False)
class Levels:
    """The budgets that coins are solved for, how many holders each stands for, and which one each group has."""

    epsilon: Array
    delta: Array
    weight: Array
    of_group: Indices

    @classmethod
    def of(cls, problem: Problem) -> Levels:
        """Those of a problem: as asked for, or rounded down where they are many."""
        epsilon, delta = levels(problem)
        table, of_group = np.unique(np.stack([epsilon, delta], axis=1), axis=0, return_inverse=True)
        of_group = np.asarray(of_group, np.intp).reshape(-1)
        return cls(table[:, 0], table[:, 1], np.bincount(of_group, problem.weight).astype(float), of_group)


@dataclass(frozen=True, eq=False)
class Schedule:
    """A schedule that is being solved: of each round its steps, and `chance` by round and level."""

    levels: Levels
    thresholds: tuple[float, ...]
    rounds: tuple[_Steps, ...]
    chance: Array
    onion: bool

    def parts(self, level: int) -> tuple[Part, ...]:
        """What a level undergoes; rounds that are alike come once, with their number."""
        found: dict[tuple[_Steps, float], int] = {}
        for steps, chance in zip(self.rounds, self.chance[:, level].tolist(), strict=True):
            if chance > 0:
                found[steps, chance] = found.get((steps, chance), 0) + 1
        return tuple((*key, count) for key, count in found.items())

    def spent(self, accountant: str) -> Array:
        """What each level costs, as the plan will be judged."""
        exposures = [exposure_of(self.parts(i)) for i in range(len(self.levels.epsilon))]
        return spend_on(exposures, self.levels.delta, accountant)

    @property
    def sizes(self) -> Array:
        """How many are expected to take part in each round."""
        return np.asarray(self.chance @ self.levels.weight)

    @property
    def signal(self) -> float:
        """The sum over all steps of (expected sum of clips)^2 / noise^2, for clips of 1."""
        drawn = self.sizes * np.array([one.rate for one in self.rounds])
        return float(sum(one.steps * (size / one.noise_multiplier) ** 2 for one, size in zip(self.rounds, drawn.tolist(), strict=True)))


def solved(problem: Problem, thresholds: tuple[float, ...], steps: tuple[int, ...], *, onion: bool) -> tuple[Round, ...]:
    """The rounds of a schedule: coins, rates and noise such that everybody's rounds together fit their budget, as the accountant says."""
    return finished(problem, proposed(problem, thresholds, steps, onion=onion))


def proposed(problem: Problem, thresholds: tuple[float, ...], steps: tuple[int, ...], *, onion: bool) -> Schedule:
    """A schedule as the search has it, not yet judged."""
    of = Levels.of(problem)
    least = float(of.delta.min())
    cost = costs(problem.accountant, max(float(of.epsilon.min()), max(thresholds) * _SMALLEST), least, len(steps))
    begin = first_chances(of.epsilon, thresholds, onion=onion)
    now = Schedule(of, thresholds, tuple(_Steps(0.0, 1.0, count) for count in steps), begin, onion)
    rates, waste = _rates(problem, now), _ROUGH
    best: Schedule | None = None
    for passed in range(_MOST_PASSES):
        now = _with_chances(_with_noise(replace(now, rounds=_at(now.rounds, rates)), cost, least, waste), cost, waste)
        follows = _rates(problem, now)
        if waste == _WASTE and np.all(follows <= rates):
            kept = replace(now, rounds=_at(now.rounds, follows))
            best = kept if best is None or kept.signal > best.signal else best
            if passed >= _PASSES or np.all(follows >= rates * (1 - _NEAR)):
                return best
        wanted = np.minimum(follows * (1 + _SPARE), 1.0)
        if passed >= _PASSES:
            rates = np.maximum(wanted, rates)  # which comes to rest
        else:
            rates = np.sqrt(wanted * rates) if passed >= _DAMPED else wanted
        waste = _WASTE
    if best is not None:
        return best
    raise Infeasible("the rates and coins of these rounds did not settle; give other thresholds, or fewer rounds.")


def finished(problem: Problem, schedule: Schedule) -> tuple[Round, ...]:
    """The rounds of a schedule, after it was judged."""
    now = _judged(problem, schedule)
    return tuple(
        Round(one.steps, one.rate, one.noise_multiplier, tau, chance[now.levels.of_group])
        for one, tau, chance in zip(now.rounds, now.thresholds, now.chance, strict=True)
    )


def _rates(problem: Problem, schedule: Schedule) -> Array:
    """The rates that give the expected batch, from how many are expected to take part."""
    sizes = schedule.sizes
    if np.any(sizes <= 0):
        raise Infeasible(
            "a round has nobody to take part in it: its threshold lies above every budget that is left; give lower thresholds."
        )
    return np.asarray(np.minimum(problem.batch / sizes, 1.0))


def _at(rounds: tuple[_Steps, ...], rates: Array) -> tuple[_Steps, ...]:
    return tuple(replace(one, rate=float(rate)) for one, rate in zip(rounds, rates, strict=True))


def first_chances(epsilon: Array, thresholds: tuple[float, ...], *, onion: bool) -> Array:
    """Coins as the published formula has them: between thresholds, (e^eps - e^low) / (e^high - e^low)."""
    lows = (0.0, *thresholds[:-1]) if onion else (0.0,) * len(thresholds)
    with np.errstate(over="ignore", invalid="ignore"):
        rows = [np.expm1(np.minimum(epsilon, high) - low) / np.expm1(high - low) for low, high in zip(lows, thresholds, strict=True)]
    return np.asarray(np.clip(np.nan_to_num(np.array(rows)), 0.0, 1.0))


def _with_noise(schedule: Schedule, cost: Cost, delta: float, waste: float) -> Schedule:
    """The least noise with which those who take part in everything spend each round's threshold."""
    found: list[_Steps] = []
    known: dict[tuple[_Steps, float], _Steps] = {}
    count = 1 if schedule.onion else len(schedule.rounds)
    before: tuple[Part, ...] = ()
    square = 0.0
    for one, tau in zip(schedule.rounds, schedule.thresholds, strict=True):
        key = (replace(one, noise_multiplier=1.0), tau)
        if schedule.onion or key not in known:
            whole = mu_for(tau, delta) ** 2
            known[key] = _least_noise(one, before, count, (whole - square) / count, tau, delta, cost, waste)
            square = whole if schedule.onion else 0.0
        found.append(known[key])
        before = tuple((steps, 1.0, 1) for steps in found) if schedule.onion else ()
    return replace(schedule, rounds=tuple(found))


def _least_noise(
    one: _Steps, before: tuple[Part, ...], count: int, square: float, tau: float, delta: float, cost: Cost, waste: float
) -> _Steps:
    """`square` is about the squared ratio of the Gaussian that the round may be: where the search begins."""
    start = one.noise_multiplier
    if start == 1.0:  # nothing is known yet
        start = 1 / float(np.sqrt(np.log1p(max(square, 1e-300) / (one.steps * one.rate**2))))

    def value(log_ratio: Array, _: Indices) -> Array:
        return np.array([cost((*before, (replace(one, noise_multiplier=float(np.exp(-x))), 1.0, count)), delta) for x in log_ratio])

    top = -float(np.log(_LEAST_NOISE))
    found = largest_fitting(value, np.array([tau * (1 - _APART)]), np.array([-np.log(start)]), top, waste, width=waste / 10)
    return replace(one, noise_multiplier=float(np.exp(-found[0])))


def _with_chances(schedule: Schedule, cost: Cost, waste: float) -> Schedule:
    """The largest coins that budgets allow."""
    of, chance = schedule.levels, schedule.chance.copy()
    known: dict[tuple[_Steps, float], Array] = {}
    for r, (one, tau) in enumerate(zip(schedule.rounds, schedule.thresholds, strict=True)):
        low = schedule.thresholds[r - 1] if schedule.onion and r else 0.0
        chance[r] = np.where(of.epsilon >= tau, 1.0, 0.0)
        tossed = np.flatnonzero((of.epsilon > low) & (of.epsilon < tau))
        if not len(tossed):
            continue
        if (one, tau) not in known:
            before = tuple((steps, 1.0, 1) for steps in schedule.rounds[:r]) if schedule.onion else ()
            count = 1 if schedule.onion else len(schedule.rounds)
            known[one, tau] = _largest_chance(one, before, count, of, tossed, schedule.chance[r, tossed], cost, waste)
        chance[r, tossed] = known[one, tau]
    return replace(schedule, chance=chance)


def _largest_chance(
    one: _Steps, before: tuple[Part, ...], count: int, of: Levels, which: Indices, start: Array, cost: Cost, waste: float
) -> Array:
    def value(log_chance: Array, among: Indices) -> Array:
        chances = np.minimum(np.exp(log_chance), 1.0).tolist()
        deltas = of.delta[which[among]].tolist()
        return np.array([cost((*before, (one, chance, count)), delta) for chance, delta in zip(chances, deltas, strict=True)])

    first = np.log(np.clip(start, 1e-6, 1.0))
    return np.minimum(np.exp(largest_fitting(value, of.epsilon[which] * (1 - _APART), first, 0.0, waste, width=waste / 10)), 1.0)


def _judged(problem: Problem, schedule: Schedule) -> Schedule:
    """The schedule after whatever the accountant finds too much has been taken back; less never costs more."""
    for _ in range(_MOST_CHANGES):
        over = schedule.spent(problem.accountant) > schedule.levels.epsilon
        if not over.any():
            return schedule
        tossed = (schedule.chance > 0) & (schedule.chance < 1)
        sure = over & ~tossed.any(axis=0)
        if sure.any():
            louder = (replace(one, noise_multiplier=one.noise_multiplier * (1 + _LOWERED)) for one in schedule.rounds)
            schedule = replace(schedule, rounds=tuple(louder))
        else:
            schedule = replace(schedule, chance=np.where(tossed & over, schedule.chance * (1 - _LOWERED), schedule.chance))
    raise Infeasible("no coins were found with which these rounds fit every budget; give other thresholds, or fewer rounds.")
