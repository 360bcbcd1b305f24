"""Files that are not quite in the form that is imported: older opsets, several outputs, other floats, a fixed batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from ml_dtypes import bfloat16
from onnx import helper, numpy_helper, version_converter

from tests.e2e.file_level import agreement
from tests.frontend.models import check_against_onnxruntime, judged_by_the_file, parse, run_imported, write
from tests.frontend.nets import Net
from tests.frontend.qoperator import qoperator_form
from tinytrain_compile.errors import CompileError
from tinytrain_compile.frontend import FrontendOptions, importer, load_model
from tinytrain_compile.frontend.evaluator.model import FileModel

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


def test_operator_that_is_none_of_the_old_opset(tmp_path: Path) -> None:
    model = parse("net (float[1, 4] x) => (float[1, 4] y) { y = Frobnicate (x) }", opset=9)
    with pytest.raises(CompileError) as caught:
        load_model(write(model, tmp_path))
    assert caught.value.code == "E0208" and "Frobnicate" in caught.value.where


def test_converter_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no adapter\nfor this")

    monkeypatch.setattr(version_converter, "convert_version", fail)
    with pytest.raises(CompileError) as caught:
        load_model(write(old_network(9), tmp_path))
    assert caught.value.code == "E0208" and "fails: no adapter for this" in str(caught.value)


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


def test_a_result_of_a_node_is_an_output_if_it_is_named(tmp_path: Path) -> None:
    """In front of what cannot be imported, for instance; the file's check ends there too."""
    model = two_outputs()
    model.graph.node.add(op_type="Atan", input=["features"], output=["end"])
    del model.graph.output[:]
    model.graph.output.add(name="end")
    path = write(model, tmp_path)
    imported = load_model(path, FrontendOptions(output="features"))
    assert imported.output_name == "features"
    assert FileModel(path, "features").outputs == ("features",)
    with pytest.raises(CompileError, match="no node with such a result"):
        load_model(path, FrontendOptions(output="y_w"))


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


# ---- a fixed batch --------------------------------------------------------------------------------------------------


def flattened() -> onnx.ModelProto:
    """Reshapes with the batch written out, in front, as -1, and as 0."""
    net = Net("float[4, 2, 6, 6] x", "float[4, 5] y")
    net.conv("c", "x", (3, 2, 3, 3), "strides = [2, 2]")
    net.add(f"f = Reshape (c, {net.table('f_shape', (4, 12))})")
    net.dense("h", "f", 12, 8)
    net.add(f"g = Reshape (h, {net.table('g_shape', (-1, 4, 2))})")
    net.add(f"k = Reshape (g, {net.table('k_shape', (0, 8))})")
    net.dense("y", "k", 8, 5)
    return net.model()


def heads() -> onnx.ModelProto:
    """Attention as PyTorch writes it, two heads folded into the batch, a token put in front."""
    net = Net("float[4, 3, 8] x", "float[4, 6] y")
    net.weights["token"] = np.linspace(-1, 1, 8, dtype=np.float32).reshape(1, 1, 8)
    net.add(f"e = Expand (token, {net.table('e_shape', (4, 1, 8))})")
    net.add("t = Concat <axis = 1> (e, x)")
    for name in "qkv":
        net.add(f"{name}0 = MatMul (t, {net.weight(f'{name}_w', 8, 8)})")
        net.add(f"{name}1 = Reshape ({name}0, {net.table('split', (4, 4, 2, 4))})")
        net.add(f"{name}2 = Transpose <perm = [0, 2, 1, 3]> ({name}1)")
        net.add(f"{name} = Reshape ({name}2, {net.table('fold', (8, 4, 4))})")
    net.add("kt = Transpose <perm = [0, 2, 1]> (k)")
    net.add("s = MatMul (q, kt)")
    net.add("p = Softmax <axis = -1> (s)")
    net.add("o = MatMul (p, v)")
    net.add(f"o4 = Reshape (o, {net.table('unfold', (4, 2, 4, 4))})")
    net.add("ot = Transpose <perm = [0, 2, 1, 3]> (o4)")
    net.add(f"z = Reshape (ot, {net.table('flat', (4, 32))})")
    net.dense("y", "z", 32, 6)
    return net.model()


def in_the_middle() -> onnx.ModelProto:
    """The batch moves to the second axis, and back."""
    net = Net("float[4, 3, 5] x", "float[4, 3, 2] y")
    net.add("t = Transpose <perm = [1, 0, 2]> (x)")
    net.add(f"m = MatMul (t, {net.weight('m_w', 5, 2)})")
    net.add("u = Tanh (m)")
    net.add("y = Transpose <perm = [1, 0, 2]> (u)")
    return net.model()


@pytest.mark.parametrize("network", [flattened, heads, in_the_middle])
def test_fixed_batch_becomes_one(network: Callable[[], onnx.ModelProto], tmp_path: Path) -> None:
    model = network()
    path = write(model, tmp_path)
    imported = load_model(path)
    assert imported.graph.notes == ("batch 4 of the file is 1 here: --batch says how many samples an update takes",)
    assert imported.input_shape[0] == imported.output_shape[0] == 1
    x = np.random.default_rng(0).normal(size=(4, *imported.input_shape[1:])).astype(np.float32)
    expected = onnxruntime.InferenceSession(path.read_bytes()).run(["y"], {"x": x})[0]
    for index in range(4):
        found = run_imported(imported, x[index : index + 1])[0]
        wanted = expected[index : index + 1].transpose(imported.output_perm)
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5)
    judged_by_the_file(path, imported, x[:1])


MEETING: dict[str, tuple[str, str]] = {
    "every sample looks at all": ("t = Transpose <perm = [1, 0]> (x)\nm = MatMul (x, t)\ny = MatMul (m, x)", "m"),
    "a softmax over the samples": ("y = Softmax <axis = 0> (x)", "y"),
    "their mean": ("m = ReduceMean <axes = [0], keepdims = 1> (x)\ny = Sub (x, m)", "m"),
    "the first of them": ("y = Slice (x, zero, one, zero)", "y"),
    "a norm over all": ("y = LayerNormalization <axis = 0> (x, scale)", "y"),
    "numbers of their own": ("y = Add (x, scale)", "y"),
}


@pytest.mark.parametrize("name", MEETING)
def test_samples_that_meet(name: str, tmp_path: Path) -> None:
    lines, tensor = MEETING[name]
    weights = {"zero": np.asarray([0]), "one": np.asarray([1]), "scale": np.ones((4, 6), np.float32)}
    text = f"net (float[4, 6] x) => (float y) {{ {lines} }}"
    with pytest.raises(CompileError) as caught:
        load_model(write(parse(text, weights), tmp_path))
    assert caught.value.code == "E0211"
    assert f"fixed to 4 samples (shape [4, 6]), and tensor {tensor} " in str(caught.value)


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        ("6", "has no axis for the batch (shape [6]); export with an example input of shape [1, 6]"),
        (
            "3, 6",
            "export with batch 1 and use --batch to accumulate; or with an input of shape [1, 3, 6], if 3 is no batch",
        ),
    ],
)
def test_an_input_without_a_batch(shape: str, said: str, tmp_path: Path) -> None:
    net = Net(f"float[{shape}] x", "float y")
    net.add(
        f"h = Gemm <transB = 1> (x, {net.weight('w', 6, 6)})" if "," in shape else f"h = Mul (x, {net.weight('w', 6)})"
    )
    net.add("y = ReduceMax <keepdims = 0> (h)")
    with pytest.raises(CompileError, match="E0211") as caught:
        load_model(write(net.model(), tmp_path))
    assert said in str(caught.value)


@pytest.mark.parametrize(("operator", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
@pytest.mark.parametrize("layout", [0, 1])
def test_time_steps_are_no_samples(operator: str, gates: int, layout: int, tmp_path: Path) -> None:
    """A file whose first axis is time is one sequence, not a batch of those of one step; samples first, it is that."""
    net = Net("float[5, 1, 3] x", "float[5, 1, 4] y")
    weights = [net.weight(name, 1, gates * 4, size) for name, size in (("w", 3), ("r", 4))]
    net.add(f"s = {operator} <hidden_size = 4, layout = {layout}> (x, {', '.join(weights)})")
    net.add(f"y = Squeeze (s, {net.table('axis', [1 + layout])})")
    imported = load_model(write(net.model(), tmp_path))
    if layout:
        assert imported.input_shape == (1, 1, 3)
        return
    assert (imported.input_shape, imported.input_perm, imported.output_perm) == ((5, 1, 3), (1, 0, 2), (1, 0, 2))
    assert "input x holds time first: one sample of 5 steps" in imported.graph.notes


def test_several_sequences_with_time_first_are_refused(tmp_path: Path) -> None:
    net = Net("float[5, 2, 3] x", "float[5, 2, 4] y")
    net.add(f"s = RNN <hidden_size = 4> (x, {net.weight('w', 1, 4, 3)}, {net.weight('r', 1, 4, 4)})")
    net.add(f"y = Squeeze (s, {net.table('axis', [1])})")
    with pytest.raises(CompileError) as caught:
        load_model(write(net.model(), tmp_path))
    assert caught.value.code == "E0211" and "batch_first=True" in str(caught.value)


def test_a_reshape_that_is_misread_is_found_by_the_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The judge runs the file with its own batch, and other samples behind the first."""
    net = Net("float[4, 2, 4] x", "float[4, 8] y")
    net.add(f"r = Reshape (x, {net.table('r_shape', (4, 4, 2))})")
    net.add("t = Transpose <perm = [0, 2, 1]> (r)")
    net.add(f"y = Reshape (t, {net.table('y_shape', (4, 8))})")
    path = write(net.model(), tmp_path)
    x = np.random.default_rng(0).normal(size=(1, 2, 4)).astype(np.float32)
    judged_by_the_file(path, load_model(path), x)
    handler = importer.HANDLERS["Transpose"]
    monkeypatch.setitem(
        importer.HANDLERS, "Transpose", lambda ctx, node: handler(ctx, replace(node, attrs={"perm": [1, 0, 2]}))
    )
    with pytest.raises(CompileError) as caught:
        judged_by_the_file(path, load_model(path), x)
    assert caught.value.code == "E0605"


@pytest.mark.parametrize("network", [flattened, heads])
def test_fixed_batch_of_a_quantised_file(network: Callable[[], onnx.ModelProto], tmp_path: Path) -> None:
    path = qoperator_form(network(), tmp_path)
    for quant in ("int8", "fp32"):
        found = agreement(path, quant=quant, loss="mse")
        assert found.whole and not found.skipped and found.steps is not None and found.steps <= 1


def test_fixed_batch_of_a_model_that_ends_in_its_loss(tmp_path: Path) -> None:
    """Labels for one sample; the file's loss is one of four, and is named as not compared."""
    net = Net("float[4, 6] x, int64[4] t", "float loss")
    net.dense("y", "x", 6, 3)
    net.add("loss = SoftmaxCrossEntropyLoss (y, t)")
    path = write(net.model(), tmp_path)
    imported = load_model(path)
    assert imported.loss is not None and imported.loss.label_shape == (1,)
    assert agreement(path).skipped == ("the loss: of 4 samples in the file, of one here",)
