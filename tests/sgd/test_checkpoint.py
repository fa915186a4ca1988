"""Checkpoints: a run that goes on is the rest of the same run, charged on; who else's it is says so, and what may change may change."""

import functools
import json
import os
import random
import signal
import stat
from collections import UserDict

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.data import Dataset, Subset, TensorDataset

import sartor
from sartor.ownership import Ownership
from sartor.sgd import NotCompared, OutOfTurn, Stream, unwrap
from sartor.sgd import private as making
from sartor.sgd.checkpoint import FIRST, fingerprint
from sartor_testing.private_runs import (
    HOLDERS,
    STEPS,
    Stopped,
    dropping,
    fitted,
    flat,
    is_charged_ahead,
    net,
    people,
    planned,
    private,
    records,
    stopped_at,
    take,
    train,
)


def resumed(folder, model=None, **settings):
    return fitted(model, checkpoints=sartor.Checkpoints(folder, resume=True), **settings)


def refused(match: str):
    return pytest.raises(sartor.SartorError, match=match)


def halted_at(step, folder, number=signal.SIGINT, **settings):
    """A run that is stopped in order after a step."""

    def stop(progress):
        if progress.step == step:
            signal.raise_signal(number)

    with pytest.raises(KeyboardInterrupt):
        fitted(checkpoints=sartor.Checkpoints(folder, every=4), callbacks=[stop], **settings)


def entry(folder):
    return json.loads((folder / "journal.json").read_text())["run"]


# -- steps


@pytest.mark.parametrize(("step", "number"), [(1, signal.SIGINT), (4, signal.SIGINT), (7, signal.SIGTERM), (8, signal.SIGTERM)])
def test_an_orderly_stop_gives_back_what_was_not_drawn(tmp_path, step, number):
    halted_at(step, tmp_path, number)
    assert (entry(tmp_path)["charged"], entry(tmp_path)["orderly"]) == (step, True)
    seen = []
    result = resumed(tmp_path, callbacks=[lambda progress: seen.append(progress.step)])
    assert seen == list(range(step + 1, STEPS + 1))
    assert (result.account.taken, result.account.lost, result.account.charged) == (STEPS, 0, STEPS)
    assert entry(tmp_path)["restarts"] == 0


@pytest.mark.parametrize(("step", "lost"), [(1, 2), (2, 2), (3, 2), (5, 2)])
def test_after_an_error_everything_charged_stays_charged_and_at_most_a_block_is_lost(tmp_path, step, lost):
    stopped_at(step, tmp_path)
    charged = entry(tmp_path)["charged"]
    assert charged == 2 * -(-step // 2)
    seen = []
    result = resumed(tmp_path, callbacks=[lambda progress: seen.append(progress.step)])
    assert seen == list(range(charged + 1, STEPS + 1))
    assert (result.account.taken, result.account.lost, result.steps) == (STEPS - lost, lost, STEPS)
    assert result.account.spent == pytest.approx(planned("scale", STEPS).spent_after(STEPS))
    assert entry(tmp_path)["restarts"] == 1


@pytest.mark.parametrize("seed", [1, None])
@pytest.mark.parametrize("scheme", ["scale", "sample", "hybrid", "sequential"])
def test_every_step_is_charged_before_it_is_drawn_and_drawn_once(tmp_path, scheme, seed):
    assert is_charged_ahead(tmp_path, scheme=scheme, seed=seed)


def test_a_resumed_run_draws_other_coins_and_noise_than_the_one_before(tmp_path):
    """Each start of a seeded run has keys of its own."""
    first, again = [], []
    stopped_at(4, tmp_path, callbacks=[lambda progress: first.append(flat(progress.model))])
    resumed(tmp_path, callbacks=[lambda progress: again.append(flat(progress.model))])
    whole = []
    fitted(callbacks=[lambda progress: whole.append(flat(progress.model))])
    assert all(torch.equal(one, other) for one, other in zip(first, whole, strict=False))
    assert not any(torch.equal(one, other) for one in again for other in whole)


def test_every_start_of_a_seeded_run_has_the_key_of_its_number(tmp_path):
    for number in range(3):
        model, optimizer, loader = private(plan=planned("scale", STEPS), seed=1)
        loader.checkpoint(tmp_path, every=2, resume=number > 0)
        take(model, optimizer, next(iter(loader)))
        own = Stream(1)
        own.incarnate(number)
        assert loader.run.stream.generator("noise", 0).random() == own.generator("noise", 0).random()
        assert entry(tmp_path)["incarnation"] == number
        loader.let_go()


def test_the_model_goes_on_from_the_newest_checkpoint(tmp_path):
    models = {}
    stopped_at(5, tmp_path, callbacks=[lambda progress: models.update({progress.step: flat(progress.model)})])
    kept = load_file(next(tmp_path.glob("*.safetensors")))
    held = torch.cat([kept[f"model/{name}"].flatten() for name, _ in dropping().named_parameters()])
    assert torch.equal(held, models[4])


@pytest.mark.parametrize("every", [1, 3, 100])
def test_the_first_block_of_a_start_is_short_and_the_others_are_as_asked(tmp_path, every):
    charges = []
    plan = planned("scale", 40)

    def note(progress):
        charges.append(entry(tmp_path)["charged"])

    fitted(plan=plan, checkpoints=sartor.Checkpoints(tmp_path, every=every), callbacks=[note])
    first, second = list(dict.fromkeys(charges))[:2]
    assert first == min(every, FIRST)
    assert second == min(40, first + every)
    assert all(charged >= step for step, charged in enumerate(charges, 1))


def test_blocks_are_measured_by_a_stand_in_and_never_by_who_was_drawn(tmp_path):
    """The first record is all that is looked at before the first coin."""

    class Looked(Dataset):
        def __init__(self):
            self.seen = []

        def __len__(self):
            return HOLDERS

        def __getitem__(self, i):
            self.seen.append(i)
            return records()[i]

    data = Looked()
    model, optimizer, loader = private(dataset=data, plan=planned("scale", STEPS), check=False)
    loader.checkpoint(tmp_path)
    data.seen.clear()
    seconds = loader.seconds_of_a_step()
    assert seconds is not None
    assert seconds > 0
    assert set(data.seen) == {0}
    assert loader.run.steps == loader.run.drawn == 0
    unwrap(model, optimizer)


def test_a_stand_in_leaves_nothing_behind(tmp_path):
    runs = []
    for kept in (False, True):
        torch.manual_seed(5)
        model, optimizer, loader = private(dropping(), planned("scale", STEPS))
        if kept:
            loader.checkpoint(tmp_path)
        train(model, optimizer, loader)
        runs.append(flat(model))
    assert torch.equal(*runs)


@pytest.mark.parametrize("workers", [0, 1])
def test_prefetched_batches_count_as_drawn(tmp_path, workers):
    model, optimizer, loader = private(plan=planned("scale", STEPS), workers=workers)
    loader.checkpoint(tmp_path, every=8)
    with loader:
        for batch in loader:
            take(model, optimizer, batch)
            if optimizer.run.steps == 2:
                break
    drawn = loader.run.drawn
    assert drawn == 2 if workers == 0 else 2 < drawn <= 8
    assert entry(tmp_path)["charged"] == drawn
    account = optimizer.account()
    assert (account.charged, account.taken, account.lost) == (drawn, 2, drawn - 2)


# -- what goes on


def warming(step, *, warmup):
    return min(1.0, step / warmup)


class Warmup:
    """A scheduler of one's own, whose state has other names than its attributes, and a tuple in it."""

    def __init__(self, optimizer, warmup=4):
        self.optimizer, self.warmup, self.taken, self.seen = optimizer, warmup, 0, ()
        self.rates = tuple(group["lr"] for group in optimizer.param_groups)

    def step(self):
        self.taken, self.seen = self.taken + 1, (*self.seen[-1:], self.taken)
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * warming(self.taken, warmup=self.warmup)

    def state_dict(self):
        return {"step": self.taken, "seen": self.seen}

    def load_state_dict(self, state):
        self.taken, self.seen = state["step"], tuple(state["seen"])


class Inside:
    """A scheduler in another, as those of libraries for several devices are."""

    def __init__(self, scheduler):
        self.scheduler, self.step, self.state_dict = scheduler, scheduler.step, scheduler.state_dict

    def load_state_dict(self, state):
        self.scheduler.load_state_dict(state)


class Halving:
    """A function that is an object, whose state torch puts back."""

    def __init__(self):
        self.calls = 0

    def __call__(self, step):
        self.calls += 1
        return 0.5**self.calls


SCHEDULES = {
    "step": lambda o: lr_scheduler.StepLR(o, 2, 0.5),
    "milestones": lambda o: lr_scheduler.MultiStepLR(o, [3, 6, 7], 0.1),
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, STEPS),
    "one cycle": lambda o: lr_scheduler.OneCycleLR(o, 0.5, total_steps=STEPS + 1),
    "function": lambda o: lr_scheduler.LambdaLR(o, lambda step: 0.9**step),
    "partial": lambda o: lr_scheduler.LambdaLR(o, functools.partial(warming, warmup=4)),
    "object": lambda o: lr_scheduler.LambdaLR(o, Halving()),
    "cyclic": lambda o: lr_scheduler.CyclicLR(o, 0.1, 0.5, step_size_up=2),
    "restarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3),
    "product": lambda o: lr_scheduler.ChainedScheduler([lr_scheduler.LinearLR(o, 0.5, 1.0, 4), lr_scheduler.ExponentialLR(o, 0.9)], o),
    "own": Warmup,
    "inside": lambda o: Inside(lr_scheduler.StepLR(o, 2, 0.5)),
    "two": lambda o: lr_scheduler.SequentialLR(o, [lr_scheduler.ConstantLR(o, 0.1, 2), lr_scheduler.MultiStepLR(o, [4], 0.1)], [2]),
}


@pytest.mark.few(4)
@pytest.mark.parametrize("kind", SCHEDULES)
def test_a_schedule_goes_on_where_it_was(tmp_path, kind):
    rates = []

    def note(progress):
        rates.append(optimizers[-1].param_groups[0]["lr"])

    optimizers = []

    def built(parameters):
        optimizers.append(torch.optim.SGD(parameters, lr=0.3, momentum=0.9))
        return optimizers[-1]

    settings = {"optimizer": built, "scheduler": SCHEDULES[kind], "callbacks": [note]}
    fitted(**settings)
    whole, rates[:] = list(rates), []

    def stop(progress):
        if progress.step == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fitted(checkpoints=sartor.Checkpoints(tmp_path), **{**settings, "callbacks": [note, stop]})
    resumed(tmp_path, **settings)
    assert rates == pytest.approx(whole)


@pytest.mark.few(2)
@pytest.mark.parametrize("kind", ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "NAdam"])
def test_the_state_of_any_optimizer_goes_on(tmp_path, kind):
    optimizers, states = [], []

    def built(parameters):
        more = {"momentum": 0.9} if kind == "SGD" else {}
        optimizers.append(getattr(torch.optim, kind)(parameters, lr=0.01, **more))
        return optimizers[-1]

    def note(progress):
        state = optimizers[-1].state_dict()["state"]
        states.append({(place, name): torch.as_tensor(v).clone() for place, held in state.items() for name, v in held.items()})

    with pytest.raises(KeyboardInterrupt):
        fitted(checkpoints=sartor.Checkpoints(tmp_path), optimizer=built, callbacks=[note, lambda progress: _stop_at(5, progress)])
    before = states[-1]
    optimizer = built(list((model := dropping()).parameters()))
    _, wrapped, loader = private(model, planned("scale", STEPS), optimizer=optimizer)
    loader.checkpoint(tmp_path, resume=True)
    note(None)
    assert before.keys() == states[-1].keys()
    assert all(torch.equal(value, states[-1][key]) for key, value in before.items())
    unwrap(model, wrapped)


def _stop_at(step, progress):
    if progress.step == step:
        raise KeyboardInterrupt


def test_history_and_patience_go_on_after_a_resume(tmp_path):
    """A run that would have stopped early by public data stops at the same step, and its history is whole."""
    settings = {"evaluation": sartor.Evaluation(records(50), every=1, patience=3), "lr": 1e-9, "optimizer": "sgd"}
    whole = fitted(**settings)
    assert whole.stopped_early
    assert whole.steps == 4
    halted_at(3, tmp_path, **settings)
    again = resumed(tmp_path, **settings)
    assert [entry["step"] for entry in again.history] == [entry["step"] for entry in whole.history]
    assert (again.steps, again.stopped_early) == (whole.steps, True)
    assert resumed(tmp_path, **settings).steps == whole.steps
    assert entry(tmp_path)["charged"] == whole.steps


def test_resuming_again_and_again_gives_one_model_and_one_spend(tmp_path):
    stopped_at(5, tmp_path)
    models = [flat(resumed(tmp_path).model) for _ in range(3)]
    assert torch.equal(models[0], models[1])
    assert torch.equal(models[0], models[2])
    assert resumed(tmp_path).steps == STEPS


def test_a_seeded_run_stays_seeded_when_resumed_without_the_seed(tmp_path):
    stopped_at(5, tmp_path)
    assert resumed(tmp_path, seed=None).account.to_json()["private"] is False
    stopped_at(5, tmp_path / "other", seed=None)
    assert resumed(tmp_path / "other").account.to_json()["private"] is False


# -- what may change


def weighted(out, y, reduction="none"):
    return 2 * nn.functional.cross_entropy(out, y, reduction=reduction)


CHANGES = {
    "learning rate": {"optimizer": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9)},
    "momentum": {"optimizer": lambda p: torch.optim.SGD(p, lr=0.3, momentum=0.1)},
    "loss": {"loss": weighted},
    "workers": {"execution": sartor.Execution(workers=1)},
    "pieces": {"execution": sartor.Execution(max_physical_batch=5)},
    "noise draws": {"execution": sartor.Execution(noise_draws=2)},
    "scheduler": {"scheduler": lambda o: lr_scheduler.StepLR(o, 2, 0.5)},
    "layers without parameters": {"model": nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Dropout(0.6), nn.Linear(5, 3))},
}


@pytest.mark.parametrize("kind", CHANGES)
def test_a_run_goes_on_with_other_settings(tmp_path, kind):
    stopped_at(5, tmp_path)
    result = resumed(tmp_path, **CHANGES[kind])
    assert (result.steps, result.account.lost) == (STEPS, 2)


def test_a_changed_learning_rate_is_taken_and_its_schedule_kept(tmp_path):
    rates, optimizers = [], []

    def built(lr):
        def make(parameters):
            optimizers.append(torch.optim.SGD(parameters, lr=lr))
            return optimizers[-1]

        return make

    settings = {"scheduler": lambda o: lr_scheduler.StepLR(o, 2, 0.5)}
    note = lambda progress: rates.append(optimizers[-1].param_groups[0]["lr"])  # noqa: E731
    with pytest.raises(KeyboardInterrupt):
        fitted(
            checkpoints=sartor.Checkpoints(tmp_path),
            optimizer=built(0.4),
            callbacks=[note, lambda progress: _stop_at(5, progress)],
            **settings,
        )
    resumed(tmp_path, optimizer=built(0.8), callbacks=[note], **settings)
    assert rates == pytest.approx([0.4, 0.2, 0.2, 0.1, 0.1, 0.1, 0.1, 0.05, 0.05])


def test_other_threads_and_versions_go_on(tmp_path, monkeypatch):
    stopped_at(5, tmp_path)
    monkeypatch.setattr(torch, "__version__", "99.0")
    monkeypatch.setattr(sartor, "__version__", "99.0")
    assert resumed(tmp_path).steps == STEPS


class Rolled(Dataset):
    """Records that change at random each time that they are read."""

    def __init__(self, by: str) -> None:
        self.by = by

    def __len__(self):
        return HOLDERS

    def __getitem__(self, i):
        inputs, target = records()[i]
        shift = {"torch": lambda: float(torch.rand(())), "numpy": np.random.rand, "random": random.random}[self.by]()
        return inputs + shift, int(target)


class Wrapped:
    def __init__(self, inputs):
        self.inputs = inputs


class Objects(Dataset):
    """Records that are objects, as pictures are before they are collated."""

    def __init__(self, change=None):
        self.change = change

    def __len__(self):
        return HOLDERS

    def __getitem__(self, i):
        return Wrapped(records()[i][0]), int(records()[i][1])


def unwrapped(items):
    return torch.stack([item.inputs for item, _ in items]), torch.tensor([target for _, target in items])


@pytest.mark.filterwarnings("ignore::sartor.sgd.checkpoint.NotCompared")  # of the objects
@pytest.mark.parametrize(("dataset", "collate"), [(Subset(records(), range(HOLDERS)), None), (Objects(), unwrapped)])
def test_data_sets_of_other_kinds_resume(tmp_path, dataset, collate):
    stopped_at(5, tmp_path, dataset=dataset, collate=collate)
    assert resumed(tmp_path, dataset=dataset, collate=collate).steps == STEPS


@pytest.mark.parametrize("by", ["torch", "numpy", "random"])
def test_records_that_differ_each_time_are_compared_by_their_number_and_that_is_said(tmp_path, by):
    with pytest.warns(NotCompared, match="differ each time"):
        stopped_at(5, tmp_path, dataset=Rolled(by))
    with pytest.warns(NotCompared):
        assert resumed(tmp_path, dataset=Rolled(by)).steps == STEPS


def test_comparing_records_draws_from_nobody_s_generators():
    states = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()  # noqa: NPY002
    with pytest.warns(NotCompared):
        fingerprint(planned(), people(), Rolled("torch"), None)
    assert torch.equal(states[0], torch.get_rng_state())
    assert np.array_equal(states[1], np.random.get_state()[1])  # noqa: NPY002
    assert states[2] == random.getstate()


def test_where_an_ownership_binds_records_their_order_and_contents_may_change(tmp_path):
    budgets = sartor.Budgets([1.0, 4.0] * 15, delta=1e-3, holders=[f"p{i}" for i in range(30)])
    names = [f"p{i % 30}" for i in range(HOLDERS)]

    def run(names, inputs, targets, **kept):
        ownership = Ownership.of(names, budgets)
        plan = sartor.plan(budgets, steps=6, batch=10, ownership=ownership)
        callbacks = [] if kept.get("resume") else [lambda progress: _raise(progress.step == 3)]
        return sartor.fit(
            dropping(), TensorDataset(inputs, targets), budgets, plan, ownership=ownership, seed=1, progress=False,
            callbacks=callbacks, checkpoints=sartor.Checkpoints(tmp_path, every=2, **kept),
        )  # fmt: skip

    inputs, targets = records().tensors
    with pytest.raises(Stopped):
        run(names, inputs, targets)
    order = torch.randperm(HOLDERS, generator=torch.Generator().manual_seed(0))
    assert run([names[i] for i in order.tolist()], inputs[order] + 1, targets[order], resume=True).steps == 6


def _raise(when):
    if when:
        raise Stopped


# -- what is refused


def test_a_checkpoint_of_another_plan_of_other_people_or_records_is_refused(tmp_path):
    stopped_at(5, tmp_path)
    with refused("another plan"):
        resumed(tmp_path, plan=planned("scale", STEPS + 1))
    with refused("another plan"):
        resumed(tmp_path, plan=planned("sample", STEPS))
    inputs, targets = records().tensors
    changed = inputs.clone()
    changed[17, 2] += 1e-6
    with refused("other records"):
        resumed(tmp_path, dataset=TensorDataset(changed, targets))
    other = sartor.Budgets(epsilon=np.roll(people().epsilon, 1), delta=1e-3)
    kept = sartor.Checkpoints(tmp_path, resume=True)
    with refused("other people"):
        sartor.fit(dropping(), records(), other, planned("scale", STEPS), checkpoints=kept, progress=False)
    assert entry(tmp_path)["incarnation"] == 0


class Rows(Dataset):
    """Long records as arrays, as files give them."""

    def __init__(self, value, kind=np.float32):
        self.value, self.kind = value, kind

    def __len__(self):
        return HOLDERS

    def __getitem__(self, i):
        row = np.zeros(4000, self.kind)
        row[2000] = self.value
        return row, 0


def test_records_that_differ_have_different_fingerprints():
    """Arrays print in short; what is compared must be all of them, and their type."""
    made = [Rows(1), Rows(2), Rows(1), Rows(1, np.float64), Rows(1, np.int32)]
    of = [fingerprint(planned(), people(), data, None)["records"] for data in made]
    assert of[0] == of[2]
    assert len(set(of)) == 4


@pytest.mark.parametrize(
    "settings",
    [
        {"optimizer": "adam"},
        {"model": nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Dropout(0.3), nn.Linear(6, 3))},
        {"model": nn.Linear(4, 3)},
    ],
    ids=["optimizer", "shapes", "names"],
)
def test_a_model_or_optimizer_that_does_not_fit_is_refused_and_can_be_used_again(tmp_path, settings):
    stopped_at(5, tmp_path)
    model = settings.pop("model", None) or dropping()
    with refused("resume with the same|the checkpoint is of another model"):
        resumed(tmp_path, model, **settings)
    fitted(model)
    assert resumed(tmp_path).steps == STEPS


def test_disorderly_restarts_are_limited_and_orderly_ones_are_not(tmp_path):
    """Each may tell something of the data."""
    plan = planned("scale", 40)

    def stop(with_what):
        def raising(progress):
            raise with_what

        return [raising]

    def go_on(error, **settings):
        kept = sartor.Checkpoints(tmp_path, every=1, restarts=2, resume=(tmp_path / "journal.json").exists())
        with pytest.raises(error):
            fitted(plan=plan, checkpoints=kept, callbacks=stop(error), **settings)

    for error in (KeyboardInterrupt, Stopped, KeyboardInterrupt, Stopped):
        go_on(error)
    go_on(KeyboardInterrupt)
    go_on(Stopped)
    with refused("crashed more often than restarts=2 allows"):
        fitted(plan=plan, checkpoints=sartor.Checkpoints(tmp_path, restarts=2, resume=True))
    assert fitted(plan=plan, checkpoints=sartor.Checkpoints(tmp_path, restarts=3, resume=True)).steps == 40


def test_a_crash_before_the_first_charge_of_a_start_counts_as_any_other(tmp_path):
    stopped_at(5, tmp_path)

    def crashes():
        _, _, loader = private(dropping(), planned("scale", STEPS))
        loader.checkpoint(tmp_path, resume=True, restarts=2)
        loader.let_go()

    crashes()
    crashes()
    with refused("crashed more often than restarts=2 allows"):
        crashes()


def test_a_folder_without_a_checkpoint_is_refused(tmp_path):
    for folder in (tmp_path, tmp_path / "nowhere"):
        with refused("holds no checkpoint"):
            resumed(folder)


def test_a_second_run_does_not_take_the_place_of_the_first(tmp_path):
    """It would spend the same people's budgets again, and forget that the first run did."""
    stopped_at(5, tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with refused("holds a run already: continue it"):
        fitted(checkpoints=sartor.Checkpoints(tmp_path))
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(reduction="none"), lambda outputs, targets: outputs.sum()])
def test_a_first_loss_that_is_refused_leaves_no_folder_in_the_way(tmp_path, loss):
    if isinstance(loss, nn.Module):
        model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    else:
        model = dropping()
    with refused("."):
        fitted(model, loss=loss, checkpoints=sartor.Checkpoints(tmp_path))
    assert fitted(checkpoints=sartor.Checkpoints(tmp_path)).steps == STEPS


# -- the folder


def test_a_checkpoint_is_its_owners_alone_without_pickle_and_without_a_key(tmp_path):
    before = os.umask(0)
    folder = tmp_path / "deep" / "checkpoint"
    try:
        stopped_at(5, folder, seed=None)
    finally:
        os.umask(before)
    paths = [folder, *folder.rglob("*")]
    for path in paths:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    assert sorted(path.suffix for path in paths[1:]) == ["", ".json", ".safetensors"]
    for path in paths[1:]:
        assert not path.read_bytes()[:2].startswith((b"PK", b"\x80")), "zip or pickle"


def test_no_key_of_a_run_is_ever_on_the_disk(tmp_path, monkeypatch):
    keys = []

    def look(progress):
        keys.append(running[-1].stream._key)
        for path in tmp_path.rglob("*"):
            content = path.read_bytes() if path.is_file() else b""
            assert not any(key in content or key.hex().encode() in content for key in keys)

    running = []
    made = making.Run
    monkeypatch.setattr(making, "Run", lambda *given, **named: running.append(made(*given, **named)) or running[-1])
    fitted(seed=None, checkpoints=sartor.Checkpoints(tmp_path, every=2), callbacks=[look])
    assert len(set(keys)) == -(-STEPS // 2)  # a new one for each block


# -- loops of one's own


def test_a_loop_of_ones_own_is_charged_ahead_and_goes_on(tmp_path):
    plan = planned("scale", STEPS)
    model, optimizer, loader = private(None, plan)
    assert loader.checkpoint(tmp_path, every=4, public=lambda: {"epoch": 3}) == {}
    with pytest.raises(Stopped), loader:
        for batch in loader:
            take(model, optimizer, batch)
            if optimizer.run.steps == 6:
                raise Stopped
    assert optimizer.account().charged == 8
    assert len(loader) == 0
    with pytest.raises(sartor.SartorError):
        take(model, optimizer, batch)
    unwrap(model, optimizer)
    again, second, rest = private(None, plan)
    assert rest.checkpoint(tmp_path, resume=True) == {"epoch": 3}
    account = second.account()
    assert (account.steps, account.lost, account.taken) == (8, 4, 4)
    with rest:
        assert train(again, second, rest) == STEPS - 8
    assert second.account().charged == STEPS
    assert entry(tmp_path)["over"]


def test_closing_a_loader_is_an_orderly_stop_and_the_last_one(tmp_path):
    model, optimizer, loader = private(None, planned("scale", STEPS))
    loader.checkpoint(tmp_path, every=4)
    take(model, optimizer, next(iter(loader)))
    loader.close()
    assert (entry(tmp_path)["charged"], entry(tmp_path)["orderly"]) == (1, True)
    with pytest.raises(sartor.SartorError):
        iter(loader)
    with pytest.raises(sartor.SartorError):
        optimizer.step()


def test_a_stop_amid_a_step_keeps_the_model_before_it_and_the_charge(tmp_path):
    model, optimizer, loader = private(None, planned("scale", STEPS))
    loader.checkpoint(tmp_path, every=4)
    models = []

    def half(*given, **named):
        with torch.no_grad():
            next(iter(model.parameters())).add_(100)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), loader:
        for batch in loader:
            if optimizer.run.steps == 5:
                optimizer.inner.step = half
            if optimizer.run.steps == 4:
                models.append(flat(model))
            take(model, optimizer, batch)
    assert entry(tmp_path)["charged"] == 6
    unwrap(model, optimizer)
    again, second, rest = private(None, planned("scale", STEPS))
    rest.checkpoint(tmp_path, resume=True)
    assert (second.account().steps, second.account().lost) == (6, 2)
    assert torch.equal(flat(again), models[0])
    unwrap(again, second)


def test_where_a_run_is_kept_is_said_once_and_before_its_first_batch(tmp_path):
    model, optimizer, loader = private(None, planned("scale", STEPS))
    take(model, optimizer, next(iter(loader)))
    with pytest.raises(OutOfTurn, match="before its first batch"):
        loader.checkpoint(tmp_path)
    assert not any(tmp_path.iterdir())


def test_an_optimizer_state_carries_the_steps_and_never_lowers_a_count():
    plan = planned("scale", STEPS)
    model, optimizer, loader = private(None, plan)
    batches = iter(loader)
    for _ in range(4):
        take(model, optimizer, next(batches))
    state = optimizer.state_dict()
    for _ in range(2):
        take(model, optimizer, next(batches))
    optimizer.load_state_dict(state)  # a model that was better before
    assert optimizer.account().steps == 6
    again, second, rest = private(None, plan)
    second.load_state_dict(state)
    account = second.account()
    assert (account.steps, account.continued) == (4, True)
    assert "continued" in str(account)
    assert account.to_json()["continued"] is True
    assert train(again, second, rest) == STEPS - 4
    third, fourth, _ = private(None, plan)
    take(third, fourth, next(iter(_)))
    fourth.load_state_dict(state)
    assert fourth.account().steps == 5
    with refused("more than the plan's"):
        fourth.load_state_dict({**state, "sartor": {**state["sartor"], "steps": STEPS, "run": "another"}})
    with refused("another plan"):
        private(None, planned("scale", 3))[1].load_state_dict(state)
    plain = torch.optim.SGD(third.parameters(), lr=0.5).state_dict()
    fourth.load_state_dict(plain)
    assert fourth.account().steps == 5


def test_a_state_that_was_saved_amid_a_round_spends_all_of_it():
    """Its coins fell in another process: tossed again, they would let more people into the round than it says."""
    plan = sartor.plan(people(), "rounds", steps=20, batch=20, threshold=[1.5, 2.5, 5.0, 9.0], accountant="rdp")
    end = plan.stages[0].steps
    model, optimizer, loader = private(None, plan)
    take(model, optimizer, next(iter(loader)))
    state = optimizer.state_dict()
    again, second, rest = private(None, plan)
    second.load_state_dict(state)
    assert second.account().steps == end > 1
    take(again, second, next(iter(rest)))
    with pytest.raises(OutOfTurn, match="before the first batch"):
        second.load_state_dict({**state, "sartor": {**state["sartor"], "run": "a third"}})


def test_what_a_loaded_state_has_spent_is_on_the_disk_before_any_other_step(tmp_path):
    plan = planned("scale", STEPS)
    model, optimizer, loader = private(None, plan)
    take(model, optimizer, next(iter(loader)))
    state = optimizer.state_dict()
    again, second, rest = private(None, plan)
    rest.checkpoint(tmp_path, every=2)
    second.load_state_dict(state)
    batches = iter(rest)
    take(again, second, next(batches))
    assert entry(tmp_path)["charged"] == 3
    with pytest.raises(OutOfTurn, match="before the first batch"):
        second.load_state_dict({**state, "sartor": {**state["sartor"], "run": "a third"}})
    second.load_state_dict(state)  # it is counted already
    rest.let_go()
    last, third, end = private(None, plan)
    end.checkpoint(tmp_path, resume=True)
    third.load_state_dict(state)
    assert (third.account().steps, third.account().continued) == (3, True)
    unwrap(last, third)


def test_a_run_that_could_not_be_taken_up_takes_no_step(tmp_path):
    stopped_at(5, tmp_path)
    model, optimizer, loader = private(net(), planned("scale", STEPS))
    with refused("another model"):
        loader.checkpoint(tmp_path, resume=True)
    with pytest.raises(sartor.SartorError):
        iter(loader)
    unwrap(model, optimizer)


class Held:
    def __init__(self, x):
        self.x = x


def test_records_that_show_nothing_are_said_not_to_be_compared():
    class Hidden(Rows):
        def __getitem__(self, i):
            return Held(self.value), 0

    with pytest.warns(NotCompared, match="an object of Held"):
        assert fingerprint(planned(), people(), Hidden(1), None)["records"] == str(HOLDERS)
    mapped = [Rows(1), Rows(2)]
    for data in mapped:
        data.__class__ = type("Mapped", (Rows,), {"__getitem__": lambda self, i: UserDict(x=torch.tensor(self.value))})
    assert len({fingerprint(planned(), people(), data, None)["records"] for data in mapped}) == 2


def test_a_child_that_was_forked_takes_no_step_and_no_batch():
    """Its noise would be the parent's, and the difference of two releases bare."""
    model, optimizer, loader = private(None, planned("scale", STEPS), seed=None)
    batches = iter(loader)
    take(model, optimizer, next(batches))
    batch = next(batches)
    loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
    loss.backward()
    if not (pid := os.fork()):
        refusals = 0
        for attempt in (optimizer.step, lambda: next(batches), lambda: next(iter(loader))):
            try:
                attempt()
            except sartor.SartorError:
                refusals += 1
        os._exit(refusals)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
    optimizer.step()
    assert optimizer.run.steps == 2
