"""The plan of a federated run: who is drawn how often, how far an update is clipped, and how the noise is shared out.

A client is a holder, a round is a step, and what a client contributes to a round is its whole update. The parameters are those of
`sartor.plan`; this module adds what a round releases besides the sum of updates: with adaptive clipping, a noisy count.

Guarantee: for each client, (epsilon, delta)-DP at its own budget under zeroing everything that it contributes, for all models and clips
    that the run ever shows, together.
Proof: in a round a drawn client of group g adds to a sum of vectors one of norm at most s C, where C is the clip in force and s the group's
    share of it, and to a count s times a half or minus a half. The vectors get noise of deviation z' C, the count noise of deviation b:
    one Gaussian mechanism whose squared sensitivity, in deviations, is (s C / z' C)^2 + (s / 2 b)^2 = s^2 (1 / z'^2 + 1 / (2 b)^2).
    With 1 / z'^2 = 1 / z^2 - 1 / (2 b)^2 that is (s / z)^2: what the plan accounts for, at the noise multiplier z / s of the group,
    whatever C is. C follows from earlier noisy counts, so a later round may use it (Andrew et al. 2021, theorem 1, for one s).
Breaks if: the count is released without its noise or without the factor s; clients are not drawn by independent coins at their own rates;
    a sum is divided by how many were drawn or answered; z and z' are mistaken for each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sartor.budgets import Budgets
from sartor.errors import Infeasible, SartorError
from sartor.plans import Plan
from sartor.plans import plan as plan_steps
from sartor.plans.build import OF_ROUNDS

Array = NDArray[np.float64]

_BITS_PER_CLIENT = 1 / 20  # of noise on the count, for each client that a round expects (Andrew et al. 2021, section 3.1)
_NUDGE = 1e-12  # by which applied noise is rounded up


@dataclass(frozen=True)
class AdaptiveClip:
    """The clip follows a quantile of the norms of updates, by noisy counts of how many were shorter.

    `lr` is the step of its geometric walk: the clip is multiplied by exp(-lr (share of shorter ones - quantile)). `noise` is the
    deviation of the noise on a count; by default a twentieth of the clients that a round expects.
    """

    quantile: float = 0.5
    lr: float = 0.2
    noise: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.quantile <= 1:
            raise SartorError(f"the quantile of an adaptive clip must lie between 0 and 1, not be {self.quantile}.")
        if not 0 < self.lr < np.inf:
            raise SartorError(f"the step of an adaptive clip must be positive and finite, not {self.lr}.")
        if self.noise is not None and not 0 < self.noise < np.inf:
            raise SartorError(f"the noise on the count must be positive and finite, not {self.noise}.")


@dataclass(frozen=True, eq=False, repr=False)
class FederatedPlan:
    """A plan over clients, and how a round's noise is shared between updates and count.

    `accounted` is the plan by which everyone is charged: its steps are rounds, its batch the expected number of clients, its clip the first
    one. Made by `sartor.federated.plan`.
    """

    accounted: Plan
    adaptive: AdaptiveClip | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.accounted, Plan):
            raise SartorError("rounds are charged by a sartor.Plan: make one with sartor.federated.plan(budgets, ...).")
        if self.accounted.filter is not None:
            raise SartorError("a filter follows norms that no server sees: federated plans have none.")
        _ = self.accounted.noise  # refused where it differs from stage to stage: a round has the noise of the plan
        if np.any(self.accounted.parts.inclusion < 1):
            raise SartorError("a coin of inclusion is tossed once in a run, and a server that starts again has new coins: use rates alone.")
        taking_turns = (self.accounted.rate > 0) & (self.accounted.last - self.accounted.first != self.rounds)
        if self.adaptive is not None and (len(self.accounted.stages) > 1 or np.any(taking_turns)):
            raise SartorError("an adaptive clip needs everyone in every round: a scheme in which groups take turns has a fixed one.")
        if self.adaptive is None or not self.accounted.noise_multiplier:
            return
        multiplier, most = self.accounted.noise_multiplier, 2 * self.count_noise
        if multiplier >= most:
            raise Infeasible(
                f"noise of {self.count_noise:g} on the count alone costs more than a round may: it must be above {multiplier / 2:.4g}, "
                "half the noise multiplier; give the count more noise, expect more clients in a round, or keep the clip fixed."
            )
        joint = 1 / np.sqrt((self.shares / self.update_noise_multiplier) ** 2 + (self.shares / most) ** 2)
        if np.any((joint < self.accounted.noise_multipliers) & (self.accounted.rate > 0)):
            raise Infeasible("updates and count together would cost a group more than its plan allows.")

    @property
    def rounds(self) -> int:
        """Rounds that are planned."""
        return self.accounted.steps

    @property
    def per_round(self) -> float:
        """Clients that a round expects: what sums are divided by."""
        return self.accounted.batch

    @property
    def shares(self) -> Array:
        """Of each group: its clip as a share of the clip in force; the same under every clip."""
        return np.asarray(self.accounted.clips / self.accounted.clip)

    @property
    def count_noise(self) -> float:
        """Deviation of the noise on the count of short updates; 0 where nothing is counted or nobody asks for privacy."""
        if self.adaptive is None or not self.accounted.noise_multiplier:
            return 0.0
        return _BITS_PER_CLIENT * self.per_round if self.adaptive.noise is None else self.adaptive.noise

    @property
    def update_noise_multiplier(self) -> float:
        """Applied noise: deviation over the clip in force. With a count beside it, more than the accounted one."""
        multiplier = self.accounted.noise_multiplier
        if not self.count_noise:
            return multiplier
        return (1 + _NUDGE) / sqrt(multiplier**-2 - (2 * self.count_noise) ** -2)

    @property
    def expected_share(self) -> float:
        """What the shares of the clients in a round are expected to add up to."""
        return float(np.sum(self.shares * self.accounted.rate * self.accounted.holders))

    def record(self) -> dict[str, Any]:
        """What is stored of this plan; see `Plan.record`."""
        return self._with_clip(self.accounted.record())

    def to_json(self, *, sensitive: bool = False) -> dict[str, Any]:
        """This plan as a JSON document; see `Plan.to_json`."""
        return self._with_clip(self.accounted.to_json(sensitive=sensitive))

    def _with_clip(self, document: dict[str, Any]) -> dict[str, Any]:
        if self.adaptive is not None:
            document["adaptive_clip"] = {
                "quantile": self.adaptive.quantile,
                "lr": self.adaptive.lr,
                "noise": self.adaptive.noise,
                "update_noise_multiplier": self.update_noise_multiplier,
            }
        return document

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> FederatedPlan:
        """The plan in a JSON document; what it promises is computed and checked again."""
        accounted, found = Plan.from_json(document), document.get("adaptive_clip")
        if found is None:
            return cls(accounted)
        try:
            return cls(accounted, AdaptiveClip(found["quantile"], found["lr"], found["noise"]))
        except (KeyError, TypeError):
            raise SartorError("this is not a plan: its adaptive clip is malformed.") from None

    def __repr__(self) -> str:
        return f"FederatedPlan({self.accounted.scheme}, {self.rounds} rounds of {self.per_round:g} clients expected)"

    def __str__(self) -> str:
        return str(self.accounted)


def plan(
    budgets: Budgets,
    scheme: str = "sample",
    *,
    rounds: int,
    per_round: float,
    clip: float = 1.0,
    accountant: str = "pld",
    adaptive: AdaptiveClip | None = None,
    **options: Any,
) -> FederatedPlan:
    """Turn the budgets of clients into a plan of rounds that honours every one of them.

    `per_round` is the expected number of clients in a round. Schemes and their options, `public_rate` and `public_clip` for public clients
    among them, are those of `sartor.plan`.

    Example:
        >>> import sartor
        >>> from sartor import federated
        >>> budgets = sartor.Budgets.from_shares([1, 2, 3], [0.34, 0.43, 0.23], holders=1_000, delta=1e-4, seed=1)
        >>> plan = federated.plan(budgets, "sample", rounds=100, per_round=30, adaptive=federated.AdaptiveClip())
        >>> plan.update_noise_multiplier > plan.accounted.noise_multiplier
        True
    """
    if scheme in OF_ROUNDS:
        raise SartorError(
            f'scheme "{scheme}" decides by coins that are tossed once who is in a round, and a server that starts again has new ones: '
            "use sample, scale or hybrid."
        )
    return FederatedPlan(plan_steps(budgets, scheme, steps=rounds, batch=per_round, clip=clip, accountant=accountant, **options), adaptive)
