"""One model for each round, and their average: how AdaPDP uses rounds (after Niu et al. 2021), under a plan that is sound.

Every stage of the plan begins with a fresh model, from the same public initialisation, and what is released are all of them: the plan's
guarantee covers the whole sequence, and the average is made of it by post-processing. Weights are thresholds times *expected* sizes.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import Dataset

from sartor.budgets import Budgets
from sartor.errors import SartorError
from sartor.plans import Plan
from sartor.plans.published import REFUSED, Published
from sartor.plans.rounds import weights
from sartor.sgd.one_model import begun_anew
from sartor.sgd.optimizer import make
from sartor.sgd.options import Evaluation
from sartor.sgd.public import refuse_protected
from sartor.sgd.training import Progress, Result, evaluate, fit


class Average(nn.Module):
    """Members whose predicted probabilities (softmax over the second dimension) are averaged; its outputs are their logarithms.

    >>> one, other = nn.Linear(1, 2), nn.Linear(1, 2)
    >>> both = Average([one, other], [0.25, 0.75])
    >>> inputs = torch.ones(3, 1)
    >>> expected = 0.25 * one(inputs).softmax(1) + 0.75 * other(inputs).softmax(1)
    >>> torch.allclose(both(inputs).exp(), expected, atol=1e-6)
    True
    """

    weights: Tensor

    def __init__(self, members: Sequence[nn.Module], weights: ArrayLike) -> None:
        super().__init__()
        given = torch.as_tensor(weights, dtype=torch.float64)
        if not members or given.shape != (len(members),) or bool((given < 0).any()) or float(given.sum()) <= 0:
            raise SartorError("an average needs members, and a weight of 0 or more for each.")
        self.members = nn.ModuleList(members)
        self.register_buffer("weights", (given / given.sum()).to(torch.get_default_dtype()))

    def forward(self, inputs: Any) -> Tensor:
        """The logarithm of the average of what the members predict."""
        each = torch.stack([torch.log_softmax(member(inputs), 1) for member in self.members])
        by_member = self.weights.log().reshape(-1, *([1] * (each.dim() - 1)))
        return torch.logsumexp(each + by_member, 0)


def fit_members(
    model: nn.Module,
    dataset: Dataset[Any],
    budgets: Budgets,
    plan: Plan,
    *,
    lr: float = 0.1,
    optimizer: str | Callable[[Any], Optimizer] = "sgd",
    momentum: float = 0.0,
    callbacks: Sequence[Callable[[Progress], object]] = (),
    evaluation: Evaluation | None = None,
    **others: Any,
) -> Result:
    """Train one member for each stage of a plan of rounds, each from `model` as it is given, and average them.

    It is `sartor.fit` whose parameters, and the optimizer's state, go back to where they began when a stage ends; the rest is fit's.
    The result's model is the `Average`, and its accuracy that of the average on `evaluation.public`, after all rounds.

    Guarantee: that of the plan, for all members together.
    Breaks if: `model` was initialised by private records.
    """
    if isinstance(plan, Published):
        raise SartorError(REFUSED)
    if not isinstance(plan, Plan):
        raise SartorError('members are trained by a plan of rounds: sartor.plan(budgets, "adapdp", ...).')
    share = weights(plan)
    checks = evaluation or Evaluation()
    if not isinstance(checks, Evaluation):
        raise SartorError("evaluation= takes a sartor.Evaluation: Evaluation(public).")
    if checks.every is not None or checks.sensitive:
        raise SartorError("members are averaged when all rounds are over, and evaluated then: leave every, patience and sensitive out.")
    if others.get("scheduler") is not None:
        raise SartorError("every member begins anew, and a scheduler would not: leave it out.")
    refuse_protected(checks.public, dataset, budgets, others.get("ownership"))
    if others.get("checkpoints") is not None:
        raise SartorError(
            "members of earlier rounds are not part of a checkpoint, so a run of members cannot be resumed; leave checkpoints out."
        )
    fresh, made = copy.deepcopy(model), list[Optimizer]()
    begin = {name: value.clone() for name, value in model.state_dict().items()}
    ends, members = set(_ends(plan)), list[nn.Module]()

    def built(parameters: Any) -> Optimizer:
        made.append(make(optimizer, parameters, lr=lr, momentum=momentum))
        return made[-1]

    def turn(progress: Progress) -> None:
        if progress.step in ends:
            member = copy.deepcopy(fresh)
            member.load_state_dict({name: value.clone() for name, value in progress.model.state_dict().items()})
            members.append(member)
            if progress.step < progress.steps:
                with torch.no_grad():
                    for name, value in progress.model.state_dict().items():
                        value.copy_(begin[name])
                made[-1].state.clear()

    with begun_anew():
        result = fit(model, dataset, budgets, plan, optimizer=built, callbacks=(*callbacks, turn), **others)
    average = Average(members, share)
    if checks.public is None:
        return replace(result, model=average)
    found = evaluate(average, checks.public, others.get("loss"))
    return replace(result, model=average, accuracy=found["accuracy"], history=[{"step": result.steps, **found}])


def _ends(plan: Plan) -> list[int]:
    done, found = 0, []
    for stage in plan.stages:
        done += stage.steps
        found.append(done)
    return found
