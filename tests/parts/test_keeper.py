"""m_keep.h: the best window of the last calls of m_hear is that of a brute force over all of them."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tinytrain_compile as tt
from tests.emit.test_generated_c import STRICT, build, needs_gcc
from tests.parts.test_listening import HOP, ROWS, WIDTH, compiled, network
from tinytrain_compile.emit.c_text import C_TYPES
from tinytrain_compile.ir.types import Array
from tinytrain_compile.parts.listening.part import keeper_bytes
from tinytrain_compile.twin import Instance
from tinytrain_compile.verify.build import build_library
from tinytrain_compile.verify.tools import find_tools

pytestmark = needs_gcc
CALLS, STEPS, OK, NOTHING = 9, 400, 0, 4
WRAPPER = """
#define {P}_KEEP_CALLS {calls}u
{slots}
#include "{p}_keep.h"
size_t tt_size(void);
void tt_clear(void);
int tt_add(const {p}_t *m, const {type} *rows, float score);
int tt_best(void *to, float *score);
static {p}_keep_t keep;
size_t tt_size(void) {{ return sizeof keep; }}
void tt_clear(void) {{ {p}_keep_clear(&keep); }}
int tt_add(const {p}_t *m, const {type} *rows, float score) {{ (void)m; (void)rows; {add} }}
int tt_best(void *to, float *score) {{ return (int){p}_keep_best(&keep, ({to} *)to, score); }}
"""
SEQUENCES: dict[str, Callable[[np.random.Generator], Array]] = {
    "random": lambda rng: rng.random(STEPS),
    "few": lambda rng: rng.integers(0, 4, STEPS) / 4,  # of equal scores the latest counts
    "falling": lambda rng: -np.arange(STEPS) + 0 * rng.random(STEPS),
    "gaps": lambda rng: np.where(rng.random(STEPS) < 0.6, np.nan, rng.random(STEPS)),
    "nothing": lambda rng: np.full(STEPS, np.nan),
}


class Keeper:
    """A library of a build with a keeper in it, and the device that hears."""

    def __init__(self, made: tt.Compiled, folder: Path, calls: int, slots: int = 0) -> None:
        bundle = made.project.bundle
        prefix = bundle.interface.prefix
        self.of_rows = f"define {prefix.upper()}_HAS_HEAR_FEATURES 0" in bundle.files[f"{prefix}_train.h"]
        said = re.search(r"HEAR_ZERO \((-?\d+)\)", bundle.files[f"{prefix}_train.h"])
        self.zero = 0 if said is None else int(said[1])
        kind = C_TYPES[bundle.interface.sample.dtype]
        text = WRAPPER.format(
            p=prefix,
            P=prefix.upper(),
            calls=calls,
            slots=f"#define {prefix.upper()}_KEEP_SLOTS {slots}u" if slots else "",
            type=kind,
            to=kind if self.of_rows else "void",
            add=f"{prefix}_keep_add(&keep, rows, score); return 0;"
            if self.of_rows
            else f"return (int){prefix}_keep_add(&keep, m, score);",
        )
        whole = replace(bundle, files={**bundle.files, f"{prefix}_keeping.c": text})
        library = build_library(whole, find_tools(), folder)
        self.device = Instance(library, bundle.interface)
        self._library = ctypes.CDLL(str(library))
        self.size: int = self._library.tt_size()
        self.clear()

    def clear(self) -> None:
        self.device.reset()
        self._library.tt_clear()

    def add(self, rows: Array, score: float) -> None:
        """Hear the rows of a call, whose score is then this."""
        self.device.hear(rows)
        handle, data = self.device.handle, rows.ctypes.data_as(ctypes.c_void_p)
        assert self._library.tt_add(handle, data, ctypes.c_float(score)) == OK

    def best(self, like: Array) -> tuple[Array, float] | None:
        found, score = np.empty_like(like), ctypes.c_float()
        status = self._library.tt_best(found.ctypes.data_as(ctypes.c_void_p), ctypes.byref(score))
        assert status in (OK, NOTHING)
        return (found, score.value) if status == OK else None


def latest_best(scores: Array) -> int | None:
    """Return the call with the highest score, the latest of equal ones, by going through all."""
    best = None
    for call, score in enumerate(scores):
        if not np.isnan(score) and (best is None or score >= scores[best]):
            best = call
    return best


def followed(keeper: Keeper, scores: Array, taken: Callable[[int], Array], known: Callable[[int], int]) -> None:
    """Compare every call with a brute force. taken: what is kept of a call; known: first call that still counts."""
    scores = scores.astype(np.float32)
    for call, score in enumerate(scores):
        keeper.add(stream(keeper)[call * HOP : (call + 1) * HOP], float(score))
        kept, first = taken(call), known(call)
        expected, found = latest_best(scores[first : call + 1]), keeper.best(kept)
        assert (found is None) == (expected is None), f"call {call}"
        if found is not None and expected is not None:
            assert found[1] == scores[first + expected], f"call {call}"
            assert np.array_equal(found[0], taken(first + expected)), f"call {call}"


def stream(keeper: Keeper) -> Array:
    rows = np.random.default_rng(2).normal(size=(STEPS * HOP, WIDTH)) * 20
    return np.ascontiguousarray(rows.astype(keeper.device.interface.sample.dtype))


@pytest.fixture(scope="module")
def of_rows(tmp_path_factory: pytest.TempPathFactory) -> Keeper:
    return Keeper(compiled(network(), "int8"), tmp_path_factory.mktemp("rows"), CALLS)


@pytest.fixture(scope="module")
def of_features(tmp_path_factory: pytest.TempPathFactory) -> tt.Compiled:
    return compiled(network("mean"), "int8", update="head", head="int8", listen="only")


@pytest.mark.parametrize("name", SEQUENCES)
def test_rows_are_those_of_the_best_of_the_last_calls(name: str, of_rows: Keeper) -> None:
    """To the call: also before a window is full, where the rows before the first are zeros of the input."""
    of_rows.clear()
    assert of_rows.of_rows
    rows = stream(of_rows)
    before = np.full((ROWS + HOP, WIDTH), of_rows.zero, rows.dtype)
    padded = np.concatenate([before, rows])

    def window(call: int) -> Array:
        end = len(before) + (call + 1) * HOP
        return np.ascontiguousarray(padded[end - ROWS : end])

    scores = SEQUENCES[name](np.random.default_rng(5))
    followed(of_rows, scores, window, lambda call: max(0, call + 1 - CALLS))


@pytest.mark.parametrize(("calls", "slots"), [(CALLS, 3), (20, 5), (CALLS, CALLS)])
def test_features_are_those_of_the_best_of_the_last_stretches(
    calls: int, slots: int, of_features: tt.Compiled, tmp_path: Path
) -> None:
    """It knows at least the last calls; with as many slots as calls exactly these."""
    keeper = Keeper(of_features, tmp_path, calls, slots)
    stretch = -(-(calls - 1) // (slots - 1))
    rows = stream(keeper)
    heard = of_features.twin().instance
    features = list[Array]()
    for at in range(0, len(rows), HOP):
        heard.hear(rows[at : at + HOP])
        features.append(heard.heard_features())

    def known(call: int) -> int:
        newest = call // stretch * stretch
        first = max(0, newest - (slots - 1) * stretch)
        assert call + 1 - first >= min(calls, call + 1)
        assert slots < calls or call + 1 - first <= calls
        return first

    for scores in SEQUENCES.values():
        keeper.clear()
        followed(keeper, scores(np.random.default_rng(6)), features.__getitem__, known)


def test_bytes_are_those_of_the_header(of_features: tt.Compiled, tmp_path: Path) -> None:
    """sizeof with the default numbers is what header and report say."""
    for made, folder in ((of_features, "features"), (compiled(network(), "fp32"), "rows")):
        listening = made.project.summary.plan.listening
        assert listening is not None
        size = made.project.bundle.interface
        features = size.input_elements if folder == "features" else 0
        bytes_said = keeper_bytes(listening, features)
        prefix = size.prefix
        text = f'#include "{prefix}_keep.h"\n_Static_assert(sizeof({prefix}_keep_t) == {bytes_said}, "as it says");\n'
        (tmp_path / folder).mkdir()
        for name, content in {**made.project.bundle.files, "alone.c": text}.items():
            (tmp_path / folder / name).write_text(content)
        build(["gcc", *STRICT, "-Wno-unused-function", "-fsyntax-only", "alone.c"], tmp_path / folder)
        build(
            [
                "g++",
                "-std=c++17",
                "-Wall",
                "-Wextra",
                "-Werror",
                "-fsyntax-only",
                "-x",
                "c++",
                "alone.c",
                "-D_Static_assert=static_assert",
            ],
            tmp_path / folder,
        )
        assert f"it has {bytes_said} bytes" in made.project.bundle.files[f"{prefix}_keep.h"]
