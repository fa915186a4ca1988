"""What `sartor audit` can look at: a run of SGD, an ensemble of PATE, federated rounds; from a run's folder or a file of settings.

A file of settings has the options of `sartor train`, or says `command = "pate"` or `command = "federate"` and has the options of that. A
folder says by its files what it is of.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from sartor.cli.output import say
from sartor.documents import read_toml
from sartor.errors import SartorError

if TYPE_CHECKING:
    from sartor.audit.findings import Findings
    from sartor.audit.replay import Replayed

HOLDERS = 4
"""Who are zeroed, one after the other, unless another number is asked for."""
FROM_SHADOWS = ("lira", "rmia", "loss")
_COMMANDS = ("train", "pate", "federate")


class Audited(Protocol):
    """A mechanism with its data and its plan, of which a new, seeded run can be made as often as an audit needs one."""

    @property
    def may_be_shown(self) -> bool:
        """Whether the data are a set by name, and not people's own; known before anything of them is read."""

    @property
    def inputs(self) -> tuple[str | None, ...]:
        """Files that are read, and must not be written."""

    @property
    def title(self) -> str:
        """What it is, for a page."""

    def replayed(self, seed: int, holders: int | None, steps: int) -> Replayed:
        """Replay with so many holders zeroed, or as many as usual, of so many steps, rounds or queries at most."""

    def by_canaries(self, seed: int, canaries: int, confidence: float) -> Findings:
        """Attack with so many canaries in all."""

    def by_shadows(self, attack: str, seed: int, shadows: int, confidence: float, cache: str | None, workers: int) -> Findings:
        """Attack with shadow models."""


def that_fit(canaries: int, sizes: Sequence[int]) -> int:
    """As many canaries as a model whose arrays have these sizes has room for; it is said where those are fewer."""
    from sartor.audit.canaries import MOST_RUNS, most_canaries

    most = most_canaries(sizes)
    if canaries > most:
        say(f"note: this model has room for {most // MOST_RUNS:,} canaries in a run, so {most:,} are planted, over {MOST_RUNS} runs.")
    return min(canaries, most)


def audited(run: str, seed: int) -> Audited:
    """What a folder or a file of settings says; budgets and rows that are dealt out by lot are dealt out by the seed, where no run has."""
    path = Path(run)
    if not path.exists():
        raise SartorError(f"there is no {run}: give the folder of a run, or a file of settings.")
    return _of_folder(path) if path.is_dir() else _of_file(path, seed)


def _of_folder(path: Path) -> Audited:
    from sartor.cli.federate import SETTINGS
    from sartor.pate.folder import EnsembleFolder

    if (path / SETTINGS).exists():
        from sartor.cli.audited_rounds import AuditedRounds

        return AuditedRounds.of_folder(path)
    if EnsembleFolder.is_in(path):
        from sartor.cli.audited_votes import AuditedVotes

        return AuditedVotes.of_folder(path)
    if not (path / "config.toml").is_file():
        raise SartorError(f"{path} is not the folder of a run of sartor train, pate or federate.")
    from sartor.cli.audited_steps import AuditedSteps

    return AuditedSteps.of_folder(path)


def _of_file(path: Path, seed: int) -> Audited:
    document = read_toml(path, "the settings")
    command = document.pop("command", "train")
    if command == "train":
        from sartor.cli.audited_steps import AuditedSteps

        return AuditedSteps.of_document(document, path.name, seed)
    if command == "pate":
        from sartor.cli.audited_votes import AuditedVotes

        return AuditedVotes.of_document(document, path.name, seed)
    if command == "federate":
        from sartor.cli.audited_rounds import AuditedRounds

        return AuditedRounds.of_document(document, path.name, seed)
    raise SartorError(f"in {path.name}, command is {', '.join(_COMMANDS[:-1])} or {_COMMANDS[-1]}, not {command!r}.")
