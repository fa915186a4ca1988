"""What accounts by norms cost, and how far they lie above direct computation from the norms themselves, in one run on one machine.

    python benchmarks/individual_accounts.py                  # 60,000 holders, 200 looks at their norms, three budgets
    python benchmarks/individual_accounts.py --compared 300   # compares more holders, which takes some minutes
    python benchmarks/individual_accounts.py --training DIR   # their part of a training run on MNIST, with one look in each epoch

Direct computation evaluates the Rényi divergence of every compared holder and look at all orders of the accountant. The compared are
drawn at random, and those who are read highest and lowest in each group are among them. Seconds count building the tables, rounding
norms, charging, and reading beside the plan's spend; making the plan and the norms is not counted.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

import sartor
from sartor.accounting import rdp
from sartor.individual.costs import Costs
from sartor.individual.readings import Readings

STEPS, BATCH, HOLDERS, DELTA = 9_400, 512, 60_000, 1e-5
SHARES = {1.0: 0.34, 2.0: 0.43, 3.0: 0.23}

Array = NDArray[np.float64]


class Norms:
    """Norms over the clip as training makes them: most fall from look to look, some stay at the clip, some are nothing at once."""

    def __init__(self, holders: int, looks: int) -> None:
        rng = np.random.default_rng(0)
        self._start, self._fall, self._looks = rng.normal(-1.0, 1.0, holders), rng.gamma(2.0, 1.5, holders), looks
        self._fall[::50] = 0
        self._start[1::50] = -np.inf

    def at(self, look: int) -> Array:
        """The same at every call."""
        wander = np.random.default_rng([1, look]).normal(0.0, 0.5, len(self._start))
        return np.asarray(np.exp(self._start - self._fall * look / self._looks + wander))


def direct(plan: sartor.Plan, groups: NDArray[np.intp], fractions: Array, counts: list[int]) -> Array:
    """Epsilon of holders of these groups from `fractions` (looks, holders), each for so many steps, at all orders."""
    total = np.zeros((len(groups), len(rdp.ORDERS)))
    for row, count in zip(np.minimum(fractions, 1.0), counts, strict=True):
        entered = np.flatnonzero(row > 0)
        rate, noise = plan.rate[groups[entered]], plan.noise_multipliers[groups[entered]]
        total[entered] += count * rdp.sampled_gaussian(rate, noise / row[entered], rdp.ORDERS)
    return np.where(np.any(fractions > 0, axis=0), rdp.to_epsilon(total, rdp.ORDERS, plan.delta[groups]), 0.0)


def chosen(found: Array, groups: NDArray[np.intp], count: int) -> NDArray[np.intp]:
    """Holders to compare: the highest and the lowest of each group, and others at random."""
    extremes = [np.flatnonzero(groups == g)[place] for g in np.unique(groups) for place in _ends(found[groups == g])]
    others = np.random.default_rng(2).permutation(len(found))[: max(0, count - len(extremes))]
    return np.unique(np.append(np.array(extremes, np.intp), others))


def _ends(values: Array) -> tuple[int, int]:
    return int(np.argmin(values)), int(np.argmax(values))


class Watch:
    """Seconds by name, on the clock and of the processor."""

    def __init__(self) -> None:
        self.seconds, self.processor = dict.fromkeys(("build", "round", "charge", "read"), 0.0), 0.0

    @contextmanager
    def during(self, name: str) -> Iterator[None]:
        """Count what happens inside."""
        clock, processor = time.perf_counter(), time.process_time()
        yield
        self.seconds[name] += time.perf_counter() - clock
        self.processor += time.process_time() - processor


def measured(asked: argparse.Namespace) -> dict[str, Any]:
    """A whole run's accounts, and the comparison."""
    sizes = [(epsilon, round(share * asked.holders)) for epsilon, share in SHARES.items()]
    budgets = sartor.Budgets.from_groups(sizes, delta=DELTA)
    plan = sartor.plan(budgets, asked.scheme, steps=STEPS, batch=BATCH * asked.holders / HOLDERS)
    counts = [len(part) for part in np.array_split(np.arange(STEPS), asked.refreshes)]
    norms, watch = Norms(len(budgets), asked.refreshes), Watch()

    with watch.during("build"):
        readings = Readings(Costs(plan), budgets, "strict")
        assert len(readings.costs.table)  # which is built when it is first asked for
    for look, count in enumerate(counts):
        seen = norms.at(look) * readings.clips
        with watch.during("round"):
            levels = readings.levels(seen)
        with watch.during("charge"):
            readings.add(levels, count)
    with watch.during("read"):
        reading = readings.reading()
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10

    account = readings.epsilon()
    compared = chosen(account, readings.groups, asked.compared)
    exact = direct(plan, readings.groups[compared], np.stack([norms.at(look)[compared] for look in range(len(counts))]), counts)
    above = np.where(exact > 0, account[compared] / np.where(exact > 0, exact, 1.0) - 1, account[compared])
    return {
        "holders": len(budgets),
        "refreshes": asked.refreshes,
        "steps": STEPS,
        "scheme": asked.scheme,
        "seconds": {**watch.seconds, "total": sum(watch.seconds.values()), "of_the_processor": watch.processor},
        "orders": len(readings.costs.orders),
        "accounts_megabytes": len(budgets) * len(readings.costs.orders) * 8 / 1e6,
        "tables_megabytes": readings.costs.table.nbytes / 1e6,
        "peak_megabytes": memory,
        "compared": len(compared),
        "above_direct": {"least": float(above.min()), "median": float(np.median(above)), "most": float(above.max())},
        "reading_over_guarantee": np.quantile(reading.accounts(sensitive=True) / reading.guarantee, [0.1, 0.5, 0.9]).tolist(),
    }


def part_of_training(folder: str, epochs: int) -> dict[str, float]:
    """Seconds of a training run on MNIST, and those of them that are the accounts': tables, rounding, charging and the reading."""
    import torch

    from sartor.data import load
    from sartor.models import build
    from sartor.sgd import private, stretches

    torch.set_num_threads(1)
    data, watch = load("mnist", folder), Watch()
    watch.seconds = dict.fromkeys(("passes", "begun", "built", "read", "run"), 0.0)

    class Timed(stretches.Stretches):
        def __init__(self, plan: sartor.Plan, budgets: sartor.Budgets, kind: str, refresh: int, norms: Any, loss: str | None) -> None:
            def passed(holders: int, stretch: int) -> Array:
                with watch.during("passes"):
                    return np.asarray(norms(holders, stretch))

            with watch.during("built"):
                super().__init__(plan, budgets, kind, refresh, passed, loss)

        def begin(self, step: int) -> int:
            with watch.during("begun"):
                return super().begin(step)

        def reading(self) -> Any:
            with watch.during("read"):
                return super().reading()

    budgets = sartor.Budgets.from_shares(tuple(SHARES), tuple(SHARES.values()), holders=len(data.train), delta=DELTA, seed=0)
    refresh = len(data.train) // BATCH
    plan = sartor.plan(budgets, "scale", steps=epochs * refresh, batch=BATCH, clip=0.2)
    model = build("mnist-cnn", shape=data.shape, classes=data.classes, vocabulary=data.vocabulary).to(memory_format=torch.channels_last)
    private.Stretches, kept = Timed, private.Stretches  # type: ignore[attr-defined,misc]
    try:
        with watch.during("run"):
            sartor.fit(model, data.train, budgets, plan, lr=0.6, tracking=sartor.Tracking("strict", refresh), progress=False)
    finally:
        private.Stretches = kept  # type: ignore[attr-defined]
    seconds = watch.seconds
    accounts = seconds["built"] + seconds["read"] + seconds["begun"] - seconds["passes"]
    steps = seconds["run"] - seconds["passes"] - accounts
    return {"epochs": epochs, "steps": steps, "passes": seconds["passes"], "accounts": accounts, "share": accounts / (steps + accounts)}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--holders", type=int, default=HOLDERS)
    parser.add_argument("--refreshes", type=int, default=200, help="looks at everybody's norms")
    parser.add_argument("--compared", type=int, default=60, help="holders whose accounts are computed directly too")
    parser.add_argument("--scheme", choices=("sample", "scale", "hybrid", "uniform"), default="sample")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--training", metavar="DIR", help="train on the MNIST of this folder and tell the accounts' part of the seconds")
    parser.add_argument("--epochs", type=int, default=20)
    asked = parser.parse_args()
    if asked.training:
        print(json.dumps(part_of_training(asked.training, asked.epochs)))
        return
    figures = measured(asked)
    if asked.json:
        print(json.dumps(figures, indent=2))
        return
    table = Table(title=f"accounts of {figures['holders']:,} holders, {figures['refreshes']} looks at norms, {asked.scheme}: seconds")
    for name in ("tables", "rounding", "charging", "reading", "total", "of the processor"):
        table.add_column(name, justify="right")
    table.add_row(*(f"{value:.2f}" for value in figures["seconds"].values()))
    console, above, shares = Console(width=120), figures["above_direct"], figures["reading_over_guarantee"]
    console.print(table)
    console.print(
        f"Accounts take {figures['accounts_megabytes']:.0f} MB ({figures['orders']} orders), tables {figures['tables_megabytes']:.0f} MB; "
        f"the process took {figures['peak_megabytes']:.0f} MB at most."
    )
    console.print(
        f"Above direct computation, of {figures['compared']} holders: by {above['least']:.2e} at least, {above['median']:.2e} in the "
        f"middle, {above['most']:.2e} at most."
    )
    console.print(
        f"Readings over the plan's spend, at a tenth, half and nine tenths of the holders: {', '.join(f'{s:.2f}' for s in shares)}."
    )


if __name__ == "__main__":
    main()
