"""M_PART_HOOK: a function of the firmware behind every part of a call; without it the code is as if there were none."""

from __future__ import annotations

import ctypes
import re
from dataclasses import replace
from pathlib import Path

import numpy as np

from testing.networks import models
from tests.e2e import chain
from tests.emit.device import Device
from tests.emit.test_generated_c import NUMERIC, STRICT, build, needs_gcc
from tests.parts.test_slices import samples
from tinytrain_compile.verify.build import write_files

pytestmark = needs_gcc
COUNTED = "int hooked = 0;\nvoid count(void);\nvoid count(void)\n{\n    hooked++;\n}\n"


class Hooked(Device):
    """A device that counts."""

    @property
    def hooked(self) -> int:
        return ctypes.c_int.in_dll(self._library, "hooked").value


def test_it_is_called_behind_every_part(tmp_path: Path) -> None:
    made = chain.project(chain.train_graph(models.mlp()), slices=True)
    with_hook = replace(made, bundle=replace(made.bundle, files={**made.bundle.files, "count.c": COUNTED}))
    device = Hooked(with_hook, tmp_path, (*STRICT, "-DNET_PART_HOOK=count"))
    x, y = samples(made)
    parts = re.search(r"PARTS = (\d+),\n\};", made.bundle.files["net_train.c"])
    assert parts is not None
    device.train(x[0], y[0])
    assert device.hooked == int(parts[1])
    assert np.isfinite(device.train(x[1], y[1]))
    assert device.hooked == 2 * int(parts[1])


def test_without_it_there_is_nothing(tmp_path: Path) -> None:
    files = chain.project(chain.train_graph(models.mlp())).bundle.files
    assert "    NET_PART_HOOK();\n" in files["net_train.c"]
    without = {**files, "net_train.c": files["net_train.c"].replace("    NET_PART_HOOK();\n", "")}
    codes = list[bytes]()
    for name, some in (("with", files), ("without", without)):
        write_files(tmp_path / name, dict(some))
        build(["gcc", "-std=c11", *NUMERIC, "-O2", "-c", "net_train.c", "-o", "net.o"], tmp_path / name)
        build(["objcopy", "-O", "binary", "-j", ".text", "net.o", "net.bin"], tmp_path / name)
        codes.append((tmp_path / name / "net.bin").read_bytes())
    assert codes[0] == codes[1] != b""
