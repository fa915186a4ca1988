"""Faults put into the training step on purpose: each must be caught by a check that the tests beside this one run."""

import dataclasses

import numpy as np
import pytest
import torch

from sartor.errors import SartorError
from sartor.run.sampling import PoissonSampler
from sartor.sgd import loader as loading
from sartor.sgd import run as running
from sartor.sgd.checkpoint import Checkpoint
from sartor.sgd.gradients import PerExample
from sartor_testing.private_runs import (
    difference_from_by_hand,
    empty_batches_step_with_noise,
    has_the_planned_noise,
    pure_noise,
    resumes_to_the_same_end,
)

SAME = 1e-5


def test_noise_two_per_cent_too_low_is_caught(monkeypatch):
    assert has_the_planned_noise(pure_noise())
    assert difference_from_by_hand("scale") < SAME
    right = running.normal
    monkeypatch.setattr(running, "normal", lambda *given, **more: 0.98 * right(*given, **more))
    assert not has_the_planned_noise(pure_noise())
    assert difference_from_by_hand("scale") > SAME


def test_one_noise_draw_used_for_all_parameters_is_caught(monkeypatch):
    assert has_the_planned_noise(pure_noise())
    assert difference_from_by_hand("scale") < SAME

    def again(self, sums, step):
        found = {}
        for name, value in sums.items():
            noise = running.normal(self.stream.generator("noise", step), value.numel(), self.plan.noise)
            found[name] = ((value.double() + torch.from_numpy(noise).view(value.shape)) / self.plan.batch).float()
        return found

    monkeypatch.setattr(running.Run, "_noisy", again)
    assert not has_the_planned_noise(pure_noise())
    assert difference_from_by_hand("scale") > SAME


def test_one_noise_draw_used_for_all_steps_is_caught(monkeypatch):
    right = running.Run._noisy
    monkeypatch.setattr(running.Run, "_noisy", lambda self, sums, step: right(self, sums, 0))
    assert not has_the_planned_noise(pure_noise())
    assert difference_from_by_hand("scale") > SAME


@pytest.mark.parametrize("scheme", ["scale", "hybrid"])
def test_the_clip_of_another_group_is_caught(monkeypatch, scheme):
    assert difference_from_by_hand(scheme) < SAME
    right = PoissonSampler.draw

    def swapped(self, step):
        draw = right(self, step)
        kinds = np.unique(self._clips)
        other = dict(zip(kinds.tolist(), np.roll(kinds, 1).tolist(), strict=True))
        return dataclasses.replace(draw, clips=np.array([other[c] for c in draw.clips.tolist()]))

    monkeypatch.setattr(PoissonSampler, "draw", swapped)
    assert difference_from_by_hand(scheme) > SAME


def test_clips_in_the_order_of_another_batch_are_caught(monkeypatch):
    right = PoissonSampler.draw
    monkeypatch.setattr(PoissonSampler, "draw", lambda self, step: dataclasses.replace(d := right(self, step), clips=d.clips[::-1].copy()))
    assert difference_from_by_hand("scale") > SAME


def test_a_mean_over_the_observed_batch_is_caught(monkeypatch):
    assert difference_from_by_hand("scale") < SAME
    begin, noisy = running.Run.begin, running.Run._noisy
    observed = []

    def noting(self, piece):
        observed.append(len(piece.indices))
        begin(self, piece)

    monkeypatch.setattr(running.Run, "begin", noting)
    monkeypatch.setattr(
        running.Run,
        "_noisy",
        lambda self, sums, step: {n: v * (self.plan.batch / observed[-1]) for n, v in noisy(self, sums, step).items()},
    )
    assert difference_from_by_hand("scale") > SAME


def test_a_skipped_empty_batch_is_caught(monkeypatch):
    assert empty_batches_step_with_noise()
    right = loading._Pieces.__iter__
    monkeypatch.setattr(loading._Pieces, "__iter__", lambda self: (piece for piece in right(self) if bool(piece.clips.any())))
    assert not empty_batches_step_with_noise()


def test_an_empty_batch_that_adds_no_noise_is_caught(monkeypatch):
    right = running.Run._noisy

    def quiet(self, sums, step):
        found = right(self, sums, step)
        return found if any(bool(value.any()) for value in sums.values()) else {name: 0 * value for name, value in found.items()}

    monkeypatch.setattr(running.Run, "_noisy", quiet)
    assert not empty_batches_step_with_noise()


@pytest.mark.parametrize("scheme", ["sample", "sequential"])
def test_stale_sampling_rates_after_a_resume_are_caught(monkeypatch, tmp_path, scheme):
    assert resumes_to_the_same_end(tmp_path / "right", scheme=scheme)
    right = PoissonSampler.draw

    def from_the_beginning():
        monkeypatch.setattr(PoissonSampler, "draw", lambda self, step: dataclasses.replace(right(self, step - 4), step=step))

    assert not resumes_to_the_same_end(tmp_path / "wrong", scheme=scheme, between=from_the_beginning)


def test_a_stale_learning_rate_after_a_resume_is_caught(monkeypatch, tmp_path):
    schedule = torch.optim.lr_scheduler.StepLR
    settings = {"scheduler": lambda o: schedule(o, 3, 0.5)}
    assert resumes_to_the_same_end(tmp_path / "right", **settings)
    right = Checkpoint.restore

    def forgetful(self, optimizer, loader, scheduler):
        self._document["scheduler"] = scheduler.state_dict()  # where a new one begins
        right(self, optimizer, loader, scheduler)

    with pytest.raises(SartorError, match="the scheduler differs"):
        resumes_to_the_same_end(tmp_path / "wrong", between=lambda: monkeypatch.setattr(Checkpoint, "restore", forgetful), **settings)


def test_random_numbers_that_are_not_restored_are_caught(monkeypatch, tmp_path):
    assert not resumes_to_the_same_end(tmp_path, between=lambda: monkeypatch.setattr(running.Run, "_seed", lambda self, piece: None))


def test_noise_that_begins_anew_after_a_resume_is_caught(monkeypatch, tmp_path):
    right = running.Run._noisy
    assert not resumes_to_the_same_end(
        tmp_path, between=lambda: monkeypatch.setattr(running.Run, "_noisy", lambda self, sums, step: right(self, sums, step - 4))
    )


def test_sums_without_clipping_are_caught(monkeypatch):
    right = PerExample.clipped_sums

    def unclipped(self, scale=1.0):
        self._thresholds = torch.full_like(self._thresholds, 1e9)
        return right(self, scale)

    monkeypatch.setattr(PerExample, "clipped_sums", unclipped)
    assert difference_from_by_hand("scale") > SAME
