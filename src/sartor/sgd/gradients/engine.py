"""Sums of per-example gradients, each clipped at its own threshold, from one forward and one backward pass.

While a batch is open, every watched module notes what goes in, its parameters are hidden from autograd (so no weight gradient is computed
only to be thrown away), and a hook notes the gradient of what comes out. `clipped_sums` then finds each example's norm over all
parameters, scales it down to its threshold and adds up. Where holders have several rows (`owners`), a holder's rows are added up first, and
what is clipped is their sum or mean.

Guarantee: no holder contributes a vector of norm above their threshold (factors are lowered by MARGIN for the rounding of norms), a holder
    with a gradient that is not finite contributes nothing, and a parameter used outside of its module is refused, not ignored.
Breaks if: the loss, or code between modules, mixes examples; then no rule can tell whose gradient is whose.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx
from torch.utils._pytree import TreeSpec, tree_flatten, tree_map, tree_unflatten

from sartor.errors import SartorError
from sartor.sgd.batches import leaves
from sartor.sgd.gradients.kernels import Kernels
from sartor.sgd.gradients.modules import Watched, watched
from sartor.sgd.gradients.owners import Owners
from sartor.sgd.gradients.parts import Blocks, Formed, Part, Product
from sartor.sgd.gradients.registry import Call

MARGIN = 2.0**-16
SMALLEST_FACTOR = 1e-20


class _Start(torch.autograd.Function):
    """Lets gradients be asked for at the output of a layer whose inputs and parameters ask for none."""

    @staticmethod
    def forward(ctx: FunctionCtx, output: Tensor, anchor: Tensor) -> Tensor:
        ctx.mark_dirty(output)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0], None


@dataclass(eq=False)
class _Noted:
    """One call under way: inputs now, gradients of the outputs when they come; of the outputs themselves only the shapes."""

    inputs: tuple[Any, ...]
    keywords: Mapping[str, Any]
    outputs: list[Tensor]
    gradients: dict[int, Tensor] = field(default_factory=dict)

    def receive(self, place: int, gradient: Tensor) -> None:
        if gradient.requires_grad:
            raise SartorError("a gradient of a gradient (create_graph=True) has no per-example rule; leave it out of private training.")
        known = self.gradients.get(place)
        self.gradients[place] = gradient if known is None else known + gradient


class PerExample:
    """The gradient engine of one model.

    >>> model = nn.Linear(3, 2)
    >>> engine = PerExample(model)
    >>> inputs, thresholds = torch.randn(5, 3), torch.full((5,), 0.1)
    >>> with engine.batch(thresholds):
    ...     model(inputs).square().sum().backward()
    ...     sums = engine.clipped_sums()
    >>> bool(sums["weight"].norm() <= thresholds.sum())
    True
    """

    def __init__(self, model: nn.Module, *, kernels: Kernels | None = None, exact: bool = False) -> None:
        """`exact` adds up in float64, for thresholds that are small beside what rounding of a long float32 sum moves."""
        self.model = model
        self.kernels = Kernels() if kernels is None else kernels
        if any(parameter.device.type != "cpu" for parameter in model.parameters()):
            raise SartorError("private training runs on the CPU for now; move the model there.")
        self.units = watched(model)
        self.parameters: dict[str, nn.Parameter] = {n: p for n, p in model.named_parameters() if p.requires_grad}
        wide = exact or any(p.dtype == torch.float64 for p in self.parameters.values())
        self._precision = torch.float64 if wide else torch.float32
        self._names = {id(p): name for name, p in self.parameters.items()}
        self._owners = _owners(self.units, self._names)
        self._noted: dict[int, list[_Noted]] = defaultdict(list)
        self._anchor = torch.zeros((), requires_grad=True)
        self.is_aside = False
        """Whether the batch of the run is laid aside for a test."""
        self._thresholds: Tensor | None = None
        self._owners_of_rows: Owners | None = None
        self._rows = 0
        self._hidden: dict[int, list[nn.Parameter]] = defaultdict(list)
        self._shared: dict[tuple[int, TreeSpec], set[int]] = defaultdict(set)
        self._common: dict[tuple[int, int, torch.Size], Tensor] = {}
        self._given: list[Tensor] = []
        self._hooks: list[Any] = []
        self._watch_model()
        for place, unit in enumerate(self.units):
            self._watch(place, unit)

    def _watch_model(self) -> None:
        def before(module: nn.Module, inputs: Any, keywords: Any) -> None:  # no bound method: a copy of the model would copy the engine
            if module is self.model and self._thresholds is not None and torch.is_grad_enabled():
                self._given = [leaf for leaf in leaves((inputs, keywords)) if isinstance(leaf, Tensor) and leaf.dim()]

        self._hooks.append(self.model.register_forward_pre_hook(before, with_kwargs=True))

    def _watch(self, place: int, unit: Watched) -> None:
        parameters = [unit.module.get_parameter(short) for short in sorted(unit.wanted)]

        def before(module: nn.Module, inputs: Any) -> None:
            if self._records(module, unit):
                hidden = [parameter for parameter in parameters if parameter.requires_grad]
                self._hidden[place] += hidden
                for parameter in hidden:
                    parameter.requires_grad_(False)

        def after(module: nn.Module, inputs: Any, keywords: Any, output: Any) -> Any:
            return self._note(place, unit, inputs, keywords, output) if self._records(module, unit) else None

        def always(module: nn.Module, inputs: Any, output: Any) -> None:
            if module is unit.module:
                self._show(place)

        self._hooks += [
            unit.module.register_forward_pre_hook(before),
            # before a user's own hooks: they may change what the layer puts out, and the rule is about what it puts out itself
            unit.module.register_forward_hook(after, with_kwargs=True, prepend=True),
            unit.module.register_forward_hook(always, always_call=True),
        ]

    def _show(self, place: int) -> None:
        for parameter in self._hidden.pop(place, ()):
            parameter.requires_grad_(True)

    def detach(self) -> None:
        """Take every hook off the model."""
        self.close()
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def _records(self, module: nn.Module, unit: Watched) -> bool:
        # a copy of the model carries these hooks too, and is none of ours
        return module is unit.module and self._thresholds is not None and torch.is_grad_enabled()

    def _note(self, place: int, unit: Watched, inputs: tuple[Any, ...], keywords: Mapping[str, Any], output: Any) -> Any:
        assert self._thresholds is not None
        given: list[Any] = [*inputs, *keywords.values()]
        if isinstance(unit.module, nn.EmbeddingBag) and isinstance(given[0], Tensor) and given[0].dim() == 1:
            raise SartorError(
                f"{unit.name or 'the model'} is an EmbeddingBag that takes the tokens of all examples as one row with offsets, which does "
                "not tell whose gradient is whose; give it examples x tokens, padded with its padding_idx."
            )
        if unit.is_general:
            given, form = tree_flatten((inputs, dict(keywords)))
            if any(isinstance(leaf, Tensor) for value in given if not isinstance(value, Tensor) for leaf in leaves(value)):
                raise SartorError(
                    f"{unit.name or 'the model'} owns parameters and is given tensors in an object, from which no gradients can be formed; "
                    "give it tensors, or tuples, lists and dictionaries of them."
                )
            # an input that once had another number of rows than there were examples is common to all of them, also when the numbers agree
            # (in calls of the same form: another form may have other inputs in the same places)
            for i, value in enumerate(given):
                if not isinstance(value, Tensor) or not value.dim() or len(value) != self._rows:
                    self._shared[place, form].add(i)
        flat, structure = ([output], None) if isinstance(output, Tensor) else tree_flatten(output)
        several = sum(isinstance(leaf, Tensor) and leaf.is_floating_point() for leaf in flat) > 1
        noted = _Noted(_mapped(_detached, inputs), _mapped(_detached, dict(keywords)), [])
        for i, leaf in enumerate(flat):
            if not isinstance(leaf, Tensor) or not leaf.is_floating_point():
                continue
            # the gradient at an alias, or at an output that others are made from, would hold more than what comes from outside
            if several or leaf._is_view() or isinstance(leaf, nn.Parameter) or any(leaf is value for value in given):
                leaf = leaf.clone()
            tensor = leaf if leaf.requires_grad else _Start.apply(leaf, self._anchor)  # type: ignore[no-untyped-call]
            tensor = self._examples_first(place, unit, tensor, given)
            tensor.register_hook(partial(noted.receive, len(noted.outputs)))
            noted.outputs.append(torch.empty_like(tensor, device="meta"))
            flat[i] = tensor
        self._noted[place].append(noted)
        return flat[0] if structure is None else tree_unflatten(flat, structure)

    def _examples_first(self, place: int, unit: Watched, output: Tensor, given: Sequence[Any]) -> Tensor:
        """The output itself, or, where it is the same for all examples (as position embeddings are), one copy of it for each."""
        examples = self._rows
        seen = output.shape[unit.first] if output.dim() > unit.first else 0
        if seen == examples:
            return output
        if seen == 1:
            self._refuse_common(place, unit, given)
            return output.expand(*output.shape[: unit.first], examples, *output.shape[unit.first + 1 :])
        raise SartorError(
            f"{unit.name or 'the model'} returned a different number of rows than there are examples: every layer must keep examples in "
            f"dimension {unit.first}, and the model must be given the batch that was drawn."
        )

    def _refuse_common(self, place: int, unit: Watched, given: Sequence[Any]) -> None:
        """Only what is independent of the batch may stand for every example: no row that came from outside with the batch, none that was
        computed from the examples' own rows, and none that differs from step to step. (That it does not follow tokens, which have no
        gradient, is seen by the self-check.)"""
        outside = any(len(tensor) == 1 for tensor in self._given)
        own = any(len(tensor) == self._rows for tensor in self._given)
        known = True
        for i, value in enumerate(leaves(list(given))):
            if isinstance(value, Tensor):
                known = known and not value.requires_grad
                first = self._common.setdefault((place, i, value.shape), value.detach().clone())
                known = known and torch.equal(first, value)
        if outside or not own or not known:
            raise SartorError(
                f"{unit.name or 'the model'} was given one row for {self._rows} examples, and that row may be made of them: no "
                "example's influence on it can be bounded. Give the model the batch that was drawn; expand what is common to all examples "
                "(positions, a time) to one row for each."
            )

    @contextmanager
    def batch(self, thresholds: Tensor, owners: Owners | None = None) -> Iterator[None]:
        """Opens a batch: forward passes inside are recorded, for as many examples as there are thresholds, or as the owners have rows."""
        self.open(thresholds, owners)
        try:
            yield
        finally:
            self.close()

    def open(self, thresholds: Tensor, owners: Owners | None = None) -> None:
        """Begin to record for a batch with these thresholds, one for each example; or one for each holder of several rows."""
        if owners is not None and len(owners) != len(thresholds):
            raise SartorError("a batch needs one threshold for each of its holders.")
        if not bool(((thresholds >= 0) & torch.isfinite(thresholds)).all()):
            raise SartorError("a threshold must be 0 or more and finite.")
        self.close()
        self._thresholds, self._owners_of_rows = thresholds, owners
        self._rows = len(thresholds) if owners is None else owners.rows

    def close(self) -> None:
        """Stop recording and forget what was recorded."""
        self._thresholds, self._owners_of_rows = None, None
        self._noted.clear()
        self._given = []
        for place in list(self._hidden):
            self._show(place)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Lay the open batch aside, with all that is known of it, and take it up again: what is recorded meanwhile leaves no trace, and no
        kernels are measured or chosen."""
        noted, given, open_ = dict(self._noted), self._given, (self._thresholds, self._owners_of_rows, self._rows)
        shared, common = {key: set(value) for key, value in self._shared.items()}, dict(self._common)
        chosen, measure = dict(self.kernels.chosen), self.kernels.measure
        self._noted = defaultdict(list)
        self.close()
        self.is_aside, self.kernels.measure = True, False
        try:
            yield
        finally:
            self.close()
            self.is_aside, self.kernels.measure, self.kernels.chosen = False, measure, chosen
            self._shared, self._common = defaultdict(set, shared), common
            self._thresholds, self._owners_of_rows, self._rows = open_
            self._noted, self._given = defaultdict(list, noted), given

    def forget_gradients(self) -> None:
        """Drop the gradients noted so far; forward passes stay noted, for a backward pass to come."""
        for calls in self._noted.values():
            for call in calls:
                call.gradients.clear()

    @property
    def is_open(self) -> bool:
        """Whether forward passes are being recorded."""
        return self._thresholds is not None

    @torch.no_grad()
    def gradients_of(self, rows: Sequence[int | Sequence[int]]) -> list[dict[str, Tensor]]:
        """The gradients of some examples of the open batch, or of several added up, as they are attributed to each, unclipped (of private
        data: sensitive)."""
        if self._thresholds is None:
            raise SartorError("no batch is open.")
        thresholds, self._thresholds = self._thresholds, None  # modules that are run again for it are not recorded
        try:
            with torch.autocast("cpu", enabled=False):
                return self._gradients_of(rows, self._rows)
        finally:
            self._thresholds = thresholds

    def _gradients_of(self, rows: Sequence[int | Sequence[int]], examples: int) -> list[dict[str, Tensor]]:
        entries = self._parts(dict(self._noted), None)
        finite = bool(torch.isfinite(self._norms([part for _, _, part in entries], examples)).all())
        found = []
        for row in rows:
            chosen, factors = torch.atleast_1d(torch.tensor(row)), torch.zeros(examples, dtype=self._precision)
            factors[chosen] = 1
            own: dict[str, Tensor] = {}
            for place, name, part in entries:
                # zero times infinity is not zero: beside rows that are not finite, the row is taken out first
                total = part.weighted(factors) if finite else self._only(self._noted, place, name, part, chosen).weighted(factors[chosen])
                total = total.reshape(self.parameters[name].shape)
                own[name] = own[name] + total if name in own else total
            found.append(own)
        return found

    def clipped_sums(self, scale: float | Tensor = 1.0) -> dict[str, Tensor]:
        """The sum over holders of the clipped gradients, by parameter; ends the batch.

        `scale` undoes what the loss divided by: the number of examples for a mean, 1 for a sum. One number for each holder makes, of the
        sum of their rows, a mean.
        """
        sums, _ = self.sums_and_norms(scale)
        return sums

    @torch.no_grad()
    def sums_and_norms(self, scale: float | Tensor = 1.0) -> tuple[dict[str, Tensor], Tensor]:
        """Clipped sums, and the norms before clipping (of private data: sensitive)."""
        thresholds, owners, noted = self._ended()
        # a step taken inside of an autocast block must not round norms and sums to bfloat16
        with torch.autocast("cpu", enabled=False):
            return self._sums_and_norms(thresholds, owners, noted, torch.as_tensor(scale, dtype=torch.float64))

    @torch.no_grad()
    def norms(self, scale: float | Tensor = 1.0) -> Tensor:
        """Each holder's gradient norm, without forming sums (of private data: sensitive); ends the batch. `scale` as in `clipped_sums`."""
        thresholds, owners, noted = self._ended()
        with torch.autocast("cpu", enabled=False):
            parts = [part for _, _, part in self._parts(noted, owners)]
            return self._norms(parts, len(thresholds)) * torch.as_tensor(scale, dtype=torch.float64)

    @torch.no_grad()
    def plain_sums(self) -> dict[str, Tensor]:
        """The sum over all rows of their gradients, not clipped, by parameter (of private data: sensitive); ends the batch."""
        _, owners, noted = self._ended()
        one = Owners(torch.tensor([owners.rows if owners is not None else self._rows]))
        with torch.autocast("cpu", enabled=False):
            return self._added(self._parts(noted, one), torch.ones(1, dtype=self._precision))

    def _ended(self) -> tuple[Tensor, Owners | None, dict[int, list[_Noted]]]:
        if self._thresholds is None:
            raise SartorError("no batch is open.")
        self._refuse_foreign_gradients()
        thresholds, owners, noted = self._thresholds, self._owners_of_rows, dict(self._noted)
        self.close()
        return thresholds, owners, noted

    def _sums_and_norms(
        self, thresholds: Tensor, owners: Owners | None, noted: Mapping[int, Sequence[_Noted]], scale: Tensor
    ) -> tuple[dict[str, Tensor], Tensor]:
        everyone = torch.arange(len(thresholds))
        entries = self._parts(noted, owners) if len(everyone) else []
        norms = self._norms([part for _, _, part in entries], len(thresholds)) * scale
        # a factor so small that products with it lose their digits could round up: such an example contributes nothing
        usable = torch.isfinite(norms) & (thresholds > SMALLEST_FACTOR * norms) & (thresholds > 0)
        if not bool(usable.all()):
            # rows that are not used must not touch the sums at all: zero times infinity is not zero
            everyone = everyone[usable]
            entries = (
                []
                if not len(everyone)
                else [(place, name, self._only(noted, place, name, part, everyone, owners)) for place, name, part in entries]
            )
        scale = scale[everyone] if scale.dim() else scale
        factors = scale * (1 - MARGIN) * torch.clamp(thresholds[everyone].double() / norms[everyone].clamp_min(1e-300), max=1.0)
        return self._added(entries if len(everyone) else (), factors.to(self._precision)), norms

    def _added(self, entries: Iterable[tuple[int, str, Part]], factors: Tensor) -> dict[str, Tensor]:
        """The sum of factor times gradient, by parameter; zeros for parameters that were not used."""
        found: dict[str, Tensor] = {}
        for _, name, part in entries:
            total = part.weighted(factors).reshape(self.parameters[name].shape)
            found[name] = found[name] + total if name in found else total
        unused = {name: torch.zeros_like(value, dtype=self._precision) for name, value in self.parameters.items() if name not in found}
        return {name: unused[name] if name in unused else found[name] for name in self.parameters}

    @property
    def is_coarse(self) -> bool:
        """Whether a layer put out half precision in the open batch."""
        return any(out.dtype.itemsize < 4 for calls in self._noted.values() for call in calls for out in call.outputs)

    @property
    def has_gradients(self) -> bool:
        """Whether a backward pass through the model was seen since the batch was opened."""
        return any(call.gradients for calls in self._noted.values() for call in calls)

    @torch.no_grad()
    def norms_by_parameter(self) -> dict[str, Tensor]:
        """For each parameter that was used, each holder's gradient norm (of private data: sensitive); ends the batch."""
        noted, owners = dict(self._noted), self._owners_of_rows
        self.close()
        with torch.autocast("cpu", enabled=False):
            return {name: part.squared_norms.sqrt() for _, name, part in self._parts(noted, owners)}

    def _refuse_foreign_gradients(self) -> None:
        for name, parameter in self.parameters.items():
            if parameter.grad is not None and bool(parameter.grad.any()):
                raise SartorError(
                    f"{name} has a gradient that was not formed per example: it is used outside of the module that owns it, or a "
                    "backward pass ran outside of a drawn batch; use parameters through their modules (share a module to tie weights), and "
                    "call zero_grad first."
                )

    def _parts(self, noted: Mapping[int, Sequence[_Noted]], owners: Owners | None) -> list[tuple[int, str, Part]]:
        """Gradients of every parameter that was used, of each holder (without owners: of each row), with the place of the unit that they
        come from."""
        found: list[tuple[int, str, Part]] = []
        summed: dict[str, Tensor] = {}
        for place, unit in enumerate(self.units):
            row_by_row = owners is not None and not unit.adds_up
            calls, added = self._calls(place, noted, None if row_by_row else owners, form=row_by_row)
            for made in calls:
                for short, part in unit.rule(made).items():
                    name = self._full(unit, short)
                    if owners is not None and row_by_row:
                        assert isinstance(part, Formed)
                        part = Formed(owners.summed(part.gradients))
                    if not added:
                        found.append((place, name, part))
                    else:
                        assert isinstance(part, Formed)
                        known = summed.get(name)
                        summed[name] = part.gradients if known is None else known + part.gradients
        return found + [(-1, name, Formed(gradients)) for name, gradients in summed.items()]

    def _only(
        self, noted: Mapping[int, Sequence[_Noted]], place: int, name: str, part: Part, kept: Tensor, owners: Owners | None = None
    ) -> Part:
        """The same gradients, of some holders alone. What was formed is never formed a second time: it might come out differently."""
        if isinstance(part, Blocks):
            part = Formed(torch.cat(list(part.gradients)))
        if isinstance(part, Formed):
            return replace(part, gradients=part.gradients[kept], norms=None)
        if isinstance(part, Product):
            return Product(part.left[kept], part.right[kept])
        some, rows = (None, kept) if owners is None else owners.only(kept)
        (call,), _ = self._calls(place, noted, some, rows)
        again = self.units[place].rule(call)
        return next(found for short, found in again.items() if self._full(self.units[place], short) == name)

    def _calls(
        self,
        place: int,
        noted: Mapping[int, Sequence[_Noted]],
        owners: Owners | None,
        chosen: Tensor | None = None,
        *,
        form: bool = False,
    ) -> tuple[list[Call], bool]:
        """The calls of a unit as its rule reads them, and whether what it gives for each must be added up; many calls of a linear layer
        become one over as many positions."""
        unit, seen = self.units[place], [call for call in noted.get(place, ()) if call.gradients]
        shared = any(len(self._owners[self._full(unit, short)]) > 1 for short in unit.wanted)
        rows = [self._row(unit, call, chosen) for call in seen]
        if len(rows) > 1 and isinstance(unit.module, nn.Linear) and not unit.is_general:
            joined = [[r[0][0] if r[0] else next(iter(r[1].values())) for r in rows], [r[2][0] for r in rows]]
            left, right = (torch.cat([t.reshape(len(t), -1, t.shape[-1]) for t in side], 1) for side in joined)
            rows = [((left,), {}, [right])]
        added = shared or len(rows) > 1
        made = []
        for inputs, keywords, gradients in rows:
            own: frozenset[int] = frozenset()
            if unit.is_general:
                given, form_of_call = tree_flatten((inputs, dict(keywords)))
                own = frozenset(range(len(given))) - self._shared[place, form_of_call]
            wanted = gradients if unit.is_general else gradients[0]
            made.append(Call(unit.name, unit.module, unit.wanted, inputs, keywords, wanted, self.kernels, form or added, own, owners))
        return made, added

    def _row(self, unit: Watched, call: _Noted, chosen: Tensor | None) -> tuple[tuple[Any, ...], Mapping[str, Any], list[Tensor]]:
        gradients = [
            call.gradients[i] if i in call.gradients else torch.zeros_like(out, device="cpu") for i, out in enumerate(call.outputs)
        ]
        if unit.is_general:
            return call.inputs, call.keywords, gradients
        examples = gradients[0].shape[unit.first]

        def place(value: Any) -> Any:
            if not isinstance(value, Tensor) or value.dim() <= unit.first:
                return value
            if unit.first:
                value = value.transpose(0, unit.first)
            if value.is_floating_point():
                value = value.to(self._precision)
            if len(value) == 1 and examples > 1:
                value = value.expand(examples, *value.shape[1:])
            return value if chosen is None else value[chosen]

        return _mapped(place, call.inputs), _mapped(place, dict(call.keywords)), [place(g) for g in gradients]

    def _full(self, unit: Watched, short: str) -> str:
        return self._names[id(unit.module.get_parameter(short))]

    def _norms(self, parts: Sequence[Part], examples: int) -> Tensor:
        total = torch.zeros(examples, dtype=torch.float64)
        for part in parts:
            total = total + part.squared_norms
        return total.sqrt()


def _mapped(change: Callable[[Any], Any], values: Any) -> Any:
    """`tree_map`, by a short way where the tree is a tuple of tensors, as it is for nearly every layer."""
    if type(values) is tuple and all(isinstance(value, Tensor) for value in values):
        return tuple(change(value) for value in values)
    return tree_map(change, values) if values else values


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) else value


def _owners(units: Sequence[Watched], names: Mapping[int, str]) -> dict[str, list[str]]:
    owners: dict[str, list[str]] = defaultdict(list)
    for unit in units:
        for short in unit.wanted:
            owners[names[id(unit.module.get_parameter(short))]].append(unit.name)
    return owners
