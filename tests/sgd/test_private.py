"""`make_private`: the step is the plan's step, nothing reaches the parameters beside it, and whatever would break that is refused.

The checks that return a figure or a truth are also run by test_mutations.py, on code with faults put in (see sartor_testing.private_runs).
"""

import copy
import functools
import math
import random
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint as recomputed
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, default_collate

import sartor
from sartor.run.sampling import PoissonSampler
from sartor.sgd import Exhausted, OutOfTurn, Stream, unwrap
from sartor.sgd import run as running
from sartor.sgd.gradients import PerExample
from sartor_testing.private_runs import (
    HOLDERS,
    difference_from_by_hand,
    empty_batches_step_with_noise,
    flat,
    has_the_planned_noise,
    net,
    people,
    planned,
    private,
    pure_noise,
    records,
    take,
    train,
    trained,
    without_noise,
)

SCHEMES = ("scale", "sample", "hybrid", "sequential")


# -- the step


@pytest.mark.parametrize("scheme", SCHEMES)
def test_three_steps_equal_an_independent_implementation(scheme):
    assert difference_from_by_hand(scheme) < 1e-5


@pytest.mark.parametrize(
    "settings", [{"reduction": "sum"}, {"max_physical_batch": 3}, {"max_physical_batch": 1}, {"max_physical_batch": "auto"}]
)
def test_reduction_and_physical_batches_change_nothing(settings):
    assert difference_from_by_hand("scale", **settings) < 1e-5


def test_the_sum_is_divided_by_the_expected_batch():
    """At the same rates and the same draw, half the plan's batch doubles the gradient: how many were drawn plays no part."""
    plan = planned()
    assert len(PoissonSampler(plan, people(), Stream(12)).draw(0)) != plan.batch
    halved = sartor.Plan(**{**{name: getattr(plan, name) for name in plan.__dataclass_fields__}, "batch": plan.batch / 2})
    gradients = []
    for one in (plan, halved):
        model, optimizer, loader = private(None, one, seed=12)
        take(model, optimizer, next(iter(loader)))
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    assert torch.allclose(gradients[0] * 2, gradients[1], rtol=1e-5)


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.3),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.3, momentum=0.9, weight_decay=0.01, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01),
    "two groups": lambda p: torch.optim.SGD([{"params": list(p)[:2], "lr": 0.1}, {"params": list(p)[2:]}], lr=0.5),
}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_any_optimizer_sees_the_noisy_gradients_alone(kind):
    model = net()
    parameters = list(model.parameters())
    model, optimizer, loader = private(model, planned(steps=6), optimizer=OPTIMIZERS[kind](parameters))
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    noisy = []
    for batch in loader:
        take(model, optimizer, batch)
        schedule.step()
        noisy.append([p.grad.clone() for p in parameters])
    plain = net()
    again = OPTIMIZERS[kind](list(plain.parameters()))
    schedule = torch.optim.lr_scheduler.StepLR(again, 2, 0.5)
    for gradients in noisy:
        for parameter, gradient in zip(plain.parameters(), gradients, strict=True):
            parameter.grad = gradient
        again.step()
        schedule.step()
    assert torch.equal(flat(plain), flat(model))
    assert (
        optimizer.param_groups[0]["lr"] == again.param_groups[0]["lr"] != OPTIMIZERS[kind](list(net().parameters())).param_groups[0]["lr"]
    )


@pytest.mark.parametrize("order", ["zero first", "zero after forward", "zero at the end", "zero of the model", "never"])
def test_the_usual_orders_of_zeroing_give_the_same_model(order):
    model, optimizer, loader = private()
    for inputs, targets in loader:
        if order == "zero first":
            optimizer.zero_grad()
        loss = functional.cross_entropy(model(inputs), targets)
        if order == "zero after forward":
            optimizer.zero_grad()
        if order == "zero of the model":
            model.zero_grad()
        loss.backward()
        optimizer.step()
        if order == "zero at the end":
            optimizer.zero_grad()
    assert torch.equal(flat(model), trained())


class Named(Dataset):
    """Records as dictionaries, one at a time."""

    def __init__(self, noise: str | None = None) -> None:
        self.noise = noise

    def __len__(self):
        return HOLDERS

    def __getitem__(self, i):
        inputs, target = records()[i]
        if self.noise == "torch":
            inputs = inputs + 0.1 * torch.randn(4)
        if self.noise == "numpy":
            inputs = inputs + 0.1 * torch.from_numpy(np.random.randn(4)).float()  # noqa: NPY002
        if self.noise == "random":
            inputs = inputs + 0.1 * random.random()
        return {"in": inputs, "target": int(target)}


def unnamed(items):
    return torch.stack([item["in"] for item in items]), torch.tensor([item["target"] for item in items])


@pytest.mark.parametrize("workers", [0, 2])
def test_collate_functions_and_workers_give_the_same_bits(workers):
    """Clips travel with their batch through the workers: under "scale" any mix-up would show."""
    assert torch.equal(trained(dataset=Named(), collate=unnamed, workers=workers), trained())


def test_physical_batches_through_workers_give_the_same_bits():
    assert torch.equal(trained(workers=2, max_physical_batch=4), trained(max_physical_batch=4))


def test_exactly_the_planned_steps_then_a_clear_stop():
    plan = planned(steps=7)
    model, optimizer, loader = private(None, plan)
    spent, left = [], [len(loader)]

    def each():
        spent.append(optimizer.account().spent)
        left.append(len(loader))

    assert train(model, optimizer, loader, each=each) == 7
    assert left == [7, 6, 5, 4, 3, 2, 1, 0]
    for step, figures in enumerate(spent, 1):
        assert np.array_equal(figures, plan.spent_after(step))
        assert np.all(figures <= plan.epsilon)
    assert np.all(np.diff(spent, axis=0) > 0)
    before = flat(model)
    with pytest.raises(Exhausted, match="7 steps are done"):
        iter(loader)
    with pytest.raises(Exhausted, match="7 steps are done"):
        optimizer.step()
    assert torch.equal(flat(model), before)


def test_an_empty_batch_steps_with_pure_noise():
    assert empty_batches_step_with_noise()


def test_an_empty_batch_holds_nothing_of_anybody():
    """Two data sets that share no record give the same step where nobody is drawn."""
    plan = planned("sample", 40, 0.3)
    seed = next(s for s in range(100) if not len(PoissonSampler(plan, people(), Stream(s)).draw(0)))
    other = TensorDataset(records().tensors[0] * 1e3 + 5, 2 - records().tensors[1])
    changed = []
    for dataset in (records(), other):
        model, optimizer, loader = private(None, plan, dataset=dataset, seed=seed)
        take(model, optimizer, next(iter(loader)))
        changed.append(flat(model))
    assert torch.equal(*changed)


# -- noise


def test_noise_has_the_planned_variance_and_no_correlation():
    assert has_the_planned_noise(pure_noise())


def test_noise_of_an_unseeded_run_is_right_too():
    assert has_the_planned_noise(pure_noise(seed=None), sigmas=6)


def test_noise_made_of_several_draws_has_the_same_distribution():
    several = pure_noise(noise_draws=4)
    assert has_the_planned_noise(several)
    assert not torch.equal(several[0], pure_noise()[0])


def test_no_number_of_the_noise_is_used_twice():
    values = torch.cat([rows.flatten() for rows in pure_noise(steps=3)]).float()
    assert len(values.unique()) > 0.99 * len(values)


def test_unseeded_runs_differ_and_seeded_ones_do_not():
    assert torch.equal(trained(seed=3), trained(seed=3))
    assert not torch.equal(trained(seed=3), trained(seed=4))
    assert not torch.equal(trained(seed=None), trained(seed=None))


def test_a_seeded_run_says_that_it_is_not_private():
    for seed in (0, None):
        _, optimizer, _ = private(seed=seed)
        assert optimizer.account().to_json()["private"] is (seed is None)
        assert ("not private" in str(optimizer.account())) is (seed is not None)


# -- clips

SIX = sartor.Budgets(epsilon=[2.0, 1.0, 4.0, 4.0, 1.0, 2.0], delta=1e-3)


@functools.cache
def everybody(clip: float = 0.5) -> sartor.Plan:
    """Rate 1 for each of six people in three groups, so that a step is a function of their records."""
    plan = sartor.plan(SIX, "scale", steps=1, batch=6, clip=clip)
    assert np.all(plan.rate == 1)
    return plan


def sum_of_six(make, inputs, targets, plan, **settings) -> torch.Tensor:
    """The clipped sum of one step, without noise."""
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    dataset = TensorDataset(inputs, targets)
    with mock.patch.object(running, "normal", without_noise):
        model, optimizer, loader = sartor.make_private(
            model, optimizer, dataset, SIX, plan, reduction="sum", seed=0, check=False, **settings
        )
        for given_, weights in loader:
            (model(given_) * weights).sum().backward()
            optimizer.step()
    return torch.cat([p.grad.flatten().double() for p in model.parameters()]) * plan.batch


numbers = st.floats(width=32) | st.floats(-4, 4, width=32) | st.sampled_from([math.inf, -math.inf, math.nan, 1e-45, 3e38])


@settings(max_examples=60)
@given(
    st.lists(st.lists(numbers, min_size=3, max_size=3), min_size=6, max_size=6),
    st.lists(st.lists(numbers, min_size=2, max_size=2), min_size=6, max_size=6),
    st.integers(1, 4),
    st.integers(0, 5),
    st.sampled_from([0.5, 0.01, 1e-6]),
    st.sampled_from([None, 1, 4]),
)
def test_nobody_moves_the_sum_by_more_than_their_own_clip(inputs, weights, width, holder, clip, physical):
    """The neighbouring relation itself: the sum with a person's record, less the sum in which that record is worthless."""
    plan = everybody(clip)

    def make():
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(width)
            return nn.Sequential(nn.Linear(3, width), nn.Tanh(), nn.Linear(width, 2))

    x, w = torch.tensor(inputs), torch.tensor(weights)
    without = x.clone()
    without[holder] = math.nan
    own = float(plan.clips[plan.groups_of(SIX)[holder]])
    both = [sum_of_six(make, given_, w, plan, max_physical_batch=physical) for given_ in (x, without)]
    assert all(bool(torch.isfinite(total).all()) for total in both)
    assert float((both[0] - both[1]).norm()) <= own + 1e-6 * float(plan.clips.sum())


@pytest.mark.parametrize("clip", [0.5, 1e-2, 1e-4, 1e-6])
def test_a_gradient_at_the_edge_of_floating_point_is_clipped(clip):
    """Where a clip over a norm is no normal number any more, rounding must not let more through."""
    plan = everybody(clip)
    for size in np.linspace(1e38, 3.3e38, 40):
        x = torch.full((6, 1), math.nan)
        x[1] = size
        total = sum_of_six(lambda: nn.Linear(1, 1, bias=False), x, torch.ones(6, 1), plan)
        assert float(total.norm()) <= plan.clips[plan.groups_of(SIX)[1]] * (1 + 1e-6)


def test_a_clip_under_which_float32_loses_the_norms_is_refused():
    with refused("a larger clip"):
        private(plan=sartor.plan(people(), steps=2, batch=10, clip=1e-20, accountant="rdp"))


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf, 3e38])
def test_a_record_that_is_not_finite_contributes_nothing_and_harms_nobody(broken):
    x, w = torch.randn(6, 3, generator=torch.Generator().manual_seed(1)), torch.ones(6, 2)
    bad = x.clone()
    bad[2] = broken
    plan = everybody()

    def make():
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            return nn.Linear(3, 2)

    alone = x.clone()
    alone[2] = math.nan
    assert torch.equal(sum_of_six(make, bad, w, plan), sum_of_six(make, alone, w, plan))


# -- refusals


def refused(match: str, error: type[Exception] = sartor.SartorError):
    return pytest.raises(error, match=match)


class Endless(IterableDataset):
    def __iter__(self):
        return iter(())


@pytest.mark.parametrize("shuffle", [True, False])
def test_a_loader_is_refused_and_told_what_to_pass(shuffle):
    with refused(r"only Poisson batches.*loader\.dataset"):
        private(dataset=DataLoader(records(), batch_size=5, shuffle=shuffle))


@pytest.mark.parametrize(
    ("dataset", "reason"),
    [
        (Endless(), "a coin of their own"),
        (TensorDataset(torch.zeros(HOLDERS - 1, 4)), "59 records, but there are 60 budgets"),
        (TensorDataset(torch.zeros(2 * HOLDERS, 4)), "If holders have several, say whose each record is"),
        (iter([]), "a length"),
    ],
)
def test_data_without_one_record_per_holder_are_refused(dataset, reason):
    with refused(reason):
        private(dataset=dataset)


def test_a_plan_for_other_people_is_refused():
    model = net()
    for others in (sartor.Budgets(epsilon=[1.0] * HOLDERS, delta=1e-3), sartor.Budgets(epsilon=people().epsilon[:-1], delta=1e-3)):
        plan = sartor.plan(others, steps=2, batch=10)
        with refused("not the budgets that the plan was made for|budgets"):
            sartor.make_private(model, torch.optim.SGD(model.parameters(), lr=1.0), records(), people(), plan)


@pytest.mark.parametrize("kind", [nn.BatchNorm1d, nn.SyncBatchNorm])
def test_batch_normalisation_is_refused_by_name(kind):
    with refused("1 is a batch normalisation.*GroupNorm"):
        private(nn.Sequential(nn.Linear(4, 3), kind(3)))


def test_an_optimizer_of_other_parameters_is_refused():
    model = net()
    with refused("2.weight is trainable but not in the optimizer"):
        private(model, optimizer=torch.optim.SGD(model[0].parameters(), lr=1.0))
    with refused("not the model's"):
        private(model, optimizer=torch.optim.SGD([*model.parameters(), nn.Parameter(torch.zeros(2))], lr=1.0))
    with refused("LBFGS"):
        private(model, optimizer=torch.optim.LBFGS(model.parameters()))


@pytest.mark.parametrize(
    "settings",
    [{"reduction": "none"}, {"noise_draws": 0}, {"max_physical_batch": 0}, {"max_physical_batch": 2.5}, {"max_physical_batch": "all"}],
)
def test_a_wrong_setting_is_refused_and_leaves_the_model_usable(settings):
    model = net()
    with refused("."):
        private(model, **settings)
    assert torch.equal(trained(model), trained())


def test_closures_and_new_parameter_groups_are_refused():
    _, optimizer, loader = private()
    next(iter(loader))
    with refused("closure"):
        optimizer.step(lambda: torch.zeros(()))
    with refused("cannot be added"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2))]})


def test_every_other_order_of_calls_is_refused():
    model, optimizer, loader = private()
    with refused("needs a batch", OutOfTurn):
        optimizer.step()
    batches = iter(loader)
    inputs, targets = next(batches)
    with refused(r"backward\(\) before", OutOfTurn):
        optimizer.step()
    with refused("not stepped", OutOfTurn):
        next(batches)
    batches = iter(loader)
    inputs, targets = next(batches)
    functional.cross_entropy(model(inputs), targets).backward()
    optimizer.zero_grad()
    with refused(r"backward\(\) before", OutOfTurn):
        optimizer.step()
    take(model, optimizer, (inputs, targets))
    with refused("stepped once", OutOfTurn):
        optimizer.step()
    assert optimizer.account().steps == 1


def test_a_second_private_run_on_the_same_parameters_is_refused():
    model, optimizer, loader = private()
    with refused("already"):
        private(model)
    with refused("."):
        private(nn.Sequential(model))
    with refused("another private run"):
        sartor.make_private(net(), optimizer, records(), people(), planned())
    train(model, optimizer, loader)
    assert unwrap(model, optimizer) is model
    train(*private(model))


def test_a_backward_pass_outside_of_a_batch_never_reaches_the_parameters():
    model, optimizer, loader = private()
    batches, (inputs, targets) = iter(loader), records().tensors

    def stray():
        (100 * functional.cross_entropy(model(inputs), targets)).backward()

    stray()
    with refused("needs a batch", OutOfTurn):
        optimizer.step()
    batch = next(batches)
    take(model, optimizer, batch)
    stray()
    take(model, optimizer, next(batches))
    stray()
    take(model, optimizer, next(batches))
    assert torch.equal(flat(model), trained())


def test_a_graph_from_before_the_batch_is_refused():
    model, optimizer, loader = private()
    inputs, targets = records().tensors
    outputs = model(inputs)
    batch = next(iter(loader))
    optimizer.zero_grad()
    functional.cross_entropy(model(batch[0]), batch[1]).backward()
    functional.cross_entropy(outputs, targets).backward()
    with refused("not formed per example"):
        optimizer.step()
    assert torch.equal(flat(model), flat(net()))


def test_a_batch_of_another_size_is_refused():
    model, _, loader = private()
    inputs, _ = next(iter(loader))
    with refused("must be given the batch that was drawn"):
        model(inputs[:-1])


def test_a_collate_function_that_drops_records_is_refused():
    _, _, loader = private(dataset=Named(), collate=lambda items: unnamed(items[1:] if len(items) > 1 else items))
    with refused("no row for each record"):
        next(iter(loader))


def test_records_that_a_loop_drops_are_missed():
    model, _, loader = private(dataset=Named(), collate=unnamed)
    inputs, _ = next(iter(loader))
    with refused("must be given the batch that was drawn"):
        model(inputs[1:])


def test_a_collate_function_that_reorders_records_is_refused():
    """Sorting by length is usual where sequences are packed: it would clip people at each other's thresholds."""
    _, _, loader = private(dataset=Named(), collate=lambda items: unnamed(sorted(items, key=lambda item: float(item["in"][0]))))
    with refused("collate function mixes"):
        next(iter(loader))


class Remembers(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.inside, self.how, self.calls = net(), how, 0
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x):
        self.calls += 1
        if self.how == "in place":
            self.seen.add_(x.detach().mean(0))
        elif self.how == "replaced":
            self.seen = 0.9 * self.seen + x.detach().mean(0)
        elif self.how == "data":
            self.seen.data += x.detach().mean(0)
        elif self.how == "later" and self.calls > 12:
            self.seen.add_(x.detach().mean(0))
        return self.inside(x)


@pytest.mark.parametrize("how", ["in place", "replaced", "data"])
def test_a_buffer_that_remembers_private_data_is_refused_before_anything_is_released(how):
    model, optimizer, loader = private(Remembers(how))
    before = flat(model)
    with refused("buffer seen changed"):
        train(model, optimizer, loader)
    assert torch.equal(flat(model), before)
    assert optimizer.account().steps == 0


def test_a_buffer_that_begins_to_remember_later_is_refused_too():
    model, optimizer, loader = private(Remembers("later"), planned(steps=40))
    with refused("buffer seen changed"):
        train(model, optimizer, loader)


class Mixes(nn.Module):
    def __init__(self, when: str = "always", share: float = 1.0) -> None:
        super().__init__()
        self.first, self.last, self.when, self.share = nn.Linear(4, 5), nn.Linear(5, 3), when, share

    def forward(self, x):
        x = self.first(x)
        if self.when == "always" or self.training:
            x = x - self.share * x.mean(0)
        return self.last(x)


@pytest.mark.parametrize("when", ["always", "training"])
@pytest.mark.parametrize("share", [1.0, 0.02])
def test_a_module_that_mixes_examples_is_named_before_anything_is_released(when, share):
    model, optimizer, loader = private(Mixes(when, share))
    before = flat(model)
    with refused("self-check.*(first|last).*Nothing was released"):
        train(model, optimizer, loader)
    assert torch.equal(flat(model), before)
    assert optimizer.account().steps == 0


def test_a_module_that_mixes_examples_is_still_refused_when_tried_again():
    model, optimizer, loader = private(Mixes())
    before = flat(model)
    for _ in range(3):
        with refused("self-check"):
            train(model, optimizer, loader)
    assert torch.equal(flat(model), before)


def test_a_mixing_module_is_refused_as_soon_as_a_batch_has_two_examples():
    """A first batch of one, or of nobody, shows nothing; the check must not be over with it."""
    plan = planned("sample", 40, 2)
    found = 0
    for seed in range(200):
        sizes = [len(PoissonSampler(plan, people(), Stream(seed)).draw(step)) for step in range(plan.steps)]
        if sizes[0] > 1 or max(sizes) < 3:
            continue
        found += 1
        model, optimizer, loader = private(Mixes(), plan, seed=seed)
        with refused("self-check"):
            train(model, optimizer, loader)
        assert optimizer.account().steps <= next(i for i, size in enumerate(sizes) if size > 1)
        if found == 3:
            break
    assert found == 3


# -- attacks: orders, interruptions and tricks by which more, twice or bare could get out


def test_thawing_a_frozen_parameter_never_lets_a_bare_gradient_in():
    """The optimizer knows it, the run does not: its gradient would be neither clipped nor noised."""
    model = net()
    model[0].weight.requires_grad_(False)
    frozen = model[0].weight.clone()
    model, optimizer, loader = private(model, planned(steps=6))
    batches = iter(loader)
    take(model, optimizer, next(batches))
    model[0].weight.requires_grad_(True)
    with refused("0.weight"):
        train(model, optimizer, batches)
    assert torch.equal(model[0].weight, frozen)


def test_a_parameter_smuggled_into_the_optimizer_never_moves():
    model, optimizer, loader = private()
    smuggled = nn.Parameter(torch.ones(3))
    optimizer.param_groups[0]["params"].append(smuggled)
    inputs, targets = next(iter(loader))
    optimizer.zero_grad()
    functional.cross_entropy(model(inputs) + smuggled, targets).backward()
    with refused("."):
        optimizer.step()
    assert torch.equal(smuggled, torch.ones(3))


def test_interleaved_iterators_never_count_an_example_twice():
    plan = planned(steps=1, batch=40)
    seen: list[int] = []
    model, optimizer, loader = private(None, plan, max_physical_batch=8)
    begin = loader.run.begin

    def noting(piece):
        begin(piece)
        if piece.number == 0:
            seen.clear()
        seen.extend(piece.indices)

    loader.run.begin = noting
    one, other = iter(loader), iter(loader)
    take(model, optimizer, next(one))
    try:
        for batches in (other, one, other, one, other, one, other, one, other, one):
            take(model, optimizer, next(batches))
    except (OutOfTurn, StopIteration):
        pass
    assert len(seen) == len(set(seen))


def test_two_iterators_over_whole_batches_give_the_one_run():
    model, optimizer, loader = private(None, planned(steps=4))
    one = iter(loader)
    take(model, optimizer, next(one))
    other = iter(loader)
    take(model, optimizer, next(other))
    with refused("anew", OutOfTurn):
        next(one)
    take(model, optimizer, next(other))
    assert train(model, optimizer, loader) == 1
    assert torch.equal(flat(model), trained(None, planned(steps=4)))


def test_a_loop_within_the_loop_takes_the_planned_steps_in_all():
    model, optimizer, loader = private()
    with refused("anew", OutOfTurn):
        for batch in loader:
            take(model, optimizer, batch)
            train(model, optimizer, loader)
    assert optimizer.account().steps == planned().steps
    assert torch.equal(flat(model), trained())


@pytest.mark.parametrize("physical", [None, 3])
@pytest.mark.parametrize("moment", ["drawn", "forward", "backward", "piece"])
def test_a_batch_left_halfway_is_handed_out_again_and_counts_once(moment, physical):
    model, optimizer, loader = private(max_physical_batch=physical)
    batches = iter(loader)
    inputs, targets = next(batches)
    if moment != "drawn":
        loss = functional.cross_entropy(model(inputs), targets)
    if moment in ("backward", "piece"):
        loss.backward()
    if moment == "piece" and physical is not None:
        optimizer.step()
        next(batches)
    train(model, optimizer, loader)
    assert torch.equal(flat(model), trained(max_physical_batch=physical))


class Fails(nn.Linear):
    error: type[BaseException] | None = None

    def forward(self, x):
        if self.error is not None:
            raise self.error
        return super().forward(x)


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("then", ["continued", "released"])
def test_an_interrupted_forward_pass_leaves_the_model_whole(error, then):
    def make():
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            return nn.Sequential(nn.Linear(4, 3), Fails(3, 3))

    model, optimizer, loader = private(make())
    inputs, _ = next(iter(loader))
    model[1].error = error
    with pytest.raises(error):
        model(inputs)
    model[1].error = None
    if then == "continued":
        train(model, optimizer, loader)
        assert torch.equal(flat(model), trained(make()))
    unwrap(model, optimizer)
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_an_interruption_within_the_step_charges_it_or_leaves_it_open():
    for where in ("clipped_sums", "_noisy"):
        model, optimizer, loader = private()
        owner = optimizer.run.engine if where == "clipped_sums" else optimizer.run
        original = getattr(owner, where)
        setattr(owner, where, mock.Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            train(model, optimizer, loader)
        setattr(owner, where, original)
        assert torch.equal(flat(model), flat(net()))
        taken = optimizer.account().steps
        assert taken == (1 if where == "_noisy" else 0)
        assert train(model, optimizer, loader) == planned().steps - taken


def test_the_steps_taken_cannot_be_turned_back():
    model, optimizer, loader = private()
    train(model, optimizer, loader)
    with pytest.raises((AttributeError, sartor.SartorError)):
        optimizer.run.steps = 0
    with refused("done", Exhausted):
        iter(loader)


def test_a_released_run_takes_no_further_step():
    model, optimizer, loader = private(None, planned(steps=5))
    batches = iter(loader)
    take(model, optimizer, next(batches))
    inputs, targets = next(batches)
    functional.cross_entropy(model(inputs), targets).backward()
    unwrap(model, optimizer)
    before = flat(model)
    with refused("."):
        optimizer.step()
    with refused("."):
        next(batches)
    with refused("."):
        iter(loader)
    assert torch.equal(flat(model), before)
    assert optimizer.account().steps == 1, "the account of a run that was ended early says what was spent"


def test_a_model_is_released_only_from_its_own_run():
    mine, of_mine, _ = private()
    other, _, _ = private()
    with refused("."):
        unwrap(other, of_mine)
    for model in (mine, other):
        with refused("already"):
            private(model)


def test_a_stream_serves_one_run():
    """The noise of two runs would be the same, and their difference bare."""
    stream = Stream()
    private(seed=None, stream=stream)
    with refused("stream"):
        private(seed=None, stream=stream)


def test_a_seed_beside_a_stream_is_refused():
    with refused("seed"):
        private(seed=1, stream=Stream())


def test_a_copy_of_the_model_is_no_way_around():
    """A pass through the copy must not count as the pass through the model."""
    model, optimizer, loader = private()
    inputs, targets = next(iter(loader))
    twin = copy.deepcopy(model)
    functional.cross_entropy(twin(inputs), targets).backward()
    with refused(r"backward\(\) before", OutOfTurn):
        optimizer.step()
    with pytest.raises((AttributeError, TypeError, sartor.SartorError)):
        copy.deepcopy(optimizer)


def test_the_whole_loader_cannot_be_copied_to_step_again():
    _, _, loader = private()
    with pytest.raises((TypeError, sartor.SartorError)):
        copy.deepcopy(loader)


@pytest.mark.parametrize("mode", ["eval", "loaded", "optimizer loaded"])
def test_modes_and_loaded_states_change_no_privacy(mode):
    model, optimizer, loader = private()
    start, begun = copy.deepcopy(dict(model.state_dict())), copy.deepcopy(optimizer.state_dict())
    for batch in loader:
        if mode == "eval":
            model.eval()
        take(model, optimizer, batch)
        if mode == "loaded" and optimizer.account().steps == 1:
            model.load_state_dict(start)
        if mode == "optimizer loaded":
            optimizer.load_state_dict(begun)
    assert optimizer.account().steps == planned().steps
    assert torch.equal(flat(model), trained()) is (mode != "loaded")


class Recomputes(nn.Module):
    def __init__(self, reentrant: bool | None) -> None:
        super().__init__()
        self.inside, self.reentrant = net(), reentrant

    def forward(self, x):
        if self.reentrant is None:
            return self.inside(x)
        x = x.clone().requires_grad_(self.reentrant)
        return self.inside[2](recomputed(self.inside[:2], x, use_reentrant=self.reentrant))


@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputing_activations_gives_the_same_model(reentrant):
    assert torch.equal(trained(Recomputes(reentrant)), trained(Recomputes(None)))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_compiled_model_gives_the_same_result(when):
    model = torch.compile(net(), backend="eager") if when == "before" else net()
    model, optimizer, loader = private(model)
    called = torch.compile(model, backend="eager") if when == "after" else model
    train(called, optimizer, loader)
    assert torch.allclose(flat(model), trained(), atol=1e-6)


def test_the_gradients_of_a_batch_cannot_be_read_from_the_model():
    model, optimizer, loader = private()
    for inputs, targets in loader:
        functional.cross_entropy(model(inputs), targets).backward()
        assert all(parameter.grad is None for parameter in model.parameters())
        optimizer.step()


def test_nothing_that_prints_tells_who_was_drawn():
    _, optimizer, loader = private()
    next(iter(loader))
    shown = repr(optimizer.run._piece) + repr(loader) + repr(optimizer) + repr(loader.draws.sampler) + repr(loader.draws)
    assert "indices" not in shown
    assert "clips" not in shown


def test_a_parameter_that_no_example_uses_gets_noise_as_well():
    class Unused(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.spare = net(), nn.Linear(4, 3)

        def forward(self, x):
            return self.used(x)

    model, optimizer, loader = private(Unused())
    before = model.spare.weight.detach().clone()
    train(model, optimizer, loader)
    assert bool((model.spare.weight != before).all())


def test_per_example_sums_of_the_engine_are_those_of_the_run():
    """What the run adds noise to is what the engine says, on the drawn records."""
    plan = everybody()
    x, w = torch.randn(6, 3, generator=torch.Generator().manual_seed(1)), torch.ones(6, 2)
    model = nn.Linear(3, 2)
    total = sum_of_six(lambda: copy.deepcopy(model), x, w, plan)
    engine = PerExample(model)
    with engine.batch(torch.tensor(plan.clips[plan.groups_of(SIX)], dtype=torch.float32)):
        (model(x) * w).sum().backward()
        sums = engine.clipped_sums()
    assert torch.allclose(total, torch.cat([value.flatten().double() for value in sums.values()]), atol=1e-6)


def test_default_collation_takes_records_of_any_shape():
    class Pairs(Dataset):
        def __len__(self):
            return HOLDERS

        def __getitem__(self, i):
            return records()[i]

    assert torch.equal(trained(dataset=Pairs(), collate=default_collate), trained(dataset=Pairs()))


class Looped(nn.Module):
    """Calls layers once for each example, and mixes them afterwards, in training alone."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = nn.Identity(), nn.ReLU(), nn.Linear(4, 3)

    def forward(self, x):
        x = torch.stack([self.second(self.first(row)) for row in x])
        return self.last(x + 0.5 * x.roll(1, 0) if self.training else x)


def test_a_model_that_mixes_examples_behind_a_loop_over_them_is_refused():
    data = TensorDataset(torch.randn(40, 4), torch.randint(0, 3, (40,)))
    budgets = sartor.Budgets.from_groups([(2.0, 40)], delta=1e-2)
    with pytest.raises(sartor.SartorError, match="mixes examples"):
        sartor.fit(Looped(), data, budgets, sartor.plan(budgets, steps=3, batch=20), progress=False)


class _Rolled(torch.autograd.Function):
    """The identity, whose gradients go to the neighbours."""

    @staticmethod
    def forward(context, x):
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        return gradient + gradient.roll(1, 0)


class InUnits(nn.Module):
    """A model that works in a unit of its own; the loop brings what it puts out back to the usual size."""

    def __init__(self, unit, way):
        super().__init__()
        self.layer, self.unit, self.way = nn.Linear(4, 3, bias=False), unit, way

    def forward(self, x):
        if self.way == "outputs":
            x = x - x.mean(0)
        x = self.layer(x * self.unit)
        return _Rolled.apply(x) if self.way == "gradients" else x


def stepped_in(unit, way):
    data = TensorDataset(torch.randn(40, 4), torch.randn(40, 3))
    budgets = sartor.Budgets.from_groups([(2.0, 40)], delta=1e-2)
    model = InUnits(unit, way)
    model, optimizer, loader = sartor.make_private(
        model, torch.optim.SGD(model.parameters(), lr=0.1), data, budgets, sartor.plan(budgets, steps=3, batch=20)
    )
    for x, y in loader:
        optimizer.zero_grad()
        functional.mse_loss(model(x) / unit, y).backward()
        optimizer.step()
    return optimizer.account().steps


@pytest.mark.parametrize("unit", [1.0, 1e-9, 1e9])
def test_mixing_is_seen_in_whatever_unit_a_model_works(unit):
    for way, match in (("outputs", "mixes examples"), ("gradients", "naive loop")):
        with pytest.raises(sartor.SartorError, match=match):
            stepped_in(unit, way)
    assert stepped_in(unit, None) == 3


@pytest.mark.parametrize("kind", ["convolution", "own layer"])
def test_a_step_inside_of_autocast_passes_the_self_check(kind):
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.inside, self.gain = nn.Linear(4, 4), nn.Parameter(torch.ones(4))

        def forward(self, x):
            return self.inside(x) * self.gain

    if kind == "convolution":
        model, x = nn.Sequential(nn.Conv1d(1, 3, 2), nn.Flatten(), nn.Linear(9, 3)), torch.randn(40, 1, 4)
    else:
        model, x = nn.Sequential(nn.Linear(4, 4), Own(), nn.Linear(4, 3)), torch.randn(40, 4)
    data = TensorDataset(x, torch.randint(0, 3, (40,)))
    budgets = sartor.Budgets.from_groups([(2.0, 40)], delta=1e-2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    plan = sartor.plan(budgets, steps=3, batch=20)
    model, optimizer, loader = sartor.make_private(model, optimizer, data, budgets, plan, reduction="sum")
    for inputs, targets in loader:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            nn.functional.cross_entropy(model(inputs).float(), targets, reduction="sum").backward()
            optimizer.step()
    assert optimizer.account().steps == 3


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_in_half_precision_a_drawn_holder_moves_nobody_elses_rounding(reduction):
    """Of a mean loss it does, as it divides everybody's gradient by another number of people: such a step is refused."""
    model = nn.Sequential(nn.Linear(4, 16), nn.LayerNorm(16), nn.Tanh(), nn.Linear(16, 3))
    generator = torch.Generator().manual_seed(0)
    inputs, targets = torch.randn(1000, 4, generator=generator), torch.randint(0, 3, (1000,), generator=generator)
    engine, sums = PerExample(model), []
    for rows in (1000, 999):
        with engine.batch(torch.ones(rows)):
            with torch.autocast("cpu", torch.bfloat16):
                outputs = model(inputs[:rows])
            functional.cross_entropy(outputs.float(), targets[:rows], reduction=reduction).backward()
            first = engine.gradients_of([999])[0] if rows == 1000 else {n: torch.zeros_like(p) for n, p in model.named_parameters()}
            found = engine.clipped_sums(float(rows) if reduction == "mean" else 1.0)
        norm = math.sqrt(sum(float(g.double().square().sum()) for g in first.values())) * (rows if reduction == "mean" else 1)
        scale = (rows if reduction == "mean" else 1) * min(1.0, 1 / norm) if norm else 0.0
        sums.append(torch.cat([(found[n].double() - scale * first[n].double()).flatten() for n in found]))
    engine.detach()
    moved = float((sums[0] - sums[1]).norm())
    assert moved > 5e-3 if reduction == "mean" else moved < 1e-3
    model, optimizer, loader = private(reduction=reduction)
    batch, labels = next(iter(loader))
    with torch.autocast("cpu", torch.bfloat16):
        outputs = model(batch)
    functional.cross_entropy(outputs.float(), labels, reduction=reduction).backward()
    if reduction == "sum":
        optimizer.step()
        return
    with refused("in half precision a mean loss"):
        optimizer.step()
    assert optimizer.account().steps == 0


def test_a_scheduler_follows_steps_however_many_pieces_a_batch_has():
    """OneCycleLR refuses a step more than it was made for, which it would be given if it followed the pieces."""
    ways = []
    for pieces in (None, 3):
        model, optimizer, loader = private(plan=planned(steps=6), max_physical_batch=pieces)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.5, total_steps=6 + 1)
        calls, lr = 0, []
        for batch in loader:
            take(model, optimizer, batch)
            calls += 1
            if optimizer.took_step:
                scheduler.step()
                lr.append(scheduler.get_last_lr()[0])
        assert len(lr) == 6
        assert calls == 6 if pieces is None else calls > 6
        ways.append((lr, flat(model)))
    assert ways[0][0] == ways[1][0]
    assert torch.allclose(ways[0][1], ways[1][1], atol=1e-5)
