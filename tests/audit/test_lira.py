import numpy as np
import pytest
from scipy.stats import ks_2samp, kstest, norm, rankdata

from sartor.audit.lira import ENOUGH, lira, lira_on, losses, losses_on, offline_lira, offline_lira_on, threshold_success
from sartor.audit.rmia import offline_rmia, rmia, rmia_on
from sartor.audit.scores import Scores
from sartor.audit.shadows import Shadows, coins
from sartor.errors import SartorError

ATTACKS = {"lira": lira, "offline lira": offline_lira, "rmia": rmia, "offline rmia": offline_rmia, "losses": losses}


def drawn(effect=(0.5, 2.0), models=32, targets=200, seed=0, population=400) -> Shadows:
    """Signals that a target's membership moves by the effect of its group, in deviations; some targets are easier than others."""
    generator = np.random.default_rng(seed)
    inside, groups = coins(models, targets, seed), np.arange(targets) % len(effect)
    moved = np.asarray(effect)[groups] * inside
    easy = generator.normal(0, 3, targets)
    others = generator.normal(0, 3, population)
    return Shadows(
        inside,
        easy + moved + generator.normal(size=(models, targets)),
        groups,
        others + generator.normal(size=(models, population)),
    )


def auc(scores: Scores) -> float:
    ranks = rankdata(np.concatenate([scores.inside, scores.outside]))[: len(scores.inside)]
    return float((ranks.sum() - len(ranks) * (len(ranks) + 1) / 2) / (len(ranks) * len(scores.outside)))


@pytest.mark.parametrize("attack", ATTACKS)
def test_groups_with_more_influence_are_attacked_better(attack):
    found = ATTACKS[attack](drawn((0.2, 2.0)))
    assert list(found) == [0, 1]
    assert {len(scores.inside) for scores in found.values()} == {100 * 16}
    assert 0.49 < auc(found[0]) < auc(found[1])


@pytest.mark.parametrize("attack", ["lira", "offline lira"])
@pytest.mark.parametrize("models", [32, 2 * ENOUGH + 20])
def test_lira_comes_close_to_the_best_that_there_is(attack, models):
    found = ATTACKS[attack](drawn((1.5, 1.5), models=models))
    best = norm.cdf(1.5 / np.sqrt(2))
    assert best - 0.03 < auc(found[0]) < best + 0.02


@pytest.mark.parametrize("attack", ATTACKS)
def test_without_influence_scores_of_those_in_and_out_are_alike(attack):
    found = ATTACKS[attack](drawn((0.0,), models=8, targets=6000), models=[3])[0]  # of one model: scores of others share its fits
    assert ks_2samp(found.inside, found.outside).pvalue > 0.001
    assert abs(auc(found) - 0.5) < 4 * np.sqrt(1 / 12 * 2 / 3000)


def test_a_model_is_not_attacked_by_its_own_signals_nor_by_its_pair():
    shadows = drawn(models=8, targets=50)
    signals = shadows.signals.copy()
    signals[5] += 100  # the pair of model 4
    moved = Shadows(shadows.inside, signals, shadows.groups, shadows.population)
    for attack in (lira, offline_lira, rmia, offline_rmia):
        one, other = attack(shadows, models=[4]), attack(moved, models=[4])
        assert all(np.array_equal(one[g].inside, other[g].inside) and np.array_equal(one[g].outside, other[g].outside) for g in one)


def test_the_ratio_is_that_of_two_densities():
    shadows = drawn(models=2 * ENOUGH, targets=20)
    observed = np.linspace(-3, 3, 20)
    said = np.arange(20) % 4 < 2
    found = lira_on(shadows, observed, said)
    wanted = np.empty(20)
    for target in range(20):
        own, inside = shadows.signals[:, target], shadows.inside[:, target]
        densities = [norm.logpdf(observed[target], own[side].mean(), own[side].std(ddof=1)) for side in (inside, ~inside)]
        wanted[target] = densities[0] - densities[1]
    for group in (0, 1):
        own = shadows.groups == group
        assert np.allclose(found[group].inside, wanted[own & said])
        assert np.allclose(found[group].outside, wanted[own & ~said])


def test_offline_scores_of_those_who_are_out_are_deviations():
    found = offline_lira(drawn((0.0,), models=202, targets=300), models=[7])
    assert kstest(found[0].outside, "norm").pvalue > 0.001


def test_few_targets_share_one_variance():
    shadows = drawn(models=10, targets=300)
    assert len(shadows) // 2 < ENOUGH
    found = offline_lira_on(shadows, shadows.signals.mean(axis=0) + 1, np.arange(300) % 4 < 2)
    assert found[0].outside.std() < 0.6  # deviations estimated from five numbers each would scatter far more


def test_rmia_needs_few_reference_models():
    shadows = drawn((2.0,), models=32, targets=300)
    assert auc(rmia(shadows, references=2)[0]) > auc(losses(shadows)[0]) + 0.05
    assert auc(rmia(shadows, references=2)[0]) > auc(rmia(shadows)[0]) - 0.1


def test_rmia_counts_the_records_that_are_explained_less():
    shadows = drawn(models=6, targets=10, population=30)
    observed, others = shadows.signals[0] + 1, shadows.population[0]
    said = np.arange(10) % 4 < 2
    found = rmia_on(shadows, observed, said, others, gamma=1.5)

    def p(x):
        return 1 / (1 + np.exp(-x))

    ratio, ratios = p(observed) / p(shadows.signals).mean(0), p(others) / p(shadows.population).mean(0)
    wanted = np.array([np.mean([r / z >= 1.5 for z in ratios]) for r in ratio])
    for group in (0, 1):
        assert np.allclose(found[group].inside, wanted[(shadows.groups == group) & said])


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        (lambda s: lira(s, models=[32]), "from 0 to 31"),
        (lambda s: lira(s, models=[]), "from 0 to 31"),
        (lambda s: lira(s, models=[1, 1]), "from 0 to 31"),
        (lambda s: lira(drawn(models=4)), "too few"),
        (lambda s: lira_on(s, np.zeros(3), np.ones(3, bool)), "a signal for each target"),
        (lambda s: lira_on(s, np.zeros(200), np.ones(200)), "true or false"),
        (lambda s: rmia(s, references=3), "in pairs"),
        (lambda s: rmia(s, references=32), "in pairs"),
        (lambda s: rmia(s, gamma=0), "gamma"),
        (lambda s: offline_rmia(s, extrapolated=2), "extrapolated"),
        (lambda s: rmia(drawn(population=0)), "population="),
        (lambda s: rmia_on(s, np.zeros(200), np.ones(200, bool), np.zeros(3)), "population"),
        (lambda s: threshold_success(Scores(np.ones(1), np.ones(5))), "two or more"),
    ],
)
def test_what_cannot_be_attacked_is_refused(wrong, match):
    with pytest.raises(SartorError, match=match):
        wrong(drawn())


def test_a_group_of_whom_all_are_in_stays_with_nobody_on_the_other_side():
    shadows = drawn()
    found = losses_on(shadows, np.zeros(200), shadows.groups == 0)
    assert {group: (one.inside.size, one.outside.size) for group, one in found.items()} == {0: (100, 0), 1: (0, 100)}


def test_a_threshold_chosen_on_one_half_is_not_praised_for_noise():
    generator = np.random.default_rng(0)
    found = [threshold_success(Scores(*generator.normal(size=(2, 50))), seed=seed).accuracy for seed in range(400)]
    assert abs(np.mean(found) - 0.5) < 5 * 0.5 / np.sqrt(50 * 400)


def test_a_threshold_tells_as_many_right_as_it_can():
    generator = np.random.default_rng(1)
    success = threshold_success(Scores(generator.normal(2, 1, 5000), generator.normal(0, 1, 4000)))
    assert success.accuracy == pytest.approx(norm.cdf(1), abs=0.02)
    assert (success.counted, success.chosen_by) == (4000, 4000)


def test_scores_that_anti_correlate_are_told_wrong_not_turned_round():
    generator = np.random.default_rng(2)
    assert threshold_success(Scores(generator.normal(-3, 1, 1000), generator.normal(3, 1, 1000))).accuracy == pytest.approx(0.5, abs=0.01)


def test_offline_rmia_extrapolates_from_models_that_the_target_was_out_of():
    shadows = drawn(models=8, targets=10, population=30)
    found = offline_rmia(shadows, models=[0], gamma=1.5, extrapolated=0.3)

    def p(x):
        return 1 / (1 + np.exp(-x))

    rest = slice(2, 8)
    out = [p(shadows.signals[rest, target])[~shadows.inside[rest, target]].mean() for target in range(10)]
    usual, usual_of_others = (0.65 * np.array(mean) + 0.35 for mean in (out, p(shadows.population[rest]).mean(0)))
    ratio, ratios = p(shadows.signals[0]) / usual, p(shadows.population[0]) / usual_of_others
    wanted = np.array([np.mean([r / z >= 1.5 for z in ratios]) for r in ratio])
    for group in found:
        own = shadows.groups == group
        assert np.allclose(found[group].inside, wanted[own & shadows.inside[0]])
        assert np.allclose(found[group].outside, wanted[own & ~shadows.inside[0]])


def test_few_references_are_the_pair_that_follows_and_not_the_same_for_all():
    shadows = drawn(models=8, targets=50)
    for pair in range(4):
        signals = shadows.signals.copy()
        signals[2 * pair : 2 * pair + 2] += 3
        moved, changed = Shadows(shadows.inside, signals, shadows.groups, shadows.population), []
        for model in (model for model in range(0, 8, 2) if model != 2 * pair):
            one, other = (rmia(which, models=[model], references=2)[0] for which in (shadows, moved))
            changed += [] if np.array_equal(one.inside, other.inside) else [model]
        assert changed == [(2 * pair - 2) % 8]


def test_halves_are_drawn_at_random():
    scores = Scores(np.repeat([3.0, 1.0], 500), np.repeat([2.0, 0.0], 500))  # what tells the first halves apart tells nothing of the second
    assert threshold_success(scores).accuracy == pytest.approx(0.75, abs=0.05)


@pytest.mark.parametrize("models", [2 * ENOUGH, 10])
def test_offline_scores_are_deviations_above_the_models_without_the_target(models):
    shadows = drawn(models=models, targets=20)
    observed, said = np.linspace(-3, 3, 20), np.arange(20) % 4 < 2
    out = [shadows.signals[~shadows.inside[:, target], target] for target in range(20)]
    variance = np.array([own.var(ddof=1) for own in out])
    if models < 2 * ENOUGH:  # all targets share one, of as many models each
        variance[:] = variance.mean()
    wanted = (observed - [own.mean() for own in out]) / np.sqrt(variance)
    found = offline_lira_on(shadows, observed, said)
    for group in (0, 1):
        own = shadows.groups == group
        assert np.allclose(found[group].inside, wanted[own & said])
        assert np.allclose(found[group].outside, wanted[own & ~said])


def test_rmia_counts_a_record_that_is_explained_just_as_much_less_as_gamma_says():
    shadows = drawn((0.0,), models=6, targets=10)
    alike = Shadows(shadows.inside, shadows.signals, shadows.groups, shadows.signals)  # every target is in the population, too
    said = np.arange(10) < 5
    found = rmia_on(alike, alike.signals[0], said, alike.signals[0], gamma=1.0)[0]
    assert sorted([*found.inside, *found.outside]) == pytest.approx(np.arange(1, 11) / 10)
