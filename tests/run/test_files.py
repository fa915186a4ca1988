"""One writer for all files: whole or not at all, regular files alone, modes as they should be."""

import ast
import os
import re
import socket
import stat
from pathlib import Path

import pytest

import sartor
from sartor.cli import main
from sartor.run.files import check_place, write_private, write_public

SMALL = ("plan", "--epsilon", "1,2", "--share", "0.5,0.5", "--holders", "100", "--delta", "1e-5", "--steps", "50", "--batch", "10")
WRITERS = {"public": write_public, "private": lambda path, content: write_private(path, content.encode())}


def mode(path):
    return stat.S_IMODE(os.lstat(path).st_mode)


def fifo(path):
    os.mkfifo(path, 0o622)


def link(path):
    path.with_name("elsewhere").write_text("before")
    path.with_name("elsewhere").chmod(0o640)
    path.symlink_to("elsewhere")


def bound(path):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(path))  # a whole path may be too long for a socket


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("kind", [fifo, link, bound, Path.mkdir])
def test_what_is_not_a_regular_file_is_refused_and_left_as_it_was(tmp_path, monkeypatch, writer, kind):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "there"
    kind(path)
    before = os.lstat(path)
    with pytest.raises(sartor.SartorError, match="not a file: give the path of a file") as caught:
        WRITERS[writer](path, "content")
    assert "\n" not in str(caught.value)
    with pytest.raises(sartor.SartorError, match="not a file"):
        check_place(path)
    after = os.lstat(path)
    assert (before.st_mode, before.st_ino) == (after.st_mode, after.st_ino)
    if kind is link:
        assert ((tmp_path / "elsewhere").read_text(), mode(tmp_path / "elsewhere")) == ("before", 0o640)
    assert len(list(tmp_path.iterdir())) == (2 if kind is link else 1)


@pytest.fixture
def terminal():
    """A device of our own, whose mode may change without harm."""
    leader, follower = os.openpty()
    yield os.ttyname(follower)
    os.close(follower)
    os.close(leader)


@pytest.mark.parametrize("form", [(), ("--all-groups",)])
def test_plan_does_not_touch_a_device(capsys, terminal, form):
    before = os.stat(terminal).st_mode
    with pytest.raises(SystemExit) as stop:
        main([*SMALL, "--accountant", "rdp", "--out", terminal, *form])
    out, err = capsys.readouterr()
    assert os.stat(terminal).st_mode == before
    assert (stop.value.code, out) == (2, "")
    assert re.fullmatch(r"error: [^\n]* use --json\)\.\n", err)


def test_a_public_file_keeps_its_mode_and_a_new_one_follows_the_umask(tmp_path):
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    old.write_text("before")
    old.chmod(0o640)
    before = os.umask(0o027)
    try:
        for path in (old, new):
            write_public(path, "after")
    finally:
        os.umask(before)
    assert (old.read_text(), mode(old), mode(new)) == ("after", 0o640, 0o640)
    old.chmod(0o660)
    write_public(old, b"again")
    assert (old.read_bytes(), mode(old)) == (b"again", 0o660)


def test_a_private_file_is_its_owners_whatever_was_there(tmp_path):
    path, other = tmp_path / "secret", tmp_path / "other-name"
    path.write_text("before")
    path.chmod(0o666)
    os.link(path, other)
    before = os.umask(0)
    try:
        write_private(path, b"after")
    finally:
        os.umask(before)
    assert (path.read_bytes(), mode(path)) == (b"after", 0o600)
    assert other.read_text() == "before"


def test_a_write_that_fails_leaves_what_was_there_and_no_litter(tmp_path, monkeypatch):
    path = tmp_path / "plan.json"
    path.write_text("before")

    def full(*given):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(sartor.SartorError, match="cannot be written: No space left"):
            write_public(path, "after")
    assert [(entry.name, entry.read_text()) for entry in tmp_path.iterdir()] == [("plan.json", "before")]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_file_that_is_write_protected_is_not_replaced(tmp_path):
    path = tmp_path / "plan.json"
    path.write_text("before")
    path.chmod(0o444)
    with pytest.raises(sartor.SartorError, match="Permission denied"):
        write_public(path, "after")
    assert path.read_text() == "before"


def test_nothing_else_in_the_library_writes_files():
    """Whatever writes by itself would follow links, change devices or leave halves."""
    ours = Path(sartor.__file__).parent
    found = []
    for path in ours.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                name = ast.unparse(node.func)
                wrote = name.endswith((".write_text", ".write_bytes", "save_file", ".touch", "savetxt", ".tofile")) or name == "os.open"
                modes = [a.value for a in [*node.args, *(k.value for k in node.keywords)] if isinstance(a, ast.Constant)]
                writing = any(isinstance(m, str) and re.fullmatch(r"[rwaxbt+]*[wax+][bt+]*", m) for m in modes)
                opened = name.split(".")[-1] == "open" and writing
                if wrote or opened:
                    found.append(f"{path.relative_to(ours)}: {name}")
    assert {entry for entry in found if not entry.startswith("run/files.py")} == set()
