"""How runs end: once, and at the step from which nothing would be learned; and what may not be called public."""

from collections import OrderedDict

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

import sartor
from sartor.sgd import Exhausted, NotFinite
from sartor.sgd.public import refuse_protected

HOLDERS, STEPS = 60, 6


def budgets():
    return sartor.Budgets(np.repeat([1.0, 4.0], HOLDERS // 2), delta=1e-3)


def planned():
    return sartor.plan(budgets(), steps=STEPS, batch=15, accountant="rdp")


def records(seed=3):
    generator = torch.Generator().manual_seed(seed)
    return TensorDataset(torch.randn(HOLDERS, 4, generator=generator), torch.randint(0, 2, (HOLDERS,), generator=generator))


def linear():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return nn.Linear(4, 2)


def fitted(folder=None, model=None, *, every=None, resume=False, **settings):
    checkpoints = None if folder is None else sartor.Checkpoints(folder, every=every, resume=resume)
    settings = {"lr": 0.5, "momentum": 0.9, "progress": False, "checkpoints": checkpoints, **settings}
    return sartor.fit(linear() if model is None else model, records(), budgets(), planned(), **settings)


def private(plan):
    model = linear()
    return sartor.make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), records(), budgets(), plan)


def test_a_run_that_is_over_gives_its_end_again_and_takes_no_step(tmp_path):
    first = fitted(tmp_path, evaluation=sartor.Evaluation(records(4), every=2))
    steps = []
    again = fitted(tmp_path, resume=True, lr=99.0, evaluation=sartor.Evaluation(records(4), every=2), callbacks=[steps.append])
    assert steps == []
    assert torch.equal(again.model.weight, first.model.weight)
    assert again.account.to_json() == first.account.to_json()
    assert again.history == first.history
    with pytest.raises(sartor.SartorError, match="holds a run already"):
        fitted(tmp_path)


@pytest.mark.parametrize(
    "settings", [{}, {"evaluation": sartor.Evaluation(records(4), every=1, patience=2), "lr": 1e-9}], ids=["whole", "early"]
)
def test_of_a_run_that_is_over_the_model_is_kept_and_no_optimizer(tmp_path, settings):
    result = fitted(tmp_path, every=1, **settings)
    assert result.stopped_early == bool(settings)
    held = load_file(next(tmp_path.glob("*.safetensors")))
    assert set(held) == {"model/weight", "model/bias"}


# --- a model that is not finite ---


def test_a_model_that_is_not_finite_ends_the_run_at_that_step(tmp_path):
    with pytest.raises(NotFinite, match=f"no longer finite after step 1 of {STEPS}.*smaller learning rate") as caught:
        fitted(tmp_path, lr=3e38, momentum=0.0, model=_steep(), seed=1)
    account = caught.value.account
    assert account.steps == 1
    assert np.array_equal(account.spent, planned().spent_after(1))
    with pytest.raises(NotFinite, match="after step 1") as again:
        fitted(tmp_path, resume=True, model=_steep())
    assert again.value.account.to_json() == account.to_json()


def _steep():
    """A model so near to the end of single precision that one large step leaves it."""
    model = linear()
    with torch.no_grad():
        model.bias.fill_(3.4e38)
    return model


@pytest.mark.parametrize("kind", [lambda p: torch.optim.SGD(p, lr=1e39), lambda p: torch.optim.Adam(p, lr=1e38)], ids=["sgd", "adam"])
def test_a_rate_beyond_single_precision_ends_the_run_in_one_sentence(kind):
    with pytest.raises(NotFinite, match="no longer finite"):
        fitted(optimizer=kind)


def test_a_loop_of_ones_own_ends_there_too():
    model, optimizer, loader = private(planned())
    taken = 0
    with pytest.raises(NotFinite):
        for inputs, targets in loader:
            nn.functional.cross_entropy(model(inputs), targets).backward()
            if taken == 2:
                optimizer.param_groups[0]["lr"] = float("inf")
            optimizer.step()
            taken += 1
    assert optimizer.account().steps == 3
    assert len(loader) == 0
    with pytest.raises(Exhausted):
        optimizer.step()


def test_large_parameters_that_are_finite_train_on():
    """Their sum alone overflows."""
    model = nn.Sequential(OrderedDict(linear=nn.Linear(4, 2)))
    with torch.no_grad():
        model.linear.bias.fill_(3e38)
    assert fitted(model=model, momentum=0.0).steps == STEPS


class _Overflowing(nn.Module):
    """Finite parameters, and no numbers as outputs once they have moved."""

    def __init__(self):
        super().__init__()
        self.linear = linear()
        self.start = self.linear.weight.detach().clone()

    def forward(self, inputs):
        return self.linear(inputs) + (torch.nan if not self.training and not torch.equal(self.linear.weight, self.start) else 0.0)


def test_a_model_without_numbers_for_public_rows_ends_the_run(tmp_path):
    with pytest.raises(NotFinite, match=r"after step 2 .*NaN") as caught:
        fitted(tmp_path, model=_Overflowing(), evaluation=sartor.Evaluation(records(4), every=2))
    assert caught.value.account.steps == 2


# --- what is public ---


class Made(Dataset):
    """The training data as a class of one's own, which may be made twice, with labels that are numbers of Python's."""

    def __init__(self):
        self.asked = []

    def __len__(self):
        return HOLDERS

    def __getitem__(self, i):
        self.asked.append(i)
        x, y = records()[i]
        return x, int(y)


def strangers():
    inputs, targets = records().tensors
    return TensorDataset(inputs + 1, targets)


@pytest.mark.parametrize(
    "public",
    [
        lambda data: data,
        lambda data: records(),
        lambda data: Subset(data, [3, 59]),
        lambda data: Subset(data, [-1]),
        lambda data: TensorDataset(*(tensor[:20] for tensor in data.tensors)),
        lambda data: TensorDataset(*(tensor.flip(0).clone() for tensor in data.tensors)),
        lambda data: Subset(Subset(data, range(30)), [3]),
        lambda data: ConcatDataset([strangers(), Subset(data, [0])]),
        lambda data: Made(),
        lambda data: ConcatDataset([strangers(), Made()]),
    ],
    ids=[
        "the training data",
        "a copy",
        "some of them",
        "one counted from the end",
        "a slice",
        "another order",
        "part of a part",
        "a chain",
        "own class",
        "own in a chain",
    ],
)
def test_training_data_are_refused_as_public(public):
    data = records()
    with pytest.raises(sartor.SartorError, match="trained on under a budget"):
        sartor.fit(linear(), data, budgets(), planned(), evaluation=sartor.Evaluation(public(data)), progress=False)


def test_parts_of_one_data_set_are_told_apart_by_their_rows():
    """Those of a data set of one's own too, made twice and drawn at random; and rows beside those that are trained on are public."""
    both = ConcatDataset([records(), strangers()])
    train = Subset(both, range(HOLDERS))
    for public in (both, Subset(both, [HOLDERS, 7]), Subset(Made(), range(30))):
        with pytest.raises(sartor.SartorError, match="trained on under a budget"):
            sartor.fit(linear(), train, budgets(), planned(), evaluation=sartor.Evaluation(public), progress=False)
    for data, public in ((train, Subset(both, range(HOLDERS, 2 * HOLDERS))), (Made(), strangers())):
        assert 0 <= sartor.fit(linear(), data, budgets(), planned(), evaluation=sartor.Evaluation(public), progress=False).accuracy <= 1


def test_looking_at_records_is_bounded_and_leaves_the_random_numbers_alone():
    class Large(Made):
        def __len__(self):
            return 50 * HOLDERS

        def __getitem__(self, i):
            return super().__getitem__(i % HOLDERS)

    counting = Large()
    torch.manual_seed(0)
    refuse_protected(strangers(), counting, sartor.Budgets(np.ones(50 * HOLDERS), delta=1e-5))
    drawn = torch.rand(())
    torch.manual_seed(0)
    assert torch.equal(drawn, torch.rand(()))
    assert len(counting.asked) <= 2 * 2_000


def test_records_that_strangers_share_may_be_tested_on():
    """Few features: whoever is not trained on has them as well."""
    generator = torch.Generator().manual_seed(1)
    few = [TensorDataset(torch.randint(0, 2, (HOLDERS, 4), generator=generator).float(), torch.zeros(HOLDERS).long()) for _ in range(2)]
    refuse_protected(few[0], few[1], budgets())


def test_records_that_are_public_by_their_budget_may_be_tested_on():
    data = records()
    people = sartor.Budgets(np.repeat([1.0, np.inf], HOLDERS // 2), delta=1e-3)
    plan = sartor.plan(people, steps=2, batch=15, accountant="rdp")
    result = sartor.fit(linear(), data, people, plan, evaluation=sartor.Evaluation(Subset(data, range(30, 60))), progress=False)
    assert 0 <= result.accuracy <= 1
