"""tt_runtime.h against its numpy twins (to the bit) and against float64 (stated error bounds)."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tinytrain_compile.files.resources import data_dir
from tinytrain_compile.ops import scalar_math

FLAGS = "-std=c11 -O2 -ffp-contract=off -fno-fast-math -fno-math-errno"
WARNINGS = "-Wall -Wextra -Wconversion -Wshadow -Wvla -Wdouble-promotion -pedantic -Werror"
FUNCTIONS = ("exp", "log", "log1p", "sqrt", "tanh", "erf", "sigmoid", "sin", "cos")
BOUND_ULP = {
    "exp": 1.0,
    "log": 1.0,
    "log1p": 1.5,
    "sqrt": 0.5,
    "tanh": 1.5,
    "erf": 1.5,
    "sigmoid": 2.5,
    "sin": 3.0,
    "cos": 3.0,
}
PATTERNS = 1_000_000

EDGE_TEXT = """
0 -0 inf -inf nan 1 -1 0.625 0.92 3.925 9.02 88.72283 88.72284 88.7229 89 -87.3 -87.34 -88 -103 -103.97 -103.98 -104
1e-45 -1e-45 1.1754942e-38 1.1754944e-38 3.4028235e38 -3.4028235e38 5.9604645e-8 -5.9604645e-8 0.70710677 0.7071068
1.4142135 16777216 -0.99999994 0.78539812 0.7853982 1.5707964 3.1415927 11 22 1e5 1.6e7 2.5e30"""
EDGES = np.array(EDGE_TEXT.split(), np.float32)
pytestmark = pytest.mark.filterwarnings(
    "ignore::RuntimeWarning"
)  # numpy warns about the NaNs and infinities we feed it


def bit_patterns(count: int, seed: int) -> np.ndarray:
    """Random bit patterns (all exponents, denormals, NaNs), as many values of ordinary size, and the edges."""
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 2**32, count, dtype=np.uint32).view(np.float32)
    neighbours = [np.nextafter(EDGES, np.float32(np.inf)), np.nextafter(EDGES, np.float32(-np.inf))]
    return np.concatenate([bits, (rng.standard_normal(count) * 8).astype(np.float32), EDGES, *neighbours])


def assert_same_bits(got: np.ndarray, expected: np.ndarray, x: np.ndarray) -> None:
    same = (got.view(np.uint32) == expected.view(np.uint32)) | (np.isnan(got) & np.isnan(expected))
    bad = np.flatnonzero(~same)
    assert bad.size == 0, f"{bad.size} differ, first at x={x[bad[0]]!r}: {got[bad[0]]!r} != {expected[bad[0]]!r}"


Call = Callable[[str, np.ndarray], np.ndarray]
"""(name of a function, arguments) -> its results"""


def compiled(folder: Path, fused: bool = False) -> ctypes.CDLL:
    """Compile all functions for the host; skips without GCC."""
    if shutil.which("gcc") is None:
        pytest.skip("gcc not found")
    lines = ['#include "tt_runtime.h"']
    for name in FUNCTIONS:
        lines.append(
            f"void map_{name}(const float *x, float *y, size_t n);\nvoid map_{name}(const float *x, float *y, size_t n)"
            f"{{ for (size_t i = 0; i < n; i++) {{ y[i] = tt_{name}f(x[i]); }} }}"
        )
    lines.append("uint32_t crc(uint32_t c, const void *d, size_t n);")
    lines.append("uint32_t crc(uint32_t c, const void *d, size_t n) { return tt_crc32(c, d, n); }")
    (folder / "map.c").write_text("\n".join(lines) + "\n")
    options = [*FLAGS.split(), *WARNINGS.split(), f"-DTT_HAS_FMA={int(fused)}", "-shared", "-fPIC"]
    command = ["gcc", *options, f"-I{data_dir('runtime_c')}", "map.c", "-o", "map.so"]
    subprocess.run(command, cwd=folder, check=True)
    return ctypes.CDLL(str(folder / "map.so"))


def mapped(folder: Path, fused: bool = False, library: ctypes.CDLL | None = None) -> Call:
    """Return a function that applies one of them to all elements of an array."""
    built = library or compiled(folder, fused)

    def call(name: str, x: np.ndarray) -> np.ndarray:
        x = np.ascontiguousarray(x, np.float32)
        y = np.empty_like(x)
        getattr(built, f"map_{name}")(
            ctypes.c_void_p(x.ctypes.data), ctypes.c_void_p(y.ctypes.data), ctypes.c_size_t(x.size)
        )
        return y

    return call


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return compiled(tmp_path_factory.mktemp("runtime"))


@pytest.fixture(scope="session")
def run(library: ctypes.CDLL, tmp_path_factory: pytest.TempPathFactory) -> Call:
    return mapped(tmp_path_factory.mktemp("run"), library=library)


@pytest.fixture(scope="session")
def run_fused(tmp_path_factory: pytest.TempPathFactory) -> Call:
    return mapped(tmp_path_factory.mktemp("fused"), fused=True)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_c_equals_numpy_twin(name: str, run: Call) -> None:
    x = bit_patterns(PATTERNS, seed=FUNCTIONS.index(name))
    assert_same_bits(run(name, x), getattr(scalar_math, name)(x), x)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_error_bound(name: str, run: Call, run_fused: Call) -> None:
    x = bit_patterns(PATTERNS, seed=100 + FUNCTIONS.index(name))
    for call in (run, run_fused):
        _check_bound(name, x, call(name, x))


def _check_bound(name: str, x: np.ndarray, got: np.ndarray) -> None:
    exact = getattr(scalar_math, name)(x.astype(np.float64))
    assert exact.dtype == np.float64
    assert np.array_equal(np.isnan(got), np.isnan(exact))
    with np.errstate(over="ignore"):
        infinite = np.isinf(exact.astype(np.float32)) | np.isinf(got)
    np.testing.assert_array_equal(got[infinite], exact[infinite].astype(np.float32))
    finite = ~infinite & ~np.isnan(exact)
    _, exponent = np.frexp(exact[finite])
    ulp = np.ldexp(1.0, np.maximum(exponent - 24, -149))
    worst = float(np.max(np.abs(got[finite] - exact[finite]) / ulp))
    assert worst <= BOUND_ULP[name] + 1e-6, f"{name}: {worst} ulp"


def test_sqrt_is_correctly_rounded(run: Call) -> None:
    x = np.abs(bit_patterns(PATTERNS, seed=7))
    assert_same_bits(run("sqrt", x), np.sqrt(x), x)
    squares = (np.arange(1, 4097, dtype=np.float32)) ** 2
    np.testing.assert_array_equal(run("sqrt", squares), np.arange(1, 4097, dtype=np.float32))


def test_special_values(run: Call) -> None:
    inf, nan = np.float32(np.inf), np.float32(np.nan)
    x = np.array([0.0, -0.0, inf, -inf, nan], np.float32)
    expected = {
        "exp": [1, 1, inf, 0, nan],
        "log": [-inf, -inf, inf, nan, nan],
        "log1p": [0.0, -0.0, inf, nan, nan],
        "sqrt": [0.0, -0.0, inf, nan, nan],
        "tanh": [0.0, -0.0, 1, -1, nan],
        "erf": [0.0, -0.0, 1, -1, nan],
        "sigmoid": [0.5, 0.5, 1, 0, nan],
        "sin": [0.0, -0.0, nan, nan, nan],
        "cos": [1, 1, nan, nan, nan],
    }
    for name, values in expected.items():
        assert_same_bits(run(name, x), np.array(values, np.float32), x)


def test_twins_keep_shape_and_take_scalars() -> None:
    for name in FUNCTIONS:
        function = getattr(scalar_math, name)
        assert function(np.full((2, 3), 0.5, np.float32)).shape == (2, 3)
        scalar = function(np.array(0.5, np.float32))
        assert scalar.shape == ()
        assert scalar.dtype == np.float32
        assert abs(float(scalar) - float(function(np.array(0.5)))) < 1e-6


def test_crc32_equals_zlib(library: ctypes.CDLL) -> None:
    library.crc.restype = ctypes.c_uint32
    rng = np.random.default_rng(0)
    for size in (0, 1, 3, 64, 1000):
        data = rng.bytes(size)
        assert library.crc(0, data, ctypes.c_size_t(size)) == zlib.crc32(data)
    head = library.crc(0, b"tiny", ctypes.c_size_t(4))
    assert library.crc(ctypes.c_uint32(head), b"train", ctypes.c_size_t(5)) == zlib.crc32(b"tinytrain")
