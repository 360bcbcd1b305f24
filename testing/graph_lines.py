"""Graphs as lines `y = Op(a; b) {attributes}`, short enough to be read, for tests of rewrites (`ir/text.py`)."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Mapping
from textwrap import dedent
from typing import Any, cast

import numpy as np

from testing.graph_text import parse_graph
from tinytrain_compile.ir.graph import check_graph
from tinytrain_compile.ir.text import print_graph
from tinytrain_compile.ir.types import Array, Graph, Node, Value
from tinytrain_compile.ops.base import Split, attribute_types, infer
from tinytrain_compile.ops.conv import ConvAttrs
from tinytrain_compile.ops.fixed_point import INT32_MAX
from tinytrain_compile.ops.loss import NllAttrs
from tinytrain_compile.ops.pool import PoolAttrs

NESTED: Mapping[str, type] = {kind.__name__: kind for kind in (ConvAttrs, NllAttrs, PoolAttrs, Split)}
VALUE = re.compile(r"\('([^']+)', \([^)]*\), '(\w+)', '\w*', '[^']*'(?:, \(\([^)]*\), -?\d+, -?\d+, -?\d+\))?\)")
NODE = re.compile(r"  (.*) = '.*?' (\w+)\((.*?)\) (\{.*\}) \('.*?', '(\w+)'\)")
FACTORS = ("a_factor", "b_factor", "factor", "target", "total", "distance")
"""Attributes that are a factor as (multiplier, shift)."""
APPLY = "---"
"""A line between the nodes of a step and those that apply a batch."""

Shapes = Mapping[str, tuple[int, ...]]
Formats = Mapping[str, tuple[float | tuple[float, ...], int]]
"""Value -> (scale or scales, zero point) of its int8 format."""


def lines(text: str) -> list[str]:
    """Return the lines of an indented text; one that is indented further goes on with the line before."""
    return re.sub(r"\n +", " ", dedent(text).strip()).splitlines()


def joined(*texts: str) -> str:
    """Return indented texts, one after another."""
    return "\n".join(line for text in texts for line in lines(text))


def read(
    shapes: Shapes,
    nodes: str,
    outputs: str = "",
    updates: str = "",
    formats: Formats | None = None,
    constants: Mapping[str, Array] | None = None,
    dtypes: Mapping[str, str] | None = None,
    fill: float = 1,
) -> Graph:
    """Make a graph of lines, with `---` in front of those that apply a batch.

    shapes, dtypes: of what no node makes (float32 unless it is said). Names with w are weights, all `fill` unless
    `constants` says more; names with `sum.` are accumulators; others are inputs, or other constants if they are given.
    updates: `old<-new` with blanks.
    """
    formats, dtypes, given = formats or {}, dtypes or {}, dict(constants or {})
    body = lines(nodes)
    made = {name for line in body if line != APPLY for name in line.split(" = ")[0].split("; ")}
    leaves = {name: shape for name, shape in shapes.items() if name not in made}
    given |= {n: np.full(shape, fill, np.float32) for n, shape in leaves.items() if n[0] == "w" and n not in given}

    def value(name: str) -> str:
        shape, form = leaves.get(name, ()), formats.get(name)
        image = len(shape) == 4 and name not in given and not name.startswith("sum.")
        fields = (name, shape, dtypes.get(name, "float32"), "NHWC" if image else "", "")
        if form is None:
            return repr(fields)
        return repr((*fields, (form[0] if isinstance(form[0], tuple) else (form[0],), form[1], -128, 127)))

    pairs = [pair.split("<-") for pair in updates.split()]
    owned, text, phase = {old for old, _ in pairs}, ["graph 'test'"], "step"
    for name in (name for name in leaves if name not in given or name in owned or name[0] == "w"):
        kind = "accumulators" if name.startswith("sum.") else "inputs"
        text.append(f" {('state' if name in owned else 'parameters') if name in given else kind} {value(name)}")
    text += [f" outputs {value(name)}" for name in outputs.split()]
    text += [f" update {value(old)} <- {value(new)}" for old, new in pairs]
    for line in body:
        if line == APPLY:
            phase = "apply"
            continue
        found = re.fullmatch(r"(.*?) = (\w+)\((.*?)\) ?(.*)", line)
        assert found is not None, line
        out, op, operands, attrs = found.groups()
        outs, ins = ("; ".join(map(value, names.split("; "))) for names in (out, operands))
        text.append(f"  {outs} = {out.split('; ')[0]!r} {op}({ins}) {attrs or '{}'} ('', '{phase}')")
    graph = with_types(parse_graph("\n".join(text) + "\n", attribute_types(), given, NESTED))
    check_graph(graph, infer)
    return graph


def with_types(graph: Graph) -> Graph:
    """Give results of nodes the types that their operators infer."""
    leaves = (*graph.inputs, *graph.parameters, *graph.state, *graph.accumulators)
    known, nodes = {value.name: value for value in leaves}, list[Node]()
    for node in graph.nodes:
        inputs = tuple(known.get(value.name, value) for value in node.inputs)
        kinds = infer(node.op, inputs, node.attrs)
        outputs = tuple(
            Value(value.name, kind.shape, kind.dtype, kind.layout, "", value.quant)
            for value, kind in zip(node.outputs, kinds, strict=True)
        )
        known |= {value.name: value for value in outputs}
        nodes.append(dataclasses.replace(node, inputs=inputs, outputs=outputs))
    return dataclasses.replace(
        graph,
        nodes=tuple(nodes),
        outputs=tuple(known[value.name] for value in graph.outputs),
        updates=tuple((known[old.name], known[new.name]) for old, new in graph.updates),
    )


def written(graph: Graph) -> list[str]:
    """Write nodes in the same form, without attributes."""
    found = (NODE.fullmatch(line) for line in print_graph(graph).splitlines())
    return [VALUE.sub(r"\1", f"{node[1]} = {node[2]}({node[3]})") for node in found if node is not None]


def told(graph: Graph) -> list[str]:
    """Write nodes with all attributes that have not their default, and `---` in front of those that apply a batch.

    Factors are numbers: `*0.5` for a table of a multiplier and a shift (`*(0.5, 0.25)` by channel). `2^y` is the
    exponent y.exponent.
    """
    shown = dataclasses.replace(graph, nodes=tuple(_with_factors(node, graph.constants) for node in graph.nodes))
    found = [node for line in print_graph(shown).splitlines() if (node := NODE.fullmatch(line)) is not None]
    made: list[str] = []
    for before, node in zip([None, *found], found, strict=False):
        if node[5] == "apply" and (before is None or before[5] == "step"):
            made.append(APPLY)
        attrs = _attributes(attribute_types()[node[2]], ast.literal_eval(node[4]))
        made.append(VALUE.sub(_named, f"{node[1]} = {node[2]}({node[3]})") + (f" {{{attrs}}}" if attrs else ""))
    return made


def _named(value: re.Match[str]) -> str:
    return re.sub(r"^(.*)\.exponent((?:\.\d+)*)$", r"2^\1\2", value[1])


def _with_factors(node: Node, constants: Mapping[str, Array]) -> Node:
    """Return a node with one operand `*factor` in the place of two tables."""
    inputs: list[Value] = []
    for value in node.inputs:
        before = inputs[-1] if inputs else None
        shift = value.name in constants and _is(value.name, "shift")
        if shift and before is not None and _is(before.name, "multiplier"):
            number = factor(constants[before.name], constants[value.name])
            inputs[-1] = dataclasses.replace(before, name=f"*{number}")
        elif shift:
            shifts = [*map(str, constants[value.name])]
            inputs.append(dataclasses.replace(value, name=f"shift {' '.join(dict.fromkeys(shifts))}"))
        else:
            inputs.append(value)
    return dataclasses.replace(node, inputs=tuple(inputs))


def _is(name: str, kind: str) -> bool:
    return re.fullmatch(rf".*[._]{kind}(?:\.\d+)*", name) is not None


def factor(multiplier: Any, shift: Any) -> str:
    """Return the real number of a factor, or those of its channels if they differ."""
    pairs: Any = np.stack((np.atleast_1d(multiplier), np.atleast_1d(shift)), 1).tolist()
    numbers = [f"{m * 2.0 ** (s - 31):.6g}" for m, s in pairs]
    return numbers[0] if len({*numbers}) == 1 else f"({', '.join(numbers)})"


def _attributes(kind: type, fields: Mapping[str, Any]) -> str:
    """Return `name=value` of the fields that have not their default."""
    defaults = {field.name: _plain(field.default) for field in dataclasses.fields(kind)}
    return ", ".join(_attribute(name, item) for name, item in fields.items() if item != defaults[name])


def _plain(default: Any) -> Any:
    if dataclasses.is_dataclass(default) and not isinstance(default, type):
        return {"": type(default).__name__, **dataclasses.asdict(default)}
    return {"": "float", "value": str(default)} if isinstance(default, float) and not np.isfinite(default) else default


def _attribute(name: str, item: Any) -> str:
    if name in FACTORS and isinstance(item, tuple):
        return f"{name}=*{factor(*item)}"
    if isinstance(item, dict):
        kind, *_ = rest = cast("list[Any]", [*item.values()])
        if kind == "MaskAttrs":
            return f"{name}={rest[1]} {rest[2]}..{rest[3]}"
        fields = cast("dict[str, Any]", item)
        return f"{name}=({_attributes(NESTED[kind], {key: fields[key] for key in fields if key})})"
    return f"{name}={'INT32_MAX' if item == INT32_MAX else item}"
