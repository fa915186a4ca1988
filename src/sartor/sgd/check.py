"""The self-check of a run: a few examples' gradients against a naive loop, and what must not carry private data beside the accounting.

Before the first noisy gradient leaves, on the first batch of two or more: (1) no example's output may depend on another's, with the model
as it trains; (2) each parameter's per-example gradient norms must be those of a naive loop, random layers off. The layer that disagrees
is named, and the check stays armed until it has passed. At every step: no buffer may change in the forward pass.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map

from sartor.errors import SartorError, SartorWarning
from sartor.sgd.gradients import PerExample

EXAMPLES = 3
TOLERANCE = 1e-3


class Unchecked(SartorWarning):
    """A model whose first step could not be compared with a naive loop."""


class Buffers:
    """The model's buffers as they were when a batch was opened."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._kept: dict[str, tuple[Tensor, Tensor]] = {}

    def keep(self) -> None:
        """Remember them."""
        self._kept = {name: (buffer, buffer.detach().clone()) for name, buffer in self._model.named_buffers()}

    def refuse_changes(self) -> None:
        """Whether the forward pass changed one; if so it is put back as it was."""
        now = dict(self._model.named_buffers())
        changed = [n for n, (buffer, copy) in self._kept.items() if now.get(n) is not buffer or not torch.equal(buffer, copy)]
        changed += [name for name in now if name not in self._kept]
        if changed:
            self.put_back()
            raise SartorError(
                f"the buffer {changed[0]} changed while private data went through the model: it would carry them out beside the "
                "accounting; use a layer without running statistics."
            )

    def put_back(self) -> None:
        """As they were."""
        for name, (buffer, copy) in self._kept.items():
            buffer.data.copy_(copy)
            owner, _, short = name.rpartition(".")
            self._model.get_submodule(owner)._buffers[short] = buffer
        for name in [n for n, _ in self._model.named_buffers() if n not in self._kept]:
            owner, _, short = name.rpartition(".")
            del self._model.get_submodule(owner)._buffers[short]


class SelfCheck:
    """Notes what the model is given in a batch, then compares."""

    def __init__(self, engine: PerExample, buffers: Buffers) -> None:
        self.engine, self.buffers = engine, buffers
        self._given: tuple[Any, Any] | None = None
        self._rows = 0
        self._hook = engine.model.register_forward_pre_hook(self._note, with_kwargs=True)

    def begin(self, rows: int) -> None:
        """A batch of so many examples is about to be seen."""
        self._rows, self._given = rows, None

    def _note(self, module: nn.Module, inputs: Any, keywords: Any) -> None:
        if module is self.engine.model and self.engine.is_open and torch.is_grad_enabled() and self._given is None:
            self._given = tree_map(lambda v: v.detach() if isinstance(v, Tensor) else v, (inputs, keywords))

    def detach(self) -> None:
        """Take its hook off the model."""
        self._hook.remove()

    def passed(self) -> bool:
        """Compare, and raise with the name of the layer that disagrees; False where the batch is too small to tell."""
        if self._rows < 2:
            return False
        if self._given is None:
            self._skip("its submodules are called one by one, not the model")
        else:
            given, self._given = self._given, None
            with self._aside():
                self._compare(given, min(EXAMPLES, self._rows))
        self.detach()
        return True

    @contextmanager
    def _aside(self) -> Iterator[None]:
        """Whatever happens inside leaves no trace: modes, random numbers, gradients and buffers are put back."""
        modes = [(module, module.training) for module in self.engine.model.modules()]
        measure, self.engine.kernels.measure = self.engine.kernels.measure, False
        try:
            with torch.random.fork_rng(devices=[]), torch.enable_grad():
                yield
        finally:
            self.engine.close()
            self.engine.kernels.measure = measure
            self.buffers.put_back()
            for module, training in modes:
                module.training = training
            for parameter in self.engine.parameters.values():
                parameter.grad = None

    def _compare(self, given: tuple[Any, Any], rows: int) -> None:
        some = self._cut(given, 0, rows)
        self._refuse_influence(some, rows)
        for module in self.engine.model.modules():
            module.training = False
        self.engine.open(torch.ones(rows))
        outputs = _floats(self.engine.model(*some[0], **some[1]), rows)
        if not outputs:
            self._skip("it puts out nothing with one row per example")
            return
        generator = torch.Generator().manual_seed(0)
        weights = [torch.randn(out.shape, generator=generator).to(out.dtype) for out in outputs]
        torch.autograd.backward(outputs, weights)
        ours = self.engine.norms_by_parameter()
        for i in range(rows):
            for parameter in self.engine.parameters.values():
                parameter.grad = None
            inputs, keywords = self._cut(given, i, i + 1)
            alone = _floats(self.engine.model(*inputs, **keywords), 1)
            torch.autograd.backward(alone, [w[i : i + 1] for w in weights])
            self._agree(ours, i)

    def _cut(self, given: tuple[Any, Any], begin: int, end: int) -> tuple[Any, Any]:
        def rows(value: Any) -> Any:
            return value[begin:end] if isinstance(value, Tensor) and value.dim() and len(value) == self._rows else value

        inputs, keywords = tree_map(rows, given)
        return inputs, keywords

    @torch.no_grad()
    def _refuse_influence(self, given: tuple[Any, Any], rows: int) -> None:
        """Change the first example, under the same random numbers: nobody else's output may move, in any layer."""

        def changed(value: Any) -> Any:
            if not isinstance(value, Tensor) or not value.dim() or len(value) != rows:
                return value
            other = value.clone()
            other[0] = 0.3 - 0.5 * value[0] if value.is_floating_point() else value[1]
            return other

        seen: list[list[tuple[str, Tensor]]] = []
        for inputs, keywords in (given, tree_map(changed, given)):
            found: list[tuple[str, Tensor]] = []
            hooks = [
                module.register_forward_hook(
                    lambda module, _, out, name=name, into=found: into.extend(
                        (name, leaf.detach().clone())
                        for leaf in tree_flatten(out)[0]
                        if isinstance(leaf, Tensor) and leaf.is_floating_point()
                    )
                )
                for name, module in self.engine.model.named_modules()
            ]
            try:
                torch.manual_seed(0)
                self.engine.model(*inputs, **keywords)
            finally:
                for hook in hooks:
                    hook.remove()
            seen.append(found)
        for (name, before), (_, after) in zip(*seen, strict=False):
            if before.shape != after.shape or not before.dim() or len(before) != rows:
                continue
            if not torch.allclose(before[1:], after[1:], rtol=TOLERANCE, atol=1e-5, equal_nan=True):
                raise SartorError(
                    f"the self-check of the first step failed: {name or 'the model'} mixes examples (changing one changed what it puts "
                    "out for the others), so no example's influence can be bounded. Nothing was released."
                )

    def _agree(self, ours: dict[str, Tensor], i: int) -> None:
        theirs = {n: 0.0 if p.grad is None else float(p.grad.double().norm()) for n, p in self.engine.parameters.items()}
        whole = sum(value**2 for value in theirs.values()) ** 0.5
        for name, expected in theirs.items():
            found = float(ours[name][i]) if name in ours else 0.0
            if not abs(found - expected) <= TOLERANCE * (expected + 0.01 * whole) + 1e-7 and whole < float("inf"):
                layer = name.rpartition(".")[0] or "the model"
                raise SartorError(
                    f"the self-check of the first step failed at {layer} ({name}): its per-example gradients are not those of a naive loop "
                    "over examples. Does it, or a layer after it, mix examples or keep them elsewhere than in the first dimension? "
                    "Nothing was released."
                )

    def _skip(self, reason: str) -> None:
        warnings.warn(f"the first step was not checked against a naive loop: {reason}.", Unchecked, stacklevel=2)


def _floats(output: Any, rows: int) -> list[Tensor]:
    leaves, _ = tree_flatten(output)
    return [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.requires_grad and leaf.dim() and len(leaf) == rows]
