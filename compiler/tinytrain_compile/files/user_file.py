"""The one place where files that the user names are opened: regular files of a size that makes sense, nothing else.

A pipe that nobody writes to would hang, a device may have no end. Everything else about a file is for its reader.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from tinytrain_compile.errors import CompileError
from tinytrain_compile.files.journal import unfinished

MOST_TEXT_BYTES = 64 << 20
"""Of a file of text: targets, schemes, plans."""
MOST_DATA_BYTES = 1 << 30
"""Of anything else: models, weights, samples."""
_PIECE_BYTES = 16 << 20


def open_file(path: Path, most_bytes: int = MOST_DATA_BYTES, pipe: bool = False, moving: bool = False) -> BinaryIO:
    """Open a regular file for reading. OSError, with a reason in `strerror`, for whatever cannot be one.

    pipe: take what has no size too, of which the caller then reads no more than `most_bytes`.
    moving: read a file of an output that is not finished too, as the run does that finishes it.
    """
    try:
        half = "" if moving else unfinished(path)
        if half:
            raise OSError(errno.EBUSY, half)
        state = path.stat()
    except ValueError as problem:  # a zero byte, or what the file system cannot write
        raise OSError(errno.EINVAL, "the path cannot be one") from problem
    if stat.S_ISDIR(state.st_mode):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(state.st_mode) and not pipe:
        raise OSError(errno.EINVAL, "it is no regular file")
    if state.st_size > most_bytes:
        raise OSError(errno.EFBIG, f"it is larger than {most_bytes >> 20} MB")
    return path.open("rb")


def read_file(path: Path, most_bytes: int = MOST_DATA_BYTES, pipe: bool = False, moving: bool = False) -> bytes:
    """All of a file. OSError as `open_file`, and for one that turns out to be longer than `most_bytes`."""
    pieces, size = list[bytes](), 0
    with open_file(path, most_bytes, pipe, moving) as stream:
        while piece := stream.read(_PIECE_BYTES):  # read(most_bytes + 1) would ask for that much memory at once
            pieces.append(piece)
            size += len(piece)
            if size > most_bytes:
                raise OSError(errno.EFBIG, f"it is larger than {most_bytes >> 20} MB")
    return b"".join(pieces)


def read_text(
    path: Path, wrong: Callable[[str], CompileError], unreadable: Callable[[str], CompileError] | None = None
) -> str:
    """A UTF-8 file. Raises `unreadable` (else `wrong`) of why it cannot be read, or `wrong` of its bytes."""
    try:
        return read_file(path, MOST_TEXT_BYTES).decode("utf-8")
    except OSError as problem:
        raise (unreadable or wrong)(problem.strerror or "cannot be read") from problem
    except UnicodeDecodeError as problem:
        raise wrong("not UTF-8 text") from problem
