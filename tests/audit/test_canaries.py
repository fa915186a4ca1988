"""Canaries: no scheme is refuted where the library is sound, bounds follow budgets, and faults of coins, clips and noise are refuted."""

import dataclasses
import functools
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import sartor
from sartor.audit.canaries import canary_attack, extended, plant, spread, together
from sartor.audit.evidence import expected_clips
from sartor.audit.published import published_attack
from sartor.errors import SartorError
from sartor.plans import Plan
from sartor.plans.published import published
from sartor.run.sampling import PoissonSampler, _Coins
from sartor.sgd import run as running
from sartor.sgd import stretches
from sartor_testing.amount import most_are_long
from sartor_testing.clopper_pearson import lower_bounds

DELTA = 1e-2
HOLDERS = 100


@functools.cache
def people(*epsilon):
    order = np.random.default_rng(1).permutation(np.resize(epsilon or (1.0, 8.0), HOLDERS))
    return sartor.Budgets(order, delta=DELTA)


@functools.cache
def planned(scheme, epsilon=(1.0, 8.0), steps=10, batch=50, **options):
    return sartor.plan(people(*epsilon), scheme, steps=steps, batch=batch, **options)


@functools.cache
def records(features=32):
    generator = torch.Generator().manual_seed(3)
    return TensorDataset(torch.randn(HOLDERS, features, generator=generator), torch.randint(0, 4, (HOLDERS,), generator=generator))


def net(hidden=128):
    return nn.Sequential(nn.Linear(32, hidden), nn.Tanh(), nn.Linear(hidden, 4))


def attacked(plan, epsilon=(1.0, 8.0), canaries=1000, seed=3, **settings):
    return canary_attack(net, records(), people(*epsilon), plan, canaries=canaries, seed=seed, lr=0.5, **settings)


def bounds(found):
    """White box, then black box."""
    return lower_bounds(found.white_box, DELTA), lower_bounds(found.black_box, DELTA)


SCHEMES = [
    ("sample", {}),
    ("scale", {}),
    ("rounds", {"rounds": 2}),
    ("sample", {"filter": "renyi", "refresh": 2, "full_steps": 4, "accountant": "rdp"}),
    ("uniform", {}),
    ("hybrid", {"mix": 0.5}),
    ("exclude", {"threshold": 4.0}),
    ("sequential", {}),
    ("jorgensen", {"threshold": 2.0}),
    ("adapdp", {"rounds": 2}),
    ("equal", {"filter": "ladder", "refresh": 2, "full_steps": 4, "ladder": (1, 4)}),
    ("scale", {"filter": "ladder", "refresh": 2, "full_steps": 6, "ladder": (1, 4)}),
]


@pytest.mark.parametrize("case", most_are_long(SCHEMES, 4), ids=lambda case: case[0])
def test_no_scheme_is_refuted(case):
    scheme, options = case
    plan = planned(scheme, **options)
    white, black = bounds(attacked(plan))
    for found in (white, black):
        assert all(bound <= epsilon for bound, epsilon in zip(found, plan.epsilon, strict=True))
    if scheme != "uniform":  # which treats the open group as the strict one
        assert white[-1] > 0.3


def test_bounds_are_ordered_as_the_budgets_are():
    epsilon = (2.0, 8.0, 32.0)
    strict, middle, weak = bounds(attacked(planned("scale", epsilon), epsilon, canaries=3000))[0]
    assert 0 < strict < middle < weak
    assert all(bound <= own for bound, own in zip((strict, middle, weak), epsilon, strict=True))


def test_an_attack_is_the_same_under_the_same_seed():
    one, same, other = (attacked(planned("scale"), canaries=40, seed=seed) for seed in (1, 1, 2))
    assert np.array_equal(one.white, same.white)
    assert np.array_equal(one.black, same.black)
    assert np.array_equal(one.included, same.included)
    assert not np.array_equal(one.white, other.white)


def test_noise_too_low_is_refuted(monkeypatch):
    right = running.normal
    monkeypatch.setattr(running, "normal", lambda *given, **more: 0.3 * right(*given, **more))
    white, black = bounds(attacked(planned("scale")))
    assert min(white[0], black[0]) > 1


def test_a_rate_doubled_for_one_group_is_refuted(monkeypatch):
    right = PoissonSampler._lay_out

    def doubled(self, of_holder, groups, parts, *rest):
        rate = np.where(parts.group == 0, np.minimum(2 * parts.rate, 1), parts.rate)
        right(self, of_holder, groups, parts._replace(rate=rate), *rest)

    monkeypatch.setattr(PoissonSampler, "_lay_out", doubled)
    epsilon = (2.0, 8.0)
    assert bounds(attacked(planned("scale", epsilon), epsilon, canaries=4000))[0][0] > 2


def test_the_clip_of_the_open_group_for_the_strict_one_is_refuted(monkeypatch):
    right = PoissonSampler.draw

    def open_to_all(self, step):
        draw = right(self, step)
        return dataclasses.replace(draw, clips=np.full(len(draw), self._clips.max()))

    monkeypatch.setattr(PoissonSampler, "draw", open_to_all)
    assert bounds(attacked(planned("scale")))[0][0] > 1


def test_groups_by_another_order_than_that_of_budgets_are_refuted(monkeypatch):
    right = Plan.groups_of
    monkeypatch.setattr(Plan, "groups_of", lambda self, budgets: len(self) - 1 - right(self, budgets))
    assert bounds(attacked(planned("sample"), canaries=2000))[0][0] > 1


def test_a_layer_without_noise_is_refuted_by_few_canaries_in_several_runs(monkeypatch):
    right, last = running.Run._noisy, "2.weight"

    def bare(self, sums, step):
        return {**right(self, sums, step), last: sums[last] / self.plan.batch}

    monkeypatch.setattr(running.Run, "_noisy", bare)
    found = together([attacked(planned("uniform"), canaries=100, seed=seed) for seed in range(6)])
    assert bounds(found)[0][0] > 1


def test_coins_of_inclusion_that_are_not_looked_at_are_refuted(monkeypatch):
    monkeypatch.setattr(_Coins, "included", lambda self, part, place: np.ones(len(part), bool))
    assert bounds(attacked(planned("rounds", rounds=2)))[0][0] > 1


def test_units_that_are_not_taken_are_refuted(monkeypatch):
    plan = planned("scale", steps=60, filter="renyi", refresh=4, full_steps=4, accountant="rdp")
    assert bounds(attacked(plan))[0][0] <= 1
    right = stretches.climb
    monkeypatch.setattr(stretches, "climb", lambda filter, group, fraction, left: (right(filter, group, fraction, left)[0], left))
    assert bounds(attacked(plan, canaries=2000))[0][0] > 1


@pytest.mark.long
def test_the_published_form_can_be_attacked():
    promised = []

    def form(budgets):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            promised.append(published(budgets, steps=10, batch=400, rounds=2, seed=1))
        return promised[0]

    found = published_attack(net, records(), people(1.0, 4.0), form, canaries=1000, seed=1, lr=0.5)
    white = lower_bounds(found.white_box, promised[0].promised_delta)
    assert white[1] > 0.3
    assert all(bound <= epsilon for bound, epsilon in zip(white, promised[0].really_spends, strict=True))


def test_canaries_are_clipped_and_drawn_as_the_plan_says():
    """What canaries add to the sums, beside what the plan states."""
    plan = planned("scale", steps=40)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    model, optimizer, loader = sartor.make_private(model, optimizer, records(), people(), plan, seed=2)
    planted = plant(loader, people(), canaries=400, seed=2)
    flock, drawn, lengths = planted._flock, np.zeros(400), []
    right = planted._laden

    def noted(sums, step):
        draw = planted._drawn[step]
        drawn[draw.indices] += 1
        lengths.extend(zip(flock.group[draw.indices], draw.clips, strict=True))
        laden = right(sums, step)
        added = torch.cat([(laden[name] - sums[name]).flatten() for name in sums]).double()
        there = flock.included[draw.indices]
        assert float(added.norm()) == pytest.approx(float(np.sqrt((draw.clips[there] ** 2).sum())), rel=1e-4)
        return laden

    planted._laden = noted
    for inputs, targets in loader:
        optimizer.zero_grad()
        functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    assert all(clip == plan.clips[group] for group, clip in lengths)
    assert drawn.mean() / plan.steps == pytest.approx(0.5, abs=0.02)
    assert 0.4 < flock.included.mean() < 0.6


def test_a_users_own_loop_and_physical_batches_are_attacked_alike():
    def loop(model, optimizer, loader):
        for inputs, targets in loader:
            optimizer.zero_grad()
            functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()

    usual = attacked(planned("scale"), canaries=40)
    own = attacked(planned("scale"), canaries=40, loop=loop, max_physical_batch=7)
    assert usual.white == pytest.approx(own.white, abs=1e-3)
    assert usual.black == pytest.approx(own.black, rel=1e-2, abs=1e-2)


def test_holders_with_several_records_are_attacked_by_holder():
    owner = np.concatenate([np.arange(HOLDERS // 2), np.arange(HOLDERS // 2)])
    budgets = sartor.Budgets(np.resize([1.0, 8.0], HOLDERS // 2), delta=DELTA)
    ownership = sartor.Ownership(owner.tolist(), HOLDERS // 2)
    plan = sartor.plan(budgets, "scale", steps=5, batch=25, ownership=ownership)
    found = canary_attack(net, records(), budgets, plan, canaries=400, lr=0.5, ownership=ownership)
    strict, weak = lower_bounds(found.white_box, DELTA)
    assert strict <= 1
    assert 0.3 < weak <= 8


def test_rates_clips_and_noise_stay_where_canaries_come():
    plan, group = planned("hybrid", mix=0.5), spread(planned("hybrid", mix=0.5), 31)
    more, budgets = extended(plan, people(), group)
    assert more.stages == plan.stages
    assert more.batch == plan.batch
    assert np.array_equal(more.groups_of(budgets)[HOLDERS:], group)
    assert np.array_equal(more.groups_of(budgets)[:HOLDERS], plan.groups_of(people()))


def test_expected_clips_rest_where_the_plan_says():
    plan = planned("sample", steps=40, filter="renyi", refresh=2, full_steps=4, accountant="rdp")
    taken = (expected_clips(plan) > 0).sum(0)
    assert np.array_equal(taken, plan.rests_at)


def test_a_private_run_is_never_given_canaries():
    model = net()
    _, _, loader = sartor.make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), records(), people(), planned("scale"))
    with pytest.raises(SartorError, match="seeded"):
        plant(loader, people(), canaries=10, seed=1)
    model = net()
    private = sartor.make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), records(), people(), planned("scale"), seed=1)
    plant(private[2], people(), canaries=10, seed=1)
    with pytest.raises(SartorError, match="once"):
        plant(private[2], people(), canaries=10, seed=1)


def test_what_canaries_cannot_be_is_said():
    with pytest.raises(SartorError, match="a canary for each"):
        spread(planned("scale"), 1)
    with pytest.raises(SartorError, match="no run"):
        together([])
    assert repr(attacked(planned("scale"), canaries=10)) == "Found(10 canaries in 2 groups)"
