"""`sartor.pate.plan`: from budgets to a checked plan of an ensemble, by any variant."""

from __future__ import annotations

from numbers import Real

import numpy as np

from sartor.budgets import Budgets, spendable
from sartor.errors import SartorError
from sartor.ownership import Ownership
from sartor.pate.account import Accountant
from sartor.pate.plan import KINDS, Confident, GNMax, PatePlan, records_of, whole
from sartor.pate.variants import find
from sartor.pate.variants.registry import Request


def plan(
    budgets: Budgets,
    variant: str = "weight",
    *,
    teachers: int = 250,
    aggregator: GNMax | None = None,
    tune: bool = False,
    precision: float = 0.05,
    power: float = 2.0,
    most_teachers: int | None = None,
    ownership: Ownership | None = None,
) -> PatePlan:
    """Treat people in an ensemble of `teachers` by their budgets.

    Sensitivities follow the epsilons, as in the paper; with `tune` they follow what a budget really allows, so that all groups run out
    together, and upsampling looks for the duplicates under which voting lasts longest. `precision` is how far a ratio of duplicates
    may be from the ratio of budgets; `power` is that of vanishing's participation (ignored with `tune`). Upsampling keeps the number
    of holders per teacher, so it makes more teachers than asked; `most_teachers` (default: eight times as many) is its limit.

    Plans count holders, never records: there are no more teachers than holders. `ownership` says whose the records are, so that plan and
    accounts know how many there are in all; nothing else of the plan follows from it.

    >>> import sartor
    >>> people = sartor.Budgets.from_shares([1, 2, 3], [0.34, 0.43, 0.23], holders=60_000, delta=1e-5, seed=1)
    >>> plan(people, "weight").sensitivity.round(3)
    array([0.53 , 1.059, 1.589])
    >>> plan(people, "upsample").sensitivity
    array([1., 2., 3.])
    """
    kind = find(variant)
    teachers = whole(teachers, "the number of teachers", most=len(budgets))
    limit = 8 * teachers if most_teachers is None else whole(most_teachers, "most_teachers")
    if aggregator is not None and type(aggregator) not in KINDS:
        raise SartorError("an aggregator is GNMax, Confident or Interactive.")
    if not (isinstance(precision, Real) and 0 <= precision < np.inf and isinstance(power, Real) and 0 <= power < np.inf):
        raise SartorError("precision and power must be numbers of 0 or more.")
    records = records_of(budgets, ownership)
    groups = budgets.groups
    if np.any(np.isinf(groups.epsilon)):
        raise SartorError("public records (infinite epsilon) need no teacher: leave them out here, and give them to the student.")
    asked = Confident(noise=40.0, threshold=200.0, threshold_noise=150.0).scaled(teachers / 250) if aggregator is None else aggregator
    value = groups.epsilon
    if tune:
        eps, own = spendable(groups.epsilon, budgets.reserve), spendable(groups.delta, budgets.reserve)
        value = np.sqrt(Accountant().allowance(eps, own))
    request = Request(
        groups.holders,
        np.asarray(value),
        teachers,
        price=1 / asked.test_noise**2 + 2 / asked.noise**2,
        tune=tune,
        precision=float(precision),
        power=float(power),
        most_teachers=limit,
    )
    found = kind.solve(request)
    count = (len(groups.epsilon),)
    return PatePlan(
        variant,
        found.teachers,
        asked.scaled(found.scale),
        found.scale,
        groups.epsilon,
        groups.delta,
        groups.holders,
        duplicates=np.broadcast_to(found.duplicates, count),
        begin=np.broadcast_to(found.begin, count),
        end=np.broadcast_to(found.end, count),
        weight=np.broadcast_to(found.weight, count),
        taking_part=np.broadcast_to(found.taking_part, count),
        reserve=budgets.reserve,
        records=records,
    )
