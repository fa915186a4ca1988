"""Teachers: many models, each trained on its own slice of the private records, whose votes on public queries are counted elsewhere.

Guarantee: a teacher's votes are a function of its own records, the seed, its number and the settings. Whoever has records with one teacher
    alone changes that teacher's votes alone: this is the sensitivity that the accounting of votes rests on.
Proof: every teacher has its own seed, order of records, augmentation and weights; nothing is measured over the whole data set; a teacher
    without records votes for class 0. Stacked teachers (`backend="vmap"`) share calls, not numbers: who is stacked with whom follows from
    the teachers' numbers, and one that has taken its steps is set aside while others go on.
Breaks if: models share something that they learn or draw (a scaler fitted on all records, a cache, a seed of one's own in `make_model`).

Votes and weights are private: only what `sartor.pate` releases of the votes is covered by budgets. They are in memory here, and nothing of
them or of the records goes into a file; an `EnsembleFolder` keeps them, with the account of what is made of them.

The student is trained on public inputs and the labels that the teachers' votes gave them. Labels are what a voting releases, so training on
them costs nobody anything more, and the student may be published if the labels may: those of a seeded voting, or of one by the
data-dependent bound, may not.
"""

from __future__ import annotations

import copy
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import joblib  # type: ignore[import-untyped,unused-ignore]
import numpy as np
import torch
from joblib.parallel import ThreadingBackend, get_active_backend  # type: ignore[import-untyped,unused-ignore]
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn import functional
from torch.utils.data import TensorDataset

from sartor.errors import SartorError
from sartor.pate.networks import Training, batches, drawing, one_thread, predict, train
from sartor.pate.plan import NONE
from sartor.progress import bar
from sartor.run.sealed import digest

Array = NDArray[Any]
Votes = NDArray[np.int16]
Weights = dict[str, NDArray[Any]]
Slice = tuple[Array, Array]  # the inputs and labels of one teacher
Finished = list[tuple[int, Votes, Weights]]  # number, votes and weights of each teacher of a task

_PER_TASK = 4  # teachers that a worker trains between two reports: what a killed run loses
_STACKED = 5  # teachers in one vmap: more do not fit into the processor's caches


class Teachers(ABC):
    """Whatever trains one model for each slice and lets it vote."""

    def __init__(self, workers: int | None, seed: int | None, progress: bool) -> None:
        if workers is not None and workers < 1:
            raise SartorError(f"workers must be 1 or more, not {workers}; leave it out for all cores.")
        if seed is not None:
            seed_of(seed, 0)
        self.workers, self.seed, self.progress = -1 if workers is None else workers, seed, progress

    def votes(self, dataset: TensorDataset, slices: Sequence[ArrayLike], queries: Tensor) -> Votes:
        """The class that each teacher gives each query: one row for each query, one column for each slice."""
        seed = secrets.randbits(128) if self.seed is None else self.seed
        found = {number: votes for number, votes, _ in self.taught(dataset, slices, queries, seed)}
        return np.stack([found[number] for number in range(len(slices))], axis=1)

    def taught(
        self, dataset: TensorDataset, slices: Sequence[ArrayLike], queries: Tensor, seed: int, done: Collection[int] = ()
    ) -> Iterator[tuple[int, Votes, Weights]]:
        """Number, votes and weights of each teacher as soon as it is finished, without those whose tasks were done before."""
        chosen = _checked(dataset, slices, queries)
        self.settings(dataset, queries)
        finished = set(done)
        with bar("teachers", len(chosen), len(finished), wanted=self.progress) as advance:
            for teachers in self._train(dataset, chosen, queries, seed, finished):
                yield from teachers
                finished |= {number for number, _, _ in teachers}
                advance(len(finished))

    @abstractmethod
    def settings(self, dataset: TensorDataset, queries: Tensor) -> dict[str, Any]:
        """What votes follow from, apart from records, queries and seed; an error if these cannot be taught."""

    @abstractmethod
    def _train(
        self, dataset: TensorDataset, slices: list[NDArray[np.intp]], queries: Tensor, seed: int, done: Collection[int]
    ) -> Iterator[Finished]:
        """Tasks of teachers, as they are finished."""


class NetworkTeachers(Teachers):
    """Neural networks as teachers, in worker processes (`backend="processes"`) or stacked in this one (`backend="vmap"`).

    `make_model` makes an untrained network; what it draws comes from the teacher's seed. `workers` is the number of processes, all cores by
    default; the backend is joblib's, so `joblib.parallel_config("ray")` spreads the teachers over a cluster. A slice whose records are of
    one class, or that has a single record, gives that class without training. A `seed` is for tests and demonstrations.

    >>> from functools import partial
    >>> from sartor.data import load
    >>> from sartor.pate.networks import teacher_network
    >>> data = load("digits")
    >>> teachers = NetworkTeachers(partial(teacher_network, data.shape, data.classes), epochs=1, workers=1, seed=0)
    >>> teachers.votes(data.train, [range(40), range(40, 80), []], data.test.tensors[0]).shape
    (360, 3)
    """

    def __init__(
        self,
        make_model: Callable[[], nn.Module],
        *,
        epochs: int = 20,
        batch: int = 32,
        lr: float = 1e-3,
        augment: bool = True,
        workers: int | None = None,
        backend: str = "processes",
        seed: int | None = None,
        progress: bool = True,
    ) -> None:
        if backend not in ("processes", "vmap"):
            raise SartorError(f'backend must be "processes" or "vmap", not {backend!r}.')
        if backend == "vmap" and workers is not None:
            raise SartorError('backend="vmap" works in this process with torch\'s own threads; leave workers out.')
        super().__init__(workers, seed, progress)
        self.make_model, self.how, self.backend = make_model, Training(epochs, batch, lr, augment), backend

    def settings(self, dataset: TensorDataset, queries: Tensor) -> dict[str, Any]:
        """The network, how it starts and how it is trained."""
        if self.how.augment and queries.dim() != 4:
            raise SartorError("only images can be turned and shifted; train on other inputs with augment=False.")
        with drawing(0):
            model = self.make_model()
        _check_labels(dataset, _classes(model, queries))
        return {
            **asdict(self.how),
            "backend": self.backend,
            "model": str(model),
            "start": digest(value.detach().contiguous().numpy().tobytes() for value in model.state_dict().values()),
            "torch": torch.__version__,
        }

    def _train(
        self, dataset: TensorDataset, slices: list[NDArray[np.intp]], queries: Tensor, seed: int, done: Collection[int]
    ) -> Iterator[Finished]:
        stacked = self.backend == "vmap"
        tasks = (
            _Task(self.make_model, numbers, *_parts(dataset, slices, seed, numbers), queries.numpy(), self.how)
            for numbers in _tasks(len(slices), _STACKED if stacked else _PER_TASK, done)
        )
        return map(_stacked, tasks) if stacked else _parallel(_networks, tasks, self.workers)


class EstimatorTeachers(Teachers):
    """Classifiers of scikit-learn as teachers, each a fresh one fitted on its own slice in a worker process.

    `make_estimator` makes an unfitted classifier, or is one. All random states in it are set from the teacher's seed. A slice whose
    records are of one class gives that class without a fit. They have no weights to keep: fitted classifiers could be kept only by pickle.

    >>> from sklearn.tree import DecisionTreeClassifier
    >>> from sartor.data import load
    >>> data = load("digits")
    >>> teachers = EstimatorTeachers(DecisionTreeClassifier(), workers=1, seed=0)
    >>> teachers.votes(data.train, [range(100), range(100, 200)], data.test.tensors[0]).shape
    (360, 2)
    """

    def __init__(
        self,
        make_estimator: Any,
        *,
        workers: int | None = None,
        seed: int | None = None,
        progress: bool = True,
    ) -> None:
        super().__init__(workers, seed, progress)
        self.make_estimator = make_estimator

    def settings(self, dataset: TensorDataset, queries: Tensor) -> dict[str, Any]:
        """The classifier and its parameters."""
        _check_labels(dataset, np.iinfo(np.int16).max)
        estimator = fresh(self.make_estimator, 0)
        return {"estimator": type(estimator).__qualname__, "settings": repr(estimator.get_params())}

    def _train(
        self, dataset: TensorDataset, slices: list[NDArray[np.intp]], queries: Tensor, seed: int, done: Collection[int]
    ) -> Iterator[Finished]:
        tasks = (
            _Task(self.make_estimator, numbers, *_parts(dataset, slices, seed, numbers), queries.flatten(1).numpy())
            for numbers in _tasks(len(slices), _PER_TASK, done)
        )
        return _parallel(_estimators, tasks, self.workers)


def seed_of(seed: int, teacher: int) -> int:
    """The seed of one teacher: it follows from the run's seed and the teacher's number."""
    if seed < 0:
        raise SartorError(f"a seed must be 0 or more, not {seed}.")
    return int(np.random.SeedSequence([seed, teacher]).generate_state(1, np.uint64)[0] >> np.uint64(1))


def fresh(make_estimator: Any, seed: int) -> Any:
    """An unfitted classifier with every random state in it set."""
    given = make_estimator() if callable(make_estimator) else make_estimator
    if not all(hasattr(given, method) for method in ("fit", "predict", "get_params", "set_params")):
        raise SartorError(f"a scikit-learn classifier is needed, with fit and predict, not {type(given).__name__}.")
    estimator = clone(given)
    states = [name for name in estimator.get_params() if name == "random_state" or name.endswith("__random_state")]
    return estimator.set_params(**dict.fromkeys(states, seed % 2**32))


@dataclass(frozen=True, eq=False, repr=False)
class _Task:
    """Some teachers to be trained in one go: what makes a model, the teachers' numbers, seeds and records, and the queries to answer."""

    make: Any
    numbers: list[int]
    seeds: list[int]
    slices: list[Slice]
    queries: Array
    how: Training = field(default_factory=Training)

    def __iter__(self) -> Iterator[tuple[int, int, Slice]]:
        return zip(self.numbers, self.seeds, self.slices, strict=True)


def _networks(task: _Task) -> Finished:
    """Trains networks one after another on one thread, wherever joblib runs it."""
    done: Finished = []
    with one_thread():
        for number, seed, (inputs, labels) in task:
            with drawing(seed):
                model = task.make()
                if _one_class(labels) is None:
                    train(model, *_tensors(inputs, labels), task.how, seed)
            done.append((number, _answers(model, labels, task.queries), _state(model)))
    return done


def _stacked(task: _Task) -> Finished:
    """Trains networks side by side: every layer is called once for all of them, on their own weights, statistics and batches."""
    how, models = task.how, []
    for seed in task.seeds:
        with drawing(seed):
            models.append(task.make())
    params, buffers = stack_module_state(models)
    skeleton = copy.deepcopy(models[0]).to("meta").train()

    def loss(params: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(functional_call(skeleton, (params, buffers), (x,)), y)

    together = vmap(loss, randomness="different")
    optimizer = torch.optim.Adam(params.values(), lr=how.lr, fused=True)
    records = [_tensors(*part) for part in task.slices]
    supplies = [batches(x, y, how, seed) for (x, y), seed in zip(records, task.seeds, strict=True)]
    last = [how.steps(len(y)) if _one_class(y) is None else 0 for _, y in records]
    idle = torch.zeros(how.batch, *task.queries.shape[1:]), torch.zeros(how.batch, dtype=torch.int64)
    with drawing(task.seeds[0]):
        for step in range(1, max(last) + 1):
            pairs = [next(supply, idle) for supply in supplies]
            x, y = torch.stack([x for x, _ in pairs]), torch.stack([y for _, y in pairs])
            optimizer.zero_grad()
            together(params, buffers, x, y).sum().backward()
            optimizer.step()
            for place in (place for place, end in enumerate(last) if end == step):
                models[place].load_state_dict({name: value[place].detach() for name, value in {**params, **buffers}.items()})
    return [
        (number, _answers(model, labels, task.queries), _state(model)) for (number, _, (_, labels)), model in zip(task, models, strict=True)
    ]


def _estimators(task: _Task) -> Finished:
    """Fits classifiers one after another; each sees its own classes as 0, 1, 2 and so on, and its answers are put back."""
    done: Finished = []
    for number, seed, (inputs, labels) in task:
        only = _one_class(labels)
        if only is None:
            own, places = np.unique(labels, return_inverse=True)
            estimator = fresh(task.make, seed).fit(inputs.reshape(len(labels), -1), places)
            votes = own[estimator.predict(task.queries).astype(np.intp)].astype(np.int16)
        else:
            votes = np.full(len(task.queries), only, np.int16)
        done.append((number, votes, {}))
    return done


def _one_class(labels: Array | Tensor) -> int | None:
    """The one class of records that have no other, to be voted without training; class 0, which depends on nobody, without records."""
    found = np.unique(labels)
    return None if len(found) > 1 else int(found[0]) if len(found) else 0


def _answers(model: nn.Module, labels: Array, queries: Array) -> Votes:
    only = _one_class(labels)
    return predict(model, queries) if only is None else np.full(len(queries), only, np.int16)


def _state(model: nn.Module) -> Weights:
    return {name: value.detach().contiguous().numpy() for name, value in model.state_dict().items()}


def _tensors(inputs: Array, labels: Array) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(np.array(inputs)), torch.from_numpy(np.array(labels, np.int64))


def _tasks(teachers: int, size: int, done: Collection[int]) -> list[list[int]]:
    """Teachers by number in tasks of fixed size, without the tasks that were finished before."""
    tasks = [list(range(start, min(start + size, teachers))) for start in range(0, teachers, size)]
    return [task for task in tasks if not all(number in done for number in task)]


def _parts(dataset: TensorDataset, slices: list[NDArray[np.intp]], seed: int, numbers: list[int]) -> tuple[list[int], list[Slice]]:
    """The seeds and records of some teachers: a worker gets what its teachers learn from and nothing else."""
    inputs, labels = (tensor.numpy() for tensor in dataset.tensors)
    return [seed_of(seed, number) for number in numbers], [(inputs[slices[number]], labels[slices[number]]) for number in numbers]


def _parallel(work: Callable[[_Task], Finished], tasks: Iterable[_Task], workers: int) -> Iterator[Finished]:
    """Runs tasks by joblib, and gives each result as soon as it is there (all at the end where a backend cannot).

    Records go to the workers through pipes: joblib's files for large arrays (`max_nbytes`) would outlive a kill, in a folder for all.
    """
    if isinstance(get_active_backend()[0], ThreadingBackend):
        raise SartorError("teachers cannot train in threads, which share one random generator: choose a joblib backend of processes.")
    try:
        pool = joblib.Parallel(n_jobs=workers, batch_size=1, max_nbytes=None, return_as="generator_unordered")
    except ValueError:
        pool = joblib.Parallel(n_jobs=workers, batch_size=1, max_nbytes=None)
    yield from pool(joblib.delayed(work)(task) for task in tasks)


def _checked(dataset: TensorDataset, slices: Sequence[ArrayLike], queries: Tensor) -> list[NDArray[np.intp]]:
    """The slices as arrays of indices, if data, slices and queries belong together."""
    if not isinstance(dataset, TensorDataset) or len(dataset.tensors) != 2 or dataset.tensors[1].dim() != 1:
        raise SartorError("teachers learn from a TensorDataset of inputs and labels, one whole number for each record.")
    if not len(slices):
        raise SartorError("there are no slices, so there are no teachers.")
    if not isinstance(queries, Tensor) or not len(queries) or queries.shape[1:] != dataset.tensors[0].shape[1:]:
        raise SartorError(f"queries must be a tensor of one or more inputs of the records' shape {tuple(dataset.tensors[0].shape[1:])}.")
    chosen = []
    for part in slices:
        indices = np.asarray(part)
        if indices.ndim != 1 or (indices.size and indices.dtype.kind not in "iu"):
            raise SartorError("a slice is a list of whole numbers: the places of a teacher's records in the data set.")
        if indices.size and (indices.min() < 0 or indices.max() >= len(dataset)):
            raise SartorError(f"a slice names records outside 0 to {len(dataset) - 1}.")
        chosen.append(indices.astype(np.intp))
    return chosen


def _check_labels(dataset: TensorDataset, classes: int) -> None:
    labels = dataset.tensors[1]
    if labels.is_floating_point() or (len(labels) and (int(labels.min()) < 0 or int(labels.max()) >= classes)):
        raise SartorError(f"labels must be whole numbers from 0 to {classes - 1}, which is what the teachers can give.")


def _classes(model: nn.Module, queries: Tensor) -> int:
    """How many classes a network tells apart, found with one query."""
    try:
        with torch.no_grad():
            out = model.eval()(queries[:1])
    except (RuntimeError, ValueError) as error:
        raise SartorError(f"make_model gives a network that cannot take inputs of shape {tuple(queries.shape[1:])}.") from error
    if not isinstance(out, Tensor) or out.dim() != 2:
        raise SartorError("make_model must give a network with one number for each class and input.")
    return int(out.shape[1])


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
