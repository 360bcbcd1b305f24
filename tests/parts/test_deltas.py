"""Deltas (--runtime delta): the C on a host and on boards, twin/delta.py, and a formula that knows neither."""

from __future__ import annotations

import json
import struct
import tempfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from fractions import Fraction
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import tinytrain_compile as tt
from testing.networks import models
from testing.places import ROOT
from tests.e2e import chain
from tests.e2e.marks import needs_qemu
from tests.emit.test_generated_c import needs_gcc
from tests.parts.delta_formula import assert_applied, counted, expected, nearest, tensors
from tests.quantize import nets
from tinytrain_compile.cli.python_options import options_from
from tinytrain_compile.compilation import compile_model
from tinytrain_compile.data.samples import in_slots, random_samples
from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.runtime_parts import RuntimeParts
from tinytrain_compile.ir.stages import TrainGraph
from tinytrain_compile.ir.types import Array
from tinytrain_compile.parts.delta.part import delta_table
from tinytrain_compile.parts.delta.twin import Deltas
from tinytrain_compile.target.loader import load_target
from tinytrain_compile.twin import Instance
from tinytrain_compile.verify.build import build_library, compile_project, link_project
from tinytrain_compile.verify.firmware import GUARD_BYTES, fill
from tinytrain_compile.verify.run import run_image
from tinytrain_compile.verify.tools import find_tools, work_folder

pytestmark = needs_gcc
PROGRAM = Path(__file__).parent / "programs" / "delta.c"
STEPS, DEVICE, ERR_STATE = 6, 5, 4
TRAINS: dict[str, Callable[[], TrainGraph]] = {
    "float32, momentum": lambda: chain.train_graph(models.mlp(), optimizer="momentum", learning_rate=0.1),
    "int8, fractions in some, float head": lambda: nets.int8_train(nets.cnn(4, 2), store="mixed", learning_rate=0.5),
    "int8, noise, int8 head": lambda: nets.int8_train(nets.cnn(4, 2), head="int8", learning_rate=0.5),
    "int8, fractions": lambda: nets.int8_train(nets.cnn(4, 2), head="int8", store="q8.8", learning_rate=0.5),
}
BOARDS = {"float32, momentum": "cortex-m0plus", "int8, fractions in some, float head": "cortex-m7"}


@cache
def project(name: str) -> chain.Project:
    return chain.project(TRAINS[name](), BOARDS.get(name, "cortex-m7"), parts=RuntimeParts(("delta",)))


@pytest.fixture(params=TRAINS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@cache
def library(name: str) -> tuple[tempfile.TemporaryDirectory[str], Path]:
    folder = tempfile.TemporaryDirectory()
    return folder, build_library(project(name).bundle, find_tools(), Path(folder.name))


def instance(name: str) -> Instance:
    return Instance(library(name)[1], project(name).bundle.interface)


def train(device: Instance, name: str, seed: int = 1, steps: int = STEPS) -> None:
    made = project(name)
    samples = in_slots(made.bundle.interface, random_samples(made.train, steps, seed))
    for at in range(steps):
        device.train(samples.x[at : at + 1], samples.y[at : at + 1])


# ---- one device to another ------------------------------------------------------------------------------------------


def test_a_delta_is_what_the_formula_says(name: str) -> None:
    """And takes what one device has learned to another one, whose noise and optimizer stay its own."""
    graph = project(name).train
    one, other = instance(name), instance(name)
    first = one.save()
    empty = one.delta()
    assert not any(change.any() for change in Deltas(delta_table(graph)).read(empty).values())
    train(one, name)
    train(other, name, seed=2, steps=2)
    other.set_rate(0.25)
    message, before = one.delta(), other.save()
    assert message == expected(graph, one.save(), first, delta_table(graph).model_hash)
    assert one.save() != first and message != empty
    deltas = Deltas(delta_table(graph))
    assert deltas.write(deltas.read(message)) == message == deltas.mean([message, message]), (
        "numpy rounds as the device"
    )
    other.apply_delta(message)
    assert_applied(graph, other.save(), before, first, message)
    if all(slot.type == "steps" and not slot.fine for slot in delta_table(graph).slots):
        assert other.delta() == message
    other.apply_delta(empty)
    whole, begun = (counted(graph, tensors(graph, state)) for state in (other.save(), first))
    assert whole == begun, "no change is what flash has"


def test_a_mean_is_the_mean(name: str) -> None:
    """Of three devices with weights 1, 1, 2, within half a unit of the message; whole numbers of equal ones exactly."""
    deltas, messages = Deltas(delta_table(project(name).train)), list[bytes]()
    for seed in range(3):
        device = instance(name)
        train(device, name, seed)
        messages.append(device.delta())
    read, mean = [deltas.read(message) for message in messages], deltas.mean(messages, [1, 1, 2])
    for slot in deltas.table.slots:
        exponent = struct.unpack_from("<h", mean, slot.offset)[0]
        exact = (read[0][slot.name] + read[1][slot.name] + 2 * read[2][slot.name]) / 4
        assert np.abs(deltas.read(mean)[slot.name] - exact).max() <= 2.0 ** (exponent - 1)
    device = instance(name)
    device.apply_delta(mean)


def test_devices_round_with_noise_of_their_own() -> None:
    """A mean of 1/4 step is a whole step on a quarter of the weights of a device, others on each."""
    name = "int8, noise, int8 head"
    table = delta_table(project(name).train)
    deltas, quarter = Deltas(table), {slot.name: np.full(slot.count, 64.0) for slot in table.slots}
    taken = list[Array]()
    for device in (1, 2):
        one = instance(name)
        one.seed_device(device)
        one.apply_delta(deltas.write({**quarter}))
        changes = deltas.read(one.delta())
        taken.append(np.concatenate([changes[slot.name] for slot in table.slots if slot.type == "steps"]))
    for changes in taken:
        assert set(changes.tolist()) == {0.0, 256.0}
        assert abs(changes.mean() / 64 - 1) < 5 * np.sqrt(3 / len(changes))
    assert 0.5 < (taken[0] == taken[1]).mean() < 0.75, "equal by chance in 5 of 8"


def test_a_seed_is_a_device_s_own() -> None:
    name = "int8, noise, int8 head"
    first, states = instance(name).save(), set[bytes]()
    for device in (0, 1, 2):
        one = instance(name)
        one.seed_device(device)
        assert (one.save() == first) == (device == 0)
        train(one, name)
        states.add(one.save())
    assert len(states) == 3


# ---- bad messages ---------------------------------------------------------------------------------------------------


def test_what_is_no_delta_changes_nothing(name: str) -> None:
    table, device = delta_table(project(name).train), instance(name)
    train(device, name)
    message, state = device.delta(), device.save()

    def signed(body: bytes) -> bytes:
        return body + zlib.crc32(body).to_bytes(4, "little")

    first = table.slots[0].offset
    wrong = [bytes([message[0] ^ 1]) + message[1:], message[:-1] + bytes([message[-1] ^ 1])]
    wrong += [signed(message[:4] + b"\1" + message[5:-4]), message[:-4], message + b"\0" * 4]
    for exponent in (-32768, -101, 114, 32767) if table.slots[0].type == "float32" else (-1, 17):
        wrong.append(signed(message[:first] + struct.pack("<h", exponent) + message[first + 2 : -4]))
    for bad in wrong:
        with pytest.raises(CompileError) as problem:
            device.apply_delta(bad)
        assert problem.value.code == "E0105"
        assert device.save() == state
    for bad in wrong:
        with pytest.raises(CompileError):
            Deltas(table).read(bad)


def test_the_exponent_is_the_smallest_by_which_all_fits() -> None:
    """About the numbers where it changes: with one less the largest would round beyond 32767."""
    name = "float32, momentum"
    deltas, device = Deltas(delta_table(project(name).train)), instance(name)
    slot, first = deltas.table.slots[0], project(name).train.graph.constants["fc1_bias"].reshape(-1)
    held, seen = device.tensor(slot.name), set[int]()
    for peak in (*np.arange(32766.5, 32768.5, 0.0625), *np.arange(32752.0, 32767.0, 1.0)):
        held[:] = first
        held[3] = np.float32(first[3] + peak)
        change, message = Fraction(float(np.float32(held[3] - first[3]))), device.delta()
        exponent = struct.unpack_from("<h", message, slot.offset)[0]
        assert nearest(change / Fraction(2) ** exponent, real=True) <= 32767
        assert nearest(change / Fraction(2) ** (exponent - 1), real=True) > 32767
        assert message == deltas.write(deltas.read(message))
        seen.add(exponent)
    assert seen == {0, 1}


def test_extreme_numbers_saturate_or_are_refused() -> None:
    """float32: not finite is E0603; the largest exponent is one whose largest number is finite. int8: +-127."""
    name = "float32, momentum"
    deltas, device = Deltas(delta_table(project(name).train)), instance(name)
    slot = deltas.table.slots[0]
    held = device.tensor(slot.name)
    for value in (1e-38, 32767.5, 65534.0, 3.2e38, -3.4028234e38):
        held[:] = value
        change = held.astype(np.float64) - project(name).train.graph.constants[slot.name].astype(np.float32)
        read = deltas.read(device.delta())[slot.name]
        unit = max(2.0**-100, np.abs(change).max() / 16384)
        assert np.abs(read - change).max() <= unit
        device.apply_delta(device.delta())
        assert np.isfinite(held).all()
    held[0] = np.inf
    with pytest.raises(CompileError) as problem:
        device.delta()
    assert problem.value.code == "E0603"
    name = "int8, fractions"
    deltas, device = Deltas(delta_table(project(name).train)), instance(name)
    for sign in (-1.0, 1.0):
        device.apply_delta(deltas.write({s.name: np.full(s.count, sign * 2**31) for s in deltas.table.slots}))
        device.save()  # refuses what no training makes
        for slot in deltas.table.slots:
            reached = device.tensor(slot.name)
            limit = 127 if slot.type == "steps" else 2**30
            assert (reached * sign >= limit).all()


# ---- C alone --------------------------------------------------------------------------------------------------------


def ran(name: str) -> tuple[bytes, ...]:
    """What programs/delta.c writes: trained checkpoint, delta, fresh checkpoint, fresh checkpoint with the delta."""
    made, board = project(name), BOARDS[name]
    bundle = replace(
        made.bundle,
        files={
            **made.bundle.files,
            "verify/delta.c": fill(PROGRAM.read_text(), {"STEPS": str(STEPS), "GUARD": str(GUARD_BYTES)}),
        },
    )
    samples = in_slots(bundle.interface, random_samples(made.train, STEPS, 1))
    given = b"".join(x.tobytes() + y.tobytes() for x, y in zip(samples.x, samples.y, strict=True))
    core = load_target(board)
    tools = find_tools(core)
    with work_folder() as folder:
        built = compile_project(
            bundle, core, "qemu", tools, folder, check_sources=("verify/delta.c", "verify/startup.c")
        )
        said = run_image(link_project(built, core, tools), core, tools, given, timeout_s=120)
    size, delta = 20 + bundle.interface.persistent_bytes, delta_table(made.train).size_bytes
    ends = np.cumsum([0, size, delta, size, size])
    assert ends[-1] == len(said)
    return tuple(said[a:b] for a, b in pairwise(ends))


@pytest.mark.qemu
@needs_qemu
@pytest.mark.parametrize("name", BOARDS)
def test_a_board_has_the_bytes_of_the_twin(name: str) -> None:
    learned, message, fresh, taken = ran(name)
    one, other = instance(name), instance(name)
    first = one.save()
    train(one, name)
    other.seed_device(DEVICE)
    assert (learned, message, fresh) == (one.save(), one.delta(), other.save())
    other.apply_delta(message)
    assert taken == other.save()
    assert_applied(project(name).train, taken, fresh, first, message)


def builds() -> Iterator[chain.Project]:
    parts = RuntimeParts(("delta",))
    yield chain.project(chain.train_graph(models.mlp(), batch=2), parts=parts, slices=True)
    yield chain.project(nets.int8_train(nets.cnn(4, 2), "bias", head="int8"), parts=parts)


class ByHand(Instance):
    """An instance whose batches are made call by call."""

    def accumulate(self, x: Array, y: Array) -> None:
        self._trained("accumulate", x, y)

    def apply(self) -> int:
        return int(self.function("apply")(self.handle))


def test_other_builds_compile() -> None:
    """Slices with a batch; biases alone, of an int8 network (the strict flags of the check)."""
    for made in builds():
        with tempfile.TemporaryDirectory() as folder:
            device = ByHand(build_library(made.bundle, find_tools(), Path(folder)), made.bundle.interface)
            samples = in_slots(made.bundle.interface, random_samples(made.train, 2, 1))
            device.train(samples.x[: made.train.batch], samples.y[: made.train.batch])
            message = device.delta()
            device.reset()
            device.apply_delta(message)
            assert device.delta() == message
            if made.bundle.interface.accumulates:
                device.accumulate(samples.x[:1], samples.y[:1])
                device.apply_delta(message)
                assert device.apply() == ERR_STATE, "the gradient of other weights is forgotten"


def test_a_state_in_two_memories() -> None:
    digits = ROOT / "examples" / "digits"
    made = tt.compile(
        digits / "digits.onnx", arena="14KB", memory={"sram2": "64KB"}, update="all", runtime="delta", verify="none"
    )
    assert {slot.memory for slot in made.project.bundle.interface.state} == {0, 1}
    with made.twin() as one, made.twin() as other, np.load(digits / "data.npz") as data:
        first = one.delta()
        for x, y in zip(data["x"][:5], data["y"][:5], strict=True):
            one.train_step(x[None], y[None], lr=0.05)
        other.apply_delta(one.delta())
        assert other.delta() == one.delta() != first


# ---- the command ----------------------------------------------------------------------------------------------------


def test_the_table_is_in_the_output(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(models.mlp().SerializeToString())
    asked = {"runtime": "delta", "verify": "none", "update": "last:2", "out": tmp_path / "out"}
    made = compile_model(options_from(path, asked))
    assert {"net_delta.h", "net_delta.c", "net_delta.json"} <= set(made.files)
    deltas = Deltas.load(tmp_path / "out" / "net_delta.json")
    assert [slot.parameter for slot in deltas.table.slots] == ["fc2_bias", "fc2_weight", "fc3_bias", "fc3_weight"]
    header = (tmp_path / "out" / "net_delta.h").read_text()
    assert f"#define NET_DELTA_BYTES {deltas.table.size_bytes}u" in header
    assert json.loads((tmp_path / "out" / "net_delta.json").read_text()) == json.loads(json.dumps(asdict(deltas.table)))
    (tmp_path / "bad.json").write_text('{"slots": [{"name": 1}]}')
    with pytest.raises(CompileError, match="no table of a delta"):
        Deltas.load(tmp_path / "bad.json")


def test_rescaled_channels_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(nets.quantised().SerializeToString())
    asked = {"runtime": "delta", "rescale": "on", "verify": "none", "out": tmp_path / "out"}
    with pytest.raises(CompileError, match="--rescale on") as problem:
        compile_model(options_from(path, asked))
    assert problem.value.code == "E0113"
    assert not (tmp_path / "out").exists()
