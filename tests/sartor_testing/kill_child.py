"""Trains in child processes that are killed, and says how the run ended: `python kill_child.py FOLDER KILLS SEED [writes]`.

Each child is a fork of this process (which imported everything, and computed nothing), resumes if there is a checkpoint, and is killed with
SIGKILL: after a random time, or, with `writes`, right before the n-th of the calls by which a checkpoint reaches the disk.
Prints one JSON document: kills, runs, and the digests of killed and uninterrupted runs.
"""

import contextlib
import hashlib
import json
import os
import random
import signal
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

import sartor
from sartor.sgd import Checkpoints, fit
from sartor.sgd import checkpoint as saving

HOLDERS = 120


def setting(steps):
    epsilon = np.random.default_rng(1).permutation(np.repeat([4.0, 1.0, 2.0], [30, 50, 40]))
    budgets = sartor.Budgets(epsilon=epsilon, delta=1e-3)
    plan = sartor.plan(budgets, "scale", steps=steps, batch=20, clip=0.5, accountant="rdp")
    generator = np.random.default_rng(2)
    data = generator.normal(size=(HOLDERS, 6)).astype(np.float32), generator.integers(0, 3, HOLDERS)
    return budgets, plan, data


def train(setting, folder, seed, started=lambda: None):
    """The digest of the model and the account of one run to its end."""
    budgets, plan, (inputs, targets) = setting
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, 3))
    dataset = TensorDataset(torch.from_numpy(inputs), torch.from_numpy(targets))
    started()
    result = fit(
        model,
        dataset,
        budgets,
        plan,
        optimizer=lambda p: torch.optim.SGD(p, lr=0.2, momentum=0.9) if seed % 2 else torch.optim.Adam(p, lr=0.01),
        scheduler=lambda o: torch.optim.lr_scheduler.StepLR(o, 7, 0.9),
        checkpoints=None if folder is None else Checkpoints(folder, every=3, resume=saving.exists(folder)),
        seed=seed,
        progress=False,
    )
    state = b"".join(name.encode() + value.numpy().tobytes() for name, value in result.model.state_dict().items())
    return hashlib.sha256(state).hexdigest() + json.dumps(result.account.to_json())


def forked(work):
    """Runs `work(say)` in a fork; the child's pid and the end of a pipe on which it says things."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return pid, os.fdopen(reading, "r")
    try:
        os.close(reading)
        with os.fdopen(writing, "w") as pipe:
            work(lambda text: (pipe.write(text + "\n"), pipe.flush()))
        os._exit(0)
    except BaseException as error:
        print(f"child: {type(error).__name__}: {error}", file=sys.stderr)
        os._exit(1)


def dying_at(count):
    """Makes this process kill itself right before the count-th call that writes, syncs, renames or removes something."""
    left = count

    def guarded(function):
        def call(*given, **more):
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*given, **more)

        return call

    for owner, name in [(os, "fsync"), (os, "replace"), (os, "open"), (os, "mkdir"), (saving.shutil, "rmtree"), (saving, "write_private")]:
        setattr(owner, name, guarded(getattr(owner, name)))


def uninterrupted(setting, seed):
    pid, pipe = forked(lambda say: say(train(setting, None, seed)))
    with pipe:
        text = pipe.readline().strip()
    assert os.waitpid(pid, 0)[1] == 0
    return text


def warm():
    """Imports here what torch, rich and SciPy would import in each child."""
    import rich.progress  # noqa: F401

    weights = torch.zeros(1, requires_grad=True)
    weights.grad = torch.zeros(1)
    for kind in (torch.optim.SGD, torch.optim.Adam):
        kind([weights], lr=0.1).step()


def main(folder, kills, seed, writes):
    torch.set_num_threads(1)
    warm()
    chance = random.Random(seed)
    made = setting(60 if writes else 150)
    happened, runs, litter = 0, 0, 0
    ended, expected = [], []
    while happened < kills:
        place = Path(folder) / f"run-{runs}"
        ours = seed + runs
        while True:
            moment = chance.randint(1, 150) if writes and happened < kills else None

            def work(say, place=place, ours=ours, moment=moment):
                if moment is not None:
                    dying_at(moment)
                say(train(made, place, ours, lambda: say("begun")))

            pid, pipe = forked(work)
            with pipe:
                assert pipe.readline().strip() == "begun"
                if not writes and happened < kills:
                    time.sleep(chance.uniform(0.01, 0.15))
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                text = pipe.readline().strip()
            status = os.waitpid(pid, 0)[1]
            assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, "a child failed"
            happened += os.WIFSIGNALED(status)
            litter = max(litter, len(list(place.iterdir())) if place.exists() else 0)
            if not os.WIFSIGNALED(status):
                break
            assert happened < 40 * kills, "no progress is made between kills"
        ended.append(text or train_again(made, place, ours))
        expected.append(uninterrupted(made, ours))
        left = sorted(path.name for path in place.iterdir())
        runs += 1
    print(json.dumps({"kills": happened, "runs": runs, "equal": ended == expected, "most_entries": litter, "left": left}))


def train_again(made, place, seed):
    """The end of a run that was killed after its last step: resumed, it has nothing left to do."""
    pid, pipe = forked(lambda say: say(train(made, place, seed)))
    with pipe:
        text = pipe.readline().strip()
    os.waitpid(pid, 0)
    return text


if __name__ == "__main__":
    warnings.simplefilter("error")
    warnings.simplefilter("ignore", sartor.RarelyUsed)
    warnings.simplefilter("ignore", DeprecationWarning)
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:] == ["writes"])
