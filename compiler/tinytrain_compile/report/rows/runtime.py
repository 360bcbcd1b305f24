"""The loop around the step: its parts (--runtime), what RAM they take; where the step is cut (--features, --slices)."""

from __future__ import annotations

from typing import Any

from tinytrain_compile.ir.runtime_parts import FeatureCut
from tinytrain_compile.ir.summary import Summary
from tinytrain_compile.report.analysis import analyse, work_of
from tinytrain_compile.report.layout import bytes_text, grouped, macs_text, plural, share


def runtime_pieces(summary: Summary) -> list[str]:
    """Return a piece for every part."""
    return [_piece(name, summary) for name in summary.runtime.names]


def _piece(name: str, summary: Summary) -> str:
    room = summary.replay
    if name != "replay" or room is None:
        return name
    each = f"{bytes_text(room.record_bytes)} a sample"
    if not room.samples:
        return f"{name} ({each})"
    return f"{name} ({bytes_text(room.size_bytes)} beside the arena: {plural(room.samples, 'sample')}, {each})"


def runtime_json(summary: Summary) -> dict[str, Any]:
    """Return the parts; of a reservoir the bytes of a record, and samples and bytes of reserved RAM (0: caller's)."""
    room = summary.replay
    if room is None:
        return {"parts": list(summary.runtime.names), "replay": None}
    reservoir = {"record_bytes": room.record_bytes, "samples": room.samples, "bytes": room.size_bytes}
    return {"parts": list(summary.runtime.names), "replay": reservoir}


def features_pieces(summary: Summary) -> list[str]:
    """Tell where the step is cut, and what a step on features takes of a whole one."""
    cut, counts = summary.features, summary.verify.counts
    if cut is None:
        return ["none: the first layer is trained, features would be the input"]
    size = f"{bytes_text(cut.size_bytes)} a sample"
    if counts is None or counts.train_features is None:
        whole = sum(work_of(summary.train))
        rest = whole - _frozen_macs(summary, cut)
        return [size, f"a step on them: {macs_text(rest)} of {macs_text(whole)} MAC ({share(rest, whole)})"]
    whole, rest = (sum(found.values()) for found in (counts.step, counts.train_features))
    return [size, f"a step on them: {grouped(rest)} of {grouped(whole)} instructions ({share(rest, whole)})"]


def _frozen_macs(summary: Summary, cut: FeatureCut) -> int:
    """Sum the multiply-accumulates of the nodes that a step on features leaves out."""
    analysis, names = analyse(summary.train, summary.plan), set(cut.frozen)
    pairs = zip(summary.plan.order, analysis.macs, strict=True)
    return sum(macs for node, macs in pairs if node.name in names)


def features_json(summary: Summary) -> dict[str, Any]:
    """Return what the features are and what a step on them saves.

    bytes: of a sample's features, 0 if training begins at the input; values: their names; frozen_macs: what a step on
    them leaves out; instructions: of both calls, if they were counted.
    """
    cut, counts = summary.features, summary.verify.counts
    taken = None if counts is None or counts.features is None else sum(counts.features.values())
    given = None if counts is None or counts.train_features is None else sum(counts.train_features.values())
    return {
        "bytes": 0 if cut is None else cut.size_bytes,
        "values": [] if cut is None else list(cut.values),
        "frozen_macs": 0 if cut is None else _frozen_macs(summary, cut),
        "features_instructions": taken,
        "train_features_instructions": given,
    }


def slices_pieces(summary: Summary) -> list[str]:
    """Count the parts of a step between which it may pause, and name the longest, which no budget makes shorter."""
    found = slices_json(summary)
    longest, whole = found["longest"], found["step_cycles"]
    cycles = f"{grouped(longest['cycles'])} of {grouped(whole)} cycles by the model"
    return [plural(found["parts"], "part"), f"longest {share(longest['cycles'], whole)}: {cycles}, {longest['layer']}"]


def slices_json(summary: Summary) -> dict[str, Any]:
    """Return the number of parts, the cycles of all by the target's figures, and the longest one.

    longest: its node, the layer of the file that this belongs to, its cycles, and in how many parts that node is.
    """
    longest = max(summary.parts, key=lambda part: part.cycles)
    node = next(node for node in summary.plan.order if node.name == longest.node)
    return {
        "parts": len(summary.parts),
        "step_cycles": sum(part.cycles for part in summary.parts),
        "longest": {
            "node": node.name,
            "layer": node.origin or node.name,
            "cycles": longest.cycles,
            "parts_of_node": sum(part.node == node.name for part in summary.parts),
        },
    }
