"""Prints the tables of boards for docs/on-your-board.md, from their files; --energy: what a cycle takes, by whom."""

from __future__ import annotations

import sys

from tinytrain_compile.target.loader import list_boards, list_targets, load_target
from tinytrain_compile.target.model import Board, Target


def row(target: Target, board: Board) -> str:
    """One board: sizes in KB, of what is left to models."""
    first, *others = target.memories
    further = ", ".join(f"{bank.name} {kb(bank.size_bytes)}" for bank in others if bank.size_bytes) or "none"
    kept = f"stack {kb(board.stack.stack_bytes)} of {board.stack.name}, reserve {kb(board.reserve.reserve_bytes)}"
    kept += f" of {board.reserve.name}"
    name = f"`{target.name}`{'' if not target.why_unverified else ' (unverified)'}"
    flash = f"{kb(board.flash_bytes)} of {kb(board.flash.size_bytes)}"
    return f"| {name} | {target.core_name} | {first.name} {kb(first.size_bytes)} | {further} | {kept} | {flash} |"


def kb(size_bytes: int) -> str:
    """KB, with a fraction only where there is one."""
    return f"{size_bytes / 1024:,.2f}".rstrip("0").rstrip(".") + " KB"


def memories() -> None:
    """Memories and flash of every board."""
    print("| board | core | arena | further memories | kept back | flash for models |")
    print("|---|---|---|---|---|---|")
    for name in list_boards():
        target = load_target(name)
        assert target.board is not None
        print(row(target, target.board))


def energy() -> None:
    """What a cycle of every core and board takes, and who says so."""
    print("| target | pJ a cycle | source |")
    print("|---|---|---|")
    for name in (*list_targets(), *list_boards()):
        core = load_target(name).core
        print(f"| `{name}` | {core.pj_per_cycle:,} | {core.pj_source} |")


if __name__ == "__main__":
    energy() if "--energy" in sys.argv[1:] else memories()
