"""A step that was interrupted in a loop of one's own: it is taken again as it was, or the run ends there."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import sartor
from sartor.sgd.checkpoint import Checkpoint, fingerprint, save_checkpoint
from sartor.sgd.run import OutOfTurn

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


def test_a_batch_that_was_not_stepped_is_handed_out_again_with_the_random_numbers_it_had():
    """Otherwise an earlier checkpoint leads to another sum under the same noise, and the two differ by what is bare."""
    whole = begun()
    train(*whole)
    model, optimizer, loader = begun()
    interrupt = once(3)
    with pytest.raises(KeyboardInterrupt):
        train(model, optimizer, loader, interrupt)
    torch.rand(5)
    train(model, optimizer, loader, interrupt)
    assert optimizer.run.steps == 6
    assert torch.equal(weights(model), weights(whole[0]))


@pytest.mark.parametrize("where", ["noise", "before it moves", "after it moved"])
def test_a_run_that_is_interrupted_amid_a_step_ends_there_and_is_not_kept(where, monkeypatch, tmp_path):
    model, optimizer, loader = begun()
    of = fingerprint(PLAN, BUDGETS, records())
    save_checkpoint(tmp_path / "kept", optimizer, loader, of)
    step, noisy = optimizer.inner.step, optimizer.run._noisy

    def interrupted(*given, **others):
        if optimizer.run.steps == 3:
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
    monkeypatch.undo()
    assert optimizer.run.steps == 3  # it counts
    for go_on in (lambda: next(iter(loader)), optimizer.step, lambda: save_checkpoint(tmp_path / "kept", optimizer, loader, of)):
        with pytest.raises(OutOfTurn, match="interrupted amid its step 3"):
            go_on()


def kept(folder, at, pieces=None):
    """A run with dropout, kept in a folder after so many calls of step, and what it released from there on, by step."""
    model, optimizer, loader = begun(max_physical_batch=pieces)
    released = {}
    for calls, (inputs, targets) in enumerate(loader, 1):
        optimizer.zero_grad()
        functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        if optimizer.took_step:
            released[optimizer.run.steps] = weights(model)
        if calls == at:
            save_checkpoint(folder, optimizer, loader, fingerprint(PLAN, BUDGETS, records()))
    return released


@pytest.mark.parametrize("pieces", [None, 4])
def test_a_step_that_is_taken_again_has_the_sum_it_had_whenever_it_was_kept_and_whatever_was_drawn_since(pieces, tmp_path):
    """Kept amid the pieces of a step, or followed by a public loader that draws a seed: dropout stays that of the step."""
    released = kept(tmp_path / "run", 3, pieces)
    found = Checkpoint(tmp_path / "run", fingerprint(PLAN, BUDGETS, records()))
    model, optimizer, loader = begun(stream=found.stream, seed=None, max_physical_batch=pieces)
    found.restore(optimizer, loader, None)
    torch.rand(5)
    assert optimizer.run.steps < 6
    for inputs, targets in loader:
        optimizer.zero_grad()
        functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        if optimizer.took_step:
            assert torch.equal(weights(model), released[optimizer.run.steps])
