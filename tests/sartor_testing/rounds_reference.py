"""What rounds behind coins cost, without our own accountant: dp_accounting's losses of a round, coins and composition in plain NumPy."""

import itertools

import numpy as np
from dp_accounting.pld import privacy_loss_distribution
from scipy.signal import fftconvolve

from sartor.accounting import Composition, Included, SampledGaussian

GRID = 2e-4


def _dense(pmf) -> tuple[int, np.ndarray, float]:
    dense = pmf.to_dense_pmf()
    return dense._lower_loss, np.asarray(dense._probs), float(dense._infinity_mass)


def _onto(loss: np.ndarray, mass: np.ndarray) -> tuple[int, np.ndarray]:
    """Point masses on the grid, halves to either side in proportion: means stay."""
    place = loss / GRID
    low = np.floor(place).astype(int)
    share, first = place - low, int(low.min())
    size = int(low.max()) - first + 2
    return first, np.bincount(low - first, mass * (1 - share), size) + np.bincount(low - first + 1, mass * share, size)


def of_round(step: SampledGaussian, chance: float) -> dict[str, tuple[int, np.ndarray, float]]:
    """Losses of one round in both directions, as (first place on the grid, masses, mass at infinity)."""
    rate = {} if step.rate == 1 else {"sampling_prob": step.rate}
    one = privacy_loss_distribution.from_gaussian_mechanism(step.noise_multiplier, value_discretization_interval=GRID, **rate)
    whole = one.self_compose(step.steps)
    first, mass, lost = _dense(whole._pmf_remove)
    loss = (first + np.arange(len(mass))) * GRID
    if chance == 1:
        return {"remove": (first, mass, lost), "add": _dense(whole._pmf_add)}
    with_holder = chance * mass + (1 - chance) * mass * np.exp(-loss)
    missing = max(0.0, 1 - with_holder.sum() - chance * lost)
    with_holder[0] += missing
    remove = (*_onto(np.log1p(chance * np.expm1(loss)), with_holder), chance * lost)
    first, mass, lost = _dense(whole._pmf_add)
    other = (first + np.arange(len(mass))) * GRID
    losses = np.append(-np.log1p(chance * np.expm1(-other)), -np.log1p(-chance))
    return {"remove": remove, "add": (*_onto(losses, np.append(mass, lost)), 0.0)}


def epsilon_of(exposure, delta: float) -> float:
    """Epsilon of rounds behind coins, in the worse direction."""
    parts = exposure.parts if isinstance(exposure, Composition) else (exposure,)
    known = {part: of_round(part.exposure, part.probability) if isinstance(part, Included) else of_round(part, 1.0) for part in set(parts)}
    found = []
    for way in ("remove", "add"):
        first, mass, lost = known[parts[0]][way]
        for part in parts[1:]:
            at, own, more = known[part][way]
            first, mass, lost = first + at, fftconvolve(mass, own), lost + more
        loss = (first + np.arange(len(mass))) * GRID
        low, high = 0.0, float(loss[-1])
        while high - low > 1e-7:
            middle = (low + high) / 2
            above = loss > middle
            reached = float(np.sum(mass[above] * -np.expm1(middle - loss[above]))) + lost
            low, high = (middle, high) if reached > delta else (low, middle)
        found.append(high)
    return max(found)


def by_coins(pairs, chances, delta: float) -> float:
    """Epsilon of rounds of discrete pairs (with the holder, without), each behind a coin, from the probability of every outcome."""
    with_holder, without = np.ones(1), np.ones(1)
    for (p, q), chance in zip(pairs, chances, strict=True):
        mixed = chance * np.asarray(p) + (1 - chance) * np.asarray(q)
        with_holder, without = np.outer(with_holder, mixed).ravel(), np.outer(without, q).ravel()
    return from_laws(with_holder, without, delta)


def published_by_outcomes(pairs, thresholds, budget: float, delta: float) -> float:
    """Epsilon of the published process for one holder, from the probability of every outcome under every sequence of coins."""
    outcomes = list(itertools.product(*(range(len(q)) for _, q in pairs)))
    without = np.array([np.prod([q[o] for (_, q), o in zip(pairs, outcome, strict=True)]) for outcome in outcomes])
    with_holder = np.zeros(len(outcomes))
    for coins in itertools.product((True, False), repeat=len(pairs)):
        left, probability = budget, 1.0
        for drawn, tau in zip(coins, thresholds, strict=True):
            chance = 1.0 if left >= tau else np.expm1(left) / np.expm1(tau)
            probability *= chance if drawn else 1 - chance
            left = max(left - tau, 0.0) if drawn else left
        if probability > 0:
            law = [
                np.prod([(p if drawn else q)[o] for (p, q), o, drawn in zip(pairs, outcome, coins, strict=True)]) for outcome in outcomes
            ]
            with_holder += probability * np.array(law)
    return from_laws(with_holder, without, delta)


def published_in_two(rounds, thresholds, budget: float, delta: float) -> float:
    """Epsilon of the published process of two rounds that both draw by coins, from every pair of losses, which cumulative sums add up."""
    laws = []
    for step in rounds:
        first, mass, _ = of_round(step, 1.0)["remove"]
        loss = (first + np.arange(len(mass))) * GRID
        laws.append((np.exp(loss), mass, mass * np.exp(-loss)))
    (one, p, q), (two, _, without) = laws
    chance, later = (np.expm1(budget) / np.expm1(tau) for tau in thresholds)
    after = (1 - chance) * (1 - later + later * two)
    above_p, above_q = (np.append(np.cumsum(mass[::-1])[::-1], 0.0) for mass in (p, q))
    below_p, below_q = (np.append(0.0, np.cumsum(mass)) for mass in (p, q))

    def reached(epsilon: float) -> float:
        scale = np.exp(epsilon)
        at = np.searchsorted(one, (scale - after) / chance, side="right")
        removed = float(without @ (chance * above_p[at] + (after - scale) * above_q[at]))
        at = np.searchsorted(one, (1 / scale - after) / chance, side="left")
        return max(removed, float(without @ (below_q[at] - scale * (chance * below_p[at] + after * below_q[at]))))

    low, high = 0.0, 20.0
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if reached(middle) > delta else (low, middle)
    return high


def from_laws(p: np.ndarray, q: np.ndarray, delta: float) -> float:
    """The smallest epsilon at which neither law exceeds e^epsilon times the other by more than delta."""
    if delta == 0:
        return float(np.max(np.abs(np.log(p / q))))
    low, high = 0.0, 50.0
    while high - low > 1e-9:
        middle = (low + high) / 2
        reached = max(np.maximum(p - np.exp(middle) * q, 0).sum(), np.maximum(q - np.exp(middle) * p, 0).sum())
        low, high = (middle, high) if reached > delta else (low, middle)
    return high


def randomised_response(tau: float) -> tuple[np.ndarray, np.ndarray]:
    """The pair of a bit that is told truly with odds e^tau."""
    true = np.exp(tau) / (1 + np.exp(tau))
    return np.array([true, 1 - true]), np.array([1 - true, true])
