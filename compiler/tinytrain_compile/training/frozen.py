"""What follows from frozen weights alone is computed at compile time, not in every step."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from tinytrain_compile.ir.graph import GraphBuilder
from tinytrain_compile.ir.types import Array, Node, Value
from tinytrain_compile.ops.base import op_def, run_node


def fold_frozen(
    builder: GraphBuilder, nodes: Iterable[Node], constants: Mapping[str, Array], kept: Collection[str]
) -> list[Node]:
    """The nodes that remain; the results of the others are constants of the builder. Views stay, as they cost nothing.

    kept: names of the trained constants, and of values that must be computed. Results larger than their operands stay.
    """
    arrays = {name: data for name, data in constants.items() if name not in kept}
    renamed: dict[str, Value] = {}
    result: list[Node] = []
    for node in nodes:
        node = replace(node, inputs=tuple(renamed.get(value.name, value) for value in node.inputs))
        if not _is_frozen(node, arrays, kept):
            result.append(node)
            continue
        found = run_node(node, tuple(arrays[value.name] for value in node.inputs))
        for value, data in zip(node.outputs, found, strict=True):
            arrays[value.name] = data
            if not op_def(node.op).view:
                renamed[value.name] = builder.constant(value.name, data, value.origin)
                arrays[renamed[value.name].name] = data
        if op_def(node.op).view:
            result.append(node)
    return result


def _is_frozen(node: Node, arrays: Mapping[str, Array], kept: Collection[str]) -> bool:
    known = bool(node.inputs) and all(value.name in arrays for value in node.inputs)
    if not known or any(value.name in kept or value.dtype != "float32" for value in node.outputs):
        return False
    return sum(v.size_bytes for v in node.outputs) <= sum(v.size_bytes for v in node.inputs)
