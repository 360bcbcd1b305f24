"""A core is data: a file is enough to compile and verify for one, and no name of a core stands in the code."""

from __future__ import annotations

import ast
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from testing.networks import models
from testing.places import ROOT
from tests.e2e.broken import write
from tests.e2e.command import FILE, HERE, run
from tests.e2e.marks import needs_qemu
from tests.verify import tiny_model
from tinytrain_compile.errors import CompileError
from tinytrain_compile.target.loader import load_target
from tinytrain_compile.verify.check import verify

DATA = tiny_model.samples()
NAMES = re.compile(
    r"arm-none-eabi|riscv|rv32|qemu-system-|cortex-m\d|armv\d|mps[23]-|__aeabi_|thumbv\d|libnewlib|picolibc"
)
"""What only files in targets/ may say."""
PARTS = ("emit", "lower", "plan", "report", "verify")


@needs_qemu
@pytest.mark.qemu
def test_a_core_that_nobody_has_heard_of_compiles_and_verifies(tmp_path: Path) -> None:
    """A Cortex-M4 on the Cortex-M7's machine, by another name, in a file outside of targets/."""
    m4, m7 = ((ROOT / "targets" / f"cortex-{core}.toml").read_text() for core in ("m4", "m7"))
    head, machine = m4[: m4.index("[qemu]")], m7[m7.index("[qemu]") :]
    (tmp_path / "marvel-9.toml").write_text(head.replace('name = "cortex-m4"', 'name = "marvel-9"', 1) + machine)
    model = write(models.mlp(), tmp_path)
    done = run(model, "--target", tmp_path / "marvel-9.toml", "--verify", "qemu", "-o", tmp_path / "out")
    done.check_success()
    assert "C in QEMU mps2-an500 vs this machine" in done.agreed and "PASS" in done.out
    assert "-mcpu=cortex-m4" in (tmp_path / "out" / "verify" / "Makefile").read_text()


@needs_qemu
@pytest.mark.qemu
@pytest.mark.parametrize("quant", [(), ("--quant", "int8")], ids=["float32", "int8"])
def test_a_cortex_m23_equals_host_and_reference(quant: tuple[str, ...], tmp_path: Path) -> None:
    digits = ROOT / "examples" / "digits"
    data = ("--data", digits / "data.npz", *(("--calib", digits / "data.npz") if quant else ()))
    flags = ("--target", "cortex-m23", "--verify", "qemu", "-o", tmp_path / "out")
    done = run(digits / "digits.onnx", *data, *quant, *flags).check_success()
    assert done.agreed[:3] == (FILE, HERE, "C in QEMU mps2-an505 vs this machine")
    assert re.search(r"C in QEMU mps2-an505 vs this machine +identical bytes +ok$", done.out, re.MULTILINE)


@needs_qemu
@pytest.mark.qemu
def test_a_core_without_a_machine_is_measured_and_not_run() -> None:
    m85, reference = load_target("cortex-m85"), tiny_model.reference(DATA, 2)
    report = verify(tiny_model.bundle(), m85, DATA, reference, "qemu", steps=2)
    assert (report.mode, report.result, report.stack_measured_bytes) == ("host", "pass", None)
    assert report.stack_bytes and report.code_bytes and report.const_bytes is not None
    assert report.message.endswith(
        "PASS   not verified on this core: its file names no QEMU machine; verified instead: the same C on this machine"
    )
    m55 = verify(tiny_model.bundle(), load_target("cortex-m55"), DATA, None, "qemu", steps=2)
    assert (report.stack_bytes, report.code_bytes) == (m55.stack_bytes, m55.code_bytes), "it is the M55's code"


def test_a_core_without_a_machine_and_without_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("gcc", "as", "ld"):
        found = shutil.which(name)
        assert found is not None
        (tmp_path / name).symlink_to(found)
    monkeypatch.setenv("PATH", str(tmp_path))
    report = verify(tiny_model.bundle(), load_target("cortex-m85"), DATA, None, "qemu", steps=1)
    assert report.stack_bytes is None
    assert report.unverified is not None
    missing = "arm-none-eabi-gcc not found (apt-get install gcc-arm-none-eabi libnewlib-arm-none-eabi)"
    assert report.unverified.why == f"its file names no QEMU machine; {missing}"


@needs_qemu
@pytest.mark.qemu
def test_flags_for_another_architecture_than_the_file_says(tmp_path: Path) -> None:
    text = (ROOT / "targets" / "cortex-m85.toml").read_text().replace("-mcpu=cortex-m55", "-mcpu=cortex-m33", 1)
    path = tmp_path / "core.toml"
    path.write_text(text)
    says = r"not code for armv8.1-m.main \(Tag_CPU_arch 17\)"
    with pytest.raises(CompileError, match=says) as caught:
        verify(tiny_model.bundle(), load_target(str(path)), DATA, None, "qemu", steps=1)
    assert "make gcc_flags and architecture of the target file agree" in str(caught.value)


def texts(path: Path) -> Iterator[str]:
    """Strings that code works with: all but docstrings. Of a template, all."""
    if path.suffix == ".j2":
        yield path.read_text()
        return
    tree = ast.parse(path.read_text())
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            yield node.value


@pytest.mark.parametrize("part", PARTS)
def test_no_core_and_no_toolchain_is_named_in_the_code(part: str) -> None:
    folder = ROOT / "compiler" / "tinytrain_compile" / part
    paths = [path for path in sorted(folder.rglob("*")) if path.suffix in (".py", ".j2")]
    assert paths
    assert [(path.name, found[0]) for path in paths for text in texts(path) if (found := NAMES.search(text))] == []
