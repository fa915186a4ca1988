"""An ensemble in a folder of people with several records: it knows whose each is, goes on by that alone, and tells nobody."""

import json
import stat

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

import sartor
from sartor.errors import SartorError
from sartor.pate.build import plan
from sartor.pate.folder import EnsembleFolder
from sartor.pate.partition import partition
from sartor.pate.plan import GNMax
from sartor_testing.ensembles import random_votes
from sartor_testing.kept_ensembles import OWNERS, PEOPLE, RECORDS, SHUFFLED, Listening, an_ensemble_goes_on_with_its_ownership, saved

PLAN = plan(PEOPLE, "upsample", teachers=10, aggregator=GNMax(noise=30.0))
KNOWN = plan(PEOPLE, "upsample", teachers=10, aggregator=GNMax(noise=30.0), ownership=OWNERS)
QUERIES = torch.zeros(5, 1)


def test_accounts_say_how_many_holders_and_records_there_are_and_nothing_of_whose_they_are(tmp_path):
    votes = random_votes(200, PLAN.teachers, 3, 1)[0]
    said = []
    for name, owners in (("one", OWNERS), ("other", sartor.Ownership(OWNERS.of_record[::-1], 100)), ("bare", None)):
        folder = EnsembleFolder.create(tmp_path / name, PLAN, PEOPLE, ownership=owners)
        folder.put(votes, 3)
        folder.aggregate(labels=3)
        folder.aggregate(labels=3, further=True)
        back = EnsembleFolder(tmp_path / name)
        assert back.account.to_json() == folder.account.to_json()
        said.append(back.account.to_json())
    assert said[0] == said[1]
    assert (said[0]["holders"], said[0]["records"]) == (100, len(OWNERS))
    assert said[0].keys() - said[2].keys() == {"records"}
    assert [group.keys() for group in said[0]["groups"]] == [group.keys() for group in said[2]["groups"]]


def test_a_folder_goes_on_with_the_same_ownership_and_refuses_another(tmp_path):
    assert an_ensemble_goes_on_with_its_ownership(tmp_path / "one of each, in another order", SHUFFLED)
    assert an_ensemble_goes_on_with_its_ownership(tmp_path / "kept")
    back = EnsembleFolder(tmp_path / "kept")
    moved, swapped = OWNERS.of_record.copy(), OWNERS.of_record.copy()
    moved[np.flatnonzero(moved == 2)[0]] = 1  # one of three records of holder 2
    places = [np.flatnonzero(swapped == holder)[0] for holder in (1, 2)]
    swapped[places] = swapped[places[::-1]]
    for other in (moved, swapped, np.append(OWNERS.of_record, 3)):
        for act in (
            lambda other=other: back.check_same(PLAN, PEOPLE, sartor.Ownership(other, 100)),
            lambda other=other: back.check_same(PLAN, None, sartor.Ownership(other, 100)),
            lambda other=other: back.teach(Listening(), RECORDS, QUERIES, 3, ownership=sartor.Ownership(other, 100)),
        ):
            with pytest.raises(SartorError, match="another ownership"):
                act()
    with pytest.raises(SartorError, match="another ownership"):  # budgets alone are those of people with one record each
        back.check_same(PLAN, PEOPLE)
    with pytest.raises(SartorError, match="another plan"):
        back.check_same(plan(PEOPLE, "upsample", teachers=10, aggregator=GNMax(noise=30.0), ownership=SHUFFLED))
    back.check_same(KNOWN, PEOPLE, OWNERS)
    fewer = TensorDataset(*(tensor[1:] for tensor in RECORDS.tensors))
    with pytest.raises(SartorError, match=f"ownership is of {len(OWNERS)} records, but there are {len(OWNERS) - 1}"):
        back.teach(Listening(), fewer, QUERIES, 3)
    with pytest.raises(SartorError, match="teachers of other data"):  # the same people, and another record of one
        back.teach(Listening(), TensorDataset(RECORDS.tensors[0].flip(0), RECORDS.tensors[1]), QUERIES, 3)


def test_whose_each_record_is_is_kept_for_the_folders_owner_alone(tmp_path):
    EnsembleFolder.create(tmp_path / "kept", PLAN, PEOPLE, ownership=OWNERS)
    kept = tmp_path / "kept" / "ensemble.json"
    assert json.loads(kept.read_text())["ownership"] == OWNERS.of_record.tolist()
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert stat.S_IMODE(kept.parent.stat().st_mode) == 0o700


def test_folders_without_an_ownership_are_opened_as_before_and_are_of_one_record_each(tmp_path):
    saved(tmp_path / "new")
    made_ = EnsembleFolder.create(tmp_path / "old", PLAN, PEOPLE, key=b"key")
    file = tmp_path / "old" / "ensemble.json"
    document = json.loads(file.read_text())
    del document["ownership"], document["plan"]["holders"]  # as an earlier version wrote it
    file.write_text(json.dumps(document))
    for path in ("new", "old"):
        assert EnsembleFolder(tmp_path / path).ownership is None
    back = EnsembleFolder(tmp_path / "old")
    assert back.plan == made_.plan
    back.check_same(PLAN, PEOPLE)
    back.check_same(PLAN, PEOPLE, sartor.Ownership(np.arange(100), 100))
    with pytest.raises(SartorError, match="another ownership"):
        back.check_same(PLAN, PEOPLE, OWNERS)
    with pytest.raises(SartorError, match="100 budgets for"):
        back.teach(Listening(), RECORDS, QUERIES, 3)
    records, heard = TensorDataset(*(tensor[:100] for tensor in RECORDS.tensors)), Listening()
    back.teach(heard, records, QUERIES, 3)
    assert heard.heard == {number: rows.tolist() for number, rows in enumerate(partition(PLAN, PEOPLE, b"key").slices())}


def test_an_ownership_that_was_changed_in_the_folder_is_noticed(tmp_path):
    path = tmp_path / "kept"
    EnsembleFolder.create(path, PLAN, PEOPLE, ownership=OWNERS).teach(Listening(), RECORDS, QUERIES, 3)
    file = path / "ensemble.json"
    document = json.loads(file.read_text())
    for wrong in (None, [0], OWNERS.of_record[:-1].tolist(), (OWNERS.of_record + 1).tolist(), (OWNERS.of_record * 0.5).tolist(), "mine"):
        file.write_text(json.dumps({**document, "ownership": wrong}))
        with pytest.raises(SartorError, match="no ensemble that can be read"):
            EnsembleFolder(path)
    file.write_text(json.dumps({**document, "ownership": OWNERS.of_record[::-1].tolist()}))
    with pytest.raises(SartorError, match="teachers of other ownership"):
        EnsembleFolder(path).teach(Listening(), RECORDS, QUERIES, 3)


def test_an_ownership_that_was_taken_out_of_the_folder_is_noticed(tmp_path):
    """As many records as holders, so that no number tells."""
    path, records = tmp_path / "kept", TensorDataset(*(tensor[:100] for tensor in RECORDS.tensors))
    EnsembleFolder.create(path, PLAN, PEOPLE, ownership=SHUFFLED).teach(Listening(), records, QUERIES, 3)
    document = json.loads((path / "ensemble.json").read_text())
    del document["ownership"], document["plan"]["records"]
    (path / "ensemble.json").write_text(json.dumps(document))
    with pytest.raises(SartorError, match="teachers of other ownership"):
        EnsembleFolder(path).teach(Listening(), records, QUERIES, 3)


def test_a_folder_is_begun_only_by_the_ownership_that_its_plan_and_budgets_know(tmp_path):
    for what, (plan_, owners) in {
        "say whose each of them is": (KNOWN, None),
        "of 99 holders, but there are 100 budgets": (PLAN, sartor.Ownership(np.arange(99), 99)),
        f"for {len(OWNERS)} records, but the ownership is of 100": (KNOWN, SHUFFLED),
    }.items():
        with pytest.raises(SartorError, match=what):
            EnsembleFolder.create(tmp_path / "kept", plan_, PEOPLE, ownership=owners)
    assert not list(tmp_path.iterdir())


def test_an_ownership_by_names_goes_on_and_serves_no_other_order(tmp_path):
    names = [f"p{i}" for i in range(40)]
    people = sartor.Budgets([1.0, 2.0] * 20, delta=1e-5, holders=names)
    whose = [names[i % 40] for i in range(100)]
    owners = sartor.Ownership.of(whose, people)
    turned = people.ordered_as(names[::-1])
    made = plan(people, "weight", teachers=4, aggregator=GNMax(noise=30), ownership=owners)
    folder = EnsembleFolder.create(tmp_path / "kept", made, people, ownership=owners)
    EnsembleFolder(tmp_path / "kept").check_same(folder.plan, people, owners)
    for other in (sartor.Ownership.of(whose, turned), sartor.Ownership.of(whose[::-1], people)):
        with pytest.raises(sartor.SartorError, match="another ownership"):
            EnsembleFolder(tmp_path / "kept").check_same(folder.plan, people, other)
    for use in (
        lambda: partition(made, turned, b"key", ownership=owners),
        lambda: plan(turned, "weight", teachers=4, ownership=owners),
        lambda: EnsembleFolder.create(tmp_path / "other", made, turned, ownership=owners),
    ):
        with pytest.raises(sartor.SartorError, match="other names, or in another order"):
            use()
