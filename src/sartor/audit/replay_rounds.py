"""Replay of federated rounds, in this process: a server and its clients, and again with one client silent.

Rounds are the library's own (`sartor.federated.rounds`), as are their sampler and the server's step; what clients send is the caller's.
They are judged as the steps of a run are (`sartor.audit.replay`), where a holder is a client with all of its records: the sum of updates
moves by the client's clip at most, the count of an adaptive clip by its share, and nothing else follows the client.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from sartor.audit.replay import MOST_STEPS, Replayed, replay
from sartor.budgets import Budgets
from sartor.federated.plan import FederatedPlan
from sartor.federated.rounds import Model, Round, ServerOptimizer
from sartor.federated.updates import Named
from sartor.ownership import Ownership
from sartor.run.sampling import PoissonSampler
from sartor.run.stream import Stream
from sartor.run.witness import seen

Answer = Callable[[Any, int, Model, int], Named | None]
"""What a client sends, from the data, its place in the budgets, the server's model and the number of the round. None is silence."""


def replay_rounds(
    answer: Answer,
    dataset: Any,
    model: Named,
    budgets: Budgets,
    plan: FederatedPlan,
    *,
    ownership: Ownership | None = None,
    server: Callable[[Named], ServerOptimizer] = ServerOptimizer,
    holders: int | Sequence[int] = 4,
    seed: int = 0,
    most_rounds: int = MOST_STEPS,
) -> Replayed:
    """Run rounds from a model, and again for some clients with everything of theirs zeroed.

    `ownership` says which client each record of the data set is with; without one record i is that of client i. An answer that draws
    random numbers draws them from the client and the round, not from a generator that clients share; one that remembers is an object with
    `__call__`, of which every run has a copy. `server` makes the optimizer.

    >>> import sartor, torch
    >>> from sartor import federated
    >>> budgets = sartor.Budgets.from_groups([(1.0, 20), (4.0, 20)], delta=1e-3)
    >>> plan = federated.plan(budgets, rounds=3, per_round=10)
    >>> data = torch.utils.data.TensorDataset(torch.randn(40, 5))
    >>> def answer(data, client, model, number):
    ...     return {"weight": model["weight"] + data.tensors[0][client].numpy()}
    >>> replay_rounds(answer, data, {"weight": np.zeros(5)}, budgets, plan, holders=2).verdict
    'consistent'
    """

    train = partial(_rounds, _Given(model, budgets, plan), answer=answer, server=server)
    return replay(train, dataset, budgets, plan, ownership=ownership, holders=holders, seed=seed, most_steps=most_rounds)


class _Given(NamedTuple):
    """What rounds are made of beside what is the user's code."""

    model: Named
    budgets: Budgets
    plan: FederatedPlan


def _rounds(given: _Given, data: Any, seed: int, *, answer: Answer, server: Callable[[Named], ServerOptimizer]) -> dict[str, Any]:
    """All rounds of a plan; the server's model afterwards."""
    plan, stream = given.plan, Stream(seed)
    clip, own = plan.accounted.clip, copy.deepcopy(answer)
    sampler, optimizer = PoissonSampler(plan.accounted, given.budgets, stream), server(given.model)
    for number in range(plan.rounds):
        current = optimizer.model
        one = Round(plan, seen(stream, sampler.draw(number)), current, clip)
        for client in one.drawn:
            sent = own(data, client, current, number)
            if sent is not None:
                one.add(client, sent)
        released = one.release(stream)
        optimizer.step(released.mean)
        clip = released.clip
    return {name: np.asarray(part).tolist() for name, part in optimizer.model.items()}
