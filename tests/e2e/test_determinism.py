"""The same command gives the same bytes: in any folder, with any hash seed, in any locale, at any time."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from testing.networks import models
from tests.e2e.broken import write
from tests.e2e.command import run, run_process, tree

OPTIONS = ("--verify", "none", "--arena", "64KB", "--optimizer", "adam", "--batch", "2")
ENVIRONMENTS = [
    {"PYTHONHASHSEED": "0", "LC_ALL": "C", "TZ": "UTC"},
    {"PYTHONHASHSEED": "4711", "LC_ALL": "C.UTF-8", "TZ": "Asia/Tokyo", "LANG": "tr_TR.UTF-8", "COLUMNS": "40"},
]


def small_net() -> bytes:
    return models.ds_cnn(channels=6, blocks=1, size=(12, 6)).SerializeToString()


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Output folders of one command, run three times under different circumstances."""
    folders: list[Path] = []
    for index, environment in enumerate([*ENVIRONMENTS, ENVIRONMENTS[0]]):
        folder = tmp_path_factory.mktemp(f"place{index}") / ("deeper" * index or ".")
        folder.mkdir(exist_ok=True)
        (folder / "net.onnx").write_bytes(small_net())
        out = folder / f"out{index}"
        model = "net.onnx" if index == 0 else folder / "net.onnx"
        outcome = run_process(model, "-o", out, *OPTIONS, folder=folder, environment=environment)
        assert outcome.exit_code == 0, outcome.err
        folders.append(out)
    return folders


def test_same_bytes_everywhere(outputs: list[Path]) -> None:
    first = tree(outputs[0])
    assert len(first) >= 15
    assert [tree(out) for out in outputs[1:]] == [first, first]


def test_same_bytes_in_this_process(outputs: list[Path], tmp_path: Path) -> None:
    """What the compiler did before in the same process leaves no trace."""
    (tmp_path / "net.onnx").write_bytes(small_net())
    run(write(models.mlp(), tmp_path, "other.onnx"), "-o", tmp_path / "other", "--verify", "none").check_success()
    run(tmp_path / "net.onnx", "-o", tmp_path / "out", *OPTIONS).check_success()
    assert tree(tmp_path / "out") == tree(outputs[0])


def test_no_path_date_or_time_in_any_file(outputs: list[Path]) -> None:
    for path in outputs[0].rglob("*"):
        if path.is_dir() or path.name == "vectors.bin":
            continue
        text = path.read_text(encoding="utf-8")
        where = f"{path.name}: "
        assert "/tmp" not in text, where
        assert "/root" not in text, where
        assert str(outputs[0]) not in text, where
        assert "place0" not in text, where
        assert not re.search(r"\b20[2-9]\d-\d\d-\d\d\b|\b\d\d:\d\d:\d\d\b", text), where
        assert not re.search(r"\b(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]* \d", text), where
        words = re.sub(r"_MODEL_HASH UINT64_C\(0x[0-9a-f]{16}\)", "", text)
        assert not re.search(r"0x[0-9a-f]{9,}", words), f"{where}an address of an object"


def test_verification_leaves_no_trace_of_the_machine(tmp_path: Path) -> None:
    """Sizes and stack come from the tools; the rest of the output is the same with and without running."""
    path = write(models.mlp(), tmp_path)
    run(path, "-o", tmp_path / "a", "--verify", "host").check_success()
    run(path, "-o", tmp_path / "b", "--verify", "host").check_success()
    run(path, "-o", tmp_path / "c", "--verify", "none").check_success()
    first, second, third = (tree(tmp_path / name) for name in "abc")
    assert first == second
    changed = {name for name in first if first[name] != third[name]}
    assert changed <= {"report.json", "report.html", "manifest.json"}


def test_seed_changes_vectors_and_what_the_report_says_of_it(tmp_path: Path) -> None:
    path = write(models.mlp(), tmp_path)
    run(path, "-o", tmp_path / "a", "--verify", "none").check_success()
    run(path, "-o", tmp_path / "b", "--verify", "none", "--seed", "1").check_success()
    first, second = tree(tmp_path / "a"), tree(tmp_path / "b")
    assert {name for name in first if first[name] != second[name]} == {
        "manifest.json",
        "report.json",
        "verify/vectors.bin",
    }


def test_same_bytes_with_a_lock(outputs: list[Path], tmp_path: Path) -> None:
    """A locked plan does not depend on anything around it either, and is the plan that it was."""
    lock = ("--lock", outputs[0] / "plan.json")
    (tmp_path / "net.onnx").write_bytes(small_net())
    run(tmp_path / "net.onnx", "-o", tmp_path / "one", *OPTIONS, *lock).check_success()
    arguments = ("net.onnx", "-o", tmp_path / "two", *OPTIONS, *lock)
    outcome = run_process(*arguments, folder=tmp_path, environment=ENVIRONMENTS[1])
    assert outcome.exit_code == 0, outcome.err
    one = tree(tmp_path / "one")
    assert tree(tmp_path / "two") == one
    generated = [path for path in one if path.endswith((".c", ".h"))]
    assert len(generated) >= 6
    assert [path for path in generated if one[path] != tree(outputs[0])[path]] == []
