"""Which node of Flower speaks for which client, by what nodes say when they are asked; numbers of nodes mean nothing beyond that.

Guarantee: a client is spoken for by one node at most, and by none of several that declare its key while they are there: nobody is merged
    with another or takes its place.
"""

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
    """The nodes that have said who they are. A node speaks for the client whose key it declared last, if no other node that is there does.

    A node that was started again has another number. It speaks once the one before it is gone: until then nobody can tell it from a second
    node under the same key.
    """

    def __init__(self) -> None:
        self._key_of: dict[int, str] = {}
        self._heard: set[int] = set()
        self._silent: dict[int, tuple[int, int]] = {}  # how often in vain, and at which look again
        self._looks = 0

    def declaring(self, there: set[int]) -> dict[str, list[int]]:
        """The keys that these nodes declare, and which of them declare each."""
        found: dict[str, list[int]] = {}
        for node in sorted(there & self._key_of.keys()):
            found.setdefault(self._key_of[node], []).append(node)
        return found

    def speaking(self, there: set[int]) -> dict[str, int]:
        """Whoever speaks through one of these nodes, and through which."""
        return {key: nodes[0] for key, nodes in self.declaring(there).items() if len(nodes) == 1}

    def declared_twice(self, there: set[int]) -> dict[str, list[int]]:
        """The keys that several of these nodes declare, and which: nobody speaks under them."""
        return {key: nodes for key, nodes in self.declaring(there).items() if len(nodes) > 1}

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
            if key.strip():
                self._key_of[node] = key
                found.append((key, answer))
            else:
                self._key_of.pop(node, None)
        return found
