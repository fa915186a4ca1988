"""Statistics of people's accounts, told with noise: the mean, quantiles, a histogram, figures of groups, a correlation.

An account is what a holder's gradients really cost. It follows from their records, so it is private; what many accounts have in common may
be told, at a price that is paid out of the plan's reserve (`reserve`).

Guarantee: everything in one release together is (epsilon, delta)-DP for each holder under zeroing everything of theirs, given the models
    that the run has released. With the run, by composition, a holder has what the plan spent of theirs plus what their reserve pays.
Proof: given the released models, every other holder's figures stay what they are when one is zeroed, so each query moves by at most its
    sensitivity (`queries`). All are Gaussian mechanisms at fixed shares of one mu squared, whatever was answered before, so together they
    are one Gaussian mechanism at mu (Dong, Roth and Su 2022, corollary 3.3), and mu is the largest whose divergence at epsilon is at most
    delta (`accounting.gaussian`). All else follows from noised values and public facts: the number of holders, the plan, the request.
Condition: a holder's account and loss, and how much of theirs is got right, follow from their own records (and their own coins) and from
    models that the run has released and accounted for: not from batch statistics, models before their noise, or other holders' records.
Breaks if: the condition does not hold; a request is chosen by looking at the figures; a release is not charged; the noise can be guessed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import isotonic_regression

from sartor import confidential
from sartor.accounting import gaussian
from sartor.errors import SartorError
from sartor.individual import queries
from sartor.individual.answers import Histogram, Release
from sartor.individual.queries import Query
from sartor.individual.request import BUDGET, Figures, Request
from sartor.plans import Plan
from sartor.run.stream import Stream, normal

Array = NDArray[np.float64]

SHARES = {"mean": 1.0, "quantiles": 4.0, "histogram": 4.0, "groups": 4.0, "correlation": 4.0}
"""How mu squared is divided among what is asked for: a mean over everybody needs the least."""
_PACE = 2.5  # of the first step towards the quantiles
_LOST = 0.25  # of a column's range, or of a variance: with a deviation above that, a mean or a correlation is noise, and not told
_LOWEST = 1e-4  # of the cap: below it no quantile is looked for
_DRAWS = 4  # of which each noise is the sum: see `stream.normal`
MARGIN = 1e-9
"""By how much a release is stricter than its charge, for rounding, here and where charges are added up."""


def cap_of(plan: Plan) -> float:
    """What accounts are taken to be at most: the largest finite epsilon of the plan, as far as the plan may show it to everyone."""
    finite = np.isfinite(plan.epsilon)
    if not finite.any():
        raise SartorError("all records of this plan are public: nothing about them has to be released with noise.")
    view = confidential.View(plan.epsilon[finite], plan.delta[finite], plan.holders[finite])
    return max(_most(view, row) for row in view.rows())


def even_bins(plan: Plan, bins: int) -> tuple[float, ...]:
    """The edges of so many bins of one width, from 0 to the cap."""
    return tuple(np.round(np.linspace(0.0, cap_of(plan), bins + 1), 12).tolist())


def released(
    plan: Plan,
    figures: Figures,
    request: Request,
    *,
    epsilon: float,
    delta: float,
    stream: Stream | None = None,
    ahead: Callable[[], None] | None = None,
) -> Release:
    """The answer to a request, at a price; `ahead` charges for it, before anything is drawn, as `Reserve.release` does."""
    check(plan, figures, request)
    cap, everybody = cap_of(plan), len(figures)
    source = Stream() if stream is None else stream
    source.take()
    if ahead is not None:
        ahead()
    noise = Noise(gaussian.mu_for(epsilon * (1 - MARGIN), delta * (1 - MARGIN)), source)
    whole = sum(SHARES[name] for name in request.wanted)
    share = {name: SHARES[name] / whole for name in request.wanted}
    account = queries.within(figures.account, cap, cap)  # what could not be read counts as the most
    found: dict[str, Any] = {}
    if request.mean:
        told = noise.added(queries.total(account, cap), share["mean"], "release mean")
        found["mean"] = float(np.clip(told[0] / everybody, 0.0, cap))
    if request.quantiles:
        values = _quantiles(account, np.array(request.quantiles), cap, request.rounds, share["quantiles"], noise)
        found["quantiles"] = dict(zip(request.quantiles, values.tolist(), strict=True))
    if request.histogram:
        counted = _counted(account, request.histogram[1:-1], share["histogram"], noise, "release histogram", 0)
        found["histogram"] = Histogram(tuple(request.histogram), tuple(np.maximum(counted, 0.0).tolist()))
    if request.groups == BUDGET:
        found["groups"] = _of_budgets(plan, figures, account, request, cap, share["groups"], noise)
    elif request.groups is not None:
        found["groups"] = _of_categories(figures, account, request, cap, share["groups"], noise)
    if request.correlation:
        found["correlation"] = _correlation(figures, account / cap, request, share["correlation"], noise)
    return Release(epsilon=epsilon, delta=delta, relation=plan.relation, private=not source.seeded, **found)


def check(plan: Plan, figures: Figures, request: Request) -> None:
    """Refuse figures of other people than the plan's, or too few for the request. What one holder's figures are makes no difference."""
    if len(figures) != int(plan.holders.sum()):
        raise SartorError(f"there are {len(figures):,} accounts, but the plan is for {int(plan.holders.sum()):,} holders.")
    needed = {"loss": request.needs_loss}
    if request.groups is not None:
        needed |= {"correct": "accuracy" in request.columns, "group": True}
    for name, is_needed in needed.items():
        if is_needed and getattr(figures, name) is None:
            raise SartorError(f"this request cannot be answered without {name} of every holder: give it, or ask for less.")
    if request.groups == BUDGET:
        sizes = queries.sums([np.ones(len(figures))], _group(figures), len(plan)).values[0]
        if not np.array_equal(sizes, plan.holders):
            raise SartorError("these are not the groups of the plan: give plan.groups_of(budgets).")


class Noise:
    """Gaussian noise for queries that together have one mu; it adds none beyond that."""

    def __init__(self, mu: float, stream: Stream) -> None:
        self.mu, self._stream, self._given = mu, stream, 0.0

    def deviation(self, query: Query, share: float) -> float:
        """The standard deviation of noise for a query that has this share of mu squared."""
        return query.sensitivity / (self.mu * math.sqrt(share))

    def added(self, query: Query, share: float, purpose: str, step: int = 0) -> Array:
        """The values of a query with noise, which are public from here on."""
        self._given += share
        if self._given > 1 + MARGIN / 2:
            raise SartorError("this release would tell more than it is charged for.")
        noise = normal(self._stream.generator(purpose, step), query.values.shape, self.deviation(query, share), _DRAWS)
        return np.asarray(query.values + noise)


def _counted(account: Array, edges: ArrayLike, share: float, noise: Noise, purpose: str, step: int) -> Array:
    """Noised counts between edges, moved alike so that they add up to everybody, whose number is public."""
    told = noise.added(queries.counts(account, edges), share, purpose, step)
    return np.asarray(told + (len(account) - told.sum()) / len(told))


def _quantiles(account: Array, at: Array, cap: float, rounds: int, share: float, noise: Noise) -> Array:
    """Quantiles by rounds of counting, all of them in the same rounds.

    Each round counts the accounts between the guesses and moves every guess by a step in its logarithm, towards where its share of people
    lies below (Andrew et al. 2021, "Differentially private learning with adaptive clipping", geometric updates; here steps shrink with the
    square root of the round). One histogram counts for all quantiles at once, so they need not divide mu among them. What is told is not
    the last guess but where a rising curve through the counts of all rounds reaches the quantile: that costs nothing, and forgives steps
    that were too short or too long.
    """
    guess, seen, below = cap * at, [], []
    for step in range(rounds):
        told = np.cumsum(_counted(account, guess, share / rounds, noise, "release quantiles", step))[:-1] / len(account)
        seen.append(guess)
        below.append(told)
        moved = guess * np.exp(-_PACE / math.sqrt(step + 1) * (np.clip(told, 0.0, 1.0) - at))
        guess = np.sort(np.clip(moved, _LOWEST * cap, cap))
    # of cells that add up to everybody, the sum of k among m has noise of a variance in proportion to k (m - k)
    under = np.arange(1, len(at) + 1)
    weights = np.tile(1 / (under * (len(at) + 1 - under)), rounds)
    places, order = np.concatenate(seen), np.argsort(np.concatenate(seen), kind="stable")
    curve = np.clip(isotonic_regression(np.concatenate(below)[order], weights=weights[order]).x, 0.0, 1.0)
    return np.asarray(np.interp(at, [0.0, *curve, 1.0], [0.0, *places[order], cap]))


def _of_budgets(
    plan: Plan, figures: Figures, account: Array, request: Request, cap: float, share: float, noise: Noise
) -> tuple[dict[str, Any], ...]:
    """Means over the groups of a plan, whose sizes are public; small groups are merged. Nobody's account is above their budget."""
    view, group, rows = plan.view, _group(figures), []
    most = np.empty(len(plan))
    for row in view.rows():
        most[row] = min(_most(view, row), cap)
    columns = _columns(figures, np.minimum(account / most[group], 1.0), request)
    query = queries.sums(columns, group, len(plan))
    told = noise.added(query, share, "release groups")
    for row in view.rows():
        lost = noise.deviation(query, share) * math.sqrt(row.stop - row.start) > _LOST * view.people(row)
        means = np.full(len(columns), np.nan) if lost else told[:, row].sum(axis=1) / view.people(row)
        budget = {
            name: confidential.to_json(view.value(values, row)) for name, values in (("epsilon", plan.epsilon), ("delta", plan.delta))
        }
        rows.append({**budget, "holders": view.people(row), **_named(request, means, float(most[row][0]))})
    return tuple(rows)


def _of_categories(
    figures: Figures, account: Array, request: Request, cap: float, share: float, noise: Noise
) -> tuple[dict[str, Any], ...]:
    """Means over categories. Which one somebody is of is their own, so sizes have noise as well, and what is merged follows from those."""
    columns, rows = [*_columns(figures, account / cap, request), np.ones(len(figures))], []
    query = queries.sums(columns, _group(figures), len(request.categories))
    told, fewest = noise.added(query, share, "release groups"), max(confidential.FEWEST, noise.deviation(query, share) / _LOST)
    for row in confidential.rows(np.maximum(np.round(told[-1]), 0.0).astype(np.int64)):
        people, names = float(told[-1, row].sum()), list(request.categories[row])
        means = told[:-1, row].sum(axis=1) / people if people >= fewest else np.full(len(request.columns), np.nan)
        of = {str(request.groups): names[0] if len(names) == 1 else names}
        rows.append({**of, "holders": max(round(people), 0), **_named(request, means, cap)})
    return tuple(rows)


def _columns(figures: Figures, account: Array, request: Request) -> list[Array]:
    """What is added up of each holder, in [0, 1]."""
    found = {"account": account}
    if "accuracy" in request.columns:
        found["accuracy"] = queries.within(_given(figures.correct), 1.0, 0.0)
    if "loss" in request.columns:
        found["loss"] = _losses(figures, request) / request.most_loss
    return [found[name] for name in request.columns]


def _named(request: Request, means: Array, most: float) -> dict[str, float]:
    """Means of columns in [0, 1] in their own units; `most` is that of accounts."""
    units = {"account": most, "accuracy": 1.0, "loss": request.most_loss}
    return {name: units[name] * float(np.clip(mean, 0.0, 1.0)) for name, mean in zip(request.columns, means, strict=True)}


def _correlation(figures: Figures, account: Array, request: Request, share: float, noise: Noise) -> float:
    """Pearson's correlation of the account with the logarithm of the loss, both within their caps; NaN where it is lost in the noise.

    That is where noise on a variance has a deviation above a quarter of the variance, or on the covariance above a quarter of the most
    that the covariance can be: by the variances with noise, so nothing more is told by it.
    """
    least, most = math.log(request.least_loss), math.log(request.most_loss)
    query = queries.moments(account, (np.log(np.maximum(_losses(figures, request), request.least_loss)) - least) / (most - least))
    means = noise.added(query, share, "release correlation") / len(figures)
    of_account, of_loss, together = queries.correlation(means)
    if min(of_account, of_loss) <= 0:
        return math.nan
    size = math.sqrt(of_account * of_loss)
    moved = noise.deviation(query, share) / len(figures) * queries.correlation_moves(means)
    if np.any(moved > _LOST * np.array([of_account, of_loss, size])):
        return math.nan
    return float(np.clip(together / size, -1.0, 1.0))


def _most(view: confidential.View, row: slice) -> float:
    """The largest epsilon in a row, as it may be shown."""
    return float(np.max(view.value(view.epsilon, row)))


def _losses(figures: Figures, request: Request) -> Array:
    return queries.within(_given(figures.loss), request.most_loss, request.most_loss)


def _group(figures: Figures) -> NDArray[np.intp]:
    assert figures.group is not None
    return figures.group


def _given(values: Array | None) -> Array:
    assert values is not None
    return values
