"""The randomness of a run: a cryptographic stream, keyed by the operating system, with a substream for each purpose and step.

Coins and noise protect only while nobody can predict or reconstruct them, which ordinary generators allow from a few outputs. So this is
AES-128 in counter mode (randomgen's AESCounter under NumPy's Generator; faster here than ChaCha, both measured by
benchmarks/sampling_speed.py). A substream is a function of key, purpose and step alone. The key is in the memory of one process and never
on a disk: whoever goes on after a stop does so under another one.

Guarantee: to whoever does not hold the key, substreams are as good as independent and uniformly random, as far as AES-128 and BLAKE2b are.
Proof: a purpose has its own AES key, a keyed hash of its name. In the 128-bit counter of AES the step is the high half and a substream
    counts in the low half from 0, so two steps of a purpose meet only after 2^64 blocks of 16 bytes; within one key AES never repeats
    a block.
Breaks if: the key leaves the process; a seed is given (seeds can be guessed); two different sums are released with the noise of the
    same purpose and step, for then their difference is bare. So a stream serves one run in one process: it cannot be copied or pickled,
    gives nothing to a process that was forked from its own, and takes a new key wherever a run goes on (`renew`, `incarnate`).
"""

from __future__ import annotations

import math
import os
import secrets
from hashlib import blake2b
from typing import NoReturn, SupportsIndex

import numpy as np
from numpy.typing import NDArray
from randomgen import AESCounter

from sartor.errors import SartorError

_KEY_BYTES = 32
_MOST_STEPS = 2**64
_PERSON = b"sartor.stream"


class Stream:
    """The source of a run's coins and noise. Without a seed its key comes from the operating system; with one the run is not private.

    >>> stream = Stream(seed=1)
    >>> stream
    Stream(seeded: not private)
    >>> bool(stream.generator("noise", 7).random() == stream.generator("noise", 7).random())
    True
    """

    __slots__ = ("_key", "_process", "_seed", "_taken")

    def __init__(self, seed: int | None = None) -> None:
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int | np.integer)):
            raise SartorError(f"a seed is a whole number, not {type(seed).__name__}; leave it out for a private run.")
        self._seed, self._taken, self._process = seed, False, os.getpid()
        self._key = secrets.token_bytes(_KEY_BYTES) if seed is None else _key_of(b"seed %d" % int(seed))

    @property
    def seeded(self) -> bool:
        """Whether the key was derived from a seed, so that nothing drawn from here protects anyone."""
        return self._seed is not None

    def check_process(self) -> None:
        """Refuse any process but the one that made this stream: to be called before anything that was drawn from it is touched.

        Raises:
            SartorError: if this process was forked from the one that made it.
        """
        if os.getpid() != self._process:
            raise SartorError(
                "this stream is another process's, and both would draw the same noise; make the run in the process that runs it."
            )

    def take(self) -> None:
        """Give this stream to a run; a second run with the same noise would show the difference of the two bare.

        Raises:
            SartorError: if it was taken before, or in another process.
        """
        self.check_process()
        if self._taken:
            raise SartorError(
                "this stream already belongs to another run, and sharing noise would reveal the difference of the two; make a new stream."
            )
        self._taken = True

    def renew(self) -> None:
        """Take a new key from the operating system; a seeded stream stays as it is until its next incarnation.

        Raises:
            SartorError: in another process.
        """
        self.check_process()
        if not self.seeded:
            self._key = secrets.token_bytes(_KEY_BYTES)

    def incarnate(self, number: int) -> None:
        """Go on as the start of this number, 0 being the first: a seeded stream by a key of its own for each, any other by a new one.

        Args:
            number: How many starts there were before, so that none draws what another one drew.

        Raises:
            SartorError: if it is no whole number of 0 or more, or in another process.
        """
        if isinstance(number, bool) or not isinstance(number, int | np.integer) or number < 0:
            raise SartorError(f"an incarnation is a whole number of 0 or more, not {number}.")
        self.renew()
        if self._seed is not None:
            self._key = _key_of(b"seed %d" % int(self._seed) + (b" incarnation %d" % int(number) if number else b""))

    def generator(self, purpose: str, step: int) -> np.random.Generator:
        """The substream of a purpose and a step, from its beginning. It holds the purpose's key: as secret as the stream.

        Args:
            purpose: What is drawn, in words; each purpose has a key of its own.
            step: Which step of it.

        Returns:
            A generator to be used at once and not kept: it knows nothing of processes.

        Raises:
            SartorError: in another process, or if the step is no whole number of the counter.
        """
        self.check_process()
        if not 0 <= step < _MOST_STEPS or step != int(step):
            raise SartorError(f"a step is a whole number from 0 to 2^64 - 1, not {step}.")
        # No name is bound to the purpose's key: a traceback that shows local variables must not show it.
        return np.random.Generator(
            AESCounter(
                key=int.from_bytes(blake2b(purpose.encode(), digest_size=16, key=self._key, person=_PERSON).digest(), "little"),
                counter=int(step) << 64,
            )
        )

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise SartorError("a stream is not copied, pickled or sent to another process, which would repeat its noise; make a new stream.")

    def __repr__(self) -> str:
        return f"Stream({'seeded: not private' if self.seeded else 'keyed by the operating system'})"


def keyed(key: bytes) -> np.random.Generator:
    """A generator by a key of 16 bytes that outlives its process, as that of a round's inclusion coins does; as secret as the key."""
    return np.random.Generator(AESCounter(key=int.from_bytes(key, "little")))


def _key_of(words: bytes) -> bytes:
    return blake2b(words, digest_size=_KEY_BYTES, person=_PERSON).digest()


def normal(generator: np.random.Generator, size: int | tuple[int, ...], deviation: float, draws: int = 1) -> NDArray[np.float64]:
    """Gaussian noise of this standard deviation, in float64.

    With `draws` above 1 each number is the sum of so many independent ones over the square root of their count: the same distribution,
    in floating-point numbers from which the generator's outputs can no longer be solved for, at as many times the cost. It is the defence
    of Holohan and Braghin (2021, "Secure random sampling in differential privacy") against attacks on the low bits of noise that Mironov
    began (2012, "On significance of the least significant bits for differential privacy").

    Breaks if: guarantees are taken to the last bit; float64 noise is Gaussian but for rounding.
    """
    if not 0 <= deviation < math.inf:
        raise SartorError(f"the deviation of noise must be 0 or more and finite, not {deviation}.")
    if draws < 1 or draws != int(draws):
        raise SartorError(f"noise is the sum of 1 or more draws, not of {draws}.")
    if deviation == 0:
        return np.zeros(size)
    noise = np.asarray(generator.standard_normal(size))
    for _ in range(int(draws) - 1):
        noise += generator.standard_normal(size)
    noise *= deviation / math.sqrt(draws)
    return noise
