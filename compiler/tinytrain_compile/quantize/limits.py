"""What int8 storage can hold: scales so far apart that no integer factor leads from one to the other are refused."""

from __future__ import annotations

from collections.abc import Iterator

from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.types import Graph, Value

SMALLEST, LARGEST = 2.0**-64, 2.0**64
"""Bounds of a scale. A factor is a product or a quotient of up to four, and its exponent is an int8."""


def check_scales(graph: Graph) -> None:
    """E0307 for an activation or a weight whose scale is beyond the bounds."""
    for value in _stored(graph):
        assert value.quant is not None
        for scale in value.quant.scale:
            if not SMALLEST <= scale <= LARGEST:
                raise out_of_range(value.name, f"its int8 step is {scale:.3g}")


def out_of_range(name: str, what: str) -> CompileError:
    """The error for a value that int8 cannot hold."""
    way = "look for samples or weights that are far off, or scale the data to about 1"
    return CompileError("E0307", name, what, way)


def _stored(graph: Graph) -> Iterator[Value]:
    """Values in int8, with what they are stored by; biases follow from them."""
    seen: set[str] = set()
    for value in (*graph.inputs, *(v for node in graph.nodes for v in (*node.inputs, *node.outputs))):
        if value.quant is not None and value.quant.high < 1 << 15 and value.name not in seen:
            seen.add(value.name)
            yield value
