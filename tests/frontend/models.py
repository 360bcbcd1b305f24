"""Helpers of the frontend's tests: write a model to a file, import it, run it, compare with an oracle."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper, parser

from tinytrain_compile.driver.file_check.check import compare
from tinytrain_compile.driver.file_check.imported_values import ImportedValues
from tinytrain_compile.frontend import FileModel, FrontendOptions, ImportedModel, load_model
from tinytrain_compile.ops.interpreter import run_graph

IR_VERSION = 10


def parse(text: str, weights: dict[str, np.ndarray] | None = None, opset: int = 17) -> onnx.ModelProto:
    """A model from ONNX text of its graph; `weights` become initializers."""
    header = f'<ir_version: {IR_VERSION}, opset_import: ["" : {opset}]>'
    model = parser.parse_model(f"{header}\n{text}")
    for name, array in (weights or {}).items():
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    return model


def write(model: onnx.ModelProto, folder: Path, name: str = "net.onnx") -> Path:
    path = folder / name
    path.write_bytes(model.SerializeToString())
    return path


def run_imported(imported: ImportedModel, x: np.ndarray | None) -> list[np.ndarray]:
    """Outputs, in ONNX order, of an imported model on an ONNX-order input."""
    feeds = {}
    if x is not None and imported.graph.inputs:
        feeds[imported.graph.inputs[0].name] = np.ascontiguousarray(x.transpose(imported.input_perm))
    values = run_graph(imported.graph, feeds)
    return [values[value.name] for value in imported.graph.outputs]


def check_against_onnxruntime(
    model: onnx.ModelProto, folder: Path, options: FrontendOptions | None = None, tolerance: float = 1e-5
) -> ImportedModel:
    """Import a model and compare its output with onnxruntime's: max |a - b| <= tolerance * max(1, max|b|)."""
    path = write(model, folder)
    imported = load_model(path, options)
    x = np.random.default_rng(0).normal(size=imported.input_shape).astype(np.float32)
    expected = onnxruntime.InferenceSession(path.read_bytes()).run([imported.output_name], {imported.input_name: x})[0]
    assert expected.shape == imported.output_shape
    found = run_imported(imported, x)[0]
    limit = tolerance * max(1.0, float(np.abs(expected).max()))
    np.testing.assert_allclose(found, expected.transpose(imported.output_perm), rtol=0, atol=limit)
    judged_by_the_file(path, imported, x)
    return imported


def judged_by_the_file(path: Path, imported: ImportedModel, x: np.ndarray) -> None:
    """The file check: every tensor that the file and the graph have, as onnx.reference has it."""
    sample = np.ascontiguousarray(x.transpose(imported.input_perm))
    agreed = compare(FileModel(path), ImportedValues(imported, None, imported.graph), [(sample, None)])
    assert agreed.whole or agreed.skipped


def ops_of(imported: ImportedModel) -> list[str]:
    return [node.op for node in imported.graph.nodes]
