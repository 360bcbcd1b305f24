"""What this example trains with, and how the firmware's loop goes on the desk: the twin computes the same bytes.

Chosen on the development speakers by results.py; what is reported is of others.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from speakers import Part, Parts

import tinytrain_compile as tt
from tinytrain_compile.parts.replay.twin import Reservoir
from tinytrain_compile.twin import Twin

MODEL = Path(__file__).resolve().parent / "keywords.onnx"
EPOCHS, RATE, REPLAYED, SEED = 12, 0.001, 100, 1
OPTIONS = ("--quant", "int8", "--update", "all", "--lr", str(RATE))
"""Of tinytrain-compile."""


@dataclass(frozen=True)
class Outcome:
    """Accuracies in per cent: of the new speaker and of old ones, before training and after it."""

    before: tuple[float, float]
    after: tuple[float, float]


def compiled(pool: Part, quant: str = "int8", update: str = "all", **options: Any) -> tt.Compiled:
    """A build of the model; the pool says the ranges of int8."""
    with tempfile.TemporaryDirectory() as folder:
        calib = Path(folder) / "calib.npz"
        np.savez(calib, x=pool.real)
        more = {"quant": quant, "update": update, "loss": "cross-entropy", "verify": "none", **options}
        return tt.compile(MODEL, **(more | ({"calib": calib} if quant == "int8" else {})))


def adapt(twin: Twin, parts: Parts, epochs: int, rate: float, replayed: int) -> Outcome:
    """What main.c does, call by call. replayed: samples of old speakers that are kept (0: none)."""
    twin.reset()
    slots = [twin.as_slots(part.real, part.y) for part in (parts.own, parts.pool, parts.test, parts.old)]
    own, pool, *judged = slots
    before, past = _accuracies(twin, judged), Reservoir[int](replayed, SEED)
    for index in range(len(pool[1]) if replayed else 0):
        past.add(index, int(pool[1][index]))
    twin.instance.set_rate(rate)
    for _ in range(epochs):
        _epoch(twin, own, pool, past)
    return Outcome(before, _accuracies(twin, judged))


def _epoch(twin: Twin, own: tuple[Any, Any], pool: tuple[Any, Any], past: Reservoir[int]) -> None:
    index = 0
    while True:
        if past.due():
            x, y, chosen = *pool, past.draw()
        elif index < len(own[1]):
            x, y, chosen = *own, index
            index += 1
        else:
            return
        twin.instance.train(x[chosen : chosen + 1], y[chosen : chosen + 1])


def _accuracies(twin: Twin, judged: list[tuple[Any, Any]]) -> tuple[float, float]:
    new, old = (100 * float((twin.instance.infer(x).argmax(axis=1) == y.ravel()).mean()) for x, y in judged)
    return new, old
