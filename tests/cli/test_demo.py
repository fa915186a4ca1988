"""`sartor demo`: three plans for the papers' setting, as tables with their meaning or as one document."""

import json
import re

import pytest

import sartor


@pytest.fixture
def plans(run):
    code, out, err = run("demo", "--json")
    assert (code, err) == (0, "")
    return {plan["scheme"]: plan for plan in json.loads(out, parse_constant=pytest.fail)["plans"]}


def test_the_document_holds_three_plans_that_keep_every_budget(plans):
    assert list(plans) == ["uniform", "scale", "sample"]
    for plan in plans.values():
        assert (plan["steps"], plan["batch"], plan["clip"], plan["accountant"]) == (9375, 512, 0.2, "pld")
        assert [(group["epsilon"], group["holders"]) for group in plan["groups"]] == [(1, 20_400), (2, 25_800), (3, 13_800)]
        assert all(group["spent"] <= group["epsilon"] for group in plan["groups"])


def test_its_figures_show_what_individual_budgets_buy(plans):
    uniform, scale, sample = plans.values()
    assert sample["noise_multiplier"] < scale["noise_multiplier"] < 0.7 * uniform["noise_multiplier"]
    assert all(group["spent"] <= 1 for group in uniform["groups"])
    for plan in (scale, sample):
        assert all(group["spent"] >= 0.995 * group["epsilon"] for group in plan["groups"])
    assert [group["excess"] for group in scale["groups"]] == [0, 0, 0]
    assert sample["groups"][2]["excess"] > 0


def test_each_plan_of_the_document_reads_back(plans):
    for document in plans.values():
        assert sartor.Plan.from_json(document).to_json() == document


def test_the_tables_and_their_meaning_agree_with_the_document(run, plans):
    code, out, err = run("demo")
    assert (code, err) == (0, "")
    for scheme, plan in plans.items():
        assert f"{scheme}: 9,375 steps, expected batch 512, noise multiplier {plan['noise_multiplier']:.5g} on a clip of 0.2 (pld)" in out
    tables, meaning = out.split("What this means")
    for heading in ("epsilon", "holders", "rate", "clip", "noise multiplier", "expected uses", "spent", "excess"):
        assert tables.count(heading) >= 3
    for holders in ("20,400", "25,800", "13,800"):
        assert tables.count(holders) == 3
    uniform, scale, sample = plans.values()
    words = " ".join(meaning.split())
    assert f"allowed epsilon 3 get to use {uniform['groups'][2]['spent']:.2f} of it" in words
    assert f"({uniform['noise_multiplier']:.3f} to {scale['noise_multiplier']:.3f})" in words
    assert f"falls by {1 - scale['noise_multiplier'] / uniform['noise_multiplier']:.0%}" in words
    assert f"counts at most {scale['groups'][0]['clip']:.3f}" in words
    assert f"at a noise of {sample['noise_multiplier']:.3f}" in words
    assert f"is used {sample['groups'][0]['expected_uses']:.0f} times" in words


def test_the_command_that_it_recommends_works(run, plans):
    command = re.search(r"Plan your own: sartor (.*)", run("demo")[1])[1]
    code, out, err = run(*command.split(), "--json")
    assert (code, err) == (0, "")
    assert json.loads(out) == plans["scale"]


def test_bad_input_ends_with_one_sentence_and_exit_code_2(run):
    for arguments in (["demo", "--fast"], ["demo", "more"]):
        code, out, err = run(*arguments)
        assert (code, out) == (2, "")
        assert re.fullmatch(r"error: \S[^\n]*\n", err)
