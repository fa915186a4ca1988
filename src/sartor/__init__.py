"""Sartor: differential privacy cut to measure. Every holder sets their own budget, and each gets the guarantee that they asked for.

>>> import sartor
>>> budgets = sartor.Budgets.from_shares([1, 2, 3], [0.34, 0.43, 0.23], holders=60_000, delta=1e-5, seed=1)
>>> plan = sartor.plan(budgets, scheme="sample", steps=9_375, batch=512, clip=0.2)
>>> bool((plan.spent <= plan.epsilon).all())
True
"""

from __future__ import annotations

TYPE_CHECKING = False  # as in `typing`, which takes a while to import
if TYPE_CHECKING:
    from typing import Any

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
    from sartor.plans import Plan, schemes
    from sartor.plans.build import plan
    from sartor.sgd import Checkpoints, Evaluation, Execution, Tracking, fit, make_private

__version__ = "0.1.0"

_HOMES = ("errors", "budgets", "exposure", "ownership", "plans", "sgd")  # the last needs torch


def __getattr__(name: str) -> Any:
    """Import what is asked for when it is asked for: the command line starts at once, and can be stopped quietly while it starts."""
    import importlib.util

    if name in __all__:
        for home in _HOMES:
            module = importlib.import_module(f"sartor.{home}")
            if hasattr(module, name):
                return globals().setdefault(name, getattr(module, name))
    if not name.startswith("_") and importlib.util.find_spec(f"sartor.{name}") is not None:
        return importlib.import_module(f"sartor.{name}")
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
