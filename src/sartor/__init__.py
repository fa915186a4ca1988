"""Sartor: differential privacy cut to measure. Every holder sets their own budget, and each gets the guarantee that they asked for.

>>> import sartor
>>> budgets = sartor.Budgets.from_shares([1, 2, 3], [0.34, 0.43, 0.23], holders=60_000, delta=1e-5, seed=1)
>>> plan = sartor.plan(budgets, scheme="sample", steps=9_375, batch=512, clip=0.2)
>>> bool((plan.spent <= plan.epsilon).all())
True
"""

from __future__ import annotations

from sartor.budgets import Budgets, Policy
from sartor.errors import Infeasible, InvalidBudget, NoNoise, Overspent, RarelyUsed, SartorError, SartorWarning
from sartor.exposure import Composition, Exposure, Included, SampledGaussian, exposure_from_json
from sartor.plans import Plan, plan, schemes

__version__ = "0.1.0"

__all__ = [
    "Budgets",
    "Composition",
    "Exposure",
    "Included",
    "Infeasible",
    "InvalidBudget",
    "NoNoise",
    "Overspent",
    "Plan",
    "Policy",
    "RarelyUsed",
    "SampledGaussian",
    "SartorError",
    "SartorWarning",
    "__version__",
    "exposure_from_json",
    "plan",
    "schemes",
]
