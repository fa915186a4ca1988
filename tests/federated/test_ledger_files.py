"""The ledger's files: put back, missing, linked, left open or written by another; what proves a charged round is believed."""

import json
import os
import shutil
import stat
import subprocess
import sys
from functools import cache
from itertools import product

import pytest
import safetensors.torch
import torch

import sartor
from sartor import federated
from sartor.errors import SartorError
from sartor.federated import Ledger
from sartor.federated import ledger as keeping
from sartor.run import files

NAMES = ("clients.json", "rounds.json", "state.safetensors")


BUDGETS = sartor.Budgets((1.0, 3.0) * 10, delta=1e-3)


@cache
def planned(rounds):
    return federated.plan(BUDGETS, rounds=rounds, per_round=4, accountant="rdp")


def made(folder, *, rounds=6):
    return Ledger.create(folder, planned(rounds), [f"client {i}" for i in range(20)], BUDGETS, state={"model": torch.zeros(2)})


def contents(folder):
    return {name: (folder / name).read_bytes() for name in NAMES}


def put(folder, found):
    for name, content in found.items():
        (folder / name).write_bytes(content)


def opens(folder):
    try:
        Ledger(folder).close()
    except SartorError:
        return False
    return True


def save(ledger):
    ledger.save({"model": torch.full((2,), float(ledger.charged))})


def test_rounds_put_back_while_the_state_proves_a_later_round_are_refused(tmp_path):
    with made(tmp_path) as ledger:
        ledger.charge()
        save(ledger)
        earlier = (tmp_path / "rounds.json").read_bytes()
        ledger.charge()
        save(ledger)
    (tmp_path / "rounds.json").write_bytes(earlier)
    for _ in range(2):  # and the folder is let go
        with pytest.raises(SartorError, match=r"proves a later round than rounds\.json"):
            Ledger(tmp_path)


def test_a_state_put_back_beside_later_rounds_is_refused(tmp_path):
    with made(tmp_path) as ledger:
        earlier = (tmp_path / "state.safetensors").read_bytes()
        for _ in range(2):
            ledger.charge()
            save(ledger)
    (tmp_path / "state.safetensors").write_bytes(earlier)
    with pytest.raises(SartorError, match="not what the last charged round began from"):
        Ledger(tmp_path)


@pytest.mark.parametrize("ended", [0, 1])
def test_charged_rounds_without_a_state_are_refused(tmp_path, ended):
    with made(tmp_path) as ledger:
        for _ in range(ended):
            ledger.charge()
            save(ledger)
        ledger.charge()
    (tmp_path / "state.safetensors").unlink()
    with pytest.raises(SartorError, match=r"state.safetensors is missing"):
        Ledger(tmp_path)
    assert Ledger.is_in(tmp_path)


def test_a_first_round_that_was_cut_off_stays_charged_and_the_run_goes_on(tmp_path):
    with made(tmp_path) as ledger:
        ledger.charge()
    with Ledger(tmp_path) as again:
        assert again.charged == 1
        assert again.saved()["model"].tolist() == [0, 0]
        assert again.charge() == 1
        save(again)
    with Ledger(tmp_path) as again:
        assert again.saved()["model"].tolist() == [2, 2]


def test_files_of_several_moments_are_taken_only_where_no_shown_round_is_forgotten(tmp_path):
    """Every pair of rounds and state that a run ever had on the disk, put together again."""
    moments = []  # the files, how many rounds are charged, and those charged when the state was made

    def note(ledger, shown):
        moments.append((contents(ledger.folder), ledger.charged, shown))

    with made(tmp_path / "run") as ledger:
        note(ledger, 0)
        ledger.charge()
        note(ledger, 0)
        save(ledger)
        note(ledger, 1)
        ledger.withdraw(3)
        note(ledger, 1)
        ledger.charge()
        note(ledger, 1)
        ledger.withdraw(4)
        save(ledger)
        note(ledger, 2)
        ledger.charge()  # and is cut off
        note(ledger, 2)
    with Ledger(tmp_path / "run") as ledger:
        ledger.charge()
        note(ledger, 2)
        save(ledger)
        note(ledger, 4)
    folder = tmp_path / "mixed"
    with made(folder):
        pass
    taken = set()
    for (i, (rounds, charged, _)), (j, (state, _, shown)) in product(enumerate(moments), enumerate(moments)):
        put(folder, {**rounds, "state.safetensors": state["state.safetensors"]})
        if not opens(folder):
            assert i != j
            continue
        taken.add((charged, shown))
    # the state is the one that the last charged round began from, as if it had been cut off, or one that was made of it
    assert taken == {(0, 0), (1, 0), (1, 1), (2, 1), (2, 2), (3, 2), (4, 2), (4, 4)}


def test_a_withdrawal_that_the_state_proves_is_not_put_back(tmp_path):
    with made(tmp_path) as ledger:
        ledger.charge()
        earlier = (tmp_path / "rounds.json").read_bytes()
        ledger.withdraw(3)
        save(ledger)
    (tmp_path / "rounds.json").write_bytes(earlier)
    with pytest.raises(SartorError, match="which was put back"):
        Ledger(tmp_path)


def test_a_state_of_a_copy_that_went_another_way_is_refused(tmp_path):
    made(tmp_path / "one").close()
    shutil.copytree(tmp_path / "one", tmp_path / "copy")
    for folder, cut_off in (("one", False), ("copy", True)):
        with Ledger(tmp_path / folder) as ledger:
            ledger.charge()
            if not cut_off:
                save(ledger)
            ledger.charge()
            save(ledger)
    shutil.copy(tmp_path / "copy" / "state.safetensors", tmp_path / "one" / "state.safetensors")
    with pytest.raises(SartorError, match="not what the last charged round began from"):
        Ledger(tmp_path / "one")


OF_ANOTHER = {"clients.json": "are not of one run", "rounds.json": "are not of one run", "state.safetensors": "is of another run"}


@pytest.mark.parametrize("name", NAMES)
def test_a_file_of_another_run_is_refused(tmp_path, name):
    for run in ("one", "other"):
        with made(tmp_path / run) as ledger:
            ledger.charge()
            save(ledger)
    shutil.copy(tmp_path / "one" / name, tmp_path / "other" / name)
    with pytest.raises(SartorError, match=OF_ANOTHER[name]):
        Ledger(tmp_path / "other")


def test_a_state_changed_while_a_server_runs_is_not_taken(tmp_path):
    with made(tmp_path) as ledger:
        earlier = (tmp_path / "state.safetensors").read_bytes()
        ledger.charge()
        save(ledger)
        (tmp_path / "state.safetensors").write_bytes(earlier)
        with pytest.raises(SartorError, match="changed by another server"):
            ledger.saved()


def test_rounds_written_by_another_are_read_before_every_charge(tmp_path):
    with made(tmp_path) as ledger:
        before = (tmp_path / "rounds.json").read_bytes()
        ledger.charge()
        after = (tmp_path / "rounds.json").read_bytes()
        for others in (before, json.dumps({**json.loads(after), "charged": 3}).encode(), after + b" "):
            (tmp_path / "rounds.json").write_bytes(others)
            for act in (ledger.charge, lambda: ledger.withdraw(2), lambda: save(ledger)):
                with pytest.raises(SartorError, match="changed by another server"):
                    act()
            assert (tmp_path / "rounds.json").read_bytes() == others
        (tmp_path / "rounds.json").write_bytes(after)
        assert ledger.charge() == 1
        (tmp_path / "rounds.json").unlink()
        with pytest.raises(SartorError, match="cannot be read"):
            ledger.charge()


def test_rounds_that_a_copy_of_the_run_charged_are_others_though_they_say_the_same(tmp_path):
    made(tmp_path / "one").close()
    shutil.copytree(tmp_path / "one", tmp_path / "other")
    with Ledger(tmp_path / "one") as one, Ledger(tmp_path / "other") as other:
        assert one.charge() == other.charge() == 0
        shutil.copy(tmp_path / "other" / "rounds.json", tmp_path / "one" / "rounds.json")
        with pytest.raises(SartorError, match="changed by another server"):
            one.charge()


SERVE = """
import sys
from types import SimpleNamespace
from sartor.errors import SartorError
from sartor.federated import ledger as keeping

# as on two machines whose locks do not see each other
keeping.lock = lambda folder, taken: SimpleNamespace(check=lambda: None, close=lambda: None)
print("ready", flush=True)
sys.stdin.readline()
left = 1
while left:
    try:
        with keeping.Ledger(sys.argv[1]) as ledger:
            while left := ledger.left:
                print(ledger.charge(), flush=True)
    except SartorError as error:
        if "another" not in str(error):
            raise
"""


def test_two_servers_that_no_lock_keeps_apart_never_charge_one_round_twice(tmp_path):
    made(tmp_path, rounds=30).close()
    command = [sys.executable, "-c", SERVE, str(tmp_path)]
    servers = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    for server in servers:
        assert server.stdout.readline() == "ready\n"
    for server in servers:
        server.stdin.write("go\n")
        server.stdin.flush()
    run = [int(line) for server in servers for line in server.communicate()[0].split()]
    assert [server.returncode for server in servers] == [0, 0]
    assert sorted(run) == list(range(30))


def test_no_other_process_replaces_a_file_that_is_held(tmp_path):
    path = tmp_path / "file"
    files.write_private(path, b"one")
    with files.holding(path) as content:
        assert content == b"one"
        with pytest.raises(SartorError, match="another process"), files.holding(path):
            pass
        files.write_private(path, b"two")
        with files.holding(path) as content:  # the file that is now under the path
            assert content == b"two"


def test_a_file_replaced_while_it_was_opened_is_not_held(tmp_path, monkeypatch):
    path = tmp_path / "file"
    files.write_private(path, b"one")
    opened = files._opened

    def late(path):
        descriptor = opened(path)
        files.write_private(path, b"two")
        return descriptor

    monkeypatch.setattr(files, "_opened", late)
    with pytest.raises(SartorError, match="another process"), files.holding(path):
        pass


@pytest.mark.parametrize("name", [*NAMES, "lock"])
@pytest.mark.parametrize("dangling", [False, True])
def test_a_link_in_place_of_a_ledger_file_is_refused(tmp_path, name, dangling):
    with made(tmp_path / "run") as ledger:
        ledger.charge()
        save(ledger)
    path, elsewhere = tmp_path / "run" / name, tmp_path / "elsewhere"
    path.unlink() if dangling else path.rename(elsewhere)
    path.symlink_to(elsewhere)
    with pytest.raises(SartorError, match=r"is a link|symbolic link"):
        Ledger(tmp_path / "run")
    assert Ledger.is_in(tmp_path / "run")
    assert path.is_symlink()
    assert elsewhere.exists() != dangling


def test_a_link_put_there_while_a_server_runs_is_refused(tmp_path):
    with made(tmp_path / "run") as ledger:
        path = tmp_path / "run" / "rounds.json"
        path.rename(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")
        with pytest.raises(SartorError, match="is a symbolic link"):
            ledger.charge()
        assert path.is_symlink()


def test_a_pipe_in_place_of_a_ledger_file_is_refused(tmp_path):
    made(tmp_path).close()
    (tmp_path / "state.safetensors").unlink()
    os.mkfifo(tmp_path / "state.safetensors")
    with pytest.raises(SartorError, match="is not a regular file"):
        Ledger(tmp_path)


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_an_open_folder_is_closed(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    folder.chmod(0o777)
    made(folder).close()
    assert mode(folder) == 0o700
    folder.chmod(0o755)
    for name in NAMES:
        (folder / name).chmod(0o644)
    with Ledger(folder):
        assert mode(folder) == 0o700
        assert {mode(folder / name) for name in NAMES} == {0o600}


def test_a_folder_that_everybody_shares_is_left_alone(tmp_path):
    tmp_path.chmod(0o1777)
    with pytest.raises(SartorError, match="is a shared folder"):
        made(tmp_path)
    assert mode(tmp_path) == 0o1777
    assert not any((tmp_path / name).exists() for name in NAMES)


@pytest.mark.parametrize("writes", [0, 1, 2])
def test_a_run_cut_off_while_it_began_can_be_begun(tmp_path, monkeypatch, writes):
    write, done = keeping.write_private, []

    def cut_off(path, content, **how):
        if len(done) == writes:
            raise KeyboardInterrupt
        done.append(path)
        write(path, content, **how)

    monkeypatch.setattr(keeping, "write_private", cut_off)
    with pytest.raises(KeyboardInterrupt):
        made(tmp_path)
    monkeypatch.undo()
    assert not Ledger.is_in(tmp_path)
    with made(tmp_path) as ledger:
        assert ledger.charge() == 0
        save(ledger)
    assert Ledger.is_in(tmp_path)


def test_a_charge_is_on_the_disk_before_it_is_told(tmp_path, monkeypatch):
    """The new file's content before it takes its name, and the name before `charge` returns."""
    happened, right = [], (os.fsync, os.replace)

    def fsync(descriptor):
        right[0](descriptor)
        found = os.fstat(descriptor)
        happened.append(("sync", found.st_ino, found.st_size))

    def move(old, new, **how):
        happened.append(("move", os.stat(old).st_ino, os.stat(old).st_size))
        right[1](old, new, **how)

    with made(tmp_path) as ledger:
        monkeypatch.setattr(os, "fsync", fsync)
        monkeypatch.setattr(os, "replace", move)
        for act, name in (
            (ledger.charge, "rounds.json"),
            (lambda: save(ledger), "state.safetensors"),
            (lambda: ledger.withdraw(1), "rounds.json"),
        ):
            happened.clear()
            act()
            file, folder = os.stat(tmp_path / name), os.stat(tmp_path)
            own = file.st_ino, file.st_size
            assert [(kind, inode) for kind, inode, _ in happened] == [("sync", own[0]), ("move", own[0]), ("sync", folder.st_ino)]
            assert happened[0][1:] == happened[1][1:] == own


def mangled(content):
    """What may be found in the place of a file."""
    deep = b"[" * 200_000
    half, flipped = content[: len(content) // 2], bytes(byte ^ 1 for byte in content)
    numbers = content.replace(b"1", b"1e999"), content.replace(b"0", b"9" * 5_000), content.replace(b"3", b"NaN")
    return [deep, deep + b"]" * 200_000, b"", b"null", b"[]", b"{}", b"\xff\xfe", half, flipped, content[:-1], content + b"}", *numbers]


@pytest.mark.parametrize("name", NAMES)
def test_a_file_that_holds_anything_at_all_gives_one_sentence(tmp_path, name):
    with made(tmp_path) as ledger:
        ledger.charge()
        save(ledger)
    content = (tmp_path / name).read_bytes()
    for other in mangled(content):
        (tmp_path / name).write_bytes(other)
        with pytest.raises(SartorError) as error:
            Ledger(tmp_path)
        told = [error]
        if name == "clients.json" and other.startswith(b"["):
            with pytest.raises(SartorError) as error:
                keeping.Begun.read(tmp_path)
            told.append(error)
        for error in told:
            assert str(error.value).endswith(".")
            assert "\n" not in str(error.value)
        assert Ledger.is_in(tmp_path)
    (tmp_path / name).write_bytes(content)
    Ledger(tmp_path).close()


def test_a_state_nested_too_deeply_or_of_another_kind_is_refused(tmp_path):
    made(tmp_path).close()
    state = safetensors.torch.load_file(tmp_path / "state.safetensors")
    for broken in ("[" * 200_000, "{}", "[1]", json.dumps({"charged": "0", "written": 0, "clients": "", "before": "", "state": {}})):
        safetensors.torch.save_file(state, tmp_path / "state.safetensors", {"state": broken})
        with pytest.raises(SartorError, match="the run cannot be continued without it"):
            Ledger(tmp_path)


def test_a_state_is_kept_as_it_is_and_nothing_in_it_is_a_pickle(tmp_path):
    one = torch.arange(6.0, dtype=torch.float64).reshape(2, 3)
    state = {
        "server": {"w": {"value": one.T, "memory": {"step": torch.tensor(3.0), "gone": None}}},
        "clip": 0.1,
        "more": [1, [], (one, 2.5)],
    }
    with made(tmp_path) as ledger:
        ledger.charge()
        ledger.save(state)
    with Ledger(tmp_path) as again:
        found = again.saved()
    assert found["clip"] == 0.1
    memory = found["server"]["w"]["memory"]
    assert torch.equal(found["server"]["w"]["value"], one.T)
    assert (memory["step"].item(), memory["step"].shape, memory["gone"]) == (3.0, torch.Size(), None)
    assert (found["more"][0], found["more"][1], found["more"][2][1]) == (1, [], 2.5)
    assert torch.equal(found["more"][2][0], one)
    assert set(safetensors.torch.load_file(tmp_path / "state.safetensors")) == {"0", "1", "2"}


def test_halves_of_files_that_a_kill_left_are_removed_and_nothing_else(tmp_path):
    made(tmp_path).close()
    others = {".rounds.json.mine", "history.json", ".rounds.json.0000000000000000"}
    for name in (".rounds.json.0123456789abcdef", ".state.safetensors.0123456789abcdef", *others):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (0, 0))
    os.utime(tmp_path / ".rounds.json.0000000000000000")  # a server on another machine may be writing it
    Ledger(tmp_path).close()
    assert {path.name for path in tmp_path.iterdir()} == {*NAMES, "lock", *others}


def test_whatever_ends_a_round_it_stays_charged(tmp_path, monkeypatch):
    """Of a write that fails nobody knows how much of it there is: the round counts, for this server and the next."""
    right, calls = os.fsync, []

    def failing(descriptor):
        calls.append(descriptor)
        if len(calls) == 2:  # of the name, after the file is in its place
            raise OSError(5, "the disk is gone")
        right(descriptor)

    with made(tmp_path) as ledger:
        ledger.charge()
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", failing)
            with pytest.raises(SartorError, match="disk"):
                ledger.charge()
        with pytest.raises(SartorError, match="changed by another server"):
            ledger.charge()
    with Ledger(tmp_path) as again:
        assert again.charged == 2
        assert again.charge() == 2
