"""Canary gradients: extra holders in a run of SGD, each with a direction of its own, and how well they can be found in what it releases.

A run is made as ever by `sartor.make_private`, with a seed. `plant` adds canaries to its population, in the groups of the plan, at the
rates and clips that the plan has: nothing is planned anew. The library's own sampler draws them with everybody else, its filter gives them
rungs as it does to whoever has gradients of full norm, and what is drawn adds its direction, as long as the draw's clip, to the sum
before the run puts noise on it. So a fault in coins, groups, clips, rungs or noise is a fault to canaries, too.

Each canary takes part or not by a fair coin: one that does not is drawn all the same and adds nothing, which is the neighbouring relation
of plans. White box, canaries are scored by the noisy sums, less what real holders have in them: whoever attacks one holder may know all
others. Black box, by the model at the end and at the beginning alone.

Guarantee: if the run is what its plan describes, white-box scores of canaries at right angles are independent, so that bounds for
    independent scores hold (`evidence`). `one_run_bound` needs the coins alone, which are the canaries' own, whatever the
    run does; of canaries that are not at right angles, and of black-box scores, these are what holds. `Found.bounds` are those for
    white-box scores.
Breaks if: a run is chosen, or ended, by what canaries show.
Not seen: how real gradients are formed and clipped, which replay looks at.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import Dataset

from sartor.audit.directions import MOST, Directions
from sartor.audit.evidence import Evidence
from sartor.audit.findings import AS_PLANNED, ONE_RUN, Kind
from sartor.audit.scores import Scores
from sartor.budgets import Budgets
from sartor.errors import SartorError
from sartor.immutable import immutable
from sartor.plans import Plan
from sartor.run.sampling import Draw, PoissonSampler
from sartor.sgd.loader import PrivateLoader
from sartor.sgd.loss import Loss
from sartor.sgd.norms import Norms
from sartor.sgd.one_model import begun_anew
from sartor.sgd.optimizer import PrivateOptimizer, make
from sartor.sgd.private import make_private, unwrap
from sartor.sgd.stretches import Stretches

Array = NDArray[np.float64]
Indices = NDArray[np.intp]
MOST_RUNS = 20
"""Runs over which canaries are spread at most."""

Loop = Callable[[nn.Module, PrivateOptimizer, PrivateLoader], object]
"""A user's training loop: from what `make_private` returns to the end of the run."""


@dataclass(frozen=True, eq=False)
class Found:
    """Of each canary its group, whether it took part, and its scores: by all noisy sums (white box) and by the last model (black box).

    `independent` says whether white-box scores are, in a run that is what its plan describes.
    """

    group: Indices = field(repr=False)
    included: NDArray[np.bool_] = field(repr=False)
    white: Array = field(repr=False)
    black: Array = field(repr=False)
    independent: bool = False

    def __post_init__(self) -> None:
        for name, kind in {"group": np.intp, "included": np.bool_, "white": np.float64, "black": np.float64}.items():
            object.__setattr__(self, name, immutable(getattr(self, name), kind))

    @property
    def white_box(self) -> dict[int, Scores]:
        """White-box scores, by group."""
        return self._by_group(self.white)

    @property
    def bounds(self) -> tuple[Kind, ...]:
        """The kinds of bounds that hold for white-box scores."""
        return AS_PLANNED if self.independent else ONE_RUN

    @property
    def black_box(self) -> dict[int, Scores]:
        """Black-box scores, by group."""
        return self._by_group(self.black)

    def _by_group(self, scores: Array) -> dict[int, Scores]:
        of = {int(group): self.group == group for group in np.unique(self.group)}
        return {group: Scores(scores[own & self.included], scores[own & ~self.included]) for group, own in of.items()}

    def __len__(self) -> int:
        return len(self.group)

    def __repr__(self) -> str:
        return f"Found({len(self)} canaries in {len(np.unique(self.group))} groups)"


@dataclass(frozen=True, eq=False)
class Flock:
    """The canaries of an audit: the group of each in a plan, whether its coin lets it take part, and its direction in a model's space."""

    group: Indices = field(repr=False)
    included: NDArray[np.bool_] = field(repr=False)
    directions: Directions

    @classmethod
    def of(cls, group: NDArray[np.integer], model: nn.Module, seed: int) -> Flock:
        """Canaries in these groups for all that is trained of a model, with fair coins."""
        return cls.in_space(group, _sizes(model), seed)

    @classmethod
    def in_space(cls, group: NDArray[np.integer], sizes: Sequence[int], seed: int) -> Flock:
        """Canaries in these groups, with fair coins, in the space of arrays of these sizes."""
        coins = np.random.default_rng([seed, 1]).random(len(group))
        return cls(immutable(group, np.intp), immutable(coins < 0.5, np.bool_), Directions(sizes, len(group), seed))

    def found(self, evidence: Array, moved: Sequence[Array]) -> Found:
        """The canaries, scored by the evidence of all sums and by how far the model moved."""
        return Found(self.group, self.included, evidence, towards(self.directions, moved), self.directions.at_right_angles)

    def __len__(self) -> int:
        return len(self.group)


def spread(plan: Plan, canaries: int) -> Indices:
    """A group for each of so many canaries: those with a finite epsilon in turn, for others make no claim that could be refuted."""
    claims = np.flatnonzero(np.isfinite(plan.epsilon))
    if not len(claims) or not plan.protects:
        raise SartorError("this plan promises nothing to anybody, so there is nothing that canaries could refute.")
    if not isinstance(canaries, int) or isinstance(canaries, bool) or canaries < len(claims):
        raise SartorError(f"there must be a canary for each of the {len(claims)} groups at least, not {canaries!r} in all.")
    return np.asarray(np.sort(np.resize(claims, canaries)), np.intp)


def extended(plan: Plan, budgets: Budgets, group: NDArray[np.integer]) -> tuple[Plan, Budgets]:
    """The plan and the budgets with extra holders in these groups, behind the others; rates, clips and noise stay as they are."""
    more = np.bincount(group, minlength=len(plan))
    people = Budgets(
        np.concatenate([budgets.epsilon, plan.epsilon[group]]),
        delta=np.concatenate([budgets.delta, plan.delta[group]]),
        reserve=budgets.reserve,
    )
    records = None if plan.records is None else plan.records + len(group)
    return replace(plan, holders=plan.holders + more, records=records), people


class Planted:
    """Canaries in a run under way. Made by `plant`; `found` tells what its releases say of them."""

    def __init__(self, loader: PrivateLoader, budgets: Budgets, flock: Flock, enrolled: NDArray[np.integer] | None = None) -> None:
        """`enrolled` are those canaries that the run counts among its holders; all of them, unless given."""
        run = loader.run
        if not run.stream.seeded:
            raise SartorError("canaries are for seeded runs alone: a run that is to be private keeps its coins to itself.")
        if run.steps or "_noisy" in vars(run):
            raise SartorError("canaries are planted once, before the first step of a run.")
        if tuple(p.numel() for p in run.engine.parameters.values()) != flock.directions.sizes:
            raise SartorError("these canaries are of another model: its arrays have other sizes.")
        self._flock, self._run, self._first = flock, run, len(budgets)
        self._enrolled: Indices = np.arange(len(flock)) if enrolled is None else np.asarray(enrolled, np.intp)
        self._evidence = Evidence(run.plan, flock.group, flock.directions.blocks)
        self._drawn: dict[int, Draw] = {}
        self._begin = self._parameters()
        self._enrol(loader, budgets)
        run._noisy = self._noisy  # type: ignore[method-assign]

    def _enrol(self, loader: PrivateLoader, budgets: Budgets) -> None:
        """Have the run's sampler, and its stretches where norms are tracked, count canaries among the holders."""
        draws, tracked = loader.draws, loader.draws.stretches
        plan, people = extended(self._run.plan, budgets, self._flock.group[self._enrolled])
        sampler = PoissonSampler(plan, people, self._run.stream, filtered=tracked is not None)
        stretches = None
        if tracked is None:
            draw = sampler.draw
            sampler.draw = lambda step: self._real(draw(step))  # type: ignore[method-assign]
        else:
            stretches = Stretches(plan, people, *tracked.way, self._norms_of(tracked))
            within = stretches.within
            stretches.within = lambda draw: self._real(within(draw))  # type: ignore[method-assign]
            self._widen(tracked._norms, stretches)
        loader.draws = replace(draws, sampler=sampler, stretches=stretches)

    def _norms_of(self, tracked: Stretches) -> Callable[[int, int], Array]:
        """Norms of everybody: of real holders as they are tracked, of canaries always above their clip."""
        return lambda holders, step: np.append(tracked._norms(self._first, step), np.full(holders - self._first, np.inf))

    def _widen(self, norms: object, stretches: Stretches) -> None:
        """Real holders' norms are looked at without canaries', and what is unsure is decided with them."""
        if isinstance(norms, Norms):
            beyond = np.full(len(self._enrolled), np.inf)
            norms.unsure = lambda found: stretches.unsure(np.append(found, beyond))[: self._first]

    def _real(self, draw: Draw) -> Draw:
        """The real holders of a draw; canaries among them are kept for the step."""
        own = draw.indices >= self._first
        self._drawn[draw.step] = Draw(draw.step, self._enrolled[draw.indices[own] - self._first], draw.clips[own])
        return Draw(draw.step, draw.indices[~own], draw.clips[~own])

    def _noisy(self, sums: dict[str, Tensor], step: int) -> dict[str, Tensor]:
        """What the run makes of the sums with the canaries' directions in them."""
        released = type(self._run)._noisy(self._run, self._laden(sums, step), step)
        self._look(sums, released, step)
        return released

    def _laden(self, sums: dict[str, Tensor], step: int) -> dict[str, Tensor]:
        draw = self._drawn.pop(step)
        there = self._flock.included[draw.indices]
        if not there.any():
            return sums
        parts = self._flock.directions.summed(draw.indices[there], draw.clips[there])
        found = {}
        for (name, value), part, places in zip(sums.items(), parts, self._flock.directions.places, strict=True):
            laden = value.clone().view(-1)
            laden[torch.from_numpy(places)] += torch.from_numpy(part).to(laden.dtype)
            found[name] = laden.view(value.shape)
        return found

    def _look(self, sums: dict[str, Tensor], released: dict[str, Tensor], step: int) -> None:
        """Note what a step's release says: the noisy sum, less that of real holders."""
        batch, directions = self._run.plan.batch, self._flock.directions
        rest = [(released[name].double() * batch - value.double()).cpu().numpy() for name, value in sums.items()]
        parts = directions.at(rest)
        self._evidence.add(step, directions.dots(parts), np.array([float(part @ part) for part in parts]))

    def _parameters(self) -> list[Array]:
        return self._flock.directions.at([value.detach().cpu().double().numpy() for value in self._run.engine.parameters.values()])

    @property
    def evidence(self) -> Array:
        """The log likelihood ratio of each canary, from the steps taken so far."""
        return self._evidence.total

    @property
    def moved(self) -> list[Array]:
        """How far the model has moved against its gradients, at the coordinates of directions."""
        return [begin - end for begin, end in zip(self._begin, self._parameters(), strict=True)]

    def found(self) -> Found:
        """The canaries and their scores, from the steps taken so far and the model as it is."""
        return self._flock.found(self.evidence, self.moved)


def together(found: Sequence[Found]) -> Found:
    """The canaries of several runs as those of one: where few can be in a run, as they would hide each other, many runs make many."""
    if not found:
        raise SartorError("there is no run whose canaries could be taken together.")
    group, included = (np.concatenate([getattr(one, name) for one in found]) for name in ("group", "included"))
    white, black = (np.concatenate([getattr(one, name) for one in found]) for name in ("white", "black"))
    return Found(group, included, white, black, all(one.independent for one in found))


def towards(directions: Directions, moved: Sequence[Array]) -> Array:
    """How far a model has moved along each direction; arrays that moved more, by learning or by noise, count as much less."""
    squares = np.array([float(part @ part) for part in moved])
    with np.errstate(divide="ignore"):
        precision = np.where(squares > 0, directions.blocks / squares, 0.0)
    largest = precision.max()
    return np.asarray(directions.dots(moved) @ (precision / largest)) if largest > 0 else np.zeros(directions.count)


def plant(loader: PrivateLoader, budgets: Budgets, *, canaries: int, seed: int) -> Planted:
    """Plant canaries, so many in all, into a seeded run that was just made; then train as ever, and ask for what was `found`.

    >>> import sartor, torch
    >>> data = torch.utils.data.TensorDataset(torch.randn(200, 4), torch.randint(0, 2, (200,)))
    >>> budgets = sartor.Budgets.from_groups([(1.0, 100), (4.0, 100)], delta=1e-3)
    >>> model = torch.nn.Linear(4, 2)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> model, optimizer, loader = sartor.make_private(
    ...     model, optimizer, data, budgets, sartor.plan(budgets, steps=3, batch=20), seed=1)
    >>> planted = plant(loader, budgets, canaries=100, seed=1)
    >>> for x, y in loader:
    ...     optimizer.zero_grad()
    ...     torch.nn.functional.cross_entropy(model(x), y).backward()
    ...     optimizer.step()
    >>> planted.found()
    Found(100 canaries in 2 groups)
    """
    return Planted(loader, budgets, Flock.of(spread(loader.run.plan, canaries), loader.run.engine.model, seed))


def canary_attack(
    make_model: Callable[[], nn.Module],
    dataset: Dataset[Any],
    budgets: Budgets,
    plan: Plan,
    *,
    canaries: int = 1000,
    seed: int = 0,
    lr: float = 0.1,
    optimizer: str | Callable[[Any], Optimizer] = "sgd",
    momentum: float = 0.0,
    loss: Callable[[Any, Any], Tensor] | None = None,
    loop: Loop | None = None,
    **private: Any,
) -> Found:
    """Train a new model under the plan with canaries in it, in a fresh seeded run, and find what its releases say of them.

    More canaries than can be at right angles in the model's space are spread over several such runs, `MOST_RUNS` at most.
    Optimizer and loss are as in `sartor.fit`; `loop` is a user's own, instead of the usual one. Where a plan has a model for each round
    (`adapdp`), one goes through all of them, so black-box scores are of no model that such a run releases. Other arguments are those of
    `sartor.make_private` (`ownership`, `collate`, `max_physical_batch`; `reduction` of a loop of one's own).
    """
    settings = private if loop is not None else {"reduction": "sum", **private}
    measure = Loss(loss)
    tracked = measure if plan.filter is not None or private.get("tracking") is not None else None
    everybody = spread(plan, canaries)

    def run(group: Indices, seed: int) -> Found:
        torch.manual_seed(seed)
        model = make_model()
        inner = make(optimizer, [p for p in model.parameters() if p.requires_grad], lr=lr, momentum=momentum)
        with begun_anew():  # of a plan of several models as well: the sums that canaries are scored by follow draws, not models
            model, stepper, loader = make_private(
                model, inner, dataset, budgets, plan, loss=measure if loop is None else tracked, seed=seed, **settings
            )
        try:
            planted = Planted(loader, budgets, Flock.of(group, loader.run.engine.model, seed))
            model.train()
            (usual_loop(measure) if loop is None else loop)(model, stepper, loader)
            return planted.found()
        finally:
            unwrap(model, stepper)

    if isinstance(make_model, nn.Module) or not callable(make_model):
        raise SartorError("canaries need a new model for every run: give a function that makes one, such as lambda: MyModel().")
    with torch.random.fork_rng(devices=[]):
        return spread_over_runs(run, everybody, _sizes(make_model()), seed)


def _sizes(model: nn.Module) -> list[int]:
    """Those of the arrays that are trained."""
    return [parameter.numel() for parameter in model.parameters() if parameter.requires_grad]


def most_canaries(sizes: Sequence[int]) -> int:
    """How many canaries a model whose arrays have these sizes has room for, at right angles in each of as many runs as there may be."""
    return MOST_RUNS * Directions.room(sizes) or MOST  # of very many arrays, in a space so large that few are far from right angles


def spread_over_runs(run: Callable[[Indices, int], Found], group: Indices, sizes: Sequence[int], seed: int) -> Found:
    """Canaries of these groups in as many runs as it takes for them to be at right angles.

    `run` makes one, from the groups of its canaries and a seed.
    """
    most, room = most_canaries(sizes), Directions.room(sizes)
    if len(group) > most:
        raise SartorError(
            f"{len(group):,} canaries would hide each other in a model with room for {room} in a run: plant {most} or fewer, "
            f"which are spread over {MOST_RUNS} runs."
        )
    runs = -(-len(group) // room) if room else 1
    if runs == 1:
        return run(group, seed)
    seeds = np.random.SeedSequence(seed).generate_state(runs)
    return together([run(group[number::runs], int(own)) for number, own in enumerate(seeds)])


def usual_loop(measure: Loss) -> Loop:
    """All steps of a run on pairs of input and target."""

    def loop(model: nn.Module, optimizer: PrivateOptimizer, loader: PrivateLoader) -> None:
        for inputs, targets in loader:
            optimizer.zero_grad()
            measure(model(inputs), targets).sum().backward()
            optimizer.step()

    return loop
