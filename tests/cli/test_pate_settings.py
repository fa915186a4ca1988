"""What `sartor pate` was asked for, as one value."""

import dataclasses

import pytest

from sartor import Budgets, pate
from sartor.cli.pate_settings import PateSettings
from sartor.errors import SartorError
from sartor.pate.usual import usual

PEOPLE = Budgets.from_groups([(1.0, 500), (2.0, 500)], delta=1e-5)


@pytest.mark.parametrize("dataset", ["mnist", "adult"])
def test_the_papers_parameters_in_the_size_of_the_ensemble(dataset):
    for teachers in (None, 250, 50):
        plan = PateSettings(dataset=dataset, teachers=teachers).plan(PEOPLE, 10, 100)
        assert plan.teachers == (teachers or 250)
        assert plan.aggregator == usual(dataset).aggregator.scaled((teachers or 250) / 250)
    assert PateSettings(dataset=dataset, aggregator="gnmax").plan(PEOPLE, 10, 100).aggregator == pate.GNMax(40)


def test_what_is_said_stands_beside_what_is_usual():
    plan = PateSettings(dataset="mnist", noise=30.0, threshold_noise=90.0).plan(PEOPLE, 10, 100)
    assert plan.aggregator == pate.Confident(30, 200, 90)
    assert PateSettings(noise=9.0).plan(PEOPLE, 10, 9_000).aggregator == pate.GNMax(9)
    assert PateSettings(aggregator="confident", threshold=7.0).plan(PEOPLE, 10, 9_000).aggregator.threshold == 7


def test_noise_that_nobody_gave_is_what_a_consensus_survives_and_less_where_all_is_paid():
    assert PateSettings().plan(PEOPLE, 10, 9_000).aggregator == pate.aggregator_for(100, 10)
    few = PateSettings().plan(PEOPLE, 10, 3)
    assert few.aggregator.noise < pate.aggregator_for(100, 10).noise
    assert pate.forecast(few, 3).queries == 3
    assert PateSettings(noise=14.0).plan(PEOPLE, 10, 3).aggregator.noise == 14


def test_budgets_that_are_assumed_are_named():
    assert PateSettings().assumed == "epsilon 1,2,3 for 0.34,0.43,0.23 of the people, at delta 1e-5"
    assert PateSettings(delta="1e-6").assumed.endswith("1e-6")
    assert PateSettings(epsilon="1").assumed is None
    assert PateSettings(budgets="people.csv").assumed is None
    assert PateSettings().people(1_437).groups.epsilon.tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"aggregator": "mean"}, "confident or gnmax"),
        ({"threshold": 3.0}, "go with the confident aggregator"),
        ({"aggregator": "gnmax", "threshold_noise": 3.0}, "go with the confident aggregator"),
        ({"accounting": "loose"}, "exact, fine or paper"),
        ({"dataset": "cifar10"}, "knows the data sets"),
    ],
)
def test_settings_that_nothing_can_be_made_of_are_refused_first(wrong, sentence):
    with pytest.raises(SartorError, match=sentence):
        PateSettings(**wrong).check()


def test_settings_are_frozen_and_show_no_budget():
    asked = PateSettings(epsilon="0.123", share="1", delta="1e-7")
    assert not any(secret in repr(asked) for secret in ("0.123", "1e-7"))
    with pytest.raises(dataclasses.FrozenInstanceError):
        asked.noise = 0.0
