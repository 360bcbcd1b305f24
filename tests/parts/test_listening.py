"""Inference on a stream (`--listen on`): byte for byte that of the window, and the calls where they may not stand."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import tinytrain_compile as tt
from testing.networks.models import Network
from testing.runs import run_steps
from tests.e2e import chain
from tests.e2e.marks import needs_qemu
from tests.emit.device import OK
from tests.emit.test_generated_c import build, needs_gcc
from tests.emit.test_generated_c import call as done_by
from tests.frontend.test_tflite import wake_word
from tests.frontend.tflite_nets import opened
from tests.parts.test_slices import Sliced
from tinytrain_compile.data.samples import random_samples
from tinytrain_compile.ir.kernels import KernelSet
from tinytrain_compile.ir.stages import Listening
from tinytrain_compile.reference.instance import ReferenceInstance
from tinytrain_compile.reference.stream import Stream, StreamReference
from tinytrain_compile.reference.trainer import Trainer
from tinytrain_compile.target.loader import load_target
from tinytrain_compile.twin import Instance
from tinytrain_compile.verify.compare import DTYPES

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
    heard = twin.hear_features()
    assert twin.hear_settling() == 0
    window = stream[-ROWS:][None, None]
    assert np.array_equal(heard, twin.features(window)[0])
    before = twin.instance.infer(twin.as_inputs(window))
    twin.train_features(heard[None], np.asarray([2]), lr=0.1)
    assert not np.array_equal(twin.instance.infer(twin.as_inputs(window)), before)
    assert twin.hear_settling() == 0, "what the head reads has not changed"


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
    return int(instance.function(f"replay_{name}")(*arguments))


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

    def settling(self) -> int:
        return self._call("hear_settling")

    def state(self) -> dict[str, np.ndarray]:
        """Every tensor of the state as it lies in the arena now, flat."""
        arena, found = int(self._model.value or 0), dict[str, np.ndarray]()
        for slot in self.interface.state:
            data = ctypes.string_at(arena + slot.offset, slot.size_bytes)
            found[slot.name] = np.frombuffer(data, DTYPES[slot.dtype])
        return found


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


@pytest.mark.parametrize("reference", [False, True], ids=["C", "numpy"])
@pytest.mark.parametrize("quant", ["fp32", "int8"])
def test_twin_hears(quant: str, reference: bool) -> None:
    """Rows of real numbers in the file's layout, one call or several; the calls until they equal their window."""
    made = compiled(network(), quant)
    listening = made.project.summary.plan.listening
    assert listening is not None
    twin = made.twin()
    if reference:
        instance = ReferenceInstance(made.project.summary.train, made.project.bundle.interface, listening)
        twin = tt.Twin(instance, made.project.model, made.project.summary.train)
    stream = np.random.default_rng(1).normal(size=(1, 20 * HOP, WIDTH)).astype(np.float32)
    whole = listening.calls
    assert twin.hear_settling() == whole == 14
    outputs, due = twin.hear(stream)
    assert (outputs.shape, due.all(), due.shape) == ((20, 4), True, (20,))
    assert twin.hear_settling() == 0
    same = np.allclose if reference and quant == "fp32" else np.array_equal  # numpy adds rows in another order
    assert same(outputs[-1:], twin.predict(stream[None, :, -ROWS:]))
    twin.reset()
    apart = [twin.hear(stream[:, at : at + HOP])[0][0] for at in range(0, 6 * HOP, HOP)]
    assert np.array_equal(apart, outputs[:6]), "one call after the other"
    x, y = samples(1, 3)
    twin.train_step(x, y, lr=0.5)
    assert twin.hear_settling() == max(listening.settle, whole - 6), "calls of the update, calls of the first window"
    twin.rehear(stream)
    assert twin.hear_settling() == 0
    window = np.concatenate([stream[:, HOP - ROWS :], stream[:, :HOP]], axis=1)
    assert same(twin.hear(stream[:, :HOP])[0], twin.predict(window[None]))
    weights = twin.state_dict()
    twin.load_state_dict(weights)
    assert twin.hear_settling() == whole, "rings are emptied as by m_load"
    for wrong in (stream[:, : HOP - 1], stream[:, :0], stream[0], stream[None]):
        with pytest.raises(tt.CompileError, match=r"E0105.*a call takes \(1, 3, 6\)"):
            twin.hear(wrong)
    with pytest.raises(tt.CompileError, match=r"E0105.*NaN"):
        twin.hear(np.full_like(stream, np.nan))


def test_twin_that_does_not_listen() -> None:
    twin = compiled(network(), "fp32", listen="off").twin()
    with pytest.raises(tt.CompileError, match=r"E0113.*compile with listen='on'"):
        twin.hear(np.zeros((1, HOP, WIDTH), np.float32))


def _as_slot(twin: tt.Twin, stream: np.ndarray) -> np.ndarray:
    """Rows of the stream in the type of the input slot: as windows of it are given."""
    rows = -(-len(stream) // ROWS) * ROWS
    padded = np.concatenate([stream, np.zeros((rows - len(stream), WIDTH), np.float32)])
    return np.asarray(twin.as_inputs(padded.reshape(-1, 1, ROWS, WIDTH))).reshape(rows, WIDTH)[: len(stream)]


def checked(net: Network, quant: str = "fp32", update: str = "all") -> Listening:
    """The pass of a network, each call of which equals numpy, and the last one the window."""
    model = net.model()
    shape = [each.dim_value for each in model.graph.input[0].type.tensor_type.shape.dim]
    x = np.random.default_rng(0).normal(size=(8, *shape[1:])).astype(np.float32)
    calib = {"calib": {"x": x}} if quant == "int8" else {}
    made = tt.compile(model, **{"listen": "on", "update": update, "quant": quant, "verify": "host", **calib})
    listening = made.project.summary.plan.listening
    assert listening is not None
    return listening


def test_maps_of_a_node_move_together() -> None:
    """A 1x1 convolution with two numbers in a row is computed whole: so is what reads it beside new rows."""
    net = Network("pair", "float[1, 1, 9, 2] x", "float[1, 4] y")
    net.weight("long", 2, 1, 2, 1)
    net.weight("short", 2, 1, 1, 1)
    net.node("a", "a = Conv (x, long)")
    net.node("b", "b = Conv (x, short)")
    for name, numbers in (("from", [1]), ("to", [9]), ("axis", [2])):
        net.table(name, numbers)
    net.node("c", "c = Slice (b, from, to, axis)")
    net.node("m", "m = Mul (a, c)")
    net.dense("y", net.node("flat", "flat = Flatten (m)"), 32, 4)
    listening = checked(net)
    (product,) = (node for node in listening.graph.nodes if node.op == "Mul")
    assert {value.shape for value in product.inputs} == {(1, 8, 2, 2)}


def test_calls_after_an_update_do_not_count_old_rows_of_the_input() -> None:
    """The rows of a map depend on the weights of their own call, however many rows of the input they read."""
    net = Network("far", "float[1, 1, 20, 4] x", "float[1, 4] y")
    x = net.relu(net.conv("first", "x", (4, 1, 9, 1), "group = 1"))  # 12 rows, one in a call
    net.dense("y", net.node("flat", f"flat = Flatten ({x})"), 4 * 12 * 4, 4)
    assert checked(net).settle == 12


def test_weights_of_a_signal_are_no_features() -> None:
    """A frozen weight is seen upright; like a constant, it has no memory that a call could keep."""
    net = Network("signal", "float[1, 1, 20] x", "float[1, 4] y")
    x = "x"
    for name, shape in (("first", (3, 1, 9)), ("second", (4, 3, 1))):
        weights = net.weight(f"{name}_weight", *shape), net.near(f"{name}_bias", 0.0, 0.1, shape[0])
        x = net.relu(net.node(name, f"{name} = Conv ({', '.join((x, *weights))})"))
    net.dense("y", net.node("flat", f"flat = Flatten ({x})"), 4 * 12, 4)
    assert checked(net, update="bias").settle == 12


@pytest.mark.parametrize("quant", ["fp32", "int8"])
def test_operators_on_single_numbers_stay_rows(quant: str) -> None:
    """In int8 a Tanh is computed in real numbers, whose operators have no rows in streams of a step."""
    net = Network("tanh", "float[1, 1, 20, 4] x", "float[1, 4] y")
    x = net.node("tanh", f"tanh = Tanh ({net.conv('first', 'x', (4, 1, 9, 1), 'group = 1')})")
    x = net.conv("last", x, (4, 4, 12, 4), "group = 1")
    net.dense("y", net.node("flat", f"flat = Flatten ({x})"), 4, 4)
    (node,) = (node for node in checked(net, quant).graph.nodes if node.op == "Tanh")
    assert node.outputs[0].shape == (1, 1, 4, 4)


@needs_qemu
@pytest.mark.parametrize("quant", ["fp32", "int8"])
def test_all_cores_hear_the_same(quant: str, tmp_path: Path) -> None:
    """From empty rings on, and with rings of older weights; float32 on cores that fuse products alike."""
    found = dict[bool, set[bytes]]()
    for core in ("cortex-m0plus", "cortex-m3", "cortex-m4", "cortex-m7", "cortex-m33", "cortex-m55"):
        target = load_target(core)
        made = compiled(network("mean"), quant, target=core).project
        given = random_samples(made.summary.train, 2, 0)
        for mode in ("qemu", "host") if core in ("cortex-m3", "cortex-m4") else ("qemu",):
            run = run_steps(made.bundle, target, given, 2, None, 1, tmp_path / f"{core} {mode}", mode)  # type: ignore[arg-type]
            assert run.status == "ok"
            assert [len(heard) for heard in run.heard] == [14, 8]
            found.setdefault(target.features.fma or quant == "int8", set()).add(run.heard_all.tobytes())
    assert {fma: len(heard) for fma, heard in found.items()} == ({True: 1} if quant == "int8" else {True: 1, False: 1})


def test_padding_in_time_is_refused() -> None:
    with pytest.raises(tt.CompileError, match=r"--listen on.*first/Conv has padding in time"):
        compiled(network(pads="1, 1, 1, 1"), "fp32")


def _each_alone(call: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    return lambda reference, states: [call(reference, [state])[0] for state in states]


@pytest.mark.parametrize("quant", ["fp32", "int8"])
def test_each_call_is_compared_with_numpy(quant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reference whose rings begin with ones differs in the first call; one that empties them, in the first call after
    training."""
    model = network()
    assert compiled(model, quant, verify="host").project.summary.verify.result == "pass"

    reset = Stream.reset

    def ones(stream: Stream) -> None:
        reset(stream)
        graph = stream.listening.graph
        stream.rings = {ring.name: graph.constants[ring.name] + 1 for ring in graph.state}

    with monkeypatch.context() as patch:
        patch.setattr(Stream, "reset", ones)
        with pytest.raises(tt.CompileError, match=r"E0601.*output of m_hear, call 0 before training"):
            compiled(model, quant, verify="host")
    for call in (StreamReference.heard, StreamReference.rounded):
        monkeypatch.setattr(StreamReference, call.__name__, _each_alone(call))
    with pytest.raises(tt.CompileError, match=r"E0601.*output of m_hear, call 0 after training"):
        compiled(model, quant, verify="host")


def test_weights_of_the_moment_in_an_open_step(tmp_path: Path) -> None:
    """After each slice, m_hear reads half-done updates, too: the reference gives the same from the state of then."""
    made = compiled(network(), "int8", slices="on", name="net")
    summary = made.project.summary
    project = chain.Project(summary.train, summary.plan, KernelSet((), {}), made.project.bundle)
    device, listening = Ear(project, tmp_path), summary.plan.listening
    assert listening is not None
    x, y = _as_slot(made.twin(), samples(1, 5)[0].reshape(ROWS, WIDTH)), np.asarray([1], np.int32)
    stream = Stream(listening, Trainer(summary.train).run_nodes)
    shapes = {value.name: value.shape for value in summary.train.graph.state}

    def state() -> dict[str, np.ndarray]:
        return {name: array.reshape(shapes[name]) for name, array in device.state().items()}

    def hear() -> None:
        expected = stream.hear(x[:HOP], state()).astype(np.float32)
        assert expected.tobytes() == device.hear(x[:HOP])

    for _ in range(listening.calls):
        hear()
    device.put(x)
    assert device.begin() == OK
    before, changes, done = state(), 0, 0
    while not done:
        assert device.settling() == (listening.settle if changes else 0)
        hear()
        _, _, done = device.slice(y, 1)
        changed = any(not np.array_equal(array, before[name]) for name, array in state().items())
        changes += changed
    assert changes > 5, "updates are done in parts"


def test_the_program_to_copy_hears_once_the_rings_have_settled(tmp_path: Path) -> None:
    made = compiled(network(), "int8", name="net", verify="none")
    made.save(tmp_path / "out")
    sources = [path.name for path in (tmp_path / "out").glob("*.c")]
    build(["gcc", "-std=c11", "-I.", *sources, "example/main.c", "-lm", "-o", "run"], tmp_path / "out")
    done = done_by([tmp_path / "out" / "run"], tmp_path)
    listening = made.project.summary.plan.listening
    assert listening is not None
    assert done.returncode == 0
    assert done.stdout.count("heard ") == listening.window - listening.calls + 1
