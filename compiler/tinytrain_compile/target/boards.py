"""Boards: addresses of a part's memories, and the bytes left for models. A board is a target on one of our cores."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import fields, replace
from itertools import pairwise

from tinytrain_compile.files.user_file import Table
from tinytrain_compile.target.model import (
    LEAST_BYTES,
    MOST_MHZ,
    Board,
    BoardMemory,
    BoardNames,
    Core,
    MemoryBank,
    Region,
    Target,
)

CORE_KEY = "core_target"
"""The key that is in a board's file but not in a core's."""


def board_target(root: Table, core: Target) -> Target:
    """Return the target described by a board's file, with the core that it names.

    CompileError E0103 names a wrong key.
    """
    entries = [_memory(table) for table in root.tables("memories")]
    memories = _kept_back(tuple(memory for memory, _ in entries), root.table("ram"), root)
    root.text(CORE_KEY)
    flash, reserved = _flash(root.table("flash"))
    figures = _core(root.table("core"), core.core)
    board = Board(
        part=root.text("part"),
        flash=flash,
        flash_reserve_bytes=reserved,
        memories=memories,
        sources=root.texts("sources"),
        unverified=root.text("unverified") if root.has("unverified") else "",
        names=_names(root.table("names")) if root.has("names") else BoardNames(),
    )
    name, summary = root.text("name"), root.text("summary")
    root.finish()
    _check(board, root)
    return replace(
        core,
        name=name,
        summary=summary,
        stack_budget_bytes=board.stack.stack_bytes,
        core=figures,
        memories=_left([bank for _, bank in entries], memories),
        base=core.name,
        board=board,
    )


def with_reserve(target: Target, reserve_bytes: int) -> Target:
    """Return the board with `reserve_bytes` for everything except the model.

    If a memory is too small, its rest is negative.
    """
    board = target.board
    assert board is not None, "only a board has a reserve"
    memories = tuple(
        replace(memory, reserve_bytes=reserve_bytes) if memory.reserve_bytes else memory for memory in board.memories
    )
    return replace(target, memories=_left(target.memories, memories), board=replace(board, memories=memories))


def _left(banks: Sequence[MemoryBank], memories: Sequence[BoardMemory]) -> tuple[MemoryBank, ...]:
    """Return the planner's memories with the sizes left on the board."""
    pairs = zip(banks, memories, strict=True)
    return tuple(replace(bank, size_bytes=memory.model_bytes) for bank, memory in pairs)


def _kept_back(memories: tuple[BoardMemory, ...], ram: Table, root: Table) -> tuple[BoardMemory, ...]:
    """Return the memories with the bytes of stack and reserve set in two of them, or in one."""
    stack, stack_bytes = ram.text("stack"), ram.integer("stack_bytes", low=8)
    reserve, reserve_bytes = ram.text("reserve"), ram.integer("reserve_bytes", low=1)
    ram.finish()
    names = [memory.name for memory in memories]
    for key, place in (("stack", stack), ("reserve", reserve)):
        if place not in names:
            raise root.error(f"ram.{key}", f"names no memory of the board ({', '.join(names)})")
    return tuple(
        replace(
            memory,
            stack_bytes=stack_bytes if memory.name == stack else 0,
            reserve_bytes=reserve_bytes if memory.name == reserve else 0,
        )
        for memory in memories
    )


def _memory(table: Table) -> tuple[BoardMemory, MemoryBank]:
    """Return a memory in the form of the manual, and in that of the planner."""
    name = table.text("name")
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise table.error("name", "must be lower-case letters, digits and underscores")
    region = Region(table.integer("origin"), table.integer("size_bytes", low=LEAST_BYTES))
    memory = BoardMemory(name, region, table.boolean("retained"), table.boolean("dma"), table.boolean("cached"))
    bank = MemoryBank(
        name,
        region.size_bytes,
        table.integer("bytes_per_us", low=1),
        table.integer("setup_ns"),
        table.integer("pj_per_byte"),
        True,
    )
    table.finish()
    return memory, bank


def _names(table: Table) -> BoardNames:
    """Return what build systems call the board. They go into commands and comments."""
    found = {field.name: table.text(field.name) for field in fields(BoardNames) if table.has(field.name)}
    table.finish()
    for key, name in found.items():
        if not re.fullmatch(r"\w[\w./=, -]*", name, re.ASCII):
            raise table.error(key, "may hold letters, digits, spaces and ./_=,- only")
    return BoardNames(**found)


def _flash(table: Table) -> tuple[Region, int]:
    """Return an application's region of the flash, and the bytes of it that models may not use."""
    origin, size = table.integer("origin"), table.integer("size_bytes", low=LEAST_BYTES)
    boot, reserve = table.integer("boot_bytes"), table.integer("reserve_bytes")
    table.finish()
    if boot + reserve >= size:
        raise table.error("reserve_bytes", "and boot_bytes leave nothing of the flash")
    return Region(origin + boot, size - boot), reserve


def _core(table: Table, core: Core) -> Core:
    """Return the core at the board's clock.

    Without a figure for the energy of a cycle, the core's own is kept, with its source.
    """
    clock, source = table.integer("clock_mhz", 1, MOST_MHZ), table.text("pj_source")
    energy = table.integer("pj_per_cycle", low=1) if table.has("pj_per_cycle") else None
    table.finish()
    if energy is None:
        return replace(core, clock_mhz=clock, pj_source=f"{source}; that of the core: {core.pj_source}")
    return replace(core, clock_mhz=clock, pj_per_cycle=energy, pj_source=source)


def _check(board: Board, root: Table) -> None:
    """Check rules that involve more than one memory."""
    names = [memory.name for memory in board.memories]
    if len(set(names)) != len(names):
        raise root.error("memories", "names one memory twice")
    for memory in board.memories:
        if memory.model_bytes < 0:
            raise root.error("ram", f"leaves less than nothing of {memory.name}")
    if board.memories[0].model_bytes == 0:
        raise root.error("memories", "must begin with the memory of the arena, of which something is left")
    regions = sorted((memory.region for memory in board.memories), key=lambda region: region.origin)
    for below, above in pairwise(regions):
        if below.end > above.origin:
            raise root.error("memories", f"overlap at {above.origin:#010x}")
