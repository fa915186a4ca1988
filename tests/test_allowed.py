"""What people allow, read in one way for every command: shares, a file by name or in order, a policy, and never two at once."""

import pytest

from sartor import Budgets
from sartor.allowed import Allowed
from sartor.errors import SartorError

USUAL = Allowed(epsilon="1,2,3", share="0.34,0.43,0.23", delta="1e-5")


@pytest.fixture
def people(tmp_path):
    path = tmp_path / "people.csv"
    path.write_text("holder,epsilon,delta\nb,2,\na,1,1e-6\nc,4,\n")
    return str(path)


def test_shares_are_of_as_many_holders_as_there_are():
    assert USUAL.budgets(100).groups.holders.tolist() == USUAL.budgets([str(i) for i in range(100)]).groups.holders.tolist()
    drawn = Allowed(epsilon="1,2", share="0.25,0.75", delta="1e-5,1e-6", seed=3, reserve=0.1).budgets(8)
    assert drawn == Budgets.from_shares([1, 2], [0.25, 0.75], holders=8, delta=[1e-5, 1e-6], seed=3, reserve=0.1)


def test_one_epsilon_is_everybodys():
    assert Allowed(epsilon="2", delta="1e-5").budgets(5).epsilon.tolist() == [2] * 5


def test_a_file_comes_in_its_own_order_or_by_name(people):
    allowed = Allowed(file=people, delta="1e-5")
    assert allowed.budgets().names == allowed.budgets(3).names == ("b", "a", "c")
    named = allowed.budgets(["a", "b", "c"])
    assert (named.epsilon.tolist(), named.delta.tolist()) == ([1, 2, 4], [1e-6, 1e-5, 1e-5])
    for holders in (2, 4):
        with pytest.raises(SartorError, match=f"3 rows for {holders} holders"):
            allowed.budgets(holders)


def test_levels_are_numbers_by_the_policy(tmp_path):
    (tmp_path / "levels.csv").write_text("holder,level\na,open\nb,strict\n")
    (tmp_path / "policy.toml").write_text("delta = 1e-5\n[levels]\nstrict = 1\nopen = 4\n")
    found = Allowed(file=str(tmp_path / "levels.csv"), policy=str(tmp_path / "policy.toml"), reserve=0.5).budgets()
    assert (found.epsilon.tolist(), found.reserve) == ([4, 1], 0.5)
    assert Allowed(column="consent", policy=str(tmp_path / "policy.toml")).levels().levels["open"] == (4, 1e-5)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"epsilon": "1", "file": "b.csv"}, "--epsilon and --budgets both set"),
        ({"file": "b.csv", "column": "consent"}, "--budgets and --budget-column both set"),
        ({"share": "1"}, "--share goes with --epsilon"),
        ({"share": "1", "file": "b.csv"}, "--share goes with --epsilon"),
        ({"epsilon": "1", "seed": -1}, "a seed must be"),
        ({"epsilon": "1", "delta": "1e-5", "policy": "p.toml"}, "--policy needs --budgets"),
        ({"epsilon": "1,2", "delta": "1e-5"}, "say with --share"),
        ({"epsilon": "1,2", "share": "0.5,0.5", "delta": "1e-5,1e-5,1e-5"}, "2 epsilons but 3 deltas"),
        ({"epsilon": "1"}, "--epsilon needs --holders and --delta"),
        ({"file": "b.csv", "delta": "1e-5,1e-6"}, "with --budgets, --delta is one number"),
        ({}, "give either --epsilon"),
    ],
)
def test_what_contradicts_itself_is_refused_with_the_options_by_name(said, words):
    with pytest.raises(SartorError, match=words):
        Allowed(**said).budgets(10)


def test_the_usual_stands_for_what_is_not_said_and_for_nothing_else():
    assert Allowed(seed=1).or_else(USUAL) == Allowed(epsilon="1,2,3", share="0.34,0.43,0.23", delta="1e-5", seed=1)
    assert Allowed(epsilon="5").or_else(USUAL) == Allowed(epsilon="5", delta="1e-5")
    assert Allowed(epsilon="5", delta="1e-3").or_else(USUAL).delta == "1e-3"
    assert Allowed(file="b.csv").or_else(USUAL) == Allowed(file="b.csv")  # a file's rows have deltas of their own


def test_several_deltas_are_for_shares_and_one_is_for_rows_without_their_own():
    assert Allowed(column="consent", delta="1e-5").delta_for_all() == 1e-5
    assert Allowed(epsilon="1,2", share="0.5,0.5", delta="1e-5,1e-6").delta_for_all() is None
    with pytest.raises(SartorError, match="with --budget-column, --delta is one number"):
        Allowed(column="consent", delta="1e-5,1e-6").delta_for_all()
    assert Allowed(delta="1e-4").delta_for_all() == 1e-4


def test_nothing_that_is_printed_of_it_gives_a_budget():
    assert "0.731" not in repr(Allowed(epsilon="0.731", share="0.01", delta="0.000731"))
