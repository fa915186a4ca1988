"""Tables as text that fits a width: nothing is cut, and nothing is broken but between words.

Headings and cells go over several lines where one is too long. Where even the longest words of all columns do not fit side by side, the
columns go into several tables below each other, each with the first column again.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.text import Text

WIDTH = 80
_GAP, _LEAST_GAP = 2, 1


@dataclass(frozen=True)
class Table:
    """Headings, rows of cells and what stands above them; columns are aligned right but for the first `left`."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    left: int = 0

    def text(self, width: int = WIDTH) -> str:
        """The table in lines that are no longer than a width, as far as words allow."""
        above = [textwrap.fill(self.title, width, break_long_words=False, break_on_hyphens=False)] if self.title else []
        return "\n".join([*above, "\n\n".join(self._part(places, gap, width) for places, gap in self._parts(width))])

    def __str__(self) -> str:
        return self.text()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        from rich.text import Text

        yield Text(self.text(options.max_width))

    def _column(self, place: int) -> list[str]:
        return [self.headings[place], *(row[place] for row in self.rows)]

    def _least(self, place: int) -> int:
        return max(len(word) for cell in self._column(place) for word in cell.split() or [""])

    def _parts(self, width: int) -> Iterator[tuple[list[int], int]]:
        """Which columns stand side by side, and how far apart."""
        everything = list(range(len(self.headings)))
        for gap in (_GAP, _LEAST_GAP):
            if sum(self._least(place) + gap for place in everything) - gap <= width:
                yield everything, gap
                return
        part = [0]
        for place in everything[1:]:
            if len(part) > 1 and sum(self._least(other) + _GAP for other in [*part, place]) - _GAP > width:
                yield part, _GAP
                part = [0]
            part.append(place)
        yield part, _GAP

    def _part(self, places: list[int], gap: int, width: int) -> str:
        widths = {place: self._least(place) for place in places}
        spare = width - sum(widths.values()) - gap * (len(places) - 1)
        for cells, whole in ((slice(1, None), False), (slice(None), True)):  # first what is in the rows, then headings
            for place in places:
                more = max([len(cell) for cell in self._column(place)[cells]], default=0) - widths[place]
                more = more if more <= spare else 0 if whole else spare
                if more > 0:
                    widths[place] += more
                    spare -= more
        lines = [*self._lines(self.headings, widths, gap), (" " * gap).join("-" * wide for wide in widths.values())]
        return "\n".join([*lines, *(line for row in self.rows for line in self._lines(row, widths, gap))])

    def _lines(self, cells: Sequence[str], widths: dict[int, int], gap: int) -> list[str]:
        """One row; what is wrapped begins on its first line, headings and figures alike."""
        wrapped = [textwrap.wrap(cells[place], wide, break_long_words=False, break_on_hyphens=False) for place, wide in widths.items()]
        lines = []
        for number in range(max([1, *map(len, wrapped)])):
            words = [found[number] if number < len(found) else "" for found in wrapped]
            aligned = [
                word.ljust(wide) if place < self.left else word.rjust(wide)
                for word, (place, wide) in zip(words, widths.items(), strict=True)
            ]
            lines.append((" " * gap).join(aligned).rstrip())
        return lines
