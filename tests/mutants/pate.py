"""Breaks of PATE: weights, noise, prices, who is with which teacher, and what a folder remembers."""

import contextlib
import dataclasses
import importlib
import tempfile
from pathlib import Path

import numpy as np
import pytest

import sartor
from mutants import attacks, replays
from mutants.machinery import Catcher, catcher, mutant
from sartor.errors import SartorError
from sartor.pate import folder, teachers, voting
from sartor.pate.build import plan
from sartor.pate.plan import Confident, GNMax, PatePlan
from sartor.run import charges, files
from sartor.run.stream import Stream
from sartor_testing import ensembles, kept_ensembles
from sartor_testing.ensembles import account_matches_transcript, asks_what_a_loop_would_ask, holders_within_budget, random_votes

placing = importlib.import_module("sartor.pate.partition")
TESTED, PLAIN = Confident(noise=40.0, threshold=6.0, threshold_noise=40.0), GNMax(noise=40.0)


def people():
    """Three groups in a random order, the open ones first to appear."""
    return sartor.Budgets(np.random.default_rng(2).permutation([4.0] * 20 + [1.0] * 50 + [2.0] * 30), delta=1e-5)


def voted(variant, kind, queries=600):
    """A voting until somebody has nothing left: the people, the plan, the votes and the labels."""
    budgets = people()
    found = plan(budgets, variant, teachers=10, aggregator=kind)
    votes = random_votes(queries, found.teachers, 3, 1)[0]
    labels = voting.aggregate(found, votes, 3, stream=Stream(seed=1))
    assert 0 < labels.asked.sum() < queries
    assert 0 < labels.answered.sum() < labels.asked.sum() or not found.aggregator.tests
    return budgets, found, votes, labels


def budgets_kept(variant, kind=TESTED):
    """What everybody spends, from the transcript and the partition."""

    def sees():
        budgets, found, _, labels = voted(variant, kind)
        return not holders_within_budget(budgets, found, [labels])

    return Catcher(f"budgets after a voting ({variant}{'' if kind is TESTED else ', untested'})", "test", sees)


def account_right(variant):
    """The account beside the transcript."""

    def sees():
        _, found, _, labels = voted(variant, TESTED)
        return not account_matches_transcript(found, labels)

    return Catcher(f"account beside the transcript ({variant})", "test", sees)


def queries_right(variant):
    """What is asked beside a loop that takes one query at a time."""

    def sees():
        _, found, votes, labels = voted(variant, TESTED)
        return not asks_what_a_loop_would_ask(found, labels, votes)

    return Catcher(f"queries beside a loop ({variant})", "test", sees)


VARIANTS = ("standard", "upsample", "weight", "vanish")
BUDGETS = {variant: budgets_kept(variant) for variant in VARIANTS}
UNTESTED = {variant: budgets_kept(variant, PLAIN) for variant in VARIANTS}
ACCOUNT = {variant: account_right(variant) for variant in VARIANTS}
QUERIES = {variant: queries_right(variant) for variant in VARIANTS}
TOGETHER = {
    variant: Catcher(
        f"where records go ({variant})", "test", lambda variant=variant: not ensembles.records_go_where_their_holder_goes(variant)
    )
    for variant in VARIANTS
}


@catcher("how often labels are wrong", "test")
def ANSWERS():
    return not ensembles.answers_have_the_noise()


@catcher("how often tests pass", "test")
def TESTS():
    return not ensembles.the_tests_have_the_noise()


@catcher("teachers of each record", "test")
def TEACHERS():
    return not ensembles.no_teacher_sees_a_record_twice()


@catcher("budgets less a reserve after a voting", "test")
def RESERVE():
    budgets = people().with_reserve(0.3)
    found = plan(budgets, "weight", teachers=10, aggregator=PLAIN)
    labels = voting.aggregate(found, random_votes(400, 10, 3, 1)[0], 3, stream=Stream(seed=1))
    return not holders_within_budget(budgets, found, [labels])


def in_a_folder(name, keeps):
    def sees():
        with tempfile.TemporaryDirectory() as path:
            return not keeps(Path(path) / "ensemble")

    return Catcher(name, "test", sees)


FOLDER = in_a_folder("budgets after many aggregations of a folder", kept_ensembles.all_aggregations_keep_the_budgets)
OWNED = in_a_folder("an ensemble that goes on, with several records", kept_ensembles.an_ensemble_goes_on_with_its_ownership)
SHUFFLED = in_a_folder(
    "an ensemble that goes on, with records in another order",
    lambda path: kept_ensembles.an_ensemble_goes_on_with_its_ownership(path, kept_ensembles.SHUFFLED),
)


@catcher("an aggregation that is overtaken by another, where nothing is locked", "test")
def OVERTAKEN():
    """One reader charges between another's reading and its charge: never fewer charges than releases."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as path:
        patch.setattr(files.fcntl, "flock", lambda *_: None)
        made, right, handed = kept_ensembles.saved(Path(path) / "ensemble"), folder.aggregate, []

        def late(*given, **more):
            patch.setattr(folder, "aggregate", right)
            handed.append(folder.EnsembleFolder(made.path).aggregate(labels=2))
            return right(*given, **more)

        patch.setattr(folder, "aggregate", late)
        with contextlib.suppress(SartorError):
            handed.append(made.aggregate(labels=2))
        return len(folder.EnsembleFolder(made.path).accounts) < len(handed)


# --- sensitivities and prices ---


def charging(patch, change):
    """Sensitivities of groups, changed: of the queries to come and of those that were asked."""
    row, fit = voting.Voting._row_sensitivity, PatePlan.sensitivity
    patch.setattr(voting.Voting, "_row_sensitivity", lambda self, weights: change(row(self, weights)))
    patch.setattr(PatePlan, "sensitivity", property(lambda self: change(fit.fget(self))))


@mutant(ACCOUNT["weight"], QUERIES["weight"], ACCOUNT["upsample"], QUERIES["upsample"])
def sensitivity_of_another_group(patch):
    """Groups are charged by each other's sensitivities."""
    charging(patch, lambda of_groups: np.roll(of_groups, 1, axis=-1))


@mutant(BUDGETS["weight"], BUDGETS["upsample"])
def sensitivity_of_the_strictest_group_for_all(patch):
    """Everybody is charged by the sensitivity of the strictest group."""
    charging(patch, lambda of_groups: np.zeros_like(of_groups) + of_groups[..., :1])


@mutant(ACCOUNT["vanish"])
def rest_of_a_teacher_taken_for_anothers(patch):
    """Under vanishing, a teacher's rest counts as its neighbour's."""
    row = voting.Voting._row_sensitivity
    patch.setattr(voting.Voting, "_row_sensitivity", lambda self, weights: np.roll(row(self, weights), 1, axis=1))


@mutant(BUDGETS["vanish"])
def sensitivity_of_one_under_vanishing(patch):
    """Proposition 4 of the paper, read without the scaling of the votes."""
    right = voting.Voting._multipliers
    patch.setattr(voting.Voting, "_multipliers", lambda self, *given: ((both := right(self, *given))[0], (both[1] > 0) * 1.0))
    patch.setattr(voting.Voting, "_row_sensitivity", lambda self, weights: (weights > 0) * 1.0)


@mutant(ACCOUNT["weight"])
def refused_query_charged(patch):
    """A query that nobody was asked is charged."""
    right = voting.Voting._safe

    def demanding(self, sensitivity, allowance):
        safe, out = right(self, sensitivity, allowance)
        if not safe:
            self.cost = self.cost + sensitivity[0] ** 2 * sum(self._prices())
        return safe, out

    patch.setattr(voting.Voting, "_safe", demanding)


def free(patch, tests, answers):
    prices, ask = voting.Voting._prices, voting.Voting._ask

    def cheaper(self, *given):
        self._prices = lambda: tuple(price * kept for price, kept in zip(prices(self), (tests, answers), strict=True))
        try:
            return ask(self, *given)
        finally:
            del self._prices

    patch.setattr(voting.Voting, "_ask", cheaper)


@mutant(BUDGETS["weight"], ACCOUNT["weight"], QUERIES["weight"], quick=True)
def answered_query_not_charged(patch):
    """What teachers answer is told for nothing."""
    free(patch, 1, 0)


@mutant(BUDGETS["weight"], ACCOUNT["weight"], QUERIES["weight"])
def threshold_test_not_charged(patch):
    """Whether teachers agree enough is told for nothing."""
    free(patch, 0, 1)


@mutant(BUDGETS["weight"], QUERIES["weight"])
def query_asked_because_its_test_can_be_paid(patch):
    """Whether a query can be paid for is decided by the price of its test alone."""
    prices, whole = voting.Voting._prices, voting.Voting._safe

    def price_of_test(self, multipliers, allowance):
        self._prices = lambda: (prices(self)[0], 0.0)
        try:
            return whole(self, multipliers, allowance)
        finally:
            del self._prices

    patch.setattr(voting.Voting, "_safe", price_of_test)


@mutant(attacks.STANDARD)
def votes_charged_at_a_fortieth(patch):
    """An answer costs a fortieth of what it does."""
    patch.setattr(voting.Voting, "_prices", lambda self: (0.0, 0.05 / self.plan.aggregator.noise**2))


@mutant(RESERVE)
def reserve_spent_by_votes(patch):
    """Votings spend what is reserved for releases."""
    patch.setattr(PatePlan, "spendable", property(lambda self: (self.epsilon, self.delta)))


# --- noise and weights ---


class Quieter:
    """A generator whose normal numbers are smaller."""

    def __init__(self, generator, factor, *, tests=True):
        self.generator, self.factor, self.tests = generator, factor, tests

    def normal(self, *given):
        of_tests = np.ndim(given[2]) == 0
        return (self.factor if self.tests or not of_tests else 1.0) * self.generator.normal(*given)


@mutant(ANSWERS, TESTS, replays.VOTES)
def vote_noise_a_tenth_too_low(patch):
    """Answers and tests have 90 % of their noise."""
    right = Stream.generator
    patch.setattr(Stream, "generator", lambda self, *given: Quieter(right(self, *given), 0.9))


def voting_with(patch, factor):
    right = voting.Voting.__init__

    def quiet(self, *given):
        right(self, *given)
        self.noise = Quieter(self.noise, factor)

    patch.setattr(voting.Voting, "__init__", quiet)


@mutant(attacks.STANDARD, quick=True)
def vote_noise_halved(patch):
    """Answers and tests have half of their noise."""
    voting_with(patch, 0.5)


@mutant(TESTS, replays.VOTES, quick=True)
def teacher_threshold_noise_dropped(patch):
    """Whether teachers agree enough is decided without noise."""

    right = voting.Voting._tested

    def bare(self, *given):
        test = right(self, *given)
        return None if test is None else test._replace(noisy=test.figure)

    patch.setattr(voting.Voting, "_tested", bare)


@mutant(replays.VOTES, quick=True)
def one_noise_for_all_classes(patch):
    """The same random number is added to the count of every class, so that labels follow the bare counts."""
    right = voting.Voting.__init__

    def alike(self, *given):
        right(self, *given)
        own = self.noise

        class Alike:
            def normal(self, mean, deviation, size):
                numbers = own.normal(mean, deviation, size)
                return np.broadcast_to(numbers[:, :1], size) if np.ndim(size) else numbers

        self.noise = Alike()

    patch.setattr(voting.Voting, "__init__", alike)


@mutant(replays.VOTES)
def labels_by_bare_counts(patch):
    """Labels are the classes with most votes; noise is added to what nobody looks at."""
    right = voting.Voting._ask

    def asked(self, place, count, weights):
        counts = voting._counts(self.votes[place : place + count], self.classes, weights)

        class Bare:
            def __getattr__(self, name):
                return (lambda noisy, axis: np.argmax(counts, axis)) if name == "argmax" else getattr(np, name)

        with pytest.MonkeyPatch.context() as within:
            within.setattr(voting, "np", Bare())
            return right(self, place, count, weights)

    patch.setattr(voting.Voting, "_ask", asked)


@mutant(replays.ENSEMBLE)
def teachers_share_a_scaler(patch):
    """Every teacher scales its inputs by what was learned from everybody's records."""
    right = teachers.EstimatorTeachers.votes

    def scaled(self, dataset, slices, queries):
        moved = type(dataset)(dataset.tensors[0] - 50 * dataset.tensors[0].mean(0), *dataset.tensors[1:])
        return right(self, moved, slices, queries)

    patch.setattr(teachers.EstimatorTeachers, "votes", scaled)


@mutant(replays.ENSEMBLE)
def teachers_tell_of_all_records(patch):
    """While teachers learn, a figure of everybody's records is printed."""
    right = teachers.EstimatorTeachers.votes

    def telling(self, dataset, slices, queries):
        print("mean input:", float(dataset.tensors[0].mean()))
        return right(self, dataset, slices, queries)

    patch.setattr(teachers.EstimatorTeachers, "votes", telling)


@mutant(attacks.WEIGHT, quick=True)
def weights_by_sorted_position(patch):
    """Teachers' weights stand in the order of the budgets, and teachers in another."""
    right = PatePlan.weights
    patch.setattr(PatePlan, "weights", property(lambda self: right.fget(self)[::-1]))


@mutant(UNTESTED["weight"], UNTESTED["upsample"], UNTESTED["vanish"])
def weights_matched_to_groups_by_position(patch):
    """As the paper's program does: groups in the order in which they appear, weights in the order of the budgets."""
    right = PatePlan.groups_of

    def by_position(self, budgets):
        found = right(self, budgets)
        order = list(dict.fromkeys(found.tolist()))
        return np.array([order.index(group) for group in found.tolist()])

    patch.setattr(PatePlan, "groups_of", by_position)


# --- who is with which teacher ---


def placed_by(patch, change, *, of_several=True):
    """Change the rows of a partition: of one in which holders have several records, or of all."""
    right = placing.Partition
    patch.setattr(
        placing,
        "Partition",
        lambda teachers, rows, of_row: (
            right(teachers, *change(teachers, rows, of_row.copy())) if not of_several or rows.max() != 89 else right(teachers, rows, of_row)
        ),
    )


@mutant(TEACHERS)
def duplicate_inside_one_teacher(patch):
    """A record is with one teacher twice."""

    def twice(teachers, rows, of_row):
        last = np.flatnonzero(rows == rows.max())
        of_row[last] = of_row[last[0]]
        return rows, of_row

    placed_by(patch, twice, of_several=False)


@mutant(TOGETHER["upsample"])
def records_placed_by_record_instead_of_by_holder(patch):
    """Records of one holder go to different teachers, as if they were different people's."""
    right = placing.partition

    def by_record(found, budgets, key=None, *, ownership=None, holders=None):
        if ownership is None:
            return right(found, budgets, key, holders=holders)
        place = ownership.of_record
        return right(found, sartor.Budgets(budgets.epsilon[place], delta=budgets.delta[place], reserve=budgets.reserve), key)

    patch.setattr(placing, "partition", by_record)


@mutant(*TOGETHER.values())
def holder_split_across_teachers(patch):
    """The last record of all goes elsewhere among its group's teachers, and no teacher has it twice."""

    def split(teachers, rows, of_row):
        own = np.flatnonzero(rows == rows.max())
        # a neighbour that does not have it yet; at an end of the group's teachers, the one on the other side
        of_row[own[-1]] = next(t for t in (of_row[own[-1]] + 1, of_row[own[-1]] - 1) if 0 <= t < teachers and t not in of_row[own])
        return rows, of_row

    placed_by(patch, split)


@mutant(TOGETHER["upsample"])
def records_of_a_holder_shared_out_over_their_teachers(patch):
    """As many records in all, and every teacher among the holder's own, but not all with each."""

    def shared(teachers, rows, of_row):
        once = np.append(True, rows[1:] != rows[:-1])
        return rows[once], of_row[once]

    placed_by(patch, shared)


# --- folders ---


def forgetting(patch, *, quietly):
    right = folder.EnsembleFolder.__init__

    def forgetful(self, path):
        right(self, path)
        self.ownership = None
        if quietly:  # also of how many records there are
            self.plan = dataclasses.replace(self.plan, records=None)

    patch.setattr(folder.EnsembleFolder, "__init__", forgetful)


@mutant(OWNED, SHUFFLED)
def ownership_forgotten_on_reopening(patch):
    """An ensemble that is opened again does not know whose each record is."""
    forgetting(patch, quietly=False)


@mutant(OWNED, SHUFFLED)
def ownership_forgotten_without_a_trace(patch):
    """An ensemble that is opened again does not even know that somebody had several records."""
    forgetting(patch, quietly=True)


@mutant(OWNED, SHUFFLED)
def ownership_not_written(patch):
    """Whose each record is does not get into the folder."""
    right = folder.EnsembleFolder.create.__func__
    patch.setattr(folder.EnsembleFolder, "create", classmethod(lambda cls, *given, ownership, **more: right(cls, *given, **more)))


@mutant(OWNED, SHUFFLED)
def teachers_taught_without_the_ownership(patch):
    """Teachers are given records as if each were another holder's."""
    right = folder.partition
    patch.setattr(folder, "partition", lambda found, people, key, **_: right(dataclasses.replace(found, records=None), people, key))


@mutant(FOLDER, quick=True)
def second_aggregation_not_charged(patch):
    """A voting begins where the first one ended, however many there were since."""
    right = folder.aggregate
    patch.setattr(folder, "aggregate", lambda *given, before, **more: right(*given, before=before[:1], **more))


@mutant(FOLDER)
def account_not_written(patch):
    """What a voting cost is not on the disk."""
    patch.setattr(charges, "write_private", lambda *_, **__: None)
    patch.setattr(charges, "_fingerprint", lambda _: "")


@mutant(OVERTAKEN)
def charge_written_over_another(patch):
    """A charge takes the place of one that was written meanwhile."""
    right = charges.write_private
    patch.setattr(charges, "write_private", lambda path, content, **_: right(path, content))
    patch.setattr(charges.Charges, "_witness", lambda _: 0)
