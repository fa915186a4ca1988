"""Plans: budgets turned into parameters, each by a scheme."""

from __future__ import annotations

from sartor.plans import hybrid, one_rate, rounds, sequential
from sartor.plans.build import plan
from sartor.plans.filters import Filter
from sartor.plans.plan import Plan
from sartor.plans.problem import schemes
from sartor.plans.stage import Stage

__all__ = ["Filter", "Plan", "Stage", "hybrid", "one_rate", "plan", "rounds", "schemes", "sequential"]
