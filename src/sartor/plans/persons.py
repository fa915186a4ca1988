"""What training by record does to a person who owns several records.

A plan protects its holders. Where it is carried out record by record, each with a coin, a clip and a vector of its own, the holder whom it
protects is a record, and a person who owns twenty has less than was promised for one. This room says how much less.

Guarantee: for a person all of whose records are in one group, (epsilon, delta)-DP under zeroing all of them, at the epsilon of
    `spent_by_person` and the group's delta less the reserve.
Proof: to the person each step of a stage is the mixture that `accounting.records` proves to dominate it, at the group's rate and noise
    multiplier in that stage, whatever others do; stages compose.
Breaks if: the person owns more records than were counted, or some in another group; somebody else's record is made from one of theirs.

Example:
    >>> import sartor
    >>> from sartor.plans.persons import person_exposure, spent_by_person
    >>> budgets = sartor.Budgets.from_groups([(1.0, 100), (4.0, 100)], delta=1e-5)
    >>> plan = sartor.plan(budgets, steps=200, batch=4)
    >>> person_exposure(plan, group=0, records=20).records
    20
    >>> spent_by_person(plan, 20).round(1).tolist()
    [35.1, 125.8]
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sartor.accounting import spend_on
from sartor.accounting.use import probability_of_use
from sartor.budgets import spendable
from sartor.errors import SartorError
from sartor.exposure import MOST_RECORDS, Composition, Exposure, Filtered, SampledGaussian, SampledRecords
from sartor.plans.plan import Plan

Array = NDArray[np.float64]

ACCOUNTANT = "pld"
"""Who judges it: whatever a plan's own accountant is, the others cannot."""
COINS = (
    "this plan decides by a coin for each stage who takes part in it, and by record each record would have its own: "
    "what that costs a person who owns several is not computed."
)
"""Why some plans are refused."""
FILTERED = (
    "this plan has a filter, and by record each record would have units of its own: what that costs a person who owns several is not "
    "computed."
)
"""Why others are."""


def person_exposure(plan: Plan, group: int, records: int, steps: int | None = None) -> Exposure:
    """What a person undergoes who owns so many records of a group, in the whole run or in its first `steps` steps."""
    return _of_each(plan.exposure(group, steps), entering(plan, records))


def spent_by_person(plan: Plan, records: int, steps: int | None = None, groups: Sequence[int] | None = None) -> Array:
    """Epsilon that such a person of each group, or of those named, has spent; infinite where a group is public and was used."""
    taken, places = plan.steps if steps is None else steps, list(range(len(plan)) if groups is None else groups)
    if not 0 <= taken <= plan.steps:
        raise SartorError(f"the plan has {plan.steps} steps: what is spent after {taken} is not defined.")
    if entering(plan, records) == 1:
        return plan.spent_after(taken, ACCOUNTANT)[places]
    if np.any(plan.parts.inclusion[plan.parts.taken(taken) > 0] < 1):
        raise SartorError(COINS)  # whichever groups are asked for: which ones have coins is not told
    delta = spendable(plan.delta, plan.reserve)
    wanted = [(person_exposure(plan, group, records, taken), float(delta[group])) for group in places]
    public = [bool(np.isinf(plan.epsilon[group])) for group in places]
    distinct = list(dict.fromkeys(pair for pair, is_public in zip(wanted, public, strict=True) if not is_public))
    found = spend_on([exposure for exposure, _ in distinct], [at for _, at in distinct], ACCOUNTANT).tolist()
    known = dict(zip(distinct, found, strict=True))
    costs = (_of_public(pair[0]) if is_public else known[pair] for pair, is_public in zip(wanted, public, strict=True))
    return np.array(list(costs), float)


def _of_public(exposure: Exposure) -> float:
    """Who asked for no protection has none as soon as anything of theirs is used."""
    return np.inf if probability_of_use(exposure) > 0 else 0.0


def entering(plan: Plan, records: int) -> int:
    """How many vectors of a person who owns so many records may enter one step: one, where the plan is for holders with several records,
    who are clipped as one; otherwise all of them."""
    check_records(records)
    return 1 if plan.by_holder else int(records)


def check_records(records: int) -> None:
    """Refuse a number of records that nobody owns."""
    try:
        SampledRecords(records, rate=0.0, noise_multiplier=1.0, steps=0)
    except (ValueError, TypeError, OverflowError):
        raise SartorError(f"records must be a whole number from 1 to {MOST_RECORDS:,}, not {records}.") from None


def _of_each(exposure: Exposure, records: int) -> Exposure:
    """What happens to one record, happening to all of a person's."""
    if records == 1:
        return exposure
    if isinstance(exposure, Composition):
        return Composition(tuple(_of_each(part, records) for part in exposure.parts))
    if isinstance(exposure, SampledGaussian):
        return SampledRecords(records, exposure.rate, exposure.noise_multiplier, exposure.steps, exposure.relation)
    raise SartorError(FILTERED if isinstance(exposure, Filtered) else COINS)
