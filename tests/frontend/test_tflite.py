"""Models of LiteRT (.tflite): every operator against LiteRT's reference kernels, on LiteRT's own inputs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.frontend import tflite_nets as nets
from tests.frontend.tflite_walk import Stored, stored_values, walk
from tinytrain_compile.driver.file_check.imported_values import ImportedValues
from tinytrain_compile.frontend import load_model
from tinytrain_compile.frontend.tflite import translated
from tinytrain_compile.ops import fixed_point as fx

CASES = {**nets.EXACT, **nets.NEAR}
TO_THE_BYTE = (
    *("conv", "dw", "dense", "logistic", "split", "concat", "slice", "strided", "reshape", "transpose", "pad", "pack"),
)
"""How results of operators begin that are equal whatever else the network has."""


def check(name: str, found: Mapping[str, np.ndarray], least: int) -> None:
    """No result is more than a step off, and those of exact operators are none."""
    assert len(found) >= least, sorted(found)
    for tensor, off in found.items():
        exact = name in nets.EXACT or tensor.startswith(TO_THE_BYTE)
        assert np.abs(off).max() <= (0 if exact else 1), f"{name}: {tensor} is {int(np.abs(off).max())} steps off"


@pytest.mark.parametrize("name", CASES)
def test_int8_is_what_litert_computes(name: str) -> None:
    recipe, shape = CASES[name], nets.SHAPES[name]
    data = nets.written(recipe, nets.measured(recipe, shape))
    proto, runner = translated("net.tflite", data), nets.opened(data)
    for seed in range(3):
        x = np.random.default_rng(seed).integers(-128, 128, shape).astype(np.int8)
        runner.set_tensor(runner.get_input_details()[0]["index"], x)
        runner.invoke()
        check(name, walk(proto, x, [stored_values(runner)]), least=2)


@pytest.mark.parametrize("rounds_once", [True, False])
def test_a_dense_layer_is_rounded_once(rounds_once: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Convolutions are rounded twice. A dense layer that is, too, is often a step off: this oracle sees it."""
    if not rounds_once:
        monkeypatch.setattr(fx, "requantise_once", fx.requantise)
    shape, size = (1, 24), 20_000

    def recipe(net: nets.Layers) -> nets.T:
        return net.dense(net.input(shape), size)

    data = nets.written(recipe, nets.measured(recipe, shape))
    runner, proto = nets.opened(data), translated("net.tflite", data)
    x = np.random.default_rng(0).integers(-128, 128, shape).astype(np.int8)
    runner.set_tensor(runner.get_input_details()[0]["index"], x)
    runner.invoke()
    off = walk(proto, x, [stored_values(runner)])["dense1"]
    assert off.size == size
    assert (np.count_nonzero(off) == 0) == rounds_once


@pytest.mark.parametrize("scale", [0.02, 0.05, 0.1, 0.25])
@pytest.mark.parametrize("op", ["LOGISTIC", "TANH"])
def test_every_stored_number(op: str, scale: float) -> None:
    """LOGISTIC is equal for all 256 integers; TANH, whose table has other roundings, within a step."""

    def recipe(net: nets.Layers) -> nets.T:
        return net.dense(net.op(op, [net.input((1, 256))], (1, 256)), 2)

    ranges = {"x": (-128 * scale, 127 * scale), f"{op.lower()}1": (0.0, 1.0), "dense2": (-9.0, 9.0)}
    data = nets.written(recipe, ranges)
    x, runner = np.arange(-128, 128).astype(np.int8)[None], nets.opened(data)
    runner.set_tensor(runner.get_input_details()[0]["index"], x)
    runner.invoke()
    off = walk(translated("net.tflite", data), x, [stored_values(runner)])[f"{op.lower()}1"]
    assert np.abs(off).max() <= (0 if op == "LOGISTIC" else 1)


@pytest.mark.parametrize("name", CASES)
def test_float32_is_what_litert_computes(name: str, tmp_path: Path) -> None:
    recipe, shape = CASES[name], nets.SHAPES[name]
    data = nets.written(recipe)
    (tmp_path / "net.tflite").write_bytes(data)
    imported = load_model(tmp_path / "net.tflite")
    ours = ImportedValues(imported, None, imported.graph)
    x = (nets.SPREAD * np.random.default_rng(0).standard_normal(shape)).astype(np.float32)
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


@pytest.mark.parametrize("name", ["conv relu", "spotter"])
def test_uint8_at_both_ends(name: str) -> None:
    recipe, shape = CASES[name], nets.SHAPES[name]
    data = nets.written(recipe, nets.measured(recipe, shape), io="uint8")
    x = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    runner = nets.opened(data)
    runner.set_tensor(runner.get_input_details()[0]["index"], x)
    runner.invoke()
    found = walk(translated("net.tflite", data), (x.astype(np.int16) - 128).astype(np.int8), [stored_values(runner)])
    assert "y_uint8" in found
    check(name, found, least=3)


# ---- rings -----------------------------------------------------------------------------------------------------------

WINDOWS = {"alexa": 149, "hey_jarvis": 149, "hey_mycroft": 179, "okay_nabu": 161}
FRAMES = 40
"""Features of a frame of the wake-word models, of which a step takes three."""


def wake_word(name: str) -> Path:
    import pymicro_wakeword

    return Path(pymicro_wakeword.__file__).parent / "models" / f"{name}.tflite"


def frames_of(proto: onnx.ModelProto) -> int:
    return proto.graph.input[0].type.tensor_type.shape.dim[1].dim_value


def listened(data: bytes, frames: np.ndarray, step: int = 3) -> list[dict[str, Stored]]:
    """What LiteRT stores in each step."""
    runner = nets.opened(data)
    place = runner.get_input_details()[0]["index"]
    steps: list[dict[str, Stored]] = []
    for at in range(0, len(frames) - step + 1, step):
        runner.set_tensor(place, frames[None, at : at + step])
        runner.invoke()
        steps.append(stored_values(runner))
    return steps


def heard_by_both(data: bytes, seed: int) -> dict[str, np.ndarray]:
    """Steps between us and LiteRT for every tensor of a wake word, on random frames."""
    proto = translated("word.tflite", data)
    window = frames_of(proto)
    frames = np.random.default_rng(seed).integers(-128, 128, (3 * (window // 3 + 9), FRAMES)).astype(np.int8)
    frames[30:60] = np.clip(frames[30:60] // 8 - 110, -128, 127)  # some that are nearly silent
    return walk(proto, frames[None, -window:], listened(data, frames))


@pytest.mark.parametrize("name", WINDOWS)
def test_wake_words_are_what_litert_hears(name: str) -> None:
    data = wake_word(name).read_bytes()
    assert frames_of(translated(f"{name}.tflite", data)) == WINDOWS[name]
    found = heard_by_both(data, 2)
    assert len(found) >= 12, sorted(found)
    assert {tensor: int(np.abs(off).max()) for tensor, off in found.items() if off.any()} == {}


@pytest.mark.parametrize(("recipe", "step", "window"), [(nets.streaming, 2, 17), (nets.late, 1, 6)])
def test_a_window_of_rings_is_what_litert_has_heard(recipe: nets.Recipe, step: int, window: int) -> None:
    """Branches that read different rows, some of them late: the step's output is that of the window."""
    data = nets.written(recipe, nets.measured(recipe, (1, step, 6)))
    proto = translated("net.tflite", data)
    assert frames_of(proto) == window
    oldest_counts = False
    for seed in range(6):
        frames = np.random.default_rng(seed).integers(-128, 128, (40, 6)).astype(np.int8)
        steps = listened(data, frames, step)
        found, theirs = walk(proto, frames[None, -window:], steps), steps[-1]
        assert len(found) >= 6
        for name, off in found.items():
            assert not np.any(off), name
        into_the_head = next(name for name, one in theirs.items() if name.startswith("reshape") and one.array.ndim == 2)
        moved = [frames.copy(), frames.copy()]
        moved[0][-window] ^= -128
        moved[1][:-window] ^= 64
        heard = [listened(data, one, step)[-1][into_the_head].array for one in moved]
        other, same = (np.array_equal(one, theirs[into_the_head].array) for one in heard)
        assert same, "nothing before the window counts"
        oldest_counts |= not other
    assert oldest_counts
