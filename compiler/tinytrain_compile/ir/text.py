"""A stable text form of a graph that prints and parses back (constant data is not part of it)."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Mapping

import numpy as np

from tinytrain_compile.ir.types import Array, Attrs, Graph, Node, Quant, Value

_NODE = re.compile(
    r"^ {2}(?P<outs>.*?) = (?P<name>'[^']*') (?P<op>\w+)\((?P<ins>.*?)\) (?P<attrs>\{.*\}) (?P<tail>\(.*\))$"
)


def _value(value: Value) -> str:
    fields = (value.name, value.shape, value.dtype, value.layout, value.origin)
    return repr(fields if value.quant is None else (*fields, dataclasses.astuple(value.quant)))


def _parse_value(text: str) -> Value:
    fields = ast.literal_eval(text)
    return Value(*fields[:5], quant=Quant(*fields[5]) if len(fields) > 5 else None)


def _attrs(attrs: Attrs) -> str:
    fields = {f.name: getattr(attrs, f.name) for f in dataclasses.fields(attrs)}
    return repr({key: _plain(item) for key, item in fields.items()})


def _plain(item: object) -> object:
    if dataclasses.is_dataclass(item) and not isinstance(item, type):
        return {"": type(item).__name__, **{f.name: _plain(getattr(item, f.name)) for f in dataclasses.fields(item)}}
    if isinstance(item, float) and not np.isfinite(item):
        return {"": "float", "value": str(item)}
    return item


def _restore(item: object, nested: Mapping[str, type]) -> object:
    if isinstance(item, dict):
        fields: dict[str, object] = {str(k): v for k, v in item.items()}  # type: ignore[misc]
        kind = str(fields.pop(""))
        if kind == "float":
            return float(str(fields["value"]))
        return nested[kind](**{key: _restore(value, nested) for key, value in fields.items()})
    return item


def print_graph(graph: Graph) -> str:
    """One line per node, in order; inputs, outputs, state and updates in a header."""
    lines = [f"graph {graph.name!r}"]
    for label in ("inputs", "outputs", "parameters", "state", "accumulators"):
        values: tuple[Value, ...] = getattr(graph, label)
        lines += [f" {label} {_value(value)}" for value in values]
    lines += [f" update {_value(old)} <- {_value(new)}" for old, new in graph.updates]
    lines += [f" note {note!r}" for note in graph.notes]
    for node in graph.nodes:
        outs = "; ".join(_value(v) for v in node.outputs)
        ins = "; ".join(_value(v) for v in node.inputs)
        lines.append(f"  {outs} = {node.name!r} {node.op}({ins}) {_attrs(node.attrs)} {(node.origin, node.phase)!r}")
    return "\n".join(lines) + "\n"


def parse_graph(
    text: str, attrs_of: Mapping[str, type[Attrs]], constants: Mapping[str, Array], nested: Mapping[str, type]
) -> Graph:
    """The inverse of `print_graph`; `attrs_of`: op name -> attribute type; `nested`: dataclasses inside attributes."""
    lines = text.splitlines()
    sections: dict[str, list[Value]] = {k: [] for k in ("inputs", "outputs", "parameters", "state", "accumulators")}
    updates: list[tuple[Value, Value]] = []
    notes: list[str] = []
    nodes: list[Node] = []
    for line in lines[1:]:
        if line.startswith("  "):
            nodes.append(_parse_node(line, attrs_of, nested))
            continue
        key, _, rest = line.strip().partition(" ")
        if key == "update":
            old, new = rest.split(" <- ")
            updates.append((_parse_value(old), _parse_value(new)))
        elif key == "note":
            notes.append(ast.literal_eval(rest))
        else:
            sections[key].append(_parse_value(rest))
    name: str = ast.literal_eval(lines[0].removeprefix("graph "))
    parts = {key: tuple(values) for key, values in sections.items()}
    return Graph(name, tuple(nodes), constants=constants, updates=tuple(updates), notes=tuple(notes), **parts)


def _parse_node(line: str, attrs_of: Mapping[str, type[Attrs]], nested: Mapping[str, type]) -> Node:
    match = _NODE.match(line)
    if match is None:
        raise ValueError(f"not a node: {line!r}")
    fields: dict[str, object] = ast.literal_eval(match["attrs"])
    attrs = attrs_of[match["op"]](**{key: _restore(item, nested) for key, item in fields.items()})
    ins = tuple(_parse_value(part) for part in match["ins"].split("; ") if part)
    outs = tuple(_parse_value(part) for part in match["outs"].split("; "))
    origin, phase = ast.literal_eval(match["tail"])
    return Node(ast.literal_eval(match["name"]), match["op"], ins, outs, attrs, origin, phase)
