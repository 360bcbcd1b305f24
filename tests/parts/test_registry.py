"""A part of a project is one folder and one line: what is off is not imported (ADR 49)."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from testing.networks import models
from testing.places import ROOT
from tests.e2e import chain
from tinytrain_compile.ir.runtime_parts import OF_WEIGHTS, RuntimeParts
from tinytrain_compile.ir.runtime_parts import PARTS as RUNTIME
from tinytrain_compile.options.compile_options import CompileOptions
from tinytrain_compile.parts.part import Part
from tinytrain_compile.parts.registry import PARTS, parts_of, runtime_parts

FOLDER = ROOT / "compiler" / "tinytrain_compile" / "parts"
NAMES = (*PARTS, *RUNTIME)


def test_every_folder_is_registered_once() -> None:
    assert sorted(NAMES) == sorted(path.name for path in FOLDER.iterdir() if (path / "part.py").exists())
    assert len(NAMES) == len(set(NAMES))


@pytest.mark.parametrize("name", NAMES)
def test_a_part_knows_its_folder_and_its_files(name: str) -> None:
    part: type[Part] = import_module(f"tinytrain_compile.parts.{name}.part").PART
    assert part.name == name
    assert all((FOLDER / name / f"{file}.j2").is_file() for file in part.files)
    assert part.has_fragments == (FOLDER / name / f"{name}.j2").is_file()
    assert part.of_weights == (name in OF_WEIGHTS)


@pytest.mark.parametrize("name", NAMES)
def test_no_part_imports_the_registry(name: str) -> None:
    """The registry imports parts by name, which import-linter does not see: a circle would go unnoticed."""
    assert all("parts.registry" not in path.read_text() for path in (FOLDER / name).glob("*.py"))


def test_what_is_off_is_not_made() -> None:
    train = chain.train_graph(models.mlp())
    assert parts_of(CompileOptions(Path()), train) == ()
    asked = CompileOptions(Path(), runtime=RuntimeParts(("store", "average")), slices="on")
    assert [part.name for part in parts_of(asked, train)] == ["slices", "store", "average"]
    assert [part.name for part in runtime_parts(RuntimeParts(RUNTIME))] == list(RUNTIME)


def test_what_is_off_is_not_imported(tmp_path: Path) -> None:
    """A compilation with two parts imports their folders, and no other of parts/."""
    (tmp_path / "mlp.onnx").write_bytes(models.mlp().SerializeToString())
    code = (
        "import sys; from tinytrain_compile.cli.start import main\n"
        "try: main()\n"
        "finally: print(sorted(n.split('.')[2] for n in sys.modules if n.startswith('tinytrain_compile.parts.') "
        "and n.endswith('.part') and n.count('.') == 3))"
    )
    line = [sys.executable, "-c", code, "mlp.onnx", "-o", "out", "--verify", "none", "--update", "all"]
    found = [
        subprocess.run([*line, *more], cwd=tmp_path, capture_output=True, text=True, check=True).stdout.splitlines()[-1]
        for more in ((), ("--runtime", "average,store", "--force"))
    ]
    assert found == ["[]", "['average', 'store']"]
