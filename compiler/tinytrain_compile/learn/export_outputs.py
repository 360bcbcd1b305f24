"""Outputs of an exported file beside those of the device: on random samples, and on the user's own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tinytrain_compile.data.samples import (
    graph_inputs,
    in_input_slot,
    in_label_type,
    input_keys,
    is_written,
    label_key,
    labelled,
    labels_of,
    names_in,
    read_arrays,
    stored_input,
)
from tinytrain_compile.driver.file_check.check import batch_with
from tinytrain_compile.driver.file_check.imported_values import ImportedValues
from tinytrain_compile.driver.file_check.litert_file import run_litert
from tinytrain_compile.driver.trial import compared_samples
from tinytrain_compile.frontend import EvaluatorLacksError, FileModel
from tinytrain_compile.frontend.file.foreign import is_tflite
from tinytrain_compile.ir.imported import ImportedModel
from tinytrain_compile.ir.stages import TrainGraph
from tinytrain_compile.ir.types import Array
from tinytrain_compile.options.compile_options import CompileOptions
from tinytrain_compile.twin import Twin
from tinytrain_compile.twin.scores import scores

TESTS = ("x_test", "y_test")
"""Arrays of an .npz that judge, as `finetune` takes them."""


@dataclass(frozen=True, eq=False)
class OwnSamples:
    """Samples of the user. what: which they are, for people. x: in the graph's layout, real numbers; y: as a call of
    the device takes them, None without labels."""

    what: str
    x: Array
    y: Array | None


@dataclass(frozen=True)
class OnSamples:
    """File and device on the user's samples. what: which samples. outputs: largest difference of an output.

    device, file: loss and, for classes or yes and no, accuracy; empty without labels.
    """

    what: str
    outputs: float
    device: Mapping[str, float]
    file: Mapping[str, float]


def own_samples(path: Path, model: ImportedModel, train: TrainGraph, twin: Twin) -> OwnSamples:
    """Return the first test samples of an .npz, or of all its samples if it has no x_test and y_test.

    Raises CompileError E0105 or E0305.
    """
    tests, has_labels = set(TESTS) <= set(names_in(path)) and len(model.data) == 1, labelled(path, model)
    tests = tests and has_labels  # else y_test tells faults from sound samples
    keys, label = (TESTS[:1], TESTS[1]) if tests else (input_keys(path, model), label_key(model))
    arrays = read_arrays(path, (*keys, *((label,) if has_labels else ())))
    x = graph_inputs(path.name, dict(zip((one.name for one in model.data), arrays, strict=False)), model)
    labels = labels_of(path.name, arrays[-1], len(x), model, train) if has_labels else None
    count = compared_samples(train, len(x))
    part = f"first {count:,} of " if count < len(x) else ""
    what = f"{part}{len(x):,} {'test samples' if tests else 'samples'} of {path.name}"
    y = None if labels is None else in_label_type(twin.instance.interface, labels[:count])
    return OwnSamples(what, x[:count], y)


def device_outputs(twin: Twin, own: OwnSamples, train: TrainGraph) -> Array:
    """Return what the device makes of them, a row per sample, as its calls give it."""
    return twin.instance.infer(in_input_slot(twin.instance.interface, stored_input(own.x, train)))


def compare(
    own: OwnSamples, ours: Array, model: ImportedModel, train: TrainGraph, options: CompileOptions
) -> OnSamples:
    """Compare the file with the device's outputs of these samples. Raises EvaluatorLacksError.

    model: of the file, read again.
    """
    inputs = ImportedValues(model, None, model.graph)
    each = [inputs.onnx_inputs(own.x[at : at + 1]) for at in range(len(own.x))]
    found, what = litert_outputs(options, model, each), f"{own.what}, by LiteRT"
    if isinstance(found, EvaluatorLacksError):
        found, what = file_outputs(options, model, each), own.what
    theirs = np.stack([_as_called(one, model) for one in found])
    ours = ours.reshape(theirs.shape)
    difference = float(np.abs(ours.astype(np.float64) - theirs).max())
    if own.y is None or is_written(model):
        return OnSamples(what, difference, {}, {})
    device, file = (scores(model, train.training_step, outputs, own.y) for outputs in (ours, theirs))
    return OnSamples(what, difference, device, file)


def litert_outputs(
    options: CompileOptions, model: ImportedModel, inputs: Sequence[Mapping[str, Array]]
) -> list[Array] | EvaluatorLacksError:
    """Return what LiteRT makes of samples by a .tflite file, or why it does not."""
    if not is_tflite(options.model):
        return EvaluatorLacksError("", f"{options.model.name} is no .tflite file")
    try:
        return [heard.output.real for heard in run_litert(options.model, model.output_name, inputs)]
    except EvaluatorLacksError as lacks:
        return lacks


def file_outputs(options: CompileOptions, model: ImportedModel, inputs: Iterable[Mapping[str, Array]]) -> list[Array]:
    """Return what options.model makes of samples, as onnx.reference runs it. Raises EvaluatorLacksError."""
    file = FileModel(options.model, options.model_output, options.weights)
    return [_output(file, model, given) for given in inputs]


def _as_called(output: Array, model: ImportedModel) -> Array:
    """Return an output of the file as a call of the device gives it: a row."""
    size = int(np.prod(model.output_shape))
    return output.reshape(-1)[:size].reshape(model.output_shape).transpose(model.output_perm).reshape(-1)


def _output(file: FileModel, model: ImportedModel, given: Mapping[str, Array]) -> Array:
    """Return what the file makes of a sample; of a batch of its own, the first sample's."""
    size = 1 if model.input_shape[:1] != (1,) else file.batch_of(model.input_name)
    values: dict[str, Array] = dict(file.constants)
    for one in model.data:
        x = given[one.name]
        whole = x.dtype.kind == "i" or one.whole is not None  # other floats are float32 for both
        values[one.name] = batch_with(x, size).astype(file.inputs.get(one.name, x.dtype) if whole else x.dtype)
    for node in file.nodes:
        if model.loss is None or all(name in values for name in node.inputs if name):  # else it is behind the labels
            values.update(zip(node.outputs, file.run(node, values), strict=False))
    return values[model.output_name]
