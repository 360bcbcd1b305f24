"""Operators in the forms that exporters write, and what becomes of their weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from tests.frontend.models import check_against_onnxruntime, ops_of, parse, run_imported, write
from tests.frontend.nets import Net
from tinytrain_compile.frontend import load_model, supported_operators


@pytest.mark.parametrize(
    ("attrs", "shapes", "ops"),
    [
        ("transB = 1", ((3, 4), (3,)), ["Gemm"]),
        ("alpha = 0.5, beta = 2.0", ((4, 3), (1, 3)), ["Mul", "Gemm", "Mul", "Add"]),  # never into weights
        ("beta = 0.0", ((4, 3), (3,)), ["Gemm"]),
        ("beta = 3.0", ((4, 3), (1, 1)), ["Gemm", "Mul", "Add"]),
        ("", ((4, 3), ()), ["Gemm", "Add"]),
    ],
)
def test_gemm_with_constant_weight(
    attrs: str, shapes: tuple[tuple[int, ...], tuple[int, ...]], ops: list[str], tmp_path: Path
) -> None:
    net = Net("float[1, 4] x", "float[1, 3] y")
    net.weight("w", *shapes[0])
    net.table("b", np.full(shapes[1], 0.3), np.float32)
    net.add(f"y = Gemm <{attrs}> (x, w, b)" if attrs else "y = Gemm (x, w, b)")
    assert ops_of(check_against_onnxruntime(net.model(), tmp_path)) == ops


def test_gemm_with_two_computed_operands(tmp_path: Path) -> None:
    net = Net("float[1, 4] x", "float[4, 4] y")
    net.add("y = Gemm <transA = 1, alpha = 2.0, beta = 0.5> (x, x, c)")
    net.weight("c", 4, 1)
    imported = check_against_onnxruntime(net.model(), tmp_path)
    assert ops_of(imported) == ["MatMul", "Mul", "Mul", "Add"]


@pytest.mark.parametrize(
    ("left", "right", "result", "ops"),
    [
        ((1, 3, 4), (4, 5), (1, 3, 5), ["Reshape", "Gemm", "Reshape"]),
        ((1, 2, 3, 4), (1, 1, 4, 5), (1, 2, 3, 5), ["Reshape", "Gemm", "Reshape"]),
        ((1, 4), (4,), (1,), ["Gemm", "Reshape"]),
        ((1, 2, 3, 4), (2, 4, 5), (1, 2, 3, 5), ["Reshape", "MatMul"]),
        ((1, 2, 3, 4), (3, 2, 4, 5), (3, 2, 3, 5), ["Expand", "MatMul"]),
    ],
)
def test_matmul_with_a_constant(
    left: tuple[int, ...], right: tuple[int, ...], result: tuple[int, ...], ops: list[str], tmp_path: Path
) -> None:
    net = Net(f"float[{', '.join(map(str, left))}] x", f"float[{', '.join(map(str, result))}] y")
    net.add(f"y = MatMul (x, {net.weight('w', *right)})")
    imported = check_against_onnxruntime(net.model(), tmp_path)
    assert ops_of(imported) == ops
    assert [value.name for value in imported.graph.parameters] == ["w"]


def test_matmul_by_a_transposed_tensor_uses_the_flag(tmp_path: Path) -> None:
    net = Net("float[1, 3, 4] x", "float[1, 3, 3] y")
    net.add("t = Transpose <perm = [0, 2, 1]> (x)")
    net.add("y = MatMul (x, t)")
    assert ops_of(check_against_onnxruntime(net.model(), tmp_path)) == ["MatMul"]


def test_matmul_of_one_matrix_for_all_batches(tmp_path: Path) -> None:
    net = Net("float[1, 3, 4] x", "float[1, 3, 3] y")
    net.add(f"m = Reshape (x, {net.table('shape', [4, 3])})")
    net.add("y = MatMul (x, m)")
    assert ops_of(check_against_onnxruntime(net.model(), tmp_path)).count("MatMul") == 1


def test_weight_behind_views_keeps_its_name(tmp_path: Path) -> None:
    net = Net("float[1, 4] x", "float[1, 3] y")
    net.add(f"i = Identity ({net.weight('fc.weight', 3, 4).replace('.', '_')})")
    net.weights["fc_weight"] = net.weights.pop("fc.weight")
    net.add("t = Transpose <perm = [1, 0]> (i)")
    net.add("y = MatMul (x, t)")
    imported = check_against_onnxruntime(net.model(), tmp_path)
    assert [value.name for value in imported.graph.parameters] == ["fc_weight"]
    np.testing.assert_array_equal(imported.graph.constants["fc_weight"], net.weights["fc_weight"])


@pytest.mark.parametrize(
    "lines",
    [
        ("d = Div (x, s)", "e = Erf (d)", "p = Add (e, one)", "m = Mul (x, p)", "y = Mul (m, half)"),
        ("d = Mul (r, x)", "e = Erf (d)", "p = Add (one, e)", "m = Mul (half, p)", "y = Mul (m, x)"),
        ("h = Mul (x, half)", "d = Div (x, s)", "e = Erf (d)", "p = Add (e, one)", "y = Mul (h, p)"),
    ],
)
def test_gelu_as_exported(lines: tuple[str, ...], tmp_path: Path) -> None:
    net = Net("float[1, 40] x", "float[1, 40] y")
    for name, number in {"s": 2**0.5, "r": 0.5**0.5, "one": 1.0, "half": 0.5}.items():
        net.table(name, number, np.float32)
    net.lines += lines
    assert ops_of(check_against_onnxruntime(net.model(), tmp_path)) == ["Gelu"]


def test_what_only_looks_like_gelu_is_left_alone(tmp_path: Path) -> None:
    net = Net("float[1, 40] x", "float[1, 40] y")
    for name, number in {"s": 1.5, "one": 1.0, "half": 0.5}.items():
        net.table(name, number, np.float32)
    net.lines += ["d = Div (x, s)", "e = Erf (d)", "p = Add (e, one)", "m = Mul (x, p)", "y = Mul (m, half)"]
    assert ops_of(check_against_onnxruntime(net.model(), tmp_path)) == ["Div", "Erf", "Add", "Mul", "Mul"]


@pytest.mark.parametrize(
    ("gate", "ops"),
    [("Sigmoid (x)", ["Silu"]), ("HardSigmoid <alpha = 0.16666667, beta = 0.5> (x)", ["HardSwish"])],
)
def test_gates(gate: str, ops: list[str], tmp_path: Path) -> None:
    net = Net("float[1, 40] x", "float[1, 40] y")
    net.lines += [f"g = {gate}", "y = Mul (g, x)"]
    assert ops_of(check_against_onnxruntime(net.model(), tmp_path)) == ops


def test_gate_that_is_read_elsewhere_stays(tmp_path: Path) -> None:
    net = Net("float[1, 4] x", "float[1, 4] y")
    net.lines += ["g = Sigmoid (x)", "m = Mul (x, g)", "y = Add (m, g)"]
    assert ops_of(check_against_onnxruntime(net.model(), tmp_path)) == ["Sigmoid", "Mul", "Add"]


@pytest.mark.parametrize(
    ("exponent", "ops"),
    [(2.0, ["Mul"]), (3.0, ["Power"]), (0.5, ["Sqrt"]), (-0.5, ["Sqrt", "Div"]), (-1.0, ["Div"]), (1.0, [])],
)
def test_powers(exponent: float, ops: list[str], tmp_path: Path) -> None:
    net = Net("float[1, 4] x", "float[1, 4] y")
    net.add("e = Exp (x)")
    net.add(f"p = Pow (e, {net.table('power', exponent, np.float32)})")
    net.add("y = Log (p)")
    assert ops_of(check_against_onnxruntime(net.model(), tmp_path)) == ["Exp", *ops, "Log"]


def test_a_cube_of_what_may_be_negative_is_no_trained_power(tmp_path: Path) -> None:
    net = Net("float[1, 4] x", "float[1, 4] y")
    net.add(f"y = Pow (x, {net.table('power', 3.0, np.float32)})")
    assert ops_of(check_against_onnxruntime(net.model(), tmp_path)) == ["Mul", "Mul"]


def test_layer_norm_as_exported_before_opset_17(tmp_path: Path) -> None:
    net = Net("float[1, 5, 8] x", "float[1, 5, 8] y")
    net.table("two", 2.0, np.float32)
    net.table("epsilon", 1e-5, np.float32)
    net.lines += [
        "m = ReduceMean <axes = [-1]> (x)",
        "c = Sub (x, m)",
        "q = Pow (c, two)",
        "v = ReduceMean <axes = [-1]> (q)",
        "ve = Add (v, epsilon)",
        "s = Sqrt (ve)",
        "n = Div (c, s)",
        f"g = Mul (n, {net.weight('gamma', 8)})",
        f"y = Add (g, {net.weight('beta', 8)})",
    ]
    imported = check_against_onnxruntime(net.model(13), tmp_path)
    assert [value.name for value in imported.graph.parameters] == ["gamma", "beta"]


def test_attention_mask_is_no_parameter(tmp_path: Path) -> None:
    net = Net("float[1, 3, 3] x", "float[1, 3, 3] y")
    net.add(f"m = Add (x, {net.table('mask', np.triu(np.full((3, 3), -1e9), 1), np.float32)})")
    net.add("y = Softmax <axis = -1> (m)")
    assert check_against_onnxruntime(net.model(), tmp_path).graph.parameters == ()


def test_group_normalization_before_and_after_opset_21(tmp_path: Path) -> None:
    for opset, per in ((18, 2), (21, 4)):
        net = Net("float[1, 3, 5, 6] x", "float[1, 4, 5, 6] y")
        net.conv("c", "x", (4, 3, 1, 1))
        net.add(f"y = GroupNormalization <num_groups = 2> (c, {net.weight('g', per)}, {net.weight('b', per)})")
        imported = check_against_onnxruntime(net.model(opset), tmp_path)
        assert ops_of(imported).count("Transpose") == 1  # the output
        assert {"g", "b"} <= {value.name for value in imported.graph.parameters}


def test_batch_norm_folds_into_gemm_but_not_past_a_second_reader(tmp_path: Path) -> None:
    net = Net("float[1, 4] x", "float[1, 3] y")
    net.dense("a", "x", 4, 3)
    net.batch_norm("n", "a", 3)
    net.dense("d", "n", 3, 3)
    net.batch_norm("m", "d", 3)
    net.add("y = Add (m, d)")
    imported = check_against_onnxruntime(net.model(), tmp_path)
    assert ops_of(imported) == ["Gemm", "Gemm", "Sub", "Mul", "Mul", "Add", "Add"]
    names = [value.name for value in imported.graph.parameters]
    assert names == ["a_w", "a_b", "d_w", "d_b", "m_gamma", "m_beta"]


def test_conv_without_bias_takes_the_shift_of_batch_norm(tmp_path: Path) -> None:
    net = Net("float[1, 3, 4, 4] x", "float[1, 2] y")
    net.add(f"c = Conv <group = 1> (x, {net.weight('c_w', 2, 3, 3, 3)})")
    net.batch_norm("n", "c", 2)
    net.add("y = ReduceMean <axes = [2, 3], keepdims = 0> (n)")
    imported = check_against_onnxruntime(net.model(), tmp_path)
    assert [value.name for value in imported.graph.parameters] == ["c_w", "n_beta"]
    assert imported.graph.nodes[0].origin == "Conv_c"


def test_class_token_by_gather(tmp_path: Path) -> None:
    net = Net("float[1, 5, 8] x", "float[1, 8] y")
    net.add(f"y = Gather <axis = 1> (x, {net.table('first', 0)})")
    assert ops_of(check_against_onnxruntime(net.model(), tmp_path)) == ["Slice", "Reshape"]


def test_equal_constants_of_one_name_are_one(tmp_path: Path) -> None:
    net = Net("float[1, 4] x", "float[1, 4] y")
    net.weight("w", 4, 4)
    net.lines += ["a = MatMul (x, w)", "y = MatMul (a, w)"]
    imported = check_against_onnxruntime(net.model(), tmp_path)
    assert [value.name for value in imported.graph.parameters] == ["w"]
    assert list(imported.graph.constants) == ["w"]


def loss_net(loss: str, shape: str = "1, 5", extra: str = "") -> Net:
    net = Net(f"float[1, 3, 4, 4] x, int64[{extra or 1}] t", "float y")
    net.conv("c", "x", (5, 3, 1, 1))
    if not extra:
        net.add("s = ReduceMean <axes = [2, 3], keepdims = 0> (c)")
    net.add(f"y = {loss}")
    return net


def test_contract_2_with_softmax_cross_entropy(tmp_path: Path) -> None:
    net = loss_net('SoftmaxCrossEntropyLoss <reduction = "sum", ignore_index = 2> (s, t, cw)')
    net.table("cw", [1, 2, 3, 4, 5], np.float32)
    path = write(net.model(), tmp_path)
    imported = load_model(path)
    assert imported.contract == 2
    assert imported.loss is not None
    assert (imported.loss.kind, imported.loss.reduction, imported.loss.ignore_index) == ("softmax-ce", "sum", 2)
    assert (imported.loss.axis, imported.loss.label, imported.loss.label_shape) == (1, "t", (1,))
    np.testing.assert_array_equal(imported.loss.class_weights, [1, 2, 3, 4, 5])
    assert ops_of(imported) == ["Conv", "Reduce", "Reshape"]
    assert [value.name for value in imported.graph.inputs] == ["x"]
    assert imported.output_shape == (1, 5)


def test_contract_2_with_log_likelihood_and_cast_labels(tmp_path: Path) -> None:
    net = loss_net("NegativeLogLikelihoodLoss (p, i)")
    net.lines[-1:] = ["i = Cast <to = 6> (t)", "p = LogSoftmax <axis = 1> (s)", net.lines[-1]]
    imported = load_model(write(net.model(), tmp_path))
    assert imported.loss is not None
    assert (imported.loss.kind, imported.loss.reduction, imported.loss.class_weights) == ("nll", "mean", None)
    assert imported.loss.ignore_index is None
    assert ops_of(imported)[-1] == "LogSoftmax"


def test_contract_2_on_images_keeps_them_channels_last(tmp_path: Path) -> None:
    net = loss_net("SoftmaxCrossEntropyLoss (c, t)", extra="1, 4, 4")
    path = write(net.model(), tmp_path)
    imported = load_model(path)
    assert imported.loss is not None
    assert ops_of(imported) == ["Conv"]
    assert (imported.loss.axis, imported.loss.label_shape, imported.output_perm) == (3, (1, 4, 4), (0, 2, 3, 1))
    x = np.random.default_rng(0).normal(size=(1, 3, 4, 4)).astype(np.float32)
    labels = np.arange(16).reshape(1, 4, 4) % 5
    scores = run_imported(imported, x)[0]
    log_sum = np.log(np.exp(scores).sum(axis=3))
    ours = (log_sum - np.take_along_axis(scores, labels[..., None], axis=3)[..., 0]).mean()
    theirs = onnxruntime.InferenceSession(str(path)).run(None, {"x": x, "t": labels})[0]
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def test_unreduced_loss_of_one_sample_is_its_mean(tmp_path: Path) -> None:
    net = loss_net('SoftmaxCrossEntropyLoss <reduction = "none"> (s, t)')
    net.header = net.header.replace("float y", "float[1] y")
    loss = load_model(write(net.model(), tmp_path)).loss
    assert loss is not None
    assert (loss.kind, loss.reduction) == ("written", "mean")


def test_supported_operators_cover_the_issue() -> None:
    listed = """Conv ConvTranspose Gemm MatMul Add Sub Mul Div Neg Sqrt Pow Exp Log Relu LeakyRelu PRelu Clip Sigmoid
    HardSigmoid Tanh HardSwish Erf Gelu Softmax LogSoftmax MaxPool AveragePool GlobalAveragePool GlobalMaxPool
    ReduceMean ReduceSum Flatten Reshape Squeeze Unsqueeze Transpose Concat Split Slice Pad BatchNormalization
    LayerNormalization InstanceNormalization GroupNormalization Dropout Identity Cast Constant
    SoftmaxCrossEntropyLoss NegativeLogLikelihoodLoss"""
    assert set(listed.split()) <= set(supported_operators())


def test_constants_in_nodes(tmp_path: Path) -> None:
    """torch writes scalars as Constant nodes, some of them after their first possible use."""
    text = """net (float[1, 4] x) => (float[1, 4] y) {
        h = Constant <value_float = 0.5> ()
        a = Mul (x, h)
        k = Constant <value_ints = [1, 4]> ()
        r = Reshape (a, k)
        y = Add (r, h)
    }"""
    imported = check_against_onnxruntime(parse(text), tmp_path)
    assert imported.graph.parameters == ()
