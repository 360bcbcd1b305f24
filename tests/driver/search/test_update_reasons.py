"""Why --update auto takes of each layer what it takes: what is said against more of it is so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from testing.places import ROOT
from tests.e2e.command import run
from tinytrain_compile.driver.search import rounds as update_rounds

DIGITS = ROOT / "examples" / "digits" / "digits.onnx"
COUNTS = {"conv2": {"in": 8, "out": 16}, "conv3": {"in": 16, "out": 16}, "classifier": {"in": 256, "out": 10}}


def report(folder: Path, *arguments: str) -> dict[str, Any]:
    """report.json, and the terminal's text as "told"."""
    told = run(DIGITS, "-o", folder, "--verify", "none", *arguments).check_success().out
    return {**json.loads((folder / "report.json").read_text()), "told": told}


def entry(layer: str, way: str) -> str:
    """A way as an entry of a scheme file."""
    lines = ["[[update]]", f'layer = "{layer}"', "bias = true"]
    if way == "all":
        lines.append('weight = "all"')
    elif "/" in way:
        axis, part = way.split("/")
        lines += [f"weight = {COUNTS[layer][axis] // int(part)}", f'axis = "{axis}"']
    return "\n".join(lines) + "\n\n" if way != "frozen" else ""


@pytest.fixture(scope="module")
def chosen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return report(tmp_path_factory.mktemp("reasons") / "out", "--arena", "18KB", "-v")


def test_the_next_way_of_a_layer_does_not_fit(chosen: dict[str, Any], tmp_path: Path) -> None:
    reasons = {one["layer"]: one for one in chosen["update_choice"]["layers"]}
    assert list(reasons) == [layer["layer"] for layer in chosen["update"]]
    against = [one for one in reasons.values() if one["over_bytes"]]
    assert len(against) == 3
    for one in against:
        text = "".join(entry(name, one["next_way"] if each is one else each["way"]) for name, each in reasons.items())
        (tmp_path / "more.toml").write_text(text)
        run(DIGITS, "--update", tmp_path / "more.toml", "--arena", "18KB", "--dry-run").check_error("E0401", 3)
        assert one["next_gain"] > 0 and one["over_us"] == 0
    (tmp_path / "same.toml").write_text("".join(entry(name, each["way"]) for name, each in reasons.items()))
    run(DIGITS, "--update", tmp_path / "same.toml", "--arena", "18KB", "--dry-run").check_success()


def test_gains_of_layers_add_up(chosen: dict[str, Any]) -> None:
    choice = chosen["update_choice"]
    assert sum(one["gain"] for one in choice["layers"]) == pytest.approx(choice["gain"], abs=0.01)
    whole = next(one for one in choice["layers"] if one["way"] == "all")
    assert whole["next_way"] is None and whole["next_gain"] == 0


def test_a_limit_of_time_is_named(tmp_path: Path) -> None:
    fast = report(tmp_path / "out", "--max-step-time", "1500us")["update_choice"]
    assert any(one["over_us"] > 0 for one in fast["layers"]) and not any(one["over_bytes"] for one in fast["layers"])


def test_it_is_told(chosen: dict[str, Any]) -> None:
    told = chosen["told"]
    assert "why        conv1: all, gain 8.9\n" in told
    assert "above --arena" in told


def test_a_suffix_deeper_than_the_layers_that_were_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search begins anew with half of the layers where it finds nothing; last:N is tried with all of them."""
    search = update_rounds.Search.run

    def only_two(self: Any) -> None:
        if sum(len(item.ways) > 1 for item in self.model.layers) <= 1:
            search(self)

    monkeypatch.setattr(update_rounds.Search, "run", only_two)
    told = run(DIGITS, "--arena", "24KB", "--dry-run", "-v").check_success().out
    assert "--update auto: " in told and "why        conv1: " in told
    assert "of 4 layers" in told and "1 of 4 layers" not in told
