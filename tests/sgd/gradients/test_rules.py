"""Every rule against a naive loop over examples, each example at its own threshold."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sartor.errors import SartorError
from sartor.sgd.gradients import Kernels, PerExample
from sartor_testing.layer_cases import CASES, frozen, tokens
from sartor_testing.naive import naive_gradients, naive_sums

THRESHOLDS = (0.01, 0.3, 2.0, 1e3, 0.0, 0.1)


def check(model, inputs, *, kernels=None, scale="sum", tolerance=1e-5):
    examples = len(inputs[0])
    with torch.no_grad():
        weights = torch.randn_like(model(*inputs))

    def loss(output, i):
        return (output.tanh() * weights[i : i + 1]).sum()

    thresholds = torch.tensor(THRESHOLDS)[torch.arange(examples) % len(THRESHOLDS)]
    expected, norms = naive_sums(naive_gradients(model, inputs, loss), thresholds)
    engine = PerExample(model, kernels=kernels)
    with engine.batch(thresholds):
        total = (model(*inputs).tanh() * weights).sum()
        (total / examples if scale == "mean" else total).backward()
        sums, found = engine.sums_and_norms(examples if scale == "mean" else 1.0)
    engine.detach()
    torch.testing.assert_close(found.double(), norms, rtol=tolerance, atol=1e-7)
    size = torch.sqrt(sum(value.square().sum() for value in expected.values()))
    away = torch.sqrt(sum((sums[n].double() - expected[n]).square().sum() for n in expected))
    assert away <= (tolerance + 2.0**-16) * size + 1e-9
    assert set(sums) == set(expected)
    assert all(p.grad is None and p.requires_grad for n, p in model.named_parameters() if n in sums)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("way", ["measured", "strided", "grouped", "correlated", "ghost", "formed"])
def test_sums_equal_a_naive_loop(name, way):
    torch.manual_seed(1)
    model, inputs = CASES[name]()
    layers = [f"{n}.weight" for n, _ in model.named_modules()]
    check(model, inputs, kernels=None if way == "measured" else Kernels(dict.fromkeys(layers, way), measure=False))


@pytest.mark.parametrize("name", ["linear", "conv2d", "embedding", "lstm", "scalars", "tied modules"])
@pytest.mark.parametrize("examples", [1, 2])
def test_small_batches_and_mean_losses_are_right(name, examples):
    torch.manual_seed(2)
    model, inputs = CASES[name]()
    check(model, tuple(x[:examples] for x in inputs), scale="mean")


class Twofold(nn.Module):
    """Takes a table that all examples share, then examples; or examples alone, in the table's place."""

    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.randn(3))

    def forward(self, first, second=None):
        return first * self.gain if second is None else second * self.gain + first.mean()


class TwoForms(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Twofold()
        self.register_buffer("table", torch.randn(2, 3))

    def forward(self, x):
        return self.inner(self.table, x).tanh() + self.inner(x)


def test_a_module_called_in_two_forms_keeps_examples_apart():
    torch.manual_seed(7)
    check(TwoForms(), (torch.randn(5, 3),))


def test_an_empty_batch_has_sums_of_zero():
    for name in ("linear", "conv2d", "embedding", "layer norm", "scalars"):
        torch.manual_seed(3)
        model, inputs = CASES[name]()
        engine = PerExample(model)
        with engine.batch(torch.zeros(0)):
            model(*(x[:0] for x in inputs)).sum().backward()
            assert all(not value.any() for value in engine.clipped_sums().values())


def test_a_gradient_that_is_not_finite_contributes_nothing():
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    inputs = torch.randn(5, 3)
    engine = PerExample(model)
    with engine.batch(torch.ones(4)):
        model(inputs[[0, 1, 3, 4]]).sum().backward()
        expected = engine.clipped_sums()
    for poison in (float("nan"), float("inf"), 1e38):
        inputs[2] = poison
        with engine.batch(torch.ones(5)):
            model(inputs).sum().backward()
            found = engine.clipped_sums()
        if poison == 1e38:
            continue  # finite: clipped like any other
        for name in expected:
            torch.testing.assert_close(found[name], expected[name])


@pytest.mark.parametrize("way", ["strided", "grouped", "correlated", "ghost"])
@pytest.mark.parametrize("examples", [1, 63, 64, 65, 131])
def test_convolutions_in_blocks_keep_examples_apart(way, examples):
    torch.manual_seed(6)
    model = nn.Sequential(nn.Conv2d(2, 3, 3, stride=2, padding=1), nn.Flatten())
    inputs, poisoned = torch.randn(examples, 2, 8, 8), min(examples - 1, 64)
    engine = PerExample(model, kernels=Kernels({"0.weight": way}, measure=False))
    with engine.batch(torch.ones(examples)):
        model(inputs).square().sum().backward()
        _, norms = engine.sums_and_norms()
    others = [i for i in range(examples) if i != poisoned]
    with engine.batch(torch.ones(len(others))):
        model(inputs[others]).square().sum().backward()
        expected = engine.clipped_sums()
    inputs[poisoned] = float("nan")
    with engine.batch(torch.ones(examples)):
        model(inputs).square().sum().backward()
        found, poisoned_norms = engine.sums_and_norms()
    torch.testing.assert_close(poisoned_norms[others], norms[others])
    for name in expected:
        torch.testing.assert_close(found[name], expected[name])


def test_huge_gradients_are_clipped_not_lost():
    model = nn.Linear(2, 1, bias=False)
    engine = PerExample(model)
    with engine.batch(torch.ones(1)):
        (model(torch.full((1, 2), 1e8)) * 1e10).sum().backward()
        assert engine.clipped_sums()["weight"].norm() == pytest.approx(1.0, rel=1e-4)
    with engine.batch(torch.ones(1)):  # beyond what float32 can scale down without rounding up
        (model(torch.full((1, 2), 1e15)) * 1e10).sum().backward()
        assert not engine.clipped_sums()["weight"].any()


def test_a_parameter_used_outside_of_its_module_is_refused():
    class Outside(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(5, 3)

        def forward(self, x):
            return F.linear(self.words(x), self.words.weight)

    model = Outside()
    engine = PerExample(model)
    with engine.batch(torch.ones(4)), pytest.raises(SartorError, match=r"words\.weight .* outside of the module"):
        model(tokens(4, 2, most=5)).sum().backward()
        engine.clipped_sums()


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (lambda: nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)), "mixes the examples"),
        (lambda: nn.Sequential(nn.SyncBatchNorm(3)), "mixes the examples"),
        (lambda: nn.InstanceNorm1d(3, affine=True, track_running_stats=True), "track_running_stats"),
        (lambda: nn.LSTM(3, 3), r"sartor\.layers\.LSTM"),
        (lambda: nn.GRU(3, 3), r"sartor\.layers\.GRU"),
        (lambda: nn.RNN(3, 3), r"sartor\.layers\.RNN"),
        (lambda: nn.MultiheadAttention(4, 2), "batch_first"),
        (lambda: nn.Embedding(3, 3, max_norm=1.0), "max_norm"),
        (lambda: nn.LazyLinear(3), "not initialised"),
        (lambda: nn.ReLU(), "no trainable parameters"),
        (lambda: frozen(nn.Linear(2, 2), "weight", "bias"), "no trainable parameters"),
        (lambda: nn.Linear(2, 2, dtype=torch.complex64), "complex"),
    ],
)
def test_what_cannot_be_trained_is_refused_with_the_reason(model, reason):
    with pytest.raises(SartorError, match=reason):
        PerExample(model())


def test_rows_that_are_not_examples_are_refused_by_name():
    model = nn.Sequential(nn.Flatten(0, 1), nn.Linear(3, 2))
    engine = PerExample(model)
    with engine.batch(torch.ones(4)), pytest.raises(SartorError, match="1 returned a different number of rows"):
        model(torch.randn(4, 2, 3))


def test_requires_grad_is_restored_when_a_forward_fails():
    model = nn.Linear(3, 2)
    engine = PerExample(model)
    with engine.batch(torch.ones(4)), pytest.raises(RuntimeError):
        model(torch.randn(4, 5))
    assert model.weight.requires_grad


def test_no_weight_gradient_is_computed():
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    engine = PerExample(model)
    with engine.batch(torch.ones(4)):
        output = model(torch.randn(4, 3))
        waiting, seen = [output.grad_fn], set()
        while waiting:
            node = waiting.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            assert getattr(node, "variable", engine._anchor) is engine._anchor
            waiting += [parent for parent, _ in node.next_functions]


def test_evaluation_is_not_recorded():
    model = nn.Linear(3, 2)
    engine = PerExample(model)
    with engine.batch(torch.ones(4)):
        with torch.no_grad():
            model(torch.randn(9, 3))
        model(torch.randn(4, 3)).sum().backward()
        engine.clipped_sums()
    model(torch.randn(9, 3)).sum().backward()
    assert model.weight.grad is not None


def test_bfloat16_autocast_agrees_to_its_precision():
    torch.manual_seed(5)
    model, inputs = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)), torch.randn(6, 1, 6, 6)
    engine = PerExample(model)
    found = []
    for enabled in (False, True):
        with engine.batch(torch.full((6,), 0.5)), torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            model(inputs).float().square().sum().backward()
            found.append(engine.clipped_sums())
    for name in found[0]:
        assert found[1][name].dtype == torch.float32
        assert (found[0][name] - found[1][name]).norm() < 0.03 * found[0][name].norm()


@pytest.mark.parametrize("way", ["strided", "grouped", "correlated"])
def test_a_step_inside_of_autocast_rounds_nothing(way):
    torch.manual_seed(5)
    model, inputs = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(64, 3)), torch.randn(1, 1, 6, 6)
    engine = PerExample(model, kernels=Kernels({"0.weight": way}, measure=False))
    found = []
    for inside in (False, True):
        with engine.batch(torch.full((1,), 0.1)):
            with torch.autocast("cpu", torch.bfloat16):
                loss = model(inputs).float().square().sum()
            loss.backward()
            with torch.autocast("cpu", torch.bfloat16, enabled=inside):
                found.append(engine.clipped_sums())
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])
    assert torch.cat([value.flatten() for value in found[1].values()]).double().norm() <= 0.1


def test_recorded_choices_are_kept():
    model = copy.deepcopy(nn.Conv2d(3, 4, 3))
    engine = PerExample(nn.Sequential(model), kernels=Kernels({"0.weight": "grouped"}, measure=True))
    with engine.batch(torch.ones(2)):
        engine.model(torch.randn(2, 3, 6, 6)).sum().backward()
        engine.clipped_sums()
    assert engine.kernels.chosen == {"0.weight": "grouped"}
