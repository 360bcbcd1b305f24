"""Concats and Slices that are parts of a buffer, from the model to the board: same bytes, fewer of them, watched."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from testing.networks import models
from tests.e2e import chain
from tests.e2e.test_watched_plans import bundle_of, outcome, report
from tests.quantize import nets
from tinytrain_compile.driver.candidates.ladder import further_memories
from tinytrain_compile.ir.stages import MemoryPlan, TrainGraph
from tinytrain_compile.plan.memories.spread import spread
from tinytrain_compile.plan.options import PlanOptions
from tinytrain_compile.plan.planner import Planned, plan_graph, plan_memory
from tinytrain_compile.plan.remat import search as remat_search
from tinytrain_compile.plan.remat.stage import plan_with_remat
from tinytrain_compile.plan.views import candidates, with_views
from tinytrain_compile.target.loader import load_target
from tinytrain_compile.training import join_pieces

NETS: dict[str, Callable[[], TrainGraph]] = {
    "dense": lambda: chain.train_graph(models.dense_features(), "all"),
    "dense, int8": lambda: nets.int8_train(models.dense_features(), "all", learning_rate=0.05),
    "bands": lambda: join_pieces(chain.train_graph(models.bands(), "all")),
    "bands, int8": lambda: nets.int8_train(models.bands(), "all", head="int8", learning_rate=0.05),
    "tower, last layers": lambda: chain.train_graph(models.tower(), "last:2"),
    "tower, int8": lambda: nets.int8_train(models.tower(), "all", learning_rate=0.05),
}
SAVES = {"bands", "bands, int8", "tower, last layers", "tower, int8"}
"""Where copying is dearer; in the others weights are the peak."""


def options(train: TrainGraph) -> PlanOptions:
    return PlanOptions(alignment_bytes=8, effort="quick", keep=(train.loss.name,))


@cache
def train_of(name: str) -> TrainGraph:
    return NETS[name]()


def everything_viewed(train: TrainGraph) -> Planned:
    graph = with_views(train.graph, candidates(train.graph, 8))
    assert sum(node.op in ("ConcatView", "SliceView") for node in graph.nodes) >= 1
    return Planned(graph, plan_memory(graph, options(train)))


def run(train: TrainGraph, planned: Planned, folder: Path, mode: str) -> chain.RunResult:
    whole = replace(train, graph=planned.graph, before_remat=train.graph)
    kernels = chain.kernels_of(whole)
    result = outcome(whole, bundle_of(whole, planned.plan, kernels, mode == "debug"), folder, mode)
    assert result.status == "ok"
    return result


def transient(plan: MemoryPlan) -> int:
    return plan.arena_bytes - plan.persistent_bytes


@pytest.mark.parametrize("name", NETS)
def test_same_bytes_as_with_copies_and_watched(name: str, tmp_path: Path) -> None:
    train = train_of(name)
    viewed = everything_viewed(train)
    copied = run(train, Planned(train.graph, plan_memory(train.graph, options(train))), tmp_path / "copied", "host")
    assert chain.same(run(train, viewed, tmp_path / "debug", "debug"), copied)


@pytest.mark.parametrize("name", sorted(SAVES))
def test_the_arena_is_smaller(name: str) -> None:
    train = train_of(name)
    found = plan_graph(train.graph, options(train)).plan
    assert transient(found) < transient(plan_memory(train.graph, options(train)))


@pytest.mark.qemu
@pytest.mark.parametrize("name", ["dense", "bands, int8", "tower, last layers"])
def test_on_the_board(name: str) -> None:
    train, viewed = train_of(name), everything_viewed(train_of(name))
    whole = replace(train, graph=viewed.graph, before_remat=train.graph)
    made = chain.emitted(whole, viewed.plan, chain.kernels_of(whole), 8)
    assert chain.check(made).result == "pass"


def test_parts_in_another_memory(tmp_path: Path) -> None:
    """A buffer with parts may lie there as a whole; it is not moved to and fro."""
    train = train_of("tower, last layers")
    viewed = everything_viewed(train)
    small = replace(options(train), capacity_bytes=viewed.plan.arena_bytes // 4)
    moved = spread(viewed.graph, viewed.plan, small, further_memories(load_target("cortex-m7"), {"sram2": 1 << 20}))
    assert moved is not None
    (parent,) = (buffer for buffer in moved.plan.buffers if buffer.within)
    assert moved.plan.place(parent.offset)[0] == 1
    copied = run(train, Planned(train.graph, plan_memory(train.graph, options(train))), tmp_path / "copied", "host")
    assert chain.same(run(train, moved, tmp_path / "debug", "debug"), copied)


def test_parts_beside_second_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole is joined twice: a clone of a Concat is one too. (Of two plans of one size the finer search's.)"""
    monkeypatch.setattr(remat_search, "TOLERANCE", 10**9)
    train = chain.train_graph(models.tower(), "all")
    found = plan_with_remat(train.graph, options(train), "min")
    assert found.plan.remat is not None
    assert sum(node.op == "ConcatView" for node in found.graph.nodes) == 2
    copied = run(train, Planned(train.graph, plan_memory(train.graph, options(train))), tmp_path / "copied", "host")
    assert chain.same(run(train, found, tmp_path / "debug", "debug"), copied)


def test_a_view_costs_no_call() -> None:
    train = train_of("tower, last layers")
    viewed = everything_viewed(train)
    whole = replace(train, graph=viewed.graph, before_remat=train.graph)
    made = chain.emitted(whole, viewed.plan, chain.kernels_of(whole), 8)
    text = "".join(made.bundle.files.values())
    assert not re.search(r": (Concat|ConcatView) \*/", text)
    copied = chain.emitted(train, plan_memory(train.graph, options(train)), chain.kernels_of(train), 8)
    assert re.search(r": Concat \*/", "".join(copied.bundle.files.values()))


def test_a_part_written_over_another_is_seen_by_the_watched_build(tmp_path: Path) -> None:
    """Both are live and in one buffer: the sums over parts that a call does not write tell."""
    train = train_of("tower, last layers")
    viewed = everything_viewed(train)
    first, second, _ = next(node for node in viewed.graph.nodes if node.op == "ConcatView").inputs
    offsets = {**viewed.plan.offsets, second.name: viewed.plan.offsets[first.name]}
    whole = replace(train, graph=viewed.graph, before_remat=train.graph)
    bad = replace(viewed.plan, offsets=offsets)
    text = report(whole, bundle_of(whole, bad, chain.kernels_of(whole), debug=True), tmp_path / "over")
    assert f"a live buffer was overwritten at offset {viewed.plan.offsets[first.name]}" in text
