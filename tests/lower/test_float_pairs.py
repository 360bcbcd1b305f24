"""Float products on pairs give the bytes of those that load one number at a time, on the host and on the cores."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from testing.kernels.boards import measure
from testing.ops.case import Case, make
from testing.ops.cases import cases_of, forms_where
from testing.ops.random_linear import RANDOM_PRODUCTS, random_products
from tests.e2e.marks import needs_qemu
from tests.lower.kernel_harness import Built, build, compare, run
from tests.lower.on_board import on_board
from tinytrain_compile.emit.project import directly_used
from tinytrain_compile.files.resources import runtime_headers
from tinytrain_compile.lower.kernels import KERNELS, SIZE, InstructionSet, KernelContext, kernel_context
from tinytrain_compile.lower.lower import lower_node
from tinytrain_compile.ops.activation import ClipAttrs
from tinytrain_compile.ops.base import shown_name
from tinytrain_compile.ops.conv import ConvAttrs, ConvGradInputAttrs
from tinytrain_compile.ops.fused_update import FUSED_UPDATE
from tinytrain_compile.ops.linear import MatMulAttrs
from tinytrain_compile.ops.update import SgdAttrs
from tinytrain_compile.target.loader import load_target

RATE = np.asarray(0.1)
OPTIMIZER = ("SgdUpdate", "Accumulate")
ON_PAIRS = (*RANDOM_PRODUCTS, "QModeExpand", "Resize")
"""Operators whose kernels load pairs of numbers; a test below finds those that are missing."""
HOST = ("-DTT_HAS_FMA=1",)


WINDOWS = (
    ((9, 13), 5, ConvAttrs((3, 3), (1, 1), (1, 1, 1, 1), groups=5)),  # neither pixels nor channels are whole tiles
    ((6, 12), 4, ConvAttrs((3, 3), (2, 2), (1, 1, 1, 1), groups=4)),
    ((7, 13), 4, ConvAttrs((5, 5), (1, 1), (2, 2, 2, 2), groups=4)),
    ((5, 11), 6, ConvAttrs((3, 3), (1, 1), (2, 2, 2, 2), (2, 2), groups=6)),
    ((8, 1), 6, ConvAttrs((3, 1), (1, 1), (1, 0, 1, 0), groups=6)),
)
"""(height, width), channels and attributes of depthwise layers."""


def _depthwise(op: str) -> list[Case]:
    rng = np.random.default_rng(6)
    made: list[Case] = []
    for (height, width), channels, conv in WINDOWS if op in ("Conv", "ConvGradInput") else ():
        weight = rng.standard_normal((channels, *conv.kernel, 1))
        if op == "Conv":
            made.append(make(op, (rng.standard_normal((1, height, width, channels)), weight), conv))
            continue
        dy = rng.standard_normal((1, *conv.output_hw(height, width), channels))
        made.append(make(op, (dy, weight), ConvGradInputAttrs(conv, (height, width))))
    return made


def _updates(op: str) -> list[Case]:
    """Runs of eight with and without a rest, of all four forms of a step."""
    rng = np.random.default_rng(7)
    if op == "Accumulate":
        return [make(op, (rng.standard_normal(n), rng.standard_normal(n))) for n in (16, 43)]
    forms = [SgdAttrs(decay, 0.0, scaled) for decay in (0.0, 0.02) for scaled in (False, True)]
    return [
        make(op, (rng.standard_normal(n), rng.standard_normal(n), RATE, *([RATE] if attrs.scaled else [])), attrs)
        for n, attrs in zip((24, 37, 39, 41), forms, strict=True)
    ]


def _cases(op: str) -> list[Case]:
    if op in OPTIMIZER:
        return _updates(op)
    return [
        *cases_of(op)[:2],
        *cases_of(op)[-2:],
        *(random_products(op, 3) if op in RANDOM_PRODUCTS else []),
        *_depthwise(op),
    ]


@pytest.fixture(scope="module")
def paired(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[Built]]:
    """The cases of an operator on pairs, built once."""
    return cache(lambda op: build(_cases(op), tmp_path_factory.mktemp(op), fpu=True, flags=HOST))


def _single(op: str, folder: Path) -> list[Built]:
    return build(_cases(op), folder, fpu=True, flags=HOST, float_pairs=False)


@pytest.mark.parametrize("op", ON_PAIRS)
def test_every_sum_keeps_its_order(op: str, paired: Callable[[str], list[Built]], tmp_path: Path) -> None:
    for one, other in zip(paired(op), _single(op, tmp_path), strict=True):
        for got, expected in zip(run(one), run(other), strict=True):
            assert got.tobytes() == expected.tobytes(), one.kernel.source
        assert "tt_fma_" not in other.kernel.source
    assert any("tt_load_pair(" in item.kernel.source for item in paired(op))


def test_no_operator_on_pairs_is_left_out() -> None:
    """Those that are written into one kernel with an update have tests of their own (test_fused_updates.py)."""
    context = KernelContext(InstructionSet(float_pairs=True))
    others = forms_where(lambda op: op.name in KERNELS and op.name not in (*ON_PAIRS, FUSED_UPDATE.name, "Stream"))
    nodes = [case.node() for op in others for case in cases_of(op)[:1]]
    pairs = {shown_name(node) for node in nodes if "tt_load_pair(" in lower_node(node, "k", context).source}
    assert pairs == set()


@pytest.mark.parametrize("op", OPTIMIZER)
def test_an_update_is_one_call_with_the_bytes_of_its_loop(
    op: str, paired: Callable[[str], list[Built]], tmp_path: Path
) -> None:
    scaled = ["", "_scaled", "_decayed", "_scaled_decayed"]
    names = [f"tt_sgd{end}(" for end in scaled] if op == "SgdUpdate" else ["tt_accumulate("] * 2
    for name, one, other in zip(names, paired(op), _single(op, tmp_path), strict=True):
        assert name in one.kernel.source
        assert "for (" not in one.kernel.source and "for (" in other.kernel.source
        for got, expected in zip(run(one), run(other), strict=True):
            assert got.tobytes() == expected.tobytes(), one.kernel.source


def test_other_loops_are_no_calls(tmp_path: Path) -> None:
    """Momentum moves two tensors, short tensors are not worth a call, a tile's gradient lies in registers."""
    rng = np.random.default_rng(8)
    weights, gradients = rng.standard_normal(40), rng.standard_normal(40)
    momentum = make("MomentumUpdate", (weights, gradients, rng.standard_normal(40), RATE), SgdAttrs(0.0, 0.9))
    short = make("SgdUpdate", (weights[:15], gradients[:15], RATE), SgdAttrs())
    for built in build([momentum, short], tmp_path, fpu=True, flags=HOST):
        assert "for (" in built.kernel.source and "tt_sgd" not in built.kernel.source
        compare(built, run(built))


@needs_qemu
@pytest.mark.qemu
@pytest.mark.parametrize(("target", "turn"), [("cortex-m7", 0), ("cortex-m4", 1), ("cortex-m33", 2)])
def test_the_core_gives_the_bytes_of_the_plain_c(target: str, turn: int, paired: Callable[[str], list[Built]]) -> None:
    """Every case on one of the cores, in turn: they run the same instructions."""
    built = [item for op in (*ON_PAIRS, *OPTIMIZER) for item in paired(op)][turn::3]
    for item, equal in zip(built, on_board(built, target), strict=True):
        assert equal, f"{item.case}\n{item.kernel.source}"


@pytest.mark.parametrize("right", ["tt_fma_00(", "tt_fma_11(", "tt_fma_0(", "tt_fma_1("])
def test_a_wrong_half_is_seen(right: str, tmp_path: Path) -> None:
    wrong = right.translate(str.maketrans("01", "10"))
    cases = [*_cases("Gemm"), *_cases("ConvGradWeight")]
    built = build(cases, tmp_path, fpu=True, flags=HOST, change=lambda source: source.replace(right, wrong))
    assert any(right in item.kernel.source for item in built)

    def check() -> None:
        for item in built:
            compare(item, run(item))

    with pytest.raises(AssertionError):
        check()


def test_cores_without_fpu_vectors_and_small_code_have_no_pairs() -> None:
    node = _cases("Gemm")[0].node()
    chosen = [kernel_context(load_target(name).features, True) for name in ("cortex-m0plus", "cortex-m3", "cortex-m55")]
    chosen.append(kernel_context(load_target("cortex-m55").features, False))  # whose integers are on vectors
    for context in (*chosen, KernelContext(InstructionSet(float_pairs=True), SIZE)):
        assert "tt_load_pair" not in lower_node(node, "k", context).source
    for fused in (True, False):
        context = kernel_context(load_target("cortex-m7").features, fused)
        assert "tt_load_pair" in lower_node(node, "k", context).source


@needs_qemu
@pytest.mark.qemu
@pytest.mark.parametrize("target", ["cortex-m4", "cortex-m7", "cortex-m33"])
def test_products_that_are_rounded_take_as_few_instructions_as_fused_ones(target: str) -> None:
    """Those of an int8 network, which equal the exact references."""
    rng = np.random.default_rng(3)
    shape, last = (2, 16, 32), MatMulAttrs(transpose_b=True)
    cases = [make("MatMul", (rng.standard_normal(shape), rng.standard_normal(shape)), last), *_cases("Gemm")[:3]]
    fused, apart = measure(cases, target), measure(cases, target, fuse_multiply_add=False)
    assert apart[0].instructions == fused[0].instructions
    assert sum(one.instructions for one in apart) <= 1.01 * sum(one.instructions for one in fused)
    assert all(one.equal for one in apart)


@pytest.mark.parametrize(
    ("low", "high", "name"), [(0.0, 6.0, "both"), (0.0, math.inf, "low"), (-math.inf, 2.0, "high")]
)
def test_a_clip_is_one_call_and_names_its_header(low: float, high: float, name: str) -> None:
    node = make("Clip", (np.zeros((3, 40)),), ClipAttrs(low, high)).node()
    for core, ending in (("cortex-m4", ""), ("cortex-m7", "_fpv5")):
        source = lower_node(node, "k", kernel_context(load_target(core).features, True)).source
        assert f"tt_clip_{name}{ending}(&y[0], &x[0], " in source
        assert directly_used([source], runtime_headers()) == ("tt_float_pairs.h",)
