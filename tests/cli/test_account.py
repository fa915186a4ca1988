"""`sartor account`: what a plan, or one mechanism, costs by both accountants."""

import json
import math
import re
import shlex

import numpy as np
import pytest

import sartor

MECHANISM = shlex.split("--rate 0.04 --noise-multiplier 2.2 --steps 5000 --delta 1e-5")
RENYI, PLD = 6.8143, 6.3124


@pytest.fixture
def saved(tmp_path):
    """Writes a plan and gives its path."""

    def save(plan, **options):
        path = tmp_path / "plan.json"
        plan.save(path, **options)
        return path

    return save


@pytest.fixture(scope="module")
def plan():
    budgets = sartor.Budgets.from_groups([(1, 40), (2, 40), (math.inf, 20)], delta=1e-5)
    return sartor.plan(budgets, "sample", steps=200, batch=10, accountant="rdp")


@pytest.fixture(scope="module")
def small_groups():
    budgets = sartor.Budgets([*(1 + i / 8 for i in range(24)), *[3.1415926] * 3, *[7.0] * 12], delta=1e-5)
    return sartor.plan(budgets, "scale", steps=200, batch=10, accountant="rdp")


def refused(code, out, err):
    """Exit code 2, nothing on stdout, one sentence on stderr."""
    return code == 2 and out == "" and re.fullmatch(r"error: \S[^\n]*\n", err) is not None


def document(result):
    code, out, err = result
    assert (code, err) == (0, "")
    return json.loads(out, parse_constant=pytest.fail)


def most(figure):
    """The upper end of a figure, which is a number or a range."""
    return figure[1] if isinstance(figure, list) else figure


# --- one mechanism ---


def test_a_mechanism_costs_what_the_references_say(run):
    found = document(run("account", *MECHANISM, "--json"))
    assert found["rdp"] == pytest.approx(RENYI, rel=5e-4)
    assert found["pld"]["upper"] == pytest.approx(PLD, rel=5e-4)
    assert found["pld"]["lower"] <= found["pld"]["estimate"] <= found["pld"]["upper"]
    assert {key: found[key] for key in ("rate", "noise_multiplier", "steps", "delta")} == {
        "rate": 0.04,
        "noise_multiplier": 2.2,
        "steps": 5000,
        "delta": 1e-5,
    }


def test_a_mechanism_is_explained_in_words(run):
    code, out, err = run("account", *MECHANISM)
    assert (code, err) == (0, "")
    assert float(re.search(r"epsilon ([\d.]+) by Rényi", out)[1]) == pytest.approx(RENYI, rel=5e-4)
    assert float(re.search(r"epsilon ([\d.]+) by privacy-loss", out)[1]) == pytest.approx(PLD, rel=5e-4)
    assert "5,000 steps at rate 0.04 and noise multiplier 2.2, delta 1e-05" in out


def test_a_mechanism_without_noise_costs_inf(run):
    found = document(run("account", *MECHANISM, "--noise-multiplier", "0", "--json"))
    assert found["rdp"] == "inf"
    assert found["pld"]["upper"] == "inf"


def test_infinite_noise_is_written_as_inf_and_costs_nothing(run):
    found = document(run("account", *MECHANISM, "--noise-multiplier", "inf", "--json"))
    assert found["noise_multiplier"] == "inf"
    assert (found["rdp"], found["pld"]["upper"]) == (0, 0)


# --- a plan ---


def test_a_plan_that_the_command_wrote_is_read_back(run, tmp_path):
    path = tmp_path / "plan.json"
    budgets = shlex.split("--epsilon 1,2,3 --share .34,.43,.23 --holders 60000 --delta 1e-5 --steps 9375 --batch 512 --clip 0.2")
    assert run("plan", *budgets, "--scheme", "sample", "--accountant", "rdp", "--out", path)[0] == 0
    groups = document(run("account", path, "--json"))["groups"]
    assert [(group["epsilon"], group["delta"], group["holders"]) for group in groups] == [
        (1, 1e-5, 20_400),
        (2, 1e-5, 25_800),
        (3, 1e-5, 13_800),
    ]
    for group in groups:
        assert 0.995 * group["epsilon"] <= group["rdp"] <= group["epsilon"]
        assert 0.85 * group["rdp"] < group["pld"] < 0.97 * group["rdp"]


def test_both_accountants_agree_with_the_library(run, saved, plan):
    groups = document(run("account", saved(plan), "--json"))["groups"]
    assert [group["rdp"] for group in groups] == [*plan.spent[:2].tolist(), "inf"]
    for i in (0, 1):
        assert groups[i]["pld"] == pytest.approx(sartor.accounting.epsilon(plan.exposure(i), 1e-5, "pld").upper, rel=0.01)
    assert groups[2] == {"epsilon": "inf", "delta": 1e-5, "holders": 20, "rdp": "inf", "pld": "inf"}


def test_the_first_steps_of_a_plan_cost_what_they_cost(run, saved, plan):
    groups = document(run("account", saved(plan), "--steps", "50", "--json"))["groups"]
    assert [group["rdp"] for group in groups[:2]] == plan.spent_after(50)[:2].tolist()
    assert all(0 < group["rdp"] < group["epsilon"] for group in groups[:2])
    untouched = document(run("account", saved(plan), "--steps", "0", "--json"))["groups"]
    assert [(group["rdp"], group["pld"]) for group in untouched] == [(0, 0)] * 3


def test_a_group_whose_turn_has_not_come_has_spent_nothing(run, saved):
    budgets = sartor.Budgets.from_groups([(1, 40), (2, 40)], delta=1e-5)
    one_by_one = sartor.plan(budgets, "sequential", steps=100, batch=10, accountant="rdp")
    strict, open_ = document(run("account", saved(one_by_one), "--steps", int(one_by_one.last[0]), "--json"))["groups"]
    assert strict["rdp"] == one_by_one.spent[0]
    assert (open_["rdp"], open_["pld"]) == (0, 0)


def test_a_reserve_is_not_counted_as_spendable(run, saved):
    budgets = sartor.Budgets.from_groups([(1, 40), (2, 40)], delta=1e-5, reserve=0.25)
    kept = sartor.plan(budgets, "scale", steps=100, batch=10, accountant="pld")
    for group in document(run("account", saved(kept), "--json"))["groups"]:
        assert 0.74 * group["epsilon"] < group["pld"] <= 0.75 * group["epsilon"] < group["rdp"]


def test_a_plan_is_printed_as_a_table(run, saved, plan):
    code, out, err = run("account", saved(plan))
    assert (code, err) == (0, "")
    for shown in ("epsilon", "holders", "rdp", "pld", f"{plan.spent[1]:.5g}", "inf"):
        assert shown in out


# --- a plan whose small groups are merged ---


def test_a_merged_plan_costs_no_less_than_its_members_spend(run, saved, small_groups):
    path = saved(small_groups)
    merged = json.loads(path.read_text())
    assert merged["merged"] is True
    rows = document(run("account", path, "--json"))["groups"]
    assert [row["holders"] for row in rows] == [group["holders"] for group in merged["groups"]]
    ends = np.cumsum([row["holders"] for row in rows])
    held = np.cumsum(small_groups.holders)
    stops = np.searchsorted(held, ends) + 1
    assert held[stops - 1].tolist() == ends.tolist()
    assert ends[-1] == held[-1] == 39
    for row, start, stop in zip(rows, [0, *stops[:-1]], stops, strict=True):
        low, high = row["epsilon"] if isinstance(row["epsilon"], list) else [row["epsilon"]] * 2
        assert low <= small_groups.epsilon[start:stop].min() <= small_groups.epsilon[start:stop].max() <= high
        assert small_groups.spent[start:stop].max() <= most(row["rdp"])
        assert most(row["pld"]) <= most(row["rdp"])
    assert [isinstance(row["rdp"], list) for row in rows] == [True, True, False]
    assert rows[-1]["pld"] < rows[-1]["rdp"] == small_groups.spent[-1]


def test_a_reserve_is_not_counted_as_spendable_beside_merged_groups(run, saved):
    budgets = sartor.Budgets.from_groups([(1, 3), (2, 40), (7, 40)], delta=1e-5, reserve=0.25)
    kept = sartor.plan(budgets, "scale", steps=100, batch=10, accountant="rdp")
    path = saved(kept)
    assert json.loads(path.read_text())["merged"] is True
    assert document(run("account", path, "--json"))["groups"][-1]["rdp"] == kept.spent[-1]


@pytest.mark.parametrize("sensitive", [False, True])
def test_accounts_show_no_single_holder(run, saved, small_groups, sensitive):
    path = saved(small_groups, sensitive=sensitive)
    for form in ([], ["--json"]):
        code, out, err = run("account", path, *form)
        assert (code, err) == (0, "")
        assert "holders" in out
        assert "3.14" not in out


def test_a_merged_plan_costs_less_in_its_first_steps(run, saved, small_groups):
    path = saved(small_groups)
    whole = document(run("account", path, "--json"))["groups"]
    some = document(run("account", path, "--steps", "50", "--json"))["groups"]
    assert all(0 < most(part["rdp"]) <= most(all_["rdp"]) for part, all_ in zip(some, whole, strict=True))
    assert some[-1]["rdp"] < whole[-1]["rdp"]


# --- a person who owns several records ---


def test_a_person_with_records_spends_what_the_library_says(run, saved, plan):
    found = document(run("account", saved(plan), "--records", "20", "--json"))
    assert found["records"] == 20
    assert found["accountant"] == "pld"
    strict, middle, public = found["groups"]
    assert [list(group) for group in found["groups"]] == [["epsilon", "delta", "holders", "spent", "spent_by_person"]] * 3
    assert (strict["epsilon"], strict["delta"], strict["holders"]) == (1, 1e-5, 40)
    for i, group in enumerate((strict, middle)):
        person = sartor.accounting.epsilon(sartor.plans.persons.person_exposure(plan, i, 20), 1e-5)
        assert group["spent"] == plan.spent_after(plan.steps, "pld")[i]
        assert person.lower <= group["spent_by_person"] <= person.upper * 1.001
        assert group["spent_by_person"] > 5 * group["spent"]
    assert public == {"epsilon": "inf", "delta": 1e-5, "holders": 20, "spent": "inf", "spent_by_person": "inf"}


def test_a_person_with_one_record_spends_what_the_record_does(run, saved, plan, small_groups):
    for each in (plan, small_groups):
        for group in document(run("account", saved(each), "--records", "1", "--json"))["groups"]:
            assert group["spent"] == group["spent_by_person"]


def test_a_person_has_spent_less_in_the_first_steps(run, saved, plan):
    whole, some = (document(run("account", saved(plan), "--records", "5", *steps, "--json"))["groups"] for steps in ([], ["--steps", "50"]))
    for group in (0, 1):
        for key in ("spent", "spent_by_person"):
            assert 0 < some[group][key] < whole[group][key]
    untouched = document(run("account", saved(plan), "--records", "5", "--steps", "0", "--json"))["groups"]
    assert [(group["spent"], group["spent_by_person"]) for group in untouched] == [(0, 0)] * 3


def test_what_a_person_spends_is_printed_beside_one_record(run, saved, plan):
    code, out, err = run("account", saved(plan), "--records", "20")
    assert (code, err) == (0, "")
    shown = document(run("account", saved(plan), "--records", "20", "--json"))["groups"][0]
    for words in ("of a person who owns 20", "one record", "a person", f"{shown['spent']:.5g}", f"{shown['spent_by_person']:.5g}", "inf"):
        assert words in out


@pytest.mark.few(1)
@pytest.mark.parametrize("records", ["2", "20"])
def test_a_merged_row_costs_no_less_than_its_members_and_shows_none_of_them(run, saved, small_groups, records):
    """What a merged row says of a person follows from the ranges that it shows: it is the same for everybody who sees the plan."""
    shown, every = (
        document(run("account", saved(small_groups, sensitive=sensitive), "--records", records, "--json"))["groups"]
        for sensitive in (False, True)
    )
    assert [row["spent_by_person"] for row in shown[:2]] == [row["spent_by_person"] for row in every[:2]]
    ends = np.searchsorted(np.cumsum(small_groups.holders), np.cumsum([row["holders"] for row in shown])) + 1
    person = sartor.plans.persons.spent_by_person(small_groups, int(records))
    for row, start, stop in zip(every, [0, *ends[:-1]], ends, strict=True):
        assert person[start:stop].max() <= most(row["spent_by_person"]) * 1.001
    for row in every[:2]:
        assert row["spent_by_person"][0] == 0
        assert float(f"{row['spent_by_person'][1]:.0e}") == row["spent_by_person"][1]  # one of 1, 2, 5, 10 and so on
    assert every[-1]["spent_by_person"] == pytest.approx(person[-1], rel=1e-12)
    assert shown[-1]["spent_by_person"] == pytest.approx(person[-1], rel=1e-3)


def test_budgets_of_small_groups_do_not_change_what_a_merged_row_says_of_a_person(run, saved):
    """However many numbers of records are asked for: two populations that show the same ranges are told the same."""
    counts, told, own = (2, 3, 5), [], []
    for strict in (1.02, 1.29):
        budgets = sartor.Budgets.from_groups([(strict, 3), (1.3, 4), (1.9, 4), (7.0, 40)], delta=1e-5)
        plan = sartor.plan(budgets, "scale", steps=50, batch=5, accountant="rdp")
        path = saved(plan, sensitive=True)
        rows = [document(run("account", path, "--records", str(count), "--json"))["groups"] for count in counts]
        told.append([groups[0]["spent_by_person"] for groups in rows])
        own.append([plan.view.value(sartor.plans.persons.spent_by_person(plan, count), slice(0, 3)) for count in counts])
    assert told[0] == told[1]
    assert own[0] != own[1]  # ranges of their own figures would tell one from the other


def test_a_large_group_that_is_treated_as_a_small_one_shows_a_range(run, saved):
    budgets = sartor.Budgets.from_groups([(1.21, 3), (2.0, 4), (2.5, 5), (7.0, 400)], delta=1e-5)
    alike = sartor.plan(budgets, "uniform", steps=50, batch=5, accountant="rdp")
    row = document(run("account", saved(alike, sensitive=True), "--records", "4", "--json"))["groups"][-1]
    low, high = row["spent_by_person"]
    assert low < sartor.plans.persons.spent_by_person(alike, 4)[-1] < high
    assert high >= 2 * low


def coins(holders=(400, 400)):
    stages = [sartor.plans.Stage(10, 4.0, [0.02, 0.03], 0.5), sartor.plans.Stage(10, 4.0, [0.02, 0.03], 0.5, inclusion=0.5)]
    return sartor.Plan("given", "rdp", 20.0, 1.0, [5.0, 9.0], [1e-5, 1e-5], holders, stages)


COUNTED = {"ownership": sartor.Ownership(np.arange(250) % 100, 100)}


@pytest.mark.parametrize("known", [COUNTED, {"records_per_holder": 3}], ids=["records", "most"])
@pytest.mark.parametrize("groups", [[(1, 40), (2, 60)], [(1, 3), (1.2, 4), (2, 93)]], ids=["shown", "merged"])
def test_training_by_holder_spends_of_a_person_what_it_spends_of_anybody(run, saved, groups, known):
    budgets = sartor.Budgets.from_groups(groups, delta=1e-5)
    path = saved(sartor.plan(budgets, "scale", steps=200, batch=10, accountant="rdp", **known))
    found = document(run("account", path, "--records", "20", "--json"))
    assert (found["records"], found["unit"]) == (20, "holder")
    assert all(group["spent_by_person"] == group["spent"] for group in found["groups"])
    assert "training by holder spends of a person who owns 20 records what it spends of" in " ".join(
        run("account", path, "--records", "20")[1].split()
    )


def test_training_by_record_says_so(run, saved, plan):
    assert document(run("account", saved(plan), "--records", "20", "--json"))["unit"] == "record"
    assert "training by holder" not in " ".join(run("account", saved(plan), "--records", "20")[1].split())


@pytest.mark.parametrize("sensitive", [False, True])
@pytest.mark.parametrize("holders", [(400, 400), (4, 400)])
def test_a_plan_with_coins_is_refused(run, saved, holders, sensitive):
    code, out, err = run("account", saved(coins(holders), sensitive=sensitive), "--records", "2")
    assert refused(code, out, err)
    assert "coin for each stage" in err


@pytest.mark.parametrize("inclusion", [None, 3, ["often", 1.0], [[1.0], 1.0]])
def test_a_merged_plan_with_damaged_coins_is_refused(run, tmp_path, inclusion):
    damaged = coins((4, 400)).to_json()
    damaged["stages"][1]["inclusion"] = inclusion
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(damaged))
    assert refused(*run("account", path, "--records", "2"))


@pytest.mark.parametrize("form", [[], ["--json"]], ids=["table", "json"])
@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--records", "0"], "records must be a whole number from 1 to 1,000,000, not 0"),
        (["--records", "-4"], "not -4"),
        (["--records", "1000001"], "not 1000001"),
        (["--records", "99999999999999999999"], "whole number"),
        (["--records", "2.5"], "--records"),
        (["--records", "many"], "--records"),
        (["--records", "2", "--steps", "201"], "the plan has 200 steps"),
        (["--records", "1", "--steps", "-1"], "the plan has 200 steps"),
        (["--records", "2", "--rate", "0.1"], "either a plan or"),
    ],
)
@pytest.mark.parametrize("which", ["plan", "small_groups"])
def test_records_that_nobody_owns_are_refused(run, saved, request, which, arguments, reason, form):
    code, out, err = run("account", saved(request.getfixturevalue(which)), *arguments, *form)
    assert refused(code, out, err)
    assert reason in err


def test_records_without_a_plan_are_refused(run):
    for arguments in ([], MECHANISM):
        code, out, err = run("account", *arguments, "--records", "2")
        assert refused(code, out, err)
        assert "give a plan" in err


# --- bad input ---


@pytest.mark.parametrize("form", [[], ["--json"]], ids=["table", "json"])
@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "give a plan"),
        (MECHANISM[:-2], "all of --rate"),
        ([*MECHANISM, "--rate", "2"], "rate must lie in"),
        ([*MECHANISM, "--rate", "nan"], "rate must lie in"),
        ([*MECHANISM, "--noise-multiplier", "-1"], "noise_multiplier must be"),
        ([*MECHANISM, "--noise-multiplier", "nan"], "noise_multiplier must be"),
        ([*MECHANISM, "--steps", "-1"], "steps must be"),
        ([*MECHANISM, "--steps", "1.5"], "--steps"),
        ([*MECHANISM, "--steps", "99999999999999999999"], "steps"),
        ([*MECHANISM, "--delta", "0"], "delta must lie"),
        ([*MECHANISM, "--delta", "1"], "delta must lie"),
        ([*MECHANISM, "--delta", "nan"], "delta must lie"),
        ([*MECHANISM, "--delta", "small"], "--delta"),
        ([*MECHANISM, "--epsilon", "1"], "--epsilon"),
        (["missing.json"], "missing.json cannot be read"),
        (["missing.json", *MECHANISM], "either a plan or"),
    ],
)
def test_bad_input_ends_with_one_sentence_and_exit_code_2(run, monkeypatch, tmp_path, arguments, reason, form):
    monkeypatch.chdir(tmp_path)
    code, out, err = run("account", *form, *arguments)
    assert refused(code, out, err)
    assert reason in err


@pytest.mark.parametrize("steps", ["-1", "201"])
@pytest.mark.parametrize("which", ["plan", "small_groups"])
def test_steps_beyond_the_plan_are_refused(run, saved, request, which, steps):
    assert refused(*run("account", saved(request.getfixturevalue(which)), "--steps", steps))


@pytest.mark.parametrize("content", ["", "plan", "[]", "3", "{}", '{"groups": []}', '{"groups": 3}', '{"groups": [{}], "merged": true}'])
def test_a_file_that_is_no_plan_is_refused(run, tmp_path, content):
    path = tmp_path / "plan.json"
    path.write_text(content)
    assert refused(*run("account", path))


def test_a_file_that_is_no_text_or_no_file_is_refused(run, tmp_path):
    path = tmp_path / "plan.json"
    path.write_bytes(b"\xff\xfe")
    assert refused(*run("account", path))
    assert refused(*run("account", tmp_path))


@pytest.mark.parametrize("key", ["epsilon", "delta", "holders", "rate", "clip"])
@pytest.mark.parametrize("value", [None, "much", "nan", -1, "3.1415926x", {}])
def test_a_plan_with_a_damaged_group_is_refused(run, tmp_path, plan, key, value):
    damaged = plan.to_json()
    damaged["groups"][0][key] = value
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(damaged))
    code, out, err = run("account", path)
    assert refused(code, out, err)
    assert "3.14" not in err


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("steps", "many"),
        ("steps", 200.5),
        ("steps", "inf"),
        ("batch", "large"),
        ("clip", 0),
        ("noise_multiplier", "inf"),
        ("accountant", "mine"),
    ],
)
def test_a_plan_with_a_damaged_number_is_refused(run, tmp_path, plan, key, value):
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({**plan.to_json(), key: value}))
    assert refused(*run("account", path))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rate", "often"),
        ("rate", -1),
        ("rate", "nan"),
        ("rate", [0.1]),
        ("noise_multiplier", -1),
        ("noise_multiplier", "nan"),
        ("delta", 0),
        ("delta", 2),
        ("holders", None),
        ("holders", "many"),
        ("epsilon", {}),
    ],
)
def test_a_merged_plan_with_a_damaged_group_is_refused(run, tmp_path, small_groups, key, value):
    damaged = small_groups.to_json()
    damaged["groups"][0][key] = value
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(damaged))
    assert refused(*run("account", path))


def test_a_plan_that_overspends_is_not_believed(run, tmp_path, plan):
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({**plan.to_json(), "noise_multiplier": plan.noise_multiplier / 2}))
    code, out, err = run("account", path)
    assert refused(code, out, err)
    assert "overspend" in err


# --- holders with several records ---


@pytest.mark.parametrize("groups", [[(1, 40), (2, 60)], [(1, 3), (2, 97)]], ids=["shown", "merged"])
def test_a_plan_of_people_with_several_records_says_how_many_there_are(run, saved, groups):
    budgets = sartor.Budgets.from_groups(groups, delta=1e-5)
    owners = sartor.Ownership(np.arange(250) % 100, 100)
    path = saved(sartor.plan(budgets, "scale", steps=200, batch=10, accountant="rdp", ownership=owners))
    assert "100 holders (250 records)" in " ".join(run("account", path)[1].split())
    found = document(run("account", path, "--json"))
    assert (found["holders"], found["records"]) == (100, 250)
