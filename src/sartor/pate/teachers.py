"""Teachers: many models, each trained on its own slice of the private records, whose votes on public queries are counted elsewhere.

Guarantee: a teacher's votes are a function of its own records, the seed, its number and the settings. Whoever has records with one teacher
    alone changes that teacher's votes alone: this is the sensitivity that the accounting of votes rests on.
Proof: every teacher has its own seed, order of records, augmentation and weights; nothing is measured over the whole data set; a teacher
    without records votes for class 0. Stacked teachers (`backend="vmap"`) share calls, not numbers: who is stacked with whom follows from
    the teachers' numbers, and one that has taken its steps is set aside while others go on.
Breaks if: models share something that they learn or draw (a scaler fitted on all records, a cache, a seed of one's own in `make_model`).

Votes, weights and the folder that keeps them are private: only what `sartor.pate` releases of the votes is covered by budgets.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import joblib  # type: ignore[import-untyped,unused-ignore]
import numpy as np
import torch
from joblib.parallel import ThreadingBackend, get_active_backend  # type: ignore[import-untyped,unused-ignore]
from numpy.typing import ArrayLike, NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save
from sklearn.base import clone
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn import functional
from torch.utils.data import TensorDataset

from sartor.errors import SartorError
from sartor.pate.networks import Training, batches, drawing, one_thread, predict, train

Array = NDArray[Any]
Votes = NDArray[np.int16]
Weights = dict[str, Array]
Slice = tuple[Array, Array]  # the inputs and labels of one teacher
Finished = list[tuple[int, Votes, Weights]]  # number, votes and weights of each teacher of a task

_PER_TASK = 4  # teachers that a worker trains between two reports: what a killed run loses
_STACKED = 5  # teachers in one vmap: more do not fit into the processor's caches
_MANIFEST = "ensemble.json"


class Teachers(Protocol):
    """Whatever trains one model for each slice and lets it vote."""

    def votes(self, dataset: TensorDataset, slices: Sequence[ArrayLike], queries: Tensor) -> Votes:
        """The class that each teacher gives each query: one row for each query, one column for each slice."""
        ...


class NetworkTeachers:
    """Neural networks as teachers, in worker processes (`backend="processes"`) or stacked in this one (`backend="vmap"`).

    `make_model` makes an untrained network; what it draws comes from the teacher's seed. `workers` is the number of processes, all cores by
    default; the backend is joblib's, so `joblib.parallel_config("ray")` spreads the teachers over a cluster. With `folder`, finished
    teachers are kept there and a run that was killed goes on where it was. A slice whose records are of one class, or that has a single
    record, gives that class without training. A `seed` is for tests and demonstrations.

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
        folder: str | os.PathLike[str] | None = None,
        progress: bool = True,
    ) -> None:
        if backend not in ("processes", "vmap"):
            raise SartorError(f'backend must be "processes" or "vmap", not {backend!r}.')
        if backend == "vmap" and workers is not None:
            raise SartorError('backend="vmap" works in this process with torch\'s own threads; leave workers out.')
        self.make_model = make_model
        self.how = Training(epochs, batch, lr, augment)
        self.workers, self.backend, self.seed, self.folder, self.progress = _workers(workers), backend, seed, folder, progress

    def votes(self, dataset: TensorDataset, slices: Sequence[ArrayLike], queries: Tensor) -> Votes:
        """The class that each teacher gives each query: one row for each query, one column for each slice."""
        chosen = _checked(dataset, slices, queries)
        if self.how.augment and queries.dim() != 4:
            raise SartorError("only images can be turned and shifted; train on other inputs with augment=False.")
        with drawing(0):
            model = self.make_model()
        _check_labels(dataset, _classes(model, queries))
        settings = {
            **asdict(self.how),
            "backend": self.backend,
            "model": str(model),
            "start": _digest(map(_bytes, model.state_dict().values())),
            "torch": torch.__version__,
        }
        kept = _Folder.opened(self.folder, self.seed, settings, dataset, chosen, queries)
        stacked = self.backend == "vmap"
        arguments = (
            (self.make_model, self.how, numbers, *_parts(dataset, chosen, kept.seed, numbers), queries.numpy(), kept.path is not None)
            for numbers in _tasks(len(chosen), _STACKED if stacked else _PER_TASK, kept)
        )
        results = (_stacked(*each) for each in arguments) if stacked else _parallel(_networks, arguments, self.workers)
        return _gathered(kept, results, self.progress)


class EstimatorTeachers:
    """Classifiers of scikit-learn as teachers, each a fresh one fitted on its own slice in a worker process.

    `make_estimator` makes an unfitted classifier, or is one. All random states in it are set from the teacher's seed. A slice whose
    records are of one class gives that class without a fit. The folder keeps votes alone: fitted classifiers could be kept only by pickle.

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
        folder: str | os.PathLike[str] | None = None,
        progress: bool = True,
    ) -> None:
        self.make_estimator = make_estimator
        self.workers, self.seed, self.folder, self.progress = _workers(workers), seed, folder, progress

    def votes(self, dataset: TensorDataset, slices: Sequence[ArrayLike], queries: Tensor) -> Votes:
        """The class that each teacher gives each query: one row for each query, one column for each slice."""
        chosen = _checked(dataset, slices, queries)
        _check_labels(dataset, np.iinfo(np.int16).max)
        estimator = fresh(self.make_estimator, 0)
        settings = {"estimator": type(estimator).__qualname__, "settings": repr(estimator.get_params())}
        kept = _Folder.opened(self.folder, self.seed, settings, dataset, chosen, queries)
        arguments = (
            (self.make_estimator, numbers, *_parts(dataset, chosen, kept.seed, numbers), queries.flatten(1).numpy())
            for numbers in _tasks(len(chosen), _PER_TASK, kept)
        )
        return _gathered(kept, _parallel(_estimators, arguments, self.workers), self.progress)


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


def _networks(
    make_model: Callable[[], nn.Module],
    how: Training,
    numbers: list[int],
    seeds: list[int],
    slices: list[Slice],
    queries: Array,
    keep: bool,
) -> Finished:
    """Trains networks one after another on one thread, wherever joblib runs it."""
    done: Finished = []
    with one_thread():
        for number, seed, (inputs, labels) in zip(numbers, seeds, slices, strict=True):
            with drawing(seed):
                model = make_model()
                if _one_class(labels) is None:
                    train(model, *_tensors(inputs, labels), how, seed)
            done.append((number, _answers(model, labels, queries), _state(model) if keep else {}))
    return done


def _stacked(
    make_model: Callable[[], nn.Module],
    how: Training,
    numbers: list[int],
    seeds: list[int],
    slices: list[Slice],
    queries: Array,
    keep: bool,
) -> Finished:
    """Trains networks side by side: every layer is called once for all of them, on their own weights, statistics and batches."""
    models = []
    for seed in seeds:
        with drawing(seed):
            models.append(make_model())
    params, buffers = stack_module_state(models)
    skeleton = copy.deepcopy(models[0]).to("meta").train()

    def loss(params: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(functional_call(skeleton, (params, buffers), (x,)), y)

    together = vmap(loss, randomness="different")
    optimizer = torch.optim.Adam(params.values(), lr=how.lr, fused=True)
    records = [_tensors(*part) for part in slices]
    supplies = [batches(x, y, how, seed) for (x, y), seed in zip(records, seeds, strict=True)]
    last = [how.steps(len(y)) if _one_class(y) is None else 0 for _, y in records]
    idle = torch.zeros(how.batch, *queries.shape[1:]), torch.zeros(how.batch, dtype=torch.int64)
    with drawing(seeds[0]):
        for step in range(1, max(last) + 1):
            pairs = [next(supply, idle) for supply in supplies]
            x, y = torch.stack([x for x, _ in pairs]), torch.stack([y for _, y in pairs])
            optimizer.zero_grad()
            together(params, buffers, x, y).sum().backward()
            optimizer.step()
            for place in (place for place, end in enumerate(last) if end == step):
                models[place].load_state_dict({name: value[place].detach() for name, value in {**params, **buffers}.items()})
    return [
        (number, _answers(model, labels, queries), _state(model) if keep else {})
        for number, model, (_, labels) in zip(numbers, models, slices, strict=True)
    ]


def _estimators(make_estimator: Any, numbers: list[int], seeds: list[int], slices: list[Slice], queries: Array) -> Finished:
    """Fits classifiers one after another; each sees its own classes as 0, 1, 2 and so on, and its answers are put back."""
    done: Finished = []
    for number, seed, (inputs, labels) in zip(numbers, seeds, slices, strict=True):
        only = _one_class(labels)
        if only is None:
            own, places = np.unique(labels, return_inverse=True)
            estimator = fresh(make_estimator, seed).fit(inputs.reshape(len(labels), -1), places)
            votes = own[estimator.predict(queries).astype(np.intp)].astype(np.int16)
        else:
            votes = np.full(len(queries), only, np.int16)
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


def _tasks(teachers: int, size: int, kept: _Folder) -> list[list[int]]:
    """Teachers by number in tasks of fixed size, without the tasks that were finished before."""
    tasks = [list(range(start, min(start + size, teachers))) for start in range(0, teachers, size)]
    return [task for task in tasks if not all(number in kept.done for number in task)]


def _parts(dataset: TensorDataset, slices: list[NDArray[np.intp]], seed: int, numbers: list[int]) -> tuple[list[int], list[Slice]]:
    """The seeds and records of some teachers: a worker gets what its teachers learn from and nothing else."""
    inputs, labels = (tensor.numpy() for tensor in dataset.tensors)
    return [seed_of(seed, number) for number in numbers], [(inputs[slices[number]], labels[slices[number]]) for number in numbers]


def _parallel(task: Callable[..., Finished], arguments: Iterable[tuple[Any, ...]], workers: int) -> Iterator[Finished]:
    """Runs tasks by joblib, and gives each result as soon as it is there (all at the end where a backend cannot)."""
    if isinstance(get_active_backend()[0], ThreadingBackend):
        raise SartorError("teachers cannot train in threads, which share one random generator: choose a joblib backend of processes.")
    try:
        pool = joblib.Parallel(n_jobs=workers, batch_size=1, return_as="generator_unordered")
    except ValueError:
        pool = joblib.Parallel(n_jobs=workers, batch_size=1)
    yield from pool(joblib.delayed(task)(*each) for each in arguments)


def _gathered(kept: _Folder, results: Iterator[Finished], progress: bool) -> Votes:
    with _bar(progress, kept.teachers, len(kept.done)) as advance:
        for finished in results:
            for number, votes, weights in finished:
                kept.add(number, votes, weights)
            advance(len(kept.done))
    return np.stack([kept.done[number] for number in range(kept.teachers)], axis=1)


class _Folder:
    """The votes of finished teachers, in memory and, if there is a folder, one file for each teacher that only its owner can read."""

    def __init__(self, path: Path | None, seed: int, teachers: int) -> None:
        self.path, self.seed, self.teachers = path, seed, teachers
        self.done: dict[int, Votes] = {}

    @classmethod
    def opened(
        cls,
        folder: str | os.PathLike[str] | None,
        seed: int | None,
        settings: Mapping[str, Any],
        dataset: TensorDataset,
        slices: list[NDArray[np.intp]],
        queries: Tensor,
    ) -> _Folder:
        """A folder of these settings, records and queries, new or begun; one of others is refused."""
        if folder is None:
            return cls(None, secrets.randbits(128) if seed is None else seed, len(slices))
        path = Path(folder)
        of = {
            "settings": _digest([json.dumps(settings, sort_keys=True, default=str).encode()]),
            "slices": _digest(part for indices in slices for part in (str(len(indices)).encode(), np.ascontiguousarray(indices))),
            "data": _digest(_bytes(tensor) for tensor in dataset.tensors),
            "queries": _digest([_bytes(queries)]),
        }
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if (path / _MANIFEST).exists():
            found = _manifest(path)
            for what, name in {"settings": "settings", "slices": "slices", "data": "data", "queries": "queries"}.items():
                if found["of"].get(what) != of[what]:
                    raise SartorError(f"{path} holds teachers of other {name}: give another folder, or the same {name}.")
            if seed is not None and found["seed"] != str(seed):
                raise SartorError(f"{path} holds teachers of another seed: give another folder, or the same seed.")
            self = cls(path, int(found["seed"]), len(slices))
        else:
            if any(path.iterdir()):
                raise SartorError(f"{path} holds other files and no teachers: give an empty folder or a new one.")
            path.chmod(0o700)
            self = cls(path, secrets.randbits(128) if seed is None else seed, len(slices))
            _write(path / _MANIFEST, json.dumps({"of": of, "seed": str(self.seed)}).encode())
        self._read(len(queries))
        return self

    def add(self, number: int, votes: Votes, weights: Weights) -> None:
        """Keep a finished teacher."""
        if self.path is not None:
            tensors = {"votes": votes, **{f"weights.{name}": np.ascontiguousarray(value) for name, value in weights.items()}}
            _write(self._file(number), save(tensors))
        self.done[number] = votes

    def _file(self, number: int) -> Path:
        assert self.path is not None
        return self.path / f"teacher-{number:05d}.safetensors"

    def _read(self, queries: int) -> None:
        for number in range(self.teachers):
            file = self._file(number)
            if file.exists():
                try:
                    votes = load(file.read_bytes())["votes"]
                except (SafetensorError, KeyError):
                    votes = np.zeros(0, np.int16)
                if votes.shape != (queries,) or votes.dtype != np.int16:
                    raise SartorError(f"{file} is damaged: remove it, and its teacher is trained again.")
                self.done[number] = votes


def _manifest(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads((path / _MANIFEST).read_bytes())
        int(found["seed"]), dict(found["of"])
    except (ValueError, KeyError, TypeError):
        raise SartorError(f"{path / _MANIFEST} is damaged: give another folder.") from None
    return found


def _write(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read, whole or not at all."""
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)


def _digest(chunks: Iterable[Any]) -> str:
    hashed = hashlib.blake2b(digest_size=16)
    for chunk in chunks:
        hashed.update(chunk)
    return hashed.hexdigest()


def _bytes(tensor: Tensor) -> Any:
    return f"{tuple(tensor.shape)} {tensor.dtype}".encode() + tensor.detach().contiguous().numpy().tobytes()


def _workers(workers: int | None) -> int:
    if workers is not None and workers < 1:
        raise SartorError(f"workers must be 1 or more, not {workers}; leave it out for all cores.")
    return -1 if workers is None else workers


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


@contextmanager
def _bar(wanted: bool, teachers: int, done: int) -> Iterator[Callable[[int], None]]:
    """A progress bar on stderr, where somebody watches."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if not wanted or not console.is_terminal:
        yield lambda count: None
        return
    with Progress(TextColumn("teachers"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=console) as bar:
        task = bar.add_task("teachers", total=teachers, completed=done)
        yield lambda count: bar.update(task, completed=count)
