"""The intermediate representation: values, nodes, graphs, their builder, checker and text form. Imports numpy only."""

from tinytrain_compile.ir.graph import GraphBuilder, GraphError, check_graph
from tinytrain_compile.ir.text import print_graph
from tinytrain_compile.ir.types import NO_ATTRS, Attrs, Graph, Node, Quant, TensorType, Value

__all__ = [
    "NO_ATTRS",
    "Attrs",
    "Graph",
    "GraphBuilder",
    "GraphError",
    "Node",
    "Quant",
    "TensorType",
    "Value",
    "check_graph",
    "print_graph",
]
