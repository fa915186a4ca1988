"""`sartor audit`: attack a run's plan on its data, or replay it with holders zeroed, and say whether what is found breaks a promise.

Whatever it trains are fresh, seeded runs from the run's settings: they use neither its key nor its model. What an audit finds is about the
training records themselves, so of data that may not be shown it is told only where `--sensitive` says so.
"""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sartor.cli.audited import FROM_SHADOWS, audited
from sartor.cli.output import print_json, refuse_inputs, say, show
from sartor.errors import SartorError
from sartor.layout import Table
from sartor.numbers import check_seed

if TYPE_CHECKING:
    from sartor.audit.findings import Findings
    from sartor.audit.replay import Replayed

ATTACKS = (*FROM_SHADOWS, "canary", "replay")
_PRIVATE = (
    "an audit tells of the training records themselves, and these are people's own: say --sensitive if you may see that, and show what it "
    "prints to nobody."
)


def audit(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN|CONFIG",
            help='A run\'s folder, or TOML with the options of `sartor train`; of other commands with command = "pate" or "federate".',
        ),
    ],
    attack: Annotated[str, typer.Option(help="replay, canary, lira, rmia or loss.")] = "replay",
    shadows: Annotated[int | None, typer.Option(help="lira, rmia, loss: models that are trained (64).")] = None,
    canaries: Annotated[int | None, typer.Option(help="canary: how many there are in all, spread over the groups (1000).")] = None,
    holders: Annotated[int | None, typer.Option(help="replay: how many holders are zeroed, one after the other (4).")] = None,
    steps: Annotated[int | None, typer.Option(help="replay: how many steps, rounds or queries are replayed (50).")] = None,
    confidence: Annotated[float | None, typer.Option(help="canary, lira, rmia, loss: of the verdict, over all groups (0.99).")] = None,
    cache: Annotated[
        str | None, typer.Option(metavar="DIR", help="lira, rmia, loss: keeps what shadow models show, for you alone.")
    ] = None,
    workers: Annotated[int | None, typer.Option(help="lira, rmia, loss: processes that train shadow models (1).")] = None,
    page: Annotated[str | None, typer.Option(metavar="FILE", help="Write a page with ROC curves there.")] = None,
    seed: Annotated[int, typer.Option(help="Of the runs that the audit makes.")] = 0,
    sensitive: Annotated[bool, typer.Option("--sensitive", help="The data are people's own, and you may see what is found.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Attack a run's plan on its data, or replay it with holders zeroed, and compare with what was promised: exit code 1 if it is refuted.

    Ensembles (PATE) and federated rounds have the attacks replay and canary, where a canary is a voting of one of two neighbouring
    ensembles, or an extra client.
    """
    from sartor.audit.sensitive import NOTE
    from sartor.sgd.interrupt import as_ctrl_c

    given = {"--shadows": shadows, "--cache": cache, "--canaries": canaries, "--holders": holders, "--steps": steps, "--workers": workers}
    _check(attack, {name: value for name, value in {**given, "--confidence": confidence}.items() if value is not None}, seed)
    sure = 0.99 if confidence is None else confidence
    subject = audited(run, seed)
    if not (subject.may_be_shown or sensitive):
        raise SartorError(_PRIVATE)
    if page is not None:
        if attack == "replay":
            raise SartorError("--page draws ROC curves, which replay has none of.")
        _check_page(page, run, *subject.inputs)
    if cache is not None:
        _check_apart("--cache", cache, run, *subject.inputs)
    found: Findings | Replayed
    with as_ctrl_c() as signals:
        try:
            if attack == "replay":
                found = subject.replayed(seed, holders, 50 if steps is None else steps)
            elif attack == "canary":
                found = subject.by_canaries(seed, 1000 if canaries is None else canaries, sure)
            else:
                found = subject.by_shadows(attack, seed, 64 if shadows is None else shadows, sure, cache, 1 if workers is None else workers)
        except KeyboardInterrupt:
            goes_on = "." if cache is None else f"; the same command goes on with what is in {cache}."
            say(f"stopped, without a verdict{goes_on}")
            raise typer.Exit(128 + (signals or [signal.SIGINT])[0]) from None
    found = replace(found, sensitive=sensitive)
    if page is not None:
        _write(page, found, subject.title)
    if json:
        print_json(found.to_json(sensitive=sensitive))
    else:
        show(_table(found))
        show(_words(found) + (f"\n{NOTE}" if found.sensitive else ""))
    if found.verdict == "refuted":
        raise typer.Exit(1)


_OF = {
    "--shadows": FROM_SHADOWS,
    "--cache": FROM_SHADOWS,
    "--workers": FROM_SHADOWS,
    "--canaries": ("canary",),
    "--holders": ("replay",),
    "--steps": ("replay",),
    "--confidence": (*FROM_SHADOWS, "canary"),
}


def _check(attack: str, said: dict[str, Any], seed: int) -> None:
    if attack not in ATTACKS:
        raise SartorError(f'--attack is {", ".join(ATTACKS[:-1])} or {ATTACKS[-1]}, not "{attack}".')
    for option in sorted(said):
        if attack not in _OF[option]:
            raise SartorError(f"{option} goes with --attack {' or '.join(_OF[option])}.")
    if not 0 < said.get("--confidence", 0.5) < 1 - 1e-12:
        raise SartorError(f"--confidence lies between 0 and 1, not at {said['--confidence']}.")
    check_seed(seed)
    for option in ("--holders", "--steps", "--workers"):
        if said.get(option, 1) < 1:
            raise SartorError(f"{option} is 1 or more, not {said[option]}.")


def _check_page(page: str, run: str, *inputs: str | None) -> None:
    """Refuse a page in the place of what is read, or among the files of the run."""
    if not page:
        raise SartorError("--page is empty: give the name of a file.")
    refuse_inputs(page, run, *inputs)
    _check_apart("--page", page, run, *inputs)
    folder = os.path.dirname(os.path.abspath(page))
    if os.path.isdir(page) or not os.access(folder, os.W_OK):
        raise SartorError(f"--page {page} is no file that can be written: give one in a folder that is there and that you may write to.")


def _check_apart(option: str, path: str, *read: str | None) -> None:
    """Refuse to write among the files of a run, or into a folder of its data."""
    from sartor.pate.folder import lies_in

    for folder in read:
        if folder is not None and os.path.isdir(folder) and lies_in(path, folder):
            raise SartorError(f"{option} {path} lies in {folder}, which an audit leaves as it is: write elsewhere.")


def _table(found: Findings | Replayed) -> Table:
    from sartor.audit.replay import Replayed

    if not isinstance(found, Replayed):
        return found.table(sensitive=found.sensitive)
    row = [f"{found.steps:,}", f"{found.holders_tried:,}", f"{found.largest_move:.6f}", found.verdict]
    return Table(["steps", "holders tried", "largest move over the clip", "verdict"], [row], "Replay with one holder zeroed")


def _words(found: Findings | Replayed) -> str:
    from sartor.audit.replay import Replayed

    if not isinstance(found, Replayed):
        return found.sentence()
    if found.faults:
        return "Refuted:\n" + "\n".join(f"- {fault}" for fault in found.faults)
    unseen = f"\nNot seen: {'; '.join(found.unseen)}." if found.unseen else ""
    if not found.ended:
        unseen += (
            f"\nStopped after {found.steps:,} of its steps: of later ones no sums were looked at, nor what is written at the end; "
            "--steps says how many."
        )
    seen = "no sum moved by more than a holder's clip, and nothing else followed a holder's records"
    return f"Consistent: {seen}. That is no proof: other records may show more.{unseen}"


def _write(path: str, found: Any, title: str) -> None:
    from sartor.report.audit import audit_page
    from sartor.run.files import write_private, write_public

    content = audit_page(found, title=title, sensitive=found.sensitive)
    try:
        if found.sensitive:
            write_private(path, content.encode())
        else:
            write_public(path, content)
    except OSError as error:
        raise SartorError(f"{path} cannot be written: {error.strerror}.") from None
