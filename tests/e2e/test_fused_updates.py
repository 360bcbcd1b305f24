"""Weight gradients that are never stored: the firmware trains with the same bytes as with stored ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest

from testing.networks import models
from tests.e2e import chain
from tests.e2e.marks import needs_qemu
from tests.e2e.test_planted_faults import failure, once, planted
from tests.quantize import nets
from tests.training.test_fused_updates import fused, stored
from tinytrain_compile.ir.stages import TrainGraph
from tinytrain_compile.training import fuse_updates

SLICES = (
    'layer = "pw0/Conv"\nweight = [1, 4, 6]',
    'layer = "dw0/Conv"\nweight = [2, 3, 5]',
    'layer = "fc/Gemm"\nweight = 2',
)
NETS: dict[str, Callable[[], onnx.ModelProto]] = {
    "mlp": models.mlp,
    "ds_cnn": lambda: models.ds_cnn(channels=8, blocks=1, size=(12, 6)),
    "resnet8": lambda: models.resnet8(channels=4, size=16),
}
CASES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("resnet8", {}),
    ("ds_cnn", {"weight_decay": 0.01}),
    ("ds_cnn", {"optimizer": "momentum", "nesterov": True}),
    ("resnet8", {"optimizer": "adam"}),
    ("mlp", {"optimizer": "adagrad"}),
    ("mlp", {"optimizer": "rmsprop"}),
    ("mlp", {"optimizer": "rmsprop", "centered": True}),
    ("ds_cnn", {"optimizer": "lion", "weight_decay": 0.1}),
    ("resnet8", {"batch": 2, "optimizer": "momentum"}),
    ("ds_cnn", {"batch": 2, "accumulate": "inplace"}),
    ("ds_cnn", {"update": "slices"}),
)


def _train(name: str, options: dict[str, Any], folder: Path) -> TrainGraph:
    scheme = folder / "scheme.toml"
    scheme.write_text("".join(f"[[update]]\n{text}\n" for text in SLICES))
    options = {"update": "all", **options}
    if options["update"] == "slices":
        options["update"] = str(scheme)
    return chain.train_graph(NETS[name](), learning_rate=0.05, **options)


@needs_qemu
@pytest.mark.qemu
@pytest.mark.parametrize(("name", "options"), CASES, ids=str)
def test_the_firmware_trains_with_the_same_bytes(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    plain = _train(name, options, tmp_path)
    train = fuse_updates(plain)
    assert fused(train)
    one, other = chain.project(plain), chain.project(train)
    assert other.plan.arena_bytes <= one.plan.arena_bytes
    chain.train_alike(one, other, 6, tmp_path)


@needs_qemu
@pytest.mark.qemu
@pytest.mark.parametrize("board", ["cortex-m0plus", "cortex-m55"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_cores_of_other_kinds_compute_what_the_reference_does(board: str, optimizer: str) -> None:
    train = fuse_updates(chain.train_graph(NETS["ds_cnn"](), optimizer=optimizer))
    assert chain.check(chain.project(train, board), board).result == "pass"


@needs_qemu
@pytest.mark.qemu
def test_the_float_head_of_an_int8_network(tmp_path: Path) -> None:
    plain = nets.int8_train(nets.cnn(), head="fp32")
    train = fuse_updates(plain)
    assert (stored(plain), stored(train)) == (1, 0)
    chain.train_alike(chain.project(plain), chain.project(train), 6, tmp_path)


def test_a_wrong_gradient_is_found() -> None:
    """Also where Adam would make a full step of it: the judge takes such updates apart."""
    made = chain.project(fuse_updates(chain.train_graph(models.mlp(), optimizer="adam")))
    assert chain.check(made, mode="host").result == "pass"
    wrong = planted(
        made,
        "net_kernels.c",
        once(r"store_pair\(&scratch\[0\], (.*)\);", r"store_pair(&scratch[0], tt_mul_both(\1, -0.5f));"),
    )
    assert "more than rounding explains" in failure(wrong)
