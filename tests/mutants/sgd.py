"""Breaks of a training step: noise, clips, divisors, charges, and what a resumed run begins with."""

import dataclasses

import numpy as np
import torch

from mutants import attacks, replays
from mutants.machinery import Catcher, catcher, mutant
from sartor.ownership import Ownership
from sartor.run.account import RunAccount
from sartor.run.sampling import PoissonSampler
from sartor.sgd import loader as loading
from sartor.sgd import run as running
from sartor.sgd.gradients import PerExample
from sartor.sgd.optimizer import PrivateOptimizer
from sartor.sgd.pieces import Draws, Piece
from sartor_testing import many_records
from sartor_testing import private_runs as runs

SAME = 1e-5


@catcher("records that are lent", "test")
def LENT():
    return not many_records.lends_no_record_twice()


def by_hand(scheme):
    """Training beside a loop that takes one example at a time."""
    return Catcher(f"{scheme} by hand", "test", lambda _: runs.difference_from_by_hand(scheme) > SAME, lambda: runs.planned(scheme))


BY_HAND, HYBRID_BY_HAND = by_hand("scale"), by_hand("hybrid")


@catcher("moments of the noise", "test", lambda: runs.planned(steps=4))
def NOISE(_):
    return not runs.has_the_planned_noise(runs.pure_noise())


@catcher("steps of empty batches", "test", lambda: runs.planned("sample", 40, 0.3))
def EMPTY(_):
    return not runs.empty_batches_step_with_noise()


@catcher("account of a finished run", "test", lambda: runs.planned("scale", 3))
def ACCOUNT(plan):
    account = runs.fitted(runs.net(), plan=plan).account
    return account.steps != plan.steps or not np.array_equal(account.spent, plan.spent)


# --- noise ---


def noise_times(patch, factor):
    right = running.normal
    patch.setattr(running, "normal", lambda *given, **more: factor * right(*given, **more))


@mutant(replays.STEP, quick=True)
def noise_too_low(patch):
    """Noise has 70 % of its deviation."""
    noise_times(patch, 0.7)


@mutant(attacks.SCALE, quick=True)
def noise_at_a_third(patch):
    """Noise has 30 % of its deviation."""
    noise_times(patch, 0.3)


@mutant(NOISE, BY_HAND, quick=True)
def noise_two_per_cent_too_low(patch):
    """Noise has 98 % of its deviation."""
    noise_times(patch, 0.98)


@mutant(attacks.FEW, quick=True)
def no_noise_on_one_layer(patch):
    """One layer's sum is released without noise."""
    right = running.Run._noisy

    def bare(self, sums, step):
        last = list(sums)[-2]
        return {**right(self, sums, step), last: (sums[last] / self.plan.batch).float()}

    patch.setattr(running.Run, "_noisy", bare)


@mutant(replays.STEP)
def no_noise_on_biases(patch):
    """Vectors, unlike matrices, are released without noise."""
    right = running.Run._noisy

    def bare(self, sums, step):
        short = {name: (value / self.plan.batch).float() for name, value in sums.items() if value.dim() == 1}
        return {**right(self, sums, step), **short}

    patch.setattr(running.Run, "_noisy", bare)


@mutant(replays.STEP, NOISE, BY_HAND, quick=True)
def one_noise_key_for_all_parameters(patch):
    """Every parameter's noise is drawn from the same key, so differences of parameters are bare (jax#3646)."""

    def again(self, sums, step):
        found = {}
        for name, value in sums.items():
            noise = running.normal(self.stream.generator("noise", step), value.numel(), self.plan.noise)
            found[name] = ((value.double() + torch.from_numpy(noise).view(value.shape)) / self.plan.batch).float()
        return found

    patch.setattr(running.Run, "_noisy", again)


def noise_of_step(patch, which):
    right = running.Run._noisy
    patch.setattr(running.Run, "_noisy", lambda self, sums, step: right(self, sums, which(step)))


@mutant(replays.STEP, NOISE, BY_HAND)
def one_noise_for_all_steps(patch):
    """All steps have the noise of the first, so differences of steps are bare."""
    noise_of_step(patch, lambda step: 0)


@mutant(replays.STEP, quick=True)
def noise_reused_after_some_steps(patch):
    """From the fourth step on noise begins anew, so differences of steps that are far apart are bare."""
    noise_of_step(patch, lambda step: step % 3)


@mutant(replays.CUT, quick=True)
def noise_reused_after_many_steps(patch):
    """From the 61st step on noise begins anew, beyond the steps that are replayed."""
    noise_of_step(patch, lambda step: step % 60)


@mutant(replays.CUT)
def noise_too_low_after_many_steps(patch):
    """From the 51st step on noise has 30 % of its deviation."""
    right = running.Run._noisy

    def fading(self, sums, step):
        bare, noisy = {name: value.double() / self.plan.batch for name, value in sums.items()}, right(self, sums, step)
        return noisy if step < 50 else {name: (bare[name] + 0.3 * (value - bare[name])).float() for name, value in noisy.items()}

    patch.setattr(running.Run, "_noisy", fading)


@mutant(replays.CUT)
def rate_doubled_after_many_steps(patch):
    """From the 51st step on everybody is drawn by two coins."""
    right = PoissonSampler.draw

    def twice(self, step):
        draw = right(self, step)
        if step < 50:
            return draw
        own = np.union1d(draw.indices, right(self, step - 50).indices)
        return dataclasses.replace(draw, indices=own, clips=np.full(len(own), self._clips.min()))

    patch.setattr(PoissonSampler, "draw", twice)


@mutant(replays.STEP)
def noise_of_another_shape(patch):
    """Noise has the right deviation and is bounded, which protects nobody."""
    right = running.normal

    def bounded(generator, size, deviation, draws=1):
        return deviation * np.sign(right(generator, size, deviation, draws))

    patch.setattr(running, "normal", bounded)


@mutant(replays.CUT)
def one_holder_always_drawn(patch):
    """One holder is in every step, and everybody else as their coins say."""
    right = PoissonSampler.draw

    def always(self, step):
        draw = right(self, step)
        own = np.union1d(draw.indices, [7])
        clips = np.full(len(own), self._clips.min())
        clips[np.isin(own, draw.indices)] = draw.clips
        return dataclasses.replace(draw, indices=own, clips=clips)

    patch.setattr(PoissonSampler, "draw", always)


@mutant(replays.STEP, quick=True)
def noise_for_the_mean_accounted_as_for_the_sum(patch):
    """Noise that is made for the mean is divided by the batch once more (tensorflow/privacy#153)."""
    right = running.Run._noisy

    def twice(self, sums, step):
        bare, batch = {name: value.double() / self.plan.batch for name, value in sums.items()}, self.plan.batch
        return {name: (bare[name] + (value.double() - bare[name]) / batch).float() for name, value in right(self, sums, step).items()}

    patch.setattr(running.Run, "_noisy", twice)


@mutant(replays.PIECES)
def accumulation_against_step_count(patch):
    """What is accumulated of a step leaves piece by piece, and the account counts the step once (jax_privacy#234)."""
    right = running.Run.finish

    def each_piece(self):
        piece = self._piece
        found = right(self)
        if found is not None or piece is None:
            return found
        sums = dict(self._sums)
        noisy = self._noisy(sums, piece.step)
        return noisy if self._witness is None else self._witnessed(piece.step, sums, noisy)

    patch.setattr(running.Run, "finish", each_piece)


@mutant(replays.QUIETLY_EMPTY, EMPTY)
def empty_batch_without_noise(patch):
    """A sum of nothing gets no noise, which tells that nobody was drawn."""
    right = running.Run._noisy

    def quiet(self, sums, step):
        found = right(self, sums, step)
        return found if any(bool(value.any()) for value in sums.values()) else {name: 0 * value for name, value in found.items()}

    patch.setattr(running.Run, "_noisy", quiet)


@mutant(EMPTY, quick=True)
def empty_batches_skipped(patch):
    """Batches in which nobody was drawn are left out."""
    right = loading._Pieces.__iter__
    patch.setattr(loading._Pieces, "__iter__", lambda self: (piece for piece in right(self) if bool(piece.clips.any())))


# --- divisors ---


@mutant(replays.STEP, BY_HAND, quick=True)
def observed_batch_as_divisor(patch):
    """The sum is divided by how many were drawn."""
    begin, noisy, observed = running.Run.begin, running.Run._noisy, []

    def noting(self, piece):
        observed.append(len(piece.indices))
        begin(self, piece)

    patch.setattr(running.Run, "begin", noting)
    patch.setattr(
        running.Run,
        "_noisy",
        lambda self, sums, step: {n: v * (self.plan.batch / observed[-1]) for n, v in noisy(self, sums, step).items()},
    )


@mutant(replays.STEP)
def denominator_from_the_size_of_the_data_set(patch):
    """The divisor is the rate times how many different records there are, so that it follows who is there (opacus#571, #819)."""
    right, made = running.Run._noisy, loading.PrivateLoader.__init__

    def counting(self, run, draws, dataset, **settings):
        made(self, run, draws, dataset, **settings)
        run.there = len({tuple(row.tolist()) for row in dataset.tensors[0]}) / len(dataset)

    patch.setattr(loading.PrivateLoader, "__init__", counting)
    patch.setattr(running.Run, "_noisy", lambda self, sums, step: {n: v / self.there for n, v in right(self, sums, step).items()})


# --- clips ---


def clips_by(patch, change):
    right = PoissonSampler.draw

    def changed(self, step):
        draw = right(self, step)
        return dataclasses.replace(draw, clips=change(self, draw.clips))

    patch.setattr(PoissonSampler, "draw", changed)


@mutant(replays.STEP, BY_HAND, HYBRID_BY_HAND, quick=True)
def thresholds_of_another_group(patch):
    """Everybody is clipped at the threshold of another group."""

    def swapped(sampler, clips):
        kinds = np.unique(sampler._clips)
        other = dict(zip(kinds.tolist(), np.roll(kinds, 1).tolist(), strict=True))
        return np.array([other[c] for c in clips.tolist()])

    clips_by(patch, swapped)


@mutant(replays.STEP, BY_HAND)
def thresholds_in_the_order_of_another_batch(patch):
    """The thresholds of those who were drawn stand in another order than they do."""
    clips_by(patch, lambda _, clips: clips[::-1].copy())


@mutant(replays.STEP, BY_HAND)
def sums_without_clipping(patch):
    """Gradients enter the sum as they are, however long."""
    right = PerExample.clipped_sums

    def unclipped(self, scale=1.0):
        self._thresholds = torch.full_like(self._thresholds, 1e9)
        return right(self, scale)

    patch.setattr(PerExample, "clipped_sums", unclipped)


@mutant(replays.OWNED, quick=True)
def clip_per_record_instead_of_per_holder(patch):
    """Every record is clipped by itself, however many a holder has."""
    right = Draws._cut

    def one_by_one(self, step, records, counts, clips, size):
        return right(self, step, records, np.ones_like(records), clips.repeat_interleave(torch.tensor(counts)), size)

    patch.setattr(Draws, "_cut", one_by_one)


@mutant(replays.OWNED_PIECES)
def split_holder_clipped_in_every_piece(patch):
    """A holder whose records do not fit into one physical batch is clipped in each of them."""
    right = Draws.pieces

    def apart(self, step):
        for piece in right(self, step):
            yield Piece(step, piece.number, piece.indices, piece.clips, piece.last, piece.owners, piece.shares)

    patch.setattr(Draws, "pieces", apart)


@mutant(replays.OWNED_LONGER)
def holders_drawn_once_for_each_record(patch):
    """Who lends more records is drawn more often."""
    right = PoissonSampler.draw

    def per_record(self, step):
        draw, counts = right(self, step), many_records.owned().counts
        coins = np.random.default_rng(step).random(self.holders) < 1 - (1 - 20 / self.holders) ** counts
        indices = np.flatnonzero(coins)
        return dataclasses.replace(draw, indices=indices, clips=np.full(len(indices), self._clips.min()))

    patch.setattr(PoissonSampler, "draw", per_record)


@mutant(replays.OWNED)
def divided_by_records(patch):
    """The sum over holders is divided by how many records they are expected to lend."""
    right = running.Run._noisy
    patch.setattr(
        running.Run, "_noisy", lambda self, sums, step: {n: v * (runs.HOLDERS / self.records) for n, v in right(self, sums, step).items()}
    )


@mutant(LENT)
def record_counted_twice(patch):
    """Who has fewer records than a step takes lends some of them twice."""
    right = Ownership.records_of

    def filled(self, holders, most=None, secret=0):
        found, counts = right(self, holders, most, secret)
        parts = np.split(found, np.cumsum(counts)[:-1])
        return np.concatenate([np.resize(part, most or len(part)) for part in parts]), np.array([most or len(part) for part in parts])

    patch.setattr(Ownership, "records_of", filled)


# --- charges, and what is seen ---


@mutant(replays.STEP)
def step_not_charged_before_its_release(patch):
    """A step is counted after its sum has left."""
    noisy, move = running.Run._noisy, PrivateOptimizer._move

    def uncounted(self, sums, step):
        self._steps -= 1
        return noisy(self, sums, step)

    def counted(self, gradients):
        move(self, gradients)
        self.run._steps += 1

    patch.setattr(running.Run, "_noisy", uncounted)
    patch.setattr(PrivateOptimizer, "_move", counted)


@mutant(ACCOUNT, quick=True)
def account_not_advanced(patch):
    """The account of a run stays where it was at the beginning."""
    patch.setattr(running.Run, "account", lambda self: RunAccount(self.plan, 0, self.stream.seeded, self.records))


@mutant(replays.STEP, quick=True)
def unclipped_average_left_in_p_grad(patch):
    """After a step parameters have the plain average as their gradients, where anybody may look."""
    sums, move = PerExample.clipped_sums, PrivateOptimizer._move

    def noting(self, scale=1.0):
        rows = self.gradients_of(range(self._rows))
        self.average = {name: torch.stack([row[name] for row in rows]).mean(0) for name in self.parameters}
        return sums(self, scale)

    def leaving(self, gradients):
        move(self, gradients)
        for name, parameter in self.run.engine.parameters.items():
            parameter.grad = self.run.engine.average[name]

    patch.setattr(PerExample, "clipped_sums", noting)
    patch.setattr(PrivateOptimizer, "_move", leaving)
