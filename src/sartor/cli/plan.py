"""`sartor plan`: budgets in, a checked plan out."""

from __future__ import annotations

from typing import Annotated, Any

import typer

import sartor
from sartor.allowed import Allowed
from sartor.cli.filters import FilterOptions, FullSteps, Ladder
from sartor.cli.output import print_json, refuse_inputs, say, show, working
from sartor.cli.rounds import threshold_of
from sartor.errors import SartorError
from sartor.run.files import check_place


def plan(
    epsilon: Annotated[str | None, typer.Option(help="Epsilon of each group, separated by commas; inf marks public records.")] = None,
    share: Annotated[str | None, typer.Option(help="Share of the holders in each group, separated by commas.")] = None,
    holders: Annotated[int | None, typer.Option(help="Number of holders.")] = None,
    delta: Annotated[str | None, typer.Option(help="Delta, one for all or one per group.")] = None,
    budgets: Annotated[str | None, typer.Option(metavar="FILE", help="CSV of holder,epsilon[,delta] or holder,level instead.")] = None,
    policy: Annotated[str | None, typer.Option(metavar="FILE", help="TOML that maps levels to numbers.")] = None,
    scheme: Annotated[
        str, typer.Option(help="scale, sample, hybrid, uniform, exclude, sequential, rounds, jorgensen, adapdp, or equal with a filter.")
    ] = "scale",
    steps: Annotated[int, typer.Option(help="Number of steps.")] = ...,  # type: ignore[assignment]
    batch: Annotated[float, typer.Option(help="Expected size of a batch, in holders.")] = ...,  # type: ignore[assignment]
    clip: Annotated[float, typer.Option(help="Clip norm; its mean, where clips are personal.")] = 1.0,
    accountant: Annotated[str | None, typer.Option(help="pld (tight, default) or rdp.")] = None,
    mix: Annotated[float | None, typer.Option(help="hybrid: share of sampling, in [0, 1].")] = None,
    max_excess: Annotated[float | None, typer.Option(help="hybrid: as much sampling as this excess allows.")] = None,
    threshold: Annotated[
        str | None, typer.Option(help="exclude: the smallest epsilon that takes part; rounds: fixed:W, adaptive, or numbers with commas.")
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="rounds, adapdp: how many there are.")] = None,
    spread: Annotated[str | None, typer.Option(help="rounds, adapdp: onion, even or search.")] = None,
    order: Annotated[str | None, typer.Option(help="sequential: strictest-first or open-first.")] = None,
    filter: Annotated[str | None, typer.Option(help="ladder or renyi: lets people whose gradients are short take part for longer.")] = None,
    refresh: Annotated[int | None, typer.Option(help="Filters: steps between looks at everybody's norms; usually an epoch.")] = None,
    full_steps: FullSteps = None,
    ladder: Ladder = None,
    public_rate: Annotated[float | None, typer.Option(help="Rate of public records.")] = None,
    public_clip: Annotated[float | None, typer.Option(help="Clip of public records.")] = None,
    reserve: Annotated[float, typer.Option(help="Share of every budget kept for later releases.")] = 0.0,
    deniable: Annotated[bool, typer.Option("--deniable", help="Draw each epsilon at random at or below the holder's own.")] = False,
    seed: Annotated[int | None, typer.Option(help="For tests: seed of random assignments.")] = None,
    out: Annotated[str | None, typer.Option(metavar="FILE", help="Also write the plan as JSON.")] = None,
    all_groups: Annotated[
        bool, typer.Option("--all-groups", help="Write small groups to --out too (sensitive: readable by you alone).")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Turn budgets into rates, clips and noise that honour every one of them."""
    if out is not None:
        refuse_inputs(out, budgets, policy)
    filtered = FilterOptions(option="--filter", kind=filter, refresh=refresh, full_steps=full_steps, ladder=ladder)
    filtered.check(accountant)
    allowed = Allowed(epsilon, share, delta, file=budgets, policy=policy, reserve=reserve, seed=seed)
    if budgets is not None and holders is not None:
        raise SartorError("--holders goes with --epsilon; a file of budgets says itself who they are.")
    people = allowed.budgets(holders)
    if deniable:
        people = people.deniable(seed=seed)
    given: dict[str, Any] = {"accountant": accountant, "mix": mix, "max_excess": max_excess, "order": order}
    given |= {"rounds": rounds, "spread": spread, "threshold": None if threshold is None else threshold_of(scheme, threshold)}
    options: dict[str, Any] = {**filtered.accountant, **{name: value for name, value in given.items() if value is not None}}
    with working("planning"):
        made = sartor.plan(
            people,
            scheme,
            steps=steps,
            batch=batch,
            clip=clip,
            public_rate=public_rate,
            public_clip=public_clip,
            **filtered.of_plan(steps=steps, batch=batch, holders=len(people)),
            **options,
        )
        if json:
            document = made.to_json()
    if out is not None:
        check_place(out)
    if json:
        print_json(document)
    else:
        show(made)
    if out is not None:  # last of all: where nothing can be printed, nothing is replaced
        _write(made, out, all_groups)


def _write(made: sartor.Plan, path: str, all_groups: bool) -> None:
    made.save(path, sensitive=all_groups)
    if made.to_json()["merged"] and not all_groups:
        say(f"note: {path} shows groups of fewer than 10 holders merged; --all-groups writes them all, for you alone.")
