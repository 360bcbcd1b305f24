"""Tiles of kernels: those of a file (--tiles), and with --tune a search by exact instruction counts in QEMU, with
--cycles by the cycles of the target's model."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tinytrain_compile.driver.candidates.planner import Candidate
from tinytrain_compile.files.manifest import own_file
from tinytrain_compile.files.resources import runtime_headers
from tinytrain_compile.files.tiles import (
    RULE,
    TILES,
    Found,
    TileKey,
    candidates,
    read_tiles,
    tile_key,
    tiles_text,
    write_tiles,
)
from tinytrain_compile.ir.kernels import Kernel, Tiles, TilesUsed
from tinytrain_compile.ir.stages import Samples
from tinytrain_compile.ir.types import Array, Node
from tinytrain_compile.ops import op_def
from tinytrain_compile.options.compile_options import CompileOptions
from tinytrain_compile.reference.trainer import Trainer
from tinytrain_compile.target import Target
from tinytrain_compile.verify import cross_version, find_tools
from tinytrain_compile.verify.kernel_runs import POOL_BYTES, PREFIX, KernelCount, KernelRun, count_kernels

LEAST_GAIN = 0.01
"""Share of its instructions (or cycles) that other tiles than the rule's must save, because they may take more code."""
_IMAGE_BYTES = 1 << 20
"""Operands of the kernels in one image, about."""
Report = Callable[[int, int], None]
"""(kernels measured, all that are)"""


@dataclass(frozen=True)
class KnownTiles:
    """Lines that a run begins with: of the file of --tiles, and of the output that it replaces."""

    named: Mapping[TileKey, Found] | None = None
    earlier: Mapping[TileKey, Found] | None = None

    @property
    def lines(self) -> Mapping[TileKey, Found]:
        """Those that count: of the file that is named, if one is."""
        return self.named if self.named is not None else self.earlier or {}


@dataclass(frozen=True, eq=False)
class Tiling:
    """What a compilation uses, the lines for its output folder (None: no file), and those for the file of --tiles."""

    used: TilesUsed
    kept: Mapping[TileKey, Found] | None = None
    named: Mapping[TileKey, Found] | None = None

    @property
    def files(self) -> dict[str, str | bytes]:
        """The file of the output folder."""
        return {} if self.kept is None else {TILES: tiles_text(self.kept)}

    def save(self, options: CompileOptions) -> None:
        """Write what --tune found into the file of --tiles, unless the output has it there. Errors: E0104."""
        if self.named is None or options.tiles is None or options.tiles.resolve() == (options.out / TILES).resolve():
            return
        write_tiles(options.tiles, self.named)


def known_tiles(options: CompileOptions) -> KnownTiles:
    """The lines of --tiles, whose file need not be there under --tune, and of the earlier output. Errors: E0109."""
    named = None
    if options.tiles is not None:
        fresh = options.tune and not os.path.lexists(options.tiles)
        named = {} if fresh else read_tiles(options.tiles)
    try:
        place = own_file(options.out, TILES)
    except OSError:  # who writes there will say so
        place = None
    return KnownTiles(named, None if place is None else read_tiles(place))


def choose_tiles(
    candidate: Candidate, options: CompileOptions, target: Target, samples: Samples, known: KnownTiles, report: Report
) -> Tiling:
    """Tiles for the nodes of a plan. Without lines and without --tune: none. Errors: E0602."""
    if options.code == "size" or not (options.tune or known.lines):
        return Tiling(TilesUsed(), known.earlier)
    gcc, fused = cross_version(target), not candidate.train.integer
    nodes = [n for n in candidate.plan.order if n.external is None and n.op != "Stream" and op_def(n.op).macs(n) > 0]
    keys = {node.name: tile_key(node, target.core_name, gcc, fused) for node in nodes}
    done = {key for key, line in known.lines.items() if line.cycles == options.cycles}
    wanted = {keys[node.name]: node for node in nodes if keys[node.name] not in done} if options.tune else {}
    found = _search(wanted, candidate, target, samples, options.cycles, report)
    lines = {**known.lines, **found}
    used = _used(keys, lines, _source(options, known), len(found))
    if not options.tune:
        return Tiling(used, known.earlier)
    return Tiling(used, {**(known.earlier or {}), **lines}, lines)


def _source(options: CompileOptions, known: KnownTiles) -> str:
    """Where the lines come from, in words; what --tune finds is said beside it."""
    if options.tiles is not None:
        return f"--tiles {options.tiles.name}"
    return f"{TILES} of the earlier output" if known.earlier else "--tune"


def _used(keys: Mapping[str, TileKey], known: Mapping[TileKey, Found], source: str, searched: int) -> TilesUsed:
    fitting = {name: known[key] for name, key in keys.items() if key in known}
    tiles = {name: found.known for name, found in fitting.items()}
    used = [fitting[name] for name, chosen in tiles.items() if chosen is not None]
    return TilesUsed(
        {name: chosen for name, chosen in tiles.items() if chosen is not None and chosen != RULE},
        source,
        searched,
        _sums(found for found in used if not found.cycles),
        _sums(found for found in used if found.cycles),
        len({keys[name] for name, chosen in tiles.items() if chosen is None}),
    )


def _sums(lines: Iterable[Found]) -> tuple[int, int]:
    """By the rule, and what is saved."""
    known = list(lines)
    return sum(one.before for one in known), sum(one.before - one.after for one in known)


def _search(
    wanted: Mapping[TileKey, Node],
    candidate: Candidate,
    target: Target,
    samples: Samples,
    cycles: bool,
    report: Report,
) -> dict[TileKey, Found]:
    """The best tiles of every kernel, on operands of a real training step."""
    if not wanted:
        return {}
    values = _operands(candidate, samples)
    found: dict[TileKey, Found] = {}
    searches: list[_TileSearch] = []
    for index, (key, node) in enumerate(wanted.items()):
        report(index, len(wanted))
        arrays = tuple(np.ascontiguousarray(values[value.name]) for value in node.inputs)
        search = _TileSearch(key, node, arrays, _variants(node, target, not candidate.train.integer, index))
        if search.fits:
            searches.append(search)
        if searches and sum(s.size_bytes for s in searches) > _IMAGE_BYTES:
            found.update(_counted(searches, target, cycles))
            searches = []
    return {**found, **_counted(searches, target, cycles)}


def _operands(candidate: Candidate, samples: Samples) -> dict[str, Array]:
    """Every value of the first micro-batch of the second training step."""
    train = candidate.train
    trainer, count = Trainer(train), train.batch + train.micro_batch
    turn = [i % len(samples.x) for i in range(count)]
    first, second = turn[: train.batch], turn[train.batch :]
    trainer.step(samples.x[first], samples.y[first])
    return trainer.values(samples.x[second], samples.y[second])


@dataclass(frozen=True, eq=False)
class _TileSearch:
    key: TileKey
    node: Node
    arrays: tuple[Array, ...]
    variants: Sequence[tuple[Tiles, Kernel]]

    @property
    def size_bytes(self) -> int:
        """Of all operands."""
        return sum(array.nbytes for array in self.arrays)

    @property
    def fits(self) -> bool:
        """Whether there is a choice, and a board can run it alone."""
        return len(self.variants) > 1 and self.run(self.variants[0][1]).pool_bytes <= POOL_BYTES

    def run(self, kernel: Kernel) -> KernelRun:
        """A call of a variant."""
        definition = op_def(self.node.op)
        sizes = tuple(value.size_bytes for value in self.node.outputs)
        inputs = tuple(array.tobytes() for array in self.arrays)
        scratch = definition.scratch(self.node)
        return KernelRun(kernel, inputs, sizes, dict(definition.alias), scratch, (None,) * len(sizes))


def _variants(node: Node, target: Target, fused: bool, index: int) -> list[tuple[Tiles, Kernel]]:
    """Kernels of a node with different C text: the rule's first. Tiles that a shape has no use for give equal text."""
    from tinytrain_compile.lower.kernels import kernel_context
    from tinytrain_compile.lower.lower import ScratchError, lower_node

    context = kernel_context(target.features, fused)
    texts: set[str] = set()
    found: list[tuple[Tiles, Kernel]] = []
    for number, tiles in enumerate((RULE, *candidates(node))):
        name = f"{PREFIX}_{index}_{number}"
        try:
            kernel = lower_node(node, name, context.tuned(tiles), fused)
        except ScratchError:  # the planner has reserved what the rule's tiles need
            continue
        text = kernel.source.replace(f"{name}(", "(")
        if text not in texts:
            texts.add(text)
            found.append((tiles, kernel))
    return found


def _counted(searches: Sequence[_TileSearch], target: Target, cycles: bool) -> dict[TileKey, Found]:
    """The best of each: fewest instructions or cycles, then least code; the rule unless LEAST_GAIN is saved."""
    if not searches:
        return {}
    runs = [search.run(kernel) for search in searches for _, kernel in search.variants]
    counted = count_kernels(runs, target, find_tools(target), runtime_headers(), cycles)
    prices = iter((_price(one, cycles), one.code_bytes) for one in counted)
    found: dict[TileKey, Found] = {}
    for search in searches:
        rows = [(tiles, next(prices)) for tiles, _ in search.variants]
        before, _ = rows[0][1]
        tiles, (best, _) = min(rows, key=lambda row: row[1])
        if best > before * (1 - LEAST_GAIN):
            tiles, best = RULE, before
        found[search.key] = Found(tiles.text, before, best, cycles)
    return found


def _price(count: KernelCount, cycles: bool) -> int:
    if not cycles:
        return count.instructions
    assert count.cycles is not None  # combinations.py refuses --cycles where there is no model
    return count.cycles
