"""Averages of weights (--runtime average): the C on a host and on boards, twin/average.py, and exact fractions."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from testing.kernels.ledger import TARGETS
from testing.networks import models
from tests.e2e import chain
from tests.e2e.marks import needs_qemu
from tests.emit.test_generated_c import needs_gcc
from tests.parts.delta_formula import counted, tensors
from tests.quantize import nets
from tinytrain_compile.cli.python_options import options_from
from tinytrain_compile.compilation import compile_model
from tinytrain_compile.data.samples import in_slots, random_samples
from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.runtime_parts import RuntimeParts
from tinytrain_compile.ir.stages import TrainGraph
from tinytrain_compile.parts.average.twin import Average
from tinytrain_compile.parts.delta.part import delta_table
from tinytrain_compile.target.loader import load_target
from tinytrain_compile.twin import Instance
from tinytrain_compile.verify.build import Mode, build_library, compile_project, link_project
from tinytrain_compile.verify.firmware import GUARD_BYTES, fill
from tinytrain_compile.verify.run import run_image
from tinytrain_compile.verify.tools import find_tools, work_folder

pytestmark = needs_gcc
PROGRAM = Path(__file__).parent / "programs" / "average.c"
STEPS, WINDOW = 6, 4
TRAINS: dict[str, Callable[[], TrainGraph]] = {
    "float32, momentum": lambda: chain.train_graph(models.mlp(), optimizer="momentum", learning_rate=0.1),
    "int8, fractions in some, float head": lambda: nets.int8_train(nets.cnn(4, 2), store="mixed", learning_rate=0.5),
    "int8, noise, int8 head": lambda: nets.int8_train(nets.cnn(4, 2), head="int8", learning_rate=0.5),
    "int8, fractions": lambda: nets.int8_train(nets.cnn(4, 2), head="int8", store="q8.8", learning_rate=0.5),
}
BOARDS = {"float32, momentum": "cortex-m0plus", "int8, fractions in some, float head": "cortex-m7"}


@cache
def project(name: str, core: str) -> chain.Project:
    parts = RuntimeParts(("average",), average_window=WINDOW)
    return chain.project(TRAINS[name](), core, parts=parts)


def ran(name: str, core: str, mode: Mode) -> bytes:
    """What programs/average.c writes."""
    made = project(name, core)
    filled = fill(PROGRAM.read_text(), {"STEPS": str(STEPS), "GUARD": str(GUARD_BYTES)})
    bundle = replace(made.bundle, files={**made.bundle.files, "verify/average.c": filled})
    samples = in_slots(bundle.interface, random_samples(made.train, STEPS, 1))
    given = b"".join(x.tobytes() + y.tobytes() for x, y in zip(samples.x, samples.y, strict=True))
    target = load_target(core)
    tools = find_tools(target)
    port = "verify/host.c" if mode == "host" else "verify/startup.c"
    with work_folder() as folder:
        built = compile_project(bundle, target, mode, tools, folder, check_sources=("verify/average.c", port))
        return run_image(link_project(built, target, tools), target, tools, given, timeout_s=120)


def assert_is_the_twin(name: str, core: str, mode: Mode) -> None:
    """Every average and both checkpoints; the averages also are what fractions say, to within float32's rounding."""
    made, said = project(name, core), ran(name, core, mode)
    with work_folder() as folder:
        twin = Instance(build_library(made.bundle, find_tools(), folder), made.bundle.interface)
        samples = in_slots(made.bundle.interface, random_samples(made.train, STEPS, 1))
        average = Average(made.train, WINDOW)
        exact, at = dict[str, list[Fraction]](), 0
        model_hash = bytes.fromhex(delta_table(made.train).model_hash)[::-1]
        for step in range(STEPS):
            twin.train(samples.x[step : step + 1], samples.y[step : step + 1])
            average.add(twin.state())
            share = Fraction(1, min(step + 1, WINDOW))
            for key, numbers in counted(made.train, tensors(made.train, twin.save())).items():
                before = exact.get(key, numbers)
                exact[key] = [old + (new - old) * share for old, new in zip(before, numbers, strict=True)]
            body = b"".join(average.numbers[key].tobytes() for key in sorted(average.numbers))
            crc = zlib.crc32(model_hash + struct.pack("<I", step + 1) + body)
            assert said[at : at + len(body) + 4] == body + struct.pack("<I", crc)
            at += len(body) + 4
            for key, numbers in exact.items():
                wanted = np.array([float(number) for number in numbers])
                np.testing.assert_allclose(average.numbers[key], wanted, rtol=STEPS * 2**-22, atol=1e-7)
        learned = twin.save()
        average.take({key: twin.tensor(key) for key in twin.state()})
        taken = twin.save()
        assert said[at:] == learned + taken and learned != taken
        assert_rounded(made.train, learned, taken, exact)


def assert_rounded(train: TrainGraph, learned: bytes, taken: bytes, exact: dict[str, list[Fraction]]) -> None:
    """A weight is its mean to within half of what it can hold; all else stays."""
    before, after = tensors(train, learned), tensors(train, taken)
    now, touched = counted(train, after), set(train.trained)
    for key, part in train.trained.items():
        fine = part.unit is not None and bool(part.unit.fraction)
        touched |= {part.unit.fraction} if part.unit is not None and part.unit.fraction else set()
        kind = train.graph.constants[key].dtype
        half = Fraction(128) if kind == np.int8 and not fine else Fraction(1, 2)
        for number, wanted in zip(now[key], exact[key], strict=True):
            allowed = abs(wanted) / 2**20 + Fraction(1, 10**7) + (half if kind != np.float32 else 0)
            assert abs(number - wanted) <= allowed
    assert {k: v for k, v in after.items() if k not in touched} == {k: v for k, v in before.items() if k not in touched}


@pytest.mark.parametrize("name", TRAINS)
def test_the_c_has_the_bytes_of_the_twin(name: str) -> None:
    assert_is_the_twin(name, BOARDS.get(name, "cortex-m7"), "host")


@pytest.mark.qemu
@needs_qemu
@pytest.mark.parametrize("name", BOARDS)
def test_a_board_has_the_bytes_of_the_twin(name: str) -> None:
    assert_is_the_twin(name, BOARDS[name], "qemu")


@pytest.mark.slow
@pytest.mark.qemu
@needs_qemu
@pytest.mark.parametrize("core", TARGETS)
@pytest.mark.parametrize("name", BOARDS)
def test_all_boards_have_the_bytes_of_the_twin(name: str, core: str) -> None:
    assert_is_the_twin(name, core, "qemu")


def test_ends_of_what_weights_hold() -> None:
    """A file's -128 stays, a moved one saturates at -127; above 2^22 numbers go towards 0."""
    train = TRAINS["int8, fractions"]()
    key = next(k for k, part in train.trained.items() if part.unit is not None and part.unit.fraction)
    unit = train.trained[key].unit
    assert unit is not None
    state = {k: train.graph.constants[k].reshape(-1).copy() for k in [value.name for value in train.graph.state]}
    average = Average(train, 2)
    with pytest.raises(ValueError, match="no state"):
        average.take(state)
    state[key][:2], state[unit.fraction][:2] = -128, 0
    average.add(state)
    state[key][1], state[unit.fraction][1] = -127, 0
    average.add(state)
    average.take(state)
    assert (state[key][0], state[unit.fraction][0]) == (-128, 0)
    assert (state[key][1], state[unit.fraction][1]) == (-127, -128)


def test_the_option(tmp_path: Path) -> None:
    """Its window is a macro, and is left to the caller without a number; changing scales are refused."""
    path = tmp_path / "net.onnx"
    path.write_bytes(models.mlp().SerializeToString())
    for asked, macro in (("average=7", True), ("average", False)):
        made = compile_model(options_from(path, {"runtime": asked, "verify": "none", "out": tmp_path / "out"}))
        assert {"net_average.h", "net_average.c"} <= set(made.files)
        assert ("#define NET_AVERAGE_WINDOW 7u" in (tmp_path / "out" / "net_average.h").read_text()) == macro
    for asked, said in (("average=0", "no number of states"), ("delta=3", "takes no number")):
        with pytest.raises(CompileError, match=said):
            options_from(path, {"runtime": asked})
    path.write_bytes(nets.quantised().SerializeToString())
    with pytest.raises(CompileError, match="--rescale on"):
        compile_model(options_from(path, {"runtime": "average", "rescale": "on", "verify": "none"}))
