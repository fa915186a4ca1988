"""The tables of docs/results/federated.md, from the lines that `federated_results.py` wrote: python benchmarks/federated_tables.py FILE."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import mean
from typing import Any

PAPER = {  # setup: (i.i.d., by writer), accuracy in % on federated EMNIST's digits
    "none": (98.2, 97.0),
    "weakest for all": (96.5, 95.1),
    "A": (95.9, 94.6),
    "B": (95.4, 93.5),
    "strictest for all": (93.9, 90.7),
}
SPLITS = {"iid": "1,000 i.i.d. clients", "writer": "539 writers"}
Lines = list[dict[str, Any]]


def shown(lines: Lines) -> str:
    """The mean accuracy in %, and each seed's."""
    values = [100 * line["accuracy"] for line in sorted(lines, key=lambda line: int(line["seed"]))]
    if not values:
        return "-"
    return f"{mean(values):.2f} ({', '.join(f'{value:.2f}' for value in values)})"


def main() -> None:
    """Print them."""
    lines: Lines = [json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines()]

    def of(split: str, setup: str, *schemes: str) -> Lines:
        return [line for line in lines if (line["split"], line["setup"]) == (split, setup) and line["scheme"] in schemes]

    for place, (split, title) in enumerate(SPLITS.items()):
        print(f"| {title} | noise | accuracy | `scale` | the paper |\n|---|---|---|---|---|")
        for setup, paper in PAPER.items():
            found = of(split, setup, "uniform", "sample")
            noise = f"{found[0]['noise_multiplier']:.3f}" if found else "-"
            print(f"| {setup} | {noise} | {shown(found)} | {shown(of(split, setup, 'scale'))} | {paper[place]} |")
        print()
    print("| 539 writers | noise | accuracy | the paper |\n|---|---|---|---|")
    for setup, scheme, paper_says in (
        ("95 % at 0.6, 5 % public", "sample", "90.8"),
        ("95 % at 0.6, 5 % public", "scale", "86.9"),
        ("0.6 for all", "uniform", "-"),
    ):
        found = of("writer", setup, scheme)
        noise = f"{found[0]['noise_multiplier']:.3f}" if found else "-"
        print(f"| {setup}: {scheme} | {noise} | {shown(found)} | {paper_says} |")


if __name__ == "__main__":
    main()
