"""`finetune` on input that it cannot take, or has to divide: one line that says what, before anything runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.e2e.command import run
from tests.learn.finetuning import DIGITS, found_by, some, write_own
from tinytrain_compile.data.own_data import read_own_data, split
from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.types import Array
from tinytrain_compile.options.effort import FinetuneEffort


@pytest.fixture
def own(tmp_path: Path) -> Path:
    return write_own(tmp_path)


def test_parts_have_all_classes() -> None:
    labels = np.repeat([0, 1, 2], (30, 10, 20))
    rest, kept = split(labels, 60, 0.2, 1)
    assert [int((labels[kept] == one).sum()) for one in range(3)] == [6, 2, 4]
    assert sorted([*rest, *kept]) == list(range(60))


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"y": 0}, "has no array x; it holds y"),
        ({"x": 1}, "has no y"),
        ({"x": 1, "y": 1, "x_test": 1}, "has x_test and no y_test"),
        ({"x": 1, "y": 1, "y_old": 1}, "has y_old and no x_old"),
        ({"x": 5, "y": 5}, "5 samples are too few"),
    ],
)
def test_what_is_missing_is_said(arrays: dict[str, int], said: str, tmp_path: Path) -> None:
    x, y = some(40)
    sizes = {0: 40, 1: 40, 5: 5}
    path = tmp_path / "own.npz"
    np.savez(path, **{name: (x if name[0] == "x" else y)[: sizes[size]] for name, size in arrays.items()})
    with pytest.raises(CompileError, match=said) as problem:
        found_by(path)
    assert problem.value.exit_code == 2


def test_values_are_split_by_chance(tmp_path: Path) -> None:
    """Numbers that are all different are no classes, and single labels are no labels."""
    rng, path = np.random.default_rng(6), tmp_path / "own.npz"
    np.savez(path, x=np.zeros((50, 3), np.float32), y=rng.normal(size=50))
    assert len(read_own_data(path, 0)[0]["x_test"]) == 10
    np.savez(path, x=np.zeros((50, 3), np.float32), y=np.int64(1))
    with pytest.raises(CompileError, match="y has 0 labels"):
        read_own_data(path, 0)
    _, kept = split(np.repeat([0, 1], (47, 3)), 50, 0.2, 0)
    assert set(np.repeat([0, 1], (47, 3))[kept]) == {0, 1}


def test_the_users_file_is_named(own: Path) -> None:
    x, y = some(60)
    x[3] = np.nan
    np.savez(own.with_name("mine.npz"), x=x, y=y)
    with pytest.raises(CompileError, match=r"mine\.npz.*NaN"):
        found_by(own.with_name("mine.npz"))


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("x", 1e300, r"mine\.npz: x holds 1e\+300 in sample 53 of x, more than float32 can hold"),
        ("x", np.nan, r"mine\.npz: x holds NaN or infinity: nan in sample 53 of x"),
        ("x_test", np.inf, r"mine\.npz: x_test holds NaN or infinity: inf in sample 53 of x_test"),
    ],
)
def test_a_number_that_nothing_can_hold_is_named_by_its_place(name: str, value: float, said: str, own: Path) -> None:
    """By the samples of the file, which is split before it is trained on."""
    x, y = some(60)
    arrays = {"x": x.astype(float), "y": y, "x_test": x.astype(float), "y_test": y}
    arrays[name][53, 0, 2, 1] = value
    path = own.with_name("mine.npz")
    np.savez(path, **(arrays if name == "x_test" else {key: arrays[key] for key in "xy"}))
    with pytest.raises(CompileError, match=said):
        found_by(path)
    if name == "x":
        outcome = run(DIGITS / "digits.onnx", "--data", path, "--dry-run")
        assert outcome.exit_code == 2 and "E0105" in outcome.err and "in sample 53 of x" in outcome.err


@pytest.mark.parametrize(
    ("name", "of", "said"),
    [
        ("y", lambda y: np.eye(10)[y], r"one-hot, of shape \(samples, 10\); give .* \(samples,\)"),
        ("y", lambda y: np.stack([y] * 5, 1), r"y has shape \(samples, 5\); this loss takes \(samples,\)"),
        (
            "x",
            lambda x: x.reshape(60, -1),
            r"\(samples, 64\), the model takes \(samples, 1, 8, 8\); .* x.reshape\(-1, 1, 8, 8\)",
        ),
    ],
)
def test_shapes_have_no_number_that_the_file_has_not(
    name: str, of: Callable[[Array], Array], said: str, tmp_path: Path
) -> None:
    """A file of 60 samples is split before it is looked at: no message shall speak of 48."""
    arrays = dict(zip("xy", some(60), strict=True))
    arrays[name] = of(arrays[name])
    np.savez(tmp_path / "own.npz", **arrays)
    with pytest.raises(CompileError, match=said) as problem:
        found_by(tmp_path / "own.npz")
    assert "48" not in str(problem.value)


def test_labels_of_one_class_are_nothing_to_learn(own: Path) -> None:
    """Unless samples to judge by, or old ones, have other classes: a device may learn one that is new."""
    x, y = some(60)
    path, three = own.with_name("one.npz"), np.full_like(y, 3)
    np.savez(path, x=x, y=three)
    with pytest.raises(CompileError, match=r"E0305.*one\.npz: all labels are 3; give samples of every class"):
        found_by(path)
    np.savez(path, x=x, y=three, x_old=x, y_old=y)
    found_by(path, FinetuneEffort(1, 1, clips=(0.0,), jobs=1))


@pytest.mark.parametrize("name", ["x_test", "x_old"])
def test_pixels_beside_inputs_that_are_divided(name: str, own: Path) -> None:
    x, y = some(60)
    label, path = name.replace("x", "y"), own.with_name("mine.npz")
    arrays: dict[str, Any] = {"x": np.rint(x * 255).astype(np.uint8), "y": y, name: x, label: y}
    np.savez(path, **arrays)
    with pytest.raises(CompileError, match=f"x holds pixels from 0 to 255, {name} numbers up to 1; scale both"):
        read_own_data(path, 0)
    np.savez(path, **(arrays | {"x": x, name: np.rint(x)}))  # 0 and 1 may be either
    read_own_data(path, 0)


def test_a_batch_that_samples_do_not_fill_is_refused(own: Path) -> None:
    with pytest.raises(CompileError, match="a batch of 64 is more than the 59 samples"):
        found_by(own, FinetuneEffort(2, 1, batches=(64,), clips=(0.0,), jobs=1))


def test_a_result_that_cannot_be_written_is_known_before_anything_runs(own: Path) -> None:
    (own.parent / "finetune.html").mkdir()
    with pytest.raises(CompileError, match="is a folder"):
        found_by(own)


@pytest.mark.parametrize(
    "flags",
    [("--batches", "1,x"), ("--clips", "0,-1"), ("--jobs", "0"), ("-o", "result.txt"), ("--config", "none.toml")],
)
def test_faults_of_the_command_are_one_line(flags: tuple[str, str], own: Path) -> None:
    found = run("finetune", DIGITS / "digits.onnx", "--data", own, *flags)
    assert found.exit_code == 2 and found.err.count("\n") == 1 and flags[0] in found.err
