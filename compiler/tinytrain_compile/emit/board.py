"""Files for a board: a header with the places of the model's memories, and on a Cortex-M a link script with its
regions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jinja2

from tinytrain_compile.ir.buffers import ALIGNMENT_BYTES, RuntimeBuffer, placed, taken_by
from tinytrain_compile.ir.stages import Interface, MemoryPlan
from tinytrain_compile.target.model import Target

LINK_SCRIPT = "board/link.ld"


def board_files(
    environment: jinja2.Environment,
    model: dict[str, Any],
    target: Target,
    interface: Interface,
    plan: MemoryPlan,
    buffers: Sequence[RuntimeBuffer] = (),
) -> dict[str, str]:
    """Write the files of the board: path in the project -> text; `model` has the values of the other templates."""
    board = target.board
    assert board is not None, "only a board has memories of its own"
    prefix = interface.prefix
    names = (board.memories[0].name, *(memory.name for memory in plan.further))
    rooms = placed(board, taken_by(board, plan), buffers)
    values = {
        **model,
        "board": target.name,
        "link_script": LINK_SCRIPT if has_script(target) else "",
        "of_board": board,
        "places": [
            (number, name, _macro(prefix, number), "ARENA" if number == 0 else f"MEMORY_{number}")
            for number, name in enumerate(names)
        ],
        "buffers": [_buffer(prefix, one, rooms[one.part]) for one in buffers if one.part in rooms],
    }
    header = {f"{prefix}_board.h": environment.get_template("board.h.j2").render(values)}
    return header | ({LINK_SCRIPT: environment.get_template("link.ld.j2").render(values)} if has_script(target) else {})


def has_script(target: Target) -> bool:
    """Tell whether a project for this target has a link script: it does for boards whose core has its own toolchain."""
    return target.board is not None and target.toolchain is not None


def _macro(prefix: str, number: int) -> str:
    return f"{prefix.upper()}_IN_{'ARENA' if number == 0 else f'MEMORY_{number}'}"


def _buffer(prefix: str, buffer: RuntimeBuffer, memory: str) -> dict[str, Any]:
    """Describe a buffer of a part: its macro, the definition after that macro, and its own section."""
    upper = prefix.upper()
    return {
        "what": buffer.what,
        "macro": f"{upper}_IN_{buffer.part.upper()}",
        "definition": buffer.definition.format(p=prefix, P=upper),
        "section": f".tt_{memory}.{prefix}_{buffer.part}",
        "alignment": ALIGNMENT_BYTES,
    }
