"""What is usual for each data set: its queries and tested rows, its teachers and student, and how votes become labels there.

MNIST and Adult are as in the paper (its tables 3 and 4; noise and thresholds in votes of 250 teachers). For the bundled digits, where
1,437 people are all there are, a hundred nearest neighbours teach and the student also looks at queries without a label: forests and
networks need more records than fourteen each. Noise is chosen from public numbers there (`aggregator_for`).
"""

from __future__ import annotations

from dataclasses import dataclass

from sartor.errors import SartorError
from sartor.pate.plan import Confident, GNMax

MODELS = ("network", "forest", "neighbour")


@dataclass(frozen=True, kw_only=True)
class Usual:
    """The settings of one data set.

    `model` are the teachers, one of `MODELS`, and `epochs` those of networks; `student` is "network", "forest" or "spreading". Where
    `typical_first`, queries are asked in the order of `queries.typical_first`. `aggregator` is in votes of `teachers`; None lets `kind`
    have the noise that `aggregator_for` chooses.
    """

    queries: int
    tested: int
    teachers: int = 250
    model: str
    epochs: int = 20
    student: str
    typical_first: bool = False
    kind: str = "confident"
    aggregator: GNMax | None = None


_USUAL = {
    "digits": Usual(
        queries=260, tested=100, teachers=100, model="neighbour", epochs=40, student="spreading", typical_first=True, kind="gnmax"
    ),
    "mnist": Usual(queries=9_000, tested=1_000, model="network", student="network", aggregator=Confident(40.0, 200.0, 150.0)),
    "adult": Usual(queries=7_000, tested=1_000, model="forest", student="forest", aggregator=Confident(40.0, 300.0, 200.0)),
}


def usual(dataset: str) -> Usual:
    """The usual settings of a data set.

    >>> usual("mnist").teachers, usual("digits").teachers
    (250, 100)
    """
    if dataset not in _USUAL:
        raise SartorError(f'PATE knows the data sets {", ".join(_USUAL)}, not "{dataset}"; in Python any arrays will do.')
    return _USUAL[dataset]
