"""What a candidate takes of the target's RAM, the buffers of --runtime included."""

from __future__ import annotations

from dataclasses import replace

from tinytrain_compile.driver.candidates.planner import Candidate, Planner
from tinytrain_compile.emit import feature_cut, replay_room, runtime_buffers
from tinytrain_compile.ir.ram import PartRam, RuntimeBuffer, most_records, part_ram, taken_by
from tinytrain_compile.ir.runtime_parts import RuntimeParts
from tinytrain_compile.ir.stages import MemoryPlan, TrainGraph
from tinytrain_compile.options.compile_options import CompileOptions
from tinytrain_compile.target import Target


def buffers_of(candidate: Candidate, options: CompileOptions) -> tuple[RuntimeBuffer, ...]:
    """The buffers of --runtime for a candidate."""
    return runtime_buffers(candidate.train, options.runtime, feature_bytes_of(candidate, options))


def feature_bytes_of(candidate: Candidate, options: CompileOptions) -> int:
    """Bytes of a sample's features, 0 without --features on."""
    cut = feature_cut(candidate.train, candidate.plan) if options.features == "on" else None
    return 0 if cut is None else cut.size_bytes


def ram_of(planner: Planner, candidate: Candidate) -> PartRam:
    """What a candidate and its buffers take of the target's RAM."""
    return part_ram(planner.target.board, candidate.plan, buffers_of(candidate, planner.options))


def most_samples(
    target: Target, plan: MemoryPlan, train: TrainGraph, parts: RuntimeParts, feature_bytes: int = 0
) -> int | None:
    """The largest N for which replay=N has room beside a plan, the other parts, the stack and the reserve.

    0: none fits. None: the target is no board, and has no RAM size.
    """
    if target.board is None:
        return None
    one = replay_room(train, replace(parts, names=("replay",), replay_samples=1), feature_bytes)
    assert one is not None, "a reservoir has records"
    others = [each for each in runtime_buffers(train, parts, feature_bytes) if each.part != "replay"]
    return most_records(target.board, taken_by(target.board, plan), others, one.record_bytes)
