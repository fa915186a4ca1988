"""Where a holder may show beside their clipped gradient, and replay finds them: in sums, in later steps, in what is shown."""

import itertools
import sys
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, Subset, TensorDataset

import sartor
from sartor.audit import replay
from sartor.audit.without import fresh, without
from sartor.data import load
from sartor.run.sampling import PoissonSampler
from sartor.run.stream import Stream
from sartor.run.witness import witness_of
from sartor_testing import private_runs as runs

RECORDS = runs.records()


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


# --- the data set of the second run ---


@pytest.mark.parametrize("common", [0, 1])
def test_a_rare_class_is_replaced_by_another(common):
    labels = torch.full((60,), common)
    labels[[5, 40]] = 1 - common
    for holder in (5, 7, 40):
        replaced, _ = without(TensorDataset(torch.arange(60.0), labels), np.array([holder]))
        assert replaced.tensors[1][holder] != labels[holder]


class Pairs(Dataset):
    def __len__(self):
        return len(RECORDS)

    def __getitem__(self, place):
        return RECORDS[place]


KINDS = {
    "tensors": RECORDS,
    "list": list(RECORDS),
    "part": Subset(TensorDataset(*(tensor.repeat_interleave(2, 0) for tensor in RECORDS.tensors)), range(0, 120, 2)),
    "part of others": Subset(Pairs(), range(60)),
    "others": Pairs(),
}


@pytest.mark.parametrize("kind", KINDS)
def test_other_peoples_records_stand_in_a_holders_places_alone(kind):
    replaced, missed = without(KINDS[kind], np.array([3, 7]))
    assert not any(one.startswith("records in") for one in missed)
    assert [place for place in range(60) if not torch.equal(replaced[place][0], RECORDS[place][0])] == [3, 7]
    assert all(any(torch.equal(replaced[place][0], other) for other in RECORDS.tensors[0]) for place in (3, 7))
    assert all(torch.equal(fresh(KINDS[kind])[place][0], RECORDS[place][0]) for place in range(60))


def test_data_with_its_classes_has_its_training_rows_replaced():
    data = load("digits")
    replaced, missed = without(data, np.array([3]))
    changed = (replaced.train.tensors[0] != data.train.tensors[0]).flatten(1).any(1)
    assert (changed.nonzero().flatten().tolist(), replaced.classes, missed) == ([3], data.classes, set())


def test_whoever_has_all_records_cannot_be_replaced_and_that_is_told():
    _, missed = without(RECORDS, np.arange(len(RECORDS)))
    assert missed == {"records in TensorDataset"}
    twins = TensorDataset(torch.ones(8, 2), torch.ones(8))
    assert without(twins, np.array([3]))[1] == {"records in TensorDataset"}


def test_records_that_have_no_places_are_told():
    assert without({"one": [1]}, np.array([0])) == ({"one": [1]}, {"records in dict"})


# --- what is shown ---


def test_optimizer_and_loader_may_be_returned_and_readings_are_not_shown():
    assert looked_at(lambda data, seed: trained(data, seed), holders=1).verdict == "consistent"


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


def mean(data):
    return float(data.tensors[0].mean())


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


# --- what runs beside ---


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


# --- steps that are not run ---


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
