"""Commands run here, also by fixtures that many tests share."""

import contextlib
import io
from typing import Any, NamedTuple

import pytest

from sartor.cli import main


class Ran(NamedTuple):
    """How a command ended, and what it said."""

    exit_code: Any
    stdout: str
    stderr: str


def run(*arguments: Any) -> Ran:
    """One command."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    return Ran(stop.value.code, out.getvalue(), err.getvalue())
