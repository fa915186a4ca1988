"""The noise that votings really apply, read off from how often labels and tests turn out, to two per cent of its deviation.

At a margin of one deviation of the noise a label is right with probability Phi(1), and two per cent less noise make it right more often by
0.5 %: eight deviations of the frequency in 400,000 queries. Frequencies may lie five of them from the exact probability.
"""

import numpy as np
import pytest
from scipy.stats import norm

import sartor
from sartor.pate import voting
from sartor.pate.build import plan
from sartor.pate.plan import Confident, GNMax, Interactive
from sartor.run.stream import Stream

MANY = 400_000
TEACHERS = 4
NOISE = TEACHERS / np.sqrt(2)  # two counts get it, so a lead of all teachers is one deviation
TEST_NOISE = 2.0
EXACT = norm.cdf(1.0)


def off(events, probability):
    """How many deviations a frequency lies from its probability, or a sum of such from theirs."""
    expected, variance = (np.broadcast_to(p, np.shape(events)).sum() for p in (probability, probability * (1 - probability)))
    return abs(np.sum(events) - expected) / np.sqrt(variance)


def asked(variant, kind, votes, student=None, seed=1):
    budgets = sartor.Budgets.from_groups([(1e6, 40)], delta=1e-5)
    found = plan(budgets, variant, teachers=votes.shape[1], aggregator=kind)
    labels = voting.aggregate(found, votes, 2, student=student, stream=Stream(seed=seed))
    assert labels.asked.all()
    return labels


def same_votes(queries=MANY, teachers=TEACHERS):
    return np.zeros((queries, teachers), np.int8)


def test_the_answers_of_gnmax_have_the_noise_that_was_asked_for():
    labels = asked("standard", GNMax(noise=NOISE), same_votes())
    assert off(labels.labels == 0, EXACT) < 5
    assert labels.account.cost == pytest.approx(MANY * 2 / NOISE**2, rel=1e-9)


@pytest.mark.parametrize("variant", ["standard", "weight"])
def test_tests_and_answers_of_the_confident_aggregator_each_have_their_own_noise(variant):
    """The largest count is the number of teachers; the threshold lies one deviation of the test's noise below."""
    labels = asked(variant, Confident(noise=NOISE, threshold=TEACHERS - TEST_NOISE, threshold_noise=TEST_NOISE), same_votes(), seed=2)
    assert off(labels.answered, EXACT) < 5
    assert off(labels.labels[labels.answered] == 0, EXACT) < 5
    cost = MANY / TEST_NOISE**2 + labels.answered.sum() * 2 / NOISE**2
    assert labels.account.cost == pytest.approx(cost, rel=1e-9)


def test_tests_and_answers_of_the_interactive_aggregator_each_have_their_own_noise():
    """An undecided student casts half of the votes for either class, so the teachers lead by the other half."""
    kind = Interactive(noise=NOISE, threshold=TEACHERS / 2 - TEST_NOISE, threshold_noise=TEST_NOISE)
    labels = asked("standard", kind, same_votes(), student=np.full((MANY, 2), 0.5), seed=3)
    assert off(labels.answered, EXACT) < 5
    assert off(labels.labels[labels.answered] == 0, EXACT) < 5


@pytest.mark.parametrize("variant", ["upsample", "vanish", "weight"])
def test_labels_of_every_variant_are_chosen_after_the_noise(variant):
    """Seven votes against three under as much noise as there are votes: each query's probability follows from its teachers' weights."""
    queries, teachers = 30_000, 10
    budgets = sartor.Budgets.from_groups([(1e6, 50), (2e6, 50)], delta=1e-5)
    found = plan(budgets, variant, teachers=teachers, aggregator=GNMax(noise=float(teachers)))
    votes = np.tile(np.arange(found.teachers) % 10 < 3, (queries, 1)).astype(np.int8)
    labels = voting.aggregate(found, votes, 2, stream=Stream(seed=4))
    assert labels.asked.all()
    lead = np.where(votes == 0, labels.weights, -labels.weights).sum(1)
    right = norm.cdf(lead / (found.aggregator.noise * np.sqrt(2)))
    assert right.mean() < 0.8  # while before the noise the larger count always wins
    for part in (lead > np.median(lead), lead <= np.median(lead)):
        assert not part.any() or off(labels.labels[part] == 0, right[part]) < 5


@pytest.mark.parametrize(
    "kind", [GNMax(noise=30.0), Confident(noise=30.0, threshold=3.0, threshold_noise=25.0)], ids=["gnmax", "confident"]
)
def test_an_account_is_the_divergence_of_the_gaussians_that_were_drawn(kind):
    """At every epsilon that it states, the exact delta of all tests and answers together is the budget's."""
    budgets = sartor.Budgets.from_groups([(3.0, 40)], delta=1e-5)
    found = plan(budgets, "standard", teachers=TEACHERS, aggregator=kind)
    for queries in (1, 10, 100):
        labels = voting.aggregate(found, same_votes(queries), 2, stream=Stream(seed=queries))
        assert labels.asked.all()
        squared = labels.answered.sum() * 2 / 30.0**2 + (queries / 25.0**2 if isinstance(kind, Confident) else 0.0)
        ratio, spent = np.sqrt(squared), float(labels.account.spent[0])
        exact = norm.cdf(ratio / 2 - spent / ratio) - np.exp(spent) * norm.cdf(-ratio / 2 - spent / ratio)
        assert exact == pytest.approx(1e-5, rel=1e-6)
