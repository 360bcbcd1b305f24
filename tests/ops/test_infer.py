"""What inference refuses, and the layouts that it gives."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from testing.ops.cases import cases_of
from tinytrain_compile.ir.types import NO_ATTRS, Attrs, Value
from tinytrain_compile.ops import OPS, NonDifferentiable, Split, infer
from tinytrain_compile.ops.base import has_trait
from tinytrain_compile.ops.conv import ConvAttrs, ConvGradInputAttrs
from tinytrain_compile.ops.linear import GemmAttrs, MatMulAttrs
from tinytrain_compile.ops.loss import NllAttrs, NllGradAttrs
from tinytrain_compile.ops.normalise import AxisAttrs, NormalizeAttrs
from tinytrain_compile.ops.pool import PoolAttrs, PoolGradAttrs
from tinytrain_compile.ops.shape import (
    ConcatAttrs,
    EmbedAttrs,
    ExpandAttrs,
    ReduceAttrs,
    ReshapeAttrs,
    SliceAttrs,
    TransposeAttrs,
)

X = (1, 4, 5, 3)
POOL = PoolAttrs((2, 2), (2, 2), (0, 0, 0, 0), output_hw=(2, 2))


def v(*shape: int, dtype: Any = "float32", layout: Any = "") -> Value:
    return Value("v", shape, dtype, layout)


REFUSED: list[tuple[str, tuple[Value, ...], Attrs]] = [
    ("MaxPool", (v(4, 5),), POOL),
    ("MaxPool", (v(*X), v(*X)), POOL),
    ("MaxPool", (v(*X, dtype="int32"),), POOL),
    ("MaxPool", (v(*X),), PoolAttrs((2, 2), (0, 1), (0, 0, 0, 0), output_hw=(2, 2))),
    ("MaxPool", (v(*X),), PoolAttrs((2, 2), (2, 2), (0, 0, 0, 0), output_hw=(4, 2))),
    ("AveragePool", (v(*X),), PoolAttrs((2, 2), (1, 1), (2, 0, 0, 0), output_hw=(5, 4))),
    ("AveragePool", (v(*X),), PoolAttrs((2, 2), (1, 1), (-1, 0, 0, 0), output_hw=(2, 4))),
    ("AveragePoolGrad", (v(1, 3, 2, 3),), PoolGradAttrs(POOL, (4, 5))),
    ("MaxPoolGrad", (v(1, 2, 2, 3), v(1, 2, 2, 3, dtype="int32")), PoolGradAttrs(POOL, (4, 5))),
    ("MaxPoolGrad", (v(1, 2, 2, 3), v(1, 2, 1, 3, dtype="uint8")), PoolGradAttrs(POOL, (4, 5))),
    ("Reshape", (v(2, 3),), ReshapeAttrs((4, 2))),
    ("Reshape", (v(2, 3),), ReshapeAttrs((-1, 6))),
    ("Transpose", (v(2, 3),), TransposeAttrs((0, 0))),
    ("Transpose", (v(2, 3),), TransposeAttrs((0,))),
    ("Concat", (), ConcatAttrs(0)),
    ("Concat", (v(2, 3), v(2, 4)), ConcatAttrs(0)),
    ("Concat", (v(2, 3), v(2)), ConcatAttrs(0)),
    ("Concat", (v(2, 3), v(2, 3, dtype="int32")), ConcatAttrs(0)),
    ("Concat", (v(2, 3),), ConcatAttrs(2)),
    ("Slice", (v(8),), SliceAttrs((6,), (1,), (3,))),
    ("Slice", (v(8),), SliceAttrs((1,), (-1,), (3,))),
    ("Slice", (v(8),), SliceAttrs((0,), (0,), (3,))),
    ("Slice", (v(8),), SliceAttrs((0,), (1,), (0,))),
    ("Slice", (v(8, 2),), SliceAttrs((0,), (1,), (8,))),
    ("Embed", (v(3),), EmbedAttrs((2,), (1,), (4,))),
    ("Embed", (v(3),), EmbedAttrs((2,), (1,), (4, 1))),
    ("Expand", (v(2, 3),), ExpandAttrs((2, 4))),
    ("Expand", (v(2, 3),), ExpandAttrs((3,))),
    ("Expand", (v(2, 3, dtype="int32"),), ExpandAttrs((2, 3), 0.5)),
    ("Reduce", (v(2, 3),), ReduceAttrs((2,))),
    ("Reduce", (v(2, 3),), ReduceAttrs((1, 0))),
    ("Reduce", (v(2, 3, dtype="int32"),), ReduceAttrs((1,))),
    ("Softmax", (v(2, 3),), AxisAttrs(2)),
    ("Softmax", (v(2, 3),), AxisAttrs(-1)),
    ("SoftmaxGrad", (v(2, 3), v(2, 4)), AxisAttrs(1)),
    ("LogSoftmaxGrad", (v(2, 3),), AxisAttrs(1)),
    ("Normalize", (v(2, 3),), NormalizeAttrs((), 1e-5)),
    ("Normalize", (v(2, 3),), NormalizeAttrs((2,), 1e-5)),
    ("Normalize", (v(2, 3),), NormalizeAttrs((1,), -1e-5)),
    ("NormalizeGrad", (v(2, 3), v(2, 3), v(1, 3)), NormalizeAttrs((1,), 1e-5)),
    ("NegativeLogLikelihood", (v(2, 3), v(2)), NllAttrs(1)),
    ("NegativeLogLikelihood", (v(2, 3), v(3, dtype="int32")), NllAttrs(1)),
    ("NegativeLogLikelihood", (v(2, 3), v(2, dtype="int32"), v(2)), NllAttrs(1)),
    ("NegativeLogLikelihood", (v(2, 3), v(2, dtype="int32")), NllAttrs(1, "median")),
    ("NegativeLogLikelihoodGrad", (v(2), v(2, dtype="int32")), NllGradAttrs(NllAttrs(1), (2, 3))),
    ("NegativeLogLikelihoodGrad", (v(), v(2, dtype="int32")), NllGradAttrs(NllAttrs(1, "none"), (2, 3))),
    ("MeanSquaredError", (v(2, 3), v(3)), NO_ATTRS),
    ("MeanSquaredErrorGrad", (v(1), v(2, 3), v(2, 3)), NO_ATTRS),
    ("SigmoidCrossEntropy", (v(2), v(2, dtype="int32")), NO_ATTRS),
    ("SigmoidCrossEntropyGrad", (v(), v(2)), NO_ATTRS),
    ("Conv", (v(*X), v(2, 3, 3, 4)), ConvAttrs((3, 3))),
    ("Conv", (v(*X), v(2, 5, 5, 3)), ConvAttrs((5, 5))),
    ("Conv", (v(*X), v(2, 3, 3, 3), v(3)), ConvAttrs((3, 3), bias=True)),
    ("Conv", (v(*X), v(2, 3, 3, 3)), ConvAttrs((3, 3), bias=True)),
    ("Conv", (v(*X), v(2, 3, 3, 3), v(2, 3, 3, 3)), ConvAttrs((3, 3), split=Split("out", (0,), 4))),
    ("Conv", (v(4, 5), v(2, 3, 3, 3)), ConvAttrs((3, 3))),
    ("ConvGradInput", (v(1, 3, 3, 2), v(2, 3, 3, 3)), ConvGradInputAttrs(ConvAttrs((3, 3)), (4, 5))),
    ("ConvGradWeight", (v(*X), v(1, 3, 3, 2)), ConvAttrs((3, 3))),
    ("Gemm", (v(2, 3), v(4, 5)), GemmAttrs()),
    ("Gemm", (v(2, 3), v(4, 3), v(3)), GemmAttrs(True)),
    ("GemmGradInput", (v(2, 3), v(4, 3)), GemmAttrs()),
    ("GemmGradWeight", (v(2, 3), v(3, 3)), NO_ATTRS),
    ("MatMul", (v(2, 3), v(2, 3)), MatMulAttrs()),
    ("MatMul", (v(2, 2, 3), v(3, 3, 2)), MatMulAttrs()),
    ("Add", (v(2, 3), v(2)), NO_ATTRS),
    ("PRelu", (v(2, 3), v(2)), NO_ATTRS),
    ("SgdUpdate", (v(2, 3), v(2), v()), NO_ATTRS),
    ("Softmax", (v(2, 3),), NO_ATTRS),
]


@pytest.mark.parametrize(("op", "inputs", "attrs"), REFUSED)
def test_senseless_shapes_are_refused(op: str, inputs: tuple[Value, ...], attrs: Attrs) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        infer(op, inputs, attrs)


def test_images_stay_channels_last_until_their_axes_change() -> None:
    image = v(*X, layout="NHWC")
    kept: list[tuple[str, Attrs]] = [
        ("Slice", SliceAttrs((0, 0, 0, 1), (1, 1, 1, 1), (1, 4, 5, 2))),
        ("Embed", EmbedAttrs((0, 1, 1, 0), (1, 1, 1, 1), (1, 6, 7, 3))),
        ("Concat", ConcatAttrs(3)),
        ("Reduce", ReduceAttrs((1, 2))),
        ("Expand", ExpandAttrs(X)),
        ("Softmax", AxisAttrs(3)),
        ("Normalize", NormalizeAttrs((1, 2), 1e-5)),
    ]
    for op, attrs in kept:
        assert infer(op, (image,), attrs)[0].layout == "NHWC", op
    assert infer("Reshape", (image,), ReshapeAttrs((1, 60)))[0].layout == ""
    assert infer("Transpose", (image,), TransposeAttrs((0, 3, 1, 2)))[0].layout == ""
    assert infer("MaxPool", (v(*X),), POOL)[0].layout == "NHWC"


def test_inferred_types() -> None:
    assert infer("MaxPoolIndex", (v(*X),), POOL)[0] == ((1, 2, 2, 3), "uint8", "NHWC")
    wide = PoolAttrs((17, 17), (1, 1), (0, 0, 0, 0))
    assert infer("MaxPoolIndex", (v(1, 17, 17, 2),), wide)[0] == ((1, 1, 1, 2), "int32", "NHWC")
    assert infer("Normalize", (v(2, 3, 4),), NormalizeAttrs((1, 2), 0.0)) == (
        ((2, 3, 4), "float32", ""),
        ((2, 1, 1), "float32", ""),
    )
    assert infer("NegativeLogLikelihood", (v(2, 3), v(2, dtype="int32")), NllAttrs(1, "none"))[0].shape == (2,)
    assert infer("NegativeLogLikelihood", (v(2, 3), v(2, dtype="int32")), NllAttrs(1))[0].shape == ()
    assert infer("Concat", (v(2, 3, dtype="int32"), v(2, 1, dtype="int32")), ConcatAttrs(1))[0] == ((2, 4), "int32", "")


TAKES_INTEGERS = frozenset(("Cast", "CumSum", "Equal", "Greater", "GreaterOrEqual", "Expand", "Where"))


FORWARD = [
    n for n, op in OPS.items() if not isinstance(op.gradient, NonDifferentiable) and not has_trait(n, "moves_data")
]


@pytest.mark.parametrize("op", sorted({*FORWARD, "Sign", "TopIndices"} - TAKES_INTEGERS))
def test_real_operands_are_no_integers(op: str) -> None:
    """What computes with integers says so: no other operator of a network takes them for real numbers."""
    for case in cases_of(op)[:2]:
        floats = [i for i, value in enumerate(case.inputs) if value.dtype == "float32"]
        wrong = tuple(replace(v, dtype="int32") if i in floats else v for i, v in enumerate(case.inputs))
        if floats:
            with pytest.raises(ValueError, match=r"."):
                infer(op, wrong, case.attrs)
