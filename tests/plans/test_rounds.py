"""Rounds: nobody spends more than their budget, whatever their coins; spreads and thresholds are what their formulas say."""

import json
import warnings

import numpy as np
import pytest

import sartor
from sartor.accounting import Composition, Included, SampledGaussian
from sartor.plans import Plan
from sartor.plans.rounds import chosen, weights
from sartor.plans.thresholds import best, loss, wastes
from sartor_testing import rounds_reference as reference
from sartor_testing.amount import most_are_long

BUDGETS = sartor.Budgets.from_groups([(0.5, 600), (0.8, 400), (1.0, 1_000)], delta=1e-5)
MANY = sartor.Budgets.from_shares(np.linspace(0.5, 1.0, 20), [1 / 20] * 20, holders=60_000, delta=1e-5, seed=1)


def made(spread="onion", budgets=BUDGETS, steps=300, **others) -> Plan:
    return sartor.plan(budgets, "rounds", steps=steps, batch=100, spread=spread, **{"rounds": 3, **others})


def signal(plan: Plan) -> float:
    drawn = [float(plan.holders[stage.groups] @ (stage.inclusion * stage.rate)) for stage in plan.stages]
    return sum(stage.steps * (size / stage.noise_multiplier) ** 2 for stage, size in zip(plan.stages, drawn, strict=True))


CASES = {
    "onion": {"spread": "onion", "rounds": 3},
    "onion, adaptive": {"spread": "onion", "threshold": "adaptive"},
    "even": {"spread": "even", "rounds": 4},
    "even, given": {"spread": "even", "rounds": None, "threshold": [0.9, 0.6]},
    "onion, given": {"spread": "onion", "rounds": None, "threshold": [0.6, 0.9, 1.0]},
    "search": {"spread": "search", "rounds": 3},
}


@pytest.mark.parametrize("name", most_are_long(CASES, 3))
def test_no_group_exceeds_its_budget_by_another_libraries_losses(name):
    plan = made(**CASES[name])
    assert np.all(plan.spent <= plan.epsilon)
    for group in range(len(plan)):
        theirs = reference.epsilon_of(plan.exposure(group), 1e-5)
        assert theirs <= plan.epsilon[group] * 1.002  # their grid's rounding
        assert plan.spent[group] == pytest.approx(theirs, rel=0.005)


@pytest.mark.parametrize("spread", ["onion", "even"])
def test_whoever_tosses_a_coin_spends_their_budget_and_the_batch_is_the_one_asked_for(spread):
    plan = made(spread)
    tossed = np.zeros(len(plan), bool)
    for stage in plan.stages:
        tossed[stage.groups] |= stage.inclusion < 1
        assert float(plan.holders[stage.groups] @ (stage.inclusion * stage.rate)) == pytest.approx(100, rel=0.005)
        assert len(set(stage.rate.tolist())) == 1
    assert tossed.any()
    assert np.all(plan.spent[tossed] >= 0.994 * plan.epsilon[tossed])
    assert plan.steps == 300


def test_an_onion_spends_in_each_round_the_part_of_a_budget_between_two_thresholds():
    plan = made(threshold=[0.6, 0.9, 1.0], rounds=None)
    thresholds, ends = np.array([0.6, 0.9, 1.0]), np.cumsum([stage.steps for stage in plan.stages])
    for tau, steps in zip(thresholds, ends.tolist(), strict=True):
        spent = plan.spent_after(steps)
        np.testing.assert_array_less(spent, np.minimum(plan.epsilon, tau) + 1e-12)
        np.testing.assert_allclose(spent, np.minimum(plan.epsilon, tau), rtol=0.006)
    assert [stage.groups.tolist() for stage in plan.stages] == [[0, 1, 2], [1, 2], [2]]
    assert [stage.inclusion.tolist()[1:] for stage in plan.stages] == [[1, 1], [1], []]


def test_even_rounds_are_alike_and_each_is_a_third_of_every_budget():
    plan = made("even")
    assert all(stage == plan.stages[0] for stage in plan.stages)
    first = plan.exposure(0, plan.stages[0].steps)
    assert isinstance(first, Included)
    assert plan.exposure(0) == Composition((first,) * 3)


def test_one_round_is_the_baseline_of_jorgensen():
    one = sartor.plan(BUDGETS, "jorgensen", steps=300, batch=100)
    assert one.stages == made(rounds=1).stages
    (tau,) = one.options["thresholds"]
    assert one.spent[2] == pytest.approx(tau, rel=0.005)
    # in one round a pure mechanism would be given (e^eps - 1) / (e^tau - 1); here the losses allow a little more or less
    assert one.stages[0].inclusion[0] == pytest.approx(np.expm1(0.5) / np.expm1(tau), rel=0.25)


@pytest.mark.long
def test_the_search_finds_no_less_signal_than_any_schedule_that_was_tried():
    found = signal(made("search"))
    for spread, threshold in [
        ("onion", "fixed:0.7"),
        ("onion", "adaptive"),
        ("even", "adaptive"),
        ("even", [1.0] * 3),
        ("even", [0.7] * 3),
    ]:
        assert signal(made(spread, threshold=threshold)) <= found * 1.003
    assert signal(made("onion", rounds=None, threshold=[0.5, 0.8, 1.0])) <= found * 1.003


@pytest.mark.long
def test_the_search_is_not_misled_by_budgets_far_apart():
    wide = sartor.Budgets.from_groups([(0.05, 100), (1.0, 1_000), (8.0, 1_000)], delta=1e-5)
    found, even = (made(spread, budgets=wide, steps=200, **more) for spread, more in (("search", {}), ("even", {"threshold": [8.0] * 3})))
    assert signal(even) <= signal(found) * 1.003


@pytest.mark.parametrize("accountant", ["rdp", "pld"])
def test_plans_hold_by_the_accountant_that_made_them_with_deltas_public_records_and_a_reserve(accountant):
    epsilon, delta = [0.5] * 50 + [2.0] * 50 + [np.inf] * 20, [1e-5] * 25 + [1e-4] * 75 + [1e-5] * 20
    budgets = sartor.Budgets(epsilon, delta=delta, reserve=0.1)
    for more in ({}, {"public_rate": 0.5, "public_clip": 2.0}):
        plan = sartor.plan(budgets, "rounds", steps=40, batch=20, rounds=2, spread="even", accountant=accountant, **more)
        finite = np.isfinite(plan.epsilon)
        assert np.all(plan.spent[finite] <= 0.9 * plan.epsilon[finite])
        assert Plan.from_json(json.loads(json.dumps(plan.record()))) == plan


@pytest.mark.parametrize("options", [{}, {"spread": "even"}])
def test_rates_and_coins_of_the_papers_setting_settle_by_renyis_accountant(options):
    plan = sartor.plan(MANY, "adapdp", steps=9_375, batch=64, accountant="rdp", **options)
    used = plan.expected_uses >= 1
    assert used[3:].all()  # a coin before many steps saves little there: the strictest are hardly ever in
    assert np.all(plan.spent[used] >= 0.9 * plan.epsilon[used])
    for stage in plan.stages:
        assert float(plan.holders[stage.groups] @ (stage.inclusion * stage.rate)) == pytest.approx(64, rel=0.01)


def test_weights_follow_thresholds_and_expected_sizes():
    plan = sartor.plan(BUDGETS, "adapdp", steps=300, batch=100, threshold=[0.6, 1.0])
    sizes = [float(plan.holders[stage.groups] @ stage.inclusion) for stage in plan.stages]
    expected = np.array([0.6, 1.0]) * sizes
    np.testing.assert_allclose(weights(plan), expected / expected.sum())
    with pytest.raises(sartor.SartorError, match="no rounds"):
        weights(sartor.plan(BUDGETS, steps=3, batch=10, accountant="rdp"))


def test_plans_of_rounds_know_nothing_of_who_is_who():
    shuffled = sartor.Budgets(np.random.default_rng(0).permutation(BUDGETS.epsilon), delta=1e-5)
    assert made(budgets=shuffled) == made()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"spread": "thin"}, "a spread is"),
        ({"rounds": 0}, "whole number"),
        ({"rounds": 2.5}, "whole number"),
        ({"rounds": 9, "steps": 8}, "every round needs one"),
        ({"threshold": "fixed:2"}, "fixed:W"),
        ({"threshold": "largest"}, "fixed:W"),
        ({"threshold": [0.5, 0.6]}, "3 rounds cannot have 2 thresholds"),
        ({"threshold": [0.9, 0.6, 1.0]}, "ascend"),
        ({"threshold": [0.9, 1.0, 1.2]}, "below the most open"),
        ({"threshold": [0.5, -0.6, 1.0]}, "positive"),
        ({"spread": "search", "threshold": "adaptive"}, "its own thresholds"),
        ({"filter": "ladder", "refresh": 10, "full_steps": 100}, "coins"),
    ],
)
def test_what_makes_no_sense_is_refused(options, reason):
    with pytest.raises(sartor.SartorError, match=reason):
        made(**options)


# --- thresholds ---


def test_wastes_are_those_of_equation_6():
    epsilon, weight = np.array([0.5, 0.8, 1.0]), np.array([3.0, 2.0, 1.0])
    unused, above = wastes(epsilon, weight, np.array([0.9]))
    pi = np.expm1(epsilon[:2]) / np.expm1(0.9)
    assert unused[0] == pytest.approx(3 * 0.5 * (1 - pi[0]) + 2 * 0.8 * (1 - pi[1]))
    assert above[0] == pytest.approx(0.1)
    assert loss(epsilon, weight, np.array([0.9]), "fixed:0.7")[0] == pytest.approx(0.7 * unused[0] + 0.3 * 0.1)
    assert loss(epsilon, weight, np.array([0.9]), "adaptive")[0] == pytest.approx((unused[0] ** 2 + 0.01) / (unused[0] + 0.1))


def test_the_adaptive_loss_has_its_least_inside_and_the_fixed_one_moves_with_its_weight():
    epsilon, weight = np.linspace(0.5, 1.0, 20), np.ones(20)
    assert best(epsilon, weight, "adaptive") == pytest.approx(0.75, abs=0.02)
    found = [best(epsilon, weight, f"fixed:{share}") for share in (0.0, 0.2, 0.5, 0.7, 1.0)]
    assert found == sorted(found, reverse=True)
    assert (found[0], found[-1]) == (1.0, 0.5)


def test_thresholds_of_an_onion_ascend_and_look_at_what_is_left():
    epsilon, weight = np.linspace(0.5, 1.0, 20), np.ones(20)
    found = chosen(epsilon, weight, 10, "adaptive", onion=True)
    assert list(found) == sorted(set(found))
    assert found[0] == best(epsilon, weight, "adaptive")
    left = epsilon[epsilon > found[0]] - found[0]
    assert found[1] == pytest.approx(found[0] + best(left, np.ones(len(left)), "adaptive"), abs=1e-3)
    assert set(chosen(epsilon, weight, 4, "adaptive", onion=False)) == {found[0]}


@pytest.mark.parametrize("rule", ["fixed:0.0", "fixed:0.7", "fixed:1.0", "adaptive"])
def test_thresholds_by_a_rule_have_three_digits_whatever_budgets_have(rule):
    """The least and the largest budget are where losses are least, and may be one person's each."""
    epsilon, weight = np.array([0.512345678, 0.7, 0.937654321]), np.array([1.0, 50.0, 1.0])
    assert f"{best(epsilon, weight, rule):.3g}" == str(best(epsilon, weight, rule))
    found = chosen(epsilon, weight, 4, rule, onion=True)
    assert [f"{tau:.3g}" for tau in found] == [str(tau) for tau in found]
    assert not set(found) & {0.512345678, 0.937654321}


# --- sizes ---


@pytest.mark.long
@pytest.mark.parametrize("spread", ["onion", "even", "search"])
def test_twenty_groups_and_sixty_thousand_budgets_in_ten_rounds(spread):
    for budgets in (MANY, sartor.Budgets(np.random.default_rng(0).uniform(0.5, 1.0, 60_000), delta=1e-5)):
        plan = sartor.plan(budgets, "rounds", steps=4_000, batch=64, rounds=10, spread=spread)
        assert np.all(plan.spent <= plan.epsilon)
        assert plan.steps == 4_000


def test_more_budgets_than_levels_share_them_and_waste_little():
    budgets = sartor.Budgets(np.linspace(0.5, 1.0, 300), delta=1e-4)
    plan = sartor.plan(budgets, "rounds", steps=20, batch=30, rounds=2, spread="even", threshold=[1.0, 1.0])
    assert len({tuple(stage.inclusion.tolist()) for stage in plan.stages}) == 1
    assert len(np.unique(plan.stages[0].inclusion)) <= 128
    assert np.all(plan.spent <= plan.epsilon)
    assert np.all(plan.spent >= 0.985 * plan.epsilon)


def test_a_sampled_step_inside_is_what_the_exposure_says():
    plan = made("even")
    inner = plan.exposure(0).parts[0].exposure
    assert isinstance(inner, SampledGaussian)
    assert (inner.rate, inner.noise_multiplier, inner.steps) == (plan.stages[0].rate[0], plan.stages[0].noise_multiplier, 100)


def test_a_shown_plan_whose_groups_sit_rounds_out_is_read_back():
    plan = made(threshold=[0.6, 0.9, 1.0], rounds=None)
    assert any(len(stage.groups) < len(plan) for stage in plan.stages)
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan
    shorter = json.loads(json.dumps(plan.to_json()))
    shorter["stages"][0]["inclusion"] = [1.0]
    with pytest.raises(sartor.SartorError, match="for each of its groups"):
        Plan.from_json(shorter)


@pytest.mark.parametrize("scheme", ["rounds", "adapdp"])
def test_neither_thresholds_nor_weights_tell_what_one_person_allows(scheme):
    budgets = sartor.Budgets([0.5] * 1_000 + [0.937], delta=1e-5)
    plan = sartor.plan(budgets, scheme, steps=50, batch=100, rounds=3)
    assert plan.options["thresholds"][-1] == 0.937
    assert "0.937" not in str(plan) + json.dumps(plan.to_json())
    taus = np.array(plan.options["thresholds"])
    sizes = weights(plan) / taus
    assert sizes[-1] / sizes[0] == pytest.approx(0.01)  # ten of a thousand, where there is one


@pytest.mark.long
def test_rounds_of_an_onion_have_about_the_same_noise():
    plan = sartor.plan(MANY, "rounds", steps=3_000, batch=64, rounds=10)
    noise = np.array([stage.noise_multiplier for stage in plan.stages])
    steps = np.array([stage.steps for stage in plan.stages])
    assert np.all(noise[steps > 20] < 1.1 * noise[0])
    assert noise.max() < 2 * noise[0]


def test_thresholds_that_leave_much_unspent_are_warned_of():
    for scheme, options in (("jorgensen", {"threshold": 0.6}), ("rounds", {"threshold": [0.55, 0.6]})):
        with pytest.warns(sartor.Unspent, match="more than a tenth"):
            sartor.plan(BUDGETS, scheme, steps=4, batch=20, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error", sartor.Unspent)
        sartor.plan(BUDGETS, "jorgensen", steps=4, batch=20, threshold=1.0)


def test_one_step_is_one_step():
    assert "1 step," in str(sartor.plan(BUDGETS, "uniform", steps=1, batch=20, accountant="rdp"))


@pytest.mark.long
def test_budgets_that_no_grid_serves_are_infeasible():
    budgets = sartor.Budgets.from_groups([(1e-3, 5_000), (1.0, 5_000)], delta=1e-5)
    with pytest.raises(sartor.Infeasible, match="too small, or too far apart"):
        sartor.plan(budgets, "rounds", steps=100, batch=256, spread="search", rounds=3)


def test_options_are_plain_numbers():
    plan = made("even", rounds=np.int64(2), threshold=np.array([1.0, 1.0]))
    assert Plan.from_json(json.loads(json.dumps(plan.record()))) == plan
    for wrong in (object(), 1j, b"adaptive", [], {0.6, 1.0}):
        with pytest.raises(sartor.SartorError, match="a threshold is"):
            made("even", threshold=wrong)
