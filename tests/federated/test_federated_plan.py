"""The plan over clients: the paper's noise, rates by budget, and how noise is shared with the count."""

import json
from math import sqrt

import dp_accounting
import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st

import sartor
from sartor import federated
from sartor.errors import Infeasible, SartorError

CLIENTS = 3_383  # of federated EMNIST


@pytest.mark.parametrize(("epsilon", "noise"), [(1.0, 1.05461), (3.0, 0.708246)])
def test_the_papers_noise_for_one_budget(epsilon, noise):
    budgets = sartor.Budgets.from_groups([(epsilon, CLIENTS)], delta=1e-4)
    plan = federated.plan(budgets, "uniform", rounds=420, per_round=30, accountant="rdp")
    assert plan.accounted.noise_multiplier == pytest.approx(noise, rel=5e-4)
    accountant = RdpAccountant()  # and an independent accountant finds the budget kept
    round_ = dp_accounting.PoissonSampledDpEvent(30 / CLIENTS, dp_accounting.GaussianDpEvent(plan.accounted.noise_multiplier))
    accountant.compose(round_, 420)
    assert accountant.get_epsilon(1e-4) <= epsilon * 1.01


@pytest.mark.parametrize(
    ("rounds", "noise", "rates"), [(100, 0.920754, (0.00321, 0.01658, 0.02879)), (1_000, 1.32662, (0.00824, 0.01572, 0.02272))]
)
def test_noise_and_rates_of_the_authors_program(rounds, noise, rates):
    budgets = sartor.Budgets.from_shares([1, 2, 3], [0.34, 0.43, 0.23], holders=CLIENTS, delta=1e-5, seed=0)
    plan = federated.plan(budgets, "sample", rounds=rounds, per_round=50, accountant="rdp").accounted
    assert plan.noise_multiplier == pytest.approx(noise, rel=0.01)
    assert plan.rate == pytest.approx(rates, rel=0.03)


def test_the_adaptive_split_of_the_published_figure():
    accounted, count_noise = 0.742540, 1.5
    plan = _with_noise(accounted, count_noise)
    assert plan.count_noise == count_noise
    assert plan.update_noise_multiplier == pytest.approx(0.766387, abs=5e-7)


def _with_noise(multiplier, count_noise, shares=(1.0,)):
    """A plan of one round in which everyone takes part, with these numbers."""
    size = len(shares)
    arrays = {"epsilon": 1e6 + np.arange(size), "delta": np.full(size, 0.5), "holders": np.full(size, 30)}
    stage = sartor.plans.Stage(1, multiplier, rate=np.ones(size), clips=2.0 * np.array(shares))
    plan = sartor.Plan("scale", "rdp", batch=30.0, clip=2.0, stages=[stage], **arrays)
    return federated.FederatedPlan(plan, federated.AdaptiveClip(noise=count_noise))


@given(
    multiplier=st.floats(0.3, 20),
    above=st.floats(1.0001, 50),
    shares=st.lists(st.floats(0.1, 5), min_size=1, max_size=4, unique=True),
)
def test_updates_and_count_together_cost_each_group_what_is_accounted(multiplier, above, shares):
    plan = _with_noise(multiplier, above * multiplier / 2, shares)
    # from a client's side: a vector of norm share * clip under noise of the applied deviation, a number share / 2 under the count's
    clip = plan.accounted.clip
    vector = np.array(shares) * clip / (plan.update_noise_multiplier * clip)
    number = np.array(shares) / 2 / plan.count_noise
    joint = 1 / np.sqrt(vector**2 + number**2)
    assert np.all(joint >= plan.accounted.noise_multipliers)
    assert joint == pytest.approx(plan.accounted.noise_multipliers, rel=1e-9)
    assert plan.update_noise_multiplier > plan.accounted.noise_multiplier


@pytest.mark.parametrize("share", [1.0, 0.9999, 0.5])
def test_a_count_that_would_cost_more_than_the_round_is_refused(share):
    with pytest.raises(Infeasible, match="on the count alone costs more than a round may"):
        _with_noise(1.0, share / 2)
    _with_noise(1.0, 1.001 / 2)


def test_the_counts_usual_noise_is_a_twentieth_of_the_clients():
    budgets = sartor.Budgets.from_groups([(3.0, 1_000)], delta=1e-4)
    plan = federated.plan(budgets, rounds=10, per_round=30, adaptive=federated.AdaptiveClip())
    assert plan.count_noise == 1.5
    assert plan.update_noise_multiplier == pytest.approx(1 / sqrt(plan.accounted.noise_multiplier**-2 - 3.0**-2))


@settings(max_examples=12)
@given(order=st.permutations(range(60)), scheme=st.sampled_from(["sample", "scale", "hybrid"]))
def test_parameters_follow_clients_in_whatever_order_budgets_are_given(order, scheme):
    epsilon = np.repeat([3.0, 1.0, 2.0], 20)
    options = {"rounds": 20, "per_round": 10, "accountant": "rdp"}
    mixed = sartor.Budgets(epsilon[order], delta=1e-3)
    plan = federated.plan(mixed, scheme, **options).accounted
    group = plan.groups_of(mixed)
    reference = federated.plan(sartor.Budgets(np.sort(epsilon), delta=1e-3), scheme, **options).accounted
    for value in (1.0, 2.0, 3.0):
        members, place = group[mixed.epsilon == value], np.flatnonzero(reference.epsilon == value)[0]
        assert plan.rate[members] == pytest.approx(np.full(20, reference.rate[place]))
        assert plan.clips[members] == pytest.approx(np.full(20, reference.clips[place]))


def test_an_empty_group_in_between_changes_nothing():
    with_empty = sartor.Budgets.from_groups([(1.0, 40), (2.0, 0), (3.0, 60)], delta=1e-4)
    without = sartor.Budgets.from_groups([(1.0, 40), (3.0, 60)], delta=1e-4)
    one, other = (federated.plan(budgets, rounds=20, per_round=10).accounted for budgets in (with_empty, without))
    assert one.rate.tolist() == other.rate.tolist()
    assert one.groups_of(with_empty).tolist() == [0] * 40 + [1] * 60


def test_public_clients_have_the_caps_that_were_stated():
    budgets = sartor.Budgets.from_groups([(0.6, 950), (np.inf, 50)], delta=1e-4)
    plan = federated.plan(budgets, "sample", rounds=50, per_round=30, public_rate=0.2, public_clip=1.0, adaptive=federated.AdaptiveClip())
    assert plan.accounted.rate[1] == 0.2
    assert plan.shares[1] == 1.0
    assert plan.expected_share == pytest.approx(30)


def test_a_plan_survives_json_and_is_checked_again():
    budgets = sartor.Budgets.from_groups([(1.0, 40), (3.0, 60)], delta=1e-4)
    plan = federated.plan(budgets, rounds=20, per_round=50, adaptive=federated.AdaptiveClip(0.6, 0.3, 4.0))
    document = json.loads(json.dumps(plan.to_json(sensitive=True)))
    again = federated.FederatedPlan.from_json(document)
    assert again.update_noise_multiplier == plan.update_noise_multiplier
    assert again.adaptive == plan.adaptive
    with pytest.raises(Infeasible):
        federated.FederatedPlan.from_json({**document, "adaptive_clip": {**document["adaptive_clip"], "noise": 0.1}})


@pytest.mark.parametrize("wrong", [{"quantile": 1.5}, {"quantile": float("nan")}, {"lr": 0}, {"noise": 0}, {"noise": -1.0}])
def test_an_adaptive_clip_that_is_none_is_refused(wrong):
    with pytest.raises(SartorError):
        federated.AdaptiveClip(**wrong)


def test_an_adaptive_clip_needs_everyone_in_every_round():
    budgets = sartor.Budgets.from_groups([(1.0, 50), (2.0, 50)], delta=1e-3)
    with pytest.raises(SartorError, match="take turns"):
        federated.plan(budgets, "sequential", rounds=20, per_round=20, accountant="rdp", adaptive=federated.AdaptiveClip(noise=20.0))


def test_a_round_has_the_noise_of_the_plan_so_stages_that_differ_are_refused():
    arrays = {"epsilon": np.array([1e6]), "delta": np.array([0.5]), "holders": np.array([30])}
    stages = [sartor.plans.Stage(2, noise, rate=[0.5], clips=2.0) for noise in (3.0, 4.0)]
    with pytest.raises(sartor.SartorError, match="differs from stage to stage"):
        federated.FederatedPlan(sartor.Plan("own", "rdp", batch=15.0, clip=2.0, stages=stages, **arrays))
    coins = sartor.plans.Stage(2, 3.0, rate=[0.5], clips=2.0, inclusion=0.5)
    plan = sartor.Plan("own", "rdp", batch=15.0, clip=2.0, stages=[coins], **arrays)
    with pytest.raises(sartor.SartorError, match="a server that starts again has new coins"):
        federated.FederatedPlan(plan)
    once = sartor.Plan("own", "rdp", batch=15.0, clip=2.0, stages=[sartor.plans.Stage(2, 3.0, rate=[0.5], clips=2.0)] * 2, **arrays)
    federated.FederatedPlan(once)
    with pytest.raises(sartor.SartorError, match="everyone in every round"):
        federated.FederatedPlan(once, federated.AdaptiveClip(noise=5.0))
