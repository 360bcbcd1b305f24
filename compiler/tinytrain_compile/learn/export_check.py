"""What is asked of a file before it is written: does it say what was learned, and compute what the device does?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from tinytrain_compile.data.samples import in_input_slot, random_samples
from tinytrain_compile.driver.file_check.check import batch_with, check_file
from tinytrain_compile.driver.file_check.imported_values import ImportedValues
from tinytrain_compile.driver.pipeline import Project, imported, stored
from tinytrain_compile.errors import CompileError
from tinytrain_compile.frontend import EvaluatorLacksError, FileModel
from tinytrain_compile.ir.imported import FileNumbers, ImportedModel
from tinytrain_compile.ir.stages import Samples, TrainGraph
from tinytrain_compile.ir.types import Array
from tinytrain_compile.options.compile_options import CompileOptions
from tinytrain_compile.twin import Twin

SAMPLES = 4
"""On which the file and the device are compared: each runs the whole file in onnx.reference."""
TOLERANCE = 1e-5
"""Of float32 outputs: |file - twin| <= TOLERANCE max(1, max |twin|)."""


@dataclass(frozen=True)
class Agreement:
    """outputs: the largest difference of an output from the twin's; None where the evaluator lacks an operator.

    steps: the largest of a tensor of a quantised file, in its steps. notes: what storing has rounded, and the like.
    """

    outputs: float | None
    steps: float | None
    notes: tuple[str, ...]


def check_export(project: Project, twin: Twin, options: CompileOptions, learned: Mapping[str, Array]) -> Agreement:
    """Judge options.model, the file that would be written. E0606 where it is not what the twin has learned."""
    again = _read_again(project.model, options, learned)
    notes = _as_learned(project.model, again, learned)
    if notes:  # the device, with the numbers that the file has room for
        tensors = _tensors(again)
        twin.load_state_dict({name: tensors[name].initial for name in learned})
    train, quant = project.one, project.summary.quant
    samples = random_samples(train, SAMPLES, options.seed, project.model)
    graph = replace(train.graph, constants={**train.graph.constants, **twin.state_dict(raw=True)})
    held, checked = replace(train, graph=graph), replace(options, quant=quant)
    if not train.integer:
        model = stored(again, checked)
        found = check_file(model, model.graph, held, samples, checked)
    elif again.quantised:
        found = check_file(project.model, None, held, samples, checked)
    else:
        found = check_file(again, again.graph, held, samples, checked)
        notes.append("the file computes in float32 what the device computes in int8")
    exact = not train.integer and not again.quantised
    error = _outputs_differ(twin, again, held, samples, checked, exact)
    lacking = [] if error is not None else ["the outputs were not compared: onnx.reference cannot run the whole file"]
    return Agreement(error, found.steps, (*notes, *lacking))


def _read_again(model: ImportedModel, options: CompileOptions, learned: Mapping[str, Array]) -> ImportedModel:
    """Read the file as it was imported, but for its numbers: rules that look at these do not choose parameters anew."""
    chosen = {choice.name: choice.trained for choice in model.choices} | dict.fromkeys(learned, True)
    return imported(replace(options, classes=None, untie=False, trainable=(), frozen=()), chosen)


def _tensors(model: ImportedModel) -> dict[str, FileNumbers]:
    return {source.tensor.name: source.tensor for source in model.sources.values()}


def _as_learned(model: ImportedModel, again: ImportedModel, learned: Mapping[str, Array]) -> list[str]:
    """Read back, the file holds what was learned, as it rounds it, and all else as it was. Notes on that rounding."""
    held, rounded = _tensors(again), dict[str, list[str]]()
    for name, wanted in learned.items():
        if name not in held or held[name].initial.shape != wanted.shape:
            raise _differs(name, "is not read back as it was written")
        off = np.abs(held[name].initial.astype(np.float64) - wanted)
        step = _step(held[name], wanted)
        if (off > step / 2).any():
            what = f"a number that was learned ({wanted.reshape(-1)[np.argmax(off)]:.6g}) is beyond what the file holds"
            raise CompileError("E0112", f"weight {name}", what, "train at a lower rate, or export the float model")
        if (off > step / 64).any():
            rounded.setdefault(held[name].kind, []).append(name)
    for name, array in model.graph.constants.items():
        found = again.graph.constants.get(name)
        wanted = array
        if name in model.sources and model.sources[name].tensor.name in learned:
            wanted = model.sources[name].in_graph(held[model.sources[name].tensor.name].initial)
        if found is None or not np.array_equal(found, wanted):
            raise _differs(name, "is read back with other numbers")
    return [f"rounded to {kind}, the nearest that it has: {_listed(names)}" for kind, names in rounded.items()]


def _step(tensor: FileNumbers, real: Array) -> Array:
    """Return how far numbers of a tensor of the file are apart, next to these.

    0 if all of float32 are numbers of it.
    """
    close = np.abs(real.astype(np.float64))
    if tensor.stored is not None:  # and both were rounded to float32
        return tensor.stored.scale + close * 2.0**-22
    return np.zeros_like(close) if tensor.kind in ("float32", "float64") else close * 2.0**-7 + 2.0**-23


def _listed(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if names[3:] else "")


def _outputs_differ(
    twin: Twin, model: ImportedModel, train: TrainGraph, samples: Samples, options: CompileOptions, exact: bool
) -> float | None:
    """Return the largest difference of an output of the file from the twin's.

    E0606 for one that is too large, if `exact`.
    """
    values = ImportedValues(model, train, None)
    raw = twin.instance.infer(in_input_slot(twin.instance.interface, samples.x))
    ours = [twin.as_output(each[None]) for each in raw]
    try:
        file = FileModel(options.model, options.model_output, options.weights)
        theirs = [_output(file, model, values.onnx_inputs(samples.x[at : at + 1])) for at in range(len(samples.x))]
    except EvaluatorLacksError:
        return None
    worst = 0.0
    for one, other in zip(ours, theirs, strict=True):
        error = float(np.abs(one.astype(np.float64) - other[: len(one)].reshape(one.shape)).max())
        if exact and not error <= TOLERANCE * max(1.0, float(np.abs(one).max())):
            raise _differs(model.output_name, f"an output differs from the device's by {error:.3g}")
        worst = max(worst, error)
    return worst


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


def _differs(name: str, what: str) -> CompileError:
    return CompileError("E0606", name, what, "please report this with the model and the checkpoint")
