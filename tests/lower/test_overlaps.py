"""Kernels over the input that they consume: equal results at the declared distance, other ones just below it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from testing.kernels.layers import LAYERS, Layer
from testing.ops import case_quantised as quantised
from testing.ops.cases import Case, cases_of
from testing.ops.random_structure import RANDOM, random_cases
from tests.lower.kernel_harness import Built, build, run
from tinytrain_compile.ops import OPS
from tinytrain_compile.ops.base import Overlap
from tinytrain_compile.ops.conv import ConvAttrs

OVERLAPPING = {
    "QConv": 8,
    "MaxPool": 10,
    "AveragePool": 10,
    "Quantize": 0,
    "Dequantize": 5,
    "DequantizeError": 10,
    "QClipMask": 0,
    "Stream": 0,
    "Concat": 5,
    "Slice": 0,
    "Embed": 3,
}
"""Op -> in how many cases, at least, a smaller distance must show (a loop that writes less than it reads has room)."""


def test_every_op_that_declares_overlaps_is_run_here() -> None:
    declaring = {name for name, op in OPS.items() if op.overlaps is not OPS["Gemm"].overlaps}
    assert declaring == set(OVERLAPPING)


DEPTHWISE_LAYER = Layer(
    "depthwise 3x3 64x64x32, stride 1",
    lambda rng: quantised.qconv(rng, ((1, 64, 64, 32), 32, ConvAttrs((3, 3), pads=(1, 1, 1, 1), groups=32)), 0),
)
"""Too large for all rows of a channel to be copied at once."""


def _layer(
    image: tuple[int, int, int], outputs: int, kernel: tuple[int, int] = (1, 1), count: int = 1, **attrs: object
) -> Layer:
    pads = ((kernel[0] - 1) // 2, (kernel[1] - 1) // 2) * 2
    conv = ConvAttrs(kernel, pads=pads, **attrs)  # type: ignore[arg-type]
    name = f"{'x'.join(map(str, (*kernel, *image)))} to {outputs}"
    return Layer(name, lambda rng: quantised.qconv(rng, ((count, *image), outputs, conv), 0))


ODD_LAYERS = (
    _layer((45, 1, 30), 60),  # a smaller input, all of which is copied before the output takes its place
    _layer((5, 11, 2), 6, count=2),  # pairs of pixels begin anew in the second image
    _layer((5, 7, 8), 16, count=2),  # pairs of pixels go on in the second image
    _layer((7, 6, 10), 12),  # pairs of pixels are copied
    _layer((7, 7, 50), 33),
    _layer((5, 5, 96), 97),
    _layer((9, 9, 7), 13),
    _layer((10, 11, 1), 8),  # each pixel becomes larger
    _layer((10, 10, 31), 32),
    _layer((13, 13, 12), 12, (3, 3)),
    _layer((11, 11, 5), 7, (3, 3)),
    _layer((40, 1, 12), 12, (5, 1)),
    _layer((41, 1, 12), 12, (5, 1), groups=12),
    _layer((1, 64, 16), 16, (1, 3)),
    _layer((12, 12, 8), 8, (3, 3), groups=8, dilations=(2, 2)),
)


def _cases(op: str) -> list[Case]:
    found = cases_of(op) + (random_cases(op, 24) if op in RANDOM else [])
    if op == "QConv":
        found += [layer.case() for layer in (*LAYERS, DEPTHWISE_LAYER, *ODD_LAYERS) if layer.case().op == "QConv"]
        rng = np.random.default_rng(7)
        found += [quantised.qconv(rng, quantised.geometry(rng, splits=True), index % 2) for index in range(60)]
    return found


def _distances(item: Overlap) -> Iterator[int]:
    """The declared one, the one that a plan takes, and some more."""
    aligned = -(-item.distance // 8) * 8
    yield from sorted({above for above in (item.distance, aligned, aligned + 8, aligned + 40) if item.allows(above)})


def _size(built: Built, item: Overlap) -> int:
    """Of an element of the operand that must stay aligned."""
    return 4 if built.node.inputs[item.source].dtype == "float32" else 1


SHORT = "QConv, short ends"
"""The forms of cores with SMLAD, many of which need sums that only shift down."""


@pytest.mark.parametrize("op", [*OVERLAPPING, SHORT])
def test_results_are_those_of_memory_apart(op: str, tmp_path: Path) -> None:
    tried = shown = 0
    short, op = op == SHORT, op.partition(",")[0]
    cases = [quantised.of_range(case, 2) if short else case for case in _cases(op)]
    for built in build(cases, tmp_path, fpu=True, dsp=short):
        wanted = run(built)
        for item in OPS[op].overlaps(built.node):
            for above in _distances(item):
                if above % _size(built, item) == 0:
                    got = run(built, over=(item, above))
                    assert all(map(_same, got, wanted)), f"{built.case} {item} {above}\n{built.kernel.source}"
                    tried += 1
            less = run(built, over=(item, item.distance - max(item.step, _size(built, item))))
            shown += not all(map(_same, less, wanted))
    assert tried >= 10
    assert shown >= OVERLAPPING[op]


def _same(one: np.ndarray, other: np.ndarray) -> bool:
    return one.tobytes() == other.tobytes()


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("1x1 64x64x8 to 32", lambda item: item.distance // 2),
        ("1x1 16x16x48 to 96", lambda item: item.distance - 9),
        ("first 3x3 128x128x3 to 16, stride 2", lambda item: item.distance - 9),
        ("depthwise 3x3 16x16x48", lambda item: item.distance + 1),
        ("depthwise 7x7 32x32x48, stride 2", lambda item: item.distance - item.step // 2),
        ("depthwise 3x3 64x64x32, stride 1", lambda item: item.distance - item.step),
    ],
)
def test_what_no_declaration_allows_is_noticed(name: str, change: Callable[[Overlap], int], tmp_path: Path) -> None:
    """Every form of integer convolution: pixels, rows, channels by rows (where multiples of a pixel matter too)."""
    layers = {layer.name: layer for layer in (*LAYERS, DEPTHWISE_LAYER)}
    (built,) = build([layers[name].case()], tmp_path, fpu=True)
    (item,) = OPS["QConv"].overlaps(built.node)
    above = change(item)
    assert not item.allows(above)
    assert all(map(_same, run(built, over=(item, item.distance)), run(built)))
    assert not all(map(_same, run(built, over=(item, above)), run(built)))
