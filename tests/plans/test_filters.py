"""Plans with a filter: what they promise, what they store, and what they refuse."""

from __future__ import annotations

import copy
import json
import pickle
from typing import Any

import numpy as np
import pytest

import sartor
from sartor.accounting import Filtered, SampledGaussian, spend_on
from sartor.individual.ladder import climb
from sartor.plans import Filter, filters
from sartor.plans.filters import by_square, by_variance
from sartor.plans.problem import Problem
from sartor.plans.table import headings
from sartor.relation import ZERO_OUT
from sartor_testing.amount import most_are_long

_BUDGETS = sartor.Budgets.from_groups([(1.0, 400), (2.0, 500), (4.0, 100)], delta=1e-4)


def _plan(scheme: str = "scale", budgets: sartor.Budgets = _BUDGETS, **asked: Any) -> sartor.Plan:
    usual = {"steps": 60, "batch": 50, "clip": 0.5, "filter": "ladder", "refresh": 4, "full_steps": 40}
    return sartor.plan(budgets, scheme, **{**usual, **asked})


@pytest.fixture(scope="module")
def plan() -> sartor.Plan:
    """One plan that tests look at."""
    return _plan()


@pytest.mark.parametrize("scheme", most_are_long(["scale", "uniform", "sample", "hybrid"], 2))
def test_the_worst_choice_fits_every_budget_and_wastes_little(scheme: str) -> None:
    made = _plan(scheme)
    assert made.filter is not None
    for group in range(len(made)):
        exposure = made.exposure(group)
        assert isinstance(exposure, Filtered)
        assert exposure.units == made.filter.units[group] == 160
        found = float(spend_on([exposure], made.delta[group])[0])
        assert found == made.spent[group] <= made.epsilon[group]
    strictest = made.spent / made.epsilon
    assert strictest.min() > 0.995 or scheme == "uniform"
    assert made.rests_at.tolist() == [40] * len(made)


def test_as_many_full_steps_as_steps_is_the_plan_without_a_filter() -> None:
    assert _plan(full_steps=60) == sartor.plan(_BUDGETS, "scale", steps=60, batch=50, clip=0.5)


def test_more_steps_than_full_norm_pays_for_cost_little_noise(plan: sartor.Plan) -> None:
    plain = sartor.plan(_BUDGETS, "scale", steps=40, batch=50, clip=0.5)
    longer = sartor.plan(_BUDGETS, "scale", steps=60, batch=50, clip=0.5)
    assert plain.noise_multiplier <= plan.noise_multiplier < 1.02 * plain.noise_multiplier < longer.noise_multiplier


def test_while_units_pay_for_full_norm_it_spends_what_full_norm_does(plan: sartor.Plan) -> None:
    assert plan.filter is not None
    for steps in (0, 1, 4, 37, 40):
        exposure = plan.exposure(0, steps)
        assert isinstance(exposure, SampledGaussian)
        assert exposure.steps == steps
    assert isinstance(plan.exposure(0, 41), Filtered)
    spent = np.array([plan.spent_after(steps) for steps in (0, 4, 20, 40, 41, 50, 60)])
    assert np.all(np.diff(spent, axis=0) >= -1e-3 * spent[-1])
    assert spent[-2].tolist() == spent[-1].tolist() == plan.spent.tolist()


def test_it_survives_json_pickle_and_copies(plan: sartor.Plan) -> None:
    for stored in (plan.record(), plan.to_json(sensitive=True)):
        assert sartor.Plan.from_json(json.loads(json.dumps(stored))) == plan
    assert pickle.loads(pickle.dumps(plan)) == plan
    assert copy.deepcopy(plan) == plan
    assert plan != sartor.plan(_BUDGETS, "scale", steps=60, batch=50, clip=0.5)


def test_what_is_read_is_judged_again(plan: sartor.Plan) -> None:
    stored = plan.record()
    for change in ({"units": 400}, {"rungs": [0.5, 0.6, 0.7, 0.9, 1.0]}, {"costs": [1, 1, 1, 1, 1]}):
        forged = {**stored, "groups": [{**group, **change} for group in stored["groups"]]}
        with pytest.raises(sartor.Overspent):
            sartor.Plan.from_json(forged)
    forged = {**stored, "filter": {**stored["filter"], "refresh": 8}}
    with pytest.raises(sartor.Overspent):
        sartor.Plan.from_json(forged)
    without = {key: value for key, value in stored.items() if key != "filter"}
    with pytest.raises(sartor.Overspent):  # the filter alone makes so many steps affordable
        sartor.Plan.from_json(without)


def test_documents_and_tables_say_when_full_norm_rests(plan: sartor.Plan) -> None:
    shown = plan.to_json()
    assert shown["filter"] == {"kind": "ladder", "refresh": 4, "full_steps": 40}
    assert [group["rests_at"] for group in shown["groups"]] == [40, 40, 40]
    assert headings(plan)[-1] == "rests at"
    assert "full norm pays for 40" in " ".join(str(plan).split())


def test_full_norm_rests_when_not_even_the_lowest_rung_is_paid_for() -> None:
    units, steps = np.array([48, 53, 0, 15, 400]), 120
    made = Filter("ladder", 10, 100, [[0.25, 0.5, 1.0]] * 5, [[1, 4, 16]] * 5, units)
    taken, left = np.zeros(5, int), units
    for _ in range(steps // 10):
        rung, left = climb(made, np.arange(5), np.ones(5), left)
        taken += rung > 0
    assert made.rests_at(steps).tolist() == (10 * taken).tolist() == [30, 50, 0, 60, 120]


def _priced(asked: filters.Asked, rate: float, noise: float, steps: int) -> tuple[Filter, float]:
    """The filter of one group, and what its worst choice costs."""
    given = np.array([[rate], [noise], [100.0], [1e-4]])
    made, spent = filters.priced(asked, given[0], given[1], given[2], given[3], "pld", steps, by_budget=False)
    return made, float(spent[0])


def test_units_are_those_of_full_norm_for_full_steps_and_no_more() -> None:
    asked = filters.Asked("ladder", 4, 42, (1, 2, 4, 8, 16))
    made, _ = _priced(asked, rate=0.05, noise=2.0, steps=60)
    assert made.units.tolist() == [168]


def test_where_a_price_by_variance_is_too_cheap_rungs_are_priced_by_their_squares() -> None:
    asked = filters.Asked("ladder", 1, 8, (1, 2, 4, 8, 16))
    made, spent = _priced(asked, rate=0.2, noise=0.7, steps=12)
    plain = float(spend_on([SampledGaussian(0.2, 0.7, 8)], 1e-4)[0])
    assert np.array_equal(made.rungs[0], by_square(asked.ladder))
    assert plain <= spent < 1.005 * plain
    cheap = Filter("ladder", 1, 8, by_variance(asked.ladder, 0.7), [asked.ladder], made.units)
    assert spend_on([cheap.exposure(0, 0.2, 0.7, 12, ZERO_OUT)], 1e-4)[0] > 1.005 * plain


_PARTS = {"kind": "ladder", "refresh": 4, "full_steps": 40, "rungs": [[0.5, 1.0]], "costs": [[1, 4]], "units": [40]}


@pytest.mark.parametrize(
    "change",
    [{"kind": "renyi"}, {"refresh": 5}, {"full_steps": 41}, {"rungs": [[0.4, 1.0]]}, {"costs": [[2, 4]]}, {"units": [41]}],
    ids=str,
)
def test_filters_differ_by_each_of_their_parts(change: dict[str, Any]) -> None:
    made: Any = Filter(**_PARTS)  # type: ignore[arg-type]
    assert made == Filter(**_PARTS)  # type: ignore[arg-type]
    assert made != Filter(**{**_PARTS, **change})


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "natural"},
        {"refresh": 0},
        {"refresh": 2.5},
        {"full_steps": 0},
        {"rungs": [[0.5, 1.5]]},  # no clip is above the planned one
        {"rungs": [[0.5, 0.9]]},
        {"rungs": [[0.0, 1.0]]},
        {"rungs": [[1.0, 0.5]]},
        {"costs": [[1.5, 4]]},
        {"costs": [[0, 4]]},
        {"costs": [[4, 1]]},
        {"costs": [[1, 2, 4]]},
        {"units": [-1]},
        {"units": [0.5]},
        {"units": [40, 40]},
    ],
    ids=str,
)
def test_what_is_no_filter_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(sartor.SartorError, match="filter"):
        Filter(**{**_PARTS, **change})


def test_equal_treats_all_alike_and_gives_units_by_budget() -> None:
    made = _plan("equal", steps=600, refresh=40, full_steps=400)
    assert made.filter is not None
    assert len(set(made.rate.tolist())) == len(set(made.clips.tolist())) == len(set(made.noise_multipliers.tolist())) == 1
    assert np.all(np.diff(made.filter.units) > 0)
    assert np.all(np.diff(made.rests_at) > 0)
    assert np.all(made.spent <= made.epsilon)
    for group in range(len(made)):  # one unit more is more than the budget
        more = Filter("ladder", 40, 400, made.filter.rungs[group], made.filter.costs[group], made.filter.units[group] + 1)
        found = spend_on([more.exposure(0, made.rate[group], made.noise_multipliers[group], 600, made.relation)], made.delta[group])
        assert found[0] > made.epsilon[group]
    with pytest.raises(sartor.SartorError, match="filter"):
        sartor.plan(_BUDGETS, "equal", steps=60, batch=50)


def test_equal_with_full_norm_in_every_step_still_tells_budgets_apart_by_units() -> None:
    made = _plan("equal", steps=400, refresh=40, full_steps=400)
    assert made.filter is not None
    assert made.rests_at[-1] == 400
    assert np.all(np.diff(made.rests_at) > 0)
    assert np.all(made.spent <= made.epsilon)


def test_the_renyi_filter_is_judged_by_renyi_and_pays_more() -> None:
    made = _plan(filter="renyi", accountant="rdp")
    assert np.all(made.spent <= made.epsilon)
    assert made.noise_multiplier > _plan().noise_multiplier
    with pytest.raises(sartor.SartorError, match="rdp"):
        _plan(filter="renyi")


def test_public_records_are_never_short_of_units() -> None:
    budgets = sartor.Budgets.from_groups([(1.0, 400), (np.inf, 600)], delta=1e-4)
    made = _plan(budgets=budgets)
    assert made.filter is not None
    assert made.filter.units.tolist() == [160, 16 * 15]
    assert made.rests_at.tolist() == [40, 60]
    assert np.isinf(made.spent[1])


def test_levels_lie_at_or_below_every_budget_and_every_delta(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filters, "MOST_LEVELS", 9)
    epsilon, delta, holders = np.linspace(1.0, 4.0, 100), np.linspace(1e-6, 1e-4, 100), np.ones(100, int)
    levels = filters.levels(Problem(epsilon, delta, holders, holders.astype(float), 0.1, 10, 10.0, "pld"))
    assert len(set(zip(*(values.tolist() for values in levels), strict=True))) <= 9
    assert np.all(levels[0] <= epsilon)
    assert np.all(levels[1] <= delta)


def test_many_budgets_share_levels_at_or_below_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filters, "MOST_LEVELS", 9)
    budgets = sartor.Budgets(np.linspace(1.0, 4.0, 100), delta=1e-3)
    made = _plan(budgets=budgets, batch=30, steps=12, full_steps=8, ladder=(1, 4))
    assert made.filter is not None
    treated = set(zip(made.rate.tolist(), made.noise_multipliers.tolist(), made.spent.tolist(), strict=True))
    assert len(treated) <= 9
    assert np.all(made.spent <= made.epsilon)
    assert np.min(made.spent / made.epsilon) > 4.0 ** (-1 / 8) * 0.995  # a level is at most a step of the ladder of levels below


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"filter": "natural"}, "ladder or renyi"),
        ({"refresh": 0}, "refresh"),
        ({"refresh": None}, "refresh"),
        ({"refresh": True}, "refresh"),
        ({"full_steps": 61}, "full_steps"),
        ({"full_steps": None}, "full_steps"),
        ({"filter": None}, "filter"),
        ({"ladder": (4, 2, 1)}, "ladder"),
        ({"ladder": (0, 2)}, "ladder"),
        ({"ladder": ()}, "ladder"),
        ({"ladder": (1.5, 2)}, "ladder"),
        ({"scheme": "sequential"}, "sequential"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_sentence(asked: dict[str, Any], sentence: str) -> None:
    with pytest.raises(sartor.SartorError, match=sentence):
        _plan(**asked)


def test_a_filter_needs_one_stage_and_a_row_for_each_group(plan: sartor.Plan) -> None:
    assert plan.filter is not None
    fields = {name: getattr(plan, name) for name in ("scheme", "accountant", "batch", "clip", "epsilon", "delta", "holders")}
    two = (plan.stages[0], plan.stages[0])
    with pytest.raises(sartor.SartorError, match="one stage"):
        sartor.Plan(**fields, stages=two, filter=plan.filter)
    short = Filter("ladder", 4, 40, plan.filter.rungs[:2], plan.filter.costs[:2], plan.filter.units[:2])
    with pytest.raises(sartor.SartorError, match="row for each group"):
        sartor.Plan(**fields, stages=plan.stages, filter=short)


def test_stretches_that_leave_a_part_of_the_budgets_unspent_are_told() -> None:
    with pytest.warns(sartor.Unspent, match="stretches of 8 steps do not divide the 15"):
        sartor.plan(_BUDGETS, steps=20, batch=50, filter="ladder", refresh=8, full_steps=15)


def test_filters_differ_by_their_units() -> None:
    given = {**_PARTS, "units": [41]}
    assert Filter(**_PARTS) == Filter(**_PARTS)
    assert Filter(**_PARTS) != Filter(**given)
