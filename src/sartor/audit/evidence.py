"""What a run's noisy sums say of each canary: the logarithm of how much likelier they are if it took part than if it did not.

A step is a Gaussian mixture to a canary: with its group's rate its direction, of its group's clip, is in the sum, else it is not; where a
stage has coins of inclusion all its steps lie behind one more coin. Constants are those that the plan states. Steps in which a canary has
no part by the plan, as its units are gone or its group is not in the stage, count as likely as not: all of them, or none. Where an array of
the model has less noise so far than the plan's noise ever leaves it, what it has is estimated from the sums themselves, so that noise which
is missing somewhere makes the attack better.

Guarantee: if a run is what its plan describes, the ratios of canaries at right angles to each other are independent.
Proof: at right angles their parts of a step's noise are independent, and so are their coins; a ratio is a function of a canary's own part
    and coins, as long as every array counts with the plan's noise. Given what canaries add, the squares of an array are noncentral
    chi-squared, so that they lie below the quantile of the noise's own at 1e-9 with at most this probability, for each array and step.
Breaks if: there are more canaries than coordinates. Ratios are a fair attack all the same, as any function of what a run shows is, and
    bounds for one run (`one_run_bound`) hold.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaincinv

from sartor.individual.ladder import climb, fractions
from sartor.plans import Plan, Stage

Array = NDArray[np.float64]

_NEVER = 1e-9  # how rarely the plan's noise is taken for less
_PRIOR = 64.0  # coordinates at the planned noise that an estimate begins with


class Evidence:
    """The log likelihood ratio of each canary, from the steps added so far, in their order.

    `group` is each canary's group in the plan, `blocks` the number of coordinates that directions have in each array.
    """

    def __init__(self, plan: Plan, group: NDArray[np.integer], blocks: NDArray[np.integer]) -> None:
        self._plan, self._group = plan, np.asarray(group)
        self._blocks = np.asarray(blocks, float)
        self._squares, self._seen = np.zeros(len(blocks)), np.zeros(len(blocks))
        self._settled, self._open = np.zeros(len(self._group)), np.zeros(len(self._group))
        self._beyond = np.zeros(len(self._group))
        self._lengths = expected_clips(plan)
        rates = np.stack([_of_groups(plan, stage, "rate") for stage in plan.stages])
        usual = min(1.0, plan.batch / int(plan.holders.sum()))
        self._at_most = np.where(rates.max(0) > 0, rates.max(0), usual), np.where((clips := self._lengths.max(0)) > 0, clips, plan.clip)
        self._stages = np.repeat(np.arange(len(plan.stages)), [stage.steps for stage in plan.stages])
        self._stage = 0

    def add(self, step: int, dots: Array, squares: Array) -> None:
        """A step's noisy sum less what others have in it: its dot products (canaries, arrays), and the square of its norm in each array."""
        stage = int(self._stages[step])
        if stage != self._stage:
            self._settled, self._open, self._stage = self._planned, np.zeros(len(self._group)), stage
        variance = self._plan.noise_at(step) ** 2
        self._squares, self._seen = self._squares + squares / variance, self._seen + self._blocks
        less = self._squares < 2 * gammaincinv(self._seen / 2, _NEVER)
        precision = np.where(less, (self._seen + _PRIOR) / (self._squares + _PRIOR), 1.0) / variance
        signal, power = dots @ precision, float(self._blocks @ precision / self._blocks.sum()) / 2
        rate, length = self._of_stage("rate"), self._lengths[step][self._group]
        there = (rate > 0) & (length > 0)
        self._open = self._open + np.where(there, _mixed(rate, length * signal - length**2 * power), 0.0)
        rate, length = (highest[self._group] for highest in self._at_most)
        self._beyond = self._beyond + np.where(there, 0.0, _mixed(rate, length * signal - length**2 * power))

    @property
    def total(self) -> Array:
        """The log likelihood ratios so far."""
        return np.asarray(self._planned + _mixed(np.full(len(self._group), 0.5), self._beyond))

    @property
    def _planned(self) -> Array:
        """From the steps in which canaries have a part."""
        return np.asarray(self._settled + _mixed(self._of_stage("inclusion"), self._open))

    def _of_stage(self, name: str) -> Array:
        """A number of each canary's group in the stage at hand; 0 where it has no part in it."""
        return _of_groups(self._plan, self._plan.stages[self._stage], name)[self._group]


def _of_groups(plan: Plan, stage: Stage, name: str) -> Array:
    found = np.zeros(len(plan))
    found[stage.groups] = getattr(stage, name)
    return found


def _mixed(chance: Array, exponent: Array) -> Array:
    """log(1 - chance + chance exp(exponent))."""
    with np.errstate(divide="ignore"):
        return np.logaddexp(np.log1p(-chance), np.log(chance) + exponent)


def expected_clips(plan: Plan) -> Array:
    """At which norm a vector that is never shorter than its clip enters each step: (steps, groups); 0 where a group has no part or rests.

    >>> import sartor
    >>> budgets = sartor.Budgets.from_groups([(1.0, 100), (4.0, 100)], delta=1e-3)
    >>> expected_clips(sartor.plan(budgets, "uniform", steps=2, batch=20)).tolist()
    [[1.0, 1.0], [1.0, 1.0]]
    """
    found, begin = np.zeros((plan.steps, len(plan))), 0
    for stage in plan.stages:
        found[begin : begin + stage.steps, stage.groups] = stage.clips
        begin += stage.steps
    if plan.filter is None:
        return found
    groups, left = np.arange(len(plan)), plan.filter.units.copy()
    for first in range(0, plan.steps, plan.filter.refresh):
        rung, left = climb(plan.filter, groups, np.full(len(plan), np.inf), left)
        found[first : first + plan.filter.refresh] *= fractions(plan.filter, groups, rung)
    return found
