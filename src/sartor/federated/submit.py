"""Hand a Flower app in, show its log, and end as the run ends: `flwr run --stream` ends with 0 even where the server refused to train.

    python -m sartor.federated.submit . here --run-config 'clients=3'

The arguments are those of `flwr run`. The exit code is 0 if the run was completed, and 2 if it was refused, failed, was stopped or never
began.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence

_FLOWER = (sys.executable, "-m", "flwr.cli.app")
_STARTED = re.compile(r"Successfully started run (\d+)")
_REASON = re.compile(r"^sartor\.\S+: (.+)")  # the last line of a traceback
_COMPLETED = "finished:completed"


def submit(
    arguments: Sequence[str], *, environment: Mapping[str, str] | None = None, heard: Callable[[str], object] = sys.stdout.write
) -> str | None:
    """Run an app with the arguments of `flwr run`; `heard` is given every line of its log. Returns None, or why there is no result."""
    run, reason = None, None
    command = [*_FLOWER, "run", *arguments, "--stream"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", env=environment
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            run, reason = _STARTED.search(line) or run, refusal(line) or reason
            heard(line)
    if run is None:
        return "the run was not begun; the log says why."
    ending = _status(run[1], _superlink(arguments), environment)
    return None if ending == _COMPLETED else reason or f"the run ended as {ending}; its log says why."


def refusal(line: str) -> str | None:
    """Sartor's reason for a refusal, if this line of a log tells it."""
    found = _REASON.search(line)
    return found and found[1]


def _superlink(arguments: Sequence[str]) -> list[str]:
    """The second argument that stands by itself, after the app."""
    alone, skip = [], False
    for argument in arguments:
        if not skip and not argument.startswith("-"):
            alone.append(argument)
        skip = argument.startswith("-") and "=" not in argument.split(" ")[0]
    return alone[1:2]


def _status(run: str, superlink: Sequence[str], environment: Mapping[str, str] | None) -> str:
    command = [*_FLOWER, "list", *superlink, "--run-id", run, "--format", "json"]
    asked = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    try:
        return str(json.loads(asked.stdout[asked.stdout.index("{") :])["runs"][0]["status"])
    except (ValueError, KeyError, IndexError):
        return "unknown"


def main() -> None:
    """Submit what the command line says."""
    wrong = submit(sys.argv[1:], environment=dict(os.environ))
    if wrong is not None:
        print(f"error: {wrong}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
