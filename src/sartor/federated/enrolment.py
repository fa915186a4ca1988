"""Who takes part with which budget: what clients declared becomes keys and budgets, each under its own key.

A client declares a level of the server's policy, or numbers of its own. What a client without a (valid) declaration gets is the server's
choice: the strictest budget among the others, or nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from sartor.budgets import Budgets, Policy, is_public
from sartor.errors import SartorError

Undeclared = Literal["strictest", "refuse"]


@dataclass(frozen=True, repr=False)
class Enrolled:
    """Keys and budgets in the same order, and how many clients were refused."""

    keys: tuple[str, ...]
    budgets: Budgets
    refused: int


def enrol(
    declared: Mapping[str, Mapping[str, Any]],
    *,
    policy: Policy | None = None,
    delta: float | None = None,
    undeclared: Undeclared = "strictest",
    reserve: float = 0.0,
) -> Enrolled:
    """Budgets from what clients declared by key: `{"level": ...}` or `{"epsilon": ..., "delta": ...}`.

    `delta` is for clients that declare an epsilon alone.

    >>> found = enrol({"a": {"epsilon": 1.0}, "b": {"epsilon": 2.0}, "c": {}}, delta=1e-5)
    >>> dict(zip(found.keys, found.budgets.epsilon.tolist()))
    {'a': 1.0, 'b': 2.0, 'c': 1.0}
    """
    if undeclared not in ("strictest", "refuse"):
        raise SartorError(f'clients without a budget get the "strictest" or are refused ("refuse"), not "{undeclared}".')
    keys = sorted(declared)
    found = {key: budget_of(declared[key], policy, delta) for key in keys}
    known = [budget for budget in found.values() if budget is not None]
    if not known:
        raise SartorError("no client declared a budget that can be used, so there is no strictest one for the others either.")
    finite = [budget for budget in known if not is_public(budget[0])]
    default = None  # among public clients alone nobody has set a limit that could stand for another's
    if undeclared == "strictest" and finite:
        default = min(epsilon for epsilon, _ in finite), min(own for _, own in finite)
    taken = {key: budget if budget is not None else default for key, budget in found.items()}
    kept = [(key, budget) for key, budget in taken.items() if budget is not None]
    budgets = Budgets(
        [epsilon for _, (epsilon, _) in kept],
        delta=np.array([own for _, (_, own) in kept]),
        holders=[key for key, _ in kept],
        reserve=reserve,
    )
    return Enrolled(tuple(key for key, _ in kept), budgets, len(keys) - len(kept))


def budget_of(declared: Mapping[str, Any], policy: Policy | None, delta: float | None) -> tuple[float, float] | None:
    """The budget of one declaration; None where there is none that can be used."""
    if "level" in declared:
        return None if policy is None else policy.levels.get(str(declared["level"]))
    try:
        epsilon, own = float(declared["epsilon"]), float(declared.get("delta", np.nan if delta is None else delta))
    except (KeyError, TypeError, ValueError):
        return None
    return (epsilon, own) if epsilon > 0 and 0 < own < 1 else None
