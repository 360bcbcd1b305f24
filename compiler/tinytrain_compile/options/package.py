"""Options of the board that the project is for and of the form that it takes: a part of CompileOptions."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

from tinytrain_compile.errors import CompileError
from tinytrain_compile.options.option import option
from tinytrain_compile.options.values import parse_size


def _parse_name(text: str, where: str) -> str:
    """Parse a name that C, build systems and folders accept; CompileError E0101 for any other."""
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]{0,59}", text):
        what = f"{text!r} is no C name of up to 60 letters, digits and underscores"
        raise CompileError("E0101", where, what, "for example gesture_left")
    return text


@dataclass(frozen=True, kw_only=True)
class PackageOptions:
    """reserve_bytes: of a board's RAM, for all that is not the model; None: as its file says."""

    reserve_bytes: int | None = field(
        default=None,
        metadata=option(
            "memory",
            "RAM of a board for statics, heap and RTOS. Default: as its file says.",
            "--reserve",
            metavar="SIZE",
            read=parse_size,
        ),
    )
    package: Literal["cmake", "platformio", "arduino", "zephyr", "esp-idf", "makefile"] | None = field(
        default=None,
        metadata=option(
            "output", "Write the project as a library of this build system (docs/packages.md).", "--package"
        ),
    )
    name: str = field(
        default="",
        metadata=option(
            "output",
            "Prefix of C names and files, and of a package. Default: the name of the model's file.",
            "--name",
            metavar="NAME",
            read=_parse_name,
        ),
    )
