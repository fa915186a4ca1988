"""What a federated run was asked for, as one value: how it is planned, whom it takes, and how the server steps.

It travels as JSON to the machine that the server is on, and says what must stay the same while the run lasts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from sartor.budgets import Budgets, Policy
from sartor.errors import SartorError
from sartor.federated.enrolment import Enrolled, Limits, Undeclared, enrol, refusal
from sartor.federated.plan import AdaptiveClip, FederatedPlan, plan
from sartor.federated.updates import Named
from sartor.numbers import from_json_number, to_json_number

if TYPE_CHECKING:
    from sartor.federated.server import ServerOptimizer


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
        from sartor.federated.server import ServerOptimizer

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
