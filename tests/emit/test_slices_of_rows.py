"""Slices that end at rows: streams, and long nodes as streams of one, give the bytes of whole steps."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from testing.streams import random_streams
from tests.e2e import chain
from tests.e2e.test_streams import train_of
from tests.emit.test_generated_c import needs_gcc
from tests.emit.test_slices import Sliced, samples
from tinytrain_compile.driver.memories import core_model
from tinytrain_compile.ir import Node
from tinytrain_compile.ir.stages import MemoryPlan, TrainGraph
from tinytrain_compile.lower import LowerOptions, lower_nodes
from tinytrain_compile.lower.kernels import kernel_context
from tinytrain_compile.ops.base import op_def, row_form
from tinytrain_compile.ops.stream import StreamAttrs, errors_of, pieces_of
from tinytrain_compile.plan import PlanOptions, plan_memory
from tinytrain_compile.plan.slices import SlicedPlan, call_ps, sliced
from tinytrain_compile.target import load_target

CORE = load_target("cortex-m7")
SMALL = 200
"""Pieces of a step: most layers are then longer than one."""
SEEDS = (1, 2, 4, 5)


@cache
def planned(seed: int, integer: bool = True) -> tuple[TrainGraph, MemoryPlan]:
    """A random network whose layers are streams where chance has it."""
    train = train_of(seed, integer)
    options = PlanOptions(alignment_bytes=8, effort="quick", keep=(train.loss.name,))
    return train, plan_memory(random_streams(train, seed)[0], options)


@cache
def cut(seed: int, integer: bool = True) -> SlicedPlan:
    return sliced(planned(seed, integer)[1], core_model(CORE), SMALL)


def paused(plan: MemoryPlan) -> list[Node]:
    return [node for node in plan.order if isinstance(node.attrs, StreamAttrs) and node.attrs.pauses]


def project(train: TrainGraph, plan: MemoryPlan, cycles: dict[str, tuple[int, ...]] | None) -> chain.Project:
    fused = not train.integer
    options = LowerOptions("net", kernel_context(CORE.features, fused), fused)
    kernels = lower_nodes(plan.order, options, cache=chain.KERNELS)
    return chain.emitted(train, plan, kernels, 8, fma=CORE.features.fma, slices=cycles)


QUICK = [(1, True), (2, True)]
LONG = [(seed, integer) for seed in SEEDS for integer in (True, False) if (seed, integer) not in QUICK]


@needs_gcc
@pytest.mark.parametrize(("seed", "integer"), [*QUICK, *(pytest.param(*one, marks=pytest.mark.slow) for one in LONG)])
def test_pieces_give_the_bytes_of_whole_steps(seed: int, integer: bool, tmp_path: Path) -> None:
    """The whole step is that of the plan without pauses, by its own kernels."""
    train, plan = planned(seed, integer)
    pieces = cut(seed, integer)
    assert paused(pieces.plan)
    whole = Sliced(project(train, plan, None), tmp_path / "whole", ("-Og",))
    device = Sliced(project(train, pieces.plan, pieces.cycles), tmp_path / "pieces", ("-Og", "-fsanitize=undefined"))
    x, y = samples(whole.made)
    for one in zip(x, y, strict=True):
        loss, slices = device.sliced_step(*one, 0)
        assert loss == whole.train(*one)
        assert slices > sum(len(pieces_of(node.attrs)) for node in paused(pieces.plan))  # type: ignore[arg-type]
    assert device.save() == whole.save()


def test_every_kind_is_among_them() -> None:
    """Streams of several layers, of one, with errors that find their exponents, and with sums over rows."""
    found = set[str]()
    for seed in SEEDS:
        train, _ = planned(seed)
        for node in paused(cut(seed).plan):
            assert isinstance(node.attrs, StreamAttrs)
            found.add("several" if len(node.attrs.nodes) > 1 else "one")
            found |= {"errors"} if errors_of(node) and not train.exponents_known else set()
            forms = [row_form(inner) for inner in node.attrs.nodes]
            found |= {"sums"} if any(form is not None and form.sum is not None for form in forms) else set()
    assert found == {"several", "one", "errors", "sums"}


@pytest.mark.parametrize("seed", SEEDS)
def test_pieces_are_all_calls_in_order_and_nothing_moves(seed: int) -> None:
    _, plan = planned(seed)
    pieces = cut(seed)
    assert [node.name for node in pieces.plan.order] == [node.name for node in plan.order]
    assert (pieces.plan.buffers, pieces.plan.offsets) == (plan.buffers, plan.offsets)
    assert (pieces.plan.scratch_offsets, pieces.plan.arena_bytes) == (plan.scratch_offsets, plan.arena_bytes)
    for before, after in zip(plan.order, pieces.plan.order, strict=True):
        assert after.outputs == before.outputs
        assert op_def(after.op).scratch(after) <= op_def(before.op).scratch(before)
        if not isinstance(after.attrs, StreamAttrs):
            assert after == before
            assert len(pieces.cycles[after.name]) == 1
            continue
        ends = pieces_of(after.attrs)
        assert [call for first, end in ends for call in range(first, end)] == list(range(len(after.attrs.calls)))
        assert len(pieces.cycles[after.name]) == len(ends)
        assert all(end > first for first, end in ends)


def test_no_piece_is_much_longer_than_asked() -> None:
    """By half a call at either end: the calls of rows are what there is to cut."""
    for seed in SEEDS:
        pieces = cut(seed)
        limit = sum(map(sum, pieces.cycles.values())) / SMALL
        for node in paused(pieces.plan):
            assert isinstance(node.attrs, StreamAttrs)
            longest_call = max(cycles_of_calls(node))
            assert max(pieces.cycles[node.name]) <= limit + longest_call + 1


def cycles_of_calls(node: Node) -> list[int]:
    """Cycles of every call of a stream."""
    assert isinstance(node.attrs, StreamAttrs)
    core = core_model(CORE)
    return [time * core.clock_mhz // 1_000_000 for time in call_ps(node.attrs, core)]


def test_what_lies_over_its_operand_is_left_whole() -> None:
    """A result moved onto the rows that are still to be read: the node has to be computed at once."""
    seen = 0
    for seed in SEEDS:
        _, plan = planned(seed)
        alone = [n for n in paused(cut(seed).plan) if isinstance(n.attrs, StreamAttrs) and len(n.attrs.nodes) == 1]
        for node in alone:
            image = max(node.inputs, key=lambda value: value.size_bytes)
            if image.name not in plan.offsets or image.name in {value.name for value in node.outputs}:
                continue
            places = {**plan.offsets, node.outputs[0].name: plan.offsets[image.name] + 1}
            again = sliced(replace(plan, offsets=places), core_model(CORE), SMALL).plan
            assert node.name not in {other.name for other in paused(again)}
            seen += 1
    assert seen > 2
