"""One round: clipping over all arrays, sensitivity by attack with the noise off, noise by its moments, and answers that must not count."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import sartor
from sartor import federated
from sartor.errors import SartorError
from sartor.federated.rounds import Round
from sartor.federated.updates import Malformed, clipped, norm, update_of
from sartor.run.sampling import Draw, PoissonSampler
from sartor.run.stream import Stream
from sartor_testing import hand_rounds
from sartor_testing.forks import refused_in_a_fork


def named(parts):
    """Arrays under names of their own, as a model has them."""
    return {f"array {place}": part for place, part in enumerate(parts)}


SHAPES = ((2, 3), (), (4,))
MODEL = named(np.zeros(shape, np.float32) for shape in SHAPES)
NUMBERS = st.floats(-1e300, 1e300) | st.floats(-3, 3) | st.sampled_from([0.0, 5e-324, 1e-160])


def updates(elements=NUMBERS):
    return st.tuples(*(hnp.arrays(np.float64, shape, elements=elements) for shape in SHAPES))


def exact_norm(parts):
    """In whole numbers of any size: no overflow, no rounding until the end."""
    from mpmath import mp, mpf, sqrt

    with mp.workdps(40):
        return sqrt(sum(mpf(float(x)) ** 2 for part in parts for x in np.ravel(part)))


@given(update=updates(), clip=st.floats(1e-300, 1e6))
@example(update=tuple(np.full(shape, 1e300) for shape in SHAPES), clip=1e-12)
@example(update=tuple(np.full(shape, 1.7e195) for shape in SHAPES), clip=3.1e-124)
@example(update=tuple(np.full(shape, 1.7) for shape in SHAPES), clip=1.1e-300)
def test_no_clipped_update_is_longer_than_its_clip(update, clip):
    short, length = clipped(update, clip)
    assert exact_norm(short) <= clip
    exact = exact_norm(update)
    if exact < 1e300:
        assert length == pytest.approx(float(exact), rel=1e-9, abs=0)
    if exact < clip * (1 - 1e-8):
        assert all(np.array_equal(a, b) for a, b in zip(short, update, strict=True))
    elif exact > clip and exact < 1e300:  # it keeps its direction and loses no more than a billionth of what it may have
        assert float(exact_norm(short) / clip) == pytest.approx(1, rel=1e-8)


@pytest.mark.parametrize("clip", [5e-324, 3.7e-322, 1.234e-310, 9.9e-301])
@pytest.mark.parametrize("size", [5e-324, 1e-310, 1.0, 1e250])
def test_no_update_is_longer_than_a_clip_that_has_few_digits(clip, size):
    rng = np.random.default_rng(1)
    for _ in range(20):
        assert exact_norm(clipped([size * rng.standard_normal(shape) for shape in SHAPES], clip)[0]) <= clip


def test_zero_updates_and_arrays_of_no_dimension_are_clipped_like_others():
    assert norm([np.zeros(3), np.array(0.0)]) == 0
    assert [part.tolist() for part in clipped([np.zeros(3), np.array(0.0)], 1.0)[0]] == [[0, 0, 0], 0]
    short, length = clipped([np.zeros(3), np.array(-50.0)], 1.0)
    assert length == 50
    assert short[1] == pytest.approx(-1)


def plan_for(shares=(1.0,), *, per_round=7.0, multiplier=0.0, adaptive=None, holders=20):
    """Everyone takes part in each of three rounds; no noise unless a multiplier is given."""
    size = len(shares)
    arrays = {"delta": np.full(size, 0.5), "holders": np.full(size, holders)}
    stage = sartor.plans.Stage(3, multiplier, rate=np.ones(size), clips=1.5 * np.array(shares))
    epsilon = np.full(size, np.inf) if multiplier == 0 and size == 1 else 1e9 + np.arange(size)
    if multiplier == 0:
        arrays["delta"] = np.linspace(0.1, 0.5, size)
        epsilon = np.full(size, np.inf)
    plan = sartor.Plan("scale", "rdp", batch=per_round, clip=1.5, stages=[stage], epsilon=epsilon, **arrays)
    return federated.FederatedPlan(plan, adaptive)


def mean_of(plan, answers, *, clip=1.5, drawn=None, shares=None, seed=1, step=0):
    """What a round releases from these answers of clients 0, 1 and so on (None: no answer)."""
    count = len(answers) if drawn is None else drawn
    clips = np.full(count, plan.accounted.clip) if shares is None else plan.accounted.clip * np.array(shares)
    current = Round(plan, Draw(step, np.arange(count), clips), MODEL, clip)
    for client, answer in enumerate(answers):
        if answer is not None:
            current.add(client, named(answer))
    return current, current.release(Stream(seed))


def distance(one, other):
    assert one.keys() == other.keys()
    return float(np.sqrt(sum(np.sum((one[name] - other[name]) ** 2) for name in one)))


ADAPTIVE = st.sampled_from([None, federated.AdaptiveClip(), federated.AdaptiveClip(0.9, 1.0)])


@given(
    answers=st.lists(updates(st.floats(-5, 5) | st.just(1e200)), min_size=1, max_size=5),
    other=updates(st.floats(-5, 5) | st.just(-1e200)),
    shares=st.lists(st.sampled_from([0.25, 1.0, 3.0]), min_size=5, max_size=5),
    clip=st.floats(0.01, 10),
    per_round=st.floats(0.5, 50),
    adaptive=ADAPTIVE,
)
def test_one_client_moves_the_sum_by_at_most_its_clip(answers, other, shares, clip, per_round, adaptive):
    plan = plan_for((0.25, 1.0, 3.0), per_round=per_round, adaptive=adaptive)
    options = {"clip": clip, "drawn": 5, "shares": shares}
    before, most = mean_of(plan, answers, **options)[1], shares[0] * clip
    room = 1e-12 * (1 + sum(shares) * clip)
    zero = [np.zeros(shape) for shape in SHAPES]
    for without in ([None, *answers[1:]], [zero, *answers[1:]]):  # removed, or zeroed
        assert distance(before.mean, mean_of(plan, without, **options)[1].mean) * per_round <= most + room
    replaced = mean_of(plan, [other, *answers[1:]], **options)[1]
    assert distance(before.mean, replaced.mean) * per_round <= 2 * most + room


@given(
    lengths=st.lists(st.floats(0, 4), min_size=1, max_size=5),
    other=st.floats(0, 4),
    shares=st.lists(st.sampled_from([0.25, 1.0, 3.0]), min_size=5, max_size=5),
)
def test_one_client_moves_the_count_by_at_most_half_its_share(lengths, other, shares):
    plan = plan_for((0.25, 1.0, 3.0), adaptive=federated.AdaptiveClip())
    answers = [[np.zeros((2, 3)), np.array(length), np.zeros(4)] for length in lengths]
    whole = mean_of(plan, answers, drawn=5, shares=shares)[0]
    gone = mean_of(plan, [None, *answers[1:]], drawn=5, shares=shares)[0]
    replaced = mean_of(plan, [[np.zeros((2, 3)), np.array(other), np.zeros(4)], *answers[1:]], drawn=5, shares=shares)[0]
    assert abs(whole._bits - gone._bits) == pytest.approx(shares[0] / 2)
    assert abs(whole._bits - replaced._bits) <= shares[0] + 1e-12


def test_sums_are_divided_by_the_clients_expected():
    plan = plan_for(per_round=7.0)
    one = [np.zeros((2, 3)), np.array(1.0), np.zeros(4)]
    for answers in ([one], [one, one], [one, None, None]):
        released = mean_of(plan, answers, drawn=5)[1]
        assert released.mean["array 1"] == pytest.approx(sum(answer is not None for answer in answers) / 7)


def test_nobody_drawn_and_nobody_answering_still_gives_noise():
    plan = plan_for(multiplier=2.0)
    empty, silent = mean_of(plan, [], seed=3)[1], mean_of(plan, [None, None], drawn=2, seed=3)[1]
    assert np.any(empty.mean["array 0"] != 0)
    assert distance(empty.mean, silent.mean) == 0


def test_noise_has_the_applied_deviation_on_every_coordinate():
    big = named([np.zeros((300, 100), np.float32), np.zeros((), np.float32)])
    budgets = sartor.Budgets.from_groups([(3.0, 100)], delta=1e-3)
    plan = federated.plan(budgets, rounds=60, per_round=25, clip=0.7, adaptive=federated.AdaptiveClip())
    scalars, squares = [], []
    stream = Stream(5)
    for step in range(60):
        released = Round(plan, Draw(step, np.arange(0), np.zeros(0)), big, 0.7).release(stream)
        squares.append(np.mean((released.mean["array 0"] * 25) ** 2))
        scalars.append(float(released.mean["array 1"]) * 25)
    wanted = plan.update_noise_multiplier * 0.7
    assert np.sqrt(np.mean(squares)) == pytest.approx(wanted, rel=0.005)
    assert np.std(scalars) == pytest.approx(wanted, rel=0.35)
    assert wanted > 1.0001 * plan.accounted.noise
    assert len(set(scalars)) == 60


def test_the_count_is_noised_and_the_clip_walks_to_the_quantile():
    rng = np.random.default_rng(0)
    lengths = rng.lognormal(0.0, 0.5, 2_000)
    budgets = sartor.Budgets.from_groups([(10.0, 2_000)], delta=1e-4)
    plan = federated.plan(budgets, "uniform", rounds=200, per_round=400, clip=10.0, adaptive=federated.AdaptiveClip(0.8, 0.2))
    sampler, stream, clip, clips = PoissonSampler(plan.accounted, budgets, Stream(1)), Stream(2), 10.0, []
    for step in range(120):
        current = Round(plan, sampler.draw(step), named([np.zeros(())]), clip)
        for client in current.drawn:
            current.add(client, named([np.array(lengths[client])]))
        clip = current.release(stream).clip
        clips.append(clip)
    assert np.mean(clips[60:]) == pytest.approx(np.quantile(lengths, 0.8), rel=0.1)
    silent = [Round(plan, Draw(step, np.arange(0), np.zeros(0)), named([np.zeros(())]), 1.0).release(stream).clip for step in range(200)]
    count = [-np.log(value) / 0.2 + 0.8 - 0.5 for value in silent]  # what the noise alone made of nothing
    assert np.std(count) == pytest.approx(plan.count_noise / 400, rel=0.15)


def test_a_noisy_share_beyond_all_clients_is_not_cut():
    plan = plan_for(multiplier=1.0, adaptive=federated.AdaptiveClip(0.9, 1.0, noise=3.0), per_round=20.0)
    noise = [float(Stream(seed).generator("federated count", 0).standard_normal()) * 3.0 for seed in range(10)]
    assert max(noise) > 1
    for seed, own in enumerate(noise):
        clip = mean_of(plan, [[np.zeros(shape) for shape in SHAPES]] * 20, seed=seed)[1].clip  # all are short
        assert clip == pytest.approx(1.5 * np.exp(-((10 + own) / 20 + 0.5 - 0.9)))


def test_answers_that_are_none_change_nothing_and_are_counted():
    plan = plan_for()
    good = [np.ones((2, 3)), np.array(0.5), np.zeros(4)]
    bad = {
        "nan": [np.ones((2, 3)), np.array(np.nan), np.zeros(4)],
        "infinite": [np.full((2, 3), np.inf), np.array(0.0), np.zeros(4)],
        "shape": [np.ones((3, 2)), np.array(0.5), np.zeros(4)],
        "few": good[:2],
        "many": [*good, np.zeros(1)],
        "none": [],
        "text": [np.array([["a"] * 3] * 2), np.array(0.5), np.zeros(4)],
        "complex": [np.ones((2, 3), complex), np.array(0.5), np.zeros(4)],
        "object": [np.ones((2, 3), object), np.array(0.5), np.zeros(4)],
    }
    alone = mean_of(plan, [good], drawn=2)[1]
    for name, answer in bad.items():
        current, released = mean_of(plan, [good, answer], drawn=2)
        assert distance(alone.mean, released.mean) == 0, name
        assert current.events == {"used": 1, "malformed": 1, "silent": 0}, name


def test_a_client_is_used_once_and_strangers_never():
    plan = plan_for()
    good = [np.ones((2, 3)), np.array(0.5), np.zeros(4)]
    current = Round(plan, Draw(0, np.array([3, 8]), np.array([1.5, 1.5])), MODEL, 1.5)
    assert current.add(3, named(good))
    assert not current.add(3, named(good))
    assert not current.add(5, named(good))
    assert not current.add(8, {})
    assert not current.add(8, named(good))  # it has answered, however badly
    released = current.release(Stream(0))
    assert not current.add(8, named(good))
    assert released.mean["array 1"] * 7 == pytest.approx(0.5 * 1.5 / norm(good))
    assert current.events == {"used": 1, "twice": 2, "unasked": 1, "malformed": 1, "late": 1, "silent": 0}
    with pytest.raises(SartorError, match="second release"):
        current.release(Stream(0))


def test_whole_numbers_stay_out_of_updates():
    model = named([np.zeros(2, np.float32), np.array(7, np.int64)])
    assert [part.tolist() for part in update_of(named([np.ones(2), np.array(90)]), model)] == [[1, 1], 0]
    with pytest.raises(Malformed):
        update_of(named([np.ones(2), np.array([90, 1])]), model)


def test_nothing_about_a_round_is_printed():
    plan = plan_for()
    current, released = mean_of(plan, [[np.ones((2, 3)), np.array(0.5), np.zeros(4)]])
    assert repr(released) == "Released(clip=1.5)"
    assert "Round object" in repr(current)


@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize("scheme", ["sample", "scale", "hybrid", "uniform"])
def test_a_round_releases_what_the_definitions_say(scheme, adaptive):
    assert hand_rounds.difference(hand_rounds.planned(scheme, adaptive)) < 1e-7


@pytest.mark.parametrize("adaptive", [True, False])
def test_a_round_is_not_released_with_the_noise_of_another_process(adaptive):
    plan, stream = hand_rounds.planned("sample", adaptive), Stream()
    current = Round(plan, PoissonSampler(plan.accounted, hand_rounds.BUDGETS, stream).draw(0), MODEL, 0.8)
    assert refused_in_a_fork(lambda: current.release(stream)) == "this stream is another process's"
    assert current.release(stream).mean.keys() == MODEL.keys()
