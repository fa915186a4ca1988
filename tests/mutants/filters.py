"""Breaks of filters: who pays for which rung, when, and how long a run lasts."""

import functools

import numpy as np
import torch
from torch.utils.data import TensorDataset

import sartor
from mutants import attacks, replays
from mutants.machinery import catcher, mutant
from sartor.sgd import loader as loading
from sartor.sgd import stretches
from sartor.sgd.stretches import Stretches
from sartor_testing import private_runs as runs

LOSS = torch.nn.CrossEntropyLoss(reduction="none")
CALM = 7
"""A holder whose gradients stay small, so that their units last longest."""


@functools.cache
def planned():
    settings = {"filter": "ladder", "refresh": 2, "full_steps": 4, "ladder": (1, 4), "accountant": "rdp"}
    return sartor.plan(runs.people(), "scale", steps=24, batch=20, clip=0.05, **settings)


def calm():
    """People whose gradients stay above their clips, and one who has none."""
    inputs, targets = replays.loud(1.0).tensors
    inputs = inputs.clone()
    inputs[CALM] = 0.0
    return TensorDataset(inputs, targets)


def without_bias():
    return replays.small(lambda: torch.nn.Linear(4, 3, bias=False))


LADDER = replays.replayed("replay of a loop with a filter", plan=planned, loss=LOSS)
LAST = replays.replayed("replay of a loop whose last holder rests", calm, planned, holders=[CALM], make=without_bias, loss=LOSS)


@catcher("rungs under other coins", "test", planned)
def RUNGS(plan):
    """Which rungs are chosen first follows the model and the records, and no coins."""
    found = []
    for seed in (1, 2):
        model = runs.net()
        given = {"seed": seed, "loss": LOSS, "check": False}
        _, _, loader = sartor.make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), replays.loud(), runs.people(), plan, **given)
        loader.draws.stretches.begin(0)
        found.append(loader.draws.stretches._fraction.copy())
    return not np.array_equal(*found)


@mutant(attacks.FILTER)
def units_not_taken(patch):
    """Rungs cost nobody any units."""
    right = stretches.climb
    patch.setattr(stretches, "climb", lambda filter, group, fraction, left: (right(filter, group, fraction, left)[0], left))


@mutant(LADDER, quick=True)
def pay_only_when_drawn(patch):
    """Units are taken from those alone who are drawn in a stretch."""
    climb, within = stretches.climb, Stretches.within

    def free(filter, group, fraction, left):
        return climb(filter, group, fraction, left)[0], left

    def paid(self, draw):
        found, ladder = within(self, draw), self.plan.filter
        new = np.array([holder for holder in found.indices if (holder, self._begins) not in vars(self).setdefault("_paid", set())], int)
        self._paid.update((holder, self._begins) for holder in new)
        rung = np.argmin(np.abs(ladder.rungs[self._group[new]] - self._fraction[new, None]), axis=1)
        self._left = self._left.copy()
        self._left[new] -= ladder.costs[self._group[new], rung]
        return found

    patch.setattr(stretches, "climb", free)
    patch.setattr(Stretches, "within", paid)


@mutant(RUNGS)
def rung_chosen_after_the_coins(patch):
    """Who is not drawn in a stretch takes its lowest rung and keeps the rest for later."""
    right = Stretches._choose

    def late(self, step):
        before = self._left
        right(self, step)
        ladder, sampler = self.plan.filter, self._norms._draws.sampler
        steps = range(step, min(step + self.refresh, self.plan.steps))
        others = np.setdiff1d(np.arange(len(self._group)), np.concatenate([sampler.draw(number).indices for number in steps]))
        lowest, costs = ladder.rungs[self._group, 0], ladder.costs[self._group, 0]
        can = others[self._fraction[others] > 0]
        self._fraction, self._left = self._fraction.copy(), self._left.copy()
        self._fraction[can], self._left[can] = lowest[can], before[can] - costs[can]

    patch.setattr(Stretches, "_choose", late)


@mutant(LAST, quick=True)
def filter_ends_the_run_when_the_last_holder_rests(patch):
    """A run ends when nobody can pay for a rung, which tells when the last one could not."""
    right = loading.PrivateLoader._batches

    def ending(self):
        lowest = self.draws.stretches.plan.filter.costs[self.draws.stretches._group, 0]
        for batch in right(self):
            if not np.any(self.draws.stretches._fraction > 0) and np.all(self.draws.stretches._left < lowest):
                return
            yield batch

    patch.setattr(loading.PrivateLoader, "_batches", ending)


@mutant(LADDER)
def norms_above_the_clip_at_the_lowest_rung(patch):
    """Whoever is above the clip pays for the lowest rung and takes part at full norm."""
    right = stretches.climb

    def cheap(filter, group, fraction, left):
        rung, _ = right(filter, group, fraction, left)
        return rung, np.where(rung > 0, left - filter.costs[group, 0], left)

    patch.setattr(stretches, "climb", cheap)


@mutant(LADDER)
def rungs_changed_within_a_stretch(patch):
    """A holder's rung falls to the lowest one in the middle of a stretch, where what was paid for is not what is taken."""
    right = Stretches.within

    def moving(self, draw):
        found = right(self, draw)
        if draw.step == self._begins:
            return found
        return type(found)(found.step, found.indices, found.clips / 2)

    patch.setattr(Stretches, "within", moving)
