"""Convolutions of one to three dimensions, with stride, padding, dilation and groups, in four ways.

*grouped*: the library's own weight gradient, with every example as a group of channels. *correlated*: the library's convolution of the
inputs with the gradients as kernels; the better one for few channels. Both take blocks of one, two, four, ... examples, since the library
prepares itself for each size it meets, and Poisson batches have many. *strided*: copy the patches that each output position saw (a strided
view of the padded input) and multiply; torch's own im2col is several times slower on a CPU. *ghost*: norms from products of patches, then
one ordinary weight gradient of the scaled sum; pays where positions are few and channels many.

Each adds up the rows of one holder as it goes, without forming their gradients: as rows of the library's batch (*grouped*), as channels
that a convolution sums over (*correlated*), or as more positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import prod
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from sartor.sgd.gradients.parts import Blocks, Formed, Implicit, Part, lengths_of_pieces, norms_from_products, norms_of_pieces, pieces
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
    each, holders = call.each, len(gradient) // call.each
    parts: dict[str, Part] = {}
    if "bias" in call.wanted:
        parts["bias"] = Formed(gradient.reshape(holders, each, gradient.shape[1], -1).sum((1, 3)))
    if "weight" not in call.wanted:
        return parts
    groups, shape = layer.groups, layer.weight.shape
    positions = each * prod(gradient.shape[2:])
    take = call.kernels.workspace.take

    def rows(begin: int, end: int) -> slice:
        """Those of some holders."""
        return slice(begin * each, end * each)

    def patches(begin: int, end: int) -> Tensor:
        """What each position saw: (holders x groups, numbers in a patch, positions of all of a holder's rows)."""
        view = _patches(layer, _padded(layer, call.input[rows(begin, end)]), gradient.shape[2:])
        view = view.unflatten(0, (-1, each)).movedim(1, 2 + len(layer.kernel_size))
        return take("patches", tuple(view.shape), view.dtype).copy_(view).reshape((end - begin) * groups, prod(shape[1:]), positions)

    def seen(begin: int, end: int) -> Tensor:
        """The gradients beside them: (holders x groups, channels out, positions)."""
        by_holder: Tensor = gradient[rows(begin, end)].unflatten(0, (-1, each)).transpose(1, 2)
        return by_holder.reshape((end - begin) * groups, shape[0] // groups, positions)

    def formed_by(blocks: Iterator[tuple[int, int]], form: Callable[[int, int], Tensor]) -> Part:
        """Gradients in blocks. Many megabytes would come from the operating system anew in each step; they are copied to memory that
        is kept. What is to be added to another call's must outlive it, so it does not lie there."""
        found: list[Tensor] = []
        norms = gradient.new_empty(holders, pieces(prod(shape)))
        large = not call.form and holders * prod(shape) * gradient.element_size() > LARGE
        into = take(call.named("formed"), (holders, *shape), gradient.dtype) if large else None
        for begin, end in blocks:
            formed = form(begin, end)
            norms_of_pieces(formed, norms[begin:end])
            found.append(formed if into is None else into[begin:end].copy_(formed))
        whole = torch.cat(found) if call.form else into
        return Blocks(found, lengths_of_pieces(norms)) if whole is None else Formed(whole, lengths_of_pieces(norms))

    def strided() -> Part:
        def form(begin: int, end: int) -> Tensor:
            return torch.bmm(seen(begin, end), patches(begin, end).transpose(1, 2)).view(end - begin, *shape)

        size = max(1, CACHED // (prod(shape[1:]) * positions * groups * gradient.element_size()))
        return formed_by(((begin, min(begin + size, holders)) for begin in range(0, holders, size)), form)

    def grouped() -> Part:
        def form(begin: int, end: int) -> Tensor:
            width = _power_of_two(end - begin)
            left, right = _filled(gradient[rows(begin, end)], width * each), _filled(inputs[rows(begin, end)], width * each)
            wide = (width * shape[0], *shape[1:])
            found = _weight_gradient(layer, _beside(left, each), _beside(right, each), padding, wide, width * groups)
            return found.view(width, *shape)[: end - begin]

        inputs, padding = _for_library(layer, call.input)
        size = CACHED // ((prod(shape) + each * (prod(gradient.shape[1:]) + prod(inputs.shape[1:]))) * gradient.element_size())
        return formed_by(_blocks(holders, min(BLOCK, max(1, size))), form)

    def correlated() -> Part:
        convolve = (functional.conv1d, functional.conv2d, functional.conv3d)[len(layer.kernel_size) - 1]
        kernel: tuple[Any, ...] = (..., *(slice(side) for side in layer.kernel_size))
        inputs, padding = _for_library(layer, call.input)

        def form(begin: int, end: int) -> Tensor:
            width = _power_of_two(end - begin)
            left = _filled(gradient[rows(begin, end)], width * each)
            right = _filled(inputs[rows(begin, end)], width * each).transpose(0, 1)
            kernels = left.unflatten(0, (width, each)).transpose(1, 2).reshape(width * shape[0], each, *left.shape[2:])
            found = convolve(right, kernels, None, layer.dilation, padding, layer.stride, width)
            # (channels in, examples x channels out, *kernel and perhaps more, where strides left a rest)
            of_each = found.view(shape[1], width, shape[0], *found.shape[2:])[:, : end - begin]
            return of_each.permute(1, 2, 0, *range(3, of_each.dim()))[kernel].contiguous()

        size = 8 * CACHED // ((prod(shape) + each * (prod(gradient.shape[1:]) + prod(inputs.shape[1:]))) * gradient.element_size())
        return formed_by(_blocks(holders, min(BLOCK, max(1, size))), form)

    def ghost() -> Part:
        return Implicit(norms_from_products(patches(0, holders).transpose(1, 2), seen(0, holders).transpose(1, 2)), weigh)

    def weigh(factors: Tensor) -> Tensor:
        scaled = gradient * factors.repeat_interleave(each).reshape(-1, *[1] * (gradient.dim() - 1))
        return _weight_gradient(layer, scaled, *_for_library(layer, call.input), tuple(shape), groups)

    ways = {"strided": strided, "grouped": grouped}
    if groups == 1 and shape[1] <= FEW_CHANNELS:
        ways["correlated"] = correlated
    if not call.form and groups == 1 and positions**2 < 4 * prod(shape):
        ways["ghost"] = ghost
    if call.form and call.kernels.chosen.get(call.named("weight")) == "ghost":
        return {**parts, "weight": grouped()}
    return {
        **parts,
        "weight": call.kernels.choose(call.named("weight"), ways, _likely(ways, shape, positions, gradient), gradient[:holders]),
    }


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


def _beside(rows: Tensor, each: int) -> Tensor:
    """Rows holder after holder as `each` rows, in which holders stand beside each other as groups of channels."""
    if each == 1:
        return rows.reshape(1, -1, *rows.shape[2:])
    by_holder: Tensor = rows.unflatten(0, (-1, each))
    return by_holder.transpose(0, 1).reshape(each, -1, *rows.shape[2:])


def _weight_gradient(
    layer: Convolution, gradient: Tensor, inputs: Tensor, padding: tuple[int, ...], shape: tuple[int, ...], groups: int
) -> Tensor:
    """The library's own, added up over rows."""
    sides = len(layer.kernel_size)
    weight_only = [False, True, False]
    empty = gradient.new_empty(shape)
    _, found, _ = torch.ops.aten.convolution_backward(
        gradient, inputs, empty, None, layer.stride, padding, layer.dilation, False, [0] * sides, groups, weight_only
    )
    return cast("Tensor", found)
