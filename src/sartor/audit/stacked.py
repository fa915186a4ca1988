"""Several models of one kind side by side: one forward and one backward pass for all of them, and the clipped sum of each.

Every layer is called once for all models (`torch.func`), each on its own parameters and its own batch. To the output of every layer with
parameters zeros are added, at which gradients are asked for; from these and the layer's inputs the library's own rules
(`sartor.sgd.gradients`) form per-example gradients, for which the batches of all models are one long batch: no rule but the general one
reads a parameter. So what is added up for one model is what the gradient engine adds up for it, but for rounding.

It trains shadow models, and nothing else: batches are not compared with records alone, and nothing is charged. What cannot be stacked
(`can_be_stacked`) is trained one by one.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from sartor.errors import SartorError
from sartor.sgd.gradients import MARGIN, Kernels
from sartor.sgd.gradients.engine import SMALLEST_FACTOR
from sartor.sgd.gradients.modules import watched
from sartor.sgd.gradients.parts import Blocks, Formed, Part, Product
from sartor.sgd.gradients.registry import Call
from sartor.sgd.loss import Loss

_MOST_FORMED = 2**24  # numbers of per-example gradients in memory at once
_ALIKE = 1e-3  # of a gradient's norm; rounding in float32 is far below


class Stack:
    """Models side by side; `values` are their parameters, each with the models in its first dimension.

    >>> models = [nn.Linear(3, 2) for _ in range(4)]
    >>> inputs, targets = torch.randn(4, 5, 3), torch.randint(0, 2, (4, 5))
    >>> stack = Stack(models, Loss(None), inputs[0], targets[0])
    >>> stack.sums(inputs, targets, torch.full((4, 5), 0.1))["weight"].shape
    torch.Size([4, 2, 3])
    """

    def __init__(self, models: Sequence[nn.Module], measure: Loss, inputs: Tensor, targets: Tensor) -> None:
        """`inputs` and `targets` are a batch by which the shapes between layers are found."""
        first, self._measure = models[0], measure
        self.trained = [name for name, value in first.named_parameters() if value.requires_grad]
        by_name = [dict(model.named_parameters()) for model in models]
        self.values = {name: torch.stack([values[name].detach() for values in by_name]) for name in by_name[0]}
        self._skeleton = copy.deepcopy(first).to("meta").train()
        self._units = watched(self._skeleton)
        self._kernels = Kernels(measure=False)
        self._taps: list[Tensor] | None = None
        self._noted: dict[int, Tensor] = {}
        self._outputs: dict[int, Tensor] = {}
        for place, unit in enumerate(self._units):
            unit.module.register_forward_hook(self._hook(place))
        with torch.no_grad():
            outputs = functional_call(self._skeleton, {name: value[0] for name, value in self.values.items()}, (inputs,))
            measure(outputs, targets)  # looks at the loss once, which it cannot inside of torch.func
        vectors = {place for place, noted in self._noted.items() if self._is_vector(place, noted)}
        sizes = {unit.name: sum(unit.module.get_parameter(short).numel() for short in unit.wanted) for unit in self._units}
        self._formed = sum(sizes[unit.name] for place, unit in enumerate(self._units) if place not in vectors)
        self._each = vmap(grad(self._total, has_aux=True))

    def __len__(self) -> int:
        return len(next(iter(self.values.values())))

    @property
    def parameters(self) -> int:
        """How many numbers of one model are trained."""
        return sum(self.values[name][0].numel() for name in self.trained)

    def _hook(self, place: int) -> Any:
        def noting(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor | None:
            if place in self._noted or len(inputs) != 1:
                raise SartorError("a layer that is called twice, or not on one tensor, cannot be stacked.")
            self._noted[place] = inputs[0]
            if self._taps is None:
                self._outputs[place] = output.new_zeros(()).expand(output.shape[1:])
                return None
            return output + self._taps[place]

        return noting

    def _is_vector(self, place: int, inputs: Tensor) -> bool:
        return isinstance(self._units[place].module, nn.Linear) and inputs.dim() == 2

    def _total(self, taps: list[Tensor], values: dict[str, Tensor], inputs: Tensor, targets: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The loss of one model on its batch, and what went into each of its layers."""
        self._taps, self._noted = taps, {}
        total = self._measure(functional_call(self._skeleton, values, (inputs,)), targets).sum()
        return total, [self._noted[place] for place in range(len(self._units))]

    @torch.no_grad()
    def sums(self, inputs: Tensor, targets: Tensor, clips: Tensor) -> dict[str, Tensor]:
        """For each model the sum over its batch of gradients clipped at `clips`, which are 0 for rows that are there to fill the batch."""
        self._skeleton.train()
        width = max(1, _MOST_FORMED // max(1, len(self) * self._formed))
        added: dict[str, Tensor] = {}
        for some in zip(*(given.split(width, 1) for given in (inputs, targets, clips)), strict=True):
            for name, value in self._clipped(*some).items():
                added[name] = added[name] + value if name in added else value
        return added

    def _clipped(self, inputs: Tensor, targets: Tensor, clips: Tensor) -> dict[str, Tensor]:
        models, rows = clips.shape
        taps = [self._outputs[place].expand(models, rows, *self._outputs[place].shape) for place in range(len(self._units))]
        gradients, noted = self._each(taps, self.values, inputs, targets)
        flat = [(one.flatten(0, 1), two.flatten(0, 1)) for one, two in zip(noted, gradients, strict=True)]
        parts = self._parts(flat)
        norms = self._norms(parts)
        thresholds = clips.flatten()
        usable = torch.isfinite(norms) & (thresholds > SMALLEST_FACTOR * norms) & (thresholds > 0)
        if not bool(torch.isfinite(norms).all()):
            # zero times infinity is not zero: who is not finite contributes nothing
            flat = [(_without(one, usable), _without(two, usable)) for one, two in flat]
            parts = self._parts(flat)
            norms = self._norms(parts)
        factors = (1 - MARGIN) * torch.clamp(thresholds.double() / norms.clamp_min(1e-300), max=1.0)
        of_models = torch.where(usable, factors, 0.0).to(gradients[0].dtype).view(models, rows)
        return {name: _weighted(part, of_models).view(models, *self.values[name].shape[1:]) for name, part in parts.items()}

    def _parts(self, calls: Sequence[tuple[Tensor, Tensor]]) -> dict[str, Part]:
        """The per-example gradients of every parameter, of all models' examples."""
        found: dict[str, Part] = {}
        for place, (unit, (inputs, gradient)) in enumerate(zip(self._units, calls, strict=True)):
            form = not self._is_vector(place, inputs)
            call = Call(unit.name, unit.module, unit.wanted, (inputs,), {}, gradient, self._kernels, form)
            found |= {f"{unit.name}.{short}".lstrip("."): part for short, part in unit.rule(call).items()}
        return found

    def _norms(self, parts: dict[str, Part]) -> Tensor:
        return torch.stack([part.squared_norms.double() for part in parts.values()]).sum(0).sqrt()

    @torch.no_grad()
    def outputs(self, inputs: Tensor) -> Tensor:
        """What each model says of the same inputs: (models, records, ...)."""
        self._skeleton.eval()

        def one(values: dict[str, Tensor]) -> Any:
            self._taps, self._noted = None, {}
            return functional_call(self._skeleton, values, (inputs,))

        found: Tensor = vmap(one)(self.values)
        return found


def can_be_stacked(model: nn.Module, measure: Loss, inputs: Tensor, targets: Tensor) -> bool:
    """Whether copies of a model can be trained side by side: of the first two records, each alone has the gradient that it has beside
    another, of another model's batch.

    Not so where a model has buffers or tied parameters, layers whose gradients need the general rule, random layers, or code that mixes
    examples or that `torch.func` cannot follow.
    """
    several = sum(1 for _ in model.parameters()) < sum(1 for _ in model.named_parameters(remove_duplicate=False))
    if several or any(True for _ in model.buffers()) or len(inputs) < 2:
        return False
    if any(unit.is_general or unit.first for unit in watched(model)):
        return False
    inputs, targets = inputs[:2], targets[:2]
    try:
        stack = Stack([model, model], measure, inputs, targets)
        chosen = torch.eye(2) * 1e30  # each model adds up one of both
        found = stack.sums(inputs.expand(2, *inputs.shape), targets.expand(2, *targets.shape), chosen)
        alone = [_alone(model, measure, inputs[[row]], targets[[row]]) for row in range(2)]
    except Exception:  # whatever a model does that torch.func cannot follow
        return False
    return all(_are_alike([found[name][row] for name in alone[row]], list(alone[row].values())) for row in range(2))


def _alone(model: nn.Module, measure: Loss, inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
    """The gradient of one record by plain autograd."""
    trained = {name: value for name, value in model.named_parameters() if value.requires_grad}
    found = torch.autograd.grad(measure(model(inputs), targets).sum(), list(trained.values()), allow_unused=True)
    return {n: torch.zeros_like(v) if g is None else g for (n, v), g in zip(trained.items(), found, strict=True)}


def _are_alike(some: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    one, other = (torch.cat([value.flatten().double() for value in values]) for values in (some, others))
    return bool((one - other).norm() <= _ALIKE * other.norm())


def _without(rows: Tensor, kept: Tensor) -> Tensor:
    """The rows, with zeros for those that are not kept."""
    return torch.where(kept.view(-1, *[1] * (rows.dim() - 1)), rows, torch.zeros((), dtype=rows.dtype))


def _weighted(part: Part, factors: Tensor) -> Tensor:
    """For each model the sum over its examples of factor times gradient."""
    models, rows = factors.shape
    if isinstance(part, Product):
        left, right = (side.view(models, rows, -1) for side in (part.left, part.right))
        return torch.bmm((left * factors[..., None]).transpose(1, 2), right)
    if isinstance(part, Blocks):
        part = Formed(torch.cat(list(part.gradients)))
    if not isinstance(part, Formed):
        raise SartorError("a gradient that is not formed cannot be stacked.")
    return torch.bmm(factors[:, None], part.gradients.reshape(models, rows, prod(part.gradients.shape[1:])))
