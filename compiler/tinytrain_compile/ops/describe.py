"""Comments of kernels: what a node computes, in the names of the C function's parameters.

An operator whose comment depends on shapes or attributes has a rule (OpDef.says), next to its definition. All others
show their doc, with the values of the attributes that it names.
"""

from __future__ import annotations

import math
import re
from dataclasses import fields
from typing import cast

from tinytrain_compile.ir.types import Attrs, Node
from tinytrain_compile.ops.base import alias_of, form_doc, input_names, op_def, output_names, shown_name

_OPERANDS = re.compile(r"[;:] operands \(.*?\)(?=[.,]|$)")
"""Part of a doc that lists operands: a comment lists them with their shapes."""
_LONGEST = 4
"""Largest number of an attribute's elements that a comment lists: one for each axis of a map."""


def parameter_names(node: Node) -> list[str]:
    """Return C names of a node's inputs, then of its outputs; an output that overwrites an input is not a parameter."""
    names = list(input_names(node.op, node.attrs, len(node.inputs)))
    return names + [f"{name}_out" if name in names else name for name in output_names(node)]


def description(node: Node) -> str:
    """Describe the computation of a node in one sentence or more."""
    rule = op_def(node.op).says
    text = rule(node) if rule is not None else _doc(node)
    return text if text.endswith(".") else f"{text}."


def comment(node: Node, names: list[str] | tuple[str, ...] = ()) -> str:
    """Return a C comment: operator, what it computes, operands with their shapes.

    names: of inputs, then outputs, if they are not those of `parameter_names`.
    """
    names = names or parameter_names(node)
    shapes = ["x".join(map(str, value.shape)) or "scalar" for value in (*node.inputs, *node.outputs)]
    listed = [f"{name} {shape}" for name, shape in zip(names, shapes, strict=True)]
    read, written = listed[: len(node.inputs)], listed[len(node.inputs) :]
    for out, overwritten in alias_of(node):
        written[out] = f"{names[overwritten]} in place"
    return f"/* {shown_name(node)}: {description(node)} Shapes: {', '.join(read)} -> {', '.join(written)}. */\n"


def number(value: float) -> str:
    """Return a number with at most six significant digits."""
    return f"{value:g}"


def times(sizes: tuple[int, ...]) -> str:
    """Return sizes as "3x3"."""
    return "x".join(map(str, sizes))


def window(kernel: tuple[int, int], strides: tuple[int, int], pads: tuple[int, ...], dilations: tuple[int, int]) -> str:
    """Return a window as "3x3, stride 1, pad 1"; pads: (top, left, bottom, right)."""
    parts = [times(kernel), f"stride {_one(strides)}"]
    if any(pads):
        parts.append(f"pad {_one(pads)}" if len(set(pads)) == 1 else "pads {}, {}, {}, {}".format(*pads))
    if dilations != (1, 1):
        parts.append(f"dilation {_one(dilations)}")
    return ", ".join(parts)


def padding(top: int, left: int, shape: tuple[int, ...], name: str) -> str:
    """Say how far before a map (sample, height, width, channels) the first window begins; "" if it does not."""
    before = (max(top, 0) * shape[2] + max(left, 0)) * shape[3]
    return f" Padding: the first window begins {before} elements before {name}." if before else ""


def summed(axes: tuple[int, ...], shape: tuple[int, ...]) -> str:
    """Describe the range of a sum over axes: "4x4 pixels", or "8 elements of axis 1"."""
    sizes = times(tuple(shape[axis] for axis in axes if shape[axis] > 1)) or "1"
    if len(shape) == 4 and set(axes) <= {0, 1, 2}:
        return f"{sizes} pixels"
    return f"{sizes} elements of {'axis' if len(axes) == 1 else 'axes'} {', '.join(map(str, axes))}"


def _one(sizes: tuple[int, ...]) -> str:
    return str(sizes[0]) if len(set(sizes)) == 1 else times(sizes)


def _doc(node: Node) -> str:
    """Return the operator's doc, as an assignment if it is a formula, with values of the attributes that it names."""
    doc = _OPERANDS.sub("", form_doc(node.op, node.attrs)).rstrip(".")
    values = [f"{name} {value}" for name, value in _values(node.attrs) if re.search(rf"\b{name}\b", doc)]
    if "elementwise" in op_def(node.op).traits and not doc[:1].isupper() and not re.match(r"\w+ = |[^(]*:", doc):
        doc = f"{output_names(node)[0]} = {doc}"
    return f"{doc} ({', '.join(values)})" if values else doc


def _values(attrs: Attrs) -> list[tuple[str, str]]:
    """Return (name, value) of attributes that are numbers, or tuples of a few."""
    found: list[tuple[str, str]] = []
    for field in fields(attrs):
        value: object = getattr(attrs, field.name)
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            found.append((field.name, number(value)))
        elif isinstance(value, tuple):
            items = cast("tuple[object, ...]", value)
            if 0 < len(items) <= _LONGEST and all(isinstance(item, int) for item in items):
                found.append((field.name, ", ".join(map(str, items))))
    return found
