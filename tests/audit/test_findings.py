"""Findings: bounds beside promises, small groups together, and a verdict that is as sure as it says."""

import json
import re

import numpy as np
import pytest

import sartor
from sartor.audit.findings import AS_PLANNED, ONE_RUN, REPEATED, Kind, findings
from sartor.audit.losses import threshold_success
from sartor.audit.replay import Replayed
from sartor.audit.scores import Scores
from sartor.audit.significance import welch
from sartor.errors import SartorError
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
    for text in (json.dumps(found.to_json()), str(found.table()), audit_page(found, title="audit"), repr(found)):
        assert "0.731" not in text
        assert "3.7e-07" not in text


def test_the_document_has_what_was_found_of_each_group():
    document = findings("loss", {1: normal(0.1), 2: normal(0.2)}, PLAN, confidence=0.95).to_json()
    assert (document["attack"], document["verdict"], document["confidence"]) == ("loss", "consistent", 0.95)
    fields = {"epsilon", "delta", "holders", "lower_bound", "auc", "tpr_at_0.001", "tpr_at_0.01"}
    assert all(set(group) == fields for group in document["groups"])


@pytest.mark.parametrize("bounds", [ONE_RUN, REPEATED, AS_PLANNED])
def test_the_confidence_is_shared_among_groups_kinds_of_bounds_and_attacks(bounds):
    asked = []

    def noted(kind):
        return Kind(lambda scores, delta, confidence: asked.append(confidence) or kind.bound(scores, delta, confidence), kind.if_)

    scores = {1: normal(0.1), 2: normal(0.2)}
    for attacks in (1, 3):
        findings("canary", scores, PLAN, confidence=0.9, bounds=[noted(bound) for bound in bounds], attacks=attacks)
        assert asked == pytest.approx([1 - 0.1 / (2 * attacks * len(bounds))] * 2 * len(bounds))
        asked.clear()


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
    assert found.to_json()["sensitive"] is True
    assert "Show them to nobody" in audit_page(found, title="audit")
    shown = findings("loss", scores, PLAN, sensitive=False)
    assert "sensitive" not in shown.to_json()
    page = audit_page(shown, title="audit")
    assert "Show them to nobody" not in page
    assert "<svg" in page
