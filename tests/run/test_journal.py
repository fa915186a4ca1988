"""The journal of a run: charged before anything is drawn, by one process, and never turned back by a file."""

import copy
import json
import os
import pickle
import shutil
import stat
from dataclasses import replace

import pytest

from sartor.errors import SartorError
from sartor.run import journal as journals
from sartor.run.journal import Entry, Journal, exists, is_begun, remove

FIRST = b"model and all else"


def begun(folder, charged=10):
    journal = Journal.begin(folder)
    journal.write(Entry(charged=charged), FIRST)
    return journal


def refused(match):
    return pytest.raises(SartorError, match=match)


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "lock"}


def test_a_charge_is_there_for_whoever_takes_the_run_up(tmp_path):
    begun(tmp_path).close()
    journal = Journal.resume(tmp_path)
    assert journal.entry == Entry(charged=10)
    assert journal.content() == FIRST
    journal.write(Entry(charged=15, lost=2, restarts=1), b"another")
    journal.close()
    again = Journal.resume(tmp_path)
    assert (again.entry.charged, again.entry.lost, again.content()) == (15, 2, b"another")


def test_a_charge_without_a_new_checkpoint_keeps_the_one_that_stands(tmp_path):
    journal = begun(tmp_path)
    journal.write(replace(journal.entry, charged=12))
    assert journal.content() == FIRST


def test_folder_and_files_are_their_owners_alone_and_nothing_piles_up(tmp_path):
    before = os.umask(0)
    try:
        journal = begun(tmp_path / "run")
        for charged in range(11, 15):
            journal.write(Entry(charged=charged), b"%d" % charged)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "run").stat().st_mode) == 0o700
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["00000005.safetensors", "journal.json", "lock"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "run").iterdir()} == {0o600}


def test_what_a_kill_left_half_written_goes_with_the_next_charge_and_other_files_stay(tmp_path):
    begun(tmp_path).close()
    for name in (".journal.json.0123456789abcdef", "00000002.safetensors", ".00000002.safetensors.00ff", "mine.safetensors"):
        (tmp_path / name).write_bytes(b"half")
    journal = Journal.resume(tmp_path)
    journal.write(replace(journal.entry, incarnation=1))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["00000001.safetensors", "journal.json", "lock", "mine.safetensors"]


def test_the_journal_says_that_it_is_not_for_backups(tmp_path):
    begun(tmp_path)
    assert "backups" in json.loads((tmp_path / "journal.json").read_text())["about"]


def test_a_second_run_is_refused_where_one_began(tmp_path):
    begun(tmp_path).close()
    with refused("holds a run already: continue it"):
        Journal.begin(tmp_path)
    assert exists(tmp_path)
    assert is_begun(tmp_path)
    (tmp_path / "journal.json").unlink()
    assert not exists(tmp_path)
    with refused("the journal in .* is missing"):
        Journal.resume(tmp_path)
    with refused("holds no checkpoint .* leave out resume=True"):
        Journal.resume(tmp_path / "nowhere")


def test_a_run_whose_journal_was_removed_is_not_begun_anew(tmp_path):
    journal = begun(tmp_path)
    journal.write(Entry(charged=20), b"later")
    journal.close()
    (tmp_path / "journal.json").unlink()
    with refused("the journal in .* is missing"):
        Journal.begin(tmp_path)


def test_a_run_begins_where_the_first_charge_of_another_was_broken_off(tmp_path):
    """Then nothing was drawn."""
    Journal.begin(tmp_path).close()
    (tmp_path / "00000001.safetensors").write_bytes(b"whole, and named by no journal")
    assert not exists(tmp_path)
    begun(tmp_path)


@pytest.mark.parametrize("kind", [".safetensors", ".json"])
def test_a_stop_amid_a_charge_leaves_the_checkpoint_before(tmp_path, monkeypatch, kind):
    journal, inner = begun(tmp_path), journals.write_private

    def stopped(path, content, **how):
        if path.suffix == kind:
            raise KeyboardInterrupt
        inner(path, content, **how)

    monkeypatch.setattr(journals, "write_private", stopped)
    with pytest.raises(KeyboardInterrupt):
        journal.write(Entry(charged=20), b"later")
    journal.close()
    again = Journal.resume(tmp_path)
    assert (again.entry.charged, again.content()) == (10, FIRST)


def test_a_journal_that_a_copy_of_the_run_wrote_is_another_one_though_it_says_the_same(tmp_path):
    begun(tmp_path / "one").close()
    shutil.copytree(tmp_path / "one", tmp_path / "other")
    one, other = (Journal.resume(tmp_path / name) for name in ("one", "other"))
    for journal in (one, other):
        journal.write(Entry(charged=20), b"later")
    shutil.copy(tmp_path / "other" / "journal.json", tmp_path / "one" / "journal.json")
    with refused("was changed by another process or by hand"):
        one.write(Entry(charged=30), b"latest")


def test_of_two_that_begin_at_once_one_does(tmp_path, monkeypatch):
    inner = journals.lock

    def late(*folder, **how):
        monkeypatch.setattr(journals, "lock", inner)
        begun(tmp_path).close()
        return inner(*folder, **how)

    monkeypatch.setattr(journals, "lock", late)
    with refused("holds a run already"):
        Journal.begin(tmp_path)
    assert Journal.resume(tmp_path).content() == FIRST


def test_one_process_works_in_a_folder_at_a_time(tmp_path):
    journal = begun(tmp_path)
    with refused("is in use by another run"):
        Journal.resume(tmp_path)
    (tmp_path / "other").mkdir()
    waiting = Journal.begin(tmp_path / "other")
    with refused("is in use by another run"):
        Journal.begin(tmp_path / "other")
    waiting.close()
    journal.close()
    Journal.resume(tmp_path)


def test_a_journal_that_somebody_else_replaced_is_never_written_over(tmp_path):
    journal = begun(tmp_path)
    there = (tmp_path / "journal.json").read_bytes()
    (tmp_path / "journal.json").write_bytes(there.replace(b'"charged": 10', b'"charged": 11'))
    with refused("was changed by another process or by hand"):
        journal.write(Entry(charged=20), b"later")


def test_a_child_that_was_forked_cannot_charge(tmp_path):
    journal = begun(tmp_path)
    if not (pid := os.fork()):
        try:
            journal.write(Entry(charged=20), b"later")
        except SartorError:
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    assert json.loads((tmp_path / "journal.json").read_text())["run"]["charged"] == 10
    journal.write(Entry(charged=20), b"later")


@pytest.mark.parametrize("put_back", [["journal.json"], ["00000001.safetensors"]], ids=["journal", "checkpoint"])
def test_a_single_file_that_is_put_back_never_lowers_the_charge(tmp_path, put_back):
    journal = begun(tmp_path)
    old = files(tmp_path)
    journal.write(Entry(charged=20), b"later")
    journal.close()
    for name in put_back:
        (tmp_path / name).write_bytes(old[name])
    if put_back == ["journal.json"]:
        with refused("a file was removed or put back"):
            Journal.resume(tmp_path)
    else:
        assert Journal.resume(tmp_path).entry.charged == 20


DAMAGE = {
    "half a journal": lambda folder: halve(folder / "journal.json"),
    "an empty journal": lambda folder: (folder / "journal.json").write_bytes(b""),
    "no text": lambda folder: (folder / "journal.json").write_bytes(b"\xff\xfe\x00"),
    "a list": lambda folder: (folder / "journal.json").write_bytes(b"[]"),
    "brackets": lambda folder: (folder / "journal.json").write_bytes(b"[" * 200_000),
    "text for a number": lambda folder: replaced(folder, b'"charged": 10', b'"charged": "10"'),
    "a negative number": lambda folder: replaced(folder, b'"charged": 10', b'"charged": -1'),
    "an unknown field": lambda folder: replaced(folder, b'"charged"', b'"paid"'),
    "a path": lambda folder: replaced(folder, b'"00000001.safetensors"', b'"../00000001.safetensors"'),
    "half a checkpoint": lambda folder: halve(folder / "00000001.safetensors"),
    "a link": lambda folder: linked(folder / "00000001.safetensors"),
}


def halve(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def replaced(folder, old, new):
    content = (folder / "journal.json").read_bytes()
    assert old in content
    (folder / "journal.json").write_bytes(content.replace(old, new))


def linked(path):
    path.rename(path.parent.parent / "elsewhere")
    path.symlink_to(path.parent.parent / "elsewhere")


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_gives_one_sentence(tmp_path, damage):
    begun(tmp_path / "run").close()
    DAMAGE[damage](tmp_path / "run")
    with refused("damaged|symbolic link") as caught:
        Journal.resume(tmp_path / "run").content()
    assert "\n" not in str(caught.value)


def test_a_run_that_is_over_can_be_taken_away(tmp_path):
    begun(tmp_path / "run").close()
    remove(tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_journal_is_neither_copied_nor_pickled(tmp_path):
    journal = begun(tmp_path)
    for made in (copy.copy, copy.deepcopy, pickle.dumps):
        with refused("cannot be copied or pickled"):
            made(journal)


def test_a_charge_that_was_cut_off_is_settled_by_the_next(tmp_path, monkeypatch):
    """Whether the journal was replaced or not, and however often: what stands afterwards is one journal and its checkpoint."""
    journal = begun(tmp_path)
    replace_file, cut = os.replace, []

    def stopped(source, target):
        if len(cut) < 4 and str(target).endswith("journal.json"):
            cut.append(1)
            if len(cut) % 2:
                replace_file(source, target)
            raise KeyboardInterrupt
        replace_file(source, target)

    monkeypatch.setattr(os, "replace", stopped)
    for charged in range(11, 15):
        with pytest.raises(KeyboardInterrupt):
            journal.write(Entry(charged=charged), b"%d" % charged)
        (tmp_path / "copy").mkdir(exist_ok=True)
    journal.write(Entry(charged=20), b"last")
    journal.close()
    again = Journal.resume(tmp_path)
    assert (again.entry.charged, again.content()) == (20, b"last")


def test_a_charge_that_was_cut_off_twice_and_then_killed_can_be_taken_up(tmp_path, monkeypatch):
    journal = begun(tmp_path)
    real = journals.holding

    def stopped(place):
        raise KeyboardInterrupt

    monkeypatch.setattr(journals, "holding", stopped)
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            journal.write(Entry(charged=20), b"never named")
    monkeypatch.setattr(journals, "holding", real)
    journal.close()
    assert Journal.resume(tmp_path).entry.charged == 10
