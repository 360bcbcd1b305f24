"""Numbers that a kernel reads from a table: layers of equal shape that differ only in them share it.

A rule of NUMBERS names the attributes that cost a kernel no instruction in its loops if they are not constants. Layers
that agree in everything else are lowered once, with a variable for each attribute in which they differ.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from tinytrain_compile.ir.types import Node
from tinytrain_compile.lower.kernels import NUMBERS, KernelContext


@dataclass(frozen=True)
class Numbered:
    """A node without some of its attributes, and their values.

    node: these are 0; own: with all of them; given: in its own form.
    """

    node: Node
    own: Node
    given: Node
    names: tuple[str, ...] = ()
    values: tuple[int, ...] = ()

    @property
    def told_by(self) -> Node:
        """Return the node with these attributes empty: it names the kernel."""
        return with_attributes(self.own, dict.fromkeys(self.names, "")) if self.names else self.given


def with_attributes(node: Node, attributes: dict[str, Any]) -> Node:
    """Return a node with other attributes."""
    return replace(node, attrs=replace(node.attrs, **attributes)) if attributes else node


def _closed(given: Node, own: Node, names: tuple[str, ...]) -> Numbered:
    values = tuple(getattr(own.attrs, name) for name in names)
    return Numbered(with_attributes(own, dict.fromkeys(names, 0)), own, given, names, values)


def numbered(
    nodes: Iterable[Node], context_of: Callable[[Node], KernelContext], key: Callable[[Node], object]
) -> list[Numbered]:
    """Return every node with the attributes in which others differ that have the same key without them.

    A number that is 0 stays a constant, since rules leave out what it would add.
    """
    found = [_possible(node, context_of(node)) for node in nodes]
    values: dict[object, list[set[int]]] = {}
    for one in found:
        differ = values.setdefault((key(one.node), one.names), [set() for _ in one.names])
        for seen, value in zip(differ, one.values, strict=True):
            seen.add(value)

    def in_which_they_differ(one: Numbered) -> tuple[str, ...]:
        several = values[key(one.node), one.names]
        return tuple(name for name, seen in zip(one.names, several, strict=True) if len(seen) > 1)

    return [_closed(one.given, one.own, in_which_they_differ(one)) for one in found]


def _possible(node: Node, context: KernelContext) -> Numbered:
    """Return a node without every number that may come from a table."""
    node = with_attributes(node, {"probe": 0}) if hasattr(node.attrs, "probe") else node  # only the reference reads it
    rule = NUMBERS.get(node.op)
    if rule is None or node.external is not None or context.style.small:
        return Numbered(node, node, node)
    own, names = rule(node, context)
    return _closed(node, own, tuple(name for name in names if getattr(own.attrs, name)))


@dataclass
class Tables:
    """Tables of the calls of a network. names: node -> its table; rows: by C name. Equal ones of a kernel are one."""

    prefix: str
    names: dict[str, str] = field(default_factory=dict[str, str])
    rows: dict[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])

    def add(self, node: Node, values: tuple[int, ...]) -> None:
        """Add the table of a node, by the name of its layer."""
        if not values:
            return
        layer = re.sub(r"[^A-Za-z0-9_]", "_", node.origin or node.name)
        stem = f"{self.prefix}_numbers_{layer}"
        name, count = stem, 1
        while self.rows.setdefault(name, values) != values:
            name, count = f"{stem}_{count + 1}", count + 1
        self.names[node.name] = name
