"""The data that `sartor train` was asked to train on, when a run begins and when it is read again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sartor.cli.train_settings import TrainSettings
from sartor.errors import SartorError

if TYPE_CHECKING:
    from sartor.data import Data

_HELD_OUT = 0.2  # of the holders


def read_data(asked: TrainSettings, *, resumed: bool, attributes: Sequence[str] = ()) -> Data:
    """The data of a run; where one is continued, or was, its budgets are those that it began with. `attributes` are columns of a table."""
    from sartor.data import load, read_arrays, read_schema, read_table

    if asked.dataset is not None:
        return load(asked.dataset, asked.data)
    allowed = asked.allowed()
    if asked.arrays is not None:
        data = read_arrays(asked.arrays, delta=allowed.delta_for_all(), strictest=asked.strictest)
        if asked.strictest and data.budgets is None:
            raise SartorError("--strictest chooses among what a holder's rows allow, and these arrays have no epsilon for each row.")
        return data
    assert asked.table is not None
    known: dict[str, Any] = {} if asked.schema is None else dict(read_schema(asked.schema))
    own = {"target": asked.target, "test": asked.test, "id_column": asked.id_column, "budget_column": asked.budget_column}
    known.update({name: value for name, value in own.items() if value is not None})
    if asked.sensitive:
        known.setdefault("test_share", _HELD_OUT)
    if "target" not in known:
        raise SartorError("--table needs --target, the column to predict.")
    if asked.strictest:
        if "budget_column" not in known:
            raise SartorError("--strictest chooses among what a holder's rows allow: name the column that says it with --budget-column.")
        known["strictest"] = True
    if "budget_column" in known:
        if allowed.policy is not None:
            known["policy"] = allowed.levels()
        elif allowed.delta is not None:
            known["delta"] = allowed.delta_for_all()
    if allowed.file is not None and not resumed:
        known["budgets"] = allowed.budgets()
    data = read_table(asked.table, **known, attributes=attributes)
    if asked.sensitive and data.held_out is None:
        raise SartorError("--sensitive tells of rows that are held out, and the schema holds none out: take its test_share away.")
    return data
