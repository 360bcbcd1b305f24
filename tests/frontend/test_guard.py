"""Broken and hostile inputs: each has its own error id, one line, and never a traceback."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.frontend.models import parse, run_imported, write
from tinytrain_compile.errors import ERRORS, CompileError
from tinytrain_compile.frontend import FrontendOptions, load_model
from tinytrain_compile.frontend.evaluator.model import FileModel

Edit = Callable[[onnx.ModelProto], None]

DENSE = "net (float[1, 4] x) => (float[1, 3] y) { y = Gemm <transB = 1> (x, w, b) }"
LOSS = "net (float[1, 4] x, int64[1] t) => (float y) { s = MatMul (x, w)\n y = SoftmaxCrossEntropyLoss (s, t) }"


def dense() -> onnx.ModelProto:
    """The smallest sound model; every case below breaks one thing of it."""
    rng = np.random.default_rng(0)
    weights = {"w": rng.normal(size=(3, 4)).astype(np.float32), "b": np.zeros(3, np.float32)}
    return parse(DENSE, weights)


def error_of(path: Path, options: FrontendOptions | None = None) -> CompileError:
    with pytest.raises(CompileError) as caught:
        load_model(path, options)
    message = str(caught.value)
    assert message.startswith(f"error[{caught.value.code}]: ")
    assert message.isprintable()
    assert message.count("; ") >= 1
    return caught.value


def weight(model: onnx.ModelProto, name: str = "w") -> TensorProto:
    return next(tensor for tensor in model.graph.initializer if tensor.name == name)


def replace_weight(model: onnx.ModelProto, array: np.ndarray, name: str = "w") -> None:
    weight(model, name).CopyFrom(numpy_helper.from_array(array, name))


def set_input(model: onnx.ModelProto, shape: list[int | str | None], kind: int = TensorProto.FLOAT) -> None:
    model.graph.input[0].CopyFrom(helper.make_tensor_value_info("x", kind, shape))


def with_value(value: float) -> Edit:
    def edit(model: onnx.ModelProto) -> None:
        array = np.ones((3, 4), np.float32)
        array[1, 2] = value
        replace_weight(model, array)

    return edit


def _negative_weight_dim(model: onnx.ModelProto) -> None:
    weight(model).dims[0] = -3


def _short_data(model: onnx.ModelProto) -> None:
    weight(model).raw_data = weight(model).raw_data[:-8]


def _unknown_element_type(model: onnx.ModelProto) -> None:
    weight(model).data_type = 99


def _external(location: str) -> Edit:
    def edit(model: onnx.ModelProto) -> None:
        tensor = weight(model)
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.append(onnx.StringStringEntryProto(key="location", value=location))

    return edit


def _twice_named_weight(model: onnx.ModelProto) -> None:
    model.graph.initializer.append(weight(model))


def _unnamed_weight(model: onnx.ModelProto) -> None:
    weight(model).name = ""


def _cycle(model: onnx.ModelProto) -> None:
    del model.graph.node[:]
    model.graph.node.append(helper.make_node("Add", ["x", "q"], ["p"], "first"))
    model.graph.node.append(helper.make_node("Relu", ["p"], ["q"], "second"))
    model.graph.node.append(helper.make_node("Gemm", ["q", "w", "b"], ["y"], "third", transB=1))


def _undefined_read(model: onnx.ModelProto) -> None:
    model.graph.node[0].input[0] = "nowhere"


def _opset(version: int) -> Edit:
    def edit(model: onnx.ModelProto) -> None:
        model.opset_import[0].version = version

    return edit


def _nine_inputs(model: onnx.ModelProto) -> None:
    names = [f"x{index}" for index in range(8)]
    model.graph.input.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 3]) for name in names)
    model.graph.node.append(helper.make_node("Sum", ["y", *names], ["z"]))
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("z", TensorProto.FLOAT, [1, 3]))


def _meeting(model: onnx.ModelProto) -> None:
    set_input(model, [8, 4])
    model.graph.node.append(helper.make_node("Softmax", ["y"], ["z"], axis=0))
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("z", TensorProto.FLOAT, [8, 3]))


def _two_outputs(model: onnx.ModelProto) -> None:
    model.graph.node.append(helper.make_node("Relu", ["y"], ["z"]))
    model.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, [1, 3]))


def _no_input(model: onnx.ModelProto) -> None:
    model.graph.node[0].input[0] = "b2"
    model.graph.initializer.append(numpy_helper.from_array(np.zeros((1, 4), np.float32), "b2"))


def _no_values(model: onnx.ModelProto) -> None:
    weight = model.graph.initializer.pop(0)
    model.graph.input.append(helper.make_tensor_value_info(weight.name, weight.data_type, list(weight.dims)))


def _misfit(model: onnx.ModelProto) -> None:
    replace_weight(model, np.zeros((3, 5), np.float32))


def _no_graph(model: onnx.ModelProto) -> None:
    model.ClearField("graph")


def _training_info(model: onnx.ModelProto) -> None:
    model.training_info.add()


def _too_many_inputs(model: onnx.ModelProto) -> None:
    model.graph.node[0].input.append("b")


def _wrong_attribute(model: onnx.ModelProto) -> None:
    model.graph.node[0].attribute.append(helper.make_attribute("alpha", "one"))


def _unknown_operator(model: onnx.ModelProto) -> None:
    model.graph.node[0].op_type = "Frobnicate"


def _foreign_domain(model: onnx.ModelProto) -> None:
    model.graph.node[0].domain = "com.microsoft"


def _shaped(*shape: int | str | None) -> Edit:
    return lambda model: set_input(model, list(shape))


EDITS: dict[str, tuple[str, Edit]] = {
    "no graph": ("E0202", _no_graph),
    "unknown element type": ("E0202", _unknown_element_type),
    "symbolic feature count": ("E0203", _shaped(1, "features")),
    "negative weight dimension": ("E0204", _negative_weight_dim),
    "negative input dimension": ("E0204", _shaped(1, -4)),
    "NaN weight": ("E0205", with_value(float("nan"))),
    "duplicate weight": ("E0206", _twice_named_weight),
    "cycle": ("E0207", _cycle),
    "opset 6": ("E0208", _opset(6)),
    "nine data inputs": ("E0209", _nine_inputs),
    "external data above the folder": ("E0210", _external("../secret")),
    "external data at an absolute path": ("E0210", _external("/etc/passwd")),
    "batch of 8 whose samples meet": ("E0211", _meeting),
    "weight of another width": ("E0212", _misfit),
    "weight without values": ("E0215", _no_values),
    "undefined read": ("E0215", _undefined_read),
    "short data": ("E0216", _short_data),
    "huge dimension": ("E0217", _shaped(1, 2**40)),
    "two outputs": ("E0218", _two_outputs),
    "no data input": ("E0219", _no_input),
    "external data missing": ("E0220", _external("weights.bin")),
    "input of strings": ("E0221", lambda model: set_input(model, [1, 4], TensorProto.STRING)),
    "training information": ("E0231", _training_info),
    "infinite weight": ("E0225", with_value(float("inf"))),
    "zero dimension": ("E0226", _shaped(1, 0)),
    "unnamed weight": ("E0227", _unnamed_weight),
    "too many inputs": ("E0228", _too_many_inputs),
    "attribute of the wrong type": ("E0229", _wrong_attribute),
    "opset of the future": ("E0230", _opset(1000)),
    "unknown operator": ("E0501", _unknown_operator),
    "foreign domain": ("E0503", _foreign_domain),
}


@pytest.mark.parametrize("case", EDITS)
def test_broken_model(case: str, tmp_path: Path) -> None:
    code, edit = EDITS[case]
    model = dense()
    edit(model)
    error = error_of(write(model, tmp_path))
    assert (error.code, error.exit_code) == (code, 4 if code.startswith("E05") else 2)


def test_every_error_has_its_own_id_and_explanation() -> None:
    found = [code for code, _ in EDITS.values()]
    assert len(set(found)) == 27
    titles = [kind.title for kind in ERRORS.values()]
    assert len(set(titles)) == len(titles)
    assert all(len(ERRORS[code].explanation) > 80 for code in found)


def test_the_unbroken_model_loads(tmp_path: Path) -> None:
    model = dense()
    imported = load_model(write(model, tmp_path))
    x = np.array([[1, -2, 3, 4]], np.float32)
    np.testing.assert_allclose(run_imported(imported, x)[0], x @ numpy_helper.to_array(weight(model)).T, rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "content", "code"),
    [
        ("missing.onnx", None, "E0201"),
        ("empty.onnx", b"", "E0213"),
        ("text.onnx", b"version https://git-lfs.github.com/spec/v1\n", "E0213"),
        ("picture.onnx", b"\x89PNG\r\n\x1a\n" + bytes(64), "E0213"),
    ],
)
def test_not_a_model_file(name: str, content: bytes | None, code: str, tmp_path: Path) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    assert error_of(path).code == code


def test_folder_instead_of_a_file(tmp_path: Path) -> None:
    assert error_of(tmp_path).code == "E0201"


def test_truncated_anywhere_never_crashes(tmp_path: Path) -> None:
    data = dense().SerializeToString()
    codes: set[str] = set()
    for length in range(1, len(data)):
        path = tmp_path / "cut.onnx"
        path.write_bytes(data[:length])
        codes.add(error_of(path).code)
    assert "E0214" in codes


def test_random_damage_gives_errors_or_a_model(tmp_path: Path) -> None:
    """Flipped bytes: whatever comes of them, it is a CompileError or a model, nothing else."""
    data = parse(LOSS, {"w": np.ones((4, 3), np.float32)}).SerializeToString()
    rng = np.random.default_rng(0)
    path = tmp_path / "damaged.onnx"
    codes: set[str] = set()
    for _ in range(600):
        damaged = bytearray(data)
        for _ in range(rng.integers(1, 4)):
            damaged[rng.integers(len(damaged))] = rng.integers(256)
        path.write_bytes(damaged)
        try:
            load_model(path)
        except CompileError as error:
            codes.add(error.code)
    assert len(codes) >= 10


def test_symbolic_link_out_of_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "outside.bin").write_bytes(bytes(48))
    (folder / "weights.bin").symlink_to(tmp_path / "outside.bin")
    model = dense()
    _external("weights.bin")(model)
    assert error_of(write(model, folder)).code == "E0210"


def test_external_data_beside_the_model(tmp_path: Path) -> None:
    model = dense()
    data, whole = weight(model).raw_data, numpy_helper.to_array(weight(model))
    _external("weights.bin")(model)
    weight(model).external_data.append(onnx.StringStringEntryProto(key="offset", value="16"))
    (tmp_path / "weights.bin").write_bytes(bytes(16) + data)
    file = write(model, tmp_path)
    np.testing.assert_array_equal(load_model(file).graph.constants["w"], whole)
    (tmp_path / "weights.bin").write_bytes(bytes(16) + data + bytes(64))  # no length is said, and there is more
    for constants in (load_model(file).graph.constants, FileModel(Path(file)).constants):
        np.testing.assert_array_equal(constants["w"], whole)
    (tmp_path / "weights.bin").write_bytes(bytes(16) + data[:-1])
    assert error_of(file).code == "E0220"


def test_missing_external_data_is_not_the_model(tmp_path: Path) -> None:
    model = dense()
    _external("net.onnx.data")(model)
    error = error_of(write(model, tmp_path))
    assert (error.code, error.what.endswith(f"there is no such file in {tmp_path}")) == ("E0220", True)


def test_names_of_any_kind_are_accepted(tmp_path: Path) -> None:
    names = {"x": "int", "w": 'a"quoted\\', "b": "line\nbreak", "y": "while"}
    model = dense()
    node = model.graph.node[0]
    node.name = "for;\n#include"
    node.input[:] = [names[name] for name in node.input]
    node.output[0] = names["y"]
    for value in (*model.graph.input, *model.graph.output, *model.graph.initializer):
        value.name = names[value.name]
    imported = load_model(write(model, tmp_path))
    assert [value.name for value in imported.graph.parameters] == ['a"quoted\\', "line\nbreak"]
    assert imported.graph.nodes[0].origin == "for;\n#include"
    node.op_type = "Atan"
    assert error_of(write(model, tmp_path)).code == "E0228"
    del model.graph.node[0].input[1:]
    del model.graph.node[0].attribute[:]
    error = error_of(write(model, tmp_path))
    assert error.code == "E0501"
    assert [line.isprintable() for line in error.details] == [True]


def test_nodes_may_share_a_name(tmp_path: Path) -> None:
    """ONNX leaves the names of nodes open, and OpenVINO writes one for many; values are told apart by theirs."""
    text = """net (float[1, 4] x) => (float[1, 3] y) {
        h = Relu (x)
        g = Gemm <transB = 1> (h, w, b)
        y = Relu (g)
    }"""
    model = parse(text, {"w": np.ones((3, 4), np.float32), "b": np.zeros(3, np.float32)})
    for node in model.graph.node:
        node.name = "F0::anon"
    imported = load_model(write(model, tmp_path))
    assert len({node.origin for node in imported.graph.nodes}) == 3
    assert [value.name for value in imported.graph.parameters] == ["w", "b"]


def test_trees_are_listed_whatever_numbers_they_hold(tmp_path: Path) -> None:
    """Their numbers are not read: that would complain of infinity in what is refused anyway."""
    model = parse("net (double[1, 4] x) => (double[1, 1] y) { y = Identity (x) }", {})
    splits = numpy_helper.from_array(np.asarray([np.inf, 1.0]), "splits")
    tree = helper.make_node("TreeEnsemble", ["x"], ["y"], name="trees", domain="ai.onnx.ml", nodes_splits=splits)
    model.graph.node[0].CopyFrom(tree)
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 5))
    error = error_of(write(model, tmp_path))
    assert error.code == "E0503"
    assert "classical machine learning" in error.details[0]


def test_a_forest_with_two_outputs_is_not_asked_to_choose_one(tmp_path: Path) -> None:
    model = parse("net (float[1, 4] x) => (float[1] y, float[1, 2] z) { y = Identity (x)\n z = Relu (x) }", {})
    forest = helper.make_node("TreeEnsembleClassifier", ["x"], ["y", "scores"], domain="ai.onnx.ml")
    model.graph.node[0].CopyFrom(forest)
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    assert error_of(write(model, tmp_path)).code == "E0218"  # z can be chosen
    model.graph.node[1].CopyFrom(helper.make_node("Normalizer", ["scores"], ["z"], domain="ai.onnx.ml"))
    error = error_of(write(model, tmp_path))
    assert (error.code, len(error.details)) == ("E0503", 2)


def test_unsupported_nodes_are_listed_at_once(tmp_path: Path) -> None:
    text = """net (float[1, 2, 8, 8] x) => (float[1, 2, 4, 4] y) {
        a = Atan (x)
        b = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (a, a)
        c = Acos (b)
        d, i = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (c)
        z = Sinh (d)
        j = Cast <to = 1> (i)
        y = Add (z, j)
    }"""
    error = error_of(write(parse(text, {"e": np.array(2.5, np.float32)}), tmp_path))
    assert (error.code, len(error.details)) == ("E0501", 5)
    expected = ("Atan: there is no", "Conv, weight:", "Acos: there is no", "MaxPool, Indices:", "Sinh: there is no")
    for line, start in zip(error.details, expected, strict=True):
        assert start in line
        assert "nearest supported: " in line
    assert "5 of 7 nodes" in str(error)


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (FrontendOptions(input_shapes={"nothing": (1, 4)}), "E0224"),
        (FrontendOptions(input_shapes={"x": (1, 5)}), "E0224"),
        (FrontendOptions(input_shapes={"x": (1, 4, 1)}), "E0224"),
        (FrontendOptions(label="t"), "E0222"),
    ],
)
def test_options_that_do_not_fit(options: FrontendOptions, code: str, tmp_path: Path) -> None:
    assert error_of(write(dense(), tmp_path), options).code == code


def test_input_shape_fills_symbolic_dimensions(tmp_path: Path) -> None:
    model = dense()
    set_input(model, ["batch", "features"])
    imported = load_model(write(model, tmp_path), FrontendOptions(input_shapes={"x": (1, 4)}))
    assert imported.graph.inputs[0].shape == (1, 4)


def test_a_message_about_shapes_has_the_option_to_write(tmp_path: Path) -> None:
    model = dense()
    set_input(model, ["batch", 3, "height", None])
    error = str(error_of(write(model, tmp_path)))
    assert "symbolic: height, axis 3; put numbers into --input-shape x=1,3,height,?" in error
    error = str(error_of(write(dense(), tmp_path), FrontendOptions(input_shapes={"x": (1, 5)})))
    assert "--input-shape 1,5 does not agree with the model; write --input-shape x=1,4" in error


def test_paddle_writes_open_dimensions_as_minus_one(tmp_path: Path) -> None:
    model = dense()
    set_input(model, [-1, 4])
    assert load_model(write(model, tmp_path)).graph.inputs[0].shape == (1, 4)
    set_input(model, [-1, -1])
    assert error_of(write(model, tmp_path)).code == "E0203"
    options = FrontendOptions(input_shapes={"x": (1, 4)})
    assert load_model(write(model, tmp_path), options).graph.inputs[0].shape == (1, 4)


def test_unsorted_nodes_are_sorted(tmp_path: Path) -> None:
    model = dense()
    model.graph.node[0].input[0] = "r"
    model.graph.node.append(helper.make_node("Relu", ["x"], ["r"], "late"))
    imported = load_model(write(model, tmp_path))
    assert [node.origin for node in imported.graph.nodes] == ["late", "Gemm_y"]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("net (float[1, 4] x) => (float[1, 0] y) { y = Slice (x, four, five, one) }", "E0212"),
        ("net (float[1, 4] x) => (float[1, 3] y) { y = Reshape (x, five) }", "E0212"),
        ("net (float[1, 4] x) => (float[1, 4] y) { y = Transpose <perm = [0, 0]> (x) }", "E0212"),
        ("net (float[1, 4] x) => (float[1, 4] y) { y = Softmax <axis = 7> (x) }", "E0212"),
        (
            "net (float[1, 2, 4, 4] x) => (float y) { y = MaxPool <kernel_shape = [2, 2], strides = [0, 1]> (x) }",
            "E0212",
        ),
        ("net (float[1, 2, 4, 4] x) => (float y) { y = AveragePool <kernel_shape = [5, 2]> (x) }", "E0212"),
        ("net (float[1, 4] x) => (float y) { y = Expand (x, huge) }", "E0217"),
        ("net (float[1, 4] x) => (float y) { z = ConstantOfShape (huge)\n y = Add (x, z) }", "E0217"),
        ("net (float[1, 4] x) => (float y) { z = Div (five, zero)\n y = Reshape (x, z) }", "E0212"),
        ("net (float[1, 4] x) => (float y) { z = Log (minus)\n y = Add (x, z) }", "E0205"),
    ],
)
def test_senseless_attributes(text: str, code: str, tmp_path: Path) -> None:
    table = {name: np.array([v], np.int64) for name, v in {"one": 1, "four": 4, "five": 5, "zero": 0}.items()}
    table["huge"] = np.array([2**30, 4], np.int64)
    table["minus"] = np.array(-1.0, np.float32)
    assert error_of(write(parse(text, table), tmp_path)).code == code


def test_huge_element_counts_in_a_weight(tmp_path: Path) -> None:
    model = dense()
    weight(model).dims[:] = [2**20, 2**20]
    assert error_of(write(model, tmp_path)).code == "E0217"


def test_labels_of_another_shape(tmp_path: Path) -> None:
    model = parse(LOSS.replace("int64[1] t", "int64[1, 3] t"), {"w": np.ones((4, 3), np.float32)})
    assert error_of(write(model, tmp_path)).code == "E0305"


def test_labels_that_are_not_indices(tmp_path: Path) -> None:
    model = parse(LOSS.replace("int64[1] t", "float[1] t"), {"w": np.ones((4, 3), np.float32)})
    assert error_of(write(model, tmp_path)).code == "E0305"


def test_unsupported_nodes_come_before_any_error_behind_them(tmp_path: Path) -> None:
    """Behind a node without an operator come truth values, integers, and a shape that cannot be."""
    text = """net (float[1, 4] x) => (float[1, 4] y) {
        u = IsInf (x)
        n = Not (u)
        m = Cast <to = 1> (n)
        k = NonZero (x)
        g = Gather (x, k)
        b = Reshape (x, wrong)
        d = Det (b)
        s = Add (m, g)
        y = Add (s, d) }"""
    with pytest.raises(CompileError) as caught:
        load_model(write(parse(text, {"wrong": np.int64([3])}), tmp_path))
    assert caught.value.code == "E0501"
    assert [line.split(":")[1].strip() for line in caught.value.details] == ["IsInf", "NonZero", "Det"]
