"""The layers that the ledger of instructions has rows for: shapes of three real networks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from testing.ops import case_quantised as quantised
from testing.ops.case import Case, make
from tinytrain_compile.ir.types import Attrs
from tinytrain_compile.ops.conv import ConvAttrs, ConvGradInputAttrs
from tinytrain_compile.ops.fused_update import FUSED_UPDATE, FusedUpdateAttrs
from tinytrain_compile.ops.int8.error import NO_CLAMP, MaskAttrs
from tinytrain_compile.ops.int8.pointwise import QAddAttrs
from tinytrain_compile.ops.linear import GemmAttrs
from tinytrain_compile.ops.normalise import NormalizeAttrs
from tinytrain_compile.ops.update import AdamAttrs, AdaptiveAttrs, SgdAttrs

SEED = 5
FOUND_BITS = 2
"""By how much the errors that come out of a layer are scaled down."""


@dataclass(frozen=True)
class Layer:
    """A kernel on random data: the same in every run."""

    name: str
    make: Callable[[np.random.Generator], Case]

    def case(self) -> Case:
        """Operands and attributes."""
        return self.make(np.random.default_rng([SEED, *self.name.encode()]))


def _conv(size: int, channels: int, out: int, kernel: int = 1, stride: int = 1, depthwise: bool = False) -> object:
    pads = ((kernel - 1) // 2,) * 4
    groups = channels if depthwise else 1
    return ((1, size, size, channels), out, ConvAttrs((kernel, kernel), (stride, stride), pads, groups=groups))


def _forward(name: str, *shape: int, depthwise: bool = False) -> Layer:
    return Layer(name, lambda rng: quantised.qconv(rng, _conv(*shape, depthwise=depthwise), 0))  # type: ignore[arg-type]


def rows_layer(height: int, width: int) -> Layer:
    """A 1x1 convolution whose weights stay widened from call to call, of a map of so many rows of so many pixels."""
    geometry = ((1, height, width, 48), 48, ConvAttrs((1, 1)))
    return Layer(f"1x1 {height}x{width}", lambda rng: quantised.qconv(rng, geometry, 0))


def streamed_layer(name: str, *shape: int, depthwise: bool = False) -> Layer:
    """As the importer makes layers of a quantised network: all factors shift down, and no bound but those of int8."""

    def made(rng: np.random.Generator) -> Case:
        case = quantised.qconv(rng, _conv(*shape, depthwise=depthwise), 0)  # type: ignore[arg-type]
        *rest, shift = case.arrays
        attrs = replace(case.attrs, low=-128, high=127, shifts_down=True)  # type: ignore[call-arg]
        return replace(case, attrs=attrs, arrays=(*rest, np.clip(shift, -31, -1)))

    return Layer(name, made)


def _error(rng: np.random.Generator, geometry: object, mask: MaskAttrs = NO_CLAMP) -> Case:
    """With the exponent that a training step would have found: few errors beyond 127, where kernels branch."""
    case = quantised.qconv_grad_input(rng, geometry, 0, mask)  # type: ignore[arg-type]
    _, p_out, p_in, *rest = case.arrays
    state = np.asarray([p_in[0] + FOUND_BITS, p_out[1]], np.int32)
    return replace(case, arrays=(case.arrays[0], state, p_in, *rest))


def _backward(name: str, *shape: int, depthwise: bool = False) -> Layer:
    return Layer(name, lambda rng: _error(rng, _conv(*shape, depthwise=depthwise)))


def _masked(name: str, kept: int, *shape: int) -> Layer:
    """Errors behind a clamp that has let `kept` per cent of its map pass, by a mask of bits."""

    def made(rng: np.random.Generator) -> Case:
        case = _error(rng, _conv(*shape), MaskAttrs("bits"))
        passed = rng.random(case.node().outputs[0].elements) < kept / 100
        return replace(case, arrays=(*case.arrays[:-1], np.packbits(passed, bitorder="little")))

    return Layer(f"{name}, {kept} % kept", made)


def _weights(name: str, *shape: int) -> Layer:
    return Layer(name, lambda rng: quantised.qconv_update(rng, _conv(*shape), 0))  # type: ignore[arg-type]


def _add(rng: np.random.Generator) -> Case:
    arrays = tuple(rng.integers(-128, 128, (1, 32, 32, 16)).astype(np.int8) for _ in range(2))
    return make("QAdd", arrays, QAddAttrs(3, -5, 7, (1518500250, -3), (1288490189, -2)), images=(0, 1))


def _float_depthwise(op: str, size: int, channels: int) -> Callable[[np.random.Generator], Case]:
    conv = ConvAttrs((3, 3), (1, 1), (1,) * 4, groups=channels)
    attrs = conv if op == "Conv" else ConvGradInputAttrs(conv, (size, size))
    shapes = (1, size, size, channels), (channels, 3, 3, 1)
    return lambda rng: make(op, tuple(rng.standard_normal(shape) for shape in shapes), attrs)


def _normalise(rng: np.random.Generator) -> Case:
    return make("Normalize", (rng.standard_normal((256, 64)),), NormalizeAttrs((1,), 1e-5))


def _sgd(rng: np.random.Generator) -> Case:
    return make("SgdUpdate", (rng.standard_normal(4096), rng.standard_normal(4096), np.asarray(0.1)), SgdAttrs())


ADAPTIVE = {
    "Adam": ("AdamUpdate", 2, AdamAttrs()),
    "AdamW": ("AdamUpdate", 2, AdamAttrs(weight_decay=0.01, decoupled=True)),
    "Adagrad": ("AdagradUpdate", 1, AdaptiveAttrs(1e-10)),
    "RMSprop": ("RmsPropUpdate", 1, AdaptiveAttrs(1e-8)),
    "RMSprop with momentum": ("RmsPropMomentumUpdate", 2, AdaptiveAttrs(1e-8, momentum=0.9)),
    "centred RMSprop": ("RmsPropCenteredUpdate", 3, AdaptiveAttrs(1e-8, momentum=0.9)),
}
"""Optimizers with roots: update, tensors of its state, attributes."""
WEIGHTS = (64, 128)
"""Of a dense layer that one of them trains."""


def adaptive_layer(name: str) -> Layer:
    """As `dense_layer`, with one of the optimizers above."""
    return dense_layer(name, WEIGHTS, *ADAPTIVE[name])


def dense_layer(name: str, weights: tuple[int, int], op: str, states: int, attrs: Attrs) -> Layer:
    """The gradient of a dense layer for one sample, and the update by it, in one kernel."""

    def made(rng: np.random.Generator) -> Case:
        state = [np.abs(rng.standard_normal(weights)) for _ in range(states)]
        sample = rng.standard_normal((1, weights[1])), rng.standard_normal((1, weights[0]))
        last = np.asarray(0.01), *([np.asarray([0.1, 0.001])] if op == "AdamUpdate" else [])
        fused = FusedUpdateAttrs("GemmGradWeight", op, GemmAttrs(), attrs)
        return make(FUSED_UPDATE.name, (rng.standard_normal(weights), *state, *sample, *last), fused)

    return Layer(f"float {name} update {weights[0]}x{weights[1]}", made)


def _gemm(op: str, left: tuple[int, int], right: tuple[int, int]) -> Callable[[np.random.Generator], Case]:
    return lambda rng: make(op, (rng.standard_normal(left), rng.standard_normal(right)), GemmAttrs())


LAYERS = (
    _forward("1x1 16x16x48 to 96", 16, 48, 96),
    _forward("1x1 64x64x8 to 32", 64, 8, 32),
    _forward("1x1 16x16x24 to 120", 16, 24, 120),
    _forward("1x1 8x8x160 to 40", 8, 160, 40),
    _forward("1x1 4x4x576 to 160", 4, 576, 160),
    _forward("first 3x3 128x128x3 to 16, stride 2", 128, 3, 16, 3, 2),
    _forward("fully connected 1024 to 64", 1, 1024, 64),
    _forward("odd 1x1 5x5x96 to 48", 5, 96, 48),
    _forward("dense 3x3 8x8x64 to 64", 8, 64, 64, 3),
    _forward("depthwise 3x3 16x16x48", 16, 48, 48, 3, 1, depthwise=True),
    _forward("depthwise 3x3 64x64x32, stride 2", 64, 32, 32, 3, 2, depthwise=True),
    _forward("depthwise 5x5 8x8x160", 8, 160, 160, 5, 1, depthwise=True),
    _forward("depthwise 7x7 32x32x48, stride 2", 32, 48, 48, 7, 2, depthwise=True),
    _forward("depthwise 7x7 8x8x160", 8, 160, 160, 7, 1, depthwise=True),
    _forward("depthwise 5x5 4x4x384", 4, 384, 384, 5, 1, depthwise=True),
    _backward("dX 1x1 4x4x160 to 576", 4, 576, 160),
    *(_masked("dX 1x1 4x4x160 to 576", kept, 4, 576, 160) for kept in (30, 60, 100)),
    _backward("dX 1x1 8x8x48 to 192", 8, 192, 48),
    _backward("dX 1x1 16x16x96 to 48", 16, 48, 96),
    _backward("dX depthwise 3x3 8x8x192", 8, 192, 192, 3, 1, depthwise=True),
    _backward("dX depthwise 7x7 8x8x240, stride 2", 8, 240, 240, 7, 2, depthwise=True),
    _weights("dW 1x1 8x8x24 to 240", 8, 24, 240),
    _weights("dW 1x1 16x16x48 to 96", 16, 48, 96),
    Layer("add 32x32x16", _add),
    Layer("float y = x w 256x48x96", _gemm("Gemm", (256, 48), (96, 48))),
    Layer("float dX = dY w 256x96x48", _gemm("GemmGradInput", (256, 96), (96, 48))),
    Layer("float dW = dY x 96x256x48", _gemm("GemmGradWeight", (256, 48), (256, 96))),
    Layer("float matrix-vector 160 to 10", _gemm("Gemm", (1, 160), (10, 160))),
    Layer("float rank-1 update 10x160", _gemm("GemmGradWeight", (1, 160), (1, 10))),
    Layer("float depthwise 3x3 16x16x48", _float_depthwise("Conv", 16, 48)),
    Layer("float dX depthwise 3x3 16x16x48", _float_depthwise("ConvGradInput", 16, 48)),
    Layer("float SGD update 4096", _sgd),
    adaptive_layer("Adam"),
    adaptive_layer("RMSprop"),
    Layer("float normalise 256x64", _normalise),
)

STREAMED = (
    streamed_layer("streamed first 3x3 128x128x3 to 16, stride 2", 128, 3, 16, 3, 2),
    streamed_layer("streamed 1x1 64x64x16 to 8", 64, 16, 8),
    streamed_layer("streamed depthwise 3x3 64x64x16", 64, 16, 16, 3, 1, depthwise=True),
    streamed_layer("streamed depthwise 3x3 64x64x32, stride 2", 64, 32, 32, 3, 2, depthwise=True),
    streamed_layer("streamed depthwise 5x5 64x64x24, stride 2", 64, 24, 24, 5, 2, depthwise=True),
    streamed_layer("streamed depthwise 3x3 32x32x48", 32, 48, 48, 3, 1, depthwise=True),
)
"""Layers of the streams of three real networks, which have a row for the whole map and one for calls of a row each."""
