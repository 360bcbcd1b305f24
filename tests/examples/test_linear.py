"""examples/linear: the program finds a and b, and the page quotes what the compiler writes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from testing.places import ROOT
from tests.e2e.marks import needs_qemu
from tests.examples.pages import check_page

LINEAR = ROOT / "examples" / "linear"


def test_it_finds_a_and_b(tmp_path: Path) -> None:
    out = tmp_path / "out"
    flags = ["--loss", "mse", "--lr", "0.1", "--verify", "host", "-o", str(out)]
    command = [sys.executable, "-m", "tinytrain_compile", str(LINEAR / "linear.onnx"), *flags]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    warnings = ["-Wall", "-Wextra", "-Wconversion", "-pedantic", "-Werror"]
    sources = [str(path) for path in (*sorted(out.glob("*.c")), LINEAR / "main.c")]
    program = str(tmp_path / "linear")
    build = ["gcc", "-std=c11", "-O2", *warnings, f"-I{out}", *sources, "-o", program]
    subprocess.run(build, check=True, timeout=120)
    text = subprocess.run([program], check=True, capture_output=True, text=True, timeout=60).stdout
    sample, loss, a, b = text.splitlines()[-1].split()
    assert (sample, loss, a, b) == ("200", "0.0000", "3.000", "-2.000")
    assert len((LINEAR / "main.c").read_text(encoding="utf-8").splitlines()) <= 60


def test_the_model_comes_from_its_script(tmp_path: Path) -> None:
    (tmp_path / "make_model.py").write_bytes((LINEAR / "make_model.py").read_bytes())
    subprocess.run([sys.executable, str(tmp_path / "make_model.py")], check=True, timeout=60)
    assert onnx.load(tmp_path / "linear.onnx") == onnx.load(LINEAR / "linear.onnx")


@pytest.mark.qemu
@needs_qemu
def test_the_readme_shows_what_the_commands_print() -> None:
    check_page("examples/linear/README.md")
