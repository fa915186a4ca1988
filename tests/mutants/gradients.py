"""Breaks of how gradients are formed and clipped, most of which public libraries really had."""

import torch
from torch import nn

from mutants import replays
from mutants.machinery import mutant
from sartor.sgd.gradients import MARGIN, Owners, PerExample, engine, registry
from sartor.sgd.gradients.parts import Formed, lengths
from sartor.sgd.gradients.rules import linear


@mutant(replays.SEQUENCES, quick=True)
def ghost_clipping_ignores_the_threshold(patch):
    """Gradients that are never formed are clipped at 1, whatever the threshold is (opacus#664)."""
    right = PerExample._sums_and_norms
    patch.setattr(
        PerExample,
        "_sums_and_norms",
        lambda self, thresholds, *given: right(self, torch.where(thresholds > 0, 1.0, 0.0), *given),
    )


@mutant(replays.SEQUENCES)
def ghost_norms_without_products_of_positions(patch):
    """The norm of a sum over positions is taken for the root of the sum of their squares."""

    def diagonal(left, right):
        squares = left.double().square().sum(2) * right.double().square().sum(2)
        return torch.stack([squares.sum(1), squares.sqrt().sum(1)], dim=1)

    patch.setattr(linear, "norms_from_products", diagonal)


@mutant(replays.QUIET_SEQUENCES, quick=True)
def bias_norms_wrong_for_three_dimensions(patch):
    """Norms of biases are wrong for inputs of three dimensions: that of all products of positions, which is a square (opacus#751)."""
    right = registry._rules[nn.Linear]

    def of_products(call):
        parts = right(call)
        if "bias" in parts and call.input.dim() == 3:
            products = torch.einsum("npi,nqi->npq", call.gradient, call.gradient)
            parts["bias"] = Formed(parts["bias"].gradients, lengths(products))
        return parts

    patch.setitem(registry._rules, nn.Linear, of_products)
    patch.setattr(registry, "_together", {*registry._together, of_products})


@mutant(replays.STEP, quick=True)
def clip_per_parameter_instead_of_global(patch):
    """Every parameter is clipped by itself, so a holder moves the whole by more than the clip (fedbiomed#1443)."""

    def by_parameter(self, thresholds, owners, noted, scale):
        sums, norms = {}, torch.zeros(len(thresholds), dtype=torch.float64)
        for place, name, part in self._parts(noted, owners):
            norms = part.squared_norms.sqrt() * scale
            factors = scale * torch.clamp(thresholds.double() / norms.clamp_min(1e-300), max=1.0)
            sums[name] = self._added([(place, name, part)], factors.to(self._precision))[name]
        return {name: sums[name] for name in self.parameters}, norms

    patch.setattr(PerExample, "_sums_and_norms", by_parameter)


@mutant(replays.STEP, quick=True)
def microbatch_sensitivity(patch):
    """The means of pairs of people are clipped; who leaves changes every pair behind them (tensorflow/privacy#81)."""
    right = PerExample._sums_and_norms

    def in_pairs(self, thresholds, owners, noted, scale):
        counts = torch.tensor([len(part) for part in thresholds.split(2)])
        clips = torch.stack([part.max() for part in thresholds.split(2)])
        return right(self, clips * counts, Owners(counts), noted, scale)

    patch.setattr(PerExample, "_sums_and_norms", in_pairs)


@mutant(replays.NOT_FINITE, quick=True)
def nan_passes_a_clip(patch):
    """A norm that is no number is clipped like any other, and what it makes of the sum is none either."""

    def unguarded(self, thresholds, owners, noted, scale):
        entries = self._parts(noted, owners)
        norms = self._norms([part for _, _, part in entries], len(thresholds)) * scale
        factors = scale * (1 - MARGIN) * torch.clamp(thresholds.double() / norms, max=1.0)
        return self._added(entries, factors.to(self._precision)), norms

    patch.setattr(PerExample, "_sums_and_norms", unguarded)


@mutant(replays.STEP)
def sensitivity_stated_apart_from_the_clip(patch):
    """Gradients are clipped a tenth above what the plan states and the noise is made for."""
    right = engine.PerExample.open
    patch.setattr(engine.PerExample, "open", lambda self, thresholds, owners=None: right(self, 1.1 * thresholds, owners))
