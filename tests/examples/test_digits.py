"""examples/digits: the firmware learns in QEMU, and computes there what it computes on the host."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from testing.places import ROOT
from tests.e2e.marks import needs_qemu
from tests.examples.pages import check_page, check_row, figures, transcripts

DIGITS = ROOT / "examples" / "digits"


README, RUN = "examples/digits/README.md", "$ python examples/digits/run.py\n"
RUN_INT8 = "$ python examples/digits/run.py --quant int8\n"


def _seeds() -> ModuleType:
    """examples/digits/seeds.py, which is no part of a package."""
    spec = importlib.util.spec_from_file_location("digits_seeds", DIGITS / "seeds.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _arena(*flags: str) -> int:
    """What a plan of the example takes, in bytes."""
    command = [sys.executable, "-m", "tinytrain_compile", str(DIGITS / "digits.onnx"), "--update", "all", "--dry-run"]
    text = subprocess.run([*command, *flags], check=True, capture_output=True, text=True, timeout=120).stdout
    return int(re.findall(r"^RAM +([\d,]+) B", text, re.MULTILINE)[0].replace(",", ""))


def test_no_weight_gradient_is_stored() -> None:
    """They were 9,216 B (of conv3) and, in the float32 region of the int8 network, 10,240 B (of the classifier)."""
    assert _arena() <= 31_500
    assert _arena("--quant", "int8", "--calib", str(DIGITS / "calib.npz")) <= 21_500


def _accuracies(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"held-back accuracy ([0-9.]+) %", text)]


@pytest.mark.qemu
@needs_qemu
def test_the_firmware_learns_in_qemu_what_the_host_learns() -> None:
    with transcripts.sandbox() as folder:
        page = transcripts.refresh(README, folder, lambda block: RUN in block)
        out = folder / "examples" / "digits" / "out"
        board, host = ((out / machine / "trained.bin").read_bytes() for machine in ("qemu", "host"))
        assert (out / "qemu" / "firmware.elf").read_bytes()[:4] == b"\x7fELF"
        report = json.loads((out / "generated" / "report.json").read_text())
    text = page.new.partition(RUN)[2].partition("```")[0]
    check_row("digits fp32", figures.DIGITS["fp32"], report, figures.accuracies(text))
    accuracies = _accuracies(text)
    losses = [float(number) for number in re.findall(r"epoch .* loss ([0-9.]+)", text)]
    assert len(accuracies) == len(losses) + 1 == 13
    assert accuracies[-1] - accuracies[0] >= 20
    assert losses[-1] < losses[0] / 10
    assert len(board) == 24_576
    assert board == host
    checks = text.partition("\nchecks ")[2].partition("\n\n")[0]
    assert re.search(r"model file vs numpy reference +max error \S+ +ok\n", checks)
    assert re.search(r"C on this machine vs numpy reference +max error \S+ +ok\n", checks)
    assert re.search(r"C in QEMU mps2-an500 vs this machine +identical bytes +ok\n", checks)
    assert re.search(r"losses before updates, on samples 1 to 3 of 700: (\S+, ){2}\S+", " ".join(checks.split()))
    assert "equal      yes: every printed number and all 24,576 bytes" in text
    assert page.differences() == [], "`make docs` writes the page anew"


@pytest.mark.qemu
@needs_qemu
def test_the_int8_firmware_learns_in_qemu_what_the_host_learns() -> None:
    with transcripts.sandbox() as folder:
        page = transcripts.refresh(README, folder, lambda block: RUN_INT8 in block)
        out = folder / "examples" / "digits" / "out"
        board, host = ((out / machine / "trained.bin").read_bytes() for machine in ("qemu", "host"))
        report = json.loads((out / "generated" / "report.json").read_text())
    text = page.new.partition(RUN_INT8)[2].partition("```")[0]
    check_row("digits int8", figures.DIGITS["int8"], report, figures.accuracies(text))
    accuracies = _accuracies(text)
    assert len(accuracies) == 13
    assert accuracies[-1] - accuracies[0] >= 20
    assert len(board) == 14_100
    assert board == host
    for sides in ("C on this machine vs numpy reference", "C in QEMU mps2-an500 vs this machine"):
        assert re.search(rf"{sides} +identical bytes +ok\n", text)
    assert page.differences() == [], "`make docs` writes the page anew"


def test_both_formats_side_by_side_are_those_of_the_runs_above() -> None:
    with transcripts.sandbox() as folder:
        page = transcripts.refresh(README, folder, lambda block: "side_by_side.py" in block)
    assert "<!-- output: python scripts/side_by_side.py -->" in page.old
    assert page.new == page.old, "`make docs` writes the page anew"


@pytest.mark.slow
def test_the_int8_firmware_ends_with_the_weights_of_the_reference(tmp_path: Path) -> None:
    """8,400 steps; tests/e2e/test_int8.py compares the first hundred on all cores."""
    command = [sys.executable, str(DIGITS / "run.py"), "--quant", "int8", "--host", "--work", str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True, cwd=ROOT, timeout=600)
    seeds = _seeds()
    train = seeds.training_graph("int8", 0)
    trainer, samples = seeds.Trainer(train), seeds.images(train, "")
    for _ in range(12):
        seeds.epoch(trainer, samples, range(len(samples[1])))
    state = b"".join(trainer.state[value.name].tobytes() for value in train.graph.state)
    assert (tmp_path / "host" / "trained.bin").read_bytes()[16:-4] == state


def test_the_reference_learns_as_well_in_int8_as_in_float32() -> None:
    """One pass of seed 0; seeds.py does eight (the mean paired difference is in the README)."""
    seeds = _seeds()
    accuracies = [seeds.result((quant, 0, 1)) for quant in seeds.FORMATS]
    assert min(accuracies) >= 75
    assert abs(accuracies[1] - accuracies[0]) <= 6  # one seed is noisy


def test_without_cross_tools_it_trains_on_the_host_and_says_so(tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("gcc", "as", "ld", "cc"):
        found = shutil.which(name)
        if found is not None:
            (tools / name).symlink_to(found)
    command = [sys.executable, str(DIGITS / "run.py"), "--work", str(tmp_path / "work")]
    environment = {**os.environ, "PATH": str(tools)}
    finished = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT, timeout=600)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    missing = "arm-none-eabi-gcc and qemu-system-arm not found (apt-get install"
    assert "not verified on this core: arm-none-eabi-gcc" in finished.stdout  # the compiler, in its report
    assert f"QEMU skipped: {missing}" in finished.stdout  # run.py
    assert _accuracies(finished.stdout)[-1] >= 85
    assert "equal " not in finished.stdout


def test_pretraining_and_device_images_have_none_in_common() -> None:
    with np.load(DIGITS / "data.npz") as data:
        x, y, x_test, y_test = (data[name] for name in ("x", "y", "x_test", "y_test"))
    assert (x.shape, x_test.shape) == ((700, 1, 8, 8), (497, 1, 8, 8))
    assert (y.dtype, set(y), set(y_test)) == (np.int32, set(range(10)), set(range(10)))
    assert x.dtype == np.float32
    assert 0 <= x.min() < x.max() <= 1
    assert not {image.tobytes() for image in x} & {image.tobytes() for image in x_test}


def test_data_comes_from_its_script(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    subprocess.run([sys.executable, str(DIGITS / "make_data.py"), "--out", str(tmp_path)], check=True, timeout=120)
    for name in ("data.npz", "calib.npz"):
        with np.load(DIGITS / name) as old, np.load(tmp_path / name) as new:
            assert sorted(old) == sorted(new)
            for key in old:
                np.testing.assert_allclose(new[key], old[key], atol=1.01 / 255)  # a grey level may round otherwise


@pytest.mark.slow
def test_accuracy_by_arena_is_what_the_readme_says() -> None:
    check_page(README, only="arenas.py")
