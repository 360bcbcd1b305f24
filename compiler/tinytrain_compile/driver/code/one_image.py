"""Several plans of one training in one image: their names and exponents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tinytrain_compile.driver.candidates.planner import Candidate
from tinytrain_compile.driver.trial import like_one
from tinytrain_compile.ir.buffers import Buffer
from tinytrain_compile.ir.stages import MemoryPlan, TrainGraph
from tinytrain_compile.ir.types import Node


def in_one_image(largest: Candidate, smaller: Sequence[Candidate]) -> tuple[tuple[TrainGraph, MemoryPlan], ...]:
    """The smaller ones with the exponents of the largest, and names that no other plan has for another node."""
    known = {node.name: node for node in largest.plan.all_nodes}
    found = list[tuple[TrainGraph, MemoryPlan]]()
    for number, one in enumerate(smaller):
        names = {n.name: f"{n.name}@plan{number}" for n in one.plan.all_nodes if known.get(n.name, n) != n}
        plan = _renamed(one.plan, names)
        if (alone := plan.inference) is not None:
            plan = replace(plan, inference=replace(alone, plan=_renamed(alone.plan, names)))
        known.update((node.name, node) for node in plan.all_nodes)
        found.append((like_one(one.train, largest.train), plan))
    return tuple(found)


def _renamed(plan: MemoryPlan, names: dict[str, str]) -> MemoryPlan:
    def named(node: Node) -> Node:
        return replace(node, name=names.get(node.name, node.name))

    def placed(buffer: Buffer) -> Buffer:
        return replace(buffer, name=names.get(buffer.name, buffer.name)) if buffer.kind == "scratch" else buffer

    scratch = {names.get(name, name): offset for name, offset in plan.scratch_offsets.items()}
    order, buffers = tuple(map(named, plan.order)), tuple(map(placed, plan.buffers))
    return replace(plan, order=order, buffers=buffers, scratch_offsets=scratch)
