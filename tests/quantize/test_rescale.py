"""Means, changes of scale and padded pools: the nearest integer, whatever the factor."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from tests.quantize import nets
from tests.quantize.gradients import check_gradients
from tinytrain_compile.ir.types import Quant
from tinytrain_compile.ops import OPS
from tinytrain_compile.ops.fixed_point import split_factor
from tinytrain_compile.ops.pool import PoolAttrs, always_full
from tinytrain_compile.quantize import forward

FACTORS = (0.9, 0.6, 0.3, 0.26, 0.13, 0.011, 1.7, 3.9)


def worst(elements: int, lift: int | None = None) -> float:
    """Largest distance of a rescaled sum from the exact number, over all integers and factors."""
    found = 0.0
    rng = np.random.default_rng(elements)
    for factor in FACTORS:
        x = rng.integers(-128, 128, (2000, elements)).astype(np.int8)
        x[:256, :] = np.arange(-128, 128, dtype=np.int64)[:, None]
        attrs = forward.rescale_attrs(Quant((factor,), 3), Quant((1.0,), -5), 1.0 / elements, x.shape, (1,))
        if lift is not None:
            attrs = replace(attrs, lift=lift, factor=split_factor(math.ldexp(factor / elements, -lift)))
        y = OPS["QRescale"].reference((x,), attrs)[0].astype(np.float64)
        exact = (x.astype(np.float64) - 3).mean(axis=1, keepdims=True) * factor - 5
        inside = (exact > -128) & (exact < 127)
        found = max(found, float(np.abs(y - exact)[inside].max()))
    return found


@pytest.mark.parametrize("elements", [1, 2, 3, 49, 4096])
def test_results_are_the_nearest_integers(elements: int) -> None:
    assert 0.45 < worst(elements) < 0.5001


def test_rounding_twice_is_noticed() -> None:
    assert worst(1, lift=0) > 0.7


def test_concat_of_two_scales_rescales_one() -> None:
    attrs = forward.rescale_attrs(Quant((0.1,), 7), Quant((0.3,), -3))
    (y,) = OPS["QRescale"].reference((np.asarray([-128, -2, 7, 16, 127], np.int8),), attrs)
    assert y.tolist() == [-48, -6, -3, 0, 37]


# ---- pools ----------------------------------------------------------------------------------------------------------

PADDED = "kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]"


def float_regions(window: str, size: int = 7) -> Counter[str]:
    train = nets.int8_train(nets.cnn(size=size, window=window), head="int8")
    return Counter(node.op for node in nets.float_nodes(train))


def test_padding_that_counts_is_a_convolution() -> None:
    assert float_regions(f"{PADDED}, count_include_pad = 1") == Counter({"Dequantize": 1})
    check_gradients(nets.cnn(window=f"{PADDED}, count_include_pad = 1"))


@pytest.mark.parametrize("window", [PADDED, "kernel_shape = [2, 2], strides = [2, 2], ceil_mode = 1"])
def test_windows_of_several_sizes_stay_float(window: str) -> None:
    floats = float_regions(window)
    assert (floats["AveragePool"], floats["AveragePoolGrad"]) == (1, 1)


def test_full_windows() -> None:
    whole = PoolAttrs((3, 3), (2, 2), (1, 1, 1, 1), output_hw=(4, 4), count_include_pad=True)
    assert always_full(whole, (7, 7))
    assert not always_full(replace(whole, count_include_pad=False), (7, 7))
    assert not always_full(replace(whole, output_hw=(5, 4)), (7, 7))
    assert always_full(PoolAttrs((2, 2), (2, 2), (0, 0, 0, 0), output_hw=(3, 3)), (7, 7))
    assert not always_full(PoolAttrs((2, 2), (2, 2), (0, 0, 0, 0), output_hw=(4, 3)), (7, 7))
