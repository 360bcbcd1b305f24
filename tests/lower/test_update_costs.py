"""What a weight costs an optimizer: without roots, and with roots on cores that have an instruction for them."""

from __future__ import annotations

import pytest

from testing.kernels.boards import measure
from testing.kernels.layers import ADAPTIVE, WEIGHTS, adaptive_layer, dense_layer
from tests.e2e.marks import needs_qemu
from tinytrain_compile.ops.update import SgdAttrs

MOST = {"RMSprop": 30, "Adagrad": 30}
"""Instructions per weight at most, of a gradient and an update in one; Adam, and those of more state, have 40."""


@needs_qemu
@pytest.mark.qemu
@pytest.mark.parametrize("core", ["cortex-m4", "cortex-m7", "cortex-m55"])
def test_an_update_with_a_root_takes_forty_instructions_a_weight(core: str) -> None:
    found = measure([adaptive_layer(name).case() for name in ADAPTIVE], core)
    each = {name: run.instructions / (WEIGHTS[0] * WEIGHTS[1]) for name, run in zip(ADAPTIVE, found, strict=True)}
    assert {name: count for name, count in each.items() if count > MOST.get(name, 40)} == {}
    assert min(each.values()) > 15  # it was counted at all


ONE_SAMPLE = {
    "SGD": ("SgdUpdate", 0, SgdAttrs()),
    "momentum": ("MomentumUpdate", 1, SgdAttrs(momentum=0.9)),
}
"""Optimizers without roots: update, tensors of its state, attributes."""


@needs_qemu
@pytest.mark.qemu
@pytest.mark.parametrize(
    ("core", "most"),
    [
        ("cortex-m4", {"SGD": 3.6, "momentum": 7}),
        ("cortex-m7", {"SGD": 3.6, "momentum": 7}),
        ("cortex-m55", {"SGD": 1.8, "momentum": 3.3}),
    ],
)
def test_a_dense_layer_of_one_sample_multiplies_and_subtracts(core: str, most: dict[str, float]) -> None:
    """Two instructions a weight are arithmetic; loads and stores of pairs (or vectors) and the loops are the rest."""
    shapes = [(64, 128), (100, 784), (4, 32)]
    chosen = [(name, shape) for name in ONE_SAMPLE for shape in shapes]
    found = measure([dense_layer(name, shape, *ONE_SAMPLE[name]).case() for name, shape in chosen], core)
    each = {pick: run.instructions / run.macs for pick, run in zip(chosen, found, strict=True)}
    assert {pick: count for pick, count in each.items() if count > most[pick[0]]} == {}
    assert min(each.values()) > 1  # it was counted at all
