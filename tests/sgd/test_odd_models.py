"""Models and losses that look ordinary and could let one example do more than its clip allows."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.data import Subset, TensorDataset

import sartor
from sartor.errors import SartorError
from sartor.sgd.gradients import Kernels, PerExample
from sartor.sgd.gradients.parts import Formed, Product

BUDGETS = sartor.Budgets.from_groups([(2.0, 20), (4.0, 20)], delta=1e-3)


def data(kind=torch.float32):
    draw = torch.Generator().manual_seed(0)
    inputs = torch.randn(40, 4, generator=draw) if kind == torch.float32 else torch.randint(0, 3, (40, 4), generator=draw)
    return TensorDataset(inputs, torch.randint(0, 3, (40,), generator=draw))


def plan(steps=4, batch=20.0):
    return sartor.plan(BUDGETS, "scale", steps=steps, batch=batch, accountant="rdp")


def fit(model, dataset=None, **options):
    return sartor.fit(model, dataset or data(), BUDGETS, plan(), lr=0.1, seed=0, progress=False, **options)


def contributions(model, inputs, clip, **keywords):
    """The norm of the clipped sum, one example at a time having a threshold."""
    engine, found = PerExample(model), []
    for i in range(len(inputs)):
        thresholds = torch.zeros(len(inputs))
        thresholds[i] = clip
        with engine.batch(thresholds):
            model(inputs, **keywords).sum().backward()
            found.append(float(torch.cat([v.double().flatten() for v in engine.clipped_sums().values()]).norm()))
    engine.detach()
    return found


class Shared(nn.Module):
    """A custom layer with an argument that is the same for all examples."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 3))

    def forward(self, x, pos):
        return (x[:, None] * (self.weight * pos).sum(1)).sum(2)


def test_an_argument_for_all_stays_one_when_the_batch_happens_to_be_as_long():
    torch.manual_seed(0)
    model, pos = Shared(), torch.randn(4, 3)
    engine = PerExample(model)
    for size in (6, 4):
        inputs = torch.randn(size, 4)
        with engine.batch(torch.full((size,), 1e9)):
            model(inputs, pos).sum().backward()
            sums = engine.clipped_sums()
        alone = copy.deepcopy(model)
        alone.weight.grad = None
        alone(inputs, pos).sum().backward()
        torch.testing.assert_close(sums["weight"], alone.weight.grad, rtol=1e-4, atol=1e-5)


def test_a_record_that_is_not_finite_does_not_loosen_the_clip_of_the_others():
    torch.manual_seed(0)
    model, pos = Shared(), 100 * torch.randn(4, 3)
    inputs = torch.randn(5, 4)
    inputs[2] = float("nan")
    engine = PerExample(model)
    with engine.batch(torch.full((5,), 0.1)):
        model(inputs, pos).sum().backward()
        assert engine.clipped_sums()["weight"].norm() <= 0.4


@pytest.mark.parametrize("layer", [nn.Dropout(0.5), nn.Dropout2d(0.5), nn.AlphaDropout(0.5), nn.RReLU()])
def test_random_layers_inside_a_module_with_parameters_of_its_own_are_refused(layer):
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale, self.layer = nn.Parameter(torch.ones(3)), layer

        def forward(self, x):
            return self.layer(x * self.scale)

    with pytest.raises(SartorError, match="random"):
        PerExample(Own())
    with pytest.raises(SartorError, match="random"):
        PerExample(nn.MultiheadAttention(4, 2, dropout=0.1, batch_first=True))


def test_random_functions_inside_are_refused_when_they_are_met():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(3))

        def forward(self, x):
            return nn.functional.dropout(x * self.scale, 0.5)

    model = Own()
    engine = PerExample(model)
    with engine.batch(torch.ones(4)), pytest.raises(SartorError, match="random numbers"):
        model(torch.randn(4, 3)).sum().backward()
        engine.clipped_sums()


@pytest.mark.filterwarnings("ignore:Using a target size")
def test_a_loss_that_broadcasts_over_people_is_refused():
    numbers = TensorDataset(torch.randn(40, 4), torch.randn(40))
    with pytest.raises(SartorError, match="makes more numbers than"):
        fit(nn.Linear(4, 1), numbers, loss=nn.MSELoss())
    assert fit(nn.Linear(4, 1), TensorDataset(torch.randn(40, 4), torch.randn(40, 1)), loss=nn.MSELoss()).steps == 4


@pytest.mark.parametrize("width", [64, 16_384])
def test_norms_from_products_are_never_too_small(width):
    """Inputs alike but for a little, gradients of alternating sign: nearly everything cancels."""
    torch.manual_seed(0)
    layer = nn.Linear(width, 64, bias=False)
    inputs = torch.rand(1, 1, width) + 0.5 + 1e-4 * torch.randn(2, 4, width)
    signs = torch.tensor([1.0, -1.0, 1.0, -1.0])[None, :, None] * torch.rand(2, 1, 64)
    engine = PerExample(layer, kernels=Kernels({".weight": "ghost"}, measure=False))
    with engine.batch(torch.tensor([1e-3, 0.0])):
        (layer(inputs) * signs).sum().backward()
        assert engine.clipped_sums()["weight"].double().norm() <= 1e-3


def test_norms_of_many_numbers_keep_their_digits():
    for numbers in (torch.full((1, 10_000_000), 0.1), torch.randn(1, 3_000_001)):
        assert float(Formed(numbers).squared_norms) == pytest.approx(float(numbers.double().square().sum()), rel=1e-5)
    tiny, huge = torch.full((1, 4), 2.5e-23), torch.full((1, 4), 1e17)
    assert float(Product(tiny, huge).squared_norms) == pytest.approx((5e-23 * 2e17) ** 2, rel=1e-5)


class Follows(nn.Module):
    """Puts what it sees into its parameters, as data-dependent initialisation and moving codebooks do."""

    def __init__(self, trainable):
        super().__init__()
        self.inside, self.seen = nn.Linear(4, 3), nn.Parameter(torch.zeros(4), requires_grad=trainable)

    def forward(self, x):
        with torch.no_grad():
            self.seen.data += x.mean(0)
        return self.inside(x)


@pytest.mark.parametrize("trainable", [True, False])
def test_a_parameter_that_follows_the_data_in_the_forward_pass_is_refused_and_put_back(trainable):
    model = Follows(trainable)
    with pytest.raises(SartorError, match="the parameter seen changed"):
        fit(model)
    assert not model.seen.any()


class Mixes(nn.Module):
    def __init__(self, how):
        super().__init__()
        self.how, self.first, self.words, self.last = how, nn.Linear(4, 5), nn.Embedding(3, 5), nn.Linear(5, 3)

    def forward(self, x):
        h = self.words(x).mean(1) if x.dtype == torch.int64 else self.first(x)
        if self.training and self.how == "tokens":
            h = h - h.mean(0)
        if self.training and self.how == "largest":
            h = h / h.abs().amax(0)
        if self.training and self.how == "sometimes" and torch.rand(()) < 0.3:
            h = h + h.flip(0)
        return self.last(h)


@pytest.mark.parametrize("how", ["tokens", "largest", "sometimes"])
def test_mixing_in_training_alone_is_found(how):
    torch.manual_seed(0)
    with pytest.raises(SartorError, match="mixes examples"):
        fit(Mixes(how), data(torch.int64 if how == "tokens" else torch.float32))


def test_the_inner_optimizer_cannot_step_by_itself_during_the_run():
    model = nn.Linear(4, 3)
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    model, private, _ = sartor.make_private(model, inner, data(), BUDGETS, plan())
    model(torch.randn(3, 4)).sum().backward()
    with pytest.raises(SartorError, match="belongs to a private run"):
        inner.step()
    sartor.sgd.unwrap(model, private)
    inner.step()


def test_a_module_under_two_parents_is_counted_once():
    class Parent(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, x):
            return torch.tanh(self.inner(x))

    torch.manual_seed(0)
    inner = nn.Linear(4, 4)
    model, inputs = nn.Sequential(Parent(inner), Parent(inner)), torch.randn(3, 4)
    engine = PerExample(model)
    with engine.batch(torch.full((3,), 1e9)):
        model(inputs).sum().backward()
        sums = engine.clipped_sums()
    engine.detach()
    model(inputs).sum().backward()
    torch.testing.assert_close(sums["0.inner.weight"], inner.weight.grad, rtol=1e-4, atol=1e-5)


def test_outputs_that_are_made_from_each_other_and_aliases_are_right():
    class Cells(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = nn.LSTMCell(3, 4)

        def forward(self, x):
            h, c = self.cell(x)
            h, c = self.cell(x, (h, c))
            return h + c

    class Alias(nn.Module):
        def __init__(self):
            super().__init__()
            self.pos = nn.Parameter(torch.randn(1, 4))

        def forward(self, x):
            return self.pos[:, :3]

    class Adds(nn.Module):
        def __init__(self):
            super().__init__()
            self.places, self.out = Alias(), nn.Linear(3, 2)

        def forward(self, x):
            return self.out(x * self.places(x))

    for make in (Cells, Adds):
        torch.manual_seed(0)
        model, inputs = make(), torch.randn(5, 3)
        engine = PerExample(model)
        for _ in range(2):
            with engine.batch(torch.full((5,), 1e9)):
                model(inputs).sum().backward()
                sums = engine.clipped_sums()
        engine.detach()
        model.zero_grad()
        model(inputs).sum().backward()
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(sums[name], parameter.grad, rtol=1e-4, atol=1e-5)


def test_other_data_behind_a_subset_are_noticed(tmp_path):
    whole = data()
    chosen = Subset(TensorDataset(*(torch.cat([t, t]) for t in whole.tensors)), list(range(40)))
    model = nn.Linear(4, 3)
    fit(model, chosen, checkpoints=sartor.Checkpoints(tmp_path / "run"))
    chosen.dataset.tensors[0][7] += 1
    with pytest.raises(SartorError, match="other records"):
        fit(nn.Linear(4, 3), chosen, checkpoints=sartor.Checkpoints(tmp_path / "run", resume=True))


def test_regression_with_public_data_and_checkpoints_runs(tmp_path):
    numbers, others = (TensorDataset(torch.randn(40, 4), torch.randn(40, 1)) for _ in range(2))
    result = fit(
        nn.Linear(4, 1),
        numbers,
        loss=nn.MSELoss(),
        evaluation=sartor.Evaluation(others, every=2),
        checkpoints=sartor.Checkpoints(tmp_path / "run", every=1),
    )
    assert len(result.history) == 2


def test_a_model_elsewhere_than_on_the_cpu_is_refused():
    with pytest.raises(SartorError, match="CPU"):
        PerExample(nn.Linear(2, 2, device="meta"))


def test_contributions_stay_within_the_clip_for_wide_models():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3000, 1000), nn.Tanh(), nn.Linear(1000, 2))
    assert max(contributions(model, 10 * torch.randn(2, 3000), 0.5)) <= 0.5
