"""`--listen only`: the step whose input is what `m_hear` holds of a window, the features that a trained head reads.

All that computes these features of a window is left out of the step, so its plan, bounds and report know only the rest.
The pass on the stream is made of the whole step (`listen.py`), which is kept beside: its numbers judge the C.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tinytrain_compile.driver.candidates.listen import border
from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.stages import Listening, TrainGraph
from tinytrain_compile.ir.types import Graph, Node, Value
from tinytrain_compile.ops.base import op_def

FLAG = "--listen only"


def on_heard(train: TrainGraph, listening: Listening) -> TrainGraph:
    """Return the step behind a value of the window that the pass holds whole. Errors: E0113 if there is none.

    A step takes the smallest such value that no update changes; an inference alone has nothing left to compute.
    """
    graph = train.graph
    if train.reads_state_of is not None:
        return _behind(train, graph.outputs[0], ())
    targets = (*graph.outputs, train.loss, *(new for _, new in graph.updates))
    found = [(value, nodes) for value in _held(graph, listening) if (nodes := _nodes_behind(graph, targets, value))]
    if not found:
        what = "is not possible: m_hear holds no value that all of the trained part can be computed from"
        raise CompileError("E0113", FLAG, what, "train the head alone (--update head), or listen with --listen on")
    return _behind(train, *min(found, key=lambda pair: pair[0].size_bytes))


def _held(graph: Graph, listening: Listening) -> Iterator[Value]:
    """Yield the values that the pass holds whole, and that the trained part reads or sees by views."""
    kept = border(listening.graph, {value.name for value in graph.state})
    for node in reversed(listening.graph.nodes):
        if op_def(node.op).view and node.outputs[0].name in kept:
            kept |= {value.name for value in node.inputs if value.size_bytes == node.outputs[0].size_bytes}
    for node in graph.nodes:
        yield from (value for value in node.outputs if listening.whole.get(value.name) in kept)


def _nodes_behind(graph: Graph, targets: tuple[Value, ...], start: Value) -> tuple[Node, ...]:
    """Return the nodes that the targets need if `start` is given; () if they need the model's input too."""
    needed, kept = {value.name for value in targets}, list[Node]()
    for node in reversed(graph.nodes):
        made = {value.name for value in node.outputs} - {start.name}
        if made & needed:
            kept.append(node)
            needed |= {value.name for value in node.inputs}
    return () if needed & {value.name for value in graph.data} else tuple(reversed(kept))


def _behind(train: TrainGraph, start: Value, nodes: tuple[Node, ...]) -> TrainGraph:
    graph = train.graph
    read = {value.name for node in nodes for value in node.inputs} | {value.name for value in graph.state}
    cut = replace(
        graph,
        nodes=nodes,
        inputs=(start, *graph.inputs[len(graph.data) :]),
        constants={name: data for name, data in graph.constants.items() if name in read},
    )
    return replace(train, graph=cut, windows=train)
