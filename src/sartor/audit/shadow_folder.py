"""Signals of shadow models in a folder, so that an audit that was stopped goes on where it was, and another attack needs no new models.

    shadows.json    digests of all that the signals follow from, and the folder's secret
    shadow-*        the signals of one model, by its number
    lock            held while an audit works here

Models themselves are never written. The folder is for its owner alone (0700, files 0600); names tell numbers of models and nothing else.

Guarantee: signals that are found belong to the plan, people, records, first weights, settings and seed that are asked for, whoever kills
    the process at any point.
Proof: a file is written whole or not at all (`run.files`) and proves its folder and place (`run.sealed`); digests are compared before
    anything is read.
Breaks if: somebody who can read the folder makes a file on purpose; a function of the caller's (a loss) changes under its name.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from sartor.documents import read_json
from sartor.errors import SartorError
from sartor.run import sealed
from sartor.run.files import Lock, close_folder, lock, write_private

_INDEX = "shadows.json"
_PARTS = re.compile(r"\.(shadows\.json|shadow-\d+)\..*")
_TAKEN = "{} is being worked in by another audit; try again when it has ended, or give another folder."

Arrays = dict[str, NDArray[Any]]


class ShadowFolder:
    """The signals that were kept in a folder; use it in a `with` block, which holds its lock."""

    def __init__(self, path: str | os.PathLike[str], of: Mapping[str, str]) -> None:
        """Open a folder of signals, or begin one where there is none or an empty one; `of` are digests of what they follow from."""
        self.path = Path(os.path.realpath(path))
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise SartorError(f"{self.path} cannot be made: {error.strerror}.") from None
        foreign = [name for name in os.listdir(self.path) if name not in (_INDEX, "lock") and not _PARTS.fullmatch(name)]
        if not (self.path / _INDEX).exists() and foreign:
            raise SartorError(f"{self.path} holds other files than signals of shadow models: give a new or empty folder.")
        close_folder(self.path)
        self._lock: Lock = lock(self.path, taken=_TAKEN.format(self.path))
        try:
            for name in os.listdir(self.path):
                if _PARTS.fullmatch(name):
                    (self.path / name).unlink(missing_ok=True)
            self._secret = self._opened(dict(of))
        except BaseException:
            self._lock.close()
            raise

    def _opened(self, of: dict[str, str]) -> bytes:
        index = self.path / _INDEX
        if not index.exists():
            secret = secrets.token_bytes(sealed.SIZE)
            write_private(index, json.dumps({"secret": secret.hex(), "of": of}).encode(), new=True)
            return secret
        document = read_json(index, "the shadow models'")
        try:
            secret, known = bytes.fromhex(document["secret"]), dict(document["of"])
        except (KeyError, TypeError, ValueError):
            raise SartorError(f"{index} cannot be read: remove the folder, and the shadow models are trained again.") from None
        names = sorted({**known, **of}, key="seed".__ne__)  # budgets and coins may follow from a seed
        other = next((name for name in names if known.get(name) != of.get(name)), None)
        if other is not None:
            which = f"other {other}" if other.endswith("s") else f"another {other}"
            raise SartorError(f"{self.path} holds signals of shadow models with {which}: give another folder, or remove this one.")
        return secret

    def found(self, number: int) -> Arrays | None:
        """What was kept of a model, if anything."""
        file = self._file(number)
        return sealed.opened(self._secret, file.name, file) if file.exists() else None

    def put(self, number: int, arrays: Arrays) -> None:
        """Keep the signals of a model."""
        self._lock.check()
        file = self._file(number)
        write_private(file, sealed.sealed(self._secret, file.name, arrays))

    def _file(self, number: int) -> Path:
        return self.path / f"shadow-{number}"

    def __enter__(self) -> ShadowFolder:
        return self

    def __exit__(self, *error: object) -> None:
        self._lock.close()
