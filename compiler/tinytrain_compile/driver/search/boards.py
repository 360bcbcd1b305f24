"""What a board leaves to the model: the arena, the further memories, and the flash."""

from __future__ import annotations

from dataclasses import replace

from tinytrain_compile.driver.checks.combinations import takes_no_memory
from tinytrain_compile.errors import CompileError
from tinytrain_compile.options.compile_options import CompileOptions
from tinytrain_compile.target import Target, list_boards, load_target, with_reserve


def with_board(options: CompileOptions, target: Target) -> tuple[CompileOptions, Target, tuple[str, ...]]:
    """The same with what the board has as limits where the user gave none, and remarks that say which these are.

    Errors: E0101 for --reserve without a board or beyond its RAM, E0107 for an --arena, or largest of --plans, that the
    board has not.
    """
    if target.board is None:
        if options.reserve_bytes is not None:
            what = f"{target.name} is a core, which has no RAM of its own"
            raise CompileError("E0101", "--reserve", what, "name a board (--list-targets), or leave it out")
        return options, target, ()
    target = target if options.reserve_bytes is None else _reserved(target, options.reserve_bytes)
    first = target.memories[0]
    if options.arena_bytes is not None and options.arena_bytes > first.size_bytes:
        what = f"{options.arena_bytes} B are asked for, {target.name} has {first.size_bytes} B in {first.name} for it"
        way = "give at most that (or --reserve, or a file of your own: docs/on-your-board.md)"
        raise CompileError("E0107", "--plans" if options.plans else "--arena", what, way)
    said: list[str] = []
    if options.arena_bytes is None:
        options = replace(options, arena_bytes=first.size_bytes)
        said.append(f"arena up to {first.size_bytes:,} B of {first.name}")
    asked = options.memories or options.input_lines or options.lock or options.optimise
    if not (asked or takes_no_memory(options)):
        further = {bank.name: bank.size_bytes for bank in target.memories[1:] if bank.size_bytes}
        options = replace(options, memories=further)
        said += [f"{name} {size:,} B" for name, size in further.items()]
    return options, target, (f"{target.name} offers: {', then '.join(said)}",) if said else ()


def _reserved(target: Target, reserve_bytes: int) -> Target:
    changed = with_reserve(target, reserve_bytes)
    assert changed.board is not None, "with_reserve is for boards"
    place = changed.board.reserve
    if place.model_bytes < 0 or changed.memories[0].size_bytes <= 0:
        room = place.region.size_bytes - place.stack_bytes
        what = f"{reserve_bytes} B are asked for, {place.name} of {target.name} has {room} B beside the stack"
        raise CompileError("E0101", "--reserve", what, "give less, or a board file of your own")
    return changed


def check_flash(target: Target, code_bytes: int | None, const_bytes: int | None) -> None:
    """E0403 for code and constants that the board's flash does not hold; where nobody has measured them, nothing."""
    board = target.board
    if board is None or code_bytes is None or const_bytes is None or code_bytes + const_bytes <= board.flash_bytes:
        return
    needed = code_bytes + const_bytes
    what = (
        f"code {code_bytes} B and constants {const_bytes} B need {needed} B, models have {board.flash_bytes} B "
        f"(over by {needed - board.flash_bytes} B)"
    )
    way = f"try --flash-budget {board.flash_bytes}, which chooses small code where it has to, or train fewer layers"
    raise CompileError("E0403", f"flash of {target.name}", what, way)


def check_constants(target: Target, const_bytes: int, quant: str) -> None:
    """E0403 for constants that alone are more than the board's flash: known before there is code, in a dry run too."""
    board = target.board
    if board is None or const_bytes <= board.flash_bytes:
        return
    rooms = {name: load_target(name).board for name in list_boards()}
    larger = [name for name, other in rooms.items() if other is not None and other.flash_bytes > const_bytes]
    what = (
        f"weights and first values alone need {const_bytes} B, models have {board.flash_bytes} B "
        f"(over by {const_bytes - board.flash_bytes} B)"
    )
    ways = ["--quant int8, a quarter of it"] if quant != "int8" else ["a smaller model"]
    ways += [f"a board with more flash ({', '.join(larger)})"] if larger else []
    raise CompileError("E0403", f"flash of {target.name}", what, f"try {', or '.join(ways)}")
