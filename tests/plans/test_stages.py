"""Plans of several stages: what they promise, what they refuse, and what runs by them."""

import copy
import dataclasses
import itertools
import json
import pickle

import dp_accounting
import numpy as np
import pytest
import torch
from scipy import stats
from torch.utils.data import TensorDataset

import sartor
from sartor.accounting import Composition, Included, SampledGaussian, epsilon
from sartor.plans import Plan, Stage
from sartor.run.account import RunAccount
from sartor.run.sampling import PoissonSampler
from sartor.run.stream import Stream

HOLDERS = (600, 400)
BUDGETS = sartor.Budgets.from_groups([(1.0, HOLDERS[0]), (4.0, HOLDERS[1])], delta=1e-5)


def plan_of(*stages: Stage, accountant="rdp", epsilon=(1.0, 4.0), holders=HOLDERS, **others) -> Plan:
    return Plan(
        scheme="own",
        accountant=accountant,
        batch=20,
        clip=0.5,
        epsilon=np.array(epsilon, float),
        delta=np.full(len(epsilon), 1e-5),
        holders=np.array(holders),
        stages=stages,
        **others,
    )


def rounds(accountant="rdp", noise=(4.0, 2.0), **others) -> Plan:
    """A round with coins, and a quieter one that the strict group is mostly kept out of."""
    return plan_of(
        Stage(60, noise[0], rate=[0.02, 0.03], clips=[0.5, 0.5], inclusion=[0.5, 1.0]),
        Stage(40, noise[1], rate=[0.02, 0.03], clips=[0.4, 0.6], inclusion=[0.1, 0.8]),
        accountant=accountant,
        **others,
    )


def test_what_a_member_undergoes_is_the_composition_of_the_stages_behind_their_coins():
    plan = rounds()
    first, second = SampledGaussian(0.02, 4.0, 60), SampledGaussian(0.02, 2.0 * 0.5 / 0.4, 40)
    assert plan.exposure(0) == Composition((Included(0.5, first), Included(0.1, second)))
    assert plan.exposure(1) == Composition((SampledGaussian(0.03, 4.0, 60), Included(0.8, SampledGaussian(0.03, 2.0 * 0.5 / 0.6, 40))))
    assert plan.exposure(0, 30) == Included(0.5, SampledGaussian(0.02, 4.0, 30))
    assert plan.exposure(1, 61) == Composition((SampledGaussian(0.03, 4.0, 60), Included(0.8, SampledGaussian(0.03, 2.0 * 0.5 / 0.6, 1))))
    assert (plan.steps, plan.first.tolist(), plan.last.tolist()) == (100, [0, 0], [100, 100])
    np.testing.assert_allclose(plan.expected_uses, [0.02 * (0.5 * 60 + 0.1 * 40), 0.03 * (60 + 0.8 * 40)])


@pytest.mark.parametrize("accountant", ["rdp", "pld"])
def test_groups_are_charged_what_the_accountant_says_of_their_exposure(accountant):
    plan = rounds(accountant)
    for steps in (0, 1, 60, 61, 100):
        for group in range(2):
            own = epsilon(plan.exposure(group, steps), 1e-5, accountant).upper if steps else 0.0
            assert plan.spent_after(steps)[group] == pytest.approx(own, rel=1e-3, abs=1e-12)
    assert np.all(np.diff([plan.spent_after(steps) for steps in range(0, 101, 10)], axis=0) >= 0)


def test_stages_without_coins_cost_what_another_library_says():
    plan = plan_of(Stage(60, 2.0, [0.02, 0.03], 0.5), Stage(40, 1.5, [0.01, 0.05], [0.5, 0.6]), accountant="pld")
    for group in range(2):
        theirs = dp_accounting.pld.PLDAccountant(plan.relation.to_dp_accounting(), value_discretization_interval=1e-4)
        theirs.compose(plan.exposure(group).to_dp_event())
        assert plan.spent[group] == pytest.approx(theirs.get_epsilon(1e-5), rel=2e-3)


@pytest.mark.parametrize(
    "stages",
    [
        lambda: rounds(noise=(1.0, 2.0)),
        lambda: rounds(noise=(4.0, 0.6)),
        lambda: plan_of(Stage(60, 4.0, [0.02, 0.03], 0.5), Stage(40, 0.7, [0.02], 0.5, groups=[0])),
        lambda: plan_of(Stage(10, 1.0, [0.0, 0.03], 0.5), Stage(10, 0.1, [0.1, 0.0], 0.5, inclusion=[0.5, 1.0])),
    ],
    ids=["first", "second", "for one group", "behind a coin"],
)
def test_a_stage_that_overspends_is_refused(stages):
    with pytest.raises(sartor.Overspent):
        stages()


def test_a_coin_that_is_no_longer_tossed_overspends():
    plan = plan_of(Stage(100, 1.0, [0.04, 0.03], 0.5, inclusion=[0.1, 1.0]), accountant="pld")
    with pytest.raises(sartor.Overspent):
        dataclasses.replace(plan, stages=(dataclasses.replace(plan.stages[0], inclusion=[1.0, 1.0]),))


@pytest.mark.parametrize("plan", [rounds(), plan_of(Stage(9, 3.0, [0.02], 0.5, groups=[1]), Stage(1, 3.0, [], [], groups=[]))])
def test_plans_of_stages_come_back_from_documents_copies_and_pickles(plan):
    for document in (plan.record(), plan.to_json(), plan.to_json(sensitive=True)):
        assert Plan.from_json(json.loads(json.dumps(document))) == plan
    assert pickle.loads(pickle.dumps(plan)) == copy.deepcopy(plan) == plan
    assert plan != rounds(noise=(4.0, 2.1))


def test_stages_in_a_document_are_checked_like_any_other():
    document = rounds().record()
    document["stages"][1]["inclusion"] = [1.0, 1.0]
    document["stages"][0]["noise_multiplier"] = 1.0
    with pytest.raises(sartor.Overspent):
        Plan.from_json(document)
    for change in ({"steps": 99}, {"relation": "replace"}, {"stages": []}, {"stages": [{}]}, {"stages": "no"}):
        with pytest.raises(sartor.SartorError, match="this is not a plan"):
            Plan.from_json({**rounds().record(), **change})


@pytest.mark.parametrize(
    "wrong",
    [
        {"steps": 0},
        {"steps": 2.5},
        {"noise_multiplier": -1.0},
        {"noise_multiplier": np.nan},
        {"rate": [0.5, 1.5]},
        {"rate": [0.5]},
        {"clips": [1.0, 0.0]},
        {"inclusion": [0.5, -0.1]},
        {"inclusion": [0.5, np.nan]},
        {"groups": [1, 0]},
        {"groups": [0, 0]},
        {"groups": [-1, 0]},
        {"groups": [0, 7]},
        {"rate": ["a", "b"]},
    ],
)
def test_stages_that_are_none_are_refused(wrong):
    right = {"steps": 5, "noise_multiplier": 9.0, "rate": [0.01, 0.01], "clips": [1.0, 1.0]}
    plan_of(Stage(**right))
    with pytest.raises(sartor.SartorError, match="this is not a"):
        plan_of(Stage(**{**right, **wrong}))


def test_small_groups_are_merged_in_every_stage_that_is_shown():
    plan = rounds(epsilon=(1.03125, 4.0), holders=(6, 994))
    shown = json.dumps(plan.to_json()) + str(plan) + repr(plan)
    assert plan.to_json()["merged"]
    for own in ("1.03125", "0.02,", "[0.5, 1.0]"):
        assert own not in shown


def test_a_group_that_is_treated_as_a_small_one_does_not_show_what_it_spends():
    stages = (Stage(10, 4.0, [0.02, 0.02, 0.025], 0.5, inclusion=0.5), Stage(10, 8.0, [0.02, 0.02, 0.03], 0.5))
    plan = plan_of(*stages, epsilon=(3.0, 8.0, 9.0), holders=(6, 494, 500))
    *_, same, other = plan.to_json()["groups"]
    assert other["spent"] == pytest.approx(plan.spent[2])
    assert isinstance(same["spent"], list)


def test_a_noise_that_changes_has_no_single_name():
    plan = rounds()
    assert [plan.noise_at(step) for step in (0, 59, 60, 99)] == [2.0, 2.0, 1.0, 1.0]
    with pytest.raises(sartor.SartorError, match="differs from stage to stage"):
        _ = plan.noise
    with pytest.raises(sartor.SartorError, match="no step 100"):
        plan.noise_at(100)
    assert "noise multiplier 2 to 4" in str(plan)


def drawn(plan: Plan, steps, seed=0) -> np.ndarray:
    sampler = PoissonSampler(plan, BUDGETS, Stream(seed=seed))
    out = np.zeros((len(steps), len(BUDGETS)), bool)
    for row, step in enumerate(steps):
        out[row, sampler.draw(step).indices] = True
    return out


def test_each_holder_has_one_coin_for_a_stage_and_is_drawn_at_the_rate_only_if_it_fell():
    probability, rate, steps = (0.3, 0.7), 0.5, 40
    stages = [Stage(steps, 900.0, [rate, rate], 0.5, inclusion=[own, 1.0]) for own in probability]
    plan = plan_of(*stages)
    found = [drawn(plan, range(begin, begin + steps), seed=3) for begin in (0, steps)]
    strict = np.arange(len(BUDGETS)) < HOLDERS[0]
    inside = [rows[:, strict].any(0) for rows in found]  # who is in is drawn in one of 40 steps but for 1e-12
    for own, rows, members in zip(probability, found, inside, strict=True):
        assert stats.binomtest(int(members.sum()), HOLDERS[0], own).pvalue > 1e-4
        for chosen in (rows[:, strict][:, members], rows[:, ~strict]):
            assert stats.binomtest(int(chosen.sum()), chosen.size, rate).pvalue > 1e-4
    table = [[int(np.sum((inside[0] == a) & (inside[1] == b))) for b in (True, False)] for a in (True, False)]
    assert stats.chi2_contingency(table).pvalue > 1e-4  # coins of two stages know nothing of each other
    other = drawn(plan, range(steps), seed=4)[:, strict].any(0)
    assert not np.array_equal(other, inside[0])


@pytest.mark.parametrize("probability", [(0.2, 0.9), (0.5, 0.5)])
def test_the_coins_of_a_group_follow_its_own_probability_and_know_nothing_of_another_groups(probability):
    plan = plan_of(Stage(40, 900.0, [0.5, 0.5], 0.5, inclusion=probability))
    inside = np.split(drawn(plan, range(40), seed=3).any(0), HOLDERS[:1])
    for own, members in zip(probability, inside, strict=True):
        assert stats.binomtest(int(members.sum()), len(members), own).pvalue > 1e-4
    strict, other = (members[: min(HOLDERS)] for members in inside)
    table = [[int(np.sum((strict == a) & (other == b))) for b in (True, False)] for a in (True, False)]
    assert stats.chi2_contingency(table).pvalue > 1e-4


def test_a_draw_depends_on_nothing_but_its_step():
    plan = rounds(noise=(40.0, 20.0))
    in_order = PoissonSampler(plan, BUDGETS, Stream(seed=1))
    expected = {step: in_order.draw(step) for step in range(plan.steps)}
    for step in (99, 0, 61, 3, 60, 59):
        again = PoissonSampler(plan, BUDGETS, Stream(seed=1)).draw(step)
        np.testing.assert_array_equal(again.indices, expected[step].indices)
        np.testing.assert_array_equal(in_order.draw(step).indices, expected[step].indices)
        of = plan.stage_at(step).clips[(again.indices >= HOLDERS[0]).astype(int)]
        np.testing.assert_array_equal(again.clips, of)


def test_training_adds_the_noise_of_the_stage_that_a_step_belongs_to():
    plan = plan_of(Stage(3, 4.0, [0.02, 0.03], 0.5), Stage(2, 9.0, [0.02, 0.03], 0.5))
    model = torch.nn.Linear(100, 100)
    weights = []

    def note(_):
        weights.append(torch.cat([parameter.detach().flatten() for parameter in model.parameters()]))

    note(None)
    data = TensorDataset(torch.zeros(1_000, 100), torch.zeros(1_000, dtype=torch.long))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    _, optimizer, loader = sartor.make_private(model, optimizer, data, BUDGETS, plan, seed=0)
    for inputs, _ in loader:
        optimizer.zero_grad()
        (0.0 * model(inputs)).mean(1).mean().backward()
        optimizer.step()
        note(None)
    moved = [float((after - before).std()) * plan.batch for before, after in itertools.pairwise(weights)]
    np.testing.assert_allclose(moved, [2.0] * 3 + [4.5] * 2, rtol=5 / np.sqrt(2 * len(weights[0])))


def test_one_stage_says_of_itself_what_its_plan_says():
    plan = sartor.plan(BUDGETS, "sample", steps=50, batch=20, accountant="rdp")
    (stage,) = plan.stages
    assert "50 steps" in repr(stage)
    assert "2 groups" in repr(stage)
    assert stage == dataclasses.replace(stage)
    assert stage != dataclasses.replace(stage, rate=stage.rate / 2)
    with pytest.raises(ValueError, match="read-only"):
        stage.rate[0] = 1.0


@pytest.mark.parametrize(
    "change",
    [
        {"steps": 51},
        {"noise_multiplier": 9.0},
        {"rate": [0.02, 0.04]},
        {"clips": [0.5, 0.5]},
        {"groups": [0, 2]},
        {"inclusion": [0.5, 1.0]},
    ],
)
def test_a_stage_in_which_anything_differs_is_another(change):
    stage = Stage(50, 8.0, [0.02, 0.03], [0.5, 0.6])
    assert stage == dataclasses.replace(stage)
    assert stage != dataclasses.replace(stage, **change)


def test_groups_that_take_turns_have_a_stage_each():
    plan = sartor.plan(BUDGETS, "sequential", steps=500, batch=20, accountant="rdp")
    assert [stage.groups.tolist() for stage in plan.stages] == [[0], [1]]
    assert sum(stage.steps for stage in plan.stages) == plan.steps
    assert isinstance(plan.exposure(1), SampledGaussian)
    assert Plan.from_json(plan.record()) == plan


def test_turns_that_overlap_are_not_written_as_turns():
    document = sartor.plan(BUDGETS, "scale", steps=50, batch=20, accountant="rdp").record()
    document["groups"][0]["last"] = 30
    with pytest.raises(sartor.SartorError, match="overlap"):
        Plan.from_json(document)
    document["groups"][1]["first"] = 40  # nobody takes part from 30 to 40
    plan = Plan.from_json(document)
    assert [(stage.steps, stage.groups.tolist()) for stage in plan.stages] == [(30, [0]), (10, []), (10, [1])]
    assert not drawn(plan, range(30, 40)).any()
    assert drawn(plan, range(40, 50)).any()


@pytest.mark.parametrize(
    "order",
    [
        lambda small, large: [small, large],
        lambda small, large: [large, small],
        lambda small, large: [small, [0.0, 0.0, 0.05], large],
    ],
    ids=["alike", "in another order", "with a pause"],
)
def test_a_large_group_that_goes_through_the_same_as_a_small_one_shows_no_spend(order):
    """Groups of 5 and 100, of which the large one takes its stages in another order or at another time."""
    quiet, loud = [0.02, 0.02, 0.03], [0.04, 0.04, 0.01]
    stages = [Stage(10, 2.0, rate, 0.5) for rate in order(quiet, loud)]
    turned = [Stage(10, 2.0, [*stage.rate[:1], *other.rate[1:]], 0.5) for stage, other in zip(stages, stages[::-1], strict=True)]
    plan = plan_of(*turned, epsilon=(3.0, 8.0, 9.0), holders=(5, 100, 500))
    for steps in (10, plan.steps):
        rows = RunAccount(plan, steps).to_json()["groups"]
        assert all(isinstance(row["spent"], list) for row in rows if row["holders"] <= 105)


def test_stages_stay_frozen_in_copies_and_take_nothing_but_numbers():
    plan = rounds()
    for copied in (pickle.loads(pickle.dumps(plan)).stages[0], copy.deepcopy(plan.stages[0]), copy.copy(plan.stages[0])):
        with pytest.raises(ValueError, match="read-only"):
            copied.rate[:] = 1.0
    for wrong in ({"groups": [0.9, 1.9]}, {"rate": ["0.1", "0.2"]}, {"rate": [True, False]}, {"clips": "1"}):
        with pytest.raises(sartor.SartorError, match="this is not a stage"):
            Stage(**{"steps": 5, "noise_multiplier": 9.0, "rate": [0.01, 0.01], "clips": [1.0, 1.0], **wrong})


def test_a_plan_with_next_to_no_noise_is_shown_with_the_most_excess_there_is():
    plan = plan_of(Stage(1, 0.01, [1e-7, 0.5], 0.5), epsilon=(1.0, 1e6))
    assert plan.excess.max() == 0.5
    assert "0.5" in str(plan)


def test_each_stage_has_rates_of_its_own_in_what_is_drawn_and_in_what_is_accounted():
    rates = ([0.1, 0.6], [0.4, 0.2])
    plan = plan_of(*(Stage(30, 900.0, rate, 0.5) for rate in rates))
    found = drawn(plan, range(60), seed=2)
    strict = np.arange(len(BUDGETS)) < HOLDERS[0]
    for place, rate in enumerate(rates):
        rows = found[30 * place : 30 * (place + 1)]
        for members, own in zip((strict, ~strict), rate, strict=True):
            assert stats.binomtest(int(rows[:, members].sum()), rows[:, members].size, own).pvalue > 1e-4
    for group in range(2):
        assert plan.exposure(group) == Composition(tuple(SampledGaussian(rate[group], 900.0, 30) for rate in rates))
