"""Comparison of a window with the calls of its file, which get their state back each time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import helper

from tinytrain_compile.errors import CompileError
from tinytrain_compile.frontend.evaluator.model import FileModel
from tinytrain_compile.frontend.file.forms import proto_of
from tinytrain_compile.frontend.file.guard import parse_model
from tinytrain_compile.frontend.file.protobuf import read_proto
from tinytrain_compile.frontend.options import FrontendOptions
from tinytrain_compile.frontend.rings.onnx_window import Window, in_one_window
from tinytrain_compile.ir.types import Array

_NEAR = 1e-5
"""Largest difference, by the largest number of the output: both sum the same float32 numbers, in any order."""


def check_steps(path: Path, output: str = "", seed: int = 0) -> None:
    """Compare the window of a file with state with the file's own calls, on random rows.

    output: the one that counts, of several. E0605 if they differ; EvaluatorLacksError where onnx.reference cannot run
    the file.
    """
    window = in_one_window(read_proto(path), path.parent, path.name, 0, output)
    assert window is not None, "who calls knows that it has state"
    random = np.random.default_rng(seed)
    shapes = {value.name: value.shape for value in parse_model(window.proto, "", path.parent, FrontendOptions()).inputs}
    calls = max(-(-rows.need // rows.fresh) for rows in window.rows.values())
    stream = dict[str, Array]()
    for name, rows in window.rows.items():
        shape = (*shapes[name][: rows.axis], calls * rows.fresh, *shapes[name][rows.axis + 1 :])
        stream[name] = random.standard_normal(shape).astype(np.float32)
    last = {name: np.take(x, range(-window.rows[name].need, 0), window.rows[name].axis) for name, x in stream.items()}
    ours = FileModel.of(window.proto, path.parent).outputs_of(last)[0]
    theirs = _of_calls(window, stream, calls)
    error, largest = float(np.abs(ours - theirs).max()), float(np.abs(theirs).max())
    if not error <= _NEAR * max(largest, 1.0):
        what = f"its window and {calls} of its own calls differ by {error:.3g} (largest number {largest:.3g})"
        raise CompileError("E0605", path.name, what, "please report this with the model; see --explain E0605")


def _of_calls(window: Window, stream: dict[str, Array], calls: int) -> Array:
    """Return the last output of the file, called with the rows of a stream one after the other. State is 0 at first."""
    state, proto = window.state, proto_of(window.step)
    if state.outputs[0] not in window.step.outputs:  # an inner result, as --model-output may name it
        proto.graph.output.append(onnx.ValueInfoProto(name=state.outputs[0]))
    step = FileModel.of(proto, Path())
    inputs = {value.name: value for value in window.step.inputs}
    kept = {
        name: np.zeros(inputs[name].shape, helper.tensor_dtype_to_np_dtype(inputs[name].elem_type))
        for name in state.next
    }
    found: Array = np.zeros(0)
    for call in range(calls):
        rows = dict[str, Array]()
        for name, x in stream.items():
            fresh, axis = window.rows[name].fresh, window.rows[name].axis
            rows[name] = np.take(x, range(call * fresh, (call + 1) * fresh), axis).reshape(inputs[name].shape)
        after = dict(zip(step.outputs, step.outputs_of({**rows, **kept}), strict=True))
        found, kept = after[state.outputs[0]], {name: after[kept] for name, kept in state.next.items()}
    return found
