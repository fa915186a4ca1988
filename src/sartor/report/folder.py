"""The folder of a run: what may be read by everyone, and what is for its owner alone.

config.toml        the settings (sensitive where they give a budget of fewer than ten holders: then mode 0600)
plan.json          the plan, small groups merged
plan-all.json      the plan with every group, from which a run resumes, and the seal of all that is known before the first step
                   (`sartor.report.seal`; sensitive: mode 0600)
budgets.npz        who allows what (sensitive: mode 0600)
individual.npz     what each holder's gradients really cost, if that was tracked, how the model does on them, and of which class they are
                   (sensitive: mode 0600)
reserve/           what was released of that out of the plan's reserve (sensitive: 0700)
held-out.json      accuracy on rows that were held out of the private table, if it was asked for (sensitive: mode 0600)
checkpoint/        where an interrupted run continues (sensitive: 0700); gone when the run is finished
lock               held by the process that works here; empty, and gone when the run is finished
model.safetensors  the model
account.json       what was spent, and the seal of that and of plan.json
report.html        the page; its part on individual accounts is exchanged with every release (`tell_released`)

A run is finished when its model, account and page are written; its checkpoint goes after that.

Guarantee: plan, budgets, model and account in a folder are of one run, whoever else begins or continues one there meanwhile.
Proof: a process holds the folder's lock (`sartor.run.files.Lock`) from before it looks whether the folder is free, or has a run to
    continue, until it ends; a killed one leaves it to the next. Whoever finishes a run holds it still, and finds no end but its own.
Breaks if: files are changed by hand; what the seal sees of that is refused.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray
from torch import nn

from sartor.budgets import Budgets
from sartor.documents import read_json, read_toml
from sartor.errors import SartorError
from sartor.individual.readings import Kind, Reading
from sartor.individual.request import Release
from sartor.individual.reserve import Reserve
from sartor.plans import Plan
from sartor.report import seal
from sartor.run.files import Lock, lock, read_private, write_private, write_public

Array = NDArray[np.float64]
Places = NDArray[np.intp]

_LOCK = "lock"
_TAKEN = "{} is in use by another run, here or in another process: wait for it, stop it, or choose another folder."
_BEFORE = ("config.toml", "plan.json", "plan-all.json", "budgets.npz", "checkpoint", "reserve")  # what there is before the first step
_ENDS = ("model.safetensors", "account.json", "report.html")
_SENSITIVE = ("budgets.npz", "plan-all.json", "individual.npz", "held-out.json")
_PART = re.compile(
    rf"\.({'|'.join(map(re.escape, {*_BEFORE, *_ENDS, *_SENSITIVE}))})\.[0-9a-f]{{16}}"
)  # of one that a kill left half written


class RunFolder:
    """A run on disk. `create` and `resume` hold it for the one process that works in it, until `close`; who only reads needs neither."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._held: Lock | None = None
        self._ends: frozenset[str] = frozenset()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Let others work in the folder."""
        if self._held is not None:
            self._held.close()
            self._held = None

    @property
    def checkpoint(self) -> Path:
        """Where an interrupted run continues."""
        return self.path / "checkpoint"

    def create(self, settings: Mapping[str, Any], plan: Plan, budgets: Budgets) -> None:
        """Make the folder and write down what is known before the first step; where accounts are tracked, begin the reserve's."""
        self.check_new()  # before anything is written, and again when nobody else can begin a run here
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._hold()
            self.check_new()
            self.checkpoint.mkdir(mode=0o700, exist_ok=True)  # first, so that a folder without one had a run in it
            if tell_budgets(settings, plan):
                write_private(self.path / "config.toml", to_toml(settings).encode())
            else:
                write_public(self.path / "config.toml", to_toml(settings))
            plan.save(self.path / "plan.json")
            self._write_budgets(budgets)
            every = self.path / "plan-all.json"
            write_private(every, _document(seal.sealed(every, plan.record())).encode())
            if settings.get("individual") is not None and plan.reserve:
                shutil.rmtree(self.reserve, ignore_errors=True)  # of a run that took no step: nothing was released
                Reserve.create(self.reserve, plan)
        except OSError as error:
            raise SartorError(f"{self.path} cannot be written: {error.strerror}.") from error

    def check_new(self) -> None:
        """Refuse a folder that holds something, but for what a run left behind that took no step."""
        from sartor.run.journal import is_begun

        try:
            inside = [] if not self.path.exists() else [self.path.name] if not self.path.is_dir() else os.listdir(self.path)
            if _LOCK in inside and self.path.is_dir() and not os.lstat(self.path / _LOCK).st_size:
                inside.remove(_LOCK)
            is_other = any(name not in _BEFORE and not _PART.fullmatch(name) for name in inside) or (inside and "checkpoint" not in inside)
        except OSError as error:
            raise SartorError(f"this cannot be a run's folder: {error.strerror}.") from None
        if is_other or (inside and is_begun(self.checkpoint)):
            raise SartorError(f"{self.path} exists already: choose another folder, or continue the run in it with --resume.")

    def _hold(self) -> None:
        """Make sure that this process alone works here."""
        if self._held is None:
            self._held = lock(self.path, taken=_TAKEN.format(self.path))
            self._sweep()

    def _sweep(self) -> None:
        """Remove what a kill left half written; to be called under the folder's lock, as nobody is writing then."""
        for name in os.listdir(self.path):
            if _PART.fullmatch(name):
                (self.path / name).unlink(missing_ok=True)

    def _check_ours(self) -> None:
        """Refuse to write to a folder that this process does not hold, or in which another run has ended."""
        assert self._held is not None, "create or resume the run first"
        self._held.check()
        if self._found() - self._ends:
            raise SartorError(f"another run has ended in {self.path} meanwhile: nothing of this one is written there, though it is spent.")

    def _found(self) -> frozenset[str]:
        return frozenset(name for name in _ENDS if os.path.lexists(self.path / name))

    def write_account(self, account: Mapping[str, Any]) -> None:
        """What was spent."""
        self._check_ours()
        self._write_account(account)

    def _write_account(self, account: Mapping[str, Any]) -> None:
        path = self.path / "account.json"
        write_public(path, _document(seal.sealed(path, account)))

    def account(self) -> dict[str, Any]:
        """What was spent, as it was written."""
        seal.check(self.path)
        found = read_json(self.path / "account.json", "the account")
        if not isinstance(found, dict) or not isinstance(found.get("private"), bool):
            raise SartorError(f"{self.path / 'account.json'} is not the account of a run.")
        return found

    def write_held_out(self, figures: Mapping[str, Any]) -> None:
        """Figures about rows that were held out of the private table, for their owner alone."""
        self._check_ours()
        write_private(self.path / "held-out.json", _document({"sensitive": True, **figures}).encode())

    @property
    def reserve(self) -> Path:
        """Where what is released of individual accounts is charged."""
        return self.path / "reserve"

    def write_reading(
        self, reading: Reading, correct: Array, loss: Array, label: Places | None = None, classes: Sequence[str] = (), rows: str = ""
    ) -> None:
        """What each holder's gradients cost, and how the released model does on their records, for the owner of the run alone.

        Also the class of each holder's records among those with these public names, and the fingerprint of the rows that were trained on.
        """
        self._check_ours()
        content = io.BytesIO()
        figures = {"steps": np.array(reading.steps), "guarantee": reading.guarantee, "correct": correct, "loss": loss}
        if label is not None:
            figures |= {"label": label, "classes": np.array(list(classes), str), "rows": np.array(rows)}
        np.savez(content, kind=np.array(reading.kind), epsilon=reading.accounts(sensitive=True), **figures)  # type: ignore[arg-type]
        write_private(self.path / "individual.npz", content.getvalue())

    def reading(self) -> tuple[Reading, Array, Array]:
        """What each holder's gradients cost, how much of their records the model gets right, and its loss on them. Sensitive."""
        if not (self.path / "individual.npz").is_file():
            raise SartorError(f"there are no readings in {self.path}: train with --individual, to the end.")
        with self._stored("individual.npz", "readings") as stored:
            kind: Kind = "estimate" if str(stored["kind"]) == "estimate" else "strict"
            return Reading(kind, int(stored["steps"]), stored["epsilon"], stored["guarantee"]), stored["correct"], stored["loss"]

    def classes(self) -> tuple[Places, tuple[str, ...], str]:
        """The class of each holder, -1 for none; the public names of the classes; the fingerprint of the training rows. Sensitive."""
        with self._stored("individual.npz", "readings with classes") as stored:
            return stored["label"], tuple(str(name) for name in stored["classes"]), str(stored["rows"])

    @contextmanager
    def _stored(self, name: str, what: str) -> Iterator[Mapping[str, NDArray[Any]]]:
        """The arrays in a file, to be read inside of one `with`."""
        path = self.path / name
        content = io.BytesIO(read_private(path))
        try:
            with np.load(content, allow_pickle=False) as stored:
                yield stored
        except (EOFError, ValueError, OSError, KeyError, BadZipFile) as error:  # of a file that is cut short, or of something else
            raise SartorError(f"{path} cannot be read as the {what} of a run.") from error

    def releases(self, plan: Plan) -> tuple[Release, ...]:
        """What was released out of the reserve, as far as there is one."""
        return Reserve(self.reserve, plan).releases if Reserve.is_in(self.reserve) else ()

    def tell_released(self, plan: Plan) -> None:
        """Put everything that was released out of the reserve on the page, and nothing else; the rest of the page stays as it is.

        Whatever is on the page was charged before, and a page that a kill left behind is mended by the next time. Who comes second waits,
        and finds on the disk what the first has released.
        """
        from sartor.report import page, released

        path = self.path / "report.html"
        private = bool(self.account()["private"])
        with lock(self.path) as held:
            self._sweep()
            try:
                part = released.part(Reserve(self.reserve, plan).releases, plan, private=private)
                found = page.refilled(_text(path), released.SLOT, part)
                if found is None:
                    raise SartorError(f"{path} is not as it was written, or has no place for what was released: it stays as it is.")
                held.check()
                write_public(path, found)
            finally:
                if held.ours:
                    (self.path / _LOCK).unlink(missing_ok=True)

    def finish(self, model: nn.Module, account: Mapping[str, Any], page: str) -> None:
        """Write what the run was for, and then take its checkpoint away: whoever stops the process in between can finish it again.

        Refused where another run has ended in the folder since this one began or went on.
        """
        from safetensors.torch import save

        from sartor.run.journal import remove

        self._check_ours()
        write_public(self.path / "model.safetensors", save({name: t.detach().contiguous() for name, t in model.state_dict().items()}))
        self._write_account(account)
        write_public(self.path / "report.html", page)
        remove(self.checkpoint)
        (self.path / _LOCK).unlink(missing_ok=True)
        self.close()

    def shared(self, plan: Plan) -> tuple[list[str], list[str]]:
        """The files that may be shown to others, and those that may not."""
        names = sorted(path.name for path in self.path.iterdir() if path.is_file() and path.name != _LOCK)
        kept = [*_SENSITIVE, *(["config.toml"] if tell_budgets(self.config(), plan) else [])]
        reserve = (
            [f"{self.reserve.name}/ (what was released out of the reserve: without it nothing more can be)"]
            if self.reserve.is_dir()
            else []
        )
        return [name for name in names if name not in kept], [*(name for name in names if name in kept), *reserve]

    def resume(self) -> dict[str, Any]:
        """Hold the folder of a run that can be continued, and give its settings."""
        self.settings()  # before anything is written, and again when nobody else can finish the run
        self._hold()
        settings = self.settings()
        self._ends = self._found()  # of this run, as it has a checkpoint: it was stopped while it was finished
        return settings

    def settings(self) -> dict[str, Any]:
        """The settings of a run that can be continued."""
        from sartor.run.journal import exists

        if not exists(self.checkpoint) and all((self.path / name).is_file() for name in _ENDS):
            raise SartorError(f"the run in {self.path} is finished: there is nothing to continue; start another one in another folder.")
        if not exists(self.checkpoint) and (self.path / "config.toml").is_file() and self.config().get("scheme") == "adapdp":
            raise SartorError(f'the run in {self.path} is of scheme "adapdp", which keeps no checkpoint, so it cannot be continued.')
        if not exists(self.checkpoint):
            raise SartorError(f"there is no checkpoint in {self.path}, so no run can be continued there; start it without --resume.")
        return self.config()

    def config(self) -> dict[str, Any]:
        """The settings, as they were written, of a run that may be finished."""
        seal.check(self.path)
        return read_toml(self.path / "config.toml", "the settings")

    def plan(self) -> Plan:
        """The plan with every group."""
        seal.check(self.path)
        return Plan.load(self.path / "plan-all.json")

    def budgets(self) -> Budgets:
        """Who allows what."""
        with self._stored("budgets.npz", "budgets") as stored:
            names = tuple(str(name) for name in stored["holders"]) if "holders" in stored else None
            return Budgets(stored["epsilon"], delta=stored["delta"], holders=names, reserve=float(stored["reserve"]))

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


def _text(path: Path) -> str:
    """A page; nothing, where there is none that can be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""


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
