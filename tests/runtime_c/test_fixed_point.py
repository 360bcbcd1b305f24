"""The integer helpers equal their numpy twins: on the host, on boards, without undefined behaviour."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.runtime_c.dsp_helpers import DSP_HELPERS
from tests.runtime_c.fixed_point_helpers import HELPERS as WORD_HELPERS
from tests.runtime_c.fixed_point_helpers import Helper
from tests.runtime_c.lane_helpers import LANE_HELPERS
from tests.runtime_c.target_helpers import TARGET_HELPERS
from tests.runtime_c.test_scalar_math import FLAGS, WARNINGS
from tinytrain_compile.files.resources import data_dir, runtime_headers
from tinytrain_compile.ir.stages import Interface, SourceBundle
from tinytrain_compile.target.loader import load_target
from tinytrain_compile.verify.build import compile_project, link_project
from tinytrain_compile.verify.firmware import GUARD_BYTES
from tinytrain_compile.verify.run import run_image
from tinytrain_compile.verify.tools import find_tools

RANDOM, SCALAR_RANDOM, BOARD_RANDOM = 1_000_000, 10_000, 500
HELPERS = (*WORD_HELPERS, *TARGET_HELPERS, *DSP_HELPERS, *LANE_HELPERS)
BY_NAME = {helper.name: helper for helper in HELPERS}
HEADERS = '#include "tt_mve.h"\n#include "tt_qloss.h"\n#include "tt_exponents.h"\n#include "tt_sign.h"\n'
SOURCE = HEADERS + "".join(helper.function() for helper in HELPERS)
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

CHUNK = 256
"""Samples that a check program holds at a time."""
MAIN = """#include "port.h"
@SOURCE@
static volatile unsigned char arena[@SIZE@] PORT_ARENA_SECTION;
static int32_t x[@ARGUMENTS@ * @CHUNK@], y[@OUTPUTS@ * @CHUNK@];
int main(void)
{
    const int32_t input = port_open_input("input.bin"), output = port_open_output("output.bin");
    arena[0] = 0;
@CALLS@
    port_close(output);
    return 0;
}
"""
CALL = """    for (int32_t round = 0; round < @ROUNDS@; round++) {
        if (port_read(input, x, @IN@ * @CHUNK@ * sizeof x[0]) != 0) {
            port_exit(3);
        }
        map_@NAME@(x, y, @CHUNK@);
        (void)port_write(output, y, @OUT@ * @CHUNK@ * sizeof y[0]);
    }"""


def check(helper: Helper, x: np.ndarray, got: np.ndarray) -> None:
    """Every output equals the twin's."""
    bad = np.flatnonzero((got != helper.expected(x)).any(axis=0))
    if bad.size:
        first = int(bad[0])
        wanted = helper.expected(x[:, first : first + 1])[:, 0]
        raise AssertionError(f"tt_{helper.name}: {bad.size} differ, first {x[:, first]}: {got[:, first]} != {wanted}")


def samples(helper: Helper, count: int) -> np.ndarray:
    """The helper's edges, and `count` random samples; the same ones in every run."""
    return helper.samples(np.random.default_rng(zlib.crc32(helper.name.encode())), count)


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    if shutil.which("gcc") is None:
        pytest.skip("gcc not found")
    folder = tmp_path_factory.mktemp("fixed")
    (folder / "map.c").write_text(SOURCE)
    options = [*FLAGS.split(), *WARNINGS.split(), "-Wsign-conversion", f"-I{data_dir('runtime_c')}"]
    subprocess.run(["gcc", *options, "-shared", "-fPIC", "map.c", "-o", "map.so"], cwd=folder, check=True)
    return ctypes.CDLL(str(folder / "map.so"))


def call(library: ctypes.CDLL, helper: Helper, x: np.ndarray) -> np.ndarray:
    x = np.ascontiguousarray(x, np.int32)
    y = np.zeros((helper.outputs, x.shape[1]), np.int32)
    pointers = [ctypes.c_void_p(array.ctypes.data) for array in (x, y)]
    getattr(library, f"map_{helper.name}")(*pointers, ctypes.c_size_t(x.shape[1]))
    return y


@pytest.mark.parametrize("share", [4, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", sorted(BY_NAME))
def test_c_equals_numpy_twin(name: str, share: int, library: ctypes.CDLL) -> None:
    helper = BY_NAME[name]
    x = samples(helper, (SCALAR_RANDOM if helper.scalar or helper.long else RANDOM) // share)
    check(helper, x, call(library, helper, x))


def test_errors_near_the_edge_at_every_exponent(library: ctypes.CDLL) -> None:
    """A magnitude within a factor of 16 of the least one that rounds beyond 127, below the peak; also denormal ones."""
    rng, exponents = np.random.default_rng(5), np.repeat(np.arange(-135, 136, dtype=np.int32), 200)
    count = exponents.size
    of_float = np.clip(exponents + 127 + 7 + rng.integers(-4, 5, count), 0, 254) << 23
    bits = (
        (rng.integers(0, 2, count) << 31 | of_float | rng.integers(0, 1 << 23, count)).astype(np.uint32).view(np.int32)
    )
    x = np.asarray([bits, exponents, np.full(count, 0x7F000000, np.int32)])
    check(BY_NAME["quantise_error"], x, call(library, BY_NAME["quantise_error"], x))


def test_c_requantises_by_the_published_formula(library: ctypes.CDLL) -> None:
    """CMSIS-NN: a 64-bit product plus 2**30, shifted by 31; then a division with ties away from zero."""
    x = samples(BY_NAME["requantise"], 300_000)
    x = x[:, (x[2] <= 0) & (x[2] >= -31)]
    acc, multiplier, bits = x[0].astype(np.int64), x[1].astype(np.int64), -x[2].astype(np.int64)
    high = ((1 << 30) + acc * multiplier) >> 31
    remainder = high & ((1 << bits) - 1)
    quotient = high >> bits
    threshold = (((1 << bits) - 1) >> 1) + (quotient < 0)
    expected = quotient + (remainder > threshold)
    np.testing.assert_array_equal(call(library, BY_NAME["requantise"], x)[0], expected)


def program() -> tuple[str, list[np.ndarray], bytes]:
    """(C text, samples of every helper, input file) of a check program for a board or a sanitizer."""
    calls: list[str] = []
    inputs: list[np.ndarray] = []
    data = bytearray()
    for helper in HELPERS:
        x = samples(helper, BOARD_RANDOM)
        rng = np.random.default_rng(0)
        rounds = 8
        edges: int = x.shape[1] - BOARD_RANDOM
        some: Any = rng.permutation(edges)[: rounds * CHUNK - BOARD_RANDOM]
        x = x[:, np.append(some, np.arange(edges, edges + BOARD_RANDOM))]
        x = np.resize(x.T, (rounds * CHUNK, x.shape[0])).T
        for part in np.split(x, rounds, axis=1):
            data += np.ascontiguousarray(part, np.int32).tobytes()
        inputs.append(x)
        numbers = {"ROUNDS": rounds, "IN": len(helper.arguments), "OUT": helper.outputs, "NAME": helper.name}
        text = CALL
        for key, value in numbers.items():
            text = text.replace(f"@{key}@", str(value))
        calls.append(text)
    sizes = {
        "SOURCE": SOURCE,
        "CALLS": "\n".join(calls),
        "SIZE": 2 * GUARD_BYTES,
        "ARGUMENTS": max(len(h.arguments) for h in HELPERS),
        "OUTPUTS": max(h.outputs for h in HELPERS),
        "CHUNK": CHUNK,
    }
    main = MAIN
    for key, value in sizes.items():
        main = main.replace(f"@{key}@", str(value))
    return main, inputs, bytes(data)


def check_program(output: bytes, inputs: list[np.ndarray]) -> None:
    """The output file of a check program equals the twins."""
    words = np.frombuffer(output, np.int32)
    position = 0
    for helper, x in zip(HELPERS, inputs, strict=True):
        count = helper.outputs * x.shape[1]
        rounds = words[position : position + count].reshape(-1, helper.outputs, CHUNK)
        check(helper, x, rounds.transpose(1, 0, 2).reshape(helper.outputs, -1))
        position += count
    assert position == words.size


def test_no_undefined_behaviour(tmp_path: Path) -> None:
    if shutil.which("gcc") is None:
        pytest.skip("gcc not found")
    text, inputs, data = program()
    (tmp_path / "main.c").write_text(text)
    (tmp_path / "input.bin").write_bytes(data)
    sanitize = ["-fsanitize=undefined", "-fno-sanitize-recover=all"]
    folders = [f"-I{data_dir('runtime_c')}", f"-I{data_dir('runtime_c') / 'ports'}"]
    host = str(data_dir("runtime_c") / "ports" / "host.c")
    built = subprocess.run(
        ["gcc", *FLAGS.split(), "-DTT_CHECK", *sanitize, *folders, "main.c", host, "-o", "checked"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    if "ubsan" in built.stderr:
        pytest.skip("no undefined-behaviour sanitizer")
    assert built.returncode == 0, built.stderr
    ran = subprocess.run([str(tmp_path / "checked")], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    check_program((tmp_path / "output.bin").read_bytes(), inputs)


@pytest.mark.qemu
@pytest.mark.parametrize("name", ["cortex-m7", "cortex-m0plus", "cortex-m55"])
def test_boards_equal_numpy_twins(name: str, tmp_path: Path) -> None:
    tools = find_tools(load_target(name))
    if tools.missing_for_qemu():
        pytest.skip(tools.missing_for_qemu())
    text, inputs, data = program()
    files = {"main.c": text, **runtime_headers()}
    bundle = SourceBundle(files, Interface("none", 1, 1, "float", 1, 0, 0, 8, False, ()))
    compiled = compile_project(bundle, load_target(name), "qemu", tools, tmp_path, check_sources=("verify/startup.c",))
    built = link_project(compiled, load_target(name), tools)
    check_program(run_image(built, load_target(name), tools, data, timeout_s=240), inputs)


MUTATIONS = (
    ("requantise", "(mask >> 1) + (value < 0 ? 1u : 0u)", "(mask >> 1)"),  # ties toward +infinity
    ("shift_right", "> half ? 1 : 0", ">= half ? 1 : 0"),
    ("high_multiply", "(int64_t)a * b + (1 << 30)", "(int64_t)a * b"),  # truncation
    ("shift_left", "value > (INT32_MAX >> n)", "false"),  # wraps
    ("scaled", "(product + ((int64_t)1 << (n - 1u))) >> n", "product >> n"),
    ("moved_weight", "- move + noise) >> 8", "- move) >> 8"),  # the dead zone of truncating updates
    ("saturate8", "+ zero);", ");"),
    ("passes", "value > low", "value >= low"),
    ("error", "tt_clamp(value, -127, 127)", "tt_clamp(value, -128, 127)"),
    ("rounded_near", "(x + 12582912.0f) - 12582912.0f", "x + 0.5f"),
    ("rounded", "0.49999997f : 0.5f", "0.5f : 0.5f"),
    ("rounded", "x > 0.0f ? INT32_MAX : x < 0.0f ? INT32_MIN : 0", "0"),
    ("update_exponent", "state[1] == TT_QUIET_APPLIES", "state[1] == TT_QUIET_APPLIES - 1"),
    ("noise", "word ^= word >> 15;", ""),
    ("dot4", "acc += a[2] * b[2];", "acc += a[2] * b[1];"),
    ("dot_2x2_3", "a + i + 4, b + i + 4);", "a + i + 4, b + i);"),
    ("dot_direct_2x2_3", "*sum_10 += x_1 * b[k];", "*sum_10 += x_1 * b_1[k];"),
    ("dot_direct_1x4_3", "x * b[k + 2 * pitch];", "x * b[k + pitch];"),
    ("dot_direct_4x1_3", "a[place + 12] * y", "a[place + 8] * y"),
    ("dot_direct_1x1_2", "a[(k & 1) * 2 + (k >> 1)] * b[k];", "a[k] * b[k];"),
    ("dot_columns_1x4_3", "*sum_10 += x * row[2];", "*sum_10 += x * row[1];"),
    ("sum_columns_16", "*sum_2 += from[2];", "*sum_2 += from[1];"),
    ("dot_windows_2_14_3", "a_row + next + k, b_row + k)", "a_row + k, b_row + k)"),
    ("gather4", "from[2 * pitch] + offset);", "from[2 * pitch]);"),
    ("widen_two_2", "to, from, from + pitch, offset, blocks)", "to, from, from, offset, blocks)"),
    ("gather_two_5", "4 * i * pitch + 1, pitch, offset);", "4 * i * pitch, pitch, offset);"),
    ("rescaled_error", "keep ? tt_quick_error(tt_rescaled", "true ? tt_quick_error(tt_rescaled"),
    ("lifted", "exponent <= 14 ?", "exponent <= 15 ?"),
    ("passed8_125_228", "(low + 129)", "(low + 128)"),
    ("requantise8", "tt_rescaled(tt_quick_add(acc, bias)", "tt_rescaled(acc + bias"),
    ("quick_halve", "value + (value >> 31) + zero", "value + zero"),
    ("halve8_140", "zero * (1 << times)", "0"),
    ("halve_x4", "tt_halve(value[i], times)", "value[i] >> times"),
    ("above", "y == 0 && sum > 0 ? 1", "y == 0 && sum > 1 ? 1"),
    (
        "requantise8_kept_above",
        "tt_above(tt_requantise(sum, tt_multiplier(factor), -down), sum)",
        "tt_requantise(sum, tt_multiplier(factor), -down)",
    ),
    (
        "requantise8_above_x4",
        "tt_above_x4(tt_requantise_x4(sum, multiplier, shift), sum)",
        "tt_requantise_x4(sum, multiplier, shift)",
    ),
    (
        "requantise8_once",
        "tt_requantise_once(sum, tt_multiplier(factor), -down)",
        "tt_requantise(sum, tt_multiplier(factor), -down)",
    ),
    (
        "requantise8_once_x4",
        "tt_requantise_once(sum[i], multiplier[i], shift[i])",
        "tt_requantise(sum[i], multiplier[i], shift[i])",
    ),
    ("dot8_x4_27", "*sum_2 += a[k] * b2[k];", "*sum_2 += a[k] * b1[k];"),
    ("requantise8_kept", "tt_add(acc, bias), tt_multiplier(factor)", "acc + bias, tt_multiplier(factor)"),
)


@pytest.mark.parametrize(("name", "code", "mutant"), MUTATIONS)
def test_a_mutant_is_noticed(name: str, code: str, mutant: str, tmp_path: Path) -> None:
    headers = runtime_headers()
    assert sum(text.count(code) for text in headers.values()) == 1, code
    for file, text in headers.items():
        (tmp_path / file).write_text(text.replace(code, mutant))
    helper = BY_NAME[name]
    (tmp_path / "map.c").write_text(HEADERS + helper.function())
    subprocess.run(
        ["gcc", *FLAGS.split(), "-shared", "-fPIC", "-I.", "map.c", "-o", "map.so"], cwd=tmp_path, check=True
    )
    x = samples(helper, 5000)
    with pytest.raises(AssertionError, match="differ"):
        check(helper, x, call(ctypes.CDLL(str(tmp_path / "map.so")), helper, x))
