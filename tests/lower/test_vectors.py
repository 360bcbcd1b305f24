"""Kernels on vectors give their reference's bytes, in plain C on the host and on the core that has the instructions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from testing.kernels.boards import measure
from testing.kernels.fuzz import CONVOLUTIONS
from testing.kernels.sanitised import VECTORS as FEATURES
from testing.kernels.sanitised import run_sanitised
from testing.ops.case_linear import CONVS
from testing.ops.case_quantised import GEOMETRIES
from testing.ops.case_vectors import VECTORS, vector_cases
from testing.ops.cases import cases_of
from tests.e2e.marks import needs_qemu
from tests.lower.vector_tables import vectors_from_tables
from tinytrain_compile.lower.kernels import VECTOR_KERNELS, KernelContext
from tinytrain_compile.lower.lower import lower_node

CASES = 9
OUT_OF_REACH = 89
"""A data gradient that GCC 12 could not assemble ("branch out of range") when it saw the constants of its vectors."""
PLANTED = (
    ("QConv", "&scratch[0], &x[0], i", "&scratch[0], &x[0], 0"),
    ("QConv", "kept_bias_x4, ", "tt_all(0), "),
    ("QConvGradInput", "&peak[0]));", "&(int32_t) {0}));"),
    ("QConv", "&multiplier[0], &shift", "&bias[0], &shift"),
    ("QConvGradInput", "p_in[0] - p_out[0], ", "p_in[0] - p_out[0] + 1, "),
    ("QClipMask", "tt_passed_bits8(&mask[0], &y[0]", "tt_passed_bits8(&mask[0], &y[1]"),
    ("QConvGradInput", "tt_dot16_x4(&acc_0, ", "tt_dot16_x4(&acc_1, "),
    ("QConv", ", 1, 0))", ", 0, 0))"),  # above
    ("QConv odd", "tt_conv_tables_of(&w[0]", "tt_conv_tables_of(&w[1]"),
    ("QConv odd", "tt_conv8(&y[0]", "tt_conv8(&y[1]"),
    ("QConv few", "tt_product8(&y[0]", "tt_product8(&y[1]"),
    ("MaxPool", "&x[0]", "&x[1]"),
    ("QAdd", "tt_load8_x4(&b[", "tt_load8_x4(&a["),
    ("QAdd", "tt_halve_above_x4(", "tt_halve_x4("),
    ("QConvUpdate", "noise[0], salt[0], tt_conv_shape_of", "noise[0], 1 + salt[0], tt_conv_shape_of"),
    ("QConvUpdate odd", "&x[0], &g[0]", "&x[0], &g[1]"),
    ("QConvUpdate few", "tt_tap_gradient8(&x[channel]", "tt_tap_gradient8(&x[0]"),
    ("QConvUpdateFine odd", "tt_conv8_update_fine(&w[0], &fraction[0]", "tt_conv8_update_fine(&w[0], &w[0]"),
    ("QConvSum", "tt_conv8_sums(&sum[0]", "tt_conv8_sums(&sum[1]"),
    ("QConvGradInput odd", "tt_conv8_error(&error[0]", "tt_conv8_error(&error[1]"),
    ("QConvGradInput few", "tt_lines8_error(&error[0]", "tt_lines8_error(&error[1]"),
    ("QConvGradInput narrow", "tt_lines8_error(&error[0]", "tt_lines8_error(&error[1]"),
)


def _on_vectors(op: str, count: int) -> list[str]:
    return [lower_node(case.node(), "k", FEATURES).source for case in vector_cases(op, count)]


def test_every_kernel_on_vectors_has_random_cases() -> None:
    assert set(VECTOR_KERNELS) == {vector_cases(form, 1)[0].op for form in VECTORS}


@pytest.mark.parametrize("op", sorted(VECTORS))
def test_these_shapes_have_a_kernel_on_vectors_only_where_the_core_has_them(op: str) -> None:
    names = {"_x4", "tt_depthwise8", "tt_passed_bits8", "tt_max_pool8", "tt_product8", "tt_conv8", "tt_lines8"}
    names.add("tt_tap_gradient8")
    assert all(any(name in source for name in names) for source in _on_vectors(op, 4))
    assert not any(
        name in source
        for name in names
        for source in [lower_node(vector_cases(op, 1)[0].node(), "k", KernelContext()).source]
    )


def test_plain_c_gives_the_bytes_of_the_reference_and_stays_inside(tmp_path: Path) -> None:
    run_sanitised([case for op in sorted(VECTORS) for case in vector_cases(op, CASES)], tmp_path, context=FEATURES)


@pytest.mark.parametrize("op", [op for op in sorted(VECTORS) if hasattr(vector_cases(op, 1)[0].attrs, "x_zero")])
def test_a_zero_point_of_0_has_a_form_of_its_own(op: str, tmp_path: Path) -> None:
    cases = [replace(case, attrs=replace(case.attrs, x_zero=0)) for case in vector_cases(op, CASES)]  # type: ignore[call-arg]
    run_sanitised(cases, tmp_path, context=FEATURES)


def test_geometries_of_all_kinds_are_computed_on_a_core_with_vectors(tmp_path: Path) -> None:
    """Those with no kernel on vectors, too: several channels of a group, channels that are no whole vectors."""
    cases = [case for op in CONVOLUTIONS for case in cases_of(op)[len(CONVS) : len(GEOMETRIES)]]
    run_sanitised(cases, tmp_path, context=FEATURES)


@needs_qemu
@pytest.mark.qemu
def test_vector_instructions_give_the_bytes_of_the_reference() -> None:
    cases = [case for op in sorted(VECTORS) for case in vector_cases(op, CASES)]
    cases += vector_cases("QConvGradInput", 1, OUT_OF_REACH)
    for case, found in zip(cases, measure(cases, "cortex-m55"), strict=True):
        assert found.equal, case


@needs_qemu
def test_gcc_loads_no_vector_from_a_table_whose_distance_it_misjudges(tmp_path: Path) -> None:
    cases = [case for op in sorted(VECTORS) for case in vector_cases(op, 3)]
    kernels = [lower_node(case.node(), f"k{i}", FEATURES) for i, case in enumerate(cases)]
    assert vectors_from_tables(kernels, tmp_path) == []


@pytest.mark.parametrize(("op", "code", "planted"), PLANTED)
def test_a_planted_bug_is_seen(op: str, code: str, planted: str, tmp_path: Path) -> None:
    def plant(source: str) -> str:
        seen.append(code in source)
        return source.replace(code, planted)

    seen: list[bool] = []
    with pytest.raises(AssertionError, match=r"Sanitizer|differs"):
        run_sanitised(vector_cases(op, CASES), tmp_path, plant, FEATURES)
    assert any(seen)
