"""Three pretrained mobile networks train in QEMU; what does not fit names a way that does."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from testing.places import SHARED
from tests.e2e.command import FILE, HERE, run
from tests.e2e.marks import needs_qemu, needs_shared
from tests.examples.pages import check_row, figures
from tinytrain_compile.compilation import compile_model
from tinytrain_compile.errors import CompileError
from tinytrain_compile.options.compile_options import CompileOptions

pytestmark = needs_shared
NAMES = ("mbv2-w0.35", "mcunet-5fps", "proxyless-w0.3")
IN_README = "mcunet-5fps"
"""Of which README's table has a row with the last six layers."""
SCHEMES = {
    "mbv2-w0.35-99kb": "mbv2-w0.35",
    "mcunet-5fps-49kb": "mcunet-5fps",
    "mcunet-5fps-99kb": "mcunet-5fps",
    "proxyless-w0.3-98kb": "proxyless-w0.3",
}


def model(name: str) -> Path:
    return SHARED / "models" / f"{name}-10c.onnx"


@needs_qemu
@pytest.mark.qemu
@pytest.mark.parametrize(
    "name", [IN_README, *(pytest.param(name, marks=pytest.mark.slow) for name in NAMES if name != IN_README)]
)
def test_last_six_layers_in_qemu(name: str, tmp_path: Path) -> None:
    arguments = (model(name), "--update", "last:6", "--arena", "2MB", "--target", "cortex-m7", "--verify-steps", "3")
    outcome = run(*arguments, "-o", tmp_path / "out").check_success()
    assert outcome.agreed[:3] == (FILE, HERE, "C in QEMU mps2-an500 vs this machine")
    assert len(re.findall(r"max error \S+ +ok$", outcome.out, re.MULTILINE)) == 2
    assert re.search(r"vs this machine\s+identical bytes +ok$", outcome.out, re.MULTILINE)
    assert "3 steps on random samples" in outcome.out and outcome.out.splitlines()[0].count("PASS") <= 1
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["verify"] | {"losses": 0} == report["verify"] | {
        "mode": "qemu",
        "steps": 3,
        "result": "pass",
        "losses": 0,
    }
    assert len(report["verify"]["losses"]) == 3
    assert len(report["update"]) == 6
    memory = report["memory"]
    assert 0 < memory["lower_bound_bytes"] <= memory["arena_bytes"] <= 2 << 20
    assert memory["stack_measured_bytes"] <= memory["stack_bytes"] <= 2048
    assert report["flash"]["const_bytes"] > 500_000, "frozen weights stay in flash"
    if name == IN_README:
        check_row("MCUNet float32", figures.LARGE["MCUNet float32"][1], report)


@pytest.mark.parametrize(
    "scheme", [pytest.param(name, marks=pytest.mark.slow) if SCHEMES[name] == IN_README else name for name in SCHEMES]
)
def test_published_schemes_train(scheme: str, tmp_path: Path) -> None:
    file = SHARED / "schemes" / f"{scheme}.toml"
    run(
        *(model(SCHEMES[scheme]), "--update", file, "--target", "cortex-m7", "-o", tmp_path / "out"),
        *("--verify", "host", "--verify-steps", "1"),
    ).check_success()
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["verify"]["result"] == "pass"
    entries = file.read_text().count("[[update]]")
    assert len(report["update"]) == entries
    assert any(isinstance(layer["channels"], int) for layer in report["update"])
    assert report["memory"]["persistent_bytes"] < 600_000


def plan(name: str, update: str, arena: int | None) -> int:
    """Arena bytes of a plan; CompileError if it does not fit."""
    options = CompileOptions(model(name), arena_bytes=arena, update=update, dry_run=True)
    result = compile_model(options)
    assert result.summary is not None
    return result.summary.plan.arena_bytes


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_64kb_names_the_smallest_arena_for_the_head(name: str) -> None:
    outcome = run(model(name), "--arena", "64KB", "--target", "cortex-m7", "--dry-run").check_error("E0401", 3)
    block = outcome.err.splitlines()
    assert len(block) <= 25
    found = re.search(r"--update head --arena (\d+)", outcome.err)
    assert found, outcome.err
    head = int(found[1])
    assert head > 64 << 10
    assert plan(name, "head", head) <= head
    with pytest.raises(CompileError) as caught:
        plan(name, "head", head - 1)
    assert caught.value.code == "E0401"


@pytest.mark.parametrize(
    ("name", "update"), [("mcunet-5fps", "last:8"), *(pytest.param(n, "all", marks=pytest.mark.slow) for n in NAMES)]
)
def test_one_byte_short_of_an_update_suggests_what_fits(name: str, update: str) -> None:
    everything = plan(name, update, None)
    arena = everything - 1
    flags = ("--update", update, "--remat", "off", "--dry-run")
    outcome = run(model(name), "--arena", arena, *flags).check_error("E0401", 3)
    assert f"{everything}" in outcome.err.replace(",", "")
    found = re.search(r"--update (last:\d+) +->", outcome.err)
    assert found, outcome.err
    assert plan(name, found[1], arena) <= arena
