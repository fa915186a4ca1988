"""What a budget of its own does to one class of MNIST (the paper's Table 10 and Figure 6), as a plot.

    python benchmarks/class_effect.py --data DIR --label 8 --out docs/results/class_effect.svg

All other classes have epsilon 2; the class of interest has 1, 2 or 3. The paper's hyperparameters, with fewer steps unless told otherwise.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot as plt


def main() -> None:
    """Train three times and plot."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--label", type=int, default=8)
    parser.add_argument("--steps", type=int, default=1_000)
    parser.add_argument("--scheme", default="scale")
    parser.add_argument("--out", default="docs/results/class_effect.svg")
    asked = parser.parse_args()
    found = {}
    for epsilon in (1, 2, 3):
        with tempfile.TemporaryDirectory() as folder:
            lines = Path(folder) / "runs.jsonl"
            command = [sys.executable, str(Path(__file__).with_name("reproduce.py")), "--dataset", "mnist", "--data", asked.data]
            command += [
                "--setup",
                f"class:{asked.label}:{epsilon}",
                "--scheme",
                asked.scheme,
                "--steps",
                str(asked.steps),
                "--out",
                str(lines),
            ]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            found[epsilon] = json.loads(lines.read_text())["per_class"]
    own = [found[epsilon][asked.label] for epsilon in (1, 2, 3)]
    rest = [sum(v for c, v in enumerate(found[epsilon]) if c != asked.label) / 9 for epsilon in (1, 2, 3)]
    print(json.dumps({"label": asked.label, "steps": asked.steps, "scheme": asked.scheme, "class": own, "others": rest}))
    figure, axes = plt.subplots(figsize=(5, 3.2), layout="constrained")
    axes.plot((1, 2, 3), [100 * v for v in own], "o-", label=f"class {asked.label}")
    axes.plot((1, 2, 3), [100 * v for v in rest], "s--", label="mean of the other classes (epsilon 2)")
    axes.set(xlabel=f"epsilon of class {asked.label}", ylabel="test accuracy in %", xticks=(1, 2, 3))
    axes.legend()
    figure.savefig(asked.out, metadata={"Date": None})


if __name__ == "__main__":
    main()
