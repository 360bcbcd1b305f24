"""Plans of one image that take different numbers of samples in a call (--plans with --micro-batch auto, ADR 42)."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tinytrain_compile as tt
from testing.networks import models
from testing.networks.chains import random_chain
from testing.places import ROOT
from tests.e2e.broken import write
from tests.e2e.marks import needs_qemu
from tests.emit.test_generated_c import NUMERIC, STRICT, build, needs_gcc
from tests.quantize import nets
from tinytrain_compile.data.samples import in_slots, random_samples
from tinytrain_compile.ir.stages import Samples
from tinytrain_compile.options.compile_options import CompileOptions
from tinytrain_compile.parts.plans.part import counts_samples
from tinytrain_compile.target.loader import load_target
from tinytrain_compile.verify.build import Mode, compile_project, link_project, write_files
from tinytrain_compile.verify.run import run_image
from tinytrain_compile.verify.tools import find_tools

pytestmark = needs_gcc
BATCH, BATCHES = 4, 4
PROGRAM = (ROOT / "testing" / "plans" / "batches.c").read_text(encoding="utf-8")
CASES: dict[str, dict[str, Any]] = {
    "int8": {"update": "last:3", "quant": "int8", "optimizer": "momentum", "lr": 0.05, "slices": "on"},
    "float32": {"update": "all", "lr": 0.05},
    "several values": {
        "update": "all",
        "optimizer": "adam",
        "loss": "mse",
        "code": "size",
        "package": "cmake",
        "slices": "on",
    },
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("batches")


def model_of(name: str, folder: Path) -> tuple[Path, dict[str, Any]]:
    """The file and the options that all builds of a case have."""
    options = {"batch": BATCH, "name": "m", "report": "json", **CASES[name]}
    if name != "int8":
        return write(models.mlp(), folder, "mlp.onnx"), options
    chain = random_chain(4)
    calibration = folder / "calib.npz"
    x = nets.calibration(chain)
    np.savez(calibration, x=x, y=np.arange(len(x)) % chain.graph.output[0].type.tensor_type.shape.dim[-1].dim_value)
    return write(chain, folder, "chain.onnx"), {**options, "calib": calibration}


@cache
def made(name: str, folder: Path) -> tuple[tt.Compiled, tuple[tt.Compiled, ...]]:
    """A project with plans of one and of BATCH samples; and a project of each alone."""
    path, options = model_of(name, folder)
    alone = [tt.compile(path, verify="none", micro_batch=size, **options) for size in (1, BATCH)]
    sizes = ",".join(str(one.report["memory"]["arena_bytes"]) for one in alone)
    both = tt.compile(path, plans=sizes, micro_batch="auto", verify="host", verify_steps=2, **options)
    assert [plan["micro_batch"] for plan in both.report["plans"]] == [1, BATCH]
    return both, tuple(alone)


def samples_of(compiled: tt.Compiled, count: int = BATCH * BATCHES) -> Samples:
    return in_slots(compiled.project.bundle.interface, random_samples(compiled.project.summary.train, count, 3))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name == "float32" else ()) for name in CASES]
)
def test_each_plan_computes_what_it_would_alone(name: str, folder: Path) -> None:
    """To the byte, after every batch. So in int8 both have the same weights, and in float32 as close as sums in another
    order are: the largest difference is a small part of what one batch changes."""
    both, alone = made(name, folder)
    samples, exact = samples_of(both), both.project.bundle.interface.exact
    with both.twin(0) as small, both.twin() as large, alone[0].twin() as one, alone[1].twin() as four:
        before = small.instance.state()
        for at in range(0, len(samples.x), BATCH):
            x, y = samples.x[at : at + BATCH], samples.y[at : at + BATCH]
            losses = [twin.instance.train(x, y) for twin in (small, large, one, four)]
            assert [len(of_calls) for of_calls in losses] == [BATCH, 1, BATCH, 1]
            assert losses[0].tobytes() == losses[2].tobytes() and losses[1].tobytes() == losses[3].tobytes()
            states = [twin.instance.save() for twin in (small, large, one, four)]
            assert states[0] == states[2] and states[1] == states[3]
            if exact:
                assert states[0] == states[1]
            else:
                after, other = small.instance.state(), large.instance.state()
                for key, tensor in after.items():
                    change = np.abs(tensor.astype(np.float64) - before[key]).max()
                    assert np.abs(tensor.astype(np.float64) - other[key]).max() <= 1e-4 * max(change, 1e-3), key
                large.instance.load(small.instance.save())  # each batch from one state: what is judged is one batch
                four.instance.load(one.instance.save())
                before = after
        assert small.instance.infer(samples.x).tobytes() == large.instance.infer(samples.x).tobytes()


@needs_qemu
@pytest.mark.parametrize("mode", ["host", "qemu"])
@pytest.mark.parametrize("name", ["int8", pytest.param("several values", marks=pytest.mark.slow)])
def test_one_program_trains_under_either(name: str, mode: Mode, folder: Path, tmp_path: Path) -> None:
    """testing/plans/batches.c: the run that moves from one plan to the other has the state that twins have which do."""
    compiled = made(name, folder)[0]
    project, target, tools = compiled.project, load_target("cortex-m7"), find_tools(load_target("cortex-m7"))
    samples = samples_of(compiled)
    vectors = b"".join(a[i : i + 1].tobytes() for i in range(len(samples.x)) for a in (samples.x, samples.y))
    bundle = replace(project.bundle, files={**project.bundle.files, "verify/batches.c": PROGRAM})
    port = "verify/startup.c" if mode == "qemu" else "verify/host.c"
    built = link_project(
        compile_project(bundle, target, mode, tools, tmp_path, ("verify/batches.c", port)), target, tools
    )
    output = run_image(built, target, tools, vectors)
    size, half = len(output) // 3, len(samples.x) // 2
    moved, small, large = (output[k * size : (k + 1) * size] for k in range(3))
    assert size > 0
    kept = b""
    with compiled.twin(0) as first, compiled.twin() as second, compiled.twin(0) as third:
        for at in range(0, len(samples.x), BATCH):
            x, y = samples.x[at : at + BATCH], samples.y[at : at + BATCH]
            first.instance.train(x, y)
            second.instance.train(x, y)
            if at == half:
                third.instance.load(kept)
            if at >= half:
                third.instance.train(x, y)
            kept = second.instance.save()
        assert [moved, small, large] == [twin.instance.save() for twin in (third, first, second)]
    if project.bundle.interface.exact:
        assert moved == small == large


@pytest.mark.parametrize("standard", ["c11", "gnu11", "c17"])
def test_compiles_strictly(standard: str, folder: Path, tmp_path: Path) -> None:
    """All call sequences, with labels of several values."""
    bundle = made("several values", folder)[0].project.bundle
    write_files(tmp_path, bundle.files)
    strict = [f"-std={standard}" if flag.startswith("-std") else flag for flag in STRICT]
    files = sorted(name for name in bundle.files if name.endswith(".c") and "kernels" not in name)
    build(["gcc", *strict, *NUMERIC, "-O2", "-Wmissing-prototypes", "-c", *files], tmp_path)


@pytest.mark.parametrize("name", ["int8", "several values"])
def test_callers_in_cpp(name: str, folder: Path, tmp_path: Path) -> None:
    """Labels of one value, and of several; what a program for another number of samples says is an error."""
    bundle = made(name, folder)[0].project.bundle
    write_files(tmp_path, bundle.files)
    call = "m_accumulate(m, labels, m_micro_batch(m), loss)"
    for number, (text, compiles) in enumerate({call: True, "m_accumulate(m, labels, loss)": False}.items()):
        text = f'#include "m_train.h"\nint f(m_t *m, const m_label_t *labels, float *loss) {{ return {text}; }}\n'
        (tmp_path / f"caller{number}.cpp").write_text(text, encoding="utf-8")
        command = ["g++", "-std=c++17", "-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-pedantic", "-Werror", "-c"]
        if compiles:
            build([*command, f"caller{number}.cpp"], tmp_path)
        else:
            with pytest.raises(AssertionError, match="too few arguments"):
                build([*command, f"caller{number}.cpp"], tmp_path)


@pytest.mark.slow
def test_a_number_is_of_all_plans(folder: Path) -> None:
    """--micro-batch N: every plan takes N, and types say so as in a project of one plan."""
    options = model_of("float32", folder)[1] | {"update": "last:1"}
    path = write(models.resnet8(4, 8), folder, "resnet.onnx")
    whole = tt.compile(path, verify="none", micro_batch=2, stream="off", remat="off", **options)
    arena = whole.report["memory"]["arena_bytes"]
    options["plans"] = f"{arena - 512},{arena}"
    both = tt.compile(path, micro_batch=2, verify="host", **options)
    assert [plan["micro_batch"] for plan in both.report["plans"]] == [2, 2]
    header = both.files["m_train.h"]
    assert isinstance(header, str) and "m_output_batch_t" in header and "m_micro_batch" not in header


def test_the_package_has_all_of_it(folder: Path, tmp_path: Path) -> None:
    """A CMake package of such a project configures and builds, with its own sources."""
    made("several values", folder)[0].save(tmp_path / "m")
    text = (tmp_path / "m" / "CMakeLists.txt").read_text(encoding="utf-8")
    assert all(f"m_plan_{k}.c" in text for k in range(2))
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.16)\nproject(t C)\nadd_subdirectory(m)\n"
    )
    build(["cmake", "-S", ".", "-B", "b"], tmp_path)
    build(["cmake", "--build", "b"], tmp_path)


@pytest.mark.parametrize(
    ("changes", "counted"),
    [
        ({}, True),
        ({"batch": 1}, False),
        ({"accumulate": "inplace"}, False),
        ({"micro_batch": 4}, False),
        ({"micro_batch": None}, False),
        ({"plans": ()}, False),
    ],
)
def test_options_alone_say_which_api_it_is(changes: dict[str, Any], counted: bool) -> None:
    """Calls say how many samples they give where plans may take different numbers, whatever the plans come to."""
    options = CompileOptions(Path("m.onnx"), plans=(1024, 2048), batch=4, micro_batch="auto")
    assert counts_samples(replace(options, **changes)) == counted
