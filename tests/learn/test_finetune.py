"""`finetune`: what it trains is what the device would; what it recommends is what compilations read."""

from __future__ import annotations

import math
import re
import tomllib
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import onnx
import pytest
from distributed import Client
from onnx import TensorProto, helper, numpy_helper
from rich.cells import cell_len

import tinytrain_compile as tt
from tests.e2e.command import run
from tests.learn.finetuning import DIGITS, SHORT, found_by, silent, some, write_own
from tinytrain_compile.cli.python_options import options_from
from tinytrain_compile.cli.terminal import Terminal
from tinytrain_compile.data.own_data import own_data, read_own_data
from tinytrain_compile.data.samples import in_slots
from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.learning import Finding, Learned, RateSchedule, Score, Tried, mean_curve
from tinytrain_compile.ir.types import Array
from tinytrain_compile.learn import rate_search as search
from tinytrain_compile.learn.finetune import check_learned, finetune, kept_of, reservoir_sizes, write_finding
from tinytrain_compile.learn.rate_search import most_runs
from tinytrain_compile.learn.runs import PARTIAL
from tinytrain_compile.learn.training import Build, LearningRun, area, learn_all, with_kept
from tinytrain_compile.options.effort import FinetuneEffort
from tinytrain_compile.parts.average.twin import Average
from tinytrain_compile.parts.schedule.twin import Schedule
from tinytrain_compile.report.learning import finding_lines, finding_toml
from tinytrain_compile.report.pages.finetune import finding_html


@pytest.fixture
def own(tmp_path: Path) -> Path:
    return write_own(tmp_path)


def layer(name: str, out: int, into: int, rng: np.random.Generator) -> list[onnx.TensorProto]:
    weight = rng.normal(0, 1 / np.sqrt(into), (into, out)).astype(np.float32)
    return [
        numpy_helper.from_array(weight, f"{name}.w"),
        numpy_helper.from_array(np.zeros(out, np.float32), f"{name}.b"),
    ]


def dense(path: Path, widths: tuple[int, ...]) -> Path:
    """Dense layers with Relu between them."""
    rng, nodes, tensors, name = np.random.default_rng(0), [], [], "x"
    for index, (into, out) in enumerate(pairwise(widths)):
        tensors += layer(f"d{index}", out, into, rng)
        last = index == len(widths) - 2
        nodes.append(helper.make_node("Gemm", [name, f"d{index}.w", f"d{index}.b"], ["y" if last else f"g{index}"]))
        if not last:
            nodes.append(helper.make_node("Relu", [f"g{index}"], [f"r{index}"]))
        name = f"r{index}"
    ends = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, w]) for n, w in (("x", widths[0]), ("y", widths[-1]))
    ]
    graph = helper.make_graph(nodes, "dense", ends[:1], ends[1:], tensors)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


@pytest.mark.parametrize(
    ("schedule", "warm_up", "mean"),
    [("constant", 0.0, 0), ("cosine", 0.0, 0), ("cosine", 0.25, 0), ("constant", 0.0, 2)],
)
def test_a_training_is_what_a_twin_does(
    schedule: RateSchedule, warm_up: float, mean: int, own: Path, tmp_path: Path
) -> None:
    """The same updates by the calls of the twin, sample by sample: equal scores to the last digit."""
    compiled = tt.compile(DIGITS / "digits.onnx", update="last:2", batch=4, verify="none")
    arrays, _ = read_own_data(own, 0)
    train, face = compiled.project.summary.train, compiled.project.bundle.interface
    data = own_data("own", arrays, compiled.project.model, train)
    code, parts = compiled.library().read_bytes(), (in_slots(face, data.own), in_slots(face, data.test))
    build = Build(tmp_path / "elsewhere", code, face, compiled.project.model, train, *parts, None)
    curve = build.learn(LearningRun(0, 0.02, 5, 3, final=True, schedule=schedule, warm_up=warm_up, average=mean))
    assert curve.steps == len(arrays["x"]) // 4
    first = round(warm_up * 3 * curve.steps)
    rates = Schedule(schedule, 0.02, warm_up=first, every=3 * curve.steps - first)
    assert rates.rate_of(first) == np.float32(0.02)
    assert (rates.rate_of(3 * curve.steps - 1) < 1e-3) == (schedule == "cosine")
    with compiled.twin() as twin:
        rng, average = np.random.default_rng((5, 3)), Average(train, mean or 1)
        first = twin.evaluate(arrays["x_test"], arrays["y_test"])
        assert curve.scores[0] == Score(first["loss"], first["accuracy"])
        for epoch in range(3):
            order = rng.permutation(len(arrays["x"]))
            for done, start in enumerate(range(0, len(order) - 3, 4), epoch * curve.steps):
                chosen = order[start : start + 4]
                twin.train_step(arrays["x"][chosen], arrays["y"][chosen], lr=rates.rate_of(done))
            before = twin.instance.save()
            average.add(twin.instance.state())
            if mean:
                average.take({name: twin.instance.tensor(name) for name in twin.instance.state()})
            after = twin.evaluate(arrays["x_test"], arrays["y_test"])
            twin.instance.load(before)
            assert curve.scores[epoch + 1] == Score(after["loss"], after["accuracy"])


def test_what_is_recommended_is_what_a_compilation_reads(own: Path, tmp_path: Path) -> None:
    """From the command to macros of the firmware; the command line goes before the file."""
    x, y = some(60, 200)
    with np.load(own) as data:
        np.savez(own, x=data["x"], y=data["y"], x_test=x, y_test=y)
    made = ("finetune", DIGITS / "digits.onnx", "--data", own, "--update", "head", "--epochs", "3", "--seeds", "1")
    said = run(*made, "-o", tmp_path / "mine.toml", "--jobs", "1")
    assert said.exit_code == 0, said.err
    settings = tomllib.loads((tmp_path / "mine.toml").read_text())
    assert "out" not in settings
    again = run("finetune", DIGITS / "digits.onnx", "--config", tmp_path / "mine.toml", "-o", "none/f.toml")
    assert again.exit_code == 2 and "its folder is not there" in again.err
    assert settings["update"] == "head" and settings["data"] == str(own) and settings["runtime"] == "schedule"
    assert f"--lr {settings['lr']:g} --batch 1 --epochs {settings['epochs']}" in said.out
    assert "60 test samples" in said.out and "<svg" in (tmp_path / "mine.html").read_text()
    assert not (tmp_path / f"mine.toml{PARTIAL}").exists()
    built = run(DIGITS / "digits.onnx", "--config", tmp_path / "mine.toml", "--verify", "none", "-o", tmp_path / "out")
    assert built.exit_code == 0, built.err
    header = (tmp_path / "out" / "digits_train.h").read_text()
    assert (tmp_path / "out" / "digits_schedule.h").is_file()
    assert f"#define DIGITS_EPOCHS {settings['epochs']}\n" in header
    rate = float(
        next(line.split()[2].rstrip("f") for line in header.splitlines() if line.startswith("#define DIGITS_LR "))
    )
    assert np.float32(rate) == np.float32(settings["lr"])
    other = tt.compile(DIGITS / "digits.onnx", config=tmp_path / "mine.toml", lr=0.25, verify="none")
    assert other.project.summary.learning_rate == 0.25 and other.report["optimizer"]["learning_rate"] == 0.25


def test_clipping_by_layer_and_warm_ups_are_compared(tmp_path: Path) -> None:
    """Each with each; what is taken is what a compilation reads, and what the firmware has as a macro."""
    rng, model, path = np.random.default_rng(6), dense(tmp_path / "m.onnx", (8, 12, 3)), tmp_path / "own.npz"
    x = rng.normal(size=(60, 8)).astype(np.float32)
    np.savez(path, x=x, y=x[:, :3].argmax(1))
    options = options_from(model, {"update": "all", "loss": "cross-entropy", "data": path})
    effort = FinetuneEffort(4, 1, clips=(1.0,), jobs=1, per_layer=True, warm_ups=(0.0, 0.25))
    found = finetune(options, effort, tmp_path / "f.toml", silent)
    tried = {(one.per_layer, one.warm_up): one.curve[-1].loss for one in found.rounds[0]}
    assert len(tried) == len(set(tried.values())) == 4 and all(one.clip == 1.0 for one in found.rounds[0])
    found = replace(found, chosen=replace(found.chosen, per_layer=True, warm_up=0.25))
    assert found.worth_it and found.warm_up == found.taken.epochs * 48 // 4
    said = words(found)
    assert "clipped per layer, warm-up 0.25" in said
    assert " --clip-per layer --batch 1 --epochs 4 --warm-up 48" in said
    write_finding(found, options, {"update": "all", "loss": "cross-entropy"}, tmp_path / "f.toml")
    built = tt.compile(model, config=tmp_path / "f.toml", verify="none")
    assert built.report["options"]["clip_per"] == "layer"
    assert "#define M_WARM_UP 48u\n" in str(built.files["m_train.h"])
    with pytest.raises(CompileError, match="is about --schedule cosine"):
        finetune(options, replace(effort, schedule="constant"), tmp_path / "f.toml", silent)


def test_means_of_epochs_are_compared(tmp_path: Path) -> None:
    """In int8 as well; what is taken is a part of the output that knows its window."""
    rng, model, path = np.random.default_rng(6), dense(tmp_path / "m.onnx", (8, 12, 3)), tmp_path / "own.npz"
    x = rng.normal(size=(60, 8)).astype(np.float32)
    np.savez(path, x=x, y=x[:, :3].argmax(1))
    for quant in ("fp32", "int8"):
        asked = {"update": "all", "loss": "cross-entropy", "data": path, "quant": quant}
        options = options_from(model, {**asked, **({"calib": path, "seed": 1000} if quant == "int8" else {})})
        effort = FinetuneEffort(16, 1, clips=(0.0,), jobs=1, averages=(0, 3))
        found = finetune(options, effort, tmp_path / "f.toml", silent)
        plain, mean = ({one.rate: one.curve for one in found.rounds[0] if one.average == count} for count in (0, 3))
        assert len(set(plain) & set(mean)) == 7
        for rate in set(plain) & set(mean):
            assert plain[rate][:2] == mean[rate][:2] and plain[rate][2] != mean[rate][2], "the first mean is of one"
    found = replace(found, chosen=replace(found.chosen, average=3))
    said = words(found)
    assert " mean of 3" in said and "--runtime average=3" in said
    assert tomllib.loads(finding_toml(found, {"runtime": "monitor"}))["runtime"] == "monitor,schedule,average=3"
    shifted = {"update": "all", "loss": "cross-entropy", "data": path, "calib": path, "quant": "int8", "rescale": "on"}
    with pytest.raises(CompileError, match="--rescale on"):
        finetune(options_from(model, shifted), effort, tmp_path / "g.toml", silent)


def test_what_auto_chooses_is_written_beside_it(tmp_path: Path) -> None:
    """The scheme that was tried is the one that is compiled, whatever auto would choose another day."""
    rng, model, path = np.random.default_rng(5), dense(tmp_path / "m.onnx", (8, 24, 24, 3)), tmp_path / "own.npz"
    np.savez(path, x=rng.normal(size=(45, 8)).astype(np.float32), y=rng.integers(0, 3, 45))
    options = options_from(model, {"arena": 2048, "loss": "cross-entropy", "data": path})
    found = finetune(options, FinetuneEffort(2, 1, clips=(0.0,), jobs=1), tmp_path / "f.toml", silent)
    write_finding(found, options, {"arena": 2048, "loss": "cross-entropy"}, tmp_path / "f.toml")
    assert found.scheme and (tmp_path / "f.update.toml").read_text() == found.scheme
    assert 'update = "f.update.toml"' in (tmp_path / "f.toml").read_text()
    assert found.update == "auto: f.update.toml", "the report called it update.toml, which nobody had written"
    built = tt.compile(model, config=tmp_path / "f.toml", verify="none")
    assert built.report["memory"]["arena_bytes"] <= 2048
    assert any(one["channels"] for one in built.report["update"])


def test_the_same_finding_with_any_number_of_processes_and_after_an_interrupt(
    own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs that were done are not done again, and a file of another model says nothing."""
    first = found_by(own)
    assert found_by(own, replace(SHORT, jobs=2)) == first
    done = list[LearningRun]()

    def interrupted(builds: Any, runs: Any, jobs: int, told: Any) -> Any:
        if len(done) > 8:
            raise KeyboardInterrupt
        done.extend(runs)
        return learn_all(builds, runs, jobs, told)

    monkeypatch.setattr(search, "learn_all", interrupted)
    with pytest.raises(KeyboardInterrupt):
        found_by(own)
    again = list[LearningRun]()

    def counted(builds: Any, runs: Any, jobs: int, told: Any) -> Any:
        again.extend(runs)
        return learn_all(builds, runs, jobs, told)

    monkeypatch.setattr(search, "learn_all", counted)
    assert found_by(own) == first
    assert not {run.key for run in done} & {run.key for run in again}
    assert len(done) + len(again) == first.trainings
    again.clear()
    (own.parent / f"finetune.toml{PARTIAL}").write_bytes(b"\xffof another model\n")
    assert found_by(own) == first and len(again) == first.trainings


def test_the_same_finding_by_dask(own: Path) -> None:
    """joblib's backend is the caller's choice."""
    asked: dict[str, Any] = {"update": "head", "epochs": 2, "seeds": 1, "clips": [0], "out": own.with_name("f.toml")}
    with Client(n_workers=1, threads_per_worker=1, dashboard_address=None), joblib.parallel_config(backend="dask"):
        found = tt.finetune(DIGITS / "digits.onnx", own, **asked)
    assert found == tt.finetune(DIGITS / "digits.onnx", own, jobs=1, **asked)


def words(found: Finding) -> str:
    """What the terminal shows, without its line ends and columns."""
    return " ".join(" ".join(finding_lines(found)).split())


@pytest.mark.parametrize(("batches", "seeds"), [((1, 4), 1), ((), 3)])
def test_work_is_bounded(batches: tuple[int, ...], seeds: int, own: Path) -> None:
    effort = FinetuneEffort(2, seeds, batches=batches, jobs=1)
    found = found_by(own, effort)
    assert found.trainings <= most_runs(effort, 2 * max(1, len(batches)), 1)
    assert {one.clip for one in found.rounds[0]} == {0.0, 1.0}
    rows = [line.split() for line in finding_lines(found) if line.split()[:1] == ["1"]]
    assert [row[5] for row in rows] == [str(one.best_epoch) for one in found.rounds[0]]
    assert [row[7] for row in rows] == [str(len(one.curve) - 1) for one in found.rounds[0]]
    for width in (60, 80):
        lines = finding_lines(found, width)
        assert max(map(cell_len, lines)) <= width and any("<- taken" in " ".join(pair) for pair in pairwise(lines))
    assert [row[2] for row in rows] == ["-" if one.clip == 0 else "1" for one in found.rounds[0]]
    assert {one.batch for one in found.rounds[0]} == set(batches or (1,))
    assert all(len(one.curve) <= 3 for tried in found.rounds for one in tried)


def test_the_order_of_a_stream_is_compared(own: Path) -> None:
    options = options_from(DIGITS / "digits.onnx", {"update": "all", "data": own})
    plain = FinetuneEffort(4, 1, clips=(0.0,), jobs=1)
    found = finetune(options, replace(plain, order="sorted"), own.parent / "f.toml", silent)
    (note,) = [note for note in found.notes if "one pass" in note]
    assert "sorted by class with 2 of 60 kept samples after each new one (--runtime replay=60)" in note
    shuffled, in_order, kept = (float(text) for text in re.findall(r"accuracy ([\d.]+)%", note))
    assert min(shuffled, kept) > in_order, "a sorted pass forgets, and kept samples win back"
    assert not any("one pass" in note for note in finetune(options, plain, own.parent / "g.toml", silent).notes)


def test_it_measures_what_copies_lose(own: Path) -> None:
    """Copies of nearly nothing lose more than copies that are nearly exact; exact inputs are not compared."""
    asked = {"update": "all", "data": own, "batch": 4, "micro_batch": 4}

    def lost(**more: Any) -> tuple[tuple[float, ...], str]:
        options = options_from(DIGITS / "digits.onnx", asked | more)
        found = finetune(options, FinetuneEffort(4, 1, clips=(0.0,), jobs=1), own.parent / "f.toml", silent)
        return found.copies, " ".join("\n".join(finding_lines(found)).split())

    rough, said = lost(activations="subspace", rank_error=0.9)
    assert len(rough) == 6 and np.mean(rough) > 0.05
    error = np.std(rough, ddof=1) / 6**0.5
    assert f"{100 * np.mean(rough):.1f} +- {100 * error:.1f} points of accuracy less than with exact inputs" in said
    assert lost()[0] == ()
    tight = {"arena": 65_000, "remat": "off", "stream": "off"}
    with pytest.raises(CompileError, match="E0401"):
        lost(**tight)
    assert len(lost(activations="subspace", rank_error=0.9, **tight)[0]) == 6, "exact inputs need not fit the device"


def test_copies_that_end_in_nan_and_those_of_values() -> None:
    values = (Learned(0, (Score(2.0), Score(1.0)), (), 0.0, 7),)
    for given, said in (
        ({"copies": (0.1, math.inf)}, "some trainings ended in NaN"),
        ({"copies": (0.1, 0.3), "learned": values}, "loss larger by 20.0 +- 10.0 % than with exact inputs"),
    ):
        assert said in " ".join("\n".join(finding_lines(finding_of(**given))).split())


def test_it_tells_how_often_a_guard_would_refuse(own: Path) -> None:
    """Golden samples like the own ones are known better with each epoch; with other labels they are lost."""
    x, y = np.load(own)["x"][:50], np.load(own)["y"][:50]
    model, golden = DIGITS / "digits.onnx", own.parent / "golden.npz"
    with tt.compile(model, update="all", verify="none").twin() as twin:
        answers = twin.predict(x).argmax(axis=1)

    def note_of(labels: Array, drop: float) -> str:
        np.savez(golden, x=x, y=labels)
        options = options_from(model, {"update": "all", "data": own, "guard": golden, "guard_drop": drop})
        found = finetune(options, FinetuneEffort(4, 1, clips=(0.0,), jobs=1), own.parent / "f.toml", silent)
        assert [len(one.golden) for one in found.learned] == [found.learned[0].epochs] * len(found.learned)
        return next(note for note in found.notes if "a guard with" in note)

    assert re.search(r"--guard-drop 1% refuses 0 of \d ends of epochs$", note_of(y, 0.01))
    refused = re.search(
        r"1% refuses (\d) of (\d) ends of epochs; --guard-drop (\d+)% refuses none$", note_of(answers, 0.01)
    )
    assert refused is not None and refused[1] == refused[2] != "0"
    proposed = int(refused[3])
    assert re.search(r"refuses 0 of \d", note_of(answers, proposed / 100))
    assert not re.search(r"refuses 0 of \d", note_of(answers, (proposed - 2) / 100)), "steps of 2 %: 50 samples"


def test_only_classes_are_sorted(tmp_path: Path) -> None:
    rng, path = np.random.default_rng(2), tmp_path / "own.npz"
    np.savez(path, x=rng.normal(size=(60, 8)).astype(np.float32), y=rng.normal(size=(60, 3)).astype(np.float32))
    options = options_from(dense(tmp_path / "m.onnx", (8, 6, 3)), {"update": "all", "data": path, "loss": "mse"})
    with pytest.raises(CompileError, match=r"E0113.*--order sorted: sorts by class"):
        finetune(options, replace(SHORT, order="sorted"), tmp_path / "f.toml", silent)


def test_kept_samples_come_before_new_ones() -> None:
    """Every new sample once, in order, and before each but the first two some that came before."""
    found = with_kept(np.arange(30), 4, 1, np.zeros(30, int)).tolist()
    after_each = (len(found) - 30) // 28
    new, kept = [found[0], *found[1 :: 1 + after_each]], found[2:]
    assert after_each > 0 and new == list(range(30)) and len(found) == 30 + after_each * 28
    del kept[after_each :: 1 + after_each]
    assert all(old < new[2 + at // after_each] for at, old in enumerate(kept))
    assert len(set(kept)) > 4, "the reservoir changes"


def test_replay_is_recommended_where_it_brings_back_what_was_forgotten(tmp_path: Path) -> None:
    """Own samples with other labels than the old ones: what was known is lost, unless it is shown again."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(240, 8)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int32)
    shifted = x[:120] + np.float32(3) * np.eye(8, dtype=np.float32)[7]
    first, path = dense(tmp_path / "m.onnx", (8, 16, 2)), tmp_path / "own.npz"
    with tt.compile(first, update="all", loss="cross-entropy", verify="none").twin() as twin:
        for _ in range(8):
            for one, label in zip(x, y, strict=True):
                twin.train_step(one[None], label[None], lr=0.05)
        learned = twin.state_dict()
    model = onnx.load(first)
    for tensor in model.graph.initializer:  # a network that knows the old task
        numbers = learned[tensor.name].reshape([*tensor.dims][::-1]).T
        tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(numbers), tensor.name))
    onnx.save(model, first)
    np.savez(path, x=shifted, y=1 - y[:120], x_old=x[120:], y_old=y[120:])
    options = options_from(first, {"update": "all", "data": path, "loss": "cross-entropy"})
    found = finetune(options, FinetuneEffort(16, 2, replay=60, clips=(0.0,), jobs=1), tmp_path / "f.toml", silent)
    plain, few, *more = found.learned
    kept = more[-1] if more else few
    assert plain.old[0].accuracy is not None and plain.old[-1].accuracy is not None
    assert plain.old[0].accuracy - plain.old[-1].accuracy > 0.05
    assert kept.old[-1].accuracy is not None and kept.old[-1].accuracy > plain.old[-1].accuracy
    assert found.replay in (20, 60) and kept.steps == 2 * plain.steps
    assert any(f"keep {found.replay} old samples" in line for line in finding_lines(found))
    written = [tomllib.loads(finding_toml(found, given))["runtime"] for given in ({}, {"runtime": "store, replay=9"})]
    assert written == [f"schedule,replay={found.replay}", "store,replay=9,schedule"]


def test_the_terminal_names_the_files_and_the_next_command(capsys: pytest.CaptureFixture[str]) -> None:
    """After a search a new user had to look up how its result is used."""
    written = (Path("f.toml"), Path("f.html"), Path("f.update.toml"))
    Terminal("never", False).finding(finding_of(), written, Path("my net.onnx"))
    said = capsys.readouterr().out.splitlines()
    assert said[-4].startswith("wrote      f.toml ") and said[-2].split()[0] == "f.update.toml"
    assert said[-1] == "next       tinytrain-compile 'my net.onnx' --config f.toml"


def test_one_seed_says_nothing_of_a_spread() -> None:
    """`+-0.0% between 1 seed` was a measurement that nobody had made."""
    assert "(1 seed)" in words(finding_of()) and "+-" not in words(finding_of())
    several = replace(finding_of().chosen, seeds=2)
    assert "(+-0.0% between 2 seeds)" in words(finding_of(chosen=several, rounds=((several,),)))


def test_networks_that_repeat_their_input(tmp_path: Path) -> None:
    """No y: errors of sound samples fall, and faults are told from them."""
    rng = np.random.default_rng(2)
    shape = rng.normal(size=(2, 6))
    x = (rng.normal(size=(150, 2)) @ shape).astype(np.float32)
    test = (rng.normal(size=(80, 2)) @ shape).astype(np.float32)
    test[40:] += rng.normal(size=(40, 6)).astype(np.float32)
    path = tmp_path / "own.npz"
    np.savez(path, x=x, x_test=test, y_test=np.repeat([0, 1], 40))
    options = options_from(dense(tmp_path / "m.onnx", (6, 4, 6)), {"update": "all", "data": path, "loss": "mse"})
    found = finetune(options, FinetuneEffort(12, 1, jobs=1), tmp_path / "f.toml", silent)
    first, last = found.taken.curve[0], found.taken.curve[-1]
    assert last.loss < 0.5 * first.loss and last.accuracy is None
    assert last.auc is not None and first.auc is not None and last.auc > max(0.8, first.auc)
    assert last.threshold is not None and last.false_alarms is not None and last.false_alarms < 0.3
    text = "\n".join(finding_lines(found))
    assert "AUC" in text and "threshold after" in text and "learns to repeat its input" in text
    write_finding(found, options, {"update": "all", "data": path.name, "loss": "mse"}, tmp_path / "f.toml")
    built = tt.compile(tmp_path / "m.onnx", config=tmp_path / "f.toml", verify="host")
    with built.twin() as twin:
        assert built.report["verify"]["losses"][0] == pytest.approx(twin.train_step(x[:1], x[:1]), rel=1e-6)


def test_a_threshold_is_not_of_samples_that_were_learned_by_heart(tmp_path: Path) -> None:
    """Samples that have nothing in common: those that were trained on are repeated, and all others would be faults."""
    rng, path = np.random.default_rng(5), tmp_path / "own.npz"
    x, test = (rng.normal(size=(count, 48)).astype(np.float32) for count in (40, 100))
    np.savez(path, x=x, x_test=test, y_test=np.repeat([0, 1], 50))
    asked = {"update": "all", "data": path, "loss": "mse", "lr": 0.3}
    options = options_from(dense(tmp_path / "m.onnx", (48, 48)), asked)
    found = finetune(options, FinetuneEffort(40, 1, jobs=1), tmp_path / "f.toml", silent)
    last = found.taken.curve[-1]
    assert last.false_alarms is not None and last.false_alarms < 0.3
    assert found.taken.steps == 30, "a quarter of the samples is kept from training"
    assert "kept from training" in words(found)


def test_values_are_judged_by_their_loss(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    x = rng.normal(size=(120, 5)).astype(np.float32)
    path = tmp_path / "own.npz"
    np.savez(path, x=x, y=(x @ rng.normal(size=(5, 2))).astype(np.float32))
    options = options_from(dense(tmp_path / "m.onnx", (5, 2)), {"update": "all", "data": path, "loss": "mse"})
    found = finetune(options, FinetuneEffort(10, 1, jobs=1), tmp_path / "f.toml", silent)
    assert found.taken.curve[-1].loss < 0.1 * found.taken.curve[0].loss
    assert any(one.failed for one in found.rounds[0]) or found.rounds[0][-1].best.loss > found.chosen.best.loss
    assert "accuracy" not in "\n".join(finding_lines(found))


def test_curves() -> None:
    """The area by all pairs; means of curves that end early or fail; what is not finite is drawn nowhere."""
    rng = np.random.default_rng(4)
    sound, faulty = rng.integers(0, 9, 30).astype(float), rng.integers(3, 12, 20).astype(float)
    pairs = [(f > s) + 0.5 * (f == s) for s in sound for f in faulty]
    assert area(sound, faulty) == pytest.approx(float(np.mean(pairs)), abs=1e-12)
    curves = [(Score(2.0, 0.5), Score(1.0, 0.7)), (Score(4.0, 0.3),)]
    assert mean_curve(curves, [False, False]) == (Score(3.0, 0.4), Score(2.5, 0.5))
    assert mean_curve(curves, [False, True])[1] == Score(float("inf"), 0.35)
    bad = Tried(1, 0.0, 1.0, 1, (Score(1.0), Score(float("inf"))), 1)
    one = Learned(0, (Score(1.0), Score(0.4), Score(0.35)), (), 0.0, 7)
    page = finding_html(Finding(((bad, bad),), bad, 1.0, (one,), 0, 1), "<m>")
    assert "&lt;m&gt;" in page
    assert re.findall('points="([^"]*)"', page) and not re.search('points="[^"]*(inf|nan)', page)
    assert one.epochs_to_most == 1 and one.epochs == 2


def finding_of(**given: Any) -> Finding:
    """One that was worth it, but for what is given."""
    good = Tried(1, 0.0, 0.01, 1, (Score(1.0, 0.4), Score(0.5, 0.8)), 0, settles=True)
    known: dict[str, Any] = {"rounds": ((good,),), "chosen": good}
    known |= {
        "samples": 400,
        "tests": 400,
        "rate": 0.01,
        "learned": (Learned(0, (Score(1.0, 0.5), Score(0.6, 0.7)), (), 0.0, 7),),
    }
    return Finding(**(known | {"replay": 0, "trainings": 1} | given))


def tried_of(first: Score, last: Score, failed: int = 0) -> dict[str, Any]:
    one = Tried(1, 0.0, 0.01, 1, (first, last), failed, settles=True)
    other = replace(one, rate=0.1, curve=(first, replace(last, loss=last.loss + 1)))
    third = replace(other, rate=0.001)
    return {"rounds": ((third, one, other),), "chosen": one}


@pytest.mark.parametrize(
    ("given", "cause"),
    [
        (tried_of(Score(0.1, 0.99), Score(0.1, 0.99)), "the network knows these samples already"),
        (tried_of(Score(1.0, 0.4), Score(math.inf, 0.0), failed=1), "all rates from 0.001 ended in NaN or infinity"),
        ({"learned": (Learned(0, (Score(1.0, 0.5), Score(0.9, 0.4)), (), 0.0, 7),)}, "x_test is unlike x"),
        (tried_of(Score(1.0, 0.4), Score(1.1, 0.4)), "y does not belong to x"),
        (tried_of(Score(1.0, 0.4), Score(1.1, 0.4)) | {"suspects": ("x is out of scale",)}, "x is out of scale"),
    ],
)
def test_if_nothing_was_learned_the_error_names_the_likely_cause(given: dict[str, Any], cause: str) -> None:
    """With the table of what was tried below it; losses that are not finite are drawn as the worst."""
    check_learned(finding_of(), "own.npz")
    with pytest.raises(CompileError, match=f"E0309.*own.npz: nothing was learned .*likely cause: {cause}") as problem:
        check_learned(finding_of(**given), "own.npz")
    assert problem.value.exit_code == 2
    assert any(line.startswith("tried ") for line in problem.value.details)
    assert "recommend  nothing" in "\n".join(problem.value.details)


def test_inputs_out_of_scale_end_in_an_error_and_no_file(own: Path, tmp_path: Path) -> None:
    """Counts of a sensor where the network knows numbers of about 1."""
    with np.load(own) as data:
        np.savez(own, x=np.rint(data["x"] * 4096).astype(np.int16), y=data["y"])
    flags = ("--data", own, "--update", "all", "--epochs", "2", "--seeds", "1", "--jobs", "1", "--clips", "0")
    said = run("finetune", DIGITS / "digits.onnx", *flags, "-o", tmp_path / "mine.toml")
    assert said.exit_code == 2 and "E0309" in said.err, said.err + said.out
    assert "likely cause: x of own.npz is out of scale" in " ".join(said.err.split())
    assert not list(tmp_path.glob("mine*"))


def test_reservoirs_start_at_20_samples_and_fit() -> None:
    assert reservoir_sizes(100, 400, None) == (20, 100)
    assert reservoir_sizes(100, 60, None) == (20, 30)
    assert reservoir_sizes(100, 400, 50) == (20, 50)
    assert reservoir_sizes(100, 400, 7) == (7,)
    assert reservoir_sizes(100, 400, 0) == reservoir_sizes(0, 400, None) == reservoir_sizes(100, 1, None) == ()


def kept(replay: int, *accuracies: float) -> Learned:
    return Learned(replay, (Score(1.0, 0.5), Score(0.5, 0.8)), tuple(Score(1.0, one) for one in accuracies), 0.0, 7)


@pytest.mark.parametrize(
    ("after", "chosen"),
    [
        ((0.9, 0.9, 0.9), 0),
        ((0.5, 0.89, 0.9), 20),
        ((0.5, 0.7, 0.9), 100),
        ((0.5, 0.7, 0.705), 20),
        ((0.5, 0.5, 0.5), 0),
    ],
)
def test_more_samples_are_kept_only_if_they_bring_back_more(after: tuple[float, ...], chosen: int) -> None:
    learned = [kept(size, 0.9, one) for size, one in zip((0, 20, 100), after, strict=True)]
    assert kept_of(learned) == chosen


def test_what_is_kept_has_a_price() -> None:
    plain, some = kept(0, 0.9, 0.5), kept(20, 0.9, 0.89)
    text = words(finding_of(learned=(plain, some), replay=20, record_bytes=264))
    assert "with 20 old samples replayed (5,280 B of RAM beside the arena): accuracy 90.0%" in text
    assert "; keep 20 old samples (5,280 B of RAM beside the arena), replay one after each new one" in text


def test_no_more_samples_are_kept_than_the_board_has_room_for(own: Path) -> None:
    """Of 256 KB, less what the rest of a firmware needs; a core says nothing of its RAM."""
    x, y = some(60, 300)
    with np.load(own) as data:
        np.savez(own, x=data["x"], y=data["y"], x_old=x, y_old=y)
    short = FinetuneEffort(1, 1, replay=25, clips=(0.0,), jobs=1)
    found = found_by(own, short)
    assert found.most_kept is None and found.record_bytes == 64 * 4 + 4
    board = found_by(own, short, target="nrf52840-dk", reserve="150KB")
    assert board.most_kept is not None and 20 < board.most_kept < (256 - 150) * 1024 // 260
    asked = ["--update", "head", "--target", "nrf52840-dk", "--reserve", "150KB", "--verify", "none", "--dry-run"]
    run(DIGITS / "digits.onnx", *asked, "--runtime", f"schedule,replay={board.most_kept}").check_success()
    tight = found_by(own, short, target="nrf52840-dk", reserve=str(150 * 1024 + (board.most_kept - 7) * 260))
    assert tight.most_kept == 7 and [one.replay for one in tight.learned] == [0, 7]
    said = "nrf52840-dk has room for at most 7 old samples beside the model (20 need 5,200 B)"
    assert any(said in note for note in tight.notes)
