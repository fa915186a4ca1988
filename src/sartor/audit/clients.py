"""Canary clients: extra clients in federated rounds, each with an update of its own, and how well they can be found in what is released.

Rounds are the library's own: its sampler draws canaries with all other clients, at their group's rate, and `Round.add` gets from them what
a hostile client could send, an update far longer than any clip; what bounds it is the library's clip, and the noise is that of
`Round.release`. A canary whose coin fell against it is silent when it is drawn, which is the neighbouring relation of plans.

White box, canaries are scored by all released means, less what real clients have in them: whoever attacks one client may know all others.
Black box, by the server's model at the end and at the beginning alone. The count of an adaptive clip is released but not used: in one
sum of so many canaries it says little of any.

Breaks if: see `canaries`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from sartor.audit.canaries import Flock, Found, Indices, extended, spread, spread_over_runs
from sartor.audit.directions import Directions
from sartor.audit.evidence import Evidence
from sartor.budgets import Budgets
from sartor.errors import SartorError
from sartor.federated.plan import FederatedPlan
from sartor.federated.rounds import Model, Round, ServerOptimizer
from sartor.federated.updates import Named
from sartor.run.sampling import PoissonSampler
from sartor.run.stream import Stream

Array = NDArray[np.float64]
Answer = Callable[[int, Named, int], Named | None]
"""What a real client makes of the server's model in a round: its number, the model, the round; None if it stays silent."""

_FAR = 1e3  # times the clip: how long a canary's update is


def client_attack(
    model: Named,
    budgets: Budgets,
    plan: FederatedPlan,
    *,
    canaries: int = 1000,
    seed: int = 0,
    answer: Answer | None = None,
    server: Callable[[Named], ServerOptimizer] = ServerOptimizer,
) -> Found:
    """Run the plan's rounds from a model with canaries among the clients, in a fresh seeded run, and find what its releases say of them.

    More canaries than can be at right angles in the model's space are spread over several such runs, `canaries.MOST_RUNS` at most.
    `answer` trains real clients; without it they stay silent, which leaves rates, clips and noise as they are and is quick. `server` makes
    the server's optimizer from the model.

    >>> import sartor
    >>> from sartor import federated
    >>> budgets = sartor.Budgets.from_groups([(1.0, 100), (4.0, 100)], delta=1e-3)
    >>> client_attack({"weight": np.zeros((30, 10))}, budgets, federated.plan(budgets, rounds=3, per_round=20), canaries=50)
    Found(50 canaries in 2 groups)
    """
    if not isinstance(model, Mapping):
        raise SartorError("the model of rounds is a mapping from names to arrays.")
    sizes = [array.size for array in _floating(model, model)]
    if not sizes:
        raise SartorError("the model has no floating-point array, so there is nothing that canaries could move.")

    def run(group: Indices, seed: int) -> Found:
        return _attacked(Flock.in_space(group, sizes, seed), model, budgets, plan, seed, answer, server)

    return spread_over_runs(run, spread(plan.accounted, canaries), sizes, seed)


def _attacked(
    flock: Flock,
    model: Named,
    budgets: Budgets,
    plan: FederatedPlan,
    seed: int,
    answer: Answer | None,
    server: Callable[[Named], ServerOptimizer],
) -> Found:
    """One run with these canaries."""
    stream = Stream(seed)
    everybody, people = extended(plan.accounted, budgets, flock.group)
    sampler, optimizer = PoissonSampler(everybody, people, stream), server(model)
    evidence = Evidence(plan.accounted, flock.group, flock.directions.blocks)
    begin, clip, real = _trained(model, flock.directions), plan.accounted.clip, len(budgets)
    for number in range(plan.rounds):
        current, draw = optimizer.model, sampler.draw(number)
        one = Round(plan, draw, current, clip)
        for client in one.drawn:
            if client < real and answer is not None and (sent := answer(client, current, number)) is not None:
                one.add(client, sent)
        known = [total.copy() for total in one._sums]
        for client in one.drawn:
            if client >= real and flock.included[client - real]:
                one.add(client, _hostile(current, flock.directions, client - real, _FAR * clip))
        released = one.release(stream)
        rest = {name: mean * plan.per_round - own for (name, mean), own in zip(released.mean.items(), known, strict=True)}
        # in units in which the noise is the accounted plan's, whatever the clip in force is and however much a count has of it
        unit = plan.accounted.noise / (plan.update_noise_multiplier * clip)
        parts = [unit * part for part in _trained(rest, flock.directions, of=model)]
        evidence.add(number, flock.directions.dots(parts), np.array([float(part @ part) for part in parts]))
        optimizer.step(released.mean)
        clip = released.clip
    end = _trained(optimizer.model, flock.directions)
    moved = [after - before for before, after in zip(begin, end, strict=True)]
    return flock.found(evidence.total, moved)


def _floating(arrays: Named, of: Named) -> Sequence[Array]:
    """Arrays that are trained: those under the names of a model's floating-point ones."""
    return [np.asarray(arrays[name]) for name, array in of.items() if np.asarray(array).dtype.kind == "f"]


def _trained(arrays: Named, directions: Directions, of: Named | None = None) -> list[Array]:
    """What is trained of a model's arrays, at the coordinates of directions."""
    return directions.at(_floating(arrays, arrays if of is None else of))


def _hostile(model: Model, directions: Directions, member: int, length: float) -> Named:
    """The answer of a canary: the model moved along its direction, by this length."""
    moves = iter(directions.full(member, length))
    return {
        name: array.astype(float) + next(moves).reshape(array.shape) if array.dtype.kind == "f" else array for name, array in model.items()
    }
