"""How long it takes to draw a batch and to make its noise, and whether that depends on how many holders there are.

    python benchmarks/sampling_speed.py                      # 10^4 and 10^8 holders: a minute, and 2 GB of memory
    python benchmarks/sampling_speed.py --holders 10000000   # fewer in the large population
    OMP_NUM_THREADS=1 python benchmarks/sampling_speed.py    # torch on one thread, as our noise is

Each figure is the best of several repeats, with everything that is compared measured in turn within each repeat.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import time
from collections.abc import Callable

import numpy as np
import torch
from numpy.random import Generator
from randomgen import AESCounter, ChaCha
from rich.console import Console
from rich.table import Table

from sartor.run.sampling import PoissonSampler
from sartor.run.stream import Stream, normal

SMALL, LARGE, BATCH, STEPS = 10_000, 100_000_000, 512, 1_000_000
DRAWS = 200  # per repeat
PARAMETERS = (26_010, 550_570, 1_000_000)  # the networks of the MNIST and CIFAR settings, and a round number


def population(holders: int, stream: Stream) -> PoissonSampler:
    """Three groups, scattered, at rates 1 : 2 : 3, with the same expected batch however many there are."""
    of_holder = np.random.default_rng(0).integers(0, 3, holders, np.uint8)
    rate = BATCH / holders * np.array([0.5, 1.0, 1.5])
    return PoissonSampler.of_groups(of_holder, rate, [1.0, 1.0, 1.0], [0, 0, 0], [STEPS] * 3, STEPS, stream)


def singletons(holders: int, stream: Stream) -> PoissonSampler:
    """As many groups as holders, rates over a factor of twenty."""
    rate = np.linspace(0.1, 2.0, holders)
    rate *= BATCH / rate.sum()
    ones = np.ones(holders)
    return PoissonSampler.of_groups(np.arange(holders), rate, ones, 0 * ones, STEPS * ones, STEPS, stream)


def best(tasks: dict[str, Callable[[int], object]], repeats: int, times: int) -> dict[str, float]:
    """Seconds per call of each task: the best of the repeats, the tasks taking turns."""
    seconds = dict.fromkeys(tasks, math.inf)
    for repeat in range(repeats):
        for name, task in tasks.items():
            start = time.perf_counter()
            for i in range(times):
                task(repeat * times + i)
            seconds[name] = min(seconds[name], (time.perf_counter() - start) / times)
    return seconds


def noise_tasks(size: int, stream: Stream) -> dict[str, Callable[[int], object]]:
    """Ways to make `size` Gaussian numbers."""
    aes, chacha = Generator(AESCounter(key=1)), Generator(ChaCha(key=1))
    return {
        "stream": lambda step: normal(stream.generator("noise", step), size, 2.0),
        "stream_draws_4": lambda step: normal(stream.generator("noise", step), size, 2.0, draws=4),
        "aes": lambda _: aes.standard_normal(size),
        "chacha": lambda _: chacha.standard_normal(size),
        "torch": lambda _: torch.randn(size) * 2.0,
        "torch_float64": lambda _: torch.randn(size, dtype=torch.float64) * 2.0,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--holders", type=int, default=LARGE, help="in the large population")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()

    stream = Stream()
    small = population(SMALL, stream)
    start = time.perf_counter()
    large = population(asked.holders, stream)
    built = time.perf_counter() - start
    many = singletons(60_000, stream)
    drawing = best({"small": small.draw, "large": large.draw, "singletons": many.draw}, asked.repeats, DRAWS)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    substream = best({"substream": lambda step: stream.generator("noise", step)}, asked.repeats, 1_000)["substream"]
    noise = {size: best(noise_tasks(size, stream), asked.repeats, max(1, 200_000 // size)) for size in PARAMETERS}

    figures = {
        "draw": {
            "batch": BATCH,
            "seconds": {str(SMALL): drawing["small"], str(asked.holders): drawing["large"], "60000 groups of one": drawing["singletons"]},
            "ratio": drawing["large"] / drawing["small"],
            "build_seconds": built,
            "peak_gigabytes": memory,
        },
        "substream_seconds": substream,
        "noise": [{"numbers": size, "seconds": row, "over_torch": row["stream"] / row["torch"]} for size, row in noise.items()],
        "torch_threads": torch.get_num_threads(),
    }
    if asked.json:
        print(json.dumps(figures, indent=2))
        return
    console = Console(width=120)
    table = Table(title=f"one draw, expected batch {BATCH}, in microseconds")
    for name in (f"{SMALL:,} holders", f"{asked.holders:,} holders", "ratio", "60,000 groups of one", "one substream"):
        table.add_column(name, justify="right")
    times = [f"{1e6 * drawing[name]:.0f}" for name in ("small", "large", "singletons")]
    table.add_row(times[0], times[1], f"{drawing['large'] / drawing['small']:.2f}", times[2], f"{1e6 * substream:.0f}")
    console.print(table)
    console.print(f"{asked.holders:,} holders were laid out in {built:.1f} s; peak memory {memory:.1f} GB.")
    table = Table(title=f"Gaussian noise, in milliseconds (torch on {torch.get_num_threads()} threads)")
    for name in ("numbers", *(name.replace("_", " ") for name in noise[PARAMETERS[0]]), "stream / torch"):
        table.add_column(name, justify="right")
    for size, row in noise.items():
        table.add_row(f"{size:,}", *(f"{1e3 * value:.3f}" for value in row.values()), f"{row['stream'] / row['torch']:.2f}")
    console.print(table)


if __name__ == "__main__":
    main()
