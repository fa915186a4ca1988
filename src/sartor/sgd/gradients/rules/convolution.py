"""Convolutions of one to three dimensions, with stride, padding, dilation and groups, in four ways.

*grouped*: the library's own weight gradient, with every example as a group of channels. *correlated*: the library's convolution of the
inputs with the gradients as kernels; the better one for few channels. Both take blocks of one, two, four, ... examples, since the library
prepares itself for each size it meets, and Poisson batches have many. *strided*: copy the patches that each output position saw (a strided
view of the padded input) and multiply; torch's own im2col is several times slower on a CPU. *ghost*: norms from products of patches, then
one ordinary weight gradient of the scaled sum; pays where positions are few and channels many.

Rows of one holder are added up block by block, as they are formed; to *ghost* they are more positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import prod
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from sartor.sgd.gradients.owners import rows_of
from sartor.sgd.gradients.parts import (
    Blocks,
    Formed,
    Implicit,
    Part,
    cancelling,
    lengths_of_pieces,
    norms_from_products,
    norms_of_pieces,
    pieces,
)
from sartor.sgd.gradients.registry import Call, rule

CACHED = 4 * 2**20  # bytes that are formed and used before the next ones: what processors keep close
BLOCK = 128  # examples, at most, that the library's kernels take at a time
FEW_CHANNELS = 4
LARGE = 24 * 2**20  # bytes; the C library keeps freed memory below about 32 MB for the next step

Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d


@rule(nn.Conv1d, nn.Conv2d, nn.Conv3d, together=True)
def convolution(call: Call) -> dict[str, Part]:
    """weight: patches times gradients, summed over positions; bias: sum of the gradients."""
    layer = cast("Convolution", call.module)
    gradient = call.gradient
    examples, owners = len(gradient), call.owners
    holders = examples if owners is None else len(owners)
    parts: dict[str, Part] = {}
    if "bias" in call.wanted:
        bias = gradient.reshape(examples, gradient.shape[1], -1).sum(2)
        parts["bias"] = Formed(bias if owners is None else owners.summed(bias))
    if "weight" not in call.wanted:
        return parts
    groups, shape = layer.groups, layer.weight.shape
    positions = prod(gradient.shape[2:])
    take = call.kernels.workspace.take

    def patches(begin: int, end: int) -> Tensor:
        """What each position saw: (examples x groups, numbers in a patch, positions)."""
        view = _patches(layer, _padded(layer, call.input[begin:end]), gradient.shape[2:])
        return take("patches", tuple(view.shape), view.dtype).copy_(view).reshape((end - begin) * groups, prod(shape[1:]), positions)

    def formed_by(blocks: Iterator[tuple[int, int]], form: Callable[[int, int], Tensor]) -> Part:
        """Gradients in blocks. Many megabytes would come from the operating system anew in each step; they are copied to memory that
        is kept. What is to be added to another call's must outlive it, so it does not lie there."""
        if owners is not None:
            whole = (
                take(call.named("formed"), (holders, *shape), gradient.dtype) if not call.form else gradient.new_empty((holders, *shape))
            )
            whole.zero_()
            for begin, end in blocks:
                whole.index_add_(0, owners.of_row[begin:end], form(begin, end))
            return Formed(whole)
        found: list[Tensor] = []
        norms = gradient.new_empty(examples, pieces(prod(shape)))
        large = not call.form and examples * prod(shape) * gradient.element_size() > LARGE
        into = take(call.named("formed"), (examples, *shape), gradient.dtype) if large else None
        for begin, end in blocks:
            formed = form(begin, end)
            norms_of_pieces(formed, norms[begin:end])
            found.append(formed if into is None else into[begin:end].copy_(formed))
        together = torch.cat(found) if call.form else into
        return Blocks(found, lengths_of_pieces(norms)) if together is None else Formed(together, lengths_of_pieces(norms))

    def strided() -> Part:
        def form(begin: int, end: int) -> Tensor:
            left = gradient[begin:end].reshape((end - begin) * groups, shape[0] // groups, positions)
            return torch.bmm(left, patches(begin, end).transpose(1, 2)).view(end - begin, *shape)

        size = max(1, CACHED // (prod(shape[1:]) * positions * groups * gradient.element_size()))
        return formed_by(((begin, min(begin + size, examples)) for begin in range(0, examples, size)), form)

    def grouped() -> Part:
        def form(begin: int, end: int) -> Tensor:
            width = _power_of_two(end - begin)
            left, right = _filled(gradient[begin:end], width), _filled(call.input[begin:end], width)
            each = (width * shape[0], *shape[1:])
            found = _weight_gradient(layer, left.reshape(1, -1, *left.shape[2:]), right, each, width * groups)
            return found.view(width, *shape)[: end - begin]

        size = CACHED // ((prod(shape) + prod(gradient.shape[1:]) + prod(call.input.shape[1:])) * gradient.element_size())
        return formed_by(_blocks(examples, min(BLOCK, max(1, size))), form)

    def correlated() -> Part:
        convolve = (functional.conv1d, functional.conv2d, functional.conv3d)[len(layer.kernel_size) - 1]
        kernel: tuple[Any, ...] = (..., *(slice(side) for side in layer.kernel_size))
        inputs, padding = _for_library(layer, call.input)

        def form(begin: int, end: int) -> Tensor:
            width = _power_of_two(end - begin)
            left, right = _filled(gradient[begin:end], width), _filled(inputs[begin:end], width).transpose(0, 1)
            kernels = left.reshape(width * shape[0], 1, *left.shape[2:])
            found = convolve(right, kernels, None, layer.dilation, padding, layer.stride, width)
            # (channels in, examples x channels out, *kernel and perhaps more, where strides left a rest)
            seen = found.view(shape[1], width, shape[0], *found.shape[2:])[:, : end - begin]
            return seen.permute(1, 2, 0, *range(3, seen.dim()))[kernel].contiguous()

        size = 8 * CACHED // ((prod(shape) + prod(gradient.shape[1:]) + prod(inputs.shape[1:])) * gradient.element_size())
        return formed_by(_blocks(examples, min(BLOCK, max(1, size))), form)

    def ghost() -> Part:
        left = gradient.reshape(examples, gradient.shape[1], positions).transpose(1, 2)
        right = patches(0, examples).transpose(1, 2)
        if owners is None:
            norms, terms = norms_from_products(right, left), torch.tensor(positions)
        else:
            norms, terms = torch.empty(holders, 2, dtype=torch.float64), positions * owners.counts
            for bucket in owners.buckets:
                norms[bucket.holders] = norms_from_products(bucket.take(right), bucket.take(left))
        return Implicit(norms[:, 0], weigh, cancelling(norms, terms), weigh_exactly)

    def weigh(factors: Tensor) -> Tensor:
        of_rows = factors if owners is None else factors[owners.of_row]
        scaled = gradient * of_rows.reshape(-1, *[1] * (gradient.dim() - 1))
        return _weight_gradient(layer, scaled, call.input, tuple(shape), groups)

    def weigh_exactly(some: Tensor, factors: Tensor) -> Tensor:
        own, of_rows = rows_of(owners, some, factors)
        scaled = gradient[own].double() * of_rows.reshape(-1, *[1] * (gradient.dim() - 1))
        return _weight_gradient(layer, scaled, call.input[own].double(), tuple(shape), groups)

    ways = {"strided": strided, "grouped": grouped}
    if groups == 1 and shape[1] <= FEW_CHANNELS:
        ways["correlated"] = correlated
    seen = positions * examples // max(holders, 1)  # by one holder
    if not call.form and groups == 1 and seen**2 < 4 * prod(shape):
        ways["ghost"] = ghost
    if call.form and call.kernels.chosen.get(call.named("weight")) == "ghost":
        return {**parts, "weight": grouped()}
    return {**parts, "weight": call.kernels.choose(call.named("weight"), ways, _likely(ways, shape, seen, gradient), gradient[:holders])}


def _likely(ways: Mapping[str, object], shape: torch.Size, positions: int, gradient: Tensor) -> str:
    """The way that is probably quickest, without measuring."""
    width = prod(shape[1:])
    if "ghost" in ways and 2 * positions * (width + shape[0]) < width * shape[0]:  # products are in float64
        return "ghost"
    if gradient.dtype != torch.float32 or not torch.backends.mkldnn.is_available():
        return "strided"
    return "correlated" if "correlated" in ways else "grouped"


def _blocks(examples: int, size: int) -> Iterator[tuple[int, int]]:
    """All examples in blocks of a power of two, and a rest."""
    size = 2 ** (size.bit_length() - 1)
    return ((begin, min(begin + size, examples)) for begin in range(0, examples, size))


def _power_of_two(number: int) -> int:
    """The least one that is not below a number."""
    return 1 << (number - 1).bit_length()


def _filled(rows: Tensor, width: int) -> Tensor:
    """As many rows as asked, zeros after the given ones."""
    if len(rows) == width:
        return rows
    return torch.cat([rows, rows.new_zeros(width - len(rows), *rows.shape[1:])])


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


def _for_library(layer: Convolution, inputs: Tensor) -> tuple[Tensor, tuple[int, ...]]:
    """The input and the zeros that the library's own kernels are to put around it; they know no other padding."""
    if layer.padding_mode == "zeros" and not isinstance(layer.padding, str):
        return inputs, tuple(layer.padding)
    return _padded(layer, inputs), (0,) * len(layer.kernel_size)


def _weight_gradient(layer: Convolution, gradient: Tensor, inputs: Tensor, shape: tuple[int, ...], groups: int) -> Tensor:
    """The library's own; `inputs` as the layer saw them, whose examples become groups of channels where `gradient` has one row."""
    sides = len(layer.kernel_size)
    inputs, padding = _for_library(layer, inputs)
    if len(gradient) != len(inputs):
        inputs = inputs.reshape(1, -1, *inputs.shape[2:])
    weight_only = [False, True, False]
    empty = gradient.new_empty(shape)
    _, found, _ = torch.ops.aten.convolution_backward(
        gradient, inputs, empty, None, layer.stride, padding, layer.dilation, False, [0] * sides, groups, weight_only
    )
    return cast("Tensor", found)
