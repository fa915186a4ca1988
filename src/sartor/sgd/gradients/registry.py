"""Which rule forms the per-example gradients of which module.

A rule is a function of one `Call` (what went into the module and the gradient of what came out, both with the examples first) that returns
one `Part` for each wanted parameter. One that is registered with `together=True` reads `call.each` and returns one gradient for so many
rows in a row, which are of one holder (`owners`); others give one for each row, formed, and the engine adds them up. A rule serves modules
of its class whose `forward` is that class's own: a subclass that computes something else must not be served by its parent's rule, and falls
to the general one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from sartor.sgd.gradients.kernels import Kernels
from sartor.sgd.gradients.parts import Part


@dataclass(eq=False)
class Call:
    """One call of a module: its inputs, and the gradient of its output. `form` asks for gradients that are formed, to be added
    up; `own` are the places, among all inputs, of those with one row per example; `each` is how many rows in a row are one holder's."""

    name: str
    module: nn.Module
    wanted: frozenset[str]
    inputs: tuple[Any, ...]
    keywords: Mapping[str, Any]
    gradient: Any
    kernels: Kernels
    form: bool = False
    own: frozenset[int] = frozenset()
    each: int = 1

    def named(self, what: str) -> str:
        """A name for something of this layer, which other numbers of rows per holder do not share."""
        return f"{self.name}.{what}" if self.each == 1 else f"{self.name}.{what} of {self.each}"

    @property
    def input(self) -> Tensor:
        """The only input of most layers."""
        given: Tensor = self.inputs[0] if self.inputs else next(iter(self.keywords.values()))
        return given


Rule = Callable[[Call], dict[str, Part]]

_rules: dict[type[nn.Module], Rule] = {}
_together: set[Rule] = set()


def rule(*kinds: type[nn.Module], together: bool = False) -> Callable[[Rule], Rule]:
    """Registers a function as the rule for some classes of modules; `together` says that it adds up rows of one holder itself."""

    def register(function: Rule) -> Rule:
        if together:
            _together.add(function)
        for kind in kinds:
            _rules[kind] = function
        return function

    return register


def adds_up(rule: Rule) -> bool:
    """Whether a rule adds up rows of one holder itself."""
    return rule in _together


def rule_for(module: nn.Module) -> Rule | None:
    """The rule that serves a module, or None where only the general one can."""
    for kind in type(module).__mro__:
        if kind in _rules:
            own = type(module).forward is kind.forward and "forward" not in module.__dict__
            return _rules[kind] if own else None
    return None
