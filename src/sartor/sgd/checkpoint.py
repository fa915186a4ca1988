"""Where a run stands, in one folder: tensors as safetensors, all else as JSON, no pickle; written atomically, readable by its owner alone.

A checkpoint holds the key of the run's coins and noise, so it is sensitive. A run that resumes draws the same coins and the same noise from
the step on at which it was saved: steps that it had taken after that are taken again with the same result, so nothing is released twice.

Breaks if: the resumed run differs (other code, data, learning rate): then steps taken twice under the same noise show their difference.
    Plan, data, budgets and settings are compared and a difference is refused; the machine is compared too, and a difference is said.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import shutil
import warnings
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor
from torch.utils._pytree import tree_flatten
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

from sartor.budgets import Budgets
from sartor.errors import SartorError, SartorWarning
from sartor.files import sync_folder
from sartor.plans import Plan
from sartor.sgd.loader import PrivateLoader, seeded
from sartor.sgd.optimizer import PrivateOptimizer
from sartor.sgd.stream import Stream

_CURRENT = "current"
_SAMPLED = 10_000
_OURS = re.compile(r"step-\d+-[0-9a-f]{8}(\.pointer)?")


class OtherEnvironment(SartorWarning):
    """A run that resumes where numbers may round differently: it is as private, but not bit for bit the same."""


def fingerprint(plan: Plan, budgets: Budgets, dataset: Dataset[Any]) -> dict[str, str]:
    """What a checkpoint is of: plan, who is in which group, and the data (hashed whole where they are tensors, else in part)."""
    groups = np.ascontiguousarray(plan.groups_of(budgets), np.int64)
    return {
        "plan": _digest(json.dumps(_plan_document(plan), sort_keys=True).encode()),
        "budgets": _digest(groups.tobytes()),
        "data": _data_digest(dataset),
    }


def _plan_document(plan: Plan) -> dict[str, Any]:
    arrays = {name: np.asarray(getattr(plan, name)).tolist() for name in ("epsilon", "delta", "holders", "rate", "clips", "first", "last")}
    return {**{n: getattr(plan, n) for n in ("scheme", "accountant", "steps", "batch", "clip", "noise_multiplier", "reserve")}, **arrays}


def _digest(*chunks: bytes | memoryview) -> str:
    hashed = hashlib.blake2b(digest_size=16)
    for chunk in chunks:
        hashed.update(chunk)
    return hashed.hexdigest()


def _data_digest(dataset: Any) -> str:
    """Tensors, and parts and chains of them, are read whole; other data sets record by record up to a number, beyond it in part."""
    if type(dataset) is TensorDataset:
        return _digest(*(_bytes(tensor) for tensor in dataset.tensors))
    if type(dataset) is Subset:
        return _digest(_data_digest(dataset.dataset).encode(), np.asarray(dataset.indices, np.int64).tobytes())
    if type(dataset) is ConcatDataset:
        return _digest(*(_data_digest(part).encode() for part in dataset.datasets))
    places = np.unique(np.linspace(0, len(dataset) - 1, min(len(dataset), _SAMPLED)).astype(int))
    hashed = hashlib.blake2b(str(len(dataset)).encode(), digest_size=16)
    with seeded(0):
        for i in places:
            for value in tree_flatten(dataset[int(i)])[0]:
                hashed.update(_leaf(value))
    return hashed.hexdigest()


def _leaf(value: Any) -> bytes | memoryview:
    """The content of one value; of an object that does not give it away, at least its class."""
    if isinstance(value, Tensor):
        return _bytes(value)
    if isinstance(value, str | bytes | bool | int | float | None):
        return repr(value).encode()
    try:
        array = np.asarray(value)
    except (TypeError, ValueError):
        array = np.array(None)
    return type(value).__qualname__.encode() if array.dtype.hasobject else array.tobytes()


def _bytes(tensor: Tensor) -> memoryview:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data


def _environment(loader: PrivateLoader) -> dict[str, Any]:
    return {
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "physical_batch": loader.max_physical_batch,
        "processor": torch.backends.cpu.get_cpu_capability(),
    }


def save_checkpoint(
    folder: str | os.PathLike[str],
    optimizer: PrivateOptimizer,
    loader: PrivateLoader,
    of: dict[str, str],
    scheduler: Any = None,
    public: Mapping[str, Any] | None = None,
) -> None:
    """Write where the run stands; whoever kills the process at any moment finds this checkpoint or the one before.

    `public` is whatever else the caller wants back, made from public data alone.
    """
    run = optimizer.run
    tensors, scalars = _flat_optimizer(optimizer)
    document = {
        "of": of,
        "steps": run.steps,
        "stream": run.stream.to_json(),
        "settings": {"reduction": run.reduction, "noise_draws": run.noise_draws, "optimizer": type(optimizer.inner).__name__},
        "environment": _environment(loader),
        "kernels": run.engine.kernels.chosen,
        "optimizer": scalars,
        "scheduler": _jsonable(scheduler.state_dict(), "the scheduler") if scheduler is not None else None,
        "random": torch.get_rng_state().numpy().tobytes().hex(),
        "account": run.account().to_json(),
        "public": _jsonable(dict(public or {}), "the caller"),
    }
    files = {
        "model.safetensors": save({name: value.detach().contiguous() for name, value in _unshared(run.engine.model).items()}),
        "optimizer.safetensors": save(tensors),
    }
    document["files"] = {name: _digest(content) for name, content in files.items()}
    content = json.dumps(document).encode()
    files["state.json"] = content
    pointer = json.dumps({"folder": f"step-{run.steps}-{secrets.token_hex(4)}", "digest": _digest(content)})
    root = Path(folder)
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    root.chmod(0o700)
    name = json.loads(pointer)["folder"]
    (root / name).mkdir(mode=0o700)
    for file, content in files.items():
        _write(root / name / file, content)
    sync_folder(root / name)
    _write(root / f"{name}.pointer", pointer.encode())
    os.replace(root / f"{name}.pointer", root / _CURRENT)
    sync_folder(root)
    for old in root.iterdir():
        if _OURS.fullmatch(old.name) and old.name != name:
            shutil.rmtree(old, ignore_errors=True) if old.is_dir() else old.unlink(missing_ok=True)


def exists(folder: str | os.PathLike[str]) -> bool:
    """Whether a folder holds a checkpoint."""
    return (Path(folder) / _CURRENT).is_file()


class Checkpoint:
    """A checkpoint that was read: the stream to continue with first, then everything else, put into a run of the same plan and data."""

    def __init__(self, folder: str | os.PathLike[str], of: dict[str, str]) -> None:
        root = Path(folder)
        if not exists(root):
            raise SartorError(f"{root} holds no checkpoint to resume from.")
        try:
            pointer = json.loads((root / _CURRENT).read_text())
            path = root / Path(str(pointer["folder"])).name
            content = (path / "state.json").read_bytes()
            self._document: dict[str, Any] = json.loads(content)
            self._tensors = {name: (path / name).read_bytes() for name in ("model.safetensors", "optimizer.safetensors")}
            whole = _digest(content) == pointer["digest"]
            whole = whole and all(_digest(value) == self._document["files"][name] for name, value in self._tensors.items())
        except (OSError, ValueError, KeyError, TypeError):
            whole = False
        if not whole:
            raise SartorError(f"the checkpoint in {root} is damaged: start anew, or put back an intact copy.")
        for what, name in {"plan": "plan", "budgets": "assignment of budgets", "data": "data set"}.items():
            if self._document["of"].get(what) != of[what]:
                raise SartorError(
                    f"this checkpoint is of another {name}: resuming would charge these people for what others were promised."
                )
        if self._document["of"].get("loss") != of.get("loss"):
            raise SartorError("this checkpoint is of another loss: the same noise on other gradients would show their difference.")
        self.stream = Stream.from_json(self._document["stream"])
        self.kernels: dict[str, str] = dict(self._document["kernels"])
        self.public: dict[str, Any] = _from_json(self._document["public"])

    def restore(self, optimizer: PrivateOptimizer, loader: PrivateLoader, scheduler: Any = None) -> None:
        """Put model, optimizer, scheduler, random numbers and account where they were."""
        run, document = optimizer.run, self._document
        if not run.stream.same_as(self.stream):
            raise SartorError("a resumed run continues the checkpoint's stream; make it private with that one (stream=checkpoint.stream).")
        if run.steps:
            raise SartorError("this run has taken steps already: a checkpoint is restored before the first.")
        settings = {"reduction": run.reduction, "noise_draws": run.noise_draws, "optimizer": type(optimizer.inner).__name__}
        if document["settings"] != settings:
            raise SartorError("this checkpoint was written with another optimizer, reduction or number of draws; resume with the same.")
        here = _environment(loader)
        other = [
            f"{name} was {document['environment'].get(name)} and is {value}"
            for name, value in here.items()
            if document["environment"].get(name) != value
        ]
        if other:
            warnings.warn(
                f"resuming elsewhere: {'; '.join(other)}. Results may differ in their last digits.", OtherEnvironment, stacklevel=2
            )
        state = load(self._tensors["model.safetensors"])
        try:
            missing = run.engine.model.load_state_dict(state, strict=False)
        except RuntimeError as error:
            raise SartorError("this checkpoint is of another model: shapes differ.") from error
        if missing.unexpected_keys or set(missing.missing_keys) & set(_unshared(run.engine.model)):
            raise SartorError("this checkpoint is of another model: parameters differ.")
        _fill_optimizer(optimizer, load(self._tensors["optimizer.safetensors"]), _from_json(document["optimizer"]))
        if (scheduler is None) != (document["scheduler"] is None):
            raise SartorError("this checkpoint was written with a scheduler and resumed without, or the other way round.")
        if scheduler is not None:
            scheduler.load_state_dict(_from_json(document["scheduler"]))
        torch.set_rng_state(torch.frombuffer(bytearray.fromhex(document["random"]), dtype=torch.uint8))
        run.resume_at(int(document["steps"]))


def _unshared(model: torch.nn.Module) -> dict[str, Tensor]:
    """The model's state with each tensor once: tied parameters have several names and one memory."""
    seen: set[int] = set()
    found = {}
    for name, value in model.state_dict(keep_vars=True).items():
        if id(value) not in seen:
            seen.add(id(value))
            found[name] = value
    return found


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
        raise SartorError("this checkpoint is of another optimizer: its groups differ.")
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


def _write(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
