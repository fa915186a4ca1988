"""Attacks on small runs, votings and rounds: a break is seen where a lower bound is above what a group was promised."""

import functools

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

import sartor
from mutants.machinery import Catcher
from sartor import federated, pate
from sartor.audit.canaries import canary_attack, together
from sartor.audit.clients import client_attack
from sartor.audit.findings import REPEATED, findings
from sartor.audit.votes import vote_attack
from sartor.pate.plan import Confident, GNMax

DELTA, HOLDERS, SEED = 1e-2, 100, 3
MODEL = {"weight": np.zeros((32, 64), np.float32), "seen": np.array(3), "bias": np.zeros(64, np.float32)}


def refutes(scores, plan, bounds) -> bool:
    """The verdict, at a confidence of 0.999."""
    return findings("canary", scores, plan, confidence=0.999, bounds=bounds).verdict == "refuted"


@functools.cache
def people(*epsilon):
    return sartor.Budgets(np.random.default_rng(1).permutation(np.resize(epsilon, HOLDERS)), delta=DELTA)


@functools.cache
def records():
    generator = torch.Generator().manual_seed(3)
    return TensorDataset(torch.randn(HOLDERS, 32, generator=generator), torch.randint(0, 4, (HOLDERS,), generator=generator))


def net():
    return nn.Sequential(nn.Linear(32, 128), nn.Tanh(), nn.Linear(128, 4))


def canaries(scheme, epsilon=(1.0, 8.0), count=1000, repetitions=1, steps=10, **options) -> Catcher:
    """Canaries in one run of SGD under a scheme, or some in each of several."""

    def sees(plan):
        seeds = range(SEED, SEED + repetitions)
        found = [canary_attack(net, records(), people(*epsilon), plan, canaries=count, seed=seed, lr=0.5, check=False) for seed in seeds]
        everybody = together(found)
        return refutes(everybody.white_box, plan, everybody.bounds)

    @functools.cache
    def planned():
        return sartor.plan(people(*epsilon), scheme, steps=steps, batch=50, **{"accountant": "rdp", **options})

    among = f"{repetitions} times {count}" if repetitions > 1 else f"{count}"
    return Catcher(f"{among} canaries under {scheme}{' with a filter' if 'filter' in options else ''}", "attack", sees, planned)


def votes(variant, aggregator, repetitions=1000, queries=150) -> Catcher:
    """A neighbour of the ensemble, told from the labels of many votings."""
    everybody = functools.cache(lambda: sartor.Budgets(np.random.default_rng(1).permutation(np.repeat([1.0, 8.0], [60, 40])), delta=DELTA))

    def sees(plan):
        return refutes(vote_attack(plan, everybody(), repetitions=repetitions, queries=queries, seed=SEED), plan, REPEATED)

    made = functools.cache(lambda: pate.plan(everybody(), variant, teachers=20, aggregator=aggregator))
    name = f"neighbours of an ensemble ({variant}{', tested' if aggregator.tests else ''})"
    return Catcher(name, "attack", sees, made)


def clients(scheme, adaptive=None, count=1000) -> Catcher:
    """Canary clients in federated rounds."""

    def sees(plan):
        found = client_attack(MODEL, people(1.0, 8.0), plan, canaries=count, seed=SEED)
        return refutes(found.white_box, plan.accounted, found.bounds)

    @functools.cache
    def planned():
        return federated.plan(people(1.0, 8.0), scheme, rounds=10, per_round=50, adaptive=adaptive, accountant="rdp")

    return Catcher(f"canary clients under {scheme}{', clip following' if adaptive else ''}", "attack", sees, planned)


SCALE = canaries("scale", count=2000)
SAMPLE = canaries("sample", count=2000)
ROUNDS = canaries("rounds", rounds=2)
FEW = canaries("uniform", count=100, repetitions=6)
MANY = canaries("scale", (2.0, 8.0), count=4000)
FILTER = canaries("scale", count=2000, steps=60, filter="renyi", refresh=4, full_steps=4)
STANDARD, WEIGHT = votes("standard", GNMax(10.0), 2000, 400), votes("weight", GNMax(10.0))
TESTED = votes("weight", Confident(noise=8.0, threshold=12.0, threshold_noise=8.0), 200, 80)
CLIENTS, SAMPLED_CLIENTS = clients("scale", count=2000), clients("sample", count=2000)
FOLLOWING = clients("scale", federated.AdaptiveClip(noise=5.0), count=2000)
