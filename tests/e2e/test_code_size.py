"""--code size: the bytes of training are those of --code speed, from fewer bytes of code."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from testing.networks import models
from tests.e2e import chain
from tests.e2e.exact import MODELS, check_exact
from tests.e2e.marks import needs_qemu
from tests.quantize import nets
from tinytrain_compile.ir.stages import TrainGraph
from tinytrain_compile.target.loader import load_target
from tinytrain_compile.verify.build import flash_sizes
from tinytrain_compile.verify.tools import find_tools

STEPS = 5
TRAINED: dict[str, Callable[[], TrainGraph]] = {
    "int8 cnn": lambda: nets.int8_train(MODELS["cnn"](), learning_rate=0.05),
    "int8 qdq batch": lambda: nets.int8_train(MODELS["qdq"](), learning_rate=0.05, head="int8", batch=3),
    "int8 regions": lambda: nets.int8_train(MODELS["regions"](), learning_rate=0.05),
    "resnet": lambda: chain.train_graph(models.resnet8(4, 16)),
    "depthwise": lambda: chain.train_graph(models.ds_cnn(8, 1, (12, 6)), optimizer="momentum"),
}


def small_project(train: TrainGraph, board: str = "cortex-m7") -> chain.Project:
    return chain.project(train, board, chain.kernels_of(train, board, small=True))


@pytest.mark.parametrize("name", TRAINED)
def test_same_losses_as_code_for_speed(name: str) -> None:
    train = TRAINED[name]()
    reports = {
        kind: chain.check(made, "cortex-m7", "host", STEPS)
        for kind, made in (("size", small_project(train)), ("speed", chain.project(train, "cortex-m7")))
    }
    assert reports["size"].losses == reports["speed"].losses
    if train.integer:
        check_exact({"host": reports["size"]}, STEPS)


@needs_qemu
@pytest.mark.qemu
@pytest.mark.parametrize("board", ["cortex-m0plus", "cortex-m7"])
def test_on_a_board(board: str) -> None:
    train = TRAINED["int8 cnn"]()
    check_exact({board: chain.check(small_project(train, board), board, "qemu", STEPS)}, STEPS)


@needs_qemu
def test_it_is_smaller() -> None:
    train, target = TRAINED["int8 qdq batch"](), load_target("cortex-m7")
    bundles = small_project(train).bundle, chain.project(train, "cortex-m7").bundle
    small, fast = (flash_sizes(bundle, target, find_tools(target)) for bundle in bundles)
    assert small.code_bytes < 0.6 * fast.code_bytes
    assert small.total_bytes < fast.total_bytes
    assert bundles[0].small == ("net_train.c", "net_kernels_small.c") and bundles[1].small == ()
