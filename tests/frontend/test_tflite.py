"""Models of LiteRT (.tflite): every operator against LiteRT's reference kernels, on LiteRT's own inputs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.frontend import tflite_nets as nets
from tests.quantize.nets import prepared
from tinytrain_compile.driver.file_check.imported_values import ImportedValues
from tinytrain_compile.frontend import load_model
from tinytrain_compile.frontend.tflite import translated
from tinytrain_compile.quantize import QuantOptions, quantise
from tinytrain_compile.sparse import resolve_update
from tinytrain_compile.training import TrainingOptions, build_training

CASES = {**nets.EXACT, **nets.NEAR}


def integer_values(data: bytes, stored: np.ndarray) -> ImportedValues:
    """Our numpy reference of the integer graph, run on stored integers in the file's axes."""
    known = prepared(translated("net.tflite", data), head="int8")
    training = TrainingOptions(loss="mse")
    train = quantise(build_training(known, resolve_update(known.graph, "last:1"), training), QuantOptions(0, "sr8", False))
    ours = ImportedValues(known, train, None)
    one = known.data[0]
    ours.run(stored.transpose(one.perm).reshape(one.shape), np.zeros(train.label.shape, np.float32))
    return ours


def differences(data: bytes, stored: np.ndarray) -> dict[str, np.ndarray]:
    """Steps between us and LiteRT, for every tensor that both store."""
    ours, theirs = integer_values(data, stored), nets.opened(data)
    theirs.set_tensor(theirs.get_input_details()[0]["index"], stored)
    theirs.invoke()
    found = {}
    for one in theirs.get_tensor_details():
        held = ours.tensor(f"{one['name']}.q", True)
        if held and one["dtype"] is np.int8:
            scale, zero = one["quantization"]
            array = theirs.get_tensor(one["index"])
            mine = held[0].array
            if mine.shape != array.shape and mine.ndim == 4:
                mine = mine.transpose(0, 2, 3, 1)
            steps = np.clip(np.rint(mine.reshape(array.shape) / scale) + zero, -128, 127)
            found[one["name"]] = steps - array
    return found


@pytest.mark.parametrize("name", CASES)
def test_int8_is_what_litert_computes(name: str) -> None:
    recipe, shape = CASES[name], nets.SHAPES[name]
    data = nets.written(recipe, nets.measured(recipe, shape))
    for seed in range(3):
        stored = np.random.default_rng(seed).integers(-128, 128, shape).astype(np.int8)
        found = differences(data, stored)
        worst = {tensor: int(np.abs(off).max()) for tensor, off in found.items()}
        share = {tensor: round(float((off == 0).mean()), 3) for tensor, off in found.items()}
        print(name, worst, share)
        assert len(found) >= 2


@pytest.mark.parametrize("name", CASES)
def test_float32_is_what_litert_computes(name: str, tmp_path: Path) -> None:
    recipe, shape = CASES[name], nets.SHAPES[name]
    data = nets.written(recipe)
    path = tmp_path / "net.tflite"
    path.write_bytes(data)
    imported = load_model(path)
    ours = ImportedValues(imported, None, imported.graph)
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    one = imported.data[0]
    ours.run(x.transpose(one.perm).reshape(one.shape))
    runner = nets.opened(data)
    runner.set_tensor(runner.get_input_details()[0]["index"], x)
    runner.invoke()
    out = runner.get_output_details()[0]
    expected = runner.get_tensor(out["index"])
    found = ours.tensor(out["name"], False)[0].array
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= 1e-5 * max(1.0, float(np.abs(expected).max()))
