"""Operands of a node as the tensors that a kernel reads, by the names that the OpDef gives them."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import te

from tinytrain_compile.ir.types import Node, Value
from tinytrain_compile.lower.kernels.base import placeholder
from tinytrain_compile.ops.linear import WEIGHT
from tinytrain_compile.ops.names import operand, operands


def tensor(node: Node, name: str, shape: Sequence[int] | None = None) -> te.Tensor:
    """An operand, whose C parameter has its name; `shape` may regroup its elements. KeyError if there is none."""
    return placeholder(operand(node, name), name, shape)


def tensors(node: Node, *names: str) -> list[te.Tensor]:
    """Operands in their own shapes; one whose name ends in "?" may be missing."""
    there = operands(node)
    return [tensor(node, name.removesuffix("?")) for name in names if name[-1] != "?" or name[:-1] in there]


def flat_tensor(node: Node, name: str) -> te.Tensor:
    """An operand as a vector of its elements."""
    return tensor(node, name, (operand(node, name).elements,))


def channel_rows(value: Value) -> tuple[int, int]:
    """Output channels of a weight or its gradient, and elements of each."""
    return value.shape[0], value.elements // value.shape[0]


def pixel_rows(value: Value) -> tuple[int, int]:
    """Pixels of an image, and channels of each."""
    return value.elements // value.shape[-1], value.shape[-1]


def weight_parts(node: Node) -> list[te.Tensor]:
    """The weight of a layer or of its data gradient, in one part or two."""
    return tensors(node, *WEIGHT)
