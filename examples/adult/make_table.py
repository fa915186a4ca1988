"""Writes Adult as two tables with a header: people.csv, with a column that says what each person consented to, and public.csv for trying.

    python examples/adult/make_table.py DATA OUT
    sartor train --table OUT/people.csv --test OUT/public.csv --out run \\
        --schema examples/adult/schema.toml --policy examples/adult/policy.toml

The consents are made up: a third of the people each are strict, balanced and open.
"""

from __future__ import annotations

import csv
import random
import sys
from pathlib import Path

COLUMNS = [
    "age",
    "workclass",
    "fnlwgt",
    "education",
    "education-num",
    "marital-status",
    "occupation",
    "relationship",
    "race",
    "sex",
    "capital-gain",
    "capital-loss",
    "hours-per-week",
    "native-country",
    "income",
]


def rows(path: Path) -> list[list[str]]:
    """The records of one of Adult's files."""
    with path.open(newline="") as file:
        return [[*row[:14], row[14].rstrip(".")] for row in csv.reader(file, skipinitialspace=True) if len(row) == 15]


def main(data: str, out: str) -> None:
    """Write both tables."""
    draw = random.Random(0)
    Path(out).mkdir(parents=True, exist_ok=True)
    with (Path(out) / "people.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*COLUMNS, "consent"])
        writer.writerows([*row, draw.choice(("strict", "balanced", "open"))] for row in rows(Path(data) / "adult.data"))
    with (Path(out) / "public.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        writer.writerows(rows(Path(data) / "adult.test"))


if __name__ == "__main__":
    main(*sys.argv[1:])
