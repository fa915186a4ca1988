"""`sartor.plan`: from budgets to a checked plan, by any scheme.

Here public records are set aside and put back, noise multipliers become clips whose mean is the one asked for, and the plan is constructed,
which is where it is checked.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from numbers import Integral, Real
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from sartor.accounting import accountants, rdp, spend
from sartor.budgets import Budgets, Groups, spendable
from sartor.errors import AllDrawn, Infeasible, LargeDelta, NoNoise, RarelyUsed, SartorError, Unspent
from sartor.exposure import MOST_STEPS, MOST_UNITS
from sartor.ownership import Ownership
from sartor.plans.document import stages_of_turns
from sartor.plans.filters import KINDS, LADDER, Asked, levels, priced, with_public
from sartor.plans.plan import COMBINED, Plan
from sartor.plans.problem import Parameters, Problem, Scheduled, Scheme, find
from sartor.plans.stage import Stage

Array = NDArray[np.float64]
Counts = NDArray[np.int64]

_SPENT = 0.9  # of what people allow: rounds that spend less warn
OF_ROUNDS = ("rounds", "jorgensen", "adapdp")
"""Schemes whose stages are rounds that coins decide who is in."""

_NUDGE = 1e-9
_MOST_TRIALS = 8  # of lowered budgets
_FEW = 8
_USUALLY_MORE = 5e-4
_SAFE = 2e-5  # by which they are lowered further, so that few trials do


def plan(
    budgets: Budgets,
    scheme: str = "scale",
    *,
    steps: int,
    batch: float,
    clip: float = 1.0,
    accountant: str = "pld",
    public_rate: float | None = None,
    public_clip: float | None = None,
    ownership: Ownership | None = None,
    records_per_holder: int | None = None,
    combine: str = "mean",
    filter: str | None = None,
    refresh: int | None = None,
    full_steps: int | None = None,
    ladder: Sequence[int] = LADDER,
    **options: Any,
) -> Plan:
    """Turn budgets into a plan that honours every one of them.

    `batch` is the expected size of a batch, `clip` the clip norm (its mean over holders, where clips are personal). `public_rate` and
    `public_clip` are caps for public records; without them those are treated as the most open finite group. Schemes and their options:
    `scale`, `sample`, `uniform`, `hybrid` (`mix` in [0, 1], or `max_excess`), `exclude` (`threshold`), `sequential` (`order`), `rounds` and
    `adapdp` (`rounds`, `spread`, `threshold`), `jorgensen` (`threshold`).

    Where holders have several records, `batch` counts holders. `ownership` says whose the records are, so that the plan knows how many
    there are; of a drawn holder at most `records_per_holder` distinct ones enter a step, drawn at random (all of them, unless given), and
    their gradients' mean or sum (`combine`) is what is clipped.

    With a `filter` holders pay for the norms that their gradients have (`plans.filters`): "ladder" (tight; `ladder` are the whole costs of
    its rungs), or "renyi" (for comparison, by the accountant "rdp"). Norms are tracked every `refresh` steps; who is at full norm pays for
    `full_steps` of the `steps`, and with as many as `steps` this is the plan without a filter. Scheme `equal` treats all alike and gives
    them units by their budgets.

    Example:
        >>> import sartor
        >>> budgets = sartor.Budgets.from_shares([1, 2, 3], [0.34, 0.43, 0.23], holders=60_000, delta=1e-5, seed=1)
        >>> plan = sartor.plan(budgets, "scale", steps=9_375, batch=512, clip=0.2, accountant="rdp")
        >>> round(plan.noise_multiplier, 2)
        2.07
    """
    chosen, name = find(scheme), accountants.find(accountant).name
    _check(budgets, steps, batch, clip, public_rate, public_clip, chosen, options)
    lent = _lent(budgets, ownership, records_per_holder, combine)
    if filter is None:
        if refresh is not None or full_steps is not None or tuple(ladder) != LADDER:
            raise SartorError('refresh, full_steps and ladder are a filter\'s: give filter="ladder".')
        if chosen.name == "equal":
            raise SartorError(
                'scheme "equal" treats all budgets alike, so only units can tell them apart: give it a filter (filter="ladder"; on the '
                "command line --filter or --individual ladder)."
            )
    elif _is_filtered(filter, name, steps, refresh, full_steps, ladder, options) or chosen.name == "equal":
        asked = Asked(filter, int(cast("int", refresh)), int(cast("int", full_steps)), tuple(ladder))
        made = _filtered(budgets, chosen, int(steps), float(batch), float(clip), name, (public_rate, public_clip), options, lent, asked)
        _warn(made)
        return made
    if "max_excess" in options:
        return _within(budgets, lent, steps=steps, batch=batch, clip=clip, accountant=name, caps=(public_rate, public_clip), **options)
    made = _made(budgets, chosen, int(steps), float(batch), float(clip), name, (public_rate, public_clip), options, lent)
    _warn(made)
    return made


def _is_filtered(
    filter: str,
    accountant: str,
    steps: int,
    refresh: int | None,
    full_steps: int | None,
    ladder: Sequence[int],
    options: dict[str, Any],
) -> bool:
    """Whether what was asked for is more than the plan without a filter; refuses what makes no sense."""
    if filter not in KINDS:
        raise SartorError(f'a filter is {" or ".join(KINDS)}, not "{filter}".')
    for name, value in {"refresh": refresh, "full_steps": full_steps}.items():
        if not isinstance(value, Integral) or isinstance(value, bool) or not 1 <= value <= steps:
            raise SartorError(f"a filter needs {name}, a whole number from 1 to the {steps} steps, not {value!r}.")
    whole = [cost for cost in ladder if isinstance(cost, Integral) and not isinstance(cost, bool) and cost >= 1]
    if not whole or len(whole) != len(ladder) or any(low >= high for low, high in pairwise(whole)) or whole[-1] > MOST_UNITS:
        raise SartorError(
            f"a ladder is the whole costs of its rungs, ascending to at most {MOST_UNITS:g}, like {LADDER}: the last is that of full norm."
        )
    if filter == "renyi" and accountant != rdp.NAME:
        raise SartorError('a Rényi filter is judged by Rényi divergences: give accountant="rdp", or filter="ladder".')
    if "max_excess" in options:
        raise SartorError("max_excess is for plans without a filter; give mix.")
    return full_steps != steps


def _lent(budgets: Budgets, ownership: Ownership | None, most: int | None, combine: str) -> dict[str, Any]:
    """What a plan says of people's records."""
    if ownership is not None:
        if not isinstance(ownership, Ownership):
            raise SartorError("ownership is a sartor.Ownership: sartor.Ownership.of(names, budgets), with one name for each record.")
        ownership.check(budgets)
    if most is not None and (not isinstance(most, int) or isinstance(most, bool) or most < 1):
        raise SartorError(f"records_per_holder must be a whole number of 1 or more, or None for all, not {most!r}.")
    if combine not in COMBINED:
        raise SartorError(f'the gradients of a holder\'s records are combined by "mean" or "sum", not by "{combine}".')
    return {"records": None if ownership is None else len(ownership), "records_per_holder": most, "combine": combine}


def _check(
    budgets: Budgets,
    steps: int,
    batch: float,
    clip: float,
    public_rate: float | None,
    public_clip: float | None,
    scheme: Scheme,
    options: dict[str, Any],
) -> None:
    if not isinstance(budgets, Budgets):
        raise SartorError("a plan is made from sartor.Budgets: one budget per holder.")
    for name, value in {"steps": steps, "batch": batch, "clip": clip}.items():
        if not isinstance(value, Real) or isinstance(value, bool):
            raise SartorError(f"{name} must be a number, not {type(value).__name__}.")
    if not 1 <= steps <= MOST_STEPS or steps != int(steps):
        raise SartorError(f"steps must be a whole number from 1 to {MOST_STEPS:g}, not {steps}.")
    if not 0 < clip < np.inf:
        raise SartorError(f"the clip must be positive and finite, not {clip:g}.")
    if not 0 < batch <= len(budgets):
        raise Infeasible(
            f"an expected batch of {batch:g} cannot be drawn from {len(budgets)} holders: it must be above 0 and at most that."
        )
    if public_rate is not None and not 0 <= public_rate <= 1:
        raise SartorError(f"public_rate must lie in [0, 1], not {public_rate:g}.")
    if public_clip is not None and not 0 < public_clip < np.inf:
        raise SartorError(f"public_clip must be positive and finite, not {public_clip:g}.")
    unknown = sorted(set(options) - set(scheme.options))
    if unknown:
        takes = f"it takes {', '.join(scheme.options)}" if scheme.options else "it takes none"
        raise SartorError(f'scheme "{scheme.name}" has no option {unknown[0]}; {takes}.')


def _made(
    budgets: Budgets,
    scheme: Scheme,
    steps: int,
    batch: float,
    clip: float,
    accountant: str,
    caps: tuple[float | None, float | None],
    options: dict[str, Any],
    lent: dict[str, Any],
) -> Plan:
    groups = budgets.groups
    finite = np.isfinite(groups.epsilon)
    frame: dict[str, Any] = {
        "scheme": scheme.name,
        "accountant": accountant,
        "batch": batch,
        "clip": clip,
        "epsilon": groups.epsilon,
        "delta": groups.delta,
        "holders": groups.holders,
        "reserve": budgets.reserve,
        "options": dict(options),
        **lent,
    }
    if not finite.any():
        return _without_noise(frame, groups, caps, steps, batch, clip)
    problem = _problem(groups, finite, budgets.reserve, steps, batch, accountant, caps)
    found = scheme.solve(problem, **options)
    if isinstance(found, Scheduled):
        frame["options"] = {**plain_options(options), **found.options}
        return Plan(**frame, stages=_rounds(problem, found, finite, clip, caps))
    return Plan(**frame, stages=_complete(problem, found, groups, finite, clip, caps))


def _filtered(
    budgets: Budgets,
    scheme: Scheme,
    steps: int,
    batch: float,
    clip: float,
    accountant: str,
    caps: tuple[float | None, float | None],
    options: dict[str, Any],
    lent: dict[str, Any],
    asked: Asked,
) -> Plan:
    """The scheme's plan for `full_steps`, for budgets less what the worst choice of rungs costs more than full norm, over all steps."""
    if scheme.name == "sequential":
        raise SartorError(
            'scheme "sequential" gives each group a turn of its own, and a filter is for runs that everybody is in throughout.'
        )
    if scheme.name in OF_ROUNDS:
        raise SartorError(
            f'scheme "{scheme.name}" decides by coins who is in a round, and a filter is for runs that everybody is in throughout.'
        )
    groups = budgets.groups
    finite = np.isfinite(groups.epsilon)
    if not finite.any():
        raise SartorError("every record is public: there is nothing for a filter to protect.")
    problem = _problem(groups, finite, budgets.reserve, asked.full_steps, batch, accountant, caps)
    level, at = levels(problem)
    by_budget = scheme.name == "equal"
    few = len(level) <= _FEW  # of many, all begin with what the worst choice usually costs more, for every trial takes a table each
    lowered = np.full(len(level), level.max()) if by_budget else level * (1 if few else 1 - _USUALLY_MORE)
    for _ in range(_MOST_TRIALS):
        trial = replace(problem, epsilon=lowered, delta=at)
        stages = _complete(trial, _parameters(scheme, trial, options), groups, finite, clip, caps)
        stage = Stage(steps, stages[0].noise_multiplier, stages[0].rate, stages[0].clips)
        noise = stage.noise_multiplier * clip / stage.clips
        filter, spent = priced(asked, stage.rate[finite], noise[finite], level, at, accountant, steps, by_budget=by_budget)
        over = spent > level
        if not over.any():
            break
        lowered = np.where(over, lowered * level / spent * (1 - _SAFE), lowered)
    return Plan(
        scheme=scheme.name,
        accountant=accountant,
        batch=batch,
        clip=clip,
        epsilon=groups.epsilon,
        delta=groups.delta,
        holders=groups.holders,
        reserve=budgets.reserve,
        options=dict(options),
        stages=(stage,),
        filter=with_public(filter, finite, steps),
        **lent,
    )


def _parameters(scheme: Scheme, problem: Problem, options: dict[str, Any]) -> Parameters:
    """What a scheme without rounds says."""
    found = scheme.solve(problem, **options)
    assert isinstance(found, Parameters)
    return found


def _problem(
    groups: Groups,
    finite: NDArray[np.bool_],
    reserve: float,
    steps: int,
    batch: float,
    accountant: str,
    caps: tuple[float | None, float | None],
) -> Problem:
    epsilon, delta = spendable(groups.epsilon[finite], reserve), spendable(groups.delta[finite], reserve)
    weight = groups.holders[finite].astype(float)
    public = float(groups.holders[~finite].sum())
    wanted = batch
    if caps[0] is None:
        weight[_most_open(epsilon, delta)] += public
    else:
        wanted = batch - public * caps[0]
        if wanted <= 0:
            raise Infeasible(
                f"public records at a rate of {caps[0]:g} already fill the batch of {batch:g}; lower public_rate or raise the batch."
            )
    mean_rate = wanted / float(weight.sum())
    if mean_rate > 1 + 1e-12:
        raise Infeasible(
            f"an expected batch of {batch:g} needs a mean rate of {mean_rate:.3g} of those with a finite budget, above 1; "
            "raise public_rate or lower the batch."
        )
    return Problem(epsilon, delta, groups.holders[finite], weight, min(mean_rate, 1.0), steps, wanted, accountant)


def _most_open(epsilon: Array, delta: Array) -> int:
    return int(np.lexsort((delta, epsilon))[-1])


def _complete(
    problem: Problem,
    found: Parameters,
    groups: Groups,
    finite: NDArray[np.bool_],
    clip: float,
    caps: tuple[float | None, float | None],
) -> tuple[Stage, ...]:
    """From the finite groups' rates and noise multipliers to stages with everybody's rates and clips."""
    rate, multiplier = found.rate.copy(), found.noise_multiplier
    none = multiplier == 0
    if none.any() and not none.all():
        i = int(np.flatnonzero(none)[0])
        raise Infeasible(
            f"{problem.name(i)} is drawn so rarely that it needs no noise at all while others do, so no clip fits both; "
            'use scheme "uniform".'
        )
    weight = problem.weight.copy()
    if caps[1] is not None:  # public records with a clip of their own do not count in the mean
        weight[_most_open(problem.epsilon, problem.delta)] -= groups.holders[~finite].sum() if caps[0] is None else 0
    if none.all():
        clips, noise = np.full(len(rate), clip), 0.0
    else:
        noise = clip / float(np.average(1 / multiplier, weights=weight))
        clips = noise / multiplier
        rate, clips = _nudged(problem, rate, clips, noise, found)
    place = np.zeros(len(finite), np.intp)
    place[finite] = np.arange(len(rate))
    place[~finite] = _most_open(problem.epsilon, problem.delta)
    rates, norms = rate[place], clips[place]
    if caps[0] is not None:
        rates[~finite] = caps[0]
    if caps[1] is not None:
        norms[~finite] = caps[1]
    if found.first is None or found.last is None:
        return (Stage(problem.steps, noise / clip, rates, norms),)
    return tuple(stages_of_turns(problem.steps, noise / clip, rates, norms, found.first[place], found.last[place]))


def _rounds(
    problem: Problem, found: Scheduled, finite: NDArray[np.bool_], clip: float, caps: tuple[float | None, float | None]
) -> tuple[Stage, ...]:
    """From the finite groups' rounds to stages with everybody's; public records toss the coins of the most open group, or none."""
    place = np.zeros(len(finite), np.intp)
    place[finite] = np.arange(len(problem.epsilon))
    place[~finite] = _most_open(problem.epsilon, problem.delta)
    stages = []
    for one in found.rounds:
        rates, chance, clips = np.full(len(finite), one.rate), one.inclusion[place], np.full(len(finite), clip)
        if caps[0] is not None:
            rates[~finite], chance[~finite] = caps[0], 1.0
        if caps[1] is not None:
            clips[~finite] = caps[1]
        named = np.flatnonzero(chance > 0)
        stages.append(Stage(one.steps, one.noise_multiplier, rates[named], clips[named], named, chance[named]))
    return tuple(stages)


def plain_options(options: dict[str, Any]) -> dict[str, Any]:
    """Options as a document has them: of several numbers, a list of plain ones."""
    found: dict[str, Any] = {}
    for name, value in options.items():
        if isinstance(value, (Sequence, np.ndarray)) and not isinstance(value, str):
            found[name] = [float(one) for one in value]
        elif isinstance(value, Integral) and not isinstance(value, bool):
            found[name] = int(value)
        else:
            found[name] = value
    return found


def _nudged(problem: Problem, rate: Array, clips: Array, noise: float, found: Parameters) -> tuple[Array, Array]:
    """Undo what rounding of the last digit may have added: a clip a billionth smaller never costs more."""
    taken = problem.steps if found.first is None or found.last is None else found.last - found.first
    for _ in range(20):
        over = spend(rate, noise / clips, taken, problem.delta, problem.accountant) > problem.epsilon
        if not over.any():
            break
        clips = np.where(over, clips * (1 - _NUDGE), clips)
    return rate, clips


def _without_noise(
    frame: dict[str, Any], groups: Groups, caps: tuple[float | None, float | None], steps: int, batch: float, clip: float
) -> Plan:
    count = len(groups)
    rate = batch / float(groups.holders.sum()) if caps[0] is None else caps[0]
    return Plan(**frame, stages=(Stage(steps, 0.0, np.full(count, rate), clip if caps[1] is None else caps[1]),))


def _within(
    budgets: Budgets,
    lent: dict[str, Any],
    *,
    steps: int,
    batch: float,
    clip: float,
    accountant: str,
    caps: tuple[float | None, float | None],
    max_excess: float,
    mix: float | None = None,
) -> Plan:
    """The hybrid with the largest share of sampling, to a hundredth, whose excess stays within a ceiling; scaling alone has none."""
    if mix is not None:
        raise SartorError("give either mix or max_excess: the one decides the other.")
    if not max_excess >= 0:
        raise SartorError(f"max_excess must be 0 or more, not {max_excess:g}.")

    def at(mix: float) -> Plan:
        return _made(budgets, find("hybrid"), int(steps), float(batch), float(clip), accountant, caps, {"mix": mix}, lent)

    best, low, high = at(1.0), 0.0, 1.0
    if best.excess.max() > max_excess:
        best = at(0.0)
        while high - low > 0.01:
            middle = (low + high) / 2
            trial = at(middle)
            if trial.excess.max() <= max_excess:
                best, low = trial, middle
            else:
                high = middle
    best = replace(best, options={**best.options, "max_excess": float(max_excess)})
    _warn(best)
    return best


def _warn(made: Plan) -> None:
    if not made.protects:
        why = "every record is public" if np.isinf(made.epsilon).all() else "the deltas are so large that no noise is needed to keep them"
        warnings.warn(NoNoise(f"{why}: the plan adds no noise and protects nobody."), stacklevel=3)
    everybody = int(made.holders.sum())
    if (made.delta[np.isfinite(made.epsilon)] > 1 / everybody).any():
        message = (
            f"a delta is above one in the number of holders ({1 / everybody:.2g}), which allows to publish somebody's record outright; "
            "give smaller deltas."
        )
        warnings.warn(LargeDelta(message), stacklevel=3)
    finite = np.isfinite(made.epsilon)
    allowed = spendable(made.epsilon, made.reserve)[finite]
    if made.filter is not None and made.filter.full_steps % made.filter.refresh and np.any(made.spent[finite] < 0.99 * allowed):
        message = (
            f"stretches of {made.filter.refresh} steps do not divide the {made.filter.full_steps} that full norm pays for, so a part of "
            "the budgets stays unspent; choose full_steps as a multiple of refresh."
        )
        warnings.warn(Unspent(message), stacklevel=3)
    if made.scheme in OF_ROUNDS and made.holders[finite] @ made.spent[finite] < _SPENT * (made.holders[finite] @ allowed):
        message = (
            "the thresholds leave more than a tenth of what people allow unspent: give one, or a last one, that is nearer to the largest "
            'epsilon, or use scheme "scale".'
        )
        warnings.warn(Unspent(message), stacklevel=3)
    if made.scheme == "sample" and int(finite.sum()) > 1 and np.all(made.rate[finite] == 1):
        message = (
            "the batch is everybody, so sampling cannot tell budgets apart, and all get the noise of the strictest; "
            'use scheme "scale", or a smaller batch.'
        )
        warnings.warn(AllDrawn(message), stacklevel=3)
    rare = (made.expected_uses < 1) & (made.rate > 0)
    if rare.any():
        # enough for one use of everybody, if all are drawn alike
        enough = made.scheme not in ("scale", "uniform") and made.steps * made.batch >= everybody
        way_out = 'scheme "scale" draws all alike' if enough else "more steps or a larger batch use them more often"
        message = f"{made.view.count(rare)} are expected to be used less than once in the whole run; {way_out}."
        warnings.warn(RarelyUsed(message), stacklevel=3)
