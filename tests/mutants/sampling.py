"""Breaks of who is drawn how often, and by which coins."""

import dataclasses

import numpy as np

from mutants import attacks, replays
from mutants.machinery import mutant
from sartor.plans import Plan
from sartor.run.sampling import Draw, PoissonSampler, _Coins


@mutant(attacks.MANY)
def rate_doubled_for_one_group(patch):
    """The strictest group is drawn twice as often as planned."""
    right = PoissonSampler._lay_out

    def doubled(self, of_holder, groups, parts, *rest):
        rate = np.where(parts.group == 0, np.minimum(2 * parts.rate, 1), parts.rate)
        right(self, of_holder, groups, parts._replace(rate=rate), *rest)

    patch.setattr(PoissonSampler, "_lay_out", doubled)


@mutant(attacks.SAMPLE, quick=True)
def groups_in_another_order_than_budgets(patch):
    """Holders get the rates and clips of another budget than theirs."""
    right = Plan.groups_of
    patch.setattr(Plan, "groups_of", lambda self, budgets: len(self) - 1 - right(self, budgets))


@mutant(attacks.SCALE)
def clip_of_the_open_group_for_everybody(patch):
    """Everybody is clipped where the most open group is."""
    right = PoissonSampler.draw
    patch.setattr(
        PoissonSampler, "draw", lambda self, step: dataclasses.replace(d := right(self, step), clips=np.full(len(d), self._clips.max()))
    )


@mutant(attacks.ROUNDS, quick=True)
def coins_of_inclusion_not_looked_at(patch):
    """Everybody is in every round, whatever their coins say."""
    patch.setattr(_Coins, "included", lambda self, part, place: np.ones(len(part), bool))


@mutant(replays.MANY_STEPS, quick=True)
def fixed_batches_accounted_as_poisson(patch):
    """Batches are of one size, shuffled, and accounted as if every holder had a coin of their own (opacus#80, jax_privacy#84)."""
    right = PoissonSampler.draw

    def fixed(self, step):
        draw = right(self, step)
        order = np.random.default_rng(step // 3).permutation(self.holders)
        indices = np.sort(order[20 * (step % 3) : 20 * (step % 3 + 1)])
        clips = np.full(self.holders, self._clips.min())
        clips[draw.indices] = draw.clips
        return Draw(step, indices, clips[indices])

    patch.setattr(PoissonSampler, "draw", fixed)


@mutant(replays.MANY_STEPS)
def one_draw_for_all_steps(patch):
    """The same people are drawn at every step."""
    right = PoissonSampler.draw
    patch.setattr(PoissonSampler, "draw", lambda self, step: dataclasses.replace(right(self, 0), step=step))


@mutant(replays.MANY_STEPS)
def each_draw_for_two_steps(patch):
    """Who is drawn at a step is drawn at the next one, too."""
    right = PoissonSampler.draw
    patch.setattr(PoissonSampler, "draw", lambda self, step: dataclasses.replace(right(self, step - step % 2), step=step))


def by_coins_of(patch, coin):
    """Draw by coins that several people share, at everybody's own rate: `coin` says for each place whose coin counts."""
    right = PoissonSampler._lay_out

    def laid_out(self, of_holder, groups, parts, *rest):
        right(self, of_holder, groups, parts, *rest)
        self.rate_of, self.clip_of = parts.rate[of_holder], parts.clip[of_holder]  # the parts of one stage, in the order of groups

    def draw(self, step):
        tossed = np.random.default_rng([7, step]).random(self.holders)[coin(np.arange(self.holders))]
        drawn = np.flatnonzero(tossed < self.rate_of)
        return Draw(step, drawn, self.clip_of[drawn])

    patch.setattr(PoissonSampler, "_lay_out", laid_out)
    patch.setattr(PoissonSampler, "draw", draw)


@mutant(replays.MANY_STEPS)
def neighbours_share_a_coin(patch):
    """Two holders who stand beside each other are drawn by one coin, at everybody's own rate."""
    by_coins_of(patch, lambda place: place - place % 2)


@mutant(replays.MANY_STEPS)
def one_coin_for_everybody(patch):
    """One coin a step says who is drawn, at everybody's own rate."""
    by_coins_of(patch, lambda place: 0 * place)


@mutant(replays.MANY_STEPS)
def everybody_in_turn(patch):
    """Everybody is drawn once before anybody is drawn again, in batches whose sizes vary as those of coins do."""

    def draw(self, step):
        sizes = np.random.default_rng(5).binomial(self.holders, 1 / 3, size=self.steps)
        places = np.arange(sizes[:step].sum(), sizes[: step + 1].sum())
        orders = [np.random.default_rng([5, turn]).permutation(self.holders) for turn in range(self.steps)]
        indices = np.unique(np.concatenate(orders)[places])
        return Draw(step, indices, np.full(len(indices), self._clips.min()))

    patch.setattr(PoissonSampler, "draw", draw)


@mutant(replays.MANY_STEPS)
def whoever_is_drawn_brings_another(patch):
    """Whoever is drawn brings the next holder along, by the same coin, so that rates are almost doubled."""
    right = PoissonSampler.draw

    def paired(self, step):
        draw = right(self, step)
        both = np.unique(np.concatenate([draw.indices, (draw.indices + 1) % self.holders]))
        return Draw(step, both, np.full(len(both), self._clips.min()))

    patch.setattr(PoissonSampler, "draw", paired)
