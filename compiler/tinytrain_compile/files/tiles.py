"""Files of tiles that --tune found: text, one line per kernel, target and compiler; used wherever a line fits."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tinytrain_compile.errors import CompileError
from tinytrain_compile.files.output_folder import replace_file
from tinytrain_compile.files.user_file import read_text
from tinytrain_compile.ir.kernels import Tiles
from tinytrain_compile.ir.types import Node, Value

RULE = Tiles()
TILES = "tiles.txt"
"""The file in an output folder."""
FLOAT_TILES = tuple(
    Tiles(tile=tile) for tile in ((6, 4), (4, 4), (3, 6), (2, 6), (2, 8), (8, 2), (4, 8), (1, 8), (8, 1), (2, 4))
)
INTEGER_TILES = (
    *(Tiles(pair_steps=count) for count in (1, 2, 6, 8)),
    *(Tiles(row_calls=count) for count in (1, 2, 3, 9)),
    *(Tiles(unrolled_rows=count) for count in (0, 5, 7)),
    *(Tiles(tile=tile) for tile in ((1, 2), (2, 1), (1, 4), (4, 1), (2, 3), (3, 2))),
)
_BY_TEXT: Mapping[str, Tiles] = {tiles.text: tiles for tiles in (RULE, *FLOAT_TILES, *INTEGER_TILES)}
_HEAD = """# Tiles of kernels, found by tinytrain-compile --tune: instructions of one call, counted in QEMU.
# With --cycles, cycles of the target's model, which such lines say.
# target | GCC | kernel | attributes | tiles | instructions by the rule -> with these tiles
"""
CYCLES = "cycles"
_LINE = re.compile(
    r"([\w.-]+) \| ([\w.]+) \| ([^|]+) \| ([0-9a-f]{12}) \| (\S+) \| ([0-9]{1,15}) -> ([0-9]{1,15})( cycles)?"
)


@dataclass(frozen=True, order=True)
class TileKey:
    """What a choice of tiles holds for: the kernel (op and operand types in words, all else as a digest)."""

    target: str
    gcc: str
    kernel: str
    digest: str


@dataclass(frozen=True)
class Found:
    """Tiles in words; what one call takes by the rule and with them: instructions, or cycles of the target's model."""

    tiles: str
    before: int
    after: int
    cycles: bool = False

    @property
    def known(self) -> Tiles | None:
        """The tiles; None if this version does not try them."""
        return _BY_TEXT.get(self.tiles)


def candidates(node: Node) -> tuple[Tiles, ...]:
    """What --tune tries for a node besides the rule."""
    return INTEGER_TILES if any(value.dtype == "int8" for value in node.inputs) else FLOAT_TILES


def tile_key(node: Node, target: str, gcc: str, fused: bool) -> TileKey:
    """The key of a node's kernel; nodes that share a kernel share it."""

    def kinds(values: tuple[Value, ...]) -> str:
        return ", ".join(f"{'x'.join(map(str, v.shape)) or '1'}:{v.dtype}" for v in values)

    repeated = tuple(node.inputs.index(value) for value in node.inputs)
    rest = repr((type(node.attrs).__name__, dataclasses.astuple(node.attrs), repeated, fused))
    digest = hashlib.sha256(rest.encode()).hexdigest()[:12]
    return TileKey(target, gcc, f"{node.op} {kinds(node.inputs)} -> {kinds(node.outputs)}", digest)


def read_tiles(path: Path) -> dict[TileKey, Found]:
    """All lines of a file. Errors: E0109 for one that is none."""
    text = read_text(path, partial(_bad, path.name))
    found: dict[TileKey, Found] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line.strip())
        if match is None:
            raise _bad(f"{path.name}, line {number}", f"{line.strip()[:60]!r} is no line of tiles")
        target, gcc, kernel, digest, tiles, before, after, cycles = match.groups()
        found[TileKey(target, gcc, kernel, digest)] = Found(tiles, int(before), int(after), cycles is not None)
    return found


def _bad(where: str, what: str) -> CompileError:
    return CompileError("E0109", where, what, "delete it and make it anew with --tune")


def tiles_text(found: Mapping[TileKey, Found]) -> str:
    """The text of a file, its lines in order."""
    lines = (
        f"{key.target} | {key.gcc} | {key.kernel} | {key.digest} | {f.tiles} | {f.before} -> {f.after}"
        f"{f' {CYCLES}' if f.cycles else ''}\n"
        for key, f in sorted(found.items(), key=lambda item: item[0])
    )
    return _HEAD + "".join(lines)


def write_tiles(path: Path, found: Mapping[TileKey, Found]) -> None:
    """Write a file whole or not at all. Errors: E0104."""
    try:
        replace_file(path, tiles_text(found))
    except OSError as problem:
        what = problem.strerror or "cannot be written"
        raise CompileError("E0104", f"--tiles {path.name}", what, "name a file in a writable folder") from problem
