"""An ensemble of PATE as `sartor audit` looks at it: from settings with its data and teachers, from its folder by plan and budgets alone.

A folder keeps votes of real people, which a replay could only show to whoever asks; so votes are made up there. Its key is not used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from sartor.cli.audited import HOLDERS
from sartor.cli.options import from_document, listed
from sartor.cli.output import working
from sartor.cli.pate_settings import PateSettings
from sartor.errors import SartorError

if TYPE_CHECKING:
    from sartor.audit.findings import Findings
    from sartor.audit.replay import Replayed
    from sartor.budgets import Budgets
    from sartor.ownership import Ownership
    from sartor.pate import PatePlan
    from sartor.pate.labelling import Labelling

_MADE_UP = 10  # classes of votes that are made up
_TEACHERS = "teachers and what they learn from, as these votes are made up: audit the settings of the ensemble"


class _Material(NamedTuple):
    """Budgets and plan, and the data, where they are known."""

    people: Budgets
    plan: PatePlan
    work: Labelling | None
    ownership: Ownership | None = None


@dataclass(frozen=True)
class AuditedVotes:
    """What was asked of an ensemble, or the folder of one."""

    asked: PateSettings
    folder: Path | None

    @classmethod
    def of_folder(cls, path: Path) -> Self:
        """From the folder of an ensemble."""
        return cls(PateSettings(), path)

    @classmethod
    def of_document(cls, document: Mapping[str, Any], name: str, seed: int) -> Self:
        """From settings; budgets by shares are dealt out by the seed."""
        asked = replace(from_document(PateSettings, listed(document, ("epsilon", "share", "delta")), name), seed=seed)
        asked.check()
        if asked.bound != "independent":
            raise SartorError('the bound "dependent" makes no promise, so there is none to audit.')
        return cls(asked, None)

    @property
    def may_be_shown(self) -> bool:
        """Whether the data are a set by name; whose an ensemble in a folder is, it does not say."""
        return self.folder is None

    @property
    def inputs(self) -> tuple[str | None, ...]:
        """Files that are read."""
        return self.asked.budgets, self.asked.policy

    @property
    def title(self) -> str:
        """What was taught."""
        name = "an ensemble" if self._material.work is None else self._material.work.name
        return f"{name}: audit of {self._material.plan.teachers} teachers with {self._material.plan.variant}"

    @cached_property
    def _material(self) -> _Material:
        from sartor.pate.folder import EnsembleFolder
        from sartor.pate.labelling import labelling

        if self.folder is not None:
            kept = EnsembleFolder(self.folder)
            return _Material(kept.budgets, kept.plan, None, kept.ownership)
        with working("reading the data"):
            work = labelling(self.asked.dataset, self.asked.data)
        people = self.asked.people(len(work.private))
        return _Material(people, self.asked.plan(people, work.classes, len(work.queries)), work)

    def replayed(self, seed: int, holders: int | None, steps: int) -> Replayed:
        """The teachers again without a holder, and the voting with their votes turned; of a folder, a voting with votes made up."""
        from sartor.audit.replay_ensemble import replay_ensemble
        from sartor.audit.replay_votes import replay_votes
        from sartor.pate.labelling import usual_teachers

        people, plan, work, _ = self._material
        if work is None:
            votes = np.random.default_rng(seed).integers(_MADE_UP, size=(steps, plan.teachers))
            if holders is not None:
                raise SartorError("of an ensemble's folder one holder of each group is tried: --holders goes with its settings.")
            found = replay_votes(plan, votes, _MADE_UP, seed=seed)
            return replace(found, unseen=(*found.unseen, _TEACHERS))
        asked = self.asked
        teachers = usual_teachers(work, model=asked.model, epochs=asked.epochs, workers=asked.workers, seed=seed)
        how: dict[str, Any] = {"holders": HOLDERS if holders is None else holders, "seed": seed, "go_on": asked.go_on}
        return replay_ensemble(teachers, work.private, work.queries[:steps], work.classes, people, plan, **how)

    def by_canaries(self, seed: int, canaries: int, confidence: float) -> Findings:
        """One holder of each group, whose teachers vote for one class or for another, in many votings."""
        from sartor.audit.findings import REPEATED, findings
        from sartor.audit.votes import vote_attack

        people, plan, work, ownership = self._material
        repetitions = canaries // (2 * len(plan))
        if not repetitions:
            raise SartorError(f"there must be two votings for each of the {len(plan)} groups at least, not {canaries} in all.")
        queries = {} if work is None else {"queries": len(work.queries)}
        with working("voting"):
            scores = vote_attack(plan, people, ownership=ownership, repetitions=repetitions, seed=seed, **queries)
        return findings("canary", scores, plan, confidence=confidence, bounds=REPEATED, seed=seed)

    def by_shadows(self, attack: str, seed: int, shadows: int, confidence: float, cache: str | None, workers: int) -> Findings:
        """There is no such attack."""
        raise SartorError(f"--attack {attack} is for models of sartor train; labels of an ensemble are attacked by canary and replay.")
