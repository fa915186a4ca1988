"""Gradients whose terms nearly cancel are measured as long as they are: a norm that came out too short would let a record past its clip."""

import pytest
import torch
from torch import nn

from sartor.sgd.gradients import Kernels, Owners, PerExample
from sartor.sgd.gradients.parts import safe_lengths
from sartor_testing.amount import most_are_long

GAPS = torch.tensor([1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 0.0])
POSITIONS, WIDTH, HEIGHT = 6, 40, 30

LAYERS = {
    "linear": (lambda: nn.Linear(WIDTH, HEIGHT, bias=False), lambda x: x),
    "convolution": (lambda: nn.Conv1d(WIDTH, HEIGHT, 1, bias=False), lambda x: x.transpose(1, 2)),
}


@pytest.mark.parametrize("way", ["ghost", "formed"])
@pytest.mark.parametrize("layer", LAYERS)
def test_nobody_passes_their_clip_where_positions_cancel(layer, way):
    """Each example's positions pull the weights in opposite ways, up to a gap; the exact norms are taken in float64."""
    torch.manual_seed(3)
    make, turned = LAYERS[layer]
    model = make()
    base, pull = torch.randn(len(GAPS), 1, WIDTH), torch.randn(len(GAPS), 1, HEIGHT)
    inputs = base.repeat(1, POSITIONS, 1)
    inputs[:, POSITIONS // 2 :] *= 1 + GAPS[:, None, None]
    signs = torch.tensor([1.0, -1.0]).repeat_interleave(POSITIONS // 2)[None, :, None]
    weights = turned(pull * signs)
    exact = torch.bmm((pull * signs).double().transpose(1, 2), inputs.double())
    norms = exact.flatten(1).norm(dim=1)
    clip = 0.5 * float(norms[norms > 0].min())  # all are clipped but the one that cancels altogether

    def step(which):
        engine = PerExample(model, kernels=Kernels({"weight": way, ".weight": way}, measure=False))
        with engine.batch(torch.full((len(which),), clip)):
            (model(turned(inputs[which])) * weights[which]).sum().backward()
            sums, found = engine.sums_and_norms(1.0)
        engine.detach()
        return sums["weight"], found.double()

    _, found = step(torch.arange(len(GAPS)))
    if way == "ghost":  # a gradient that is formed is summed as it was formed, rounding included, and its norm is of that
        assert torch.all(found >= norms * (1 - 1e-6))
    for i in range(len(GAPS)):
        assert step(torch.tensor([i]))[0].double().norm() <= clip * (1 + 1e-6)


@pytest.mark.parametrize("width", [4, 1_000, 5_000])
def test_norms_of_outer_products_lose_nobody_whatever_their_size(width):
    """Rows of all sizes beside each other, with numbers in them that float32 cannot square, and rows of zeros."""
    torch.manual_seed(4)
    sizes = 10.0 ** torch.arange(-40.0, 38.0, 3.0)
    rows = torch.cat([torch.randn(len(sizes), width) * sizes[:, None], torch.zeros(2, width)])
    rows[::2, ::2] *= 1e-15
    exact = torch.linalg.vector_norm(rows.double(), dim=1)
    assert torch.allclose(safe_lengths(rows), exact, rtol=1e-6, atol=0.0)


SEQUENCES = {
    "linear": (lambda: nn.Linear(WIDTH, WIDTH, bias=False), lambda x: x),
    "positions": (lambda: nn.Linear(WIDTH, WIDTH, bias=False), lambda x: x[:, None].expand(-1, 4, -1)),
    "convolution": (lambda: nn.Conv1d(WIDTH, WIDTH, 1, bias=False), lambda x: x[:, :, None]),
}


@pytest.mark.parametrize("beside", [0, 30])
@pytest.mark.parametrize("layer", SEQUENCES)
@pytest.mark.parametrize("records", most_are_long([2, 400, 20, 2_000], 2))
def test_nobody_passes_their_clip_where_their_records_cancel(layer, records, beside):
    """A holder whose records pull one way and then the other, whose clip is small beside each: what rounding leaves is clipped too."""
    make, turned = SEQUENCES[layer]
    model, clip = make(), 1.0
    for seed in range(3):
        draw = torch.Generator().manual_seed(seed)
        size, pull = 1 + torch.rand(2, generator=draw)
        x = torch.cat([torch.randn(beside, WIDTH, generator=draw), size.expand(records, WIDTH)])
        sign = torch.tensor([1.0, -1.0]).repeat_interleave(records // 2)[:, None]
        gap = 1 + torch.tensor([0.0, 3e-6, 1e-4])[seed] * (sign > 0)
        y = torch.cat([torch.randn(beside, WIDTH, generator=draw), 1e6 * pull * sign * gap * torch.ones(1, WIDTH)])

        def summed(kept, x=x, y=y):
            whole = Owners(torch.tensor([1] * beside + ([records] if kept else [])))
            rows = beside + (records if kept else 0)
            kernels = Kernels({"weight by holder": "ghost", ".weight by holder": "ghost"}, measure=False)
            engine = PerExample(model, kernels=kernels)
            with engine.batch(torch.full((len(whole),), clip), whole):
                (model(turned(x[:rows])) * turned(y[:rows])).sum().backward()
                sums = engine.clipped_sums()
            engine.detach()
            return sums["weight"].double()

        other = summed(kept=False) if beside else 0.0
        assert float((summed(kept=True) - other).norm()) <= clip * (1 + 1e-5)
