import functools
import json
import os
import signal as signals
import stat
import subprocess
import sys
import textwrap
import time

import joblib
import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import sartor
from sartor.audit import shadow_training as tasks
from sartor.audit import shadows as making
from sartor.audit.findings import findings
from sartor.audit.lira import losses
from sartor.audit.shadow_folder import ShadowFolder
from sartor.audit.shadow_training import NAMES, Learning, by_holder, of_outputs, signals_of, train_alone
from sartor.audit.shadows import Shadows, coins, seed_of, train_shadows
from sartor.errors import SartorError
from sartor.sgd.loss import Loss
from sartor_testing.private_runs import HOLDERS, dropping, net, people, planned, records

HERE = {"models": 4, "seed": 3, "progress": False, "learning": Learning(lr=0.5)}


def made(make=net, *, dataset=None, plan=None, **settings) -> Shadows:
    data, which = records() if dataset is None else dataset, planned() if plan is None else plan
    return train_shadows(make, data, people(), which, **{**HERE, **settings})


# -- who is in


def test_everyone_is_in_half_of_the_models_by_fair_coins():
    inside = coins(400, 50, seed=1)
    assert (inside.sum(axis=0) == 200).all()
    assert not (inside[::2] == inside[1::2]).any()
    first = inside[::2]
    assert abs(first.mean() - 0.5) < 5 * 0.5 / np.sqrt(first.size)
    correlation = np.corrcoef(first.T) - np.eye(50)
    assert abs(correlation).max() < 5 / np.sqrt(200)


def test_coins_and_seeds_are_those_of_more_models_as_well():
    assert np.array_equal(coins(4, 9, seed=2), coins(8, 9, seed=2)[:4])
    assert not np.array_equal(coins(4, 9, seed=2), coins(4, 9, seed=3))
    assert len({seed_of(seed, model) for seed in range(5) for model in range(50)}) == 250


@pytest.mark.parametrize(
    ("models", "seed", "match"), [(3, 0, "in pairs"), (0, 0, "in pairs"), (4, -1, "whole number from 0"), (4, True, "whole number")]
)
def test_odd_numbers_and_seeds_that_are_none_are_refused(models, seed, match):
    with pytest.raises(SartorError, match=match):
        coins(models, 5, seed)


# -- signals


def test_signals_are_those_of_the_models_that_are_trained_alone():
    found, inside = made(population=TensorDataset(*(t[:7] for t in records(70).tensors))), coins(4, HOLDERS, 3)
    material = making.Material(net, records(), people(), planned(), HERE["learning"])
    assert np.array_equal(found.inside, inside)
    for model in range(4):
        alone = train_alone(material, seed_of(3, model), ~inside[model])
        assert np.allclose(found.signals[model], signals_of(alone, records()), atol=1e-4)
        assert np.allclose(found.population[model], signals_of(alone, TensorDataset(*(t[:7] for t in records(70).tensors))), atol=1e-4)


def test_holders_who_are_no_targets_are_in_every_model():
    targets = [3, 50, 7]
    inputs, labels = records().tensors
    changed = inputs + 3
    changed[targets] = inputs[targets]
    one, other = made(targets=targets), made(targets=targets, dataset=TensorDataset(changed, labels))
    assert one.signals.shape == (4, 3)
    assert one.groups.tolist() == planned().groups_of(people())[targets].tolist()
    assert (one.signals != other.signals).any(axis=1).all()


def test_signals_are_of_the_targets_in_the_order_in_which_they_are_given():
    targets = [50, 3, 7]
    found, inside = made(targets=targets), coins(4, 3, 3)
    material = making.Material(net, records(), people(), planned(), HERE["learning"])
    for model in range(4):
        absent = np.zeros(HOLDERS, bool)
        absent[targets] = ~inside[model]
        alone = train_alone(material, seed_of(3, model), absent)
        assert np.allclose(found.signals[model], signals_of(alone, records())[targets], atol=1e-4)


@pytest.mark.parametrize("targets", [[], [1, 1], [-1], [60], [0.5], [[1]]])
def test_targets_that_are_no_places_are_refused(targets):
    with pytest.raises(SartorError, match="targets are"):
        made(targets=targets)


def test_log_odds_are_exact_where_a_probability_rounds_to_one():
    outputs, targets = torch.tensor([[60.0, 0.0, 0.0], [0.0, 60.0, 0.0]]), torch.tensor([0, 0])
    found = of_outputs("log-odds", outputs, targets, Loss(None))
    assert torch.allclose(found, torch.tensor([60 - np.log(2), -60.0], dtype=torch.float64))
    assert of_outputs("logit", outputs, targets, Loss(None)).tolist() == [60.0, 0.0]
    assert torch.allclose(of_outputs("loss", outputs, targets, Loss(None)), torch.tensor([0.0, -60.0], dtype=torch.float64), atol=1e-6)
    with pytest.raises(SartorError, match="signal"):
        of_outputs("entropy", outputs, targets, Loss(None))
    with pytest.raises(SartorError, match='take signal="loss"'):
        of_outputs("log-odds", outputs, torch.randn(2, 3), Loss(None))


def test_a_holder_has_the_mean_signal_of_their_records():
    owners = sartor.Ownership([0, 1, 1, 0, 1], 2)
    assert by_holder(np.array([1.0, 2.0, 3.0, 5.0, 7.0]), owners).tolist() == [3.0, 4.0]
    assert by_holder(np.ones((3, 5)), owners).shape == (3, 2)


def test_holders_with_several_records_are_attacked_as_one():
    owners = sartor.Ownership(np.repeat(np.arange(HOLDERS), 2), HOLDERS)
    plan = sartor.plan(people(), steps=2, batch=20, clip=0.05, accountant="rdp", ownership=owners)
    twice = TensorDataset(*(tensor.repeat_interleave(2, 0) for tensor in records().tensors))
    assert made(plan=plan, dataset=twice, ownership=owners, models=2).signals.shape == (2, HOLDERS)


@pytest.mark.long
def test_a_plan_with_a_filter_is_attacked_one_model_at_a_time():
    plan = sartor.plan(people(), "scale", steps=4, batch=20, clip=0.05, filter="ladder", refresh=2, full_steps=2)
    assert made(plan=plan, models=2).signals.shape == (2, HOLDERS)


def test_shadows_show_counts_alone():
    assert repr(made(models=2)) == "Shadows(2 models, 60 targets)"


def test_shadows_refuse_what_does_not_fit_together():
    inside, values = coins(4, 5, 0), np.zeros((4, 5))
    groups, nobody = np.zeros(5, int), np.empty((4, 0))
    Shadows(inside, values, groups, nobody)
    for wrong in [
        (inside, values[:2], groups, nobody),
        (inside, values, groups[:2], nobody),
        (~inside[[0, 0, 1, 1]], values, groups, nobody),
        (inside, values, groups, nobody[:2]),
        (inside, values + np.nan, groups, nobody),
    ]:
        with pytest.raises(SartorError):
            Shadows(*wrong)


# -- processes


@pytest.mark.long
def test_processes_give_what_this_one_gives():
    one, two = made(models=10), made(models=10, workers=2)
    assert np.array_equal(one.signals, two.signals)


def test_threads_are_refused():
    with joblib.parallel_config("threading"), pytest.raises(SartorError, match="threads"):
        made(workers=2)


# -- the folder


def modes(folder) -> set[int]:
    return {stat.S_IMODE(os.lstat(folder / name).st_mode) for name in os.listdir(folder)}


def test_signals_are_kept_for_their_owner_alone_and_models_not_at_all(tmp_path):
    place = tmp_path / "kept"
    made(folder=place)
    assert stat.S_IMODE(os.stat(place).st_mode) == 0o700
    assert modes(place) == {0o600}
    assert sorted(os.listdir(place)) == ["lock", "shadow-0", "shadow-1", "shadow-2", "shadow-3", "shadows.json"]
    assert all(os.path.getsize(place / f"shadow-{i}") < 3_000 for i in range(4))


def test_what_was_kept_is_not_trained_again_and_more_can_be_added(tmp_path, monkeypatch):
    whole = made(models=10)
    made(models=8, folder=tmp_path / "kept")
    asked = []
    right = tasks.carried_out
    monkeypatch.setattr(tasks, "carried_out", lambda task, beside: asked.extend(task.numbers) or right(task, beside))
    found = made(models=10, folder=tmp_path / "kept")
    assert asked == [8, 9]
    assert np.array_equal(found.signals, whole.signals)
    made(models=10, folder=tmp_path / "kept")
    assert asked == [8, 9]


def test_signals_of_another_version_of_the_library_are_refused(tmp_path, monkeypatch):
    made(folder=tmp_path / "kept", models=2)
    monkeypatch.setattr(making, "__version__", "0.0.0")
    with pytest.raises(SartorError, match="another version of sartor"):
        made(folder=tmp_path / "kept", models=2)


def test_the_model_of_which_bounds_are_is_trained_by_the_librarys_own_steps(monkeypatch):
    asked = []
    right = tasks.carried_out
    monkeypatch.setattr(tasks, "carried_out", lambda task, beside: asked.append((task.numbers, task.stacked)) or right(task, beside))
    made(models=10)
    assert asked == [([0], False), ([1, 2, 3, 4, 5, 6, 7], True), ([8, 9], True)]


def test_all_signals_are_kept_so_that_another_needs_no_new_models(tmp_path, monkeypatch):
    population = TensorDataset(*(tensor[:7] for tensor in records(70).tensors))
    asked = {name: made(population=population, signal=name) for name in NAMES}
    made(population=population, folder=tmp_path / "kept")
    monkeypatch.setattr(tasks, "carried_out", lambda *_: pytest.fail("nothing is to be trained"))
    for name, alone in asked.items():
        kept = made(population=population, signal=name, folder=tmp_path / "kept")
        assert np.array_equal(kept.signals, alone.signals)
        assert np.array_equal(kept.population, alone.population)
    assert not np.array_equal(asked["logit"].signals, asked["loss"].signals)


def test_only_losses_are_of_targets_that_are_no_classes():
    data = TensorDataset(records().tensors[0], torch.randn(HOLDERS, 3))
    learning = Learning(lr=0.1, loss=nn.functional.mse_loss)
    assert made(dataset=data, learning=learning, signal="loss", models=2).signals.shape == (2, HOLDERS)
    with pytest.raises(SartorError, match='take signal="loss"'):
        made(dataset=data, learning=learning, models=2)


ON_RAY = """
import joblib, numpy, ray
from functools import partial
from ray.util.joblib import register_ray
from sartor_testing.private_runs import net, people, planned, records
from sartor.audit.shadows import train_shadows

ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
register_ray()
shadows = partial(train_shadows, net, records(), people(), planned(), models=16, seed=3, progress=False)
with joblib.parallel_config("ray"):
    there = shadows(workers=None)
assert numpy.array_equal(there.signals, shadows(workers=1).signals)
"""


@pytest.mark.long
def test_shadow_models_on_ray_show_what_those_here_do():
    pytest.importorskip("ray", reason="ray is not installed: pip install 'sartor[federated]'")
    paths = os.pathsep.join(path for path in sys.path if path)
    found = subprocess.run(
        [sys.executable, "-c", ON_RAY], capture_output=True, text=True, timeout=300, env={**os.environ, "PYTHONPATH": paths}
    )
    assert found.returncode == 0, found.stderr[-2000:]


def others() -> dict[str, dict]:
    inputs, labels = records().tensors
    changed = inputs.clone()
    changed[5, 1] += 1e-3
    return {
        "plan": {"plan": planned("sample")},
        "data": {"dataset": TensorDataset(changed, labels)},
        "network": {"make": lambda: nn.Linear(4, 3)},
        "learning": {"learning": Learning(lr=0.25)},
        "targets": {"targets": range(59)},
        "population": {"population": records()},
        "seed": {"seed": 4},
    }


@pytest.mark.parametrize("what", sorted(others()))
def test_a_folder_of_other_shadow_models_is_refused(tmp_path, what):
    made(folder=tmp_path / "kept", models=2)
    with pytest.raises(SartorError, match=r"with (an)?other"):
        made(folder=tmp_path / "kept", models=2, **others()[what])
    made(folder=tmp_path / "kept", models=2)


def test_signals_of_models_that_began_with_other_weights_are_refused(tmp_path):
    def elsewhere():
        model = net()
        nn.init.zeros_(model[0].weight)
        return model

    made(folder=tmp_path / "kept", models=2)
    with pytest.raises(SartorError, match="another network"):
        made(elsewhere, folder=tmp_path / "kept", models=2)


@pytest.mark.parametrize("missing", ["data", "seed", "version of sartor"])
def test_a_folder_that_does_not_say_of_something_what_it_was_is_refused(tmp_path, missing):
    made(folder=tmp_path / "kept", models=2)
    index = tmp_path / "kept" / "shadows.json"
    document = json.loads(index.read_text())
    del document["of"][missing]
    index.write_text(json.dumps(document))
    with pytest.raises(SartorError, match=f"another {missing}"):
        made(folder=tmp_path / "kept", models=2)


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(SartorError, match="other files"):
        made(folder=tmp_path)
    assert os.listdir(tmp_path) == ["thesis.tex"]


def test_damaged_and_moved_signals_are_refused(tmp_path):
    place = tmp_path / "kept"
    made(folder=place, models=2)
    os.replace(place / "shadow-0", place / "shadow-1")
    with pytest.raises(SartorError, match="damaged, or was written for another place"):
        made(folder=place, models=2)


def test_two_audits_do_not_work_in_one_folder(tmp_path):
    from sartor.run.files import lock

    made(folder=tmp_path / "kept", models=2)
    with lock(tmp_path / "kept"), pytest.raises(SartorError, match="another audit"):
        made(folder=tmp_path / "kept", models=2)


def test_an_audit_that_was_stopped_between_models_goes_on(tmp_path, monkeypatch):
    whole = made(make=dropping)
    right, seen = tasks.carried_out, []

    def stopped(task, beside):
        if len(seen) == 2:
            raise KeyboardInterrupt
        seen.append(task.numbers)
        return right(task, beside)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(tasks, "carried_out", stopped)
        made(make=dropping, folder=tmp_path / "kept")
    assert {"shadow-0", "shadow-1"} <= set(os.listdir(tmp_path / "kept"))
    (tmp_path / "kept" / ".shadow-2.0123456789abcdef").write_bytes(b"half")
    assert np.array_equal(made(make=dropping, folder=tmp_path / "kept").signals, whole.signals)
    assert not any(name.startswith(".") for name in os.listdir(tmp_path / "kept"))


CHILD = """
    import sys
    from sartor_testing.private_runs import dropping, people, planned, records
    from sartor.audit.shadow_training import Learning
    from sartor.audit.shadows import train_shadows
    how = {'models': 12, 'seed': 3, 'learning': Learning(lr=0.5), 'progress': False}
    train_shadows(dropping, records(), people(), planned(), folder=sys.argv[1], **how)
"""


@pytest.mark.long
def test_an_audit_that_was_killed_at_any_moment_goes_on_to_the_same_end(tmp_path):
    whole, place = made(make=dropping, models=12), tmp_path / "kept"
    paths = os.pathsep.join(path for path in sys.path if path)
    for seconds in (0.0, 0.3, 0.6):
        with subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(CHILD), str(place)], env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
        ) as child:
            begun = len(os.listdir(place)) if place.exists() else 0
            while child.poll() is None and (not place.exists() or len(os.listdir(place)) <= max(begun, 2)):
                time.sleep(0.01)
            time.sleep(seconds)
            child.send_signal(signals.SIGKILL)
        assert modes(place) == {0o600}
    assert np.array_equal(made(make=dropping, models=12, folder=place).signals, whole.signals)


# -- faults put in on purpose


def in_is_higher(models: int = 40) -> float:
    """How much higher, in deviations of its mean, the signal is in models that a target was in, without noise to speak of."""
    generator = torch.Generator().manual_seed(0)
    data = TensorDataset(torch.randn(30, 20, generator=generator), torch.randint(0, 3, (30,), generator=generator))
    budgets = sartor.Budgets(np.full(30, 1e4), delta=1e-2)
    plan = sartor.plan(budgets, steps=20, batch=15, clip=1.0)
    learning = Learning(lr=0.5)
    found = train_shadows(functools.partial(nn.Linear, 20, 3), data, budgets, plan, models=models, learning=learning, progress=False)
    moved = (found.signals[::2] - found.signals[1::2]) * np.where(found.inside[::2], 1, -1)
    return float(moved.mean() / (moved.std() / np.sqrt(moved.size)))


def test_in_and_out_swapped_is_caught(monkeypatch):
    assert in_is_higher() > 5
    right = making._tasks

    def swapped(material, targets, inside, *others):
        return right(material, targets, ~inside, *others)

    monkeypatch.setattr(making, "_tasks", swapped)
    assert in_is_higher() < -5


def test_a_folder_that_was_open_to_others_is_closed(tmp_path):
    place = tmp_path / "kept"
    place.mkdir()
    place.chmod(0o755)
    made(folder=place, models=2)
    assert stat.S_IMODE(os.stat(place).st_mode) == 0o700


@pytest.mark.parametrize(
    "learning", [{"loss": nn.functional.multi_margin_loss}, {"momentum": 0.5}, {"optimizer": "adam"}], ids=lambda given: next(iter(given))
)
def test_signals_of_models_that_learnt_otherwise_are_refused(learning, tmp_path):
    made(folder=tmp_path / "kept", models=2)
    with pytest.raises(SartorError, match=r"with another (learning|network)"):
        made(folder=tmp_path / "kept", models=2, learning=Learning(**{"lr": 0.5, **learning}))


def test_signals_of_records_that_were_other_peoples_are_refused(tmp_path):
    one, other = (sartor.Ownership(of, HOLDERS) for of in (np.repeat(np.arange(HOLDERS), 2), np.tile(np.arange(HOLDERS), 2)))
    twice = TensorDataset(*(tensor.repeat_interleave(2, 0) for tensor in records().tensors))
    plan = sartor.plan(people(), steps=2, batch=20, clip=0.05, accountant="rdp", ownership=one)
    made(plan=plan, dataset=twice, ownership=one, models=2, folder=tmp_path / "kept")
    with pytest.raises(SartorError, match=r"with (an)?other"):
        made(plan=plan, dataset=twice, ownership=other, models=2, folder=tmp_path / "kept")


def test_nothing_is_kept_where_another_audit_may_have_come_in(tmp_path):
    with ShadowFolder(tmp_path / "kept", {"seed": "1"}) as place:
        (tmp_path / "kept" / "lock").unlink()
        with pytest.raises(SartorError, match="another process may work in it"):
            place.put(0, {})
        assert place.found(0) is None


def test_records_go_to_processes_through_pipes_and_not_through_files(monkeypatch):
    asked, right = [], joblib.Parallel
    monkeypatch.setattr(tasks.joblib, "Parallel", lambda **given: asked.append(given["max_nbytes"]) or right(**given))
    made(models=2)
    assert asked == [None]


def of_singles(signals, inside):
    """Sixty people with a budget of their own each, attacked by what one model shows of them."""
    budgets = sartor.Budgets(np.linspace(1, 2, inside.shape[1]), delta=1e-5)
    plan = sartor.plan(budgets, "uniform", steps=2, batch=5, accountant="rdp")
    shadows = Shadows(inside, signals, plan.groups_of(budgets), np.empty((len(inside), 0)))
    return findings("loss", losses(shadows), plan, counted=losses(shadows, models=[0]), confidence=0.9)


def test_budgets_of_ones_own_are_attacked_as_well():
    inside = coins(2, 600, seed=1)
    found = of_singles(100.0 * inside, inside)
    assert len(found.rows) < 100
    assert max(row.auc for row in found.rows) == 1
    assert max(row.lower_bound for row in found.rows) > 0.3


def test_groups_whose_coins_fell_alike_are_not_left_out():
    """Or the coins of those who are left would not be their own: of every pair just one would be in."""
    hits = 0
    for seed in range(20):
        inside = coins(2, 600, seed)
        budgets = sartor.Budgets(np.repeat(np.linspace(1, 2, 300), 2), delta=1e-5)
        plan = sartor.plan(budgets, "uniform", steps=2, batch=5, accountant="rdp")
        generator = np.random.default_rng(seed)
        pair = inside[:, ::2].astype(float) - inside[:, 1::2] + generator.laplace(0, 1, (2, 300))
        shadows = Shadows(inside, np.stack([pair, -pair], 2).reshape(2, 600), plan.groups_of(budgets), np.empty((2, 0)))
        counted = losses(shadows, models=[0])
        assert sum(one.inside.size + one.outside.size for one in counted.values()) == 600
        hits += findings("loss", losses(shadows), plan, counted=counted).verdict == "refuted"
    assert hits <= 2
