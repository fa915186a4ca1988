"""What a member of a group underwent, as an exposure that another accountant can check."""

import dp_accounting
import numpy as np
import pytest

from sartor import Budgets, pate
from sartor.accounting import epsilon, rdp
from sartor.errors import SartorError
from sartor.relation import REPLACE
from sartor.run.stream import Stream
from sartor_testing.ensembles import KINDS, aggregator_of, random_votes

PEOPLE = Budgets.from_groups([(1.0, 40), (2.0, 30), (4.0, 20)], delta=1e-5, reserve=0.2)
FINE = pate.Accountant.fine()


def voted(variant, kind="confident", **options):
    plan = pate.plan(PEOPLE, variant, teachers=10, aggregator=aggregator_of(kind, 10, 5.0))
    votes, student = random_votes(400, plan.teachers, 3, 1)
    if kind == "interactive":
        options["student"] = student
    return pate.aggregate(plan, votes, 3, stream=Stream(seed=1), **options)


def by_google(event, delta):
    accountant = dp_accounting.rdp.RdpAccountant(rdp.ORDERS)
    return accountant.compose(event).get_epsilon(delta)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("variant", pate.VARIANTS)
def test_google_finds_the_spend_of_the_account(variant, kind):
    labels = voted(variant, kind, accountant=FINE, go_on=variant in ("weight", "vanish"))
    assert labels.answered.sum() < labels.asked.sum() or kind == "gnmax"
    delta = labels.account.plan.spendable[1]
    for group, spent in enumerate(labels.account.spent):
        assert spent > 0
        assert by_google(labels.account.exposure(group).to_dp_event(), float(delta[group])) == pytest.approx(spent, rel=1e-6)


@pytest.mark.parametrize("variant", pate.VARIANTS)
def test_google_finds_no_less_than_the_exact_account(variant):
    account = voted(variant).account
    for group, spent in enumerate(account.spent):
        found = by_google(account.exposure(group).to_dp_event(), float(account.plan.spendable[1][group]))
        assert spent <= found <= 1.2 * spent


@pytest.mark.parametrize("variant", pate.VARIANTS)
def test_votings_that_are_added_up_are_one_exposure(variant, tmp_path):
    first = voted(variant, accountant=FINE, labels=8)
    folder = pate.EnsembleFolder.create(tmp_path / "kept", first.account.plan, PEOPLE)
    folder.put(random_votes(400, first.account.plan.teachers, 3, 1)[0], 3)
    for seed in (1, 2):
        folder.aggregate(labels=8, accountant=FINE, further=True, stream=Stream(seed=seed))
    account = pate.EnsembleFolder(tmp_path / "kept").account
    for group in range(len(account.plan)):
        spent = by_google(account.exposure(group).to_dp_event(), float(account.plan.spendable[1][group]))
        assert spent == pytest.approx(account.spent[group], rel=1e-6)
        assert account.spent[group] > first.account.spent[group]


def test_who_was_asked_nothing_underwent_nothing():
    account = voted("weight", labels=0).account
    assert np.all(account.spent == 0)
    assert by_google(account.exposure(0).to_dp_event(), 1e-5) == 0


def test_the_data_dependent_bound_has_no_exposure():
    with pytest.warns(pate.DataDependent):
        account = voted("weight", bound="dependent", labels=1).account
    with pytest.raises(SartorError, match=r"follow the private votes.*independent"):
        account.exposure(0)


def test_everything_says_that_people_may_be_replaced():
    account = voted("weight").account
    assert account.plan.relation == account.exposure(0).relation == REPLACE
    assert account.to_json()["relation"] == "replace"
    delta = float(account.plan.spendable[1][0])
    assert epsilon(account.exposure(0), delta, "rdp").upper >= account.spent[0]


def test_accounts_of_two_plans_do_not_add_up():
    people = Budgets.from_groups([(1.0, 30), (4.0, 30)], delta=1e-3)
    one, other = (
        pate.aggregate(pate.plan(people, variant, teachers=6, aggregator=pate.GNMax(200.0)), np.zeros((2, 6), int), 3).account
        for variant in ("weight", "standard")
    )
    assert (one + one).queries == 2 * one.queries
    with pytest.raises(SartorError, match="two plans"):
        one + other
