"""Layers of equal shape share a kernel, whatever their numbers: it computes what each layer's own kernel would."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from testing.ops.case import Case
from testing.ops.cases import cases_of
from tests.lower.kernel_harness import C_FLAGS, Built, compare, run, with_headers
from tinytrain_compile.files.resources import data_dir
from tinytrain_compile.ir.kernels import KernelSet
from tinytrain_compile.ir.types import Node
from tinytrain_compile.lower import LowerOptions, lower, lower_nodes
from tinytrain_compile.lower.kernels import NUMBERS, SIZE, InstructionSet, KernelContext

CORES = [InstructionSet(), InstructionSet(dsp=False), InstructionSet(False, dsp=False, gpr=8)]
ZERO = {
    "QConv": "x_zero",
    **dict.fromkeys(("QConvUpdate", "QConvUpdateFine", "QConvMomentum", "QConvUpdateSquared"), "x_zero"),
    "QConvSum": "x_zero",
    "QAdd": "a_zero",
}
"""A number of each form of the operators that have any."""


def other(op: str, case: Case, zero: int) -> Case:
    """The same layer, of another zero point; of a sum all numbers are others, those of a table in another order."""
    changes: dict[str, object] = {ZERO[op]: zero}
    if op == "QAdd" and zero:
        (multiplier, shift), (other_multiplier, other_shift) = case.attrs.a_factor, case.attrs.b_factor
        changes |= {"b_zero": zero // 2 - 1, "y_zero": zero // 3 - 1, "a_factor": (multiplier - 99 * zero - 1, shift)}
        changes |= {"b_factor": (other_multiplier + 7 * zero + 5, other_shift)}
    return replace(case, attrs=replace(case.attrs, **changes))


def named(cases: Sequence[Case]) -> list[Node]:
    return [replace(case.node(), name=f"n{index}", origin=f"layer/{index}") for index, case in enumerate(cases)]


def equal_shapes(op: str, core: InstructionSet) -> list[Case]:
    """Three zero points of every case whose kernel takes them from a table."""
    context = KernelContext(core)
    able = [case for case in cases_of(op) if NUMBERS[case.node().op](case.node(), context)[1]]
    return [other(op, case, zero) for case in able[:6] for zero in (-7, 5, -128)]


@pytest.fixture
def lowered(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the operators that were lowered."""
    names: list[str] = []
    real = lower.lower_node
    monkeypatch.setattr(lower, "lower_node", lambda node, *rest: (names.append(node.op), real(node, *rest))[1])
    return names


def test_every_operator_with_numbers_is_here() -> None:
    assert set(NUMBERS) == {cases_of(op)[0].node().op for op in ZERO}


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("op", ZERO)
def test_a_shared_kernel_computes_what_each_layers_own_does(op: str, core: InstructionSet, tmp_path: Path) -> None:
    cases = equal_shapes(op, core)
    assert cases or core.gpr == 8
    if not cases:
        return
    nodes = named(cases)
    known = lower_nodes(nodes, LowerOptions("k", KernelContext(core)))
    assert len(known.kernels) < len(nodes) and len(known.numbers) > len(nodes) // 2
    library, kernels = built(known, tmp_path), {kernel.name: kernel for kernel in known.kernels}
    for case, node in zip(cases, nodes, strict=True):
        numbers = known.tables.get(known.numbers.get(node.name, ""), ())
        one = Built(case, node, kernels[known.calls[node.name]], library, numbers)
        compare(one, run(one))


def built(known: KernelSet, folder: Path) -> ctypes.CDLL:
    text = "".join(f"{kernel.declaration}\n{kernel.source}" for kernel in known.kernels)
    (folder / "kernels.c").write_text(with_headers(text))
    command = ["gcc", *C_FLAGS, "-shared", "-fPIC", f"-I{data_dir('runtime_c')}", "-o", "kernels.so", "kernels.c"]
    subprocess.run([*command, "-lm"], cwd=folder, check=True)
    return ctypes.CDLL(str(folder / "kernels.so"))


@pytest.mark.parametrize(("op", "most"), [("QConv", 2), ("QConvUpdate", 2), ("QAdd", 3)])
def test_equal_layers_are_lowered_once(op: str, most: int, lowered: list[str]) -> None:
    """50 of other zero points; the one of 0 needs less code, and has it. Sums have two forms."""
    case = equal_shapes(op, InstructionSet())[0]
    known = lower_nodes(named([other(op, case, zero) for zero in range(-50, 1)]), LowerOptions("k"))
    assert len(lowered) == len(known.kernels) == most
    assert len({known.tables[table] for table in known.numbers.values()}) == len(known.numbers) >= 49


def test_probes_lower_nothing(lowered: list[str]) -> None:
    """Only the reference reads the exponent with which an error is first tried."""
    node = next(case.node() for case in cases_of("ErrorScale"))
    several = [replace(node, name=f"n{probe}", attrs=replace(node.attrs, probe=-probe)) for probe in range(20)]
    assert len(lower_nodes(several, LowerOptions("k")).kernels) == len(lowered) == 1


def test_a_single_layer_and_small_code_have_constants() -> None:
    case = equal_shapes("QAdd", InstructionSet())[0]
    alone = lower_nodes(named([case]), LowerOptions("k"))
    small = lower_nodes(named([case, other("QAdd", case, 9)]), LowerOptions("k", KernelContext(style=SIZE)))
    assert not alone.numbers and not small.numbers
    assert "numbers" not in "".join(kernel.source for kernel in (*alone.kernels, *small.kernels))


def test_tables_are_named_by_layers() -> None:
    case = equal_shapes("QAdd", InstructionSet())[0]
    one, two = named([case, other("QAdd", case, 9)])
    known = lower_nodes([one, replace(two, origin=one.origin)], LowerOptions("k"))
    assert list(known.numbers.values()) == ["k_numbers_layer_0", "k_numbers_layer_0_2"]
    joined = known.only({"n1"}).joined(KernelSet((), {}))
    assert list(joined.tables) == ["k_numbers_layer_0_2"]
    assert np.array_equal(
        known.updated(KernelSet((), {})).tables["k_numbers_layer_0"], known.tables["k_numbers_layer_0"]
    )
