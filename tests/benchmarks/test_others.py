"""Layers that nobody here chose: none takes more instructions than the vendor's library, whose counts are data."""

from __future__ import annotations

import pytest

from testing.kernels import ledger
from testing.kernels.others import TARGETS, geometric_mean, measured
from tests.e2e.marks import needs_qemu

LEAST_MEAN = {"cortex-m55": 2.0, "cortex-m0plus": 1.9}
"""Geometric mean of the ratios that a core must keep, if it is not MOST."""
MOST = 2.1


@needs_qemu
@pytest.mark.qemu
@pytest.mark.parametrize("target", TARGETS)
def test_no_layer_is_slower_than_the_library(target: str) -> None:
    if reason := ledger.version_skip():
        pytest.skip(reason)
    rows = measured(target)
    assert all(found.equal for _, found, _ in rows)
    assert not {layer.name: round(ratio, 2) for layer, _, ratio in rows if ratio < 1}
    assert geometric_mean([ratio for *_, ratio in rows]) >= LEAST_MEAN.get(target, MOST)
