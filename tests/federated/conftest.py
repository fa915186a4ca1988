"""What the tests of federated learning share."""

import pytest


@pytest.fixture
def identity(monkeypatch):
    """Who speaks, as Flower sets it when a run begins."""
    from flwr.supercore.task_identity import TaskIdentity

    for name in ("run_id", "task_id", "node_id"):
        monkeypatch.setattr(TaskIdentity, f"_{name}", 1)
