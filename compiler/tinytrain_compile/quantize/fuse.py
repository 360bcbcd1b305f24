"""Linear layers over tokens, as exporters write them: a bias that is added behind a product becomes the layer's own.

In float32 the two are as good apart; in int8 the sum of an int8 tensor and a float vector would be an region.
"""

from __future__ import annotations

from dataclasses import replace

from tinytrain_compile.ir.types import Graph, Node, Value
from tinytrain_compile.ops.linear import GemmAttrs


def fuse_biases(graph: Graph) -> Graph:
    """Gemm without bias, then Reshapes that keep its columns, then Add of one constant per column: Gemm with bias."""
    readers, outputs = graph.consumers(), {value.name for value in graph.outputs}

    def sole_reader(value: Value) -> Node | None:
        found = readers.get(value.name, [])
        return found[0] if len(found) == 1 and value.name not in outputs else None

    changed: dict[str, Node | None] = {}
    for node in graph.nodes:
        if node.op != "Gemm" or node.attrs != GemmAttrs():
            continue
        chain = [node]
        reader = sole_reader(node.outputs[0])
        while (
            reader is not None and reader.op == "Reshape" and reader.outputs[0].shape[-1:] == node.outputs[0].shape[1:]
        ):
            chain.append(reader)
            reader = sole_reader(reader.outputs[0])
        bias = None if reader is None else _bias_of(graph, reader, chain[-1].outputs[0])
        if reader is None or bias is None or len(readers[bias.name]) > 1:
            continue
        chain[-1] = replace(chain[-1], outputs=reader.outputs)
        changed.update({part.name: part for part in chain})
        gemm = changed[node.name]
        assert gemm is not None
        changed[node.name] = replace(gemm, inputs=(*node.inputs, bias), attrs=GemmAttrs(bias=True))
        changed[reader.name] = None
    nodes = (changed.get(node.name, node) for node in graph.nodes)
    return replace(graph, nodes=tuple(node for node in nodes if node is not None))


def _bias_of(graph: Graph, add: Node, product: Value) -> Value | None:
    """The constant of one number per column that an Add adds to a product, or None."""
    if add.op != "Add" or add.outputs[0].shape != product.shape:
        return None
    others = [value for value in add.inputs if value != product]
    fits = len(others) == 1 and others[0].name in graph.constants and others[0].shape == product.shape[-1:]
    return others[0] if fits else None
