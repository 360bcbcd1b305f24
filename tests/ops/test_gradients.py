"""Every gradient rule against central differences of the reference, in float64, along random directions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from testing.ops.cases import GENERATORS, Case, cases_of, forms_where, operator_of
from testing.ops.random_structure import RANDOM, random_cases
from tests.ops.numpy_tape import vjp
from tinytrain_compile.ops import OPS, NonDifferentiable, run_node
from tinytrain_compile.ops.base import OpDef, alias_of, shown_name

STEP = 1e-5
TOLERANCE = 1e-6
SHAPES_PER_OP = 5

DIFFERENTIABLE = sorted(name for name, op in OPS.items() if not isinstance(op.gradient, NonDifferentiable))


def _difference(case: Case, index: int, direction: np.ndarray, seed: np.ndarray) -> float:
    """Central difference of sum(seed * output 0) along a direction of one operand."""
    node = case.node()
    ends = []
    for sign in (1.0, -1.0):
        moved = list(case.arrays)
        moved[index] = moved[index] + sign * STEP * direction
        ends.append(run_node(node, tuple(moved))[0])
    return float(np.sum(seed * (ends[0] - ends[1]))) / (2.0 * STEP)


def worst_error(case: Case, rng: np.random.Generator) -> float:
    """Largest |vjp - difference| / max(|vjp|, 1e-3) over the operands that have a gradient, alone and together."""
    seed = rng.standard_normal(case.node().outputs[0].shape)
    together = vjp(case, case.arrays, seed, case.differentiable)
    worst = 0.0
    for index in case.differentiable:
        alone = vjp(case, case.arrays, seed, (index,))[index]
        np.testing.assert_array_equal(alone, together[index])
        direction = np.asarray(rng.standard_normal(case.arrays[index].shape))
        product = float(np.sum(alone * direction))
        error = abs(product - _difference(case, index, direction, seed)) / max(abs(product), 1e-3)
        worst = max(worst, error)
    return worst


@pytest.mark.parametrize("op", DIFFERENTIABLE)
def test_gradient_equals_central_difference(op: str) -> None:
    cases = cases_of(op)
    assert len({(*(v.shape for v in case.inputs), case.attrs) for case in cases}) >= SHAPES_PER_OP
    rng = np.random.default_rng(len(op))
    for case in cases:
        assert case.differentiable, case
        assert worst_error(case, rng) <= TOLERANCE, str(case)


@pytest.mark.parametrize("op", sorted(set(RANDOM) & set(DIFFERENTIABLE)))
def test_gradient_on_random_shapes(op: str) -> None:
    rng = np.random.default_rng(len(op))
    for case in random_cases(op, 40):
        assert worst_error(case, rng) <= TOLERANCE, str(case)


# ---- the harness itself ---------------------------------------------------------------------------------------------


def _plant(monkeypatch: pytest.MonkeyPatch, op: str, definition: OpDef) -> float:
    monkeypatch.setitem(OPS, op, definition)
    return max(worst_error(case, np.random.default_rng(1)) for case in cases_of(op))


@pytest.mark.parametrize("op", ["Tanh", "Conv", "Normalize", "MaxPool"])
def test_a_wrong_backward_op_is_caught(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    backward = {"Tanh": "TanhGrad", "Conv": "ConvGradWeight", "Normalize": "NormalizeGrad", "MaxPool": "MaxPoolGrad"}[
        op
    ]
    right = OPS[backward]
    wrong = replace(right, reference=lambda arrays, attrs: (right.reference(arrays, attrs)[0] * (1 + 1e-5),))
    monkeypatch.setitem(OPS, backward, wrong)
    assert max(worst_error(case, np.random.default_rng(1)) for case in cases_of(op)) > TOLERANCE


def test_a_wrong_rule_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    sub = OPS["Sub"]
    assert _plant(monkeypatch, "Sub", replace(sub, gradient=OPS["Add"].gradient)) > 0.1


def test_a_rule_that_forgets_an_operand_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(ctx, node, dys):  # type: ignore[no-untyped-def]
        return {0: ctx.sum_to(dys[0], node.inputs[0])}

    with pytest.raises(AssertionError, match="wanted"):
        _plant(monkeypatch, "Add", replace(OPS["Add"], gradient=forgetful))


def test_a_reference_that_does_not_depend_on_its_input_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    exp = OPS["Exp"]
    assert _plant(monkeypatch, "Exp", replace(exp, reference=lambda arrays, _: (np.ones_like(arrays[0]),))) > 0.1


# ---- completeness ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", sorted(OPS))
def test_every_op_is_complete(op: str) -> None:
    definition = OPS[op]
    assert definition.name == op
    assert len(definition.doc) > 1
    assert callable(definition.infer)
    assert callable(definition.reference)
    if isinstance(definition.gradient, NonDifferentiable):
        assert len(definition.gradient.why) > 10
    else:
        assert callable(definition.gradient)


def test_every_op_and_form_has_random_cases() -> None:
    assert {operator_of(form).name for form in GENERATORS} == set(OPS)
    assert [form for form in GENERATORS if form != shown_name(cases_of(form, 1)[0].node())] == []


@pytest.mark.parametrize("op", forms_where())
def test_work_and_memory_declarations(op: str) -> None:
    definition = operator_of(op)
    for case in cases_of(op):
        node = case.node()
        assert definition.scratch(node) >= 0
        assert definition.macs(node) >= 0
        for output, source in (*definition.inplace, *alias_of(node)):
            assert output < len(node.outputs)
            assert source < len(node.inputs)
        for output, source in alias_of(node):
            assert node.outputs[output].type == node.inputs[source].type
        starts = definition.placed.starts(node)
        assert not definition.view or starts is not None
        if starts is not None and node.outputs[0].dtype != "bits":  # run on addresses, nothing moves
            item = node.outputs[0].size_bytes // node.outputs[0].elements
            places = [
                np.arange(v.elements).reshape(v.shape) * item + at for v, at in zip(node.inputs, starts, strict=True)
            ]
            (shown,) = definition.reference(tuple(places), node.attrs)
            np.testing.assert_array_equal(shown.ravel(), np.arange(node.outputs[0].elements) * item)
