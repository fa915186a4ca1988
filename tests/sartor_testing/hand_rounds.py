"""Federated rounds by a straightforward computation of what they should release; also run on faulty code."""

import functools

import numpy as np

import sartor
from sartor import federated
from sartor.federated.rounds import Round
from sartor.run.sampling import PoissonSampler
from sartor.run.stream import Stream

SHAPES = ((2, 3), (), (5,))
BUDGETS = sartor.Budgets(np.repeat([1.0, 2.0, 4.0], 40), delta=1e-3)


def named(parts):
    """Arrays under names of their own, as a model has them."""
    return {f"array {place}": part for place, part in enumerate(parts)}


@functools.cache
def planned(scheme, adaptive=True):
    return federated.plan(
        BUDGETS, scheme, rounds=6, per_round=40, clip=0.8, accountant="rdp", adaptive=federated.AdaptiveClip(0.6, 0.3) if adaptive else None
    )


def answer_of(client):
    """Some update: long or short, by the client's number; a third of the clients fail in one way or another."""
    rng = np.random.default_rng(client)
    found = [rng.normal(0, 0.02 + (client % 5) ** 2 / 10, shape) for shape in SHAPES]
    if client % 9 == 0:
        return None
    if client % 9 == 1:
        found[0] = found[0] * np.nan
    return found


def by_hand(plan, step, seed):
    """The mean and the next clip of a round, from the definitions, one client and one number at a time."""
    draw = PoissonSampler(plan.accounted, BUDGETS, Stream(seed)).draw(step)
    z, clip = plan.accounted.noise_multiplier, plan.accounted.clip
    applied = 1 / np.sqrt(1 / z**2 - 1 / (2 * plan.per_round / 20) ** 2) if plan.adaptive else z
    noise = Stream(seed).generator("federated", step).standard_normal(12) * applied * clip
    total, count = noise.copy(), 0.0
    for client in draw.indices.tolist():
        group = int(np.flatnonzero(plan.accounted.epsilon == BUDGETS.epsilon[client])[0])
        answer = answer_of(client)
        if answer is None or not all(np.isfinite(part).all() for part in answer):
            continue
        flat = np.concatenate([np.ravel(part) for part in answer])
        length, own = np.linalg.norm(flat), plan.accounted.clips[group]
        total += flat * min(1.0, own / length)
        count += own / clip * (0.5 if length <= clip else -0.5)
    if not plan.adaptive:
        return total / plan.per_round, clip
    count += Stream(seed).generator("federated count", step).standard_normal() * plan.per_round / 20
    expected = np.sum(plan.accounted.rate * plan.accounted.clips / clip * plan.accounted.holders)
    return total / plan.per_round, clip * np.exp(-0.3 * (count / expected + 0.5 - 0.6))


def difference(plan):
    """How far what a round releases is from that, over some rounds."""
    seed, worst = 3, 0.0
    for step in range(4):
        draw = PoissonSampler(plan.accounted, BUDGETS, Stream(seed)).draw(step)
        current = Round(plan, draw, named(np.zeros(shape) for shape in SHAPES), plan.accounted.clip)
        for client in current.drawn:
            if answer_of(client) is not None:
                current.add(client, named(answer_of(client)))
        released = current.release(Stream(seed))
        mean, clip = by_hand(plan, step, seed)
        found = np.concatenate([np.ravel(part) for part in released.mean.values()])
        worst = max(worst, float(np.abs(found - mean).max()), abs(released.clip - clip))
    return worst
