"""Canaries: no scheme is refuted where the library is sound, and bounds follow budgets. What they refute is in tests/mutants."""

import functools
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import sartor
from sartor.audit.bounds import threshold_bound
from sartor.audit.canaries import Flock, canary_attack, extended, plant, spread, together
from sartor.audit.directions import Directions
from sartor.audit.evidence import Evidence, expected_clips
from sartor.audit.findings import AS_PLANNED, ONE_RUN
from sartor.errors import SartorError
from sartor.plans.published import published
from sartor_testing import amount
from sartor_testing.amount import most_are_long
from sartor_testing.published_attack import published_attack

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


def attacked(plan, epsilon=(1.0, 8.0), canaries=1000, seed=3, make=net, **settings):
    return canary_attack(make, records(), people(*epsilon), plan, canaries=canaries, seed=seed, lr=0.5, **settings)


def bounds(found):
    """White box, then black box."""
    return of_groups(found.white_box), of_groups(found.black_box)


def of_groups(by_group, delta=DELTA):
    return [threshold_bound(by_group[group], delta, 0.999) for group in sorted(by_group)]


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


@pytest.mark.long
def test_the_published_form_can_be_attacked():
    promised = []

    def form(budgets):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            promised.append(published(budgets, steps=10, batch=400, rounds=2, seed=1))
        return promised[0]

    found = published_attack(net, records(), people(1.0, 4.0), form, canaries=1000, seed=1, lr=0.5)
    white = of_groups(found.white_box, promised[0].promised_delta)
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
    strict, weak = of_groups(found.white_box)
    assert strict <= 1
    assert 0.3 < weak <= 8


def test_only_canaries_at_right_angles_are_taken_for_independent():
    few, more = (attacked(planned("scale", steps=2), canaries=count, make=lambda: nn.Linear(32, 4)) for count in (128, 129))
    assert len(more) == 129
    assert more.bounds == AS_PLANNED  # in two runs
    assert {group: len(scores.inside) + len(scores.outside) for group, scores in more.white_box.items()} == {0: 65, 1: 64}
    assert few.independent
    assert few.bounds == AS_PLANNED
    assert not Directions([128], 129, seed=1).at_right_angles
    many = replace(few, independent=False)
    assert many.bounds == ONE_RUN
    assert together([few, few]).bounds == AS_PLANNED
    assert together([few, many]).bounds == ONE_RUN


def test_canaries_that_would_hide_each_other_are_refused():
    with pytest.raises(SartorError, match="room for 128 in a run: plant 2560 or fewer"):
        attacked(planned("scale", steps=2), canaries=2561, make=lambda: nn.Linear(32, 4))


def test_noise_is_what_the_plan_says_unless_there_never_was_so_little():
    plan = planned("scale", steps=40)
    noise, blocks = plan.noise_at(0), np.array([100, 4])
    random, usual, low = np.random.default_rng(0), *(Evidence(plan, np.array([0, 1]), blocks) for _ in range(2))
    for step in range(plan.steps):
        dots = noise * random.standard_normal((2, 2))
        squares = noise**2 * random.chisquare(blocks)
        usual.add(step, dots, squares)
        low.add(step, dots, squares * [1, 0.09])
    exact = Evidence(plan, np.array([0, 1]), blocks)
    random = np.random.default_rng(0)
    for step in range(plan.steps):
        dots = noise * random.standard_normal((2, 2))
        exact.add(step, dots, noise**2 * blocks.astype(float))
        random.chisquare(blocks)
    assert np.array_equal(usual.total, exact.total)
    assert not np.allclose(low.total, exact.total, rtol=1e-3)


def test_scores_of_canaries_are_independent_where_a_run_is_what_its_plan_describes():
    """Over many runs no two canaries that are in have scores that go together."""
    plan = planned("scale", steps=3)
    found = np.stack([attacked(plan, canaries=16, seed=seed, check=False).white for seed in range(amount.examples(60, 400))])
    included = np.stack([Flock.of(spread(plan, 16), net(), seed).included for seed in range(len(found))])
    for group in (slice(0, 8), slice(8, 16)):
        own = np.where(included[:, group], 1, -1) * 1.0
        rest = found[:, group] - own * (found[:, group] * own).mean()
        together_ = np.corrcoef(rest.T)[np.triu_indices(8, 1)]
        assert np.abs(together_).max() < 5 / np.sqrt(len(found))


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


@pytest.mark.parametrize(("scheme", "options"), [("sample", {}), ("scale", {}), ("rounds", {"rounds": 2})])
def test_evidence_is_how_much_likelier_sums_are_by_the_coins_and_clips_of_the_plan(scheme, options):
    plan, random = planned(scheme, steps=4, **options), np.random.default_rng(1)
    blocks = np.array([100, 4])
    evidence, wanted, begin = Evidence(plan, np.array([0, 1]), blocks), np.zeros(2), 0
    for stage in plan.stages:
        told = np.zeros(2)
        for step in range(begin, begin + stage.steps):
            noise = plan.noise_at(step)
            dots = noise * random.standard_normal((2, 2))
            evidence.add(step, dots, noise**2 * blocks.astype(float))
            without, with_ = (stats.norm.pdf(dots.sum(1), mean, noise) for mean in (0.0, stage.clips))
            told += np.log(stage.rate * with_ + (1 - stage.rate) * without) - np.log(without)
        wanted += np.log(1 - stage.inclusion + stage.inclusion * np.exp(told))
        begin += stage.steps
    assert evidence.total == pytest.approx(wanted, rel=1e-9)


def test_noise_that_is_missing_is_believed_little_by_little():
    plan = planned("scale", steps=40)
    noise, blocks = plan.noise_at(0), np.array([100, 4])
    usual, low = (Evidence(plan, np.array([0, 1]), blocks) for _ in range(2))
    for step in range(plan.steps):
        for evidence, there in ((usual, [1, 1]), (low, [1, 0])):
            evidence.add(step, np.full((2, 2), noise), noise**2 * blocks * np.array(there, float))
        if step == 0:
            assert low.total == pytest.approx(usual.total, rel=0.1)
    assert np.all(low.total > 1.2 * usual.total)


def test_coins_of_canaries_are_fair_and_those_of_several_runs_their_own():
    included = Flock.in_space(np.zeros(100_000, int), [4], seed=1).included
    assert included.mean() == pytest.approx(0.5, abs=5 * 0.5 / np.sqrt(100_000))
    found = attacked(planned("scale", steps=2), canaries=256, make=lambda: nn.Linear(32, 4))  # in two runs
    one, other = slice(0, 128), slice(128, 256)
    assert np.array_equal(found.group[one], found.group[other])
    assert 0.3 < (found.included[one] == found.included[other]).mean() < 0.7
    assert abs(np.corrcoef(found.white[one], found.white[other])[0, 1]) < 5 / np.sqrt(128)


def test_canaries_stand_in_groups_alone_that_have_a_claim():
    plan = sartor.plan(people(1.0, np.inf), "uniform", steps=2, batch=50, accountant="rdp")
    assert np.isinf(plan.epsilon).tolist() == [False, True]
    assert spread(plan, 7).tolist() == [0] * 7


def test_whoever_rests_and_is_in_a_sum_all_the_same_is_told_by_it():
    plan = planned("sample", steps=40, filter="renyi", refresh=2, full_steps=4, accountant="rdp")
    rests, length, blocks = int(plan.rests_at[0]), float(expected_clips(plan)[:, 0].max()), np.array([100, 4])
    assert 0 < rests < plan.steps
    silent, told = (Evidence(plan, np.array([0]), blocks) for _ in range(2))
    for step in range(plan.steps):
        noise = plan.noise_at(step)
        for evidence, share in ((silent, 0.0), (told, 30 * noise / length if step >= rests else 0.0)):
            evidence.add(step, np.full((1, 2), share * length / 2), noise**2 * blocks.astype(float))
    assert told.total[0] > silent.total[0] + 1


def test_scores_of_the_published_form_are_never_taken_for_independent_as_its_rounds_share_coins():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = published_attack(
            net, records(), people(1.0, 4.0), lambda budgets: published(budgets, steps=2, batch=20, rounds=2, seed=1), canaries=20
        )
    assert len(found) == 20
    assert found.bounds == ONE_RUN


def test_a_model_instead_of_a_function_that_makes_one_is_refused():
    with pytest.raises(SartorError, match="a function that makes one"):
        canary_attack(nn.Linear(4, 2), TensorDataset(torch.zeros(HOLDERS, 4)), people(), planned("scale"), canaries=8)
