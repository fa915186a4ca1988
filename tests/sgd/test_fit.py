"""`fit`: one call that trains under a plan, looks at public data alone, and says what it cost."""

import copy
import dataclasses
import json
from unittest import mock

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset, TensorDataset

import sartor
from sartor.sgd import evaluate
from sartor.sgd import run as running
from sartor_testing.private_runs import HOLDERS, flat, net, people, planned, records, trained, without_noise

STEPS = 6


def fitted(model=None, dataset=None, **settings):
    settings = {"lr": 0.5, "seed": 1, "progress": False, **settings}
    return sartor.fit(net() if model is None else model, dataset or records(), people(), planned("scale", STEPS), **settings)


def test_fit_is_the_loop_around_make_private():
    assert torch.allclose(flat(fitted().model), trained(None, planned("scale", STEPS), lr=0.5), atol=1e-6)


LOSSES = {
    "mean": nn.CrossEntropyLoss(),
    "sum": nn.CrossEntropyLoss(reduction="sum"),
    "none": nn.CrossEntropyLoss(reduction="none"),
    "function": functional.cross_entropy,
    "function of each": lambda outputs, targets: functional.cross_entropy(outputs, targets, reduction="none"),
}


@pytest.mark.parametrize("loss", LOSSES)
def test_however_a_loss_reduces_the_model_is_the_same(loss):
    assert torch.allclose(flat(fitted(loss=LOSSES[loss]).model), flat(fitted().model), atol=1e-6)


def test_a_loss_of_the_whole_batch_that_cannot_be_asked_for_each_is_refused():
    with pytest.raises(sartor.SartorError, match="one number per example"):
        fitted(loss=lambda outputs, targets: functional.cross_entropy(outputs, targets))


@pytest.mark.parametrize("settings", [{"weight": torch.tensor([1.0, 1.0, 10.0])}, {"ignore_index": 2}], ids=["weights", "ignored"])
def test_a_loss_that_divides_by_what_others_are_does_not_let_one_person_move_another(settings):
    """The mean of weighted or ignored targets divides by a sum over the batch: one label would scale everybody's gradient.

    Everybody is drawn in one step without noise, and one person's label changes: the sum moves by that person's gradient, and no other.
    """
    six = sartor.Budgets(epsilon=[2.0, 1.0, 4.0, 4.0, 1.0, 2.0], delta=1e-3)
    plan = sartor.plan(six, "scale", steps=1, batch=6, clip=100.0)
    inputs = torch.randn(6, 4, generator=torch.Generator().manual_seed(1))
    sums = []
    for last in (0, 2):
        model = net()
        start = flat(model)
        data = TensorDataset(inputs, torch.tensor([0, 1, 0, 1, 0, last]))
        try:
            with mock.patch.object(running, "normal", without_noise):
                sartor.fit(model, data, six, plan, lr=1.0, loss=nn.CrossEntropyLoss(**settings), seed=1, progress=False)
        except sartor.SartorError:
            return  # a refusal with the reason is as good
        sums.append((start - flat(model)).double() * plan.batch)
    weight = settings.get("weight", torch.ones(3))
    alone = []
    for label in (0, 2):
        model = net()
        each = functional.cross_entropy(model(inputs[5:]), torch.tensor([label]), weight=weight, reduction="sum")
        alone.append(torch.cat([g.flatten() for g in torch.autograd.grad(each, list(model.parameters()))]).double())
    if "ignore_index" in settings:
        alone[1] = torch.zeros_like(alone[1])
    assert torch.allclose(sums[1] - sums[0], alone[1] - alone[0], atol=1e-3)


@pytest.mark.parametrize("kind", ["sgd", "adam", lambda p: torch.optim.AdamW(p, lr=0.01)])
def test_optimizers_by_name_or_function(kind):
    result = fitted(optimizer=kind, momentum=0.5)
    assert result.steps == STEPS
    assert not torch.equal(flat(result.model), flat(net()))


def test_an_unknown_optimizer_is_refused():
    with pytest.raises(sartor.SartorError, match='"sgd", "adam" or a function'):
        fitted(optimizer="lion")


def test_a_scheduler_steps_with_the_optimizer():
    rates = []

    def scheduler(optimizer):
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
        original = schedule.step

        def step():
            original()
            rates.append(optimizer.param_groups[0]["lr"])

        schedule.step = step
        return schedule

    fitted(scheduler=scheduler, execution=sartor.Execution(max_physical_batch=3))
    assert rates == [0.5, 0.25, 0.25, 0.125, 0.125, 0.0625]


def test_history_is_of_public_data():
    public = TensorDataset(torch.randn(50, 4), torch.randint(0, 3, (50,)))
    result = fitted(evaluation=sartor.Evaluation(public, every=2))
    assert [entry["step"] for entry in result.history] == [2, 4, 6]
    final = evaluate(result.model, public)
    assert result.history[-1] == {"step": 6, **final}
    assert result.accuracy == final["accuracy"]
    assert fitted(evaluation=sartor.Evaluation(public, every=4)).history[-1]["step"] == STEPS
    assert torch.equal(flat(result.model), flat(fitted().model)), "looking at public data changes nothing"


def test_without_public_data_there_is_no_figure():
    result = fitted()
    assert result.accuracy is None
    assert result.history == []
    assert result.sensitive is None
    assert not result.stopped_early


def test_a_run_stops_early_by_public_data_alone():
    result = fitted(evaluation=sartor.Evaluation(records(50), every=1, patience=2), lr=1e-9)
    assert result.stopped_early
    assert result.steps == result.account.steps == 3
    assert np.array_equal(result.account.spent, planned("scale", STEPS).spent_after(3))
    with pytest.raises(sartor.SartorError, match="public"):
        fitted(evaluation=sartor.Evaluation(patience=2))
    with pytest.raises(sartor.SartorError, match="every"):
        fitted(evaluation=sartor.Evaluation(records(50), patience=2))


def test_patience_where_there_is_no_accuracy_follows_the_loss():
    """Targets that are numbers have no accuracy: a run that gets better must go on."""
    inputs = records().tensors[0]
    data = TensorDataset(inputs, inputs[:, :3] * 3)
    other = TensorDataset(*(-tensor[:40] for tensor in data.tensors))
    result = fitted(nn.Linear(4, 3), data, loss=nn.MSELoss(), evaluation=sartor.Evaluation(other, every=1, patience=1), lr=0.01)
    losses = [entry["loss"] for entry in result.history]
    best = next((i for i in range(1, len(losses)) if losses[i] >= losses[i - 1]), STEPS - 1)
    assert result.steps == best + 1


def test_callbacks_see_every_step_and_nothing_private():
    seen = []
    fitted(
        callbacks=[lambda progress: seen.append((progress.step, progress.steps, progress.account().steps))],
        execution=sartor.Execution(max_physical_batch=4),
    )
    assert seen == [(step, STEPS, step) for step in range(1, STEPS + 1)]


def test_a_callback_may_look_at_the_model_without_changing_the_run():
    kept = []

    def look(progress):
        evaluate(progress.model, records())
        kept.append(copy.deepcopy(progress.model))

    assert torch.equal(flat(fitted(callbacks=[look]).model), flat(fitted().model))
    fitted(kept[0])


def test_a_callback_that_fails_leaves_a_plain_model():
    model = net()

    def fail(progress):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fitted(model, callbacks=[fail])
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    fitted(model)


def unchecked(**values) -> sartor.Execution:
    """A way to carry steps out that only `make_private` refuses, when hooks are on the model."""
    found = sartor.Execution()
    for name, value in values.items():
        object.__setattr__(found, name, value)
    return found


@pytest.mark.parametrize("values", [{"max_physical_batch": 0}, {"max_physical_batch": "much"}, {"noise_draws": 0}, {"workers": -1}])
def test_a_way_to_carry_steps_out_that_there_is_not_is_refused(values):
    with pytest.raises(sartor.SartorError, match="or more"):
        sartor.Execution(**values)


@pytest.mark.parametrize(
    "wrong",
    [{"scheduler": lambda optimizer: 1 / 0}, {"execution": unchecked(max_physical_batch=0)}, {"optimizer": lambda p: 1 / 0}],
)
def test_whatever_fails_before_the_first_step_the_model_can_be_used_again(wrong):
    model = net()
    with pytest.raises((ZeroDivisionError, sartor.SartorError)):
        fitted(model, **wrong)
    assert torch.equal(flat(fitted(model).model), flat(fitted().model))


def test_figures_on_private_data_are_given_only_when_asked_for():
    result = fitted(evaluation=sartor.Evaluation(sensitive=True))
    groups = planned("scale", STEPS).groups_of(people())
    inputs, targets = records().tensors
    with torch.no_grad():
        each = functional.cross_entropy(result.model(inputs), targets, reduction="none").numpy()
        right = (result.model(inputs).argmax(1) == targets).numpy()
    for group in range(4):
        assert result.sensitive.loss[group] == pytest.approx(each[groups == group].mean(), rel=1e-5)
        assert result.sensitive.accuracy[group] == pytest.approx(right[groups == group].mean())
    for figures in (repr(result), repr(result.sensitive)):
        assert "array" not in figures
    assert result.model.training


def test_a_seed_makes_a_run_that_says_it_is_not_private():
    seeded, unseeded = fitted(), fitted(seed=None)
    assert torch.equal(flat(seeded.model), flat(fitted().model))
    assert seeded.account.to_json()["private"] is False
    assert unseeded.account.to_json()["private"] is True
    assert "not private" in str(seeded.account)
    assert "not private" not in str(unseeded.account)
    assert not torch.equal(flat(unseeded.model), flat(fitted(seed=None).model))


def test_the_account_merges_small_groups():
    epsilon = [1.0] * 20 + [2.0] * 3 + [3.0] * 4 + [8.0] * 33
    budgets = sartor.Budgets(epsilon=epsilon, delta=1e-3)
    plan = sartor.plan(budgets, "scale", steps=4, batch=20)
    result = sartor.fit(net(), records(), budgets, plan, progress=False, callbacks=[])
    document = json.loads(json.dumps(result.account.to_json()))
    assert document["steps"] == document["planned_steps"] == 4
    assert sum(group["holders"] for group in document["groups"]) == HOLDERS
    assert all(group["holders"] >= 10 for group in document["groups"])
    assert len(document["groups"]) < 4
    shown = [group["spent"] for group in document["groups"] if not isinstance(group["spent"], list)]
    assert all(spent <= 8.0 for spent in shown)


class Pictures(Dataset):
    def __init__(self, more=0.0):
        self.more = more

    def __len__(self):
        return HOLDERS

    def __getitem__(self, i):
        return {"x": records()[i][0] + self.more, "y": records()[i][1]}


def pairs(items):
    return torch.stack([item["x"] for item in items]), torch.stack([item["y"] for item in items])


def test_public_data_are_collated_like_the_private_ones():
    result = fitted(dataset=Pictures(), collate=pairs, evaluation=sartor.Evaluation(Pictures(1.0), every=2, sensitive=True))
    inputs, targets = records().tensors
    assert result.accuracy == evaluate(result.model, TensorDataset(inputs + 1, targets))["accuracy"]


def test_records_that_are_not_pairs_are_refused():
    with pytest.raises(sartor.SartorError, match="pairs of input and target"):
        fitted(dataset=TensorDataset(torch.zeros(HOLDERS, 4)))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: sartor.Evaluation(every=0), "every must be a whole number of 1 or more"),
        (lambda: sartor.Checkpoints("run", every=0), "every must be a whole number of 1 or more"),
        (lambda: sartor.Evaluation(records(50), every=1, patience=0), "patience must be a whole number of 1 or more"),
        (lambda: sartor.Evaluation(every=1, patience=2), "needs public data"),
    ],
)
def test_settings_that_make_no_sense_are_refused(make, reason):
    with pytest.raises(sartor.SartorError, match=reason):
        make()


@pytest.mark.parametrize(
    "values", [sartor.Evaluation(), sartor.Checkpoints("run"), sartor.Execution()], ids=lambda value: type(value).__name__
)
def test_settings_are_fixed_once_they_are_made(values):
    with pytest.raises(dataclasses.FrozenInstanceError):
        values.every = 2


def test_nothing_is_evaluated_or_kept_unless_it_was_asked_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert fitted().history == []
    assert list(tmp_path.iterdir()) == []


def test_modes_of_layers_are_as_they_were():
    model = nn.Sequential(nn.Linear(4, 5), nn.Dropout(0.5), nn.Linear(5, 3))
    model[1].eval()
    fitted(model, evaluation=sartor.Evaluation(records(50), every=2))
    assert [module.training for module in model] == [True, False, True]


def test_a_run_prints_nothing(capfd):
    fitted(progress=True)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("ignored", [False, True])
def test_accuracy_of_sequences_is_told_position_by_position(ignored):
    """Outputs of three dimensions, as cross entropy has them: (examples, classes, positions)."""

    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, x):
            return self.layer(x).transpose(1, 2)

    torch.manual_seed(0)
    model, x = Tagger(), torch.randn(20, 5, 3)
    found = model(x).argmax(1)
    targets = torch.where(torch.rand(20, 5) < 0.3, 1 - found, found)
    right = (targets == found).double().mean(1)
    if ignored:
        targets[:, 0] = -100
        targets[3] = -100  # nothing to find in this one
        right = (targets == found)[:, 1:].double().mean(1)[torch.arange(20) != 3]
    assert evaluate(model, torch.utils.data.TensorDataset(x, targets))["accuracy"] == pytest.approx(float(right.mean()))


def test_accuracy_that_cannot_be_told_is_said():
    data = torch.utils.data.TensorDataset(torch.randn(20, 5, 3), torch.randint(0, 2, (20, 5)))
    with pytest.warns(sartor.NoAccuracy, match="second dimension"):
        assert np.isnan(
            evaluate(nn.Linear(3, 2), data, loss=lambda outputs, targets: (outputs.sum(2) - targets).square().mean(1))["accuracy"]
        )
