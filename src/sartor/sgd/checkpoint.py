"""What a run is charged and goes on from: `Keeper` charges blocks of steps ahead and writes a checkpoint with each charge.

A checkpoint is one safetensors file: model, optimizer, scheduler, position, and where norms are tracked everybody's units and rungs. It
holds no key of noise or of a step's coins; of a round under way it holds the key of the inclusion coins, which are tossed once. Whoever
resumes goes on at the step up to which everybody is charged, with fresh keys (`sartor.run.journal` has the guarantee and its proof), so
code, loss, learning rate, optimizer settings, versions, kernels and workers may differ. Compared are the plan, the people in each group,
how norms are tracked, and, where places alone bind a budget to a person, the records.
"""

from __future__ import annotations

import json
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from sartor.budgets import Budgets
from sartor.errors import SartorError, SartorWarning
from sartor.ownership import Ownership
from sartor.plans import Plan
from sartor.run.journal import Journal
from sartor.run.sealed import digest
from sartor.sgd.batches import leaves
from sartor.sgd.forks import forked
from sartor.sgd.options import Checkpoints

if TYPE_CHECKING:
    from sartor.sgd.loader import PrivateLoader
    from sartor.sgd.optimizer import PrivateOptimizer

FIRST = 10
"""Steps of the first block after any start, at most: what a crash at once may cost."""
_SAMPLED = 1_000
_GROUPS = "the optimizer"


class NotCompared(SartorWarning):
    """Records that are never the same twice, so that a resumed run cannot tell whether they are those it began with."""


def fingerprint(plan: Plan, budgets: Budgets, dataset: Any, ownership: Ownership | None) -> dict[str, str]:
    """What a run is of: its plan, who is in which group, and the records where nothing but their places says whose they are."""
    groups = np.ascontiguousarray(plan.groups_of(budgets), np.int64)
    names = [] if budgets.names is None else ["\0".join(budgets.names).encode()]
    of = {"plan": digest([json.dumps(plan.record(), sort_keys=True).encode()]), "people": digest([groups.tobytes(), *names])}
    if ownership is not None and ownership.names is not None:
        return of
    owners = {} if ownership is None else {"ownership": digest([ownership.of_record.tobytes()])}
    return {**of, **owners, "records": _of_records(dataset)}


def _of_records(dataset: Any) -> str:
    """A digest of tensors as a whole, and of other data by a sample, fetched twice; of records that differ each time, their number."""
    if type(dataset) is TensorDataset:
        return digest(_bytes(tensor) for tensor in dataset.tensors)
    if type(dataset) is Subset:
        return digest([_of_records(dataset.dataset).encode(), np.asarray(dataset.indices, np.int64).tobytes()])
    if type(dataset) is ConcatDataset:
        return digest(_of_records(part).encode() for part in dataset.datasets)
    places = np.unique(np.linspace(0, len(dataset) - 1, min(len(dataset), _SAMPLED)).astype(int)).tolist()
    try:
        with forked():
            first, again = (digest(_bytes(leaf) for i in places for leaf in leaves(dataset[i])) for _ in range(2))
        if first == again:
            return digest([str(len(dataset)).encode(), first.encode()])
        why = "records differ each time they are fetched"
    except TypeError as error:
        why = f"records hold {error}, which does not show what is in it"
    warnings.warn(f"{why}, so a resumed run compares their number alone: give it the same data set.", NotCompared, stacklevel=5)
    return str(len(dataset))


def _bytes(value: Any) -> bytes:
    if isinstance(value, Tensor):
        value = value.detach().cpu().resolve_conj().contiguous()
        return f"{value.dtype} {tuple(value.shape)}".encode() + bytes(value.reshape(-1).view(torch.uint8).numpy())
    if isinstance(value, np.ndarray) and value.dtype != object:
        return f"{value.dtype} {value.shape}".encode() + np.ascontiguousarray(value).tobytes()
    if value is None or isinstance(value, str | bytes | bool | int | float | np.generic):
        return f"{type(value).__qualname__} {value!r}".encode()
    raise TypeError(f"an object of {type(value).__qualname__}")


class Keeper:
    """Charges a run ahead, block by block, and keeps what it goes on from. Made by `PrivateLoader.checkpoint`."""

    def __init__(
        self,
        asked: Checkpoints,
        loader: PrivateLoader,
        optimizer: PrivateOptimizer,
        of: Mapping[str, str],
        scheduler: Any,
        public: Callable[[], Mapping[str, Any]],
    ) -> None:
        self._asked, self._loader, self._optimizer, self._of = asked, loader, optimizer, dict(of)
        self._scheduler, self._public = scheduler, public
        self._begun = self._settings()
        self._first, self._block, self._closed = True, asked.every, False
        self.is_taken_up = asked.resume
        """Whether this is a further start of a run."""
        self.found: dict[str, Any] = {}
        """What the caller kept, of a run that was taken up."""
        if asked.resume:
            self._journal = Journal.resume(asked.folder)
            try:
                self._take_up()
            except BaseException:
                self._journal.close()
                loader.run.stop()  # half of it may be in place already, and none of it is charged
                raise
            return
        self._journal = Journal.begin(asked.folder)

    @property
    def over(self) -> bool:
        """Whether the run that was taken up is over: it takes no further step."""
        return self._journal.entry.over

    def charge(self, limit: int) -> int:
        """Charge for the next block, durably, before any of its coins; the step that ends it, at most `limit`.

        Raises:
            SartorError: if the charge cannot be written, or another process has charged.
        """
        run = self._loader.run
        if run.steps < run.charged:
            return min(run.charged, limit)  # a block that was begun goes on
        if self._block is None:
            self._block = self._timed()
        until = min(run.steps + (min(self._block, FIRST) if self._first else self._block), limit)
        self._journal.write(replace(self._journal.entry, charged=until, lost=run.lost, orderly=False, seeded=run.seeded), self._content())
        run.charged, self._first = until, False
        run.stream.renew()
        return until

    def close(self, *, over: bool = False, **public: Any) -> None:
        """Stop in order: steps whose coins were never drawn are given back, and others can go on from here."""
        run = self._loader.run
        if self._closed:
            return
        charged = max(run.drawn, run.steps)
        over = over or charged == run.plan.steps
        whole = not run.moving and not self._is_halfway
        if self._journal.is_charged:
            content = self._content(over=over, **public) if whole or over else None
            self._journal.give_back(charged, lost=run.lost, over=over, checkpoint=content)
        run.settle(charged)
        self.let_go()

    def let_go(self, worker: int = 0) -> None:
        """Stop otherwise, or in a worker: everything that is charged stays charged."""
        self._closed = True
        self._journal.close()

    @property
    def _is_halfway(self) -> bool:
        stretches = self._loader.draws.stretches
        return stretches is not None and stretches.is_halfway

    def _content(self, *, over: bool = False, **public: Any) -> bytes:
        run, draws = self._loader.run, self._loader.draws
        tensors = {f"model/{name}": value for name, value in _unshared(run.engine.model).items()}
        tracked = None
        if draws.stretches is not None:
            tracked, arrays = draws.stretches.state()
            tensors |= {f"tracked/{name}": value for name, value in arrays.items()}
        state: dict[str, Any] = {"of": self._of, "step": run.steps, "name": run.name, "counted": run.counted, "tracked": tracked}
        if not over:
            state |= {"optimizer": type(self._optimizer.inner).__name__, "begun": self._begun, "now": self._settings()}
            for place, values in self._optimizer.inner.state_dict()["state"].items():
                held = {name: value for name, value in values.items() if isinstance(value, Tensor)}
                tensors |= {f"optimizer/{place}/{name}": value for name, value in held.items()}
                rest = {name: value for name, value in values.items() if name not in held}
                state.setdefault("scalars", {})[str(place)] = _plain(rest, _GROUPS)
            key = draws.sampler.round_key(run.steps) if run.steps < run.plan.steps else None
            state["round"] = None if key is None else key.hex()
        state["public"] = _plain({**self._public(), **public}, "the caller")
        return save(
            {name: value.detach().clone(memory_format=torch.contiguous_format) for name, value in tensors.items()},
            {"state": json.dumps(state)},
        )

    def _settings(self) -> dict[str, Any]:
        """Learning rates, and all else that optimizer and scheduler hold besides tensors."""
        groups = self._optimizer.inner.param_groups
        scheduler = None if self._scheduler is None else _plain(self._scheduler.state_dict(), "the scheduler")
        return {
            "groups": [_plain({name: v for name, v in group.items() if name != "params"}, _GROUPS) for group in groups],
            "scheduler": scheduler,
        }

    def _take_up(self) -> None:
        """Put model, optimizer, scheduler and units where they were, and count another start of the run, durably."""
        journal, run = self._journal, self._loader.run
        entry, state, tensors = journal.entry, *self._read(journal.content())
        self._refuse_others(state)
        _fill_model(run.engine.model, _under("model/", tensors))
        draws = self._loader.draws
        if draws.stretches is not None:
            draws.stretches.restore(state["tracked"], _under("tracked/", tensors))
        lost = entry.lost + entry.charged - int(state["step"])
        self.found = _unplain(state["public"])
        run.go_on_at(
            entry.charged, lost=lost, name=state["name"], seeded=entry.seeded or (run.seeded and not entry.over), counted=state["counted"]
        )
        if entry.over:
            run.stop()
            self.let_go()
            return
        restarts = entry.restarts + (not entry.orderly)
        if restarts > self._asked.restarts:
            raise SartorError(
                f"this run crashed more often than restarts={self._asked.restarts} allows, and each crash may tell something of the data: "
                "find out why, then allow more."
            )
        self._fill_optimizer(state, _under("optimizer/", tensors))
        if state["round"] is not None and entry.charged < run.plan.steps:
            draws.sampler.keep_round(int(state["step"]), bytes.fromhex(state["round"]))
        journal.write(replace(entry, incarnation=entry.incarnation + 1, restarts=restarts, orderly=False))
        run.stream.incarnate(entry.incarnation + 1)

    def _read(self, content: bytes) -> tuple[dict[str, Any], dict[str, Tensor]]:
        try:
            size = int.from_bytes(content[:8], "little")
            state = json.loads(json.loads(content[8 : 8 + size])["__metadata__"]["state"])
            return state, load(content)
        except (ValueError, KeyError, TypeError, RecursionError, SafetensorError):
            raise SartorError(f"the checkpoint in {self._journal.folder} is damaged: start a new run.") from None

    def _refuse_others(self, state: Mapping[str, Any]) -> None:
        """Refuse another plan, other people, and other records where their places bind them."""
        for name, what in {
            "plan": "another plan: give the one that the run began with",
            "people": "other people or budgets: a run goes on with those that it began with, in their order",
            "ownership": "another ownership of its records: give the one that the run began with",
            "records": "other records: without an ownership their places bind budgets to people, so give the same data set",
        }.items():
            if state["of"].get(name) != self._of.get(name):
                raise SartorError(f"the run in {self._journal.folder} has {what}.")
        stretches = self._loader.draws.stretches
        way = None if state["tracked"] is None else (state["tracked"]["kind"], state["tracked"]["refresh"])
        if way != (None if stretches is None else stretches.way):
            raise SartorError(f"the run in {self._journal.folder} tracked norms in another way: give the same tracking=.")

    def _fill_optimizer(self, state: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Put the optimizer's state back, but for settings that were changed since the run began: those are taken as they are now."""
        inner, kind = self._optimizer.inner, type(self._optimizer.inner).__name__
        begun, kept = state["begun"], state["now"]
        if kind != state["optimizer"] or len(kept["groups"]) != len(inner.param_groups):
            raise SartorError(
                f"the run in {self._journal.folder} was kept with {state['optimizer']} over {len(kept['groups'])} parameter groups: resume "
                "with the same; its settings, such as lr, may change."
            )
        filled: dict[int, dict[str, Any]] = {int(place): _unplain(values) for place, values in state.get("scalars", {}).items()}
        for name, value in tensors.items():
            place, _, short = name.partition("/")
            filled.setdefault(int(place), {})[short] = value
        if self._scheduler is not None and kept["scheduler"] is not None:
            self._scheduler.load_state_dict(_unplain(_merged(begun["scheduler"], kept["scheduler"], self._begun["scheduler"])))
        settings = zip(begun["groups"], kept["groups"], self._begun["groups"], strict=True)
        groups = [_unplain(_merged(was, then, now)) for was, then, now in settings]
        for group, own in zip(groups, inner.state_dict()["param_groups"], strict=True):
            group["params"] = own["params"]
            group.update({name: tuple(v) for name, v in group.items() if isinstance(own.get(name), tuple)})
        sizes = dict(enumerate(p for group in inner.param_groups for p in group["params"]))
        if any(v.dim() and v.shape != sizes[place].shape for place, held in filled.items() for v in held.values() if isinstance(v, Tensor)):
            raise SartorError(f"the optimizer's state in {self._journal.folder} is of other parameters: resume with the same model.")
        inner.load_state_dict({"state": filled, "param_groups": groups})

    def _timed(self) -> int:
        """How many steps take the time that a block should: by a stand-in batch of the expected size, copies of the first record."""
        seconds = self._loader.seconds_of_a_step()
        return FIRST if seconds is None else max(1, int(self._asked.seconds / max(seconds, 1e-6)))


def _merged(begun: Any, kept: Any, now: Any, name: str = "") -> Any:
    """What was kept, but for what is set otherwise now than when the run began; a learning rate keeps what its schedule made of it."""
    if isinstance(kept, dict) and isinstance(now, dict) and isinstance(begun, dict):
        return {key: _merged(begun.get(key), value, now.get(key), key) for key, value in kept.items()} | {
            key: value for key, value in now.items() if key not in kept
        }
    if now == begun:
        return kept
    if name == "lr" and begun and kept != begun:
        return kept * now / begun
    return now


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def _unshared(model: torch.nn.Module) -> dict[str, Tensor]:
    """The model's state with each tensor once: tied parameters have several names and one memory."""
    seen: set[int] = set()
    found = {}
    for name, value in model.state_dict(keep_vars=True).items():
        if isinstance(value, Tensor) and id(value) not in seen:
            seen.add(id(value))
            found[name] = value
    return found


def _fill_model(model: torch.nn.Module, tensors: dict[str, Tensor]) -> None:
    own = _unshared(model)
    if own.keys() != tensors.keys() or any(own[name].shape != value.shape for name, value in tensors.items()):
        raise SartorError("the checkpoint is of another model: give one with the same parameters and buffers, by name and shape.")
    model.load_state_dict(tensors, strict=False)


def _plain(value: Any, what: str) -> Any:
    """Plain values as JSON keeps them; keys that are not text become pairs, since JSON would make text of them."""
    if isinstance(value, Mapping):
        pairs = [[key, _plain(inner, what)] for key, inner in value.items()]
        kind = "counter" if isinstance(value, Counter) else "pairs"
        plain = kind == "pairs" and all(isinstance(key, str) and not key.startswith("$") for key in value)
        return dict(pairs) if plain else {f"${kind}": pairs}
    if isinstance(value, list | tuple):
        return [_plain(inner, what) for inner in value]
    if value is None or isinstance(value, str | bool | int | float):
        return value
    raise SartorError(f"the state of {what} holds a {type(value).__name__}, which cannot be kept without pickle: make it a plain value.")


def _unplain(value: Any) -> Any:
    if isinstance(value, dict):
        for mark, kind in (("$pairs", dict), ("$counter", Counter)):
            if mark in value:
                return kind({key: _unplain(inner) for key, inner in value[mark]})
        return {key: _unplain(inner) for key, inner in value.items()}
    return [_unplain(inner) for inner in value] if isinstance(value, list) else value
