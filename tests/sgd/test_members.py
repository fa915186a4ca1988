"""One model for each round: trained by the plan's own steps, from the same beginning, and averaged by public weights."""

import copy

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn
from torch.utils.data import TensorDataset

import sartor
from sartor.plans.rounds import weights
from sartor.run import sampling
from sartor.run.sampling import PoissonSampler
from sartor.sgd import Average, Evaluation, Stream, fit_members

BUDGETS = sartor.Budgets.from_groups([(1.0, 100), (4.0, 100)], delta=1e-3)


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(200, 4, generator=generator)
    return TensorDataset(inputs, (inputs[:, 0] > 0).long())


def plan(scheme="adapdp", steps=30):
    return sartor.plan(BUDGETS, scheme, steps=steps, batch=40, threshold=[1.5, 4.0], accountant="rdp")


def test_members_begin_alike_and_the_account_is_that_of_the_whole_plan():
    model, seen = nn.Linear(4, 2), []
    begin = copy.deepcopy(model.state_dict())
    made = plan()
    ends = [made.stages[0].steps, made.steps]

    def look(progress):
        seen.append(progress.model.weight.detach().clone())

    def note(progress):
        if progress.step == ends[0] + 1:  # the first step of the second member leads away from the beginning, not from the first member
            moved, from_first = (progress.model.weight - begin["weight"]).norm(), (progress.model.weight - seen[ends[0] - 1]).norm()
            assert moved < from_first

    result = fit_members(model, data(), BUDGETS, made, lr=0.5, momentum=0.9, callbacks=[look, note], progress=False, seed=1)
    assert isinstance(result.model, Average)
    assert len(result.model.members) == 2
    for member, end in zip(result.model.members, ends, strict=True):
        assert torch.equal(member.weight, seen[end - 1])
    torch.testing.assert_close(result.model.weights.double(), torch.tensor(weights(made)), rtol=1e-6, atol=1e-7)
    assert result.account.steps == made.steps
    assert result.account.spent.tolist() == made.spent.tolist()


def test_the_average_is_evaluated_on_public_data():
    result = fit_members(nn.Linear(4, 2), data(), BUDGETS, plan(), lr=0.5, progress=False, evaluation=Evaluation(public=public()))
    assert 0 <= result.accuracy <= 1
    assert len(result.history) == 1


def public() -> TensorDataset:
    inputs = torch.randn(50, 4, generator=torch.Generator().manual_seed(7))
    return TensorDataset(inputs, (inputs[:, 0] > 0).long())


def test_one_model_is_not_trained_by_a_plan_of_several():
    model, made = nn.Linear(4, 2), plan()
    for _ in range(2):
        with pytest.raises(sartor.SartorError, match="fit_members"):
            sartor.fit(model, data(), BUDGETS, made, progress=False)
        with pytest.raises(sartor.SartorError, match="fit_members"):
            sartor.make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), data(), BUDGETS, made)
        with pytest.raises(sartor.SartorError, match="learning rate"):
            fit_members(model, data(), BUDGETS, made, lr=-1.0, progress=False)  # what fails in between leaves no door open
    sartor.fit(model, data(), BUDGETS, plan("rounds", steps=2), progress=False)


def test_what_cannot_be_is_refused(tmp_path):
    with pytest.raises(sartor.SartorError, match="no rounds"):
        fit_members(nn.Linear(4, 2), data(), BUDGETS, sartor.plan(BUDGETS, steps=3, batch=10, accountant="rdp"))
    with pytest.raises(sartor.SartorError, match="cannot be resumed"):
        fit_members(nn.Linear(4, 2), data(), BUDGETS, plan(), checkpoints=sartor.Checkpoints(tmp_path))
    with pytest.raises(sartor.SartorError, match="weight"):
        Average([nn.Linear(1, 2)], [0.0])
    for wrong, reason in (
        ({"evaluation": Evaluation(data())}, "public= holds records"),
        ({"evaluation": public()}, "sartor.Evaluation"),
        ({"evaluation": Evaluation(public(), every=2)}, "evaluated then"),
        ({"evaluation": Evaluation(sensitive=True)}, "evaluated then"),
        ({"scheduler": lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1)}, "a scheduler would not"),
    ):
        model = nn.Linear(4, 2)
        before = model.weight.detach().clone()
        with pytest.raises(sartor.SartorError, match=reason):
            fit_members(model, data(), BUDGETS, plan(), progress=False, **wrong)
        assert torch.equal(model.weight, before)
    with pytest.raises(sartor.SartorError, match="plan of rounds"):
        fit_members(nn.Linear(4, 2), data(), BUDGETS, None)


@pytest.mark.parametrize("seed", [5, None])
def test_a_run_that_goes_on_in_a_round_keeps_the_coins_that_fell(tmp_path, monkeypatch, seed):
    """Coins that were tossed again in the middle of a round would let in more people than the round's probability says."""
    made = plan("rounds")
    round_of = np.searchsorted(np.cumsum([stage.steps for stage in made.stages]), np.arange(made.steps), side="right")
    fell = {}
    tossed = sampling._Coins._tossed

    def noted(self, stage):
        found = tossed(self, stage)
        fell.setdefault(stage, []).append(found[0].copy())
        return found

    monkeypatch.setattr(sampling._Coins, "_tossed", noted)

    def stop(progress):
        if progress.step == 20:
            raise KeyError

    def train(**others):
        kept = sartor.Checkpoints(tmp_path, every=3, resume=others.pop("resume", False))
        return sartor.fit(nn.Linear(4, 2), data(), BUDGETS, made, lr=0.5, seed=seed, progress=False, checkpoints=kept, **others)

    with pytest.raises(KeyError):
        train(callbacks=[stop])
    before = {stage: len(coins) for stage, coins in fell.items()}
    account = train(resume=True).account
    assert account.charged == made.steps
    assert 0 < round_of[20] == round_of[21], "the stop is within a round"
    assert len(fell[round_of[20]]) > before[round_of[20]]
    for coins in fell.values():
        assert all(np.array_equal(coins[0], other) for other in coins)


def test_the_coins_of_two_streams_of_one_seed_are_the_same_and_fall_as_planned():
    made = plan("rounds", steps=400)
    samplers = [PoissonSampler(made, BUDGETS, Stream(seed=9)) for _ in range(2)]
    first = made.stages[0]
    inside = [set(), set()]
    for step in range(first.steps):
        for found, sampler in zip(inside, samplers, strict=True):
            found.update(sampler.draw(step).indices.tolist())
    assert inside[0] == inside[1]
    strict = sum(holder < 100 for holder in inside[0])
    chance = float(first.inclusion[0]) * (1 - (1 - float(first.rate[0])) ** first.steps)
    assert stats.binomtest(strict, 100, chance).pvalue > 1e-4
