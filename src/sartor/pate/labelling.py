"""Data as PATE needs them: private records to teach with, public queries to label, public rows to test the student on."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from sartor.data import load
from sartor.errors import SartorError

_QUERIES = {"mnist": 9_000, "adult": 7_000, "digits": 260}
_TESTED = {"mnist": 1_000, "adult": 1_000, "digits": 100}


@dataclass(frozen=True, eq=False)
class Labelling:
    """Private records, public queries with their true labels (for measuring alone), and public test rows."""

    name: str
    private: TensorDataset = field(repr=False)
    queries: Tensor = field(repr=False)
    truth: Tensor = field(repr=False)
    test: TensorDataset = field(repr=False)
    shape: tuple[int, ...]
    classes: int


def labelling(name: str, data: str | os.PathLike[str] | None = None) -> Labelling:
    """One of the paper's tasks, or the bundled digits.

    As in the paper all rows, of the training and the test files, are put into one order, which is always the same here. Of MNIST 9,000
    digits are queries, of Adult 7,000 rows; 1,000 test the student; the rest is private.

    >>> small = labelling("digits")
    >>> len(small.private), len(small.queries), len(small.test)
    (1437, 260, 100)
    """
    if name not in _QUERIES:
        raise SartorError(f'PATE knows the data sets {", ".join(_QUERIES)}, not "{name}"; in Python any arrays will do.')
    found = load(name, data)
    queries, tested = _QUERIES[name], _TESTED[name]
    x, y = (torch.cat(pair) for pair in zip(found.train.tensors, found.test.tensors, strict=True))
    order = torch.from_numpy(np.random.default_rng(0).permutation(len(x)))
    private, asked, rest = order[: -queries - tested], order[-queries - tested : -tested], order[-tested:]
    return Labelling(
        name, TensorDataset(x[private], y[private]), x[asked], y[asked], TensorDataset(x[rest], y[rest]), found.shape, found.classes
    )


def usual_teachers(work: Labelling, **options: Any) -> Any:
    """The paper's teachers: its network for images, forests of 100 trees for tables."""
    from functools import partial

    from sartor.pate.networks import teacher_network
    from sartor.pate.teachers import EstimatorTeachers, NetworkTeachers

    if len(work.shape) > 1:
        return NetworkTeachers(partial(teacher_network, work.shape, work.classes), **options)
    return EstimatorTeachers(usual_estimator(), **{name: value for name, value in options.items() if name not in ("epochs", "backend")})


def usual_estimator() -> Any:
    """A forest of 100 trees."""
    from sklearn.ensemble import RandomForestClassifier

    return RandomForestClassifier(100)
