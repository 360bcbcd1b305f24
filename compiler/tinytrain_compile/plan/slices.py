"""Where a step may pause (docs/adr/0037-slices.md): streams between their calls, and long nodes between their rows.

Nothing moves: a node is cut only where its kernel of rows needs no more scratch than the plan has for it, and where
what its result covers of its operand is read by then.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tinytrain_compile.ir import Node
from tinytrain_compile.ir.stages import MemoryPlan
from tinytrain_compile.ops.base import op_def, row_form, scratch_bytes
from tinytrain_compile.ops.stream import StreamAttrs, pieces_of
from tinytrain_compile.plan.price import CoreModel, node_ps
from tinytrain_compile.plan.stream_build import build_stream

PARTS_OF_A_STEP = 50
"""A part of a step is cut where it is longer than the step divided by this."""

_END, _DEPTHWISE_END = 9, 29
"""What ending a sum costs (its scale, rounding, the store) besides its terms, in multiply-accumulates. Fitted to the
instructions of MCUNet's step on a Cortex-M7: every part above 1 % of it takes 0.7 to 1.5 times what this says."""
_IN_LONG_SUMS = 2
"""Multiply-accumulates in the time of one by the target's figure, which is a mean over layers, ends included."""

_PS_PER_US = 1_000_000


@dataclass(frozen=True)
class SlicedPlan:
    """plan: with streams that may pause. cycles: of every node, those of its pieces, in order; each at least 1."""

    plan: MemoryPlan
    cycles: dict[str, tuple[int, ...]]


def sliced(plan: MemoryPlan, core: CoreModel, parts: int = PARTS_OF_A_STEP) -> SlicedPlan:
    """The plan with long nodes of the step in pieces: same buffers, same places, same bytes of every result.

    parts: pieces are to be no longer than the step divided by this.
    """
    limit = sum(_ps(node, core) for node in plan.order) // parts
    order = tuple(_cut(plan, node, core, limit) for node in plan.order)
    cycles = {node.name: tuple(_cycles(node, core)) for node in order}
    return SlicedPlan(replace(plan, order=order), cycles)


def _cut(plan: MemoryPlan, node: Node, core: CoreModel, limit: int) -> Node:
    """The node as a stream that pauses often enough, if it is too long and can be one."""
    if node.phase != "step" or _ps(node, core) <= limit:
        return node
    stream = node if isinstance(node.attrs, StreamAttrs) else _by_rows(plan, node)
    if stream is None:
        return node
    attrs = stream.attrs
    assert isinstance(attrs, StreamAttrs)
    return replace(stream, attrs=replace(attrs, pauses=_pauses(attrs, core, limit)))


def _by_rows(plan: MemoryPlan, node: Node) -> Node | None:
    """A node as a stream of itself alone, where the plan's places allow that."""
    form = row_form(node)
    if form is None or form.sum is not None:
        return None
    inputs = tuple(dict.fromkeys(node.inputs))
    attrs = build_stream([node], inputs, node.outputs)
    if attrs is None or attrs.scratch_bytes > scratch_bytes(node):
        return None
    stream = replace(node, op="Stream", inputs=inputs, attrs=attrs)
    return stream if _covers_only_what_was_read(plan, stream, attrs) else None


def _covers_only_what_was_read(plan: MemoryPlan, stream: Node, attrs: StreamAttrs) -> bool:
    """Whether each result, where the plan has it, lies beside every operand, or as far below it as rows allow."""
    distances = {(cover.output, cover.source): cover.distance for cover in attrs.covers}
    aliases = dict(attrs.overwrites)
    for out, result in enumerate(stream.outputs):
        low = plan.offsets.get(result.name)
        for source, value in enumerate(stream.inputs):
            at = plan.offsets.get(value.name)
            if low is None or at is None or aliases.get(out) == source:
                continue
            beside = low + result.size_bytes <= at or at + value.size_bytes <= low
            if not beside and at - low < distances.get((out, source), result.size_bytes):
                return False
    return True


def _pauses(attrs: StreamAttrs, core: CoreModel, limit: int) -> tuple[int, ...]:
    """Numbers of the calls before which it may pause: pieces are equally long, and as few as keep to the limit."""
    costs = call_ps(attrs, core)
    whole, spent = sum(costs), 0
    pieces = -(-whole // max(1, limit))
    found: list[int] = []
    for call, cost in enumerate(costs):
        if call and (spent + cost // 2) * pieces > whole * (len(found) + 1):
            found.append(call)
        spent += cost
    return tuple(found)


def call_ps(attrs: StreamAttrs, core: CoreModel) -> list[int]:
    """Modelled time of every call: its rows' share of its node."""
    heights = [form.height(node) if (form := row_form(node)) else 1 for node in attrs.nodes]
    times = [_ps(node, core) for node in attrs.nodes]
    return [times[call.node] * call.rows // heights[call.node] for call in attrs.calls]


def _cycles(node: Node, core: CoreModel) -> Iterator[int]:
    """Of the pieces of a node, of which most have one."""
    attrs = node.attrs
    times = [_ps(node, core)]
    if isinstance(attrs, StreamAttrs):
        costs = call_ps(attrs, core)
        times = [sum(costs[first:end]) for first, end in pieces_of(attrs)]
    yield from (max(1, time * core.clock_mhz // _PS_PER_US) for time in times)


def _ps(node: Node, core: CoreModel) -> int:
    """Modelled time of a node, in picoseconds: closer than `node_ps` for a layer alone, where sums are short."""
    if isinstance(node.attrs, StreamAttrs):
        return sum(_ps(inner, core) for inner in node.attrs.nodes)
    time, macs = node_ps(node, core), op_def(node.op).macs(node)
    if macs <= node.outputs[0].elements:  # no sums: a weight gradient of one sample is products, and an update
        return time
    groups = getattr(getattr(node.attrs, "conv", node.attrs), "groups", 1)
    ends = node.outputs[0].elements * (_DEPTHWISE_END if groups > 1 else _END)
    return time * (macs + ends) // (_IN_LONG_SUMS * macs)
