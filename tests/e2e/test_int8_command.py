"""int8 on the command line: options, data and reports; the real models fit their budgets."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from testing.places import ROOT, SHARED
from tests.e2e import chain
from tests.e2e.broken import write
from tests.e2e.command import FILE, HERE, Outcome, run, tree
from tests.e2e.exact import check_exact, check_on
from tests.e2e.marks import needs_qemu, needs_shared
from tests.examples.pages import check_row, figures
from tests.quantize import nets
from tinytrain_compile.data.samples import random_samples
from tinytrain_compile.driver.trial import compare, with_exponents_of
from tinytrain_compile.options.compile_options import CompileOptions
from tinytrain_compile.reference.trainer import Trainer


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
    assert "fraction" in {row["kind"] for row in report["quant_tensors"]}, "a mixed store"
    found = report["verify"]["saturations"]
    assert found["weights"] >= found["after"] >= 1 and found["before"] >= 6 + 6 + 6 + 12, "one in every channel"


@needs_qemu
@pytest.mark.qemu
def test_command_on_a_board(calibrated: tuple[str, str], tmp_path: Path) -> None:
    model, calib = calibrated
    options = ("--calib", calib, "--head", "int8", "--batch", "2", "--target", "cortex-m55", "--arena", "64KB")
    outcome = int8(model, *options, "--verify-steps", "10", "-o", tmp_path / "out").check_success()
    assert outcome.agreed[:2] == (FILE, HERE) and outcome.agreed[2].startswith("C in QEMU ")
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["verify"]["max_error"] == 0
    assert report["verify"]["message"].endswith("   host bit-exact   QEMU bit-exact   PASS")
    assert report["memory"]["stack_measured_bytes"] <= report["memory"]["stack_bytes"]


@needs_qemu
@pytest.mark.qemu
@pytest.mark.parametrize("code", ["speed", "size"])
def test_dense_convolutions_on_vectors(code: str, tmp_path: Path) -> None:
    """The example has no 1x1 and no depthwise convolution: windows of its images are multiplied on vectors."""
    digits = ROOT / "examples" / "digits"
    flags = ("--calib", str(digits / "calib.npz"), "--target", "cortex-m55", "--code", code)
    int8(str(digits / "digits.onnx"), *flags, "-o", tmp_path / "out").check_success()
    kernels = "".join(path.read_text() for path in (tmp_path / "out").glob("digits_kernels*.c"))
    assert (tmp_path / "out" / "tt_mve.h").exists() == ("tt_conv8(" in kernels) == (code == "speed")
    assert not (tmp_path / "out" / "tt_mve_float.h").exists()  # its float head is compared to the bit, denormals too


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
    assert "tt_first_exponent" in outs[0] and "bool first" in outs[0]
    assert "tt_first_exponent" not in outs[1] and "bool first" not in outs[1]


@pytest.mark.parametrize(
    "rules",
    [{}, {"optimizer": "momentum", "store": "q8.8"}, {"store": "mixed", "rescale": True}, {"batch": 2}],
    ids=str,
)
def test_training_goes_on_from_compiled_in_exponents(rules: dict[str, Any]) -> None:
    """Only exponents of errors are known from data: those of velocities still find themselves on the board."""
    train = nets.int8_train(nets.cnn(), learning_rate=0.05, **rules)
    exponents_known = with_exponents_of(train, random_samples(train, 4, 4))
    shapes = {name: data.shape for name, data in train.graph.constants.items()}
    assert {name: data.shape for name, data in exponents_known.graph.constants.items()} == shapes
    check_exact(check_on(exponents_known, "host", steps=5), 5)


def test_exponents_from_data_hold_its_largest_errors() -> None:
    train = nets.int8_train(nets.cnn(), learning_rate=0.05)
    samples = random_samples(train, 6, 4)
    exponents_known = with_exponents_of(train, samples)
    assert exponents_known.exponents_known and not train.exponents_known
    for i in range(6):
        own = Trainer(train)
        own.set_rate(0.0)
        own.step(samples.x[i : i + 1], samples.y[i : i + 1])
        for node in nets.nodes_of(train, "ExponentUpdate"):
            name = node.inputs[0].name
            assert exponents_known.graph.constants[name][0] >= own.state[name][0]
            assert exponents_known.graph.constants[name][1] == 0
    weights = {v.name for v in train.graph.state if v.dtype == "int8"}
    assert all(np.array_equal(exponents_known.graph.constants[n], train.graph.constants[n]) for n in weights)


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


def test_nothing_to_compare_with_is_no_agreement(calibrated: tuple[str, str], tmp_path: Path) -> None:
    """A report has figures, or none: not a count of samples alone. Float models are not compared with themselves."""
    model, train = chain.imported(nets.cnn()), nets.float_train(nets.cnn())
    with_y, without = (CompileOptions(Path("net.onnx"), calib=Path(p)) for p in (labelled(tmp_path), calibrated[1]))
    assert compare(train, model, model.graph, without) is None
    found = compare(train, model, model.graph, with_y)
    assert found is not None and found.accuracy is not None and found.top1_agreement is None
    values = nets.float_train(nets.cnn(), loss="mse")
    np.savez(tmp_path / "values.npz", x=nets.calibration(nets.cnn(), 2), y=np.zeros((2, 5), np.float32))
    assert compare(values, model, model.graph, CompileOptions(Path("net.onnx"), data=tmp_path / "values.npz")) is None


@pytest.mark.parametrize(
    "flag", ["--calib calib.npz", "--calib-range percentile", "--head int8", "--weight-store sr8", "--rescale on"]
)
def test_int8_flags_need_int8(flag: str, calibrated: tuple[str, str], tmp_path: Path) -> None:
    outcome = run(calibrated[0], *flag.split(), "--dry-run").check_error("E0113", 2)
    assert flag.split()[0] in outcome.err and "--quant int8" in outcome.err
    run(calibrated[0], "--head", "fp32", "--rescale", "off", "--dry-run", "-o", tmp_path / "out").check_success()


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


def test_a_mixed_store_on_the_command_line(calibrated: tuple[str, str], tmp_path: Path) -> None:
    """The report names the weights with fractions and their bytes."""
    model, calib = calibrated
    int8(model, "--calib", calib, "--weight-store", "mixed", "--verify", "host", "-o", tmp_path / "out").check_success()
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["verify"]["max_error"] == 0
    rows = {row["name"]: row["kind"] for row in report["quant_tensors"]}
    fractions = {name.removesuffix(".fraction") for name, kind in rows.items() if kind == "fraction"}
    assert fractions == {"deep_weight", "point_weight"}
    assert [note for note in report["notes"] if "(90 of 900 B)" in note]


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
    outcome.check_error("E0113", 2)


def test_no_weight_decay(calibrated: tuple[str, str], tmp_path: Path) -> None:
    model, calib = calibrated
    outcome = int8(model, "--calib", calib, "--weight-decay", "0.1", "-o", tmp_path / "out")
    assert "--weight-decay" in outcome.check_error("E0113", 2).err


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
    name = "mcunet-5fps-10c-qdq"
    report = real_report(tmp_path, name, "mcunet-5fps-49kb", "256KB")
    check_row(
        "MCUNet int8", figures.LARGE["MCUNet int8"][1], report | {"verify": report["verify"] | {"steps": 3}}
    )  # ten here
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
    [
        ("proxyless-w0.3-qdq", "proxyless-w0.3-98kb", "256KB"),
        pytest.param("mbv2-w0.35-qdq", "mbv2-w0.35-99kb", "320KB", marks=pytest.mark.slow),
    ],
)
def test_fresh_heads_of_mobile_networks(name: str, scheme_name: str, arena: str, tmp_path: Path) -> None:
    memory = real_report(tmp_path, name, scheme_name, arena, "--classes", "10")["memory"]
    assert memory["arena_bytes"] <= int(arena.removesuffix("KB")) * 1024


@needs_shared
def test_a_plan_of_a_mobile_network_with_a_fresh_head_fits() -> None:
    """The other one, which trains in `make slow`; its float32 form trains in test_real_models.py."""
    flags = ("--update", SHARED / "schemes" / "mbv2-w0.35-99kb.toml", "--classes", "10", "--target", "cortex-m7")
    out = int8(SHARED / "models" / "mbv2-w0.35-qdq.onnx", *flags, "--arena", "320KB", "--dry-run").check_success().out
    assert int(re.findall(r"\nRAM +([\d,]+) B", out)[0].replace(",", "")) <= 320 * 1024


def test_a_few_bytes_short_sr8_is_a_way_out(calibrated: tuple[str, str], tmp_path: Path) -> None:
    flags = (
        calibrated[0],
        "--calib",
        calibrated[1],
        "--update",
        "all",
        "--remat",
        "off",
        "--stream",
        "off",
        "--dry-run",
    )
    needed = int(re.search(r"\nRAM +([\d,]+) B", int8(*flags).check_success().out)[1].replace(",", ""))  # type: ignore[index]
    short = (*flags, "--arena", str(needed - 8))
    failed = int8(*short).check_error("E0401", 3).err
    way = re.search(r"--weight-store sr8\s+-> ([\d,]+) B  costs some accuracy", failed.split("not enough alone")[0])
    assert way is not None, failed
    assert f"\nRAM        {way[1]} B" in int8(*short, "--weight-store", "sr8").check_success().out
    assert "--weight-store sr8" not in int8(*short[:-1], "100").check_error("E0401", 3).err, "it would not be enough"


def test_ways_out_keep_the_scheme_that_was_asked_for(tmp_path: Path) -> None:
    """The smaller optimizer is priced for the scheme itself, wherever its file lies."""
    digits = ROOT / "examples" / "digits"
    flags = ("--update", digits / "scheme.toml", "--optimizer", "momentum", "--arena", "27KB", "--remat", "off")
    failed = run(digits / "digits.onnx", *flags, "--dry-run").check_error("E0401", 3)
    assert re.search(r"--optimizer sgd\s+-> 19,008 B  momentum state costs 14928 B", failed.err), failed.err
