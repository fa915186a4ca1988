"""An ensemble in a folder, aggregated again and again and by several processes at once; checks that are also run on faulty code."""

import contextlib
import io

import numpy as np
import torch
from torch.utils.data import TensorDataset

import sartor
from sartor.errors import SartorError
from sartor.pate.build import plan
from sartor.pate.folder import EnsembleFolder
from sartor.pate.partition import partition
from sartor.pate.plan import GNMax
from sartor.run.stream import Stream
from sartor_testing.ensembles import holders_within_budget, random_votes
from sartor_testing.forks import in_a_fork

PEOPLE = sartor.Budgets.from_groups([(1.0, 50), (2.0, 30), (4.0, 20)], delta=1e-5)

OWNERS = sartor.Ownership(np.random.default_rng(5).permutation(np.repeat(np.arange(100), np.arange(100) % 3 + 1)), 100)
SHUFFLED = sartor.Ownership(np.random.default_rng(6).permutation(100), 100)
RECORDS = TensorDataset(torch.arange(len(OWNERS)).float()[:, None], torch.zeros(len(OWNERS), dtype=torch.int64))


def saved(path, variant="weight", queries=200, noise=30.0):
    """Votes in a folder that nothing was made of."""
    found = plan(PEOPLE, variant, teachers=10, aggregator=GNMax(noise=noise))
    made = EnsembleFolder.create(path, found, PEOPLE)
    made.put(random_votes(queries, found.teachers, 3, 1)[0], 3)
    return made


def all_aggregations_keep_the_budgets(path, variant="weight"):
    """Whether many aggregations of one folder, each by a reader of its own, together keep everyone's budget, and some were had."""
    made = saved(path, variant)
    found = [EnsembleFolder(path).aggregate(labels=1 + i % 5, further=True, stream=Stream(seed=i)) for i in range(12)]
    found += [made.aggregate(further=True, stream=Stream(seed=100 + i)) for i in range(3)]
    return len(found[0]) > 0 and holders_within_budget(PEOPLE, made.plan, found)


def aggregations_at_once(path, processes=4, each=10):
    """What several processes got that aggregate the same file at once."""

    def work():
        content, own, arrays = io.BytesIO(), None, {}
        for i in range(each):
            while True:
                with contextlib.suppress(SartorError):  # without a lock another process may come first: nothing is handed out then
                    own = own or EnsembleFolder(path)
                    found = own.aggregate(labels=2, further=True)
                    break
            arrays |= {f"{i}asked": found.asked, f"{i}answered": found.answered, f"{i}weights": found.weights}
        np.savez(content, **arrays)
        return content.getvalue()

    found = []
    for waiting in [in_a_fork(work) for _ in range(processes)]:
        code, content = waiting()
        assert code == 0
        with np.load(io.BytesIO(content)) as arrays:
            found += [Transcript(*(arrays[f"{i}{what}"] for what in ("asked", "answered", "weights"))) for i in range(each)]
    return found


class Transcript:
    """The released part of a voting."""

    def __init__(self, asked, answered, weights):
        self.asked, self.answered, self.weights = asked, answered, weights


class Listening:
    """Teachers that note the records which they are given, all vote for class 0, and may stop half-way."""

    seed = 1

    def __init__(self, stop=None):
        self.heard, self.stop = {}, stop

    def settings(self, dataset, queries):
        return {}

    def taught(self, dataset, slices, queries, seed, done=()):
        for number in (number for number in range(len(slices)) if number not in done):
            if number == self.stop:
                raise InterruptedError
            self.heard[number] = slices[number].tolist()
            yield number, np.zeros(len(queries), np.int16), {}


def an_ensemble_goes_on_with_its_ownership(path, owners=OWNERS):
    """Whether a folder that is opened again knows whose each record is, teaches the rest by it, and refuses to go on by another."""
    found = plan(PEOPLE, "upsample", teachers=10, aggregator=GNMax(noise=30.0))
    first, second, queries = Listening(stop=6), Listening(), torch.zeros(5, 1)
    records = TensorDataset(*(tensor[: len(owners)] for tensor in RECORDS.tensors))
    try:
        with contextlib.suppress(InterruptedError):
            EnsembleFolder.create(path, found, PEOPLE, ownership=owners, key=b"key").teach(first, records, queries, 3)
        back = EnsembleFolder(path)
        back.teach(second, records, queries, 3)
        back.check_same(found, PEOPLE, owners)
    except SartorError:
        return False
    for other in (None, sartor.Ownership(owners.of_record[::-1], 100)):
        with contextlib.suppress(SartorError):
            back.check_same(found, PEOPLE, other)
            return False
    expected = partition(found, PEOPLE, b"key", ownership=owners).slices()
    return back.ownership == owners and {**first.heard, **second.heard} == {n: rows.tolist() for n, rows in enumerate(expected)}
