"""Canaries in the published form of PDP-SGD, whose guarantee does not hold: what an attack finds of that.

Who is in a round follows from coins that are tossed for everybody (`plans.published`), so canaries are holders when the form is made; what
real holders have is then planned with them. Each round is a run of its own, as in `sartor.baselines`, with those canaries in it that were
drawn.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import Dataset, Subset

from sartor.audit.canaries import Flock, Found, Planted, usual_loop
from sartor.budgets import Budgets
from sartor.errors import SartorError
from sartor.plans import Plan, Stage, plan
from sartor.plans.published import Published, PublishedRound
from sartor.sgd.loss import Loss
from sartor.sgd.optimizer import make
from sartor.sgd.private import make_private, unwrap

Array = NDArray[np.float64]


def published_attack(
    make_model: Callable[[], nn.Module],
    dataset: Dataset[Any],
    budgets: Budgets,
    make_form: Callable[[Budgets], Published],
    *,
    canaries: int = 1000,
    seed: int = 0,
    lr: float = 0.1,
    loss: Callable[[Any, Any], Tensor] | None = None,
) -> Found:
    """Train by the published form with canaries in it, and find what the rounds say of them.

    `make_form` makes the form for budgets, canaries' among them: `lambda people: published(people, steps=300, batch=64, seed=1)`. Groups
    are those of the budgets; what each is promised is `form.promised` at `form.promised_delta`.
    """
    groups = budgets.groups
    group = np.sort(np.resize(np.arange(len(groups)), canaries))
    people = Budgets(np.append(budgets.epsilon, groups.epsilon[group]), delta=np.append(budgets.delta, groups.delta[group]))
    form = make_form(people)
    if not form.seeded:
        raise SartorError("canaries are for seeded runs alone: make the published form with a seed.")
    real, measure = len(budgets), Loss(loss)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = make_model()
        begin, flock = copy.deepcopy(model), Flock.of(group, model, seed)
        evidence, moved = np.zeros(canaries), [np.zeros(count) for count in flock.directions.blocks]
        for place, one in enumerate(form.rounds):
            drawn = one.drawn[one.drawn < real]
            if not len(drawn):
                continue
            current = copy.deepcopy(begin) if form.scheme == "adapdp" else model
            own = Budgets(np.full(len(drawn), one.threshold), delta=form.delta)
            inner = make("sgd", current.parameters(), lr=lr, momentum=0.0)
            rows = Subset(dataset, drawn.tolist())
            of_round = _inner(form, one, len(drawn))
            current, stepper, loader = make_private(current, inner, rows, own, of_round, reduction="sum", seed=seed + place)
            within = Planted(loader, own, replace(flock, group=np.zeros(canaries, np.intp)), one.drawn[len(drawn) :] - real)
            usual_loop(measure)(current, stepper, loader)
            unwrap(current, stepper)
            share = np.bincount(groups.of_holder[drawn], minlength=len(groups)) / groups.holders
            with np.errstate(divide="ignore"):
                evidence += np.logaddexp(np.log1p(-share[group]), np.log(share[group]) + within.evidence)
            moved = [before + part for before, part in zip(moved, within.moved, strict=True)]
    return replace(flock.found(evidence, moved), independent=False)  # rounds share coins


def _inner(form: Published, one: PublishedRound, real: int) -> Plan:
    """The plan of a round at its threshold, for those who were drawn in all, with the real ones as its holders."""
    everybody = Budgets(np.full(len(one.drawn), one.threshold), delta=form.delta)
    batch = min(form.batch, len(one.drawn))
    found = plan(everybody, "uniform", steps=one.steps, batch=batch, clip=form.clip, accountant=form.accountant)
    (stage,) = found.stages
    noise = max(one.noise_multiplier, stage.noise_multiplier)
    return replace(found, stages=(Stage(one.steps, noise, stage.rate, stage.clips),), holders=np.array([real]))
