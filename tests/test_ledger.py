"""The ledger of instructions: layers on three targets cost exactly what was recorded, and give what they should."""

from __future__ import annotations

import pytest
from benchmarks import instructions
from benchmarks.board import measure
from benchmarks.layers import LAYERS

from tests.e2e.marks import needs_qemu

ROW = {"name": "a", "target": "cortex-m7", "flags": "-O2", "instructions": 5, "macs": 2, "code_bytes": 8}


@needs_qemu
@pytest.mark.qemu
def test_layers_cost_what_the_ledger_says() -> None:
    reason = instructions.version_skip()
    if reason:
        pytest.skip(reason)
    rows = instructions.layer_rows(instructions.SHORT_TARGETS)
    assert len(rows) == len(LAYERS) * len(instructions.SHORT_TARGETS)
    assert not instructions.differences(rows, instructions.recorded_ledger()["rows"])


def test_any_difference_is_seen() -> None:
    assert instructions.differences([ROW], [ROW]) == []
    for key in ("instructions", "macs", "code_bytes"):
        assert len(instructions.differences([{**ROW, key: 1}], [ROW])) == 1
    assert instructions.differences([ROW], []) == ["cortex-m7, a: 5 instructions, 8 B; the ledger has no row"]


def test_another_compiler_is_named_with_both_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = instructions.recorded_ledger()["gcc"]
    monkeypatch.setattr(instructions, "gcc_version", lambda: "99.1.0")
    assert instructions.version_skip() == f"GCC here is 99.1.0, the ledger is of GCC {recorded}"


@needs_qemu
@pytest.mark.qemu
def test_a_wrong_result_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = next(layer for layer in LAYERS if layer.name.startswith("1x1 8x8x160"))
    case = layer.case()
    assert measure([case], "cortex-m7")[0].equal
    monkeypatch.setattr("benchmarks.board.run_node", lambda *_: (1 - case.arrays[0],))
    assert not measure([case], "cortex-m7")[0].equal
