"""Every scheme audited on a small task, sound and with a break planted: lower bounds by group, and verdicts.

    python benchmarks/audit_results.py --out docs/results/audit_runs.jsonl     # three minutes
    python benchmarks/audit_results.py --tables docs/results/audit_runs.jsonl
    python benchmarks/audit_results.py --ordered                               # one run at epsilon 2, 8 and 32

Steps are those of the bundled digits, 1,437 holders at epsilon 1, 2 and 3. Breaks are those of tests/mutants, one that attacks see and one
that replay sees.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.neighbors import KNeighborsClassifier

import sartor
from sartor import federated, pate
from sartor.audit.canaries import canary_attack
from sartor.audit.clients import client_attack
from sartor.audit.findings import REPEATED, Findings, findings
from sartor.audit.replay import Replayed, replay
from sartor.audit.replay_rounds import replay_rounds
from sartor.audit.replay_votes import replay_ensemble, replay_votes
from sartor.audit.votes import vote_attack
from sartor.data import load
from sartor.models import build
from sartor.sgd import fit_members

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from mutants import planted

EPSILONS, DELTA, SEED = (1.0, 2.0, 3.0), 1e-3, 1
CANARIES = 6_000
LADDER = {"filter": "ladder", "refresh": 10, "full_steps": 20}
STEPS: dict[str, dict[str, Any]] = {
    "uniform": {},
    "sample": {},
    "scale": {},
    "hybrid": {"mix": 0.5},
    "exclude": {"threshold": 1.5},
    "sequential": {},
    "rounds": {"rounds": 2},
    "jorgensen": {},
    "adapdp": {"rounds": 2},
    "scale, ladder": LADDER,
    "equal, ladder": LADDER,
    "scale, Rényi filter": {**LADDER, "filter": "renyi", "accountant": "rdp"},
}
AGGREGATORS: dict[str, pate.GNMax] = {
    "": pate.GNMax(noise=15),
    "confident": pate.Confident(noise=15, threshold=5, threshold_noise=20),
    "interactive": pate.Interactive(noise=15, threshold=5, threshold_noise=20),
}
VARIANTS = ("standard", "upsample", "weight", "vanish", "weight, confident", "vanish, confident", "weight, interactive")
ROUNDS = {"uniform": None, "sample": None, "scale": None, "hybrid": None, "scale, adaptive clip": federated.AdaptiveClip(noise=5.0)}

Audit = tuple[Callable[[], Findings], Callable[[], Replayed]]


def of_steps(name: str) -> Audit:
    """Canaries in a run of SGD under a scheme, and its replay."""
    data = load("digits")
    people = sartor.Budgets.from_shares(EPSILONS, (0.4, 0.3, 0.3), holders=len(data.train), delta=DELTA, seed=SEED)
    plan = sartor.plan(people, name.partition(",")[0], steps=60, batch=150, **STEPS[name])
    make = partial(build, "digits-cnn", shape=data.shape, classes=data.classes)

    def canaries() -> Findings:
        found = canary_attack(make, data.train, people, plan, canaries=CANARIES, seed=SEED, lr=0.5, check=False)
        return findings("canary", found.white_box, plan, bounds=found.bounds, seed=SEED)

    def train(records: Any, seed: int) -> Any:
        fitter = fit_members if plan.scheme == "adapdp" else sartor.fit
        return fitter(make(), records, people, plan, lr=0.5, seed=seed, progress=False).account.to_json()

    return canaries, lambda: replay(train, data.train, people, plan, holders=3, seed=SEED, most_steps=20)


def of_votes(variant: str) -> Audit:
    """Neighbours of an ensemble, and its replay with teachers that are taught again."""
    data = load("digits")
    people = sartor.Budgets.from_shares(EPSILONS, (0.4, 0.3, 0.3), holders=len(data.train), delta=DELTA, seed=SEED)
    scheme, _, aggregator = variant.partition(", ")
    plan = pate.plan(people, scheme, teachers=60, aggregator=AGGREGATORS[aggregator])
    teachers = pate.EstimatorTeachers(KNeighborsClassifier(1), workers=1, seed=SEED, progress=False)

    def neighbours() -> Findings:
        scores = vote_attack(plan, people, repetitions=CANARIES // 6, queries=400, seed=SEED)
        return findings("canary", scores, plan, bounds=REPEATED, seed=SEED)

    if aggregator == "interactive":  # a student of its own, which has seen nothing
        draw = np.random.default_rng(SEED)
        votes, student = draw.integers(data.classes, size=(100, plan.teachers)), draw.dirichlet(np.full(data.classes, 0.1), 100)
        return neighbours, lambda: replay_votes(plan, votes, data.classes, student=student, seed=SEED)
    queries = data.test.tensors[0][:100]
    return neighbours, lambda: replay_ensemble(teachers, data.train, queries, data.classes, people, plan, holders=3, seed=SEED)


def of_rounds(name: str) -> Audit:
    """Canary clients, and a replay of rounds in which updates are far longer than any clip."""
    people = sartor.Budgets.from_shares(EPSILONS, (0.4, 0.3, 0.3), holders=300, delta=DELTA, seed=SEED)
    mix = {"mix": 0.5} if name == "hybrid" else {}
    plan = federated.plan(people, name.partition(",")[0], rounds=20, per_round=60, adaptive=ROUNDS[name], **mix)
    model = {"weight": np.zeros((64, 256), np.float32), "bias": np.zeros(256, np.float32)}
    long = torch.utils.data.TensorDataset(torch.from_numpy(np.random.default_rng(SEED).standard_normal((300, 256))))

    def canaries() -> Findings:
        found = client_attack(model, people, plan, canaries=CANARIES // 2, seed=SEED)
        return findings("canary", found.white_box, plan, bounds=found.bounds, seed=SEED)

    def answer(records: Any, client: int, model: Any, number: int) -> Any:
        return {name: part + 30 * records.tensors[0][client].numpy() for name, part in model.items()}

    return canaries, lambda: replay_rounds(answer, long, model, people, plan, holders=3, seed=SEED)


KINDS: dict[str, tuple[Callable[[str], Audit], tuple[str, ...], str, str]] = {
    "SGD": (of_steps, tuple(STEPS), "noise-at-a-third", "noise-too-low"),
    "PATE": (of_votes, VARIANTS, "votes-charged-at-a-fortieth", "votes-charged-at-a-fortieth"),
    "federated": (of_rounds, tuple(ROUNDS), "update-noise-at-a-third", "update-clipped-array-by-array"),
}


def audited(kind: str, name: str) -> dict[str, Any]:
    """The figures of one scheme."""
    of, _, for_attack, for_replay = KINDS[kind]
    attack, play = of(name)
    begin, found = time.process_time(), {"kind": kind, "scheme": name, "epsilon": list(EPSILONS)}
    for sound in (True, False):
        seen, played = (_with(None if sound else mutant, one) for one, mutant in ((attack, for_attack), (play, for_replay)))
        found["sound" if sound else "broken"] = {
            "attack": {"verdict": seen.verdict, "bounds": [row.lower_bound for row in seen.rows], "mutant": None if sound else for_attack},
            "replay": {"verdict": played.verdict, "largest_move": played.largest_move, "mutant": None if sound else for_replay},
        }
    return {**found, "seconds": time.process_time() - begin}


def _with(mutant: str | None, look: Callable[[], Any]) -> Any:
    """What is seen with a break planted, or without."""
    about: AbstractContextManager[None] = nullcontext() if mutant is None else planted(mutant)
    with about:
        return look()


def ordered(scheme: str) -> str:
    """Lower bounds of one run of SGD in which a third of the holders each allow epsilon 2, 8 and 32, as a line of a table."""
    data = load("digits")
    people = sartor.Budgets.from_shares((2.0, 8.0, 32.0), (1 / 3, 1 / 3, 1 / 3), holders=len(data.train), delta=DELTA, seed=SEED)
    plan = sartor.plan(people, scheme, steps=60, batch=150, **STEPS[scheme])
    make = partial(build, "digits-cnn", shape=data.shape, classes=data.classes)
    found = canary_attack(make, data.train, people, plan, canaries=CANARIES, seed=SEED, lr=0.5, check=False)
    rows = findings("canary", found.white_box, plan, bounds=found.bounds, seed=SEED).rows
    return f"| {scheme} | {' | '.join(f'{row.lower_bound:.2f}' for row in rows)} |"


def tables(runs: list[dict[str, Any]]) -> str:
    """All runs as Markdown."""
    heads = ["", "scheme", "bounds at 1 / 2 / 3", "attack", "replay, largest move", "broken: bounds", "attack", "replay"]
    lines = [f"| {' | '.join(heads)} |", f"| {' | '.join(['---'] * len(heads))} |"]
    for run in runs:
        sound, broken = run["sound"], run["broken"]
        bounds = [" / ".join(f"{bound:.2f}" for bound in one["attack"]["bounds"]) for one in (sound, broken)]
        replayed = f"{sound['replay']['verdict']}, {sound['replay']['largest_move']:.4f}"
        cells = [run["kind"], run["scheme"], bounds[0], sound["attack"]["verdict"], replayed]
        lines.append(f"| {' | '.join([*cells, bounds[1], broken['attack']['verdict'], broken['replay']['verdict']])} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Audit, write and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=KINDS, action="append")
    parser.add_argument("--out", type=Path, help="a file to which a line is added for each scheme")
    parser.add_argument("--tables", type=Path, help="a file of audits, of which the table is made without attacking anything")
    parser.add_argument("--ordered", action="store_true", help="one run at epsilon 2, 8 and 32 by some schemes, and nothing else")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if asked.ordered:
        print("\n".join(["| scheme | 2 | 8 | 32 |", "| --- | --- | --- | --- |", *map(ordered, ("scale", "sample", "hybrid"))]))
        return
    runs = [] if asked.tables is None else [json.loads(line) for line in asked.tables.read_text().splitlines()]
    for kind in (asked.only or KINDS) if asked.tables is None else ():
        for name in KINDS[kind][1]:
            runs.append(audited(kind, name))
            if asked.out is not None:
                with asked.out.open("a") as file:
                    file.write(json.dumps(runs[-1]) + "\n")
    print(tables(runs))


if __name__ == "__main__":
    main()
