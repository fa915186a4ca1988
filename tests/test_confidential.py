"""Confidentiality: tables, reprs, errors, warnings and default documents show groups of ten and more, and ranges of all others."""

import io
import itertools
import json
import os
import re
import stat

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

import sartor
from sartor import Budgets, Plan, confidential
from sartor.plans import table
from sartor_testing.plans import changed

PLANTED = (3.1415926, 2.7182818, 0.57721566, 9.8696044)
PLANTED_DELTA = 1.6180339e-6
NAME = "Ottilie"

sizes = st.lists(st.integers(1, 40), min_size=1, max_size=60).map(lambda values: np.array(values, np.int64))


def population(count):
    """As many different budgets as holders; four epsilons, the strictest and the most open among them, and one delta are distinctive."""
    epsilon = np.random.default_rng(20).uniform(1, 8, count)
    epsilon[: len(PLANTED)] = PLANTED
    delta = np.full(count, 1e-5)
    delta[7] = PLANTED_DELTA
    names = [f"{NAME} {i}" for i in range(count)]
    return Budgets(epsilon, delta=delta, holders=names)


def digits(values):
    """A number as anybody might print it, from all of its digits down to three; two digits are what ranges may show."""
    printed = {f"{value:.{n}g}" for value in values for n in range(3, 9)} | {str(float(value)) for value in values}
    return {number for number in printed if float(number) != float(f"{float(number):.2g}")}


def given_away(text, values=(*PLANTED, PLANTED_DELTA)):
    found = {number for number in digits(values) if number in text}
    return found | ({NAME} & set(re.findall(r"\w+", text)))


def rendered(plan):
    page = io.StringIO()
    Console(file=page, width=240).print(plan)
    return page.getvalue()


def everything_said(error):
    said = []
    while error is not None:
        said.append(str(error))
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return " | ".join(said)


@pytest.fixture(scope="module")
def people():
    budgets = population(60_000)
    assert len(budgets.groups) == 60_000
    return budgets


@pytest.fixture(scope="module", params=["scale", "sample"])
def crowded(request, people):
    """A plan for 60,000 different budgets."""
    return sartor.plan(people, request.param, steps=1_000, batch=512, accountant="rdp")


@pytest.fixture(scope="module", params=["scale", "sample"])
def plan_of_400(request):
    """A plan for 400 different budgets, few enough for the excess of each."""
    return sartor.plan(population(400), request.param, steps=200, batch=40, accountant="rdp")


@pytest.fixture(scope="module")
def mixed():
    """Groups on both sides of the limit: 25, 3, 9, 10 and 40 holders."""
    budgets = Budgets.from_groups([(1.25, 25), (3.1415926, 3), (4.4444444, 9), (5.5, 10), (6.75, 40)], delta=1e-5)
    return sartor.plan(budgets, "scale", steps=100, batch=20, accountant="rdp")


# --- the search itself ---


def test_the_search_finds_what_is_given_away():
    assert given_away("epsilon 3.142")
    assert given_away("[0.577, 1]")
    assert given_away("delta 1.618e-06")
    assert given_away(f"{NAME} 17 has no budget")
    assert not given_away("3.1 to 3.2, 0.57 to 0.58, 1.6e-06 to 1.7e-06")


# --- 60,000 different budgets ---


def test_no_repr_shows_a_holder(people, crowded):
    for text in (repr(people), repr(people.groups), repr(crowded)):
        assert not given_away(text)
        assert " to " in text


def test_no_table_shows_a_holder(crowded):
    for text in (str(crowded), rendered(crowded)):
        assert not given_away(text)
        assert "6,000" in text
        assert len(text.splitlines()) < 30


def test_no_table_shows_what_was_computed_from_one_holders_budget(crowded):
    lines = "\n".join(str(crowded).splitlines()[1:])
    places = [int(np.flatnonzero(crowded.epsilon == value)[0]) for value in PLANTED]
    personal = [
        values
        for values in (crowded.rate, crowded.clips, crowded.noise_multipliers, crowded.expected_uses, crowded.spent)
        if np.ptp(values) > 0
    ]
    assert len(personal) == 3
    for values in personal:
        assert not given_away(lines, values[places])


def test_every_row_of_a_merged_table_is_a_range(crowded):
    rows = table.table(crowded).text(width=200).splitlines()[3:]  # one line for each row
    assert len(rows) == 10
    for row in rows:
        assert re.match(r"\s*\d\S* to \d\S*  ", row)


def test_no_overspending_error_shows_a_holder(crowded):
    with pytest.raises(sartor.Overspent, match="a group of fewer than 10 holders") as refused:
        changed(crowded, noise_multiplier=crowded.noise_multiplier / 2)
    assert not given_away(everything_said(refused.value))


def test_no_mismatch_error_shows_a_holder(people, crowded):
    epsilon = people.epsilon.copy()
    epsilon[0], epsilon[1] = 3.1415927, 2.7182819
    others = [Budgets(epsilon, delta=people.delta), people.with_reserve(0.1), Budgets(people.epsilon[1:], delta=people.delta[1:])]
    for budgets in others:
        with pytest.raises(sartor.SartorError) as refused:
            crowded.groups_of(budgets)
        assert not given_away(everything_said(refused.value))


def test_no_infeasible_request_shows_a_holder(people):
    for scheme, asked in (
        ("scale", {"batch": 60_001}),
        ("exclude", {"batch": 512, "threshold": 100.0}),
        ("exclude", {"batch": 512, "threshold": 7.9999}),
    ):
        with pytest.raises(sartor.Infeasible) as refused:
            sartor.plan(people, scheme, steps=100, accountant="rdp", **asked)
        assert not given_away(everything_said(refused.value))


def test_no_warning_shows_a_holder(people):
    with pytest.warns(sartor.RarelyUsed) as raised:
        sartor.plan(people, "sample", steps=1_000, batch=512, accountant="rdp")
    for warning in raised:
        assert not given_away(str(warning.message))


def test_uniform_treatment_does_not_show_the_strictest_holder():
    plan = sartor.plan(Budgets.from_groups([(3.1415926, 1), (5, 60), (8, 40)], delta=1e-5), "uniform", steps=50, batch=20, accountant="rdp")
    for text in (str(plan), rendered(plan), repr(plan), json.dumps(plan.to_json())):
        assert not given_away(text)


# --- documents ---


def test_no_default_document_shows_a_holder(plan_of_400):
    document = plan_of_400.to_json()
    text = json.dumps(document)
    places = [int(np.flatnonzero(plan_of_400.epsilon == value)[0]) for value in PLANTED]
    assert document["merged"] is True
    assert not given_away(text)
    for values in (plan_of_400.rate, plan_of_400.clips, plan_of_400.spent):
        if np.ptp(values) > 0:
            assert not given_away(text, values[places])
    assert sum(group["holders"] for group in document["groups"]) == 400
    assert min(group["holders"] for group in document["groups"]) >= confidential.FEWEST


def test_the_table_with_its_excess_shows_no_holder(plan_of_400):
    assert plan_of_400.excess.min() >= 0
    text = str(plan_of_400)
    assert "excess" in text
    assert not given_away(text)


def test_a_public_document_of_small_groups_cannot_be_read_back(plan_of_400, tmp_path):
    with pytest.raises(sartor.SartorError, match=r"fewer than 10 holders merged.*sensitive=True"):
        Plan.from_json(plan_of_400.to_json())
    plan_of_400.save(tmp_path / "plan.json")
    with pytest.raises(sartor.SartorError, match="fewer than 10 holders merged"):
        Plan.load(tmp_path / "plan.json")
    assert not given_away((tmp_path / "plan.json").read_text())


def test_a_sensitive_file_is_for_its_owner_alone_and_reads_back_equal(plan_of_400, tmp_path):
    path = tmp_path / "plan.json"
    path.write_text("readable by all")
    path.chmod(0o644)
    mask = os.umask(0)
    try:
        plan_of_400.save(path, sensitive=True)
        plan_of_400.save(tmp_path / "new.json", sensitive=True)
    finally:
        os.umask(mask)
    for file in (path, tmp_path / "new.json"):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert Plan.load(file) == plan_of_400
    assert given_away(path.read_text())


def test_a_public_file_of_large_groups_reads_back_equal(tmp_path):
    budgets = Budgets.from_groups([(1.2345678, 10), (float("inf"), 30)], delta=1e-5, reserve=0.125)
    plan = sartor.plan(budgets, "hybrid", steps=50, batch=8, accountant="rdp", mix=0.25)
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == plan


@pytest.mark.parametrize("damage", ["3.1415926x", None, [3.1415926], {}])
def test_a_damaged_document_is_refused_without_showing_it(mixed, damage):
    document = mixed.to_json(sensitive=True)
    document["groups"][1]["epsilon"] = damage
    with pytest.raises(sartor.SartorError, match="not a plan") as refused:
        Plan.from_json(document)
    assert not given_away(everything_said(refused.value))


# --- rows ---


@settings(deadline=None)
@given(holders=sizes, most=st.none() | st.integers(1, 30))
def test_rows_cover_every_group_once_and_in_order(holders, most):
    rows = confidential.rows(holders, most)
    assert [i for run in rows for i in range(run.start, run.stop)] == list(range(len(holders)))
    if most is not None:
        assert len(rows) <= most


@settings(deadline=None)
@given(holders=sizes, most=st.none() | st.integers(1, 30))
def test_every_row_stands_for_ten_holders_or_for_everybody(holders, most):
    for run in confidential.rows(holders, most):
        assert holders[run].sum() >= min(10, holders.sum())


@settings(deadline=None)
@given(holders=st.lists(st.integers(10, 10_000), min_size=1, max_size=60).map(lambda values: np.array(values, np.int64)))
def test_groups_of_ten_and_more_stand_alone(holders):
    assert confidential.rows(holders) == [slice(i, i + 1) for i in range(len(holders))]


@settings(deadline=None)
@given(holders=sizes)
def test_large_groups_stand_alone_between_small_ones_that_need_no_help(holders):
    """A large group is merged only to hide a run of small groups beside it that has fewer than ten holders altogether."""
    runs = [[i for i, _ in run] for _, run in itertools.groupby(enumerate(holders), lambda group: group[1] < 10)]
    alone = {run.start for run in confidential.rows(holders) if run.stop - run.start == 1}
    needy = [set(run) for run in runs if holders[run].sum() < 10]
    for i in np.flatnonzero(holders >= 10):
        if not any({i - 1, i + 1} & run for run in needy):
            assert i in alone


@pytest.mark.parametrize(
    ("holders", "rows"),
    [
        ([25, 3, 9, 10, 40], [(0, 1), (1, 3), (3, 4), (4, 5)]),
        ([3, 25], [(0, 2)]),
        ([25, 3], [(0, 2)]),
        ([25, 3, 30], [(0, 2), (2, 3)]),
        ([1] * 9, [(0, 9)]),
        ([9, 1, 9, 1], [(0, 2), (2, 4)]),
        ([1] * 19, [(0, 19)]),
        ([1] * 20, [(0, 10), (10, 20)]),
    ],
)
def test_small_groups_join_their_neighbours(holders, rows):
    assert [(run.start, run.stop) for run in confidential.rows(np.array(holders))] == rows


def test_many_small_groups_become_about_ten_rows():
    assert len(confidential.rows(np.ones(60_000, np.int64))) == 10


@settings(deadline=None)
@given(holders=sizes, data=st.data())
def test_what_a_row_shows_is_shared_by_ten_or_strictly_inside_a_range(holders, data):
    count = len(holders)
    values = np.array(data.draw(st.lists(st.floats(1e-9, 1e9) | st.sampled_from([1.0, 2.5, 10.0]), min_size=count, max_size=count)))
    view = confidential.View(np.arange(1.0, count + 1), np.full(count, 1e-5), holders)
    for run in view.rows():
        shown = view.value(values, run)
        if isinstance(shown, tuple):
            assert shown[0] < values[run].min()
            assert shown[1] > values[run].max()
            assert all(float(f"{end:.2g}") == end for end in shown)
        else:
            assert set(values[run]) == {shown}
            assert holders[run].sum() >= 10


@settings(deadline=None)
@given(value=st.floats(1e-9, 1e9))
def test_a_range_ends_on_the_nearest_of_one_two_and_five(value):
    low, high = confidential.outward(value, value)
    assert low < value < high
    assert all(f"{end:.0e}"[0] in "125" and float(f"{end:.0e}") == end for end in (low, high))
    assert high / low <= 5.0001


# --- both sides of the limit ---


def test_large_groups_are_shown_exactly_and_small_ones_merged(mixed):
    groups = mixed.to_json()["groups"]
    assert [group["epsilon"] for group in groups] == [1.25, [2.0, 5.0], 5.5, 6.75]
    assert [group["holders"] for group in groups] == [25, 12, 10, 40]
    assert [group["delta"] for group in groups] == [1e-5] * 4
    assert groups[0]["clip"] == mixed.clips[0]
    assert groups[0]["spent"] == mixed.spent[0]
    assert groups[1]["clip"][0] < mixed.clips[1] < mixed.clips[2] < groups[1]["clip"][1]
    for text in (str(mixed), rendered(mixed), repr(mixed)):
        assert all(shown in text for shown in ("1.25", "2 to 5", "5.5", "6.75"))
        assert not given_away(text, (3.1415926, 4.4444444))


def test_an_error_names_a_large_group_and_not_a_small_one():
    def overspending(holders):
        plan = sartor.plan(Budgets.from_groups([(3.25, holders)], delta=1e-5), "scale", steps=10, batch=2, accountant="rdp")
        with pytest.raises(sartor.Overspent) as refused:
            changed(plan, noise_multiplier=plan.noise_multiplier / 2)
        return str(refused.value)

    assert "the group at epsilon 3.25 would spend" in overspending(10)
    assert "a group of fewer than 10 holders would spend" in overspending(9)
    assert "3.25" not in overspending(9)


@pytest.mark.parametrize("holders", [1, 2, 9])
def test_a_population_of_fewer_than_ten_is_one_range(holders):
    budgets = Budgets([3.1415926] * holders, delta=PLANTED_DELTA)
    plan = sartor.plan(budgets, "scale", steps=10, batch=1, accountant="rdp")
    document = plan.to_json()
    assert document["merged"] is True
    assert [group["epsilon"] for group in document["groups"]] == [[2.0, 5.0]]
    for text in (repr(budgets), repr(budgets.groups), repr(plan), str(plan), rendered(plan), json.dumps(document)):
        assert not given_away(text)
    with pytest.raises(sartor.SartorError, match="merged"):
        Plan.from_json(document)
