"""Errors row by row: the same bytes as map by map, with and without second runs, watched on the host and on a board."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from testing.networks.chains import random_chain
from testing.networks.models import inverted
from testing.planning.streams import random_streams
from tests.e2e import chain
from tests.e2e.marks import needs_qemu
from tests.e2e.test_streams import planned, run
from tests.e2e.test_watched_plans import bundle_of, outcome
from tests.quantize import nets
from tinytrain_compile.ir.stages import TrainGraph
from tinytrain_compile.ir.types import Graph, Node
from tinytrain_compile.ops.base import shown_name
from tinytrain_compile.plan.check.rewrites import validate_remat, validate_streams
from tinytrain_compile.plan.options import PlanError, PlanOptions
from tinytrain_compile.plan.planner import plan_memory
from tinytrain_compile.plan.streams.again import Waists, streamed_again
from tinytrain_compile.plan.streams.rewrite import stream_node, with_readers_beside, with_streams, without_streams
from tinytrain_compile.plan.streams.search import streamed

CORES = ("cortex-m7", "cortex-m55", "cortex-m0plus")


@cache
def train_of(seed: int, update: str, batch: int = 1, optimizer: str = "sgd") -> TrainGraph:
    return nets.int8_train(random_chain(seed), update, learning_rate=0.05, batch=batch, optimizer=optimizer)


def ops_of(streams: list[Node]) -> set[str]:
    return {shown_name(inner) for node in streams for inner in node.attrs.nodes}  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("seed", "update"), [(0, "bias"), (1, "bias"), (2, "all"), (3, "all"), (4, "bias"), (7, "all")]
)
def test_the_same_bytes_row_by_row(seed: int, update: str, tmp_path: Path) -> None:
    """The first step finds the exponents of the errors in a stream one after the other; then they are gathered."""
    train, core = train_of(seed, update), CORES[seed % 3]
    assert not train.exponents_known
    graph, streams = random_streams(train, seed)
    assert {"QConvGradInput", "QBiasUpdate"} <= ops_of(streams)
    validate_streams(train.graph, graph)
    whole = run(train, train.graph, tmp_path / "whole", "host", core)
    assert chain.same(run(train, graph, tmp_path / "rows", "debug", core), whole)


@pytest.mark.parametrize(
    ("seed", "update", "optimizer"), [(1, "bias", "sgd"), (2, "all", "sgd"), (7, "all", "sgd"), (2, "all", "momentum")]
)
def test_sums_of_a_batch_row_by_row(seed: int, update: str, optimizer: str, tmp_path: Path) -> None:
    """A sample's sum over rows is added to the running one at once, since that may saturate."""
    train, core = train_of(seed, update, 2, optimizer), CORES[seed % 3]
    graph, streams = random_streams(train, seed)
    assert {"QConvGradInput", "QBiasSum", *(["QConvSum"] if update == "all" else [])} <= ops_of(streams)
    validate_streams(train.graph, graph)
    whole = run(train, train.graph, tmp_path / "whole", "host", core)
    assert chain.same(run(train, graph, tmp_path / "rows", "debug", core), whole)


@needs_qemu
@pytest.mark.qemu
@pytest.mark.parametrize("core", CORES)
def test_the_same_bytes_on_a_board(core: str) -> None:
    train = train_of(1, "bias")
    graph, streams = random_streams(train, 1)
    assert "QBiasUpdate" in ops_of(streams)
    made = chain.emitted(train, *planned(train, graph, core), 8, fma=False)
    assert chain.check(made, core).result == "pass"


# ---- with second runs -----------------------------------------------------------------------------------------------


def again(train: TrainGraph, seed: int, single: bool = False) -> tuple[TrainGraph, Graph]:
    """With second runs of all but some random waists, and every stage as a stream. single: of every other stage."""
    waists, random = Waists(train.graph, train.loss.name), np.random.default_rng([seed, 47])
    kept = [value.name for value in waists.found if random.random() < 0.5] or [waists.found[-1].name]
    made = waists.keep(kept, range(len(kept) - 1, -1, -2) if single else None)
    beside = with_readers_beside(made.graph)
    streams = [stream_node(beside, g, f"stage{i}", (train.loss.name,)) for i, g in enumerate(made.groups) if g]
    graph = with_streams(made.graph, [stream for stream in streams if stream is not None])
    assert made.runs and graph is not made.graph
    return replace(train, graph=made.graph, before_remat=train.graph), graph


@pytest.mark.parametrize(
    ("seed", "single"),
    [(0, False), (1, False), (3, False), (4, False), (6, False), (8, False), (2, True), (3, True), (8, True)],
)
def test_layers_run_again_beside_their_errors(seed: int, single: bool, tmp_path: Path) -> None:
    train, core = train_of(seed, "all"), CORES[seed % 3]
    twice, graph = again(train, seed, single)
    plan, kernels = planned(twice, graph, core)
    order = without_streams(replace(graph, nodes=plan.order)).nodes
    validate_remat(train.graph, twice.graph, replace(plan, order=order))
    validate_streams(twice.graph, graph)
    rows = outcome(twice, bundle_of(twice, plan, kernels, True), tmp_path / "rows", "debug")
    assert rows.status == "ok"
    assert chain.same(rows, run(train, train.graph, tmp_path / "whole", "host", core))


def test_a_second_run_behind_its_update_is_seen() -> None:
    train = train_of(1, "all")
    twice, graph = again(train, 1)
    plan = plan_memory(graph, PlanOptions(alignment_bytes=8, effort="quick", keep=(train.loss.name,)))
    order = list(without_streams(replace(graph, nodes=plan.order)).nodes)
    runs = [node for node in order if "@" in node.name and node.op == "QConv"]
    late = [node for node in order if node not in runs]
    with pytest.raises(PlanError, match=r"recompute|write after read|another computation"):
        validate_remat(train.graph, twice.graph, replace(plan, order=(*late, *runs)))


def test_the_smallest_arena_has_both() -> None:
    train = train_of(1, "all")
    options = PlanOptions(alignment_bytes=8, effort="quick", keep=(train.loss.name,))
    found = streamed_again(train.graph, options)
    assert found is not None and found.plan.remat is not None
    assert found.plan.arena_bytes < plan_memory(train.graph, options).arena_bytes


@pytest.mark.parametrize("seed", [4, 7, 8])  # of 4 the load by the model is above the arena that is found
def test_the_fewest_second_runs_that_fit(seed: int) -> None:
    train = train_of(seed, "all")
    options = PlanOptions(alignment_bytes=8, effort="quick", keep=(train.loss.name,))
    least = streamed_again(train.graph, options)
    assert least is not None and least.plan.remat is not None
    narrow = Waists(train.graph, train.loss.name)
    everything = narrow.keep([value.name for value in narrow.narrow()])
    assert sum(run.macs for run in least.plan.remat.runs) <= sum(run.macs for run in everything.runs)
    room = least.plan.arena_bytes
    found = streamed_again(train.graph, replace(options, capacity_bytes=room), smallest=False)
    assert found is not None and found.plan.arena_bytes <= room and found.plan.remat is not None
    assert found.plan.remat.runs == least.plan.remat.runs
    assert streamed_again(train.graph, replace(options, capacity_bytes=room - 8), smallest=False) is None


def test_single_stages_run_again_for_biases() -> None:
    """Biases need masks alone: most are kept, and one stage runs again whose masks would lie beside the largest map."""
    train = nets.int8_train(inverted(), "bias", learning_rate=0.05)
    options = PlanOptions(alignment_bytes=8, effort="quick", keep=(train.loss.name,))
    without = plan_memory(streamed(train.graph, options), options)
    found = streamed_again(train.graph, options)
    assert found is not None and found.plan.remat is not None
    assert found.plan.arena_bytes < without.arena_bytes
    waists = Waists(train.graph, train.loss.name)
    everything = waists.keep([value.name for value in waists.narrow()])
    assert 0 < len(found.plan.remat.runs) < len(everything.runs) / 2
