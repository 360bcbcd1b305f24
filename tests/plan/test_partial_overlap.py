"""Buffers that may cover a dying one: every placement engine against exhaustive search, and rectangles of real ops."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import numpy as np
import pytest

from tinytrain_compile.ir.buffers import Buffer, Over, load_of
from tinytrain_compile.ir.stages import MemoryPlan
from tinytrain_compile.ir.types import Graph, Value
from tinytrain_compile.ops import new_builder
from tinytrain_compile.ops.base import overlaps_of
from tinytrain_compile.ops.conv import ConvAttrs
from tinytrain_compile.ops.int8.conv import QConvAttrs
from tinytrain_compile.ops.shape import ConcatAttrs, SliceAttrs
from tinytrain_compile.plan.check.plan import validate_plan
from tinytrain_compile.plan.options import PlanError, PlanOptions
from tinytrain_compile.plan.place.choose import decide
from tinytrain_compile.plan.place.cpsat import decide as decide_by_solver
from tinytrain_compile.plan.place.cpsat import minimise
from tinytrain_compile.plan.place.placement import Placement, build_packing, fit, greedy, improve_placement
from tinytrain_compile.plan.place.skyline import search
from tinytrain_compile.plan.planner import plan_memory


def random_items(seed: int) -> list[Buffer]:
    """A few boxes of 1 to 4 units; some begin where another ends, and may cover it from a random distance on."""
    draw = random.Random(seed)
    found: list[Buffer] = []
    taken: set[int] = set()
    for index in range(draw.randint(3, 6)):
        first, size, over = draw.randrange(4), 8 * draw.randint(1, 4), None
        dying = [item for item in found if item.last_step not in taken and item.over is None]
        if dying and draw.random() < 0.7:
            source = draw.choice(dying)
            first = source.last_step
            distance = 8 * draw.randrange(size // 8)
            saved = size + source.size_bytes - max(size, distance + source.size_bytes)
            over = Over(source.name, distance, draw.random() < 0.3, saved)
            taken.add(first)
        last = min(4, first + draw.choice([0, 1, 2, 4]))
        found.append(Buffer(f"b{index}", "tensor", size, 0, first, last, (), over))
    return found


def is_valid(items: list[Buffer], offsets: list[int], upto: int) -> bool:
    """Whether box `upto` lies well among those before it; by definition."""
    one = items[upto]
    for other, place in zip(items[:upto], offsets, strict=False):
        if one.first_step > other.last_step or other.first_step > one.last_step:
            continue
        low, high = offsets[upto], offsets[upto] + one.size_bytes
        if low >= place + other.size_bytes or place >= high:
            continue
        if one.over is None or one.over.name != other.name:
            return False
        above = place - low
        if above != one.over.distance if one.over.exact else above < one.over.distance:
            return False
    return True


def least_height(items: list[Buffer]) -> int:
    """By trying every place of every box."""

    def place(offsets: list[int], height: int) -> bool:
        index = len(offsets)
        if index == len(items):
            return True
        for offset in range(0, height - items[index].size_bytes + 1, 8):
            if is_valid(items, [*offsets, offset], index) and place([*offsets, offset], height):
                return True
        return False

    return next(height for height in itertools.count(8, 8) if place([], height))


def assert_valid(items: list[Buffer], unit: int, placement: Placement) -> None:
    offsets = [offset * unit for offset in placement.offsets]
    assert min(offsets) >= 0
    assert all(is_valid(items, offsets[: index + 1], index) for index in range(len(items)))
    ends = [offset + item.size_bytes for offset, item in zip(offsets, items, strict=True)]
    assert max(ends) == placement.height * unit


def test_every_engine_equals_exhaustive_search() -> None:
    below = covered = by_skyline = 0
    for seed in range(80):
        items = random_items(seed)
        packing = build_packing(items)
        unit = packing.unit_bytes
        buffers = tuple(Buffer(i.name, i.kind, i.size_bytes, 0, i.first_step, i.last_step, (), i.over) for i in items)
        assert packing.bound * unit == max(load_of(buffers, 5))
        least = least_height(items)
        start, sequence = greedy(packing)
        for found in (start, fit(packing, range(len(items))), improve_placement(packing, start, sequence, 0.02, 0)):
            assert_valid(items, unit, found)
            assert found.height * unit >= least
        best = minimise(packing, start, 5.0, 0)
        assert_valid(items, unit, best)
        assert best.proven
        assert best.height * unit == least
        for decision in (decide, decide_by_solver):
            yes = decision(packing, best.height, 5.0, 0)
            assert yes.placement is not None
            assert_valid(items, unit, yes.placement)
            assert decision(packing, best.height - 1, 5.0, 0).answer == "no"
        found = search(packing, best.height, 1.0)
        if found.placement is not None:
            assert_valid(items, unit, found.placement)
        assert search(packing, best.height - 1, 1.0).answer != "yes"
        by_skyline += found.answer == "yes"
        apart = [replace(item, over=None) for item in items]
        covered += packing.ties != ()
        below += least_height(apart) > least
    assert covered >= 45
    assert below >= 10  # covering is what makes these lower
    assert by_skyline >= 60  # what it cannot find, the solver does


def chain() -> tuple[Graph, str]:
    """int8: an expansion, a depthwise convolution with a stride, and back to float."""
    builder = new_builder()
    x = Value(builder.unique("x"), (1, 8, 8, 8), "int8", "NHWC")

    def conv(value: Value, shape: tuple[int, ...], attrs: ConvAttrs, name: str) -> Value:
        channels = shape[0]
        operands = [builder.constant(f"{name}.w", np.ones(shape, np.int8))]
        operands.append(builder.constant(f"{name}.b", np.zeros(channels, np.int32)))
        operands.append(builder.constant(f"{name}.m", np.full(channels, 1 << 30, np.int32)))
        operands.append(builder.constant(f"{name}.s", np.full(channels, -5, np.int8)))
        return builder.emit("QConv", (value, *operands), QConvAttrs(attrs, 0, 0), name=name)

    wide = conv(x, (48, 1, 1, 8), ConvAttrs((1, 1), bias=True), "expand")
    down = conv(wide, (48, 3, 3, 1), ConvAttrs((3, 3), (2, 2), (1, 1, 1, 1), groups=48, bias=True), "down")
    slim = conv(down, (8, 1, 1, 48), ConvAttrs((1, 1), bias=True), "slim")
    return Graph("g", tuple(builder.nodes), (x,), (slim,), builder.constants), slim.name


@pytest.fixture(scope="module")
def planned() -> tuple[Graph, MemoryPlan]:
    graph, _ = chain()
    return graph, plan_memory(graph, PlanOptions())


def test_a_chain_takes_little_more_than_its_largest_tensor(planned: tuple[Graph, MemoryPlan]) -> None:
    _, plan = planned
    overs = {buffer.values[0]: buffer.over for buffer in plan.buffers if buffer.over is not None}
    assert list(overs) == ["expand", "down", "slim"]
    assert plan.order_proven
    assert plan.gap_bytes == 0
    scratch = max(buffer.size_bytes for buffer in plan.buffers if buffer.kind == "scratch")
    assert plan.arena_bytes <= 16 + 8 * 8 * 48 + scratch + 64
    shared = {
        one.name
        for one in plan.buffers
        for other in plan.buffers
        if one.over and one.over.name == other.name and _meet(one, other)
    }
    assert shared >= {"expand", "down"}  # the peak is at these; the last one fits beside what it reads, too


@pytest.mark.parametrize("first", [2, 6])
def test_of_several_that_a_node_may_cover_the_one_that_saves_most_is_taken(first: int) -> None:
    """Two maps die where they are joined; wherever the larger one stands, the result lies over it."""
    builder = new_builder()
    x = Value(builder.unique("x"), (1, 4, 4, 8), "float32", "NHWC")
    cuts = (("low", 0, first), ("high", first, 8 - first))
    parts = [
        builder.emit("Slice", (x,), SliceAttrs((0, 0, 0, start), (1, 1, 1, 1), (1, 4, 4, size)), name=name)
        for name, start, size in cuts
    ]
    y = builder.emit("Concat", parts, ConcatAttrs(3), name="joined")
    graph = Graph("g", tuple(builder.nodes), (x,), (y,), builder.constants)
    (joined,) = builder.nodes[-1:]
    assert len(overlaps_of(joined)) == 2
    plan = plan_memory(graph, PlanOptions())
    large, small = sorted(parts, key=lambda part: -part.size_bytes)
    found = {name: buffer for buffer in plan.buffers for name in buffer.values}
    over = found[y.name].over
    assert over is not None and over.name == large.name and _meet(found[y.name], found[large.name])
    assert plan.lower_bound_bytes - PlanOptions().header_bytes == y.size_bytes + small.size_bytes


def _meet(one: Buffer, other: Buffer) -> bool:
    return one.offset < other.offset + other.size_bytes and other.offset < one.offset + one.size_bytes


def rebuilt(plan: MemoryPlan, name: str, **changes: object) -> MemoryPlan:
    """One buffer changed, figures made to agree."""
    buffers = tuple(
        replace(b, **changes) if (b.name, b.kind) in ((name, "tensor"), (name, "input")) else b for b in plan.buffers
    )  # type: ignore[arg-type]
    load = load_of(buffers, len(plan.order))
    return replace(
        plan,
        buffers=buffers,
        offsets={value: b.offset for b in buffers for value in b.values},
        arena_bytes=max(b.offset + b.size_bytes for b in buffers),
        lower_bound_bytes=max(load),
        peak_step=load.index(max(load)),
        placement_proven=False,
    )


@pytest.mark.parametrize("name", ["expand", "down"])
def test_a_distance_that_is_too_small_is_named(planned: tuple[Graph, MemoryPlan], name: str) -> None:
    """The covered buffer moved down by one alignment unit, below the distance (or off a multiple of a pixel)."""
    graph, plan = planned
    buffer = next(b for b in plan.buffers if b.name == name)
    assert buffer.over is not None
    options = PlanOptions()
    for above in range(-8, buffer.size_bytes, 8):
        allowed = above >= buffer.over.distance and (not buffer.over.exact or above % 48 == 0)
        apart = rebuilt(plan, name, offset=1 << 16)
        bad = rebuilt(apart, buffer.over.name, offset=(1 << 16) + above)
        if name == "down":  # what wrote the covered one must not be in the way
            bad = rebuilt(bad, "expand", over=None, offset=(1 << 16) + above)
        if allowed:
            validate_plan(graph, bad, options)
            continue
        with pytest.raises(PlanError) as caught:
            validate_plan(graph, bad, options)
        assert caught.value.verdict == "distance"


@pytest.mark.parametrize(
    "change",
    [
        lambda over: replace(over, saved_bytes=over.saved_bytes + 8),
        lambda over: replace(over, distance=over.distance - 8),
        lambda over: replace(over, name="slim"),
    ],
)
def test_what_a_buffer_may_cover_is_not_believed(planned: tuple[Graph, MemoryPlan], change) -> None:  # type: ignore[no-untyped-def]
    graph, plan = planned
    over = next(b.over for b in plan.buffers if b.name == "expand")
    with pytest.raises(PlanError) as caught:
        validate_plan(graph, rebuilt(plan, "expand", over=change(over)), PlanOptions())
    assert caught.value.verdict == "cover"
