"""--clip-norm from numpy to the board: the same bytes, and the same options on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from testing.networks import models
from testing.places import ROOT
from tests.e2e import chain
from tests.e2e.marks import needs_qemu
from tests.e2e.test_planted_faults import failure, once, planted
from tests.quantize import nets
from tinytrain_compile.compilation import compile_model
from tinytrain_compile.ir.stages import TrainGraph
from tinytrain_compile.options.compile_options import CompileOptions
from tinytrain_compile.training import fuse_updates

DIGITS = ROOT / "examples" / "digits"

NORM = 0.5
FLOAT: tuple[dict[str, Any], ...] = (
    {},
    {"optimizer": "momentum", "nesterov": True, "clip_per": "layer"},
    {"optimizer": "adam"},
    {"batch": 8},
    {"batch": 8, "optimizer": "adam", "clip_per": "layer"},
    {"batch": 2, "accumulate": "inplace", "weight_decay": 0.01},
)
INT8: tuple[dict[str, Any], ...] = (
    {"store": "mixed"},
    {"store": "q8.8", "optimizer": "momentum"},
    {"store": "sr8", "rescale": True, "head": "int8"},
    {"store": "mixed", "batch": 4, "optimizer": "momentum"},
    {"store": "mixed", "batch": 2, "accumulate": "inplace", "clip_per": "layer"},
)


def float_net(**options: Any) -> TrainGraph:
    return chain.train_graph(models.mlp(), clip_norm=NORM, learning_rate=0.05, **options)


def int8_net(**options: Any) -> TrainGraph:
    return fuse_updates(nets.int8_train(nets.cnn(), clip_norm=NORM, learning_rate=0.05, **options))


@pytest.mark.parametrize("options", FLOAT, ids=str)
@pytest.mark.parametrize("fused", [False, True])
def test_float32(options: dict[str, Any], fused: bool) -> None:
    train = float_net(**options)
    assert chain.check(chain.project(fuse_updates(train) if fused else train), mode="host").result == "pass"


@pytest.mark.parametrize("options", INT8, ids=str)
def test_int8_to_the_byte(options: dict[str, Any]) -> None:
    assert chain.check(chain.project(int8_net(**options)), mode="host").result == "pass"


@needs_qemu
@pytest.mark.qemu
def test_stored_and_fused_gradients_have_the_same_bytes(tmp_path: Path) -> None:
    plain = float_net()
    chain.train_alike(chain.project(plain), chain.project(fuse_updates(plain)), 6, tmp_path)


@needs_qemu
@pytest.mark.qemu
@pytest.mark.parametrize("board", ["cortex-m0plus", "cortex-m55"])
def test_boards_of_other_kinds(board: str) -> None:
    for train in (fuse_updates(float_net()), int8_net(**INT8[1])):
        assert chain.check(chain.project(train, board), board).result == "pass"


def test_a_wrong_factor_is_found() -> None:
    """Of float32 and of int8."""
    made = chain.project(fuse_updates(float_net()))
    assert chain.check(made, mode="host").result == "pass"
    assert "more than rounding explains" in failure(planted(made, "net_kernels.c", once(r"0\.5f / ", "0.51f / ")))


def test_squares_that_are_forgotten_are_found() -> None:
    made = chain.project(int8_net(**INT8[0]))
    failure(planted(made, "tt_clip_int8.h", once(r"sum \+= tt_limited", "sum = tt_limited")))


@pytest.mark.parametrize("arena", [9000, 10200, 15000])
def test_a_sum_of_squares_is_not_changed_in_a_copy(arena: int) -> None:
    """With a further memory such a sum may wait there, but comes back before a node adds to it where it lies."""
    options = CompileOptions(
        DIGITS / "digits.onnx",
        dry_run=True,
        arena_bytes=arena,
        memories={"sram2": 1 << 20},
        quant="int8",
        calib=DIGITS / "calib.npz",
        weight_store="q8.8",
        clip_norm=0.01,
        optimise="energy",
        update="all",
        target="cortex-m23",
    )
    summary = compile_model(options).summary
    assert summary is not None and summary.plan.arena_bytes <= arena
