"""Saved votes: every aggregation is paid for, whatever happens between, and a damaged file is one sentence."""

import contextlib
import importlib
import io
import os
import stat
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

import sartor
from sartor.errors import SartorError
from sartor.pate import store
from sartor.pate.aggregators import GNMax
from sartor.pate.costs import Accountant
from sartor.pate.plan import VARIANTS, plan
from sartor.pate.store import SavedVotes
from sartor.pate.voting import DataDependent
from sartor.sgd.stream import Stream

sys.path.insert(0, str(Path(__file__).parents[1]))
from pate.test_voting import holders_within_budget, random_votes

placing = importlib.import_module("sartor.pate.partition")
PEOPLE = sartor.Budgets.from_groups([(1.0, 50), (2.0, 30), (4.0, 20)], delta=1e-5)


def saved(path, variant="weight", queries=200, noise=30.0):
    """Votes in a file that nothing was made of."""
    found = plan(PEOPLE, variant, teachers=10, aggregator=GNMax(noise=noise))
    return SavedVotes.create(path, found, random_votes(queries, found.teachers, 3, 1)[0], 3, of="digits")


def all_aggregations_keep_the_budgets(path, variant="weight"):
    """Whether many aggregations of one file, each by a reader of its own, together keep everyone's budget, and some were had."""
    made = saved(path, variant)
    found = [SavedVotes(path).aggregate(labels=1 + i % 5, stream=Stream(seed=i)) for i in range(12)]
    found += [made.aggregate(stream=Stream(seed=100 + i)) for i in range(3)]
    return len(found[0]) > 0 and holders_within_budget(PEOPLE, made.plan, found)


@pytest.mark.parametrize("variant", VARIANTS)
def test_many_aggregations_of_one_file_together_keep_the_budgets(tmp_path, variant):
    assert all_aggregations_keep_the_budgets(tmp_path / "votes", variant)


def test_a_second_aggregation_is_charged(tmp_path):
    path = tmp_path / "votes"
    first = saved(path).aggregate()
    again = SavedVotes(path)
    second = again.aggregate()
    assert len(first) > 0
    assert len(second) == 0
    assert [account.queries for account in SavedVotes(path).accounts] == [len(first), 0]
    assert SavedVotes(path).accounts[0].cost == pytest.approx(first.account.cost, rel=1e-15)


def test_what_was_saved_is_read_back(tmp_path):
    made = saved(tmp_path / "votes")
    with pytest.warns(DataDependent):
        made.aggregate(bound="dependent", accountant=Accountant.paper(), labels=2, stream=Stream(seed=1))
    back = SavedVotes(tmp_path / "votes")
    assert np.array_equal(back.votes, made.votes)
    assert (back.classes, back.of, back.plan.to_json()) == (3, "digits", made.plan.to_json())
    (account,) = back.accounts
    assert account.seeded
    assert account.sensitive
    assert np.array_equal(account.divergence, made.accounts[0].divergence)
    assert np.array_equal(account.accountant.orders, Accountant.paper().orders)
    assert account.accountant.conversion == "mironov"


def test_different_bounds_and_accountants_add_up(tmp_path):
    path = tmp_path / "votes"
    saved(path)
    found = [SavedVotes(path).aggregate(labels=3, accountant=Accountant.paper()), SavedVotes(path).aggregate(labels=3)]
    total = SavedVotes(path).account
    np.testing.assert_allclose(total.cost, found[0].account.cost + found[1].account.cost)
    assert np.all(total.spent > found[1].account.spent)
    with pytest.warns(DataDependent):
        found.append(SavedVotes(path).aggregate(labels=3, bound="dependent"))
    assert holders_within_budget(PEOPLE, SavedVotes(path).plan, found)
    with pytest.raises(SartorError, match="stopped by the votes"):
        SavedVotes(path).aggregate(go_on=True)


def test_the_file_is_its_owners_alone_and_nothing_else_is_left(tmp_path):
    path = tmp_path / "votes"
    before = os.umask(0)
    try:
        made = saved(path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        path.chmod(0o644)
        made.aggregate(labels=1)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert sorted(p.name for p in tmp_path.iterdir()) == ["votes", "votes.lock"]
    assert stat.S_IMODE((tmp_path / "votes.lock").stat().st_mode) == 0o600


def test_votes_are_not_overwritten(tmp_path):
    path = tmp_path / "votes"
    saved(path).aggregate(labels=1)
    with pytest.raises(SartorError, match="exists"):
        saved(path)
    assert len(SavedVotes(path).accounts) == 1


def test_of_two_creations_at_once_one_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "votes"
    right = store.write_private
    found = []

    def late(target, content, *, new):
        monkeypatch.setattr(store, "write_private", right)
        found.append(saved(path).aggregate())  # another process, in between
        right(target, content, new=new)

    monkeypatch.setattr(store, "write_private", late)
    with contextlib.suppress(SartorError):
        saved(path)
    found.append(SavedVotes(path).aggregate())
    assert holders_within_budget(PEOPLE, SavedVotes(path).plan, found)


def test_a_link_to_the_file_is_the_same_file(tmp_path):
    path, link = tmp_path / "votes", tmp_path / "link"
    saved(path)
    link.symlink_to(path)
    found = [SavedVotes(link).aggregate(), SavedVotes(path).aggregate()]
    assert holders_within_budget(PEOPLE, SavedVotes(path).plan, found)


def test_a_path_of_another_folder_is_the_same_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = saved("votes")
    (tmp_path / "sub").mkdir()
    found = [made.aggregate(), SavedVotes(tmp_path / "sub" / ".." / "votes").aggregate()]
    assert holders_within_budget(PEOPLE, made.plan, found)


@pytest.mark.parametrize("fails", ["replace", "fsync", "fdopen"])
def test_a_failure_while_writing_releases_nothing(tmp_path, monkeypatch, fails):
    path = tmp_path / "votes"
    made = saved(path)

    def broken(*_, **__):
        raise OSError(28, "no space left")

    monkeypatch.setattr(store.os, fails, broken)
    with pytest.raises(SartorError, match="space"):
        made.aggregate()
    monkeypatch.undo()
    assert SavedVotes(path).accounts == []
    assert sorted(p.name for p in tmp_path.iterdir()) == ["votes", "votes.lock"]
    assert holders_within_budget(PEOPLE, made.plan, [made.aggregate(), SavedVotes(path).aggregate()])


def test_a_failure_after_writing_is_charged(tmp_path, monkeypatch):
    path = tmp_path / "votes"
    made = saved(path)
    right, calls = store.os.fsync, []

    def second_time(descriptor):
        calls.append(descriptor)
        if len(calls) == 2:
            raise OSError("the folder cannot be synced")
        right(descriptor)

    monkeypatch.setattr(store.os, "fsync", second_time)
    with pytest.raises(SartorError, match="brought to the disk: the folder cannot be synced"):
        made.aggregate()
    monkeypatch.undo()
    assert len(SavedVotes(path).accounts) == 1
    assert len(made.aggregate()) == 0


def test_a_lock_is_given_back_after_a_failure(tmp_path):
    made = saved(tmp_path / "votes")
    for _ in range(2):
        with pytest.raises(SartorError):
            made.aggregate(bound="loose")
    assert len(made.aggregate(labels=1)) == 1


def in_a_fork(work):
    """Run this in a process of its own; what it wrote comes back from the returned function."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        code = 1
        try:
            os.close(reading)
            with os.fdopen(writing, "wb") as pipe:
                pipe.write(work())
            code = 0
        finally:
            os._exit(code)
    os.close(writing)

    def result():
        with os.fdopen(reading, "rb") as pipe:
            content = pipe.read()
        return os.waitpid(pid, 0)[1], content

    return result


def aggregations_at_once(path, processes=4, each=10):
    """What several processes got that aggregate the same file at once."""

    def work():
        content, own = io.BytesIO(), SavedVotes(path)
        arrays = {}
        for i in range(each):
            found = own.aggregate(labels=2)
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


def test_aggregations_at_once_together_keep_the_budgets(tmp_path):
    path = tmp_path / "votes"
    made = saved(path, noise=25.0)
    alone = int(saved(tmp_path / "other", noise=25.0).aggregate().asked.sum())
    found = aggregations_at_once(path)
    assert len(SavedVotes(path).accounts) == 40
    assert sum(int(f.asked.sum()) for f in found) == alone < 80
    assert holders_within_budget(PEOPLE, made.plan, found)


def test_a_process_that_dies_before_the_write_releases_nothing(tmp_path):
    path = tmp_path / "votes"
    made = saved(path)

    def work():
        store.write_private = lambda *_, **__: os._exit(9)
        made.aggregate()
        return b"labels"

    code, content = in_a_fork(work)()
    assert os.waitstatus_to_exitcode(code) == 9
    assert content == b""
    assert SavedVotes(path).accounts == []
    assert len(made.aggregate(labels=1)) == 1


def one_sentence(error):
    text = str(error.value)
    return text.endswith(".") and "\n" not in text and text.count(". ") == 0


GARBAGE = {
    "empty": b"",
    "text": b"these are no votes",
    "a pickle": b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00\x8c\x07example\x94.",
    "json": b'{"format": "sartor votes 1"}',
}


@pytest.mark.parametrize("what", GARBAGE)
def test_a_file_that_holds_no_votes_is_one_sentence(tmp_path, what):
    path = tmp_path / "votes"
    path.write_bytes(GARBAGE[what])
    with pytest.raises(SartorError) as error:
        SavedVotes(path)
    assert one_sentence(error)


def test_other_archives_hold_no_votes(tmp_path):
    path = tmp_path / "votes"
    for arrays in (
        {},
        {"votes": np.zeros((2, 2), int)},
        {"document": np.frombuffer(b"{}", np.uint8)},
        {"document": np.frombuffer(b"[]", np.uint8)},
    ):
        with open(path, "wb") as file:
            np.savez(file, **arrays)
        with pytest.raises(SartorError) as error:
            SavedVotes(path)
        assert one_sentence(error)
    with open(path, "wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(SartorError):
        SavedVotes(path)


def test_a_missing_file_and_a_folder_are_one_sentence(tmp_path):
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(SartorError) as error:
            SavedVotes(path)
        assert one_sentence(error)


def test_a_truncated_file_is_one_sentence(tmp_path):
    path = tmp_path / "votes"
    saved(path, queries=20)
    whole = path.read_bytes()
    for length in range(0, len(whole), max(1, len(whole) // 40)):
        path.write_bytes(whole[:length])
        with pytest.raises(SartorError) as error:
            SavedVotes(path)
        assert one_sentence(error)


def test_a_changed_byte_is_noticed_or_changes_nothing(tmp_path):
    path = tmp_path / "votes"
    made = saved(path, queries=20)
    made.aggregate(labels=2, stream=Stream(seed=1))
    cost, whole = made.accounts[0].cost, path.read_bytes()
    for place in range(0, len(whole), max(1, len(whole) // 300)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        try:
            back = SavedVotes(path)
        except SartorError:
            continue
        assert np.array_equal(back.votes, made.votes)
        assert [account.cost.tolist() for account in back.accounts] == [cost.tolist()]


def test_nothing_in_the_file_is_a_pickle(tmp_path):
    path = tmp_path / "votes"
    saved(path).aggregate(labels=2)
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            with archive.open(name) as member:
                major = np.lib.format.read_magic(member)
                read = {1: np.lib.format.read_array_header_1_0, 2: np.lib.format.read_array_header_2_0}[major[0]]
                assert not read(member)[2].hasobject


def test_a_file_with_a_pickle_inside_is_not_opened(tmp_path):
    path = tmp_path / "votes"

    class Harm:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "harm"),))

    made = saved(tmp_path / "right")
    content, start = io.BytesIO(), len(store._FORMAT) + store._DIGEST
    with np.load(io.BytesIO((tmp_path / "right").read_bytes()[start:])) as stored:
        np.savez(content, document=stored["document"], votes=np.array([Harm()], object))
    path.write_bytes(store._FORMAT + store._digest(content.getvalue()) + content.getvalue())
    with pytest.raises(SartorError):
        SavedVotes(path)
    assert not (tmp_path / "harm").exists()
    assert made.accounts == []


@pytest.mark.parametrize(
    "votes",
    [np.zeros((3, 10), object), np.zeros((3, 10)), np.zeros((3, 9), int), np.full((3, 10), 7), np.zeros(10, int)],
    ids=["objects", "fractions", "a teacher too few", "a class too high", "one dimension"],
)
def test_votes_that_cannot_be_aggregated_are_not_saved(tmp_path, votes):
    found = plan(PEOPLE, "weight", teachers=10, aggregator=GNMax(noise=30.0))
    with pytest.raises(SartorError):
        SavedVotes.create(tmp_path / "votes", found, votes, 3)
    assert not (tmp_path / "votes").exists()


def test_a_folder_that_is_not_there_is_one_sentence(tmp_path):
    with pytest.raises(SartorError):
        saved(tmp_path / "none" / "votes")
