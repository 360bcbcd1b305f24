"""Operands and results by the names that an OpDef gives them (no other module counts positions), and checks of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

from tinytrain_compile.ir.types import NO_ATTRS, Attrs, DType, Layout, Node, TensorType, Value
from tinytrain_compile.ops.base import (
    GradientContext,
    GradientRule,
    NonDifferentiable,
    alias_of,
    input_names,
    op_def,
    output_names,
)

T = TypeVar("T")
A = TypeVar("A", bound=Attrs)


class Named(dict[str, T]):
    """Operands by name, in order; `get` for those that may be missing. KeyError for an unknown name."""

    def __init__(self, op: str, names: Sequence[str], items: Sequence[T]) -> None:
        super().__init__(zip(names, items, strict=True))
        self._op = op

    def __missing__(self, name: str) -> T:
        raise KeyError(f"{self._op} has no {name!r} here, it has {', '.join(self)}")

    def position(self, name: str) -> int:
        """Return the index of an operand among those present; KeyError for an unknown name."""
        self[name]  # KeyError if it is missing
        return list(self).index(name)

    def several(self, *names: str) -> tuple[T, ...]:
        """Return operands in this order; a name that ends in "?" may be missing."""
        wanted = (name.removesuffix("?") for name in names if name[-1] != "?" or name[:-1] in self)
        return tuple(self[name] for name in wanted)


def named(op: str, items: Sequence[T], attrs: Attrs = NO_ATTRS) -> Named[T]:
    """Return an op's operands (values, arrays or tensors of a kernel) by name; ValueError if there are too many or too
    few."""
    return Named(op, input_names(op, attrs, len(items)), items)


def operands(node: Node) -> Named[Value]:
    """Return a node's operands by name."""
    return named(node.op, node.inputs, node.attrs)


def names_of(node: Node) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of a node's operands and of its results, in order."""
    return input_names(node.op, node.attrs, len(node.inputs)), output_names(node)


def attrs_of(node: Node, kind: type[A]) -> A:
    """Return a node's attributes, which must be of this kind."""
    assert isinstance(node.attrs, kind), f"{node.op} has {type(node.attrs).__name__}"
    return node.attrs


def operand(node: Node, name: str) -> Value:
    """Return a node's operand; KeyError if it has none of this name."""
    return operands(node)[name]


def result(node: Node, name: str) -> Value:
    """Return a node's result; KeyError if it has none of this name."""
    return Named(node.op, output_names(node), node.outputs)[name]


def position(node: Node, name: str) -> int:
    """Return which of a node's inputs has this name; KeyError if none has."""
    return operands(node).position(name)


def trained(node: Node) -> Value | None:
    """Return the parameter that a node of an update overwrites, w or bias by name; None for any other node."""
    names, _ = names_of(node)
    first = next((index for out, index in alias_of(node) if out == 0), None)
    return node.inputs[first] if first is not None and names[first] in ("w", "bias") else None


def is_prepared(node: Node) -> bool:
    """Tell whether a node reads a weight that is in flash as kernels multiply it: as int16 (int8/prepared.py)."""
    weight = operands(node).get("w")
    return weight is not None and weight.dtype == "int16"


class ErrorOperands(NamedTuple):
    """Operands of OpDef.error for a node that makes an error; probe: exponent above those that it reads
    (QConvGradInputAttrs).

    The first step after m_init finds the exponent: it computes the error twice, so it never runs in place.
    """

    peak: Value
    exponent: Value
    read: tuple[Value, ...]
    float_peak: bool
    probe: int


def error_operands(node: Node) -> ErrorOperands | None:
    """Return the operands that keep the state of the int8 error that a node makes; None if it makes none."""
    kept = op_def(node.op).error
    if kept is None:
        return None
    own, probe = operands(node), getattr(node.attrs, "probe", 0)
    return ErrorOperands(own[kept.peak], own[kept.exponent], own.several(*kept.read), kept.float_peak, probe)


def error_exponents(nodes: Iterable[Node]) -> list[str]:
    """Return the names of the states that hold the exponents of errors; velocities have exponents of their own."""
    return list(error_ops(nodes))


def error_ops(nodes: Iterable[Node]) -> dict[str, str]:
    """Return which op makes each int8 error, by the name of its exponent."""
    found = ((node.op, error_operands(node)) for node in nodes)
    return {error.exponent.name: op for op, error in found if error is not None}


# ---- shared by families of operators --------------------------------------------------------------------------------

BACKWARD = NonDifferentiable("a backward op: training differentiates once")
"""Reason of most *Grad ops for having no gradient."""


class WrongTypeError(ValueError):
    """Raised for operands of types that an operator does not support."""


def expect_float(op: str, *values: Value) -> None:
    """Raise WrongTypeError unless every value is float32."""
    _expect("float32", "float32", op, values)


def expect_integers(op: str, *values: Value) -> None:
    """Raise WrongTypeError unless every value is int32."""
    _expect("int32", "integers", op, values)


def expect_indices(op: str, index: Value) -> None:
    """Raise WrongTypeError unless a value may be an index."""
    _expect("int32", "int32 indices", op, (index,))


def expect_truth(op: str, *values: Value) -> None:
    """Raise WrongTypeError unless every value is uint8."""
    _expect("uint8", "truth values", op, values)


def _expect(dtype: DType, what: str, op: str, values: Iterable[Value]) -> None:
    for value in values:
        if value.dtype != dtype:
            raise WrongTypeError(f"{op} needs {what}, {value.name!r} is {value.dtype}")


def expect_same_shape(op: str, *values: Value) -> None:
    """Raise ValueError unless all values have the shape of the first."""
    for value in values[1:]:
        if value.shape != values[0].shape:
            raise ValueError(f"{op} needs equal shapes, got {values[0].shape} and {value.shape}")


def kept_layout(value: Value, rank: int) -> Layout:
    """Return the layout of an output of this rank that keeps the axes of `value`."""
    return value.layout if rank == 4 and len(value.shape) == 4 else ""


def like(value: Value) -> tuple[TensorType, ...]:
    """Return one output of the same type as `value`."""
    return (TensorType(value.shape, value.dtype, kept_layout(value, len(value.shape))),)


def only(gradients: tuple[Value | None, ...]) -> Value:
    """Return the gradient of the only differentiable output of a node (output 0)."""
    if gradients[0] is None or any(gradient is not None for gradient in gradients[1:]):
        raise ValueError("expected a gradient of output 0 and of no other")
    return gradients[0]


def emits(op: str, *kept: str, attrs: Callable[[Node, Any], Attrs] = lambda _node, own: own) -> GradientRule:
    """Return the rule of an operator whose first operand's gradient one operator computes.

    kept: names of operands and results that it reads after the gradient of output 0; attrs: (node, attributes of the
    node) -> its attributes.
    """

    def rule(ctx: GradientContext, node: Node, gradients: tuple[Value | None, ...]) -> dict[int, Value]:
        there = operands(node) | dict(zip(output_names(node), node.outputs, strict=True))
        return {0: ctx.emit(op, (only(gradients), *(there[name] for name in kept)), attrs(node, node.attrs))}

    return rule
