"""The runs of pate_results.py as tables, beside the paper's figures.

python benchmarks/pate_tables.py docs/results/pate_runs.jsonl
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

# individualized PATE, tables 1, 5, 7, 8, 9 and 6; [upsampling, weighting] for 25, 50 and 75 % at the higher budget
SURVEYS = {"A": (365, 1333, 1312), "B": (361, 949, 1894)}
MNIST = {
    "labels": {
        "log 4": ((158, 433), (237, 492), (326, 564)),
        "log 8": ((231, 474), (414, 890), (636, 1163)),
        "log 16": ((308, 648), (623, 1239), (1038, 1787)),
    },
    "student": {
        "log 4": ((92.32, 93.26), (92.52, 93.08), (94.38, 93.70)),
        "log 8": ((93.12, 88.94), (94.48, 94.68), (96.20, 95.74)),
        "log 16": ((93.96, 90.24), (96.38, 96.32), (96.90, 96.60)),
    },
    "baseline": (257, 88.70),
}
ADULT = {
    "labels": {
        "log 4": ((140, 139), (202, 203), (272, 273)),
        "log 8": ((198, 198), (346, 349), (541, 543)),
        "log 16": ((264, 259), (530, 530), (868, 872)),
    },
    "student": {
        "log 4": ((81.02, 80.87), (81.76, 81.76), (82.16, 82.26)),
        "log 8": ((81.79, 81.67), (82.52, 82.60), (82.87, 82.89)),
        "log 16": ((82.30, 82.25), (82.82, 82.84), (83.07, 83.04)),
    },
    "baseline": (88, 79.85),
}
BY_CLASS = {
    "log 4": ((95.93, 36.77, 90), (93.11, 45.93, 95), (90.13, 54.74, 101), (86.24, 63.39, 109)),
    "log 8": ((93.25, 45.91, 93), (86.82, 62.25, 108), (80.57, 72.61, 132), (77.91, 77.36, 162)),
    "log 16": ((90.42, 54.00, 96), (80.74, 72.68, 129), (76.68, 79.42, 172), (73.82, 83.59, 225)),
}
RATIOS = (25, 50, 75, 100)
Run = dict[str, Any]


def found(runs: list[Run], dataset: str, variant: str, setting: str) -> Run | None:
    """The mean of all seeds of a setting."""
    rows = [run for run in runs if (run["dataset"], run["variant"], run["setting"]) == (dataset, variant, setting)]
    if not rows:
        return None
    keys = ("labels", "queries", "label_accuracy", "student_accuracy", "student_per_class", "teacher_accuracy", "labels_independent")
    return {"seeds": len(rows), "teachers": rows[0]["teachers"], **{key: np.mean([row[key] for row in rows], axis=0) for key in keys}}


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _cells(run: Run | None, labels: float, student: float | None) -> list[str]:
    own = (
        ["not run"] * 4
        if run is None
        else [f"{run['labels']:.0f}", f"{100 * run['label_accuracy']:.1f}", f"{100 * run['student_accuracy']:.1f}"]
    )
    return [
        *own[:1],
        f"{labels}",
        *own[1:3],
        "" if student is None else f"{student:.1f}",
        "" if run is None else f"{run['labels_independent']:.0f}",
    ]


HEAD = ["labels", "paper", "label accuracy", "student", "paper", "labels, data-independent bound"]


def table(runs: list[Run], dataset: str, paper: dict[str, Any]) -> list[str]:
    """One line for each setting with two budgets."""
    lines = [_row(["higher budget", "share", "variant", "teachers", *HEAD]), _row(["---"] * 10)]
    base = found(runs, dataset, "standard", "baseline")
    lines.append(_row(["none", "", "standard", "250", *_cells(base, *paper["baseline"])]))
    for name in ("log 4", "log 8", "log 16"):
        for place, ratio in enumerate(RATIOS[:3]):
            for number, variant in enumerate(("upsample", "weight")):
                run = found(runs, dataset, variant, f"{name}, {ratio} %")
                if run is not None:
                    figures = (paper["labels"][name][place][number], paper["student"][name][place][number])
                    lines.append(_row([name, f"{ratio} %", variant, f"{run['teachers']}", *_cells(run, *figures)]))
    return lines


def surveys(runs: list[Run]) -> list[str]:
    """MNIST at epsilon 1, 2 and 3 with the shares of two surveys."""
    lines = [_row(["setting", "variant", "teachers", *HEAD, "times standard"]), _row(["---"] * 10)]
    for setting, figures in SURVEYS.items():
        standard = found(runs, "mnist", "standard", setting)
        for variant, figure in zip(("standard", "upsample", "weight"), figures, strict=True):
            run = found(runs, "mnist", variant, setting)
            times = "" if run is None or standard is None else f"{run['labels'] / standard['labels']:.2f}"
            lines.append(_row([setting, variant, "" if run is None else f"{run['teachers']}", *_cells(run, figure, None), times]))
    return lines


def by_class(runs: list[Run]) -> list[str]:
    """Adult with budgets that follow the class."""
    lines = [_row(["higher budget", "share of the high incomes", "labels", "paper", "student, low", "paper", "student, high", "paper"])]
    lines.append(_row(["---"] * 8))
    for name, figures in BY_CLASS.items():
        for ratio, (low, high, labels) in zip(RATIOS, figures, strict=True):
            run = found(runs, "adult", "upsample", f"by class: {name}, {ratio} %")
            if run is not None:
                own = [100 * value for value in run["student_per_class"]]
                lines.append(
                    _row([name, f"{ratio} %", f"{run['labels']:.0f}", f"{labels}", f"{own[0]:.1f}", f"{low}", f"{own[1]:.1f}", f"{high}"])
                )
    return lines


def main() -> None:
    """Print all tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs")
    runs = [json.loads(line) for line in Path(parser.parse_args().runs).read_text().splitlines()]
    for title, lines in {
        "MNIST, epsilon 1-2-3": surveys(runs),
        "MNIST, log 2 and a higher budget": table(runs, "mnist", MNIST),
        "Adult, log 2 and a higher budget": table(runs, "adult", ADULT),
        "Adult, budgets that follow the class": by_class(runs),
    }.items():
        print(f"### {title}\n\n" + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
