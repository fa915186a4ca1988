"""Teachers: each depends on its own records alone, however they are trained."""

import subprocess
import sys
from functools import partial

import joblib
import numpy as np
import pytest
import torch
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn
from torch.utils.data import TensorDataset

from sartor.data import load
from sartor.errors import SartorError
from sartor.pate import teachers as module
from sartor.pate.networks import Training, augmented, batches, teacher_network
from sartor.pate.teachers import EstimatorTeachers, NetworkTeachers

DATA = load("digits")
X, Y = DATA.train.tensors
QUERIES = DATA.test.tensors[0][:120]
MAKE = partial(teacher_network, DATA.shape, DATA.classes)
SLICES = [np.arange(40), np.arange(40, 73), np.arange(73, 74), np.array([], int), np.arange(80, 200), np.arange(200, 232)]
FOREST = partial(RandomForestClassifier, 10)
BACKENDS = ["processes", "vmap"]


def network_votes(slices=SLICES, *, data=DATA.train, backend="processes", make=MAKE, workers=1, **settings):
    return networks(backend, make, workers, **settings).votes(data, slices, QUERIES)


def networks(backend="processes", make=MAKE, workers=1, **settings):
    settings = {"epochs": 2, "batch": 16, "seed": 3, "progress": False, **settings}
    return NetworkTeachers(make, backend=backend, workers=workers if backend == "processes" else None, **settings)


def taught(slices, backend):
    """Votes and weights of every teacher."""
    return {number: (votes, weights) for number, votes, weights in networks(backend).taught(DATA.train, slices, QUERIES, 3)}


def trained_alone(part, seed, *, epochs, batch, lr=1e-3):
    """A teacher by the plain loop of any tutorial."""
    torch.manual_seed(seed)
    model = MAKE()
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    for x, y in batches(X[part], Y[part], Training(epochs, batch, lr, True), seed):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model.eval()


@pytest.mark.parametrize("backend", BACKENDS)
def test_votes_have_a_row_for_each_query_and_a_column_for_each_slice(backend):
    votes = network_votes(backend=backend)
    assert votes.shape == (len(QUERIES), len(SLICES))
    assert votes.dtype == np.int16


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("other", [np.arange(90, 200), np.arange(80, 210), np.array([], int), np.arange(300, 420)])
def test_a_teacher_depends_on_no_records_but_its_own(backend, other):
    changed = [part if number != 4 else other for number, part in enumerate(SLICES)]
    before, after = taught(SLICES, backend), taught(changed, backend)
    assert (before[4][0] != after[4][0]).any()
    for number in set(range(len(SLICES))) - {4}:  # bit for bit, not only in what is voted
        (votes, weights), (same, too) = before[number], after[number]
        assert (votes == same).all()
        assert all(np.array_equal(weights[name], too[name]) for name in weights)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_teacher_is_the_network_trained_by_itself(backend):
    found = taught(SLICES, backend)
    for number in (0, 1, 4):
        alone = trained_alone(SLICES[number], module.seed_of(3, number), epochs=2, batch=16)
        votes, weights = found[number]
        torch.manual_seed(module.seed_of(3, number))
        start = MAKE().state_dict()
        for name, value in alone.state_dict().items():  # batch normalisation's running statistics among them
            way = np.linalg.norm((value - start[name]).numpy())  # Adam makes much of rounding where a gradient is almost zero
            assert np.linalg.norm(weights[name] - value.numpy()) < 0.1 * way, name
        with torch.no_grad():
            assert (votes == alone(QUERIES).argmax(1).numpy()).mean() > 0.97


def test_records_on_other_places_of_the_data_set_give_the_same_teachers():
    order = np.random.default_rng(0).permutation(len(X))
    place = np.argsort(order)
    moved = TensorDataset(X[order], Y[order])
    assert (network_votes(data=moved, slices=[place[part] for part in SLICES]) == network_votes()).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_teacher_without_records_votes_for_class_0(backend):
    assert (network_votes(backend=backend)[:, 3] == 0).all()
    assert (network_votes([[]], backend=backend) == 0).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_single_record_and_a_single_class_give_their_class(backend):
    sevens = np.flatnonzero(Y == 7)
    votes = network_votes([sevens[:1], sevens[:20], [0, 1]], backend=backend)
    assert (votes[:, :2] == 7).all()
    assert len(set(votes[:, 2])) > 1  # two classes are learned


def test_teachers_learn():
    votes = network_votes([np.arange(400)], epochs=8, lr=3e-3, augment=False)
    assert (votes[:, 0] == DATA.test.tensors[1][:120].numpy()).mean() > 0.85


def test_neither_workers_nor_tasks_change_the_votes(monkeypatch):
    expected = network_votes()
    assert (network_votes(workers=2) == expected).all()
    with joblib.parallel_config(backend="multiprocessing"):
        assert (network_votes(workers=2) == expected).all()
    monkeypatch.setattr(module, "_PER_TASK", 1)
    assert (network_votes() == expected).all()


def test_teachers_on_equal_slices_differ_and_so_do_seeds():
    votes = network_votes([np.arange(40)] * 2)
    assert (votes[:, 0] != votes[:, 1]).any()
    assert (network_votes([np.arange(40)] * 2, seed=4) != votes).any()
    assert (network_votes([np.arange(40)], seed=None) != network_votes([np.arange(40)], seed=None)).any()


def test_the_callers_random_numbers_and_threads_stay_as_they_were(two_threads):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    for backend in BACKENDS:
        network_votes(SLICES[:1], backend=backend)
    assert torch.equal(torch.rand(3), expected)
    assert torch.get_num_threads() == 2


def test_every_batch_is_full_and_an_epoch_sees_every_record():
    for records in (1, 3, 16, 17, 40):
        how = Training(epochs=3, batch=16, augment=False)
        found = list(batches(torch.arange(records).float(), torch.arange(records), how, seed=1))
        assert len(found) == how.steps(records) == 3 * -(-records // 16)
        assert all(len(x) == len(y) == 16 and torch.equal(x.long(), y) for x, y in found)
        per_epoch = len(found) // 3
        orders = [torch.cat([y for _, y in found[start : start + per_epoch]]) for start in range(0, len(found), per_epoch)]
        assert all(sorted(order[:records].tolist()) == list(range(records)) for order in orders)
        assert records < 16 or not torch.equal(orders[0], orders[1])


def test_augmented_images_are_made_from_their_own_pixels():
    images = X[:6].clone()
    expected = augmented(images, torch.Generator().manual_seed(2))
    images[2] = 9.0
    changed = augmented(images, torch.Generator().manual_seed(2))
    others = [0, 1, 3, 4, 5]
    assert torch.equal(changed[others], expected[others])
    assert torch.allclose(changed[2], torch.tensor(9.0))  # the edge goes on beyond the edge


def test_augmentation_moves_each_image_by_numbers_of_its_own_within_the_bounds():
    dot = torch.zeros(400, 1, 41, 81)
    dot[:, :, 20, 60] = 1
    moved = augmented(dot, torch.Generator().manual_seed(0))[:, 0]
    mass = moved.sum((1, 2))
    down = (moved.sum(2) * torch.arange(41)).sum(1) / mass - 20
    right = (moved.sum(1) * torch.arange(81)).sum(1) / mass - 60
    turn = 20 * np.sin(np.radians(7.5))
    assert 0.07 * 41 < down.abs().max() <= 0.07 * 41 + turn + 0.5
    assert 0.9 * 0.07 * 81 < right.abs().max() <= 0.07 * 81 + 1.0
    assert len(down.unique()) > 350


def test_a_turn_keeps_distances_in_images_that_are_not_square():
    dots = torch.zeros(400, 1, 81, 41)
    dots[:200, :, 10, 30] = dots[200:, :, 40, 35] = 1
    turned = augmented(dots, torch.Generator().manual_seed(0), shift=0)[:, 0]
    down = (turned.sum(2) * torch.arange(81)).sum(1) / turned.sum((1, 2)) - 40
    right = (turned.sum(1) * torch.arange(41)).sum(1) / turned.sum((1, 2)) - 20
    radius = (down**2 + right**2).sqrt()
    assert torch.allclose(radius[:200], torch.tensor(1000.0).sqrt(), atol=0.5)
    assert torch.allclose(radius[200:], torch.tensor(15.0), atol=0.5)
    angle = torch.atan2(down, right).rad2deg() - torch.tensor([-71.565, 0.0]).repeat_interleave(200)
    assert 7 < angle.abs().max() < 8


def test_the_network_is_the_papers():
    network = teacher_network((1, 28, 28), 10)
    assert [type(layer).__name__ for layer in network] == [
        *("Conv2d", "ReLU", "BatchNorm2d", "MaxPool2d", "_Flat", "Linear", "ReLU", "BatchNorm1d", "Linear")
    ]
    assert network.dense.weight.shape == (100, 13 * 13 * 32)
    he, glorot = (6 / (13 * 13 * 32)) ** 0.5, (6 / 110) ** 0.5
    assert 0.99 * he < network.dense.weight.abs().max() <= he
    assert 0.97 * glorot < network.output.weight.abs().max() <= glorot
    assert teacher_network((3, 9, 6), 4)(torch.rand(2, 3, 9, 6)).shape == (2, 4)


def forest_votes(slices, make=FOREST, **settings):
    return EstimatorTeachers(make, **{"seed": 1, "workers": 1, "progress": False, **settings}).votes(DATA.train, slices, QUERIES)


def test_classes_that_a_slice_lacks_do_not_shift_the_others():
    truth = DATA.test.tensors[1][:120].numpy()
    two = np.flatnonzero((Y == 3) | (Y == 8))
    for make in (FOREST, make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))):
        votes = forest_votes([two, np.flatnonzero(Y == 6)[:9], [], np.arange(300)], make)
        assert set(votes[:, 0]) == {3, 8}
        known = (truth == 3) | (truth == 8)
        assert (votes[known, 0] == truth[known]).mean() > 0.9
        assert (votes[:, 1] == 6).all()
        assert (votes[:, 2] == 0).all()
        assert (votes[:, 3] == truth).mean() > 0.8


def test_forests_depend_on_their_own_records_and_seeds_alone():
    slices = [np.arange(60), np.arange(60, 120), np.arange(60)]
    votes = forest_votes(slices)
    changed = forest_votes([slices[0], np.arange(61, 120), slices[2]], workers=2)
    assert (votes[:, [0, 2]] == changed[:, [0, 2]]).all()
    assert (votes[:, 0] != votes[:, 2]).any()  # the same records, another seed
    assert (forest_votes(slices, make_pipeline(RandomForestClassifier(10))) == votes).all()  # random states inside a pipeline too


def test_bad_requests_say_what_is_wrong():
    for match, request in {
        "no slices": lambda: network_votes([]),
        "outside 0 to": lambda: network_votes([[0, len(X)]]),
        "whole numbers": lambda: network_votes([[0.5]]),
        "places of": lambda: network_votes([[True, False]]),
        "from 0 to 9": lambda: network_votes(data=TensorDataset(X, Y + 1)),
        "epochs": lambda: network_votes(epochs=0),
        "batch": lambda: network_votes(batch=1),
        "lr": lambda: network_votes(lr=0),
        "workers": lambda: network_votes(workers=0),
        "seed": lambda: network_votes(seed=-1),
        "backend": lambda: network_votes(backend="threads"),
        "leave workers out": lambda: NetworkTeachers(MAKE, backend="vmap", workers=2),
        "queries": lambda: NetworkTeachers(MAKE).votes(DATA.train, SLICES, QUERIES[:, :, :5]),
        "cannot take": lambda: network_votes(make=partial(teacher_network, (1, 28, 28), 10)),
        "augment=False": lambda: NetworkTeachers(partial(nn.Linear, 64, 10)).votes(
            TensorDataset(X.flatten(1), Y), SLICES, QUERIES.flatten(1)
        ),
        "EstimatorTeachers": lambda: teacher_network((14,), 2),
        "too small": lambda: teacher_network((1, 3, 9), 2),
        "scikit-learn": lambda: forest_votes(SLICES, lambda: "forest"),
    }.items():
        with pytest.raises(SartorError, match=match):
            request()
    with joblib.parallel_config(backend="threading"), pytest.raises(SartorError, match="threads"):
        network_votes()


ON_RAY = """
import joblib, numpy, ray
from functools import partial
from ray.util.joblib import register_ray
from sartor.data import load
from sartor.pate import NetworkTeachers, teacher_network

ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
register_ray()
data = load("digits")
slices = [range(40 * i, 40 * i + 40) for i in range(6)]


def votes(workers):
    make = partial(teacher_network, data.shape, data.classes)
    return NetworkTeachers(make, epochs=1, workers=workers, seed=0, progress=False).votes(data.train, slices, data.test.tensors[0])


with joblib.parallel_config("ray"):
    there = votes(2)
assert numpy.array_equal(there, votes(1))
"""


@pytest.mark.long
def test_teachers_on_ray_vote_as_those_here():
    pytest.importorskip("ray", reason="ray is not installed: pip install 'sartor[federated]'")
    done = subprocess.run([sys.executable, "-c", ON_RAY], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
