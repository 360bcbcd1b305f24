"""int8 ranges over all of float32: they are held, or one line names the value; nothing else is printed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from testing.networks import models
from tests.e2e.broken import weight, write
from tests.e2e.command import Outcome, run
from tests.quantize import nets

SAMPLES = np.random.default_rng(0).standard_normal((8, 12))


def compiled(model: onnx.ModelProto, folder: Path, x: np.ndarray | None, *flags: str) -> Outcome:
    """A compilation in int8."""
    calib: list[str] = []
    if x is not None:
        np.savez(folder / "c.npz", x=x, y=np.arange(len(x)) % 4)
        calib = ["--calib", str(folder / "c.npz")]
    return run(write(model, folder), "--quant", "int8", *calib, "-o", folder / "out", "--verify", "none", *flags)


def held(outcome: Outcome, error_id: str = "E0307") -> bool:
    if outcome.exit_code == 0:
        outcome.check_success()
        return True
    outcome.check_error(error_id, 2)
    return False


@pytest.mark.parametrize("head", ["fp32", "int8"])
def test_calibration_of_any_size(head: str, tmp_path: Path) -> None:
    zeros = compiled(models.mlp(), tmp_path, SAMPLES * 1e-46, "--head", head, "--dry-run")
    assert "x is 0 everywhere" in zeros.check_error("E0306", 2).err, "1e-46 is 0 in float32"
    sizes = (-40, -38, -20, -12, 0, 12, 20, 25, 38)
    found = {e: held(compiled(models.mlp(), tmp_path, SAMPLES * 10.0**e, "--head", head, "--dry-run")) for e in sizes}
    assert found == {e: abs(e) in (0, 12) or e == 20 for e in sizes}


@pytest.mark.parametrize("size", [1e-15, 1e15])
def test_what_is_held_is_right(size: float, tmp_path: Path) -> None:
    np.savez(tmp_path / "c.npz", x=SAMPLES * size, y=np.arange(8) % 4)
    flags = ("--calib", tmp_path / "c.npz", "--data", tmp_path / "c.npz", "--verify", "host")
    run(write(models.mlp(), tmp_path), "--quant", "int8", *flags, "-o", tmp_path / "out").check_success()


@pytest.mark.parametrize("method", ["minmax", "percentile"])
@pytest.mark.parametrize("value", [1e30, -3.4e38])
def test_one_sample_that_is_far_off(value: float, method: str, tmp_path: Path) -> None:
    x = SAMPLES.copy()
    x[3, 5] = value
    outcome = compiled(models.mlp(), tmp_path, x, "--calib-range", method).check_error("E0307", 2)
    assert "error[E0307]: x: " in outcome.err


@pytest.mark.parametrize("size", [1e-38, 1e-30, 1e30, 1e38])
@pytest.mark.parametrize("name", ["fc1_weight", "fc2_bias", "fc3_weight"])
def test_weights_of_any_size(name: str, size: float, tmp_path: Path) -> None:
    model = models.mlp()
    tensor = weight(model, name)
    data = (numpy_helper.to_array(tensor).astype(np.float64) * size).astype(np.float32)
    tensor.CopyFrom(numpy_helper.from_array(data, name))
    held(compiled(model, tmp_path, SAMPLES, "--dry-run"))


def test_values_that_overflow_on_the_way(tmp_path: Path) -> None:
    """e^x of a sample is infinite: what is measured is no number."""
    model = models.mlp()
    next(node for node in model.graph.node if node.op_type == "Tanh").op_type = "Exp"
    outcome = compiled(model, tmp_path, SAMPLES * 1e5, "--dry-run")
    assert "inf" in outcome.check_error("E0307", 2).err


@pytest.mark.parametrize("size", [1e-45, 1e-38, 1e-25, 1e25, 3e38])
def test_scales_of_a_quantised_model(size: float, tmp_path: Path) -> None:
    """Each of them alone; in float32 too, where what a weight is may be infinite."""
    made = nets.quantised()
    constants = {tensor.name for tensor in made.graph.initializer}
    quantising = [node for node in made.graph.node if node.op_type.endswith("Linear")]
    scales = [node.input[1] for node in quantising if node.input[1] in constants]
    assert len(set(scales)) > 3
    for name in dict.fromkeys(scales):
        model = nets.quantised()
        tensor = weight(model, name)
        data = np.full_like(numpy_helper.to_array(tensor), size)
        tensor.CopyFrom(numpy_helper.from_array(data, name))
        outcome = compiled(model, tmp_path, None, "--dry-run")
        held(outcome, outcome.error_id if outcome.error_id in ("E0225", "E0501") else "E0307")
        plain = run(tmp_path / "net.onnx", "--quant", "fp32", "--dry-run")
        held(plain, plain.error_id if plain.error_id in ("E0225", "E0501") else "E0307")
