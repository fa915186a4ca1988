"""Canary clients: no plan is refuted where rounds are sound. What they refute is in tests/mutants."""

import functools

import numpy as np
import pytest

import sartor
from sartor import federated
from sartor.audit.bounds import threshold_bound
from sartor.audit.clients import client_attack
from sartor.audit.evidence import Evidence
from sartor.errors import SartorError

DELTA = 1e-2
MODEL = {"weight": np.zeros((32, 64), np.float32), "seen": np.array(3), "bias": np.zeros(64, np.float32)}


@functools.cache
def people():
    return sartor.Budgets(np.random.default_rng(1).permutation(np.resize([1.0, 8.0], 100)), delta=DELTA)


@functools.cache
def planned(scheme="scale", adaptive=None):
    return federated.plan(people(), scheme, rounds=10, per_round=50, adaptive=adaptive)


def bounds(plan, canaries=1000, **settings):
    """White box, then black box."""
    found = client_attack(MODEL, people(), plan, canaries=canaries, seed=3, **settings)
    return [[threshold_bound(by_group[group], DELTA, 0.999) for group in range(2)] for by_group in (found.white_box, found.black_box)]


ADAPTIVE = federated.AdaptiveClip(noise=5.0)


@pytest.mark.parametrize(
    ("scheme", "adaptive"), [("scale", ADAPTIVE), ("sample", None), pytest.param("hybrid", ADAPTIVE, marks=pytest.mark.long)]
)
def test_no_federated_plan_is_refuted(scheme, adaptive):
    for strict, weak in bounds(planned(scheme, adaptive)):
        assert strict <= 1
        assert 0.3 < weak <= 8


def test_real_clients_hide_nobody_from_whoever_knows_them():
    """Their answers move models and clips, and are known to the attack."""

    def answer(client, model, number):
        if client % 7 == 0:
            return None
        random = np.random.default_rng([client, number])
        return {name: array + random.standard_normal(array.shape) if name != "seen" else array for name, array in model.items()}

    alone, beside = (client_attack(MODEL, people(), planned(), canaries=40, seed=3, answer=given) for given in (None, answer))
    assert alone.white == pytest.approx(beside.white, abs=1e-3)
    assert not np.array_equal(alone.black, beside.black)


def test_a_model_that_cannot_be_trained_has_no_canaries():
    with pytest.raises(SartorError, match="no floating-point array"):
        client_attack({"seen": np.array(3)}, people(), planned(), canaries=10)


@pytest.mark.parametrize("adaptive", [None, federated.AdaptiveClip(quantile=0.1, lr=0.5, noise=5.0)], ids=["fixed", "adaptive"])
def test_what_rounds_release_is_scored_in_units_of_the_planned_noise(adaptive, monkeypatch):
    plan, found, right = planned("scale", adaptive), [], Evidence.add

    def noted(self, step, dots, squares):
        found.append(squares / self._blocks)
        right(self, step, dots, squares)

    monkeypatch.setattr(Evidence, "add", noted)
    client_attack(MODEL, people(), plan, canaries=2, seed=3)
    assert len(found) == plan.rounds
    assert np.mean(found, axis=0) == pytest.approx(np.full(2, plan.accounted.noise**2), rel=0.25)
