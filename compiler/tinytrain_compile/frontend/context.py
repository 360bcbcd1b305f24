"""The state of one import: what each ONNX tensor has become, and how handlers add to the graph."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from tinytrain_compile.errors import CompileError
from tinytrain_compile.frontend.entries import (
    Entry,
    Order,
    arranged,
    constant_entry,
    ir_shape,
    lifted,
    plain,
    significant,
    transposition,
)
from tinytrain_compile.frontend.model import Links, OnnxModel, OnnxNode
from tinytrain_compile.frontend.options import FrontendOptions
from tinytrain_compile.frontend.tensors import MAX_ELEMENTS, check_finite
from tinytrain_compile.ir.types import NO_ATTRS, Array, Attrs, Graph, Node, Value
from tinytrain_compile.ops import new_builder
from tinytrain_compile.ops.shape import ReshapeAttrs, TransposeAttrs


@dataclass(eq=False)
class Unsupported(Exception):  # noqa: N818  (not an error of its own: all of a model are reported together)
    """A node, or an attribute of it, that has no IR form. `nearest` is what the user could write instead."""

    attribute: str
    reason: str
    nearest: str


class Context:
    """Builds the graph of one model. Handlers read entries, emit nodes and set the entries of their outputs."""

    def __init__(self, model: OnnxModel, links: Links, options: FrontendOptions) -> None:
        self.model = model
        self.links = links
        self.options = options
        self.notes: list[str] = []
        self.done: set[str] = set()
        """Names of nodes that another node's handler has already taken in."""
        self.parameters: dict[str, Value] = {}
        self.sources: dict[str, str] = {}
        """Name of a constant of the graph -> the initializer that its data comes from."""
        self._reserved = set(model.constants) | {value.name for value in model.inputs}
        self._builder = new_builder()
        self._entries: dict[str, Entry] = {name: constant_entry(array, name) for name, array in model.constants.items()}
        self._materialised: dict[str, list[tuple[Array, Value]]] = {}
        self._converted: dict[tuple[str, Order, tuple[int, ...]], Value] = {}

    # ---- tensors ------------------------------------------------------------------------------------------------

    def entry(self, tensor: str) -> Entry:
        """What an ONNX tensor has become."""
        return self._entries[tensor]

    def optional(self, tensor: str) -> Entry | None:
        """The same for an optional input: None where it is absent."""
        return self._entries[tensor] if tensor else None

    def has(self, tensor: str) -> bool:
        """Whether a tensor has an entry yet (it has none behind an unsupported node)."""
        return tensor in self._entries

    def known(self) -> tuple[str, ...]:
        """Names of all ONNX tensors that have an entry."""
        return tuple(self._entries)

    def define(self, tensor: str, entry: Entry) -> None:
        """Set what an ONNX tensor has become."""
        if tensor:
            self._entries[tensor] = entry

    def define_value(self, tensor: str, value: Value, shape: tuple[int, ...], order: Order | None = None) -> Entry:
        """Set the IR value of an ONNX tensor (in ONNX order unless an order is given)."""
        entry = Entry(shape, value, plain(len(shape)) if order is None else order)
        self.define(tensor, entry)
        return entry

    def graph_input(self, name: str, shape: tuple[int, ...], order: Order, image: bool) -> Value:
        """Declare the data input; `image` marks its value as NHWC."""
        value = Value(self._builder.unique(name), ir_shape(shape, order), "float32", "NHWC" if image else "", name)
        self.define_value(name, value, shape, order)
        return value

    def stand_in(self, name: str, shape: tuple[int, ...]) -> None:
        """An entry for what an unsupported node would compute, only to look for further unsupported nodes."""
        self.define_value(name, Value(self._builder.unique(name), shape), shape)

    # ---- constants ----------------------------------------------------------------------------------------------

    def constant(self, array: Array, hint: str, origin: str, parameter: bool = False) -> Value:
        """A constant of the graph (float32 or int32). The same data under the same name is one constant."""
        dtype = np.float32 if array.dtype.kind == "f" else np.int32
        with np.errstate(over="ignore"):
            data = np.ascontiguousarray(array, dtype=dtype).reshape(array.shape)
        check_finite(data, f"node {origin}, weight {hint}")
        hint = hint or origin
        known = self._materialised.setdefault(hint, [])
        value = next((v for a, v in known if a.shape == data.shape and np.array_equal(a, data)), None)
        if value is None:
            value = self._builder.constant(hint, data, origin)
            known.append((data, value))
            self.sources[value.name] = hint
        if parameter:
            self.parameters.setdefault(value.name, value)
        return value

    def number(self, node: OnnxNode, what: str, number: float) -> Value:
        """A scalar constant."""
        return self.constant(np.full((), number, np.float32), f"{node.name}.{what}", node.name)

    def weight(self, entry: Entry, data: Array, node: OnnxNode, index: int) -> Value:
        """A trainable constant: `data` is derived from a constant entry, the node's input `index`."""
        return self.constant(data, entry.source or node.input(index), node.name, parameter=True)

    # ---- emission -----------------------------------------------------------------------------------------------

    def emit_all(
        self, node: OnnxNode, op: str, inputs: Iterable[Value], attrs: Attrs = NO_ATTRS, suffix: str = ""
    ) -> tuple[Value, ...]:
        """Append an IR node on behalf of an ONNX node; E0212 if the shapes do not fit, E0217 if a result is huge."""
        name = f"{node.name}.{suffix}" if suffix else node.name
        if name in self._reserved:  # parameters and inputs keep the names that the user knows them by
            name += ".node"
        outputs = self._builder.emit_all(op, inputs, attrs, name, node.name)
        for value in outputs:
            if value.elements > MAX_ELEMENTS:
                what = f"its result of shape {list(value.shape)} is too large"
                raise CompileError("E0217", f"node {node.name} ({node.op})", what, "use smaller shapes")
            if any(dim < 1 for dim in value.shape):
                what = f"its result has shape {list(value.shape)}"
                raise CompileError(
                    "E0204", f"node {node.name} ({node.op})", what, "use shapes with positive dimensions"
                )
        return outputs

    def emit(
        self, node: OnnxNode, op: str, inputs: Iterable[Value], attrs: Attrs = NO_ATTRS, suffix: str = ""
    ) -> Value:
        """Append an IR node and return its first output."""
        return self.emit_all(node, op, inputs, attrs, suffix)[0]

    def reshape(self, node: OnnxNode, value: Value, shape: tuple[int, ...]) -> Value:
        """The value in another shape; itself if it already has it."""
        return value if value.shape == shape else self.emit(node, "Reshape", (value,), ReshapeAttrs(shape), "reshape")

    # ---- axis orders --------------------------------------------------------------------------------------------

    def value(self, node: OnnxNode, entry: Entry, order: Order | None = None) -> Value:
        """The entry as an IR value in the given order (ONNX order by default); constants become tables."""
        return self._in_order(node, entry, entry.shape, entry.order, plain(entry.rank) if order is None else order)

    def operand(self, node: OnnxNode, entry: Entry, order: Order, rank: int, parameter: bool = False) -> Value:
        """An operand of a broadcasting operator whose result has this ONNX rank and IR order.

        Constants lose their leading axes of size 1, so that a per-channel factor is a vector.
        """
        added = rank - entry.rank
        shape = (1,) * added + entry.shape
        if not entry.is_constant:
            return self._in_order(node, entry, shape, lifted(entry.order, added), order)
        data = arranged(entry.data.reshape(shape), order)
        while data.ndim and data.shape[0] == 1:
            data = data[0]
        return self.constant(data, entry.source or f"{node.name}.constant", node.name, parameter)

    def _in_order(self, node: OnnxNode, entry: Entry, shape: tuple[int, ...], order: Order, target: Order) -> Value:
        if entry.is_constant:
            return self.constant(arranged(entry.data.reshape(shape), target), entry.source or node.name, node.name)
        value = entry.value
        assert value is not None
        assert entry.columns is None, "only weights may read a flattened channels-last image"
        if order == target:
            return value
        key = (value.name, transposition(order, target), ir_shape(shape, target))
        if key not in self._converted:
            if significant(shape, order) == significant(shape, target):
                self._converted[key] = self.reshape(node, value, ir_shape(shape, target))
            else:
                perm = transposition(order, target)
                moved = self.emit(node, "Transpose", (value,), TransposeAttrs(perm), "transpose")
                self._converted[key] = self.reshape(node, moved, ir_shape(shape, target))
        return self._converted[key]

    # ---- the end ------------------------------------------------------------------------------------------------

    def nodes_and_constants(self, outputs: Iterable[Value]) -> tuple[tuple[Node, ...], Mapping[str, Array]]:
        """What the outputs need of all that was emitted (fused patterns leave nodes behind that nothing reads)."""
        targets = tuple(outputs)
        whole = Graph("", tuple(self._builder.nodes), (), targets, {})
        needed = whole.ancestors(targets)
        nodes = tuple(node for node in whole.nodes if node.name in needed)
        used = {value.name for node in nodes for value in node.inputs} | {value.name for value in targets}
        return nodes, {name: data for name, data in self._builder.constants.items() if name in used}
