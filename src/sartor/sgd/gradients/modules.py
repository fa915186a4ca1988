"""Which modules of a model are watched, by which rule, and which models are refused.

A module that owns trainable parameters is watched as one unit. Refused, with the reason: layers that mix examples (batch normalisation),
layers that remember the data in buffers, recurrent layers whose inside cannot be seen (their namesakes in `sartor.layers` are named).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from sartor.errors import SartorError
from sartor.sgd.gradients.registry import Rule, adds_up, rule_for
from sartor.sgd.gradients.rules import general

_RECURRENT = (nn.LSTM, nn.GRU, nn.RNN)


@dataclass(frozen=True, eq=False)
class Watched:
    """A module whose calls are recorded: the names of its trainable parameters, its rule, and which dimension holds the examples."""

    name: str
    module: nn.Module
    wanted: frozenset[str]
    rule: Rule
    first: int = 0

    @property
    def is_general(self) -> bool:
        """Whether it is run again instead of being read off its inputs."""
        return self.rule is general

    @property
    def adds_up(self) -> bool:
        """Whether its rule adds up rows of one holder itself."""
        return adds_up(self.rule)


def watched(model: nn.Module) -> list[Watched]:
    """Every module that owns trainable parameters; refuses what cannot be trained with privacy."""
    found = list({id(unit.module): unit for unit in reversed(list(_walk(model, "", 0)))}.values())[::-1]  # a shared module is one
    if not found:
        raise SartorError("the model has no trainable parameters.")
    return found


def _walk(module: nn.Module, name: str, first: int) -> Iterator[Watched]:
    _refuse(module, name or "the model")
    below = {id(p) for child in module.children() for p in child.parameters()}  # aliases of a child's parameters are the child's
    own = frozenset(n for n, p in module._parameters.items() if p is not None and p.requires_grad and id(p) not in below)
    whole = bool(own) and any(module.children())
    if parametrize.is_parametrized(module) or whole or isinstance(module, nn.MultiheadAttention):
        wanted = frozenset(n for n, p in module.named_parameters() if p.requires_grad)
        if wanted:
            for inside, child in module.named_modules():
                _refuse(child, f"{name}.{inside}")
                if _is_random(child):
                    raise SartorError(
                        f"{name or 'the model'} owns parameters beside a random layer (dropout) inside it, so its gradients would be "
                        "formed under other random drops than its outputs were; move the parameters into a layer of their own, or set the "
                        "dropout to 0."
                    )
            yield Watched(name, module, wanted, general, first)
        return
    if own:
        yield Watched(name, module, own, rule_for(module) or general, first)
    for child_name, child in module.named_children():
        yield from _walk(child, f"{name}.{child_name}" if name else child_name, _first(module, first))


def _is_random(module: nn.Module) -> bool:
    dropout = isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0
    return dropout or isinstance(module, nn.RReLU) or (isinstance(module, nn.MultiheadAttention) and module.dropout > 0)


def _first(module: nn.Module, first: int) -> int:
    """Opacus' attention hands (positions, examples, width) to its projections unless it is told otherwise."""
    if type(module).__name__ != "DPMultiheadAttention":
        return first
    return 0 if getattr(module, "batch_first", False) else 1


def _refuse(module: nn.Module, name: str) -> None:
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        raise SartorError(
            f"{name} is a batch normalisation: it mixes the examples of a batch, so no example's influence can be bounded; "
            "use GroupNorm or LayerNorm instead."
        )
    if isinstance(module, nn.modules.instancenorm._InstanceNorm) and module.track_running_stats:
        raise SartorError(f"{name} keeps running statistics of private data outside of the accounting; set track_running_stats=False.")
    if type(module) in _RECURRENT:
        raise SartorError(
            f"no per-example gradients can be formed inside {name} (torch.nn.{type(module).__name__}); use "
            f"sartor.layers.{type(module).__name__}, which takes the same arguments and loads the same state_dict."
        )
    if isinstance(module, nn.MultiheadAttention) and not module.batch_first:
        raise SartorError(f"{name} takes positions before examples; set batch_first=True.")
    if isinstance(module, nn.Embedding) and (module.max_norm is not None or module.scale_grad_by_freq or module.sparse):
        raise SartorError(f"{name} uses max_norm, scale_grad_by_freq or sparse, which look across the examples of a batch; leave them off.")
    _refuse_reparametrised(module, name)
    if isinstance(module, torch.jit.ScriptModule):
        raise SartorError(f"{name} is a scripted module, whose inside cannot be seen; use the Python module.")
    for parameter_name, parameter in module._parameters.items():
        if parameter is None:
            continue
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            raise SartorError(f"{parameter_name} of {name} is not initialised yet; run the model once before making it private.")
        if parameter.requires_grad and parameter.is_complex():
            raise SartorError(f"{parameter_name} of {name} is complex, which is not supported; use real parameters.")
        if parameter.requires_grad and parameter.dtype in (torch.bfloat16, torch.float16):
            raise SartorError(
                f"{parameter_name} of {name} is in {str(parameter.dtype).removeprefix('torch.')}, in which norms and sums round by more "
                "than clipping allows; keep the parameters in float32 (model.float()) and run the forward pass under torch.autocast."
            )


def _refuse_reparametrised(module: nn.Module, name: str) -> None:
    hooks = list(module._forward_pre_hooks.values())
    if any(isinstance(hook, WeightNorm) for hook in hooks):
        raise SartorError(
            f"{name} uses torch.nn.utils.weight_norm, which makes its weight outside of its forward pass, where no per-example gradient "
            "can be seen; use torch.nn.utils.parametrizations.weight_norm, which has the same effect."
        )
    inside = [part for parts in getattr(module, "parametrizations", {}).values() for part in parts]
    if any(isinstance(hook, SpectralNorm) for hook in hooks) or any(isinstance(part, _SpectralNorm) for part in inside):
        raise SartorError(
            f"{name} uses spectral normalisation, which changes its buffers in every training pass: they cannot be told from buffers that "
            "remember private data; take it off (remove_spectral_norm, remove_parametrizations) or use parametrizations.weight_norm."
        )
