"""Teachers in a folder: a killed run goes on where it was, with the same people, and no teacher passes for another."""

import os
import shutil
import signal
import subprocess
import sys
import time
from functools import partial

import numpy as np
import pytest
from safetensors.numpy import load_file
from sklearn.ensemble import RandomForestClassifier
from torch import nn
from torch.utils.data import TensorDataset

import sartor
from sartor import pate
from sartor.data import load
from sartor.errors import SartorError
from sartor.pate import teachers as module
from sartor.pate.networks import teacher_network
from sartor.pate.teachers import EstimatorTeachers, NetworkTeachers

DATA = load("digits")
X, Y = (tensor[:200] for tensor in DATA.train.tensors)
RECORDS, QUERIES = TensorDataset(X, Y), DATA.test.tensors[0][:60]
MAKE = partial(teacher_network, DATA.shape, DATA.classes)
PEOPLE = sartor.Budgets([4.0, 8.0] * 100, delta=1e-4, holders=[f"holder {i}" for i in range(200)])
PLAN = pate.plan(PEOPLE, "standard", teachers=6, aggregator=pate.GNMax(noise=8.0))


def begun(path):
    return pate.EnsembleFolder.create(path, PLAN, PEOPLE, key=b"key")


def networks(backend="processes", make=MAKE, **settings):
    settings = {"epochs": 1, "batch": 16, "seed": 3, "progress": False, **settings}
    return NetworkTeachers(make, backend=backend, workers=1 if backend == "processes" else None, **settings)


def forests(trees=5, **settings):
    return EstimatorTeachers(RandomForestClassifier(trees), workers=1, progress=False, **settings)


def taught(folder, teachers, records=RECORDS, queries=QUERIES):
    """The votes of a folder after its teachers were taught."""
    folder.teach(teachers, records, queries, 10)
    return folder._votes()[0]


class Killed(Exception):
    pass


@pytest.mark.parametrize("backend", ["processes", "vmap"])
def test_a_killed_run_goes_on_where_it_was(backend, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_PER_TASK", 2)
    monkeypatch.setattr(module, "_STACKED", 2)
    trainer = {"processes": "_networks", "vmap": "_stacked"}[backend]
    train, calls = getattr(module, trainer), []

    def dies_at(limit, task):
        if len(calls) == limit:
            raise Killed
        calls.append(task.numbers)
        return train(task)

    slices = pate.partition(PLAN, PEOPLE, b"key").slices()
    expected = networks(backend).votes(RECORDS, slices, QUERIES)
    monkeypatch.setattr(module, trainer, partial(dies_at, 2))
    with pytest.raises(Killed):
        begun(tmp_path / "kept").teach(networks(backend), RECORDS, QUERIES, 10)
    assert calls == [[0, 1], [2, 3]]
    again = pate.EnsembleFolder(tmp_path / "kept")
    with pytest.raises(SartorError, match="not all voted"):
        again.aggregate()
    monkeypatch.setattr(module, trainer, partial(dies_at, 3))
    assert (taught(again, networks(backend, seed=None)) == expected).all()  # the folder knows its seed, names and places
    assert calls == [[0, 1], [2, 3], [4, 5]]
    assert (taught(pate.EnsembleFolder(tmp_path / "kept"), networks(backend)) == expected).all()
    assert len(calls) == 3
    assert load_file(tmp_path / "kept" / "teacher-00003.safetensors").keys() > {"votes", "weights.output.weight"}


def test_teachers_of_other_settings_data_queries_or_seed_are_refused(tmp_path):
    folder = begun(tmp_path / "kept")
    folder.teach(networks(), RECORDS, QUERIES, 10)
    other = X.clone()
    other[50] += 1
    for what, given in {
        "settings": (networks(epochs=2), RECORDS, QUERIES, 10),
        "settings ": (networks(make=lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10))), RECORDS, QUERIES, 10),
        "settings  ": (forests(seed=3), RECORDS, QUERIES, 10),
        "data": (networks(), TensorDataset(other, Y), QUERIES, 10),
        "queries": (networks(), RECORDS, QUERIES + 1, 10),
        "classes": (networks(), RECORDS, QUERIES, 11),
        "another seed": (networks(seed=4), RECORDS, QUERIES, 10),
        "200 budgets for 199": (networks(), TensorDataset(X[1:], Y[1:]), QUERIES, 10),
    }.items():
        with pytest.raises(SartorError, match=what.strip()):
            folder.teach(*given)


def test_votes_of_teachers_and_votes_made_elsewhere_are_not_mixed(tmp_path):
    votes = np.zeros((60, 6), int)
    folder = begun(tmp_path / "put")
    folder.put(votes, 10)
    with pytest.raises(SartorError, match="made elsewhere"):
        folder.teach(forests(), RECORDS, QUERIES, 10)
    folder = begun(tmp_path / "taught")
    folder.teach(forests(), RECORDS, QUERIES, 10)
    (tmp_path / "taught" / "votes").unlink()
    with pytest.raises(SartorError, match="teachers already"):
        folder.put(votes, 10)


def test_a_teacher_copied_over_another_or_from_another_folder_is_refused(tmp_path):
    folder = begun(tmp_path / "kept")
    expected = taught(folder, forests(seed=1))
    taught(begun(tmp_path / "other"), forests(seed=2))
    (tmp_path / "kept" / "votes").unlink()
    file, right = tmp_path / "kept" / "teacher-00001.safetensors", (tmp_path / "kept" / "teacher-00001.safetensors").read_bytes()
    for wrong in ("kept/teacher-00002.safetensors", "other/teacher-00001.safetensors"):
        shutil.copy(tmp_path / wrong, file)
        with pytest.raises(SartorError, match="another teacher's"):
            folder.teach(forests(seed=1), RECORDS, QUERIES, 10)
    for wrong in (b"half a fi", right[:-1] + bytes([right[-1] ^ 1])):
        file.write_bytes(wrong)
        with pytest.raises(SartorError, match="damaged"):
            folder.teach(forests(seed=1), RECORDS, QUERIES, 10)
    file.unlink()
    assert (taught(folder, forests(seed=1)) == expected).all()


LARGE = """
import sys, time
import torch
from torch.utils.data import TensorDataset
from sklearn.base import BaseEstimator, ClassifierMixin
from sartor.pate import EstimatorTeachers

class Slow(ClassifierMixin, BaseEstimator):
    def __init__(self, started=None):
        self.started = started

    def fit(self, x, y):
        open(self.started, "w").close()
        time.sleep(600)

    def predict(self, x):
        return [0] * len(x)

records = TensorDataset(torch.full((64, 20_000), 0.25), torch.arange(64) % 2)
EstimatorTeachers(Slow(sys.argv[1]), workers=2).votes(records, [range(32), range(32, 64)], torch.zeros(3, 20_000))
"""


def test_a_killed_run_leaves_no_records_in_temporary_files(tmp_path):
    """Slices of more than a megabyte, which joblib would put into files for all its workers."""
    temporary, started = tmp_path / "temporary", tmp_path / "started"
    temporary.mkdir()
    places = {"TMPDIR": str(temporary), "JOBLIB_TEMP_FOLDER": str(temporary)}
    run = subprocess.Popen([sys.executable, "-c", LARGE, str(started)], env={**os.environ, **places}, start_new_session=True)
    while not started.exists() and run.poll() is None:
        time.sleep(0.05)
    os.killpg(run.pid, signal.SIGKILL)
    assert run.wait() == -signal.SIGKILL
    left = [path for path in temporary.rglob("*") if path.is_file() and np.float32(0.25).tobytes() * 8 in path.read_bytes()]
    assert left == []
