"""The parts of the loop around the step (--runtime): C on the host and on six cores equals twins."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from testing.networks import models
from tests.e2e import chain
from tests.e2e.marks import needs_qemu
from tests.emit.test_generated_c import NUMERIC, SANITIZED, STRICT, build, call, needs_gcc, sources
from tinytrain_compile.ir.runtime_parts import JOURNAL, OF_WEIGHTS, PARTS, RuntimeParts
from tinytrain_compile.ir.stages import SourceBundle
from tinytrain_compile.ir.types import Array
from tinytrain_compile.parts.monitor.twin import Running, Spread, Stop, Vote, Watch, percentile
from tinytrain_compile.parts.replay.twin import Reservoir
from tinytrain_compile.parts.schedule.twin import Schedule
from tinytrain_compile.target.loader import load_target
from tinytrain_compile.twin import Instance
from tinytrain_compile.verify.build import build_library, compile_project, link_project, write_files
from tinytrain_compile.verify.firmware import GUARD_BYTES, fill
from tinytrain_compile.verify.run import run_image
from tinytrain_compile.verify.tools import find_tools, work_folder

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
    core = load_target(target)
    tools = find_tools(core)
    x, y = samples()
    given = b"".join(one.tobytes() + int(label).to_bytes(4, "little") for one, label in zip(x, y, strict=True))
    with work_folder() as folder:
        made = compile_project(bundle, core, mode, tools, folder, check_sources=("verify/loop.c", port))
        return np.frombuffer(run_image(link_project(made, core, tools), core, tools, given, timeout_s=120), np.int32)


RECORD = np.dtype(
    [
        *(("old", "i4"), ("label", "i4"), ("first", "f4"), ("loss", "f4"), ("rates", "f4", 3)),
        *(("mean", "f4"), ("verdict", "i4"), ("voted", "i4"), ("threshold", "f4"), ("health", "i4"), ("trust", "f4")),
    ]
)
SCHEDULES = (
    Schedule("constant", 0.05, warm_up=7),
    Schedule("step", 0.0625, every=9, factor=0.7),
    Schedule("cosine", 0.06, warm_up=10, every=75, last=0.01),
)
SHARES = (0, 1, 500, 501, 990, 1000)


def judged(board: str) -> tuple[Array, bytes]:
    """Assert that the board has decided as the twins do, of the losses that it has computed itself.

    Its records, and the best state that it has kept and taken again.
    """
    words = ran(board)
    size = RECORD.itemsize // 4 * STEPS
    behind = size + ROOM * project("cortex-m0plus").train.graph.inputs[0].elements + ROOM
    steps, room, ends = words[:size].view(RECORD), words[size:behind], words[behind:]
    x, y = samples()
    reservoir, taken = Reservoir[int](ROOM, seed=7), 0
    reservoir.mix(3, 2)
    running, stop, spread, vote = Running(20), Stop(False, 0.01, 6), Spread(), Vote(7)
    watch = Watch(4, 1.5)
    for step, said in enumerate(steps):
        old = reservoir.due()
        index = reservoir.draw() if old else taken % SAMPLES
        if not old:
            reservoir.add(index, int(y[index]))
            taken += 1
        assert (said["old"], said["label"], said["first"]) == (old, y[index], x[index][0])
        assert [np.float32(one.rate_of(step)) for one in SCHEDULES] == said["rates"].tolist()
        running.add(said["loss"])
        spread.add(said["loss"])
        assert said["mean"] == np.float32(running.mean)
        assert ("better", "not better", "stop")[said["verdict"]] == stop.add(running.mean)
        assert said["voted"] == vote.add(int(said["label"]))
        if step < 20:
            watch.add_untrained(said["loss"])
        health = watch.add(said["loss"] * np.float32(1 if step < 60 else 6))
        assert (("healthy", "worse")[said["health"]], said["trust"]) == (health, np.float32(watch.slow.mean))
        assert said["threshold"] == np.float32(spread.threshold(2.5))
    assert steps["old"].sum() == 39, "two of five, and nothing is owed for the first"
    assert set(steps["verdict"].tolist()) == {0, 1, 2}
    assert set(steps["health"].tolist()) == {0, 1}
    held = [x[index].tobytes() + y[index].tobytes() for index in reservoir.samples]
    assert room.tobytes() == b"".join(held)
    losses = steps["loss"]
    assert ends[: len(SHARES)].view(np.float32).tolist() == [percentile(losses[:-1], share) for share in SHARES]
    assert losses[-20:].mean() < losses[:20].mean(), "it trains"
    return steps, ends[len(SHARES) :].tobytes()


def test_the_host_decides_as_the_twins_do() -> None:
    """And the best state is that behind the step with the best mean: a twin that trains on the same has it."""
    steps, best = judged("host")
    made = project("cortex-m0plus")
    last = int(np.flatnonzero(steps["verdict"] == 0)[-1])
    with tempfile.TemporaryDirectory() as folder:
        library = build_library(made.bundle, find_tools(), Path(folder))
        instance = Instance(library, made.bundle.interface)
        x, y = samples()
        firsts = x[:, 0].tolist()
        for step in range(last + 1):
            index = firsts.index(steps["first"][step])
            instance.set_rate(SCHEDULES[2].rate_of(step))
            instance.train(x[index : index + 1].reshape(1, -1), y[index : index + 1])
        assert instance.save() == best


@pytest.mark.qemu
@needs_qemu
@pytest.mark.parametrize("board", chain.BOARDS)
def test_boards_decide_as_the_twins_do(board: str) -> None:
    judged(board)


def test_every_sample_is_held_with_the_same_probability() -> None:
    """20 of 60, over 3,000 seeds: each is held 1,000 times, give or take five standard deviations."""
    held = np.zeros(60, int)
    for seed in range(3000):
        reservoir = Reservoir[int](20, seed)
        for index in range(60):
            reservoir.add(index)
        held[reservoir.samples] += 1
    assert np.abs(held - 1000).max() < 5 * np.sqrt(3000 * (1 / 3) * (2 / 3))


def test_classes_share_the_places() -> None:
    """A reservoir of a sorted stream has samples of all classes, and draws take the classes in turn."""
    reservoir, offered = Reservoir[int](12, 5), [0] * 100 + [1] * 2 + [2] * 50 + [-1]
    for label in offered:
        reservoir.add(label, label)
    assert sorted(Counter(reservoir.samples).values()) == [1, 2, 4, 5]
    assert Counter(reservoir.draw() for _ in range(40)) == dict.fromkeys((0, 1, 2, -1), 10)
    reservoir.add(0, 0)
    assert [reservoir.draw() for _ in range(3)].count(0) == 0, "it was just trained"


def test_samples_of_a_class_are_held_with_the_same_probability() -> None:
    """10 of 40 of each of two classes, one after the other, over 1,000 seeds: 250 times each."""
    held = np.zeros(80, int)
    for seed in range(1000):
        reservoir = Reservoir[int](20, seed)
        for index in range(80):
            reservoir.add(index, index // 40)
        held[reservoir.samples] += 1
    assert held[:40].sum() == held[40:].sum()
    assert np.abs(held - 250).max() < 5 * np.sqrt(1000 * (1 / 4) * (3 / 4))


@pytest.mark.parametrize("whole", [1, 2, 7, 1000, 3_000_000_000])
def test_a_cosine_is_one(whole: int) -> None:
    """Against float64: within two units in the last place of 1."""
    schedule = Schedule("cosine", 1.0, every=whole)
    for done in {0, 1, whole // 3, whole // 2, whole // 2 + 1, whole - 1, whole, whole + 5}:
        exact = 0.5 * (1 + np.cos(np.pi * min(done, whole) / whole))
        assert abs(schedule.rate_of(done) - exact) < 2.0**-22


def test_means_and_percentiles_are_those_of_numpy() -> None:
    values = np.random.default_rng(5).gamma(2.0, size=997).astype(np.float32)
    spread, running = Spread(), Running(2000)
    for value in values:
        spread.add(float(value))
        running.add(float(value))
    exact = values.astype(np.float64)
    assert spread.threshold(3.0) == pytest.approx(exact.mean() + 3 * exact.std(), rel=1e-5)
    assert running.mean == pytest.approx(exact.mean(), rel=1e-5)
    for per_mille in (1, 10, 250, 500, 990, 999, 1000):
        assert percentile(values, per_mille) == np.percentile(values, per_mille / 10, method="inverted_cdf")


# ---- the C alone ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """programs/parts.c under AddressSanitizer and UBSan."""
    folder = tmp_path_factory.mktemp("parts")
    shutil.copy(PROGRAMS / "parts.c", folder)
    bundle = project("cortex-m0plus").bundle
    write_files(folder, bundle.files)
    build(["gcc", *STRICT, *NUMERIC, "-O0", *SANITIZED, "parts.c", *sources(bundle), "-o", "parts"], folder)
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
    build(["gcc", *STRICT, *flags, "-fno-pie", "-c", *names], folder)  # tables of addresses are constants then
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
    build(["gcc", *STRICT, *NUMERIC, "-O0", "-c", *sources(bundle)], tmp_path)
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
    stateless = tuple(part for part in PARTS if part != JOURNAL)  # a journal is in the checkpoint
    plain, more, without = (
        chain.project(chain.train_graph(models.mlp()), "cortex-m0plus", parts=RuntimeParts(parts, ROOM)).bundle.files
        for parts in ((), stateless, tuple(part for part in stateless if part not in OF_WEIGHTS))
    )
    added = {f"net_{part}.{kind}" for part in stateless for kind in "hc"}
    assert set(more) - set(plain) == added
    inner = {"net_train.c", "net_internal.h"}  # which tell parts of the weights where the state lies
    assert {name for name, text in plain.items() if more[name] != text} == {"CMakeLists.txt", *inner}
    assert all(without[name] == plain[name] for name in inner)
    assert all(name in more["CMakeLists.txt"] for name in added if name.endswith(".c"))
