"""What a board has and what of it is taken: memories, flash, and where the check ran."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tinytrain_compile.ir.buffers import PartRam, placed
from tinytrain_compile.ir.summary import BoardUse, Summary
from tinytrain_compile.report.layout import bytes_text, grouped, share
from tinytrain_compile.target.model import Board, BoardMemory


def board_pieces(summary: Summary) -> list[str]:
    """Tell where the arena lies, and what stack, reserve and flash take of what there is."""
    board = _use(summary).board
    reserve = board.reserve
    return [
        f"arena in {board.memories[0].name} at {board.memories[0].region.origin:#010x}",
        _stack_text(summary, board.stack),
        f"reserve {bytes_text(reserve.reserve_bytes)} in {reserve.name}",
        _flash_text(summary, board),
    ]


def board_remarks(summary: Summary) -> list[str]:
    """Tell where the code ran."""
    return [f"{_checked_on(summary)}; never on the board itself"]


def _use(summary: Summary) -> BoardUse:
    use = summary.fact(BoardUse)
    assert use is not None, "a core has no such row"
    return use


def _checked_on(summary: Summary) -> str:
    """Tell where the C of a board was run."""
    where = {"qemu": f"QEMU's machine of the {_use(summary).machine}", "host": "this machine"}.get(summary.verify.mode)
    return "not run" if where is None else f"run on {where}"


def _stack_text(summary: Summary, stack: BoardMemory) -> str:
    bound = summary.verify.stack_bytes
    if bound is None:
        return f"stack {bytes_text(stack.stack_bytes)} in {stack.name}, not measured"
    return f"stack {grouped(bound)} of {bytes_text(stack.stack_bytes)} in {stack.name}: fits"


def _flash_text(summary: Summary, board: Board) -> str:
    used = _flash_used(summary)
    if used is None:
        return f"flash {grouped(summary.least_const_bytes)} of {grouped(board.flash_bytes)} B, and code: not measured"
    return f"flash {grouped(used)} of {grouped(board.flash_bytes)} B ({share(used, board.flash_bytes)}): fits"


def _flash_used(summary: Summary) -> int | None:
    """Return bytes of code and constants; None if nobody measured both. (What does not fit is an error.)"""
    code, const = summary.verify.code_bytes, summary.verify.const_bytes
    return None if code is None or const is None else code + const


def board_json(summary: Summary) -> dict[str, Any]:
    """Return the key `board` of report.json."""
    board = _use(summary).board
    used = {board.memories[0].name: summary.plan.arena_bytes}
    used |= {memory.name: memory.used_bytes for memory in summary.plan.further}
    ram = summary.fact(PartRam)
    buffers = () if ram is None else ram.buffers
    places = placed(board, used, buffers)
    return {
        "part": board.part,
        "core": _use(summary).core,
        "unverified": board.unverified or None,
        "checked": _checked_on(summary),
        "memories": [_memory(memory, used) for memory in board.memories],
        "buffers": [
            {"part": one.part, "memory": places.get(one.part), "size_bytes": one.size_bytes} for one in buffers
        ],
        "stack": {
            "memory": board.stack.name,
            "size_bytes": board.stack.stack_bytes,
            "used_bytes": summary.verify.stack_bytes,
        },
        "flash": {
            "origin": board.flash.origin,
            "size_bytes": board.flash.size_bytes,
            "reserve_bytes": board.flash_reserve_bytes,
            "model_bytes": board.flash_bytes,
            "used_bytes": _flash_used(summary),
        },
        "energy_source": summary.energy_source,
        "sources": list(board.sources),
    }


def _memory(memory: BoardMemory, used: Mapping[str, int]) -> dict[str, Any]:
    return {
        "name": memory.name,
        "origin": memory.region.origin,
        "size_bytes": memory.region.size_bytes,
        "stack_bytes": memory.stack_bytes,
        "reserve_bytes": memory.reserve_bytes,
        "model_bytes": memory.model_bytes,
        "used_bytes": used.get(memory.name, 0),
        "retained": memory.retained,
        "dma": memory.dma,
        "cached": memory.cached,
    }
