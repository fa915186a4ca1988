"""Training shadow models under a plan: many side by side, or one by one; some holders zeroed in each, otherwise as `sartor.fit` does it.

Guarantee: none, and none is needed of a model that nobody sees: shadow models are seeded, are trained on private records, and never leave
    the process that trained them. Their signals are sensitive.
Proof that they follow the plan: coins come from the plan's own sampler and noise from the run's own function, from the stream of the
    model's seed, so both are those that `sartor.fit` with that seed draws; a holder who is out is tossed a coin like everybody, and left
    out of the draw; sums are divided by the plan's batch. Tests compare with a naive loop and with `sartor.fit`.
Breaks if: `make_model` returns models that share parameters.

Of models in other processes every signal of every target and of every record of the population comes back. joblib spreads tasks over
processes; within `joblib.parallel_config("ray")`, after `ray.util.joblib.register_ray()`, over those of a cluster.

Sensitive: records and signals go between processes through pipes, and, on a cluster, through its store of objects, which is the memory and
the disks of its machines.

A signal is one number for each record, higher where the model is surer of the record's own target: "log-odds" is log(p / (1 - p)) of the
true class, which is close to Gaussian over models (Carlini et al. 2022); "logit" is the network's raw output at the true class, which the
authors of IDP-SGD took; "loss" is the negative loss, for targets that are not classes. A holder with several records has the mean of
theirs. Sensitive: signals are of private records, without noise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import joblib  # type: ignore[import-untyped,unused-ignore]
import numpy as np
import torch
from joblib.parallel import ThreadingBackend, get_active_backend  # type: ignore[import-untyped,unused-ignore]
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset, TensorDataset

from sartor.audit.shadow_folder import Arrays
from sartor.audit.stacked import Stack, can_be_stacked
from sartor.budgets import Budgets
from sartor.errors import SartorError
from sartor.ownership import Ownership
from sartor.plans import Plan
from sartor.plans.published import REFUSED, Published
from sartor.run.sampling import Draw, PoissonSampler
from sartor.run.stream import Stream, normal
from sartor.sgd.loader import check_dataset
from sartor.sgd.loss import Loss
from sartor.sgd.one_model import refuse_members
from sartor.sgd.optimizer import make
from sartor.sgd.private import make_private, unwrap

Array = NDArray[np.float64]

NAMES = ("log-odds", "logit", "loss")
_AT_ONCE = 1024


def of_outputs(name: str, outputs: Tensor, targets: Tensor, loss: Loss) -> Tensor:
    """The signal of each record from a model's outputs for it, in float64.

    >>> outputs, targets = torch.tensor([[0.0, 0.0, 2.0]]), torch.tensor([2])
    >>> odds = outputs.exp()[0, 2] / outputs.exp()[0, :2].sum()
    >>> torch.allclose(of_outputs("log-odds", outputs, targets, Loss(None)).exp().float(), odds)
    True
    """
    check_name(name)
    if name == "loss":
        return -loss(outputs, targets).double()
    if outputs.dim() != 2 or targets.dim() != 1 or targets.is_floating_point():
        raise SartorError(
            f'the signal "{name}" is of a true class, so it needs outputs of shape (records, classes) and one class for each record; '
            'for other targets take signal="loss".'
        )
    scores, place = outputs.double(), targets[:, None]
    own = scores.gather(1, place)[:, 0]
    if name == "logit":
        return own
    return own - torch.logsumexp(scores.scatter(1, place, -torch.inf), 1)


def all_of_outputs(outputs: Tensor, targets: Tensor, loss: Loss) -> dict[str, Tensor]:
    """Every signal that there is of each record: all of them where targets are classes, or else the loss."""
    of_classes = outputs.dim() == 2 and targets.dim() == 1 and not targets.is_floating_point()
    return {name: of_outputs(name, outputs, targets, loss) for name in (NAMES if of_classes else ("loss",))}


def check_name(name: str) -> None:
    """Refuse a signal that there is not."""
    if name not in NAMES:
        raise SartorError(f'there is no signal "{name}"; there are {", ".join(NAMES)}.')


@torch.no_grad()
def signals_of(
    model: nn.Module,
    dataset: Dataset[Any],
    *,
    name: str = "log-odds",
    ownership: Ownership | None = None,
    loss: Callable[[Any, Any], Tensor] | None = None,
    collate: Callable[[list[Any]], Any] | None = None,
) -> Array:
    """The signal of each holder in one model, which may be a released one.

    >>> records = TensorDataset(torch.randn(5, 3), torch.tensor([0, 1, 1, 0, 1]))
    >>> signals_of(nn.Linear(3, 2), records).shape
    (5,)
    """
    measure = Loss(loss)
    with evaluated(model):
        found = [of_outputs(name, model(inputs), targets, measure) for inputs, targets in batches(dataset, collate)]
    return by_holder(torch.cat(found).numpy(), ownership)


@contextmanager
def evaluated(model: nn.Module) -> Iterator[nn.Module]:
    """A model whose modules are in evaluation, and afterwards as they were."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield model
    finally:
        for module, mode in modes:
            module.training = mode


def by_holder(values: Array, ownership: Ownership | None) -> Array:
    """The mean over each holder's records, in the last dimension."""
    if ownership is None:
        return values
    added = np.apply_along_axis(lambda row: np.bincount(ownership.of_record, row, ownership.holders), -1, values)
    return np.asarray(added / ownership.counts)


def batches(dataset: Any, collate: Callable[[list[Any]], Any] | None) -> Iterator[tuple[Any, Any]]:
    """All records in their order, as batches of inputs and targets."""
    plain = type(dataset) is TensorDataset and collate is None
    parts = zip(*(tensor.split(_AT_ONCE) for tensor in dataset.tensors), strict=True) if plain else None
    for batch in DataLoader(dataset, batch_size=_AT_ONCE, collate_fn=collate) if parts is None else parts:
        if not isinstance(batch, list | tuple) or len(batch) != 2:
            raise SartorError("attacks need records that are pairs of input and target.")
        yield batch[0], batch[1]


Mask = NDArray[np.bool_]

_NOT_FINITE = "a shadow model is no longer finite after step {} of {}: attack a run with a smaller learning rate."


@dataclass(frozen=True, eq=False)
class Learning:
    """How a model learns under its plan: what `sartor.fit` takes by the same names."""

    lr: float = 0.1
    optimizer: str | Callable[[Any], Optimizer] = "sgd"
    momentum: float = 0.0
    loss: Callable[[Any, Any], Tensor] | None = None
    collate: Callable[[list[Any]], Any] | None = None

    def made(self, parameters: Any) -> Optimizer:
        """The optimizer of these parameters."""
        return make(self.optimizer, parameters, lr=self.lr, momentum=self.momentum)


@dataclass(frozen=True, eq=False, repr=False)
class Material:
    """What shadow models are trained from: the data, everyone's budgets, the plan as it is, and how the model learns."""

    make_model: Callable[[], nn.Module]
    dataset: Dataset[Any]
    budgets: Budgets
    plan: Plan
    learning: Learning
    ownership: Ownership | None = None

    def __post_init__(self) -> None:
        refuse_members(self.plan)
        if isinstance(self.plan, Published):
            raise SartorError(REFUSED)
        check_dataset(self.dataset, self.budgets, self.ownership)
        self.plan.groups_of(self.budgets)

    def fresh(self, seed: int) -> nn.Module:
        """An untrained model, which draws its first weights from a seed."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self.make_model()

    def can_be_stacked(self) -> bool:
        """Whether models can be trained side by side: one record for each holder, in tensors; no filter; an optimizer that moves every
        number by itself; and a network that can (`stacked.can_be_stacked`)."""
        plain = type(self.dataset) is TensorDataset and len(self.dataset.tensors) == 2 and self.learning.collate is None
        if not plain or self.ownership is not None or self.plan.filter is not None or callable(self.learning.optimizer):
            return False
        assert isinstance(self.dataset, TensorDataset)
        inputs, targets = self.dataset.tensors
        return can_be_stacked(self.fresh(0), Loss(self.learning.loss), inputs, targets)


class Without(PoissonSampler):
    """The plan's sampler, but that some holders are never drawn; everybody else's coins are what they are."""

    def __init__(self, plan: Plan, budgets: Budgets, stream: Stream, absent: Mask) -> None:
        if absent.shape != (len(budgets),) or absent.dtype != bool:
            raise SartorError(f"who is out is said for each of the {len(budgets)} holders.")
        super().__init__(plan, budgets, stream, filtered=True)  # rungs are kept to by whoever trains under a filter
        self._absent = absent

    def draw(self, step: int) -> Draw:
        """Who takes part in a step, without those who are out."""
        draw = super().draw(step)
        present = ~self._absent[draw.indices]
        return Draw(draw.step, draw.indices[present], draw.clips[present])


def train_stacked(material: Material, seeds: Sequence[int], absent: Sequence[Mask]) -> Stack:
    """Models trained side by side, one for each seed, in each of which some holders are out."""
    plan, budgets = material.plan, material.budgets
    if plan.filter is not None or material.ownership is not None or type(material.dataset) is not TensorDataset:
        raise SartorError("plans with a filter, holders with several records and records that are not rows of tensors cannot be stacked.")
    inputs, targets = material.dataset.tensors
    streams = [Stream(seed) for seed in seeds]
    samplers = [Without(plan, budgets, stream, out) for stream, out in zip(streams, absent, strict=True)]
    stack = Stack([material.fresh(seed) for seed in seeds], Loss(material.learning.loss), inputs[:2], targets[:2])
    moved = [stack.values[name] for name in stack.trained]
    optimizer = material.learning.made([value.requires_grad_(True) for value in moved])
    for step in range(plan.steps):
        sums = _sums(stack, inputs, targets, [sampler.draw(step) for sampler in samplers])
        noise = [normal(stream.generator("noise", step), stack.parameters, plan.noise_at(step)) for stream in streams]
        shares = torch.from_numpy(np.stack(noise)).split([value[0].numel() for value in moved], 1)
        for name, value, share in zip(stack.trained, moved, shares, strict=True):
            value.grad = ((sums[name].double() + share.reshape(value.shape)) / plan.batch).to(value.dtype)
        optimizer.step()
        if not all(bool(value.isfinite().all()) for value in moved):
            raise SartorError(_NOT_FINITE.format(step + 1, plan.steps))
    for value in moved:
        value.requires_grad_(False).grad = None
    return stack


def _sums(stack: Stack, inputs: Tensor, targets: Tensor, draws: Sequence[Draw]) -> dict[str, Tensor]:
    """The clipped sum of each model's draw; those with fewer holders than others are filled up with the first record, at clip 0."""
    width = max(1, *(len(draw) for draw in draws)) if len(draws) > 1 else max(1, len(draws[0]))
    rows, clips = torch.zeros(len(draws), width, dtype=torch.int64), torch.zeros(len(draws), width)
    for model, draw in enumerate(draws):
        rows[model, : len(draw)] = torch.tensor(draw.indices)
        clips[model, : len(draw)] = torch.tensor(draw.clips, dtype=torch.float32)
    return stack.sums(inputs[rows], targets[rows], clips)


def train_alone(material: Material, seed: int, absent: Mask) -> nn.Module:
    """One model, as `sartor.fit` trains it with this seed, in which some holders are out."""
    learning, measure = material.learning, Loss(material.learning.loss)
    model = material.fresh(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        stream = Stream(seed)
        model, optimizer, loader = make_private(
            model,
            learning.made([value for value in model.parameters() if value.requires_grad]),
            material.dataset,
            material.budgets,
            material.plan,
            ownership=material.ownership,
            reduction="sum",
            collate=learning.collate,
            loss=measure if material.plan.filter is not None else None,
            stream=stream,
        )
        loader.draws = replace(loader.draws, sampler=Without(material.plan, material.budgets, stream, absent))
        model.train()
        try:
            for inputs, targets in loader:
                optimizer.zero_grad()
                measure(model(inputs), targets).sum().backward()
                optimizer.step()
        finally:
            unwrap(model, optimizer)
    return model


@dataclass(frozen=True, eq=False, repr=False)
class Task:
    """Some models to be trained in one go: their numbers and seeds, who is out of each, and whose signals are asked for."""

    material: Material
    numbers: list[int]
    seeds: list[int]
    absent: list[Mask]
    targets: NDArray[np.intp]
    population: Dataset[Any] | None
    stacked: bool


def of_population(signal: str) -> str:
    """Under which name the signals of the population come back."""
    return f"{signal} of the population"


def parallel(tasks: Iterator[Task], workers: int | None) -> Iterator[tuple[list[int], list[Arrays]]]:
    """Runs tasks by joblib, and gives each result as soon as it is there (all at the end where a backend cannot).

    Records go to the workers through pipes: joblib's files for large arrays (`max_nbytes`) would outlive a kill, in a folder for all.
    """
    backend = get_active_backend()[0]
    if isinstance(backend, ThreadingBackend):
        raise SartorError("shadow models cannot train in threads, which share one random generator: choose a joblib backend of processes.")
    waiting = list(tasks)
    jobs = -1 if workers is None else min(workers, max(1, len(waiting)))
    try:
        pool = joblib.Parallel(n_jobs=jobs, batch_size=1, max_nbytes=None, return_as="generator_unordered")
    except ValueError:
        pool = joblib.Parallel(n_jobs=jobs, batch_size=1, max_nbytes=None)
    yield from pool(joblib.delayed(carried_out)(task, jobs != 1) for task in waiting)


def carried_out(task: Task, beside_others: bool) -> tuple[list[int], list[Arrays]]:
    """Trains the models of a task, and gives what they show; beside other processes on one thread."""
    threads = torch.get_num_threads()
    try:
        if beside_others:
            torch.set_num_threads(1)
        if task.stacked:
            stack = train_stacked(task.material, task.seeds, task.absent)
            return task.numbers, _shown(stack.outputs, task, len(stack))
        found = []
        for seed, absent in zip(task.seeds, task.absent, strict=True):
            with evaluated(train_alone(task.material, seed, absent)) as model:
                found += _shown(lambda inputs, model=model: model(inputs)[None], task, 1)  # type: ignore[misc]
        return task.numbers, found
    finally:
        torch.set_num_threads(threads)


def _shown(outputs: Callable[[Any], Tensor], task: Task, models: int) -> list[Arrays]:
    """All signals of each model, of targets and of the population."""
    found: list[Arrays] = [{} for _ in range(models)]
    for model, signals in enumerate(_signals(outputs, task.material.dataset, task)):
        for name, values in signals.items():
            found[model][name] = by_holder(values, task.material.ownership)[task.targets]
            found[model][of_population(name)] = np.empty(0)
    for model, signals in enumerate([] if task.population is None else _signals(outputs, task.population, task)):
        found[model] |= {of_population(name): values for name, values in signals.items()}
    return found


@torch.no_grad()
def _signals(outputs: Callable[[Any], Tensor], data: Dataset[Any], task: Task) -> list[dict[str, NDArray[np.float64]]]:
    """By model and name, the signals of all records of a data set."""
    learning, parts = task.material.learning, []
    measure = Loss(learning.loss)
    for inputs, targets in batches(data, learning.collate):
        parts.append([all_of_outputs(own, targets, measure) for own in outputs(inputs)])
    return [
        {name: torch.cat([part[model][name] for part in parts]).numpy() for name in NAMES if name in parts[0][model]}
        for model in range(len(parts[0]) if parts else 0)
    ]
