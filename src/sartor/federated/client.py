"""What a client needs to take part on Flower: its key, its budget and its account. It imports neither torch nor an accountant.

Flower starts a process for every message to a client, so what this imports is paid for in every round.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

try:
    from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
    from flwr.clientapp import ClientApp
except ImportError as error:
    raise ImportError("federated learning on Flower needs flwr: pip install 'sartor[federated]'.") from error

ENROL, ACCOUNT = "query.sartor_enrol", "query.sartor_account"
RECORD = "sartor"

Mod = Callable[[Message, Context, Callable[[Message, Context], Message]], Message]
Given = str | float | Callable[[Context], Any] | None


def client_mod(key: Given = None, *, level: Given = None, epsilon: Given = None, delta: Given = None) -> Mod:
    """What a client adds to its app: it declares a key and a budget when asked, keeps its metrics, and keeps the account that it is sent.

    Each is a value or a function of the client's `Context`. What the node's configuration says goes before it: `client-key`, and
    `privacy-level`, or `epsilon` and `delta`; without a key of either kind it is the `partition-id` of a simulation. The key must be the
    same after a restart, and nobody else's.
    """

    def mod(message: Message, context: Context, call: Callable[[Message, Context], Message]) -> Message:
        kind = message.metadata.message_type
        if kind == ENROL:
            return Message(RecordDict({RECORD: ConfigRecord(_declaration(context, key, level, epsilon, delta))}), reply_to=message)
        if kind == ACCOUNT:
            context.state[f"{RECORD}-account"] = ConfigRecord(dict(message.content.config_records[RECORD]))
            return Message(RecordDict(), reply_to=message)
        reply = call(message, context)
        if not reply.has_content():
            return reply
        arrays = reply.content.array_records if kind.startswith(MessageType.TRAIN) else {}
        return Message(RecordDict(dict(arrays)), reply_to=message)

    return mod


class _PrivateClientApp(ClientApp):
    def __init__(self, app: ClientApp, mod: Mod) -> None:
        super().__init__()
        self._inner, self._mod = app, mod

    def __call__(self, message: Message, context: Context) -> Message:
        return self._mod(message, context, self._inner)


def private(app: ClientApp, key: Given = None, *, level: Given = None, epsilon: Given = None, delta: Given = None) -> ClientApp:
    """A ClientApp that takes part under its own budget: `app = private(app)` is the one line that an existing app needs.

    See `client_mod` for what can be given here or in the node's configuration.
    """
    return _PrivateClientApp(app, client_mod(key, level=level, epsilon=epsilon, delta=delta))


def _declaration(context: Context, key: Given, level: Given, epsilon: Given, delta: Given) -> dict[str, Any]:
    """What the node's configuration or the app says of a client: the first, where both do."""
    node = context.node_config

    def said(name: str, given: Given) -> Any:
        return node[name] if name in node else given(context) if callable(given) else given

    found: dict[str, Any] = {}
    name = said("client-key", key)
    name = node.get("partition-id") if name is None else name
    if name is not None:
        found["key"] = str(name)
    chosen = None if "epsilon" in node else said("privacy-level", level)
    if chosen is not None:
        return {**found, "level": str(chosen)}
    allowed, own = said("epsilon", epsilon), said("delta", delta)
    if allowed is not None:
        found["epsilon"] = float(allowed)
    return found if own is None else {**found, "delta": float(own)}
