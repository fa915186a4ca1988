from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset, TensorDataset

import sartor
from sartor.audit import shadow_training
from sartor.audit.shadow_training import Learning, Material, Without, train_alone, train_stacked
from sartor.audit.stacked import Stack
from sartor.errors import SartorError
from sartor.plans import Stage
from sartor.run.sampling import PoissonSampler
from sartor.run.stream import Stream, normal
from sartor.sgd.loss import Loss
from sartor_testing.amount import examples
from sartor_testing.naive import naive_gradients, naive_sums
from sartor_testing.private_runs import HOLDERS, dropping, flat, net, people, planned, records

SAME = 1e-5
NOBODY = np.zeros(HOLDERS, bool)


def material(scheme="scale", steps=4, *, make=net, dataset=None, **learning) -> Material:
    how = Learning(**{"lr": 0.5, **learning})
    return Material(make, records() if dataset is None else dataset, people(), planned(scheme, steps), how)


def of_model(stack: Stack, model: int) -> torch.Tensor:
    return torch.cat([stack.values[name][model].flatten() for name in stack.trained])


def some(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).random(HOLDERS) < 0.5


def by_hand(of: Material, seed: int, absent: np.ndarray) -> torch.Tensor:
    """One model, one example after the other: the plan's coins, minus those who are out; clip, sum, noise, divide by the plan's batch."""
    model, plan, stream = of.fresh(seed), of.plan, Stream(seed)
    sampler, (inputs, targets) = PoissonSampler(plan, people(), stream), of.dataset.tensors
    groups, parameters = plan.groups_of(people()), list(model.parameters())
    for step in range(plan.steps):
        total = torch.zeros(sum(p.numel() for p in parameters), dtype=torch.float64)
        for holder in sampler.draw(step).indices.tolist():
            if absent[holder]:
                continue
            loss = functional.cross_entropy(model(inputs[holder : holder + 1]), targets[holder : holder + 1])
            gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters)]).double()
            total += gradient * min(1.0, plan.clips[groups[holder]] / float(gradient.norm()))
        total += torch.from_numpy(normal(stream.generator("noise", step), len(total), plan.noise_at(step)))
        with torch.no_grad():
            for parameter, change in zip(parameters, (total / plan.batch).split([p.numel() for p in parameters]), strict=True):
                parameter -= of.learning.lr * change.view(parameter.shape).float()
    return flat(model)


@pytest.mark.parametrize("scheme", ["scale", "sample", "hybrid", "sequential"])
def test_stacked_models_equal_a_naive_loop_over_examples(scheme):
    of, absent = material(scheme), [some(1), NOBODY, some(2)]
    stack = train_stacked(of, [5, 6, 7], absent)
    for model, (seed, out) in enumerate(zip([5, 6, 7], absent, strict=True)):
        assert (of_model(stack, model) - by_hand(of, seed, out)).abs().max() < SAME
    assert (of_model(stack, 0) - by_hand(of, 5, absent[2])).abs().max() > SAME  # another's coins are seen


@pytest.mark.parametrize("learning", [{"momentum": 0.9}, {"optimizer": "adam", "lr": 0.01}])
def test_a_stacked_model_without_anyone_out_is_what_fit_trains_with_its_seed(learning):
    of = material(steps=6, **learning)
    stack = train_stacked(of, [3, 4], [NOBODY, NOBODY])
    for model, seed in enumerate([3, 4]):
        fitted = sartor.fit(net(), records(), people(), of.plan, seed=seed, progress=False, **{"lr": 0.5, **learning})
        assert (of_model(stack, model) - flat(fitted.model)).abs().max() < SAME


def test_a_model_that_is_trained_alone_is_what_fit_trains_with_its_seed():
    of = material(steps=5, make=dropping, momentum=0.9)
    assert not of.can_be_stacked()
    fitted = sartor.fit(dropping(), records(), people(), of.plan, lr=0.5, momentum=0.9, seed=8, progress=False)
    assert torch.equal(flat(train_alone(of, 8, NOBODY)), flat(fitted.model))


def test_alone_and_stacked_agree_on_who_is_out():
    of, out = material(), some(4)
    assert (of_model(train_stacked(of, [9], [out]), 0) - flat(train_alone(of, 9, out))).abs().max() < SAME
    assert (of_model(train_stacked(of, [9], [~out]), 0) - flat(train_alone(of, 9, out))).abs().max() > SAME


@pytest.mark.parametrize(
    "train", [lambda of, out: of_model(train_stacked(of, [2], [out]), 0), lambda of, out: flat(train_alone(of, 2, out))]
)
def test_records_of_those_who_are_out_have_no_influence(train):
    inputs, targets = records().tensors
    out = some(3)
    changed = inputs.clone()
    changed[torch.from_numpy(out)] += 5
    changed[0] = inputs[0]  # an empty batch is filled with the first record, at clip 0
    other = material(dataset=TensorDataset(changed, targets))
    assert torch.equal(train(material(), out), train(other, out))
    assert not torch.equal(train(material(), ~out), train(other, ~out))


def test_a_sampler_without_some_tosses_everybody_elses_coins_as_they_are():
    plan, out = planned("sample", 5), some(6)
    whole, without = PoissonSampler(plan, people(), Stream(1)), Without(plan, people(), Stream(1), out)
    for step in range(plan.steps):
        drawn, left = whole.draw(step), without.draw(step)
        assert left.indices.tolist() == [i for i in drawn.indices.tolist() if not out[i]]
        assert left.clips.tolist() == [c for i, c in zip(drawn.indices.tolist(), drawn.clips.tolist(), strict=True) if not out[i]]
    with pytest.raises(SartorError, match="each of the 60 holders"):
        Without(plan, people(), Stream(1), out[:5])


class Convolutions(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Conv2d(2, 3, 3, padding=1, stride=2), nn.Conv2d(3, 4, 2, groups=1)
        self.norm, self.last = nn.GroupNorm(2, 4), nn.Linear(16, 3)

    def forward(self, x):
        return self.last(self.norm(self.two(torch.tanh(self.one(x)))).flatten(1))


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.mixed, self.last = nn.Embedding(11, 4), nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, tokens):
        return self.last(torch.tanh(self.mixed(self.embedding(tokens))).mean(1))


NETWORKS = {
    "dense": (lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)), lambda *rows: torch.randn(*rows, 4)),
    "no bias": (lambda: nn.Linear(4, 3, bias=False), lambda *rows: torch.randn(*rows, 4)),
    "convolutions": (Convolutions, lambda *rows: torch.randn(*rows, 2, 6, 6)),
    "words": (Words, lambda *rows: torch.randint(0, 11, (*rows, 6))),
}


@settings(max_examples=examples(12, 100))
@given(st.sampled_from(sorted(NETWORKS)), st.integers(1, 3), st.integers(1, 5), st.integers(0, 2**20))
def test_clipped_sums_of_a_stack_are_those_of_each_model_alone(network, models, rows, seed):
    make, draw = NETWORKS[network]
    torch.manual_seed(seed)
    several, inputs, targets = [make() for _ in range(models)], draw(models, rows), torch.randint(0, 3, (models, rows))
    clips = torch.rand(models, rows) * 2
    clips[0, 0] = 0
    found = Stack(several, Loss(None), draw(2), torch.tensor([0, 1])).sums(inputs, targets, clips)
    for place, model in enumerate(several):
        gradients = naive_gradients(model, (inputs[place],), lambda out, i: functional.cross_entropy(out, targets[place, i : i + 1]))  # noqa: B023
        wanted, _ = naive_sums(gradients, clips[place])
        assert all(torch.allclose(found[name][place].double(), wanted[name], rtol=1e-3, atol=1e-5) for name in found)


def test_a_batch_in_several_pieces_has_the_same_sums(monkeypatch):
    make, draw = NETWORKS["convolutions"]
    torch.manual_seed(0)
    models, inputs, targets, clips = [make() for _ in range(2)], draw(2, 7), torch.randint(0, 3, (2, 7)), torch.rand(2, 7)
    stack = Stack(models, Loss(None), inputs[0], targets[0])
    whole = stack.sums(inputs, targets, clips)
    monkeypatch.setattr("sartor.audit.stacked._MOST_FORMED", 2 * 2 * stack._formed)
    pieces = stack.sums(inputs, targets, clips)
    assert all(torch.allclose(whole[name], pieces[name], atol=1e-6) for name in whole)


def test_a_record_without_a_finite_gradient_contributes_nothing():
    stack = Stack([net(), net()], Loss(None), *(tensor[:2] for tensor in records().tensors))
    inputs, targets = (tensor[:6].reshape(2, 3, *tensor.shape[1:]).clone() for tensor in records().tensors)
    clips = torch.ones(2, 3)
    without = clips.clone()
    without[1, 2] = 0
    wanted = stack.sums(inputs, targets, without)
    inputs[1, 2] = torch.inf
    found = stack.sums(inputs, targets, clips)
    assert all(torch.allclose(found[name], wanted[name]) for name in found)


class Mixing(nn.Linear):
    def forward(self, x):
        return super().forward(x - x.mean(0))


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.last = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.last(self.layer(self.layer(x)))


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale, self.last = nn.Parameter(torch.ones(4)), nn.Linear(4, 3)

    def forward(self, x):
        return self.last(self.scale * x)


class Counting(nn.Linear):
    def __init__(self):
        super().__init__(4, 3)
        self.register_buffer("mean", torch.zeros(4))


class Outside(nn.Sequential):
    def forward(self, x):
        return super().forward(x) * self[0].weight.sum()


@pytest.mark.parametrize(
    "make", [lambda: Mixing(4, 3), Twice, Scaled, Counting, dropping, lambda: Outside(nn.Linear(4, 3))], ids=lambda make: make.__name__
)
def test_networks_that_cannot_be_stacked_are_seen(make):
    assert not material(make=make).can_be_stacked()


def test_optimizers_data_sets_and_plans_that_cannot_be_stacked_are_seen():
    class Rows(Dataset):
        def __len__(self):
            return HOLDERS

        def __getitem__(self, i):
            return records()[i]

    assert material().can_be_stacked()
    assert not material(dataset=Rows()).can_be_stacked()
    assert not material(optimizer=lambda p: torch.optim.SGD(p, lr=1.0)).can_be_stacked()
    assert not material(collate=torch.utils.data.default_collate).can_be_stacked()
    with pytest.raises(SartorError, match="cannot be stacked"):
        train_stacked(material(dataset=Rows()), [1], [NOBODY])


def test_a_shadow_that_is_no_longer_finite_is_said(monkeypatch):
    monkeypatch.setattr(shadow_training, "normal", lambda generator, size, deviation: np.full(size, np.inf))
    with pytest.raises(SartorError, match="no longer finite after step 1 of 4"):
        train_stacked(material(), [1], [NOBODY])


# -- faults put in on purpose


def naive_difference() -> float:
    of, out = material(), [some(1), some(2)]
    stack = train_stacked(of, [5, 6], out)
    return max(float((of_model(stack, i) - by_hand(of, 5 + i, out[i])).abs().max()) for i in range(2))


def test_noise_of_another_model_is_caught(monkeypatch):
    assert naive_difference() < SAME
    monkeypatch.setattr(shadow_training, "Stream", lambda seed: Stream(5))
    assert naive_difference() > SAME


def test_a_clip_that_is_dropped_is_caught(monkeypatch):
    right = Stack.sums
    monkeypatch.setattr(Stack, "sums", lambda self, x, y, clips: right(self, x, y, torch.where(clips > 0, 1e9, 0.0)))
    assert naive_difference() > SAME


def test_a_target_that_is_out_and_still_drawn_is_caught(monkeypatch):
    monkeypatch.setattr(Without, "draw", PoissonSampler.draw)
    assert naive_difference() > SAME


def test_plans_of_several_models_have_no_shadows():
    budgets = sartor.Budgets.from_groups([(1.0, 20), (4.0, 20)], delta=1e-2)
    plan = sartor.plan(budgets, "adapdp", steps=4, batch=10, threshold=[1.5, 4])
    data = TensorDataset(torch.randn(40, 4), torch.zeros(40, dtype=torch.long))
    with pytest.raises(SartorError, match="one model for each round"):
        Material(lambda: nn.Linear(4, 2), data, budgets, plan, Learning(), None)


def test_every_step_has_the_noise_of_its_stage():
    of = material("sample")
    (stage,) = of.plan.stages
    louder = Stage(2, 3 * stage.noise_multiplier, stage.rate, stage.clips)
    plan = replace(of.plan, stages=(Stage(2, stage.noise_multiplier, stage.rate, stage.clips), louder))
    other = replace(of, plan=plan)
    assert (of_model(train_stacked(other, [5], [NOBODY]), 0) - by_hand(other, 5, NOBODY)).abs().max() < SAME


def test_records_of_those_who_are_out_have_no_influence_under_a_filter_either():
    plan = sartor.plan(people(), "scale", steps=4, batch=20, clip=0.05, filter="ladder", refresh=2, full_steps=2)
    (inputs, targets), out = records().tensors, some(3)
    changed = inputs.clone()
    changed[torch.from_numpy(out)] += 5
    one, other = (replace(material(dataset=TensorDataset(rows, targets)), plan=plan) for rows in (inputs, changed))
    assert torch.equal(flat(train_alone(one, 2, out)), flat(train_alone(other, 2, out)))
    assert not torch.equal(flat(train_alone(one, 2, ~out)), flat(train_alone(other, 2, ~out)))


def test_one_number_that_is_not_finite_is_enough(monkeypatch):
    monkeypatch.setattr(shadow_training, "normal", lambda generator, size, deviation: np.where(np.arange(size) == 0, np.inf, 0.0))
    with pytest.raises(SartorError, match="no longer finite after step 1 of 4"):
        train_stacked(material(), [1], [NOBODY])
