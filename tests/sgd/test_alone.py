"""An example alone equals its part in the batch: everything between a record and its gradient that breaks this law is refused."""

import random
import warnings
from collections import UserDict
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from sartor.sgd.alone import Alone, places
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset, TensorDataset

import sartor
from sartor.run.stream import Stream
from sartor.sgd.check import Unchecked
from sartor.sgd.gradients import Owners
from sartor.sgd.pieces import Piece

CLASSES, WORDS = 3, 12


class Sentences(Dataset):
    """Sequences of tokens of different lengths, with a class for each token."""

    def __init__(self, size=60, equal=0):
        torch.manual_seed(0)
        lengths = [5 if i < equal else int(n) for i, n in enumerate(torch.randint(2, 9, (size,)))]
        self.items = [(torch.randint(1, WORDS, (n,)), torch.randint(0, CLASSES, (n,))) for n in lengths]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def padded(items, fill=-100):
    longest = max(len(x) for x, _ in items)
    inputs = torch.stack([functional.pad(x, (0, longest - len(x))) for x, _ in items])
    return inputs, torch.stack([functional.pad(y, (0, longest - len(y)), value=fill) for _, y in items])


class Tagger(nn.Module):
    """A class for every position, each from its own token."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.words, self.last = nn.Embedding(WORDS, 6, padding_idx=0), nn.Linear(6, CLASSES)

    def forward(self, tokens):
        return self.last(self.words(tokens)).transpose(1, 2)


class Classifier(Tagger):
    """One class for each example: the mean over positions, padded ones included or not."""

    def __init__(self, masked=True):
        super().__init__()
        self.masked = masked

    def forward(self, tokens):
        hidden = self.words(tokens)
        count = (tokens != 0).sum(1, keepdim=True) if self.masked else tokens.shape[1]
        return self.last(hidden.sum(1) / count)


def whole(items):
    """Sequences padded, with one class for each."""
    inputs, targets = padded(items)
    return inputs, targets[:, 0]


def plan_for(data, steps=3, batch=20):
    budgets = sartor.Budgets.from_groups([(2.0, len(data) // 2), (8.0, len(data) - len(data) // 2)], delta=1e-2)
    return budgets, sartor.plan(budgets, steps=steps, batch=batch, clip=0.1)


def fit(model, data, **options):
    budgets, plan = plan_for(data, options.pop("steps", 3))
    return sartor.fit(model, data, budgets, plan, lr=0.1, progress=False, seed=3, **options)


def loop(data, collate, model=None, **options):
    """A loop of one's own: the first batch and its step."""
    budgets, plan = plan_for(data)
    model = Classifier() if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = sartor.make_private(model, optimizer, data, budgets, plan, collate=collate, seed=3, **options)
    for batch in loader:
        inputs, targets = batch if isinstance(batch, tuple | list) else (batch["inputs"], batch["targets"])
        functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    return optimizer.account()


def refused(*words):
    return pytest.raises(sartor.SartorError, match="|".join(words))


# padding


def sums_moved(collate, lengths=(3, 30)):
    """How far one person's length moves another's gradient, through `fit`'s own loss and `collate`."""
    from sartor.sgd.loss import Loss

    torch.manual_seed(0)
    model, measure = Tagger(), Loss(None)
    mine, other = ((torch.randint(1, WORDS, (n,)), torch.randint(0, CLASSES, (n,))) for n in lengths)

    def gradient(items):
        inputs, targets = collate(items)
        return torch.autograd.grad(measure(model(inputs), targets)[0], list(model.parameters()))

    alone, beside = gradient([mine]), gradient([mine, other])
    return max(float((a - b).norm() / a.norm()) for a, b in zip(alone, beside, strict=True))


def test_ignored_targets_are_left_out_of_an_examples_mean():
    assert sums_moved(padded) < 1e-5


def test_a_tagger_on_padded_sequences_trains():
    assert fit(Tagger(), Sentences(), collate=padded).steps == 3


def test_a_mean_over_padded_positions_is_refused():
    with refused("padded"):
        fit(Tagger(), Sentences(), collate=lambda items: padded(items, fill=0))
    with refused("padded"):
        fit(Classifier(masked=False), Sentences(), collate=whole)
    assert fit(Classifier(), Sentences(), collate=whole).steps == 3


def test_padding_is_told_to_a_loop_whose_loss_cannot_be_seen():
    with pytest.warns(Unchecked, match="padded to the longest"):
        loop(Sentences(), whole)


# collating


def by_maximum(items):
    inputs, targets = torch.stack([x for x, _ in items]), torch.stack([y for _, y in items])
    return inputs / inputs.abs().max(), targets


def by_length(items):
    return whole(sorted(items, key=lambda item: len(item[0])))


@dataclass
class Holding:
    """A batch as an object of somebody's own."""

    inputs: torch.Tensor
    targets: torch.Tensor

    def __getitem__(self, name):
        return getattr(self, name)


class Encoding(UserDict):
    """What tokenizers return: a mapping that is no dictionary."""


def numbers(size=60):
    torch.manual_seed(0)
    return TensorDataset(torch.randn(size, 4), torch.randint(0, CLASSES, (size,)))


@pytest.mark.parametrize("train", [fit, loop])
def test_a_collate_that_scales_by_the_batch_is_refused(train):
    with refused("not the same alone"):
        train(nn.Linear(4, CLASSES), numbers(), collate=by_maximum) if train is fit else loop(numbers(), by_maximum, nn.Linear(4, CLASSES))


@pytest.mark.parametrize("train", [fit, loop])
def test_a_collate_that_sorts_is_refused_though_many_records_are_equally_long(train):
    data = Sentences(60, equal=16)
    with refused("order"):
        fit(Classifier(), data, collate=by_length) if train is fit else loop(data, by_length)


@pytest.mark.parametrize("kind", [lambda **parts: Holding(**parts), lambda **parts: Encoding(parts), dict])
@pytest.mark.parametrize("mixes", [True, False])
def test_a_loop_looks_into_mappings_and_objects(kind, mixes):
    def collate(items):
        inputs, targets = (by_maximum if mixes else torch.utils.data.default_collate)(items)
        return kind(inputs=inputs, targets=targets)

    if mixes:
        with refused("not the same alone"):
            loop(numbers(), collate, nn.Linear(4, CLASSES))
    else:
        assert loop(numbers(), collate, nn.Linear(4, CLASSES)).steps == 3


class TakesEncoding(nn.Module):
    def __init__(self, width, classes):
        super().__init__()
        self.last = nn.Linear(width, classes)

    def forward(self, given):
        return self.last(given["x"])


@pytest.mark.parametrize("mixes", [True, False])
def test_fit_looks_into_what_a_tokenizer_returns(mixes):
    def collate(items):
        inputs, targets = (by_maximum if mixes else torch.utils.data.default_collate)(items)
        return Encoding(x=inputs), targets

    if mixes:
        with refused("not the same alone"):
            fit(TakesEncoding(4, CLASSES), numbers(), collate=collate)
    else:
        assert fit(TakesEncoding(4, CLASSES), numbers(), collate=collate).steps == 3


def test_a_layer_that_takes_tensors_in_an_object_is_told_so():
    class Itself(nn.Linear):
        def forward(self, given):
            return super().forward(given["x"])

    def collate(items):
        inputs, targets = torch.utils.data.default_collate(items)
        return Encoding(x=inputs), targets

    with refused("tensors in an object"):
        fit(Itself(4, CLASSES), numbers(), collate=collate)


class Sealed:
    """Shows nothing of what it holds."""

    __slots__ = ()


@pytest.mark.parametrize("train", [fit, loop])
def test_what_cannot_be_looked_into_is_refused(train):
    def collate(items):
        return Sealed(), torch.utils.data.default_collate(items)[1]

    with refused("cannot be looked into"):
        fit(nn.Linear(4, CLASSES), numbers(), collate=collate) if train is fit else loop(numbers(), collate)


def test_a_statistic_of_the_batch_beside_its_rows_is_refused():
    def collate(items):
        inputs, targets = torch.utils.data.default_collate(items)
        return {"inputs": inputs, "targets": targets, "mean": inputs.mean(0)}

    with refused("no row for each record"):
        loop(numbers(), collate, nn.Linear(4, CLASSES))


def test_a_collate_that_cannot_take_one_record_is_refused_without_its_words():
    def collate(items):
        if len(items) < 2:
            raise ValueError(f"what about {items}")
        return torch.utils.data.default_collate(items)

    with refused("fails on one record alone .ValueError.") as failure:
        loop(numbers(), collate, nn.Linear(4, CLASSES))
    assert "tensor" not in str(failure.value)


def test_a_collate_that_mixes_only_now_and_then_is_caught_at_a_step_drawn_at_random():
    calls = iter(range(10**6))

    def collate(items):
        inputs, targets = torch.utils.data.default_collate(items)
        return (inputs - inputs.mean(0) if next(calls) > 40 else inputs), targets

    budgets, plan = plan_for(data := numbers(), steps=2000)
    with refused("not the same alone"):
        sartor.fit(nn.Linear(4, CLASSES), data, budgets, plan, lr=0.1, progress=False, seed=3, collate=collate)


# honest randomness


def masks(items):
    inputs, targets = torch.utils.data.default_collate(items)
    return torch.where(torch.rand(inputs.shape) < 0.3, 0.0, inputs), targets


def masks_twice(items):
    inputs, targets = masks(items)
    return inputs + 0.1 * torch.randn(inputs.shape), torch.where(torch.rand(len(targets)) < 0.1, 0, targets)


def masks_and_mixes(items):
    inputs, targets = masks(items)
    return inputs / inputs.abs().max(), targets


class Augmented(Dataset):
    """Records with noise of their own."""

    def __init__(self, own=False):
        self.data, self.generator = numbers(), torch.Generator().manual_seed(0) if own else None

    def __len__(self):
        return len(self.data)

    def __getitem__(self, i):
        x, y = self.data[i]
        return x + torch.randn(x.shape, generator=self.generator), y


@pytest.mark.parametrize("collate", [masks, masks_twice])
@pytest.mark.parametrize("train", [fit, loop])
def test_masking_at_random_is_not_mixing(collate, train):
    model = nn.Linear(4, CLASSES)
    steps = fit(model, numbers(), collate=collate).steps if train is fit else loop(numbers(), collate, model).steps
    assert steps == 3


@pytest.mark.parametrize("train", [fit, loop])
def test_mixing_behind_random_masks_is_refused(train):
    with refused("under the same random numbers"):
        fit(nn.Linear(4, CLASSES), numbers(), collate=masks_and_mixes) if train is fit else loop(numbers(), masks_and_mixes)


@pytest.mark.parametrize("own", [False, True])
def test_records_that_change_at_random_are_not_mixing(own):
    assert fit(nn.Linear(4, CLASSES), Augmented(own)).steps == 3
    with refused("random numbers"):
        fit(nn.Linear(4, CLASSES), Augmented(own), collate=masks_and_mixes)


def dropping(p=0.5):
    return nn.Sequential(nn.Linear(4, 8), nn.Dropout(p), nn.ReLU(), nn.Dropout(p), nn.Linear(8, CLASSES))


@pytest.mark.parametrize("p", [0.5, 0.02])
def test_dropout_is_not_mixing(p):
    assert fit(dropping(p), numbers()).steps == 3


def test_padding_that_reaches_a_loss_behind_dropout_is_refused():
    class Dropping(Classifier):
        def forward(self, tokens):
            return super().forward(tokens) * functional.dropout(torch.ones(len(tokens), CLASSES), 0.2, self.training)

    with refused("padded"):
        fit(Dropping(masked=False), Sentences(), collate=whole)
    assert fit(Dropping(), Sentences(), collate=whole).steps == 3


class Samples(nn.Module):
    """Draws in every mode, as variational models do."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, CLASSES)

    def forward(self, x):
        h = self.first(x)
        return self.last(h + torch.randn_like(h))


def test_a_model_that_always_draws_is_not_mixing():
    assert fit(Samples(), numbers()).steps == 3


# losses


class Balanced(nn.Module):
    """Class weights from a moving average of the classes seen."""

    def __init__(self, rate):
        super().__init__()
        self.rate, self.seen = rate, torch.ones(CLASSES) / CLASSES

    def forward(self, outputs, targets):
        now = functional.one_hot(targets, CLASSES).float().mean(0)
        self.seen = (1 - self.rate) * self.seen + self.rate * now
        return functional.cross_entropy(outputs, targets, reduction="none") / self.seen[targets]


@pytest.mark.parametrize("rate", [0.5, 1e-2, 1e-5])
def test_a_loss_with_a_moving_average_is_refused_however_slow(rate):
    with refused("call to the next", "remembers", "not the same alone", "depends on the others"):
        fit(nn.Linear(4, CLASSES), numbers(), loss=Balanced(rate))


def test_a_moving_average_in_a_closure_is_refused():
    seen = torch.ones(CLASSES)

    def loss(outputs, targets):
        seen.mul_(0.999).add_(0.001 * functional.one_hot(targets, CLASSES).float().mean(0))
        return functional.cross_entropy(outputs, targets, reduction="none") / seen[targets]

    with refused("call to the next", "remembers", "depends on the others"):
        fit(nn.Linear(4, CLASSES), numbers(), loss=loss)


def test_a_loss_that_divides_by_the_size_of_its_batch_is_refused():
    """How many others were drawn is private as well."""
    with refused("not the same alone", "depends on the others"):
        fit(
            dropping(), numbers(), loss=lambda outputs, targets: functional.cross_entropy(outputs, targets, reduction="none") / len(targets)
        )


def test_memory_in_a_plain_attribute_of_a_layer_is_refused():
    class Remembers(nn.Module):
        memory = 0.0

        def forward(self, x):
            self.memory = 0.9999 * self.memory + 0.0001 * x.mean()
            return x + self.memory

    with refused("remembers", "mixes examples", "call to the next"):
        fit(nn.Sequential(Remembers(), nn.Linear(4, CLASSES)), numbers())


# rows that stand for all


class Position(nn.Module):
    """Adds an embedding of positions, common to all examples."""

    def __init__(self):
        super().__init__()
        self.words, self.places, self.last = nn.Embedding(WORDS, 4), nn.Embedding(10, 4), nn.Linear(4, CLASSES)

    def forward(self, tokens):
        places = torch.arange(tokens.shape[1])[None]
        return self.last((self.words(tokens) + self.places(places)).mean(1))


def test_positions_common_to_all_are_expanded():
    data = TensorDataset(torch.randint(0, WORDS, (60, 7)), torch.randint(0, CLASSES, (60,)))
    assert fit(Position(), data).steps == 3


class MeanRow(nn.Module):
    """Computes one row from everybody and takes it as common."""

    def __init__(self, tokens):
        super().__init__()
        self.tokens, self.words, self.first, self.last = tokens, nn.Embedding(WORDS, 4), nn.Linear(4, 4), nn.Linear(4, CLASSES)

    def forward(self, x):
        common = self.words(x.max(0, keepdim=True).values).mean(1) if self.tokens else self.first(x.mean(0, keepdim=True))
        own = self.words(x).mean(1) if self.tokens else x
        return self.last(own + common)


@pytest.mark.parametrize("tokens", [True, False])
def test_a_row_made_of_the_batch_is_never_expanded(tokens):
    inputs = torch.randint(0, WORDS, (60, 7)) if tokens else torch.randn(60, 4)
    with refused("mixes examples", "may be made of them"):
        fit(MeanRow(tokens), TensorDataset(inputs, torch.randint(0, CLASSES, (60,))))


@pytest.mark.parametrize("beside", [True, False])
def test_a_model_that_is_fed_one_row_for_all_is_refused(beside):
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.own, self.common = nn.Linear(4, CLASSES), nn.Linear(4, CLASSES)

        def forward(self, x, row):
            return self.common(row) if x is None else self.own(x) + self.common(row)

    budgets, plan = plan_for(data := numbers())
    model = Two()
    model, optimizer, loader = sartor.make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), data, budgets, plan, seed=3)
    inputs, targets = next(iter(loader))
    with refused("may be made of them"):
        model(inputs if beside else None, inputs.mean(0, keepdim=True))
        functional.cross_entropy(model(inputs if beside else None, inputs.mean(0, keepdim=True)), targets).backward()
        optimizer.step()


# reasons


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (lambda: nn.utils.weight_norm(nn.Linear(4, CLASSES)), "parametrizations.weight_norm"),
        (lambda: nn.utils.spectral_norm(nn.Linear(4, CLASSES)), "spectral normalisation"),
        (lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(4, CLASSES)), "spectral normalisation"),
        (lambda: nn.Linear(4, CLASSES).bfloat16(), "bfloat16"),
        (lambda: nn.Linear(4, CLASSES).half(), "float16"),
    ],
)
def test_a_model_that_cannot_be_trained_is_told_the_true_reason(model, reason):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        made = model()
    with refused(reason):
        fit(made, numbers())


class Bag(nn.Module):
    def __init__(self, offsets):
        super().__init__()
        self.offsets, self.bag, self.last = offsets, nn.EmbeddingBag(WORDS, 4), nn.Linear(4, CLASSES)

    def forward(self, tokens):
        if not self.offsets:
            return self.last(self.bag(tokens))
        return self.last(self.bag(tokens.reshape(-1), torch.arange(0, tokens.numel(), tokens.shape[1])))


def test_an_embedding_bag_with_offsets_is_told_what_to_take():
    data = TensorDataset(torch.randint(0, WORDS, (60, 7)), torch.randint(0, CLASSES, (60,)))
    with refused("EmbeddingBag .* examples x tokens"):
        fit(Bag(True), data)
    assert fit(Bag(False), data).steps == 3


def test_a_forward_hook_that_changes_what_a_layer_puts_out_trains_as_it_should():
    def hooked():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, CLASSES))
        model[0].register_forward_hook(lambda module, inputs, output: output * 2)
        return model

    class Doubled(nn.Module):
        def forward(self, x):
            return x * 2

    def written():
        model = hooked()
        model[0]._forward_hooks.clear()
        return nn.Sequential(model[0], Doubled(), model[1])

    first, second = fit(hooked(), numbers()).model, fit(written(), numbers()).model
    for one, two in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.allclose(one, two, atol=1e-6)


def test_charged_steps_stay_charged_when_a_later_one_is_refused(tmp_path):
    calls = iter(range(10**6))

    def loss(outputs, targets):
        scale = 1.0 if next(calls) < 300 else float(targets.float().mean() + 1)
        return functional.cross_entropy(outputs, targets, reduction="none") * scale

    budgets, plan = plan_for(data := numbers(), steps=2000)
    seen = []
    # which of the three comparisons sees it depends on where among them the loss begins to change
    with refused("not the same alone", "call to the next", "remembers what it saw"):
        sartor.fit(
            nn.Linear(4, CLASSES),
            data,
            budgets,
            plan,
            lr=0.1,
            progress=False,
            loss=loss,
            callbacks=[lambda p: seen.append(p.account().steps)],
        )
    assert seen
    assert seen[-1] == len(seen)


# what the first batch leaves behind


class Standardises(nn.Module):
    """Keeps the first batch's statistics in a plain attribute."""

    def __init__(self):
        super().__init__()
        self.last, self.mean = nn.Linear(4, CLASSES), None

    def forward(self, x):
        if self.mean is None:
            self.mean = x.mean(0)
        return self.last(x - self.mean)


class FittedOnce:
    """A collate function with a scaler that is fitted on the first batch."""

    def __init__(self):
        self.most = None

    def __call__(self, items):
        inputs, targets = torch.utils.data.default_collate(items)
        self.most = inputs.abs().max() if self.most is None else self.most
        return inputs / self.most, targets


def relative():
    first = {}

    def loss(outputs, targets):
        losses = functional.cross_entropy(outputs, targets, reduction="none")
        return losses / first.setdefault("loss", losses.mean().detach())

    return loss


def test_what_the_first_batch_leaves_in_an_attribute_a_closure_or_a_collator_is_seen():
    for train in (lambda: fit(Standardises(), numbers()), lambda: loop(numbers(), None, Standardises())):
        with refused("not those of a naive loop", "not the same alone"):
            train()
    with refused("not the same alone"):
        fit(nn.Linear(4, CLASSES), numbers(), loss=relative())
    for train in (lambda c: fit(nn.Linear(4, CLASSES), numbers(), collate=c), lambda c: loop(numbers(), c, nn.Linear(4, CLASSES))):
        with refused("not the same alone"):
            train(FittedOnce())


def test_a_statistic_that_a_collator_hands_to_the_loss_is_seen():
    class Centres:
        centre = 0.0

        def __call__(self, items):
            inputs, targets = torch.utils.data.default_collate(items)
            self.centre = inputs.mean()
            return inputs, targets

    collate = Centres()

    def loss(outputs, targets):
        return functional.cross_entropy(outputs - collate.centre * torch.arange(CLASSES), targets, reduction="none")

    with refused("not the same alone", "changed once others"):
        fit(nn.Linear(4, CLASSES), numbers(), collate=collate, loss=loss)


@pytest.mark.parametrize("physical", [1, 2])
def test_memory_between_pieces_of_a_batch_is_seen(physical):
    class Remembers(nn.Module):
        memory = 0.0

        def forward(self, x):
            self.memory = 0.5 * self.memory + 0.5 * x.detach().mean()
            return x + self.memory

    with refused("call to the next", "mixes examples"):
        fit(nn.Sequential(Remembers(), nn.Linear(4, CLASSES)), numbers(), execution=sartor.Execution(max_physical_batch=physical))


# the backward pass


class Shares(torch.autograd.Function):
    """Gradients scaled by those of the whole batch."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient / gradient.norm()


@pytest.mark.parametrize("random", [True, False])
def test_mixing_in_the_backward_pass_alone_is_refused(random):
    def loss(outputs, targets):
        return functional.cross_entropy(Shares.apply(outputs), targets, reduction="none")

    class Trains(nn.Module):
        def forward(self, x):
            return Shares.apply(x) if self.training else x

    with refused("not the same alone", "naive loop"):
        fit(dropping() if random else nn.Linear(4, CLASSES), numbers(), loss=loss)
    with refused("naive loop", "not the same alone"):
        loop(numbers(), None, nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.2 if random else 0.0), nn.Linear(4, CLASSES), Trains()))


# more randomness


class MixesAsItFetches(Augmented):
    def __getitems__(self, indices):
        items = [self[i] for i in indices]
        return [(0.7 * x + 0.3 * items[i - 1][0], y) for i, (x, y) in enumerate(items)]


class RunningMean(Augmented):
    mean = 0.0

    def __getitem__(self, i):
        x, y = super().__getitem__(i)
        self.mean = 0.9 * self.mean + 0.1 * x
        return x - self.mean, y


@pytest.mark.parametrize("data", [MixesAsItFetches, RunningMean])
@pytest.mark.parametrize("train", [fit, loop])
def test_a_data_set_that_mixes_or_remembers_behind_random_changes_is_refused(data, train):
    with refused("not the same alone"):
        fit(nn.Linear(4, CLASSES), data()) if train is fit else loop(data(), None, nn.Linear(4, CLASSES))


def gated(items):
    inputs, targets = torch.utils.data.default_collate(items)
    return (0.6 * inputs + 0.4 * inputs.flip(0) if torch.rand(1) < 0.4 else inputs), targets


def halves(items):
    inputs, targets = torch.utils.data.default_collate(items)
    half = len(inputs) // 2
    return torch.cat([inputs[:half], inputs[half:] + inputs.mean(0)]), targets


@pytest.mark.parametrize("collate", [gated, halves])
def test_mixing_of_some_rows_or_some_batches_behind_augmentation_is_refused(collate):
    with refused("not the same alone"):
        fit(nn.Linear(4, CLASSES), Augmented(), collate=collate, steps=20)


class Flips(Augmented):
    """Changes records now and then."""

    def __init__(self, draw, chance):
        super().__init__()
        self.draw, self.chance = draw, chance

    def __getitem__(self, i):
        x, y = self.data[i]
        return (x.flip(0) if self.draw() < self.chance else x), y


@pytest.mark.parametrize("chance", [0.1, 0.25, 0.4])
@pytest.mark.parametrize("draw", [lambda: float(torch.rand(1)), np.random.rand, random.random], ids=["torch", "numpy", "python"])
def test_augmentation_that_happens_now_and_then_is_not_mixing(draw, chance):
    assert fit(nn.Linear(4, CLASSES), Flips(draw, chance)).steps == 3


def test_records_that_are_not_finite_are_no_mixing_beside_dropout():
    data = numbers()
    data.tensors[0][::3] = float("nan")
    assert fit(dropping(), data).steps == 3


def test_a_loop_is_refused_that_mixes_in_larger_batches_alone():
    class Large(nn.Linear):
        def forward(self, x):
            return super().forward(x - x.mean(0) if len(x) >= 8 else x)

    with refused("mixes examples"):
        loop(numbers(), None, Large(4, CLASSES))


def test_mixing_in_training_is_refused_for_inputs_without_rows():
    class Lists(nn.Module):
        def __init__(self):
            super().__init__()
            self.last = nn.Linear(4, CLASSES)

        def forward(self, items):
            x = torch.stack(list(items))
            return self.last(x - x.mean(0) if self.training else x)

    def listed(items):
        return [x for x, _ in items], torch.stack([y for _, y in items])

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Unchecked)
        with refused("not the same alone"):
            fit(Lists(), numbers(), collate=listed)


def test_the_self_check_feeds_a_model_nothing_that_no_record_holds():
    class Categories(nn.Module):
        """A column of the table is a category."""

        def __init__(self):
            super().__init__()
            self.kinds, self.last = nn.Embedding(3, 4), nn.Linear(7, CLASSES)

        def forward(self, x):
            return self.last(torch.cat([self.kinds(x[:, 0].long()), x[:, 1:]], 1))

    data = numbers()
    data.tensors[0][:, 0] = torch.randint(0, 3, (60,))
    assert fit(Categories(), data).steps == 3


class FlipsByItself(Augmented):
    """Has a generator of its own, as many data sets have, and changes records now and then."""

    def __init__(self):
        super().__init__()
        self.own = np.random.default_rng(0)

    def __getitem__(self, i):
        x, y = self.data[i]
        return (x.flip(0) if self.own.random() < 0.3 else x), y


@pytest.mark.parametrize("train", [fit, loop])
def test_a_data_set_with_a_generator_of_its_own_is_not_mixing(train):
    steps = fit(nn.Linear(4, CLASSES), FlipsByItself()).steps if train is fit else loop(FlipsByItself(), None, nn.Linear(4, CLASSES)).steps
    assert steps == 3


class Late(nn.Module):
    """A row for all that begins to follow the batch once the first step was checked."""

    late = False

    def __init__(self):
        super().__init__()
        self.words, self.common, self.last = nn.Embedding(WORDS, 4), nn.Embedding(WORDS, 4), nn.Linear(4, CLASSES)

    def forward(self, x):
        row = x.max(0, keepdim=True).values if self.late else torch.zeros(1, 7, dtype=torch.int64)
        return self.last(self.words(x).mean(1) + self.common(row).mean(1))


def test_a_row_that_follows_the_batch_from_the_second_step_on_is_refused():
    data = TensorDataset(torch.randint(1, WORDS, (60, 7)), torch.randint(0, CLASSES, (60,)))
    budgets, plan = plan_for(data)
    model = Late()
    model, optimizer, loader = sartor.make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), data, budgets, plan, seed=3)
    with refused("may be made of them"):
        for inputs, targets in loader:
            functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
            model.late = True


def test_what_was_refused_is_refused_again_when_it_is_tried_again():
    def collate(items):
        inputs, targets = torch.utils.data.default_collate(items)
        return {"inputs": inputs, "targets": targets, "mean": inputs.mean(0)}

    budgets, plan = plan_for(data := numbers())
    model = nn.Linear(4, CLASSES)
    _, _, loader = sartor.make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), data, budgets, plan, collate=collate, seed=3)
    for _ in range(2):
        with refused("no row for each record"):
            next(iter(loader))


def test_a_batch_of_one_record_shows_nothing_and_ends_no_comparison():
    def piece(step, number=0, pieces=1, *, holders=2, owners=None):
        return Piece(step, number, range(4), torch.ones(holders), number == pieces - 1, 0, owners, pieces=pieces)

    alone = Alone(Stream(seed=1), 20)
    alone.passed(1)
    assert all(alone.is_due(piece(step, 1, 9)) for step in range(20))
    alone.passed(2)
    drawn = [step for step in range(20) if alone.is_due(piece(step))]
    assert 5 < len(drawn) < 20
    for step in range(20):
        looked = [number for number in range(50) if alone.is_due(piece(step, number, 50))]
        assert (2 <= len(looked) <= 3 and {0, 49} <= set(looked)) if step in drawn else not looked


def test_records_of_one_person_show_nothing_of_others_and_end_no_comparison():
    alone = Alone(Stream(seed=1), 1)
    one = Piece(0, 0, range(4), torch.ones(1), False, 0, Owners(torch.tensor([4])), pieces=9)
    alone.passed(len(one.clips))
    assert not alone.has_passed
    two = Piece(0, 3, range(4), torch.ones(2), False, 0, Owners(torch.tensor([3, 1])), pieces=9)
    assert alone.is_due(two)
    assert set(places(two, np.random.default_rng(0))) == {0, 2, 3}  # where one person ends and the next begins


# what callbacks, loops and large containers hide


class BalancedInTraining:
    """A loss over its own running mean, which moves in training alone."""

    def __init__(self):
        self.scale = 1.0

    def __call__(self, outputs, targets):
        losses = functional.cross_entropy(outputs, targets, reduction="none")
        scale = self.scale
        if outputs.requires_grad:
            self.scale = 0.9 * scale + 0.1 * float(losses.detach().mean())
        return losses / scale


class FittedLate(FittedOnce):
    """A scaler that is fitted on the sixth batch that it sees."""

    seen = 0

    def __call__(self, items):
        inputs, targets = torch.utils.data.default_collate(items)
        self.seen += len(items) > 1
        if self.seen == 6:
            self.most = inputs.abs().max()
        return (inputs if self.most is None else inputs / self.most), targets


@pytest.mark.parametrize("callbacks", [[], [lambda progress: None]], ids=["none", "one that does nothing"])
def test_a_callback_hides_nothing_that_batches_leave_behind(callbacks):
    with refused("call to the next", "when it is asked again"):
        fit(nn.Linear(4, CLASSES), numbers(), loss=BalancedInTraining(), callbacks=callbacks)
    with refused("not the same alone"):
        fit(nn.Linear(4, CLASSES), numbers(), collate=FittedLate(), callbacks=callbacks, steps=60)


class FittedBesideASetting:
    """The same, which keeps what it found beside a public setting, in one dictionary."""

    def __init__(self):
        self.seen, self.kept = 0, {"level": 1.0, "most": None}

    def __call__(self, items):
        inputs, targets = torch.utils.data.default_collate(items)
        self.seen += len(items) > 1
        if self.seen == 6:
            self.kept["most"] = inputs.abs().max()
        most = self.kept["most"]
        return self.kept["level"] * (inputs if most is None else inputs / most), targets


def test_a_public_setting_that_changes_takes_nothing_along_that_lies_beside_it():
    collate = FittedBesideASetting()
    with refused("not the same alone"):
        fit(nn.Linear(4, CLASSES), numbers(), collate=collate, callbacks=[lambda p: collate.kept.update(level=1 + 0.1 * p.step)], steps=60)


class Curriculum(Dataset):
    """Public settings that rise with the step: in an attribute, in a dictionary and in an object."""

    def __init__(self):
        self.data, self.level, self.settings, self.transform = numbers(), 0.1, {"level": 0.1}, Scaled()

    def __len__(self):
        return len(self.data)

    def __getitem__(self, i):
        x, y = self.data[i]
        return self.transform(x) * self.level * self.settings["level"], y

    def rise(self, step):
        self.level = self.settings["level"] = self.transform.by = 0.1 + 0.03 * step


class Scaled:
    by = 0.1

    def __call__(self, x):
        return x * self.by


@pytest.mark.few(1)
@pytest.mark.parametrize("workers", [0, 1])
def test_public_settings_may_follow_the_step(workers):
    data = Curriculum()
    assert (
        fit(
            nn.Linear(4, CLASSES), data, callbacks=[lambda p: data.rise(p.step)], steps=40, execution=sartor.Execution(workers=workers)
        ).steps
        == 40
    )
    data, (budgets, plan) = Curriculum(), plan_for(numbers(), steps=40)
    model = nn.Linear(4, CLASSES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = sartor.make_private(model, optimizer, data, budgets, plan, seed=3, workers=workers)
    for step, (inputs, targets) in enumerate(loader):
        functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        data.rise(step)
    assert optimizer.account().steps == 40


class Numbers(Dataset):
    """Numbers words as they come, in a dictionary that knows many beforehand; or keeps what it made of each record."""

    def __init__(self, cache=False):
        torch.manual_seed(0)
        self.cache, self.words = cache, [f"word {int(n)}" for n in torch.randint(0, 1000, (60,))]
        self.known = {i if cache else f"common {i}": torch.zeros(4) if cache else i for i in range(100, 300)}

    def __len__(self):
        return len(self.words)

    def __getitem__(self, i):
        if self.cache:
            return self.known.setdefault(i, torch.full((4,), float(len(self.words[i])))), i % CLASSES
        return torch.full((4,), float(self.known.setdefault(self.words[i], len(self.known)))), i % CLASSES


@pytest.mark.parametrize("train", [fit, loop])
def test_a_large_dictionary_that_grows_with_what_comes_is_seen_and_a_cache_is_not_mixing(train):
    def run(data):
        return fit(nn.Linear(4, CLASSES), data).steps if train is fit else loop(data, None, nn.Linear(4, CLASSES)).steps

    with refused("not the same alone"):
        run(Numbers())
    assert run(Numbers(cache=True)) == 3


@pytest.mark.parametrize("kind", [torch.zeros, np.zeros])
def test_a_large_tensor_or_array_that_is_written_into_is_refused(kind):
    class Bank(Augmented):
        def __init__(self):
            super().__init__()
            self.bank = kind((2**18, 4))

        def __getitem__(self, i):
            self.bank[0] += 1
            return self.data[i]

    with refused("changes a tensor or an array"):
        fit(nn.Linear(4, CLASSES), Bank())


class HoldsBeside(UserDict):
    """A mapping of one's own, with something beside its items."""

    def __init__(self, items, **beside):
        super().__init__(items)
        vars(self).update(beside)


class WithSlots(dict):
    __slots__ = ("_scale",)


@pytest.mark.parametrize("name", ["_scale", "scale"])
@pytest.mark.parametrize("mixes", [True, False])
def test_what_a_batch_carries_beside_its_items_is_looked_at_whatever_its_name(name, mixes):
    def beside(items):
        inputs, targets = torch.utils.data.default_collate(items)
        return HoldsBeside({"inputs": inputs, "targets": targets}, **{name: inputs.abs().max() if mixes else 3})

    def in_slots(items):
        held = beside(items)
        made = WithSlots(held)
        made._scale = vars(held)[name]
        return made

    for collate in (beside, in_slots):
        if mixes:
            with refused("no row for each record"):
                loop(numbers(), collate, nn.Linear(4, CLASSES))
        else:
            assert loop(numbers(), collate, nn.Linear(4, CLASSES)).steps == 3


def test_a_mapping_that_keeps_its_items_in_a_private_name_is_copied_and_never_altered():
    from collections.abc import MutableMapping

    from sartor.sgd import trees

    class Own(MutableMapping):
        def __init__(self, items):
            self._items = items

        def __getitem__(self, key):
            return self._items[key]

        def __setitem__(self, key, value):
            self._items[key] = value

        def __delitem__(self, key):
            del self._items[key]

        def __iter__(self):
            return iter(self._items)

        def __len__(self):
            return len(self._items)

    held = Own({"x": 1})
    assert dict(trees.mapped(lambda leaf: leaf + 1, held)) == {"x": 2}
    assert dict(held) == {"x": 1}
