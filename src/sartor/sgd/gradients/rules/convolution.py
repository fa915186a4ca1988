"""Convolutions of one to three dimensions, with stride, padding, dilation and groups, in three ways.

*strided*: copy the patches that each output position saw (a strided view of the padded input) and multiply, some examples at a time;
torch's own im2col is several times slower on a CPU. *channels*: the same with the channels side by side, better where strides scatter the
positions. *ghost*: norms from products of patches, then one ordinary weight gradient of the scaled sum; pays where positions are few and
channels many. (The library's own weight gradient with every example as a group is as quick at one batch size, but prepares itself anew for
each size, and Poisson batches have many.)
"""

from __future__ import annotations

from collections.abc import Callable
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
        return take("patches", tuple(view.shape), view.dtype).copy_(view).reshape((end - begin) * groups, prod(shape[1:]), positions)

    def rows_of_channels(begin: int, end: int) -> Tensor:
        """The same with the channels of a patch side by side: (examples, numbers in a patch, positions), for one group."""
        moved = _padded(layer, call.input[begin:end]).movedim(1, -1)
        padded = take("padded", tuple(moved.shape), moved.dtype).copy_(moved)
        strides = padded.stride()
        inner = [step * wide for step, wide in zip(strides[1:-1], layer.dilation, strict=True)]
        outer = [step * jump for step, jump in zip(strides[1:-1], layer.stride, strict=True)]
        seen = (end - begin, *gradient.shape[2:], *layer.kernel_size, shape[1])
        view = padded.as_strided(seen, (strides[0], *outer, *inner, 1))
        copied = take("patches", tuple(view.shape), view.dtype).copy_(view)
        return copied.reshape(end - begin, positions, prod(shape[1:])).transpose(1, 2)

    def multiplied(right: Callable[[int, int], Tensor]) -> tuple[Tensor, Tensor]:
        # what is to be added to another call's must outlive it, so it does not lie in shared memory
        whole = (examples * groups, shape[0] // groups, prod(shape[1:]))
        into = gradient.new_empty(whole) if call.form else take(f"{call.name}.formed", whole, gradient.dtype)
        norms = torch.empty(examples, dtype=torch.float64)
        size = max(1, CACHED // (prod(shape[1:]) * positions * groups * gradient.element_size()))
        for begin in range(0, examples, size):
            end = min(begin + size, examples)
            left = gradient[begin:end].reshape((end - begin) * groups, shape[0] // groups, positions)
            formed = into[begin * groups : end * groups]
            torch.bmm(left, right(begin, end).transpose(1, 2), out=formed)
            norms[begin:end] = lengths(formed.reshape(end - begin, -1))
        return into, norms

    def strided() -> Part:
        into, norms = multiplied(patches)
        return Formed(into.reshape(examples, *shape), norms)

    def channels() -> Part:
        into, norms = multiplied(rows_of_channels)
        formed = into.reshape(examples, shape[0], *layer.kernel_size, shape[1])
        return Formed(formed.movedim(-1, 2).contiguous(), norms) if call.form else Formed(formed, norms, channels_last=True)

    def ghost() -> Part:
        left = gradient.reshape(examples, gradient.shape[1], positions).transpose(1, 2)
        return Implicit(norms_from_products(patches(0, examples).transpose(1, 2), left), weigh)

    def weigh(factors: Tensor) -> Tensor:
        inputs, padding = (call.input, layer.padding) if _is_plain(layer) else (_padded(layer, call.input), 0)
        scaled = gradient * factors.reshape(-1, *[1] * (gradient.dim() - 1))
        return _weight_gradient(layer, scaled, inputs, tuple(shape), padding, groups)

    ways = {"strided": strided}
    if groups == 1:
        ways["channels"] = channels
    if not call.form and groups == 1 and positions**2 < 4 * prod(shape):
        ways["ghost"] = ghost
    otherwise = "channels" if groups == 1 and max(layer.stride) > 1 else "strided"
    if call.form and call.kernels.chosen.get(f"{call.name}.weight") == "ghost":
        return {**parts, "weight": strided()}
    return {**parts, "weight": call.kernels.choose(f"{call.name}.weight", ways, otherwise, gradient)}


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
