"""What an ensemble has spent by the data-dependent bound, released with noise: the figure follows the private votes, so it costs as well.

For the standard variant and plain GNMax alone, where the smooth sensitivity of that bound is proven (`smooth`), and for votings that
stopped by the noise alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sartor.accounting import rdp
from sartor.errors import Infeasible, SartorError
from sartor.pate import smooth
from sartor.pate.account import Accountant, PateAccount
from sartor.pate.plan import GNMax, PatePlan
from sartor.run.stream import Stream


@dataclass(frozen=True)
class Published:
    """A released upper figure of what the labels cost by the data-dependent bound: a divergence at an order, and what follows.

    The release itself cost the reserve. A seeded one is not private.
    """

    order: float
    divergence: float
    spent: float
    failure: float
    private: bool = True


def check(plan: PatePlan, accounts: Sequence[PateAccount]) -> None:
    """Whether the spend of these votings can be released at all."""
    if plan.variant != "standard" or type(plan.aggregator) is not GNMax:
        raise SartorError(
            "the data-dependent spend can be released for the standard variant and plain GNMax alone: for others no smooth "
            "sensitivity is proven; publish the spend by the data-independent bound."
        )
    if any(account.bound == "dependent" for account in accounts):
        raise SartorError("a voting that stopped by the votes has told more than noise on its spend could take back.")
    if not sum(account.queries for account in accounts):
        raise SartorError("nothing was made of these votes, so nothing was spent.")
    if not plan.reserve:
        raise Infeasible("a release of the spend is paid from a reserve: make the budgets with one (reserve=).")


def published(
    plan: PatePlan,
    votes: NDArray[Any],
    classes: int,
    accounts: Sequence[PateAccount],
    *,
    order: float | None,
    distance: float | None,
    margin_scale: float | None,
    failure: float,
    stream: Stream | None,
    ahead: Callable[[], None],
) -> Published:
    """The figure, for the whole of the reserve; `order`, `distance` and `margin_scale` are chosen from public facts (`smooth`).

    `ahead` charges, before anything is drawn.
    """
    check(plan, accounts)
    epsilon, delta = float(plan.epsilon.min()), float(plan.delta.min())
    own = (plan.reserve * epsilon, plan.reserve * delta)
    main = float(plan.spendable[1].min())
    rows = np.concatenate([np.arange(account.queries) for account in accounts])
    counts = np.stack([np.sum(votes[rows] == label, axis=1) for label in range(classes)], axis=1)
    cost = 2 * len(rows) / plan.aggregator.noise**2
    if order is None:  # the best one if the votes were a quarter of what they are at worst
        order = 1 + float(plan.view.coarse(np.sqrt(8 * np.log(1 / main) / cost)))
    if margin_scale is None:
        margin_scale = 4 * float(np.sqrt(2 * np.log(1 / own[1]))) / own[0]
    try:
        chosen = smooth.calibrate(*own, plan.teachers / 4 if distance is None else distance, margin_scale)
    except Infeasible:  # its message shows a budget
        raise Infeasible("the reserve is too small for a release with this margin_scale: raise one of them.") from None
    source = Stream() if stream is None else stream
    source.take()
    ahead()
    noise = source.generator("pate bound", 0)
    found = smooth.release(
        counts, plan.aggregator.noise, order, chosen.beta, chosen.scale, noise, margin_scale=margin_scale, failure=failure
    )
    spent = float(rdp.to_epsilon([found.upper], [order], main))
    upper = plan.view.above(min(spent, float(Accountant().epsilon(cost, main))))  # the strictest may be few
    return Published(order, found.upper, upper, failure, not source.seeded)
