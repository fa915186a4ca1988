"""What a run is made of, by part, so that a run that resumes can be compared with the one that it continues.

A resumed run repeats the steps after its checkpoint under the same coins and noise. That shows nothing new only if the sums are the same
again, so everything that determines them is compared before anything is drawn: versions, how numbers are computed, the model layer by
layer, which parameters are trained, the data set's code, the collate function, the optimizer. A difference is refused with its name.

Guarantee: if `difference` is None, both runs were made by the same code with the same settings, as far as `digests` sees them; what a
    checkpoint puts back (parameters, persistent buffers, the optimizer's state and learning rates) does not count.
Breaks if: code is out of sight (see `digests`); the loop is the user's own and computes another loss; a model sets itself by what it
    finds at run time (files, the environment, the time); the machine rounds otherwise, which is said and not refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as of_all_modules
from torch.optim import Optimizer
from torch.utils.data import Dataset

from sartor.sgd.digests import Scope, digest, layer, memory, records, users
from sartor.sgd.packages import package_of, version

_ALWAYS = ("python", "torch", "numpy", "randomgen", "sartor")
_GLOBAL_HOOKS = ("_global_forward_pre_hooks", "_global_forward_hooks", "_global_backward_pre_hooks", "_global_backward_hooks")
_OF_OPTIMIZERS = frozenset(vars(torch.optim.SGD([torch.zeros(1, requires_grad=True)])))
_STEP_HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")

Parts = Mapping[str, str]


@dataclass(frozen=True)
class Identity:
    """The parts of a run as names and digests; nothing of the private data, nor of the model's numbers."""

    versions: Parts
    numbers: Parts
    layers: Mapping[str, Parts]
    parameters: Parts
    dataset: Parts
    collate: str
    optimizer: Parts

    def to_json(self) -> dict[str, Any]:
        """These parts as a JSON document, in their order."""
        return asdict(self)


def identity(model: nn.Module, optimizer: Optimizer, dataset: Dataset[Any], collate: Callable[..., Any] | None) -> Identity:
    """What a run is made of at this moment; the hooks of the run itself do not count, nor what a checkpoint puts back."""
    scope = scope_of(model)
    parts: dict[str, Any] = {
        "numbers": _numbers(),
        "layers": _layers(model, scope),
        "parameters": _parameters(model),
        "dataset": _parts(type(dataset), digest(type(dataset), scope), records(dataset), scope),
        "collate": digest(collate, scope),
        "optimizer": _optimizer(model, optimizer, scope),
    }
    # last, when it is known which packages take part
    return Identity(versions=dict(sorted({**scope.packages, **{name: version(name) for name in _ALWAYS}}.items())), **parts)


def scope_of(model: nn.Module) -> Scope:
    """What a checkpoint puts back of a model, and its layers by name: values that refer to them are not described by it."""
    state = (*model.state_dict(keep_vars=True).values(), *model.parameters())
    restored = {memory(value) for value in state if isinstance(value, torch.Tensor)} - {0}
    return Scope({id(module): name for name, module in model.named_modules()}, frozenset(restored))


def difference(then: Mapping[str, Any], now: Identity) -> str | None:
    """What tells two runs apart, as a clause that names the first part that differs; None if nothing does."""
    for part in ("versions", "numbers"):
        # packages that only one of them uses are told by what uses them
        for name, value in getattr(now, part).items():
            if then[part].get(name, value) != value:
                return f"{name} was {then[part][name]} and is {value}"
    for part, tell in _TELL.items():
        before, here = then[part], getattr(now, part)
        if before != here or list(before) != list(here):
            return tell(before, here)
    return None


def _numbers() -> dict[str, str]:
    """Settings of torch by which it computes otherwise, by more than the last digits."""
    autocast = str(torch.get_autocast_dtype("cpu")) if torch.is_autocast_enabled("cpu") else "off"
    return {
        "default dtype": str(torch.get_default_dtype()),
        "precision of products": torch.get_float32_matmul_precision(),
        "autocast": autocast,
    }


def _layers(model: nn.Module, scope: Scope) -> dict[str, dict[str, str]]:
    # first, so that all names in the model's code are known
    codes = {kind: digest(kind, scope) for kind in dict.fromkeys(type(module) for module in model.modules())}
    found: dict[str, dict[str, str]] = {}
    first: dict[int, str] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if id(module) in first:
            found[name] = {"class": f"the layer {first[id(module)]} again"}
        else:
            first[id(module)] = name
            found[name] = _parts(type(module), codes[type(module)], layer(module), scope)
    hooks = [list(getattr(of_all_modules, kind, {}).values()) for kind in _GLOBAL_HOOKS]
    found[""]["hooks of all modules"] = digest(hooks, scope)
    return found


def _parts(kind: type, code: str, settings: Mapping[str, Any], scope: Scope) -> dict[str, str]:
    return {"class": _called(kind), "code": code, **{name: digest(part, scope) for name, part in settings.items()}}


def _called(kind: type) -> str:
    """A class's name, with where it is from unless it is the user's, whose script may be run or imported."""
    return kind.__qualname__ if package_of(kind) is None else f"{kind.__module__}.{kind.__qualname__}"


def _parameters(model: nn.Module) -> dict[str, str]:
    found: dict[str, str] = {}
    first: dict[int, str] = {}
    for name, value in model.named_parameters(remove_duplicate=False):
        how = "trainable" if value.requires_grad else "frozen"
        shape = f"{how}, {str(value.dtype).removeprefix('torch.')} {tuple(value.shape)} on {value.device.type}"
        found[name] = f"tied to {first[id(value)]}" if id(value) in first else shape
        first.setdefault(id(value), name)
    return found


def _optimizer(model: nn.Module, optimizer: Optimizer, scope: Scope) -> dict[str, str]:
    ours = package_of(type(optimizer)) is None
    settings: dict[str, Any] = {
        f"setting {name}": value
        for name, value in sorted(vars(optimizer).items())
        if name not in _OF_OPTIMIZERS and (ours or not name.startswith("_"))
    }
    names = {id(value): name for name, value in model.named_parameters()}
    settings["groups"] = [[names.get(id(value), "") for value in group["params"]] for group in optimizer.param_groups]
    settings["hooks"] = [users(getattr(optimizer, kind)) for kind in _STEP_HOOKS]
    return _parts(type(optimizer), digest(type(optimizer), scope), settings, scope)


# -- sentences


def _layers_differ(then: Mapping[str, Parts], now: Mapping[str, Parts]) -> str:
    for name in [name for name in then if name in now] or [""]:
        if then[name] != now[name]:
            return _differs(f"the layer {name}" if name else "the model", then[name], now[name])
    return f"the model has other layers than {', '.join(name for name in then if name)}"


def _parameters_differ(then: Parts, now: Parts) -> str:
    for name in {**then, **now}:
        before, here = then.get(name, "absent"), now.get(name, "absent")
        if before != here:
            return f"the parameter {name} was {before} and is {here}"
    return "the model's parameters are in another order"


def _differs(place: str, then: Parts, now: Parts) -> str:
    if then["class"] != now["class"]:
        return f"{place} was {then['class']} and is {now['class']}"
    what = next(name for name in {**then, **now} if then.get(name) != now.get(name))
    return f"{place} ({now['class'].rpartition('.')[2]}) differs in its {what}"


_TELL: dict[str, Callable[[Any, Any], str]] = {
    "layers": _layers_differ,
    "parameters": _parameters_differ,
    "dataset": lambda then, now: _differs("the data set", then, now),
    "collate": lambda then, now: "the collate function differs",
    "optimizer": lambda then, now: _differs("the optimizer", then, now),
}
