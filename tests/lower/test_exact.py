"""Kernels without fused multiply-add equal the exact float32 references to the bit."""

from __future__ import annotations

import re
import sys
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from testing.ops.cases import Case, cases_of, forms_where, operator_of
from testing.ops.random_linear import RANDOM_PRODUCTS, random_products
from testing.ops.random_structure import RANDOM, random_cases
from tests.lower.kernel_harness import KEPT, Built, build, compare, in_groups, inplace_pairs, lowered, run
from tinytrain_compile.ir.kernels import KernelCache
from tinytrain_compile.lower.kernels import KERNELS, InstructionSet, KernelContext, base
from tinytrain_compile.ops import OPS, exact, run_node
from tinytrain_compile.ops.fused_update import FUSED_UPDATE, INTEGER_UPDATES, FusedUpdateAttrs
from tinytrain_compile.ops.interpreter import run_nodes
from tinytrain_compile.ops.names import attrs_of

CASES = 5
RANDOM_CASES = 12
FMA = ("-DTT_HAS_FMA=1",)
FUSED = forms_where(lambda op: op is FUSED_UPDATE)
TILED = tuple(sorted({*RANDOM_PRODUCTS, *FUSED, "Stream"}))
"""Ops whose kernels depend on the target's register tile."""

FLOAT_OPS = forms_where(lambda op: not re.search(r"\.ops\.(int8\.|page$)", op.reference.__module__))
"""All but those of ops/int8, which are integers inside: what they give in float32 is tested with their kernels; and
those of ops/page.py, which move bytes."""
COMPUTED = [name for name in FLOAT_OPS if not operator_of(name).view]
ALONE = [name for name in COMPUTED if name not in FUSED and name != "Stream"]
"""Those that are not made of other operators' kernels."""


def all_cases(op: str) -> list[Case]:
    """The op's own cases, and random shapes where index arithmetic or order matter."""
    cases = cases_of(op)
    if op in RANDOM:
        cases += random_cases(op, RANDOM_CASES)
    return cases + random_products(op, RANDOM_CASES) if op in RANDOM_PRODUCTS else cases


SPECIAL = np.asarray([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -1e-45, 3e38, -3e38, 1e-20, 100.0, -100.0])

Change = Callable[[np.random.Generator, np.ndarray], np.ndarray]


def _special(rng: np.random.Generator, array: np.ndarray) -> np.ndarray:
    """About every third number replaced: zeros of both signs, infinities, NaN, denormals, huge numbers."""
    return np.where(rng.random(array.shape) < 0.3, rng.choice(SPECIAL, array.shape), array)


def _zeros(rng: np.random.Generator, array: np.ndarray) -> np.ndarray:
    """Where a kernel skips, folds or starts from 0 shows in the sign of its zeros."""
    return np.where(rng.random(array.shape) < 0.7, -0.0, 0.0)


def _other(rng: np.random.Generator, array: np.ndarray) -> np.ndarray:
    """Other numbers, of many magnitudes."""
    return np.asarray(rng.standard_normal(array.shape) * 2.0 ** rng.uniform(-4.0, 2.0, array.shape))


ELEMENTS = 2000
"""About how many results of a case are compared: single roundings differ rarely."""


def variants(case: Case, changes: Sequence[Change] = (_special, _zeros)) -> list[Case]:
    """The case, its operands changed, and as many cases with other numbers as its size allows."""
    rng = np.random.default_rng(zlib.crc32(str(case).encode()))
    size = sum(array.size for array in case.arrays) + case.node().outputs[0].elements
    found = [case]
    for change in (*changes, *[_other] * max(1, min(100, ELEMENTS // size))):
        arrays = (change(rng, array) if array.dtype == np.float64 else array for array in case.arrays)
        found.append(replace(case, arrays=tuple(arrays)))
    return found


def _bits(array: np.ndarray) -> np.ndarray:
    """Integers that are equal exactly if the floats are the same bits or both NaN."""
    if array.dtype.kind != "f":
        return array
    return np.where(np.isnan(array), np.int32(-1), np.ascontiguousarray(array).view(np.int32))


def same_bits(built: Built, got: Sequence[np.ndarray]) -> bool:
    """Whether outputs equal the exact reference."""
    wanted = run_node(built.node, built.case.float32(), exact=True)
    return all(a.dtype == b.dtype and np.array_equal(_bits(a), _bits(b)) for a, b in zip(got, wanted, strict=True))


def _check(cases: list[Case], folder: Path, fpu: bool) -> None:
    """Equal to the exact reference, and so near to the one that training is verified with."""
    for built in build(cases, folder, fpu):
        compare(built, run(built))
        for case in variants(built.case):
            one = replace(built, case=case)
            for pair in (None, *inplace_pairs(one)):
                got = run(one, pair)
                wanted = run_node(one.node, case.float32(), exact=True)
                assert same_bits(one, got), f"{case} {pair}\n{got}\n{wanted}\n{one.kernel.source}"


@pytest.mark.parametrize("ops", in_groups(COMPUTED))
def test_kernel_equals_the_exact_reference(ops: Sequence[str], tmp_path: Path) -> None:
    cases = {op: all_cases(op) for op in ops}
    assert min(map(len, cases.values())) >= CASES
    _check([case for some in cases.values() for case in some], tmp_path, fpu=True)


@pytest.mark.parametrize("ops", in_groups(TILED))
def test_kernel_for_a_core_without_fpu_equals_it_too(ops: Sequence[str], tmp_path: Path) -> None:
    _check([case for op in ops for case in all_cases(op)], tmp_path, fpu=False)


@pytest.mark.parametrize("op", sorted(set(COMPUTED) - set(TILED)))
def test_other_kernels_are_the_same_without_fpu(op: str) -> None:
    for case in cases_of(op)[:CASES]:
        texts = [_source(case, fpu) for fpu in (True, False)]
        assert texts[0] == texts[1]


def _source(case: Case, fpu: bool, kept: KernelCache = KEPT) -> str:
    return lowered(case.node(), "k", KernelContext(InstructionSet(fpu)), kept=kept).source


def test_a_view_is_exact() -> None:
    for case in cases_of("Reshape"):
        (got,) = run_node(case.node(), case.float32(), exact=True)
        np.testing.assert_array_equal(got.ravel(), case.float32()[0].ravel())


def test_every_operator_in_floats_has_cases() -> None:
    """Most have a reference of their own for this, since numpy sums in other orders and has other functions."""
    own = [op for op in ALONE if operator_of(op).exact is not None]
    assert len(ALONE) > 90 and len(own) > 40
    assert set(ALONE) <= KERNELS.keys()


# ---- what is wrong must be seen -------------------------------------------------------------------------------------


def _equal(built: Built) -> bool:
    """Whether a kernel gives the reference's bits on all sane numbers."""
    ones = (replace(built, case=case) for case in variants(built.case, ()))
    return all(same_bits(one, run(one)) for one in ones)


def _noticed(cases: list[Case], folder: Path, kept: KernelCache = KEPT) -> bool:
    return not all(_equal(built) for built in build(cases, folder, True, kept=kept))


ROUNDED = [form for form in FUSED if attrs_of(cases_of(form, 1)[0].node(), FusedUpdateAttrs).update in INTEGER_UPDATES]
"""Those that round to whole numbers, which hides the last bit of a sum; their sums are those of gradients above."""


@pytest.mark.parametrize("op", COMPUTED)
def test_a_fused_multiply_add_is_noticed(op: str, tmp_path: Path) -> None:
    """One of the first cases fuses if any case does, and then its bits differ."""
    cases = all_cases(op)
    fuses = [_fuses(case) for case in cases[:CASES]]
    if not any(fuses):  # nothing fused is nothing else than what the tests above have run
        assert op in ROUNDED or not any(map(_fuses, cases[CASES:]))
        assert not any(operator_of(op).macs(case.node()) for case in cases), "multiply-accumulates that are not fused"
        return
    built = list(zip(build(cases[:CASES], tmp_path, True, FMA), fuses, strict=True))
    assert all(_equal(one) for one, fused in built if not fused)
    assert op in ROUNDED or not all(_equal(one) for one, fused in built if fused)


def _fuses(case: Case) -> bool:
    return bool(re.search(r"TT_FMA|tt_fma_|tt_(exp|tanh|sigmoid|erf|pow)f\(", _source(case, True)))


def _backwards(terms: Any) -> Any:
    return SEQUENTIAL_SUM(terms[::-1])


def _product_backwards(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    return PRODUCT(left[..., ::-1], right[..., ::-1, :])


SEQUENTIAL_SUM, PRODUCT = exact.sequential_sum, exact.product
ORDERS = {"sequential_sum": _backwards, "product": _product_backwards}
"""Functions of ops/exact.py that add up, and what they would be in another order."""


def _modules(package: str, name: str) -> list[ModuleType]:
    """Modules of a package that have a function of this name, or import it."""
    package = f"tinytrain_compile.{package}."
    return [module for path, module in sys.modules.items() if path.startswith(package) and hasattr(module, name)]


@pytest.mark.parametrize("name", ORDERS)
@pytest.mark.parametrize("op", [op for op in ALONE if operator_of(op).exact is not None])
def test_a_sum_in_another_order_is_noticed(op: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every operator whose exact reference adds up."""
    added, cases = list[int](), all_cases(op)

    def backwards(*terms: Any) -> Any:
        added.append(1)
        return ORDERS[name](*terms)

    for module in _modules("ops", name):
        monkeypatch.setattr(module, name, backwards)
    for case in cases:
        run_node(case.node(), case.float32(), exact=True)
    assert not added or _noticed(cases, tmp_path)


def test_sums_are_found() -> None:
    assert all(len(_modules("ops", name)) >= 3 for name in ORDERS)
    assert len(_modules("lower.kernels.float32", "total")) >= 2


@pytest.mark.parametrize("op", ALONE)
def test_a_kernel_with_other_loops_is_noticed(op: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every operator with a sum over several axes."""
    several = list[int]()

    def turned(term: Any, axes: Sequence[Any]) -> Any:
        several.extend(range(1, len(axes)))
        return base.total(term, axes[::-1])

    for module in _modules("lower.kernels.float32", "total"):
        monkeypatch.setattr(module, "total", turned)
    cases, kept = all_cases(op), KernelCache()
    for case in cases[:3]:
        _source(case, True, kept)
    assert not several or _noticed(cases, tmp_path, kept)


@pytest.mark.parametrize("op", ["Gemm", "Conv", "Softmax", "MeanSquaredError", "AveragePool", "Tanh"])
def test_numpy_sums_and_products_are_no_exact_reference(
    op: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(OPS, op, replace(OPS[op], exact=None))
    assert _noticed(all_cases(op), tmp_path)


def test_a_wider_float_is_refused() -> None:
    case = cases_of("Tanh")[0]
    with pytest.raises(ValueError, match="got float64, expected float32"):
        run_node(case.node(), case.arrays, exact=True)


def test_a_graph_is_run_exactly() -> None:
    (case,) = cases_of("Softmax")[1:2]
    node, (x,) = case.node(), case.float32()
    values = [run_nodes([node], {node.inputs[0].name: x}, exact=exact)[node.outputs[0].name] for exact in (True, False)]
    np.testing.assert_array_equal(values[0], run_node(node, (x,), exact=True)[0])
    np.testing.assert_array_equal(values[1], run_node(node, (x,))[0])
    assert not np.array_equal(*values)
