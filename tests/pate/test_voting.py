"""Votings: what people really paid, holder by holder from the transcript; what was asked, one query at a time; how much noise there was."""

import importlib
import warnings

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.stats import norm

import sartor
from sartor.errors import SartorError
from sartor.pate import voting
from sartor.pate.account import Accountant
from sartor.pate.build import plan
from sartor.pate.plan import NONE, Confident, GNMax, Interactive, PatePlan
from sartor.pate.variants import VARIANTS
from sartor.run.stream import Stream
from sartor_testing import pate_reference as reference
from sartor_testing.amount import examples
from sartor_testing.ensembles import (
    account_matches_transcript,
    answers_have_the_noise,
    asks_what_a_loop_would_ask,
    ensembles,
    holders_within_budget,
    near,
    noise_of_tests,
    open_plan,
    people,
    random_votes,
    the_tests_have_the_noise,
)

placing = importlib.import_module("sartor.pate.partition")


@settings(max_examples=examples(75, 150))
@given(ensembles())
def test_nobody_spends_more_than_their_budget(ensemble):
    budgets, found, votes, options, seed = ensemble
    one = voting.aggregate(found, votes, **options, stream=Stream(seed=seed))
    two = voting.aggregate(found, votes, **{**options, "labels": None}, before=[one.account], stream=Stream(seed=seed + 1))
    assert holders_within_budget(budgets, found, [one, two])
    for labels in (one, two):
        assert account_matches_transcript(found, labels)
        assert len(labels.weights) == labels.asked.sum() == labels.account.queries


@settings(max_examples=examples(50, 100))
@given(ensembles())
def test_blocks_ask_exactly_what_one_query_at_a_time_would_ask(ensemble):
    _, found, votes, options, seed = ensemble
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(voting, "_BLOCK", 1 + seed % 11)
        patch.setattr(voting, "_SCHEDULED", 1 + seed % 5)
        labels = voting.aggregate(found, votes, **options, stream=Stream(seed=seed))
    assert asks_what_a_loop_would_ask(found, labels, votes, go_on=options["go_on"], enough=options["labels"])
    whole = voting.aggregate(found, votes, **options, stream=Stream(seed=seed))
    assert asks_what_a_loop_would_ask(found, whole, votes, go_on=options["go_on"], enough=options["labels"])


@settings(max_examples=60)
@given(ensembles())
def test_a_transcript_is_in_order_and_answers_only_what_was_asked(ensemble):
    _, found, votes, options, seed = ensemble
    labels = voting.aggregate(found, votes, **options, stream=Stream(seed=seed))
    if not (options["go_on"] and found.rests):  # there, queries whose turn is that of teachers who are out are left out between others
        assert labels.asked.tolist() == sorted(labels.asked.tolist(), reverse=True)
    assert not np.any(labels.answered & ~labels.asked)
    assert np.all(labels.labels[~labels.asked] == NONE)
    assert np.all(labels.labels[labels.answered] >= 0)
    assert labels.labels.max(initial=NONE) < options["classes"]
    if options["student"] is None:
        assert np.array_equal(labels.labels != NONE, labels.answered)
    else:
        sure = labels.asked & ~labels.answered & (options["student"].max(1) > 0.9)
        assert np.array_equal(labels.labels[sure], options["student"].argmax(1)[sure])
        assert np.array_equal(labels.labels != NONE, labels.answered | sure)
    if options["labels"] is not None:
        assert len(labels) <= options["labels"]


@settings(max_examples=50)
@given(ensembles())
def test_the_account_says_at_least_what_holders_spent_and_at_most_their_budget(ensemble):
    budgets, found, votes, options, seed = ensemble
    shared = found.variant == "vanish" and len(set(found.begin.tolist())) < len(found)
    assume(not (shared and len(set(found.delta.tolist())) > 1))
    labels = voting.aggregate(found, votes, **options, stream=Stream(seed=seed))
    placed = placing.partition(found, budgets, b"key")
    costs = reference.costs_of_holders([labels], placed, len(budgets), found.aggregator.noise, noise_of_tests(found))
    eps, own = found.spendable
    group = found.groups_of(budgets)
    for g in range(len(found)):
        most = float(costs[group == g].max(initial=0.0))
        assert reference.gaussian_delta(np.sqrt(most), float(labels.account.spent[g])) <= own[g] * (1 + 1e-9)
    assert np.all(labels.account.spent <= eps)


def test_groups_that_share_a_teacher_are_each_reported_at_their_own_delta():
    budgets = sartor.Budgets.from_groups([(1.0, 3), (2.0, 3), (3.0, 94)], delta=[1e-3, 1e-9, 1e-5])
    found = plan(budgets, "vanish", teachers=10, aggregator=GNMax(noise=5.0))
    labels = voting.aggregate(found, np.zeros((200, 10), int), 2, stream=Stream(seed=1))
    assert holders_within_budget(budgets, found, [labels])
    expected = [reference.gaussian_epsilon(np.sqrt(labels.account.cost.max()), d) for d in found.delta]
    assert labels.account.spent == pytest.approx(expected, rel=1e-6)
    assert np.all(labels.account.spent <= found.epsilon)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("tune", [False, True])
def test_the_shares_at_which_the_papers_program_overspends_keep_their_budgets(variant, tune):
    for seed in range(2):
        budgets = people([0.54, 0.37, 0.09], holders=300, seed=seed)
        found = plan(budgets, variant, teachers=25, tune=tune, aggregator=GNMax(noise=40.0))
        votes = random_votes(900, found.teachers, 3, seed)[0]
        labels = voting.aggregate(found, votes, 3, stream=Stream(seed=seed))
        assert 0 < labels.asked.sum() < 900
        assert holders_within_budget(budgets, found, [labels])
        assert asks_what_a_loop_would_ask(found, labels, votes)


def test_the_best_use_of_unequal_budgets_is_not_far_from_running_out_together():
    """A soundness test alone is passed by asking nothing: tuned weights use at least 95 % of everybody's budget."""
    budgets = people([0.34, 0.43, 0.23], holders=300)
    found = plan(budgets, "weight", teachers=25, tune=True, aggregator=GNMax(noise=40.0))
    labels = voting.aggregate(found, random_votes(5000, 25, 3, 1)[0], 3, stream=Stream(seed=1))
    assert np.all(labels.account.spent > 0.95 * found.epsilon)


def test_a_holders_teachers_move_the_counts_as_far_as_the_sensitivity_says():
    for variant in VARIANTS:
        budgets = sartor.Budgets.from_groups([(1.0, 20), (2.0, 20)], delta=1e-5)
        found = plan(budgets, variant, teachers=4, aggregator=GNMax(noise=3.0))
        own = reference.teachers_of(placing.partition(found, budgets, b"key"), 40)
        schedule = np.where(found.schedule(0, 1)[0], found.weights, 0.0)
        for holder in range(40):
            group = found.groups_of(budgets)[holder]
            most = 0.0
            for votes in np.random.default_rng(holder).integers(0, 3, (4, found.teachers)).tolist():
                votes[own[holder][0]] = votes[own[holder][-1]]
                far, top = reference.most_votes_moved(votes, schedule, own[holder], 3)
                assert far <= np.sqrt(2) * found.sensitivity[group] * (1 + 1e-12)
                assert top <= found.sensitivity[group] * (1 + 1e-12)
                most = max(most, far)
            if any(schedule[teacher] for teacher in own[holder]):
                assert most == pytest.approx(np.sqrt(2) * found.sensitivity[group], rel=1e-12)


@pytest.mark.parametrize("kind", [Confident(4.0, 3.0, 5.0), Interactive(4.0, 3.0, 5.0)])
def test_no_change_of_one_teacher_moves_the_tested_figure_by_more_than_its_weight(kind):
    rng = np.random.default_rng(1)
    for _ in range(200):
        weights, student = rng.uniform(0.2, 3, 6), rng.dirichlet(np.ones(3))[None]
        votes = rng.integers(0, 3, 6)
        other = votes.copy()
        other[2] = rng.integers(0, 3)
        figures = []
        for v in (votes, other):
            counts = np.bincount(v, weights, minlength=3)[None]
            figures.append(kind.tested(counts, student, np.ones(1))[0][0])
        assert abs(figures[0] - figures[1]) <= weights[2] * (1 + 1e-12)


class Recorded:
    """A generator that notes every draw of noise."""

    def __init__(self, generator):
        self.generator, self.drawn = generator, 0

    def normal(self, *given):
        self.drawn += 1
        return self.generator.normal(*given)


def refused(monkeypatch, noise):
    """A voting of which nobody can pay for the first query, and how often noise was drawn in it."""
    seen = []
    right = Stream.generator

    def noting(self, purpose, step):
        seen.append(Recorded(right(self, purpose, step)))
        return seen[-1]

    monkeypatch.setattr(Stream, "generator", noting)
    found = plan(people([0.5, 0.3, 0.2]), teachers=10, aggregator=noise)
    labels = voting.aggregate(found, np.zeros((5, 10), int), 2)
    return labels, sum(recorded.drawn for recorded in seen)


def test_a_query_that_does_not_fit_draws_no_noise_and_costs_nothing(monkeypatch):
    labels, drawn = refused(monkeypatch, Confident(noise=0.5, threshold=5.0, threshold_noise=1000.0))
    assert drawn == 0
    assert not labels.asked.any()
    assert np.all(labels.account.cost == 0)
    assert np.all(labels.account.spent == 0)


def test_a_query_fits_only_if_test_and_answer_both_do():
    """Tests that always fail cost a fifth of the budget, and answers would cost half of it: after two of them the third could not be
    answered, and is not even tested."""
    allowed = reference.allowance(1.0, 1e-5)
    test, answer = allowed * 0.2, allowed * 0.5
    kind = Confident(noise=np.sqrt(2 / answer), threshold=1e9, threshold_noise=np.sqrt(1 / test))
    budgets = sartor.Budgets.from_groups([(1.0, 30)], delta=1e-5)
    found = plan(budgets, "standard", teachers=5, aggregator=kind)
    labels = voting.aggregate(found, np.zeros((9, 5), int), 2)
    assert labels.asked.tolist() == [True] * 2 + [False] * 7
    assert not labels.answered.any()
    assert labels.account.cost == pytest.approx(2 * test, rel=1e-9)


def test_a_failed_test_is_charged_as_a_test_alone():
    budgets = sartor.Budgets.from_groups([(5.0, 30)], delta=1e-5)
    found = plan(budgets, "standard", teachers=5, aggregator=Confident(noise=20.0, threshold=1e9, threshold_noise=30.0))
    labels = voting.aggregate(found, np.zeros((9, 5), int), 2)
    assert labels.asked.all()
    assert len(labels) == 0
    assert labels.account.cost == pytest.approx(9 / 30.0**2, rel=1e-12)
    assert account_matches_transcript(found, labels)


def test_labels_enough_stop_the_voting_with_exactly_as_many():
    budgets = sartor.Budgets.from_groups([(50.0, 30)], delta=1e-5)
    found = plan(budgets, "standard", teachers=5, aggregator=Confident(noise=20.0, threshold=3.0, threshold_noise=10.0))
    votes = random_votes(300, 5, 3, 1)[0]
    for enough in (0, 1, 5, 20):
        labels = voting.aggregate(found, votes, 3, labels=enough, stream=Stream(seed=3))
        assert len(labels) == enough
        assert enough == 0 or labels.answered[np.flatnonzero(labels.asked)[-1]]
    everything = voting.aggregate(found, votes, 3, labels=10**6, stream=Stream(seed=3))
    assert everything.asked.all()


def test_after_all_is_spent_nothing_more_is_asked():
    budgets = people([0.5, 0.3, 0.2], holders=100)
    for variant in VARIANTS:
        found = plan(budgets, variant, teachers=10, aggregator=GNMax(noise=25.0))
        votes = np.zeros((500, found.teachers), int)
        first = voting.aggregate(found, votes, 2, stream=Stream(seed=1))
        second = voting.aggregate(found, votes, 2, before=[first.account], stream=Stream(seed=2))
        assert 0 < first.asked.sum() < 500
        # under vanishing the next participants may be others
        assert variant == "vanish" or second.asked.sum() == 0
        assert holders_within_budget(budgets, found, [first, second])


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_voting_in_pieces_asks_and_charges_like_one(variant):
    budgets = people([0.5, 0.3, 0.2], holders=100)
    found = plan(budgets, variant, teachers=10, aggregator=GNMax(noise=30.0))
    votes = np.zeros((500, found.teachers), int)
    whole = voting.aggregate(found, votes, 2, stream=Stream(seed=1))
    pieces, asked = [], 0
    for i in range(12):
        pieces.append(voting.aggregate(found, votes[asked:], 2, labels=7, before=[p.account for p in pieces], stream=Stream(seed=i)))
        asked += int(pieces[-1].asked.sum())
    assert 12 * 7 > asked == whole.asked.sum()
    assert np.allclose(sum(p.account.cost for p in pieces), whole.account.cost, rtol=1e-9)
    assert np.array_equal(np.concatenate([p.weights for p in pieces]), whole.weights)


def test_a_voting_that_asked_nothing_has_spent_nothing():
    budgets = sartor.Budgets.from_groups([(1.0, 20), (1.7, 20), (3.1, 20)], delta=1e-5)
    found = plan(budgets, "weight", teachers=7, aggregator=Confident(noise=13.0, threshold=3.0, threshold_noise=11.0))
    votes = random_votes(300, 7, 2, 1)[0]
    accounts = [voting.aggregate(found, votes, 2, labels=1 + i, stream=Stream(seed=i)).account for i in range(4)]
    last = voting.aggregate(found, votes, 2, labels=0, before=accounts, stream=Stream(seed=9)).account
    assert last.queries == 0
    assert np.all(last.cost == 0)
    assert np.all(last.spent == 0)


def test_votings_together_are_sensitive_if_one_was():
    found = plan(sartor.Budgets.from_groups([(3.0, 60)], delta=1e-5), teachers=10, aggregator=GNMax(noise=20.0))
    votes = random_votes(50, 10, 3, 1)[0]
    by_noise = voting.aggregate(found, votes, 3, labels=2, stream=Stream(seed=1)).account
    with pytest.warns(voting.DataDependent):
        by_votes = voting.aggregate(found, votes, 3, labels=2, bound="dependent", stream=Stream(seed=2)).account
    for total in (by_noise + by_votes, by_votes + by_noise, by_votes + by_votes):
        assert total.sensitive
        assert not total.to_json()["private"]
        assert np.all(total.spent > by_votes.spent)
    assert not (by_noise + by_noise).sensitive


def test_votings_together_protect_nobody_if_one_was_seeded():
    found = plan(sartor.Budgets.from_groups([(3.0, 60)], delta=1e-5), teachers=10, aggregator=GNMax(noise=20.0))
    votes = random_votes(50, 10, 3, 1)[0]
    seeded, secret = (voting.aggregate(found, votes, 3, labels=2, stream=stream).account for stream in (Stream(seed=1), None))
    for total in (seeded + secret, secret + seeded, seeded + seeded):
        assert total.seeded
        assert not total.private
        assert not total.to_json()["private"]
    assert (secret + secret).private


@pytest.mark.parametrize("accountant", [Accountant.paper(), Accountant.fine()], ids=["paper", "fine"])
def test_nobody_has_spent_anything_before_the_first_query_by_any_accountant(accountant):
    found = plan(sartor.Budgets.from_groups([(0.1, 30)], delta=1e-5), teachers=5, aggregator=GNMax(noise=5.0))
    labels = voting.aggregate(found, np.zeros((3, 5), int), 2, accountant=accountant)
    assert not labels.asked.any()
    assert np.all(labels.account.spent == 0)


@settings(max_examples=40)
@given(ensembles(), st.sampled_from([Accountant.paper(), Accountant.fine()]))
def test_other_accountants_keep_the_budgets_too(ensemble, accountant):
    budgets, found, votes, options, seed = ensemble
    labels = voting.aggregate(found, votes, **options, accountant=accountant, stream=Stream(seed=seed))
    assert holders_within_budget(budgets, found, [labels])
    exact = voting.aggregate(found, votes, **options, before=[labels.account], stream=Stream(seed=seed + 1))
    assert holders_within_budget(budgets, found, [labels, exact])


@settings(max_examples=40)
@given(ensembles(("weight", "vanish")))
def test_going_on_without_those_who_are_out_lets_the_others_pay_more(ensemble):
    budgets, found, votes, options, seed = ensemble
    stay, leave = (
        voting.aggregate(found, votes, **{**options, "go_on": go_on, "labels": None}, stream=Stream(seed=seed)) for go_on in (False, True)
    )
    assert leave.asked.sum() >= stay.asked.sum()
    assert holders_within_budget(budgets, found, [leave])


def test_a_query_in_which_nobody_votes_is_not_answered():
    budgets = sartor.Budgets.from_groups([(1.0, 60)], delta=1e-5)
    found = PatePlan("vanish", 6, GNMax(noise=25.0), 1.0, [1.0], [1e-5], [60], [1], [0], [6], [3.0], [2])
    assert np.all(found.schedule(0, 50).sum(1) == 2)
    labels = voting.aggregate(found, np.zeros((400, 6), int), 2, go_on=True, stream=Stream(seed=1))
    assert holders_within_budget(budgets, found, [labels])
    assert np.all(labels.weights.sum(1) > 0)


@pytest.mark.parametrize("variant", ["weight", "vanish"])
def test_going_on_ends_when_earlier_votings_spent_more_than_is_allowed_now(variant, monkeypatch):
    """At epsilon 0.15 the paper's orders allow nothing at all, and the exact accountant a few queries."""
    budgets = sartor.Budgets.from_groups([(0.15, 50), (4.0, 50)], delta=1e-5)
    found = plan(budgets, variant, teachers=10, power=1.0, aggregator=GNMax(noise=100.0))
    votes = np.zeros((40, 10), int)
    first = voting.aggregate(found, votes, 2, labels=6, stream=Stream(seed=1)).account
    assert np.any(first.cost[:5] > 0)
    right, times = voting.Voting._leave, []

    def counted(self, out):
        times.append(out)
        assert len(times) < 100, "the voting never ends"
        return right(self, out)

    monkeypatch.setattr(voting.Voting, "_leave", counted)
    voting.aggregate(found, votes, 2, go_on=True, before=[first], accountant=Accountant.paper(), stream=Stream(seed=2))


def test_going_on_is_refused_where_it_would_tell_or_cannot_be():
    budgets = people([0.5, 0.3, 0.2])
    for variant in ("standard", "upsample"):
        found = plan(budgets, variant, teachers=10)
        with pytest.raises(SartorError, match="go_on=True needs variant"):
            voting.aggregate(found, np.zeros((3, found.teachers), int), 2, go_on=True)
    found = plan(budgets, "weight", teachers=10)
    with pytest.raises(SartorError, match="go_on=True needs variant"):
        voting.aggregate(found, np.zeros((3, 10), int), 2, go_on=True, bound="dependent")


def test_labels_are_as_often_wrong_as_the_noise_says():
    assert answers_have_the_noise()


def test_tests_pass_as_often_as_their_noise_says():
    assert the_tests_have_the_noise()


def test_three_classes_come_out_as_often_as_the_integral_says():
    queries = 20_000
    votes = np.tile([0, 0, 0, 0, 0, 1, 1, 1, 2, 2], (queries, 1))
    labels = voting.aggregate(open_plan(GNMax(noise=3.0)), votes, 3, stream=Stream(seed=5)).labels
    for label, probability in enumerate(reference.label_probabilities([5, 3, 2], 3.0)):
        assert near(np.mean(labels == label), probability, queries)


def test_weighted_votes_come_out_as_often_as_their_weights_say():
    queries = 4000
    budgets = sartor.Budgets.from_groups([(500.0, 25), (1500.0, 25)], delta=1e-5)
    found = plan(budgets, "weight", teachers=10, aggregator=GNMax(noise=4.0))
    assert found.weights == pytest.approx([0.5] * 5 + [1.5] * 5)
    votes = np.tile([0] * 5 + [1] * 5, (queries, 1))
    labels = voting.aggregate(found, votes, 2, stream=Stream(seed=5))
    share = np.mean(labels.labels[labels.asked] == 1)
    assert labels.asked.sum() > 1000
    assert near(share, norm.cdf(5 / (4 * np.sqrt(2))), labels.asked.sum())


def test_the_noise_of_test_and_answer_is_independent():
    votes = np.tile([0] * 5 + [1] * 5, (20_000, 1))
    kind = Confident(noise=3.0, threshold=5.0, threshold_noise=3.0)
    labels = voting.aggregate(open_plan(kind), votes, 2, stream=Stream(seed=6))
    halves = labels.labels[labels.answered]
    assert near(np.mean(halves == 0), 0.5, len(halves))
    both = np.mean(labels.answered[1:] & labels.answered[:-1])
    assert near(both, 0.25, 20_000, 5.0)


def test_the_interactive_test_compares_the_lead_over_the_student():
    queries = 20_000
    votes = np.tile([0] * 7 + [1] * 3, (queries, 1))
    student = np.tile([0.5, 0.5], (queries, 1))
    kind = Interactive(noise=3.0, threshold=4.0, threshold_noise=3.0)
    labels = voting.aggregate(open_plan(kind), votes, 2, student=student, stream=Stream(seed=6))
    assert near(np.mean(labels.answered), norm.cdf((2.0 - 4.0) / 3.0), queries)
    assert np.all(labels.labels[~labels.answered] == NONE)


def test_vanishing_scales_the_votes_to_the_whole_ensemble():
    queries = 6000
    budgets = sartor.Budgets.from_groups([(1000.0, 50), (2000.0, 50)], delta=1e-5)
    kind = Confident(noise=3.0, threshold=8.0, threshold_noise=5.0)
    found = plan(budgets, "vanish", teachers=10, aggregator=kind)
    labels = voting.aggregate(found, np.zeros((queries, 10), int), 2, stream=Stream(seed=8))
    asked = int(labels.asked.sum())
    assert asked > 1000
    assert labels.weights.sum(1) == pytest.approx(10.0)
    assert near(np.mean(labels.answered[labels.asked]), norm.cdf((10 - 8) / 5), asked)


def test_those_who_left_lower_the_threshold_by_their_share():
    queries = 4000
    kind = Confident(noise=30.0, threshold=8.0, threshold_noise=5.0)
    found = PatePlan("weight", 10, kind, 1.0, [0.001, 3000.0], [1e-5] * 2, [50] * 2, [1] * 2, [0, 5], [5, 10], [1.0] * 2, [5] * 2)
    labels = voting.aggregate(found, np.zeros((queries, 10), int), 2, go_on=True, stream=Stream(seed=8))
    assert np.all(labels.weights[:, :5] == 0)
    votes = float(labels.weights[0].sum())
    assert near(np.mean(labels.answered[labels.asked]), norm.cdf((votes - 8 * votes / 10) / 5), labels.asked.sum())


def test_seeds_repeat_a_voting_and_without_one_each_is_new():
    votes = np.tile([0] * 5 + [1] * 5, (200, 1))
    found = open_plan(GNMax(noise=3.0))
    one, two, other = (voting.aggregate(found, votes, 2, stream=Stream(seed=seed)).labels for seed in (1, 1, 2))
    assert np.array_equal(one, two)
    assert not np.array_equal(one, other)
    fresh = [voting.aggregate(found, votes, 2) for _ in range(2)]
    assert not np.array_equal(fresh[0].labels, fresh[1].labels)
    assert not fresh[0].account.seeded
    assert fresh[0].account.to_json()["private"]


def test_a_seeded_voting_says_that_it_protects_nobody_and_a_stream_serves_once():
    stream = Stream(seed=1)
    found = open_plan(GNMax(noise=3.0))
    labels = voting.aggregate(found, np.zeros((2, 10), int), 2, stream=stream)
    assert labels.account.seeded
    assert not labels.account.to_json()["private"]
    with pytest.raises(SartorError, match="stream"):
        voting.aggregate(found, np.zeros((2, 10), int), 2, stream=stream)


def test_no_queries_one_class_and_one_teacher_are_votings_too():
    for kind in (GNMax(noise=3.0), Confident(3.0, 1.0, 3.0), Interactive(3.0, 1.0, 3.0)):
        found = plan(sartor.Budgets.from_groups([(100.0, 5)], delta=1e-5), "standard", teachers=1, aggregator=kind)
        for queries, classes in ((0, 3), (4, 1), (4, 3)):
            student = np.full((queries, classes), 1 / classes) if isinstance(kind, Interactive) else None
            labels = voting.aggregate(found, np.zeros((queries, 1), int), classes, student=student)
            assert labels.asked.all()
            assert len(labels.labels) == queries
            assert labels.weights.shape == (queries, 1)


INVALID = {
    "too few teachers": (np.zeros((3, 9), int), 2),
    "one dimension": (np.zeros(10, int), 2),
    "three dimensions": (np.zeros((3, 10, 1), int), 2),
    "no list of queries": ([], 2),
    "fractions": (np.zeros((3, 10)), 2),
    "not a number": (np.full((3, 10), np.nan), 2),
    "truth values": (np.zeros((3, 10), bool), 2),
    "objects": (np.zeros((3, 10), object), 2),
    "a class too high": (np.full((3, 10), 2), 2),
    "a negative class": (np.full((3, 10), -1), 2),
    "no classes": (np.zeros((3, 10), int), 0),
}
ROUGH = {
    "a number": (3, 2),
    "nothing": (None, 2),
    "rows of different lengths": ([[1, 2], [3]], 2),
    "a fraction of a class": (np.zeros((3, 10), int), 2.5),
    "classes in words": (np.zeros((3, 10), int), "two"),
    "no classes of no queries": (np.zeros((0, 10), int), 0),
}


@pytest.mark.parametrize("what", INVALID)
def test_votes_that_are_none_are_refused_in_a_sentence(what):
    with pytest.raises(SartorError, match=r"\.$"):
        voting.aggregate(open_plan(GNMax(noise=3.0)), *INVALID[what])


@pytest.mark.parametrize("what", ROUGH)
def test_votes_of_the_wrong_kind_are_refused_in_a_sentence(what):
    with pytest.raises(SartorError, match=r"\.$"):
        voting.aggregate(open_plan(GNMax(noise=3.0)), *ROUGH[what])


@pytest.mark.parametrize("kind", [np.uint8, np.int16, np.uint64])
def test_any_whole_numbers_are_votes(kind):
    labels = voting.aggregate(open_plan(GNMax(noise=0.5)), np.ones((3, 10), kind), 2)
    assert labels.labels.tolist() == [1, 1, 1]


def test_bad_arguments_are_refused_in_a_sentence():
    found = open_plan(Interactive(3.0, 1.0, 3.0))
    votes, student = np.zeros((3, 10), int), np.full((3, 2), 0.5)
    for options in (
        {"student": None},
        {"student": student[:2]},
        {"student": student * 3},
        {"student": student - 1},
        {"student": student * np.nan},
    ):
        with pytest.raises(SartorError, match="student"):
            voting.aggregate(found, votes, 2, **options)
    with pytest.raises(SartorError, match="bound"):
        voting.aggregate(found, votes, 2, student=student, bound="loose")
    with pytest.raises(SartorError, match="student"):
        voting.aggregate(open_plan(GNMax(noise=3.0)), votes, 2, student=student)
    with pytest.raises(SartorError, match="orders"):
        voting.aggregate(found, votes, 2, student=student, bound="dependent", accountant=Accountant())
    other = voting.aggregate(open_plan(GNMax(noise=4.0)), votes, 2).account
    with pytest.raises(SartorError, match="another plan"):
        voting.aggregate(open_plan(GNMax(noise=3.0)), votes, 2, before=[other])


@pytest.mark.parametrize("labels", ["three", float("nan"), -1, 2.5, True])
def test_a_number_of_labels_is_a_whole_number(labels):
    with pytest.raises(SartorError, match=r"\.$"):
        voting.aggregate(open_plan(GNMax(noise=3.0)), np.zeros((3, 10), int), 2, labels=labels)


def test_a_students_probabilities_may_be_a_list():
    found = open_plan(Interactive(3.0, 1.0, 3.0))
    labels = voting.aggregate(found, np.zeros((1, 10), int), 2, student=[[0.5, 0.5]])
    assert labels.asked.all()


def by_votes(found, votes, options, seed, **more):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", voting.DataDependent)
        options = {name: value for name, value in options.items() if name != "go_on"}
        return voting.aggregate(found, votes, **options, **more, bound="dependent", stream=Stream(seed=seed))


@settings(max_examples=40)
@given(ensembles(), st.sampled_from([Accountant.paper(), Accountant(np.array([1.5, 3.0, 8.0, 20.0, 64.0]))]))
def test_the_data_dependent_account_is_lemma_5_summed_over_the_transcript(ensemble, accountant):
    _, found, votes, options, seed = ensemble
    labels = by_votes(
        found,
        votes[:25],
        {**options, "student": None if options["student"] is None else options["student"][:25]},
        seed,
        accountant=accountant,
    )
    kind = found.aggregator
    classes, orders = options["classes"], accountant.orders
    rows = (
        [[t] for t in range(found.teachers)]
        if found.variant == "vanish"
        else [range(int(b), int(b) + int(u)) for b, u in zip(found.begin, found.duplicates, strict=True)]
    )
    expected = np.zeros((len(rows), len(orders)))
    for i, weights in enumerate(labels.weights):
        counts = np.bincount(votes[i], weights, minlength=classes)
        q = min(reference.probability_of_another_label(counts, kind.noise), 1 - 1 / classes)
        known = {}
        for r, row in enumerate(rows):
            d = sum(weights[t] for t in row)
            if not d:
                continue
            if d not in known:
                known[d] = np.zeros(len(orders))
                if kind.tests:
                    lead = (counts - counts.sum() * options["student"][i]).max() if isinstance(kind, Interactive) else counts.max()
                    threshold = kind.threshold * weights.sum() / found.teachers
                    away = reference.mpmath.erfc(abs(lead - threshold) / kind.test_noise / np.sqrt(2)) / 2
                    known[d] += [reference.tight_or_loose(a, kind.test_noise / d, away, 0.5) for a in orders]
                if labels.answered[i]:
                    known[d] += [reference.tight_or_loose(a, kind.noise / d, q) for a in orders]
            expected[r] += known[d]
    assert labels.account.divergence == pytest.approx(expected, rel=1e-7, abs=1e-12)
    assert np.all(labels.account.divergence <= labels.account.cost[:, None] / 2 * orders * (1 + 1e-9) + 1e-12)


@settings(max_examples=30)
@given(ensembles())
def test_the_data_dependent_bound_lasts_at_least_as_long_and_reports_within_the_budget(ensemble):
    _, found, votes, options, seed = ensemble
    accountant = Accountant.paper()
    loose = voting.aggregate(found, votes, **{**options, "go_on": False, "labels": None}, accountant=accountant, stream=Stream(seed=seed))
    tight = by_votes(found, votes, {**options, "labels": None}, seed, accountant=accountant)
    eps = found.spendable[0]
    assert np.all(tight.account.spent <= eps * (1 + 1e-12))
    if not found.aggregator.tests and (found.variant != "vanish" or len(set(found.begin.tolist())) == len(found)):
        assert tight.asked.sum() >= loose.asked.sum()


def test_the_data_dependent_bound_warns_and_is_marked():
    found = open_plan(GNMax(noise=3.0), epsilon=5.0)
    with pytest.warns(voting.DataDependent):
        labels = voting.aggregate(found, np.zeros((4, 10), int), 2, bound="dependent")
    assert labels.account.sensitive
    assert labels.account.to_json()["sensitive"]
    assert not labels.account.to_json()["private"]


def test_after_a_data_dependent_voting_an_independent_one_is_refused():
    """Where it begins would tell where the other stopped, which follows the votes."""
    found = open_plan(GNMax(noise=6.0), teachers=30, epsilon=3.0)
    votes = np.zeros((60, 30), int)
    first = by_votes(found, votes, {"classes": 2}, 1)
    alone = voting.aggregate(found, votes, 2, stream=Stream(seed=2))
    assert first.asked.sum() > alone.asked.sum() > 0
    with pytest.raises(SartorError, match="stopped by the votes"):
        voting.aggregate(found, votes, 2, before=[first.account], stream=Stream(seed=2))


def test_one_class_is_a_data_dependent_voting_too():
    labels = by_votes(open_plan(GNMax(noise=3.0), epsilon=3.0), np.zeros((3, 10), int), {"classes": 1}, 1)
    assert labels.asked.all()


def test_an_account_does_not_show_one_persons_spend():
    budgets = sartor.Budgets.from_groups([(1.0, 60), (1.8765, 12), (3.0, 60), (4.3456, 1)], delta=1e-5)
    other = plan(budgets, "upsample", teachers=40, tune=True, precision=0.02, aggregator=GNMax(noise=30.0))
    close = voting.aggregate(other, random_votes(900, other.teachers, 2, 1)[0], 2, stream=Stream(seed=1)).account
    assert abs(close.spent[3] / 4.3456 - 1) < 0.1
    assert f"{close.spent[3]:.3g}" not in repr(close)
