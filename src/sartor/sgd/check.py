"""The self-check of a run: a few examples' gradients against a naive loop, and what must not carry private data beside the accounting.

Before the first noisy gradient leaves, on the first batch of two or more: (1) no example's output may depend on another's, with the model
as it trains; (2) each parameter's per-example gradient norms must be those of a naive loop, random layers off. The layer that disagrees
is named, and the check stays armed until it has passed. At every step: no parameter or buffer may change in the forward pass.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from sartor.errors import SartorError, SartorWarning
from sartor.sgd.batches import cut, has_rows, leaves, mapped
from sartor.sgd.forks import forked
from sartor.sgd.gradients import Owners, PerExample

EXAMPLES = 3
SEEDS = 4
TOLERANCE = 1e-3
_IN_HALVES = 0.1  # where layers put out half precision
_ROUNDINGS = 32  # in the last place of the largest output; 4e-6 of it in single precision
_LARGEST, _SMALL = 1e-5, 1e-7  # of outputs and of norms of gradients
_CHANGES = (1.0012345, 0.9987, 1.0003)  # of weights, by less than the tolerance of what is made of them


class Unchecked(SartorWarning):
    """A model whose first step could not be compared with a naive loop."""


class Kept:
    """The model's parameters and buffers as they were when a batch was opened: a forward pass must leave them so."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._parameters: dict[str, tuple[Tensor, Tensor]] = {}
        self._buffers: dict[str, tuple[Tensor, Tensor]] = {}

    def keep(self) -> None:
        """Remember them."""
        self._parameters = {name: (value, value.detach().clone()) for name, value in self._model.named_parameters()}
        self._buffers = {name: (value, value.detach().clone()) for name, value in self._model.named_buffers()}

    def refuse_changes(self) -> None:
        """Whether the forward pass changed one; if so all are put back as they were."""
        changed = [f"the parameter {n}" for n in self._changed(self._parameters, dict(self._model.named_parameters()))]
        changed += [f"the buffer {n}" for n in self._changed(self._buffers, dict(self._model.named_buffers()))]
        if changed:
            self.put_back()
            raise SartorError(
                f"{changed[0]} changed while private data went through the model: it would carry them out beside the accounting; use "
                "layers without running statistics and without parameters that follow the data."
            )

    def _changed(self, kept: dict[str, tuple[Tensor, Tensor]], now: dict[str, Any]) -> list[str]:
        found = [n for n, (value, copy) in kept.items() if now.get(n) is not value or not _same(value, copy)]
        return found + [name for name in now if name not in kept]

    @torch.no_grad()
    def put_back(self) -> None:
        """As they were."""
        for value, copy in self._parameters.values():
            value.data.copy_(copy)
        for name, (value, copy) in self._buffers.items():
            value.data.copy_(copy)
            self._owner(name)._buffers[name.rpartition(".")[2]] = value
        for name in [n for n, _ in self._model.named_buffers() if n not in self._buffers]:
            del self._owner(name)._buffers[name.rpartition(".")[2]]

    def _owner(self, name: str) -> nn.Module:
        return self._model.get_submodule(name.rpartition(".")[0])


def _same(value: Tensor, copy: Tensor) -> bool:
    return torch.equal(value, copy) or bool(((value == copy) | ((value != value) & (copy != copy))).all())


@contextmanager
def laid_aside(engine: PerExample, kept: Kept, seed: int) -> Iterator[list[tuple[nn.Module, bool]]]:
    """Whatever happens inside leaves no trace: modes, parameters, buffers, gradients, random numbers and the engine are put back."""
    modes = [(module, module.training) for module in engine.model.modules()]
    gradients = [(parameter, parameter.grad) for parameter in engine.model.parameters()]
    kept.keep()
    for parameter, _ in gradients:
        parameter.grad = None
    try:
        # whether records mix is no matter of precision, and half of it would hide what is small
        with forked(seed), engine.aside(), torch.enable_grad(), torch.autocast("cpu", enabled=False):
            yield modes
    finally:
        kept.put_back()
        for module, mode in modes:
            module.training = mode
        for parameter, gradient in gradients:
            parameter.grad = gradient


class SelfCheck:
    """Notes what the model is given in a batch, then compares."""

    def __init__(self, engine: PerExample, kept: Kept, *, several: bool = False) -> None:
        self.engine, self.kept, self._several = engine, kept, several
        self._given: tuple[Any, Any] | None = None
        self._rows, self._tolerance = 0, TOLERANCE
        self._owners: Owners | None = None
        self._firsts = {unit.name: unit.first for unit in engine.units}
        self._hook = engine.model.register_forward_pre_hook(self._note, with_kwargs=True)

    def begin(self, rows: int, owners: Owners | None = None) -> None:
        """A batch of so many examples is about to be seen."""
        self._rows, self._given, self._owners = rows, None, owners

    def _note(self, module: nn.Module, inputs: Any, keywords: Any) -> None:
        is_first = self.engine.is_open and not self.engine.is_aside and self._given is None
        if is_first and module is self.engine.model and torch.is_grad_enabled():
            self._given = mapped(lambda v: v.detach() if isinstance(v, Tensor) else v, (inputs, keywords))

    def detach(self) -> None:
        """Take its hook off the model."""
        self._hook.remove()

    def passed(self) -> bool:
        """Compare, and raise with the name of the layer that disagrees; False where the batch is too small to tell."""
        if self._rows < 2 or (self._owners is not None and len(self._owners) < 2):
            return False  # records of one person alone could not show that they reach others
        if self._given is None:
            self._skip("its submodules are called one by one, not the model")
        else:
            given, self._given = self._finite(self._one_of_each(self._given)), None
            if self._rows < 2:
                return False
            if not any(has_rows(leaf, self._rows) for leaf in leaves(given)):
                self._skip("nothing that the model is given has a row for each example")
            elif not self._varies(given):
                return False
            else:
                try:
                    with laid_aside(self.engine, self.kept, 0):
                        self._compare(given, min(EXAMPLES, self._rows))
                except SartorError:
                    raise
                except Exception as error:  # whatever it says may show a record
                    self._skip(f"it fails on some of its examples alone ({type(error).__name__})")
        self.detach()
        return True

    def _one_of_each(self, given: tuple[Any, Any]) -> tuple[Any, Any]:
        """The same with one example of each holder first, so that those that are compared are of different people."""
        if self._owners is None:
            return given
        begins = self._owners.counts.cumsum(0) - self._owners.counts
        rest = torch.ones(self._rows, dtype=torch.bool)
        rest[begins] = False
        order, rows = torch.cat([begins, rest.nonzero()[:, 0]]), self._rows
        inputs, keywords = mapped(lambda leaf: leaf[order] if has_rows(leaf, rows) else leaf, given)
        return inputs, keywords

    def _finite(self, given: tuple[Any, Any]) -> tuple[Any, Any]:
        """The examples whose inputs are finite: others contribute nothing, and would spoil what a naive loop makes of their neighbours."""
        usable = torch.ones(self._rows, dtype=torch.bool)
        for leaf in leaves(given):
            if has_rows(leaf, self._rows) and leaf.is_floating_point():
                usable &= torch.isfinite(leaf).reshape(self._rows, -1).all(1)
        if bool(usable.all()):
            return given
        rows, self._rows = self._rows, int(usable.sum())
        inputs, keywords = mapped(lambda leaf: leaf[usable] if has_rows(leaf, rows) else leaf, given)
        return inputs, keywords

    def _varies(self, given: tuple[Any, Any]) -> bool:
        """Whether examples differ in what is counted (tokens, categories), so that one can be changed into another."""
        rows = [v for v in leaves(given) if has_rows(v, self._rows)]
        return any(v.is_floating_point() for v in rows) or any(bool((v != v[:1]).any()) for v in rows)

    def _compare(self, given: tuple[Any, Any], rows: int) -> None:
        self._refuse_influence(given, rows, SEEDS)
        self._refuse_influence(given, self._rows, 1)  # some mix in larger batches alone
        some = self._cut(given, 0, rows)
        self._agree_with_a_loop(some, rows)
        if self._several:  # rows of one holder are added up in another way than those of many
            self._agree_with_a_loop(some, rows, Owners(torch.tensor([1, rows - 1] if rows > 2 else [rows])))
        if any(module.training for module in self.engine.model.modules()):
            for module in self.engine.model.modules():
                module.training = False
            self._agree_with_a_loop(some, rows)

    def _agree_with_a_loop(self, some: tuple[Any, Any], rows: int, owners: Owners | None = None) -> None:
        """Each example's gradient norms, or each owner's, against those of a naive loop."""
        random = self._draws(some)
        counts = [1] * rows if owners is None else owners.counts.tolist()
        self.engine.open(torch.ones(len(counts)), owners)
        torch.manual_seed(0)
        outputs = _floats(self.engine.model(*some[0], **some[1]), rows)
        if not outputs:
            self._skip("it puts out nothing with one row per example")
            return
        small = self._small(outputs)
        self._tolerance = _IN_HALVES if self.engine.is_coarse else TOLERANCE
        generator = torch.Generator().manual_seed(0)
        weights = [torch.randn(out.shape, generator=generator).to(out.dtype) for out in outputs]
        torch.autograd.backward(outputs, weights)
        ours, alone = self.engine.norms_by_parameter(), []
        for i, count in enumerate(counts):
            own = range(sum(counts[:i]), sum(counts[:i]) + count)
            theirs = self._added(some, own, weights, random)
            alone.append(theirs)
            name = self._disagrees(ours, theirs, i, small)
            changed = (self._added(some, own, [w * change for w in weights], random) for change in _CHANGES)
            if name is not None and any(_is_rounding(theirs, other) for other in changed):
                name = self._disagrees(ours, theirs, i, _SMALL)
            if name is not None:
                layer = name.rpartition(".")[0] or "the model"
                raise SartorError(
                    f"the self-check of the first step failed at {layer} ({name}): its per-example gradients are not those of a naive loop "
                    "over examples. Does it, or a layer after it, mix examples or keep them elsewhere than in the first dimension? "
                    "Nothing was released."
                )

        if owners is not None:
            self._agree_in_sums(some, rows, owners, alone, weights)

    def _agree_in_sums(
        self, some: tuple[Any, Any], rows: int, owners: Owners, alone: list[dict[str, Tensor]], weights: list[Tensor]
    ) -> None:
        """The clipped sum over owners, each clipped by another factor, against that of the naive loop: rows must get their owner's."""
        norms = torch.tensor([sum(float(value.square().sum()) for value in one.values()) ** 0.5 for one in alone])
        factors = torch.linspace(0.25, 0.75, len(alone))
        if not bool((torch.isfinite(norms) & (norms > _SMALL)).all()):
            return
        for parameter in self.engine.parameters.values():
            parameter.grad = None  # the naive loop's
        self.engine.open((norms * factors).float(), owners)
        torch.manual_seed(0)
        torch.autograd.backward(_floats(self.engine.model(*some[0], **some[1]), rows), weights)
        found = self.engine.clipped_sums()
        for name, value in found.items():
            expected = sum(factor * one[name] for factor, one in zip(factors.tolist(), alone, strict=True))
            if float((value.double() - expected).norm()) > 10 * self._tolerance * float(norms.sum()):
                raise SartorError(
                    f"the self-check of the first step failed at {name.rpartition('.')[0] or 'the model'} ({name}): the gradients of a "
                    "holder's records are not added up as those of a naive loop are. Nothing was released."
                )

    def _added(self, some: tuple[Any, Any], own: Sequence[int], weights: list[Tensor], random: bool) -> dict[str, Tensor]:
        """The gradients of one owner's examples, each alone, added up."""
        first, *others = (self._alone(some, i, weights, random) for i in own)
        return {name: value + sum(other[name] for other in others) for name, value in first.items()}

    def _alone(self, some: tuple[Any, Any], i: int, weights: list[Tensor], random: bool) -> dict[str, Tensor]:
        """The gradients of one example alone, by parameter, for what it puts out in these weights."""
        for parameter in self.engine.parameters.values():
            parameter.grad = None
        rows = len(weights[0])
        self.engine.close()  # plain autograd
        torch.manual_seed(0)
        # a model that draws random numbers meets the same ones only in a batch of the same size
        inputs, keywords = some if random else cut(some, i, i + 1, rows)
        alone = _floats(self.engine.model(*inputs, **keywords), rows if random else 1)
        torch.autograd.backward([out[i : i + 1] for out in alone] if random else alone, [w[i : i + 1] for w in weights])
        return {n: torch.zeros(()) if p.grad is None else p.grad.double() for n, p in self.engine.parameters.items()}

    @torch.no_grad()
    def _draws(self, some: tuple[Any, Any]) -> bool:
        """Whether the model puts out other numbers under other random numbers."""
        first, *others = ([out for _, out in self._outputs(some, seed)] for seed in range(SEEDS))
        return any(one.shape != two.shape or not _same(one, two) for other in others for one, two in zip(first, other, strict=False))

    def _cut(self, given: tuple[Any, Any], begin: int, end: int) -> tuple[Any, Any]:
        inputs, keywords = cut(given, begin, end, self._rows)
        return inputs, keywords

    @torch.no_grad()
    def _refuse_influence(self, given: tuple[Any, Any], rows: int, seeds: int) -> None:
        """Change an example, under the same random numbers: nobody else's output may move, in any layer. Several ways and many draws."""
        some = self._cut(given, 0, rows)
        fewer = self._outputs(self._cut(given, 0, rows - 1), 0)
        for seed in range(seeds):
            for place in range(min(rows, EXAMPLES)):
                for way in ("little", "much"):
                    draw = seed * 2 * rows + 2 * place + (way == "much")
                    before, after = self._outputs(some, draw), self._outputs(self._with_another(given, rows, place, way), draw)
                    self._refuse_difference(before, after, fewer, rows, place)

    def _with_another(self, given: tuple[Any, Any], rows: int, place: int, way: str) -> tuple[Any, Any]:
        """The first examples, one of them changed into somebody who differs: the first of those, or the last."""

        def changed(value: Any) -> Any:
            if not has_rows(value, self._rows):
                return value
            some = value[:rows].clone()
            others = (value != value[place]).reshape(len(value), -1).any(1).nonzero()
            some[place] = value[others[0 if way == "little" else -1, 0]] if len(others) else value[place]
            return some

        inputs, keywords = mapped(changed, given)
        return inputs, keywords

    def _outputs(self, given: tuple[Any, Any], seed: int) -> list[tuple[str, Tensor]]:
        """What every layer puts out under some random numbers."""
        found: list[tuple[str, Tensor]] = []

        def note(name: str, module: nn.Module, inputs: Any, output: Any) -> None:
            leaves, _ = tree_flatten(output)
            found.extend(
                (name, leaf.clone())
                for leaf in leaves
                if isinstance(leaf, Tensor) and leaf.is_floating_point() and leaf.layout == torch.strided
            )

        hooks = [module.register_forward_hook(partial(note, name)) for name, module in self.engine.model.named_modules()]
        try:
            torch.manual_seed(seed)
            self.engine.model(*given[0], **given[1])
        finally:
            for hook in hooks:
                hook.remove()
            self.kept.put_back()
        return found

    def _refuse_difference(
        self, before: list[tuple[str, Tensor]], after: list[tuple[str, Tensor]], fewer: list[tuple[str, Tensor]], rows: int, place: int
    ) -> None:
        """`fewer` is what one example less brings: it tells in which dimension a layer keeps the examples (some keep layers first)."""
        others = torch.tensor([i for i in range(rows) if i != place])
        seen: Counter[str] = Counter()
        calls = Counter(name for name, _ in before)
        for (name, one), (_, two) in zip(before, after, strict=False):
            same = [less for other, less in fewer if other == name]
            # the output of the same place, unless a layer is called once for each example
            where = _grown(one, [same[seen[name]]] if len(same) == calls[name] else same, rows)
            seen[name] += 1
            if one.shape != two.shape:
                continue
            if where is not None:
                one, two = one.index_select(where, others), two.index_select(where, others)
            elif name not in self._firsts or one.dim() <= self._firsts[name] or one.shape[self._firsts[name]] != 1:
                continue  # one row of a watched layer stands for all examples, so it must not follow any of them
            if not torch.allclose(one, two, rtol=TOLERANCE, atol=_rounding(one, two), equal_nan=True):
                raise SartorError(
                    f"the self-check of the first step failed: {name or 'the model'} mixes examples (changing one changed what it puts "
                    "out for the others), so no example's influence can be bounded. Nothing was released."
                )

    def _small(self, outputs: list[Tensor]) -> float:
        """A gradient that rounding alone may make: 1e-7, and less where the model works in small units.

        A gradient is as large as the outputs over the parameters, in whatever unit these are.
        """
        size = max(_size(out.detach()) for out in outputs)
        parameters = sum(float(value.detach().double().square().sum()) for value in self.engine.parameters.values()) ** 0.5
        return _SMALL * (min(1.0, size / parameters) if parameters > 0 and math.isfinite(parameters) else 1.0)

    def _disagrees(self, ours: dict[str, Tensor], gradients: dict[str, Tensor], i: int, small: float) -> str | None:
        """A parameter whose norms differ by more than they may."""
        theirs = {name: float(value.norm()) for name, value in gradients.items()}
        whole = sum(value**2 for value in theirs.values()) ** 0.5
        finite = all(math.isfinite(float(norms[i])) for norms in ours.values())
        for name, expected in theirs.items():
            found = float(ours[name][i]) if name in ours else 0.0
            # an example that is not finite contributes nothing; but then it is not finite in the batch either
            differs = abs(found - expected) > self._tolerance * (expected + 0.01 * whole) + small if math.isfinite(whole) else finite
            if differs or (math.isfinite(whole) and not math.isfinite(found)):
                return name
        return None

    def _skip(self, reason: str) -> None:
        warnings.warn(f"the first step was not checked against a naive loop: {reason}.", Unchecked, stacklevel=2)


def _size(value: Tensor) -> float:
    """The largest finite number in a tensor."""
    finite = value[torch.isfinite(value)]
    return float(finite.abs().max()) if finite.numel() else 0.0


def _rounding(one: Tensor, two: Tensor) -> float:
    """What rounding may change in outputs: 1e-5, and less where they are small, for a model may work in any unit."""
    return min(_LARGEST, _ROUNDINGS * torch.finfo(one.dtype).eps * max(_size(one), _size(two)))


def _is_rounding(one: dict[str, Tensor], two: dict[str, Tensor]) -> bool:
    """Whether a gradient is what is left of larger numbers that cancel: then the last digits of what is put in change all of it."""
    size = sum(float(value.square().sum()) for value in one.values())
    away = sum(float((value - two[name]).square().sum()) for name, value in one.items())
    return away > 1e-4 * size


def _grown(one: Tensor, fewer: Sequence[Tensor], rows: int) -> int | None:
    """The dimension in which an output has a row for each example: the one that one example less makes shorter, or else the first."""
    for less in fewer:
        for d in range(one.dim() if one.dim() == less.dim() else 0):
            if one.shape[d] == rows and less.shape[d] == rows - 1:
                return d
    if any(less.shape == one.shape for less in fewer):
        return None  # it does not follow the number of examples
    return 0 if one.dim() and len(one) == rows else None


def _floats(output: Any, rows: int) -> list[Tensor]:
    flat, _ = tree_flatten(output)
    return [leaf for leaf in flat if isinstance(leaf, Tensor) and leaf.requires_grad and leaf.dim() and len(leaf) == rows]
