"""The harness of the kernel tests itself: what is wrong must be seen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.lower.kernel_harness import Memory, build, compare, inplace_pairs, run
from tests.ops.cases import cases_of
from tinytrain_compile.lower.kernels import KERNELS
from tinytrain_compile.ops import OPS


def test_another_function_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KERNELS, "Tanh", KERNELS["Sigmoid"])
    (built,) = build(cases_of("Tanh")[:1], tmp_path, fpu=True)
    with pytest.raises(AssertionError):
        compare(built, run(built))


def test_an_unsafe_in_place_declaration_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OPS, "Transpose", replace(OPS["Transpose"], inplace=((0, 0),)))
    (built,) = build(cases_of("Transpose")[:1], tmp_path, fpu=True)
    compare(built, run(built))
    assert inplace_pairs(built) == [(0, 0)]
    with pytest.raises(AssertionError):
        compare(built, run(built, (0, 0)))


def test_a_write_outside_a_buffer_is_noticed() -> None:
    memory = Memory(8)
    memory.check()
    around = np.lib.stride_tricks.as_strided(memory.bytes, (9,))
    around[8] = 0
    with pytest.raises(AssertionError, match="behind"):
        memory.check()


def test_an_overwritten_input_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Declared as its own output, the parameter is overwritten: the harness must only accept that where `alias` says so.
    (built,) = build(cases_of("Accumulate")[:1], tmp_path, fpu=True)
    monkeypatch.setitem(OPS, "Accumulate", replace(OPS["Accumulate"], alias=((0, 1),)))
    with pytest.raises(AssertionError, match="input 0 was overwritten"):
        run(built)
