"""What `sartor federate` was asked for: one value from the command line to the task, the strategy and the engine."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import typer

from sartor import usual
from sartor.allowed import Allowed
from sartor.errors import SartorError
from sartor.federated.enrolment import Limits

if TYPE_CHECKING:
    from sartor.federated.enrolment import StrategySettings
    from sartor.federated.task import Settings

_NO_CLIP = 1e9  # of a run without privacy: no update is as long


@dataclass(frozen=True, kw_only=True)
class FederateSettings:
    """The options of `sartor federate`, none of which contradicts another."""

    dataset: Annotated[str, typer.Option(help="digits, mnist or fashion-mnist.")] = "digits"
    data: Annotated[str | None, typer.Option(help="Where the data set's files are; otherwise $SARTOR_DATA or data.", metavar="DIR")] = None
    clients: Annotated[int, typer.Option(help="Number of clients (writers are as many as there are).")] = usual.FEDERATION.clients
    per_round: Annotated[float, typer.Option(help="Expected number of clients in a round.")] = usual.FEDERATION.per_round
    rounds: Annotated[int, typer.Option(help="Number of rounds.")] = usual.FEDERATION.rounds
    epsilon: Annotated[str | None, typer.Option(help="Epsilon of each group, separated by commas; inf marks public clients.")] = field(
        default=None, repr=False
    )  # a small share's budget is not for a log
    share: Annotated[str | None, typer.Option(help="Share of the clients in each group, separated by commas.")] = field(
        default=None, repr=False
    )
    delta: Annotated[str, typer.Option(help="Delta, one for all or one per group.")] = field(default=usual.FEDERATION.delta, repr=False)
    budgets: Annotated[str | None, typer.Option(help="CSV of holder,epsilon[,delta] or holder,level by client.", metavar="FILE")] = None
    policy: Annotated[str | None, typer.Option(help="TOML that maps levels to numbers.", metavar="FILE")] = None
    floor: Annotated[float, typer.Option(help="Clients with an epsilon below this take no part.")] = Limits.floor
    ceiling: Annotated[float, typer.Option(help="Nor do those above this, unless theirs is inf.")] = Limits.ceiling
    delta_floor: Annotated[float, typer.Option(help="Clients with a delta below this take no part.")] = Limits.delta_floor
    delta_ceiling: Annotated[float, typer.Option(help="Nor do those above this.")] = Limits.delta_ceiling
    scheme: Annotated[str, typer.Option(help="sample, scale, hybrid, uniform, or none (no privacy).")] = "sample"
    mix: Annotated[float | None, typer.Option(help="hybrid: share of sampling, in [0, 1].")] = None
    public_rate: Annotated[float | None, typer.Option(help="Rate of public clients.")] = None
    public_clip: Annotated[float | None, typer.Option(help="Clip of public clients.")] = None
    accountant: Annotated[str, typer.Option(help="pld (tight) or rdp.")] = "pld"
    clip: Annotated[float, typer.Option(help="Clip norm of an update; its mean, where clips are personal.")] = usual.FEDERATION.clip
    adaptive_clip: Annotated[float | None, typer.Option(help="Let the clip follow this quantile of norms.", metavar="QUANTILE")] = None
    count_noise: Annotated[
        float | None, typer.Option(help="With --adaptive-clip: noise on the count of short updates; otherwise a twentieth of --per-round.")
    ] = None
    split: Annotated[str, typer.Option(help="iid, dirichlet:0.3, pachinko:0.1:10 or writer.")] = usual.FEDERATION.split
    model: Annotated[str | None, typer.Option(help="Model by name; otherwise the usual one for the data.")] = None
    epochs: Annotated[int, typer.Option(help="Epochs of a client in a round.")] = usual.FEDERATION.epochs
    batch: Annotated[int, typer.Option(help="Size of a client's batches.")] = usual.FEDERATION.batch
    lr: Annotated[float, typer.Option(help="Learning rate of clients.")] = usual.FEDERATION.lr
    server_optimizer: Annotated[str, typer.Option(help="sgd or adam.")] = usual.FEDERATION.server_optimizer
    server_lr: Annotated[float, typer.Option(help="Learning rate of the server.")] = usual.FEDERATION.server_lr
    server_momentum: Annotated[float, typer.Option(help="Momentum of the server's sgd.")] = usual.FEDERATION.server_momentum
    engine: Annotated[
        str,
        typer.Option(
            help="simulation on this machine, or deployment at ADDRESS: a rehearsal on shared data, as every client is sent the seed of "
            "the split and all budgets; for real clients write an app (examples/federated)."
        ),
    ] = "simulation"
    superlink: Annotated[str | None, typer.Argument(metavar="ADDRESS", help="deployment: where the SuperLink is.")] = None
    out: Annotated[
        str | None,
        typer.Option(
            help="Folder to keep the run in; an interrupted run in it goes on. In a deployment it is one on the server app's machine.",
            metavar="RUN",
        ),
    ] = None
    seed: Annotated[int | None, typer.Option(help="For tests: a seeded run can be repeated, and is not private.")] = None

    def __post_init__(self) -> None:
        if self.engine not in ("simulation", "deployment"):
            raise SartorError(f'an engine is "simulation" or "deployment", not "{self.engine}".')
        if (self.engine == "deployment") != (self.superlink is not None):
            raise SartorError("--engine deployment needs ADDRESS, and no other engine takes one.")
        if self.superlink is not None:
            _check_address(self.superlink)
        if self.allowed().is_said and self.is_open:
            raise SartorError("--scheme none trains without privacy: leave out the budgets.")
        if self.is_open and self.adaptive_clip is not None:
            raise SartorError("--scheme none clips nothing: leave out --adaptive-clip.")
        if self.count_noise is not None and self.adaptive_clip is None:
            raise SartorError("--count-noise goes with --adaptive-clip.")
        if self.server_momentum and self.server_optimizer == "adam":
            raise SartorError("--server-momentum goes with --server-optimizer sgd.")

    @property
    def is_open(self) -> bool:
        """Whether the run protects nobody."""
        return self.scheme == "none"

    def allowed(self) -> Allowed:
        """What clients allow, said once."""
        return Allowed(self.epsilon, self.share, self.delta, file=self.budgets, policy=self.policy, seed=self.seed)

    def limits(self) -> Limits:
        """The budgets that the server takes."""
        return Limits(self.floor, self.ceiling, self.delta_floor, self.delta_ceiling)

    def task(self, seed: int) -> Settings:
        """The task, dealt out by a seed; where nothing is said of budgets they are the usual ones."""
        from sartor.federated.task import Settings

        people = Allowed(epsilon="inf") if self.is_open else self.allowed().or_else(usual.ALLOWED)
        data, budgets, policy = ("" if path is None else os.path.abspath(path) for path in (self.data, self.budgets, self.policy))
        return Settings(
            dataset=self.dataset,
            data=data,
            clients=self.clients,
            split=self.split,
            epsilon=people.epsilon or "",
            share=people.share or "",
            delta=self.delta,
            budgets=budgets,
            policy=policy,
            model=self.model or "",
            epochs=self.epochs,
            batch=self.batch,
            lr=self.lr,
            seed=seed,
        )

    def strategy(self) -> StrategySettings:
        """How the run is planned, whom it takes, and how the server steps."""
        from sartor.federated.enrolment import StrategySettings
        from sartor.federated.plan import AdaptiveClip

        options = {"mix": self.mix, "public_rate": self.public_rate, "public_clip": self.public_clip}
        return StrategySettings(
            rounds=self.rounds,
            per_round=self.per_round,
            scheme="uniform" if self.is_open else self.scheme,
            clip=_NO_CLIP if self.is_open else self.clip,
            accountant=self.accountant,
            adaptive=None if self.adaptive_clip is None else AdaptiveClip(self.adaptive_clip, noise=self.count_noise),
            options={name: value for name, value in options.items() if value is not None},
            limits=self.limits(),
            optimizer=self.server_optimizer,
            lr=self.server_lr,
            momentum=self.server_momentum,
            seed=self.seed,
        )


def _check_address(address: str) -> None:
    """An address on this machine, or the name of a connection, which Flower knows more of."""
    if not address.strip():
        raise SartorError("the address of the SuperLink is empty: give its host and port, as in 127.0.0.1:9093.")
    host, colon, port = address.rpartition(":")
    if not colon:
        return
    if host not in ("127.0.0.1", "localhost", "[::1]"):
        raise SartorError(
            "an address alone has no certificates, so it is for this machine; elsewhere give the name of a SuperLink connection in "
            "Flower's configuration."
        )
    if not re.fullmatch("[0-9]{1,5}", port) or not 0 < int(port) < 2**16:
        raise SartorError(f'an address ends with a port from 1 to 65535, as in 127.0.0.1:9093, not with "{port}".')
