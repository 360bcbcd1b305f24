"""Forms of a file that become the one that is imported: one output, opset 13, float32, a batch of 1, no Scaler."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import numpy as np
import onnx
from onnx import defs, helper, numpy_helper, shape_inference, version_converter

from tinytrain_compile.errors import CompileError
from tinytrain_compile.frontend.file.model import (
    DEFAULT_DOMAINS,
    INDICES,
    LEARNED,
    LOSS_OPS,
    OPSET,
    OTHER_FLOATS,
    TYPE_ATTRIBUTES,
    Links,
    OnnxModel,
    OnnxNode,
    changed,
    new_node,
    rewritten,
)
from tinytrain_compile.frontend.file.protobuf import check_finite, free_name
from tinytrain_compile.ir.types import Array

FREE_INITIALIZERS = 4
"""The first IR version whose initializers need not be inputs."""


def with_output(proto: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """Return the file with this output only, or this result of a node.

    E0218 if it has neither.
    """
    graph = proto.graph
    chosen = [value for value in graph.output if value.name == name]
    if not chosen and any(name in node.output for node in graph.node):
        chosen = [value for value in _inferred(proto) if value.name == name] or [onnx.ValueInfoProto(name=name)]
    if not chosen:
        names = ", ".join(value.name for value in graph.output)
        what = "the model has no such output, and no node with such a result"
        raise CompileError("E0218", f"--model-output {name}", what, f"its outputs are: {names}")
    del proto.graph.output[:]
    proto.graph.output.extend(chosen[:1])
    return proto


def _inferred(proto: onnx.ModelProto) -> Iterable[onnx.ValueInfoProto]:
    """Return types of results as the file or onnx gives them; none if onnx cannot infer them."""
    try:
        return shape_inference.infer_shapes(proto).graph.value_info
    except Exception:  # of the C++ part
        return proto.graph.value_info


def proto_of(model: OnnxModel) -> onnx.ModelProto:
    """Return what counts of a checked model, as a file of its own."""
    graph = onnx.GraphProto(name=model.name)
    graph.node.extend(node.proto for node in model.nodes)
    graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in model.constants.items())
    graph.input.extend(helper.make_tensor_value_info(v.name, v.elem_type, v.shape) for v in model.inputs)
    graph.output.extend(model.proto.graph.output)
    foreign = [entry for entry in model.proto.opset_import if entry.domain not in DEFAULT_DOMAINS]
    opsets = [helper.make_opsetid("", model.opset), *foreign]
    return helper.make_model(graph, opset_imports=opsets, ir_version=max(model.proto.ir_version, FREE_INITIALIZERS))


def inferred_types(model: OnnxModel) -> Mapping[str, tuple[tuple[int, ...], int]]:
    """Return shape and element type of every tensor that onnx can infer, of inputs too; none of a damaged graph."""
    proto = proto_of(model)
    for value in proto.graph.output:
        value.type.tensor_type.ClearField("shape")
    try:
        graph = shape_inference.infer_shapes(proto, data_prop=True).graph
    except Exception:  # of the C++ part; what has no shape is refused by name
        return {}
    found = {value.name: (value.shape, value.elem_type) for value in model.inputs}
    for value in (*graph.value_info, *graph.output):
        kind: onnx.TypeProto.Tensor = value.type.tensor_type
        dims = tuple(dim.dim_value for dim in kind.shape.dim)
        if kind.HasField("shape") and all(dim > 0 for dim in dims):
            found[value.name] = dims, kind.elem_type
    return found


def at_opset_13(model: OnnxModel) -> onnx.ModelProto:
    """Return the model as onnx's converter writes it. E0208 where that cannot."""
    proto = proto_of(model)
    for node in model.nodes:
        if not node.domain and not defs.has(node.op, model.opset):
            what = f"opset {model.opset} has no such operator"
            raise CompileError("E0208", f"node {node.name} ({node.op})", what, f"export with opset {OPSET} or later")
    try:
        return version_converter.convert_version(proto, OPSET)
    except Exception as problem:  # ConvertError, RuntimeError of the C++ part
        what = f"opset {model.opset}, and onnx's version converter fails: {' '.join(str(problem).split())[:120]}"
        raise CompileError("E0208", model.name, what, f"export with opset {OPSET} or later") from problem


def in_float32(model: OnnxModel) -> OnnxModel:
    """Return the model with float32 in place of every other float, and a note."""
    nodes: list[OnnxNode] = []
    for node in model.nodes:
        proto = node_in_float32(node.proto)
        if proto is not node.proto:
            changed = {a.name: helper.get_attribute_value(a) for a in proto.attribute}
            tensors = {name: numpy_helper.to_array(a) for name, a in changed.items() if isinstance(a, onnx.TensorProto)}
            node = replace(node, attrs={**changed, **tensors}, proto=proto)
        nodes.append(node)
    inputs = tuple(
        replace(value, elem_type=onnx.TensorProto.FLOAT) if value.elem_type in OTHER_FLOATS else value
        for value in model.inputs
    )
    constants = {name: array_in_float32(array, f"weight {name}") for name, array in model.constants.items()}
    others = {name: a.dtype.name for name, a in model.constants.items() if a.dtype.name in OTHER_FLOATS.values()}
    found = " and ".join(OTHER_FLOATS[kind] for kind in sorted(model.other_float_types))
    notes = (*model.notes, f"{found} of the file is float32 here, and in its check")
    return replace(model, nodes=tuple(nodes), inputs=inputs, constants=constants, notes=notes, other_floats=others)


def node_in_float32(proto: onnx.NodeProto) -> onnx.NodeProto:
    """Return a node that makes or holds no other float; itself if it does so already."""
    kinds = [a.i if a.name in TYPE_ATTRIBUTES else a.t.data_type for a in proto.attribute]
    if proto.domain == LEARNED or not OTHER_FLOATS.keys() & set(kinds):
        return proto
    made = changed(proto)
    for attribute in made.attribute:
        if attribute.name in TYPE_ATTRIBUTES and attribute.i in OTHER_FLOATS:
            attribute.i = onnx.TensorProto.FLOAT
        elif attribute.t.data_type in OTHER_FLOATS:
            where = f"node {proto.name} ({proto.op_type}), attribute {attribute.name}"
            attribute.t.CopyFrom(numpy_helper.from_array(array_in_float32(numpy_helper.to_array(attribute.t), where)))
    return made


def array_in_float32(array: Array, where: str) -> Array:
    """Return float32 numbers in place of other floats; E0225 for a tensor whose numbers are too large for it."""
    if array.dtype.name not in OTHER_FLOATS.values():
        return array
    with np.errstate(over="ignore"):
        narrow = array.astype(np.float32)
    check_finite(narrow, where)
    return narrow


# ---- a batch that the file has fixed ---------------------------------------------------------------------------------
# A batch of N becomes 1 if the network treats each of the N samples by itself. Literal shapes (of Reshape and Expand)
# that hold N are divided by it. Whether that is the same network is then seen from the shapes that onnx infers for
# both: every tensor that depends on the input has exactly one axis that is N times as long in the file, and no operator
# works across that axis.


_Shapes = Mapping[str, tuple[int, ...]]
_IMAGES = """
AveragePool BatchNormalization Conv ConvTranspose DepthToSpace GlobalAveragePool GlobalMaxPool GroupNormalization
InstanceNormalization LRN LpPool MaxPool Resize SpaceToDepth Upsample
"""
_RECURRENT = frozenset(("GRU", "LSTM", "RNN"))
_FIRST_AXIS = frozenset(_IMAGES.split())
"""Operators whose first axis is that of the samples."""
_ALONG = {"CumSum": 0, "LogSoftmax": -1, "LpNormalization": -1, "Hardmax": -1, "Softmax": -1}
"""Operators that work along one axis, and its default."""


def at_batch_1(model: OnnxModel) -> OnnxModel:
    """Return the model for one sample, with a note; itself if that is what it is for. E0211 where its samples meet."""
    sizes = {value.shape[0] for value in model.inputs if len(value.shape) > 1}
    if len(sizes) != 1 or (batch := sizes.pop()) == 1:
        return model
    labels = [value for value in model.inputs if len(value.shape) == 1 and value.shape[0] != batch]
    if labels:
        raise _refused(model, batch, f"input {labels[0].name} is not")
    links = Links(model.nodes, model.outputs, model.constants)
    before = _shapes(model)
    one = _Rewriter(model, links, before, batch).run()
    after = _shapes(one)
    axes = {value.name: 0 for value in model.inputs}
    for node in model.nodes:
        for name in () if node.op in LOSS_OPS else filter(None, node.outputs):
            if links.is_constant(name):
                continue
            axis = _axis(before.get(name), after.get(name), batch)
            if axis is None or _crosses(node, axes, before):
                if _is_time_first(model):
                    note = f"input {model.inputs[0].name} holds time first: one sample of {batch} steps"
                    return replace(model, notes=(*model.notes, note))
                what = f"tensor {name} (node {node.name}, {node.op}) does not keep them apart"
                raise _refused(model, batch, what, node.op in _RECURRENT)
            axes[name] = axis
    note = f"batch {batch} of the file is 1 here: --batch says how many samples an update takes"
    return replace(one, notes=(*model.notes, note))


def _is_time_first(model: OnnxModel) -> bool:
    """Tell whether the first axis can be the steps of one sample's sequence, and no operator of images denies it."""
    source = next(value for value in model.inputs if len(value.shape) > 1)
    rank = 2 if source.elem_type in INDICES else 3
    images = any(node.op in _FIRST_AXIS for node in model.nodes)
    return source is model.inputs[0] and len(source.shape) == rank and source.shape[1] == 1 and not images


def _refused(model: OnnxModel, batch: int, what: str, time: bool = False) -> CompileError:
    source = next(value for value in model.inputs if len(value.shape) > 1)
    why = f"the batch is fixed to {batch} samples (shape {list(source.shape)}), and {what}"
    try_ = "put samples first, time behind them (batch_first=True)" if time else "use --batch to accumulate"
    other = "" if time else f"; or with an input of shape {[1, *source.shape]}, if {batch} is no batch"
    return CompileError("E0211", f"input {source.name}", why, f"export with batch 1 and {try_}{other}")


def _axis(long: tuple[int, ...] | None, short: tuple[int, ...] | None, batch: int) -> int | None:
    """Return the one axis that is `batch` times as long."""
    if long is None or short is None or len(long) != len(short):
        return None
    differing = [axis for axis, (a, b) in enumerate(zip(long, short, strict=True)) if a != b]
    return differing[0] if len(differing) == 1 and long[differing[0]] == batch * short[differing[0]] else None


def _crosses(node: OnnxNode, axes: Mapping[str, int], shapes: _Shapes) -> bool:
    """Tell whether an operator that keeps its shape works along the axis of the samples."""
    name = node.input(0)
    if name not in axes or name not in shapes:
        return False
    axis, rank = axes[name], max(len(shapes[name]), 1)
    if node.op in _FIRST_AXIS:
        return axis != 0
    if node.op in _RECURRENT:  # time steps are no samples
        return axis != (0 if node.integer("layout", 0) else 1)
    if node.op == "LayerNormalization":
        return axis >= node.integer("axis", -1) % rank
    return node.op in _ALONG and node.integer("axis", _ALONG[node.op]) % rank == axis


def _shapes(model: OnnxModel) -> _Shapes:
    return {name: shape for name, (shape, _) in inferred_types(model).items()}


class _Rewriter:
    def __init__(self, model: OnnxModel, links: Links, shapes: _Shapes, batch: int) -> None:
        self._model, self._links, self._shapes, self._batch = model, links, shapes, batch
        self._constants = dict(model.constants)

    def run(self) -> OnnxModel:
        inputs = tuple(replace(value, shape=(1, *value.shape[1:])) for value in self._model.inputs)
        nodes = tuple(self._shaped(node) for node in self._model.nodes)
        return replace(self._model, inputs=inputs, nodes=nodes, constants=self._constants)

    def _shaped(self, node: OnnxNode) -> OnnxNode:
        """Return a Reshape or Expand to a literal shape, to that of one sample."""
        array = self._model.numbers(node.input(1)) if node.op in ("Reshape", "Expand") else None
        literal = None if array is None else [int(d) for d in array.reshape(-1)]
        long = self._shapes.get(node.output(0))
        if literal is None or long is None or (node.op == "Reshape" and self._links.is_constant(node.input(0))):
            return node
        at = self._samples(literal, long[-len(literal) :])
        if at is None or literal[at] <= 0:
            return node
        name = f"{node.name}.shape"
        self._constants[name] = np.asarray(
            [d // self._batch if i == at else d for i, d in enumerate(literal)], np.int64
        )
        return rewritten(node, (node.input(0), name, *node.inputs[2:]))

    def _samples(self, literal: list[int], long: tuple[int, ...]) -> int | None:
        """Return the place that holds the samples: the first if it can be, or the only one that can."""
        fitting = [place for place, size in enumerate(long) if size % self._batch == 0 and literal[place] != 1]
        return fitting[0] if fitting[:1] == [0] or len(fitting) == 1 else None


# ---- Scaler ----------------------------------------------------------------------------------------------------------
# skl2onnx puts it (domain ai.onnx.ml) in front of a network: (x - offset) * scale in operators of ONNX.


def without_scalers(model: OnnxModel) -> OnnxModel:
    """Write every Scaler as Sub and Mul of Constant nodes: its numbers describe the data, and are not trained."""
    taken = {name for node in model.nodes for name in (node.name, *node.inputs, *node.outputs)} | set(model.constants)
    return replace(model, nodes=tuple(part for node in model.nodes for part in _parts(node, taken)))


def _parts(node: OnnxNode, taken: set[str]) -> Iterator[OnnxNode]:
    """Yield the nodes that stand for a Scaler, in which a number that it lacks is 0 or 1; any other node itself."""
    if (node.domain, node.op) != (LEARNED, "Scaler") or not len(node.inputs) == len(node.outputs) == 1:
        yield node
        return
    offset, scale, centred = (free_name(f"{node.name}.{part}", taken) for part in ("offset", "scale", "centred"))
    for name, attribute, default in ((offset, "offset", 0.0), (scale, "scale", 1.0)):
        numbers = np.asarray(node.attrs.get(attribute) or [default], np.float32)
        yield new_node(name, "Constant", (), (name,), {"value": numbers})
    yield new_node(centred, "Sub", (node.input(0), offset), (centred,))
    yield new_node(node.name, "Mul", (centred, scale), (node.output(0),))
