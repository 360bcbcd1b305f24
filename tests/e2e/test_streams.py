"""Layers computed row by row: the same bytes, watched on the host and on a board; the arena of real networks."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from testing.chains import random_chain
from testing.streams import random_streams
from tests.e2e import chain
from tests.e2e.marks import needs_qemu
from tests.e2e.test_watched_plans import bundle_of, outcome
from tests.quantize import nets
from tinytrain_compile.ir import Graph
from tinytrain_compile.ir.kernels import KernelSet
from tinytrain_compile.ir.stages import MemoryPlan, TrainGraph
from tinytrain_compile.lower import LowerOptions, lower_nodes
from tinytrain_compile.lower.kernels import kernel_context
from tinytrain_compile.plan import PlanOptions, plan_memory, validate_streams
from tinytrain_compile.target import load_target
from tinytrain_compile.verify import RunResult

UPDATES = ("head", "last:3", "all")


@cache
def train_of(seed: int) -> TrainGraph:
    return nets.int8_train(random_chain(seed), UPDATES[seed % len(UPDATES)], learning_rate=0.05)


def run(train: TrainGraph, graph: Graph, folder: Path, mode: str, core: str = "cortex-m7") -> RunResult:
    plan, kernels = planned(train, graph, core)
    result = outcome(train, bundle_of(train, plan, kernels, mode == "debug"), folder, mode)
    assert result.status == "ok"
    return result


def planned(train: TrainGraph, graph: Graph, core: str) -> tuple[MemoryPlan, KernelSet]:
    plan = plan_memory(graph, PlanOptions(alignment_bytes=8, effort="quick", keep=(train.loss.name,)))
    context = kernel_context(load_target(core).features, False)
    return plan, lower_nodes(plan.order, LowerOptions("net", context, False), cache=chain.KERNELS)


@pytest.mark.parametrize("seed", range(6))
def test_the_same_bytes_row_by_row(seed: int, tmp_path: Path) -> None:
    """Watched: dead bytes are poisoned around the call of a stream, under AddressSanitizer."""
    train = train_of(seed)
    graph, streams = random_streams(train, seed)
    assert streams
    validate_streams(train.graph, graph)
    core = ("cortex-m7", "cortex-m55", "cortex-m0plus")[seed % 3]
    whole = run(train, train.graph, tmp_path / "whole", "host", core)
    assert chain.same(run(train, graph, tmp_path / "rows", "debug", core), whole)


@needs_qemu
@pytest.mark.qemu
@pytest.mark.parametrize("core", ["cortex-m0plus", "cortex-m7", "cortex-m55"])
def test_the_same_bytes_on_a_board(core: str) -> None:
    """Reference, host and board agree to the byte; the reference knows nothing of streams."""
    train = train_of(5)
    graph, streams = random_streams(train, 5)
    assert len(streams) > 1
    made = chain.emitted(train, *planned(train, graph, core), 8, fma=False)
    assert chain.check(made, core).result == "pass"
