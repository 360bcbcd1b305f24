"""Train int8 and float32 on eight seeds with the numpy reference: paired differences, controls that must fail.

Seven convolutions pre-trained with batch normalisation on upright digits, the normalisation folded, every layer fine-
tuned on rotated ones. The learning rate is the one with the best mean fp32 accuracy over all seeds on a validation part
of the training images, and is used for every variant. Every seed is trained in three orders of its images, and counts
by their mean. Prints accuracies, mean paired differences and 95 % confidence intervals; exits 1 if a bar is missed.

usage: python -m benchmarks convergence [--seeds 8] [--epochs 12] [--batches 8,1] [--optimizer sgd|momentum] [--rate R]
                                      [--clip NORM] [--json FILE] [--short]

--rate R looks at one rate instead of choosing it: stochastic rounding of weights (sr8) loses more at small rates.

--clip NORM trains all variants with gradients of that norm at most (--clip-norm of the command).

--short, for CI: two seeds (of controls one), two epochs, batch 8 at the rate that the whole run chose, with bars that
tell broken arithmetic from sound one, and not one point from another (a single seed differs by 3 to 5 points).
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.learning.digit_domains import SIDE, Split, domain_a, load_digits
from benchmarks.learning.pretrain import CLASSES, LAYERS, Layers, pretrain
from tinytrain_compile.frontend import FrontendOptions, load_model
from tinytrain_compile.ir.imported import ImportedModel
from tinytrain_compile.ir.stages import TrainGraph
from tinytrain_compile.ops import fixed_point as fx
from tinytrain_compile.ops.base import OPS
from tinytrain_compile.ops.int8 import update as int8_update
from tinytrain_compile.ops.int8.steps import step_size
from tinytrain_compile.options.compile_options import CompileOptions
from tinytrain_compile.quantize import QuantOptions, WeightStore, calibrate, prepare, quantise
from tinytrain_compile.reference.trainer import Trainer
from tinytrain_compile.sparse import resolve_update
from tinytrain_compile.training import TrainingOptions, build_training

RATES = (0.008, 0.02, 0.05)
"""Learning rates that are tried, for every batch size; with momentum a tenth."""
ORDERS = 3
"""Orders of the training images; a seed's accuracy is the mean over them. At batch 1 one run differs from the next by 4
points, of fp32 too: the first steps are chaotic at the best learning rate."""
STORES: dict[str, WeightStore] = {"int8 sr8": "sr8", "int8 mixed": "mixed", "int8 q8.8": "q8.8"}
VARIANTS = ("fp32", *STORES, "truncate", "no zero point", "head only")
DEFAULT = f"int8 {CompileOptions.weight_store}"
BAR, SHORT_BAR = -1.0, -5.0
"""Points that int8 may lose. The store that the command line takes without --weight-store has to keep to it."""
CHOSEN: dict[str, Any] = {"optimizer": "sgd", "clip_norm": None}
"""What the command line chose for every variant."""
CONTROLS = {"truncate": 30.0, "no zero point": 30.0, "head only": 15.0}
SHORT_RATE = 0.008
SHORT_CONTROLS = {"truncate": 20.0, "no zero point": 20.0}


def make_model(weights: dict[str, Any], batch: int, layers: Layers = LAYERS) -> onnx.ModelProto:
    """The network as ONNX, for `batch` images at a time."""
    nodes, name = [], "x"
    for i, (cin, _, k, stride, depthwise) in enumerate(layers):
        attrs = {"kernel_shape": [k, k], "strides": [stride, stride], "pads": [k // 2] * 4}
        attrs["group"] = cin if depthwise else 1
        nodes.append(helper.make_node("Conv", [name, f"w{i}", f"b{i}"], [f"c{i}"], f"conv{i}", **attrs))
        nodes.append(helper.make_node("Relu", [f"c{i}"], [f"r{i}"], f"relu{i}"))
        name = f"r{i}"
    nodes.append(helper.make_node("GlobalAveragePool", [name], ["pool"], "pool"))
    nodes.append(helper.make_node("Flatten", ["pool"], ["flat"], "flatten"))
    nodes.append(helper.make_node("Gemm", ["flat", "wh", "bh"], ["y"], "head", transB=1))
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 1, SIDE, SIDE])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, CLASSES])
    tensors = [numpy_helper.from_array(np.ascontiguousarray(v, np.float32), k) for k, v in weights.items()]
    graph = helper.make_graph(nodes, "digits", [x], [y], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def load(weights: dict[str, Any], batch: int) -> ImportedModel:
    """The network through our frontend."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "digits.onnx"
        onnx.save(make_model(weights, batch), path)
        return load_model(path, FrontendOptions(any_batch=batch > 1))


def nhwc(x: Any) -> Any:
    """Images in the graph's layout."""
    return np.ascontiguousarray(x.transpose(0, 2, 3, 1))


def build(weights: dict[str, Any], variant: str, batch: int, samples: Any, seed: int) -> TrainGraph:
    """The training graph of a variant."""
    model = load(weights, 1)
    options = TrainingOptions(batch=batch, **CHOSEN)
    if variant in ("fp32", "head only"):
        return build_training(model, resolve_update(model.graph, "head" if variant == "head only" else "all"), options)
    model = replace(model, graph=prepare(calibrate(model.graph, samples), True))
    store = STORES.get(variant, "sr8")
    return quantise(build_training(model, resolve_update(model.graph, "all"), options), QuantOptions(seed, store))


def sabotage(variant: str) -> None:
    """Replace a rule of the integer reference by a wrong one, in this process."""
    if variant == "truncate":

        def truncated(w: Any, gradient: Any, scale: Any, _noise: Any, _salt: Any, limit: int) -> Any:
            multiplier, exponent = step_size(*scale, fraction_bits=16)
            per = (-1,) + (1,) * (w.ndim - 1)
            move = np.clip(fx.scaled(gradient, multiplier.reshape(per), exponent.reshape(per)), -(1 << 24), 1 << 24)
            return np.clip(np.trunc(w - move / 65536), -limit, limit).astype(np.int8)

        int8_update.updated_weight = truncated
        int8_update.is_one_sample = lambda *_: False
    if variant == "no zero point":
        for name in ("QUpdate", "QSum"):
            rule = OPS[name].reference
            OPS[name] = replace(OPS[name], reference=lambda a, attrs, rule=rule: rule(a, replace(attrs, x_zero=0)))


def accuracy(trainer: Trainer, x: Any, y: Any) -> float:
    """Percent of images whose largest output is their label."""
    hits = [int(trainer.infer(x[i : i + 1]).argmax()) == int(y[i, 0]) for i in range(len(x))]
    return 100 * sum(hits) / len(hits)


def stored(train: TrainGraph, x: Any) -> Any:
    """Images as the graph takes them."""
    source = train.graph.inputs[0]
    if source.dtype == "float32" or source.quant is None:
        return x
    return np.clip(np.rint(x / source.quant.scale[0]) + source.quant.zero, -128, 127).astype(np.int8)


def finetune(train: TrainGraph, rate: float, part: Split, test: Split, epochs: int, order: int = 0) -> float:
    """Accuracy on `test` after training on `part`, shuffled by `order`, with a cosine schedule."""
    trainer = Trainer(train)
    x, test_x = stored(train, nhwc(part.x)), stored(train, nhwc(test.x))
    rng = np.random.default_rng(7 + order)
    per_epoch = len(x) // train.batch
    for epoch in range(epochs):
        for i, chosen in enumerate(rng.permutation(len(x))[: per_epoch * train.batch].reshape(per_epoch, -1)):
            progress = (epoch * per_epoch + i) / (epochs * per_epoch)
            trainer.set_rate(rate * 0.5 * (1 + math.cos(math.pi * progress)))
            trainer.step(x[chosen], part.y[chosen])
    return accuracy(trainer, test_x, test.y)


def prepare_seed(seed: int) -> tuple[dict[str, Any], Split, Split, Any]:
    """(pre-trained weights, training part, test part, calibration images in graph layout) of a seed."""
    upright, part, test = load_digits(seed)
    weights = pretrain(seed, upright)
    images = np.concatenate([domain_a(upright.x, seed * 977 + 99), part.x[:64]])
    return weights, part, test, nhwc(images)


Job = tuple[str, int, int, float, int, bool, int, Any]
"""(variant, seed, batch, rate, epochs, validate, order, data)"""


def job(arguments: Job) -> float:
    """One run in a process of its own."""
    variant, seed, batch, rate, epochs, validate, order, (weights, part, test, samples) = arguments
    if validate:
        part, test = Split(part.x[:400], part.y[:400]), Split(part.x[400:], part.y[400:])
    sabotage(variant)
    return finetune(build(weights, variant, batch, samples, seed), rate, part, test, epochs, order)


def interval(differences: Any) -> tuple[float, float]:
    """Mean and half width of its 95 % confidence interval (Student's t)."""
    t95 = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36, 16: 2.13}
    n = len(differences)
    spread = float(np.std(differences, ddof=1)) / math.sqrt(n) if n > 1 else math.inf
    return float(np.mean(differences)), t95.get(n, 2.0) * spread


def means(pool: Any, choices: list[tuple[str, float]], data: list[Any], batch: int, epochs: int, *how: Any) -> Any:
    """Accuracies (choice, seed) of choices (variant, rate), each the mean over all orders; how: (validate, orders)."""
    validate, orders = how
    tasks: list[Job] = [
        (variant, seed, batch, rate, epochs, validate, order, data[seed])
        for variant, rate in choices
        for seed in range(len(data))
        for order in range(orders)
    ]
    return np.reshape(list(pool.map(job, tasks)), (len(choices), len(data), orders)).mean(axis=2)


def run_short(pool: Any, data: list[Any], epochs: int) -> dict[str, Any]:
    """The variants of --short at a given rate; controls, which miss by far, on the first seed alone."""
    found: dict[str, Any] = {"rate": SHORT_RATE}
    for variants, seeds in ((("fp32", DEFAULT), data), (tuple(SHORT_CONTROLS), data[:1])):
        results = means(pool, [(v, SHORT_RATE) for v in variants], seeds, 8, epochs, False, 1)
        found |= {v: results[i].tolist() for i, v in enumerate(variants)}
    return found


def run_batch(pool: Any, data: list[Any], batch: int, epochs: int, rate: float | None) -> dict[str, Any]:
    """All variants of one batch size: {variant: accuracies}, and the rate, which is chosen if None is given."""
    share = 0.1 if CHOSEN["optimizer"] == "momentum" else 1
    rate = rate or choose_rate(pool, data, batch, epochs, [r * share for r in RATES])
    whole = batch > 1 and CHOSEN["optimizer"] == "sgd" and CHOSEN["clip_norm"] is None
    variants = VARIANTS if whole else ("fp32", *STORES)
    results = means(pool, [(v, rate) for v in variants], data, batch, epochs, False, ORDERS)
    return {"rate": rate, **{v: results[i].tolist() for i, v in enumerate(variants)}}


def choose_rate(pool: Any, data: list[Any], batch: int, epochs: int, rates: list[float]) -> float:
    """The rate with the best fp32 accuracy on the validation part, all seeds and orders together."""
    scores = means(pool, [("fp32", r) for r in rates], data, batch, epochs, True, ORDERS).mean(axis=1)
    rate = rates[int(np.argmax(scores))]
    print(
        f"batch {batch}: fp32 validation {dict(zip(rates, scores.round(1).tolist(), strict=True))} -> rate {rate}",
        flush=True,
    )
    return rate


def judge(batch: int, results: dict[str, Any], bar: float, controls: dict[str, float]) -> bool:
    """Print one block; whether the default store meets the bar and all controls fail."""
    met = True
    base = np.asarray(results["fp32"])
    print(f"batch {batch}, rate {results['rate']}, {len(base)} seeds: accuracy %, paired difference to fp32 (95 %)")
    for variant in (v for v in VARIANTS if v in results):
        mean, half = interval(np.asarray(results[variant]) - base[: len(results[variant])])
        verdict = ""
        if variant in STORES:
            verdict = "met" if mean >= bar else "MISSED" if variant == DEFAULT else "missed"
            verdict += ", the default" if variant == DEFAULT else ""
        if variant in controls:
            verdict = "fails as it must" if mean <= -controls[variant] else "MISSED: does not fail"
        met &= "MISSED" not in verdict
        print(f"  {variant:14} {np.mean(results[variant]):5.1f}   {mean:+5.1f} +- {half:.1f}   {verdict}", flush=True)
    return met


def choose(settings: dict[str, Any]) -> None:
    """Take over, in a process of the pool, what the command line chose."""
    CHOSEN.update(settings)


def main() -> int:
    """Run the experiment."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batches", default="8,1")
    parser.add_argument("--optimizer", choices=["sgd", "momentum"], default="sgd")
    parser.add_argument("--rate", type=float)
    parser.add_argument("--clip", type=float)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--short", action="store_true")
    options = parser.parse_args()
    bar, controls = (SHORT_BAR, SHORT_CONTROLS) if options.short else (BAR, CONTROLS)
    if options.short:
        options.seeds, options.epochs, options.batches = 2, 2, "8"
    CHOSEN.update(optimizer=options.optimizer, clip_norm=options.clip)
    start = time.time()
    everything: dict[str, Any] = {}
    verdicts: list[bool] = []
    with ProcessPoolExecutor(2, initializer=choose, initargs=(dict(CHOSEN),), max_tasks_per_child=1) as pool:
        data = list(pool.map(prepare_seed, range(options.seeds)))
        zero_shot = [accuracy(Trainer(build(d[0], "fp32", 1, None, 0)), nhwc(d[2].x), d[2].y) for d in data[:1]]
        print(
            f"pre-trained {options.seeds} nets in {time.time() - start:.0f} s; zero-shot {zero_shot[0]:.1f} %",
            flush=True,
        )
        for batch in (int(b) for b in options.batches.split(",")):
            epochs = options.epochs if batch > 1 else options.epochs // 2
            how = (pool, data, batch, epochs, options.rate)
            found = run_short(pool, data, epochs) if options.short else run_batch(*how)
            everything[str(batch)] = found
            verdicts.append(judge(batch, found, bar, controls))
    print(f"{time.time() - start:.0f} s")
    if options.json:
        options.json.write_text(json.dumps(everything, indent=1))
    return 0 if all(verdicts) else 1
