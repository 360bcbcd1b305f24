"""--runtime: what the option reads, and what the report says of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from testing.networks import models
from tests.e2e.marks import needs_qemu
from tinytrain_compile.cli.python_options import options_from
from tinytrain_compile.compilation import compile_model
from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.runtime_parts import PARTS, RuntimeParts
from tinytrain_compile.options.option import parse_runtime


def test_parts_are_read_in_any_order() -> None:
    assert parse_runtime("schedule,replay", "--runtime") == RuntimeParts(("replay", "schedule"))
    assert parse_runtime(" replay=100 ,", "--runtime") == RuntimeParts(("replay",), 100)
    assert parse_runtime("monitor=flash,replay=3", "--runtime") == RuntimeParts(("replay", "monitor"), 3, 0, False)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("reply", "unknown part 'reply'"),
        ("replay,replay=3", "'replay' is named twice"),
        ("replay=0", "'0' is no number of samples"),
        ("replay=", "'' is no number of samples"),
        ("replay=2000000", "'2000000' is no number of samples"),
        ("monitor=3", r"monitor takes no number \(but monitor=flash\)"),
        ("monitor=ram", "monitor takes no number"),
        ("store=flash", "store takes no number"),
        ("replay=-1", "'-1' is no number of samples"),
    ],
)
def test_what_cannot_be_is_an_error(text: str, said: str) -> None:
    with pytest.raises(CompileError, match=said) as problem:
        parse_runtime(text, "--runtime")
    assert problem.value.code == "E0101"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "net.onnx"
    path.write_bytes(models.mlp().SerializeToString())
    return path


def test_the_report_counts_the_ram_of_the_reservoir(model: Path, tmp_path: Path) -> None:
    options = options_from(model, {"runtime": "replay=7", "verify": "none", "out": tmp_path / "out"})
    made = compile_model(options)
    report, plan = (json.loads((tmp_path / "out" / name).read_text()) for name in ("report.json", "plan.json"))
    assert report["runtime"] == {"parts": ["replay"], "replay": {"record_bytes": 52, "samples": 7, "bytes": 364}}
    assert report["memory"]["replay_bytes"] == plan["replay_bytes"] == 364
    assert "#define NET_REPLAY_BYTES 364u" in (tmp_path / "out" / "net_replay.h").read_text()
    assert {"net_replay.c", "net_replay.h"} <= set(made.files)


@pytest.mark.qemu
@needs_qemu
def test_the_stack_of_all_parts_is_bounded(model: Path, tmp_path: Path) -> None:
    """Whichever call the user's callbacks: a build in QEMU, which is the default, knows all of these."""
    asked = {"runtime": ",".join(PARTS), "update": "all", "verify_steps": 1, "out": tmp_path / "out"}
    found = compile_model(options_from(model, asked)).summary
    assert found is not None and found.verify.result == "pass" and found.verify.stack_bytes


def test_a_lock_may_have_it_or_not(model: Path, tmp_path: Path) -> None:
    compile_model(options_from(model, {"runtime": "replay=7", "verify": "none", "out": tmp_path / "out"}))
    lock = tmp_path / "out" / "plan.json"
    compile_model(options_from(model, {"lock": lock, "verify": "none", "out": tmp_path / "again"}))
    assert not (tmp_path / "again" / "net_replay.h").exists()
