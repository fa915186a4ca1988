"""An ensemble in a folder: every aggregation is paid for, whatever happens between, and a file that is not its own is refused."""

import contextlib
import importlib
import os
import signal
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

import sartor
from sartor.errors import SartorError
from sartor.pate import folder
from sartor.pate.account import Accountant
from sartor.pate.build import plan
from sartor.pate.folder import EnsembleFolder
from sartor.pate.plan import GNMax
from sartor.pate.variants import VARIANTS
from sartor.pate.voting import DataDependent
from sartor.run import charges, files
from sartor.run.stream import Stream
from sartor_testing.ensembles import holders_within_budget, random_votes
from sartor_testing.forks import in_a_fork
from sartor_testing.kept_ensembles import PEOPLE, aggregations_at_once, all_aggregations_keep_the_budgets, saved

placing = importlib.import_module("sartor.pate.partition")


@pytest.mark.parametrize("variant", VARIANTS)
def test_many_aggregations_of_one_folder_together_keep_the_budgets(tmp_path, variant):
    assert all_aggregations_keep_the_budgets(tmp_path / "kept", variant)


def test_a_further_aggregation_is_charged(tmp_path):
    path = tmp_path / "kept"
    first = saved(path).aggregate()
    again = EnsembleFolder(path)
    second = again.aggregate(further=True)
    assert len(first) > 0
    assert len(second) == 0
    assert [account.queries for account in EnsembleFolder(path).accounts] == [len(first), 0]
    assert EnsembleFolder(path).accounts[0].cost == pytest.approx(first.account.cost, rel=1e-15)


def test_what_was_kept_is_read_back(tmp_path):
    made = saved(tmp_path / "kept")
    with pytest.warns(DataDependent):
        found = made.aggregate(bound="dependent", accountant=Accountant.paper(), labels=2, stream=Stream(seed=1))
    back = EnsembleFolder(tmp_path / "kept")
    assert back.budgets == PEOPLE
    assert back.plan.to_json() == made.plan.to_json()
    (account,) = back.accounts
    assert account.seeded
    assert account.sensitive
    assert np.array_equal(account.divergence, made.accounts[0].divergence)
    assert np.array_equal(account.accountant.orders, Accountant.paper().orders)
    assert account.accountant.conversion == "mironov"
    assert np.array_equal(back.labels[0], found.labels)


def test_different_bounds_and_accountants_add_up(tmp_path):
    path = tmp_path / "kept"
    saved(path)
    found = [EnsembleFolder(path).aggregate(labels=3, accountant=Accountant.paper()), EnsembleFolder(path).aggregate(labels=3)]
    total = EnsembleFolder(path).account
    np.testing.assert_allclose(total.cost, found[0].account.cost + found[1].account.cost)
    assert np.all(total.spent > found[1].account.spent)
    with pytest.warns(DataDependent):
        found.append(EnsembleFolder(path).aggregate(labels=3, bound="dependent"))
    assert holders_within_budget(PEOPLE, EnsembleFolder(path).plan, found)
    with pytest.raises(SartorError, match="stopped by the votes"):
        EnsembleFolder(path).aggregate(go_on=True)


FILES = ["answer-00000", "charge-00000", "charged", "ensemble.json", "lock", "votes"]


def test_the_folder_is_its_owners_alone_and_holds_no_parts(tmp_path):
    path = tmp_path / "kept"
    before = os.umask(0)
    try:
        saved(path)
        path.chmod(0o755)
        EnsembleFolder(path).aggregate(labels=1)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert sorted(p.name for p in path.iterdir()) == FILES
    assert {stat.S_IMODE(p.stat().st_mode) for p in path.iterdir()} == {0o600}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["kept"]


def test_an_ensemble_is_not_begun_where_anything_is(tmp_path):
    path = tmp_path / "kept"
    made = saved(path)
    made.aggregate(labels=1)
    with pytest.raises(SartorError, match="already"):
        saved(path)
    with pytest.raises(SartorError, match="votes or teachers already"):
        made.put(random_votes(200, 10, 3, 2)[0], 3)
    with pytest.raises(SartorError, match="other files"):
        saved(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["kept"]
    (path / "ensemble.json").unlink()
    with pytest.raises(SartorError, match="other files"):
        saved(path)
    (tmp_path / "file").touch()
    with pytest.raises(SartorError, match="cannot be made"):
        saved(tmp_path / "file")


def test_a_link_and_another_spelling_are_the_same_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = saved("kept")
    (tmp_path / "link").symlink_to("kept")
    opened = [EnsembleFolder(tmp_path / "link"), EnsembleFolder(tmp_path / "link" / ".." / "kept"), made]
    found = [one.aggregate(further=True) for one in opened]
    assert len(found[0]) > 0
    assert holders_within_budget(PEOPLE, made.plan, found)


@pytest.mark.parametrize("fails", ["link", "fsync", "fdopen"])
def test_a_failure_while_writing_releases_nothing(tmp_path, monkeypatch, fails):
    path = tmp_path / "kept"
    made = saved(path)

    def broken(*_, **__):
        raise OSError(28, "no space left")

    monkeypatch.setattr(files.os, fails, broken)
    if fails == "link":  # a file system without links
        monkeypatch.setattr(files.os, "fdopen", broken)
    with pytest.raises(SartorError, match="space"):
        made.aggregate()
    monkeypatch.undo()
    assert EnsembleFolder(path).accounts == []
    assert sorted(p.name for p in path.iterdir()) == ["ensemble.json", "lock", "votes"]
    assert holders_within_budget(PEOPLE, made.plan, [made.aggregate(), EnsembleFolder(path).aggregate(further=True)])


@pytest.mark.parametrize("last", [2, 4, 5, 6])
def test_a_failure_after_charging_is_charged_and_an_answer_that_was_kept_is_given(tmp_path, monkeypatch, last):
    """A charge, its count and the answer: each is a file and a name that reach the disk, one after the other."""
    path = tmp_path / "kept"
    made = saved(path)
    right, calls = files.os.fsync, []

    def failing(descriptor):
        calls.append(descriptor)
        if len(calls) == last:
            raise OSError(5, "the disk is gone")
        right(descriptor)

    monkeypatch.setattr(files.os, "fsync", failing)
    with pytest.raises(SartorError, match=r"the disk is gone|Input/output error"):
        made.aggregate()
    monkeypatch.undo()
    back = EnsembleFolder(path)
    assert len(back.accounts) == 1
    assert back.accounts[0].queries > 0
    assert (back.cut_off, len(back.labels)) == ((0, 1) if last == 6 else (1, 0))
    if last == 6:
        assert np.array_equal(back.aggregate().labels, back.labels[0])
    assert len(back.aggregate(further=True)) == 0


def test_a_lock_is_given_back_after_a_failure(tmp_path):
    made = saved(tmp_path / "kept")
    for _ in range(2):
        with pytest.raises(SartorError):
            made.aggregate(bound="loose")
    assert len(made.aggregate(labels=1)) == 1


def test_aggregations_at_once_together_keep_the_budgets(tmp_path):
    path = tmp_path / "kept"
    made = saved(path, noise=25.0)
    alone = int(saved(tmp_path / "other", noise=25.0).aggregate().asked.sum())
    found = aggregations_at_once(path)
    assert len(EnsembleFolder(path).accounts) == 40
    assert sum(int(f.asked.sum()) for f in found) == alone < 80
    assert holders_within_budget(PEOPLE, made.plan, found)


def test_a_process_that_dies_before_the_charge_draws_nothing(tmp_path):
    path = tmp_path / "kept"
    made = saved(path)

    def work():
        charges.write_private = lambda *_, **__: os._exit(9)
        made.aggregate()
        return b"labels"

    code, content = in_a_fork(work)()
    assert os.waitstatus_to_exitcode(code) == 9
    assert content == b""
    assert EnsembleFolder(path).accounts == []
    assert len(made.aggregate(labels=1)) == 1


def killed(work):
    """Do this in a process that is killed with SIGKILL on the way."""
    pid = os.fork()
    if not pid:
        with contextlib.suppress(BaseException):
            work()
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


@pytest.mark.parametrize("number", range(16))
def test_a_kill_at_any_moment_loses_no_charge_and_leaves_nothing_bare(tmp_path, number):
    """Killed at each call that changes the disk: labels that anybody saw are charged, and the next opening removes the parts."""
    path = tmp_path / "kept"
    plan_, votes = plan(PEOPLE, "weight", teachers=10, aggregator=GNMax(noise=30.0)), random_votes(200, 10, 3, 1)[0]
    seen, calls = tmp_path / "seen", []

    def dying(right):
        def call(*given, **more):
            calls.append(right)
            if len(calls) == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return right(*given, **more)

        return call

    def work():
        for name in ("link", "replace", "fsync"):
            setattr(files.os, name, dying(getattr(files.os, name)))
        made = EnsembleFolder.create(path, plan_, PEOPLE)
        made.put(votes, 3)
        found = made.aggregate(labels=5)
        seen.write_text(str(int(found.asked.sum())))
        os.kill(os.getpid(), signal.SIGKILL)

    killed(work)
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert {p.name for p in tmp_path.iterdir()} <= {"kept", "seen"}
    made = EnsembleFolder(path) if EnsembleFolder.is_in(path) else EnsembleFolder.create(path, plan_, PEOPLE)
    assert not [p.name for p in path.iterdir() if p.name.startswith(".")]
    with contextlib.suppress(SartorError):
        made.put(votes, 3)
    charged = sum(account.queries for account in made.accounts)
    assert charged >= (int(seen.read_text()) if seen.exists() else 0)
    assert all((labels >= 0).sum() == 5 for labels in made.labels)
    assert (made.cut_off, len(made.labels)) in ((0, 0), (0, 1), (1, 0))
    again = made.aggregate(labels=5)
    assert sum(account.queries for account in made.accounts) == (charged if seen.exists() else charged + 5 * (not charged or made.cut_off))
    assert len(again) == 5
    whole = saved(tmp_path / "other").aggregate()
    assert sum(account.queries for account in made.accounts) + int(made.aggregate().asked.sum()) == int(whole.asked.sum())


WAIT = """
import sys
import sartor.pate.folder as room
from sartor.pate import EnsembleFolder
right = room.aggregate

def slow(*given, **more):
    found = right(*given, **more)
    print("asked", flush=True)
    sys.stdin.readline()
    return found

room.aggregate = slow
try:
    print(int(EnsembleFolder(sys.argv[1]).aggregate(further=True).asked.sum()), flush=True)
except Exception as error:
    print(0, error, flush=True)
"""


def test_two_aggregations_cannot_spend_one_budget_though_the_lock_is_removed(tmp_path):
    path = tmp_path / "a folder"
    made = saved(path)
    made.aggregate(labels=2)
    alone = int(saved(tmp_path / "other").aggregate().asked.sum())
    command = [sys.executable, "-c", WAIT, str(path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as first:
        assert first.stdout.readline() == "asked\n"  # it has charged, and has labels in its hands that it has not shown
        (path / "lock").unlink()
        with subprocess.Popen(command, **pipes) as second:
            second.stdin.write("\n")  # goes on as soon as it gets in
            second.stdin.flush()
            out = [first.communicate("\n")[0], second.communicate()[0].removeprefix("asked\n")]
    handed_out = 2 + sum(int(text.split()[0]) for text in out)
    assert handed_out == sum(account.queries for account in EnsembleFolder(path).accounts) == alone


def test_without_any_lock_one_of_two_aggregations_is_refused(tmp_path, monkeypatch):
    """The account itself is compared and written at once: a lock is for waiting."""
    path = tmp_path / "kept"
    saved(path)
    monkeypatch.setattr(files.fcntl, "flock", lambda *_: None)
    made, right, found = EnsembleFolder(path), folder.aggregate, []

    def overtaken(*given, **more):
        monkeypatch.setattr(folder, "aggregate", right)
        found.append(EnsembleFolder(path).aggregate())
        return right(*given, **more)

    monkeypatch.setattr(folder, "aggregate", overtaken)
    with pytest.raises(SartorError, match="exists"):
        made.aggregate()
    assert len(found) == len(EnsembleFolder(path).accounts) == 1
    assert len(made.aggregate(further=True)) == 0


def test_a_charge_that_is_missing_or_another_is_noticed(tmp_path):
    path = tmp_path / "kept"
    made = saved(path)
    for _ in range(3):
        made.aggregate(labels=2, further=True)
    contents = {file.name: file.read_bytes() for file in path.glob("charge*")}

    def refused(match):
        with pytest.raises(SartorError, match=match) as error:
            EnsembleFolder(path)
        assert one_sentence(error)
        with pytest.raises(SartorError, match=match):
            made.aggregate(labels=2)
        for name, content in contents.items():
            (path / name).write_bytes(content)
        assert len(EnsembleFolder(path).accounts) == 3

    for name in ("charge-00000", "charge-00001", "charge-00002"):
        (path / name).unlink()
        refused("lacks charges")
    (path / "charge-00001").write_bytes(contents["charge-00000"])
    refused("damaged")
    (path / "charge-00000").write_bytes(contents["charge-00000"][:-9])
    refused("damaged")
    (path / "charged").write_bytes(b"several")
    refused("damaged")
    other = saved(tmp_path / "other")
    other.aggregate(labels=1)
    (path / "charge-00000").write_bytes((tmp_path / "other" / "charge-00000").read_bytes())
    refused("damaged")


def test_files_of_another_folder_are_refused(tmp_path):
    made = saved(tmp_path / "kept")
    saved(tmp_path / "other")
    (tmp_path / "kept" / "votes").write_bytes((tmp_path / "other" / "votes").read_bytes())
    with pytest.raises(SartorError, match="another place or folder"):
        made.aggregate()
    for name in ("teaching.json", "ensemble.json"):
        (tmp_path / "kept" / name).write_text("[]")
    with pytest.raises(SartorError) as error:
        EnsembleFolder(tmp_path / "kept")
    assert one_sentence(error)


def test_only_the_same_people_and_plan_go_on(tmp_path):
    people = sartor.Budgets([1.0, 2.0] * 30, delta=1e-5, holders=[f"holder {i}" for i in range(60)])
    found = plan(people, "weight", teachers=5, aggregator=GNMax(noise=30.0))
    EnsembleFolder.create(tmp_path / "kept", found, people)
    back = EnsembleFolder(tmp_path / "kept")
    assert back.budgets.names == people.names
    back.check_same(found, people)
    others = [
        sartor.Budgets(people.epsilon, delta=people.delta),
        people.ordered_as([*people.names[2:], *people.names[:2]]),
        sartor.Budgets(people.epsilon[::-1], delta=people.delta, holders=people.names),
    ]
    for other in others:
        with pytest.raises(SartorError, match="other budgets or holders"):
            back.check_same(found, other)
    with pytest.raises(SartorError, match="another plan"):
        back.check_same(plan(people, "upsample", teachers=5, aggregator=GNMax(noise=30.0)), people)


def one_sentence(error):
    text = str(error.value)
    return text.endswith(".") and "\n" not in text and text.count(". ") == 0


def test_votes_that_cannot_be_aggregated_are_not_kept(tmp_path):
    found = plan(PEOPLE, "weight", teachers=10, aggregator=GNMax(noise=30.0))
    made = EnsembleFolder.create(tmp_path / "kept", found, PEOPLE)
    objects, fractions, classes = np.zeros((3, 10), object), np.zeros((3, 10)), np.full((3, 10), 7)
    for votes in (objects, fractions, classes, np.zeros((3, 9), int), np.zeros(10, int)):
        with pytest.raises(SartorError):
            made.put(votes, 3)
    with pytest.raises(SartorError, match="not all voted"):
        made.aggregate()


def test_nothing_in_a_file_is_a_pickle(tmp_path):
    made = saved(tmp_path / "kept")
    made.aggregate(labels=2)
    for name in ("votes", "charge-00000"):
        with zipfile.ZipFile(tmp_path / "kept" / name) as archive:
            for member in archive.namelist():
                with archive.open(member) as file:
                    major = np.lib.format.read_magic(file)
                    read = {1: np.lib.format.read_array_header_1_0, 2: np.lib.format.read_array_header_2_0}[major[0]]
                    assert not read(file)[2].hasobject


def test_a_folder_that_holds_no_ensemble_is_one_sentence(tmp_path):
    for path in (tmp_path / "none", tmp_path, Path(__file__)):
        with pytest.raises(SartorError) as error:
            EnsembleFolder(path)
        assert one_sentence(error)


def test_without_any_lock_there_are_never_fewer_charges_than_releases(tmp_path, monkeypatch):
    """Who is overtaken between a charge and its count hands nothing out, and asks and pays again."""
    monkeypatch.setattr(files.fcntl, "flock", lambda *_: None)
    saved(tmp_path / "kept")
    found = aggregations_at_once(tmp_path / "kept", 3, 5)
    charged = EnsembleFolder(tmp_path / "kept")
    assert len(charged.accounts) >= len(found)
    assert holders_within_budget(PEOPLE, charged.plan, found)
