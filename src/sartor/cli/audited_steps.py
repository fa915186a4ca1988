"""A run of SGD as `sartor audit` looks at it: everything is trained anew from the run's settings, and not with its key."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from sartor.cli.audited import HOLDERS, that_fit
from sartor.cli.output import working
from sartor.cli.train_job import Job, prepared
from sartor.cli.train_settings import TrainSettings
from sartor.errors import SartorError

if TYPE_CHECKING:
    from torch import nn

    from sartor.audit.findings import Findings
    from sartor.audit.replay import Replayed
    from sartor.report.folder import RunFolder


@dataclass(frozen=True)
class AuditedSteps:
    """What was asked of a run, and its folder, if it has one."""

    asked: TrainSettings
    folder: RunFolder | None

    def __post_init__(self) -> None:
        if self.asked.form == "published":
            raise SartorError("the published form makes no promise that holds, so there is none to audit.")
        if self.asked.dataset is None and self.asked.table is None and self.asked.arrays is None:
            raise SartorError("the settings of this run name no data: give a dataset, a table or arrays.")

    @classmethod
    def of_folder(cls, path: Path) -> Self:
        """From the folder of a run; of a seeded one as well the audit's seed counts."""
        from sartor.report.folder import RunFolder

        folder = RunFolder(path)
        return cls(replace(TrainSettings.from_document(folder.config(), "config.toml"), seed=None, sensitive=False), folder)

    @classmethod
    def of_document(cls, document: Mapping[str, Any], name: str, seed: int) -> Self:
        """From settings; budgets by shares are dealt out by their seed, or by the audit's."""
        asked = TrainSettings.from_document(document, name)
        return cls(replace(asked, seed=seed if asked.seed is None else asked.seed, sensitive=False), None)

    @property
    def may_be_shown(self) -> bool:
        """Whether the data are a set by name."""
        return self.asked.dataset is not None

    @property
    def inputs(self) -> tuple[str | None, ...]:
        """Files that are read."""
        asked = self.asked
        return asked.table, asked.test, asked.schema, asked.arrays, asked.budgets, asked.policy

    @property
    def title(self) -> str:
        """What was trained."""
        return f"{self._job.data.name}: audit of {self._job.recipe.model} trained with {self._job.plan.scheme}"

    @cached_property
    def _job(self) -> Job:
        return prepared(self.asked, self.folder, audited=True)

    def _made(self) -> nn.Module:
        """A new network, by torch's random numbers as they are."""
        from sartor.models import registry

        data = self._job.data
        return registry.build(self._job.recipe.model, shape=data.shape, classes=data.classes, vocabulary=data.vocabulary)

    def replayed(self, seed: int, holders: int | None, steps: int) -> Replayed:
        """`sartor train` again with holders zeroed, with what it writes for everybody; no model of it is ever on a disk."""
        from sartor.audit.replay import replay
        from sartor.cli.train import shown_of

        job = self._job
        with tempfile.TemporaryDirectory(prefix="sartor-audit-") as place, working("replaying"):

            def train(data: Any, seed: int) -> Path:
                asked, path = replace(job.asked, seed=seed), Path(place) / "run"
                shutil.rmtree(path, ignore_errors=True)
                path.mkdir()
                shown_of(job._replace(asked=asked, model=self._made(), data=replace(job.data, train=data)), path)
                return path

            how: dict[str, Any] = {
                "ownership": job.data.ownership,
                "holders": HOLDERS if holders is None else holders,
                "seed": seed,
                "most_steps": steps,
            }
            found = replay(train, job.data.train, job.budgets, job.plan, **how)
        taken = job.data.from_private
        return replace(found, unseen=(*found.unseen, f"the {taken}, which were taken from private rows")) if taken else found

    def by_canaries(self, seed: int, canaries: int, confidence: float) -> Findings:
        """Canary gradients in one run."""
        from sartor.audit.canaries import canary_attack
        from sartor.audit.findings import findings

        job = self._job
        sizes = [parameter.numel() for parameter in job.model.parameters() if parameter.requires_grad]
        count = that_fit(canaries, sizes)
        with working("training with canaries"):
            found = canary_attack(
                self._made,
                job.data.train,
                job.budgets,
                job.plan,
                canaries=count,
                seed=seed,
                lr=job.recipe.lr,
                optimizer=job.recipe.optimizer,
                momentum=job.recipe.momentum,
                ownership=job.data.ownership,
                max_physical_batch=job.asked.max_physical_batch,
            )
        return findings("canary", found.white_box, job.plan, confidence=confidence, bounds=found.bounds, seed=seed)

    def by_shadows(self, attack: str, seed: int, shadows: int, confidence: float, cache: str | None, workers: int) -> Findings:
        """Shadow models with and without every holder."""
        from sartor.audit.findings import ONE_RUN, findings
        from sartor.audit.lira import lira, losses
        from sartor.audit.rmia import rmia
        from sartor.audit.shadow_training import Learning
        from sartor.audit.shadows import train_shadows

        least = {"lira": 6, "rmia": 4, "loss": 2}[attack]
        if shadows < least or shadows % 2:
            raise SartorError(f"--attack {attack} needs an even number of shadow models, {least} or more, not {shadows}.")
        job = self._job
        if attack == "rmia" and not len(job.data.test):
            raise SartorError(
                "rmia compares with records that nobody trained on, and this run has none: give public rows (--test of sartor train)."
            )
        trained = train_shadows(
            self._made,
            job.data.train,
            job.budgets,
            job.plan,
            models=shadows,
            population=job.data.test if len(job.data.test) else None,
            learning=Learning(lr=job.recipe.lr, optimizer=job.recipe.optimizer, momentum=job.recipe.momentum),
            ownership=job.data.ownership,
            signal="loss" if attack == "loss" else "log-odds",
            seed=seed,
            folder=cache,
            workers=workers,
        )
        score: Any = {"lira": lira, "rmia": rmia, "loss": losses}[attack]
        # figures pool all models; a bound is from one alone, in which everybody's coin was their own
        alone = score(trained, models=[0])
        return findings(attack, score(trained), job.plan, confidence=confidence, bounds=ONE_RUN, counted=alone, seed=seed)
