"""The state of one import: what each ONNX tensor has become, and how handlers add to the graph."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cached_property

import numpy as np

from tinytrain_compile.errors import CompileError
from tinytrain_compile.frontend.file.folding import FoldingRoom
from tinytrain_compile.frontend.file.model import Links, OnnxModel, OnnxNode, Refused
from tinytrain_compile.frontend.file.protobuf import MAX_ELEMENTS, MAX_RANK, check_finite
from tinytrain_compile.frontend.graph.entries import (
    KINDS,
    Claim,
    Entry,
    Fold,
    Indices,
    Lay,
    Order,
    Origin,
    arranged,
    as_it_is,
    initial_entry,
    ir_shape,
    lifted,
    plain,
    rearrangement,
    significant,
    transposition,
)
from tinytrain_compile.frontend.options import FrontendOptions
from tinytrain_compile.frontend.weights.parameters import Trainables
from tinytrain_compile.ir.imported import FileNumbers, ParameterSource
from tinytrain_compile.ir.types import NO_ATTRS, Array, Attrs, DType, Graph, Layout, Node, Value
from tinytrain_compile.ops import new_builder
from tinytrain_compile.ops.names import WrongTypeError
from tinytrain_compile.ops.shape import ReshapeAttrs, TransposeAttrs

_WORDS = {"int32": "integers", "uint8": "truth values"}


class ImportContext:
    """Builds the graph of one model. Handlers read entries, emit nodes and set the entries of their outputs."""

    def __init__(
        self,
        model: OnnxModel,
        links: Links,
        options: FrontendOptions,
        trainables: Trainables,
        tied: frozenset[str] = frozenset(),
    ) -> None:
        self.model = model
        self.links = links
        self.options = options
        self.trainables = trainables
        self.tied = tied
        """Names of constants that are one parameter in several arrangements: nothing is multiplied into them."""
        self.notes: list[str] = []
        self.done: set[str] = set()
        """Names of nodes that another node's handler has already taken in."""
        self.label_tables: dict[str, tuple[Array, ...]] = {}
        """Tensors of the file that follow from these labels alone: what each class gives."""
        self.labels: dict[str, Value] = {}
        """Tensors of the file that show the labels of its loss, if these are class indices, and the value they show."""
        self.parameters: dict[str, Value] = {}
        self.sources: dict[str, str] = {}
        """Name of a constant of the graph -> the initializer that its data comes from."""
        self._reserved = set(model.constants) | {value.name for value in model.inputs}
        self._builder = new_builder()
        self._entries: dict[str, Entry] = {
            name: initial_entry(array, name, name) for name, array in model.constants.items()
        }
        self._materialised: dict[str, list[tuple[Array, Value, Origin | None]]] = {}
        self.floats: set[str] = set()
        """Names of nodes that compute in float32 in an int8 graph too."""
        self.folded_norms = 0
        """How many BatchNormalizations are in the weights of other layers."""
        self.folded: dict[tuple[object, ...], tuple[Entry, ...]] = {}
        """What computations of constants gave."""
        self._arrangements: dict[str, list[tuple[Indices, Value]]] = {}
        self._claims: dict[str, Claim] = {}
        self._converted: dict[tuple[str, Order, tuple[int, ...]], Value] = {}
        self._makers: dict[str, Node] = {}

    @cached_property
    def room(self) -> FoldingRoom:
        """Memory that is left for constants that are computed."""
        return FoldingRoom(self.model.constants)

    # ---- tensors ------------------------------------------------------------------------------------------------

    def entry(self, tensor: str) -> Entry:
        """Return what an ONNX tensor has become."""
        return self._entries[tensor]

    def optional(self, tensor: str) -> Entry | None:
        """Return the same for an optional input: None where it is absent."""
        return self._entries[tensor] if tensor else None

    def has(self, tensor: str) -> bool:
        """Tell whether a tensor has an entry yet (it has none behind an unsupported node)."""
        return tensor in self._entries

    def known(self) -> tuple[str, ...]:
        """Return names of all ONNX tensors that have an entry."""
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

    def graph_input(
        self, name: str, shape: tuple[int, ...], order: Order, layout: Layout, integer: bool = False
    ) -> Value:
        """Declare the data input; `integer` marks it as indices."""
        dtype = "int32" if integer else "float32"
        value = Value(self._builder.unique(name), ir_shape(shape, order), dtype, layout, name)
        self.define_value(name, value, shape, order)
        return value

    def label_input(self, name: str, shape: tuple[int, ...], classes: bool) -> Value:
        """Declare the input with the labels of a loss that is written out; classes: they are class indices."""
        value = Value(self._builder.unique(name), shape, "int32" if classes else "float32", "", name)
        self.define_value(name, value, shape)
        if classes:
            self.labels[name] = value
        return value

    def no_label(self) -> Value:
        """Return what stands in place of labels that a loss does not read."""
        return Value(self._builder.unique("no_label"), (1,), "float32")

    def stand_in(self, name: str, shape: tuple[int, ...], dtype: DType) -> None:
        """Define what an unsupported node would compute, only to look for further unsupported nodes."""
        self.define_value(name, Value(self._builder.unique(name), shape, dtype), shape)

    # ---- constants ----------------------------------------------------------------------------------------------

    def constant(
        self,
        array: Array,
        hint: str,
        node: OnnxNode,
        origins: tuple[Origin | None, ...] = (),
        group: str = "",
        fold: Fold | None = None,
    ) -> Value:
        """Return a constant of the graph: float32, int32, or truth values. It is a parameter if its elements are.

        The same data under the same name is one constant.

        origins: of its elements; fold: what was multiplied into them; group: the constant that it belongs to.
        """
        dtype = KINDS[array.dtype.kind]
        if dtype == "int32" and array.size and not -(2**31) <= array.min() <= array.max() < 2**31:
            raise Refused("", "its integers are beyond int32", "smaller integers")
        with np.errstate(over="ignore"):
            data = np.ascontiguousarray(array, dtype=dtype).reshape(array.shape)
        check_finite(data, f"node {node.name}, weight {hint}")
        hint = hint or node.name
        folded = () if fold is None else fold.origins
        known = tuple(origin for origin in (*origins, *folded) if origin is not None)
        if known and known[0].base in self.tied:
            value = self.arranged(data, hint, node, known[0])
            if self.is_trained(known[0]):
                self.parameters.setdefault(self._arrangements[known[0].base][0][1].name, value)
            return value
        value = self._known(data, hint, known[0] if known else None)
        if value is None:
            value = self._builder.constant(hint, data, node.name)
            self._materialised[hint].append((data, value, known[0] if known else None))
            self.sources[value.name] = hint
        self._claims.setdefault(value.name, Claim(value.name, group or value.name, known, fold))
        if self.is_trained(*known[:1]):
            self.parameters.setdefault(value.name, value)
        return value

    def _known(self, data: Array, hint: str, origin: Origin | None) -> Value | None:
        """Return the constant of this name with the same elements (equal numbers in other places are not the same)."""
        for known, value, other in self._materialised.setdefault(hint, []):
            if known.shape == data.shape and np.array_equal(known, data) and _same_places(origin, other):
                return value
        return None

    def arranged(self, data: Array, hint: str, node: OnnxNode, origin: Origin) -> Value:
        """Return a tied weight in the arrangement of this use: the first is the parameter, others are moved from it."""
        indices = origin.indices()
        known = self._arrangements.setdefault(origin.base, [])
        if not known:
            value = self._builder.constant(hint, data, node.name)
            self.sources[value.name] = hint
            self._claims[value.name] = Claim(value.name, value.name, (origin,))
            known.append((indices, value))
        value = next((v for i, v in known if i.shape == indices.shape and np.array_equal(i, indices)), None)
        if value is None:
            own, parameter = known[0]
            move = rearrangement(own, indices)
            if move is None:
                what = f"the weight {origin.base} is used in parts and as a whole, as if it were several weights"
                raise CompileError("E0504", f"node {node.name} ({node.op})", what, "use one whole weight per layer")
            value = self.reshape(node, parameter, move.dims)
            if move.perm != tuple(range(len(move.perm))):
                value = self.emit(node, "Transpose", (value,), TransposeAttrs(move.perm), "transpose")
            value = self.reshape(node, value, indices.shape)
            known.append((indices, value))
        return value

    def is_trained(self, *origins: Origin | None) -> bool:
        """Tell whether elements come from a parameter of the file."""
        return any(self.trainables.trained(root) for o in origins if o is not None for root in o.roots())

    def is_tied(self, *entries: Entry | None) -> bool:
        """Tell whether one of these constants must stay as it is: it is a parameter that others read too."""
        return any(e is not None and e.origin is not None and e.origin.base in self.tied for e in entries)

    def claims(self, constants: Iterable[str]) -> tuple[Claim, ...]:
        """Return what these constants of the graph hold."""
        return tuple(self._claims[name] for name in constants if name in self._claims)

    def parameter_sources(self, parameters: Iterable[Value]) -> dict[str, ParameterSource]:
        """Return where the numbers of parameters are in the file."""
        claims = self.claims(value.name for value in parameters)
        tensors = {base: self.file_numbers(base) for base in {claim.origins[0].base: None for claim in claims}}
        return {claim.name: claim.source(tensors) for claim in claims}

    def file_numbers(self, tensor: str) -> FileNumbers:
        """Return a constant of the file, and who reads it."""
        spec = self.model.quantisation.constants.get(tensor)
        readers = tuple(
            (node.output(0), index)
            for node in self.links.readers(tensor)
            for index, name in enumerate(node.inputs)
            if name == tensor
        )
        place = self.model.quantisation.places.get(tensor)
        readers = readers if place is None else (place,)
        stored = None if spec is None else spec.stored
        kind = self.model.other_floats.get(tensor, "float32") if stored is None else stored.kind
        return FileNumbers(tensor, kind, self.entry(tensor).data, stored, readers)

    def laid_like(self, constant: str, array: Array) -> Array:
        """Return numbers that belong to a weight of the file, lying as a constant of the graph holds that weight."""
        origin = self._claims[constant].origins[0]
        return np.ascontiguousarray(origin.lay(array.reshape(origin.shape)), np.float32)

    def number(self, node: OnnxNode, what: str, number: float) -> Value:
        """Return a scalar constant."""
        return self.constant(np.full((), number, np.float32), f"{node.name}.{what}", node)

    def weight(
        self,
        entry: Entry,
        node: OnnxNode,
        index: int,
        lay: Lay = as_it_is,
        data: Array | None = None,
        fold: Fold | None = None,
    ) -> Value:
        """Return the constant of a layer: a constant entry, the node's input `index`, with its elements moved by `lay`.

        data: the same with something multiplied into it (`fold`).
        """
        use = entry.laid(lay)
        array = use.data.astype(np.float32) if data is None else data
        return self.constant(array, entry.source or node.input(index), node, (use.origin,), fold=fold)

    def check_size(self, node: OnnxNode, shape: tuple[int, ...]) -> None:
        """Raise E0217 if a result of this shape is huge: before anything of its size is computed."""
        if math.prod(shape) > MAX_ELEMENTS or len(shape) > MAX_RANK:
            what = f"its result of shape {list(shape)} is too large"
            raise CompileError("E0217", f"node {node.name} ({node.op})", what, "use smaller shapes")

    # ---- emission -----------------------------------------------------------------------------------------------

    def emit_all(
        self, node: OnnxNode, op: str, inputs: Iterable[Value], attrs: Attrs = NO_ATTRS, suffix: str = ""
    ) -> tuple[Value, ...]:
        """Append an IR node on behalf of an ONNX node.

        Refused if it does not compute with these types, E0212 if the shapes do not fit, E0217 if a result is huge.
        """
        inputs = tuple(inputs)
        name = f"{node.name}.{suffix}" if suffix else node.name
        if name in self._reserved:  # parameters and inputs keep the names that the user knows them by
            name += ".node"
        try:
            outputs = self._builder.emit_all(op, inputs, attrs, name, node.name)
        except WrongTypeError as reason:
            found = dict.fromkeys(_WORDS[value.dtype] for value in inputs if value.dtype in _WORDS)
            what = f"it computes with {' and '.join(found) or 'other types'}"
            raise Refused("", what, "a Cast to float32 in front of it") from reason
        self._makers.update({value.name: self._builder.nodes[-1] for value in outputs})
        for value in outputs:
            self.check_size(node, value.shape)
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

    def mapped(
        self, node: OnnxNode, x: Entry, op: str, others: Iterable[Value] = (), attrs: Attrs = NO_ATTRS, suffix: str = ""
    ) -> Entry:
        """Return the entry after an operator of its elements, which keeps shape, axis order and columns.

        others: further operands, behind the entry's own value.
        """
        return replace(x, value=self.emit(node, op, (x.computed, *others), attrs, suffix))

    def maker(self, value: Value) -> Node | None:
        """Return the IR node that computes a value; None for inputs and constants."""
        return self._makers.get(value.name)

    def reshape(self, node: OnnxNode, value: Value, shape: tuple[int, ...]) -> Value:
        """Return the value in another shape; itself if it already has it."""
        return value if value.shape == shape else self.emit(node, "Reshape", (value,), ReshapeAttrs(shape), "reshape")

    # ---- axis orders --------------------------------------------------------------------------------------------

    def value(self, node: OnnxNode, entry: Entry, order: Order | None = None) -> Value:
        """Return the entry as an IR value in the given order (ONNX order by default); constants become tables."""
        return self._in_order(node, entry, entry.shape, entry.order, plain(entry.rank) if order is None else order)

    def operand(self, node: OnnxNode, entry: Entry, order: Order, rank: int) -> Value:
        """Return an operand of a broadcasting operator whose result has this ONNX rank and IR order.

        Constants lose their leading axes of size 1, so that a per-channel factor is a vector.
        """
        added = rank - entry.rank
        shape = (1,) * added + entry.shape
        if not entry.is_constant:
            return self._in_order(node, entry, shape, lifted(entry.order, added), order)

        def lay(array: Array) -> Array:
            data = arranged(array.reshape(shape), order)
            while data.ndim and data.shape[0] == 1:
                data = data[0]
            return data

        use = entry.laid(lay)
        return self.constant(use.data, entry.source or f"{node.name}.constant", node, (use.origin,))

    def _in_order(self, node: OnnxNode, entry: Entry, shape: tuple[int, ...], order: Order, target: Order) -> Value:
        if entry.is_constant:
            use = entry.laid(lambda array: arranged(array.reshape(shape), target))
            return self.constant(use.data, entry.source or node.name, node, origins=(use.origin,))
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
        """Return what outputs need of all that was emitted (fused patterns leave nodes behind that nothing reads)."""
        targets = tuple(outputs)
        whole = Graph("", tuple(self._builder.nodes), (), targets, {})
        needed = whole.ancestors(targets)
        nodes = tuple(node for node in whole.nodes if node.name in needed)
        used = {value.name for node in nodes for value in node.inputs} | {value.name for value in targets}
        return nodes, {name: data for name, data in self._builder.constants.items() if name in used}


def _same_places(a: Origin | None, b: Origin | None) -> bool:
    """Tell whether two constants of equal numbers hold the same elements in the same order."""
    if a is None or b is None or a.base != b.base:
        return True
    return np.array_equal(a.indices(), b.indices())


Handler = Callable[[ImportContext, OnnxNode], None]
"""Imports one ONNX operator: reads the entries of a node's inputs, emits IR nodes, defines the entries of its outputs.

Raises Refused for a form that has no IR, ValueError for shapes and attributes that make no sense.
"""


def of_one(form: Callable[[ImportContext, OnnxNode, Entry], Entry]) -> Handler:
    """Return the handler of an operator whose first output `form` makes of the entry of its first input."""
    return lambda ctx, node: ctx.define(node.output(0), form(ctx, node, ctx.entry(node.input(0))))
