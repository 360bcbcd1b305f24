"""What the compiler promises of other options and other arenas holds to the byte: all that it says of several networks.

The long form of single lines in `test_ways_out.py` and single points in `test_pareto.py`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from testing.networks import models
from testing.places import ROOT
from tests.driver.search.test_ways_out import NETS, follow_all
from tests.e2e.broken import write
from tests.e2e.command import run

DIGITS = ROOT / "examples" / "digits"
PROMISES = 25
"""How many there must be, of both kinds together."""


def follow_points(path: Path, folder: Path) -> int:
    """Compile with every --arena that --pareto names; returns how many."""
    run(path, "--pareto", "--verify", "none", "-o", folder / "all").check_success()
    points: list[dict[str, Any]] = json.loads((folder / "all" / "report.json").read_text())["pareto"]
    for number, point in enumerate(points):
        out = folder / str(number)
        run(path, "--arena", str(point["limit_bytes"]), "--verify", "none", "-o", out).check_success()
        report = json.loads((out / "report.json").read_text())
        found = {
            "arena_bytes": report["memory"]["arena_bytes"],
            "parameters": report["update_totals"]["parameters"],
            "label": report["update_totals"]["label"],
            "step_us": report["plan"]["model"]["step_us"],
        }
        assert found == {key: point[key] for key in found}, point
        choice = report["update_choice"]
        assert choice is None or (choice["gain"], choice["best_gain"]) == (point["gain"], point["best_gain"]), point
    return len(points)


@pytest.mark.slow
def test_25_suggestions_and_points_give_what_was_promised(tmp_path: Path) -> None:
    small = write(models.ds_cnn(channels=6, blocks=1, size=(11, 5)), tmp_path)
    followed = follow_points(small, tmp_path / "small") + follow_points(DIGITS / "digits.onnx", tmp_path / "digits")
    for name, (model, flags) in NETS.items():
        (tmp_path / name).mkdir()
        followed += len(follow_all(write(model, tmp_path / name), *flags))
    calib = ("--quant", "int8", "--calib", str(DIGITS / "calib.npz"))
    followed += len(follow_all(DIGITS / "digits.onnx", *calib, "--update", "all", "--arena", "17KB", "--batch", "2"))
    assert followed >= PROMISES
