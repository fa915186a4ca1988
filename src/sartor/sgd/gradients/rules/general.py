"""Any other module: its forward is run again per example under `torch.func`, and differentiated against the gradient of its output.

Slower than a rule of its own, but right for whatever computes each example by itself: scalar and bias-like parameters, custom layers,
adapters, parametrised weights. Where `vmap` cannot follow the code, examples are taken one after the other.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from sartor.errors import SartorError
from sartor.sgd.gradients.parts import Formed, Part
from sartor.sgd.gradients.registry import Call


def general(call: Call) -> dict[str, Part]:
    """Every wanted parameter by differentiating the module itself."""
    module, cotangents = call.module, call.gradient
    examples = len(cotangents[0])
    parameters = {name: value.detach() for name, value in module.named_parameters() if name in call.wanted}

    wide = torch.float64 if any(p.dtype == torch.float64 for p in parameters.values()) else torch.float32

    def widened(value: Any) -> Any:
        """What an autocast block made narrow, in the parameters' type."""
        return value.to(wide) if isinstance(value, Tensor) and value.dtype in (torch.bfloat16, torch.float16) else value

    given = tree_map(widened, (call.inputs, dict(call.keywords)))
    cotangents = [widened(gradient) for gradient in cotangents]
    leaves, structure = tree_flatten(given)
    dims = tree_unflatten([0 if place in call.own else None for place in range(len(leaves))], structure)

    def one(values: dict[str, Tensor], inputs: Any, gradients: list[Tensor]) -> Tensor:
        # a batch of one: what varies by example gets its first dimension back
        positional, keywords = tree_map(lambda value, dim: value if dim is None else value[None], inputs, dims)
        outputs, _ = tree_flatten(functional_call(module, values, positional, keywords))
        tensors = [output for output in outputs if isinstance(output, Tensor) and output.is_floating_point()]
        return torch.stack([(out[0] * g).sum() for out, g in zip(tensors, gradients, strict=True)]).sum()

    def row(i: int) -> dict[str, Tensor]:
        inputs = tree_map(lambda value, dim: value if dim is None else value[i], given, dims)
        found: dict[str, Tensor] = grad(one)(parameters, inputs, [gradient[i] for gradient in cotangents])
        return found

    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="There is a performance drop")
            found = vmap(grad(one), in_dims=(None, dims, 0), randomness="error")(parameters, given, list(cotangents))
    except RuntimeError as error:
        if "random" in str(error):
            raise SartorError(
                f"{call.name or 'the model'} draws random numbers in a forward pass that must be repeated to form its gradients; leave "
                "its random layers (dropout) out, or move its parameters into layers of their own."
            ) from None
        rows = [row(i) for i in range(examples)]
        found = {name: torch.stack([one_row[name] for one_row in rows]) for name in parameters}
    return {name: Formed(found[name].detach().to(wide)) for name in parameters}
