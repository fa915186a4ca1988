"""How many queries budgets pay for, said before anybody has voted."""

import importlib
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sartor import Budgets, pate
from sartor.errors import Infeasible, SartorError
from sartor.run.stream import Stream
from sartor_testing import pate_reference as reference
from sartor_testing.ensembles import ensembles, open_plan

forecasts = importlib.import_module("sartor.pate.forecast")

SHARES = ([1.0, 2.0, 3.0], [0.34, 0.43, 0.23])


def people(factor=1.0, holders=1_437, **more):
    return Budgets.from_shares([factor * value for value in SHARES[0]], SHARES[1], holders=holders, delta=1e-5, seed=1, **more)


@settings(max_examples=60, deadline=None)
@given(ensembles(), st.booleans())
def test_a_voting_asks_what_was_forecast_and_more_only_where_tests_fail(ensemble, again):
    _, plan, votes, options, seed = ensemble
    options = {**options, "labels": None}
    before = [pate.aggregate(plan, votes, **{**options, "labels": 3}, stream=Stream(seed=seed)).account] if again else []
    found = pate.forecast(plan, len(votes), go_on=options["go_on"], before=before)
    labels = pate.aggregate(plan, votes, **options, before=before, stream=Stream(seed=seed))
    assert found.queries <= labels.asked.sum()
    if labels.answered[labels.asked].all():
        assert found.queries == labels.asked.sum()
    if not options["go_on"]:
        assert found.queries == min(found.of_group.min(), len(votes))


@pytest.mark.parametrize("variant", pate.VARIANTS)
def test_a_group_pays_for_what_it_can_and_for_no_more(variant):
    plan = pate.plan(people(), variant, teachers=40, aggregator=pate.Confident(20.0, 20.0, 30.0))
    found = pate.forecast(plan, 3_000)
    weights = np.where(plan.schedule(0, 3_000), plan.weights, 0.0)
    for group, (epsilon, delta) in enumerate(zip(*plan.spendable, strict=True)):
        teachers = range(int(plan.begin[group]), int(plan.end[group]))
        members = [[t] for t in teachers] if variant != "upsample" else [list(teachers[: int(plan.duplicates[group])])]
        allowed = reference.allowance(float(epsilon), float(delta))

        def worst(queries, members=members):
            answered = np.ones(queries, bool)
            return max(reference.cost_of(own, weights[:queries], answered, 20.0 * plan.scale, 30.0 * plan.scale) for own in members)

        assert 0 < found.of_group[group] < 3_000
        assert worst(found.of_group[group]) <= allowed * (1 + 1e-9)
        assert worst(found.of_group[group] + 1) > allowed


def test_earlier_votings_are_paid_for_first():
    plan = pate.plan(people(), "weight", teachers=40, aggregator=pate.GNMax(20.0))
    votes = np.zeros((200, 40), int)
    first = pate.aggregate(plan, votes, 10, labels=5, stream=Stream(seed=1)).account
    assert pate.forecast(plan, 200, before=[first]).queries == pate.forecast(plan, 200).queries - 5


def test_no_more_is_forecast_than_there_is():
    found = pate.forecast(open_plan(pate.GNMax(5.0)), 7)
    assert (found.queries, found.of_group.tolist()) == (7, [7])


def test_a_forecast_is_shown_like_any_figure_of_groups():
    plan = pate.plan(
        Budgets.from_groups([(1.0, 3), (2.0, 500), (4.0, 900)], delta=1e-5), "weight", teachers=40, aggregator=pate.GNMax(20.0)
    )
    found = pate.forecast(plan, 500)
    shown = found.to_json()
    assert (shown["queries"], shown["available"], shown["noise"]) == (found.queries, 500, 20.0)
    assert [group["holders"] for group in shown["groups"]] != [3, 500, 900]
    assert "1.0" not in str([group["epsilon"] for group in shown["groups"]])
    whole = pate.forecast(pate.plan(people(), "weight", teachers=40, aggregator=pate.GNMax(20.0)), 500)
    assert [group["queries"] for group in whole.to_json()["groups"]] == whole.of_group.tolist()


def test_fewer_answers_than_classes_are_refused_with_what_would_do():
    plan = pate.plan(people(), "weight", teachers=25, aggregator=pate.GNMax(4.0))
    found = pate.forecast(plan, 260)
    assert 0 < found.queries < 10
    with pytest.raises(Infeasible) as refused:
        forecasts.check_enough(found, 10)
    advice = re.search(r"epsilons (\S+) times as large or (\S+) times the teachers \(and people", str(refused.value))
    opener, grown = float(advice[1]), float(advice[2])
    assert pate.forecast(replace(plan, epsilon=plan.epsilon * opener), 260).queries >= 10
    more = pate.plan(people(holders=int(1_437 * grown)), "weight", teachers=int(25 * grown), aggregator=pate.GNMax(4.0 * grown))
    assert pate.forecast(more, 260).queries >= 10
    forecasts.check_enough(found, found.queries)


def test_too_little_noise_is_told_as_such():
    plan = pate.plan(people(), "weight", teachers=200, aggregator=pate.GNMax(4.0))
    with pytest.raises(Infeasible, match=r"noise (\S+) times as large would do") as refused:
        forecasts.check_enough(pate.forecast(plan, 260), 10)
    factor = float(refused.value.args[0].split("noise ")[1].split()[0])
    louder = replace(plan, aggregator=plan.aggregator.louder(factor))
    forecasts.check_enough(pate.forecast(louder, 260), 10)
    assert louder.aggregator.noise <= forecasts.surviving_noise(200, 10)


def test_hopeless_budgets_are_told_as_such():
    plan = pate.plan(people(1e-6), "standard", teachers=10, aggregator=pate.GNMax(0.5))
    with pytest.raises(Infeasible, match="much more open budgets would do"):
        forecasts.check_enough(pate.forecast(plan, 260), 10)


@pytest.mark.parametrize("variant", pate.VARIANTS)
def test_what_is_left_after_all_queries_makes_them_quieter(variant):
    plan = pate.plan(people(30.0), variant, teachers=20, aggregator=pate.aggregator_for(20, 10, "confident"))
    quiet = forecasts.quietest(plan, 30)
    assert quiet.aggregator.noise < plan.aggregator.noise
    assert quiet.aggregator.threshold == plan.aggregator.threshold
    assert pate.forecast(quiet, 30).queries == 30
    assert pate.forecast(replace(quiet, aggregator=quiet.aggregator.louder(0.9)), 30).queries < 30
    strict = pate.plan(people(), variant, teachers=20, aggregator=pate.GNMax(5.0))
    assert forecasts.quietest(strict, 260) == strict


@pytest.mark.parametrize(("teachers", "classes"), [(40, 2), (100, 10), (250, 100)])
def test_a_consensus_of_half_of_the_teachers_survives_nineteen_times_in_twenty(teachers, classes):
    rng = np.random.default_rng(1)
    counts = np.full((20_000, classes), teachers / 2 / classes)
    counts[:, 0] += teachers / 2
    noisy = counts + rng.normal(0.0, pate.aggregator_for(teachers, classes).noise, counts.shape)
    assert np.mean(noisy.argmax(1) == 0) == pytest.approx(0.95, abs=0.006)


def test_noise_is_chosen_for_aggregators_without_a_student():
    chosen = pate.aggregator_for(100, 10, "confident")
    assert (chosen.noise, chosen.threshold, chosen.threshold_noise) == (pate.aggregator_for(100, 10).noise, 50.0, 2 * chosen.noise)
    for wrong in ((0, 10), (10, 0), (10, 2, "interactive")):
        with pytest.raises(SartorError):
            pate.aggregator_for(*wrong)
