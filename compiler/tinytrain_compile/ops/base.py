"""The op table and the contract of an operator (OpDef)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, Literal, ParamSpec, Protocol, TypeVar

import numpy as np

from tinytrain_compile.ir.graph import GraphBuilder
from tinytrain_compile.ir.types import NO_ATTRS, Array, Attrs, Node, TensorType, Value
from tinytrain_compile.ops.fixed_point import INT32_MAX
from tinytrain_compile.ops.owned import ErrorState, Owned, check_owned
from tinytrain_compile.ops.rows import RowForm

T = TypeVar("T")
P = ParamSpec("P")

REMEMBERED = 1 << 14
"""Nodes for which the results of their operators' rules are cached."""


@dataclass(frozen=True)
class NonDifferentiable:
    """An explicit statement that an op has no gradient, and why; flat: the gradient is 0 wherever it exists."""

    why: str
    flat: bool = False


@dataclass(frozen=True)
class Split:
    """Two parts, arena and flash, of a weight of which only some channels are updated.

    axis: "out" or "in", the channel axis of the weight that is cut.
    channels: increasing indices on that axis that the arena part holds; the flash part holds all others in order.
    total: channels of the whole weight on that axis.
    """

    axis: str
    channels: tuple[int, ...]
    total: int

    @property
    def rest(self) -> tuple[int, ...]:
        """Return the indices that the flash part holds."""
        inside = set(self.channels)
        return tuple(i for i in range(self.total) if i not in inside)


class GradientContext(Protocol):
    """Interface for gradient rules: ask which gradients are needed, and emit backward nodes."""

    def wants(self, index: int) -> bool:
        """Tell whether the gradient of node.inputs[index] is needed at all."""
        ...

    def emit(self, op: str, inputs: Iterable[Value], attrs: Attrs = NO_ATTRS) -> Value:
        """Append a backward node; return its first output."""
        ...

    def sum_to(self, gradient: Value, like: Value) -> Value:
        """Sum a gradient over the axes that broadcasting added or stretched, down to `like`'s shape."""
        ...

    def constant(self, hint: str, data: Array) -> Value:
        """Return a frozen table in flash."""
        ...


@dataclass(frozen=True)
class Overlap:
    """Permission for an output to cover an input that dies at this node: the kernel writes below what it still has to
    read.

    Safe if the input begins at least `distance` bytes above the output, at a multiple of `step` bytes (1: any; a kernel
    that goes channel by channel leaves the other channels alone only at multiples of a pixel).
    """

    output: int
    source: int
    distance: int
    step: int = 1

    def allows(self, above: int) -> bool:
        """Tell whether the input may begin `above` bytes above the output and share memory with it."""
        return above >= self.distance and above % self.step == 0


Trait = Literal[
    "elementwise",
    "ieee",
    "moves_data",
    "keeps_channels",
    "matrix",
    "layer",
    "data_gradient",
    "distribution",
    "binary_loss",
    "read_output",
    "through_clamp",
    "gradient_sum",
    "subspace",
    "cancels",
    "requantised",
    "border",
    "own_unit",
    "clamps",
    "marks",
    "repeats",
    "reduces",
    "adds",
    "offset",
    "rearranges",
    "between",
    "cuts",
    "link",
    "target_loss",
    "weight_gradient",
    "pool_gradient",
    "accumulates",
    "clears",
    "squares",
    "totals",
]
"""elementwise: an element of the result comes from the operands' elements at its place, whatever the order of axes.
ieee: IEEE 754 defines that element to the bit, whatever is computed along with it.

moves_data: every element of the result is copied from an operand, or is a constant of the attributes. keeps_channels:
it does so, and channels stay in their order.
matrix: a layer, whose operand `w` is a weight with channel axes. layer: one whose weight and bias int8 stores, whose
input can be kept in subspaces. data_gradient: the gradient of such a layer for its data.
distribution: an end that gives the probabilities of classes, or their logarithms. binary_loss: a loss, or its gradient,
of labels that are 0 or 1.
read_output: it uses the output `y` of a clamp to see where that was active. through_clamp: a gradient goes back through
a clamp. gradient_sum: it sums the gradient of a parameter, or its squares. subspace: it takes a tensor into a subspace.
cancels: it subtracts large numbers whose difference may be small (1 + exp(x), x - mean(x), p - 1).
requantised: in int8 it ends a sum, and a Clip after it becomes the saturation of that sum. border: between int8 and
float32. own_unit: it reads an int8 error in the unit of the layer that the error is of.
clamps: it keeps numbers within bounds. marks: its small integers tell the gradient of a clamp or of a window which
elements to reach. repeats: it copies numbers along axes, times a constant. reduces: it sums over axes, times a
constant. adds: the sum of two operands. offset: one operand moves the other, as a bias does.
rearranges: every element occurs once, in another arrangement. between: no number of the result is beyond those of the
operand (or of the bounds). cuts: some elements of the operand. link: it makes the numbers of an output from scores, and
a loss of scores contains it. target_loss: the loss of numbers and targets of one shape, or its gradient.
weight_gradient: the gradient of a layer (see above) for its weight, of `x` and `dy`. pool_gradient: that of windows.
accumulates: it adds a gradient to a running sum. clears: it sets one to 0. squares: it sums the squares of rows of a
gradient. totals: it sums those.
"""

ELEMENTWISE: frozenset[Trait] = frozenset(("elementwise",))
MOVES_DATA: frozenset[Trait] = frozenset(("moves_data",))


def traits(*names: Trait) -> frozenset[Trait]:
    """Return the traits of an operator."""
    return frozenset(names)


InferRule = Callable[[tuple[Value, ...], Any], tuple[TensorType, ...]]
ReferenceRule = Callable[[tuple[Array, ...], Any], tuple[Array, ...]]
GradientRule = Callable[[GradientContext, Node, tuple[Value | None, ...]], dict[int, Value]]
"""(context, forward node, gradient of each output or None) -> gradient of each wanted input, by input index."""

RepeatRule = Callable[[Node, Any, int], Attrs]
"""(node, its attributes, number of samples) -> attributes for that number of samples."""


def _no_scratch(_node: Node) -> int:
    return 0


def _no_work(_node: Node) -> int:
    return 0


def _no_overlaps(_node: Node) -> tuple[Overlap, ...]:
    return ()


def _no_rows(_node: Node) -> RowForm | None:
    return None


def _no_overwrites(_node: Node) -> tuple[tuple[int, int], ...]:
    return ()


def _same_attrs(_node: Node, attrs: Attrs, _count: int) -> Attrs:
    return attrs


def _no_sum_of_samples(_attrs: Any) -> bool:
    return False


def _nowhere(_node: Node) -> tuple[int, ...] | None:
    return None


def _no_sums(_inputs: tuple[Value, ...], _attrs: Any) -> int:
    return 0


@dataclass(frozen=True)
class Placed:
    """Placement of an operator that the planner treats specially.

    view: output 0 consists of its inputs' bytes in place; costs no code and no memory.
    starts: where each input begins, in bytes from the output's first, if the output's bytes are those of its inputs (a
        view's always; of an op with `as_view` if no byte would have to move), else None.
    as_view: the view that means the same as this op if there are `starts`.
    page: a copy out of, or into, the arena: a call of the runtime (tt_page.h), not a kernel.
    overwrites: pairs of results and operands that they overwrite, if the op's names do not tell (see `alias_of`).
    """

    view: bool = False
    starts: Callable[[Node], tuple[int, ...] | None] = _nowhere
    as_view: str = ""
    page: Literal["", "out", "in"] = ""
    overwrites: Callable[[Node], tuple[tuple[int, int], ...]] = _no_overwrites


@dataclass(frozen=True)
class Bounds:
    """Range of the results of an operator, whatever its operands. reached: whether finite operands can reach the
    ends."""

    low: float
    high: float
    reached: bool = False


@dataclass(frozen=True)
class Samples:
    """Change of an operator if axis 0 of its operands holds several samples.

    repeat: the attributes for `count` samples at once, that is for axis 0 of every computed operand and result `count`
        times as long; ValueError if the op would then mix samples. Only for ops of a forward pass.
    sums: whether the results are sums over axis 0 of the operands, the samples.
    """

    repeat: RepeatRule = _same_attrs
    sums: Callable[[Any], bool] = _no_sum_of_samples


@dataclass(frozen=True)
class OpDef:
    """The whole meaning of one operator.

    inputs, outputs: names of operands and results, in order; everything else asks for them by name (names.py). A name
        that ends in "?" may be missing, one that ends in "*" stands for one or more. A result that is named
        like an operand overwrites it (`alias_of`). Kernels use these names for their C parameters if they can. present:
    attributes -> which of the "?" operands exist; None: the number of operands tells. A result that ends in "?" exists
    if the operand that it overwrites does.
    shown: attributes -> (name, doc) of this form of the operator, for generated code, reports and names of nodes;
        None: `name` and `doc`. Decisions depend on attributes, never on these.
    says: node -> a sentence for the comment of its kernel, from shapes, attributes and the names of its operands; None:
        `doc` (ops/describe.py).
    infer: input values and attributes -> output types; raises ValueError for an invalid shape.
    reference: numpy arrays -> numpy arrays; the definition of truth. Works in float32 and in float64 (gradient checks):
        it must compute in the dtype of its float inputs. A "bits" value is a packed uint8 array (bitorder little).
    gradient: a rule, or NonDifferentiable(why).
    exact: float32, operation by operation in the kernel's order, no fused multiply-add: byte-equal to the generated C.
        None: the reference is that already (integers, data movement, the same operations in the same order).
    reuses: operands whose address result 0 MAY share when they die here and sizes agree (`inplace`).
    overlaps: pairs that MAY share bytes at different addresses when the input dies here, whatever their sizes.
    placed: see Placed.
    scratch: bytes of working memory that the kernel needs while it runs.
    macs: nominal multiply-accumulates, padding taps counted.
    accumulator: largest magnitude that an int32 sum of the kernel can reach for these shapes, whatever the data; the
        compiler rejects sums that could leave int32. 0: nothing is summed, or only with saturation.
    samples: see Samples.
    error: the state of the int8 error that is result 0, if it is one.
    rows: how to compute result 0, a map of one image, or the sum of an update a few rows at a time; None: not by rows
        (see row_form).
    traits: see Trait.
    owned: contents of the operands that results overwrite (except the peak of an `error`).
    bounds: see Bounds; None: they depend on operands or attributes.
    """

    name: str
    doc: str
    infer: InferRule
    reference: ReferenceRule
    gradient: GradientRule | NonDifferentiable
    attrs: type[Attrs] = Attrs
    reuses: tuple[str, ...] = ()
    placed: Placed = Placed()
    scratch: Callable[[Node], int] = _no_scratch
    macs: Callable[[Node], int] = _no_work
    exact: ReferenceRule | None = None
    accumulator: Callable[[tuple[Value, ...], Any], int] = _no_sums
    overlaps: Callable[[Node], tuple[Overlap, ...]] = _no_overlaps
    samples: Samples = Samples()
    inputs: tuple[str, ...] = field(kw_only=True)
    outputs: tuple[str, ...] = ("y",)
    present: Callable[[Any], Iterable[str]] | None = None
    error: ErrorState | None = None
    rows: Callable[[Node], RowForm | None] = _no_rows
    traits: frozenset[Trait] = frozenset()
    owned: Owned | None = None
    bounds: Bounds | None = None
    shown: Callable[[Any], tuple[str, str]] | None = None
    says: Callable[[Node], str] | None = None

    @property
    def view(self) -> bool:
        """True if output 0 consists of its inputs' bytes in place."""
        return self.placed.view

    @property
    def as_view(self) -> str:
        """The view that means the same as this op if its inputs have `starts`."""
        return self.placed.as_view

    @property
    def page(self) -> Literal["", "out", "in"]:
        """Direction of a copy out of, or into, the arena; "" for other ops."""
        return self.placed.page

    @cached_property
    def overwritten(self) -> frozenset[str]:
        """Names of operands that results overwrite, if these exist."""
        return frozenset(name.rstrip("?*") for name in self.outputs) & {name.rstrip("?*") for name in self.inputs}

    @cached_property
    def alias(self) -> tuple[tuple[int, int], ...] | None:
        """(output index, input index) pairs that MUST share an address; None if that depends on the attributes."""
        if not self.overwritten <= {*self.inputs} & {*self.outputs}:
            return None
        return tuple((i, self.inputs.index(name)) for i, name in enumerate(self.outputs) if name in self.inputs)

    @cached_property
    def inplace(self) -> tuple[tuple[int, int], ...]:
        """(output index, input index) pairs that MAY share an address, see `reuses`."""
        return tuple((0, self.inputs.index(name)) for name in self.reuses)


OPS: dict[str, OpDef] = {}


def register(definition: OpDef) -> OpDef:
    """Enter an operator into the table; its name must be new, and those of its operands valid."""
    if definition.name in OPS:
        raise ValueError(f"op {definition.name} is registered twice")
    _check_names(definition)
    check_owned(definition.name, definition.attrs, definition.overwritten, definition.error, definition.owned)
    OPS[definition.name] = definition
    return definition


def _entered(make: Callable[P, OpDef]) -> Callable[P, OpDef]:
    def enter(*args: P.args, **kwargs: P.kwargs) -> OpDef:
        return register(make(*args, **kwargs))

    return enter


operator = _entered(OpDef)
"""Enter an operator of these attributes (see OpDef) into the table; return its definition."""


def _check_names(definition: OpDef) -> None:
    """Raise ValueError unless names are unique identifiers, and the operands of pairs are never missing."""
    stems = [name.rstrip("?*") for name in definition.inputs]
    for names in (stems, [name.rstrip("?*") for name in definition.outputs]):
        if not names or len(set(names)) < len(names) or not all(name.isidentifier() for name in names):
            raise ValueError(f"op {definition.name}: names {names}")
    fixed = next((i for i, name in enumerate(definition.inputs) if name[-1] in "?*"), len(stems))
    asked = [*definition.reuses, *(name for name in definition.outputs if name in stems and name in definition.inputs)]
    if definition.error is not None:
        asked += [definition.error.peak, definition.error.exponent, *definition.error.read]
    if missing := [name for name in definition.outputs if name[-1] == "?" and name not in definition.inputs]:
        raise ValueError(f"op {definition.name}: results {missing} overwrite no operand that may be missing")
    if missing := [name for name in asked if name not in stems[:fixed]]:
        raise ValueError(f"op {definition.name}: {missing} are not among the operands that it always has, {stems}")


def op_def(name: str) -> OpDef:
    """Return the definition of an operator; KeyError if there is none."""
    return OPS[name]


def has_trait(op: str, trait: Trait) -> bool:
    """Tell whether an op has a trait."""
    return trait in OPS[op].traits


def steps_floats(op: str) -> bool:
    """Tell whether an op steps a parameter that is not an integer (OpDef.owned)."""
    owned = OPS[op].owned
    return owned is not None and owned.is_float_step


@lru_cache(maxsize=REMEMBERED)
def _by_rule(rule: Callable[[Node], T], node: Node) -> T:
    """Return the result of an OpDef's rule for a node, cached: a search plans hundreds of graphs that share most
    nodes."""
    return rule(node)


def scratch_bytes(node: Node) -> int:
    """Return the bytes of working memory of a node's kernel: our own, or an external one."""
    return _by_rule(op_def(node.op).scratch, node) if node.external is None else node.external.workspace_bytes


def row_form(node: Node) -> RowForm | None:
    """Return how a node is computed by rows of a map; None unless there is one image and our own kernel."""
    shape, definition = node.outputs[0].shape, op_def(node.op)
    is_map = len(shape) == 4 and shape[0] == 1
    if node.external is not None or not (is_map or any(out == 0 for out, _ in alias_of(node))):
        return None
    return _by_rule(definition.rows, node)


def overlaps_of(node: Node) -> tuple[Overlap, ...]:
    """Return outputs that may cover inputs; none for an external kernel, whose order of reads and writes is unknown."""
    return _by_rule(op_def(node.op).overlaps, node) if node.external is None else ()


def alias_of(node: Node) -> tuple[tuple[int, int], ...]:
    """Return (output index, input index) pairs that MUST share an address: the node overwrites that input."""
    definition = op_def(node.op)
    if definition.alias is None:
        return _pairs(input_names(node.op, node.attrs, len(node.inputs)), output_names(node))
    return (*definition.alias, *definition.placed.overwrites(node))


@lru_cache(maxsize=REMEMBERED)
def _pairs(operands: tuple[str, ...], results: tuple[str, ...]) -> tuple[tuple[int, int], ...]:
    """Return (output index, input index) of results that are named like operands."""
    return tuple((i, operands.index(name)) for i, name in enumerate(results) if name in operands)


def form_name(op: str, attrs: Attrs) -> str:
    """Return the name that generated code, reports and names of nodes show for an operator with these attributes."""
    form = OPS[op].shown
    return op if form is None else form(attrs)[0]


def form_doc(op: str, attrs: Attrs) -> str:
    """Return the description of an operator with these attributes for generated code."""
    definition = OPS[op]
    return definition.doc if definition.shown is None else definition.shown(attrs)[1]


def shown_name(node: Node) -> str:
    """Return the name of a node's operator that generated code and reports show."""
    return form_name(node.op, node.attrs)


def inplace_of(node: Node) -> tuple[tuple[int, int], ...]:
    """Return pairs that may share an address (OpDef.inplace); none for an external kernel."""
    return op_def(node.op).inplace if node.external is None else ()


def input_names(op: str, attrs: Attrs, count: int) -> tuple[str, ...]:
    """Return the names of an op's `count` operands, in order; ValueError if it takes another number with these
    attributes.

    Operands of "x*" are named x0, x1, ...
    """
    definition = OPS[op]
    names = _names(definition.inputs, count, definition.present and tuple(definition.present(attrs)))
    if len(names) != count:
        raise ValueError(f"{op} takes {len(names)} operands ({', '.join(names)}), got {count}")
    return names


def operand_names(op: str, attrs: Attrs) -> tuple[str, ...]:
    """Return the names of an op's operands, in order; its attributes must tell which of them there are."""
    definition = OPS[op]
    assert definition.present is not None or "?" not in "".join(definition.inputs), f"{op}: operands are told by number"
    return _names(definition.inputs, 0, definition.present and tuple(definition.present(attrs)))


@lru_cache(maxsize=REMEMBERED)
def _names(declared: tuple[str, ...], count: int, present: tuple[str, ...] | None) -> tuple[str, ...]:
    """Return names of operands as declared; if some may be missing, those that are `present`, or the first ones."""
    if declared[-1].endswith("*"):
        stem = declared[-1][:-1]
        return (*declared[:-1], *(f"{stem}{i}" for i in range(max(1, count - len(declared) + 1))))
    optional = [name[:-1] for name in declared if name.endswith("?")]
    given = optional[: max(0, count - len(declared) + len(optional))] if present is None else present
    return tuple(name.removesuffix("?") for name in declared if name[-1] != "?" or name[:-1] in given)


def output_names(node: Node) -> tuple[str, ...]:
    """Return the names of a node's results, in order; ValueError if its op has another number of them.

    A last name that ends in "*" stands for one or more: "y*" for y0, y1, ... One that ends in "?" exists if the operand
    that it overwrites does.
    """
    op, count, names = node.op, len(node.outputs), OPS[node.op].outputs
    if any(name.endswith("?") for name in names):
        there = input_names(op, node.attrs, len(node.inputs))
        names = tuple(name.removesuffix("?") for name in names if name[-1] != "?" or name[:-1] in there)
    if names[-1].endswith("*"):
        stem = names[-1][:-1]
        names = (*names[:-1], *(f"{stem}{i}" for i in range(max(1, count - len(names) + 1))))
    if len(names) != count:
        raise ValueError(f"{op} has {len(names)} results ({', '.join(names)}), got {count}")
    return names


class SumOverflowError(ValueError):
    """Raised for shapes with which an operator's int32 sums could overflow."""


def infer(op: str, inputs: tuple[Value, ...], attrs: Attrs) -> tuple[TensorType, ...]:
    """Return the output types of an operator on these inputs (the InferFn that builders and checks take).

    ValueError for invalid operands; SumOverflowError if an int32 sum could overflow.
    """
    definition = OPS[op]
    if not isinstance(attrs, definition.attrs):
        raise ValueError(f"{op} takes {definition.attrs.__name__}, got {type(attrs).__name__}")
    input_names(op, attrs, len(inputs))
    types = definition.infer(inputs, attrs)
    bound = definition.accumulator(inputs, attrs)
    if bound > INT32_MAX:
        raise SumOverflowError(f"{form_name(op, attrs)}: its int32 sums can reach {bound}")
    return types


def new_builder(taken: Iterable[str] = ()) -> GraphBuilder:
    """Return a graph builder that knows the op table."""
    return GraphBuilder(infer, taken)


def attribute_types() -> Mapping[str, type[Attrs]]:
    """Map each op's name to its attribute dataclass, for the text form's parser."""
    return {name: definition.attrs for name, definition in OPS.items()}


def run_node(node: Node, arrays: tuple[Array, ...], exact: bool = False) -> tuple[Array, ...]:
    """Run a node's reference and check the result's shapes against the node's outputs.

    exact: compute what the generated C does without fused multiply-add, to the bit (float32 operands only).
    """
    definition = OPS[node.op]
    rule = definition.exact if exact and definition.exact is not None else definition.reference
    with np.errstate(all="ignore"):
        results = rule(arrays, node.attrs)
    for value, array in zip(node.outputs, results, strict=True):
        expected = (value.size_bytes,) if value.dtype == "bits" else value.shape
        if array.shape != expected:
            raise ValueError(f"reference of {node.op} ({node.name}): got {array.shape}, expected {expected}")
        if exact and value.dtype == "float32" and array.dtype != np.float32:
            raise ValueError(f"exact reference of {node.op} ({node.name}): got {array.dtype}, expected float32")
    return results
