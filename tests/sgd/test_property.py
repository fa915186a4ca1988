"""Code that lets one holder's records move what another contributes is refused, by exchanging records; honest code is not.

What no comparison sees, and replay (`sartor.audit`) finds: a data set that makes a record of other people's rows (mixup partners,
neighbours, statistics of all), and whatever is fitted once, on the first records that it ever sees (a scaler in a collate function, a
vocabulary that is numbered as it comes): it is the same from then on. `UNSEEN` keeps examples.
"""

import random
import warnings
from collections import UserDict
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_sequence, pad_packed_sequence
from torch.utils.data import Dataset, TensorDataset, default_collate

import sartor
from sartor.run.stream import Stream
from sartor.sgd.check import Unchecked
from sartor.sgd.forks import reseed
from sartor.sgd.gradients import Owners, PerExample
from sartor.sgd.loss import Loss
from sartor.sgd.pieces import Piece
from sartor.sgd.property import DRAWN, PropertyTest

CLASSES, WORDS, SIZE = 3, 12, 40
of_numpy = np.random.random_sample


def property_test(model, data, loss=None, collate=None, *, seen=True, steps=10):
    together = getattr(data, "__getitems__", None)
    fetch = together or (lambda indices: [data[i] for i in indices])
    engine = model if isinstance(model, PerExample) else PerExample(model)
    measure = Loss(loss)
    measure._checked = True  # its own early test
    return PropertyTest(engine, fetch, collate, measure if seen else None, steps=steps, stream=Stream(seed=3))


def piece(counts=(1,) * SIZE, step=0, clip=0.1, **options):
    owners = Owners(torch.tensor(counts)) if max(counts) > 1 else None
    return Piece(step, 0, list(range(sum(counts))), torch.full((len(counts),), clip), True, owners, **options)


def tried(model, data, loss=None, collate=None, *, seen=True):
    """Test one batch of all records."""
    test = property_test(model, data, loss, collate, seen=seen)
    try:
        test.run(piece())
    finally:
        test._engine.detach()


def refused(words):
    return pytest.raises(sartor.SartorError, match=words)


# records and batches


def numbers(size=SIZE):
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(size, 4, generator=generator)
    inputs[0] *= 20
    return TensorDataset(inputs, torch.randint(0, CLASSES, (size,), generator=generator))


class Sentences(Dataset):
    """Sequences of tokens of different lengths, with a class for each token."""

    def __init__(self, equal=0):
        generator = torch.Generator().manual_seed(0)
        lengths = [5 if i < equal else int(n) for i, n in enumerate(torch.randint(2, 9, (SIZE,), generator=generator))]
        self.items = [
            (torch.randint(1, WORDS, (n,), generator=generator), torch.randint(0, CLASSES, (n,), generator=generator)) for n in lengths
        ]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


class Augmented(Dataset):
    """Records with noise, from torch's random numbers or from a generator of the data set's own."""

    def __init__(self, own=False):
        self.data, self.generator = numbers(), torch.Generator().manual_seed(0) if own else None

    def __len__(self):
        return len(self.data)

    def __getitem__(self, i):
        x, y = self.data[i]
        return x + torch.randn(x.shape, generator=self.generator), y


class Flips(Augmented):
    """Changes records now and then."""

    def __init__(self, draw, chance=0.3):
        super().__init__()
        self.draw, self.chance = draw, chance

    def __getitem__(self, i):
        x, y = self.data[i]
        return (x.flip(0) if self.draw() < self.chance else x), y


class MixesAsItFetches(Augmented):
    def __getitems__(self, indices):
        items = [self[i] for i in indices]
        return [(0.7 * x + 0.3 * items[i - 1][0], y) for i, (x, y) in enumerate(items)]


class ScalesAsItFetches(Augmented):
    """Scales records by the largest one that comes with them; the first record is blank, and stays so whoever comes with it."""

    def __getitems__(self, indices):
        items = [(self.data[i][0] * (i > 0), self.data[i][1]) for i in indices]
        most = max(1.0, *(float(x.abs().max()) for x, _ in items))
        return [(x / most, y) for x, y in items]


class TakesTheLastOff(Augmented):
    """Keeps the record that was fetched before."""

    last = 0.0

    def __getitem__(self, i):
        x, y = self.data[i]
        last, self.last = self.last, x
        return x - last, y


class Cached(Augmented):
    """Keeps what it made of each record, by its number."""

    def __init__(self):
        super().__init__()
        self.known = {}

    def __getitem__(self, i):
        x, y = self.data[i]
        return self.known.setdefault(i, 2 * x), y


class Numbered(Augmented):
    """Numbers what comes as it comes."""

    def __init__(self):
        super().__init__()
        self.known = {}

    def __getitem__(self, i):
        return torch.full((4,), float(self.known.setdefault(7 * i % 11, len(self.known)))), self.data[i][1]


class Mixup(Augmented):
    def __getitem__(self, i):
        return self.data[i][0] + self.data[i - 1][0], self.data[i][1]


def padded(items, fill=-100):
    longest = max(len(x) for x, _ in items)
    inputs = torch.stack([functional.pad(x, (0, longest - len(x))) for x, _ in items])
    return inputs, torch.stack([functional.pad(y, (0, longest - len(y)), value=fill) for _, y in items])


def filled(items):
    return padded(items, fill=0)


def whole(items):
    """Sequences padded, with one class for each."""
    inputs, targets = padded(items)
    return inputs, targets[:, 0]


def to_one_length(items):
    inputs, targets = whole(items)
    return functional.pad(inputs, (0, 20 - inputs.shape[1])), targets


def hides_words(items):
    inputs, targets = whole(items)
    return torch.where((torch.rand(inputs.shape) < 0.2) & (inputs > 0), 1, inputs), targets


def by_maximum(items):
    inputs, targets = default_collate(items)
    return inputs / inputs.abs().max(), targets


def by_length(items):
    return whole(sorted(items, key=lambda item: len(item[0])))


def masks(items):
    inputs, targets = default_collate(items)
    return torch.where(torch.rand(inputs.shape) < 0.3, 0.0, inputs), targets


def masks_twice(items):
    inputs, targets = masks(items)
    return inputs + 0.1 * torch.randn(inputs.shape), torch.where(torch.rand(len(targets)) < 0.1, 0, targets)


def masks_and_mixes(items):
    inputs, targets = masks(items)
    return inputs / inputs.abs().max(), targets


def gated(items):
    inputs, targets = default_collate(items)
    return (0.6 * inputs + 0.4 * inputs.flip(0) if torch.rand(1) > 0.5 else inputs), targets


def padded_with_others(items):
    inputs, targets = whole(items)
    return torch.where(inputs == 0, inputs.max(0).values, inputs), targets


def halves(items):
    inputs, targets = default_collate(items)
    half = len(inputs) // 2
    return torch.cat([inputs[:half], inputs[half:] + inputs.mean(0)]), targets


def unseeded():
    """As collators of language models do: masks by a generator of its own."""
    generator = np.random.default_rng(0)

    def collate(items):
        inputs, targets = default_collate(items)
        return inputs * torch.from_numpy(generator.random(inputs.shape) > 0.3), targets

    return collate


def unseeded_and_sums():
    collate = unseeded()

    def summed(items):
        inputs, targets = collate(items)
        return inputs, (targets, inputs.mean(0))

    return summed


class FittedOnce:
    """A scaler that is fitted on one of the batches that it sees."""

    most = None

    def __init__(self, when=1):
        self.left = when

    def __call__(self, items):
        inputs, targets = default_collate(items)
        self.left -= len(items) > 1
        if self.left == 0:
            self.most = inputs.abs().max()
        return (inputs if self.most is None else inputs / self.most), targets


class BeforeOff:
    """Takes the mean of the batch before off."""

    mean = 0.0

    def __call__(self, items):
        inputs, targets = default_collate(items)
        mean, self.mean = self.mean, inputs.mean(0)
        return inputs - mean, targets


class Centres:
    """Tells the loss a statistic of the batch."""

    centre = 0.0

    def __call__(self, items):
        inputs, targets = default_collate(items)
        self.centre = inputs.mean()
        return inputs, targets

    def loss(self, outputs, targets):
        return each(outputs - self.centre * torch.arange(CLASSES), targets)


@dataclass
class Holding:
    inputs: torch.Tensor
    targets: torch.Tensor


def held(items):
    return Holding(*default_collate(items))


class Encoding(UserDict):
    """What tokenizers return: a mapping that is no dictionary."""


def encoded(make):
    def collate(items):
        inputs, targets = make(items)
        return Encoding(x=inputs), targets

    return collate


def listed(items):
    return [x for x, _ in items], torch.stack([y for _, y in items])


def packed(items):
    return pack_sequence([x.repeat(1 + int(y), 1) for x, y in items], enforce_sorted=False), torch.stack([y for _, y in items])


# models


def linear():
    torch.manual_seed(1)
    return nn.Linear(4, CLASSES)


def dropping(p=0.5):
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), nn.Dropout(p), nn.ReLU(), nn.Dropout(p), nn.Linear(8, CLASSES))


def deep():
    torch.manual_seed(1)
    layers = [layer for _ in range(25) for layer in (nn.Linear(16, 16), nn.ReLU())]
    return nn.Sequential(nn.Linear(4, 16), *layers, nn.Linear(16, CLASSES))


class Tagger(nn.Module):
    """A class for every position, each from its own token."""

    def __init__(self, p=0.0):
        super().__init__()
        torch.manual_seed(1)
        self.words, self.drop, self.last = nn.Embedding(WORDS, 6, padding_idx=0), nn.Dropout(p), nn.Linear(6, CLASSES)

    def forward(self, tokens):
        return self.last(self.drop(self.words(tokens))).transpose(1, 2)


class Classifier(Tagger):
    """One class for each example: the mean over positions, padded ones included or not."""

    def __init__(self, masked=True, p=0.0):
        super().__init__(p)
        self.masked = masked

    def forward(self, tokens):
        hidden = self.drop(self.words(tokens))
        return self.last(hidden.sum(1) / ((tokens != 0).sum(1, keepdim=True) if self.masked else tokens.shape[1]))


class Layer(nn.Module):
    """A linear layer behind something that is done to its input."""

    def __init__(self, change):
        super().__init__()
        torch.manual_seed(1)
        self.change, self.drop, self.last, self.kept = change, nn.Dropout(0.3), nn.Linear(4, CLASSES), None

    def forward(self, x):
        return self.last(self.drop(self.change(self, x)))


def layer(change):
    return lambda: Layer(change)


def mixes_in_training(self, x):
    return x - x.mean(0) if self.training else x


def takes_the_batch_before_off(self, x):
    before, self.kept = self.kept, x.mean()
    return x if before is None else x - before


def slow_memory(self, x):
    self.kept = (0.9999 * self.kept if self.kept is not None else 0) + 0.0001 * x.mean()
    return x + self.kept


def keeps_the_first(self, x):
    self.kept = x.mean(0) if self.kept is None else self.kept
    return x - self.kept


def reads(self, given):
    return given["x"]


def stacks(self, items):
    x = torch.stack(list(items))
    return x - x.mean(0) if self.training else x


def sums(self, given):
    x, lengths = pad_packed_sequence(given, batch_first=True)
    return x.sum(1) / lengths[:, None]


def a_little_for_all(self, x):
    """By the largest record, too little to be seen in anybody's gradient."""
    return x + 3e-4 * (x.abs().max() > 15)


class Kinks(nn.Module):
    """Rounds in another way for another number of rows, as kernels do, and stands at the kinks of its units for the first record."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, CLASSES)
        with torch.no_grad():
            self.first.bias.copy_(-self.first.weight @ numbers()[0][0])

    def forward(self, x):
        return self.last(torch.relu(self.first(x * (1 + 2.0**-23 * (len(x) > 1)))))


class Position(nn.Module):
    """Adds an embedding of positions, common to all examples."""

    def __init__(self):
        super().__init__()
        self.words, self.places, self.last = nn.Embedding(WORDS, 4), nn.Embedding(10, 4), nn.Linear(4, CLASSES)

    def forward(self, tokens):
        return self.last((self.words(tokens) + self.places(torch.arange(tokens.shape[1])[None])).mean(1))


class OneRow(nn.Module):
    """Computes one row from everybody and takes it as common."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, CLASSES)

    def forward(self, x):
        return self.last(x + self.first(x.mean(0, keepdim=True)))


class OneRowOfTokens(Position):
    def forward(self, tokens):
        return self.last(self.words(tokens).mean(1) + self.words(tokens.max(0, keepdim=True).values).mean(1))


def tokens():
    generator = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randint(0, WORDS, (SIZE, 7), generator=generator), torch.randint(0, CLASSES, (SIZE,), generator=generator))


# losses


def each(outputs, targets):
    return functional.cross_entropy(outputs, targets, reduction="none")


class Balanced(nn.Module):
    """Class weights from a moving average of the classes seen."""

    def __init__(self, rate):
        super().__init__()
        self.rate, self.seen = rate, torch.ones(CLASSES) / CLASSES

    def forward(self, outputs, targets):
        self.seen = (1 - self.rate) * self.seen + self.rate * functional.one_hot(targets, CLASSES).float().mean(0)
        return each(outputs, targets) / self.seen[targets]


class BalancedInTraining:
    """A loss over its own running mean, which moves in training alone."""

    scale = 1.0

    def __call__(self, outputs, targets):
        losses, scale = each(outputs, targets), self.scale
        if outputs.requires_grad:
            self.scale = 0.9 * scale + 0.1 * float(losses.detach().mean())
        return losses / scale


class Anneals:
    """Counts its calls."""

    calls = 0

    def __call__(self, outputs, targets):
        self.calls += 1
        return each(outputs, targets) / self.calls


def by_the_batchs_classes(outputs, targets):
    return each(outputs, targets) / torch.bincount(targets, minlength=CLASSES).float()[targets]


def over_the_batch(outputs, targets):
    return each(outputs, targets) / len(targets)


def relative():
    first = {}

    def loss(outputs, targets):
        losses = each(outputs, targets)
        return losses / first.setdefault("loss", losses.mean().detach())

    return loss


class Shares(torch.autograd.Function):
    """Gradients scaled by those of the whole batch."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient / gradient.norm()


def shared(outputs, targets):
    return each(Shares.apply(outputs), targets)


def noisy(outputs, targets):
    return each(outputs, torch.where(torch.rand(len(targets)) < 0.3, torch.randint(0, CLASSES, targets.shape), targets))


def spread(outputs, targets):
    """An influence that is spread thin: the batch's mean target moves everybody by a little."""
    return each(outputs + 3e-4 * functional.one_hot(targets, CLASSES).float().sum(0), targets)


MIXES, PAD, MEMORY = "mixes examples", "pad its batch", "counts, remembers|remembers records"
MIXED = {
    "targets over the padded length": (Tagger, Sentences, None, filled, PAD),
    "pooling over padding": (lambda: Classifier(False), Sentences, None, whole, PAD),
    "pooling over padding, dropout": (lambda: Classifier(False, 0.2), Sentences, None, whole, PAD),
    "pooling over padding, hidden words": (lambda: Classifier(False), Sentences, None, hides_words, PAD),
    "scaled by the batch": (linear, numbers, None, by_maximum, MIXES),
    "scaled by the batch, dropout": (dropping, numbers, None, by_maximum, MIXES),
    "scaled by the batch, in a mapping": (layer(reads), numbers, None, encoded(by_maximum), MIXES),
    "sorted": (Classifier, lambda: Sentences(16), None, by_length, MIXES),
    "scaled behind masks": (linear, numbers, None, masks_and_mixes, MIXES),
    "scaled behind augmentation": (linear, Augmented, None, by_maximum, MIXES),
    "now and then": (linear, Augmented, None, gated, MIXES),
    "half of the rows": (linear, Augmented, None, halves, MIXES),
    "a statistic for the loss": (linear, numbers, "centres", None, f"{MIXES}|{MEMORY}"),
    "the batch before, in a collate function": (linear, numbers, None, BeforeOff(), MEMORY),
    "fitted on the sixth batch": (linear, numbers, None, FittedOnce(6), f"{MIXES}|{MEMORY}"),
    "mixes as it fetches": (linear, MixesAsItFetches, None, None, MIXES),
    "scales as it fetches, but for a blank record": (linear, ScalesAsItFetches, None, None, MIXES),
    "a cache between records": (linear, TakesTheLastOff, None, None, MEMORY),
    "in training alone": (layer(mixes_in_training), numbers, None, None, MIXES),
    "in training alone, lists": (layer(stacks), numbers, None, listed, MIXES),
    "in large batches alone": (layer(lambda self, x: x - x.mean(0) if len(x) >= 8 else x), numbers, None, None, MIXES),
    "the batch before, in a layer": (layer(takes_the_batch_before_off), numbers, None, None, f"{MIXES}|{MEMORY}"),
    "a slow memory in a layer": (layer(slow_memory), numbers, None, None, f"{MIXES}|{MEMORY}"),
    "one row for all": (OneRow, numbers, None, None, f"may be made of them|{MIXES}"),
    "one row of tokens for all": (OneRowOfTokens, tokens, None, None, f"may be made of them|{MIXES}"),
    "in the backward pass": (linear, numbers, shared, None, MIXES),
    "in the backward pass, dropout": (dropping, numbers, shared, None, MIXES),
    "the batch's classes": (linear, numbers, by_the_batchs_classes, None, MIXES),
    "over the batch": (dropping, numbers, over_the_batch, None, MIXES),
    "a counter": (linear, numbers, Anneals(), None, MEMORY),
    "a running mean in training": (linear, numbers, BalancedInTraining(), None, MEMORY),
    "spread thin": (linear, numbers, spread, None, MIXES),
    "spread thinner": (layer(a_little_for_all), numbers, None, None, MIXES),
    **{f"class weights by a moving average of {r}": (linear, numbers, Balanced(r), None, f"{MIXES}|{MEMORY}") for r in (0.5, 1e-2, 1e-5)},
}


@pytest.mark.parametrize("name", MIXED)
def test_mixing_is_refused(name):
    model, data, loss, collate, words = MIXED[name]
    if loss == "centres":
        loss, collate = (centres := Centres()).loss, centres
    with refused(words):
        tried(model(), data(), loss, collate)


HONEST = {
    "plain": (linear, numbers, None, None),
    "dropout": (dropping, numbers, None, None),
    "little dropout": (lambda: dropping(0.02), numbers, None, None),
    "deep": (deep, numbers, None, None),
    "at its kinks": (Kinks, numbers, None, None),
    "padding and a masked loss": (Tagger, Sentences, None, padded),
    "padding, a masked loss and dropout": (lambda: Tagger(0.3), Sentences, None, padded),
    "padding and masked pooling": (Classifier, Sentences, None, whole),
    "padding, masked pooling and dropout": (lambda: Classifier(p=0.2), Sentences, None, whole),
    "padding to one length": (lambda: Classifier(False), Sentences, None, to_one_length),
    "hidden words": (Classifier, Sentences, None, hides_words),
    "masks": (linear, numbers, None, masks),
    "masks, dropout": (dropping, numbers, None, masks_twice),
    "augmentation": (linear, Augmented, None, None),
    "torch's now and then": (linear, lambda: Flips(lambda: float(torch.rand(1))), None, None),
    "numpy's now and then": (linear, lambda: Flips(of_numpy), None, None),
    "python's now and then": (linear, lambda: Flips(random.random, 0.1), None, None),
    "a cache by numbers": (linear, Cached, None, None),
    "a mapping": (layer(reads), numbers, None, encoded(default_collate)),
    "packed sequences": (layer(sums), numbers, None, packed),
    "a sampling model": (layer(lambda self, x: x + torch.randn_like(x)), numbers, None, None),
    "a sampling loss": (linear, numbers, noisy, None),
    "positions": (Position, tokens, None, None),
    "an object as targets": (
        linear,
        numbers,
        lambda out, t: each(out, t.targets),
        lambda items: (default_collate(items)[0], Holding(*default_collate(items))),
    ),
}


@pytest.mark.parametrize("name", HONEST)
def test_honest_code_passes_without_a_word(name):
    model, data, loss, collate = HONEST[name]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tried(model(), data(), loss, collate)


def test_records_that_are_not_finite_are_no_mixing_beside_dropout():
    data = numbers()
    data.tensors[0][::3] = float("nan")
    tried(dropping(), data)


SAID = {
    "a generator of the data set's own": (linear, lambda: Augmented(own=True), None, "the data set draws"),
    "now and then by a generator of its own": (linear, lambda: Flips(np.random.default_rng(0).random), None, "the data set draws"),
    "a generator of the collate function's own": (linear, numbers, unseeded(), "the collate function draws"),
    "sampling beside padding": (lambda: Drawing(), Sentences, whole, "draws random numbers in eval mode"),
}


class Drawing(Classifier):
    def forward(self, tokens):
        return super().forward(tokens) + torch.randn(len(tokens), CLASSES)


@pytest.mark.parametrize("name", SAID)
def test_what_cannot_be_seen_is_said_once_and_not_refused(name):
    model, data, collate, words = SAID[name]
    test = property_test(model(), data(), None, collate)
    with pytest.warns(Unchecked, match=words):
        test.run(piece())
    test.run(piece())  # a second warning would be an error


def test_a_loss_that_mixes_is_seen_behind_random_numbers_that_no_seed_repeats():
    with pytest.warns(Unchecked), refused(MIXES):
        tried(linear(), Augmented(own=True), by_the_batchs_classes, unseeded())


UNSEEN = {
    "mixup in the data set": (linear, Mixup, None, None),
    "numbered as it comes": (linear, Numbered, None, None),
    "a scaler of the first batch": (linear, numbers, None, FittedOnce),
    "the first loss": (linear, numbers, relative, None),
    "the first batch's mean in a layer": (layer(keeps_the_first), numbers, None, None),
}


@pytest.mark.parametrize("name", UNSEEN)
def test_what_is_the_same_from_the_first_record_on_is_left_to_replay(name):
    model, data, loss, collate = UNSEEN[name]
    tried(model(), data(), loss and loss(), collate and collate())


# without a loss


def beside(items):
    inputs, targets = default_collate(items)
    return {"inputs": inputs, "targets": targets, "mean": inputs.mean(0)}


ROWS = {
    "scaled": (numbers, by_maximum, MIXES),
    "scaled, in a mapping": (numbers, encoded(by_maximum), MIXES),
    "sorted": (lambda: Sentences(16), by_length, MIXES),
    "scaled behind masks": (numbers, masks_and_mixes, MIXES),
    "half of the rows": (Augmented, halves, MIXES),
    "padding made of others": (Sentences, padded_with_others, MIXES),
    "a statistic beside its rows": (numbers, beside, "no row for each record"),
    "packed": (numbers, packed, f"no row for each record|{MIXES}"),
    "mixes as it fetches": (MixesAsItFetches, None, MIXES),
}


@pytest.mark.parametrize("name", ROWS)
def test_without_a_loss_rows_that_mix_are_refused(name):
    data, collate, words = ROWS[name]
    with refused(words):
        tried(linear(), data(), None, collate, seen=False)


@pytest.mark.parametrize("collate", [None, masks, masks_twice, encoded(default_collate), listed])
def test_without_a_loss_honest_rows_pass(collate):
    tried(linear(), Augmented(), None, collate, seen=False)


@pytest.mark.parametrize(
    ("data", "collate", "words"),
    [
        (Sentences, whole, "padded to the longest"),
        (numbers, lambda items: Holding(*default_collate(items)), "show nothing of their records"),
    ],
)
def test_without_a_loss_it_is_said_what_is_not_seen(data, collate, words):
    with pytest.warns(Unchecked, match=words):
        tried(linear(), data(), None, collate, seen=False)


def test_a_collate_function_that_cannot_take_one_record_is_refused_without_its_words():
    def collate(items):
        if len(items) < 2:
            raise ValueError(f"what about {items}")
        return default_collate(items)

    for seen in (True, False):
        with refused("ValueError") as failure:
            tried(linear(), numbers(), None, collate, seen=seen)
        assert "tensor" not in str(failure.value)


# holders with several records


@pytest.mark.parametrize("mean", [False, True])
def test_holders_with_several_records_are_taken_as_wholes(mean):
    """A loss that knows whose records are whose may mix those of one holder, and no others."""
    counts = [1, 3, 2, 4] * 4
    of = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    data = TensorDataset(torch.randn(SIZE, 4), torch.stack([torch.randint(0, CLASSES, (SIZE,)), of], 1))
    shares = 1.0 / torch.tensor(counts, dtype=torch.float64) if mean else None

    def within(outputs, targets):
        same = (targets[:, 1, None] == targets[None, :, 1]).float()
        return same @ each(outputs, targets[:, 0]) / same.sum(1)

    def beyond(outputs, targets):
        losses = each(outputs, targets[:, 0])
        return losses * (1 + losses.mean().detach())

    for model in (linear, dropping):
        test = property_test(model(), data)
        test._loss = within  # the early test of one example's loss knows of no holders
        test.run(piece(counts, shares=shares))
        test._loss = beyond
        with refused(MIXES):
            test.run(piece(counts, shares=shares))
        test._engine.detach()


# precision


class Half(nn.Module):
    """Casts within, as the tolerance must follow."""

    def __init__(self, change):
        super().__init__()
        self.inner = Layer(change)

    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            return self.inner(x).float()


def scaled_by(amount):
    def collate(items):
        inputs, targets = default_collate(items)
        return inputs * (1 + amount * inputs.mean()), targets

    return collate


def test_in_double_precision_less_is_mixing():
    data = TensorDataset(numbers().tensors[0].double(), numbers().tensors[1])
    tried(dropping().double(), data)
    with refused(MIXES):
        tried(dropping().double(), data, None, scaled_by(1e-5))


def test_what_is_rounding_in_half_precision_is_mixing_in_single():
    def rounds(self, x):
        return x * (1 + 0.004 * (len(x) > SIZE // 2))

    tried(Half(rounds), numbers())
    with refused(MIXES):
        tried(Half(rounds), numbers(), None, scaled_by(1.0))
    with refused(MIXES), torch.autocast("cpu", torch.bfloat16):  # the run's own is left off
        tried(Layer(rounds), numbers())


# what is left behind, and when


class Keeps(nn.Module):
    """Counts in a buffer, in training."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(4, CLASSES)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        self.count += 1
        return self.last(x)


@pytest.mark.parametrize("fails", [False, True])
def test_everything_is_put_back(fails):
    model = nn.Sequential(linear(), nn.Dropout(0.5)).train()
    model[1].eval()
    engine = PerExample(model)
    owners = Owners(torch.tensor([2, 1]))
    engine.open(torch.ones(2), owners)
    x = torch.randn(3, 4)
    model(x).sum().backward()
    model[0].bias.grad = torch.ones(CLASSES)
    parameters = [value.clone() for value in model.parameters()]
    reseed(7)
    test = property_test(engine, numbers(), over_the_batch if fails else None)
    if fails:
        with pytest.raises(sartor.SartorError):
            test.run(piece())
    else:
        test.run(piece())
    drawn = float(torch.rand(())), of_numpy(), random.random()
    reseed(7)
    assert drawn == (float(torch.rand(())), of_numpy(), random.random())
    assert [module.training for module in model.modules()] == [True, True, False]
    assert all(torch.equal(one, two) for one, two in zip(parameters, model.parameters(), strict=True))
    assert torch.equal(model[0].bias.grad, torch.ones(CLASSES))
    model[0].bias.grad = None
    assert engine.kernels.measure
    assert not engine.kernels.chosen
    assert engine.is_open
    assert engine.clipped_sums()["0.weight"].norm() > 0


def test_a_buffer_that_changes_as_data_go_through_is_refused_and_put_back():
    model = Keeps()
    with refused("buffer count changed"):
        tried(model, numbers())
    assert not model.count


def test_a_buffer_that_changes_in_eval_mode_is_put_back_and_no_kernels_are_chosen():
    class Looks(Tagger):
        def forward(self, tokens):
            self.seen += not self.training
            return super().forward(tokens)

    model = Looks()
    model.register_buffer("seen", torch.zeros(()))
    engine = PerExample(model)
    property_test(engine, Sentences(), None, padded).run(piece())
    assert not model.seen
    assert not engine.kernels.chosen
    with engine.batch(torch.ones(SIZE)):
        inputs, targets = padded(Sentences().items)
        functional.cross_entropy(model(inputs), targets).backward()
        engine.clipped_sums()
    assert engine.kernels.chosen


def test_the_first_batch_of_two_holders_is_tested_and_a_few_at_random():
    test = property_test(linear(), numbers(), steps=1000)
    one = Piece(0, 0, range(4), torch.ones(1), True, Owners(torch.tensor([4])))
    nobody = Piece(0, 0, [0], torch.zeros(1), True)
    assert not test.is_due(one)
    assert not test.is_due(nobody)
    assert all(test.is_due(piece(step=step)) for step in range(1000))
    test.run(piece())
    due = [step for step in range(1, 1000) if test.is_due(piece(step=step))]
    assert 1 <= len(due) <= DRAWN
    looked = [number for number in range(9) if test.is_due(Piece(due[0], number, range(4), torch.ones(4), number == 8, pieces=9))]
    assert len(looked) == 1


def test_any_piece_of_a_batch_may_be_the_one_that_is_tested():
    looked = set()
    for seed in range(20):
        test = property_test(linear(), numbers(), steps=1)
        test._stream, test._has_passed = Stream(seed), True
        looked |= {number for number in range(3) if test.is_due(Piece(0, number, range(4), torch.ones(4), number == 2, pieces=3))}
    assert looked == {0, 1, 2}


def test_what_was_refused_is_refused_again():
    test = property_test(linear(), numbers(), None, by_maximum)
    for _ in range(2):
        with refused(MIXES):
            test.run(piece())
        assert test.is_due(piece())


@pytest.mark.parametrize("several", [False, True])
def test_before_a_run_a_bad_loss_is_refused_and_a_good_one_is_tested_again_later(several):
    budgets = sartor.Budgets([2.0] * (SIZE // 2), delta=1e-3, holders=list(range(SIZE // 2)))
    ownership = sartor.Ownership.of([i // 2 for i in range(SIZE)], budgets) if several else None
    with refused(MIXES):
        property_test(linear(), numbers(), over_the_batch).beforehand(SIZE, ownership, 0.1)
    test = property_test(linear(), numbers())
    test.beforehand(SIZE, ownership, 0.1)
    assert test.is_due(piece())


def test_before_a_run_few_records_are_looked_at():
    data = numbers(5000)
    fetched = set()

    def fetch(indices):
        fetched.update(indices)
        return [data[i] for i in indices]

    PropertyTest(PerExample(linear()), fetch, None, Loss(None), steps=3, stream=Stream(1)).beforehand(5000)
    assert {0, 4999} <= fetched
    assert len(fetched) == 64
