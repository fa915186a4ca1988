"""How many queries budgets pay for: known from the plan alone, before any teacher is trained.

By the data-independent bound the price of a query follows from sensitivity and noise, and a budget is an allowance fixed beforehand, so how
far both reach is a function of public numbers. A noisy test that refuses an answer leaves more for others: the forecast is for queries that
are all answered, and a voting asks at least as many.

Noise and threshold are chosen by what a consensus of teachers survives, from public numbers alone, before anybody has voted. More noise
makes a vote cheaper, so more queries are paid for; too much drowns what the teachers agree on. So the most is added that a plausible
consensus still survives: half of the teachers know the answer, the others guess, and the noisy maximum is right nineteen times in twenty.
The answer leads by half of the votes then, whatever the number of classes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sartor.accounting.special import log_ndtr
from sartor.confidential import Shown, to_json
from sartor.errors import Infeasible, SartorError
from sartor.pate.account import Accountant, PateAccount, payable
from sartor.pate.plan import Confident, GNMax, PatePlan, whole
from sartor.pate.rows import per_row, rows_of, sensitivities
from sartor.pate.voting import Voting, check_options
from sartor.run.stream import Stream

_KNOW = 0.5  # of the teachers
_RIGHT = 0.95  # of the answers
_TEST = 2.0  # times the noise of an answer: a test costs an eighth of it
_NODES, _SEARCH = 80, 60


def surviving_noise(teachers: int, classes: int) -> float:
    """The largest deviation of the noise on every count that a plausible consensus survives, in votes.

    >>> round(surviving_noise(250, 10), 1), round(surviving_noise(250, 2), 1)
    (36.6, 53.7)
    """
    lead = _KNOW * whole(teachers, "the number of teachers")
    low, high = 0.0, 64.0  # leads in deviations
    others = max(whole(classes, "the number of classes") - 1, 1)
    for _ in range(_SEARCH):
        middle = (low + high) / 2
        low, high = (low, middle) if _right(middle, others) >= _RIGHT else (middle, high)
    return lead / high


def _right(lead: float, others: int) -> float:
    """The probability that a count with this lead, in deviations of the noise, stays above so many others."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(_NODES)
    return float(weights @ np.exp(others * log_ndtr(nodes + lead)) / np.sqrt(2 * np.pi))


def aggregator_for(teachers: int, classes: int, kind: str = "gnmax") -> GNMax:
    """The aggregator with the most noise that a plausible consensus of these teachers survives.

    A confident one answers where, by a test with twice that noise, half of the teachers agree.

    >>> aggregator_for(100, 2, "confident").threshold
    50.0
    """
    noise = surviving_noise(teachers, classes)
    if kind == "gnmax":
        return GNMax(noise)
    if kind == "confident":
        return Confident(noise, _KNOW * teachers, _TEST * noise)
    raise SartorError(f'noise is chosen for the aggregators gnmax and confident, not for "{kind}".')


Array = NDArray[np.float64]
Counts = NDArray[np.int64]

_STEPS = 64  # of a tenth less noise each
_BLOCK = 256  # queries whose participants are listed at once
# round ones, as finer ones would tell what the strictest allow
_FACTORS = (1.1, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 7.0, 10.0, 20.0, 50.0, 100.0)


@dataclass(frozen=True, eq=False)
class Forecast:
    """Of `available` queries those that a voting can answer before somebody is out, and those that each group could pay for by itself."""

    plan: PatePlan
    available: int
    queries: int
    of_group: Counts = field(repr=False)

    def to_json(self) -> dict[str, Any]:
        """This forecast as a JSON document; groups of fewer than ten holders are merged, and figures of the others have one digit then."""
        view, plan = self.plan.view, self.plan
        groups = [
            {
                "epsilon": to_json(view.value(plan.epsilon, row)),
                "holders": view.people(row),
                "queries": _counts(view.value(view.coarse(self.of_group), row)),
            }
            for row in view.rows()
        ]
        return {"queries": self.queries, "available": self.available, "noise": self.plan.aggregator.noise, "groups": groups}


def forecast(
    plan: PatePlan,
    available: int,
    *,
    accountant: Accountant | None = None,
    go_on: bool = False,
    before: Sequence[PateAccount] = (),
) -> Forecast:
    """How many of the `available` queries can be asked and answered under a plan, after the votings in `before`.

    Guarantee: `aggregate` with the data-independent bound and these options asks exactly so many queries if all are answered, and no fewer
        if some are not.
    Proof: the queries that would be asked are found by the voting's own rules, in a rehearsal without votes.

    >>> import sartor
    >>> from sartor import pate
    >>> people = sartor.Budgets.from_shares([1, 2, 3], [0.34, 0.43, 0.23], holders=60_000, delta=1e-5, seed=1)
    >>> found = forecast(pate.plan(people, "weight", teachers=250, aggregator=pate.GNMax(40)), available=9_000)
    >>> found.queries, found.of_group.tolist()
    (163, [204, 179, 163])
    """
    available = whole(available, "the number of queries", least=0)
    check_options(plan, "independent", go_on, accountant)
    rehearsal = _Rehearsal(plan, available, accountant or Accountant())
    rehearsal.charge_earlier(before, "independent")
    of_group = rehearsal.lasting()
    rehearsal.run(np.inf, "independent", go_on)
    return Forecast(plan, available, int(rehearsal.asked.sum()), of_group)


def check_enough(found: Forecast, classes: int, *, accountant: Accountant | None = None) -> None:
    """Refuse budgets from which no student can come, and say what would help.

    A student that tells classes apart needs a label of each, so fewer answers than classes are too few.
    """
    plan, needed = found.plan, min(classes, found.available)
    if found.queries >= needed:
        return
    advice = []
    opener = _least(lambda factor: _enough(replace(plan, epsilon=plan.epsilon * factor), needed, accountant))
    if opener is not None:
        advice.append(f"epsilons {opener:g} times as large")
    louder = _least(lambda factor: _enough(replace(plan, aggregator=plan.aggregator.louder(factor)), needed, accountant))
    if louder is not None and louder * plan.aggregator.noise <= surviving_noise(plan.teachers, classes):
        advice.append(f"noise {louder:g} times as large")
    elif louder is not None:
        advice.append(f"{louder:g} times the teachers (and people, so that each learns from as many) with noise that grows with them")
    raise Infeasible(
        f"these budgets pay for {found.queries:,} of {found.available:,} queries, and a student of {classes:,} classes needs a label of "
        f"each: {' or '.join(advice) or 'much more open budgets'} would do."
    )


def _counts(shown: Shown) -> int | list[int]:
    """A number of queries as a document shows it."""
    return [int(end) for end in shown] if isinstance(shown, tuple) else int(shown)


def quietest(plan: PatePlan, available: int, *, accountant: Accountant | None = None) -> PatePlan:
    """The same plan, with less noise, to within a tenth, where its budgets pay for all queries and have something left."""
    if not _enough(plan, available, accountant):
        return plan
    quiet = [plan.aggregator.louder(0.9**step) for step in range(_STEPS)]
    low, high = 0, _STEPS  # the last that is paid for, and the first that is not
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _enough(replace(plan, aggregator=quiet[middle]), available, accountant) else (low, middle)
    return replace(plan, aggregator=quiet[low])


def _enough(plan: PatePlan, needed: int, accountant: Accountant | None) -> bool:
    return forecast(plan, needed, accountant=accountant).queries >= needed


def _least(fits: Callable[[float], bool]) -> float | None:
    """The smallest round factor that is enough."""
    return next((factor for factor in _FACTORS if fits(factor)), None)


class _Rehearsal(Voting):
    """A voting without votes, in which every query gets its answer."""

    def __init__(self, plan: PatePlan, queries: int, accountant: Accountant) -> None:
        super().__init__(plan, np.zeros((queries, 0), np.int64), 1, None, accountant, Stream())

    def lasting(self) -> Counts:
        """For each group how many queries its own people can pay for, whatever becomes of the others."""
        plan, price = self.plan, sum(self._prices())
        allowance = per_row(plan, self.accountant.allowance(*plan.spendable))
        if not plan.rests:
            return payable(sensitivities(plan) ** 2 * price, self.before, allowance, len(self.votes))
        spent, paid = self.before, np.zeros(len(allowance), np.int64)
        for begin in range(0, len(self.votes), _BLOCK):
            weights, _ = self._multipliers(begin, min(_BLOCK, len(self.votes) - begin))
            worst = spent + np.cumsum(weights**2 * price, axis=0)
            spent, paid = worst[-1], paid + np.sum(worst <= allowance, axis=0)
        return np.array([paid[rows].min() for rows in rows_of(plan)])

    def _ask(self, place: int, count: int, weights: Array) -> Array:
        self.asked[place : place + count] = True
        return self._owed(weights, np.ones(count, bool))
