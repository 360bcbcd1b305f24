"""The real quantised models: their integers, their formats, and schemes that apply to them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

from testing.places import SHARED
from tests.frontend.models import ops_of
from tests.frontend.qdq import integers_of, quantised_of, run_saturated
from tinytrain_compile.frontend import load_model
from tinytrain_compile.ir.types import Quant
from tinytrain_compile.sparse import resolve_update

QDQ_MODELS = ("mcunet-5fps-10c-qdq", "mcunet-5fps-qdq", "mbv2-w0.35-qdq", "proxyless-w0.3-qdq")
DEAD = {"mcunet-5fps-10c-qdq": 61, "mcunet-5fps-qdq": 61, "mbv2-w0.35-qdq": 0, "proxyless-w0.3-qdq": 31}
SCHEMES = (
    ("mcunet-5fps-10c-qdq", "mcunet-5fps-49kb"),
    ("mcunet-5fps-10c-qdq", "mcunet-5fps-99kb"),
    ("mbv2-w0.35-qdq", "mbv2-w0.35-99kb"),
    ("proxyless-w0.3-qdq", "proxyless-w0.3-98kb"),
)


def shared_model(name: str) -> Path:
    path = SHARED / "models" / f"{name}.onnx"
    if not path.exists():
        pytest.skip(f"{path} not found: set TINYTRAIN_SHARED")
    return path


# ---- the real models ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", QDQ_MODELS)
def test_real_model_agrees_with_its_integer_run(name: str) -> None:
    path = shared_model(name)
    imported = load_model(path)
    asked = onnxruntime.SessionOptions()
    asked.add_session_config_entry("session.x64quantprecision", "1")  # as unsigned.py says, in what it fuses itself
    session = onnxruntime.InferenceSession(str(path), asked)
    random = np.random.default_rng(0)
    scale = imported.graph.outputs[0].quant.scale[0]  # type: ignore[union-attr]
    errors, ranks = [], []
    for _ in range(8):
        coarse = random.integers(-127, 128, (1, 3, 8, 8))  # patches: white noise hardly excites the nets
        x = (np.kron(coarse, np.ones((1, 1, 16, 16))) * (2 / 255)).astype(np.float32)
        expected = session.run(None, {"input": x})[0]
        found = run_saturated(imported, x)
        errors.append(float(np.sqrt(np.mean((found - expected) ** 2))) / scale)
        ranks.append(int(np.sum(expected > expected[0, found.argmax()])))
        assert float(expected.std()) > 10 * scale
    assert max(errors) < 3.0  # steps of the logits' own quantisation
    assert ranks == [0] * 8


@pytest.mark.parametrize("name", QDQ_MODELS)
def test_real_model_keeps_every_integer(name: str) -> None:
    path = shared_model(name)
    imported = load_model(path)
    stored = {t.name: numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}
    expected = {n for n, a in stored.items() if f"{n}_scale" in stored and a.dtype in (np.int8, np.int32)}
    assert {v.name for v in imported.graph.parameters} == expected
    for value in imported.graph.parameters:
        assert value.quant is not None
        integers = stored[value.name].astype(np.int64)
        assert value.quant.zero == 0
        assert value.quant.scale == tuple(stored[f"{value.name}_scale"].astype(np.float64).tolist())
        found = integers_of(imported, value.name)
        if integers.ndim == 1:
            tolerance = np.abs(integers) * 2.0**-23
            assert (value.quant.low, value.quant.high) == (-(2**31), 2**31 - 1)
            assert (np.abs(found - integers) <= tolerance).all()
        else:
            layout = integers.transpose(0, 2, 3, 1) if integers.ndim == 4 else integers
            np.testing.assert_array_equal(found, layout)


@pytest.mark.parametrize("name", QDQ_MODELS)
def test_real_model_annotates_every_value(name: str) -> None:
    imported = load_model(shared_model(name))
    quants = quantised_of(imported)
    assert all(quants.values())
    assert imported.graph.inputs[0].quant == Quant((float(np.float32(2 / 255)),), 0)
    assert set(ops_of(imported)) == {"Conv", "Add", "Reduce", "Reshape", "Gemm"}
    notes = [line.split(" in ")[0] for line in imported.graph.notes]
    assert notes == ([f"{DEAD[name]} dead channels"] if DEAD[name] else [])


@pytest.mark.parametrize(("name", "scheme"), SCHEMES)
def test_schemes_apply_to_the_quantised_model_as_to_the_float_one(name: str, scheme: str) -> None:
    path = str(SHARED / "schemes" / f"{scheme}.toml")
    plan = resolve_update(load_model(shared_model(name)).graph, path)
    reference = resolve_update(load_model(shared_model(name.removesuffix("-qdq"))).graph, path)
    assert list(plan.updates.values()) == list(reference.updates.values())
    assert len(plan.updates) > 20
    assert {"fc_w", "fc_b"} <= set(plan.updates)
