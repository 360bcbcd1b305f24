"""Federated averaging of deltas, in the few lines that it comes down to."""

from __future__ import annotations

from collections.abc import Sequence

from fleet import Device, own

import tinytrain_compile as tt

Rows = list[list[float]]


def plain(devices: Sequence[Device], deltas: tt.Deltas, rounds: int) -> Rows:
    """FedAvg (McMahan et al., 2017); accuracies of all devices before training and after every round."""
    rows = [own(devices)]
    for turn in range(rounds):
        for device in devices:
            device.train(turn)
        average = deltas.mean([device.twin.delta() for device in devices], [device.samples for device in devices])
        for device in devices:
            device.take(average)
        rows.append(own(devices))
    return rows
