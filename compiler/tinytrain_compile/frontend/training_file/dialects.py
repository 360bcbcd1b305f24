"""Operators that tools write into the forward part of a training graph, rewritten as ONNX's own.

A dialect is data: FORMS says how an operator is spelled in ONNX, REFUSED why another one is not read. Gradient nodes
are cut off before, so neither is asked about them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import defs, helper, numpy_helper

from tinytrain_compile.frontend.file.model import DEFAULT_DOMAINS, MICROSOFT, changed
from tinytrain_compile.frontend.file.protobuf import free_name
from tinytrain_compile.frontend.training_file.proto import number_of, refused, text_of
from tinytrain_compile.ir.types import Array

_REMARKS = ("description",)
"""Attributes that say something to readers only."""
_SETTINGS = ("axes", "split")
"""Lists that are an attribute in some opsets and an input in others: dialects mix them."""
_EMPTY_AXES = "noop_with_empty_axes"


class Rewriter:
    """The nodes of a forward graph, one after the other, and what they become."""

    def __init__(self, proto: onnx.ModelProto, ranks: Mapping[str, int]) -> None:
        """Begin with no nodes. ranks: number of axes of the tensors of which the file says it."""
        graph = proto.graph
        self.ranks = ranks
        self.opset = next((e.version for e in reversed(proto.opset_import) if e.domain in DEFAULT_DOMAINS), 0)
        self._tensors = {tensor.name: tensor for tensor in graph.initializer}
        for node in graph.node:
            value = next((a.t for a in node.attribute if a.name == "value"), None)
            if node.op_type == "Constant" and value is not None:
                self._tensors[node.output[0]] = value
        self._taken = {name for node in graph.node for name in (node.name, *node.input, *node.output)}
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def constant(self, name: str) -> Array | None:
        """Return the numbers of an initializer or a Constant node."""
        tensor = self._tensors.get(name)
        return None if tensor is None else numpy_helper.to_array(tensor)

    def fresh(self, name: str) -> str:
        """Return the name, made longer if the file has it."""
        return free_name(name, self._taken)

    def add_constant(self, node: onnx.NodeProto, what: str, numbers: Array) -> str:
        """Add an initializer for a node; return its name."""
        name = self.fresh(f"{node.output[0]}_{what}")
        self.constants.append(numpy_helper.from_array(numbers, name))
        return name

    def emit(
        self, node: onnx.NodeProto, op: str, inputs: Sequence[str], outputs: Sequence[str] = (), **attributes: Any
    ) -> str:
        """Add a node in place of (a part of) another one; return its first output, a new one without `outputs`.

        The one that gives the other's output has its name, too.
        """
        made = list(outputs) or [self.fresh(f"{node.output[0]}_{op.lower()}")]
        name = node.name if outputs or not node.name else self.fresh(f"{node.name}_{op}")
        self.nodes.append(helper.make_node(op, inputs, made, name, **attributes))
        return made[0]

    def keep(self, node: onnx.NodeProto) -> None:
        """Add a node as it is, with its lists as the opset has them."""
        made = changed(node)
        left = [attribute for attribute in made.attribute if attribute.name not in _REMARKS]
        del made.attribute[:]
        made.attribute.extend(left)
        if made.domain in DEFAULT_DOMAINS and defs.has(made.op_type, self.opset):
            schema = defs.get_schema(made.op_type, self.opset)
            for setting in _SETTINGS:
                self._place(made, schema, setting)
        self.nodes.append(made)

    def _place(self, node: onnx.NodeProto, schema: defs.OpSchema, setting: str) -> None:
        """Move a list from an attribute to an input, or the other way; a single number becomes a list."""
        newest = [one.name for one in defs.get_schema(node.op_type).inputs]
        index = newest.index(setting) if setting in newest else len(node.input)
        given = attribute_of(node, setting)
        if setting in schema.attributes:
            numbers = self.constant(node.input[index]) if index < len(node.input) else None
            if given is None and numbers is not None:
                del node.input[index:]
                given = numbers.reshape(-1).tolist()
            if given is not None:
                _set_attribute(node, setting, [given] if isinstance(given, int) else list(given))
                if _EMPTY_AXES not in schema.attributes and given:
                    _set_attribute(node, _EMPTY_AXES, None)
        elif given is not None and setting in [one.name for one in schema.inputs] and index == len(node.input):
            _set_attribute(node, setting, None)
            node.input.append(self.add_constant(node, setting, np.array(given, np.int64).reshape(-1)))


Form = Callable[[Rewriter, onnx.NodeProto], None]


def standard_form(proto: onnx.ModelProto, whole: onnx.GraphProto, name: str) -> onnx.ModelProto:
    """Return the forward graph in ONNX's own operators; E0231 for one that has no form here.

    whole: the training graph, which says the shapes of tensors. name: of the file.
    """
    _refuse(proto.graph.node, name)
    rewriter = Rewriter(proto, dict(_ranks(whole)))
    for node in proto.graph.node:
        try:
            FORMS.get(_kind(node), Rewriter.keep)(rewriter, node)
        except (IndexError, TypeError, ValueError, OverflowError) as problem:  # operands are missing, or of other kinds
            where = f"node {node.name or node.output[0]} ({node.op_type})"
            raise refused(where, "its inputs or attributes do not belong together", "export again") from problem
    del proto.graph.node[:]
    proto.graph.node.extend(rewriter.nodes)
    proto.graph.initializer.extend(rewriter.constants)
    return proto


def attribute_of(node: onnx.NodeProto, name: str) -> Any:
    """Return an attribute's value; None if it is absent."""
    return next((helper.get_attribute_value(a) for a in node.attribute if a.name == name), None)


def _set_attribute(node: onnx.NodeProto, name: str, value: Any) -> None:
    """Set an attribute; None removes it."""
    left = [attribute for attribute in node.attribute if attribute.name != name]
    del node.attribute[:]
    node.attribute.extend(left)
    if value is not None:
        node.attribute.append(helper.make_attribute(name, value))


def _kind(node: onnx.NodeProto) -> tuple[str, str]:
    """Return domain and operator; a normalisation in training mode counts as what ONNX Runtime makes of it."""
    domain = "" if node.domain in DEFAULT_DOMAINS else node.domain
    if (domain, node.op_type) == ("", "BatchNormalization") and number_of(node, "training_mode", 0):
        return _BATCH_STATISTICS
    return domain, node.op_type


def _refuse(nodes: Sequence[onnx.NodeProto], name: str) -> None:
    counts = Counter(map(_kind, nodes))
    for kind, (why, way_out) in REFUSED.items():
        if counts[kind]:
            raise refused(name, f"{kind[1]} ({counts[kind]} of {len(nodes)} forward nodes) {why}", way_out)


def _ranks(graph: onnx.GraphProto) -> Iterator[tuple[str, int]]:
    for value in (*graph.value_info, *graph.input, *graph.output):
        if value.type.tensor_type.HasField("shape"):
            yield value.name, len(value.type.tensor_type.shape.dim)
    for tensor in graph.initializer:
        yield tensor.name, len(tensor.dims)


# ---- forms ----------------------------------------------------------------------------------------------------------


def _renamed(op: str, outputs: int = 1) -> Form:
    """Return the form of an operator that has another name, and further outputs for its gradient."""

    def form(to: Rewriter, node: onnx.NodeProto) -> None:
        made = changed(node, outputs=node.output[:outputs])
        made.op_type, made.domain = op, ""
        to.keep(made)

    return form


def _mse(to: Rewriter, node: onnx.NodeProto) -> None:
    difference = to.emit(node, "Sub", node.input[:2])
    square = to.emit(node, "Mul", [difference, difference])
    kind = text_of(node, "reduction", "mean")
    if kind not in ("mean", "sum"):
        raise refused(f"node {node.name}", f"reduction {kind}", "use mean or sum")
    to.emit(node, "ReduceMean" if kind == "mean" else "ReduceSum", [square], node.output[:1], keepdims=0)


def _cross_entropy(to: Rewriter, node: onnx.NodeProto) -> None:
    """Spell the cross-entropy of ONNX Runtime, whose ignore_index is an input."""
    attributes: dict[str, Any] = {"reduction": text_of(node, "reduction", "mean")}
    if len(node.input) > 3 and node.input[3]:
        index = to.constant(node.input[3])
        if index is None or index.size != 1:
            raise refused(f"node {node.name}", "its ignore_index is no number of the file")
        attributes["ignore_index"] = int(index.reshape(-1)[0])
    inputs = list(node.input[:3])
    to.emit(node, "SoftmaxCrossEntropyLoss", inputs if inputs[-1] else inputs[:2], node.output, **attributes)


def _biased(to: Rewriter, node: onnx.NodeProto) -> str:
    """Return the sum of the input and the bias that fusions keep beside it."""
    given = [name for name in node.input[:2] if name]
    return to.emit(node, "Add", given) if len(given) == 2 else given[0]


def _gelu(approximate: str) -> Form:
    def form(to: Rewriter, node: onnx.NodeProto) -> None:
        to.emit(node, "Gelu", [_biased(to, node)], node.output[:1], approximate=approximate)

    return form


def _quick_gelu(to: Rewriter, node: onnx.NodeProto) -> None:
    """Spell x sigmoid(alpha x)."""
    x, alpha = node.input[0], number_of(node, "alpha", 1.702)
    scaled = to.emit(node, "Mul", [x, to.add_constant(node, "alpha", np.array(alpha, np.float32))])
    to.emit(node, "Mul", [x, to.emit(node, "Sigmoid", [scaled])], node.output[:1])


def _bias_softmax(to: Rewriter, node: onnx.NodeProto) -> None:
    axis, rank = int(number_of(node, "axis", 1)), to.ranks.get(node.input[0], 0)
    if axis not in (-1, rank - 1):
        raise refused(f"node {node.name} ({node.op_type})", f"axis {axis} is not known to be the last one")
    to.emit(node, "Softmax", [_biased(to, node)], node.output[:1], axis=-1)


def _rms_norm(to: Rewriter, node: onnx.NodeProto) -> None:
    """Spell x / sqrt(mean(x^2) + epsilon), times a scale."""
    x, axis = node.input[0], int(number_of(node, "axis", -1))
    if axis not in (-1, to.ranks.get(x, 0) - 1):
        raise refused(f"node {node.name} ({node.op_type})", f"axis {axis} is not known to be the last one")
    square, name = to.emit(node, "Mul", [x, x]), to.fresh(f"{node.output[0]}_mean")
    mean: onnx.NodeProto = helper.make_node("ReduceMean", [square], [name], axes=[-1], keepdims=1)
    to.keep(mean)
    epsilon = to.add_constant(node, "epsilon", np.array(number_of(node, "epsilon", 1e-5), np.float32))
    root = to.emit(node, "Sqrt", [to.emit(node, "Add", [name, epsilon])])
    to.emit(node, "Mul", [to.emit(node, "Div", [x, root]), node.input[1]], node.output[:1])


def _fused_matmul(to: Rewriter, node: onnx.NodeProto) -> None:
    """Spell alpha A' B', with the last two axes of either swapped."""
    if number_of(node, "transBatchA", 0) or number_of(node, "transBatchB", 0):
        raise refused(f"node {node.name} ({node.op_type})", "it moves the first axis of an operand")
    a, b = node.input
    factors = [_swapped(to, node, name, number_of(node, f"trans{which}", 0)) for name, which in ((a, "A"), (b, "B"))]
    alpha = number_of(node, "alpha", 1.0)
    if alpha == 1.0:
        to.emit(node, "MatMul", factors, node.output)
        return
    product = to.emit(node, "MatMul", factors)
    to.emit(node, "Mul", [product, to.add_constant(node, "alpha", np.array(alpha, np.float32))], node.output)


def _swapped(to: Rewriter, node: onnx.NodeProto, name: str, asked: float) -> str:
    rank = to.ranks.get(name, 0)
    if not asked:
        return name
    if rank < 2:
        raise refused(f"node {node.name} ({node.op_type})", f"the file does not say the shape of {name}")
    return to.emit(node, "Transpose", [name], perm=[*range(rank - 2), rank - 1, rank - 2])


def _gemm(to: Rewriter, node: onnx.NodeProto) -> None:
    """Spell a Gemm with further axes in front as MatMul and Add: ONNX's has two axes."""
    plain = number_of(node, "alpha", 1.0) == number_of(node, "beta", 1.0) == 1.0 and not number_of(node, "transA", 0)
    if max(to.ranks.get(node.input[0], 2), to.ranks.get(node.output[0], 2)) == 2 or not plain:
        to.keep(node)
        return
    factors = [node.input[0], _swapped(to, node, node.input[1], number_of(node, "transB", 0))]
    if len(node.input) < 3 or not node.input[2]:
        to.emit(node, "MatMul", factors, node.output)
        return
    to.emit(node, "Add", [to.emit(node, "MatMul", factors), node.input[2]], node.output)


FORMS: Mapping[tuple[str, str], Form] = {
    ("", "MSELoss"): _mse,
    ("", "Gemm"): _gemm,
    ("", "SimplifiedLayerNormalization"): _rms_norm,
    (MICROSOFT, "SimplifiedLayerNormalization"): _rms_norm,
    (MICROSOFT, "ConcatTraining"): _renamed("Concat"),
    (MICROSOFT, "SplitTraining"): _renamed("Split", outputs=1 << 30),
    (MICROSOFT, "LSTMTraining"): _renamed("LSTM", outputs=3),
    (MICROSOFT, "GRUTraining"): _renamed("GRU", outputs=2),
    (MICROSOFT, "SoftmaxCrossEntropyLossInternal"): _cross_entropy,
    (MICROSOFT, "Gelu"): _gelu("none"),
    (MICROSOFT, "BiasGelu"): _gelu("none"),
    (MICROSOFT, "FastGelu"): _gelu("tanh"),
    (MICROSOFT, "QuickGelu"): _quick_gelu,
    (MICROSOFT, "BiasSoftmax"): _bias_softmax,
    (MICROSOFT, "FusedMatMul"): _fused_matmul,
}
"""Domain and operator -> how it is spelled in ONNX's operators. What is not here is read as it stands."""

_BATCH_STATISTICS = (MICROSOFT, "BatchNormInternal")
REFUSED: Mapping[tuple[str, str], tuple[str, str]] = {
    _BATCH_STATISTICS: (
        "normalises by the mean and variance of the batch, and a device trains sample by sample",
        "export in evaluation mode (model.eval(), training_mode 0): normalisations then use fixed statistics",
    ),
    (MICROSOFT, "FakeQuant"): (
        "rounds weights and activations for quantisation-aware training",
        "give the forward model with its QuantizeLinear and DequantizeLinear nodes",
    ),
    **{
        (MICROSOFT, op): ("is written for CUDA, with a mask of bits", "generate the artifacts on a CPU")
        for op in ("BitmaskDropout", "BiasDropout", "BitmaskBiasDropout")
    },
    **{
        (MICROSOFT, op): (
            "leaves padded tokens out, so sizes depend on the sample",
            "switch ONNX Runtime's padding off",
        )
        for op in ("PadAndUnflatten", "ShrunkenGather")
    },
    **{
        (MICROSOFT, op): ("calls code outside the file", "give the forward model, exported to ONNX's operators")
        for op in ("PythonOp", "ATen", "TritonOp")
    },
    **{
        (MICROSOFT, op): ("belongs to training on several machines", "generate the artifacts for one machine")
        for op in ("MegatronF", "MegatronG", "Send", "Recv", "YieldOp")
    },
}
"""Domain and operator -> why it is not read, and the way out. Others are judged as in any file (E0501, E0503)."""
