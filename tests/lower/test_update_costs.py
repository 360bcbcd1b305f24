"""What a weight costs an optimizer with roots, on cores that have an instruction for them."""

from __future__ import annotations

import pytest

from testing.kernels.boards import measure
from testing.kernels.layers import ADAPTIVE, WEIGHTS, adaptive_layer
from tests.e2e.marks import needs_qemu

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
