"""--rescale on end to end: numpy, host C and firmware agree to the byte while channels change their scales."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from testing.runs import run_steps
from tests.e2e import chain
from tests.e2e.broken import write
from tests.e2e.command import run
from tests.e2e.exact import MODELS, check_exact, check_on, in_turn, in_turn_or_slow, scheme
from tests.e2e.marks import needs_qemu
from tests.quantize import nets
from tinytrain_compile.data.samples import random_samples
from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.stages import TrainGraph
from tinytrain_compile.ops.int8.rescale import rescaled_tables, rescales
from tinytrain_compile.quantize import count_saturations
from tinytrain_compile.reference.trainer import run_reference
from tinytrain_compile.target.loader import load_target

RATE = 0.2
STEPS = 10


def rescaling(name: str, **options: Any) -> TrainGraph:
    """A graph whose channels are rescaled in the steps that are checked."""
    train = nets.int8_train(MODELS[name](), rescale=True, learning_rate=RATE, **options)
    reference = run_reference(train, random_samples(train, STEPS, 0), STEPS)
    counted = count_saturations(train, reference.states[-1])
    assert counted is not None and counted.rescaled
    return train


VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("cnn", {}),
    ("cnn", {"head": "int8", "batch": 4}),
    ("qdq", {"head": "int8", "store": "q8.8"}),
    ("mlp", {"head": "int8", "optimizer": "momentum"}),
    ("overlapping", {"batch": 3, "accumulate": "inplace", "store": "q8.8"}),
    ("qdq", {"head": "int8", "optimizer": "momentum", "store": "mixed"}),
]


@needs_qemu
@pytest.mark.qemu
@pytest.mark.parametrize(("name", "options", "board"), in_turn(VARIANTS))
def test_variants_on_boards(name: str, options: dict[str, Any], board: str) -> None:
    check_exact(check_on(rescaling(name, **options), board))


OPTIONS: list[list[dict[str, Any]]] = [[{}], [{"store": "q8.8"}], [{"batch": 2, "optimizer": "momentum"}]]


@pytest.mark.parametrize(("name", "options"), in_turn_or_slow(MODELS, OPTIONS))
def test_every_model_on_the_host(name: str, options: dict[str, Any]) -> None:
    train = nets.int8_train(MODELS[name](), head="int8", rescale=True, learning_rate=RATE, **options)
    assert [node for node in train.graph.nodes if rescales(node)]
    check_exact(check_on(train, "host", steps=5), 5)


@pytest.mark.parametrize("options", [{}, {"store": "q8.8", "batch": 2}], ids=str)
@pytest.mark.parametrize("names", [("out", "in"), ("in", "out"), ("leading out", "leading in")])
def test_channel_slices(names: tuple[str, str], options: dict[str, Any], tmp_path: Path) -> None:
    train = nets.int8_train(nets.cnn(), scheme(tmp_path, *names), rescale=True, learning_rate=RATE, **options)
    layers = {node.name.removesuffix(".rescale") for node in train.graph.nodes if rescales(node)}
    sliced = f"{'point' if names[0].endswith('out') else 'last'}_weight.updated"
    assert layers == {sliced}, "an input slice is not whole, deep has no trained bias, and the head is float32"
    reference = run_reference(train, random_samples(train, 2 * STEPS, 0), STEPS)
    counted = count_saturations(train, reference.states[-1])
    assert counted is not None and counted.rescaled
    check_exact(check_on(train, "host"))


def test_a_checkpoint_holds_the_shifts(tmp_path: Path) -> None:
    """The check program saves, loads and compares; the tables are in what it saves."""
    train = rescaling("cnn")
    made = chain.project(train, kernels=chain.kernels_of(train))
    tables = {t.name for node in train.graph.nodes if rescales(node) for t in rescaled_tables(node)}
    assert len(tables) == 4 * 4 and tables <= {slot.name for slot in made.bundle.interface.state}
    result = run_steps(made.bundle, load_target("host"), random_samples(train, 4, 0), 4, None, 1, tmp_path)
    assert result.status == "ok"
    moved = {name for name in tables if result.states[0][name] != result.states[3][name]}
    assert {"point_weight.forward_shift", "point_weight.error_shift", "point_weight.weight_shift"} <= moved


FAULTS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("return (int8_t)(shift - 2);", "return (int8_t)(shift - 1);", {}),
    ("    ++*error;\n", "", {}),
    ("*bias = tt_shift_right(*bias, 1);", "*bias = *bias >> 1;", {}),
    ("w[i] = (int8_t)tt_shift_right(w[i], 1);", "w[i] = (int8_t)(w[i] / 2);", {}),
    ("fraction[i] = (int8_t)(value - w[i] * 256);", "", {"store": "q8.8"}),
)
"""(C of the runtime, a fault in it, the update rule that must show it)"""


@pytest.mark.parametrize(("sound", "broken", "options"), FAULTS, ids=lambda part: "" if isinstance(part, str) else None)
def test_a_fault_in_a_rescale_fails_the_check(sound: str, broken: str, options: dict[str, Any]) -> None:
    train = rescaling("cnn", **options)
    made = chain.project(train, kernels=chain.kernels_of(train))
    text = made.bundle.files["tt_fixed.h"]
    assert text.count(sound) == 1
    files = {**made.bundle.files, "tt_fixed.h": text.replace(sound, broken)}
    with pytest.raises(CompileError, match="E0601"):
        chain.check(replace(made, bundle=replace(made.bundle, files=files)), "cortex-m7", "host", STEPS)
    chain.check(made, "cortex-m7", "host", STEPS)


def test_the_command_reports_rescaled_channels(tmp_path: Path) -> None:
    np.savez(tmp_path / "calib.npz", x=nets.calibration(nets.cnn()))
    model = write(nets.cnn(), tmp_path)
    common = ("--quant", "int8", "--calib", tmp_path / "calib.npz", "--lr", str(RATE), "--verify", "host")
    reports: dict[str, Any] = {}
    for rescale in ("on", "off"):
        out = tmp_path / rescale
        outcome = run(model, *common, "--verify-steps", "10", "--rescale", rescale, "-o", out).check_success()
        reports[rescale] = json.loads((out / "report.json").read_text())
        assert ("channels rescaled" in outcome.out) == (rescale == "on")
    on, off = reports["on"], reports["off"]
    assert on["verify"]["max_error"] == off["verify"]["max_error"] == 0
    assert on["verify"]["saturations"]["rescaled"] > 3 and on["verify"]["saturations"]["before"] == 0
    assert off["verify"]["saturations"]["rescaled"] is None
    assert sum(row["kind"] == "shift" for row in on["quant_tensors"]) == 16
    assert any("--rescale on" in note for note in on["notes"])
    assert "shift" not in {row["kind"] for row in off["quant_tensors"]}
