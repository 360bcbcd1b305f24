"""The house rules that no linter checks: sizes, docstrings, and who may import whom."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "compiler" / "tinytrain_compile"
MODULES = sorted(PACKAGE.rglob("*.py"))
MODULE_LINES, FUNCTION_LINES, C_FUNCTION_LINES = 400, 50, 60


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


_DATA = (
    *(ast.Constant, ast.Name, ast.Attribute, ast.Tuple, ast.List, ast.Dict, ast.Set, ast.Starred, ast.keyword),
    *(ast.UnaryOp, ast.operator, ast.unaryop, ast.expr_context, ast.BinOp, ast.Call),
)
"""What a table consists of: values, names and calls that put them together, but no condition, loop or function."""


def is_table(statement: ast.stmt) -> bool:
    """Whether a statement of a module is a table or a text: data that is read from top to bottom, however long."""
    value = statement.value if isinstance(statement, ast.Assign | ast.AnnAssign | ast.Expr) else None
    return value is not None and all(isinstance(node, _DATA) for node in ast.walk(value))


def lines_of_code(text: str) -> int:
    """Lines of a module without its tables and texts. A limit on these would make people shorten what users read."""
    data = [s for s in ast.parse(text).body if is_table(s)]
    return len(text.splitlines()) - sum((s.end_lineno or s.lineno) - s.lineno + 1 for s in data)


def test_tables_and_texts_have_no_limit_and_code_has() -> None:
    table = "T = {\n" + '    "a": call("text"),\n' * 500 + "}\n"
    assert lines_of_code(table) == 0 and lines_of_code('say(\n"a"\n"b"\n)\n') == 0
    assert lines_of_code("x = [\n    y for y in z\n]\n") == 3
    assert lines_of_code("def f() -> None:\n" + "    g(1)\n" * 401) == 402
    assert lines_of_code("class A:\n    x: int = 1\n") == 2


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_module(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert lines_of_code(text) <= MODULE_LINES
    module = ast.parse(text)
    assert ast.get_docstring(module), "no docstring"
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            assert length <= FUNCTION_LINES, f"{node.name} has {length} lines"
    assert not re.search(r"\b(TODO|FIXME|XXX|HACK)\b", text)


C_FILES = sorted(
    path
    for folder in (ROOT / "runtime_c", PACKAGE)
    for path in folder.rglob("*")
    if path.suffix in (".c", ".h") or path.name.endswith((".c.j2", ".h.j2"))
)


def c_functions(text: str) -> list[tuple[str, int]]:
    """(name, lines) of the functions of a C text in our style: a body's braces stand in the first column."""
    found: list[tuple[str, int]] = []
    lines = text.splitlines()
    start = None
    for index, line in enumerate(lines):
        if line == "{":
            start = index
        elif line == "}" and start is not None:
            head = next(lines[i] for i in range(start - 1, -1, -1) if "(" in lines[i] and not lines[i].startswith(" "))
            found.append((head, index - start + 2))
            start = None
    return found


@pytest.mark.parametrize("path", C_FILES, ids=name_of)
def test_c_functions_are_short(path: Path) -> None:
    for head, length in c_functions(path.read_text(encoding="utf-8")):
        assert length <= C_FUNCTION_LINES, f"{head} has {length} lines"


def test_c_functions_are_found() -> None:
    assert sum(len(c_functions(path.read_text())) for path in C_FILES) > 40


def test_import_contracts() -> None:
    program = Path(sys.executable).parent / "lint-imports"
    if not program.exists():
        pytest.skip("import-linter is not installed")
    done = subprocess.run([program], cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout
    kept = re.search(r"Contracts: (\d+) kept, 0 broken", done.stdout)
    assert kept is not None
    assert int(kept[1]) >= 5


ELSEWHERE = re.compile(
    r"contracts\.md|\bnotes/[\w-]+|\bcontract [0-9]|plan of the house|shared/(benchmarks|notes|spikes)|issue \d"
)
"""Texts that a reader of the repository does not have. (../shared/models and its kind are inputs, and optional.)"""
TEXTS = sorted(
    path
    for folder in ("compiler", "runtime_c", "docs", "tests", "testing", "scripts", "benchmarks", "examples", "targets")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in (".py", ".md", ".c", ".h", ".j2", ".js", ".css", ".toml", ".txt") and "/out/" not in str(path)
)


def test_nothing_refers_to_texts_outside_of_the_repository() -> None:
    """What users may rely on is docs/contract.md; a word of before is listed in docs/glossary.md alone."""
    own = {Path(__file__), ROOT / "docs" / "glossary.md"}
    pages = [*TEXTS, *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "Makefile"))]
    assert len(pages) > 400
    found = [
        f"{name_of(path)}:{number}: {line.strip()}"
        for path in pages
        if path not in own
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if ELSEWHERE.search(line)
    ]
    assert found == []


# ---- what is not of the package -------------------------------------------------------------------------------------

OUTSIDE = sorted(
    path
    for folder in ("tests", "testing", "benchmarks", "scripts", "examples")
    for path in (ROOT / folder).rglob("*.py")
    if "out" not in path.relative_to(ROOT).parts
)
NOT_FOR = {
    "tests": ("benchmarks", "scripts"),
    "testing": ("tests", "benchmarks", "scripts"),
    "benchmarks": ("tests", "scripts"),
    "scripts": ("tests", "benchmarks"),
}
"""Folder -> those that it does not import; what several need is in testing/."""
PUBLIC = ("_replace", "_asdict", "_exit")
"""Of NamedTuple and of os: with an underscore, but for everyone."""


def imported_by(module: ast.Module) -> list[str]:
    """Full names of modules and of what is taken from them."""
    found: list[str] = []
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in PUBLIC


def private_names(module: ast.Module) -> list[str]:
    """Names with an underscore that are taken from the package, read of another object than the own one, or patched."""
    found = [name for name in imported_by(module) if name.startswith("tinytrain_compile.")]
    found = [name for name in found if any(map(is_private, name.split(".")))]
    for node in ast.walk(module):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            if not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")):
                found.append(ast.unparse(node))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "setattr":
            texts = [item.value for item in node.args if isinstance(item, ast.Constant) and isinstance(item.value, str)]
            found += [text for text in texts if any(map(is_private, text.split(".")))]
    return found


@pytest.mark.parametrize("path", OUTSIDE, ids=name_of)
def test_what_is_outside_uses_only_what_is_public(path: Path) -> None:
    module = ast.parse(path.read_text(encoding="utf-8"))
    others = NOT_FOR.get(path.relative_to(ROOT).parts[0], ())
    assert [name for name in imported_by(module) if name.partition(".")[0] in others] == []
    assert private_names(module) == []


def test_a_private_name_is_seen() -> None:
    for text in ("from tinytrain_compile.a import _b", "x._y", "patch.setattr(a, '_b', 1)", "patch.setattr('a._b', 1)"):
        assert len(private_names(ast.parse(text))) == 1, text
    assert private_names(ast.parse("self._x, a._replace(b=1), a.__dict__")) == []


def test_the_place_of_shared_is_known_once() -> None:
    name = "_".join(("TINYTRAIN", "SHARED"))
    reading = [path for path in OUTSIDE if re.search(rf"environ.*{name}", path.read_text(encoding="utf-8"))]
    assert [name_of(path) for path in reading] == ["testing/places.py"]


def test_slow_libraries_are_not_imported_for_help() -> None:
    """tvm takes seconds; bad input and --help answer at once."""
    modules = "tinytrain_compile.cli.command, tinytrain_compile.driver.pipeline"
    code = f"import sys; import {modules}; print('tvm' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "False\n"
