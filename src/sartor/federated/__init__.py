"""Federated learning where every client sets its own budget.

    clients' budgets ──► plan ──► round: draw · clip · sum · noise ──► server's step ──► model + account for each client

The parts are plain functions and values and need no engine; `sartor.federated.flower` plugs them into Flower.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sartor.federated.enrolment import Enrolled, Limits, StrategySettings, enrol
from sartor.federated.plan import AdaptiveClip, FederatedPlan, plan
from sartor.federated.updates import Malformed, clipped, norm, update_of

if TYPE_CHECKING:
    from sartor.federated.ledger import ClientAccount as ClientAccount
    from sartor.federated.ledger import Ledger as Ledger
    from sartor.federated.rounds import Released as Released
    from sartor.federated.rounds import Round as Round
    from sartor.federated.rounds import ServerOptimizer as ServerOptimizer

_LATER = {"ClientAccount": "ledger", "Ledger": "ledger", "Released": "rounds", "Round": "rounds", "ServerOptimizer": "rounds"}

__all__ = [
    "AdaptiveClip",
    "ClientAccount",
    "Enrolled",
    "FederatedPlan",
    "Ledger",
    "Limits",
    "Malformed",
    "Released",
    "Round",
    "ServerOptimizer",
    "StrategySettings",
    "clipped",
    "enrol",
    "norm",
    "plan",
    "update_of",
]


def __getattr__(name: str) -> Any:
    """What needs torch is imported when it is first used."""
    if name not in _LATER:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    return getattr(import_module(f"sartor.federated.{_LATER[name]}"), name)
