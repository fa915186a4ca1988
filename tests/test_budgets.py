"""Budgets: who allows what, by key and never by position; every bad budget is one clear sentence about nobody in particular."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sartor
from sartor import Budgets, InvalidBudget, Policy
from sartor.budgets import exact_counts

NAME, VALUE = "Ottilie", "3.1415926"
LEVELS = (0.5, 1.0, 2.0, 8.0, math.inf)
DELTAS = (1e-6, 1e-5, 1e-4)

levels = st.sampled_from(LEVELS)
pairs = st.lists(st.tuples(levels, st.sampled_from(DELTAS)), min_size=1, max_size=60)


def budgets_of(own, **options):
    return Budgets([epsilon for epsilon, _ in own], delta=[delta for _, delta in own], **options)


def everything_said(error):
    """The message and those of the errors behind it, which a traceback prints too."""
    said = []
    while error is not None:
        said.append(str(error))
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return " | ".join(said)


def is_one_sentence_about_nobody(error):
    message = str(error)
    said = everything_said(error)
    return message.endswith(".") and "\n" not in message and ". " not in message and NAME not in said and "3.14" not in said


@pytest.fixture
def policy():
    return Policy({"strict": 1, "balanced": {"epsilon": 2, "delta": 1e-6}, "open": 3.5, "public": math.inf}, delta=1e-5)


@pytest.fixture
def written(tmp_path):
    def write(content, name="budgets.csv"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


# --- one budget per holder ---


def test_every_holder_keeps_their_own_budget():
    budgets = Budgets([3, 1, math.inf, 1], delta=[1e-5, 1e-6, 1e-5, 1e-7])
    assert budgets.epsilon.tolist() == [3.0, 1.0, math.inf, 1.0]
    assert budgets.delta.tolist() == [1e-5, 1e-6, 1e-5, 1e-7]
    assert len(budgets) == 4
    assert budgets.reserve == 0


def test_one_delta_serves_everybody():
    assert Budgets([3, 1, 2], delta=1e-5).delta.tolist() == [1e-5] * 3


def test_budgets_cannot_be_changed_afterwards():
    given_by_caller = np.array([1.0, 2.0])
    budgets = Budgets(given_by_caller, delta=1e-5)
    given_by_caller[0] = 100.0
    assert budgets.epsilon.tolist() == [1.0, 2.0]
    with pytest.raises(ValueError, match="read-only"):
        budgets.epsilon[0] = 100.0
    with pytest.raises(ValueError, match="read-only"):
        budgets.delta[0] = 0.5


def test_equal_budgets_are_equal_and_any_difference_counts():
    one = Budgets([1, 2], delta=1e-5)
    assert one == Budgets(np.array([1.0, 2.0]), delta=[1e-5, 1e-5])
    assert one != Budgets([2, 1], delta=1e-5)
    assert one != Budgets([1, 2], delta=1e-6)
    assert one != one.with_reserve(0.1)
    assert one != Budgets([1, 2], delta=1e-5, holders=["a", "b"])


# --- constructors ---


def test_groups_become_holders_in_the_order_given():
    budgets = Budgets.from_groups([(3, 2), (1, 0), (2, 3)], delta=[1e-5, 1e-7, 1e-6])
    assert budgets.epsilon.tolist() == [3, 3, 2, 2, 2]
    assert budgets.delta.tolist() == [1e-5, 1e-5, 1e-6, 1e-6, 1e-6]


def test_shares_of_the_paper_are_exact_counts():
    budgets = Budgets.from_shares([1, 2, 3], [0.34, 0.43, 0.23], holders=60_000, delta=1e-5, seed=3)
    assert Counter(budgets.epsilon.tolist()) == {1.0: 20_400, 2.0: 25_800, 3.0: 13_800}


def test_shares_carry_a_delta_per_group():
    budgets = Budgets.from_shares([3, 1], [0.25, 0.75], holders=40, delta=[1e-4, 1e-6], seed=3)
    assert Counter(zip(budgets.epsilon.tolist(), budgets.delta.tolist(), strict=True)) == {(3.0, 1e-4): 10, (1.0, 1e-6): 30}


@settings(deadline=None)
@given(weights=st.lists(st.integers(0, 50), min_size=1, max_size=8).filter(any), holders=st.integers(1, 5_000))
def test_shares_are_rounded_by_largest_remainder(weights, holders):
    share = np.array(weights) / sum(weights)
    counts = exact_counts(share.tolist(), holders)
    exact = share * holders
    assert counts.sum() == holders
    assert np.all(np.abs(counts - exact) < 1)
    up, down = counts > exact + 1e-6, counts < exact - 1e-6
    remainder = exact - np.floor(exact + 1e-6)
    if up.any() and down.any():
        assert remainder[up].min() >= remainder[down].max() - 1e-6


def test_equal_remainders_go_to_the_earlier_share():
    assert exact_counts([0.5, 0.25, 0.25], 2).tolist() == [1, 1, 0]


@pytest.mark.parametrize("share", [[34, 43, 23], [0.34, 0.43, 0.23], [0.3395, 0.4305, 0.2305]])
def test_shares_may_be_percent_and_rounded(share):
    assert exact_counts(share, 100).tolist() == [34, 43, 23]


def test_a_seed_decides_who_gets_which_share_and_nothing_else():
    def drawn(seed):
        return Budgets.from_shares([1, 2], [0.5, 0.5], holders=200, delta=1e-5, seed=seed)

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)
    assert drawn(None) != drawn(None)
    assert sorted(drawn(1).epsilon) == sorted(drawn(2).epsilon)
    assert sorted(drawn(1).epsilon) != drawn(1).epsilon.tolist()


def test_a_policy_maps_each_choice_to_its_level(policy):
    budgets = Budgets.from_policy(policy, ["open", "strict", "public", "balanced", "strict"], holders=list("abcde"), reserve=0.1)
    assert budgets.epsilon.tolist() == [3.5, 1, math.inf, 2, 1]
    assert budgets.delta.tolist() == [1e-5, 1e-5, 1e-5, 1e-6, 1e-5]
    assert budgets.names == tuple("abcde")
    assert budgets.reserve == 0.1


def test_a_policy_is_read_from_toml(written, policy):
    content = 'delta = 1e-5\n[levels]\nstrict = 1\nbalanced = {epsilon = 2, delta = 1e-6}\nopen = 3.5\n"public" = inf\n'
    assert Policy.from_toml(written(content, "policy.toml")).levels == policy.levels


def test_a_csv_gives_one_budget_per_row(written):
    path = written(f"holder,epsilon,delta\n{NAME},{VALUE},1e-6\nben,inf,\ncarl, 0.5 ,1e-7\n")
    budgets = Budgets.from_csv(path, delta=1e-5, reserve=0.2)
    assert budgets.names == (NAME, "ben", "carl")
    assert budgets.epsilon.tolist() == [3.1415926, math.inf, 0.5]
    assert budgets.delta.tolist() == [1e-6, 1e-5, 1e-7]
    assert budgets.reserve == 0.2


def test_a_csv_of_levels_is_read_with_its_policy(written, policy):
    budgets = Budgets.from_csv(written("holder,level\nana,open\nben,balanced\n"), policy=policy)
    assert budgets == Budgets([3.5, 2], delta=[1e-5, 1e-6], holders=["ana", "ben"])


def test_a_csv_may_have_its_columns_in_any_order_and_others_beside_them(written):
    path = written("﻿delta, city ,epsilon,holder\r\n1e-5,Ulm,2,ana\r\n1e-6,Bonn,3,ben\r\n".encode())
    assert Budgets.from_csv(path) == Budgets([2, 3], delta=[1e-5, 1e-6], holders=["ana", "ben"])


@settings(deadline=None)
@given(holders=pairs, data=st.data())
def test_budgets_follow_names_into_any_order(holders, data):
    names = [f"holder {i}" for i in range(len(holders))]
    budgets = budgets_of(holders, holders=names, reserve=0.25)
    wanted = data.draw(st.permutations(names))
    ordered = budgets.ordered_as(wanted)
    own = dict(zip(names, holders, strict=True))
    assert list(zip(ordered.epsilon.tolist(), ordered.delta.tolist(), strict=True)) == [own[name] for name in wanted]
    assert ordered.names == tuple(wanted)
    assert ordered.reserve == 0.25


def test_a_csv_comes_back_in_the_order_asked_for(written):
    path = written("holder,epsilon\nana,1\nben,2\ncarl,3\n")
    assert Budgets.from_csv(path, delta=1e-5, holders=["carl", "ana", "ben"]).epsilon.tolist() == [3, 1, 2]


# --- groups ---


@settings(deadline=None)
@given(holders=pairs)
def test_groups_are_the_distinct_budgets_strictest_first(holders):
    groups = budgets_of(holders).groups
    found = list(zip(groups.epsilon.tolist(), groups.delta.tolist(), strict=True))
    assert found == sorted(set(holders))
    assert dict(zip(found, groups.holders.tolist(), strict=True)) == Counter(holders)
    assert len(groups) == len(set(holders))


@settings(deadline=None)
@given(holders=pairs, data=st.data())
def test_permuting_holders_permutes_membership_and_nothing_else(holders, data):
    order = data.draw(st.permutations(range(len(holders))))
    before = budgets_of(holders).groups
    after = budgets_of([holders[i] for i in order]).groups
    for column in ("epsilon", "delta", "holders"):
        assert getattr(after, column).tolist() == getattr(before, column).tolist()
    assert after.of_holder.tolist() == before.of_holder[order].tolist()


@settings(deadline=None)
@given(holders=pairs)
def test_each_holder_is_in_the_group_of_their_own_budget(holders):
    budgets = budgets_of(holders)
    groups = budgets.groups
    assert groups.epsilon[groups.of_holder].tolist() == budgets.epsilon.tolist()
    assert groups.delta[groups.of_holder].tolist() == budgets.delta.tolist()


def test_equal_epsilon_with_different_delta_makes_two_groups():
    groups = Budgets([2, 2, 2], delta=[1e-5, 1e-6, 1e-5]).groups
    assert groups.delta.tolist() == [1e-6, 1e-5]
    assert groups.of_holder.tolist() == [1, 0, 1]


def test_there_may_be_as_many_groups_as_holders():
    epsilon = np.random.default_rng(5).permutation(np.linspace(1, 2, 60_000))
    groups = Budgets(epsilon, delta=1e-5).groups
    assert len(groups) == 60_000
    assert set(groups.holders.tolist()) == {1}
    assert np.array_equal(groups.epsilon[groups.of_holder], epsilon)


# --- reserve ---


def test_a_reserve_can_be_set_aside_at_any_time():
    budgets = Budgets([1, 2], delta=1e-5, holders=["ana", "ben"])
    kept = budgets.with_reserve(0.2)
    assert kept == Budgets([1, 2], delta=1e-5, holders=["ana", "ben"], reserve=0.2)
    assert Budgets.from_groups([(1, 5)], delta=1e-5, reserve=0.2).reserve == 0.2
    assert Budgets.from_shares([1], [1], holders=5, delta=1e-5, reserve=0.2).reserve == 0.2


def test_plans_leave_the_reserve_unspent():
    budgets = Budgets.from_groups([(1, 50), (2, 50)], delta=1e-5, reserve=0.25)
    plan = sartor.plan(budgets, "scale", steps=100, batch=10, accountant="rdp")
    assert np.all(plan.spent <= 0.75 * plan.epsilon)
    assert np.all(plan.spent > 0.74 * plan.epsilon)


@pytest.mark.parametrize("reserve", [-0.1, 1.0, 2.0, math.nan])
def test_a_reserve_is_a_share_below_everything(reserve):
    with pytest.raises(InvalidBudget, match="reserve") as refused:
        Budgets([1, 2], delta=1e-5, reserve=reserve)
    assert is_one_sentence_about_nobody(refused.value)


# --- deniability ---


@settings(deadline=None)
@given(holders=pairs, seed=st.none() | st.integers(0, 1_000))
def test_a_deniable_budget_is_never_above_the_holders_own(holders, seed):
    budgets = budgets_of(holders, holders=[f"holder {i}" for i in range(len(holders))], reserve=0.1)
    drawn = budgets.deniable(seed=seed)
    assert np.all(drawn.epsilon <= budgets.epsilon)
    assert set(drawn.epsilon.tolist()) <= set(budgets.epsilon.tolist())
    assert np.array_equal(drawn.delta, budgets.delta)
    assert (drawn.names, drawn.reserve) == (budgets.names, budgets.reserve)


@pytest.mark.parametrize("seed", [None, 11])
def test_a_deniable_budget_is_uniform_over_the_levels_at_or_below(seed):
    each = 30_000
    budgets = Budgets(np.repeat(LEVELS, each), delta=1e-5)
    drawn = budgets.deniable(seed=seed).epsilon.reshape(len(LEVELS), each)
    for rank, row in enumerate(drawn):
        share = 1 / (rank + 1)
        counts = np.array([(row == level).sum() for level in LEVELS])
        assert not counts[rank + 1 :].any()
        assert np.all(np.abs(counts[: rank + 1] - each * share) <= 7 * math.sqrt(each * share * (1 - share)))


def test_deniable_draws_are_independent_between_holders():
    drawn = Budgets(np.repeat([1.0, 2.0], [2, 40_000]), delta=1e-5).deniable().epsilon[2:]
    high = drawn == 2
    both = np.mean(high[:-1] & high[1:])
    assert abs(both - 0.25) < 0.02


def test_draws_without_a_seed_differ_and_with_one_do_not():
    budgets = Budgets.from_shares([1, 2, 3], [0.4, 0.3, 0.3], holders=1_000, delta=1e-5, seed=0)
    assert budgets.deniable() != budgets.deniable()
    assert budgets.deniable(seed=4) == budgets.deniable(seed=4)
    assert budgets.deniable(seed=4) != budgets.deniable(seed=5)


# --- what is refused ---


@pytest.mark.parametrize(
    ("epsilon", "delta", "reason"),
    [
        ([3.1415926, 0.0], 1e-5, "zero"),
        ([3.1415926, -1.0], 1e-5, "negative"),
        ([3.1415926, -math.inf], 1e-5, "negative"),
        ([3.1415926, math.nan], 1e-5, "not a number"),
        ([3.1415926, None], 1e-5, "not a number"),
        ([3.1415926, "3.1415926 or so"], 1e-5, "must be numbers"),
        ([3.1415926, [1, 2]], 1e-5, "must be numbers"),
        ([[3.1415926, 1.0]], 1e-5, "one dimension"),
        ([3.1415926, 1.0], 0.0, "delta must lie"),
        ([3.1415926, 1.0], 1.0, "delta must lie"),
        ([3.1415926, 1.0], -1e-5, "delta must lie"),
        ([3.1415926, 1.0], math.nan, "delta must lie"),
        ([3.1415926, 1.0], [1e-5, 1.5], "delta must lie"),
        ([3.1415926, 1.0], [1e-5, 1e-5, 1e-5], "2 epsilons but 3 deltas"),
        ([3.1415926, 1.0], "3.1415926%", "must be numbers"),
        ([], 1e-5, "no holders"),
    ],
)
def test_what_is_no_budget_is_refused_in_one_sentence(epsilon, delta, reason):
    with pytest.raises(InvalidBudget, match=reason) as refused:
        Budgets(epsilon, delta=delta)
    assert is_one_sentence_about_nobody(refused.value)


@settings(deadline=None)
@given(holders=pairs, bad=st.sampled_from([0.0, -2.0, math.nan]), where=st.integers(0, 100))
def test_one_bad_budget_anywhere_is_enough(holders, bad, where):
    epsilon = [e for e, _ in holders]
    epsilon[where % len(epsilon)] = bad
    with pytest.raises(InvalidBudget, match=f"1 of {len(epsilon)} holders"):
        Budgets(epsilon, delta=1e-5)


@pytest.mark.parametrize(
    ("names", "reason"),
    [([NAME, "ben", NAME], "more than once"), ([NAME, "ben"], "2 names for 3 holders"), ([NAME, " ", "carl"], "no holder")],
)
def test_every_holder_has_one_name(names, reason):
    with pytest.raises(InvalidBudget, match=reason) as refused:
        Budgets([3.1415926, 2, 1], delta=1e-5, holders=names)
    assert is_one_sentence_about_nobody(refused.value)


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        ([NAME, "ben", "carl"], "1 of 3 holders have no budget"),
        ([NAME], "1 budgets are for holders who are not among"),
        ([NAME, NAME], "more than once"),
    ],
)
def test_holders_and_budgets_must_match_one_to_one(wanted, reason):
    with pytest.raises(InvalidBudget, match=reason) as refused:
        Budgets([3.1415926, 2], delta=1e-5, holders=[NAME, "ben"]).ordered_as(wanted)
    assert is_one_sentence_about_nobody(refused.value)


def test_budgets_without_names_have_no_other_order():
    with pytest.raises(InvalidBudget, match="no names"):
        Budgets([1, 2], delta=1e-5).ordered_as(["ana", "ben"])


@pytest.mark.parametrize(
    ("groups", "delta", "reason"),
    [
        ([(1, -3)], 1e-5, "size"),
        ([(1, 2.5)], 1e-5, "size"),
        ([(1, math.nan)], 1e-5, "size"),
        ([(1, math.inf)], 1e-5, "size"),
        ([], 1e-5, "no holders"),
        ([(1, 0)], 1e-5, "no holders"),
        ([(0, 3)], 1e-5, "zero"),
        ([("much", 3)], 1e-5, "number"),
        ([(1, 3), (2, 3)], [1e-5, 1e-5, 1e-5], "delta"),
    ],
)
def test_groups_that_are_none_are_refused(groups, delta, reason):
    with pytest.raises(InvalidBudget, match=reason) as refused:
        Budgets.from_groups(groups, delta=delta)
    assert is_one_sentence_about_nobody(refused.value)


@pytest.mark.parametrize(
    ("epsilon", "share", "holders", "delta", "reason"),
    [
        ([1, 2], [0.5, 0.4], 10, 1e-5, "add up to 0.9"),
        ([1, 2], [0.5, 0.6], 10, 1e-5, "add up to 1.1"),
        ([1, 2], [60, 60], 10, 1e-5, "add up to 120"),
        ([1, 2], [1.5, -0.5], 10, 1e-5, "0 or more"),
        ([1, 2], [0.5, math.nan], 10, 1e-5, "0 or more"),
        ([1, 2], [0, 0], 10, 1e-5, "not all of them 0"),
        ([], [], 10, 1e-5, "shares"),
        ([1, 2, 3], [0.5, 0.5], 10, 1e-5, "3 epsilons but 2 shares"),
        ([1, 2], [0.5, 0.5], 0, 1e-5, "whole number from 1"),
        ([1, 2], [0.5, 0.5], -10, 1e-5, "whole number from 1"),
        ([1, 2], [0.5, 0.5], 2.5, 1e-5, "whole number"),
        ([1, 0], [0.5, 0.5], 10, 1e-5, "zero"),
        ([1, 2], [0.5, 0.5], 10, [1e-5, 1e-5, 1e-5], "delta"),
    ],
)
def test_shares_that_do_not_add_up_are_refused(epsilon, share, holders, delta, reason):
    with pytest.raises(InvalidBudget, match=reason) as refused:
        Budgets.from_shares(epsilon, share, holders=holders, delta=delta)
    assert is_one_sentence_about_nobody(refused.value)


@pytest.mark.parametrize(
    ("levels", "delta", "reason"),
    [
        ({}, 1e-5, "at least one level"),
        ({"strict": 1}, None, '"strict" has no delta'),
        ({"strict": {"delta": 1e-5}}, None, '"strict" has no epsilon'),
        ({"strict": 0}, 1e-5, '"strict" needs an epsilon above 0'),
        ({"strict": -1}, 1e-5, "above 0"),
        ({"strict": math.nan}, 1e-5, "above 0"),
        ({"strict": 1}, 1.0, "strictly between 0 and 1"),
        ({"strict": "much"}, 1e-5, "number"),
        ({"strict": 1}, "little", "number"),
    ],
)
def test_a_policy_of_bad_levels_is_refused(levels, delta, reason):
    with pytest.raises(InvalidBudget, match=reason) as refused:
        Policy(levels, delta=delta)
    assert is_one_sentence_about_nobody(refused.value)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "cannot be read"),
        (b"\xff\xfe", "not TOML"),
        ("levels: {strict: 1}", "not TOML"),
        ("delta = 1e-5\n", "no table"),
        ("delta = 1e-5\nlevels = 3\n", "no table"),
        ("delta = 1e-5\n[levels]\n", "at least one level"),
        ("[levels]\nstrict = 1\n", "no delta"),
        ('delta = 1e-5\n[levels]\nstrict = "much"\n', "number"),
    ],
)
def test_a_bad_policy_file_is_refused_in_one_sentence(written, tmp_path, content, reason):
    path = tmp_path / "missing.toml" if content is None else written(content, "policy.toml")
    with pytest.raises(InvalidBudget, match=reason) as refused:
        Policy.from_toml(path)
    assert is_one_sentence_about_nobody(refused.value)


def test_an_unknown_level_is_refused_without_saying_whose(policy):
    with pytest.raises(InvalidBudget, match="1 of 2 holders chose a level") as refused:
        Budgets.from_policy(policy, ["strict", "lax"], holders=["ben", NAME])
    assert is_one_sentence_about_nobody(refused.value)
    assert "balanced" in str(refused.value)


def test_a_population_of_nobody_is_refused(policy):
    with pytest.raises(InvalidBudget, match="no holders"):
        Budgets.from_policy(policy, [])


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (f"holder\n{NAME}\n", "needs the columns"),
        (f"epsilon,delta\n{VALUE},1e-5\n", "needs the columns"),
        (f"{NAME},{VALUE}\nben,2\n", "needs the columns"),
        (f"holder,epsilon,level\n{NAME},{VALUE},strict\n", "both an epsilon and a level"),
        (f"holder,epsilon\n{NAME},{VALUE}x\n", "line 2 has no number in the column epsilon"),
        (f"holder,epsilon\nben,1\n{NAME}\n", "line 3 has no number in the column epsilon"),
        (f"holder,epsilon,delta\n{NAME},{VALUE},{VALUE}x\n", "line 2 has no number in the column delta"),
        (f"holder,epsilon\n{NAME},{VALUE}\n\n\nben,\n", "line 5 has no number in the column epsilon"),
        ("", "needs the columns"),
        ("holder,epsilon\n", "no rows"),
        (f"holder,epsilon\n{NAME},{VALUE}\n{NAME},2\n", "1 holders appear more than once"),
        (f"holder,epsilon\n{NAME},{VALUE}\n,2\n", "1 rows have no holder"),
        (f"holder,epsilon\n{NAME},-{VALUE}\n", "negative"),
        (f"holder,epsilon\n{NAME},0\n", "zero"),
        (f"holder,epsilon\n{NAME},nan\n", "not a number"),
        (f"holder,epsilon,delta\n{NAME},1,{VALUE}\n", "delta must lie"),
        (f"holder,level\n{NAME},lax\n", "1 of 1 holders chose a level"),
        (f"holder,epsilon\n{NAME},\xff\n".encode("latin-1"), "not a CSV"),
    ],
)
def test_a_bad_csv_is_refused_in_one_sentence(written, policy, content, reason):
    with pytest.raises(InvalidBudget, match=reason) as refused:
        Budgets.from_csv(written(content), delta=1e-5, policy=policy)
    assert is_one_sentence_about_nobody(refused.value)


def test_a_csv_that_is_missing_or_unreadable_is_refused(tmp_path):
    for path in (tmp_path / "missing.csv", tmp_path):
        with pytest.raises(InvalidBudget, match="cannot be read") as refused:
            Budgets.from_csv(path, delta=1e-5)
        assert is_one_sentence_about_nobody(refused.value)


def test_a_csv_without_its_delta_or_its_policy_is_refused(written):
    with pytest.raises(InvalidBudget, match="rows without a delta") as refused:
        Budgets.from_csv(written(f"holder,epsilon,delta\nben,1,1e-5\n{NAME},{VALUE},\n"))
    assert is_one_sentence_about_nobody(refused.value)
    with pytest.raises(InvalidBudget, match="give the policy") as refused:
        Budgets.from_csv(written(f"holder,level\n{NAME},strict\n"), delta=1e-5)
    assert is_one_sentence_about_nobody(refused.value)


def test_a_csv_must_hold_exactly_the_holders_of_the_data(written):
    path = written(f"holder,epsilon\n{NAME},{VALUE}\nben,2\n")
    with pytest.raises(InvalidBudget, match="1 of 3 holders have no budget") as refused:
        Budgets.from_csv(path, delta=1e-5, holders=[NAME, "ben", "carl"])
    assert is_one_sentence_about_nobody(refused.value)
    with pytest.raises(InvalidBudget, match="1 budgets are for holders who are not among") as refused:
        Budgets.from_csv(path, delta=1e-5, holders=["ben"])
    assert is_one_sentence_about_nobody(refused.value)


# --- what is shown ---


def test_repr_shows_groups_and_never_a_holder():
    names = [NAME, *(f"holder {i}" for i in range(40))]
    shown = repr(Budgets([3.1415926] + [2.0] * 25 + [5.0] * 15, delta=1e-5, holders=names, reserve=0.2))
    assert "41 holders" in shown
    assert "15 at epsilon 5, delta 1e-05" in shown
    assert "26 at epsilon 1 to 5" in shown
    assert "20% of each kept in reserve" in shown
    assert NAME not in shown
    assert "3.14" not in shown


def test_repr_of_a_policy_shows_its_levels(policy):
    assert "balanced: epsilon 2, delta 1e-06" in repr(policy)


@pytest.mark.parametrize("skew", [-0.2, 0, 0.2])
def test_the_requirements_of_pdp_sgd_have_its_shape_and_everybody(skew):
    budgets = sartor.Budgets.from_skew(skew, holders=60_000, delta=1e-5, seed=3)
    groups = budgets.groups
    assert len(budgets) == 60_000
    np.testing.assert_allclose(groups.epsilon, np.linspace(0.5, 1.0, 20))
    scale = {-0.2: 2.098, 0: 0.0, 0.2: 1.554}[skew]
    shape = scale * np.exp(skew * groups.epsilon) + (-1.715 if skew else 1.0)
    np.testing.assert_allclose(groups.holders, 60_000 * shape / shape.sum(), atol=1)
    if skew:
        assert shape.sum() == pytest.approx(1.83, abs=0.02)  # as printed, it is not 1
    assert np.all(np.sign(np.diff(groups.holders)) == np.sign(skew))


def test_other_skews_are_none_of_the_papers():
    for wrong in ({"skew": 0.1}, {"groups": 1}, {"groups": 2.5}, {"holders": 10}):
        with pytest.raises(sartor.InvalidBudget):
            sartor.Budgets.from_skew(**{"skew": 0.2, "holders": 100, "delta": 1e-5, **wrong})
