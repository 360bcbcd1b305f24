"""ONNX model file -> forward Graph. The only importer of onnx."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import onnx

from tinytrain_compile.frontend.evaluator.function import FileFunction, Rounded
from tinytrain_compile.frontend.evaluator.model import EvaluatorLacksError, FileModel, FileNode
from tinytrain_compile.frontend.file.guard import parse_model
from tinytrain_compile.frontend.file.model import CONTROL_FLOW, LEARNED, OPSET, QUANTISED_OPS, OnnxModel
from tinytrain_compile.frontend.importer import import_model
from tinytrain_compile.frontend.operators.handlers import FAMILIES
from tinytrain_compile.frontend.options import FrontendOptions
from tinytrain_compile.frontend.training_file.read import model_file, read_training_file
from tinytrain_compile.ir.imported import ImportedModel

__all__ = [
    "EvaluatorLacksError",
    "FileFunction",
    "FileModel",
    "FileNode",
    "FrontendOptions",
    "ImportedModel",
    "Rounded",
    "load_model",
    "operators_by_purpose",
    "supported_operators",
]


def load_model(path: Path, options: FrontendOptions | None = None) -> ImportedModel:
    """Read, check and import a model file.

    A folder is one of training artifacts of ONNX Runtime. Raises CompileError: E02xx for a file or model that cannot be
    used, E0305 for labels that do not fit their loss,
    E0501 or E0503 with one line per node for what has no IR form.
    """
    options = options or FrontendOptions()
    proto, training = read_training_file(path, options.weights, options.max_window, options.output)
    return import_model(_read(proto, model_file(path), options, path.stem), options, training)


def _read(proto: onnx.ModelProto, path: Path, options: FrontendOptions, name: str) -> OnnxModel:
    """Return the model in the form that is imported, with a note on whatever had to be brought to it.

    This is the one place that asks what a file has: a form that it does not have is not loaded.
    """
    if options.output:
        from tinytrain_compile.frontend.file.forms import with_output

        proto = with_output(proto, options.output)
    model = parse_model(proto, name, path.parent, options)
    if model.opset < OPSET:
        from tinytrain_compile.frontend.file.forms import at_opset_13

        note = f"opset {model.opset}: read as onnx's version converter writes it for opset {OPSET}"
        model = parse_model(at_opset_13(model), name, path.parent, replace(options, input_shapes={}))
        model = replace(model, notes=(note,))
    if not CONTROL_FLOW.isdisjoint(model.operators):
        from tinytrain_compile.frontend.file.control_flow import without_control_flow

        model = without_control_flow(model, path.parent)
    if model.other_float_types:
        from tinytrain_compile.frontend.file.forms import in_float32

        model = in_float32(model)
    if (LEARNED, "Scaler") in model.operators:
        from tinytrain_compile.frontend.file.forms import without_scalers

        model = without_scalers(model)
    if not options.any_batch and model.is_quantised:
        from tinytrain_compile.frontend.quantised.qoperators import in_qdq_form

        model = in_qdq_form(model)
    if not options.any_batch and any(value.shape[0] != 1 for value in model.inputs if len(value.shape) > 1):
        from tinytrain_compile.frontend.file.forms import at_batch_1

        model = at_batch_1(model)
    return model


def supported_operators() -> tuple[str, ...]:
    """Return the names of all ONNX operators that are imported (constants may be made by further ones)."""
    return tuple(sorted({name for names in operators_by_purpose().values() for name in names}))


def operators_by_purpose() -> dict[str, tuple[str, ...]]:
    """Return purpose -> names of the ONNX operators that are imported for it; each name is in one purpose."""
    from tinytrain_compile.frontend.quantised.qoperators import QLINEAR_OPS

    found = {title: tuple(sorted(family.HANDLERS)) for title, family in FAMILIES.items()}
    return {**found, "quantised files": (*QUANTISED_OPS, *QLINEAR_OPS), "constants": ("Constant", "Shape", "Size")}
