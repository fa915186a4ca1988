"""The slow and obvious way to form clipped sums: one example after the other, by plain autograd."""

import copy

import torch
from torch import nn


def naive_gradients(model: nn.Module, inputs: tuple[torch.Tensor, ...], loss) -> list[dict[str, torch.Tensor]]:
    """One gradient per example; `loss` maps the output of one example and its place in the batch to a number."""
    alone = copy.deepcopy(model)
    for module in alone.modules():
        module._forward_hooks.clear()
        module._forward_pre_hooks.clear()
        module._forward_hooks_always_called.clear()
        module._forward_hooks_with_kwargs.clear()
    found = []
    for i in range(len(inputs[0])):
        alone.zero_grad()
        loss(alone(*(x[i : i + 1] for x in inputs)), i).backward()
        found.append({n: torch.zeros_like(p) if p.grad is None else p.grad.clone() for n, p in alone.named_parameters() if p.requires_grad})
    return found


def naive_sums(gradients: list[dict[str, torch.Tensor]], thresholds: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Their clipped sum, and their norms."""
    norms = torch.stack([torch.sqrt(sum(g.double().square().sum() for g in one.values())) for one in gradients])
    factors = torch.clamp(thresholds.double() / norms.clamp_min(1e-30), max=1.0)
    names = gradients[0]
    return {n: sum(f * one[n].double() for f, one in zip(factors, gradients, strict=True)) for n in names}, norms
