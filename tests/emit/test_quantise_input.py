"""m_quantise_input: real numbers as the input of an int8 model takes them, as numpy and ONNX round them."""

from __future__ import annotations

import ctypes
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.e2e import chain
from tests.emit.test_generated_c import STRICT, build, needs_gcc
from tests.quantize import nets
from tinytrain_compile.data.samples import stored_input
from tinytrain_compile.verify.build import write_files

pytestmark = needs_gcc
TEXT = '#include "net_train.h"\nint8_t call(float x);\nint8_t call(float x) { return net_quantise_input(x); }\n'


def test_real_numbers_are_rounded_as_numpy_does(tmp_path: Path) -> None:
    train = nets.int8_train(nets.cnn(4, 2))
    files = dict(chain.project(train).bundle.files)
    quant = re.search(r"NET_INPUT_SCALE (\S+)f\n.*\n#define NET_INPUT_ZERO \((-?\d+)\)", files["net_train.h"])
    assert quant is not None
    scale, zero = np.float32(quant[1]), int(quant[2])
    write_files(tmp_path, {**files, "call.c": TEXT})
    build(["gcc", *STRICT, "-O2", "-shared", "-fPIC", "call.c", "-o", "call.so"], tmp_path)
    call = ctypes.CDLL(str(tmp_path / "call.so")).call
    call.restype, call.argtypes = ctypes.c_int8, [ctypes.c_float]
    steps = np.concatenate([np.arange(-600, 600) / 2, np.random.default_rng(0).uniform(-300, 300, 3000)])
    reals = (steps.astype(np.float32) * scale).astype(np.float32)
    reals = np.concatenate([reals, np.asarray([3e38, -3e38, np.inf, -np.inf, 1e-40, -0.0], np.float32)])
    with np.errstate(over="ignore"):
        expected = np.clip(np.rint(reals / scale) + zero, -128, 127).astype(int)
    assert [call(float(real)) for real in reals] == expected.tolist()
    assert call(float("nan")) == -128
    finite = np.isfinite(reals)
    assert stored_input(reals[finite], train).tolist() == expected[finite].tolist(), "the desk rounds likewise"


def test_the_header_serves_cpp(tmp_path: Path) -> None:
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed")
    files = dict(chain.project(nets.int8_train(nets.cnn(4, 2))).bundle.files)
    write_files(tmp_path, {**files, "call.cpp": TEXT})
    strict = ["-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-pedantic", "-Werror"]
    build(["g++", "-std=c++17", *strict, "-c", "call.cpp"], tmp_path)
