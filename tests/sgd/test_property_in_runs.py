"""Runs test the property: before anything is charged, in their first batch and in some drawn at random."""

import warnings
from collections import UserDict

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset, TensorDataset, default_collate

import sartor
from sartor.sgd.check import Unchecked

CLASSES, SIZE = 3, 60
MIXES = r"mixes examples|depends on the others"
MEMORY = r"counts, remembers|when it is asked again"


def numbers(size=SIZE):
    generator = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(size, 4, generator=generator), torch.randint(0, CLASSES, (size,), generator=generator))


def each(outputs, targets):
    return functional.cross_entropy(outputs, targets, reduction="none")


def by_maximum(items):
    inputs, targets = default_collate(items)
    return inputs / inputs.abs().max(), targets


def over_the_batch(outputs, targets):
    return each(outputs, targets) / targets.float().mean()


class Moving:
    """Class weights from a moving average."""

    def __init__(self):
        self.seen = torch.ones(CLASSES) / CLASSES

    def __call__(self, outputs, targets):
        self.seen = 0.9 * self.seen + 0.1 * functional.one_hot(targets, CLASSES).float().mean(0)
        return each(outputs, targets) / self.seen[targets]


class Later:
    """Mixes once it was asked many times."""

    asked = 0

    def __call__(self, outputs, targets):
        self.asked += 1
        return each(outputs, targets) * (1.0 if self.asked < 100 else 1 + targets.float().mean())


def budgets_and_plan(steps=3, size=SIZE):
    budgets = sartor.Budgets.from_groups([(2.0, size // 2), (8.0, size - size // 2)], delta=1e-2)
    return budgets, sartor.plan(budgets, steps=steps, batch=20, clip=0.1)


def fit(model=None, data=None, *, steps=3, **options):
    data = numbers() if data is None else data
    options = {"lr": 0.1, "progress": False, "seed": 3, **options}
    return sartor.fit(nn.Linear(4, CLASSES) if model is None else model, data, *budgets_and_plan(steps, len(data)), **options)


def loop(model=None, data=None, *, steps=3, between=lambda step: None, **options):
    data = numbers() if data is None else data
    model = nn.Linear(4, CLASSES) if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = sartor.make_private(model, optimizer, data, *budgets_and_plan(steps, len(data)), seed=3, **options)
    for step, (inputs, targets) in enumerate(loader):
        functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        between(step)
    return optimizer.account()


@pytest.mark.parametrize(
    "options", [{"collate": by_maximum}, {"loss": over_the_batch}, {"loss": Moving()}], ids=["collate", "loss", "moving average"]
)
def test_fit_refuses_before_a_step_is_charged(options):
    model = nn.Linear(4, CLASSES)
    begun = [value.clone() for value in model.parameters()]
    with pytest.raises(sartor.SartorError, match=f"{MIXES}|{MEMORY}"):
        fit(model, callbacks=[lambda progress: pytest.fail("a step was taken")], **options)
    assert all(torch.equal(one, two) for one, two in zip(begun, model.parameters(), strict=True))
    assert fit(model).steps == 3  # nothing of the refused run is left on it


def test_a_loop_with_its_loss_is_tested_like_fit():
    with pytest.raises(sartor.SartorError, match=MIXES):
        loop(loss=over_the_batch)
    assert loop(loss=each).steps == 3


def test_a_loop_without_its_loss_has_its_rows_compared():
    with pytest.raises(sartor.SartorError, match="mixes examples"):
        loop(collate=by_maximum)


def test_a_loop_may_be_left_unchecked():
    assert loop(collate=by_maximum, check=False).steps == 3


def test_what_begins_to_mix_later_is_refused_in_a_batch_drawn_at_random():
    seen = []
    with pytest.raises(sartor.SartorError, match=f"{MIXES}|{MEMORY}"):
        fit(steps=1500, loss=Later(), callbacks=[lambda progress: seen.append(progress.account().steps)])
    assert seen
    assert seen[-1] == len(seen)  # charged steps stay charged


@pytest.mark.parametrize("physical", [1, 2])
def test_memory_between_pieces_of_a_batch_is_seen(physical):
    class Remembers(nn.Module):
        memory = 0.0

        def forward(self, x):
            self.memory = 0.5 * self.memory + 0.5 * x.detach().mean()
            return x + self.memory

    with pytest.raises(sartor.SartorError, match="counts, remembers"):
        fit(nn.Sequential(Remembers(), nn.Linear(4, CLASSES)), execution=sartor.Execution(max_physical_batch=physical))


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.own, self.common = nn.Linear(4, CLASSES), nn.Linear(4, CLASSES)

    def forward(self, x, row):
        return self.common(row) if x is None else self.own(x) + self.common(row)


@pytest.mark.parametrize("beside", [True, False])
def test_a_model_that_is_fed_one_row_for_all_is_refused(beside):
    model = Two()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = sartor.make_private(model, optimizer, numbers(), *budgets_and_plan(), seed=3)
    inputs, targets = next(iter(loader))
    with pytest.raises(sartor.SartorError, match="may be made of them"):
        functional.cross_entropy(model(inputs if beside else None, inputs.mean(0, keepdim=True)), targets).backward()


# honest runs, without a word


class Curriculum(Dataset):
    """A public setting that rises with the step."""

    def __init__(self):
        self.data, self.level = numbers(), 0.1

    def __len__(self):
        return len(self.data)

    def __getitem__(self, i):
        x, y = self.data[i]
        return self.level * x, y

    def rise(self, step):
        self.level = 0.1 + 0.03 * step


@pytest.mark.few(1)
@pytest.mark.parametrize("workers", [0, 1])
def test_public_settings_may_follow_the_step(workers):
    data = Curriculum()
    assert fit(data=data, steps=20, callbacks=[lambda p: data.rise(p.step)], execution=sartor.Execution(workers=workers)).steps == 20
    data = Curriculum()
    assert loop(data=data, steps=20, between=data.rise, workers=workers).steps == 20


class Annealed(nn.Module):
    """A temperature that a callback lowers, in a buffer."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(4, CLASSES)
        self.register_buffer("temperature", torch.ones(()))

    def forward(self, x):
        return self.last(x) / self.temperature


def test_a_schedule_and_a_counter_that_a_callback_moves_train():
    model = Annealed()
    result = fit(
        model,
        steps=10,
        scheduler=lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=10),
        callbacks=[lambda progress: model.temperature.mul_(0.9)],
    )
    assert result.steps == 10


class Encoding(UserDict):
    """What tokenizers return: a mapping that is no dictionary."""


class Reads(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop, self.last = nn.Dropout(0.3), nn.Linear(4, CLASSES)

    def forward(self, given):
        return self.last(self.drop(given["x"]))


def encoded(items):
    inputs, targets = default_collate(items)
    return Encoding(x=inputs), targets


def test_a_tokenizers_mapping_and_dropout_train():
    assert fit(Reads(), collate=encoded).steps == 3


def test_a_test_changes_nothing_that_is_drawn_for_the_model():
    """With the test and without, a seeded loop gives the same model."""
    found = []
    for check in (True, False):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, CLASSES))
        loop(model, loss=each, check=check)
        found.append([value.detach().clone() for value in model.parameters()])
    assert all(torch.equal(one, two) for one, two in zip(*found, strict=True))


def test_a_data_set_with_a_generator_of_its_own_trains_and_is_told():
    class Noisy(Curriculum):
        generator = torch.Generator().manual_seed(0)

        def __getitem__(self, i):
            x, y = super().__getitem__(i)
            return x + torch.randn(4, generator=self.generator), y

    for train in (fit, loop):
        with pytest.warns(Unchecked, match="the data set draws"):
            assert train(data=Noisy()).steps == 3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fit(data=Curriculum()).steps == 3
