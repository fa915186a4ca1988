"""How long a private step takes, as a multiple of a plain SGD step, beside what a user could take instead: in one run on one machine.

    python benchmarks/step_speed.py                  # all five networks
    python benchmarks/step_speed.py --only mnist     # one of them
    python benchmarks/step_speed.py --memory         # also the peak memory of each, in a process of its own

Steps are whole: forward, backward, clip, sum, noise (cryptographic in ours) and update, on the same batch. Every contender takes one step
in turn, many times over; the best time of each counts.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Collection
from pathlib import Path

import torch
from opacus.grad_sample import GradSampleModule, GradSampleModuleFastGradientClipping
from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

import sartor
from sartor.models import build

CLIP, NOISE, LR = 0.2, 2.0, 0.1


def image(channels: int, side: int, examples: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A batch of images."""
    return torch.randn(examples, channels, side, side), torch.randint(0, 10, (examples,))


def tokens(length: int, examples: int, *, words: int = 10_000, classes: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    """A batch of texts."""
    return torch.randint(1, words, (examples, length)), torch.randint(0, classes, (examples,))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[torch.Tensor, torch.Tensor]]]] = {
    "mnist": (lambda: build("mnist-cnn", shape=(1, 28, 28), classes=10), lambda: image(1, 28, 512)),
    "cifar": (lambda: build("cifar-cnn", shape=(3, 32, 32), classes=10), lambda: image(3, 32, 256)),
    "embedding": (lambda: build("embedding", shape=(256,), classes=2, vocabulary=10_000), lambda: tokens(256, 256)),
    "lstm": (lambda: build("char-lstm", shape=(20,), classes=18, vocabulary=60), lambda: tokens(20, 256, words=60, classes=18)),
    "transformer": (lambda: build("transformer", shape=(64,), classes=2, vocabulary=10_000), lambda: tokens(64, 64)),
}


def plain(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Callable[[], None]:
    """SGD without privacy."""
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)

    def step() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    return step


def ours(model: nn.Module, x: torch.Tensor, y: torch.Tensor, counts: list[int] | None = None) -> Callable[[], None]:
    """Sartor, from the draw on; the batch is replaced by the common one, so that all work on the same records.

    `counts` says how many of them are of one holder, after whom comes the next.
    """
    holders = 2 * len(x)
    budgets = sartor.Budgets.from_groups([(2.0, holders // 2), (8.0, holders // 2)], delta=1e-5)
    plan = sartor.plan(budgets, "scale", steps=100_000, batch=len(x), clip=CLIP, accountant="rdp")
    data = torch.utils.data.TensorDataset(torch.zeros(holders, 1), torch.zeros(holders))
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    model, private, _ = sartor.make_private(model, optimizer, data, budgets, plan)
    from sartor.sgd.gradients import Owners
    from sartor.sgd.pieces import Piece

    clips = torch.full((len(x) if counts is None else len(counts),), CLIP)
    shares = None if counts is None else 1 / torch.tensor(counts, dtype=torch.float64)

    def step() -> None:
        owners = None if counts is None else Owners(torch.tensor(counts))
        private.run.begin(Piece(private.run.steps, 0, range(len(x)), clips, True, 0, owners, shares))
        private.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        private.step()

    return step


def five_each(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Callable[[], None]:
    """Sartor with five records for each holder, clipped as one."""
    whole, rest = divmod(len(x), 5)
    return ours(model, x, y, [5] * whole + ([rest] if rest else []))


def uneven(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Callable[[], None]:
    """Sartor with 1 to 9 records for each holder."""
    draw, counts = random.Random(0), [0]
    while sum(counts) < len(x):
        counts.append(min(draw.randint(1, 9), len(x) - sum(counts)))
    return ours(model, x, y, counts[1:])


def opacus_hooks(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Callable[[], None]:
    """Opacus with per-example gradients from hooks."""
    wrapped = GradSampleModule(model)
    optimizer = DPOptimizer(
        torch.optim.SGD(wrapped.parameters(), lr=LR), noise_multiplier=NOISE, max_grad_norm=CLIP, expected_batch_size=len(x)
    )

    def step() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(wrapped(x), y).backward()
        optimizer.step()

    return step


def opacus_ghost(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Callable[[], None]:
    """Opacus with norms from products and a second backward pass."""
    wrapped = GradSampleModuleFastGradientClipping(model, max_grad_norm=CLIP, use_ghost_clipping=True)
    optimizer = DPOptimizerFastGradientClipping(
        torch.optim.SGD(wrapped.parameters(), lr=LR), noise_multiplier=NOISE, max_grad_norm=CLIP, expected_batch_size=len(x)
    )
    loss = DPLossFastGradientClipping(wrapped, optimizer, nn.CrossEntropyLoss(reduction="mean"), loss_reduction="mean")

    def step() -> None:
        optimizer.zero_grad()
        loss(wrapped(x), y).backward()
        optimizer.step()

    return step


def torch_func(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Callable[[], None]:
    """Per-example gradients by vmap, clipped, summed and noised by hand."""
    parameters = {name: value.detach() for name, value in model.named_parameters()}

    def loss(values: dict[str, torch.Tensor], one: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(functional_call(model, values, (one[None],)), label[None])

    each = vmap(grad(loss), in_dims=(None, 0, 0))

    def step() -> None:
        found = each(parameters, x, y)
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in found.values()]).norm(dim=0)
        factors = torch.clamp(CLIP / norms, max=1.0)
        with torch.no_grad():
            for name, value in parameters.items():
                total = torch.einsum("b,b...->...", factors, found[name])
                value -= LR * (total + NOISE * CLIP * torch.randn_like(total)) / len(x)

    return step


CONTENDERS = {
    "plain SGD": plain,
    "sartor": ours,
    "sartor, 5 records each": five_each,
    "sartor, 1 to 9 each": uneven,
    "Opacus, hooks": opacus_hooks,
    "Opacus, ghost": opacus_ghost,
    "torch.func": torch_func,
}


def measure(network: str, repeats: int, contenders: Collection[str]) -> dict[str, float | None]:
    """Best seconds per step of each contender."""
    make, batch = NETWORKS[network]
    x, y = batch()
    torch.manual_seed(0)
    start = make().state_dict()
    steps: dict[str, Callable[[], None]] = {}
    best: dict[str, float | None] = {}
    for name in contenders:
        contender, model = CONTENDERS[name], make()
        model.load_state_dict(start)
        try:
            step = contender(model, x, y)
            step()
            step()
        except Exception as error:
            print(f"{name} cannot train {network}: {type(error).__name__}", file=sys.stderr)
            best[name] = None
            continue
        steps[name] = step
    for _ in range(repeats):
        for name, step in steps.items():
            begin = time.perf_counter()
            step()
            seconds = time.perf_counter() - begin
            best[name] = min(best.get(name) or seconds, seconds)
    return {name: best.get(name) for name in contenders}


def peak(network: str, contender: str) -> float | None:
    """Peak memory in MB that three steps need beyond the start of the process that takes them."""
    command = [sys.executable, __file__, "--peak-of", f"{network}|{contender}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return float(done.stdout) if done.returncode == 0 else None


def _own_peak(network: str, contender: str) -> float:
    make, batch = NETWORKS[network]
    x, y = batch()
    model = make()
    before = _resident("VmRSS")
    step = CONTENDERS[contender](model, x, y)
    for _ in range(3):
        step()
    return (_resident("VmHWM") - before) / 1024


def _resident(which: str) -> float:
    """Memory of this process in kB: now (VmRSS) or at its highest (VmHWM)."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return float(lines[which].split()[0])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=NETWORKS, action="append")
    parser.add_argument("--contender", choices=CONTENDERS, action="append", help="besides plain SGD; all of them, unless given")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--peak-of", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    if asked.peak_of:
        print(_own_peak(*asked.peak_of.split("|")))
        return
    names = ["plain SGD", *(name for name in asked.contender or list(CONTENDERS)[1:] if name != "plain SGD")]
    rows = []
    for network in asked.only or NETWORKS:
        seconds = measure(network, asked.repeats, names)
        base = seconds["plain SGD"]
        assert base is not None
        memory = {name: peak(network, name) if asked.memory else None for name in names}
        rows.append(
            {
                "network": network,
                "milliseconds": {name: None if value is None else 1e3 * value for name, value in seconds.items()},
                "ratio": {name: None if value is None else value / base for name, value in seconds.items()},
                "megabytes": memory,
            }
        )
    if asked.json:
        print(json.dumps(rows, indent=2))
        return
    table = Table(title=f"a step, as a multiple of a plain SGD step ({torch.get_num_threads()} threads)")
    for column in ("network", *names):
        table.add_column(column, justify="right")
    for row in rows:
        cells = [f"{row['milliseconds']['plain SGD']:.1f} ms"]  # type: ignore[index]
        for name in names[1:]:
            ratio, size = row["ratio"][name], row["megabytes"][name]  # type: ignore[index]
            cells.append("-" if ratio is None else f"{ratio:.2f}" + (f" ({size:.0f} MB)" if size is not None else ""))
        table.add_row(str(row["network"]), *cells)
    Console(width=130).print(table)


if __name__ == "__main__":
    main()
