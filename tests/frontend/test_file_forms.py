"""Files that are not quite in the form that is imported: older opsets, several outputs, other floats, a fixed batch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from ml_dtypes import bfloat16
from onnx import helper, numpy_helper

from tests.frontend.models import check_against_onnxruntime, judged_by_the_file, parse, run_imported, write
from tests.frontend.nets import Net
from tinytrain_compile.errors import CompileError
from tinytrain_compile.frontend import FrontendOptions, load_model

# ---- opsets 7 to 12 -------------------------------------------------------------------------------------------------


def old_network(opset: int) -> onnx.ModelProto:
    """What changed its form before opset 13: normalisation, clip, slice, pad, squeeze, dropout, softmax, mean."""
    net = Net("float[1, 3, 8, 6] x", "float[1, 4, 3] y")
    net.conv("a", "x", (4, 3, 3, 3), "pads = [1, 1, 1, 1]")
    net.batch_norm("n", "a", 4)
    if opset < 11:
        net.add("c = Clip <min = -0.5, max = 0.75> (n)")
        net.add("p = Pad <pads = [0, 0, 1, 0, 0, 0, 0, 1], value = 0.5> (c)")
    else:
        low, high = net.table("low", -0.5, np.float32), net.table("high", 0.75, np.float32)
        net.add(f"c = Clip (n, {low}, {high})")
        pads, value = net.table("pads", (0, 0, 1, 0, 0, 0, 0, 1)), net.table("value", 0.5, np.float32)
        net.add(f"p = Pad (c, {pads}, {value})")
    if opset < 10:
        net.add("s = Slice <axes = [2, 3], starts = [1, 0], ends = [9, -1]> (p)")
    else:
        starts, ends, axes = net.table("starts", (1, 0)), net.table("ends", (9, -1)), net.table("axes", (2, 3))
        net.add(f"s = Slice (p, {starts}, {ends}, {axes})")
    net.add("m = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (s)")
    net.add("d = Dropout (m)")
    net.add("r = ReduceMean <axes = [2], keepdims = 1> (d)")
    net.add("q = Squeeze <axes = [2]> (r)")
    net.add("u = Unsqueeze <axes = [0]> (q)")
    net.add("v = Squeeze <axes = [0]> (u)")
    net.add("y = Softmax <axis = 1> (v)")
    return net.model(opset)


@pytest.mark.parametrize("opset", range(7, 13))
def test_network_of_an_older_opset(opset: int, tmp_path: Path) -> None:
    """Its softmax is one over both axes below opset 13."""
    imported = check_against_onnxruntime(old_network(opset), tmp_path)
    assert f"opset {opset}: read as onnx's version converter writes it for opset 13" in imported.graph.notes
    assert {value.name for value in imported.graph.parameters} >= {"a_w"}


def test_opset_that_the_converter_cannot_bring(tmp_path: Path) -> None:
    text = 'net (float[1, 1, 4, 4] x) => (float[1, 1, 8, 8] y) { y = Upsample <mode = "nearest"> (x, s) }'
    model = parse(text, {"s": np.asarray([1, 1, 2, 2], np.float32)}, 9)
    with pytest.raises(CompileError) as caught:
        load_model(write(model, tmp_path))
    assert caught.value.code in ("E0208", "E0501")


# ---- several outputs ------------------------------------------------------------------------------------------------


def two_outputs() -> onnx.ModelProto:
    net = Net("float[1, 6] x", "float[1, 5] y, float[1, 4] features")
    net.dense("h", "x", 6, 4)
    net.add("features = Relu (h)")
    net.dense("y", "features", 4, 5)
    return net.model()


@pytest.mark.parametrize(("name", "layers"), [("y", {"h_w", "y_w"}), ("features", {"h_w"})])
def test_one_of_several_outputs(name: str, layers: set[str], tmp_path: Path) -> None:
    imported = load_model(write(two_outputs(), tmp_path), FrontendOptions(output=name))
    assert imported.output_name == name
    assert {value.name for value in imported.graph.parameters if value.name.endswith("_w")} == layers


def test_several_outputs_and_none_chosen(tmp_path: Path) -> None:
    path = write(two_outputs(), tmp_path)
    with pytest.raises(CompileError) as caught:
        load_model(path)
    assert caught.value.code == "E0218" and "--model-output NAME" in str(caught.value)
    with pytest.raises(CompileError) as caught:
        load_model(path, FrontendOptions(output="z"))
    assert caught.value.code == "E0218" and "its outputs are: y, features" in str(caught.value)


# ---- other floats ---------------------------------------------------------------------------------------------------


def in_floats(kind: str) -> onnx.ModelProto:
    """A model of one float type throughout: its input, its weights, a Constant, a Cast."""
    number, dtype = {"float16": (10, np.float16), "double": (11, np.float64), "bfloat16": (16, bfloat16)}[kind]
    net = Net(f"{kind}[1, 6] x", f"{kind}[1, 4] y")
    net.dense("h", "x", 6, 5)
    net.add("s = Shape (h)")
    net.add(f"c = Cast <to = {number}> (h)")
    net.add("t = Tanh (c)")
    net.add("f = Mul (t, k)")
    net.dense("y", "f", 5, 4)
    net.weights = {name: array.astype(dtype) for name, array in net.weights.items()}
    net.lines.insert(0, "k = Constant ()")
    model = net.model()
    constant = numpy_helper.from_array(np.asarray(0.75, dtype))
    model.graph.node[0].attribute.append(helper.make_attribute("value", constant))
    return model


@pytest.mark.parametrize(("kind", "name"), [("float16", "float16"), ("double", "float64"), ("bfloat16", "bfloat16")])
def test_other_floats_are_float32(kind: str, name: str, tmp_path: Path) -> None:
    """The same weights as a float32 model has: onnxruntime's numbers of that."""
    model = in_floats(kind)
    path = write(model, tmp_path)
    imported = load_model(path)
    assert imported.graph.notes == (f"{name} of the file is float32 here, and in its check",)
    plain = in_floats("float16" if kind == "float16" else kind)
    for tensor in (*plain.graph.initializer, plain.graph.node[0].attribute[0].t):
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float32), tensor.name))
    next(node for node in plain.graph.node if node.op_type == "Cast").attribute[0].i = 1
    for value in (*plain.graph.input, *plain.graph.output):
        value.type.tensor_type.elem_type = 1
    x = np.random.default_rng(0).normal(size=(1, 6)).astype(np.float32)
    expected = onnxruntime.InferenceSession(plain.SerializeToString()).run(["y"], {"x": x})[0]
    np.testing.assert_allclose(run_imported(imported, x)[0], expected, rtol=0, atol=1e-6)
    judged_by_the_file(path, imported, x)


def test_number_beyond_float32(tmp_path: Path) -> None:
    model = in_floats("double")
    weight = next(tensor for tensor in model.graph.initializer if tensor.name == "h_b")
    weight.CopyFrom(numpy_helper.from_array(np.full(5, 1e300), "h_b"))
    with pytest.raises(CompileError) as caught:
        load_model(write(model, tmp_path))
    assert caught.value.code == "E0225" and "h_b" in str(caught.value)
