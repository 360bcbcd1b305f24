"""Measures of a plan to need less RAM: rows of maps, second runs, page moves; in words and as data."""

from __future__ import annotations

from typing import Any

from tinytrain_compile.ir.summary import Summary
from tinytrain_compile.ops.input_lines import takes_lines
from tinytrain_compile.ops.stream import StreamAttrs
from tinytrain_compile.report.analysis import work_of
from tinytrain_compile.report.layout import bytes_text, macs_text, plural, printable, share


def streams_pieces(summary: Summary) -> list[str]:
    """Tell what is computed row by row, and what that saves."""
    plan = summary.plan
    assert plan.streams is not None
    names = [printable(node.origin) for node in plan.order if isinstance(node.attrs, StreamAttrs)]
    return [plural(len(names), "stream"), f"saves {bytes_text(plan.streams.saved_bytes)}", *names]


def remat_pieces(summary: Summary) -> list[str]:
    """Tell what is computed twice: how many tensors, at which price, for how many bytes."""
    remat = summary.plan.remat
    assert remat is not None
    step = sum(work_of(summary.train)) - remat.extra_macs
    price = f"+{macs_text(remat.extra_macs)} MAC a step ({share(remat.extra_macs, step)})"
    saved = f"saves {bytes_text(remat.arena_without_bytes - summary.plan.arena_bytes)}"
    return [plural(len(remat.runs), "tensor"), price, saved]


def paging_pieces(summary: Summary) -> list[str]:
    """Count the page moves of a step, their bytes, and their price by the target's figures."""
    plan = summary.plan
    count, size = len(plan.paging), sum(move.size_bytes for move in plan.paging)
    time, energy = sum(move.ps for move in plan.paging), sum(move.pj for move in plan.paging)
    price = f"+{time / 1e9:.3g} ms, +{energy / 1e9:.3g} mJ a step (model)"
    return [f"{plural(count, 'move')}, {bytes_text(size)} a step", price]


def streams_json(summary: Summary) -> dict[str, Any]:
    """Return what is computed row by row. ring_rows: of every map that never lies there whole.

    input_lines: whether the image is one of these, since its rows come from the caller.
    """
    plan = summary.plan
    assert plan.streams is not None
    return {
        "streams": [
            {
                "name": node.name,
                "origin": node.origin,
                "nodes": [inner.name for inner in node.attrs.nodes],
                "ring_rows": {ring.name: ring.rows for ring in node.attrs.rings},
                "scratch_bytes": node.attrs.scratch_bytes,
            }
            for node in plan.order
            if isinstance(node.attrs, StreamAttrs)
        ],
        "input_lines": any(map(takes_lines, plan.order)),
        "arena_without_bytes": plan.streams.arena_without_bytes,
        "saved_bytes": plan.streams.saved_bytes,
    }


def remat_json(summary: Summary) -> dict[str, Any]:
    """Return what is computed twice."""
    remat = summary.plan.remat
    assert remat is not None
    return {
        "tensors": [
            {"name": run.of, "again": run.name, "origin": run.origin, "size_bytes": run.size_bytes, "macs": run.macs}
            for run in remat.runs
        ],
        "extra_macs": remat.extra_macs,
        "cheapest_proven": remat.cheapest,
        "arena_without_bytes": remat.arena_without_bytes,
        "saved_bytes": remat.arena_without_bytes - summary.plan.arena_bytes,
    }


def paging_json(summary: Summary) -> dict[str, Any]:
    """Return the copies between memories in one step; time and energy are by the target's figures."""
    plan = summary.plan
    return {
        "moves": [
            {"name": m.name, "of": m.value, "op": m.op, "memory": m.memory, "size_bytes": m.size_bytes}
            for m in plan.paging
        ],
        "moved_bytes": sum(m.size_bytes for m in plan.paging),
        "extra_us": sum(m.ps for m in plan.paging) / 1e6,
        "extra_uj": sum(m.pj for m in plan.paging) / 1e6,
    }
