"""Who takes part with which budget: what clients declared becomes keys and budgets, each under its own key.

A client declares a level of the server's policy, numbers of its own, or both, of which the stricter holds. What a client that declares
nothing gets is the server's choice: the strictest budget among the others, or no part. One that declares what cannot be used takes no
part: any default could be more than it meant to allow.

Guarantee: a budget outside of the server's limits changes nothing for anybody else: not the plan, and not what others get who declare none.
Proof: each declaration is held against the limits by itself, before there is a plan; one that lies outside is left out of all that follows.
    So nobody learns of the others' budgets from being left out, and no number of clients can have another one left out.
Breaks if: the limits are so wide that budgets within them have no plan together; see `Limits`. A key is what tells clients apart: whoever
    declares another's leaves both out, since nobody knows whose it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from sartor.budgets import Budgets, Policy, is_public
from sartor.errors import SartorError
from sartor.names import alike

DECLARED_TWICE = (
    "the key of this client was declared more than once, and a key is one client's, so nobody takes part under it: give every node a key "
    "of its own, or stop all but one of them."
)
"""What every node is told that declares a key which another declares, too."""

Undeclared = Literal["strictest", "refuse"]
Budget = tuple[float, float]


@dataclass(frozen=True)
class Limits:
    """Budgets that a server takes: an epsilon from `floor` to `ceiling`, or infinite, which says public; and likewise a delta.

    One client at an epsilon of 0.001 is sampled too rarely to be planned, and one at 1e300 is beyond what can be computed; the plan would
    fail for everybody. Between the default limits every scheme has been seen to have a plan under the accountant "pld". With scheme
    "sample" and accountant "rdp" budgets must be closer together: raise the floor. Under "uniform" the strictest sets everybody's noise.

    >>> Limits().hold((1.0, 1e-5)), Limits().hold((1e300, 1e-5)), Limits(floor=2.0).hold((1.0, 1e-5))
    (True, False, False)
    """

    floor: float = 0.1
    ceiling: float = 100.0
    delta_floor: float = 1e-10
    delta_ceiling: float = 0.01

    def __post_init__(self) -> None:
        if not 0 < self.floor <= self.ceiling < np.inf:
            raise SartorError(
                f"accepted epsilons must range from a positive floor to a larger, finite ceiling, not from {self.floor:g} to "
                f"{self.ceiling:g}."
            )
        if not 0 < self.delta_floor <= self.delta_ceiling < 1:
            low, high = self.delta_floor, self.delta_ceiling
            raise SartorError(
                f"accepted deltas must range from a positive floor to a larger ceiling below 1, not from {low:g} to {high:g}."
            )

    def hold(self, budget: Budget) -> bool:
        """Whether a budget lies between the limits."""
        epsilon, delta = budget
        return (is_public(epsilon) or self.floor <= epsilon <= self.ceiling) and self.delta_floor <= delta <= self.delta_ceiling

    def __str__(self) -> str:
        return (
            f"an epsilon from {self.floor:g} to {self.ceiling:g}, or inf for public data, and a delta from {self.delta_floor:g} to "
            f"{self.delta_ceiling:g}"
        )


@dataclass(frozen=True, repr=False)
class Enrolled:
    """Keys and budgets in the same order; and by its key, why a client was refused: for that client alone."""

    keys: tuple[str, ...]
    budgets: Budgets
    refused: Mapping[str, str]


def enrol(
    declared: Mapping[str, Mapping[str, Any]],
    *,
    policy: Policy | None = None,
    delta: float | None = None,
    undeclared: Undeclared = "strictest",
    reserve: float = 0.0,
    limits: Limits | None = None,
) -> Enrolled:
    """Budgets from what clients declared by key: `{"level": ...}` or `{"epsilon": ..., "delta": ...}`.

    `delta` is for clients that declare an epsilon alone. Who lies outside of the `limits`, the usual ones unless given, takes no part, and
    neither do clients whose keys differ only in spaces, case or the way a number is written: both may be one.

    >>> found = enrol({"a": {"epsilon": 1.0}, "b": {"epsilon": 2.0}, "c": {}, "d": {"epsilon": 1e-3}}, delta=1e-5)
    >>> dict(zip(found.keys, found.budgets.epsilon.tolist()))
    {'a': 1.0, 'b': 2.0, 'c': 1.0}
    """
    if undeclared not in ("strictest", "refuse"):
        raise SartorError(f'clients without a budget get the "strictest" or are refused ("refuse"), not "{undeclared}".')
    limits = limits or Limits()
    twice = may_be_one(declared)
    keys = sorted(declared.keys() - twice)
    said = {key: budget_of(declared[key], policy, delta) for key in keys}
    found = {key: budget for key, budget in said.items() if budget is not None and limits.hold(budget)}
    if not found:
        raise SartorError("no client declared a usable budget, so there is no strictest one to use for the others.")
    finite = [budget for budget in found.values() if not is_public(budget[0])]
    if undeclared == "strictest" and finite:  # among public clients alone nobody has set a limit that could stand for another's
        default = min(epsilon for epsilon, _ in finite), min(own for _, own in finite)
        found.update({key: default for key in keys if not declares(declared[key])})
    kept = [key for key in keys if key in found]
    budgets = Budgets(
        [found[key][0] for key in kept],
        delta=np.array([found[key][1] for key in kept]),
        holders=kept,
        reserve=reserve,
    )
    refused = {key: refusal(declared[key], policy, delta, limits) for key in keys if key not in found}
    refused |= dict.fromkeys(sorted(twice), DECLARED_TWICE)
    return Enrolled(tuple(kept), budgets, {key: why for key, why in refused.items() if why is not None})


def may_be_one(keys: Iterable[str]) -> set[str]:
    """The keys that differ from another only in spaces, case or the way a number is written: budgets have one way to write a name.

    >>> sorted(may_be_one(["ward 7", "Ward  7", "ward 8"]))
    ['Ward  7', 'ward 7']
    """
    how = {key: alike(key) for key in keys}
    often = Counter(how.values())
    return {key for key, one in how.items() if often[one] > 1}


def refusal(declared: Mapping[str, Any], policy: Policy | None, delta: float | None, limits: Limits) -> str | None:
    """Why a client does not take part with what it declared, in words for itself; None where it does."""
    if not declares(declared):
        return "this client declared no budget, and the server gives none to it."
    budget = budget_of(declared, policy, delta)
    if budget is None:
        return "this client declared a budget that cannot be used: give a level of the server's policy, or an epsilon and a delta."
    return None if limits.hold(budget) else f"this client declared a budget that the server does not take: it takes {limits}."


def declares(declared: Mapping[str, Any]) -> bool:
    """Whether a client said anything about its budget."""
    return any(name in declared for name in ("level", "epsilon", "delta"))


def budget_of(declared: Mapping[str, Any], policy: Policy | None, delta: float | None) -> Budget | None:
    """The budget of one declaration, the strictest of all that it says; None where any of it cannot be used."""
    said: list[Budget] = []
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
