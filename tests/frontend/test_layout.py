"""Axis orders: images stay channels-last as far as possible, and every result is still ONNX's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tinytrain_compile as tt
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


SIGNALS = {
    "convolution": lambda net: net.conv("c", "x", (4, 3, 5)),
    "scaled": lambda net: _scaled(net),
    "normalised": lambda net: (net.batch_norm("n", "x", 3), net.conv("c", "n", (4, 3, 5), "pads = [2, 2]")),
    "residual": lambda net: (net.conv("d", "x", (3, 3, 5), "pads = [2, 2]"), net.add("c = Add (x, d)")),
    "pool": lambda net: net.add("c = MaxPool <kernel_shape = [2], strides = [2]> (x)"),
}


def _scaled(net: Net) -> None:
    net.add(f"m = Sub (x, {net.weight('mean', 1, 3, 1)})")
    net.conv("c", "m", (4, 3, 5))


@pytest.mark.parametrize("kind", SIGNALS)
def test_a_signal_with_channels_last_saves_the_transpose(kind: str, tmp_path: Path) -> None:
    """As a sensor's FIFO delivers it: the first convolution reads it as it comes."""
    net = Net("float[1, 3, 20] x", "float[1, C] y")
    SIGNALS[kind](net)
    net.add("y = ReduceMean <axes = [2], keepdims = 0> (c)")
    kept = check_against_onnxruntime(net.model(), tmp_path, FrontendOptions(input_layout="cl"))
    default = check_against_onnxruntime(net.model(), tmp_path)
    assert kept.input_perm == default.input_perm == (0, 1, 2) and ops_of(kept) == ops_of(default)
    last = check_against_onnxruntime(net.model(), tmp_path, FrontendOptions(input_layout="lc"))
    assert last.input_perm == (0, 2, 1) and last.graph.inputs[0].shape == (1, 20, 3)
    assert "Transpose" not in ops_of(last) and "Transpose" in ops_of(default)


def test_what_has_its_length_in_front_is_taken_as_it_is(tmp_path: Path) -> None:
    net = Net("float[1, 20, 3] x", "float[1, 5] y")
    net.add(f"m = MatMul (x, {net.weight('w', 3, 5)})")
    net.add("y = ReduceMean <axes = [1], keepdims = 0> (m)")
    last = check_against_onnxruntime(net.model(), tmp_path, FrontendOptions(input_layout="lc"))
    assert last.input_perm == (0, 1, 2) and last.graph.inputs[0].layout == "NWC"


def test_the_header_of_a_signal_names_its_order(tmp_path: Path) -> None:
    """Values are those of the model's own order: in float32 to the last bits, in int8 to the byte."""
    net = Net("float[1, 3, 20] x", "float[1, 4] y")
    net.conv("c", "x", (4, 3, 5))
    net.add("y = ReduceMean <axes = [2], keepdims = 0> (c)")
    random = np.random.default_rng(0)
    x, y = random.normal(size=(8, 3, 20)).astype(np.float32), random.integers(0, 4, 8)
    names = ("M_INPUT_SHAPE {1, 20, 3}", "M_INPUT_CHANNELS_LAST 1", "M_INPUT_LENGTH 20u", "M_INPUT_CHANNELS 3u")
    for more in ({}, {"quant": "int8", "calib": (x, y), "head": "int8"}):
        made = {
            layout: tt.compile(net.model(), name="m", verify="none", update="all", input_layout=layout, **more)
            for layout in ("lc", "hwc", "cl")
        }
        assert made["lc"].files["m_train.h"] == made["hwc"].files["m_train.h"]
        headers = {layout: str(one.files["m_train.h"]) for layout, one in made.items()}
        assert all(f"#define {name}\n" in headers["lc"] for name in names)
        assert "CHANNELS" not in headers["cl"] and "M_INPUT_SHAPE {1, 3, 20}" in headers["cl"]
        with made["lc"].twin() as last, made["cl"].twin() as first:
            for i in range(8):
                losses = [twin.train_step(x[i : i + 1], y[i : i + 1]) for twin in (last, first)]
                assert losses[0] == pytest.approx(losses[1], rel=0 if more else 1e-6)
            assert last.predict(x) == pytest.approx(first.predict(x), rel=0, abs=0 if more else 1e-6)


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
