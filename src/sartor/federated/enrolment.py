"""Who takes part with which budget: what clients declared becomes keys and budgets, each under its own key.

A client declares a level of the server's policy, numbers of its own, or both, of which the stricter holds. What a client that declares
nothing gets is the server's choice: the strictest budget among the others, or no part. One that declares what cannot be used takes no
part: any default could be more than it meant to allow.

Guarantee: a budget outside of the server's limits changes nothing for anybody else: not the plan, and not what others get who declare none.
Proof: each declaration is held against the limits by itself, before there is a plan; one that lies outside is left out of all that follows.
    So nobody learns of the others' budgets from being left out, and no number of clients can have another one left out.
Breaks if: the limits are so wide that budgets within them have no plan together; see `Limits`. A key is what tells clients apart: whoever
    declares another's leaves both out, since nobody knows whose it is.

What a federated run was asked for is one value: how it is planned, whom it takes, and how the server steps. It travels as JSON to the
machine that the server is on, and says what must stay the same while the run lasts.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from sartor.budgets import Budgets, Policy, is_public
from sartor.errors import SartorError
from sartor.federated.plan import AdaptiveClip, FederatedPlan, plan
from sartor.federated.updates import Named
from sartor.names import alike
from sartor.numbers import from_json_number, to_json_number

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


if TYPE_CHECKING:
    from sartor.federated.rounds import ServerOptimizer


@dataclass(frozen=True, kw_only=True)
class StrategySettings:
    """The settings of a private strategy.

    `rounds`, `per_round` (the expected number of clients), `scheme`, `clip`, `accountant`, `adaptive` and `options` (the scheme's own, and
    `public_rate` and `public_clip`) make the plan, over the clients that have answered when there are `min_clients` of them; fewer within
    `wait` seconds are an error.

    `policy` gives the levels that clients choose from, `delta` stands for those who declare an epsilon alone, `undeclared` says what a
    client gets that declares nothing, and `reserve` is kept of every budget for later releases. Who declares a budget outside of the
    `limits` takes no part, and is told so. `optimizer`, `lr` and `momentum` are the server's. `task` is whatever else must stay the same
    while the run lasts, such as how rows are dealt out. `seed` is for tests: a seeded run is not private.

    >>> settings = StrategySettings(rounds=100, per_round=30, options={"public_rate": 0.5})
    >>> StrategySettings.from_json(settings.to_json()) == settings
    True
    """

    rounds: int
    per_round: float
    scheme: str = "sample"
    clip: float = 1.0
    accountant: str = "pld"
    adaptive: AdaptiveClip | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    policy: Policy | None = None
    delta: float | None = None
    undeclared: Undeclared = "strictest"
    reserve: float = 0.0
    limits: Limits = field(default_factory=Limits)
    min_clients: int = 1
    wait: float = 60.0
    optimizer: str = "sgd"
    lr: float = 1.0
    momentum: float = 0.0
    task: Mapping[str, Any] = field(default_factory=dict, repr=False)
    seed: int | None = None

    def __post_init__(self) -> None:
        own = {field.name for field in fields(self)} & self.options.keys()
        if own:
            raise SartorError(f"{', '.join(sorted(own))} is a setting of its own, and no option of a scheme.")
        levels = self.policy.levels.values() if self.policy is not None else ()
        if not all(map(self.limits.hold, levels)) or (self.delta is not None and not self.limits.hold((np.inf, self.delta))):
            raise SartorError(f"the policy or the default delta is outside the server's limits ({self.limits}); change one of them.")

    def enrol(self, declared: Mapping[str, Mapping[str, Any]]) -> Enrolled:
        """Whom the server takes of those who declared something, by key."""
        how: dict[str, Any] = {"policy": self.policy, "delta": self.delta, "undeclared": self.undeclared, "reserve": self.reserve}
        return enrol(declared, **how, limits=self.limits)

    def refusal(self, declared: Mapping[str, Any]) -> str | None:
        """Why a client does not take part with what it declared, whatever the others declare; None where it does."""
        return refusal(declared, self.policy, self.delta, self.limits)

    def plan(self, budgets: Budgets) -> FederatedPlan:
        """The plan over clients with these budgets."""
        how: dict[str, Any] = {"clip": self.clip, "accountant": self.accountant, "adaptive": self.adaptive, **self.options}
        return plan(budgets, self.scheme, rounds=self.rounds, per_round=self.per_round, **how)

    def server(self, model: Named) -> ServerOptimizer:
        """The optimizer that steps a model by the rounds' means."""
        from sartor.federated.rounds import ServerOptimizer

        return ServerOptimizer(model, self.optimizer, lr=self.lr, momentum=self.momentum)

    def lasting(self, model: Named) -> dict[str, Any]:
        """What must stay the same while a run of this model lasts, as JSON has it; how long a server waits is its own business."""
        found: dict[str, Any] = {name: getattr(self, name) for name in ("rounds", "per_round", "scheme", "clip", "accountant")}
        found["adaptive"] = None if self.adaptive is None else asdict(self.adaptive)
        found.update(self.options)
        levels = {} if self.policy is None else self.policy.levels
        found["policy"] = None if self.policy is None else {name: [repr(value) for value in level] for name, level in levels.items()}
        found.update(delta=self.delta, undeclared=self.undeclared, reserve=self.reserve)
        found.update({"server's name": self.optimizer, "server's lr": self.lr, "server's momentum": self.momentum})
        found.update({f"task's {name}": value for name, value in self.task.items()})
        found["limits"] = asdict(self.limits)
        found["arrays"] = {name: [list(array.shape), array.dtype.str] for name, array in model.items()}
        plain: dict[str, Any] = json.loads(json.dumps(found, default=repr))
        return plain

    def to_json(self) -> dict[str, Any]:
        """These settings as plain values."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        found["adaptive"] = None if self.adaptive is None else asdict(self.adaptive)
        found["limits"] = asdict(self.limits)
        if self.policy is not None:
            found["policy"] = {name: [to_json_number(value) for value in level] for name, level in self.policy.levels.items()}
        return {**found, "options": dict(self.options), "task": dict(self.task)}

    @classmethod
    def from_json(cls, document: Any) -> StrategySettings:
        """The settings in a JSON document that has all of them: a default would plan another run."""
        try:
            found = {field.name: document[field.name] for field in fields(cls)}
            found["adaptive"] = None if found["adaptive"] is None else AdaptiveClip(**found["adaptive"])
            found["limits"] = Limits(**found["limits"])
            if found["policy"] is not None:
                pairs = {name: [from_json_number(value) for value in level] for name, level in found["policy"].items()}
                found["policy"] = Policy({name: {"epsilon": epsilon, "delta": own} for name, (epsilon, own) in pairs.items()})
            return cls(**{**found, "options": dict(found["options"]), "task": dict(found["task"])})
        except (KeyError, TypeError, AttributeError, ValueError):
            raise SartorError("these are not the settings of a strategy: some are missing, or of another type.") from None
