"""Whatever a batch is made of, a record in it is found and compared, and honest batches are not taken for mixing."""

from collections import UserDict
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_sequence, pad_packed_sequence
from torch.utils.data import TensorDataset

import sartor
from sartor.sgd.batches import Likeness, cut, has_rows, is_opaque, leaves, likeness, mapped, taken
from sartor.sgd.loss import Loss

CLASSES, ROWS = 3, 5


def compared(collate, items, place=1):
    """A record in its batch and alone."""
    return likeness(collate(items), [place], len(items), collate([items[place]]))


def numbers(rows=ROWS):
    return list(torch.randn(rows, 4, generator=torch.Generator().manual_seed(0)))


def sentences(lengths=(2, 4, 7, 5, 3)):
    return [torch.arange(1, n + 1) * (i + 1) for i, n in enumerate(lengths)]


def padded(items):
    return nn.utils.rnn.pad_sequence(items, batch_first=True)


# whole numbers and small ones


def longest(items):
    return max(len(item) for item in items)


def test_a_whole_number_beside_the_rows_is_a_size_or_may_carry_others_data():
    assert compared(lambda items: (padded(items), longest(items)), sentences()) is Likeness.PADDED
    assert compared(lambda items: (longest(items), padded(items)), sentences()) is Likeness.PADDED
    assert compared(lambda items: (padded(items), int(padded(items).max())), sentences()) is Likeness.COMMON


def test_a_truth_value_about_the_batch_is_no_size():
    assert compared(lambda items: (torch.stack(items)[:, :1], len(items) > 1), numbers()) is Likeness.COMMON


@pytest.mark.parametrize("unit", [1e-13, 1.0, 1e13])
def test_records_are_compared_in_their_own_units(unit):
    items = [unit * item for item in numbers()]
    assert compared(torch.stack, items) is Likeness.SAME
    assert compared(lambda some: torch.stack(some) - torch.stack(some).mean(0), items) is Likeness.OTHER


def test_a_large_number_in_a_record_does_not_hide_mixing_in_a_small_one():
    def collate(items):
        rows = torch.stack(items)
        return torch.cat([torch.full((len(rows), 1), 1e6), rows + 1e-3 * rows.mean(0)], 1)

    assert compared(collate, numbers()) is Likeness.OTHER


def test_numbers_that_are_not_finite_are_compared():
    items = [torch.tensor([float("nan"), float("inf"), float(i)]) for i in range(ROWS)]
    assert compared(torch.stack, items) is Likeness.SAME
    assert compared(lambda some: torch.stack(some[::-1]), items) is Likeness.OTHER


# NumPy

ARRAYS = {
    "texts": lambda rows: np.array([f"{float(row[0]):.3f}" * (1 + int(row[1] > 0)) for row in rows]),
    "bytes": lambda rows: np.array([f"{float(row[0]):.3f}".encode() for row in rows]),
    "big-endian": lambda rows: rows.astype(">f4"),
    "flipped": lambda rows: rows[:, ::-1],
    "dates": lambda rows: (1000 * rows).astype("datetime64[D]"),
    "unsigned": lambda rows: (1000 * np.abs(rows)).astype(np.uint32),
    "long": lambda rows: rows.astype(np.longdouble),
}


@pytest.mark.parametrize("kind", ARRAYS)
def test_arrays_of_any_kind_are_compared_by_rows(kind):
    def collate(items):
        return ARRAYS[kind](torch.stack(items).numpy())

    assert compared(collate, numbers()) is Likeness.SAME
    assert likeness(collate(numbers()), [0], ROWS, collate(numbers()[1:2])) is Likeness.OTHER


# what lies in what


class Node:
    """Anything with attributes."""

    def __init__(self, **parts):
        self.__dict__.update(parts)


HOLDERS = {
    "mapping": (lambda x: UserDict(x=x, inner=[x]), lambda b: (b["x"], b["inner"][0])),
    "tuple": (lambda x: (x, {"y": x}), lambda b: (b[0], b[1]["y"])),
}


@pytest.mark.parametrize("kind", HOLDERS)
def test_rows_are_cut_and_taken_from_whatever_holds_them(kind):
    hold, read = HOLDERS[kind]
    rows = torch.stack(numbers())
    held = hold(rows.clone())
    for some, expected in ((cut(held, 1, 3, ROWS), rows[1:3]), (taken(held, [4, 0, 0], ROWS), rows[[4, 0, 0]])):
        assert type(some) is type(held)
        assert all(torch.equal(part, expected) for part in read(some))
    assert all(torch.equal(part, rows) for part in read(held))
    assert any(has_rows(leaf, ROWS) for leaf in leaves(held))


def test_a_mapping_is_copied_and_never_altered():
    held = UserDict(x=1)
    assert dict(mapped(lambda leaf: leaf + 1, held)) == {"x": 2}
    assert dict(held) == {"x": 1}


@pytest.mark.parametrize("kind", HOLDERS)
@pytest.mark.parametrize("mixes", [True, False])
def test_rows_are_compared_in_whatever_holds_them(kind, mixes):
    def collate(items):
        rows = torch.stack(items)
        return HOLDERS[kind][0](rows - rows.mean(0) if mixes else rows)

    assert compared(collate, numbers()) is (Likeness.OTHER if mixes else Likeness.SAME)


def test_an_object_is_not_looked_into():
    assert is_opaque([Node(x=torch.zeros(3))])
    assert not is_opaque({"x": torch.zeros(3), "of": ["a", 1, None, np.zeros(2)]})


# padding and what is no padding


def centred(items):
    full = longest(items) + 2
    spare = [full - len(item) for item in items]
    return torch.stack([functional.pad(item, (more // 2, more - more // 2)) for item, more in zip(items, spare, strict=True)])


@pytest.mark.parametrize("place", range(5))
def test_padding_on_both_sides_is_padding(place):
    assert compared(centred, sentences(), place) <= Likeness.PADDED


def causal(items):
    tokens = padded(items)
    size = tokens.shape[1]
    return torch.tril(torch.ones(size, size, dtype=torch.bool))[None] & (tokens != 0)[:, None]


@pytest.mark.parametrize(
    "collate",
    [
        lambda items: torch.arange(longest(items))[None],
        lambda items: {"x": padded(items), "mean": padded(items).float().mean()},
        lambda items: {"x": padded(items), "mask": None if len(items) == 1 else padded(items) != 0},
    ],
    ids=["one row of positions", "a statistic", "mask only where needed"],
)
def test_what_has_no_row_for_each_record_is_told(collate):
    assert compared(collate, sentences()) is Likeness.COMMON


def test_padding_made_of_others_and_another_order_are_no_padding():
    def collate(items):
        rows = padded(items)
        return torch.where(rows == 0, rows.max(0).values, rows)

    assert compared(collate, sentences()) is Likeness.OTHER
    assert compared(lambda items: padded(items).flip(0), sentences()) is Likeness.OTHER


# through fit


def fit(model, items, **options):
    budgets = sartor.Budgets.from_groups([(2.0, len(items) // 2), (8.0, len(items) - len(items) // 2)], delta=1e-2)
    plan = sartor.plan(budgets, steps=2, batch=10, clip=0.1)
    return sartor.fit(model, items, budgets, plan, lr=0.1, progress=False, seed=3, **options).steps


def table(size=30):
    generator = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(size, 4, generator=generator), torch.randint(0, CLASSES, (size,), generator=generator))


def stacked(items):
    return torch.stack([x for x, _ in items]), torch.stack([y for _, y in items])


def each(outputs, targets):
    return functional.cross_entropy(outputs, targets, reduction="none")


class Sums(nn.Module):
    """A class from the mean over a packed record's steps."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(4, CLASSES)

    def forward(self, packed):
        x, lengths = pad_packed_sequence(packed, batch_first=True)
        return self.last(x.sum(1) / lengths[:, None])


@pytest.mark.filterwarnings("ignore::sartor.sgd.check.Unchecked")
def test_packed_sequences_train():
    def collate(items):
        return pack_sequence([x.repeat(1 + int(y), 1) for x, y in items], enforce_sorted=False), stacked(items)[1]

    assert fit(Sums(), table(), collate=collate) == 2


class Less(nn.Module):
    """Takes something of the batch away from each of its rows."""

    def __init__(self, name):
        super().__init__()
        self.last, self.name = nn.Linear(4, CLASSES), name

    def forward(self, x):
        return self.last(x - getattr(x, self.name, 0.0))


@pytest.mark.parametrize("used", [True, False])
def test_a_statistic_in_a_tensors_attribute_cannot_reach_a_loss(used):
    def collate(items):
        x, y = stacked(items)
        x.average = x.mean(0)
        return x, y

    if not used:
        assert fit(Less("unknown"), table(), collate=collate) == 2
    else:
        with pytest.raises(sartor.SartorError):
            fit(Less("average"), table(), collate=collate)


@dataclass
class Output:
    """What a model puts out."""

    logits: torch.Tensor


class Wrapped(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = nn.Linear(4, CLASSES)

    def forward(self, x):
        return Output(self.last(x))


@pytest.mark.filterwarnings("ignore::sartor.sgd.check.Unchecked")  # the self-check may not look into objects
def test_a_model_that_returns_an_object_trains_and_mixing_in_its_loss_is_refused():
    assert fit(Wrapped(), table(), loss=lambda out, y: each(out.logits, y)) == 2
    with pytest.raises(sartor.SartorError, match="mixes examples"):
        fit(Wrapped(), table(), loss=lambda out, y: each(out.logits - out.logits.mean(0), y))


@pytest.mark.parametrize("hold", [lambda y: {"y": y}, lambda y: (y, torch.ones(CLASSES)), lambda y: Node(y=y)])
def test_targets_may_lie_in_anything(hold):
    def read(targets):
        return targets["y"] if isinstance(targets, dict) else targets[0] if isinstance(targets, tuple) else targets.y

    def collate(items):
        x, y = stacked(items)
        return x, hold(y)

    assert fit(nn.Linear(4, CLASSES), table(), collate=collate, loss=lambda out, t: each(out, read(t))) == 2
    with pytest.raises(sartor.SartorError, match="one number for the whole batch"):
        fit(nn.Linear(4, CLASSES), table(), collate=collate, loss=lambda out, t: each(out, read(t)).mean())


def test_a_loss_for_each_class_is_not_taken_for_one_for_each_example():
    with pytest.raises(sartor.SartorError, match="one number for the whole batch"):
        Loss(lambda out, t: out.mean(0))(torch.randn(7, CLASSES), (torch.zeros(7), torch.ones(CLASSES)))


def test_a_loss_in_one_long_row_is_told_so():
    with pytest.raises(sartor.SartorError, match="one long row"):
        fit(nn.Linear(4, CLASSES), table(), loss=lambda out, y: (out - functional.one_hot(y, CLASSES)).square().reshape(-1))


def noisy(outputs, targets):
    noise = torch.randint(0, CLASSES, targets.shape)
    return each(outputs, torch.where(torch.rand(len(targets)) < 0.3, noise, targets))


def sampled(outputs, targets):
    return each(outputs, targets) - functional.logsigmoid(-outputs.gather(1, torch.randint(0, CLASSES, (len(targets), 2)))).sum(1)


@pytest.mark.parametrize("loss", [noisy, sampled])
def test_a_loss_that_draws_is_not_refused_for_its_shapes(loss):
    outputs, targets = torch.randn(20, CLASSES), torch.randint(0, CLASSES, (20,))
    for seed in range(5):
        torch.manual_seed(seed)
        assert Loss(loss)(outputs, targets).shape == (20,)


def test_shapes_that_broadcast_are_refused_though_the_loss_draws():
    with pytest.raises(sartor.SartorError, match="n x n"):
        Loss(lambda out, y: (out - y + torch.rand(len(y))) ** 2)(torch.randn(20, 1), torch.randn(20))


def test_the_early_test_leaves_the_random_numbers_alone():
    outputs, targets = torch.randn(20, CLASSES), torch.randint(0, CLASSES, (20,))
    torch.manual_seed(0)
    noisy(outputs, targets)
    expected = torch.rand(3)
    torch.manual_seed(0)
    Loss(noisy)(outputs, targets)
    assert torch.equal(torch.rand(3), expected)


def test_outputs_that_keep_time_first_are_left_to_the_comparison_in_fit():
    torch.manual_seed(0)
    steps, rows, size = 9, 4, 3
    outputs = torch.randn(steps, rows, CLASSES).log_softmax(2)
    targets = torch.randint(1, CLASSES, (rows, size)), torch.full((rows,), steps), torch.full((rows,), size)

    def loss(out, given):
        return functional.ctc_loss(out, *given, reduction="none")

    assert torch.equal(Loss(loss)(outputs, targets), loss(outputs, targets))
