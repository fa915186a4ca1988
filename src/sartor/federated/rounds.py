"""One round on the server: answers come in, each is used once, and one noisy mean goes out.

Guarantee: what `release` gives is a sum in which each drawn client has one vector no longer than its clip, and one centred bit times its
    share, plus the plan's noise, over the expected number of clients; see `sartor.federated.plan`.
Proof: `add` takes an answer only from a client that was drawn and has not answered, checks and clips it before it touches a sum, and
    `release` can be called once. A client that fails, is late or sends what is no update leaves both sums as they are: it contributes zero,
    which the plan charges like any other draw.
Breaks if: sums are looked at before `release`; a round's events are shown to anyone (they follow who was drawn); two rounds of one step are
    released under one stream, whose noise they would share.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from sartor.errors import SartorError
from sartor.federated.plan import FederatedPlan
from sartor.federated.updates import Array, Malformed, Named, clipped, update_of
from sartor.run.sampling import Draw
from sartor.run.stream import Stream, normal
from sartor.run.witness import Bare, Witness, witness_of


@dataclass(frozen=True, eq=False)
class Released:
    """What leaves a round: the noisy mean update, an array for each of the model's under its name, and the clip of the next round."""

    mean: dict[str, Array] = field(repr=False)
    clip: float


class Round:
    """The answers of one round, added up as they come."""

    def __init__(self, plan: FederatedPlan, draw: Draw, model: Named, clip: float, *, charged: int | None = None) -> None:
        """A round for those who were drawn, from a model, at the clip in force; `charged` is how many rounds are, for whoever looks on."""
        if not 0 < clip < np.inf:
            raise SartorError(f"the clip of a round must be positive and finite, not {clip}.")
        self._plan, self._clip, self._step = plan, float(clip), draw.step
        self._charged = charged
        self._model = {name: np.asarray(part) for name, part in model.items()}
        shares = draw.clips / plan.accounted.clip
        self._waiting = dict(zip(draw.indices.tolist(), shares.tolist(), strict=True))
        self._answered: set[int] = set()
        self._sums = [np.zeros(part.shape) for part in self._model.values()]
        self._bits = 0.0
        self._released = False
        self.events: Counter[str] = Counter()
        """How many answers were used, and how many were not and why. Sensitive: it follows who was drawn."""

    @property
    def drawn(self) -> tuple[int, ...]:
        """Whom to ask. Secret."""
        return (*self._waiting, *self._answered)

    def add(self, client: int, answer: Named) -> bool:
        """Add a client's answer, its arrays after training by their names; whether it was used."""
        if self._released:
            return self._dropped("late")
        if client in self._answered:
            return self._dropped("twice")
        if client not in self._waiting:
            return self._dropped("unasked")
        share = self._waiting.pop(client)
        self._answered.add(client)
        try:
            update, length = clipped(update_of(answer, self._model), share * self._clip)
        except Malformed:
            return self._dropped("malformed")
        for total, part in zip(self._sums, update, strict=True):
            total += part
        self._bits += share * (0.5 if length <= self._clip else -0.5)
        self.events["used"] += 1
        return True

    def _dropped(self, why: str) -> bool:
        self.events[why] += 1
        return False

    def release(self, stream: Stream) -> Released:
        """Close the round: the sums with their noise. Charge for the round before anyone is drawn for it."""
        stream.check_process()
        if self._released:
            raise SartorError("this round was released: a second release would show its sum under other noise.")
        witness = witness_of(stream)
        if witness is not None:
            witness.stands(self._step, lambda: self._model)
        self._released = True
        self.events["silent"] = len(self._waiting)
        plan = self._plan
        sizes = [total.size for total in self._sums]
        noise = normal(stream.generator("federated", self._step), sum(sizes), plan.update_noise_multiplier * self._clip)
        mean, start = {}, 0
        for name, total, size in zip(self._model, self._sums, sizes, strict=True):
            mean[name] = (total + noise[start : start + size].reshape(total.shape)) / plan.per_round
            start += size
        if witness is not None:
            mean = self._witnessed(witness, mean)
        self._sums = []
        return Released(mean, self._next_clip(stream))

    def _witnessed(self, witness: Witness, mean: dict[str, Array]) -> dict[str, Array]:
        plan, unit = self._plan, self._clip / self._plan.accounted.clip
        bare = dict(zip(self._model, self._sums, strict=True))
        told = witness.released(
            Bare(self._step, "updates", bare, mean, unit, plan.update_noise_multiplier * self._clip, plan.per_round, self._charged)
        )
        return {name: np.asarray(told[name]).reshape(part.shape) for name, part in mean.items()}

    def _next_clip(self, stream: Stream) -> float:
        """The clip after a step towards the quantile, by the noisy count."""
        plan = self._plan
        if plan.adaptive is None:
            return self._clip
        noise = float(normal(stream.generator("federated count", self._step), 1, plan.count_noise)[0])
        counted = (self._bits + noise) / plan.expected_share
        witness = witness_of(stream)
        if witness is not None:
            before, after = {"count": np.array([self._bits])}, {"count": np.array([counted])}
            unit, over = 0.5 / plan.accounted.clip, plan.expected_share
            told = witness.released(Bare(self._step, "count", before, after, unit, plan.count_noise, over, self._charged))
            counted = float(told["count"][0])
        # not cut to [0, 1], which would push the clip of a high or low quantile away from it
        shorter = counted + 0.5
        with np.errstate(over="ignore"):
            return float(np.clip(self._clip * np.exp(-plan.adaptive.lr * (shorter - plan.adaptive.quantile)), 1e-12, 1e12))
