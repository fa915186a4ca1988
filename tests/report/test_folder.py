"""The folder of a run: what is written comes back, and what is sensitive is for its owner alone."""

import errno
import os
import stat
import tomllib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sartor
from sartor.individual.readings import Reading
from sartor.individual.reserve import Reserve
from sartor.report.folder import RunFolder, to_toml
from sartor.run.files import lock

BUDGETS = sartor.Budgets([1.0, 2.0, 2.0], delta=1e-5, holders=["ann", "bob", "çi"], reserve=0.1)


@pytest.fixture
def plan():
    return sartor.plan(BUDGETS, steps=5, batch=1, accountant="rdp")


def test_budgets_and_plan_come_back_as_they_were(tmp_path, plan):
    folder = RunFolder(tmp_path / "a" / "run")
    folder.create({"steps": 5}, plan, BUDGETS)
    assert folder.budgets() == BUDGETS
    assert folder.plan() == plan


def test_sensitive_files_are_for_their_owner_whatever_the_umask(tmp_path, plan):
    before = os.umask(0)
    try:
        RunFolder(tmp_path / "run").create({}, plan, BUDGETS)
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "run").iterdir()}
    assert (modes["budgets.npz"], modes["plan-all.json"], modes["checkpoint"]) == (0o600, 0o600, 0o700)


def test_a_folder_without_checkpoint_or_with_broken_budgets_is_refused(tmp_path, plan):
    folder = RunFolder(tmp_path / "run")
    with pytest.raises(sartor.SartorError, match="no checkpoint"):
        folder.settings()
    folder.create({}, plan, BUDGETS)
    with pytest.raises(sartor.SartorError, match="no checkpoint"):
        folder.settings()
    (folder.path / "budgets.npz").write_bytes(b"broken")
    with pytest.raises(sartor.SartorError, match=r"budgets\.npz cannot be read"):
        folder.budgets()


def with_another_digit(path):
    """One byte of a file becomes another: of a text, a digit."""
    content = bytearray(path.read_bytes())
    place = next(place for place, byte in reversed(list(enumerate(content))) if chr(byte).isdecimal())
    content[place] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("name", ["config.toml", "plan.json", "plan-all.json", "budgets.npz"])
@pytest.mark.parametrize("read", [RunFolder.config, RunFolder.plan, RunFolder.account])
def test_a_folder_in_which_one_digit_was_changed_is_not_read(tmp_path, plan, name, read):
    folder = RunFolder(tmp_path / "run")
    folder.create({"steps": 5}, plan, BUDGETS)
    folder.write_account({"private": True, "steps": 5})
    read(folder)
    with_another_digit(folder.path / name)
    with pytest.raises(sartor.SartorError, match=f"changed since the run wrote it.*{name.split('.')[0]}|{name} was changed"):
        read(folder)


@pytest.mark.parametrize("name", ["config.toml", "plan.json", "plan-all.json", "budgets.npz"])
@pytest.mark.parametrize("read", [RunFolder.config, RunFolder.plan])
def test_an_interrupted_run_in_which_one_digit_was_changed_is_not_read(tmp_path, plan, name, read):
    """It has no account, whose seal is of the plan too."""
    folder = RunFolder(tmp_path / "run")
    folder.create({"steps": 5}, plan, BUDGETS)
    read(folder)
    with_another_digit(folder.path / name)
    with pytest.raises(sartor.SartorError, match=r"plan-all\.json was changed since the run wrote it"):
        read(folder)


@pytest.mark.parametrize("name", ["plan.json", "account.json"])
def test_what_was_changed_is_noticed_in_a_copy_of_what_may_be_shown(tmp_path, plan, name):
    with RunFolder(tmp_path / "run") as folder:
        folder.create({}, plan, BUDGETS)
        folder.write_account({"private": True, "steps": 5})
    copy = tmp_path / "copy"
    copy.mkdir()
    for shown in ("plan.json", "account.json"):
        (copy / shown).write_bytes((folder.path / shown).read_bytes())
    assert RunFolder(copy).account()["steps"] == 5
    with_another_digit(copy / name)
    with pytest.raises(sartor.SartorError, match="was changed"):
        RunFolder(copy).account()


def test_what_a_kill_left_half_written_goes_when_the_folder_is_opened_to_write(tmp_path, plan):
    with RunFolder(tmp_path / "run") as folder:
        folder.create({}, plan, BUDGETS)
    left = [folder.path / f".{name}.0123456789abcdef" for name in ("plan.json", "budgets.npz", "model.safetensors", "individual.npz")]
    others = [folder.path / ".plan.json.mine"]
    for path in left:
        path.write_text("")
    with RunFolder(tmp_path / "run") as folder:
        folder.create({}, plan, BUDGETS)
        assert not any(path.exists() for path in left)
    others[0].write_text("")
    left[0].write_text("")
    with lock(folder.path), pytest.raises(sartor.SartorError, match="in use"):
        RunFolder(folder.path)._hold()
    assert left[0].exists()
    RunFolder(folder.path)._hold()
    assert (left[0].exists(), others[0].exists()) == (False, True)


def test_a_run_on_a_read_only_disk_can_be_read_and_is_said_to_be_that_where_it_must_be_held(tmp_path, plan, monkeypatch):
    folder = RunFolder(tmp_path / "run")
    folder.create({"individual": "strict"}, plan, BUDGETS)
    folder.write_reading(Reading("strict", 5, np.ones(3), np.ones(3)), np.ones(3), np.ones(3))
    folder.close()
    opened = os.open

    def read_only(path, flags, *more, **options):
        if flags & (os.O_WRONLY | os.O_RDWR):
            raise OSError(errno.EROFS, "Read-only file system", str(path))
        return opened(path, flags, *more, **options)

    monkeypatch.setattr(os, "open", read_only)
    assert folder.reading()[0].steps == 5
    with pytest.raises(sartor.SartorError, match="is not writable"):
        folder._hold()


@pytest.mark.parametrize("kind", ["estimate", "strict"])
def test_readings_come_back_as_they_were(tmp_path, plan, kind):
    folder = RunFolder(tmp_path / "run")
    folder.create({"individual": kind}, plan, BUDGETS)
    correct, loss = np.array([1.0, 0.0, 0.5]), np.array([0.1, 2.0, 0.7])
    folder.write_reading(Reading(kind, 5, np.array([0.1, 0.2, 0.3]), np.array([0.9, 1.8, 1.8])), correct, loss)
    found, right, lost = RunFolder(tmp_path / "run").reading()
    assert (found.kind, found.steps) == (kind, 5)
    assert (found.accounts(sensitive=True).tolist(), found.guarantee.tolist()) == ([0.1, 0.2, 0.3], [0.9, 1.8, 1.8])
    assert (right.tolist(), lost.tolist()) == (correct.tolist(), loss.tolist())


def test_readings_are_not_written_where_another_run_has_ended(tmp_path, plan):
    folder = RunFolder(tmp_path / "run")
    folder.create({"individual": "strict"}, plan, BUDGETS)
    (folder.path / "account.json").write_text("{}")
    with pytest.raises(sartor.SartorError, match="another run has ended"):
        folder.write_reading(Reading("strict", 5, np.ones(3), np.ones(3)), np.ones(3), np.ones(3))
    assert not (folder.path / "individual.npz").exists()


def test_a_run_that_took_no_step_leaves_folder_and_reserve_to_the_next(tmp_path, plan):
    with RunFolder(tmp_path / "run") as folder:
        folder.create({"individual": "strict"}, plan, BUDGETS)
    with RunFolder(tmp_path / "run") as folder:
        folder.create({"individual": "strict"}, plan, BUDGETS)
        assert Reserve(folder.reserve, plan).releases == ()


@given(
    st.dictionaries(
        st.from_regex(r"[a-z_]+", fullmatch=True),
        st.text() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False),
    )
)
def test_settings_come_back_from_toml(settings):
    assert tomllib.loads(to_toml(settings)) == settings
