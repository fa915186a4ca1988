"""The published form: it says what it really spends, warns, and nothing trains by it unasked."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

import sartor
from sartor.accounting import SampledGaussian, coins, noise_for
from sartor.accounting import rounds as quick
from sartor.baselines import fit_published
from sartor.baselines import published as training
from sartor.errors import SartorError
from sartor.federated.plan import FederatedPlan
from sartor.plans.published import Published, published
from sartor_testing import rounds_reference as reference

BUDGETS = sartor.Budgets.from_groups([(0.5, 60), (0.8, 40), (1.0, 50)], delta=1e-5)


def made(rounds=3, scheme="rounds", **others) -> Published:
    with pytest.warns(sartor.Unsound):
        return published(BUDGETS, scheme, **{"steps": 12, "batch": 20, "rounds": rounds, "seed": 1, **others})


def test_promises_are_budgets_at_the_delta_of_all_rounds():
    one, more = made(1, threshold=[0.9]), made(4, threshold=[0.9] * 4)
    assert np.all(one.really_spends <= one.promised * 1.002)  # a single round keeps its promise
    assert np.all(more.really_spends <= 0.9 * 1.01 + 1e-9)  # nobody is drawn twice who had less than the threshold
    assert more.promised.tolist() == [0.5, 0.8, 1.0]
    assert more.promised_delta == pytest.approx(4e-5)


def test_what_it_really_spends_is_what_a_mixture_over_the_round_that_draws_one_says():
    """Two rounds of Gaussian steps, by dp_accounting's losses and an explicit mixture over the coins, on a grid of two dimensions."""
    tau, budget, delta = 0.8, 0.5, 1e-3
    noise = noise_for(tau, delta / 2, rate=1.0, steps=4)
    mu = 2 / noise
    x = np.linspace(-8, 8 + mu, 1201)
    q = np.exp(-(x**2) / 2)
    q /= q.sum()
    ratio, pi = np.exp(mu * x - mu**2 / 2), np.expm1(budget) / np.expm1(tau)
    whole = pi * ratio[:, None] + (1 - pi) * (pi * ratio[None, :] + (1 - pi))
    truth = reference.from_laws((whole * np.outer(q, q)).ravel(), np.outer(q, q).ravel(), delta)
    grid = quick.Grid(0.004, delta, 2)
    law = coins.Law.of_losses(quick.inner(1.0, noise, 4, grid))
    found = coins.published([law, law], [tau, tau], budget, 0.02).epsilon(delta)
    assert found == pytest.approx(truth, rel=0.005)


def test_every_group_really_spends_what_its_own_coins_make_of_the_rounds_at_the_promised_delta():
    """Two rounds in which all who are drawn take part in every step, so each is one Gaussian, and the mixture is explicit."""
    tau = 0.8
    form = made(2, threshold=[tau, tau], steps=8, batch=150)
    assert [one.rate for one in form.rounds] == [1.0, 1.0]
    mu = [float(np.sqrt(one.steps)) / one.noise_multiplier for one in form.rounds]
    x = np.linspace(-8, 8 + max(mu), 601)
    q = np.exp(-(x**2) / 2)
    q /= q.sum()
    first, second = np.exp(mu[0] * x - mu[0] ** 2 / 2)[:, None], np.exp(mu[1] * x - mu[1] ** 2 / 2)[None, :]
    pi, left = (np.expm1(budget) / np.expm1(tau) for budget in (0.5, 1.0 - tau))
    wholes = [pi * first + (1 - pi) * (pi * second + 1 - pi), first + 0 * second, first * (left * second + 1 - left)]
    both = np.outer(q, q)
    truth = [reference.from_laws((whole * both).ravel(), both.ravel(), 2e-5) for whole in wholes]
    assert form.really_spends == pytest.approx(truth, rel=0.005)


@pytest.mark.parametrize(
    ("strict", "open_", "thresholds"), [(0.5, 1.0, [0.8, 0.8]), (0.1, 5.0, [5.0, 5.0]), (0.05, 3.0, [1.0, 2.0]), (0.01, 1.0, [1.0, 1.0])]
)
def test_what_it_really_spends_is_exact_to_a_hundredth_however_far_apart_budgets_are(strict, open_, thresholds):
    budgets = sartor.Budgets.from_groups([(strict, 300), (open_, 300)], delta=1e-4)
    with pytest.warns(sartor.Unsound):
        form = published(budgets, steps=4, batch=60, threshold=thresholds, seed=1)
    steps = [SampledGaussian(one.rate, one.noise_multiplier, one.steps) for one in form.rounds]
    truth = reference.published_in_two(steps, thresholds, strict, form.promised_delta)
    assert truth * 0.999 <= form.really_spends[0] <= truth * 1.002


def test_gaussian_noise_inside_does_not_save_the_promise():
    """A strict budget, ten rounds, by a million runs without the holder: neither grids nor laws."""
    tau, budget, rounds = 0.3, 0.05, 10
    noise = noise_for(tau, 1e-5, rate=1.0, steps=1)
    grid = quick.Grid(tau / 100, rounds * 1e-5, rounds)
    law = coins.Law.of_losses(quick.inner(1.0, noise, 1, grid))
    found = coins.published([law] * rounds, [tau] * rounds, budget, 0.02).epsilon(rounds * 1e-5)
    assert found > 1.1 * budget
    chance, ratio = np.expm1(budget) / np.expm1(tau), np.zeros(1_000_000)
    draws = np.random.default_rng(0)
    for place in range(rounds):
        ratio += chance * (1 - chance) ** place * np.exp(draws.standard_normal(len(ratio)) / noise - 0.5 / noise**2)
    ratio += (1 - chance) ** rounds
    assert np.maximum(ratio - np.exp(1.05 * budget), 0).mean() > rounds * 1e-5 * 1.1
    assert np.maximum(ratio - np.exp(found), 0).mean() == pytest.approx(rounds * 1e-5, rel=0.1)


def test_nothing_that_is_shown_tells_one_persons_coin():
    """A few strict holders beside sixty who are drawn for sure: how many are drawn, and so rate and noise, follow from their coins."""
    budgets = sartor.Budgets([0.5] * 12 + [1.0] * 60, delta=1e-5)
    shown, noises = set(), set()
    for seed in range(4):
        with pytest.warns(sartor.Unsound, match="thresholds, rates, noise and weights held fixed") as found:
            form = published(budgets, steps=4, batch=30, threshold=[0.8], seed=seed, accountant="rdp")
        noises.add(form.rounds[0].noise_multiplier)
        shown.add(json.dumps(form.to_json()) + str(form) + repr(form) + str(found[0].message))
    assert len(noises) > 1
    assert len(shown) == 1
    assert "noise_multiplier" in json.dumps(form.to_json(sensitive=True))
    assert form.to_json()["held_fixed"] == ["thresholds", "rates", "noise", "weights"]


def test_thresholds_that_follow_from_who_was_drawn_are_not_shown():
    form = made(4, threshold="adaptive")
    assert len(form.rounds) > 1
    assert form.to_json()["threshold"] == "adaptive"
    assert form.to_json()["first_threshold"] == form.rounds[0].threshold
    assert all(f"{one.threshold:g}" not in json.dumps(form.to_json()) for one in form.rounds[1:])


def test_nothing_that_is_shown_tells_one_persons_budget():
    budgets = sartor.Budgets([0.617] + [1.0] * 500, delta=1e-5)
    with pytest.warns(sartor.Unsound) as found:
        form = published(budgets, steps=6, batch=30, rounds=1, threshold="fixed:1", seed=1)
    assert form.rounds[0].threshold == 0.617
    text = json.dumps(form.to_json()) + str(form) + repr(form) + str(found[0].message)
    assert "0.61" not in text
    assert form.to_json()["groups"] == [{"holders": 501, "promised": [0.5, 2.0], "really_spends": [0.0, 2.0]}]


def test_its_document_and_table_say_that_it_is_not_sound():
    form = made(3)
    document = json.loads(json.dumps(form.to_json()))
    assert document["sound"] is False
    assert document["form"] == "published"
    assert [group["promised"] for group in document["groups"]] == [0.5, 0.8, 1.0]
    shown = [group["really_spends"] for group in document["groups"]]
    assert shown == pytest.approx(form.really_spends.tolist(), rel=0.1)
    assert np.all(np.array(shown) >= form.really_spends)
    assert "NOT SOUND" in str(form)
    assert "drawn" not in json.dumps(document) + repr(form)


def test_steps_that_used_up_budgets_leave_untaken_are_told():
    form = made(None, steps=30, threshold="fixed:0")
    assert len(form.rounds) < 10
    assert f"{form.steps} of 30 steps; budgets were used up after {len(form.rounds)} of 10 rounds" in " ".join(str(form).split())
    document = form.to_json()
    assert document["asked"] == {"steps": 30, "rounds": 10}
    assert document["steps"] == form.steps
    assert "12 steps" in str(made(2, threshold=[0.6, 0.9]))


def test_its_document_names_its_warning_and_what_its_figures_hold_fixed():
    document = made(2).to_json()
    assert document["warning"] == "Unsound"
    assert document["held_fixed"] == ["thresholds", "rates", "noise", "weights"]


def test_its_training_warns_of_nothing_that_tells_how_many_were_drawn(recwarn):
    form = made(2, steps=2, batch=3)
    recwarn.clear()
    data = TensorDataset(torch.randn(150, 3), torch.zeros(150, dtype=torch.long))
    fit_published(torch.nn.Linear(3, 2), data, BUDGETS, form, unsound=True, seed=3, progress=False)
    assert not [each for each in recwarn if issubclass(each.category, sartor.SartorWarning)]


def test_there_are_as_many_rounds_as_thresholds_and_no_reserve():
    assert made(None, threshold=[0.9, 0.9]).most_rounds == 2
    with pytest.raises(sartor.SartorError, match="reserve"):
        published(sartor.Budgets([1.0] * 50, delta=1e-5, reserve=0.1), steps=12, batch=20)


def test_who_is_drawn_is_charged_the_threshold_and_who_is_not_keeps_everything():
    form = made(5)
    left = BUDGETS.epsilon.copy()
    for one in form.rounds:
        alive = left[left > 0]
        assert alive.min() - 1e-3 <= one.threshold <= alive.max() + 1e-3
        assert np.all(left[one.drawn] > 0)
        assert set(np.flatnonzero(left >= one.threshold)) <= set(one.drawn.tolist())
        assert one.rate == pytest.approx(min(1.0, 20 / len(one.drawn)))
        left[one.drawn] = np.maximum(left[one.drawn] - one.threshold, 0)
        left[left < 1e-9] = 0


def test_neither_fit_nor_make_private_takes_it_and_no_plan_can_be_made_of_it():
    form, model = made(2), torch.nn.Linear(3, 2)
    data = TensorDataset(torch.zeros(150, 3), torch.zeros(150, dtype=torch.long))
    before = [parameter.clone() for parameter in model.parameters()]
    with pytest.raises(sartor.SartorError, match="published form"):
        sartor.fit(model, data, BUDGETS, form)
    with pytest.raises(sartor.SartorError, match="published form"):
        sartor.make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), data, BUDGETS, form)
    assert not isinstance(form, sartor.Plan)
    with pytest.raises(sartor.SartorError):
        sartor.Plan.from_json(form.to_json())
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


@pytest.mark.parametrize("scheme", ["rounds", "adapdp"])
def test_it_trains_where_it_is_said_that_it_is_unsound(scheme):
    form, model = made(2, scheme), torch.nn.Linear(3, 2)
    data = TensorDataset(torch.randn(150, 3), torch.zeros(150, dtype=torch.long))
    open_data = TensorDataset(torch.randn(20, 3), torch.zeros(20, dtype=torch.long))
    with pytest.raises(sartor.SartorError, match="unsound=True"):
        fit_published(model, data, BUDGETS, form, unsound=False)
    result = fit_published(model, data, BUDGETS, form, unsound=True, public=open_data, lr=0.1, seed=3, progress=False)
    assert result.steps == 12
    assert result.sound is False
    with pytest.raises(sartor.SartorError, match="not the budgets"):
        fit_published(model, data, sartor.Budgets.from_groups([(0.5, 150)], delta=1e-5), form, unsound=True)


def test_what_is_trained_has_the_noise_that_was_judged(monkeypatch):
    form, seen = made(3, accountant="rdp"), []
    inner = training.fit
    monkeypatch.setattr(training, "fit", lambda *given, **others: seen.append(given[3].noise_multiplier) or inner(*given, **others))
    data = TensorDataset(torch.randn(150, 3), torch.zeros(150, dtype=torch.long))
    fit_published(torch.nn.Linear(3, 2), data, BUDGETS, form, unsound=True, seed=3, progress=False)
    assert seen == pytest.approx([one.noise_multiplier for one in form.rounds if len(one.drawn)], rel=1e-3)
    assert all(used >= one.noise_multiplier for used, one in zip(seen, form.rounds, strict=True))


def test_rounds_that_draw_nobody_are_counted():
    few = sartor.Budgets([0.5] * 3, delta=1e-5)
    with pytest.warns(sartor.Unsound):
        form = published(few, steps=10, batch=1, rounds=10, threshold=[3.0] * 10, seed=2)
    assert any(not len(one.drawn) for one in form.rounds)
    assert form.promised_delta == pytest.approx(1e-5 * len(form.rounds))


def test_the_promised_delta_is_that_of_the_rounds_asked_for():
    form = made(10, threshold=[1.0] * 10, steps=20)
    assert len(form.rounds) < 10  # everybody has been drawn
    assert form.promised_delta == pytest.approx(1e-4)
    assert len(made(None, threshold=[0.6, 0.8]).rounds) == 2


def test_it_knows_no_reserve_and_no_budgets_but_those_it_was_made_for():
    with pytest.raises(sartor.SartorError, match="no reserve"):
        published(BUDGETS.with_reserve(0.5), steps=12, batch=20, rounds=2)
    form, data = made(2), TensorDataset(torch.randn(150, 3), torch.zeros(150, dtype=torch.long))
    for other in (sartor.Budgets(BUDGETS.epsilon, delta=1e-9), BUDGETS.with_reserve(0.5)):
        with pytest.raises(sartor.SartorError, match="not the budgets"):
            fit_published(torch.nn.Linear(3, 2), data, other, form, unsound=True, progress=False)


def test_figures_about_protected_records_and_kept_runs_are_refused():
    form, data = made(2), TensorDataset(torch.randn(150, 3), torch.zeros(150, dtype=torch.long))
    with pytest.raises(sartor.SartorError, match="public= holds records"):
        fit_published(torch.nn.Linear(3, 2), data, BUDGETS, form, unsound=True, public=data)
    with pytest.raises(sartor.SartorError, match="leave callbacks out"):
        fit_published(torch.nn.Linear(3, 2), data, BUDGETS, form, unsound=True, callbacks=[print])
    with pytest.raises(sartor.SartorError, match="unsound=True"):
        fit_published(torch.nn.Linear(3, 2), data, BUDGETS, form)


@pytest.mark.parametrize(
    "wrong",
    [
        {"scheme": "scale"},
        {"rounds": 0},
        {"rounds": 13},
        {"batch": 151},
        {"threshold": "no"},
        {"threshold": [0.5]},
        {"steps": 12.5},
        {"steps": "12"},
        {"clip": -1},
        {"clip": float("nan")},
    ],
)
def test_what_makes_no_sense_is_refused(wrong):
    with pytest.raises(sartor.SartorError):
        published(BUDGETS, **{"scheme": "rounds", "steps": 12, "batch": 20, "rounds": 2, **wrong})
    with pytest.raises(sartor.SartorError, match="public"):
        published(sartor.Budgets([1.0, np.inf], delta=1e-5), steps=3, batch=1, rounds=1)


# --- mutations of a sound plan: what must not be accepted as one ---


def test_a_plan_that_charges_only_the_drawn_is_refused_as_overspending():
    """The coins of the published form, taken as those of a sound schedule: each round's budget is the whole one."""
    plan = sartor.plan(BUDGETS, "rounds", steps=12, batch=20, threshold=[0.9] * 3, spread="even")
    mechanism = plan.exposure(2).parts[0] if not isinstance(plan.exposure(2), SampledGaussian) else plan.exposure(2)
    tau_noise = noise_for(0.9, 1e-5, rate=mechanism.rate, steps=4)
    chance = [coins.chance_of(eps, 0.9) for eps in (0.5, 0.8, 1.0)]
    stages = [dataclasses.replace(stage, noise_multiplier=tau_noise, inclusion=chance) for stage in plan.stages]
    with pytest.raises(sartor.Overspent):
        dataclasses.replace(plan, stages=stages)


def test_nothing_of_a_sound_plan_follows_from_who_is_drawn():
    """A plan is made without a stream, and again it is the same; the published form is not."""
    plans = [sartor.plan(BUDGETS, "rounds", steps=12, batch=20, rounds=3) for _ in range(2)]
    assert plans[0] == plans[1]
    taus = [tuple(one.threshold for one in made(4, seed=seed, threshold="adaptive").rounds) for seed in range(3)]
    assert len(set(taus)) > 1


def test_neither_it_nor_a_document_stands_for_a_plan():
    form = made(2, threshold=[0.8, 0.8])
    with pytest.raises(SartorError, match=r"charged by a sartor\.Plan"):
        FederatedPlan(form)
    for plan in (form, form.to_json()):
        with pytest.raises(SartorError):
            sartor.fit(None, None, BUDGETS, plan)
