"""Runs that are killed, forked, copied and put back: no index of a step is drawn twice, and every one that was drawn is charged."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional
from torch.utils.data import TensorDataset

import sartor
from sartor.run import journal
from sartor.run.sampling import PoissonSampler
from sartor_testing import kill_child
from sartor_testing.amount import examples
from sartor_testing.forks import in_a_fork, refused_in_a_fork
from sartor_testing.private_runs import HOLDERS, net, people, planned, private, records, take

PLAN = planned(steps=20)
EVERY = 4
ELSEWHERE = "this stream is another process's"


def test_whatever_is_killed_draws_no_step_twice_and_charges_all_that_it_drew(tmp_path):
    """Plain, with a filter, in rounds, with many records and workers; by fit and by a loop of one's own (see `kill_child`)."""
    kills = examples(12, 200)
    done = subprocess.run(
        [sys.executable, "-P", "-m", "sartor_testing.kill_child", str(tmp_path), str(kills), "3"],
        capture_output=True,
        text=True,
        timeout=examples(240, 1_800),
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["kills"] >= kills
    assert found["runs"] >= len(kill_child.CASES)
    assert found["lost"] > 0
    assert found["complaints"] == []
    assert max(found["differences"]) <= 1e-6  # of the models from those that a loop by hand makes
    assert len(found["differences"]) >= 3
    same, coins = found["agree"]
    pi = float(kill_child.rounds().stages[0].inclusion.min())
    chance = pi**2 + (1 - pi) ** 2
    assert abs(same - chance * coins) <= 5 * np.sqrt(coins * chance * (1 - chance))  # coins of two rounds are independent


# -- by hand


def begun(folder, resume=False, *, workers=0, dataset=None, every=EVERY, plan=PLAN, restarts=1_000, **settings):
    model, optimizer, loader = private(None, plan, workers=workers, dataset=dataset, seed=None, **settings)
    loader.checkpoint(folder, every=every, resume=resume, restarts=restarts)
    return model, optimizer, loader


def steps(made, count):
    """Take some steps; the iterator, which is amid its block."""
    model, optimizer, loader = made
    batches = iter(loader)
    for _ in range(count):
        take(model, optimizer, next(batches))
    return batches


def crashed(folder, count, **settings):
    """A run whose process ends without a word after some steps."""

    def work():
        steps(begun(folder, resume=journal.exists(folder), **settings), count)
        os._exit(0)

    in_a_fork(work)()
    return folder


def taken_up(folder, **settings):
    """The account of a run right after it was taken up."""
    _, optimizer, loader = begun(folder, resume=True, **settings)
    loader.let_go()
    return optimizer.account()


def refused(match):
    return pytest.raises(sartor.SartorError, match=match)


def entry(folder):
    return json.loads((folder / "journal.json").read_text())["run"]


def test_an_orderly_stop_gives_back_only_what_was_never_drawn(tmp_path, monkeypatch):
    """Workers draw ahead: what they were asked for counts, though it never arrived."""
    drawn, inner = [], PoissonSampler.draw
    monkeypatch.setattr(PoissonSampler, "draw", lambda self, step: (drawn.append(step), inner(self, step))[1])
    made = begun(tmp_path, workers=1, every=9)
    steps(made, 1)
    made[2].close()
    assert max(drawn) > 1
    assert entry(tmp_path)["charged"] == max(drawn) + 1 < 9
    before = set(drawn)
    drawn.clear()
    again = begun(tmp_path, resume=True)
    assert again[1].account().lost == len(before) - 1
    steps(again, 2)
    assert not before & set(drawn)


def test_an_error_in_a_loop_of_ones_own_gives_nothing_back(tmp_path):
    made = begun(tmp_path)
    with pytest.raises(ZeroDivisionError), made[2]:
        steps(made, 1)
        raise ZeroDivisionError
    assert (entry(tmp_path)["charged"], entry(tmp_path)["orderly"]) == (EVERY, False)
    assert taken_up(tmp_path).lost == EVERY
    assert entry(tmp_path)["restarts"] == 1


def test_no_block_goes_beyond_its_round(tmp_path):
    """The coins of the next round are tossed under a key that the checkpoint does not hold yet."""
    plan = kill_child.rounds()
    first, second = sorted(set(plan.parts.last.tolist()))[:2]
    batches = steps(made := begun(tmp_path, every=plan.steps, plan=plan), 1)
    while entry(tmp_path)["charged"] < first:
        take(*made[:2], next(batches))
    assert entry(tmp_path)["charged"] == first
    while made[2].run.steps < first:
        take(*made[:2], next(batches))
    assert entry(tmp_path)["charged"] == first
    take(*made[:2], next(batches))
    assert first < entry(tmp_path)["charged"] <= second


def test_the_state_of_an_optimizer_tells_all_steps_that_are_charged(tmp_path):
    made = begun(tmp_path)
    steps(made, 1)
    assert made[1].state_dict()["sartor"]["steps"] == EVERY


# -- one process


def test_after_a_fork_one_process_goes_on(tmp_path):
    for folder in (None, tmp_path):
        made = private(None, PLAN, seed=None) if folder is None else begun(folder)
        batches = steps(made, 1)
        model, optimizer, loader = made
        batch = next(batches)
        assert refused_in_a_fork(lambda: take(model, optimizer, batch)) == ELSEWHERE  # noqa: B023
        assert refused_in_a_fork(lambda: next(batches)) == ELSEWHERE  # noqa: B023
        assert refused_in_a_fork(lambda: next(iter(loader))) == ELSEWHERE  # noqa: B023
        if folder is not None:
            assert "was moved or closed" in refused_in_a_fork(loader.close)
        take(model, optimizer, batch)
        for after in batches:
            take(model, optimizer, after)
        assert optimizer.account().steps == optimizer.account().charged == PLAN.steps


FORKED = """
import os, sys
import sartor
from sartor_testing.private_runs import planned, private, take
model, optimizer, loader = private(None, planned(steps=20), seed=None, workers=1)
batches = iter(loader)
take(model, optimizer, next(batches))
if not (pid := os.fork()):
    try:
        next(batches)
    except sartor.SartorError:
        os._exit(7)
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
for batch in batches:
    take(model, optimizer, batch)
print(optimizer.run.steps)
"""


def test_a_fork_does_not_end_the_workers_of_its_parent():
    """In a process of its own: the one that tests has threads, which a fork of a fork does not have."""
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-W", "ignore", "-c", FORKED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, env={**os.environ, "PYTHONPATH": path}, check=False)
    assert done.stdout.split() == ["20"], done.stderr


def test_of_two_that_go_on_at_once_one_does(tmp_path):
    steps(made := begun(tmp_path), 2)
    taken = f"{tmp_path} is in use by another run"
    assert refused_in_a_fork(lambda: begun(tmp_path, resume=True)).startswith(taken)
    assert "holds a run already" in refused_in_a_fork(lambda: begun(tmp_path))
    with refused("is in use by another run"):
        begun(tmp_path, resume=True)
    made[2].let_go()
    assert taken_up(tmp_path).charged == EVERY


# -- folders that were copied, put back or damaged


def test_a_copy_is_another_run_that_nobody_can_see(tmp_path):
    """As the journal says itself: it is why folders do not belong into backups."""
    one, other = crashed(tmp_path / "one", 5), tmp_path / "other"
    shutil.copytree(one, other)
    assert taken_up(one).charged == taken_up(other).charged == 8
    assert "backups" in json.loads((one / "journal.json").read_text())["about"]


@pytest.mark.parametrize(
    ("back", "sentence"),
    [
        ("the journal", "a file was removed or put back"),
        ("the checkpoint under the new name", "the checkpoint in .* is damaged"),
        ("the checkpoint", ""),
        ("journal and checkpoint, over what is there", "put back"),
    ],
)
def test_files_that_are_put_back_are_noticed(tmp_path, back, sentence):
    folder = crashed(tmp_path / "run", 5)
    shutil.copytree(folder, old := tmp_path / "old")
    crashed(folder, 9)
    new = json.loads((folder / "journal.json").read_text())
    if back.startswith("the checkpoint"):
        (kept,) = old.glob("*.safetensors")
        shutil.copy(kept, folder / (new["checkpoint"] if "name" in back else kept.name))
    else:
        for path in old.iterdir():
            if path.name == "journal.json" or "and" in back:
                shutil.copy(path, folder / path.name)
    if sentence:
        with refused(sentence):
            taken_up(folder)
        return
    assert taken_up(folder).charged == new["run"]["charged"]
    assert sorted(path.name for path in folder.iterdir()) == [new["checkpoint"], "journal.json", "lock"]


def test_a_run_without_its_journal_is_not_begun_again(tmp_path):
    folder = crashed(tmp_path, 5)
    (folder / "journal.json").unlink()
    with refused("the journal in .* is missing"):
        begun(folder)
    with refused("the journal in .* is missing"):
        begun(folder, resume=True)


def test_a_run_without_its_journal_is_not_begun_again_in_its_first_block(tmp_path):
    folder = crashed(tmp_path, 3)
    (folder / "journal.json").unlink()
    with refused("the journal in .* is missing"):
        begun(folder)


def test_a_run_stops_where_its_folder_is_no_longer_its_own(tmp_path):
    ways = {
        "removed": shutil.rmtree,
        "moved": lambda folder: folder.rename(tmp_path / "elsewhere"),
        "unlocked": lambda folder: (folder / "lock").unlink(),
        "without journal": lambda folder: (folder / "journal.json").unlink(),
        "another journal": lambda folder: (folder / "journal.json").write_text("{}"),
    }
    for name, way in ways.items():
        folder = tmp_path / name.replace(" ", "-")
        model, optimizer, _ = made = begun(folder)
        batches = steps(made, 2)
        way(folder)
        with refused(r"was moved or closed|cannot be read|was changed by another process"):
            for batch in batches:
                take(model, optimizer, batch)
        assert optimizer.account().steps == optimizer.account().charged == EVERY


def test_litter_goes_where_a_run_that_is_over_is_taken_up(tmp_path):
    """It may hold the coins of a round."""
    steps(made := begun(tmp_path), PLAN.steps)
    made[2].close()
    (tmp_path / "00000002.safetensors").write_bytes(b"of a kill right before it was removed")
    (tmp_path / ".journal.json.0123").write_bytes(b"{")
    assert taken_up(tmp_path).charged == PLAN.steps
    assert len(list(tmp_path.iterdir())) == 3


# -- what may differ, and what may not


def test_a_run_goes_on_with_another_learning_rate_loss_and_number_of_workers(tmp_path):
    def summed(out, target):
        return 0.5 * functional.cross_entropy(out, target, reduction="none")

    crashed(tmp_path, 5)
    for settings in ({"lr": 0.01}, {"loss": summed}, {"workers": 1}, {"max_physical_batch": 5}):
        made = begun(tmp_path, resume=True, **settings)
        charged = made[1].account().charged
        steps(made, 1)
        made[2].close()
        assert made[1].inner.param_groups[0]["lr"] == settings.get("lr", 0.5)
        assert charged < made[1].account().charged <= charged + EVERY


def others():
    epsilon = people().epsilon.copy()
    epsilon[[0, np.flatnonzero(epsilon != epsilon[0])[0]]] = epsilon[[np.flatnonzero(epsilon != epsilon[0])[0], 0]]
    fewer = TensorDataset(*(tensor[:-1] for tensor in records().tensors))
    changed = TensorDataset(records().tensors[0] + torch.eye(HOLDERS, 4) * 1e-6, records().tensors[1])
    moved = sartor.Budgets(epsilon=epsilon, delta=1e-3)
    less = sartor.Budgets(epsilon=people().epsilon[:-1], delta=1e-3)
    longer = planned(steps=21)
    return {
        "another person in a group": (moved, records(), PLAN, "other people or budgets"),
        "fewer holders": (less, fewer, sartor.plan(less, "scale", steps=20, batch=20, clip=0.05), "another plan"),
        "another plan": (people(), records(), longer, "another plan"),
        "other records": (people(), changed, PLAN, "other records"),
    }


@pytest.mark.parametrize("what", ["another person in a group", "fewer holders", "another plan", "other records"])
def test_a_run_of_others_is_refused_in_one_sentence(tmp_path, what):
    budgets, data, plan, sentence = others()[what]
    crashed(tmp_path, 5)
    model = net()
    made = sartor.make_private(model, torch.optim.SGD(model.parameters(), lr=0.5), data, budgets, plan)
    with refused(sentence) as error:
        made[2].checkpoint(tmp_path, resume=True)
    assert len(str(error.value).split()) <= 30
    assert "\n" not in str(error.value)
    assert taken_up(tmp_path).charged == 8  # it was let go, and goes on with what is its own


# -- the end of a run


def test_a_loop_of_ones_own_that_was_killed_in_its_last_block_comes_to_its_end(tmp_path):
    crashed(tmp_path, 19)
    for _ in range(2):
        model, optimizer, loader = begun(tmp_path, resume=True, restarts=1)
        with loader:
            for batch in loader:
                take(model, optimizer, batch)
    assert entry(tmp_path)["over"]


def test_a_loader_may_be_closed_twice(tmp_path):
    _, optimizer, loader = made = begun(tmp_path)
    with loader:
        steps(made, 2)
        loader.close()
    assert optimizer.account().charged == 2


@pytest.mark.parametrize("blocks", [0, 1])
def test_ctrl_c_amid_a_charge_stops_in_order(tmp_path, monkeypatch, blocks):
    made = begun(tmp_path)
    with pytest.raises(KeyboardInterrupt), made[2]:
        batches = steps(made, EVERY * blocks)
        inner = os.replace

        def named(source, target):
            inner(source, target)
            if Path(target).name == "journal.json":
                monkeypatch.undo()
                raise KeyboardInterrupt

        monkeypatch.setattr(os, "replace", named)
        next(batches)
    assert entry(tmp_path)["orderly"]
    assert journal.exists(tmp_path) == bool(blocks)  # nothing was drawn of a first block
    if blocks:
        assert taken_up(tmp_path).lost == 0


def test_a_first_loss_that_is_refused_leaves_no_folder_in_the_way(tmp_path):
    def fit(**settings):
        kept = sartor.Checkpoints(tmp_path, every=EVERY)
        return sartor.fit(net(), records(), people(), PLAN, checkpoints=kept, progress=False, **settings)

    with refused("one number for the whole batch"):
        fit(loss=lambda out, target: out.sum())
    assert fit().account.steps == PLAN.steps
