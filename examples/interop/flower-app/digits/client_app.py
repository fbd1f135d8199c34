"""The client: as for any strategy of Flower's."""

from __future__ import annotations

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from digits.task import model, train

app = ClientApp()


@app.train()
def on_train(message: Message, context: Context) -> Message:
    """Train on this client's samples, from the model that comes."""
    torch.set_num_threads(1)
    net = model()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    client = int(context.node_config["partition-id"])
    seed = 1000 * int(message.content["config"]["server-round"]) + client
    loss, examples = train(
        net,
        client,
        int(context.node_config["num-partitions"]),
        int(context.run_config["local-steps"]),
        seed,
    )
    content = RecordDict(
        {
            "arrays": ArrayRecord(net.state_dict()),
            "metrics": MetricRecord({"train_loss": loss, "num-examples": examples}),
        }
    )
    return Message(content=content, reply_to=message)
