"""Runs of the numpy reference on the user's data: error exponents to compile in, and int8 against the float model."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from tinytrain_compile.data.samples import labelled, load_inputs, load_samples, stored_input
from tinytrain_compile.ir.imported import ImportedModel
from tinytrain_compile.ir.records import feeds
from tinytrain_compile.ir.stages import Samples, TrainGraph
from tinytrain_compile.ir.summary import Agreement
from tinytrain_compile.ir.types import Array, Graph
from tinytrain_compile.ops.interpreter import run_graph
from tinytrain_compile.ops.names import error_exponents
from tinytrain_compile.options.compile_options import CompileOptions
from tinytrain_compile.reference.trainer import Trainer
from tinytrain_compile.report.analysis import work_of

TRIAL_SAMPLES = 8
"""Samples whose backward passes give the exponents that are compiled in."""
COMPARED_SAMPLES, FEWEST_SAMPLES = 100, 16
"""Samples on which int8 and float outputs are compared: the first, fewer of a large model."""
COMPARED_MACS = 10**9
"""Multiply-accumulates of all samples compared: about a CPU second of the numpy reference (7.7 M in 7 ms, an int8
network of 3x3 convolutions on 48x48 pixels)."""


def with_exponents(train: TrainGraph, model: ImportedModel, options: CompileOptions) -> TrainGraph:
    """Return the graph with the exponents that its errors have on labelled calibration data, if it needs and has any.

    The reference trains on the first TRIAL_SAMPLES with learning rate 0: exponents follow the peaks, weights stay.
    """
    if train.exponents_known or options.calib is None or not labelled(options.calib, model):
        return train
    samples = load_samples(options.calib, model, train)
    return with_exponents_of(train, Samples(samples.x[:TRIAL_SAMPLES], samples.y[:TRIAL_SAMPLES]))


def like_one(train: TrainGraph, one: TrainGraph) -> TrainGraph:
    """Return a graph with the exponents that were found by a step on one sample's inputs, which it may be itself."""
    if not one.exponents_known or train.exponents_known:
        return train
    if train.windows is not None:
        train = replace(train, windows=one)
    known = {name: one.graph.constants[name] for name in error_exponents(one.graph.nodes)}
    return replace(
        train, graph=replace(train.graph, constants={**train.graph.constants, **known}), exponents_known=True
    )


def with_exponents_of(train: TrainGraph, samples: Samples) -> TrainGraph:
    """Return the graph with exponents that hold the errors of these samples."""
    trainer = Trainer(train)
    trainer.set_rate(0.0)
    for i in range(0, len(samples.x), train.batch):
        chosen = slice(i, i + train.batch)
        trainer.step(samples.x[chosen], samples.y[chosen])
    constants = dict(train.graph.constants)
    for name in error_exponents(train.graph.nodes):
        constants[name] = np.asarray([trainer.state[name][0], 0], np.int32)
    return replace(train, graph=replace(train.graph, constants=constants), exponents_known=True)


def compare(train: TrainGraph, model: ImportedModel, floats: Graph | None, options: CompileOptions) -> Agreement | None:
    """Return the untrained model on --data, or else on --calib: against its float form (None: there is none), and
    labels.

    None without data, or where it has neither class labels nor a float form to be compared with.
    """
    path = options.data or options.calib
    floats = floats if train.integer else None
    with_labels = path is not None and labelled(path, model)
    if path is None or not (with_labels or floats is not None):
        return None
    if with_labels:
        samples = load_samples(path, model, train)
        x, y = samples.x, samples.y
    else:
        x, y = stored_input(load_inputs(path, model), train), None
    count = compared_samples(train, len(x))
    classes = y[:count].ravel() if y is not None and y.dtype == np.int32 and y[:count].size == count else None
    if classes is None and floats is None:
        return None
    trainer = Trainer(train)
    ours = np.stack([trainer.infer(x[i : i + 1]).ravel() for i in range(count)]).astype(np.float64)
    real = None if floats is None else _outputs(floats, load_inputs(path, model)[:count])
    return _agreement(len(x), ours, real, classes)


def compared_samples(train: TrainGraph, count: int) -> int:
    """Return how many of so many samples are compared: the first ones."""
    macs = max(work_of(train)[0], 1)
    return min(count, COMPARED_SAMPLES, max(FEWEST_SAMPLES, COMPARED_MACS // macs))


def _outputs(floats: Graph, inputs: Array) -> Array:
    """Return what the float model gives, a row per sample."""
    out = floats.outputs[0].name
    runs = (run_graph(floats, feeds(inputs[at : at + 1], floats.inputs)) for at in range(len(inputs)))
    return np.stack([values[out].ravel() for values in runs]).astype(np.float64)


def _agreement(of: int, ours: Array, real: Array | None, classes: Array | None) -> Agreement:
    """Return figures of two sets of outputs, a row per sample. of: samples in the file."""
    top = ours.argmax(axis=1)
    known = Agreement(len(ours), of, None if classes is None else _share(top, classes))
    if real is None:
        return known
    best = real.argmax(axis=1)
    return replace(
        known,
        float_accuracy=None if classes is None else _share(best, classes),
        top1_agreement=_share(top, best) if ours.shape[1] > 1 else None,
        output_rmse=math.sqrt(np.mean((ours - real) ** 2)),
        output_rms=math.sqrt(np.mean(real**2)),
    )


def _share(a: Array, b: Array) -> float:
    return float(np.count_nonzero(a == b)) / len(a)
