"""C names of kernels: operator and size of the result, and of kernels that have these in common what differs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from itertools import combinations
from typing import cast

from tinytrain_compile.ir.kernels import KernelSet
from tinytrain_compile.ir.types import Node
from tinytrain_compile.ops.names import operands

_ORDINAL = re.compile(r"_v\d+(?=(_[a-z]+)*$)")
_ENDINGS = re.compile(r"(_turned)?(_external)?(_small)?$")
_FIRST = ("kernel", "strides", "groups", "operand1")
"""What a reader would name first: what of these tells kernels apart is not told by anything else."""
_LONGEST = 4
"""Numbers of an attribute that a name may list."""

Facet = tuple[str, str]
"""What may tell a kernel from others: a key, and its value as a part of a C name."""


def name_kernels(kernels: KernelSet, nodes: Mapping[str, Node]) -> KernelSet:
    """The same kernels; those that only a number tells apart are named by what differs between them.

    nodes: one that calls it, by kernel.
    """
    families: dict[str, list[str]] = {}
    for kernel in kernels.kernels:
        families.setdefault(_ORDINAL.sub("", kernel.name), []).append(kernel.name)
    names: dict[str, str] = {}
    for stem, family in families.items():
        endings = _differences([dict(_facets(nodes[name])) for name in family])
        for name, ending in zip(family, endings, strict=True):
            names[name] = _ENDINGS.sub(lambda found, text=ending: f"{text}{found[0]}", stem, count=1)
    return replace(
        kernels,
        kernels=tuple(kernel.named(names[kernel.name]) for kernel in kernels.kernels),
        calls={node: names[kernel] for node, kernel in kernels.calls.items()},
    )


def _differences(family: Sequence[dict[str, str]]) -> list[str]:
    """An ending for every member: of the fewest facets that tell all apart, a number where none do."""
    if len(family) == 1:
        return [""]
    keys = [key for key in family[0] if len({member.get(key) for member in family}) > 1]
    plain = [key for key in keys if key in _FIRST]
    choices = (chosen for few in (plain, keys) for count in (1, 2, 3) for chosen in combinations(few, count))
    for chosen in choices:
        endings = ["".join(f"_{member[key]}" for key in chosen if member.get(key)) for member in family]
        if len(set(endings)) == len(family):
            return endings
    return [f"_{number}" for number in range(1, len(family) + 1)]


def _facets(node: Node) -> Iterator[Facet]:
    """Those of a node."""
    attributes = dict(_attributes(node.attrs))
    yield from ((key, attributes.pop(key)) for key in _FIRST if key in attributes)
    for number, (name, value) in enumerate(operands(node).items(), 1):
        word = "from" if number == 1 else f"with_{name}"
        yield f"operand{number}", f"{word}_{'x'.join(map(str, value.shape)) or 'scalar'}"
    yield from attributes.items()
    for index, value in enumerate((*node.inputs, *node.outputs)):
        yield f"type{index}", value.dtype
    same = [str(node.inputs.index(value)) for value in node.inputs]
    yield "same", f"same{''.join(same)}"


def _attributes(attrs: object) -> Iterator[Facet]:
    """Every attribute that is short, those of nested ones included."""
    if not is_dataclass(attrs):
        return
    for field in fields(attrs):
        value: object = getattr(attrs, field.name)
        if is_dataclass(value):
            yield from _attributes(value)
            continue
        if isinstance(value, bool):
            yield field.name, field.name if value else ""
        elif text := _text(value):
            yield field.name, f"{field.name}_{text}"


def _text(value: object) -> str:
    """An attribute's value as letters and digits; "" where that would be long or means nothing."""
    if isinstance(value, tuple | list):
        parts = [_text(item) for item in cast("Sequence[object]", value)]
        return "x".join(parts) if 0 < len(parts) <= _LONGEST and all(parts) else ""
    if isinstance(value, str):
        return value.lower() if value.isalnum() else ""
    if isinstance(value, int | float):
        text = f"{value:g}" if isinstance(value, float) else str(value)
        return text.replace("-", "m").replace("+", "").replace(".", "p")
    return "none" if value is None else ""
