"""How generated C is laid out: by our rules, which are clang-format's with .clang-format."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from testing.networks import models
from testing.places import ROOT
from tests.e2e import chain
from tinytrain_compile.emit.c_text import WIDTH, fitted, prototype, readable, wrapped
from tinytrain_compile.ir.runtime_parts import PARTS, RuntimeParts
from tinytrain_compile.ir.stages import SourceBundle

CLANG_FORMAT = shutil.which("clang-format", path=str(Path(sys.executable).parent)) or shutil.which("clang-format")
VERSION = "23.1.5"
"""Other versions lay some things out in another way."""
NAME = "a_model_with_a_rather_long_name"


def kernel(*body: str) -> str:
    return "\n".join(["/* Op: x 4 -> y 4. Does it. */", "void f(const float *x, float *y) {", *body, "}"]) + "\n"


def body_of(*body: str) -> list[str]:
    return readable(kernel(*body)).splitlines()[3:-1]


def test_a_functions_brace_has_a_line_of_its_own() -> None:
    assert readable(kernel("    y[0] = x[0];")) == (
        "/* Op: x 4 -> y 4. Does it. */\nvoid f(const float *x, float *y)\n{\n    y[0] = x[0];\n}\n"
    )


def test_signatures_and_comments_are_broken_at_the_width() -> None:
    operands = [f"const int32_t *restrict operand_{i}" for i in range(6)]
    head = f"void net_of_a_kind({', '.join(operands)})"
    text = readable(f"/* {'words ' * 30}*/\n{head} {{\n}}\n").splitlines()
    assert text[0].startswith("/* words words")
    assert text[1].startswith(" * words")
    assert text[1].endswith(" */")
    signature = text[2:-2]
    assert len(signature) == 3
    assert all(line.endswith(",") and len(line) <= WIDTH for line in signature[:-1])
    assert all(line.startswith("    const int32_t *restrict operand_") for line in signature[1:])
    assert " ".join(line.strip() for line in signature) == head
    assert prototype(f"{head};").splitlines() == [*signature[:-1], f"{signature[-1]};"]


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("y[0] = x[0] - -128;", "y[0] = x[0] + 128;"),
        ("y[0] = x[0] + -3 * x[1];", "y[0] = x[0] - 3 * x[1];"),
        ("y[0] = (x[0]) - -0.5f;", "y[0] = (x[0]) + 0.5f;"),
        ("y[0] = x[0] - -2147483648;", "y[0] = x[0] - -2147483648;"),
        ("y[0] = x[0] * -2;", "y[0] = x[0] * -2;"),
        ("f(a, -128, -b);", "f(a, -128, -b);"),
        ("y[0] = x[0] - -1e-05f;", "y[0] = x[0] - -1e-05f;"),
    ],
)
def test_two_signs_become_one(given: str, found: str) -> None:
    assert body_of(f"    {given}") == [f"    {found}"]


def test_long_statements_are_broken_where_the_fewest_brackets_are_open() -> None:
    terms = " + ".join(f"index_{i} * {i}" for i in range(9))
    assert body_of(f"    y[0] = helper(first, x[{terms}], second);") == [
        "    y[0] = helper(first,",
        "        x[index_0 * 0 + index_1 * 1 + index_2 * 2 + index_3 * 3 + index_4 * 4 + index_5 * 5 + index_6 * 6 +",
        "            index_7 * 7 + index_8 * 8],",
        "        second);",
    ]


def test_a_line_may_end_what_another_one_began() -> None:
    """Operands of a call that a template has broken already (seed 8 of the campaign, int8 QDQ 74)."""
    line = f"                I32(AT_{'a' * 44}), I32(AT_{'b' * 44}), -12);"
    assert [part.split() for part in wrapped(line)] == [[f"I32(AT_{'a' * 44}),"], [f"I32(AT_{'b' * 44}),", "-12);"]]


def test_long_declarations_are_made_one_by_one() -> None:
    values = [f"helper(x[{'index * 2 + ' * 4}{i}], other)" for i in range(2)]
    assert body_of(f"    int32_t a = {values[0]}, b = {values[1]};") == [
        f"    int32_t a = {values[0]};",
        f"    int32_t b = {values[1]};",
    ]


def test_lines_of_templates_fit_whatever_the_model_is_called() -> None:
    text = f"    if (a_{NAME} && b_{NAME} && an_index_of_{NAME} < 3) {{ /* why this is so */\n\n\n\n}}\n"
    assert fitted(text) == (
        f"    /* why this is so */\n    if (a_{NAME} && b_{NAME} &&\n        an_index_of_{NAME} < 3) {{\n\n}}\n"
    )


def test_sentences_of_a_comment_flow_on_in_its_next_line() -> None:
    words = " ".join(["word"] * 30)
    text = f"/**\n * @par Some\n * {words}\n * and more.\n *   kept\n * @return {words}\n * {words}\n */\nint x;\n"
    lines = fitted(text).split("\n")
    assert lines[2:5] == [f" * {' '.join(['word'] * 23)}", f" * {' '.join(['word'] * 7)} and more.", " *   kept"]
    assert lines[5] == f" * @return {' '.join(['word'] * 22)}"
    assert lines[-3:] == [" */", "int x;", ""]
    assert max(map(len, lines)) <= WIDTH
    assert " ".join(fitted(text).replace("*", "").split()) == " ".join(text.replace("*", "").split())


# ---- whole projects -------------------------------------------------------------------------------------------------

PROJECTS: dict[str, Callable[[], chain.Project]] = {
    "mlp": lambda: chain.project(chain.train_graph(models.mlp(), optimizer="adam", batch=2), "cortex-m0plus"),
    "long name": lambda: chain.project(chain.train_graph(models.mlp()), "cortex-m7", name=NAME),
    "ds_cnn": lambda: chain.project(chain.train_graph(models.ds_cnn(8, 1, (12, 6))), "cortex-m55"),
    "transformer": lambda: chain.project(chain.train_graph(models.transformer(4, 8, 2)), "cortex-m7"),
    "slices": lambda: chain.project(chain.train_graph(models.mlp(), batch=2), name=NAME, slices=True),
    "parts": lambda: chain.project(chain.train_graph(models.mlp()), name=NAME, parts=RuntimeParts(PARTS, 7)),
}


@pytest.fixture(scope="module", params=PROJECTS)
def bundle(request: pytest.FixtureRequest) -> SourceBundle:
    return PROJECTS[request.param]().bundle


def own_files(bundle: SourceBundle) -> dict[str, str]:
    """The C that is generated, but for the tables of constants: packed, which clang-format has no setting for."""
    return {
        name: text
        for name, text in bundle.files.items()
        if name.endswith((".c", ".h")) and not name.startswith("tt_") and not name.endswith("_weights.c")
    }


def test_no_line_is_too_long(bundle: SourceBundle) -> None:
    files = own_files(bundle)
    assert len(files) in (4, 4 + 2 * len(PARTS))
    for name, text in files.items():
        long = [line for line in text.splitlines() if len(line) > WIDTH and not line.startswith("#define")]
        assert long == [], name


def test_clang_format_changes_nothing(bundle: SourceBundle, tmp_path: Path) -> None:
    if CLANG_FORMAT is None:
        pytest.skip("clang-format is not installed: make setup installs it")
    said = subprocess.run([CLANG_FORMAT, "--version"], capture_output=True, text=True, check=True).stdout
    if VERSION not in said:
        pytest.skip(f"clang-format here is another version than {VERSION}: {said.strip()}")
    for name, text in own_files(bundle).items():
        (tmp_path / name).write_text(text)
        command = [CLANG_FORMAT, f"--style=file:{ROOT / '.clang-format'}", name]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60)
        different = [(a, b) for a, b in zip(text.splitlines(), done.stdout.splitlines(), strict=False) if a != b]
        assert different[:3] == [], name
        assert done.stdout == text
