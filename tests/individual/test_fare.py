"""How the groups fare: what it is by hand, what it never tells of few people, and that noise alone lets it out."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import sartor
from sartor.errors import SartorError
from sartor.individual.fare import Attribute, Fare, classes_of_holders, fare, places, released_fare, request_for, shared
from sartor.individual.readings import Reading
from sartor.individual.release import deviation_in_groups
from sartor.individual.reserve import Reserve
from sartor.run.stream import Stream

PEOPLE = sartor.Budgets.from_groups([(1.0, 60), (2.0, 50), (3.0, 40)], delta=1e-4, reserve=0.5)
PLAN = sartor.plan(PEOPLE, steps=20, batch=40, accountant="rdp")
CLASSES = ("cat", "dog", "emu")
DRAWN = np.random.default_rng(1)
INPUTS, TARGETS = torch.tensor(DRAWN.normal(size=(150, 3)), dtype=torch.float32), torch.tensor(DRAWN.integers(0, 3, 150))
DATA = TensorDataset(INPUTS, TARGETS)
MODEL = nn.Identity()
COSTS = DRAWN.uniform(0.1, 0.9, 150)
READING = Reading("strict", 20, COSTS, np.repeat([1.0, 2.0, 3.0], [60, 50, 40]))


def asked(**more: Any) -> Fare:
    return fare(MODEL, DATA, PEOPLE, PLAN, READING, sensitive=True, **more)


def by_hand(inputs: torch.Tensor, targets: torch.Tensor) -> tuple[Any, Any]:
    """Right or not, and the loss, of each record, one at a time."""
    losses = [-math.log(float(torch.softmax(row.double(), 0)[target])) for row, target in zip(inputs, targets, strict=True)]
    return (inputs.argmax(1) == targets).double().numpy(), np.array(losses)


def test_groups_classes_and_attributes_are_what_they_are_by_hand() -> None:
    right, lost = by_hand(INPUTS, TARGETS)
    of_budget, parity = np.repeat([0, 1, 2], [60, 50, 40]), np.arange(150) % 2
    by = {
        "budget": (None, of_budget),
        "class": (Attribute("class", CLASSES), TARGETS.numpy()),
        "parity": (Attribute("parity", ["even", "odd"], ["odd" if odd else "even" for odd in parity]), parity),
    }
    for name, (attribute, group) in by.items():
        found = asked(by=attribute)
        assert found.by == name
        assert len(found.groups) == group.max() + 1
        for place, row in enumerate(found.groups):
            inside = group == place
            assert row["holders"] == inside.sum()
            told = [row[column] for column in ("account", "accuracy", "loss")]
            assert told == pytest.approx([COSTS[inside].mean(), right[inside].mean(), lost[inside].mean()], rel=1e-5)
        assert found.correlation == pytest.approx(np.corrcoef(COSTS, np.log(lost))[0, 1], rel=1e-4)
    assert [row["class"] for row in asked(by=Attribute("class", CLASSES)).groups] == list(CLASSES)
    assert [row["epsilon"] for row in asked().groups] == [1.0, 2.0, 3.0]


def test_without_a_word_nothing_raw_is_told_and_nothing_printed_shows_it() -> None:
    for given in ({}, {"sensitive": False}, {"sensitive": "yes"}):
        with pytest.raises(SartorError, match=r"sensitive=True") as refused:
            fare(MODEL, DATA, PEOPLE, PLAN, READING, **given)  # type: ignore[arg-type]
        assert "\n" not in str(refused.value)
    found = asked()
    shown = f"{found!r} {found} {Attribute('class', CLASSES)!r}"
    assert "sensitive" in shown
    for row in found.groups:
        for column in ("account", "accuracy", "loss"):
            assert f"{row[column]:.3g}" not in shown


def test_few_people_are_never_told_of_by_themselves() -> None:
    few = ["a"] * 3 + ["b"] * 100 + ["c"] * 9 + ["d"] * 20 + ["?"] * 18
    rows = asked(by=Attribute("kind", "abcd", few)).groups
    assert [(row["kind"], row["holders"]) for row in rows] == [(["a", "b", "c"], 112), ("d", 20)]
    lone = sartor.Budgets.from_groups([(0.7, 3), (2.0, 107), (3.0, 40)], delta=1e-4)
    plan = sartor.plan(lone, steps=20, batch=40, accountant="rdp")
    merged = fare(MODEL, DATA, lone, plan, READING, sensitive=True).groups
    assert [row["holders"] for row in merged] == [110, 40]
    assert "0.7" not in json.dumps(merged[0]["epsilon"])
    nine = ["a"] * 9 + ["?"] * 141
    assert all(math.isnan(row["accuracy"]) for row in asked(by=Attribute("kind", "ab", nine)).groups)


def test_a_figure_that_fewer_than_ten_people_have_is_not_told() -> None:
    unread = COSTS.copy()
    unread[9:60] = math.nan
    found = fare(MODEL, DATA, PEOPLE, PLAN, Reading("strict", 20, unread, READING.guarantee), sensitive=True)
    assert math.isnan(found.groups[0]["account"])
    assert not math.isnan(found.groups[0]["loss"])
    assert not math.isnan(found.correlation)
    still = Reading("strict", 20, np.full(150, 0.5), READING.guarantee)
    assert math.isnan(fare(MODEL, DATA, PEOPLE, PLAN, still, sensitive=True).correlation)


def test_a_holder_counts_once_and_is_of_a_class_that_all_their_records_have() -> None:
    of = np.concatenate([np.arange(60), np.arange(60), np.zeros(30, int)])
    targets = torch.tensor(np.where(np.arange(150) < 60, 0, np.where(np.arange(150) < 90, 0, 1)))  # half of them differ
    people = sartor.Budgets.from_groups([(1.0, 60)], delta=1e-4)
    plan = sartor.plan(people, steps=20, batch=40, accountant="rdp", ownership=sartor.Ownership(of, 60))
    reading = Reading("strict", 20, COSTS[:60], np.ones(60))
    right, lost = by_hand(INPUTS, targets)
    owners = sartor.Ownership(of, 60)
    data = TensorDataset(INPUTS, targets)
    (row,) = fare(MODEL, data, people, plan, reading, ownership=owners, sensitive=True).groups
    assert row["accuracy"] == pytest.approx(np.mean([right[of == holder].mean() for holder in range(60)]))
    assert row["loss"] == pytest.approx(np.mean([lost[of == holder].mean() for holder in range(60)]), rel=1e-5)
    classes = classes_of_holders(data, owners)
    assert classes.tolist() == [-1, *[0] * 29, *[-1] * 30]
    kept = fare(MODEL, data, people, plan, reading, by=Attribute("class", "01"), ownership=owners, sensitive=True).groups
    assert sum(row["holders"] for row in kept) == 29


def test_values_are_compared_as_text_and_what_is_not_listed_is_nowhere() -> None:
    assert places([1, " m ", None, "mm"], ["m", "1"]).tolist() == [1, 0, -1, -1]
    assert shared([2, -1, 2, 2], sartor.Ownership([0, 0, 1, 1], 2)).tolist() == [-1, 2]
    with pytest.raises(SartorError, match="3 values for 2 records"):
        shared([1, 1, 1], sartor.Ownership([0, 1], 2))


def test_what_cannot_be_told_is_refused_in_one_sentence() -> None:
    measured = TensorDataset(INPUTS, torch.rand(150, 3))
    for given, sentence in (
        ({"by": Attribute("kind", "ab", ["a"] * 7)}, "group is of 7 holders"),
        ({"by": Attribute("loss", "ab", ["a"] * 150)}, "name of its own"),
        ({"by": Attribute("kind", "aa", ["a"] * 150)}, "differ"),
        ({"columns": ["age"]}, "columns"),
    ):
        with pytest.raises(SartorError, match=sentence):
            asked(**given)
    with pytest.raises(SartorError, match="for each holder"):
        Attribute("kind", "ab")
    with pytest.raises(SartorError, match="no classes"):
        fare(MODEL, measured, PEOPLE, PLAN, READING, loss=nn.functional.mse_loss, sensitive=True)


def test_it_leaves_through_the_reserve_and_only_so(tmp_path: Path) -> None:
    reserve, by = Reserve.create(tmp_path / "reserve", PLAN), Attribute("class", CLASSES)
    found = released_fare(reserve, MODEL, DATA, PEOPLE, READING, by=by, epsilon=0.2)
    assert found.private
    assert reserve.releases == (found,)
    assert found.groups is not None
    assert found.correlation is not None
    again = released_fare(Reserve(tmp_path / "reserve", PLAN), nn.Linear(3, 3), DATA, PEOPLE, READING, by=by, epsilon=0.2)
    assert json.dumps(again.to_json()) == json.dumps(found.to_json())  # whatever has become of the model
    with pytest.raises(sartor.Infeasible, match="reserve"):
        released_fare(reserve, MODEL, DATA, PEOPLE, READING, epsilon=0.4)
    assert len(reserve.releases) == 1
    without = sartor.plan(PEOPLE.with_reserve(0.0), steps=20, batch=40, accountant="rdp")
    with pytest.raises(sartor.Infeasible, match="reserve="):
        Reserve.create(tmp_path / "other", without)


def test_a_seeded_answer_is_for_seeded_questions_alone(tmp_path: Path) -> None:
    reserve = Reserve.create(tmp_path / "reserve", PLAN)
    one = released_fare(reserve, MODEL, DATA, PEOPLE, READING, epsilon=0.1, stream=Stream(seed=1))
    assert not one.private
    two = released_fare(reserve, MODEL, DATA, PEOPLE, READING, epsilon=0.1)
    assert two.private
    assert two.groups != one.groups


@pytest.mark.parametrize("by", [None, Attribute("class", CLASSES)], ids=["budget", "class"])
def test_with_next_to_no_noise_both_ways_tell_the_same(tmp_path: Path, by: Attribute | None) -> None:
    rich = sartor.Budgets.from_groups([(1e4, 60), (2e4, 50), (3e4, 40)], delta=1e-2, reserve=0.9)
    plan = sartor.plan(rich, steps=2, batch=40, accountant="rdp")
    reading = Reading("strict", 2, COSTS * 1e4, READING.guarantee * 1e4)
    raw = fare(MODEL, DATA, rich, plan, reading, by=by, sensitive=True)
    told = released_fare(Reserve.create(tmp_path / "reserve", plan), MODEL, DATA, rich, reading, by=by, epsilon=9e3)
    assert told.groups is not None
    for one, other in zip(raw.groups, told.groups, strict=True):
        assert one.keys() == other.keys()
        assert [other[name] for name in ("holders", "accuracy", "loss")] == pytest.approx(
            [one[name] for name in ("holders", "accuracy", "loss")], rel=0.05
        )
        assert other["account"] == pytest.approx(one["account"], rel=0.1)
    assert told.correlation == pytest.approx(raw.correlation, abs=0.05)


def test_how_much_noise_there_is_follows_from_what_was_told(tmp_path: Path) -> None:
    from sartor.individual import release
    from sartor.individual.request import Figures

    for by in (None, Attribute("class", CLASSES)):
        seen: list[float] = []
        right = release.Noise.deviation
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(release.Noise, "deviation", lambda *given, right=right, seen=seen: seen.append(right(*given)) or seen[-1])
            group = PLAN.groups_of(PEOPLE) if by is None else TARGETS.numpy()
            of = Figures(np.zeros(150), np.zeros(150), np.zeros(150), group)
            told = release.released(PLAN, of, request_for(by), epsilon=0.2, delta=1e-5, stream=Stream(seed=1))
        assert deviation_in_groups(told) == pytest.approx(seen[0], rel=1e-12)


def test_what_is_no_attribute_reading_or_reserve_is_refused_in_words() -> None:
    with pytest.raises(SartorError, match="by is an Attribute"):
        fare(None, None, None, None, None, by="class", sensitive=True)  # type: ignore[arg-type]
    with pytest.raises(SartorError, match="no reading of this run"):
        fare(None, None, None, None, None, sensitive=True)  # type: ignore[arg-type]
    with pytest.raises(SartorError, match="paid out of a reserve"):
        released_fare(None, None, None, None, None, epsilon=0.1)  # type: ignore[arg-type]
