"""What people allow, as it was asked for: the one reader of budgets behind every command.

Budgets are said in one of three ways: as shares of the holders, in a file by holder, or in a column of the holders' own table. Levels in a
file or a column are numbers by a policy. What budgets are is left to `sartor.budgets`; sentences name the options of the command line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from sartor.budgets import Budgets, Policy
from sartor.errors import SartorError
from sartor.numbers import check_seed, numbers, several


@dataclass(frozen=True)
class Allowed:
    """What people allow, and where it is said: at most one of `epsilon`, `file` and `column`.

    `epsilon` and `share` are numbers with commas, one for each group, and `delta` is one for all or one for each; with a file it is for the
    rows that have none of their own. `policy` is the file that maps levels to numbers, `reserve` the share of every budget that is kept for
    later releases, and `seed` draws who is in which group.

    >>> Allowed(epsilon="1,2", share="0.25,0.75", delta="1e-5", seed=1).budgets(8).groups.holders.tolist()
    [2, 6]
    """

    epsilon: str | None = field(default=None, repr=False)  # a small share's budget is not for a log
    share: str | None = field(default=None, repr=False)
    delta: str | None = field(default=None, repr=False)
    file: str | None = None
    column: str | None = None
    policy: str | None = None
    reserve: float = 0.0
    seed: int | None = None

    def __post_init__(self) -> None:
        check_seed(self.seed)
        if len(self._ways) > 1:
            raise SartorError(f"{' and '.join(self._ways)} both set budgets: give only one of them.")
        if self.share is not None and self.epsilon is None:
            raise SartorError("--share goes with --epsilon.")

    @property
    def _ways(self) -> list[str]:
        said = {"--epsilon": self.epsilon, "--budgets": self.file, "--budget-column": self.column}
        return [option for option, value in said.items() if value is not None]

    @property
    def is_said(self) -> bool:
        """Whether anything says what people allow."""
        return bool(self._ways)

    def or_else(self, usual: Allowed) -> Allowed:
        """This, with the usual epsilons and shares where nothing is said, and the usual delta where shares have none."""
        said = self if self.is_said else replace(self, epsilon=usual.epsilon, share=usual.share)
        return said if said.epsilon is None or said.delta is not None else replace(said, delta=usual.delta)

    def budgets(self, holders: int | Sequence[str] | None = None) -> Budgets:
        """The budgets of so many holders, or of holders by their names; of all that are in the file, where none are given.

        A file's rows are found by name, and come in the order of the names; for a number of holders they are in the order of the file.
        """
        if self.policy is not None and self.file is None:
            raise SartorError("--policy needs --budgets: it maps the levels in that file to numbers.")
        if self.file is not None:
            return self._of_file(holders)
        if self.epsilon is None:
            raise SartorError("give either --epsilon with --share and --holders, or --budgets with a file.")
        if holders is None or self.delta is None:
            raise SartorError("--epsilon needs --holders and --delta.")
        return self._of_shares(self.epsilon, self.delta, holders if isinstance(holders, int) else len(holders))

    def levels(self) -> Policy | None:
        """The policy, read."""
        return None if self.policy is None else Policy.from_toml(self.policy)

    def delta_for_all(self) -> float | None:
        """The delta of everyone whose row says none; several are for shares, group by group."""
        found = [] if self.delta is None else numbers(self.delta, "--delta")
        if len(found) > 1 and self.epsilon is None:
            way = self._ways[0] if self._ways else "rows that say what they allow"
            raise SartorError(f"with {way}, --delta is one number, for the rows that have none of their own.")
        return found[0] if len(found) == 1 else None

    def _of_file(self, holders: int | Sequence[str] | None) -> Budgets:
        assert self.file is not None
        names = None if isinstance(holders, int) else holders
        found = Budgets.from_csv(self.file, delta=self.delta_for_all(), policy=self.levels(), holders=names, reserve=self.reserve)
        if isinstance(holders, int) and len(found) != holders:
            raise SartorError(f"the file of budgets has {len(found)} rows for {holders} holders: give one for each, in their order.")
        return found

    def _of_shares(self, epsilon: str, delta: str, holders: int) -> Budgets:
        values, deltas = numbers(epsilon, "--epsilon"), numbers(delta, "--delta")
        if self.share is None and len(values) > 1:
            raise SartorError(f"--epsilon has {len(values)} numbers: say with --share which share of the holders allows each.")
        shares = [1.0] if self.share is None else numbers(self.share, "--share")
        if len(shares) != len(values):
            said = f"{several(len(values), 'epsilon')} but {several(len(shares), 'share')}"
            raise SartorError(f"--epsilon and --share have {said}: give one share for each epsilon.")
        if len(deltas) not in (1, len(values)):
            raise SartorError(f"there are {len(values)} epsilons but {len(deltas)} deltas.")
        own = deltas[0] if len(deltas) == 1 else deltas
        return Budgets.from_shares(values, shares, holders=holders, delta=own, seed=self.seed, reserve=self.reserve)
