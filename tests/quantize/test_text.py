"""Rewrites to int8 as text: the nodes that go in, and those that come out (`ir/text.py`)."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from testing.graph_lines import Formats, Shapes, joined, lines, read, written
from tests.quantize import nets
from tinytrain_compile.ir.graph import check_graph
from tinytrain_compile.ir.stages import TrainGraph
from tinytrain_compile.ir.types import Value
from tinytrain_compile.ops.base import infer
from tinytrain_compile.quantize import QuantOptions, quantise
from tinytrain_compile.quantize.prepare import fuse_biases, prepare, saturated, without_inner_clamps

IMAGE = (1, 2, 2, 3)


# ---- before training ------------------------------------------------------------------------------------------------

DENSE: Shapes = {
    "x": (3, 2),
    "w": (4, 2),
    "w.b": (4,),
    **dict.fromkeys(("w.each", "p", "y", "m"), (3, 4)),
    **dict.fromkeys(("q", "z"), (1, 3, 4)),
}


@pytest.mark.parametrize(
    ("nodes", "after"),
    [
        ("p = Gemm(x; w)\ny = Add(p; w.b)", "y = Gemm(x; w; w.b)"),
        ("p = Gemm(x; w)\ny = Add(w.b; p)", "y = Gemm(x; w; w.b)"),
        ("p = Gemm(x; w)\nq = Reshape(p) {'shape': (1, 3, 4)}\nz = Add(q; w.b)", "p = Gemm(x; w; w.b)\nz = Reshape(p)"),
        ("p = Gemm(x; w)\ny = Add(p; w.each)", ""),
        ("p = Gemm(x; w)\ny = Sub(p; w.b)", ""),
        ("p = Gemm(x; w)\ny = Add(p; p)", ""),
        ("p = Gemm(x; w)\ny = Add(p; w.b)\nm = Mul(y; p)", ""),
        ("p = Gemm(x; w)\ny = Add(p; w.b)\nm = Add(y; w.b)", ""),
    ],
    ids=[
        "behind",
        "before",
        "behind a reshape",
        "not one number per column",
        "a difference",
        "no constant",
        "the product is read twice",
        "the bias is read twice",
    ],
)
def test_biases_of_dense_layers(nodes: str, after: str) -> None:
    last = nodes.splitlines()[-1].split(" = ")[0]
    shapes = {name: shape for name, shape in DENSE.items() if name in re.findall(r"[\w.]+", nodes)}
    graph = fuse_biases(read(shapes, nodes, last))
    check_graph(graph, infer)
    assert written(graph) == (lines(after) if after else [line.partition(" {")[0] for line in nodes.splitlines()])


CLAMPED: Shapes = {"x": (2, 4), "w": (4, 4)}
SAME, OTHER = (0.5, 0), (0.25, 3)


@pytest.mark.parametrize(
    ("nodes", "formats", "after"),
    [
        ("y = Gemm(x; w)", {"x": SAME, "y": SAME}, "y = Gemm(x; w)\ny.int8 = Clip(y)"),
        ("y = Tanh(x)", {"y": SAME}, "y = Tanh(x)\ny.int8 = Clip(y)"),
        ("y = Clip(x) {'low': 0.0}", {"x": SAME, "y": SAME}, "y = Clip(x)"),
        ("y = Gemm(x; w)\nz = Clip(y) {'low': 0.0}", {"y": SAME, "z": SAME}, "y = Gemm(x; w)\nz = Clip(y)"),
        (
            "y = Gemm(x; w)\nz = Clip(y) {'low': 0.0}",
            {"y": SAME, "z": OTHER},
            "y = Gemm(x; w)\ny.int8 = Clip(y)\nz = Clip(y.int8)",
        ),
    ],
    ids=["a layer", "a function", "a clamp is the clamp", "of one scale", "of two scales"],
)
def test_every_int8_value_is_clamped(nodes: str, formats: Formats, after: str) -> None:
    last = nodes.splitlines()[-1].split(" = ")[0]
    shapes = {name: shape for name, shape in CLAMPED.items() if name in re.findall(r"\w+", nodes)}
    graph = prepare(read(shapes, nodes, last, formats=formats), float_head=False)
    assert written(graph) == lines(after)


@pytest.mark.parametrize(
    ("nodes", "formats", "after"),
    [
        ("y = Gemm(x; w)", {"y": SAME}, "y = Gemm(x; w)\ny.clamped = Clip(y)"),
        ("y = Sigmoid(x)", {"y": SAME}, "y = Sigmoid(x)"),
        ("y = Sigmoid(x)", {"y": (0.001, 0)}, "y = Sigmoid(x)\ny.clamped = Clip(y)"),
        ("y = Tanh(x)\nz = Reshape(y) {'shape': (2, 4)}", {"z": SAME}, "y = Tanh(x)\nz = Reshape(y)"),
    ],
    ids=["anything", "a range that holds all", "a narrower range", "what moves keeps its range"],
)
def test_real_numbers_keep_the_ranges_of_a_file(nodes: str, formats: Formats, after: str) -> None:
    last = nodes.splitlines()[-1].split(" = ")[0]
    shapes = {name: shape for name, shape in CLAMPED.items() if name in re.findall(r"\w+", nodes)}
    assert written(saturated(read(shapes, nodes, last, formats=formats))) == lines(after)


@pytest.mark.parametrize(
    ("nodes", "formats", "free", "stored"),
    [
        ("y = Gemm(x; w)\nz = Clip(y) {'low': 0.0}", {"y": SAME, "z": SAME}, "", "z"),
        ("y = Gemm(x; w)\nz = Clip(y) {'low': 0.0}", {"y": SAME, "z": OTHER}, "", "y z"),
        ("y = Gemm(x; w)\nz = Clip(y) {'low': 0.0}", {"y": SAME, "z": SAME}, "z", "y z"),
        ("y = Gemm(x; w)\nz = Clip(y) {'low': 0.0}\nu = Add(z; y)", {"y": SAME, "z": SAME}, "", "y z"),
        ("y = Reshape(x) {'shape': (4, 2)}\nz = Clip(y) {'low': 0.0}", {"y": SAME, "z": SAME}, "", "y z"),
    ],
    ids=["one scale", "two scales", "no integers", "somebody reads what is clamped", "what moves keeps its range"],
)
def test_sums_go_through_one_clamp(nodes: str, formats: Formats, free: str, stored: str) -> None:
    last = nodes.splitlines()[-1].split(" = ")[0]
    graph = without_inner_clamps(read(CLAMPED, nodes, last, formats=formats), frozenset(free.split()))
    kept = [value.name for node in graph.nodes for value in node.outputs if value.quant is not None]
    assert kept == stored.split()
    assert written(graph) == [line.partition(" {")[0] for line in nodes.splitlines()]


# ---- the training step ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def step() -> TrainGraph:
    """Some training step, for a graph of text."""
    return nets.float_train(nets.cnn(), "head")


BESIDE = re.compile(r".*\.(?:peak|exponent|multiplier|shift)[\d.]*")
"""Operands that every error, and every factor, has."""
STEP: Shapes = {
    **dict.fromkeys(("x", "y", "z", "a", "dz", "dy", "dx"), IMAGE),
    **dict.fromkeys(("w", "dw", "w.new"), (3, 1, 1, 3)),
    **dict.fromkeys(("w.b", "db", "w.b.new"), (3,)),
    "sums": (1, 1, 1, 3),
    "rate": (),
}
STORED: Formats = {"x": (0.1, 0), "z": (0.05, -128), "w": (0.01, 0)}
FORWARD = """
    y = Conv(x; w; w.b) {'kernel': (1, 1), 'bias': True}
    z = Clip(y) {'low': 0.0}
"""
CLAMP = "dy = ClipGrad(dz; z) {'low': 0.0}"
CONV = "{'': 'ConvAttrs', 'kernel': (1, 1)}"
LAYER = "y.QConv = QConv(x; w; w.b)"
ERROR = """
    dy.QuantizeError = QuantizeError(dz)
    dy.ErrorScale = ErrorScale(dy.QuantizeError; y.QConv)
"""


CASES: dict[str, tuple[str, str, str, str]] = {
    "nothing more": (
        "",
        "z",
        "",
        """
            z.Dequantize = Dequantize(y.QConv)
        """,
    ),
    "float32 behind it": (
        "a = Tanh(z)",
        "z a",
        "",
        """
            a.Dequantize = Dequantize(y.QConv)
            a = Tanh(a.Dequantize)
        """,
    ),
    "its weight is trained": (
        f"""
            {CLAMP}
            dw = ConvGradWeight(x; dy) {{'kernel': (1, 1)}}
            w.new = SgdUpdate(w; dw; rate)
        """,
        "z",
        "w<-w.new",
        joined(
            ERROR,
            """
            w.new.QConvUpdate = QUpdate(w; x; dy.ErrorScale; rate.2; noise; salt)
            w.new.Dequantize = Dequantize(y.QConv)
        """,
        ),
    ),
    "its bias is trained": (
        f"""
            {CLAMP}
            sums = Reduce(dy) {{'axes': (0, 1, 2)}}
            db = Reshape(sums) {{'shape': (3,)}}
            w.b.new = SgdUpdate(w.b; db; rate)
        """,
        "z",
        "w.b<-w.b.new",
        joined(
            ERROR,
            """
            w.b.new.QBiasUpdate = QBiasUpdate(w.b; dy.ErrorScale; rate.2)
            w.b.new.Dequantize = Dequantize(y.QConv)
        """,
        ),
    ),
    "the error goes on": (
        f"""
            {CLAMP}
            dx = ConvGradInput(dy; w) {{'conv': {CONV}, 'input_hw': (2, 2)}}
        """,
        "z dx",
        "",
        joined(
            ERROR,
            """
            dx.QConvGradInput = QConvGradInput(dy.ErrorScale; w)
            dx.Dequantize = Dequantize(y.QConv)
            dx.DequantizeError = DequantizeError(dx.QConvGradInput)
        """,
        ),
    ),
    "two errors are added": (
        f"""
            {CLAMP}
            dx = Add(dy; dz)
        """,
        "z dx",
        "",
        joined(
            ERROR,
            """
            dx.ErrorScale = ErrorScale(dy.ErrorScale)
            dx.ErrorAdd = ErrorAdd(dx.ErrorScale; dy.QuantizeError)
            dx.Dequantize = Dequantize(y.QConv)
            dx.DequantizeError = DequantizeError(dx.ErrorAdd)
        """,
        ),
    ),
    "the error of a mean": (
        f"""
            dz = Expand(sums) {{'shape': (1, 2, 2, 3), 'scale': 0.25}}
            {CLAMP}
        """,
        "z dy",
        "",
        """
            dz.QuantizeError = QuantizeError(sums)
            dz.Expand = Expand(dz.QuantizeError)
            dy.ErrorScale = ErrorScale(dz.Expand; y.QConv)
            dy.Dequantize = Dequantize(y.QConv)
            dy.ErrorScale.2 = ErrorScale(dy.ErrorScale)
            dy.DequantizeError = DequantizeError(dy.ErrorScale.2)
        """,
    ),
    "a part of an error": (
        f"""
            {CLAMP}
            dx = Slice(dy) {{'starts': (0, 0, 0, 0), 'steps': (1, 1, 1, 1), 'sizes': (1, 2, 2, 3)}}
        """,
        "z dx",
        "",
        joined(
            ERROR,
            """
            dx.Slice = Slice(dy.ErrorScale)
            dx.Dequantize = Dequantize(y.QConv)
            dx.ErrorScale = ErrorScale(dx.Slice)
            dx.DequantizeError = DequantizeError(dx.ErrorScale)
        """,
        ),
    ),
}
"""Name -> (nodes behind FORWARD, outputs, updates, nodes behind LAYER)."""


@pytest.mark.parametrize("case", CASES)
def test_a_training_step_in_integers(case: str, step: TrainGraph) -> None:
    """Errors and noise are moved on at the end; that, and the operands that all of a kind have, are left out."""
    more, outputs, updates, after = CASES[case]
    nodes = joined(FORWARD, more)
    shapes = {name: shape for name, shape in STEP.items() if name in (*re.findall(r"[\w.]+", nodes), "rate")}
    rate = {"rate": np.ones((), np.float32)}
    graph = read(shapes, nodes, outputs, updates, STORED, rate)
    first, last = graph.outputs[0], graph.outputs[-1]
    train = replace(step, graph=graph, loss=last, logits=first, learning_rate=Value("rate", ()), trained={})
    found = [written_plainly(line) for line in written(quantise(train, QuantOptions()).graph)]
    assert [line for line in found if "ExponentUpdate" not in line and "NoiseTick" not in line] == lines(
        joined(LAYER, after)
    )


def written_plainly(line: str) -> str:
    """Leave the first result of a node, and the operands that differ from those of others of its kind."""
    results, node = line.split(" = ")
    op, operands = node.removesuffix(")").split("(")
    known = [name for name in operands.split("; ") if not BESIDE.fullmatch(name)]
    return f"{results.split('; ')[0]} = {op}({'; '.join(known)})"
