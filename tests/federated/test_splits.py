"""Rows dealt out to clients: all of them, each once, as unequal as was asked."""

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sartor.data import load
from sartor.data.images import read_writers
from sartor.errors import SartorError
from sartor.federated import splits

FOLDER = Path(os.environ.get("SARTOR_DATA") or Path(__file__).parents[3] / "shared" / "data")
LABELS = np.random.default_rng(0).integers(0, 10, 1_200)
WAYS = {
    "iid": lambda clients, seed: splits.iid(LABELS, clients, seed=seed),
    "dirichlet": lambda clients, seed: splits.dirichlet(LABELS, clients, 0.3, seed=seed),
    "pachinko": lambda clients, seed: splits.pachinko(LABELS, clients, 0.1, 10.0, [0] * 4 + [1] * 6, seed=seed),
}


@given(way=st.sampled_from(sorted(WAYS)), clients=st.integers(1, 150), seed=st.integers(0, 50))
def test_every_row_is_dealt_out_once(way, clients, seed):
    found = WAYS[way](clients, seed)
    assert len(found) == clients
    assert all(len(rows) for rows in found)
    assert np.sort(np.concatenate(found)).tolist() == list(range(len(LABELS)))
    again = WAYS[way](clients, seed)
    assert all(np.array_equal(a, b) for a, b in zip(found, again, strict=True))
    if way != "dirichlet":
        assert max(map(len, found)) - min(map(len, found)) <= 1


def skew(found):
    """The mean share of a client's most frequent class."""
    return np.mean([np.bincount(LABELS[rows], minlength=10).max() / len(rows) for rows in found])


def test_concentration_decides_how_unequal_classes_are():
    assert skew(splits.iid(LABELS, 20)) < 0.25
    assert skew(splits.dirichlet(LABELS, 20, 0.05)) > 0.6
    assert skew(splits.dirichlet(LABELS, 20, 1_000.0)) < 0.25
    assert skew(splits.pachinko(LABELS, 20, 0.05, 0.05)) > skew(splits.pachinko(LABELS, 20, 1_000.0, 1_000.0)) + 0.1


def test_pachinko_draws_classes_of_a_group_together():
    group = np.array([0] * 5 + [1] * 5)
    found = splits.pachinko(LABELS, 40, 0.05, 100.0, group)
    share = np.array([np.mean(group[LABELS[rows]]) for rows in found[:20]])  # before rows run out
    assert np.mean((share < 0.2) | (share > 0.8)) > 0.7


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: splits.iid(LABELS, 0),
        lambda: splits.iid(LABELS, 1_201),
        lambda: splits.dirichlet(LABELS, 3, 0),
        lambda: splits.pachinko(LABELS, 3, 1.0, -1.0),
        lambda: splits.pachinko(LABELS, 3, 1.0, 1.0, [0, 1]),
    ],
)
def test_what_cannot_be_dealt_out_is_refused(wrong):
    with pytest.raises(SartorError):
        wrong()


def test_the_writers_of_mnist():
    if not (FOLDER / "qmnist_writers").is_dir() or not (FOLDER / "MNIST").is_dir():
        pytest.skip(f"MNIST and its writers are not in {FOLDER}")
    labels = load("mnist", FOLDER).train.tensors[1].numpy()
    found = splits.by_owner(read_writers(FOLDER, labels))
    sizes = [len(rows) for rows in found]
    assert (len(found), min(sizes), max(sizes), int(np.median(sizes)), sum(sizes)) == (539, 19, 131, 116, 60_000)
    with pytest.raises(SartorError, match="does not belong to these images"):
        read_writers(FOLDER, labels[::-1])
