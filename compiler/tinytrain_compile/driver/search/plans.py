"""`--plans`: several plans of one training in one project; init takes the largest that the arena holds (ADR 42).

Each is what a build with that --arena would have. They have the update and the optimizer in common, so the same state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tinytrain_compile.driver.candidates.planner import Candidate, Planner
from tinytrain_compile.driver.search.micro_batch import with_micro_batch
from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.stages import MemoryPlan
from tinytrain_compile.ops.stream import StreamAttrs
from tinytrain_compile.options.compile_options import CompileOptions

FLAG = "--plans"
MOST_NAMES = 3
"""Streams of a plan that a line of the terminal names."""


def with_largest(options: CompileOptions) -> CompileOptions:
    """The options of the largest plan, which is compiled like any other; the rest goes beside it."""
    return replace(options, arena_bytes=options.plans[-1]) if options.plans else options


def smaller_plans(planner: Planner, largest: Candidate) -> tuple[Candidate, ...]:
    """Plan the others, by size. E0401 for one that does not fit, E0101 for two that are the same."""
    sizes = planner.options.plans
    if not sizes:
        return ()
    from tinytrain_compile.parts.plans.part import counts_samples

    copies = planner.options.activations != "exact" or bool(largest.update.activations)
    if counts_samples(planner.options) and copies:  # which follow the samples of a step, and are state
        what = "low-rank copies of activations are other ones where a step takes several samples"
        raise CompileError("E0101", f"{FLAG} with --micro-batch auto", what, "leave --micro-batch out")
    found = [_fitting(planner, size) for size in sizes[:-1]]
    for size, one, next_one in zip(sizes, found, [*found[1:], largest], strict=False):
        if one.plan.arena_bytes >= next_one.plan.arena_bytes:
            what = f"what the next one would be fits into {size} B: a larger plan is no other"
            raise CompileError("E0101", FLAG, what, "leave the larger one out")
    return tuple(found)


def plans_note(smaller: Sequence[Candidate], largest: Candidate) -> tuple[str, ...]:
    """Return a note on the plans for the report, whose figures are the largest one's."""
    if not smaller:
        return ()
    plans = [(one.plan, one.train.micro_batch) for one in (*smaller, largest)]
    each = ", ".join(f"{plan.arena_bytes:,} B{_price(plan, samples)}" for plan, samples in plans)
    return (f"{len(plans)} plans in one image: {each}; figures are those of the largest",)


def _price(plan: MemoryPlan, samples: int) -> str:
    """Samples of a call, and what a plan computes row by row and twice, in brackets; "" if all is plain.

    report.json has all names.
    """
    streams = [node.origin for node in plan.order if isinstance(node.attrs, StreamAttrs)]
    more = [] if len(streams) <= MOST_NAMES else [f"{len(streams) - MOST_NAMES} more"]
    rows = [f"row by row: {', '.join([*streams[:MOST_NAMES], *more])}"] if streams else []
    twice = [] if plan.remat is None else [f"{len(plan.remat.runs)} second runs"]
    together = [f"{samples} samples a call"] if samples > 1 else []
    said = "; ".join([*together, *rows, *twice])
    return f" ({said})" if said else ""


def _fitting(planner: Planner, size: int) -> Candidate:
    other = planner.with_options(arena_bytes=size)
    made = other.exact(planner.options.update)
    if made.plan.arena_bytes > size:
        what = f"no plan was found that needs no more than {size} B"
        raise CompileError("E0401", f"{FLAG} {size}", what, f"--dry-run --arena {size} says what would fit")
    return with_micro_batch(other, made)
