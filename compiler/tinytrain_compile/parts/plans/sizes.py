"""The plans of `--plans`: one for an arena of each size, their names in one image, and their rows in the report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.buffers import Buffer
from tinytrain_compile.ir.stages import MemoryPlan
from tinytrain_compile.ir.types import Node
from tinytrain_compile.ops.stream import StreamAttrs
from tinytrain_compile.parts.part import AnyPlanned, InImage

FLAG = "--plans"
MOST_NAMES = 3
"""Most streams of a plan that a line of the terminal names."""


@dataclass(frozen=True)
class AllPlans:
    """All plans of an image, by size, each with its number of samples per call."""

    plans: tuple[tuple[MemoryPlan, int], ...]


def smaller_plans(
    sizes: Sequence[int], largest: AnyPlanned, make: Callable[[int], AnyPlanned]
) -> tuple[AnyPlanned, ...]:
    """Plan all but the largest, by size. E0401 for one that does not fit, E0113 for two that are the same."""
    found = list[AnyPlanned]()
    for size in sizes[:-1]:
        found.append(make(size))
        if found[-1].plan.arena_bytes > size:
            what = f"no plan was found that needs no more than {size} B"
            raise CompileError("E0401", f"{FLAG} {size}", what, f"--dry-run --arena {size} says what would fit")
    for size, one, next_one in zip(sizes, found, [*found[1:], largest], strict=False):
        if one.plan.arena_bytes >= next_one.plan.arena_bytes:
            what = f"what the next one would be fits into {size} B: a larger plan is no other"
            raise CompileError("E0113", FLAG, what, "leave the larger one out")
    return tuple(found)


# ---- names ----------------------------------------------------------------------------------------------------------


def told_apart(largest: MemoryPlan, smaller: Sequence[InImage]) -> tuple[InImage, ...]:
    """Return the smaller plans with names that no other plan uses for a different node."""
    known = {node.name: node for node in largest.all_nodes}
    found = list[InImage]()
    for number, (train, one) in enumerate(smaller):
        names = {n.name: f"{n.name}@plan{number}" for n in one.all_nodes if known.get(n.name, n) != n}
        plan = _renamed(one, names)
        if (alone := plan.inference) is not None:
            plan = replace(plan, inference=replace(alone, plan=_renamed(alone.plan, names)))
        known.update((node.name, node) for node in plan.all_nodes)
        found.append((train, plan))
    return tuple(found)


def _renamed(plan: MemoryPlan, names: dict[str, str]) -> MemoryPlan:
    def named(node: Node) -> Node:
        return replace(node, name=names.get(node.name, node.name))

    def placed(buffer: Buffer) -> Buffer:
        return replace(buffer, name=names.get(buffer.name, buffer.name)) if buffer.kind == "scratch" else buffer

    scratch = {names.get(name, name): offset for name, offset in plan.scratch_offsets.items()}
    order, buffers = tuple(map(named, plan.order)), tuple(map(placed, plan.buffers))
    return replace(plan, order=order, buffers=buffers, scratch_offsets=scratch)


# ---- the report -----------------------------------------------------------------------------------------------------


def plans_note(known: AllPlans) -> str:
    """Return a note on the plans for the report, whose figures are the largest one's."""
    each = ", ".join(f"{plan.arena_bytes:,} B{_price(plan, samples)}" for plan, samples in known.plans)
    return f"{len(known.plans)} plans in one image: {each}; figures are those of the largest"


def _price(plan: MemoryPlan, samples: int) -> str:
    """Return samples per call, layers computed row by row and second runs of a plan, in brackets; "" if there are none.

    report.json has all names.
    """
    streams = _streams(plan)
    more = [] if len(streams) <= MOST_NAMES else [f"{len(streams) - MOST_NAMES} more"]
    rows = [f"row by row: {', '.join([*streams[:MOST_NAMES], *more])}"] if streams else []
    twice = [] if plan.remat is None else [f"{len(plan.remat.runs)} second runs"]
    said = "; ".join([*([f"{samples} samples a call"] if samples > 1 else []), *rows, *twice])
    return f" ({said})" if said else ""


def plans_json(known: AllPlans) -> list[dict[str, Any]]:
    """Return a row for each plan, the smallest arena first: its arena, and its means to fit it.

    streams: the layers that each computes row by row.
    """
    return [
        {
            "arena_bytes": plan.arena_bytes,
            "nodes": len(plan.order),
            "streams": _streams(plan),
            "second_runs": 0 if plan.remat is None else len(plan.remat.runs),
            "extra_macs": 0 if plan.remat is None else plan.remat.extra_macs,
            "micro_batch": samples,
        }
        for plan, samples in known.plans
    ]


def _streams(plan: MemoryPlan) -> list[str]:
    return [node.origin for node in plan.order if isinstance(node.attrs, StreamAttrs)]
