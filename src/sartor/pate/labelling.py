"""Data as PATE needs them: private records to teach with, public queries to label, public rows to test the student on.

Public queries are asked in an order that follows from the queries alone, so it costs nobody anything.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import TensorDataset

from sartor.data import load
from sartor.errors import SartorError
from sartor.pate.usual import MODELS, usual


def typical_first(queries: Tensor) -> NDArray[np.int64]:
    """An order whose every beginning stands for all queries: each next one leaves the least distance from every query to one before it.

    Where budgets pay for few labels, these tell a student most. Time and memory grow with more than the square of the queries: it is for
    some hundreds.

    >>> import torch
    >>> typical_first(torch.tensor([[0.0], [0.1], [0.2], [9.0], [9.1]])).tolist()[:2]
    [2, 3]
    """
    points = queries.flatten(1).double().numpy()
    distance = np.sum((points[:, None] - points[None]) ** 2, axis=2)
    nearest = np.full(len(points), np.inf)
    left, order = np.ones(len(points), bool), []
    for _ in range(len(points)):
        total = np.minimum(nearest[:, None], distance).sum(0)
        chosen = int(np.argmin(np.where(left, total, np.inf)))
        order.append(chosen)
        left[chosen], nearest = False, np.minimum(nearest, distance[:, chosen])
    return np.array(order, np.int64)


if TYPE_CHECKING:
    from sartor.pate.teachers import Teachers


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

    As in the paper all rows, of the training and the test files, are put into one order, which is always the same here. Some are queries,
    some test the student (`usual`); the rest is private.

    >>> small = labelling("digits")
    >>> len(small.private), len(small.queries), len(small.test)
    (1437, 260, 100)
    """
    known = usual(name)
    queries, tested = known.queries, known.tested
    found = load(name, data)
    x, y = (torch.cat(pair) for pair in zip(found.train.tensors, found.test.tensors, strict=True))
    order = torch.from_numpy(np.random.default_rng(0).permutation(len(x)))
    private, asked, rest = order[: -queries - tested], order[-queries - tested : -tested], order[-tested:]
    if known.typical_first:
        asked = asked[torch.from_numpy(typical_first(x[asked]))]
    return Labelling(
        name, TensorDataset(x[private], y[private]), x[asked], y[asked], TensorDataset(x[rest], y[rest]), found.shape, found.classes
    )


def usual_teachers(work: Labelling, *, model: str | None = None, epochs: int | None = None, **options: Any) -> Teachers:
    """Teachers of a data set: the usual ones, or of another kind: networks, forests or nearest neighbours."""
    from functools import partial

    from sartor.pate.networks import teacher_network
    from sartor.pate.teachers import EstimatorTeachers, NetworkTeachers

    kind = usual(work.name).model if model is None else model
    if kind not in MODELS:
        raise SartorError(f'teachers are {", ".join(MODELS)}, not "{kind}".')
    if kind == "network":
        rounds = usual(work.name).epochs if epochs is None else epochs
        return NetworkTeachers(partial(teacher_network, work.shape, work.classes), epochs=rounds, **options)
    if epochs is not None:
        raise SartorError(f"epochs are for networks, and these teachers are of the kind {kind}: leave them out or take networks.")
    return EstimatorTeachers(usual_estimator() if kind == "forest" else _neighbour(), **options)


def usual_student(work: Labelling) -> tuple[Any, dict[str, Any]]:
    """What makes the usual student of a data set, and how it is trained (`train_student`)."""
    from functools import partial

    from sartor.pate.networks import teacher_network

    kind = usual(work.name).student
    if kind == "network":
        return partial(teacher_network, work.shape, work.classes), {"augment": True}
    if kind == "forest":
        return usual_estimator(), {}
    from sklearn.semi_supervised import LabelSpreading

    return LabelSpreading(kernel="rbf", gamma=2.0, max_iter=200), {"unlabelled": True}


def usual_estimator() -> Any:
    """A forest of 100 trees."""
    from sklearn.ensemble import RandomForestClassifier

    return RandomForestClassifier(100)


def _neighbour() -> Any:
    from sklearn.neighbors import KNeighborsClassifier

    return KNeighborsClassifier(1)
