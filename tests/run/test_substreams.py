"""Coins, noise and random changes to records are independent of each other in what really runs, and not only where streams are made.

If two purposes shared a substream, who was drawn could be read from the noise, or the noise taken off by whoever sees a batch.
"""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

import sartor
from sartor import federated
from sartor.federated.rounds import Round
from sartor.run.sampling import PoissonSampler
from sartor.run.stream import Stream

HOLDERS = 60
WORDS = 512
MODEL = {"w": np.zeros((3, 2))}  # of the federated rounds


class Noting(Stream):
    """A stream that remembers the beginning of every substream that it gave out."""

    def __init__(self, seed):
        super().__init__(seed)
        self.given = []

    def generator(self, purpose, step):
        found = super().generator(purpose, step)
        self.given.append(set(copy.deepcopy(found.bit_generator).random_raw(WORDS).tolist()))
        return found


def shared(stream) -> int:
    """How many of the words that a stream gave out stand in more than one substream."""
    return sum(map(len, stream.given)) - len(set().union(*stream.given))


class Jittered(Dataset):
    """Records with random changes, so that the loader needs random numbers too."""

    def __len__(self):
        return HOLDERS

    def __getitem__(self, i):
        return torch.rand(4), i % 2


def test_coins_noise_and_augmentation_of_a_run_share_no_random_word():
    steps = 12
    budgets = sartor.Budgets.from_groups([(1.0, HOLDERS // 2), (2.0, HOLDERS // 2)], delta=1e-3)
    plan = sartor.plan(budgets, "sample", steps=steps, batch=HOLDERS / 3, accountant="rdp")
    model, stream = nn.Linear(4, 2), Noting(seed=5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = sartor.make_private(model, optimizer, Jittered(), budgets, plan, stream=stream)
    for inputs, targets in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    assert len(stream.given) > 2 * steps  # each step needs coins and noise, and the workers a seed
    assert shared(stream) == 0


@pytest.mark.parametrize("adaptive", [None, federated.AdaptiveClip(0.6, 0.3)], ids=["fixed clip", "adaptive clip"])
def test_draws_and_noises_of_federated_rounds_share_no_random_word(adaptive):
    budgets = sartor.Budgets(np.repeat([1.0, 2.0], 40), delta=1e-3)
    plan = federated.plan(budgets, "sample", rounds=8, per_round=20, clip=0.8, accountant="rdp", adaptive=adaptive)
    stream = Noting(seed=7)
    sampler = PoissonSampler(plan.accounted, budgets, stream)
    for step in range(8):
        current = Round(plan, sampler.draw(step), MODEL, plan.accounted.clip)
        for client in current.drawn:
            current.add(client, MODEL)
        current.release(stream)
    assert len(stream.given) == (2 if adaptive is None else 3) * 8
    assert shared(stream) == 0
