"""Normalisations within one example: layer, group, instance and root-mean-square."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn
from torch.nn import functional

from sartor.sgd.gradients.parts import Formed, Part
from sartor.sgd.gradients.registry import Call, rule

InstanceNorm = nn.InstanceNorm1d | nn.InstanceNorm2d | nn.InstanceNorm3d


@rule(nn.LayerNorm)
def layer_norm(call: Call) -> dict[str, Part]:
    """weight: gradient times normalised input, summed over positions; bias: sum of the gradients."""
    layer = cast("nn.LayerNorm", call.module)
    normal = functional.layer_norm(call.input, layer.normalized_shape, None, None, layer.eps)
    return _over_positions(call, normal, len(layer.normalized_shape))


@rule(nn.RMSNorm)
def rms_norm(call: Call) -> dict[str, Part]:
    """weight: gradient times normalised input, summed over positions."""
    layer = cast("nn.RMSNorm", call.module)
    normal = functional.rms_norm(call.input, list(layer.normalized_shape), None, layer.eps)
    return _over_positions(call, normal, len(layer.normalized_shape))


def _over_positions(call: Call, normal: Tensor, inner: int) -> dict[str, Part]:
    shape = normal.shape[normal.dim() - inner :]
    parts: dict[str, Part] = {}
    if "weight" in call.wanted:
        parts["weight"] = Formed((call.gradient * normal).reshape(len(normal), -1, *shape).sum(1))
    if "bias" in call.wanted:
        parts["bias"] = Formed(call.gradient.reshape(len(normal), -1, *shape).sum(1))
    return parts


@rule(nn.GroupNorm)
def group_norm(call: Call) -> dict[str, Part]:
    """weight: gradient times normalised input, summed over positions of a channel; bias: sum of the gradients."""
    layer = cast("nn.GroupNorm", call.module)
    return _over_channels(call, functional.group_norm(call.input, layer.num_groups, None, None, layer.eps))


@rule(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
def instance_norm(call: Call) -> dict[str, Part]:
    """weight: gradient times normalised input, summed over positions of a channel; bias: sum of the gradients."""
    layer = cast("InstanceNorm", call.module)
    return _over_channels(call, functional.instance_norm(call.input, eps=layer.eps))


def _over_channels(call: Call, normal: Tensor) -> dict[str, Part]:
    examples, channels = normal.shape[:2]
    parts: dict[str, Part] = {}
    if "weight" in call.wanted:
        parts["weight"] = Formed((call.gradient * normal).reshape(examples, channels, -1).sum(2))
    if "bias" in call.wanted:
        parts["bias"] = Formed(call.gradient.reshape(examples, channels, -1).sum(2))
    return parts
