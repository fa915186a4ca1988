"""Statistics of accounts: what a release as a whole tells of one holder, how far it is from the truth, and what it looks like."""

import dataclasses
import json
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.interpolate import PchipInterpolator
from scipy.optimize import brentq
from scipy.stats import kstest, norm

import sartor
from sartor.accounting import gaussian
from sartor.errors import SartorError
from sartor.individual import release
from sartor.individual.release import Noise, cap_of, deviations, even_bins
from sartor.individual.request import QUANTILES, Figures, Release, Request
from sartor.run import stream
from sartor.run.stream import Stream

Array = NDArray[np.float64]

EPSILON, DELTA = 0.5, 1e-5
AT = (0.1, 0.3, 0.5, 0.7, 0.9)
PEOPLE = sartor.Budgets(np.random.default_rng(1).permutation([1.0] * 60 + [2.0] * 50 + [3.0] * 40), delta=1e-4, reserve=0.2)
PLAN = sartor.plan(PEOPLE, steps=20, batch=40, accountant="rdp")
GROUP = PLAN.groups_of(PEOPLE)
CLASSES = ("cat", "dog", "emu", "fox")
REQUESTS = {
    "mean": Request(),
    "quantiles": Request(mean=False, quantiles=QUANTILES),
    "one quantile, one round": Request(mean=False, quantiles=[0.5], rounds=1),
    "histogram": Request(mean=False, histogram=[0, 1, 2, 3]),
    "budgets": Request(mean=False, groups="budget"),
    "classes": Request(mean=False, groups="class", categories=CLASSES),
    "one column": Request(mean=False, groups="class", categories=CLASSES, columns=["accuracy"]),
    "correlation": Request(mean=False, correlation=True),
    "all": Request(quantiles=QUANTILES, histogram=[0, 1, 2, 3], groups="class", categories=CLASSES, correlation=True),
}


def released(plan: sartor.Plan, of: Figures, request: Request, *, epsilon: float, delta: float, seed: int | None = None) -> Any:
    """A release; whoever asks knows what is in it."""
    return release.released(plan, of, request, epsilon=epsilon, delta=delta, stream=None if seed is None else Stream(seed=seed))


def figures(request: Request, seed: int = 0) -> Figures:
    """What 150 people's figures may be: many at the ends of their ranges, and beyond."""
    generator = np.random.default_rng(seed)
    account, loss = generator.exponential(1.0, 150), generator.exponential(0.5, 150)
    for values in (account, loss):
        values[generator.integers(0, 150, 60)] = generator.choice([0.0, 3.0, 5.0, 1e9, math.inf, math.nan, -2.0], 60)
    correct = generator.choice([0.0, 0.4, 1.0], 150)
    group = GROUP if request.groups == "budget" else generator.integers(-1, 4, 150)
    return Figures(account, correct, loss, group)


def without(of: Figures, holder: int, request: Request) -> Figures:
    """The same people, of whom one is zeroed: a budget stays, a category is the holder's own."""
    account, correct, loss, group = (np.array(values) for values in (of.account, of.correct, of.loss, of.group))
    account[holder] = correct[holder] = loss[holder] = 0
    if request.groups != "budget":
        group[holder] = -1
    return Figures(account, correct, loss, group)


class Listening:
    """In the place of noise: keeps every query, the deviation of its noise and what was answered; may answer as another one did."""

    def __init__(self, patch: pytest.MonkeyPatch, answers: list[Array] | None) -> None:
        self.values: list[Array] = []
        self.deviations: list[float] = []
        self.answers: list[Array] = []
        self.told: dict[str, Any] = {}
        right, drawn = Noise.added, stream.normal

        def normal(generator: Any, size: Any, deviation: float, draws: int) -> Array:
            self.deviations.append(deviation)
            return drawn(generator, size, deviation, draws)

        def added(noise: Noise, query: release.Query, *given: Any) -> Array:
            found = right(noise, query, *given)
            self.values.append(query.values.copy())
            self.answers.append(found if answers is None else answers[len(self.answers)])
            return self.answers[-1]

        patch.setattr(Noise, "added", added)
        patch.setattr(release, "normal", normal)


def exact_mu(epsilon: float, delta: float) -> float:
    """The mu of the Gaussian mechanism that is just (epsilon, delta)-DP, by the formula of Balle and Wang."""
    return float(brentq(lambda mu: norm.cdf(mu / 2 - epsilon / mu) - np.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu) - delta, 1e-3, 50))


def heard(request: Request, of: Figures, answers: list[Array] | None = None, seed: int = 1) -> Listening:
    with pytest.MonkeyPatch.context() as patch:
        listening = Listening(patch, answers)
        listening.told = released(PLAN, of, request, epsilon=EPSILON, delta=DELTA, seed=seed).to_json()
    return listening


@pytest.mark.parametrize("name", REQUESTS)
def test_whatever_is_answered_one_holder_moves_all_of_it_together_by_at_most_mu(name: str) -> None:
    """The loss of adaptive Gaussian queries follows, at every transcript, from how far each query moves over the deviation of its noise."""
    request, mu, largest = REQUESTS[name], exact_mu(EPSILON, DELTA), 0.0
    for seed in range(12):
        of = figures(request, seed)
        ours = heard(request, of)
        for holder in np.random.default_rng(seed).integers(0, 150, 6):
            theirs = heard(request, without(of, holder, request), ours.answers)
            assert ours.deviations == theirs.deviations
            assert ours.told == theirs.told  # and nothing is told but what follows from the answers
            steps = zip(ours.values, theirs.values, ours.deviations, strict=True)
            largest = max(largest, math.sqrt(sum(float(np.sum((one - other) ** 2)) / deviation**2 for one, other, deviation in steps)))
    assert largest <= mu
    assert largest > 0.7 * mu  # somebody comes close: there is not much more noise than there must be


@pytest.mark.parametrize("name", REQUESTS)
def test_neither_noise_nor_what_is_told_shows_who_has_the_largest_figures_where_all_are_small(name: str) -> None:
    """Ranges are public: one that ended at the largest figure would tell it, by how much noise there is or by where an answer ends."""
    request, generator = REQUESTS[name], np.random.default_rng(3)
    account, loss = generator.uniform(0.01, 0.02, 150), generator.uniform(0.01, 0.02, 150)
    account[7] = loss[7] = 0.9
    of = Figures(account, np.ones(150), loss, GROUP if request.groups == "budget" else generator.integers(0, 4, 150))
    ours = heard(request, of)
    theirs = heard(request, without(of, 7, request), ours.answers)
    assert ours.deviations == theirs.deviations
    assert ours.told == theirs.told


def test_whether_a_category_is_merged_does_not_tell_its_true_size() -> None:
    request, group = REQUESTS["classes"], np.repeat([0, 1, 2, 3], [10, 60, 70, 10])
    of = Figures(np.full(150, 0.5), np.ones(150), np.ones(150), group)
    ours = heard(request, of)
    ours.answers[0][-1] = group_sizes = np.array([12.0, 60.0, 70.0, 8.0])
    for holder in (0, 149):  # of ten people one is missing
        for people in (of, without(of, holder, request)):
            told = heard(request, people, ours.answers).told["groups"]
            assert [row["holders"] for row in told] == [*group_sizes[:2], 78]


@pytest.mark.parametrize("name", ["mean", "histogram", "quantiles"])
def test_nothing_of_mu_is_left_unused(name: str) -> None:
    """Somebody at the cap moves these by all of it."""
    request = REQUESTS[name]
    of = Figures(np.full(150, 3.0))
    ours = heard(request, of)
    theirs = heard(request, Figures(np.append(0.0, of.account[1:])), ours.answers)
    steps = zip(ours.values, theirs.values, ours.deviations, strict=True)
    total = math.sqrt(sum(float(np.sum((one - other) ** 2)) / deviation**2 for one, other, deviation in steps))
    assert total == pytest.approx(exact_mu(EPSILON, DELTA), rel=1e-6 if name != "quantiles" else 0.1)


def test_noise_is_normal_with_the_deviation_that_is_accounted_for() -> None:
    request, drawn = REQUESTS["all"], []
    for seed in range(60):
        listening = heard(request, figures(request), seed=seed)
        for values, answer, deviation in zip(listening.values, listening.answers, listening.deviations, strict=True):
            drawn.append(((answer - values) / deviation).ravel())
    noise = np.concatenate(drawn)
    assert len(noise) > 8_000
    assert abs(noise.mean()) < 4 / math.sqrt(len(noise))
    assert abs(noise.var() - 1) < 4 * math.sqrt(2 / len(noise))
    assert kstest(noise, "norm").pvalue > 1e-3
    both = np.array([np.concatenate([part.ravel() for part in drawn[i : i + 24]])[:2] for i in range(0, len(drawn), 24)])
    assert abs(np.corrcoef(both.T)[0, 1]) < 0.5  # and drawn anew for every value


def test_no_noise_is_a_single_number_of_the_generator(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the low bits of one that is, what it was added to could be solved for (`stream.normal`)."""
    request, sums = REQUESTS["all"], []
    drawn = stream.normal

    def normal(generator: Any, size: Any, deviation: float, draws: int = 1) -> Array:
        sums.append(draws)
        return drawn(generator, size, deviation, draws)

    monkeypatch.setattr(release, "normal", normal)
    released(PLAN, figures(request), request, epsilon=EPSILON, delta=DELTA, seed=1)
    assert len(sums) == 24
    assert min(sums) >= 4


def test_noise_is_made_for_a_little_less_than_is_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[float, float]] = []

    def noted(epsilon: float, delta: float) -> float:
        asked.append((epsilon, delta))
        return 1.0

    monkeypatch.setattr(gaussian, "mu_for", noted)
    found = released(PLAN, Figures(np.full(150, 0.5)), Request(), epsilon=EPSILON, delta=DELTA, seed=1)
    assert (found.epsilon, found.delta) == (EPSILON, DELTA)
    assert np.all(np.array(asked) * (1 + release.MARGIN / 2) <= [[EPSILON, DELTA]])


def test_more_than_mu_is_not_given() -> None:
    noise = Noise(1.0, Stream(seed=1))
    query = release.total(np.ones(3), 1.0)
    noise.added(query, 0.6, "one")
    with pytest.raises(SartorError, match="more than it is charged for"):
        noise.added(query, 0.6, "other")


# --- how good the figures are ---


class Reported(NamedTuple):
    """A row of the paper's table 2, with the number of holders, and a cap that a plan may have there."""

    holders: int
    mean: float
    quantiles: tuple[float, ...]
    cap: float


MNIST = Reported(60_000, 0.686, (0.236, 0.318, 0.431, 0.697, 1.682), 3.0)
CIFAR10 = Reported(50_000, 5.942, (2.713, 4.892, 6.730, 7.692, 7.815), 8.0)


def accounts_like(row: Reported) -> Array:
    """Accounts with these quantiles, to five digits, and this mean."""
    places = (np.arange(row.holders) + 0.5) / row.holders
    lowest, highest = row.quantiles[0] / 2, row.quantiles[-1]

    def drawn(least: float, most: float) -> Array:
        return np.asarray(PchipInterpolator([0, *AT, 0.97, 1], [least, *row.quantiles, most, most * 1.001])(places))

    def with_mean(found: Callable[[float], Array], low: float, high: float) -> Array:
        return found(brentq(lambda free: found(free).mean() - row.mean, low, high, xtol=1e-14))

    if row is MNIST:  # what is free is the top
        return with_mean(lambda most: drawn(lowest, most), highest * 1.001, row.cap)
    return with_mean(lambda least: drawn(least, highest * 1.001), 0.0, row.quantiles[0])


def of_many(row: Reported) -> sartor.Plan:
    budgets = sartor.Budgets.from_groups([(row.cap / 3, row.holders // 2), (row.cap, row.holders // 2)], delta=1e-5, reserve=0.1)
    return sartor.plan(budgets, steps=50, batch=500, accountant="rdp")


@pytest.mark.parametrize("row", [MNIST, CIFAR10], ids=["MNIST", "CIFAR-10"])
def test_mean_and_quantiles_of_the_papers_table_are_within_three_per_cent_at_a_tenth(row: Reported) -> None:
    account = accounts_like(row)
    assert account.mean() == pytest.approx(row.mean, rel=1e-6)
    assert np.quantile(account, AT) == pytest.approx(row.quantiles, rel=1e-4)
    plan, errors = of_many(row), []
    assert cap_of(plan) == row.cap
    for seed in range(20):
        found = released(plan, Figures(account), Request(quantiles=AT), epsilon=0.1, delta=1e-6, seed=seed)
        errors.append(np.abs(np.array([found.mean, *found.quantiles.values()]) / [row.mean, *row.quantiles] - 1))
    assert np.mean(errors, axis=0).max() <= 0.03


AMPLE = 60.0  # an epsilon at which what is left is the error of the method


@pytest.mark.parametrize(
    "account",
    [
        np.linspace(0, 3, 6_000),
        np.random.default_rng(1).exponential(0.05, 6_000),
        np.random.default_rng(1).normal(0.4, 0.01, 6_000),
        np.append(np.full(3_500, 2.9), np.linspace(0.5, 2.9, 2_500)),
    ],
    ids=["even", "far below the cap", "narrow", "many alike"],
)
def test_quantiles_are_found_wherever_they_lie(account: Array) -> None:
    plan = of_many(MNIST._replace(holders=6_000))
    found = released(plan, Figures(account), Request(quantiles=AT), epsilon=AMPLE, delta=0.1, seed=3)
    assert np.array(list(found.quantiles.values())) == pytest.approx(np.quantile(account, AT), rel=0.03)


def test_figures_of_groups_and_the_correlation_are_right_where_noise_is_little() -> None:
    generator = np.random.default_rng(4)
    account = np.minimum(generator.exponential(0.4, 150), PEOPLE.epsilon)
    loss = np.minimum(np.exp(2 * account - 3 + generator.normal(0, 0.5, 150)), 5.0)
    correct = (loss < 0.3).astype(float)
    classes = generator.integers(0, 4, 150)
    request = Request(groups="class", categories=CLASSES, correlation=True, histogram=[0, 0.5, 1, 3])
    found = released(PLAN, Figures(account, correct, loss, classes), request, epsilon=1e5, delta=0.1, seed=1)
    for place, row in enumerate(found.groups):
        inside = classes == place
        assert (row["class"], row["holders"]) == (CLASSES[place], inside.sum())
        expected = {"account": account[inside].mean(), "accuracy": correct[inside].mean(), "loss": loss[inside].mean()}
        assert {name: row[name] for name in expected} == pytest.approx(expected, rel=0.05)
    assert found.correlation == pytest.approx(np.corrcoef(account, np.log(loss))[0, 1], abs=0.02)
    assert found.mean == pytest.approx(account.mean(), rel=0.02)
    counts = [int(((account > low) & (account <= high)).sum()) for low, high in ((-1, 0.5), (0.5, 1), (1, 3))]
    assert list(found.histogram.counts) == pytest.approx(counts, abs=1.0)
    request = Request(groups="budget", columns=["loss", "account"])
    found = released(PLAN, Figures(account, None, loss, GROUP), request, epsilon=1e5, delta=0.1, seed=1)
    assert [(row["epsilon"], row["delta"], row["holders"]) for row in found.groups] == [(1.0, 1e-4, 60), (2.0, 1e-4, 50), (3.0, 1e-4, 40)]
    for place, row in enumerate(found.groups):
        assert list(row) == ["epsilon", "delta", "holders", "loss", "account"]
        assert row["account"] == pytest.approx(account[place == GROUP].mean(), rel=0.02)
        assert row["loss"] == pytest.approx(loss[place == GROUP].mean(), rel=0.05)


def test_a_correlation_that_noise_hides_is_not_told() -> None:
    of = Figures(np.full(150, 0.3), loss=np.full(150, 0.3))
    found = released(PLAN, of, Request(correlation=True), epsilon=1e5, delta=0.1, seed=1)
    assert math.isnan(found.correlation)
    assert json.loads(json.dumps(found.to_json()))["correlation"] is None


def test_a_correlation_is_told_only_where_it_is_more_than_noise() -> None:
    """People whose readings and losses vary, and go together: what is told is near the truth, or nothing is."""
    generator = np.random.default_rng(4)
    account = np.clip(generator.normal(1.5, 0.7, 150), 0, 3)
    loss = np.exp(np.clip(3 * account - 6 + generator.normal(0, 2, 150), -9, 1.6))
    of, truth = Figures(account, loss=loss), float(np.corrcoef(account, np.log(loss))[0, 1])
    told: dict[float, Array] = {}
    for epsilon in (0.02, 0.2, 5.0, 50.0, 500.0):
        found = [released(PLAN, of, REQUESTS["correlation"], epsilon=epsilon, delta=DELTA, seed=seed).correlation for seed in range(30)]
        told[epsilon] = np.array(found)
        known = told[epsilon][~np.isnan(told[epsilon])]
        assert not len(known) or np.sqrt(np.mean((known - truth) ** 2)) < 0.35
    assert np.isnan(told[0.02]).all()
    assert np.isnan(told[0.2]).all()
    assert not np.isnan(told[500.0]).any()


@pytest.mark.parametrize("name", ["budgets", "classes"])
def test_the_deviations_that_are_told_are_those_of_the_noise(name: str) -> None:
    request = dataclasses.replace(REQUESTS[name], mean=True, histogram=(0, 1, 2, 3))
    generator, many = np.random.default_rng(5), 150
    group = GROUP if request.groups == "budget" else generator.permutation(np.arange(150) % 4)
    of = Figures(np.full(150, 0.5), np.full(150, 0.5), np.full(150, 2.5), group)
    found = [released(PLAN, of, request, epsilon=60.0, delta=1e-3, seed=seed) for seed in range(many)]
    told = deviations(found[0], PLAN, request)
    assert np.std([one.mean for one in found]) == pytest.approx(told["mean"], rel=0.3)
    counts = [one.histogram.counts[0] for one in found]  # all are there, so none is shown as 0
    assert np.std(counts) == pytest.approx(told["histogram"], rel=0.3)
    for place, row in enumerate(told["groups"]):
        assert list(row) == ["holders", "account", "accuracy", "loss"]
        for column, deviation in row.items():
            seen = np.std([one.groups[place][column] for one in found])
            assert seen == pytest.approx(deviation, rel=0.3, abs=0.1 if column == "holders" else 0)
    json.dumps(told, allow_nan=False)


# --- caps, small groups, and what is refused ---


def test_figures_beyond_their_caps_count_as_the_caps_and_no_figure_is_refused() -> None:
    request = REQUESTS["all"]
    wild: Any = figures(request)
    account = np.clip(np.where(np.isnan(wild.account), 3.0, wild.account), 0, 3.0)
    loss = np.clip(np.where(np.isnan(wild.loss), 5.0, wild.loss), 0, 5.0)
    assert not np.array_equal(account, wild.account)
    tame = Figures(account, wild.correct, loss, wild.group)
    one, other = (released(PLAN, of, request, epsilon=EPSILON, delta=DELTA, seed=1) for of in (wild, tame))
    assert one.to_json() == other.to_json()


def test_figures_told_lie_in_their_ranges_however_much_noise_there_is() -> None:
    request = REQUESTS["all"]
    for seed in range(30):
        found = released(PLAN, figures(request), request, epsilon=0.001, delta=1e-9, seed=seed)
        assert 0 <= found.mean <= 3
        values = list(found.quantiles.values())
        assert values == sorted(values)
        assert 0 <= values[0] <= values[-1] <= 3
        assert min(found.histogram.counts) >= 0
        assert found.correlation is None or not abs(found.correlation) > 1
        for row in found.groups:
            assert row["holders"] >= 0
            assert all(not (row[name] < 0 or row[name] > most) for name, most in (("account", 3), ("accuracy", 1), ("loss", 5)))


def test_a_mean_that_is_mostly_noise_is_not_told() -> None:
    request = Request(mean=False, groups="budget", columns=("account", "accuracy"))
    of = figures(request)
    for epsilon, told in ((0.005, False), (50.0, True)):
        found = released(PLAN, of, request, epsilon=epsilon, delta=1e-6, seed=1)
        means = [row[name] for row in found.groups for name in ("account", "accuracy")]
        assert all(math.isfinite(mean) == told for mean in means)


def test_groups_of_fewer_than_ten_are_merged() -> None:
    few = sartor.Budgets.from_groups([(0.731, 3), (1.0, 60), (2.0, 40), (7.31, 4)], delta=[3.7e-7, 1e-4, 1e-4, 1e-4], reserve=0.2)
    plan = sartor.plan(few, steps=20, batch=40, accountant="rdp")
    assert cap_of(plan) == 10.0  # and not what four people allow
    assert even_bins(plan, 4) == (0.0, 2.5, 5.0, 7.5, 10.0)
    of = Figures(np.full(107, 0.5), np.ones(107), np.ones(107), plan.groups_of(few))
    found = released(plan, of, Request(groups="budget"), epsilon=200.0, delta=0.1, seed=1)
    assert [row["holders"] for row in found.groups] == [63, 44]
    assert "0.731" not in json.dumps(found.to_json())
    assert "7.31" not in json.dumps(found.to_json())
    assert [row["account"] for row in found.groups] == pytest.approx([0.5, 0.5], abs=0.1)


def test_small_categories_are_merged_by_their_noised_sizes() -> None:
    group = np.repeat([0, 1, 2, 3], [60, 4, 5, 81])
    of = Figures(np.full(150, 0.5), np.ones(150), np.ones(150), group)
    found = released(PLAN, of, REQUESTS["classes"], epsilon=1e5, delta=0.1, seed=1)
    assert [row["class"] for row in found.groups] == [["cat", "dog", "emu"], "fox"]
    assert [row["holders"] for row in found.groups] == pytest.approx([69, 81], abs=1)
    hidden = released(PLAN, of, REQUESTS["classes"], epsilon=0.01, delta=1e-9, seed=2)
    assert any(math.isnan(row["account"]) for row in hidden.groups)  # nothing but noise


def test_public_records_alone_have_no_statistics_with_noise() -> None:
    public = sartor.Budgets([math.inf] * 100, delta=1e-5, reserve=0.2)
    with pytest.warns(sartor.NoNoise):
        plan = sartor.plan(public, steps=20, batch=40)
    with pytest.raises(SartorError, match="public"):
        released(plan, Figures(np.ones(100)), Request(), epsilon=0.1, delta=1e-6)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"mean": False}, "nothing"),
        ({"quantiles": [0.5, 0.5]}, "quantiles"),
        ({"quantiles": [0.0]}, "quantiles"),
        ({"quantiles": [math.nan]}, "quantiles"),
        ({"quantiles": 0.5}, "takes numbers"),
        ({"quantiles": "0.5"}, "takes numbers"),
        ({"histogram": [0, 1]}, "three edges"),
        ({"histogram": [0, 2, 1]}, "three edges"),
        ({"histogram": [0, 1, math.inf]}, "three edges"),
        ({"histogram": np.linspace(0, 1, 2_000)}, "more than 1,000"),
        ({"groups": "class"}, "categories"),
        ({"groups": "budget", "categories": ["a"]}, "categories"),
        ({"categories": ["a"]}, "categories"),
        ({"groups": "class", "categories": ["a", "a"]}, "differ"),
        ({"groups": "class", "categories": "ab"}, "takes names"),
        ({"groups": "holders", "categories": ["a"]}, "name of its own"),
        ({"groups": "budget", "columns": []}, "columns"),
        ({"groups": "budget", "columns": ["norm"]}, "columns"),
        ({"rounds": 0}, "rounds"),
        ({"rounds": 2.5}, "rounds"),
        ({"least_loss": 0.0}, "least loss"),
        ({"most_loss": math.inf}, "least loss"),
    ],
)
def test_requests_that_cannot_be_answered_are_one_sentence(given: dict[str, Any], why: str) -> None:
    with pytest.raises(SartorError, match=why) as refused:
        Request(**given)
    assert "\n" not in str(refused.value)


def test_a_request_that_differs_in_anything_is_another_one() -> None:
    asked = Request(quantiles=[0.5], histogram=[0, 1, 2], groups="class", categories=["cat", "dog"], correlation=True)
    other: dict[str, Any] = {
        "mean": False,
        "quantiles": [0.4],
        "histogram": [0, 1, 3],
        "groups": "age",
        "categories": ["cat", "emu"],
        "columns": ["loss"],
        "correlation": False,
        "rounds": 5,
        "least_loss": 1e-3,
        "most_loss": 4.0,
    }
    assert set(other) == {field.name for field in dataclasses.fields(Request)}
    for name, value in other.items():
        assert dataclasses.replace(asked, **{name: value}).to_json() != asked.to_json(), name


def test_figures_that_do_not_fit_are_refused() -> None:
    wrong: Any
    for wrong in (np.ones((2, 2)), ["a"], 1.0):
        with pytest.raises(SartorError, match="one number for each holder"):
            Figures(wrong)
    wrong = np.ones(3)
    with pytest.raises(SartorError, match="one whole number"):
        Figures(np.ones(3), group=wrong)
    with pytest.raises(SartorError, match="is of 2 holders"):
        Figures(np.ones(3), loss=np.ones(2))
    with pytest.raises(SartorError, match="the plan is for 150 holders"):
        released(PLAN, Figures(np.ones(149)), Request(), epsilon=EPSILON, delta=DELTA)
    for request, name in ((REQUESTS["budgets"], "loss"), (REQUESTS["correlation"], "loss"), (REQUESTS["one column"], "correct")):
        with pytest.raises(SartorError, match=f"without {name}"):
            released(PLAN, Figures(np.ones(150)), request, epsilon=EPSILON, delta=DELTA)
    of = figures(REQUESTS["budgets"])
    with pytest.raises(SartorError, match="not the groups of the plan"):
        released(
            PLAN,
            Figures(of.account, of.correct, of.loss, np.roll(np.where(GROUP == 0, 1, 0), 1)),
            REQUESTS["budgets"],
            epsilon=EPSILON,
            delta=DELTA,
        )


def test_figures_and_queries_show_nothing_of_themselves() -> None:
    of = Figures(np.full(150, 0.12345))
    assert repr(of) == "Figures(150 holders)"
    assert "0.12345" not in repr(release.total(of.account, 3.0))


# --- noise and documents ---


def test_a_seed_is_marked_and_without_one_every_release_has_its_own_noise() -> None:
    of = Figures(np.full(150, 0.5))
    seeded = [released(PLAN, of, Request(), epsilon=EPSILON, delta=DELTA, seed=1) for _ in range(2)]
    fresh = [released(PLAN, of, Request(), epsilon=EPSILON, delta=DELTA) for _ in range(2)]
    assert seeded[0] == seeded[1]
    assert [found.private for found in seeded + fresh] == [False, False, True, True]
    assert fresh[0].mean != fresh[1].mean
    used = Stream(seed=1)
    release.released(PLAN, of, Request(), epsilon=EPSILON, delta=DELTA, stream=used)
    with pytest.raises(SartorError, match="already belongs"):
        release.released(PLAN, of, Request(), epsilon=EPSILON, delta=DELTA, stream=used)


@pytest.mark.parametrize("name", REQUESTS)
def test_a_document_has_what_was_asked_and_nothing_else(name: str) -> None:
    request = REQUESTS[name]
    found = released(PLAN, figures(request), request, epsilon=EPSILON, delta=DELTA, seed=1)
    document = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert list(document) == [*request.wanted, "epsilon", "delta", "relation", "private"]
    assert (document["epsilon"], document["delta"], document["private"]) == (EPSILON, DELTA, False)
    assert Release.from_json(document).to_json() == document
    if request.quantiles == QUANTILES:
        assert list(document["quantiles"]) == ["0.1", "0.3", "0.5", "0.7", "0.9"]
    if request.histogram:
        assert document["histogram"]["edges"] == [0, 1, 2, 3]
        assert len(document["histogram"]["counts"]) == 3
