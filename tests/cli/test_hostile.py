"""Hostile command lines: exit code 0, 2 or 130, one sentence, no traceback, and nothing written or spent on refusal."""

import subprocess
import sys
from pathlib import Path

import pytest

from sartor.cli import main

shellingham = pytest.importorskip("shellingham")


@pytest.mark.parametrize(
    ("count", "seed"), [(15, 1), pytest.param(1000, 1, marks=pytest.mark.long), pytest.param(1000, 2, marks=pytest.mark.long)]
)
def test_hostile_lines_are_refused_in_one_sentence_and_leave_nothing(count, seed):
    script = Path(__file__).parent / "hostile.py"
    done = subprocess.run([sys.executable, script, "--count", str(count), "--seed", str(seed)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    assert f"{count} lines, 0 with a fault." in done.stdout


def test_completion_for_a_shell_that_nobody_knows_is_bad_input_and_no_verdict(monkeypatch):
    def unknown(*given):
        raise shellingham.ShellDetectionFailure

    monkeypatch.setattr(shellingham, "detect_shell", unknown)
    with pytest.raises(SystemExit) as ended:
        main(["--show-completion"])
    assert ended.value.code == 2
