"""Which node of Flower speaks for which client, by what nodes say when they are asked; numbers of nodes mean nothing beyond that."""

from __future__ import annotations

import time
from typing import Any

from sartor.federated.client import ENROL, RECORD

try:
    from flwr.app import Message, RecordDict
    from flwr.serverapp import Grid
except ImportError as error:
    raise ImportError("federated learning on Flower needs flwr: pip install 'sartor[federated]'.") from error

POLL, ANSWER = 0.5, 30.0  # seconds between looks for nodes, and for a node to say who it is


class Nodes:
    """The nodes that have said who they are. A client speaks through the node that said so last, and a node for one client."""

    def __init__(self) -> None:
        self._node_of: dict[str, int] = {}
        self._key_of: dict[int, str] = {}
        self._heard: set[int] = set()
        self._silent: dict[int, tuple[int, int]] = {}  # how often in vain, and at which look again
        self._looks = 0

    def of(self, key: str) -> int | None:
        """The node through which a client speaks."""
        return self._node_of.get(key)

    def speaking(self, there: set[int]) -> dict[str, int]:
        """Whoever speaks through one of these nodes, and through which."""
        return {key: node for key, node in self._node_of.items() if node in there}

    def ask(self, grid: Grid, there: set[int], end: float, *, patient: bool) -> list[tuple[str, dict[str, Any]]]:
        """Key and declaration of every node that has not said so since it is there; those without a key are left out.

        One that is silent is asked again after two looks, then after four, eight and so on; at every look, if one is `patient`. No single
        asking takes all of the time until `end`.
        """
        self._looks += 1
        self._heard &= there
        self._silent = {node: kept for node, kept in self._silent.items() if node in there}
        never = (0, 0)
        asked = [node for node in there - self._heard if patient or self._silent.get(node, never)[1] <= self._looks]
        for node in asked:
            times = self._silent.get(node, never)[0] + 1
            self._silent[node] = times, self._looks + 2 ** min(times, 30)
        messages = [Message(RecordDict(), dst_node_id=node, message_type=ENROL) for node in asked]
        third = (end - time.monotonic()) / 3
        timeout = max(third if patient else min(third, ANSWER), POLL)
        found = []
        for reply in grid.send_and_receive(messages, timeout=timeout) if messages else []:
            if not reply.has_content():  # a failure, not a word
                continue
            node = reply.metadata.src_node_id
            self._heard.add(node)
            self._silent.pop(node, None)
            answer = dict(reply.content.config_records.get(RECORD, {}))
            key = str(answer.pop("key", ""))
            if key:
                self._speaks(node, key)
                found.append((key, answer))
        return found

    def _speaks(self, node: int, key: str) -> None:
        before = self._key_of.get(node)
        if before is not None and self._node_of.get(before) == node:
            del self._node_of[before]
        self._key_of[node], self._node_of[key] = key, node
