"""Rounds: PDP-SGD made sound. Personalised sampling in rounds, around DP-SGD, with a threshold for each round (Heo, Seo and Whang 2023).

Before each round every holder's own secret coin decides whether they take part in it; those who do undergo DP-SGD at one rate, noise and
clip. `spreads` says how budgets are spread over the rounds, `thresholds` how a threshold is chosen, `search` what the best schedule is.

Guarantee: that of the plan: for each holder, (epsilon, delta)-DP at their own budget, under zeroing everything of theirs.
Proof: the schedule is fixed before training from the budgets alone. To one holder a round is "with probability pi the whole inner run,
    otherwise nothing" (`exposure.Included`), whatever the others' coins; rounds compose as the privacy-loss distributions of that, in each
    direction (Zhu, Dong and Wang 2022), and the plan's constructor compares the composition with the budget. By the composition theorem
    of the paper (4.3), which holds for any fixed sequence, all that is released is covered, and by post-processing (4.4) all that is made
    of it.
Breaks if: a round that did not draw a holder is not charged to them: the coin has been spent all the same. That is the published form,
    whose true cost `published` tells. Or if a rate, weight, threshold or denominator follows from who was drawn.
"""

from __future__ import annotations

from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sartor.accounting.gaussian import mu_for
from sartor.accounting.losses import TooFine
from sartor.confidential import FEWEST
from sartor.errors import Infeasible, SartorError
from sartor.numbers import several
from sartor.plans import thresholds as thresholds_of
from sartor.plans.problem import Problem, Scheduled, register
from sartor.plans.search import searched, spread_steps
from sartor.plans.spreads import Round, first_chances, solved
from sartor.plans.thresholds import Threshold

Array = NDArray[np.float64]

FIXED = "fixed:0.7"
"""The published weights of PDP-SGD: 0.7 for what coins leave unused, 0.3 for what lies above the threshold."""
OF_ADAPDP = "fixed:0.2"
"""The published weights of AdaPDP."""
SPREADS = ("onion", "even", "search")
_MOST_ROUNDS = 100


@register("rounds", options=("rounds", "spread", "threshold"))
def rounds(problem: Problem, rounds: int | None = None, spread: str = "onion", threshold: Threshold | None = None) -> Scheduled:
    """`rounds` rounds (5, or one for each threshold given), whose thresholds follow a rule or are given; `search` chooses its own."""
    return _scheduled(problem, rounds, spread, threshold, FIXED)


@register("jorgensen", options=("threshold",))
def jorgensen(problem: Problem, threshold: Threshold | float | None = None) -> Scheduled:
    """One round: every holder tosses one coin, and then there is DP-SGD on those who are in (Jorgensen, Yu and Cormode 2015)."""
    return _scheduled(problem, 1, "onion", threshold, FIXED)


@register("adapdp", options=("rounds", "spread", "threshold"))
def adapdp(problem: Problem, rounds: int | None = None, spread: str = "onion", threshold: Threshold | None = None) -> Scheduled:
    """Rounds in each of which a model of its own is trained (after Niu et al. 2021); `sgd.members` averages what they predict."""
    return _scheduled(problem, rounds, spread, threshold, OF_ADAPDP)


def weights(plan: Any) -> Array:
    """Of each round's model, its weight in the average: its threshold times how many were *expected* to take part; they add up to 1."""
    taus = plan.options.get("thresholds")
    if taus is None or len(taus) != len(plan.stages):
        raise SartorError("this plan has no rounds: only those of the schemes rounds, jorgensen and adapdp do.")
    sizes = [float(plan.holders[stage.groups] @ stage.inclusion) for stage in plan.stages]
    if plan.view.merged:  # the weights are a part of the model: they are not to tell how many a small group has
        sizes = [float(f"{max(size, FEWEST):.1g}") for size in sizes]
    found = np.asarray(taus, float) * np.array(sizes)
    return np.asarray(found / found.sum())


def _scheduled(problem: Problem, count: int | None, spread: str, threshold: Any, usual: str) -> Scheduled:
    if spread not in SPREADS:
        raise SartorError(f'a spread is {", ".join(SPREADS[:-1])} or {SPREADS[-1]}, not "{spread}".')
    threshold = None if threshold is None else thresholds_of.asked(threshold)
    if count is None:
        count = 5 if threshold is None or isinstance(threshold, str) else len(threshold)
    if not isinstance(count, Integral) or isinstance(count, bool) or not 1 <= count <= _MOST_ROUNDS:
        raise SartorError(f"rounds are a whole number from 1 to {_MOST_ROUNDS}, not {count!r}.")
    if count > problem.steps:
        raise SartorError(
            f"{several(problem.steps, 'step')} cannot be dealt out to {several(int(count), 'round')}: every round needs one at least."
        )
    if spread == "search" and threshold is not None:
        raise SartorError("the search chooses its own thresholds; leave threshold out, or give another spread.")
    try:
        if spread == "search":
            return _found(searched(problem, int(count)))
        taus = chosen(problem.epsilon, problem.weight, int(count), usual if threshold is None else threshold, onion=spread == "onion")
        return _found(solved(problem, taus, _steps(problem, taus, onion=spread == "onion"), onion=spread == "onion"))
    except (TooFine, OverflowError, FloatingPointError):
        raise Infeasible(
            "these budgets are too small, or too far apart, for rounds: no grid of privacy losses serves all of them; use scheme scale or "
            "sample."
        ) from None


def _steps(problem: Problem, taus: tuple[float, ...], *, onion: bool) -> tuple[int, ...]:
    """Of each round the steps: even ones are alike; of an onion, as many as give all about the same noise.

    A round that adds little to what is spent, or has few people, would otherwise have steps of next to nothing but noise. By Gaussians: a
    round from a to b has n q^2 / noise^2 of about mu(b)^2 - mu(a)^2, with q = batch / size.
    """
    if not onion:
        return spread_steps(problem.steps, np.ones(len(taus)))
    square = np.array([mu_for(tau, float(problem.delta.min())) ** 2 for tau in taus])
    size = first_chances(problem.epsilon, taus, onion=True) @ problem.weight
    return spread_steps(problem.steps, np.maximum(np.diff(square, prepend=0.0) * size**2, 1e-300))


def chosen(epsilon: Array, weight: Array, count: int, threshold: Threshold, *, onion: bool) -> tuple[float, ...]:
    """The thresholds of so many rounds, by a rule or as given.

    By a rule, an onion's round looks at what its predecessors left of every budget; the rounds of an even spread all look at the same k-th,
    so they have one threshold. An onion that has spent everything has fewer rounds.
    """
    if not thresholds_of.is_rule(threshold):
        values = thresholds_of.given(threshold, count)
        if onion and not thresholds_of.ascending(values):
            raise SartorError("the thresholds of an onion ascend: each round spends what lies between the one before and its own.")
        if onion and count > 1 and values[-2] >= epsilon.max():
            raise SartorError(
                "the thresholds of an onion but the last must lie below the most open budget: nobody is left for its last round."
            )
        return values
    rule = str(threshold)
    if not onion:
        return (thresholds_of.best(epsilon, weight, rule),) * count
    found: list[float] = []
    for _ in range(count):
        spent = found[-1] if found else 0.0
        left = epsilon > spent * (1 + 1e-9)
        if not left.any():
            break
        tau = thresholds_of.rounded(spent + thresholds_of.best(epsilon[left] - spent, weight[left], rule))
        if tau <= spent:
            break
        found.append(tau)
    return tuple(found)


def _found(way: tuple[Round, ...]) -> Scheduled:
    return Scheduled(way, {"thresholds": [one.threshold for one in way]})
