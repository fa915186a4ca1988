"""Random ensembles of teachers, and checks of what a voting over them costs, asks and adds that are also run on faulty code."""

import importlib

import numpy as np
import pytest
from hypothesis import assume
from hypothesis import strategies as st
from scipy.stats import norm

import sartor
from sartor.errors import Infeasible
from sartor.pate import voting
from sartor.pate.build import plan
from sartor.pate.plan import NONE, Confident, GNMax, Interactive
from sartor.pate.variants import VARIANTS
from sartor.run.stream import Stream
from sartor_testing import pate_reference as reference

placing = importlib.import_module("sartor.pate.partition")


def people(share, holders=1000, seed=3, epsilon=(1.0, 2.0, 3.0)):
    return sartor.Budgets.from_shares(list(epsilon), share, holders=holders, delta=1e-5, seed=seed)


@st.composite
def populations(draw, most_groups=6):
    """Random budgets of named holders in a random order, and a number of teachers for them."""
    count = draw(st.integers(1, most_groups))
    levels = draw(st.lists(st.floats(-1, 1).map(lambda p: round(10.0**p, 3)), min_size=count, max_size=count, unique=True))
    deltas = [draw(st.sampled_from([1e-3, 1e-5, 1e-7])) for _ in range(count)]
    sizes = [draw(st.sampled_from([1, 2, 7, 15, 40])) for _ in range(count)]
    order = np.random.default_rng(draw(st.integers(0, 10**6))).permutation(sum(sizes))
    eps, own = np.repeat(levels, sizes)[order], np.repeat(deltas, sizes)[order]
    reserve = draw(st.sampled_from([0.0, 0.3]))
    budgets = sartor.Budgets(eps, delta=own, holders=[f"p{i}" for i in order], reserve=reserve)
    return budgets, draw(st.integers(1, min(14, len(budgets))))


@st.composite
def lent(draw, budgets):
    """Whose each record is: of most holders a few, of some very many, in a random order."""
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    most = draw(st.sampled_from([1, 3, 8]))
    counts = rng.integers(1, most + 1, len(budgets))
    if draw(st.booleans()):
        counts[rng.integers(len(budgets))] = 200
    return sartor.Ownership(rng.permutation(np.repeat(np.arange(len(budgets)), counts)), len(budgets))


def made(budgets, variant, teachers, **options):
    """A plan; ensembles for which no duplicates can be found are passed over."""
    options = {"precision": 0.3, "aggregator": GNMax(noise=3.0), **options}
    try:
        return plan(budgets, variant, teachers=teachers, **options)
    except Infeasible:
        assume(False)


KINDS = ("gnmax", "confident", "interactive")


def aggregator_of(kind, teachers, loud):
    """An aggregator under which budgets of 0.1 to 10 last for none to some hundred queries."""
    noise = loud * teachers
    if kind == "gnmax":
        return GNMax(noise=noise)
    return {"confident": Confident, "interactive": Interactive}[kind](noise=noise, threshold=0.4 * teachers, threshold_noise=1.5 * noise)


def random_votes(queries, teachers, classes, seed):
    """Votes that agree more or less, and a student's probabilities."""
    rng = np.random.default_rng(seed)
    truth, clear = rng.integers(0, classes, queries), rng.random(queries)
    votes = np.where(rng.random((queries, teachers)) < clear[:, None], truth[:, None], rng.integers(0, classes, (queries, teachers)))
    return votes, rng.dirichlet(np.full(classes, 0.3), queries)


@st.composite
def ensembles(draw, variants=VARIANTS):
    """A population, a plan for it, votes, and the way to aggregate them."""
    budgets, teachers = draw(populations())
    variant, kind = draw(st.sampled_from(variants)), draw(st.sampled_from(KINDS))
    loud = draw(st.sampled_from([0.3, 1.0, 3.0]))
    found = made(budgets, variant, teachers, tune=draw(st.booleans()), aggregator=aggregator_of(kind, teachers, loud))
    votes, student = random_votes(draw(st.sampled_from([1, 40, 90])), found.teachers, draw(st.integers(2, 4)), draw(st.integers(0, 10**6)))
    options = {
        "classes": student.shape[1],
        "student": student if kind == "interactive" else None,
        "go_on": variant in ("weight", "vanish") and draw(st.booleans()),
        "labels": draw(st.sampled_from([None, None, 0, 1, 7])),
    }
    return budgets, found, votes, options, draw(st.integers(0, 10**6))


def noise_of_tests(found):
    return found.aggregator.test_noise if found.aggregator.tests else None


def holders_within_budget(budgets, found, transcripts):
    """Whether nobody's spend, recomputed from the transcripts and the partition, is above their budget less the reserve."""
    placed = placing.partition(found, budgets, b"key")
    costs = reference.costs_of_holders(transcripts, placed, len(budgets), found.aggregator.noise, noise_of_tests(found))
    left = 1 - budgets.reserve
    cases = {(float(c), float(e), float(d)) for c, e, d in zip(costs, budgets.epsilon, budgets.delta, strict=True)}
    return all(reference.gaussian_delta(np.sqrt(c), e * left) <= d * left * (1 + 1e-9) for c, e, d in cases)


def account_matches_transcript(found, labels):
    """Whether the account's costs are those of the transcript, row by row."""
    passed = labels.answered[labels.asked]
    if found.variant == "vanish":
        rows = [[teacher] for teacher in range(found.teachers)]
    else:
        rows = [range(int(b), int(b) + int(u)) for b, u in zip(found.begin, found.duplicates, strict=True)]
    expected = [reference.cost_of(row, labels.weights, passed, found.aggregator.noise, noise_of_tests(found)) for row in rows]
    return labels.account.cost == pytest.approx(expected, rel=1e-9, abs=1e-15)


def asks_what_a_loop_would_ask(found, labels, votes, *, go_on=False, enough=None, **_):
    """Whether a loop that takes one query at a time, given the same outcomes, asks the same queries with the same weights."""
    allowed = [reference.allowance(float(e), float(d)) for e, d in zip(*found.spendable, strict=True)]
    if found.variant == "vanish":
        groups = [
            reference.Group(min(allowed[g] for g in range(len(found)) if found.begin[g] <= t < found.end[g]), [t])
            for t in range(found.teachers)
        ]
    else:
        # anybody in `duplicates` of a group's teachers, who leave together
        groups = [reference.Group(a, list(range(b, b + u))) for a, b, u in zip(allowed, found.begin, found.duplicates, strict=True)]
        if go_on:
            groups = [reference.Group(a, [t]) for a, b, e in zip(allowed, found.begin, found.end, strict=True) for t in range(b, e)]
    asked = reference.one_at_a_time(
        groups,
        lambda i: np.where(found.schedule(i, 1)[0], found.weights, 0.0),
        found.aggregator.noise,
        noise_of_tests(found),
        labels.answered,
        labels.labels != NONE,
        enough=enough,
        go_on=go_on,
    )
    return len(asked) == labels.asked.sum() and np.allclose(np.reshape(asked, (-1, found.teachers)), labels.weights, rtol=1e-12)


def open_plan(kind, teachers=10, epsilon=1e6):
    """A plan under which everything is asked."""
    return plan(sartor.Budgets.from_groups([(epsilon, 50)], delta=1e-5), "standard", teachers=teachers, aggregator=kind)


def near(frequency, probability, count, deviations=4.0):
    return abs(frequency - probability) <= deviations * np.sqrt(probability * (1 - probability) / count)


def answers_have_the_noise(queries=20_000):
    """Whether labels of a known gap, and of a tie, are as often wrong as the noise says."""
    votes = np.zeros((queries, 10), int)
    votes[:, :2] = 1  # 8 against 2
    kind = GNMax(noise=6.0 / np.sqrt(2))
    clear = voting.aggregate(open_plan(kind), votes, 2, stream=Stream(seed=11))
    votes[:, :5] = 1
    tie = voting.aggregate(open_plan(kind), votes, 2, stream=Stream(seed=12))
    assert clear.asked.all()
    return near(np.mean(clear.labels == 0), norm.cdf(1.0), queries) and near(np.mean(tie.labels == 0), 0.5, queries)


def the_tests_have_the_noise(queries=20_000):
    """Whether tests pass as often as their noise says, above and below the threshold."""
    found = []
    for threshold, seed in ((5.0, 1), (9.0, 2), (8.0, 3)):
        votes = np.zeros((queries, 10), int)
        votes[:, :2] = 1
        kind = Confident(noise=5.0, threshold=threshold, threshold_noise=3.0)
        labels = voting.aggregate(open_plan(kind), votes, 2, stream=Stream(seed=seed))
        found.append(near(np.mean(labels.answered), norm.cdf((8 - threshold) / 3.0), queries))
    return all(found)


def no_teacher_sees_a_record_twice(variant="upsample"):
    """Whether everyone is in as many different teachers as planned, all of them among their group's."""
    budgets = sartor.Budgets.from_groups([(1.0, 40), (2.0, 30), (3.0, 20)], delta=1e-5)
    found = plan(budgets, variant, teachers=4, aggregator=GNMax(noise=3.0))
    placed = placing.partition(found, budgets, b"key")
    return all(
        len(own) == len(set(own)) == found.duplicates[group] and found.begin[group] <= min(own) <= max(own) < found.end[group]
        for own, group in zip(reference.teachers_of(placed, len(budgets)), found.groups_of(budgets), strict=True)
    )


def records_go_where_their_holder_goes(variant="upsample", budgets=None, found=None, owners=None):
    """Whether every record is with as many different teachers as planned, and all of a holder's are with the teachers that the holder
    would have with one record: those alone can change with the holder."""
    if budgets is None:
        budgets = sartor.Budgets.from_groups([(1.0, 40), (2.0, 30), (3.0, 20)], delta=1e-5)
        found = plan(budgets, variant, teachers=12, aggregator=GNMax(noise=3.0))
        owners = sartor.Ownership(np.random.default_rng(1).permutation(np.repeat(np.arange(90), np.arange(90) % 4 + 1)), 90)
    expected = reference.teachers_of(placing.partition(found, budgets, b"key"), len(budgets))
    placed = placing.partition(found, budgets, b"key", ownership=owners)
    own = reference.teachers_of(placed, len(owners))
    wanted = found.duplicates[found.groups_of(budgets)]
    return all(
        own[record] == expected[holder] and len(set(own[record])) == wanted[holder]
        for record, holder in enumerate(owners.of_record.tolist())
    )
