"""Plans for PATE: sensitivities by the paper's rules, whatever the order of the people, and no plan that voting would charge wrongly."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sartor
from sartor.errors import Infeasible, SartorError
from sartor.pate.account import Accountant
from sartor.pate.build import plan
from sartor.pate.plan import Confident, GNMax, Interactive, PatePlan
from sartor.pate.variants import VARIANTS
from sartor_testing.ensembles import made, people, populations

SETUPS = {"34-43-23": [0.34, 0.43, 0.23], "54-37-9": [0.54, 0.37, 0.09]}


@pytest.mark.parametrize("share", SETUPS.values(), ids=SETUPS)
def test_weights_are_budgets_over_their_mean_over_teachers(share):
    found = plan(people(share), "weight", teachers=100)
    sizes = found.end - found.begin
    mean = np.sum(found.epsilon * sizes) / 100
    assert sizes.tolist() == [round(100 * s) for s in share]
    assert found.weight == pytest.approx(found.epsilon / mean, rel=1e-12)
    assert found.weights.sum() == pytest.approx(100, rel=1e-12)
    assert found.aggregator == Confident(16.0, 80.0, 60.0)
    assert np.array_equal(found.sensitivity, found.weight)


@settings(max_examples=80)
@given(populations(), st.booleans())
def test_weights_sum_to_the_number_of_teachers_and_mixed_teachers_weigh_by_their_strictest(population, tune):
    budgets, teachers = population
    found = made(budgets, "weight", teachers, tune=tune)
    assert found.teachers == teachers
    assert found.weights.sum() == pytest.approx(teachers, rel=1e-9)
    assert np.all(found.weights > 0)
    if not tune:
        strictest = np.array([found.epsilon[(found.begin <= t) & (t < found.end)].min() for t in range(teachers)])
        assert found.weights == pytest.approx(strictest / strictest.mean(), rel=1e-9)
    assert sorted({(b, e) for b, e in zip(found.begin.tolist(), found.end.tolist(), strict=True)})[-1][1] == teachers


def test_upsampling_makes_whole_duplicates_by_the_ratio_and_scales_everything_else():
    budgets = people(SETUPS["34-43-23"])
    found = plan(budgets, "upsample", teachers=100, aggregator=Confident(noise=16.0, threshold=80.0, threshold_noise=60.0))
    scale = 0.34 * 1 + 0.43 * 2 + 0.23 * 3
    assert found.duplicates.tolist() == [1, 2, 3]
    assert found.sensitivity.tolist() == [1, 2, 3]
    assert found.scale == pytest.approx(scale, rel=1e-12)
    assert found.teachers == 189
    assert found.aggregator == Confident(16.0 * found.scale, 80.0 * found.scale, 60.0 * found.scale)
    assert np.all(found.weights == 1)


def test_an_interactive_aggregators_confidence_is_not_scaled():
    found = plan(people([0.5, 0.3, 0.2]), "upsample", teachers=50, aggregator=Interactive(5.0, 10.0, 8.0, 0.7)).aggregator
    assert found == Interactive(5.0 * 1.7, 10.0 * 1.7, 8.0 * 1.7, 0.7)


@settings(max_examples=60)
@given(populations(4), st.sampled_from([0.02, 0.1, 0.3]))
def test_upsampling_meets_the_ratios_at_its_precision_with_constant_data_per_teacher(population, precision):
    budgets, teachers = population
    found = made(budgets, "upsample", teachers, precision=precision)
    ratio = found.epsilon / found.epsilon.min()
    # some real number times the ratios is within the precision of all duplicates
    times = found.duplicates / ratio
    assert times.max() / (1 + precision) <= times.min() / (1 - precision) * (1 + 1e-9)
    duplicated = int(np.sum(found.duplicates * found.holders))
    assert found.scale == pytest.approx(duplicated / len(budgets), rel=1e-12)
    assert abs(duplicated / found.teachers - len(budgets) / teachers) <= 0.5 * len(budgets) / teachers / found.teachers + 1e-9
    assert found.aggregator.noise == pytest.approx(3.0 * found.scale, rel=1e-12)
    assert np.all(found.duplicates <= found.teachers)


def test_too_few_teachers_for_the_duplicates_is_infeasible():
    budgets = sartor.Budgets.from_groups([(0.01, 990), (10.0, 10)], delta=1e-5)
    with pytest.raises(Infeasible, match="duplicates"):
        plan(budgets, "upsample", teachers=10)


@settings(max_examples=60)
@given(populations(), st.sampled_from([0.5, 2.0, 4.0]), st.booleans())
def test_vanishing_has_as_many_voters_in_every_query_each_at_teachers_over_participants(population, power, tune):
    budgets, teachers = population
    found = made(budgets, "vanish", teachers, power=power, tune=tune)
    schedule = found.schedule(0, 60)
    voters = schedule.sum(1)
    assert np.all(voters == voters[0])
    assert found.sensitivity == pytest.approx(teachers / voters[0], rel=1e-12)
    assert found.weights * voters[0] == pytest.approx(teachers, rel=1e-12)
    for begin, end, taking in zip(found.begin, found.end, found.taking_part, strict=True):
        assert np.all(schedule[:, begin:end].sum(1) == taking)


def test_vanishing_follows_the_power_of_the_budgets():
    found = plan(people([0.34, 0.43, 0.23]), "vanish", teachers=100)
    assert found.taking_part.tolist() == [round(34 / 9), round(43 * 4 / 9), 23]
    fourth = plan(people([0.34, 0.43, 0.23]), "vanish", teachers=100, power=4.0)
    assert fourth.taking_part.tolist() == [1, round(43 * 16 / 81), 23]


@settings(max_examples=40)
@given(populations(), st.lists(st.integers(1, 25), min_size=1, max_size=6), st.integers(0, 50))
def test_the_schedule_does_not_depend_on_where_blocks_begin(population, blocks, first):
    budgets, teachers = population
    found = made(budgets, "vanish", teachers)
    whole = found.schedule(first, sum(blocks))
    begins = first + np.cumsum([0, *blocks[:-1]])
    assert np.array_equal(whole, np.concatenate([found.schedule(int(b), n) for b, n in zip(begins, blocks, strict=True)]))


@settings(max_examples=30)
@given(populations())
def test_nobody_takes_part_much_more_often_than_planned(population):
    budgets, teachers = population
    found = made(budgets, "vanish", teachers)
    queries = 400
    times = found.schedule(0, queries).sum(0)
    for begin, end, taking in zip(found.begin.tolist(), found.end.tolist(), found.taking_part.tolist(), strict=True):
        planned = queries * taking / (end - begin)
        # a window that crosses into the next round may replace a teacher: at most one extra a round, half of the time
        assert np.all(np.abs(times[begin:end] - planned) <= 2 + 0.35 * planned)


@settings(max_examples=60)
@given(populations(), st.sampled_from(VARIANTS), st.booleans(), st.integers(0, 10**6))
def test_a_plan_is_the_same_in_any_order_of_the_people(population, variant, tune, seed):
    budgets, teachers = population
    order = np.random.default_rng(seed).permutation(len(budgets))
    other = budgets.ordered_as([budgets.names[i] for i in order])
    one, two = (made(b, variant, teachers, tune=tune) for b in (budgets, other))
    assert one == two
    assert np.array_equal(one.groups_of(budgets)[order], two.groups_of(other))


@settings(max_examples=40)
@given(populations(), st.sampled_from(VARIANTS))
def test_groups_are_found_by_the_budget_and_not_by_position(population, variant):
    budgets, teachers = population
    found = made(budgets, variant, teachers)
    group = found.groups_of(budgets)
    assert np.array_equal(found.epsilon[group], budgets.epsilon)
    assert np.array_equal(found.delta[group], budgets.delta)


def test_budgets_that_the_plan_does_not_know_are_refused():
    found = plan(people([0.5, 0.3, 0.2]), teachers=20)
    for other in (
        sartor.Budgets([1.0, 2.5], delta=1e-5),
        sartor.Budgets([1.0], delta=1e-6),
        sartor.Budgets([1.0], delta=1e-5, reserve=0.1),
    ):
        with pytest.raises(SartorError, match="plan"):
            found.groups_of(other)


@settings(max_examples=40)
@given(populations(), st.sampled_from(VARIANTS), st.booleans())
def test_a_plan_survives_json(population, variant, tune):
    budgets, teachers = population
    kind = Interactive(2.0, 3.0, 4.0, 0.8)
    found = made(budgets, variant, teachers, tune=tune, aggregator=kind)
    back = PatePlan.from_json(json.loads(json.dumps(found.to_json(sensitive=True))))
    assert back == found
    assert back.aggregator == found.aggregator
    assert np.array_equal(back.schedule(3, 9), found.schedule(3, 9))


def test_tuned_weights_let_all_groups_run_out_together():
    budgets = sartor.Budgets.from_groups([(0.5, 300), (2.0, 300), (6.0, 400)], delta=[1e-5, 1e-7, 1e-3])
    found = plan(budgets, "weight", teachers=50, tune=True)
    queries = Accountant().allowance(*found.spendable) / found.sensitivity**2
    assert queries == pytest.approx(queries[0], rel=1e-6)


def document(variant="weight", **changes):
    """A plan for two groups of five teachers, with rows changed."""
    found = plan(
        sartor.Budgets.from_groups([(1.0, 50), (2.0, 50)], delta=1e-5), variant, teachers=10, aggregator=GNMax(noise=5.0)
    ).to_json()
    for name, value in changes.items():
        if name in found:
            found[name] = value
        for group, own in zip(found["groups"], value if isinstance(value, list) else [value] * 2, strict=True):
            if name in group:
                group[name] = own
    return found


BROKEN = {
    "an unknown variant": {"variant": "x"},
    "no aggregator": {"aggregator": {"kind": "x"}},
    "an aggregator without noise": {"aggregator": {"kind": "gnmax", "noise": 0}},
    "no groups": {"groups": []},
    "teachers outside": {"end": 99},
    "no duplicates": {"duplicates": 0},
    "more duplicates than teachers": {"duplicates": 7},
    "a negative weight": {"weight": -1.0},
    "an infinite weight": {"weight": "inf"},
    "nobody takes part": {"taking_part": 0},
    "overlapping groups": {"begin": [0, 3]},
    "no number": {"epsilon": "many"},
    "not a number": {"epsilon": float("nan")},
    "a negative epsilon": {"epsilon": -1.0},
    "a delta of one": {"delta": 1.0},
    "a reserve of all": {"reserve": 1.0},
    "no whole number of teachers": {"teachers": 10.5},
}
TAKEN = {"no groups", "not a number", "a negative epsilon", "a delta of one", "a reserve of all", "no whole number of teachers"}


@pytest.mark.parametrize("what", sorted(set(BROKEN) - TAKEN))
def test_a_document_that_is_no_plan_is_refused(what):
    with pytest.raises(SartorError):
        PatePlan.from_json(document(**BROKEN[what]))


@pytest.mark.parametrize("what", sorted(TAKEN))
def test_a_document_with_impossible_numbers_is_refused(what):
    with pytest.raises(SartorError):
        PatePlan.from_json(document(**BROKEN[what]))


def test_vanishing_with_duplicates_is_refused():
    with pytest.raises(SartorError):
        PatePlan.from_json(document("vanish", duplicates=2))


@pytest.mark.parametrize("variant", ["standard", "upsample", "weight"])
def test_resting_teachers_are_for_vanishing_alone(variant):
    with pytest.raises(SartorError):
        PatePlan.from_json(document(variant, taking_part=2))


def test_groups_with_a_teachers_worth_of_people_have_a_teacher_of_their_own():
    found = plan(sartor.Budgets(np.arange(1, 50) / 10, delta=1e-5), "weight", teachers=49)
    assert found.begin.tolist() == list(range(49))


BAD = [
    {"variant": "x"},
    {"variant": None},
    {"teachers": 0},
    {"teachers": 2.5},
    {"teachers": True},
    {"teachers": 1001},
    {"teachers": -3},
]
ROUGH = [
    {"teachers": float("nan")},
    {"teachers": float("inf")},
    {"teachers": "ten"},
    {"teachers": None},
    {"aggregator": 3},
    {"variant": "vanish", "power": float("nan")},
    {"variant": "upsample", "most_teachers": "many"},
]


@pytest.mark.parametrize("options", BAD, ids=str)
def test_bad_arguments_are_refused_in_a_sentence(options):
    with pytest.raises(SartorError, match=r"\.$"):
        plan(people([0.5, 0.3, 0.2]), **options)


@pytest.mark.parametrize("options", ROUGH, ids=str)
def test_arguments_of_the_wrong_kind_are_refused_in_a_sentence(options):
    with pytest.raises(SartorError, match=r"\.$"):
        plan(people([0.5, 0.3, 0.2]), **{"teachers": 20, **options})


def test_public_records_are_refused():
    with pytest.raises(SartorError, match="public"):
        plan(sartor.Budgets([1.0, np.inf], delta=1e-5), teachers=1)


def test_a_plan_does_not_show_one_persons_budget():
    budgets = sartor.Budgets.from_groups([(1.0, 60), (1.2345, 1), (3.0, 60)], delta=1e-5)
    assert "1.234" not in repr(plan(budgets, teachers=10))


@pytest.mark.parametrize("kind", [GNMax, Confident, Interactive])
def test_an_aggregator_needs_noise(kind):
    numbers = {GNMax: (0.0,), Confident: (1.0, 2.0, 0.0), Interactive: (0.0, 2.0, 1.0)}[kind]
    with pytest.raises(SartorError, match="noise"):
        kind(*numbers)
    for bad in (-1.0, float("nan"), float("inf"), "3", None, True):
        with pytest.raises(SartorError, match="noise"):
            GNMax(noise=bad)


@pytest.mark.parametrize("number", [np.int64(4), np.float32(4)])
def test_an_aggregator_takes_numpys_numbers(number):
    assert GNMax(noise=number) == GNMax(noise=4.0)
