"""What each scheme promises."""

import dataclasses
import itertools
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sartor
from sartor.accounting import SampledGaussian, epsilon, noise_for, pld
from sartor.plans import excess
from sartor.plans.excess import divergence
from sartor_testing.plans import changed

SETTING = {"steps": 500, "batch": 100, "accountant": "rdp"}


def three(holders=3_000, **more):
    return sartor.Budgets.from_shares([1, 2, 4], [0.5, 0.3, 0.2], holders=holders, delta=1e-5, seed=0, **more)


@pytest.mark.parametrize("scheme", ["uniform", "sample", "scale", "hybrid", "sequential"])
@settings(deadline=None, max_examples=8)
@given(st.permutations(range(60)))
def test_parameters_follow_their_budgets_whatever_the_order_of_holders(scheme, order):
    """A rate bound to the wrong group, or by sorted position, would show here."""
    eps = np.repeat([4.0, 1.0, 2.0, 0.7], 15)
    plan = sartor.plan(sartor.Budgets(eps, delta=1e-5), scheme, steps=50, batch=12, accountant="rdp")
    shuffled = sartor.Budgets(eps[list(order)], delta=1e-5)
    again = sartor.plan(shuffled, scheme, steps=50, batch=12, accountant="rdp")
    assert again == plan
    place = plan.groups_of(shuffled)
    assert np.array_equal(plan.epsilon[place], shuffled.epsilon)
    if scheme == "sample":
        assert np.all(np.diff(plan.rate) > 0)
    if scheme == "scale":
        assert np.all(np.diff(plan.clips) > 0)


def test_each_group_spends_what_an_accountant_says_of_its_own_parameters():
    """Swapping two groups' rates must overspend the stricter one and be refused."""
    plan = sartor.plan(three(), "sample", **SETTING)
    for i in range(3):
        own = epsilon(SampledGaussian(float(plan.rate[i]), plan.noise_multiplier, 500), 1e-5, "rdp").upper
        assert own == pytest.approx(plan.spent[i], rel=1e-9)
    with pytest.raises(sartor.Overspent, match="epsilon 1 would spend"):
        changed(plan, rate=plan.rate[[1, 0, 2]])


@pytest.mark.parametrize(
    "change",
    [
        lambda plan: {"noise_multiplier": plan.noise_multiplier * 0.98},
        lambda plan: {"clips": plan.clips * 1.02},
        lambda plan: {"rate": plan.rate * 1.02},
        lambda plan: {"steps": plan.steps + 30},
    ],
    ids=["noise", "clip", "rate", "steps"],
)
@pytest.mark.parametrize("scheme", ["sample", "scale", "hybrid"])
@pytest.mark.parametrize("accountant", ["rdp", "pld"])
def test_a_plan_with_two_per_cent_less_protection_cannot_be_made(change, scheme, accountant):
    plan = sartor.plan(three(), scheme, steps=500, batch=100, accountant=accountant)
    with pytest.raises(sartor.Overspent):
        changed(plan, **change(plan))


def test_one_step_more_than_planned_is_refused_where_it_matters():
    """An off-by-one in steps: at few steps each one counts."""
    plan = sartor.plan(three(), "scale", steps=20, batch=300, accountant="rdp")
    with pytest.raises(sartor.Overspent):
        changed(plan, steps=21)
    assert np.all(plan.spent_after(19) < plan.spent)
    np.testing.assert_array_equal(plan.spent_after(20), plan.spent)


def test_spend_after_a_prefix_is_that_of_a_shorter_run():
    plan = sartor.plan(three(), "sample", **SETTING)
    assert np.all(plan.spent_after(0) == 0)
    part = [epsilon(plan.exposure(i, 123), 1e-5, "rdp").upper for i in range(3)]
    np.testing.assert_allclose(plan.spent_after(123), part, rtol=1e-9)
    assert plan.exposure(0, 123).steps == 123
    with pytest.raises(sartor.SartorError, match="not defined"):
        plan.spent_after(501)


def test_uniform_gives_everyone_what_the_strictest_asks():
    plan = sartor.plan(three(), "uniform", **SETTING)
    assert len(set(plan.rate)) == len(set(plan.clips)) == 1
    assert plan.spent == pytest.approx([1, 1, 1], rel=5e-3)
    assert plan.noise_multiplier == pytest.approx(noise_for(1.0, 1e-5, rate=100 / 3_000, steps=500, accountant="rdp"), rel=1e-9)


def test_the_strictest_may_be_strict_by_its_delta():
    budgets = sartor.Budgets.from_groups([(1.0, 50), (1.05, 50)], delta=[1e-3, 1e-9])
    plan = sartor.plan(budgets, "uniform", steps=50, batch=10, accountant="rdp")
    assert plan.spent[1] == pytest.approx(1.05, rel=1e-3)
    assert plan.spent[0] < 0.9


def test_exclude_leaves_the_strict_out_and_fills_the_batch_from_the_others():
    plan = sartor.plan(three(), "exclude", threshold=2, **SETTING)
    assert plan.rate[0] == plan.spent[0] == plan.expected_uses[0] == 0
    assert plan.rate[1] == plan.rate[2] == pytest.approx(100 / 1_500)
    assert plan.spent[1:] == pytest.approx([2, 2], rel=5e-3)
    with pytest.raises(sartor.Infeasible, match="nobody is left"):
        sartor.plan(three(), "exclude", threshold=5, **SETTING)
    with pytest.raises(sartor.SartorError, match="needs a threshold"):
        sartor.plan(three(), "exclude", **SETTING)


@pytest.mark.parametrize(("order", "first"), [("strictest-first", 0), ("open-first", 2)])
def test_sequential_trains_one_group_after_another_until_its_budget_is_spent(order, first):
    plan = sartor.plan(three(), "sequential", order=order, **SETTING)
    assert plan.first[first] == 0
    spans = sorted(zip(plan.first, plan.last, strict=True))
    assert all(end == begin for (_, end), (begin, _) in itertools.pairwise(spans))
    assert spans[-1][1] == 500
    assert np.all(plan.spent >= 0.95 * plan.epsilon)
    assert np.all(plan.rate == np.minimum(1, 100 / plan.holders))
    midway = plan.spent_after(int(spans[0][1]))
    assert np.count_nonzero(midway) == 1
    assert midway[first] == plan.spent[first]


def test_hybrid_reaches_from_scale_to_sample():
    ends = [sartor.plan(three(), "hybrid", mix=mix, **SETTING) for mix in (0.0, 1.0)]
    scale, sample = (sartor.plan(three(), scheme, **SETTING) for scheme in ("scale", "sample"))
    np.testing.assert_allclose(ends[0].clips, scale.clips)
    np.testing.assert_allclose(ends[1].rate, sample.rate)
    middle = sartor.plan(three(), "hybrid", mix=0.5, **SETTING)
    assert scale.rate[2] < middle.rate[2] < sample.rate[2]
    assert sample.clips[2] < middle.clips[2] < scale.clips[2]


def test_a_group_that_is_drawn_every_time_is_said_to_be_capped():
    budgets = sartor.Budgets.from_shares([1, 60], [0.9, 0.1], holders=1_000, delta=1e-5, seed=0)
    plan = sartor.plan(budgets, "sample", steps=100, batch=150, accountant="rdp")
    assert plan.capped.tolist() == [False, True]
    assert plan.rate[1] == 1
    assert "(capped)" in str(plan)
    hybrid = sartor.plan(budgets, "hybrid", mix=0.9, steps=100, batch=150, accountant="rdp")
    assert hybrid.rate[1] == 1
    assert not hybrid.capped.any()


def test_the_whole_population_in_every_batch():
    for scheme in ("uniform", "sample", "scale", "hybrid"):
        plan = sartor.plan(three(), scheme, steps=50, batch=3_000, accountant="rdp")
        assert np.all(plan.rate == 1)


@pytest.mark.parametrize("accountant", ["rdp", "pld"])
def test_public_records_get_what_the_most_open_group_gets(accountant):
    budgets = sartor.Budgets.from_groups([(1, 500), (3, 300), (np.inf, 200)], delta=1e-5)
    for scheme in ("sample", "scale", "hybrid", "uniform"):
        plan = sartor.plan(budgets, scheme, steps=100, batch=50, accountant=accountant)
        assert plan.rate[2] == plan.rate[1]
        assert plan.clips[2] == plan.clips[1]
        assert plan.spent[2] == np.inf
        assert np.average(plan.rate, weights=plan.holders) == pytest.approx(0.05, rel=1e-3)
        assert np.average(plan.clips, weights=plan.holders) == pytest.approx(1.0, rel=1e-9)
        assert plan.to_json()["groups"][2]["spent"] == "inf"


def test_public_records_take_the_caps_that_the_caller_gives():
    budgets = sartor.Budgets.from_groups([(1, 500), (3, 300), (np.inf, 200)], delta=1e-5)
    plan = sartor.plan(budgets, "scale", steps=100, batch=50, accountant="rdp", public_rate=0.1, public_clip=7.0)
    assert (plan.rate[2], plan.clips[2]) == (0.1, 7.0)
    assert np.sum(plan.rate * plan.holders) == pytest.approx(50)
    assert np.average(plan.clips[:2], weights=plan.holders[:2]) == pytest.approx(1.0)
    with pytest.raises(sartor.Infeasible, match="already fill the batch"):
        sartor.plan(budgets, "scale", steps=100, batch=50, accountant="rdp", public_rate=0.5)


def test_a_clip_of_public_records_alone_does_not_count_in_the_mean():
    budgets = sartor.Budgets.from_groups([(1, 500), (3, 300), (np.inf, 200)], delta=1e-5)
    plan = sartor.plan(budgets, "scale", steps=100, batch=50, accountant="rdp", public_clip=7.0)
    assert (plan.rate[2], plan.clips[2]) == (plan.rate[1], 7.0)
    assert np.average(plan.clips[:2], weights=plan.holders[:2]) == pytest.approx(1.0)


def test_public_records_alone_need_no_noise_and_say_so():
    budgets = sartor.Budgets([np.inf] * 20, delta=1e-5)
    with pytest.warns(sartor.NoNoise, match="protects nobody"):
        plan = sartor.plan(budgets, "scale", steps=10, batch=5)
    assert plan.noise_multiplier == 0
    assert "no noise: every record is public" in str(plan)


def test_a_reserve_is_left_unspent():
    kept = sartor.plan(three(reserve=0.2), "scale", **SETTING)
    assert np.all(kept.spent <= 0.8 * kept.epsilon)
    assert np.all(kept.spent >= 0.8 * 0.995 * kept.epsilon)
    again = epsilon(kept.exposure(0), 0.8e-5, "rdp").upper
    assert again == pytest.approx(kept.spent[0], rel=1e-9)
    with pytest.raises(sartor.SartorError, match="reserve"):
        kept.groups_of(three())


def test_deltas_may_differ_between_groups():
    budgets = sartor.Budgets.from_groups([(1, 100), (1, 100), (2, 100)], delta=[1e-7, 1e-4, 1e-5])
    for accountant in ("rdp", "pld"):
        plan = sartor.plan(budgets, "scale", steps=100, batch=30, accountant=accountant)
        assert np.all(plan.spent <= plan.epsilon)
        assert np.all(plan.spent >= 0.995 * plan.epsilon)
        assert plan.clips[0] < plan.clips[1]


def test_excess_is_zero_for_scale_and_for_equal_budgets():
    for accountant in ("rdp", "pld"):
        assert np.all(sartor.plan(three(), "scale", steps=500, batch=100, accountant=accountant).excess <= 1e-6)
        equal = sartor.Budgets([2.0] * 500, delta=1e-5)
        for scheme in ("sample", "hybrid", "uniform"):
            assert np.all(sartor.plan(equal, scheme, steps=500, batch=20, accountant=accountant).excess <= 1e-6)
    assert np.all(sartor.plan(three(), "uniform", **SETTING).excess <= 1e-6)


def test_excess_is_positive_for_sampling_and_equals_a_direct_maximisation():
    plan = sartor.plan(three(), "sample", steps=500, batch=100)
    assert plan.excess.max() > 1e-4
    rate, group = 100 / 3_000, 2
    alone = SampledGaussian(rate, noise_for(4.0, 1e-5, rate=rate, steps=500), 500)
    got = plan.exposure(group)
    grid = np.linspace(0, 8, 40_001)
    curves = [pld.Profile(e).delta(grid) for e in (got, alone)]
    direct = max(float(np.max((curves[0][way] - curves[1][way]) / (1 + np.exp(grid)))) for way in ("remove", "add"))
    assert plan.excess[group] == pytest.approx(max(direct, 0.0), rel=0.01)


def test_excess_of_the_prototype_is_reproduced():
    """3,383 clients, 30 a round, 420 rounds, delta 1e-5: epsilon 3 at noise 0.9 has 0.028."""
    from sartor.accounting import rate_for

    rate = 30 / 3_383
    alone = SampledGaussian(rate, noise_for(3.0, 1e-5, rate=rate, steps=420), 420)
    got = SampledGaussian(rate_for(3.0, 1e-5, noise_multiplier=0.9, steps=420), 0.9, 420)
    assert divergence(got, alone) == pytest.approx(0.028, abs=1e-3)
    assert divergence(alone, alone) == 0


@pytest.mark.few(1)
@pytest.mark.parametrize("scheme", ["sample", "hybrid"])
def test_excess_of_many_budgets_is_read_between_some_and_is_that_of_each(scheme, monkeypatch):
    levels = [(float(own), 20) for own in np.geomspace(0.5, 8.0, 60)]
    plan = sartor.plan(sartor.Budgets.from_groups(levels, delta=1e-5), scheme, steps=200, batch=60, accountant="rdp")
    asked = []
    monkeypatch.setattr(excess, "divergence", lambda got, alone: asked.append(got) or divergence(got, alone))
    read = plan.excess
    assert len(asked) <= 24
    monkeypatch.setattr(excess, "_FEW", 60)
    np.testing.assert_allclose(read, excess.of_plan(plan), rtol=0.01, atol=1e-7)


@pytest.mark.parametrize("scheme", ["scale", "uniform"])
def test_excess_of_many_budgets_that_are_drawn_alike_is_none(scheme):
    levels = [(float(own), 20) for own in np.geomspace(0.5, 8.0, 60)]
    plan = sartor.plan(sartor.Budgets.from_groups(levels, delta=1e-5), scheme, steps=200, batch=60, accountant="rdp")
    assert np.all(plan.excess == 0)


def test_excess_is_measured_from_what_a_reserve_leaves():
    kept = sartor.plan(three(reserve=0.5), "sample", **SETTING)
    halved = sartor.Budgets.from_shares([0.5, 1, 2], [0.5, 0.3, 0.2], holders=3_000, delta=0.5e-5, seed=0)
    np.testing.assert_allclose(kept.excess, sartor.plan(halved, "sample", **SETTING).excess, rtol=1e-6)
    assert kept.excess.max() > 1e-4


def test_excess_grows_with_the_share_of_sampling():
    worst = [sartor.plan(three(), "hybrid", mix=mix, steps=500, batch=100).excess.max() for mix in (0, 0.25, 0.5, 0.75, 1)]
    assert worst[0] <= 1e-6
    assert all(a < b + 1e-6 for a, b in itertools.pairwise(worst))
    assert worst[-1] > 10 * max(worst[1], 1e-6) or worst[-1] > 1e-3


def test_a_ceiling_on_the_excess_chooses_the_mix():
    most = sartor.plan(three(), "sample", **SETTING).excess.max()
    ceiling = most / 2
    plan = sartor.plan(three(), "hybrid", max_excess=ceiling, **SETTING)
    assert plan.excess.max() <= ceiling
    assert 0 < plan.options["mix"] < 1
    more = sartor.plan(three(), "hybrid", mix=min(1.0, plan.options["mix"] + 0.02), **SETTING)
    assert more.excess.max() > ceiling
    assert sartor.plan(three(), "hybrid", max_excess=1.0, **SETTING).options["mix"] == 1
    assert sartor.plan(three(), "hybrid", max_excess=0.0, **SETTING).excess.max() == 0
    with pytest.raises(sartor.SartorError, match="either mix or max_excess"):
        sartor.plan(three(), "hybrid", max_excess=0.1, mix=0.5, **SETTING)


@pytest.mark.parametrize("accountant", ["rdp", "pld"])
def test_plans_survive_json_both_ways(accountant):
    import json

    for scheme, options in [("sample", {}), ("scale", {}), ("hybrid", {"mix": 0.3}), ("sequential", {"order": "open-first"})]:
        plan = sartor.plan(three(reserve=0.1), scheme, steps=100, batch=100, accountant=accountant, **options)
        again = sartor.Plan.from_json(json.loads(json.dumps(plan.to_json())))
        assert again == plan
        np.testing.assert_array_equal(again.spent, plan.spent)


def test_a_document_with_too_little_noise_is_not_believed():
    document = sartor.plan(three(), "scale", **SETTING).to_json()
    document["noise_multiplier"] *= 0.9
    with pytest.raises(sartor.Overspent):
        sartor.Plan.from_json(document)


def test_a_plan_cannot_be_changed_afterwards():
    import copy
    import pickle

    plan = sartor.plan(three(), "sample", **SETTING)
    for array in (plan.rate, plan.clips, plan.noise_multipliers, plan.spent, plan.epsilon):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1.0
        with pytest.raises(ValueError, match="WRITEABLE"):
            array.setflags(write=True)
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.noise_multiplier = 0.1
    assert pickle.loads(pickle.dumps(plan)) == copy.deepcopy(plan) == plan
    noise = np.array(plan.noise_multiplier)
    held = changed(plan, noise_multiplier=noise)
    noise[...] = 0.1
    assert held == plan


def test_a_plan_for_other_budgets_is_refused():
    plan = sartor.plan(three(), "scale", **SETTING)
    assert np.bincount(plan.groups_of(three())).tolist() == plan.holders.tolist()
    for other in (three(holders=2_999), sartor.Budgets([1.0, 2.0, 4.0] * 1_000, delta=1e-5), sartor.Budgets([1.0] * 3_000, delta=1e-5)):
        with pytest.raises(sartor.SartorError, match="not the budgets"):
            plan.groups_of(other)


def test_sixty_thousand_different_budgets_each_keep_their_own():
    eps = np.random.default_rng(5).uniform(1, 6, 60_000)
    for scheme in ("scale", "sample", "hybrid"):
        plan = sartor.plan(sartor.Budgets(eps, delta=1e-5), scheme, steps=2_000, batch=512, accountant="rdp")
        assert len(plan) == 60_000
        assert np.all(plan.spent <= plan.epsilon)
        assert np.all(plan.spent >= 0.995 * plan.epsilon)
        place = plan.groups_of(sartor.Budgets(eps, delta=1e-5))
        assert np.array_equal(plan.epsilon[place], eps)


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"scheme": "best"}, 'no scheme "best"'),
        ({"accountant": "prv"}, 'no accountant "prv"'),
        ({"steps": 0}, "steps must be"),
        ({"steps": 2.5}, "steps must be"),
        ({"batch": 0}, "cannot be drawn from 3000 holders"),
        ({"batch": 3_001}, "cannot be drawn from 3000 holders"),
        ({"clip": 0}, "clip must be positive"),
        ({"clip": float("inf")}, "clip must be positive"),
        ({"mix": 0.5}, 'scheme "scale" has no option mix'),
        ({"scheme": "hybrid", "mix": 1.5}, "share of sampling"),
        ({"scheme": "sequential", "order": "random"}, "order is"),
        ({"public_rate": 2}, "public_rate must lie"),
        ({"public_clip": -1}, "public_clip must be"),
    ],
)
def test_requests_that_make_no_sense_are_refused_in_one_sentence(asked, reason):
    with pytest.raises(sartor.SartorError, match=reason) as refused:
        sartor.plan(three(), **{"steps": 10, "batch": 10, "accountant": "rdp", **asked})
    assert "\n" not in str(refused.value)


def test_sampling_that_draws_everybody_is_warned_of_and_scaling_advised():
    people = sartor.Budgets.from_groups([(1.0, 500), (8.0, 500)], delta=1e-5)
    with pytest.warns(sartor.AllDrawn, match="scale"):
        full = sartor.plan(people, "sample", steps=50, batch=1_000, accountant="rdp")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert sartor.plan(people, "scale", steps=50, batch=1_000, accountant="rdp").noise_multiplier < full.noise_multiplier
        sartor.plan(people, "sample", steps=50, batch=500, accountant="rdp")
        sartor.plan(people, "uniform", steps=50, batch=1_000, accountant="rdp")


def test_a_plan_with_the_clips_of_other_groups_is_refused():
    plan = sartor.plan(three(), "scale", steps=300, batch=100, accountant="rdp")
    with pytest.raises(sartor.Overspent):
        changed(plan, clips=plan.clips[::-1])


def test_the_mean_clip_is_the_one_asked_for_by_the_harmonic_mean_of_noise_multipliers():
    """The published program averages noise multipliers arithmetically, so the mean clip is not the one asked for."""
    plan = sartor.plan(three(), "scale", steps=300, batch=100, accountant="rdp")
    harmonic = 1 / np.average(1 / plan.noise_multipliers, weights=plan.holders)
    arithmetic = np.average(plan.noise_multipliers, weights=plan.holders)
    assert plan.noise_multiplier == pytest.approx(harmonic, rel=1e-9)
    assert arithmetic > 1.05 * harmonic
    assert np.average(plan.clips, weights=plan.holders) == pytest.approx(plan.clip, rel=1e-12)
