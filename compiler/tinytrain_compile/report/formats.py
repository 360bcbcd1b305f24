"""What every tensor of an int8 training graph is stored as: the `quant_tensors` of report.json."""

from __future__ import annotations

from typing import Any

from tinytrain_compile.ir.stages import TrainGraph
from tinytrain_compile.ir.types import Node, Value
from tinytrain_compile.ops.base import op_def
from tinytrain_compile.ops.qupdate import ERROR_OPS


def quant_tensors(train: TrainGraph) -> list[dict[str, Any]]:
    """One row per stored tensor of an int8 graph, in order of appearance; none for a float32 graph."""
    if not train.integer:
        return []
    graph = train.graph
    rows = [_row(graph.inputs[0], "input", train)]
    rows += [_row(value, _state_kind(value, train), train) for value in graph.state]
    rows += [_row(value, "sum", train) for value in graph.accumulators]
    for node in graph.nodes:
        definition = op_def(node.op)
        owned = {out for out, _ in definition.alias}
        for index, value in enumerate(node.outputs):
            if index not in owned and not definition.view:
                rows.append(_row(value, _kind(node, value, train), train))
    return rows


def island_nodes(train: TrainGraph) -> list[Node]:
    """Nodes that compute in float32: the head, the loss, and what has no integer form."""
    if not train.integer:
        return []
    floats = (n for n in train.graph.nodes if any(v.dtype == "float32" for v in n.outputs))
    return [n for n in floats if not op_def(n.op).view and n.op != "QSoftmaxLoss"]


def _row(value: Value, kind: str, train: TrainGraph) -> dict[str, Any]:
    quant = train.formats.get(value.name)
    exponents = {n.outputs[0].name: n.inputs[1].name for n in train.graph.nodes if n.op in ERROR_OPS}
    return {
        "name": value.name,
        "origin": value.origin,
        "kind": kind,
        "stored": value.dtype,
        "bytes": value.size_bytes,
        "scale": quant.scale[0] if quant is not None and len(quant.scale) == 1 else None,
        "zero": quant.zero if quant is not None else None,
        "exponent": exponents.get(value.name),
    }


def _state_kind(value: Value, train: TrainGraph) -> str:
    if any(node.op in ERROR_OPS and node.inputs[1] == value for node in train.graph.nodes):
        return "exponent"
    if value == train.learning_rate or value.name == "noise":
        return "setting"
    return {"int8": "weight", "int32": "bias", "float32": "float parameter"}.get(value.dtype, value.dtype)


def _kind(node: Node, value: Value, train: TrainGraph) -> str:
    if value.dtype == "bits":
        return "mask"
    if node.op == "QSoftmaxLoss":
        return "loss"
    moved = value.dtype == "int8" and value.name not in train.formats and not node.op.startswith("Q")
    if node.op in ERROR_OPS or moved:
        return "error"
    return {"int8": "activation", "float32": "float island"}.get(value.dtype, "index")
