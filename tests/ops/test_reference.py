"""References against the ONNX reference evaluator, against values worked out by hand, and in both float types."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from testing.ops.case_linear import CONVS
from testing.ops.case_structure import POOLS
from testing.ops.cases import Bits, Case, cases_of, forms_where, make
from tinytrain_compile.ir.types import NO_ATTRS, Attrs
from tinytrain_compile.ops import Split, run_node
from tinytrain_compile.ops.activation import ClipAttrs, GeluAttrs, HardSigmoidAttrs, LeakyReluAttrs
from tinytrain_compile.ops.conv import ConvAttrs, ConvGradInputAttrs
from tinytrain_compile.ops.int8 import loss as int8_loss
from tinytrain_compile.ops.linear import GemmAttrs
from tinytrain_compile.ops.loss import NllAttrs, NllGradAttrs
from tinytrain_compile.ops.normalise import AxisAttrs, NormalizeAttrs
from tinytrain_compile.ops.pool import PoolAttrs, PoolGradAttrs
from tinytrain_compile.ops.selection import CumSumAttrs, TakeAlongAttrs, TopAttrs
from tinytrain_compile.ops.shape import EmbedAttrs, ExpandAttrs, ReduceAttrs, SliceAttrs, TransposeAttrs
from tinytrain_compile.ops.update import AdamAttrs, SgdAttrs

CHANNELS_FIRST = (0, 3, 1, 2)
CHANNELS_LAST = (0, 2, 3, 1)


def evaluate(op: str, *arrays: Any, attrs: Attrs = NO_ATTRS) -> np.ndarray:
    """Output 0 of an operator on arrays."""
    case = make(op, arrays, attrs)
    return run_node(case.node(), case.arrays)[0]


def onnx_model(op: str, arrays: tuple[np.ndarray, ...], attributes: dict[str, Any]) -> onnx.ModelProto:
    """A model of one ONNX operator on inputs x0, x1, ... with the arrays' types."""
    names = [f"x{i}" for i in range(len(arrays))]
    node = helper.make_node(op, names, ["y"], **attributes)
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for name, a in zip(names, arrays, strict=True)
    ]
    output = helper.make_tensor_value_info("y", helper.np_dtype_to_tensor_dtype(arrays[0].dtype), None)
    graph = helper.make_graph([node], "g", inputs, [output])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)


def onnx_result(op: str, *arrays: np.ndarray, **attributes: Any) -> np.ndarray:
    """Output 0 of an ONNX operator by onnx's own reference."""
    evaluator = ReferenceEvaluator(onnx_model(op, arrays, attributes))
    return np.asarray(evaluator.run(None, {f"x{i}": a for i, a in enumerate(arrays)})[0])


def runtime_result(op: str, *arrays: np.ndarray, **attributes: Any) -> np.ndarray:
    """As onnx_result, in float32 by onnxruntime: for ops that onnx's reference gets wrong (uneven pads, groups)."""
    narrow = tuple(a.astype(np.float32) for a in arrays)
    session = onnxruntime.InferenceSession(
        onnx_model(op, narrow, attributes).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return np.asarray(session.run(None, {f"x{i}": a for i, a in enumerate(narrow)})[0])


# ---- both float types, and what inference says ----------------------------------------------------------------------


FLOAT32_ONLY = ("Cast", "Dequantize", "DequantizeError", *int8_loss.LOSSES)
"""Ops from integers to float32: defined to the bit, so in no other type."""


@pytest.mark.parametrize("op", forms_where())
def test_reference_keeps_the_float_type_and_matches_inference(op: str) -> None:
    for case in cases_of(op):
        node = case.node()
        wide, narrow = run_node(node, case.arrays), run_node(node, case.float32())
        for value, a, b in zip(node.outputs, wide, narrow, strict=True):
            if value.dtype == "float32" and op not in FLOAT32_ONLY:
                assert (a.dtype, b.dtype) == (np.float64, np.float32), str(case)
                np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-5, err_msg=str(case))
            else:
                expected = "uint8" if value.dtype == "bits" else value.dtype
                assert str(a.dtype) == str(b.dtype) == expected, str(case)
                np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("op", forms_where())
def test_reference_leaves_its_inputs_alone(op: str) -> None:
    for case in cases_of(op):
        before = [array.copy() for array in case.arrays]
        run_node(case.node(), case.arrays)
        for array, copy in zip(case.arrays, before, strict=True):
            np.testing.assert_array_equal(array, copy)


# ---- against onnx ---------------------------------------------------------------------------------------------------


def _onnx_conv_attributes(attrs: ConvAttrs) -> dict[str, Any]:
    return {
        "kernel_shape": attrs.kernel,
        "strides": attrs.strides,
        "pads": attrs.pads,
        "dilations": attrs.dilations,
        "group": attrs.groups,
    }


def _whole_weight(case: Case, split: Split | None) -> np.ndarray:
    if split is None:
        return case.arrays[1]
    axis = 0 if split.axis == "out" else 3
    shape = list(case.arrays[1].shape)
    shape[axis] = split.total
    whole = np.zeros(shape)
    for part, channels in ((case.arrays[1], split.channels), (case.arrays[2], split.rest)):
        for position, channel in enumerate(channels):
            target = [slice(None)] * 4
            target[axis] = slice(channel, channel + 1)
            whole[tuple(target)] = np.take(part, [position], axis)
    return whole


@pytest.mark.parametrize("index", range(len(CONVS)))
def test_conv(index: int) -> None:
    case = cases_of("Conv")[index]
    attrs = case.attrs
    assert isinstance(attrs, ConvAttrs)
    w = _whole_weight(case, attrs.split)
    bias = [case.arrays[-1]] if attrs.bias else []
    x = case.arrays[0].transpose(CHANNELS_FIRST)
    want = onnx_result("Conv", x, w.transpose(CHANNELS_FIRST), *bias, **_onnx_conv_attributes(attrs))
    got = run_node(case.node(), case.arrays)[0]
    np.testing.assert_allclose(got.transpose(CHANNELS_FIRST), want, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("strides", "pads", "groups", "extra"),
    [((1, 1), (0, 0, 0, 0), 1, (0, 0)), ((2, 2), (1, 1, 1, 1), 1, (1, 1)), ((2, 1), (0, 1, 1, 0), 2, (0, 0))],
)
def test_conv_transpose(
    strides: tuple[int, int], pads: tuple[int, int, int, int], groups: int, extra: tuple[int, int]
) -> None:
    rng = np.random.default_rng(3)
    x, w = rng.standard_normal((1, 4, 5, 6)), rng.standard_normal((4, 3, 3, 3))
    want = runtime_result(
        "ConvTranspose", x, w, strides=strides, pads=pads, group=groups, output_padding=extra, kernel_shape=(3, 3)
    )
    conv = ConvAttrs((3, 3), strides, pads, groups=groups)
    attrs = ConvGradInputAttrs(conv, (want.shape[2], want.shape[3]))
    got = evaluate("ConvGradInput", x.transpose(CHANNELS_LAST), w.transpose(CHANNELS_LAST), attrs=attrs)
    np.testing.assert_allclose(got.transpose(CHANNELS_FIRST), want, rtol=1e-4, atol=1e-5)


def _onnx_pool_attributes(shape: tuple[int, ...], attrs: PoolAttrs) -> dict[str, Any]:
    reach = [(k - 1) * d + 1 for k, d in zip(attrs.kernel, attrs.dilations, strict=True)]
    floor = tuple((shape[1 + a] + attrs.pads[a] + attrs.pads[a + 2] - reach[a]) // attrs.strides[a] + 1 for a in (0, 1))
    return {
        "kernel_shape": attrs.kernel,
        "strides": attrs.strides,
        "pads": attrs.pads,
        "dilations": attrs.dilations,
        "ceil_mode": int(floor != attrs.output_hw),
    }


@pytest.mark.parametrize("index", range(len(POOLS)))
def test_pooling(index: int) -> None:
    shape, attrs = POOLS[index]
    x = np.random.default_rng(index).standard_normal(shape)
    image, attributes = x.transpose(CHANNELS_FIRST), _onnx_pool_attributes(shape, attrs)
    want = runtime_result("MaxPool", image, **attributes)
    got = evaluate("MaxPool", x, attrs=attrs).transpose(CHANNELS_FIRST)
    np.testing.assert_array_equal(got.astype(np.float32), want)
    attributes["count_include_pad"] = int(attrs.count_include_pad)
    want = runtime_result("AveragePool", image, **attributes)
    got = evaluate("AveragePool", x, attrs=attrs).transpose(CHANNELS_FIRST)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


POINTWISE: list[tuple[str, Attrs, str, dict[str, Any]]] = [
    ("LeakyRelu", LeakyReluAttrs(0.2), "LeakyRelu", {"alpha": 0.2}),
    ("HardSigmoid", HardSigmoidAttrs(0.3, 0.4), "HardSigmoid", {"alpha": 0.3, "beta": 0.4}),
    ("HardSwish", NO_ATTRS, "HardSwish", {}),
    ("Gelu", GeluAttrs(), "Gelu", {}),
    ("Gelu", GeluAttrs(True), "Gelu", {"approximate": "tanh"}),
    ("Sigmoid", NO_ATTRS, "Sigmoid", {}),
    ("Tanh", NO_ATTRS, "Tanh", {}),
    ("Erf", NO_ATTRS, "Erf", {}),
    ("Exp", NO_ATTRS, "Exp", {}),
    ("Neg", NO_ATTRS, "Neg", {}),
    ("Sign", NO_ATTRS, "Sign", {}),
    ("Softmax", AxisAttrs(1), "Softmax", {"axis": 1}),
    ("LogSoftmax", AxisAttrs(0), "LogSoftmax", {"axis": 0}),
    ("Clip", ClipAttrs(0.0), "Relu", {}),
    ("Transpose", TransposeAttrs((1, 0)), "Transpose", {"perm": [1, 0]}),
]


@pytest.mark.parametrize(("op", "attrs", "name", "attributes"), POINTWISE)
def test_one_input_ops(op: str, attrs: Attrs, name: str, attributes: dict[str, Any]) -> None:
    x = np.random.default_rng(1).standard_normal((4, 7)) * 3.0
    want = onnx_result(name, x, **attributes)
    np.testing.assert_allclose(evaluate(op, x, attrs=attrs), want, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
def test_running_sums(exclusive: int, reverse: int) -> None:
    x = np.random.default_rng(2).standard_normal((2, 5, 3))
    want = onnx_result("CumSum", x, np.int64(1), exclusive=exclusive, reverse=reverse)
    np.testing.assert_allclose(evaluate("CumSum", x, attrs=CumSumAttrs(1, bool(exclusive), bool(reverse))), want)


def test_of_equal_elements_the_first_comes_first() -> None:
    x = np.asarray([[1.0, 3.0, 3.0, -2.0, 3.0, 1.0]])
    np.testing.assert_array_equal(evaluate("TopIndices", x, attrs=TopAttrs(5)), [[1, 2, 4, 0, 5]])
    np.testing.assert_array_equal(evaluate("TopIndices", x, attrs=TopAttrs(3, True)), [[3, 0, 5]])


def test_elements_by_an_index_for_each() -> None:
    x, index = np.random.default_rng(2).standard_normal((3, 9)), np.array([[0, 8], [3, 3], [5, 1]])
    want = onnx_result("GatherElements", x, index, axis=1)
    np.testing.assert_array_equal(evaluate("TakeAlong", x, index.astype(np.int32), attrs=TakeAlongAttrs(9)), want)


def test_prelu() -> None:
    rng = np.random.default_rng(2)
    x, slope = rng.standard_normal((2, 3, 4)), rng.standard_normal((3, 1))
    np.testing.assert_allclose(evaluate("PRelu", x, slope), onnx_result("PRelu", x, slope), rtol=1e-12)


def test_layer_normalisation() -> None:
    rng = np.random.default_rng(4)
    x, scale = rng.standard_normal((2, 3, 8)).astype(np.float32), np.ones(8, np.float32)
    want = onnx_result("LayerNormalization", x, scale, axis=2, epsilon=1e-3)
    got = evaluate("Normalize", x.astype(np.float64), attrs=NormalizeAttrs((2,), 1e-3))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("ignore", [None, 1, -5])
def test_negative_log_likelihood(weighted: bool, reduction: str, ignore: int | None) -> None:
    rng = np.random.default_rng(5)
    logp = np.log(rng.dirichlet(np.ones(4), (3, 5))).transpose(0, 2, 1)  # (3, 4 classes, 5)
    labels = rng.integers(0, 4, (3, 5))
    if ignore == -5:
        labels[0, 2] = -5
    weights = [rng.uniform(0.5, 2.0, 4)] if weighted else []
    attributes: dict[str, Any] = {"reduction": reduction}
    if ignore is not None:
        attributes["ignore_index"] = ignore
    want = onnx_result("NegativeLogLikelihoodLoss", logp, labels, *weights, **attributes)
    attrs = NllAttrs(1, reduction, ignore)
    got = evaluate("NegativeLogLikelihood", logp, labels.astype(np.int32), *weights, attrs=attrs)
    np.testing.assert_allclose(got, want, rtol=1e-6)


# ---- by hand --------------------------------------------------------------------------------------------------------


def test_labels_that_do_not_count_give_zero_and_not_nan() -> None:
    logp, weights = np.log(np.full((2, 4), 0.25)), np.asarray([1.0, 2.0, 3.0, 4.0])
    for labels, attrs in (([3, 3], NllAttrs(1, "mean", 3)), ([-7, 4], NllAttrs(1))):
        wrong = np.asarray(labels, np.int32)
        assert evaluate("NegativeLogLikelihood", logp, wrong, weights, attrs=attrs) == 0.0
        grad = NllGradAttrs(attrs, (2, 4))
        dlogp = evaluate("NegativeLogLikelihoodGrad", np.asarray(1.0), wrong, weights, attrs=grad)
        np.testing.assert_array_equal(dlogp, np.zeros((2, 4)))


def test_weighted_mean_of_labels() -> None:
    logp, labels = np.log(np.asarray([[0.5, 0.5], [0.2, 0.8]])), np.asarray([0, 1], np.int32)
    got = evaluate("NegativeLogLikelihood", logp, labels, np.asarray([1.0, 3.0]), attrs=NllAttrs(1))
    assert got == pytest.approx(-(1.0 * np.log(0.5) + 3.0 * np.log(0.8)) / 4.0)


def test_losses_stay_finite_far_out() -> None:
    z, t = np.asarray([[200.0, -200.0, 0.0]]), np.asarray([[0.0, 1.0, 1.0]])
    assert evaluate("SigmoidCrossEntropy", z, t) == pytest.approx((200.0 + 200.0 + np.log(2.0)) / 3.0)
    np.testing.assert_allclose(
        evaluate("SigmoidCrossEntropyGrad", np.asarray(3.0), z, t), [[1.0, -1.0, -0.5]], atol=1e-12
    )
    np.testing.assert_allclose(evaluate("Softmax", np.asarray([[1e4, 0.0]]), attrs=AxisAttrs(1)), [[1.0, 0.0]])
    np.testing.assert_allclose(evaluate("LogSoftmax", np.asarray([[1e4, 0.0]]), attrs=AxisAttrs(1)), [[0.0, -1e4]])


def test_mean_squared_error() -> None:
    y, t = np.asarray([[1.0, 2.0]]), np.asarray([[0.0, 4.0]])
    assert evaluate("MeanSquaredError", y, t) == pytest.approx(2.5)
    np.testing.assert_allclose(evaluate("MeanSquaredErrorGrad", np.asarray(1.0), y, t), [[1.0, -2.0]])


def test_a_constant_group_normalises_to_zero() -> None:
    case = make("Normalize", (np.full((2, 4), 3.0),), NormalizeAttrs((1,), 1e-4))
    xhat, rstd = run_node(case.node(), case.arrays)
    np.testing.assert_array_equal(xhat, np.zeros((2, 4)))
    np.testing.assert_allclose(rstd, np.full((2, 1), 100.0))


def test_the_first_of_equal_elements_wins_and_padding_never() -> None:
    attrs = PoolAttrs((2, 2), (1, 1), (1, 1, 0, 0), output_hw=(2, 2))
    index = evaluate("MaxPoolIndex", np.zeros((1, 2, 2, 1)), attrs=attrs)
    np.testing.assert_array_equal(index[0, :, :, 0], [[3, 2], [1, 0]])
    grad = PoolGradAttrs(attrs, (2, 2))
    dx = evaluate("MaxPoolGrad", np.asarray([[[[1.0], [2.0]], [[3.0], [4.0]]]]), index, attrs=grad)
    np.testing.assert_array_equal(dx[0, :, :, 0], [[10.0, 0.0], [0.0, 0.0]])


def test_window_index_is_wide_enough() -> None:
    wide = PoolAttrs((17, 17), (1, 1), (0, 0, 0, 0))
    x = np.zeros((1, 17, 17, 1))
    x[0, 16, 16, 0] = 1.0
    index = evaluate("MaxPoolIndex", x, attrs=wide)
    assert (index.dtype, index.item()) == (np.int32, 288)


def test_average_divides_by_what_counts() -> None:
    x = np.ones((1, 2, 2, 1))
    real = PoolAttrs((2, 2), (1, 1), (1, 1, 0, 0), output_hw=(2, 2))
    padded = PoolAttrs((2, 2), (1, 1), (1, 1, 0, 0), output_hw=(2, 2), count_include_pad=True)
    np.testing.assert_array_equal(evaluate("AveragePool", x, attrs=real)[0, :, :, 0], np.ones((2, 2)))
    np.testing.assert_array_equal(evaluate("AveragePool", x, attrs=padded)[0, :, :, 0], [[0.25, 0.5], [0.5, 1.0]])


def test_places() -> None:
    x = np.arange(12.0).reshape(3, 4)
    cut = SliceAttrs((2, 0), (-2, 3), (2, 2))
    np.testing.assert_array_equal(evaluate("Slice", x, attrs=cut), [[8.0, 11.0], [0.0, 3.0]])
    put = EmbedAttrs((2, 0), (-2, 3), (3, 4), 9.0)
    small = np.asarray([[1.0, 2.0], [3.0, 4.0]])
    want = [[3.0, 9.0, 9.0, 4.0], [9.0, 9.0, 9.0, 9.0], [1.0, 9.0, 9.0, 2.0]]
    np.testing.assert_array_equal(evaluate("Embed", small, attrs=put), want)


def test_sums_and_broadcasts() -> None:
    x = np.arange(6.0).reshape(2, 3)
    np.testing.assert_array_equal(evaluate("Reduce", x, attrs=ReduceAttrs((1,), 0.5)), [[1.5], [6.0]])
    np.testing.assert_array_equal(evaluate("Reduce", x, attrs=ReduceAttrs((), 2.0)), 2.0 * x)
    np.testing.assert_array_equal(
        evaluate("Expand", np.asarray([[1.0], [2.0]]), attrs=ExpandAttrs((2, 2), 3.0)), [[3.0, 3.0], [6.0, 6.0]]
    )


def test_a_mask_does_what_the_kept_output_does() -> None:
    for case in cases_of("ClipGrad"):
        dy, y = case.arrays
        mask = evaluate("ClipMask", y, attrs=case.attrs)
        np.testing.assert_array_equal(
            evaluate("MaskedGrad", dy, Bits(y.shape, mask)), evaluate("ClipGrad", dy, y, attrs=case.attrs)
        )


def test_gemm_in_two_parts_is_the_whole() -> None:
    rng = np.random.default_rng(6)
    x, w = rng.standard_normal((2, 5)), rng.standard_normal((4, 5))
    split = Split("in", (1, 3), 5)
    got = evaluate("Gemm", x, w[:, [1, 3]], w[:, [0, 2, 4]], attrs=GemmAttrs(split=split))
    np.testing.assert_allclose(got, x @ w.T)


def test_updates_by_hand() -> None:
    w, g, rate, scale = np.asarray([1.0, -2.0]), np.asarray([0.5, 4.0]), np.asarray(0.1), np.asarray(0.5)
    np.testing.assert_allclose(evaluate("SgdUpdate", w, g, rate, attrs=SgdAttrs()), [0.95, -2.4])
    np.testing.assert_allclose(
        evaluate("SgdUpdate", w, g, rate, scale, attrs=SgdAttrs(0.1, 0.0, True)), [1 - 0.035, -2 - 0.18]
    )
    case = make("MomentumUpdate", (w, np.asarray([1.0, 1.0]), g, rate), SgdAttrs(momentum=0.9))
    weight, velocity = run_node(case.node(), case.arrays)
    np.testing.assert_allclose(velocity, [1.4, 4.9])
    np.testing.assert_allclose(weight, [0.86, -2.49])
    np.testing.assert_array_equal(evaluate("Accumulate", w, g), [1.5, 2.0])
    np.testing.assert_array_equal(evaluate("Clear", w), [0.0, 0.0])
    np.testing.assert_allclose(evaluate("AdamTick", np.asarray([0.81, 0.5]), attrs=AdamAttrs()), [0.829, 0.5005])


@pytest.mark.parametrize("decoupled", [False, True])
def test_adam_over_three_steps(decoupled: bool) -> None:
    """Against the algorithm of the paper, written with plain numbers."""
    attrs = AdamAttrs(0.9, 0.999, 1e-8, 0.01, decoupled)
    w, m, v = np.asarray([1.0]), np.zeros(1), np.zeros(1)
    theta, first, second = 1.0, 0.0, 0.0
    for step in (1, 2, 3):
        grad = 0.3 * step
        powers = np.asarray([1 - 0.9**step, 1 - 0.999**step])
        case = make("AdamUpdate", (w, m, v, np.asarray([grad]), np.asarray(0.05), powers), attrs)
        w, m, v = run_node(case.node(), case.arrays)
        grad += 0.0 if decoupled else 0.01 * theta
        first, second = 0.9 * first + 0.1 * grad, 0.999 * second + 0.001 * grad**2
        move = first / (1 - 0.9**step) / (np.sqrt(second / (1 - 0.999**step)) + 1e-8)
        theta -= 0.05 * (move + (0.01 * theta if decoupled else 0.0))
        assert w[0] == pytest.approx(theta, rel=1e-12)
