"""Slices that end inside of nodes: streams between calls, others between turns, give the bytes of whole steps."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

from testing.planning.streams import random_streams
from tests.e2e import chain
from tests.e2e.test_streams import train_of
from tests.emit.test_generated_c import needs_gcc
from tests.parts.test_slices import Sliced, samples
from tinytrain_compile.driver.candidate import core_model
from tinytrain_compile.ir.kernels import KernelSet
from tinytrain_compile.ir.stages import MemoryPlan, StepPieces, TrainGraph
from tinytrain_compile.ir.types import Node
from tinytrain_compile.lower import LowerOptions, lower_nodes
from tinytrain_compile.lower.kernels import kernel_context
from tinytrain_compile.ops.base import row_form
from tinytrain_compile.ops.rows import RowForm
from tinytrain_compile.ops.stream import StreamAttrs, errors_of, pieces_of
from tinytrain_compile.plan.options import PlanOptions
from tinytrain_compile.plan.planner import plan_memory
from tinytrain_compile.plan.slices import SlicedPlan, call_ps, sliced, step_pieces
from tinytrain_compile.target.loader import load_target

CORE = load_target("cortex-m7")
MODEL = core_model(CORE)
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
def cut(seed: int, integer: bool = True) -> tuple[SlicedPlan, KernelSet, StepPieces]:
    found = sliced(planned(seed, integer)[1], MODEL, SMALL)
    kernels = lowered(found.plan, integer, frozenset(found.long))
    return found, kernels, step_pieces(found, kernels.turns, MODEL)


def lowered(plan: MemoryPlan, integer: bool, in_turns: frozenset[str] = frozenset()) -> KernelSet:
    options = LowerOptions("net", kernel_context(CORE.features, not integer), in_turns=in_turns)
    return lower_nodes(plan.order, options, cache=chain.KERNELS)


def paused(plan: MemoryPlan) -> list[Node]:
    return [node for node in plan.order if isinstance(node.attrs, StreamAttrs) and node.attrs.pauses]


QUICK = [(1, True), (2, True)]
LONG = [(seed, integer) for seed in SEEDS for integer in (True, False) if (seed, integer) not in QUICK]


@needs_gcc
@pytest.mark.parametrize(("seed", "integer"), [*QUICK, *(pytest.param(*one, marks=pytest.mark.slow) for one in LONG)])
def test_pieces_give_the_bytes_of_whole_steps(seed: int, integer: bool, tmp_path: Path) -> None:
    """The whole step is that of the plan without pauses, by its own kernels."""
    train, plan = planned(seed, integer)
    in_pieces, kernels, pieces = cut(seed, integer)
    assert pieces.turns
    assert paused(in_pieces.plan)
    made = chain.emitted(train, plan, lowered(plan, integer), 8, fma=CORE.features.fma)
    again = chain.emitted(train, in_pieces.plan, kernels, 8, fma=CORE.features.fma, pieces=pieces)
    whole = Sliced(made, tmp_path / "whole", ("-O0",))
    device = Sliced(again, tmp_path / "pieces", ("-O0", "-fsanitize=undefined"))
    x, y = samples(whole.made)
    for one in zip(x, y, strict=True):
        loss, slices = device.sliced_step(*one, 0)
        assert loss == whole.train(*one)
        assert slices == len(again.bundle.parts)
    assert device.save() == whole.save()


def test_every_kind_is_among_them() -> None:
    """Streams with errors that find their exponents and with sums over rows; other nodes with errors, and without."""
    found = set[str]()
    for seed in SEEDS:
        train, _ = planned(seed)
        in_pieces, _, pieces = cut(seed)
        assert not train.exponents_known
        for node in in_pieces.plan.order:
            own = {"errors"} if errors_of(node) else {"none"}
            if isinstance(node.attrs, StreamAttrs) and node.attrs.pauses:
                forms = [row_form(inner) for inner in node.attrs.nodes]
                own |= {"sums"} if any(isinstance(form, RowForm) and form.sum is not None for form in forms) else set()
                found |= {f"stream, {one}" for one in own}
            found |= {f"turns, {one}" for one in own} if node.name in pieces.turns else set()
    assert found == {"stream, errors", "stream, none", "stream, sums", "turns, errors", "turns, none"}


@pytest.mark.parametrize("seed", SEEDS)
def test_pieces_are_all_there_in_order_and_nothing_moves(seed: int) -> None:
    _, plan = planned(seed)
    in_pieces, kernels, pieces = cut(seed)
    assert [node.name for node in in_pieces.plan.order] == [node.name for node in plan.order]
    assert (in_pieces.plan.buffers, in_pieces.plan.offsets) == (plan.buffers, plan.offsets)
    assert (in_pieces.plan.scratch_offsets, in_pieces.plan.arena_bytes) == (plan.scratch_offsets, plan.arena_bytes)
    for node in in_pieces.plan.order:
        cycles, ends = pieces.cycles[node.name], ((0, 1),)
        if isinstance(node.attrs, StreamAttrs):
            ends = pieces_of(node.attrs)
            assert [call for first, end in ends for call in range(first, end)] == list(range(len(node.attrs.calls)))
        elif node.name in pieces.turns:
            bounds = pieces.turns[node.name]
            assert (bounds[0], bounds[-1]) == (0, kernels.turns[node.name])
            ends = tuple(pairwise(bounds))
        assert len(cycles) == len(ends)
        assert all(end > first for first, end in ends)


def test_no_piece_is_much_longer_than_asked() -> None:
    """By half a call at either end of a stream's pieces, or a turn: these are what there is to cut."""
    for seed in SEEDS:
        in_pieces, kernels, pieces = cut(seed)
        limit = sum(map(sum, pieces.cycles.values())) / SMALL
        for node in paused(in_pieces.plan):
            assert max(pieces.cycles[node.name]) <= limit + max(cycles_of_calls(node)) + 1
        for name in pieces.turns:
            turn = sum(pieces.cycles[name]) / kernels.turns[name]
            assert max(pieces.cycles[name]) <= limit + turn + 1


def cycles_of_calls(node: Node) -> list[int]:
    """Cycles of every call of a stream."""
    assert isinstance(node.attrs, StreamAttrs)
    return [time * MODEL.clock_mhz // 1_000_000 for time in call_ps(node.attrs, MODEL)]


def test_what_has_no_turns_stays_whole() -> None:
    found = sliced(planned(1)[1], MODEL, SMALL)
    pieces = step_pieces(found, {}, MODEL)
    assert found.long
    assert not pieces.turns
    assert all(len(pieces.cycles[name]) == 1 for name in found.long)
