"""Small runs to replay: networks, people with loud gradients, plans, and loops in which nothing is checked but by the replay."""

import contextlib
import functools
import tempfile

import numpy as np
import torch
from sklearn.neighbors import KNeighborsClassifier
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import sartor
from mutants.machinery import Catcher
from sartor import pate
from sartor.audit.replay import replay
from sartor.audit.replay_votes import replay_ensemble, replay_votes
from sartor.sgd.run import NotFinite
from sartor_testing import many_records
from sartor_testing import private_runs as runs

STEPS = 6


@functools.cache
def planned(scheme="scale", steps=STEPS, **options):
    return sartor.plan(runs.people(), scheme, steps=steps, batch=20, clip=0.05, **{"accountant": "rdp", **options})


def small(make):
    """A network whose first parameters are always the same."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        return make()


def broad():
    return small(lambda: nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3)))


class Positions(nn.Module):
    """A network on two positions of sixteen numbers each, whose first layer has its norms without gradients being formed."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(16, 16), nn.Linear(16, 3)

    def forward(self, inputs):
        return self.last(torch.tanh(self.first(inputs)).mean(1))


def loud(scale=50.0):
    inputs, targets = runs.records().tensors
    return TensorDataset(inputs * scale, targets)


def sequences(scale=1.0):
    """Two equal positions for each holder, so that the gradients of both add up."""
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(runs.HOLDERS, 1, 16, generator=generator).expand(-1, 2, -1) * scale
    return TensorDataset(inputs.contiguous(), runs.records().tensors[1])


def one_not_finite():
    inputs, targets = loud().tensors
    inputs = inputs.clone()
    inputs[12] = torch.inf
    return TensorDataset(inputs, targets)


def loop(plan, data, seed, make=broad, each=lambda optimizer: None, **settings):
    """A user's own loop with all checks off: what is wrong is left for the replay to find."""
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    settings = {"seed": seed, "check": False, **settings}
    model, optimizer, loader = sartor.make_private(model, optimizer, data, runs.people(), plan, **settings)
    with contextlib.suppress(NotFinite):
        for inputs, targets in loader:
            optimizer.zero_grad()
            functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
            each(optimizer)


def replayed(name, data=loud, plan=planned, train=loop, holders=2, ownership=None, **settings) -> Catcher:
    """A replay of a run under a plan: a fault is seen where it is named."""

    def sees(given):
        plan, records = given

        def fitted(data, seed):
            return train(plan, data, seed, **(settings if ownership is None else {"ownership": ownership(), **settings}))

        found = replay(fitted, records, runs.people(), plan, holders=holders, ownership=ownership() if ownership else None)
        return found.verdict == "refuted"

    return Catcher(name, "replay", sees, lambda: (plan(), data()))


def stopped_and_resumed(plan, data, seed, **settings):
    """A run that is stopped after its third step, and goes on from its checkpoint of the second."""
    settings = {"dataset": data, "seed": seed, "plan": plan, **settings}
    with tempfile.TemporaryDirectory() as folder:
        runs.stopped_at(3, folder, **settings)
        return runs.fitted(checkpoints=sartor.Checkpoints(folder, resume=True), **settings).steps


def votings(variant="weight") -> Catcher:
    """A replay of a voting with a test before every answer."""

    def sees(plan):
        votes = np.random.default_rng(1).integers(5, size=(800, plan.teachers))
        return replay_votes(plan, votes, 5).verdict == "refuted"

    @functools.cache
    def made():
        people = sartor.Budgets.from_shares([3, 1, 2], [0.2, 0.5, 0.3], holders=600, delta=1e-5, seed=1)
        return pate.plan(people, variant, teachers=30, aggregator=pate.Confident(noise=120.0, threshold=8, threshold_noise=150.0))

    return Catcher(f"replay of a voting ({variant})", "replay", sees, made)


@functools.cache
def lenders():
    return sartor.Budgets.from_groups([(1.0, 100), (4.0, 60)], delta=1e-3)


def ensemble() -> Catcher:
    """A replay of an ensemble that is taught again."""

    def sees(plan):
        generator = torch.Generator().manual_seed(1)
        data = TensorDataset(torch.randn(160, 3, generator=generator), torch.randint(0, 3, (160,), generator=generator))
        teachers = pate.EstimatorTeachers(KNeighborsClassifier(1), workers=1, seed=0, progress=False)
        queries = torch.randn(60, 3, generator=generator)
        return replay_ensemble(teachers, data, queries, 3, lenders(), plan, holders=4).verdict == "refuted"

    made = functools.cache(lambda: pate.plan(lenders(), "weight", teachers=8, aggregator=pate.GNMax(noise=20.0)))
    return Catcher("replay of an ensemble", "replay", sees, made)


VOTES, ENSEMBLE = votings(), ensemble()
STEP = replayed("replay of a user's loop")
CUT = replayed("replay of the first steps of a loop", plan=functools.partial(planned, steps=130))
RESUMED = replayed("replay of a run that was stopped and resumed", train=stopped_and_resumed, holders=1)
SEQUENCES = replayed("replay of a loop over sequences", sequences, make=Positions)
QUIET_SEQUENCES = replayed("replay of a loop over sequences, where biases learn most", lambda: sequences(1e-3), make=Positions)
NOT_FINITE = replayed("replay beside a record that is not finite", one_not_finite, holders=[12])
PIECES = replayed("replay of a loop over physical batches", max_physical_batch=5)


def of_owned(name, steps=STEPS, **settings) -> Catcher:
    """A replay of people with several records."""
    data = lambda: TensorDataset(many_records.visits().tensors[0] * 50, many_records.visits().tensors[1])  # noqa: E731
    return replayed(name, data, lambda: many_records.planned(steps=steps, accountant="rdp"), ownership=many_records.owned, **settings)


OWNED = of_owned("replay of people with several records")
OWNED_LONGER = of_owned("replay of a longer loop of people with several records", 40)
OWNED_PIECES = of_owned("replay of people with several records in physical batches", max_physical_batch=3)
QUIETLY_EMPTY = replayed(
    "replay of a loop in which few are drawn",
    plan=functools.cache(lambda: sartor.plan(runs.people(), "scale", steps=20, batch=0.6, clip=0.05, accountant="rdp")),
    holders=4,
)
MANY_STEPS = replayed("replay of a longer loop", plan=lambda: planned("scale", 40), holders=1)
