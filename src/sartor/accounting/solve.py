"""Solvers: the noise, rate or number of steps that spends a budget and no more.

Guarantee: what is returned spends at most the budget by the accountant that reports it, and at least 99.5 % of it wherever some value does.
Proof: every returned value has been evaluated by that accountant, at these very numbers; nothing is returned on the strength of an
    interpolation. More noise, a lower rate and fewer steps never cost more, so a bracket always closes.

Mechanisms are written as a family: an *intensity* that everything grows with. Few budgets are solved one by one. For many, the
intensity is solved at some knots and interpolated between them, and budgets within 0.3 % of each other share the strictest one's
intensity, so 60,000 different budgets cost a few hundred evaluations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sartor.accounting import accountants, rdp
from sartor.accounting.bracket import Bracket, largest_fitting
from sartor.accounting.pld import GUESSING_ACCURACY, PLANNING_ACCURACY
from sartor.accounting.spending import Array, spend
from sartor.accounting.use import ever
from sartor.errors import Infeasible
from sartor.exposure import MOST_STEPS

Indices = NDArray[np.intp]
Family = Callable[[Array], tuple[Array, Array]]
"""From intensities to (rate, noise multiplier); what is spent grows with the intensity."""
Floor = Callable[[Array], Array]
"""From deltas to the log intensities at which a holder is used at all with that probability."""

MOST_WASTE = 0.005
"""Share of a budget that a solver may leave unspent."""

_WASTE_OF_MANY = 8e-4  # aimed at for each of many budgets; of few, it is the accountant's
_SHARED = 3e-3  # width, in epsilon, of the budgets that share one intensity
_KNOTS = 20
_FEW, _MANY = 32, 256
_ROWS = 3  # different deltas up to which each has its own knots
_MOST_STEPS = float(MOST_STEPS)
_STRIDE = 4  # orders skipped in a first pass
_ROUGH = 0.02  # waste where Rényi's figure only leads to another
_ROUNDING = 1e-9  # what rounding may take from a number of steps


def are_few(delta: Array) -> bool:
    """Whether budgets are solved one by one: they are not many more than the knots that interpolation would take."""
    distinct = len(np.unique(delta))
    return len(delta) <= max(_FEW, _KNOTS * (distinct if distinct <= _ROWS else 5))


def expected_waste(count: int) -> float:
    """The share of a budget that solving for so many budgets leaves unspent on average."""
    return _SHARED / 2 + 2e-4 if count > _MANY else 0.0


@dataclass(frozen=True, eq=False)
class Search:
    """What is looked for: for each budget, the largest intensity of a family of mechanisms that it allows.

    `top` is the largest intensity there is, `floor` says at which one a holder is used too rarely to cost anything, and `warm` that the
    search starts close to where it ends, so that the tight accountant need not be led there by Rényi's.
    """

    epsilon: Array
    delta: Array
    family: Family
    steps: float
    accountant: str
    top: float = np.inf
    floor: Floor | None = None
    warm: bool = False

    @property
    def limit(self) -> float:
        """The largest log intensity."""
        return float(np.log(self.top))

    def value(self, waste: float = 0.0) -> Callable[[Array, Indices], Array]:
        """What log intensities cost, as the accountant says; where a waste above `MOST_WASTE` is allowed, coarsely."""
        accuracy = GUESSING_ACCURACY if waste > MOST_WASTE else PLANNING_ACCURACY

        def value(log_intensity: Array, which: Indices) -> Array:
            rate, noise = self.family(np.exp(log_intensity))
            return spend(rate, noise, self.steps, self.delta[which], self.accountant, accuracy)

        return value


def intensities(search: Search, *, start: float | Array = 1.0, waste: float | None = None, width: float = 1e-12) -> Array:
    """For each budget the largest intensity, up to a small waste, that it allows; the top where it allows that much.

    `width` is how closely, in logarithms, an intensity need be known at most. A waste above `MOST_WASTE` asks for a guess: what comes back
    was evaluated coarsely, and is a place to begin.
    """
    epsilon, limit = search.epsilon, search.limit
    if are_few(search.delta):
        first = np.log(np.broadcast_to(np.asarray(start, float), epsilon.shape))
        return np.exp(_direct(search, first, accountants.find(search.accountant).waste if waste is None else waste, width))
    predicted, elasticity = interpolated(search, start=start)
    if len(epsilon) <= _MANY:
        return np.exp(largest_fitting(search.value(), epsilon, np.minimum(predicted, limit), limit, _WASTE_OF_MANY))
    return np.exp(_shared(search, predicted, elasticity))


def interpolated(
    search: Search, *, start: float | Array = 1.0, count: int = _KNOTS, waste: float = _WASTE_OF_MANY / 2, width: float = 1e-12
) -> tuple[Array, Array]:
    """Log intensities predicted from `count` solved knots, and their elasticity in epsilon. A prediction promises nothing."""
    from scipy.interpolate import CubicSpline

    log_eps, log_delta = np.log(search.epsilon), np.log(search.delta)
    knots = np.linspace(log_eps.min(), log_eps.max(), count) if np.ptp(log_eps) > 1e-9 else log_eps[:1]
    rows, of_row = np.unique(log_delta, return_inverse=True)
    if len(rows) > _ROWS:
        rows = np.linspace(log_delta.min(), log_delta.max(), 5)
    grid_eps, grid_delta = np.tile(np.exp(knots), len(rows)), np.repeat(np.exp(rows), len(knots))
    first = _knot_start(log_eps, start, grid_eps)
    solved = _direct(replace(search, epsilon=grid_eps, delta=grid_delta), first, waste, width).reshape(len(rows), len(knots))
    if len(knots) == 1:
        by_row, slope = np.repeat(solved, len(log_eps), axis=1), np.ones((len(rows), len(log_eps)))
    else:
        splines = [CubicSpline(knots, row) for row in solved]
        by_row = np.array([spline(log_eps) for spline in splines])
        slope = np.array([spline(log_eps, 1) for spline in splines])
    if len(np.unique(log_delta)) <= _ROWS:
        pick = (of_row, np.arange(len(log_eps)))
        return by_row[pick], np.clip(slope[pick], 0.05, 5.0)
    weights = np.ones((len(rows), len(log_eps)))  # Lagrange's polynomial through the rows
    for i in range(len(rows)):
        for j in range(len(rows)):
            if i != j:
                weights[i] *= (log_delta - rows[j]) / (rows[i] - rows[j])
    return np.sum(weights * by_row, axis=0), np.clip(np.sum(weights * slope, axis=0), 0.05, 5.0)


def _knot_start(log_eps: Array, start: float | Array, grid_eps: Array) -> Array:
    """Starting points of the knots, from starting points of the budgets."""
    given = np.log(np.broadcast_to(np.asarray(start, float), log_eps.shape))
    order = np.argsort(log_eps)
    return np.asarray(np.interp(np.log(grid_eps), log_eps[order], given[order]))


def _direct(search: Search, start: Array, waste: float, width: float) -> Array:
    """Each budget by itself; the tight accountant starts from where the Rényi accountant ended.

    At its floor a holder is used at all with a probability of delta, which costs nothing. Where the accountant jumps from there beyond the
    budget, as Rényi's may, the floor is the largest intensity that fits.
    """
    least = None if search.floor is None else search.floor(search.delta)
    near = start
    refines = accountants.find(search.accountant).refines
    if not refines or not search.warm:
        rough = _ROUGH if refines else waste
        near = largest_fitting(_rényi_value(search), search.epsilon, near, search.limit, rough, width, least)
    return largest_fitting(search.value(waste), search.epsilon, near, search.limit, waste, width, least)


def _rényi_value(search: Search) -> Callable[[Array, Indices], Array]:
    """The Rényi bound at orders near the last best one: a cheap bound from above, to come close before the accountant is asked."""
    epsilon, delta = search.epsilon, search.delta
    width = np.sqrt(2 * np.log(1 / delta))
    order = 1 + width / (np.sqrt(width**2 + 2 * epsilon) - width)  # of a Gaussian that costs as much
    every = np.full(len(delta), float(search.steps))

    def value(log_intensity: Array, which: Indices) -> Array:
        rate, noise = search.family(np.exp(log_intensity))
        out = np.zeros(len(which))
        out[(rate > 0) & (noise == 0)] = np.inf
        rows = np.flatnonzero((rate > 0) & (noise > 0) & np.isfinite(noise))
        if len(rows):
            mine = which[rows]
            out[rows], order[mine] = rdp.spend_near(rate[rows], noise[rows], every[mine], delta[mine], order[mine])
        return out

    return value


def _shared(search: Search, predicted: Array, elasticity: Array) -> Array:
    """Many budgets: those within a narrow width share the intensity of the strictest, evaluated for every one of them."""
    epsilon, limit, value = search.epsilon, search.limit, search.value()
    result = np.full(len(epsilon), np.nan)
    margin = 2e-4 * elasticity
    want = np.minimum(predicted - margin, limit)
    open_ = np.arange(len(epsilon))
    for _ in range(8):
        order = open_[np.argsort(want[open_], kind="stable")]
        trial = np.empty(len(order))
        begin = 0
        while begin < len(order):
            strictest = want[order[begin]]
            end = int(np.searchsorted(want[order], strictest + _SHARED * elasticity[order[begin]], side="right"))
            trial[begin : max(end, begin + 1)] = strictest
            begin = max(end, begin + 1)
        spent = value(trial, order)
        fits = spent <= epsilon[order]
        good = fits & ((spent >= (1 - MOST_WASTE + 2e-4) * epsilon[order]) | (trial >= limit))
        result[order[good]] = trial[good]
        rest, spent_rest, trial_rest = order[~good], spent[~good], trial[~good]
        if not len(rest):
            return result
        with np.errstate(divide="ignore"):
            step = np.clip(np.log(epsilon[rest] / np.maximum(spent_rest, 1e-300)), -1.0, 1.0) * elasticity[rest]
        want[rest] = np.minimum(trial_rest + step - 2 * margin[rest], limit)
        open_ = rest
    left = largest_fitting(lambda x, which: value(x, open_[which]), epsilon[open_], want[open_], limit, _WASTE_OF_MANY)
    result[open_] = left
    return result


def noise_for(epsilon: ArrayLike, delta: ArrayLike, *, rate: ArrayLike, steps: ArrayLike, accountant: str = "pld") -> Any:
    """The smallest noise multiplier, up to 0.5 % of the budget, with which `steps` at `rate` cost at most (epsilon, delta).

    Takes numbers or arrays; returns a float for numbers only. Infinite epsilon needs no noise, and neither does a holder who is used at all
    with probability at most delta.

    Example:
        >>> round(noise_for(1.0, 1e-6, rate=0.1, steps=512), 2)
        9.66
    """
    return _solved(
        (epsilon, delta, rate, steps),
        accountant,
        lambda q, _: lambda x: (np.full_like(x, q), 1 / x),
        np.inf,
        lambda x: 1 / x,
        lambda mu, q, t: np.clip(mu / (q * np.sqrt(t)), 1e-4, 3.0),
        free=lambda e, d, q, t: np.isinf(e) | (ever(q, t) <= d),
        free_value=0.0,
    )


def rate_for(epsilon: ArrayLike, delta: ArrayLike, *, noise_multiplier: ArrayLike, steps: ArrayLike, accountant: str = "pld") -> Any:
    """The largest rate, up to 0.5 % of the budget, with which `steps` at `noise_multiplier` cost at most (epsilon, delta); at most 1.

    Example:
        >>> round(rate_for(2.0, 1e-5, noise_multiplier=1.0, steps=1_000), 4)
        0.0109
    """
    return _solved(
        (epsilon, delta, noise_multiplier, steps),
        accountant,
        lambda z, _: lambda x: (x, np.full_like(x, z)),
        1.0,
        lambda x: x,
        lambda mu, z, t: np.clip(mu / np.sqrt(t * np.expm1(min(z**-2, 50.0) if z > 0.1 else 50.0)), 1e-9, 1.0),
        free=lambda e, d, z, t: np.isinf(e) | (t == 0) | np.isinf(z),
        free_value=1.0,
    )


def rare_rate(steps: float) -> Floor:
    """The log rate at which a holder is used at all, in so many steps, with probability just below delta."""
    return lambda delta: np.log(-np.expm1(np.log1p(-delta) / steps)) - 1e-10


def _solved(
    arguments: tuple[ArrayLike, ...],
    accountant: str,
    family: Callable[[float, float], Family],
    top: float,
    result: Callable[[Array], Array],
    guess: Callable[[Array, float, float], Array],
    *,
    free: Callable[..., Any],
    free_value: float,
) -> Any:
    accountants.find(accountant)
    shape = np.broadcast_shapes(*(np.shape(a) for a in arguments))
    e, d, other, t = (np.broadcast_to(np.asarray(a, float), shape).ravel() for a in arguments)
    _check(e, d, t)
    if np.any(~(other >= 0)) or (np.isinf(top) and np.any(other > 1)):
        raise ValueError("rates must lie in [0, 1] and noise multipliers be 0 or more.")
    out = np.full(e.size, free_value)
    open_ = np.flatnonzero(~free(e, d, other, t))
    for fixed in {(float(other[i]), float(t[i])) for i in open_}:
        rows = open_[(other[open_] == fixed[0]) & (t[open_] == fixed[1])]
        pairs, back = np.unique(np.stack([e[rows], d[rows]]), axis=1, return_inverse=True)
        mu = pairs[0] / np.sqrt(2 * np.log(1.25 / pairs[1]))  # of a Gaussian that costs about as much
        start = guess(mu, *fixed)
        floor = None if np.isinf(top) else rare_rate(fixed[1])
        x = intensities(Search(pairs[0], pairs[1], family(*fixed), fixed[1], accountant, top, floor), start=start)
        out[rows] = result(x)[back.ravel()]
    return float(out[0]) if shape == () else out.reshape(shape)


def _check(epsilon: Array, delta: Array, steps: Array) -> None:
    if np.any(~(epsilon > 0)):
        raise ValueError("epsilon must be positive.")
    if np.any(~((delta > 0) & (delta < 1))):
        raise ValueError("delta must lie strictly between 0 and 1.")
    if np.any(~(steps >= 0)) or np.any(steps != np.round(steps)):
        raise ValueError("steps must be a whole number of 0 or more.")


def steps_for(epsilon: ArrayLike, delta: ArrayLike, *, rate: ArrayLike, noise_multiplier: ArrayLike, accountant: str = "pld") -> Any:
    """The largest number of steps, up to 0.5 % of the budget, that cost at most (epsilon, delta).

    Raises `Infeasible` where not even one step fits, and where any number would.

    Example:
        >>> steps_for(2.0, 1e-5, rate=0.01, noise_multiplier=1.0, accountant="rdp")
        881
    """
    accountants.find(accountant)
    arguments = (epsilon, delta, rate, noise_multiplier)
    shape = np.broadcast_shapes(*(np.shape(a) for a in arguments))
    e, d, q, z = (np.broadcast_to(np.asarray(a, float), shape).ravel() for a in arguments)
    _check(e, d, np.ones(1))
    if np.any(~((q >= 0) & (q <= 1))) or np.any(~(z >= 0)):
        raise ValueError("rates must lie in [0, 1] and noise multipliers be 0 or more.")
    endless = np.isinf(e) | (q == 0) | np.isinf(z)
    if endless.any():
        raise Infeasible("no number of steps spends the budget: epsilon or the noise is infinite, or the rate is 0.")
    counts = most_steps(e, d, q, z, accountant)
    if np.any(counts >= _MOST_STEPS):
        raise Infeasible(f"more than {_MOST_STEPS:g} steps fit into the budget: no number of steps that could be run spends it.")
    if np.any(counts == 0):
        i = int(np.flatnonzero(counts == 0)[0])
        one = float(spend(q[i], z[i], 1, d[i], accountant)[0])
        raise Infeasible(
            f"epsilon {e[i]:g} at delta {d[i]:g} does not cover a single step at rate {q[i]:g} and noise multiplier {z[i]:g}, "
            f"which costs {one:.3g}; add noise or lower the rate."
        )
    return int(counts[0]) if shape == () else counts.reshape(shape)


def most_steps(epsilon: Array, delta: Array, rate: Array, noise: Array, accountant: str, start: Array | None = None) -> NDArray[np.int64]:
    """How many steps fit, 0 where not even one does; `start` is where the tight accountant begins, if not at Rényi's figure."""
    count = _rényi_steps(epsilon, delta, rate, noise) if start is None else np.asarray(np.clip(start, 1.0, _MOST_STEPS), np.int64)
    judge = accountants.find(accountant)
    if not judge.refines:
        return count
    waste = judge.waste
    bracket = Bracket.around(epsilon * (1 - waste / 2))
    x = np.maximum(count.astype(float), 1.0)
    active = np.arange(len(epsilon))
    for iteration in range(200):
        found = spend(rate[active], noise[active], x[active], delta[active], accountant)
        with np.errstate(divide="ignore"):
            bracket.learn(active, np.log(x[active]), found, found <= epsilon[active])
        low, high = np.round(np.exp(bracket.low)), np.round(np.exp(bracket.high))
        done = (high - low <= 1) | ((low > 0) & (bracket.at_low >= epsilon * (1 - waste))) | (low >= _MOST_STEPS)
        active = active[~done[active]]
        if not len(active):
            break
        proposed = np.minimum(np.exp(np.minimum(bracket.next(active, iteration), 50.0)), _MOST_STEPS)
        x[active] = np.clip(np.round(proposed), low[active] + 1, np.maximum(high[active] - 1, low[active] + 1))
    return np.asarray(low, np.int64)


def _rényi_steps(epsilon: Array, delta: Array, rate: Array, noise: Array) -> NDArray[np.int64]:
    """The Rényi bound is linear in the steps at each order, so the best order gives the most steps directly."""
    largest = max(512.0, 30 * float(np.log(1 / delta.min()) / epsilon.min()))
    orders = rdp.ORDERS[largest >= rdp.ORDERS][::_STRIDE]
    pairs, back = np.unique(np.stack([rate, noise]), axis=1, return_inverse=True)
    per_step = rdp.sampled_gaussian(pairs[0], pairs[1], orders)[back.ravel()]
    by_order = _steps_at(epsilon, delta, per_step, orders)
    best = np.argmax(by_order, axis=1)
    out = by_order[np.arange(len(best)), best]
    if largest > rdp.ORDERS[-1]:
        beyond = rdp.orders_beyond(largest)
        further = rdp.at_large_orders(pairs[0], pairs[1], beyond)[back.ravel()]
        out = np.maximum(out, _steps_at(epsilon, delta, further, beyond).max(axis=1) * (1 + _ROUNDING))  # 4 is not to become 3
    around = rdp.ORDERS[np.clip(_STRIDE * best[:, None] + np.arange(-_STRIDE + 1, _STRIDE), 0, len(rdp.ORDERS) - 1)]
    rows = np.flatnonzero(rdp.integrable(rate, noise, around))
    if len(rows):
        finer = rdp.near_orders(rate[rows], noise[rows], around[rows])
        out[rows] = np.maximum(out[rows], _steps_at(epsilon[rows], delta[rows], finer, around[rows]).max(axis=1))
    counts = np.floor(np.clip(out, 0.0, _MOST_STEPS))
    # the accountant that reports has the last word
    while (over := (counts > 0) & (spend(rate, noise, counts, delta, rdp.NAME) > epsilon)).any():
        counts[over] = np.maximum(np.minimum(np.floor(counts[over] * (1 - 1e-4)), counts[over] - 1), 0)
    return np.asarray(counts, np.int64)


def _steps_at(epsilon: Array, delta: Array, per_step: Array, orders: Array) -> Array:
    """Steps that fit at each order, when each step costs `per_step`."""
    gain, price = rdp.conversion_terms(orders, delta)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.nan_to_num((epsilon[:, None] - (gain - price)) / per_step, nan=0.0))
