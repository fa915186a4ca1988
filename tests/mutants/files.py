"""Breaks of what is left on the disk, and of what an account says of itself."""

import stat
import tempfile
from pathlib import Path

from mutants.machinery import catcher, mutant
from sartor.run import files
from sartor.run.account import RunAccount
from sartor_testing import private_runs as runs


@catcher("who may read a checkpoint", "test", lambda: runs.planned("scale", 3))
def MODES(plan):
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "run"
        runs.stopped_at(2, root, plan=plan)
        return any(stat.S_IMODE(path.stat().st_mode) & 0o077 for path in root.rglob("*") if path.is_file() and path.name != "lock")


@catcher("whether a seeded run calls itself private", "test", lambda: runs.planned("scale", 3))
def SEEDED(plan):
    return runs.fitted(plan=plan).account.to_json()["private"] is not False


@mutant(MODES)
def checkpoint_open_to_others(patch):
    """Checkpoints can be read by everybody on the machine."""
    right = files._write

    def open_(path, content, *, mode, new):
        right(path, content, mode=mode, new=new)
        path.chmod(0o644)

    patch.setattr(files, "_write", open_)


@mutant(SEEDED, quick=True)
def seeded_run_called_private(patch):
    """A run whose noise can be repeated says that it protects people."""
    patch.setattr(RunAccount, "private", property(lambda self: self.plan.protects))
