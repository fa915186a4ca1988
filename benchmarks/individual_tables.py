"""Tables and plots of what `individual_results.py` trained.

    python benchmarks/individual_tables.py docs/results/individual_runs.jsonl --plots docs/results

Prints the tables as Markdown, means and standard deviations over seeds, and draws who takes part, accuracy over steps, and readings.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sartor.report import plots

Run = dict[str, Any]

PAPER = {
    "readings": {"none": 97.26, "strict": 97.17},
    "table4": {"uniform": 93.29, "filter": 93.64, "assigned": 94.16},
}
NAMES = {
    "none": "planned clip",
    "estimate": "planned clip",
    "strict": "each at their own norm",
    "uniform": "uniform, epsilon 0.3",
    "longer": "uniform, longer, with more noise",
    "filter": "filter, epsilon 0.3",
    "assigned": "filter and assignment, 0.3 and 0.6",
    "plain": "plain plan",
    "ladder": "ladder",
}


def spread(values: Sequence[float]) -> str:
    """Mean and standard deviation in percent."""
    shown = [100 * value for value in values]
    return f"{statistics.mean(shown):.2f}" + (f" ± {statistics.stdev(shown):.2f}" if len(shown) > 1 else "")


def row(*cells: object) -> None:
    """A line of a table."""
    print("| " + " | ".join(str(cell) for cell in cells) + " |")


def head(*cells: str) -> None:
    """The first two lines of a table."""
    row(*cells)
    print("|---" * len(cells) + "|")


def readings(runs: list[Run]) -> None:
    """What tracking shows and costs."""
    clipped: dict[str, list[Run]] = defaultdict(list)
    usual = min(run["steps"] for run in runs)
    for run in (run for run in runs if run["steps"] == usual):
        clipped["strict" if run["kind"] == "strict" else "none"].append(run)
    head("clips", "accuracy", "seeds", "the paper")
    for kind in ("none", "strict"):
        if clipped[kind]:
            row(NAMES[kind], spread([run["accuracy"] for run in clipped[kind]]), len(clipped[kind]), PAPER["readings"][kind])
    print()
    for run in (run for run in runs if "reading" in run and run["seed"] == 0):
        told = run["reading"]
        print(f"{run['kind']}, {run['steps']} steps, seed {run['seed']}: accuracy {100 * run['accuracy']:.2f}.")
        print(f"Mean reading {told['mean']:.3f} of {run['epsilon']}; quantiles 0.1 to 0.9:")
        print(", ".join(f"{value:.3f}" for value in told["quantiles"]) + f"; {told['at_the_guarantee']:.1%} at the guarantee.")
        print(f"Pearson's correlation of reading and logarithm of the loss: {told['pearson_with_log_loss']:.3f}.")
        print()
        head("class", *(str(label) for label in range(10)))
        row("mean reading", *(f"{value:.3f}" for value in told["by_class"]))
        row("accuracy, test digits", *(f"{100 * value:.1f}" for value in run["accuracy_by_class"]))
        correlation = np.corrcoef(told["by_class"], run["accuracy_by_class"])[0, 1]
        print(f"\nCorrelation of the two over classes: {correlation:.2f}.\n")
    for run in (run for run in runs if "exact" in run):
        exact(run)


def exact(run: Run) -> None:
    """Readings beside norms of every step."""
    found = run["exact"]
    print(f"{run['kind']}, {found['examples']} examples looked at in every step: reading over direct computation of 30 of them at all")
    print(f"orders {found['read_over_direct'][0]:.4f} to {found['read_over_direct'][1]:.4f}; below the account of every step's norms:")
    print(f"{found['below_exact']} of {found['examples']}.\n")
    if "rates" in found:
        head("norms looked at", "Pearson's correlation", "mean error", "worst error")
        for name, figures in found["rates"].items():
            row(name, *(f"{figures[key]:.4f}" for key in ("pearson", "mean_error", "worst_error")))
        print()


def ways(runs: list[Run], what: str, order: Sequence[str]) -> None:
    """Accuracy of each way."""
    by_way = {way: [run for run in runs if run["way"] == way] for way in order}
    head("way", "steps", "noise multiplier", "accuracy", "seeds", *(["the paper"] if what in PAPER else []))
    for way, mine in by_way.items():
        if mine:
            paper = [PAPER[what].get(way, "")] if what in PAPER else []
            noise = f"{mine[0]['noise_multiplier']:.3f}"
            row(NAMES[way], mine[0]["planned_steps"], noise, spread([run["accuracy"] for run in mine]), len(mine), *paper)
    print()


def curves(runs: list[Run], order: Sequence[str]) -> str:
    """Accuracy over the steps, mean of the seeds."""
    drawn = []
    for way in order:
        mine = [run["history"] for run in runs if run["way"] == way]
        if mine:
            drawn.append(plots.Line(NAMES[way], [at[0] for at in mine[0]], np.mean([[at[1] for at in run] for run in mine], axis=0)))
    return plots.lines(drawn, x="steps", y="accuracy on test digits")


def active(runs: list[Run], order: Sequence[str], labels: Sequence[str]) -> str:
    """Share of each group that takes part, over the steps, mean of the seeds."""
    drawn = []
    for way in order:
        mine = [run["active"] for run in runs if run["way"] == way and run["active"]]
        for group in range(len(mine[0][0]) - 2 if mine else 0):
            count = np.mean([[at[1 + group] for at in run] for run in mine], axis=0)
            name = NAMES[way] if len(mine[0][0]) == 3 else f"{way}, epsilon {labels[group]}"
            drawn.append(plots.Line(name, [at[0] for at in mine[0]], count / count.max()))
    return plots.lines(drawn, x="steps", y="share of the group that takes part", zero=True)


def written(folder: str | None, name: str, svg: str) -> None:
    """Write a plot that stands by itself."""
    if folder:
        whole = svg.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" ', 1)
        (Path(folder) / name).write_text(whole.replace(" href=", " xlink:href=") + "\n")


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
    if runs["readings"]:
        readings(runs["readings"])
        shown = next((run for run in runs["readings"] if "exact" in run and run["kind"] == "estimate"), None)
        if shown:
            order = np.argsort(shown["exact"]["exact"])
            pairs = [
                plots.Line(name, range(len(order)), np.array(shown["exact"][key])[order])
                for name, key in (("read", "read"), ("exact", "exact"))
            ]
            written(asked.plots, "individual_estimates.svg", plots.lines(pairs, x="examples by what they cost", y="epsilon", zero=True))
    for what, order in (("table4", ("uniform", "longer", "filter", "assigned")), ("ladder", ("plain", "longer", "ladder"))):
        if runs[what]:
            ways(runs[what], what, order)
            written(asked.plots, f"individual_{what}.svg", curves(runs[what], order))
            labels = ("0.3", "0.6") if what == "table4" else ("1", "2", "3")
            written(asked.plots, f"individual_{what}_active.svg", active(runs[what], order, labels))


if __name__ == "__main__":
    main()
