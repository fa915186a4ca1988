"""The part of a run's page that tells what was released of individual accounts, and what it cost.

Guarantee: it holds nothing of anybody's account but answers that the reserve was charged for.
Proof: it is made of `Release` values alone, which `Reserve.releases` reads from the charges on the disk, and of the plan's reserve.
Breaks if: it is given releases that were not charged.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from sartor.individual.request import Release
from sartor.plans import Plan
from sartor.report import groups, page, plots

SLOT = "released"
"""Where it is on the page."""
HEADING = "What gradients really cost, and how the groups fare"

_LABEL = (
    "These are readings with noise, and no guarantee: they were taken afterwards, of the models that this run happened to release. The "
    "guarantee is the budget of each holder, and what these figures cost is part of it, out of the reserve."
)
_SEEDED = "This answer was made with a seed: its noise can be repeated, so it is a test and protects nobody."


def part(releases: Sequence[Release], plan: Plan, *, private: bool) -> page.Block:
    """The part, to be exchanged when more is released. `private` is that of the run's account."""
    if not releases:
        blocks = [page.paragraph(_nothing(plan, private))]
    else:
        cost, times = math.fsum(release.epsilon for release in releases), f"{len(releases)} release{'s' if len(releases) > 1 else ''}"
        blocks = [
            page.note(_LABEL),
            page.paragraph(f"{times} so far, which together cost everybody epsilon {cost:.6g} out of the reserve."),
        ]
        for number, release in enumerate(releases, 1):
            blocks += _one(number, release)
    return page.slot(SLOT, page.section(HEADING, *blocks))


def _nothing(plan: Plan, private: bool) -> str:
    if not private:
        return "Nothing of individual accounts can be released: this run was seeded or had no noise, so it is not private."
    if not plan.reserve:
        return (
            "What each holder's gradients really cost was read, and nothing of it can be released: the plan has no reserve to pay for "
            "that (sartor train --reserve)."
        )
    return (
        "What each holder's gradients really cost was read, and nothing of it was released so far. The command sartor account RUN "
        "--release mean,quantiles,groups --epsilon E releases statistics of it with noise, paid out of the reserve, and puts them here."
    )


def _one(number: int, release: Release) -> list[page.Block]:
    cost = f"Release {number} cost everybody epsilon {release.epsilon:g} at delta {release.delta:.3g}, once."
    found = [page.paragraph(cost), *([] if release.private else [page.note(_SEEDED)])]
    rows = [] if release.mean is None else [["mean", f"{release.mean:.4g}"]]
    rows += [[f"quantile {at:g}", f"{value:.4g}"] for at, value in (release.quantiles or {}).items()]
    if rows:
        found.append(page.table(["of all accounts, with noise", "epsilon"], rows))
    if release.histogram is not None or release.quantiles is not None:
        found.append(_spread(release))
    found += groups.figures(release)
    if release.correlation is not None:
        found.append(page.paragraph(f"Correlation of the reading with the logarithm of the loss: {groups.cell(release.correlation)}."))
    return found


def _spread(release: Release) -> page.Block:
    """A histogram with the quantiles in it, or the quantiles alone."""
    quantiles, x = release.quantiles or {}, "epsilon that gradients really cost"
    if release.histogram is None:
        svg = plots.lines(
            [plots.Line("accounts", list(quantiles.values()), list(quantiles))], x=x, y="share of holders below", markers=True
        )
        rows = [[f"{at:g}", f"{value:.4g}"] for at, value in quantiles.items()]
        return page.figure(svg, "Quantiles of all accounts, with noise.", page.table(["share of holders", "epsilon at most"], rows))
    edges, counts = release.histogram.edges, release.histogram.counts
    svg = plots.histogram(edges, counts, {f"{at:.0%}": value for at, value in quantiles.items()}, x=x, y="holders")
    rows = [[f"{low:.3g} to {high:.3g}", f"{count:,.0f}"] for low, high, count in zip(edges[:-1], edges[1:], counts, strict=True)]
    below = " The lines are quantiles: so many of the holders lie below." if quantiles else ""
    return page.figure(svg, f"How many holders' gradients cost how much, with noise.{below}", page.table(["epsilon", "holders"], rows))
