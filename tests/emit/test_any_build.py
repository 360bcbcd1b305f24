"""The generated C computes the same bytes in any build, not only with our flags, and on a host those of the board."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from testing.networks import models
from tests.e2e import chain
from tests.e2e.marks import needs_qemu
from tests.emit.test_generated_c import build, call, sources
from tests.quantize import nets
from tinytrain_compile.verify import build as firmware_build
from tinytrain_compile.verify.build import write_files
from tinytrain_compile.verify.firmware import COMPILE_FLAGS

CALLER = Path(__file__).parent / "programs" / "caller.c"
NETS = {
    "float32": lambda: chain.train_graph(models.transformer(4, 8, 2), optimizer="adamw", learning_rate=0.02),
    "int8 below a float head": lambda: nets.int8_train(nets.quantised(), head="fp32", optimizer="momentum"),
}
INPUTS = {"float32": ("-DVALUE=float", "-DPART=0.02f"), "int8 below a float head": ("-DVALUE=int8_t", "-DPART=1.0f")}
FUSED = "-mfma"
"""A host's fused multiply-adds: what a compiler may contract into."""
pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")


@pytest.fixture(scope="module", params=NETS)
def project(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, chain.Project, Path]:
    """A project for a core with fused multiply-adds, and a folder that has its files."""
    made = chain.project(NETS[request.param](), "cortex-m7")
    folder = tmp_path_factory.mktemp("any")
    write_files(folder, {**made.bundle.files, "caller.c": CALLER.read_text()})
    return request.param, made, folder


def flags_here(*flags: str) -> list[str]:
    """The flags, with fused multiply-adds where this machine has them."""
    known = Path("/proc/cpuinfo")
    return [*flags, *([FUSED] if known.is_file() and " fma " in known.read_text() else [])]


def printed(project: tuple[str, chain.Project, Path], compiler: str, flags: list[str]) -> str:
    """What the caller prints: the bits of losses and state."""
    kind, made, folder = project
    build([compiler, *flags, *INPUTS[kind], "caller.c", *sources(made.bundle), "-o", "caller"], folder)
    done = call([folder / "caller"], folder)
    assert done.returncode == 0
    return done.stdout


@pytest.fixture(scope="module")
def expected(project: tuple[str, chain.Project, Path]) -> str:
    """What our own flags give."""
    text = printed(project, "gcc", list(COMPILE_FLAGS))
    losses = text.split()[:6]
    assert len(set(losses)) == 6, "it trains"
    return text


GCC_FLAGS = (
    ("-std=gnu11", "-O3", "-ffp-contract=fast"),
    ("-std=gnu17", "-Os", "-funsigned-char", "-fshort-enums", "-fwrapv"),
    ("-std=c11", "-O0", "-ffp-contract=fast"),
    ("-std=gnu11", "-O2", "-flto", "-fno-strict-aliasing", "-fmath-errno", "-ftree-vectorize"),
)


@pytest.mark.parametrize("flags", GCC_FLAGS, ids=" ".join)
def test_gcc(flags: tuple[str, ...], project: tuple[str, chain.Project, Path], expected: str) -> None:
    assert printed(project, "gcc", flags_here(*flags)) == expected


CLANG_FLAGS = (("-O0",), ("-O3", "-ffp-contract=on"), ("-O2", "-funsafe-math-optimizations", "-freciprocal-math"))


@pytest.mark.parametrize("flags", CLANG_FLAGS, ids=" ".join)
def test_clang(flags: tuple[str, ...], project: tuple[str, chain.Project, Path], expected: str) -> None:
    if shutil.which("clang") is None:
        pytest.skip("clang is not installed")
    assert printed(project, "clang", flags_here(*flags)) == expected


UNSAFE = ("-Ofast", "-ffast-math", "-ffinite-math-only")
PARTS = ("-freciprocal-math", "-funsafe-math-optimizations", "-fno-signed-zeros")
"""What GCC has macros for, too; Clang is told in the file."""
REFUSED = [(cc, flag) for cc in ("gcc", "arm-none-eabi-gcc") for flag in (*UNSAFE, *PARTS)]


@pytest.mark.parametrize(("compiler", "flag"), [*REFUSED, *(("clang", flag) for flag in UNSAFE)])
@pytest.mark.parametrize("project", ["float32"], indirect=True)
def test_fast_math_is_refused(compiler: str, flag: str, project: tuple[str, chain.Project, Path]) -> None:
    """By every C file of the project."""
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    _, made, folder = project
    assert "net_kernels.c" in sources(made.bundle)
    for source in sources(made.bundle):
        done = call([compiler, flag, "-E", "-o", "refused.i", source], folder)
        assert done.returncode != 0
        assert "-ffast-math" in done.stderr and "#error" in done.stderr, done.stderr


@pytest.mark.parametrize("project", ["float32"], indirect=True)
def test_excess_precision_is_refused(project: tuple[str, chain.Project, Path]) -> None:
    done = call(["gcc", "-mfpmath=387", "-fsyntax-only", "net_kernels.c"], project[2])
    if "387" in done.stderr and "unrecognized" in done.stderr:
        pytest.skip("not an x86")
    assert "floats must be computed as floats" in done.stderr


def test_cmake_on_a_host_gives_the_board_s_bytes(project: tuple[str, chain.Project, Path], expected: str) -> None:
    """With the default build type and with Release, no flags of ours, and no library named by the caller."""
    if shutil.which("cmake") is None:
        pytest.skip("cmake is not installed")
    kind, _, folder = project
    lines = ["cmake_minimum_required(VERSION 3.13)", "project(caller C)", "add_subdirectory(.. net)"]
    definitions = " ".join(INPUTS[kind])
    lines += ["add_executable(caller ../caller.c)", f"target_compile_options(caller PRIVATE {definitions})"]
    write_files(folder, {"app/CMakeLists.txt": "\n".join([*lines, "target_link_libraries(caller net)"]) + "\n"})
    for kind in ("", "Release"):
        place = f"build{kind}"
        build(["cmake", "-S", "app", "-B", place, f"-DCMAKE_BUILD_TYPE={kind}", "-DCMAKE_C_FLAGS=-mfma"], folder)
        build(["cmake", "--build", place], folder)
        assert call([folder / place / "caller"], folder).stdout == expected


def test_a_caller_in_cpp_17(project: tuple[str, chain.Project, Path], expected: str) -> None:
    """The public header and the caller as C++17; the .c files stay C."""
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed")
    kind, made, folder = project
    build(["gcc", "-std=gnu11", "-Os", "-c", *sources(made.bundle)], folder)
    objects = [Path(source).with_suffix(".o").name for source in sources(made.bundle)]
    strict = [
        "-std=c++17",
        "-Wall",
        "-Wextra",
        "-Wconversion",
        "-Wshadow",
        "-Wold-style-cast",
        "-Wno-error=old-style-cast",
        "-pedantic",
        "-Werror",
    ]
    build(["g++", *strict, *INPUTS[kind], "-x", "c++", "caller.c", "-x", "none", *objects, "-o", "cpp"], folder)
    assert call([folder / "cpp"], folder).stdout == expected


@pytest.mark.qemu
@needs_qemu
@pytest.mark.parametrize("flags", [("-std=gnu11", "-O3"), ("-std=gnu11", "-Os")], ids=" ".join)
@pytest.mark.parametrize("board", ["cortex-m4", "cortex-m55"])
def test_boards(board: str, flags: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A board's build with other flags computes what a host computes with ours (Helium would take denormals for 0)."""
    made = chain.project(NETS["float32"](), board)
    host = chain.trained(made, "host", 4, tmp_path / "host")
    monkeypatch.setattr(firmware_build, "COMPILE_FLAGS", flags)
    assert chain.same(chain.trained(made, board, 4, tmp_path / "board"), host)


def test_our_own_flags_hide_nothing() -> None:
    """Verification compiles with flags that change no result; whoever adds one has to look at it here."""
    harmless = {"-std=c11", "-O2", "-fno-math-errno", "-fno-tree-vectorize"}
    inside = {"-ffp-contract=off", "-fno-fast-math"}  # tt_runtime.h does or asks for the same
    assert set(COMPILE_FLAGS) == harmless | inside
