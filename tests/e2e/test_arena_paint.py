"""The arena is painted anew after every call: its high-water mark in QEMU is the plan's size, to the alignment."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from testing.networks import models
from tests.e2e import chain
from tests.e2e.chain import Project
from tests.e2e.marks import needs_qemu
from tests.quantize import nets
from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.stages import SourceBundle, TrainGraph
from tinytrain_compile.target.loader import load_target

NETS: dict[str, Callable[[], TrainGraph]] = {
    "mlp, adam": lambda: chain.train_graph(models.mlp(), "all", optimizer="adam"),
    "residual net": lambda: chain.train_graph(models.resnet8(4, 8), "all"),
    "separable net, two samples": lambda: chain.train_graph(models.ds_cnn(6, 2, (12, 6)), "all", batch=2),
    "int8 net": lambda: nets.int8_train(nets.cnn(), learning_rate=0.05),
}


@needs_qemu
@pytest.mark.qemu
@pytest.mark.parametrize("name", NETS)
def test_high_water_is_the_plan(name: str) -> None:
    made = chain.project(NETS[name]())
    report = chain.check(made, mode="qemu")
    assert report.mode == "qemu"
    assert report.arena_measured_bytes is not None
    unused = made.plan.arena_bytes - report.arena_measured_bytes
    assert 0 <= unused < load_target("cortex-m7").alignment_bytes


def test_bytes_that_nobody_uses_are_seen() -> None:
    """A plan with room on top: the mark stays where it was."""
    made = chain.project(NETS["mlp, adam"]())
    size = made.plan.arena_bytes
    header = made.bundle.files["net_train.h"]
    larger = re.sub(rf"(NET_ARENA_BYTES ){size}", rf"\g<1>{size + 64}", header)
    assert larger != header
    interface = replace(made.bundle.interface, arena_bytes=size + 64)
    bundle = SourceBundle({**made.bundle.files, "net_train.h": larger}, interface)
    report = chain.check(replace(made, bundle=bundle), mode="host")
    assert report.arena_measured_bytes is not None
    assert size - 8 < report.arena_measured_bytes <= size


def check_with(made: Project, first_line: str) -> None:
    """The check of the project whose training step begins with one more line of C."""
    source = made.bundle.files["net_train.c"]
    changed = re.sub(r"(static void step_forward\w*\(.*\n\{\n)", rf"\g<1>    {first_line}\n", source, count=1)
    assert changed != source
    bundle = SourceBundle({**made.bundle.files, "net_train.c": changed}, made.bundle.interface)
    chain.check(replace(made, bundle=bundle), mode="host")


def test_what_a_step_leaves_in_a_second_memory_is_lost() -> None:
    """The same there: the highest byte of memory 1 that is not persistent is painted between calls."""
    made = chain.project(NETS["residual net"]())
    made = chain.moved(made, made.plan.arena_bytes // 3)
    assert chain.check(made, mode="host").result == "pass"
    top = made.plan.further[0].used_bytes - 4
    assert top >= made.bundle.interface.transient_offsets[1]
    byte = f"memory_1(arena)[{top}]"
    with pytest.raises(CompileError, match="E0601"):
        check_with(made, f"*F32(AT_learning_rate) += 1e-3f * (float)({byte} == 0xa5u || {byte} == 0x5au);")


def test_what_a_step_leaves_in_transient_memory_is_lost() -> None:
    """An update that reads the arena's transient part of the step before: painted over in between, so it differs."""
    made = chain.project(NETS["mlp, adam"]())
    byte = f"arena[{made.plan.arena_bytes - 4}]"
    with pytest.raises(CompileError, match="E0601"):
        check_with(made, f"*F32(AT_fc3_bias) += 1e-3f * (float)({byte} == 0xa5u || {byte} == 0x5au);")
