"""The reserve: nothing is seen that is not charged, nothing is charged twice, and nobody pays more than was kept back."""

import contextlib
import fcntl
import json
import math
import os
import shutil
import signal
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sartor
from sartor.errors import SartorError
from sartor.individual import release
from sartor.individual import reserve as room
from sartor.individual.release import MARGIN, Noise, released
from sartor.individual.request import Figures, Release, Request
from sartor.individual.reserve import Reserve, delta_for
from sartor.run import charges
from sartor.run.stream import Stream
from sartor_testing.forks import refused_in_a_fork

PEOPLE = sartor.Budgets.from_groups([(1.0, 60), (2.0, 50), (4.0, 40)], delta=[1e-4, 1e-5, 1e-3], reserve=0.3)
PLAN = sartor.plan(PEOPLE, steps=20, batch=40, accountant="rdp")
ACCOUNTS = Figures(np.linspace(0.1, 0.9, 150))
FEW = sartor.Budgets.from_groups([(0.731, 3), (5.0, 400), (8.0, 597)], delta=[3.7e-7, 1e-5, 1e-5], reserve=0.2)
MEDIAN = Request(mean=False, quantiles=[0.5], rounds=5)


def in_a_fork(work: Callable[[], str]) -> tuple[int, str]:
    """Do this in a process of its own: how it ended, and what it said."""
    return begun(work)()


def begun(work: Callable[[], str]) -> Callable[[], tuple[int, str]]:
    """The same, of which the end is waited for later."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        with contextlib.suppress(BaseException):
            os.write(writing, work().encode())
            os._exit(0)
        os._exit(1)
    os.close(writing)

    def ended() -> tuple[int, str]:
        with os.fdopen(reading) as pipe:
            said = pipe.read()
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), said

    return ended


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# --- what it costs ---


def test_a_charge_that_followed_another_one_is_noticed(tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    Reserve.create(one, PLAN)
    shutil.copytree(one, other)
    for folder, first in ((one, 0.02), (other, 0.03)):
        for epsilon in (first, 0.05):
            Reserve(folder, PLAN).release(ACCOUNTS, Request(), epsilon=epsilon)
    (one / "answer-00001").unlink()
    assert Reserve(one, PLAN).spent == pytest.approx(0.07)
    shutil.copy(other / "charge-00001", one / "charge-00001")
    with pytest.raises(SartorError, match="damaged"):
        Reserve(one, PLAN)


def test_the_same_question_in_another_order_costs_once(tmp_path: Path) -> None:
    reserve, draw = Reserve.create(tmp_path / "reserve", PLAN), np.random.default_rng(1)
    of = Figures(ACCOUNTS.account, np.ones(150), np.ones(150), draw.integers(0, 3, 150))

    def asked(groups: str, categories: str, columns: tuple[str, ...] = ("account", "loss")) -> Release:
        request = Request(mean=False, groups=groups, categories=list(categories), columns=columns)
        return reserve.release(of, request, epsilon=0.02)

    first = asked("home", "abc")
    assert asked("home", "cab", ("loss", "account")).to_json() == first.to_json()
    assert len(reserve.releases) == 1
    asked("home", "abd")
    asked("class", "abc")
    asked("class", "cab")  # here places say which class a name is of: another question
    assert len(reserve.releases) == 4


def test_the_same_request_gets_the_same_answer_and_costs_once(tmp_path: Path) -> None:
    reserve = Reserve.create(tmp_path / "reserve", PLAN)
    first = reserve.release(ACCOUNTS, Request(quantiles=[0.5], rounds=5), epsilon=0.1)
    again = reserve.release(ACCOUNTS, Request(quantiles=(0.5,), rounds=5), epsilon=0.1)
    later = Reserve(tmp_path / "reserve", PLAN)
    assert first.private
    assert first == again == later.release(Figures(np.zeros(150)), Request(quantiles=[0.5], rounds=5), epsilon=0.1)
    assert first == later.told(Request(quantiles=[0.5], rounds=5), epsilon=0.1)
    assert later.releases == (first,)
    assert later.told(Request(quantiles=[0.5], rounds=5), epsilon=0.2) is None


def test_another_request_is_charged_in_addition(tmp_path: Path) -> None:
    reserve = Reserve.create(tmp_path / "reserve", PLAN)
    asked: list[tuple[Request, float]] = [(Request(), 0.05), (Request(), 0.06), (MEDIAN, 0.05), (Request(histogram=[0, 1, 2]), 0.05)]
    found = [reserve.release(ACCOUNTS, request, epsilon=epsilon) for request, epsilon in asked]
    assert list(Reserve(tmp_path / "reserve", PLAN).releases) == found
    assert [release.epsilon for release in found] == [epsilon for _, epsilon in asked]
    assert [list(release.to_json())[:-4] for release in found] == [["mean"], ["mean"], ["quantiles"], ["mean", "histogram"]]
    with pytest.raises(sartor.Infeasible):
        reserve.release(ACCOUNTS, Request(), epsilon=0.1)


def test_a_seeded_answer_is_not_given_to_who_asks_for_a_private_one(tmp_path: Path) -> None:
    reserve = Reserve.create(tmp_path / "reserve", PLAN)
    seeded = reserve.release(ACCOUNTS, MEDIAN, epsilon=0.1, stream=Stream(seed=1))
    private = reserve.release(ACCOUNTS, MEDIAN, epsilon=0.1)
    assert (seeded.private, private.private) == (False, True)
    assert seeded.quantiles != private.quantiles
    assert reserve.release(ACCOUNTS, MEDIAN, epsilon=0.1, stream=Stream(seed=2)) == seeded
    assert len(reserve.releases) == 2


def test_a_seeded_answer_is_charged_like_any_other(tmp_path: Path) -> None:
    reserve = Reserve.create(tmp_path / "reserve", PLAN)
    reserve.release(ACCOUNTS, MEDIAN, epsilon=0.2, stream=Stream(seed=1))
    with pytest.raises(sartor.Infeasible, match=r"0\.1 of 0\.3 left"):
        reserve.release(ACCOUNTS, MEDIAN, epsilon=0.2)
    assert len(Reserve(tmp_path / "reserve", PLAN).releases) == 1


def test_releases_together_with_the_run_keep_every_budget(tmp_path: Path) -> None:
    for number, parts in enumerate(([0.3], [0.1, 0.1, 0.1], [0.07, 0.2, 0.03], [0.3 / 7] * 7)):
        reserve = Reserve.create(tmp_path / str(number), PLAN)
        for place, epsilon in enumerate(parts):
            reserve.release(ACCOUNTS, Request(quantiles=[(place + 1) / 10], rounds=2), epsilon=epsilon)
        for more in (1e-4, 0.1):
            with pytest.raises(sartor.Infeasible, match="the group at epsilon 1"):
                reserve.release(ACCOUNTS, Request(), epsilon=more)
        epsilon, delta = (math.fsum(getattr(release, name) for release in reserve.releases) for name in ("epsilon", "delta"))
        # what is accounted for is smaller than what is charged by this part
        assert np.all(PLAN.spent + epsilon * (1 - MARGIN) <= PLAN.epsilon)
        assert np.all(0.7 * PLAN.delta + delta * (1 - MARGIN) <= PLAN.delta)
        assert delta == pytest.approx(0.3 * 1e-5)  # all of it, at the strictest delta


def test_what_is_charged_is_what_the_noise_is_made_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prices: list[dict[str, Any]] = []

    def watched(*given: Any, **more: Any) -> Any:
        prices.append(more)
        return released(*given, **more)

    monkeypatch.setattr(room, "released", watched)
    found = Reserve.create(tmp_path / "reserve", PLAN).release(ACCOUNTS, Request(), epsilon=0.2)
    assert (prices[0]["epsilon"], prices[0]["delta"]) == (found.epsilon, found.delta)
    assert [found.epsilon, found.delta] == pytest.approx([0.2, 2e-6])


def test_nothing_is_released_without_a_reserve(tmp_path: Path) -> None:
    plan = sartor.plan(PEOPLE.with_reserve(0.0), steps=20, batch=40, accountant="rdp")
    with pytest.raises(sartor.Infeasible, match="reserve="):
        Reserve.create(tmp_path / "reserve", plan)
    Reserve.create(tmp_path / "reserve", PLAN)
    with pytest.raises(sartor.Infeasible, match="reserve="):
        Reserve(tmp_path / "reserve", plan)
    with pytest.warns(sartor.NoNoise):
        public = sartor.plan(sartor.Budgets([math.inf] * 20, delta=1e-5, reserve=0.2), steps=5, batch=4)
    with pytest.raises(SartorError, match="public"):
        Reserve.create(tmp_path / "other", public)


def test_public_records_bind_nobody(tmp_path: Path) -> None:
    mixed = sartor.Budgets.from_groups([(2.0, 60), (math.inf, 40)], delta=1e-5, reserve=0.5)
    plan = sartor.plan(mixed, steps=20, batch=20, accountant="rdp")
    reserve = Reserve.create(tmp_path / "reserve", plan)
    assert reserve.release(Figures(np.append(np.ones(60), np.full(40, math.inf))), Request(), epsilon=1.0).delta == pytest.approx(5e-6)
    with pytest.raises(sartor.Infeasible, match="the group at epsilon 2 has 0 of 1 left"):
        reserve.release(Figures(np.ones(100)), MEDIAN, epsilon=0.01)


@pytest.mark.parametrize("epsilon", [0, -1.0, math.nan, math.inf, True, "0.1", None])
def test_an_epsilon_that_is_none_is_refused(tmp_path: Path, epsilon: Any) -> None:
    with pytest.raises(SartorError, match=r"0\.0001 or more"):
        Reserve.create(tmp_path / "reserve", PLAN).release(ACCOUNTS, Request(), epsilon=epsilon)


def test_neither_refusal_nor_answer_tells_what_three_people_allow(tmp_path: Path) -> None:
    plan = sartor.plan(FEW, steps=20, batch=100, accountant="rdp")
    reserve, accounts = Reserve.create(tmp_path / "reserve", plan), Figures(np.ones(1_000))
    with pytest.raises(sartor.Infeasible) as large:
        reserve.release(accounts, Request(), epsilon=1.1)
    assert "the group at epsilon 5 has 1 of 1 left" in str(large.value)
    with pytest.raises(sartor.Infeasible) as few:
        reserve.release(accounts, Request(), epsilon=0.5)
    assert "a group of fewer than 10 holders has less left" in str(few.value)
    found = reserve.release(accounts, Request(), epsilon=0.1)
    assert found.delta == 5e-8 <= 0.1 * 3.7e-7 / 0.731
    assert delta_for(plan, 0.09) == 2e-8
    said = f"{large.value} {few.value} {reserve!r} {json.dumps(found.to_json())}"
    for secret in ("0.731", "0.146", "3.7e-07", "7.4e-08", "5.06"):
        assert secret not in said


# --- kills, failures, other processes ---


@pytest.mark.parametrize("number", range(1, 13))
def test_a_kill_at_any_moment_loses_no_charge_and_no_answer_that_was_kept(tmp_path: Path, number: int) -> None:
    """Killed at each call that changes the disk: what was drawn is charged, and what was answered can be had."""
    path, calls = tmp_path / "reserve", []
    Reserve.create(path, PLAN)

    def dying(right: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **more: Any) -> Any:
            calls.append(right)
            if len(calls) == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return right(*given, **more)

        return call

    def work() -> str:
        for name in ("link", "replace", "fsync"):
            setattr(os, name, dying(getattr(os, name)))
        return json.dumps(Reserve(path, PLAN).release(ACCOUNTS, MEDIAN, epsilon=0.2).to_json())

    code, said = in_a_fork(work)
    back = Reserve(path, PLAN)
    assert (code, bool(said)) in ((-signal.SIGKILL, False), (0, True))
    assert (code == 0) == (number > 9)  # three calls each for a charge, its count and its answer
    assert back.spent == (0 if number <= 2 else 0.2)
    assert len(back.releases) == (number > 8)
    assert set(names(path)) <= {"answer-00000", "charge-00000", "charged", "lock", "reserve.json"}  # no halves
    if 2 < number <= 8:  # it is spent, and there is nothing to show for it
        with pytest.raises(sartor.Infeasible):
            back.release(ACCOUNTS, MEDIAN, epsilon=0.2)
        return
    found = back.release(ACCOUNTS, MEDIAN, epsilon=0.2)
    assert said in ("", json.dumps(found.to_json()))
    assert Reserve(path, PLAN).releases == (found,)
    with pytest.raises(sartor.Infeasible):
        back.release(ACCOUNTS, Request(), epsilon=0.2)


def test_a_process_that_dies_before_the_charge_shows_nothing(tmp_path: Path) -> None:
    path = tmp_path / "reserve"
    reserve = Reserve.create(path, PLAN)

    def work() -> str:
        pytest.MonkeyPatch().setattr(charges, "write_private", lambda *_, **__: os._exit(9))
        return str(reserve.release(ACCOUNTS, Request(), epsilon=0.2).mean)

    assert in_a_fork(work) == (9, "")
    assert Reserve(path, PLAN).releases == ()


@pytest.mark.parametrize("fails", ["link", "fsync", "fdopen"])
def test_a_failure_while_writing_releases_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str) -> None:
    path = tmp_path / "reserve"
    reserve = Reserve.create(path, PLAN)

    def broken(*_: Any, **__: Any) -> None:
        raise OSError(28, "no space left")

    with monkeypatch.context() as patch:
        patch.setattr(os, fails, broken)
        if fails == "link":  # a file system without links
            patch.setattr(os, "fdopen", broken)
        with pytest.raises(SartorError, match="space"):
            reserve.release(ACCOUNTS, Request(), epsilon=0.2)
    assert Reserve(path, PLAN).releases == ()
    assert names(path) == ["lock", "reserve.json"]
    assert reserve.release(ACCOUNTS, Request(), epsilon=0.3).private


def test_processes_at_once_share_one_reserve_and_one_answer(tmp_path: Path) -> None:
    path = tmp_path / "reserve"
    Reserve.create(path, PLAN)

    def work() -> str:
        said = []
        for place in range(6):  # each costs a tenth: three of the six can be had, whoever asks first
            with contextlib.suppress(sartor.Infeasible):
                request = Request(quantiles=[(place + 1) / 10], rounds=2)
                said.append(json.dumps(Reserve(path, PLAN).release(ACCOUNTS, request, epsilon=0.1).to_json()))
        return "\n".join(said)

    ends = [waiting() for waiting in [begun(work) for _ in range(4)]]
    assert [code for code, _ in ends] == [0] * 4
    heard = {line for _, said in ends for line in said.splitlines()}
    releases = Reserve(path, PLAN).releases
    assert len(releases) == len(heard) == 3
    assert heard == {json.dumps(release.to_json()) for release in releases}


def test_without_any_lock_one_of_two_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "reserve"
    mine = Reserve.create(path, PLAN)
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)

    def overtaken(*given: Any, **more: Any) -> Any:
        monkeypatch.setattr(room, "released", released)
        Reserve(path, PLAN).release(ACCOUNTS, MEDIAN, epsilon=0.2)
        return released(*given, **more)

    monkeypatch.setattr(room, "released", overtaken)
    with pytest.raises(SartorError, match="exists"):
        mine.release(ACCOUNTS, Request(), epsilon=0.2)
    assert len(Reserve(path, PLAN).releases) == 1
    with pytest.raises(sartor.Infeasible):
        mine.release(ACCOUNTS, Request(), epsilon=0.2)


def test_nothing_is_handed_out_where_the_folder_was_replaced_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "reserve"
    reserve = Reserve.create(path, PLAN)

    def replaced(*given: Any, **more: Any) -> Any:
        path.rename(tmp_path / "moved")
        shutil.copytree(tmp_path / "moved", path)
        return released(*given, **more)

    monkeypatch.setattr(room, "released", replaced)
    with pytest.raises(SartorError, match="moved"):
        reserve.release(ACCOUNTS, Request(), epsilon=0.2)
    assert not list(tmp_path.glob("*/charge-*"))


def test_nothing_is_released_with_the_noise_of_a_forked_process_nor_charged(tmp_path: Path) -> None:
    reserve, stream = Reserve.create(tmp_path / "reserve", PLAN), Stream()
    noise = Noise(1.0, stream)
    query = release.total(np.ones(3), 1.0)
    for work in (
        lambda: reserve.release(ACCOUNTS, Request(), epsilon=0.1, stream=stream),
        lambda: released(PLAN, ACCOUNTS, Request(), epsilon=0.1, delta=1e-6, stream=stream),
        lambda: noise.added(query, 0.5, "release mean"),
    ):
        assert refused_in_a_fork(work) == "this stream is another process's"
    assert Reserve(tmp_path / "reserve", PLAN).spent == 0
    assert noise.added(query, 0.5, "release mean").shape == (1,)


def test_forks_that_release_the_same_at_once_have_one_answer(tmp_path: Path) -> None:
    reserve = Reserve.create(tmp_path / "reserve", PLAN)
    ends = [begun(lambda: json.dumps(reserve.release(ACCOUNTS, Request(), epsilon=0.1).to_json())) for _ in range(3)]
    said = {waiting() for waiting in ends}
    assert len(said) == len(Reserve(tmp_path / "reserve", PLAN).releases) == 1
    assert reserve.release(ACCOUNTS, Request(), epsilon=0.1).to_json() == json.loads(said.pop()[1])


def test_seeded_releases_of_one_seed_have_noise_of_their_own(tmp_path: Path) -> None:
    reserve, streams = Reserve.create(tmp_path / "reserve", PLAN), [Stream(seed=1) for _ in range(3)]
    for place, stream in enumerate(streams):
        reserve.release(ACCOUNTS, Request(), epsilon=0.05 + place / 100, stream=stream)
    assert len({stream.generator("release mean", 0).random() for stream in streams}) == 3


def test_noise_is_drawn_only_after_its_charge_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "reserve"
    reserve = Reserve.create(path, PLAN)

    def drawn(self: Noise, *given: Any) -> Any:
        assert (path / "charge-00000").exists()
        assert (path / "charged").read_bytes() == b"1"
        raise RuntimeError("of the figures")

    with monkeypatch.context() as patch:
        patch.setattr(Noise, "added", drawn)
        with pytest.raises(RuntimeError):
            reserve.release(ACCOUNTS, Request(), epsilon=0.2)
    assert (Reserve(path, PLAN).spent, Reserve(path, PLAN).releases) == (0.2, ())
    with pytest.raises(sartor.Infeasible, match=r"0\.1 of 0\.3 left"):
        reserve.release(ACCOUNTS, Request(), epsilon=0.2)


# --- files that are not what they were ---


def test_charges_that_are_missing_put_back_or_of_another_are_noticed(tmp_path: Path) -> None:
    path = tmp_path / "reserve"
    reserve = Reserve.create(path, PLAN)
    shutil.copytree(path, tmp_path / "copy")
    for epsilon in (0.05, 0.1, 0.02):
        reserve.release(ACCOUNTS, Request(), epsilon=epsilon)
    contents = {file.name: file.read_bytes() for file in path.glob("charge*")}
    cheap = Reserve(tmp_path / "copy", PLAN)
    cheap.release(ACCOUNTS, Request(), epsilon=0.001)

    def refused(match: str) -> None:
        for act in (lambda: Reserve(path, PLAN), lambda: reserve.release(ACCOUNTS, Request(), epsilon=0.05)):
            with pytest.raises(SartorError, match=match) as error:
                act()
            assert "\n" not in str(error.value)
        for name, content in contents.items():
            (path / name).write_bytes(content)
        assert len(Reserve(path, PLAN).releases) == 3

    for name in ("charge-00000", "charge-00001", "charge-00002"):
        (path / name).unlink()
        refused("lacks charges")
    (path / "charge-00000").write_bytes((tmp_path / "copy" / "charge-00000").read_bytes())  # of a copy: cheaper
    refused("damaged")
    (path / "charge-00002").write_bytes(contents["charge-00000"])
    refused("damaged")
    (path / "charge-00001").write_bytes(contents["charge-00001"][:-7])
    refused("damaged")
    (path / "charged").write_bytes(b"some")
    refused("damaged")
    (path / "charged").write_bytes(b"1")  # an older count alone hides nothing
    assert len(Reserve(path, PLAN).releases) == 3
    assert (path / "charged").read_bytes() == b"3"


def test_a_reserve_that_is_gone_is_not_begun_again_by_opening_it(tmp_path: Path) -> None:
    path = tmp_path / "reserve"
    with pytest.raises(SartorError, match="holds no reserve"):
        Reserve(path, PLAN)
    reserve = Reserve.create(path, PLAN)
    reserve.release(ACCOUNTS, Request(), epsilon=0.3)
    with pytest.raises(SartorError, match="already"):
        Reserve.create(path, PLAN)
    kept = (path / "reserve.json").read_bytes()
    (path / "reserve.json").unlink()
    with pytest.raises(SartorError, match="holds no reserve"):
        Reserve(path, PLAN)
    with pytest.raises(SartorError, match="already"):
        Reserve.create(path, PLAN)
    (path / "reserve.json").write_bytes(b"[]")
    with pytest.raises(SartorError, match="can be read"):
        Reserve(path, PLAN)
    (path / "reserve.json").write_bytes(kept)
    assert len(Reserve(path, PLAN).releases) == 1


def test_it_is_of_one_plan(tmp_path: Path) -> None:
    Reserve.create(tmp_path / "reserve", PLAN)
    other = sartor.plan(PEOPLE.with_reserve(0.4), steps=20, batch=40, accountant="rdp")
    with pytest.raises(SartorError, match="another plan"):
        Reserve(tmp_path / "reserve", other)
    PLAN.save(tmp_path / "plan.json", sensitive=True)
    assert Reserve(tmp_path / "reserve", sartor.Plan.load(tmp_path / "plan.json")).releases == ()


def test_the_folder_is_its_owners_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        reserve = Reserve.create(tmp_path / "reserve", PLAN)
        (tmp_path / "reserve").chmod(0o755)
        Reserve(tmp_path / "reserve", PLAN)
        reserve.release(ACCOUNTS, Request(), epsilon=0.1)
    finally:
        os.umask(before)
    assert names(tmp_path / "reserve") == ["answer-00000", "charge-00000", "charged", "lock", "reserve.json"]
    assert stat.S_IMODE((tmp_path / "reserve").stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "reserve").iterdir()} == {0o600}


def test_what_is_refused_costs_nothing(tmp_path: Path) -> None:
    reserve = Reserve.create(tmp_path / "reserve", PLAN)
    for of, request in ((Figures(np.ones(7)), Request()), (ACCOUNTS, Request(correlation=True))):
        with pytest.raises(SartorError):
            reserve.release(of, request, epsilon=0.1)
    assert reserve.releases == Reserve(tmp_path / "reserve", PLAN).releases == ()
    assert repr(reserve) == "Reserve(0 releases)"
