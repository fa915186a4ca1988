"""What a judge says of a tape on which one thing is not as the plan says, and what two tapes say of each other."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional

import sartor
from sartor.audit.judge import Judge
from sartor.audit.noise import DEVIATION
from sartor.audit.record import Playback, Tape
from sartor.run.sampling import Draw
from sartor.run.witness import Bare, Poll, looked_at_by
from sartor.sgd.gradients import MARGIN
from sartor_testing import private_runs as runs

PLAN = runs.planned("scale", 4)
GROUP = PLAN.groups_of(runs.people())


def taped() -> Tape:
    tape, model = Tape(most=50), runs.net()
    with looked_at_by(tape):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model, optimizer, loader = sartor.make_private(model, optimizer, runs.records(), runs.people(), PLAN, seed=1)
        for inputs, targets in loader:
            optimizer.zero_grad()
            functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
    return tape


def every(change):
    def changed(tape):
        for key, bare in tape.bare.items():
            tape.bare[key] = change(bare)

    return changed


def beside(**count):
    """A count is released beside every sum."""

    def changed(tape):
        tape.bare |= {("count", step): bare._replace(name="count", **count) for (_, step), bare in tape.bare.items()}

    return changed


def scaled(bare, factor, names=None):
    """The sum under another deviation of its noise, in some arrays."""
    names = list(bare.sums) if names is None else names
    noise = {name: bare.released[name] * bare.over - bare.sums[name] for name in bare.sums}
    return {name: (bare.sums[name] + noise[name] * (factor if name in names else 1)) / bare.over for name in bare.sums}


def largest_clips(tape):
    for step, draw in tape.draws.items():
        tape.draws[step] = Draw(step, draw.indices, np.full(len(draw), PLAN.clips.max()))


def everybody(tape):
    tape.draws |= {step: Draw(step, np.arange(len(GROUP)), PLAN.clips[GROUP]) for step in tape.draws}


def on_the_last_array(bare):
    return bare._replace(released=scaled(bare, 0.01, list(bare.sums)[-1:]))


OFF = {
    "charged late": (every(lambda bare: bare._replace(charged=bare.step)), "a sum left before its step was charged."),
    "clips of others": (largest_clips, "somebody is drawn with a larger clip than the plan has for their budget."),
    "no coins": (everybody, "a group is drawn more or less often than the plan's rate says."),
    "a count beside": (beside(), "what leaves in a step has together less noise than the plan says."),
    "a bare count": (beside(deviation=0.0), "a sum has no noise."),
    "one array": (every(on_the_last_array), DEVIATION),
    "the run says so": (every(lambda bare: bare._replace(released=scaled(bare, 0.3), deviation=0.3 * bare.deviation)), DEVIATION),
    "another divisor": (
        every(lambda bare: bare._replace(released={name: 2 * part for name, part in bare.released.items()}, over=bare.over / 2)),
        DEVIATION,
    ),
}


@pytest.mark.parametrize("name", OFF)
def test_what_is_not_as_the_plan_says_is_named(name):
    change, fault = OFF[name]
    tape = taped()
    assert Judge(tape, PLAN, GROUP).of_the_run() == []
    change(tape)
    assert fault in Judge(tape, PLAN, GROUP).of_the_run()


def moved(bare, length, **other):
    """The same step with a sum that is so far away."""
    name = next(iter(bare.sums))
    off = np.zeros(np.shape(bare.sums[name]))
    off.flat[0] = length
    sums, released = dict(bare.sums), dict(bare.released)
    sums[name], released[name] = sums[name] - off, released[name] - off / bare.over
    return bare._replace(**{"sums": sums, "released": released, **other})


@pytest.mark.parametrize(
    ("share", "roundings", "drawn_with", "says"),
    [
        (1.0, 0.5, 1.0, None),
        (1.0, 3.0, 1.0, "more than the clip"),
        (1.001, 0.0, 1.0, "more than the clip"),
        (1.0, 0.0, 0.5, "more than the clip"),  # a rung of half the clip
        (1.5, 0.0, 1.5, "more than the clip"),  # a clip that the plan does not have
        (0.5, 0.0, None, "was not drawn"),
    ],
)
def test_a_holder_moves_a_sum_by_their_clip_of_the_plan_and_of_the_draw_and_hardly_more(share, roundings, drawn_with, says):
    tape = taped()
    judge, draw = Judge(tape, PLAN, GROUP), tape.draws[0]
    holder = int(np.setdiff1d(np.arange(len(GROUP)), draw.indices)[0]) if drawn_with is None else int(draw.indices[0])
    clip = float(PLAN.clips[GROUP[holder]])
    tape.draws[0] = Draw(0, draw.indices, np.where(draw.indices == holder, clip * (drawn_with or 0), draw.clips))
    first = tape.bare["gradients", 0]
    length = share * clip * (1 + (MARGIN if roundings else 0)) + roundings * first.unit * judge._rounding
    move, found = judge.of_holder(holder)(first, moved(first, length))
    assert move == pytest.approx(length / clip)
    assert [says in fault for fault in found] == ([] if says is None else [True])


def test_what_else_follows_a_holder_in_a_step_is_named():
    tape = taped()
    compare, first = Judge(tape, PLAN, GROUP).of_holder(int(tape.draws[0].indices[0])), tape.bare["gradients", 0]
    assert compare(first, first) == (0.0, [])
    for other in ({"over": first.over + 1}, {"unit": 2 * first.unit}, {"deviation": 2 * first.deviation}):
        assert compare(first, first._replace(**other))[1] == ["shapes, noise or divisor of a step follow the holder's records."]
    assert compare(first, first._replace(released=scaled(first, 0.9)))[1] == ["noise or divisor of a step follow the holder's records."]


def test_units_pay_for_the_lowest_rung_of_every_stretch_up_to_the_last_in_which_somebody_was_drawn():
    plan = sartor.plan(runs.people(), "scale", steps=20, batch=20, filter="ladder", refresh=2, full_steps=4)
    plan = replace(plan, filter=replace(plan.filter, units=3 * plan.filter.costs[:, 0]))
    group, ladder, holder = plan.groups_of(runs.people()), plan.filter, 0
    for stretch, faults in ((2, []), (3, ["somebody takes rungs that their units do not pay for."])):
        tape = Tape(most=50)
        judge, step = Judge(tape, plan, group), stretch * ladder.refresh
        tape.drawn(Draw(step, np.array([holder]), judge.clips_at(step, np.array([holder])) * ladder.rungs[group[holder], 0]))
        assert judge._units() == faults


# --- tapes ---


SUM = Bare(0, "gradients", {"w": np.zeros(3)}, {"w": np.ones(3)}, 1.0, 1.0, 2.0, 1)
DRAW = Draw(0, np.array([1, 2, 5]), np.array([1.0, 2.0, 1.0]))


def test_a_step_that_is_taken_again_must_be_the_same_one():
    for first, second, words in (
        (DRAW, DRAW, None),
        (DRAW, Draw(0, DRAW.indices, np.ones(3)), "different coins or clips"),
        (DRAW, Draw(0, np.array([1, 2, 6]), DRAW.clips), "different coins or clips"),
        (SUM, SUM, None),
        (SUM, SUM._replace(sums={"w": np.ones(3)}), "two different sums"),
        (SUM, SUM._replace(released={"w": np.zeros(3)}), "under other noise"),
        (SUM, SUM._replace(sums={"w": np.zeros(4)}), "taken by two models"),
    ):
        tape = Tape(most=5)
        for one in (first, second):
            tape.drawn(one) if isinstance(one, Draw) else tape.released(one)
        assert [words in fault for fault in tape.faults] == ([] if words is None else [True])
    tape = Tape(most=5)
    for value in (0.0, 0.0, 1.0):
        tape.stands(0, lambda value=value: {"w": torch.tensor(value)})
    assert tape.faults == ["a step was taken twice, from different models."]


@pytest.mark.parametrize(
    ("indices", "clips", "words"),
    [
        ([1, 2, 5], [7.0, 2.0, 1.0], None),  # the holder's own
        ([2, 5], [2.0, 1.0], None),
        ([1, 2, 5], [1.0, 1.0, 1.0], "other people's clips"),
        ([1, 2], [1.0, 2.0], "who else is drawn"),
    ],
)
def test_what_is_drawn_of_others_is_the_same_without_the_holder(indices, clips, words):
    tape = Tape(most=5)
    tape.drawn(DRAW)
    for aligned in (True, False):
        again = Playback(tape, 1, aligned=aligned)
        left = again.drawn(Draw(0, np.array(indices), np.array(clips)))
        assert [words in fault for fault in again.faults] == ([] if words is None else [True])
        assert not left.clips[left.indices == 1].any()


def test_a_run_without_the_holder_ends_as_the_first_one_did():
    for value, gradient, steps, words in (
        (1.0, 1.0, 1, []),
        (2.0, 1.0, 1, ["between steps", "at the end"]),
        (1.0, 2.0, 1, ["between steps"]),
        (1.0, 1.0, 0, ["how many steps"]),
    ):
        tape = Tape(most=5)
        again = Playback(tape, 1, aligned=False)
        for witness, model, beside_it, count in ((tape, 1.0, 1.0, 1), (again, value, gradient, steps)):
            state = {"w": torch.tensor(model), "gradient of w": torch.tensor(beside_it)}
            witness.stands(0, lambda state=state: state)
            for _ in range(count):
                witness.released(SUM)
            witness.closes()
        assert len(again.faults) == len(words)
        assert all(word in fault for word, fault in zip(words, again.faults, strict=True))


def polled(queries):
    noisy = np.eye(queries, 5)
    return Poll(0, noisy, noisy, np.ones((queries, 4)), None, np.ones(queries, bool), noisy.argmax(1))


def test_as_many_queries_are_asked_without_the_holder():
    for queries, faults in ((3, []), (2, ["which queries are asked follows the holder's records."])):
        tape = Tape(most=0)
        tape.voted(polled(3))
        again = Playback(tape, -1, aligned=False)
        again.voted(polled(queries))
        assert again.faults == faults
