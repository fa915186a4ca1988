"""Replay of rounds by Flower's own strategy, with ClientApps that answer with an array of their own, far longer than any clip."""

import itertools

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'sartor[federated]'")

from sartor import Budgets, federated
from sartor.audit.replay import replay
from sartor.federated.rounds import Round
from sartor_testing.grids import LocalGrid, adds, node, run, serving

pytestmark = pytest.mark.usefixtures("identity")

CLIENTS = Budgets.from_groups([(1.0, 8), (3.0, 8)], delta=1e-3)
FAR = TensorDataset(torch.from_numpy(30 * np.random.default_rng(1).standard_normal((16, 3))))
ROUNDS = {"rounds": 4, "per_round": 6, "accountant": "rdp"}
PLAN = federated.plan(CLIENTS, "scale", **ROUNDS)


@pytest.fixture
def rounds(tmp_path):
    folders = (tmp_path / str(number) for number in itertools.count())

    def train(data, seed):
        updates = zip(CLIENTS.epsilon.tolist(), data.tensors[0].numpy(), strict=True)
        grid = LocalGrid({100 + i: node(100 + i, adds(update), epsilon=epsilon, delta=1e-3) for i, (epsilon, update) in enumerate(updates)})
        with serving(next(folders), grid, {"vector": np.zeros(3)}, seed=seed, scheme="scale", **ROUNDS) as strategy:
            return [run(strategy, grid)[1].tolist() for _ in range(PLAN.rounds)]

    return train


def test_no_client_of_flowers_strategy_moves_a_round_by_more_than_their_clip(rounds):
    found = replay(rounds, FAR, CLIENTS, PLAN, holders=3)
    assert found.verdict == "consistent", found.faults
    assert (found.steps, found.holders_tried, found.ended) == (4, 3, True)
    assert 0.99 < found.largest_move <= 1 + 1e-9


def test_a_client_whom_flowers_strategy_does_not_clip_is_named(rounds, monkeypatch):
    monkeypatch.setattr("sartor.federated.rounds.clipped", lambda update, clip: (update, clip))
    assert any("moved by more than the clip" in fault for fault in replay(rounds, FAR, CLIENTS, PLAN, holders=3).faults)


def test_a_round_that_flowers_strategy_does_not_charge_before_it_is_released_is_named(rounds, monkeypatch):
    monkeypatch.setattr("sartor.federated.flower.Round", lambda *given, charged, **more: Round(*given, charged=charged - 1, **more))
    assert "a sum left before its step was charged." in replay(rounds, FAR, CLIENTS, PLAN, holders=1).faults
