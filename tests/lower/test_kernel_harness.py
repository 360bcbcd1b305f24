"""The harness of the kernel tests itself: what is wrong must be seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.lower.kernel_harness import Memory, build, compare, inplace_pairs, run
from tests.ops.cases import cases_of
from tinytrain_compile.ir import Node
from tinytrain_compile.lower.kernels import KERNELS, Features, qconv, qfine, qmomentum
from tinytrain_compile.lower.kernels.base import call_int
from tinytrain_compile.lower.kernels.qconv import Centred, mask_operand
from tinytrain_compile.lower.lower import lower_node
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


def _without_zero_point(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(qconv, "Centred", lambda tensor, _zero=0: Centred(tensor))


def _mask_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    def operand(node: Node, kind: str, shape: tuple[int, ...]) -> tuple[list[Any], None]:
        return mask_operand(node, kind, shape)[0], None

    monkeypatch.setattr(qconv, "mask_operand", operand)


def _bias_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(qconv, "call_int", _renamed("tt_add", "tt_subtract"))


def _unrounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(qconv, "FRACTION_BITS", 7)


def _fine_unrounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(qfine, "FRACTION_BITS", 7)


def _same_noise_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(qmomentum, "flat_index", lambda _shape, index: index[0] * 0)


def _renamed(old: str, new: str) -> Any:
    def helper(function: str, *args: Any, dtype: str = "int32") -> Any:
        return call_int(new if function == old else function, *args, dtype=dtype)

    return helper


@pytest.mark.parametrize(
    ("op", "break_it"),
    [
        ("QConv", _without_zero_point),
        ("QConvUpdate", _without_zero_point),
        ("QConvSum", _without_zero_point),
        ("QConvGradInput", _mask_ignored),
        ("QConv", _bias_left_out),
        ("QConvUpdate", _unrounded),
        ("QConvUpdateFine", _fine_unrounded),
        ("QConvMomentum", _same_noise_everywhere),
        ("QConvMomentumFine", _same_noise_everywhere),
    ],
)
def test_a_broken_integer_kernel_is_noticed(
    op: str, break_it: Callable[[pytest.MonkeyPatch], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_it(monkeypatch)
    masked = [case for case in cases_of(op)[:12] if getattr(case.attrs, "mask", "value")]
    wrong = 0
    for built in build(masked, tmp_path, fpu=True):
        try:
            compare(built, run(built))
        except AssertionError:
            wrong += 1
    assert wrong >= len(masked) - 3, f"{wrong} of {len(masked)} cases notice it"


def test_a_kernel_must_compute_every_output(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = KERNELS["Tanh"]
    monkeypatch.setitem(KERNELS, "Tanh", lambda node, features: replace(kernel(node, features), outputs=[None]))
    with pytest.raises(ValueError, match=r"does not compute every output|no output"):
        lower_node(cases_of("Tanh")[0].node(), "k", Features())


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
