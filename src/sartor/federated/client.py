"""What a client needs to take part on Flower: its key, its budget and its account. It imports neither torch nor an accountant.

Flower starts a process for every message to a client, so what this imports is paid for in every round.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

try:
    from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
    from flwr.clientapp import ClientApp
except ImportError as error:
    raise ImportError("federated learning on Flower needs flwr: pip install 'sartor[federated]'.") from error

ENROL, ACCOUNT, REFUSED = "query.sartor_enrol", "query.sartor_account", "query.sartor_refused"
RECORD = "sartor"

_log = logging.getLogger(__name__)

Mod = Callable[[Message, Context, Callable[[Message, Context], Message]], Message]
Given = str | float | Callable[[Context], Any] | None


def client_mod(key: Given = None, *, level: Given = None, epsilon: Given = None, delta: Given = None) -> Mod:
    """What a client adds to its app: it declares a key and a budget when asked, keeps its metrics, and keeps the account that it is sent.

    Each is a value or a function of the client's `Context`. What the node's configuration says goes before it: `client-key`, and
    `privacy-level` or `epsilon` (the stricter, where it says both), and `delta`; without a key of either kind it is the `partition-id` of a
    simulation. The key must be the same after a restart, and nobody else's. Where the app fails, why is for the client's own log: the
    server gets an empty answer; and where the server does not take the client, why is in that log, too.
    """

    def mod(message: Message, context: Context, call: Callable[[Message, Context], Message]) -> Message:
        try:
            content = _answer(message, context, call)
        except Exception:
            _log.exception("this client's app failed; the server gets an empty answer")
            content = RecordDict()
        return Message(content, reply_to=message)

    def _answer(message: Message, context: Context, call: Callable[[Message, Context], Message]) -> RecordDict:
        kind = message.metadata.message_type
        if kind == ENROL:
            return RecordDict({RECORD: ConfigRecord(_declared(context, key, level, epsilon, delta))})
        if kind == ACCOUNT:
            context.state[f"{RECORD}-account"] = ConfigRecord(dict(message.content.config_records[RECORD]))
            return RecordDict()
        if kind == REFUSED:
            context.state[f"{RECORD}-refused"] = ConfigRecord(dict(message.content.config_records[RECORD]))
            _log.warning("this client takes no part in the run: %s", message.content.config_records[RECORD]["why"])
            return RecordDict()
        reply = call(message, context)
        if not reply.has_content() or not kind.startswith(MessageType.TRAIN):
            return RecordDict()
        # what it allows now goes with an answer: the server uses none of a client that has come to allow less
        return RecordDict({**reply.content.array_records, RECORD: ConfigRecord(_declared(context, key, level, epsilon, delta))})

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


def _declared(context: Context, key: Given, level: Given, epsilon: Given, delta: Given) -> dict[str, Any]:
    """What the node's configuration or the app says of a client: the first, where both do."""
    node = context.node_config

    def said(name: str, given: Given) -> Any:
        return node[name] if name in node else given(context) if callable(given) else given

    name = said("client-key", key)
    name = node.get("partition-id") if name is None else name
    found: dict[str, Any] = {} if name is None or not str(name) else {"key": str(name)}
    by_node = "privacy-level" in node or "epsilon" in node
    try:
        chosen = node.get("privacy-level") if by_node else said("privacy-level", level)
        allowed = node.get("epsilon") if by_node else said("epsilon", epsilon)
        own = said("delta", delta)
        if chosen is not None:
            found["level"] = str(chosen)
        for name, value in (("epsilon", allowed), ("delta", own)):
            if value is not None:
                # text is sent as it is: the server takes what it can read, and nobody is given another budget instead
                found[name] = value if isinstance(value, str) else float(value)
    except Exception:
        _log.exception("this client's budget cannot be told, so it takes no part")
        found["epsilon"] = "unknown"
    return found
