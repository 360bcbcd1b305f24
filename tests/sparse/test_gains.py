"""--gains: a table of the user's decides what --update auto trains, or is refused by its line."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from testing.networks import models
from tests.e2e.broken import write
from tests.e2e.command import Outcome, run

HEADER = "layer,part,axis,channel,gain"
ARENA = "3300"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a network of convolutions, pointwise and depthwise, and a dense layer."""
    folder = tmp_path_factory.mktemp("gains")
    write(models.ds_cnn(channels=6, blocks=1, size=(11, 5)), folder)
    return folder


def asked(place: Path, *rows: str, arena: str = ARENA, header: str = HEADER, **flags: str) -> Outcome:
    (place / "gains.csv").write_text("\n".join((header, *rows)) + "\n")
    more = [part for name, value in flags.items() for part in (f"--{name}", value)]
    out = place / "out"
    flat = ("--arena", arena, "--gains", place / "gains.csv", "--verify", "none", "--force", "-o", out, *more)
    return run(place / "net.onnx", *flat)


def report(place: Path) -> Any:
    return json.loads((place / "out" / "report.json").read_text())


# ---- what a table decides -------------------------------------------------------------------------------------------


def test_the_channels_that_gain_most_are_trained(place: Path) -> None:
    """Three of six, which do not lie together: the other three are not worth their bytes."""
    asked(place, *(f"pw0/Conv,weight,in,{channel},{gain}" for channel, gain in GOOD.items())).check_success()
    scheme = tomllib.loads((place / "out" / "update.toml").read_text())["update"]
    assert [layer["layer"] for layer in scheme] == ["pw0/Conv"]
    assert scheme[0]["axis"] == "in" and scheme[0]["weight"] == list(GOOD)
    choice = report(place)["update_choice"]
    assert choice["gains"] == "gains.csv" and choice["gain"] == choice["best_gain"] == sum(GOOD.values())


GOOD = {1: 2.0, 4: 3.0, 5: 1.0}


def test_a_layer_that_gains_nothing_is_frozen(place: Path) -> None:
    """Only the first layer gains: the last ones, which the prior would train, give it their memory."""
    asked(place, "stem/Conv,bias,,*,3").check_success()
    assert [(layer["layer"], layer["parameters"]) for layer in report(place)["update"]] == [("stem/Conv", 6)]


def test_the_table_does_not_matter_where_everything_fits(place: Path) -> None:
    asked(place, "fc/Gemm,bias,,*,1", arena="64KB").check_success()
    totals = report(place)["update_totals"]
    assert totals["parameters"] + totals["untrained"] == totals["total_parameters"]


# ---- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "what"),
    [
        (["fc/Gemm,bias,,*"], "line 2: has 4 cells, not 5"),
        (["fc/Gemm,bias,,*,nan"], "line 2: 'nan' is not a gain from 0 to 1e+09"),
        (["fc/Gemm,bias,,*,-1"], "line 2: '-1' is not a gain from 0 to 1e+09"),
        (["fc/Gemm,bias,,*,one"], "line 2: 'one' is not a gain from 0 to 1e+09"),
        (["fc/Gemm,momentum,,*,1"], "line 2: 'momentum' is not bias, weight or norm"),
        (["fc/Gemm,norm,,*,1"], "line 2: fc/Gemm has no norm"),
        (["fc/Gemm,weight,side,0,1"], "line 2: fc/Gemm has no channels of its weight on the axis 'side'"),
        (["fc/Gemm,weight,out,12,1"], "line 2: '12' is not *, or a channel from 0 to 11"),
        (["fc/Gemm,weight,out,-1,1"], "line 2: '-1' is not *, or a channel from 0 to 11"),
        (["fc/Gemm,bias,,*,1", "", "fc/Gemm,bias,,*,1"], "line 4: says again what an earlier line has said"),
        (["pw0/Conv,weight,in,3,1"] * 2, "line 3: says again what an earlier line has said"),
        (["pw0/Conv,weight,in,3,1", "pw0/Conv,weight,in,*,1"], "line 3: says again what an earlier line has said"),
        (["pw0/Conv,weight,in,*,1", "pw0/Conv,weight,in,3,1"], "line 3: says again what an earlier line has said"),
        ([], "has no rows"),
    ],
)
def test_a_bad_row_is_named(place: Path, rows: list[str], what: str) -> None:
    assert what in asked(place, *rows).check_error("E0308", 2).err


def test_a_table_that_is_not_there(place: Path) -> None:
    found = run(place / "net.onnx", "--arena", "9KB", "--gains", place / "no.csv").check_error("E0308", 2)
    assert "no.csv: there is no such file; give the table of `contribution`" in found.err


def test_a_bad_header_is_named(place: Path) -> None:
    refused = asked(place, "fc/Gemm,1", header="layer,gain").check_error("E0308", 2)
    assert "line 1: is not the header layer,part,axis,channel,gain" in refused.err


def test_an_unknown_layer_is_named(place: Path) -> None:
    refused = asked(place, "fc,bias,,*,1").check_error("E0301", 2)
    assert "gains.csv, line 2: no layer with parameters is called 'fc'" in refused.err


def test_gains_without_auto_are_refused(place: Path) -> None:
    assert "--gains" in asked(place, "fc/Gemm,bias,,*,1", update="all").check_error("E0113", 2).err


def test_a_file_that_is_not_there(place: Path) -> None:
    assert (
        "none.csv"
        in run(place / "net.onnx", "--gains", place / "none.csv", "--arena", "1KB").check_error("E0308", 2).err
    )
