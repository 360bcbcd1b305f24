"""--tune and --tiles: a search is written down, used again without --tune, and changes no result."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from testing import models
from testing.places import ROOT
from tests.e2e.broken import write
from tests.e2e.command import run
from tests.e2e.marks import needs_qemu
from tinytrain_compile.files.manifest import MANIFEST
from tinytrain_compile.files.output_folder import write_output
from tinytrain_compile.files.tiles import Found, TileKey, tiles_text

LINE = "cortex-m7 | 12 | Gemm 1:float32 -> 1:float32 | 0123456789ab | rule | 5 -> 5\n"


def report(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "report.json").read_text(encoding="utf-8"))


def sources(folder: Path) -> dict[str, bytes]:
    """Of the C files: the header also says what verification has found."""
    return {path.name: path.read_bytes() for path in folder.glob("*.c")}


@pytest.mark.qemu
@needs_qemu
def test_a_search_saves_what_it_says_and_is_used_again(tmp_path: Path) -> None:
    model = Path(write(models.mlp(inputs=24, hidden=12), tmp_path))
    run(model, "-o", tmp_path / "rule", "--count").check_success()
    outcome = run(model, "-o", tmp_path / "tuned", "--count", "--tune").check_success()
    rule, tuned = report(tmp_path / "rule"), report(tmp_path / "tuned")
    saved = rule["work"]["train_step_instructions"] - tuned["work"]["train_step_instructions"]
    assert rule["work"]["tiles"] == {
        "source": None,
        "nodes": {},
        "saved_instructions": 0,
        "saved_cycles_model": 0,
        "ignored": 0,
    }
    assert tuned["work"]["tiles"]["source"] == "--tune"
    assert saved == tuned["work"]["tiles"]["saved_instructions"] > 0
    assert (rule["verify"]["losses"], tuned["verify"]["result"]) == (tuned["verify"]["losses"], "pass")
    assert "kernels searched" in outcome.out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["net.onnx", "rule", "tuned"], "nothing beside the model"

    written = (tmp_path / "tuned" / "tiles.txt").read_bytes()
    outcome = run(model, "-o", tmp_path / "tuned", "--tune").check_success()
    assert "kernels searched" not in outcome.out
    assert "from tiles.txt of the earlier output" in " ".join(outcome.out.split())
    assert (tmp_path / "tuned" / "tiles.txt").read_bytes() == written

    (tmp_path / "kept.txt").write_bytes(written)
    outcome = run(model, "-o", tmp_path / "named", "--tiles", tmp_path / "kept.txt", "--verify", "none").check_success()
    assert sources(tmp_path / "named") == sources(tmp_path / "tuned") != sources(tmp_path / "rule")
    assert "from --tiles kept.txt" in " ".join(outcome.out.split())
    assert not (tmp_path / "named" / "tiles.txt").exists()

    worse = written.decode().replace("tile=", "tile=9")
    (tmp_path / "kept.txt").write_text(worse, encoding="utf-8")
    outcome = run(model, "-o", tmp_path / "named", "--tiles", tmp_path / "kept.txt", "--verify", "none").check_success()
    assert sources(tmp_path / "named") == sources(tmp_path / "rule")
    assert "ignored: this version does not know their tiles" in " ".join(outcome.out.split())


def test_tiles_are_read_where_the_user_knows_of_them(tmp_path: Path) -> None:
    """Named, or in the output that is replaced; not beside the model, nor what somebody has put into the folder."""
    model = Path(write(models.mlp(), tmp_path))
    model.with_suffix(".tiles.txt").write_text("nonsense", encoding="utf-8")
    out = tmp_path / "out"
    flags = (model, "-o", out, "--verify", "none")
    run(*flags).check_success()
    (out / "tiles.txt").write_text(LINE, encoding="utf-8")
    assert "tiles.txt" not in run(*flags).check_success().out
    assert (out / "tiles.txt").read_text() == LINE, "it is the user's"
    (out / "tiles.txt").unlink()

    text = tiles_text({TileKey("cortex-m7", "12", "Gemm", "0123456789ab"): Found("rule", 5, 5)})
    files = {path.relative_to(out).as_posix(): path.read_bytes() for path in out.rglob("*") if path.is_file()}
    write_output(out, {**{path: data for path, data in files.items() if path != MANIFEST}, "tiles.txt": text})
    for more in ((), ("--code", "size"), ("--tiles", tmp_path / "other.txt")):
        (tmp_path / "other.txt").write_text(LINE, encoding="utf-8")
        outcome = run(*flags, *more).check_success()
        wanted = {"": "tiles.txt of the earlier output", "--code": "", "--tiles": "--tiles other.txt"}
        source = report(out)["work"]["tiles"]["source"] or ""
        assert source == wanted[str(more[0]) if more else ""]
        assert f"from {source}" in " ".join(outcome.out.split()) or not source
        assert (out / "tiles.txt").read_text() == text, "what --tune has found is not lost"


@pytest.mark.qemu
@needs_qemu
def test_a_search_by_cycles_is_another_search(tmp_path: Path) -> None:
    """Its lines say so; a search by instructions does not take them for its own, nor the other way round."""
    model = Path(write(models.mlp(inputs=24, hidden=12), tmp_path))
    flags = (model, "-o", tmp_path / "out", "--target", "cortex-m4", "--tune")
    tiles = tmp_path / "out" / "tiles.txt"
    outcome = run(*flags, "--count", "--cycles").check_success()
    lines = [line for line in tiles.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    assert lines and all(line.endswith(" cycles") for line in lines)
    found = report(tmp_path / "out")["work"]["tiles"]
    assert (found["saved_instructions"], found["saved_cycles_model"] > 0) == (0, True)
    assert "cycles (a model) saved" in " ".join(outcome.out.split())
    assert "kernels searched" in run(*flags).check_success().out
    assert "cycles" not in next(line for line in tiles.read_text(encoding="utf-8").splitlines() if line[0] != "#")


@pytest.mark.qemu
@needs_qemu
def test_a_search_is_also_kept_where_the_user_says(tmp_path: Path) -> None:
    model = Path(write(models.mlp(inputs=24, hidden=12), tmp_path))
    out, kept = tmp_path / "out", tmp_path / "kept.txt"
    kept.write_text(LINE, encoding="utf-8")
    flags = (model, "-o", out, "--verify-steps", "2", "--tune")
    run(*flags, "--tiles", kept).check_success()
    assert LINE in kept.read_text()
    assert kept.read_bytes() == (out / "tiles.txt").read_bytes()
    assert "kernels searched" not in run(*flags, "--tiles", out / "tiles.txt").check_success().out
    kept.write_text("not mine", encoding="utf-8")
    run(*flags, "--tiles", kept).check_error("E0109", 2)
    assert kept.read_text() == "not mine"


@pytest.mark.qemu
@needs_qemu
def test_a_search_counts_kernels_of_several_samples(tmp_path: Path) -> None:
    model = Path(write(models.mlp(inputs=24, hidden=12), tmp_path))
    run(model, "-o", tmp_path / "out", "--tune", "--batch", "4", "--micro-batch", "4").check_success()
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
    for more in ((), ("--dry-run",)):
        outcome = run(write(models.mlp(), tmp_path), "-o", tmp_path / "out", "--tiles", tmp_path / "t.txt", *more)
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
