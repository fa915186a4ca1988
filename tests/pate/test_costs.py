"""How costs add up and what a budget allows: the exact Gaussian, a second opinion, and the Rényi accountants above both."""

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.pld import pld_privacy_accountant
from dp_accounting.rdp import rdp_privacy_accountant
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

import sartor
from sartor.errors import SartorError
from sartor.pate.account import Accountant
from sartor.pate.build import plan
from sartor_testing import pate_reference as reference

ACCOUNTANTS = {"exact": Accountant(), "paper": Accountant.paper(), "fine": Accountant.fine()}
epsilons = st.floats(-3, 3).map(lambda power: 10.0**power)
deltas = st.floats(-12, -0.2).map(lambda power: 10.0**power)


@settings(max_examples=40)
@given(epsilons, deltas)
def test_the_exact_allowance_is_the_largest_that_keeps_the_budget(epsilon, delta):
    allowed = float(Accountant().allowance(epsilon, delta))
    assert reference.gaussian_delta(np.sqrt(allowed), epsilon) <= delta
    assert allowed == pytest.approx(reference.allowance(epsilon, delta), rel=1e-8)


@settings(max_examples=40)
@given(epsilons, deltas, st.sampled_from(sorted(ACCOUNTANTS)))
def test_no_accountant_allows_more_than_the_budget(epsilon, delta, name):
    allowed = float(ACCOUNTANTS[name].allowance(epsilon, delta))
    assert reference.gaussian_delta(np.sqrt(allowed), epsilon) <= delta * (1 + 1e-9)


@settings(max_examples=40)
@given(epsilons, deltas)
def test_the_spend_of_an_allowance_reads_back_within_the_budget(epsilon, delta):
    for name, accountant in ACCOUNTANTS.items():
        allowed = accountant.allowance(epsilon, delta)
        if allowed > 0:
            assert float(accountant.epsilon(allowed, delta)) <= epsilon, name


@settings(max_examples=40)
@given(st.floats(-4, 2).map(lambda power: 10.0**power), deltas)
def test_the_exact_epsilon_is_that_of_one_gaussian(cost, delta):
    spent = float(Accountant().epsilon(cost, delta))
    assert reference.gaussian_delta(np.sqrt(cost), spent) <= delta * (1 + 1e-9)
    assert spent == pytest.approx(reference.gaussian_epsilon(np.sqrt(cost), delta), rel=1e-8, abs=1e-12)


@pytest.mark.parametrize(("cost", "delta"), [(0.01, 1e-5), (0.3, 1e-6), (2.0, 1e-5), (9.0, 1e-8)])
def test_dp_accounting_agrees(cost, delta):
    event = dp_event.GaussianDpEvent(1 / np.sqrt(cost))
    by_losses = pld_privacy_accountant.PLDAccountant(value_discretization_interval=1e-4)
    assert float(Accountant().epsilon(cost, delta)) == pytest.approx(by_losses.compose(event).get_epsilon(delta), rel=2e-3)
    by_orders = rdp_privacy_accountant.RdpAccountant(list(Accountant.fine().orders))
    assert float(Accountant.fine().epsilon(cost, delta)) == pytest.approx(by_orders.compose(event).get_epsilon(delta), rel=1e-6)


@pytest.mark.parametrize("cost", [0.003, 0.1, 1.0, 5.0])
def test_the_papers_accountant_has_orders_2_to_50_and_the_plain_conversion(cost):
    expected = min(order * cost / 2 + np.log(1e5) / (order - 1) for order in range(2, 51))
    assert float(Accountant.paper().epsilon(cost, 1e-5)) == pytest.approx(expected, rel=1e-12)


@settings(max_examples=30)
@given(st.lists(st.tuples(epsilons, deltas), min_size=1, max_size=6))
def test_many_budgets_at_once_are_each_their_own(pairs):
    eps, own = np.array(pairs).T
    for accountant in (Accountant(), Accountant.paper()):
        together = accountant.allowance(eps, own)
        assert together == pytest.approx([float(accountant.allowance(e, d)) for e, d in pairs], rel=1e-12)


@settings(max_examples=40)
@given(epsilons, deltas, st.floats(1.001, 3))
def test_more_budget_allows_more(epsilon, delta, more):
    for accountant in ACCOUNTANTS.values():
        least = float(accountant.allowance(epsilon, delta))
        assert float(accountant.allowance(epsilon * more, delta)) >= least
        assert float(accountant.allowance(epsilon, min(delta * more, 0.99))) >= least * (1 - 1e-9)


def test_nothing_asked_is_nothing_spent():
    assert float(Accountant().epsilon(0.0, 1e-5)) == 0


@pytest.mark.parametrize("name", ["paper", "fine"])
def test_nothing_asked_is_nothing_spent_by_orders_either(name):
    assert float(ACCOUNTANTS[name].epsilon(0.0, 1e-5)) == 0


@pytest.mark.parametrize("orders", [[], [1.0], [0.5, 2.0], [np.nan]])
def test_orders_must_be_above_one(orders):
    with pytest.raises(SartorError, match="orders"):
        Accountant(np.array(orders))


def test_the_reserve_is_kept_of_epsilon_and_of_delta():
    kept = sartor.Budgets([1.0], delta=1e-5, reserve=0.25)
    eps, own = plan(kept, "standard", teachers=1).spendable
    assert (float(eps[0]), float(own[0])) == pytest.approx((0.75, 0.75e-5), rel=1e-12)


def test_a_voting_that_stops_by_its_answers_keeps_the_budget():
    """The filter, exactly: two binary tests of one bit, the second asked only after the first said yes and then with all that is left.

    All four transcripts are enumerated, and their hockey-stick divergence compared with the Gaussian of the whole allowance.
    """
    allowed = float(Accountant().allowance(1.0, 1e-2))
    for share in (0.1, 0.4, 0.7):
        first, rest = np.sqrt(share * allowed), np.sqrt((1 - share) * allowed)
        for c1 in np.linspace(-2, 3, 11):
            for c2 in np.linspace(-2, 3, 11):
                zero = [norm.cdf(c1), norm.sf(c1) * norm.cdf(c2), norm.sf(c1) * norm.sf(c2)]
                one = [norm.cdf(c1 - first), norm.sf(c1 - first) * norm.cdf(c2 - rest), norm.sf(c1 - first) * norm.sf(c2 - rest)]
                assert max(reference.hockey_stick(zero, one, 1.0), reference.hockey_stick(one, zero, 1.0)) <= 1e-2
