"""Linear layers: on one vector per example the gradient is an outer product; on many, a sum of outer products over positions.

Several rows of one holder are so many positions more.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from sartor.sgd.gradients.owners import rows_of
from sartor.sgd.gradients.parts import Formed, Implicit, Part, Product, cancelling, norms_from_products
from sartor.sgd.gradients.registry import Call, rule


@rule(nn.Linear, together=True)
def linear(call: Call) -> dict[str, Part]:
    """weight: sum over positions of gradient times input; bias: sum of the gradients."""
    inputs, gradient = call.input, call.gradient
    examples = len(inputs)
    parts: dict[str, Part] = {}
    if inputs.dim() == 2 and call.owners is None:
        if "weight" in call.wanted:
            parts["weight"] = Formed(gradient[:, :, None] * inputs[:, None, :]) if call.form else Product(gradient, inputs)
        if "bias" in call.wanted:
            parts["bias"] = Formed(gradient)
        return parts
    inputs, gradient = inputs.reshape(examples, -1, inputs.shape[-1]), gradient.reshape(examples, -1, gradient.shape[-1])
    if "weight" in call.wanted:
        parts["weight"] = _sequence(call, inputs, gradient)
    if "bias" in call.wanted:
        bias = gradient.sum(1)
        parts["bias"] = Formed(bias if call.owners is None else call.owners.summed(bias))
    return parts


def _sequence(call: Call, inputs: Tensor, gradient: Tensor) -> Part:
    rows, positions, width, height = *inputs.shape, gradient.shape[2]
    owners = call.owners
    holders = rows if owners is None else len(owners)

    def each(make: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """What is made of the inputs and gradients of each holder: (holders, all of their positions, width)."""
        if owners is None:
            return make(inputs, gradient)
        found: Tensor | None = None
        for bucket in owners.buckets:
            part = make(bucket.take(inputs), bucket.take(gradient))
            if len(owners.buckets) == 1:
                return part
            found = part.new_empty((holders, *part.shape[1:])) if found is None else found
            found[bucket.holders] = part
        assert found is not None
        return found

    def formed() -> Part:
        return Formed(each(lambda left, right: torch.bmm(right.transpose(1, 2), left)))

    def ghost() -> Part:
        norms = each(norms_from_products)
        return Implicit(norms[:, 0], weigh, cancelling(norms, positions if owners is None else positions * owners.counts), weigh_exactly)

    def weigh(factors: Tensor) -> Tensor:
        of_rows = factors if owners is None else factors[owners.of_row]
        return (gradient * of_rows[:, None, None]).reshape(-1, height).T @ inputs.reshape(-1, width)

    def weigh_exactly(some: Tensor, factors: Tensor) -> Tensor:
        own, of_rows = rows_of(owners, some, factors)
        return (gradient[own].double() * of_rows[:, None, None]).reshape(-1, height).T @ inputs[own].reshape(-1, width).double()

    if call.form:
        return formed()
    seen = positions * rows / max(holders, 1)
    cheaper = "ghost" if 2 * seen * (width + height) < width * height else "formed"  # products are in float64
    return call.kernels.choose(call.named("weight"), {"formed": formed, "ghost": ghost}, cheaper, inputs[:holders])
