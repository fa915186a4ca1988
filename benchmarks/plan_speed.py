"""How fast budgets become plans, beside the paper's algorithm on Opacus' accountant, in one run on one machine.

    python benchmarks/plan_speed.py              # 2 and 8 groups by the peer, some minutes
    python benchmarks/plan_speed.py --groups 32  # adds 32 groups by the peer, many minutes
    python benchmarks/plan_speed.py --no-peer    # ours alone
    python benchmarks/plan_speed.py --ladder 3 128  # instead: plans with a ladder for so many groups, a minute or two
    python benchmarks/plan_speed.py --million  # instead: plans for 1,000,000 holders with 1,000 budgets, a minute

Ours is the best of several repeats, each with nothing remembered from the last; the peer runs between them.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import resource
import time
import warnings
from concurrent.futures import ProcessPoolExecutor

import numpy as np
from opacus.accountants import RDPAccountant
from rich.console import Console
from rich.table import Table

import sartor
from sartor.accounting import filtered, spending

STEPS, BATCH, HOLDERS, DELTA = 9_375, 512, 60_000, 1e-5
PRECISION = 0.01
MILLION, MANY = 1_000_000, 1_000  # holders, and their different budgets


def budgets_of(groups: int) -> sartor.Budgets:
    """`groups` different budgets between 1 and 6, equally large groups."""
    epsilon = np.linspace(1, 6, groups)
    return sartor.Budgets.from_shares(epsilon, np.full(groups, 1 / groups), holders=HOLDERS, delta=DELTA, seed=0)


def ours(groups: int, scheme: str, accountant: str) -> tuple[float, float]:
    """Seconds for one plan with an empty memory, and its noise multiplier."""
    budgets = budgets_of(groups)
    spending._memory.clear()
    start = time.perf_counter()
    plan = sartor.plan(budgets, scheme, steps=STEPS, batch=BATCH, accountant=accountant)
    return time.perf_counter() - start, plan.noise_multiplier


def with_ladder(groups: int, scheme: str) -> tuple[float, float]:
    """Seconds on the clock and of the processor for one plan with five rungs, of which full norm pays for 30 stretches; budgets 1 to 3."""
    budgets = sartor.Budgets.from_shares(np.linspace(1, 3, groups), np.full(groups, 1 / groups), holders=HOLDERS, delta=DELTA, seed=0)
    spending._memory.clear()
    filtered._table.cache_clear()
    start, processor = time.perf_counter(), time.process_time()
    sartor.plan(budgets, scheme, steps=12_000, batch=BATCH, filter="ladder", refresh=312, full_steps=9_360)
    return time.perf_counter() - start, time.process_time() - processor


def of_a_million(scheme: str, accountant: str) -> dict[str, float | str]:
    """Seconds for one plan of a million holders and its table, on the clock and of the processor, and the most memory by then."""
    budgets = sartor.Budgets.from_shares(np.linspace(1, 6, MANY), np.full(MANY, 1 / MANY), holders=MILLION, delta=DELTA, seed=0)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start, processor = time.perf_counter(), time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # this delta is above one in a million, and the strict are rarely drawn
        plan = sartor.plan(budgets, scheme, steps=STEPS, batch=BATCH, accountant=accountant)
    str(plan)
    seconds, processor = time.perf_counter() - start, time.process_time() - processor
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"scheme": scheme, "accountant": accountant, "seconds": seconds, "of_the_processor": processor} | {
        "noise_multiplier": plan.noise_multiplier,
        "megabytes_before": before / 1024,
        "megabytes": most / 1024,
    }


def opacus_epsilon(noise: float, rate: float) -> float:
    """What the peer's accountant says."""
    accountant = RDPAccountant()
    accountant.history = [(noise, rate, STEPS)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return float(accountant.get_epsilon(delta=DELTA))


def peer_noise(epsilon: float, rate: float) -> float:
    """getNoise: bisection until epsilon is met to the precision."""
    low, high = 0.0, 10.0
    while opacus_epsilon(high, rate) > epsilon:
        high *= 2
    reached = math.inf
    while epsilon - reached > PRECISION or reached > epsilon:
        middle = (low + high) / 2
        reached = opacus_epsilon(middle, rate)
        low, high = (low, middle) if reached < epsilon else (middle, high)
    return high


def peer_rate(epsilon: float, noise: float) -> float:
    """getSampleRate: the same bisection over rates."""
    low, high = 1e-9, 1.0
    reached = 0.0
    while epsilon - reached > PRECISION or reached > epsilon:
        middle = (low + high) / 2
        reached = opacus_epsilon(noise, middle)
        low, high = (middle, high) if reached <= epsilon else (low, middle)
    return low


def peer(groups: int) -> tuple[float, float]:
    """Algorithm 2 of the IDP-SGD paper: lower the noise until the mean of the rates is the one asked for."""
    epsilon, share, rate = np.linspace(1, 6, groups), np.full(groups, 1 / groups), BATCH / HOLDERS
    start = time.perf_counter()
    noise = peer_noise(float(epsilon[0]), rate)
    factor = 0.99
    rates = [peer_rate(float(e), noise) for e in epsilon]
    while float(share @ rates) > rate * (1 + PRECISION):
        noise *= factor
        rates = [peer_rate(float(e), noise) for e in epsilon]
    return time.perf_counter() - start, noise


def ladders(counts: list[int], as_json: bool) -> None:
    """Measure plans with a ladder, once each, and print."""
    rows = []
    for groups in counts:
        for scheme in ("scale", "sample"):
            seconds, processor = with_ladder(groups, scheme)
            rows.append({"groups": groups, "scheme": scheme, "seconds": seconds, "of_the_processor": processor})
    if as_json:
        print(json.dumps({"ladder": rows}, indent=2))
        return
    table = Table(title="seconds to plan with a ladder of five rungs, 30 stretches of 312 steps at full norm, delta 1e-5")
    for name in ("budgets", "scheme", "seconds", "of the processor"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(f"{row['groups']:,}", str(row["scheme"]), f"{row['seconds']:.1f}", f"{row['of_the_processor']:.1f}")
    Console(width=110).print(table)


def millions(as_json: bool) -> None:
    """Measure plans for a million holders, each in a process of its own, one after the other, and print."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"), max_tasks_per_child=1) as pool:
        rows = [pool.submit(of_a_million, s, a).result() for s in ("uniform", "scale", "sample") for a in ("rdp", "pld")]
    if as_json:
        print(json.dumps({"million": rows}, indent=2))
        return
    table = Table(title=f"seconds to plan for {MILLION:,} holders with {MANY:,} budgets, delta 1e-5, and most memory (MB)")
    for name in ("scheme", "accountant", "seconds", "of the processor", "noise multiplier", "memory before", "memory"):
        table.add_column(name, justify="right")
    for row in rows:
        figures = (row["seconds"], row["of_the_processor"], row["noise_multiplier"], row["megabytes_before"], row["megabytes"])
        texts = (f"{value:{shape}}" for value, shape in zip(figures, (".1f", ".1f", ".5g", ".0f", ".0f"), strict=True))
        table.add_row(str(row["scheme"]), str(row["accountant"]), *texts)
    Console(width=110).print(table)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=8, help="most groups that the peer plans for: 2, 8 or 32")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--no-peer", action="store_true")
    parser.add_argument("--ladder", type=int, nargs="+", metavar="GROUPS", help="only plans with a ladder, for so many groups each")
    parser.add_argument("--million", action="store_true", help="only plans for 1,000,000 holders with 1,000 budgets")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    if asked.million:
        millions(asked.json)
        return
    if asked.ladder:
        ladders(asked.ladder, asked.json)
        return
    cases = [(2, "sample"), (8, "sample"), (32, "sample"), (128, "sample"), (60_000, "sample"), (60_000, "scale"), (60_000, "hybrid")]
    best: dict[tuple[int, str, str], float] = {}
    peers: dict[int, float] = {}
    for repeat in range(asked.repeats):
        for groups, scheme in cases:
            for accountant in ("rdp", "pld"):
                seconds, _ = ours(groups, scheme, accountant)
                key = (groups, scheme, accountant)
                best[key] = min(best.get(key, math.inf), seconds)
            if repeat == 0 and not asked.no_peer and scheme == "sample" and groups <= asked.groups:
                peers[groups], _ = peer(groups)
    rows = [
        {"groups": g, "scheme": s, "rdp": best[g, s, "rdp"], "pld": best[g, s, "pld"], "paper_on_opacus": peers.get(g)} for g, s in cases
    ]
    if asked.json:
        print(json.dumps({"seconds": rows}, indent=2))
        return
    table = Table(title="seconds to turn budgets into a plan (MNIST setting, delta 1e-5)")
    for name in ("budgets", "scheme", "sartor, Rényi", "sartor, PLD", "paper's algorithm on Opacus"):
        table.add_column(name, justify="right")
    for row in rows:
        theirs = "" if row["paper_on_opacus"] is None else f"{row['paper_on_opacus']:.1f}"
        table.add_row(f"{row['groups']:,}", row["scheme"], f"{row['rdp']:.3f}", f"{row['pld']:.2f}", theirs)
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
