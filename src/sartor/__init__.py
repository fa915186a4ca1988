"""Sartor: differential privacy cut to measure. Every holder sets their own budget, and each gets the guarantee that they asked for.

>>> import sartor
>>> budgets = sartor.Budgets.from_shares([1, 2, 3], [0.34, 0.43, 0.23], holders=60_000, delta=1e-5, seed=1)
>>> plan = sartor.plan(budgets, scheme="sample", steps=9_375, batch=512, clip=0.2)
>>> bool((plan.spent <= plan.epsilon).all())
True
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from sartor.budgets import Budgets, Policy
from sartor.errors import (
    AllDrawn,
    Infeasible,
    InvalidBudget,
    LargeDelta,
    NoAccuracy,
    NoNoise,
    Overspent,
    RarelyUsed,
    SartorError,
    SartorWarning,
    Unsound,
    Unspent,
)
from sartor.exposure import Composition, Exposure, Included, SampledGaussian, SampledRecords, exposure_from_json
from sartor.ownership import Ownership
from sartor.plans import Plan, plan, schemes

if TYPE_CHECKING:
    from sartor.sgd import Checkpoints, Evaluation, Execution, Tracking, fit, make_private

__version__ = "0.1.0"

_OF_TRAINING = ("Checkpoints", "Evaluation", "Execution", "Tracking", "fit", "make_private")  # need torch: imported when first asked for


def __getattr__(name: str) -> Any:
    if name in _OF_TRAINING:
        return getattr(importlib.import_module("sartor.sgd"), name)
    raise AttributeError(f"module 'sartor' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)


__all__ = [
    "AllDrawn",
    "Budgets",
    "Checkpoints",
    "Composition",
    "Evaluation",
    "Execution",
    "Exposure",
    "Included",
    "Infeasible",
    "InvalidBudget",
    "LargeDelta",
    "NoAccuracy",
    "NoNoise",
    "Overspent",
    "Ownership",
    "Plan",
    "Policy",
    "RarelyUsed",
    "SampledGaussian",
    "SampledRecords",
    "SartorError",
    "SartorWarning",
    "Tracking",
    "Unsound",
    "Unspent",
    "__version__",
    "exposure_from_json",
    "fit",
    "make_private",
    "plan",
    "schemes",
]
