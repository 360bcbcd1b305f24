"""`contribution`: short runs of one build compute what builds for each update would, and make the table of --gains."""

from __future__ import annotations

import csv
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tinytrain_compile as tt
from testing.networks import models
from testing.places import ROOT
from tests.e2e.broken import write
from tests.e2e.command import run
from tinytrain_compile.cli.python_options import options_from
from tinytrain_compile.data.samples import in_slots, samples_of
from tinytrain_compile.ir.stages import ChannelSlice
from tinytrain_compile.ir.types import Array
from tinytrain_compile.learn import short_runs
from tinytrain_compile.learn.contribution import measure
from tinytrain_compile.learn.runs import PARTIAL
from tinytrain_compile.learn.short_runs import Run, make_desk
from tinytrain_compile.options.compile_options import CompileOptions
from tinytrain_compile.options.effort import ContributionEffort

DIGITS = ROOT / "examples" / "digits"
SHORT = ContributionEffort(updates=12, orders=1, jobs=1)


def silent(_what: str, _share: float) -> None:
    return None


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """Samples, and for calibration."""
    with np.load(DIGITS / "data.npz") as data:
        np.savez(tmp_path / "own.npz", x=data["x"][:90], y=data["y"][:90])
    return tmp_path / "own.npz"


def asked(own: Path, **more: Any) -> CompileOptions:
    return options_from(DIGITS / "digits.onnx", {"data": own, **more})


def scheme(tmp_path: Path, layer: str, weight: str, axis: str) -> Path:
    path = tmp_path / "scheme.toml"
    path.write_text(f'[[update]]\nlayer = "{layer}"\nbias = false\nweight = {weight}\naxis = "{axis}"\n')
    return path


INT8: dict[str, Any] = {"quant": "int8"}


@pytest.mark.parametrize(
    ("layer", "axis", "channels"),
    [("conv2", "in", (0, 1)), ("conv2", "out", (0, 1, 2, 3)), ("classifier", "in", tuple(range(64)))],
)
@pytest.mark.parametrize("optimizer", ["sgd", "momentum"])
def test_a_short_run_computes_what_a_build_for_it_does(
    layer: str, axis: str, channels: tuple[int, ...], optimizer: str, own: Path, tmp_path: Path
) -> None:
    """Outputs of both after the same updates: equal to the byte."""
    desk = make_desk(asked(own, optimizer=optimizer), 10, silent)
    name = f"{layer}_w"
    updates = {name: ChannelSlice(axis, channels)}
    raw = short_runs.train_for_a_while(desk.library(tmp_path), desk.job(Run(updates, 0.02, 3)))
    chosen = desk.job(Run(updates, 0.02, 3)).order
    path = scheme(tmp_path, layer, str(len(channels)), axis)
    built = tt.compile(DIGITS / "digits.onnx", update=path, verify="none", optimizer=optimizer)
    with built.twin() as twin:
        twin.instance.set_rate(0.02)
        for index in chosen:
            twin.instance.train(desk.x[index : index + 1], desk.y[index : index + 1])
        np.testing.assert_array_equal(twin.instance.infer(desk.held.x), raw)


def test_nothing_that_a_run_does_not_train_moves(own: Path, tmp_path: Path) -> None:
    """In int8 too: weights with their fractions, and what was found for their channels."""
    np.savez(tmp_path / "calib.npz", **np.load(own))
    desk = make_desk(asked(own, calib=tmp_path / "calib.npz", **INT8), 10, silent)
    library = desk.library(tmp_path)
    before = short_runs.train_for_a_while(library, desk.job(Run({})))
    still = short_runs.train_for_a_while(library, desk.job(Run({"none": None}, 0.1)))
    moved = short_runs.train_for_a_while(library, desk.job(Run({"conv3_w": None}, 0.1)))
    assert before is not None and still is not None and moved is not None
    assert np.array_equal(before, still)
    assert not np.array_equal(before, moved)


def test_table_is_what_gains_reads_and_the_same_for_any_jobs(own: Path, tmp_path: Path) -> None:
    tables = list[str]()
    for jobs in (1, 2):
        out = tmp_path / f"gains{jobs}.csv"
        gains = measure(asked(own), replace(SHORT, jobs=jobs), out, silent).gains
        tables.append(out.read_text())
        assert max(gain.gain for gain in gains) > 0
        assert not out.with_name(out.name + PARTIAL).exists()
    assert tables[0] == tables[1]
    rows = list(csv.DictReader(tables[0].splitlines()))
    assert {row["layer"] for row in rows} == {"conv1", "conv2", "conv3", "classifier"}
    done = run(
        DIGITS / "digits.onnx", "--arena", "24KB", "--gains", tmp_path / "gains1.csv", "--dry-run", "--color", "never"
    ).check_success()
    assert "gains1.csv" in done.out


def rows_of(table: Path) -> dict[tuple[str, ...], dict[str, float]]:
    """Gains by layer, part and axis, then by channel."""
    found: dict[tuple[str, ...], dict[str, float]] = {}
    for row in csv.DictReader(table.read_text().splitlines()):
        found.setdefault((row["layer"], row["part"], row["axis"]), {})[row["channel"]] = float(row["gain"])
    return found


def test_groups_of_channels_share_the_gain_of_their_weight(tmp_path: Path) -> None:
    """The sum over channels is what a weight gains as a whole; channels whose input says nothing gain nothing."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((60, 12)).astype(np.float32), rng.integers(0, 4, 60)
    x[np.arange(60), 6 + y] += 3.0
    x[:, :6] = 0.0
    np.savez(tmp_path / "own.npz", x=x, y=y)
    options = options_from(write(models.mlp(), tmp_path), {"data": tmp_path / "own.npz"})
    out, found = tmp_path / "gains.csv", list[dict[tuple[str, ...], dict[str, float]]]()
    for groups in (1, 6):
        gains = measure(options, replace(SHORT, groups=groups), out, silent).gains
        found.append(rows_of(out))
    one, six = found
    for key, channels in six.items():
        assert sum(channels.values()) == pytest.approx(one[key]["*"], abs=1e-4)
    inputs, outputs = ("fc1/Gemm", "weight", "in"), ("fc3/Gemm", "weight", "out")
    each = list(six[inputs].values())
    assert one[inputs]["*"] > 0 and each[:6] == 6 * [0] and each[6::2] == each[7::2] and len({*each[6::2]}) == 3
    assert [*six[outputs]] == ["*"]
    run(options.model, "--arena", "1KB", "--gains", out, "--dry-run").check_success()
    parts = {gain.channels for gain in gains if (gain.layer, gain.axis) == inputs[::2]}
    assert parts == {(0, 1), (2, 3), (4, 5), (6, 7), (8, 9), (10, 11)}


def test_an_interrupted_measurement_goes_on(own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, calls, real = tmp_path / "gains.csv", list[int](), short_runs.train_for_a_while

    def counted(stop: int) -> Any:
        def train(*job: Any) -> Array | None:
            if len(calls) == stop:
                raise KeyboardInterrupt
            calls.append(1)
            return real(*job)

        return train

    monkeypatch.setattr(short_runs, "train_for_a_while", counted(7))
    with pytest.raises(KeyboardInterrupt):
        measure(asked(own), SHORT, out, silent)
    assert not out.exists() and len(calls) == 7
    partial = out.with_name(out.name + PARTIAL)
    partial.write_text(partial.read_text() + '{"run": half')
    monkeypatch.setattr(short_runs, "train_for_a_while", counted(-1))
    measure(asked(own), SHORT, out, silent)
    total = len(calls)
    whole = out.read_text()
    calls.clear()
    measure(asked(own), SHORT, tmp_path / "again.csv", silent)
    assert len(calls) == total, "runs that were known were not made again"
    assert (tmp_path / "again.csv").read_text() == whole
    partial.write_text("of another model\n")
    calls.clear()
    measure(asked(own), SHORT, out, silent)
    assert len(calls) == total and out.read_text() == whole


def test_command(own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = ("--updates", "4", "--orders", "1", "--jobs", "1", "--groups", "2", "-v")
    done = run("contribution", DIGITS / "digits.onnx", "--data", own, "-o", tmp_path / "g.csv", *few).check_success()
    head, *rows, written = done.out.splitlines()
    assert head.split("  ") == ["loss saved", "parameters", "accuracy", "layer"]
    whole = next(row for row in rows if row.endswith("classifier weight"))
    assert re.fullmatch(r" *\d\.\d{4} +2,560 +\d+\.\d% +classifier weight", whole)
    assert any(row.endswith("conv3 weight, in channels 8 to 15") for row in rows)
    saved = [float(row.split()[0]) for row in rows]
    assert saved == sorted(saved, reverse=True) and len(rows) > 8
    assert written == f"wrote      {tmp_path / 'g.csv'}" and (tmp_path / "g.csv").is_file()
    assert "\n  --arena" not in run("contribution", "--help").out  # no option; texts of others may name it
    assert "Measure the gain of training" in run("contribution", "--help").out
    run("compile", DIGITS / "digits.onnx", "--dry-run", "--arena", "64KB").check_success()
    model = tmp_path / "contribution"  # a model whose file has the name of a command
    shutil.copyfile(DIGITS / "digits.onnx", model)
    monkeypatch.chdir(tmp_path)
    said = run("./contribution", "--dry-run", "--arena", "64KB").check_success().out
    assert said.startswith("contribution for cortex-m7, fp32 ")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("-o", "g.csv"), "E0101"),
        (("--data", "own.npz", "-o", "g.txt"), "E0101"),
        (("--data", "own.npz", "--updates", "0"), "E0101"),
        (("--data", "own.npz", "--jobs", "0"), "E0101"),
        (("--data", "own.npz", "-o", "missing/g.csv"), "E0104"),
        (("--data", "own.npz", "--arena", "64KB"), "E0101"),
        (("--data", "few.npz"), "E0105"),
        (("--data", "gone.npz"), "E0105"),
        (("--data", "one.npz"), "E0305"),
    ],
)
def test_what_cannot_be_is_said(
    arguments: tuple[str, ...], code: str, own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with np.load(own) as data:
        np.savez(tmp_path / "few.npz", x=data["x"][:1], y=data["y"][:1])
        np.savez(tmp_path / "one.npz", x=data["x"], y=np.full_like(data["y"], 3))
    before = sorted(path.name for path in tmp_path.iterdir())
    run("contribution", DIGITS / "digits.onnx", *arguments).check_error(code, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_samples_of_a_batch_in_place_are_steps_of_their_own(own: Path, tmp_path: Path) -> None:
    """What stays gets its numbers back after each of them."""
    options: dict[str, Any] = {"batch": 4, "accumulate": "inplace"}
    desk = make_desk(asked(own, **options), 3, silent)
    job = desk.job(Run({"conv2_w": None}, 0.02, 3))
    raw = short_runs.train_for_a_while(desk.library(tmp_path), job)
    path = scheme(tmp_path, "conv2", '"all"', "in")
    built = tt.compile(DIGITS / "digits.onnx", update=path, verify="none", **options)
    with built.twin() as twin:
        twin.instance.set_rate(0.02)
        for first in range(0, 12, 4):
            chosen = job.order[first : first + 4]
            twin.instance.train(desk.x[chosen], desk.y[chosen])
        np.testing.assert_array_equal(twin.instance.infer(desk.held.x), raw)


def test_a_diverged_run_counts_nothing(own: Path, tmp_path: Path) -> None:
    out = tmp_path / "gains.csv"
    gains = measure(asked(own, lr=1e6), SHORT, out, silent).gains
    assert all(np.isfinite(gain.gain) and gain.gain >= 0 for gain in gains)


def test_slots_have_the_types_of_the_calls(own: Path) -> None:
    desk = make_desk(asked(own), 1, silent)
    assert desk.x.dtype == np.dtype("<f4") and desk.y.dtype == np.dtype("<i4")
    assert len(desk.held.x) + len(desk.x) == 90
    x = np.zeros((2, 1, 8, 8), np.float32)
    found = in_slots(desk.bundle.interface, samples_of("x", x, np.asarray([1, 2]), desk.model, desk.train))
    assert found.x.shape == (2, 8, 8, 1)
