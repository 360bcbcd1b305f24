"""A layer of one pixel whose outputs are no whole tiles, where products are not in pairs: one call, the same bytes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from testing.kernels.boards import measure
from testing.kernels.sanitised import run_sanitised
from testing.ops import case_quantised as quantised
from testing.ops.case import Case
from testing.ops.case_quantised import KINDS
from testing.ops.case_vectors import classifier
from tests.e2e.marks import needs_qemu
from tinytrain_compile.lower.kernels import SIZE, InstructionSet, KernelContext
from tinytrain_compile.lower.lower import lower_node

WITHOUT_PAIRS = KernelContext(InstructionSet(dsp=False))
CALL = "tt_dense8("


def cases() -> list[Case]:
    """Factors of all kinds, with ReLUs and without."""
    rng = np.random.default_rng(12)
    made = [quantised.qconv(rng, classifier(rng), index % KINDS) for index in range(12)]
    return [quantised.of_relu(case, index % 2 == 1) for index, case in enumerate(made)]


def test_it_is_one_call_where_that_is_faster() -> None:
    node = cases()[0].node()
    vectors = KernelContext(InstructionSet(int_vectors=True))
    for context, called in (
        (WITHOUT_PAIRS, True),
        (vectors, True),
        (KernelContext(), False),
        (KernelContext(InstructionSet(dsp=False), SIZE), False),
    ):
        assert (CALL in lower_node(node, "k", context).source) == called


def test_on_the_host(tmp_path: Path) -> None:
    run_sanitised(cases(), tmp_path, context=WITHOUT_PAIRS)


@pytest.mark.parametrize(
    ("code", "planted"), [(CALL, "tt_dense8(1 + "), ("tt_dense_ends_of(&bias[0]", "tt_dense_ends_of(&multiplier[0]")]
)
def test_a_planted_bug_is_seen(code: str, planted: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"Sanitizer|differs"):
        run_sanitised(cases(), tmp_path, lambda source: source.replace(code, planted), WITHOUT_PAIRS)


@needs_qemu
@pytest.mark.qemu
@pytest.mark.parametrize("target", ["cortex-m0plus", "cortex-m3"])
def test_on_cores(target: str) -> None:
    for case, found in zip(cases(), measure(cases(), target), strict=True):
        assert found.equal, case
