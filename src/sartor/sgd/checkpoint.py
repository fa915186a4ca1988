"""Where a run stands, in one folder: tensors as safetensors, all else as JSON, no pickle; written atomically, readable by its owner alone.

A checkpoint holds the key of the run's coins and noise, so it is sensitive. A run that resumes draws the same coins and the same noise from
the step on at which it was saved: steps that it had taken after that are taken again with the same result, so nothing is released twice.

The checkpoint of a run that is over holds no key, no generator and no optimizer, only the model that was released and what it cost: the one
before, which held them, is removed once it stands. Whoever resumes such a run finds its end, and no further step can be taken. The folder
is locked for as long as a run writes to it, so that no other takes its steps meanwhile or writes over its end.

Breaks if: the resumed run differs: then steps taken twice under the same noise show their difference bare. So plan, budgets, data, loss,
    settings, versions and all that the run is made of (`identity`) are compared, and a difference is refused; what is restored (parameters,
    the optimizer's state, learning rates) cannot differ. Another processor or number of threads rounds otherwise, which is said and not
    refused: who saw a step before and after sees the difference of two roundings without noise, about 1e-7 of the sum.
    Nor may the run have become another one on the way, since whoever resumes begins with what it began with: so what it is made of is
    looked at again whenever a checkpoint is to be written, and none is where it changed. The one before that stands, and is sound.
    A callback that changes parameters or buffers must follow from the step and the model, for its own memory is not kept.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import re
import secrets
import shutil
import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load, save
from torch import Tensor
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

from sartor.budgets import Budgets
from sartor.errors import SartorError, SartorWarning
from sartor.individual.readings import Reading
from sartor.plans import Plan
from sartor.run.account import RunAccount
from sartor.run.files import Lock, close_folder, lock, read_private, sync_folder, write_private
from sartor.run.stream import Stream
from sartor.sgd.contents import Unseen, content
from sartor.sgd.digests import Scope
from sartor.sgd.generators import repeatable
from sartor.sgd.identity import difference, identity, scope_of
from sartor.sgd.loader import PrivateLoader
from sartor.sgd.optimizer import PrivateOptimizer
from sartor.sgd.run import Run
from sartor.sgd.schedules import lasting, whole
from sartor.sgd.stretches import Stretches

_CURRENT, _MARK = "current", "begun"
_TRACKED = "tracked.safetensors"
_SAMPLED = 10_000
_TAKEN = "{} is in use by another run, here or in another process: wait for it, stop it, or unwrap its model (sartor.sgd.unwrap)."
_BEGUN = (
    "{} holds the checkpoint of a run: continue it (resume=True) or choose another folder; a second run over the same people would spend "
    "their budgets a second time (if the first took no step, delete its folder)."
)
_OURS = re.compile(rf"step-\d+-[0-9a-f]{{8}}|\.({_CURRENT}|{_MARK})\.[0-9a-f]+")


class OtherEnvironment(SartorWarning):
    """A run that resumes where numbers may round differently: steps taken twice then differ in their last digits, without noise."""


class NotSaved(SartorWarning):
    """A run that changed what a checkpoint does not put back, or whose data cannot be seen: it goes on without writing a checkpoint."""


class Changed(SartorError):
    """What a checkpoint does not put back is no longer as it began, or cannot be seen, so no checkpoint was written."""


def fingerprint(plan: Plan, budgets: Budgets, dataset: Dataset[Any]) -> dict[str, str]:
    """What a checkpoint is of: plan, who is in which group, and the data (hashed whole where they are tensors, else in part).

    Data whose records do not show what they hold have no digest, but the class that keeps it to itself (`unseen`): no checkpoint is
    written of them while there are steps to take.
    """
    groups = np.ascontiguousarray(plan.groups_of(budgets), np.int64)
    of = {"plan": _digest(json.dumps(plan.record(), sort_keys=True).encode()), "budgets": _digest(groups.tobytes())}
    try:
        return {**of, "data": _data_digest(dataset)}
    except Unseen as unseen:
        return {**of, "data": "unseen", "unseen": str(unseen)}


def _digest(*chunks: bytes | memoryview) -> str:
    hashed = hashlib.blake2b(digest_size=16)
    for chunk in chunks:
        hashed.update(chunk)
    return hashed.hexdigest()


def _data_digest(dataset: Any) -> str:
    """Tensors, and parts and chains of them, are read whole; other data sets record by record up to a number, beyond it in part."""
    if type(dataset) is TensorDataset:
        return _digest(*map(content, dataset.tensors))
    if type(dataset) is Subset:
        return _digest(_data_digest(dataset.dataset).encode(), np.asarray(dataset.indices, np.int64).tobytes())
    if type(dataset) is ConcatDataset:
        return _digest(*(_data_digest(part).encode() for part in dataset.datasets))
    places = np.unique(np.linspace(0, len(dataset) - 1, min(len(dataset), _SAMPLED)).astype(int))

    def digest() -> str:
        hashed = hashlib.blake2b(str(len(dataset)).encode(), digest_size=16)
        for i in places:
            hashed.update(content(dataset[int(i)]))
        return hashed.hexdigest()

    return str(repeatable(0, digest, dataset))


def _environment() -> dict[str, Any]:
    return {
        "threads": torch.get_num_threads(),
        "processor": torch.backends.cpu.get_cpu_capability(),
    }


def _settings(optimizer: PrivateOptimizer, loader: PrivateLoader, scheduler: Any) -> dict[str, Any]:
    run = optimizer.run
    return {
        "reduction": run.reduction,
        "number of noise draws": run.noise_draws,
        "ownership of records": loader.draws.owned,
        "largest physical batch": loader.draws.size,  # dropout and random changes to records are drawn piece by piece
        "scheduler": lasting(scheduler),
        "tracking of norms": None if loader.draws.stretches is None else list(loader.draws.stretches.way),
        "loss of tracked norms": None if loader.draws.stretches is None else loader.draws.stretches.loss,
    }


def save_checkpoint(
    folder: str | os.PathLike[str],
    optimizer: PrivateOptimizer,
    loader: PrivateLoader,
    of: dict[str, str],
    scheduler: Any = None,
    public: Mapping[str, Any] | None = None,
    *,
    over: bool = False,
    loss: str | None = None,
) -> None:
    """Write where the run stands; whoever kills the process at any moment finds this checkpoint or the one before.

    `public` is whatever else the caller wants back, made from public data alone. Of a run that is `over`, or has no step left, the key
    goes. `loss` is the loss as it is now, if `of` names it as it was. A run that changed what is not put back, or whose
    data cannot be seen, raises `Changed`, and the checkpoint before stands.
    """
    run = optimizer.run
    run.refuse_broken()
    over = over or not run.left
    if not over:
        _refuse_unseen(of)
        _refuse_changes(optimizer, loader, scheduler, "the loss differs" if loss not in (None, of.get("loss")) else None)
    state = {} if over else _state(optimizer, loader, scheduler)
    files = {} if over else {"optimizer.safetensors": save(_flat_optimizer(optimizer)[0])}
    stretches = loader.draws.stretches
    known, tensors = (None, {}) if stretches is None else stretches.state()
    if stretches is not None:
        files[_TRACKED] = save(tensors)
    files["model.safetensors"] = save({name: value.detach().contiguous() for name, value in _unshared(run.engine.model).items()})
    document = {
        **state,
        "of": of,
        "steps": run.steps,
        "tracked": known,
        "over": over,
        "seeded": run.stream.seeded,
        "account": run.account().to_json(),
        "public": _jsonable(dict(public or {}), "the caller"),
        "files": {name: _digest(content) for name, content in files.items()},
    }
    files["state.json"] = json.dumps(document).encode()
    name = f"step-{run.steps}-{secrets.token_hex(4)}"
    pointer = json.dumps({"folder": name, "digest": _digest(files["state.json"])})
    root = Path(folder)
    _hold(run, root)
    (root / name).mkdir(mode=0o700)
    for file, written in files.items():
        write_private(root / name / file, written)
    write_private(root / _CURRENT, pointer.encode())
    if not (root / _MARK).exists():
        write_private(root / _MARK, b"")  # on the disk before this returns, so before any step: it stays when all else is lost
    _remove_others(root, name)
    if not run.left:
        run.locks.pop(root.resolve()).close()
    elif stretches is not None and (stretches.charged is None or isinstance(stretches.charged, _Again)):
        stretches.charged = _Again(folder, optimizer, loader, of, scheduler, public)


@dataclass(frozen=True, eq=False)
class _Again:
    """Writes a checkpoint as it was written last, when a stretch was charged: a run that has one must never forget a charge."""

    folder: str | os.PathLike[str]
    optimizer: PrivateOptimizer = field(repr=False)
    loader: PrivateLoader = field(repr=False)
    of: dict[str, str]
    scheduler: Any = field(repr=False)
    public: Mapping[str, Any] | None

    def __call__(self) -> None:
        save_checkpoint(self.folder, self.optimizer, self.loader, self.of, self.scheduler, self.public)


def _hold(run: Run, root: Path) -> None:
    """Make sure that this run alone writes here: a folder is one run's from its first checkpoint on, and one process's at a time."""
    place = root.resolve()
    if place not in run.locks:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        root.chmod(0o700)
        held = _locked(root)
        if is_begun(root):
            held.close()
            raise SartorError(_BEGUN.format(root))
        run.locks[place] = held
    run.locks[place].check()


def _locked(root: Path) -> Lock:
    try:
        return lock(root, taken=_TAKEN.format(root))
    except SartorError:
        gc.collect()  # a run of this process that nobody refers to any more holds its folder until then
        return lock(root, taken=_TAKEN.format(root))


def _refuse_changes(optimizer: PrivateOptimizer, loader: PrivateLoader, scheduler: Any, other: str | None) -> None:
    """Raise if whoever begins anew and restores a checkpoint of this moment would have another run than this one is now."""
    run = optimizer.run
    settings = _settings(optimizer, loader, scheduler)
    run.settings = run.settings or settings
    other = other or difference(run.made_of.to_json(), identity(run.engine.model, optimizer.inner, loader.dataset, loader.collate))
    other = other or _settings_differ(run.settings, settings)
    if other is not None:
        raise Changed(
            f"the run is no longer what it was at its beginning: {other}, which a checkpoint does not put back, so none was written at "
            "this step; keep what steps depend on in a buffer (register_buffer), and what is only noted out of the model."
        )


def _refuse_unseen(of: Mapping[str, str]) -> None:
    """Raise if whoever resumes could bring other data without being noticed."""
    if "unseen" in of:
        raise Changed(
            f"records of the data set hold an object of {of['unseen']}, which does not show what is in it, so nobody could tell whether a "
            "resumed run has the same data and no checkpoint was written; let records be of tensors, arrays, numbers and text."
        )


def _settings_differ(then: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    return next((f"the {name} differs" for name, value in now.items() if then[name] != value), None)


def _state(optimizer: PrivateOptimizer, loader: PrivateLoader, scheduler: Any) -> dict[str, Any]:
    """What the next step depends on, besides the model and the optimizer's tensors. Sensitive: it holds the key."""
    run = optimizer.run
    return {
        "stream": run.stream.to_json(),
        "made_of": run.made_of.to_json(),
        "settings": _settings(optimizer, loader, scheduler),
        "environment": _environment(),
        "kernels": run.engine.kernels.chosen,
        "optimizer": _flat_optimizer(optimizer)[1],
        "scheduler": _jsonable(scheduler.state_dict(), "the scheduler") if scheduler is not None else None,
        "whole scheduler": whole(scheduler, scope_of(run.engine.model)),
    }


def _remove_others(root: Path, name: str) -> None:
    """Take away, for good, what earlier and broken-off writes left beside the checkpoint that stands."""
    others = [path for path in root.iterdir() if _OURS.fullmatch(path.name) and path.name != name]
    try:
        for path in others:
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    except OSError as error:
        raise SartorError(
            f"an earlier checkpoint in {root} cannot be removed: {error.strerror}; it holds the key of the run's noise: delete it yourself."
        ) from None
    if others:
        sync_folder(root)


def remove(folder: str | os.PathLike[str]) -> None:
    """Take a checkpoint away for good: first its name, so that whoever is stopped in between leaves none, and then what it held."""
    root = Path(folder)
    try:
        (root / _CURRENT).unlink(missing_ok=True)
        sync_folder(root)
        shutil.rmtree(root)
    except OSError as error:
        raise SartorError(f"{root} cannot be removed: {error.strerror}; its run is finished: delete it yourself.") from None
    sync_folder(root.parent)


def exists(folder: str | os.PathLike[str]) -> bool:
    """Whether a folder holds a checkpoint."""
    return (Path(folder) / _CURRENT).is_file()


def is_begun(folder: str | os.PathLike[str]) -> bool:
    """Whether a run began here: it has a checkpoint or the mark of one, or left one of a later step than its first.

    A first checkpoint without a mark was broken off while it was written, before any step.
    """
    root = Path(folder)
    names = [path.name for path in root.iterdir()] if root.is_dir() else []
    return bool({_CURRENT, _MARK} & set(names)) or any(_OURS.fullmatch(name) and not name.startswith(("step-0-", ".")) for name in names)


def refuse_begun(folder: str | os.PathLike[str]) -> None:
    """Refuse to begin a run where another one began."""
    if is_begun(folder):
        raise SartorError(_BEGUN.format(os.fspath(folder)))


class Checkpoint:
    """A checkpoint that was read: the stream to continue with first, then everything else, put into a run of the same plan and data."""

    def __init__(self, folder: str | os.PathLike[str], of: dict[str, str]) -> None:
        root = Path(folder)
        if not exists(root):
            raise SartorError(f"{root} holds no checkpoint to resume from.")
        self._root = root
        close_folder(root)
        try:
            self._pointer = _read(root / _CURRENT)
            pointer = json.loads(self._pointer)
            path = root / Path(str(pointer["folder"])).name
            written = _read(path / "state.json")
            close_folder(path)
            self._document: dict[str, Any] = json.loads(written)
            intact = _digest(written) == pointer["digest"]
            self._tensors = {name: _read(path / name) for name in self._document["files"]} if intact else {}
            intact = intact and all(_digest(value) == self._document["files"][name] for name, value in self._tensors.items())
        except SartorError:  # it stands open, or is not the owner's own
            raise
        except (OSError, ValueError, KeyError, TypeError):
            intact = False
        if not intact:
            raise SartorError(f"the checkpoint in {root} is damaged: restore an intact copy, or start a new run.")
        for what, name in {"plan": "plan", "budgets": "assignment of budgets", "data": "data set"}.items():
            if self._document["of"].get(what) != of[what]:
                raise SartorError(f"the checkpoint belongs to another {name}; its guarantee does not cover these people.")
        if self._document["of"].get("loss") != of.get("loss"):
            raise SartorError("the checkpoint belongs to another loss; reusing its noise on other gradients would reveal their difference.")
        self.over = bool(self._document["over"])
        self.public: dict[str, Any] = _from_json(self._document["public"])
        if self.over:
            _remove_others(root, path.name)  # whoever stopped the process before that left the key behind
        else:
            self.stream = Stream.from_json(self._document["stream"])
            self.kernels: dict[str, str] = dict(self._document["kernels"])
            self._made_of: dict[str, Any] = self._document["made_of"]
            self.physical_batch: int | None = self._document["settings"]["largest physical batch"]

    def end(self, model: torch.nn.Module, plan: Plan) -> RunAccount:
        """Put the model of a run that is over where it was released from, and say what it cost."""
        if not self.over:
            raise SartorError("this run is not finished: resume it.")
        _fill_model(model, self._tensors["model.safetensors"])
        records = self._document["account"].get("records")
        return RunAccount(plan, int(self._document["steps"]), bool(self._document["seeded"]), records)

    def reading(self, plan: Plan, budgets: Budgets) -> Reading | None:
        """What each holder's gradients cost in a run that is over, if it tracked their norms. Sensitive."""
        known = self._document.get("tracked")
        if known is None:
            return None
        stretches = Stretches(plan, budgets, known["kind"], int(known["refresh"]), _untracked)
        stretches.restore(known, load(self._tensors[_TRACKED]))
        return stretches.reading()

    def restore(self, optimizer: PrivateOptimizer, loader: PrivateLoader, scheduler: Any = None) -> None:
        """Put model, optimizer, scheduler and account where they were; random numbers follow the key and the step."""
        run = optimizer.run
        if self.over:
            raise SartorError("this run is finished and the key of its noise was deleted, so it cannot be resumed.")
        if not run.stream.same_as(self.stream):
            raise SartorError("a resumed run continues the checkpoint's stream; make it private with that one (stream=checkpoint.stream).")
        if run.steps:
            raise SartorError("this run has already taken steps: restore the checkpoint before the first one.")
        held = _locked(self._root)
        try:
            if _read(self._root / _CURRENT) != self._pointer:
                raise SartorError(f"the run in {self._root} was continued by another process in the meantime; start again.")
            self._restore(optimizer, loader, scheduler)
        except BaseException:
            held.close()
            raise
        run.locks[self._root.resolve()] = held

    def _restore(self, optimizer: PrivateOptimizer, loader: PrivateLoader, scheduler: Any) -> None:
        run, document = optimizer.run, self._document
        other = difference(self._made_of, run.made_of)
        if other is None:
            run.settings = _settings(optimizer, loader, scheduler)
            other = _settings_differ(document["settings"], run.settings) or self._put_back(scheduler, scope_of(run.engine.model))
        if other is not None:
            raise SartorError(
                f"the checkpoint belongs to another run: {other}; reusing its noise on other sums would reveal their difference; resume "
                "with what the run started with (a new run would spend the same people's budgets a second time)."
            )
        here = _environment()
        elsewhere = [
            f"{name} was {document['environment'].get(name)} and is {value}"
            for name, value in here.items()
            if document["environment"].get(name) != value
        ]
        if elsewhere:
            warnings.warn(
                f"resuming elsewhere: {'; '.join(elsewhere)}. Results may differ in their last digits.", OtherEnvironment, stacklevel=2
            )
        _fill_model(run.engine.model, self._tensors["model.safetensors"])
        _fill_optimizer(optimizer, load(self._tensors["optimizer.safetensors"]), _from_json(document["optimizer"]))
        if loader.draws.stretches is not None:
            loader.draws.stretches.restore(document["tracked"], load(self._tensors[_TRACKED]))
            loader.draws.stretches.charged = _Again(self._root, optimizer, loader, document["of"], scheduler, self.public)
        run.resume_at(int(document["steps"]))

    def _put_back(self, scheduler: Any, scope: Scope) -> str | None:
        """Load the scheduler's state, and say whether it is now what was saved. The optimizer's learning rates are put back after it."""
        if scheduler is not None:
            scheduler.load_state_dict(_from_json(self._document["scheduler"]))
        return None if whole(scheduler, scope) == self._document["whole scheduler"] else "the scheduler differs"


def _untracked(holders: int, stretch: int) -> NDArray[np.float64]:
    raise SartorError("a run that is over tracks nobody's norms.")


def _read(path: Path) -> bytes:
    """A file of a checkpoint, which is made its owner's alone where it was left open; it may hold the key."""
    if not path.exists():
        raise FileNotFoundError(path)
    return read_private(path)


def _unshared(model: torch.nn.Module) -> dict[str, Tensor]:
    """The model's state with each tensor once: tied parameters have several names and one memory."""
    seen: set[int] = set()
    found = {}
    for name, value in model.state_dict(keep_vars=True).items():
        if id(value) not in seen:
            seen.add(id(value))
            found[name] = value
    return found


def _fill_model(model: torch.nn.Module, content: bytes) -> None:
    try:
        missing = model.load_state_dict(load(content), strict=False)
    except RuntimeError as error:
        raise SartorError("the checkpoint belongs to another model: parameter shapes differ.") from error
    if missing.unexpected_keys or set(missing.missing_keys) & set(_unshared(model)):
        raise SartorError("the checkpoint belongs to another model: parameter names differ.")


def _flat_optimizer(optimizer: PrivateOptimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    state = optimizer.state_dict()
    tensors: dict[str, Tensor] = {}
    scalars: dict[str, Any] = {}
    for key, values in state["state"].items():
        for name, value in values.items():
            if isinstance(value, Tensor):
                tensors[f"{key}.{name}"] = value.detach().contiguous()
            else:
                scalars[f"{key}.{name}"] = value
    groups = [{name: value for name, value in group.items() if name != "params"} for group in state["param_groups"]]
    return tensors, _jsonable({"state": scalars, "groups": groups}, "the optimizer")


def _fill_optimizer(optimizer: PrivateOptimizer, tensors: dict[str, Tensor], scalars: dict[str, Any]) -> None:
    state = optimizer.state_dict()
    filled: dict[int, dict[str, Any]] = {}
    for key, value in {**tensors, **scalars["state"]}.items():
        place, _, name = key.partition(".")
        filled.setdefault(int(place), {})[name] = value
    if len(scalars["groups"]) != len(state["param_groups"]):
        raise SartorError("the checkpoint belongs to another optimizer: its parameter groups differ.")
    groups = []
    for now, then in zip(state["param_groups"], scalars["groups"], strict=True):
        again = {name: tuple(value) if isinstance(now.get(name), tuple) else value for name, value in then.items()}
        groups.append({**now, **again})
    optimizer.load_state_dict({"state": filled, "param_groups": groups})


def _jsonable(value: Any, what: str) -> Any:
    """Plain values as JSON keeps them; keys that are not text become pairs, since JSON would make text of them."""
    document = _to_json(value, what)
    written = json.dumps(document)
    if json.dumps(_to_json(_from_json(json.loads(written)), what)) != written:
        raise SartorError(f"the state of {what} does not survive being written as JSON, so it cannot be stored without pickle.")
    return document


def _to_json(value: Any, what: str) -> Any:
    if isinstance(value, Mapping):
        pairs = [[key, _to_json(inner, what)] for key, inner in value.items()]
        kind = "counter" if isinstance(value, Counter) else "pairs"
        plain = kind == "pairs" and all(isinstance(key, str) and not key.startswith("$") for key in value)
        return dict(pairs) if plain else {f"${kind}": pairs}
    if isinstance(value, list | tuple):
        return [_to_json(inner, what) for inner in value]
    if value is None or isinstance(value, str | bool | int | float):
        return value
    raise SartorError(f"the state of {what} holds something that is not a plain value, so it cannot be stored without pickle.")


def _from_json(value: Any) -> Any:
    if isinstance(value, dict):
        for mark, kind in (("$pairs", dict), ("$counter", Counter)):
            if mark in value:
                return kind({key: _from_json(inner) for key, inner in value[mark]})
        return {key: _from_json(inner) for key, inner in value.items()}
    return [_from_json(inner) for inner in value] if isinstance(value, list) else value
