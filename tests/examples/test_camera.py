"""examples/camera: RGB565 lines of pictures teach the model colours; its files are those of its script."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx

from testing.places import ROOT
from tests.emit.test_generated_c import needs_gcc

CAMERA = ROOT / "examples" / "camera"


@needs_gcc
def test_it_learns_colours(tmp_path: Path) -> None:
    command = [sys.executable, str(CAMERA / "run.py"), "--host", "--out", str(tmp_path / "out")]
    text = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout
    before, after = (float(share) for share in re.findall(r"^ +(?:before|after) .* ([0-9.]+) %$", text, re.MULTILINE))
    assert before < 40 and after > 90


def test_the_model_and_its_samples_come_from_their_script(tmp_path: Path) -> None:
    (tmp_path / "make_model.py").write_bytes((CAMERA / "make_model.py").read_bytes())
    subprocess.run([sys.executable, str(tmp_path / "make_model.py")], check=True, timeout=60)
    assert onnx.load(tmp_path / "camera.onnx") == onnx.load(CAMERA / "camera.onnx")
    with np.load(tmp_path / "calib.npz") as made, np.load(CAMERA / "calib.npz") as kept:
        assert all(np.array_equal(made[name], kept[name]) for name in ("x", "y"))
