"""Replay of what users have: networks of many kinds, holders with many records, runs that go on, rounds, students."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import TensorDataset

import sartor
from sartor import federated, layers, pate
from sartor.audit.replay import replay
from sartor.audit.replay_rounds import replay_rounds
from sartor.audit.replay_votes import replay_votes
from sartor_testing import many_records
from sartor_testing import private_runs as runs
from sartor_testing.amount import examples, most_are_long

# --- networks, data and holders drawn by lot ---

QUICK = [Phase.explicit, Phase.reuse, Phase.generate]  # to look for a simpler example would take minutes


UNCLIPPED = "clipping, as nothing of those who were zeroed was as long as their clip"


class Last(nn.Module):
    """A recurrent layer's last output."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, inputs):
        return self.layer(inputs)[0][:, -1]


# a network of so many units, and the shape of its records; whole numbers, where it looks them up
NETWORKS = {
    "convolution": (lambda width: nn.Sequential(nn.Conv2d(2, width, 3), nn.ReLU(), nn.Flatten(), nn.Linear(width * 4, 3)), (2, 4, 4)),
    "groups": (lambda width: nn.Sequential(nn.Conv1d(2, 2 * width, 2, groups=2), nn.GroupNorm(2, 2 * width), nn.Flatten()), (2, 4)),
    "recurrent": (lambda width: nn.Sequential(Last(layers.GRU(3, width, batch_first=True)), nn.Linear(width, 3)), (5, 3)),
    "words": (lambda width: nn.Sequential(nn.Embedding(9, width), nn.LayerNorm(width), nn.Flatten(), nn.Linear(4 * width, 3)), (4,)),
    "attention": (lambda width: nn.Sequential(nn.TransformerEncoderLayer(4, 2, 4 * width, 0.0, batch_first=True), nn.Flatten()), (3, 4)),
}


@settings(max_examples=examples(5, 60), phases=QUICK)
@given(
    st.sampled_from(sorted(NETWORKS)),
    st.integers(1, 3),
    st.integers(0, runs.HOLDERS - 1),
    st.sampled_from(["scale", "sample", "rounds"]),
    st.sampled_from([1e-3, 1.0, 1e3]),
    st.integers(0, 2**31),
)
def test_no_holder_of_any_network_moves_more_than_their_clip(kind, width, holder, scheme, scale, seed):
    make, shape = NETWORKS[kind]
    draw, size = torch.Generator().manual_seed(seed), (runs.HOLDERS, *shape)
    inputs = torch.randint(9, size, generator=draw) if kind == "words" else scale * torch.randn(size, generator=draw)
    data = TensorDataset(inputs, torch.randint(3, (runs.HOLDERS,), generator=draw))
    plan = sartor.plan(runs.people(), scheme, steps=3, batch=20, clip=0.05, **({"rounds": 2} if scheme == "rounds" else {}))

    def train(given_, seed):
        return sartor.fit(make(width), given_, runs.people(), plan, seed=seed, progress=False).account.to_json()

    found = replay(train, data, runs.people(), plan, holders=[holder], seed=seed)
    assert found.verdict == "consistent", found.faults
    assert set(found.unseen) <= {UNCLIPPED}
    assert (found.largest_move < 0.99) == (UNCLIPPED in found.unseen)
    assert found.largest_move <= 1 + 1e-6


@settings(max_examples=examples(3, 30), phases=QUICK)
@given(st.integers(0, runs.HOLDERS - 1), st.sampled_from([1, 3, 7]), st.sampled_from(["mean", "sum"]), st.sampled_from(["scale", "sample"]))
def test_nobody_with_many_records_moves_more_than_their_one_clip(holder, most, combine, scheme):
    plan, owned = many_records.planned(scheme, records_per_holder=most, combine=combine), many_records.owned()
    data = TensorDataset(many_records.visits().tensors[0] * 50, many_records.visits().tensors[1])

    def train(given_, seed):
        return sartor.fit(runs.net(), given_, runs.people(), plan, ownership=owned, seed=seed, progress=False).account.to_json()

    found = replay(train, data, runs.people(), plan, ownership=owned, holders=[holder])
    assert found.verdict == "consistent", found.faults
    assert found.complete == (found.largest_move > 0.99)
    assert set(found.unseen) <= {UNCLIPPED}


# --- runs that go on ---

STRETCHES = {"refresh": 2, "full_steps": 4}
GO_ON = {
    "ladder": {"filter": "ladder", **STRETCHES},
    "renyi": {"filter": "renyi", "accountant": "rdp", **STRETCHES},
    "rounds": {"scheme": "rounds", "rounds": 3},
    "hybrid": {"scheme": "hybrid", "mix": 0.5},
}


@pytest.mark.parametrize("name", most_are_long(GO_ON, 1))
@pytest.mark.parametrize("step", most_are_long([4, 5], 1))
def test_a_run_that_is_taken_up_again_is_replayed_under_every_scheme(name, step, tmp_path):
    plan = sartor.plan(runs.people(), **{"scheme": "scale", "steps": 9, "batch": 20, "clip": 0.05, **GO_ON[name]})
    folders = (tmp_path / str(number) for number in itertools.count())

    def train(data, seed):
        folder = next(folders)
        runs.stopped_at(step, folder, dataset=data, seed=seed, plan=plan, model=runs.net())
        again = sartor.Checkpoints(folder, resume=True)
        return runs.fitted(checkpoints=again, dataset=data, seed=seed, plan=plan, model=runs.net()).account.to_json()

    found = replay(train, runs.records(), runs.people(), plan, holders=2)
    assert found.verdict == "consistent", found.faults
    assert (found.steps, found.ended) == (plan.steps, True)


# --- rounds ---

CLIENTS = sartor.Budgets.from_groups([(1.0, 8), (3.0, 8)], delta=1e-3)
FAR = TensorDataset(torch.from_numpy(30 * np.random.default_rng(1).standard_normal((16, 3))))
ROUNDS = {"scale": {}, "uniform": {}, "sample": {}, "hybrid": {"mix": 0.5}, "exclude": {"threshold": 2.0}}


@pytest.mark.parametrize("scheme", ROUNDS)
def test_no_client_moves_a_round_by_more_than_their_clip_under_any_scheme(scheme):
    plan = federated.plan(CLIENTS, scheme, rounds=5, per_round=6, accountant="rdp", **ROUNDS[scheme])

    def answer(data, client, model, number):
        return {"vector": model["vector"] + data.tensors[0][client].numpy()}

    found = replay_rounds(answer, FAR, {"vector": np.zeros(3)}, CLIENTS, plan, holders=3)
    assert (found.verdict, found.unseen, found.steps) == ("consistent", (), 5), found.faults
    assert 0.99 < found.largest_move <= 1 + 1e-9


# --- votes that a student answers as well ---

VOTERS = sartor.Budgets.from_shares([3, 1, 2], [0.2, 0.5, 0.3], holders=600, delta=1e-5, seed=1)


@pytest.mark.parametrize("variant", ["standard", "upsample", "weight", "vanish"])
def test_votes_beside_a_students_own_labels_are_replayed(variant):
    kind = pate.Interactive(noise=20, threshold=8, threshold_noise=30)
    plan = pate.plan(VOTERS, variant, teachers=30, aggregator=kind)
    draw = np.random.default_rng(1)
    found = replay_votes(plan, draw.integers(5, size=(120, plan.teachers)), 5, student=draw.dirichlet(np.full(5, 0.1), 120))
    assert found.verdict == "consistent", found.faults
    assert 0.99 < found.largest_move <= 1 + 1e-9
