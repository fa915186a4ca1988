"""Small private runs, what they must equal, and checks of their noise, empty batches and resumption that are also run on faulty code."""

import functools
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import sartor
from sartor.run.journal import Journal
from sartor.run.sampling import PoissonSampler
from sartor.sgd import OutOfTurn, Stream
from sartor.sgd.run import Run

HOLDERS = 60


@functools.cache
def people() -> sartor.Budgets:
    epsilon = np.random.default_rng(5).permutation(np.repeat([4.0, 1.0, 8.0, 2.0], [15, 20, 10, 15]))
    return sartor.Budgets(epsilon=epsilon, delta=1e-3)


@functools.cache
def planned(scheme: str = "scale", steps: int = 3, batch: float = 20, clip: float = 0.05) -> sartor.Plan:
    return sartor.plan(people(), scheme, steps=steps, batch=batch, clip=clip)


@functools.cache
def records(holders: int = HOLDERS) -> TensorDataset:
    generator = torch.Generator().manual_seed(3)
    return TensorDataset(torch.randn(holders, 4, generator=generator), torch.randint(0, 3, (holders,), generator=generator))


def net() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


def private(model: nn.Module | None = None, plan: sartor.Plan | None = None, *, dataset=None, optimizer=None, lr=0.5, seed=1, **settings):
    model = net() if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=lr) if optimizer is None else optimizer
    plan = planned() if plan is None else plan
    return sartor.make_private(model, optimizer, records() if dataset is None else dataset, people(), plan, seed=seed, **settings)


def take(model, optimizer, batch, reduction="mean") -> None:
    inputs, targets = batch
    optimizer.zero_grad()
    functional.cross_entropy(model(inputs), targets, reduction=reduction).backward()
    optimizer.step()


def train(model, optimizer, loader, reduction="mean", each=lambda: None) -> int:
    batches = 0
    for batch in loader:
        take(model, optimizer, batch, reduction)
        batches += 1
        each()
    return batches


def flat(model: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def trained(*given_, reduction="mean", **settings) -> torch.Tensor:
    model, optimizer, loader = private(*given_, reduction=reduction, **settings)
    train(model, optimizer, loader, reduction)
    return flat(model)


def by_hand(plan: sartor.Plan, seed: int, lr: float) -> torch.Tensor:
    """The parameters after the whole plan, one example at a time, each clipped at the clip of the group with its holder's epsilon."""
    model, stream = net(), Stream(seed)
    sampler = PoissonSampler(plan, people(), stream)
    clip_at = dict(zip(plan.epsilon.tolist(), plan.clips.tolist(), strict=True))
    inputs, targets = records().tensors
    parameters = list(model.parameters())
    for step in range(plan.steps):
        total = torch.zeros(sum(p.numel() for p in parameters), dtype=torch.float64)
        for holder in sampler.draw(step).indices.tolist():
            loss = functional.cross_entropy(model(inputs[holder : holder + 1]), targets[holder : holder + 1])
            gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters)]).double()
            total += gradient * min(1.0, clip_at[float(people().epsilon[holder])] / float(gradient.norm()))
        total += torch.from_numpy(stream.generator("noise", step).standard_normal(len(total)) * plan.noise)
        with torch.no_grad():
            for parameter, change in zip(parameters, (total / plan.batch).split([p.numel() for p in parameters]), strict=True):
                parameter -= lr * change.view(parameter.shape).float()
    return flat(model)


def difference_from_by_hand(scheme: str, **settings) -> float:
    """The largest difference in any parameter after three steps."""
    plan = planned(scheme)
    return float((trained(None, plan, lr=0.5, seed=11, **settings) - by_hand(plan, 11, 0.5)).abs().max())


def pure_noise(steps: int = 4, seed: int | None = 2, **settings) -> list[torch.Tensor]:
    """What each step adds where all gradients are zero, in units of the plan's noise over the expected batch: one row per parameter."""
    plan = planned(steps=steps)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 90), nn.Linear(90, 90, bias=False), nn.Linear(90, 90, bias=False), nn.Linear(90, 3))
    model, optimizer, loader = private(model, plan, seed=seed, **settings)
    found = []
    for inputs, targets in loader:
        optimizer.zero_grad()
        (functional.cross_entropy(model(inputs), targets) * 0).backward()
        optimizer.step()
        found.append([p.grad.flatten().double() * plan.batch / plan.noise for p in model.parameters()])
    return [torch.stack(rows) for rows in zip(*found, strict=True)]


def has_the_planned_noise(noise: list[torch.Tensor], sigmas: float = 5) -> bool:
    """Mean 0, variance 1, no correlation between steps, parameters or neighbours; several moments so that a change of shape is seen."""
    together = torch.cat(noise, 1)
    count = together.numel()
    values = together.flatten()
    first, second = noise[2], noise[3]  # of one shape
    products = {
        "steps": together[0] * together[1],
        "neighbours": values[:-1] * values[1:],
        "parameters": (first * second).flatten(),
        "parameters of different shapes": (noise[0][:, :270] * noise[4][:, :270]).flatten(),
    }
    figures = {
        "mean": (float(values.mean()), 1 / math.sqrt(count)),
        "variance": (float(values.square().mean()) - 1, math.sqrt(2 / count)),
        "fourth moment": (float(values.pow(4).mean()) - 3, math.sqrt(96 / count)),
        **{name: (float(p.mean()), 1 / math.sqrt(p.numel())) for name, p in products.items()},
    }
    return all(abs(value) <= sigmas * deviation for value, deviation in figures.values())


def empty_batches_step_with_noise(seed: int = 4) -> bool:
    """Under rates so small that most batches are empty: each step happens once, moves every parameter, and is charged."""
    plan = planned("sample", 40, 0.3)
    stream = Stream(seed)
    drawn = [len(PoissonSampler(plan, people(), stream).draw(step)) for step in range(plan.steps)]
    assert drawn.count(0) > 20
    model, optimizer, loader = private(None, plan, seed=seed)
    moved, before = [], flat(model)

    def each():
        nonlocal before
        moved.append(bool((flat(model) != before).float().mean() > 0.9))
        before = flat(model)

    try:
        batches = train(model, optimizer, loader, each=each)
    except OutOfTurn:
        return False
    return batches == plan.steps == optimizer.account().steps and all(moved)


def without_noise(generator, size, deviation, draws=1):
    return np.zeros(size)


STEPS = 9


class Stopped(Exception):
    pass


def dropping() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Dropout(0.3), nn.Linear(5, 3))


def fitted(model=None, *, scheme="scale", dataset=None, plan=None, **settings):
    settings = {"optimizer": lambda p: torch.optim.SGD(p, lr=0.3, momentum=0.9), "seed": 1, "progress": False, **settings}
    model = dropping() if model is None else model
    plan = planned(scheme, STEPS) if plan is None else plan
    return sartor.fit(model, records() if dataset is None else dataset, people(), plan, **settings)


def stopped_at(step: int, folder, *, resume=False, **settings) -> None:
    def stop(progress):
        if progress.step == step:
            raise Stopped

    with pytest.raises(Stopped):
        fitted(checkpoints=sartor.Checkpoints(folder, every=2, resume=resume), callbacks=[*settings.pop("callbacks", ()), stop], **settings)


def is_charged_ahead(folder, step: int = 5, **settings) -> bool:
    """Whether a run that breaks off after a step and goes on keeps the crash rule: every index is drawn by one start alone, after it was
    charged on the disk; no noise comes twice; and the account is what was charged."""
    drawn: dict[int, int] = {}
    noises, charges, starts = [], [0], [0]
    kept = True
    draw, noisy, write = PoissonSampler.draw, Run._noisy, Journal.write

    def drawing(self, step):
        nonlocal kept
        kept = kept and step < charges[-1] and drawn.setdefault(step, starts[0]) == starts[0]
        return draw(self, step)

    def adding(self, sums, step):
        released = noisy(self, sums, step)
        name = next(iter(released))
        noises.append((released[name] - sums[name] / self.plan.batch).flatten()[:4].tolist())
        return released

    def writing(self, entry, checkpoint=None):
        write(self, entry, checkpoint)
        charges.append(entry.charged)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PoissonSampler, "draw", drawing)
        patch.setattr(Run, "_noisy", adding)
        patch.setattr(Journal, "write", writing)
        stopped_at(step, folder, **settings)
        starts[0] += 1
        account = fitted(checkpoints=sartor.Checkpoints(folder, resume=True), **settings).account
    fresh = len({tuple(round(value, 5) for value in noise) for noise in noises}) == len(noises)
    return kept and fresh and charges == sorted(charges) and account.charged == charges[-1] == account.plan.steps and account.lost <= 2
