"""The harness of the kernel tests itself: what is wrong must be seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from testing.ops.cases import cases_of, operator_of
from tests.lower.kernel_harness import Memory, build, compare, inplace_pairs, run
from tinytrain_compile.ir.kernels import KernelCache
from tinytrain_compile.ir.types import Node
from tinytrain_compile.lower.kernels import KERNELS, KernelContext
from tinytrain_compile.lower.kernels.base import KernelSpec, call_int, i32
from tinytrain_compile.lower.kernels.int8 import operands as int8_operands
from tinytrain_compile.lower.kernels.int8 import steps as int8_steps
from tinytrain_compile.lower.kernels.int8 import update as int8_update
from tinytrain_compile.lower.kernels.int8.operands import mask_operand
from tinytrain_compile.lower.lower import lower_node
from tinytrain_compile.ops import OPS


def test_another_function_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KERNELS, "Tanh", KERNELS["Sigmoid"])
    (built,) = build(cases_of("Tanh")[:1], tmp_path, fpu=True)
    with pytest.raises(AssertionError):
        compare(built, run(built))


def test_an_unsafe_in_place_declaration_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OPS, "Transpose", replace(OPS["Transpose"], reuses=("x",)))
    (built,) = build(cases_of("Transpose")[:1], tmp_path, fpu=True)
    compare(built, run(built))
    assert inplace_pairs(built) == [(0, 0)]
    with pytest.raises(AssertionError):
        compare(built, run(built, (0, 0)))


def _without_zero_point(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def rule(node: Node, context: KernelContext) -> KernelSpec:
        return kernel(replace(node, attrs=replace(node.attrs, x_zero=0)), context)  # type: ignore[call-arg]

    name = operator_of(op).name
    kernel = KERNELS[name]
    monkeypatch.setitem(KERNELS, name, rule)


def _mask_ignored(_op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def operand(node: Node, kind: str, shape: tuple[int, ...]) -> tuple[list[Any], None]:
        return mask_operand(node, kind, shape)[0], None

    monkeypatch.setattr(int8_operands, "mask_operand", operand)


def _bias_left_out(_op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def helper(function: str, acc: Any, *args: Any, dtype: str = "int32") -> Any:
        if function == "tt_dense_ends_of":  # acc is the table of biases
            return call_int(function, args[0], *args)
        rest = (i32(0), *args[1:]) if function.startswith("tt_requantise8") else args
        return call_int(function, acc, *rest, dtype=dtype)

    monkeypatch.setattr(int8_operands, "call_int", helper)


def _unrounded(_op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (int8_steps, int8_update):
        monkeypatch.setattr(module, "FRACTION_BITS", 7)


def _same_noise_everywhere(_op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(int8_update, "flat_index", lambda _shape, index: index[0] * 0)


@pytest.mark.parametrize(
    ("op", "break_it"),
    [
        ("QConv", _without_zero_point),
        ("QConvUpdate", _without_zero_point),
        ("QConvSum", _without_zero_point),
        ("QConvGradInput", _mask_ignored),
        ("QConv", _bias_left_out),
        ("QConvUpdate", _unrounded),
        ("QConvUpdateFine", _unrounded),
        ("QConvMomentum", _same_noise_everywhere),
        ("QConvMomentumFine", _same_noise_everywhere),
    ],
)
def test_a_broken_integer_kernel_is_noticed(
    op: str, break_it: Callable[[str, pytest.MonkeyPatch], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_it(op, monkeypatch)
    masked = [case for case in cases_of(op)[:12] if not hasattr(case.attrs, "mask") or case.attrs.mask.kind]  # type: ignore[attr-defined]
    wrong = 0
    for built in build(masked, tmp_path, fpu=True, kept=KernelCache()):
        try:
            compare(built, run(built))
        except AssertionError:
            wrong += 1
    assert wrong >= len(masked) - 3, f"{wrong} of {len(masked)} cases notice it"


def test_a_kernel_must_compute_every_output(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = KERNELS["Tanh"]
    monkeypatch.setitem(KERNELS, "Tanh", lambda node, context: replace(kernel(node, context), outputs=[None]))
    with pytest.raises(ValueError, match=r"does not compute every output|no output"):
        lower_node(cases_of("Tanh")[0].node(), "k", KernelContext())


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
    monkeypatch.setitem(OPS, "Accumulate", replace(OPS["Accumulate"], outputs=("g",)))
    with pytest.raises(AssertionError, match="input 0 was overwritten"):
        run(built)
