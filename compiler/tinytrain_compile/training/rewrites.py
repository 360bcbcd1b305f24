"""Rewrites of a training step: folding of frozen weights, masks of clips, gradients of splits, fused updates.

1. Values that depend only on frozen weights are computed at compile time, not in every step.
2. A clip keeps its output only if another node keeps it too; otherwise one bit per element suffices.
3. The gradient of a split is one Concat, instead of a sum of its pieces that are each embedded in zeros: reverse mode
   meets the pieces one by one; if they tile the whole in the end, adding zeros only costs bytes and time.
4. A weight that a dense layer reads in every step of time has one gradient for all steps: the product of stacked
   operands, instead of a sum of products.
5. A weight gradient is never stored if one node can compute each element and update the parameter with it. An update
   overwrites a weight that the data gradient of its layer still reads. A stored gradient can wait for that and free its
   operands; a fused one cannot. So it is stored if it is smaller than the operands that would have to wait.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tinytrain_compile.ir.graph import Dependencies, GraphBuilder
from tinytrain_compile.ir.stages import TrainGraph
from tinytrain_compile.ir.types import NO_ATTRS, Array, Graph, Node, Value
from tinytrain_compile.ops.base import alias_of, has_trait, infer, op_def, run_node
from tinytrain_compile.ops.clip import ROW_SQUARES
from tinytrain_compile.ops.fused_update import FUSED_UPDATE, PAIRS, FusedUpdateAttrs
from tinytrain_compile.ops.linear import GEMM_GRAD_WEIGHT
from tinytrain_compile.ops.names import operand, operands, result
from tinytrain_compile.ops.shape import ConcatAttrs, EmbedAttrs, ExpandAttrs

# ---- frozen weights ------------------------------------------------------------------------------------------------


def fold_frozen(
    builder: GraphBuilder, nodes: Iterable[Node], constants: Mapping[str, Array], kept: Collection[str]
) -> list[Node]:
    """Return the nodes that remain; the results of the others are constants of the builder. Views stay, as they cost
    nothing.

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


# ---- masks of clips ------------------------------------------------------------------------------------------------

BITS = 8
"""Least bits of an element of a kept value, so that a mask takes at most 1 / BITS of its bytes."""


def keep_masks(builder: GraphBuilder, forward: list[Node], backward: list[Node]) -> tuple[list[Node], list[Node]]:
    """Replace ClipGrad(dy, y) by MaskedGrad(dy, ClipMask(y)) wherever no other backward node reads y.

    Returns the forward nodes (with masks right after the clips) and the backward nodes.
    """
    masks, masked = _masks(builder, forward, backward)
    return _with_masks(forward, masks, masked), _with_masks(backward, masks, masked)


def mask_clips(train: TrainGraph) -> TrainGraph:
    """Do the same in a step whose layers keep integers: fewer nodes then read the float32 output of a clip."""
    graph = train.graph
    passed = graph.ancestors((train.loss, *graph.outputs))
    forward, backward = ([node for node in graph.nodes if (node.name in passed) is ahead] for ahead in (True, False))
    taken = {*graph.constants, *(value.name for node in graph.nodes for value in (*node.inputs, *node.outputs))}
    masks, masked = _masks(GraphBuilder(infer, taken), forward, backward)
    return (
        replace(train, graph=replace(graph, nodes=tuple(_with_masks(graph.nodes, masks, masked)))) if masks else train
    )


def _masks(
    builder: GraphBuilder, forward: list[Node], backward: list[Node]
) -> tuple[Mapping[str, Node], Mapping[str, Node]]:
    """Return (output of a clip -> the node that makes its mask, name of a ClipGrad -> its MaskedGrad)."""
    kept = _kept_by_others(forward, backward)
    masks: dict[str, Node] = {}
    masked: dict[str, Node] = {}
    for node in backward:
        if node.op != "ClipGrad" or operand(node, "y").name in kept:
            continue
        dy, y = node.inputs
        if y.name not in masks:
            builder.emit("ClipMask", (y,), node.attrs, f"{y.name}.mask", node.origin)
            masks[y.name] = builder.nodes.pop()
        mask = result(masks[y.name], "mask")
        masked[node.name] = Node(node.name, "MaskedGrad", (dy, mask), node.outputs, NO_ATTRS, node.origin)
    return masks, masked


def _with_masks(nodes: Sequence[Node], masks: Mapping[str, Node], masked: Mapping[str, Node]) -> list[Node]:
    """Return nodes with each mask behind the clip, and masked gradients."""
    behind = {node.name: [masks[out.name] for out in node.outputs if out.name in masks] for node in nodes}
    return [part for node in nodes for part in (masked.get(node.name, node), *behind[node.name])]


def _kept_by_others(forward: list[Node], backward: list[Node]) -> set[str]:
    """Return values that a backward node other than a ClipGrad reads, directly or through a view.

    Values of which only some channels are read do not count (by Slices, which run in the forward pass):
    those channels and the bits take less.
    """
    base: dict[str, str] = {}
    for node in (*forward, *backward):
        if op_def(node.op).view:
            source = node.inputs[0].name
            base[node.outputs[0].name] = base.get(source, source)
    kept: set[str] = set()
    cut: dict[str, int] = {}
    for node in backward:
        if op_def(node.op).view:
            continue
        for name, value in operands(node).items():
            if has_trait(node.op, "cuts"):
                cut[value.name] = cut.get(value.name, 0) + node.outputs[0].elements
                if cut[value.name] + value.elements // BITS < value.elements:
                    continue
            if not (node.op == "ClipGrad" and name == "y"):
                kept.update((value.name, base.get(value.name, value.name)))
    return kept


# ---- gradients of splits -------------------------------------------------------------------------------------------


def join_pieces(train: TrainGraph) -> TrainGraph:
    """Return the step with such float32 sums as Concats (a former -0 + 0 keeps its sign); itself if there are none."""
    graph = train.graph
    made = graph.producers()
    found = {node.name: joined for node in graph.nodes if (joined := _joined(node, made)) is not None}
    if not found:
        return train
    whole = replace(graph, nodes=tuple(found.get(node.name, node) for node in graph.nodes))
    targets = (*graph.outputs, train.loss, *(new for _, new in graph.updates))
    needed = whole.ancestors(targets)
    return replace(train, graph=replace(whole, nodes=tuple(n for n in whole.nodes if n.name in needed)))


def _joined(node: Node, made: Mapping[str, Node]) -> Node | None:
    """Return a sum of pieces that tile it as their Concat, or None."""
    pieces = _pieces(node.outputs[0], made) if node.op == "Add" and node.outputs[0].dtype == "float32" else None
    if not pieces:
        return None
    pieces.sort(key=lambda item: item[1])
    inputs = tuple(piece for piece, _ in pieces)
    for axis in range(len(node.outputs[0].shape)):
        attrs, end = ConcatAttrs(axis), 0
        for piece, starts in pieces:
            if starts != tuple(end if i == axis else 0 for i in range(len(starts))):
                break
            end += piece.shape[axis]
        else:
            try:
                same = infer("Concat", inputs, attrs) == (node.outputs[0].type,)
            except ValueError:  # the other axes are not whole
                continue
            if same:
                return replace(node, op="Concat", inputs=inputs, attrs=attrs)
    return None


def _pieces(value: Value, made: Mapping[str, Node]) -> list[tuple[Value, tuple[int, ...]]] | None:
    """Return (piece, its start) of all pieces summed up in a value; None if other terms are summed too."""
    node = made.get(value.name)
    if node is None:
        return None
    if node.op == "Add" and all(summand.type == value.type for summand in node.inputs):
        both = [_pieces(summand, made) for summand in node.inputs]
        return None if both[0] is None or both[1] is None else [*both[0], *both[1]]
    attrs = node.attrs
    plain = isinstance(attrs, EmbedAttrs) and attrs.value == 0.0 and all(step == 1 for step in attrs.steps)
    return [(node.inputs[0], attrs.starts)] if plain and isinstance(attrs, EmbedAttrs) else None


# ---- gradients of a weight that several layers share ---------------------------------------------------------------


def stack_products(train: TrainGraph) -> TrainGraph:
    """Return the step with sums of a dense weight's gradients as one gradient of stacked operands; itself without
    such sums.

    The operands of all terms are then needed at once, and the gradients of single terms never are.
    """
    graph = train.graph
    made, reads = graph.producers(), Counter(value.name for node in graph.nodes for value in node.inputs)
    reads.update(value.name for value in (*graph.outputs, *(new for _, new in graph.updates)))
    stacked, gone = dict[str, list[Node]](), set[str]()
    for node in reversed(graph.nodes):
        parts = _summed(node, made, reads) if node.op == "Add" and node.name not in gone else []
        terms = [part for part in parts if part.op != "Add"]
        if len(terms) > 1 and all(term.op == GEMM_GRAD_WEIGHT.name and term.external is None for term in terms):
            stacked[node.name] = _stacked(node, terms)
            gone.update(part.name for part in parts)
    if not stacked:
        return train
    kept = (node for node in graph.nodes if node.name not in gone or node.name in stacked)
    nodes = tuple(part for node in kept for part in stacked.get(node.name, [node]))
    return replace(train, graph=replace(graph, nodes=nodes))


def _summed(node: Node, made: Mapping[str, Node], reads: Mapping[str, int]) -> list[Node]:
    """Return a sum, the sums inside it, and the nodes that make its terms; none if a part is read elsewhere too."""
    found, waiting = list[Node](), [node]
    while waiting:
        found.append(part := waiting.pop())
        for value in reversed(part.inputs if part.op == "Add" else ()):
            if value.name not in made or reads[value.name] != 1 or value.type != node.outputs[0].type:
                return []
            waiting.append(made[value.name])
    return found


def _stacked(node: Node, terms: Sequence[Node]) -> list[Node]:
    """Return the product that replaces a sum, behind the two nodes that stack its operands.

    The backward pass meets the last layer first; the operands are stacked in the order of the forward pass.
    """
    whole: list[Node] = []
    for name in ("x", "dy"):
        parts = tuple(operand(term, name) for term in reversed(terms))
        rows = replace(parts[0], name=f"{node.name}.{name}", shape=(sum(v.shape[0] for v in parts), parts[0].shape[1]))
        whole.append(replace(node, name=rows.name, op="Concat", inputs=parts, outputs=(rows,), attrs=ConcatAttrs(0)))
    product = replace(node, op=GEMM_GRAD_WEIGHT.name, inputs=tuple(w.outputs[0] for w in whole), attrs=terms[0].attrs)
    return [*whole, product]


# ---- fused updates -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Fusing:
    """Nodes to fuse with an update: the producer of its gradient and, if there is one, that of its squares."""

    gradient: Node
    squares: Node | None = None

    @property
    def nodes(self) -> tuple[Node, ...]:
        return (self.gradient,) if self.squares is None else (self.gradient, self.squares)


def fuse_updates(train: TrainGraph) -> TrainGraph:
    """Return the step with fused nodes, which keep the names of the updates; itself if there are none.

    Two nodes stay separate if another node reads the gradient or adds to it (a parameter with several uses). They also
    do if one of them has a kernel of the user, or if storing the gradient takes less memory.
    """
    graph = train.graph
    found = _found(graph)
    if not found:
        return train
    gone = {node.name for fusing in found.values() for node in fusing.nodes}
    zero = Value(_unused(graph, "no_squares"), (1,)) if any(fusing.squares for fusing in found.values()) else None
    nodes: list[Node] = []
    for node in graph.nodes:
        if node.name in found:
            nodes += _fused(found[node.name], node, zero)
        elif node.name not in gone:
            nodes.append(node)
    constants = {**graph.constants, **({} if zero is None else {zero.name: np.zeros(zero.shape, np.float32)})}
    return replace(train, graph=replace(graph, nodes=tuple(nodes), constants=constants))


def _unused(graph: Graph, name: str) -> str:
    """Return the name, or a similar unused one."""
    taken = {value.name for node in graph.nodes for value in (*node.inputs, *node.outputs)}
    while name in taken:
        name += ".2"
    return name


def _found(graph: Graph) -> Mapping[str, _Fusing]:
    """Return the nodes to fuse with each update, by the update's name."""
    makers = graph.producers()
    readers: dict[str, list[Node]] = {}
    for node in graph.nodes:
        for value in node.inputs:
            readers.setdefault(value.name, []).append(node)
    wanted = {graph.guard, *(value.name for value in graph.outputs)}
    order = Dependencies(graph)
    found: dict[str, _Fusing] = {}
    for node in graph.nodes:
        g = operands(node).get("g") if alias_of(node) else None
        gradient = None if g is None else makers.get(g.name)
        if g is None or gradient is None or g.name in wanted:
            continue
        others = [reader for reader in readers[g.name] if reader is not node]
        squares = others[0] if [reader.op for reader in others] == [ROW_SQUARES.name] else None
        alone = not others or squares is not None
        if not alone or (gradient.op, node.op, squares is not None) not in PAIRS:
            continue
        plain = gradient.external is None and node.external is None and gradient.phase == node.phase
        if plain and _waiting_bytes(graph, gradient, node, readers, order) <= g.size_bytes:
            found[node.name] = _Fusing(gradient, squares)
    return found


def _waiting_bytes(
    graph: Graph, gradient: Node, update: Node, readers: Mapping[str, Sequence[Node]], order: Dependencies
) -> int:
    """Count the bytes of the gradient's operands that must wait for other readers of the overwritten parameter.

    Readers that come before the gradient in every order do not count, nor do operands that these readers need
    themselves.
    """
    overwritten = {update.inputs[source].name for _, source in alias_of(update)}
    others = [node for name in overwritten for node in readers[name] if node is not update]
    later = [node for node in others if not order.after(gradient, node)]
    if not later:
        return 0
    held = {value.name for node in later for value in node.inputs}
    waiting = (value for value in _distinct(gradient.inputs) if value.name not in graph.constants)
    return sum(value.size_bytes for value in waiting if value.name not in held)


def _distinct(values: Sequence[Value]) -> list[Value]:
    return list({value.name: value for value in values}.values())


def _fused(fusing: _Fusing, update: Node, zero: Value | None) -> list[Node]:
    """Return the fused node, after the node that makes the zeros to which it adds squares."""
    gradient, squares = fusing.gradient, fusing.squares
    attrs = FusedUpdateAttrs(gradient.op, update.op, gradient.attrs, update.attrs, squares is not None)
    before, after = (*update.inputs[: attrs.place], *gradient.inputs), update.inputs[attrs.place + 1 :]
    node = replace(update, op=FUSED_UPDATE.name, inputs=(*before, *after), attrs=attrs)
    if squares is None or zero is None:
        return [node]
    (rows,) = squares.outputs
    empty = replace(rows, name=f"{rows.name}.zero")
    start = replace(
        squares, name=empty.name, op="Expand", inputs=(zero,), outputs=(empty,), attrs=ExpandAttrs(rows.shape)
    )
    return [start, replace(node, inputs=(*before, empty, *after), outputs=(*update.outputs, rows))]
