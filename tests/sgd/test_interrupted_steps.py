"""A step that was interrupted in a loop of one's own: before it counts it comes again with its coins, and once it counts never."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import sartor

BUDGETS = sartor.Budgets.from_groups([(1.0, 40), (4.0, 40)], delta=1e-3)
PLAN = sartor.plan(BUDGETS, steps=6, batch=20, accountant="rdp")


class Dropped(nn.Sequential):
    """A model with dropout that can be interrupted in a forward pass."""

    def __init__(self):
        super().__init__(nn.Linear(4, 16), nn.Dropout(0.5), nn.Linear(16, 2))
        self.calls = 0


def records():
    generator = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(80, 4, generator=generator), torch.arange(80) % 2)


def begun(**settings):
    torch.manual_seed(1)
    model = Dropped()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    return sartor.make_private(model, optimizer, records(), BUDGETS, PLAN, check=False, **{"seed": 1, **settings})


def train(model, optimizer, loader, interrupt=lambda step: None):
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(inputs), targets)
        interrupt(optimizer.run.steps)
        loss.backward()
        optimizer.step()


def weights(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def once(at):
    left = [at]

    def interrupt(step):
        if left and step == left[0]:
            left.clear()
            torch.rand(7)  # whatever else drew random numbers
            raise KeyboardInterrupt

    return interrupt


def test_a_batch_that_was_not_stepped_is_handed_out_again_with_the_coins_it_had():
    whole = begun()
    whole[0][1].p = 0.0
    train(*whole)
    model, optimizer, loader = begun()
    model[1].p = 0.0
    interrupt = once(3)
    with pytest.raises(KeyboardInterrupt):
        train(model, optimizer, loader, interrupt)
    train(model, optimizer, loader, interrupt)
    assert optimizer.run.steps == 6
    assert torch.equal(weights(model), weights(whole[0]))


@pytest.mark.parametrize("where", ["noise", "before it moves", "after it moved"])
def test_a_step_that_was_interrupted_counts_and_is_never_taken_again(where, monkeypatch):
    model, optimizer, loader = begun()
    step, noisy = optimizer.inner.step, optimizer.run._noisy
    noises = []

    def interrupted(*given, **others):
        if optimizer.run.steps == 3 and not noises:
            noises.append(3)
            if where == "after it moved":
                step(*given, **others)
            raise KeyboardInterrupt
        return (noisy if where == "noise" else step)(*given, **others)

    if where == "noise":
        monkeypatch.setattr(optimizer.run, "_noisy", interrupted)
    else:
        monkeypatch.setattr(optimizer.inner, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(model, optimizer, loader)
    assert optimizer.account().steps == 3
    taken = []
    train(model, optimizer, loader, interrupt=taken.append)
    assert taken == [3, 4, 5]
    assert optimizer.account().steps == 6
