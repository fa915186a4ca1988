"""A search for good steps and ladders of a filter, on public or made-up norms.

What a filter buys depends on how long people's gradients are: with short ones, more steps than full norm pays for are worth it, and cheap
rungs are. That can be tried out beforehand on norms that protect nobody: of a run on public data, or drawn from a distribution.

Norms of the people whom a plan is to protect are not for this. Choosing steps or a ladder by them would tell of their records through the
plan, which is public, and spend budget that nobody accounts for. Nothing that tracks such norms is taken here; an array is believed to
be what its name says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sartor.budgets import Budgets
from sartor.errors import SartorError
from sartor.individual.ladder import climb, fractions
from sartor.layout import Table
from sartor.plans import Plan, plan
from sartor.plans.filters import LADDER, Filter

Array = NDArray[np.float64]

_MOST_SHOWN = 20
_PLAIN = {"equal": "uniform"}  # what treats all alike without a filter


@dataclass(frozen=True)
class Candidate:
    """What was tried: as many steps on a ladder of these costs.

    `worth` is signal to noise over that of the plan without a filter, which has `full_steps` steps; `active` the share of holders who still
    take part in the last stretch, if norms are like the public ones. `arguments` are what `sartor.plan` is told besides the budgets.
    """

    steps: int
    ladder: tuple[int, ...]
    worth: float
    active: float
    noise_multiplier: float
    arguments: dict[str, Any] = field(repr=False)


@dataclass(frozen=True)
class Ranking:
    """All that was tried, the best first; prints as a table."""

    candidates: tuple[Candidate, ...]

    @property
    def best(self) -> dict[str, Any]:
        """What `sartor.plan` is told, besides the budgets, for the best of them."""
        return dict(self.candidates[0].arguments)

    def __str__(self) -> str:
        rows = [
            [f"{one.steps:,}", ",".join(map(str, one.ladder)), f"{one.noise_multiplier:.4g}", f"{one.active:.1%}", f"{one.worth:.4f}"]
            for one in self.candidates[:_MOST_SHOWN]
        ]
        full = self.candidates[0].arguments["full_steps"]
        title = f"signal to noise on public norms, over that of the plan without a filter ({full:,} steps)"
        return str(Table(("steps", "ladder", "noise multiplier", "active at the end", "worth"), rows, title))


def search_plans(
    budgets: Budgets,
    public_norms: Array | Sequence[Any],
    scheme: str = "scale",
    *,
    steps: Sequence[int],
    ladders: Sequence[Sequence[int]] = (LADDER,),
    full_steps: int,
    refresh: int,
    batch: float,
    clip: float = 1.0,
    **options: Any,
) -> Ranking:
    """Try every number of steps on every ladder, and rank them by how much signal they bring through the noise.

    `public_norms` are norms of gradients over the plan's clip, (looks, people) or of people alone: of a run on **public** data, or drawn
    from a distribution; never of the people who are to be protected, whose norms would spend budget unaccounted. Looks lie evenly over the
    run, so that norms that fall while a model learns can be told. Who of these people has which budget is unknown, so each is tried with
    each: a group's members are all of them alike. They are any number; `budgets` are of those who will be trained on.

    What is ranked: for each step the sum, over all holders, of rate times the norm that enters after the rung's clip, is what a batch is
    expected to bring at most; its square over the noise's square, added over all steps. For the plan without a filter this hardly depends
    on its steps, as the square of the noise grows with them; so what it grows by is what norms that are not paid for bring. It weighs
    nobody by budget, and says nothing of where gradients point to.

    The plans are made by `sartor.plan`, which takes the other arguments, and their promises are as good as any plan's: public norms decide
    only which of them is taken.

    >>> import sartor
    >>> budgets = sartor.Budgets.from_groups([(1.0, 600), (2.0, 400)], delta=1e-4)
    >>> made_up = np.random.default_rng(1).lognormal(-1.0, 0.8, size=500)
    >>> run = {"full_steps": 40, "refresh": 4, "batch": 50, "accountant": "rdp"}
    >>> found = search_plans(budgets, made_up, steps=[60, 120], ladders=[(1, 4), (1, 2, 4)], **run)
    >>> [(one.steps, one.ladder) for one in found.candidates][0]
    (120, (1, 2, 4))
    >>> found.candidates[0].worth > 1.2
    True
    >>> sartor.plan(budgets, **found.best).steps
    120
    """
    norms = _public(public_norms)
    told = {"scheme": scheme, "batch": batch, "clip": clip, **options}
    if "filter" in options:
        raise SartorError("a search is for ladders, which it gives to the plans itself: leave filter out.")
    if isinstance(steps, Integral) or any(isinstance(ladder, Integral) for ladder in ladders):
        raise SartorError("give several steps and ladders to choose from: steps=[12_000, 16_000], ladders=[(1, 4, 16)].")
    if not len(steps) or not len(ladders):
        raise SartorError("there is nothing to choose from: give some steps and ladders.")
    if min(steps) <= full_steps:
        raise SartorError(
            f"steps to choose from are more than the {full_steps} that full norm pays for: with as many, nobody's norms are tracked."
        )
    found = []
    plain = None
    for ladder in ladders:
        for count in steps:
            filtered = {"filter": "ladder", "refresh": refresh, "full_steps": full_steps, "ladder": tuple(ladder)}
            arguments = {**told, "steps": count, **filtered}
            made = plan(budgets, **arguments)
            if plain is None:
                plain, _ = _tried(plan(budgets, **{**told, "scheme": _PLAIN.get(scheme, scheme)}, steps=full_steps), norms, refresh)
            worth, active = _tried(made, norms, refresh)
            found.append(Candidate(int(count), tuple(ladder), worth / plain, active, made.noise_multiplier, arguments))
    return Ranking(tuple(sorted(found, key=lambda one: (-one.worth, one.steps, len(one.ladder)))))


def _public(norms: Any) -> Array:
    """Norms as an array (looks, people), of what may be public."""
    if not isinstance(norms, np.ndarray | list | tuple):
        raise SartorError(
            f"public_norms are an array of norms of public or made-up people, not a {type(norms).__name__}: what was tracked of people who "
            "are protected is theirs, and choosing a plan by it would spend budget that nobody accounts for."
        )
    try:
        found = np.atleast_2d(np.asarray(norms, float))
    except (TypeError, ValueError):
        raise SartorError("public_norms are an array of numbers, (looks, people), or of people alone.") from None
    if found.ndim != 2 or not found.size or not np.all(np.isfinite(found) & (found >= 0)):
        raise SartorError("public_norms are finite and 0 or more: an array (looks, people), or of people alone.")
    if not found.any():
        raise SartorError("public_norms are all 0: nothing would be learned of such people, by any plan.")
    return found


def _tried(made: Plan, norms: Array, refresh: int) -> tuple[float, float]:
    """Signal to noise of a whole run whose holders have these norms, and the share of them who take part in its last stretch."""
    if not made.noise > 0:
        raise SartorError("there is no noise in such a plan, so nothing to weigh a signal against: choose by something else.")
    filter, people, rate, clips = _treated(made)
    group = np.repeat(np.arange(len(people)), norms.shape[1])
    left, total, active = filter.units[group], 0.0, np.zeros(len(group), bool)
    for begin in range(0, made.steps, refresh):
        own = (norms[begin * len(norms) // made.steps] * (made.clip / clips)[:, None]).ravel()  # over the group's clip
        rung, left = climb(filter, group, own, left)
        active = rung > 0
        enters = np.minimum(own, fractions(filter, group, rung)).reshape(len(people), -1).mean(axis=1)
        total += min(refresh, made.steps - begin) * float((people * rate * clips) @ enters / made.noise) ** 2
    return total, float(people @ active.reshape(len(people), -1).mean(axis=1) / people.sum())


def _treated(made: Plan) -> tuple[Filter, Array, Array, Array]:
    """The groups that are treated differently: their filter, how many people they are, their rates and clips.

    A plan without a filter is one whose units pay for full norm throughout.
    """
    count, filter = len(made), made.filter
    if filter is None:
        filter = Filter("ladder", made.steps, made.steps, np.ones((count, 1)), np.ones((count, 1)), np.full(count, made.steps))
    keys = np.column_stack([made.rate, made.clips, filter.rungs, filter.costs, filter.units])
    _, first, place = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    people = np.bincount(place.ravel(), weights=made.holders).astype(float)
    alike = Filter(filter.kind, filter.refresh, filter.full_steps, filter.rungs[first], filter.costs[first], filter.units[first])
    return alike, people, made.rate[first], made.clips[first]
