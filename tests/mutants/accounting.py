"""Breaks of what exposures cost, of the search for parameters that fit a budget, and of a plan's own check."""

import logging
import warnings

import dp_accounting
import numpy as np

import sartor
from mutants.machinery import Catcher, catcher, mutant
from sartor.accounting import Filtered, filtered, losses, noise_for, pld, rdp, solve, spending
from sartor.accounting import SampledGaussian as Steps
from sartor.accounting.filtered import Choice, Table
from sartor.errors import Infeasible, Overspent
from sartor.plans import Plan, hybrid, one_rate, spreads
from sartor.plans.problem import Parameters
from sartor_testing.adversaries import of_trees, response, trees
from sartor_testing.plans import changed

BUDGETS = sartor.Budgets.from_shares([1, 2, 4], [0.5, 0.3, 0.2], holders=2_000, delta=1e-5, seed=0)
TRUE = 6.3124  # of rate 0.04, noise 2.2, 5,000 steps, delta 1e-5


def planned(scheme, steps=300, accountant="rdp", **options):
    return sartor.plan(BUDGETS, scheme, steps=steps, batch=100, accountant=accountant, **options)


def planning(scheme, accountant="rdp", **options):
    """Whether a plan that overspends is refused when it is made, by its scheme or by itself."""

    def sees():
        try:
            planned(scheme, accountant=accountant, **options)
        except (Infeasible, Overspent):
            return True
        return False

    return Catcher(f"planning {scheme} by {accountant}", "test", sees)


SCALE, SCALE_PLD, SAMPLE = planning("scale"), planning("scale", "pld"), planning("sample")
ROUNDS = planning("rounds", "pld", rounds=2, spread="even", threshold=(3.0, 3.0))


def by_dp_accounting(rate, noise, steps, delta):
    logging.getLogger("absl").setLevel(logging.CRITICAL)
    accountant = dp_accounting.rdp.RdpAccountant(orders=[float(a) for a in rdp.ORDERS if a <= 64])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return accountant.compose(Steps(rate, noise, steps).to_dp_event()).get_epsilon(delta)


@catcher("a plan beside dp_accounting", "test")
def DP_ACCOUNTING():
    found = planned("scale", steps=15)
    figures = zip(found.rate.tolist(), found.noise_multipliers.tolist(), found.delta.tolist(), found.epsilon.tolist(), strict=True)
    return any(by_dp_accounting(rate, noise, 15, delta) > epsilon * (1 + 1e-3) for rate, noise, delta, epsilon in figures)


@catcher("noise for a budget beside dp_accounting", "test")
def SEARCH():
    noise = float(noise_for(np.array([2.0]), np.array([1e-5]), rate=0.05, steps=200, accountant="rdp")[0])
    return by_dp_accounting(0.05, noise, 200, 1e-5) > 2.0 * (1 + 1e-3)


@catcher("a known figure", "test")
def KNOWN():
    return float(spending.spend(0.04, 2.2, 5_000, 1e-5)[0]) < TRUE * (1 - 1e-4)


@catcher("a known figure by Rényi", "test")
def KNOWN_BY_RENYI():
    return float(spending.spend(0.04, 2.2, 5_000, 1e-5, "rdp")[0]) < TRUE


@catcher("a plan with clips of other groups", "test", lambda: planned("scale"))
def CHECKED(found):
    try:
        changed(found, clips=found.clips[::-1])
    except Overspent:
        return False
    return True


@catcher("a filter of one rung beside the steps that it pays for", "test")
def ONE_RUNG():
    alone = sartor.accounting.epsilon(Filtered(0.05, 1.0, 2, (1.0,), (1,), 10), 1e-5).upper
    return alone < sartor.accounting.epsilon(Steps(0.05, 1.0, 20), 1e-5).lower


@catcher("a filter beside all decision trees", "test")
def ADVERSARY():
    """Randomised response with truth 2/3 and 3/4, and three units to choose among them by what was seen before."""
    grid, rungs, choices = float(np.log(3)) / 1_000, [response(2 / 3, 1), response(3 / 4, 2)], []
    for rung in rungs:
        loss = np.log(np.array(rung.present) / np.array(rung.absent))
        choices.append(Choice(losses.on_grid(loss, np.array(rung.present), 0.0, grid)[0], rung.cost))
    most = of_trees(trees(rungs, 3), float(np.log(3))).max()
    return float(filtered.worst(choices, 3, grid, -9_000, 18_001)[8_000]) < most - 1e-12


# --- searches ---


@mutant(SCALE, SCALE_PLD)
def noise_solved_two_per_cent_too_low(patch):
    """The noise that a budget needs is found 2 % too low."""
    right = one_rate.noise_for
    patch.setattr(one_rate, "noise_for", lambda *values, **more: 0.98 * right(*values, **more))


@mutant(SEARCH, quick=True)
def search_overshoots_epsilon(patch):
    """The search for noise ends on the other side of the budget (opacus#346)."""
    right = solve._direct
    patch.setattr(solve, "_direct", lambda *given: right(*given) + 0.01)


@mutant(SAMPLE, quick=True)
def rate_bound_to_the_wrong_group(patch):
    """Two groups get each other's rates."""
    right = hybrid.mixed

    def swapped(problem, mix):
        found = right(problem, mix)
        return Parameters(found.rate[[1, 0, 2]], found.noise_multiplier)

    patch.setattr(hybrid, "mixed", swapped)


@mutant(ROUNDS, quick=True)
def rounds_as_published(patch):
    """The coin of a round is judged as if those of other rounds cost nothing: the published form charges only those who are drawn."""
    right = spreads._largest_chance
    patch.setattr(spreads, "_largest_chance", lambda one, before, count, *given: right(one, (), 1, *given))


@mutant(CHECKED, quick=True)
def overspending_plan_accepted(patch):
    """A plan does not look at what it costs."""
    patch.setattr(Plan, "spent", property(lambda self: 0 * self.delta))


# --- accountants ---


@mutant(DP_ACCOUNTING)
def accountant_drops_a_step(patch):
    """One step fewer is accounted for than is taken."""
    right = spending._evaluated

    def one_step_short(table, *how):
        fewer = table.copy()
        fewer[:, 2] = np.maximum(fewer[:, 2] - 1, 0)
        return right(fewer, *how)

    patch.setattr(spending, "_evaluated", one_step_short)


@mutant(KNOWN, quick=True)
def one_direction_dropped(patch):
    """Only adding somebody is accounted for, and removing them costs more."""
    patch.setattr(pld._Evaluation, "epsilon", lambda self, delta: np.maximum(self.add.epsilon(delta), 0.0))


@mutant(ONE_RUNG)
def one_direction_of_a_filters_table_dropped(patch):
    """Of what a filter lets pass only adding somebody is accounted for."""
    patch.setattr(Table, "epsilon", lambda self, delta: self._epsilon(self.add, delta))


@mutant(KNOWN_BY_RENYI, quick=True)
def order_near_one_returns_epsilon_zero(patch):
    """An order near 1, at which the conversion loses all digits, gives epsilon 0 and is the best (tensorflow/privacy#166)."""
    right = rdp.conversion_terms

    def lost(orders, delta, conversion="balle"):
        gain, price = right(orders, delta, conversion)
        return gain, np.where(np.asarray(orders) < 1.02, np.inf, price)

    patch.setattr(rdp, "conversion_terms", lost)


@mutant(KNOWN_BY_RENYI)
def noise_multiplier_accounted_twice(patch):
    """Divergences are those of twice the noise."""
    right = rdp.sampled_gaussian
    patch.setattr(rdp, "sampled_gaussian", lambda rate, noise, orders: right(rate, 2 * np.asarray(noise), orders))


@mutant(ADVERSARY, quick=True)
def natural_privacy_loss_filter(patch):
    """A filter is accounted for as if a rung had been chosen before the run, and not by what it has shown so far."""
    right = filtered.worst

    def natural(choices, units, *given):
        return np.max([right([choice], units, *given) for choice in choices], axis=0)

    patch.setattr(filtered, "worst", natural)
