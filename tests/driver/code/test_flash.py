"""--code and --flash-budget: which nodes get small code, which weights are copied, what the command says and does."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from testing.networks import models
from testing.ops import case_quantised as quantised
from tests.e2e.broken import write
from tests.e2e.command import Outcome, run, tree
from tests.e2e.marks import needs_qemu
from tests.quantize import nets
from tinytrain_compile.driver.candidate import Candidate
from tinytrain_compile.driver.candidates.external_kernels import Externals
from tinytrain_compile.driver.candidates.planner import Planner
from tinytrain_compile.driver.code import generate
from tinytrain_compile.driver.code.mix import Mix, Variant, choose_copies, choose_mix, estimate, extra_instructions
from tinytrain_compile.driver.search.choose import search_update
from tinytrain_compile.frontend import FrontendOptions, load_model
from tinytrain_compile.ir.kernels import Kernel, KernelSet
from tinytrain_compile.ir.stages import TrainGraph, UpdatePlan
from tinytrain_compile.ir.types import Node
from tinytrain_compile.ops.conv import ConvAttrs
from tinytrain_compile.ops.int8.error import NO_CLAMP
from tinytrain_compile.ops.names import operand, operands
from tinytrain_compile.options.compile_options import CompileOptions
from tinytrain_compile.plan.options import Wish
from tinytrain_compile.target.loader import load_target
from tinytrain_compile.verify.build import FlashSizes

# ---- what is chosen -------------------------------------------------------------------------------------------------


def layer(name: str, size: int, depthwise: bool = False) -> Node:
    attrs = ConvAttrs((1, 1), (1, 1), (0, 0, 0, 0), groups=8 if depthwise else 1)
    node = quantised.qconv(np.random.default_rng(1), ((1, size, size, 8), 8, attrs), 0).node()
    return replace(node, name=name)


def variant(calls: dict[str, str], sizes: dict[str, int], rest: int, numbers: int = 0) -> Variant:
    names = tuple(dict.fromkeys(calls.values()))
    tables = {node: f"n_{node}" for node in calls} if numbers else {}
    kernels = KernelSet(
        tuple(Kernel(name, "", "") for name in names), calls, tables, dict.fromkeys(tables.values(), (1,) * numbers)
    )
    total = rest + sum(sizes[name] for name in names) + 4 * numbers * len(tables)
    return Variant(kernels, FlashSizes(total, 0, sizes))


NODES = [layer("a", 4), layer("b", 8), layer("c", 16), layer("d", 4, depthwise=True)]
FAST = variant({n: f"fast_{n}" for n in "abcd"}, {"fast_a": 400, "fast_b": 400, "fast_c": 500, "fast_d": 300}, 1000)
SMALL = variant({"a": "s", "b": "s", "c": "s", "d": "small_d"}, {"s": 300, "small_d": 200}, 600, numbers=2)


def chosen(limit: int) -> str:
    return "".join(sorted(choose_mix(FAST, SMALL, NODES, limit).nodes))


def test_estimates_are_the_sums_of_what_is_called() -> None:
    assert estimate(FAST, SMALL, Mix(frozenset(), False)) == FAST.sizes.total_bytes == 2600
    everything = Mix(frozenset("abcd"), True)
    assert estimate(FAST, SMALL, everything) == SMALL.sizes.total_bytes == 600 + 300 + 200 + 4 * 8
    assert estimate(FAST, SMALL, Mix(frozenset("ab"), True)) == 600 + 500 + 300 + 300 + 2 * 8


def test_calls_first_then_what_saves_most_per_instruction_then_back_what_gains_most_per_byte() -> None:
    work = [extra_instructions(node) for node in NODES]
    assert work == [4 * 4 * 64 * 6 // 10, 64 * 64 * 6 // 10, 256 * 64 * 6 // 10, 4 * 4 * 8 * 24 // 10]
    assert choose_mix(FAST, SMALL, NODES, 2200) == Mix(frozenset(), True)
    assert chosen(2199) == "d", "saves 92 bytes for 307 instructions"
    assert chosen(2107) == "ad", "the family of three saves more than is needed: its larger layers go back"
    assert chosen(1632) == "abd"
    assert chosen(1599) == "acd", "the largest does not fit, the next one does"
    assert chosen(1523) == "abc"
    assert chosen(1223) == chosen(1) == "abcd"


def gradient(name: str, size: int, channels: int) -> Node:
    shape = ((1, size, size, channels), channels, ConvAttrs((1, 1), (1, 1), (0, 0, 0, 0)))
    node = quantised.qconv_grad_input(np.random.default_rng(1), shape, 0, NO_CLAMP).node()
    given = {**operands(node), "w": replace(operand(node, "w"), name=f"w_{name}")}
    return replace(node, name=name, inputs=tuple(given.values()))


def test_weights_that_are_widened_most_often_are_copied_while_bytes_are_left() -> None:
    """Of 128 channels and 32 x 32 pixels not everything lies in scratch at once: weights are widened in every strip."""
    nodes = [gradient("small", 4, 16), gradient("large", 32, 16), gradient("deep", 4, 32), NODES[0]]
    frozen = {f"w_{node.name}" for node in nodes}
    assert list(choose_copies(nodes, frozen, 1 << 20)) == ["w_large", "w_small", "w_deep"]
    assert list(choose_copies(nodes, frozen, 256 + 1023)) == ["w_large", "w_small"]
    assert list(choose_copies(nodes, frozen - {"w_large"}, 1279)) == ["w_small"], "an updated weight has one copy"
    assert choose_copies(nodes, frozen, 255) == {}


# ---- on the command line --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cnn(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Arguments that compile a small int8 network and check it on the host."""
    folder = tmp_path_factory.mktemp("cnn")
    np.savez(folder / "calib.npz", x=nets.calibration(nets.cnn()))
    model = write(nets.cnn(), folder)
    return (model, "--quant", "int8", "--calib", str(folder / "calib.npz"), "--update", "stem/Conv,deep/Conv")


def flash(out: Path) -> dict[str, Any]:
    return json.loads((out / "report.json").read_text())["flash"]


def compiled(cnn: tuple[str, ...], out: Path, *more: str) -> Outcome:
    return run(*cnn, "-o", out, *more)


@needs_qemu
@pytest.mark.qemu
def test_a_budget_is_kept_by_what_it_chooses(cnn: tuple[str, ...], tmp_path: Path) -> None:
    """Every outcome on one network: its own size, less, the least, and too little."""
    compiled(cnn, tmp_path / "speed").check_success()
    compiled(cnn, tmp_path / "size", "--code", "size").check_success()
    fast, small = flash(tmp_path / "speed"), flash(tmp_path / "size")
    assert (fast["code"], small["code"]) == ("speed", "size")
    assert small["code_bytes"] < 0.65 * fast["code_bytes"] and len(small["small_nodes"]) > 20
    most, least = (part["code_bytes"] + part["const_bytes"] for part in (fast, small))

    compiled(cnn, tmp_path / "enough", "--flash-budget", str(most)).check_success()
    first, same = (tree(tmp_path / name) for name in ("speed", "enough"))
    assert {n for n in first if first[n] != same[n]} == {"report.json", "report.html", "manifest.json"}, (
        "nothing had to change"
    )

    middle = least + (most - least) * 2 // 3  # a third less than the fastest: some nodes are small then
    outcome = compiled(cnn, tmp_path / "mixed", "--flash-budget", str(middle)).check_success()
    mixed = flash(tmp_path / "mixed")
    assert mixed["code"] == "mixed" and mixed["budget_bytes"] == middle
    assert least < mixed["code_bytes"] + mixed["const_bytes"] <= middle
    assert re.search(rf"small code for \d+ of \d+ nodes\s+budget {middle:,} B", outcome.out)
    assert {p.name for p in (tmp_path / "mixed").glob("*_kernels*.c")} == {"net_kernels.c", "net_kernels_small.c"}

    error = compiled(cnn, tmp_path / "none", "--flash-budget", str(least - 1)).check_error("E0403", 3).err
    assert f"needs {least} B of flash" in error and f"try --flash-budget {least}" in error
    error = compiled(cnn, tmp_path / "none", "--flash-budget", str(least), "--code", "speed").err
    assert f"needs {most} B" in error and "leave out --code" in error, "what was asked for is not changed"
    assert not (tmp_path / "none").exists()


@needs_qemu
@pytest.mark.qemu
def test_auto_weighs_both_kinds_of_code(cnn: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small code if code is most of the flash and enough is saved (32 % here); never where vectors would be lost."""
    compiled(cnn, tmp_path / "third", "--code", "auto").check_success()
    assert flash(tmp_path / "third")["code"] == "speed", "a third is not saved"
    monkeypatch.setattr(generate, "LEAST_SAVING", 4)
    outcome = compiled(cnn, tmp_path / "speed").check_success()
    fast = flash(tmp_path / "speed")
    share = round(100 * fast["code_bytes"] / (fast["code_bytes"] + fast["const_bytes"]))
    assert share > 50 and f"{share} % of it is code: --code auto" in " ".join(outcome.out.split())

    outcome = compiled(cnn, tmp_path / "auto", "--code", "auto").check_success()
    compiled(cnn, tmp_path / "size", "--code", "size").check_success()
    both = [tree(tmp_path / name) for name in ("auto", "size")]
    assert {n for n in both[0] if both[0][n] != both[1][n]} == {"report.json", "report.html", "manifest.json"}
    assert flash(tmp_path / "auto")["other_code_bytes"] == fast["code_bytes"] + fast["const_bytes"]
    assert "B with --code speed" in outcome.out

    compiled(cnn, tmp_path / "vectors", "--code", "auto", "--target", "cortex-m55", "--verify", "none").check_success()
    assert flash(tmp_path / "vectors")["code"] == "speed"


@needs_qemu
@pytest.mark.qemu
def test_room_that_is_left_holds_a_second_copy_of_frozen_weights(cnn: tuple[str, ...], tmp_path: Path) -> None:
    compiled(cnn, tmp_path / "speed").check_success()
    own = flash(tmp_path / "speed")
    budget = own["code_bytes"] + own["const_bytes"] + 60  # the weight is 36 B, prepared it is 96
    outcome = compiled(cnn, tmp_path / "out", "--flash-budget", str(budget)).check_success()
    found = flash(tmp_path / "out")
    assert (found["code"], found["prepared_weights"]) == ("speed", [])
    assert found["turned_weights"] == [{"layer": "point/Conv", "size_bytes": 36}]
    assert "1 frozen weight stored twice (36 B): point/Conv" in outcome.out
    weights = (tmp_path / "out" / "net_weights.c").read_text()
    assert "transposed[36]" in weights
    assert "stored twice" in (tmp_path / "out" / "report.html").read_text()


@needs_qemu
@pytest.mark.qemu
def test_more_room_holds_weights_as_they_are_multiplied(cnn: tuple[str, ...], tmp_path: Path) -> None:
    """What is trained does not change, nor does the arena grow; a lock gives the same code again, or says why not."""
    compiled(cnn, tmp_path / "speed", "--verify", "none").check_success()
    asked = ("--flash-budget", "1MB", "--verify", "qemu")
    outcome = compiled(cnn, tmp_path / "out", *asked).check_success()
    found, out = flash(tmp_path / "out"), tmp_path / "out"
    assert found["turned_weights"] == []
    point, last = {"layer": "point/Conv", "size_bytes": 96}, {"layer": "last/Conv", "size_bytes": 1296}
    assert found["prepared_weights"] == [point, last, point], "two 1x1, of one of them the data gradient, and a 3x3"
    assert "3 prepared weights in flash (1,488 B)" in outcome.out
    weights = (out / "net_weights.c").read_text()
    assert len(re.findall(r"_Alignas\(8\) const int16_t \w+prepared(?:_back)?\[48\]", weights)) == 2
    assert "point_w[36]" not in weights, "nobody reads the int8 weight any more"
    arenas = [
        json.loads((tmp_path / name / "report.json").read_text())["memory"]["arena_bytes"] for name in ("out", "speed")
    ]
    assert arenas[0] <= arenas[1]

    compiled(cnn, tmp_path / "again", *asked, "--lock", str(out / "plan.json")).check_success()
    old, new = tree(out), tree(tmp_path / "again")
    assert [name for name in old if name.endswith((".c", ".h")) and old[name] != new[name]] == []
    less = compiled(cnn, tmp_path / "none", "--flash-budget", "4KB", "--lock", str(out / "plan.json"))
    error = less.check_error("E0403", 3).err
    assert "weights lie prepared in flash, as the plan of the lock has them" in " ".join(error.split())
    assert "compile without --lock plan.json" in " ".join(error.split())
    plan = json.loads((out / "plan.json").read_text())
    first = next(node["name"] for node in plan["order"] if node["origin"] == "stem/Conv")
    (tmp_path / "wrong.json").write_text(json.dumps({**plan, "prepared": [first]}))
    error = compiled(cnn, tmp_path / "none", "--lock", str(tmp_path / "wrong.json")).check_error("E0106", 2).err
    assert f"{first!r}" in error
    vectors = compiled(cnn, tmp_path / "none", "--lock", str(out / "plan.json"), "--target", "cortex-m55")
    assert "cannot be prepared in flash" in vectors.check_error("E0106", 2).err


def test_what_cannot_be_measured_is_an_error(cnn: tuple[str, ...], tmp_path: Path) -> None:
    compiled(cnn, tmp_path / "out", "--target", "host", "--flash-budget", "1MB").check_error("E0113", 2)
    compiled(cnn, tmp_path / "out", "--flash-budget", "none").check_error("E0101", 2)
    compiled(cnn, tmp_path / "out", "--code", "tiny").check_error("E0101", 2)


@needs_qemu
@pytest.mark.qemu
def test_what_auto_chooses_fits_the_flash(cnn: tuple[str, ...], tmp_path: Path) -> None:
    """Less than all layers need: fewer are trained. Less than anything needs: an error, after a bounded search."""
    automatic = (*cnn[:-1], "auto", "--code", "size", "--verify-steps", "1")
    compiled((*cnn[:-1], "all"), tmp_path / "all", *automatic[len(cnn) :]).check_success()
    budget = sum(flash(tmp_path / "all")[part] for part in ("code_bytes", "const_bytes")) - 64
    compiled(automatic, tmp_path / "less", "--flash-budget", str(budget)).check_success()
    report = json.loads((tmp_path / "less" / "report.json").read_text())
    assert report["flash"]["code_bytes"] + report["flash"]["const_bytes"] <= budget
    totals = report["update_totals"]
    assert 0 < totals["parameters"] < totals["total_parameters"]
    error = compiled(automatic, tmp_path / "none", "--flash-budget", "3000").check_error("E0403", 3).err
    assert "the budget is 3000 B (over by" in error


@needs_qemu
def test_flash_is_looked_at_before_plans_that_are_searches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an update that is too large for flash with nothing that helps no smallest arena is searched."""
    planned, real = list[str](), Planner.planned

    def recorded(
        self: Planner, update: UpdatePlan, train: TrainGraph, wish: Wish | None = None, quick: bool = False
    ) -> Candidate:
        searched = wish is not None and wish.aim in ("fit", "fit soon") and not quick
        planned.extend([update.label] if searched else [])
        return real(self, update, train, wish, quick)

    monkeypatch.setattr(Planner, "planned", recorded)
    path = Path(write(models.ds_cnn(channels=8, blocks=1, size=(11, 5)), tmp_path))
    for budget, plans in ((2000, 0), (1 << 20, 1)):
        planned.clear()
        asked = CompileOptions(path, update="auto", optimise="memory", flash_budget_bytes=budget)
        search_update(Planner(load_model(path, FrontendOptions()), asked, load_target("cortex-m4"), Externals()), 3)
        assert len(planned) == plans
