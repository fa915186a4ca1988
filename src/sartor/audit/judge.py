"""What is on a tape beside what the plan says: draws, clips, charges, noise, units, and what one holder moved.

Everything is compared by the plan and each holder's own budget, not by what the run says of itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from sartor.audit.draws import faults_of_draws
from sartor.audit.noise import faults_of_noise
from sartor.audit.record import Compare, Tape, flat
from sartor.plans import Plan
from sartor.run.sampling import Draw
from sartor.run.witness import Array, Bare
from sartor.sgd.gradients import MARGIN
from sartor.sgd.private import ROUNDING, smallest_paid

_NUMBERS = 2**24  # of noise that are looked at, in all steps
_DRAWN_AHEAD, _STEPS_AHEAD = 2**26, 500  # numbers of noise, and steps, that are drawn of what was not run
_CLIPPED = 0.99  # of a clip, in sums that were rounded
_FEWEST = 64  # of an array that has so many

SLIGHTLY = "a sum moved slightly although the holder who was zeroed was not drawn."
"""By less than sums are rounded: a fault only where sums of the same are the same to the last digit."""


class Judge:
    """Compares what is on a tape with a plan, by each holder's own budget."""

    def __init__(self, tape: Tape, plan: Plan, group: NDArray[np.intp]) -> None:
        self.tape, self.plan, self.group = tape, plan, group
        self.has_seen_a_clip = False
        """Whether somebody who was zeroed had moved a sum as far as they may, so that it was seen to be clipped."""

    @property
    def drawn(self) -> NDArray[np.int64]:
        """How often each holder was drawn."""
        everybody = np.concatenate([np.zeros(0, np.int64), *(draw.indices for draw in self.tape.draws.values())])
        return np.bincount(everybody, minlength=len(self.group))

    @cached_property
    def _rounding(self) -> float:
        """What rounding of sums may do at most, as those who train make sure."""
        return ROUNDING * min(smallest_paid(self.plan), self.plan.clip)

    def clips_at(self, step: int, holders: NDArray[np.integer]) -> Array:
        """The clips that the plan has for holders at a step; 0 for groups without a part in it."""
        parts, by_group = self.plan.parts, np.zeros(len(self.plan))
        here = (parts.first <= step) & (step < parts.last)
        by_group[parts.group[here]] = parts.clip[here]
        return np.asarray(by_group[self.group[holders]])

    @cached_property
    def _ahead(self) -> tuple[dict[int, Draw], dict[int, Mapping[str, Array]]]:
        """Coins and noise of steps that were not run, which a seeded run can tell beforehand: of all of them, or of some by lot."""
        left = sorted(set(range(self.plan.steps)) - {step for _, step in self.tape.bare})
        if not (left and self.tape.sources and self.tape.stopped):
            return {}, {}
        of, parameters = self.tape.sources[-1].ahead, sum(np.size(part) for part in next(iter(self.tape.bare.values())).sums.values())
        lot = np.random.default_rng(self.plan.steps).permutation(left)[:_STEPS_AHEAD].tolist()
        noisy = sorted(lot[: max(1, _DRAWN_AHEAD // max(1, parameters))])
        coins = {} if self.plan.filter is not None else {step: of.draw(step) for step in sorted(lot)}
        return coins, {step: of.noise(step) for step in noisy}

    def of_the_run(self) -> list[str]:
        """What the first run alone shows to be wrong."""
        return [*self._clips(), *self._charges(), *self._shares(), *self._noise(), *self._coins(), *self._units()]

    def _clips(self) -> list[str]:
        draws = [*self.tape.draws.values(), *self._ahead[0].values()]
        over = any(np.any(draw.clips > self.clips_at(draw.step, draw.indices) * (1 + 1e-9)) for draw in draws)
        return ["somebody is drawn with a larger clip than the plan has for their budget."] if over else []

    def _charges(self) -> list[str]:
        late = any(bare.charged is not None and bare.charged <= bare.step for bare in self.tape.bare.values())
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
            ahead = self._ahead[1] if name == "gradients" else {}
            deviations = np.array([*(self._deviation(bare) for bare in rows), *(self.plan.noise_at(step) for step in ahead)])
            sizes = [np.size(part) for part in rows[0].sums.values()]
            places, looked_at = _some(sizes, max(1, _NUMBERS // len(deviations)))
            values = np.stack([*(self.noise_of(bare)[places] for bare in rows), *(flat(noise)[places] for noise in ahead.values())])
            if not np.all(deviations > 0):
                if np.any(self.plan.epsilon < np.inf):
                    found.append("a sum has no noise.")
                continue
            found += faults_of_noise(values / deviations[:, None], looked_at)
        return found

    def _coins(self) -> list[str]:
        released, later = {step for _, step in self.tape.bare}, self._ahead[0]
        draws = {**self.tape.draws, **later}
        return faults_of_draws(self.plan, self.group, draws, sorted((released & self.tape.draws.keys()) | later.keys()))

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

    def of_holder(self, holder: int) -> Compare:
        """Compares sums of the run with those without a holder."""
        return lambda first, second: self._of_step(first, second, holder)

    def _of_step(self, first: Bare, second: Bare, holder: int) -> tuple[float, list[str]]:
        draw = self.tape.draws.get(first.step)
        there = np.zeros(0, bool) if draw is None else draw.indices == holder
        drawn = bool(there.any())
        if (first.unit, first.deviation, first.over) != (second.unit, second.deviation, second.over):
            return 0.0, ["shapes, noise or divisor of a step follow the holder's records."]
        found = []
        own = float(min(self.clips_at(first.step, np.array([holder]))[0], draw.clips[there][0])) if draw is not None and drawn else 0.0
        rounding = first.unit * self._rounding
        with np.errstate(invalid="ignore", over="ignore"):
            move = float(np.linalg.norm(flat(first.sums) - flat(second.sums)))
        if not move <= first.unit * own * (1 + MARGIN) + rounding:
            found.append(
                "a sum moved by more than the clip of the holder who was zeroed."
                if drawn
                else "a sum moved although the holder who was zeroed was not drawn."
            )
        elif move > 0 and not drawn:
            found.append(SLIGHTLY)
        self.has_seen_a_clip |= own > 0 and move > _CLIPPED * first.unit * own
        one, other = self.noise_of(first), self.noise_of(second)
        scale = np.abs(one) + np.abs(flat(first.sums)) + np.abs(flat(second.sums)) + self._deviation(first)
        if not np.all(np.abs(one - other) <= 1e-5 * scale):
            found.append("noise or divisor of a step follow the holder's records.")
        clip = first.unit * float(self.clips_at(first.step, np.array([holder]))[0])
        return (move / clip if clip > 0 and math.isfinite(move) else (math.inf if move > rounding else 0.0)), found


def _some(sizes: list[int], most: int) -> tuple[NDArray[np.int64], list[int]]:
    """Places in arrays of these sizes, one behind the other: all, or about so many by lot; and how many of each array they are."""
    share, lot = min(1.0, most / max(1, sum(sizes))), np.random.default_rng(len(sizes))
    counts = [size if share == 1 else min(size, max(_FEWEST, int(size * share))) for size in sizes]
    found = [np.sort(lot.choice(size, count, replace=False)) for size, count in zip(sizes, counts, strict=True)]
    begins = np.cumsum([0, *sizes[:-1]])
    places = [begin + part for begin, part in zip(begins, found, strict=True)]
    return np.concatenate([np.zeros(0, np.int64), *places]), counts
