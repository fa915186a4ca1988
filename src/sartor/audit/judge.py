"""What is on a tape beside what the plan says: draws, clips, charges, noise, units, and what one holder moved.

Everything is compared by the plan and each holder's own budget, not by what the run says of itself.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom, chi2

from sartor.audit.record import Key, Playback, Tape, flat
from sartor.plans import Plan
from sartor.run.witness import Array, Bare
from sartor.sgd.gradients import MARGIN

_ROUNDING = 1e-5  # of the clips of all who were drawn: float32 sums in another order
_UNLIKELY = 1e-9  # what chance may do in one of the tests of coins and noise
_DEVIATIONS = 6.5  # the same, of a normal variable
_FEWEST = 30  # numbers by which noise is judged


class Judge:
    """Compares what is on a tape with a plan, by each holder's own budget."""

    def __init__(self, tape: Tape, plan: Plan, group: NDArray[np.intp]) -> None:
        self.tape, self.plan, self.group = tape, plan, group

    def some(self, count: int, seed: int) -> list[int]:
        """Holders of all groups in turn, those who were drawn most often first; who never was, at last."""
        drawn = np.bincount(np.concatenate([np.zeros(0, np.int64), *(draw.indices for draw in self.tape.draws.values())]))
        drawn = np.pad(drawn, (0, len(self.group) - len(drawn)))
        mixed = np.random.default_rng(seed).permutation(len(self.group))
        order = mixed[np.argsort(-drawn[mixed], kind="stable")]
        queues = [order[self.group[order] == group].tolist() for group in range(len(self.plan))]
        ranks = [queue[place] for place in range(count) for queue in queues if place < len(queue)]
        return sorted(ranks, key=lambda holder: drawn[holder] == 0)[:count]

    def clips_at(self, step: int, holders: NDArray[np.integer]) -> Array:
        """The clips that the plan has for holders at a step; 0 for groups without a part in it."""
        parts, by_group = self.plan.parts, np.zeros(len(self.plan))
        here = (parts.first <= step) & (step < parts.last)
        by_group[parts.group[here]] = parts.clip[here]
        return np.asarray(by_group[self.group[holders]])

    def of_the_run(self) -> list[str]:
        """What the first run alone shows to be wrong."""
        return [*self._clips(), *self._charges(), *self._shares(), *self._noise(), *self._coins(), *self._units()]

    def _clips(self) -> list[str]:
        over = any(np.any(draw.clips > self.clips_at(draw.step, draw.indices) * (1 + 1e-9)) for draw in self.tape.draws.values())
        return ["somebody is drawn with a larger clip than the plan has for their budget."] if over else []

    def _charges(self) -> list[str]:
        late = any(bare.charged <= bare.step for bare in self.tape.bare.values())
        return ["a sum left before its step was charged."] if late else []

    def _shares(self) -> list[str]:
        """Whether all that leaves in a step, as updates and a count beside them do, has together the noise of the plan."""
        told: dict[int, float] = {}
        for (_, step), bare in self.tape.bare.items():
            told[step] = told.get(step, 0.0) + (bare.unit / bare.deviation if bare.deviation > 0 else math.inf) ** 2
        low = any(share * self.plan.noise_at(step) ** 2 > 1 + 1e-9 for step, share in told.items() if self.plan.noise_at(step) > 0)
        return ["what leaves in a step has together less noise than the plan says."] if low else []

    def _deviation(self, bare: Bare) -> float:
        """What the plan says of the noise of a sum; for a count and for updates beside one, what the federated plan says."""
        return self.plan.noise_at(bare.step) if bare.name == "gradients" else bare.deviation

    def _over(self, bare: Bare) -> float:
        return self.plan.batch if bare.name == "gradients" else bare.over

    def noise_of(self, bare: Bare) -> Array:
        """What was added to a sum, if it was divided as the plan says."""
        return flat(bare.released) * self._over(bare) - flat(bare.sums)

    def _noise(self) -> list[str]:
        found = []
        for name in sorted({name for name, _ in self.tape.bare}):
            rows = [bare for (other, _), bare in sorted(self.tape.bare.items(), key=lambda item: item[0][1]) if other == name]
            deviations = np.array([self._deviation(bare) for bare in rows])
            values = np.stack([self.noise_of(bare) for bare in rows])
            if not np.all(deviations > 0):
                if np.any(self.plan.epsilon < np.inf):
                    found.append("a sum has no noise.")
                continue
            found += _faults_of_noise(values / deviations[:, None], [np.size(part) for part in rows[0].sums.values()])
        return found

    def _coins(self) -> list[str]:
        found: list[str] = []
        parts, taken = self.plan.parts, sorted(self.tape.draws)
        steps = np.array([step for step in taken if any(key[1] == step for key in self.tape.bare)])
        for row in range(len(parts.group)):
            mine = steps[(parts.first[row] <= steps) & (steps < parts.last[row])]
            members = int(np.sum(self.group == parts.group[row]))
            seen = sum(int(np.sum(self.group[self.tape.draws[step].indices] == parts.group[row])) for step in mine)
            if not _may_be(
                seen, members, len(mine), float(parts.rate[row]), float(parts.inclusion[row]), rests=self.plan.filter is not None
            ):
                found.append("a group is drawn more or less often than the plan's rate says.")
        if np.all(parts.inclusion == 1) and self.plan.filter is None:
            found += self._sizes(steps)
        return found

    def _sizes(self, steps: NDArray[np.int64]) -> list[str]:
        """Whether batches vary in size as coins do: too even ones were not drawn by coins."""
        parts, square, degrees = self.plan.parts, 0.0, 0
        for stage in np.unique(parts.stage):
            rows = parts.stage == stage
            mine = steps[(parts.first[rows][0] <= steps) & (steps < parts.last[rows][0])]
            rate, members = parts.rate[rows], np.array([int(np.sum(self.group == group)) for group in parts.group[rows]])
            variance = float(np.sum(members * rate * (1 - rate)))
            if len(mine) > 1 and variance > 0:
                sizes = np.array([len(self.tape.draws[step]) for step in mine], float)
                square += float(np.sum((sizes - np.sum(members * rate)) ** 2)) / variance
                degrees += len(mine)
        even = degrees > 0 and chi2.cdf(square, degrees) < _UNLIKELY
        return ["batches are of more even sizes than independent coins make them."] if even else []

    def _units(self) -> list[str]:
        """Whether each holder's units pay for the rungs that they were drawn with, and, drawn or not, for the lowest one before that.

        Who can pay for a rung takes one, so whoever is drawn has taken one in all stretches before.
        """
        ladder = self.plan.filter
        if ladder is None:
            return []
        most: dict[tuple[int, int], float] = {}
        for step, draw in self.tape.draws.items():
            share = draw.clips / self.clips_at(step, draw.indices)
            for holder, fraction in zip(draw.indices.tolist(), share.tolist(), strict=True):
                key = holder, step // ladder.refresh
                if abs(most.setdefault(key, fraction) - fraction) > 1e-9:
                    return ["somebody's rung changes within a stretch."]
        paid, last = np.zeros(len(self.group), np.int64), np.full(len(self.group), -1)
        for (holder, stretch), fraction in most.items():
            group, last[holder] = self.group[holder], max(last[holder], stretch)
            rung = int(np.searchsorted(ladder.rungs[group], fraction * (1 - 1e-9)))
            paid[holder] += ladder.costs[group, min(rung, ladder.costs.shape[1] - 1)] - ladder.costs[group, 0]
        paid += ladder.costs[self.group, 0] * (last + 1)
        return ["somebody takes rungs that their units do not pay for."] if np.any(paid > ladder.units[self.group]) else []

    def of_holder(self, again: Playback, holder: int) -> tuple[float, list[str]]:
        """By how much of their clip a holder moved any sum at most, and what is wrong."""
        found, largest = [], 0.0
        if set(again.bare) != set(self.tape.bare):
            found.append("how many steps there are follows the holder's records.")
        for key in sorted(set(again.bare) & set(self.tape.bare), key=lambda key: key[1]):
            moved, faults = self._of_step(self.tape.bare[key], again.bare[key], holder, key)
            largest = max(largest, moved)
            found += faults
        return largest, found

    def _of_step(self, first: Bare, second: Bare, holder: int, key: Key) -> tuple[float, list[str]]:
        draw = self.tape.draws.get(key[1])
        there = np.zeros(0, bool) if draw is None else draw.indices == holder
        drawn = bool(there.any())
        if list(first.sums) != list(second.sums) or (first.unit, first.deviation, first.over) != (
            second.unit,
            second.deviation,
            second.over,
        ):
            return 0.0, ["shapes, noise or divisor of a step follow the holder's records."]
        found = []
        own = float(min(self.clips_at(key[1], np.array([holder]))[0], draw.clips[there][0])) if draw is not None and drawn else 0.0
        rounding = _ROUNDING * first.unit * (0.0 if draw is None else float(draw.clips.sum()))
        with np.errstate(invalid="ignore", over="ignore"):
            move = float(np.linalg.norm(flat(first.sums) - flat(second.sums)))
        if not move <= first.unit * own * (1 + MARGIN) + rounding:
            found.append(
                "a sum moved by more than the clip of the holder who was zeroed."
                if drawn
                else "a sum moved although the holder who was zeroed was not drawn."
            )
        one, other = self.noise_of(first), self.noise_of(second)
        scale = np.abs(one) + np.abs(flat(first.sums)) + np.abs(flat(second.sums)) + self._deviation(first)
        if not np.all(np.abs(one - other) <= 1e-5 * scale):
            found.append("noise or divisor of a step follow the holder's records.")
        clip = first.unit * float(self.clips_at(key[1], np.array([holder]))[0])
        return (move / clip if clip > 0 and math.isfinite(move) else (math.inf if move > rounding else 0.0)), found


def _may_be(seen: int, members: int, steps: int, rate: float, inclusion: float, *, rests: bool) -> bool:
    """Whether coins may have fallen for so many; where people may rest, only too many can be told."""
    if inclusion == 1:
        trials = members * steps
        few = binom.cdf(seen, trials, rate) < _UNLIKELY and not rests
        return not (few or binom.sf(seen - 1, trials, rate) < _UNLIKELY)
    mean = members * inclusion * steps * rate
    each = inclusion * steps * rate * (1 - rate) + inclusion * (1 - inclusion) * (steps * rate) ** 2
    # a sum of few large coins has heavier tails than a normal variable
    return abs(seen - mean) <= 10 * math.sqrt(members * each) + 10 * max(1.0, steps * rate)


def _faults_of_noise(values: Array, sizes: Sequence[int]) -> list[str]:
    """Noise in units of its deviation, a row for each step, whose columns belong to arrays of these sizes: what is wrong with it."""
    edges = np.cumsum([0, *sizes])
    blocks = [values[:, begin:end] for begin, end in itertools.pairwise(edges) if end > begin]
    for block in (values, *blocks):
        square, count = float(np.sum(block**2)), block.size
        if not math.isfinite(square):
            return ["a sum or its noise is not finite."]
        if count and min(chi2.cdf(square, count), chi2.sf(square, count)) < _UNLIKELY / (1 + len(blocks)):
            return ["the noise is not of the deviation that the plan says."]
    if not _are_independent(values):
        return ["the noise of steps is not independent."]
    for one, other in itertools.combinations(blocks, 2):
        shared = min(one.shape[1], other.shape[1])
        if not _are_apart(np.sum(one[:, :shared] * other[:, :shared]), np.sum(one[:, :shared] ** 2 * other[:, :shared] ** 2), shared):
            return ["the noise of arrays is not independent."]
    return []


def _are_independent(values: Array) -> bool:
    """Whether every two steps, and all steps that are as far apart as each other, look as if they had noise of their own."""
    products, squares = values @ values.T, values**2 @ (values**2).T
    steps, width = values.shape
    apart = [_are_apart(products[i, j], squares[i, j], width) for i, j in itertools.combinations(range(steps), 2)]
    lags = [_are_apart(np.trace(products, lag), np.trace(squares, lag), (steps - lag) * width) for lag in range(1, steps)]
    return all(apart) and all(lags)


def _are_apart(product: float, square: float, count: int) -> bool:
    """Whether a sum of so many products, over the root of the sum of their squares, is one that chance makes; few are not judged."""
    return bool(count < _FEWEST or abs(product) <= _DEVIATIONS * math.sqrt(square))
