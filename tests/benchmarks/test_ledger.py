"""The ledger of instructions: layers on three targets cost exactly what was recorded, and give what they should."""

from __future__ import annotations

import pytest

from testing.kernels import ledger
from testing.kernels.boards import measure
from testing.kernels.layers import LAYERS
from tests.e2e.marks import needs_qemu

ROW = {"name": "a", "target": "cortex-m7", "flags": "-O2", "instructions": 5, "macs": 2, "code_bytes": 8}


@needs_qemu
@pytest.mark.qemu
def test_layers_cost_what_the_ledger_says() -> None:
    reason = ledger.version_skip()
    if reason:
        pytest.skip(reason)
    rows = ledger.layer_rows(ledger.SHORT_TARGETS)
    assert len(rows) == len(LAYERS) * len(ledger.SHORT_TARGETS)
    assert not ledger.differences(rows, ledger.recorded_ledger()["rows"])


def test_any_difference_is_seen() -> None:
    assert ledger.differences([ROW], [ROW]) == []
    for key in ("instructions", "macs", "code_bytes"):
        assert len(ledger.differences([{**ROW, key: 1}], [ROW])) == 1
    assert ledger.differences([{**ROW, ledger.MODELLED: 4}], [ROW]) == []
    assert ledger.differences([ROW], []) == ["cortex-m7, a: 5 instructions, 8 B; the ledger has no row"]


def test_another_compiler_is_named_with_both_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = ledger.recorded_ledger()["gcc"]
    monkeypatch.setattr(ledger, "gcc_version", lambda: "99.1.0")
    assert ledger.version_skip() == f"GCC here is 99.1.0, the ledger is of GCC {recorded}"


@needs_qemu
@pytest.mark.qemu
def test_a_wrong_result_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = next(layer for layer in LAYERS if layer.name.startswith("1x1 8x8x160"))
    case = layer.case()
    assert measure([case], "cortex-m7")[0].equal
    monkeypatch.setattr("testing.kernels.boards.run_node", lambda *_: (1 - case.arrays[0],))
    assert not measure([case], "cortex-m7")[0].equal
