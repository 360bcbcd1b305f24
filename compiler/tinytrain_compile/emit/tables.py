"""The constants of a project in flash, their tables in C, and the initial contents of the state."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from tinytrain_compile.emit.c_text import C_TYPES, Names, comment_text
from tinytrain_compile.emit.checkpoint import contents, pieces
from tinytrain_compile.emit.sequence import Sequencer, transposed_name
from tinytrain_compile.ir.kernels import KernelSet
from tinytrain_compile.ir.stages import MemoryPlan, TrainGraph, flash_constants
from tinytrain_compile.ir.types import Array, Node
from tinytrain_compile.ops.int8.prepared import prepared_table, same_table
from tinytrain_compile.ops.names import is_prepared, operand

_ALIGNED = {"int16_t": "_Alignas(8) "}
"""Alignment of tables: tables of pairs of weights are read several words at a time (tt_dot4)."""


def array_text(data: Array) -> str:
    """Return an array as C initialisers, at most 120 columns wide; floats read back to the same bits."""
    if data.dtype == np.float32:
        texts: Iterable[str] = (float_text(value) for value in data.ravel().tolist())
    else:
        texts = map(str, data.ravel().tolist())
    lines: list[str] = []
    line = "   "
    for text in texts:
        if len(line) + len(text) + 2 > 120:
            lines.append(line)
            line = "   "
        line += f" {text},"
    lines.append(line)
    return "\n".join(lines)


def float_text(value: float) -> str:
    """Return a C float constant that reads back to the same bits."""
    if math.isinf(value):
        return "__builtin_inff()" if value > 0 else "-__builtin_inff()"
    text = str(np.float32(value))
    return text + "f" if any(c in text for c in ".e") else text + ".0f"


def table(name: str, data: Array) -> str:
    """Define one constant table."""
    ctype = C_TYPES[str(data.dtype)]
    return f"{_ALIGNED.get(ctype, '')}const {ctype} {name}[{data.size}] = {{\n{array_text(data)}\n}};\n"


def declaration(name: str, data: Array) -> str:
    """Declare one constant table."""
    return f"extern const {C_TYPES[str(data.dtype)]} {name}[{data.size}];"


def all_tables(plans: Sequence[tuple[TrainGraph, MemoryPlan, Names]], kernels: KernelSet) -> list[tuple[str, Array]]:
    """Return every table of the project as (name, content); tables that several plans read occur once."""
    train, _, tables = plans[-1]
    constants = [*dict(found for each in plans for found in flash_tables(*each)).items()]
    constants += transposed_tables(train, kernels, tables)
    return [*constants, *((name, np.asarray(numbers, np.int32)) for name, numbers in kernels.tables.items())]


def flash_tables(train: TrainGraph, plan: MemoryPlan, tables: Names) -> list[tuple[str, Array]]:
    """Return every constant in flash: frozen weights, in the layout read, and initial values that are not all zero."""
    readers = dict[str, Node]()
    for node in filter(is_prepared, train.graph.nodes):
        other = readers.setdefault(operand(node, "w").name, node)
        assert same_table(other, node), f"{other.name} and {node.name} read one weight in different orders"
    return [
        (tables.of(name), prepared_table(readers[name], data) if name in readers else data)
        for name, data in flash_constants(train, plan).items()
    ]


def constant_bytes(train: TrainGraph, plan: MemoryPlan) -> int:
    """Return the bytes of the constants in flash, which are known before any code; kernels' tables are not included."""
    return sum(data.nbytes for data in flash_constants(train, plan).values())


def transposed_tables(train: TrainGraph, kernels: KernelSet, tables: Names) -> list[tuple[str, Array]]:
    """Return copies of frozen 1x1 weights, as (input channel, output channel)."""
    nodes = [node for node in train.graph.nodes if node.name in kernels.transposed]
    weights = {transposed_name(node): train.graph.constants[operand(node, "w").name] for node in nodes}
    return [(tables.of(name), np.ascontiguousarray(data[:, 0, 0, :].T)) for name, data in weights.items()]


def state_block(train: TrainGraph, sequencer: Sequencer, tables: Names) -> list[dict[str, object]]:
    """Describe every tensor of a checkpoint, in order: place, initial contents, permitted contents."""
    constants, kinds = train.graph.constants, contents(train.training_step)
    rows: list[dict[str, object]] = []
    for value, skipped in pieces(train):
        pointer, size = sequencer.pointer(value.name), value.size_bytes
        name = tables.of(value.name) if bool(np.any(constants[value.name])) else ""
        row: dict[str, object] = {
            "first": f"memcpy({pointer}, {name}, {size}u);" if name else f"memset({pointer}, 0, {size}u);",
            "at": sequencer.at(value.name),
            "memory": sequencer.memory(value.name),
            "size": size,
            "skipped": skipped,
            "value": value.name,
            "kind": kinds[value.name],
            "table": name,
            "name": comment_text(value.name),
        }
        rows.append(row)
    return rows
