"""--pareto: arenas between the head's and all layers', each with what --update auto trains there."""

from __future__ import annotations

import csv
import itertools
import json
import random
from pathlib import Path
from typing import Any

import pytest

from tests.driver.search.test_update_choice import dense_chain, planner
from tests.e2e.broken import write
from tests.e2e.command import run
from tinytrain_compile.driver.search import choose as update_search
from tinytrain_compile.driver.search.choose import choose
from tinytrain_compile.driver.search.pareto import arenas, point_with
from tinytrain_compile.ir.cost import ParetoPoint
from tinytrain_compile.report.rows.pareto import pareto_csv, pareto_table
from tinytrain_compile.sparse import PRIOR

LOSS = ("--loss", "cross-entropy")
"""The networks have as many classes as inputs, so no loss goes without saying."""


@pytest.mark.parametrize(("least", "most"), [(1000, 4000), (1000, 1000), (1000, 1100), (7, 1 << 30), (2000, 1000)])
def test_arenas_lie_between_the_ends_and_grow_alike(least: int, most: int) -> None:
    """Eight, as docs/update-schemes.md says; fewer if they would be the same after rounding."""
    sizes = arenas(least, most)
    assert sizes == sorted(set(sizes)) and len(sizes) <= 8
    assert sizes[0] == least and sizes[-1] == max(least, most)
    if most > 3 * least:
        ratios = [high / low for low, high in itertools.pairwise(sizes[1:-1])]
        assert len(sizes) == 8 and max(ratios) <= min(ratios) * 1.3


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a network and the output of --pareto, with an HTML report."""
    folder = tmp_path_factory.mktemp("pareto")
    write(dense_chain(random.Random(3), 3), folder)
    flags = (*LOSS, "--pareto", "--verify", "none", "--report", "text,html")
    done = run(folder / "net.onnx", *flags, "-o", folder / "out").check_success()
    (folder / "said.txt").write_text(done.out)
    return folder


def points(place: Path) -> list[dict[str, Any]]:
    return json.loads((place / "out" / "report.json").read_text())["pareto"]


def test_more_memory_gains_more_up_to_all_layers(place: Path) -> None:
    found = points(place)
    assert len(found) >= 5
    for less, more in itertools.pairwise(found):
        assert less["limit_bytes"] < more["limit_bytes"] and less["gain"] < more["gain"]
    assert all(point["arena_bytes"] <= point["limit_bytes"] and point["gain"] <= point["best_gain"] for point in found)
    update = json.loads((place / "out" / "report.json").read_text())["update_totals"]
    assert found[-1]["parameters"] == update["total_parameters"] == update["parameters"]
    assert found[-1]["depth"] == update["total_layers"]


def test_the_table_the_file_and_the_picture_say_the_same(place: Path) -> None:
    found = points(place)
    with (place / "out" / "pareto.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [{key: str(value) for key, value in point.items()} for point in found] == rows
    said, page = (place / "said.txt").read_text(), (place / "out" / "report.html").read_text()
    assert "what --update auto trains in other arenas:" in said
    for point in found:
        assert any(line.split()[:1] == [str(point["limit_bytes"])] for line in said.splitlines())
        assert f"--arena {point['limit_bytes']}: gain {point['gain']:.1f}" in page
    assert page.count("<circle") == len(found)


@pytest.mark.parametrize("which", [0, 2, -2])
def test_following_a_point_gives_what_it_says(place: Path, which: int, tmp_path: Path) -> None:
    point = points(place)[which]
    flags = (*LOSS, "--arena", str(point["limit_bytes"]), "--verify", "none", "-o", tmp_path / "out")
    run(place / "net.onnx", *flags).check_success()
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["memory"]["arena_bytes"] == point["arena_bytes"]
    assert report["update_totals"]["parameters"] == point["parameters"]
    assert report["update_totals"]["label"] == point["label"]
    assert report["plan"]["model"]["step_us"] == point["step_us"]
    assert report["pareto"] == []


@pytest.mark.parametrize("flags", [("--update", "all"), ("--lock", "plan.json")])
def test_there_must_be_something_to_choose(place: Path, flags: tuple[str, str]) -> None:
    assert "--pareto" in run(place / "net.onnx", *LOSS, "--pareto", *flags, "--dry-run").check_error("E0113", 2).err


def test_nothing_is_proven_where_the_search_has_found_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A last:N that a search without a find falls back to has no bound but the gain of all layers; all layers have."""
    path = Path(write(dense_chain(random.Random(3), 3), tmp_path))
    least, every = (planner(path).plain(update).plan.arena_bytes for update in ("last:1", "all"))

    def nothing(*_: object, **__: object) -> None:
        return None

    monkeypatch.setattr(update_search, "best_choice", nothing)
    planners = [planner(path, arena_bytes=size, update="auto") for size in (least, every)]
    some, whole = (point_with(one, choose(one), PRIOR) for one in planners)
    assert some is not None and whole is not None
    assert some.gain < some.best_gain == whole.gain == whole.best_gain
    rows = pareto_table([some, whole])
    assert ["proven" in row for row in rows[-2:]] == [False, True]


def test_one_point_is_a_line_of_the_table() -> None:
    point = ParetoPoint(100, 96, 1, 2.0, 2.0, "auto: all", 1, 4, 1)
    assert len(pareto_csv([point]).splitlines()) == 2
