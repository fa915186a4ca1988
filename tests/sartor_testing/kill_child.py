"""Trains in processes that are killed, and looks at all that they did: `python -m sartor_testing.kill_child FOLDER KILLS SEED`.

Each process is a fork of this one, which imported everything and computed nothing. It goes on if there is a run in its folder, and ends by
SIGKILL, at a random instant or right before the n-th call that opens, syncs, names or removes a file; by SIGTERM; or with its plan.
What it draws, adds and charges it tells a log by itself, beside the library: a fact is one line, written at once, so a kill loses none
that anybody could have seen. Prints one JSON document: how much was done, and `complaints`, which must be none.
"""

import functools
import hashlib
import json
import os
import random
import re
import signal
import stat
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import torch
from torch.nn import functional

import sartor
from sartor.run import journal
from sartor.run.account import RunAccount
from sartor.run.journal import Journal
from sartor.run.sampling import PoissonSampler, _Coins
from sartor.run.stream import Stream
from sartor.sgd import run as steps_of
from sartor.sgd.interrupt import between_steps
from sartor.sgd.run import Run
from sartor.sgd.stretches import Stretches
from sartor_testing import many_records
from sartor_testing.private_runs import flat, net, people, planned, records, take
from sartor_testing.tracked_runs import filtered

STEPS, EVERY, LR = 36, 4, 0.1
PURPOSES = ("sampling", "noise", "records", "workers", "tracked", "tracked records")
INTERRUPTED = 3


@dataclass(frozen=True)
class Case:
    """One kind of run: `own` says that the loop is one's own."""

    name: str
    plan: Callable[[], sartor.Plan]
    own: bool
    seeded: bool = False
    many: bool = False
    workers: int = 0


def rounds() -> sartor.Plan:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sartor.Unspent)
        return sartor.plan(people(), "rounds", steps=STEPS, batch=20, rounds=3, spread="even", accountant="rdp")


def plain() -> sartor.Plan:
    return planned(steps=STEPS)


def ladder() -> sartor.Plan:
    return filtered(steps=STEPS, refresh=6, full_steps=20)


def many() -> sartor.Plan:
    return many_records.planned(steps=STEPS, records_per_holder=3)


CASES = [
    Case("plain, fit", plain, own=False, seeded=True),
    Case("ladder, own loop", ladder, own=True),
    Case("rounds, fit", rounds, own=False),
    Case("many records, own loop", many, own=True, many=True),
    Case("workers, own loop", plain, own=True, workers=1),
    Case("plain, own loop", plain, own=True, seeded=True),
    Case("ladder, fit", ladder, own=False),
    Case("rounds, own loop", rounds, own=True, seeded=True),
    Case("many records, fit", many, own=False, many=True),
    Case("workers, fit", plain, own=False, seeded=True, workers=1),
]


# -- what a process does


def train(case: Case, plan: sartor.Plan, folder: Path, seed: int | None) -> tuple[torch.nn.Module, RunAccount]:
    """Go on to the end of the plan, or begin, where nothing was charged yet."""
    model, resume = net(), journal.exists(folder)
    given: dict[str, Any] = {"loss": functional.cross_entropy, "seed": seed}
    given |= {"ownership": many_records.owned()} if case.many else {}
    data = many_records.visits() if case.many else records()
    if not case.own:
        execution = sartor.Execution(workers=case.workers)
        kept = sartor.Checkpoints(folder, every=EVERY, resume=resume, restarts=1_000)
        result = sartor.fit(model, data, people(), plan, lr=LR, execution=execution, checkpoints=kept, progress=False, **given)
        return result.model, result.account
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    model, private, loader = sartor.make_private(model, optimizer, data, people(), plan, workers=case.workers, **given)
    loader.checkpoint(folder, every=EVERY, resume=resume, restarts=1_000)
    with between_steps() as interrupted, loader:
        for batch in loader if len(loader) else ():
            take(model, private, batch)
            if interrupted():
                raise KeyboardInterrupt
    return model, private.account()


def note_all(say: Callable[..., None], key: Callable[[Stream], None], folder: Path) -> None:
    """Tell of every draw, noise, charge, choice and key in this process, whoever asks for it."""
    number, at = 0, -1

    def around(owner: Any, name: str) -> Callable[[Any], None]:
        def put(make: Any) -> None:
            inner = getattr(owner, name)
            setattr(owner, name, functools.wraps(inner)(make(inner)))

        return put

    @around(PoissonSampler, "draw")
    def _(inner: Any) -> Any:
        def draw(self: PoissonSampler, step: int) -> Any:
            found = inner(self, step)
            on_disk = json.loads((folder / "journal.json").read_bytes())
            say("draw", step=step, who=found.indices.tolist(), charged=on_disk["run"]["charged"])
            return found

        return draw

    @around(_Coins, "_tossed")
    def _(inner: Any) -> Any:
        def tossed(self: _Coins, stage: int) -> Any:
            found = inner(self, stage)
            say("coins", stage=stage, fell=found[0].astype(int).tolist())
            return found

        return tossed

    @around(Stretches, "_choose")
    def _(inner: Any) -> Any:
        def choose(self: Stretches, step: int) -> None:
            before = self._left.tolist()
            inner(self, step)
            say("choice", step=step, before=before, left=self._left.tolist(), rungs=self._fraction.tolist())

        return choose

    @around(Stretches, "within")
    def _(inner: Any) -> Any:
        def within(self: Stretches, draw: Any) -> Any:
            file = json.loads((folder / "journal.json").read_bytes())["checkpoint"]
            kept = safetensors.numpy.load((folder / file).read_bytes())
            durable = [kept[f"tracked/{name}"].tolist() for name in ("left", "fraction")]
            say("rungs", step=draw.step, rungs=self._fraction.tolist(), durable=durable == [self._left.tolist(), self._fraction.tolist()])
            return inner(self, draw)

        return within

    @around(Journal, "write")
    def _(inner: Any) -> Any:
        def write(self: Journal, entry: Any, checkpoint: bytes | None = None) -> None:
            say("writes", charged=entry.charged, file=None if checkpoint is None else digest(checkpoint))
            inner(self, entry, checkpoint)
            say("wrote", charged=entry.charged)

        return write

    @around(Run, "finish")
    def _(inner: Any) -> Any:
        def finish(self: Run) -> Any:
            nonlocal at
            at = -1 if self._piece is None else self._piece.step
            return inner(self)

        return finish

    @around(steps_of, "normal")
    def _(inner: Any) -> Any:
        def normal(*given: Any, **more: Any) -> Any:
            noise = inner(*given, **more)
            say("noise", step=at, number=number, numbers=noise[:4].tolist())
            return noise

        return normal

    for name in ("__init__", "renew", "incarnate"):

        @around(Stream, name)
        def _(inner: Any, name: str = name) -> Any:
            def renewed(self: Stream, *given: Any, **more: Any) -> None:
                nonlocal number
                inner(self, *given, **more)
                key(self)
                if name == "incarnate":
                    number = given[0]

            return renewed


def die_at(count: int) -> None:
    """Make this process kill itself right before the count-th call that opens, syncs, names, makes, closes to others or removes a file."""
    left, kill, own = count, os.kill, os.getpid()

    def guarded(function: Any) -> Any:
        def call(*given: Any, **more: Any) -> Any:
            nonlocal left
            left -= os.getpid() == own
            if left == 0:
                kill(own, signal.SIGKILL)
            return function(*given, **more)

        return call

    for name in ("open", "fsync", "replace", "link", "unlink", "mkdir", "fchmod", "fdopen"):
        setattr(os, name, guarded(getattr(os, name)))


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def forked(case: Case, plan: sartor.Plan, place: Path, process: int, seed: int | None, moment: int | None) -> int:
    """A process that trains in `place/run` and logs beside it; its id."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.setpgid(0, 0)
        log, keys = (os.open(place / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600) for name in ("log", "keys"))
        write, end = os.write, os._exit
        note_all(
            lambda what, **facts: write(log, json.dumps({"process": process, "what": what, **facts}).encode() + b"\n"),  # type: ignore[arg-type,return-value]
            lambda stream: write(keys, stream._key.hex().encode() + b"\n"),  # type: ignore[arg-type,return-value]
            place / "run",
        )
        torch.manual_seed(process)
        if moment is not None:
            die_at(moment)
        model, account = train(case, plan, place / "run", seed)
        found = {"model": flat(model).tolist(), "account": account.to_json(), "spent": account.spent.tolist()}
        (place / "end").write_text(json.dumps(found))
        code = 0
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BaseException:
        (place / "error").write_text(traceback.format_exc())
    finally:
        end(code)
    raise AssertionError


# -- what is on the disk when a process has ended


def parts_of(checkpoint: bytes) -> dict[str, Any]:
    """The document in a checkpoint, read without the library."""
    size = int.from_bytes(checkpoint[:8], "little")
    return json.loads(json.loads(checkpoint[8 : 8 + size])["__metadata__"]["state"])  # type: ignore[no-any-return]


def looked_at(place: Path) -> dict[str, Any]:
    """What the journal says, of which checkpoint, and whether any file holds a key of the log."""
    run = place / "run"
    files = {path.name: path.read_bytes() for path in run.iterdir()} if run.exists() else {}
    wrong = {path.name for path in run.iterdir() if stat.S_IMODE(path.stat().st_mode) & 0o077} if run.exists() else set()
    keys = {bytes.fromhex(line) for line in (place / "keys").read_text().split()} if (place / "keys").exists() else set()
    found: dict[str, Any] = {"files": sorted(files), "leaks": sorted(wrong), "round": None, "file": None}
    found |= {"charged": 0, "lost": 0, "step": 0}
    for key in keys:
        secrets = [key, *(blake2b(p.encode(), digest_size=16, key=key, person=b"sartor.stream").digest() for p in PURPOSES)]
        for secret in secrets:
            shapes = [secret, *(s.encode() for s in (secret.hex(), str(int.from_bytes(secret, "little")), str(int.from_bytes(secret))))]
            found["leaks"] += [name for name, content in files.items() for shape in shapes if shape in content]
    if "journal.json" in files:
        said = json.loads(files["journal.json"])
        held = files[said["checkpoint"]]
        state = parts_of(held)
        found |= {**said["run"], "file": digest(held), "step": state["step"], "round": state.get("round")}
    return found


# -- what must hold


class Examined:
    """All facts of one run from its first process to its end; `complaints` says in words what does not hold."""

    def __init__(self, case: Case, plan: sartor.Plan, facts: list[dict[str, Any]], end: dict[str, Any]) -> None:
        self.case, self.plan, self.facts, self.end = case, plan, facts, end
        self.complaints: list[str] = []
        self.taken = self._lineage()
        self.coins: dict[int, list[int]] = {}
        self._draws()
        self._noise()
        self._disk()
        self._account()
        self._coins()
        self._stretches()

    def _expect(self, holds: bool, sentence: str) -> None:
        if not holds:
            self.complaints.append(f"{self.case.name}: {sentence}")

    def _all(self, what: str) -> list[dict[str, Any]]:
        return [fact for fact in self.facts if fact["what"] == what]

    def _draws(self) -> None:
        """Every index belongs to one process, which drew one set for it, after its charge was on the disk."""
        drawn: dict[int, tuple[int, list[int]]] = {}
        for fact in self._all("draw"):
            mine = (fact["process"], fact["who"])
            self._expect(drawn.setdefault(fact["step"], mine) == mine, f"step {fact['step']} was drawn twice")
        charged = 0
        for fact in self.facts:
            if fact["what"] == "wrote":
                charged = fact["charged"]
            elif fact["what"] == "disk":
                charged = fact["charged"]
                self._expect(charged > max((d["step"] for d in self._before(fact, "draw")), default=-1), "a charge is below what was drawn")
            elif fact["what"] == "draw":
                self._expect(fact["charged"] > fact["step"], f"step {fact['step']} was drawn before it was charged on the disk")
                self._expect(charged >= fact["charged"], "a journal says more than was written")

    def _before(self, fact: dict[str, Any], what: str) -> list[dict[str, Any]]:
        return [other for other in self.facts[: self.facts.index(fact)] if other["what"] == what]

    def _noise(self) -> None:
        """No noise is used twice, and each was added to a step that this process had drawn."""
        found = [tuple(fact["numbers"]) for fact in self._all("noise")]
        self._expect(len(found) == len(set(found)) == len({numbers[0] for numbers in found}), "noise was used twice")
        drawn = {(fact["process"], fact["step"]) for fact in self._all("draw")}
        self._expect(all((fact["process"], fact["step"]) in drawn for fact in self._all("noise")), "noise was added to a step nobody drew")

    def _lineage(self) -> list[dict[str, Any]]:
        """The steps of which the last model is made, followed through the checkpoints that each process went on from."""
        of_file: dict[str | None, list[dict[str, Any]]] = {None: []}
        now: list[dict[str, Any]] = []
        for fact in self.facts:
            if fact["what"] == "noise":
                now = [*now, fact]
            elif fact["what"] == "writes" and fact["file"] is not None:
                of_file[fact["file"]] = now
            elif fact["what"] == "disk" and not fact["last"]:
                now = of_file[fact["file"]]
        return now

    def _disk(self) -> None:
        """Charges only grow but for what an orderly stop gives back; a kill costs at most a block; no key is there; nothing piles up."""
        before: dict[str, Any] = {"charged": 0, "lost": 0, "step": 0}
        for fact in self._all("disk"):
            self._expect(not fact["leaks"], f"{fact['leaks']} hold a key, or are open to others")
            self._expect(fact["charged"] - fact["step"] <= EVERY, "more than a block would be lost")
            self._expect(fact["charged"] >= before["charged"] or fact["orderly"], "a charge was taken back")
            self._expect(fact["round"] is None or self.case.plan is rounds, "a key is kept where there are no rounds")
            self._expect(fact["lost"] - before["lost"] <= EVERY, "a process cost more than a block")
            before = fact
        self._expect(re.fullmatch(r"\d{8}\.safetensors journal\.json lock", " ".join(before["files"])) is not None, "litter is left")

    def _account(self) -> None:
        account, last = self.end["account"], self._all("disk")[-1]
        self._expect(account["steps"] == account["charged"] == last["charged"] == self.plan.steps, "the account is not what was charged")
        self._expect(account["taken"] == len(self.taken), "the model took others than the account says")
        self._expect(account["lost"] == last["charged"] - len(self.taken), "the lost steps are others")
        self._expect(self.end["spent"] == self.plan.spent_after(last["charged"]).tolist(), "the account spends something else")
        self._expect(account["private"] is not self.case.seeded, "a seeded run says that it is private, or another one that it is not")
        self._expect(len({fact["step"] for fact in self.taken}) == len(self.taken), "the model took a step twice")

    def _coins(self) -> None:
        """One toss for each round, whoever asks in which process."""
        for fact in self._all("coins"):
            self._expect(self.coins.setdefault(fact["stage"], fact["fell"]) == fact["fell"], f"round {fact['stage']} was tossed again")
        ends = np.cumsum([stage.steps for stage in self.plan.stages])
        keys: dict[int, str] = {}
        for fact in self._all("disk"):
            if fact["round"] is not None:
                stage = int(np.searchsorted(ends, fact["step"], side="right"))
                self._expect(keys.setdefault(stage, fact["round"]) == fact["round"], f"round {stage} has another key")
        if self.coins:
            group = self.plan.groups_of(people())
            tossed = self.plan.stages[0].groups[self.plan.stages[0].inclusion < 1]
            for stage, fell in self.coins.items():
                members = np.concatenate([np.flatnonzero(group == g) for g in tossed])
                drawn = {h for d in self._all("draw") if np.searchsorted(ends, d["step"], side="right") == stage for h in d["who"]}
                out = set(members[~np.array(fell, bool)].tolist())
                self._expect(not drawn & out, "somebody was drawn whose coin of the round kept them out")
            self._expect(len(set(map(tuple, self.coins.values()))) == len(self.coins), "two rounds have the same coins")

    def _stretches(self) -> None:
        """A stretch is chosen before anybody draws in it, goes on with its rungs, and is paid for once, before its first coin."""
        if self.plan.filter is None:
            return
        refresh, group = self.plan.filter.refresh, self.plan.groups_of(people())
        left = self.plan.filter.units[group].tolist()
        for begins in range(0, self.plan.steps, refresh):
            inside = [(place, f) for place, f in enumerate(self.facts) if begins <= f.get("step", -1) < begins + refresh]
            drawn = [place for place, fact in inside if fact["what"] == "draw"]
            chosen = [(place, fact) for place, fact in inside if fact["what"] == "choice"]
            self._expect(bool(chosen), f"the stretch at {begins} was never chosen")
            if not chosen:
                return
            self._expect(all(fact["step"] == begins for _, fact in chosen), "a stretch was chosen amid another")
            first = min(drawn, default=len(self.facts))
            self._expect(max(place for place, _ in chosen) < first, "a rung followed the coins of its stretch")
            self._expect(all(fact["before"] == left for _, fact in chosen), f"units were taken twice before {begins}")
            rungs, left = chosen[-1][1]["rungs"], chosen[-1][1]["left"]
            plans = zip(self.plan.filter.rungs.tolist(), self.plan.filter.costs, strict=True)
            table = [dict(zip([0.0, *rung], [0, *cost], strict=True)) for rung, cost in plans]
            costs = [int(table[g][rung]) for g, rung in zip(group, rungs, strict=True)]
            paid = [a - b for a, b in zip(chosen[-1][1]["before"], left, strict=True)]
            self._expect(costs == paid and min(left) >= 0, f"units of the stretch at {begins} are not what its rungs cost")
            for _, fact in inside:
                if fact["what"] == "rungs":
                    self._expect(fact["rungs"] == rungs, f"the stretch at {begins} went on with other rungs")
                    self._expect(fact["durable"], "coins were tossed before units and rungs were on the disk")


def simulated(taken: list[dict[str, Any]], plan: sartor.Plan, seed: int) -> torch.Tensor:
    """The model from the steps that were taken, each under the key of its own start, one example at a time."""
    model = net()
    clip_at = dict(zip(plan.epsilon.tolist(), plan.clips.tolist(), strict=True))
    inputs, targets = records().tensors
    parameters = list(model.parameters())
    for fact in taken:
        stream = Stream(seed)
        stream.incarnate(fact["number"])
        total = torch.zeros(sum(p.numel() for p in parameters), dtype=torch.float64)
        for holder in PoissonSampler(plan, people(), stream).draw(fact["step"]).indices.tolist():
            loss = functional.cross_entropy(model(inputs[holder : holder + 1]), targets[holder : holder + 1])
            gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters)]).double()
            total += gradient * min(1.0, clip_at[float(people().epsilon[holder])] / float(gradient.norm()))
        total += torch.from_numpy(stream.generator("noise", fact["step"]).standard_normal(len(total)) * plan.noise)
        with torch.no_grad():
            for parameter, change in zip(parameters, (total / plan.batch).split([p.numel() for p in parameters]), strict=True):
                parameter -= LR * change.view(parameter.shape).float()
    return flat(model)


# -- killing


def one_run(case: Case, place: Path, chance: random.Random, kills: int, seed: int) -> tuple[Examined, dict[str, int]]:
    """Kill a run so many times, then let it end; what it did."""
    place.mkdir()
    plan, ours = case.plan(), seed if case.seeded else None
    count = {"kills": 0, "terms": 0, "processes": 0}
    while True:
        how = "end" if count["kills"] >= kills else chance.choice(["time", "time", "call", "call", "call", "term"])
        moment = chance.randint(1, 110) if how == "call" else None
        pid = forked(case, plan, place, count["processes"], ours, moment)
        if how in ("time", "term"):
            wait(place / "log", chance.randint(0, 70))
            time.sleep(chance.uniform(0, 0.01))
            os.kill(pid, signal.SIGKILL if how == "time" else signal.SIGTERM)
        status = os.waitpid(pid, 0)[1]
        if os.WIFSIGNALED(status):
            _end_group(pid)
        count["processes"] += 1
        count["kills"] += os.WIFSIGNALED(status)
        count["terms"] += os.WIFEXITED(status) and os.WEXITSTATUS(status) == INTERRUPTED
        assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) in (0, INTERRUPTED), (place / "error").read_text()
        last = os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0
        with open(place / "log", "a") as log:
            log.write(json.dumps({"what": "disk", "process": count["processes"] - 1, "last": last, **looked_at(place)}) + "\n")
        if last:
            break
        assert count["processes"] < 20 * kills + 20, "no progress is made between kills"
    facts = [json.loads(line) for line in (place / "log").read_text().splitlines()]
    return Examined(case, plan, facts, json.loads((place / "end").read_text())), count


def wait(log: Path, facts: int) -> None:
    """Until so many facts more are told, or none was for a while."""
    size, told, since = -1, 0, time.monotonic()
    with open(log, "ab+") as file:
        while told < facts and time.monotonic() - since < 0.5:
            found = file.read()
            told += found.count(b"\n")
            if os.fstat(file.fileno()).st_size != size:
                size, since = os.fstat(file.fileno()).st_size, time.monotonic()
            time.sleep(0.001)


def _end_group(pid: int) -> None:
    """End the workers of a process that was killed: they would hold its folder for some seconds."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def main(folder: str, kills: int, seed: int) -> None:
    torch.set_num_threads(1)
    weights = torch.zeros(1, requires_grad=True)
    weights.grad = torch.zeros(1)
    torch.optim.SGD([weights], lr=0.1).step()  # imports here what each child would
    for make in (plain, ladder, rounds, many):
        make()
    chance = random.Random(seed)
    total: dict[str, Any] = {"kills": 0, "terms": 0, "processes": 0, "runs": 0, "lost": 0, "complaints": [], "differences": []}
    agree: list[bool] = []
    while total["kills"] < kills or total["runs"] < len(CASES):
        case = CASES[total["runs"] % len(CASES)]
        each = chance.randint(1, 2) if kills < 50 else chance.randint(3, 6)
        each, number = min(each, max(0, kills - total["kills"])), total["runs"]
        found, count = one_run(case, Path(folder) / f"run-{number}", chance, each, seed + number)
        total = {name: value + count.get(name, 0) if isinstance(value, int) else value for name, value in total.items()}
        total["runs"] = number + 1
        total["lost"] += found.end["account"]["lost"]
        total["complaints"] += found.complaints
        if case.seeded and case.plan is plain:
            by_hand = simulated(found.taken, found.plan, seed + number)
            total["differences"].append(float((by_hand - torch.tensor(found.end["model"])).abs().max()))
        agree += [a == b for one, other in pairwise(found.coins.values()) for a, b in zip(one, other, strict=True)]
    total["agree"] = [sum(agree), len(agree)]
    print(json.dumps(total))


if __name__ == "__main__":
    warnings.simplefilter("error")
    warnings.simplefilter("ignore", sartor.RarelyUsed)
    warnings.simplefilter("ignore", sartor.Unspent)
    warnings.simplefilter("ignore", DeprecationWarning)
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
