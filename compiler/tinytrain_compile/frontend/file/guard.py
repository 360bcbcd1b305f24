"""The guard: an untrusted protobuf becomes a checked OnnxModel, or an error with an id of its own."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

import onnx
from onnx import defs, helper

from tinytrain_compile.errors import CompileError
from tinytrain_compile.frontend.file.model import (
    DEFAULT_DOMAINS,
    LEARNED,
    MICROSOFT,
    OnnxInput,
    OnnxModel,
    OnnxNode,
    changed,
)
from tinytrain_compile.frontend.file.protobuf import check_dims, check_finite, free_name, live_part, reads, tensor_array
from tinytrain_compile.frontend.options import FrontendOptions
from tinytrain_compile.ir.types import Array

OLDEST_OPSET = 7
"""The first that onnx's version converter knows well enough."""
_OPEN = -1
"""How Paddle's exporter writes a dimension that is left open."""


def parse_model(proto: onnx.ModelProto, name: str, folder: Path, options: FrontendOptions) -> OnnxModel:
    """Check everything that the importer relies on; see the E02xx table for what may be refused.

    What the outputs do not need (nodes, weights, inputs, functions) is left out unread.
    """
    opset = _opset(proto)
    graph = proto.graph
    _check_names(graph)
    # What of the file counts: everything else may be as it likes (another framework's operators, weights of element
    # types that no network computes with, inputs of unknown shape), it is not looked at.
    live, read = live_part(graph.node, [value.name for value in graph.output])
    _check_features(proto, live, read)
    constants = _constants(graph, read, folder, options)
    inputs = _inputs(graph, read, options)
    if not graph.output:
        raise CompileError("E0218", name, "the model has no output", "export the model again")
    nodes = tuple(read_node(node, opset, folder) for node in _named(live))
    outputs = tuple(value.name for value in graph.output)
    known = {value.name for value in inputs} | set(constants)
    return OnnxModel(name, opset, sort_nodes(nodes, known, outputs), inputs, outputs, constants, proto)


def _opset(proto: onnx.ModelProto) -> int:
    # Some exporters write the default domain twice; as in onnx and onnxruntime, the last entry holds.
    versions = [entry.version for entry in proto.opset_import if entry.domain in DEFAULT_DOMAINS]
    newest = defs.onnx_opset_version()
    opset = versions[-1] if versions else 0
    if not OLDEST_OPSET <= opset <= newest:
        what = f"opset {opset}" if versions else "no opset of the default domain"
        try_ = f"export with an opset from {OLDEST_OPSET} to {newest}"
        raise CompileError("E0230" if opset > newest else "E0208", "opset_import", what, try_)
    return opset


def _domain(name: str) -> str:
    return "" if name in DEFAULT_DOMAINS else name


def _check_features(proto: onnx.ModelProto, live: list[onnx.NodeProto], read: set[str]) -> None:
    functions = {(_domain(function.domain), function.name) for function in proto.functions}
    called = any((_domain(node.domain), node.op_type) in functions for node in live)
    features = (
        ("model-local functions", called, "inline them with onnx.inliner"),
        ("sparse weights", any(t.values.name in read for t in proto.graph.sparse_initializer), "export dense ones"),
    )
    for what, found, try_ in features:
        if found:
            raise CompileError("E0223", "model", f"{what} in the file cannot be read", try_)


def _check_names(graph: onnx.GraphProto) -> None:
    weights = [tensor.name for tensor in graph.initializer]
    inputs = [value.name for value in graph.input]
    _unique("input", inputs)
    _unique("weight", weights)
    _unique("output", [value.name for value in graph.output])
    results = [out for node in graph.node for out in node.output if out]
    _unique("value", [*dict.fromkeys([*inputs, *weights]), *results])


def _unique(kind: str, names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if not name:
            raise CompileError("E0227", kind, "it has no name", "give every value a name")
        if name in seen:
            raise CompileError("E0206", f"{kind} {name}", "this name is used twice", "give every value its own name")
        seen.add(name)


def _constants(graph: onnx.GraphProto, read: set[str], folder: Path, options: FrontendOptions) -> dict[str, Array]:
    used = (tensor for tensor in graph.initializer if tensor.name in read)
    constants = {t.name: tensor_array(t, f"weight {t.name}", folder) for t in used}
    for name, array in options.constant_inputs.items():
        check_finite(array, f"weight {name}")
        constants[name] = array
    return constants


def _inputs(graph: onnx.GraphProto, read: set[str], options: FrontendOptions) -> tuple[OnnxInput, ...]:
    unknown = set(options.input_shapes) - {value.name for value in graph.input}
    if unknown:
        names = ", ".join(value.name for value in graph.input)
        raise CompileError("E0224", sorted(unknown)[0], "the model has no such input", f"its inputs are: {names}")
    constants = {tensor.name for tensor in graph.initializer} | set(options.constant_inputs)
    used = (value for value in graph.input if value.name in read and value.name not in constants)
    return tuple(_input(value, options) for value in used)


def _input(value: onnx.ValueInfoProto, options: FrontendOptions) -> OnnxInput:
    where = f"input {value.name}"
    if not value.type.HasField("tensor_type"):
        raise CompileError("E0221", where, "it is not a tensor", "use a float32 tensor as input")
    tensor_type = value.type.tensor_type
    if not tensor_type.HasField("shape"):
        raise CompileError("E0203", where, "it has no shape", "export the model with fixed shapes")
    given = options.input_shapes.get(value.name)
    dims = tensor_type.shape.dim
    declared = [d.dim_value if d.HasField("dim_value") and d.dim_value != _OPEN else d.dim_param for d in dims]
    shape = _resolve(where, declared, given)
    check_dims(where, shape)
    return OnnxInput(value.name, shape, tensor_type.elem_type)


def _resolve(where: str, declared: list[int | str], given: tuple[int, ...] | None) -> tuple[int, ...]:
    """Return fixed dimensions, with the user's for symbolic ones and 1 for a symbolic batch.

    declared: a name (or "") for a symbolic dimension.
    """
    dims = [1 if index == 0 and isinstance(dim, str) else dim for index, dim in enumerate(declared)]
    form = f"--input-shape {where.removeprefix('input ')}={','.join(str(dim) or '?' for dim in dims)}"
    if given is not None:
        fixed = zip(given, declared, strict=False)
        if len(given) != len(declared) or any(isinstance(dim, int) and dim != size for size, dim in fixed):
            what = f"--input-shape {','.join(map(str, given))} does not agree with the model"
            raise CompileError("E0224", where, what, f"write {form}")
        return given
    open_ = [dim or f"axis {index}" for index, dim in enumerate(dims) if isinstance(dim, str)]
    if open_:
        what = f"dimensions other than the batch are symbolic: {', '.join(open_)}"
        raise CompileError("E0203", where, what, f"put numbers into {form}")
    return tuple(dim for dim in dims if isinstance(dim, int))


def _named(nodes: Iterable[onnx.NodeProto]) -> Iterable[tuple[str, onnx.NodeProto]]:
    """Return every node with a unique name: its own, or operator and output.

    ONNX leaves names of nodes open; OpenVINO's writer gives one to many.
    """
    nodes = list(nodes)
    times = Counter(node.name for node in nodes)
    taken = set(times)
    for node in nodes:
        name = node.name
        if not name or times[name] > 1:
            name = f"{name or node.op_type}_{next((out for out in node.output if out), '')}"
            name = free_name(name, taken)
        yield name, node


def read_node(named: tuple[str, onnx.NodeProto], opset: int, folder: Path) -> OnnxNode:
    """Return a node of this name, checked. Its inputs end in what its graphs read from outside."""
    name, node = named
    where = f"node {name} ({node.op_type})"
    domain = _domain(node.domain)
    if not domain:
        check_schema(node, where, opset)
    names = [attribute.name for attribute in node.attribute]
    if len(set(names)) != len(names):
        raise CompileError("E0229", where, "an attribute is given twice", "export the model again")
    read = domain in ("", MICROSOFT) or (domain, node.op_type) == (LEARNED, "Scaler")  # others are only listed
    attrs = {attribute.name: _attribute(attribute, where, folder) for attribute in (node.attribute if read else ())}
    if domain != node.domain:  # onnx's evaluator knows the default domain by its empty name only
        node = changed(node)
        node.domain = domain
    return OnnxNode(name, node.op_type, domain, reads(node), tuple(node.output), attrs, node)


def _attribute(attribute: onnx.AttributeProto, where: str, folder: Path) -> Any:
    if attribute.type == onnx.AttributeProto.TENSOR:
        return tensor_array(attribute.t, f"{where}, attribute {attribute.name}", folder)
    try:
        return helper.get_attribute_value(attribute)
    except (ValueError, TypeError) as error:
        what = f"attribute {attribute.name} cannot be read"
        raise CompileError("E0229", where, what, "export the model again") from error


def check_schema(node: onnx.NodeProto, where: str, opset: int) -> None:
    """Check arity and attribute types of an operator of the standard (E0228, E0229). Others are listed later.

    One that is newer than the file's opset is read all the same, as the newest that onnx knows.
    """
    if not defs.has(node.op_type):
        return
    known = defs.has(node.op_type, opset)
    schema = defs.get_schema(node.op_type, opset) if known else defs.get_schema(node.op_type)
    counts = (("input", node.input, schema.min_input, schema.max_input),)
    counts += (("output", node.output, schema.min_output, schema.max_output),)
    for what, names, low, high in counts:
        if not low <= len(names) <= high:
            raise CompileError(
                "E0228", where, f"{len(names)} {what}s, the standard wants {low} to {high}", "export again"
            )
    for index, name in enumerate(node.input):
        kind = schema.inputs[min(index, len(schema.inputs) - 1)].option
        if not name and kind != defs.OpSchema.FormalParameterOption.Optional:
            raise CompileError("E0228", where, f"required input {index} is empty", "export the model again")
    given = {attribute.name for attribute in node.attribute}
    for attribute in node.attribute:
        wanted: Any = schema.attributes.get(attribute.name)  # the binding's enums have no stubs
        if wanted is None or int(wanted.type.value) != attribute.type or attribute.ref_attr_name:
            what = f"attribute {attribute.name} is unknown or of the wrong type"
            raise CompileError("E0229", where, what, "export the model again")
    missing = [name for name, wanted in schema.attributes.items() if wanted.required and name not in given]
    if missing:
        raise CompileError("E0229", where, f"attribute {missing[0]} is missing", "export the model again")


# ---- order of nodes --------------------------------------------------------------------------------------------------


def sort_nodes(nodes: Sequence[OnnxNode], known: set[str], outputs: Sequence[str]) -> tuple[OnnxNode, ...]:
    """Return nodes so that every read comes after its definition, otherwise in file order.

    The standard wants this order in the file; files that break it but have one are accepted. Raises E0215 on a name
    that nothing defines and E0207 on a cycle.
    """
    made = {name for node in nodes for name in node.outputs if name}
    for node in nodes:
        for name in node.inputs:
            if name and name not in known and name not in made:
                raise _undefined(f"node {node.name} ({node.op})", name)
    for name in outputs:
        if name not in known and name not in made:
            raise _undefined("model output", name)
    return tuple(nodes[index] for index in _order(nodes, known))


def _order(nodes: Sequence[OnnxNode], known: set[str]) -> list[int]:
    """Sort by Kahn's algorithm; of the nodes that could come next always the first one in the file."""
    makers = {name: index for index, node in enumerate(nodes) for name in node.outputs if name and name not in known}
    sorter = TopologicalSorter({i: {makers[n] for n in node.inputs if n in makers} for i, node in enumerate(nodes)})
    with suppress(CycleError):  # the nodes that do not wait for a cycle come all the same
        sorter.prepare()
    ready, ordered = list(sorter.get_ready()), list[int]()
    heapq.heapify(ready)
    while ready:
        ordered.append(heapq.heappop(ready))
        sorter.done(ordered[-1])
        for index in sorter.get_ready():
            heapq.heappush(ready, index)
    if len(ordered) < len(nodes):
        stuck = [nodes[index] for index in sorted(set(range(len(nodes))) - set(ordered))]
        what = f"it waits for its own result ({len(stuck)} nodes lie on or behind the cycle)"
        raise CompileError("E0207", f"node {stuck[0].name} ({stuck[0].op})", what, "export the graph without cycles")
    return ordered


def _undefined(where: str, name: str) -> CompileError:
    return CompileError("E0215", where, f"it reads {name or '(no name)'}, which nothing defines", "keep its producer")
