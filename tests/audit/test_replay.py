"""Replay: every scheme moves sums by a clip at most, and what moves something else is named."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset, TensorDataset

import sartor
from sartor import federated, pate
from sartor.audit.replay import Replayed, replay, without
from sartor.audit.replay_votes import replay_votes
from sartor.errors import SartorError
from sartor.federated import AdaptiveClip
from sartor.federated import rounds as rounds_module
from sartor.federated.rounds import Round
from sartor.federated.server import ServerOptimizer
from sartor.pate.voting import Voting
from sartor.run.sampling import PoissonSampler
from sartor.run.stream import Stream
from sartor.run.witness import looked_at_by, seen
from sartor.sgd import fit_members
from sartor_testing import private_runs as runs
from sartor_testing.amount import examples, most_are_long

LADDER = {"filter": "ladder", "refresh": 2, "full_steps": 4}
SCHEMES = {
    "sample": {},
    "scale": {},
    "rounds": {"rounds": 2},
    "equal": LADDER,
    "sequential": {},
    "uniform": {},
    "hybrid": {"mix": 0.5},
    "exclude": {"threshold": 2.0},
    "jorgensen": {},
    "adapdp": {"rounds": 2},
    "ladder": {"scheme": "scale", **LADDER},
    "renyi": {"scheme": "scale", **LADDER, "filter": "renyi", "accountant": "rdp"},
}
LOUD = TensorDataset(runs.records().tensors[0] * 50, runs.records().tensors[1])  # gradients far above every clip


def replayed(plan=None, train=None, dataset=LOUD, holders=2, **settings) -> Replayed:
    plan = runs.planned("scale", 4) if plan is None else plan

    def fitted(data, seed):
        how = fit_members if plan.scheme == "adapdp" else sartor.fit
        return how(runs.net(), data, runs.people(), plan, seed=seed, progress=False, **settings).account.to_json()

    return replay(train or fitted, dataset, runs.people(), plan, holders=holders)


def faults(**given_) -> str:
    found = replayed(**given_)
    assert (found.verdict == "refuted") == bool(found.faults)
    return " ".join(found.faults)


@pytest.mark.parametrize("name", most_are_long(SCHEMES, 4))
def test_nobody_moves_a_sum_by_more_than_their_clip_under_any_scheme(name):
    options = {"scheme": name, **SCHEMES[name]}
    plan = sartor.plan(runs.people(), options.pop("scheme"), steps=6, batch=20, clip=0.05, **options)
    found = replayed(plan)
    assert found.verdict == "consistent", found.faults
    assert (found.steps, found.holders_tried) == (6, 2)
    assert 0.99 < found.largest_move < 1 or plan.filter is not None
    assert found.to_json() == {
        "attack": "replay",
        "verdict": "consistent",
        "steps": 6,
        "holders_tried": 2,
        "largest_move": found.largest_move,
        "faults": [],
    }


def test_a_model_with_dropout_is_replayed_with_everybody_in_their_place():
    plan = runs.planned("scale", 4)

    def train(data, seed):
        return sartor.fit(runs.dropping(), data, runs.people(), plan, seed=seed, progress=False).account.to_json()

    assert replayed(plan, train).verdict == "consistent"


@pytest.mark.parametrize("optimizer", most_are_long([torch.optim.Adam, torch.optim.SGD], 1))
def test_a_loop_of_ones_own_is_replayed(optimizer):
    def train(data, seed):
        model = runs.net()
        model, private, loader = runs.private(model, dataset=data, seed=seed, optimizer=optimizer(model.parameters(), lr=0.1))
        runs.train(model, private, loader)
        return runs.flat(model)

    assert replayed(runs.planned(), train).verdict == "consistent"


def test_a_run_that_is_stopped_and_resumed_is_replayed(tmp_path):
    folders = (tmp_path / str(i) for i in range(99))

    def train(data, seed):
        folder = next(folders)
        runs.stopped_at(2, folder, dataset=data, seed=seed, plan=plan)
        return runs.fitted(checkpoints=sartor.Checkpoints(folder, resume=True), dataset=data, seed=seed, plan=plan).account.to_json()

    plan = runs.planned("scale", 5)
    assert replayed(plan, train).verdict == "consistent"


@settings(max_examples=examples(3, 40))
@given(st.integers(1, 4), st.sampled_from([nn.Tanh, nn.ReLU, nn.Sigmoid]), st.integers(0, runs.HOLDERS - 1), st.floats(1e-3, 1e3))
def test_any_network_and_any_holder_is_consistent(width, kind, holder, scale):
    data = TensorDataset(runs.records().tensors[0] * scale, runs.records().tensors[1])
    plan = runs.planned("sample", 3)

    def train(given_, seed):
        model = nn.Sequential(nn.Linear(4, width), kind(), nn.Linear(width, 3, bias=False))
        return sartor.fit(model, given_, runs.people(), plan, seed=seed, progress=False).account.to_json()

    found = replayed(plan, train, data, holders=[holder])
    assert found.verdict == "consistent", found.faults


class Centred(Dataset):
    """Every record less the mean of all: somebody's record is in everybody's."""

    def __init__(self, inputs, targets) -> None:
        self.inputs, self.targets = inputs, targets

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, i):
        return self.inputs[i] - self.inputs.mean(0), self.targets[i]


def unchecked(plan, data, seed, model=None, loss=None, reduction="mean", collate=None):
    """A loop whose checks are off, so that what it does wrong is left for others to find."""
    model = runs.net() if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    given_ = {"seed": seed, "check": False, "reduction": reduction, "collate": collate}
    model, optimizer, loader = sartor.make_private(model, optimizer, data, runs.people(), plan, **given_)
    for inputs, targets in loader:
        optimizer.zero_grad()
        (loss or functional.cross_entropy)(model(inputs), targets).backward()
        optimizer.step()


def test_a_data_set_whose_records_hold_other_peoples_is_named():
    data, plan = Centred(*LOUD.tensors), runs.planned("scale", 4)
    assert "a sum moved" in faults(train=lambda given_, seed: unchecked(plan, given_, seed), dataset=data)


def test_a_loss_that_mixes_people_is_named():
    plan = runs.planned("scale", 4)

    def loss(outputs, targets):
        return functional.cross_entropy(outputs - outputs.mean(0), targets)

    assert "a sum moved" in faults(train=lambda data, seed: unchecked(plan, data, seed, loss=loss))


def test_what_is_printed_or_returned_of_private_data_is_named():
    plan = runs.planned("scale", 3)

    def train(data, seed):
        print(float(data.tensors[0].mean()))
        unchecked(plan, data, seed)
        return float(data.tensors[0].sum())

    found = faults(train=train)
    assert "what is printed" in found
    assert "what is returned" in found


def test_a_model_that_follows_private_data_between_steps_is_named():
    plan = runs.planned("scale", 3)

    def train(data, seed):
        model = runs.net()
        with torch.no_grad():
            model[0].weight += data.tensors[0].mean()
        unchecked(plan, data, seed, model)

    assert "between steps" in faults(train=train)


def test_how_long_a_run_lasts_must_not_follow_private_data():
    plan = runs.planned("scale", 6)

    def train(data, seed):
        model, optimizer, loader = runs.private(plan=plan, dataset=data, seed=seed)
        batches = iter(loader)
        for _ in range(2 + int(data.tensors[0].mean() > LOUD.tensors[0].mean())):
            runs.take(model, optimizer, next(batches))

    found = [faults(train=train, holders=[holder]) for holder in range(4)]
    assert any("how many steps" in one or "more often" in one for one in found)


def test_only_seeded_runs_are_looked_at():
    with pytest.raises(SartorError, match="only a seeded run"):
        replayed(train=lambda data, seed: unchecked(runs.planned(), data, None))
    _, optimizer, loader = runs.private(seed=None)
    with looked_at_by(object()), pytest.raises(SartorError, match="only a seeded run"):
        next(iter(loader))
    assert optimizer.account().steps == 0


def test_training_that_runs_no_plan_is_refused():
    with pytest.raises(SartorError, match="nothing was released"):
        replayed(train=lambda data, seed: None)


@pytest.mark.parametrize("holders", [[-1], [runs.HOLDERS]])
def test_holders_are_places_in_the_budgets(holders):
    with pytest.raises(SartorError, match="places in the budgets"):
        replayed(holders=holders)


def test_a_run_is_looked_at_up_to_the_steps_that_were_asked_for():
    plan = runs.planned("scale", 6)
    train = lambda data, seed: unchecked(plan, data, seed)  # noqa: E731
    assert replay(train, LOUD, runs.people(), plan, holders=1, most_steps=3).steps == 3


def test_other_peoples_records_stand_in_the_places_of_the_zeroed():
    data, missed = without(LOUD, np.array([3, 7]))
    assert not missed
    same = (data.tensors[0] == LOUD.tensors[0]).all(1)
    assert np.flatnonzero(~same.numpy()).tolist() == [3, 7]
    assert torch.equal(LOUD.tensors[0], runs.records().tensors[0] * 50)


# --- federated rounds and votes ---

CLIENTS = sartor.Budgets.from_groups([(1.0, 20), (4.0, 20)], delta=1e-3)
LONG = {name: np.random.default_rng(1).standard_normal((40, *shape)) * 30 for name, shape in {"weight": (3, 2), "bias": (3,)}.items()}


def rounds_of(plan):
    """Training by rounds on a server: each client answers with the model and its own array, far longer than any clip."""

    def train(data, seed):
        stream, clip = Stream(seed), plan.accounted.clip
        sampler = PoissonSampler(plan.accounted, CLIENTS, stream)
        server = ServerOptimizer({name: np.zeros(part.shape[1:]) for name, part in data.items()})
        for step in range(plan.rounds):
            current = Round(plan, seen(stream, sampler.draw(step)), server.model, clip)
            for client in current.drawn:
                current.add(client, {name: part + data[name][client] for name, part in server.model.items()})
            released = current.release(stream)
            server.step(released.mean)
            clip = released.clip
        return {name: part.tolist() for name, part in server.model.items()}

    return train


@pytest.mark.parametrize("adaptive", [None, AdaptiveClip(noise=2.0)], ids=["fixed", "adaptive"])
def test_no_client_moves_a_round_by_more_than_its_share_of_the_clip(adaptive):
    plan = federated.plan(CLIENTS, "scale", rounds=5, per_round=10, adaptive=adaptive, accountant="rdp")
    found = replay(rounds_of(plan), LONG, CLIENTS, plan, holders=3)
    assert found.verdict == "consistent", found.faults
    assert 0.99 < found.largest_move <= 1


def test_an_update_that_is_clipped_array_by_array_is_named(monkeypatch):
    plan = federated.plan(CLIENTS, "scale", rounds=4, per_round=10, accountant="rdp")
    whole = rounds_module.clipped
    monkeypatch.setattr(rounds_module, "clipped", lambda update, clip: ([whole([part], clip)[0][0] for part in update], 0.0))
    found = replay(rounds_of(plan), LONG, CLIENTS, plan, holders=2)
    assert "a sum moved by more than the clip" in " ".join(found.faults)


PEOPLE = sartor.Budgets.from_shares([3, 1, 2], [0.2, 0.5, 0.3], holders=600, delta=1e-5, seed=1)


def votes_for(plan):
    return np.random.default_rng(1).integers(5, size=(120, plan.teachers))


KINDS = [pate.GNMax(noise=20), pate.Confident(noise=20, threshold=8, threshold_noise=30)]


@pytest.mark.parametrize("kind", KINDS, ids=["every", "confident"])
@pytest.mark.parametrize("variant", ["standard", "upsample", "weight", "vanish"])
def test_no_member_moves_votes_by_more_than_their_account_is_charged_for(variant, kind):
    plan = pate.plan(PEOPLE, variant, teachers=30, aggregator=kind)
    found = replay_votes(plan, votes_for(plan), 5)
    assert found.verdict == "consistent", found.faults
    assert found.steps > 0
    assert 0.99 < found.largest_move <= 1 + 1e-9


def test_votes_that_weigh_what_another_groups_should_are_named(monkeypatch):
    """Weights in the order of the epsilons, and not by whose they are: the strict are charged for less than they move."""
    plan = pate.plan(PEOPLE, "weight", teachers=30, aggregator=KINDS[0])
    right = Voting._multipliers

    def by_position(self, place, count):
        weights, sensitivity = right(self, place, count)
        return weights[:, ::-1].copy(), sensitivity

    monkeypatch.setattr(Voting, "_multipliers", by_position)
    monkeypatch.setattr(Voting, "_row_sensitivity", lambda self, weights: self.plan.sensitivity[None])
    found = replay_votes(plan, votes_for(plan), 5)
    assert "a group is charged for less than its members moved." in found.faults
