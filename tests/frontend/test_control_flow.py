"""Loops of a known number of turns, branches and sequences: what they compute, written out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from tests.frontend.models import ops_of, parse, run_imported, write
from tinytrain_compile.errors import CompileError
from tinytrain_compile.frontend import load_model

BODIES = {
    "loop with a count": """
        h, rows = Loop (three, , x) <body = b (int64 i, bool c, float[1, 4] s) =>
                (bool d, float[1, 4] t, float[4] row) {
            d = Identity (c)
            n = Cast <to = 1> (i)
            m = MatMul (s, w)
            t = Add (m, n)
            row = ReduceSum <keepdims = 0> (t, first)
        }>
        r = ReduceSum <keepdims = 1> (rows, first)
        y = Add (h, r)""",
    "loop until": """
        h, last = Loop (, true, x, zero) <body = b (int64 i, bool c, float[1, 4] s, int64 k) =>
                (bool d, float[1, 4] t, int64 l) {
            t = MatMul (s, w)
            l = Add (k, one)
            d = Less (l, three)
        }>
        y = Neg (h)""",
    "branch": """
        s = Shape (x)
        n = Size (s)
        q = Greater (n, three)
        y = If (q) <then_branch = t () => (float[1, 4] p) { p = Neg (x) },
            else_branch = e () => (float[1, 4] r) { r = MatMul (x, w) }>""",
    "sequence": """
        e = SequenceEmpty ()
        a = MatMul (x, w)
        f = SequenceInsert (e, a)
        g = SequenceInsert (f, x, zero)
        h = SequenceAt (g, one)
        j = ConcatFromSequence <axis = 0> (g)
        k = ReduceSum <keepdims = 1> (j, first)
        y = Sub (k, h)""",
}
CONSTANTS = {
    "three": np.int64(3),
    "one": np.int64(1),
    "zero": np.int64(0),
    "true": np.bool_(True),
    "first": np.int64([0]),
    "w": np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32),
}


@pytest.mark.parametrize("name", BODIES)
def test_is_what_the_file_computes(name: str, tmp_path: Path) -> None:
    text = f"net (float[1, 4] x) => (float[1, 4] y) {{ {BODIES[name]} }}"
    path = write(parse(text, {n: a for n, a in CONSTANTS.items() if n in text}), tmp_path)
    imported = load_model(path)
    x = np.random.default_rng(1).normal(size=(1, 4)).astype(np.float32)
    (expected,) = onnxruntime.InferenceSession(path.read_bytes()).run(None, {"x": x})
    np.testing.assert_allclose(run_imported(imported, x)[0], expected, rtol=1e-5, atol=1e-6)
    assert [value.name for value in imported.graph.parameters] == (["w"] if "w)" in text else [])
    assert not {"Loop", "If"} & set(ops_of(imported))


LEFT = {
    "turns by the sample": "n = Cast <to = 7> (m)\ny = Loop (n, , x) <body = b (int64 i, bool c, float[1, 4] s) => "
    "(bool d, float[1, 4] t) { d = Identity (c)\nt = Neg (s) }>",
    "endless": "y = Loop (, true, x) <body = b (int64 i, bool c, float[1, 4] s) => "
    "(bool d, float[1, 4] t) { d = Identity (c)\nt = Neg (s) }>",
    "branch by the sample": "q = Greater (m, half)\ny = If (q) <then_branch = t () => (float[1, 4] p) { p = Neg (x) }, "
    "else_branch = e () => (float[1, 4] r) { r = Abs (x) }>",
}


@pytest.mark.parametrize("name", LEFT)
def test_what_depends_on_the_sample_is_listed(name: str, tmp_path: Path) -> None:
    """Not that the output depends on no input, though the graph of an If has no inputs."""
    text = f"net (float[1, 4] x) => (float[1, 4] y) {{ m = ReduceMax <keepdims = 0> (x)\n{LEFT[name]} }}"
    constants = {"half": np.float32(0.5), "true": np.bool_(True)}
    path = write(parse(text, {n: a for n, a in constants.items() if n in text}), tmp_path)
    with pytest.raises(CompileError) as caught:
        load_model(path)
    assert caught.value.code == "E0501"
    assert ("If" if "If" in text else "Loop") in caught.value.details[0]


def test_loops_in_loops_are_bounded(tmp_path: Path) -> None:
    """256 turns of 256 turns of 256 turns: the file is refused after the nodes that may be written."""
    text = """net (float[1, 4] x) => (float[1, 4] y) {
        y = Loop (many, , x) <body = a (int64 i, bool c, float[1, 4] s) => (bool d, float[1, 4] t) {
            d = Identity (c)
            t = Loop (many, , s) <body = b (int64 j, bool e, float[1, 4] u) => (bool f, float[1, 4] v) {
                f = Identity (e)
                v = Loop (many, , u) <body = g (int64 k, bool h, float[1, 4] p) => (bool q, float[1, 4] r) {
                    q = Identity (h)
                    r = MatMul (p, w)
                }>
            }>
        }>
    }"""
    with pytest.raises(CompileError) as caught:
        load_model(write(parse(text, {"many": np.int64(256), "w": CONSTANTS["w"]}), tmp_path))
    assert caught.value.code == "E0501" and "Loop" in str(caught.value)
