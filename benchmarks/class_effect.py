"""What a budget of its own does to a class of MNIST (the paper's Table 10 and Figure 6), for each class in turn, as a plot.

    python benchmarks/class_effect.py --data DIR --out docs/results/class_effect.svg

All other classes have epsilon 2; the class of interest has 1 or 3. The paper's hyperparameters, with fewer steps unless told otherwise.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import matplotlib
import numpy as np

matplotlib.use("svg")
from matplotlib import pyplot as plt

CLASSES = range(10)


def per_class(asked: argparse.Namespace, setup: str) -> list[float]:
    """Accuracy of each class after one run."""
    with tempfile.TemporaryDirectory() as folder:
        lines = Path(folder) / "runs.jsonl"
        command = [sys.executable, str(Path(__file__).with_name("reproduce.py")), "--dataset", "mnist", "--data", asked.data]
        command += ["--setup", setup, "--scheme", asked.scheme, "--steps", str(asked.steps), "--out", str(lines)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        found: list[float] = json.loads(lines.read_text())["per_class"]
        return found


def main() -> None:
    """Train 21 times and plot."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--steps", type=int, default=1_000)
    parser.add_argument("--scheme", default="scale")
    parser.add_argument("--out", default="docs/results/class_effect.svg")
    asked = parser.parse_args()
    same = per_class(asked, "class:0:2")
    own = {2: same}
    others = {2: [float(np.mean(np.delete(same, label))) for label in CLASSES]}
    for epsilon in (1, 3):
        found = [per_class(asked, f"class:{label}:{epsilon}") for label in CLASSES]
        own[epsilon] = [found[label][label] for label in CLASSES]
        others[epsilon] = [float(np.mean(np.delete(found[label], label))) for label in CLASSES]
    print(json.dumps({"steps": asked.steps, "scheme": asked.scheme, "class": own, "others": others}))
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), sharey=True, layout="constrained")
    for place, (title, values) in enumerate({"the class itself": own, "mean of the nine others": others}.items()):
        for epsilon, marker in ((1, "v"), (2, "o"), (3, "^")):
            axes[place].plot(CLASSES, [100 * value for value in values[epsilon]], marker, label=f"epsilon {epsilon}")
        axes[place].set(title=title, xlabel="class whose epsilon differs from 2", xticks=list(CLASSES))
    axes[0].set(ylabel="test accuracy in %")
    axes[0].legend(title="its budget")
    figure.savefig(asked.out, metadata={"Date": None})


if __name__ == "__main__":
    main()
