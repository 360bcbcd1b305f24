"""Storage format of every tensor of an int8 training graph, and the nodes that it computes in float32."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from tinytrain_compile.ir.stages import TrainGraph
from tinytrain_compile.ir.summary import Summary
from tinytrain_compile.ir.types import Node, Quant, Value
from tinytrain_compile.ops.base import alias_of, has_trait, op_def
from tinytrain_compile.ops.int8.loss import LOSSES
from tinytrain_compile.ops.int8.rescale import fractions, rescaled_tables, rescales
from tinytrain_compile.ops.names import error_operands, operand, operands
from tinytrain_compile.report.layout import bytes_text, macs_text, plural, printable


def float32_pieces(summary: Summary) -> list[str]:
    """Tell what an int8 model computes in float32: a sentence with the price, then the layers."""
    found = float_regions(summary.train)
    if not found:
        return []
    names = [f"{printable(region.origins[0])} ({bytes_text(region.float_bytes)})" for region in found if region.origins]
    nodes, macs = sum(region.nodes for region in found), macs_text(sum(region.macs for region in found))
    return [f"{plural(nodes, 'node')} in {plural(len(found), 'region')}, {macs} MAC a step; from", *names]


def float32_json(summary: Summary) -> list[dict[str, Any]]:
    """Return the regions of the graph that compute in float32."""
    return [asdict(region) for region in float_regions(summary.train)]


def quant_tensors_json(summary: Summary) -> list[dict[str, Any]]:
    """Return a row for each stored tensor."""
    return quant_tensors(summary.train)


def quant_tensors(train: TrainGraph) -> list[dict[str, Any]]:
    """Return a row for each stored tensor of an int8 graph, in order of appearance; none for a float32 graph."""
    if not train.integer:
        return []
    graph, told = train.graph, _told(train)
    kinds = [*((value, "input") for value in train.data)]
    kinds += [*((value, told.get(value.name) or _by_type(value)) for value in graph.state)]
    kinds += [(value, "sum") for value in graph.accumulators]
    kinds += [(v, _kind(n, v, train)) for n in graph.nodes if not op_def(n.op).view for v in _made(n)]
    errors = ((node.outputs[0].name, error_operands(node)) for node in graph.nodes)
    exponents = {name: error.exponent.name for name, error in errors if error is not None}
    return [_row(value, kind, train.formats.get(value.name), exponents.get(value.name)) for value, kind in kinds]


@dataclass(frozen=True)
class FloatRegion:
    """Nodes that compute in float32 and are connected by float32 values.

    origins: ONNX nodes; float_bytes: of all values computed there (they are not all alive at once); macs: of its nodes;
    conversions: nodes that quantise or dequantise at its border.
    """

    origins: tuple[str, ...]
    nodes: int
    conversions: int
    float_bytes: int
    macs: int


def float_regions(train: TrainGraph) -> list[FloatRegion]:
    """Group nodes that compute in float32 by the values or ONNX node that connect them, in order of the first one."""
    if not train.integer:
        return []
    shared = {value.name for value in train.graph.state}
    groups: list[tuple[set[str], list[Node]]] = []
    for node in train.graph.nodes:
        keys = {v.name for v in (*node.inputs, *node.outputs) if v.dtype == "float32" and v.name not in shared}
        if not keys or node.op.removesuffix("Grad") in LOSSES:  # these read float32 targets, but compute with integers
            continue
        keys.add(f"origin of {node.origin or node.name}")
        touched = [group for group in groups if keys & group[0]]
        groups = [group for group in groups if not keys & group[0]]
        groups.append((keys.union(*(k for k, _ in touched)), [*(n for _, nodes in touched for n in nodes), node]))
    position = {node.name: i for i, node in enumerate(train.graph.nodes)}
    groups.sort(key=lambda group: min(position[n.name] for n in group[1]))
    return [region for region in (_region(nodes) for _, nodes in groups) if region.nodes]  # logits are only converted


def _region(nodes: list[Node]) -> FloatRegion:
    work = [node for node in nodes if not op_def(node.op).view]
    border = [node for node in work if has_trait(node.op, "border")]
    return FloatRegion(
        origins=tuple(dict.fromkeys(node.origin or node.name for node in work if node not in border)),
        nodes=len(work) - len(border),
        conversions=len(border),
        float_bytes=sum(v.size_bytes for node in work for v in _made(node) if v.dtype == "float32"),
        macs=sum(op_def(node.op).macs(node) for node in work),
    )


def _made(node: Node) -> list[Value]:
    """Return outputs that are not an overwritten parameter."""
    owned = {out for out, _ in alias_of(node)}
    return [value for index, value in enumerate(node.outputs) if index not in owned]


def _row(value: Value, kind: str, quant: Quant | None, exponent: str | None) -> dict[str, Any]:
    return {
        "name": value.name,
        "origin": value.origin,
        "kind": kind,
        "stored": value.dtype,
        "bytes": value.size_bytes,
        "scale": quant.scale[0] if quant is not None and len(quant.scale) == 1 else None,
        "zero": quant.zero if quant is not None else None,
        "exponent": exponent,
    }


def _told(train: TrainGraph) -> dict[str, str]:
    """Return the kind of the state that nodes tell something of, by name."""
    found = {train.learning_rate.name: "setting", "noise": "setting"}
    for node in train.graph.nodes:
        if node.op == "ExponentUpdate":
            found[operand(node, "state").name] = "exponent"
        if "velocity" in operands(node):
            found[operand(node, "velocity").name] = "velocity"
        if rescales(node):
            found.update({table.name: "shift" for table in rescaled_tables(node)})
    return found | {value.name: "fraction" for value in fractions(train.graph.nodes)}


def _by_type(state: Value) -> str:
    return {"int8": "weight", "int32": "bias", "float32": "float parameter"}.get(state.dtype, state.dtype)


def _kind(node: Node, value: Value, train: TrainGraph) -> str:
    if value.dtype == "bits":
        return "mask"
    if node.op in LOSSES:
        return "loss"
    moved = value.dtype == "int8" and value.name not in train.formats and not node.op.startswith("Q")
    if error_operands(node) is not None or moved:
        return "error"
    return {"int8": "activation", "float32": "float region"}.get(value.dtype, "index")
