"""Data sets and collate functions that have random generators of their own: batches follow the run's stream alone."""

import functools
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, default_collate

import sartor
from sartor.sgd.generators import own, repeatable

SIZE, WIDTH = 80, 4
torch.manual_seed(0)
INPUTS, TARGETS = torch.randn(SIZE, WIDTH), torch.randint(0, 2, (SIZE,))
LENGTHS = torch.randint(3, 12, (SIZE,))
OF_THE_MODULE = np.random.default_rng(0)

KINDS = {
    "Generator": lambda: np.random.default_rng(0),
    "RandomState": lambda: np.random.RandomState(0),
    "torch": lambda: torch.Generator().manual_seed(0),
    "python": lambda: random.Random(0),
}


def normal(generator):
    if isinstance(generator, torch.Generator):
        return torch.randn(WIDTH, generator=generator)
    if isinstance(generator, random.Random):
        return torch.tensor([generator.gauss(0, 1) for _ in range(WIDTH)])
    return torch.from_numpy(generator.standard_normal(WIDTH)).float()


class Noisy(Dataset):
    """Records with noise from a generator of its own, deep in an attribute."""

    def __init__(self, kind="Generator"):
        self.noise = {"from": [KINDS[kind]()]}

    def __len__(self):
        return SIZE

    def __getitem__(self, i):
        return INPUTS[i] + normal(self.noise["from"][0]), TARGETS[i]


class MadeOnFirstUse(Noisy):
    made = None

    def __getitem__(self, i):
        if self.made is None:
            self.made = np.random.default_rng()
        return INPUTS[i] + normal(self.made), TARGETS[i]


class OfTheModule(Noisy):
    def __getitem__(self, i):
        return INPUTS[i] + normal(OF_THE_MODULE), TARGETS[i]


class DropsWords(Noisy):
    """Texts of several lengths, of which words are left out."""

    def __getitem__(self, i):
        length = int(LENGTHS[i])
        words = torch.arange(1.0, length + 1)
        kept = torch.from_numpy(self.noise["from"][0].random(length)) > 0.1
        return torch.nn.functional.pad(words * kept, (0, 12 - length)), TARGETS[i]


class RunningMean:
    """Takes the mean of earlier batches off."""

    mean = None

    def __call__(self, items):
        inputs, targets = default_collate(items)
        mean, self.mean = self.mean, inputs.mean(0)
        return (inputs if mean is None else inputs - mean), targets


def budgets_and_plan(steps):
    budgets = sartor.Budgets.from_groups([(4.0, SIZE)], delta=1e-3)
    return budgets, sartor.plan(budgets, "uniform", steps=steps, batch=20, clip=1.0)


def fit(data, steps=4, width=WIDTH, **options):
    torch.manual_seed(0)
    return sartor.fit(nn.Linear(width, 2), data, *budgets_and_plan(steps), lr=0.5, progress=False, **options)


@pytest.mark.parametrize("kind", KINDS)
def test_a_generator_of_any_kind_follows_the_seed_and_goes_on_as_if_nothing_had_been(kind):
    data = Noisy(kind)
    untouched = normal(KINDS[kind]())
    first, second, other = (repeatable(seed, lambda: data[0][0], data) for seed in (1, 1, 2))
    assert torch.equal(first, second)
    assert not torch.equal(first, other)
    assert torch.equal(normal(data.noise["from"][0]), untouched)


def test_generators_are_found_in_closures_globals_and_one_for_each_record():
    rng = np.random.default_rng(0)
    assert own(lambda items: rng.random()) == [rng]
    assert OF_THE_MODULE in own(OfTheModule())
    many = [np.random.default_rng(i) for i in range(500)]
    assert len(own({"each": many})) == 500


@pytest.mark.parametrize("bound", [lambda rng: functools.partial(normal, rng), lambda rng: functools.partial(normal, generator=rng)])
def test_a_generator_is_found_in_a_partial_by_place_and_by_name(bound):
    rng = np.random.default_rng(0)
    assert own(bound(rng)) == [rng]


@pytest.mark.few(2)
@pytest.mark.parametrize("data", [Noisy, MadeOnFirstUse, OfTheModule])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_run_that_resumes_repeats_the_same_batches(data, workers, tmp_path):
    class Killed(BaseException):
        pass

    def stop(progress):
        if progress.step == 3:
            raise Killed

    def run(**options):
        return fit(data(), steps=6, seed=5, execution=sartor.Execution(workers=workers), **options)

    whole = run()
    with pytest.raises(Killed):
        run(checkpoints=sartor.Checkpoints(tmp_path / "run", every=2), callbacks=[stop])
    resumed = run(checkpoints=sartor.Checkpoints(tmp_path / "run", resume=True))
    for one, two in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(one, two)


def test_words_that_are_dropped_by_a_generator_of_its_own_are_not_mixing():
    assert fit(DropsWords(), width=12).steps == 4


@pytest.mark.parametrize("kind", KINDS)
def test_a_collate_function_that_remembers_is_seen_behind_a_generator_of_the_data_sets_own(kind):
    with pytest.raises(sartor.SartorError, match="not the same alone"):
        fit(Noisy(kind), steps=60, collate=RunningMean())
