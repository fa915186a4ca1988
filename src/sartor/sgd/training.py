"""`sartor.fit`: train a model under a plan in one call."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset, TensorDataset

from sartor.budgets import Budgets
from sartor.errors import NoAccuracy, SartorError
from sartor.individual.readings import Reading
from sartor.ownership import Ownership
from sartor.plans import Plan
from sartor.plans.published import REFUSED, Published
from sartor.progress import bar
from sartor.run.account import RunAccount
from sartor.run.journal import refuse_begun
from sartor.sgd.forks import forked
from sartor.sgd.interrupt import between_steps
from sartor.sgd.loader import PrivateLoader
from sartor.sgd.loss import Loss, pair
from sartor.sgd.optimizer import PrivateOptimizer, make
from sartor.sgd.options import Checkpoints, Evaluation, Execution, Tracking
from sartor.sgd.private import make_private, unwrap
from sartor.sgd.public import refuse_protected
from sartor.sgd.run import NotFinite

_IGNORED = -100  # a target that says nothing, as in torch
_EVALUATED = 1024
_NAN = (
    "after step {} the model gives no numbers for public records (NaN), so the run ends. The steps taken stay charged: start a new run "
    "with a smaller learning rate and the remaining budget."
)


@dataclass(frozen=True, eq=False)
class Progress:
    """What callbacks see after a step: nothing of the private data."""

    step: int
    steps: int
    model: nn.Module
    account: Callable[[], RunAccount]


@dataclass(frozen=True, eq=False)
class Sensitive:
    """Figures about the training data themselves: not protected by the guarantee, for research on data that may be shown."""

    loss: NDArray[np.float64] = field(repr=False)
    accuracy: NDArray[np.float64] = field(repr=False)


@dataclass(frozen=True, eq=False)
class Result:
    """A trained model, what it cost, and how it did on public data."""

    model: nn.Module = field(repr=False)
    account: RunAccount
    accuracy: float | None
    history: list[dict[str, float]] = field(repr=False)
    seconds: float
    steps: int
    stopped_early: bool = False
    reading: Reading | None = field(default=None, repr=False)
    sensitive: Sensitive | None = field(default=None, repr=False)


def fit(
    model: nn.Module,
    dataset: Dataset[Any],
    budgets: Budgets,
    plan: Plan,
    *,
    ownership: Ownership | None = None,
    lr: float = 0.1,
    optimizer: str | Callable[[Any], Optimizer] = "sgd",
    momentum: float = 0.0,
    loss: Callable[[Any, Any], Tensor] | None = None,
    scheduler: Callable[[Optimizer], Any] | None = None,
    collate: Callable[[list[Any]], Any] | None = None,
    callbacks: Sequence[Callable[[Progress], object]] = (),
    evaluation: Evaluation | None = None,
    checkpoints: Checkpoints | None = None,
    execution: Execution | None = None,
    tracking: Tracking | None = None,
    seed: int | None = None,
    progress: bool = True,
) -> Result:
    """Train `model` on `dataset`, whose records are pairs of input and target, under `plan`.

    Without an `ownership` there is one record for each budget, in their order; with one, holders may have any number of records, and are
    drawn, clipped and charged as one.

    `optimizer` is "sgd" (with `momentum`), "adam", or a function from parameters to one of torch's, and `scheduler` makes a learning-rate
    scheduler from it and steps with it. `loss` may reduce by mean, by sum or not at all: it is asked for one number per example; without
    one it is cross entropy. `collate` makes a batch of records, as a `DataLoader`'s does. `callbacks` see the `Progress` after every step.

    What is checked on the way is said by `evaluation`, what is kept by `checkpoints`, how steps are carried out by `execution`; without
    them nothing is evaluated or kept. With `tracking`, or under a plan with a filter, the result has a `reading` of what each holder's
    gradients cost. With checkpoints, Ctrl-C and SIGTERM end the step at hand, write one and stop. A model that is no longer
    finite ends the run (`NotFinite`); its steps stay charged. `seed` is for tests: a seeded run is not private, and its account says so.
    `progress` shows a bar.

    >>> import sartor, torch
    >>> data = torch.utils.data.TensorDataset(torch.randn(200, 4), torch.randint(0, 2, (200,)))
    >>> budgets = sartor.Budgets.from_groups([(1.0, 100), (4.0, 100)], delta=1e-3)
    >>> plan = sartor.plan(budgets, steps=5, batch=20)
    >>> result = sartor.fit(torch.nn.Linear(4, 2), data, budgets, plan, lr=0.5, progress=False)
    >>> result.account
    RunAccount(5 of 5 steps)
    """
    if isinstance(plan, Published):
        raise SartorError(REFUSED)
    if not isinstance(budgets, Budgets) or not isinstance(plan, Plan):
        raise SartorError("fit takes model, dataset, budgets and plan, in this order: sartor.Budgets, and what sartor.plan makes of them.")
    checks, how, start = evaluation or Evaluation(), execution or Execution(), time.perf_counter()
    given = {"evaluation": (checks, Evaluation), "execution": (how, Execution), "checkpoints": (checkpoints, Checkpoints | None)}
    for name, (value, kind) in given.items():
        if not isinstance(value, kind):
            raise SartorError(f"{name}= takes a sartor.{name.capitalize()}, not {value!r:.40}.")
    if checkpoints is not None and not checkpoints.resume:
        refuse_begun(checkpoints.folder)
    refuse_protected(checks.public, dataset, budgets, ownership)
    if seed is not None and not (checkpoints is not None and checkpoints.resume):
        torch.manual_seed(seed)
    measure = Loss(loss)
    model, private, loader = make_private(
        model,
        make(optimizer, [p for p in model.parameters() if p.requires_grad], lr=lr, momentum=momentum),
        dataset,
        budgets,
        plan,
        ownership=ownership,
        reduction="sum",
        collate=collate,
        workers=how.workers,
        max_physical_batch=how.max_physical_batch,
        noise_draws=how.noise_draws,
        loss=measure,
        tracking=tracking,
        seed=seed,
    )
    history: list[dict[str, float]] = []
    stopped = False
    modes = [(module, module.training) for module in model.modules()]

    def evaluated(account: RunAccount) -> dict[str, float]:
        losses, hits = _figures(model, checks.public, measure, collate)
        if np.isnan(losses).any():
            raise NotFinite(_NAN.format(account.steps), account)
        return {"step": account.steps, **_means(losses, hits)}

    try:
        schedule = None if scheduler is None else scheduler(private)
        if isinstance(schedule, torch.optim.lr_scheduler.ReduceLROnPlateau):
            raise SartorError("ReduceLROnPlateau follows a figure that fit does not give it; step it by public data in a loop of your own.")
        if checkpoints is not None:
            found = loader.checkpoint(
                **{item.name: getattr(checkpoints, item.name) for item in fields(checkpoints)},
                scheduler=schedule,
                public=lambda: {"history": history, "stopped": stopped},
            )
            history, stopped = list(found.get("history", ())), bool(found.get("stopped"))
            if "ended" in found:
                raise NotFinite(found["ended"], private.account())
        model.train()
        with bar("training", plan.steps, private.run.steps, wanted=progress) as advance, between_steps() as interrupted:
            for _ in _steps(model, private, loader, measure):
                if schedule is not None:
                    schedule.step()
                done = private.run.steps
                advance(done)
                for callback in callbacks:
                    callback(Progress(done, plan.steps, model, private.account))
                if checks.is_due(done):
                    with forked():  # dropout of the steps to come does not follow who looks on
                        history.append(evaluated(private.account()))
                    stopped = checks.patience is not None and _stale(history, checks.patience)
                if stopped:
                    break
                if interrupted():
                    raise KeyboardInterrupt(f"stopped after step {done}, which is charged" + (_GOES_ON if checkpoints else ""))
        loader.close(over=stopped)
    except KeyboardInterrupt:
        loader.close()
        raise
    except NotFinite as stop:
        loader.close(over=True, ended=str(stop))
        raise NotFinite(str(stop), private.account()) from None
    except BaseException:
        loader.let_go()
        raise
    finally:
        unwrap(model, private)
        for module, mode in modes:
            module.training = mode
    account = private.account()
    if checks.public is not None and (not history or history[-1]["step"] != account.steps):
        history.append(evaluated(account))
    groups = plan.groups_of(budgets) if ownership is None else plan.groups_of(budgets)[ownership.of_record]
    return Result(
        model=model,
        account=account,
        accuracy=history[-1]["accuracy"] if checks.public is not None else None,
        history=history,
        seconds=time.perf_counter() - start,
        steps=account.steps,
        stopped_early=stopped,
        reading=None if loader.draws.stretches is None else loader.reading(),
        sensitive=_per_group(model, dataset, groups, len(plan), measure, collate) if checks.sensitive else None,
    )


_GOES_ON = "; checkpoints=Checkpoints(folder, resume=True) goes on from there"


def _steps(model: nn.Module, optimizer: PrivateOptimizer, loader: PrivateLoader, measure: Loss) -> Iterator[None]:
    """Take the run's remaining steps, one at a time."""
    for batch in loader if len(loader) else ():
        inputs, targets = pair(batch)
        optimizer.zero_grad()
        measure(model(inputs), targets).sum().backward()
        optimizer.step()
        if optimizer.took_step:
            yield


def evaluate(model: nn.Module, data: Dataset[Any], loss: Callable[..., Tensor] | None = None) -> dict[str, float]:
    """Accuracy and mean loss on public data."""
    return _means(*_figures(model, data, Loss(loss), None))


def by_holder(
    model: nn.Module, data: Dataset[Any], ownership: Ownership | None = None, loss: Callable[..., Tensor] | None = None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """How much of each holder's records a model gets right, and its mean loss on them. Sensitive; NaN where it cannot be told."""
    losses, hits = _figures(model, data, Loss(loss), None)
    hits = hits if len(hits) else np.full(len(losses), np.nan)
    if ownership is None:
        return hits, losses
    of, people = ownership.of_record, ownership.holders
    with np.errstate(invalid="ignore", divide="ignore"):
        correct, mean = (np.bincount(of, values, people) / np.bincount(of, minlength=people) for values in (hits, losses))
    return correct, mean


def classes(data: Dataset[Any]) -> NDArray[np.int64]:
    """The class of each record; -1 where its target is not one class. Sensitive."""
    found = [torch.full((0,), -1)]
    for batch in _batches(data, None):
        targets = pair(batch)[1]
        whole = isinstance(targets, Tensor) and targets.dim() == 1 and not targets.is_floating_point()
        found.append(targets.long() if whole else torch.full((len(targets),), -1))
    return torch.cat(found).cpu().numpy()


def has_classes(data: Any) -> bool:
    """Whether targets are whole numbers, by the type of the first."""
    try:
        return not torch.as_tensor(pair(data[0])[1]).is_floating_point()
    except (TypeError, ValueError, RuntimeError):
        return False


def _means(losses: NDArray[np.float64], hits: NDArray[np.float64]) -> dict[str, float]:
    told = hits[~np.isnan(hits)]
    return {"accuracy": float(told.mean()) if len(told) else float("nan"), "loss": float(losses.mean()) if len(losses) else float("nan")}


@torch.no_grad()
def _figures(model: nn.Module, data: Any, measure: Loss, collate: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Each example's loss, and whether its class was found (nothing where targets are not classes)."""
    losses: list[Tensor] = []
    hits: list[Tensor] = []
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        for batch in _batches(data, collate):
            inputs, targets = pair(batch)
            outputs = model(inputs)
            losses.append(measure(outputs, targets).double())
            if isinstance(outputs, Tensor) and isinstance(targets, Tensor) and not targets.is_floating_point():
                hits.append(_right(outputs, targets))
    finally:
        for module, mode in modes:
            module.training = mode
    none = torch.zeros(0, dtype=torch.float64)
    return torch.cat(losses or [none]).numpy(), torch.cat(hits or [none]).numpy()


def _right(outputs: Tensor, targets: Tensor) -> Tensor:
    """The share of each example's classes that were found, as cross entropy has them: (examples, classes, ...) and (examples, ...)."""
    if outputs.dim() < 2 or outputs.shape[:1] + outputs.shape[2:] != targets.shape:
        shapes = f"outputs of shape {tuple(outputs.shape)} and targets of shape {tuple(targets.shape)}"
        warnings.warn(f"no accuracy is told: it is for classes in the second dimension, not for {shapes}.", NoAccuracy, stacklevel=4)
        return torch.zeros(0, dtype=torch.float64)
    counted, found = ((each.reshape(len(each), -1)) for each in (targets != _IGNORED, outputs.argmax(1) == targets))
    return (found & counted).sum(1).double() / counted.sum(1)  # not a number where there is nothing to find


def _batches(data: Any, collate: Any) -> Iterator[Any]:
    if type(data) is TensorDataset and collate is None:
        yield from zip(*(tensor.split(_EVALUATED) for tensor in data.tensors), strict=True)
    else:
        yield from DataLoader(data, batch_size=_EVALUATED, collate_fn=collate)


def _per_group(model: nn.Module, data: Any, of: NDArray[np.intp], groups: int, measure: Loss, collate: Any) -> Sensitive:
    """Loss and accuracy of each group on its own training records."""
    losses, hits = _figures(model, data, measure, collate)
    counts = np.bincount(of, minlength=groups)
    told = ~np.isnan(hits)
    with np.errstate(invalid="ignore"):
        right = (
            np.bincount(of[told], hits[told], groups) / np.bincount(of[told], minlength=groups) if len(hits) else np.full(groups, np.nan)
        )
    return Sensitive(np.bincount(of, losses, groups) / counts, right)


def _stale(history: Sequence[dict[str, float]], patience: int) -> bool:
    """Whether the last evaluations brought nothing better: by accuracy, or by loss where there are no classes."""
    better = [-entry["loss"] if entry["accuracy"] != entry["accuracy"] else entry["accuracy"] for entry in history]
    return len(better) - 1 - int(np.argmax(better)) >= patience
