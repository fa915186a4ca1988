"""Where a holder may hide from a replay: it is told of each that there is something beside the data set, and nothing of who it is."""

import array
import functools
import http.server
import importlib
import itertools
import json
import os
import sqlite3
import sys
import tempfile
import threading
import types
import urllib.request
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier
from torch import nn
from torch.utils.data import Dataset, TensorDataset

import sartor
from sartor import federated, pate
from sartor.audit import replay
from sartor.audit.opened import listening
from sartor.audit.replay_ensemble import replay_ensemble
from sartor.audit.replay_rounds import replay_rounds
from sartor.audit.without import without
from sartor.data import load
from sartor.run.sampling import PoissonSampler
from sartor.run.stream import Stream
from sartor.run.witness import witness_of
from sartor_testing import private_runs as runs

RECORDS = runs.records()
X, Y = RECORDS.tensors
ARRAY = X.numpy()
ALL = TensorDataset(X, Y)


def loop(data, seed, *, model=None, **settings):
    plan, model = runs.planned("scale", 4), runs.net() if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return sartor.make_private(model, optimizer, data, runs.people(), plan, seed=seed, **settings)


def trained(data, seed, *, between=None, **settings):
    model, optimizer, loader = loop(data, seed, **settings)
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        if between is not None:
            between(model)
    return model, optimizer, loader


def looked_at(train, data=RECORDS, holders=2):
    return replay(train, data, runs.people(), runs.planned("scale", 4), holders=holders)


def scaled(data, mean):
    return TensorDataset(data.tensors[0] - mean, data.tensors[1])


def kept_by_default(rows, cache={}):  # noqa: B006
    return cache.setdefault("mean", rows.mean(0))


def kept_on_itself(rows):
    kept_on_itself.mean = getattr(kept_on_itself, "mean", rows.mean(0))
    return kept_on_itself.mean


class Kept:
    mean = None

    @classmethod
    def of(cls, rows):
        cls.mean = rows.mean(0) if cls.mean is None else cls.mean
        return cls.mean


HELPER = types.ModuleType("a_helper_of_mine")
exec("mean = {}\ndef of(rows):\n    return mean.setdefault('mean', rows.mean(0))", vars(HELPER))
CACHES = {"default": kept_by_default, "attribute": kept_on_itself, "class": Kept.of, "module": lambda rows: HELPER.of(rows)}


@pytest.mark.parametrize("kept", CACHES.values(), ids=CACHES)
def test_whatever_a_run_keeps_for_the_next_is_told(kept):
    found = looked_at(lambda data, seed: trained(scaled(data, kept(data.tensors[0])), seed)[1].account().to_json(), holders=1)
    assert found.faults or "what train keeps from one run to the next" in found.unseen


def test_what_is_read_from_files_is_told(tmp_path):
    place = tmp_path / "mean.npy"

    def train(data, seed):
        if not place.exists():
            np.save(place, data.tensors[0].mean(0).numpy())
        return trained(scaled(data, torch.from_numpy(np.load(place))), seed)[1].account().to_json()

    assert "what train reads from files" in looked_at(train, holders=1).unseen


def test_what_the_first_run_alone_reads_is_told(tmp_path):
    (tmp_path / "once").write_text("of everybody")

    def train(data, seed):
        if (tmp_path / "once").exists():
            (tmp_path / "once").read_text()
            (tmp_path / "once").unlink()
        return trained(data, seed)[1].account().to_json()

    assert looked_at(train, holders=1).unseen == ("what train reads from files",)


def test_files_that_a_run_wrote_itself_are_its_own_whatever_it_calls_them_and_so_is_what_it_returns(tmp_path):
    def train(data, seed):
        trained(data, seed)
        (tmp_path / "draft").write_text("of mine")
        os.replace(tmp_path / "draft", tmp_path / "kept")
        (tmp_path / "kept").read_text()
        return tmp_path

    (tmp_path / "before").write_text("nobody's, and not read by train")
    assert looked_at(train, holders=1).unseen == ()


def helper():
    return ALL.tensors[0].mean(0)


def with_rows(data, seed, *, rows=X):
    return trained(scaled(data, rows.mean(0)), seed)[1].account()


ELSEWHERE = {
    "default of a keyword": with_rows,
    "array of the same memory": lambda data, seed: trained(scaled(data, torch.tensor(ARRAY.mean(0))), seed)[1].account(),
    "helper": lambda data, seed: trained(scaled(data, helper()), seed)[1].account(),
    "inner function": lambda data, seed: (lambda: trained(scaled(data, X.mean(0)), seed)[1].account())(),
}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_numbers_that_are_reached_beside_the_data_set_are_told(name):
    assert "numbers that train reaches" in " ".join(looked_at(ELSEWHERE[name], holders=1).unseen)


class Transformed(Dataset):
    def __init__(self, held):
        self.x, self.y, self.held = X, Y, held

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index] - _mean(self.held), self.y[index]


class Mean:
    def __init__(self, mean):
        self.mean = mean


def _mean(held):
    if callable(held):
        return held()
    return held.mean if isinstance(held, Mean) else torch.as_tensor(held["mean"] if isinstance(held, dict) else held[0])


MEAN = X.mean(0)
HELD = {
    "tuple": (MEAN, 1),
    "dictionary of lists": {"mean": MEAN.tolist()},
    "object": Mean(MEAN),
    "closure": (lambda mean: lambda: mean)(MEAN),
    "partial": functools.partial(lambda mean: mean, mean=MEAN),
    "global": lambda: MEAN,
}


@pytest.mark.parametrize("name", HELD)
def test_statistics_that_a_data_set_holds_are_told(name):
    found = looked_at(lambda data, seed: trained(data, seed)[1].account(), Transformed(HELD[name]), holders=1)
    assert found.faults or "which may follow from all records" in " ".join(found.unseen)


def test_a_vocabulary_is_told():
    data = Transformed((torch.zeros(()),))
    data.vocabulary = {word: place for place, word in enumerate("abc")}
    _, missed = without(data, np.array([0]))
    assert any("vocabulary" in one for one in missed)


def test_a_loss_whose_weights_follow_from_all_is_told():
    weights = 1 / torch.bincount(Y).float()
    found = looked_at(lambda data, seed: (weights.sum(), trained(data, seed)[1].account())[1], holders=1)
    assert "(weights)" in " ".join(found.unseen)


def test_plain_settings_are_no_hiding_place():
    rate, shape = 0.1, (3, 2)
    found = looked_at(lambda data, seed: (rate, shape, trained(data, seed)[1].account())[2], holders=1)
    assert found.unseen == ()


@pytest.mark.parametrize("common", [0, 1])
def test_a_rare_class_is_replaced_by_another(common):
    labels = torch.full((60,), common)
    labels[[5, 40]] = 1 - common
    for holder in (5, 7, 40):
        replaced, _ = without(TensorDataset(torch.arange(60.0), labels), np.array([holder]))
        assert replaced.tensors[1][holder] != labels[holder]


def test_clients_and_servers_are_looked_into():
    budgets = sartor.Budgets.from_groups([(1.0, 20), (4.0, 20)], delta=1e-3)
    plan, data = federated.plan(budgets, rounds=2, per_round=10), TensorDataset(torch.randn(40, 5))
    everybody = data.tensors[0].numpy()

    def answer(data, client, model, number, cache={}):  # noqa: B006
        mean = cache.setdefault("mean", data.tensors[0].mean(0).numpy())
        return {"weight": model["weight"] + data.tensors[0][client].numpy() - mean}

    found = replay_rounds(answer, data, {"weight": np.zeros(5)}, budgets, plan, holders=1)
    assert found.faults or "what train keeps from one run to the next" in found.unseen

    def elsewhere(data, client, model, number):
        return {"weight": model["weight"] + everybody[client]}

    found = replay_rounds(elsewhere, data, {"weight": np.zeros(5)}, budgets, plan, holders=1)
    assert "answer.everybody" in " ".join(found.unseen)


class Knowing(KNeighborsClassifier):
    def predict(self, rows):
        return super().predict(rows - ARRAY[0, 0])


def test_teachers_are_looked_into():
    budgets = sartor.Budgets.from_groups([(1.0, 30), (4.0, 30)], delta=1e-3)
    plan = pate.plan(budgets, "weight", teachers=4, aggregator=pate.GNMax(noise=20))
    data = TensorDataset(torch.randn(60, 3), torch.randint(0, 2, (60,)))
    teachers = pate.EstimatorTeachers(Knowing(1), workers=1, seed=0, progress=False)
    found = replay_ensemble(teachers, data, torch.randn(5, 3), 2, budgets, plan, holders=1)
    assert "ARRAY" in " ".join(found.unseen)


# -- what is shown


def test_a_file_that_is_named_without_its_folder_is_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def train(data, seed):
        trained(data, seed)
        (tmp_path / "losses.txt").write_text(str(data.tensors[0].sum()))
        return kind("losses.txt")

    def opened(name):
        with open(name) as file:
            return file

    for kind in (str, str.encode, opened):
        assert "a file that others may read" in " ".join(looked_at(train, holders=1).faults), kind


class Tracker:
    def __init__(self):
        self.rows = []

    def __call__(self, module, inputs, outputs):
        self.rows.append(inputs[0].sum().item())


def test_what_hooks_and_callables_of_a_model_keep_is_seen():
    def hooked(data, seed):
        model = runs.net()
        model.register_forward_hook(Tracker())
        return trained(data, seed, model=model)[0]

    assert "what is returned" in " ".join(looked_at(hooked, holders=1).faults)
    found = looked_at(lambda data, seed: (hooked(data, seed), 0)[1], holders=1)
    assert any("release its state_dict alone" in one for one in found.unseen)


class Extra(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.total = runs.net(), 0.0

    def forward(self, x):
        self.total += float(x.sum())
        return self.inner(x)

    def get_extra_state(self):
        return {"total": self.total}

    def set_extra_state(self, state):
        self.total = state["total"]


def test_a_states_part_that_is_no_tensor_is_seen():
    assert "what anybody may see" in " ".join(
        looked_at(lambda data, seed: trained(data, seed, model=Extra(), check=False)[1:], holders=1).faults
    )


def test_what_is_written_beneath_pythons_streams_is_seen():
    def train(data, seed):
        os.write(1, str(float(data.tensors[0].sum())).encode())
        return trained(data, seed)[1].account()

    assert "what is printed" in " ".join(looked_at(train, holders=1).faults)


def test_optimizer_and_loader_may_be_returned_and_readings_are_not_shown():
    assert looked_at(lambda data, seed: trained(data, seed), holders=1).verdict == "consistent"


def test_a_loop_that_catches_everything_has_not_come_to_its_end():
    def train(data, seed):
        try:
            return trained(data, seed)[1].account()
        except BaseException:
            return None

    found = replay(train, RECORDS, runs.people(), runs.planned("scale", 4), holders=1, most_steps=2)
    assert (found.steps, found.ended) == (2, False)


def test_generators_that_train_makes_itself_are_hinted_at():
    def noisy(generator):
        return lambda records: (
            torch.stack([x for x, _ in records]) + torch.randn(len(records), len(records[0][0]), generator=generator),
            torch.stack([y for _, y in records]),
        )

    def train(data, seed):
        made = torch.Generator().manual_seed(seed)
        model, optimizer, loader = loop(data, seed, check=False)
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x + torch.randn(x.shape, generator=made)), y).backward()
            optimizer.step()
        return optimizer.account()

    found = looked_at(train, holders=1)
    assert found.faults
    assert any("random=True" in one for one in found.unseen)
    assert replay(train, RECORDS, runs.people(), runs.planned("scale", 4), holders=1, random=True).verdict == "consistent"


# -- what runs beside


def test_seeded_runs_of_other_threads_are_left_alone():
    go, done = threading.Event(), threading.Event()
    seen = []

    def beside():
        go.wait()
        seen.append(witness_of(Stream(1)))
        done.set()

    thread = threading.Thread(target=beside)
    thread.start()

    def train(data, seed):
        go.set()
        done.wait()
        return trained(data, seed)[1].account()

    assert looked_at(train, holders=1).verdict == "consistent"
    thread.join()
    assert seen == [None]


def test_two_replays_in_two_threads_do_not_disturb_each_other():
    found, before = {}, sys.stdout

    def replayed(number):
        found[number] = looked_at(lambda data, seed: trained(data, seed)[1].account(), holders=1)

    threads = [threading.Thread(target=replayed, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[number].verdict for number in range(2)] == ["consistent"] * 2
    assert sys.stdout is before


# -- steps that are not run


def test_noise_that_fails_after_the_steps_that_were_looked_at_is_named(monkeypatch):
    plan = sartor.plan(runs.people(), "scale", steps=150, batch=20)

    def train(data, seed):
        return sartor.fit(runs.net(), data, runs.people(), plan, seed=seed, progress=False).account.to_json()

    right = sartor.sgd.run.Run._noisy
    for which, sentence in ((lambda step: step % 60, "of steps is not independent"), (lambda step: step, "not of the deviation")):
        share = 1.0 if "independent" in sentence else 0.3

        def wrong(self, sums, step, which=which, share=share):
            bare = {name: value.double() / self.plan.batch for name, value in sums.items()}
            noisy = right(self, sums, which(step))
            return noisy if step < 50 and share < 1 else {n: (bare[n] + share * (v - bare[n])).float() for n, v in noisy.items()}

        with monkeypatch.context() as patch:
            patch.setattr(sartor.sgd.run.Run, "_noisy", wrong)
            found = replay(train, RECORDS, runs.people(), plan, holders=1, most_steps=5)
        assert sentence in " ".join(found.faults)
    assert replay(train, RECORDS, runs.people(), plan, holders=1, most_steps=5).verdict == "consistent"


def test_draws_that_come_again_after_the_steps_that_were_looked_at_are_named(monkeypatch):
    plan = sartor.plan(runs.people(), "scale", steps=60, batch=20)

    def train(data, seed):
        return sartor.fit(runs.net(), data, runs.people(), plan, seed=seed, progress=False).account.to_json()

    right = PoissonSampler.draw

    def wrong(self, step):
        return right(self, step) if step < 30 else replace(right(self, step % 30), step=step)

    assert replay(train, RECORDS, runs.people(), plan, holders=1, most_steps=3).verdict == "consistent"
    monkeypatch.setattr(PoissonSampler, "draw", wrong)
    found = replay(train, RECORDS, runs.people(), plan, holders=1, most_steps=3)
    assert "two steps have more people in common, or fewer, than independent coins make." in found.faults


def test_noise_of_a_private_run_is_nobodys_to_know():
    _, _, loader = loop(RECORDS, None)
    with pytest.raises(sartor.SartorError, match="nobody's to know"):
        loader.run.noise_of(0)


# --- data by other names, of other kinds, from other places ---


def module_of(folder, name, code):
    (folder / f"{name}.py").write_text(code)
    return name


@pytest.mark.parametrize("folder", ["src", "site-packages"])
def test_what_a_users_own_package_keeps_is_told_wherever_it_is_installed(folder, tmp_path, monkeypatch):
    place = tmp_path / folder
    place.mkdir()
    name = module_of(
        place, f"trainer_in_{folder[:3]}", "import sartor\nKEPT = {}\ndef mean(x):\n    return KEPT.setdefault(0, x.mean(0))\n"
    )
    monkeypatch.syspath_prepend(str(place))
    own = importlib.import_module(name)
    found = looked_at(lambda data, seed: trained(scaled(data, own.mean(data.tensors[0])), seed)[1].account(), holders=1)
    assert "what train keeps from one run to the next" in found.unseen
    assert "KEPT" in " ".join(found.unseen)


@pytest.mark.parametrize("how", ["from {0} import MEAN", "import {0}; MEAN = {0}.MEAN"])
def test_what_train_imports_by_itself_is_told(how, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    name = module_of(tmp_path, f"statistics_{how[:4]}", "import torch\nMEAN = torch.ones(4)\n")
    code = f"def train(data, seed):\n    {how.format(name)}\n    return trained(scaled(data, MEAN), seed)[1].account()\n"
    exec(code, globals(), made := {})
    assert "MEAN" in " ".join(looked_at(made["train"], holders=1).unseen)


def test_records_in_an_object_of_the_librarys_own_are_told():
    people = load("digits")
    found = looked_at(lambda data, seed: (len(people.train), trained(data, seed)[1].account())[1], holders=1)
    assert "(people" in " ".join(found.unseen)


@functools.lru_cache
def table():
    return X * 1


WORDS = " ".join(map(str, X.flatten().tolist()))
KINDS = {
    "whole numbers": Y.tolist(),
    "text": WORDS,
    "bytes": ARRAY.tobytes() * 2,
    "buffer": array.array("d", ARRAY[:, 0].tolist()),
    "list of arrays": [X, X],
}


@pytest.mark.parametrize("kind", KINDS)
def test_data_of_any_kind_beside_the_data_set_is_told(kind):
    held = KINDS[kind]
    found = looked_at(lambda data, seed: (len(held), trained(data, seed)[1].account())[1], holders=1)
    assert found.unseen == ("numbers that train reaches beside its argument (held)",)


def test_a_cache_that_was_filled_before_is_told_and_one_of_settings_is_not():
    def train(data, seed):
        return (table(), trained(data, seed)[1].account())[1]

    table.cache_clear()
    table()
    assert "what was cached before anything was replayed (table)" in looked_at(train, holders=1).unseen


def test_an_object_that_does_not_let_itself_be_asked_is_passed():
    lazy = nn.LazyLinear(3)
    found = looked_at(lambda data, seed: (lazy.bias, trained(data, seed)[1].account())[1], holders=1)
    assert found.verdict == "consistent"


def served(numbers):
    """A server of this machine, and its address."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(numbers).encode())

        def log_message(self, *given):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


READ = {
    "memory map": lambda file: np.memmap(file, dtype=np.float32),
    "opened to change": lambda file: open(file, "r+b").read(),  # noqa: SIM115
    "appended to and read": lambda file: (open(file, "ab").close(), open(file, "rb").read()),  # noqa: SIM115
    "read and appended to": lambda file: open(file, "a+b"),  # noqa: SIM115
    "descriptor": lambda file: os.close(os.open(file, os.O_RDWR)),
}


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("how", READ)
def test_whatever_is_opened_to_be_read_is_noted(how, tmp_path):
    file = tmp_path / "numbers.bin"
    file.write_bytes(ARRAY.tobytes())
    with listening() as opened:
        READ[how](file)
    assert str(file) in opened.read


def test_checkpoints_shared_memory_databases_and_servers_are_noted(tmp_path):
    file, base = tmp_path / "mean.pth", tmp_path / "people.db"
    torch.save(X, file)
    sqlite3.connect(base).close()
    server = served(Y.tolist())
    with listening() as opened:
        torch.load(file)
        sqlite3.connect(base).close()
        with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}") as answer:
            answer.read()
        if os.path.isdir("/dev/shm"):
            with tempfile.NamedTemporaryFile(dir="/dev/shm") as shared, open(shared.name, "rb"):
                pass
        with open(os.devnull, "rb"), open(tmp_path / "new", "w+"):
            pass
    server.shutdown()
    server.server_close()
    assert {str(file), str(base), str(("127.0.0.1", server.server_port))} <= opened.read
    assert not {os.devnull, str(tmp_path / "new")} & opened.read


# --- moves that are small, and holders who are like others ---


def test_a_sum_that_moves_by_less_than_it_is_rounded_is_named():
    def train(data, seed):
        return trained(scaled(data, 1e-4 * data.tensors[0].clip(-5, 5).mean(0)), seed)[1].account()

    found = looked_at(train, holders=12)
    assert found.faults == ("a sum moved slightly although the holder who was zeroed was not drawn.",)


def test_sums_that_are_never_rounded_alike_are_told_and_refute_nothing():
    times = itertools.count()

    def train(data, seed):
        return trained(scaled(data, torch.full((4,), 1e-6 * next(times))), seed)[1].account().to_json()

    found = looked_at(train, holders=12)
    assert found.verdict == "consistent"
    assert "moves as small as sums are rounded, as they differ from run to run" in found.unseen


def test_a_scale_that_the_largest_record_decides_is_named_whoever_is_zeroed():
    def train(data, seed):
        return trained(TensorDataset(data.tensors[0] / data.tensors[0].abs().max(), data.tensors[1]), seed)[1].account()

    for holder in range(0, runs.HOLDERS, 20):
        found = looked_at(train, holders=[holder])
        assert any("a sum moved" in fault for fault in found.faults)


def test_records_that_fail_where_they_are_far_from_all_say_nothing():
    def train(data, seed):
        if data.tensors[0].abs().max() > 100:
            raise ValueError
        return trained(data, seed)[1].account()

    assert looked_at(train, holders=1).verdict == "consistent"


def test_whoever_has_all_records_cannot_be_replaced_and_that_is_told():
    _, missed = without(RECORDS, np.arange(len(RECORDS)))
    assert missed == {"records in TensorDataset"}
    twins = TensorDataset(torch.ones(8, 2), torch.ones(8))
    assert without(twins, np.array([3]))[1] == {"records in TensorDataset"}


# --- what is returned ---


class Losses(list):
    """What some libraries return of a run."""


def mean(data):
    return float(data.tensors[0].mean())


def with_best(data):
    found = Losses([0.1])
    found.best = mean(data)
    return found


def in_two_folders(data, place):
    for name, value in (("one", mean(data)), ("two", 0.0)):
        (place / name).mkdir(exist_ok=True)
        (place / name / "metrics.json").write_text(str(value))
    return [place / "one", place / "two"]


def named_after(data, place):
    file = place / f"mean={mean(data)}"
    file.write_text("nothing")
    file.chmod(0o600)
    return file


RETURNED = {
    "a part called names": lambda data, place: {"names": mean(data)},
    "an attribute of a list": lambda data, place: with_best(data),
    "what a function is given": lambda data, place: functools.partial(print, data.tensors[0] * 1),
    "files of one name in two folders": in_two_folders,
    "the name of a file": named_after,
}


@pytest.mark.parametrize("what", RETURNED)
def test_whatever_is_returned_is_compared_whole(what, tmp_path):
    def train(data, seed):
        trained(data, seed)
        return RETURNED[what](data, tmp_path)

    assert any("is returned follows" in fault or "file that others may read" in fault for fault in looked_at(train, holders=1).faults)


def test_a_result_of_fit_is_the_same_twice_but_for_its_clock():
    def train(data, seed):
        return sartor.fit(runs.net(), data, runs.people(), runs.planned("scale", 4), seed=seed, progress=False)

    found = looked_at(train, holders=1)
    assert (found.verdict, found.unseen) == ("consistent", ())
