"""No probability is lost on the way to a figure: what is cut off counts as lost entirely, and the worse direction counts, whichever it is.

The exact figures here come from the normal distribution alone, so that nothing is compared with itself.
"""

import dataclasses

import numpy as np
import pytest
from scipy.stats import norm

from sartor.accounting import (
    Composition,
    Included,
    SampledGaussian,
    SampledRecords,
    delta,
    epsilon,
    losses,
    pld,
    profile,
    records,
    spend,
    spending,
)

GRID = 1e-3
ALL = -60.0  # logarithm of a tail that nobody misses
ROUNDING = 1 - 1e-9
WAYS = ("remove", "add")


def exact(way: str, rate: float, mu: float, eps: np.ndarray) -> np.ndarray:
    """The divergence of one step at `rate`, whose output moves by `mu` deviations, in one direction, from where the loss exceeds eps."""
    ratio = (np.exp(eps if way == "remove" else -eps) - 1 + rate) / rate
    at = np.log(np.maximum(ratio, 1e-300)) / mu + mu / 2
    if way == "remove":
        return (1 - rate - np.exp(eps)) * norm.sf(at) + rate * norm.sf(at - mu)
    found = norm.cdf(at) - np.exp(eps) * ((1 - rate) * norm.cdf(at) + rate * norm.cdf(at - mu))
    return np.where(ratio > 0, found, 0.0)


def reach(way: str, rate: float, mu: float, chance: float) -> np.ndarray:
    """Epsilons from 0 to where the exact divergence has fallen to about this."""
    grid = np.linspace(0, 40, 4001)
    return grid[exact(way, rate, mu, grid) >= chance][::40]


STEPS = [(1.0, 1.0), (1.0, 3.0), (0.3, 2.0), (0.9, 0.7), (0.05, 4.0)]


@pytest.mark.parametrize("tail", [1e-2, 1e-4])
@pytest.mark.parametrize(("rate", "mu"), STEPS)
def test_losses_cut_off_from_a_step_count_as_infinite(rate, mu, tail):
    pair = losses.sampled_step(rate, 1 / mu, GRID, np.log(tail))
    for way in WAYS:
        eps = reach(way, rate, mu, tail / 100)
        truth = exact(way, rate, mu, eps)
        for tilt in (0.0, 1.0):
            composed = losses.compose([(getattr(pair, way), 1)], GRID, tilt, ALL)
            assert np.all(composed.delta(eps) >= truth * ROUNDING)
            # where the divergence is below what was cut off, no finite epsilon can be promised
            if composed.lost > truth[-1]:
                assert np.all(composed.epsilon(truth[-1:] / 2) == np.inf)


def test_losses_far_out_keep_their_mass():
    """Below 1e-16, where one less the rest is nothing; many steps reach a tiny delta by just these losses."""
    rate, mu = 1e-4, 1 / 0.6
    pair = losses.sampled_step(rate, 1 / mu, GRID, ALL)
    loss = (pair.remove.offset + np.arange(len(pair.remove.mass))) * GRID
    above = np.cumsum(pair.remove.mass[::-1])[::-1] + pair.remove.infinite
    at = np.log((np.expm1(loss[loss > 0]) + rate) / rate) / mu + mu / 2
    truth = (1 - rate) * norm.sf(at) + rate * norm.sf(at - mu)
    assert truth.min() < 1e-20
    assert np.all(above[loss > 0] >= truth * ROUNDING)


@pytest.mark.parametrize("tail", [1e-2, 1e-4])
@pytest.mark.parametrize("tilt", [0.0, 1.0])
def test_losses_beyond_the_window_of_a_composition_count_as_infinite(tail, tilt):
    """Thirty full steps are one of a ratio larger by the root of thirty, in either direction."""
    mu, steps = 0.3, 30
    pair = losses.sampled_step(1.0, 1 / mu, GRID, ALL)
    whole = mu * np.sqrt(steps)
    eps = reach("remove", 1.0, whole, tail / 1000)
    for way in WAYS:
        composed = losses.compose([(getattr(pair, way), steps)], GRID, tilt, np.log(tail))
        assert np.all(composed.delta(eps) >= exact("remove", 1.0, whole, eps) * ROUNDING)


@pytest.mark.parametrize("tail", [1e-2, 1e-4])
@pytest.mark.parametrize(("probability", "mu", "steps"), [(0.3, 2.0, 1), (0.7, 0.5, 9), (0.97, 1.0, 2)])
def test_what_was_cut_off_inside_an_inclusion_stays_cut_off(probability, mu, steps, tail):
    """Included full steps are one step at the probability as rate; the steps of a round are composed inside of it."""
    inner = Composition((SampledGaussian(1.0, 1 / mu, steps), SampledGaussian(1e-12, 50.0, 1)))
    pair = pld._pair(Included(probability, inner), GRID, np.log(tail), 0.0, losses.MOST_POINTS)
    whole = mu * np.sqrt(steps)
    for way in WAYS:
        eps = reach(way, probability, whole, probability * tail / 100)
        composed = losses.compose([(getattr(pair, way), 1)], GRID, 0.0, ALL)
        assert np.all(composed.delta(eps) >= exact(way, probability, whole, eps) * ROUNDING)


@pytest.mark.parametrize("probability", [1.0, 0.3])
@pytest.mark.parametrize("mu", [1.0, 3.0])
def test_a_profile_is_an_upper_bound_however_far_out_it_is_asked(probability, mu):
    """Far beyond where it was computed for, a profile levels off above the truth; it never says that nothing is left."""
    step = SampledGaussian(1.0, 1 / mu, 1)
    exposure = Composition((step, SampledGaussian(1e-12, 50.0, 2))) if probability == 1 else Included(probability, step)
    eps = reach("remove", probability, mu, 1e-25)
    assert len(eps) > 10
    assert np.all(profile(exposure, eps) >= exact("remove", probability, mu, eps) * ROUNDING)


def turned(pair: losses.Pair) -> losses.Pair:
    return dataclasses.replace(pair, remove=pair.add, add=pair.remove)


@pytest.mark.parametrize(
    "exposure",
    [
        SampledGaussian(0.04, 2.2, 500),
        SampledGaussian(0.5, 3.0, 20),
        SampledRecords(5, 0.02, 2.0, 300),
        Composition((Included(0.4, SampledGaussian(1.0, 0.7, 1)),) * 3),
        Composition((Included(0.9, SampledGaussian(1.0, 1.5, 2)),) * 4),
    ],
    ids=["sampled", "often sampled", "several records", "included", "often included"],
)
def test_the_worse_direction_counts_whichever_of_the_two_it_is(monkeypatch, exposure):
    """For these mechanisms it is removing, as far as is known; nothing may rest on that.

    So the directions are exchanged, under which every figure must stay what it was. A full step is the same in both directions, so of an
    included one only the inclusion is turned.
    """

    def figures():
        spending._memory.clear()
        found = [epsilon(exposure, 1e-5).upper, epsilon(exposure, 1e-2).upper, delta(exposure, 0.8).upper, *profile(exposure, [0.1, 0.8])]
        if isinstance(exposure, SampledGaussian):
            found += spend(exposure.rate, exposure.noise_multiplier, exposure.steps, 1e-5).tolist()
        return np.array(found)

    right = figures()
    for room, name in ((losses, "sampled_step"), (losses, "include"), (records, "records_step")):
        made = getattr(room, name)
        monkeypatch.setattr(room, name, lambda *given, made=made: turned(made(*given)))
    worse = pld._evaluate(pld._atoms(exposure), 1e-5, pld._start(exposure, 1e-5), pld.PLANNING_ACCURACY)
    assert worse.add.epsilon(np.array([1e-5])) > 1.02 * worse.remove.epsilon(np.array([1e-5]))  # or the test would show nothing
    np.testing.assert_allclose(figures(), right, rtol=1e-3)
    spending._memory.clear()
