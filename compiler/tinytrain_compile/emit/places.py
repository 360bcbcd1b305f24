"""Byte offsets in generated C: each with the size and the type of what is there, and the steps that need it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tinytrain_compile.ir.buffers import Buffer
from tinytrain_compile.ir.stages import MemoryPlan, TrainGraph
from tinytrain_compile.ir.types import Value

ACCESS = {"float32": "F32", "int32": "I32", "int16": "I16", "int8": "I8", "uint8": "U8", "bits": "U8"}
"""Element type -> macro of generated C that makes a pointer of an offset."""
C_TYPES = {"F32": "float", "I32": "int32_t", "I16": "int16_t", "I8": "int8_t", "U8": "uint8_t"}
"""Macro -> type that it points to."""
WIDTHS = {"F32": 4, "I32": 4, "I16": 2, "I8": 1, "U8": 1}
"""Macro -> bytes of such an element."""
PERSISTENT = "Persistent: kept between calls."
TRANSIENT = "Transient: valid inside a call, in these steps."
OF_INFERENCE = "Transient, in an inference of one sample."

Row = tuple[str, int, str]
"""Name of an offset in C, the offset in its memory, and a comment."""


@dataclass(frozen=True)
class Label:
    """One named offset in a memory. value: what is there; None: scratch of a kernel, with elements of type `access`."""

    name: str
    memory: int
    offset: int
    key: str
    value: Value | None
    access: str = ""


def places(train: TrainGraph, plan: MemoryPlan, labels: Iterable[Label]) -> list[tuple[str, list[Row]]]:
    """Return (heading, rows by offset) of every group of offsets that has any: persistent ones first."""
    kept = {value.name for value in (*train.graph.state, *train.graph.accumulators)}
    step = _buffers(plan.buffers)
    one: Mapping[str, Buffer] = {} if plan.inference is None else _buffers(plan.inference.plan.buffers)
    groups: dict[str, list[Row]] = {PERSISTENT: [], TRANSIENT: [], OF_INFERENCE: []}
    for label in sorted(labels, key=lambda label: (label.memory, label.offset, label.name)):
        buffer = step.get(label.key) or one.get(label.key)
        lasting = label.key in kept or (buffer is not None and buffer.kind in ("state", "accumulator"))
        heading = PERSISTENT if lasting else TRANSIENT if label.key in step else OF_INFERENCE
        groups[heading].append((label.name, label.offset, _said(label, None if lasting else buffer)))
    return [(heading, rows) for heading, rows in groups.items() if rows]


def _buffers(buffers: Iterable[Buffer]) -> Mapping[str, Buffer]:
    """Return the buffer of every value, and that of every scratch under the key of its label."""
    found: dict[str, Buffer] = {}
    for buffer in buffers:
        if buffer.kind == "scratch":
            found[f"{buffer.name}.scratch"] = buffer
        else:
            found |= dict.fromkeys((*buffer.values, *(name for name, _ in buffer.within)), buffer)
    return found


def _said(label: Label, buffer: Buffer | None) -> str:
    """Describe what is at an offset: "1,152 B, float[288], steps 0..1"; buffer: None if it outlives every step."""
    value, size = label.value, 0 if buffer is None else buffer.size_bytes
    what = "scratch"
    if value is not None:
        kind = "bits" if value.dtype == "bits" else C_TYPES[ACCESS[value.dtype]]
        size, what = value.size_bytes, f"{kind}[{'x'.join(map(str, value.shape))}]" if value.shape else kind
    elif label.access:
        what = f"{C_TYPES[label.access]}[{size // WIDTHS[label.access]}], scratch"
    parts = [f"{size:,} B", what]
    if buffer is not None:
        first, last = buffer.first_step, buffer.last_step
        parts.append(f"step {first}" if first == last else f"steps {first}..{last}")
    if label.memory:
        parts.append(f"in memory {label.memory}")
    return ", ".join(parts)
