"""What is refused of .tflite files, and by which line; what of a file is kept; what is not imported without one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from testing.networks import models
from testing.networks.tflite_file import TfliteWriter
from tests.frontend import tflite_nets as nets
from tinytrain_compile.errors import CompileError
from tinytrain_compile.frontend import FrontendOptions, load_model
from tinytrain_compile.frontend.tflite import translated


def refusal(data: bytes, max_window: int | None = None) -> CompileError:
    with pytest.raises(CompileError) as problem:
        translated("net.tflite", data, max_window)
    assert "\n" not in str(problem.value)
    return problem.value


def floats(recipe: nets.Recipe) -> bytes:
    return nets.written(recipe)


def _strange(net: nets.Layers) -> nets.T:
    x = net.op("EXP", [net.input((1, 6))], (1, 6), kind="Exp")
    x = net.op("MyOwn", [net.dense(x, 4)], (1, 4))
    return net.op("LOG_SOFTMAX", [x], (1, 4), kind="LogSoftmax")


def test_all_unsupported_operators_are_listed() -> None:
    found = refusal(floats(_strange))
    assert found.code == "E0501"
    assert "3 of 4 operators cannot be imported: EXP; CUSTOM MyOwn; LOG_SOFTMAX" in found.what
    assert [line.partition(":")[0] for line in found.details] == ["exp1", "myown3", "log_softmax4"]


def test_dynamic_range_quantisation() -> None:
    file = TfliteWriter()
    x, y = file.tensor("x", (1, 6), "float32"), file.tensor("y", (1, 2), "float32")
    w = file.tensor("w", (2, 6), "int8", 0.1, 0, np.ones((2, 6), np.int8))
    file.operator("FULLY_CONNECTED", [x, w, -1], [y], "FullyConnected", FusedActivationFunction=0)
    file.ends([x], [y])
    found = refusal(file.data())
    assert "float32 activations with int8 weights" in found.details[0]


def test_sixteen_bits() -> None:
    file = TfliteWriter()
    x, y = (file.tensor(name, (1, 6), "int16", 0.1) for name in "xy")
    file.operator("RELU", [x], [y])
    file.ends([x], [y])
    assert str(refusal(file.data())) == "error[E0221]: input x: it holds int16; use int8, uint8 or float32"


def test_int8_and_uint8_in_one_operator() -> None:
    """LiteRT's kernel of a dense layer reads int8 and stores uint8 as if it were int8."""
    file = TfliteWriter()
    x, y = file.tensor("x", (1, 6), "int8", 0.1), file.tensor("y", (1, 6), "uint8", 0.1, 128)
    file.operator("RELU", [x], [y])
    file.ends([x], [y])
    assert (
        refusal(file.data())
        .details[0]
        .endswith("int8 and uint8 together; nearest supported: one of them; QUANTIZE converts")
    )


def test_a_shape_that_its_operator_does_not_make() -> None:
    file = nets.writer(nets.EXACT["conv"])
    place = next(k for k, one in enumerate(file.graphs[0].tensors) if one[0] == "conv1")
    name, _, *rest = file.graphs[0].tensors[place]
    file.graphs[0].tensors[place] = (name, [1, 6, 7, 5], *rest)
    found = refusal(file.data())
    assert found.code == "E0212"
    assert "makes shape [1, 7, 6, 5], the file says [1, 6, 7, 5]" in found.what


@pytest.mark.parametrize("recipe", [nets.EXACT["conv relu"], nets.streaming])
def test_a_tensor_that_two_operators_make(recipe: nets.Recipe) -> None:
    file = nets.writer(recipe)
    operators = file.graphs[0].operators
    joined = next((one for one in operators if one[3] == "Concatenation"), operators[0])
    operators.append(joined)
    assert refusal(file.data()).code == "E0206"


@pytest.mark.parametrize("size", [4, 8, 12, 100, 700])
def test_a_file_that_breaks_off(size: int) -> None:
    data = floats(nets.EXACT["conv"])
    assert refusal(data[:size]).code == "E0214"


def test_nothing_is_read_in_front_of_the_file() -> None:
    """Python's struct takes a negative place for one from the end."""
    from tinytrain_compile.frontend.tflite.reader import parse

    data = bytearray(floats(nets.EXACT["conv"]))
    root = int.from_bytes(data[:4], "little")
    data[root : root + 4] = (root + 8).to_bytes(4, "little")  # where the root's fields are listed: 8 bytes before
    data[-8:] = (16).to_bytes(2, "little") * 4
    with pytest.raises(CompileError, match="E0214") as problem:
        parse("net.tflite", bytes(data))
    assert "in front of the file" in str(problem.value.__cause__)


# ---- state -----------------------------------------------------------------------------------------------------------


def _frames(layer: Callable[[nets.Layers, nets.T], nets.T]) -> nets.Recipe:
    """A ring of three rows, a layer on its four rows, and a ring in front of the head if there are still rows."""

    def recipe(net: nets.Layers) -> nets.T:
        x = layer(net, net.ring(net.input((1, 1, 1, 4)), 3))
        return net.dense(x, 2)

    return recipe


def _reading_twice(net: nets.Layers, x: nets.T) -> nets.T:
    handle = net.file.graphs[0].operators[0][2][0]
    again = net.made("again", (1, 3, 1, 4))
    net.file.operator("READ_VARIABLE", [handle], [again.index])
    return net.binary("ADD", nets.rows(net, x, 0, 3), again)


def _second_ring(net: nets.Layers, x: nets.T) -> nets.T:
    """Rows that are not new enter a ring."""
    return net.ring(x, 2)


STATES = {
    "padding in time": (lambda net, x: net.conv(x, 4, (3, 1)), "CONV_2D: it pads or works along time"),
    "softmax over time": (
        lambda net, x: net.op("SOFTMAX", [net.reshape(x, (1, 4, 4))], (1, 4, 4), kind="Softmax", Beta=1.0),
        None,
    ),
    "rows transposed": (
        lambda net, x: net.op(
            "SOFTMAX",
            [net.op("TRANSPOSE", [x], (1, 1, 4, 4), [[0, 2, 3, 1]], "Transpose")],
            (1, 1, 4, 4),
            kind="Softmax",
            Beta=1.0,
        ),
        "SOFTMAX: it works along time",
    ),
    "a variable read twice": (_reading_twice, "variable ring1: it is read 2 times and written 1 times"),
    "old rows in a ring": (_second_ring, "4 rows enter the ring ring4, of which 1 are new"),
    "joined along time": (
        lambda net, x: net.op(
            "CONCATENATION", [x, x], (1, 8, 1, 4), (), "Concatenation", Axis=1, FusedActivationFunction=0
        ),
        "CONCATENATION: it works along time",
    ),
    "strides": (
        lambda net, x: net.conv(x, 4, (2, 1), (2, 1), pad="VALID"),
        "CONV_2D: [1] new rows by strides of 2",
    ),
    "rows of their own": (
        lambda net, x: net.binary("ADD", x, net.constant("place", np.ones((1, 4, 1, 4)))),
        "ADD: an operand differs from row to row",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", STATES)
def test_state_that_is_no_ring(name: str) -> None:
    layer, said = STATES[name]
    data = floats(_frames(layer))
    if said is None:
        assert translated("net.tflite", data).graph.input[0].type.tensor_type.shape.dim[1].dim_value == 4
        return
    found = refusal(data)
    assert found.code == "E0501"
    assert said in found.what
    assert "READ_VARIABLE, CONCATENATION with new rows" in str(found)


def test_a_ring_of_other_rows() -> None:
    """What is written back are the first rows, not the last."""
    file = nets.writer(nets.streaming)
    graph = file.graphs[0]
    place = next(k for k, one in enumerate(graph.tensors) if one[0] == "strided_slice4/0")
    file.change_buffer(graph.tensors[place][-1], lambda _: np.zeros(4, np.int32).tobytes())
    ends = next(k for k, one in enumerate(graph.tensors) if one[0] == "strided_slice4/1")
    file.change_buffer(graph.tensors[ends][-1], lambda _: np.asarray([1, 1, 1, 6], np.int32).tobytes())
    code, inputs, outputs, kind, options = next(
        one for one in graph.operators if one[2] == [_place(file, "strided_slice4")]
    )
    graph.operators[graph.operators.index((code, inputs, outputs, kind, options))] = (
        code, inputs, outputs, kind, {**options, "BeginMask": 0, "EndMask": 0},
    )  # fmt: skip
    assert "variable ring2: what is written is not the last 1 rows (STRIDED_SLICE)" in refusal(file.data()).what


def _place(file: TfliteWriter, name: str) -> int:
    return next(k for k, one in enumerate(file.graphs[0].tensors) if one[0] == name)


def test_a_window_that_is_too_long() -> None:
    data = floats(nets.streaming)
    found = refusal(data, 16)
    assert found.code == "E0217"
    assert "a window of 17 frames, whose activations take" in found.what
    assert "--max-window 17" in str(found)
    assert translated("net.tflite", data, 17).graph.input[0].type.tensor_type.shape.dim[1].dim_value == 17
    assert refusal(floats(nets.EXACT["conv"]), 16).code == "E0113"


def test_first_content_of_rings() -> None:
    from tinytrain_compile.frontend.tflite.reader import parse
    from tinytrain_compile.frontend.tflite.rings import find_rings

    data = nets.written(nets.streaming, nets.measured(nets.streaming, (1, 2, 6)))
    rings = find_rings(parse("net.tflite", data))
    assert [(one.variable, one.axis, one.rows) for one in rings] == [("ring2", 1, 1), ("ring6", 1, 4), ("ring15", 1, 3)]
    assert all(one.initial is not None and len(np.unique(one.initial)) == 1 for one in rings)
    assert int(np.unique(rings[1].initial)[0]) == -128  # type: ignore[arg-type]  # the zero point behind a RELU


# ---- what is kept ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["conv", "depthwise multiplier", "transpose conv", "dense of an image"])
def test_parameters_have_the_names_and_the_numbers_of_the_file(name: str, tmp_path: Path) -> None:
    recipe = {**nets.EXACT, **nets.NEAR}[name]
    for ranges in (None, nets.measured(recipe, nets.SHAPES[name])):
        (tmp_path / "net.tflite").write_bytes(nets.written(recipe, ranges))
        imported = load_model(tmp_path / "net.tflite")
        file = {one[0]: one for one in nets.writer(recipe, ranges).graphs[0].tensors}
        trained = {source.tensor.name for source in imported.sources.values()}
        assert trained == {key for key in file if key.endswith(("/w", "/b"))}
        for source in imported.sources.values():
            assert list(source.tensor.initial.shape) == file[source.tensor.name][1], "axes as in the file"


def test_scales_stay_as_they_are() -> None:
    recipe = nets.EXACT["conv"]
    file = nets.writer(recipe, nets.measured(recipe, (1, 7, 6, 4)))
    from onnx import numpy_helper

    held = {one.name: numpy_helper.to_array(one) for one in translated("net", file.data()).graph.initializer}
    tensors = {one[0]: one for one in file.graphs[0].tensors}
    assert held["conv1.scale"] == np.float32(tensors["conv1"][3])
    assert np.array_equal(held["conv1/w.scale"], np.asarray(tensors["conv1/w"][3], np.float32))
    expected = np.float32(tensors["x"][3]) * np.asarray(tensors["conv1/w"][3], np.float32)
    assert np.array_equal(held["conv1/b.scale"], expected)


def test_names_that_no_file_should_have() -> None:
    """Empty, alike, or as the translation would name something of its own."""
    file = nets.writer(nets.EXACT["conv relu"], nets.measured(nets.EXACT["conv relu"], (1, 7, 6, 4)))
    tensors = file.graphs[0].tensors
    for place, name in enumerate(["conv1.q", "", "", "conv1", "conv1"]):
        tensors[place] = (name, *tensors[place][1:])
    proto = translated("net", file.data())
    made = [name for node in proto.graph.node for name in node.output] + [one.name for one in proto.graph.initializer]
    assert len(set(made)) == len(made)
    assert all(made)


# ---- the packages ----------------------------------------------------------------------------------------------------


def test_without_the_packages(tmp_path: Path) -> None:
    (tmp_path / "net.tflite").write_bytes(floats(nets.EXACT["conv"]))
    program = "import sys; sys.modules['tflite'] = None; from tinytrain_compile.cli.command import main; main()"
    found = subprocess.run(
        [sys.executable, "-c", program, "net.tflite", "--dry-run"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 2
    assert found.stderr.splitlines()[-1] == (
        "error[E0114]: net.tflite: the Python package tflite reads .tflite files, and is not installed; "
        "pip install 'tinytrain-compile[tflite]'"
    )


def test_an_onnx_file_needs_none_of_it(tmp_path: Path) -> None:
    (tmp_path / "net.onnx").write_bytes(models.mlp().SerializeToString())
    program = """
import pathlib, sys
from tinytrain_compile.frontend import load_model
load_model(pathlib.Path("net.onnx"))
print([name for name in sys.modules if "tflite" in name or name.startswith("flatbuffers")])
"""
    found = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_a_window_is_for_tflite(tmp_path: Path) -> None:
    (tmp_path / "net.onnx").write_bytes(models.mlp().SerializeToString())
    with pytest.raises(CompileError, match=r"E0113.*--max-window: is for files with state"):
        load_model(tmp_path / "net.onnx", FrontendOptions(max_window=7))


def test_contents_count_and_not_the_name(tmp_path: Path) -> None:
    (tmp_path / "net.onnx").write_bytes(floats(nets.EXACT["conv"]))
    assert load_model(tmp_path / "net.onnx").input_shape == (1, 7, 6, 4)
