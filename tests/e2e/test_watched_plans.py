"""The host debug build: dead buffers poisoned and painted around every call; a wrong plan or kernel is reported."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from testing.networks import models
from testing.runs import run_steps
from tests.e2e import chain
from tests.quantize import nets
from tinytrain_compile.data.samples import random_samples
from tinytrain_compile.driver.candidates.ladder import further_memories
from tinytrain_compile.emit.project import EmitOptions, emit_project
from tinytrain_compile.errors import CompileError
from tinytrain_compile.files.resources import read_text, runtime_headers
from tinytrain_compile.ir.buffers import Buffer
from tinytrain_compile.ir.kernels import KernelSet
from tinytrain_compile.ir.stages import MemoryPlan, SourceBundle, TrainGraph
from tinytrain_compile.ops.input_lines import takes_lines
from tinytrain_compile.options.compile_options import CompileOptions
from tinytrain_compile.parts.registry import parts_of
from tinytrain_compile.plan.memories.spread import spread
from tinytrain_compile.plan.options import PlanOptions
from tinytrain_compile.plan.planner import plan_memory
from tinytrain_compile.target.loader import load_target
from tinytrain_compile.verify.run import RunResult

M7 = load_target("cortex-m7")
STEPS = 3
ALIGNMENT = 8  # what AddressSanitizer can tell apart

NETS: dict[str, Callable[[], TrainGraph]] = {
    "mlp, adam, two samples": lambda: chain.train_graph(models.mlp(), "all", optimizer="adam", batch=2),
    "residual net": lambda: chain.train_graph(models.resnet8(4, 8), "all"),
    "separable net, last layers": lambda: chain.train_graph(models.ds_cnn(6, 2, (12, 6)), "last:3"),
    "transformer": lambda: chain.train_graph(models.transformer(4, 8, 2), "all", optimizer="momentum"),
    "int8 net": lambda: nets.int8_train(nets.cnn(), learning_rate=0.05),
    "int8 net, int8 head, two samples": lambda: nets.int8_train(nets.cnn(), head="int8", batch=2, learning_rate=0.05),
    "separable net, two at a time": lambda: chain.train_graph(
        models.ds_cnn(6, 2, (12, 6)), "last:3", batch=4, micro_batch=2
    ),
    "int8 net, two at a time": lambda: nets.int8_train(nets.cnn(), batch=4, micro_batch=2, learning_rate=0.05),
}


ONES: dict[str, Callable[[], TrainGraph]] = {
    "separable net, two at a time": lambda: chain.train_graph(models.ds_cnn(6, 2, (12, 6)), "last:3", batch=4),
    "int8 net, two at a time": lambda: nets.int8_train(nets.cnn(), batch=4, learning_rate=0.05),
}
"""The steps of one sample, where a step takes two."""


def plan_of(train: TrainGraph, effort: str = "full") -> MemoryPlan:
    keep = (train.loss.name,)
    return plan_memory(train.graph, PlanOptions(alignment_bytes=ALIGNMENT, keep=keep, effort=effort))  # type: ignore[arg-type]


def bundle_of(train: TrainGraph, plan: MemoryPlan, kernels: KernelSet, debug: bool) -> SourceBundle:
    header = read_text("runtime_c", "tt_debug.h") if debug else ""
    parts = parts_of(CompileOptions(Path(), input_lines=any(map(takes_lines, plan.order))), train)
    emit = EmitOptions("net", ALIGNMENT, ("test",), runtime_headers(), header, fma=True, parts=parts)
    return emit_project(train, plan, kernels, emit)


def outcome(train: TrainGraph, bundle: SourceBundle, folder: Path, mode: str) -> RunResult:
    samples = random_samples(train, STEPS * train.batch, 0)
    return run_steps(bundle, M7, samples, STEPS, None, train.batch, folder, mode)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", NETS)
def test_no_reports_and_the_same_bytes(name: str, tmp_path: Path) -> None:
    """Painting what is dead changes nothing that the plain build computes; m_infer of one sample is watched too."""
    train = NETS[name]()
    one = ONES[name]() if name in ONES else None
    plan, kernels = chain.with_one(train, plan_of(train), chain.kernels_of(train), one)
    plain = outcome(train, bundle_of(train, plan, kernels, debug=False), tmp_path / "plain", "host")
    watched = outcome(train, bundle_of(train, plan, kernels, debug=True), tmp_path / "watched", "debug")
    assert watched.status == plain.status == "ok"
    assert watched.states == plain.states
    assert len(watched.states) == STEPS
    for one, other in ((watched.losses, plain.losses), (watched.output_last, plain.output_last)):
        np.testing.assert_array_equal(one, other)


def test_firmware_is_never_watched() -> None:
    train = chain.train_graph(models.mlp(), "head")
    plain = bundle_of(train, plan_of(train), chain.kernels_of(train), debug=False)
    assert not any("tt_debug" in text for text in (*plain.files, *plain.files.values()))


def in_two_memories(train: TrainGraph) -> tuple[TrainGraph, MemoryPlan]:
    """A third of the arena stays; the rest lies in, or moves to and from, a second memory."""
    plan = plan_of(train, "quick")
    settings = PlanOptions(plan.arena_bytes // 3, ALIGNMENT, effort="quick", keep=(train.loss.name,))
    planned = spread(train.graph, plan, settings, further_memories(M7, {"sram2": 1 << 20}))
    assert planned is not None and planned.plan.further and planned.plan.paging
    return replace(train, graph=planned.graph, before_remat=train.graph), planned.plan


@pytest.mark.parametrize("name", ["residual net", "int8 net, int8 head, two samples"])
def test_several_memories_are_watched_too(name: str, tmp_path: Path) -> None:
    train, plan = in_two_memories(NETS[name]())
    kernels = chain.kernels_of(train)
    plain = outcome(train, bundle_of(train, plan, kernels, debug=False), tmp_path / "plain", "host")
    watched = outcome(train, bundle_of(train, plan, kernels, debug=True), tmp_path / "watched", "debug")
    assert watched.status == plain.status == "ok"
    assert watched.states == plain.states
    np.testing.assert_array_equal(watched.losses, plain.losses)


def test_faults_in_a_second_memory_are_seen(tmp_path: Path) -> None:
    """A tensor there over another that waits, and a source that dies before it is read."""
    train, plan = in_two_memories(NETS["residual net"]())
    kernels = chain.kernels_of(train)
    away = [b for b in plan.buffers if plan.place(b.offset)[0] == 1 and b.kind == "tensor"]
    pairs = ((a, b) for a in away for b in away if a.first_step < b.first_step < a.last_step)
    victim, intruder = next(pairs)
    bad = with_buffer(plan, intruder.values[0], offset=victim.offset)
    text = report(train, bundle_of(train, bad, kernels, debug=True), tmp_path / "over")
    assert f"a live buffer was overwritten at offset {plan.place(victim.offset)[1]}" in text
    step, move = next((step, node) for step, node in enumerate(plan.order) if node.op == "PageIn")
    bad = with_buffer(plan, move.inputs[0].name, last_step=step - 1)
    assert "use-after-poison" in report(train, bundle_of(train, bad, kernels, debug=True), tmp_path / "dead")


# ---- planted faults -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def made() -> tuple[TrainGraph, MemoryPlan, KernelSet]:
    train = chain.train_graph(models.mlp(), "all", learning_rate=0.1)
    return train, plan_of(train), chain.kernels_of(train)


def with_buffer(plan: MemoryPlan, value: str, **changes: int) -> MemoryPlan:
    buffers = tuple(replace(b, **changes) if value in b.values else b for b in plan.buffers)
    assert buffers != plan.buffers
    offsets = {name: b.offset for b in buffers for name in b.values}
    return replace(plan, buffers=buffers, offsets=offsets)


def home(plan: MemoryPlan, value: str) -> Buffer:
    return next(b for b in plan.buffers if value in b.values)


def report(train: TrainGraph, bundle: SourceBundle, folder: Path) -> str:
    with pytest.raises(CompileError) as caught:
        outcome(train, bundle, folder, "debug")
    assert caught.value.code == "E0602"
    return str(caught.value)


def bystanders(plan: MemoryPlan) -> list[tuple[Buffer, Buffer]]:
    """(victim, intruder): the victim is live, and no operand, at the step that first writes the intruder."""
    found: list[tuple[Buffer, Buffer]] = []
    for intruder in (b for b in plan.buffers if b.kind == "tensor"):
        node = plan.order[intruder.first_step]
        touched = [home(plan, v.name) for v in (*node.inputs, *node.outputs) if v.name in plan.offsets]
        found += [
            (victim, intruder)
            for victim in plan.buffers
            if victim.kind == "tensor" and victim not in touched
            if victim.first_step < intruder.first_step < victim.last_step
        ]
    return found


def test_two_live_buffers_in_one_place(made: tuple[TrainGraph, MemoryPlan, KernelSet], tmp_path: Path) -> None:
    """No sanitizer sees this, since both are live: the sums over buffers that a call does not write do."""
    train, plan, kernels = made
    victim, intruder = bystanders(plan)[0]
    bad = with_buffer(plan, intruder.values[0], offset=victim.offset)
    text = report(train, bundle_of(train, bad, kernels, debug=True), tmp_path)
    assert f"plan broken at step {intruder.first_step} " in text
    assert f"a live buffer was overwritten at offset {victim.offset}" in text


def test_a_life_that_ends_too_early(made: tuple[TrainGraph, MemoryPlan, KernelSet], tmp_path: Path) -> None:
    train, plan, kernels = made
    victim = next(b for b in plan.buffers if b.kind == "tensor" and b.last_step - b.first_step > 3)
    bad = with_buffer(plan, victim.values[0], last_step=victim.last_step - 1)
    assert "use-after-poison" in report(train, bundle_of(train, bad, kernels, debug=True), tmp_path)


def test_a_kernel_that_writes_beyond_its_output(made: tuple[TrainGraph, MemoryPlan, KernelSet], tmp_path: Path) -> None:
    train, plan, kernels = made
    good = bundle_of(train, plan, kernels, debug=True)
    source = good.files["net_kernels.c"]
    bad = re.sub(r"(void net_sgd_update_10\([^{]*\{\n)", r"\g<1>    w[10] = 1.0f;\n", source, count=1)
    assert bad != source
    text = report(train, SourceBundle({**good.files, "net_kernels.c": bad}, good.interface), tmp_path)
    assert "use-after-poison" in text
