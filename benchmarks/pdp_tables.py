"""Tables and plots of what `pdp_results.py` trained.

    python benchmarks/pdp_tables.py docs/results/pdp_runs.jsonl --plots docs/results

Prints the tables as Markdown, means and standard deviations over seeds, and draws accuracy over weights and over intervals of budgets.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from individual_tables import head, row, spread, written
from sartor.report import plots

Run = dict[str, Any]

NAMES = {
    "uniform": "uniform, the strictest budget for all",
    "jorgensen": "jorgensen, one round",
    "adapdp": "adapdp, two models",
    "onion": "rounds, onion",
    "even": "rounds, even",
    "search": "rounds, search",
    "published-adapdp": "AdaPDP as published, **not sound**",
    "published": "PDP-SGD as published, fixed loss, **not sound**",
    "published-adaptive": "PDP-SGD as published, adaptive loss, **not sound**",
    "sample": "sample",
    "scale": "scale",
}
# Table 1 at k = -0.2, 0, 0.2; figures that cannot be read in the text of the paper are missing.
PAPER = {
    "mnist": {
        "uniform": ("90.42", "90.42", "90.42"),
        "jorgensen": ("92.57", "92.50", "92.48"),
        "published-adapdp": ("", "92.78", ""),
        "published": ("", "95.19", ""),
        "published-adaptive": ("94.54", "95.05", "94.86"),
    },
    "fashion-mnist": {
        "uniform": ("75.20", "75.20", "75.20"),
        "published-adapdp": ("76.43", "77.58", "78.30"),
        "published": ("78.36", "79.46", "78.08"),
        "published-adaptive": ("78.82", "79.81", "80.29"),
    },
}
SKEWS = (-0.2, 0.0, 0.2)


def table1(runs: list[Run], dataset: str) -> None:
    """Accuracy of each way at each skew, beside the paper's."""
    head("way", *(f"k = {skew:g}" for skew in SKEWS), "seeds", "the paper")
    for way, name in NAMES.items():
        mine = [[run["accuracy"] for run in runs if run["way"] == way and run["skew"] == skew] for skew in SKEWS]
        if any(mine):
            paper = " · ".join(value or "?" for value in PAPER[dataset].get(way, ()))
            row(name, *(spread(values) if values else "" for values in mine), max(len(values) for values in mine), paper)
    print()


def table2(runs: list[Run]) -> None:
    """Steps, parameters and seconds at k = 0."""
    head("way", "rounds", "steps", "parameters", "planning, s of CPU", "training, s of CPU", "most spent of a promise")
    for way, name in NAMES.items():
        mine = [run for run in runs if run["way"] == way and run["skew"] == 0]
        if any("cpu_seconds" in run for run in mine):
            timed = [run for run in mine if "cpu_seconds" in run]
            means = [statistics.mean(run[key] for run in timed) for key in ("planning_seconds", "cpu_seconds")]
            most = max(run["most_over_promise"] for run in mine)
            row(
                name,
                mine[0]["rounds"],
                f"{mine[0]['steps']:,}",
                f"{mine[0]['parameters']:,}",
                *(f"{mean:.1f}" for mean in means),
                f"{most:.3f}",
            )
    print()


def figure(runs: list[Run], over: str, x: str, order: Sequence[str]) -> str:
    """Accuracy of each way over a setting; prints it as a table, too."""
    values = sorted({run[over] for run in runs})
    head(x, *(f"{value:g}" for value in values))
    drawn = []
    for way in order:
        found = {run[over]: run["accuracy"] for run in runs if run["way"] == way}
        if found:
            row(NAMES[way], *(f"{100 * found[value]:.2f}" if value in found else "" for value in values))
            at = sorted(found)
            drawn.append(plots.Line(NAMES[way].replace("**", ""), at, [found[value] for value in at]))
    print()
    return plots.lines(drawn, x=x, y="accuracy on test digits", markers=True)


def pretrained(runs: list[Run]) -> None:
    """Section 5.4."""
    head("shares", "way", "before", "accuracy")
    for run in runs:
        row(run["shares"], NAMES[run["way"]], f"{100 * run['accuracy_before']:.1f}", f"{100 * run['accuracy']:.1f}")
    print()


def main() -> None:
    """Print and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs")
    parser.add_argument("--plots", help="a folder for the plots")
    asked = parser.parse_args()
    runs: dict[str, list[Run]] = defaultdict(list)
    for line in Path(asked.runs).read_text().splitlines():
        run = json.loads(line)
        runs[run["what"]].append(run)
    for dataset in PAPER:
        mine = [run for run in runs["table1"] if run["dataset"] == dataset]
        if mine:
            print(f"{dataset}\n")
            table1(mine, dataset)
            table2(mine)
    if runs["weights"]:
        svg = figure(runs["weights"], "weight", "weight of what coins leave unused", ("onion", "even", "published"))
        written(asked.plots, "pdp_weights.svg", svg)
    if runs["intervals"]:
        order = ("uniform", "search", "sample", "published")
        written(asked.plots, "pdp_intervals.svg", figure(runs["intervals"], "interval", "budgets from 0.5 to 0.5 and this", order))
    if runs["pretrained"]:
        pretrained(runs["pretrained"])


if __name__ == "__main__":
    main()
