"""Findings: bounds beside promises, small groups together, and a verdict that is as sure as it says."""

import functools
import json
import re
from dataclasses import replace

import numpy as np
import pytest

import sartor
from sartor import federated
from sartor.audit.findings import AS_PLANNED, ONE_RUN, REPEATED, Kind, findings
from sartor.audit.lira import threshold_success
from sartor.audit.replay import Replayed
from sartor.audit.scores import Scores, welch
from sartor.errors import SartorError
from sartor.report import plots
from sartor.report.audit import audit_page

BUDGETS = sartor.Budgets.from_groups([(0.731, 3), (2.0, 60), (4.0, 40)], delta=[3.7e-7, 1e-5, 1e-5])
PLAN = sartor.plan(BUDGETS, steps=5, batch=20, accountant="rdp")


def normal(mean: float, count: int = 500, seed: int = 0) -> Scores:
    drawn = np.random.default_rng(seed).standard_normal((2, count))
    return Scores(drawn[0] + mean, drawn[1])


def test_more_than_was_promised_is_refuted_and_less_is_not():
    sound = findings("canary", {1: normal(0.3), 2: normal(0.5)}, PLAN, bounds=AS_PLANNED)
    assert sound.verdict == "consistent"
    broken = findings("canary", {1: normal(9), 2: normal(0.5)}, PLAN, bounds=REPEATED)
    assert broken.verdict == "refuted"
    assert [row.refuted for row in broken.rows] == [True, False]
    assert "Refuted" in broken.sentence()


def test_a_refutation_says_what_it_is_sure_of():
    scores = {1: normal(0.1), 2: normal(3, 2_000)}
    assert findings("canary", scores, PLAN, bounds=ONE_RUN).verdict == "consistent"
    assert "If the run were what its plan describes" in findings("canary", scores, PLAN, bounds=AS_PLANNED).sentence()
    told = findings("canary", {1: normal(9), 2: normal(3, 2_000)}, PLAN, bounds=AS_PLANNED)
    for found in (told, findings("canary", scores, PLAN, bounds=REPEATED)):
        assert "If every promise held" in found.sentence()


def test_few_people_stand_beside_others_and_their_budget_is_not_told():
    found = findings("lira", {0: normal(0.1, 3), 1: normal(0.1), 2: normal(0.2)}, PLAN)
    assert len(found.rows) == 2
    assert found.rows[0].holders >= 10
    page = re.sub("<svg.*?</svg>", "", audit_page(found, title="audit", sensitive=True), flags=re.DOTALL)
    for text in (json.dumps(found.to_json(sensitive=True)), str(found.table(sensitive=True)), page, repr(found)):
        assert "0.731" not in text
        assert "3.7e-07" not in text


def test_the_document_has_what_was_found_of_each_group():
    document = findings("loss", {1: normal(0.1), 2: normal(0.2)}, PLAN, confidence=0.95, sensitive=False).to_json()
    assert (document["attack"], document["verdict"], document["confidence"]) == ("loss", "consistent", 0.95)
    fields = {
        "epsilon",
        "delta",
        "holders",
        "lower_bound",
        "auc",
        "tpr_at_0.001",
        "tpr_at_0.01",
        "inside",
        "outside",
        "could_show",
        "verdict",
    }
    assert all(set(group) == fields for group in document["groups"])


@pytest.mark.parametrize("bounds", [ONE_RUN, REPEATED, AS_PLANNED])
def test_the_confidence_is_shared_among_groups_kinds_of_bounds_and_attacks(bounds):
    asked = []

    def noted(kind):
        return Kind(
            lambda scores, delta, confidence, seed: asked.append(confidence) or kind.bound(scores, delta, confidence, seed=seed), kind.if_
        )

    scores = {1: normal(0.1), 2: normal(0.2)}
    for attacks in (1, 3):
        findings("canary", scores, PLAN, confidence=0.9, bounds=[noted(bound) for bound in bounds], attacks=attacks)
        assert asked == pytest.approx([1 - 0.1 / (2 * attacks * len(bounds))] * 4 * len(bounds))  # for what is, and what could be shown
        asked.clear()


def test_a_federated_plan_promises_what_is_accounted():
    clients = sartor.Budgets.from_groups([(1.0, 60), (4.0, 40)], delta=1e-3)
    plan = federated.plan(clients, rounds=3, per_round=20, accountant="rdp")
    scores = {0: normal(0.1), 1: normal(9, 2_000)}
    told = findings("canary", scores, plan, bounds=AS_PLANNED, seed=1)
    same = findings("canary", scores, plan.accounted, bounds=AS_PLANNED, seed=1)
    assert told.to_json(sensitive=True) == same.to_json(sensitive=True)
    assert told.verdict == "refuted"


def test_the_advice_is_of_what_may_help():
    few = {1: normal(9, 20)}
    assert "More canaries may" in findings("canary", few, PLAN).sentence()
    assert "The attack canary may" in findings("lira", few, PLAN).sentence()


def test_bounds_come_from_the_scores_that_may_be_counted():
    pooled, alone = {1: normal(9, 2_000), 2: normal(0.1)}, {1: normal(0.1), 2: normal(0.1)}
    found = findings("lira", pooled, PLAN, counted=alone)
    assert found.verdict == "consistent"
    assert found.rows[0].auc > 0.99


def test_what_cannot_be_is_refused():
    with pytest.raises(SartorError, match="no scores"):
        findings("loss", {}, PLAN)
    with pytest.raises(SartorError, match="confidence"):
        findings("loss", {1: normal(0.1)}, PLAN, confidence=1.0)
    with pytest.raises(SartorError, match="one attack at least"):
        findings("loss", {1: normal(0.1)}, PLAN, attacks=0)


def test_what_was_found_is_shown_by_no_repr():
    inside = normal(0.37)
    found = findings("loss", {1: inside, 2: inside}, PLAN)
    replayed = Replayed(3, 2, 0.998877, ("somebody",), ("something",))
    for thing in (found, found.rows[0], found.rows[0].curve, threshold_success(inside), welch(inside.inside, inside.outside), replayed):
        said = re.findall(r"\d+\.\d{3,}|some", repr(thing))
        assert not said, said


def test_a_page_says_where_it_may_be_shown_to_nobody():
    scores = {1: normal(0.1), 2: normal(0.2)}
    found = findings("loss", scores, PLAN)
    assert found.sensitive
    assert found.to_json(sensitive=True)["sensitive"] is True
    assert "Show them to nobody" in audit_page(found, title="audit", sensitive=True)
    shown = findings("loss", scores, PLAN, sensitive=False)
    assert "sensitive" not in shown.to_json()
    page = audit_page(shown, title="audit")
    assert "Show them to nobody" not in page
    assert "<svg" in page


def test_what_is_sensitive_is_shown_where_it_is_said_alone():
    found, replayed = findings("loss", {1: normal(0.37)}, PLAN), Replayed(3, 2, 0.998877)
    for show in (found.to_json, found.table, replayed.to_json, functools.partial(audit_page, found, title="audit")):
        for options in ({}, {"sensitive": False}, {"sensitive": 1}):
            with pytest.raises(SartorError, match="sensitive=True"):
                show(**options)
        assert show(sensitive=True)
    for shown in (replace(found, sensitive=False), replace(replayed, sensitive=False)):
        assert shown.to_json()["verdict"] == "consistent"


def test_a_row_of_several_groups_is_held_to_the_largest_of_their_promises():
    asked = []

    def bound(scores, delta, confidence, seed):
        asked.append(delta)
        return 1.9  # more than the smaller epsilon of the first row, less than the larger one

    found = findings("canary", {0: normal(0.1), 1: normal(0.1)}, PLAN, bounds=[Kind(bound, "every promise held")])
    assert set(asked) == {1e-5}
    assert [row.refuted for row in found.rows] == [False]
    assert found.verdict == "consistent"


@pytest.mark.parametrize(("bound", "verdict"), [(4.0, "consistent"), (np.nextafter(4.0, 5.0), "refuted")])
def test_just_what_was_promised_refutes_nothing(bound, verdict):
    kind = Kind(lambda scores, delta, confidence, seed: float(bound), "every promise held")
    assert findings("canary", {2: normal(0.1)}, PLAN, bounds=[kind]).verdict == verdict


def test_where_nothing_could_be_shown_it_is_said():
    claimed = PLAN.epsilon[1]
    for count, blind in ((20, True), (2_000, False)):
        found = findings(
            "canary", {1: normal(9, count)}, PLAN, bounds=[Kind(lambda scores, *_, seed: 0.001 * scores.inside.size * claimed, "")]
        )
        assert found.rows[0].could_show == pytest.approx(0.001 * count * claimed)
        assert found.rows[0].is_blind == blind
        assert ("it says nothing" in found.sentence()) == blind
        assert (found.table(sensitive=True).rows[0][-1] == "cannot tell") == blind


@pytest.mark.parametrize(("shown", "blind"), [(4.0, True), (np.nextafter(4.0, 5.0), False)])
def test_scores_that_could_show_no_more_than_what_was_promised_are_too_few(shown, blind):
    kind = Kind(lambda scores, *_, seed: float(shown) if scores.inside.min() == 1 else 0.0, "every promise held")  # if all had told right
    assert findings("canary", {2: normal(0.1)}, PLAN, bounds=[kind]).rows[0].is_blind == blind


def test_perfect_scores_of_few_records_refute_little_and_are_said_to():
    found = findings("lira", {1: normal(30, 50), 2: normal(30, 50)}, PLAN)
    assert all(row.lower_bound == pytest.approx(row.could_show) for row in found.rows)


def test_scores_that_are_all_the_same_are_said_to_tell_nothing():
    same = Scores(np.zeros(50), np.zeros(50))
    assert "all scores are the same" in findings("rmia", {1: same, 2: normal(0.1)}, PLAN).sentence()
    assert "all scores are the same" not in findings("rmia", {1: normal(0.1), 2: normal(0.1)}, PLAN).sentence()


def test_scores_of_members_alone_are_refused():
    everybody = {group: Scores(np.ones(20), np.zeros(0)) for group in (1, 2)}
    with pytest.raises(SartorError, match="some who did not"):
        findings("lira", everybody, PLAN)
    with pytest.raises(SartorError, match="some who did not"):
        findings("lira", {1: normal(0.1), 2: normal(0.1)}, PLAN, counted=everybody)


def test_rates_that_so_few_cannot_tell_are_not_in_the_table():
    (row,) = findings("canary", {1: normal(1, 500)}, PLAN).table(sensitive=True).rows
    assert row[-3] == "-"
    assert row[-2].endswith("%")


def test_curves_of_one_epsilon_are_told_apart_by_delta():
    plan = sartor.plan(sartor.Budgets([1.0] * 40, delta=[1e-5] * 20 + [1e-4] * 20), "uniform", steps=2, batch=5, accountant="rdp")
    found = findings("canary", {group: normal(0.1) for group in range(len(plan))}, plan)
    page = audit_page(found, title="audit", sensitive=True)
    if len(found.rows) > 1:
        assert "delta 1e-05" in page
    assert "guessing" in page
    assert "Confidence 0.99" in page
    assert "canaries" in page


def test_curves_are_drawn_where_low_rates_can_be_told_apart(monkeypatch):
    drawn = []
    right = plots.lines
    monkeypatch.setattr(plots, "lines", lambda curves, **how: drawn.append((curves, how)) or right(curves, **how))
    audit_page(findings("canary", {1: normal(1), 2: normal(0.1)}, PLAN), title="audit", sensitive=True)
    ((curves, how),) = drawn
    assert how["logarithmic"]
    assert how["logarithmic_x"]
    assert len(curves) == 3
    assert all(min(*curve.x, *curve.y) == pytest.approx(1 / 500) for curve in curves)
