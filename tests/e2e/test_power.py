"""Powers with any exponent: trained where the base is never negative (GeM pooling), as PyTorch differentiates them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.e2e import chain
from tests.e2e.command import run
from tests.e2e.gradients import LossFunction, sample
from tests.frontend.models import check_against_onnxruntime, parse, write
from tests.frontend.nets import Net
from tinytrain_compile.frontend import FrontendOptions
from tinytrain_compile.ops import OPS


def gem(exponent: object, name: str = "p") -> onnx.ModelProto:
    """Generalised mean pooling: (mean of clamp(x)^p)^(1/p)."""
    net = Net("float[1, 3, 8, 8] x", "float[1, 4] y")
    net.conv("c", "x", (6, 3, 3, 3))
    net.table("low", 1e-6, np.float32)
    net.table(name, exponent, np.float32)
    net.add("k = Clip (c, low)")
    net.add(f"a = Pow (k, {name})")
    net.add("m = ReduceMean <axes = [2, 3]> (a)")
    net.add(f"i = Reciprocal ({name})")
    net.add("r = Pow (m, i)" if np.ndim(exponent) < 2 else "s = Flatten (i)\nr = Reciprocal (m)")
    net.add("f = Flatten (r)")
    net.dense("y", "f", 6, 4)
    return net.model()


@pytest.mark.parametrize("exponent", [[3.0], np.linspace(1.5, 4, 6).reshape(1, 6, 1, 1)])
def test_trained_exponent(exponent: object, tmp_path: Path) -> None:
    model = gem(exponent)
    check_against_onnxruntime(model, tmp_path)
    train = chain.train_graph(model, learning_rate=0.5)
    check = LossFunction(train, *sample(train, 1))
    assert "p" in check.trained
    found, rng = check.gradients(), np.random.default_rng(0)
    for name in ("p", "c_w", "y_w"):
        direction = {name: rng.standard_normal(found[name].shape)}
        product = float(np.sum(found[name] * direction[name]))
        assert product == pytest.approx(check.slope(direction), rel=1e-5, abs=1e-8)


@pytest.mark.parametrize(("name", "exponent", "trained"), [("p", 3.0, True), ("p", 2.0, True), ("val_3", 3.0, False)])
def test_which_exponents_are_parameters(name: str, exponent: float, trained: bool) -> None:
    known = {choice.name: choice.trained for choice in chain.imported(gem([exponent], name)).choices}
    assert known[name] == trained
    forced = chain.imported(gem([exponent], name), FrontendOptions(trainable=(name,)))
    assert name in {value.name for value in forced.graph.parameters}


@pytest.mark.parametrize(("function", "exponent"), [("Tanh", 3.0), ("Relu", 2.0), ("Abs", 0.5)])
def test_exponent_of_what_may_be_negative_is_fixed_and_a_usual_one(function: str, exponent: float) -> None:
    model = parse(
        f"net (float[1, 4] x) => (float[1, 4] y) {{ t = {function} (x) h = Pow (t, p) y = MatMul (h, w) }}",
        {"p": np.asarray(exponent, np.float32), "w": np.eye(4, dtype=np.float32)},
    )
    assert {choice.name for choice in chain.imported(model).choices if choice.trained} == {"w"}


BY_PYTORCH = [
    # a, b, a^b, gradient to a, gradient to b (torch.pow with both requiring a gradient)
    (0.0, 2.0, 0.0, 0.0, 0.0),
    (0.0, 0.0, 1.0, 0.0, 0.0),
    (0.0, 1.0, 0.0, 1.0, 0.0),
    (2.0, 3.0, 8.0, 12.0, 8 * np.log(2)),
    (-2.0, 3.0, -8.0, 12.0, np.nan),
    (-2.0, 0.5, np.nan, np.nan, np.nan),
    (4.0, -0.5, 0.5, -0.0625, 0.5 * np.log(4)),
]


@pytest.mark.parametrize("exact", [False, True])
def test_special_cases_are_pytorchs(exact: bool) -> None:
    a, b, *wanted = (np.asarray(column, np.float32) for column in zip(*BY_PYTORCH, strict=True))
    operands = ((a, b), (np.ones_like(a), a, b), (np.ones_like(a), a, b))
    for op, arrays, result in zip(("Power", "PowerGradBase", "PowerGradExponent"), operands, wanted, strict=True):
        rule = OPS[op].exact if exact else OPS[op].reference
        assert rule is not None
        with np.errstate(all="ignore"):
            (found,) = rule(arrays, OPS[op].attrs())
        np.testing.assert_allclose(found, result, rtol=1e-6)


@pytest.mark.parametrize(
    "lines",
    ["p = Pow (two, h)", "a = Abs (h)\np = Pow (a, g)", "p = Pow (h, four)", "s = Sigmoid (h)\np = Pow (s, each)"],
)
def test_other_powers_on_the_host(lines: str, tmp_path: Path) -> None:
    net = Net("float[1, 6] x", "float[1, 4] y")
    net.dense("h", "x", 6, 5)
    net.add("g = Tanh (h)")
    net.table("two", 2.0, np.float32)
    net.table("four", 4.0, np.float32)
    net.table("each", [0.5, 1.5, 2.5, -1.5, 3.0], np.float32)
    net.add(lines)
    net.dense("y", "p", 5, 4)
    path = write(net.model(), tmp_path)
    found = run(path, "--out", tmp_path / "out", "--target", "cortex-m4", "--verify", "host").check_success()
    assert "PASS" in found.out
