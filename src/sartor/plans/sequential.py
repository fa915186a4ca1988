"""Sequential: one group after another, each alone until its budget is spent (IDP-SGD, baseline E.2).

All groups see the same noise and clip; each is drawn at the rate that fills the batch from its own members, for as many steps as its
budget allows, and the noise is chosen so that the steps add up to those asked for.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sartor.accounting import accountants, rdp
from sartor.accounting.solve import most_steps
from sartor.errors import Infeasible, SartorError
from sartor.plans.problem import Parameters, Problem, everyone, register


@register("sequential", options=("order",))
def sequential(problem: Problem, order: Literal["strictest-first", "open-first"] = "strictest-first") -> Parameters:
    """Each group alone, for its own number of steps; `order` says which end begins."""
    if order not in ("strictest-first", "open-first"):
        raise SartorError(f'order is "strictest-first" or "open-first", not "{order}".')
    rate = np.minimum(1.0, problem.batch / problem.weight)
    log_noise, steps = _noise(problem, rate)
    surplus = int(steps.sum()) - problem.steps
    while surplus > 0:  # fewer steps never cost more: take the surplus from the longest turns
        longest = int(np.argmax(steps))
        second = int(np.max(np.delete(steps, longest), initial=0))
        cut = min(surplus, max(1, int(steps[longest]) - second))
        steps[longest] -= cut
        surplus -= cut
    turn = np.argsort(problem.epsilon, kind="stable")
    if order == "open-first":
        turn = turn[::-1]
    last = np.empty(len(steps), np.int64)
    last[turn] = np.cumsum(steps[turn])
    return Parameters(rate, everyone(np.exp(log_noise), problem.epsilon), last - steps, last)


def _noise(problem: Problem, rate: NDArray[np.float64]) -> tuple[float, NDArray[np.int64]]:
    """The smallest noise, to a thousandth, at which the groups' steps add up to at least those asked for."""

    last: list[tuple[float, NDArray[np.int64]]] = []  # what the tight accountant said last: from there it is not far

    def steps_at(log_noise: float, accountant: str) -> NDArray[np.int64]:
        noise = everyone(np.exp(log_noise), rate)
        start = last[-1][1] * np.exp(np.clip(2 * (log_noise - last[-1][0]), -40.0, 40.0)) if last else None
        found = most_steps(problem.epsilon, problem.delta, rate, noise, accountant, start)
        if accountants.find(accountant).refines:
            last[:] = [(log_noise, found)]
        return np.minimum(found, problem.steps)

    def search(accountant: str, start: float, width: float) -> tuple[float, NDArray[np.int64]]:
        low, high = start, start
        while int(steps_at(high, accountant).sum()) < problem.steps:
            low, high = high, high + width
            width *= 2
            if high > 40:
                raise Infeasible("no noise lets these groups share the steps; ask for fewer steps.")
        while low == high or int(steps_at(low, accountant).sum()) >= problem.steps:
            high = min(high, low)
            low -= width
            width *= 2
            if low < -4:
                break
        while high - low > 1e-3:
            middle = (low + high) / 2
            if int(steps_at(middle, accountant).sum()) >= problem.steps:
                high = middle
            else:
                low = middle
        return high, steps_at(high, accountant)

    high, steps = search(rdp.NAME, 0.0, 1.0)
    if accountants.find(problem.accountant).refines:
        high, steps = search(problem.accountant, high, 0.05)
    return high, steps
