"""Masked attention scores: whatever number masks them, and in int8 without an error in the others."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tests.e2e.command import run
from tests.frontend.models import write
from tests.frontend.nets import Net
from tinytrain_compile.driver.file_check.compare import in_numbers
from tinytrain_compile.driver.file_check.imported_values import Held

LOWEST = float(np.finfo(np.float32).min)
KEPT = np.tril(np.ones((5, 5))) > 0


def attention(kind: str, masked: float) -> onnx.ModelProto:
    """One causal head, masked by a Where over the scores, by a table that is added, or by one that nodes make."""
    net = Net("float[1, 5, 8] x", "float[1, 4] y")
    for part in "qkv":
        net.add(f"{part} = MatMul (x, {net.weight(f'{part}_w', 8, 8)})")
    net.add("kt = Transpose <perm = [0, 2, 1]> (k)")
    net.add("products = MatMul (q, kt)")
    net.add(f"scores = Mul (products, {net.table('scale', 8**-0.5, np.float32)})")
    net.add("low = Constant ()")
    if kind == "where":
        net.add(f"masked = Where ({net.table('mask', ~KEPT, np.bool_)}, low, scores)")
    elif kind == "made":
        net.add("zero = Constant <value_float = 0.0> ()")
        net.add(f"table = Where ({net.table('mask', KEPT, np.bool_)}, zero, low)")
        net.add("masked = Add (scores, table)")
    else:
        net.add(f"masked = Add (scores, {net.table('table', np.where(KEPT, 0, masked), np.float32)})")
    net.add("p = Softmax <axis = -1> (masked)")
    net.add("mixed = MatMul (p, v)")
    net.add("mean = ReduceMean <axes = [1], keepdims = 0> (mixed)")
    net.dense("y", "mean", 8, 4)
    model = net.model()
    constant = next(node for node in model.graph.node if node.output[0] == "low")
    constant.attribute.append(helper.make_attribute("value", numpy_helper.from_array(np.asarray(masked, np.float32))))
    return model


@pytest.mark.parametrize("kind", ["where", "made", "table"])
@pytest.mark.parametrize("masked", [-np.inf, LOWEST, -1e9, -1e4])
def test_masks_of_any_number(masked: float, kind: str, tmp_path: Path) -> None:
    path = write(attention(kind, masked), tmp_path)
    np.savez(tmp_path / "x.npz", x=np.random.default_rng(0).normal(size=(12, 5, 8)).astype(np.float32))
    chosen = ("--out", tmp_path / "out", "--target", "cortex-m7", "--verify", "host", "--force")
    assert "PASS" in run(path, *chosen).check_success().out
    out = run(path, *chosen, "--quant", "int8", "--calib", tmp_path / "x.npz").check_success().out
    error, size = map(float, re.findall(r"output RMSE ([\d.e-]+) of RMS\s+([\d.e-]+)", out)[0])
    assert "PASS" in out and error < 0.02 * size


def test_a_wrong_score_beside_masked_ones_is_seen() -> None:
    theirs = np.asarray([1.0, -np.inf, 2.0, LOWEST])
    right, wrong = np.asarray([1.0, LOWEST, 2.0, -np.inf]), np.asarray([1.0, LOWEST, 2.1, LOWEST])
    assert not in_numbers(Held(right, 0.0), theirs).wrong
    assert in_numbers(Held(wrong, 0.0), theirs).wrong.startswith("2 in the file, 2.1 as imported")
    assert in_numbers(Held(-right, 0.0), theirs).wrong
