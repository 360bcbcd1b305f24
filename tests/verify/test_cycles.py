"""--cycles: block counts are exact, figures are models and say so, and one line says where there is none."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from testing.networks import models
from tests.e2e.broken import write
from tests.e2e.command import run
from tests.e2e.marks import needs_qemu
from tinytrain_compile.target.model import Target
from tinytrain_compile.verify import cycles
from tinytrain_compile.verify.cycles import mca_text, read_blocks, table_cycles


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ([("add", "r0, r1")], 1),
        ([("ldr.w", "r0, [r1]"), ("ldrb", "r2, [r3]"), ("add", "r0, r1"), ("str", "r0, [r1]")], 6),
        ([("push", "{r4-r7, lr}"), ("vldmia", "r0, {s0-s3}"), ("ldrd", "r0, r1, [r2]")], 6 + 5 + 3),
        ([("vfma.f32", "s0, s1, s2"), ("vdiv.f32", "s0, s1, s2"), ("sdiv", "r0, r1, r2")], 24),
        ([("cmp", "r0, r1"), ("bne.n", "8000 <f>")], 4),
        ([("bic", "r0, r1"), ("bfi", "r0, r1, #0, #4"), ("bic.w", "r0, r1")], 3),
    ],
)
def test_the_table(code: list[tuple[str, str]], expected: int) -> None:
    assert table_cycles(code) == expected


@pytest.mark.parametrize(
    ("instruction", "text"),
    [
        (("ldr.w", "r0, [r1]"), "ldr r0, [r1]"),
        (("movne", "r0, #1"), "mov r0, #1"),
        (("itte", "eq"), ""),
        (("bne.n", "8000 <f+0x4>"), "bne ."),
        (("cbz", "r0, 8000 <f>"), "cbz r0, .+8"),
        (("bic.w", "r0, r1, #3"), "bic.w r0, r1, #3"),
    ],
)
def test_what_llvm_mca_reads(instruction: tuple[str, str], text: str) -> None:
    assert mca_text(*instruction) == text


@pytest.mark.qemu
@needs_qemu
@pytest.mark.parametrize(("target", "model"), [("cortex-m4", "table"), ("cortex-m7", "llvm-mca:cortex-m7")])
def test_figures_are_there_and_labelled(
    target: str, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if model != "table" and shutil.which("llvm-mca") is None:
        pytest.skip("llvm-mca is not installed")
    executed: list[int] = []
    original = cycles.cycle_model

    def spy(core: Target, image: Path, step: dict[cycles.Block, int], infer: dict[cycles.Block, int]) -> object:
        executed.extend(sum(size * n for (_, size), n in blocks.items()) for blocks in (step, infer))
        assert core.toolchain is not None
        code = cycles.disassembly(image, core.toolchain)
        assert all(address in code for address, _ in step), "blocks begin where instructions do"
        return original(core, image, step, infer)

    monkeypatch.setattr("tinytrain_compile.verify.check.cycle_model", spy)
    out = run(write(models.mlp(), tmp_path), "-o", tmp_path / "out", "--cycles", "--target", target).check_success().out
    work = json.loads((tmp_path / "out" / "report.json").read_text())["work"]
    assert executed == [work["train_step_instructions"], work["infer_instructions"]]
    assert work["cycles_model"] == model
    for name, count in zip(("train_step_cycles_model", "infer_cycles_model"), executed, strict=True):
        assert 0.4 * count < work[name] < 4 * count
    assert f"(a model, {model}; not measured)" in " ".join(out.split())


def test_cycles_need_the_emulator(tmp_path: Path) -> None:
    outcome = run(write(models.mlp(), tmp_path), "-o", tmp_path / "out", "--cycles", "--verify", "host")
    assert "--cycles" in outcome.check_error("E0113", 2).err


def test_reading_blocks(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_text("call\n8000 3 2\ncall\n8000 3 1\n8010 1 7\n")
    assert read_blocks(tmp_path / "b.txt") == [{(0x8000, 3): 2}, {(0x8000, 3): 1, (0x8010, 1): 7}]
