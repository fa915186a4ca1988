import logging
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import sartor
from sartor.errors import SartorError
from sartor.run import sampling
from sartor.run.sampling import Draw, PoissonSampler
from sartor.run.stream import Stream
from sartor_testing.forks import refused_in_a_fork

SIGMAS = 5
RARE = 1e-6  # what a fair run may look like by chance


def sampler_of(of_holder, rate, *, clips=None, first=None, last=None, steps=10_000, seed=0) -> PoissonSampler:
    groups = len(rate)
    return PoissonSampler.of_groups(
        np.asarray(of_holder),
        rate,
        np.arange(1.0, groups + 1) if clips is None else clips,
        np.zeros(groups, int) if first is None else first,
        np.full(groups, steps) if last is None else last,
        steps,
        Stream(seed=seed),
    )


def inclusion(sampler: PoissonSampler, steps) -> np.ndarray:
    """Whether each holder was drawn, a row per step."""
    out = np.zeros((len(steps), sampler.holders), bool)
    for row, step in enumerate(steps):
        out[row, sampler.draw(step).indices] = True
    return out


def shuffled_groups(sizes, seed=0) -> np.ndarray:
    return np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))


def assert_drawn_at(drawn: np.ndarray, rate: np.ndarray) -> None:
    """Whether holders (columns) were drawn as often as their rates say: in total, and each of them."""
    steps = len(drawn)
    for value in np.unique(rate):
        counts = drawn[:, rate == value].sum(0)
        assert stats.binomtest(int(counts.sum()), steps * counts.size, value).pvalue > RARE
        if 0 < value < 1 and steps * value * (1 - value) > 20:
            spread = float(((counts - steps * value) ** 2).sum() / (steps * value * (1 - value)))
            assert stats.chi2.sf(spread, counts.size) > RARE
            assert stats.chi2.cdf(spread, counts.size) > RARE


@pytest.mark.parametrize(
    "rate",
    [
        [0.02, 0.1, 0.6],  # a bin each
        [0.26, 0.4, 0.499],  # one bin, thinned
        [0.5, 0.75, 1.0],  # the highest bins
        [0.25, 0.25, 0.125],  # at the edges of bins
    ],
)
def test_each_holder_is_drawn_at_the_rate_of_their_group(rate):
    of_holder = shuffled_groups([40, 50, 60])
    drawn = inclusion(sampler_of(of_holder, rate), range(2_500))
    assert_drawn_at(drawn, np.array(rate)[of_holder])


def test_rates_far_below_the_highest_of_their_bin_are_thinned(monkeypatch):
    monkeypatch.setattr(sampling, "_LOWEST_EXPONENT", 1)
    rate = [0.9, 0.3, 0.05, 0.01]
    of_holder = shuffled_groups([30, 30, 60, 90])
    sampler = sampler_of(of_holder, rate)
    assert len(sampler._bins.count) == 1
    assert_drawn_at(inclusion(sampler, range(2_500)), np.array(rate)[of_holder])


def test_large_bins_that_are_shuffled_instead_are_uniform():
    """More than 10,000 members, and more than a twentieth of them drawn."""
    drawn = inclusion(sampler_of(np.zeros(20_000, int), [0.1]), range(250))
    assert_drawn_at(drawn, np.full(20_000, 0.1))
    blocks = drawn.sum(0).reshape(20, 1_000).sum(1)
    assert stats.chisquare(blocks).pvalue > RARE


@pytest.mark.few(1)
@pytest.mark.parametrize("rate", [[0.3, 0.3], [0.3, 0.45], [0.1, 0.9]])
def test_holders_and_steps_are_independent(rate):
    """Correlations of all pairs of holders, within a step and from each step to the next."""
    steps = 6_000
    of_holder = np.array([0, 1, 0, 0, 1, 1, 0, 1])
    drawn = inclusion(sampler_of(of_holder, rate), range(steps)).astype(float)
    within = np.corrcoef(drawn.T) - np.eye(8)
    assert np.abs(within).max() < SIGMAS / np.sqrt(steps)
    onward = np.corrcoef(drawn[:-1].T, drawn[1:].T)[:8, 8:]
    assert np.abs(onward).max() < SIGMAS / np.sqrt(steps)


def test_the_batch_varies_as_independent_coins_do():
    rate = np.array([0.05, 0.3, 0.4, 0.9])
    of_holder = shuffled_groups([100, 100, 100, 100])
    sampler = sampler_of(of_holder, rate)
    batch = np.array([len(sampler.draw(step)) for step in range(4_000)])
    variance = float((rate * (1 - rate) * 100).sum())
    assert abs(batch.mean() - rate.sum() * 100) < SIGMAS * np.sqrt(variance / len(batch))
    assert abs(batch.var() / variance - 1) < SIGMAS * np.sqrt(2 / len(batch))
    assert abs(np.corrcoef(batch[1:], batch[:-1])[0, 1]) < SIGMAS / np.sqrt(len(batch))


def test_a_small_bin_takes_every_subset_as_often_as_coins_would():
    rate = np.array([0.3, 0.45])
    of_holder = np.array([0, 1, 1, 0])
    steps = 8_000
    seen = inclusion(sampler_of(of_holder, rate), range(steps)) @ (1 << np.arange(4))
    subsets = (np.arange(16)[:, None] >> np.arange(4)) & 1
    expected = np.where(subsets, rate[of_holder], 1 - rate[of_holder]).prod(1) * steps
    assert stats.chisquare(np.bincount(seen, minlength=16), expected).pvalue > RARE


def test_empty_draws_occur_and_as_often_as_coins_say():
    steps = 5_000
    sampler = sampler_of(shuffled_groups([10, 10]), [0.05, 0.08])
    empty = [draw for draw in map(sampler.draw, range(steps)) if len(draw) == 0]
    assert stats.binomtest(len(empty), steps, 0.95**10 * 0.92**10).pvalue > RARE
    assert empty[0].indices.shape == empty[0].clips.shape == (0,)
    assert empty[0].indices.dtype == np.int64


def test_rate_1_is_everybody_and_rate_0_nobody():
    of_holder = shuffled_groups([30, 40, 50])
    sampler = sampler_of(of_holder, [0.0, 1.0, 1e-300], clips=[1.0, 2.0, 3.0])
    for step in range(50):
        draw = sampler.draw(step)
        assert draw.indices.tolist() == np.flatnonzero(of_holder == 1).tolist()
        assert draw.clips.tolist() == [2.0] * 40
    assert len(sampler_of([0, 0, 1], [0.0, 0.0]).draw(3)) == 0


def test_a_draw_is_a_function_of_seed_and_step():
    of_holder = shuffled_groups([300, 700])

    def draws(seed, steps):
        sampler = sampler_of(of_holder, [0.1, 0.13], seed=seed)
        return {step: sampler.draw(step).indices.tolist() for step in steps}

    forwards, backwards = draws(1, range(20)), draws(1, reversed(range(20)))
    assert forwards == backwards
    assert draws(1, [13]) == {13: forwards[13]}
    assert len({tuple(indices) for indices in forwards.values()}) == 20
    assert draws(2, [13])[13] != forwards[13]


def test_streams_without_a_seed_draw_differently():
    one, other = (PoissonSampler.of_groups(np.zeros(1_000, int), [0.1], [1.0], [0], [5], 5, Stream()) for _ in range(2))
    assert one.draw(0).indices.tolist() != other.draw(0).indices.tolist()


def test_nobody_is_drawn_in_a_forked_process():
    budgets = sartor.Budgets.from_shares([1, 2], [0.5, 0.5], holders=500, delta=1e-5, seed=0)
    sampler = PoissonSampler(sartor.plan(budgets, "sample", steps=20, batch=100), budgets, Stream())
    assert len(sampler.draw(3))
    assert refused_in_a_fork(lambda: sampler.draw(3)) == "this stream is another process's"


@pytest.mark.parametrize("scheme", ["sample", "scale"])
def test_rates_and_clips_follow_the_holders_when_budgets_are_permuted(scheme):
    epsilon = np.repeat([4.0, 1.0, 2.0], [30, 80, 50])
    plan = sartor.plan(sartor.Budgets(epsilon, delta=1e-5), scheme, steps=2_000, batch=40)
    place = {value: i for i, value in enumerate(plan.epsilon.tolist())}
    for seed in (1, 2):
        own = np.random.default_rng(seed).permutation(epsilon)
        group = np.array([place[value] for value in own.tolist()])
        sampler = PoissonSampler(plan, sartor.Budgets(own, delta=1e-5), Stream(seed=seed))
        assert_drawn_at(inclusion(sampler, range(1_500)), plan.rate[group])
        for step in range(20):
            draw = sampler.draw(step)
            assert draw.clips.tolist() == plan.clips[group[draw.indices]].tolist()
    assert len(set((plan.rate if scheme == "sample" else plan.clips).tolist())) == 3


def test_a_plan_for_other_budgets_is_refused():
    budgets = sartor.Budgets.from_shares([1, 2], [0.5, 0.5], holders=100, delta=1e-5, seed=0)
    plan = sartor.plan(budgets, "sample", steps=10, batch=20)
    with pytest.raises(SartorError, match="not the budgets"):
        PoissonSampler(plan, sartor.Budgets.from_shares([1, 2], [0.4, 0.6], holders=100, delta=1e-5, seed=0), Stream())


def test_every_drawn_holder_has_their_own_clip():
    rng = np.random.default_rng(0)
    clips = rng.permutation(np.linspace(0.1, 2.0, 50))
    of_holder = rng.permutation(np.repeat(np.arange(50), rng.integers(1, 20, 50)))
    sampler = sampler_of(of_holder, rng.uniform(0, 1, 50), clips=clips)
    for step in range(100):
        draw = sampler.draw(step)
        assert draw.clips.tolist() == clips[of_holder[draw.indices]].tolist()
        assert np.all(np.diff(draw.indices) > 0)
        assert (draw.indices.dtype, draw.clips.dtype) == (np.int64, np.float64)


def test_sixty_thousand_groups_of_one():
    holders, steps = 60_000, 400
    rng = np.random.default_rng(1)
    rate, clips = np.geomspace(1e-4, 0.05, holders), rng.uniform(0.5, 2, holders)
    of_holder = rng.permutation(holders)
    sampler = sampler_of(of_holder, rate, clips=clips)
    own, own_clips = rate[of_holder], clips[of_holder]
    drawn = np.zeros(holders)
    for step in range(steps):
        draw = sampler.draw(step)
        drawn[draw.indices] += 1
        assert np.array_equal(draw.clips, own_clips[draw.indices])
    order = np.argsort(own)
    expected = own[order].reshape(100, -1).sum(1) * steps
    variance = (own * (1 - own))[order].reshape(100, -1).sum(1) * steps
    spread = float((((drawn[order].reshape(100, -1).sum(1) - expected) ** 2) / variance).sum())
    assert RARE < stats.chi2.sf(spread, 100) < 1 - RARE


@pytest.mark.parametrize("order", ["strictest-first", "open-first"])
def test_a_sequential_plan_draws_one_group_after_another(order):
    budgets = sartor.Budgets.from_shares([1, 2, 4], [0.5, 0.3, 0.2], holders=400, delta=1e-5, seed=0)
    plan = sartor.plan(budgets, "sequential", steps=1_500, batch=40, order=order)
    group = plan.groups_of(budgets)
    sampler = PoissonSampler(plan, budgets, Stream(seed=5))
    drawn = inclusion(sampler, range(plan.steps))
    for g in range(len(plan)):
        window = slice(int(plan.first[g]), int(plan.last[g]))
        outside = np.delete(drawn[:, group == g], np.r_[window], axis=0)
        assert not outside.any()
        assert_drawn_at(drawn[window][:, group == g], np.full(int(plan.holders[g]), plan.rate[g]))
    assert sum(int(n) for n in plan.last - plan.first) == plan.steps


@st.composite
def windows(draw):
    steps = draw(st.integers(1, 70))
    count = draw(st.integers(1, 12))
    ends = [sorted((draw(st.integers(0, steps)), draw(st.integers(0, steps)))) for _ in range(count)]
    return steps, np.array(ends)


@given(windows(), st.integers(0, 2**32))
def test_a_group_takes_part_in_its_window_and_in_no_other_step(case, seed):
    """At rate 1 a draw is everybody who takes part."""
    steps, ends = case
    first, last = ends[:, 0], ends[:, 1]
    of_holder = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(ends)), 2))
    sampler = sampler_of(of_holder, np.ones(len(ends)), first=first, last=last, steps=steps)
    for step in range(steps):
        active = (first <= step) & (step < last)
        assert sampler.draw(step).indices.tolist() == np.flatnonzero(active[of_holder]).tolist()


def test_coins_are_right_in_windows_that_overlap():
    of_holder = shuffled_groups([20, 20, 20])
    rate, first, last = np.array([0.3, 0.4, 0.45]), np.array([0, 313, 700]), np.array([1_300, 1_999, 2_000])
    drawn = inclusion(sampler_of(of_holder, rate, first=first, last=last, steps=2_000), range(2_000))
    for g in range(3):
        members = drawn[:, of_holder == g]
        assert not members[: first[g]].any()
        assert not members[last[g] :].any()
        assert_drawn_at(members[first[g] : last[g]], np.full(20, rate[g]))


rates = st.one_of(st.sampled_from([0.0, 1.0, 0.5, 0.25, 1e-20, np.nextafter(0.5, 0)]), st.floats(0, 1), st.floats(1e-3, 0.1))


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(1, 40), rates), min_size=1, max_size=8), st.integers(0, 2**32))
def test_any_groups_are_drawn_at_their_rates_with_the_variance_of_coins(groups, seed):
    steps = 200
    sizes, rate = (np.array(column) for column in zip(*groups, strict=True))
    of_holder = shuffled_groups(sizes, seed)
    drawn = inclusion(sampler_of(of_holder, rate, steps=steps, seed=seed), range(steps))
    assert_drawn_at(drawn, rate[of_holder])
    spread = rate * (1 - rate)
    variance = float((sizes * spread).sum())
    if steps * variance > 50:
        fourth = 3 * variance**2 + float((sizes * spread * (1 - 6 * spread)).sum())
        batch = drawn.sum(1)
        assert abs(batch.mean() - float((sizes * rate).sum())) < SIGMAS * np.sqrt(variance / steps)
        assert abs(((batch - sizes @ rate) ** 2).mean() - variance) < SIGMAS * np.sqrt((fourth - variance**2) / steps)


@pytest.mark.parametrize(
    ("of_holder", "rate"),
    [
        (np.random.default_rng(0).integers(0, 3, 1_000_000, np.uint8), np.array([1e-4, 2e-4, 4e-4])),
        (np.arange(200_000), np.geomspace(1e-5, 3e-3, 200_000)),
    ],
)
def test_a_draw_takes_memory_for_the_batch_not_for_the_population_or_the_groups(of_holder, rate):
    sampler = sampler_of(of_holder, rate, steps=10)
    sampler.draw(0)
    tracemalloc.start()
    batch = len(sampler.draw(1))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert batch > 50
    assert peak < 40_000 + 300 * batch
    assert sampler._order.nbytes == 4 * len(of_holder)


def test_nothing_printed_or_logged_shows_who_was_drawn(caplog):
    sampler = sampler_of(np.arange(7), np.full(7, 0.9), clips=np.arange(7) + 0.125)
    with caplog.at_level(logging.DEBUG):
        draw = sampler.draw(3)
    assert repr(draw) == str(draw) == "Draw(step=3)"
    assert repr(sampler) == str(sampler) == "PoissonSampler(7 holders, 10000 steps, seeded: not private)"
    assert not caplog.records


def test_a_draw_cannot_be_changed():
    draw = sampler_of([0, 0], [1.0]).draw(0)
    for array in (draw.indices, draw.clips):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    with pytest.raises(AttributeError):
        draw.step = 4
    with pytest.raises(SartorError, match="one clip"):
        Draw(0, np.arange(3), np.ones(2))


@pytest.mark.parametrize("step", [-1, 10, 10**9, 2.5, float("nan")])
def test_a_step_outside_the_plan_is_refused(step):
    with pytest.raises(SartorError, match="the steps 0 to 9"):
        sampler_of([0], [0.5], steps=10).draw(step)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"of_holder": [0, 2]}, "outside 0 to 1"),
        ({"of_holder": [0, -1]}, "outside 0 to 1"),
        ({"of_holder": []}, "group of each holder"),
        ({"of_holder": [0.0, 1.0]}, "group of each holder"),
        ({"of_holder": [[0, 1]]}, "group of each holder"),
        ({"rate": [0.5, 1.1]}, "rates"),
        ({"rate": [0.5, -0.1]}, "rates"),
        ({"rate": [0.5, float("nan")]}, "rates"),
        ({"rate": [0.5]}, "one clip"),
        ({"clips": [1.0]}, "one clip"),
        ({"clips": [1.0, 0.0]}, "clips"),
        ({"clips": [1.0, float("inf")]}, "clips"),
        ({"first": [0, -1]}, "takes part"),
        ({"first": [0, 5], "last": [10, 4]}, "takes part"),
        ({"last": [10, 11]}, "takes part"),
        ({"steps": 0, "first": [0, 0], "last": [0, 0]}, "steps"),
        ({"steps": 2.5, "first": [0, 0], "last": [1, 1]}, "steps"),
    ],
)
def test_groups_that_cannot_be_sampled_are_refused(change, reason):
    good = {"of_holder": [0, 1], "rate": [0.5, 0.1], "clips": [1.0, 1.0], "first": [0, 0], "last": [10, 10], "steps": 10}
    sampler_of(**good)
    with pytest.raises(SartorError, match=reason):
        sampler_of(**{**good, **change})
