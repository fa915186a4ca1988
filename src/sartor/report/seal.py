"""Seals of a run's folder: digests of its files as the run wrote them, so that an edit or an accident is noticed when they are read.

`plan-all.json` has one of all that the run was begun with. It is for the owner alone, as whoever can guess a budget could confirm it by its
digest. `account.json` has one of the account and of `plan.json`, which may all be shown.

Guarantee: settings, plans, budgets and account pass `check` only as the run wrote them, and the account only beside the plan of its run.
Proof: each is compared with a digest that the run took of it when it wrote it.
Breaks if: somebody makes a seal anew. It holds no secret and is no signature.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sartor.documents import read_json
from sartor.errors import SartorError
from sartor.run.sealed import digest

_SEALS = {"plan-all.json": ("config.toml", "plan.json", "budgets.npz"), "account.json": ("plan.json",)}  # a document, and what is beside it
_CHANGED = "{} was changed since the run wrote it, or {} beside it: put back what the run wrote."


def sealed(path: Path, document: Mapping[str, Any]) -> dict[str, Any]:
    """A document as it is written to this path, with the seal of itself and of the files beside it, which are there already."""
    return {**document, "seal": _seal(path, document, _SEALS[path.name])}


def check(folder: Path) -> None:
    """Refuse a folder in which something was changed since its run wrote it; files that are not there are for others to miss."""
    for name, beside in _SEALS.items():
        path = folder / name
        if path.exists():
            document = read_json(path, "the run's")
            if not isinstance(document, dict) or document.pop("seal", None) != _seal(path, document, beside):
                raise SartorError(_CHANGED.format(path, " or ".join(beside)))


def _seal(path: Path, document: Mapping[str, Any], beside: Sequence[str]) -> str:
    parts = [json.dumps(document, sort_keys=True).encode(), *(_content(path.with_name(name)) for name in beside)]
    return digest([digest([part]).encode() for part in parts])


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
