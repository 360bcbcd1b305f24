"""Kernels that are called for some turns of their longest loop: all calls together give the bytes of one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from tvm import tirx
from tvm.tirx import Stmt

from testing.kernels.layers import LAYERS
from testing.ops.cases import Case, cases_of
from tests.lower.kernel_harness import Built, build, compare, run
from tests.lower.test_kernels import COMPUTED
from tinytrain_compile.lower.function import lower_spec
from tinytrain_compile.lower.kernels import InstructionSet, KernelContext, kernel_spec
from tinytrain_compile.lower.lower import lower_node
from tinytrain_compile.lower.turns import cut_open
from tinytrain_compile.ops import OPS
from tinytrain_compile.ops.base import shown_name

LAYERS_IN_TURNS = [layer for layer in LAYERS if layer.case().op in ("QConv", "QConvGradInput")]


def same(one: Sequence[np.ndarray], other: Sequence[np.ndarray]) -> bool:
    return [array.tobytes() for array in one] == [array.tobytes() for array in other]


def bounds(turns: int) -> list[list[int]]:
    """Turns one by one (of many: in eleven pieces), and two pieces of different length."""
    pieces = min(turns, 11)
    return [[turns * piece // pieces for piece in range(pieces + 1)], [0, max(1, turns // 3), turns]]


@pytest.mark.parametrize("cases", [pytest.param(1, id="first"), pytest.param(9, id="all", marks=pytest.mark.slow)])
def test_every_kernel_in_pieces_equals_the_whole(cases: int, tmp_path: Path) -> None:
    every = [case for op in COMPUTED if op != "Stream" for case in cases_of(op)[:cases]]
    cut = {shown_name(built.node) for built in checked(build(every, tmp_path, fpu=True, in_turns=True))}
    assert len(cut) > 2 * len(COMPUTED) // 3, sorted({*COMPUTED} - cut)


def test_small_kernels_that_share_functions(tmp_path: Path) -> None:
    built = build([layer.case() for layer in LAYERS_IN_TURNS], tmp_path, fpu=True, small=True, in_turns=True)
    assert any(one.numbers for one in checked(built))


def checked(built: Sequence[Built]) -> list[Built]:
    """Those that can be cut; in pieces they give what one call gives, which is what numpy does."""
    found = list[Built]()
    for one in built:
        whole = run(one)
        compare(one, whole)
        if one.turns > 1:
            found.append(one)
            for calls in bounds(one.turns):
                assert same(run(one, bounds=calls), whole), f"{one.case} {calls}\n{one.kernel.source}"
    return found


def test_pieces_over_the_input_that_they_consume(tmp_path: Path) -> None:
    """What is not read yet stays, at the smallest distance of a plan: the order is that of the whole kernel."""
    cases = [layer.case() for layer in LAYERS_IN_TURNS]
    tried = 0
    for built in build(cases, tmp_path, fpu=True, in_turns=True):
        wanted = run(built)
        for item in OPS[built.node.op].overlaps(built.node):
            for calls in bounds(built.turns):
                assert same(run(built, over=(item, item.distance), bounds=calls), wanted), f"{built.case} {calls}"
                tried += 1
    assert tried > 8


def test_a_turn_that_is_left_out_is_noticed(tmp_path: Path) -> None:
    (built,) = build([LAYERS_IN_TURNS[0].case()], tmp_path, fpu=True, in_turns=True)
    assert built.turns > 2
    assert not same(run(built, bounds=[1, built.turns]), run(built)), "without the first: nothing is prepared"
    assert not same(run(built, bounds=[0, built.turns - 1]), run(built))


@pytest.mark.parametrize("isa", [InstructionSet(), InstructionSet(dsp=False), InstructionSet(int_vectors=True)])
def test_layers_of_real_networks_can_be_cut_on_every_core(isa: InstructionSet) -> None:
    """But not the depthwise ones of a core with vectors: these are one call of a helper."""
    for layer in LAYERS_IN_TURNS[::3]:
        kernel = lower_node(layer.case().node(), "k", KernelContext(isa), in_turns=True)
        helper = isa.int_vectors and "tt_depthwise8" in kernel.source
        assert (kernel.turns == 0) if helper else (kernel.turns >= 2), f"{layer.name}\n{kernel.source}"


def body_of(case: Case) -> Stmt:
    lowered, _, _ = lower_spec(kernel_spec(case.node(), KernelContext()), KernelContext())
    return lowered.body


def test_registers_across_turns_are_refused() -> None:
    """A loop that adds up in a register cannot be left; the same in memory can. The case is a 1x1 convolution."""
    body = body_of(cases_of("QConv")[10])
    assert isinstance(body, tirx.SeqStmt)
    internal = {str(one.buffer.name) for one in body.seq if isinstance(one, tirx.AllocBuffer)}
    cut = cut_open(body, internal)
    assert cut is not None
    assert cut_open(body, set[str]()) is None, "its weights would be in registers"
