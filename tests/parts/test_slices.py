"""--slices on: a step in pieces gives the bytes of a whole one, whatever the budget, and nobody disturbs it."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tinytrain_compile as tt
from testing.networks import models
from testing.places import ROOT
from tests.e2e import chain
from tests.e2e.broken import write
from tests.emit.device import OK, Device
from tests.emit.test_generated_c import STRICT, build, needs_gcc
from tests.quantize import nets
from tinytrain_compile.ir.types import Array
from tinytrain_compile.verify.build import write_files

pytestmark = needs_gcc
ERR_ARGUMENT, ERR_STATE, ERR_NAN = 1, 4, 5
STEPS = 4
PROJECTS: dict[str, Callable[[], chain.Project]] = {
    "float32": lambda: chain.project(chain.train_graph(models.mlp()), slices=True),
    "adam": lambda: chain.project(chain.train_graph(models.mlp(), optimizer="adam"), slices=True),
    "batch": lambda: chain.project(chain.train_graph(models.mlp(), batch=4), slices=True),
    "samples of no weight": lambda: chain.project(
        chain.train_graph(models.with_loss(models.mlp(), [1, 2, 3, 4], "mean", ignore=-1), batch=2), slices=True
    ),
    "int8 whose first step finds exponents": lambda: chain.project(nets.int8_train(nets.cnn(4, 2)), slices=True),
    "int8, momentum, in place": lambda: chain.project(
        nets.int8_train(nets.cnn(4, 2), head="int8", optimizer="momentum", batch=4, accumulate="inplace"), slices=True
    ),
}


class Sliced(Device):
    """A device that can compute its steps in slices."""

    def begin(self) -> int:
        return self._call("step_begin")

    def slice(self, label: Array, budget: int) -> tuple[int, float, int]:
        loss, done = ctypes.c_float(), ctypes.c_int(-1)
        labels = label.ctypes.data_as(ctypes.c_void_p)
        status = self._call("step_slice", labels, ctypes.c_uint32(budget), ctypes.byref(loss), ctypes.byref(done))
        return status, loss.value, done.value

    def sliced_step(self, x: Array, y: Array, budget: int) -> tuple[float, int]:
        """The loss of a step in slices, and how many."""
        self.put(x)
        assert self.begin() == OK
        loss, count = 0.0, 0
        while True:
            status, known, done = self.slice(y, budget)
            assert status == OK
            loss, count = known or loss, count + 1
            if done:
                if self.interface.accumulates:
                    assert self._call("apply") == OK
                return loss, count

    def has_input(self) -> bool:
        return self.slot() is not None

    def others(self) -> list[int]:
        """The statuses of all other calls."""
        out, loss, label = ctypes.create_string_buffer(4096), ctypes.c_float(), ctypes.create_string_buffer(4096)
        return [
            self._call("infer", out),
            self._call("train_step", label, ctypes.byref(loss)),
            self._call("set_lr", ctypes.c_float(0.5)),
            self._call("step_begin"),
            self.try_save()[0],
            self.load(b""),
        ]


def samples(made: chain.Project) -> tuple[Array, Array]:
    rng = np.random.default_rng(0)
    face = made.bundle.interface
    x = rng.normal(size=(STEPS, face.input_elements))
    x = np.clip(x * 40, -127, 127).astype(np.int8) if face.input_dtype == "int8" else x.astype(np.float32)
    return x, rng.integers(0, 2, (STEPS, 1)).astype(np.int32)


@pytest.mark.parametrize("name", PROJECTS)
def test_slices_give_the_bytes_of_whole_steps(name: str, tmp_path: Path) -> None:
    made = PROJECTS[name]()
    x, y = samples(made)
    if name == "samples of no weight":
        y[-1] = -1
    whole = Sliced(made, tmp_path / "whole", (*STRICT, "-O0"))
    losses = [whole.train(*one) for one in zip(x, y, strict=True)]
    expected = whole.save()
    counts = list[int]()
    for budget in (0, 250, 2**32 - 1):
        device = Sliced(made, tmp_path / str(budget), ("-O0",))
        found = [device.sliced_step(*one, budget) for one in zip(x, y, strict=True)]
        assert [loss for loss, _ in found] == losses
        assert device.save() == expected
        counts.append(found[0][1])
    costs = part_cycles(made)
    assert counts == [len(costs), greedy(costs, 250), 1]
    assert counts[0] > counts[1] > 1


def part_cycles(made: chain.Project) -> list[int]:
    """The table that the C has."""
    table = re.search(r"part_cycles\[\d+\] = \{(.*?)\};", made.bundle.files["net_train.c"], re.DOTALL)
    assert table is not None
    return [int(number) for number in re.findall(r"\d+", table[1])]


def greedy(costs: list[int], budget: int) -> int:
    """Slices, each with as many parts as fit."""
    slices, left = 0, 0
    for cost in costs:
        if cost > left:
            slices, left = slices + 1, budget
        left -= cost
    return slices


def test_nobody_disturbs_a_step(tmp_path: Path) -> None:
    made = PROJECTS["float32"]()
    (x, *_), (y, *_) = samples(made)
    whole, device = (Sliced(made, tmp_path / name, ("-O0",)) for name in ("whole", "sliced"))
    loss = whole.train(x, y)
    assert device.slice(y, 0)[0] == ERR_STATE, "nothing was begun"
    device.put(x)
    assert device.begin() == OK
    found, done = float("nan"), 0
    while not done:
        assert device.others() == [ERR_STATE] * 6
        assert not device.has_input()
        assert device.slice(np.asarray([99], np.int32), 0)[0] == ERR_ARGUMENT, "no class; the step goes on"
        _, known, done = device.slice(y, 0)
        found = known or found
    assert found == loss
    assert device.save() == whole.save()


def test_a_loss_that_is_no_number_ends_the_step(tmp_path: Path) -> None:
    made = chain.project(chain.train_graph(models.mlp(), loss="mse"), slices=True)
    (x, *_), (y, *_) = samples(made)
    y = np.full(y.shape, 3e38, np.float32)  # numbers, whose squares are none
    device = Sliced(made, tmp_path, ("-O0",))
    before = device.save()
    device.put(x)
    assert device.begin() == OK
    statuses = list[int]()
    while not statuses or statuses[-1] == OK:
        status, _, done = device.slice(y, 0)
        assert done == (status != OK)
        statuses.append(status)
    assert statuses[-1] == ERR_NAN
    assert device.save() == before
    device.put(x)
    assert device.begin() == OK, "the next one"


def test_the_header_says_what_a_step_takes(tmp_path: Path) -> None:
    made = PROJECTS["float32"]()
    device = Sliced(made, tmp_path, ("-O0",))
    longest, step = (int(device.macro(name)[:-1]) for name in ("SLICE_LONGEST", "STEP_CYCLES"))
    assert 100 < longest < step < 100 * longest


def test_the_c_of_the_page_compiles(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "slices.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```c\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == 2, "slices, and the hook"
    for block in blocks:
        text = re.sub(r"\bM_", "NET_", re.sub(r"\bm_", "net_", block))
        write_files(tmp_path, {**PROJECTS["float32"]().bundle.files, "page.c": text})
        build(["gcc", *STRICT, "-O2", "-c", "page.c"], tmp_path)


def test_the_report_names_the_longest_part(tmp_path: Path) -> None:
    options: dict[str, Any] = {"update": "all", "verify": "none", "name": "net"}
    made = tt.compile(write(models.mlp(), tmp_path, "m.onnx"), slices="on", **options)
    header, said = str(made.files["net_train.h"]), made.report["slices"]
    numbers = {name: int(found) for name, found in re.findall(r"NET_(STEP_CYCLES|SLICE_LONGEST) (\d+)u", header)}
    assert (numbers["STEP_CYCLES"], numbers["SLICE_LONGEST"]) == (said["step_cycles"], said["longest"]["cycles"])
    assert 1 < said["longest"]["parts_of_node"] < said["parts"]
    assert tt.compile(write(models.mlp(), tmp_path, "m.onnx"), **options).report["slices"] is None
