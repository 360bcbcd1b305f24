"""README.md and docs/: commands exist, output is current, links lead somewhere, the C compiles."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.cells import cell_len

from testing.places import ROOT
from tests.e2e.marks import needs_qemu
from tests.examples.pages import TABLE, check_page, check_row, figures, transcripts
from tinytrain_compile.cli.command import command
from tinytrain_compile.cli.export import export
from tinytrain_compile.cli.finetune import finetune
from tinytrain_compile.compilation import make_project
from tinytrain_compile.driver.pipeline import Project
from tinytrain_compile.frontend import operators_by_purpose
from tinytrain_compile.options.compile_options import CompileOptions
from tinytrain_compile.report.layout import WIDTH
from tinytrain_compile.report.reference import errors_markdown, ops_markdown

PAGES = sorted(
    path.relative_to(ROOT)
    for folder in (
        ".",
        "docs",
        "docs/adr",
        "examples/digits",
        "examples/linear",
        "examples/keywords",
        "examples/wakeword",
    )
    for path in (ROOT / folder).glob("*.md")
)

REPORT = re.compile(r"^RAM        .*?(?=^digest |^```|^\$ |^\.\.\.)", re.MULTILINE | re.DOTALL)
DEMO = "$ python examples/digits/run.py\n"

CALLER = """#include "digits_train.h"
digits_label_t camera_read(float *pixels);
int flash_write(void *ctx, const void *data, size_t size);
digits_label_t camera_read(float *pixels) { pixels[0] = 1.0f; return 3; }
static size_t written;
int flash_write(void *ctx, const void *data, size_t size) { (void)data; written += size; return ctx != NULL; }
"""


@pytest.mark.qemu
@needs_qemu
def test_the_readme_shows_what_the_commands_print() -> None:
    check_page("README.md", without=(DEMO, TABLE))


@pytest.mark.qemu
@needs_qemu
def test_the_table_of_the_readme() -> None:
    """Its first row; the others are compared where tests run these networks anyway (check_row)."""
    model = ROOT / "examples" / "linear" / "linear.onnx"
    report = figures.compile_once(model, figures.LINEAR, "qemu")[1]
    check_row("linear", figures.LINEAR, report, figures.linear_outcome(figures.LINEAR))
    shown = (ROOT / "README.md").read_text(encoding="utf-8").partition(TABLE)[2].partition("<!-- /output -->")[0]
    rows = [line.split(" | ")[0].removeprefix("| ") for line in shown.splitlines()[2:]]
    assert rows == ["linear", *(f"digits {quant}" for quant in figures.DIGITS), *figures.LARGE]


def test_the_readme_is_short() -> None:
    """A newcomer reads it whole: at most 150 lines."""
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


def test_the_picture_shows_the_figures_of_the_readme() -> None:
    """docs/img/hero.svg is drawn by scripts/hero.py: the RAM of its network, and both accuracies of the example."""
    picture = (ROOT / "docs" / "img" / "hero.svg").read_text(encoding="utf-8")
    rows = (ROOT / "README.md").read_text(encoding="utf-8").partition(TABLE)[2].splitlines()
    cells = {line.split(" | ")[0].removeprefix("| "): line for line in rows if line.startswith("| ")}
    (ram,) = re.findall(r"one training step in ([\d,]+) bytes", picture)
    assert f"| {ram} B |" in cells["MCUNet int8, streams"]
    (before, after) = re.findall(r"digits: ([\d.]+ %) to ([\d.]+ %)", picture)[0]
    assert f"accuracy {before} -> {after}" in cells["digits fp32"]


def test_the_count_of_hard_prose(tmp_path: Path) -> None:
    """scripts/prose.py lists what it should, by the line of the paragraph, and nothing else."""
    page = tmp_path / "page.md"
    long = " ".join(["word"] * 26)
    page.write_text(
        f"# What is this?\n\nWhere it fits, it stays. See the file where it is. `what` is code.\n\n* {long}.\n"
        f"\n| cell |\n|---|\n| {long} |\n\n```\nwhat where\n```\n\nIt says what happened. The end.\n"
    )
    command = [sys.executable, str(ROOT / "scripts" / "prose.py"), str(page)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    found = [line.removeprefix(f"{page}:").split(": ")[:2] for line in said]
    assert found == [["3", "where"], ["5", "26 words"], ["15", "what"]]


def test_the_readme_shows_the_demo_as_the_example_does() -> None:
    own, example = (
        (ROOT / page).read_text(encoding="utf-8").partition(DEMO)[2].partition("```")[0].splitlines()
        for page in ("README.md", "examples/digits/README.md")
    )
    shown = [transcripts.stable(line) for line in own if line != transcripts.GAP]
    assert len(shown) >= 6
    assert shown == [transcripts.stable(line) for line in example][-len(shown) :]


DOCS = (
    *("finetune", "update-schemes", "checkpoint-format", "external-kernels", "cycles", "fitting", "export", "options"),
    *("on-your-board", "activations", "inference-only", "pt2e", "c-api", "python-api"),
)
"""Every page with commands but those below, those that tests of their examples run, and misra, which takes minutes."""


@pytest.mark.parametrize("page", [f"docs/{name}.md" for name in DOCS])
def test_docs_show_what_the_commands_print(page: str) -> None:
    check_page(page)


@pytest.mark.qemu
@needs_qemu
@pytest.mark.parametrize("page", ["int8", "first-hour"])
def test_pages_that_train_on_the_board_show_what_the_commands_print(page: str) -> None:
    check_page(f"docs/{page}.md")


def test_generated_pages_are_current() -> None:
    pages = {"docs/ops.md": ops_markdown(operators_by_purpose()), "docs/errors.md": errors_markdown()}
    for path, text in pages.items():
        assert (ROOT / path).read_text(encoding="utf-8") == text.rstrip("\n") + "\n", "`make docs` writes it anew"


def test_the_page_of_misra_has_the_reasons_of_its_script() -> None:
    """`make docs` alone makes the counts, which takes minutes; here they add up, and every reason has its row."""
    reasons = tomllib.loads((ROOT / "scripts" / "misra.toml").read_text(encoding="utf-8"))
    page = (ROOT / "docs" / "misra.md").read_text(encoding="utf-8")
    rows = [line.strip("| ").split(" | ") for line in re.findall(r"^\| \d.*", page, re.MULTILINE)]
    assert {rule: {"about": about, "why": why} for rule, about, *_, why in rows} == reasons
    counts = [[int(number.replace(",", "")) for number in numbers] for _, _, *numbers, _ in rows]
    sums = " | ".join(f"{sum(column):,}" for column in zip(*counts, strict=True))
    assert f"| all | | {sums} | |\n" in page


def test_the_page_of_the_c_api_has_every_function_of_a_header() -> None:
    """scripts/c_api.py finds declarations by their comments: one without would be missing."""
    made = make_project(CompileOptions(ROOT / "examples" / "digits" / "digits.onnx", verify="none", batch=4))
    assert isinstance(made, Project)
    header = str(made.files["digits_train.h"])
    named = set(re.findall(r"^(?:static inline )?[\w ]+\*?\bdigits_(\w+)\(", header, re.MULTILINE))
    named |= {name.lower() for name in re.findall(r"^#define DIGITS_(\w+)", header, re.MULTILINE)} - {"train_h"}
    page = (ROOT / "docs" / "c-api.md").read_text(encoding="utf-8")
    assert {"init", "train_step", "accumulate", "save", "arena_bytes"} <= named
    assert [name for name in sorted(named) if not re.search(rf"\b(?:m_{name}\(|M_{name.upper()}\b)", page)] == []


def test_the_way_of_a_convolution_names_files_that_exist_and_is_traced() -> None:
    """The whole page is made by `make docs`; its counts change with every function, so they are not compared here."""
    named = re.findall(r"^\| `([\w/]+\.py)`", (ROOT / "docs" / "one-conv.md").read_text(encoding="utf-8"), re.MULTILINE)
    missing = [path for path in named if not (ROOT / "compiler" / "tinytrain_compile" / path).is_file()]
    assert len(named) > 60 and not missing, "`make docs` writes it anew"
    command = [sys.executable, str(ROOT / "scripts" / "trace_files.py"), "--way", "dry-run"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    found = re.findall(r"^\| `([\w/]+\.py)` \| `(\w+)` ", done.stdout, re.MULTILINE)
    assert 20 < len(found) < len(named) and ("ops/conv.py", "_conv_gradient") in found


def test_the_readme_program_trains_a_step_and_saves(tmp_path: Path) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    program = readme.partition("<!-- api -->\n```c\n")[2].partition("```")[0]
    body = program.partition("int main(void)\n{\n")[2].partition("\n}")[0]
    assert 0 < len(body.splitlines()) <= 15
    (tmp_path / "main.c").write_text(CALLER + program, encoding="utf-8")
    out = tmp_path / "out"
    model = str(ROOT / "examples" / "digits" / "digits.onnx")
    compile_command = [sys.executable, "-m", "tinytrain_compile", model, "--verify", "none", "-o", str(out)]
    subprocess.run(compile_command, check=True, capture_output=True, timeout=120)
    sources = [str(path) for path in (*sorted(out.glob("*.c")), tmp_path / "main.c")]
    build = ["gcc", "-std=c11", "-O2", "-Wall", "-Wextra", "-Wconversion", "-Werror", f"-I{out}", *sources]
    subprocess.run([*build, "-o", str(tmp_path / "program")], check=True, timeout=120)
    assert subprocess.run([str(tmp_path / "program")], timeout=60).returncode == 0


def test_the_program_of_the_twin_learns(tmp_path: Path) -> None:
    """docs/twin.md: accuracy before and after, a checkpoint, and the output folder."""
    program = (ROOT / "docs" / "twin.md").read_text(encoding="utf-8").partition("```python\n")[2].partition("```")[0]
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    before, after = (float(number) for number in re.findall(r"'accuracy': ([0-9.]+)", done.stdout))
    assert after > before + 0.2
    assert (tmp_path / "device.bin").stat().st_size > 10_000 and (tmp_path / "out" / "digits_train.c").is_file()


@pytest.mark.parametrize("number", [0, 1], ids=["one machine", "Dask"])
def test_the_programs_of_finetune_find_a_rate(number: int, tmp_path: Path) -> None:
    """docs/finetune.md: what is printed says that something was learned."""
    page = (ROOT / "docs" / "finetune.md").read_text(encoding="utf-8")
    program = page.split("```python\n")[1 + number].partition("```")[0]
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "program.py").write_text(program)
    command = [sys.executable, "program.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    if number == 0:
        rate, epochs, accuracy = map(float, done.stdout.split())
        assert 0.0003 < rate < 1 and 1 <= epochs <= 4 and accuracy > 0.5


def _commands() -> list[str]:
    pages = [(ROOT / page).read_text(encoding="utf-8").replace("\\\n", " ") for page in PAGES]
    return [line for text in pages for line in re.findall(r"^(?:\$ )?(tinytrain-compile .*)$", text, re.MULTILINE)]


def test_quoted_flags_exist() -> None:
    help_text = "".join(CliRunner().invoke(one, ["--help"]).output for one in (command, export, finetune))
    flags = {flag for line in _commands() for flag in re.findall(r"(?<=\s)--?[a-z][a-z-]*", line.partition("|")[0])}
    assert len(flags) >= 5
    assert [flag for flag in sorted(flags) if not re.search(rf"(?<![\w-]){flag}\b", help_text)] == []


def test_reports_in_pages_fit_80_columns() -> None:
    """From `RAM` to `digest`, in every page; a command and an error line are one line however long they are."""
    texts = {page: (ROOT / page).read_text(encoding="utf-8") for page in PAGES}
    lines = [line for text in texts.values() for report in REPORT.findall(text) for line in report.splitlines()]
    assert len(lines) > 100
    assert [line for line in lines if cell_len(line) > WIDTH] == []


def test_quoted_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = {
        t for page in PAGES for t in re.findall(r"(?:`|    )make ([a-z][a-z0-9-]*)", (ROOT / page).read_text("utf-8"))
    }
    assert {"demo", "test"} <= named
    phony = re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    assert phony is not None
    assert named <= set(phony[1].split())


FOREIGN = {"idf.py"}
"""Files of other projects that pages name."""


def test_python_files_that_pages_and_docstrings_name_exist() -> None:
    """By the end of a path: `plan/check/rewrites.py`, `paging.py`."""
    folders = ("benchmarks", "compiler", "examples", "scripts", "testing", "tests")
    known = [path.relative_to(ROOT).parts for folder in folders for path in (ROOT / folder).rglob("*.py")]
    ends = {"/".join(parts[-count:]) for parts in known for count in range(1, len(parts) + 1)}
    texts = (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "compiler").rglob("*.py"))
    gone: list[str] = []
    for path in texts:
        named = re.findall(r"(?<![\w./<>*-])(?:[\w-]+/)*[\w-]+\.py\b", path.read_text(encoding="utf-8"))
        gone += [f"{path.relative_to(ROOT)}: {name}" for name in named if name not in ends | FOREIGN]
    assert len(texts) > 400
    assert gone == []


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_links_lead_to_files(page: Path) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]
    missing = [link for link in links if link and not (ROOT / page.parent / link).exists()]
    assert missing == []


def test_named_folders_and_files_exist() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## Folders")[2]
    folders = re.findall(r"^\| `([a-z0-9_/]+/)` \|", page, re.MULTILINE)
    assert len(folders) >= 25
    assert [folder for folder in folders if not (ROOT / folder).is_dir()] == []


def test_volatile_parts_do_not_count() -> None:
    old, new = "time       1.0 s in QEMU", "time       33.1 s in QEMU"
    assert transcripts.stable(old) == transcripts.stable(new)
    line = "checks     model file vs numpy reference         max error 3.5e-07           ok"
    assert transcripts.stable(line) == transcripts.stable(line.replace("3.5e-07", "4.5e-07"))
    assert transcripts.stable("RAM        36,912 B") != transcripts.stable("RAM        36,916 B")


def test_a_digest_is_compared_or_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page that shows one is out of date, whatever it is; no page does."""
    command = "$ printf 'wrote  out/  sha256 0123456789abcdef\\n'\n"
    text = f"<!-- run -->\n```console\n{command}wrote  out/  sha256 fedcba9876543210\n```\n"
    (tmp_path / "page.md").write_text(text, encoding="utf-8")
    monkeypatch.setattr(transcripts, "ROOT", tmp_path)
    page = transcripts.refresh("page.md", tmp_path)
    assert page.differences() == ["- wrote  out/  sha256 fedcba9876543210", "+ wrote  out/  sha256 ..."]
    monkeypatch.undo()
    shown = [path for path in transcripts.PAGES if re.search(r"sha256 [0-9a-f]{4}", (ROOT / path).read_text("utf-8"))]
    assert shown == []


def test_a_page_that_is_not_true_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "code.c").write_text("a\nb\nc\nd\n", encoding="utf-8")
    (tmp_path / "page.md").write_text(
        "<!-- run -->\n```console\n$ printf '1\\n2\\n3\\n4\\n'\n1\n...\n5\n```\n"
        "<!-- file: code.c -->\n```c\na\nx\nc\n```\n<!-- output: echo new -->\nold\n<!-- /output -->\n",
        encoding="utf-8",
    )
    monkeypatch.setattr(transcripts, "ROOT", tmp_path)
    page = transcripts.refresh("page.md", tmp_path)
    assert page.differences() == ["- 5", "- x", "- old", "+ 4", "+ b", "+ new"]
    assert page.new == page.old.replace("\n5\n", "\n4\n").replace("x\n", "b\n").replace("old\n", "new\n")
