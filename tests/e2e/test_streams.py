"""Layers computed row by row: the same bytes, watched on the host and on a board; the arena of real networks."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from testing.networks.chains import random_chain, random_shares
from testing.planning.streams import random_streams
from tests.e2e import chain
from tests.e2e.broken import write
from tests.e2e.command import run as command
from tests.e2e.command import tree
from tests.e2e.marks import needs_qemu
from tests.e2e.test_watched_plans import bundle_of, outcome
from tests.quantize import nets
from tinytrain_compile.ir.kernels import KernelSet
from tinytrain_compile.ir.stages import MemoryPlan, TrainGraph
from tinytrain_compile.ir.types import Graph
from tinytrain_compile.lower import LowerOptions, lower_nodes
from tinytrain_compile.lower.kernels import kernel_context
from tinytrain_compile.ops.stream import StreamAttrs
from tinytrain_compile.plan.check.rewrites import validate_streams
from tinytrain_compile.plan.options import PlanOptions
from tinytrain_compile.plan.planner import plan_memory
from tinytrain_compile.target.loader import load_target
from tinytrain_compile.verify.run import RunResult

UPDATES = ("head", "last:3", "all")


@cache
def train_of(seed: int, integer: bool = True) -> TrainGraph:
    made = nets.int8_train if integer else chain.train_graph
    return made(random_chain(seed), UPDATES[seed % len(UPDATES)], learning_rate=0.05)


def run(train: TrainGraph, graph: Graph, folder: Path, mode: str, core: str = "cortex-m7") -> RunResult:
    plan, kernels = planned(train, graph, core)
    result = outcome(train, bundle_of(train, plan, kernels, mode == "debug"), folder, mode)
    assert result.status == "ok"
    return result


def planned(train: TrainGraph, graph: Graph, core: str) -> tuple[MemoryPlan, KernelSet]:
    plan = plan_memory(graph, PlanOptions(alignment_bytes=8, effort="quick", keep=(train.loss.name,)))
    fused = not train.integer
    context = kernel_context(load_target(core).features, fused)
    return plan, lower_nodes(plan.order, LowerOptions("net", context), cache=chain.KERNELS)


@pytest.mark.parametrize("integer", [True, False], ids=["int8", "fp32"])
@pytest.mark.parametrize("seed", range(6))
def test_the_same_bytes_row_by_row(seed: int, integer: bool, tmp_path: Path) -> None:
    """Watched: dead bytes are poisoned around the call of a stream, under AddressSanitizer."""
    train = train_of(seed, integer)
    graph, streams = random_streams(train, seed)
    assert streams
    validate_streams(train.graph, graph)
    core = ("cortex-m7", "cortex-m55", "cortex-m0plus")[seed % 3]
    whole = run(train, train.graph, tmp_path / "whole", "host", core)
    assert chain.same(run(train, graph, tmp_path / "rows", "debug", core), whole)


@pytest.mark.parametrize("integer", [True, False], ids=["int8", "fp32"])
def test_the_same_bytes_with_kept_channels_of_early_layers(integer: bool, tmp_path: Path) -> None:
    """Layers that are trained in part, on either axis: what the backward pass keeps of a map is a result of its stream,
    the map itself a ring."""
    model = random_chain(4)
    (tmp_path / "shares.toml").write_text(random_shares(model, 4), encoding="utf-8")
    made = nets.int8_train if integer else chain.train_graph
    train = made(model, str(tmp_path / "shares.toml"), learning_rate=0.05)
    graph, streams = random_streams(train, 4)
    validate_streams(train.graph, graph)
    attrs = [node.attrs for node in streams if isinstance(node.attrs, StreamAttrs)]
    slices = [(one, node) for one in attrs for node in one.nodes if node.op == "Slice"]
    assert len(slices) > 1 and all(node.outputs[0].name in one.outputs for one, node in slices)
    assert any(ring.name == node.inputs[0].name for one, node in slices for ring in one.rings)
    whole = run(train, train.graph, tmp_path / "whole", "host")
    assert chain.same(run(train, graph, tmp_path / "rows", "debug"), whole)


@needs_qemu
@pytest.mark.qemu
@pytest.mark.parametrize("integer", [True, False], ids=["int8", "fp32"])
@pytest.mark.parametrize("core", ["cortex-m0plus", "cortex-m7", "cortex-m55"])
def test_the_same_bytes_on_a_board(core: str, integer: bool) -> None:
    """Host and board agree to the byte, int8 with the reference too, which knows nothing of streams."""
    train = train_of(5, integer)
    graph, streams = random_streams(train, 5)
    assert len(streams) > 1
    made = chain.emitted(train, *planned(train, graph, core), 8, fma=load_target(core).features.fma and not integer)
    assert chain.check(made, core).result == "pass"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a chain of layers and samples for it."""
    folder, model, random = tmp_path_factory.mktemp("chain"), random_chain(5), np.random.default_rng(7)
    write(model, folder)
    shape = [8, *(axis.dim_value for axis in model.graph.input[0].type.tensor_type.shape.dim[1:])]
    np.savez(folder / "own.npz", x=random.normal(size=shape).astype(np.float32), y=random.integers(0, 3, 8))
    return folder


def int8(place: Path) -> tuple[str, ...]:
    return ("--quant", "int8", "--calib", str(place / "own.npz"), "--update", "head")


@pytest.mark.parametrize(
    "flags",
    [
        ("--optimise", "memory"),
        ("--arena", "1500", "--memory", "sram2=4KB"),
        ("--batch", "4", "--micro-batch", "2"),
        ("--batch", "2", "--remat", "min"),
        ("--flash-budget", "64KB"),
        ("--code", "size"),
    ],
    ids=lambda flags: flags[0],
)
def test_beside_other_options(flags: tuple[str, ...], place: Path, tmp_path: Path) -> None:
    """The reference knows nothing of streams; a lock of the plan gives the same code again."""
    asked = (place / "net.onnx", *int8(place), "--verify", "host", *flags)
    command(*asked, "--stream", "min", "-o", tmp_path / "min").check_success()
    report = json.loads((tmp_path / "min/report.json").read_text(encoding="utf-8"))
    streams = report["plan"]["streams"]
    assert (streams is None) == ("--micro-batch" in flags)  # rows of one image
    kept = [flag for flag in flags if flag not in ("--optimise", "memory", "--remat", "min")]
    again = (place / "net.onnx", *int8(place), "--verify", "none", *kept, "--lock", tmp_path / "min/plan.json")
    command(*again, "-o", tmp_path / "again").check_success()
    old, new = tree(tmp_path / "min"), tree(tmp_path / "again")
    assert [path for path in old if path.endswith((".c", ".h")) and old[path] != new[path]] == []


def test_a_damaged_lock_of_streams(place: Path, tmp_path: Path) -> None:
    """Which nodes a stream computes is in the lock; whether they can be is judged anew."""
    asked = (place / "net.onnx", *int8(place), "--verify", "none")
    command(*asked, "--stream", "min", "-o", tmp_path / "min").check_success()
    plan = json.loads((tmp_path / "min/plan.json").read_text(encoding="utf-8"))
    first = plan["streams"][0]["nodes"]
    last = plan["order"][-1]["name"]
    for nodes in (first[:-1], first[1:], [*first, last], first[::-1], [first[0]] * len(first), []):
        wrong = {**plan, "streams": [{**plan["streams"][0], "nodes": nodes}, *plan["streams"][1:]]}
        (tmp_path / "wrong.json").write_text(json.dumps(wrong), encoding="utf-8")
        command(*asked, "--lock", tmp_path / "wrong.json", "-o", tmp_path / "no").check_error("E0106", 2)
    (tmp_path / "wrong.json").write_text(json.dumps({**plan, "streams": [3]}), encoding="utf-8")
    command(*asked, "--lock", tmp_path / "wrong.json", "-o", tmp_path / "no").check_error("E0106", 2)


def test_auto_streams_where_it_is_worth_it(place: Path, tmp_path: Path) -> None:
    """Not where a plan without fits the arena, nor for the fastest step; with neither given, where it saves 5 %."""

    def streams(*flags: str) -> dict[str, Any] | None:
        command(place / "net.onnx", *int8(place), "--verify", "none", *flags, "-o", tmp_path / "out").check_success()
        return json.loads((tmp_path / "out/report.json").read_text(encoding="utf-8"))["plan"]["streams"]

    found = streams()
    picture = (tmp_path / "out/report.html").read_text(encoding="utf-8")
    assert found is not None and picture.count('class="ring"') == sum(len(s["ring_rows"]) for s in found["streams"])
    captions = re.findall(r"<b>(map by map|row by row)</b>: ([\d,]+) B", picture)  # before and after, at their peaks
    assert [what for what, _ in captions] == ["map by map", "row by row"]
    most = [int(size.replace(",", "")) for _, size in captions]
    assert found["saved_bytes"] > 0 and most[0] > most[1] and picture.count('class="by-rows"') == len(found["streams"])
    assert most[0] <= found["arena_without_bytes"] and most[1] <= found["arena_without_bytes"] - found["saved_bytes"]
    assert found["saved_bytes"] >= 0.05 * found["arena_without_bytes"]
    assert streams("--arena", str(found["arena_without_bytes"])) is None
    assert 'class="levels"' not in (tmp_path / "out/report.html").read_text(encoding="utf-8")
    assert streams("--arena", str(found["arena_without_bytes"] - 8)) == found
    assert streams("--optimise", "time") is None
    assert streams("--stream", "off") is None


def test_second_runs_keep_to_the_other_flags(place: Path, tmp_path: Path) -> None:
    """--remat min streams nothing under --stream off, and leaves to --memory what it does not make fit."""
    asked = (place / "net.onnx", *int8(place)[:-1], "all", "--verify", "none", "--remat", "min")

    def report(*flags: str) -> tuple[int, dict[str, Any]]:
        command(*asked, *flags, "-o", tmp_path / "out").check_success()
        found = json.loads((tmp_path / "out/report.json").read_text(encoding="utf-8"))
        return found["memory"]["arena_bytes"], found["plan"]

    (most, off), (least, _) = report("--stream", "off"), report()
    assert off["streams"] is None and not any("row by row" in tried["how"] for tried in off["ladder"])
    assert least <= most
    room = str(least // 2)
    command(*asked, "--arena", room, "-o", tmp_path / "no").check_error("E0401", 3)
    paged, _ = report("--arena", room, "--memory", "sram2=8KB")
    assert paged <= int(room)


def least(seed: int, folder: Path) -> tuple[Any, ...]:
    """What asks for the update of all layers of a chain; its smallest plan is in `min`, beside the model."""
    model, random = random_chain(seed), np.random.default_rng(7)
    write(model, folder)
    shape = [8, *(axis.dim_value for axis in model.graph.input[0].type.tensor_type.shape.dim[1:])]
    np.savez(folder / "own.npz", x=random.normal(size=shape).astype(np.float32), y=random.integers(0, 3, 8))
    asked = (folder / "net.onnx", "--quant", "int8", "--calib", folder / "own.npz", "--update", "all")
    command(*asked, "--remat", "min", "--verify", "none", "-o", folder / "min").check_success()
    return asked


def test_a_lock_of_streams_that_hold_second_runs(tmp_path: Path) -> None:
    """The lock gives the same code again; a run that repeats another node, or is of no stream, is refused."""
    again, made = least(16, tmp_path), tmp_path / "min"
    plan = json.loads((made / "plan.json").read_text(encoding="utf-8"))
    runs = {run["name"] for run in plan["second_runs"]}
    inside = [stream for stream in plan["streams"] if runs & set(stream["nodes"])]
    assert inside
    command(*again, "--verify", "none", "--lock", made / "plan.json", "-o", tmp_path / "again").check_success()
    old, new = tree(made), tree(tmp_path / "again")
    assert [path for path in old if path.endswith((".c", ".h")) and old[path] != new[path]] == []
    name = next(iter(runs & set(inside[0]["nodes"])))
    others = [run["of"] for run in plan["second_runs"] if run["name"] != name]
    turned = [{**run, "of": others[0]} if run["name"] == name else run for run in plan["second_runs"]]
    without = [{**s, "nodes": [node for node in s["nodes"] if node != name]} for s in plan["streams"]]
    for wrong in ({"second_runs": turned}, {"streams": without}, {"streams": plan["streams"][1:]}):
        (tmp_path / "wrong.json").write_text(json.dumps({**plan, **wrong}), encoding="utf-8")
        command(*again, "--lock", tmp_path / "wrong.json", "-o", tmp_path / "no").check_error("E0106", 2)
        assert not (tmp_path / "no").exists()


def test_second_runs_row_by_row_where_nothing_else_fits(tmp_path: Path) -> None:
    """With --remat auto, and without the flag up to 25 % more multiply-accumulates; never with --remat off."""
    asked = least(11, tmp_path)
    room = json.loads((tmp_path / "min/report.json").read_text(encoding="utf-8"))["memory"]["arena_bytes"]
    for flags, arena in (((), room + room // 5), (("--remat", "auto"), room)):
        command(*asked, "--arena", str(arena), *flags, "-o", tmp_path / "out").check_success()
        ladder = json.loads((tmp_path / "out/report.json").read_text(encoding="utf-8"))["plan"]["ladder"]
        assert ladder[-1]["how"] == "second runs row by row" and ladder[-1]["arena_bytes"] <= arena
        assert min(tried["arena_bytes"] for tried in ladder[:-1]) > arena
    for flags in (("--remat", "off"), ("--stream", "off")):
        command(*asked, "--arena", str(room), *flags, "--dry-run").check_error("E0401", 3)
    command(
        *asked[:-1], "auto", "--arena", str(room + room // 5), "--verify", "none", "-o", tmp_path / "auto"
    ).check_success()
    update = json.loads((tmp_path / "auto/report.json").read_text(encoding="utf-8"))["update_totals"]
    assert update["parameters"] + update["untrained"] == update["total_parameters"]
