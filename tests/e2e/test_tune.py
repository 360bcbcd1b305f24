"""--tune and --tiles: a search is written down, used again without --tune, and changes no result."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import models
from tests.e2e.broken import write
from tests.e2e.command import run
from tests.e2e.marks import ROOT, needs_qemu

LINE = "cortex-m7 | 12 | Gemm 1:float32 -> 1:float32 | 0123456789ab | rule | 5 -> 5\n"


def report(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "report.json").read_text(encoding="utf-8"))


def sources(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.[ch]")}


@pytest.mark.qemu
@needs_qemu
def test_a_search_saves_what_it_says_and_is_used_again(tmp_path: Path) -> None:
    model = Path(write(models.mlp(inputs=24, hidden=12), tmp_path))
    run(model, "-o", tmp_path / "rule", "--count").check_success()
    outcome = run(model, "-o", tmp_path / "tuned", "--count", "--tune").check_success()
    rule, tuned = report(tmp_path / "rule"), report(tmp_path / "tuned")
    saved = rule["work"]["train_step_instructions"] - tuned["work"]["train_step_instructions"]
    assert rule["work"]["tiles"] == {"source": None, "nodes": {}, "saved_instructions": 0, "ignored": 0}
    assert tuned["work"]["tiles"]["source"] == "net.tiles.txt" == model.with_suffix(".tiles.txt").name
    assert saved == tuned["work"]["tiles"]["saved_instructions"] > 0
    assert (rule["verify"]["losses"], tuned["verify"]["result"]) == (tuned["verify"]["losses"], "pass")
    assert "from net.tiles.txt" in outcome.out

    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for path in (model, model.with_suffix(".tiles.txt")):
        shutil.copy(path, elsewhere / path.name)
    written = (elsewhere / "net.tiles.txt").read_bytes()
    run(elsewhere / model.name, "-o", tmp_path / "again", "--verify", "none").check_success()
    assert sources(tmp_path / "again") == sources(tmp_path / "tuned") != sources(tmp_path / "rule")
    outcome = run(elsewhere / model.name, "-o", tmp_path / "once more", "--tune").check_success()
    assert "kernels searched" not in outcome.out
    assert (elsewhere / "net.tiles.txt").read_bytes() == written

    worse = written.decode().replace("tile=", "tile=9")
    (elsewhere / "net.tiles.txt").write_text(worse, encoding="utf-8")
    outcome = run(elsewhere / model.name, "-o", tmp_path / "ignored", "--verify", "none").check_success()
    assert sources(tmp_path / "ignored") == sources(tmp_path / "rule")
    assert "ignored: tiles that are not known here" in outcome.out


@pytest.mark.qemu
@needs_qemu
def test_a_search_counts_kernels_of_several_samples(tmp_path: Path) -> None:
    model = Path(write(models.mlp(inputs=24, hidden=12), tmp_path))
    run(model, "-o", tmp_path / "out", "--tune", "--batch", "4", "--arena", "64KB").check_success()
    assert report(tmp_path / "out")["work"]["tiles"]["nodes"]
    assert report(tmp_path / "out")["micro_batch"] == 4


@pytest.mark.parametrize("flags", [("--verify", "host"), ("--dry-run",), ("--code", "size")])
def test_a_search_needs_the_emulator_and_something_to_search(flags: tuple[str, ...], tmp_path: Path) -> None:
    model = write(models.mlp(), tmp_path)
    run(model, "-o", tmp_path / "out", "--tune", *flags).check_error("E0101", 2)


@pytest.mark.parametrize(
    ("text", "says"),
    [("nonsense", "line 1: 'nonsense'"), (LINE + "\n" + LINE.replace("|", "!"), "line 3"), (None, "No such file")],
)
def test_a_bad_file_of_tiles(text: str | None, says: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "t.txt").write_text(text, encoding="utf-8")
    outcome = run(write(models.mlp(), tmp_path), "-o", tmp_path / "out", "--tiles", tmp_path / "t.txt")
    assert says in outcome.check_error("E0109", 2).err
    assert not (tmp_path / "out").exists()


@pytest.mark.qemu
@needs_qemu
def test_the_tiles_of_the_example_are_current() -> None:
    """Every kernel of examples/digits with something to search has a line; make it anew with --tune if this fails.

    (Its integer weight gradients have nothing: they are one helper over planned strips.)
    """
    text = (ROOT / "examples" / "digits" / "digits.tiles.txt").read_text(encoding="utf-8")
    kernels = [line.split(" | ")[2].split()[0] for line in text.splitlines() if not line.startswith("#")]
    assert {"Conv", "ConvGradInput", "ConvGradWeight", "Gemm", "QConv", "QConvGradInput"} <= set(kernels)
