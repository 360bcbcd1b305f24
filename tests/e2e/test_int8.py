"""int8 training end to end: numpy, host C and six cores agree to the byte; the real models fit their budgets."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.e2e import chain, models
from tests.e2e.broken import write
from tests.e2e.command import Outcome, run, tree
from tests.e2e.marks import ROOT, SHARED, needs_qemu, needs_shared
from tests.emit.test_generated_c import NUMERIC, build, sources, write_files
from tests.quantize import nets
from tinytrain_compile.data import load_inputs, load_samples, random_samples
from tinytrain_compile.errors import CompileError
from tinytrain_compile.frontend import FrontendOptions, load_model
from tinytrain_compile.ir.stages import KernelSet, TrainGraph, VerifyReport
from tinytrain_compile.lower import LowerOptions, lower_nodes
from tinytrain_compile.lower.kernels import Features
from tinytrain_compile.quantize import QuantOptions, calibrate, prepare, quantise
from tinytrain_compile.reference import Trainer, run_reference
from tinytrain_compile.sparse import resolve_update
from tinytrain_compile.target import load_target
from tinytrain_compile.training import TrainingOptions, build_training
from tinytrain_compile.trial import settled_on
from tinytrain_compile.verify import run_steps, verify

MODELS: dict[str, Callable[[], onnx.ModelProto]] = {
    "cnn": nets.cnn,
    "max pool": lambda: nets.cnn(pool="MaxPool"),
    "overlapping": lambda: nets.cnn(pool="MaxPool", window=nets.OVERLAPPING),
    "qdq": nets.quantised,
    "islands": nets.islands,
    "padded": lambda: nets.cnn(window=f"{nets.OVERLAPPING}, count_include_pad = 1"),
    "mlp": models.mlp,
    "encoder": lambda: models.transformer(tokens=4, width=8, heads=2),
}
STEPS = 10


def kernels_of(train: TrainGraph, fpu: bool) -> KernelSet:
    return lower_nodes(train.graph.nodes, LowerOptions("net", Features(fpu=fpu), fuse_multiply_add=False))


def check_on(train: TrainGraph, *boards: str, steps: int = STEPS) -> dict[str, VerifyReport]:
    """Verify on boards in QEMU, or on "host" alone; kernels are lowered once with and once without an FPU."""
    lowered = cache(lambda fpu: kernels_of(train, fpu))
    reports: dict[str, VerifyReport] = {}
    for board in boards:
        core = "cortex-m7" if board == "host" else board
        made = chain.project(train, core, lowered(load_target(core).features.fpu))
        reports[board] = chain.check(made, core, "host" if board == "host" else "qemu", steps)
    return reports


def check_exact(reports: dict[str, VerifyReport], steps: int = STEPS) -> None:
    """Passed on every board, no byte different from numpy, and everywhere the same losses."""
    for board, report in reports.items():
        assert (report.result, report.steps, report.max_error) == ("pass", steps, 0.0), board
        assert report.message.startswith("host == reference: bit-exact"), board
        assert board == "host" or "== host: bit-exact   PASS" in report.message
        assert len(report.losses) == steps
        assert np.isfinite(report.losses).all() and len(set(report.losses)) > steps // 2
    assert len({report.losses for report in reports.values()}) == 1, "one integer truth for all cores"


# ---- small models ---------------------------------------------------------------------------------------------------


@needs_qemu
@pytest.mark.qemu
@pytest.mark.parametrize("name", ["cnn", "qdq"])
def test_all_cores_equal_numpy(name: str) -> None:
    reports = check_on(nets.int8_train(MODELS[name](), learning_rate=0.05), *chain.BOARDS)
    assert tuple(reports) == chain.BOARDS
    check_exact(reports)


@needs_qemu
@pytest.mark.qemu
@pytest.mark.parametrize("head", ["fp32", "int8"])
def test_a_hundred_steps_of_digits_on_all_cores(head: str) -> None:
    """The example's network and data: weights, biases, exponents, noise and losses equal numpy after every step."""
    folder = ROOT / "examples" / "digits"
    model = load_model(folder / "digits.onnx", FrontendOptions())
    graph = calibrate(model.graph, load_inputs(folder / "calib.npz", model))
    known = replace(model, graph=prepare(graph, head == "fp32"))
    update = resolve_update(known.graph, str(folder / "scheme.toml"))
    train = quantise(build_training(known, update, TrainingOptions(learning_rate=0.01)), QuantOptions())
    samples = load_samples(folder / "data.npz", known, train)
    reference = run_reference(train, samples, 100)
    lowered = cache(lambda fpu: kernels_of(train, fpu))
    losses: set[tuple[float, ...]] = set()
    for board in chain.BOARDS:
        core = load_target(board)
        made = chain.project(train, board, lowered(core.features.fpu))
        report = verify(made.bundle, core, samples, reference, "qemu", steps=100, batch=1)
        assert (report.result, report.steps, report.max_error) == ("pass", 100, 0.0), board
        losses.add(report.losses)
    assert len(losses) == 1 and len(set(*losses)) > 90


@needs_qemu
@pytest.mark.qemu
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("islands", {}),
        ("mlp", {"head": "int8"}),
        ("max pool", {"batch": 4}),
        ("overlapping", {"head": "int8"}),
        ("encoder", {"head": "int8"}),
        ("qdq", {"head": "int8", "batch": 4}),
        ("cnn", {"store": "q8.8"}),
        ("qdq", {"head": "int8", "batch": 4, "store": "q8.8"}),
        ("cnn", {"batch": 4, "accumulate": "inplace"}),
        ("cnn", {"optimizer": "momentum"}),
        ("qdq", {"optimizer": "momentum", "head": "int8", "batch": 4}),
        ("qdq", {"optimizer": "momentum", "store": "q8.8", "head": "int8"}),
        ("qdq", {"head": "int8", "batch": 3, "accumulate": "inplace", "store": "q8.8"}),
    ],
)
def test_variants_on_two_cores(name: str, options: dict[str, Any]) -> None:
    train = nets.int8_train(MODELS[name](), learning_rate=0.05, **options)
    check_exact(check_on(train, "cortex-m0plus", "cortex-m7"))


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("head", ["fp32", "int8"])
@pytest.mark.parametrize("name", MODELS)
def test_every_model_head_and_batch_on_the_host(name: str, head: str, batch: int) -> None:
    train = nets.int8_train(MODELS[name](), head=head, batch=batch, learning_rate=0.05)
    assert train.integer and not train.settled
    floats = nets.nodes_of(train, "SgdUpdate")
    assert (train.inverse_count is not None) == (batch > 1 and bool(floats))
    check_exact(check_on(train, "host", steps=5), 5)


SCHEMES = {
    "out": ("out", [1, 4, 5]),
    "in": ("in", [0, 2, 5]),
    "leading out": ("out", 2),
    "leading in": ("in", 4),
}


def scheme(folder: Path, *names: str, head: bool = True) -> str:
    """A scheme file: point and last take channel slices, deep its own, the head everything."""
    text = ""
    for layer, name in zip(("point/Conv", "last/Conv"), names, strict=True):
        axis, channels = SCHEMES[name]
        text += f'[[update]]\nlayer = "{layer}"\nweight = {channels}\naxis = "{axis}"\nbias = true\n'
    text += '[[update]]\nlayer = "deep/Conv"\nweight = [0, 3]\n'
    if head:
        text += '[[update]]\nlayer = "fc/Gemm"\nweight = "all"\nbias = true\n'
    path = folder / "scheme.toml"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("names", [("out", "in"), ("in", "out"), ("leading out", "leading in")])
def test_channel_slices(names: tuple[str, str], batch: int, tmp_path: Path) -> None:
    check_slices(names, tmp_path, batch=batch)


@pytest.mark.parametrize(
    "options",
    [
        {"store": "q8.8"},
        {"store": "q8.8", "batch": 2},
        {"optimizer": "momentum"},
        {"optimizer": "momentum", "batch": 2},
        {"optimizer": "momentum", "batch": 2, "accumulate": "inplace", "store": "q8.8"},
    ],
    ids=str,
)
def test_channel_slices_of_other_rules(options: dict[str, Any], tmp_path: Path) -> None:
    check_slices(("out", "in"), tmp_path, **options)


def check_slices(names: tuple[str, str], folder: Path, **options: Any) -> None:
    """Only the chosen channels are stored and trained, and numpy and host agree."""
    train = nets.int8_train(nets.cnn(), scheme(folder, *names), learning_rate=0.05, **options)
    stored = {v.name: v.shape for v in train.graph.state if v.dtype == "int8"}
    for layer, name, whole in (("point", names[0], (6, 1, 1, 6)), ("last", names[1], (12, 3, 3, 6))):
        axis, channels = SCHEMES[name]
        count = channels if isinstance(channels, int) else len(channels)
        expected = (count, *whole[1:]) if axis == "out" else (*whole[:3], count)
        assert stored[f"{layer}_weight.updated"] == expected
    assert stored["deep_weight.updated"] == (2, 3, 3, 1)
    check_exact(check_on(train, "host"))


@needs_qemu
@pytest.mark.qemu
def test_channel_slices_of_an_integer_head_on_a_board(tmp_path: Path) -> None:
    path = tmp_path / "scheme.toml"
    path.write_text(
        '[[update]]\nlayer = "fc/Gemm"\nweight = [1, 3]\naxis = "out"\nbias = true\n'
        '[[update]]\nlayer = "point/Conv"\nweight = 3\naxis = "in"\n'
    )
    train = nets.int8_train(nets.cnn(), str(path), head="int8", learning_rate=0.05)
    check_exact(check_on(train, "cortex-m33"))


def test_seeds_differ_in_the_rounding_only() -> None:
    """Another seed: other noise, hence other weights, but the same first loss."""
    trains = [nets.int8_train(nets.cnn(), seed=seed, learning_rate=0.05) for seed in (0, 1)]
    samples = random_samples(trains[0], STEPS, 0)
    first, second = (run_reference(train, samples, STEPS) for train in trains)
    assert first.losses[0] == second.losses[0]
    assert first.losses[-1] != second.losses[-1]
    check_exact(check_on(trains[1], "host"))


def test_a_checkpoint_holds_all_that_training_needs(tmp_path: Path) -> None:
    """The check program saves, loads and compares; exponents and noise are in the state that it saves."""
    train = nets.int8_train(nets.cnn(), learning_rate=0.05)
    made = chain.project(train, kernels=kernels_of(train, True))
    names = {slot.name: slot.dtype for slot in made.bundle.interface.state}
    assert names["noise"] == "int32"
    exponents = {node.inputs[0].name for node in nets.nodes_of(train, "ExponentUpdate")}
    assert len(exponents) == 10 and exponents <= set(names)
    result = run_steps(made.bundle, load_target("host"), random_samples(train, 4, 0), 4, None, 1, tmp_path)
    assert result.status == "ok"
    assert len(result.states) == 4
    moved = {name for name in names if result.states[0][name] != result.states[3][name]}
    assert {"stem_weight", "deep_weight", "fc_weight", "noise"} <= moved
    assert "learning_rate" not in moved


RESUMED = """#include "net_train.h"
#include <string.h>
static unsigned char saved[1 << 16];
static size_t at;
static _Alignas(16) unsigned char arenas[2][NET_ARENA_BYTES];
static int put(void *context, const void *data, size_t size)
{
    (void)context;
    memcpy(saved + at, data, size);
    at += size;
    return 0;
}
static int get(void *context, void *data, size_t size)
{
    (void)context;
    memcpy(data, saved + at, size);
    at += size;
    return 0;
}
int main(void)
{
    float losses[2];
    for (int i = 0; i < 2; ++i) {
        net_t *m;
        const net_label_t label[1] = {1};
        void *const mem[1] = {arenas[i]};
        const size_t size[1] = {NET_ARENA_BYTES};
        if (net_init(&m, mem, size) != NET_OK) {
            return 1;
        }
        at = 0; /* only the second instance goes on from a checkpoint */
        if (i == 1 && (net_save(m, put, NULL) != NET_OK || (at = 0, net_load(m, get, NULL)) != NET_OK)) {
            return 2;
        }
        for (int step = 0; step < 3; ++step) {
            for (size_t k = 0; k < NET_INPUT_ELEMENTS; ++k) {
                net_input(m)->values[k] = (int8_t)((int)(k * 37u + (unsigned)step * 11u) % 255 - 127);
            }
            if (net_train_step(m, label, &losses[i]) != NET_OK) {
                return 3;
            }
        }
    }
    return losses[0] == losses[1] && memcmp(arenas[0], arenas[1], NET_ARENA_BYTES) == 0 ? 0 : 4;
}
"""


def test_a_checkpoint_from_before_the_first_step_starts_like_a_fresh_model(tmp_path: Path) -> None:
    """The exponents are not known yet, and the checkpoint says so: the next step finds them as after m_init."""
    train = nets.int8_train(nets.cnn(), learning_rate=0.05)
    made = chain.project(train, kernels=kernels_of(train, True))
    write_files(tmp_path, made.bundle.files)
    (tmp_path / "resumed.c").write_text(RESUMED)
    build(["gcc", "-std=c11", *NUMERIC, "resumed.c", *sources(made.bundle), "-o", "resumed"], tmp_path)
    assert subprocess.run([tmp_path / "resumed"], check=False).returncode == 0


FAULTS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("const int32_t rounded = (value + 128) >> 8;", "const int32_t rounded = value >> 8;", {"store": "q8.8"}),
    ("weight * 256 + *fraction - move", "weight * 256 - move", {"store": "q8.8", "batch": 2}),
    ("(fine + noise) >> 8, -127", "(fine + noise / 256) >> 8, -127", {"optimizer": "momentum"}),
    ("31 + state[2] - unit", "31 + state[0] - unit", {"optimizer": "momentum", "batch": 2}),
    (
        "(weight * 256 - move + noise) >> 8",
        "(weight * 256 - move + noise / 256) >> 8",
        {"batch": 2, "accumulate": "inplace"},
    ),
)
"""(C of the runtime, a fault in it, the update rule that must show it)"""


@pytest.mark.parametrize(("sound", "broken", "options"), FAULTS, ids=lambda part: "" if isinstance(part, str) else None)
def test_a_fault_in_a_rounding_fails_the_check(sound: str, broken: str, options: dict[str, Any]) -> None:
    train = nets.int8_train(nets.cnn(), learning_rate=0.05, **options)
    made = chain.project(train, kernels=kernels_of(train, True))
    text = made.bundle.files["tt_runtime.h"]
    assert text.count(sound) == 1
    files = {**made.bundle.files, "tt_runtime.h": text.replace(sound, broken)}
    faulty = replace(made, bundle=replace(made.bundle, files=files))
    with pytest.raises(CompileError, match="E0601"):
        chain.check(faulty, "cortex-m7", "host", 5)
    chain.check(made, "cortex-m7", "host", 5)


# ---- the command line -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """(model file, calibration file) of the small CNN."""
    folder = tmp_path_factory.mktemp("cnn")
    np.savez(folder / "calib.npz", x=nets.calibration(nets.cnn()))
    return write(nets.cnn(), folder), str(folder / "calib.npz")


def int8(*arguments: str | Path) -> Outcome:
    return run(*arguments, "--quant", "int8")


def test_same_command_same_bytes(calibrated: tuple[str, str], tmp_path: Path) -> None:
    model, calib = calibrated
    for name in "ab":
        outcome = int8(model, "--calib", calib, "--verify", "host", "-o", tmp_path / name).check_success()
        assert "int8 weights at +-127" in outcome.out
    assert tree(tmp_path / "a") == tree(tmp_path / "b")
    report = json.loads((tmp_path / "a" / "report.json").read_text())
    assert report["quant"] == "int8"
    assert report["verify"]["result"] == "pass"
    assert report["verify"]["max_error"] == 0
    assert {row["stored"] for row in report["quant_tensors"] if row["kind"] == "activation"} == {"int8"}
    found = report["verify"]["saturations"]
    assert found["weights"] >= found["after"] >= 1 and found["before"] >= 6 + 6 + 6 + 12, "one in every channel"


@needs_qemu
@pytest.mark.qemu
def test_command_on_a_board(calibrated: tuple[str, str], tmp_path: Path) -> None:
    model, calib = calibrated
    options = ("--calib", calib, "--head", "int8", "--batch", "2", "--target", "cortex-m55", "--arena", "64KB")
    outcome = int8(model, *options, "--verify-steps", "10", "-o", tmp_path / "out").check_success()
    assert "host == reference: bit-exact" in outcome.out
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["verify"]["max_error"] == 0
    assert "== host: bit-exact   PASS" in report["verify"]["message"]
    assert report["memory"]["stack_measured_bytes"] <= report["memory"]["stack_bytes"]


def labelled(folder: Path) -> str:
    """A calibration file of the small CNN with labels."""
    x = nets.calibration(nets.cnn(), 12)
    np.savez(folder / "labelled.npz", x=x, y=np.arange(12) % 5)
    return str(folder / "labelled.npz")


def test_labelled_calibration_compiles_the_exponents_in(calibrated: tuple[str, str], tmp_path: Path) -> None:
    """No step has to find exponents, so the first one is like all others; and the errors of that data fit."""
    outs: list[str] = []
    for calib in (calibrated[1], labelled(tmp_path)):
        out = tmp_path / Path(calib).stem
        int8(calibrated[0], "--calib", calib, "--verify", "host", "--verify-steps", "5", "-o", out).check_success()
        assert json.loads((out / "report.json").read_text())["verify"]["max_error"] == 0
        outs.append(next(out.glob("*_train.c")).read_text())
    assert "tt_settle_first" in outs[0] and "bool first" in outs[0]
    assert "tt_settle_first" not in outs[1] and "first" not in outs[1].split("write_initial_state")[0]


@pytest.mark.parametrize("rules", [{}, {"optimizer": "momentum", "store": "q8.8"}, {"batch": 2}], ids=str)
def test_training_goes_on_from_compiled_in_exponents(rules: dict[str, Any]) -> None:
    """Only exponents of errors are known from data: those of velocities still find themselves on the board."""
    train = nets.int8_train(nets.cnn(), learning_rate=0.05, **rules)
    settled = settled_on(train, random_samples(train, 4, 4))
    shapes = {name: data.shape for name, data in train.graph.constants.items()}
    assert {name: data.shape for name, data in settled.graph.constants.items()} == shapes
    check_exact(check_on(settled, "host", steps=5), 5)


def test_exponents_from_data_hold_its_largest_errors() -> None:
    train = nets.int8_train(nets.cnn(), learning_rate=0.05)
    samples = random_samples(train, 6, 4)
    settled = settled_on(train, samples)
    assert settled.settled and not train.settled
    for i in range(6):
        own = Trainer(train)
        own.set_rate(0.0)
        own.step(samples.x[i : i + 1], samples.y[i : i + 1])
        for node in nets.nodes_of(train, "ExponentUpdate"):
            name = node.inputs[0].name
            assert settled.graph.constants[name][0] >= own.state[name][0]
            assert settled.graph.constants[name][1] == 0
    weights = {v.name for v in train.graph.state if v.dtype == "int8"}
    assert all(np.array_equal(settled.graph.constants[n], train.graph.constants[n]) for n in weights)


def test_report_compares_int8_with_float_on_the_users_data(calibrated: tuple[str, str], tmp_path: Path) -> None:
    """With labels accuracy, with a float model agreement; a QDQ model has no float form to compare with."""
    data = labelled(tmp_path)
    known: list[dict[str, Any]] = []
    cases = ((calibrated[0], ("--calib", data)), (calibrated[0], ("--calib", calibrated[1])))
    for index, (model, options) in enumerate((*cases, (write(nets.quantised(), tmp_path), ("--data", data)))):
        out = tmp_path / str(index)
        int8(model, *options, "--verify", "none", "-o", out).check_success()
        known.append(json.loads((out / "report.json").read_text())["agreement"])
    both, plain, qdq = known
    assert both["samples"] == 12 and plain["samples"] == 16
    assert both["top1_agreement"] >= 10 / 12 and 0 < both["output_rmse"] < 0.1 * both["output_rms"]
    assert 0 <= both["accuracy"] <= 1 and abs(both["accuracy"] - both["float_accuracy"]) <= 2 / 12
    assert plain["accuracy"] is None and plain["float_accuracy"] is None and plain["top1_agreement"] > 0.8
    assert qdq["accuracy"] is not None and qdq["top1_agreement"] is None and qdq["output_rmse"] is None


def test_percentiles_narrow_the_ranges(calibrated: tuple[str, str], tmp_path: Path) -> None:
    """An outlier of 50 in one sample stretches the input's range, unless ranges are percentiles."""
    x = nets.calibration(nets.cnn(), 200)
    x[0, 0, 0, 0] = 50.0
    np.savez(tmp_path / "outlier.npz", x=x)
    scales: list[float] = []
    for kind in ("minmax", "percentile"):
        out = tmp_path / kind
        options = ("--calib", tmp_path / "outlier.npz", "--calib-range", kind, "--verify", "none", "-o", out)
        int8(calibrated[0], *options).check_success()
        scales.append(json.loads((out / "report.json").read_text())["quant_tensors"][0]["scale"])
    assert scales[0] > 50 / 255 > 4 * scales[1]


def test_update_rules_on_the_command_line(calibrated: tuple[str, str], tmp_path: Path) -> None:
    model, calib = calibrated
    rules = ("--weight-store", "q8.8", "--optimizer", "momentum", "--batch", "2", "--accumulate", "inplace")
    int8(model, "--calib", calib, *rules, "--verify", "host", "-o", tmp_path / "out").check_success()
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["verify"]["max_error"] == 0
    assert (report["batch"], report["accumulate"], report["optimizer"]["name"]) == (2, "inplace", "momentum")
    kinds = {row["kind"] for row in report["quant_tensors"]}
    assert {"weight", "fraction", "velocity", "bias", "exponent"} <= kinds


def test_float_model_without_calibration(tmp_path: Path) -> None:
    outcome = int8(write(nets.cnn(), tmp_path), "-o", tmp_path / "out").check_error("E0306", 2)
    assert "--calib" in outcome.err
    assert not (tmp_path / "out").exists()


def test_quantised_model_needs_no_calibration(tmp_path: Path) -> None:
    int8(write(nets.quantised(), tmp_path), "--verify", "none", "-o", tmp_path / "out").check_success()


def test_fresh_head_of_a_quantised_model(tmp_path: Path) -> None:
    model = write(nets.quantised(), tmp_path)
    int8(model, "--classes", "3", "--verify", "host", "-o", tmp_path / "out").check_success()
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["verify"]["max_error"] == 0


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_only_sgd(optimizer: str, calibrated: tuple[str, str], tmp_path: Path) -> None:
    model, calib = calibrated
    outcome = int8(model, "--calib", calib, "--optimizer", optimizer, "-o", tmp_path / "out")
    outcome.check_error("E0101", 2)


def test_no_weight_decay(calibrated: tuple[str, str], tmp_path: Path) -> None:
    model, calib = calibrated
    outcome = int8(model, "--calib", calib, "--weight-decay", "0.1", "-o", tmp_path / "out")
    assert "--weight-decay" in outcome.check_error("E0101", 2).err


@pytest.mark.parametrize(
    "arrays",
    [
        {"y": np.zeros(3)},
        {"x": np.zeros((4, 3, 9, 9))},
        {"x": np.zeros((0, 3, 8, 8))},
        {"x": np.full((1, 3, 8, 8), np.nan)},
    ],
)
def test_calibration_data_that_does_not_fit(
    arrays: dict[str, Any], calibrated: tuple[str, str], tmp_path: Path
) -> None:
    np.savez(tmp_path / "calib.npz", **arrays)
    int8(calibrated[0], "--calib", tmp_path / "calib.npz", "-o", tmp_path / "out").check_error("E0105", 2)


# ---- real models ----------------------------------------------------------------------------------------------------


def real_report(folder: Path, name: str, scheme_name: str, arena: str, *more: str) -> dict[str, Any]:
    """report.json after ten steps in QEMU."""
    int8(
        *(SHARED / "models" / f"{name}.onnx", "--update", SHARED / "schemes" / f"{scheme_name}.toml", *more),
        *("--arena", arena, "--target", "cortex-m7", "--verify-steps", "10", "-o", folder / "out"),
    ).check_success()
    report = json.loads((folder / "out" / "report.json").read_text())
    verify = report["verify"]
    assert (verify["mode"], verify["result"], verify["steps"], verify["max_error"]) == ("qemu", "pass", 10, 0)
    assert "bit-exact   PASS" in verify["message"]
    return report


@needs_shared
@needs_qemu
@pytest.mark.qemu
def test_mcunet_49kb_in_256kb(tmp_path: Path) -> None:
    report = real_report(tmp_path, "mcunet-5fps-10c-qdq", "mcunet-5fps-49kb", "256KB")
    memory, flash = report["memory"], report["flash"]
    assert memory["transient_bytes"] <= 168_000
    assert memory["arena_bytes"] + memory["stack_bytes"] < 215_000
    assert memory["stack_measured_bytes"] <= memory["stack_bytes"]
    assert flash["code_bytes"] + flash["const_bytes"] < 664_000


@needs_shared
@needs_qemu
@pytest.mark.qemu
def test_mcunet_99kb_in_256kb(tmp_path: Path) -> None:
    memory = real_report(tmp_path, "mcunet-5fps-10c-qdq", "mcunet-5fps-99kb", "256KB")["memory"]
    assert memory["transient_bytes"] <= 168_000
    assert memory["arena_bytes"] <= 246_000


@needs_shared
@needs_qemu
@pytest.mark.qemu
@pytest.mark.parametrize(
    ("name", "scheme_name", "arena"),
    [("proxyless-w0.3-qdq", "proxyless-w0.3-98kb", "256KB"), ("mbv2-w0.35-qdq", "mbv2-w0.35-99kb", "320KB")],
)
def test_fresh_heads_of_mobile_networks(name: str, scheme_name: str, arena: str, tmp_path: Path) -> None:
    memory = real_report(tmp_path, name, scheme_name, arena, "--classes", "10")["memory"]
    assert memory["arena_bytes"] <= int(arena.removesuffix("KB")) * 1024
