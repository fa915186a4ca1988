"""Embeddings, without ever forming examples x vocabulary.

An example's gradient has one row per distinct token: the sum of the gradients at its positions, in all of a holder's rows. The pairs
(example, token) that occur are sorted out once; rows are added up per pair, norms per example.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from sartor.sgd.gradients.parts import Formed, Implicit, Part
from sartor.sgd.gradients.registry import Call, rule


@rule(nn.Embedding, together=True)
def embedding(call: Call) -> dict[str, Part]:
    """weight: at each token's row the sum of its positions' gradients; the padding row learns nothing."""
    layer = cast("nn.Embedding", call.module)
    examples, rows, width = len(call.input) // call.each, layer.num_embeddings, layer.embedding_dim
    tokens, gradient = call.input.reshape(-1), call.gradient.reshape(-1, width)
    owners = torch.arange(examples).repeat_interleave(tokens.numel() // max(examples, 1))
    if layer.padding_idx is not None:
        kept = tokens != layer.padding_idx
        tokens, gradient, owners = tokens[kept], gradient[kept], owners[kept]
    pairs, place = torch.unique(owners * rows + tokens, return_inverse=True)
    sums = gradient.new_zeros((len(pairs), width)).index_add_(0, place, gradient)
    owners, tokens = pairs // rows, pairs % rows
    if call.form:
        formed = gradient.new_zeros((examples, rows, width))
        formed[owners, tokens] = sums
        return {"weight": Formed(formed)}
    norms = torch.zeros(examples, dtype=torch.float64).index_add_(0, owners, sums.double().square().sum(1))

    def weigh(factors: Tensor) -> Tensor:
        weighted: Tensor = gradient.new_zeros((rows, width)).index_add_(0, tokens, sums * factors[owners, None])
        return weighted

    return {"weight": Implicit(norms, weigh)}
