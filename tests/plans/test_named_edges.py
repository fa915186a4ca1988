"""Requests at the edges that once ended in a crash, a refusal or no answer, though a plan exists."""

import warnings

import numpy as np
import pytest

import sartor
from sartor.accounting import epsilon, gaussian, noise_for, pld, rate_for, rdp, spend, steps_for
from sartor_testing.edge_requests import edge_request


@pytest.mark.parametrize("accountant", ["rdp", "pld"])
@pytest.mark.parametrize(("allowed", "delta"), [(0.0011479241491427943, 2.3412229545896525e-10), (2e-5, 1e-8)])
def test_a_tiny_budget_has_its_noise_by_both_accountants(accountant, allowed, delta):
    noise = noise_for(allowed, delta, rate=0.9, steps=4, accountant=accountant)
    assert np.isfinite(noise)
    assert 0.995 * allowed <= spend(0.9, noise, 4, delta, accountant)[0] <= allowed
    assert epsilon(sartor.SampledGaussian(0.9, noise, 4), delta, accountant).upper <= allowed * (1 + 1e-9)
    assert steps_for(allowed, delta, rate=0.9, noise_multiplier=noise, accountant=accountant) == 4


def test_orders_of_millions_waste_nothing_at_tiny_rates():
    """There the order is thousands of times the noise, beyond what the nodes of one integral cover."""
    noise = noise_for(4.93e-6, 1.17e-8, rate=4e-5, steps=390, accountant="rdp")
    assert 0.995 * 4.93e-6 <= spend(4e-5, noise, 390, 1.17e-8, "rdp")[0] <= 4.93e-6


def test_any_amount_of_noise_has_a_cost():
    """So much noise that all losses fit into one cell of the grid."""
    for noise in (1e6, 1e12, 1e100):
        assert 0 <= spend(0.9, noise, 4, 2.34e-10)[0] <= 1e-5


@pytest.mark.parametrize("accountant", ["rdp", "pld"])
@pytest.mark.parametrize("mix", [1e-6, 0.001])
def test_a_mix_near_zero_meets_the_mean_rate(mix, accountant):
    """The mean rate moves by a thousandth of what the noise does, so steps have to be as long as that asks."""
    people = sartor.Budgets.from_groups([(0.0113, 1_500), (0.0137, 1_000), (0.0777, 300), (1.0, 20), (2.56, 700), (10.3, 100)], delta=1e-10)
    plan = sartor.plan(people, "hybrid", steps=1, batch=0.9 * len(people), mix=mix, accountant=accountant)
    assert np.average(plan.rate, weights=plan.holders) == pytest.approx(0.9, rel=1e-3)
    assert np.all(plan.spent >= 0.995 * plan.epsilon)


def test_a_mean_rate_near_one_is_met_where_few_are_strict():
    """One strict holder among thousands: the mean rate hardly moves with the noise, and has to be followed all the same."""
    people = sartor.Budgets.from_groups([(0.02, 3), (3.0, 2_000), (9.0, 997)], delta=1e-6)
    for rate in (0.999, 0.9995, 1 - 1e-9):
        plan = sartor.plan(people, "sample", steps=116, batch=rate * len(people), accountant="rdp")
        assert np.average(plan.rate, weights=plan.holders) == pytest.approx(rate, rel=1e-3)
        assert np.all((plan.spent >= 0.995 * plan.epsilon) | plan.capped)


@pytest.mark.parametrize("mix", [0.9, 0.999, 1 - 1e-9])
def test_clips_take_up_what_rates_cannot_at_any_mix_below_one(mix):
    """A group that is drawn at every step spends its budget by its clip, however little of the difference goes into clips."""
    people = sartor.Budgets.from_groups([(0.1, 500), (1.0, 300), (30.0, 200)], delta=1e-5)
    plan = sartor.plan(people, "hybrid", steps=50, batch=0.5 * len(people), mix=mix, accountant="rdp")
    assert plan.rate[-1] == 1
    assert not plan.capped.any()
    assert np.all(plan.spent >= 0.995 * plan.epsilon)


@pytest.mark.long
def test_a_long_plan_near_sampling_takes_few_evaluations(monkeypatch):
    """Fourteen groups, 84,663 steps: what counts is how often the tight accountant is asked (260 times, when it began from anywhere)."""
    rng, asked = np.random.default_rng(8), []
    allowed = np.append(np.exp(rng.uniform(np.log(0.05), np.log(30), 13)), np.inf)
    people = sartor.Budgets.from_groups(list(zip(allowed, rng.integers(2, 3_000, 14), strict=True)), delta=1e-5, reserve=0.1)
    whole = pld.epsilon_bounds

    def counted(*arguments):
        asked.append(1)
        return whole(*arguments)

    monkeypatch.setattr(pld, "epsilon_bounds", counted)
    sartor.plan(people, "hybrid", steps=84_663, batch=0.00163 * len(people), mix=0.999, public_clip=1.73)
    assert len(asked) <= 200


@pytest.mark.long
def test_the_search_for_steps_in_turns_starts_from_what_it_knows(monkeypatch):
    """At a budget of 4e-5 the Rényi bound is ten times too high: the tight accountant walks away from it in doubling steps."""
    people, asked = sartor.Budgets.from_groups([(2.7e-5, 89), (4e-5, 80)], delta=2.8e-4), []
    whole = pld.epsilon_bounds

    def counted(*arguments):
        asked.append(1)
        return whole(*arguments)

    monkeypatch.setattr(pld, "epsilon_bounds", counted)
    plan = sartor.plan(people, "sequential", steps=1_000, batch=80, order="open-first")
    assert int((plan.last - plan.first).sum()) == 1_000
    assert len(asked) <= 150


def test_what_is_spent_does_not_jump_where_memory_ends():
    """A window that does not fit into memory is not needed where a smaller one has answered, nor is a coarser grid than one that fitted."""
    first, second = (spend(1.0274629936e-05, noise, 149_475, 1.81264515e-09)[0] for noise in (0.7034079658719999, 0.703407945951))
    assert first == pytest.approx(second, rel=1e-4)
    assert second <= 0.0938


def test_a_finer_grid_never_makes_a_figure_worse():
    """Nearly a Gaussian, at a delta near its total variation: a tilt so strong that epsilon is out of sight ended in Rényi's 3.2e-7."""
    steps, noise, delta = 132_660, 5e8, 2.70310186e-07
    exact = gaussian.epsilon_of(0.999 * np.sqrt(steps) / noise, np.array([delta]))[0]
    assert exact == pytest.approx(spend(0.999, noise, steps, delta)[0], rel=1e-3)
    full = gaussian.epsilon_of(np.sqrt(steps) / noise, np.array([delta]))[0]
    assert exact <= spend(0.999, noise, steps, delta)[0] <= full


@pytest.mark.parametrize("scheme", ["sample", "hybrid"])
def test_whom_nobody_draws_more_often_than_their_delta_needs_no_noise(scheme):
    """Two steps at a mean rate of 1e-4 use anybody with less than their delta: the mean rate is met without any noise, and said to be."""
    people = sartor.Budgets.from_groups([(0.001, 4_000), (0.002, 6_000)], delta=[6.5e-4, 1.5e-4])
    with pytest.warns(sartor.NoNoise):
        plan = sartor.plan(people, scheme, steps=2, batch=1.0, accountant="rdp")
    assert np.average(plan.rate, weights=plan.holders) == pytest.approx(1e-4)
    assert np.all(plan.spent == 0)


@pytest.mark.parametrize("accountant", ["rdp", "pld"])
@pytest.mark.parametrize(("allowed", "delta", "noise", "steps"), [(1e-3, 1e-3, 0.05, 10), (1e-2, 1e-5, 0.04, 100)])
def test_a_rate_that_rare_use_alone_allows_costs_nothing(accountant, allowed, delta, noise, steps):
    """So little noise shows whoever is used, so the rate is the one at which that is as rare as delta, and no higher."""
    rate = rate_for(allowed, delta, noise_multiplier=noise, steps=steps, accountant=accountant)
    assert rate == pytest.approx(-np.expm1(np.log1p(-delta) / steps), rel=1e-6)
    assert spend(rate, noise, steps, delta, accountant)[0] <= allowed


@pytest.mark.long
@pytest.mark.parametrize("number", [17, 1396])
def test_rare_use_with_little_noise_takes_few_evaluations(monkeypatch, number):
    """Rényi's bound is tens of times too high there: guesses are coarse, and what is exact begins near its end."""
    fine, whole = [], pld.epsilon_bounds

    def counted(exposure, delta, accuracy, *more):
        fine.append(accuracy <= pld.PLANNING_ACCURACY)
        return whole(exposure, delta, accuracy, *more)

    monkeypatch.setattr(pld, "epsilon_bounds", counted)
    asked = edge_request(number)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plan = asked.plan()
    assert np.all(plan.spent <= plan.epsilon * (1 - asked.budgets.reserve))
    assert sum(fine) <= 130  # of 360 and more


def test_orders_beyond_the_last_change_nothing_for_usual_budgets():
    found, order = rdp.epsilon_and_order(np.array([0.01]), np.array([1.0]), np.array([1000.0]), np.array([1e-5]))
    assert order[0] < rdp.ORDERS[-1]
    assert found[0] == 2.1013652716483997
