"""The server: one line of it is not as with Flower's own strategies."""

from __future__ import annotations

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from anabranch.flower import FlR2sp
from digits.task import accuracy, model

app = ServerApp()


def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """Evaluate the model on the server."""
    net = model()
    net.load_state_dict(arrays.to_torch_state_dict())
    return MetricRecord({"accuracy": accuracy(net)})


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train."""
    groups = int(context.run_config["groups"])
    strategy = FlR2sp(groups, beta=0.2, collects="turn", smoothing=0.5)  # this line
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(model().state_dict()),
        num_rounds=int(context.run_config["num-server-rounds"]),
        timeout=120,
        evaluate_fn=evaluate,
    )
    last = max(result.evaluate_metrics_serverapp)
    print("accuracy", result.evaluate_metrics_serverapp[last]["accuracy"])
