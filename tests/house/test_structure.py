"""The house rules that no linter checks: sizes, docstrings, and who may import whom."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from testing.places import ROOT

PACKAGE = ROOT / "compiler" / "tinytrain_compile"
MODULES = sorted(PACKAGE.rglob("*.py"))


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_modules_say_what_they_are_and_leave_nothing_to_do() -> None:
    """Their sizes are no test: `make check` lists large ones (scripts/sizes.py), for reviewers."""
    bare, open_ = list[str](), list[str]()
    for path in MODULES:
        text = path.read_text(encoding="utf-8")
        bare += [] if ast.get_docstring(ast.parse(text)) else [name_of(path)]
        open_ += [name_of(path)] if re.search(r"\b(TODO|FIXME|XXX|HACK)\b", text) else []
    assert len(MODULES) > 100
    assert bare == [], "no docstring"
    assert open_ == []


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


def test_what_is_outside_uses_only_what_is_public() -> None:
    found: list[str] = []
    for path in OUTSIDE:
        module = ast.parse(path.read_text(encoding="utf-8"))
        others = NOT_FOR.get(path.relative_to(ROOT).parts[0], ())
        names = [name for name in imported_by(module) if name.partition(".")[0] in others]
        found += [f"{name_of(path)}: {name}" for name in (*names, *private_names(module))]
    assert len(OUTSIDE) > 200
    assert found == []


def test_a_private_name_is_seen() -> None:
    for text in ("from tinytrain_compile.a import _b", "x._y", "patch.setattr(a, '_b', 1)", "patch.setattr('a._b', 1)"):
        assert len(private_names(ast.parse(text))) == 1, text
    assert private_names(ast.parse("self._x, a._replace(b=1), a.__dict__")) == []


# ---- what tests know of the package ---------------------------------------------------------------------------------

TUNED = ("driver", "learn", "plan", "quantize", "report", "sparse")
"""Rooms whose constants tune a search, an algorithm or a layout. A test says what users are promised, as a figure."""
INTERFACES = {
    "driver.pipeline": "STAGES",
    "learn.runs": "PARTIAL",
    "quantize.rescale": "READERS",
    "report.layout": "WIDTH",
    "report.rows": "ROWS",
    "sparse": "PRIOR UNITS",
    "sparse.rules": "BIAS BIAS_ALONE FISHER FRONT GRADIENTS LAST",
}
"""Module -> names that other modules and people read: units, file endings, names of rules, the table that is asked."""


def tuning_constants(module: ast.Module) -> list[str]:
    """Constants of TUNED rooms that a test imports, or reads as an attribute of a module that it imports.

    To set one (monkeypatch) is another matter: a test may make a limit so small that it is reached.
    """
    found, rooms = list[str](), dict[str, str]()
    for node in ast.walk(module):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tinytrain_compile"):
            room = (node.module or "").removeprefix("tinytrain_compile").removeprefix(".")
            rooms |= {alias.asname or alias.name: f"{room}.{alias.name}".strip(".") for alias in node.names}
            found += [f"{room}.{alias.name}" for alias in node.names]
    for node in ast.walk(module):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in rooms:
            found.append(f"{rooms[node.value.id]}.{node.attr}")
    parts = (name.rpartition(".") for name in found)
    return [
        f"{room}.{name}"
        for room, _, name in parts
        if name.isupper() and room.partition(".")[0] in TUNED and name not in INTERFACES.get(room, "").split()
    ]


def test_no_test_knows_a_tuning_constant() -> None:
    """Whoever tunes within reason changes no test; work without an end fails one."""
    tests = [path for path in OUTSIDE if path.relative_to(ROOT).parts[0] in ("tests", "testing")]
    found = [f"{name_of(path)}: {name}" for path in tests for name in tuning_constants(ast.parse(path.read_text()))]
    assert found == []


def test_a_tuning_constant_is_seen() -> None:
    for text in (
        "from tinytrain_compile.driver.search.best import HALVINGS",
        "from tinytrain_compile.plan.streams import search\nassert search.LONGEST == 12",
        "from tinytrain_compile.sparse.rules import BIAS, HIGHEST",
    ):
        assert len(tuning_constants(ast.parse(text))) == 1, text
    for text in ("from tinytrain_compile.ops import OPS", "from tinytrain_compile.sparse import PRIOR, Layer"):
        assert tuning_constants(ast.parse(text)) == [], text


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
