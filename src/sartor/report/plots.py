"""Plots as SVG to be put inside a page: labelled axes, labels at the lines themselves, colours that differ for the colour-blind too.

Ink is drawn in the text colour of the page, so plots follow a dark page. Matplotlib is imported when something is drawn.
"""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

_INK = "#010203"  # stands for the text colour of the page
_COLOURS = ("#3f7fd0", "#d5761c", "#2b9a77", "#a06cc4", "#c9506b", "#8a8d2b", "#4aa3b8", "#9a7458")
_MARKERS = "osD^vPX*"
_DASHES = ("-", "--", ":", "-.")  # curves that lie on each other stay visible
_APART = 0.06  # least distance of two labels, as a share of the height of the axes


class Line(NamedTuple):
    """One curve and what it is called."""

    label: str
    x: ArrayLike
    y: ArrayLike


class Bar(NamedTuple):
    """One figure with its spread."""

    label: str
    value: float
    spread: float


def lines(
    curves: Sequence[Line],
    *,
    x: str,
    y: str,
    logarithmic: bool = False,
    logarithmic_x: bool = False,
    markers: bool = False,
    zero: bool = False,
) -> str:
    """Curves over a common axis, each labelled at its end."""
    with _drawing(7.2, 3.6) as (figure, axes):
        for i, curve in enumerate(curves):
            shape = _MARKERS[i % len(_MARKERS)] if markers else None
            axes.plot(curve.x, curve.y, color=_colour(i), marker=shape, markersize=5, linewidth=2, linestyle=_DASHES[i % len(_DASHES)])
        if logarithmic:
            axes.set_yscale("log")
        elif zero:
            axes.set_ylim(bottom=0)
        if logarithmic_x:
            axes.set_xscale("log")
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        _label_ends(axes, curves)
        return _svg(figure)


def bars(values: Sequence[Bar], *, x: str) -> str:
    """Figures with error bars, one below the other, each labelled with its value."""
    with _drawing(7.2, 0.6 * len(values) + 0.9) as (figure, axes):
        for i, bar in enumerate(values):
            axes.errorbar(bar.value, -i, xerr=bar.spread, fmt=_MARKERS[i % len(_MARKERS)], color=_colour(i), capsize=5, markersize=8)
            text = f"{bar.value:.1%} ± {bar.spread:.1%}"
            axes.annotate(text, (bar.value, -i), (0, 9), textcoords="offset points", ha="center", color=_INK)
        axes.set_yticks([-i for i in range(len(values))], [bar.label for bar in values])
        axes.set_ylim(0.5 - len(values), 0.7)
        axes.margins(x=0.12)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        axes.set_xlabel(x)
        return _svg(figure)


def sizes(values: Mapping[str, float], *, x: str, form: str = ".3g") -> str:
    """Figures as bars from 0, one below the other, each labelled with its value; what is no number has no bar."""
    with _drawing(7.2, 0.42 * len(values) + 0.9) as (figure, axes), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # names are theirs who gave them; the reader's fonts draw them
        for i, value in enumerate(values.values()):
            told = not math.isnan(value)
            axes.barh(-i, value if told else 0.0, height=0.62, color=_colour(0))
            place = {"textcoords": "offset points", "va": "center", "color": _INK}
            axes.annotate(format(value, form) if told else "lost in the noise", (value if told else 0.0, -i), (5, 0), **place)
        axes.set_yticks([-i for i in range(len(values))], [_short(name) for name in values], parse_math=False)
        axes.set_ylim(0.4 - len(values), 0.6)
        axes.set_xlim(0, 1.14 * max([value for value in values.values() if value > 0], default=1.0))  # values are written beside bars
        axes.set_xlabel(x)
        return _svg(figure)


def histogram(edges: ArrayLike, counts: ArrayLike, marks: Mapping[str, float], *, x: str, y: str) -> str:
    """Counts between edges, and lines at some places, each with its name above it."""
    with _drawing(7.2, 3.6) as (figure, axes):
        axes.stairs(np.asarray(counts, float), np.asarray(edges, float), fill=True, color=_colour(0), alpha=0.75)
        for i, (name, place) in enumerate(marks.items()):
            axes.axvline(place, color=_colour(1), linestyle=_DASHES[1], linewidth=1.5)
            above = {"xycoords": axes.get_xaxis_transform(), "textcoords": "offset points", "ha": "center", "color": _INK}
            axes.annotate(name, (place, 1.0), (0, 3 + 11 * (i % 2)), **above)  # neighbours at two heights: they may lie close
        axes.set_ylim(bottom=0)
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        return _svg(figure)


def _short(name: str) -> str:
    return name if len(name) <= 40 else f"{name[:37]}..."


@contextmanager
def _drawing(width: float, height: float) -> Iterator[tuple[Any, Any]]:
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    style: dict[Any, Any] = {"axes.spines.top": False, "axes.spines.right": False, "font.family": "sans-serif"}
    style |= {"svg.fonttype": "none", "svg.hashsalt": "sartor"}
    style |= dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), _INK)
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        axes.grid(alpha=0.25, color="#808080")
        yield figure, axes


def _colour(i: int) -> str:
    return _COLOURS[i % len(_COLOURS)]


def _label_ends(axes: Any, curves: Sequence[Line]) -> None:
    """Write each curve's name beside its last point, moved apart where names would cover each other."""
    axes.get_xlim(), axes.get_ylim()  # settles the limits, on which places depend
    ends = []
    for i, curve in enumerate(curves):
        x, y = np.asarray(curve.x, float), np.asarray(curve.y, float)
        drawn = np.flatnonzero(np.isfinite(y) & ((y > 0) | (axes.get_yscale() == "linear")))
        if len(drawn):
            along, height = axes.transAxes.inverted().transform(axes.transData.transform((x[drawn[-1]], y[drawn[-1]])))
            ends.append((float(height), i, float(along)))
    heights: list[float] = []
    for height, _, _ in sorted(ends):
        heights.append(max([height, *(other + _APART for other in heights[-1:])]))
    for k in reversed(range(len(heights))):
        heights[k] = min(heights[k], 1 - _APART * (len(heights) - 1 - k))
    for height, (_, i, along) in zip(heights, sorted(ends), strict=True):
        place = {"xycoords": "axes fraction", "textcoords": "offset points", "va": "center"}
        axes.annotate(curves[i].label, (along, height), (8, 0), color=_colour(i), **place)


def _svg(figure: Any) -> str:
    """The figure as an SVG element with ids of its own, without metadata or addresses."""
    out = io.StringIO()
    figure.savefig(out, format="svg", transparent=True, metadata={"Date": None})
    text = out.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r' xmlns(:\w+)?="[^"]*"', "", text)
    # a part of a page may be drawn later, by another process: its content keeps its ids apart from those that are there
    own = f"plot-{blake2b(text.encode(), digest_size=8).hexdigest()}-"
    text = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{own}", text)
    text = re.sub(r'<svg ([^>]*?)width="[^"]*"', r"<svg \1", text)
    text = re.sub(r'(<svg [^>]*?)height="[^"]*"', r"\1", text, count=1)
    return text.replace(_INK, "currentColor").strip()
