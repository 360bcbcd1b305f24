"""Does int8 cost accuracy? Trains both formats with several seeds and prints the mean paired difference.

usage: seeds.py [--seeds 8] [--epochs 2] [--jobs 2]

Runs the compiler's numpy reference, whose bytes the firmware computes too. A seed is an order of the training images,
the same for both formats, and the rounding noise of int8. Exits 1 if int8 is more than a point worse in the mean.
"""

from __future__ import annotations

import argparse
import math
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tinytrain_compile.data.samples import load_inputs
from tinytrain_compile.frontend import load_model
from tinytrain_compile.ir.stages import TrainGraph
from tinytrain_compile.options.compile_options import CompileOptions
from tinytrain_compile.quantize import QuantOptions, calibrate, prepare, quantise
from tinytrain_compile.reference.trainer import Trainer
from tinytrain_compile.sparse import resolve_update
from tinytrain_compile.training import TrainingOptions, build_training

HERE = Path(__file__).resolve().parent
FORMATS = ("fp32", "int8")
BAR = -1.0
T95 = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36}
"""Student's t for a 95 % confidence interval, by number of seeds."""


def training_graph(quant: str, seed: int) -> TrainGraph:
    """What `tinytrain-compile digits.onnx --update all` trains."""
    model = load_model(HERE / "digits.onnx")
    if quant == "int8":
        graph = calibrate(model.graph, load_inputs(HERE / "calib.npz", model))
        model = replace(model, graph=prepare(graph, float_head=True))
    train = build_training(model, resolve_update(model.graph, "all"), TrainingOptions("cross-entropy"))
    return quantise(train, QuantOptions(seed, CompileOptions.weight_store)) if quant == "int8" else train


def images(train: TrainGraph, part: str) -> tuple[Any, Any]:
    """(images as the graph stores them, labels) of a part of data.npz: "" or "_test"."""
    with np.load(HERE / "data.npz") as data:
        x, y = data[f"x{part}"].transpose(0, 2, 3, 1), data[f"y{part}"]
    quant = train.graph.inputs[0].quant
    if train.graph.inputs[0].dtype == "int8" and quant is not None:
        x = np.clip(np.rint(x / np.float32(quant.scale[0])) + quant.zero, -128, 127).astype(np.int8)
    return x, y


def epoch(trainer: Trainer, samples: tuple[Any, Any], order: Any) -> None:
    """One pass over the training images in this order."""
    x, y = samples
    for i in order:
        trainer.step(x[i : i + 1][None], y[i : i + 1][None])


def accuracy(trainer: Trainer, samples: tuple[Any, Any]) -> float:
    """Percent of images whose largest output is the right digit."""
    hits = [int(trainer.infer(image[None]).argmax()) == label for image, label in zip(*samples, strict=True)]
    return 100 * float(np.mean(hits))


def result(job: tuple[str, int, int]) -> float:
    """Held-back accuracy of (format, seed, epochs) after training."""
    quant, seed, epochs = job
    train = training_graph(quant, seed)
    trainer, samples, order = Trainer(train), images(train, ""), np.random.default_rng(seed)
    for _ in range(epochs):
        epoch(trainer, samples, order.permutation(len(samples[1])))
    return accuracy(trainer, images(train, "_test"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=8, help="seeds 0 to N-1 (default: 8)")
    parser.add_argument("--epochs", type=int, default=2, help="passes over the 700 training images (default: 2)")
    parser.add_argument("--jobs", type=int, default=2, help="processes (default: 2)")
    arguments = parser.parse_args()
    jobs = [(quant, seed, arguments.epochs) for quant in FORMATS for seed in range(arguments.seeds)]
    with ProcessPoolExecutor(arguments.jobs) as pool:
        scores = np.reshape(list(pool.map(result, jobs)), (len(FORMATS), arguments.seeds))
    difference = scores[1] - scores[0]
    for quant, row in zip(FORMATS, scores, strict=True):
        print(f"{quant}   mean {row.mean():.1f} %   seeds {' '.join(f'{score:.1f}' for score in row)}")
    half = T95.get(len(difference), 2.0) * float(np.std(difference, ddof=1)) / math.sqrt(len(difference))
    met = float(difference.mean()) >= BAR
    verdict = f"bar {BAR:+.1f}: {'met' if met else 'MISSED'}"
    print(f"int8 - fp32   {difference.mean():+.1f} points +- {half:.1f} (95 %)   {verdict}")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
