"""Every kind of account says the same of itself."""

import numpy as np
import pytest

import sartor
from sartor import federated, pate
from sartor.federated.ledger import Ledger
from sartor.relation import REPLACE, ZERO_OUT
from sartor.run.account import Account, RunAccount
from sartor.run.stream import Stream

BUDGETS = sartor.Budgets.from_groups([(1.0, 30), (4.0, 30)], delta=1e-3)


def of_a_run(_, seed):
    return RunAccount(sartor.plan(BUDGETS, steps=5, batch=20, accountant="rdp"), 3, seeded=seed is not None)


def of_a_client(folder, seed):
    plan = federated.plan(BUDGETS, rounds=5, per_round=20, accountant="rdp")
    with Ledger.create(folder / "ledger", plan, [f"client-{i}" for i in range(60)], BUDGETS, state={}, seeded=seed is not None) as ledger:
        return ledger.client_account("client-7")


def of_a_voting(_, seed):
    plan = pate.plan(BUDGETS, "weight", teachers=6, aggregator=pate.GNMax(200.0))
    stream = None if seed is None else Stream(seed)
    return pate.aggregate(plan, np.zeros((2, 6), int), 3, stream=stream).account


@pytest.mark.parametrize(("made", "relation"), [(of_a_run, ZERO_OUT), (of_a_client, ZERO_OUT), (of_a_voting, REPLACE)])
def test_an_account_says_what_was_spent_under_which_relation_and_whether_it_protects(tmp_path, made, relation):
    account: Account = made(tmp_path, None)
    document = account.to_json()
    assert account.relation == relation
    assert document["relation"] == relation.name
    assert account.private is document["private"] is True
    assert np.all(np.asarray(account.spent) >= 0)
    (tmp_path / "seeded").mkdir()
    seeded: Account = made(tmp_path / "seeded", 1)
    assert seeded.private is seeded.to_json()["private"] is False


def test_a_run_without_noise_does_not_claim_to_be_private():
    with pytest.warns(sartor.NoNoise):
        plan = sartor.plan(sartor.Budgets([np.inf] * 20, delta=1e-5), steps=5, batch=5, accountant="rdp")
    account = RunAccount(plan, 3)
    assert account.private is account.to_json()["private"] is False
