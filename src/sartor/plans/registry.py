"""The schemes by name. A scheme turns a `Problem` into `Parameters`, or a schedule of rounds; the plan is built and checked around it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from sartor.errors import SartorError
from sartor.plans.problem import Parameters, Scheduled

Solver = Callable[..., Parameters | Scheduled]
_S = TypeVar("_S", bound=Solver)


@dataclass(frozen=True)
class Scheme:
    """A way of turning budgets into parameters, and the options that it takes."""

    name: str
    solve: Solver
    options: tuple[str, ...]


_SCHEMES: dict[str, Scheme] = {}


def register(name: str, *, options: tuple[str, ...] = ()) -> Callable[[_S], _S]:
    """Make a scheme known under a name."""

    def keep(solve: _S) -> _S:
        _SCHEMES[name] = Scheme(name, solve, options)
        return solve

    return keep


def schemes() -> tuple[str, ...]:
    """The names of all schemes."""
    return tuple(sorted(_SCHEMES))


def find(name: str) -> Scheme:
    """The scheme of this name."""
    if name not in _SCHEMES:
        raise SartorError(f'there is no scheme "{name}"; there are {", ".join(schemes())}.')
    return _SCHEMES[name]
