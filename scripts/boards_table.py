"""Prints the table of boards for docs/on-your-board.md, from their files."""

from __future__ import annotations

from tinytrain_compile.target import Board, Target, list_boards, load_target


def row(target: Target, board: Board) -> str:
    """One board: sizes in KB, of what is left to models."""
    first, *others = target.memories
    further = ", ".join(f"{bank.name} {kb(bank.size_bytes)}" for bank in others if bank.size_bytes) or "none"
    kept = f"stack {kb(board.stack.stack_bytes)} of {board.stack.name}, reserve {kb(board.reserve.reserve_bytes)}"
    kept += f" of {board.reserve.name}"
    name = f"`{target.name}`{'' if not board.unverified else ' (unverified)'}"
    flash = f"{kb(board.flash_bytes)} of {kb(board.flash.size_bytes)}"
    return f"| {name} | {target.core_name} | {first.name} {kb(first.size_bytes)} | {further} | {kept} | {flash} |"


def kb(size_bytes: int) -> str:
    """KB, with a fraction only where there is one."""
    return f"{size_bytes / 1024:,.2f}".rstrip("0").rstrip(".") + " KB"


def main() -> None:
    """The table."""
    print("| board | core | arena | further memories | kept back | flash for models |")
    print("|---|---|---|---|---|---|")
    for name in list_boards():
        target = load_target(name)
        assert target.board is not None
        print(row(target, target.board))


if __name__ == "__main__":
    main()
