"""What one holder is told: their own guarantee and their own reading, which is no guarantee, and nothing of anybody else."""

import json
import math
import re
from typing import Any

import numpy as np
import pytest

import sartor
from sartor.errors import SartorError
from sartor.individual.statement import Statement, statement

NAMES = [f"person {i}" for i in range(103)]
PEOPLE = sartor.Budgets(
    np.repeat([0.731, 2.0, 8.0], [3, 60, 40]), delta=np.repeat([3.7e-7, 1e-5, 1e-4], [3, 60, 40]), holders=NAMES, reserve=0.2
)
PLAN = sartor.plan(PEOPLE, "uniform", steps=20, batch=30, accountant="rdp")
READING = np.linspace(0.01, 0.7, 103)


def numbers_in(text: str) -> set[float]:
    return {float(found) for found in re.findall(r"(?<![\w.])\d+\.?\d*(?:e[+-]?\d+)?", text)}


def test_it_has_the_holders_own_guarantee_and_reading_and_nothing_else() -> None:
    found = statement(PLAN, PEOPLE, READING, "person 10")
    document = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert document["holder"] == "person 10"
    assert document["private"] is True
    assert document["sensitive"] is True
    guarantee, reading = document["guarantee"], document["reading"]
    assert (guarantee["epsilon"], guarantee["delta"], guarantee["relation"]) == (2.0, 1e-5, "zero-out")
    assert (reading["epsilon"], reading["delta"], reading["ex_post"]) == (READING[10], pytest.approx(0.8e-5), True)
    own = {10, 2.0, 1e-5, READING[10], 0.8e-5, 7.39}
    for text in (str(found), json.dumps(document)):
        assert all(any(math.isclose(number, known, rel_tol=1e-3) for known in own) for number in numbers_in(text)), text


def test_what_it_says_of_one_holder_does_not_move_with_anybody_elses_reading() -> None:
    others = np.random.default_rng(1).random(103)
    others[10] = READING[10]
    assert statement(PLAN, PEOPLE, READING, 10) == statement(PLAN, PEOPLE, others, 10)


def test_it_says_in_words_that_the_reading_is_no_guarantee() -> None:
    text = str(statement(PLAN, PEOPLE, READING, 70))
    assert "You are guaranteed epsilon 8 at delta 0.0001" in text
    assert "e^8 = 2.98e+03 times as likely" in text
    assert "a reading and not a guarantee" in text
    assert "taken afterwards" in text
    assert "everything that one holder contributes becomes zero" in text


def test_an_estimate_is_told_as_one_that_may_be_too_low() -> None:
    text = str(statement(PLAN, PEOPLE, READING, 70, kind="estimate"))
    assert "An estimate of what your data cost" in text
    assert "may be too low" in text
    assert "really cost" not in text
    assert "What your data really cost" in str(statement(PLAN, PEOPLE, READING, 70, kind="strict"))


def test_by_name_and_by_place_it_is_the_same_one() -> None:
    assert statement(PLAN, PEOPLE, READING, "person 102") == statement(PLAN, PEOPLE, READING, 102)
    assert statement(PLAN, PEOPLE, READING, np.int64(102)).reading == READING[102]  # type: ignore[arg-type]


def test_without_noise_or_a_secret_seed_nothing_is_guaranteed() -> None:
    found = statement(PLAN, PEOPLE, READING, 10, private=False)
    assert "guarantees nothing" in str(found)
    assert "You are guaranteed" not in str(found)
    assert found.to_json()["private"] is False
    public = Statement(math.inf, 1e-5, math.inf, 1e-5, PLAN.relation)
    assert "You gave your data as public" in str(public)
    assert json.loads(json.dumps(public.to_json(), allow_nan=False))["guarantee"]["epsilon"] == "inf"


def test_a_reading_that_there_is_not_is_said_to_be_none() -> None:
    found = Statement(1.0, 1e-5, math.nan, 1e-5, PLAN.relation)
    assert "could not be read" in str(found)
    assert json.loads(json.dumps(found.to_json(), allow_nan=False))["reading"]["epsilon"] is None


def test_large_epsilons_are_told_without_a_number_of_times() -> None:
    assert "at most e^1000 times" in str(Statement(1000.0, 1e-5, 1.0, 1e-5, PLAN.relation))


@pytest.mark.parametrize("holder", ["nobody", -1, 103, 1.5, True, None])
def test_who_is_no_holder_is_refused(holder: Any) -> None:
    with pytest.raises(SartorError, match="holder"):
        statement(PLAN, PEOPLE, READING, holder)


def test_readings_and_budgets_that_do_not_fit_are_refused() -> None:
    with pytest.raises(SartorError, match="as many readings"):
        statement(PLAN, PEOPLE, READING[1:], 1)
    with pytest.raises(SartorError, match="another share in reserve"):
        statement(PLAN, PEOPLE.with_reserve(0.0), READING, 1)


def test_a_repr_tells_nothing() -> None:
    assert repr(statement(PLAN, PEOPLE, READING, 10)) == "Statement(of one holder)"
