"""Small private runs in which norms are tracked, and the slow and obvious way to do the same."""

import functools
import math
import warnings

import torch
from torch.nn import functional

import sartor
from sartor.run.sampling import PoissonSampler
from sartor.sgd import Stream
from sartor_testing.private_runs import flat, net, people, records

CLIP = 2.0  # about what norms are, so that every rung is used
STEPS, REFRESH, FULL = 14, 3, 7


@functools.cache
def filtered(scheme: str = "scale", *, steps: int = STEPS, refresh: int = REFRESH, full_steps: int = FULL, **asked) -> sartor.Plan:
    """A plan under which some rest before the end, whatever their norms are."""
    usual = {"filter": "ladder", "refresh": refresh, "full_steps": full_steps, "ladder": (1, 2, 4)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sartor.Unspent)  # short runs, whose stretches do not divide them
        return sartor.plan(people(), scheme, steps=steps, batch=20, clip=CLIP, **{**usual, **asked})


def gradient(model, holder: int) -> torch.Tensor:
    """A holder's gradient, one record alone."""
    inputs, targets = records().tensors
    loss = functional.cross_entropy(model(inputs[holder : holder + 1]), targets[holder : holder + 1])
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))]).double()


def groups(plan: sartor.Plan) -> list[int]:
    """The group of each holder, by their epsilon."""
    place = {epsilon: i for i, epsilon in enumerate(plan.epsilon.tolist())}
    return [place[epsilon] for epsilon in people().epsilon.tolist()]


class ByHand:
    """A run of a filter, holder by holder: everybody's norms, rungs and units before each stretch, then its steps."""

    def __init__(self, plan: sartor.Plan, seed: int, lr: float = 0.5) -> None:
        self.plan, self.lr, self.stream, self.model = plan, lr, Stream(seed), net()
        self.group = groups(plan)
        assert plan.filter is not None
        self.left = [int(plan.filter.units[g]) for g in self.group]
        self.rungs: list[list[float]] = []
        sampler = PoissonSampler(plan, people(), self.stream, filtered=True)
        for step in range(plan.steps):
            if step % plan.filter.refresh == 0:
                self.rungs.append([self._rung(holder) for holder in range(len(self.group))])
            self._step(step, sampler.draw(step).indices.tolist())

    def _rung(self, holder: int) -> float:
        """The rung of a holder for the next stretch; it is paid for here."""
        plan, group = self.plan, self.group[holder]
        norm = float(gradient(self.model, holder).norm()) / float(plan.clips[group])
        ladder = list(zip(plan.filter.rungs[group].tolist(), plan.filter.costs[group].tolist(), strict=True))
        covering = [rung for rung, _ in ladder if rung >= norm] or [1.0]
        for rung, cost in reversed(ladder):
            if rung <= covering[0] and cost <= self.left[holder]:
                self.left[holder] -= cost
                return rung
        return 0.0

    def _step(self, step: int, drawn: list[int]) -> None:
        plan, parameters = self.plan, list(self.model.parameters())
        total = torch.zeros(sum(p.numel() for p in parameters), dtype=torch.float64)
        for holder in drawn:
            clip = self.rungs[-1][holder] * float(plan.clips[self.group[holder]])
            own = gradient(self.model, holder)
            total += own * min(1.0, clip / float(own.norm()))
        total += torch.from_numpy(self.stream.generator("noise", step).standard_normal(len(total)) * plan.noise)
        with torch.no_grad():
            for parameter, change in zip(parameters, (total / plan.batch).split([p.numel() for p in parameters]), strict=True):
                parameter -= self.lr * change.view(parameter.shape).float()


def difference_from_by_hand(plan: sartor.Plan, seed: int = 5, **settings) -> float:
    """The largest difference in any parameter at the end; infinite where units or rungs differ."""
    by_hand = ByHand(plan, seed)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    made = sartor.make_private(model, optimizer, records(), people(), plan, seed=seed, loss=functional.cross_entropy, **settings)
    model, private, loader = made
    for inputs, targets in loader:
        private.zero_grad()
        functional.cross_entropy(model(inputs), targets).backward()
        private.step()
    stretches = loader.draws.stretches
    assert stretches is not None
    left = stretches.state()[1]["left"].tolist()
    if left != by_hand.left or stretches.state()[1]["fraction"].tolist() != by_hand.rungs[-1]:
        return math.inf
    return float((flat(model) - flat(by_hand.model)).abs().max())
