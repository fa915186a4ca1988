"""Convolutions of one to three dimensions, with stride, padding, dilation and groups, in three ways.

*strided*: copy the patches that each output position saw (a strided view of the padded input) and multiply, some examples at a time;
torch's own im2col is several times slower on a CPU. *grouped*: the library's own weight gradient, with every example as a group of its own.
*ghost*: norms from products of patches, then one ordinary weight gradient of the scaled sum; pays where positions are few and channels
many.
"""

from __future__ import annotations

from math import prod
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from sartor.sgd.gradients.parts import Formed, Implicit, Part, lengths, norms_from_products
from sartor.sgd.gradients.registry import Call, rule

CACHED = 12 * 2**20  # bytes of patches that are formed and used before the next ones: what processors keep close

Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d


@rule(nn.Conv1d, nn.Conv2d, nn.Conv3d)
def convolution(call: Call) -> dict[str, Part]:
    """weight: patches times gradients, summed over positions; bias: sum of the gradients."""
    layer = cast("Convolution", call.module)
    gradient = call.gradient
    examples = len(gradient)
    parts: dict[str, Part] = {}
    if "bias" in call.wanted:
        parts["bias"] = Formed(gradient.reshape(examples, gradient.shape[1], -1).sum(2))
    if "weight" not in call.wanted:
        return parts
    groups, shape = layer.groups, layer.weight.shape
    positions = prod(gradient.shape[2:])
    take = call.kernels.workspace.take

    def patches(begin: int, end: int) -> Tensor:
        """What each position saw: (examples x groups, numbers in a patch, positions)."""
        view = _patches(layer, _padded(layer, call.input[begin:end]), gradient.shape[2:])
        if shape[1] > 1:
            return take("patches", tuple(view.shape), view.dtype).copy_(view).reshape((end - begin) * groups, prod(shape[1:]), positions)
        # of one channel a whole patch lies closer together than a whole row of positions
        sides = len(layer.kernel_size)
        view = view.permute(0, 1, *range(2 + sides, 2 + 2 * sides), *range(2, 2 + sides))
        copied = take("patches", tuple(view.shape), view.dtype).copy_(view)
        return copied.reshape((end - begin) * groups, positions, prod(shape[1:])).transpose(1, 2)

    def strided() -> Part:
        # what is to be added to another call's must outlive it, so it does not lie in shared memory
        whole = (examples * groups, shape[0] // groups, prod(shape[1:]))
        into = gradient.new_empty(whole) if call.form else take(f"{call.name}.formed", whole, gradient.dtype)
        norms = torch.empty(examples, dtype=torch.float64)
        size = max(1, CACHED // (prod(shape[1:]) * positions * groups * gradient.element_size()))
        for begin in range(0, examples, size):
            end = min(begin + size, examples)
            left = gradient[begin:end].reshape((end - begin) * groups, shape[0] // groups, positions)
            formed = into[begin * groups : end * groups]
            torch.bmm(left, patches(begin, end).transpose(1, 2), out=formed)
            norms[begin:end] = lengths(formed.reshape(end - begin, -1))
        return Formed(into.reshape(examples, *shape), norms)

    def grouped() -> Part:
        inputs, padding = (call.input, layer.padding) if _is_plain(layer) else (_padded(layer, call.input), 0)
        found = _weight_gradient(
            layer,
            gradient.reshape(1, examples * gradient.shape[1], *gradient.shape[2:]),
            inputs.reshape(1, examples * inputs.shape[1], *inputs.shape[2:]),
            (examples * shape[0], *shape[1:]),
            padding,
            examples * groups,
        )
        return Formed(found.reshape(examples, *shape))

    def ghost() -> Part:
        left = gradient.reshape(examples, gradient.shape[1], positions).transpose(1, 2)
        return Implicit(norms_from_products(patches(0, examples).transpose(1, 2), left), weigh)

    def weigh(factors: Tensor) -> Tensor:
        inputs, padding = (call.input, layer.padding) if _is_plain(layer) else (_padded(layer, call.input), 0)
        scaled = gradient * factors.reshape(-1, *[1] * (gradient.dim() - 1))
        return _weight_gradient(layer, scaled, inputs, tuple(shape), padding, groups)

    ways = {"strided": strided, "grouped": grouped}
    if not call.form and groups == 1 and positions**2 < 4 * prod(shape):
        ways["ghost"] = ghost
    if call.form and call.kernels.chosen.get(f"{call.name}.weight") == "ghost":
        return {**parts, "weight": strided()}
    return {**parts, "weight": call.kernels.choose(f"{call.name}.weight", ways, "strided", gradient)}


def _padded(layer: Convolution, inputs: Tensor) -> Tensor:
    """The input with its padding made explicit, so that every way sees the same."""
    amount: list[int] = list(layer._reversed_padding_repeated_twice)
    if not any(amount):
        return inputs.contiguous()
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    return functional.pad(inputs, amount, mode=mode)


def _patches(layer: Convolution, padded: Tensor, outputs: torch.Size) -> Tensor:
    """What each output position saw: (examples, channels, *kernel, *outputs), a view."""
    strides = padded.stride()
    inner = [step * wide for step, wide in zip(strides[2:], layer.dilation, strict=True)]
    outer = [step * jump for step, jump in zip(strides[2:], layer.stride, strict=True)]
    return padded.as_strided((*padded.shape[:2], *layer.kernel_size, *outputs), (*strides[:2], *inner, *outer))


def _is_plain(layer: Convolution) -> bool:
    """Whether the library's own kernels can pad by themselves."""
    return layer.padding_mode == "zeros" and not isinstance(layer.padding, str)


def _weight_gradient(
    layer: Convolution, gradient: Tensor, inputs: Tensor, shape: tuple[int, ...], padding: str | int | tuple[int, ...], groups: int
) -> Tensor:
    sides = len(layer.kernel_size)
    around = padding if isinstance(padding, tuple) else (padding,) * sides
    _, found, _ = torch.ops.aten.convolution_backward(
        gradient,
        inputs,
        gradient.new_empty(shape),
        None,
        layer.stride,
        around,
        layer.dilation,
        False,
        [0] * sides,
        groups,
        [False, True, False],
    )
    return cast("Tensor", found)
