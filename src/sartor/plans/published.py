"""The published form of PDP-SGD and AdaPDP, *as meant*, for comparison: its guarantee does not hold from the second round on.

In each round a threshold tau is chosen from what is left of everybody's budgets; a holder with b < tau left is drawn with probability
(e^b - 1) / (e^tau - 1), one with more for sure; DP-SGD at (tau, delta) is run on those who were drawn; and they, and they alone, are
charged tau. The error is in the last step: a coin that fell against a holder has been tossed all the same, and who keeps their budget
tosses another one in the next round (theorem 4.5 charges nothing for it). In a single round there is no next one, and the promise holds.

How much that costs depends on what is inside. With randomised response two rounds already break the promise (0.670 for 0.5). With Gaussian
noise the figures may stay below it, as adding up epsilons and deltas over rounds wastes more than the forgotten coins cost: `really_spends`
tells. That is no guarantee: nothing in the published proof says so, and thresholds that follow from coins are not counted in it.

What is built here is what the algorithms must mean: as printed they add noise for each example, keep a point where they should drop it,
search while they should stop, and let the smallest budget become 0 after a draw. Rates and weights follow from who was drawn, as published.

This is no `Plan`: nothing else in the library trains by it (`sgd.published` does, for comparison).
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from functools import cached_property
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sartor import confidential
from sartor.accounting import coins, noise_for, rounds
from sartor.budgets import Budgets, Groups
from sartor.errors import Infeasible, SartorError, Unsound
from sartor.layout import Table
from sartor.numbers import several
from sartor.plans import thresholds
from sartor.plans.rounds import FIXED, OF_ADAPDP
from sartor.plans.search import spread_steps
from sartor.plans.thresholds import Threshold
from sartor.run.stream import Stream

Array = NDArray[np.float64]

KINDS = {"rounds": FIXED, "adapdp": OF_ADAPDP}
"""What was published, by the scheme that mends it, and the weights of its loss."""
ROUNDS = 10
"""How many there are unless said, as the paper has at most in its experiments; fewer, where budgets are used up before."""
REFUSED = (
    "this is the published form of PDP-SGD, whose guarantee does not hold, so it is never trained as a plan: make one by "
    'sartor.plan(budgets, "rounds", ...), or compare by sartor.sgd.fit_published.'
)
_CELLS, _MOST_CELLS = 80, 250  # of the smallest epsilon, and of the largest threshold at most: the grid of losses
_WARNED = (
    "the published form of PDP-SGD has no valid guarantee beyond its first round: with these thresholds held fixed, {} of {} groups spend "
    "more than they are promised (at most {:.2f} times as much); that thresholds follow from who was drawn is not counted in it."
)


@dataclass(frozen=True, eq=False)
class PublishedRound:
    """A round: its threshold, steps, rate and noise, and who was drawn (secret)."""

    threshold: float
    steps: int
    rate: float
    noise_multiplier: float
    drawn: NDArray[np.intp] = field(repr=False)


@dataclass(frozen=True, eq=False)
class Published:
    """The published form of rounds for some budgets, with the coins that fell. Made by `published`.

    `steps` are those of its rounds: fewer than `asked_steps`, where budgets were used up before `asked_rounds` rounds.
    """

    scheme: str
    steps: int
    asked_steps: int
    asked_rounds: int
    batch: float
    clip: float
    delta: float
    groups: Groups = field(repr=False)
    rounds: tuple[PublishedRound, ...] = field(repr=False)
    accountant: str = "pld"
    seeded: bool = False

    sound = False

    @property
    def promised_delta(self) -> float:
        """The delta of theorem 4.5: that of the inner DP-SGD times the rounds."""
        return min(self.delta * len(self.rounds), 0.5)

    @property
    def promised(self) -> Array:
        """Epsilon that each group is promised, at the promised delta: its budget."""
        return self.groups.epsilon

    @cached_property
    def really_spends(self) -> Array:
        """Epsilon that each group spends, at the promised delta: by every way the coins of one holder can fall.

        The sequence of thresholds is held fixed as it came out, and for that sequence figures are upper bounds, by a fifth of a hundredth
        at most. In truth thresholds follow from everybody's coins, which is not counted and can only add to it.
        """
        taus = [one.threshold for one in self.rounds]
        step = max(float(self.groups.epsilon.min()) / _CELLS, max(taus) / _MOST_CELLS)
        grid = rounds.Grid(step, self.promised_delta, len(self.rounds))
        inner = {one: rounds.inner(*one, grid) for one in {(r.rate, r.noise_multiplier, r.steps) for r in self.rounds}}
        laws = [coins.Law.of_losses(inner[one.rate, one.noise_multiplier, one.steps]) for one in self.rounds]
        found = [coins.published(laws, taus, float(epsilon), grid.step).epsilon(self.promised_delta) for epsilon in self.groups.epsilon]
        return np.array(found)

    @property
    def view(self) -> confidential.View:
        """The groups as they may be shown."""
        return self.groups.view

    def to_json(self) -> dict[str, Any]:
        """As a JSON document; groups of fewer than ten holders are merged."""
        view = self.view
        figures = {"promised": self.promised, "really_spends": self.really_spends}
        return {
            "scheme": self.scheme,
            "form": "published",
            "sound": self.sound,
            "warning": Unsound.__name__,
            "thresholds_held_fixed": True,
            "steps": self.steps,
            "asked": {"steps": self.asked_steps, "rounds": self.asked_rounds},
            "batch": self.batch,
            "clip": self.clip,
            "promised_delta": self.promised_delta,
            "holders": int(self.groups.holders.sum()),
            "rounds": [{"threshold": one.threshold, "steps": one.steps, "noise_multiplier": one.noise_multiplier} for one in self.rounds],
            "groups": [
                {"holders": view.people(row), **{name: confidential.to_json(view.value(values, row)) for name, values in figures.items()}}
                for row in view.rows()
            ],
        }

    def __str__(self) -> str:
        return str(self.table())

    def __rich__(self) -> Table:
        return self.table()

    def table(self) -> Table:
        """What it promises beside what it spends, by group."""
        view = self.view
        rows = [
            [
                f"{view.people(row):,}",
                *(confidential.text(view.value(values, row), ".4f") for values in (self.promised, self.really_spends)),
            ]
            for row in view.rows(20)
        ]
        title = f"{self.scheme}, published form, NOT SOUND: {self._length()}; delta {self.promised_delta:g}, thresholds held fixed"
        return Table(["holders", "promised", "really spends"], rows, title)

    def _length(self) -> str:
        if len(self.rounds) == self.asked_rounds:
            return f"{several(len(self.rounds), 'round')}, {several(self.steps, 'step')}"
        return f"{self.steps:,} of {self.asked_steps:,} steps; budgets were used up after {len(self.rounds)} of {self.asked_rounds} rounds"


def published(
    budgets: Budgets,
    scheme: str = "rounds",
    *,
    steps: int,
    batch: float,
    rounds: int | None = None,
    threshold: Threshold | None = None,
    clip: float = 1.0,
    accountant: str = "pld",
    seed: int | None = None,
) -> Published:
    """The published form for these budgets: thresholds, coins and noise of every round. Warns (`Unsound`), and is never a plan.

    `scheme` is "rounds" (Algorithm 1) or "adapdp". There are ten `rounds` unless said, or one for each threshold that is given, and fewer
    where all budgets are used up before. The smallest delta of the budgets is that of the inner DP-SGD.
    """
    if scheme not in KINDS:
        raise SartorError(f'the schemes "rounds" and "adapdp" have a published form, not "{scheme}".')
    if not isinstance(budgets, Budgets):
        raise SartorError("the published form is made for sartor.Budgets.")
    groups = budgets.groups
    if not np.all(np.isfinite(groups.epsilon)):
        raise SartorError("the published form knows no public records: every budget must be finite.")
    if budgets.reserve:
        raise SartorError("the published form keeps nothing in reserve: give budgets without one.")
    if isinstance(threshold, Real):
        threshold = (float(threshold),)
    if rounds is None:
        rounds = ROUNDS if threshold is None or isinstance(threshold, str) else len(threshold)
    for name, value in (("steps", steps), ("rounds", rounds)):
        if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
            raise SartorError(f"{name} must be a whole number of 1 or more, not {value!r}.")
    for name, size in (("batch", batch), ("clip", clip)):
        if not isinstance(size, Real) or isinstance(size, bool) or not 0 < size < np.inf:
            raise SartorError(f"{name} must be a number above 0 and finite, not {size!r}.")
    if rounds > steps:
        raise SartorError(f"{several(steps, 'step')} cannot be dealt out to {several(rounds, 'round')}: every round needs one at least.")
    if batch > len(budgets):
        raise Infeasible(f"an expected batch of {batch:g} cannot be drawn from {len(budgets)} holders.")
    rule = KINDS[scheme] if threshold is None else threshold
    taus = None if thresholds.is_rule(rule) else thresholds.given(rule, rounds)
    stream, left, delta = Stream(seed), budgets.epsilon.copy(), float(budgets.delta.min())
    found: list[PublishedRound] = []
    for place, count in enumerate(spread_steps(steps, np.ones(rounds))):
        alive = left > 0
        if not alive.any():
            break
        tau = thresholds.best(*_counted(left[alive]), str(rule)) if taus is None else taus[place]
        chance = np.array([coins.chance_of(b, tau) for b in np.unique(left)])[np.unique(left, return_inverse=True)[1]]
        drawn = np.flatnonzero(1 - stream.generator("inclusion", place).random(len(left)) <= chance)
        rate = min(1.0, batch / max(len(drawn), 1))  # where nobody was drawn, as if one had been: that coin was tossed, too
        noise = float(noise_for(tau, delta, rate=rate, steps=count, accountant=accountant))
        found.append(PublishedRound(tau, count, rate, noise, drawn))
        left[drawn] = np.maximum(left[drawn] - tau, 0.0)
        left[left < 1e-9] = 0.0
    if not any(len(one.drawn) for one in found):
        raise Infeasible("no round drew anybody; the budgets are too small for these thresholds.")
    done = sum(one.steps for one in found)
    made = Published(
        scheme, done, int(steps), int(rounds), float(batch), float(clip), delta, groups, tuple(found), accountant, stream.seeded
    )
    over = made.really_spends > made.promised
    worst = float(np.max(made.really_spends / made.promised))
    warnings.warn(Unsound(_WARNED.format(int(over.sum()), len(over), worst)), stacklevel=2)
    return made


def _counted(budgets: Array) -> tuple[Array, Array]:
    """Distinct budgets and how many have each."""
    values, counts = np.unique(budgets, return_counts=True)
    return values, counts.astype(float)
