"""The folder of a run: what may be read by everyone, and what is for its owner alone.

config.toml        the settings
plan.json          the plan, small groups merged
plan-all.json      the plan with every group (sensitive: mode 0600), from which a run resumes
budgets.npz        who allows what (sensitive: mode 0600)
checkpoint/        where an interrupted run continues (sensitive: 0700)
model.safetensors  the model
account.json       what was spent
report.html        the page
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from sartor.budgets import Budgets
from sartor.documents import read_toml
from sartor.errors import SartorError
from sartor.plans import Plan

_SENSITIVE = 0o600


class RunFolder:
    """A run on disk."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    @property
    def checkpoint(self) -> Path:
        """Where an interrupted run continues."""
        return self.path / "checkpoint"

    def create(self, settings: Mapping[str, Any], plan: Plan, budgets: Budgets) -> None:
        """Make the folder and write down what is known before the first step."""
        self.check_new()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self.write("config.toml", to_toml(settings))
            plan.save(self.path / "plan.json")
            plan.save(self.path / "plan-all.json", sensitive=True)
            self._write_budgets(budgets)
            self.checkpoint.mkdir(mode=0o700)
        except OSError as error:
            raise SartorError(f"{self.path} cannot be written: {error.strerror}.") from error

    def check_new(self) -> None:
        """Refuse a folder that holds something."""
        if self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
            raise SartorError(f"{self.path} exists already: choose another folder, or continue the run in it with --resume.")

    def write(self, name: str, content: str) -> None:
        """A file that everyone may read."""
        try:
            (self.path / name).write_text(content, encoding="utf-8")
        except OSError as error:
            raise SartorError(f"{self.path / name} cannot be written: {error.strerror}.") from error

    def write_json(self, name: str, document: Mapping[str, Any]) -> None:
        """A document that everyone may read."""
        self.write(name, json.dumps(document, indent=2, allow_nan=False) + "\n")

    def write_model(self, model: nn.Module) -> None:
        """The model's tensors."""
        from safetensors.torch import save

        try:
            (self.path / "model.safetensors").write_bytes(save({name: t.detach().contiguous() for name, t in model.state_dict().items()}))
        except OSError as error:
            raise SartorError(f"{self.path / 'model.safetensors'} cannot be written: {error.strerror}.") from error

    def settings(self) -> dict[str, Any]:
        """The settings of the run."""
        from sartor.sgd.checkpoint import exists

        if not exists(self.checkpoint):
            raise SartorError(f"there is no checkpoint in {self.path}, so no run can be continued there; start it without --resume.")
        return read_toml(self.path / "config.toml", "the settings")

    def plan(self) -> Plan:
        """The plan with every group."""
        return Plan.load(self.path / "plan-all.json")

    def budgets(self) -> Budgets:
        """Who allows what."""
        path = self.path / "budgets.npz"
        try:
            with np.load(path, allow_pickle=False) as stored:
                names = tuple(str(name) for name in stored["holders"]) if "holders" in stored else None
                return Budgets(stored["epsilon"], delta=stored["delta"], holders=names, reserve=float(stored["reserve"]))
        except (OSError, ValueError, KeyError) as error:
            raise SartorError(f"{path} cannot be read as the budgets of a run.") from error

    def _write_budgets(self, budgets: Budgets) -> None:
        arrays: dict[str, Any] = {
            "epsilon": budgets.epsilon,
            "delta": budgets.delta,
            "reserve": np.float64(budgets.reserve),
            "group": budgets.groups.of_holder,
        }
        if budgets.names is not None:
            arrays["holders"] = np.array(budgets.names)
        descriptor = os.open(self.path / "budgets.npz", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, _SENSITIVE)
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), _SENSITIVE)
            np.savez(file, **arrays)


def to_toml(settings: Mapping[str, Any]) -> str:
    """Texts and numbers as TOML, one line each; JSON's strings are TOML's.

    Example:
        >>> print(to_toml({"scheme": "scale", "steps": 100, "lr": 0.5}), end="")
        scheme = "scale"
        steps = 100
        lr = 0.5
    """
    lines = [f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in settings.items()]
    return "".join(lines).replace("\x7f", r"\u007f")  # the one character that JSON allows and TOML does not
