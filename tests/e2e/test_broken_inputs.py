"""Every broken input gets its own error id and exit code, one line, no traceback; nothing is written."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from testing.networks import models
from tests.e2e.broken import FILES, MODELS, OPTIONS, Broken, write
from tests.e2e.command import Outcome, run, run_process, tree
from tinytrain_compile.errors import ERRORS
from tinytrain_compile.files.resources import data_dir

CASES = [*MODELS, *OPTIONS, *FILES]


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An output folder of an earlier, successful run."""
    folder = tmp_path_factory.mktemp("earlier")
    run(write(models.mlp(), folder), "-o", folder / "out", "--verify", "none").check_success()
    return folder / "out"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_broken_input(case: Broken, earlier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in").mkdir()
    monkeypatch.chdir(tmp_path / "in")
    arguments = case.make(tmp_path / "in")
    outcome = run(*arguments, "-o", tmp_path / "fresh").check_error(case.error_id, case.exit_code)
    assert ERRORS[case.error_id].exit_code == case.exit_code
    assert not re.search(r"/tmp/|\.py\b", outcome.err.replace(str(tmp_path), "")), "speaks of the user's things only"
    shutil.copytree(earlier, tmp_path / "earlier")
    before = tree(tmp_path)
    again = run(*arguments, "-o", tmp_path / "earlier").check_error(case.error_id, case.exit_code)
    assert again == outcome
    assert tree(tmp_path) == before, "nothing was written, the earlier output is as it was"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["earlier", "in"]


def test_cases_cover_the_issue() -> None:
    assert len(MODELS) >= 30
    assert len({case.error_id for case in CASES}) >= 40


@pytest.mark.parametrize("case", [MODELS[5], MODELS[16], OPTIONS[4]], ids=lambda case: case.name)
def test_broken_input_in_a_process_of_its_own(case: Broken, tmp_path: Path) -> None:
    arguments = case.make(tmp_path)
    inside = run(*arguments, "-o", tmp_path / "out")
    assert run_process(*arguments, "-o", tmp_path / "out", folder=tmp_path) == inside
    inside.check_error(case.error_id, case.exit_code)


def test_all_unsupported_operators_are_listed(tmp_path: Path) -> None:
    case = next(case for case in MODELS if case.name == "unknown operators")
    first, *lines = run(*case.make(tmp_path)).err.splitlines()
    assert "2 of 6 nodes cannot be imported: Det; Frobnicate" in first
    det, frobnicate = re.split(r"(?=fc2/Tanh)", " ".join(" ".join(lines).split()))
    assert "fc1/Relu" in det and "Det" in det and "nearest supported: none, see --list-ops" in det
    assert "Frobnicate" in frobnicate


def test_a_spectrogram_is_left_to_the_firmware(tmp_path: Path) -> None:
    nodes = [helper.make_node("STFT", ["audio", "step", "", "length"], ["y"], name="stft")]
    sizes = [numpy_helper.from_array(np.array(size), name) for size, name in ((8, "step"), (16, "length"))]
    ends = [helper.make_tensor_value_info(*end) for end in (("audio", 1, [1, 64, 1]), ("y", 1, [1, 7, 9, 2]))]
    graph = helper.make_graph(nodes, "net", ends[:1], ends[1:], sizes)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "n.onnx")
    failed = run(tmp_path / "n.onnx").check_error("E0501", 4)
    assert "the network behind it, with x of spectra that the firmware computes" in " ".join(failed.err.split())


# ---- output folders -------------------------------------------------------------------------------------------------


def compile_into(folder: Path, out: Path) -> Outcome:
    return run(write(models.mlp(), folder), "-o", out, "--verify", "none")


def test_out_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    compile_into(tmp_path, tmp_path / "out").check_error("E0104", 2)
    assert (tmp_path / "out").read_text() == "mine"


def test_out_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    compile_into(tmp_path, tmp_path / "file" / "out").check_error("E0104", 2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "net.onnx"]


def test_out_cannot_be_made(tmp_path: Path) -> None:
    compile_into(tmp_path, Path("/proc/nowhere/out")).check_error("E0104", 2)
    compile_into(tmp_path, tmp_path / ("x" * 300)).check_error("E0104", 2)


@pytest.mark.parametrize("names", [("report.json",), ("net_train.c",), ("plan.json", "tt_runtime.h", "report.json")])
def test_out_is_somebody_elses(names: tuple[str, ...], tmp_path: Path) -> None:
    """Also where the names are those by which versions without a manifest knew their own."""
    out = tmp_path / "out"
    out.mkdir()
    for name in names:
        (out / name).write_text("{}")
    before = tree(tmp_path)
    outcome = compile_into(tmp_path / "..", out).check_error("E0104", 2)
    assert any(name in outcome.err for name in names) and "--force" in outcome.err
    assert tree(tmp_path) == before
    run(write(models.mlp(), tmp_path), "-o", out, "--verify", "none", "--force").check_success()


def test_every_input_may_lie_in_the_output_folder(tmp_path: Path) -> None:
    """Model, its weights, data, calibration, lock, kernels, scheme and target, and things that are no inputs."""
    out = tmp_path / "out"
    (out / ".git").mkdir(parents=True)
    (out / "notes" / "deep").mkdir(parents=True)
    (out / "notes" / "deep" / "a.txt").write_text("mine")
    (out / "link").symlink_to("nowhere")
    x, y = np.random.default_rng(0).standard_normal((4, 12)), np.arange(4)
    for name in ("calib.npz", "data.npz"):
        np.savez(out / name, x=x, y=y)
    onnx.save(models.mlp(), out / "net.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0)
    (out / "scheme.toml").write_text('[[update]]\nlayer = "fc3/Gemm"\nbias = true\nweight = "all"\n')
    shutil.copy(data_dir("targets") / "cortex-m4.toml", out / "board.toml")
    (out / "own").mkdir()
    (out / "own" / "k.c").write_text("/* nothing */\n")
    kernel = '[[kernel]]\nop = "Gemm"\nfunction = "f"\nfiles = ["own/k.c"]\nlayers = ["none"]\n'
    (out / "kernels.toml").write_text(kernel)
    flags = ["-o", out, "--verify", "none"]
    files = ["--data", out / "data.npz", "--target", out / "board.toml"]
    files += ["--kernels", out / "kernels.toml", "--update", out / "scheme.toml"]
    mine = tree(out)
    run(out / "net.onnx", *flags, *files).check_success()
    run(out / "net.onnx", *flags, "--quant", "int8", "--calib", out / "calib.npz").check_success()
    run(out / "net.onnx", *flags, "--quant", "int8", "--calib", out / "calib.npz").check_success()
    shutil.copy(out / "plan.json", out / "my.lock")
    mine = {**mine, "my.lock": tree(out)["my.lock"]}
    for lock in ("my.lock", "plan.json"):
        arguments = [out / "net.onnx", *flags, "--quant", "int8", "--calib", out / "calib.npz", "--lock", out / lock]
        run(*arguments).check_success()
    after = tree(out)
    assert {path: after[path] for path in mine} == mine
    assert (out / "link").is_symlink()


def test_out_is_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "real")
    compile_into(tmp_path, tmp_path / "out").check_error("E0104", 2)
    assert list((tmp_path / "real").iterdir()) == []


def test_out_is_replaced_as_a_whole(tmp_path: Path) -> None:
    """An earlier output and an empty folder are replaced; files of the earlier one do not linger."""
    (tmp_path / "out").mkdir()
    run(write(models.mlp(), tmp_path, "other.onnx"), "-o", tmp_path / "out", "--verify", "none").check_success()
    (tmp_path / "other.onnx").unlink()
    compile_into(tmp_path, tmp_path / "out").check_success()
    assert not list((tmp_path / "out").glob("other*"))
    compile_into(tmp_path, tmp_path / "again").check_success()
    assert tree(tmp_path / "out") == tree(tmp_path / "again")
    shutil.rmtree(tmp_path / "again")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["net.onnx", "out"], "no temporary folder is left"


# ---- names that must work -------------------------------------------------------------------------------------------

HOSTILE = [
    'y;*/ system("x") /*',
    "while",
    "int32_t",
    "NULL",
    "\N{SNOWMAN}\N{ROCKET}",
    "a" * 300,
    "quo\"te'%s\\",
    "new\nline\t*/",
    "??/",
    " ",
    "header",
    "AT_x",
    "F32",
]


def renamed(model: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """The same model with a name in front of every node's and value's own, and alone as the graph's."""
    graph = model.graph
    graph.name = name
    for item in (*graph.initializer, *graph.input, *graph.output):
        item.name = f"{name}{item.name}"
    for node in graph.node:
        node.name = f"{name}{node.name}"
        node.input[:] = [f"{name}{text}" for text in node.input]
        node.output[:] = [f"{name}{text}" for text in node.output]
    return model


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_names_compile_and_train(name: str, tmp_path: Path) -> None:
    path = write(renamed(models.mlp(), name), tmp_path)
    outcome = run(path, "-o", tmp_path / "out", "--verify", "host").check_success()
    assert "PASS" in outcome.out
    for source in (tmp_path / "out").rglob("*.[ch]"):
        text = source.read_text()
        assert "system(" not in re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
        assert max(map(len, text.splitlines())) < 400


@pytest.mark.parametrize("name", ["while", "NULL", "int8", "class", "header", "7 seas", "\N{SNOWMAN}", "a" * 200, "*"])
def test_hostile_file_names_compile_and_train(name: str, tmp_path: Path) -> None:
    path = write(models.mlp(), tmp_path, f"{name}.onnx")
    assert "PASS" in run(path, "-o", tmp_path / "out", "--verify", "host").check_success().out


def test_infinite_scalar_compiles(tmp_path: Path) -> None:
    """A single infinite number is accepted by the guard, so the C must be able to say it."""
    model = models.mlp()
    model.graph.initializer.append(numpy_helper.from_array(np.array([np.inf], np.float32), "bound"))
    inverse = onnx.helper.make_node("Div", ["fc2_tanh", "bound"], ["nothing"], "inverse")
    model.graph.node.append(inverse)
    next(node for node in model.graph.node if node.name == "fc3/Gemm").input[0] = "nothing"
    outcome = run(write(model, tmp_path), "-o", tmp_path / "out", "--verify", "host", "--update", "head")
    assert "PASS" in outcome.check_success().out
