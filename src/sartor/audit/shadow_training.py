"""Training shadow models under a plan: many side by side, or one by one; some holders zeroed in each, otherwise as `sartor.fit` does it.

Guarantee: none, and none is needed of a model that nobody sees: shadow models are seeded, are trained on private records, and never leave
    the process that trained them. Their signals are sensitive.
Proof that they follow the plan: coins come from the plan's own sampler and noise from the run's own function, from the stream of the
    model's seed, so both are those that `sartor.fit` with that seed draws; a holder who is out is tossed a coin like everybody, and left
    out of the draw; sums are divided by the plan's batch. Tests compare with a naive loop and with `sartor.fit`.
Breaks if: `make_model` returns models that share parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import Dataset, TensorDataset

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
