"""Whether the draws on a tape look as if every holder had a coin of their own at every step, at the plan's rate.

Under such coins each figure here is a sum of terms that move it by at most 1, independent or drawn without replacement. So it lies as far
from its mean as it does with a probability that Bernstein's inequality bounds (without replacement: Hoeffding 1963), and a fault is named
where that is below what chance may do.

- how often a group is drawn in all, and each of its members;
- how much the sizes of batches vary: too little where batches are fixed, too much where people share coins;
- how many are in two steps: too many where a draw comes again, too few where everybody has their turn;
- how often two are drawn together: those who stand beside each other, or half of everybody apart, in all, and any two for themselves.

Who has a coin of inclusion as well (`rounds`) is looked at by how often alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.stats import binom, gamma

from sartor.plans import Plan
from sartor.run.sampling import Draw

Array = NDArray[np.float64]
Groups = NDArray[np.integer]

UNLIKELY = 1e-9
"""What chance may do in one of the tests."""
_PAIRS = 2e7  # pairs of people that are counted, step by step
_MOST = 1_000  # steps of which every two are compared
_SHARES = (1.0, 0.8, 0.5)  # of the batches that may be too even


def faults_of_draws(plan: Plan, group: Groups, draws: Mapping[int, Draw], steps: Sequence[int]) -> list[str]:
    """What is wrong with the draws of these steps; `group` is each holder's group in the plan."""
    found = [] if _rates_are(plan, group, draws, steps) else ["a group is drawn more or less often than the plan's rate says."]
    if not found and not _each_has_their_rate(plan, group, draws, steps):
        found.append("somebody is drawn more or less often than the plan's rate for them says.")
    free = [step for step in steps if step < plan.rests_at.min()][:_MOST]  # where nobody rests
    parts = plan.parts
    alone = ~np.isin(group, parts.group[parts.inclusion < 1])  # whose coins of steps are all that they have
    if not free or not alone.any():
        return found
    taken = _table([draws[step] for step in free], len(group))[:, np.flatnonzero(alone)]
    own, rates = group[alone], np.array([_rates_at(plan, step) for step in free])
    found += _sizes(rates, np.bincount(own, minlength=len(plan)), np.asarray(taken.sum(axis=1), float).reshape(-1))
    if not _overlaps_are_chance(taken, own):
        found.append("two steps have more people in common, or fewer, than independent coins make.")
    distinct, times = np.unique(rates, axis=0, return_counts=True)
    together = _pairs_are_chance(taken, distinct[:, own], times)
    if not (together and (len(distinct) > 1 or _everybody_is_apart(taken, own, distinct[0]))):
        found.append("people are drawn together, or apart, more often than coins of their own make.")
    return found


def _rates_at(plan: Plan, step: int) -> Array:
    """The rate of each group at a step; 0 for those without a part in it."""
    parts, found = plan.parts, np.zeros(len(plan))
    here = (parts.first <= step) & (step < parts.last)
    found[parts.group[here]] = parts.rate[here]
    return found


def _rates_are(plan: Plan, group: Groups, draws: Mapping[int, Draw], steps: Sequence[int]) -> bool:
    parts = plan.parts
    for row in range(len(parts.group)):
        mine = [step for step in steps if parts.first[row] <= step < parts.last[row]]
        members = int(np.sum(group == parts.group[row]))
        seen = sum(int(np.sum(group[draws[step].indices] == parts.group[row])) for step in mine)
        rate, inclusion = float(parts.rate[row]), float(parts.inclusion[row])
        if not _may_be(seen, members, len(mine), rate, inclusion, rests=plan.filter is not None):
            return False
    return True


def _each_has_their_rate(plan: Plan, group: Groups, draws: Mapping[int, Draw], steps: Sequence[int]) -> bool:
    """Whether nobody is drawn so often, or so rarely, as their coins make nobody."""
    parts = plan.parts
    for row in range(len(parts.group)):
        members = np.flatnonzero(group == parts.group[row])
        mine = [draws[step].indices for step in steps if parts.first[row] <= step < parts.last[row]]
        times = np.bincount(np.concatenate([np.zeros(0, np.intp), *mine]), minlength=len(group))[members]
        rate, risk = float(parts.rate[row]), UNLIKELY / max(1, len(group) * len(parts.group))
        often = times.max(initial=0)
        if often and float(parts.inclusion[row]) * binom.sf(often - 1, len(mine), rate) < risk:
            return False
        free = plan.filter is None and parts.inclusion[row] == 1
        if free and len(members) and binom.cdf(times.min(), len(mine), rate) < risk:
            return False
    return True


def _may_be(seen: int, members: int, steps: int, rate: float, inclusion: float, *, rests: bool) -> bool:
    """Whether coins may have fallen for so many; where people may rest, only too many can be told."""
    if inclusion == 1:
        trials = members * steps
        few = binom.cdf(seen, trials, rate) < UNLIKELY and not rests
        return not (few or binom.sf(seen - 1, trials, rate) < UNLIKELY)
    mean = members * inclusion * steps * rate
    each = inclusion * steps * rate * (1 - rate) + inclusion * (1 - inclusion) * (steps * rate) ** 2
    # a sum of few large coins has heavier tails than a normal variable
    return abs(seen - mean) <= 10 * math.sqrt(members * each) + 10 * max(1.0, steps * rate)


def _sizes(rates: Array, members: Groups, sizes: Array) -> list[str]:
    """Whether batches vary in size as coins do: too even ones were not drawn by coins, too uneven ones by coins of several people."""
    variance = (rates * (1 - rates)) @ members
    off = sizes - rates @ members
    if _are_even(off, variance):
        return ["batches are of more even sizes than independent coins make them."]
    # the exponent of a step is at most log 2 and an exponential variable, so that all of them are at most a gamma variable
    beyond = float(_exponents(off, variance).sum()) - len(sizes) * math.log(2)
    return ["batches are of more uneven sizes than independent coins make them."] if gamma.sf(beyond, len(sizes)) < UNLIKELY else []


def _are_even(off: Array, variance: Array) -> bool:
    """Whether too many batches are too close to the size that is expected.

    No size of a sum of coins is more likely than 0.469 over its deviation (Baillon, Cominetti and Vaisman 2016), and within m of the mean
    lie at most 2 m + 1 sizes. So k of T batches are that close with probability at most (T choose k) times the product of these.
    """
    found = 0.0
    for share in _SHARES:
        count = math.ceil(share * len(off))
        within = np.sort(np.abs(off))[count - 1] if count else 0.0
        with np.errstate(divide="ignore"):
            close = np.log(np.minimum(1.0, (math.floor(2 * within) + 1) * 0.469 / np.sqrt(variance)))
        ways = math.lgamma(len(off) + 1) - math.lgamma(count + 1) - math.lgamma(len(off) - count + 1)
        found = min(found, ways + float(np.sort(close)[-count:].sum()))
    return found < math.log(UNLIKELY / len(_SHARES))


def _exponents(off: Array, variance: Array) -> Array:
    """By Bernstein: minus the logarithm of half of how likely sums of such variances are as far off."""
    with np.errstate(invalid="ignore"):
        return np.where(off == 0, 0.0, off**2 / (2 * (variance + np.abs(off) / 3)))


def _are_chance(off: Array, variance: Array) -> bool:
    """Whether none of these sums is further off than chance makes them."""
    return bool(np.all(_exponents(off, variance) <= math.log(2 * max(1, off.size) / UNLIKELY)))


def _table(draws: Sequence[Draw], holders: int) -> sparse.csr_array:
    """Who is in which draw: (steps, holders)."""
    rows = np.repeat(np.arange(len(draws)), [len(draw) for draw in draws])
    columns = np.concatenate([draw.indices for draw in draws])
    return sparse.csr_array((np.ones(len(rows)), (rows, columns)), shape=(len(draws), holders))


def _overlaps_are_chance(taken: sparse.csr_array, group: Groups) -> bool:
    """Whether every two steps, and all that are as far apart as each other, have people in common as chance has it, given their sizes."""
    steps = taken.shape[0]
    off, variance = np.zeros((steps, steps)), np.zeros((steps, steps))
    for own in np.unique(group).tolist():
        of_group = taken[:, np.flatnonzero(group == own)]
        members = of_group.shape[1]
        if not members:
            continue
        sizes = np.asarray(of_group.sum(axis=1), float).reshape(-1)
        one_way = np.outer(sizes, sizes / members * (1 - sizes / members))
        off += (of_group @ of_group.T).toarray() - np.outer(sizes, sizes) / members
        variance += np.minimum(one_way, one_way.T)
    above = np.triu_indices(steps, 1)
    lags = [np.array([np.trace(values, lag) for lag in range(1, steps)]) for values in (off, variance)]
    return _are_chance(off[above], variance[above]) and _are_chance(*lags)


def _pairs_are_chance(taken: sparse.csr_array, rates: Array, steps: Groups) -> bool:
    """Whether pairs of holders are drawn together as often as coins of their own make it, over all steps and pairs that do not meet.

    `rates` of all holders stand at so many steps each.
    """
    holders = taken.shape[1]
    off, variance = [], []
    columns = taken.tocsc()
    for apart in sorted({1, 2, holders // 2} - {0}):
        left = np.arange(holders - apart)
        left = left[left // apart % 2 == 0]
        if not len(left):
            continue
        both = rates[:, left] * rates[:, left + apart]
        off.append(float(columns[:, left].multiply(columns[:, left + apart]).sum() - steps @ both.sum(axis=1)))
        variance.append(float(steps @ (both * (1 - both)).sum(axis=1)))
    return _are_chance(np.array(off), np.array(variance))


def _everybody_is_apart(taken: sparse.csr_array, group: Groups, rates: Array) -> bool:
    """Whether no two holders are drawn together so often as coins of their own make nobody, whose rates are the same at all steps."""
    most = max(1.0, float(np.mean(np.asarray(taken.sum(axis=1), float) ** 2)))
    steps = int(max(1, min(taken.shape[0], _PAIRS // most)))
    some = taken[:steps]
    both = (some.T @ some).tocoo()
    risk = UNLIKELY / max(1, len(group) ** 2)
    one, other = both.coords
    apart = one < other
    chance = rates[group[one[apart]]] * rates[group[other[apart]]]
    return bool(np.all(binom.sf(both.data[apart] - 1, steps, chance) >= risk))
