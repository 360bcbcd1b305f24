"""The geometry of the memory picture: steps to the right, addresses upwards in bytes. Numbers only, no markup."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from tinytrain_compile.ir.buffers import Buffer
from tinytrain_compile.ir.stages import MemoryPlan
from tinytrain_compile.ops.rows import row_pitch
from tinytrain_compile.ops.stream import Ring, StreamAttrs
from tinytrain_compile.report.analysis import CATEGORIES, Analysis, Category, Holding, Role, Tenant
from tinytrain_compile.report.layout import bytes_text, plural, printable, shorten

HEADROOM = 1.07
"""Height of the picture over the highest line in it: room for that line's caption."""

LIMIT_SHOWN = 1.5
"""A limit that is further above the arena than this would squash the picture; it is told in words instead."""

TICK_ROOM = 0.03
"""Height of the text at an axis, as a share of the picture's."""

FOLDED_SHARE = 0.05
"""Share of the picture above which permanent buffers are worth a button that folds them away."""

NAME_CELLS, TEXT_CELLS, SHORT_LABEL = 90, 2000, 18
"""Letters of a name and of a text that a page shows, and of a label below which the beginning tells most."""
MOST_PADDING = 15
"""Bytes between permanent buffers that are only alignment."""
VALUES_SEARCHED = 12
"""Names of values of a buffer that the search knows."""
VALUES_SHOWN = 5
"""Lines of a list in a description that is shown beside the pointer."""


@dataclass(frozen=True)
class Piece:
    """A part of a buffer's rectangle: steps [first, first + count) with one kind of content."""

    first: int
    count: int
    category: Category


@dataclass(frozen=True)
class DrawnRing:
    """A ring of a stream inside the rectangle of its scratch; top: as in DrawnBuffer."""

    top: int
    size_bytes: int


@dataclass(frozen=True)
class DrawnBuffer:
    """A buffer's rectangle. top: distance of its upper edge from the upper edge of the picture, in bytes.

    values: names of what it holds one after the other, to search; "" if that is its own name alone.
    """

    number: int
    holding: Holding
    name: str
    details: str
    top: int
    pieces: tuple[Piece, ...]
    values: str = ""
    rings: tuple[DrawnRing, ...] = ()


@dataclass(frozen=True)
class PhaseBar:
    """A run of steps with one role."""

    first: int
    count: int
    role: Role


@dataclass(frozen=True)
class DrawnLine:
    """A horizontal line. top: distance from the upper edge in bytes; below: whether its caption stands below it."""

    kind: str
    caption: str
    top: int
    below: bool = False


@dataclass(frozen=True)
class Area:
    """Live bytes of one category over all steps, stacked on the categories before it: an outline as SVG path data."""

    category: Category
    path: str


@dataclass(frozen=True)
class Picture:
    """Everything that the drawing needs; widths in steps, heights in bytes.

    height: of the whole picture; highest: of the highest line in it.
    folded_bytes: of the permanent buffers at the bottom, which report.js folds away; 0 if they take little.
    """

    steps: int
    height: int
    boxes: tuple[DrawnBuffer, ...]
    lines: tuple[DrawnLine, ...]
    ticks: tuple[DrawnLine, ...]
    phase_bars: tuple[PhaseBar, ...]
    areas: tuple[Area, ...]
    area_height: int
    categories: tuple[Category, ...]
    highest: int
    folded_bytes: int = 0


def build_picture(analysis: Analysis, limit_bytes: int | None) -> Picture:
    """Lay out the arena over the steps and the live bytes below it."""
    plan = analysis.plan
    steps = max(len(plan.order), 1)
    highest = plan.total_bytes
    if limit_bytes is not None and limit_bytes <= LIMIT_SHOWN * highest and not plan.further:
        highest = max(highest, limit_bytes)
    height = max(int(highest * HEADROOM), 1)
    used = {tenant.category for holding in analysis.holdings for tenant in holding.tenants}
    categories: tuple[Category, ...] = tuple(category for category in CATEGORIES if category in used)
    area_height = max(*analysis.load, 1)
    return Picture(
        steps,
        height,
        tuple(_box(analysis, number, holding, height) for number, holding in enumerate(analysis.holdings)),
        tuple(_lines(analysis, limit_bytes, height)),
        tuple(_tick_lines(plan, height)),
        tuple(_phase_bars(analysis)),
        tuple(_areas(analysis, categories, area_height)),
        area_height,
        categories,
        highest,
        _folded_bytes(analysis, height),
    )


def _folded_bytes(analysis: Analysis, height: int) -> int:
    """Return the end of the permanent buffers that begin at address 0 and follow each other without a gap."""
    last, end = len(analysis.plan.order) - 1, 0
    for buffer in sorted((holding.buffer for holding in analysis.holdings), key=lambda buffer: buffer.offset):
        if buffer.offset > end + MOST_PADDING or buffer.first_step > 0 or buffer.last_step < last:
            break
        end = buffer.offset + buffer.size_bytes
    return end if FOLDED_SHARE * height < end < analysis.plan.total_bytes else 0


def axis_text(size_bytes: int) -> str:
    """Write a round number of bytes for an axis: 512 B, 96 KB, 1.5 MB (powers of 1,024)."""
    if size_bytes >= 1 << 20:
        return f"{size_bytes / (1 << 20):g} MB"
    return f"{size_bytes / 1024:g} KB" if size_bytes >= 1024 else f"{size_bytes} B"


def about_text(size_bytes: int) -> str:
    """Write roughly how many bytes, in at most seven characters."""
    for unit, limit in (("MB", 1 << 20), ("KB", 1 << 10)):
        if size_bytes >= limit:
            return f"{size_bytes / limit:.1f} {unit}"
    return f"{size_bytes} B"


def name_of(text: str, cells: int = NAME_CELLS) -> str:
    """Make a name of any length and content fit to be shown."""
    return shorten(printable(text), cells, "…")


def text_of(text: str) -> str:
    """Return running text, whole but for a name of absurd length in it, which report.json has."""
    return name_of(text, TEXT_CELLS)


def label_of(text: str, cells: int) -> str:
    """Cut a name for a rectangle: of a very short one the beginning tells most (report.js does the same)."""
    if len(text) <= cells or cells >= SHORT_LABEL:
        return shorten(text, cells, "…")
    return text[: cells - 1] + "…"


def describe(analysis: Analysis, holding: Holding) -> str:
    """Describe a buffer in several lines, for a person who points at it."""
    buffer = holding.buffer
    memory, offset = analysis.plan.place(buffer.offset)
    end, where = offset + buffer.size_bytes, f" of {analysis.plan.further[memory - 1].name}" if memory else ""
    lines = [
        name_of(buffer.name),
        f"{bytes_text(buffer.size_bytes)} at offset {offset:,}{where} (to {end:,})",
        f"{CATEGORIES[holding.tenants[0].category]}, steps {buffer.first_step} to {buffer.last_step}",
    ]
    if buffer.kind in ("tensor", "input"):
        lines += [_tenant_line(analysis, tenant) for tenant in holding.tenants[:VALUES_SHOWN]]
        if len(holding.tenants) > VALUES_SHOWN:
            lines.append(f"then {plural(len(holding.tenants) - VALUES_SHOWN, 'more value')}")
    elif buffer.kind == "scratch":
        lines.append(f"working memory of {name_of(analysis.node_label(buffer.first_step))}")
        rings = [
            f"{plural(ring.rows, 'row')} of {name_of(ring.name)} ({bytes_text(size)})"
            for ring, size in _rings(analysis, buffer)
        ]
        lines += rings[:VALUES_SHOWN]
        if len(rings) > VALUES_SHOWN:
            lines.append(f"and rows of {plural(len(rings) - VALUES_SHOWN, 'more map')}")
    return "\n".join(lines)


def _rings(analysis: Analysis, buffer: Buffer) -> list[tuple[Ring, int]]:
    """Return the rings in a stream's scratch, and the bytes of each; none in any other buffer."""
    attrs = analysis.plan.order[buffer.first_step].attrs if buffer.kind == "scratch" else None
    if not isinstance(attrs, StreamAttrs):
        return []
    maps = {value.name: value for node in attrs.nodes for value in node.outputs}
    return [(ring, ring.rows * row_pitch(maps[ring.name])) for ring in attrs.rings]


def _tenant_line(analysis: Analysis, tenant: Tenant) -> str:
    order = analysis.plan.order
    written = (
        "there at the start" if tenant.written_at is None else f"written by {name_of(order[tenant.written_at].name)}"
    )
    if not tenant.read_at:
        return f"{written}, read by the caller"
    return f"{written}, last read by {name_of(order[tenant.read_at[-1]].name)}"


def _box(analysis: Analysis, number: int, holding: Holding, height: int) -> DrawnBuffer:
    buffer = holding.buffer
    pieces = [
        Piece(run[0].first_step, run[-1].last_step + 1 - run[0].first_step, run[0].category)
        for run in _runs(holding.tenants)
    ]
    top = height - buffer.offset - buffer.size_bytes
    bottom = top + buffer.size_bytes
    rings = tuple(DrawnRing(bottom - ring.offset - size, size) for ring, size in _rings(analysis, buffer))
    names = [name_of(value) for value in buffer.values[:VALUES_SEARCHED] if value != buffer.name]
    details = describe(analysis, holding)
    return DrawnBuffer(number, holding, name_of(buffer.name), details, top, tuple(pieces), " ".join(names), rings)


def _runs(tenants: tuple[Tenant, ...]) -> list[list[Tenant]]:
    """Group neighbours of one category."""
    runs: list[list[Tenant]] = []
    for tenant in tenants:
        if runs and runs[-1][0].category == tenant.category:
            runs[-1].append(tenant)
        else:
            runs.append([tenant])
    return runs


def _lines(analysis: Analysis, limit_bytes: int | None, height: int) -> Iterator[DrawnLine]:
    plan = analysis.plan
    if plan.further:
        yield from _memory_lines(plan, limit_bytes, height)
        return
    limit = limit_bytes if limit_bytes is not None and limit_bytes <= height else None
    under_limit = limit is not None and plan.arena_bytes < limit
    yield DrawnLine("arena", f"arena used {bytes_text(plan.arena_bytes)}", height - plan.arena_bytes, under_limit)
    if plan.gap_bytes:
        caption = f"lower bound {bytes_text(plan.lower_bound_bytes)}"
        yield DrawnLine("bound", caption, height - plan.lower_bound_bytes, below=True)
    if limit is not None:
        yield DrawnLine("limit", f"--arena {bytes_text(limit)}", height - limit, limit < plan.arena_bytes)


def _memory_lines(plan: MemoryPlan, limit_bytes: int | None, height: int) -> Iterator[DrawnLine]:
    """Yield where each memory ends.

    What fits is told in words: the next memory begins there, so a limit has no place, nor has a bound of all memories
    in a picture in which each has its own addresses.
    """
    of = "" if limit_bytes is None else f" of {bytes_text(limit_bytes)}"
    yield DrawnLine("arena", f"arena used {bytes_text(plan.arena_bytes)}{of}", height - plan.arena_bytes, below=True)
    for memory in plan.further:
        end = memory.base + memory.used_bytes
        used = f"{bytes_text(memory.used_bytes)} of {bytes_text(memory.capacity_bytes)}"
        yield DrawnLine("arena", f"{name_of(memory.name)} used {used}", height - end, below=True)


def _tick_lines(plan: MemoryPlan, height: int) -> Iterator[DrawnLine]:
    """Yield addresses: in a plan of several memories each begins at 0 again."""
    if not plan.further:
        yield from (DrawnLine("tick", axis_text(value), height - value) for value in _ticks(height))
        return
    step = next(value for value in (1 << power for power in range(63)) if height // value <= 8)
    ranges = [(0, plan.arena_bytes), *((memory.base, memory.used_bytes) for memory in plan.further)]
    for base, size in ranges:
        room = size - TICK_ROOM * height  # none right below the next memory's 0
        yield from (
            DrawnLine("tick", axis_text(value), height - base - value)
            for value in range(0, size, step)
            if value <= room
        )


def _ticks(height: int) -> list[int]:
    """Return four to eight multiples of a power of two, none so near the upper edge that its text would be cut."""
    step = 1
    while height // step > 8:
        step *= 2
    return [value for value in range(0, height, step) if value <= 0.97 * height]


def _phase_bars(analysis: Analysis) -> Iterator[PhaseBar]:
    """Yield runs of forward, backward and update steps."""
    roles = analysis.roles
    starts = [step for step, role in enumerate(roles) if step == 0 or roles[step - 1] != role]
    for first, end in zip(starts, [*starts, len(roles)][1:], strict=True):
        yield PhaseBar(first, end - first, roles[first])


def _areas(analysis: Analysis, categories: tuple[Category, ...], height: int) -> Iterator[Area]:
    """Yield categories from the bottom up: what lives for ever first, so that the rest stands on level ground."""
    loads = analysis.category_loads()
    base = [0] * len(analysis.load)
    for category in sorted(categories, key=_STACKING.index):
        top = [low + part for low, part in zip(base, loads[category], strict=True)]
        yield Area(category, staircase(base, top, height))
        base = top


def staircase(base: list[int], top: list[int], height: int) -> str:
    """Return the outline between two levels of bytes over the steps, as SVG path data."""
    outline = [*_edge(top, height), *reversed(_edge(base, height))]
    return "M" + "L".join(f"{x} {y}" for x, y in outline) + "Z"


_STACKING: tuple[Category, ...] = (
    "header",
    "weights",
    "optimizer",
    "accumulators",
    "io",
    "activations",
    "gradients",
    "scratch",
)


def _edge(levels: list[int], height: int) -> list[tuple[int, int]]:
    """Return the corners of a staircase over the steps, only where the level changes."""
    points: list[tuple[int, int]] = []
    position = 0
    for level, run in groupby(levels):
        count = len(list(run))
        points += [(position, height - level), (position + count, height - level)]
        position += count
    return points
