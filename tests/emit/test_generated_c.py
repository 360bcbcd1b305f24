"""The generated C by itself: compiles strictly, keeps its API's promises, and touches nothing but its arena."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from testing.networks import models
from tests.e2e import chain
from tinytrain_compile import __version__
from tinytrain_compile.emit.c_text import readable
from tinytrain_compile.ir.stages import SourceBundle
from tinytrain_compile.verify.build import write_files

HERE = Path(__file__).parent
CHECKS = re.findall(r'^    \{"(\w+)", \1\},$', (HERE / "programs" / "checks.c").read_text(), re.MULTILINE)
STRICT = (
    *("-std=c11", "-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-Wvla", "-Wdouble-promotion", "-pedantic"),
    *("-Wundef", "-Wcast-qual", "-Wpointer-arith", "-Wwrite-strings", "-Wstrict-prototypes", "-Wformat=2", "-Werror"),
)
NUMERIC = ("-ffp-contract=off", "-fno-fast-math", "-fno-math-errno", "-fno-tree-vectorize")
SANITIZED = ("-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer")
needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")
pytestmark = needs_gcc


def call(command: list[str | Path], folder: Path, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0"}  # the checks leave their arenas to the exit
    return subprocess.run(
        [str(part) for part in command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
    )


def build(command: list[str | Path], folder: Path) -> None:
    done = call(command, folder)
    assert done.returncode == 0, done.stderr[:4000]


def sources(bundle: SourceBundle) -> list[str]:
    return sorted(name for name in bundle.files if name.endswith(".c"))


def bundle_of(model: onnx.ModelProto, name: str = "net", **options: object) -> SourceBundle:
    return chain.project(chain.train_graph(model, **options), "host", name=name).bundle  # type: ignore[arg-type]


# ---- compiling ------------------------------------------------------------------------------------------------------

VARIANTS: dict[str, Callable[[], SourceBundle]] = {
    "mlp adam batch": lambda: bundle_of(models.mlp(), optimizer="adam", batch=2, weight_decay=0.1),
    "mlp bce": lambda: bundle_of(models.mlp(tail="Sigmoid"), loss="bce"),
    "ds_cnn momentum": lambda: bundle_of(models.ds_cnn(8, 1, (12, 6)), optimizer="momentum"),
    "resnet8 bias": lambda: bundle_of(models.resnet8(4, 16), update="bias"),
    "transformer adamw": lambda: bundle_of(models.transformer(4, 8, 2), optimizer="adamw"),
    "own loss": lambda: bundle_of(models.with_loss(models.mlp(), [1, 2, 3, 4], "sum", ignore=-1)),
}


@pytest.fixture(scope="module")
def bundles() -> dict[str, SourceBundle]:
    return {name: make() for name, make in VARIANTS.items()}


@pytest.mark.parametrize("level", ["-O0", "-O2", "-O3", "-Os"])
@pytest.mark.parametrize("name", VARIANTS)
def test_compiles_without_warnings(name: str, level: str, bundles: dict[str, SourceBundle], tmp_path: Path) -> None:
    write_files(tmp_path, bundles[name].files)
    build(["gcc", *STRICT, *NUMERIC, level, "-c", *sources(bundles[name])], tmp_path)


@pytest.mark.parametrize("name", ["mlp adam batch", "ds_cnn momentum"])
def test_static_analyzer_has_nothing_to_say(name: str, bundles: dict[str, SourceBundle], tmp_path: Path) -> None:
    write_files(tmp_path, bundles[name].files)
    build(["gcc", *STRICT, *NUMERIC, "-O2", "-fanalyzer", "-c", *sources(bundles[name])], tmp_path)


@pytest.mark.parametrize("standard", ["c++11", "c++20"])
@pytest.mark.parametrize("name", ["class", "template", "net"])
def test_header_serves_cpp(name: str, standard: str, tmp_path: Path) -> None:
    """A C++ program includes the header and links the C objects."""
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed")
    bundle = bundle_of(models.mlp(), name=name)
    p = bundle.interface.prefix
    write_files(tmp_path, bundle.files)
    (tmp_path / "main.cpp").write_text(
        f'#include "{p}_train.h"\n#include <cstdlib>\n'
        f"int main() {{\n    void *const arena = std::malloc({p.upper()}_ARENA_BYTES);\n    {p}_t *m = nullptr;\n"
        f"    if ({p}_init(&m, arena, {p.upper()}_ARENA_BYTES) != {p.upper()}_OK) {{ return 1; }}\n"
        f"    {p}_input(m)->values[0] = 1.0f;\n    {p}_output_t out;\n"
        f"    return {p}_infer(m, &out) == {p.upper()}_OK ? 0 : 2;\n}}\n"
    )
    build(["gcc", *STRICT, *NUMERIC, "-O0", "-c", *sources(bundle)], tmp_path)
    objects = [Path(source).with_suffix(".o") for source in sources(bundle)]
    strict = ["-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-pedantic", "-Werror"]
    build(["g++", f"-std={standard}", *strict, "main.cpp", *objects, "-o", "main"], tmp_path)
    assert call([tmp_path / "main"], tmp_path).returncode == 0


def test_headers_stand_alone(bundles: dict[str, SourceBundle], tmp_path: Path) -> None:
    bundle = bundles["mlp adam batch"]
    write_files(tmp_path, bundle.files)
    for header in ("net_train.h", "net_internal.h", "tt_runtime.h"):
        (tmp_path / "alone.c").write_text(f'#include "{header}"\n#include "{header}"\nextern int nothing;\n')
        build(["gcc", *STRICT, "-Wno-unused-function", "-fsyntax-only", "alone.c"], tmp_path)


def test_every_file_says_its_licence_and_its_maker(bundles: dict[str, SourceBundle]) -> None:
    for name, text in bundles["mlp adam batch"].files.items():
        own = not name.startswith("tt_")
        licence = "LicenseRef-model-owner" if own else "Apache-2.0 WITH LLVM-exception"
        assert re.match(rf"(/\*|#) SPDX-License-Identifier: {licence}( \*/)?\n", text), name
        assert not own or f"tinytrain-compile {__version__}" in text, name


def test_build_file_has_the_flags_that_matter(bundles: dict[str, SourceBundle]) -> None:
    text = bundles["mlp bce"].files["CMakeLists.txt"]
    assert "add_library(net STATIC net_train.c net_kernels.c net_weights.c)" in text
    assert all(flag in text for flag in ("-O2", *NUMERIC))


def test_cmake_builds_it(bundles: dict[str, SourceBundle], tmp_path: Path) -> None:
    if shutil.which("cmake") is None:
        pytest.skip("cmake is not installed")
    write_files(tmp_path, bundles["mlp bce"].files)
    build(["cmake", "-S", ".", "-B", "build"], tmp_path)
    build(["cmake", "--build", "build"], tmp_path)
    assert (tmp_path / "build" / "libnet.a").is_file()


def test_what_changes_lies_in_the_arena(bundles: dict[str, SourceBundle], tmp_path: Path) -> None:
    """No object has a writable section, and nothing but memory functions is called."""
    for name, bundle in bundles.items():
        folder = tmp_path / name.replace(" ", "_")
        write_files(folder, bundle.files)
        build(["gcc", *STRICT, *NUMERIC, "-O2", "-c", *sources(bundle)], folder)
        for source in sources(bundle):
            listing = call(["nm", Path(source).with_suffix(".o")], folder).stdout
            kinds = {line.split()[-2]: line.split()[-1] for line in listing.splitlines()}
            assert not set(kinds) & set("bBdDC"), kinds
            undefined = {line.split()[-1] for line in listing.splitlines() if " U " in line}
            outside = {symbol for symbol in undefined if not symbol.startswith("net_")}
            assert outside <= {"memcpy", "memset", "memmove", "_GLOBAL_OFFSET_TABLE_", "__stack_chk_fail"}


# ---- the API --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """programs/checks.c with two models in one image, under AddressSanitizer and UBSan."""
    folder = tmp_path_factory.mktemp("api")
    for name in ("checks.c", "checks.h"):
        shutil.copy(HERE / "programs" / name, folder)
    files: list[str] = []
    for name, batch in (("net", 1), ("sums", 4)):
        bundle = bundle_of(models.mlp(), name=name, optimizer="momentum", batch=batch)
        write_files(folder, bundle.files)
        files += sources(bundle)
    build(["gcc", *STRICT, *NUMERIC, "-O0", *SANITIZED, "checks.c", *files, "-o", "checks"], folder)
    return folder / "checks"


@pytest.mark.parametrize("name", CHECKS)
def test_api(name: str, program: Path) -> None:
    done = call([program, name], program.parent)
    assert done.returncode == 0, done.stdout + done.stderr[:3000]
    assert done.stderr == ""


def test_all_checks_are_known(program: Path) -> None:
    assert call([program], program.parent).stdout.split() == CHECKS
    assert len(CHECKS) == 16


# ---- sanitizers -----------------------------------------------------------------------------------------------------

EXERCISE = """#include "net_train.h"
#include <stdlib.h>
#include <string.h>
int main(void)
{
    unsigned char *arena = malloc(NET_ARENA_BYTES); /* exactly: one byte beyond it is a report */
    void *const mem[1] = {arena};
    const size_t size[1] = {NET_ARENA_BYTES};
    net_output_t *out = malloc(sizeof *out);
    net_label_t *label = malloc(sizeof *label);
    NUMBER *labels = (NUMBER *)(void *)label;
    float loss;
    net_t *m;
    memset(arena, 0xff, NET_ARENA_BYTES);
    if (net_init_memories(&m, mem, size) != NET_OK) {
        return 1;
    }
    for (int step = 0; step < 4; ++step) {
        for (size_t i = 0; i < NET_INPUT_ELEMENTS; ++i) {
            net_input(m)->values[i] = (float)((int)(i * 37u) % 19 - 9) * 0.1f;
        }
        for (size_t i = 0; i < NET_LABEL_ELEMENTS; ++i) {
            labels[i] = (NUMBER)((step + (int)i) % 2);
        }
        if (net_train_step(m, label, &loss) != NET_OK || net_infer(m, out) != NET_OK) {
            return 2;
        }
    }
    free(label);
    free(out);
    free(arena);
    return 0;
}
"""


@pytest.mark.parametrize("name", VARIANTS)
def test_sanitizers_report_nothing(name: str, bundles: dict[str, SourceBundle], tmp_path: Path) -> None:
    """The arena starts as NaN garbage, so a read of what nobody wrote would also show as a NaN loss."""
    write_files(tmp_path, {**bundles[name].files, "main.c": EXERCISE})
    number = f"-DNUMBER={bundles[name].interface.label_ctype}"
    build(
        ["gcc", *STRICT, *NUMERIC, number, "-O0", *SANITIZED, "main.c", *sources(bundles[name]), "-o", "main"], tmp_path
    )
    done = call([tmp_path / "main"], tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


# ---- reading --------------------------------------------------------------------------------------------------------


def code_of(text: str) -> str:
    return re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)


@pytest.mark.parametrize("name", VARIANTS)
def test_macros_and_enumerators_are_used(name: str, bundles: dict[str, SourceBundle]) -> None:
    for file in sources(bundles[name]):
        code = code_of(bundles[name].files[file])
        enums = "".join(re.findall(r"^enum \{\n(.*?)^\};", code, re.DOTALL | re.MULTILINE))
        defined = re.findall(r"^#define (\w+)", code, re.MULTILINE) + re.findall(r"^ +(\w+)", enums, re.MULTILINE)
        assert [each for each in defined if len(re.findall(rf"\b{each}\b", code)) < 2] == []


def test_offsets_say_what_is_there() -> None:
    text = bundle_of(models.mlp()).files["net_train.c"]
    enum = text.partition("enum {\n")[2].partition("};")[0]
    persistent, transient = enum.split("    /* Transient: valid inside a call, in these steps. */\n")
    heading, *kept = persistent.splitlines()
    assert (
        heading == "    /* Persistent: kept between calls. */" and "    AT_learning_rate = 16, /* 4 B, float */" in kept
    )
    size = r"    AT_\w+ = \d+, /\* [\d,]+ B, \w+(\[[\dx]+\])?(, scratch)?"
    assert [line for line in kept if not re.fullmatch(size + r" \*/", line)] == []
    lasting = size + r", (step \d+|steps \d+\.\.\d+) \*/"
    assert [line for line in transient.splitlines() if not re.fullmatch(lasting, line)] == []
    called = {int(number) for number in re.findall(r"^ +/\* \[(\d+)\] .*: \w+ \*/$", text, re.MULTILINE)}
    assert 0 in called and len(called) > 8  # the steps that the offsets speak of


# ---- goldens --------------------------------------------------------------------------------------------------------


def test_golden_texts(golden: Callable[[str, str], None]) -> None:
    """A kernel and the call sequence of a two-layer MLP, for people to look at when they change."""
    net = models.Network("tiny", "float[1, 3] x", "float[1, 2] y", seed=6)
    hidden = net.relu(net.dense("first", "x", 3, 4))
    net.node("out", f"y = Identity ({net.dense('second', hidden, 4, 2)})")
    made = chain.project(chain.train_graph(net.model()), "cortex-m7", name="tiny")
    golden("tiny_train.c", made.bundle.files["tiny_train.c"])
    golden("tiny_train.h", made.bundle.files["tiny_train.h"])
    kernels = {kernel.name: kernel for kernel in made.kernels.kernels}
    golden("tiny_gemm_4.c", readable(kernels["tiny_gemm_4"].source))
