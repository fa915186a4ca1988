"""The tight accountant against dp_accounting on fine grids, closed forms, and brute force over exact outcomes."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sartor.accounting import Composition, Included, SampledGaussian, delta, epsilon, losses, pld, profile, spend
from sartor_testing import accounting_reference as reference
from sartor_testing.accounting_reference import exact_delta, exact_epsilon, gaussian_outcomes
from sartor_testing.amount import most_are_long

FIGURES = json.loads(reference.FILE.read_text())


def test_there_are_two_hundred_reference_figures_on_fine_grids():
    assert len(FIGURES) >= 200
    assert all(row["grid"] <= 1e-5 and row["high"] - row["low"] <= 1e-3 * row["high"] for row in FIGURES)


@pytest.mark.few(1)
@pytest.mark.parametrize("part", most_are_long(range(10), 2))
def test_dp_accounting_on_fine_grids_agrees_to_one_per_cent_and_nothing_is_understated(part):
    for row in FIGURES[part::10]:
        rate, noise, steps, chance = row["mechanism"]
        bounds = epsilon(SampledGaussian(rate, noise, steps), chance)
        planned = spend(rate, noise, steps, chance)[0]
        assert bounds.lower <= bounds.estimate <= bounds.upper <= planned * (1 + 1e-4)
        assert bounds.lower <= row["high"]
        for ours in (bounds.upper, planned):
            assert ours >= row["low"] * (1 - 1e-6)
            assert ours == pytest.approx(row["high"], rel=0.01)
        assert planned <= bounds.estimate * 1.005


@pytest.mark.few(1)
@pytest.mark.parametrize("row", FIGURES[10:14], ids=lambda row: str(row["mechanism"]))
def test_reference_figures_are_what_dp_accounting_says_today(row):
    """As far as Fourier transforms of two computers agree; 1e-9 of slack is for the search for epsilon."""
    found = reference.fine_epsilon(*row["mechanism"])
    assert found.grid == pytest.approx(row["grid"], rel=1e-9)
    assert found.rounding <= 1e-3 * found.high
    assert found.high == pytest.approx(row["high"], abs=found.rounding, rel=1e-9)
    assert found.low == pytest.approx(row["low"], abs=3 * found.rounding, rel=1e-9)  # twice `high` less the figure before


def test_figures_of_the_field_are_reproduced():
    assert epsilon(SampledGaussian(0.04, 2.2, 5000), 1e-5).upper == pytest.approx(6.3124, abs=1e-4)
    assert epsilon(SampledGaussian(0.1, 3.0, 512), 1e-6).upper == pytest.approx(3.77, abs=5e-3)


@pytest.mark.parametrize(("mu", "chance"), [(0.1, 1e-5), (1.0, 1e-9), (5.0, 1e-3), (12.0, 1e-12)])
def test_discretisation_agrees_with_the_closed_form_of_the_gaussian(mu, chance):
    """Forced through the grid by a second part that costs next to nothing."""
    exact = epsilon(SampledGaussian(1.0, 1 / mu, 1), chance)
    assert exact.lower == exact.upper
    through_grid = epsilon(Composition((SampledGaussian(1.0, 1 / mu, 1), SampledGaussian(1e-9, 50.0, 2))), chance)
    assert exact.upper <= through_grid.upper * (1 + 1e-9)
    assert through_grid.upper == pytest.approx(exact.upper, rel=2e-3)
    assert through_grid.lower <= exact.upper


def test_one_sampled_step_has_a_closed_form_in_both_directions():
    """Against brute force over fine bins of the output."""
    for rate, mu in [(0.1, 1.0), (0.01, 2.5), (0.9, 0.7)]:
        p, q = gaussian_outcomes(mu, 400_001)
        mixture = (1 - rate) * q + rate * p
        for eps in (0.0, 0.05, 0.5):
            remove = np.sum(np.maximum(mixture - np.exp(eps) * q, 0))
            add = np.sum(np.maximum(q - np.exp(eps) * mixture, 0))
            assert delta(SampledGaussian(rate, 1 / mu, 1), eps).upper == pytest.approx(max(remove, add), rel=1e-4, abs=1e-9)


def included_twice(mu: float, probability: float, rounds: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Losses and masses of rounds of one included Gaussian, by enumerating outcomes of rounds."""
    p, q = gaussian_outcomes(mu, 1501)
    mixture = (1 - probability) * q + probability * p
    one = np.log(mixture / np.maximum(q, 1e-300))
    loss, with_it, without = one, mixture, q
    for _ in range(rounds - 1):
        loss, with_it, without = (
            np.add.outer(loss, one).ravel(),
            np.multiply.outer(with_it, mixture).ravel(),
            np.multiply.outer(without, q).ravel(),
        )
    return {"remove": (loss, with_it), "add": (-loss, without)}


@pytest.mark.few(2)
@pytest.mark.parametrize(("mu", "probability", "rounds"), [(1.5, 0.4, 1), (1.5, 0.4, 2), (3.0, 0.1, 2), (0.5, 0.8, 2)])
def test_inclusion_equals_brute_force_in_both_directions(mu, probability, rounds):
    truth = included_twice(mu, probability, rounds)
    exposure = Composition((Included(probability, SampledGaussian(1.0, 1 / mu, 1)),) * rounds)
    for chance in (1e-3, 1e-5):
        expected = {way: exact_epsilon(*outcome, chance) for way, outcome in truth.items()}
        found = pld._evaluate(pld._atoms(exposure), chance, (1.0, 5.0), pld.REPORTING_ACCURACY)
        for way, composed in (("remove", found.remove), ("add", found.add)):
            ours = max(composed.epsilon(np.array([chance]))[0], 0)
            assert expected[way] * (1 - 1e-3) - 2e-3 <= ours <= expected[way] * 1.005 + 6e-3
        bounds = epsilon(exposure, chance)
        assert bounds.lower <= max(expected.values()) <= bounds.upper * (1 + 2e-3)
    curve = pld.Profile(exposure).delta(np.array([0.1, 0.5, 1.0]))
    for way, outcome in truth.items():
        np.testing.assert_allclose(curve[way], [exact_delta(*outcome, e) for e in (0.1, 0.5, 1.0)], rtol=1e-2, atol=1e-5)


def test_the_two_directions_of_inclusion_differ_and_both_count():
    """A dropped direction, or one direction's formula in both, would show here."""
    pair = losses.include(losses.sampled_step(1.0, 0.5, 1e-3, -60.0), 0.3)
    ways = {way: losses.compose([(getattr(pair, way), 1)], 1e-3, 0.0, -60.0).delta(np.array([0.3])) for way in ("remove", "add")}
    p, q = gaussian_outcomes(2.0, 200_001)
    mixture = 0.7 * q + 0.3 * p
    assert ways["remove"] == pytest.approx(np.sum(np.maximum(mixture - np.exp(0.3) * q, 0)), rel=1e-3)
    assert ways["add"] == pytest.approx(np.sum(np.maximum(q - np.exp(0.3) * mixture, 0)), rel=1e-3)
    assert ways["remove"] > 2 * ways["add"]


def test_a_round_that_was_missed_is_not_free():
    """The mistake in personalised sampling by rounds: with tau 0.8 and epsilon 0.5, ten rounds cost nearly tau, not epsilon."""
    tau, eps = 0.8, 0.5
    probability = np.expm1(eps) / np.expm1(tau)
    assert np.log1p(probability * np.expm1(tau)) == pytest.approx(eps)
    mu = 0.3
    inner = SampledGaussian(1.0, 1 / mu, 1)
    one = epsilon(Included(probability, inner), 1e-5).upper
    ten = epsilon(Composition((Included(probability, inner),) * 10), 1e-5).upper
    assert one < epsilon(inner, 1e-5).upper
    assert ten > 2.5 * one


def test_inclusion_with_certainty_is_the_exposure_itself_and_with_none_is_nothing():
    inner = SampledGaussian(0.1, 1.0, 50)
    assert epsilon(Included(1.0, inner), 1e-5) == epsilon(inner, 1e-5)
    assert epsilon(Included(0.0, inner), 1e-5).upper == 0
    assert epsilon(Composition(()), 1e-5).upper == 0


def test_inclusion_lies_below_the_amplification_bound():
    inner = SampledGaussian(0.1, 1.0, 50)
    for p in (0.05, 0.5):
        whole = epsilon(inner, 1e-5).upper
        assert epsilon(Included(p, inner), p * 1e-5).upper <= np.log1p(p * np.expm1(whole)) * 1.003


def test_compositions_equal_their_parts_in_one():
    split = Composition((SampledGaussian(0.01, 1.2, 600), SampledGaussian(0.01, 1.2, 400)))
    assert epsilon(split, 1e-5) == epsilon(SampledGaussian(0.01, 1.2, 1000), 1e-5)


@settings(deadline=None, max_examples=40)
@given(
    st.floats(-3, -0.1).map(lambda x: 10**x),
    st.floats(0.6, 20.0),
    st.integers(2, 20_000),
    st.floats(-8, -3).map(lambda x: 10**x),
    st.floats(1.02, 3.0),
)
def test_more_noise_fewer_steps_and_lower_rates_cost_less(rate, noise, steps, chance, factor):
    base = spend(rate, noise, steps, chance)[0]
    slack = 1 + 5e-4  # what discretisation may differ by
    assert spend(rate, noise * factor, steps, chance)[0] <= base * slack
    assert spend(rate / factor, noise, steps, chance)[0] <= base * slack
    assert spend(rate, noise, max(1, int(steps / factor)), chance)[0] <= base * slack
    assert spend(rate, noise, steps, min(0.5, chance * factor))[0] <= base * slack


@settings(deadline=None, max_examples=40)
@given(st.floats(-5, 0).map(lambda x: 10**x), st.floats(0.3, 50.0), st.integers(1, 100_000), st.floats(-9, -3).map(lambda x: 10**x))
def test_the_tight_figure_is_never_above_the_renyi_bound(rate, noise, steps, chance):
    bounds = epsilon(SampledGaussian(rate, noise, steps), chance)
    assert 0 <= bounds.lower <= bounds.estimate <= bounds.upper
    assert bounds.upper <= epsilon(SampledGaussian(rate, noise, steps), chance, "rdp").upper * (1 + 1e-12)


def test_delta_and_epsilon_are_inverse():
    for exposure in (SampledGaussian(0.02, 1.3, 1000), Included(0.3, SampledGaussian(0.05, 1.0, 200)), SampledGaussian(1.0, 5.0, 10)):
        eps = epsilon(exposure, 1e-6).upper
        assert delta(exposure, eps).upper == pytest.approx(1e-6, rel=5e-3)


def test_the_profile_is_convex_falls_and_passes_through_epsilon():
    exposure = SampledGaussian(0.02, 1.3, 1000)
    grid = np.linspace(0, 4, 300)
    curve = profile(exposure, grid)
    assert np.all(np.diff(curve) <= 1e-12)
    slope = np.diff(curve) / np.diff(np.exp(grid))
    assert np.all(np.diff(slope) >= -1e-6)
    eps = epsilon(exposure, 1e-4).upper
    assert profile(exposure, eps)[0] == pytest.approx(1e-4, rel=1e-2)


def test_whoever_is_used_more_rarely_than_delta_spends_nothing():
    assert epsilon(SampledGaussian(1e-9, 0.5, 100), 1e-5) == (0, 0, 0)
    assert epsilon(SampledGaussian(0.5, float("inf"), 100), 1e-5).upper == 0
    assert epsilon(SampledGaussian(0.5, 0.0, 1), 1e-5).upper == np.inf


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("exposure", "chance"),
    [
        (SampledGaussian(0.001, 0.25, 3000), 1e-5),
        (SampledGaussian(2.4e-8, 0.3076, 3), 1.5e-10),
        (SampledGaussian(0.5, 0.02, 2), 1e-5),
        (SampledGaussian(0.1, 1e-4, 100), 1e-5),
        (Composition((SampledGaussian(1, 0.05, 10), SampledGaussian(0.01, 1.0, 10))), 1e-5),
        (Included(0.5, SampledGaussian(1.0, 10.0, 90_000)), 1e-12),
        (SampledGaussian(0.9, 0.4, 100_000), 1e-5),
        (SampledGaussian(1e-6, 0.4, 10**9), 1e-5),
    ],
)
def test_harsh_mechanisms_end_in_a_bound_and_not_in_a_crash(exposure, chance):
    bounds = epsilon(exposure, chance)
    assert 0 <= bounds.lower <= bounds.estimate <= bounds.upper
    assert np.isfinite(bounds.upper)


def test_losses_beyond_the_range_of_floats_are_not_understated():
    """Two steps cost at least what one costs, also where e^loss overflows."""
    assert epsilon(SampledGaussian(0.5, 0.02, 2), 1e-5).upper > epsilon(SampledGaussian(0.5, 0.02, 1), 1e-5).upper


def test_rare_inclusion_has_a_true_lower_bound():
    """Where the tilted mass beyond the window wrapped around, a lower bound once exceeded the truth."""
    bounds = epsilon(SampledGaussian(2.3993249997999525e-08, 0.3076039739049479, 3), 1.503904333170541e-10)
    assert bounds.lower <= 0.02538 <= bounds.upper * 1.001
    assert bounds.upper <= 0.0256


def test_removing_is_the_worse_direction_of_the_sampled_gaussian():
    """So an accountant that forgot adding would understate nothing, and one that forgot removing would."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pld._Evaluation, "epsilon", lambda self, delta: np.maximum(self.remove.epsilon(delta), 0.0))
        alone = pld.epsilon_of_each(*(np.array([value]) for value in (0.04, 2.2, 5_000.0, 1e-5)), pld.PLANNING_ACCURACY)
    assert alone[0] >= 6.3124 * (1 - 1e-4)
