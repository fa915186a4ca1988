"""Replay: every scheme moves sums by a clip at most, and what moves something else is named."""

import logging
import random
import sys
import threading
import time
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.neighbors import KNeighborsClassifier
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset, TensorDataset

import sartor
from sartor import federated, pate
from sartor.audit import replay_votes as ensembles
from sartor.audit.choice import chosen
from sartor.audit.noise import DEVIATION
from sartor.audit.replay import Replayed, replay, without
from sartor.audit.replay_rounds import replay_rounds
from sartor.audit.replay_votes import Votings, replay_ensemble, replay_votes
from sartor.audit.replay_votes import _of_noise as of_noise
from sartor.audit.replay_votes import _tests_are_alike as thought_alike
from sartor.audit.shown import Shown, compared
from sartor.errors import SartorError
from sartor.federated import AdaptiveClip
from sartor.federated.rounds import Round, ServerOptimizer
from sartor.pate.voting import Voting
from sartor.run.sampling import PoissonSampler
from sartor.run.stream import Stream
from sartor.run.witness import looked_at_by, seen
from sartor.sgd import fit_members
from sartor.sgd.gradients.engine import PerExample
from sartor_testing import many_records
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
    assert found.to_json(sensitive=True) == {
        "attack": "replay",
        "verdict": "consistent",
        "steps": 6,
        "holders_tried": 2,
        "largest_move": found.largest_move,
        "faults": [],
        "unseen": [],
        "ended": True,
        "sensitive": True,
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


RAW = {"data set": LOUD, "pair": LOUD.tensors, "columns": {name: t.numpy() for name, t in zip("xy", LOUD.tensors, strict=True)}}


@pytest.mark.parametrize("kind", RAW)
def test_records_that_train_makes_of_other_peoples_are_named(kind):
    def train(data, seed):
        columns = data.tensors if kind == "data set" else data if kind == "pair" else map(torch.from_numpy, data.values())
        unchecked(runs.planned("scale", 4), Centred(*columns), seed)

    assert "a sum moved" in faults(train=train, dataset=RAW[kind])


def test_what_a_data_set_makes_of_several_records_inside_is_told_to_be_unseen():
    found = replayed(train=lambda data, seed: unchecked(runs.planned("scale", 4), data, seed), dataset=Centred(*LOUD.tensors))
    assert "records that Centred makes of several people's inside: give replay the raw ones, and make it in train" in found.unseen
    with pytest.raises(AttributeError, match="give replay the raw records"):
        replayed(train=lambda data, seed: data.inputs.mean(), dataset=Centred(*LOUD.tensors))


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
    with looked_at_by(object()):  # which knows nothing of a run that was made before, in private
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


SPLIT = sartor.Budgets.from_groups([(1.0, 100), (4.0, 60)], delta=1e-3)


def learnt(teachers=None, variant="upsample", **settings):
    """A replay of an ensemble of nearest neighbours."""
    generator = torch.Generator().manual_seed(1)
    data = TensorDataset(torch.randn(160, 3, generator=generator), torch.randint(0, 3, (160,), generator=generator))
    data.tensors[0][7, 0] = 100
    plan = pate.plan(SPLIT, variant, teachers=8, aggregator=pate.GNMax(noise=20))
    made = teachers or pate.EstimatorTeachers(KNeighborsClassifier(1), workers=1, seed=0, progress=False)
    return replay_ensemble(made, data, torch.randn(12, 3, generator=generator), 3, SPLIT, plan, **settings)


@pytest.mark.parametrize("variant", ["standard", "upsample", "weight", "vanish"])
def test_no_holder_reaches_other_teachers_than_their_own(variant):
    found = learnt(variant=variant, holders=3)
    assert found.verdict == "consistent", found.faults
    assert (found.holders_tried, found.unseen) == (3, ())
    assert 0.99 < found.largest_move <= 1 + 1e-9


def test_holders_with_several_records_are_replayed_with_all_of_them():
    owned = sartor.Ownership(np.arange(160) % 40, 40)
    people = sartor.Budgets.from_groups([(1.0, 25), (4.0, 15)], delta=1e-3)
    plan = pate.plan(people, "weight", teachers=8, aggregator=pate.GNMax(noise=20), ownership=owned)
    data = TensorDataset(torch.randn(160, 3), torch.randint(0, 3, (160,)))
    teachers = pate.EstimatorTeachers(KNeighborsClassifier(1), workers=1, seed=0, progress=False)
    found = replay_ensemble(teachers, data, torch.randn(12, 3), 3, people, plan, ownership=owned, holders=[3])
    assert found.verdict == "consistent", found.faults


class Scaled(pate.EstimatorTeachers):
    """Teachers whose records are scaled by all records, before they are dealt out."""

    def taught(self, dataset, slices, queries, *given):
        inputs, labels = dataset.tensors
        spread = inputs.amax(0) - inputs.amin(0)
        return super().taught(TensorDataset(inputs / spread, labels), slices, queries, *given)


def test_teachers_that_share_a_scaler_are_named():
    teachers = Scaled(KNeighborsClassifier(1), workers=1, seed=0, progress=False)
    assert "teachers who were taught none of the holder's records vote otherwise without them." in learnt(teachers, holders=[7]).faults


def test_records_with_more_teachers_than_planned_are_named(monkeypatch):
    right = ensembles.partition

    def doubled(*given, **options):
        placed = right(*given, **options)
        rows, of_row = np.append(placed.rows, placed.rows), np.append(placed.of_row, (placed.of_row + 1) % placed.teachers)
        return type(placed)(placed.teachers, rows, of_row)

    monkeypatch.setattr(ensembles, "partition", doubled)
    faults = " ".join(learnt(variant="standard", holders=1).faults)
    assert "more teachers than the plan says" in faults
    assert "moved a count by more than the plan says" in faults


def test_teachers_without_a_seed_cannot_be_taught_again():
    with pytest.raises(SartorError, match="only teachers with a seed"):
        learnt(pate.EstimatorTeachers(KNeighborsClassifier(1), workers=1, progress=False))
    with pytest.raises(SartorError, match="places in the budgets"):
        learnt(holders=[160])
    with pytest.raises(SartorError, match="1 or more"):
        learnt(holders=0)


def test_rounds_are_looked_at_up_to_those_that_were_asked_for():
    plan = federated.plan(CLIENTS, "scale", rounds=5, per_round=10, accountant="rdp")
    assert replay(rounds_of(plan), LONG, CLIENTS, plan, holders=1, most_steps=2).steps == 2


def test_a_server_that_follows_bare_answers_is_named():
    """The model moves by what clients sent, beside what was released."""
    plan = federated.plan(CLIENTS, "scale", rounds=4, per_round=10, accountant="rdp")
    data = TensorDataset(torch.from_numpy(LONG["bias"]))

    def answer(data, client, model, number):
        model["bias"] += 1e-3 * data.tensors[0][client].numpy()
        return {"bias": model["bias"] + data.tensors[0][client].numpy()}

    class Moved(ServerOptimizer):
        def step(self, mean):
            return super().step({"bias": mean["bias"] + (self.handed["bias"] - self.start)})

        @property
        def model(self):
            self.handed = super().model
            self.start = self.handed["bias"].copy()
            return self.handed

    found = replay_rounds(answer, data, {"bias": np.zeros(3)}, CLIENTS, plan, server=Moved, holders=2)
    assert "what anybody may see of the model between steps differs although the same was released." in found.faults


# --- what is seen of a run beside its releases ---


def trained(data, seed, plan=None, make=runs.net, each=lambda model, inputs, targets: None, **settings):
    """A user's own loop, in which something is done with every batch."""
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    plan = runs.planned("scale", 4) if plan is None else plan
    settings = {"seed": seed, "check": False, **settings}
    model, optimizer, loader = sartor.make_private(model, optimizer, data, runs.people(), plan, **settings)
    for inputs, targets in loader:
        optimizer.zero_grad()
        functional.cross_entropy(model(inputs), targets).backward()
        each(model, inputs, targets)
        optimizer.step()
    return model, optimizer


def calibrated(data, seed):
    model, optimizer = trained(data, seed)
    sartor.sgd.private.unwrap(model, optimizer)
    with torch.no_grad():
        next(model.parameters()).add_(1e-3 * data.tensors[0].mean())
    return model


def best(data, seed):
    """The model as it was when the loudest record came first, or at the end."""
    kept = {}

    def keep(model, inputs, targets):
        if not kept.get("loud"):
            kept.update(loud=bool((inputs.abs() > 1e3).any()), state={name: value.clone() for name, value in model.state_dict().items()})

    trained(data, seed, each=keep)
    return kept["state"]


def written(tmp_path, mode):
    numbers = (str(i) for i in range(99))

    def train(data, seed):
        trained(data, seed)
        path = tmp_path / next(numbers)
        path.mkdir()
        (path / "mean.txt").write_text(str(float(data.tensors[0].mean())))
        (path / "mean.txt").chmod(mode)
        return path

    return train


def total(data):
    return float(data.tensors[0].sum())


def louder(holder):
    inputs, targets = (tensor.clone() for tensor in runs.records().tensors)
    inputs[holder] = 1e4
    return TensorDataset(inputs, targets)


CHANNELS = {
    "returned": calibrated,
    "at the end": calibrated,
    "what is returned": best,
    "what is printed": lambda data, seed: print(total(data), file=sys.stderr) or trained(data, seed)[0],
    "what is printed by a logger": lambda data, seed: logging.getLogger("mine").warning("%s", total(data)) or trained(data, seed)[0],
    "what is printed by a warning": lambda data, seed: warnings.warn(str(total(data)), stacklevel=1) or trained(data, seed)[0],
}


@pytest.mark.parametrize("words", CHANNELS)
@pytest.mark.filterwarnings("always:")
def test_whatever_follows_a_holder_beside_the_releases_is_named(words):
    train = CHANNELS[words]
    found = [replay(train, louder(holder), runs.people(), runs.planned("scale", 4), holders=[holder]) for holder in range(6)]
    assert any(words.partition(" by ")[0] in fault for one in found for fault in one.faults)


def test_files_that_others_may_read_are_compared_where_their_path_is_returned(tmp_path):
    names = {}
    for mode in (0o644, 0o600):
        (tmp_path / oct(mode)).mkdir()
        train = written(tmp_path / oct(mode), mode)
        names[mode] = " ".join(replay(train, runs.records(), runs.people(), runs.planned("scale", 4), holders=1).faults)
    assert "a file that others may read" in names[0o644]
    assert names[0o600] == ""


def test_clocks_say_nothing_of_anybody():
    def train(data, seed):
        print("took", time.perf_counter())
        model, _ = trained(data, seed)
        return {"seconds": time.perf_counter(), "object": object(), "weights": model.state_dict(), "nothing": torch.tensor([torch.nan])}

    found = replayed(train=train)
    assert found.verdict == "consistent", found.faults
    assert len(found.unseen) == 2
    assert all("differs from run to run" in one for one in found.unseen)


def test_a_result_of_fit_can_be_returned():
    plan = runs.planned("scale", 4)
    found = replay(lambda data, seed: runs.fitted(plan=plan, dataset=data, seed=seed), LOUD, runs.people(), plan, holders=1)
    assert found.verdict == "consistent", found.faults


def test_how_a_run_ends_must_not_follow_private_data():
    def train(data, seed):
        trained(data, seed)
        if total(data) != total(LOUD):
            raise ValueError("something of a record")

    found = replayed(train=train)
    assert "whether and how the run comes to its end follows the holder's records." in found.faults
    assert "record " not in " ".join(found.faults).replace("holder's records", "")


def test_an_error_of_the_first_run_is_the_users_own():
    with pytest.raises(ZeroDivisionError):
        replayed(train=lambda data, seed: 1 / 0)


def test_training_that_is_never_the_same_is_refused():
    generator = torch.Generator()

    def train(data, seed):
        moved = TensorDataset(data.tensors[0] + torch.randn(data.tensors[0].shape, generator=generator), data.tensors[1])
        trained(moved, seed)

    with pytest.raises(SartorError, match="not the same twice"):
        replayed(train=train)


def test_a_loop_that_tries_again_after_errors_is_stopped_all_the_same():
    def train(data, seed):
        for _ in range(3):
            try:
                return trained(data, seed)
            except Exception:
                continue
        return None

    plan = runs.planned("scale", 4)
    found = replay(train, LOUD, runs.people(), plan, holders=1, most_steps=2)
    assert (found.steps, found.ended, found.verdict) == (2, False, "consistent")


class Cached(Dataset):
    """Records that are kept once they were fetched."""

    def __init__(self, tensors):
        self.tensors, self.cache = tensors, {}

    def __len__(self):
        return len(self.tensors[0])

    def __getitem__(self, index):
        return self.cache.setdefault(index, tuple(tensor[index] for tensor in self.tensors))


def test_a_data_set_that_keeps_records_by_their_places_hides_nobody():
    data, plan = Cached(LOUD.tensors), runs.planned("scale", 4)

    def telling(data, seed):
        print(float(sum(data[i][0].sum() for i in range(len(data)))))
        trained(data, seed)

    sound = replay(lambda data, seed: trained(data, seed)[0], data, runs.people(), plan, holders=2)
    assert sound.verdict == "consistent", sound.faults
    assert "what is printed follows" in " ".join(replay(telling, data, runs.people(), plan, holders=1).faults)


def test_a_data_set_that_is_changed_in_place_is_as_it_was():
    before = LOUD.tensors[0].clone()

    def train(data, seed):
        data.tensors[0].div_(50)
        return trained(data, seed)[0]

    assert replayed(train=train).verdict == "consistent"
    assert torch.equal(LOUD.tensors[0], before)


def test_labels_in_ascending_order_are_replaced_as_well():
    order = LOUD.tensors[1].argsort()
    data = TensorDataset(*(tensor[order] for tensor in LOUD.tensors))
    replaced, missed = without(data, np.array([0]))
    assert not missed
    assert replaced.tensors[1][0] != data.tensors[1][0]
    last, _ = without(data, np.array([len(data) - 1]))
    assert last.tensors[1][-1] != data.tensors[1][-1]


class Augmented(Cached):
    def __init__(self, tensors, draw):
        super().__init__(tensors)
        self.draw = draw

    def __getitem__(self, index):
        return self.tensors[0][index] * self.draw(), self.tensors[1][index]


@pytest.mark.parametrize("draw", [lambda: torch.rand(()), lambda: float(np.random.rand()), random.random])  # noqa: NPY002
def test_records_that_are_changed_at_random_are_replayed_in_their_places(draw):
    found = replay(lambda data, seed: trained(data, seed)[0], Augmented(LOUD.tensors, draw), runs.people(), runs.planned("scale", 4))
    assert found.verdict == "consistent", found.faults


def test_the_size_of_a_batch_is_seen_where_a_model_draws_random_numbers():
    def train(data, seed):
        return trained(data, seed, make=runs.dropping, each=lambda model, inputs, targets: print(len(targets)))[0]

    found = replayed(train=train)
    assert "what is printed follows the holder's records." in found.faults
    assert any("sums of batches" in one for one in found.unseen)


def test_a_filter_and_dropout_are_replayed_together():
    plan = sartor.plan(runs.people(), "scale", steps=8, batch=20, clip=0.05, **{**LADDER, "filter": "renyi", "accountant": "rdp"})

    def train(data, seed):
        return sartor.fit(runs.dropping(), data, runs.people(), plan, seed=seed, progress=False).account.to_json()

    found = replay(train, LOUD, runs.people(), plan, holders=4)
    assert found.verdict == "consistent", found.faults


def test_a_loop_in_a_thread_is_looked_at():
    def train(data, seed):
        model = runs.net()
        model, optimizer, loader = runs.private(model, dataset=data, seed=seed)
        thread = threading.Thread(target=runs.train, args=(model, optimizer, loader))
        thread.start()
        thread.join()
        return runs.flat(model)

    found = replayed(runs.planned(), train)
    assert (found.verdict, found.steps) == ("consistent", runs.planned().steps)


@pytest.mark.parametrize("batch", [0.02, runs.HOLDERS - 0.02])
def test_batches_that_can_hardly_vary_are_not_too_even(batch):
    plan = sartor.plan(runs.people(), "uniform", steps=20, batch=batch, accountant="rdp")
    found = [replay(lambda data, seed: trained(data, seed, plan)[0], LOUD, runs.people(), plan, holders=1, seed=seed) for seed in range(3)]
    assert [one.verdict for one in found] == ["consistent"] * 3


def test_a_small_clip_beside_large_ones_is_held_to_its_own(monkeypatch):
    people = sartor.Budgets.from_groups([(0.05, 30), (50.0, 30)], delta=1e-3)
    plan = sartor.plan(people, "scale", steps=4, batch=50, accountant="rdp")
    data = TensorDataset(LOUD.tensors[0][:60], LOUD.tensors[1][:60])
    strict = float(plan.clips.min())
    right = PerExample.open

    def looser(self, clips, *rest):
        return right(self, torch.where(clips < 2 * strict, 1.5 * clips, clips), *rest)

    monkeypatch.setattr(PerExample, "open", looser)

    def train(data, seed):
        model = runs.net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        runs.train(*sartor.make_private(model, optimizer, data, people, plan, seed=seed, check=False))

    found = replay(train, data, people, plan, holders=6)
    assert "a sum moved by more than the clip of the holder who was zeroed." in found.faults
    assert found.largest_move == pytest.approx(1.5, rel=1e-3)


@pytest.mark.parametrize("holders", [0, -1, [], [0.5], ["ann"]])
def test_some_holder_must_be_tried(holders):
    with pytest.raises(SartorError, match="holders"):
        replayed(holders=holders)


def test_rounds_whose_draws_nobody_saw_are_refused():
    plan = federated.plan(CLIENTS, "scale", rounds=2, per_round=10, accountant="rdp")

    def train(data, seed):
        stream = Stream(seed)
        draw = PoissonSampler(plan.accounted, CLIENTS, stream).draw(0)
        Round(plan, draw, {"bias": np.zeros(3)}, plan.accounted.clip).release(stream)

    with pytest.raises(SartorError, match="nobody was seen to be drawn"):
        replay(train, LONG, CLIENTS, plan)


def test_a_voting_without_queries_is_refused():
    plan = pate.plan(PEOPLE, "weight", teachers=30, aggregator=KINDS[0])
    with pytest.raises(SartorError, match="no query was asked"):
        replay_votes(plan, np.zeros((0, 30), int), 5)


# --- what could not be looked at is said ---


def test_a_private_run_in_another_thread_is_left_alone_and_told_of():
    told = []

    class Listening:
        def __getattr__(self, name):
            return lambda *given_, **how: told.append(name)

    def apart():
        runs.train(*runs.private(seed=None))
        told.append("done")

    with looked_at_by(Listening()):
        thread = threading.Thread(target=apart)
        thread.start()
        thread.join()
    assert set(told) == {"overlooked", "done"}

    def train(data, seed):
        thread = threading.Thread(target=apart)
        thread.start()
        thread.join()
        return trained(data, seed)[0]

    found = replayed(train=train, holders=1)
    assert found.verdict == "consistent", found.faults
    assert "a private run that began in another thread meanwhile" in found.unseen


def test_training_on_another_data_set_than_the_one_that_is_given_is_told():
    elsewhere = TensorDataset(*(tensor.clone() for tensor in LOUD.tensors))
    words = "records that train reads from elsewhere than the data set that it is given"
    assert words in replayed(train=lambda data, seed: trained(elsewhere, seed)[0], holders=1).unseen
    assert words not in replayed(train=lambda data, seed: trained(data, seed)[0], holders=1).unseen


def test_replay_and_training_must_have_the_same_ownership():
    plan = many_records.planned(steps=2, accountant="rdp")

    def train(data, seed):
        model, private, loader = many_records.private(plan, dataset=data, seed=seed)
        runs.train(model, private, loader)

    with pytest.raises(SartorError, match="another ownership"):
        replay(train, many_records.visits(), runs.people(), plan, holders=1)


def test_the_usual_random_numbers_go_on_as_if_nothing_had_been_replayed():
    def drawn(between):
        random.seed(5)
        np.random.seed(5)  # noqa: NPY002
        torch.manual_seed(5)
        between()
        return random.random(), float(np.random.rand()), float(torch.rand(()))  # noqa: NPY002

    assert drawn(lambda: replayed(train=lambda data, seed: trained(data, seed)[0], holders=1)) == drawn(lambda: None)


@pytest.mark.parametrize(
    ("mode", "folder", "is_open"), [(0o604, 0o755, True), (0o640, 0o755, True), (0o600, 0o755, False), (0o644, 0o700, False)]
)
def test_a_file_is_open_where_somebody_else_may_read_it_and_enter_its_folder(mode, folder, is_open, tmp_path):
    file = tmp_path / "inner" / "mean.txt"
    file.parent.mkdir()
    file.write_text("1")
    file.chmod(mode)
    file.parent.chmod(folder)
    shown = Shown()
    shown.returned(tmp_path)
    assert (shown.pieces()["written", "0", "inner/mean.txt"] != "for its owner alone") == is_open


@pytest.mark.parametrize("change", ["grad", "mean"])
def test_what_a_model_holds_beside_its_parameters_is_compared(change):
    def shown(value):
        model, found = runs.net(), Shown()
        model[0].weight.grad, model[2].mean = torch.zeros(5, 4), 0.0
        if change == "grad":
            model[0].weight.grad += value
        else:
            model[2].mean = value
        found.returned([model])
        return found

    assert not shown(1.0).unlike(shown(1.0))
    assert shown(1.0).unlike(shown(2.0))


def test_it_is_asked_again_whether_a_piece_follows_the_holder():
    def said(text):
        found = Shown()
        found.returned({"seconds": text})
        return found

    clock = iter("112")  # the first run once more, in another second at last
    never = {"what is returned, as it differs from run to run"}
    assert compared(said("1"), said("2"), control=lambda: said(next(clock)), again=lambda: said("2")) == ([], never)
    found, _ = compared(said("1"), said("2"), control=lambda: said("1"), again=lambda: said("2"))
    assert found == ["what is returned follows the holder's records although the same was released."]


class Counting:
    """Clients who answer louder each time."""

    def __init__(self):
        self.times = {}

    def __call__(self, data, client, model, number):
        self.times[client] = self.times.get(client, 0) + 1
        return {"bias": model["bias"] + 1e-3 * self.times[client] * data.tensors[0][client].numpy()}


def test_every_run_of_rounds_has_clients_who_remember_nothing_yet():
    plan = federated.plan(CLIENTS, "scale", rounds=4, per_round=10, accountant="rdp")
    found = replay_rounds(Counting(), TensorDataset(torch.ones(40, 3)), {"bias": np.zeros(3)}, CLIENTS, plan, holders=2)
    assert found.verdict == "consistent", found.faults


def test_what_labels_and_passes_of_a_voting_follow_from_is_looked_at():
    plan = pate.plan(PEOPLE, "weight", teachers=30, aggregator=KINDS[1])
    polls = list(Votings(plan, votes_for(plan), 5, student=None, seed=0, go_on=False)._tape.polls.values())
    assert of_noise(plan, polls, None) == []
    follow = "labels, or whether there are any, follow from more than noisy counts."
    assert of_noise(plan, [poll._replace(labels=poll.counts.argmax(1)) for poll in polls], None) == [follow]
    assert of_noise(plan, [poll._replace(passed=~poll.passed) for poll in polls], None) == [follow]
    quiet = [poll.test._replace(noisy=poll.test.figure + 1e-3 * (poll.test.noisy - poll.test.figure)) for poll in polls]
    untested = [poll._replace(test=test, passed=test.noisy > test.threshold) for poll, test in zip(polls, quiet, strict=True)]
    assert of_noise(plan, untested, None) == [DEVIATION]


@pytest.mark.parametrize("kind", KINDS, ids=["every", "confident"])
def test_a_tenth_less_than_was_moved_is_charged_too_little(kind, monkeypatch):
    right = Voting._prices
    monkeypatch.setattr(Voting, "_prices", lambda self: tuple(0.9 * price for price in right(self)))
    plan = pate.plan(PEOPLE, "weight", teachers=30, aggregator=kind)
    assert "a group is charged for less than its members moved." in replay_votes(plan, votes_for(plan), 5).faults


def test_what_a_replay_finds_is_sensitive_unless_the_records_may_be_shown():
    def fitted(data, seed):
        return sartor.fit(runs.net(), data, runs.people(), runs.planned("scale", 4), seed=seed, progress=False).account.to_json()

    for how, sensitive in (({}, True), ({"sensitive": False}, False)):
        found = replay(fitted, LOUD, runs.people(), runs.planned("scale", 4), holders=1, most_steps=1, **how)
        assert found.sensitive == sensitive
        assert found.to_json(sensitive=sensitive).get("sensitive", False) == sensitive
    plan = pate.plan(PEOPLE, "weight", teachers=30, aggregator=KINDS[0])
    assert replay_votes(plan, np.random.default_rng(1).integers(5, size=(5, 30)), 5).sensitive


def test_a_threshold_or_a_noise_of_the_test_that_follows_a_holder_is_not_alike():
    plan = pate.plan(PEOPLE, "weight", teachers=30, aggregator=KINDS[1])
    poll = next(iter(Votings(plan, votes_for(plan), 5, student=None, seed=0, go_on=False)._tape.polls.values()))
    assert thought_alike(poll, poll, plan)
    for change in ({"threshold": poll.test.threshold + 1e-3}, {"noisy": poll.test.noisy + 1}):
        assert not thought_alike(poll, poll._replace(test=poll.test._replace(**change)), plan)
    assert not thought_alike(poll, poll._replace(test=None), plan)


def test_groups_take_turns_in_being_zeroed_and_whoever_was_drawn_most_often_is_the_first_of_theirs():
    group, drawn = np.array([0, 0, 0, 1, 1, 1]), np.array([0, 5, 2, 1, 0, 7])
    assert chosen(4, group, 0, drawn) == [1, 5, 2, 3]
    assert set(chosen(6, group, 0, drawn)[4:]) == {0, 4}
    assert chosen(2, group, 0, np.array([0, 0, 0, 1, 0, 7])) == [5, 3]  # a group of whom nobody was drawn waits
    assert sorted(group[chosen(2, group, 3)]) == [0, 1]


def test_rounds_are_replayed_at_the_clip_that_the_round_before_released(monkeypatch):
    clips, released = [], []

    class Noted(Round):
        def __init__(self, plan, draw, model, clip):
            clips.append(clip)
            super().__init__(plan, draw, model, clip)

        def release(self, stream):
            found = super().release(stream)
            released.append(found.clip)
            return found

    plan = federated.plan(CLIENTS, "scale", rounds=4, per_round=10, adaptive=AdaptiveClip(noise=2.0), accountant="rdp")
    monkeypatch.setattr("sartor.audit.replay_rounds.Round", Noted)
    data = TensorDataset(torch.ones(len(CLIENTS), 3))
    replay_rounds(lambda data, client, model, number: {"bias": model["bias"] + 1}, data, {"bias": np.zeros(3)}, CLIENTS, plan, holders=1)
    assert clips == [plan.accounted.clip, *released[:3]] * 3  # of the run, of one with a client far from all, and of one without the client
    assert len(set(clips)) == 4
