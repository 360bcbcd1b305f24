"""Axis orders: images stay channels-last as far as possible, and every result is still ONNX's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.frontend.models import check_against_onnxruntime, ops_of
from tests.frontend.nets import Net
from tinytrain_compile.frontend import FrontendOptions


def image_net(output: str) -> Net:
    """A network that begins with a convolution to 4 channels of 5x6."""
    net = Net("float[1, 3, 5, 6] x", output)
    net.conv("c", "x", (4, 3, 3, 3), "pads = [1, 1, 1, 1]")
    return net


def test_flatten_permutes_the_weight_instead_of_the_image(tmp_path: Path) -> None:
    net = image_net("float[1, 7] y")
    net.add("r = Relu (c)")
    net.add("f = Flatten (r)")
    net.add("h = HardSwish (f)")
    net.dense("y", "h", 120, 7)
    imported = check_against_onnxruntime(net.model(), tmp_path)
    assert ops_of(imported) == ["Conv", "Clip", "Reshape", "HardSwish", "Gemm"]
    assert {"f", "h"} <= imported.tensors.keys()  # compared with the file's, in its order
    gemm = imported.graph.nodes[-1]
    ours = imported.graph.constants[gemm.inputs[1].name]
    onnx_order = net.weights["y_w"].reshape(7, 4, 5, 6)
    np.testing.assert_array_equal(ours.reshape(7, 5, 6, 4), onnx_order.transpose(0, 2, 3, 1))


BETWEEN = {
    "Reciprocal": "h = Reciprocal (p)",
    "Pow": "h = Pow (p, two)",
    "Sigmoid": "h = Sigmoid (p)",
    "CastLike": "h = CastLike (p, two)",
}


@pytest.mark.parametrize("op", BETWEEN)
def test_every_elementwise_operator_passes_a_flattened_image(op: str, tmp_path: Path) -> None:
    """Conv -> Flatten -> Reciprocal -> Gemm costs no more than with a Sigmoid there."""
    net = image_net("float[1, 7] y")
    net.weights["two"] = np.asarray(2.0, np.float32)
    net.add("e = Exp (c)")
    net.add("p = Flatten (e)")
    net.add(BETWEEN[op])
    net.dense("y", "h", 120, 7)
    imported = check_against_onnxruntime(net.model(), tmp_path)
    assert "Transpose" not in ops_of(imported)


def test_flatten_for_two_dense_layers(tmp_path: Path) -> None:
    net = image_net("float[1, 7] y")
    net.add(f"f = Reshape (c, {net.table('shape', [0, -1])})")
    net.dense("a", "f", 120, 7)
    net.add(f"b = MatMul (f, {net.weight('b_w', 120, 7)})")
    net.add("y = Sub (a, b)")
    imported = check_against_onnxruntime(net.model(), tmp_path)
    assert ops_of(imported) == ["Conv", "Reshape", "Gemm", "Gemm", "Sub"]


def test_flatten_read_by_anything_else_is_transposed(tmp_path: Path) -> None:
    net = image_net("float[1, 7] y")
    net.add("f = Flatten (c)")
    net.add("p = Softmax (f)")
    net.dense("y", "p", 120, 7)
    assert ops_of(check_against_onnxruntime(net.model(), tmp_path)).count("Transpose") == 1


def test_shared_weight_with_two_orders_stays_one_parameter(tmp_path: Path) -> None:
    net = image_net("float[1, 120] y")
    w, b = net.weight("w", 120, 120), net.weight("b", 120)
    net.add("f = Flatten (c)")
    net.add(f"h = Gemm <transB = 1> (f, {w}, {b})")
    net.add(f"y = Gemm <transB = 1> (h, {w}, {b})")
    imported = check_against_onnxruntime(net.model(), tmp_path)
    assert [value.name for value in imported.graph.parameters] == ["c_w", "c_b", "w", "b"]
    assert ops_of(imported) == ["Conv", "Reshape", "Gemm", "Reshape", "Transpose", "Reshape", "Gemm"]


def test_image_output_is_in_onnx_order(tmp_path: Path) -> None:
    net = image_net("float[1, 4, 5, 6] y")
    net.add("y = Sigmoid (c)")
    imported = check_against_onnxruntime(net.model(), tmp_path)
    assert ops_of(imported) == ["Conv", "Sigmoid", "Transpose"]
    assert imported.output_perm == (0, 1, 2, 3)


def test_chw_input_costs_a_transpose(tmp_path: Path) -> None:
    net = image_net("float[1, 4] y")
    net.add("y = ReduceMean <axes = [2, 3], keepdims = 0> (c)")
    imported = check_against_onnxruntime(net.model(), tmp_path, FrontendOptions(input_layout="chw"))
    assert ops_of(imported) == ["Transpose", "Conv", "Reduce", "Reshape"]
    assert imported.input_perm == (0, 1, 2, 3)


def test_channels_last_onnx_input_is_taken_as_it_is(tmp_path: Path) -> None:
    net = Net("float[1, 5, 6, 3] x", "float[1, 5, 6, 4] y")
    net.add("t = Transpose <perm = [0, 3, 1, 2]> (x)")
    net.conv("c", "t", (4, 3, 3, 3), "pads = [1, 1, 1, 1]")
    net.add("y = Transpose <perm = [0, 2, 3, 1]> (c)")
    imported = check_against_onnxruntime(net.model(), tmp_path)
    assert ops_of(imported) == ["Conv"]
    assert imported.input_perm == (0, 1, 2, 3)


def test_patches_to_tokens_need_no_transpose(tmp_path: Path) -> None:
    """A vision transformer's stem: NHWC is already the token order."""
    net = image_net("float[1, 30, 4] y")
    net.add(f"f = Reshape (c, {net.table('tokens', [1, 4, 30])})")
    net.add("t = Transpose <perm = [0, 2, 1]> (f)")
    net.add(f"y = LayerNormalization (t, {net.weight('g', 4)}, {net.weight('b', 4)})")
    imported = check_against_onnxruntime(net.model(), tmp_path)
    assert "Transpose" not in ops_of(imported)


def test_squeeze_and_excite(tmp_path: Path) -> None:
    net = image_net("float[1, 2] y")
    net.add("g = GlobalAveragePool (c)")
    net.add("f = Flatten (g)")
    net.dense("d", "f", 4, 4)
    net.add("s = HardSigmoid (d)")
    net.add(f"u = Unsqueeze (s, {net.table('axes', [2, 3])})")
    net.add("m = Mul (u, c)")
    net.add("p = GlobalMaxPool (m)")
    net.add(f"q = Squeeze (p, {net.table('spatial', [2, 3])})")
    net.dense("y", "q", 4, 2)
    imported = check_against_onnxruntime(net.model(), tmp_path)
    assert "Transpose" not in ops_of(imported)


def test_parts_of_channels_last_images(tmp_path: Path) -> None:
    net = image_net("float[1, 6, 7, 6] y")
    net.add(f"a, b = Split <axis = 1> (c, {net.table('parts', [1, 3])})")
    names = ", ".join(net.table(k, v) for k, v in {"s": [-1], "e": [-100], "ax": [3], "st": [-1]}.items())
    net.add(f"r = Slice (b, {names})")
    net.add("j = Concat <axis = -3> (r, a, k)")
    net.weight("k", 1, 2, 5, 6)
    net.add(f"y = Pad (j, {net.table('pads', [0, 0, 1, -1, 0, 0, 1, 1])}, {net.table('v', 0.5, np.float32)})")
    imported = check_against_onnxruntime(net.model(), tmp_path)
    assert ops_of(imported) == ["Conv", "Slice", "Slice", "Slice", "Concat", "Slice", "Embed", "Transpose"]


@pytest.mark.parametrize("mode", ["reflect", "edge", "wrap"])
def test_pad_with_own_elements(mode: str, tmp_path: Path) -> None:
    net = image_net("float[1, 4, 8, 7] y")
    net.add(f'p = Pad <mode = "{mode}"> (c, {net.table("pads", [0, 0, 1, 2, 0, 0, 2, -1])})')
    net.conv("y", "p", (4, 4, 1, 1))
    imported = check_against_onnxruntime(net.model(19), tmp_path)
    assert ops_of(imported).count("Transpose") == 1


def test_elementwise_constants_follow_the_order(tmp_path: Path) -> None:
    net = image_net("float[1, 4, 5, 6] y")
    net.add(f"a = Add (c, {net.weight('shift', 4, 1, 1)})")
    net.add(f"m = Mul ({net.weight('map', 5, 6)}, a)")
    net.add(f"p = PRelu (m, {net.weight('slope', 4, 1, 1)})")
    net.add(f"y = Div (p, {net.table('temperature', [2.0], np.float32)})")
    imported = check_against_onnxruntime(net.model(), tmp_path)
    shapes = {value.name: value.shape for value in imported.graph.parameters}
    expected = {"c_w": (4, 3, 3, 3), "c_b": (4,), "shift": (4,), "map": (5, 6, 1), "slope": (4,), "temperature": ()}
    assert shapes == expected


def test_signal_network_keeps_one_order(tmp_path: Path) -> None:
    net = Net("float[1, 2, 20] x", "float[1, 3] y")
    net.conv("c1", "x", (4, 2, 5), "pads = [2, 1], strides = [2]")
    net.add("r1 = Relu (c1)")
    net.add("m = MaxPool <kernel_shape = [2], strides = [2]> (r1)")
    net.conv("c2", "m", (4, 1, 3), "group = 4, dilations = [2], pads = [2, 2]")
    net.add("j = Add (c2, m)")
    net.add("a = AveragePool <kernel_shape = [3], ceil_mode = 1, strides = [2]> (j)")
    net.add("f = Flatten (a)")
    net.dense("y", "f", 8, 3)
    imported = check_against_onnxruntime(net.model(), tmp_path)
    assert ops_of(imported).count("Transpose") == 1  # the input itself
    assert imported.graph.nodes[-2].op == "Reshape"


def test_up_and_down_sampling(tmp_path: Path) -> None:
    net = image_net("float[1, 2, 10, 12] y")
    net.add("m = MaxPool <kernel_shape = [2, 2], strides = [2, 2], ceil_mode = 1> (c)")
    net.add(f"u = ConvTranspose <strides = [2, 2], output_padding = [1, 0]> (m, {net.weight('u_w', 4, 2, 3, 2)}, u_b)")
    net.weight("u_b", 2)
    ends = ", ".join(net.table(k, v) for k, v in {"s0": [0, 0], "e0": [5, 6], "a0": [2, 3]}.items())
    net.add(f"w = Slice (u, {ends})")
    net.weight("v_w", 2, 1, 4, 3)
    net.add("v = ConvTranspose <strides = [2, 2], group = 2, output_shape = [10, 12]> (w, v_w)")
    net.add(f"y = Clip (v, {net.table('low', -0.5, np.float32)})")
    imported = check_against_onnxruntime(net.model(), tmp_path)
    assert ops_of(imported).count("ConvGradInput") == 2


def test_group_norm_as_exported_stays_channels_last(tmp_path: Path) -> None:
    net = image_net("float[1, 4, 5, 6] y")
    net.add(f"r = Reshape (c, {net.table('groups', [0, 2, -1])})")
    net.add("n = InstanceNormalization (r, ones, zeros)")
    net.table("ones", [1, 1], np.float32)
    net.table("zeros", [0, 0], np.float32)
    net.add("sh = Shape (c)")
    net.add("b = Reshape (n, sh)")
    net.add(f"m = Mul (b, {net.weight('gamma', 4, 1, 1)})")
    net.add(f"y = Add (m, {net.weight('beta', 4, 1, 1)})")
    imported = check_against_onnxruntime(net.model(), tmp_path)
    assert ops_of(imported) == ["Conv", "Reshape", "Normalize", "Reshape", "Mul", "Add", "Transpose"]
    assert {"gamma", "beta"} <= {value.name for value in imported.graph.parameters}


def test_normalisations_of_channels_last_images(tmp_path: Path) -> None:
    net = image_net("float[1, 4, 5, 6] y")
    net.add("r = Relu (c)")
    net.batch_norm("b", "r", 4)
    net.add(f"i = InstanceNormalization (b, {net.weight('i_g', 4)}, {net.weight('i_b', 4)})")
    net.add(f"l = LayerNormalization <axis = 1> (i, {net.weight('l_g', 4, 5, 6)}, {net.weight('l_b', 4, 5, 6)})")
    net.add("s = Softmax <axis = 1> (l)")
    net.add("y = LogSoftmax <axis = -1> (s)")
    imported = check_against_onnxruntime(net.model(), tmp_path)
    assert ops_of(imported).count("Transpose") == 1


def test_reductions_rename_axes(tmp_path: Path) -> None:
    net = image_net("float[1, 4] y")
    net.add("a = ReduceMean <axes = [-1], keepdims = 0> (c)")
    net.add(f"b = ReduceSum <keepdims = 0> (a, {net.table('axes', [2])})")
    net.add("y = Neg (b)")
    imported = check_against_onnxruntime(net.model(), tmp_path)
    assert ops_of(imported) == ["Conv", "Reduce", "Reduce", "Reshape", "Neg"]


def test_shape_subgraph_is_folded(tmp_path: Path) -> None:
    """torch's x.view(x.size(0), -1) with an explicit product."""
    net = image_net("float[1, 3] y")
    net.add("sh = Shape (c)")
    net.add(f"n = Gather <axis = 0> (sh, {net.table('first', 0)})")
    net.add(f"nu = Unsqueeze (n, {net.table('zero', [0])})")
    net.add(f"wanted = Concat <axis = 0> (nu, {net.table('rest', [-1])})")
    net.add("f = Reshape (c, wanted)")
    net.dense("y", "f", 120, 3)
    imported = check_against_onnxruntime(net.model(), tmp_path)
    assert ops_of(imported) == ["Conv", "Reshape", "Gemm"]
