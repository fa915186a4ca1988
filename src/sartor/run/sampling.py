"""Who takes part in a step: an independent coin per holder and step, at a cost that grows with the batch alone.

Tossing a coin for everybody would cost as much as there are holders. Instead holders of similar rates share a bin, and per bin one number
says how many are candidates.

Guarantee: at each step each holder of a group that takes part is drawn with the group's rate, independently of everybody else and of all
    other steps; where a stage has coins of inclusion, only if their coin of that stage fell so, which is tossed once.
Proof: let a bin have n members and let p be their highest rate. It draws a count K from Binomial(n, p), then a set of K distinct members
    uniformly. A set of k members arises with probability C(n, k) p^k (1 - p)^(n - k) / C(n, k) = p^k (1 - p)^(n - k), which is the
    probability under n independent coins at p: the candidates are exactly such coins. Each candidate at rate q is then kept by a coin of
    its own at q / p, and two independent coins that must both fall make one at p * q / p = q. Bins and steps use disjoint randomness
    (see `stream`), and each holder is in exactly one bin of each step in which their group takes part. Coins of inclusion come from a
    key of the stage, in the order of its members, so every step of the stage finds the same ones, also after a stop; a draw leaves out
    those who were not included, which is the draw among the others.
Breaks if: the stream is predictable; a batch is drawn again because it was empty, small or large.
Precision: coins are float64. The candidates' count is NumPy's binomial, right but for rounding of rates at 1e-16 and, for few candidates, a
    tail beyond ten deviations that it cuts off (less than 1e-12 in probability); keeping is rounded down to a multiple of 2^-53.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sartor.budgets import Budgets
from sartor.errors import SartorError
from sartor.immutable import immutable
from sartor.plans import Plan
from sartor.plans.stage import Parts
from sartor.run.stream import Stream, keyed

_PURPOSE, _INCLUSION = "sampling", "inclusion"
# Rates below 2^-60 share one bin: candidates from it are so rare that thinning them costs nothing, and bins stay few.
_LOWEST_EXPONENT = -60

Array = NDArray[np.float64]
Counts = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Draw:
    """Who was drawn at a step, in ascending order, and the clip norm of each. Secret: print or log neither.

    Nothing can be written to the arrays; `torch.tensor(draw.indices)` makes a copy that can be.
    """

    step: int
    indices: Counts = field(repr=False)
    clips: Array = field(repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "indices", immutable(self.indices, np.int64))
        object.__setattr__(self, "clips", immutable(self.clips))
        if self.indices.ndim != 1 or self.indices.shape != self.clips.shape:
            raise SartorError("a draw needs one clip for each holder drawn.")

    def __len__(self) -> int:
        return len(self.indices)


class PoissonSampler:
    """Draws the holders of each step of a plan, by the plan's stages. It has no state that matters: a draw depends on key and step alone.

    >>> budgets = Budgets.from_groups([(1.0, 600), (2.0, 400)], delta=1e-5)
    >>> import sartor
    >>> sampler = PoissonSampler(sartor.plan(budgets, "sample", steps=100, batch=50), budgets, Stream(seed=1))
    >>> sampler
    PoissonSampler(1000 holders, 100 steps, seeded: not private)
    >>> sampler.draw(3)
    Draw(step=3)
    """

    def __init__(self, plan: Plan, budgets: Budgets, stream: Stream, *, filtered: bool = False) -> None:
        """`filtered` says that whoever draws keeps to the rungs of the plan's filter, which are no part of a draw."""
        if plan.filter is not None and not filtered:
            raise SartorError(
                "this plan has a filter: what a holder may lend to a step follows their units, which a draw does not know; train with "
                "sartor.fit or sartor.make_private."
            )
        self._lay_out(plan.groups_of(budgets), len(plan), plan.parts, plan.steps, stream)

    @classmethod
    def of_groups(
        cls,
        of_holder: NDArray[np.integer],
        rate: ArrayLike,
        clips: ArrayLike,
        first: ArrayLike,
        last: ArrayLike,
        steps: int,
        stream: Stream,
    ) -> PoissonSampler:
        """From each holder's group, and for each group its rate, its clip and the steps from `first` up to but not including `last`.

        For populations too large to hold a budget per holder, and for tests: nothing binds these numbers to a plan.
        """
        rates = np.asarray(rate, float)
        groups, once = np.arange(len(rates)), np.ones(len(rates))
        windows = np.asarray(first, np.int64), np.asarray(last, np.int64)
        sampler = cls.__new__(cls)
        parts = Parts(0 * groups, groups, *windows, rates, np.asarray(clips, float), inclusion=once, noise_multiplier=once)
        sampler._lay_out(np.asarray(of_holder), len(rates), parts, steps, stream)
        return sampler

    def _lay_out(self, of_holder: NDArray[np.integer], groups: int, parts: Parts, steps: int, stream: Stream) -> None:
        _check(of_holder, groups, parts, steps)
        self.steps = int(steps)
        self.holders = len(of_holder)
        self._stream = stream
        self._order, sizes = _by_group(of_holder, groups)
        self._depth = (self.steps - 1).bit_length()
        # A window to the end of the run may as well last to the end of the tree, where it is in fewer pieces.
        until = np.where(parts.last == self.steps, 1 << self._depth, parts.last)
        self._bins = _Bins.of_parts(sizes, parts.group, parts.rate, parts.first, until, self._depth)
        self._clips = parts.clip[self._bins.part]
        self._coins = _Coins(parts, sizes, stream) if np.any(parts.inclusion < 1) else None

    def round_key(self, step: int) -> bytes | None:
        """The key of the inclusion coins of the round that a step is of, if it has some: whoever goes on in the round needs it. Secret."""
        return None if self._coins is None else self._coins.key_of(step)

    def keep_round(self, step: int, key: bytes) -> None:
        """Go on in the round of a step with the coins that were tossed for it."""
        assert self._coins is not None
        self._coins.keep(step, key)

    def draw(self, step: int) -> Draw:
        """Who takes part in a step. The same step gives the same draw, and it counts once: never draw until a batch pleases."""
        if not 0 <= step < self.steps or step != int(step):
            raise SartorError(f"the plan has the steps 0 to {self.steps - 1}: there is no step {step} to draw for.")
        step = int(step)
        coins = self._stream.generator(_PURPOSE, step)
        bins = self._bins
        active = bins.at(step, self._depth)
        counts = coins.binomial(bins.count[active], bins.top[active])
        # Floyd's algorithm, or a shuffle of the whole bin where the candidates are more than a twentieth of it: both grow with the batch.
        chosen = [
            bins.begin[b] + coins.choice(bins.count[b], size=k, replace=False, shuffle=False)
            for b, k in zip(active.tolist(), counts.tolist(), strict=True)
            if k
        ]
        candidates = np.concatenate([np.empty(0, np.int64), *chosen])
        slots = np.searchsorted(bins.end, candidates, side="right")
        kept = 1 - coins.random(len(candidates)) <= bins.keep[slots]
        slots = slots[kept]
        places = candidates[kept] + bins.shift[slots]
        if self._coins is not None:
            inside = self._coins.included(bins.part[slots], places)
            slots, places = slots[inside], places[inside]
        indices = self._order[places]
        ascending = np.argsort(indices)
        return Draw(step, indices[ascending].astype(np.int64), self._clips[slots[ascending]])

    def __repr__(self) -> str:
        seeded = ", seeded: not private" if self._stream.seeded else ""
        return f"PoissonSampler({self.holders} holders, {self.steps} steps{seeded})"


@dataclass(frozen=True, repr=False, eq=False)
class _Bins:
    """Holders by when they take part and how likely they are drawn.

    A window of steps is cut into nodes of a tree (see `_nodes`). A slot is a part of the plan, a group in a stage, in one such node; slots
    of equal node and rates within a factor of two are a bin. All members of all slots, bin after bin, are numbered from 0.
    """

    # Per slot: its part, where its numbers end, what leads from them to the holders by group, and the chance that a candidate is kept.
    part: NDArray[np.intp]
    end: Counts
    shift: Counts
    keep: Array
    # Per bin: where its numbers begin, how many there are, and the highest rate among them.
    begin: Counts
    count: Counts
    top: Array
    # The bins of each node that has any.
    of_node: dict[int, NDArray[np.intp]]

    @classmethod
    def of_parts(cls, sizes: Counts, groups: Counts, rate: Array, first: Counts, last: Counts, depth: int) -> _Bins:
        drawable = np.flatnonzero((rate > 0) & (sizes[groups] > 0) & (last > first))
        node, place = _nodes(first[drawable], last[drawable], depth)
        part = drawable[place]
        exponent = np.maximum(np.frexp(rate[part])[1], _LOWEST_EXPONENT)
        by_bin = np.lexsort((groups[part], exponent, node))
        node, part, exponent = node[by_bin], part[by_bin], exponent[by_bin]
        group = groups[part]
        differs = np.append(True, (np.diff(node) != 0) | (np.diff(exponent) != 0))
        heads = np.flatnonzero(differs[: len(group)])
        end = np.cumsum(sizes[group])
        begin = end - sizes[group]
        by_group = np.cumsum(sizes) - sizes
        top = np.maximum.reduceat(rate[part], heads)
        nodes, start, length = np.unique(node[heads], return_index=True, return_counts=True)
        return cls(
            part=part,
            end=end,
            shift=by_group[group] - begin,
            keep=rate[part] / np.repeat(top, np.diff(np.append(heads, len(group)))),
            begin=begin[heads],
            count=np.add.reduceat(sizes[group], heads),
            top=top,
            of_node={int(n): np.arange(a, a + bins) for n, a, bins in zip(nodes, start, length, strict=True)},
        )

    def at(self, step: int, depth: int) -> NDArray[np.intp]:
        """The bins of a step: those of the nodes from its leaf up to the root."""
        leaf = (1 << depth) + step
        path = (leaf >> level for level in range(depth + 1))
        return np.concatenate([np.empty(0, np.intp), *(self.of_node[node] for node in path if node in self.of_node)])


class _Coins:
    """Who takes part in a stage: one coin for each member of a group that has coins there, tossed once, whenever it is looked at.

    Looking at a stage for the first time costs as much as it has members; the coins of one stage are kept.
    """

    def __init__(self, parts: Parts, sizes: Counts, stream: Stream) -> None:
        self._parts, self._sizes, self._stream = parts, sizes, stream
        self._begin = np.cumsum(sizes) - sizes
        self._tossed_last: tuple[int, NDArray[np.bool_], Counts] = (-1, np.empty(0, bool), np.empty(0, np.int64))
        self._key = (-1, b"")

    def key_of(self, step: int) -> bytes | None:
        """The key of the coins of a step's stage, drawn when it is first asked for; None where the stage has none."""
        stage = self._stage(step)
        return self._of_stage(stage) if np.any(self._parts.inclusion[self._parts.stage == stage] < 1) else None

    def keep(self, step: int, key: bytes) -> None:
        """Toss the coins of a step's stage by this key."""
        self._key = (self._stage(step), key)

    def _stage(self, step: int) -> int:
        return int(self._parts.stage[np.flatnonzero((self._parts.first <= step) & (step < self._parts.last))].max(initial=-1))

    def _of_stage(self, stage: int) -> bytes:
        if self._key[0] != stage:
            self._key = (stage, self._stream.generator(_INCLUSION, stage).bytes(16))
        return self._key[1]

    def included(self, part: NDArray[np.intp], place: NDArray[np.integer]) -> NDArray[np.bool_]:
        """Of members, by their place among everybody in the order of groups, in parts of one stage: whether their coin let them in."""
        out = np.ones(len(part), bool)
        if len(part):
            fell, offset = self._tossed(int(self._parts.stage[part[0]]))
            tossed = self._parts.inclusion[part] < 1
            own = part[tossed]
            member = place[tossed].astype(np.int64) - self._begin[self._parts.group[own]]
            out[tossed] = fell[offset[own] + member]
        return out

    def _tossed(self, stage: int) -> tuple[NDArray[np.bool_], Counts]:
        """The coins of a stage, part after part, and where those of each part begin."""
        if self._tossed_last[0] == stage:
            return self._tossed_last[1:]
        rows = np.flatnonzero((self._parts.stage == stage) & (self._parts.inclusion < 1))
        sizes = self._sizes[self._parts.group[rows]]
        offset = np.zeros(len(self._parts.group), np.int64)
        offset[rows] = np.cumsum(sizes) - sizes
        coins = keyed(self._of_stage(stage)).random(int(sizes.sum()))
        self._tossed_last = (stage, 1 - coins <= np.repeat(self._parts.inclusion[rows], sizes), offset)
        return self._tossed_last[1:]


def _by_group(of_holder: NDArray[np.integer], groups: int) -> tuple[NDArray[np.unsignedinteger], Counts]:
    """Everybody, group after group, and the groups' sizes. In the smallest whole numbers that do, as it is as long as the population."""
    narrow = of_holder.astype(np.min_scalar_type(groups - 1), copy=False)
    order = np.argsort(narrow, kind="stable").astype(np.min_scalar_type(len(of_holder) - 1))
    return order, np.bincount(narrow, minlength=groups)


def _nodes(first: Counts, last: Counts, depth: int) -> tuple[Counts, NDArray[np.intp]]:
    """Windows of steps as nodes of a binary tree over 2^depth steps: the node of each piece, and which window it is a piece of.

    Node 1 is everything, and the nodes 2i and 2i + 1 are the halves of node i. A window falls into at most 2 * depth pieces, and each of
    its steps lies in exactly one; so, however many windows there are, those of a step are found on the path from its leaf to the root.
    """
    low, high = first + (1 << depth), last + (1 << depth)
    node: list[Counts] = []
    window: list[NDArray[np.intp]] = []
    for _ in range(depth + 1):
        # A left end that is a right half, and a right end whose last piece is a left half, have no parent within the window.
        left = np.flatnonzero((low < high) & (low % 2 == 1))
        node.append(low[left])
        window.append(left)
        low[left] += 1
        right = np.flatnonzero((low < high) & (high % 2 == 1))
        high[right] -= 1
        node.append(high[right])
        window.append(right)
        low //= 2
        high //= 2
    return np.concatenate(node), np.concatenate(window)


def _check(of_holder: NDArray[np.integer], groups: int, parts: Parts, steps: int) -> None:
    rate, clips, first, last = parts.rate, parts.clip, parts.first, parts.last
    for name, values in (("rate", rate), ("clip", clips), ("first step", first), ("last step", last)):
        if values.shape != parts.group.shape:
            raise SartorError(f"a sampler needs one {name} for each of its {groups} groups.")
    if of_holder.ndim != 1 or not of_holder.size or of_holder.dtype.kind not in "iu":
        raise SartorError("a sampler needs the group of each holder as a whole number.")
    wrong = {
        f"holders name a group outside 0 to {groups - 1}": bool(of_holder.min() < 0 or of_holder.max() >= groups),
        "rates must lie in [0, 1]": not np.all((rate >= 0) & (rate <= 1)),
        "clips must be positive and finite": not np.all((clips > 0) & np.isfinite(clips)),
        f"the steps must be a whole number of 1 or more, not {steps}": steps < 1 or steps != int(steps),
        "a group takes part from a step of the run up to a later one": not np.all((first >= 0) & (last >= first) & (last <= steps)),
    }
    for sentence, is_wrong in wrong.items():
        if is_wrong:
            raise SartorError(f"this cannot be sampled: {sentence}.")
