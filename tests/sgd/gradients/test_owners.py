"""Holders with several rows: what is clipped is the sum or mean of a holder's gradients, against a naive loop."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from sartor.errors import SartorError
from sartor.models import build
from sartor.sgd.gradients import Call, Formed, Kernels, Owners, PerExample, Product, rule
from sartor.sgd.gradients.owners import _rounded
from sartor_testing.layer_cases import CASES
from sartor_testing.naive import naive_gradients, naive_sums

WAYS = ["measured", "strided", "grouped", "correlated", "ghost", "formed"]
THRESHOLDS = (0.01, 0.3, 2.0, 1e3, 0.0, 0.1)


def kernels(model, way):
    if way == "measured":
        return None
    names = [f"{name}.weight" for name, _ in model.named_modules()]
    every = [*names, *(f"{name} of {each}" for name in names for each in range(2, 9))]
    return Kernels(dict.fromkeys(every, way), measure=False)


def repeated(inputs, rows):
    """As many rows as asked, none like another."""
    found = []
    for x in inputs:
        more = torch.cat([x] * (rows // len(x) + 1))[:rows]
        found.append(more + 0.01 * torch.randn(more.shape) if more.is_floating_point() else more.roll(1, -1))
    return tuple(found)


def check(model, inputs, counts, *, way="measured", combine="sum", tolerance=2e-5):
    inputs = repeated(inputs, sum(counts))
    with torch.no_grad():
        weights = torch.randn_like(model(*inputs))

    def loss(output, i):
        return (output.tanh() * weights[i : i + 1]).sum()

    each = naive_gradients(model, inputs, loss)
    holders, begin = [], 0
    for count in counts:
        mine = each[begin : begin + count]
        share = 1 / count if combine == "mean" else 1.0
        holders.append({name: share * sum(one[name].double() for one in mine) for name in mine[0]})
        begin += count
    thresholds = torch.tensor(THRESHOLDS)[torch.arange(len(counts)) % len(THRESHOLDS)]
    expected, norms = naive_sums(holders, thresholds)
    engine = PerExample(model, kernels=kernels(model, way))
    with engine.batch(thresholds, Owners(torch.tensor(counts))):
        ((model(*inputs).tanh() * weights).sum() / len(inputs[0])).backward()
        scale = len(inputs[0]) / torch.tensor(counts).double() if combine == "mean" else float(len(inputs[0]))
        sums, found = engine.sums_and_norms(scale)
    engine.detach()
    size = max(float(norm) for norm in norms)
    torch.testing.assert_close(found.double(), norms, rtol=tolerance, atol=tolerance * size)
    size = torch.sqrt(sum(value.square().sum() for value in expected.values()))
    away = torch.sqrt(sum((sums[n].double() - expected[n]).square().sum() for n in expected))
    assert away <= (tolerance + 2.0**-16) * size + 1e-7
    assert set(sums) == set(expected)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", CASES)
def test_a_holders_rows_are_added_up_before_they_are_clipped(name, way):
    torch.manual_seed(1)
    model, inputs = CASES[name]()
    check(model, inputs, [1, 3, 2, 1, 5], way=way)


@pytest.mark.parametrize(
    "name", ["linear", "conv2d", "conv2d few positions", "embedding", "lstm", "scalars", "tied modules", "called twice"]
)
@pytest.mark.parametrize("counts", [[1], [4], [3, 3, 3], [2, 2], [1, 1, 7], [6, 1], [1, 1, 1]])
def test_any_numbers_of_rows_are_right(name, counts):
    torch.manual_seed(2)
    model, inputs = CASES[name]()
    check(model, inputs, counts, combine="mean")


@pytest.mark.parametrize("name", ["mnist-cnn", "cifar-cnn", "char-lstm", "transformer", "embedding"])
def test_reference_models_by_holder_equal_a_naive_loop(name):
    shape, classes, words = {"mnist-cnn": ((1, 28, 28), 10, None), "cifar-cnn": ((3, 32, 32), 10, None)}.get(name, ((9,), 3, 30))
    torch.manual_seed(3)
    model = build(name, shape=shape, classes=classes, vocabulary=words).double()
    inputs = torch.randn(2, *shape).double() if words is None else torch.randint(0, words, (2, *shape))
    check(model, (inputs,), [2, 1, 3])


@given(counts=st.lists(st.integers(1, 9), min_size=1, max_size=6), data=st.data())
@settings(max_examples=40)
def test_zeroing_a_whole_holder_moves_the_sum_by_at_most_their_clip(counts, data):
    torch.manual_seed(sum(counts))
    name = data.draw(st.sampled_from(sorted(CASES)))
    model, inputs = CASES[name]()
    inputs = repeated(inputs, sum(counts))
    target = data.draw(st.integers(0, len(counts) - 1))
    clips = torch.tensor([data.draw(st.sampled_from([0.05, 0.5, 4.0])) for _ in counts])
    engine = PerExample(model, kernels=Kernels(measure=False))

    def summed(kept):
        rows = [torch.arange(count) + sum(counts[:i]) for i, count in enumerate(counts) if i in kept]
        if not rows:
            return None
        chosen = torch.cat(rows)
        with engine.batch(clips[kept], Owners(torch.tensor([counts[i] for i in kept]))):
            (100 * model(*(x[chosen] for x in inputs)).tanh()).sum().backward()
            return engine.clipped_sums()

    everybody, others = summed(list(range(len(counts)))), summed([i for i in range(len(counts)) if i != target])
    moved = sum(float((value - (0 if others is None else others[n])).double().square().sum()) for n, value in everybody.items()) ** 0.5
    # adding up the others in another order rounds otherwise
    assert moved <= float(clips[target]) + 1e-5 * float(clips.sum())


def test_a_row_that_is_not_finite_silences_its_holder_alone():
    torch.manual_seed(4)
    for name in ("linear", "conv2d", "conv2d few positions", "embedding", "layer norm", "scalars"):
        for way in ("grouped", "ghost", "formed"):
            model, inputs = CASES[name]()
            inputs = repeated(inputs, 7)
            engine, counts = PerExample(model, kernels=kernels(model, way)), torch.tensor([2, 3, 1, 1])
            with torch.no_grad():
                weights = torch.randn_like(model(*inputs))
            weights[3] = float("nan")  # in the second holder's rows
            others = torch.tensor([0, 1, 5, 6])
            with engine.batch(torch.ones(3), Owners(counts[[0, 2, 3]])):
                (model(*(x[others] for x in inputs)) * weights[others]).sum().backward()
                expected = engine.clipped_sums()
            with engine.batch(torch.ones(4), Owners(counts)):
                (model(*inputs) * weights).sum().backward()
                found = engine.clipped_sums()
            for parameter in expected:
                torch.testing.assert_close(found[parameter], expected[parameter])


def test_plain_sums_are_those_of_all_rows():
    torch.manual_seed(5)
    for name in ("linear", "conv2d", "embedding", "lstm", "scalars", "tied modules"):
        model, inputs = CASES[name]()
        engine = PerExample(model)
        with engine.batch(torch.ones(1), Owners(torch.tensor([len(inputs[0])]))):
            model(*inputs).tanh().sum().backward()
            found = engine.plain_sums()
        engine.detach()
        model(*inputs).tanh().sum().backward()
        for parameter, value in model.named_parameters():
            expected = torch.zeros_like(value) if value.grad is None else value.grad
            torch.testing.assert_close(found[parameter], expected, rtol=1e-4, atol=1e-5)


def test_thresholds_are_one_for_each_holder():
    engine = PerExample(nn.Linear(2, 1))
    with pytest.raises(SartorError, match="one threshold for each of its holders"):
        engine.open(torch.ones(3), Owners(torch.tensor([2, 1])))


def test_a_rule_that_knows_nothing_of_holders_is_added_up_by_the_engine():
    class Doubled(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    @rule(Doubled)
    def doubled(call: Call):
        assert call.each == 1
        left, right = 2 * call.gradient, call.input
        weight = Formed(left[:, :, None] * right[:, None, :]) if call.form else Product(left, right)
        return {"weight": weight, "bias": Formed(left)}

    torch.manual_seed(6)
    check(Doubled(4, 3), (torch.randn(5, 4),), [2, 1, 4])


def test_rows_are_filled_by_less_than_half():
    for count in range(1, 2000):
        assert count <= _rounded(count) <= 1.5 * count
    assert len({_rounded(count) for count in range(1, 2000)}) < 25
