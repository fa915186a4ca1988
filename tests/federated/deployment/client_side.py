"""A client that adds a known vector to the model, unless it is ordered otherwise, and notes the account that it is sent."""

import json
import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from sartor.federated.client import private

trained = ClientApp()


@trained.train()
def train(message: Message, context: Context) -> Message:
    folder, name = Path(str(context.run_config["folder"])), str(context.node_config["name"])
    turn = f"{name}{message.content.config_records['config']['server-round']}"
    order = dict(words.split(":") for words in str(context.run_config["orders"]).split()).get(turn)
    model, own = message.content.array_records["arrays"], json.loads(str(context.node_config["update"]))
    vector, scalar = model["vector"].numpy() + own[:3], np.asarray(model["scalar"].numpy() + own[3])
    if order == "nan":
        vector = vector * np.nan
    elif order == "shape":
        vector = vector[:2]
    elif order == "hold":
        (folder / f"held-{turn}").touch()
        while not (folder / "go").exists():
            time.sleep(0.1)
    return Message(RecordDict({"arrays": ArrayRecord({"vector": Array(vector), "scalar": Array(scalar)})}), reply_to=message)


class Noting(ClientApp):
    """A client whose account can be read from outside."""

    def __call__(self, message: Message, context: Context) -> Message:
        reply = private(trained)(message, context)
        if "sartor-account" in context.state:
            account = dict(context.state.config_records["sartor-account"])
            (Path(str(context.run_config["folder"])) / f"account-{context.node_config['name']}.json").write_text(json.dumps(account))
        return reply


app = Noting()
