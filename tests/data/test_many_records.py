"""People with several rows: one holder, one budget, held out as a whole; and nothing tells how many rows somebody has."""

import csv
import re
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sartor import Budgets, InvalidBudget, Ownership, Policy, SartorError
from sartor.data import Data, HeldOut, read_arrays, read_table
from sartor.data.dataset import dataset
from sartor.data.people import People, refuse_copies, refuse_trained

KNOWN = {"bounds": {"age": (0, 100), "visit": (0, 100)}, "classes": ["no", "yes"]}
POLICY = Policy({"strict": 1, "balanced": 2, "open": 3}, delta=1e-5)
LEVELS = ["strict", "balanced", "open"]


def visits(counts, **more):
    """So many visits of each person, in which everything follows from the person and the visit, so that mixed-up rows show."""
    rows = [
        {"person": f"key{i}", "age": i, "visit": j, "level": LEVELS[i % 3], "paid": "yes" if (i + j) % 2 else "no"}
        for i, count in enumerate(counts)
        for j in range(count)
    ]
    return [row | {name: value(row) for name, value in more.items()} for row in rows]


def write(path, rows):
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


@pytest.fixture
def read(tmp_path):
    """Reads rows as a table whose holders are in the column "person"."""

    def table(rows, **arguments):
        path = write(tmp_path / "visits.csv", rows)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", HeldOut)
            return read_table(path, "paid", **{"id_column": "person", "features": ["age", "visit"], **KNOWN, **arguments})

    return table


def persons(part):
    """Who each row is of, by their features; and which visit it is."""
    return [tuple(row) for row in np.rint(part.tensors[0].numpy() * 100).astype(int).tolist()]


def check_owners(data):
    """Every training row is that holder's whose age and label it has."""
    rows = persons(data.train)
    owners = range(len(rows)) if data.ownership is None else data.ownership.of_record
    assert [data.holders[owner] for owner in owners] == [f"key{i}" for i, _ in rows]
    assert data.train.tensors[1].tolist() == [(i + j) % 2 for i, j in rows]
    return rows


# --- whose each row is ---


COUNTS = st.lists(st.integers(1, 5), min_size=2, max_size=12)


@settings(max_examples=40)
@given(counts=COUNTS, order=st.randoms(use_true_random=False), share=st.floats(0, 0.95), seed=st.integers(0, 99))
def test_no_holder_is_on_both_sides_and_budgets_follow_names_in_any_order(tmp_path_factory, counts, order, share, seed):
    rows = visits(counts)
    order.shuffle(rows)
    path = write(tmp_path_factory.mktemp("tables") / "visits.csv", rows)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HeldOut)
        arguments = {"id_column": "person", "budget_column": "level", "policy": POLICY, "test_share": share, "seed": seed, **KNOWN}
        data = read_table(path, "paid", **arguments)
    trained = check_owners(data)
    held = [] if data.held_out is None else persons(data.held_out)
    assert not {i for i, _ in trained} & {i for i, _ in held}
    assert sorted(trained + held) == [(i, j) for i, count in enumerate(counts) for j in range(count)]
    assert data.people == len(data.holders) == len(counts) - len({i for i, _ in held})
    assert bool(held) == (share > 0)
    assert data.budgets.names == data.holders
    assert data.budgets.epsilon.tolist() == [int(name[3:]) % 3 + 1 for name in data.holders]
    assert (data.ownership is None) == (len(trained) == data.people)


def test_who_is_held_out_does_not_follow_from_how_much_they_lent(read):
    few, many = (read(visits(counts), test_share=0.3) for counts in ([1] * 20, [1 + i % 4 for i in range(20)]))
    assert {i for i, _ in persons(few.held_out)} == {i for i, _ in persons(many.held_out)}
    assert many.people == 14


def test_one_row_for_each_holder_is_as_without_several(read):
    data = read(visits([1] * 12), budget_column="level", policy=POLICY)
    assert (data.ownership, data.one_holder, data.people) == (None, "one training row", 12)
    assert data.budgets == Budgets([i % 3 + 1 for i in range(12)], delta=1e-5, holders=data.holders)


def test_what_one_holder_is_and_how_many_there_are_is_said(read):
    data = read(visits([3, 1, 2]))
    assert data.one_holder == 'all rows that name them in "person"'
    assert "6 training rows of 3 holders and 0 test rows" in repr(data)
    assert data.ownership == Ownership([0, 0, 0, 1, 2, 2], 3)


def test_the_note_on_held_out_people_does_not_count_their_rows(read):
    """Of one person held out it would tell how many rows they have."""
    found = (read(visits([1, 1, 1, 37]), test_share=0.25, seed=seed) for seed in range(99))
    data = next(data for data in found if len(data.held_out) == 37)
    assert data.notes[0].startswith("1 holders, with all of their rows, were held out")
    assert not re.search(r"37|40", repr(data) + " ".join(data.notes))


def test_one_holder_with_many_rows_cannot_be_trained_on_and_held_out(read):
    with pytest.raises(SartorError, match="one holder cannot be both"):
        read(visits([5]), test_share=0.5)


# --- names ---


@pytest.mark.parametrize("blank", ["", "  "])
def test_rows_without_a_holder_are_refused(read, blank):
    rows = visits([3, 2])
    rows[4]["person"] = blank
    with pytest.raises(SartorError, match='1 of 5 rows have no holder in the column "person"'):
        read(rows)


@pytest.mark.parametrize("word", ["?", "nan", "NULL", "None", "N/A", "unknown"])
def test_rows_of_nobody_in_particular_are_not_taken_for_one_person(read, word):
    rows = visits([3, 2, 2])
    for row in rows[3:5]:
        row["person"] = word
    with pytest.raises(SartorError, match=r"2 of 7 rows name nobody .* may be of several people"):
        read(rows)
    rows[3]["person"] = "key1"
    assert read(rows).people == 4  # a single row is one person, whatever they are called


@pytest.mark.parametrize(("one", "other"), [("7", "7.0"), ("1e3", "1000"), ("Ann", "ann "), ("Ann Lee", "ann  lee"), ("Ann", "Ann\u200b")])
def test_two_spellings_of_one_holder_are_refused_across_rows(read, one, other):
    rows = visits([3, 3, 2])
    for row, name in zip(rows, [one, other] * 3, strict=False):
        row["person"] = name
    with pytest.raises(SartorError, match=r"1 of 3 holders .* may be one person") as refused:
        read(rows)
    assert one not in str(refused.value)


def test_spaces_around_a_name_do_not_make_another_holder(read):
    rows = visits([2, 1])
    rows[1]["person"] = " key0 "
    assert read(rows).holders == ("key0", "key1")


# --- what they allow ---


@pytest.mark.parametrize(
    ("column", "values", "expected"),
    [
        ("level", ["open", "strict", "open", "balanced"], [1.0, 2.0]),
        ("level", ["3", "1.5", "3.0", "2"], [1.5, 2.0]),
        ("level", ["inf", "4", "inf", "inf"], [4.0, np.inf]),
    ],
)
def test_budgets_that_differ_within_a_holder_are_refused_or_the_strictest_holds(read, column, values, expected):
    rows = [row | {"level": value} for row, value in zip(visits([3, 1]), values, strict=True)]
    given = {"budget_column": "level", **({"policy": POLICY} if values[0] == "open" else {"delta": 1e-5})}
    with pytest.raises(InvalidBudget, match=r"1 of 2 holders have records with different budgets.*--strictest"):
        read(rows, **given)
    data = read(rows, strictest=True, **given)
    assert data.budgets.epsilon.tolist() == expected
    assert data.budgets.names == data.holders == ("key0", "key1")


def test_one_budget_in_two_formats_is_one_budget(read):
    rows = [row | {"level": value} for row, value in zip(visits([3, 1]), ["2", "2.0", "+2", "3"], strict=True)]
    assert read(rows, budget_column="level", delta=1e-5).budgets.epsilon.tolist() == [2, 3]


@pytest.mark.parametrize(("value", "words"), [("", "a number in every row"), ("0", "1 of 2 holders cannot be used"), ("x", "a number")])
def test_a_budget_that_cannot_be_used_counts_holders_and_not_their_rows(read, value, words):
    rows = [row | {"level": value if row["person"] == "key0" else "2"} for row in visits([7, 2])]
    with pytest.raises(SartorError, match=words) as refused:
        read(rows, budget_column="level", delta=1e-5, strictest=True)
    assert "7" not in str(refused.value)


def test_a_level_that_there_is_not_counts_holders_and_not_their_rows(read):
    rows = [row | {"level": "none" if row["person"] == "key0" else "open"} for row in visits([7, 2])]
    with pytest.raises(InvalidBudget, match="1 of 2 holders chose a level"):
        read(rows, budget_column="level", policy=POLICY)


def test_budgets_of_a_file_are_found_by_the_holder(read):
    allowed = Budgets([3.0, 1.0, 2.0], delta=1e-5, holders=["key2", "key0", "key1"])
    rows = visits([2, 3, 1])
    assert read(rows, budgets=allowed).budgets == Budgets([1.0, 2.0, 3.0], delta=1e-5, holders=["key0", "key1", "key2"])
    with pytest.raises(InvalidBudget, match="1 of 4 holders have no budget"):
        read(visits([2, 3, 1, 5]), budgets=allowed)
    with pytest.raises(InvalidBudget, match="1 budgets are for holders who are not among the 2"):
        read(visits([2, 3]), budgets=allowed)


def test_budgets_of_a_file_follow_their_holders_through_the_split(read):
    names = [f"key{i}" for i in range(15)]
    data = read(visits([2] * 15), budgets=Budgets(np.arange(15) + 1.0, delta=1e-5, holders=names[::-1]), test_share=0.4)
    assert len(data.holders) == 9
    assert data.budgets.epsilon.tolist() == [15 - int(name[3:]) for name in data.holders]


# --- features hold neither names nor what people allow ---


@pytest.mark.parametrize("copy", [lambda row: row["person"], lambda row: row["person"].upper()], ids=["same", "other case"])
def test_a_copy_of_the_name_is_no_feature(read, copy):
    rows = visits([2] * 8, copied=copy)
    with pytest.raises(SartorError, match='"copied" is a copy of "person"'):
        read(rows, features=["age", "copied"])


def test_a_copy_of_a_number_that_names_the_holder_is_no_feature(read):
    rows = visits([2] * 8, person=lambda row: 1000 + row["age"], copied=lambda row: f"{1000 + row['age']}.0")
    with pytest.raises(SartorError, match='"copied" is a copy of "person"'):
        read(rows, features=["age", "copied"])
    assert read(rows, features=None, drop=["copied", "level"]).shape == (2,)


@pytest.mark.parametrize(
    "copy",
    [lambda row: row["level"], lambda row: LEVELS.index(row["level"]) + 1, lambda row: row["level"][0] + str(row["visit"] % 2)],
    ids=["levels", "epsilons", "two words for each"],
)
@pytest.mark.parametrize("source", ["column", "file"])
def test_what_people_allow_is_no_feature_of_their_rows(read, copy, source):
    rows = visits([1 + i % 4 for i in range(90)], tier=copy)
    allowed = Budgets([i % 3 + 1.0 for i in range(90)], delta=1e-5, holders=[f"key{i}" for i in range(90)])
    given = {"budget_column": "level", "policy": POLICY} if source == "column" else {"budgets": allowed}
    with pytest.raises(SartorError, match=r'the column "tier" (holds budgets|is a copy)'):
        read(rows, features=["age", "tier"], **given)


def test_what_rows_say_is_no_feature_even_where_the_strictest_holds(read):
    said = [["1", "2", "3"][i] for i in np.random.default_rng(0).integers(3, size=200)]
    rows = [row | {"level": value, "tier": "abc"[int(value) - 1]} for row, value in zip(visits([4] * 50), said, strict=True)]
    with pytest.raises(SartorError, match='the column "tier" holds budgets'):
        read(rows, features=["age", "tier"], budget_column="level", delta=1e-5, strictest=True)


def test_rows_of_few_people_are_no_evidence_that_a_column_tells_budgets():
    """Where three people have three budgets, everything that stays the same for a person tells theirs, by chance."""
    owners = Ownership(np.repeat([0, 1, 2], 60), 3)
    towns, allowed = {"town": list("a" * 60 + "b" * 60 + "c" * 60)}, Budgets(np.repeat([1.0, 2.0, 3.0], 60), delta=1e-5)
    refuse_copies(towns, ["town"], {}, allowed, owners)
    with pytest.raises(SartorError, match='"town"'):  # as rows of 180 people they are
        refuse_copies(towns, ["town"], {}, allowed)


def test_somebody_with_many_rows_does_not_hide_that_a_column_tells_budgets():
    """It tells everybody's but one person's: their two thousand rows are one holder of two hundred."""
    owners = Ownership(np.repeat(np.arange(200), [2_000, *[1] * 199]), 200)
    groups = np.arange(200) % 2
    told = np.where(np.arange(200) == 0, 1 - groups, groups)
    column, allowed = {"x": [str(value) for value in told[owners.of_record]]}, Budgets(groups[owners.of_record] + 1.0, delta=1e-5)
    with pytest.raises(SartorError, match='"x" holds budgets'):
        refuse_copies(column, ["x"], {}, allowed, owners)
    refuse_copies(column, ["x"], {}, allowed)


# --- test rows are of others ---


def test_test_rows_of_a_trained_holder_are_refused(read, tmp_path):
    others = [row | {"person": f"other{i}", "age": 90} for i, row in enumerate(visits([1] * 6))]
    public = write(tmp_path / "public.csv", others)
    assert len(read(visits([3, 1]), test=public).test) == 6
    with pytest.raises(SartorError, match="1 of 6 test rows are of holders"):
        read(visits([3, 1]), test=write(public, [others[0] | {"person": "KEY0 "}, *others[1:]]))
    for name in ("key0", "key1"):  # also of the one who is held out
        with pytest.raises(SartorError, match="1 of 6 test rows are of holders"):
            read(visits([3, 1]), test=write(public, [others[0] | {"person": name}, *others[1:]]), test_share=0.5)


def test_one_row_of_each_trained_person_is_refused_although_their_rows_repeat():
    """Ten equal rows of a person look like strangers who agree, unless it is known whose they are."""
    inputs, labels = np.random.default_rng(0).normal(size=(100, 3)).astype(np.float32), np.arange(100) % 2
    private, test = dataset(np.repeat(inputs, 10, 0), np.repeat(labels, 10)), dataset(inputs, labels)
    with pytest.raises(SartorError, match="100 of 100 test rows are rows of the private data"):
        refuse_trained((private,), test, np.repeat(np.arange(100), 10))
    refuse_trained((private,), dataset(inputs + 9, labels), np.repeat(np.arange(100), 10))


@pytest.mark.parametrize("share", [0.0, 0.3])
def test_a_public_table_of_one_row_of_each_person_is_refused_although_their_rows_repeat(read, tmp_path, share):
    """Whose rows they are is told to the comparison, of those who are held out too."""
    public = [{"age": i, "visit": 7 * i % 100, "paid": "yes" if i % 2 else "no"} for i in range(100)]
    private = 10 * [{"person": f"key{i}", **row} for i, row in enumerate(public)]
    others = [{**row, "age": row["age"] + 0.5} for row in public[1:]]
    assert len(read(private, test=write(tmp_path / "others.csv", others), test_share=share).test) == 99
    with pytest.raises(SartorError, match="100 of 100 test rows are rows of the private data"):
        read(private, test=write(tmp_path / "public.csv", public), test_share=share)


# --- arrays ---


def arrays(folder, **more):
    draw = np.random.default_rng(0)
    known = {"x_train": draw.normal(size=(8, 2)), "y_train": np.arange(8) % 2, "x_test": draw.normal(size=(3, 2)), "y_test": [0, 1, 0]}
    np.savez(folder / "arrays.npz", **known | more)
    return folder / "arrays.npz"


HOLDERS = ["b", "a", "b", "c", "c", "a", "b", "d"]


@pytest.mark.parametrize("names", [HOLDERS, [ord(name) for name in HOLDERS]], ids=["texts", "numbers"])
def test_arrays_may_say_whose_their_rows_are(tmp_path, names):
    epsilon = [1.0, 2.0, 1.0, 3.0, 3.0, 2.0, 1.0, 4.0]
    data = read_arrays(arrays(tmp_path, holders=np.array(names), epsilon=epsilon), delta=1e-5)
    assert data.ownership == Ownership([0, 1, 0, 2, 2, 1, 0, 3], 4)
    assert data.holders == data.budgets.names == tuple(str(name) for name in dict.fromkeys(names))
    assert data.budgets.epsilon.tolist() == [1, 2, 3, 4]
    assert data.one_holder == 'all rows that name them in "holders"'


def test_arrays_with_one_row_for_each_holder_are_as_without_several(tmp_path):
    data = read_arrays(arrays(tmp_path, holders=np.arange(8) + 5, epsilon=np.arange(8) + 1.0, delta=1e-5))
    assert (data.ownership, data.one_holder, data.people) == (None, "one training row", 8)
    assert data.budgets == Budgets(np.arange(8) + 1.0, delta=1e-5, holders=[str(i + 5) for i in range(8)])


def test_arrays_whose_rows_allow_different_things_need_the_strictest(tmp_path):
    path = arrays(tmp_path, holders=np.array(HOLDERS), epsilon=np.arange(8) + 1.0, delta=1e-5)
    with pytest.raises(InvalidBudget, match="3 of 4 holders have records with different budgets"):
        read_arrays(path)
    assert read_arrays(path, strictest=True).budgets.epsilon.tolist() == [1, 2, 4, 8]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"holders": np.array(HOLDERS[:7])}, "each of the 8 training rows"),
        ({"holders": np.arange(8.0)}, "a text or a whole number"),
        ({"holders": np.array([*HOLDERS[:7], " "])}, '1 of 8 rows have no holder in "holders"'),
        ({"holders": np.array([*HOLDERS[:7], "A"])}, "may be one person"),
        ({"holders": np.array(HOLDERS), "epsilon": np.ones(4), "delta": 1e-5}, "4 budgets for 8 training rows"),
        ({"holders": np.arange(8) // 2, "x_train": np.column_stack([np.arange(8) // 2, np.zeros(8)])}, "the holders' numbers"),
    ],
)
def test_arrays_that_do_not_say_it_well_are_refused(tmp_path, more, words):
    with pytest.raises(SartorError, match=words):
        read_arrays(arrays(tmp_path, **more))


def test_public_arrays_of_one_row_of_each_person_are_refused_although_their_rows_repeat(tmp_path):
    inputs, labels = np.random.default_rng(0).normal(size=(100, 3)), np.arange(100) % 2
    private = {"x_train": np.tile(inputs, (10, 1)), "y_train": np.tile(labels, 10), "holders": np.arange(1000) % 100 + 7}
    assert len(read_arrays(arrays(tmp_path, **private, x_test=inputs + 9, y_test=labels)).test) == 100
    with pytest.raises(SartorError, match="100 of 100 test rows are rows of the private data"):
        read_arrays(arrays(tmp_path, **private, x_test=inputs, y_test=labels))


def test_budgets_in_the_arrays_are_no_feature_where_the_strictest_holds(tmp_path):
    names, epsilon = np.arange(8) // 2, np.array([1.0, 1, 4, 2, 3, 3, 5, 1])
    strictest = np.array([1.0, 1, 2, 2, 3, 3, 1, 1])
    for feature in (epsilon, strictest):
        path = arrays(tmp_path, holders=names, epsilon=epsilon, delta=1e-5, x_train=np.column_stack([feature, np.zeros(8)]))
        with pytest.raises(SartorError, match="equals the holders' budgets"):
            read_arrays(path, strictest=True)


# --- the value itself ---


def test_people_show_nobodys_name():
    assert not re.search("ann|bob", repr(People.of_names(["ann", "bob", "ann"], "the table")))


def test_data_that_do_not_fit_their_ownership_are_refused():
    rows = torch.utils.data.TensorDataset(torch.zeros(4, 2), torch.zeros(4, dtype=torch.int64))
    fitting = {"train": rows, "test": rows, "classes": 2, "shape": (2,)}
    with pytest.raises(SartorError, match="4 training rows, but the ownership is of 3 records"):
        Data("d", **fitting, ownership=Ownership([0, 0, 1], 2))
    with pytest.raises(SartorError, match="2 holders but 4 budgets; give one for each holder"):
        Data("d", **fitting, ownership=Ownership([0, 0, 1, 1], 2), budgets=Budgets([1.0] * 4, delta=1e-5))
