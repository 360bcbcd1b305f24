"""Rematerialisation end to end: what is computed twice changes the arena and nothing else, to the byte."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from testing.networks import models
from testing.places import SHARED
from tests.e2e import chain
from tests.e2e.broken import write
from tests.e2e.chain import Project
from tests.e2e.command import run
from tests.e2e.marks import needs_qemu, needs_shared
from tests.quantize import nets
from tinytrain_compile.ir.stages import TrainGraph

STEPS = 20
TRAINS: dict[str, Callable[[], TrainGraph]] = {
    "resnet8": lambda: chain.train_graph(models.resnet8(channels=4, size=16), learning_rate=0.01),
    "transformer": lambda: chain.train_graph(models.transformer(tokens=8, width=8, heads=2), learning_rate=0.01),
    "ds_cnn": lambda: chain.train_graph(
        models.ds_cnn(channels=8, blocks=3, size=(12, 6)), optimizer="momentum", learning_rate=0.01
    ),
    "int8": lambda: nets.int8_train(nets.cnn(size=20, channels=10), learning_rate=0.05),
    "int8, accumulated": lambda: nets.int8_train(nets.cnn(size=16, channels=8), learning_rate=0.05, batch=2),
}


def pair(name: str) -> tuple[Project, Project]:
    """A project without and one with as many second runs as the smallest arena takes."""
    train = TRAINS[name]()
    without, with_ = chain.project(train), chain.project(train, remat="min")
    assert with_.plan.remat is not None
    assert with_.plan.arena_bytes < without.plan.arena_bytes
    return without, with_


@needs_qemu
@pytest.mark.qemu
@pytest.mark.parametrize("name", TRAINS)
def test_twenty_steps_give_the_same_bytes_on_the_board(name: str, tmp_path: Path) -> None:
    without, with_ = pair(name)
    chain.train_alike(without, with_, STEPS, tmp_path)
    assert len(with_.kernels.kernels) == len(without.kernels.kernels), "second runs need no code of their own"


def test_a_second_run_left_out_is_seen(tmp_path: Path) -> None:
    """The comparison is no tautology: without one of the second runs the bytes differ (where its place was used)."""
    without, with_ = pair("ds_cnn")
    assert with_.plan.remat is not None
    first = chain.trained(without, "host", STEPS, tmp_path / "off")
    assert chain.same(first, chain.trained(with_, "host", STEPS, tmp_path / "min"))
    wrong = 0
    for index, left_out in enumerate(with_.plan.remat.runs):
        order = tuple(node for node in with_.plan.order if node.name != left_out.name)
        broken = chain.emitted(with_.train, replace(with_.plan, order=order), with_.kernels, 8)
        try:
            wrong += not chain.same(first, chain.trained(broken, "host", STEPS, tmp_path / str(index)))
        except AssertionError:  # the loss became NaN
            wrong += 1
    assert wrong > 0


@needs_shared
@needs_qemu
@pytest.mark.qemu
@pytest.mark.slow
def test_a_real_network_all_updated_in_qemu(tmp_path: Path) -> None:
    """Both firmwares equal numpy to the byte over 20 steps, so they equal each other.

    The small networks above are the short form.
    """
    model = SHARED / "models" / "mcunet-5fps-10c-qdq.onnx"
    common = ("--quant", "int8", "--update", "all", "--lr", "0.001", "--verify-steps", str(STEPS))
    found: list[dict[str, dict[str, object]]] = []
    for remat in ("off", "min"):
        run(model, *common, "--remat", remat, "-o", tmp_path / remat).check_success()
        found.append(json.loads((tmp_path / remat / "report.json").read_text()))
        assert found[-1]["verify"]["result"] == "pass"
        assert str(found[-1]["verify"]["message"]).startswith("file == reference == host == QEMU mps2-an500")
    assert found[0]["verify"]["losses"] == found[1]["verify"]["losses"]
    sizes = [int(str(report["memory"]["transient_bytes"])) for report in found]
    assert sizes[1] <= 0.55 * sizes[0]


# ---- the command line -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(write(models.ds_cnn(channels=8, blocks=3, size=(12, 6)), tmp_path_factory.mktemp("remat")))


def report(*arguments: str | Path, out: Path) -> dict[str, dict[str, object]]:
    run(*arguments, "-o", out, "--verify", "none").check_success()
    return json.loads((out / "report.json").read_text())


def test_report_says_what_is_computed_twice(net: Path, tmp_path: Path) -> None:
    off = report(net, "--update", "all", "--remat", "off", out=tmp_path / "off")
    low = report(net, "--update", "all", "--remat", "min", out=tmp_path / "min")
    assert off["plan"]["remat"] is None
    remat = low["plan"]["remat"]
    assert isinstance(remat, dict)
    assert remat["saved_bytes"] == off["memory"]["arena_bytes"] - low["memory"]["arena_bytes"] > 0  # type: ignore[operator]
    assert remat["extra_macs"] == sum(item["macs"] for item in remat["tensors"])
    assert low["work"]["forward_macs"] == off["work"]["forward_macs"]
    assert low["work"]["backward_macs"] - off["work"]["backward_macs"] == remat["extra_macs"]  # type: ignore[operator]
    nodes = json.loads((tmp_path / "min" / "plan.json").read_text())["order"]
    again = [node["name"] for node in nodes if node["role"] == "recompute"]
    assert sorted(again) == sorted(item["again"] for item in remat["tensors"])


def test_auto_recomputes_no_more_than_the_arena_needs(net: Path, tmp_path: Path) -> None:
    off = report(net, "--update", "all", "--remat", "off", out=tmp_path / "off")
    low = report(net, "--update", "all", "--remat", "min", out=tmp_path / "min")
    most, least = int(off["memory"]["arena_bytes"]), int(low["memory"]["arena_bytes"])  # type: ignore[call-overload]
    extra = int(low["plan"]["remat"]["extra_macs"])  # type: ignore[index]
    middle = (most + least) // 2
    fitted = report(net, "--update", "all", "--remat", "auto", "--arena", str(middle), out=tmp_path / "auto")
    assert int(fitted["memory"]["arena_bytes"]) <= middle  # type: ignore[call-overload]
    assert 0 < int(fitted["plan"]["remat"]["extra_macs"]) < extra  # type: ignore[index]
    roomy = report(net, "--update", "all", "--remat", "auto", "--arena", str(most), out=tmp_path / "roomy")
    assert roomy["plan"]["remat"] is None


def test_recomputation_is_tried_before_a_smaller_update(net: Path, tmp_path: Path) -> None:
    off = report(net, "--update", "all", "--remat", "off", out=tmp_path / "off")
    limit = str(int(off["memory"]["arena_bytes"]) * 9 // 10)  # type: ignore[call-overload]
    default = report(net, "--arena", limit, out=tmp_path / "default")
    strict = report(net, "--arena", limit, "--remat", "off", out=tmp_path / "strict")
    assert default["update_totals"]["label"] == "auto: last:8"
    assert default["plan"]["remat"] is not None
    share = default["plan"]["remat"]["extra_macs"] / (  # type: ignore[index]
        off["work"]["forward_macs"] + off["work"]["backward_macs"]  # type: ignore[operator]
    )
    assert 0 < share <= 0.25
    assert strict["plan"]["remat"] is None
    totals = strict["update_totals"]
    assert totals["parameters"] < totals["total_parameters"]


def test_explicit_off_is_not_overridden_and_the_way_out_is_priced(net: Path, tmp_path: Path) -> None:
    off = report(net, "--update", "all", "--remat", "off", out=tmp_path / "off")
    limit = int(off["memory"]["arena_bytes"]) * 9 // 10  # type: ignore[call-overload]
    flags = ("--update", "all", "--remat", "off", "--arena", str(limit), "-o", tmp_path / "no")
    failed = run(net, *flags).check_error("E0401", 3)
    line = next(line for line in failed.err.splitlines() if "--remat auto" in line and "->" in line)
    assert "MACs a step" in line
    price = int(line.partition("->")[2].split(" B")[0].replace(",", ""))
    assert price <= limit
    again = report(net, "--update", "all", "--remat", "auto", "--arena", str(limit), out=tmp_path / "yes")
    assert int(again["memory"]["arena_bytes"]) <= limit  # type: ignore[call-overload]
    assert np.isfinite(price)
