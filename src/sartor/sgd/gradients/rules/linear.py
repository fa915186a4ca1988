"""Linear layers: on one vector per example the gradient is an outer product; on many, a sum of outer products over positions.

Several rows of one holder are so many positions more.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sartor.sgd.gradients.parts import Formed, Implicit, Part, Product, norms_from_products
from sartor.sgd.gradients.registry import Call, rule


@rule(nn.Linear, together=True)
def linear(call: Call) -> dict[str, Part]:
    """weight: sum over positions of gradient times input; bias: sum of the gradients."""
    inputs, gradient = call.input, call.gradient
    holders = len(inputs) // call.each
    parts: dict[str, Part] = {}
    if inputs.dim() == 2 and call.each == 1:
        if "weight" in call.wanted:
            parts["weight"] = Formed(gradient[:, :, None] * inputs[:, None, :]) if call.form else Product(gradient, inputs)
        if "bias" in call.wanted:
            parts["bias"] = Formed(gradient)
        return parts
    inputs, gradient = inputs.reshape(holders, -1, inputs.shape[-1]), gradient.reshape(holders, -1, gradient.shape[-1])
    if "weight" in call.wanted:
        parts["weight"] = _sequence(call, inputs, gradient)
    if "bias" in call.wanted:
        parts["bias"] = Formed(gradient.sum(1))
    return parts


def _sequence(call: Call, inputs: Tensor, gradient: Tensor) -> Part:
    positions, width, height = inputs.shape[1], inputs.shape[2], gradient.shape[2]

    def formed() -> Part:
        return Formed(torch.bmm(gradient.transpose(1, 2), inputs))

    def ghost() -> Part:
        return Implicit(norms_from_products(inputs, gradient), weigh)

    def weigh(factors: Tensor) -> Tensor:
        return (gradient * factors[:, None, None]).reshape(-1, height).T @ inputs.reshape(-1, width)

    if call.form:
        return formed()
    cheaper = "ghost" if 2 * positions * (width + height) < width * height else "formed"  # products are in float64
    return call.kernels.choose(call.named("weight"), {"formed": formed, "ghost": ghost}, cheaper, inputs)
