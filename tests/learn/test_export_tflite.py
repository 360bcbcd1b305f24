"""`export` of .tflite files: LiteRT runs what was written, and computes what the device's integers say."""

from __future__ import annotations

import struct
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import tinytrain_compile as tt
from tests.e2e.command import run
from tests.frontend import tflite_nets as nets
from tests.frontend.test_tflite import FRAMES, WINDOWS, heard_by_both, listened, wake_word
from tinytrain_compile.cli.python_options import options_from
from tinytrain_compile.data.samples import in_slots, random_samples
from tinytrain_compile.errors import CompileError
from tinytrain_compile.frontend.tflite.reader import parse, places
from tinytrain_compile.frontend.tflite.rewrite import with_constants
from tinytrain_compile.ir.types import Array
from tinytrain_compile.learn.export import Exported, judged_file
from tinytrain_compile.ops.int8.pointwise import plainly_rounded
from tinytrain_compile.ops.interpreter import run_nodes


def learned(
    path: Path, steps: int = 12, rate: float = 0.02, ones: bool = False, **options: str
) -> tuple[Exported, tt.Compiled, dict[str, Array]]:
    """The file after some steps on random samples, and the integers that the device held. ones: all labels are 1."""
    compiled = tt.compile(path, verify="none", **options)
    train, face = compiled.project.summary.train, compiled.project.bundle.interface
    data = in_slots(face, random_samples(train, steps, 5))
    if ones:
        data.y[...] = 1
    with compiled.twin() as twin:
        twin.instance.set_rate(rate)
        for i in range(steps):
            twin.instance.train(data.x[i : i + 1], data.y[i : i + 1])
        raw = {name: np.array(array) for name, array in twin.state_dict(raw=True).items()}
        done = judged_file(compiled.project, twin, options_from(path, options), path.with_name("new.tflite"))
    return done, compiled, raw


def of_the_device(compiled: tt.Compiled, raw: dict[str, Array], x: Array) -> Array:
    """The output's integers by the numpy reference, rounded plainly. x: int8, in the axes of the file."""
    train, one = compiled.project.summary.train, compiled.project.model.data[0]
    graph = train.graph
    needed = graph.ancestors(graph.outputs)
    state = {value.name: raw[value.name].reshape(value.shape) for value in graph.state if value.name in raw}
    known = {**graph.constants, **state, graph.inputs[0].name: x.transpose(one.perm).reshape(one.shape)}
    nodes = [plainly_rounded(node) for node in graph.nodes if node.name in needed]
    return run_nodes(nodes, known, train.integer)[graph.outputs[0].name]


def by_litert(data: bytes, x: Array) -> Array:
    runner = nets.opened(data)
    runner.set_tensor(runner.get_input_details()[0]["index"], x)
    runner.invoke()
    return runner.get_tensor(runner.get_output_details()[0]["index"])


def integers(real: Array, data: bytes) -> Array:
    """Real numbers of the output as the file stores them."""
    one = nets.opened(data).get_output_details()[0]
    (scale, zero), limits = one["quantization"], np.iinfo(one["dtype"])
    return np.clip(np.rint(real / np.float64(np.float32(scale))) + zero, limits.min, limits.max).astype(one["dtype"])


def exact(net: nets.Layers) -> nets.T:
    """Operators whose integers are LiteRT's to the byte, two equal weights and two zero biases among them."""
    x = net.conv(net.input((1, 8, 8, 3)), 6, 3, 2, act="RELU")
    x = net.conv(x, 6, depthwise=True, act="RELU")
    x = net.conv(net.conv(x, 6, 1, act="RELU"), 4, 1)
    return net.op("LOGISTIC", [net.reshape(net.pool(x, True, 4, 4), (1, 4))], (1, 4))


EXACT_SHAPE = (1, 8, 8, 3)


@pytest.mark.parametrize("io", ["int8", "uint8"])
def test_litert_computes_what_the_device_has_learned(io: str, tmp_path: Path) -> None:
    path = tmp_path / "net.tflite"
    path.write_bytes(nets.written(exact, nets.measured(exact, EXACT_SHAPE), io))
    done, compiled, raw = learned(path, update="all", head="int8", loss="bce")
    assert len(done.tensors) == 8
    assert min(done.tensors.values()) > 0
    differ = 0
    for seed in range(20):
        x = np.random.default_rng(seed).integers(-128, 128, EXACT_SHAPE).astype(np.int8)
        given = x if io == "int8" else (x.astype(np.int16) + 128).astype(np.uint8)
        theirs = by_litert(done.file.model, given)
        assert np.array_equal(integers(of_the_device(compiled, raw, x), done.file.model), theirs)
        differ += int((theirs != by_litert(path.read_bytes(), given)).sum())
    assert differ > 20, "training has changed what the file computes"


def sharing(names: Sequence[str], ranges: nets.Ranges | None) -> bytes:
    """The network `exact`, of which some tensors are zeros of one buffer."""
    made = nets.writer(exact, ranges)
    tensors = made.graphs[0].tensors
    places = [k for k, one in enumerate(tensors) if one[0] in names]
    buffer = tensors[places[0]][-1]
    for k in places:
        tensors[k] = (*tensors[k][:-1], buffer)
    made.change_buffer(buffer, lambda old: bytes(len(old)))
    return made.data()


@pytest.mark.parametrize("kind", ["int8", "float32"])
def test_tensors_that_share_a_buffer_get_one_each(kind: str, tmp_path: Path) -> None:
    names = ("conv1/b", "dw2/b", "conv3/b")
    ranges = nets.measured(exact, EXACT_SHAPE)
    path = tmp_path / "net.tflite"
    path.write_bytes(sharing(names, ranges if kind == "int8" else None))
    old = parse("old", path.read_bytes()).subgraphs[0]
    done, compiled, raw = learned(path, update="all", loss="bce", **({"head": "int8"} if kind == "int8" else {}))
    new = parse("new", done.file.model).subgraphs[0]
    first, second = ({one.name: one for one in graph.tensors} for graph in (old, new))
    assert all(not first[name].data.any() for name in names)
    held = [second[name].data for name in names]
    assert all(array.any() for array in held)
    assert not np.array_equal(held[0], held[1])
    assert {*done.tensors} >= {*names}
    for name, tensor in first.items():
        if tensor.data is not None and name not in done.tensors:
            assert np.array_equal(tensor.data, second[name].data)
    assert old.operators == new.operators or [vars(o) for o in old.operators] == [vars(o) for o in new.operators]
    x = np.random.default_rng(0).integers(-128, 128, EXACT_SHAPE).astype(np.int8)
    if kind == "int8":
        theirs = by_litert(done.file.model, x)
        assert np.array_equal(integers(of_the_device(compiled, raw, x), done.file.model), theirs)


def test_equal_weights_of_one_buffer_are_not_tied(tmp_path: Path) -> None:
    """Not even under names that PyTorch's exporter makes up."""
    made = nets.writer(lambda net: net.conv(net.conv(net.input((1, 6, 6, 4)), 4, 3), 4, 3))
    tensors = made.graphs[0].tensors
    (first, buffer), (second, _) = ((k, one[-1]) for k, one in enumerate(tensors) if one[0].endswith("/w"))
    for k, name in ((first, "conv1/w"), (second, "onnx::Conv_13")):
        tensors[k] = (name, *tensors[k][1:-1], buffer)
    path = tmp_path / "net.tflite"
    path.write_bytes(made.data())
    done, _, _ = learned(path, update="all", loss="mse")
    assert {"conv1/w", "onnx::Conv_13"} <= {*done.tensors}
    held = {one.name: one.data for one in parse("new", done.file.model).subgraphs[0].tensors}
    assert not np.array_equal(held["conv1/w"], held["onnx::Conv_13"])


def test_float16_stays(tmp_path: Path) -> None:
    """Weights that DEQUANTIZE widens are written as float16 again."""
    net = nets.Layers()
    x = net.input((1, 24))
    half = net.file.tensor("half", (5, 24), "float16", data=net.random.standard_normal((5, 24)).astype(np.float16))
    wide = net.file.tensor("wide", (5, 24), "float32")
    net.file.operator("DEQUANTIZE", [half], [wide], "Dequantize")
    y = net.made("y", (1, 5))
    net.file.operator("FULLY_CONNECTED", [x.index, wide], [y.index], "FullyConnected", FusedActivationFunction=0)
    net.finish(y)
    path = tmp_path / "net.tflite"
    path.write_bytes(net.file.data())
    done, _, raw = learned(path, update="all", loss="mse")
    assert done.tensors == {"half": 120}
    assert done.agreement.litert is not None and done.agreement.litert < 1e-5
    assert any("rounded to float16" in note for note in done.notes)
    held = {one.name: one.data for one in parse("new", done.file.model).subgraphs[0].tensors}
    (state,) = (array for array in raw.values() if array.size == 120)
    assert held["half"].dtype == np.float16
    assert np.array_equal(held["half"], state.reshape(5, 24).astype(np.float16))


def test_data_of_new_buffers_lie_as_kernels_want_them() -> None:
    data = sharing(("conv1/b", "dw2/b", "conv3/b"), nets.measured(exact, EXACT_SHAPE))
    fresh = {name: np.arange(6, dtype=np.int32) + k for k, name in enumerate(("conv1/b", "conv3/b"))}
    made = with_constants("net", data, fresh)
    assert made.endswith(data[-64:]) or made.rstrip(b"\0").endswith(data[-64:].rstrip(b"\0"))
    held = places(made)
    assert all(place.start % 16 == 0 and place.alone for name, place in held.items() if name in fresh)
    old, new = (parse("net", one).subgraphs[0].tensors for one in (data, made))
    for one, other in zip(old, new, strict=True):
        wanted = fresh.get(one.name, one.data)
        assert (wanted is None and other.data is None) or np.array_equal(wanted, other.data)
    again = with_constants("net", made, {"conv1/b": np.full(6, 9, np.int32)})
    assert len(again) == len(made), "a buffer of its own is written in place"
    with pytest.raises(CompileError, match=r"E0112.*no such constant"):
        with_constants("net", data, {"nothing": np.zeros(1)})


def test_a_root_that_leads_out_of_the_file_is_one_error() -> None:
    """The reader does not look at what a root has beside the graph; the new root copies it."""
    data = bytearray(sharing(("conv1/b", "dw2/b", "conv3/b"), nets.measured(exact, EXACT_SHAPE)))
    root = struct.unpack_from("<I", data)[0]
    table = root - struct.unpack_from("<i", data, root)[0]
    description = 3
    struct.pack_into("<H", data, table + 4 + 2 * description, 0xFFF0)
    parse("net", bytes(data))
    with pytest.raises(CompileError, match="E0214"):
        with_constants("net", bytes(data), {"conv1/b": np.arange(6, dtype=np.int32)})


def test_numbers_beyond_the_scale_are_its_largest(tmp_path: Path) -> None:
    """A float32 head has no scale; the file keeps its own."""
    path = tmp_path / "net.tflite"
    path.write_bytes(nets.written(nets.EXACT["dense"], nets.measured(nets.EXACT["dense"], (1, 24))))
    done, _, raw = learned(path, 30, 0.3, update="all", loss="mse")
    (note,) = (note for note in done.notes if "beyond its scale" in note)
    assert note.startswith(("dense1/w", "dense2/w"))
    held = {one.name: one for one in parse("new", done.file.model).subgraphs[0].tensors}
    tensor = held[note.partition(":")[0]]
    (state,) = (array for name, array in raw.items() if array.size == tensor.data.size and array.dtype == np.float32)
    count = np.rint(state.reshape(tensor.shape) / np.float64(tensor.scales.scale[0]))
    assert np.array_equal(np.clip(count, -127, 127), tensor.data)
    assert f"{int((np.abs(count) > 127).sum())} number" in note


def test_a_channel_that_has_outgrown_its_scale(tmp_path: Path) -> None:
    """--rescale on widens it on the device; the file keeps its scale, and LiteRT the arithmetic of that."""
    path = tmp_path / "net.tflite"
    path.write_bytes(nets.written(exact, nets.measured(exact, EXACT_SHAPE)))
    done, _, _ = learned(path, 40, 0.5, update="all", head="int8", loss="mse", rescale="on")
    assert any("beyond its scale" in note for note in done.notes)
    old, new = (parse("net", data).subgraphs[0].tensors for data in (path.read_bytes(), done.file.model))
    for one, other in zip(old, new, strict=True):
        assert (one.scales is None) == (other.scales is None)
        assert one.scales is None or one.scales.same(other.scales)
    assert done.agreement.litert is not None


def test_without_litert_a_note_says_what_was_not_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "net.tflite"
    path.write_bytes(nets.written(exact, nets.measured(exact, EXACT_SHAPE)))
    monkeypatch.setitem(sys.modules, "ai_edge_litert", None)
    done, _, _ = learned(path, 2, update="head", head="int8", loss="mse")
    assert any("not compared with LiteRT's: LiteRT is not installed" in note for note in done.notes)
    assert done.agreement.litert is None


def test_another_number_of_classes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "net.tflite"
    path.write_bytes(nets.written(nets.NEAR["spotter"]))
    with pytest.raises(CompileError, match=r"E0112.*--classes"):
        learned(path, 1, update="head", classes="3")


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file, its project and a checkpoint of it."""
    folder = tmp_path_factory.mktemp("device")
    (folder / "net.tflite").write_bytes(nets.written(exact, nets.measured(exact, EXACT_SHAPE)))
    compiled = tt.compile(folder / "net.tflite", verify="none", update="all", loss="bce", head="int8")
    compiled.save(folder / "out")
    random = np.random.default_rng(0)
    x, y = random.standard_normal((12, *EXACT_SHAPE[1:])).astype(np.float32), random.integers(0, 2, (12, 4))
    np.savez(folder / "data.npz", x=x, y=y.astype(np.float32))
    with compiled.twin() as twin:
        for one, label in zip(x, y, strict=True):
            twin.train_step(one[None], label[None].astype(np.float32), lr=0.02)
        twin.save(folder / "device.bin")
    return folder


def test_the_command(device: Path, tmp_path: Path) -> None:
    given = ["export", str(device / "net.tflite"), "--project", str(device / "out")]
    out = tmp_path / "new.tflite"
    sound = [*given, "--checkpoint", str(device / "device.bin")]
    said = run(*sound, "--data", str(device / "data.npz"), "-o", str(out)).check_success().out
    assert "of 8 tensors" in said and "12 samples of data.npz" in said and "wrote" in said
    assert out.read_bytes() != (device / "net.tflite").read_bytes()
    assert [one.name for one in tmp_path.iterdir()] == ["new.tflite"]
    again = run(*sound, "-o", str(out))
    assert again.exit_code == 2 and again.error_id == "E0104"
    other = run(*sound, "-o", str(tmp_path / "new.onnx"))
    assert other.exit_code == 2 and other.error_id == "E0104"
    (tmp_path / "bad.bin").write_bytes((device / "device.bin").read_bytes()[:-1])
    bad = run(*given, "--checkpoint", str(tmp_path / "bad.bin"), "-o", str(tmp_path / "bad.tflite"))
    assert bad.exit_code == 2 and bad.error_id == "E0105"
    assert not (tmp_path / "bad.tflite").exists()


@pytest.mark.parametrize(
    "name", ["spotter", "dense per channel", "depthwise multiplier", "transpose conv", "add channels", "prelu"]
)
def test_float32_files(name: str, tmp_path: Path) -> None:
    recipe, shape = {**nets.EXACT, **nets.NEAR}[name], nets.SHAPES[name]
    path = tmp_path / "net.tflite"
    path.write_bytes(nets.written(recipe))
    options = {"update": "all", "loss": "mse"}
    compiled = tt.compile(path, verify="none", **options)
    with compiled.twin() as twin:
        train, face = compiled.project.summary.train, compiled.project.bundle.interface
        data = in_slots(face, random_samples(train, 10, 5))
        for i in range(10):
            twin.instance.train(data.x[i : i + 1], data.y[i : i + 1])
        done = judged_file(compiled.project, twin, options_from(path, options), tmp_path / "new.tflite")
        x = np.random.default_rng(3).standard_normal((6, *shape)).astype(np.float32)
        ours = twin.predict(x.reshape(6, *shape[1:]))
    assert done.agreement.outputs is not None and done.agreement.outputs < 1e-5
    assert done.agreement.litert is not None and done.agreement.litert < 1e-5
    theirs = np.concatenate([by_litert(done.file.model, one) for one in x])
    before = np.concatenate([by_litert(path.read_bytes(), one) for one in x])
    assert np.abs(ours.reshape(theirs.shape) - theirs).max() <= 1e-5 * max(1.0, float(np.abs(theirs).max()))
    assert np.abs(before - theirs).max() > 1e-3


WAYS = (("head", "int8"), ("head", "fp32"), ("all", "int8"))


@pytest.mark.parametrize(
    ("name", "way"), [*zip(WINDOWS, WAYS, strict=False), ("okay_nabu", WAYS[0]), ("alexa", WAYS[2])]
)
def test_wake_words(name: str, way: tuple[str, str], tmp_path: Path) -> None:
    """LiteRT hears in a stream, state and all, what the device's integers say of the window."""
    (update, head), path = way, tmp_path / "word.tflite"
    path.write_bytes(wake_word(name).read_bytes())
    rate = 0.02 if update == "head" else 0.001
    done, compiled, raw = learned(path, 10, rate, ones=True, update=update, head=head)
    window, moved = WINDOWS[name], 0
    for seed in range(4):
        frames = np.random.default_rng(seed).integers(-128, 128, (3 * (window // 3 + 5), FRAMES)).astype(np.int8)
        frames[30:60] = np.clip(frames[30:60] // 8 - 110, -128, 127)
        ours = integers(of_the_device(compiled, raw, frames[None, -window:]), done.file.model)
        theirs, before = (listened(data, frames)[-1] for data in (done.file.model, path.read_bytes()))
        (output,) = (one.array for one in theirs.values() if one.array.dtype == np.uint8)
        off = int(np.abs(ours.astype(int) - output).max())
        assert off <= (3 if head == "fp32" else 0), "its float32 head is rounded to the file's scale"
        moved += sum(not np.array_equal(one.array, before[tensor].array) for tensor, one in theirs.items())
    assert moved, "what was learned is heard"
    assert done.agreement.litert is not None, "by a stream of the window's frames"
    assert done.agreement.litert <= 2 / 256, "the device rounds above zero where it trains"
    first, second = (parse(name, data).subgraphs[1] for data in (path.read_bytes(), done.file.model))
    assert [vars(one) for one in first.operators] == [vars(one) for one in second.operators]
    assert any(one.data is not None for one in first.tensors), "what the rings begin with"
    for one, other in zip(first.tensors, second.tensors, strict=True):
        assert one.data is None or np.array_equal(one.data, other.data)
    found = heard_by_both(done.file.model, 2)
    assert len(found) >= 12
    assert {tensor for tensor, off in found.items() if off.any()} == set()
