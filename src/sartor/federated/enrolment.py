"""Who takes part with which budget: what clients declared becomes keys and budgets, each under its own key.

A client declares a level of the server's policy, numbers of its own, or both, of which the stricter holds. What a client that declares
nothing gets is the server's choice: the strictest budget among the others, or no part. One that declares what cannot be used takes no
part: any default could be more than it meant to allow.
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
    found = {key: budget_of(declared[key], policy, delta) for key in keys if declares(declared[key])}
    known = [budget for budget in found.values() if budget is not None]
    if not known:
        raise SartorError("no client declared a budget that can be used, so there is no strictest one for the others either.")
    finite = [budget for budget in known if not is_public(budget[0])]
    default = None  # among public clients alone nobody has set a limit that could stand for another's
    if undeclared == "strictest" and finite:
        default = min(epsilon for epsilon, _ in finite), min(own for _, own in finite)
    kept = [(key, budget) for key in keys if (budget := found.get(key, default)) is not None]
    budgets = Budgets(
        [epsilon for _, (epsilon, _) in kept],
        delta=np.array([own for _, (_, own) in kept]),
        holders=[key for key, _ in kept],
        reserve=reserve,
    )
    return Enrolled(tuple(key for key, _ in kept), budgets, len(keys) - len(kept))


def declares(declared: Mapping[str, Any]) -> bool:
    """Whether a client said anything about its budget."""
    return any(name in declared for name in ("level", "epsilon", "delta"))


def budget_of(declared: Mapping[str, Any], policy: Policy | None, delta: float | None) -> tuple[float, float] | None:
    """The budget of one declaration, the strictest of all that it says; None where any of it cannot be used."""
    said: list[tuple[float, float]] = []
    if "level" in declared:
        level = None if policy is None else policy.levels.get(str(declared["level"]))
        if level is None:
            return None
        said.append(level)
    usual = said[0][1] if said else np.nan if delta is None else delta
    try:
        if "epsilon" in declared:
            said.append((float(declared["epsilon"]), float(declared.get("delta", usual))))
        elif "delta" in declared and said:
            said.append((said[0][0], float(declared["delta"])))
    except (TypeError, ValueError, OverflowError):
        return None
    if not said or not all(epsilon > 0 and 0 < own < 1 for epsilon, own in said):
        return None
    return min(epsilon for epsilon, _ in said), min(own for _, own in said)
