"""Breaks of the crash rule: what is charged, drawn and kept when a run stops and another process goes on with it."""

import json
import os
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

import sartor
from mutants.machinery import Catcher, catcher, mutant
from sartor.errors import SartorError
from sartor.run import sampling
from sartor.run.account import RunAccount
from sartor.run.journal import Journal
from sartor.run.stream import Stream
from sartor.sgd.checkpoint import Keeper
from sartor.sgd.run import Run
from sartor_testing import private_runs as runs


def in_a_folder(name, look, plan=None):
    """Somebody who looks at runs in a new folder, and says whether something is wrong."""

    def sees(*_):
        with tempfile.TemporaryDirectory() as folder:
            return look(Path(folder) / "run")

    return Catcher(name, "test", sees, plan or (lambda: runs.planned("scale", runs.STEPS)))


AHEAD = in_a_folder("charges before coins", lambda folder: not runs.is_charged_ahead(folder))


def _unstepped(folder):
    """A batch that was handed out and not stepped."""
    _, _, loader = runs.private(plan=runs.planned("scale", runs.STEPS))
    loader.checkpoint(folder)
    next(iter(loader))
    loader.close()
    return json.loads((folder / "journal.json").read_text())["run"]["charged"] != 1


GIVEN_BACK = in_a_folder("what an orderly stop gives back", _unstepped)


def _crashes(folder):
    for _ in range(3):
        try:
            runs.stopped_at(2, folder, resume=(folder / "journal.json").exists(), plan=runs.planned("scale", 30))
        except BaseException:  # of a mutant
            return True
        break
    try:
        runs.fitted(checkpoints=sartor.Checkpoints(folder, resume=True, restarts=0), plan=runs.planned("scale", 30))
    except SartorError:
        return False
    return True


RESTARTS = in_a_folder("how often a run is taken up", _crashes, lambda: runs.planned("scale", 30))


def _keys(folder):
    """Whether a key stands in a file, or serves two blocks."""
    keys = []
    model, optimizer, loader = runs.private(plan=runs.planned("scale", runs.STEPS), seed=None)
    loader.checkpoint(folder, every=2)
    for batch in loader:
        runs.take(model, optimizer, batch)
        keys.append(optimizer.run.stream._key)
        content = b"".join(path.read_bytes() for path in folder.iterdir())
        if any(key in content or key.hex().encode() in content for key in keys):
            return True
    return len(set(keys)) != -(-runs.STEPS // 2)


KEYS = in_a_folder("keys of blocks", _keys)


@catcher("a process that was forked", "test", lambda: runs.planned("scale", runs.STEPS))
def FORKED(plan):
    _, optimizer, _ = runs.private(plan=plan, seed=None)
    if not (pid := os.fork()):
        try:
            optimizer.run.stream.generator("noise", 0)
        except SartorError:
            os._exit(0)
        os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 0


def rounds():
    return sartor.plan(runs.people(), "rounds", steps=20, batch=20, threshold=[1.5, 2.5, 5.0, 9.0], accountant="rdp")


def _rounds(folder):
    """Whether the coins of a round are other ones after a stop in it."""
    fell, tossed = {}, sampling._Coins._tossed

    def noted(self, stage):
        found = tossed(self, stage)
        fell.setdefault(stage, []).append(found[0].copy())
        return found

    sampling._Coins._tossed = noted
    try:
        plan = rounds()
        runs.stopped_at(2, folder, plan=plan)
        runs.fitted(checkpoints=sartor.Checkpoints(folder, resume=True), plan=plan)
    finally:
        sampling._Coins._tossed = tossed
    return not all(np.array_equal(coins[0], other) for coins in fell.values() for other in coins)


ROUNDS = in_a_folder("coins of a round", _rounds, rounds)


def _rates(folder):
    """Learning rates of a run that is stopped and goes on, beside the schedule's."""
    rates, optimizers = [], []

    def built(parameters):
        optimizers.append(torch.optim.SGD(parameters, lr=0.3))
        return optimizers[-1]

    def note(progress):
        rates.append(optimizers[-1].param_groups[0]["lr"])
        if progress.step == 5 and len(rates) == 5:
            raise KeyboardInterrupt

    settings = {"optimizer": built, "callbacks": [note], "scheduler": lambda o: torch.optim.lr_scheduler.StepLR(o, 3, 0.5)}
    try:
        runs.fitted(checkpoints=sartor.Checkpoints(folder), **settings)
    except KeyboardInterrupt:
        runs.fitted(checkpoints=sartor.Checkpoints(folder, resume=True), **settings)
    return not np.allclose(rates, 0.3 * 0.5 ** (np.arange(1, runs.STEPS + 1) // 3))


RATES = in_a_folder("learning rates of a run that goes on", _rates)


@mutant(AHEAD, quick=True)
def charge_written_after_the_draw(patch):
    """What is on the disk as charged lags behind what is drawn."""
    write = Journal.write

    def late(self, entry, checkpoint=None):
        write(self, replace(entry, charged=max(0, entry.charged - 1)), checkpoint)

    patch.setattr(Journal, "write", late)


@mutant(AHEAD, quick=True)
def lost_steps_taken_again(patch):
    """Whoever resumes begins where the model is, and draws the steps since then once more."""
    right = Run.go_on_at
    patch.setattr(Run, "go_on_at", lambda self, step, *, lost, **how: right(self, step - lost, lost=0, **how))


@mutant(AHEAD)
def lost_steps_not_paid(patch):
    """The account of a run that went on counts the steps that its model took, and no others."""
    patch.setattr(RunAccount, "charged", property(lambda self: self.steps - self.lost))


@mutant(GIVEN_BACK, quick=True)
def drawn_steps_given_back(patch):
    """An orderly stop gives back steps whose coins were drawn and not stepped."""
    right = Journal.give_back
    patch.setattr(Journal, "give_back", lambda self, charged, **how: right(self, charged - 1, **how))


@mutant(RESTARTS, quick=True)
def restarts_not_counted(patch):
    """A run may be taken up after crashes as often as anybody likes."""
    write = Journal.write
    patch.setattr(Journal, "write", lambda self, entry, checkpoint=None: write(self, replace(entry, orderly=True), checkpoint))


@mutant(KEYS, quick=True)
def key_of_noise_in_checkpoints(patch):
    """A checkpoint holds the key of the steps to come."""
    right = Keeper._content
    patch.setattr(Keeper, "_content", lambda self, **how: right(self, key=self._loader.run.stream._key.hex(), **how))


@mutant(KEYS)
def one_key_for_all_blocks(patch):
    """Blocks share a key, so a snapshot of the machine draws the next ones again."""
    patch.setattr(Stream, "renew", lambda self: None)


@mutant(FORKED, quick=True)
def noise_drawn_in_a_forked_process(patch):
    """Parent and child go on with one key."""
    patch.setattr(Stream, "check_process", lambda self: None)


@mutant(ROUNDS, quick=True)
def coins_of_a_round_tossed_again(patch):
    """Whoever resumes in the middle of a round tosses who takes part in it once more."""
    patch.setattr(sampling.PoissonSampler, "keep_round", lambda self, step, key: None)


@mutant(RATES)
def learning_rate_of_the_beginning_after_a_resume(patch):
    """The scheduler of a resumed run is where a new one begins."""
    right = Keeper._fill_optimizer

    def forgetful(self, state, tensors):
        right(self, {**state, "now": {**state["now"], "scheduler": state["begun"]["scheduler"]}}, tensors)

    patch.setattr(Keeper, "_fill_optimizer", forgetful)
