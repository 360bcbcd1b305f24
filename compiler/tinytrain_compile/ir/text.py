"""A stable text form of a graph (constant data is not part of it). `testing/graph_text.py` reads it back."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from itertools import zip_longest

import numpy as np

from tinytrain_compile.ir.types import Attrs, Graph, Node, Value


def _value(value: Value) -> str:
    fields, quant = (value.name, value.shape, value.dtype, value.layout, value.origin), value.quant
    return repr(fields if quant is None else (*fields, (quant.scale, quant.zero, quant.low, quant.high)))


def _values(values: Sequence[Value], names: Sequence[str]) -> str:
    return "; ".join(f"{name}={_value(v)}" if name else _value(v) for name, v in zip_longest(names, values))


def _attrs(attrs: Attrs) -> str:
    fields = {f.name: getattr(attrs, f.name) for f in dataclasses.fields(attrs)}
    return repr({key: _plain(item) for key, item in fields.items()})


def _plain(item: object) -> object:
    if dataclasses.is_dataclass(item) and not isinstance(item, type):
        return {"": type(item).__name__, **{f.name: _plain(getattr(item, f.name)) for f in dataclasses.fields(item)}}
    if isinstance(item, float) and not np.isfinite(item):
        return {"": "float", "value": str(item)}
    return item


NamesOf = Callable[[Node], tuple[Sequence[str], Sequence[str]]]
"""node -> names of its operands and of its results"""


def print_graph(graph: Graph, names_of: NamesOf | None = None) -> str:
    """Return one line per node, in order; inputs, outputs, state and updates in a header.

    names_of: for human readers, prefix operands and results with names such as `x=`.
    """
    lines = [f"graph {graph.name!r}"]
    for label in ("inputs", "outputs", "parameters", "state", "accumulators"):
        values: tuple[Value, ...] = getattr(graph, label)
        lines += [f" {label} {_value(value)}" for value in values]
    lines += [f" update {_value(old)} <- {_value(new)}" for old, new in graph.updates]
    lines += [f" note {note!r}" for note in graph.notes]
    lines += [f" {key} {name!r}" for key, name in (("guard", graph.guard), ("label", graph.label)) if name]
    for node in graph.nodes:
        names = names_of(node) if names_of else ((), ())
        ins, outs = map(_values, (node.inputs, node.outputs), names)
        lines.append(f"  {outs} = {node.name!r} {node.op}({ins}) {_attrs(node.attrs)} {(node.origin, node.phase)!r}")
    return "\n".join(lines) + "\n"
