"""The search for steps and ladders, against a loop over people and steps; and what it must not be given."""

import numpy as np
import pytest
import torch

import sartor
from sartor import Budgets, SartorError
from sartor.individual import search, search_plans
from sartor.individual.costs import Costs
from sartor.individual.readings import Readings
from sartor_testing.amount import most_are_long

BUDGETS = Budgets.from_groups([(1.0, 300), (2.0, 500), (4.0, 200)], delta=1e-4)
RUN = {"full_steps": 40, "refresh": 4, "batch": 50, "accountant": "rdp"}
NORMS = np.random.default_rng(5).lognormal(-1.0, 1.0, size=(3, 40))
LADDERS = [(1, 4), (1, 2, 4)]


@pytest.fixture(autouse=True)
def _plans_are_made_once(monkeypatch):
    monkeypatch.setattr(search, "plan", _made)


def _made(budgets, **asked):
    key = id(budgets), repr(sorted(asked.items()))
    if key not in _known:
        _known[key] = budgets, sartor.plan(budgets, **asked)
    return _known[key][1]


_known = {}


def found(norms=NORMS, budgets=BUDGETS, **asked):
    return search_plans(budgets, norms, **{**RUN, "steps": [60], **asked})


def by_hand(plan, norms):
    """Signal to noise of a run, person by person and step by step; and who of them takes part in the last step."""
    total, active = 0.0, 0.0
    left = {(g, i): int(plan.filter.units[g]) for g in range(len(plan)) for i in range(norms.shape[1])} if plan.filter else {}
    up_to = dict.fromkeys(left, 0.0)
    for step in range(plan.steps):
        look = norms[int(step // RUN["refresh"] * RUN["refresh"] * len(norms) / plan.steps)]
        expected = active = 0.0
        for g in range(len(plan)):
            for i, norm in enumerate(look):
                if plan.filter and step % plan.filter.refresh == 0:
                    rungs, costs = plan.filter.rungs[g] * plan.clips[g], plan.filter.costs[g]
                    paid = [r for r in range(len(rungs)) if costs[r] <= left[g, i]]
                    covering = [r for r in paid if rungs[r] >= norm * plan.clip]
                    rung = covering[0] if covering else paid[-1] if paid else None
                    up_to[g, i] = 0.0 if rung is None else rungs[rung]
                    left[g, i] -= 0 if rung is None else int(costs[rung])
                most = up_to[g, i] if plan.filter else plan.clips[g]
                share = plan.holders[g] / len(look)
                expected += share * plan.rate[g] * min(norm * plan.clip, most)
                active += share * (most > 0) / plan.holders.sum()
        total += (expected / plan.noise) ** 2
    return total, active


@pytest.mark.parametrize("scheme", most_are_long(["scale", "sample", "equal"], 1))
def test_it_is_what_a_loop_over_people_and_steps_finds(scheme):
    one = found(scheme=scheme, steps=[60], clip=0.5).candidates[0]
    made = _made(BUDGETS, **one.arguments)
    plain = sartor.plan(BUDGETS, "uniform" if scheme == "equal" else scheme, steps=40, batch=50, clip=0.5, accountant="rdp")
    worth, active = by_hand(made, NORMS)
    assert one.worth == pytest.approx(worth / by_hand(plain, NORMS)[0], rel=1e-9)
    assert one.active == pytest.approx(active)
    assert 0 < active < 1
    assert one.noise_multiplier == made.noise_multiplier


def test_the_best_comes_first_and_its_arguments_make_its_plan():
    ranked = found(steps=[60, 120], ladders=LADDERS)
    worth = [one.worth for one in ranked.candidates]
    assert len(worth) == 4
    assert worth == sorted(worth, reverse=True)
    assert worth[0] > 1.2
    assert {(one.steps, one.ladder) for one in ranked.candidates} == {(steps, ladder) for steps in (60, 120) for ladder in LADDERS}
    made = _made(BUDGETS, **ranked.best)
    assert (made.steps, made.filter.full_steps, made.filter.refresh) == (ranked.candidates[0].steps, 40, 4)
    assert made.filter.costs[0].tolist() == list(ranked.candidates[0].ladder)


def test_it_prints_as_a_table_with_the_best_on_top():
    ranked = found(ladders=LADDERS)
    lines = str(ranked).splitlines()
    best = next(place for place, line in enumerate(lines) if line.startswith("-----")) + 1
    assert "plan without a filter (40" in lines[0] + lines[1]
    first = ranked.candidates[0]
    assert lines[best].split() == ["60", "1,2,4", f"{first.noise_multiplier:.4g}", "98.5%", f"{first.worth:.4f}"]
    assert len(lines) == best + 2


def test_people_of_full_norm_gain_nothing_and_a_single_rung_brings_nothing():
    full = found(np.full((1, 7), 5.0)).candidates[0]
    assert 0.99 < full.worth <= 1
    assert full.active == 0
    single = found(ladders=[(1,)]).candidates[0]
    assert 0.99 < single.worth < 1.2
    assert single.active == 0


def test_shorter_norms_leave_more_people_active():
    active = [found(NORMS * scale).candidates[0].active for scale in (4.0, 1.0, 0.25, 0.01)]
    assert active == sorted(active)
    assert active[-1] == 1


def test_nothing_follows_the_order_of_people_or_how_many_there_are():
    one = found().candidates[0]
    for other in (NORMS[:, ::-1], np.tile(NORMS, 3)):
        assert found(other).candidates[0].worth == pytest.approx(one.worth, rel=1e-12)


def test_looks_lie_evenly_over_the_run():
    falling = [[2.0], [0.01]]
    assert found(falling, steps=[60]).candidates[0].worth == pytest.approx(
        found([[2.0]] * 5 + [[0.01]] * 5, steps=[60]).candidates[0].worth, rel=1e-12
    )
    assert found(falling).candidates[0].worth != found(falling[::-1]).candidates[0].worth


def test_what_was_tracked_of_protected_people_is_refused():
    budgets = Budgets.from_groups([(1.0, 30)], delta=1e-4)
    plan = sartor.plan(budgets, steps=10, batch=5, accountant="rdp")
    readings = Readings(Costs(plan), budgets, "strict")
    for tracked in (readings, readings.reading(), torch.ones(30), lambda count, step: np.ones(count), budgets, plan, {"norms": [1.0]}):
        with pytest.raises(SartorError, match="spend budget that nobody accounts for"):
            found(tracked)


@pytest.mark.parametrize("wrong", [[], [[]], [-0.1], [np.nan], [np.inf], ["a"], np.ones((1, 1, 1)), [[1.0], [1.0, 2.0]], [0.0, 0.0]])
def test_what_are_no_norms_is_refused(wrong):
    with pytest.raises(SartorError, match="public_norms are"):
        found(wrong)


def test_what_cannot_be_chosen_from_is_refused():
    for asked, sentence in (
        ({"steps": []}, "nothing to choose"),
        ({"ladders": []}, "nothing to choose"),
        ({"steps": [40, 60]}, "more than the 40"),
        ({"ladders": [(4, 1)]}, "ascending"),
        ({"scheme": "sequential"}, "a turn of its own"),
    ):
        with pytest.raises(SartorError, match=sentence):
            found(**asked)
    with pytest.warns(sartor.NoNoise), pytest.raises(SartorError, match="no noise"):
        found(budgets=Budgets.from_groups([(1.0, 300)], delta=0.99), batch=0.5)
