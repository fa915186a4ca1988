"""The client: it trains on its own digits, and takes part under its own budget."""

from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from sartor.data import load
from sartor.federated import splits
from sartor.federated.client import private
from sartor.federated.local import train_locally
from sartor.models import build

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the server's model on this client's rows."""
    digits = load("digits")
    inputs, labels = digits.train.tensors
    rows = splits.iid(labels.numpy(), int(context.node_config["num-partitions"]))[int(context.node_config["partition-id"])]
    model = build("logistic", shape=digits.shape, classes=digits.classes)
    model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    train_locally(model, inputs[rows], labels[rows], epochs=2, batch=16, lr=0.5)
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict())}), reply_to=message)


def epsilon(context: Context) -> float:
    """The budget of a client whose node configuration names none, as in a simulation: a third of the clients each allow 2, 4 and 8."""
    return (2.0, 4.0, 8.0)[int(context.node_config["partition-id"]) % 3]


app = private(app, epsilon=epsilon, delta=1e-3)
