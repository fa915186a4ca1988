"""Rounding of long sums: where a rung is small beside what a step adds up, sums are float64, by the plan alone."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import sartor
from sartor.sgd.gradients import PerExample
from sartor.sgd.private import needs_float64

PEOPLE = 60_000


def sums(engine: PerExample, model: nn.Module, inputs: torch.Tensor, clips: torch.Tensor) -> float:
    with engine.batch(clips):
        model(inputs).sum().backward()
        return float(engine.clipped_sums()["weight"].double().sum())


@pytest.mark.parametrize("clip", [0.001, 0.003, 0.005, 0.01])
def test_a_small_clip_among_many_large_ones_is_kept_to(clip):
    """In float32 a unit in the last place of this sum is 0.004."""
    model = nn.Linear(1, 1, bias=False)
    engine = PerExample(model, exact=True)
    for last in np.linspace(0.0, 0.9, 4):
        inputs, clips = torch.full((PEOPLE, 1), 50.0), torch.ones(PEOPLE)
        inputs[-1], found = float(last), []
        for clips[0] in (clip, 0.0):
            found.append(sums(engine, model, inputs, clips.clone()))
        assert 0.999 * clip < abs(found[0] - found[1]) <= clip


def test_it_follows_from_the_plan_alone():
    budgets = sartor.Budgets.from_groups([(0.3, 100), (10.0, PEOPLE - 100)], delta=1e-7)
    options = {"steps": 4, "clip": 1.0, "accountant": "rdp"}
    assert not needs_float64(sartor.plan(budgets, "uniform", batch=512, **options))
    assert needs_float64(sartor.plan(budgets, "uniform", batch=PEOPLE, **options))
    few = {"filter": "renyi", "refresh": 1, "full_steps": 2}
    assert needs_float64(sartor.plan(budgets, "scale", batch=PEOPLE, **few, **options))


def test_a_run_of_such_a_plan_adds_up_in_float64(monkeypatch):
    monkeypatch.setattr("sartor.sgd.private.ROUNDING", 1e-9)
    budgets = sartor.Budgets.from_groups([(1.0, 40), (4.0, 40)], delta=1e-3)
    plan = sartor.plan(budgets, steps=2, batch=20, accountant="rdp")
    data = TensorDataset(torch.randn(80, 3, 4), torch.zeros(80, dtype=torch.long))
    model = nn.Sequential(nn.Conv1d(3, 4, 2), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(12, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = sartor.make_private(model, optimizer, data, budgets, plan, seed=1)
    kinds, noisy = set(), optimizer.run._noisy
    monkeypatch.setattr(optimizer.run, "_noisy", lambda sums, step: kinds.update(v.dtype for v in sums.values()) or noisy(sums, step))
    for inputs, targets in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    assert kinds == {torch.float64}
    assert np.isfinite([float(p.detach().sum()) for p in model.parameters()]).all()
