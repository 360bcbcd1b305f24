"""What looks like a mistake is said in a note, with a word on what to do; sound data has none."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from onnx import helper, numpy_helper

import tinytrain_compile as tt
from testing.networks.models import mlp, segmenter
from tests.e2e.command import Outcome, run
from tests.frontend.models import write
from tests.quantize import nets

RNG = np.random.default_rng(0)
X = RNG.normal(size=(24, 12)).astype(np.float32)
Y = (np.arange(24) % 4).astype(np.int64)
PIXELS = RNG.integers(0, 256, (24, 12)).astype(np.uint8)


def compiled(
    folder: Path, *flags: object, tail: str = "", classes: int = 4, x: np.ndarray = X, y: np.ndarray = Y
) -> Outcome:
    """A dense network with this data; nothing is built."""
    np.savez(folder / "data.npz", x=x, y=y)
    model = write(mlp(tail=tail, classes=classes), folder)
    common = ("--data", folder / "data.npz", "--verify", "none", "--update", "last:1", "-o", folder / "out")
    return run(model, *common, *map(str, flags))


def notes(folder: Path, *flags: object, **given: object) -> list[str]:
    """Notes of the report; each is on the terminal too."""
    outcome = compiled(folder, *flags, **given).check_success()  # type: ignore[arg-type]
    found = json.loads((folder / "out" / "report.json").read_text())["notes"]
    shown = " ".join(outcome.out.split())
    assert all(note in shown for note in found)
    usual = ("the default", "absorbed", "bce is of scores")
    return [note for note in found if not any(words in note for words in usual)]


def scaled(y: np.ndarray) -> np.ndarray:
    return y.astype(np.float32) / 4


@pytest.mark.parametrize(
    ("x", "y", "tail"),
    [
        (X, Y, ""),
        (RNG.uniform(0, 1, X.shape), Y.astype(np.int32), "Softmax"),
        (PIXELS / 255, Y, ""),
        (RNG.integers(0, 10, X.shape), Y, ""),
        (X, np.eye(4)[Y], "Sigmoid"),
        (X[:3], np.full(3, 2), ""),
        (X, np.maximum(Y, 1), ""),
    ],
)
def test_sound_data_has_no_notes(x: np.ndarray, y: np.ndarray, tail: str, tmp_path: Path) -> None:
    assert notes(tmp_path, tail=tail, x=x, y=y) == []


@pytest.mark.parametrize(
    ("y", "said"),
    [
        (np.where(Y > 1, 1.0, -1.0), "y goes from -1 to 1, bce takes labels from 0 to 1; for labels -1 and 1: y = (y"),
        (Y % 3 - 1, "leave samples out that have no label"),
        (Y % 2 + 1, "y goes from 1 to 2, bce takes labels from 0 to 1; for labels 1 and 2: y = y - 1"),
        ((Y > 1) * 255, "y = y / 255"),
        (Y * 0.7, "y goes from 0 to 2.1, bce takes labels from 0 to 1; for other values: --loss mse"),
    ],
)
def test_labels_that_bce_does_not_take(y: np.ndarray, said: str, tmp_path: Path) -> None:
    assert said in compiled(tmp_path, tail="Sigmoid", classes=1, y=y.reshape(-1, 1)).check_error("E0305", 2).err


def test_samples_without_a_label(tmp_path: Path) -> None:
    failed = compiled(tmp_path, y=np.where(Y == 3, -1, Y)).check_error("E0305", 2)
    assert "y holds -1 (6 of 24 labels); class indices are 0..3: leave out samples without a label" in failed.err


def test_inputs_that_are_all_the_same_calibrate_nothing(tmp_path: Path) -> None:
    np.savez(tmp_path / "calib.npz", x=np.zeros_like(X))
    failed = compiled(tmp_path, "--quant", "int8", "--calib", tmp_path / "calib.npz").check_error("E0306", 2)
    assert "calib.npz: x is 0 everywhere, so that it shows no ranges for int8; give typical inputs" in failed.err


def test_a_folder_of_images_is_no_npz(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    failed = run(write(mlp(), tmp_path), "--data", tmp_path / "images").check_error("E0105", 2)
    assert "it is a folder); load its files into arrays and write them: np.savez('images.npz', x=" in failed.err
    failed = run("finetune", tmp_path / "net.onnx", "--data", tmp_path / "images").check_error("E0105", 2)
    assert "np.savez('images.npz', x=..., y=...)" in failed.err


def test_files_of_two_scales_do_not_blame_each_other(tmp_path: Path) -> None:
    np.savez(tmp_path / "calib.npz", x=X * 255)
    found = notes(tmp_path, "--quant", "int8", "--calib", tmp_path / "calib.npz")
    assert any("x of data.npz: it has less than a twentieth" in note and "scale both files" in note for note in found)


def test_pixels_for_a_network_of_small_numbers(tmp_path: Path) -> None:
    (note,) = notes(tmp_path, x=PIXELS)
    assert "x of data.npz looks like pixels from 0 to 255" in note and "divide them as in training" in note


def test_pixels_for_a_network_that_was_made_for_them(tmp_path: Path) -> None:
    model = mlp()
    first = next(item for item in model.graph.initializer if list(item.dims) == [10, 12])
    first.raw_data = (np.frombuffer(first.raw_data, np.float32) / 255).tobytes()
    np.savez(tmp_path / "data.npz", x=PIXELS, y=Y)
    flags = ("--data", tmp_path / "data.npz", "--verify", "none", "-o", tmp_path / "out")
    assert "looks like" not in run(write(model, tmp_path), *flags).check_success().out


@pytest.mark.parametrize("quant", ["auto", "fp32"])
def test_inputs_outside_the_format_of_the_model(quant: str, tmp_path: Path) -> None:
    model = write(nets.quantised(), tmp_path)
    for scale, wrong in ((1.0, False), (255.0, True)):
        x = np.rint(RNG.uniform(0, 1, (4, 3, 8, 8)) * scale)
        np.savez(tmp_path / "data.npz", x=x, y=np.arange(4))
        flags = ("--data", tmp_path / "data.npz", "--verify", "none", "--quant", quant, "-o", tmp_path / "out")
        out = " ".join(run(model, *flags).check_success().out.split())
        assert ("is outside the range of the model's input, -1" in out) == wrong
        assert ("divide pixels as in training" in out) == wrong


def test_calibration_data_is_looked_at_too(tmp_path: Path) -> None:
    np.savez(tmp_path / "calib.npz", x=PIXELS)
    found = notes(tmp_path, "--quant", "int8", "--calib", tmp_path / "calib.npz")
    found = [note for note in found if note.startswith("x of ")]
    assert found[0].startswith("x of data.npz: it has less than a twentieth of the range that --calib shows, 0 to 255")
    assert found[1].startswith("x of calib.npz looks like pixels")


def test_inputs_that_say_nothing(tmp_path: Path) -> None:
    (note,) = notes(tmp_path, x=np.repeat(X[:1], 24, axis=0))
    assert note.startswith("all 24 samples x of data.npz are the same")
    (note,) = notes(tmp_path, x=np.zeros_like(X))
    assert note.startswith("x of data.npz is 0 everywhere")


LONG = np.tile(X, (10, 1))
MIXED = RNG.permutation(np.arange(240) % 4)


def counts(x: np.ndarray) -> np.ndarray:
    """Numbers of a sensor as a converter of 12 bits gives them."""
    return np.rint(x * 4096).astype(np.int16)


@pytest.mark.parametrize(
    ("x", "y", "words"),
    [
        (counts(X), Y, "x of data.npz is out of scale: it goes from -"),
        (LONG, np.sort(MIXED), "samples of data.npz are in order of class (3 changes among 240 labels)"),
        (LONG, np.repeat(np.arange(24) % 4, 10), "samples of data.npz are in order of class (23 changes"),
        (LONG, np.where(np.arange(240) % 20, 2, MIXED), "of the samples of data.npz have class 2: whoever always says"),
        (LONG, np.where((MIXED == 1) & (np.arange(240) > 20), 3, MIXED), "class 1 of data.npz has "),
        (PIXELS, Y, "x of data.npz looks like pixels from 0 to 255"),
        (X, np.full(24, 3), "all 24 samples of data.npz have class 3"),
        (np.zeros_like(X), Y, "x of data.npz is 0 everywhere"),
        (LONG, np.maximum(MIXED, 1), "no sample of data.npz has class 0"),
    ],
)
def test_a_dry_run_has_the_notes_too(x: np.ndarray, y: np.ndarray, words: str, tmp_path: Path) -> None:
    out = " ".join(compiled(tmp_path, "--dry-run", x=x, y=y).check_success().out.split())
    assert out.count(words) == 1


def test_networks_that_scale_their_inputs_take_raw_counts(tmp_path: Path) -> None:
    """A division in front of the first layer is part of the network."""
    model = mlp()
    model.graph.initializer.append(numpy_helper.from_array(np.float32(4096), "unit"))
    for node in model.graph.node:
        if "x" in node.input:
            node.input[list(node.input).index("x")] = "scaled"
    model.graph.node.insert(0, helper.make_node("Div", ["x", "unit"], ["scaled"], "scale"))
    np.savez(tmp_path / "data.npz", x=counts(X), y=Y)
    flags = ("--data", tmp_path / "data.npz", "--dry-run", "-o", tmp_path / "out")
    assert "out of scale" not in run(write(model, tmp_path), *flags).check_success().out


def test_all_commands_have_the_same_notes(tmp_path: Path) -> None:
    """Bytes, in order of class, hardly any of class 1: compile, finetune and contribution say the same."""
    y = np.sort(np.concatenate([np.zeros(30), np.ones(1), np.full(40, 2), np.full(40, 3)])).astype(np.int64)
    np.savez(tmp_path / "own.npz", x=RNG.integers(0, 256, (111, 12)), y=y, x_test=PIXELS, y_test=Y)
    model, data = write(mlp(), tmp_path), ("--data", tmp_path / "own.npz")
    short = ("--epochs", 1, "--seeds", 1, "--clips", 0, "--jobs", 1)
    said = [
        run(model, *data, "--dry-run"),
        run("finetune", model, *data, *map(str, short), "-o", tmp_path / "f.toml"),
        run("contribution", model, *data, "--updates", "2", "--orders", "1", "--jobs", "1", "-o", tmp_path / "g.csv"),
    ]
    for outcome in said:
        out = " ".join((outcome.out + outcome.err).split())
        assert "x of own.npz looks like pixels from 0 to 255" in out
        assert "samples of own.npz are in order of class (3 changes among 111 labels)" in out
        assert "class 1 of own.npz has 1 of 111 samples" in out


def test_labels_that_say_nothing(tmp_path: Path) -> None:
    (note,) = notes(tmp_path, y=np.full(24, 3))
    assert note == "all 24 samples of data.npz have class 3: nothing can be told apart"


@pytest.mark.parametrize(
    ("y", "flags", "classes", "tail"),
    [
        (Y[:, None], (), 4, ""),
        (Y % 2, (), 1, "Sigmoid"),
        (scaled(Y), ("--loss", "mse"), 1, ""),
        (np.eye(4)[Y][:, :, None], ("--loss", "bce"), 4, ""),
    ],
)
def test_labels_with_axes_too_many_or_too_few(
    y: np.ndarray, flags: tuple[str, ...], classes: int, tail: str, tmp_path: Path
) -> None:
    """They are taken as meant, which is said; training is the same as with the axes in place."""
    (note,) = notes(tmp_path, *flags, y=y, classes=classes, tail=tail)
    assert f"y of data.npz has shape {y.shape}, and is taken as" in note
    vectors = (tmp_path / "out" / "verify" / "vectors.bin").read_bytes()
    right = y.reshape(24) if classes == 4 and not flags else y.reshape(24, classes)
    assert notes(tmp_path, *flags, y=right, classes=classes, tail=tail) == []
    assert (tmp_path / "out" / "verify" / "vectors.bin").read_bytes() == vectors


def test_labels_of_pixels_with_an_axis_too_many(tmp_path: Path) -> None:
    y = RNG.integers(0, 3, (4, 1, 8, 8))
    np.savez(tmp_path / "data.npz", x=RNG.normal(size=(4, 2, 8, 8)), y=y)
    flags = ("--loss", "cross-entropy", "--data", tmp_path / "data.npz", "--verify", "none", "-o", tmp_path / "out")
    out = run(write(segmenter(), tmp_path), *flags).check_success().out
    assert "y of data.npz has shape (4, 1, 8, 8), and is taken as (4, 8, 8)" in " ".join(out.split())


@pytest.mark.parametrize(
    ("y", "words"),
    [
        (Y + 1, "class indices are 0..3, not from 1: subtract 1"),
        (np.where(Y == 2, 7, Y), "y holds 7 (6 of 24 labels); class indices are 0..3"),
        (np.eye(4)[Y], "y is one-hot, of shape (samples, 4); give class indices of shape (samples,): y.argmax(axis=1)"),
        (np.eye(5)[Y], "y is one-hot of 5 classes, the model has 4; give class indices, y.argmax(axis=1), and a head"),
        (Y.astype(np.float32), "class indices are integers 0..3: y.astype('int32')"),
        (np.stack([Y, Y], 1), "y has shape (samples, 2); this loss takes (samples,): class indices, integers from 0"),
        (Y[:20], "y has 20 labels for 24 samples; give one label for each sample"),
        (Y.astype(str), "list names in the order of the model's classes, then y = [names.index(word) for word in y]"),
        (Y[None], "y has shape (1, 24); leave out its first axis: y = y[0], of shape (24,)"),
        (
            np.where(Y == 3, np.nan, Y),
            "y has no label (NaN) for 6 of 24 samples; known = np.isfinite(y); x, y = x[known]",
        ),
    ],
)
def test_labels_that_cannot_be_meant(y: np.ndarray, words: str, tmp_path: Path) -> None:
    assert words in compiled(tmp_path, y=y).check_error("E0305", 2).err


def test_classes_from_one_that_are_in_range(tmp_path: Path) -> None:
    y = np.arange(60) % 3 + 1
    (note,) = notes(tmp_path, x=RNG.normal(size=(60, 12)), y=y)
    assert note.startswith("no sample of data.npz has class 0")


def test_a_learning_rate_of_nothing(tmp_path: Path) -> None:
    (note,) = notes(tmp_path, "--lr", "0")
    assert note.startswith("--lr 0: nothing is learned")
    assert "--lr 0: nothing" in compiled(tmp_path, "--lr", "0", "--dry-run").check_success().out


def test_many_notes_are_all_shown(tmp_path: Path) -> None:
    """What the user gave comes first, and is never left out for what the compiler has to say."""
    found = notes(tmp_path, "--lr", "0", "--loss", "bce", x=PIXELS, y=np.full((24, 4, 1), 1.0), tail="Softmax")
    starts = ("--lr 0", "x of data.npz", "y of data.npz", "all 24", "loss: bce of the output")
    assert [note.startswith(start) for note, start in zip(found, starts, strict=True)] == [True] * 5


# ---- a rate that is too large ---------------------------------------------------------------------------------------


def steps(folder: Path, *flags: str, y: np.ndarray = Y) -> list[str]:
    """Notes on the loss of a check that runs on this machine, four steps on the data."""
    np.savez(folder / "data.npz", x=X, y=y)
    common = ("--data", folder / "data.npz", "--verify", "host", "--verify-steps", "4", "-o", folder / "out")
    outcome = run(write(mlp(), folder), *common, *flags).check_success()
    found = json.loads((folder / "out" / "report.json").read_text())["notes"]
    assert "PASS" in outcome.out, "the C is right all the same"
    return [note for note in found if "too large" in note]


@pytest.mark.parametrize("flags", [("--lr", "1e6"), ("--lr", "1e5", "--loss", "mse")])
def test_a_loss_that_explodes_on_own_data_is_a_note(flags: tuple[str, ...], tmp_path: Path) -> None:
    """--lr 1e6: 0.005 -> 2e+06, PASS, and not a word."""
    (note,) = steps(tmp_path, *flags, y=np.eye(4)[Y] if "mse" in flags else Y)
    measured = r"(mse|cross-entropy) of sample \d in data.npz is \S+ after \w+ updates? at --lr \S+, and \S+ with"
    assert re.match(measured, note) and f"try --lr {float(flags[1]) / 10:g}" in note


def test_the_loss_that_explodes_is_that_of_the_samples_it_names(tmp_path: Path) -> None:
    """Two samples an update: of which, after how many updates, and what they have by the weights of the file."""
    (note,) = steps(tmp_path, "--lr", "1e6", "--batch", "2")
    found = re.search(r"2 samples from number (\d) on in data.npz is (\S+) after (\w+) updates? .* and (\S+) ", note)
    assert found is not None
    first, updates = int(found[1]), 1 if found[3] == "an" else int(found[3])
    assert first == 2 * updates + 1
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert f"{report['verify']['losses'][updates]:.3g}" == found[2]
    with tt.compile(write(mlp(), tmp_path), batch=2, verify="none").twin() as twin:
        before = twin.evaluate(X[first - 1 : first + 1], Y[first - 1 : first + 1])["loss"]
    assert float(found[4]) == pytest.approx(before, rel=0.01)


@pytest.mark.parametrize("rate", ["0.01", "0.3"])
def test_a_loss_that_only_goes_up_is_none(rate: str, tmp_path: Path) -> None:
    """One sample is harder than another, and a label that is wrong costs much of a loss that was near 0."""
    assert steps(tmp_path, "--lr", rate) == []


def test_random_samples_have_no_word_on_learning(tmp_path: Path) -> None:
    model = write(mlp(), tmp_path)
    said = run(model, "--lr", "1e6", "--verify", "host", "-o", tmp_path / "out").check_success().out
    assert "3 steps on random samples" in said and "too large" not in said


def test_more_than_there_is(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x=X, y=Y)
    given = ("--data", tmp_path / "data.npz", "--verify", "none", "--dry-run")
    out = run(write(mlp(), tmp_path), *given, "--batch", "1000", "--update", "last:9").check_success().out
    text = " ".join(out.split())
    assert f"--batch 1000: data.npz has {len(Y)} samples, so an update repeats some" in text
    assert "--update last:9: the model has 3 layers with parameters, so it trains all" in text
    quiet = run(write(mlp(), tmp_path), *given, "--update", "last:3").check_success().out
    assert "--batch" not in quiet and "last:3: the model" not in quiet
