import copy
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from randomgen import AESCounter
from scipy import stats

from sartor.errors import SartorError
from sartor.run.stream import Stream, normal
from sartor_testing.forks import refused_in_a_fork

MANY = 200_000
SIGMAS = 5


def words(stream: Stream, purpose: str, step: int, count: int = 64) -> list[int]:
    return stream.generator(purpose, step).bit_generator.random_raw(count).tolist()


def test_the_cipher_is_aes_128():
    """The example of FIPS 197, appendix C.1."""
    key = int.from_bytes(bytes.fromhex("000102030405060708090a0b0c0d0e0f"), "little")
    plain = int.from_bytes(bytes.fromhex("00112233445566778899aabbccddeeff"), "little")
    cipher = AESCounter(key=key, counter=plain).random_raw(2)
    assert cipher.astype("<u8").tobytes().hex() == "69c4e0d86a7b0430d8cdb78070b4c55a"


@given(st.integers(), st.text(max_size=20), st.integers(0, 2**64 - 1))
def test_a_substream_is_a_function_of_key_purpose_and_step(seed, purpose, step):
    assert words(Stream(seed), purpose, step) == words(Stream(seed), purpose, step)


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1), st.text(max_size=8), st.text(max_size=8))
def test_different_steps_and_purposes_share_no_word(one, other, purpose, another):
    stream = Stream(seed=3)
    shared = set(words(stream, purpose, one)) & set(words(stream, another, other))
    assert bool(shared) == (one == other and purpose == another)


def test_the_step_is_the_high_half_of_the_counter_so_that_steps_never_overlap():
    for step in (0, 1, 2**40, 2**64 - 1):
        bits = Stream(seed=1).generator("noise", step).bit_generator
        before = bits.state["s"]["counter"].reshape(-1, 2)
        bits.random_raw(100_000)
        after = bits.state["s"]["counter"].reshape(-1, 2)
        assert before[:, 0].tolist() == [0, 1, 2, 3]
        assert set(before[:, 1].tolist()) == set(after[:, 1].tolist()) == {step}
        assert after[0, 0] == 50_000  # two words to a block


def test_every_purpose_has_its_own_cipher_key():
    keys = {tuple(Stream(seed=1).generator(p, 0).bit_generator.state["s"]["seed"][:2].tolist()) for p in ("noise", "sampling", "", "nois")}
    assert len(keys) == 4


def test_streams_without_a_seed_differ_and_are_private():
    assert not Stream().seeded
    assert words(Stream(), "noise", 0) != words(Stream(), "noise", 0)
    assert len({Stream()._key for _ in range(100)}) == 100


def test_the_key_comes_from_the_operating_system(monkeypatch):
    asked = []
    monkeypatch.setattr("secrets.token_bytes", lambda count: asked.append(count) or bytes(range(count)))
    assert Stream()._key == bytes(range(32))
    assert asked == [32]


def test_seeded_streams_say_that_they_are_not_private():
    assert Stream(seed=0).seeded
    assert "not private" in repr(Stream(seed=0))
    assert "not private" not in repr(Stream())
    assert words(Stream(seed=0), "noise", 0) != words(Stream(seed=1), "noise", 0) != words(Stream(seed=-1), "noise", 0)


@pytest.mark.parametrize("stream", [Stream(), Stream(seed=7)])
@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps, lambda stream: copy.deepcopy([{"of a run": stream}])])
def test_a_stream_is_not_copied_nor_written_down(stream, copied):
    with pytest.raises(SartorError, match="is not copied, pickled or sent to another process"):
        copied(stream)


@pytest.mark.parametrize(
    "use",
    [
        lambda stream: stream.generator("noise", 0),
        lambda stream: stream.take(),
        lambda stream: stream.check_process(),
        lambda stream: stream.renew(),
        lambda stream: stream.incarnate(1),
    ],
)
@pytest.mark.parametrize("seed", [None, 1])
def test_a_stream_gives_nothing_to_a_forked_process(use, seed):
    stream = Stream(seed)
    assert refused_in_a_fork(lambda: use(stream)) == "this stream is another process's"
    use(stream)


@pytest.mark.parametrize("again", [lambda stream: stream.renew(), lambda stream: stream.incarnate(0), lambda stream: stream.incarnate(3)])
def test_a_private_stream_that_goes_on_has_a_new_key_and_stays_taken(again):
    stream = Stream()
    stream.take()
    seen = [words(stream, "noise", 0)]
    for _ in range(3):
        again(stream)
        seen.append(words(stream, "noise", 0))
    assert len(set(map(tuple, seen))) == 4
    with pytest.raises(SartorError, match="belongs to another run"):
        stream.take()


def test_a_seeded_stream_is_the_same_within_an_incarnation_and_another_in_every_other():
    stream, seen = Stream(seed=7), []
    first = words(stream, "noise", 0)
    for number in (0, 1, 2, 10, np.int64(3)):
        stream.incarnate(number)
        seen.append(words(stream, "noise", 0))
        stream.renew()
        assert words(stream, "noise", 0) == seen[-1]
    assert seen[0] == first
    assert len(set(map(tuple, seen))) == 5
    again, other = Stream(seed=7), Stream(seed=8)
    for one in (again, other):
        one.incarnate(2)
    assert words(again, "noise", 0) == seen[2] != words(other, "noise", 0)


@pytest.mark.parametrize("number", [-1, 1.0, True, None, "1"])
def test_an_incarnation_is_a_whole_number(number):
    with pytest.raises(SartorError, match="whole number"):
        Stream(seed=1).incarnate(number)


@pytest.mark.parametrize("stream", [Stream(), Stream(seed=7)])
def test_nothing_printed_shows_the_key(stream):
    key = stream._key
    generator = stream.generator("noise", 3)
    cipher_key = generator.bit_generator.state["s"]["seed"][:2]
    told = " ".join([repr(stream), str(stream), f"{stream}", f"{[stream]}", repr(generator), repr(generator.bit_generator)])
    shapes = [key.hex(), repr(key), str(int.from_bytes(key, "little")), str(int.from_bytes(key, "big"))]
    assert not any(shape in told for shape in [*shapes, *(str(word) for word in cipher_key), *(f"{int(word):x}" for word in cipher_key)])
    assert not hasattr(stream, "__dict__")


@pytest.mark.parametrize("seed", ["1", 1.0, True, b"1"])
def test_a_seed_is_a_whole_number(seed):
    with pytest.raises(SartorError, match="whole number"):
        Stream(seed=seed)


@pytest.mark.parametrize("step", [-1, 2**64, 0.5, float("nan")])
def test_a_step_is_a_whole_number_of_the_counter(step):
    with pytest.raises(SartorError, match="step"):
        Stream(seed=1).generator("noise", step)


@pytest.mark.parametrize(("deviation", "draws"), [(1.0, 1), (2.5, 1), (2.5, 2), (0.3, 4)])
def test_noise_is_gaussian_of_the_deviation(deviation, draws):
    noise = normal(Stream(seed=11).generator("noise", draws), MANY, deviation, draws)
    assert noise.dtype == np.float64
    assert abs(noise.mean()) < SIGMAS * deviation / np.sqrt(MANY)
    assert abs(noise.var() / deviation**2 - 1) < SIGMAS * np.sqrt(2 / MANY)
    assert abs(stats.kurtosis(noise)) < SIGMAS * np.sqrt(24 / MANY)
    assert abs(stats.skew(noise)) < SIGMAS * np.sqrt(6 / MANY)
    assert stats.kstest(noise / deviation, "norm").pvalue > 1e-6
    assert abs(np.corrcoef(noise[1:], noise[:-1])[0, 1]) < SIGMAS / np.sqrt(MANY)


def test_noise_of_other_steps_and_purposes_is_independent():
    stream = Stream(seed=12)
    columns = [normal(stream.generator(purpose, step), MANY, 1.0) for purpose in ("noise", "release") for step in (0, 1, 2)]
    correlation = np.corrcoef(columns) - np.eye(len(columns))
    assert np.abs(correlation).max() < SIGMAS / np.sqrt(MANY)
    # Equal distances of values would show a substream that is another one shifted.
    assert np.intersect1d(columns[0], columns[1]).size < 5


def test_several_draws_are_added_up():
    stream = Stream(seed=13)
    generator = stream.generator("noise", 0)
    parts = [generator.standard_normal(50) for _ in range(4)]
    np.testing.assert_allclose(normal(stream.generator("noise", 0), 50, 3.0, draws=4), 3.0 * np.sum(parts, axis=0) / 2, rtol=1e-13)


@pytest.mark.parametrize(("size", "shape"), [(0, (0,)), (3, (3,)), ((2, 5), (2, 5)), ((), ())])
@pytest.mark.parametrize("deviation", [0.0, 1.5])
@pytest.mark.parametrize("draws", [1, 2])
def test_noise_has_the_size_asked_for(size, shape, deviation, draws):
    noise = normal(Stream(seed=1).generator("noise", 0), size, deviation, draws)
    assert isinstance(noise, np.ndarray)
    assert noise.shape == shape
    assert noise.dtype == np.float64


def test_no_deviation_is_exactly_no_noise():
    noise = normal(Stream(seed=1).generator("noise", 0), 1_000, 0.0, draws=3)
    assert noise.tobytes() == bytes(8 * 1_000)


@pytest.mark.parametrize("deviation", [-1.0, -1e-300, float("nan"), float("inf")])
def test_a_deviation_that_is_none_is_refused(deviation):
    with pytest.raises(SartorError, match="deviation"):
        normal(Stream(seed=1).generator("noise", 0), 3, deviation)


@pytest.mark.parametrize("draws", [0, -1, 1.5])
def test_fewer_than_one_draw_is_refused(draws):
    with pytest.raises(SartorError, match="draws"):
        normal(Stream(seed=1).generator("noise", 0), 3, 1.0, draws)
