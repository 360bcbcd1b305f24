"""One stored weight of a quantised file is one parameter, however its readers come to its real numbers.

The oracle is the float file of the same numbers, whose ties tests/frontend/test_tied_weights.py trains by the file.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import tinytrain_compile as tt
from tests.e2e.broken import write
from tests.frontend.models import parse
from tests.learn.exporting import exported
from tinytrain_compile.errors import CompileError
from tinytrain_compile.frontend import FrontendOptions, load_model

RANDOM = np.random.default_rng(5)
STORED = RANDOM.integers(-100, 100, (4, 4)).astype(np.int8)
SCALE = np.float32(0.01)
REAL = STORED.astype(np.float32) * SCALE
HEAD = RANDOM.standard_normal((4, 3)).astype(np.float32)
FORMATS = {"s": np.float32(0.1), "z": np.int8(0), "ws": SCALE, "wz": np.int8(0), "head": HEAD}
BODY = """
    xq = QuantizeLinear (x, s, z)
    xd = DequantizeLinear (xq, s, z)
    p = MatMul (xd, {first})
    a = Tanh (p)
    aq = QuantizeLinear (a, s, z)
    ad = DequantizeLinear (aq, s, z)
    h = {second}
    y = MatMul (h, head)"""
PLAIN = "MatMul (ad, {})"
FORMS = {
    "two nodes dequantise it": (
        "A = DequantizeLinear (W, ws, wz) B = DequantizeLinear (W, ws, wz)",
        "A",
        PLAIN.format("B"),
    ),
    "transposed by its reader": (
        "A = DequantizeLinear (W, ws, wz) B = DequantizeLinear <axis = 0> (W, ws, wz)",
        "A",
        "Gemm <transB = 1> (ad, B)",
    ),
    "transposed as integers": (
        "A = DequantizeLinear (W, ws, wz) T = Transpose <perm = [1, 0]> (W) B = DequantizeLinear (T, ws, wz)",
        "A",
        PLAIN.format("B"),
    ),
    "transposed for both": (
        """T = Transpose <perm = [1, 0]> (W) A = DequantizeLinear (T, ws, wz)
        I = Identity (W) B = DequantizeLinear (I, ws, wz)""",
        "A",
        PLAIN.format("B"),
    ),
    "quantised twice": (
        """P = QuantizeLinear (W, ws, wz) A = DequantizeLinear (P, ws, wz)
        Q = QuantizeLinear (W, ws, wz) B = DequantizeLinear (Q, ws, wz)""",
        "A",
        PLAIN.format("B"),
    ),
}
REALS = {
    "two nodes dequantise it": ("W", PLAIN.format("W")),
    "transposed by its reader": ("W", "Gemm <transB = 1> (ad, W)"),
    "transposed as integers": ("W", "Gemm <transB = 1> (ad, W)"),
    "transposed for both": ("V", PLAIN.format("W")),
    "quantised twice": ("W", PLAIN.format("W")),
}


def model(before: str, first: str, second: str, **weights: np.ndarray) -> onnx.ModelProto:
    text = f"net (float[1, 4] x) => (float[1, 3] y) {{ {before} {BODY.format(first=first, second=second)} }}"
    return parse(text, {**FORMATS, **weights})


def losses(path: Path) -> list[float]:
    """Of some steps on small numbers, which no format cuts off."""
    random = np.random.default_rng(1)
    with tt.compile(path, verify="none", quant="fp32", update="all", loss="mse", lr=0.1).twin() as twin:
        pairs = [random.uniform(-1, 1, (2, 1, 4)).astype(np.float32) for _ in range(4)]
        return [twin.train_step(x, y[:, :3]) for x, y in pairs]


@pytest.mark.parametrize("name", FORMS)
def test_a_shared_weight_trains_as_one(name: str, tmp_path: Path) -> None:
    before, first, second = FORMS[name]
    stored = REAL if name == "quantised twice" else STORED
    path = Path(write(model(before, first, second, W=stored), tmp_path))
    assert sorted(source.tensor.name for source in load_model(path, FrontendOptions()).sources.values()) == [
        "W",
        "head",
    ]
    turned = "V = Transpose <perm = [1, 0]> (W)" if REALS[name][0] == "V" else ""
    oracle = tmp_path / "oracle"
    oracle.mkdir()
    np.testing.assert_allclose(
        losses(path), losses(Path(write(model(turned, *REALS[name], W=REAL), oracle))), rtol=1e-5
    )


def test_names_of_the_file_are_not_taken(tmp_path: Path) -> None:
    """What is put between a DequantizeLinear and a move gets a name that the file has not."""
    before, first, second = FORMS["transposed as integers"]
    made = model(before, first, second, W=STORED)
    for node in made.graph.node:
        for names in (node.input, node.output):
            names[:] = ["B.moved0" if name == "p" else name for name in names]
    path = Path(write(made, tmp_path))
    assert sorted(source.tensor.name for source in load_model(path, FrontendOptions()).sources.values()) == [
        "W",
        "head",
    ]


def test_integers_that_mean_two_weights_are_refused(tmp_path: Path) -> None:
    """By other scales they are other real numbers: one tensor of the file cannot hold what both have learned."""
    before = "A = DequantizeLinear (W, ws, wz) B = DequantizeLinear (W, other, wz)"
    path = Path(write(model(before, "A", PLAIN.format("B"), W=STORED, other=np.float32(0.02)), tmp_path))
    with pytest.raises(CompileError, match=r"E0504.*weight W"):
        load_model(path, FrontendOptions())


def test_zeros_that_an_exporter_wrote_once_are_several(tmp_path: Path) -> None:
    """Biases of two layers, each in units of its own sums."""
    body = """
        A = DequantizeLinear (W, ws, wz) B = DequantizeLinear (V, ws, wz)
        c = DequantizeLinear (zeros, one) d = DequantizeLinear (zeros, other)
        xq = QuantizeLinear (x, s, z) xd = DequantizeLinear (xq, s, z)
        p = Gemm (xd, A, c)
        pq = QuantizeLinear (p, s, z) pd = DequantizeLinear (pq, s, z)
        h = Gemm (pd, B, d)
        y = MatMul (h, head)"""
    scales = {"one": np.float32(0.001), "other": np.float32(0.002)}
    arrays = {**FORMATS, **scales, "W": STORED, "V": STORED[::-1].copy(), "zeros": np.zeros(4, np.int32)}
    path = Path(write(parse(f"net (float[1, 4] x) => (float[1, 3] y) {{ {body} }}", arrays), tmp_path))
    assert len(load_model(path, FrontendOptions()).sources) == 5
    with pytest.raises(CompileError, match=r"E0112.*weight zeros.*once"):
        exported(path, update="all", loss="mse", quant="fp32")
