"""Several samples at once: an operator refuses them, or does to all of them what it does to each."""

from __future__ import annotations

from itertools import chain, combinations

import numpy as np
import pytest

from testing.ops.cases import GENERATORS, Case, cases_of, make, operator_of
from tinytrain_compile.ir.types import Value
from tinytrain_compile.ops import NonDifferentiable, run_node
from tinytrain_compile.training.samples import SamplesMixError, repeated

COUNTS = (2, 3, 4)
FORWARD = sorted(op for op in GENERATORS if not isinstance(operator_of(op).gradient, NonDifferentiable))
BY_COUNT = {"RandomDropout"}
"""What makes each sample's numbers from its place in training: put in when the samples are known."""
LOSSES = {"MeanSquaredError", "NegativeLogLikelihood", "SigmoidCrossEntropy"}
"""They give one number for all samples: no forward pass that is repeated holds them."""
LAYERS = {"Conv", "ConvGradInput", "Gemm"}
"""Their weights and biases are constants in every graph: no other operand comes from the input."""


def takes(case: Case, computed: tuple[int, ...], count: int) -> bool:
    """Whether the operator takes several samples in these operands; then the results must be those of each alone."""
    node, rng = case.node(), np.random.default_rng(count)
    samples = [
        tuple(rng.permutation(a.ravel()).reshape(a.shape) if i in computed else a for i, a in enumerate(case.arrays))
        for _ in range(count)
    ]
    longer = {v.name: Value(v.name, (count * v.shape[0], *v.shape[1:]), v.dtype, v.layout) for v in _of(case, computed)}
    try:
        many = repeated(node, longer, count)
    except SamplesMixError:
        return False
    together = (
        np.concatenate(parts) if i in computed else parts[0] for i, parts in enumerate(zip(*samples, strict=True))
    )
    results = run_node(many, tuple(together))
    for index, result in enumerate(results):
        alone = np.concatenate([run_node(node, sample)[index] for sample in samples])
        np.testing.assert_allclose(result, alone, rtol=1e-9, atol=1e-9, err_msg=f"{case}, operands {computed}")
    return True


def _of(case: Case, computed: tuple[int, ...]) -> list[Value]:
    return [case.inputs[i] for i in computed]


def operands(case: Case) -> list[tuple[int, ...]]:
    """All sets of operands that may depend on the model's input."""
    able = [i for i, v in enumerate(case.inputs) if v.shape and not (i and case.op in LAYERS)]
    return list(chain.from_iterable(combinations(able, n) for n in range(1, len(able) + 1)))


@pytest.mark.parametrize("op", FORWARD)
def test_several_samples_are_refused_or_treated_like_each_alone(op: str) -> None:
    taken = [takes(case, computed, n) for case in cases_of(op) for computed in operands(case) for n in COUNTS]
    assert any(taken) or op in LOSSES | BY_COUNT


def test_an_operand_that_gets_a_new_first_axis_is_refused() -> None:
    """A number per sample, added to three of each: with three samples, shapes alone would let it go along these."""
    case = make("Add", (np.arange(3.0).reshape(1, 3), np.ones(1)))
    assert takes(case, (0,), 3)
    assert not takes(case, (0, 1), 3)
