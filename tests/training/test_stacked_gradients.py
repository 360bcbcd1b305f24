"""A dense weight that is read in every step of time: one product of stacked operands is the sum of all products."""

from __future__ import annotations

import inspect
import sys

import numpy as np
import pytest

from testing.networks.models import Network
from tests.e2e import chain
from tests.e2e.gradients import largest_error
from tests.frontend.recurrent import Cell, model_of
from tests.training.test_split_gradients import count
from tinytrain_compile.data.samples import random_samples
from tinytrain_compile.reference.trainer import run_reference
from tinytrain_compile.training import stack_products

CELLS = [Cell("LSTM"), Cell("GRU", reset_last=1), Cell("GRU", "bidirectional", used="h"), Cell("RNN", "reverse")]


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_stacked_gradients_give_the_same_training(cell: Cell) -> None:
    summed = chain.train_graph(model_of(cell))
    stacked = stack_products(summed)
    fewer = count(summed, "GemmGradWeight") - count(stacked, "GemmGradWeight")
    assert fewer > 0
    assert count(summed, "Add") - count(stacked, "Add") == fewer
    samples = random_samples(summed, 3, 0)
    one, other = run_reference(summed, samples, 3), run_reference(stacked, samples, 3)
    for before, after in zip(one.states, other.states, strict=True):
        for name in before:
            np.testing.assert_allclose(before[name], after[name], rtol=0, atol=1e-6)
    assert largest_error(stacked)[0] < 1e-6


@pytest.mark.parametrize("cell", CELLS[:2], ids=str)
def test_the_generated_code_trains_it(cell: Cell) -> None:
    train = stack_products(chain.train_graph(model_of(cell), optimizer="adam"))
    assert chain.check(chain.project(train), mode="host", steps=3).result == "pass"


def test_sums_of_other_gradients_stay() -> None:
    """A weight that one layer reads has no sum; those of a bias are sums over rows, not products."""
    net = Network("plain", "float[1, 6] x", "float[1, 3] y", seed=3)
    net.node("y", f"y = Identity ({net.dense('fc', net.relu(net.dense('first', 'x', 6, 6)), 6, 3)})")
    train = chain.train_graph(net.model(), "all")
    assert stack_products(train) is train


def test_a_weight_of_many_layers() -> None:
    """Sums of more terms than Python's stack has room for are read without recursion."""
    net, steps = Network("tied", "float[1, 3] x", "float[1, 3] y", seed=4), 60
    weight, hidden = net.near("w", 0.3, 0.1, 3, 3), "x"
    for step in range(steps):
        net.node(f"step{step}", f"h{step} = MatMul ({hidden}, {weight})")
        hidden = f"h{step}"
    net.node("y", f"y = Identity ({hidden})")
    train = chain.train_graph(net.model(), "all")
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack(0)) + steps - 10)
    try:
        stacked = stack_products(train)
    finally:
        sys.setrecursionlimit(before)
    assert count(train, "GemmGradWeight") == steps
    assert count(stacked, "GemmGradWeight") == 1
