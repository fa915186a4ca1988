"""Steps that nobody publishes are not free: what a crash that selects would cost, computed exactly, and that the rule charges all of it.

One step here is a Gaussian with mu 1: whoever takes part moves one coordinate by one deviation. Alone it has epsilon 4.38 at delta 1e-5.
"""

import json
import math

import numpy as np
import pytest
import torch
from scipy import optimize, stats
from torch import nn
from torch.utils.data import TensorDataset

import sartor
from sartor.run.sampling import PoissonSampler
from sartor.run.stream import Stream

DELTA = 1e-5
below, above = stats.norm.cdf, stats.norm.sf


def delta_of(epsilon: float, mu: float = 1.0) -> float:
    """The delta of a Gaussian step (Balle and Wang 2018, theorem 5)."""
    return float(below(mu / 2 - epsilon / mu) - math.exp(epsilon) * below(-mu / 2 - epsilon / mu))


EPSILON = optimize.brentq(lambda epsilon: delta_of(epsilon) - DELTA, 0.1, 20)


def discarded_until(threshold: float) -> float:
    """The delta at EPSILON of a step that is repeated until its noisy coordinate passes a threshold, where each restart is seen.

    What is seen is how often it ran, and the last coordinate; the larger delta is that of whoever did not take part.
    """
    discarded = np.arange(20_000)
    without = discarded * stats.norm.logcdf(threshold)
    with_them = discarded * stats.norm.logcdf(threshold - 1) + EPSILON
    worth = np.maximum(without - with_them + 0.5, threshold)  # below it the density of the last coordinate is larger without them
    each = np.exp(without) * (above(threshold) - above(worth)) - np.exp(with_them) * (above(threshold - 1) - above(worth - 1))
    return float(each.sum())


def largest_of(tries: int) -> float:
    """The delta at EPSILON of a step that ran so often, of which the largest alone is seen."""
    at = np.linspace(-9, 9, 90_001)
    return float(np.max(below(at) ** tries - math.exp(EPSILON) * below(at - 1) ** tries))


def test_a_step_that_is_discarded_until_it_pleases_keeps_nothing_of_its_delta():
    assert pytest.approx(4.38, abs=0.005) == EPSILON
    assert discarded_until(3) == pytest.approx(0.60, abs=0.005)
    assert discarded_until(-40) == pytest.approx(DELTA, rel=0.01)  # never discarded


def test_restarts_that_nobody_sees_select_as_well():
    assert largest_of(1) == pytest.approx(DELTA, rel=0.01)
    assert largest_of(22) == pytest.approx(0.22, abs=0.005)
    assert largest_of(81) == pytest.approx(0.43, abs=0.005)


@pytest.mark.parametrize("tries", [1, 2, 22, 81])
def test_as_many_charged_steps_cover_the_best_of_them(tries):
    """Where every try is charged, the best of k is a function of k steps: a Gaussian with mu of the root of k."""
    epsilon = optimize.brentq(lambda epsilon: delta_of(epsilon, math.sqrt(tries)) - DELTA, 0.1, 200)
    at = np.linspace(-9, 9, 90_001)
    for one, other in ((0, 1), (1, 0)):
        assert np.max(below(at - one) ** tries - math.exp(epsilon) * below(at - other) ** tries) <= DELTA * 1.001
        assert np.max(above(at - one) ** tries - math.exp(epsilon) * above(at - other) ** tries) <= DELTA * 1.001


# -- coins of a round


def epsilon_of_a_round(pi: float, mu: float, *, tosses: int) -> float:
    """Epsilon at DELTA, adding somebody, of a round in two halves whose coins of inclusion are tossed once, or anew for each half."""
    axis = np.linspace(-9, 9, 1_801)
    weight = np.exp(-(axis**2) / 2)
    weight /= weight.sum()
    half = mu / math.sqrt(2)
    likelihood = np.exp(half * axis - half**2 / 2)
    both = np.outer(likelihood, likelihood)
    mixed = 1 - pi + pi * likelihood
    ratio = 1 - pi + pi * both if tosses == 1 else np.outer(mixed, mixed)
    nobody = np.outer(weight, weight)
    return float(optimize.brentq(lambda epsilon: float((nobody * np.maximum(1 - math.exp(epsilon) * ratio, 0)).sum()) - DELTA, 0, 5))


def test_fresh_coins_amid_a_round_include_more_people_than_its_coins_may():
    """With inclusion .3 somebody who is added is included by .3 once, and by 1 - (1 - .3)^2 where coins are tossed again."""
    assert epsilon_of_a_round(0.3, 4, tosses=1) == pytest.approx(-math.log(1 - 0.3), abs=0.001) == pytest.approx(0.357, abs=0.001)
    assert epsilon_of_a_round(0.3, 4, tosses=2) == pytest.approx(0.713, abs=0.002)
    assert -math.log(1 - (1 - (1 - 0.3) ** 2)) == pytest.approx(0.713, abs=0.001)


# -- the rule


class Unwanted(Exception):
    """What a crash that selects looks like: it follows from the noisy model."""


PEOPLE = sartor.Budgets.from_groups([(1.0, 30), (4.0, 30)], delta=1e-3)
DATA = TensorDataset(torch.zeros(60, 3), torch.zeros(60, dtype=torch.long))


@pytest.fixture
def drawn(monkeypatch):
    """Every index that anybody draws, in order."""
    found, inner = [], PoissonSampler.draw

    def draw(self, step):
        found.append(step)
        return inner(self, step)

    monkeypatch.setattr(PoissonSampler, "draw", draw)
    return found


def tried(folder, plan, number, wanted, every=1):
    """Take up the run, and crash unless what is to be published pleases; its account, once it does."""

    def select(progress):
        if not wanted(progress.model):
            raise Unwanted

    kept = sartor.Checkpoints(folder, every=every, resume=number > 0, restarts=1_000)
    torch.manual_seed(1)
    return sartor.fit(nn.Linear(3, 2), DATA, PEOPLE, plan, lr=1.0, checkpoints=kept, callbacks=[select], progress=False).account


@pytest.mark.parametrize("every", [1, 4])
def test_every_step_that_was_drawn_is_charged_whatever_a_crash_selects(drawn, tmp_path, every):
    plan = sartor.plan(PEOPLE, steps=12, batch=20, accountant="rdp")
    charged = []
    for number in range(16):
        try:
            account = tried(tmp_path / "run", plan, number, lambda model: float(model.weight.detach().max()) > 3, every)
        except Unwanted:
            charged.append(json.loads((tmp_path / "run" / "journal.json").read_text())["run"]["charged"])
            assert charged[-1] > drawn[-1]
            np.testing.assert_array_less(plan.spent_after(charged[-1]), plan.epsilon)
            continue
        break
    assert len(charged) >= 12 // every - 1  # it never pleased
    assert charged == sorted(charged)
    assert drawn == sorted(set(drawn))
    assert account.charged == account.steps == plan.steps >= len(drawn)
    np.testing.assert_array_equal(account.spent, plan.spent)
    assert account.lost == plan.steps - account.taken
    np.testing.assert_array_less(account.spent, plan.epsilon)


def test_a_round_that_is_taken_up_has_the_coins_that_it_had(tmp_path):
    with pytest.warns(sartor.RarelyUsed):
        plan = sartor.plan(PEOPLE, "rounds", steps=12, batch=20, rounds=2, spread="even", accountant="rdp")
    assert np.any(plan.parts.inclusion < 1)
    keys = {}
    for number in range(6):
        model = nn.Linear(3, 2)
        model, private, loader = sartor.make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), DATA, PEOPLE, plan)
        loader.checkpoint(tmp_path / "run", every=2, resume=number > 0)
        inputs, targets = next(iter(loader))
        private.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        private.step()
        keys[2 * number] = loader.draws.sampler.round_key(private.run.steps)
        loader.let_go()
    first, second = {keys[step] for step in (0, 2, 4)}, {keys[step] for step in (6, 8, 10)}
    assert len(first) == len(second) == 1
    assert not first & second


def test_noise_of_a_lost_step_is_never_drawn_again():
    one = Stream()
    before = one.generator("noise", 7).random(4)
    one.incarnate(1)
    assert not np.any(one.generator("noise", 7).random(4) == before)
