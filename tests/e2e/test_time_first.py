"""Sequences with the time steps on the first axis, as a recurrent layer of PyTorch has them without batch_first."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.e2e.command import FILE, HERE, STEP, run
from tests.frontend.models import parse

STEPS, FEATURES, HIDDEN, CLASSES = 6, 3, 4, 3
ENDS = {"scores": "y = Add (s, b)", "softmax": "d = Add (s, b)\ny = Softmax <axis = -1> (d)"}
STARTS = {
    "time first": (f"{STEPS}, 1", "t = Identity (x)"),
    "samples first": (f"1, {STEPS}", "t = Transpose <perm = [1, 0, 2]> (x)"),
}


def network(start: str, end: str) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    sizes = {"W": (1, 4 * HIDDEN, FEATURES), "R": (1, 4 * HIDDEN, HIDDEN), "B": (1, 8 * HIDDEN), "v": (HIDDEN, CLASSES)}
    arrays = {name: rng.normal(size=size).astype(np.float32) for name, size in (*sizes.items(), ("b", (CLASSES,)))}
    shape, first = STARTS[start]
    text = f"""net (float[{shape}, {FEATURES}] x) => (float[{STEPS}, 1, {CLASSES}] y) {{ {first}
        l, h, c = LSTM <hidden_size = {HIDDEN}> (t, W, R, B)
        q = Squeeze (l, one)
        s = MatMul (q, v)
        {ENDS[end]} }}"""
    return parse(text, {**arrays, "one": np.int64([1])})


@pytest.mark.parametrize(("start", "end"), [("time first", "scores"), ("samples first", "softmax")])
def test_a_cross_entropy_per_step(start: str, end: str, tmp_path: Path) -> None:
    """Samples are (steps, features) and labels (steps,) either way; the loss is judged by the file's own derivative."""
    onnx.save(network(start, end), tmp_path / "net.onnx")
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(8, STEPS, FEATURES)).astype(np.float32), rng.integers(0, CLASSES, (8, STEPS))
    np.savez(tmp_path / "data.npz", x=x, y=y)
    options = ("--loss", "cross-entropy", "--batch", "2", "--data", tmp_path / "data.npz", "--verify", "host")
    done = run(tmp_path / "net.onnx", *options, "-o", tmp_path / "out").check_success()
    out = done.out
    assert done.agreed == (FILE, HERE, STEP) and "PASS" in out and "6 of 6 tensors within" in out
    assert ("input x holds time first: one sample of 6 steps" in out) == (start == "time first")
    assert f"1x{STEPS}x{FEATURES} -> 1x{STEPS}x{CLASSES}" in out
