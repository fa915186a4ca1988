"""Small private runs of people with several records, and the slow and obvious way to do the same."""

import functools

import numpy as np
import torch
from torch.nn import functional
from torch.utils.data import TensorDataset

import sartor
from sartor.run.sampling import PoissonSampler
from sartor.sgd import Stream
from sartor_testing.private_runs import HOLDERS, flat, net, people, train


@functools.cache
def owned(seed: int = 9, most: int = 7) -> sartor.Ownership:
    """60 holders with 1 to 7 records each, whose records stand anywhere."""
    draw = np.random.default_rng(seed)
    of_record = np.repeat(np.arange(HOLDERS), draw.integers(1, most + 1, HOLDERS))
    return sartor.Ownership(draw.permutation(of_record), HOLDERS)


@functools.cache
def visits(seed: int = 9) -> TensorDataset:
    generator, count = torch.Generator().manual_seed(seed), len(owned(seed))
    return TensorDataset(torch.randn(count, 4, generator=generator), torch.randint(0, 3, (count,), generator=generator))


@functools.cache
def planned(scheme: str = "scale", *, steps: int = 3, batch: float = 20, clip: float = 0.05, **settings) -> sartor.Plan:
    return sartor.plan(people(), scheme, steps=steps, batch=batch, clip=clip, ownership=owned(), **settings)


def private(plan: sartor.Plan | None = None, model=None, *, lr=0.5, seed=1, dataset=None, **settings):
    model = net() if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    data = visits() if dataset is None else dataset
    plan = planned() if plan is None else plan
    return sartor.make_private(model, optimizer, data, people(), plan, ownership=owned(), seed=seed, **settings)


def trained(plan: sartor.Plan, *, reduction="mean", **settings) -> torch.Tensor:
    model, optimizer, loader = private(plan, reduction=reduction, **settings)
    train(model, optimizer, loader, reduction)
    return flat(model)


def chosen(plan: sartor.Plan, holder: int, step: int, stream: Stream) -> list[int]:
    """The records that a holder lends to a step, asked for this holder alone."""
    secret = 0 if plan.records_per_holder is None else int(stream.generator("records", step).integers(2**64, dtype=np.uint64))
    return owned().records_of(np.array([holder]), plan.records_per_holder, secret)[0].tolist()


def by_hand(plan: sartor.Plan, seed: int, lr: float) -> torch.Tensor:
    """The parameters after the whole plan: one record at a time, a holder's gradients combined and clipped once, at their own clip."""
    model, stream = net(), Stream(seed)
    sampler = PoissonSampler(plan, people(), stream)
    clip_at = dict(zip(plan.epsilon.tolist(), plan.clips.tolist(), strict=True))
    inputs, targets = visits().tensors
    parameters = list(model.parameters())
    for step in range(plan.steps):
        total = torch.zeros(sum(p.numel() for p in parameters), dtype=torch.float64)
        for holder in sampler.draw(step).indices.tolist():
            gradients = []
            for record in chosen(plan, holder, step, stream):
                assert owned().of_record[record] == holder
                loss = functional.cross_entropy(model(inputs[record : record + 1]), targets[record : record + 1])
                gradients.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters)]).double())
            whole = torch.stack(gradients).mean(0) if plan.combine == "mean" else torch.stack(gradients).sum(0)
            total += whole * min(1.0, clip_at[float(people().epsilon[holder])] / float(whole.norm()))
        total += torch.from_numpy(stream.generator("noise", step).standard_normal(len(total)) * plan.noise)
        with torch.no_grad():
            for parameter, change in zip(parameters, (total / plan.batch).split([p.numel() for p in parameters]), strict=True):
                parameter -= lr * change.view(parameter.shape).float()
    return flat(model)


def difference_from_by_hand(scheme: str = "scale", *, plan: sartor.Plan | None = None, **settings) -> float:
    """The largest difference in any parameter after three steps."""
    plan = planned(scheme) if plan is None else plan
    return float((trained(plan, lr=0.5, seed=11, **settings) - by_hand(plan, 11, 0.5)).abs().max())


def lends_no_record_twice() -> bool:
    """Whether everybody lends as many different records of theirs to a step as they may, and in time all that they have."""
    everybody, seen = np.arange(HOLDERS), [set() for _ in range(HOLDERS)]
    for step in range(300):
        secret = int(Stream(5).generator("records", step).integers(2**64, dtype=np.uint64))
        found, counts = owned().records_of(everybody, 3, secret)
        if not (counts == np.minimum(owned().counts, 3)).all() or len(set(found.tolist())) != len(found) or len(found) != counts.sum():
            return False
        for holder, mine in enumerate(np.split(found, np.cumsum(counts)[:-1])):
            if not (owned().of_record[mine] == holder).all():
                return False
            seen[holder].update(mine.tolist())
    return [len(records) for records in seen] == owned().counts.tolist()
