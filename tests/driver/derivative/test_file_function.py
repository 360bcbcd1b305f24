"""The model file as a function in float64: no operator rounds on the way, and parts of it may be run again."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser

from testing.networks.backend_cases import listed_cases, numpy_inputs
from tinytrain_compile.frontend import EvaluatorLacksError, FileFunction, Rounded
from tinytrain_compile.ir.types import Array

STEPS = (1e-6, 1e-8)
"""What rounds to float32 inside makes the slope at the small step a matter of luck: 1e-7 / 1e-8."""
AGREE = 1e-3
FLAT = frozenset(("Ceil", "Floor", "Hardmax", "Round", "Sign", "ArgMax", "ArgMin", "OneHot", "Cast", "TopK"))
"""Operators without a slope, and one whose integers follow from its floats."""


def _cases() -> Iterator[tuple[str, str]]:
    """One case of every operator for each set of attributes that onnx tests: (operator, name)."""
    seen: set[tuple[str, int]] = set()
    for name, case in sorted(listed_cases().items()):
        op, count = case.model.graph.node[0].op_type, len(case.model.graph.node[0].attribute)
        if op not in FLAT and (op, count) not in seen and _floats(case.model):
            seen.add((op, count))
            yield op, name


def _floats(model: onnx.ModelProto) -> list[str]:
    kind = onnx.TensorProto.FLOAT
    return [value.name for value in model.graph.input if value.type.tensor_type.elem_type == kind]


def _slope(file: FileFunction, feeds: dict[str, Array], way: dict[str, Array], step: float) -> float:
    ends: list[float] = []
    for sign in (1, -1):
        values = file.values({**feeds, **{name: feeds[name] + sign * step * d for name, d in way.items()}}, {})
        out = values[file.outputs[0]]
        ends.append(float((out * np.cos(np.arange(out.size)).reshape(out.shape)).sum()))
    return (ends[0] - ends[1]) / (2 * step)


@pytest.mark.parametrize("op", sorted({op for op, _ in _cases()}))
def test_no_operator_rounds_on_the_way(op: str, tmp_path: Path):
    """Slopes at two steps agree: the check would take noise for a wrong gradient."""
    judged = 0
    for _, name in ((o, n) for o, n in _cases() if o == op):
        model = listed_cases()[name].model
        onnx.save(model, tmp_path / "node.onnx")
        arrays = [np.asarray(array) for array in numpy_inputs(listed_cases()[name])]
        if not all(array.size and np.isfinite(array).all() for array in arrays if array.dtype.kind == "f"):
            continue
        rng = np.random.default_rng(1)
        feeds = {
            value.name: array + 0.01 * rng.random(array.shape) if array.dtype == np.float32 else array
            for value, array in zip(model.graph.input, arrays, strict=False)
        }
        first = _floats(model)[0]
        way = {first: rng.standard_normal(feeds[first].shape)}
        try:
            file = FileFunction(tmp_path / "node.onnx")
            big, small = (_slope(file, feeds, way, step) for step in STEPS)
        except EvaluatorLacksError:
            continue
        judged += 1
        size = max(abs(big), 1e-3 * float(np.linalg.norm(way[first])))
        assert abs(big - small) <= AGREE * size, (name, big, small)
    if not judged:
        pytest.skip("onnx.reference does not run its cases")


def test_erf_in_float32_would_be_seen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    from tinytrain_compile.frontend.evaluator import model as file_model

    monkeypatch.setattr(file_model, "own_operators", lambda _: [])
    with pytest.raises(AssertionError):
        test_no_operator_rounds_on_the_way("Erf", tmp_path)


QDQ = """
<ir_version: 8, opset_import: ["": 13]>
net (float[1, 4] x) => (float[1, 2] y)
<float s = {0.5}, uint8 z = {0}, float ws = {0.25}, int8 wz = {0}, int8[4, 2] w = {1, -2, 3, 4, -5, 6, 7, -8}>
{
  q = QuantizeLinear(x, s, z)
  d = DequantizeLinear(q, s, z)
  v = DequantizeLinear(w, ws, wz)
  y = MatMul(d, v)
}
"""


def test_a_quantised_file_is_the_real_numbers_that_it_stands_for(tmp_path: Path):
    """Nothing is rounded, and what the format cannot hold is clamped: below 0, above 127.5."""
    onnx.save(parser.parse_model(QDQ), tmp_path / "qdq.onnx")
    x = np.array([[0.3, -1.0, 200.0, 2.6]])
    w = np.array([[1, -2], [3, 4], [-5, 6], [7, -8]]) * 0.25
    values = FileFunction(tmp_path / "qdq.onnx").values({"x": x}, {})
    np.testing.assert_allclose(values["y"], np.clip(x, 0, 127.5) @ w, rtol=1e-12)


@pytest.mark.parametrize(("beyond", "passes"), [(1e-7, True), (1.0, False)])
@pytest.mark.parametrize("at_the_end", [False, True])
def test_the_ends_that_are_given_decide_next_to_an_end(beyond: float, passes: bool, at_the_end: bool, tmp_path: Path):
    """A number that lies beyond its range in the last place alone may be within it in float32."""
    onnx.save(parser.parse_model(QDQ), tmp_path / "qdq.onnx")
    file = FileFunction(tmp_path / "qdq.onnx")
    node = next(node for node in file.nodes if node.op == "DequantizeLinear" and node.inputs[0] not in file.constants)
    x = np.array([[127.5 + beyond, 1.0, 2.0, 3.0]])
    held = Rounded(np.minimum(x, 127.5), np.array([[at_the_end, False, False, False]]))
    known, added = file.values_near({"x": x}, {}, {node.outputs[0]: held})
    moved = file.again(known, {"x": x - np.array([[1e-8, 0, 0, 0]])}, added)
    slope = (known["y"] - moved["y"]) / 1e-8
    np.testing.assert_allclose(slope, (np.array([[0.25, -0.5]]) if passes and not at_the_end else 0), atol=1e-5)


CHAIN = """
<ir_version: 8, opset_import: ["": 17]>
net (float[1, 3] x) => (float[1, 2] y)
<float[3, 4] a = {1, 2, -1, 0.5, 2, 1, 0.5, -1, 0.25, 1, -2, 1}, float[4, 2] b = {1, 2, -1, 0.5, 2, 1, 0.5, -1}>
{
  h = MatMul(x, a)
  r = Tanh(h)
  y = MatMul(r, b)
}
"""


def test_only_what_depends_on_a_change_is_run_again(tmp_path: Path):
    onnx.save(parser.parse_model(CHAIN), tmp_path / "chain.onnx")
    file = FileFunction(tmp_path / "chain.onnx")
    feeds = {"x": np.array([[0.1, -0.2, 0.3]])}
    known = file.values(feeds, {})
    changed = {"b": file.constants["b"] + 1e-3}
    again = file.again(known, changed)
    np.testing.assert_array_equal(again["y"], file.values(feeds, changed)["y"])
    np.testing.assert_array_equal(again["r"], known["r"])
    assert 2.0 < file.work < 2.5  # the second MatMul has 8 of the 24 multiply-accumulates and elements
