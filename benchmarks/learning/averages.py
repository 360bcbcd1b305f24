"""Measure what a mean of the weights at the ends of epochs brings: digits, last:4, eight epochs.

python -m benchmarks averages
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

import tinytrain_compile as tt
from testing.places import ROOT
from tinytrain_compile.data.own_data import own_data, read_own_data
from tinytrain_compile.data.samples import in_slots
from tinytrain_compile.ir.learning import RateSchedule
from tinytrain_compile.learn.training import Build, LearningRun

DIGITS = ROOT / "examples" / "digits"
SEEDS = range(100, 104)
WAYS: tuple[tuple[RateSchedule, float], ...] = (("constant", 0.01), ("constant", 0.03), ("cosine", 0.03))


def build_of(quant: str) -> Build:
    """Digits as a library of this machine."""
    path = DIGITS / "data.npz"
    calib = {"calib": path} if quant == "int8" else {}
    made = tt.compile(DIGITS / "digits.onnx", update="last:4", verify="none", quant=quant, **calib)
    train, face, model = made.project.summary.train, made.project.bundle.interface, made.project.model
    data = own_data("data.npz", read_own_data(path, 0)[0], model, train)
    parts = in_slots(face, data.own), in_slots(face, data.test)
    return Build(Path("elsewhere"), made.library().read_bytes(), face, model, train, *parts, None)


def accuracies(build: Build, schedule: RateSchedule, rate: float, average: int) -> list[float]:
    """Test accuracy at the end, in %, of each seed."""
    runs = (LearningRun(0, rate, seed, 8, final=True, schedule=schedule, average=average) for seed in SEEDS)
    ends = [build.learn(run).scores[-1].accuracy for run in runs]
    return [100 * end for end in ends if end is not None]


def main() -> None:
    """Print the table."""
    print("| weights | rate | last state | mean of 4 | difference |\n|---|---|---|---|---|")
    for quant in ("fp32", "int8"):
        build = build_of(quant)
        for schedule, rate in WAYS:
            last, mean = (np.array(accuracies(build, schedule, rate, average)) for average in (0, 4))
            gain = mean - last
            error = gain.std(ddof=1) / len(gain) ** 0.5
            ends = f"{last.mean():.1f} | {mean.mean():.1f} | {gain.mean():+.1f} +- {error:.1f}"
            print(f"| {quant} | {schedule} {rate:g} | {ends} |", flush=True)
