"""Which waists of the forward pass are kept, where all else is computed again beside its errors, row by row or not.

All narrow waists are kept at first. Then those are left out without which the backward pass needs less: a stage's
errors as a stream where that needs less than its nodes one by one, by a quick plan of the graph without streams. At
last the forward pass, and stages that are no stream, are cut into streams as those of a graph without second runs are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from tinytrain_compile.ir import Graph, Node, Value
from tinytrain_compile.ir.buffers import load_of
from tinytrain_compile.ir.check import check_graph
from tinytrain_compile.ir.stages import Rematerialisation
from tinytrain_compile.ops import infer
from tinytrain_compile.ops.stream import StreamAttrs
from tinytrain_compile.plan.model import PERSISTENT_KINDS
from tinytrain_compile.plan.options import PlanOptions
from tinytrain_compile.plan.planned import REMEMBERED, Planned, plan_graph, streaming
from tinytrain_compile.plan.stream_recompute import Recomputed, Waists
from tinytrain_compile.plan.stream_rewrite import stream_node, with_streams, with_sums_beside, without_streams
from tinytrain_compile.plan.stream_search import needed_streams, proposed, runs_of
from tinytrain_compile.plan.validate_remat import validate_remat
from tinytrain_compile.plan.validate_streams import validate_streams

TRIES = 24
"""Sets of waists that are looked at, at most, for the smallest load; and then for the fewest second runs."""


@dataclass(frozen=True)
class _Kept:
    """A set of waists, what that makes of the graph, and the largest load of its backward pass."""

    waists: tuple[Value, ...]
    again: Recomputed
    streams: tuple[Node, ...]
    load: int


@lru_cache(maxsize=REMEMBERED)
def streamed_again(graph: Graph, options: PlanOptions, smallest: bool = True) -> Planned | None:
    """The smallest arena found where streams and second runs go together, with the fewest second runs found for it.

    smallest: else the fewest that fit options.capacity_bytes. None if nothing fits, or nothing can be kept apart. The
    loss is the first of options.keep. Of the same graph it is the same: the last few are remembered.
    """
    waists = Waists(graph, options.keep[0])
    quick = replace(options, effort="quick", capacity_bytes=None)
    best = _least(waists, quick)
    if best is None:
        return None
    least = _planned(graph, best, options, quick) if smallest else None
    room = (options.capacity_bytes or 0) if least is None else least.plan.arena_bytes
    counts = range(1, len(best.waists) + (least is None))  # all up to the last waist runs again
    for count in counts[:: -(-len(counts) // TRIES) or 1]:
        kept = _kept(waists, best.waists[:count], quick)
        found = _planned(graph, kept, options, quick) if kept.load <= room else None
        if found is not None and found.plan.arena_bytes <= room:
            return found
    return least


def _least(waists: Waists, quick: PlanOptions) -> _Kept | None:
    """The waists with the smallest load found; None if there are none."""
    narrow = waists.narrow()
    if not narrow:
        return None
    best, tries = _kept(waists, narrow, quick), 1
    for value in sorted(narrow, key=lambda value: -value.size_bytes):
        fewer = [other for other in best.waists if other != value]
        if not fewer or tries == TRIES:
            break
        found, tries = _kept(waists, fewer, quick), tries + 1
        best = found if found.load < best.load else best
    return best


def _kept(waists: Waists, kept: Sequence[Value], quick: PlanOptions) -> _Kept:
    again = waists.keep([value.name for value in kept])
    plan = plan_graph(again.graph, quick).plan
    steps = {node.name: step for step, node in enumerate(plan.order)}
    load, beside = load_of(plan.buffers, len(plan.order)), with_sums_beside(again.graph)
    below = sum(buffer.size_bytes for buffer in plan.buffers if buffer.kind in PERSISTENT_KINDS)
    most = 0
    streams: list[Node] = []
    for group in (group for group in again.groups if group):
        alone = max(load[steps[node.name]] for node in group)
        stream = stream_node(beside, group, f"stream_{group[0].name}_{len(group)}", quick.keep)
        by_rows = alone if stream is None else below + _load(beside, group, stream, quick)
        if stream is not None and by_rows < alone:
            streams.append(stream)
        most = max(most, min(alone, by_rows))
    return _Kept(tuple(kept), again, tuple(streams), most)


def _load(graph: Graph, group: Sequence[Node], stream: Node, options: PlanOptions) -> int:
    """What is there while a stream runs, nodes in the graph's order: what came before it and is still read, what it
    makes, and its scratch."""
    attrs, fixed = stream.attrs, {*graph.constants, *(value.name for value in graph.state)}
    assert isinstance(attrs, StreamAttrs)
    start = graph.nodes.index(group[0])
    before = {value for node in graph.nodes[:start] for value in node.outputs} | set(graph.inputs)
    read = {value for node in graph.nodes[start:] for value in node.inputs}
    overwriting = dict(attrs.overwrites)
    made = [value for index, value in enumerate(stream.outputs) if index not in overwriting]
    beside = [value for value in before & read if value.name not in fixed]
    return sum(options.reserved(value.size_bytes) for value in (*beside, *made)) + attrs.scratch_bytes


def _planned(graph: Graph, kept: _Kept, options: PlanOptions, quick: PlanOptions) -> Planned:
    """The plan of a choice, with streams of all that is none yet, judged."""
    again = kept.again
    check_graph(again.graph, infer)
    some = with_streams(again.graph, kept.streams)
    beside = with_sums_beside(some)
    more = proposed(beside, plan_graph(some, quick).plan, options, list(runs_of(beside)))
    streamed, _ = needed_streams(again.graph, [*kept.streams, *more], quick)
    validate_streams(again.graph, streamed)
    without = plan_graph(graph, quick).plan
    planned = plan_graph(streamed, replace(options, capacity_bytes=None))
    whole = {node.name: node for node in again.graph.nodes}  # without views
    order = tuple(whole[node.name] for node in without_streams(replace(streamed, nodes=planned.plan.order)).nodes)
    validate_remat(graph, again.graph, replace(planned.plan, order=order))
    names = tuple(node.name for node in again.graph.nodes)
    remat = Rematerialisation(again.runs, without.arena_bytes, planned.plan.arena_bytes, cheapest=False, nodes=names)
    rows = any(node.op == "Stream" for node in streamed.nodes)
    streams = streaming(without, planned.plan.arena_bytes) if rows else None
    return replace(planned, plan=replace(planned.plan, remat=remat, streams=streams))
