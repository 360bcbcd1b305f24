"""The parts of the loop around the step (--runtime): C on the host and on six cores equals twins in twin/loop.py."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from testing import models
from tests.e2e import chain
from tests.e2e.marks import needs_qemu
from tests.emit.test_generated_c import NUMERIC, SANITIZED, STRICT, build, call, needs_gcc, sources
from tinytrain_compile.ir.runtime_parts import PARTS, RuntimeParts
from tinytrain_compile.ir.stages import SourceBundle
from tinytrain_compile.ir.types import Array
from tinytrain_compile.target import load_target
from tinytrain_compile.twin.loop import Reservoir
from tinytrain_compile.verify import find_tools
from tinytrain_compile.verify.build import compile_project, link_project, write_files
from tinytrain_compile.verify.firmware import GUARD_BYTES, fill
from tinytrain_compile.verify.run import run_image
from tinytrain_compile.verify.temporary import work_folder

PROGRAMS = Path(__file__).parent / "programs"
CHECKS = re.findall(r'^    \{"(\w+)", \1\},$', (PROGRAMS / "parts.c").read_text(), re.MULTILINE)
ALL = RuntimeParts(PARTS, 5)
SAMPLES, STEPS, ROOM = 40, 100, 5
pytestmark = needs_gcc


@cache
def project(board: str) -> chain.Project:
    """A small network for this core, with all parts."""
    return chain.project(chain.train_graph(models.mlp()), board, parts=ALL)


def samples() -> tuple[Array, Array]:
    rng = np.random.default_rng(4)
    x = rng.normal(size=(SAMPLES, project("cortex-m0plus").bundle.interface.input_elements))
    return x.astype(np.float32), rng.integers(0, 4, SAMPLES).astype(np.int32)


@cache
def ran(board: str) -> Array:
    """The words that programs/loop.c writes on a board, or on the host."""
    mode, target = ("host", "cortex-m0plus") if board == "host" else ("qemu", board)
    values = {"GUARD": str(GUARD_BYTES), "SAMPLES": str(SAMPLES), "STEPS": str(STEPS)}
    text = fill((PROGRAMS / "loop.c").read_text(), values)
    bundle = project(target).bundle
    bundle = replace(bundle, files={**bundle.files, "verify/loop.c": text})
    port = "verify/startup.c" if mode == "qemu" else "verify/host.c"
    core, tools = load_target(target), find_tools()
    x, y = samples()
    given = b"".join(one.tobytes() + int(label).to_bytes(4, "little") for one, label in zip(x, y, strict=True))
    with work_folder() as folder:
        made = compile_project(bundle, core, mode, tools, folder, check_sources=("verify/loop.c", port))
        return np.frombuffer(run_image(link_project(made, core, tools), core, tools, given, timeout_s=120), np.int32)


def expected() -> tuple[list[tuple[int, int, float]], list[tuple[Array, int]]]:
    """By the twin: (whether it is old, label, first value) of every step, and what the reservoir holds in the end."""
    x, y = samples()
    reservoir = Reservoir[int](ROOM, seed=7)
    reservoir.mix(3, 2)
    steps, taken = list[tuple[int, int, float]](), 0
    for _ in range(STEPS):
        old = reservoir.due()
        index = reservoir.draw() if old else taken % SAMPLES
        if not old:
            reservoir.add(index)
            taken += 1
        steps.append((int(old), int(y[index]), float(x[index][0])))
    return steps, [(x[index], int(y[index])) for index in reservoir.samples]


def test_the_host_decides_as_the_twin_does() -> None:
    words = ran("host")
    decided, room = words[: 4 * STEPS].reshape(STEPS, 4), words[4 * STEPS :].reshape(ROOM, -1)
    steps, held = expected()
    firsts = decided[:, 2].view(np.float32).astype(float)
    assert [*zip(decided[:, 0].tolist(), decided[:, 1].tolist(), firsts.tolist(), strict=True)] == steps
    assert sum(old for old, _, _ in steps) == 39, "two of five, and nothing is owed for the first"
    for record, (x, label) in zip(room, held, strict=True):
        assert record[:-1].view(np.float32).tobytes() == x.tobytes()
        assert record[-1] == label
    losses = decided[:, 3].view(np.float32)
    assert losses[-20:].mean() < losses[:20].mean(), "it trains"


@pytest.mark.qemu
@needs_qemu
@pytest.mark.parametrize("board", chain.BOARDS)
def test_boards_decide_as_the_host_does(board: str) -> None:
    """But for losses: a core with fused products computes others."""
    host, found = ran("host"), ran(board)
    decided = np.arange(host.size) % 4 != 3
    decided[4 * STEPS :] = True
    assert np.array_equal(host[decided], found[decided])


def test_every_sample_is_held_with_the_same_probability() -> None:
    """20 of 60, over 3,000 seeds: each is held 1,000 times, give or take five standard deviations."""
    held = np.zeros(60, int)
    for seed in range(3000):
        reservoir = Reservoir[int](20, seed)
        for index in range(60):
            reservoir.add(index)
        held[reservoir.samples] += 1
    assert np.abs(held - 1000).max() < 5 * np.sqrt(3000 * (1 / 3) * (2 / 3))


# ---- the C alone ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """programs/parts.c under AddressSanitizer and UBSan."""
    folder = tmp_path_factory.mktemp("parts")
    shutil.copy(PROGRAMS / "parts.c", folder)
    bundle = project("cortex-m0plus").bundle
    write_files(folder, bundle.files)
    build(["gcc", *STRICT, *NUMERIC, "-Og", *SANITIZED, "parts.c", *sources(bundle), "-o", "parts"], folder)
    return folder / "parts"


@pytest.mark.parametrize("name", CHECKS)
def test_api(name: str, program: Path) -> None:
    done = call([program, name], program.parent)
    assert done.returncode == 0, done.stdout + done.stderr[:3000]
    assert done.stderr == ""


VARIANTS: dict[str, Callable[[], chain.Project]] = {
    "classes": lambda: project("cortex-m0plus"),
    "values, micro-batch": lambda: chain.project(
        chain.train_graph(models.mlp(), loss="mse", batch=4, micro_batch=2),
        one=chain.train_graph(models.mlp(), loss="mse", batch=4),
        parts=ALL,
    ),
    "own loss": lambda: chain.project(
        chain.train_graph(models.with_loss(models.mlp(), [1, 2, 3, 4], "sum", ignore=-1)), "host", parts=ALL
    ),
}
LEVELS = (("-std=c11", "-O0"), ("-std=gnu11", "-O3"), ("-std=c17", "-Os", "-funsigned-char"))


def compiled(bundle: SourceBundle, folder: Path, flags: Iterable[str]) -> list[Path]:
    """Objects of the parts alone."""
    write_files(folder, bundle.files)
    names = [f"net_{part}.c" for part in PARTS]
    build(["gcc", *STRICT, *flags, "-c", *names], folder)
    return [folder / Path(name).with_suffix(".o") for name in names]


@pytest.mark.parametrize("name", VARIANTS)
def test_compiles_without_warnings_and_has_no_ram_of_its_own(name: str, tmp_path: Path) -> None:
    bundle = VARIANTS[name]().bundle
    compiled(bundle, tmp_path, ("-O2", "-fanalyzer"))
    for level in LEVELS:
        for path in compiled(bundle, tmp_path, level):
            lines = [line.split() for line in call(["nm", path], tmp_path).stdout.splitlines()]
            kinds = {words[-2] for words in lines}
            assert kinds <= set("tTrRU"), lines
            outside = {words[-1] for words in lines if words[-2] == "U" and not words[-1].startswith("net_")}
            assert outside <= {"memcpy", "memset", "memmove", "_GLOBAL_OFFSET_TABLE_", "__stack_chk_fail"}
            assert all(words[-1].startswith("net_") for words in lines if words[-2] == "T"), lines


@pytest.mark.parametrize("standard", ["c++11", "c++20"])
def test_headers_serve_cpp(standard: str, tmp_path: Path) -> None:
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed")
    bundle = project("cortex-m0plus").bundle
    write_files(tmp_path, bundle.files)
    build(["gcc", *STRICT, *NUMERIC, "-Og", "-c", *sources(bundle)], tmp_path)
    shutil.copy(PROGRAMS / "parts.cpp", tmp_path)
    objects = [Path(source).with_suffix(".o") for source in sources(bundle)]
    strict = ["-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-pedantic", "-Werror"]
    build(["g++", f"-std={standard}", *strict, "parts.cpp", *objects, "-o", "main"], tmp_path)
    assert call([tmp_path / "main"], tmp_path).returncode == 0


def test_headers_stand_alone(tmp_path: Path) -> None:
    write_files(tmp_path, project("cortex-m0plus").bundle.files)
    for part in PARTS:
        (tmp_path / "alone.c").write_text(f'#include "net_{part}.h"\n#include "net_{part}.h"\nextern int nothing;\n')
        build(["gcc", *STRICT, "-fsyntax-only", "alone.c"], tmp_path)


def test_without_the_option_the_output_is_what_it_was() -> None:
    plain, more = (
        chain.project(chain.train_graph(models.mlp()), "cortex-m0plus").bundle.files,
        project("cortex-m0plus").bundle.files,
    )
    added = {f"net_{part}.{kind}" for part in PARTS for kind in "hc"}
    assert set(more) - set(plain) == added
    assert {name for name, text in plain.items() if more[name] != text} == {"CMakeLists.txt"}
    assert all(name in more["CMakeLists.txt"] for name in added if name.endswith(".c"))
