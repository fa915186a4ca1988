"""A ledger whose lock is removed: the budgets of its clients are still spent by one server alone."""

import contextlib
import subprocess
import sys

import sartor
from sartor import federated
from sartor.errors import SartorError
from sartor.federated.ledger import Ledger

SERVE = """
import sys
from sartor.errors import SartorError
from sartor.federated.ledger import Ledger
try:
    with Ledger(sys.argv[1]) as ledger:
        while ledger.left:
            ledger.charge()
            print("round")
except SartorError as error:
    print(error, file=sys.stderr)
"""


def test_two_servers_cannot_spend_one_budget_though_the_lock_is_removed(tmp_path):
    budgets = sartor.Budgets([2.0] * 20, delta=1e-5)
    plan = federated.plan(budgets, rounds=5, per_round=4, accountant="rdp")
    with Ledger.create(tmp_path, plan, [f"client {i}" for i in range(20)], budgets) as ledger:
        run = 0
        (tmp_path / "lock").unlink()
        other = subprocess.run([sys.executable, "-c", SERVE, str(tmp_path)], capture_output=True, text=True, check=True)
        run += other.stdout.count("round")
        with contextlib.suppress(SartorError):
            while ledger.left:
                ledger.charge()
                run += 1
    with Ledger(tmp_path) as ledger:
        assert run <= ledger.charged <= 5
    assert "another server is running" in other.stderr
