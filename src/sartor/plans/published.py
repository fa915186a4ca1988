"""The published form of PDP-SGD and AdaPDP, *as meant*, for comparison: its guarantee does not hold from the second round on.

In each round a threshold tau is chosen from what is left of everybody's budgets; a holder with b < tau left is drawn with probability
(e^b - 1) / (e^tau - 1), one with more for sure; DP-SGD at (tau, delta) is run on those who were drawn; and they, and they alone, are
charged tau. The error is in the last step: a coin that fell against a holder has been tossed all the same, and who keeps their budget
tosses another one in the next round (theorem 4.5 charges nothing for it). In a single round there is no next one, and the promise holds.

How much that costs depends on what is inside. With randomised response two rounds already break the promise (0.670 for 0.5). With Gaussian
noise figures often stay below it, as adding up epsilons and deltas over rounds wastes more than the forgotten coins cost, and not always:
with a budget of 0.05 under ten thresholds of 0.3 they do not. `really_spends` tells.

What is built here is what the algorithms must mean: as printed they add noise for each example, keep a point where they should drop it,
search while they should stop, and let the smallest budget become 0 after a draw. As published, thresholds, rates, noise and weights follow
from who was drawn. `really_spends` holds them fixed, so even of a single round it does not count what they tell of a coin: whoever reads
how many were drawn, or the noise that follows from it, and knows the others' coins, knows the last. So neither is shown unless asked for.

This is no `Plan`: nothing else in the library trains by it (`sartor.baselines` does, for comparison).
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
from sartor.numbers import several, to_json_number
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
    'sartor.plan(budgets, "rounds", ...), or compare by sartor.baselines.fit_published.'
)
HELD_FIXED = ("thresholds", "rates", "noise", "weights")
"""What follows from who was drawn, and what that tells of a coin is not counted in `really_spends`."""
_CELLS, _WIDEST = 100, 0.02  # of a round's threshold: the grid of its losses, and its width at most
_SHARE = 0.02  # of the logarithm of a ratio: the grid of ratios
_DIGITS = 2  # of what is spent that are shown: with more, it tells the noise that it was computed from
_WARNED = (
    "the published form of PDP-SGD has no valid guarantee: with thresholds, rates, noise and weights held fixed as they came out, {}; that "
    "they follow from who was drawn is not counted in it."
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

    `steps` are those of its rounds: fewer than `asked_steps`, where budgets were used up before `most_rounds` rounds.
    """

    scheme: str
    steps: int
    asked_steps: int
    batch: float
    clip: float
    delta: float
    groups: Groups = field(repr=False)
    rounds: tuple[PublishedRound, ...] = field(repr=False)
    most_rounds: int
    threshold: str | tuple[float, ...]
    accountant: str = "pld"
    seeded: bool = False

    sound = False

    @property
    def promised_delta(self) -> float:
        """The delta of theorem 4.5: that of the inner DP-SGD times the rounds that there may be."""
        return min(self.delta * self.most_rounds, 0.5)

    @property
    def promised(self) -> Array:
        """Epsilon that each group is promised, at the promised delta: its budget."""
        return self.groups.epsilon

    @cached_property
    def really_spends(self) -> Array:
        """Epsilon that each group spends, at the promised delta: by every way the coins of one holder can fall.

        Thresholds, rates, noise and weights are held fixed as they came out (`HELD_FIXED`), and for those figures are upper bounds, by two
        thousandths at most where that was compared (budgets from 0.01 to 5, up to ten rounds). In truth they follow from everybody's
        coins, which is not counted and can only add to it.
        """
        taus = [one.threshold for one in self.rounds]
        laws = []
        for one in self.rounds:
            grid = rounds.Grid(min(one.threshold / _CELLS, _WIDEST), self.promised_delta, len(self.rounds))
            laws.append(coins.Law.of_losses(rounds.inner(one.rate, one.noise_multiplier, one.steps, grid)))
        return np.array([coins.published(laws, taus, float(own), _SHARE).epsilon(self.promised_delta) for own in self.groups.epsilon])

    @property
    def view(self) -> confidential.View:
        """The groups as they may be shown."""
        return self.groups.view

    def to_json(self, *, sensitive: bool = False) -> dict[str, Any]:
        """As a JSON document; groups of fewer than ten holders are merged.

        Of what follows from who was drawn it has `really_spends`, to two digits rounded up; with `sensitive` all digits of it, and
        thresholds, rates and noise of the rounds as they came out, from which one person's coin may be read.
        """
        view, by_rule = self.view, isinstance(self.threshold, str)
        return {
            "scheme": self.scheme,
            "form": "published",
            "sound": self.sound,
            "warning": Unsound.__name__,
            "held_fixed": list(HELD_FIXED),
            "steps": self.steps,
            "asked": {"steps": self.asked_steps, "rounds": self.most_rounds},
            "batch": self.batch,
            "clip": self.clip,
            "promised_delta": self.promised_delta,
            "holders": int(self.groups.holders.sum()),
            "rounds": self.most_rounds,
            "threshold": self.threshold if by_rule else list(self.threshold),
            # before any coin it follows from the budgets alone, and may be one person's
            **({"first_threshold": self.rounds[0].threshold} if by_rule and not view.merged else {}),
            "groups": [
                {
                    "holders": view.people(row),
                    "promised": confidential.to_json(view.value(self.promised, row)),
                    "really_spends": confidential.to_json(self._spends(row)),
                }
                for row in view.rows()
            ],
            **({"came_out": self._came_out()} if sensitive else {}),
        }

    def _came_out(self) -> dict[str, Any]:
        names = ("threshold", "steps", "rate", "noise_multiplier")
        rounds = [{name: getattr(one, name) for name in names} for one in self.rounds]
        return {"rounds": rounds, "really_spends": [to_json_number(value) for value in self.really_spends.tolist()]}

    def _spends(self, row: slice) -> confidential.Shown:
        """What a row really spends, as it may be shown."""
        shown = self.view.spent(self.really_spends, row)
        return shown if isinstance(shown, tuple) else _upward(shown)

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
                confidential.text(view.value(self.promised, row), "g"),
                confidential.text(self._spends(row), "g"),
            ]
            for row in view.rows(20)
        ]
        fixed = f"{', '.join(HELD_FIXED)} held fixed"
        title = f"{self.scheme}, published form, NOT SOUND: {self._length()}; delta {self.promised_delta:g}, {fixed}"
        return Table(["holders", "promised", "really spends"], rows, title)

    def _length(self) -> str:
        if len(self.rounds) == self.most_rounds:
            return f"{several(len(self.rounds), 'round')}, {several(self.steps, 'step')}"
        return f"{self.steps:,} of {self.asked_steps:,} steps; budgets were used up after {len(self.rounds)} of {self.most_rounds} rounds"


def published(
    budgets: Budgets,
    scheme: str = "rounds",
    *,
    steps: int,
    batch: float,
    rounds: int | None = None,
    threshold: Threshold | float | None = None,
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
    if budgets.reserve:
        raise SartorError("the published form knows no reserve, and would spend it: give budgets without one.")
    groups, rule = budgets.groups, KINDS[scheme] if threshold is None else thresholds.asked(threshold)
    if rounds is None:
        rounds = ROUNDS if isinstance(rule, str) else len(rule)
    if not np.all(np.isfinite(groups.epsilon)):
        raise SartorError("the published form knows no public records: every budget must be finite.")
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
    size, norm, way = float(batch), float(clip), str(rule) if taus is None else taus
    made = Published(scheme, done, int(steps), size, norm, delta, groups, tuple(found), int(rounds), way, accountant, stream.seeded)
    warnings.warn(Unsound(_WARNED.format(_over(made))), stacklevel=2)
    return made


def _over(made: Published) -> str:
    """Who spends more than they are promised, and how much, as a sentence may say it."""
    over = made.really_spends > made.promised
    if not over.any():
        return "no group spends more than it is promised"
    worst = made.view.above(float(np.max(made.really_spends / made.promised)))
    return f"{made.view.count(over)} spend more than they are promised (at most {_upward(worst):g} times as much)"


def _upward(value: float) -> float:
    """The next number of two digits."""
    if value <= 0 or not np.isfinite(value):
        return value
    unit = 10.0 ** (np.floor(np.log10(value)) - _DIGITS + 1)
    return float(f"{np.ceil(value / unit) * unit:.{_DIGITS}g}")


def _counted(budgets: Array) -> tuple[Array, Array]:
    """Distinct budgets and how many have each."""
    values, counts = np.unique(budgets, return_counts=True)
    return values, counts.astype(float)
