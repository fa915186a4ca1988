"""The lock of a folder: one process at a time, whatever is removed, moved or linked."""

import os

import pytest

from sartor.errors import SartorError
from sartor.run.files import lock


def another_process(folder):
    """What another process gets that wants the same folder."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            lock(folder, taken="taken.").check()
            os.write(writing, b"in")
        except SartorError as error:
            os.write(writing, str(error).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        found = pipe.read()
    os.waitpid(pid, 0)
    return found


def test_removing_the_lock_file_lets_nobody_in_and_stops_the_holder(tmp_path):
    with lock(tmp_path) as held:
        held.check()
        (tmp_path / "lock").unlink()
        assert another_process(tmp_path) == "taken."
        with pytest.raises(SartorError, match="another process may work in it"):
            held.check()
    assert another_process(tmp_path) == "in"


def test_a_folder_is_the_same_by_every_name(tmp_path):
    folder, link = tmp_path / "a folder", tmp_path / "link"
    folder.mkdir()
    link.symlink_to(folder)
    with lock(link) as held:
        assert another_process(folder) == "taken."
        folder.rename(tmp_path / "moved")
        assert another_process(tmp_path / "moved") == "taken."
        with pytest.raises(SartorError, match="moved"):
            held.check()


def test_a_file_put_in_the_place_of_the_lock_is_noticed(tmp_path):
    with lock(tmp_path) as held:
        (tmp_path / "other").touch()
        os.replace(tmp_path / "other", tmp_path / "lock")
        with pytest.raises(SartorError, match="lock was removed"):
            held.check()


def test_a_lock_is_not_followed_to_another_place(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SartorError, match="cannot be locked"):
        lock(tmp_path / "folder")
    assert not (tmp_path / "elsewhere").exists()


def test_a_fork_of_the_holder_holds_nothing_and_gives_nothing_away(tmp_path):
    held = lock(tmp_path)
    pid = os.fork()
    if not pid:
        refused = not held.ours
        held.close()
        os._exit(0 if refused else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert another_process(tmp_path) == "taken."
    held.check()
    held.close()
    with pytest.raises(SartorError, match="closed"):
        held.check()


def test_a_folder_that_is_not_there_is_one_sentence(tmp_path):
    with pytest.raises(SartorError, match="cannot be locked"):
        lock(tmp_path / "none")
