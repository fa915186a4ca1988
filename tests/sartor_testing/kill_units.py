"""Votes, federated rounds or releases in child processes that are killed: `python kill_units.py FOLDER KILLS SEED`.

Each child is a fork of this process, goes on with what is in the folder, and is killed with SIGKILL after a random time. Whatever a stream
gives out is noted in a file at that moment, with what is charged on the disk by then. Prints one JSON document: what was noted, how many
kills there were, and what the folder says in the end, for each run of each of the three.
"""

import contextlib
import json
import os
import random
import signal
import sys
import time
import traceback
from hashlib import blake2b
from pathlib import Path

import numpy as np
import torch

import sartor
from sartor import federated
from sartor.errors import Infeasible
from sartor.federated import Ledger
from sartor.federated.rounds import Round, ServerOptimizer
from sartor.individual.request import Figures, Request
from sartor.individual.reserve import Reserve
from sartor.pate.folder import EnsembleFolder
from sartor.run.sampling import PoissonSampler
from sartor.run.stream import Stream
from sartor_testing.kept_ensembles import PEOPLE, saved

CLIENTS = sartor.Budgets([1.0, 2.0] * 20, delta=1e-3)
MODEL = {"w": np.zeros(3)}
ACCOUNTS = Figures(np.linspace(0.1, 0.9, 100))
PRICE = 0.02  # of a release


class Votes:
    """Aggregations of one label each, until there are none: what is charged is counted in queries."""

    def __init__(self, folder):
        self.folder = folder

    def begin(self):
        saved(self.folder, noise=18.0, queries=60)

    def go_on(self):
        made = EnsembleFolder(self.folder)
        while len(made.aggregate(labels=1, further=True)):
            pass

    def charged(self):
        return len(list(self.folder.glob("charge-*")))

    def told(self):
        made = EnsembleFolder(self.folder)
        spent = made.account.spent
        whole = saved(self.folder.parent / "alone", noise=18.0, queries=60).aggregate().account
        fits = bool(np.all(spent <= PEOPLE.groups.epsilon))
        charged, kept = sum(account.queries for account in made.accounts), sum(map(len, made._charges.labels))
        return {"charged": charged, "kept": kept, "lost": made.cut_off, "whole": whole.queries, "fits": fits}


class Rounds:
    """Federated rounds as a server runs them: charged, drawn, added up, released, stepped and kept."""

    def __init__(self, folder):
        self.folder, self.plan = folder, federated.plan(CLIENTS, rounds=50, per_round=10, accountant="rdp")

    def begin(self):
        state = {"server": ServerOptimizer(MODEL).state(), "ended": []}
        Ledger.create(self.folder, self.plan, [f"client {i}" for i in range(40)], CLIENTS, state=state).close()

    def go_on(self):
        with Ledger(self.folder) as ledger:
            stream, server, saved = Stream(), ServerOptimizer(MODEL), ledger.saved()
            sampler = PoissonSampler(ledger.plan.accounted, ledger.budgets, stream)
            server.load(saved["server"])
            while ledger.left:
                number = ledger.charge()
                current = Round(ledger.plan, sampler.draw(number), server.model, 1.0)
                for client in current.drawn:
                    current.add(client, {"w": np.full(3, 0.1 * client)})
                server.step(current.release(stream).mean)
                saved["ended"].append(number)
                ledger.save({"server": server.state(), "ended": saved["ended"]})

    def charged(self):
        return int(json.loads((self.folder / "rounds.json").read_bytes())["charged"])

    def told(self):
        with Ledger(self.folder) as ledger:
            kept, spent = len(ledger.saved()["ended"]), ledger.account().spent
            fits = bool(np.all(spent == ledger.plan.accounted.spent))
            return {"charged": ledger.charged, "kept": kept, "lost": ledger.charged - kept, "whole": ledger.plan.rounds, "fits": fits}


class Releases:
    """Releases of statistics at one price, each of another request, until the reserve is spent."""

    def __init__(self, folder):
        self.folder = folder
        people = sartor.Budgets.from_groups([(1.0, 60), (2.0, 40)], delta=1e-5, reserve=0.6)
        self.plan = sartor.plan(people, steps=20, batch=20, accountant="rdp")

    def begin(self):
        Reserve.create(self.folder, self.plan)

    def go_on(self):
        reserve = Reserve(self.folder, self.plan)
        with contextlib.suppress(Infeasible):
            for place in range(10**6):
                reserve.release(ACCOUNTS, Request(mean=False, histogram=[0.0, 0.1 + place / 1_000, 1.0]), epsilon=PRICE)

    def charged(self):
        return len(list(self.folder.glob("charge-*")))

    def told(self):
        reserve = Reserve(self.folder, self.plan)
        charged, kept = round(reserve.spent / PRICE), len(reserve.releases)
        return {"charged": charged, "kept": kept, "lost": self.charged() - kept, "whole": 30, "fits": reserve.spent <= 0.6 * (1 + 1e-9)}


KINDS = {"votes": Votes, "rounds": Rounds, "releases": Releases}


def noting(kind, path):
    """From now on everything that a stream gives out in this process is noted first, with what is charged on the disk."""
    right, notes = Stream.generator, os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def generator(self, purpose, step):
        key = blake2b(self._key, digest_size=8).hexdigest()
        os.write(notes, (json.dumps({"key": key, "purpose": purpose, "step": step, "charged": kind.charged()}) + "\n").encode())
        return right(self, purpose, step)

    Stream.generator = generator


def killed(kind, notes, seconds):
    """Whether a child was killed that went on for so long at most, and did not come to its end before."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        code = 1
        try:
            torch.set_num_threads(1)  # torch's other threads are not forked
            noting(kind, notes)
            os.write(writing, b"x")
            kind.go_on()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.read(reading, 1)
    os.close(reading)
    os.close(writing)
    if seconds is not None:
        time.sleep(seconds)
        os.kill(pid, signal.SIGKILL)
    status = os.waitpid(pid, 0)[1]
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, "a child failed"
    return os.WIFSIGNALED(status)


def run(kind, notes, kills, chance):
    """What became of one run that was killed so many times, or until it was at its end, and then ended."""
    kind.begin()
    happened = 0
    while happened < kills and killed(kind, notes, chance.uniform(0.0, 0.05)):
        happened += 1
    assert not killed(kind, notes, None)
    return {**kind.told(), "kills": happened, "notes": [json.loads(line) for line in notes.read_text().splitlines()]}


def main(folder, kills, seed):
    torch.set_num_threads(1)
    chance, found = random.Random(seed), {name: [] for name in KINDS}
    for name, kind in KINDS.items():
        while (left := kills - sum(ended["kills"] for ended in found[name])) > 0:
            place = folder / f"{name}-{len(found[name])}"
            place.mkdir()
            found[name].append(run(kind(place / "kept"), place / "notes", left, chance))
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
