"""Inference on a stream (`--listen on`): byte for byte that of the window, and the calls where they may not stand."""

from __future__ import annotations

import ctypes
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest

import tinytrain_compile as tt
from testing.networks.models import Network
from tests.e2e import chain
from tests.emit.device import OK
from tests.emit.test_generated_c import needs_gcc
from tests.frontend.test_tflite import wake_word
from tests.frontend.tflite_nets import opened
from tests.parts.test_slices import Sliced
from tinytrain_compile.ir.kernels import KernelSet
from tinytrain_compile.twin import Instance

pytestmark = needs_gcc
ROWS, WIDTH, HOP = 41, 6, 3


def network(end: str = "flatten", pads: str = "0, 1, 0, 1") -> onnx.ModelProto:
    """A network of time (rows) by channels: strides of 3, two kernels side by side, rows left out at both ends."""
    net = Network("ear", f"float[1, 1, {ROWS}, {WIDTH}] x", "float[1, 4] y")
    x = net.relu(net.conv("first", "x", (8, 1, 5, 3), f"pads = [{pads}], strides = [3, 1]"))  # 13 rows
    long = net.relu(net.conv("long", x, (8, 1, 5, 1), "group = 8"))  # 9 rows
    for name, numbers in (("from", [2]), ("to", [11]), ("axis", [2])):
        net.table(name, numbers)
    short = net.node("short", f"short = Slice ({x}, from, to, axis)")  # of the 9 rows in the middle
    joined = net.node("joined", f"joined = Add ({long}, {short})")
    x = net.relu(net.conv("mix", joined, (6, 8, 1, 1), "group = 1"))
    if end == "flatten":
        x, inputs = net.node("flat", f"flat = Flatten ({x})"), 6 * 9 * WIDTH
    else:
        x = net.node("mean", f"mean = GlobalAveragePool ({x})")
        x, inputs = net.node("flat", f"flat = Flatten ({x})"), 6
    net.dense("y", x, inputs, 4)
    return net.model()


def samples(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    x = random.normal(size=(count, 1, ROWS, WIDTH)).astype(np.float32)
    return x, random.integers(0, 4, count)


def compiled(model: onnx.ModelProto | Path, quant: str, **options: object) -> tt.Compiled:
    x, y = samples(16)
    calib = {"calib": {"x": x, "y": y}} if quant == "int8" else {}
    return tt.compile(model, **{"listen": "on", "update": "all", "quant": quant, "verify": "none", **calib, **options})


@pytest.mark.parametrize("end", ["flatten", "mean"])
@pytest.mark.parametrize("quant", ["fp32", "int8"])
def test_stream_equals_window_to_the_byte(quant: str, end: str) -> None:
    made = compiled(network(end), quant)
    listening = made.project.summary.plan.listening
    assert listening is not None
    assert (listening.frames, listening.window) == (HOP, ROWS)
    twin = made.twin()
    stream = np.random.default_rng(7).normal(size=(40 * HOP, WIDTH)).astype(np.float32)
    given = _as_slot(twin, stream)

    def windows(rows: np.ndarray) -> np.ndarray:
        """Outputs of inference on the window that ends with each call, as far as it is whole."""
        ends = range(-(-ROWS // HOP) * HOP, len(rows) + 1, HOP)
        return twin.instance.infer(twin.as_inputs(np.stack([rows[end - ROWS : end][None] for end in ends])))

    first = -(-ROWS // HOP)
    heard = twin.instance.hear(given)
    assert np.array_equal(heard[first - 1 :], windows(stream)), "weights that do not change"
    twin.instance.reset()
    assert np.array_equal(twin.instance.hear(given), heard), "m_init empties the rings"

    x, y = samples(8, 3)
    for sample, label in zip(x, y, strict=True):
        twin.train_step(sample[None], np.asarray([label]), lr=0.1)
    late = twin.instance.hear(given)
    now = windows(np.concatenate([stream, stream]))[-len(late) :]
    assert not np.array_equal(now, windows(stream)[-len(now) :]), "windows across both ends"
    settled = listening.settle - 1
    assert np.array_equal(late[settled:], now[settled:])
    if quant == "fp32":  # in int8 the last old row may round to the same output
        assert not np.array_equal(late[settled - 1], now[settled - 1]), "no call earlier"

    twin.train_step(x[:1], y[:1], lr=0.5)
    twin.instance.rehear(given[:-HOP])
    assert np.array_equal(twin.instance.hear(given[-HOP:])[0], windows(stream)[-1]), "rings are filled at once"
    checkpoint = twin.instance.save()
    twin.instance.load(checkpoint)
    empty = twin.instance.hear(given)
    assert np.array_equal(empty[first - 1 :], windows(stream)), "m_load empties the rings"


@pytest.mark.parametrize("quant", ["fp32", "int8"])
def test_features_of_what_was_heard(quant: str) -> None:
    """The features of the stream are those of its last window, and a head learns from them."""
    twin = compiled(
        network(), quant, update="head", features="on", **({"head": "int8"} if quant == "int8" else {})
    ).twin()
    stream = np.random.default_rng(9).normal(size=(20 * HOP, WIDTH)).astype(np.float32)
    twin.instance.hear(_as_slot(twin, stream))
    heard = twin.instance.heard_features()
    window = stream[-ROWS:][None, None]
    assert np.array_equal(heard, twin.features(window)[0])
    before = twin.instance.infer(twin.as_inputs(window))
    twin.train_features(heard[None], np.asarray([2]), lr=0.1)
    assert not np.array_equal(twin.instance.infer(twin.as_inputs(window)), before)


@pytest.mark.parametrize("quant", ["fp32", "int8"])
def test_build_that_only_hears_learns_as_one_with_windows(quant: str) -> None:
    """--listen only: the same bytes of state, losses and outputs, and the stream goes on between."""
    head = {"head": "int8"} if quant == "int8" else {}
    whole, ear = (compiled(network(), quant, update="head", listen=listen, **head).twin() for listen in ("on", "only"))
    stream = np.random.default_rng(9).normal(size=(30 * HOP, WIDTH)).astype(np.float32)
    first, rest = np.split(_as_slot(ear, stream), 2)
    assert np.array_equal(ear.instance.hear(first), whole.instance.hear(first))
    x, y = samples(6, 4)
    for sample, label in zip(x, y, strict=True):
        losses = [twin.train_step(sample[None], np.asarray([label]), lr=0.1) for twin in (whole, ear)]
        assert losses[0] == losses[1]
    assert whole.instance.save() == ear.instance.save()
    assert np.array_equal(whole.predict(x), ear.predict(x))
    assert np.array_equal(ear.instance.hear(rest), whole.instance.hear(rest))
    ear.train_features(ear.features(x[:1]), y[:1])
    whole.train_step(x[:1], y[:1])
    assert whole.instance.save() == ear.instance.save()
    assert ear.instance.interface.arena_bytes < whole.instance.interface.arena_bytes


@pytest.mark.parametrize("options", [{"listen": "on", "features": "on"}, {"listen": "only"}])
def test_replay_holds_features_that_were_heard(options: dict[str, object]) -> None:
    """Training on what m_replay.h gives back is training on the windows in that order."""
    room = 4
    made = compiled(network(), "int8", update="head", head="int8", runtime=f"replay={room}", **options)
    ear, whole = made.twin(), compiled(network(), "int8", update="head", head="int8").twin()
    x, y = samples(room, 8)
    heard = ear.features(x)
    header = next(text for name, text in made.files.items() if name.endswith("_replay.h"))
    assert f"REPLAY_X_BYTES {heard.shape[1]}u" in header
    replay, memory = ctypes.create_string_buffer(256), ctypes.create_string_buffer(room * (heard.shape[1] + 8))
    call = partial(_replay, ear.instance)
    assert call("init", replay, memory, ctypes.c_size_t(len(memory)), ctypes.c_uint32(3)) == OK
    for features, label in zip(heard, y, strict=True):
        assert call("add", replay, features.ctypes.data_as(ctypes.c_void_p), ctypes.byref(ctypes.c_int32(label))) == OK
    drawn = set[int]()
    for _ in range(10):
        features, label = np.empty_like(heard[0]), ctypes.c_int32()
        assert call("draw", replay, features.ctypes.data_as(ctypes.c_void_p), ctypes.byref(label)) == OK
        (index,) = np.flatnonzero((heard == features).all(1))
        assert label.value == y[index]
        drawn.add(int(index))
        ear.train_features(features[None], y[index : index + 1], lr=0.1)
        whole.train_step(x[index : index + 1], y[index : index + 1], lr=0.1)
    assert len(drawn) > 2
    assert ear.instance.save() == whole.instance.save()


def _replay(instance: Instance, name: str, *arguments: object) -> int:
    return int(instance._call(f"replay_{name}")(*arguments))  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize(
    ("quant", "options"),
    [
        ("fp32", {"update": "head", "listen": "only", "batch": 2}),
        ("int8", {"update": "head", "head": "int8", "listen": "only", "slices": "on"}),
        ("int8", {"inference_only": True}),
        ("int8", {"inference_only": True, "listen": "only"}),
        ("fp32", {"inference_only": True, "listen": "only"}),
    ],
)
def test_check_program_streams_every_window(quant: str, options: dict[str, object]) -> None:
    """It must agree with the reference, which knows only windows: outputs, losses, state, and a loaded state."""
    made = compiled(network("mean" if "slices" in options else "flatten"), quant, verify="host", **options)
    assert made.project.summary.verify.result == "pass"
    header = next(text for name, text in made.files.items() if name.endswith("_train.h"))
    assert ("_infer(" in header) == (options.get("listen") != "only" or "update" in options)
    twin, (x, _) = made.twin(), samples(2)
    output = twin.predict(x)
    late = np.concatenate([np.zeros((-ROWS % HOP, WIDTH), np.float32), x[0, 0]])
    assert np.array_equal(twin.instance.hear(_as_slot(twin, late))[-1], output[0].ravel())


def test_head_of_a_wake_word_has_room_in_8_kb() -> None:
    made = tt.compile(
        wake_word("hey_jarvis"), update="head", head="int8", listen="only", target="cortex-m4", verify="none"
    )
    assert made.project.bundle.interface.arena_bytes <= 8000
    assert made.project.summary.plan.listening is not None


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"update": "all"}, "holds no value that all of the trained part"),
        ({"update": "auto"}, "name it: --update head"),
        ({"update": "head", "features": "on"}, "leave out --features"),
    ],
)
def test_training_that_needs_windows_is_refused(options: dict[str, object], what: str) -> None:
    with pytest.raises(tt.CompileError, match=rf"--listen only.*{what}"):
        compiled(network(), "fp32", listen="only", **options)


@pytest.mark.parametrize("name", ["alexa", "hey_jarvis", "hey_mycroft", "okay_nabu"])
def test_wake_words_hear_what_litert_hears(name: str) -> None:
    """Call by call from the first frames on, with rings that LiteRT itself keeps; rounding is plain below a head."""
    twin = tt.compile(wake_word(name), update="head", head="int8", listen="on", verify="none").twin()
    rows = np.random.default_rng(3).integers(-128, 128, (240, 40)).astype(np.int8)
    heard = np.clip(np.rint(twin.instance.hear(rows)[:, 0] * 256), 0, 255)  # LOGISTIC and QUANTIZE of the file
    step = opened(wake_word(name).read_bytes())
    (given,), (out,) = step.get_input_details(), step.get_output_details()
    for call, ours in enumerate(heard):
        step.set_tensor(given["index"], rows[3 * call : 3 * call + 3].reshape(1, 3, 40))
        step.invoke()
        assert step.get_tensor(out["index"]).item() == ours, f"call {call}"


class Ear(Sliced):
    """A device that hears while a step is open."""

    def hear(self, rows: np.ndarray) -> bytes:
        out, due = ctypes.create_string_buffer(4 * self.interface.output_elements), ctypes.c_int()
        data = rows.ctypes.data_as(ctypes.c_void_p)
        assert self._call("hear", data, ctypes.c_size_t(len(rows)), out, ctypes.byref(due)) == OK
        assert due.value == 1
        return out.raw


def test_stream_while_a_step_is_open(tmp_path: Path) -> None:
    """m_hear between two slices leaves the bytes of the step as they are."""
    model = tmp_path / "net.onnx"
    onnx.save(network(), model)
    made = compiled(model, "int8", slices="on")
    rows = _as_slot(made.twin(), samples(1, 5)[0].reshape(ROWS, WIDTH))
    x, y = np.ascontiguousarray(rows), np.asarray([1], np.int32)
    summary = made.project.summary
    project = chain.Project(summary.train, summary.plan, KernelSet((), {}), made.project.bundle)
    whole, device = (Ear(project, tmp_path / name) for name in ("whole", "hears"))
    loss = whole.train(x, y)
    device.put(x)
    assert device.begin() == OK
    found, done, heard = float("nan"), 0, set[bytes]()
    while not done:
        heard.add(device.hear(x[:HOP]))
        _, known, done = device.slice(y, 1)
        found = known or found
    assert found == loss
    assert device.save() == whole.save()
    assert len(heard) > 3, "the rings move on"


def test_calls_that_may_not_be() -> None:
    twin = compiled(network(), "fp32").twin()
    given = np.zeros((2 * HOP, WIDTH), np.float32)
    for wrong in (given[: HOP - 1], given[: HOP + 1], given[:0]):
        with pytest.raises(tt.CompileError, match="does not know"):
            twin.instance.rehear(wrong)
    before = twin.instance.hear(given)
    given[1, 1] = np.nan
    with pytest.raises(tt.CompileError, match="NaN"):
        twin.instance.rehear(given)
    given[1, 1] = 0
    twin.instance.reset()
    assert np.array_equal(twin.instance.hear(given), before)


def _as_slot(twin: tt.Twin, stream: np.ndarray) -> np.ndarray:
    """Rows of the stream in the type of the input slot: as windows of it are given."""
    rows = -(-len(stream) // ROWS) * ROWS
    padded = np.concatenate([stream, np.zeros((rows - len(stream), WIDTH), np.float32)])
    return np.asarray(twin.as_inputs(padded.reshape(-1, 1, ROWS, WIDTH))).reshape(rows, WIDTH)[: len(stream)]


def test_padding_in_time_is_refused() -> None:
    with pytest.raises(tt.CompileError, match=r"--listen on.*first/Conv has padding in time"):
        compiled(network(pads="1, 1, 1, 1"), "fp32")
