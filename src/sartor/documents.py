"""TOML and JSON files, read with one clear sentence for whatever is wrong with them."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sartor.errors import SartorError


def read_toml(path: str | os.PathLike[str], what: str, error: type[SartorError] = SartorError) -> dict[str, Any]:
    """A TOML file, where `what` says in messages what it should be ("the policy")."""
    found: dict[str, Any] = _read(path, what, "TOML", tomllib.loads, error)
    return found


def read_json(path: str | os.PathLike[str], what: str, error: type[SartorError] = SartorError) -> Any:
    """A JSON file, likewise."""
    return _read(path, what, "JSON", parse_json, error)


def parse_json(content: str | bytes) -> Any:
    """Parse JSON; what is nested too deeply for the parser is a `ValueError`, like everything else that is no JSON."""
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _read(path: str | os.PathLike[str], what: str, language: str, parse: Callable[[str], Any], error: type[SartorError]) -> Any:
    name = f"{what} {Path(path).name}"
    try:
        return parse(Path(path).read_text(encoding="utf-8"))
    except OSError as reason:
        raise error(f"{name} cannot be read: {reason.strerror}.") from reason
    except RecursionError:
        raise error(f"{name} cannot be read: it is nested too deeply.") from None
    except ValueError as reason:  # of the parser, or bytes that are not UTF-8
        raise error(f"{name} is not {language}: {reason}.") from reason
