"""The example of an output: it compiles strictly for every kind of model, as C and as a sketch, and it trains."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from testing.images.arduino_rules import CORE
from testing.networks import models
from testing.places import ROOT
from tests.e2e import chain
from tests.e2e.test_several_inputs import PAIR_SHAPES, SHAPES, TEXT, weights
from tests.emit.test_c_text import CLANG_FORMAT, VERSION
from tests.emit.test_generated_c import NUMERIC, STRICT, build, call, needs_gcc, sources
from tests.frontend.models import parse
from tests.frontend.recurrent import Cell, model_of
from tests.quantize import lines, nets
from tinytrain_compile.emit.example import MOST_LINES, example_paths
from tinytrain_compile.ir.runtime_parts import NO_PARTS, PARTS, RuntimeParts
from tinytrain_compile.ir.stages import SourceBundle
from tinytrain_compile.target.model import BoardNames
from tinytrain_compile.verify.build import write_files

pytestmark = needs_gcc
ALL = RuntimeParts(PARTS, 5)
NO_LABEL = "ae (float[1, 5] x) => (float loss) { h = Gemm <transB = 1> (x, w, b) k = Gemm (h, w) e = Sub (k, x) "
NO_LABEL += "s = Mul (e, e) loss = ReduceMean <keepdims = 0> (s) }"


def _without_labels(parts: RuntimeParts = NO_PARTS) -> chain.Project:
    known = {name: weights(PAIR_SHAPES)[name] for name in ("w", "b")}
    return chain.project(chain.train_graph(parse(NO_LABEL, known)), parts=parts)


def _several_samples() -> chain.Project:
    """Calls of two samples, of which an update takes two."""
    train = chain.train_graph(models.mlp(), batch=4, micro_batch=2)
    return chain.project(train, one=chain.train_graph(models.mlp(), batch=4), parts=ALL)


def _lines() -> chain.Project:
    train = lines.train_of(4, 2)
    return lines.project(train, lines.longest(train, 4))


CASES: dict[str, Callable[[], chain.Project]] = {
    "float32": lambda: chain.project(chain.train_graph(models.mlp())),
    "a batch and all parts": lambda: chain.project(
        chain.train_graph(models.mlp(), batch=4, learning_rate=0.1), parts=ALL
    ),
    "values": lambda: chain.project(chain.train_graph(models.mlp(), loss="mse")),
    "features": lambda: chain.project(chain.train_graph(models.mlp(), "last:1"), parts=ALL, features=True),
    "slices": lambda: chain.project(chain.train_graph(models.mlp(), batch=4), slices=True),
    "several samples": _several_samples,
    "several inputs": lambda: chain.project(chain.train_graph(parse(TEXT, weights(SHAPES)))),
    "no labels": _without_labels,
    "no labels, all parts": lambda: _without_labels(ALL),
    "recurrent": lambda: chain.project(chain.train_graph(model_of(Cell("GRU")))),
    "pixels": lambda: chain.project(chain.train_graph(models.segmenter(), loss="cross-entropy"), parts=ALL),
    "global pooling": lambda: chain.project(chain.train_graph(models.bands())),
    "int8": lambda: chain.project(nets.int8_train(nets.cnn(4, 2)), parts=ALL),
    "lines": _lines,
}


@cache
def bundle_of(name: str) -> SourceBundle:
    return CASES[name]().bundle


def written(name: str, package: str | None, folder: Path) -> dict[str, str]:
    """The project and its example in a folder; returns the example alone."""
    bundle = bundle_of(name)
    example = dict(bundle.example(package, BoardNames()))
    write_files(folder, {**bundle.files, **example})
    assert tuple(example) == example_paths(package, "net", trains=True)
    return example


@pytest.mark.parametrize("name", CASES)
def test_it_compiles_strictly(name: str, tmp_path: Path) -> None:
    """As C, and behind Arduino.h as C++; at most 60 lines, laid out as all generated C."""
    program = written(name, None, tmp_path)["example/main.c"]
    build(["gcc", *STRICT, "-fsyntax-only", "-I.", "example/main.c"], tmp_path)
    sketch = written(name, "arduino", tmp_path)["examples/train_net/train_net.ino"]
    for text in (program, sketch):
        assert len(text.splitlines()) <= MOST_LINES
        assert all(len(line) <= 120 for line in text.splitlines()) and "REPLACE" in text
    strict = ["-std=gnu++17", "-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-pedantic", "-Werror"]
    behind = ["-include", "Arduino.h", f"-I{CORE}", "-I.", "-x", "c++"]
    build(["g++", *strict, *behind, "-fsyntax-only", "examples/train_net/train_net.ino"], tmp_path)


@pytest.mark.parametrize("name", ["several samples", "lines", "pixels"])
def test_clang_format_changes_nothing(name: str, tmp_path: Path) -> None:
    if (
        CLANG_FORMAT is None
        or VERSION not in subprocess.run([CLANG_FORMAT, "--version"], capture_output=True, text=True).stdout
    ):
        pytest.skip(f"clang-format {VERSION} is not installed: make setup installs it")
    for path, text in written(name, None, tmp_path).items():
        done = call([CLANG_FORMAT, f"--style=file:{ROOT / '.clang-format'}", path], tmp_path)
        assert done.stdout == text


def losses(program: Path) -> list[float]:
    done = call([program], program.parent)
    assert done.returncode == 0, done.stderr
    return [int(number) / 1000 for number in re.findall(r"^loss (-?\d+) / 1000$", done.stdout, re.MULTILINE)]


@pytest.mark.parametrize(("name", "share"), [("float32", 0.5), ("a batch and all parts", 0.8), ("global pooling", 0.5)])
def test_it_trains(name: str, share: float, tmp_path: Path) -> None:
    """Ten epochs in which the loss falls to less than this share, and an error that ends the program.

    To a mean over the map, the samples that were made up first, one pattern at shifted places, were all the same.
    """
    written(name, None, tmp_path)
    flags = ["gcc", *STRICT, *NUMERIC, "-O1", "-I."]
    build([*flags, *sources(bundle_of(name)), "example/main.c", "-o", "example/run"], tmp_path)
    found = losses(tmp_path / "example" / "run")
    assert len(found) == 10 and found[-1] < share * found[0]
    text = (tmp_path / "example" / "main.c").read_text()
    (tmp_path / "example" / "small.c").write_text(text.replace("sizeof arena", "sizeof arena - 1"))
    build([*flags, *sources(bundle_of(name)), "example/small.c", "-o", "example/small"], tmp_path)
    done = call([tmp_path / "example" / "small"], tmp_path)
    assert done.returncode != 0 and done.stdout == "failed: status 2\n"


def test_another_main_takes_its_place(tmp_path: Path) -> None:
    """An IDE may compile every file of a folder."""
    written("float32", None, tmp_path)
    (tmp_path / "own.c").write_text("int main(void)\n{\n    return 7;\n}\n")
    files = ["example/main.c", "own.c", *sources(bundle_of("float32"))]
    build(["gcc", *STRICT, *NUMERIC, "-I.", *files, "-o", "all"], tmp_path)
    assert call([tmp_path / "all"], tmp_path).returncode == 7


@pytest.mark.skipif(shutil.which("arm-none-eabi-gcc") is None, reason="arm-none-eabi-gcc is not installed")
@pytest.mark.parametrize("name", ["a batch and all parts", "int8"])
def test_it_compiles_for_a_cortex_m(name: str, tmp_path: Path) -> None:
    written(name, None, tmp_path)
    flags = ["-mcpu=cortex-m4", "-mthumb", "-std=c11", "-Os", "-Wall", "-Wextra", "-Werror"]
    build(["arm-none-eabi-gcc", *flags, "-I.", "-c", "example/main.c", "-o", "main.o"], tmp_path)


def test_updates_of_an_epoch(tmp_path: Path) -> None:
    """A last batch that is not full is not counted."""
    written("slices", None, tmp_path)
    checks = [f'_Static_assert(NET_UPDATES_PER_EPOCH({n}u) == {n // 4}, "");' for n in (0, 3, 4, 103)]
    text = "\n".join(['#include "net_train.h"', *checks, '_Static_assert(NET_BATCH == 4, "");', ""])
    (tmp_path / "count.c").write_text(text)
    build(["gcc", *STRICT, "-fsyntax-only", "count.c"], tmp_path)
