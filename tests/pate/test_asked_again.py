"""The same request costs once, a further one is charged, and what a kill cuts off stays charged with the most that it could cost."""

import dataclasses
import os
import signal
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sartor.errors import SartorError
from sartor.pate import voting
from sartor.pate.account import Accountant
from sartor.pate.build import plan
from sartor.pate.folder import EnsembleFolder
from sartor.pate.plan import Confident, GNMax, Interactive
from sartor.pate.variants import VARIANTS
from sartor.pate.voting import DataDependent
from sartor.run import files
from sartor.run.stream import Stream
from sartor_testing.amount import examples
from sartor_testing.ensembles import holders_within_budget, random_votes
from sartor_testing.forks import in_a_fork, refused_in_a_fork
from sartor_testing.kept_ensembles import PEOPLE, saved


def same(one, other):
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in ("labels", "asked", "answered", "weights"))


def test_the_same_request_gets_its_latest_answer_at_no_further_cost(tmp_path):
    path = tmp_path / "kept"
    first = saved(path).aggregate(labels=20)
    other = EnsembleFolder(path).aggregate(labels=21)
    again = EnsembleFolder(path).aggregate(labels=20)
    assert same(first, again)
    assert again.account.cost == pytest.approx(first.account.cost, rel=1e-15)
    further = EnsembleFolder(path).aggregate(labels=20, further=True)
    assert not same(first, further)  # by chance in one of millions
    assert same(further, EnsembleFolder(path).aggregate(labels=20))
    assert same(further, EnsembleFolder(path).told(labels=20))
    assert same(other, EnsembleFolder(path).aggregate(labels=np.int64(21), accountant=Accountant(), bound="independent", go_on=False))
    assert [account.queries for account in EnsembleFolder(path).accounts] == [20, 21, 20]
    assert holders_within_budget(PEOPLE, again.account.plan, [first, other, further])


def test_whatever_decides_the_answer_makes_another_request(tmp_path):
    people = plan(PEOPLE, "weight", teachers=10, aggregator=Interactive(30.0, 1.0, 60.0))
    folder = EnsembleFolder.create(tmp_path / "kept", people, PEOPLE)
    folder.put(random_votes(60, 10, 3, 1)[0], 3)
    unsure, sure = np.full((60, 3), 1 / 3), np.eye(3)[np.zeros(60, int)]
    base = {"student": unsure, "labels": 1}
    requests = [
        base,
        {**base, "labels": 2},
        {**base, "student": sure},
        {**base, "accountant": Accountant.paper()},
        {**base, "accountant": Accountant.fine()},
        {**base, "accountant": Accountant(Accountant.fine().orders, "mironov")},
        {**base, "go_on": True},
        {**base, "stream": Stream(seed=1)},
    ]
    for number, request in enumerate(requests, 1):
        folder.aggregate(**request)
        assert len(folder.accounts) == number
    for request in requests[:-1]:
        folder.aggregate(**request)
    folder.aggregate(**{**base, "stream": Stream(seed=2)})  # seeded answers are for seeded requests, whatever the seed
    assert len(EnsembleFolder(tmp_path / "kept").accounts) == len(requests)


def test_a_further_voting_of_one_seed_has_other_noise(tmp_path):
    folder, streams = saved(tmp_path / "kept"), [Stream(seed=1) for _ in range(3)]
    for stream in streams:
        folder.aggregate(labels=3, further=True, stream=stream)
    assert len({stream.generator("pate", 0).random() for stream in streams}) == 3
    assert streams[0].generator("pate", 0).random() == Stream(seed=1).generator("pate", 0).random()


def test_an_answer_that_follows_the_votes_says_so_again(tmp_path):
    folder = saved(tmp_path / "kept")
    found = []
    for _ in range(2):
        with pytest.warns(DataDependent):
            found.append(folder.aggregate(bound="dependent", labels=2))
    assert same(*found)
    assert np.array_equal(found[0].account.divergence, found[1].account.divergence)
    assert len(folder.accounts) == 1


KINDS = {
    "plain": GNMax(noise=30.0),
    "confident": Confident(30.0, 6.0, 25.0),
    "interactive": Interactive(30.0, 1.0, 25.0, confidence=0.5),
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=examples(6, 60))
@given(data=st.data())
def test_no_voting_costs_more_than_what_is_charged_ahead(variant, kind, data):
    """Row by row, in queries asked and answered, and never beyond what is left."""
    found, seed = plan(PEOPLE, variant, teachers=10, aggregator=KINDS[kind]), data.draw(st.integers(0, 99))
    votes = random_votes(data.draw(st.sampled_from([1, 20, 300])), found.teachers, 3, seed)[0]
    options = {
        "labels": data.draw(st.sampled_from([None, 0, 1, 7])),
        "student": np.full((len(votes), 3), 1 / 3) if kind == "interactive" else None,
    }
    options["accountant"] = data.draw(st.sampled_from([None, Accountant.paper()]))
    options["go_on"] = found.apart and data.draw(st.booleans())
    options["bound"] = (
        "independent" if options["go_on"] or options["accountant"] is None else data.draw(st.sampled_from(["independent", "dependent"]))
    )
    before, ahead = [], []
    for turn in range(2):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DataDependent)
            labels = voting.aggregate(found, votes, 3, **options, before=before, stream=Stream(seed=seed + turn), ahead=ahead.append)
        most, account = ahead[-1], labels.account
        assert np.all(account.cost <= most.cost * (1 + 1e-12))
        assert np.all(account.asked <= most.asked)
        assert account.queries <= most.queries
        if account.bound == "dependent":
            assert np.all(account.divergence <= most.divergence * (1 + 1e-12))
            break
        total = sum((earlier.cost for earlier in before), most.cost)
        spent = dataclasses.replace(most, cost=total).spent
        assert np.all(spent <= found.spendable[0])
        before.append(account)


def test_a_voting_that_is_cut_off_is_charged_with_the_most_and_its_exposure_covers_it(tmp_path, monkeypatch):
    path = tmp_path / "kept"
    people = plan(PEOPLE, "weight", teachers=10, aggregator=KINDS["confident"])
    folder = EnsembleFolder.create(path, people, PEOPLE)
    folder.put(random_votes(300, 10, 3, 1)[0], 3)
    with monkeypatch.context() as patch:
        patch.setattr(voting.Voting, "_tested", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            folder.aggregate(labels=2)
    (account,) = EnsembleFolder(path).accounts
    assert (folder.cut_off, folder.labels) == (1, [])
    assert np.all((account.spent > 0) & (account.spent <= people.spendable[0]))
    for group, exposure in enumerate(map(account.exposure, range(len(people)))):
        costs = sum(part.steps / part.noise_multiplier**2 for part in exposure.parts)
        assert costs >= account.cost[group] * (1 - 1e-12)
    assert folder.told(labels=2) is None
    more = folder.aggregate(labels=2)  # asked anew, out of what is left
    assert len(EnsembleFolder(path).accounts) == 2
    assert np.all(EnsembleFolder(path).account.spent <= people.spendable[0])
    assert more.account.queries <= 300


def test_what_is_refused_is_not_charged(tmp_path):
    folder = saved(tmp_path / "kept")
    used = Stream()
    used.take()
    for wrong in (
        {"labels": -1},
        {"bound": "loose"},
        {"student": np.zeros((2, 2))},
        {"go_on": True, "bound": "dependent"},
        {"stream": used},
    ):
        with pytest.raises(SartorError):
            folder.aggregate(**wrong)
    assert EnsembleFolder(tmp_path / "kept").accounts == []


# --- processes ---


def test_an_answer_whose_file_is_gone_costs_the_most_and_one_of_another_charge_is_refused(tmp_path):
    path = tmp_path / "kept"
    folder = saved(path)
    for _ in range(2):
        folder.aggregate(labels=2, further=True)
    kept = (path / "answer-00001").read_bytes()
    (path / "answer-00001").write_bytes((path / "answer-00000").read_bytes())
    with pytest.raises(SartorError, match="damaged"):
        EnsembleFolder(path)
    (path / "answer-00001").unlink()
    assert EnsembleFolder(path).cut_off == 1
    (path / "answer-00001").write_bytes(kept)
    assert EnsembleFolder(path).cut_off == 0


def test_a_voting_draws_nothing_in_a_forked_process(tmp_path):
    found, votes, stream = plan(PEOPLE, "weight", teachers=10, aggregator=GNMax(30.0)), random_votes(20, 10, 3, 1)[0], Stream()
    begun = voting.Voting(found, votes, 3, None, Accountant(), stream)
    folder = saved(tmp_path / "kept")
    for work in (
        lambda: voting.aggregate(found, votes, 3, stream=stream),
        lambda: begun.run(np.inf, "independent", False),
        lambda: folder.aggregate(stream=stream),
        lambda: folder.publish_spent(stream=stream),
    ):
        assert refused_in_a_fork(work) == "this stream is another process's"
    begun.run(np.inf, "independent", False)
    assert folder.accounts == EnsembleFolder(folder.path).accounts == []


def test_two_forks_that_ask_at_once_have_one_answer_or_each_their_own_noise(tmp_path):
    folder = saved(tmp_path / "kept", noise=3.0)

    def asked(further):
        return lambda: folder.aggregate(labels=4, further=further).weights.tobytes() + folder.labels[-1].tobytes()

    ends = [waiting() for waiting in [in_a_fork(asked(False)) for _ in range(2)]]
    assert [code for code, _ in ends] == [0, 0]
    assert ends[0][1] == ends[1][1]
    assert len(EnsembleFolder(folder.path).accounts) == 1


def test_of_two_that_begin_one_ensemble_at_once_the_second_waits_and_is_told_how_to_go_on(tmp_path):
    path, reading, writing = tmp_path / "kept", *os.pipe()
    right = files.write_private

    def first():
        def slowly(place, content, *, new=False):
            os.write(writing, b"x")
            os.read(resumed, 1)
            right(place, content, new=new)

        EnsembleFolder.create.__func__.__globals__["write_private"] = slowly
        return str(EnsembleFolder.create(path, plan(PEOPLE, "weight", teachers=10, aggregator=GNMax(30.0)), PEOPLE).path).encode()

    def second():
        told = []
        for act in (lambda: saved(path), lambda: EnsembleFolder(path)):
            try:
                told.append(str(act()))
            except SartorError as error:
                told.append(str(error))
        return "\n".join(told).encode()

    resumed, go = os.pipe()
    one = in_a_fork(first)
    os.read(reading, 1)  # it has the lock, and there is no ensemble yet
    two = in_a_fork(second)
    os.write(go, b"x")
    assert one() == (0, str(path).encode())
    refused, opened = two()[1].decode().splitlines()
    assert "holds an ensemble already" in refused
    assert "go on with it by the same command again" in refused
    assert opened.startswith("EnsembleFolder(")


def test_who_opens_an_ensemble_that_another_is_beginning_waits_for_it(tmp_path):
    path = tmp_path / "kept"
    path.mkdir()
    with files.lock(path):
        waiting = in_a_fork(lambda: str(EnsembleFolder(path)).encode())
        plan_ = plan(PEOPLE, "weight", teachers=10, aggregator=GNMax(30.0))
        EnsembleFolder.create(tmp_path / "other", plan_, PEOPLE)
        (path / "ensemble.json").write_bytes((tmp_path / "other" / "ensemble.json").read_bytes())
    code, said = waiting()
    assert (code, said[:15]) == (0, b"EnsembleFolder(")


def test_noise_is_drawn_only_after_its_charge_is_on_the_disk(tmp_path):
    path = tmp_path / "kept"
    folder = saved(path)

    def drawn(self, purpose, step):
        assert (path / "charge-00000").exists()
        assert (path / "charged").read_bytes() == b"1"
        os.kill(os.getpid(), signal.SIGKILL)

    def work():
        Stream.generator = drawn
        folder.aggregate(labels=2)
        return b""

    assert os.waitstatus_to_exitcode(in_a_fork(work)()[0]) == -signal.SIGKILL
    assert EnsembleFolder(path).accounts[0].queries == 2
