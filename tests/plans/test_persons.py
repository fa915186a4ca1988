"""What training by record costs a person who owns several records: by plan, by stage and by group."""

import numpy as np
import pytest

import sartor
from sartor import Composition, SampledGaussian, SampledRecords, SartorError
from sartor.accounting import epsilon
from sartor.plans import Stage
from sartor.plans.persons import person_exposure, spent_by_person

BUDGETS = sartor.Budgets.from_groups([(1.0, 600), (2.0, 300), (4.0, 100)], delta=1e-5)


def plan_of(*stages, accountant="rdp", reserve=0.0, epsilons=(30.0, 60.0)):
    return sartor.Plan(
        "given", accountant, batch=50.0, clip=1.0, epsilon=epsilons, delta=[1e-5, 1e-6], holders=[500, 500], stages=stages, reserve=reserve
    )


@pytest.fixture(scope="module")
def plan():
    return sartor.plan(BUDGETS, "hybrid", mix=0.5, steps=100, batch=20, accountant="rdp")


def test_each_record_has_the_rate_and_noise_of_its_group(plan):
    for group in range(3):
        one = plan.exposure(group)
        assert person_exposure(plan, group, 7) == SampledRecords(7, one.rate, one.noise_multiplier, 100)
        assert person_exposure(plan, group, 7, steps=40).steps == 40
        assert person_exposure(plan, group, 1) == one


def test_a_person_spends_what_the_tight_accountant_says_of_their_records(plan):
    spent = spent_by_person(plan, 7)
    for group in range(3):
        exact = epsilon(person_exposure(plan, group, 7), 1e-5)
        assert exact.lower <= spent[group] <= exact.upper * 1.001
    assert np.all(spent > 3 * plan.spent)
    assert np.all(spent_by_person(plan, 7, steps=50) < spent)
    assert spent_by_person(plan, 7, steps=0).tolist() == [0, 0, 0]
    assert spent_by_person(plan, 7, groups=[2, 0]).tolist() == spent[[2, 0]].tolist()
    assert spent_by_person(plan, 7, groups=[]).tolist() == []


def test_one_record_spends_what_the_plan_says(plan):
    for steps in (0, 30, 100):
        assert spent_by_person(plan, 1, steps).tolist() == plan.spent_after(steps, "pld").tolist()


def test_stages_compose():
    first, second = Stage(60, 4.0, [0.02, 0.03], [0.5, 1.0]), Stage(40, 6.0, [0.1, 0.03], [0.4, 0.6])
    plan = plan_of(first, second)
    assert person_exposure(plan, 0, 5) == Composition((SampledRecords(5, 0.02, 8.0, 60), SampledRecords(5, 0.1, 15.0, 40)))
    assert person_exposure(plan, 0, 5, steps=60) == SampledRecords(5, 0.02, 8.0, 60)
    assert person_exposure(plan, 0, 5, steps=61) == Composition((SampledRecords(5, 0.02, 8.0, 60), SampledRecords(5, 0.1, 15.0, 1)))
    whole, begun = spent_by_person(plan, 5), spent_by_person(plan, 5, 60)
    assert np.all(begun < whole)
    assert whole[1] == pytest.approx(epsilon(person_exposure(plan, 1, 5), 1e-6).upper, rel=1e-3)


def test_a_group_whose_turn_has_not_come_has_spent_nothing():
    one_by_one = sartor.plan(BUDGETS, "sequential", steps=60, batch=20, accountant="rdp")
    assert spent_by_person(one_by_one, 4, int(one_by_one.last[0]))[1:].tolist() == [0, 0]
    assert np.all(spent_by_person(one_by_one, 4) > one_by_one.spent)


def test_the_reserve_is_taken_off_delta():
    stage = Stage(60, 4.0, [0.02, 0.03], [0.5, 1.0])
    kept = spent_by_person(plan_of(stage, reserve=0.5), 5)
    assert np.all(kept > spent_by_person(plan_of(stage), 5))
    assert kept[0] == pytest.approx(epsilon(SampledRecords(5, 0.02, 8.0, 60), 5e-6).upper, rel=1e-3)


def test_who_asked_for_no_protection_has_none():
    plan = plan_of(Stage(10, 4.0, [0.02], [0.5], groups=[0]), Stage(10, 4.0, [0.02, 0.03], [0.5, 1.0]), epsilons=(30.0, np.inf))
    assert spent_by_person(plan, 3)[1] == np.inf
    assert spent_by_person(plan, 3, 10)[1] == 0
    assert np.isfinite(spent_by_person(plan, 3)[0])


@pytest.mark.parametrize("groups", [None, [1], []])
def test_coins_of_inclusion_are_refused(groups):
    """Not those of one record, nor before they are tossed."""
    plan = plan_of(Stage(60, 4.0, [0.02, 0.03], 0.5), Stage(40, 4.0, [0.02, 0.03], 0.5, inclusion=[0.5, 1.0]))
    with pytest.raises(SartorError, match=r"^this plan decides by a coin for each stage .*\.$"):
        spent_by_person(plan, 2, groups=groups)
    assert np.all(spent_by_person(plan, 2, 60) > 0)
    assert spent_by_person(plan, 1).tolist() == plan.spent_after(100, "pld").tolist()
    with pytest.raises(SartorError, match="coin"):
        person_exposure(plan, 0, 2)


@pytest.mark.parametrize("records", [0, -3, 2.5, 10**6 + 1, np.nan, "many", None])
def test_what_nobody_owns_is_refused(plan, records):
    for ask in (lambda: person_exposure(plan, 0, records), lambda: spent_by_person(plan, records)):
        with pytest.raises(SartorError, match=rf"^records must be a whole number from 1 to 1,000,000, not {records}\.$"):
            ask()


@pytest.mark.parametrize("steps", [-1, 101])
def test_steps_beyond_the_plan_are_refused(plan, steps):
    for records in (1, 2):
        with pytest.raises(SartorError, match="the plan has 100 steps"):
            spent_by_person(plan, records, steps)


@pytest.mark.parametrize(
    "known", [{"ownership": sartor.Ownership(np.arange(2_500) % 1_000, 1_000)}, {"records_per_holder": 3}], ids=["records", "most"]
)
def test_training_by_holder_spends_of_a_person_what_it_spends_of_anybody(known):
    """They are clipped as one, however many records they own."""
    plan = sartor.plan(BUDGETS, "hybrid", mix=0.5, steps=100, batch=20, accountant="rdp", **known)
    for again in (plan, sartor.Plan.from_json(plan.record())):
        for steps in (0, 30, 100):
            assert spent_by_person(again, 20, steps).tolist() == plan.spent_after(steps, "pld").tolist()
        assert person_exposure(again, 1, 20) == plan.exposure(1)
    with pytest.raises(SartorError, match="records must be"):
        spent_by_person(plan, 0)


def test_a_record_is_not_a_person():
    """The promise to a record of a plan at its budget is broken for its owner, by far: which is why the figure exists."""
    plan = plan_of(Stage(60, 4.0, [0.02, 0.03], [0.5, 1.0]))
    assert np.all(spent_by_person(plan, 20) > 5 * plan.spent)
    assert isinstance(plan.exposure(0), SampledGaussian)
