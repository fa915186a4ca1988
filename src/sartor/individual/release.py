"""Statistics of people's accounts, told with noise: the mean, quantiles, a histogram, figures of groups, a correlation.

An account is what a holder's gradients really cost. It follows from their records, so it is private; what many accounts have in common may
be told, at a price that is paid out of the plan's reserve (`reserve`).

Guarantee: everything in one release together is (epsilon, delta)-DP for each holder under zeroing everything of theirs, given the models
    that the run has released. With the run, by composition, a holder has what the plan spent of theirs plus what their reserve pays.
Proof: given the released models, every other holder's figures stay what they are when one is zeroed, so each query moves by at most its
    sensitivity (`Query`). All are Gaussian mechanisms at fixed shares of one mu squared, whatever was answered before, so together they
    are one Gaussian mechanism at mu (Dong, Roth and Su 2022, corollary 3.3), and mu is the largest whose divergence at epsilon is at most
    delta (`accounting.gaussian`). All else follows from noised values and public facts: the number of holders, the plan, the request.
Condition: a holder's account and loss, and how much of theirs is got right, follow from their own records (and their own coins) and from
    models that the run has released and accounted for: not from batch statistics, models before their noise, or other holders' records.
Breaks if: the condition does not hold; a request is chosen by looking at the figures; a release is not charged; the noise can be guessed.

A query is what is asked before there is any noise: it is sensitive, and leaves with noise in proportion to the sensitivity that it carries.

Guarantee: between two populations of the same, public size that differ by zeroing one holder, the values of a query differ by at most its
    sensitivity in the Euclidean norm, whatever the figures are.
Proof: every query is a sum over holders of a vector that follows from one holder's figures alone. A zeroed holder has account 0, has
    nothing right, loss 0 and no category, and keeps their budget. So zeroing moves the sum by the distance of one holder's vector from that
    of a zeroed one, which is bounded at each query.
Breaks if: other holders' figures move with the zeroed one's; figures come here that were not brought into their ranges by `within`.

How large the noise on a release is, as standard deviations, follows from what was told, the plan and the request, and is public.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import isotonic_regression

from sartor import confidential
from sartor.accounting import gaussian
from sartor.errors import SartorError
from sartor.individual.request import BUDGET, COLUMNS, Figures, Histogram, Release, Request
from sartor.numbers import from_json_number
from sartor.plans import Plan
from sartor.run.stream import Stream, normal

Array = NDArray[np.float64]


@dataclass(frozen=True, repr=False, eq=False)
class Query:
    """Values that are private, and their sensitivity, which is public."""

    values: Array
    sensitivity: float


def within(values: ArrayLike, most: float, unknown: float) -> Array:
    """Figures brought into [0, most], each by itself; `unknown` stands for what is no number.

    Nothing is refused: an error that follows from one holder's figure would be a release.
    """
    return np.asarray(np.clip(np.nan_to_num(np.asarray(values, float), nan=unknown, posinf=most, neginf=0.0), 0.0, most), float)


def total(account: Array, cap: float) -> Query:
    """The sum of accounts in [0, cap].

    Sensitivity: cap, since a zeroed holder adds 0.
    """
    return Query(np.array([account.sum()]), cap)


def counts(account: Array, edges: ArrayLike) -> Query:
    """How many accounts lie up to the first edge, between each edge and the next (which belongs to the cell below it), and above the last.

    Sensitivity: sqrt(2), however many edges there are. A holder is in one cell and, zeroed, in that of 0: one count falls by 1 and
        another rises by 1, or nothing moves.
    """
    inner = np.asarray(edges, float)
    found = np.bincount(np.searchsorted(inner, account, side="left"), minlength=inner.size + 1)
    return Query(found.astype(float), math.sqrt(2))


def sums(columns: Sequence[Array], cell: NDArray[np.intp], cells: int) -> Query:
    """The sums of columns in [0, 1] over the holders of each cell, (columns, cells); a holder whose cell is none of them is in none.

    Sensitivity: sqrt(columns). A holder adds one vector with entries in [0, 1] to one cell, and zeroed adds 0, whether they keep their cell
        (a budget's) or lose it (a category, which is their own).
    """
    inside = (cell >= 0) & (cell < cells)
    values = [np.bincount(cell[inside], weights=column[inside], minlength=cells) for column in columns]
    return Query(np.array(values, float), math.sqrt(len(columns)))


def moments(x: Array, y: Array) -> Query:
    """Sums of x/2, y/2, x^2 - x, y^2 - y and xy - (x + y)/2, for x and y in [0, 1]: what a correlation is made of.

    Sensitivity: sqrt(1/2); a zeroed holder, at x = y = 0, adds 0. As x (1 - x) <= 1/4, x^2/4 + x^2 (1 - x)^2 <= x/4, and so for y.
        h = (x + y)/2 - xy lies in [0, 1/2], so h^2 <= h/2. The squares add up to at most (x + y)/4 + (x + y)/4 - xy/2 =
        (1 - (1 - x)(1 - y))/2 <= 1/2, which is reached at x = y = 1. Squares and products as they are would have sqrt(5).
    """
    parts = (x / 2, y / 2, x * (x - 1), y * (y - 1), x * y - (x + y) / 2)
    return Query(np.array([part.sum() for part in parts]), math.sqrt(0.5))


def correlation(means: Array) -> tuple[float, float, float]:
    """Variance of x, variance of y and their covariance, from `moments` over the number of holders."""
    x, y = 2 * means[:2]
    return float(means[2] + x - x * x), float(means[3] + y - y * y), float(means[4] + (x + y) / 2 - x * y)


def correlation_moves(means: Array) -> Array:
    """How far, to first order, noise of deviation 1 on each of these means moves the two variances and the covariance, as deviations."""
    x, y = np.clip(2 * means[:2], 0.0, 1.0)
    return np.sqrt([1 + 4 * (1 - 2 * x) ** 2, 1 + 4 * (1 - 2 * y) ** 2, 1 + (1 - 2 * x) ** 2 + (1 - 2 * y) ** 2])


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
    account = within(figures.account, cap, cap)  # what could not be read counts as the most
    found: dict[str, Any] = {}
    if request.mean:
        told = noise.added(total(account, cap), share["mean"], "release mean")
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
        sizes = sums([np.ones(len(figures))], _group(figures), len(plan)).values[0]
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
    told = noise.added(counts(account, edges), share, purpose, step)
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
    query = sums(columns, group, len(plan))
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
    query = sums(columns, _group(figures), len(request.categories))
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
        found["accuracy"] = within(_given(figures.correct), 1.0, 0.0)
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
    query = moments(account, (np.log(np.maximum(_losses(figures, request), request.least_loss)) - least) / (most - least))
    means = noise.added(query, share, "release correlation") / len(figures)
    of_account, of_loss, together = correlation(means)
    if min(of_account, of_loss) <= 0:
        return math.nan
    size = math.sqrt(of_account * of_loss)
    moved = noise.deviation(query, share) / len(figures) * correlation_moves(means)
    if np.any(moved > _LOST * np.array([of_account, of_loss, size])):
        return math.nan
    return float(np.clip(together / size, -1.0, 1.0))


def _most(view: confidential.View, row: slice) -> float:
    """The largest epsilon in a row, as it may be shown."""
    return float(np.max(view.value(view.epsilon, row)))


def _losses(figures: Figures, request: Request) -> Array:
    return within(_given(figures.loss), request.most_loss, request.most_loss)


def _group(figures: Figures) -> NDArray[np.intp]:
    assert figures.group is not None
    return figures.group


def _given(values: Array | None) -> Array:
    assert values is not None
    return values


_HOLDERS = "holders"


def deviation_in_groups(release: Release) -> float:
    """The standard deviation of the noise on a sum over one group of columns in [0, 1]."""
    assert release.groups
    columns = [name for name in release.groups[0] if name in COLUMNS]
    counted = [] if _by_budget(release.groups[0]) else [_HOLDERS]  # sizes of categories have noise too
    return _deviation(release, "groups", math.sqrt(len([*columns, *counted])))


def deviations(release: Release, plan: Plan, request: Request) -> dict[str, Any]:
    """The standard deviation of the noise on the mean, on counts of the histogram, and on sizes and figures of each group.

    They have the names that the figures have in the release's document, and their units. A group whose size noise has made 0 has none.
    """
    cap, found = cap_of(plan), dict[str, Any]()
    if release.mean is not None:
        found["mean"] = _deviation(release, "mean", cap) / int(plan.holders.sum())
    if release.histogram is not None:
        bins = len(release.histogram.counts)
        found["histogram"] = _deviation(release, "histogram", math.sqrt(2 * (1 - 1 / bins)))
    if release.groups:
        merged = [row.stop - row.start for row in plan.view.rows()] if request.groups == BUDGET else [_names(row) for row in release.groups]
        alone = deviation_in_groups(release)
        found["groups"] = [_of_row(row, request, alone * math.sqrt(many), cap) for row, many in zip(release.groups, merged, strict=True)]
    return found


def _of_row(row: Mapping[str, Any], request: Request, deviation: float, cap: float) -> dict[str, float | None]:
    """Of one group, from the deviation of its sums."""
    people, by_budget = row[_HOLDERS], _by_budget(row)
    most = min(_loosest(row["epsilon"]), cap) if by_budget else cap
    units = {"account": most, "accuracy": 1.0, "loss": request.most_loss}
    found: dict[str, float | None] = {_HOLDERS: 0.0 if by_budget else deviation}
    for name in request.columns:
        told = 0.0 if by_budget or math.isnan(row[name]) else row[name] / units[name]
        found[name] = units[name] * deviation / people * math.hypot(1.0, told) if people > 0 else None  # sum and size have it alike
    return found


def _deviation(release: Release, name: str, sensitivity: float) -> float:
    """That of a query of this sensitivity, which has its part of what the release cost."""
    whole = sum(share for other, share in SHARES.items() if getattr(release, other) is not None)
    mu = gaussian.mu_for(release.epsilon * (1 - MARGIN), release.delta * (1 - MARGIN))
    return sensitivity / (mu * math.sqrt(SHARES[name] / whole))


def _by_budget(row: Mapping[str, Any]) -> bool:
    return "epsilon" in row and "delta" in row


def _names(row: Mapping[str, Any]) -> int:
    """How many categories a row is of."""
    of = next(iter(row.values()))
    return len(of) if isinstance(of, list | tuple) else 1


def _loosest(epsilon: Any) -> float:
    return max(from_json_number(value) for value in (epsilon if isinstance(epsilon, list | tuple) else [epsilon]))
