"""Individualized PATE: an ensemble of teachers that duplicates, weighs or rests by budget, and labels public data.

    plan ──► partition ──► teachers ──► votes ──► aggregate ──► labels + account ──► student

What is to outlive the process is in an `EnsembleFolder`, from the key of the places to the account.

Example:
    >>> import sartor
    >>> from sartor import pate
    >>> people = sartor.Budgets.from_shares([1, 2, 3], [0.34, 0.43, 0.23], holders=1_437, delta=1e-4, seed=1)
    >>> ensemble = pate.plan(people, "weight", teachers=25, aggregator=pate.GNMax(noise=6))
    >>> placed = pate.partition(ensemble, people)
    >>> len(placed.slices())
    25
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sartor.pate.account import Accountant, PateAccount
from sartor.pate.build import plan
from sartor.pate.folder import EnsembleFolder
from sartor.pate.forecast import Forecast, aggregator_for, forecast
from sartor.pate.partition import Partition, partition
from sartor.pate.plan import NONE, Confident, GNMax, Interactive, PatePlan
from sartor.pate.variants import VARIANTS
from sartor.pate.voting import DataDependent, Labels, aggregate

if TYPE_CHECKING:
    from sartor.pate.labelling import labelling as labelling
    from sartor.pate.networks import teacher_network as teacher_network
    from sartor.pate.teachers import EstimatorTeachers as EstimatorTeachers
    from sartor.pate.teachers import NetworkTeachers as NetworkTeachers
    from sartor.pate.teachers import train_student as train_student

_LATER = {
    "EstimatorTeachers": "teachers",
    "NetworkTeachers": "teachers",
    "labelling": "labelling",
    "teacher_network": "networks",
    "train_student": "teachers",
}

__all__ = [
    "NONE",
    "VARIANTS",
    "Accountant",
    "Confident",
    "DataDependent",
    "EnsembleFolder",
    "EstimatorTeachers",
    "Forecast",
    "GNMax",
    "Interactive",
    "Labels",
    "NetworkTeachers",
    "Partition",
    "PateAccount",
    "PatePlan",
    "aggregate",
    "aggregator_for",
    "forecast",
    "labelling",
    "partition",
    "plan",
    "teacher_network",
    "train_student",
]


def __getattr__(name: str) -> Any:
    """Teachers and students are imported when they are first used, since they need torch."""
    if name not in _LATER:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    from importlib import import_module

    return getattr(import_module(f"sartor.pate.{_LATER[name]}"), name)
