"""The randomness of a run: a cryptographic stream, keyed by the operating system, with a substream for each purpose and step.

Coins and noise protect only while nobody can predict or reconstruct them, which ordinary generators allow from a few outputs. So this is
AES-128 in counter mode (randomgen's AESCounter under NumPy's Generator; faster here than ChaCha, both measured by
benchmarks/sampling_speed.py). A substream is a function of key, purpose and step alone: a run that resumes at a step needs nothing but
the key and the step.

Guarantee: to whoever does not hold the key, substreams are as good as independent and uniformly random, as far as AES-128 and BLAKE2b are.
Proof: a purpose has its own AES key, a keyed hash of its name. In the 128-bit counter of AES the step is the high half and a substream
    counts in the low half from 0, so two steps of a purpose meet only after 2^64 blocks of 16 bytes; within one key AES never repeats
    a block.
Breaks if: the key leaves sensitive files; a seed is given (seeds can be guessed); two different sums are released with the noise of the
    same purpose and step, for then their difference is bare. So a stream serves one run, and a run that departs from what it did
    before (other data, other settings) starts a new one.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

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

    __slots__ = ("_key", "_seeded", "_taken")

    def __init__(self, seed: int | None = None) -> None:
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int | np.integer)):
            raise SartorError(f"a seed is a whole number, not {type(seed).__name__}; leave it out for a private run.")
        self._seeded, self._taken = seed is not None, False
        if seed is None:
            self._key = secrets.token_bytes(_KEY_BYTES)
        else:
            self._key = blake2b(b"seed %d" % int(seed), digest_size=_KEY_BYTES, person=_PERSON).digest()

    @property
    def seeded(self) -> bool:
        """Whether the key was derived from a seed, so that nothing drawn from here protects anyone."""
        return self._seeded

    def take(self) -> None:
        """Give this stream to a run; a second run with the same noise would show the difference of the two bare."""
        if self._taken:
            raise SartorError(
                "this stream already belongs to another run, and sharing noise would reveal the difference of the two; make a new stream."
            )
        self._taken = True

    def same_as(self, other: Stream) -> bool:
        """Whether both draw the same coins and noise."""
        return secrets.compare_digest(self._key, other._key)

    def generator(self, purpose: str, step: int) -> np.random.Generator:
        """The substream of a purpose and a step, from its beginning. It holds the purpose's key: as secret as the stream."""
        if not 0 <= step < _MOST_STEPS or step != int(step):
            raise SartorError(f"a step is a whole number from 0 to 2^64 - 1, not {step}.")
        # No name is bound to the purpose's key: a traceback that shows local variables must not show it.
        return np.random.Generator(
            AESCounter(
                key=int.from_bytes(blake2b(purpose.encode(), digest_size=16, key=self._key, person=_PERSON).digest(), "little"),
                counter=int(step) << 64,
            )
        )

    def to_json(self) -> dict[str, Any]:
        """This stream as a JSON document. Sensitive: it holds the key, from which every coin and all noise of the run follow."""
        return {"key": self._key.hex(), "seeded": self._seeded}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Stream:
        """The stream in a JSON document: it continues the run that it was saved from."""
        try:
            key, seeded = bytes.fromhex(document["key"]), document["seeded"]
        except (KeyError, TypeError, ValueError):
            raise SartorError("this is not a stream: its key or whether it was seeded is missing or malformed.") from None
        if len(key) != _KEY_BYTES or not isinstance(seeded, bool):
            raise SartorError(f"this is not a stream: it needs a key of {_KEY_BYTES} bytes, and true or false for seeded.")
        stream = cls.__new__(cls)
        stream._key, stream._seeded, stream._taken = key, seeded, False
        return stream

    def __repr__(self) -> str:
        return f"Stream({'seeded: not private' if self._seeded else 'keyed by the operating system'})"


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
