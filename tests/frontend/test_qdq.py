"""Quantised models import as float graphs that say how each value is stored."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.frontend.models import ops_of, parse, write
from tests.frontend.qdq import Maker, check_quantised, integers_of, nodes_of, quantised_of
from tinytrain_compile.errors import CompileError
from tinytrain_compile.frontend import load_model
from tinytrain_compile.ir.types import Quant

# ---- QuantizeLinear and DequantizeLinear ----------------------------------------------------------------------------


def conv_net(m: Maker, activation: type = np.int8, per_channel: bool = True, relu: str = "") -> onnx.ModelProto:
    """input -> Q/DQ -> Conv [-> Relu or Clip] -> Q/DQ -> GlobalAveragePool -> Q/DQ."""
    zero = 128 if activation is np.uint8 else 0
    x = m.scale("x", 2 / 255, zero, activation)
    w = m.weight("w", (6, 3, 3, 3), 6 if per_channel else 0)
    b = m.bias("b", 6, 2 / 255, "w")
    y = m.scale("y", 0.05, zero - 20, activation)
    m.weights |= {"lo": np.float32(0), "hi": np.float32(6)}
    after = {"": "r = Identity(c)", "Relu": "r = Relu(c)", "Clip": "r = Clip(c, lo, hi)"}[relu]
    return m.model(
        f"""net (float[1, 3, 8, 8] input) => (float[1, 6, 8, 8] output) {{
        xq = QuantizeLinear(input, {x})
        xd = DequantizeLinear(xq, {x})
        wd = DequantizeLinear<axis = 0>(w, {w})
        bd = DequantizeLinear<axis = 0>(b, {b})
        c = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(xd, wd, bd)
        {after}
        rq = QuantizeLinear(r, {y})
        output = DequantizeLinear(rq, {y})
        }}"""
    )


@pytest.mark.parametrize("activation", [np.int8, np.uint8])
@pytest.mark.parametrize("per_channel", [True, False])
def test_conv(activation: type, per_channel: bool, tmp_path: Path) -> None:
    m = Maker()
    imported = check_quantised(conv_net(m, activation, per_channel), tmp_path, 1.0)
    assert ops_of(imported) == ["Conv", "Transpose"]  # back to ONNX order, at the output only
    quants = quantised_of(imported)
    assert quants["input"] == Quant((float(np.float32(2 / 255)),), 0)
    assert imported.graph.outputs[0].quant == Quant((float(np.float32(0.05)),), -20)
    scales = np.broadcast_to(m.weights["w_s"], 6).astype(np.float64)
    assert quants["w"] == Quant(tuple(scales.tolist()))
    np.testing.assert_array_equal(integers_of(imported, "w"), m.weights["w"].transpose(0, 2, 3, 1))
    np.testing.assert_array_equal(integers_of(imported, "b"), m.weights["b"])
    assert {v.origin for v in imported.graph.parameters} == {nodes_of(imported, "Conv")[0].origin}


@pytest.mark.parametrize("relu", ["Relu", "Clip"])
def test_range_behind_relu_sits_on_the_clamp(relu: str, tmp_path: Path) -> None:
    imported = check_quantised(conv_net(Maker(), np.uint8, relu=relu), tmp_path, 1.0)
    assert ops_of(imported) == ["Conv", "Clip", "Transpose"]
    conv, clip = imported.graph.nodes[:2]
    assert conv.outputs[0].quant is None
    assert clip.inputs == conv.outputs
    assert clip.outputs[0].quant == Quant((float(np.float32(0.05)),), -20)


def test_depthwise_add_of_different_scales_and_max_pool(tmp_path: Path) -> None:
    m = Maker(3)
    x, y, z = m.scale("x", 0.01), m.scale("y", 0.03, 5), m.scale("z", 0.06, -7)
    dw, pw = m.weight("dw", (4, 1, 3, 3), 4), m.weight("pw", (4, 4, 1, 1), 4)
    text = f"""net (float[1, 4, 8, 8] input) => (float[1, 4, 4, 4] output) {{
        xq = QuantizeLinear(input, {x})
        xd = DequantizeLinear(xq, {x})
        dwd = DequantizeLinear<axis = 0>(dw, {dw})
        pwd = DequantizeLinear<axis = 0>(pw, {pw})
        a = Conv<group = 4, pads = [1, 1, 1, 1]>(xd, dwd)
        aq = QuantizeLinear(a, {y})
        ad = DequantizeLinear(aq, {y})
        b = Conv(ad, pwd)
        bq = QuantizeLinear(b, {z})
        bd = DequantizeLinear(bq, {z})
        s = Add(xd, bd)
        sq = QuantizeLinear(s, {z})
        p = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(sq)
        output = DequantizeLinear(p, {z})
        }}"""
    imported = check_quantised(m.model(text), tmp_path, 2.0)
    assert ops_of(imported) == ["Conv", "Conv", "Add", "MaxPool", "Transpose"]
    zeros = [node.outputs[0].quant.zero for node in imported.graph.nodes if node.outputs[0].quant]
    assert zeros == [5, -7, -7, -7, -7]
    np.testing.assert_array_equal(integers_of(imported, "dw"), m.weights["dw"].transpose(0, 2, 3, 1))


def test_dense_layers_after_a_flattened_image(tmp_path: Path) -> None:
    """Columns are permuted to channels-last; a Gemm without transB has its channels on axis 1."""
    m = Maker(4)
    x, y, z = m.scale("x", 0.01), m.scale("y", 0.08, 3), m.scale("z", 0.06, 10)
    v, w = m.weight("v", (7, 2 * 3 * 4), 7), m.weight("w", (7, 5), 5)
    text = f"""net (float[1, 2, 3, 4] input) => (float[1, 5] output) {{
        xq = QuantizeLinear(input, {x})
        xd = DequantizeLinear(xq, {x})
        f = Flatten(xd)
        vd = DequantizeLinear<axis = 0>(v, {v})
        wd = DequantizeLinear<axis = 1>(w, {w})
        g = Gemm<transB = 1>(f, vd)
        gq = QuantizeLinear(g, {y})
        gd = DequantizeLinear(gq, {y})
        h = MatMul(gd, wd)
        hq = QuantizeLinear(h, {z})
        output = DequantizeLinear(hq, {z})
        }}"""
    imported = check_quantised(m.model(text), tmp_path, 1.5)
    assert ops_of(imported) == ["Reshape", "Gemm", "Gemm"]
    flat = imported.graph.nodes[0].outputs[0]
    assert flat.quant == imported.graph.inputs[0].quant  # a view is stored as what it shows
    columns = np.arange(24).reshape(2, 3, 4).transpose(1, 2, 0).reshape(-1)
    np.testing.assert_array_equal(integers_of(imported, "v"), m.weights["v"][:, columns])
    np.testing.assert_array_equal(integers_of(imported, "w"), m.weights["w"].T)


def test_product_of_a_sequence_is_stored_in_front_of_its_reshape(tmp_path: Path) -> None:
    m = Maker(5)
    x, y, w = m.scale("x", 0.01), m.scale("y", 0.05), m.weight("w", (8, 6), 6)
    text = f"""net (float[1, 5, 8] input) => (float[1, 5, 6] output) {{
        xq = QuantizeLinear(input, {x})
        xd = DequantizeLinear(xq, {x})
        wd = DequantizeLinear<axis = -1>(w, {w})
        h = MatMul(xd, wd)
        hq = QuantizeLinear(h, {y})
        output = DequantizeLinear(hq, {y})
        }}"""
    imported = check_quantised(m.model(text), tmp_path, 1.0)
    assert ops_of(imported) == ["Reshape", "Gemm", "Reshape"]
    gemm = imported.graph.nodes[1]
    assert gemm.outputs[0].quant == imported.graph.outputs[0].quant == Quant((float(np.float32(0.05)),), 0)


def test_transposed_convolution_has_its_channels_on_the_last_axis(tmp_path: Path) -> None:
    m = Maker(6)
    x, y, w = m.scale("x", 0.01), m.scale("y", 0.05), m.weight("w", (3, 4, 2, 2), 4)
    text = f"""net (float[1, 3, 4, 4] input) => (float[1, 4, 8, 8] output) {{
        xq = QuantizeLinear(input, {x})
        xd = DequantizeLinear(xq, {x})
        wd = DequantizeLinear<axis = 1>(w, {w})
        h = ConvTranspose<strides = [2, 2]>(xd, wd)
        hq = QuantizeLinear(h, {y})
        output = DequantizeLinear(hq, {y})
        }}"""
    imported = check_quantised(m.model(text), tmp_path, 1.0)
    (value,) = imported.graph.parameters
    assert value.quant is not None and value.shape == (3, 2, 2, 4)
    integers = np.rint(imported.graph.constants["w"].astype(np.float64) / np.asarray(value.quant.scale))
    np.testing.assert_array_equal(integers, m.weights["w"].transpose(0, 2, 3, 1))


def test_unsigned_weights_and_float_weights_that_are_rounded(tmp_path: Path) -> None:
    m = Maker(7)
    x, y, v = m.scale("x", 0.01), m.scale("y", 0.03), m.weight("v", (6, 8), 0, np.uint8)
    w = m.weight("w", (6, 6), 6)
    integers = m.weights["w"]
    m.weights["w"] = (integers * m.weights["w_s"][:, None]).astype(np.float32)
    text = f"""net (float[1, 8] input) => (float[1, 6] output) {{
        xq = QuantizeLinear(input, {x})
        xd = DequantizeLinear(xq, {x})
        vd = DequantizeLinear(v, {v})
        wq = QuantizeLinear<axis = 0>(w, {w})
        wd = DequantizeLinear<axis = 0>(wq, {w})
        g = Gemm<transB = 1>(xd, vd)
        gq = QuantizeLinear(g, {y})
        gd = DequantizeLinear(gq, {y})
        h = Gemm<transB = 1>(gd, wd)
        hq = QuantizeLinear(h, {y})
        output = DequantizeLinear(hq, {y})
        }}"""
    imported = check_quantised(m.model(text), tmp_path, 3.0)
    assert [value.name for value in imported.graph.parameters] == ["v", "w"]
    np.testing.assert_array_equal(integers_of(imported, "v"), m.weights["v"].astype(int) - 128)
    np.testing.assert_array_equal(integers_of(imported, "w"), integers)


def test_two_formats_of_one_tensor_become_a_clamp(tmp_path: Path) -> None:
    m = Maker()
    x, y = m.scale("x", 0.01), m.scale("y", 0.004, -28)
    text = f"""net (float[1, 8] input) => (float[1, 8] output) {{
        xq = QuantizeLinear(input, {x})
        xd = DequantizeLinear(xq, {x})
        yq = QuantizeLinear(xd, {y})
        output = DequantizeLinear(yq, {y})
        }}"""
    imported = check_quantised(m.model(text), tmp_path, 3.0, spread=2.0)
    assert ops_of(imported) == ["Clip"]
    assert imported.graph.inputs[0].quant == Quant((float(np.float32(0.01)),), 0)
    assert imported.graph.outputs[0].quant == Quant((float(np.float32(0.004)),), -28)


def test_values_without_a_format_stay_open(tmp_path: Path) -> None:
    m = Maker()
    x = m.scale("x", 0.01)
    text = f"""net (float[1, 8] input) => (float[1, 8] output) {{
        xq = QuantizeLinear(input, {x})
        xd = DequantizeLinear(xq, {x})
        t = Tanh(xd)
        output = Softmax(t)
        }}"""
    imported = load_model(write(m.model(text), tmp_path))
    assert imported.quantised
    assert [node.outputs[0].quant for node in imported.graph.nodes] == [None, None]


def test_float_model_is_not_quantised(tmp_path: Path) -> None:
    text = "net (float[1, 8] input) => (float[1, 8] output) { output = Tanh(input) }"
    imported = load_model(write(parse(text), tmp_path))
    assert not imported.quantised
    assert imported.graph.inputs[0].quant is None


def test_batch_normalisation_leaves_stored_weights_alone(tmp_path: Path) -> None:
    m = Maker(9)
    x, y, w = m.scale("x", 0.01), m.scale("y", 0.02), m.weight("w", (4, 3, 1, 1), 4)
    m.weights |= {f"n{i}": np.random.default_rng(i).uniform(0.5, 2, 4).astype(np.float32) for i in range(4)}
    text = f"""net (float[1, 3, 4, 4] input) => (float[1, 4, 4, 4] output) {{
        xq = QuantizeLinear(input, {x})
        xd = DequantizeLinear(xq, {x})
        wd = DequantizeLinear<axis = 0>(w, {w})
        c = Conv(xd, wd)
        n = BatchNormalization(c, n0, n1, n2, n3)
        q = QuantizeLinear(n, {y})
        output = DequantizeLinear(q, {y})
        }}"""
    imported = check_quantised(m.model(text), tmp_path, 1.5)
    np.testing.assert_array_equal(integers_of(imported, "w"), m.weights["w"].transpose(0, 2, 3, 1))
    assert ops_of(imported) == ["Conv", "Sub", "Mul", "Mul", "Add", "Transpose"]


# ---- QLinear operators ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [np.int8, np.uint8])
def test_qlinear_operators(kind: type, tmp_path: Path) -> None:
    m = Maker(8)
    zero = 128 if kind is np.uint8 else 0
    x, y = m.scale("x", 0.01, zero + 3, kind), m.scale("y", 0.04, zero - 9, kind)
    z, w, v = m.scale("z", 0.2, zero, kind), m.weight("w", (4, 2, 3, 3), 4), m.weight("v", (4 * 9, 5), 0)
    m.bias("b", 4, 0.01, "w")
    m.weights["shape"] = np.asarray([1, -1], np.int64)
    name = "int8" if kind is np.int8 else "uint8"
    text = f"""net (float[1, 2, 5, 5] input) => ({name}[1, 5] output) {{
        xq = QuantizeLinear(input, {x})
        c = QLinearConv(xq, {x}, w, {w}, {y}, b)
        f = Reshape(c, shape)
        output = QLinearMatMul(f, {y}, v, {v}, {z})
        }}"""
    imported = check_quantised(m.model(text), tmp_path, 1.5)
    assert ops_of(imported) == ["Conv", "Reshape", "Gemm"]
    assert [value.name for value in imported.graph.parameters] == ["w", "b", "v"]
    np.testing.assert_array_equal(integers_of(imported, "w"), m.weights["w"].transpose(0, 2, 3, 1))
    np.testing.assert_array_equal(integers_of(imported, "b"), m.weights["b"])
    quants = quantised_of(imported)
    assert quants["b"] is not None and quants["w"] is not None
    np.testing.assert_allclose(quants["b"].scale, np.float32(0.01) * np.asarray(quants["w"].scale), rtol=1e-12)
    assert [node.outputs[0].quant.zero for node in imported.graph.nodes if node.outputs[0].quant] == [-9, -9, 0]
    assert "output output: integers in the model, real numbers here" in imported.graph.notes


# ---- what is refused ------------------------------------------------------------------------------------------------


def refusal(model: onnx.ModelProto, folder: Path) -> CompileError:
    with pytest.raises(CompileError) as caught:
        load_model(write(model, folder))
    return caught.value


def weight_model(m: Maker, axis: int, scale: np.ndarray, zero: np.ndarray, stored: np.ndarray) -> onnx.ModelProto:
    m.weights |= {"w": stored, "w_s": scale, "w_z": zero}
    text = f"""net (float[1, 6] input) => (float[1, 4] output) {{
        wd = DequantizeLinear<axis = {axis}>(w, w_s, w_z)
        output = Gemm<transB = 1>(input, wd)
        }}"""
    return m.model(text, 21)


def test_zero_points_of_a_weight_that_fit_are_taken_off_its_integers(tmp_path: Path) -> None:
    stored = np.random.default_rng(0).integers(-99, 99, (4, 6)).astype(np.int8)
    for zero in (np.int8(3), np.asarray([0, 1, -7, 20], np.int8)):
        scale = np.full(zero.shape, 0.01, np.float32)
        imported = load_model(write(weight_model(Maker(), 0, scale, zero, stored), tmp_path))
        expected = stored.astype(int) - (zero if zero.ndim == 0 else zero[:, None])
        np.testing.assert_array_equal(integers_of(imported, "w"), expected)
        assert quantised_of(imported)["w"] == Quant((float(np.float32(0.01)),) * 4)


def test_unsigned_weight_around_its_middle_is_int8(tmp_path: Path) -> None:
    stored = np.random.default_rng(0).integers(0, 256, (4, 6)).astype(np.uint8)
    stored[0, 0] = 0  # -128, which no update leaves
    imported = load_model(write(weight_model(Maker(), 0, np.float32(0.01), np.uint8(128), stored), tmp_path))
    np.testing.assert_array_equal(integers_of(imported, "w"), stored.astype(int) - 128)


def test_asymmetric_weight_takes_symmetric_scales(tmp_path: Path) -> None:
    """Its real numbers are the file's; the format that they are stored in is one per channel, and a note says how far
    off it is."""
    for kind, zero in ((np.uint8, 20), (np.int8, -97)):
        stored = (
            np.random.default_rng(0).integers(*((0, 256) if kind is np.uint8 else (-128, 128)), (4, 6)).astype(kind)
        )
        path = write(weight_model(Maker(), 0, np.float32(0.01), kind(zero), stored), tmp_path)
        imported = load_model(path)
        real = (stored.astype(int) - zero) * np.float64(np.float32(0.01))
        np.testing.assert_allclose(imported.graph.constants["w"], real, rtol=1e-6)
        scale = np.float32(np.abs(real).max(axis=1) / 127).astype(np.float64)
        np.testing.assert_allclose(quantised_of(imported)["w"].scale, scale, rtol=1e-6)
        off = np.abs(np.rint(real / scale[:, None]) * scale[:, None] - real).max()
        assert any(
            f"weight w: asymmetric in the file, symmetric int8 here: off by at most {off:.2g}" in note
            for note in imported.graph.notes
        )
        assert imported.requantised == {"w"}


def test_scales_per_input_channel(tmp_path: Path) -> None:
    stored = np.random.default_rng(0).integers(-99, 99, (4, 6)).astype(np.int8)
    scale = np.linspace(0.01, 0.02, 6).astype(np.float32)
    error = refusal(weight_model(Maker(), 1, scale, np.zeros(6, np.int8), stored), tmp_path)
    assert error.code == "E0501"
    assert "one per output channel" in str(error.details)


def test_sixteen_bits(tmp_path: Path) -> None:
    stored = np.random.default_rng(0).integers(-99, 99, (4, 6)).astype(np.int16)
    error = refusal(weight_model(Maker(), 0, np.float32(0.01), np.int16(0), stored), tmp_path)
    assert error.code == "E0501"
    assert "int16" in str(error.details)


def test_scale_per_block(tmp_path: Path) -> None:
    m = Maker()
    m.weights |= {"w": np.ones((4, 6), np.int8), "w_s": np.ones((4, 2), np.float32)}
    text = """net (float[1, 6] input) => (float[1, 4] output) {
        wd = DequantizeLinear<axis = 1, block_size = 3>(w, w_s)
        output = Gemm<transB = 1>(input, wd)
        }"""
    error = refusal(m.model(text, 21), tmp_path)
    assert error.code == "E0501"
    assert "block_size" in str(error)


def test_float8_activation_and_arithmetic_on_integers_are_listed_together(tmp_path: Path) -> None:
    m = Maker()
    x = m.scale("x", 0.01)
    text = f"""net (float[1, 6] input) => (float[1, 6] output) {{
        a = QuantizeLinear<output_dtype = 17>(input, x_s)
        b = DequantizeLinear(a, x_s)
        xq = QuantizeLinear(input, {x})
        r = Relu(xq)
        d = DequantizeLinear(r, {x})
        output = Add(b, d)
        }}"""
    error = refusal(m.model(text, 21), tmp_path)
    assert error.code == "E0501"
    text = " ".join(error.details)
    assert "float8" in text
    assert "it computes with stored integers" in text


def test_scale_below_zero(tmp_path: Path) -> None:
    error = refusal(weight_model(Maker(), 0, np.float32(-1), np.int8(0), np.ones((4, 6), np.int8)), tmp_path)
    assert error.code == "E0212"
    assert "not above 0" in str(error)


def test_reading_with_another_scale(tmp_path: Path) -> None:
    m = Maker()
    x, y = m.scale("x", 0.01), m.scale("y", 0.02)
    text = f"""net (float[1, 6] input) => (float[1, 6] output) {{
        xq = QuantizeLinear(input, {x})
        output = DequantizeLinear(xq, {y})
        }}"""
    error = refusal(m.model(text), tmp_path)
    assert error.code == "E0501"
    assert "those of the QuantizeLinear before it" in str(error.details)
