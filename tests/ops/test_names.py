"""Every operand and result has a name, and inference takes exactly as many operands as there are names."""

from __future__ import annotations

from dataclasses import replace

import pytest

from testing.ops.cases import cases_of, forms_where
from tinytrain_compile.ir.types import Value
from tinytrain_compile.ops import OPS, infer
from tinytrain_compile.ops.base import OpDef, alias_of, input_names, output_names, register
from tinytrain_compile.ops.loss import NllAttrs
from tinytrain_compile.ops.names import named, operand, position, result
from tinytrain_compile.ops.owned import ErrorState

CASES = [(case.op, case) for form in forms_where(lambda op: not op.page) for case in cases_of(form)]


def test_inference_takes_exactly_the_named_operands() -> None:
    for op, case in CASES:
        node = case.node()
        names = input_names(op, case.attrs, len(case.inputs))
        assert len(set(names)) == len(names) == len(case.inputs), op
        assert [operand(node, name) for name in names] == list(node.inputs), op
        assert [result(node, name) for name in output_names(node)] == list(node.outputs), op
        if names[0] == "x0" or op.startswith("NegativeLogLikelihood"):
            continue  # any number of them; class weights, which no attribute tells
        for operands_of in (case.inputs[:-1], (*case.inputs, case.inputs[-1])):
            with pytest.raises(ValueError, match=f"{op} takes {len(names)} operands"):
                infer(op, operands_of, case.attrs)


def test_one_operand_more_or_less_than_optional_ones_is_refused() -> None:
    label, x = Value("label", (2,), "int32"), Value("x", (2, 3))
    for values in ((x,), (x, label, x, x)):
        with pytest.raises(ValueError, match="NegativeLogLikelihood takes"):
            infer("NegativeLogLikelihood", values, NllAttrs(1))
    assert input_names("NegativeLogLikelihood", NllAttrs(1), 3) == ("logp", "labels", "weights")


def test_declared_pairs_are_operands_that_fit_the_result() -> None:
    """What is overwritten has the type of the result that overwrites it."""
    for op, case in CASES:
        node = case.node()
        for output, source in alias_of(node):
            assert node.outputs[output].type == node.inputs[source].type, op
            assert op == "Stream" or position(node, output_names(node)[output]) == source, op
        reused = {position(node, name) for name in OPS[op].reuses}
        assert {source for _, source in OPS[op].inplace} == reused, op


def test_wrong_names_fail_with_op_and_names() -> None:
    node = cases_of("QConvGradInput")[0].node()
    with pytest.raises(KeyError, match=r"QConvGradInput has no 'weight' here, it has peak, p_out, p_in, g, "):
        operand(node, "weight")
    with pytest.raises(KeyError, match=r"QConvGradInput has no 'y' here, it has error, peak"):
        result(node, "y")
    with pytest.raises(KeyError, match="has no 'bias' here"):
        position(node, "bias")
    with pytest.raises(KeyError, match="Add has no 'x' here, it has a, b"):
        named("Add", (1, 2))["x"]
    with pytest.raises(ValueError, match=r"Add takes 2 operands \(a, b\), got 3"):
        named("Add", (1, 2, 3))


BAD: list[dict[str, object]] = [
    {"inputs": ()},
    {"inputs": ("x", "x")},
    {"inputs": ("x", "x?")},
    {"inputs": ("the weight",)},
    {"outputs": ()},
    {"outputs": ("y", "y")},
    {"reuses": ("z",)},
    {"inputs": ("x", "w?"), "reuses": ("w",)},
    {"inputs": ("scale?", "x"), "outputs": ("x",)},
    {"error": ErrorState()},
]


@pytest.mark.parametrize("change", BAD, ids=str)
def test_registration_refuses_names_that_make_no_sense(change: dict[str, object]) -> None:
    definition: OpDef = replace(OPS["Neg"], name="Unheard", **change)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="op Unheard"):
        register(definition)
    assert "Unheard" not in OPS
