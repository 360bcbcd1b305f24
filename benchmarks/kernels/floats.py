"""Compare float32 kernels that are no products with the best of three peers on the Cortex-M7, M4 and M55.

    python -m benchmarks floats                      three cores
    python -m benchmarks floats --target cortex-m7 --only pool

The peers are plain C at -O3, at -Ofast, and CMSIS-DSP or CMSIS-NN in float32 where it has the operator. They were
measured once, beside ours in one image (commit 1f2fa785, GCC 12.2, instructions in QEMU 7.2); `before` is what ours
took then. The Cortex-M55 has no peer for some rows: the bar is then half of what ours took on the Cortex-M7. Kernels
without fused multiply-adds are compared with the exact references to the byte. Nothing here fails.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from testing.kernels.boards import Measured, measure
from testing.kernels.layers import SEED
from testing.ops.case import Case, Rng, make, normal, positive
from tinytrain_compile.ir.types import NO_ATTRS, Attrs
from tinytrain_compile.ops.activation import ClipAttrs, GeluAttrs
from tinytrain_compile.ops.normalise import AxisAttrs, NormalizeAttrs
from tinytrain_compile.ops.pool import PoolAttrs, PoolGradAttrs
from tinytrain_compile.ops.update import AdamAttrs, SgdAttrs

TARGETS = ("cortex-m7", "cortex-m4", "cortex-m55")
MOST = 1.1
"""Largest ratio of our instructions to the peer's."""


@dataclass(frozen=True)
class Beside:
    """A kernel: its case; by TARGETS what the best peer took, and ours before. 0: not measured."""

    name: str
    make: Callable[[Rng], Case]
    peers: tuple[int, int, int]
    before: tuple[int, int, int]

    def case(self) -> Case:
        """Return the case; it is the same in every run."""
        return self.make(np.random.default_rng([SEED, *self.name.encode()]))

    def bar(self, target: str) -> float:
        """Instructions of the peer; without one half of what ours took on the first target."""
        return self.peers[TARGETS.index(target)] or self.before[0] / 2


def of(op: str, *shape: int, attrs: Attrs = NO_ATTRS, operands: int = 1, scale: float = 1.0) -> Callable[[Rng], Case]:
    """Return normal numbers of one shape for every operand, times a scale."""
    return lambda rng: make(op, tuple(normal(rng, shape) * scale for _ in range(operands)), attrs)


def clip_grad(rng: Rng) -> Case:
    """Return a gradient behind a Relu."""
    return make("ClipGrad", (normal(rng, (4096,)), np.maximum(normal(rng, (4096,)), 0)), ClipAttrs(0))


def by_channel(rng: Rng) -> Case:
    """Return rows times one number per column."""
    return make("Mul", (normal(rng, (64, 64)), normal(rng, (64,))))


def normalised_grad(shape: tuple[int, ...], axes: tuple[int, ...]) -> Callable[[Rng], Case]:
    """Return the gradient of Normalize."""
    kept = tuple(1 if axis in axes else size for axis, size in enumerate(shape))
    attrs = NormalizeAttrs(axes, 1e-5)
    return lambda rng: make("NormalizeGrad", (normal(rng, shape), normal(rng, shape), positive(rng, kept)), attrs)


HALVES = PoolAttrs((2, 2), (2, 2), (0, 0, 0, 0), output_hw=(8, 8))
THREES = PoolAttrs((3, 3), (2, 2), (0, 0, 0, 0), output_hw=(7, 7))


def pool(op: str, size: int, channels: int, attrs: PoolAttrs) -> Callable[[Rng], Case]:
    """A square image."""
    return lambda rng: make(op, (normal(rng, (1, size, size, channels)),), attrs, images=(0,))


def max_pool_grad(rng: Rng) -> Case:
    """Any winner."""
    shape = (1, 8, 8, 16)
    index = rng.integers(0, 4, shape).astype(np.uint8)
    return make("MaxPoolGrad", (normal(rng, shape), index), PoolGradAttrs(HALVES, (16, 16)), images=(0, 1))


def average_pool_grad(rng: Rng) -> Case:
    """Windows that overlap."""
    return make("AveragePoolGrad", (normal(rng, (1, 7, 7, 20)),), PoolGradAttrs(THREES, (15, 15)), images=(0,))


def momentum(rng: Rng) -> Case:
    """One update."""
    return make("MomentumUpdate", (*(normal(rng, (4096,)) for _ in range(3)), np.array(0.1)), SgdAttrs(momentum=0.9))


def adam(rng: Rng) -> Case:
    """One update."""
    weight, gradient, mean, square = (normal(rng, (4096,)) for _ in range(4))
    tensors = (weight, gradient, mean, square * square, np.array(0.01), np.array([0.9, 0.999]))
    return make("AdamUpdate", tensors, AdamAttrs())


# fmt: off
KERNELS = (
    Beside("softmax 64x64", of("Softmax", 64, 64, attrs=AxisAttrs(1)), (243_042, 250_466, 181_585), (484_622, 460_046, 294_552)),  # noqa: E501
    Beside("softmax 1x1000", of("Softmax", 1, 1000, attrs=AxisAttrs(1)), (59_055, 61_045, 43_785), (118_031, 112_031, 68_299)),  # noqa: E501
    Beside("softmax grad 64x64", of("SoftmaxGrad", 64, 64, attrs=AxisAttrs(1), operands=2), (50_053, 50_053, 24_986), (49_993, 49_993, 28_805)),  # noqa: E501
    Beside("layer norm 32x64", of("Normalize", 32, 64, attrs=NormalizeAttrs((1,), 1e-5)), (31_273, 31_273, 9_196), (38_974, 38_936, 26_679)),  # noqa: E501
    Beside("layer norm grad 32x64", normalised_grad((32, 64), (1,)), (29_191, 29_191, 16_409), (37_417, 37_417, 21_864)),  # noqa: E501
    Beside("group norm 64x4x8", of("Normalize", 1, 64, 4, 8, attrs=NormalizeAttrs((1, 3), 1e-5)), (21_082, 21_082, 14_718), (35_331, 35_330, 22_288)),  # noqa: E501
    Beside("group norm grad 64x4x8", normalised_grad((1, 64, 4, 8), (1, 3)), (22_859, 22_859, 14_166), (41_552, 41_552, 22_893)),  # noqa: E501
    Beside("exp 1024", of("Exp", 1024), (75_079, 75_079, 40_965), (55_309, 52_237, 8_723)),
    Beside("sigmoid 1024", of("Sigmoid", 1024, scale=3.0), (54_305, 53_785, 44_040), (67_596, 64_524, 64_524)),
    Beside("tanh 1024", of("Tanh", 1024, scale=2.0), (26_537, 25_512, 25_512), (62_946, 60_645, 60_647)),
    Beside("gelu 1024", of("Gelu", 1024, attrs=GeluAttrs(), scale=3.0), (108_103, 108_103, 95_393), (71_013, 69_453, 26_416)),  # noqa: E501
    Beside("silu 1024", of("Silu", 1024, scale=3.0), (78_112, 78_112, 44_040), (68_620, 65_548, 65_548)),
    Beside("hard swish 1024", of("HardSwish", 1024, scale=3.0), (9_223, 15_367, 2_063), (13_100, 13_100, 13_100)),
    Beside("clip 4096", of("Clip", 4096, attrs=ClipAttrs(0, 6), scale=3.0), (24_581, 49_157, 0), (36_934, 39_015, 0)),
    Beside("clip grad 4096", clip_grad, (32_773, 32_773, 0), (40_964, 40_964, 0)),
    Beside("add 4096", of("Add", 4096, operands=2), (24_579, 24_579, 0), (24_578, 24_578, 0)),
    Beside("mul 64x64 by channel", by_channel, (25_030, 25_030, 0), (25_094, 25_094, 0)),
    Beside("max pool 2x2 16x16x16", pool("MaxPool", 16, 16, HALVES), (8_584, 18_190, 0), (30_866, 30_866, 0)),
    Beside("max pool grad 2x2 16x16x16", max_pool_grad, (15_784, 15_784, 0), (30_375, 40_615, 0)),
    Beside("average pool 3x3 s2 15x15x20", pool("AveragePool", 15, 20, THREES), (21_696, 21_696, 0), (30_770, 30_770, 0)),  # noqa: E501
    Beside("average pool grad 3x3 s2 15x15x20", average_pool_grad, (38_426, 38_426, 0), (56_428, 55_183, 0)),
    Beside("momentum update 4096", momentum, (36_868, 36_868, 0), (40_964, 40_964, 0)),
    Beside("adam update 4096", adam, (81_937, 81_937, 0), (1_075_039, 1_071_169, 0)),
)
# fmt: on


def line(kernel: Beside, target: str, now: Measured, exact: Measured) -> str:
    """One row of the table."""
    bar, before = kernel.bar(target), kernel.before[TARGETS.index(target)]
    ratio = now.instructions / bar
    peer = f"{bar:,.0f}" if kernel.peers[TARGETS.index(target)] else f"({bar:,.0f})"
    note = "" if exact.equal else "   DIFFERENT"
    note += "" if ratio <= (MOST if kernel.peers[TARGETS.index(target)] else 1.0) else "   MISS"
    return (
        f"{peer:>10} {before or '-':>10} {now.instructions:10,} {now.code_bytes:6,} {ratio:6.2f}  {kernel.name}{note}"
    )


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", choices=TARGETS)
    parser.add_argument("--only", default="", help="part of a kernel's name")
    given = parser.parse_args()
    kernels = [kernel for kernel in KERNELS if given.only in kernel.name]
    cases = [kernel.case() for kernel in kernels]
    for target in (given.target,) if given.target else TARGETS:
        print(f"{target}\n{'peer':>10} {'before':>10} {'now':>10} {'bytes':>6} {'ratio':>6}", flush=True)
        found = zip(kernels, measure(cases, target), measure(cases, target, fuse_multiply_add=False), strict=True)
        print("\n".join(line(kernel, target, *both) for kernel, *both in found), flush=True)
