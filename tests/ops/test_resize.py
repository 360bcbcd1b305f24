"""Tables of Resize: their rows are those of the matrix, the gradient's of its transpose, and memory grows with both."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from tinytrain_compile.ops.resize import COORDINATES, MODES, ResizeAttrs, tables

EXTENTS = ((1, 1), (1, 7), (7, 1), (2, 9), (9, 4), (33, 8), (5, 40), (64, 63))


def dense(attrs: ResizeAttrs) -> NDArray[np.float32]:
    """The matrix that the tables stand for; they read nothing outside of the operand."""
    first, weights = tables(attrs)
    whole = np.zeros((attrs.target, attrs.source), np.float32)
    assert first.min() >= 0 and int(first.max()) + weights.shape[1] <= attrs.source
    for row in range(attrs.target):
        whole[row, first[row] : first[row] + weights.shape[1]] = weights[row]
    return whole


@pytest.mark.parametrize("antialias", [False, True])
@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize("mode", MODES)
def test_the_gradient_is_the_transpose(mode: str, coordinates: str, antialias: bool) -> None:
    for size_in, size_out in EXTENTS:
        attrs = ResizeAttrs(0, size_in, size_out, size_out / size_in, mode, coordinates, antialias=antialias)
        forward = dense(attrs)
        np.testing.assert_allclose(forward.sum(axis=1), 1.0, atol=1e-5)
        assert np.array_equal(dense(replace(attrs, transposed=True)), forward.T), attrs


def test_known_tables() -> None:
    first, weights = tables(ResizeAttrs(0, 3, 6, 2.0, "linear"))
    assert first.tolist() == [0, 0, 0, 1, 1, 1]
    assert weights.tolist() == [[1.0, 0.0], [0.75, 0.25], [0.25, 0.75], [0.75, 0.25], [0.25, 0.75], [0.0, 1.0]]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("extents", [(100_000, 200_000), (200_000, 100_000), (200_000, 3), (3, 200_000)], ids=str)
def test_no_matrix_is_built(extents: tuple[int, int], mode: str) -> None:
    """A matrix of these extents would take up to 160 GB."""
    attrs = ResizeAttrs(0, *extents, extents[1] / extents[0], mode, antialias=mode != "nearest")
    tracemalloc.start()
    try:
        for one in (attrs, replace(attrs, transposed=True)):
            first, weights = tables(one)
            assert len(first) == len(weights) == one.target
        assert tracemalloc.get_traced_memory()[1] < 200 << 20
    finally:
        tracemalloc.stop()
        tables.cache_clear()
