"""Budgets bind to parameters by key: in whatever order a plan lists its groups, everyone gets their own."""

import itertools
import json

import numpy as np
import pytest

import sartor
from sartor.run.sampling import PoissonSampler
from sartor.run.stream import Stream

EPSILON = np.random.default_rng(4).permutation(np.repeat([4.0, 1.0, 2.0], [20, 50, 30]))


@pytest.mark.parametrize("order", itertools.permutations(range(3)), ids=str)
def test_groups_listed_in_another_order_are_found_by_their_budget(order):
    budgets = sartor.Budgets(EPSILON, delta=1e-3)
    plan = sartor.plan(budgets, "hybrid", steps=30, batch=25, accountant="rdp")
    document = json.loads(json.dumps(plan.to_json(sensitive=True)))
    document["groups"] = [document["groups"][place] for place in order]
    again = sartor.Plan.from_json(document)
    assert again.epsilon.tolist() == plan.epsilon[list(order)].tolist()
    place = again.groups_of(budgets)
    np.testing.assert_array_equal(again.epsilon[place], EPSILON)
    np.testing.assert_array_equal(again.rate[place], plan.rate[plan.groups_of(budgets)])
    clip_of = dict(zip(plan.epsilon.tolist(), plan.clips.tolist(), strict=True))
    sampler = PoissonSampler(again, budgets, Stream(seed=1))
    for step in range(5):
        draw = sampler.draw(step)
        np.testing.assert_array_equal(draw.clips, [clip_of[epsilon] for epsilon in EPSILON[draw.indices]])
