"""How groups fare, drawn: accuracy and mean reading of each, from rows that were released, or from sensitive ones for who may see them.

A row says what it is of first, then how many holders it has, then means over them; small groups come merged.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from sartor.errors import SartorError
from sartor.individual.fare import Fare
from sartor.individual.release import deviation_in_groups
from sartor.individual.request import Release
from sartor.numbers import from_json_number
from sartor.report import page, plots

LOST = "lost in the noise"
SENSITIVE = "sensitive: without noise, covered by no budget, for nobody who may not see the records"

_HOLDERS = "holders"
_BUDGET = ["epsilon", "delta"]
_WORDS = {"accuracy": "accuracy on their own training records", "account": "mean epsilon that gradients really cost", "loss": "mean loss"}
_MOST_BARS = 30

Rows = Sequence[Mapping[str, Any]]


def figures(release: Release) -> list[page.Block]:
    """Accuracy and mean reading by group as figures of a page, as they were released."""
    rows = release.groups or ()
    if not rows:
        return []
    if len(rows) > _MOST_BARS:
        return [page.paragraph(f"{len(rows):,} groups are too many to be drawn. {_noise(release)}"), numbers(rows)]
    found = []
    for column in ("accuracy", "account"):
        if column in rows[0]:
            caption = f"{_WORDS[column].capitalize()}, by {_by(rows)}, with noise. {_noise(release)}"
            found.append(page.figure(_drawn(rows, column, _WORDS[column]), caption, numbers(rows)))
    return found or [page.paragraph(_noise(release)), numbers(rows)]


def _noise(release: Release) -> str:
    """How much to believe."""
    people = [row[_HOLDERS] for row in release.groups or () if row[_HOLDERS] > 0]
    if not people:
        return "Noise is larger than the groups are."
    ends = [deviation_in_groups(release) / count for count in (max(people), min(people))]
    return (
        f"Noise has a standard deviation of {ends[0]:.2g} of the range of a figure (for accuracy, 0 to 1) in the largest group, and of "
        f"{ends[1]:.2g} or more in the smallest."
    )


def numbers(rows: Rows) -> page.Block:
    """Rows as a table of a page."""
    return page.table(list(rows[0]), [[cell(value) for value in row.values()] for row in rows])


def drawn(fare: Fare, column: str = "accuracy") -> str:
    """How the groups fare as it is, as an SVG that says that it is sensitive; it belongs on no page that others see."""
    if not isinstance(fare, Fare):
        raise SartorError(
            "this draws figures without noise, of `fare(..., sensitive=True)`; what was released is drawn on the page of its run."
        )
    if column not in _WORDS:
        raise SartorError(f'a column is one of {", ".join(_WORDS)}, not "{column}".')
    return _drawn(fare.groups, column, f"{_WORDS[column]} ({SENSITIVE})")


def cell(value: Any) -> str:
    """A figure of a row, as a table shows it."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return LOST
    if isinstance(value, list | tuple):
        texts = all(isinstance(part, str) and part != "inf" for part in value)
        return (", " if texts else " to ").join(cell(part) for part in value)
    return f"{value:,}" if isinstance(value, int) else value if isinstance(value, str) else f"{from_json_number(value):.4g}"


def _drawn(rows: Rows, column: str, words: str) -> str:
    names = [_named(row) for row in rows]
    different = names if len(set(names)) == len(names) else [f"{name} ({i})" for i, name in enumerate(names, 1)]
    return plots.sizes(dict(zip(different, (row[column] for row in rows), strict=True)), x=words)


def _of(row: Mapping[str, Any]) -> list[str]:
    """What a row is of: its columns before the number of holders."""
    return list(row)[: list(row).index(_HOLDERS)]


def _by(rows: Rows) -> str:
    of = _of(rows[0])
    return "budget" if of == _BUDGET else of[0]


def _named(row: Mapping[str, Any]) -> str:
    of = _of(row)
    return f"epsilon {cell(row['epsilon'])}" if of == _BUDGET else cell(row[of[0]])
