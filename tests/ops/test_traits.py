"""What the op table says of an operator (OpDef.traits, OpDef.error) is what it does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from testing.ops.cases import Case, cases_of
from tinytrain_compile.frontend.operators.elementwise import PLAIN
from tinytrain_compile.ops import OPS, NonDifferentiable
from tinytrain_compile.ops.base import Trait, has_trait
from tinytrain_compile.ops.names import error_operands, named, operand, result


def ops_with(trait: Trait) -> list[str]:
    return [op for op in OPS if has_trait(op, trait)]


PLANNED = ("ConcatView", "SliceView", "PageIn", "PageOut", "Stream", "InputLines")
"""Made by the planner of what other tests cover."""


def _turned(array: np.ndarray, rank: int) -> np.ndarray:
    """With its axes in reverse order, behind as many as broadcasting adds."""
    return array.reshape((1,) * (rank - array.ndim) + array.shape).transpose()


def _commutes(case: Case) -> bool:
    """Whether the results have the operands' broadcast shape, and their axes in another order are theirs."""
    shape = np.broadcast_shapes(*(array.shape for array in case.arrays))
    rank, rule = len(shape), OPS[case.op].reference
    straight: Sequence[Any] = rule(case.arrays, case.attrs)
    if any(np.shape(array) != shape for array in straight):
        return False
    turned = rule(tuple(_turned(array, rank) for array in case.arrays), case.attrs)
    return all(
        np.shape(b) == np.shape(a.transpose()) and np.allclose(a.transpose(), b, rtol=1e-12, atol=0)
        for a, b in zip(straight, turned, strict=True)
    )


@pytest.mark.filterwarnings("ignore:overflow")  # of a float that Quantize clamps anyway
@pytest.mark.parametrize("op", ops_with("elementwise"))
def test_elementwise_results_do_not_depend_on_the_order_of_axes(op: str) -> None:
    cases = cases_of(op)
    assert any(len(case.inputs[0].shape) > 1 for case in cases)
    assert [str(case) for case in cases if not _commutes(case)] == []


FORWARD_UNARY = sorted(
    name
    for name, op in OPS.items()
    if op.inputs == ("x",) and len(op.outputs) == 1 and name not in PLANNED
    if not isinstance(op.gradient, NonDifferentiable)
)


@pytest.mark.parametrize("op", FORWARD_UNARY)
def test_no_elementwise_operator_of_a_forward_pass_is_forgotten(op: str) -> None:
    """A new activation without the trait would cost a Transpose behind a Flatten."""
    cases = [case for case in cases_of(op) if len(case.inputs[0].shape) > 1]
    assert has_trait(op, "elementwise") == all(_commutes(case) for case in cases)


@pytest.mark.parametrize("op", [op for op in ops_with("moves_data") if op not in PLANNED])
def test_moved_data_comes_from_operands_or_is_a_constant(op: str) -> None:
    for case in cases_of(op):
        (moved,) = OPS[op].reference(case.arrays, case.attrs)
        known = [*(array.ravel() for array in case.arrays), np.ravel(getattr(case.attrs, "value", []))]
        assert np.isin(moved, np.concatenate(known)).all()


def test_matrix_operators_are_those_with_a_weight_of_their_own() -> None:
    layers = {name for name, op in OPS.items() if "w" in op.inputs and not isinstance(op.gradient, NonDifferentiable)}
    assert set(ops_with("matrix")) == layers == {"Conv", "ConvGradInput", "Gemm"}
    for op in layers:
        for case in cases_of(op):
            node = case.node()
            assert OPS[op].macs(node) >= operand(node, "w").elements // max(operand(node, "w").shape[0], 1)
            assert case.inputs.index(operand(node, "w")) in case.differentiable


ERRORS = sorted(name for name, op in OPS.items() if op.error is not None)


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize("op", ERRORS)
def test_error_operators_gather_a_peak_and_store_with_their_exponent(op: str) -> None:
    """The peak is an overwritten operand; a larger exponent, and nothing else, gives smaller numbers."""
    for case in cases_of(op):
        node = case.node()
        error = error_operands(node)
        assert error is not None
        assert OPS[op].outputs == ("error", error.peak == operand(node, "peak") and "peak")
        assert error.exponent == operand(node, "p_out")
        assert set(error.read) == {operand(node, name) for name in ("p_in", "p_a", "p_b") if name in OPS[op].inputs}
        assert result(node, "error").dtype == "int8"
        arrays = named(op, case.float32(), case.attrs)
        largest = [
            int(np.abs(OPS[op].reference(tuple({**arrays, "p_out": p}.values()), case.attrs)[0].astype(int)).max())
            for p in (arrays["p_out"], arrays["p_out"] + 2)
        ]
        assert largest[1] <= largest[0]


def test_what_makes_an_error_says_so() -> None:
    """An operator with a peak and an exponent of its own makes an error; velocities have theirs by other names."""
    assert sorted(name for name, op in OPS.items() if "p_out" in op.inputs) == ERRORS
    assert [name for name in ERRORS if OPS[name].reuses] == [], "the first step computes every error twice"


def test_operators_that_layouts_pass_are_elementwise() -> None:
    """A unary operator without attributes is imported because ops/ has it under ONNX's name."""
    assert {"Softsign", "Sqrt", "Mish", "HardSwish", "Neg", "Not"} <= set(PLAIN) <= set(ops_with("elementwise"))


def test_plain_arithmetic_is_what_float32_says() -> None:
    """The trait `ieee` is of operators whose elements one operation of IEEE 754 gives, or a choice."""
    assert set(ops_with("ieee")) == {"Add", "Sub", "Mul", "Div", "Clip"}
    for op in ops_with("ieee"):
        assert has_trait(op, "elementwise")
        for case in cases_of(op):
            exact = OPS[op].exact
            assert exact is not None
            narrow = [array.astype(np.float32) for array in case.arrays]
            assert np.array_equal(
                exact(narrow, case.attrs)[0], OPS[op].reference(narrow, case.attrs)[0], equal_nan=True
            )
