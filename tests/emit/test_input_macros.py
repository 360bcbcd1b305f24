"""M_INPUT_*, M_OUTPUT_* and M_LABEL_*: what a firmware may ask of the model's data at compile time, in C and C++."""

from __future__ import annotations

import ctypes
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from testing.networks import models
from tests.e2e import chain
from tests.emit.test_generated_c import STRICT, build, needs_gcc
from tests.quantize import nets
from tinytrain_compile.verify.build import write_files

pytestmark = needs_gcc
ASKS = """#include "net_train.h"
int shape(int *to);
int shape(int *to)
{
    const int in[] = NET_INPUT_SHAPE, out[] = NET_OUTPUT_SHAPE, label[] = NET_LABEL_SHAPE;
    NET_INPUT_TYPE element = 1;
    NET_LABEL_TYPE one = 1;
    int n = 0;
    for (int i = 0; i < NET_INPUT_RANK; i++) {
        to[n++] = in[i];
    }
    for (int i = 0; i < NET_OUTPUT_RANK; i++) {
        to[n++] = out[i];
    }
    for (int i = 0; i < NET_LABEL_RANK; i++) {
        to[n++] = label[i];
    }
    return n * 100 + (int)sizeof element * 10 + (int)sizeof one * (element == 1 && one == 1 ? 1 : 0);
}
"""


def value(header: str, name: str) -> str:
    found = re.search(rf"#define NET_{name} (.*)", header)
    assert found is not None, name
    return found[1]


@pytest.mark.parametrize("integer", [True, False], ids=["int8", "fp32"])
def test_they_are_those_of_the_graph(integer: bool, tmp_path: Path) -> None:
    train = nets.int8_train(nets.cnn(4, 2)) if integer else chain.train_graph(models.mlp())
    files = dict(chain.project(train).bundle.files)
    write_files(tmp_path, {**files, "asks.c": ASKS})
    build(["gcc", *STRICT, "-O2", "-shared", "-fPIC", "asks.c", "-o", "asks.so"], tmp_path)
    found = (ctypes.c_int * 16)()
    said = ctypes.CDLL(str(tmp_path / "asks.so")).shape(found)
    given, made = train.graph.inputs[0], train.graph.outputs[0]
    shapes = (*given.shape, *made.shape, *train.label.shape)
    assert said == 100 * len(shapes) + 10 * (1 if integer else 4) + 4
    assert tuple(found)[: len(shapes)] == shapes
    header = files["net_train.h"]
    assert value(header, "INPUT_IS_FLOAT") == str(int(not integer))
    assert int(value(header, "LABEL_CLASSES")) == made.elements
    if integer:
        assert given.layout == "NHWC"
        assert value(header, "INPUT_NHWC") == "1"
        sizes = [int(value(header, f"INPUT_{axis}")[:-1]) for axis in ("HEIGHT", "WIDTH", "CHANNELS")]
        assert (1, *sizes) == given.shape
        assert np.prod(sizes) == int(value(header, "INPUT_ELEMENTS")[:-1])
    else:
        assert "NET_INPUT_NHWC" not in header


def test_they_serve_cpp(tmp_path: Path) -> None:
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed")
    write_files(tmp_path, {**chain.project(nets.int8_train(nets.cnn(4, 2))).bundle.files, "asks.cpp": ASKS})
    build(
        ["g++", "-std=c++17", "-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-pedantic", "-Werror", "-c", "asks.cpp"],
        tmp_path,
    )
