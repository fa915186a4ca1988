"""The tight accountant: epsilon and delta of an exposure from its privacy-loss distribution.

This room chooses the grid so that discretisation costs little, the tilt so that small deltas keep their digits, and what to do when
memory would not suffice. How losses are discretised and composed, and why that is an upper bound, is in `losses`.

Discretisation adds to the loss a term of mean zero under Q's exponential, within one grid step, so at Rényi order a it costs at
most about a/2 times the variance added: the grid is halved until that is below the accuracy asked for. The same term gives the lower
bound: by Azuma and Hoeffding, n steps move the loss by at most n h^2/8 + h sqrt(n log(1/eta) / 2) but for probability eta.

A search begins at Rényi's figure, and falls back to it. Several records of one holder have none: there it is Chernoff's bound on losses of
a coarse grid, which is Rényi's bound but for what is cut off.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from sartor.accounting import filtered, gaussian, losses, rdp, records
from sartor.accounting.losses import MOST_POINTS, Composed, LossDistribution, Pair, TooFine
from sartor.accounting.records import Chernoff, Parts, best_tilt
from sartor.accounting.use import probability_of_use
from sartor.errors import Infeasible
from sartor.exposure import Composition, Exposure, Filtered, Included, SampledGaussian, SampledRecords

Array = NDArray[np.float64]

PLANNING_ACCURACY = 3e-4
"""Share of epsilon that discretisation may cost where plans are solved and checked."""
GUESSING_ACCURACY = 3e-3
"""The same where a solver looks for where to begin: nothing is promised by such a figure."""
REPORTING_ACCURACY = 2e-5
"""The same where a figure is reported together with its lower bound."""

PROFILE_DELTA = 1e-7
"""Where a profile is looked at most closely."""

_CUT = np.log(1e-7)  # share of delta, and of the tilted mass, that truncation may cost
_CELLS = 1 / 60  # of epsilon: the grid is at least so much finer
_ROUNDS = 30
_MOST_WHILE_GUESSING = 1 << 16
_MOST_WHILE_PLANNING = 1 << 19  # points of a grid: where rare large losses need more, plans are made with a coarser, safer figure
_COARSER = 1.05  # than the finest grid that memory allows: windows do not shrink exactly as grids grow
_NO_FINER = 0.8  # of the grid that a figure was found on: what lies between is not worth another evaluation
_JUNK = 1e-4  # share of delta that truncation and wrap-around may have in a divergence before less is cut off
_PLAINLY = 1.2  # times that much, by what was composed before, is too much
_BLUR = 0.01  # share of epsilon that a window too narrow may cost before a wider one on a coarser grid is tried
_SURELY = 0.99  # share of one direction's epsilon below which the other's bound makes it not worth composing
_EXACT_BELOW = 600.0  # epsilon of one sampled step: beyond, its closed form is only a bound from above
_LEAST_NOISE = 0.02  # noise multiplier below which the Rényi bound is used instead
_COARSE_POINTS = 1 << 14  # of the grid where a search begins without Rényi
_FINEST_START = 1e-12  # of such a grid, which is made coarser until its points suffice
_LOG_CUTS = (-20.0, -40.0, -80.0, -150.0)  # masses to cut off where delta is not yet known: it misses one of them little


_Atom: TypeAlias = SampledGaussian | SampledRecords | Filtered | Included


@dataclass(frozen=True)
class _Atoms:
    """An exposure taken apart: one Gaussian of ratio `mu`, and sampled or included parts with how often each occurs."""

    mu: float
    parts: tuple[tuple[_Atom, int], ...]
    ever: float  # probability that the holder is used at all: bounds the total variation
    least: float  # ratio of a Gaussian that this surely is: filters count by what whole stretches at their highest rung cost

    @property
    def single(self) -> SampledGaussian | None:
        """The one sampled step that this is, if it is no more than that."""
        if self.mu == 0 and len(self.parts) == 1 and self.parts[0][1] == 1 and isinstance(self.parts[0][0], SampledGaussian):
            return self.parts[0][0]
        return None

    @property
    def filter(self) -> Filtered | None:
        """The one filter that this is, if it is no more than that: its table says all that there is to say."""
        alone = self.mu == 0 and len(self.parts) == 1 and self.parts[0][1] == 1
        return self.parts[0][0] if alone and isinstance(self.parts[0][0], Filtered) else None

    @property
    def harsh(self) -> bool:
        """Whether some sampled step has next to no noise, so that losses have no useful grid."""
        return any(_least_noise(atom) < _LEAST_NOISE for atom, _ in self.parts)

    @property
    def steps(self) -> int:
        return sum(_steps(atom) * count for atom, count in self.parts) + (self.mu > 0)


def _least_noise(exposure: Exposure) -> float:
    if isinstance(exposure, SampledGaussian | SampledRecords):
        return exposure.noise_multiplier if exposure.rate > 0 and exposure.steps > 0 else np.inf
    if isinstance(exposure, Filtered):
        return exposure.noise_multiplier
    inner = exposure.parts if isinstance(exposure, Composition) else (exposure.exposure,)
    return min((_least_noise(part) for part in inner), default=np.inf)


def _steps(atom: Exposure) -> int:
    if isinstance(atom, SampledGaussian | SampledRecords | Filtered):
        return 1
    if isinstance(atom, Included):
        return 1 + _atoms(atom.exposure).steps
    return sum(_steps(part) for part in atom.parts)


def _atoms(exposure: Exposure) -> _Atoms:
    squared, least, counts = 0.0, 0.0, dict[_Atom, int]()
    stack = [exposure]
    while stack:
        part = stack.pop()
        if isinstance(part, Composition):
            stack.extend(part.parts)
        elif isinstance(part, Included):
            if part.probability == 1:
                stack.append(part.exposure)
            elif part.probability > 0:
                counts[part] = counts.get(part, 0) + 1
        elif isinstance(part, SampledRecords):
            if part.plain is not None:
                stack.append(part.plain)
            elif part.noise_multiplier == 0:
                squared = np.inf
            else:
                drawn = SampledRecords(part.records, part.rate, part.noise_multiplier, 1)
                counts[drawn] = counts.get(drawn, 0) + part.steps
        elif isinstance(part, Filtered):
            if part.rate == 0 or part.most_stretches == 0 or np.isinf(part.noise_multiplier):
                continue
            if part.noise_multiplier == 0:
                squared = np.inf
            elif part.rate == 1:
                squared += _most_squared(part)
                least += _sure_squared(part)
            else:
                counts[part] = counts.get(part, 0) + 1
        elif part.rate > 0 and part.steps > 0 and np.isfinite(part.noise_multiplier):
            if part.noise_multiplier == 0:
                squared = np.inf
            elif part.rate == 1:
                ratio = 1 / part.noise_multiplier
                squared += part.steps * ratio * ratio  # a square of the noise itself may overflow
                least += part.steps * ratio * ratio
            else:
                one = SampledGaussian(part.rate, part.noise_multiplier, 1)
                counts[one] = counts.get(one, 0) + part.steps
    least = squared if np.isinf(squared) else min(least, squared)
    return _Atoms(float(np.sqrt(squared)), tuple(counts.items()), probability_of_use(exposure), float(np.sqrt(least)))


def _most_squared(exposure: Filtered) -> float:
    """The squared ratio of the one Gaussian that a filter is where everybody is drawn: exact, whoever chose the norms.

    Proof: with a bound on the sum of squared norms, adaptively chosen Gaussian steps are no easier to tell apart than one whose squared
    norm is that bound (Koskela et al. 2023; Smith and Thakurta 2022); a stretch adds at most its units times the most that a rung gives
    for one.
    """
    by_unit = max(rung * rung / cost for rung, cost in zip(exposure.rungs, exposure.costs, strict=True))
    return exposure.units * exposure.stretch * by_unit / exposure.noise_multiplier / exposure.noise_multiplier


def _sure_squared(exposure: Filtered) -> float:
    """The squared ratio of a Gaussian that a holder may choose to undergo: as many whole stretches at one rung as units pay for."""
    paid = max(rung * rung * (exposure.units // cost) for rung, cost in zip(exposure.rungs, exposure.costs, strict=True))
    return exposure.stretch * paid / exposure.noise_multiplier / exposure.noise_multiplier


def _pairs(atoms: _Atoms, grid: float, log_tail: float, tilt: float, most: int = MOST_POINTS) -> list[tuple[Pair, int]]:
    pairs = [(_pair(atom, grid, log_tail, tilt, most), count) for atom, count in atoms.parts]
    if atoms.mu > 0:
        one = losses.sampled_step(1.0, 1 / atoms.mu, grid, log_tail, tilt, most)
        pairs.append((one if atoms.least == atoms.mu else replace(one, surplus=1.0), 1))  # no lower bound follows from what is an upper one
    return pairs


def _pair(atom: _Atom, grid: float, log_tail: float, tilt: float, most: int) -> Pair:
    if isinstance(atom, SampledGaussian):
        return losses.sampled_step(atom.rate, atom.noise_multiplier, grid, log_tail, tilt, most)
    if isinstance(atom, SampledRecords):
        return records.records_step(atom.records, atom.rate, atom.noise_multiplier, grid, log_tail, tilt, most)
    if isinstance(atom, Filtered):
        return filtered.table(atom, float(np.exp(log_tail - _CUT)), PLANNING_ACCURACY).pair(grid, most)
    return losses.include(_behind(atom.exposure, grid, log_tail, most), atom.probability)


@lru_cache(maxsize=16)
def _behind(exposure: Exposure, grid: float, log_tail: float, most: int) -> Pair:
    """What is behind a coin, composed: remembered, as the same rounds stand behind the coins of many groups."""
    pairs = _pairs(_atoms(exposure), grid, log_tail, 0.0, most)
    if not pairs:
        nothing = LossDistribution(0, np.ones(1), 0.0)
        return Pair(grid, nothing, nothing, 0.0)
    whole = []
    for direction in ("remove", "add"):
        composed = losses.compose([(getattr(pair, direction), count) for pair, count in pairs], grid, 0.0, log_tail, most)
        scale = np.exp(composed.log_scale)
        offset = round(float(composed.loss[0]) / grid)
        whole.append(LossDistribution(offset, composed.weight * scale, min(composed.infinite * scale, 1.0)))
    spread = sum(count * pair.spread for pair, count in pairs)
    surplus = sum(count * pair.surplus for pair, count in pairs) + sum(max(0.0, float(way.mass.sum()) - 1) for way in whole)
    return Pair(grid, whole[0], whole[1], spread, surplus)


def _shared(atoms: _Atoms, grid: float) -> float:
    """A grid at least as fine that others with the same rounds behind their coins have as well: the next power of two below."""
    coins = any(isinstance(atom, Included) for atom, _ in atoms.parts)
    return float(2.0 ** np.floor(np.log2(grid))) if coins else grid


@dataclass(frozen=True)
class _Evaluation:
    remove: Composed
    add: Composed
    grid: float
    steps: int
    error: float  # second-order estimate of what the grid costs, in units of epsilon
    surplus: float  # mass above 1 that rounding put into inner compositions

    def epsilon(self, delta: Array) -> Array:
        remove = self.remove.epsilon(delta)
        return np.maximum(remove if self.add is self.remove else np.maximum(remove, self.add.epsilon(delta)), 0.0)

    def delta(self, epsilon: Array) -> Array:
        return np.maximum(self.remove.delta(epsilon), self.add.delta(epsilon))

    def junk(self, epsilon: Array) -> Array:
        return np.array([max(self.remove.junk(float(e)), self.add.junk(float(e))) for e in epsilon])

    def slack(self, log_inverse_eta: float) -> float:
        return float(self.steps * self.grid**2 / 8 + self.grid * np.sqrt(self.steps * log_inverse_eta / 2))


def _evaluate(atoms: _Atoms, delta: float, start: tuple[float, float], accuracy: float, only: Array | None = None) -> _Evaluation | None:
    """The composition tilted towards epsilon(delta), on a grid that meets the accuracy or the finest that memory allows.

    `start` is a guess of epsilon and the Rényi order there. A guess far above what is found is no harm but makes the grid too coarse,
    so the search goes on from what was found. All that is found holds, so the smallest epsilon is the answer.
    """
    epsilon, order = start if np.isfinite(start[0]) and start[0] > 0 else (1.0, 1 + np.log(1 / delta))
    most = MOST_POINTS if accuracy < PLANNING_ACCURACY else _MOST_WHILE_PLANNING if accuracy < GUESSING_ACCURACY else _MOST_WHILE_GUESSING
    tilt, steps = max(order - 1, 1e-3), atoms.steps
    log_tail = float(np.log(delta / steps) + _CUT)
    grid, finest = float(np.sqrt(12 * accuracy * epsilon / (order * steps))), 0.0
    best: _Evaluation | None = None
    seen: tuple[Composed | None, Composed | None] = (None, None)
    at = np.array([delta])
    for _ in range(_ROUNDS):
        try:
            pairs = _pairs(atoms, grid, log_tail, tilt, most)
            error = (tilt + 1) / 2 * sum(count * pair.spread for pair, count in pairs)
            finer = min(0.9 * grid * float(np.sqrt(accuracy * epsilon / max(error, 1e-300))), epsilon * _CELLS)
            if grid > 1.3 * max(finer, finest):
                grid = max(finer, finest)
                continue
            ways = [[(getattr(pair, way), count) for pair, count in pairs] for way in ("remove", "add")]
            remove = _tilted(ways[0], grid, delta, tilt, most, seen[0])
            less = only is not None and _is_below(ways[1], remove, grid, only, most)
            add = remove if less else _tilted(ways[1], grid, delta, tilt, most, seen[1])
            new = _Evaluation(remove, add, grid, steps, error, sum(count * pair.surplus for pair, count in pairs))
        except TooFine as fine:
            finest = grid = _COARSER * max(fine.excess, 1.0) * grid
            if best is not None and grid >= _NO_FINER * best.grid:
                return best  # nothing that is finer by much fits
            continue
        found = float(new.epsilon(at)[0])
        best = new if best is None or found <= best.epsilon(at)[0] else best
        settled = found > 0.7 * epsilon and (remove.tilt + 1) / (tilt + 1) * error < 2 * accuracy * found
        if found == 0 or not np.isfinite(found) or settled or grid <= finest:
            return best
        epsilon, tilt, seen = found, max(remove.tilt, 1e-3), (remove, seen[1] if less else add)
    return best


def _is_below(parts: Parts, other: Composed, grid: float, delta: Array, most: int) -> bool:
    """Whether a direction's epsilon is surely below the other's at each delta, by Chernoff's bound; not said of too wide a window."""
    epsilon = other.epsilon(delta)
    if not np.all((epsilon > 0) & np.isfinite(epsilon)):
        return False
    tilt = float(2 * np.log(1 / delta.min()) / epsilon.max())  # the best for a Gaussian of this epsilon
    left = delta - Chernoff.of(grid, [parts]).lost
    with np.errstate(divide="ignore", invalid="ignore"):
        bound = (losses.cumulant(parts, grid, tilt) - np.log(left)) / tilt
    return bool(np.all(bound < _SURELY * epsilon)) and losses.points(parts, grid, 0.0, float(np.log(delta.min()) + _CUT)) <= most


def _tilted(parts: Parts, grid: float, delta: float, tilt: float, most: int, before: Composed | None) -> Composed:
    """One direction, composed where its own epsilon(delta) is in sight.

    The tilt is moved to where the Chernoff bound on epsilon is smallest; if epsilon still lies below the window, it is weakened, and if
    what was cut off above counts for too much, less is cut off. Neither changes what the result promises. What was composed `before`, on
    another grid, says which tilt is strong enough, and where less has to be cut off anyway.
    """
    tilt = best_tilt(parts, grid, delta, tilt) if before is None or before.tilt > 0 else 0.0
    first = log_cut = float(_CUT if tilt > 0 else np.log(delta) + _CUT)
    least = float(np.log(delta) + 4 * _CUT)
    if before is not None:
        tilt = min(tilt, before.tilt)
        wrapped = losses.cumulant(parts, grid, tilt) - tilt * float(before.epsilon(np.array([delta]))[0])
        while log_cut > least and log_cut + wrapped > np.log(_PLAINLY * _JUNK * delta):
            log_cut += _CUT
    composed: Composed | None = None
    for _ in range(12):
        try:
            composed = losses.compose(parts, grid, tilt, log_cut, most)
        except TooFine:
            if composed is None and log_cut < first:
                log_cut = first
                continue
            if composed is None or _blurred(composed, delta):
                raise
            break  # what there is holds; a wider window would hardly have sharpened it
        at = float(composed.epsilon(np.array([delta]))[0])
        if composed.junk(at) > _JUNK * delta and log_cut > least:
            log_cut += _CUT
        elif at > 0 and at <= composed.loss[0]:
            tilt = tilt / 3 if tilt > 0.1 else 0.0
            log_cut = float(_CUT if tilt > 0 else np.log(delta) + _CUT)
        else:
            break
    assert composed is not None
    return composed


def _blurred(composed: Composed, delta: float) -> bool:
    """Whether epsilon is out of sight, or what was cut off and is counted as infinite moves it by more than any grid would."""
    at = float(composed.epsilon(np.array([delta]))[0])
    without = float(composed.epsilon(np.array([delta + composed.lost]))[0])
    return 0 < at <= composed.loss[0] or at > (1 + _BLUR) * without


def _chunks(delta: Array) -> list[NDArray[np.int64]]:
    """Indices of deltas that one tilt serves: within a factor of 20 of each other."""
    order = np.argsort(delta)
    chunks, begin = [], 0
    for i in range(1, len(order) + 1):
        if i == len(order) or delta[order[i]] > 20 * delta[order[begin]]:
            chunks.append(order[begin:i])
            begin = i
    return chunks


def _start(exposure: Exposure, delta: float) -> tuple[float, float]:
    """A bound on epsilon and its order: where the search begins, and what it falls back to. Rényi's, where there is one."""
    if not rdp.knows(exposure):
        found, order = _coarse(exposure, float(np.log(delta) + _CUT)).epsilon(delta)
        return min(found, float(gaussian.epsilon_of(_always_drawn(exposure), np.array([delta]))[0])), order
    epsilon = rdp.epsilon_of([exposure], np.array([delta]), rdp.ORDERS, "balle")
    values = rdp.curve(exposure) - np.log(delta) / (rdp.ORDERS - 1)
    return float(epsilon[0]), float(rdp.ORDERS[int(np.argmin(values))])


def _start_of_delta(exposure: Exposure, epsilon: float) -> float:
    """A bound on delta, to begin with and to fall back to."""
    if not rdp.knows(exposure):
        always = float(gaussian.delta_of(_always_drawn(exposure), np.array([epsilon]))[0])
        return min(always, probability_of_use(exposure), *(_coarse(exposure, cut).delta(epsilon) for cut in _LOG_CUTS))
    return float(rdp.delta_of([exposure], np.array([epsilon]), rdp.ORDERS, "balle")[0])


def _always_drawn(exposure: Exposure) -> float:
    """The ratio of the Gaussian that an exposure is if every coin falls for the holder: the most that can happen to them."""
    if isinstance(exposure, Composition):
        return float(np.linalg.norm([_always_drawn(part) for part in exposure.parts]))
    if isinstance(exposure, Included):
        return _always_drawn(exposure.exposure)
    if isinstance(exposure, Filtered):
        return float(np.sqrt(_most_squared(exposure))) if exposure.noise_multiplier > 0 else np.inf
    together = exposure.records if isinstance(exposure, SampledRecords) else 1
    return float(together * np.sqrt(exposure.steps) / exposure.noise_multiplier) if exposure.noise_multiplier > 0 else np.inf


def _coarse(exposure: Exposure, log_cut: float) -> Chernoff:
    """Losses on the finest grid of few points, in whose composition about exp(log_cut) is cut off."""
    atoms, grid = _atoms(exposure), _FINEST_START
    log_tail = log_cut - float(np.log(atoms.steps))
    while True:
        try:
            pairs = _pairs(atoms, grid, log_tail, 0.0, _COARSE_POINTS)
        except TooFine as fine:
            grid *= _COARSER * max(fine.excess, 1.0)
        else:
            return Chernoff.of(grid, [[(getattr(pair, way), count) for pair, count in pairs] for way in ("remove", "add")])


def epsilon_bounds(
    exposure: Exposure, delta: Array, accuracy: float, starts: list[tuple[float, float]] | None = None
) -> tuple[Array, Array, Array]:
    """(lower, estimate, upper) of epsilon at each delta; `starts` are Rényi's epsilon and order for each, where already known.

    The Rényi bound is the fallback: where memory does not allow a grid fine enough to beat it, it is the upper bound.
    """
    atoms = _atoms(exposure)
    low, middle, high = (np.zeros_like(delta) for _ in range(3))
    open_ = np.flatnonzero(atoms.ever > delta)  # where using the holder at all is rarer than delta, epsilon is 0
    if not len(open_):
        return low, middle, high
    if atoms.harsh:
        rényi = np.array([_start(exposure, float(delta[i]))[0] for i in open_])
        middle[open_], high[open_] = rényi, rényi
        return low, middle, high
    if atoms.single is not None or not atoms.parts or np.isinf(atoms.mu):
        one = atoms.single
        exact = (
            gaussian.epsilon_of(atoms.mu, delta[open_])
            if one is None
            else gaussian.sampled_epsilon_of(one.rate, 1 / one.noise_multiplier, delta[open_])
        )
        middle[open_] = high[open_] = exact
        low[open_] = gaussian.epsilon_of(atoms.least, delta[open_]) if one is None else np.where(exact > _EXACT_BELOW, 0.0, exact)
        return low, middle, high
    if atoms.filter is not None:
        low[open_], high[open_] = _filter_bounds(atoms.filter, delta[open_], accuracy)
        return low, high.copy(), high
    for chunk in _chunks(delta[open_]):
        rows = open_[chunk]
        fallback = [starts[i] if starts is not None else _start(exposure, float(delta[i])) for i in rows]
        middle_row = len(rows) // 2
        only = delta[rows] if accuracy >= PLANNING_ACCURACY else None
        found = _evaluate(atoms, float(delta[rows[middle_row]]), fallback[middle_row], accuracy, only)
        rényi = np.array([epsilon for epsilon, _ in fallback])
        upper = rényi if found is None else np.minimum(found.epsilon(delta[rows]), rényi)
        high[rows] = upper
        if found is not None:
            eta = delta[rows] / 20
            least = found.epsilon(delta[rows] + eta + found.junk(upper)) - found.slack(float(np.log(1 / eta.min())))
            low[rows] = np.clip(least, 0.0, upper) if found.surplus <= delta[rows].min() / 100 else 0.0
            middle[rows] = np.clip(upper - found.error, low[rows], upper)
    return low, middle, high


def _filter_bounds(exposure: Filtered, delta: Array, accuracy: float) -> tuple[Array, Array]:
    """(lower, upper) of a filter's epsilon at each delta."""
    found = np.array([_filter_bound(exposure, float(at), accuracy) for at in delta])
    return found[:, 0], found[:, 1]


@lru_cache(maxsize=1 << 12)
def _filter_bound(exposure: Filtered, delta: float, accuracy: float) -> tuple[float, float]:
    """What the highest rung alone costs, and what the worst choice of rungs does."""
    table = filtered.table(exposure, delta, max(accuracy, PLANNING_ACCURACY))
    upper = min(float(table.epsilon(np.array([delta]))[0]), _start(exposure, delta)[0])
    return min(float(epsilon_bounds(exposure.at_full, np.array([delta]), accuracy)[0][0]), upper), upper


def _exact_delta(atoms: _Atoms, epsilon: Array) -> Array | None:
    """delta(epsilon) where it has a closed form."""
    if atoms.single is not None:
        return gaussian.sampled_delta_of(atoms.single.rate, 1 / atoms.single.noise_multiplier, epsilon)
    if not atoms.parts or np.isinf(atoms.mu):
        return np.minimum(gaussian.delta_of(atoms.mu, epsilon), atoms.ever)
    return None


def delta_bounds(exposure: Exposure, epsilon: Array, accuracy: float) -> tuple[Array, Array, Array]:
    """(lower, estimate, upper) of delta at each epsilon."""
    atoms = _atoms(exposure)
    if atoms.ever == 0 or (not atoms.parts and atoms.mu == 0):
        return (np.zeros_like(epsilon),) * 3
    exact = _exact_delta(atoms, epsilon)
    if exact is not None:
        low = exact if atoms.single is not None else np.minimum(gaussian.delta_of(atoms.least, epsilon), exact)
        return low, exact, exact
    low, middle, high = (np.zeros_like(epsilon) for _ in range(3))
    if atoms.harsh:
        middle = high = np.array([_start_of_delta(exposure, float(eps)) for eps in epsilon])
        return low, middle, high
    for i, eps in enumerate(epsilon):
        rényi = _start_of_delta(exposure, float(eps))
        target = max(rényi / 10, 1e-300)
        if atoms.filter is not None:
            by_way = filtered.table(atoms.filter, target, max(accuracy, PLANNING_ACCURACY)).delta(np.array([eps]))
            middle[i] = high[i] = min(rényi, max(float(found[0]) for found in by_way.values()))
            low[i] = min(float(delta_bounds(atoms.filter.at_full, np.array([eps]), accuracy)[0][0]), high[i])
            continue
        found = _evaluate(atoms, target, _start(exposure, target), accuracy)
        at = np.array([eps])
        if found is None:
            low[i], middle[i], high[i] = 0.0, rényi, rényi
            continue
        high[i] = min(float(found.delta(at)[0]), rényi)
        eta = max(high[i] / 20, 1e-320)
        least = float(found.delta(at + found.slack(float(np.log(1 / eta))))[0]) - eta - float(found.junk(at)[0])
        low[i] = min(max(least, 0.0), high[i]) if found.surplus <= high[i] / 100 else 0.0
        middle[i] = np.clip(float(found.delta(at + found.error)[0]), low[i], high[i])
    return low, middle, high


class Profile:
    """delta(epsilon) of an exposure over the whole curve, in each direction, as an upper bound.

    Composed once without a tilt, so that any epsilon can be asked; absolute precision, about 1e-12, so not for tiny deltas. `start` is
    Rényi's epsilon and order at `PROFILE_DELTA`, where already known.
    """

    def __init__(self, exposure: Exposure, start: tuple[float, float] | None = None) -> None:
        self._atoms = _atoms(exposure)
        self._composed: dict[str, Composed] = {}
        if self._atoms.harsh:
            raise Infeasible("a noise multiplier below 0.02 hides next to nothing: its privacy profile is not computed.")
        if self._atoms.filter is None and _exact_delta(self._atoms, np.zeros(1)) is None:
            self._compose(_start(exposure, PROFILE_DELTA) if start is None else start)

    def _compose(self, start: tuple[float, float]) -> None:
        epsilon, order = start if np.isfinite(start[0]) and start[0] > 0 else (1.0, 1 + np.log(1 / PROFILE_DELTA))
        steps = self._atoms.steps
        grid = _shared(self._atoms, min(float(np.sqrt(12 * PLANNING_ACCURACY * epsilon / (order * steps))), epsilon / 2000))
        log_tail = float(np.log(PROFILE_DELTA / steps) + _CUT)
        while True:
            try:
                pairs = _pairs(self._atoms, grid, log_tail, 0.0)
                for way in ("remove", "add"):
                    parts = [(getattr(pair, way), count) for pair, count in pairs]
                    self._composed[way] = losses.compose(parts, grid, 0.0, float(np.log(PROFILE_DELTA) + _CUT))
                return
            except TooFine:
                grid *= 2

    def delta(self, epsilon: Array) -> dict[str, Array]:
        """delta at each epsilon when the holder is removed and when they are added."""
        exact = _exact_delta(self._atoms, epsilon)
        if exact is not None:
            return {"remove": exact, "add": exact}
        if self._atoms.filter is not None:
            by_way = filtered.table(self._atoms.filter, PROFILE_DELTA, PLANNING_ACCURACY).delta(epsilon)
            return {way: np.minimum(value, self._atoms.ever) for way, value in by_way.items()}
        return {way: np.minimum(composed.delta(epsilon), self._atoms.ever) for way, composed in self._composed.items()}


def epsilon_of_each(rate: Array, noise_multiplier: Array, steps: Array, delta: Array, accuracy: float) -> Array:
    """Epsilon (upper) of many sampled Gaussians, each at its own delta; equal mechanisms are composed once."""
    epsilon, order = rdp.epsilon_and_order(rate, noise_multiplier, steps, delta)
    by_mechanism: dict[tuple[float, float, int], list[int]] = {}
    for i, mechanism in enumerate(zip(rate.tolist(), noise_multiplier.tolist(), steps.astype(int).tolist(), strict=True)):
        by_mechanism.setdefault(mechanism, []).append(i)
    out = np.empty(len(rate))
    for mechanism, rows in by_mechanism.items():
        starts = [(float(epsilon[i]), float(order[i])) for i in rows]
        out[rows] = epsilon_bounds(SampledGaussian(*mechanism), delta[rows], accuracy, starts)[2]
    return out
