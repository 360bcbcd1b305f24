"""What plan.json says for --lock alone: how the graph of a plan came from that of the model and its update."""

from __future__ import annotations

from typing import Any

from tinytrain_compile.ir.stages import MemoryPlan
from tinytrain_compile.ir.summary import Summary
from tinytrain_compile.ops.int8.prepared import is_prepared
from tinytrain_compile.ops.stream import StreamAttrs


def for_a_lock(summary: Summary) -> dict[str, Any]:
    """Streams, prepared weights, low-rank copies, second runs, page moves and memories, where there are any."""
    return {
        **_streams_of(summary.plan),
        **_prepared_of(summary),
        **_copies_of(summary),
        **_second_runs(summary),
        **_page_moves(summary),
    }


def _prepared_of(summary: Summary) -> dict[str, Any]:
    """Nodes whose weights lie in flash as they are multiplied: --lock needs them; nothing if there are none."""
    graph = summary.train.before_remat or summary.train.graph
    found = [node.name for node in graph.nodes if is_prepared(node)]
    return {"prepared": found} if found else {}


def _copies_of(summary: Summary) -> dict[str, Any]:
    """Low-rank copies, which --lock needs where samples have chosen them; nothing if there are none."""
    kept = summary.train.low_rank
    return {"copies": [{"layer": k.layer, "kind": k.kind, "ranks": list(k.ranks)} for k in kept]} if kept else {}


def _streams_of(plan: MemoryPlan) -> dict[str, Any]:
    """What --lock needs to find the graph with its streams again; nothing if there are none."""
    found = [
        {"name": node.name, "nodes": [inner.name for inner in node.attrs.nodes]}
        for node in plan.order
        if isinstance(node.attrs, StreamAttrs)
    ]
    return {"streams": found} if found else {}


def _second_runs(summary: Summary) -> dict[str, Any]:
    """What --lock needs to find the graph with its second runs again; nothing if there are none."""
    remat = summary.plan.remat
    if remat is None:
        return {}
    runs = [{"name": run.name, "of": run.of} for run in remat.runs]
    return {"graph": list(remat.nodes), "second_runs": runs}


def _page_moves(summary: Summary) -> dict[str, Any]:
    """What --lock needs of a plan in several memories; nothing in one."""
    plan = summary.plan
    moves = [{"name": m.name, "op": m.op, "of": m.value, "memory": m.memory} for m in plan.paging]
    return {"memories": [memory.name for memory in plan.further], "page_moves": moves} if plan.further else {}
