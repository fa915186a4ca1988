"""The self-check of the first step: a few examples' gradient norms, parameter by parameter, against a naive loop.

It runs before the first noisy gradient leaves, on the batch at hand, and names the layer that disagrees: a layer that mixes examples, a
custom module that keeps the examples elsewhere than first, a rule that is wrong. It also finds buffers that the forward pass changed: they
would carry private data out beside the accounting. Random layers (dropout) are off while it looks.
"""

from __future__ import annotations

import warnings
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


class SelfCheck:
    """Watches the first batch, then compares."""

    def __init__(self, engine: PerExample) -> None:
        self.engine = engine
        self._given: tuple[Any, Any] | None = None
        self._rows = 0
        self._versions = {name: buffer._version for name, buffer in engine.model.named_buffers()}
        self._hook = engine.model.register_forward_pre_hook(self._note, with_kwargs=True)

    def begin(self, rows: int) -> None:
        """A batch of so many examples is about to be seen."""
        self._rows, self._given = rows, None
        self._versions = {name: buffer._version for name, buffer in self.engine.model.named_buffers()}

    def _note(self, module: nn.Module, inputs: Any, keywords: Any) -> None:
        if self.engine.is_open and torch.is_grad_enabled() and self._given is None:
            self._given = tree_map(lambda v: v.detach() if isinstance(v, Tensor) else v, (inputs, keywords))

    def before_sums(self) -> None:
        """Whether the forward pass changed a buffer."""
        for name, buffer in self.engine.model.named_buffers():
            if buffer._version != self._versions.get(name, buffer._version):
                raise SartorError(
                    f"the buffer {name} changed while private data went through the model: it would carry them out beside the accounting; "
                    "use a layer without running statistics."
                )

    def run(self) -> None:
        """Compare, and raise with the name of the layer that disagrees."""
        self._hook.remove()
        if self._given is None:
            self._skip("its submodules are called one by one, not the model")
            return
        given, rows = self._given, min(EXAMPLES, self._rows)
        self._given = None
        modes = [(module, module.training) for module in self.engine.model.modules()]
        kernels, self.engine.kernels.measure = self.engine.kernels.measure, False
        try:
            with torch.random.fork_rng(devices=[]), torch.enable_grad():
                for module, _ in modes:
                    module.training = False
                self._compare(given, rows)
        finally:
            self.engine.close()
            self.engine.kernels.measure = kernels
            for module, training in modes:
                module.training = training
            for parameter in self.engine.parameters.values():
                parameter.grad = None

    def _compare(self, given: tuple[Any, Any], rows: int) -> None:
        def some(begin: int, end: int) -> tuple[Any, Any]:
            cut = lambda v: v[begin:end] if isinstance(v, Tensor) and v.dim() and len(v) == self._rows else v  # noqa: E731
            inputs, keywords = tree_map(cut, given)
            return inputs, keywords

        inputs, keywords = some(0, rows)
        self.engine.open(torch.ones(rows))
        outputs = _floats(self.engine.model(*inputs, **keywords), rows)
        if not outputs:
            self._skip("it puts out nothing with one row per example")
            return
        generator = torch.Generator().manual_seed(0)
        weights = [torch.randn(out.shape, generator=generator) for out in outputs]
        torch.autograd.backward([out.float() for out in outputs], weights)
        ours = self.engine.norms_by_parameter()
        for i in range(rows):
            for parameter in self.engine.parameters.values():
                parameter.grad = None
            inputs, keywords = some(i, i + 1)
            alone = _floats(self.engine.model(*inputs, **keywords), 1)
            torch.autograd.backward([out.float() for out in alone], [w[i : i + 1] for w in weights])
            self._agree(ours, i)

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
