"""TfliteFile -> ONNX: state first, then operator by operator; all that has no translation is listed at once."""

from __future__ import annotations

import difflib

import onnx
from onnx import shape_inference

from tinytrain_compile.errors import CompileError
from tinytrain_compile.frontend.file.model import TIME_AXIS, Refused
from tinytrain_compile.frontend.tflite.file import ABSENT, Operator, Subgraph, TfliteFile
from tinytrain_compile.frontend.tflite.rings import STATE
from tinytrain_compile.frontend.tflite.table import HANDLERS
from tinytrain_compile.frontend.tflite.translate import INTEGERS, Translation


def has_state(file: TfliteFile) -> bool:
    """Tell whether a file keeps something from one call to the next."""
    return any(operator.op in STATE for operator in file.subgraphs[0].operators)


def in_onnx(file: TfliteFile, max_window: int) -> onnx.ModelProto:
    """Return the ONNX model of a file. E0501 with one line for each operator that has no translation."""
    graph, time = file.subgraphs[0], None
    _check_ends(file.name, graph)
    if has_state(file):
        from tinytrain_compile.frontend.tflite.window import unrolled

        unknown = {k: _unknown(one) for k, one in enumerate(graph.operators) if one.op not in {*HANDLERS, *STATE}}
        _raise_if_any(file.name, graph, unknown)
        graph, time = unrolled(file, max_window)
    try:
        made = Translation(graph)
    except Refused as reason:
        raise CompileError("E0221", f"input {reason.attribute}", reason.reason, f"use {reason.nearest}") from reason
    refused = dict[int, Refused]()
    for index, operator in enumerate(graph.operators):
        try:
            if operator.op not in HANDLERS:
                raise _unknown(operator)
            _check_types(operator, graph)
            HANDLERS[operator.op](made, operator)
        except Refused as reason:
            refused[index] = reason
            made.pass_over(operator)
    _raise_if_any(file.name, graph, refused)
    try:
        proto = made.model(file.name)
    except Refused as reason:
        raise CompileError("E0501", f"output {reason.attribute}", reason.reason, f"use {reason.nearest}") from reason
    _check_shapes(made, proto)
    if time is not None:
        proto.metadata_props.add(key=TIME_AXIS, value=str(time))
    return proto


def _check_ends(name: str, graph: Subgraph) -> None:
    """Check that there are inputs and outputs, and that every operator makes tensors of its own."""
    if not graph.outputs:
        raise CompileError("E0218", name, "the model has no output", "convert the model again")
    if not graph.inputs:
        raise CompileError("E0219", name, "the model has no input", "convert the model with its data input")
    made = {*graph.inputs}
    for operator in graph.operators:
        where = f"operator {operator.name} ({operator.op})"
        if operator.op in HANDLERS and (not operator.outputs or ABSENT in operator.outputs):
            raise CompileError("E0228", where, "it has no result", "convert the model again")
        for k in operator.outputs:
            if k in made:
                what = f"tensor {graph.tensors[k].name} has been made before"
                raise CompileError("E0206", where, what, "give every operator results of its own")
            made.add(k)


def _check_types(operator: Operator, graph: Subgraph) -> None:
    """Refuse int8 and uint8 in one operator: LiteRT's kernels take the type of one of them for all."""
    tensors = (graph.tensors[k] for k in (*operator.inputs, *operator.outputs) if k != ABSENT)
    kinds = {tensor.kind for tensor in tensors if tensor.kind in INTEGERS and tensor.data is None}
    if len(kinds) > 1 and operator.op != "QUANTIZE":
        raise Refused("types", "int8 and uint8 together", "one of them; QUANTIZE converts")


def _check_shapes(made: Translation, proto: onnx.ModelProto) -> None:
    """Check that the tensors have the shapes that their operators make, as onnx infers them. E0212 for the first."""
    try:
        found = shape_inference.infer_shapes(proto, data_prop=True).graph.value_info
    except Exception as problem:  # of the C++ part
        what = f"shapes cannot be inferred ({' '.join(str(problem).split())[:120]})"
        raise CompileError("E0212", proto.graph.name, what, "convert the model again") from problem
    inferred = {one.name: tuple(dim.dim_value for dim in one.type.tensor_type.shape.dim) for one in found}
    for tensor, name, shape in made.results():
        if inferred.get(name, shape) != shape:
            what = f"its operator makes shape {list(inferred[name])}, the file says {list(tensor.shape)}"
            raise CompileError("E0212", f"tensor {tensor.name}", what, "convert the model again")


def _unknown(operator: Operator) -> Refused:
    found = difflib.get_close_matches(operator.op, HANDLERS, n=2, cutoff=0.75)
    nearest = " or ".join(found) or "none, see docs/tflite.md; write it with the operators there"
    return Refused("", "there is no such operator in the compiler", nearest)


def _raise_if_any(name: str, graph: Subgraph, refused: dict[int, Refused]) -> None:
    """Raise E0501 with one line for each operator that is refused, by its place in the graph."""
    if not refused:
        return
    lines = list[str]()
    for index, reason in refused.items():
        operator = graph.operators[index]
        what = f"{operator.op}, {reason.attribute}" if reason.attribute else operator.op
        line = f"{operator.name}: {what}: {reason.reason}; nearest supported: {reason.nearest}"
        line = "".join(c if c.isprintable() else "?" for c in line)
        lines.append(line if len(line) <= 300 else line[:297] + "...")
    kinds = "; ".join(dict.fromkeys(graph.operators[index].op for index in refused))
    what = f"{len(refused)} of {len(graph.operators)} operators cannot be imported: {kinds}"
    raise CompileError("E0501", name, what, "replace these operators in the model as listed below", tuple(lines))
