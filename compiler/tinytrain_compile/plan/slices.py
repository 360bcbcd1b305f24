"""Pauses of a step (docs/adr/0037-slices.md): between nodes, in streams between their calls, and in long nodes between
turns of their kernels.

Nothing moves, and every piece reads and writes what the whole would at that time, so the plan does not matter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from tinytrain_compile.ir.stages import MemoryPlan, StepPieces
from tinytrain_compile.ir.types import Node
from tinytrain_compile.ops.base import op_def, row_form
from tinytrain_compile.ops.stream import StreamAttrs, pieces_of
from tinytrain_compile.plan.options import CoreModel
from tinytrain_compile.plan.price import node_ps

PARTS_OF_A_STEP = 50
"""Divisor of a step's time: longer parts are cut."""

_END, _DEPTHWISE_END = 9, 29
"""Cost of ending a sum (its scale, rounding, the store) besides its terms, in multiply-accumulates; the second is for
depthwise layers. Fitted to the instructions of MCUNet's step on a Cortex-M7: every part above 1 % of it takes 0.7 to
1.5 times this model."""
_IN_LONG_SUMS = 2
"""Multiply-accumulates in the time of one by the target's figure, which is a mean over layers, ends included."""

_PS_PER_US = 1_000_000
"""Picoseconds, in which targets count, per microsecond (cycles = time * MHz / this)."""


@dataclass(frozen=True)
class SlicedPlan:
    """plan: with streams that may pause. long: other long nodes -> wanted number of pieces."""

    plan: MemoryPlan
    long: Mapping[str, int]


def sliced(plan: MemoryPlan, core: CoreModel, parts: int = PARTS_OF_A_STEP) -> SlicedPlan:
    """Return the plan with long nodes of the step in pieces: same buffers, same places, same bytes of every result.

    parts: divisor of the step's time that gives the longest piece.
    """
    limit = max(1, sum(_ps(node, core) for node in plan.order) // parts)
    long = [node for node in plan.order if node.phase == "step" and _ps(node, core) > limit]
    streams = {node.name: _paused(node, core, limit) for node in long if isinstance(node.attrs, StreamAttrs)}
    order = tuple(streams.get(node.name, node) for node in plan.order)
    others = {node.name: -(-_ps(node, core) // limit) for node in long if node.name not in streams}
    return SlicedPlan(replace(plan, order=order), others)


def step_pieces(sliced_plan: SlicedPlan, turns: Mapping[str, int], core: CoreModel) -> StepPieces:
    """Return the pieces of every node. turns: of the kernels of long nodes that can be cut."""
    cut = {
        name: tuple(turns[name] * piece // count for piece in range(count + 1))
        for name, wanted in sliced_plan.long.items()
        if (count := min(wanted, turns.get(name, 0)))
    }
    cycles = {node.name: tuple(_cycles(node, core, cut.get(node.name))) for node in sliced_plan.plan.order}
    return StepPieces(cycles, cut)


def _paused(stream: Node, core: CoreModel, limit: int) -> Node:
    attrs = stream.attrs
    assert isinstance(attrs, StreamAttrs)
    return replace(stream, attrs=replace(attrs, pauses=_pauses(attrs, core, limit)))


def _pauses(attrs: StreamAttrs, core: CoreModel, limit: int) -> tuple[int, ...]:
    """Return the numbers of calls before which a stream may pause: the fewest pieces of equal length within the
    limit."""
    costs = call_ps(attrs, core)
    whole, spent = sum(costs), 0
    pieces = -(-whole // limit)
    found: list[int] = []
    for call, cost in enumerate(costs):
        if call and (spent + cost // 2) * pieces > whole * (len(found) + 1):
            found.append(call)
        spent += cost
    return tuple(found)


def call_ps(attrs: StreamAttrs, core: CoreModel) -> list[int]:
    """Return the modelled time of every call, in picoseconds: its rows' share of its node."""
    heights = [form.height(node) if (form := row_form(node)) else 1 for node in attrs.nodes]
    times = [_ps(node, core) for node in attrs.nodes]
    return [times[call.node] * call.rows // heights[call.node] for call in attrs.calls]


def _cycles(node: Node, core: CoreModel, turns: tuple[int, ...] | None) -> Iterator[int]:
    """Yield the cycles of a node's pieces; most nodes have one. turns: bounds of its pieces, see StepPieces."""
    attrs, whole = node.attrs, _ps(node, core)
    times = [whole]
    if isinstance(attrs, StreamAttrs):
        costs = call_ps(attrs, core)
        times = [sum(costs[first:end]) for first, end in pieces_of(attrs)]
    elif turns is not None:
        times = [whole * (end - begin) // turns[-1] for begin, end in pairwise(turns)]
    yield from (max(1, time * core.clock_mhz // _PS_PER_US) for time in times)


def _ps(node: Node, core: CoreModel) -> int:
    """Return the modelled time of a node, in picoseconds: closer than `node_ps` for a single layer with short sums."""
    if isinstance(node.attrs, StreamAttrs):
        return sum(_ps(inner, core) for inner in node.attrs.nodes)
    time, macs = node_ps(node, core), op_def(node.op).macs(node)
    if macs <= node.outputs[0].elements:  # no sums: a weight gradient of one sample is products, and an update
        return time
    groups = getattr(getattr(node.attrs, "conv", node.attrs), "groups", 1)
    ends = node.outputs[0].elements * (_DEPTHWISE_END if groups > 1 else _END)
    return time * (macs + ends) // (_IN_LONG_SUMS * macs)
