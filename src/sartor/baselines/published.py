"""Training by the published form of PDP-SGD, for comparison alone: what it promises does not hold (`plans.published`).

Each round is DP-SGD at (tau, delta) on those who were drawn, which is sound by itself; that the rounds together cost a holder no more than
their budget is what is not true.
"""

from __future__ import annotations

import copy
import warnings
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from torch import nn
from torch.utils.data import Dataset, Subset, TensorDataset

from sartor.budgets import Budgets
from sartor.errors import SartorError, SartorWarning
from sartor.plans import Plan, Stage, plan
from sartor.plans.published import Published, PublishedRound
from sartor.sgd.members import Average
from sartor.sgd.public import refuse_protected
from sartor.sgd.training import evaluate, fit


@dataclass(frozen=True, eq=False)
class PublishedResult:
    """A model trained by the published form, and how it did on public data. Not private as promised: see `form`."""

    model: nn.Module = field(repr=False)
    form: Published
    accuracy: float | None
    steps: int
    seconds: float

    sound = False


def fit_published(
    model: nn.Module,
    dataset: Dataset[Any],
    budgets: Budgets,
    form: Published,
    *,
    unsound: bool = False,
    public: Dataset[Any] | None = None,
    seed: int | None = None,
    **others: Any,
) -> PublishedResult:
    """Train by the published form; `unsound=True` says that this is known. Other arguments are those of `sartor.fit`."""
    if not isinstance(form, Published):
        raise SartorError("fit_published takes what sartor.plans.published.published makes; a plan is trained by sartor.fit.")
    if unsound is not True:
        raise SartorError("the guarantee of the published form does not hold: say unsound=True, or train by a plan of rounds.")
    if budgets.reserve or not all(
        np.array_equal(getattr(form.groups, name), getattr(budgets.groups, name)) for name in ("of_holder", "epsilon", "delta")
    ):
        raise SartorError("these are not the budgets that the published form was made for.")
    kept = [name for name in ("checkpoints", "callbacks", "evaluation", "tracking", "ownership") if others.get(name)]
    if kept:
        raise SartorError(f"the published form is trained to be compared, in one go: leave {', '.join(kept)} out.")
    refuse_protected(public, dataset, budgets)
    members, begin, seconds = list[nn.Module](), copy.deepcopy(model), 0.0
    rounds = [one for one in form.rounds if len(one.drawn)]
    for place, one in enumerate(rounds):
        own = Budgets(np.full(len(one.drawn), one.threshold), delta=form.delta)
        inner = _inner(form, one, own)
        current = copy.deepcopy(begin) if form.scheme == "adapdp" else model
        again = None if seed is None else seed + place
        found = fit(current, _only(dataset, one.drawn), own, inner, seed=again, **others)
        seconds += found.seconds
        members.append(found.model)
    sizes = [one.threshold * len(one.drawn) for one in rounds]
    trained = Average(members, sizes) if form.scheme == "adapdp" else model
    accuracy = None if public is None else evaluate(trained, public, others.get("loss"))["accuracy"]
    return PublishedResult(trained, form, accuracy, sum(one.steps for one in rounds), seconds)


def _inner(form: Published, one: PublishedRound, own: Budgets) -> Plan:
    """The DP-SGD of one round, on those who were drawn."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SartorWarning)  # they would tell how many were drawn, and the form itself has warned
        inner = plan(own, "uniform", steps=one.steps, batch=min(form.batch, len(own)), clip=form.clip, accountant=form.accountant)
    (stage,) = inner.stages
    noise = max(one.noise_multiplier, stage.noise_multiplier)  # what was judged; solved twice, digits may differ
    return replace(inner, stages=(Stage(one.steps, noise, stage.rate, stage.clips),))


def _only(dataset: Any, drawn: Any) -> Dataset[Any]:
    if type(dataset) is TensorDataset:
        return TensorDataset(*(tensor[drawn] for tensor in dataset.tensors))
    return Subset(dataset, drawn.tolist())
