"""The command line: information flags, dry runs, dumps, sizes, exit codes, encodings."""

from __future__ import annotations

import io
import json
import re
from dataclasses import fields
from pathlib import Path

import click
import numpy as np
import pytest

from testing.graph_text import parse_graph
from testing.networks import models
from tests.e2e import chain
from tests.e2e.broken import write
from tests.e2e.command import run, run_process
from tests.e2e.marks import needs_qemu
from tinytrain_compile import __version__, compilation
from tinytrain_compile.cli import command
from tinytrain_compile.cli.contribution import contribution
from tinytrain_compile.cli.export import export
from tinytrain_compile.cli.finetune import finetune
from tinytrain_compile.cli.python_options import options_from
from tinytrain_compile.driver import pipeline
from tinytrain_compile.driver.pipeline import Result
from tinytrain_compile.errors import ERRORS, CompileError
from tinytrain_compile.frontend import FrontendOptions
from tinytrain_compile.ir.text import print_graph
from tinytrain_compile.ir.types import Attrs
from tinytrain_compile.ops.base import OPS, Split, attribute_types
from tinytrain_compile.ops.conv import ConvAttrs
from tinytrain_compile.ops.linear import GemmAttrs
from tinytrain_compile.ops.loss import NllAttrs
from tinytrain_compile.ops.names import names_of
from tinytrain_compile.ops.pool import PoolAttrs
from tinytrain_compile.ops.update import SgdAttrs
from tinytrain_compile.options.compile_options import OPTIONS, CompileOptions
from tinytrain_compile.options.option import (
    COMMON_OPTIONS,
    GROUPS,
    meant_kilobytes,
    parse_plans,
    parse_shapes,
    parse_size,
)
from tinytrain_compile.target.loader import list_boards, list_targets
from tinytrain_compile.training import TrainingOptions, fuse_updates

NESTED = {kind.__name__: kind for kind in (Attrs, Split, ConvAttrs, GemmAttrs, NllAttrs, PoolAttrs, SgdAttrs)}
CONTRACT_FLAGS = """--arena --target --loss --label --optimizer --lr --momentum --weight-decay --update --batch --quant
--input-shape --input-layout --verify --verify-steps --count --data --seed --report --dry-run --dump-after
--list-targets --list-ops --explain --color --remat --code --flash-budget -v"""


@pytest.fixture
def mlp(tmp_path: Path) -> str:
    return write(models.mlp(), tmp_path)


# ---- information ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_shows_every_flag(flag: str) -> None:
    text = run(flag).check_success().out
    assert "tinytrain-compile model.onnx --arena 256KB --target cortex-m7" in text
    assert [name for name in CONTRACT_FLAGS.split() if not re.search(rf"{name}\b", text)] == []
    assert max(map(len, text.splitlines())) <= 120


def sections(text: str) -> dict[str, list[str]]:
    """Title -> the long flags of its rows, of --help."""
    _, *parts = re.split(r"^(\S.*):\n", text[text.index("Example:") :], flags=re.MULTILINE)
    pairs = zip(parts[::2], parts[1::2], strict=True)
    return {title: re.findall(r"^  (?:-\w, )?(--[a-z0-9-]+)", rows, re.MULTILINE) for title, rows in pairs}


def test_help_has_every_option_in_one_group() -> None:
    shown = sections(run("--help").check_success().out)
    assert list(shown) == list(GROUPS.values())
    flags = [flag for rows in shown.values() for flag in rows]
    known = [item.opts[-1] for item in command.command.params if isinstance(item, click.Option)]
    assert sorted(flags) == sorted([*known, "--help"])
    assert {OPTIONS[name].flag for name in OPTIONS} <= set(flags)
    for name, option in OPTIONS.items():
        assert option.flag in shown[GROUPS[option.group]], name


def test_the_first_group_has_the_main_options() -> None:
    first, *_ = sections(run("--help").check_success().out).values()
    assert len(first) == COMMON_OPTIONS == 10
    assert first[:3] == ["--out", "--target", "--arena"]


@pytest.mark.parametrize("of", [command.command, contribution, export, finetune])
def test_help_is_plain_english(of: click.Command) -> None:
    """At most two sentences of at most 25 words, which begin with a verb or a name, without noun clauses."""
    for option in (item for item in of.params if isinstance(item, click.Option)):
        text = re.sub(r" \[default: .*\]$", "", option.help or "")
        sentences = re.split(r"(?<=[^.][.!?])\s+", text)
        assert len(sentences) <= 2, option.name
        assert max(len(sentence.split()) for sentence in sentences) <= 25, option.name
        assert re.search(r"^Of |^For what|\bwhat\b|\bwhere\b", text, re.IGNORECASE) is None, option.name


def test_an_option_is_explained_and_read() -> None:
    """Every one has a help text, and a module that asks for its field."""
    package = Path(pipeline.__file__).parent.parent
    declared = package / "driver" / "options.py"
    texts = [path.read_text() for path in package.rglob("*.py") if path != declared]
    taken = {item.name for kind in (FrontendOptions, TrainingOptions) for item in fields(kind)}
    for name, option in OPTIONS.items():
        assert option.help, name
        read = any(re.search(rf"\b(o|options|asked)\.{name}\b", text) for text in texts)
        assert read or name in taken, name
    assert all(option.help for option in command.command.params if isinstance(option, click.Option))


def test_defaults_of_the_command_are_those_of_the_fields(mlp: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[CompileOptions] = []
    monkeypatch.setattr(compilation, "compile_model", lambda options, _: seen.append(options) or Result(None))
    run(mlp).check_success()
    assert seen == [CompileOptions(Path(mlp))]


def test_version() -> None:
    assert __version__ in run("--version").check_success().out


def test_list_targets() -> None:
    lines = run("--list-targets").check_success().out.splitlines()
    names = tuple(line.split()[0] for line in lines if line)
    assert names == (*list_targets(), "Boards:", *list_boards())
    assert len(lines) == len(list_targets()) + 2 + len(list_boards())
    unverified = [line.split()[0] for line in lines if line.endswith("(not verified on this core)")]
    assert unverified == ["cortex-m85", "ek-ra8m1", "esp32-s3"]
    assert all(len(line.split(maxsplit=1)[1]) > 20 for line in lines if len(line.split()) > 1)


def test_list_ops() -> None:
    text = run("--list-ops").check_success().out
    onnx_ops = text.splitlines()[0].removeprefix("ONNX operators: ").split(", ")
    assert {"Conv", "Gemm", "MatMul", "SoftmaxCrossEntropyLoss", "LayerNormalization"} <= set(onnx_ops)
    assert len(onnx_ops) >= 48
    for name in OPS:
        assert re.search(rf"^{name}  +\S", text, re.MULTILINE), name


@pytest.mark.parametrize("code", ERRORS)
def test_explain(code: str) -> None:
    text = run("--explain", code).check_success().out
    kind = ERRORS[code]
    assert text.startswith(f"{code}: {kind.title} (exit code {kind.exit_code})\n\n")
    assert kind.explanation in text
    assert run("--explain", code.lower()).out == text
    assert re.fullmatch(r"E0[1-9]\d\d", code)
    group = {"E01": 2, "E02": 2, "E03": 2, "E04": 3, "E05": 4, "E06": 5, "E09": 1}[code[:3]]
    assert kind.exit_code == group


def test_explain_unknown() -> None:
    run("--explain", "E9999").check_error("E0101", 2)


def test_no_arguments() -> None:
    outcome = run().check_error("E0101", 2)
    assert "MODEL" in outcome.err


# ---- compiling ------------------------------------------------------------------------------------------------------


def test_success_block_and_files(mlp: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    out = Path("out")
    text = run(Path(mlp).name, "--verify", "host", "--arena", "64KB").check_success().out
    lines = text.splitlines()
    assert len(list(filter(None, lines))) <= 25
    assert re.search(r"^RAM +[\d,]+ B of 65,536", text, re.MULTILINE)
    assert re.search(r"^checks +model file vs numpy reference +max error \S+ +ok$", text, re.MULTILINE)
    assert re.search(r"^ +C on this machine vs numpy reference +max error \S+ +ok$", text, re.MULTILINE)
    count = sum(path.is_file() for path in out.rglob("*"))
    assert lines[0] == f"net.onnx for cortex-m7, fp32              PASS on this machine   out/ ({count} files)"
    assert "\nnext       out/net_train.h " in text and "\n           out/report.html " in text
    assert lines[-2] == "try        tinytrain-compile finetune net.onnx --data FILE.npz"
    assert re.fullmatch(r"digest     sha256 [0-9a-f]{16}", lines[-1])
    again = run(Path(mlp).name, "--verify", "none", "--epochs", "3", "-o", "new").check_success().out.splitlines()
    assert again[-2] == "later      tinytrain-compile export net.onnx --project new --checkpoint FILE"
    names = {path.name for path in out.iterdir()}
    assert {"net_train.h", "net_train.c", "net_kernels.c", "net_weights.c", "tt_runtime.h"} <= names
    assert {"CMakeLists.txt", "plan.json", "report.json", "report.html", "verify"} <= names
    report = json.loads((out / "report.json").read_text())
    assert report["verify"]["result"] == "pass"
    assert report["memory"]["arena_limit_bytes"] == 65536
    assert report["memory"]["persistent_bytes"] + report["memory"]["transient_bytes"] == report["memory"]["arena_bytes"]


def test_reports_on_request(mlp: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    quiet = run(mlp, "-o", "out", "--verify", "none", "--report", "json").check_success()
    assert re.fullmatch(r"net\.onnx for cortex-m7, fp32 +NOT CHECKED   out/ \(\d+ files\)\n", quiet.out)
    assert (tmp_path / "out" / "report.json").is_file()
    assert not (tmp_path / "out" / "report.html").exists()


def test_dry_run_writes_nothing(mlp: str, tmp_path: Path) -> None:
    text = run(mlp, "-o", tmp_path / "out", "--dry-run").check_success().out
    assert text.splitlines()[0].endswith("   nothing written (--dry-run)")
    assert "\nRAM  " in text and "\nnext  " not in text
    assert [path.name for path in tmp_path.iterdir()] == ["net.onnx"]


def test_dry_run_exit_codes(mlp: str) -> None:
    run(mlp, "--dry-run", "--arena", "100").check_error("E0401", 3)


def test_verbose_lists_layers_and_steps(mlp: str, tmp_path: Path) -> None:
    quiet = run(mlp, "-o", tmp_path / "out", "--dry-run", "--update", "head").out
    loud = run(mlp, "-o", tmp_path / "out", "--dry-run", "--update", "head", "-v").out
    added = [line for line in loud.splitlines() if line not in quiet.splitlines()]
    begin = next(index for index, line in enumerate(added) if line.split()[0] == "step")
    layers, steps = " ".join(added[:begin]).split("layer "), added[begin + 1 :]
    assert [line.split()[0] for line in layers[1:]] == ["fc1/Gemm:", "fc2/Gemm:", "fc3/Gemm:"]
    assert " elements=0 " in layers[1] and " elements=44 " in layers[3]
    assert added[begin].split() == ["step", "node", "op", "phase", "live"]
    numbers = [line.split()[0] for line in steps if not line.split()[0].startswith("frees")]
    assert numbers == [str(number) for number in range(len(numbers))] and len(numbers) > 5


@pytest.mark.parametrize("stage", pipeline.STAGES)
def test_dump_after(stage: str, mlp: str, tmp_path: Path) -> None:
    text = run(mlp, "-o", tmp_path / "out", "--dump-after", stage, "--update", "head").check_success().out
    assert not (tmp_path / "out").exists()
    if stage == "plan":
        plan = json.loads(text)
        assert plan["arena_bytes"] > 0
        return
    model = models.mlp()
    model.graph.name = "net"
    known = chain.imported(model)
    wanted = known.graph if stage == "frontend" else fuse_updates(chain.train_graph(known, "head")).graph
    assert text == print_graph(wanted, names_of)
    again = parse_graph(text, attribute_types(), wanted.constants, NESTED)
    assert print_graph(again, names_of) == text


def test_automatic_update_says_what_it_chose(mlp: str, tmp_path: Path) -> None:
    everything = run(mlp, "--dry-run", "--verify", "none").out
    assert re.search(r"^trains .*--update auto: all", everything, re.MULTILINE)
    some = run(mlp, "--dry-run", "--arena", "1000").out
    assert re.search(r"^trains +\d of 3 layers, .*\s+--update auto: update\.toml$", some, re.MULTILINE)
    assert re.search(r"^gain +\d+\.\d \(prior: ", some, re.MULTILINE) and "PROVEN BEST" in some


@pytest.mark.parametrize("flags", [("--verify", "host"), ("--verify", "none"), ("--verify-steps", "1")])
def test_counting_needs_the_emulator_and_two_steps(flags: tuple[str, ...], mlp: str, tmp_path: Path) -> None:
    outcome = run(mlp, "--count", *flags, "-o", tmp_path / "out").check_error("E0113", 2)
    assert "--count: needs QEMU and two steps" in outcome.err
    assert not (tmp_path / "out").exists()


@needs_qemu
@pytest.mark.qemu
def test_counted_instructions(mlp: str, tmp_path: Path) -> None:
    outcome = run(mlp, "--count", "-o", tmp_path / "out").check_success()
    work = json.loads((tmp_path / "out" / "report.json").read_text())["work"]
    assert sum(kernel["instructions"] for kernel in work["kernels"]) <= work["train_step_instructions"]
    assert all(kernel["instructions"] > kernel["macs"] for kernel in work["kernels"])
    assert any(kernel["macs"] > 0 for kernel in work["kernels"])
    assert 0 < work["infer_instructions"] < work["train_step_instructions"]
    assert f"{work['train_step_instructions']:,} instructions in step 1" in outcome.out


def test_progress_only_on_a_terminal(mlp: str, tmp_path: Path) -> None:
    outcome = run_process(mlp, "-o", tmp_path / "out", "--verify", "none").check_success()
    assert "\x1b" not in outcome.out
    assert all("\x1b" not in line and "\r" not in line for line in outcome.stages)


def test_a_pipe_gets_one_line_for_each_stage(mlp: str, tmp_path: Path) -> None:
    """On stderr; counts are for a line that changes, so they are left out."""
    told = run(mlp, "-o", tmp_path / "out", "--verify", "none").check_success().stages
    assert [line.partition("] ")[2] for line in told] == [
        "reading the model",
        "planning",
        "comparing the file with what was imported",
        "comparing a training step with the derivative of the file",
        "lowering kernels",
        "writing",
    ]
    shares = [int(line[1:5].rstrip("%")) for line in told]
    assert shares == sorted(shares) and shares[0] == 0 and shares[-1] < 100


def test_planning_counts_what_it_has_tried(mlp: str) -> None:
    told = list[str]()
    options = options_from(mlp, {"dry_run": True, "arena": "1KB"})
    pipeline.make_project(options, lambda what, _share: told.append(what))
    counts = [re.fullmatch(r"planning, ([\d,]+) plans?(?:, ([\d,]+) orders?)?.*", text) for text in told]
    plans, orders = ([int((one[at] or "0").replace(",", "")) for one in counts if one] for at in (1, 2))
    assert plans == sorted(plans) and plans[-1] > 5 and orders == sorted(orders) and orders[-1] >= plans[-1] // 2


@pytest.mark.parametrize("columns", [40, 60, 80])
def test_progress_is_one_line_of_the_terminal(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts that have no room are left out, the last one first; nothing is cut within a word."""
    from tinytrain_compile.cli.terminal import Terminal

    monkeypatch.setenv("COLUMNS", str(columns))
    err = TerminalStream()
    monkeypatch.setattr("sys.stderr", err)
    terminal = Terminal("never", False)
    terminal.progress("planning, 123 plans, 4,567 orders, 12.3 M nodes, 45 solver runs", 0.5)
    terminal.clear()
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", err.getvalue())
    assert max(map(len, re.split(r"[\r\n]+", shown))) <= columns
    assert "planning, 123 plans" in shown or (columns == 40 and "planning" in shown)
    assert ("12.3 M nodes" in shown) == (columns == 80) and "solver" not in shown


def test_no_text_is_taken_for_markup(mlp: str, tmp_path: Path) -> None:
    """`last:100: all` was printed as "last" and an emoji; names of files and tensors are printed as they are, too."""
    odd = Path(mlp).rename(tmp_path / "[bold]:100:.onnx")
    for color in ("always", "never"):
        said = run(odd, "--update", "last:100", "--dry-run", "-v", "--color", color).check_success().out
        assert "--update last:100\n" in said and said.startswith("[bold]:100:.onnx for ")


def test_progress_shows_text_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    from tinytrain_compile.cli.terminal import Terminal

    err = TerminalStream()
    monkeypatch.setattr("sys.stderr", err)
    terminal = Terminal("never", False)
    terminal.progress("[b]:100:[/b] for arena", 0.5)
    terminal.clear()
    assert "[b]:100:[/b] for arena" in err.getvalue()


class TerminalStream(io.StringIO):
    """A stderr that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_color_can_be_forced_and_forbidden(mlp: str) -> None:
    assert "\x1b" not in run(mlp, "--dry-run", "--color", "never").check_success().out
    run(mlp, "--dry-run", "--color", "always").check_success()


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_names_that_the_terminal_cannot_show(encoding: str, tmp_path: Path) -> None:
    model = models.mlp()
    for node in model.graph.node:
        node.name = f"\N{ROCKET}{node.name}"
    path = write(model, tmp_path, "\N{SNOWMAN}.onnx")
    environment = {"PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"}
    arguments = (path, "-o", tmp_path / "out", "--verify", "none", "-v")
    outcome = run_process(*arguments, environment=environment).check_success()
    assert "\\U0001f680fc1/Gemm" in outcome.out
    failed = run_process(path, "--update", "nothing", "--dry-run", environment=environment)
    failed.check_error("E0301", 2)


def test_data_file_feeds_the_verification(tmp_path: Path) -> None:
    path = write(models.ds_cnn(4, 1, (12, 6)), tmp_path)
    x = np.random.default_rng(0).standard_normal((2, 1, 12, 6))
    np.savez(tmp_path / "data.npz", x=x, y=np.array([3, 11]))
    out = tmp_path / "out"
    run(path, "-o", out, "--verify", "host", "--data", tmp_path / "data.npz").check_success()
    words = np.frombuffer((out / "verify" / "vectors.bin").read_bytes(), "<f4")
    pixels = x[0].transpose(1, 2, 0).ravel().astype(np.float32)
    np.testing.assert_array_equal(words[5 : 5 + 72], pixels)
    labels = words.view("<i4")[5 + 72 :].reshape(3, 73)[:, 72]
    assert labels.tolist() == [3, 11, 3]


@pytest.mark.parametrize(("loss", "shape"), [("mse", (3, 4)), ("bce", (3, 4))])
def test_data_file_with_values(loss: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    path = write(models.mlp(), tmp_path)
    np.savez(tmp_path / "data.npz", x=np.zeros((3, 12)), y=np.full(shape, 0.25))
    arguments = (path, "-o", tmp_path / "out", "--verify", "host", "--data", tmp_path / "data.npz", "--loss", loss)
    run(*arguments).check_success()


def test_ignored_labels_are_data_too(tmp_path: Path) -> None:
    path = write(models.with_loss(models.mlp(), ignore=-1), tmp_path)
    np.savez(tmp_path / "data.npz", x=np.ones((2, 12)), y=np.array([-1, 2]))
    arguments = (path, "-o", tmp_path / "out", "--verify", "host", "--data", tmp_path / "data.npz")
    run(*arguments).check_success()
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["verify"]["losses"][0] == 0.0
    assert report["verify"]["losses"][1] > 0.0


# ---- endings --------------------------------------------------------------------------------------------------------


def test_internal_error_is_one_line(mlp: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_arguments: object) -> None:
        raise KeyError("several\nlines of \x1b[31mtrouble")

    monkeypatch.setattr(pipeline, "load_target", broken)
    outcome = run(mlp).check_error("E0901", 1)
    assert "KeyError" in outcome.err
    loud = run(mlp, "-v")
    assert loud.exit_code == 1
    assert "Traceback" in loud.err


def test_interrupt(mlp: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(pipeline, "load_target", interrupted)
    outcome = run(mlp)
    assert (outcome.exit_code, outcome.out) == (130, "")
    assert outcome.err.split("\n") == ["", "interrupted; nothing was written", ""]  # the first ends the line of ^C


def test_every_exit_code_is_documented() -> None:
    assert {kind.exit_code for kind in ERRORS.values()} == {1, 2, 3, 4, 5}
    assert (command.EXIT_INTERNAL, command.EXIT_INPUT) == (1, 2)


# ---- parsing --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "size"),
    [
        *(("256KB", 262144), ("256KiB", 262144), ("262144", 262144), ("256kb", 262144), ("256 KB", 262144)),
        *(("1MB", 1048576), ("2MiB", 2097152), ("1", 1), ("1B", 1), ("4k", 4096), ("3m", 3145728)),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text, "--arena") == size


def test_a_limit_without_its_unit(tmp_path: Path) -> None:
    path = write(models.mlp(), tmp_path)
    for more in ((), ("--inference-only",)):
        asked = run(path, "--update", "all", "--arena", "64", "--dry-run", *more).check_error("E0401", 3)
        assert "64 are bytes: did you mean 64KB?" in asked.err
    assert meant_kilobytes(2, 4096) == "", "2 KB would not do either"
    assert meant_kilobytes(4096, 8192) == "" and meant_kilobytes(100, 900) == "", "bytes are as likely"


@pytest.mark.parametrize(
    "text", ["", "0", "0KB", "-1", "1.5KB", "KB", "12GBB", "1e3", "0x10", "1 2", "9" * 30, "\u0661KB"]
)
def test_senseless_sizes(text: str) -> None:
    with pytest.raises(CompileError) as caught:
        parse_size(text, "--arena")
    assert caught.value.code == "E0101"


def test_sizes_of_plans_rise() -> None:
    assert parse_plans("64KB, 2KB,64KB,4096", "--plans") == (2048, 4096, 65536)
    for text in ("1KB", "1KB,1024", ",".join(map(str, range(1, 10))), "1KB,", "1KB;2KB"):
        with pytest.raises(CompileError) as caught:
            parse_plans(text, "--plans")
        assert caught.value.code == "E0101"


def test_shapes() -> None:
    assert parse_shapes(("x=1,3,32,32", "a=b=2x4"), "--input-shape") == {"x": (1, 3, 32, 32), "a=b": (2, 4)}
    for text in ("x", "=1", "x=", "x=1,", "x=1,-1", "x=n"):
        with pytest.raises(CompileError):
            parse_shapes((text,), "--input-shape")
