"""The validator names every way in which a plan can be wrong; each test plants one mistake in a good plan."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from testing.planning.plan_graphs import training_graph
from tests.plan.random_graphs import random_graph
from tinytrain_compile.ir.buffers import Buffer, load_of
from tinytrain_compile.ir.stages import MemoryPlan
from tinytrain_compile.ir.types import Graph, Value
from tinytrain_compile.ops import new_builder
from tinytrain_compile.ops.activation import ClipAttrs
from tinytrain_compile.ops.conv import ConvAttrs
from tinytrain_compile.ops.shape import ReduceAttrs, ReshapeAttrs
from tinytrain_compile.ops.update import SgdAttrs
from tinytrain_compile.plan.check.plan import validate_plan
from tinytrain_compile.plan.options import PlanError, PlanOptions
from tinytrain_compile.plan.planner import plan_memory

OPTIONS = PlanOptions(effort="quick", keep=("loss",))


@pytest.fixture(scope="module")
def graph() -> Graph:
    """x -> conv -> clip -> view -> loss; a gradient updates w, then a second reader of the old w would be too late."""
    builder = new_builder()
    x = Value(builder.unique("x"), (1, 4, 4, 2), "float32", "NHWC")
    kernel = builder.constant("kernel", np.ones((2, 3, 3, 2), np.float32))
    w = builder.constant("w", np.ones((1, 32), np.float32))
    rate = builder.constant("rate", np.ones((), np.float32))
    y = builder.emit("Conv", (x, kernel), ConvAttrs((3, 3), pads=(1, 1, 1, 1)), name="conv")
    z = builder.emit("Clip", (y,), ClipAttrs(0.0, 6.0), name="clip")
    flat = builder.emit("Reshape", (z,), ReshapeAttrs((1, 32)), name="flat")
    product = builder.emit("Mul", (flat, w), name="product")
    builder.emit("Reduce", (product,), ReduceAttrs((0, 1)), name="loss")
    gradient = builder.emit("Neg", (flat,), name="gradient")
    back = builder.emit("Mul", (gradient, w), name="back")
    total = Value(builder.unique("sum"), (1, 32))
    summed = builder.emit("Accumulate", (total, back), name="summed")
    new = builder.emit("SgdUpdate", (w, summed, rate), SgdAttrs(), name="new", phase="apply")
    clear = builder.emit("Clear", (summed,), name="clear", phase="apply")
    state, updates = (rate, w), ((w, new), (total, clear))
    return Graph("g", tuple(builder.nodes), (x,), (product,), builder.constants, state, state, (total,), updates)


@pytest.fixture(scope="module")
def plan(graph: Graph) -> MemoryPlan:
    return plan_memory(graph, OPTIONS)


def rebuilt(plan: MemoryPlan, buffers: list[Buffer]) -> MemoryPlan:
    """The plan with other buffers and figures that agree with them, so that only the planted mistake is left."""
    load = load_of(tuple(buffers), len(plan.order))
    return replace(
        plan,
        buffers=tuple(buffers),
        offsets={name: b.offset for b in buffers for name in b.values},
        scratch_offsets={b.name: b.offset for b in buffers if b.kind == "scratch"},
        arena_bytes=max(b.offset + b.size_bytes for b in buffers),
        lower_bound_bytes=max(load),
        peak_step=load.index(max(load)),
    )


def changed(plan: MemoryPlan, value: str, **changes: int) -> MemoryPlan:
    """One buffer (of a value, or scratch by node name) changed."""
    target = buffer_of(plan, value)
    buffers = [replace(b, **changes) if b == target else b for b in plan.buffers]
    assert buffers != list(plan.buffers)
    return rebuilt(plan, buffers)


def moved(plan: MemoryPlan, node: str, before: str) -> MemoryPlan:
    """One node taken out of the order and put before another; buffers left as they were."""
    order = [item for item in plan.order if item.name != node]
    place = next((i for i, item in enumerate(order) if item.name == before), len(order))
    order.insert(place, next(item for item in plan.order if item.name == node))
    return replace(plan, order=tuple(order))


def buffer_of(plan: MemoryPlan, name: str) -> Buffer:
    """The buffer of a value, or (name of a node and a star) its scratch."""
    return next(b for b in plan.buffers if name in b.values or (f"{b.name}*", b.kind) == (name, "scratch"))


def end(plan: MemoryPlan) -> int:
    return plan.arena_bytes


def apart(plan: MemoryPlan, value: str, offset: int) -> MemoryPlan:
    """A value taken out of its buffer and put into one of its own."""
    home = buffer_of(plan, value)
    rest = replace(home, values=tuple(name for name in home.values if name != value))
    others = [rest if b == home else b for b in plan.buffers]
    return rebuilt(plan, [*others, replace(home, name=value, values=(value,), offset=offset, kind="tensor")])


def joined(plan: MemoryPlan, value: str, other: str) -> MemoryPlan:
    """A value put into another one's buffer, whose life is stretched over both."""
    home, host = buffer_of(plan, value), buffer_of(plan, other)
    first, last = min(home.first_step, host.first_step), max(home.last_step, host.last_step)
    size = max(home.size_bytes, host.size_bytes)
    merged = replace(host, values=host.values + home.values, first_step=first, last_step=last, size_bytes=size)
    return rebuilt(plan, [merged if b == host else b for b in plan.buffers if b != home])


def without(plan: MemoryPlan, name: str) -> MemoryPlan:
    return replace(plan, offsets={key: value for key, value in plan.offsets.items() if key != name})


def swapped_places(plan: MemoryPlan) -> MemoryPlan:
    """The addresses of two buffers of different size exchanged."""
    one, two = buffer_of(plan, "loss"), buffer_of(plan, "flat")
    places = {one.name: two.offset, two.name: one.offset}
    return rebuilt(plan, [replace(b, offset=places.get(b.name, b.offset)) for b in plan.buffers])


def duplicated(plan: MemoryPlan) -> MemoryPlan:
    return replace(plan, order=(*plan.order[:-1], plan.order[0]))


def foreign(plan: MemoryPlan) -> MemoryPlan:
    """The clip clips to something else than the graph says."""
    return replace(
        plan, order=tuple(replace(n, attrs=ClipAttrs(-9.0, 9.0)) if n.op == "Clip" else n for n in plan.order)
    )


PLANTED: dict[str, tuple[str, Callable[[MemoryPlan], MemoryPlan]]] = {
    "reads before it is written": ("order not topological", lambda p: moved(p, "clip", "conv")),
    "a node is missing": ("order incomplete", lambda p: replace(p, order=p.order[:-1])),
    "a node runs twice": ("order incomplete", duplicated),
    "a node is another one": ("order incomplete", foreign),
    "apply before the step is over": ("phase", lambda p: moved(p, "loss", "")),
    "value without address": ("missing value", lambda p: without(p, "product")),
    "state without address": ("missing value", lambda p: without(p, "w")),
    "scratch without address": ("missing scratch", lambda p: replace(p, scratch_offsets={})),
    "address of a constant": ("unknown value", lambda p: replace(p, offsets={**p.offsets, "kernel": 0})),
    "misaligned": ("misaligned", lambda p: changed(p, "back", offset=end(p) + 4)),
    "negative": ("outside arena", lambda p: changed(p, "back", offset=-8)),
    "beyond the end": ("outside arena", lambda p: replace(p, arena_bytes=p.arena_bytes - 8)),
    "view somewhere else": ("view broken", lambda p: apart(p, "flat", end(p))),
    "update writes elsewhere": ("alias broken", lambda p: apart(p, "new", end(p))),
    "sum is cleared elsewhere": ("alias broken", lambda p: apart(p, "clear", end(p))),
    "state over the header": ("overlap", lambda p: changed(p, "rate", offset=0)),
    "input over state": ("overlap", lambda p: changed(p, "x", offset=buffer_of(p, "w").offset)),
    "output over its input, partly": ("overlap", lambda p: changed(p, "conv", offset=buffer_of(p, "x").offset + 8)),
    "output over a live tensor": (
        "write after read",
        lambda p: changed(p, "product", offset=buffer_of(p, "flat").offset),
    ),
    "tensor over state": ("overlap", lambda p: changed(p, "gradient", offset=buffer_of(p, "w").offset)),
    "scratch over the input": ("overlap", lambda p: changed(p, "x", offset=p.scratch_offsets["conv"])),
    "two buffers exchanged": ("overlap", swapped_places),
    "in place where the op does not allow it": ("in place", lambda p: joined(p, "conv", "x")),
    "in place over a value that is read again": ("write after read", lambda p: joined(p, "product", "flat")),
    "kept value overwritten": ("overlap", lambda p: changed(p, "summed", offset=buffer_of(p, "loss").offset)),
    "state in two blocks": ("state scattered", lambda p: changed(p, "w", offset=end(p))),
    "life ends too early": ("lifetime", lambda p: changed(p, "flat", last_step=buffer_of(p, "flat").last_step - 1)),
    "life begins too late": ("lifetime", lambda p: changed(p, "x", first_step=1)),
    "state does not live for ever": ("lifetime", lambda p: changed(p, "rate", last_step=0)),
    "scratch at another step": ("lifetime", lambda p: changed(p, "conv*", first_step=2, last_step=2)),
    "buffer too small": ("buffer", lambda p: changed(p, "back", size_bytes=8)),
    "buffer elsewhere than the value": ("buffer", lambda p: replace(p, offsets={**p.offsets, "back": end(p) - 128})),
    "arena figure": ("totals", lambda p: replace(p, arena_bytes=p.arena_bytes + 8)),
    "bound figure": ("totals", lambda p: replace(p, lower_bound_bytes=p.lower_bound_bytes - 8)),
    "persistent figure": ("totals", lambda p: replace(p, persistent_bytes=p.persistent_bytes + 4)),
    "peak step": ("totals", lambda p: replace(p, peak_step=len(p.order) - 1)),
}


@pytest.mark.parametrize("mistake", PLANTED)
def test_planted_mistakes_are_named(graph: Graph, plan: MemoryPlan, mistake: str) -> None:
    verdict, plant = PLANTED[mistake]
    with pytest.raises(PlanError) as caught:
        validate_plan(graph, plant(plan), OPTIONS)
    assert caught.value.verdict == verdict


def test_updates_before_the_last_reader_are_write_after_read() -> None:
    """For every trained weight: its update moved to just before the data gradient that still needs the old one."""
    net, loss = training_graph(blocks=5, side=32)
    options = PlanOptions(effort="quick", keep=(loss,))
    good = plan_memory(net, options)
    place = {node.name: index for index, node in enumerate(good.order)}
    tried = 0
    for old, new in net.updates:
        update = good.order[place[new.name]]
        readers = [n for n in good.order if old in n.inputs and n != update and n.op.endswith("GradInput")]
        gradient = next(place[v.name] for v in update.inputs[1:] if v.name in place)
        if readers and gradient < place[readers[-1].name]:
            with pytest.raises(PlanError, match="write after read"):
                validate_plan(net, moved(good, update.name, readers[-1].name), options)
            tried += 1
    assert tried >= 1


def test_random_addresses_are_judged_as_the_rectangles_say() -> None:
    """Two movable buffers exchanged: refused exactly when rectangles then collide."""
    verdicts = {True: 0, False: 0}
    for seed in range(40):
        net, kept = random_graph(seed, 30)
        options = PlanOptions(effort="quick", keep=(kept,))
        good = plan_memory(net, options)
        movable = [b for b in good.buffers if b.kind in ("tensor", "scratch", "input")]
        for one, two in itertools.pairwise(movable):
            places = {id(one): two.offset, id(two): one.offset}
            bad = rebuilt(good, [replace(b, offset=places.get(id(b), b.offset)) for b in good.buffers])
            bad = replace(bad, placement_proven=False)
            verdicts[collides(bad)] += 1
            if collides(bad):
                with pytest.raises(PlanError) as caught:
                    validate_plan(net, bad, options)
                assert caught.value.verdict in ("overlap", "write after read", "in place", "distance")
            else:
                validate_plan(net, bad, options)
    assert min(verdicts.values()) > 50


def collides(plan: MemoryPlan) -> bool:
    return any(
        one.first_step <= two.last_step
        and two.first_step <= one.last_step
        and one.offset < two.offset + two.size_bytes
        and two.offset < one.offset + one.size_bytes
        and not (covers(one, two) or covers(two, one))
        for i, one in enumerate(plan.buffers)
        for two in plan.buffers[:i]
    )


def covers(one: Buffer, two: Buffer) -> bool:
    return one.over is not None and one.over.name == two.name and two.offset - one.offset >= one.over.distance


def test_apply_must_not_read_what_the_step_left_in_transient_memory() -> None:
    builder = new_builder()
    x = Value(builder.unique("x"), (1, 4))
    w = builder.constant("w", np.ones((1, 4), np.float32))
    rate = builder.constant("rate", np.ones((), np.float32))
    gradient = builder.emit("Neg", (x,))
    new = builder.emit("SgdUpdate", (w, gradient, rate), SgdAttrs(), phase="apply")
    net = Graph("g", tuple(builder.nodes), (x,), (gradient,), builder.constants, (w,), (w, rate), (), ((w, new),))
    with pytest.raises(PlanError, match="phase"):
        plan_memory(net, PlanOptions())


def test_an_update_that_is_a_copy_moves_the_state() -> None:
    builder = new_builder()
    x = Value(builder.unique("x"), (1, 4))
    w = builder.constant("w", np.ones((1, 4), np.float32))
    copy = builder.emit("Add", (w, x))
    net = Graph("g", tuple(builder.nodes), (x,), (copy,), builder.constants, (w,), (w,), (), ((w, copy),))
    with pytest.raises(PlanError, match="state moved"):
        plan_memory(net, PlanOptions())
