"""Adversaries of a filter, independent of the accountants: all decision trees over discrete outcomes, and policies over Gaussian steps.

What an adversary gets here is never more than the truth. Trees are enumerated one by one. Outputs of Gaussian steps are told to a policy
only by the cell that they lie in, which is a policy as well, and the masses of cells are exact; so there is no quadrature to allow for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from sartor.exposure import Filtered

Array: TypeAlias = NDArray[np.float64]
Places: TypeAlias = NDArray[np.int64]
Policy: TypeAlias = Callable[[Array, Places, int], Places]
"""From the losses so far, the units left and the number of the stretch, counted from 0: the place of the rung to take, or `REST`."""
REST = -1


# --- discrete outcomes ---


@dataclass(frozen=True)
class Discrete:
    """A rung with few outcomes: how likely each is with the holder and without, and what it costs."""

    present: tuple[float, ...]
    absent: tuple[float, ...]
    cost: int

    @property
    def exchanged(self) -> Discrete:
        """The other direction."""
        return Discrete(self.absent, self.present, self.cost)


def response(truth: float, cost: int) -> Discrete:
    """Randomised response that says the truth with this probability."""
    return Discrete((truth, 1 - truth), (1 - truth, truth), cost)


def count_trees(rungs: Sequence[Discrete], units: int) -> int:
    """How many decision trees there are."""
    count: list[int] = []
    for left in range(units + 1):
        count.append(1 + sum(count[left - rung.cost] ** len(rung.present) for rung in rungs if rung.cost <= left))
    return count[-1]


def trees(rungs: Sequence[Discrete], units: int) -> tuple[Array, Array]:
    """Every decision tree: to stop, or a rung that units pay for and any tree for each of its outcomes.

    Gives how likely the leaves of each are (trees, leaves) with the holder and without; where a tree has fewer leaves than others, zeros.
    """
    found: list[tuple[Array, Array]] = []
    for left in range(units + 1):
        kinds = [(np.ones((1, 1)), np.ones((1, 1)))]
        for rung in rungs:
            if rung.cost <= left:
                after = found[left - rung.cost]
                each = np.indices((len(after[0]),) * len(rung.present)).reshape(len(rung.present), -1)
                present, absent = (
                    np.concatenate([mass * own[chosen] for mass, chosen in zip(masses, each, strict=True)], axis=1)
                    for masses, own in zip((rung.present, rung.absent), after, strict=True)
                )
                kinds.append((present, absent))
        widest = max(present.shape[1] for present, _ in kinds)
        stacked = [np.concatenate([np.pad(kind[k], ((0, 0), (0, widest - kind[k].shape[1]))) for kind in kinds]) for k in range(2)]
        found.append((stacked[0], stacked[1]))
    return found[-1]


def of_trees(leaves: tuple[Array, Array], epsilon: float) -> Array:
    """The divergence of each tree at an epsilon of either sign."""
    present, absent = leaves
    return np.asarray(np.maximum(present - np.exp(epsilon) * absent, 0.0).sum(axis=1))


# --- Gaussian steps ---


def of_one_step(way: str, rate: float, noise: float, epsilon: Array) -> Array:
    """The divergence of one sampled Gaussian step, at epsilons of either sign, in closed form."""
    mu = 1 / noise
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        # the output at which the loss of removing is epsilon, or minus epsilon where the holder is added
        ratio = (np.exp(epsilon if way == "remove" else -epsilon) - (1 - rate)) / rate
        at = np.where(ratio > 0, np.log(np.maximum(ratio, 0.0)) / mu + mu / 2, -np.inf)
    if way == "remove":
        return np.asarray(rate * norm.sf(at - mu) + (1 - rate - np.exp(epsilon)) * norm.sf(at))
    return np.asarray(norm.cdf(at) - np.exp(epsilon) * ((1 - rate) * norm.cdf(at) + rate * norm.cdf(at - mu)))


def cells(rate: float, noise: float, count: int) -> tuple[Array, Array]:
    """A step's output by cells: the masses with the holder and without."""
    mu = 1 / noise
    edge = np.concatenate([[-np.inf], np.linspace(-6.0, 6.0 + mu, count - 1), [np.inf]])

    def mass(shift: float) -> Array:
        low, high = edge[:-1] - shift, edge[1:] - shift
        return np.asarray(np.where(low > 0, norm.sf(low) - norm.sf(high), norm.cdf(high) - norm.cdf(low)))

    return (1 - rate) * mass(0.0) + rate * mass(mu), mass(0.0)


def of_policy(exposure: Filtered, policy: Policy, stretches: int, epsilon: float, way: str, count: int = 200) -> float:
    """What a policy gets in so many stretches: the divergence between what is seen with the holder and without.

    All steps but the last are told by `count` cells, and the last is told exactly. The policy reads the logarithm of how much likelier the
    past is under the first of the two laws that are compared: with the holder, where they are removed.
    """
    sign = 1.0 if way == "remove" else -1.0
    present, absent, left = np.ones(1), np.ones(1), np.full(1, exposure.units)
    steps = {rung: cells(exposure.rate, exposure.noise_multiplier / rung, count) for rung in exposure.rungs}
    costs = np.append(exposure.costs, 0)  # to rest costs nothing
    for number in range(stretches):
        chosen = policy(sign * np.log(present / absent), left, number)
        if np.any(costs[chosen] > left):
            raise ValueError("a policy may take no rung that its units do not pay for.")
        ends = number == stretches - 1
        parts, total = [], 0.0
        for place in np.unique(chosen):
            rows = chosen == place
            p, q, rest = present[rows], absent[rows], left[rows] - costs[place]
            rung = exposure.rungs[place]
            told = 0 if place == REST else exposure.stretch - ends
            for _ in range(told):
                with_holder, without = steps[rung]
                p, q, rest = np.outer(p, with_holder).ravel(), np.outer(q, without).ravel(), np.repeat(rest, count)
            if ends:
                first, second = (p, q) if way == "remove" else (q, p)
                if place == REST:
                    total += float(np.maximum(first - np.exp(epsilon) * second, 0.0).sum())
                else:
                    noise = exposure.noise_multiplier / rung
                    total += float(first @ of_one_step(way, exposure.rate, noise, epsilon - np.log(first / second)))
            parts.append((p, q, rest))
        if ends:
            return total
        present, absent, left = (np.concatenate([part[k] for part in parts]) for k in range(3))
    raise ValueError("a policy needs a stretch at least.")
