"""Mutants of models on the level of ONNX fields, which get far deeper than those of bytes."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import numpy as np
import onnx
from onnx import TensorProto, defs, helper, numpy_helper

from tinytrain_compile.frontend import supported_operators

NUMBERS = (-(2**63), -(2**31), -7, -1, 0, 1, 2, 3, 5, 16, 255, 2**28, 2**31 - 1, 2**40, 2**63 - 1)
REALS = (0.0, -0.0, 1e-45, 1e-38, -1.0, 1.0, 3e38, float("inf"), float("-inf"), float("nan"), 0.5, 1e-5)
NAMES = ("", "x", "\0", "a\nb", "while", "int", "*/ x", "../x", "%s%n", "ä\u202e", '"', "\\", "n" * 5000, "net_init")
TYPES = (*range(24), 99)

Change = Callable[[onnx.ModelProto, Random], None]


def field_mutant(model: onnx.ModelProto, source: Random) -> bytes:
    """One to three changed fields; the result is always a readable protobuf."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    for _ in range(source.choice((1, 1, 2, 3))):
        source.choice(CHANGES)(result, source)
    return result.SerializeToString()


def _values(model: onnx.ModelProto) -> list[str]:
    """Names that a node may read, and the empty one."""
    graph = model.graph
    names = [out for node in graph.node for out in node.output]
    return [*names, *(item.name for item in (*graph.initializer, *graph.input)), ""]


def _node_of(model: onnx.ModelProto, source: Random) -> onnx.NodeProto:
    """One of the nodes (a new one in a model without any)."""
    return source.choice(model.graph.node) if model.graph.node else model.graph.node.add()


def _tensor_of(model: onnx.ModelProto, source: Random) -> TensorProto:
    return source.choice(model.graph.initializer) if model.graph.initializer else model.graph.initializer.add()


def _operator(model: onnx.ModelProto, source: Random) -> None:
    _node_of(model, source).op_type = source.choice(supported_operators())


def _edge(model: onnx.ModelProto, source: Random) -> None:
    """A node reads another value, one more, or one less; or writes another."""
    node = _node_of(model, source)
    kind = source.randrange(6)
    if node.input and kind < 3:
        node.input[source.randrange(len(node.input))] = source.choice(_values(model))
    elif node.input and kind == 3:
        del node.input[-1]
    elif kind == 4 and node.output:
        node.output[source.randrange(len(node.output))] = source.choice(_values(model))
    else:
        node.input.append(source.choice(_values(model)))


def _attribute(model: onnx.ModelProto, source: Random) -> None:
    nodes = [node for node in model.graph.node if node.attribute]
    if not nodes:
        return _new_attribute(model, source)
    attribute = source.choice(source.choice(nodes).attribute)
    if attribute.type == onnx.AttributeProto.INT:
        attribute.i = source.choice(NUMBERS)
    elif attribute.type == onnx.AttributeProto.FLOAT:
        attribute.f = source.choice(REALS)
    elif attribute.type == onnx.AttributeProto.INTS and attribute.ints:
        kind = source.randrange(3)
        if kind == 0:
            attribute.ints[source.randrange(len(attribute.ints))] = source.choice(NUMBERS)
        elif kind == 1:
            del attribute.ints[-1]
        else:
            attribute.ints.append(source.choice(NUMBERS[3:8]))
    elif attribute.type == onnx.AttributeProto.STRING:
        attribute.s = source.choice((b"", b"SAME_UPPER", b"VALID", b"\xff\xfe", b"none", b"sum"))
    else:
        attribute.name = source.choice(("axis", "pads", "perm", "alpha"))
    return None


def _new_attribute(model: onnx.ModelProto, source: Random) -> None:
    """An attribute that the operator may have, with any number in it; or of another type."""
    node = _node_of(model, source)
    known = defs.get_schema(node.op_type).attributes if defs.has(node.op_type) else {}
    name = source.choice(sorted(known) or ["axis"])
    lists = [source.choice(NUMBERS[2:9]) for _ in range(source.randrange(1, 7))]
    node.attribute.append(
        helper.make_attribute(name, source.choice((source.choice(NUMBERS), source.choice(REALS), lists, "VALID")))
    )


def _weight(model: onnx.ModelProto, source: Random) -> None:
    """Another shape of the same data, another type, or another number in it."""
    tensor = _tensor_of(model, source)
    array = _array(tensor)
    if array is None:
        return
    kind = source.randrange(5)
    with np.errstate(all="ignore"):
        if kind == 0:
            array = array.reshape(source.choice(((-1,), (1, -1), (-1, 1), (1, *array.shape), array.shape[::-1])))
        elif kind == 1:
            array = array.astype(source.choice((np.float16, np.float64, np.int32, np.int64, np.uint8, np.bool_)))
        elif kind == 2 and array.size:
            array.ravel()[source.randrange(array.size)] = _number(array.dtype, source)
        elif kind == 3:
            array = np.full(array.shape, _number(array.dtype, source), array.dtype)
        elif array.ndim:
            array = array[..., :-1]
    tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(array), tensor.name))


def _array(tensor: onnx.TensorProto) -> np.ndarray | None:
    """The data of a weight; None where it is no array (any more): an unknown type, or another number of elements."""
    try:
        return numpy_helper.to_array(tensor).copy()
    except (KeyError, TypeError, ValueError):
        return None


def _number(dtype: np.dtype, source: Random) -> np.generic:
    """A number at an end of a type."""
    with np.errstate(all="ignore"):
        if dtype.kind == "f":
            return np.asarray(source.choice(REALS)).astype(dtype)[()]
        return np.asarray(source.choice(NUMBERS)).astype(dtype)[()]


def _tensor(model: onnx.ModelProto, source: Random) -> None:
    """Fields of a weight that contradict each other."""
    tensor = _tensor_of(model, source)
    kind = source.randrange(6)
    if kind == 0:
        tensor.data_type = source.choice(TYPES)
    elif kind == 1 and tensor.dims:
        tensor.dims[source.randrange(len(tensor.dims))] = source.choice(NUMBERS)
    elif kind == 2:
        tensor.dims.extend([1] * source.choice((1, 6, 60)))
    elif kind == 3:
        tensor.segment.begin, tensor.segment.end = source.choice(NUMBERS), source.choice(NUMBERS)
    elif kind == 4:
        source.choice((tensor.float_data, tensor.double_data)).append(source.choice(REALS))
    else:
        tensor.ClearField("raw_data")


def _input(model: onnx.ModelProto, source: Random) -> None:
    graph = model.graph
    kind = source.randrange(6)
    value = source.choice((*graph.input, *graph.output)) if graph.input or graph.output else graph.input.add()
    shape = value.type.tensor_type.shape
    if shape.dim and kind < 3:
        source.choice(shape.dim).dim_value = source.choice(NUMBERS)
    elif shape.dim and kind == 3:
        del shape.dim[-1]
    elif kind == 4:
        value.type.tensor_type.elem_type = source.choice(TYPES)
    else:
        shape.dim.add().dim_param = "n"


def _node(model: onnx.ModelProto, source: Random) -> None:
    """A node is lost, occurs twice, comes first, or belongs to another domain."""
    nodes = model.graph.node
    if not nodes:
        return
    place = source.randrange(len(nodes))
    kind = source.randrange(5)
    if kind < 2:
        copy = nodes.add()
        copy.CopyFrom(nodes[place])
        if kind and copy.output:
            copy.name += "_again"
            copy.output[0] += "_again"
    elif kind == 2:
        copy = onnx.NodeProto()
        copy.CopyFrom(nodes[place])
        del nodes[place]
        nodes.insert(0, copy)
    elif kind == 3:
        nodes[place].domain = source.choice(("ai.onnx", "com.microsoft", "ai.onnx.ml", "\0"))
    else:
        del nodes[place]


def _name(model: onnx.ModelProto, source: Random) -> None:
    """A name, changed wherever it is used or in one place only."""
    graph = model.graph
    name = source.choice(NAMES)
    if source.randrange(3) == 0:
        _node_of(model, source).name = name
        return
    old = source.choice(_values(model))
    everywhere = source.randrange(3) > 0
    for node in graph.node:
        for names in (node.input, node.output):
            for index, used in enumerate(names):
                if used == old and (everywhere or source.randrange(2)):
                    names[index] = name
    for item in (*graph.initializer, *graph.input, *graph.output):
        if item.name == old and everywhere:
            item.name = name


def _opset(model: onnx.ModelProto, source: Random) -> None:
    kind = source.randrange(4)
    if kind == 0 or not model.opset_import:
        model.opset_import.add(domain=source.choice(("", "ai.onnx", "com.microsoft")), version=source.choice(NUMBERS))
    elif kind == 1:
        del model.opset_import[:]
    elif kind == 2:
        model.ir_version = source.choice(NUMBERS)
    else:
        model.opset_import[0].version = source.choice((*NUMBERS, *range(9, 28)))


def _quantisation(model: onnx.ModelProto, source: Random) -> None:
    """Scale, zero point or axis of a QuantizeLinear or DequantizeLinear; an inserted pair where there is none."""
    graph = model.graph
    nodes = [node for node in graph.node if node.op_type.endswith("quantizeLinear") or "uantizeLinear" in node.op_type]
    if not nodes:
        return _inserted_pair(model, source)
    node = source.choice(nodes)
    kind = source.randrange(5)
    tensors = [tensor for tensor in graph.initializer if tensor.name in node.input[1:]]
    if kind == 0:
        node.attribute.append(helper.make_attribute("axis", source.choice(NUMBERS)))
    elif kind == 1 and len(node.input) == 3:
        del node.input[2]
    elif tensors:
        tensor = source.choice(tensors)
        array = _array(tensor)
        if array is None:
            return None
        if kind == 2:
            array = np.full(array.shape, _number(array.dtype, source), array.dtype)
        elif kind == 3 and array.size:
            array.reshape(-1)[source.randrange(array.size)] = _number(array.dtype, source)
        else:
            with np.errstate(all="ignore"):
                array = array.astype(source.choice((np.int8, np.uint8, np.int16, np.int32, np.float16, np.float32)))
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    return None


def _inserted_pair(model: onnx.ModelProto, source: Random) -> None:
    graph = model.graph
    node = _node_of(model, source)
    if not node.input:
        return
    x, scale = node.input[0], np.asarray(source.choice((0.01, *REALS)), np.float32)
    zero = np.asarray(source.choice((0, -128, 127, 5)), np.int8)
    number = len(graph.initializer)
    names = [f"pair{number}_{part}" for part in "szqd"]
    graph.initializer.extend(numpy_helper.from_array(a, n) for a, n in zip((scale, zero), names[:2], strict=True))
    quantise = helper.make_node("QuantizeLinear", [x, *names[:2]], [names[2]])
    graph.node.insert(0, helper.make_node("DequantizeLinear", [names[2], *names[:2]], [names[3]]))
    graph.node.insert(0, quantise)
    node.input[0] = names[3]


def _extra(model: onnx.ModelProto, source: Random) -> None:
    """Parts of the standard that few files have."""
    graph = model.graph
    kind = source.randrange(7)
    if kind == 0:
        model.functions.add(name="f", domain="local").node.add(op_type="Relu")
    elif kind == 1:
        model.training_info.add()
    elif kind == 2:
        graph.sparse_initializer.add().dims.extend([2, 3])
    elif kind == 3:
        value = graph.value_info.add(name=source.choice(_values(model)))
        value.type.tensor_type.shape.dim.add().dim_value = source.choice(NUMBERS)
    elif kind == 4:
        inner = helper.make_graph([], "inner", [], [])
        for _ in range(source.choice((1, 3, 25))):
            node = helper.make_node("If", ["x"], ["y"], then_branch=inner)
            inner = helper.make_graph([node], "inner", [], [])
        graph.node.append(helper.make_node("If", [source.choice(_values(model))], ["if_y"], then_branch=inner))
    elif kind == 5:
        graph.output.add(name=source.choice(_values(model)))
    else:
        model.metadata_props.add(key=source.choice(NAMES), value=source.choice(NAMES))


CHANGES: tuple[Change, ...] = (
    *(_operator, _edge, _attribute, _new_attribute, _weight, _tensor, _input, _node, _name, _opset),
    *(_quantisation, _extra),
)


def graft(model: onnx.ModelProto, other: onnx.ModelProto, source: Random) -> bytes:
    """A model with nodes, weights, inputs or outputs of another."""
    result, donor = onnx.ModelProto(), onnx.ModelProto()
    result.CopyFrom(model)
    donor.CopyFrom(other)
    if source.randrange(4):
        _rename(donor.graph, "other_")
    graph, kind = result.graph, source.randrange(6)
    if kind == 0:
        _append(graph, donor.graph, source)
    elif kind < 3:
        for _ in range(source.choice((1, 1, 2, 4))):
            _insert(result, source.choice(donor.graph.node), source)
        graph.initializer.extend(donor.graph.initializer)
    elif kind == 3 and donor.graph.initializer and graph.initializer:
        for tensor in source.sample(list(graph.initializer), source.choice((1, 1, 2)) % (len(graph.initializer) + 1)):
            name = tensor.name
            tensor.CopyFrom(source.choice(donor.graph.initializer))
            tensor.name = name
    elif kind == 4:
        name = graph.input[0].name if graph.input else "x"
        del graph.input[:]
        graph.input.extend(donor.graph.input)
        graph.input[0].name = name
    else:
        attributes = [attribute for node in donor.graph.node for attribute in node.attribute]
        if attributes:
            _node_of(result, source).attribute.append(source.choice(attributes))
    return result.SerializeToString()


def _rename(graph: onnx.GraphProto, prefix: str) -> None:
    for item in (*graph.node, *graph.initializer, *graph.input, *graph.output):
        item.name = prefix + item.name
    for node in graph.node:
        for names in (node.input, node.output):
            names[:] = [prefix + name if name else "" for name in list(names)]


def _append(graph: onnx.GraphProto, donor: onnx.GraphProto, source: Random) -> None:
    """The other model reads what this one has computed (or its input), and its outputs take over."""
    places = [graph.output[0].name] if graph.output else []
    places += [value.name for value in graph.input]
    start = source.choice(places or [""])
    for node in donor.node:
        node.input[:] = [start if name == donor.input[0].name else name for name in list(node.input)]
    graph.node.extend(donor.node)
    graph.initializer.extend(donor.initializer)
    graph.input.extend(donor.input[1:])
    del graph.output[:]
    graph.output.extend(donor.output)


def _insert(model: onnx.ModelProto, node: onnx.NodeProto, source: Random) -> None:
    """A node of the other model, with its weights, between a node of this one and what it reads."""
    graph = model.graph
    place = source.randrange(len(graph.node) + 1)
    if place == len(graph.node) or not graph.node[place].input:
        return
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    copy.name = f"{copy.name}_{len(graph.node)}"
    if copy.input and copy.output:
        copy.input[0] = graph.node[place].input[0]
        copy.output[0] = f"{copy.output[0]}_{len(graph.node)}"
        graph.node[place].input[0] = copy.output[0]
    graph.node.insert(place, copy)
