"""What every kernel costs in a training step: instructions counted under QEMU, and their table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from tinytrain_compile.ir.summary import CycleModel, Summary
from tinytrain_compile.ops.base import op_def, shown_name
from tinytrain_compile.report.layout import KEY_WIDTH, WIDTH, grouped, plural, shorten, wrapped

SHOWN = 6
"""Rows of the table: what is below them takes little."""


@dataclass(frozen=True)
class KernelWork:
    """A kernel in one training step (a micro-batch, and the update after it): counts over all nodes that call it."""

    name: str
    op: str
    nodes: tuple[str, ...]
    macs: int
    instructions: int
    code_bytes: int


def kernel_work(summary: Summary) -> list[KernelWork]:
    """List all kernels that a step calls, the most instructions first; empty unless instructions were counted."""
    counts = summary.verify.counts
    if counts is None:
        return []
    rows: list[KernelWork] = []
    for kernel in dict.fromkeys(summary.calls.values()):
        nodes = [node for node in summary.plan.order if summary.calls.get(node.name) == kernel]
        if not nodes:  # only an inference of one sample calls it
            continue
        spent = counts.step.get(kernel, 0) + (counts.apply or {}).get(kernel, 0)
        macs = sum(op_def(node.op).macs(node) for node in nodes)
        names = tuple(node.name for node in nodes)
        rows.append(KernelWork(kernel, shown_name(nodes[0]), names, macs, spent, counts.code_bytes.get(kernel, 0)))
    return sorted(rows, key=lambda work: (-work.instructions, work.name))


def kernels_lines(summary: Summary, width: int = WIDTH, shown: int = SHOWN) -> list[str]:
    """Return a table of the most expensive kernels, under a line with the totals; empty if nothing was counted."""
    counts, rows = summary.verify.counts, kernel_work(summary)
    if counts is None:
        return []
    step, infer = sum(counts.step.values()), sum(counts.infer.values())
    parts = [f"{grouped(step)} instructions in step {counts.step_index}", f"{grouped(infer)} in an inference"]
    if counts.apply is not None:
        parts.insert(1, f"{grouped(sum(counts.apply.values()))} in the update")
    title = wrapped("counted".ljust(KEY_WIDTH), f"{', '.join(parts)} (executed in QEMU)", width)
    head = f"{'instructions':>14} {'MAC':>11} {'per MAC':>7} {'code B':>7}  kernel"
    table = (_line(work, width) for work in rows[:shown])
    return [*title, *_cycle_lines(counts.cycles, width), head, *table, *_rest(rows[shown:])]


def kernels_json(summary: Summary) -> dict[str, Any]:
    """Return instructions of the calls, their cycles by a model, and what each kernel takes."""
    counts = summary.verify.counts
    assert counts is not None, "nothing was counted"
    known = counts.cycles
    return {
        "train_step_instructions": sum(counts.step.values()),
        "infer_instructions": sum(counts.infer.values()),
        "apply_instructions": sum(counts.apply.values()) if counts.apply is not None else None,
        "counted_step": counts.step_index,
        "train_step_cycles_model": known.step if known else None,
        "infer_cycles_model": known.infer if known else None,
        "cycles_model": known.name if known else None,
        "kernels": [asdict(work) for work in kernel_work(summary)],
    }


def _cycle_lines(model: CycleModel | None, width: int) -> list[str]:
    if model is None:
        return []
    if model.step is None or model.infer is None:
        text = f"no figure: {model.why_not}"
    else:
        figures = f"{grouped(model.step)} cycles in the step, {grouped(model.infer)} in the inference"
        text = f"{figures} (a model, {model.name}; not measured)"
    return wrapped("cycles".ljust(KEY_WIDTH), text, width)


def _line(work: KernelWork, width: int) -> str:
    each = f"{work.instructions / work.macs:.2f}" if work.macs else "-"
    start = f"{grouped(work.instructions):>14} {grouped(work.macs):>11} {each:>7} {grouped(work.code_bytes):>7}  "
    calls = f" x{len(work.nodes)}" if len(work.nodes) > 1 else ""
    return start + shorten(work.name, max(width - len(start) - len(calls), 24)) + calls


def _rest(rows: list[KernelWork]) -> Iterator[str]:
    if rows:
        yield f"{grouped(sum(work.instructions for work in rows)):>14} in {plural(len(rows), 'more kernel')}"
