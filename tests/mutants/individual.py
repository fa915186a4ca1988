"""Breaks of what is released of people's accounts, and of the reserve that pays for it."""

import contextlib
import functools
import math
import tempfile
from pathlib import Path

import numpy as np
import pytest

import sartor
from mutants.machinery import catcher, mutant
from sartor.accounting import gaussian
from sartor.errors import Infeasible
from sartor.individual import release, reserve
from sartor.individual.release import Noise, released
from sartor.individual.request import Figures, Request
from sartor.individual.reserve import Reserve
from sartor.run.charges import Charges
from sartor.run.stream import Stream

ACCOUNTS = Figures(np.linspace(0.1, 0.9, 150))
EVERYTHING = Request(quantiles=[0.25, 0.5], rounds=4, histogram=[0.0, 1.0, 2.0, 4.0])


@functools.cache
def planned():
    people = sartor.Budgets.from_groups([(1.0, 60), (2.0, 50), (4.0, 40)], delta=[1e-4, 1e-5, 1e-3], reserve=0.3)
    return sartor.plan(people, steps=20, batch=40, accountant="rdp")


@catcher("counts with one holder zeroed", "test")
def COUNTS():
    account = np.linspace(0.1, 3.0, 40)
    without = np.append(account[:-1], 0.0)
    one, other = release.counts(account, [0.5, 1.0, 2.5]), release.counts(without, [0.5, 1.0, 2.5])
    return float(np.linalg.norm(one.values - other.values)) > one.sensitivity * (1 + 1e-12)


@catcher("noise of all answers together", "test", planned)
def TOGETHER(plan):
    """Squared sensitivities over deviations of a release add up to no more than its price."""
    told, right = [], release.normal
    with pytest.MonkeyPatch.context() as patch:
        added = Noise.added

        def noting(self, query, *given):
            told.append([query.sensitivity, 0.0])
            return added(self, query, *given)

        def drawn(generator, size, deviation, draws):
            told[-1][1] = deviation
            return right(generator, size, deviation, draws)

        patch.setattr(Noise, "added", noting)
        patch.setattr(release, "normal", drawn)
        released(plan, ACCOUNTS, EVERYTHING, epsilon=0.2, delta=1e-6, stream=Stream(1))
    return math.sqrt(math.fsum((moved / deviation) ** 2 for moved, deviation in told)) > gaussian.mu_for(0.2, 1e-6)


@catcher("deviation of the noise on answers", "test", planned)
def DEVIATION(plan):
    """What is added to answers, over what the release says of it, in many of them."""
    found = []
    with pytest.MonkeyPatch.context() as patch:
        added = Noise.added

        def noting(self, query, share, *given):
            told = added(self, query, share, *given)
            found.extend(((told - query.values) / self.deviation(query, share)).tolist())
            return told

        patch.setattr(Noise, "added", noting)
        for seed in range(40):
            released(plan, ACCOUNTS, EVERYTHING, epsilon=0.2, delta=1e-6, stream=Stream(seed))
    return abs(float(np.mean(np.square(found))) - 1) > 6 * math.sqrt(2 / len(found))


@catcher("a reserve that is asked for more than it has", "test", planned)
def RESERVE(plan):
    with tempfile.TemporaryDirectory() as path:
        kept = Reserve.create(Path(path) / "reserve", plan)
        try:
            for part in range(1, 5):
                Reserve(kept.path, plan).release(ACCOUNTS, Request(quantiles=[part / 10], rounds=2), epsilon=0.1)
        except Infeasible:
            return part != 4
        return True


@catcher("a release that cannot be charged", "test", planned)
def UNCHARGED(plan):
    with tempfile.TemporaryDirectory() as path, pytest.MonkeyPatch.context() as patch:
        kept = Reserve.create(Path(path) / "reserve", plan)

        def full(*given):
            raise OSError("no space left")

        patch.setattr(Charges, "add", full)
        try:
            kept.release(ACCOUNTS, Request(), epsilon=0.1)
        except OSError:
            return False
        return True


@catcher("the same request again", "test", planned)
def AGAIN(plan):
    with tempfile.TemporaryDirectory() as path:
        kept = Reserve.create(Path(path) / "reserve", plan)
        first, second = (kept.release(ACCOUNTS, Request(), epsilon=0.1) for _ in range(2))
        return len(kept.releases) == 1 and first != second


@mutant(COUNTS, quick=True)
def quantile_sensitivity_halved(patch):
    """A holder who moves from one cell to another counts as half of that."""
    right = release.counts
    patch.setattr(release, "counts", lambda *given: release.Query((q := right(*given)).values, q.sensitivity / 2))


@mutant(TOGETHER)
def every_answer_at_the_whole_price(patch):
    """Each answer of a release has the noise that the whole price would buy for it alone."""
    patch.setattr(Noise, "deviation", lambda self, query, share: query.sensitivity / self.mu)


@mutant(DEVIATION)
def release_noise_halved(patch):
    """What is released of accounts has half of its noise."""
    right = release.normal
    patch.setattr(release, "normal", lambda generator, size, deviation, draws: right(generator, size, deviation / 2, draws))


@mutant(RESERVE, quick=True)
def reserve_not_charged(patch):
    """Releases leave the reserve as it was."""
    patch.setattr(Charges, "add", lambda self, charge, lock: None)
    patch.setattr(Charges, "settle", lambda self, charge: None)


@mutant(UNCHARGED)
def releases_charged_after_printing(patch):
    """An answer is handed out before it is charged, and stays out if that fails."""

    def early(self, figures, request, *, epsilon, stream=None):
        with reserve.lock(self.path) as held:
            self._charges.read(held)
            self._check_left(epsilon)
            found = released(self.plan, figures, request, epsilon=epsilon, delta=reserve.delta_for(self.plan, epsilon), stream=stream)
            with contextlib.suppress(OSError):
                self._charges.add(reserve.Charge(reserve._document(request), epsilon, found), held)
            return found

    patch.setattr(Reserve, "release", early)


@mutant(AGAIN)
def answers_drawn_again_for_free(patch):
    """The same request gets a new answer, and is not charged for it."""
    told = Reserve._told

    def fresh(self, request, epsilon, *, seeded):
        before = told(self, request, epsilon, seeded=seeded)
        if before is None:
            return None
        return released(self.plan, ACCOUNTS, request, epsilon=epsilon, delta=reserve.delta_for(self.plan, epsilon))

    patch.setattr(Reserve, "_told", fresh)
