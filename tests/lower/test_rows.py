"""Kernels of a few rows give, call by call, the bytes of the whole map."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from testing.kernels.boards import measure
from testing.kernels.by_row_blocks import by_row_blocks
from testing.kernels.fuzz import ROW_OPS, check_rows_on_board, has_rows, row_cases
from testing.kernels.layers import rows_layer, streamed_layer
from testing.kernels.sanitised import SCALAR, VECTORS, run_sanitised
from testing.ops.case import Case
from testing.ops.case_quantised import qconv, qconv_grad_input
from testing.ops.cases import cases_of
from testing.ops.random_structure import random_cases
from tests.e2e.marks import needs_qemu
from tests.emit.test_generated_c import build
from tinytrain_compile.files.resources import data_dir
from tinytrain_compile.ir.types import Node
from tinytrain_compile.lower.kernels import KernelContext, kernel_context
from tinytrain_compile.lower.lower import lower_node
from tinytrain_compile.lower.streams.functions import TABLE
from tinytrain_compile.ops.base import row_form
from tinytrain_compile.ops.conv import ConvAttrs
from tinytrain_compile.ops.int8.conv_form import error_patch, forward_row_lines, forward_row_product
from tinytrain_compile.ops.int8.error import MaskAttrs
from tinytrain_compile.target.loader import load_target
from tinytrain_compile.verify.firmware import COMPILE_FLAGS

CASES = 8
"""Of every operator; some have no kernel of a few rows."""
ERRORS = ("QConvGradInput", "ErrorScale", "ErrorAdd")
BOARDS = ("cortex-m0plus", "cortex-m7", "cortex-m55")


@pytest.mark.parametrize("step", [1, 3])
@pytest.mark.parametrize("context", [SCALAR, VECTORS], ids=["scalar", "vectors"])
def test_rows_from_a_ring_are_those_of_the_map(context: KernelContext, step: int, tmp_path: Path) -> None:
    cases = row_cases(CASES, context=context)
    assert {case.op for case in cases} == set(ROW_OPS)
    run_sanitised(cases, tmp_path, context=context, make=partial(by_row_blocks, step=step, ring=True))


def test_what_is_kept_of_channels_belongs_to_the_rows(tmp_path: Path) -> None:
    """One vector of channels: no loop over channels is left, and their factors are loaded where the function starts."""
    four = [c for c in row_cases(30, context=VECTORS) if c.op == "ErrorScale" and c.node().outputs[0].shape[3] == 4]
    assert four
    run_sanitised(four, tmp_path, context=VECTORS, make=partial(by_row_blocks, step=1))


def test_strides_that_do_not_divide_the_image(tmp_path: Path) -> None:
    """There are zeros between the rows of an error, which the table says."""
    cases = [case for case in random_cases("QConvGradInput", 120)[110:] if has_rows(case, SCALAR)]
    odd = [c for c in cases if c.attrs.conv.groups > 1 and c.attrs.input_hw[0] % c.attrs.conv.strides[0]]  # type: ignore[attr-defined]
    assert odd
    run_sanitised(odd, tmp_path, make=partial(by_row_blocks, step=1, ring=True))


def test_strides_of_dense_layers_that_do_not_divide_the_image(tmp_path: Path) -> None:
    """Along columns zeros lie between the pixels of a row, too."""
    holes = {case: error_patch(case.node()) for case in dense_gradients()}
    odd = [c for c, patch in holes.items() if max(patch.rows.holes, patch.columns.holes) > 1]
    assert any(min(holes[case].rows.holes, holes[case].columns.holes) > 1 for case in odd[:8])
    run_sanitised(odd[:8], tmp_path, make=partial(by_row_blocks, step=2, ring=True))


def spread_streams() -> list[Case]:
    """Streams of errors of which some lie with zeros between their rows."""
    return [case for case in cases_of("Stream", 60) if any(_apart(node) > 1 for node in case.attrs.nodes)]  # type: ignore[attr-defined]


def _apart(node: Node) -> int:
    form = row_form(node)
    return form.apart if form is not None and form.sum is None else 1


@pytest.mark.parametrize("context", [SCALAR, VECTORS], ids=["scalar", "vectors"])
def test_streams_of_errors_with_zeros_between_their_rows(context: KernelContext, tmp_path: Path) -> None:
    cases = spread_streams()
    assert len(cases) > 10
    run_sanitised(cases, tmp_path, context=context)


def test_zeros_between_rows_of_an_error_that_are_forgotten_are_seen(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"Sanitizer|differs"):
        run_sanitised(spread_streams()[:6], tmp_path, partial(re.sub, r"(tt_find_rows_apart\(.*), \d+\);", r"\1, 1);"))


@needs_qemu
@pytest.mark.qemu
@pytest.mark.parametrize("target", ["cortex-m0plus", "cortex-m55"])
def test_streams_with_zeros_between_rows_on_a_board(target: str) -> None:
    assert all(found.equal for found in measure(spread_streams()[:6], target))


def dense_gradients() -> list[Case]:
    """Data gradients of dense k x k layers, of which strides and pads differ."""
    cases = [case for case in random_cases("QConvGradInput", 160) if has_rows(case, SCALAR)]
    return [c for c in cases if c.attrs.conv.groups == 1 and c.attrs.conv.kernel != (1, 1)]  # type: ignore[attr-defined]


@pytest.mark.parametrize("context", [SCALAR, VECTORS], ids=["scalar", "vectors"])
def test_data_gradients_of_dense_layers(context: KernelContext, tmp_path: Path) -> None:
    cases = dense_gradients()
    assert len(cases) > 20 and any(row_form(case.node()).unit > 1 for case in cases)  # type: ignore[union-attr]
    run_sanitised(cases[:12], tmp_path, context=context, make=partial(by_row_blocks, step=2, ring=True))


def test_a_wrong_row_of_a_dense_gradient_is_seen(tmp_path: Path) -> None:
    wrong = partial(_changed, old=f"{TABLE}[", new=f"{TABLE}[1 + ")
    with pytest.raises(AssertionError, match=r"Sanitizer|differs"):
        run_sanitised(dense_gradients()[:6], tmp_path, wrong, make=partial(by_row_blocks, step=1))


@pytest.mark.parametrize(("size", "outputs"), [(24, 4), (32, 6)])
def test_lines_by_rows_are_of_half_a_row(size: int, outputs: int, tmp_path: Path) -> None:
    case = streamed_layer("first", size, 3, outputs, 3, 2).case()
    lines = forward_row_lines(case.node())
    assert lines is not None and lines.width == size // 4
    assert "tt_product_tiles" in by_row_blocks(case.node(), "k", SCALAR, 1)[0].source
    run_sanitised([case], tmp_path, make=partial(by_row_blocks, step=2, ring=True))


def direct_cases(sizes: Sequence[tuple[int, int, int]] = ((4, 3, 1), (16, 5, 1), (8, 4, 2), (24, 2, 2))) -> list[Case]:
    """3x3 depthwise layers whose rows DSP cores multiply as they lie: with every kind of end. sizes: side, channels,
    stride."""
    made: list[Case] = []
    for size, channels, stride in sizes:
        for zero in (-128, -7, 9):
            case = streamed_layer(f"direct {size}, {zero}", size, channels, channels, 3, stride, depthwise=True).case()
            made.append(replace(case, attrs=replace(case.attrs, y_zero=zero)))  # type: ignore[call-arg]
    return made


def direct_maps() -> list[Case]:
    """In steps of two, as whole maps: of several images, of an odd height or width, with and without a border on each
    side."""
    made = direct_cases(((12, 4, 2), (16, 3, 2), (24, 2, 2), (40, 7, 2)))
    rng = np.random.default_rng(17)
    heights = ((3, 9, 1, 1), (2, 8, 0, 1), (1, 11, 0, 0), (2, 7, 1, 0), (4, 3, 1, 1))
    widths = ((12, 1, 1), (15, 1, 1), (13, 1, 1), (12, 0, 1), (14, 0, 1), (10, 1, 0))
    for (images, height, top, bottom), (width, left, right) in itertools.product(heights, widths):
        conv = ConvAttrs((3, 3), (2, 2), (top, left, bottom, right), groups=5)
        case = qconv(rng, ((images, height, width, 5), 5, conv), 0)
        attrs = replace(case.attrs, low=-128, high=127, shifts_down=True)  # type: ignore[call-arg]
        made.append(replace(case, attrs=attrs, arrays=(*case.arrays[:-1], np.clip(case.arrays[-1], -31, -1))))
    return made


def test_maps_as_they_lie_are_those_of_the_reference(tmp_path: Path) -> None:
    """Not if a row of the border is read, or the next image begins a row late."""
    cases = direct_maps()
    assert all("tt_depthwise_maps3(" in lower_node(case.node(), "k", SCALAR).source for case in cases)
    run_sanitised(cases, tmp_path)
    with pytest.raises(AssertionError, match=r"Sanitizer|differs"):
        run_sanitised(cases, tmp_path, lambda text: re.sub(r"(shift\[0\], \d+, \d+, )1,", r"\g<1>0,", text))


def test_rows_as_they_lie_are_those_of_the_map(tmp_path: Path) -> None:
    """By the table, from a ring; not if it is off by one row."""
    cases, ring = direct_cases(), partial(by_row_blocks, step=2, ring=True)
    assert all("tt_depthwise_rows3(" in ring(case.node(), "k", SCALAR)[0].source for case in cases)
    run_sanitised(cases, tmp_path, make=ring)
    wrong = partial(_changed, old=f"&{TABLE}[0]", new=f"&{TABLE}[1]")
    with pytest.raises(AssertionError, match=r"Sanitizer|differs"):
        run_sanitised(cases, tmp_path, wrong, make=partial(by_row_blocks, step=2))


@needs_qemu
@pytest.mark.qemu
@pytest.mark.parametrize("target", ["cortex-m4", "cortex-m7", "cortex-m33"])
def test_rows_as_they_lie_on_a_board(target: str) -> None:
    assert all(found.equal for found in measure(direct_cases(), target, make=partial(by_row_blocks, step=1, ring=True)))
    assert all(found.equal for found in measure(direct_maps(), target))


@needs_qemu
@pytest.mark.parametrize("core", ["cortex-m4", "cortex-m33"])
@pytest.mark.parametrize("level", ["-O3", "-O2 -fno-omit-frame-pointer"])
def test_rows_find_their_registers(core: str, level: str, tmp_path: Path) -> None:
    """Whatever the compiler keeps in registers around a line: at -O3 fifteen of these found none for a while."""
    target = load_target(core)
    context = kernel_context(target.features, False)
    kernels = [lower_node(case.node(), f"k{i}", context).source for i, case in enumerate(direct_maps())]
    included = "".join(f'#include "tt_{name}.h"\n' for name in ("dsp_tiles", "dsp_rows", "depthwise"))
    (tmp_path / "kernels.c").write_text(included + "\n".join(kernels))
    flags = [*target.gcc_flags, *COMPILE_FLAGS, *level.split(), f"-I{data_dir('runtime_c')}"]
    build(["arm-none-eabi-gcc", *flags, "-c", "kernels.c", "-o", "kernels.o"], tmp_path)


@needs_qemu
@pytest.mark.qemu
@pytest.mark.parametrize("target", BOARDS)
def test_rows_on_a_board(target: str) -> None:
    assert check_rows_on_board(target, CASES) > 2 * len(ROW_OPS)


def test_a_wrong_row_is_seen(tmp_path: Path) -> None:
    """Of the convolutions with windows: a table that is off by one row; of products: rows that are not counted."""
    cases = [case for case in row_cases(CASES) if case.op == "QConv"]
    for old, new in ((f"{TABLE}[", f"{TABLE}[1 + "), ("< count", "< 0 * count")):
        with pytest.raises(AssertionError, match=r"Sanitizer|differs"):
            run_sanitised(cases, tmp_path, partial(_changed, old=old, new=new), make=partial(by_row_blocks, step=1))


def _changed(text: str, old: str, new: str) -> str:
    return text.replace(old, new)


def in_bands(op: str) -> list[Case]:
    """Depthwise layers whose rows lie in bands on vectors, with masks and phases too."""
    helper, rng = f"tt_depthwise8{'' if op == 'QConv' else '_error'}_rows(", np.random.default_rng(3)
    made: list[Case] = []
    for size, kernel, stride, kind in ((8, 3, 1, ""), (8, 5, 1, "value"), (40, 3, 2, "bits")):
        pad = kernel // 2
        conv = ConvAttrs((kernel, kernel), (stride, stride), (pad, pad, pad, pad), groups=8)
        geometry = ((1, 8, size, 8), 8, conv)
        mask = MaskAttrs(kind, -50, 60)
        made.append(qconv(rng, geometry, 0) if op == "QConv" else qconv_grad_input(rng, geometry, 0, mask))
        assert helper in by_row_blocks(made[-1].node(), "k", VECTORS, 2)[0].source
    return made


@pytest.mark.parametrize("op", ["QConv", "QConvGradInput"])
def test_rows_of_bands_are_those_of_the_map(op: str, tmp_path: Path) -> None:
    """By the table, from a ring; not if it is off by one row, or there is one row more than are counted."""
    cases = in_bands(op)
    ring, whole = partial(by_row_blocks, step=3, ring=True), partial(by_row_blocks, step=1)
    run_sanitised(cases, tmp_path, context=VECTORS, make=ring)
    for old, new in ((f"&{TABLE}[0]", f"&{TABLE}[1]"), (", count, ", ", count + 1, ")):
        with pytest.raises(AssertionError, match=r"Sanitizer|differs"):
            run_sanitised(cases, tmp_path, partial(_changed, old=old, new=new), context=VECTORS, make=whole)


@needs_qemu
@pytest.mark.qemu
@pytest.mark.parametrize("target", ["cortex-m0plus", "cortex-m7"])
def test_calls_of_four_pixels_cost_what_the_map_does(target: str) -> None:
    case = rows_layer(24, 4).case()
    assert forward_row_product(case.node())[1]  # all weights stay widened
    (whole,), (parts,) = measure([case], target), measure([case], target, make=partial(by_row_blocks, step=1))
    assert parts.equal
    assert parts.instructions < 1.05 * whole.instructions


def test_a_wrong_error_is_seen(tmp_path: Path) -> None:
    """In streams of errors: a mask's bit shifted by one, a sum that begins in the wrong place, a row of the ring."""
    cases = [case for case in cases_of("Stream", 40) if any(n.op in ERRORS for n in case.attrs.nodes)]  # type: ignore[attr-defined]
    assert len(cases) > 20
    masked = [case for case in cases if any(value.dtype == "bits" for value in case.inputs)]
    for some, old, new in (
        (masked, " & 7)) & 1", " & 7 ^ 1)) & 1"),
        (cases, "memset((scratch", "memset((scratch + 4"),
        (cases, "ring_0 + row %", "ring_0 + (row + 1) %"),
    ):
        with pytest.raises(AssertionError, match=r"Sanitizer|differs"):
            run_sanitised(some[:6], tmp_path, partial(_changed, old=old, new=new))
