"""The settings of a strategy are one value: they travel as JSON, and what was planned with them is what runs."""

import json
from dataclasses import fields, replace

import pytest

from sartor import Budgets, Policy, federated
from sartor.errors import SartorError
from sartor.federated import Limits
from sartor.federated.enrolment import StrategySettings

FULL = StrategySettings(
    rounds=7,
    per_round=2.5,
    scheme="hybrid",
    clip=0.5,
    accountant="rdp",
    adaptive=federated.AdaptiveClip(0.4, noise=3.0),
    options={"mix": 0.5, "public_rate": 0.1},
    delta=1e-4,
    undeclared="refuse",
    reserve=0.1,
    limits=Limits(floor=0.5),
    min_clients=3,
    wait=5.0,
    optimizer="adam",
    lr=0.1,
    task={"seed": 3},
    seed=1,
)


def test_settings_come_back_from_json_as_they_were():
    assert StrategySettings.from_json(json.loads(json.dumps(FULL.to_json(), allow_nan=False))) == FULL
    policy = Policy({"strict": 1, "public": float("inf")}, delta=1e-5)
    again = StrategySettings.from_json(json.loads(json.dumps(replace(FULL, policy=policy).to_json(), allow_nan=False)))
    assert again.policy.levels == policy.levels


@pytest.mark.parametrize("name", [field.name for field in fields(StrategySettings)])
def test_a_setting_that_is_missing_is_not_replaced_by_a_default(name):
    document = FULL.to_json()
    del document[name]
    with pytest.raises(SartorError, match="not the settings of a strategy"):
        StrategySettings.from_json(document)


@pytest.mark.parametrize("document", [None, [], "text", {**FULL.to_json(), "limits": 3}, {**FULL.to_json(), "adaptive": {"size": 1}}])
def test_what_are_no_settings_is_refused(document):
    with pytest.raises(SartorError, match="not the settings of a strategy"):
        StrategySettings.from_json(document)


def test_an_option_of_a_scheme_cannot_change_a_setting():
    with pytest.raises(SartorError, match="clip is a setting of its own"):
        StrategySettings(rounds=1, per_round=1, options={"clip": 9.0})


def test_a_policy_outside_of_the_limits_is_refused():
    with pytest.raises(SartorError, match="outside the server"):
        StrategySettings(rounds=1, per_round=1, policy=Policy({"open": 1000.0}, delta=1e-5))


def test_how_long_a_server_waits_may_change_while_a_run_lasts_and_nothing_else():
    lasting = FULL.lasting({})
    assert replace(FULL, wait=9.0, min_clients=1, seed=2).lasting({}) == lasting
    for change in ({"rounds": 8}, {"options": {}}, {"limits": Limits()}, {"lr": 1.0}, {"task": {}}, {"delta": None}, {"reserve": 0.0}):
        assert replace(FULL, **change).lasting({}) != lasting


@pytest.mark.parametrize("other", [({"strict": 2.0}, 1e-5), ({"strict": 1.0}, 1e-6), ({"open": 1.0}, 1e-5)])
def test_a_policy_whose_levels_mean_something_else_is_another(other):
    levels, delta = other
    lasting = replace(FULL, policy=Policy({"strict": 1.0}, delta=1e-5)).lasting({})
    assert replace(FULL, policy=Policy({"strict": 1.0}, delta=1e-5)).lasting({}) == lasting
    assert replace(FULL, policy=Policy(levels, delta=delta)).lasting({}) != lasting


def test_the_plan_is_that_of_the_settings():
    budgets = Budgets.from_groups([(1.0, 20), (4.0, 20)], delta=1e-4)
    settings = StrategySettings(rounds=5, per_round=10, accountant="rdp", adaptive=federated.AdaptiveClip(noise=30.0))
    made = federated.plan(budgets, rounds=5, per_round=10, accountant="rdp", adaptive=federated.AdaptiveClip(noise=30.0))
    assert settings.plan(budgets).record() == made.record()
