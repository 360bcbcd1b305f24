"""Models with one recurrent layer, in every form that the standard has, and what onnxruntime makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


@dataclass(frozen=True)
class Cell:
    """One recurrent node between x [1, steps, features] and logits [1, classes].

    states: "" (none), "zeros", "given" (initializers), "computed" (from x); used: of "Y", "h", "c", what is read.
    """

    op: str
    direction: str = "forward"
    layout: int = 0
    reset_last: int = 0
    states: str = ""
    used: str = "Y"
    bias: bool = True
    steps: int = 4
    features: int = 3
    hidden: int = 2
    activations: tuple[str, ...] = ()
    lengths: tuple[int, ...] = ()
    seed: int = 0

    @property
    def directions(self) -> int:
        return 2 if self.direction == "bidirectional" else 1


class _Made:
    def __init__(self, cell: Cell) -> None:
        self.cell = cell
        self.random = np.random.default_rng(cell.seed)
        self.weights: dict[str, np.ndarray] = {}
        self.nodes: list[onnx.NodeProto] = []

    def weight(self, name: str, *shape: int) -> str:
        self.weights[name] = (self.random.standard_normal(shape) * 0.8).astype(np.float32)
        return name

    def table(self, name: str, values: Sequence[int]) -> str:
        self.weights[name] = np.array(values, np.int64)
        return name

    def add(self, op: str, inputs: Sequence[str], outputs: Sequence[str], **attrs: object) -> str:
        self.nodes.append(helper.make_node(op, list(inputs), list(outputs), **attrs))
        return outputs[0]


def model_of(
    cell: Cell, classes: int = 3, opset: int = 17, plain_layout: bool = False, **attrs: object
) -> onnx.ModelProto:
    """The model. plain_layout: layout 1 written as layout 0 between Transposes (onnxruntime has no other); attrs: more
    of the node."""
    made = _Made(cell)
    hidden, count = cell.hidden, cell.directions
    rows = GATES[cell.op] * hidden
    batch_first = cell.layout == 1 and not plain_layout
    x = "x" if batch_first else made.add("Transpose", ["x"], ["xt"], perm=[1, 0, 2])
    inputs = [x, made.weight("W", count, rows, cell.features), made.weight("R", count, rows, hidden)]
    inputs.append(made.weight("B", count, 2 * rows) if cell.bias else "")
    inputs.append(_lengths(made))
    inputs += [_state(made, name, batch_first) for name in ("h0", "c0")[: 2 if cell.op == "LSTM" else 1]]
    while not inputs[-1]:
        inputs.pop()
    more: dict[str, object] = {"direction": cell.direction, "hidden_size": hidden, **attrs}
    if cell.op == "GRU":
        more["linear_before_reset"] = cell.reset_last
    if batch_first:
        more["layout"] = 1
    if cell.activations:
        more["activations"] = list(cell.activations)
    names = {"Y": "Y", "h": "Y_h", "c": "Y_c"}
    outputs = [name if key in cell.used else "" for key, name in names.items()]
    while not outputs[-1]:
        outputs.pop()
    made.add(cell.op, inputs, outputs, **more)
    features = [_flat(made, name, batch_first) for name in outputs if name]
    joined = features[0] if len(features) == 1 else made.add("Concat", features, ["joined"], axis=1)
    width = hidden * count * sum(cell.steps if name == "Y" else 1 for name in outputs if name)
    made.add("Gemm", [joined, made.weight("head", width, classes), made.weight("bias", classes)], ["y"])
    graph = helper.make_graph(
        made.nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, cell.steps, cell.features])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, classes])],
        [numpy_helper.from_array(array, name) for name, array in made.weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def _lengths(made: _Made) -> str:
    if made.cell.lengths:
        made.weights["lengths"] = np.array(made.cell.lengths, np.int32)
    return "lengths" if made.cell.lengths else ""


def _state(made: _Made, name: str, batch_first: bool) -> str:
    """An initial state, in the node's layout."""
    cell = made.cell
    shape = (1, cell.directions, cell.hidden) if batch_first else (cell.directions, 1, cell.hidden)
    if cell.states == "zeros":
        made.weights[f"{name}_zero"] = np.zeros((), np.float32)
        return made.add("Expand", [f"{name}_zero", made.table(f"{name}_shape", shape)], [name])
    if cell.states == "given":
        made.weight(name, cell.directions, 1, cell.hidden)
        return (
            made.add("Reshape", [name, made.table(f"{name}_shape", shape)], [f"{name}_laid"]) if batch_first else name
        )
    if cell.states == "computed":
        flat = made.add("Flatten", ["x"], [f"{name}_flat"])
        weight = made.weight(f"{name}_w", cell.steps * cell.features, cell.directions * cell.hidden)
        product = made.add("MatMul", [flat, weight], [f"{name}_product"])
        return made.add("Reshape", [product, made.table(f"{name}_shape", shape)], [name])
    return ""


def _flat(made: _Made, name: str, batch_first: bool) -> str:
    """An output as one row, in an order that does not depend on the layout."""
    if not batch_first:
        perm = [2, 0, 1, 3] if name == "Y" else [1, 0, 2]
        name = made.add("Transpose", [name], [f"{name}_first"], perm=perm)
    return made.add("Flatten", [name], [f"{name}_flat"])
