"""Accountants as parts that can be exchanged: what they support, and a further one beside ours."""

import dp_accounting
import numpy as np
import pytest

import sartor
from sartor.accounting import Composition, Included, SampledGaussian, accountants, epsilon, floor, profile, spend_on
from sartor.exposure import exposure_from_json
from sartor.relation import REPLACE, ZERO_OUT
from sartor.run.account import RunAccount

BUDGETS = sartor.Budgets.from_groups([(1.0, 600), (2.0, 300), (4.0, 100)], delta=1e-5)
STEP = SampledGaussian(0.05, 2.0, 100)


class Cautious(accountants.Renyi):
    """Half as much again as the Rényi accountant says."""

    name, waste, refines = "cautious", 1e-4, True

    def spend(self, *mechanism, accuracy=0.0):
        return 1.5 * super().spend(*mechanism[:4], accuracy)

    def epsilon(self, exposures, delta, accuracy):
        return accountants.ArrayBounds(*(1.5 * figure for figure in super().epsilon(exposures, delta, accuracy)))


class Unsure(accountants.Renyi):
    """Between half of what the Rényi accountant says and twice as much."""

    name = "unsure"

    def epsilon(self, exposures, delta, accuracy):
        value = super().epsilon(exposures, delta, accuracy).upper
        return accountants.ArrayBounds(value / 2, value, 2 * value)


@pytest.fixture
def cautious(monkeypatch):
    monkeypatch.setattr(accountants, "_KNOWN", dict(accountants._KNOWN))
    accountants.register(Cautious())


@pytest.mark.usefixtures("cautious")
@pytest.mark.parametrize("scheme", [scheme for scheme in sartor.plans.schemes() if scheme != "equal"])  # which needs a filter
def test_every_scheme_plans_by_an_accountant_from_elsewhere(scheme):
    options = {"threshold": 2.0} if scheme == "exclude" else {}
    plan, usual = (sartor.plan(BUDGETS, scheme, steps=100, batch=50, accountant=name, **options) for name in ("cautious", "rdp"))
    least, of_usual = (min(stage.noise_multiplier for stage in one.stages) for one in (plan, usual))
    assert least > of_usual
    assert np.all(plan.spent <= plan.epsilon)
    assert plan.spent.max() > 0.9 * plan.epsilon[plan.spent.argmax()]
    np.testing.assert_allclose(plan.spent, 1.5 * plan.spent_after(100, "rdp"))
    assert sartor.Plan.from_json(plan.record()) == plan


@pytest.mark.usefixtures("cautious")
def test_a_plan_is_judged_by_its_own_accountant():
    document = sartor.plan(BUDGETS, "scale", steps=100, batch=50, accountant="rdp").record()
    with pytest.raises(sartor.Overspent):
        sartor.Plan.from_json({**document, "accountant": "cautious"})


def test_no_accountant_takes_the_name_of_another():
    with pytest.raises(sartor.SartorError, match="already"):
        accountants.register(accountants.Renyi())
    with pytest.raises(sartor.SartorError, match='no accountant "cautious"; there are rdp and pld'):
        sartor.plan(BUDGETS, steps=100, batch=50, accountant="cautious")


def test_what_is_proven_from_below_is_below_what_is_promised():
    for exposure in (STEP, Included(0.5, STEP), Composition((STEP, SampledGaussian(1.0, 9.0, 5)))):
        assert 0.9 * epsilon(exposure, 1e-5).upper < floor([exposure], 1e-5)[0] <= epsilon(exposure, 1e-5).upper
        assert floor([exposure], 1e-5, "rdp")[0] == 0
        assert epsilon(exposure, 1e-5).lower <= spend_on([exposure], 1e-5)[0] <= epsilon(exposure, 1e-5, "rdp").upper


def test_what_is_spent_on_any_exposure_is_the_upper_bound(monkeypatch):
    monkeypatch.setattr(accountants, "_KNOWN", dict(accountants._KNOWN))
    accountants.register(Unsure())
    for exposure in (STEP, Included(0.5, STEP), Composition((STEP, SampledGaussian(1.0, 9.0, 5)))):
        assert (
            spend_on([exposure], 1e-5, "unsure")[0] == epsilon(exposure, 1e-5, "unsure").upper == 2 * epsilon(exposure, 1e-5, "rdp").upper
        )


def test_profiles_of_both_accountants_are_upper_bounds_of_one_curve():
    at = np.array([0.2, 0.5, 1.0])
    tight, loose = profile(STEP, at), profile(STEP, at, "rdp")
    assert np.all(tight <= loose)
    assert np.all(np.diff(loose) < 0)


def test_exposures_say_under_which_relation_they_hold():
    plan = sartor.plan(BUDGETS, steps=10, batch=50, accountant="rdp")
    assert plan.relation == plan.exposure(0).relation == ZERO_OUT
    assert plan.to_json()["relation"] == plan.record()["relation"] == plan.exposure(0).to_json()["relation"] == "zero-out"
    assert RunAccount(plan, 3).to_json()["relation"] == "zero-out"
    assert ZERO_OUT.to_dp_accounting() == dp_accounting.NeighboringRelation.REPLACE_SPECIAL
    assert "becomes zero" in str(ZERO_OUT)


def test_other_relations_are_judged_where_nobody_is_sampled_and_never_mixed():
    plain = SampledGaussian(1.0, 3.0, 4, REPLACE)
    assert exposure_from_json(plain.to_json()) == plain
    assert epsilon(plain, 1e-5) == epsilon(SampledGaussian(1.0, 3.0, 4), 1e-5)
    sampled = SampledGaussian(0.5, 3.0, 4, REPLACE)
    for exposure in (sampled, Composition((sampled, plain)), Included(0.5, plain)):
        for ask in (
            lambda e: epsilon(e, 1e-5),
            lambda e: epsilon(e, 1e-5, "rdp"),
            lambda e: profile(e, 1.0),
            lambda e: spend_on([e], 1e-5),
        ):
            with pytest.raises(sartor.SartorError, match="cannot judge"):
                ask(exposure)
    with pytest.raises(ValueError, match="do not compose"):
        Composition((plain, STEP))
    with pytest.raises(ValueError, match="no neighbouring relation"):
        exposure_from_json({**STEP.to_json(), "relation": "add"})


class Narrow(accountants.Renyi):
    """Knows nothing of rates above a hundredth."""

    name = "narrow"

    def supports(self, exposure):
        return exposure.rate <= 0.01


def test_what_an_accountant_cannot_judge_makes_no_plan(monkeypatch):
    monkeypatch.setattr(accountants, "_KNOWN", dict(accountants._KNOWN))
    accountants.register(Narrow())
    sartor.plan(BUDGETS, steps=10, batch=5, accountant="narrow")
    document = sartor.plan(BUDGETS, steps=10, batch=50, accountant="rdp").record()
    with pytest.raises(sartor.SartorError, match="cannot judge"):
        sartor.Plan.from_json({**document, "accountant": "narrow"})
    with pytest.raises(sartor.SartorError, match="cannot judge"):
        sartor.plan(BUDGETS, steps=10, batch=50, accountant="narrow")


def test_nothing_is_proven_from_below_where_the_closed_form_is_only_an_upper_bound():
    one = SampledGaussian(0.5, 0.021, 1)
    cost = epsilon(one, 1e-5)
    assert cost.upper > 600
    assert cost.lower == 0
