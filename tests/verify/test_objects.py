"""Objects that are kept: the same as new ones, and none where anything that decides them differs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from testing.runs import build
from tests.e2e.marks import needs_qemu
from tests.verify import tiny_model
from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.stages import SourceBundle
from tinytrain_compile.target.loader import load_target
from tinytrain_compile.verify.build import Compiled, compile_project
from tinytrain_compile.verify.objects import VARIABLE
from tinytrain_compile.verify.stack import read_call_graph
from tinytrain_compile.verify.tools import Tools, find_tools

M7 = load_target("cortex-m7")
TOOLS = find_tools(M7)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "store"))
    return tmp_path / "store"


def compiled(folder: Path, bundle: SourceBundle, board: bool = False, tools: Tools = TOOLS) -> Compiled:
    return compile_project(bundle, M7, "qemu" if board else "host", tools, folder)


def changed(path: str, old: str, new: str) -> SourceBundle:
    bundle = tiny_model.bundle()
    assert old in bundle.files[path]
    return replace(bundle, files={**bundle.files, path: bundle.files[path].replace(old, new)})


def kept(store: Path) -> int:
    return len(list(store.iterdir()))


@needs_qemu
@pytest.mark.parametrize("board", [False, True])
def test_what_is_kept_is_what_would_be_made(board: bool, store: Path, tmp_path: Path) -> None:
    made, again = (compiled(tmp_path / name, tiny_model.bundle(), board) for name in ("made", "again"))
    everything = [path.with_suffix(suffix) for path in made.model_objects for suffix in (".o", ".su", ".ci")]
    assert [path.is_file() for path in everything] == [True, board, board] * len(made.model_objects)
    for path in filter(Path.is_file, everything):
        assert (tmp_path / "again" / path.relative_to(tmp_path / "made")).read_bytes() == path.read_bytes()
    assert not board or read_call_graph(made.model_objects) == read_call_graph(again.model_objects)
    assert kept(store) == len(made.model_objects) + len(made.check_objects)


def test_nothing_is_compiled_twice(store: Path, tmp_path: Path) -> None:
    compiled(tmp_path / "made", tiny_model.bundle())
    for path in store.glob("*/*.o"):
        path.write_bytes(b"from the store")
    again = compiled(tmp_path / "again", tiny_model.bundle())
    assert {path.read_bytes() for path in (*again.model_objects, *again.check_objects)} == {b"from the store"}


@pytest.mark.parametrize(
    ("path", "old", "new", "more"),
    [
        ("tiny_kernels.c", "float sum = b[0];", "float sum = -b[0];", 1),
        ("tt_runtime.h", "#define TT_RUNTIME_H", "#define TT_RUNTIME_H 2", 2),
    ],
)
def test_another_text_is_another_object(path: str, old: str, new: str, more: int, store: Path, tmp_path: Path) -> None:
    """A source, and a header that two of them include."""
    compiled(tmp_path / "made", tiny_model.bundle())
    before = kept(store)
    compiled(tmp_path / "other", changed(path, old, new))
    assert kept(store) == before + more


def test_a_header_that_a_macro_names_counts_too(store: Path, tmp_path: Path) -> None:
    """As tt_page.h takes a port's moves of pages from TT_PAGE_PORT."""
    named = changed(
        "tiny_kernels.c", "float sum = b[0];", 'float sum = b[0];\n#define OTHER "other.inc"\n#include OTHER\n'
    )
    found: list[bytes] = []
    for text in ("", "sum += 1.0f;", ""):
        files = {**named.files, "other.inc": text}
        made = compiled(tmp_path / f"{len(found)}", replace(named, files=files))
        found += [path.read_bytes() for path in made.model_objects if path.stem == "tiny_kernels"]
    assert found[0] == found[2] != found[1]


def test_other_flags_and_another_compiler_make_other_objects(store: Path, tmp_path: Path) -> None:
    compiled(tmp_path / "made", tiny_model.bundle())
    before = kept(store)
    compile_project(tiny_model.bundle(), load_target("cortex-m7"), "debug", TOOLS, tmp_path / "flags")  # sanitized
    assert kept(store) == 2 * before
    assert TOOLS.host_cc is not None
    script = tmp_path / "cc"
    for count in (3, 4):  # another program, and then a new version of it in its place
        script.write_text(f'#!/bin/sh\n{"#" * count}\nexec "{TOOLS.host_cc}" "$@"\n')
        script.chmod(0o755)
        compiled(tmp_path / f"compiler{count}", tiny_model.bundle(), tools=replace(TOOLS, host_cc=str(script)))
        assert kept(store) == count * before


def test_what_does_not_compile_is_not_kept(store: Path, tmp_path: Path) -> None:
    broken = changed("tiny_kernels.c", "float sum = b[0];", "float sum = none;")
    for name in ("once", "twice"):
        with pytest.raises(CompileError, match="none"):
            compiled(tmp_path / name, broken)
    sound = compiled(tmp_path / "sound", tiny_model.bundle())
    assert kept(store) == len(sound.model_objects) + len(sound.check_objects)


def test_a_store_that_cannot_be_written_does_no_harm(store: Path, tmp_path: Path) -> None:
    store.write_text("a file")
    assert build(tiny_model.bundle(), M7, "host", TOOLS, tmp_path / "made").image.is_file()


def test_nothing_is_kept_unless_asked_for(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE)
    compiled(tmp_path / "made", tiny_model.bundle())
    assert not store.exists()


def test_data_that_the_assembler_reads_counts_too(store: Path, tmp_path: Path) -> None:
    """As the benchmark of kernels takes their operands from a file."""
    named = changed("tiny_kernels.c", "float sum = b[0];", 'float sum = b[0];\n__asm__(".incbin \\"data.bin\\"");\n')
    for text, more in (("one", 0), ("two", 1), ("one", 1)):
        compiled(tmp_path / f"made{text}{more}", replace(named, files={**named.files, "data.bin": text}))
        assert len(list(store.glob("*/tiny_kernels.o"))) == 1 + more
