"""Compare 28 int8 kernels on five cores with a vendor's library, with cycles by models.

    python -m benchmarks library                     # five cores, and cycles by the models of the Cortex-M4 and M7
    python -m benchmarks library --target cortex-m55

The library was measured once, beside ours in one image (GCC 12.2, QEMU 7.2; CMSIS-NN of July 2026, the best of three
levels of optimisation). What is kept of that are ratios; its counts are these times what ours took then, on the cases
below (`before`, at ad1fad9). Instructions are no cycles: cycles are models (docs/cycles.md). Nothing here fails.
"""

from __future__ import annotations

import argparse
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

TARGETS = ("cortex-m7", "cortex-m4", "cortex-m55", "cortex-m3", "cortex-m0plus")
MODELLED = ("cortex-m7", "cortex-m4")
"""Cores whose cycles are modelled."""
MUST, AIM = 1.0, 1.1
"""Smallest ratio of the library's instructions to ours."""
LOW, HIGH, MOST_DOWN = -128, 127, -31


@dataclass(frozen=True)
class Beside:
    """A kernel: its case; by TARGETS what ours took before, and how many times that the library took.

    cycles: of before, by MODELLED.
    """

    name: str
    make: Callable[[Rng], Case]
    before: tuple[int, ...]
    ratios: tuple[float, ...]
    cycles: tuple[int, ...] = ()

    def case(self) -> Case:
        """The same in every run."""
        return self.make(np.random.default_rng([SEED, *self.name.encode()]))

    def library(self, target: str) -> float:
        """Instructions of the library's kernel."""
        place = TARGETS.index(target)
        return self.ratios[place] * self.before[place]


def conv(*shape: int, depthwise: bool = False) -> Callable[[Rng], Case]:
    """(size, channels, output channels, kernel, stride), as an importer makes it: factors shift down, all of int8."""
    size, channels, out, kernel, stride = (*shape, *(1, 1)[len(shape) - 3 :])
    attrs = ConvAttrs((kernel,) * 2, (stride,) * 2, ((kernel - 1) // 2,) * 4, groups=channels if depthwise else 1)

    def made(rng: Rng) -> Case:
        case = quantised.qconv(rng, ((1, size, size, channels), out, attrs), 0)
        fixed: Any = case.attrs
        *rest, shift = case.arrays
        fixed = replace(fixed, low=LOW, high=HIGH, shifts_down=True)
        return replace(case, attrs=fixed, arrays=(*rest, np.clip(shift, MOST_DOWN, -1)))

    return made


def window(size: int, channels: int, kernel: int, stride: int) -> Callable[[Rng], Case]:
    """A depthwise convolution."""
    return conv(size, channels, channels, kernel, stride, depthwise=True)


def add(rng: Rng) -> Case:
    """Of two maps."""
    arrays = tuple(_bytes(rng, (1, 32, 32, 16)) for _ in range(2))
    return make("QAdd", arrays, QAddAttrs(3, -5, 7, (1518500250, -3), (1288490189, -2)), images=(0, 1))


def pool(size: int, kernel: int) -> Callable[[Rng], Case]:
    """The largest of windows two apart."""
    out = (size - kernel) // 2 + 1
    attrs = PoolAttrs((kernel, kernel), (2, 2), (0, 0, 0, 0), output_hw=(out, out))
    return lambda rng: make("MaxPool", (_bytes(rng, (1, size, size, 16)),), attrs, images=(0,))


def mean(size: int, channels: int) -> Callable[[Rng], Case]:
    """Of all pixels."""
    attrs = QRescaleAttrs((1, 2), 3, -7, (1518500250, -6), lift=6)
    return lambda rng: make("QRescale", (_bytes(rng, (1, size, size, channels)),), attrs, images=(0,))


def _bytes(rng: Rng, shape: tuple[int, ...]) -> np.ndarray:
    return rng.integers(LOW, HIGH + 1, shape).astype(np.int8)


# fmt: off
KERNELS = (
    Beside("first 3x3 s2 128x128x3->16", conv(128, 3, 16, 3, 2), (2_976_581, 2_978_694, 838_806, 5_611_570, 14_723_938), (2.71, 2.81, 2.86, 1.70, 1.41), (2_864_798, 4_173_147,)),  # noqa: E501
    Beside("1x1 64x64x16->8", conv(64, 16, 8), (889_019, 889_019, 231_443, 2_111_858, 4_842_891), (2.15, 2.31, 2.56, 1.19, 1.30), (848_305, 1_296_692,)),  # noqa: E501
    Beside("1x1 64x64x8->32", conv(64, 8, 32), (2_496_922, 2_496_922, 886_294, 5_190_230, 14_294_735), (2.54, 2.71, 2.53, 1.43, 1.32), (2_293_166, 3_388_035,)),  # noqa: E501
    Beside("1x1 32x32x16->48", conv(32, 16, 48), (1_217_499, 1_217_502, 295_376, 2_843_715, 6_987_194), (2.38, 2.56, 2.82, 1.33, 1.37), (1_169_125, 1_749_050,)),  # noqa: E501
    Beside("1x1 16x16x48->24", conv(16, 48, 24), (319_868, 321_662, 82_656, 838_701, 1_679_401), (1.98, 2.07, 1.69, 1.15, 1.41), (324_935, 502_725,)),  # noqa: E501
    Beside("1x1 16x16x24->120", conv(16, 24, 120), (917_818, 917_821, 311_950, 2_334_943, 5_256_514), (2.50, 2.62, 1.93, 1.28, 1.41), (903_339, 1_378_059,)),  # noqa: E501
    Beside("1x1 8x8x96->160", conv(8, 96, 160), (882_189, 882_193, 210_419, 2_492_873, 4_687_504), (2.03, 2.11, 1.49, 1.16, 1.49), (938_865, 1_451_310,)),  # noqa: E501
    Beside("1x1 8x8x240->40", conv(8, 240, 40), (505_693, 506_269, 117_116, 1_514_504, 2_688_212), (1.93, 1.98, 1.22, 1.10, 1.48), (541_287, 855_976,)),  # noqa: E501
    Beside("1x1 4x4x160->576", conv(4, 160, 576), (1_295_196, 1_313_628, 313_994, 3_762_831, 6_784_562), (2.07, 2.11, 1.22, 1.15, 1.49), (1_411_335, 2_200_452,)),  # noqa: E501
    Beside("1x1 4x4x576->160", conv(4, 576, 160), (1_200_348, 1_205_468, 267_714, 3_637_615, 6_291_703), (2.02, 2.06, 1.08, 1.12, 1.51), (1_334_913, 2_069_204,)),  # noqa: E501
    Beside("dw3x3 64x64x16", window(64, 16, 3, 1), (1_670_054, 1_767_687, 900_132, 2_900_123, 9_247_183), (2.88, 2.82, 2.27, 2.06, 2.54), (1_277_328, 2_176_238,)),  # noqa: E501
    Beside("dw3x3 s2 64x64x32", window(64, 32, 3, 2), (1_299_448, 1_251_448, 545_447, 1_933_563, 5_404_711), (1.78, 1.95, 1.46, 1.52, 2.16), (1_138_453, 1_610_480,)),  # noqa: E501
    Beside("dw3x3 16x16x96", window(16, 96, 3, 1), (714_069, 755_541, 399_200, 1_154_516, 3_537_648), (2.28, 2.30, 1.20, 1.79, 2.34), (574_158, 999_883,)),  # noqa: E501
    Beside("dw5x5 16x16x96", window(16, 96, 5, 1), (1_350_456, 1_350_456, 697_375, 2_027_251, 6_595_232), (3.93, 4.18, 1.43, 5.34, 3.51), (1_088_452, 1_838_541,)),  # noqa: E501
    Beside("dw7x7 s2 32x32x48", window(32, 48, 7, 2), (1_223_160, 1_220_856, 489_535, 1_917_811, 5_795_450), (4.14, 4.34, 2.00, 4.77, 3.45), (1_017_054, 1_684_749,)),  # noqa: E501
    Beside("dw7x7 8x8x192", window(8, 192, 7, 1), (1_003_412, 1_000_149, 514_969, 1_559_829, 5_144_198), (4.38, 4.63, 1.71, 4.44, 2.90), (803_500, 1_299_689,)),  # noqa: E501
    Beside("dw5x5 4x4x384", window(4, 384, 5, 1), (377_109, 376_725, 253_086, 549_142, 1_723_140), (3.12, 3.34, 0.97, 3.55, 2.33), (300_665, 491_178,)),  # noqa: E501
    Beside("3x3 32x32x16->16", conv(32, 16, 16, 3), (2_371_705, 2_367_337, 559_771, 5_540_424, 10_978_819), (2.27, 2.32, 1.63, 1.42, 1.62), (2_529_501, 3_860_717,)),  # noqa: E501
    Beside("3x3 s2 32x32x16->32", conv(32, 16, 32, 3, 2), (1_281_806, 1_280_433, 275_202, 2_875_689, 5_629_871), (1.92, 1.97, 1.41, 1.26, 1.50), (1_351_380, 2_063_090,)),  # noqa: E501
    Beside("3x3 16x16x32->32", conv(16, 32, 32, 3), (2_347_238, 2_347_366, 481_436, 5_433_162, 10_345_900), (1.91, 1.94, 1.24, 1.25, 1.53), (2_530_731, 3_836_682,)),  # noqa: E501
    Beside("3x3 8x8x64->64", conv(8, 64, 64, 3), (2_430_605, 2_430_529, 467_688, 5_460_694, 10_167_825), (1.69, 1.70, 1.04, 1.15, 1.47), (2_505_231, 3_913_696,)),  # noqa: E501
    Beside("fc 1024->64", conv(1, 1024, 64), (211_561, 211_688, 23_642, 354_260, 699_030), (0.60, 0.60, 1.35, 0.63, 0.51), (185_770, 313_840,)),  # noqa: E501
    Beside("fc 160->10", conv(1, 160, 10), (4_383, 4_383, 4_285, 9_139, 17_234), (0.84, 0.86, 0.31, 0.70, 0.60), (3_976, 6_604,)),  # noqa: E501
    Beside("add 32x32x16", add, (475_148, 475_148, 110_610, 704_525, 2_202_639), (2.12, 2.81, 2.04, 1.95, 1.80), (393_397, 540_697,)),  # noqa: E501
    Beside("max pool 2x2 s2 32x32x16", pool(32, 2), (109_304, 109_304, 109_304, 109_304, 170_578), (1.59, 1.59, 0.41, 1.59, 4.01), (84_588, 144_298,)),  # noqa: E501
    Beside("max pool 3x3 s2 33x33x16", pool(33, 3), (208_136, 208_136, 208_136, 208_136, 348_466), (1.69, 1.69, 0.41, 1.69, 4.47), (160_271, 274_330,)),  # noqa: E501
    Beside("avg 4x4x160 rescale", mean(4, 160), (12_363, 12_363, 12_107, 12_683, 22_844), (1.56, 1.56, 0.42, 3.49, 2.94), (10_774, 16_382,)),  # noqa: E501
    Beside("avg 8x8x64 rescale", mean(8, 64), (17_016, 17_016, 16_283, 17_144, 24_676), (1.58, 1.58, 0.32, 2.95, 3.36), (15_723, 23_482,)),  # noqa: E501
)
# fmt: on


def lines_of(target: str) -> tuple[list[str], float]:
    """(a line per kernel, the smallest ratio) of a core."""
    modelled = target in MODELLED
    lines = [f"{target:13} {'library':>10} {'before':>10} {'now':>10} {'ratio':>6}" + MODEL_HEAD * modelled]
    ratios: list[float] = []
    for kernel, found in zip(KERNELS, measure([k.case() for k in KERNELS], target, cycles=modelled), strict=True):
        assert found.equal, f"{target}: {kernel.name}"
        ratio = kernel.library(target) / found.instructions
        note = "" if ratio >= AIM else "   below the aim" if ratio >= MUST else "   MISS"
        figures = f"{kernel.library(target):10,.0f} {kernel.before[TARGETS.index(target)]:10,} {found.instructions:10,}"
        lines.append(f"{'':13} {figures} {ratio:6.2f}{_cycles(kernel, target, found)}  {kernel.name}{note}")
        ratios.append(ratio)
    return lines, min(ratios)


MODEL_HEAD = f" {'cycles before':>13} {'IPC':>5} {'cycles now':>10} {'IPC':>5}"


def _cycles(kernel: Beside, target: str, found: Measured) -> str:
    if target not in MODELLED:
        return ""
    place, text = MODELLED.index(target), ""
    before = kernel.cycles[place] if place < len(kernel.cycles) else None
    for cycles, count, width in (
        (before, kernel.before[TARGETS.index(target)], 13),
        (found.cycles, found.instructions, 10),
    ):
        text += f" {'-':>{width}} {'-':>5}" if cycles is None else f" {cycles:{width},} {count / cycles:5.2f}"
    return text


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", choices=TARGETS)
    chosen = parser.parse_args().target
    for target in (chosen,) if chosen else TARGETS:
        lines, worst = lines_of(target)
        print("\n".join([*lines, f"{target}: worst ratio {worst:.2f} (must {MUST}, aim {AIM})"]), flush=True)
