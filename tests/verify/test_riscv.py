"""RISC-V: the check, its figures, and the bytes that Cortex-M cores of the same float32 rule compute."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from testing.cores import RISCV, missing_tools
from testing.images.arduino_rules import library_objects
from testing.kernels.boards import measure
from testing.kernels.fuzz import check_on_board
from testing.ops.case_quantised import qconv_sum
from testing.ops.case_tiles import TILED, tiled_cases
from testing.places import ROOT
from testing.power import campaign
from tests.e2e.command import FILE, HERE, run
from tests.e2e.marks import needs_qemu
from tinytrain_compile.compilation import make_project
from tinytrain_compile.driver.pipeline import Project
from tinytrain_compile.emit.packages import Package, PackageFacts, package_files
from tinytrain_compile.ir.runtime_parts import RuntimeParts
from tinytrain_compile.ops.conv import ConvAttrs
from tinytrain_compile.ops.int8.update import QSumAttrs
from tinytrain_compile.options.compile_options import CompileOptions
from tinytrain_compile.target.loader import load_target
from tinytrain_compile.target.model import Target
from tinytrain_compile.verify.build import compile_project, link_project, write_files
from tinytrain_compile.verify.firmware import GUARD_BYTES, fill
from tinytrain_compile.verify.run import run_image
from tinytrain_compile.verify.symbols import open_elf
from tinytrain_compile.verify.tools import find_tools, work_folder

DIGITS = ROOT / "examples" / "digits"
PROGRAM = Path(__file__).parent / "programs" / "store.c"
SAMPLES = 4
Quant = Literal["fp32", "int8"]

pytestmark = [
    pytest.mark.skipif(bool(missing_tools(RISCV[0])), reason=f"make setup RISCV=1: {missing_tools(RISCV[0])}"),
    needs_qemu,
    pytest.mark.qemu,
]


@pytest.mark.parametrize(
    ("core", "quant", "most", "more"),
    [
        ("riscv32-imac", "fp32", 27_600_000, ()),
        ("riscv32-imac", "int8", 2_360_000, ()),
        ("riscv32-imac", "int8", 804_000, ("--head", "int8")),
        ("riscv32-imafc", "fp32", 408_000, ()),
        ("riscv32-imafc", "int8", 580_000, ()),
        ("riscv32-imafc", "fp32", 590_000, ("--optimizer", "adam")),
    ],
)
def test_digits_pass_the_check_and_are_measured(
    core: str, quant: Quant, most: int, more: tuple[str, ...], tmp_path: Path
) -> None:
    """most: instructions of a step with GCC 12.2, rounded up. Adam takes square roots."""
    given = ("--data", DIGITS / "data.npz", "--quant", quant, *(("--calib", DIGITS / "calib.npz") * (quant == "int8")))
    flags = ("--target", core, "--verify", "qemu", "--count", *more, "-o", tmp_path / "out")
    done = run(DIGITS / "digits.onnx", *given, *flags).check_success()
    assert done.agreed[:3] == (FILE, HERE, "C in QEMU virt vs this machine")
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["verify"]["message"].endswith("QEMU bit-exact   PASS")
    memory = report["memory"]
    assert 0 < memory["stack_measured_bytes"] <= memory["stack_bytes"] <= load_target(core).stack_budget_bytes
    assert report["flash"]["code_bytes"] > 0 and report["flash"]["const_bytes"] > 9_000
    assert 0.9 * most < report["work"]["train_step_instructions"] <= most


@cache
def project(core: str, quant: Quant, update: str = "all", parts: tuple[str, ...] = ("store",)) -> Project:
    """Digits with parts of --runtime."""
    calib = DIGITS / "calib.npz" if quant == "int8" else None
    asked = CompileOptions(DIGITS / "digits.onnx", update=update, verify="none", target=core, quant=quant, calib=calib)
    made = make_project(replace(asked, runtime=RuntimeParts(parts)))
    assert isinstance(made, Project)
    return made


def trained(core: str, quant: Quant, first: int, medium: bytes) -> tuple[bytes, bytes]:
    """Return the losses of SAMPLES steps on a core; and the store, a checkpoint and a delta after them.

    medium: what another run kept; b"" is a new store."""
    target, bundle = load_target(core), project(core, quant, parts=("delta", "store")).bundle
    values = {"GUARD": str(GUARD_BYTES), "SAMPLES": str(SAMPLES)}
    text = campaign.named(fill(PROGRAM.read_text(), values), "digits").replace('"m_', '"digits_')
    bundle = replace(bundle, files={**bundle.files, "verify/store.c": text})
    data = np.load(DIGITS / "data.npz")
    each = zip(data["x"][first : first + SAMPLES], data["y"][first : first + SAMPLES], strict=True)
    samples = b"".join(x.tobytes() + y.tobytes() for x, y in each)
    tools = find_tools(target)
    with work_folder() as folder:
        made = compile_project(bundle, target, "qemu", tools, folder, ("verify/store.c", "verify/startup.c"))
        assert not [found for path in made.model_objects if (found := ATOMIC.search(disassembled(target, path)))]
        size = 2 * (bundle_bytes(bundle.files["digits_store.h"]) + 2 + 1024)
        size += sum(defined(bundle.files.values(), f"DIGITS_{name}_BYTES") for name in ("CHECKPOINT", "DELTA"))
        output = run_image(
            link_project(made, target, tools), target, tools, (medium or bytes(size)) + samples, timeout_s=60
        )
    assert len(output) == 4 * SAMPLES + size
    return output[: 4 * SAMPLES], output[4 * SAMPLES :]


ATOMIC = re.compile(r"\t(amo\w+|[ls][rc])\.[wd]")
"""Instructions that the ESP32-C3 lacks: they are in the architecture that the compiler is given, but in no code."""


def disassembled(target: Target, path: Path) -> str:
    """An object as text."""
    assert target.toolchain is not None
    command = [target.toolchain.objdump.name, "-d", "--no-show-raw-insn", path]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def defined(texts: Iterable[str], name: str) -> int:
    """A number that a header defines."""
    return int(next(found[1] for text in texts if (found := re.search(rf"#define {name} (\d+)u", text))))


def bundle_bytes(header: str) -> int:
    """Bytes of a slot without units, as the header of the store says."""
    return int(header.partition("_STORE_SLOT_BYTES(unit) (")[2].partition("u")[0])


ALIKE = [
    ("riscv32-imafc", "cortex-m4", "fp32"),
    ("riscv32-imac", "cortex-m3", "fp32"),
    ("riscv32-imafc", "cortex-m4", "int8"),
    ("riscv32-imac", "cortex-m4", "int8"),
]
"""Cores that compute the same: in float32 those that fuse products, and those that do not; in int8 all."""


@pytest.mark.parametrize(("core", "other", "quant"), ALIKE)
def test_a_store_a_checkpoint_and_a_delta_go_from_one_family_to_the_other(core: str, other: str, quant: Quant) -> None:
    """Each trains, and goes on from the store of the other, with equal losses and equal bytes."""
    mine, begun = trained(core, quant, 0, b""), trained(other, quant, 0, b"")
    assert mine == begun and len(set(np.frombuffer(mine[0], np.float32))) == SAMPLES
    there, here = trained(other, quant, SAMPLES, mine[1]), trained(core, quant, SAMPLES, begun[1])
    assert there == here and there[1] != mine[1]
    assert here[0] != trained(core, quant, SAMPLES, b"")[0], "it went on"


def test_integer_kernels_equal_the_reference() -> None:
    """Also with factors that no network here has: 2 random cases of every operator."""
    assert check_on_board("riscv32-imac", 2) > 80


@pytest.mark.parametrize("core", [core.name for core in RISCV])
def test_large_tiles_equal_the_reference(core: str) -> None:
    """Of integers, and of float32 that is as exact; the cases have longer sums too."""
    cases = [case for op in TILED for case in tiled_cases(op, 15)]
    assert [found.equal for found in measure(cases, core)] == [True] * len(cases)


def test_sums_that_no_float_holds_are_exact() -> None:
    """600 products of 255 and 127 are more than 2^24; all that is added is odd."""
    case = qconv_sum(np.random.default_rng(0), ((1, 4, 150, 4), 4, ConvAttrs((1, 1))), 0)
    assert isinstance(case.attrs, QSumAttrs)
    total, *factors = case.arrays
    arrays = (np.zeros_like(total), *(np.full_like(factor, 127) for factor in factors))
    largest = replace(case, arrays=arrays, attrs=replace(case.attrs, x_zero=-128))
    assert measure([largest], "riscv32-imafc")[0].equal


@pytest.mark.parametrize("board", ["gd32vf103", "ch32v307"])
def test_a_program_links_by_the_script_of_a_board(board: str, tmp_path: Path) -> None:
    target, made = load_target(board), project(board, "fp32", "last:2")
    assert target.toolchain is not None and "board/link.ld" in made.files
    text = {path: text for path, text in made.files.items() if isinstance(text, str) and "verify" not in path}
    write_files(tmp_path, text | {"main.c": MAIN})
    sources = [*sorted(path for path in text if path.endswith(".c") and "/" not in path), "main.c"]
    command = [target.toolchain.compiler.name, *target.gcc_flags, "-O2", *sources, "-nostartfiles", "-Tboard/link.ld"]
    subprocess.run([*command, "-o", "firmware"], cwd=tmp_path, check=True)
    assert target.board is not None
    with open_elf(tmp_path / "firmware") as elf:
        arena = elf.get_section_by_name(".tt_sram")
        low = target.board.memories[0].region.origin + target.board.memories[0].reserve_bytes
        assert arena["sh_addr"] >= low and arena["sh_addr"] + arena["sh_size"] <= target.board.stack.region.end


@pytest.mark.parametrize(
    ("board", "kind", "machine"),
    [
        ("gd32vf103", "platformio", ("-march=rv32imc", "-mabi=ilp32")),  # of an ESP32-C3, which has no atomics
        ("ch32v307", "zephyr", ("-march=rv32imafc", "-mabi=ilp32f")),
    ],
)
def test_sources_of_a_package_compile(board: str, kind: Package, machine: tuple[str, ...], tmp_path: Path) -> None:
    """With the flags of an IDE: -Os, all warnings as errors."""
    target, made = load_target(board), project(board, "fp32", "last:2")
    assert target.toolchain is not None
    write_files(tmp_path, package_files(kind, made.bundle, PackageFacts("digits", target)))
    flags = (*target.toolchain.compile_flags, *machine)
    assert len(library_objects(tmp_path, tmp_path, target.toolchain.compiler.name, flags)) > 2


MAIN = """#include "digits_board.h"
DIGITS_IN_ARENA static unsigned char arena[DIGITS_ARENA_BYTES];
void Reset_Handler(void);
__attribute__((section(".vectors"))) void Reset_Handler(void)
{
    digits_t *m;
    for (;;) {
        (void)digits_init(&m, arena, sizeof arena);
    }
}
"""


def test_float32_differs_where_products_are_fused() -> None:
    """Checkpoints of both are read all the same: a build that fuses may go on where another began."""
    fused, other = (trained(core, "fp32", 0, b"") for core in ("riscv32-imafc", "riscv32-imac"))
    assert fused != other
    losses = [np.frombuffer(each[0], np.float32) for each in (fused, other)]
    assert np.allclose(*losses, rtol=1e-4)
    trained("riscv32-imafc", "fp32", SAMPLES, other[1])
