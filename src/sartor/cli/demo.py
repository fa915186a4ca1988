"""`sartor demo`: the IDP-SGD paper's MNIST setting, planned for three groups, with what the tables mean."""

from __future__ import annotations

from typing import Annotated, Any

import typer

import sartor
from sartor.cli.output import print_json, show, working

_SETTING: dict[str, Any] = {"steps": 9_375, "batch": 512, "clip": 0.2}
_SCHEMES = ("uniform", "scale", "sample")


def demo(
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Plan the papers' MNIST setting for three groups of people and explain what comes out."""
    budgets = sartor.Budgets.from_shares([1, 2, 3], [0.34, 0.43, 0.23], holders=60_000, delta=1e-5, seed=0)
    with working("planning"):
        plans = {scheme: sartor.plan(budgets, scheme, **_SETTING) for scheme in _SCHEMES}
        older = {scheme: sartor.plan(budgets, scheme, accountant="rdp", **_SETTING) for scheme in _SCHEMES}
    if json:
        print_json({"plans": [plan.to_json() for plan in plans.values()]})
        return
    show(
        "60,000 people lend their handwriting (MNIST). 34 % are cautious and allow epsilon 1, 43 % allow 2, 23 % allow 3, at delta 1e-5.\n"
        "One model is to be trained in 9,375 steps on batches of about 512. How much noise does it take?\n"
    )
    for plan in plans.values():
        show(plan)
    uniform, scale, sample = (plans[scheme] for scheme in _SCHEMES)
    show(_meaning(uniform, scale, sample, older))


def _meaning(uniform: sartor.Plan, scale: sartor.Plan, sample: sartor.Plan, older: dict[str, sartor.Plan]) -> str:
    saved = 1 - scale.noise_multiplier / uniform.noise_multiplier
    looser = older["scale"].noise_multiplier / scale.noise_multiplier - 1
    return f"""What this means

- uniform is what libraries without individual budgets do: the most cautious people set the noise for everybody, and those who
  allowed epsilon 3 get to use {uniform.spent[2]:.2f} of it.
- scale draws everyone equally often and clips by budget: a cautious person's gradient counts at most {scale.clips[0]:.3f}, an open
  person's {scale.clips[2]:.3f}. Everyone spends what they allowed ("spent"), never more, and the noise falls by {saved:.0%}
  ({uniform.noise_multiplier:.3f} to {scale.noise_multiplier:.3f}).
- sample clips everyone alike and draws by budget instead: a cautious person is used {sample.expected_uses[0]:.0f} times in the run, an
  open one {sample.expected_uses[2]:.0f} times, at a noise of {sample.noise_multiplier:.3f}. Rates then depend on what
  the others chose; the excess says how much that may matter ({sample.excess.max():.1g} at most here; it is 0 for scale).
- Every plan checked itself when it was made: one that overspends anybody cannot be constructed. Figures are by privacy-loss
  distributions; Rényi accounting would need {looser:.1%} more noise for the same promises.

Plan your own: sartor plan --epsilon 1,2,3 --share .34,.43,.23 --holders 60000 --delta 1e-5 --steps 9375 --batch 512 --clip 0.2"""
