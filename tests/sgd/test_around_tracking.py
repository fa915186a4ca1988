"""The ways around tracked norms: what a pass leaves behind, whose norms follow whom, and charges that a stop could lose."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset

import sartor
from sartor.errors import SartorError
from sartor.individual.readings import Readings
from sartor.run.journal import is_begun
from sartor.sgd.norms import Norms
from sartor_testing.private_runs import HOLDERS, net, people, records, take
from sartor_testing.tracked_runs import REFRESH, filtered


def half(outputs, targets):
    return 0.5 * functional.cross_entropy(outputs, targets, reduction="none")


def begun(plan=None, *, model=None, dataset=None, loss=functional.cross_entropy, seed=1, **settings):
    model = net() if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    given = records() if dataset is None else dataset
    made = {"seed": seed, **settings}
    return sartor.make_private(model, optimizer, given, people(), filtered() if plan is None else plan, loss=loss, **made)


class Observed(nn.Module):
    """Notes what it has seen, but only where it is evaluated."""

    def __init__(self):
        super().__init__()
        self.inner = net()
        self.register_buffer("most", torch.zeros(()))

    def forward(self, inputs):
        if not self.training:
            self.most.copy_(torch.maximum(self.most, inputs.abs().max()))
        return self.inner(inputs)


@pytest.mark.parametrize("tracking", [None, sartor.Tracking("strict", REFRESH)])
def test_what_the_pass_leaves_in_a_model_is_put_back_and_refused(tracking):
    plan = filtered() if tracking is None else sartor.plan(people(), steps=10, batch=8)
    model = Observed()
    with pytest.raises(SartorError, match="the buffer most changed while private data"):
        sartor.fit(model, records(), people(), plan, tracking=tracking, seed=1, progress=False)
    assert float(model.most) == 0


def test_what_a_pass_that_is_interrupted_left_in_a_model_is_put_back(monkeypatch):
    model = Observed()
    _, _, loader = begun(model=model)
    whole, seen = Norms._norms, []

    def interrupted(self, holders, size):
        whole(self, holders, size)
        seen.append(float(model.most))
        raise KeyboardInterrupt

    monkeypatch.setattr(Norms, "_norms", interrupted)
    with pytest.raises(KeyboardInterrupt):
        next(iter(loader))
    assert seen[0] > 0
    assert float(model.most) == 0


class Jittered(Dataset):
    """Random changes, as many numbers as the record has: whoever comes after a longer record gets others."""

    def __init__(self, lengths, scale):
        self._inner, self._lengths, self._scale = records(), lengths, scale

    def __len__(self):
        return len(self._inner)

    def __getitem__(self, place):
        inputs, target = self._inner[place]
        drawn = torch.randn(self._lengths[place])
        return inputs + self._scale * drawn[-1], target


@pytest.mark.parametrize("scale", [0.002, 0.5])
def test_random_changes_to_a_record_are_its_own(scale):
    """Otherwise somebody's length would move the norms of all who come after them; and ordinary ones are taken."""
    found = []
    for length in (1, 7):
        _, _, loader = begun(dataset=Jittered([length] + [2] * (HOLDERS - 1), scale))
        loader.draws.stretches.begin(0)
        found.append(loader.draws.stretches._norms(HOLDERS, 0))
    assert np.array_equal(found[0][1:], found[1][1:])
    assert found[0][0] != found[1][0]


def test_random_changes_differ_from_look_to_look():
    _, _, loader = begun(dataset=Jittered([2] * HOLDERS, 0.5))
    look = loader.draws.stretches._norms
    assert np.all(look(HOLDERS, 0) == look(HOLDERS, 0))
    assert np.mean(look(HOLDERS, 0) != look(HOLDERS, REFRESH)) > 0.9


def test_who_is_close_to_a_rung_is_looked_at_alone(monkeypatch):
    """How a norm rounds depends on how many records are looked at with it."""
    _, _, loader = begun()
    stretches = loader.draws.stretches
    plan, group, whole = stretches.plan, stretches._group, Norms._norms
    clips = plan.clips[group]
    near = plan.filter.rungs[group, 1] * clips

    def rounded(self, holders, size):
        return near[holders] * (1.0 if len(holders) == 1 else 1 + 1e-6)

    monkeypatch.setattr(Norms, "_norms", rounded)
    assert np.all(stretches._norms(HOLDERS, 0) == near)
    monkeypatch.setattr(Norms, "_norms", whole)
    away = near * 1.01
    assert not stretches.unsure(away).any()
    assert not stretches.unsure(clips).any(), "at full norm nothing is decided"
    assert not stretches.unsure(np.full(HOLDERS, np.nan)).any()


@pytest.mark.parametrize("where", ["counted", "settled"])
def test_a_charge_that_is_interrupted_ends_the_run_and_is_not_kept(monkeypatch, tmp_path, where):
    """Otherwise the stretch would be taken with the rungs of the one before, and nobody's units."""
    _, optimizer, loader = begun()
    loader.checkpoint(tmp_path / "kept")
    add = Readings.add

    def interrupted(self, levels, steps):
        if where == "settled":
            add(self, levels, steps)
        else:
            self.steps += steps
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Readings, "add", interrupted)
        with pytest.raises(KeyboardInterrupt):
            next(iter(loader))
    with pytest.raises(SartorError, match="interrupted while a stretch was charged"):
        next(iter(loader))
    assert optimizer.run.steps == 0
    loader.close()
    assert not is_begun(tmp_path / "kept")


def test_a_look_that_is_interrupted_can_be_taken_again(monkeypatch):
    _, optimizer, loader = begun()
    with monkeypatch.context() as patched:
        patched.setattr(Norms, "_norms", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            next(iter(loader))
    assert next(iter(loader)) is not None
    assert optimizer.run.steps == 0


def test_in_a_loop_of_ones_own_a_charge_is_in_the_checkpoint_before_its_first_step(tmp_path):
    plan = filtered()
    model, optimizer, loader = begun(plan)
    loader.checkpoint(tmp_path / "kept", every=2)
    for batch in loader:
        take(model, optimizer, batch)
        if optimizer.run.steps == REFRESH + 1:
            break
    left, fraction = loader.draws.stretches._left.copy(), loader.draws.stretches._fraction.copy()
    loader.let_go()  # as if the process were killed here
    _, resumed, again = begun(plan, loss=half)
    again.checkpoint(tmp_path / "kept", resume=True)
    assert REFRESH < resumed.run.steps <= REFRESH + 2
    assert np.array_equal(again.draws.stretches._left, left)
    assert np.array_equal(again.draws.stretches._fraction, fraction)


class Averaged:
    """A loss over a moving average of what it has seen: everybody's record is in everybody's loss."""

    def __init__(self, weight):
        self.weight, self.mean = weight, 1.0

    def __call__(self, outputs, targets):
        value = functional.cross_entropy(outputs, targets, reduction="none")
        self.mean = (1 - self.weight) * self.mean + self.weight * float(value.detach().mean())
        return value / self.mean


@pytest.mark.parametrize("weight", [0.5, 1e-3, 1e-6])
def test_a_loss_that_remembers_is_refused_before_anybody_gets_a_rung(weight):
    """Slow memories as well, which move nobody's norm by a hundredth at once, but everybody's a little."""
    _, optimizer, loader = begun(loss=Averaged(weight))
    with pytest.raises(SartorError, match=r"remembers what it has seen|depends on the others"):
        next(iter(loader))
    assert optimizer.run.steps == 0
