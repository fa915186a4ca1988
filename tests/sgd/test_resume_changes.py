"""What changes on the way is put back by a checkpoint, or no checkpoint is written: no step is released twice with other sums."""

import contextlib
import functools
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset, TensorDataset

import sartor
from sartor.sgd import Changed, NotSaved
from sartor.sgd.checkpoint import exists, fingerprint, save_checkpoint
from sartor.sgd.digests import digest

HOLDERS, STEPS = 40, 6


class Stopped(Exception):
    pass


@functools.cache
def planned():
    budgets = sartor.Budgets(epsilon=np.repeat([1.0, 4.0], HOLDERS // 2), delta=1e-3)
    return budgets, sartor.plan(budgets, "scale", steps=STEPS, batch=12, clip=0.1)


class Records(Dataset):
    def __init__(self):
        self.scale = 1.0

    def __len__(self):
        return HOLDERS

    def __getitem__(self, i):
        return self.scale * torch.sin(torch.arange(4) * (i + 1.0)), i % 3


class Tempered(nn.Module):
    """Divides by a temperature, which is an attribute or a buffer."""

    def __init__(self, kept: bool = False):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            self.layer, self.dropped = nn.Linear(4, 3), nn.Dropout(0.0)
        if kept:
            self.register_buffer("tau", torch.tensor(5.0))
        else:
            self.tau = 5.0
        self.settings = {"scale": 1.0}

    def forward(self, inputs):
        return self.settings["scale"] * self.layer(self.dropped(inputs)) / self.tau


class Parts:
    """All that a run is made of, and that a callback may change."""

    def __init__(self, kept: bool = False):
        self.model, self.dataset, self.weight, self.rate, self.by = Tempered(kept), Records(), [1.0], [0.9], [1.0]
        self.scale = scale = [1.0]
        self.model.layer.register_forward_hook(lambda module, inputs, output: scale[0] * output)

    def run(self, folder, change, *, resume: bool, stop: int | None = None) -> dict[int, torch.Tensor]:
        """The models that a run showed, by step."""
        weight, rate, by, shown = self.weight, self.rate, self.by, {}

        def loss(outputs, targets):
            return weight[0] * functional.cross_entropy(outputs, targets, reduction="none")

        def collate(items):
            return torch.stack([by[0] * inputs for inputs, _ in items]), torch.tensor([target for _, target in items])

        def follow(progress):
            shown[progress.step] = torch.cat([value.detach().flatten() for value in progress.model.parameters()]).clone()
            change(self, progress.step)
            if progress.step == stop:
                raise Stopped

        budgets, plan = planned()
        run = {"checkpoints": sartor.Checkpoints(folder, 2, resume), "callbacks": [follow], "lr": 1.0, "progress": False}
        with contextlib.suppress(Stopped):
            sartor.fit(
                *(self.model, self.dataset, budgets, plan),
                loss=loss,
                collate=collate,
                scheduler=lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate[0] ** step),
                **run,
            )
        return shown


def setting(name: str):
    return lambda parts, step: setattr(parts.model, name, 5.0 / (1 + step))


CHANGES = {
    "attribute": (setting("tau"), r"the model \(Tempered\) differs in its setting tau"),
    "of torch's": (lambda parts, step: setattr(parts.model.dropped, "p", 0.1 * step), r"the layer dropped \(Dropout\) .* setting p"),
    "dictionary": (lambda parts, step: parts.model.settings.update(scale=1.0 + step), "setting settings"),
    "hook": (lambda parts, step: parts.scale.__setitem__(0, 1.0 + step), r"the layer layer \(Linear\) differs in its hooks"),
    "data set": (lambda parts, step: setattr(parts.dataset, "scale", 1.0 + step), r"the data set \(Records\) differs in its setting scale"),
    "collate": (lambda parts, step: parts.by.__setitem__(0, 1.0 + step), "the collate function differs"),
    "loss": (lambda parts, step: parts.weight.__setitem__(0, 1.0 + step), "the loss differs"),
    "scheduler": (lambda parts, step: parts.rate.__setitem__(0, 1.0 / step), "the scheduler differs"),
}


@pytest.mark.parametrize("kind", CHANGES)
@pytest.mark.filterwarnings("ignore:.*lr_scheduler")
def test_a_step_after_a_resume_is_the_same_step_though_callbacks_change_the_run(tmp_path, kind):
    change, sentence = CHANGES[kind]
    with pytest.warns(NotSaved, match=f"{sentence}.*Stopped now, this run would resume from its step 0"):
        first = Parts().run(tmp_path, change, resume=False, stop=3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotSaved)
        again = Parts().run(tmp_path, change, resume=True)
    assert sorted(again) == list(range(1, STEPS + 1))
    assert all(torch.equal(again[step], model) for step, model in first.items())
    assert Parts().run(tmp_path, change, resume=True) == {}, "the run is over, and its end is kept"


def test_what_is_kept_in_a_buffer_is_put_back(tmp_path):
    def change(parts, step):
        parts.model.tau.fill_(5.0 / (1 + step))

    first = Parts(kept=True).run(tmp_path, change, resume=False, stop=3)
    again = Parts(kept=True).run(tmp_path, change, resume=True)
    assert sorted(again) == [3, 4, 5, 6]
    assert torch.equal(first[3], again[3])


def test_a_change_late_in_a_run_leaves_the_checkpoint_before_it(tmp_path):
    def change(parts, step):
        parts.model.tau = 5.0 if step < 3 else 1.0

    with pytest.warns(NotSaved, match="would resume from its step 2"):
        first = Parts().run(tmp_path, change, resume=False, stop=5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotSaved)
        again = Parts().run(tmp_path, change, resume=True)
    assert sorted(again) == [3, 4, 5, 6]
    assert all(torch.equal(first[step], again[step]) for step in (3, 4, 5))


def test_a_loop_of_ones_own_is_told_that_nothing_was_saved(tmp_path):
    budgets, plan = planned()
    data = TensorDataset(torch.ones(HOLDERS, 4), torch.zeros(HOLDERS, dtype=torch.long))
    model = Tempered()
    model, optimizer, loader = sartor.make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), data, budgets, plan)
    of = fingerprint(plan, budgets, data)
    for inputs, targets in loader:
        optimizer.zero_grad()
        functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        if optimizer.run.left:
            model.tau = 1.0
            with pytest.raises(Changed, match=r"setting tau, which a checkpoint does not put back, .*register_buffer"):
                save_checkpoint(tmp_path, optimizer, loader, of)
            assert not exists(tmp_path)
            model.tau = 5.0
            save_checkpoint(tmp_path, optimizer, loader, of)
            break


def vocabulary(one: int = 0, other: int = 0) -> list[str]:
    words = [f"word {i}" for i in range(30_000)]
    words[one], words[other] = words[other], words[one]
    return words


@pytest.mark.parametrize(
    "kept",
    [
        list,
        tuple,
        lambda words: {word: i for i, word in enumerate(words)},
        lambda words: [(word, i) for i, word in enumerate(words)],
        lambda words: {(word, i) for i, word in enumerate(words)},
        lambda words: [[word, {"at": i}] for i, word in enumerate(words)],
        lambda words: [*words, *(object() for _ in range(20_000))],
    ],
    ids=["list", "tuple", "dictionary", "pairs", "set of pairs", "nested", "among objects"],
)
def test_two_words_exchanged_in_a_large_vocabulary_are_seen(kept):
    def collating(words):
        return lambda items: [words for _ in items]

    whole = digest(collating(kept(vocabulary())))
    assert digest(collating(kept(vocabulary()))) == whole
    assert digest(collating(kept(vocabulary(10_003, 10_004)))) != whole
