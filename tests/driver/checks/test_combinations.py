"""Options that cannot be honoured are errors, in a dry run too; docs/options.md lists them."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from testing.networks import models
from tests.e2e.broken import write
from tests.e2e.command import run
from tests.quantize import nets
from tinytrain_compile.compilation import compile_model
from tinytrain_compile.driver.checks.combinations import check_options
from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.runtime_parts import RuntimeParts
from tinytrain_compile.options.compile_options import OPTIONS, CompileOptions
from tinytrain_compile.parts.journal.part import Journal
from tinytrain_compile.parts.registry import PARTS

TOOLS = ("gcc", "arm-none-eabi-gcc", "arm-none-eabi-objdump", "qemu-system-arm", "llvm-mca")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model and files for it, in which the command runs; every tool is there, in name."""
    write(models.mlp(), tmp_path)
    write(nets.quantised(), tmp_path, "qdq.onnx")
    x = np.random.default_rng(0).standard_normal((8, 12))
    np.savez(tmp_path / "xy.npz", x=x, y=np.arange(8) % 4)
    np.savez(tmp_path / "q.npz", x=nets.calibration(nets.quantised()))
    (tmp_path / "bin").mkdir()
    for name in TOOLS:
        (tmp_path / "bin" / name).touch()
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return tmp_path


def refused(model: str, flags: str, dry: bool = True, code: str = "E0113") -> str:
    return run(model, *flags.split(), *(["--dry-run"] if dry else [])).check_error(code, 2).err


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ("--momentum 0.9", "--momentum: is for --optimizer momentum or rmsprop"),
        ("--momentum 0.5 --optimizer adam", "--momentum: is for"),
        ("--optimizer momentum --nesterov --dampening 0.1", "--nesterov: is not possible with --dampening"),
        ("--clip-per layer", "--clip-per: is about --clip-norm"),
        ("--rank-error 0.2 --update all", "--rank-error: is about --activations"),
        ("--gains gains.csv --update all", "--gains: is about --update auto"),
        ("--pareto --update all", "--pareto: is about --update auto"),
        ("--input-type uint8 --quant int8 --calib xy.npz", "--input-type: is about --input-lines"),
        ("--activations asi --arena 64KB --data xy.npz", "--activations: is not weighed by --update auto"),
        ("--lock plan.json --gains gains.csv", "--gains: has nothing to choose"),
        ("--lock plan.json --pareto", "--pareto: has nothing to choose"),
        ("--lock plan.json --remat off", "--remat: has nothing to choose"),
        ("--lock plan.json --optimise memory", "--optimise: has nothing to choose"),
        ("--lock plan.json --stream min", "--stream: has nothing to choose"),
        ("--count --target host", "--count: QEMU has no board for host; leave --count out"),
        ("--cycles --target host", "--cycles: QEMU has no board"),
        ("--verify qemu --target host", "--verify qemu: QEMU has no board"),
        ("--flash-budget 64KB --target host", "--flash-budget: host is compiled by this machine's compiler"),
        ("--flash-budget 64KB --target esp32-s3", "--flash-budget: esp32-s3 is compiled by this machine's compiler"),
        ("--cycles --target cortex-m0plus", "--cycles: cortex-m0plus has no cycle model"),
        ("--memory sram2=1MB", "--memory: without --arena"),
        ("--count --verify-steps 1", "--count: needs QEMU and two steps"),
        ("--weight-decay 0.1 --quant int8 --calib xy.npz", "--weight-decay: int8 weights"),
    ],
)
@pytest.mark.usefixtures("place")
def test_together_or_for_the_target(flags: str, says: str) -> None:
    assert says in refused("net.onnx", flags)


@pytest.mark.parametrize(
    ("missing", "flags", "says"),
    [
        ("qemu-system-arm", "--count", "--count: qemu-system-arm not found (apt-get"),
        ("arm-none-eabi-gcc", "--count", "--count: arm-none-eabi-gcc not found (apt-get"),
        ("gcc", "--count", "--count: no C compiler found"),
        ("arm-none-eabi-objdump", "--cycles", "--cycles: arm-none-eabi-objdump not found"),
        ("llvm-mca", "--cycles", "--cycles: llvm-mca not found (apt-get"),
        ("qemu-system-arm", "--verify qemu", "--verify qemu: qemu-system-arm not found"),
        ("gcc", "--verify host", "--verify host: no C compiler found"),
        (
            "arm-none-eabi-gcc",
            "--flash-budget 64KB --update all",
            "--flash-budget: the code of cortex-m7 cannot be measured",
        ),
    ],
)
def test_on_a_machine_without_a_tool(missing: str, flags: str, says: str, place: Path) -> None:
    os.unlink(place / "bin" / missing)
    for dry in (False, True):
        assert says in refused("net.onnx", flags, dry, "E0114")
    assert not (place / "out").exists()
    (place / "bin" / missing).touch()
    (place / "bin" / missing).chmod(0o755)
    run("net.onnx", *flags.split(), "--dry-run").check_success()


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ("--calib q.npz", "--calib: the model brings its ranges (QDQ), and q.npz has no labels"),
        ("--calib q.npz --calib-range minmax", "--calib-range: says how ranges are measured"),
        ("--momentum 0.5", "--momentum: is for"),
    ],
)
@pytest.mark.usefixtures("place")
def test_for_a_quantised_model(flags: str, says: str) -> None:
    assert says in refused("qdq.onnx", flags)
    run("qdq.onnx", "--calib", "nowhere.npz", "--dry-run").check_error("E0105", 2)


@pytest.mark.parametrize(
    ("flags", "error_id"),
    [("--data nowhere.npz", "E0105"), ("--lock nowhere.json", "E0106")],
)
@pytest.mark.usefixtures("place")
def test_a_dry_run_misses_files_too(flags: str, error_id: str) -> None:
    run("net.onnx", *flags.split(), "--dry-run").check_error(error_id, 2)


@pytest.mark.parametrize(
    "flags",
    [
        "--momentum 0.5 --optimizer momentum",
        "--accumulate inplace --batch 1",
        "--clip-per model",
        "--accumulate inplace --batch 2",
        "--accumulate exact --batch 1 --micro-batch 1",
        "--optimise memory --remat auto",
        "--count --verify-steps 2",
        "--cycles --target cortex-m4",
        "--report json --verify none --data xy.npz -v",
        "--input-layout chw --remat auto --arena 64KB --memory sram2=1MB",
    ],
)
@pytest.mark.usefixtures("place")
def test_what_can_be_honoured_is(flags: str) -> None:
    run("net.onnx", *flags.split(), "--dry-run").check_success()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--input-lines", "is not possible with --input-lines"),
        ("--arena 64KB --memory sram2=1MB", "is not possible with --memory"),
        ("--batch 4 --micro-batch 2", "a call takes 2 samples, and features are those of one"),
    ],
)
@pytest.mark.usefixtures("place")
def test_steps_on_features_are_of_one_sample_in_one_memory(flags: str, said: str) -> None:
    assert said in refused("net.onnx", f"--features on --update head {flags}")


@pytest.mark.parametrize(
    ("tail", "flags", "asked"),
    [
        ("", "", True),
        ("Sigmoid", "", True),
        ("Softmax", "", False),
        ("", "--loss mse", False),
        ("", "--loss cross-entropy", False),
    ],
)
def test_an_output_of_the_inputs_shape_needs_a_loss(tail: str, flags: str, asked: bool, tmp_path: Path) -> None:
    """It may be an autoencoder: nothing is assumed, with or without data."""
    model = write(models.mlp(inputs=4, classes=4, tail=tail), tmp_path, "same.onnx")
    found = run(model, "--dry-run", "-o", tmp_path / "out", *flags.split())
    if asked:
        said = found.check_error("E0304", 2).err
        assert "--loss: the output has the shape of the input, (1, 4): an autoencoder, or a classifier?" in said
    else:
        found.check_success()


def test_every_pair_that_is_refused_says_so() -> None:
    """From the tables themselves: a pair that is added without a message that names both fails here."""
    values: dict[str, Any] = {
        "dampening": 0.1,
        "nesterov": True,
        "optimizer": "momentum",
        "memories": {"sram2": 1024},
        "input_lines": True,
        "lock": Path("plan.json"),
        "max_step_ps": 1,
        "count": True,
        "cycles": True,
        "inference_only": True,
        "plans": (1024, 2048),
        "arena_bytes": 1024,
        "flash_budget_bytes": 1024,
        "optimise": "memory",
        "micro_batch": 2,
    }
    found = ((name, import_module(f"tinytrain_compile.parts.{name}.part").PART) for name in PARTS)
    pairs = [(name, other) for name, part in found if name in OPTIONS for other in part.not_with]
    pairs += [("runtime=journal", other) for other in Journal.not_with]
    pairs.append(("nesterov", "dampening"))
    for pair in pairs:
        asked = {"update": "all", "optimizer": "momentum", "quant": "int8"}
        for name, _, value in (option.partition("=") for option in pair):
            asked[name] = RuntimeParts((value or "store",)) if name == "runtime" else value or values.get(name, "on")
        with pytest.raises(CompileError) as refusal:
            check_options(CompileOptions(Path("net.onnx"), **asked))
        named = [OPTIONS[option.partition("=")[0]].flag for option in pair]
        assert all(flag in str(refusal.value) for flag in named), (pair, str(refusal.value))
    assert len(pairs) > 20


def test_a_batch_of_one_trains_in_place_as_it_does_without(place: Path) -> None:
    """An option that leaves nothing to do where there is one sample does no harm."""
    del place
    made = [
        compile_model(CompileOptions(Path("net.onnx"), out, accumulate=how, update="all", verify="none"))
        for how, out in (("inplace", Path("a")), ("exact", Path("b")))
    ]
    assert made[0].digest == made[1].digest
