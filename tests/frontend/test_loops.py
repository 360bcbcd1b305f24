"""Loops whose end is known are written out; others are refused by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.frontend.models import check_against_onnxruntime, parse, write
from tinytrain_compile.errors import CompileError
from tinytrain_compile.frontend import load_model

RANDOM = np.random.default_rng(6)
STEPS, WIDTH, STATE = 5, 3, 4
WEIGHTS = {
    "w": RANDOM.normal(size=(WIDTH, STATE)),
    "r": RANDOM.normal(size=(STATE, STATE)),
    "start": np.zeros((1, STATE)),
}
BODY = """body (int64 i, bool going, float[1, 4] h, float[3, 4] weight)
    => (bool more, float[1, 4] after, float[3, 4] weight, float[1, 4] shown) {
    t = Gather <axis = 0> (times, i)
    a = MatMul (t, weight)
    b = MatMul (h, r)
    s = Add (a, b)
    after = Tanh (s)
    shown = Identity (after)
    one = Constant <value = int64 {1}> ()
    next = Add (i, one)
    more = Less (next, last)
}"""


def recurrent(most: int, last: int, end: str = "most") -> onnx.ModelProto:
    """A layer of so many steps at most, which ends by itself after `last`; its last state and all of them."""
    weights = {name: array.astype(np.float32) for name, array in WEIGHTS.items()}
    weights |= {"most": np.asarray(most), "last": np.asarray(last), "yes": np.asarray(True)}
    text = f"net (float[1, {STEPS}, {WIDTH}] x) => (float[1, {STATE}] y) {{ y = Identity (start) }}"
    model = parse(text, weights)
    body = onnx.parser.parse_graph(BODY)
    transposed = helper.make_node("Transpose", ["x"], ["times"], perm=[1, 0, 2])
    loop = helper.make_node("Loop", [end, "yes", "start", "w"], ["h", "unused", "all"], name="loop", body=body)
    summed = helper.make_node("ReduceMax", ["all"], ["m"], axes=[0], keepdims=0)
    del model.graph.node[:]
    model.graph.node.extend([transposed, loop, summed, helper.make_node("Add", ["h", "m"], ["y"], name="add")])
    return model


@pytest.mark.parametrize(("most", "last"), [(STEPS, 99), (99, STEPS), (3, 99), (99, 1)])
def test_a_known_number_of_steps(most: int, last: int, tmp_path: Path) -> None:
    """By the count or by the condition; all steps read one weight."""
    imported = check_against_onnxruntime(recurrent(most, last), tmp_path)
    assert sorted(value.name for value in imported.graph.parameters) == ["r", "start", "w"]
    assert sum(node.op == "Tanh" for node in imported.graph.nodes) == min(most, last)


def test_an_end_that_depends_on_the_data_is_refused(tmp_path: Path) -> None:
    model = recurrent(STEPS, 99, end="count")
    model.graph.node.insert(0, helper.make_node("Cast", ["long"], ["count"], to=TensorProto.INT64))
    model.graph.node.insert(0, helper.make_node("ReduceMax", ["x"], ["long"], keepdims=0))
    with pytest.raises(CompileError) as caught:
        load_model(write(model, tmp_path))
    assert caught.value.code == "E0501" and "Loop" in str(caught.value)


@pytest.mark.parametrize("damage", ["counter", "body"])
def test_damaged_loops_are_one_line(damage: str, tmp_path: Path) -> None:
    """A counter that is broken off, and a body without inputs."""
    model = recurrent(STEPS, 99)
    if damage == "counter":
        counter = next(tensor for tensor in model.graph.initializer if tensor.name == "most")
        counter.raw_data = numpy_helper.from_array(np.asarray(1, np.int8)).raw_data
    else:
        del model.graph.node[1].attribute[0].g.input[:]
    with pytest.raises(CompileError) as caught:
        load_model(write(model, tmp_path))
    assert "\n" not in str(caught.value)
