"""What does not reach the output is not looked at: a valid file is not refused for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tests.frontend.models import parse, run_imported, write
from tinytrain_compile.errors import CompileError
from tinytrain_compile.frontend import load_model

Edit = Callable[[onnx.GraphProto], None]
X = np.asarray([[1, -2, 3, 4]], np.float32)


def dense() -> onnx.ModelProto:
    weights = {"w": np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)}
    return parse("net (float[1, 4] x) => (float[1, 3] y) { y = Gemm <transB = 1> (x, w) }", weights)


def node(op: str, inputs: list[str], outputs: list[str], domain: str = "", **attributes: object) -> Edit:
    def edit(graph: onnx.GraphProto) -> None:
        graph.node.append(helper.make_node(op, inputs, outputs, domain=domain, **attributes))

    return edit


def initializer(array: np.ndarray, name: str = "unused") -> Edit:
    return lambda graph: graph.initializer.append(numpy_helper.from_array(array, name))


def raw_initializer(kind: int, *dims: int, location: str = "") -> Edit:
    def edit(graph: onnx.GraphProto) -> None:
        tensor = TensorProto(name="unused", data_type=kind, dims=dims)
        if location:
            tensor.data_location = TensorProto.EXTERNAL
            tensor.external_data.append(onnx.StringStringEntryProto(key="location", value=location))
        graph.initializer.append(tensor)

    return edit


def graph_input(value: onnx.ValueInfoProto) -> Edit:
    return lambda graph: graph.input.append(value)


def read_by_a_dead_node(graph: onnx.GraphProto) -> None:
    initializer(np.full(4, np.nan, np.float32))(graph)
    node("Mul", ["x", "unused"], ["other"])(graph)
    node("Sin", ["other"], ["another"])(graph)


def same_node_name(graph: onnx.GraphProto) -> None:
    graph.node[0].name = "fc"
    graph.node.append(helper.make_node("Relu", ["x"], ["other"], "fc"))


def dead_branch(graph: onnx.GraphProto) -> None:
    """A subgraph that reads outer names, in front of the part that counts."""
    body = helper.make_graph(
        [helper.make_node("Frob", ["x"], ["z"], domain="a.b")], "b", [], [helper.make_empty_tensor_value_info("z")]
    )
    graph.initializer.append(numpy_helper.from_array(np.asarray(True), "flag"))
    graph.node.insert(0, helper.make_node("If", ["flag"], ["chosen"], then_branch=body, else_branch=body))


def sparse(graph: onnx.GraphProto) -> None:
    values, indices = (numpy_helper.from_array(np.ones(1, kind), "s") for kind in (np.float32, np.int64))
    graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [4]))


EDITS: dict[str, Edit] = {
    "attribute of the wrong type": node("Gemm", ["x", "w"], ["other"], transB="yes"),
    "unknown attribute": node("Relu", ["x"], ["other"], slope=1.0),
    "too many inputs": node("Relu", ["x", "x"], ["other"]),
    "foreign domain": node("Frobnicate", ["x"], ["other"], "com.example"),
    "no output": node("Print", ["x"], [], "com.example"),
    "operator of a later opset": node("RMSNormalization", ["x", "w"], ["other"]),
    "NaN in an attribute": node("Constant", [], ["other"], value=numpy_helper.from_array(np.full(2, np.nan))),
    "undefined read": node("Relu", ["nowhere"], ["other"]),
    "computed shape that cannot be": node("ConstantOfShape", ["huge"], ["other"]),
    "NaN that a dead node reads": read_by_a_dead_node,
    "name of a live node": same_node_name,
    "subgraph": dead_branch,
    "NaN weight": initializer(np.full(3, np.nan, np.float32)),
    "weight of strings": initializer(np.asarray(["a", "b"], object)),
    "weight of float8": raw_initializer(TensorProto.FLOAT8E4M3FN, 4),
    "huge weight": raw_initializer(TensorProto.FLOAT, 2**40),
    "external weight that is not there": raw_initializer(TensorProto.FLOAT, 4, location="gone.bin"),
    "external weight elsewhere": raw_initializer(TensorProto.FLOAT, 4, location="../gone.bin"),
    "sparse weight": sparse,
    "symbolic input": graph_input(helper.make_tensor_value_info("other", TensorProto.FLOAT, [1, "n"])),
    "input without shape": graph_input(helper.make_tensor_value_info("other", TensorProto.FLOAT, None)),
    "input that is a list": graph_input(helper.make_tensor_sequence_value_info("other", TensorProto.FLOAT, [1])),
    "empty input": graph_input(helper.make_tensor_value_info("other", TensorProto.FLOAT, [0])),
}


@pytest.mark.parametrize("case", EDITS)
def test_what_nothing_needs_is_not_looked_at(case: str, tmp_path: Path) -> None:
    model = dense()
    initializer(np.asarray([2**40], np.int64), "huge")(model.graph)
    EDITS[case](model.graph)
    imported = load_model(write(model, tmp_path))
    w = numpy_helper.to_array(model.graph.initializer[0])
    np.testing.assert_allclose(run_imported(imported, X)[0], X @ w.T, rtol=1e-6)
    assert [value.name for value in imported.graph.parameters] == ["w"]


def test_functions_count_where_they_are_called(tmp_path: Path) -> None:
    model = dense()
    body = [helper.make_node("Relu", ["a"], ["b"])]
    function = helper.make_function("own", "Twice", ["a"], ["b"], body, [helper.make_opsetid("", 17)])
    model.functions.append(function)
    load_model(write(model, tmp_path))
    model.graph.node[0].output[0] = "h"
    model.graph.node.append(helper.make_node("Twice", ["h"], ["y"], domain="own"))
    with pytest.raises(CompileError) as caught:
        load_model(write(model, tmp_path))
    assert caught.value.code == "E0223"


def test_what_the_output_needs_is_still_checked(tmp_path: Path) -> None:
    """The edits above, on the way to the output, are errors."""
    model = dense()
    model.graph.node[0].output[0] = "h"
    node("Relu", ["h"], ["y"], slope=1.0)(model.graph)
    with pytest.raises(CompileError) as caught:
        load_model(write(model, tmp_path))
    assert caught.value.code == "E0229"


REDUCE = """net (float[1, 6] x) => (float[1, 6] y) {
    z = Unsqueeze (x, two)
    y = ReduceMean <axes = [2], keepdims = 0> (z)
}"""
"""Valid up to opset 17 only: later the axes are an input."""


@pytest.mark.parametrize(
    ("imports", "valid"),
    [
        ([("", 21), ("", 17)], True),
        ([("", 17), ("", 21)], False),
        ([("ai.onnx", 21), ("", 17)], True),
        ([("ai.onnx", 17)], True),
    ],
)
def test_of_two_opsets_of_the_default_domain_the_last_one_holds(
    imports: list[tuple[str, int]], valid: bool, tmp_path: Path
) -> None:
    model = parse(REDUCE, {"two": np.asarray([2], np.int64)})
    model.ir_version = 9
    del model.opset_import[:]
    model.opset_import.extend(helper.make_opsetid(*entry) for entry in imports)
    path, x = write(model, tmp_path), np.arange(6, dtype=np.float32)[None]
    if not valid:
        with pytest.raises(CompileError) as caught:
            load_model(path)
        assert caught.value.code == "E0229"
        with pytest.raises(Exception, match="axes"):
            onnxruntime.InferenceSession(path.read_bytes())
        return
    expected = onnxruntime.InferenceSession(path.read_bytes()).run(None, {"x": x})[0]
    if imports[0][0] == "":
        np.testing.assert_array_equal(ReferenceEvaluator(model).run(None, {"x": x})[0], expected)
    np.testing.assert_array_equal(run_imported(load_model(path), x)[0], expected)


def test_both_names_of_the_default_domain_on_nodes(tmp_path: Path) -> None:
    """Constants of nodes that spell the domain out are computed too."""
    model = parse("net (float[1, 4] x) => (float[1, 4] y) { c = Add (a, a)\n y = Mul (x, c) }", {"a": X[0]})
    for item in model.graph.node:
        item.domain = "ai.onnx"
    np.testing.assert_array_equal(run_imported(load_model(write(model, tmp_path)), X)[0], X * (2 * X[0]))
