"""Whatever a batch is made of, a record in it is found and compared, and honest batches are not taken for mixing."""

import types
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
from sartor.sgd import batches
from sartor.sgd.batches import Likeness, likeness
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


@pytest.mark.parametrize("kind", [int, np.int64, torch.tensor, np.array])
def test_a_whole_number_beside_the_rows_is_a_size_or_may_carry_others_data(kind):
    assert compared(lambda items: (padded(items), kind(longest(items))), sentences()) is Likeness.PADDED
    assert compared(lambda items: (kind(longest(items)), padded(items)), sentences()) is Likeness.PADDED
    assert compared(lambda items: (padded(items), kind(int(padded(items).max()))), sentences()) is Likeness.COMMON
    assert compared(lambda items: (torch.stack(items), kind(int(10 * torch.stack(items).abs().max()))), numbers()) is Likeness.COMMON


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
    "records": lambda rows: np.array([(row[0], 1) for row in rows], dtype=[("a", "f4"), ("b", "i4")]),
    "unsigned": lambda rows: (1000 * np.abs(rows)).astype(np.uint32),
    "long": lambda rows: rows.astype(np.longdouble),
}


@pytest.mark.parametrize("kind", ARRAYS)
def test_arrays_of_any_kind_are_compared_by_rows(kind):
    def collate(items):
        return ARRAYS[kind](torch.stack(items).numpy())

    assert compared(collate, numbers()) is Likeness.SAME
    assert likeness(collate(numbers()), 0, ROWS, collate(numbers()[1:2]), 0, 1) is Likeness.OTHER


# what lies in what


class Node:
    """Anything with attributes."""

    def __init__(self, **parts):
        self.__dict__.update(parts)


class Pair(tuple):
    def __new__(cls, first, second):
        return super().__new__(cls, (first, second))


class Items(list):
    """A list that can carry something."""


def refers_to_itself(x):
    node = Node(x=x)
    node.me, node.all = node, [node, {"again": node}]
    return node


def with_attribute(x):
    x.mark = x + 1
    return x


class Signal(torch.Tensor):
    """A class of tensors of one's own."""


HOLDERS = {
    "itself": (refers_to_itself, lambda b: (b.x, b.me.x, b.all[0].x, b.all[1]["again"].x)),
    "proxy": (lambda x: types.MappingProxyType({"x": x}), lambda b: (b["x"],)),
    "tuple": (lambda x: Pair(x, x), lambda b: b),
    "tensor": (with_attribute, lambda b: (b, b.mark - 1)),
    "subclass": (lambda x: with_attribute(x.as_subclass(Signal)), lambda b: (b, b.mark - 1)),
    "named": (lambda x: torch.max(torch.stack([x, x]), 0), lambda b: (b.values,)),
}


@pytest.mark.parametrize("kind", HOLDERS)
def test_rows_are_cut_from_whatever_holds_them(kind):
    hold, read = HOLDERS[kind]
    rows = torch.stack(numbers())
    held = hold(rows.clone())
    some = batches.cut(held, 1, 3, ROWS)
    assert type(some) is type(held) or kind == "proxy"
    for part in read(some):
        assert torch.allclose(part.as_subclass(torch.Tensor), rows[1:3])
    for part in read(held):
        assert torch.allclose(part.as_subclass(torch.Tensor), rows)
    assert any(batches.has_rows(leaf, ROWS) for leaf in batches.leaves(held))


@pytest.mark.parametrize("kind", HOLDERS)
@pytest.mark.parametrize("mixes", [True, False])
def test_rows_are_compared_in_whatever_holds_them(kind, mixes):
    def collate(items):
        rows = torch.stack(items)
        return HOLDERS[kind][0](rows - rows.mean(0) if mixes else rows)

    assert compared(collate, numbers()) is (Likeness.OTHER if mixes else Likeness.SAME)


def beside(holder):
    def collate(items):
        rows = torch.stack(items)
        held = holder(rows)
        held.mean = rows.mean(0)
        return held

    return collate


@pytest.mark.parametrize(
    "holder", [lambda rows: rows.clone(), lambda rows: Items([rows]), lambda rows: UserDict(x=rows), lambda rows: Node(x=rows)]
)
def test_a_statistic_in_an_attribute_is_seen(holder):
    assert compared(beside(holder), numbers()) is Likeness.COMMON


def test_the_order_of_a_mapping_may_carry_others_data():
    def collate(items):
        rows = torch.stack(items)
        parts = {"one": rows, "other": -rows}
        return parts if len(items) == 1 else dict(reversed(parts.items()))

    assert compared(collate, numbers()) is Likeness.COMMON


def test_a_statistic_in_the_mask_of_an_array_is_seen():
    def collate(items):
        rows = torch.stack(items).numpy()
        return np.ma.masked_array(rows, mask=rows > rows.mean())

    assert compared(collate, [item + i for i, item in enumerate(numbers())], 2) is not Likeness.SAME


def test_a_tensor_that_answers_by_itself_is_not_seen():
    class Answers(torch.Tensor):
        @classmethod
        def __torch_dispatch__(cls, function, kinds, args=(), kwargs=None):
            raise AssertionError("not to be asked")

    assert compared(lambda items: torch.stack(items).as_subclass(Answers), numbers()) is Likeness.UNSEEN


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
        lambda items: torch.arange(longest(items)).repeat(len(items), 1),
        lambda items: torch.arange(longest(items))[None],
        causal,
        lambda items: {"x": padded(items), "of": {int(item[0]): 1 for item in items}},
        lambda items: pack_sequence(items, enforce_sorted=False),
        lambda items: {"x": padded(items), "mask": None if len(items) == 1 else padded(items) != 0},
    ],
    ids=["positions", "one row of positions", "causal", "by record", "packed", "mask only where needed"],
)
def test_what_stands_around_a_record_is_left_to_the_loss(collate):
    assert compared(collate, sentences()) is Likeness.COMMON


def test_padding_made_of_others_is_not_only_padding():
    def collate(items):
        rows = padded(items)
        return torch.where(rows == 0, rows.max(0).values, rows)

    assert compared(collate, sentences()) is Likeness.COMMON


def test_rows_of_the_same_shape_with_other_values_stay_other():
    assert (
        compared(lambda items: {"x": padded(items).flip(0), "of": {int(item[0]): 1 for item in items}}, sentences((4,) * 5))
        is Likeness.OTHER
    )
    assert compared(lambda items: padded(items).flip(0), sentences()) is Likeness.OTHER


def test_what_differs_in_structure_must_be_seen():
    assert compared(lambda items: {len(items): object()}, numbers()) is Likeness.UNSEEN


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
    with pytest.raises(sartor.SartorError, match="depends on the others"):
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
