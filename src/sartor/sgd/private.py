"""`sartor.make_private`: a training loop becomes private by one line."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten
from torch.utils.data import Dataset, TensorDataset, default_collate

from sartor.budgets import Budgets
from sartor.errors import SartorError
from sartor.ownership import Ownership
from sartor.plans import Plan
from sartor.plans.published import REFUSED, Published
from sartor.run.sampling import PoissonSampler
from sartor.run.stream import Stream
from sartor.run.witness import Ahead, Source, witness_of
from sartor.sgd.check import Kept
from sartor.sgd.gradients import Kernels, PerExample
from sartor.sgd.loader import PrivateLoader, check_dataset
from sartor.sgd.loss import Loss
from sartor.sgd.norms import Norms
from sartor.sgd.one_model import refuse_members
from sartor.sgd.optimizer import PrivateOptimizer
from sartor.sgd.options import Tracking
from sartor.sgd.pieces import Draws
from sartor.sgd.run import Run, check_parameters
from sartor.sgd.stretches import Stretches

_MARK = "_trained_privately"
ROUNDING = 1e-3  # of a clip


def make_private(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    dataset: Dataset[Any],
    budgets: Budgets,
    plan: Plan,
    *,
    ownership: Ownership | None = None,
    reduction: str = "mean",
    collate: Callable[[list[Any]], Any] | None = None,
    workers: int = 0,
    max_physical_batch: int | str | None = None,
    noise_draws: int = 1,
    loss: Callable[[Any, Any], Tensor] | None = None,
    tracking: Tracking | None = None,
    seed: int | None = None,
    stream: Stream | None = None,
    check: bool = True,
) -> tuple[nn.Module, PrivateOptimizer, PrivateLoader]:
    """The model, an optimizer and a loader that train it under a plan; the loop around them stays as it is.

    `dataset` holds one record for each budget, in their order; or `ownership` says whose each record is, and the gradient of all that a
    holder lends to a step is clipped as one. `reduction` says how the loss reduces over a batch ("mean" or "sum").
    `max_physical_batch` cuts batches to what fits into memory ("auto" finds out); `noise_draws` of 4, say, defends against attacks on the
    low bits of noise. Where norms are tracked, by a plan with a filter or for readings (`tracking`), `loss` is needed, from outputs and
    targets to one number per example; `loader.reading()` is what gradients have cost. `seed` is for tests: a seeded run is not private,
    and its account says so. `check` compares the first step with a naive loop, and now and then records with themselves alone; it is worth
    its milliseconds. `loader.checkpoint(folder)` keeps the run, to go on after a stop.

    Guarantee, proof and limits: see `sartor.sgd.run`.

    >>> import sartor, torch
    >>> data = torch.utils.data.TensorDataset(torch.randn(200, 4), torch.randint(0, 2, (200,)))
    >>> budgets = sartor.Budgets.from_groups([(1.0, 100), (4.0, 100)], delta=1e-3)
    >>> plan = sartor.plan(budgets, steps=3, batch=20)
    >>> model = torch.nn.Linear(4, 2)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> model, optimizer, loader = sartor.make_private(model, optimizer, data, budgets, plan)
    >>> for x, y in loader:
    ...     optimizer.zero_grad()
    ...     torch.nn.functional.cross_entropy(model(x), y).backward()
    ...     optimizer.step()
    >>> optimizer.account()
    RunAccount(3 of 3 steps)
    """
    if isinstance(plan, Published):
        raise SartorError(REFUSED)
    refuse_members(plan)
    if not isinstance(budgets, Budgets) or not isinstance(plan, Plan):
        raise SartorError("make_private takes model, optimizer, dataset, budgets and plan, in this order.")
    if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        raise SartorError(
            "a model spread over devices draws and sums per device, which is not supported yet; make the plain model private."
        )
    if any(getattr(parameter, _MARK, False) for parameter in model.parameters()):
        raise SartorError("this model is being trained privately already; a second run on it would release it twice.")
    if isinstance(optimizer, PrivateOptimizer):
        raise SartorError("this optimizer belongs to another private run; make a new one.")
    if isinstance(optimizer, torch.optim.LBFGS):
        raise SartorError("LBFGS looks at a batch several times per step, which the plan does not account for; use SGD or Adam.")
    if seed is not None and stream is not None:
        raise SartorError("give a seed or a stream, not both.")
    check_dataset(dataset, budgets, ownership)
    _check_plan(plan, ownership)
    way = _tracked(plan, tracking, loss)
    check_parameters(model, optimizer)
    source = stream if stream is not None else Stream(seed)
    sampler = PoissonSampler(plan, budgets, source, filtered=way is not None)
    engine = PerExample(model, kernels=Kernels(measure=not source.seeded), exact=needs_float64(plan))
    try:
        size = _physical(max_physical_batch, engine, dataset, collate)
        records = len(dataset)  # type: ignore[arg-type]
        run = Run(plan, engine, source, reduction=reduction, noise_draws=noise_draws, check=check, records=records)
        source.take()
    except BaseException:
        engine.detach()
        raise
    for parameter in model.parameters():
        setattr(parameter, _MARK, True)
    witness = witness_of(source)
    if witness is not None:
        witness.reads(Source(dataset, collate, ownership, model, Ahead(sampler.draw, run.noise_of)))
    draws = Draws(plan, sampler, source, ownership, size, witness=witness)
    private = PrivateOptimizer(optimizer, run)
    measure = loss if loss is None or isinstance(loss, Loss) else Loss(loss)
    loader = PrivateLoader(
        run, draws, dataset, budgets=budgets, optimizer=private, collate=collate, workers=workers, loss=measure, check=check
    )
    if way is not None and measure is not None:
        norms = Norms(engine, draws, loader.batch, measure, source)
        stretches = Stretches(plan, budgets, *way, norms)
        norms.unsure = stretches.unsure
        loader.draws = replace(draws, stretches=stretches)
    return model, private, loader


def _tracked(plan: Plan, tracking: Tracking | None, loss: object) -> tuple[str, int] | None:
    """How norms are tracked, and how often; None where they are not."""
    if tracking is not None and not isinstance(tracking, Tracking):
        raise SartorError('tracking is a sartor.Tracking: sartor.Tracking("strict", refresh=100).')
    if plan.filter is not None:
        if tracking is not None:
            raise SartorError("this plan has a filter, which tracks norms as the plan says: leave tracking out.")
        way = plan.filter.kind, plan.filter.refresh
    elif tracking is not None:
        way = tracking.kind, tracking.refresh
    else:
        return None
    if not callable(loss):
        raise SartorError(
            "norms are tracked by a loss of one number per example: give loss=, from outputs and targets (records are pairs of those), or "
            "train with sartor.fit."
        )
    return way


def _check_plan(plan: Plan, ownership: Ownership | None) -> None:
    """Whether a plan is for records that are owned so."""
    if ownership is None and plan.by_holder:
        raise SartorError("the plan was made for holders with several records: say whose each record is (ownership=).")
    if ownership is not None and plan.records not in (None, len(ownership)):
        raise SartorError(f"the plan was made for {plan.records} records, and the ownership is of {len(ownership)}: plan with this one.")


def needs_float64(plan: Plan) -> bool:
    """Whether rounding of a step's float32 sum could move it by more than a thousandth of the smallest clip that somebody pays for.

    Zeroing a holder also moves how the sum of all others rounds, by about a unit in its last place. It follows from the plan alone: were it
    to follow who is drawn, one holder would decide how the others are added up.
    """
    parts = plan.parts
    people = plan.holders[parts.group] * parts.inclusion * parts.rate
    sums = np.bincount(parts.stage, weights=people * parts.clip)
    return bool(2.0**-23 * sums.max() > ROUNDING * smallest_paid(plan))


def smallest_paid(plan: Plan) -> float:
    """The smallest clip that somebody pays for, at the lowest rung of a filter; infinite where nobody takes part."""
    parts = plan.parts
    lowest = np.ones(len(plan)) if plan.filter is None else plan.filter.rungs[:, 0]
    return float((parts.clip * lowest[parts.group])[parts.rate > 0].min(initial=np.inf))


def unwrap(model: nn.Module, optimizer: PrivateOptimizer) -> nn.Module:
    """The plain model again, without the hooks of its run, which ends here."""
    if model is not optimizer.run.engine.model:
        raise SartorError("this optimizer belongs to the run of another model.")
    optimizer.run.end()
    optimizer.let_go()
    for parameter in model.parameters():
        setattr(parameter, _MARK, False)
    return model


def _physical(asked: int | str | None, engine: PerExample, dataset: Any, collate: Any) -> int | None:
    if asked is None:
        return None
    if asked == "auto":
        return _fitting(engine, dataset, collate)
    if not isinstance(asked, int) or isinstance(asked, bool) or asked < 1:
        raise SartorError(f'the largest physical batch is a whole number of 1 or more, or "auto", not {asked!r}.')
    return asked


def _fitting(engine: PerExample, dataset: Any, collate: Any) -> int:
    """How many examples a quarter of the free memory holds: inputs, outputs and their gradients, and formed gradients of all parameters."""
    batch = (
        [t[:1] for t in dataset.tensors]
        if type(dataset) is TensorDataset and collate is None
        else (collate or default_collate)([dataset[0]])
    )
    leaves, _ = tree_flatten(batch)
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    seen = 0

    def count(module: nn.Module, inputs: Any, output: Any) -> None:
        nonlocal seen
        flat, _ = tree_flatten((inputs, output))
        seen += sum(t.numel() * t.element_size() for t in flat if isinstance(t, Tensor))

    kept = Kept(engine.model)
    kept.keep()
    hooks = [module.register_forward_hook(count) for module in engine.model.modules()]
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            engine.model(tensors[0])
    except (RuntimeError, TypeError, IndexError) as error:
        raise SartorError(
            "the model does not take a record's first tensor alone, so its memory cannot be measured; give a number."
        ) from error
    finally:
        kept.put_back()
        for hook in hooks:
            hook.remove()
    each = 3 * seen + 4 * sum(p.numel() for p in engine.parameters.values())
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(1, free // 4 // each)
