"""Checkpoints: what resumes is the same run, whoever else's is refused, and a damaged one says so.

The check that returns a truth is also run by test_mutations.py, on code with faults put in (see sartor_testing.private_runs).
"""

import functools
import json
import os
import random
import stat
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.data import Dataset, Subset, TensorDataset

import sartor
from sartor.sgd import OtherEnvironment, unwrap
from sartor.sgd.checkpoint import Checkpoint, fingerprint, save_checkpoint
from sartor_testing import kill_child
from sartor_testing.amount import examples
from sartor_testing.private_runs import (
    HOLDERS,
    STEPS,
    dropping,
    fitted,
    flat,
    people,
    planned,
    private,
    records,
    resumes_to_the_same_end,
    stopped_at,
    take,
)


@pytest.mark.few(2)
@pytest.mark.parametrize("step", [1, 2, 5, 8, 9])
def test_a_resumed_run_ends_as_an_uninterrupted_one(tmp_path, step):
    assert resumes_to_the_same_end(tmp_path, step)


@pytest.mark.parametrize("scheme", ["sample", "hybrid", "sequential"])
def test_a_resumed_run_draws_by_the_rates_of_its_step(tmp_path, scheme):
    assert resumes_to_the_same_end(tmp_path, scheme=scheme)


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
    assert resumes_to_the_same_end(tmp_path, scheduler=SCHEDULES[kind])


@pytest.mark.few(2)
@pytest.mark.parametrize("kind", ["Adam", "AdamW", "RMSprop", "Adagrad", "NAdam"])
def test_the_state_of_any_optimizer_goes_on(tmp_path, kind):
    assert resumes_to_the_same_end(tmp_path, optimizer=lambda p: getattr(torch.optim, kind)(p, lr=0.01))


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


@pytest.mark.few(2)
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("by", ["torch", "numpy", "random"])
def test_random_changes_to_records_are_the_same_after_a_resume(tmp_path, by, workers):
    """Others would give another sum under the same noise."""

    def elsewhere():
        np.random.seed(99)  # noqa: NPY002
        random.seed(99)
        torch.manual_seed(99)

    np.random.seed(1)  # noqa: NPY002
    random.seed(1)
    whole = fitted(dataset=Rolled(by), execution=sartor.Execution(workers=workers))
    np.random.seed(1)  # noqa: NPY002
    random.seed(1)
    stopped_at(5, tmp_path, dataset=Rolled(by), execution=sartor.Execution(workers=workers))
    elsewhere()
    resumed = fitted(dataset=Rolled(by), checkpoints=sartor.Checkpoints(tmp_path, resume=True), execution=sartor.Execution(workers=workers))
    assert torch.equal(flat(whole.model), flat(resumed.model))


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


@pytest.mark.parametrize(("dataset", "collate"), [(Subset(records(), range(HOLDERS)), None), (Objects(), unwrapped)])
def test_data_sets_of_other_kinds_resume(tmp_path, dataset, collate):
    assert resumes_to_the_same_end(tmp_path, dataset=dataset, collate=collate)


def test_an_unseeded_run_takes_the_same_steps_again(tmp_path):
    """The steps after the last checkpoint are repeated with the coins and the noise that they had: nothing is released twice."""
    seen: dict[int, torch.Tensor] = {}

    def note(progress):
        if progress.step in seen:
            again.append(torch.equal(seen[progress.step], flat(progress.model)))
        seen[progress.step] = flat(progress.model)

    again: list[bool] = []
    stopped_at(7, tmp_path, seed=None, callbacks=[note])
    result = fitted(seed=None, checkpoints=sartor.Checkpoints(tmp_path, resume=True), callbacks=[note])
    assert again == [True]
    assert result.account.to_json()["private"] is True
    assert sorted(seen) == list(range(1, STEPS + 1))
    assert not torch.equal(flat(result.model), flat(fitted(seed=None).model))


def test_a_seeded_run_stays_seeded_when_resumed_without_the_seed(tmp_path):
    stopped_at(5, tmp_path)
    assert fitted(checkpoints=sartor.Checkpoints(tmp_path, resume=True), seed=None).account.to_json()["private"] is False


def test_resuming_again_and_again_gives_one_model_and_one_spend(tmp_path):
    stopped_at(5, tmp_path)
    models = [flat(fitted(checkpoints=sartor.Checkpoints(tmp_path, resume=True)).model) for _ in range(3)]
    assert torch.equal(models[0], models[1])
    assert torch.equal(models[0], models[2])
    assert fitted(checkpoints=sartor.Checkpoints(tmp_path, resume=True)).steps == STEPS


def test_history_and_patience_go_on_after_a_resume(tmp_path):
    """A run that would have stopped early by public data stops at the same step, and its history is whole."""
    settings = {"evaluation": sartor.Evaluation(records(50), every=1, patience=3), "lr": 1e-9, "optimizer": "sgd"}
    whole = fitted(**settings)
    assert whole.stopped_early
    assert whole.steps == 4
    stopped_at(3, tmp_path, **settings)
    resumed = fitted(checkpoints=sartor.Checkpoints(tmp_path, resume=True), **settings)
    assert resumed.history == whole.history
    assert (resumed.steps, resumed.stopped_early) == (whole.steps, True)
    again = fitted(checkpoints=sartor.Checkpoints(tmp_path, resume=True), **settings)
    assert again.steps == whole.steps


# -- the folder


def test_a_checkpoint_is_one_folder_for_its_owner_alone_and_without_pickle(tmp_path):
    folder = tmp_path / "deep" / "checkpoint"
    before = os.umask(0)
    try:
        stopped_at(5, folder)
    finally:
        os.umask(before)
    paths = [folder, *folder.rglob("*")]
    for path in paths:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    files = [path for path in paths if path.is_file()]
    assert {path.suffix for path in files} <= {"", ".safetensors", ".json"}
    assert {"model.safetensors", "optimizer.safetensors", "state.json"} <= {path.name for path in files}
    for path in files:
        head = path.read_bytes()[:2]
        assert not head.startswith((b"PK", b"\x80")), "zip or pickle"
    json.loads(next(path for path in files if path.name == "state.json").read_text())


def test_old_checkpoints_do_not_pile_up_and_other_files_stay(tmp_path):
    mine = tmp_path / "step-100.png"
    mine.write_text("a picture of the user's")
    for step in (3, 5, 7, 8):
        stopped_at(step, tmp_path, resume=step > 3)
    assert len([path for path in tmp_path.iterdir() if path.is_dir()]) == 1
    assert mine.exists()


def test_litter_of_a_killed_write_is_removed_by_the_next(tmp_path):
    stopped_at(5, tmp_path)
    (tmp_path / "step-5-01234567").mkdir()
    (tmp_path / "step-5-01234567" / "state.json").write_text("{")
    (tmp_path / ".current.0123456789abcdef").write_text("step-5-01234567")
    fitted(checkpoints=sartor.Checkpoints(tmp_path, resume=True))
    assert len([path for path in tmp_path.iterdir() if path.name not in ("lock", "begun")]) == 2


def test_a_checkpoint_that_was_left_open_is_closed_when_it_is_read(tmp_path):
    """As one is that was moved by a tool which does not keep modes; it holds the key."""
    folder = tmp_path / "run"
    stopped_at(5, folder)
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    modes = {}

    def look(progress):
        modes.update({path: path.stat().st_mode & 0o077 for path in (folder, *folder.glob("step-*"), *folder.glob("step-*/*"))})

    fitted(checkpoints=sartor.Checkpoints(folder, resume=True), callbacks=[look])
    assert any(path.name == "state.json" for path in modes)
    assert set(modes.values()) == {0}


def test_a_link_in_the_place_of_a_checkpoint_s_file_is_refused(tmp_path):
    folder = tmp_path / "run"
    stopped_at(5, folder)
    state = next(folder.glob("step-*/state.json"))
    state.rename(tmp_path / "elsewhere")
    state.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(sartor.SartorError, match="is a symbolic link"):
        fitted(checkpoints=sartor.Checkpoints(folder, resume=True))


def killed(folder, *given) -> dict:
    done = subprocess.run(
        [sys.executable, "-P", kill_child.__file__, str(folder), *map(str, given)],
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_run_killed_at_random_moments_ends_as_an_uninterrupted_one(tmp_path):
    """With momentum, a schedule and dropout."""
    kills = examples(5, 13)
    found = killed(tmp_path, kills, 1)
    assert found["kills"] >= kills
    assert found["equal"]
    assert found["most_entries"] <= 13
    assert len(set(found["left"]) - {"lock", "begun"}) == 2


def test_a_run_killed_amid_the_writing_of_checkpoints_ends_as_an_uninterrupted_one(tmp_path):
    """With Adam."""
    kills = examples(3, 7)
    found = killed(tmp_path, kills, 2, "writes")
    assert found["kills"] >= kills
    assert found["equal"]
    assert len(set(found["left"]) - {"lock", "begun"}) == 2


# -- refusals


def refused(match: str):
    return pytest.raises(sartor.SartorError, match=match)


def test_a_checkpoint_of_another_plan_budgets_or_data_is_refused(tmp_path):
    stopped_at(5, tmp_path)
    with refused("another plan"):
        fitted(plan=planned("scale", STEPS + 1), checkpoints=sartor.Checkpoints(tmp_path, resume=True))
    with refused("another plan"):
        fitted(plan=planned("sample", STEPS), checkpoints=sartor.Checkpoints(tmp_path, resume=True))
    inputs, targets = records().tensors
    changed = inputs.clone()
    changed[17, 2] += 1e-6
    with refused("another data set"):
        fitted(dataset=TensorDataset(changed, targets), checkpoints=sartor.Checkpoints(tmp_path, resume=True))
    other = sartor.Budgets(epsilon=np.roll(people().epsilon, 1), delta=1e-3)
    with refused("another assignment of budgets"):
        sartor.fit(
            dropping(), records(), other, planned("scale", STEPS), checkpoints=sartor.Checkpoints(tmp_path, resume=True), progress=False
        )


def weighted(by):
    return lambda out, y, reduction="none": by * nn.functional.cross_entropy(out, y, reduction=reduction)


OTHER_LOSSES = {
    "kind": (nn.CrossEntropyLoss(), nn.MultiMarginLoss()),
    "weights": (nn.CrossEntropyLoss(), nn.CrossEntropyLoss(weight=torch.tensor([1.0, 1.0, 50.0]))),
    "setting": (nn.CrossEntropyLoss(), nn.CrossEntropyLoss(label_smoothing=0.5)),
    "partial": (partial(nn.functional.cross_entropy, label_smoothing=0.1), partial(nn.functional.cross_entropy, label_smoothing=0.2)),
    "closure": (weighted(1.0), weighted(2.0)),
}


@pytest.mark.few(2)
@pytest.mark.parametrize("kind", OTHER_LOSSES)
def test_another_loss_is_refused_and_the_same_goes_on(tmp_path, kind):
    """The same noise on other gradients would show their difference."""
    one, other = OTHER_LOSSES[kind]
    stopped_at(5, tmp_path, loss=one)
    with refused("another loss"):
        fitted(checkpoints=sartor.Checkpoints(tmp_path, resume=True), loss=other)
    assert fitted(checkpoints=sartor.Checkpoints(tmp_path, resume=True), loss=one).steps == STEPS


def test_a_second_run_does_not_take_the_place_of_the_first(tmp_path):
    """It would spend the same people's budgets again, and forget that the first run did."""
    stopped_at(5, tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with refused("holds the checkpoint of a run: continue it"):
        fitted(checkpoints=sartor.Checkpoints(tmp_path))
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


class Rows(Dataset):
    """Long records as arrays, as files give them."""

    def __init__(self, value):
        self.value = value

    def __len__(self):
        return HOLDERS

    def __getitem__(self, i):
        row = np.zeros(4000, np.float32)
        row[2000] = self.value
        return row, 0


def test_long_records_that_differ_have_different_fingerprints():
    """Arrays print in short; what is compared must be all of them."""
    of = [fingerprint(planned(), people(), Rows(value))["data"] for value in (1, 2, 1)]
    assert of[0] == of[2] != of[1]


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "settings",
    [
        {"optimizer": "adam"},
        {"execution": sartor.Execution(noise_draws=2)},
        {"scheduler": SCHEDULES["step"]},
        {"model": nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Dropout(0.3), nn.Linear(6, 3))},
        {"model": nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))},
        {"model": nn.Linear(4, 3)},
    ],
    ids=["optimizer", "draws", "scheduler", "shapes", "names", "fewer"],
)
def test_other_settings_are_refused_and_the_model_can_be_used_again(tmp_path, settings):
    stopped_at(5, tmp_path)
    model = settings.pop("model", None) or dropping()
    with refused("the checkpoint"):
        fitted(model, checkpoints=sartor.Checkpoints(tmp_path, resume=True), **settings)
    fitted(model)
    assert resumes_to_the_same_end(tmp_path / "again")


def test_a_folder_without_a_checkpoint_is_refused(tmp_path):
    for folder in (tmp_path, tmp_path / "nowhere"):
        with refused("holds no checkpoint"):
            fitted(checkpoints=sartor.Checkpoints(folder, resume=True))


def halve(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def change(path: Path, **values) -> None:
    document = json.loads(path.read_text())
    for name, value in values.items():
        if value is None:
            del document[name]
        else:
            document[name] = value
    path.write_text(json.dumps(document))


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-3] ^= 0x40
    path.write_bytes(bytes(content))


DAMAGE = {
    "half a model": lambda folder: halve(folder / "model.safetensors"),
    "half an optimizer": lambda folder: halve(folder / "optimizer.safetensors"),
    "no model": lambda folder: (folder / "model.safetensors").unlink(),
    "no optimizer": lambda folder: (folder / "optimizer.safetensors").unlink(),
    "no state": lambda folder: (folder / "state.json").unlink(),
    "half a state": lambda folder: halve(folder / "state.json"),
    "an empty state": lambda folder: (folder / "state.json").write_text("{}"),
    "a list": lambda folder: (folder / "state.json").write_text("[]"),
    "no stream": lambda folder: change(folder / "state.json", stream=None),
    "steps beyond the plan": lambda folder: change(folder / "state.json", steps=STEPS + 5),
    "negative steps": lambda folder: change(folder / "state.json", steps=-1),
    "steps turned back": lambda folder: change(folder / "state.json", steps=1),
    "a flipped bit": lambda folder: flip(folder / "model.safetensors"),
    "a pointer to nowhere": lambda folder: (folder.parent / "current").write_text("step-1-00000000"),
    "a broken pointer": lambda folder: (folder.parent / "current").write_bytes(b"\xff\xfe\x00"),
}


@pytest.mark.few(5)
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_checkpoint_gives_one_clear_error(tmp_path, damage):
    stopped_at(5, tmp_path)
    DAMAGE[damage](next(path for path in tmp_path.iterdir() if path.is_dir()))
    with refused("damaged|no checkpoint") as caught:
        fitted(checkpoints=sartor.Checkpoints(tmp_path, resume=True))
    assert "\n" not in str(caught.value)


def test_resuming_elsewhere_is_said(tmp_path):
    stopped_at(5, tmp_path / "threads")
    stopped_at(5, tmp_path / "batch")
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        with pytest.warns(OtherEnvironment, match=f"threads was {threads} and is {threads + 1}"):
            fitted(checkpoints=sartor.Checkpoints(tmp_path / "threads", resume=True))
    finally:
        torch.set_num_threads(threads)


def test_a_run_with_other_coins_cannot_be_put_where_a_checkpoint_was(tmp_path):
    """Its steps would be taken again under new noise, and spend once more."""
    plan = planned("scale", STEPS)
    of = fingerprint(plan, people(), records())
    model, optimizer, loader = private(None, plan, seed=None)
    batches = iter(loader)
    take(model, optimizer, next(batches))
    save_checkpoint(tmp_path, optimizer, loader, of)
    other, another, elsewhere = private(None, plan, seed=None)
    with refused("stream|coins|run"):
        Checkpoint(tmp_path, of).restore(another, elsewhere)
    take(model, optimizer, next(batches))
    unwrap(model, optimizer)
    found = Checkpoint(tmp_path, of)
    again, resumed, rest = private(None, plan, seed=None, stream=found.stream, kernels=found.kernels)
    found.restore(resumed, rest)
    take(again, resumed, next(iter(rest)))
    assert torch.equal(flat(again), flat(model))
    assert not torch.equal(flat(other), flat(model))


def test_a_checkpoint_that_was_read_before_its_run_went_on_is_not_restored(tmp_path):
    plan = planned("scale", STEPS)
    of = fingerprint(plan, people(), records())
    model, optimizer, loader = private(None, plan, seed=None)
    save_checkpoint(tmp_path, optimizer, loader, of)
    found = Checkpoint(tmp_path, of)
    take(model, optimizer, next(iter(loader)))
    save_checkpoint(tmp_path, optimizer, loader, of)
    unwrap(model, optimizer)
    _, resumed, rest = private(None, plan, seed=None, stream=found.stream, kernels=found.kernels)
    with refused("was continued by another process in the meantime"):
        found.restore(resumed, rest)
    assert resumed.account().steps == 0


def test_a_running_run_is_not_turned_back_by_a_checkpoint(tmp_path):
    plan = planned("scale", STEPS)
    of = fingerprint(plan, people(), records())
    model, optimizer, loader = private(None, plan, seed=None)
    save_checkpoint(tmp_path, optimizer, loader, of)
    batches = iter(loader)
    take(model, optimizer, next(batches))
    before = flat(model)
    with refused("."):
        Checkpoint(tmp_path, of).restore(optimizer, loader)
    assert optimizer.account().steps == 1
    assert torch.equal(flat(model), before)
