"""What this example trains with, and how the firmware's loop goes on the desk: the twin computes the same bytes.

Chosen on the development machines by results.py; what is reported is of others.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from make_data import Array, Parts, known, real, stored

import tinytrain_compile as tt
from tinytrain_compile.parts.monitor.twin import Spread, percentile
from tinytrain_compile.twin import Twin

MODEL = Path(__file__).resolve().parent / "vibration.onnx"
EPOCHS, RATE, TRAINED, PER_MILLE, SIGMAS = 20, 0.1, 200, 990, 3
"""TRAINED: of a machine's own windows those that are trained on; the others say the threshold behind it."""
OPTIONS = ("--loss", "mse", "--update", "all", "--lr", str(RATE))
"""Of tinytrain-compile."""
INT8 = {"quant": "int8", "head": "int8"}
"""More of them for --quant int8, by their names: no float32 in the step but the windows that it is to repeat."""


@dataclass(frozen=True)
class Verdict:
    """Of windows that judge, in per cent: sound ones that alarm, and faults that are found."""

    false_alarms: float
    found: float


@dataclass(frozen=True)
class Outcome:
    """Of a machine: by the threshold of the factory, by thresholds of its own, and after training; areas under the ROC
    curve before training and after it."""

    factory: Verdict
    percentile: Verdict
    sigma: Verdict
    retrained: Verdict
    area: float
    area_retrained: float


def compiled(rate: float = RATE, update: str = "all", quant: str = "fp32") -> tt.Compiled:
    """A build of the model; in int8 the factory's machines say the ranges."""
    with tempfile.TemporaryDirectory() as folder:
        own: dict[str, Any] = {}
        if quant == "int8":
            own = {**INT8, "calib": write_calib(Path(folder))}
        return tt.compile(MODEL, loss="mse", update=update, lr=rate, verify="none", **own)


def write_calib(folder: Path) -> Path:
    """calib.npz: windows of the factory's machines."""
    np.savez_compressed(folder / "calib.npz", x=real(stored(known())))
    return folder / "calib.npz"


def errors(twin: Twin, x: Array) -> Array:
    """How badly each window is repeated: the mean square of the differences, added up in order in float32 as in C."""
    values = real(x)
    squares = (twin.instance.infer(twin.as_inputs(values)) - values) ** 2
    return np.add.accumulate(squares, axis=1, dtype=np.float32)[:, -1] / np.float32(values.shape[1])


def factory_threshold(twin: Twin) -> float:
    """The percentile of the errors of the factory's own machines."""
    return percentile(errors(twin, stored(known())), PER_MILLE)


def adapt(twin: Twin, parts: Parts, factory: float, epochs: int = EPOCHS) -> Outcome:
    """What main.c does, call by call."""
    twin.reset()
    own, judged, spread = errors(twin, parts.own), errors(twin, parts.x), Spread()
    for error in own:
        spread.add(float(error))
    x = real(parts.own[:TRAINED])
    slots = twin.as_slots(x, x)
    for _ in range(epochs):
        for at in range(TRAINED):
            twin.instance.train(slots[0][at : at + 1], slots[1][at : at + 1])
    after, kept = errors(twin, parts.x), errors(twin, parts.own[TRAINED:])
    return Outcome(
        verdict(judged, parts.y, factory),
        verdict(judged, parts.y, percentile(own, PER_MILLE)),
        verdict(judged, parts.y, spread.threshold(SIGMAS)),
        verdict(after, parts.y, percentile(kept, PER_MILLE)),
        area(judged, parts.y),
        area(after, parts.y),
    )


def verdict(found: Array, y: Array, threshold: float) -> Verdict:
    """An error above the threshold alarms."""
    alarms = found > np.float32(threshold)
    return Verdict(100 * float(alarms[y == 0].mean()), 100 * float(alarms[y == 1].mean()))


def area(found: Array, y: Array) -> float:
    """Under the ROC curve: how often a fault has a larger error than a sound window (ties count half)."""
    faulty, sound = found[y == 1][:, None], found[y == 0][None]
    return float(((faulty > sound) + 0.5 * (faulty == sound)).mean())
