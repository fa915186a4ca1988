"""A run that resumes repeats steps under the noise that they had: whatever makes other sums is refused by name, the same code goes on."""

import argparse
import collections
import copy
import dataclasses
import decimal
import functools
import importlib.util
import json
import logging
import os
import subprocess
import sys
import threading
import types
import weakref

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import prune
from torch.utils.data import Dataset, Subset, TensorDataset

import sartor
from sartor.models import build
from sartor.sgd import NotSaved, Stream, identity, unwrap
from sartor.sgd.checkpoint import Checkpoint, fingerprint, save_checkpoint
from sartor.sgd.digests import digest
from sartor.sgd.loss import Loss
from sartor.sgd.packages import version

HOLDERS, STEPS, SIDE = 40, 5, 6


class Stopped(Exception):
    pass


@functools.cache
def setting():
    budgets = sartor.Budgets(epsilon=np.random.default_rng(1).permutation(np.repeat([1.0, 4.0], HOLDERS // 2)), delta=1e-3)
    return budgets, sartor.plan(budgets, "scale", steps=STEPS, batch=12, clip=0.1)


@functools.cache
def records() -> TensorDataset:
    generator = torch.Generator().manual_seed(3)
    return TensorDataset(torch.randn(HOLDERS, 1, SIDE, SIDE, generator=generator), torch.randint(0, 3, (HOLDERS,), generator=generator))


def fitted(model=None, dataset=None, **settings):
    budgets, plan = setting()
    model = plain() if model is None else model
    return sartor.fit(model, records() if dataset is None else dataset, budgets, plan, **{"lr": 0.1, "progress": False, **settings})


def stopped(folder, **settings) -> None:
    """A run that was stopped at its third step, whose last checkpoint is of the second."""

    def stop(progress):
        if progress.step == 3:
            raise Stopped

    with pytest.raises(Stopped):
        fitted(checkpoints=sartor.Checkpoints(folder, every=2), callbacks=[stop], **settings)


def begun(folder, model: nn.Module) -> None:
    """The checkpoint that a run writes before its first step."""
    budgets, plan = setting()
    inner = torch.optim.SGD([parameter for parameter in model.parameters() if parameter.requires_grad], lr=0.1)
    _, optimizer, loader = sartor.make_private(model, inner, records(), budgets, plan, reduction="sum")
    save_checkpoint(folder, optimizer, loader, {**fingerprint(plan, budgets, records()), "loss": Loss(None).name})


def resumed(folder, **settings):
    return fitted(checkpoints=sartor.Checkpoints(folder, resume=True), **settings)


# -- models: each pair is of the same shape; a checkpoint of one is not the other's


def plain(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(SIDE**2, 5), *(layers or (nn.ReLU(),)), nn.Linear(5, 3))


class Acting(nn.Module):
    """With a function as an attribute, and whatever else."""

    def __init__(self, act=torch.relu, **attributes):
        super().__init__()
        self.one, self.two, self.act = nn.Linear(SIDE**2, 5), nn.Linear(5, 3), act
        for name, value in attributes.items():
            setattr(self, name, value)

    def forward(self, images):
        return self.two(self.act(self.one(images.flatten(1))))


WRITTEN = """
import helpers
from torch import nn
from torch.nn import functional as F

SCALE = 1.0
SETTINGS = {"scale": 1.0}

def between(values):
    return values * 1.0

class Written(nn.Module):
    power = 1

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(36, 5), nn.Linear(5, 3)

    def hidden(self, images):
        return F.relu(self.one(images.flatten(1)) ** self.power)

    def forward(self, images):
        return self.two(helpers.after(between(self.hidden(images))) * SCALE * SETTINGS["scale"])
"""
HELPERS = "def after(values):\n    return values * 1.0\n"


def written(*change: str, helpers: str = HELPERS) -> nn.Module:
    """The model of a script, in which something may have been changed."""
    module = types.ModuleType("helpers")
    exec(helpers, vars(module))
    code = WRITTEN.replace(*change) if change else WRITTEN
    assert not change or code != WRITTEN
    namespace = {"__name__": "script"}
    sys.modules["helpers"] = module
    try:
        exec(code, namespace)
    finally:
        del sys.modules["helpers"]
    return namespace["Written"]()


def changed(model: nn.Module, change) -> nn.Module:
    change(model)
    return model


def convolution(**settings) -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 3, **settings), nn.Flatten(), nn.Linear(2 * 4 * 4, 3))


def hooked(*hooks) -> nn.Module:
    return changed(plain(), lambda model: [model[2].register_forward_hook(hook) for hook in hooks])


def doubled(module, inputs, output):
    return 2 * output


def raised(module, inputs, output):
    return 1 + output


def buffered(value: float) -> nn.Module:
    return changed(Acting(), lambda model: model.one.register_buffer("mask", torch.full((5,), value), persistent=False))


def frozen(*names: str) -> nn.Module:
    return changed(plain(), lambda model: [parameter.requires_grad_(name not in names) for name, parameter in model.named_parameters()])


def tied(together: bool) -> nn.Module:
    model = nn.Sequential(nn.Flatten(), nn.Linear(SIDE**2, 6), nn.Linear(6, 6), nn.Linear(6, 6))
    if together:
        model[3].weight = model[2].weight
    return model


def other_forward(model: nn.Module) -> None:
    model.forward = types.MethodType(lambda self, images: self.two(torch.tanh(self.one(images.flatten(1)))), model)


MODELS = {
    "activation": (plain, lambda: plain(nn.Tanh()), "the layer 2 was torch.nn.modules.activation.ReLU and is .*Tanh"),
    "function of torch": (Acting, lambda: Acting(torch.tanh), r"the model \(Acting\) differs in its setting act"),
    "function of functional": (lambda: Acting(functional.relu), lambda: Acting(functional.gelu), "setting act"),
    "lambda": (lambda: Acting(lambda x: x * 2), lambda: Acting(lambda x: x * 3), "setting act"),
    "partial": (
        lambda: Acting(functools.partial(functional.leaky_relu, negative_slope=0.1)),
        lambda: Acting(functools.partial(functional.leaky_relu, negative_slope=0.2)),
        "setting act",
    ),
    "code": (written, lambda: written("F.relu", "F.tanh"), r"the model \(Written\) differs in its code"),
    "constant": (written, lambda: written("SCALE = 1.0", "SCALE = 2.0"), "code"),
    "dictionary": (written, lambda: written('{"scale": 1.0}', '{"scale": 2.0}'), "code"),
    "function beside": (written, lambda: written("values * 1.0", "values * 2.0"), "code"),
    "function elsewhere": (written, lambda: written(helpers=HELPERS.replace("1.0", "2.0")), "code"),
    "attribute of the class": (written, lambda: written("power = 1", "power = 2"), "code"),
    "forward of this one": (Acting, lambda: changed(Acting(), other_forward), "setting forward"),
    "dropout": (lambda: plain(nn.Dropout(0.3)), lambda: plain(nn.Dropout(0.5)), r"the layer 2 \(Dropout\) differs in its setting p"),
    "dilation": (lambda: convolution(), lambda: convolution(dilation=2, padding=1), "the layer 0 .Conv2d. differs in its setting"),
    "stride": (lambda: convolution(padding=3, stride=3), lambda: convolution(padding=1, stride=2), "the layer 0 .Conv2d. differs"),
    "hook": (plain, lambda: hooked(doubled), r"the layer 2 \(ReLU\) differs in its hooks"),
    "code of a hook": (lambda: hooked(doubled), lambda: hooked(raised), "hooks"),
    "order of hooks": (lambda: hooked(doubled, raised), lambda: hooked(raised, doubled), "hooks"),
    "buffer": (lambda: buffered(1.0), lambda: buffered(2.0), r"the layer one \(Linear\) differs in its buffer mask"),
    "tensor": (lambda: Acting(by=torch.ones(2)), lambda: Acting(by=torch.zeros(2)), "setting by"),
    "module out of sight": (
        lambda: Acting(beside=[nn.Embedding.from_pretrained(torch.ones(2, 2))]),
        lambda: Acting(beside=[nn.Embedding.from_pretrained(torch.zeros(2, 2))]),
        "setting beside",
    ),
    "frozen layer": (plain, lambda: frozen("1.weight"), "the parameter 1.weight was trainable.* and is frozen"),
    "thawed layer": (lambda: frozen("1.weight"), plain, "the parameter 1.weight was frozen.* and is trainable"),
    "tied": (lambda: tied(False), lambda: tied(True), "the parameter 3.weight was trainable.* and is tied to 2.weight"),
    "type": (plain, lambda: plain().double(), "the parameter 1.weight was trainable, float32 .* and is trainable, float64"),
    "order": (
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(SIDE**2, 3), nn.Tanh()),
        lambda: nn.Sequential(nn.Linear(SIDE, 3), nn.Flatten(), nn.Tanh()),
        "the layer 0 was .*Flatten and is .*Linear",
    ),
}


def refused_before_a_draw(monkeypatch, folder, match: str, **settings) -> str:
    """Resuming is refused with this sentence, nothing was drawn, and the checkpoint is as it was."""
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with monkeypatch.context() as patched:
        patched.setattr(Stream, "generator", lambda *given: pytest.fail("something was drawn"))
        with pytest.raises(sartor.SartorError, match=match) as caught:
            resumed(folder, **settings)
    assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return str(caught.value)


def differs(one, other) -> str | None:
    """What tells two models apart, by what a checkpoint keeps of one."""
    made = []
    for make in (one, other):
        model = make()
        made.append(identity.identity(model, torch.optim.SGD(model.parameters(), lr=0.1), records(), None))
    return identity.difference(json.loads(json.dumps(made[0].to_json())), made[1])


@pytest.mark.parametrize("kind", MODELS)
def test_a_model_that_computes_otherwise_is_refused_and_the_same_built_anew_is_not(tmp_path, monkeypatch, kind):
    one, other, match = MODELS[kind]
    begun(tmp_path, one())
    said = refused_before_a_draw(monkeypatch, tmp_path, match, model=other())
    assert "the checkpoint belongs to another run" in said
    assert "0x" not in said
    assert differs(one, one) is None


# -- data, collate, settings


class Changing(Dataset):
    """Records through a transform, of which some are only seen at random."""

    def __init__(self, transform=None, *more, folder="", chance=0.0):
        self.transform, self.more, self.folder, self.chance = transform, more, folder, chance
        self.read: dict[int, object] = {}

    def __len__(self):
        return HOLDERS

    def __getitem__(self, i):
        inputs, target = self.read.setdefault(i, records()[i])
        if self.transform is not None and float(torch.rand(())) < self.chance:
            inputs = self.transform(inputs)
        return inputs, int(target)


class Steeper(Changing):
    def __getitem__(self, i):
        inputs, target = super().__getitem__(i)
        return inputs + 0, target


def twice(inputs):
    return 2 * inputs


def thrice(inputs):
    return 3 * inputs


DATA = {
    "transform": (lambda: Changing(twice), lambda: Changing(thrice), r"the data set \(Changing\) differs in its setting transform"),
    "new transform": (Changing, lambda: Changing(twice), "setting transform"),
    "list of transforms": (lambda: Changing(None, twice), lambda: Changing(None, thrice), "setting more"),
    "transform deep within": (
        lambda: Subset(Changing(twice), range(HOLDERS)),
        lambda: Subset(Changing(thrice), range(HOLDERS)),
        r"the data set \(Subset\) differs in its setting dataset",
    ),
    "chance": (lambda: Changing(twice, chance=1e-9), lambda: Changing(twice, chance=1e-10), "setting chance"),
    "code": (lambda: Changing(twice), lambda: Steeper(twice), "the data set was Changing and is Steeper"),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", DATA)
def test_a_data_set_that_makes_its_records_otherwise_is_refused(tmp_path, monkeypatch, kind):
    """Though none of the records that were looked at differs."""
    one, other, match = DATA[kind]
    stopped(tmp_path, dataset=one())
    refused_before_a_draw(monkeypatch, tmp_path, match, dataset=other())
    assert resumed(tmp_path, dataset=one()).steps == STEPS


def test_the_same_bytes_in_another_shape_or_type_are_other_data(tmp_path):
    inputs, targets = records().tensors
    of = [
        fingerprint(*reversed(setting()), TensorDataset(changed, targets))["data"]
        for changed in (inputs, inputs.transpose(2, 3).contiguous().view_as(inputs), inputs.flatten(1), inputs.view(torch.int32))
    ]
    assert len(set(of)) == 4


class Words(collections.UserDict):
    """As the encodings of tokenizers are."""


@dataclasses.dataclass
class Sheet:
    x: torch.Tensor


class Slotted:
    __slots__ = ("x",)

    def __init__(self, x):
        self.x = x


class Store(collections.abc.MutableMapping):
    """As the graphs of PyTorch Geometric keep what they hold, with a way back to the graph."""

    def __init__(self, parent, x):
        self._mapping, self._parent = {"x": x}, weakref.ref(parent)

    def __getitem__(self, key):
        return self._mapping[key]

    def __setitem__(self, key, value):
        self._mapping[key] = value

    def __delitem__(self, key):
        del self._mapping[key]

    def __iter__(self):
        return iter(self._mapping)

    def __len__(self):
        return len(self._mapping)


class Graph:
    def __init__(self, x):
        self._store = Store(self, x)

    @property
    def x(self):
        return self._store["x"]


class Lazy(Dataset):
    """Records of an object that keeps something to itself."""

    def __len__(self):
        return HOLDERS

    def __getitem__(self, i):
        sheet = Sheet(records().tensors[0][i])
        sheet.parts = (part for part in [sheet.x])
        return sheet, int(records().tensors[1][i])


def picture(x):
    image = pytest.importorskip("PIL.Image")
    return image.fromarray((x[0].abs() * 50).clamp(0, 255).to(torch.uint8).numpy())


HOLDING = {
    "mapping": (lambda x: Words({"x": x}), lambda held: held["x"]),
    "dataclass": (Sheet, lambda held: held.x),
    "slots": (Slotted, lambda held: held.x),
    "graph": (Graph, lambda held: held.x),
    "image": (picture, lambda held: torch.from_numpy(np.array(held))[None] / 50),
    "numbers of Python": (lambda x: [decimal.Decimal(repr(float(v))) for v in x.flatten()], lambda held: torch.tensor([*map(float, held)])),
    "queue": (lambda x: collections.deque(x.flatten().tolist()), lambda held: torch.tensor([*held])),
    "objects in an array": (
        lambda x: np.array([Sheet(row) for row in x[0]], object),
        lambda held: torch.stack([row.x for row in held]),
    ),
}


class Held(Dataset):
    """Records that hold an object, of the usual data or of others from the tenth record on."""

    def __init__(self, kind, other=False):
        self._make, inputs = kind, records().tensors[0].clone()
        if other:
            inputs[10:] = inputs[10:].flip(3)
        self._items = [kind(x) for x in inputs]

    def __len__(self):
        return HOLDERS

    def __getitem__(self, i):
        return self._items[i], int(records().tensors[1][i])


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", HOLDING)
def test_other_data_in_objects_are_refused(tmp_path, monkeypatch, kind):
    make, look = HOLDING[kind]

    def collate(items):
        return torch.stack([look(held).float() for held, _ in items]), torch.tensor([target for _, target in items])

    stopped(tmp_path, dataset=Held(make), collate=collate)
    refused_before_a_draw(monkeypatch, tmp_path, "another data set", dataset=Held(make, other=True), collate=collate)
    assert resumed(tmp_path, dataset=Held(make), collate=collate).steps == STEPS


def test_of_data_that_cannot_be_seen_no_checkpoint_is_written(tmp_path):
    def collate(items):
        return torch.stack([held.x for held, _ in items]), torch.tensor([target for _, target in items])

    with pytest.warns(NotSaved, match="an object of generator, which does not show what is in it.* could not be resumed"):
        stopped(tmp_path / "run", dataset=Lazy(), collate=collate)
    assert not (tmp_path / "run").exists()
    with pytest.raises(sartor.SartorError, match="no checkpoint to resume from"):
        resumed(tmp_path / "run", dataset=Lazy(), collate=collate)


def collating(by: float):
    def collate(items):
        return torch.stack([by * inputs for inputs, _ in items]), torch.tensor([int(target) for _, target in items])

    return collate


def plainly(items):
    return torch.stack([inputs for inputs, _ in items]), torch.tensor([int(target) for _, target in items])


@pytest.mark.parametrize(("one", "other"), [(None, plainly), (plainly, None), (plainly, collating(1.0)), (collating(1.0), collating(2.0))])
def test_another_collate_function_is_refused(tmp_path, monkeypatch, one, other):
    stopped(tmp_path, collate=one)
    refused_before_a_draw(monkeypatch, tmp_path, "the collate function differs", collate=other)
    assert resumed(tmp_path, collate=one).steps == STEPS


class Slower(torch.optim.SGD):
    def step(self, closure=None):
        super().step(closure)


def groups(*sizes: int):
    def make(parameters):
        parts = iter(parameters)
        return torch.optim.SGD([{"params": [next(parts) for _ in range(size)]} for size in sizes], lr=0.1)

    return make


def grouped(*places: list[int]):
    def make(parameters):
        own = list(parameters)
        return torch.optim.SGD([{"params": [own[place] for place in part]} for part in places], lr=0.1)

    return make


def by_function(rate: float):
    return lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate**step)


def steps_of(*milestones: int):
    return lambda optimizer: torch.optim.lr_scheduler.MultiStepLR(optimizer, list(milestones))


def warming(step, *, warmup):
    return min(1.0, step / warmup)


def by_partial(warmup: int):
    """As schedules of Hugging Face's transformers are made."""
    return lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, functools.partial(warming, warmup=warmup))


class Own:
    """A scheduler of one's own, whose state is the step alone."""

    def __init__(self, optimizer, inner):
        self.optimizer, self.inner, self.taken = optimizer, inner, 0

    def step(self):
        self.taken += 1
        for group in self.optimizer.param_groups:
            group["lr"] = self.inner(self.taken) if callable(self.inner) else min(1.0, self.taken / self.inner)

    def state_dict(self):
        return {"taken": self.taken}

    def load_state_dict(self, state):
        self.taken = state["taken"]


def own(inner):
    return lambda optimizer: Own(optimizer, inner)


class Reserved(Own):
    """The same, with what it follows in a private name."""

    def __init__(self, optimizer, warmup):
        super().__init__(optimizer, None)
        self._warmup = warmup

    def step(self):
        self.taken += 1
        for group in self.optimizer.param_groups:
            group["lr"] = min(1.0, self.taken / self._warmup)


def reserved(warmup: int):
    return lambda optimizer: Reserved(optimizer, warmup)


def after(warmup: int):
    """One in another, in torch's and in one's own."""
    schedules = torch.optim.lr_scheduler
    return lambda optimizer: schedules.SequentialLR(optimizer, [by_partial(warmup)(optimizer), schedules.ConstantLR(optimizer)], [9])


def pieces(size):
    return {"execution": sartor.Execution(max_physical_batch=size)}


def draws(count):
    return {"execution": sartor.Execution(noise_draws=count)}


SETTINGS = {
    "optimizer": ({"optimizer": "sgd"}, {"optimizer": "adam"}, "the optimizer was torch.optim.sgd.SGD and is torch.optim.adam.Adam"),
    "code of the optimizer": ({"optimizer": torch.optim.SGD}, {"optimizer": Slower}, "the optimizer was .*SGD and is Slower"),
    "groups": ({"optimizer": groups(2, 2)}, {"optimizer": groups(1, 3)}, "the optimizer .SGD. differs in its groups"),
    "groups of as many": (
        {"optimizer": grouped([0, 1], [2, 3])},
        {"optimizer": grouped([0, 3], [2, 1])},
        "the optimizer .SGD. differs in its groups",
    ),
    "schedule by a function": ({"scheduler": by_function(0.9)}, {"scheduler": by_function(0.5)}, "the scheduler differs"),
    "schedule by a partial": ({"scheduler": by_partial(2)}, {"scheduler": by_partial(9)}, "the scheduler differs"),
    "schedule in another": ({"scheduler": after(2)}, {"scheduler": after(8)}, "the scheduler differs"),
    "schedule of one's own": ({"scheduler": own(2)}, {"scheduler": own(50)}, "the scheduler differs"),
    "in a private name": ({"scheduler": reserved(2)}, {"scheduler": reserved(50)}, "the scheduler differs"),
    "its function": ({"scheduler": own(lambda n: 1 / n)}, {"scheduler": own(lambda n: 2 / n)}, "the scheduler differs"),
    "schedule of another kind": ({"scheduler": by_function(0.9)}, {"scheduler": steps_of(2)}, "the scheduler differs"),
    "no schedule": ({"scheduler": steps_of(2)}, {}, "the scheduler differs"),
    "pieces": (pieces(4), pieces(5), "the largest physical batch differs"),
    "one piece": (pieces(4), {}, "the largest physical batch differs"),
    "noise": (draws(1), draws(2), "the number of noise draws differs"),
}


@pytest.mark.parametrize("kind", SETTINGS)
def test_other_settings_are_refused_by_name(tmp_path, monkeypatch, kind):
    one, other, match = SETTINGS[kind]
    stopped(tmp_path, **one)
    refused_before_a_draw(monkeypatch, tmp_path, match, **other)
    assert resumed(tmp_path, **one).steps == STEPS


def test_pieces_fitted_to_the_memory_are_those_of_the_checkpoint(tmp_path, monkeypatch):
    """Dropout is drawn piece by piece, so other pieces would be other sums."""
    stopped(tmp_path, execution=sartor.Execution(max_physical_batch="auto"))
    monkeypatch.setattr(os, "sysconf", lambda name: 1)
    assert resumed(tmp_path, execution=sartor.Execution(max_physical_batch="auto")).steps == STEPS


def test_other_versions_are_refused_by_name(tmp_path, monkeypatch):
    stopped(tmp_path)
    for name in ("torch", "numpy", "randomgen", "sartor", "python"):
        with monkeypatch.context() as patched:
            patched.setattr(identity, "version", lambda of, name=name: "0.0.1" if of == name else version(of))
            refused_before_a_draw(monkeypatch, tmp_path, f"{name} was .* and is 0.0.1")
    assert resumed(tmp_path).steps == STEPS


def test_another_precision_is_refused(tmp_path, monkeypatch):
    stopped(tmp_path)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        refused_before_a_draw(monkeypatch, tmp_path, "precision of products was highest and is medium")
    finally:
        torch.set_float32_matmul_precision(before)
    assert resumed(tmp_path).steps == STEPS


def test_a_run_that_is_looked_at_otherwise_takes_the_same_steps(tmp_path):
    """Callbacks and evaluations may draw random numbers; those of the model's dropout stay what they were."""
    first, others = plain(nn.Dropout(0.5)), TensorDataset(records().tensors[0][:9] + 1, records().tensors[1][:9])
    whole = fitted(copy.deepcopy(first), seed=1)
    stopped(tmp_path, model=copy.deepcopy(first), seed=1)
    other = resumed(tmp_path, model=first, callbacks=[lambda progress: torch.rand(7)], evaluation=sartor.Evaluation(others, every=1))
    assert all(torch.equal(one, two) for one, two in zip(whole.model.parameters(), other.model.parameters(), strict=True))


# -- loops of one's own


def test_a_loop_of_ones_own_is_compared_as_well(tmp_path):
    budgets, plan = setting()
    of = fingerprint(plan, budgets, records())

    def private(model, **settings):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return sartor.make_private(model, optimizer, records(), budgets, plan, **settings)

    def take(model, optimizer, batch):
        optimizer.zero_grad()
        functional.cross_entropy(model(batch[0]), batch[1]).backward()
        optimizer.step()

    model, optimizer, loader = private(plain())
    take(model, optimizer, next(iter(loader)))
    save_checkpoint(tmp_path, optimizer, loader, of)
    unwrap(model, optimizer)
    for other, settings, match in (
        (plain(nn.Tanh()), {}, "the layer 2 was .*ReLU and is .*Tanh"),
        (plain(), {"collate": plainly}, "collate"),
        (plain(), {"max_physical_batch": 3}, "largest physical batch"),
    ):
        found = Checkpoint(tmp_path, of)
        _, resumed, rest = private(other, stream=found.stream, kernels=found.kernels, **settings)
        before = [parameter.clone() for parameter in other.parameters()]
        with pytest.raises(sartor.SartorError, match=match):
            found.restore(resumed, rest)
        assert all(torch.equal(one, two) for one, two in zip(before, other.parameters(), strict=True))
    found = Checkpoint(tmp_path, of)
    model, optimizer, loader = private(plain(), stream=found.stream, kernels=found.kernels)
    found.restore(optimizer, loader)
    for batch in loader:
        take(model, optimizer, batch)
    assert optimizer.account().steps == STEPS


# -- the same run goes on


class Busy(nn.Module):
    """A model that counts, remembers, logs, locks, refers to itself, and keeps what its command was called with."""

    def __init__(self, called: argparse.Namespace):
        super().__init__()
        self.one, self.two = nn.Linear(SIDE**2, 5), nn.Linear(5, 3)
        self.called, self.calls, self.seen, self.lock, self.log = called, 0, None, threading.Lock(), logging.getLogger("busy")
        self.itself, self.weight, self.kinds = [self], self.one.weight, {"b", "a", torch.relu, frozenset("xyz")}
        self.generator, self.optimizer = torch.Generator(), torch.optim.SGD(self.one.parameters(), lr=0.1)
        self.act, self.cached = functools.lru_cache(self.chosen), functools.partial(twice)

    def chosen(self, name):
        return {"relu": torch.relu, "tanh": torch.tanh}[name]

    def forward(self, images):
        self.calls += 1
        self.seen = images.detach()
        return self.two(self.act(self.called.act)(self.one(images.flatten(1))))


def test_a_model_that_changes_as_it_trains_resumes_when_it_is_built_anew(tmp_path, monkeypatch):
    """From its beginning, since what it counts may be what it computes with."""
    with pytest.warns(NotSaved, match="differs in its setting calls, .*would resume from its step 0"):
        stopped(tmp_path, model=Busy(argparse.Namespace(act="relu", resume=False)))
    refused_before_a_draw(monkeypatch, tmp_path, "setting called", model=Busy(argparse.Namespace(act="tanh", resume=False)))
    assert resumed(tmp_path, model=Busy(argparse.Namespace(act="relu", resume=True))).steps == STEPS


def test_data_that_were_read_already_and_lie_elsewhere_resume(tmp_path):
    """A data set that keeps what it read, in a folder that was moved, with a method of its own as collate function."""

    class Kept(Changing):
        def collate(self, items):
            return plainly(items)

    places = [tmp_path / name for name in ("here", "there")]
    for place in places:
        place.mkdir()
    one, other = (Kept(twice, folder=str(place)) for place in places)
    stopped(tmp_path / "run", dataset=one, collate=one.collate)
    assert len(one.read) == HOLDERS
    other.read.clear()
    assert resumed(tmp_path / "run", dataset=other, collate=other.collate).steps == STEPS


def pruned() -> nn.Module:
    model = plain()
    prune.random_unstructured(model[1], "weight", amount=2)
    return model


ODD = {
    "parametrized": lambda: plain(nn.utils.parametrizations.weight_norm(nn.Linear(5, 5))),
    "spectral": lambda: plain(nn.utils.parametrizations.spectral_norm(nn.Linear(5, 5))),
    "hooked spectral": lambda: plain(nn.utils.spectral_norm(nn.Linear(5, 5))),
    "hooked weight": lambda: plain(nn.utils.weight_norm(nn.Linear(5, 5))),
    "pruned": pruned,
    "recurrent": lambda: nn.LSTM(3, 4, 2),
    "attention": lambda: nn.TransformerEncoderLayer(8, 2, batch_first=True),
    "scripted": lambda: torch.jit.script(plain()),
    "traced": lambda: torch.fx.symbolic_trace(plain()),
    "compiled": lambda: torch.compile(plain()),
    "lazy tensors": lambda: plain().to("meta"),
}


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.filterwarnings("ignore")
def test_odd_models_are_the_same_when_built_anew_from_other_random_numbers(kind):
    assert differs(ODD[kind], ODD[kind]) is None


@pytest.mark.filterwarnings("ignore")
def test_odd_models_of_other_code_differ():
    for wrap in (torch.jit.script, torch.fx.symbolic_trace, torch.compile):
        assert differs(lambda wrap=wrap: wrap(plain()), lambda wrap=wrap: wrap(plain(nn.Tanh()))) is not None
    assert differs(ODD["parametrized"], ODD["spectral"]) is not None


@pytest.mark.parametrize(("name", "shape"), [("mnist-cnn", (1, 28, 28)), ("cifar-cnn", (3, 32, 32)), ("resnet18-gn", (3, 32, 32))])
def test_the_papers_networks_are_the_same_when_built_anew(name, shape):
    made = functools.partial(build, name, shape=shape, classes=10)
    assert differs(made, made) is None


def test_wrapped_functions_are_seen_through():
    """A wrapper takes over the name and module of what it wraps; what counts is where its code was written."""

    def scaled(by):
        @functools.wraps(functional.cross_entropy)
        def loss(*given, **named):
            return by * functional.cross_entropy(*given, **named)

        return loss

    assert digest(scaled(1)) == digest(scaled(1))
    assert len({digest(f) for f in (scaled(1), scaled(2), functional.cross_entropy, functools.lru_cache(scaled(1)))}) == 4
    assert digest(functools.lru_cache(scaled(1))) == digest(functools.lru_cache(scaled(1)))
    assert digest(functools.lru_cache(scaled(1))) != digest(functools.lru_cache(scaled(2)))


def test_decorators_of_packages_and_patched_packages_are_seen_through(monkeypatch):
    """They take over names, and keep the user's code in a closure; and a package's class may hold a method of the user's."""

    def decorated(by):
        class Decorated(Acting):
            @torch.enable_grad()
            def forward(self, images):
                return by * super().forward(images)

        return Decorated

    assert differs(decorated(1), decorated(1)) is None
    assert differs(decorated(1), decorated(2)).endswith("(Decorated) differs in its code")

    def patched():
        monkeypatch.setattr(nn.ReLU, "forward", lambda self, values: values.tanh())
        return plain()

    assert differs(plain, patched) == "the layer 2 (ReLU) differs in its code"
    monkeypatch.undo()

    def replaced():
        monkeypatch.setattr(functional, "relu", lambda values: values.tanh())
        return written()

    assert differs(written, replaced) == "the model (Written) differs in its code"


def test_classes_of_code_without_a_name_are_seen():
    def made(by):
        namespace = {"Acting": Acting}
        exec(f"class Made(Acting):\n    def forward(self, images):\n        return {by} * super().forward(images)", namespace)
        return namespace["Made"]()

    assert differs(lambda: made(1), lambda: made(1)) is None
    assert differs(lambda: made(1), lambda: made(2)) == "the model (Made) differs in its code"


JOB = """
import dataclasses, enum, functools, operator, re, sys, warnings
import torch, transformers
from torch import nn
from torch.nn import functional as F
import sartor
from sartor.models import from_config

torch.set_num_threads(1)
KINDS = {"relu", "tanh", "gelu", "elu"}
SCALE = functools.partial(operator.mul, 1.0)
PATTERN = re.compile("[a-z]+")


class Way(enum.Enum):
    UP = enum.auto()
    DOWN = "down"


@dataclasses.dataclass
class Config:
    act: str = "relu"
    ways: tuple = (Way.UP, Way.DOWN)
    names: frozenset = frozenset({"a", "b", "c"})
    functions: dict = dataclasses.field(default_factory=lambda: {"relu": torch.relu, "twice": lambda x: 2 * x})


def decorated(function):
    @functools.wraps(function)
    def call(*given):
        return SCALE(function(*given))
    return call


class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.config, self.kinds, self.first = Config(), KINDS, operator.itemgetter(0)
        sizes = dict(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, vocab_size=20)
        self.bert = from_config(transformers.BertConfig(max_position_embeddings=8, **sizes), 3)
        self.head = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))

    @decorated
    def forward(self, tokens):
        assert self.config.act in {"relu", "tanh"} and PATTERN.match(self.config.act)
        return self.head(self.config.functions[self.config.act](self.bert(tokens)))


class Records(torch.utils.data.Dataset):
    def __init__(self):
        self.transform = lambda tokens: tokens + 0

    def __len__(self):
        return 40

    def __getitem__(self, i):
        return self.transform(torch.arange(i, i + 6) % 20), i % 3


def train(folder, resume, callbacks=()):
    budgets = sartor.Budgets.from_groups([(1.0, 20), (4.0, 20)], delta=1e-3)
    plan = sartor.plan(budgets, "scale", steps=4, batch=8, clip=0.1)
    weights = torch.tensor([1.0, 2.0, 3.0])
    return sartor.fit(
        Tokens(), Records(), budgets, plan, loss=lambda out, y: F.cross_entropy(out, y, weights, reduction="none"),
        collate=lambda items: (torch.stack([x for x, _ in items]), torch.tensor([y for _, y in items])),
        optimizer=lambda p: torch.optim.Adam(p, lr=0.01), scheduler=lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda n: 0.9**n),
        checkpoints=sartor.Checkpoints(folder, every=2, resume=resume), callbacks=callbacks, progress=False,
    )


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print(train(sys.argv[1], True).steps)
"""


def test_the_same_code_in_a_fresh_process_goes_on(tmp_path):
    """Begun by an import, resumed as a script under another order of sets; with a transformer, dataclasses, enums and closures."""
    script = tmp_path / "the job.py"
    script.write_text(JOB)
    spec = importlib.util.spec_from_file_location("job", script)
    job = importlib.util.module_from_spec(spec)
    threads = torch.get_num_threads()
    sys.modules["job"] = job
    try:
        spec.loader.exec_module(job)

        def stop(progress):
            if progress.step == 3:
                raise Stopped

        with pytest.raises(Stopped):
            job.train(tmp_path / "run", False, [stop])
    finally:
        del sys.modules["job"]
        torch.set_num_threads(threads)

    command = [sys.executable, str(script), str(tmp_path / "run")]
    env = {**os.environ, "PYTHONHASHSEED": "4321"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=env, check=False)
    assert (done.stdout.strip(), done.returncode) == ("4", 0), done.stderr
