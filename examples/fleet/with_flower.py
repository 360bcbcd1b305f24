"""The same by Flower (`pip install 'tinytrain-compile[fleet]'`): its FedAvg, with every device behind a ClientApp.

Flower's own simulation starts a Ray cluster, which is much for eight devices of some kB. Here the grid, over which its
server reaches the clients, is a call in this process; nothing else differs.
"""

# Flower is not installed where types are checked.
# pyright: basic, reportMissingImports=false

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from fleet import Device, own
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from flwr.supercore.task_identity import TaskIdentity

import tinytrain_compile as tt


class Records:
    """Between messages of the devices and Flower's arrays."""

    def __init__(self, deltas: tt.Deltas) -> None:
        self._deltas, self._names = deltas, [slot.name for slot in deltas.table.slots]

    def of(self, delta: bytes) -> ArrayRecord:
        changes = self._deltas.read(delta)
        return ArrayRecord([changes[name] for name in self._names])

    def delta(self, arrays: ArrayRecord) -> bytes:
        return self._deltas.write(dict(zip(self._names, arrays.to_numpy_ndarrays(), strict=True)))


def client_of(device: Device, records: Records) -> ClientApp:
    """Flower's view of a device: it trains and sends its delta; it takes the average and judges it."""
    app = ClientApp()

    @app.train()
    def train(message: Message, _context: Context) -> Message:
        device.train(int(message.content["config"]["server-round"]) - 1)
        content = {"arrays": records.of(device.twin.delta()), "metrics": MetricRecord({"num-examples": device.samples})}
        return Message(RecordDict(content), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, _context: Context) -> Message:
        device.take(records.delta(message.content["arrays"]))
        metrics = MetricRecord({"num-examples": device.samples, "accuracy": own([device])[0]})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


class Calls(Grid):
    """Every client is a call in this process. replies: what they said, by round."""

    def __init__(self, clients: Sequence[ClientApp]) -> None:
        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1  # of messages, as its simulation sets it
        self._clients = clients
        self.replies: list[list[Message]] = []

    def get_node_ids(self) -> list[int]:
        return [1 + place for place in range(len(self._clients))]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        sent = sorted(messages, key=lambda message: message.metadata.dst_node_id)
        self.replies.append([self._answer(message) for message in sent])
        return self.replies[-1]

    def _answer(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        return self._clients[node - 1](message, Context(0, node, {}, RecordDict(), {}))

    def _no_network(self, *_arguments: Any, **_named: Any) -> Any:
        raise NotImplementedError("messages are answered where they are sent")

    set_run = create_message = push_messages = pull_messages = _no_network
    run = property(_no_network)


def flower(devices: Sequence[Device], deltas: tt.Deltas, rounds: int) -> list[list[float]]:
    """Accuracies of all devices before training and after every round."""
    records, first, count = Records(deltas), own(devices), len(devices)
    grid = Calls([client_of(device, records) for device in devices])
    strategy = FedAvg(min_train_nodes=count, min_evaluate_nodes=count, min_available_nodes=count)
    strategy.start(grid, records.of(devices[0].twin.delta()), num_rounds=rounds)
    judged = grid.replies[1::2]  # each behind one of training
    return [first, *([float(reply.content["metrics"]["accuracy"]) for reply in replies] for replies in judged)]
