"""Faults put into PATE on purpose: each must be caught by a check that the tests beside this one run."""

import dataclasses
import importlib

import numpy as np
import pytest

import sartor
from sartor.pate import folder, voting
from sartor.pate.aggregators import Confident, GNMax
from sartor.pate.build import plan
from sartor.pate.plan import PatePlan
from sartor.run import charges, files
from sartor.run.stream import Stream
from sartor_testing import ensembles, kept_ensembles
from sartor_testing.ensembles import account_matches_transcript, asks_what_a_loop_would_ask, holders_within_budget, random_votes

placing = importlib.import_module("sartor.pate.partition")


def people():
    """Three groups in a random order, the open ones first to appear."""
    return sartor.Budgets(np.random.default_rng(2).permutation([4.0] * 20 + [1.0] * 50 + [2.0] * 30), delta=1e-5)


def voted(variant="weight", kind=None, queries=600):
    """A voting until somebody has nothing left: the people, the plan, the votes and the labels."""
    budgets = people()
    found = plan(budgets, variant, teachers=10, aggregator=kind or Confident(noise=40.0, threshold=6.0, threshold_noise=40.0))
    votes = random_votes(queries, found.teachers, 3, 1)[0]
    labels = voting.aggregate(found, votes, 3, stream=Stream(seed=1))
    assert 0 < labels.asked.sum() < queries
    assert 0 < labels.answered.sum() < labels.asked.sum() or not found.aggregator.tests
    return budgets, found, votes, labels


def keeps_the_budgets(variant="weight", kind=None):
    budgets, found, _, labels = voted(variant, kind)
    return holders_within_budget(budgets, found, [labels])


def accounts_for_the_transcript(variant="weight", kind=None):
    _, found, _, labels = voted(variant, kind)
    return account_matches_transcript(found, labels)


def asks_like_a_loop(variant="weight", kind=None):
    _, found, votes, labels = voted(variant, kind)
    return asks_what_a_loop_would_ask(found, labels, votes)


def charging(monkeypatch, change):
    """Sensitivities of groups, changed: of the queries to come and of those that were asked."""
    row, fit = voting.Voting._row_sensitivity, PatePlan.sensitivity
    monkeypatch.setattr(voting.Voting, "_row_sensitivity", lambda self, weights: change(row(self, weights)))
    monkeypatch.setattr(PatePlan, "sensitivity", property(lambda self: change(fit.fget(self))))


@pytest.mark.parametrize("variant", ["weight", "upsample"])
def test_the_sensitivity_of_another_group_is_caught(monkeypatch, variant):
    assert accounts_for_the_transcript(variant)
    assert asks_like_a_loop(variant)
    charging(monkeypatch, lambda of_groups: np.roll(of_groups, 1, axis=-1))
    assert not accounts_for_the_transcript(variant)
    assert not asks_like_a_loop(variant)


@pytest.mark.parametrize("variant", ["weight", "upsample"])
def test_the_sensitivity_of_the_strictest_group_for_all_is_caught(monkeypatch, variant):
    assert keeps_the_budgets(variant)
    charging(monkeypatch, lambda of_groups: np.zeros_like(of_groups) + of_groups[..., :1])
    assert not keeps_the_budgets(variant)


def test_a_teachers_rest_taken_for_another_teachers_is_caught(monkeypatch):
    assert accounts_for_the_transcript("vanish")
    row = voting.Voting._row_sensitivity
    monkeypatch.setattr(voting.Voting, "_row_sensitivity", lambda self, weights: np.roll(row(self, weights), 1, axis=1))
    assert not accounts_for_the_transcript("vanish")


def test_a_sensitivity_of_one_under_vanishing_is_caught(monkeypatch):
    """Proposition 4 of the paper, read without the scaling of the votes."""
    assert keeps_the_budgets("vanish")
    right = voting.Voting._multipliers
    monkeypatch.setattr(voting.Voting, "_multipliers", lambda self, *given: ((both := right(self, *given))[0], (both[1] > 0) * 1.0))
    monkeypatch.setattr(voting.Voting, "_row_sensitivity", lambda self, weights: (weights > 0) * 1.0)
    assert not keeps_the_budgets("vanish")


def test_a_refused_query_that_is_charged_is_caught(monkeypatch):
    assert accounts_for_the_transcript()
    right = voting.Voting._safe

    def demanding(self, sensitivity, allowance):
        safe, out = right(self, sensitivity, allowance)
        if not safe:
            self.cost = self.cost + sensitivity[0] ** 2 * sum(self._prices())
        return safe, out

    monkeypatch.setattr(voting.Voting, "_safe", demanding)
    assert not accounts_for_the_transcript()


def free(monkeypatch, tests, answers):
    prices, ask = voting.Voting._prices, voting.Voting._ask

    def cheaper(self, *given):
        self._prices = lambda: tuple(price * kept for price, kept in zip(prices(self), (tests, answers), strict=True))
        try:
            return ask(self, *given)
        finally:
            del self._prices

    monkeypatch.setattr(voting.Voting, "_ask", cheaper)


def all_checks_fail():
    return not (keeps_the_budgets() or accounts_for_the_transcript() or asks_like_a_loop())


def test_an_answered_query_that_is_not_charged_is_caught(monkeypatch):
    assert keeps_the_budgets()
    assert accounts_for_the_transcript()
    assert asks_like_a_loop()
    free(monkeypatch, 1, 0)
    assert all_checks_fail()


def test_a_threshold_test_that_is_not_charged_is_caught(monkeypatch):
    free(monkeypatch, 0, 1)
    assert all_checks_fail()


def test_a_query_asked_because_its_price_of_test_fits_is_caught(monkeypatch):
    assert asks_like_a_loop()
    right = voting.Voting._prices

    def price_of_test(self, multipliers, allowance):
        monkeypatch.setattr(voting.Voting, "_prices", lambda self: (right(self)[0], 0.0))
        try:
            return whole(self, multipliers, allowance)
        finally:
            monkeypatch.setattr(voting.Voting, "_prices", right)

    whole = voting.Voting._safe
    monkeypatch.setattr(voting.Voting, "_safe", price_of_test)
    assert not asks_like_a_loop()
    assert not keeps_the_budgets()


def test_a_duplicate_inside_one_teacher_is_caught(monkeypatch):
    assert ensembles.no_teacher_sees_a_record_twice()
    right = placing.Partition

    def twice(teachers, rows, of_row):
        last = np.flatnonzero(rows == rows.max())
        of_row = of_row.copy()
        of_row[last] = of_row[last[0]]
        return right(teachers, rows, of_row)

    monkeypatch.setattr(placing, "Partition", twice)
    assert not ensembles.no_teacher_sees_a_record_twice()


def test_records_placed_by_record_instead_of_by_holder_are_caught(monkeypatch):
    assert ensembles.records_go_where_their_holder_goes()
    right = placing.partition

    def by_record(found, budgets, key=None, *, ownership=None, holders=None):
        if ownership is None:
            return right(found, budgets, key, holders=holders)
        place = ownership.of_record
        return right(found, sartor.Budgets(budgets.epsilon[place], delta=budgets.delta[place], reserve=budgets.reserve), key)

    monkeypatch.setattr(placing, "partition", by_record)
    assert not ensembles.records_go_where_their_holder_goes()


@pytest.mark.parametrize("variant", ["standard", "upsample", "weight", "vanish"])
def test_a_holder_split_across_teachers_is_caught(monkeypatch, variant):
    """The last record of all goes elsewhere among its group's teachers, and no teacher has it twice."""
    assert ensembles.records_go_where_their_holder_goes(variant)
    right = placing.Partition

    def split(teachers, rows, of_row):
        if rows.max() == 89:  # one record of each
            return right(teachers, rows, of_row)
        of_row = of_row.copy()
        own = np.flatnonzero(rows == rows.max())
        # a neighbour that does not have it yet; at an end of the group's teachers, the one on the other side
        of_row[own[-1]] = next(t for t in (of_row[own[-1]] + 1, of_row[own[-1]] - 1) if 0 <= t < teachers and t not in of_row[own])
        return right(teachers, rows, of_row)

    monkeypatch.setattr(placing, "Partition", split)
    assert not ensembles.records_go_where_their_holder_goes(variant)


def test_the_records_of_a_holder_shared_out_over_their_teachers_are_caught(monkeypatch):
    """As many records in all, and every teacher among the holder's own, but not all with each."""
    right = placing.Partition

    def shared(teachers, rows, of_row):
        if rows.max() == 89:
            return right(teachers, rows, of_row)
        once = np.append(True, rows[1:] != rows[:-1])
        return right(teachers, rows[once], of_row[once])

    monkeypatch.setattr(placing, "Partition", shared)
    assert not ensembles.records_go_where_their_holder_goes()


OWNED = [kept_ensembles.OWNERS, kept_ensembles.SHUFFLED]  # several records of each, and one, so that no number differs


@pytest.mark.parametrize("owners", OWNED)
@pytest.mark.parametrize("quietly", [False, True])
def test_an_ownership_that_is_forgotten_on_reopening_is_caught(monkeypatch, tmp_path, quietly, owners):
    assert kept_ensembles.an_ensemble_goes_on_with_its_ownership(tmp_path / "right", owners)
    right = folder.EnsembleFolder.__init__

    def forgetful(self, path):
        right(self, path)
        self.ownership = None
        if quietly:  # also of how many records there are
            self.plan = dataclasses.replace(self.plan, records=None)

    monkeypatch.setattr(folder.EnsembleFolder, "__init__", forgetful)
    assert not kept_ensembles.an_ensemble_goes_on_with_its_ownership(tmp_path / "wrong", owners)


@pytest.mark.parametrize("owners", OWNED)
def test_an_ownership_that_is_not_written_is_caught(monkeypatch, tmp_path, owners):
    right = folder.EnsembleFolder.create.__func__
    bare = classmethod(lambda cls, *given, ownership, **more: right(cls, *given, **more))
    monkeypatch.setattr(folder.EnsembleFolder, "create", bare)
    assert not kept_ensembles.an_ensemble_goes_on_with_its_ownership(tmp_path / "wrong", owners)


@pytest.mark.parametrize("owners", OWNED)
def test_teachers_taught_without_the_ownership_are_caught(monkeypatch, tmp_path, owners):
    right = folder.partition
    monkeypatch.setattr(folder, "partition", lambda found, people, key, **_: right(dataclasses.replace(found, records=None), people, key))
    assert not kept_ensembles.an_ensemble_goes_on_with_its_ownership(tmp_path / "wrong", owners)


def test_a_second_aggregation_that_is_not_charged_is_caught(monkeypatch, tmp_path):
    assert kept_ensembles.all_aggregations_keep_the_budgets(tmp_path / "right")
    right = folder.aggregate
    monkeypatch.setattr(folder, "aggregate", lambda *given, before, **more: right(*given, before=before[:1], **more))
    assert not kept_ensembles.all_aggregations_keep_the_budgets(tmp_path / "wrong")


def test_an_account_that_is_not_written_is_caught(monkeypatch, tmp_path):
    monkeypatch.setattr(charges, "write_private", lambda *_, **__: None)
    monkeypatch.setattr(charges, "_fingerprint", lambda _: "")
    assert not kept_ensembles.all_aggregations_keep_the_budgets(tmp_path / "wrong")


def test_a_charge_written_over_another_is_caught_where_there_is_no_lock(monkeypatch, tmp_path):
    monkeypatch.setattr(files.fcntl, "flock", lambda *_: None)
    kept_ensembles.saved(tmp_path / "right")
    found = kept_ensembles.aggregations_at_once(tmp_path / "right", 3, 5)
    # who is overtaken between a charge and its count hands nothing out, and asks and pays again: never fewer charges than releases
    charged = kept_ensembles.EnsembleFolder(tmp_path / "right")
    assert len(charged.accounts) >= len(found)
    assert holders_within_budget(kept_ensembles.PEOPLE, charged.plan, found)
    right = charges.write_private
    monkeypatch.setattr(charges, "write_private", lambda path, content, **_: right(path, content))
    made = kept_ensembles.saved(tmp_path / "wrong")
    monkeypatch.setattr(charges.Charges, "_witness", lambda _: 0)
    overtaken = folder.aggregate

    def late(*given, **more):
        monkeypatch.setattr(folder, "aggregate", overtaken)
        mine = overtaken(*given, **more)
        kept_ensembles.EnsembleFolder(tmp_path / "wrong").aggregate(labels=2)
        return mine

    monkeypatch.setattr(folder, "aggregate", late)
    made.aggregate(labels=2)
    assert len(kept_ensembles.EnsembleFolder(tmp_path / "wrong").accounts) == 1  # of two


class Quieter:
    """A generator whose noise is a tenth too small."""

    def __init__(self, generator):
        self.generator = generator

    def normal(self, *given):
        return 0.9 * self.generator.normal(*given)


def test_noise_a_tenth_too_low_is_caught(monkeypatch):
    assert ensembles.answers_have_the_noise()
    assert ensembles.the_tests_have_the_noise()
    right = Stream.generator
    monkeypatch.setattr(Stream, "generator", lambda self, *given: Quieter(right(self, *given)))
    assert not ensembles.answers_have_the_noise()
    assert not ensembles.the_tests_have_the_noise()


@pytest.mark.parametrize("variant", ["weight", "upsample", "vanish"])
def test_weights_matched_to_groups_by_position_are_caught(monkeypatch, variant):
    """As the paper's program does: groups in the order in which they appear, weights in the order of the budgets."""
    assert keeps_the_budgets(variant, GNMax(noise=40.0))
    right = PatePlan.groups_of

    def by_position(self, budgets):
        found = right(self, budgets)
        order = list(dict.fromkeys(found.tolist()))
        return np.array([order.index(group) for group in found.tolist()])

    monkeypatch.setattr(PatePlan, "groups_of", by_position)
    assert not keeps_the_budgets(variant, GNMax(noise=40.0))


def test_a_reserve_that_is_spent_is_caught(monkeypatch):
    def keeps():
        budgets = people().with_reserve(0.3)
        found = plan(budgets, "weight", teachers=10, aggregator=GNMax(noise=40.0))
        labels = voting.aggregate(found, random_votes(400, 10, 3, 1)[0], 3, stream=Stream(seed=1))
        return holders_within_budget(budgets, found, [labels])

    assert keeps()
    monkeypatch.setattr(PatePlan, "spendable", property(lambda self: (self.epsilon, self.delta)))
    assert not keeps()
