"""What is stored of a plan: enough to be read back, checked again, and nothing that takes long to compute."""

import copy
import json
import pickle

import numpy as np
import pytest

import sartor
from sartor import federated
from sartor.plans import excess


@pytest.mark.parametrize("scheme", ["scale", "sample", "uniform", "hybrid", "exclude", "sequential"])
def test_a_record_gives_the_plan_back(scheme):
    options = {"exclude": {"threshold": 1.5}, "sequential": {"order": "open-first"}}.get(scheme, {})
    people = sartor.Budgets.from_groups([(1.0, 400), (2.0, 300), (4.0, 3), (np.inf, 5)], delta=1e-5, reserve=0.1)
    plan = sartor.plan(people, scheme, steps=200, batch=50, accountant="rdp", **options)
    stored = json.loads(json.dumps(plan.record(), allow_nan=False))
    assert sartor.Plan.from_json(stored) == plan
    shown = plan.to_json(sensitive=True)
    assert [{name: group[name] for name in kept} for group, kept in zip(shown["groups"], stored["groups"], strict=True)] == stored["groups"]
    assert {name: value for name, value in shown.items() if name != "groups"} == {n: v for n, v in stored.items() if n != "groups"}


def test_copies_and_pickles_of_a_plan_keep_its_reserve():
    people = sartor.Budgets.from_groups([(1.0, 400), (2.0, 300)], delta=1e-5, reserve=0.1)
    plan = sartor.plan(people, "scale", steps=200, batch=50, accountant="rdp")
    assert pickle.loads(pickle.dumps(plan)) == copy.copy(plan) == plan
    assert pickle.loads(pickle.dumps(plan)).reserve == 0.1


def test_a_record_that_overspends_is_refused():
    people = sartor.Budgets.from_groups([(1.0, 400), (2.0, 300)], delta=1e-5)
    stored = sartor.plan(people, "sample", steps=200, batch=50, accountant="rdp").record()
    stored["noise_multiplier"] *= 0.99
    with pytest.raises(sartor.Overspent):
        sartor.Plan.from_json(stored)


def test_storing_a_plan_computes_nothing_for_display(monkeypatch, tmp_path):
    """The excess of a hundred groups takes half a minute, and nobody reads it in a ledger or in what a run resumes from."""
    clients = sartor.Budgets.from_groups([(1.0, 30), (3.0, 20)], delta=1e-4)
    plan = federated.plan(clients, "sample", rounds=10, per_round=5, clip=1.0, accountant="rdp")
    monkeypatch.setattr(excess, "of_plan", lambda _: pytest.fail("the excess is computed"))
    federated.Ledger.create(tmp_path / "ledger", plan, [f"client {i}" for i in range(50)], clients)
    assert federated.Ledger(tmp_path / "ledger").plan.accounted == plan.accounted
