"""Look for false alarms of the derivative check in ONNX's operator tests, as training steps.

Each case of one node becomes a network: its first input is multiplied by a trained scale, its other float inputs are
trained, and its outputs end in a mean squared error.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.robustness.derivative_networks import step_of
from testing.networks.backend_cases import listed_cases, numpy_inputs, numpy_outputs, skip_reason
from tinytrain_compile.driver.derivative import check_derivative
from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.graph import GraphError
from tinytrain_compile.options.compile_options import CompileOptions


def nodes() -> bool:
    """Judge every case that compiles; True if none is refused."""
    counts: Counter[str] = Counter()
    tensors = unjudged = 0
    with tempfile.TemporaryDirectory() as folder:
        for name, case in sorted(listed_cases().items()):
            if skip_reason(case) or not (made := _network(case, Path(folder))):
                counts["out of scope"] += 1
                continue
            try:
                model, train, samples, options = step_of(made)
            except (CompileError, GraphError, ValueError):
                counts["not compiled"] += 1
                continue
            try:
                found = check_derivative(model, train, samples, options)
            except CompileError as refused:
                counts["ALARM"] += 1
                print(f"ALARM {name}: {refused}", flush=True)
                continue
            if found is None or not found.tensors:
                counts["not judged"] += 1
                print(f"      {name}: {found and found.skipped}", flush=True)
                continue
            counts["agrees"] += 1
            tensors, unjudged = tensors + found.tensors, unjudged + found.unjudged
    print(f"node tests: {dict(counts)}; {tensors} tensors judged, {unjudged} not")
    return not counts["ALARM"]


def _network(case: Any, folder: Path) -> CompileOptions | None:
    """Write the network of a case and its samples. None if its first input or output is not of real numbers."""
    inputs, outputs = numpy_inputs(case), numpy_outputs(case)
    graph = case.model.graph
    if not inputs or not all(np.asarray(one).dtype == np.float32 and np.size(one) for one in (inputs[0], outputs[0])):
        return None
    x, (node,) = np.asarray(inputs[0]), graph.node
    random, first = np.random.default_rng(1), graph.input[0].name
    trained = {"scale": random.uniform(0.9, 1.1, x.shape).astype(np.float32)}
    trained |= {v.name: np.asarray(a) for v, a in zip(graph.input[1:], inputs[1:], strict=True)}
    last = next(name for name in node.output if name)
    parts = [
        helper.make_node("Reshape", ["sample", "own_shape"], ["own"]),
        helper.make_node("Mul", ["own", "scale"], [first]),
        node,
        helper.make_node("Reshape", [last, "flat_shape"], ["flat"]),
    ]
    shapes = {"own_shape": np.array(x.shape or (1,), np.int64), "flat_shape": np.array([1, -1], np.int64)}
    arrays = {**trained, **shapes}
    made = helper.make_graph(
        parts,
        "node",
        [helper.make_tensor_value_info("sample", TensorProto.FLOAT, [1, *x.shape])],
        [helper.make_tensor_value_info("flat", TensorProto.FLOAT, [1, int(np.size(outputs[0]))])],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    onnx.save(helper.make_model(made, opset_imports=case.model.opset_import, ir_version=8), folder / "node.onnx")
    near = np.stack([x, x * random.uniform(0.95, 1.05, x.shape).astype(np.float32)])
    np.savez(folder / "data.npz", x=near, y=random.normal(size=(2, int(np.size(outputs[0])))).astype(np.float32))
    return CompileOptions(
        folder / "node.onnx", update="all", loss="mse", data=folder / "data.npz", given=frozenset({"update", "loss"})
    )
