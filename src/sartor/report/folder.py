"""The folder of a run: what may be read by everyone, and what is for its owner alone.

config.toml        the settings (sensitive where they give a budget of fewer than ten holders: then mode 0600)
plan.json          the plan, small groups merged
plan-all.json      the plan with every group (sensitive: mode 0600), from which a run resumes
budgets.npz        who allows what (sensitive: mode 0600)
held-out.json      accuracy on rows that were held out of the private table, if it was asked for (sensitive: mode 0600)
checkpoint/        where an interrupted run continues (sensitive: 0700); gone when the run is finished
model.safetensors  the model
account.json       what was spent
report.html        the page

A run is finished when its model, account and page are written; its checkpoint goes after that, and the key of its noise before.
"""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from sartor.budgets import Budgets
from sartor.documents import read_toml
from sartor.errors import SartorError
from sartor.plans import Plan
from sartor.run.files import write_private, write_public

_BEFORE = ("config.toml", "plan.json", "plan-all.json", "budgets.npz", "checkpoint")  # what there is before the first step
_PART = re.compile(r"\.(config\.toml|plan\.json|plan-all\.json|budgets\.npz)\.[0-9a-f]+")  # of one that a kill left half written
_ENDS = ("model.safetensors", "account.json", "report.html")
_SENSITIVE = ("budgets.npz", "plan-all.json", "held-out.json")


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
            self.checkpoint.mkdir(mode=0o700, exist_ok=True)  # first, so that a folder without one had a run in it
            if tell_budgets(settings, plan):
                write_private(self.path / "config.toml", to_toml(settings).encode())
            else:
                write_public(self.path / "config.toml", to_toml(settings))
            plan.save(self.path / "plan.json")
            write_private(self.path / "plan-all.json", _document(plan.record()).encode())
            self._write_budgets(budgets)
        except OSError as error:
            raise SartorError(f"{self.path} cannot be written: {error.strerror}.") from error

    def check_new(self) -> None:
        """Refuse a folder that holds something, but for what a run left behind that took no step."""
        from sartor.sgd.checkpoint import is_begun

        try:
            inside = [] if not self.path.exists() else [self.path.name] if not self.path.is_dir() else os.listdir(self.path)
            is_other = any(name not in _BEFORE and not _PART.fullmatch(name) for name in inside) or (inside and "checkpoint" not in inside)
        except OSError as error:
            raise SartorError(f"this cannot be a run's folder: {error.strerror}.") from None
        if is_other or (inside and is_begun(self.checkpoint)):
            raise SartorError(f"{self.path} exists already: choose another folder, or continue the run in it with --resume.")

    def write_account(self, account: Mapping[str, Any]) -> None:
        """What was spent."""
        write_public(self.path / "account.json", _document(account))

    def write_held_out(self, figures: Mapping[str, Any]) -> None:
        """Figures about rows that were held out of the private table, for their owner alone."""
        write_private(self.path / "held-out.json", _document({"sensitive": True, **figures}).encode())

    def finish(self, model: nn.Module, account: Mapping[str, Any], page: str) -> None:
        """Write what the run was for, and then take its checkpoint away: whoever stops the process in between can finish it again."""
        from safetensors.torch import save

        from sartor.sgd.checkpoint import remove

        write_public(self.path / "model.safetensors", save({name: t.detach().contiguous() for name, t in model.state_dict().items()}))
        self.write_account(account)
        write_public(self.path / "report.html", page)
        remove(self.checkpoint)

    def shared(self, plan: Plan) -> tuple[list[str], list[str]]:
        """The files that may be shown to others, and those that may not."""
        names = sorted(path.name for path in self.path.iterdir() if path.is_file())
        kept = [*_SENSITIVE, *(["config.toml"] if tell_budgets(self._read_settings(), plan) else [])]
        return [name for name in names if name not in kept], [name for name in names if name in kept]

    def settings(self) -> dict[str, Any]:
        """The settings of a run that can be continued."""
        from sartor.sgd.checkpoint import exists

        if not exists(self.checkpoint) and all((self.path / name).is_file() for name in _ENDS):
            raise SartorError(f"the run in {self.path} is finished: there is nothing to continue; start another one in another folder.")
        if not exists(self.checkpoint):
            raise SartorError(f"there is no checkpoint in {self.path}, so no run can be continued there; start it without --resume.")
        return self._read_settings()

    def _read_settings(self) -> dict[str, Any]:
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
        content = io.BytesIO()
        np.savez(content, **arrays)
        write_private(self.path / "budgets.npz", content.getvalue())


def tell_budgets(settings: Mapping[str, Any], plan: Plan) -> bool:
    """Whether settings give a budget that a public plan shows only merged with others."""
    return plan.view.merged and bool({"epsilon", "delta", "budgets", "policy"} & set(settings))


def _document(values: Mapping[str, Any]) -> str:
    return json.dumps(values, indent=2, allow_nan=False) + "\n"


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
