"""Plans: budgets turned into parameters, one small module per scheme."""

from __future__ import annotations

from sartor.plans import equal, exclude, hybrid, rounds, scale, sequential, uniform
from sartor.plans.build import plan
from sartor.plans.filters import Filter
from sartor.plans.plan import Plan
from sartor.plans.registry import schemes
from sartor.plans.stage import Stage

__all__ = ["Filter", "Plan", "Stage", "equal", "exclude", "hybrid", "plan", "rounds", "scale", "schemes", "sequential", "uniform"]
