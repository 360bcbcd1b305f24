"""--batch in micro-batches: any number of samples at a time trains the same; the user, or the arena, decides which."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from testing.networks import models
from testing.runs import run_steps
from tests.e2e import chain
from tests.e2e.broken import write
from tests.e2e.command import Outcome, run
from tests.e2e.marks import needs_qemu
from tests.quantize import nets
from tinytrain_compile.data.samples import random_samples
from tinytrain_compile.driver.trial import like_one, with_exponents_of
from tinytrain_compile.ir.stages import TrainGraph
from tinytrain_compile.ops import OPS
from tinytrain_compile.target.loader import load_target
from tinytrain_compile.training import SamplesMixError
from tinytrain_compile.verify.run import RunResult

SIZES = (1, 2, 4)
STEPS = 3
FLOATS = {"cnn": nets.cnn, "transformer": models.transformer, "zoo": models.zoo}
INTEGERS: dict[str, dict[str, Any]] = {
    "sgd": {},
    "momentum, q8.8": {"optimizer": "momentum", "store": "q8.8"},
    "mse": {"loss": "mse"},
    "float head": {"head": "fp32"},
}


def float_train(model: onnx.ModelProto, size: int, batch: int = 4, **options: Any) -> TrainGraph:
    return chain.train_graph(model, micro_batch=size, batch=batch, learning_rate=0.05, **options)


def int8_train(size: int, model: onnx.ModelProto | None = None, **options: Any) -> TrainGraph:
    """All in integers unless told, with the exponents that one sample at a time gave."""
    chosen = {"head": "int8", "batch": 4, "learning_rate": 0.05, **options}
    made = [nets.int8_train(model or nets.cnn(), micro_batch=count, **chosen) for count in (1, size)]
    one = with_exponents_of(made[0], random_samples(made[0], 8, 5))
    return one if size == 1 else like_one(made[1], one)


def trained(train: TrainGraph, folder: Path, batch: int = 4, one: TrainGraph | None = None) -> RunResult:
    """What the generated C does on the host, on as many samples an update; one: the step of one sample."""
    folder.mkdir()
    samples = random_samples(train, STEPS * batch, 0)
    bundle = chain.project(train, one=one).bundle
    result = run_steps(bundle, load_target("cortex-m7"), samples, STEPS, None, batch, folder)
    assert result.status == "ok"
    return result


def step_losses(result: RunResult) -> np.ndarray:
    return result.losses.reshape(STEPS, -1).astype(np.float64).mean(axis=1)


def apart(train: TrainGraph, one: RunResult, other: RunResult) -> float:
    """Largest relative difference of any tensor of the state after training, and of any step's loss."""
    found = list(np.abs(step_losses(one) / step_losses(other) - 1))
    for value in train.graph.state:
        a, b = (np.frombuffer(run.states[-1][value.name], "<f4") for run in (one, other))
        found.append(np.abs(a - b).max() / max(float(np.abs(a).max()), 1e-3))
    return float(max(found))


@pytest.mark.parametrize("name", FLOATS)
def test_float_training_is_the_same_for_all_sizes(name: str, tmp_path: Path) -> None:
    graphs = [float_train(FLOATS[name](), size) for size in SIZES]
    runs = [trained(train, tmp_path / str(train.micro_batch), one=graphs[0]) for train in graphs]
    assert [len(result.losses) for result in runs] == [STEPS * 4 // size for size in SIZES]
    assert runs[0].states[0] != runs[0].states[-1]
    for result in runs[1:]:
        assert apart(graphs[0], runs[0], result) <= 1e-5


@pytest.mark.parametrize("name", INTEGERS)
def test_integer_training_is_the_same_to_the_byte_for_all_sizes(name: str, tmp_path: Path) -> None:
    """Weights, biases, exponents, noise, velocities, fractions; the float32 losses but for their last bits."""
    graphs = [int8_train(size, **INTEGERS[name]) for size in SIZES]
    runs = [trained(train, tmp_path / str(train.micro_batch), one=graphs[0]) for train in graphs]
    assert runs[0].states[0] != runs[0].states[-1]
    for result in runs[1:]:
        assert [dict(state) for state in result.states] == [dict(state) for state in runs[0].states]
        np.testing.assert_allclose(step_losses(result), step_losses(runs[0]), rtol=2e-5 if name == "mse" else 1e-6)


def test_an_update_divides_by_the_samples_that_were_counted(tmp_path: Path) -> None:
    """Half of --batch 4, then m_apply: the same as --batch 2."""
    alone = float_train(nets.cnn(), 1, batch=2)
    half = trained(float_train(nets.cnn(), 2), tmp_path / "half", batch=2, one=alone)
    assert apart(alone, trained(alone, tmp_path / "alone", batch=2), half) <= 1e-5
    one = int8_train(1)
    whole = trained(int8_train(2), tmp_path / "int8", batch=2, one=one)
    assert dict(whole.states[-1]) == dict(trained(one, tmp_path / "one", batch=2).states[-1])


def test_a_loss_that_is_a_sum_is_no_mean_over_the_samples(tmp_path: Path) -> None:
    """The model's own loss: gradients are not multiplied, and a step's loss is the sum over its samples."""
    model = nets.pixels([1.0, 2.0, 0.3], "sum", 1)
    graphs = [float_train(model, size) for size in (1, 2)]
    one, two = (trained(train, tmp_path / str(train.micro_batch), one=graphs[0]) for train in graphs)
    np.testing.assert_allclose(two.losses, one.losses.reshape(-1, 2).sum(axis=1), rtol=1e-5)
    for name, state in one.states[-1].items():
        np.testing.assert_allclose(np.frombuffer(two.states[-1][name], "<f4"), np.frombuffer(state, "<f4"), rtol=1e-4)


@needs_qemu
@pytest.mark.qemu
def test_boards_equal_the_host_with_several_samples_at_a_time() -> None:
    """Float32 with an FPU, int8 without one; outputs of all samples are compared."""
    report = chain.check(chain.project(float_train(nets.cnn(), 2), one=float_train(nets.cnn(), 1)))
    assert (report.result, report.mode) == ("pass", "qemu") and "bit-exact" in report.message
    for board in ("cortex-m0plus", "cortex-m55"):
        one, train = (int8_train(size, nets.cnn(pool="MaxPool", window=nets.OVERLAPPING)) for size in (1, 4))
        made = chain.project(train, board, one=one)
        report = chain.check(made, board)
        assert (report.result, report.mode, report.max_error) == ("pass", "qemu", 0.0), board


# ---- the command ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the CNN and its calibration data, without and with labels."""
    folder = tmp_path_factory.mktemp("cnn")
    write(nets.cnn(), folder)
    x = nets.calibration(nets.cnn())
    np.savez(folder / "calib.npz", x=x)
    np.savez(folder / "labelled.npz", x=x, y=np.arange(len(x)) % 5)
    return folder


def compiled(place: Path, *arguments: str | Path) -> Outcome:
    return run(place / "net.onnx", "--verify", "none", *arguments)


@cache
def reported(place: Path, *arguments: str | Path) -> dict[str, Any]:
    """report.json of a run with --batch 4, and as many samples at a time as fit unless told."""
    out = place / "_".join(("out", *map(str, arguments))).replace("/", "_")
    sizes = () if {"--micro-batch", "--lock"}.intersection(map(str, arguments)) else ("--micro-batch", "auto")
    compiled(place, "--batch", "4", *sizes, "-o", out, *arguments).check_success()
    return json.loads((out / "report.json").read_text(encoding="utf-8"))


def tried_ways(report: dict[str, Any]) -> list[tuple[str, int | None]]:
    return [(attempt["how"], attempt["arena_bytes"]) for attempt in report["plan"]["ladder"]]


def test_the_arena_chooses_how_many_samples_a_step_takes(place: Path) -> None:
    """As many as fit; each size is told with its arena, and an arena of just that size holds it again."""
    most = reported(place, "--arena", "1MB")
    assert (most["batch"], most["micro_batch"]) == (4, 4)
    four = most["memory"]["arena_bytes"]
    assert tried_ways(most) == [("micro-batch 4", four)]
    assert reported(place, "--arena", str(four))["micro_batch"] == 4
    less = reported(place, "--arena", str(four - 1))
    two = less["memory"]["arena_bytes"]
    assert less["micro_batch"] == 2 and tried_ways(less)[-1] == ("micro-batch 2", two)
    least = reported(place, "--arena", str(two - 1), "--update", "all")
    assert least["micro_batch"] == 1 and [how for how, _ in tried_ways(least)] == [
        f"micro-batch {n}" for n in (4, 2, 1)
    ]
    assert least["memory"]["arena_bytes"] == reported(place, "--update", "all")["memory"]["arena_bytes"] < two < four
    assert most["work"]["forward_macs"] == 4 * least["work"]["forward_macs"]
    assert most["work"]["backward_macs"] == 4 * least["work"]["backward_macs"]


def test_more_samples_are_given_up_before_anything_else(place: Path) -> None:
    """Where one sample does not fit, larger sizes are priced for the whole update, and only told."""
    whole = reported(place, "--update", "all")["memory"]["arena_bytes"]
    report = reported(place, "--arena", str(whole * 3 // 5))
    assert report["micro_batch"] == 1
    hows = [how for how, _ in tried_ways(report)]
    sizes, update = ["micro-batch 4", "micro-batch 2", "micro-batch 1"], report["update_totals"]
    assert hows == [*sizes, "--update update.toml"]
    assert 0 < update["parameters"] < update["total_parameters"]
    flags = ("--batch", "4", "--micro-batch", "auto")
    refused = compiled(place, *flags, "--arena", "1KB", "--update", "all", "-o", place / "no")
    refused.check_error("E0401", 3)
    assert (
        refused.err.index("micro-batch 4  ")
        < refused.err.index("micro-batch 2  ")
        < refused.err.index("micro-batch 1  ")
    )


@pytest.mark.parametrize(
    "flags",
    [
        (),
        ("--arena", "1MB", "--accumulate", "inplace"),
        ("--arena", "1MB", "--remat", "min"),
        ("--arena", "1MB", "--optimise", "memory"),
    ],
)
def test_one_sample_at_a_time_where_flags_ask_for_it_or_no_arena_is_given(place: Path, flags: tuple[str, ...]) -> None:
    assert reported(place, *flags)["micro_batch"] == 1


def test_a_step_that_takes_too_long_takes_fewer_samples(place: Path) -> None:
    time = reported(place, "--arena", "1MB")["plan"]["model"]["step_us"]
    report = reported(place, "--arena", "1MB", "--max-step-time", f"{time * 0.7:.0f}us")
    assert report["micro_batch"] == 2
    assert report["plan"]["model"]["step_us"] <= time * 0.7


def test_int8_takes_several_samples_only_with_known_exponents(place: Path) -> None:
    flags = ("--arena", "1MB", "--quant", "int8", "--calib")
    alone = reported(place, *flags, str(place / "calib.npz"))
    assert alone["micro_batch"] == 1
    why = "the first step finds the exponents of errors in its own sample: give --calib with x and y to compile them in"
    assert f"one sample at a time: {why}" in alone["notes"]
    assert reported(place, *flags, str(place / "labelled.npz"))["micro_batch"] == 4


def test_sums_that_could_overflow_take_fewer_samples(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """8x8 pixels reach 255 * 128 * 64 in a weight's sum, per sample; of 400 times that, an int32 holds two."""
    known = OPS["QSum"]
    many = replace(known, accumulator=lambda inputs, attrs: 400 * known.accumulator(inputs, attrs))
    monkeypatch.setitem(OPS, "QSum", many)
    flags = ("--arena", "1MB", "--quant", "int8", "--calib", str(place / "labelled.npz"), "--seed", "1")
    report = reported(place, *flags)
    assert report["micro_batch"] == 2
    assert tried_ways(report)[0] == ("micro-batch 4", None)
    assert "too large for int8 training" in report["plan"]["ladder"][0]["note"]


def mixing() -> onnx.ModelProto:
    """A softmax over the batch axis: of one sample it is 1 everywhere, of several it is not."""
    net = models.Network("mixed", "float[1, 4] x", "float[1, 3] y", seed=3)
    x = net.node("mix", "mixed = Softmax <axis = 0> (x)")
    net.node("logits", f"y = Identity ({net.dense('fc', x, 4, 3)})")
    return net.model()


def test_a_model_that_cannot_take_several_says_why(tmp_path: Path) -> None:
    write(mixing(), tmp_path)
    report = reported(tmp_path, "--arena", "1MB")
    assert report["micro_batch"] == 1
    assert any(note.startswith("one sample at a time: ") for note in report["notes"])


def test_what_one_sample_is_refused_for_too_does_not_blame_the_samples(place: Path) -> None:
    flags = ("--quant", "int8", "--calib", str(place / "labelled.npz"), "--optimizer", "adam")
    found = compiled(place, "--batch", "2", "--micro-batch", "2", *flags, "-o", place / "no").check_error("E0113", 2)
    assert "--optimizer" in found.err and "--micro-batch" not in found.err


def test_the_header_speaks_of_the_samples_of_a_call(place: Path) -> None:
    reported(place, "--arena", "1MB")
    text = (place / "out_--arena_1MB" / "net_train.h").read_text(encoding="utf-8")
    for line in (
        "#define NET_MICRO_BATCH 4",
        "#define NET_INPUT_ELEMENTS 768u",
        "#define NET_OUTPUT_ELEMENTS 5u",
        "#define NET_LABEL_ELEMENTS 4u",
    ):
        assert line in text


def test_a_lock_keeps_the_micro_batch(place: Path) -> None:
    report = reported(place, "--arena", "1MB")
    lock = place / "out_--arena_1MB" / "plan.json"
    again = reported(place, "--lock", lock)
    assert again["micro_batch"] == 4 and again["memory"]["arena_bytes"] == report["memory"]["arena_bytes"]
    for flags in (("--batch", "6"), ("--batch", "4", "--accumulate", "inplace")):
        compiled(place, "--lock", lock, "-o", place / "no", *flags).check_error("E0106", 2)


def test_a_fixed_batch_of_one_may_be_written_into_the_model(tmp_path: Path) -> None:
    """Reshapes to [1, ...] are of one sample: for several they are as many times as long."""
    net = models.Network("fixed", "float[1, 2, 4, 4] x", "float[1, 3] y", seed=3)
    shape = net.table("shape", [1, 32], np.int64)
    flat = net.node("flat", f"flat = Reshape (x, {shape})")
    net.node("logits", f"y = Identity ({net.dense('fc', flat, 32, 3)})")
    one = float_train(net.model(), 1)
    runs = [trained(float_train(net.model(), size), tmp_path / str(size), one=one) for size in (1, 4)]
    assert apart(float_train(net.model(), 1), *runs) <= 1e-5


def test_a_model_whose_operators_mix_samples_is_refused() -> None:
    with pytest.raises(SamplesMixError, match=r"mix \(Softmax\): it works along the axis of the samples"):
        float_train(mixing(), 2)
