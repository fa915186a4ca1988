"""The student: a model trained on public inputs and the labels that the teachers' votes gave them.

Labels are what a voting releases, so training on them costs nobody anything more, and the student may be published if the labels may: those
of a seeded voting, or of one by the data-dependent bound, may not.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from sartor.errors import SartorError
from sartor.pate.aggregators import NONE
from sartor.pate.networks import Training, drawing, predict, train
from sartor.pate.teachers import fresh


@dataclass(frozen=True, eq=False)
class Student:
    """A trained student, its accuracy on public test rows, and how many labels it learned from."""

    model: Any = field(repr=False)
    accuracy: float
    labels: int


def train_student(
    make_model: Callable[[], Any] | Any,
    queries: Tensor,
    labels: ArrayLike,
    test: TensorDataset,
    *,
    epochs: int = 50,
    batch: int = 32,
    lr: float = 1e-3,
    augment: bool = True,
    unlabelled: bool = False,
    seed: int | None = None,
) -> Student:
    """Train a network or a scikit-learn classifier on the queries that have a label, and measure it on public test rows.

    `labels` has one entry for each query, below 0 where the query was not answered. `make_model` makes an untrained model of either
    kind, or is an unfitted classifier; `epochs`, `batch`, `lr` and `augment` are for networks. With `unlabelled` a classifier also sees the
    queries without a label, marked by -1, as the semi-supervised ones of scikit-learn take them.

    >>> from sklearn.tree import DecisionTreeClassifier
    >>> from sartor.data import load
    >>> x, y = load("digits").train.tensors
    >>> train_student(DecisionTreeClassifier(), x, [*y[:100], *[-1] * (len(x) - 100)], load("digits").test, seed=0).labels
    100
    """
    given = np.asarray(labels)
    if given.shape != (len(queries),) or given.dtype.kind not in "iu":
        raise SartorError(f"labels must be {len(queries)} whole numbers, one for each query, below 0 where there is none.")
    answered = np.flatnonzero(given >= 0)
    if not len(answered):
        raise SartorError("no query was answered, so a student has nothing to learn from: give the votes more budget.")
    x, y = queries[torch.from_numpy(answered)], torch.from_numpy(given[answered].astype(np.int64))
    seed = secrets.randbits(63) if seed is None else seed
    asked, truth = test.tensors
    with drawing(seed):
        model = make_model() if callable(make_model) else make_model
        if isinstance(model, nn.Module):
            how = Training(epochs, batch, lr, augment)
            _check_classes(model, x, y)
            found = predict(train(model, x, y, how, seed), asked)
        else:
            model = fresh(model, seed)
            if len(y.unique()) < 2:
                raise SartorError("all answered queries have the same label, and a classifier needs two classes or more.")
            if unlabelled:
                x, y = queries, torch.from_numpy(np.maximum(given, NONE).astype(np.int64))
            found = model.fit(x.flatten(1).numpy(), y.numpy()).predict(asked.flatten(1).numpy())
    return Student(model, float(np.mean(found == truth.numpy())), len(answered))


def _check_classes(model: nn.Module, x: Tensor, y: Tensor) -> None:
    with torch.no_grad():
        classes = model.eval()(x[:1]).shape[1]
    if int(y.max()) >= classes:
        raise SartorError(f"labels go up to {int(y.max())}, but the student's network tells only {classes} classes apart.")
