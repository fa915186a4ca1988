"""Tables of one's own: features from public bounds, budgets that follow the rows, and messages that show no values."""

import csv
import gzip
import random
import sys
import traceback
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sartor import Budgets, InvalidBudget, Policy, SartorError
from sartor.data import HeldOut, PrivateScaling, read_schema, read_table

BOUNDS = {"age": (0, 100), "hours": (0, 50)}
CATEGORIES = {"sex": ["F", "M"]}
PUBLIC = {"bounds": BOUNDS, "categories": CATEGORIES, "classes": ["no", "yes"]}
POLICY = Policy({"strict": 1, "balanced": 2, "open": 3}, delta=1e-5)
LEVELS = ["strict", "balanced", "open"]


def people(count=40):
    """Rows in which everything follows from the number of the person, so that mixed-up rows show."""
    return [
        {
            "person": f"key{i}",
            "age": str(i),
            "sex": "FM"[i % 2],
            "hours": str(i / 2),
            "level": LEVELS[i % 3],
            "epsilon": str(i + 1),
            "paid": "yes" if i % 4 else "no",
        }
        for i in range(count)
    ]


def write(path, rows):
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


@pytest.fixture
def table(tmp_path):
    return write(tmp_path / "people.csv", people())


@pytest.fixture
def public(tmp_path):
    return write(tmp_path / "public.csv", [{k: row[k] for k in ("hours", "sex", "age", "paid")} for row in people(6)])


def check_rows(data):
    """Every training row has the features, the label, the key and the budget of one and the same person."""
    persons = np.rint(data.train.tensors[0][:, 0].numpy() * 100).astype(int)
    assert data.holders == tuple(f"key{i}" for i in persons)
    np.testing.assert_allclose(data.train.tensors[0][:, 1:3].numpy(), np.column_stack([persons % 2 == 0, persons % 2 == 1]))
    np.testing.assert_allclose(data.train.tensors[0][:, 3].numpy(), persons / 100, atol=1e-6)
    assert data.train.tensors[1].tolist() == [int(i % 4 > 0) for i in persons]
    return persons


def test_levels_and_keys_follow_the_rows_through_the_split(table):
    with pytest.warns(HeldOut):
        data = read_table(
            table, "paid", id_column="person", budget_column="level", policy=POLICY, drop=["epsilon"], test_share=0.2, **PUBLIC
        )
    persons = check_rows(data)
    assert (len(data.train), len(data.held_out), len(data.test)) == (32, 8, 0)
    assert data.budgets.epsilon.tolist() == [i % 3 + 1 for i in persons]
    assert data.budgets.names == data.holders
    tested = np.rint(data.held_out.tensors[0][:, 0].numpy() * 100).astype(int)
    assert sorted([*persons, *tested]) == list(range(40))


@given(seed=st.integers(0, 10**6), order=st.randoms(use_true_random=False), share=st.floats(0, 0.9))
def test_budgets_follow_the_rows_in_any_order_and_split(tmp_path_factory, seed, order, share):
    rows = people()
    order.shuffle(rows)
    path = write(tmp_path_factory.mktemp("tables") / "people.csv", rows)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HeldOut)
        data = read_table(
            path, "paid", id_column="person", budget_column="epsilon", delta=1e-6, drop=["level"], seed=seed, test_share=share, **PUBLIC
        )
    assert data.budgets == Budgets(check_rows(data) + 1.0, delta=1e-6, holders=data.holders)


def test_with_a_public_table_every_row_is_trained_on_and_nothing_warns(table, public):
    data = read_table(table, "paid", id_column="person", drop=["level", "epsilon"], test=public, **PUBLIC)
    assert check_rows(data).tolist() == list(range(40))
    assert len(data.test) == 6
    assert data.test.tensors[0].tolist() == data.train.tensors[0][:6].tolist()
    assert "taken to be public" in data.notes[0]


def test_held_out_rows_are_announced_as_unprotected(table):
    with pytest.warns(HeldOut, match="not protected"):
        data = read_table(table, "paid", features=["age"], bounds=BOUNDS, classes=["no", "yes"], test_share=0.2)
    assert "not protected" in data.notes[0]
    assert data.shape == (1,)


def held(table, seed):
    with pytest.warns(HeldOut):
        data = read_table(table, "paid", features=["age"], bounds=BOUNDS, classes=["no", "yes"], seed=seed, test_share=0.2)
    return data.held_out.tensors[0][:, 0].tolist()


def test_the_seed_decides_who_is_held_out(table):
    assert held(table, 1) == held(table, 1)
    assert held(table, 1) != held(table, 2)


def test_held_out_rows_lend_nothing_to_the_scale(tmp_path, table):
    tested = round(held(table, 0)[0] * 100)
    rows = people()
    rows[tested]["age"] = "1000"
    path = write(tmp_path / "outlier.csv", rows)
    with pytest.warns(HeldOut), pytest.warns(PrivateScaling):
        data = read_table(path, "paid", features=["age"], classes=["no", "yes"], test_share=0.2)
    assert data.train.tensors[0].max() == 1
    assert data.held_out.tensors[0].max() == 1


def test_without_a_share_everybody_is_trained_on(table):
    data = read_table(table, "paid", features=["age"], bounds=BOUNDS, classes=["no", "yes"])
    assert (len(data.train), len(data.test), data.held_out) == (40, 0, None)


def test_what_is_taken_from_private_rows_is_warned_of_by_column(table, public):
    with pytest.warns(PrivateScaling) as caught:
        data = read_table(table, "paid", features=["age", "sex", "hours"], bounds={"hours": (0, 50)}, test=public)
    message = str(caught[0].message)
    assert 'bounds of "age"; the categories of "sex"; the classes of "paid"' in message
    assert '"hours"' not in message
    assert data.train.tensors[0][:, 0].max() == 1
    assert data.train.tensors[0].shape == (40, 4)
    assert data.train.tensors[1][:2].tolist() == [0, 1]
    assert caught[0].filename == __file__


def test_a_row_alone_decides_its_features_when_everything_is_given(tmp_path, public):
    rows = people()
    arguments = {"features": ["age", "sex", "hours"], "test": public, **PUBLIC}
    before = read_table(write(tmp_path / "a.csv", rows), "paid", **arguments)
    rows[7].update(age="1e9", hours="?", sex="X", paid="no")
    after = read_table(write(tmp_path / "b.csv", rows), "paid", **arguments)
    same = (before.train.tensors[0] == after.train.tensors[0]).all(1)
    assert (~same).nonzero().ravel().tolist() == [7]
    assert after.train[7][0].tolist() == [1.0, 0.0, 0.0, 0.5]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"target": "payd"}, r'no column "payd"; it has "person", "age"'),
        ({"features": ["agge"]}, 'no column "agge"'),
        ({"bounds": {"agge": (0, 1)}}, 'no column "agge"'),
        ({"id_column": "id"}, 'no column "id"'),
        ({"features": ["age", "paid"]}, '"paid" cannot be features'),
        ({"features": ["age", "level"], "budget_column": "level", "policy": POLICY}, '"level" cannot be features'),
        ({"features": ["age", "age"]}, "each of them once"),
        ({"features": []}, "at least one column"),
        ({"id_column": "paid"}, "three different columns"),
        ({"bounds": {"age": (5, 5)}}, 'bounds of the column "age"'),
        ({"bounds": {"age": (0, float("inf"))}}, 'bounds of the column "age"'),
        ({"bounds": {"sex": (0, 1)}, "categories": {}}, r'40 of 40 rows have no number in the column "sex"'),
        ({"bounds": {"sex": (0, 1)}}, "both bounds and categories"),
        ({"categories": {"sex": ["Female", "Male"]}}, 'none of the categories given for the column "sex"'),
        ({"categories": {"sex": ["F", "F"]}}, "listed once each"),
        ({"classes": ["no"]}, 'none of the 1 classes in the column "paid"'),
        ({"target": "hours", "features": ["age"], "classes": None}, "measurements and not classes"),
        ({"budget_column": "level", "features": ["age"]}, "give the policy"),
        ({"budget_column": "epsilon", "features": ["age"]}, "need a delta"),
        ({"budget_column": "epsilon", "features": ["age"], "policy": POLICY}, "chose a level that the policy does not have"),
        ({"test_share": 1.0}, "test_share"),
        ({"test": "nowhere.csv"}, "no table nowhere.csv"),
    ],
)
def test_what_cannot_be_used_is_refused_with_the_column(table, public, arguments, words):
    given = {"target": "paid", "features": ["age", "sex", "hours"], "test": public, **PUBLIC, **arguments}
    with pytest.raises(SartorError, match=words):
        read_table(table, **given)


def test_missing_numbers_need_bounds(tmp_path, public):
    rows = people()
    rows[3]["age"] = "?"
    path = write(tmp_path / "gaps.csv", rows)
    with pytest.raises(SartorError, match=r'1 of 40 rows have no finite number in the column "age": give its bounds'):
        read_table(path, "paid", features=["age"], test=public, classes=["no", "yes"])
    data = read_table(path, "paid", features=["age"], test=public, classes=["no", "yes"], bounds=BOUNDS)
    assert data.train[3][0].tolist() == [0.5]


@pytest.mark.parametrize(
    ("column", "words"), [("person", "have no holder"), ("paid", "have no class"), ("epsilon", "a number in every row")]
)
def test_missing_holders_classes_and_budgets_are_counted(tmp_path, public, column, words):
    rows = people()
    rows[3][column] = ""
    path = write(tmp_path / "gaps.csv", rows)
    with pytest.raises(SartorError, match=words):
        read_table(
            path,
            "paid",
            id_column="person",
            budget_column="epsilon",
            delta=1e-5,
            features=["age"],
            test=public,
            bounds=BOUNDS,
            test_share=0,
        )


def test_free_text_is_not_a_category(tmp_path, table):
    rows = [{**row, "person": f"text {i}"} for i, row in enumerate(people(120))]
    with pytest.raises(SartorError, match='"person" has more than 100 different texts'):
        read_table(write(tmp_path / "many.csv", rows), "paid", features=["person"], test=table)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "no rows"),
        ("a,b\n", "no rows"),
        ("a,a\n1,2\n", "each by its own name"),
        ("a,\n1,2\n", "each by its own name"),
        ("a,b\n1,2\n1,planted,3\n", "line 3 of t.csv has 3 fields"),
        ("a,b\n1\n", "line 2 of t.csv has 1 fields"),
        (b"a,b\n1,\xff\n", "cannot be read as a CSV"),
    ],
)
def test_broken_tables_are_refused_by_line(tmp_path, content, words):
    path = tmp_path / "t.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(SartorError, match=words) as caught:
        read_table(path, "a")
    assert "planted" not in str(caught.value)


def test_compressed_tables_and_byte_order_marks(tmp_path, table, public):
    path = tmp_path / "people.csv.gz"
    path.write_bytes(gzip.compress(b"\xef\xbb\xbf" + table.read_bytes()))
    data = read_table(path, "paid", id_column="person", drop=["level", "epsilon"], test=public, **PUBLIC)
    check_rows(data)
    assert data.name == "people"


def test_planted_values_are_in_no_message(tmp_path):
    """A value that stands out in every column: no repr, warning or error may show it, nor a traceback's chain of causes."""
    rows = people()
    planted = {"person": "PLANTED-KEY", "age": "87.654321", "sex": "PLANTED-SEX", "level": "PLANTED-LEVEL", "epsilon": "6.54321"}
    rows[5].update(planted)
    path = write(tmp_path / "people.csv", rows)
    shown = []
    for arguments in (
        {"id_column": "person", "budget_column": "epsilon", "delta": 1e-5},
        {"id_column": "person", "budget_column": "level", "policy": POLICY},
        {"budget_column": "level"},
        {"bounds": {"sex": (0, 1)}},
        {"target": "sex", "classes": ["F", "M"]},
        {"features": ["age"], "target": "level", "classes": LEVELS},
    ):
        given = {"target": "paid", "test_share": 0, **arguments}
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                data = read_table(path, **given)
                shown += [repr(data), str(data), repr(data.budgets), *data.notes]
            except SartorError as error:
                shown += traceback.format_exception_only(error)
                shown += [str(cause) for cause in (error.__cause__, None if error.__suppress_context__ else error.__context__)]
        shown += [str(warning.message) for warning in caught]
    text = "\n".join(shown)
    assert len(shown) >= 8
    for value in planted.values():
        assert value not in text
    assert "PLANTED" not in text
    assert "87.65" not in text


SCHEMA = """
target = "paid"
classes = ["no", "yes"]
id_column = "person"
budget_column = "epsilon"
delta = 1e-6
drop = ["level"]

[columns.age]
bounds = [0, 100]

[columns.hours]
bounds = [0, 50]

[columns.sex]
categories = ["F", "M"]
"""


def test_a_schema_says_everything(tmp_path, table, public):
    (tmp_path / "schema.toml").write_text(SCHEMA)
    data = read_table(table, **read_schema(tmp_path / "schema.toml"), test=public)
    assert data.budgets.epsilon.tolist() == (check_rows(data) + 1.0).tolist()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("target = ", "not TOML"),
        ("colour = 1", 'an unknown key "colour"'),
        ("target = 5", "target must be a text"),
        ("delta = true", "delta must be a number"),
        ("drop = 'x'", "drop must be a list"),
        ("columns = 3", r"table \[columns.NAME\]"),
        ("[columns.age]\nbounds = [1]", "must be two numbers"),
        ("[columns.age]\nbounds = 'ab'", "must be two numbers"),
        ("[columns.age]\ncategories = 'ab'", "must be a list"),
        ("[columns.age]\nbound = [1, 2]", "either bounds or categories"),
        ("[columns.age]\nbounds = [1, 2]\ncategories = ['a']", "either bounds or categories"),
    ],
)
def test_a_schema_that_is_wrong_is_refused_with_the_key(tmp_path, text, words):
    (tmp_path / "schema.toml").write_text(text)
    with pytest.raises(SartorError, match=words):
        read_schema(tmp_path / "schema.toml")


def test_a_schema_that_is_not_there(tmp_path):
    with pytest.raises(SartorError, match="cannot be read"):
        read_schema(tmp_path / "schema.toml")


def test_parquet_without_its_library_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    (tmp_path / "people.parquet").write_bytes(b"")
    with pytest.raises(SartorError, match=r"sartor\[parquet\]"):
        read_table(tmp_path / "people.parquet", "paid")


def test_parquet_reads_like_csv(tmp_path, public):
    arrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    from pyarrow import parquet

    rows = [{**row, "age": int(row["age"]), "hours": float(row["hours"])} for row in people()]
    random.Random(3).shuffle(rows)
    parquet.write_table(arrow.Table.from_pylist(rows), tmp_path / "people.parquet")
    data = read_table(tmp_path / "people.parquet", "paid", id_column="person", drop=["level", "epsilon"], test=public, **PUBLIC)
    check_rows(data)


def test_a_budget_of_zero_is_refused_without_its_holder(tmp_path, public):
    rows = people()
    rows[5]["epsilon"] = "0"
    with pytest.raises(InvalidBudget, match="1 of 40 holders"):
        read_table(
            write(tmp_path / "people.csv", rows), "paid", budget_column="epsilon", delta=1e-5, features=["age"], test=public, **PUBLIC
        )
