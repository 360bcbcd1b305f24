"""42 int8 layers that others chose, and what a vendor's library takes for them on five cores.

They measured it beside ours in one image (commit 1f2fa785, GCC 12.2, QEMU; CMSIS-NN 99f736a6 of July 2026, the better
of -Ofast and -O2). Its counts are what they found for ours times their ratios.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from testing.kernels.boards import Measured, measure
from testing.kernels.layers import SEED
from testing.ops import case_quantised as quantised
from testing.ops.case import Case, Rng, make
from tinytrain_compile.ops.conv import ConvAttrs
from tinytrain_compile.ops.int8.pointwise import QAddAttrs, QRescaleAttrs
from tinytrain_compile.ops.pool import PoolAttrs

TARGETS = ("cortex-m7", "cortex-m4", "cortex-m33", "cortex-m55", "cortex-m0plus")
LOW, HIGH, MOST_DOWN = -128, 127, -31

Make = Callable[[Rng], Case]
Pair = tuple[int, int]


@dataclass(frozen=True)
class OtherLayer:
    """A layer: its case, and the instructions of the library's kernel by TARGETS."""

    name: str
    make: Make
    library: tuple[int, ...]

    def case(self) -> Case:
        """Return the case; it is the same in every run."""
        return self.make(np.random.default_rng([SEED, *self.name.encode()]))


def _conv(
    size: Pair,
    channels: int,
    outputs: int,
    kernel: Pair = (1, 1),
    strides: Pair = (1, 1),
    dilations: Pair = (1, 1),
    depthwise: bool = False,
    same: bool = True,
) -> Make:
    """As an importer makes it: factors shift down, all of int8. same: as many outputs as strides allow."""
    first, last = list[int](), list[int]()
    for extent, taps, step, apart in zip(size, kernel, strides, dilations, strict=True):
        out = -(-extent // step)
        padding = max((out - 1) * step + (taps - 1) * apart + 1 - extent, 0) if same else 0
        first.append(padding // 2)
        last.append(padding - padding // 2)
    pads = (first[0], first[1], last[0], last[1])
    attrs = ConvAttrs(kernel, strides, pads, dilations=dilations, groups=channels if depthwise else 1)

    def made(rng: Rng) -> Case:
        case = quantised.qconv(rng, ((1, *size, channels), outputs, attrs), 0)
        fixed: Any = case.attrs
        *rest, shift = case.arrays
        fixed = replace(fixed, low=LOW, high=HIGH, shifts_down=True)
        return replace(case, attrs=fixed, arrays=(*rest, np.clip(shift, MOST_DOWN, -1)))

    return made


def _bytes(rng: Rng, shape: tuple[int, ...]) -> np.ndarray:
    return rng.integers(LOW, HIGH + 1, shape).astype(np.int8)


def _pool(size: Pair, channels: int, kernel: Pair, strides: Pair) -> Make:
    out = tuple((extent - taps) // step + 1 for extent, taps, step in zip(size, kernel, strides, strict=True))
    attrs = PoolAttrs(kernel, strides, (0, 0, 0, 0), output_hw=(out[0], out[1]))
    return lambda rng: make("MaxPool", (_bytes(rng, (1, *size, channels)),), attrs, images=(0,))


def _mean(size: Pair, channels: int) -> Make:
    attrs = QRescaleAttrs((1, 2), 3, -7, (1518500250, -6), lift=6)
    return lambda rng: make("QRescale", (_bytes(rng, (1, *size, channels)),), attrs, images=(0,))


def _add(size: Pair, channels: int) -> Make:
    def made(rng: Rng) -> Case:
        arrays = tuple(_bytes(rng, (1, *size, channels)) for _ in range(2))
        return make("QAdd", arrays, QAddAttrs(3, -5, 7, (1518500250, -3), (1288490189, -2)), images=(0, 1))

    return made


# fmt: off
OTHERS = (
    OtherLayer("mbv1 dw3x3 48x48x8", _conv((48, 48), 8, 8, (3, 3), depthwise=True), (1_468_098, 1_468_098, 1_470_382, 863_981, 6_635_273)),  # noqa: E501
    OtherLayer("mbv1 dw3x3 s2 24x24x32 SAME", _conv((24, 24), 32, 32, (3, 3), strides=(2, 2), depthwise=True), (338_526, 338_469, 337_531, 111_749, 1_595_770)),  # noqa: E501
    OtherLayer("mbv1 1x1 12x12x32->64", _conv((12, 12), 32, 64, (1, 1)), (788_353, 801_887, 794_949, 181_675, 2_676_807)),  # noqa: E501
    OtherLayer("mbv1 1x1 6x6x128->128", _conv((6, 6), 128, 128, (1, 1)), (1_061_509, 1_081_631, 1_076_593, 166_876, 4_051_435)),  # noqa: E501
    OtherLayer("mbv1 dw3x3 3x3x256", _conv((3, 3), 256, 256, (3, 3), depthwise=True), (142_497, 142_672, 142_605, 48_380, 598_611)),  # noqa: E501
    OtherLayer("kws first 10x4 s2 49x10x1->64", _conv((49, 10), 1, 64, (10, 4), strides=(2, 2)), (1_123_433, 1_109_784, 1_102_947, 288_946, 3_022_795)),  # noqa: E501
    OtherLayer("resnet 3x3 32x32x3->16", _conv((32, 32), 3, 16, (3, 3)), (2_150_039, 2_111_720, 2_111_598, 599_746, 5_184_511)),  # noqa: E501
    OtherLayer("resnet 3x3 s2 32x32x16->32 SAME", _conv((32, 32), 16, 32, (3, 3), strides=(2, 2)), (2_519_794, 2_519_871, 2_519_407, 387_606, 8_418_489)),  # noqa: E501
    OtherLayer("resnet 1x1 s2 32x32x16->32", _conv((32, 32), 16, 32, (1, 1), strides=(2, 2)), (556_464, 563_334, 560_106, 141_300, 1_643_044)),  # noqa: E501
    OtherLayer("resnet 3x3 8x8x32->64 s1", _conv((8, 8), 32, 64, (3, 3)), (2_195_196, 2_183_699, 2_184_804, 280_345, 7_713_469)),  # noqa: E501
    OtherLayer("yolo 3x3 13x13x32->40", _conv((13, 13), 32, 40, (3, 3)), (3_718_505, 3_715_293, 3_714_372, 481_213, 13_061_087)),  # noqa: E501
    OtherLayer("1d k5 128x32->32", _conv((1, 128), 32, 32, (1, 5)), (1_353_002, 1_346_822, 1_353_346, 175_930, 4_596_944)),  # noqa: E501
    OtherLayer("1d k9 250x16->16", _conv((1, 250), 16, 16, (1, 9)), (1_328_865, 1_327_394, 1_327_573, 159_433, 4_319_374)),  # noqa: E501
    OtherLayer("1d k15 256x1->8", _conv((1, 256), 1, 8, (1, 15)), (333_316, 326_188, 321_928, 112_767, 586_226)),
    OtherLayer("1d k5 s2 200x6->24", _conv((1, 200), 6, 24, (1, 5), strides=(1, 2)), (277_044, 275_205, 275_059, 49_910, 750_811)),  # noqa: E501
    OtherLayer("1d k3 d2 128x16->16", _conv((1, 128), 16, 16, (1, 3), dilations=(1, 2)), (302_145, 302_576, 302_576, 64_933, 894_491)),  # noqa: E501
    OtherLayer("1d dw k3 d4 128x24", _conv((1, 128), 24, 24, (1, 3), dilations=(1, 4), depthwise=True), (564_944, 539_727, 539_195, 550_145, 1_253_549)),  # noqa: E501
    OtherLayer("odd 1x1 9x9x7->13", _conv((9, 9), 7, 13, (1, 1)), (65_065, 64_560, 64_422, 18_795, 150_198)),
    OtherLayer("odd 1x1 11x11x100->20", _conv((11, 11), 100, 20, (1, 1)), (453_016, 459_367, 456_873, 82_518, 1_697_717)),  # noqa: E501
    OtherLayer("odd 3x3 15x15x5->7", _conv((15, 15), 5, 7, (3, 3)), (349_504, 345_102, 342_865, 97_224, 846_013)),
    OtherLayer("odd 3x3 d2 14x14x12->12", _conv((14, 14), 12, 12, (3, 3), dilations=(2, 2)), (688_392, 685_227, 678_497, 127_544, 2_142_439)),  # noqa: E501
    OtherLayer("5x5 28x28x1->6 valid", _conv((28, 28), 1, 6, (5, 5), same=False), (986_273, 959_430, 943_132, 385_163, 1_621_019)),  # noqa: E501
    OtherLayer("odd dw3x3 15x15x20", _conv((15, 15), 20, 20, (3, 3), depthwise=True), (331_881, 331_307, 331_312, 132_549, 1_531_529)),  # noqa: E501
    OtherLayer("odd dw3x3 s2 15x15x36", _conv((15, 15), 36, 36, (3, 3), strides=(2, 2), depthwise=True), (161_528, 161_780, 161_847, 55_208, 739_548)),  # noqa: E501
    OtherLayer("odd dw5x5 11x11x13", _conv((11, 11), 13, 13, (5, 5), depthwise=True), (470_004, 479_172, 472_238, 121_659, 1_411_508)),  # noqa: E501
    OtherLayer("dw7x7 14x14x32", _conv((14, 14), 32, 32, (7, 7), depthwise=True), (2_648_268, 2_727_716, 2_704_455, 540_193, 9_039_926)),  # noqa: E501
    OtherLayer("dw3x3 s2 7x7x100", _conv((7, 7), 100, 100, (3, 3), strides=(2, 2), depthwise=True), (104_072, 104_000, 104_333, 31_411, 453_032)),  # noqa: E501
    OtherLayer("fc 32->32", _conv((1, 1), 32, 32), (3_690, 3_668, 3_681, 1_086, 9_694)),
    OtherLayer("fc 100->36", _conv((1, 1), 100, 36), (8_736, 8_736, 8_736, 2_551, 25_267)),
    OtherLayer("fc 256->128", _conv((1, 1), 256, 128), (67_819, 67_819, 67_821, 17_200, 210_403)),
    OtherLayer("fc 784->100", _conv((1, 1), 784, 100), (151_910, 151_910, 151_912, 38_222, 480_417)),
    OtherLayer("fc 1024->10", _conv((1, 1), 1_024, 10), (19_810, 19_810, 19_810, 5_909, 64_883)),
    OtherLayer("fc 64->2", _conv((1, 1), 64, 2), (523, 523, 523, 363, 1_476)),
    OtherLayer("max 3x3 s2 15x15x20", _pool((15, 15), 20, (3, 3), (2, 2)), (81_755, 81_755, 81_755, 23_811, 368_358)),
    OtherLayer("max 2x2 s2 14x14x7", _pool((14, 14), 7, (2, 2), (2, 2)), (19_009, 19_300, 19_237, 8_368, 50_248)),
    OtherLayer("max 1x2 s2 1x128x32", _pool((1, 128), 32, (1, 2), (1, 2)), (43_697, 43_697, 43_968, 9_121, 156_088)),
    OtherLayer("max 5x5 s1 13x13x24 valid", _pool((13, 13), 24, (5, 5), (1, 1)), (414_813, 414_813, 414_830, 102_821, 2_023_342)),  # noqa: E501
    OtherLayer("avg 25x5x64", _mean((25, 5), 64), (50_856, 50_856, 50_856, 9_343, 165_429)),
    OtherLayer("avg 5x5x36", _mean((5, 5), 36), (6_416, 6_416, 6_416, 1_976, 21_515)),
    OtherLayer("avg 1x61x32", _mean((1, 61), 32), (12_988, 12_988, 12_988, 2_383, 35_198)),
    OtherLayer("add 15x15x20", _add((15, 15), 20), (361_677, 365_458, 371_759, 62_002, 1_068_808)),
    OtherLayer("add 8x8x64", _add((8, 8), 64), (329_206, 332_647, 338_383, 56_439, 972_977)),
)
# fmt: on


def measured(target: str) -> list[tuple[OtherLayer, Measured, float]]:
    """Return (layer, what ours takes, the library's instructions divided by ours) of a core."""
    place, found = TARGETS.index(target), measure([layer.case() for layer in OTHERS], target)
    rows = zip(OTHERS, found, strict=True)
    return [(layer, one, layer.library[place] / one.instructions) for layer, one in rows]


def geometric_mean(ratios: list[float]) -> float:
    """Return the mean of factors."""
    return math.exp(sum(map(math.log, ratios)) / len(ratios))
