"""Integer updates: the step of a weight or a bias, sums of gradients, momentum, and parameters that layers share.

QUpdate, the step of an int8 weight, is one operator: its attributes tell what the gradient is made of, how the weight
is stored, whether it has momentum, and whether the squares of the gradient are added up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from tinytrain_compile.ir.types import Array, Attrs, Node, TensorType, Value
from tinytrain_compile.ops import fixed_point as fx
from tinytrain_compile.ops.base import op_def, operator
from tinytrain_compile.ops.conv import ConvAttrs
from tinytrain_compile.ops.int8.clip import WORDS, row_sums, sums_of, words_of
from tinytrain_compile.ops.int8.conv_form import (
    geometry,
    is_one_sample,
    is_product,
    is_rank_one,
    lying,
    map_bytes,
    weight_tiles,
)
from tinytrain_compile.ops.int8.error import BACKWARD, expect_dtypes
from tinytrain_compile.ops.int8.rows import Half, rows_of_sum
from tinytrain_compile.ops.int8.steps import (
    FINE_BITS,
    ROW_BITS,
    channel_sums,
    less_moves,
    moved_fine,
    moved_velocity,
    rounded_gradient,
    rounded_rows,
    row_moves,
    sign_ahead,
    step_size,
    updated_weight,
    velocity_rows,
    weight_steps,
)
from tinytrain_compile.ops.int8.tiles import packed_tiles
from tinytrain_compile.ops.names import Named, attrs_of, named, operand
from tinytrain_compile.ops.owned import Owned
from tinytrain_compile.ops.rows import RowForm

SCALE = ("multiplier", "shift", "rate", "p")
"""Operands that scale a gradient, see step_size."""
_TYPES = dict.fromkeys(("w", "x", "g", "shift", "velocity", "fraction"), "int8")
"""Element types of operands; all others are int32."""
_CENTRED, _ERROR = 255, 128
"""Largest magnitudes of activations less their zero point, and of errors."""

Gradient = Literal["product", "float", "sum"]
"""Ingredients of the gradient of a weight. product: int32 sums of g (x - x_zero), which are never stored; float: a
float32 g of a low-rank copy, in steps of the activation times units of the error, like sums; sum: a stored sum."""


Momentum = Literal["", "sum", "sign"]
"""Use of a velocity in a step. "": there is none; sum: it is added to the gradient; sign: the step is
the sign of both (Lion), so neither the gradient's exponent nor its channel's unit scales it."""


@dataclass(frozen=True)
class QUpdateAttrs(Attrs):
    """Kind of step of an int8 weight.

    fine: the weight has 8 fraction bits; else noise rounds it. momentum: see Momentum.
    squares: the squares of the gradient are added to `rows`. limit: largest weight magnitude.
    conv, x_zero: geometry of the (sliced) gradient and zero point of x, of a product. by_rows: a sum is ordered by rows
    of taps, the first row first.
    """

    gradient: Gradient
    fine: bool = False
    momentum: Momentum = ""
    squares: bool = False
    conv: ConvAttrs | None = None
    x_zero: int = 0
    by_rows: bool = False
    limit: int = 127

    @property
    def by_steps_of_rows(self) -> bool:
        """True if a dense layer, given one sample, moves by one step per output times the inputs (and a velocity)."""
        return self.gradient == "product"


@dataclass(frozen=True)
class QSumAttrs(Attrs):
    """Kind of gradient sum.

    of: product and float as in QUpdateAttrs; errors: sums of g over pixels, of a bias; rows: a sum over the rows of one
    sample. running: it is added to the sum of the samples before, saturating. by_rows, conv, x_zero: as in
    QUpdateAttrs.
    """

    of: Literal["product", "float", "errors", "rows"]
    running: bool = True
    conv: ConvAttrs | None = None
    x_zero: int = 0
    by_rows: bool = False


@dataclass(frozen=True)
class QMomentumAttrs(Attrs):
    """signed: the result is a sign, as in Momentum, not a sum."""

    signed: bool = False


@dataclass(frozen=True)
class QBiasUpdateAttrs(Attrs):
    """summed: the gradient is a stored sum, not an error g."""

    summed: bool = False


@dataclass(frozen=True)
class GradientAddAttrs(Attrs):
    """lift: fraction bits of the result, by which its exponent is lower; lifted: those of the first operand."""

    lift: int = 0
    lifted: int = 0


# ---- gradients of weights -------------------------------------------------------------------------------------------


def weight_gradient(x: Array, g: Array, x_zero: int, conv: ConvAttrs) -> Any:
    """Return the exact int64 sums of g (x - x_zero)."""
    arrays = (x.astype(np.float64) - x_zero, g.astype(np.float64))  # float64 holds every sum below 2**53
    return op_def("ConvGradWeight").reference(arrays, conv)[0].astype(np.int64)


def as_weight(total: Array, by_rows: bool) -> Array:
    """Return a weight's gradient in the order of the weight. by_rows: see QUpdateAttrs."""
    if not by_rows:
        return total
    outputs, rows, *rest = total.shape
    return total.reshape(rows, outputs, *rest).swapaxes(0, 1)


def _expect_product(op: str, weight: Value, x: Value, g: Value, conv: ConvAttrs | None) -> None:
    """Raise ValueError unless x and g are int8 maps whose weight gradient has this shape."""
    expect_dtypes(op, (x, g), ("int8", "int8"))
    (kind,) = op_def("ConvGradWeight").infer(tuple(replace(v, dtype="float32") for v in (x, g)), conv)
    if kind.shape != weight.shape:
        raise ValueError(f"{op}: weight {weight.shape}, gradient {kind.shape}")


def _expect_channels(op: str, channels: Value, g: Value) -> None:
    """Raise ValueError unless the sums of g over its pixels are one per channel."""
    if channels.shape != g.shape[-1:]:
        raise ValueError(f"{op}: {channels.shape} is not one per channel of {g.shape}")


def _expect_like(op: str, weight: Value, other: Value, dtype: str) -> None:
    if (other.shape, other.dtype) != (weight.shape, dtype):
        raise ValueError(f"{op}: {dtype} of weight {weight.shape} is {other.shape} {other.dtype}")


def expect_fraction(op: str, w: Value, fraction: Value) -> None:
    """Raise ValueError unless a fraction, or a velocity, is an int8 tensor like its weight."""
    _expect_like(op, w, fraction, "int8")


def whole_words(inputs: int) -> int:
    """Return a number of inputs, rounded up to whole words of int8."""
    return -(-inputs // 4) * 4


def _product_scratch(node: Node) -> int:
    node = lying(node)
    if getattr(node.attrs, "conv", None) is None:
        return 0
    (*image, inputs), outputs = operand(node, "x").shape, operand(node, "g").shape[3]
    if is_rank_one(node):
        momentum = attrs_of(node, QUpdateAttrs).momentum
        return 4 * whole_words(inputs) if momentum else 2 * inputs  # also what its weights move by
    tiles = weight_tiles(node)
    if is_product(geometry(node)):
        tiles = packed_tiles(outputs, inputs, math.prod(image), ragged=True)
    return max(map_bytes(node), tiles.scratch_bytes if tiles else 0)


def _product_macs(node: Node) -> int:
    if getattr(node.attrs, "conv", None) is None:
        return 0
    return node.outputs[0].elements * math.prod(operand(node, "g").shape[:3])


def _sum_bound(op: str, inputs: tuple[Value, ...], attrs: Attrs) -> int:
    """Return the largest magnitude of the sums that an operator makes of int8 errors g, times int8 inputs if any."""
    o = named(op, inputs, attrs)
    g = o.get("g")
    if g is None or g.dtype != "int8":
        return 0
    return (_CENTRED if "x" in o else 1) * _ERROR * math.prod(g.shape[:-1])


# ---- QUpdate --------------------------------------------------------------------------------------------------------


def _update_operands(attrs: QUpdateAttrs) -> tuple[str, ...]:
    made_of = {"product": ("x", "g"), "float": ("g",), "sum": ("sum",)}[attrs.gradient]
    state = ("velocity", "peak", "exponent") if attrs.momentum else ()
    noise = ("noise", "salt") if attrs.momentum or not attrs.fine else ()  # noise rounds velocities too
    store = ("fraction",) if attrs.fine else ("salt_of_w",) if attrs.momentum else ()
    return (*made_of, *state, *noise, *store, *(("rows",) if attrs.squares else ()))


def _update_infer(inputs: tuple[Value, ...], attrs: QUpdateAttrs) -> tuple[TensorType, ...]:
    o = named("QUpdate", inputs, attrs)
    w, expected = o["w"], _TYPES | ({"g": "float32"} if attrs.gradient == "float" else {})
    expect_dtypes("QUpdate", inputs, tuple(expected.get(name, "int32") for name in o))
    if attrs.gradient == "product":
        _expect_product("QUpdate", w, o["x"], o["g"], attrs.conv)
    same = [name for name in ("sum", "velocity", "fraction") if name in o] + ["g"] * (attrs.gradient == "float")
    if wrong := [f"{name} {o[name].shape}" for name in same if o[name].shape != w.shape]:
        raise ValueError(f"QUpdate: weight {w.shape}, {', '.join(wrong)}")
    if attrs.momentum:
        _expect_velocity("QUpdate", o, w, attrs.momentum == "sign")
    if attrs.squares and o["rows"].shape != (w.shape[0], WORDS):
        raise ValueError(f"QUpdate: squares {o['rows'].shape} of weight {w.shape}")
    return tuple(v.type for v in o.several("w", "velocity?", "peak?", "fraction?", "rows?"))


def _gradient_of(o: Named[Array], attrs: QUpdateAttrs) -> Any:
    """Return the gradient of a weight, as whole numbers in int32."""
    if attrs.gradient == "product":
        assert attrs.conv is not None
        return fx.saturate(weight_gradient(o["x"], o["g"], attrs.x_zero, attrs.conv))
    return as_weight(o["sum"], attrs.by_rows) if attrs.gradient == "sum" else rounded_gradient(o["g"])


def _update(arrays: tuple[Array, ...], attrs: QUpdateAttrs) -> tuple[Array, ...]:
    o = named("QUpdate", arrays, attrs)
    w, scale, velocity = o["w"], o.several(*SCALE), tuple[Array, ...]()
    squares = (words_of(sums_of(o["rows"]) + row_sums(_gradient_of(o, attrs))),) if attrs.squares else ()
    if attrs.by_steps_of_rows and attrs.conv is not None and is_one_sample(o["x"].shape, attrs.conv):
        moves, noise, *velocity = _row_moves(o, attrs)
        if attrs.fine:
            w, fraction = less_moves(w, o["fraction"], moves, attrs.limit)
            return (w, *velocity, fraction, *squares)
        return (rounded_rows(w, moves, noise, attrs.limit), *velocity, *squares)
    gradient = _gradient_of(o, attrs)
    if attrs.momentum:
        signed = attrs.momentum == "sign"
        gradient, *velocity = _momentum(gradient, o, signed)
        scale = (*o.several("multiplier", "shift", "rate"), np.zeros_like(o["p"]) if signed else o["p"])
    if attrs.fine:
        w, fraction = moved_fine(w, o["fraction"], gradient, weight_steps(w, scale), attrs.limit)
        return (w, *velocity, fraction, *squares)
    salt = o["salt_of_w" if attrs.momentum else "salt"]
    return (updated_weight(w, gradient, scale, o["noise"], salt, attrs.limit), *velocity, *squares)


def _row_moves(o: Named[Array], attrs: QUpdateAttrs) -> tuple[Any, ...]:
    """Return (moves and noise of all weights, and with momentum velocity and peak) of a dense layer of one sample."""
    own, (outputs, *_, inputs) = (o["x"], o["g"], attrs.x_zero), o["w"].shape
    if not attrs.momentum:
        noise = None if attrs.fine else fx.noise_of_rows(o["noise"], o["salt"], outputs, inputs)
        return row_moves(*own, o.several(*SCALE), FINE_BITS if attrs.fine else ROW_BITS), noise
    noise, random = fx.noise_of_velocities(o["noise"], o["salt"], outputs, inputs)
    state = o["velocity"], o.several(*SCALE), o["exponent"]
    moves, velocity, peak = velocity_rows(*own, *state, random, attrs.momentum == "sign")
    return moves, noise, velocity, np.asarray(max(int(o["peak"]), peak), np.int32)


def _update_rows(node: Node) -> RowForm | None:
    attrs = attrs_of(node, QUpdateAttrs)
    if attrs.gradient != "product" or attrs.momentum or attrs.squares or attrs.conv is None:
        return None
    add = QSumAttrs("product", conv=attrs.conv, x_zero=attrs.x_zero)
    apply = replace(attrs, gradient="sum", conv=None, x_zero=0, by_rows=attrs.conv.kernel[0] > 1)
    return rows_of_sum(node, ("x", "g"), Half("QSum", add), Half("QUpdate", apply))


_PLAIN = {
    "product": (
        "QConvUpdate",
        "Weight gradient and update in one: int32 sums of g (x - zero), then w -= step with stochastic rounding.",
    ),
    "float": (
        "QRoundedUpdate",
        "w -= step times a float32 gradient, rounded to int32, with noise; operands (w, g, multiplier, shift, rate, p, "
        "noise, salt).",
    ),
    "sum": (
        "QWeightApply",
        "w -= step times the accumulated gradient, with noise; (w, sum, multiplier, shift, rate, p, noise, salt).",
    ),
}
"""Name and doc of the forms with noise, without momentum and squares."""


def _update_shown(attrs: QUpdateAttrs) -> tuple[str, str]:
    """Return (name, doc) of a form: a word and a sentence added to those of a simpler one."""
    if attrs.squares:
        name, _ = _update_shown(replace(attrs, squares=False))
        return f"{name}Squared", f"{name} that adds the squares of the gradient to `rows`, the last operand."
    words = {"salt": "salt of the velocity", "salt_of_w": "salt of w"} if attrs.momentum else {}
    there = ("w", *SCALE, *_update_operands(attrs))
    names = [name for name in (declared.removesuffix("?") for declared in _UPDATE_INPUTS) if name in there]
    listed = ", ".join(words.get(name, name) for name in names)
    if attrs.momentum:
        plain, _ = _update_shown(replace(attrs, momentum=""))
        if attrs.momentum == "sign":
            what = "by the sign of gradient and velocity"
            return plain.replace("Update", "SignMomentum"), f"{plain} {what}; operands ({listed})."
        return plain.replace("Update", "Momentum"), f"{plain} with momentum; operands ({listed})."
    name, doc = _PLAIN[attrs.gradient]
    if attrs.fine:
        return f"{name}Fine", f"{name} of a weight with 8 fraction bits; operands ({listed})."
    return name, doc


_OF_PRODUCT, _STATE = ("x?", "g?", "sum?"), ("velocity?", "peak?", "exponent?")
_UPDATE_INPUTS = ("w", *_OF_PRODUCT, *SCALE, *_STATE, "noise?", "salt?", "salt_of_w?", "fraction?", "rows?")
Q_UPDATE = operator(
    "QUpdate",
    "The step of an int8 weight, w -= step times gradient: of a product, of a float32 gradient or of a stored sum; "
    "rounded by noise or with 8 fraction bits; with or without momentum, and sums of the gradient's squares.",
    _update_infer,
    _update,
    BACKWARD,
    QUpdateAttrs,
    scratch=_product_scratch,
    accumulator=lambda inputs, attrs: _sum_bound("QUpdate", inputs, attrs),
    macs=_product_macs,
    rows=_update_rows,
    inputs=_UPDATE_INPUTS,
    outputs=("w", "velocity?", "peak?", "fraction?", "rows?"),
    owned=Owned(
        {"w": "PARAMETER", "velocity": "SYMMETRIC", "peak": "SUM", "fraction": "ANY", "rows": "SUM"}, "integer"
    ),
    present=_update_operands,
    shown=_update_shown,
)


# ---- QBiasUpdate ----------------------------------------------------------------------------------------------------


def _bias_infer(inputs: tuple[Value, ...], attrs: QBiasUpdateAttrs) -> tuple[TensorType, ...]:
    o = named("QBiasUpdate", inputs, attrs)
    of = "int32" if attrs.summed else "int8"
    expect_dtypes("QBiasUpdate", inputs, ("int32", of, "int32", "int8", "int32", "int32"))
    if not attrs.summed:
        _expect_channels("QBiasUpdate", o["bias"], o["g"])
    return (o["bias"].type,)


def _bias_update(arrays: tuple[Array, ...], attrs: QBiasUpdateAttrs) -> tuple[Array, ...]:
    bias, gradient, *scale = arrays
    multiplier, exponent = step_size(*scale, fraction_bits=0)
    sums = gradient if attrs.summed else channel_sums(gradient)
    return (fx.saturate(bias.astype(np.int64) - fx.scaled(sums, multiplier, exponent)).astype(np.int32),)


def _bias_rows(node: Node) -> RowForm | None:
    if node.attrs == QBiasUpdateAttrs(summed=True):
        return None
    return rows_of_sum(node, ("g",), Half("QSum", QSumAttrs("errors")), Half("QBiasUpdate", QBiasUpdateAttrs(True)))


_BIAS_SHOWN = {
    False: (
        "QBiasUpdate",
        "Bias gradient and update: bias -= step times the sum of g; operands (bias, g, multiplier, shift, rate, p).",
    ),
    True: ("QBiasApply", "bias -= step times the accumulated sum; operands (bias, sum, multiplier, shift, rate, p)."),
}
operator(
    "QBiasUpdate",
    "The step of an int32 bias, b -= step times gradient: the sum of g over pixels, or a stored sum.",
    _bias_infer,
    _bias_update,
    BACKWARD,
    QBiasUpdateAttrs,
    accumulator=lambda inputs, attrs: _sum_bound("QBiasUpdate", inputs, attrs),
    rows=_bias_rows,
    inputs=("bias", "g?", "sum?", *SCALE),
    outputs=("bias",),
    owned=Owned({"bias": "PARAMETER"}, "integer"),
    present=lambda attrs: ("sum",) if attrs.summed else ("g",),
    shown=lambda attrs: _BIAS_SHOWN[attrs.summed],
)


# ---- QSum -----------------------------------------------------------------------------------------------------------


def _sum_infer(inputs: tuple[Value, ...], attrs: QSumAttrs) -> tuple[TensorType, ...]:
    o = named("QSum", inputs, attrs)
    if not attrs.running:
        (g,) = inputs
        expect_dtypes("QSum", inputs, ("int8" if attrs.of == "errors" else "float32",))
        return (TensorType(g.shape[-1:] if attrs.of == "errors" else g.shape, "int32"),)
    total = o["sum"]
    if attrs.of == "product":
        _expect_product("QSum", total, o["x"], o["g"], attrs.conv)
    elif attrs.of == "errors":
        expect_dtypes("QSum", (o["g"],), ("int8",))
        _expect_channels("QSum", total, o["g"])
    elif attrs.of == "float":
        _expect_like("QSum", total, o["g"], "float32")
    else:
        _expect_like("QSum", total, o["rows"], "int32")
    expect_dtypes("QSum", (total,), ("int32",))
    return (total.type,)


def _sum(arrays: tuple[Array, ...], attrs: QSumAttrs) -> tuple[Array, ...]:
    o = named("QSum", arrays, attrs)
    if attrs.of == "product":
        assert attrs.conv is not None
        more = weight_gradient(o["x"], o["g"], attrs.x_zero, attrs.conv)
    elif attrs.of == "rows":
        more = as_weight(o["rows"], attrs.by_rows)
    else:
        more = channel_sums(o["g"]) if attrs.of == "errors" else rounded_gradient(o["g"])
    return (fx.saturate(o["sum"].astype(np.int64) + more).astype(np.int32) if attrs.running else more,)


def _sum_rows(node: Node) -> RowForm | None:
    attrs = attrs_of(node, QSumAttrs)
    if attrs.of not in ("product", "errors") or not attrs.running:
        return None
    maps = ("x", "g") if attrs.of == "product" else ("g",)
    apply = QSumAttrs("rows", by_rows=attrs.conv is not None and attrs.conv.kernel[0] > 1)
    return rows_of_sum(node, maps, Half("QSum", attrs), Half("QSum", apply))


_SUM_SHOWN = {
    ("product", True): (
        "QConvSum",
        "Adds a weight gradient, int32 sums of g (x - zero), to the running sum (exact accumulation), saturating.",
    ),
    ("errors", True): (
        "QBiasSum",
        "Adds the sums of g over all pixels to the running sum, saturating; operands (sum, g).",
    ),
    ("errors", False): ("QBiasGradient", "int32 sums of an error over all pixels."),
    ("float", True): (
        "QRoundedSum",
        "Adds a float32 gradient of an int8 weight, rounded to int32, to the running sum, saturating; operands (sum, "
        "g).",
    ),
    ("float", False): ("QRoundGradient", "A float32 gradient of an int8 weight, rounded to int32."),
    ("rows", True): (
        "QSumAdd",
        "Adds what was summed over the rows of one sample to the running sum, saturating; operands (sum, rows).",
    ),
}
_MADE_OF = {"product": ("x", "g"), "errors": ("g",), "float": ("g",), "rows": ("rows",)}
Q_SUM = operator(
    "QSum",
    "The gradient of an integer parameter as int32, or added to the running sum of several samples.",
    _sum_infer,
    _sum,
    BACKWARD,
    QSumAttrs,
    scratch=_product_scratch,
    accumulator=lambda inputs, attrs: _sum_bound("QSum", inputs, attrs),
    macs=_product_macs,
    rows=_sum_rows,
    inputs=("sum?", "x?", "g?", "rows?"),
    outputs=("sum",),
    owned=Owned({"sum": "SUM"}, "integer"),
    present=lambda attrs: (*(("sum",) if attrs.running else ()), *_MADE_OF[attrs.of]),
    shown=lambda attrs: _SUM_SHOWN[attrs.of, attrs.running],
)


# ---- QMomentum ------------------------------------------------------------------------------------------------------


def _momentum(gradient: Any, o: Named[Array], signed: bool) -> tuple[Array, Array, Array]:
    """Return (sum or sign, velocity, peak) of a gradient, with the operands of an update that has momentum."""
    velocity, shift, rate, state = o.several("velocity", "shift", "rate", "exponent")
    units = shift.astype(np.int64) >> (0 if signed else 1)  # of 1 / unit, or of 1 / unit**2
    unit = int(o["p"][0]) + units.reshape(-1, *(1,) * (velocity.ndim - 1))
    random = fx.noise_bytes(o["noise"], o["salt"], velocity.size).reshape(velocity.shape)
    total, after, magnitudes = moved_velocity(velocity, gradient, rate, state, unit, random)
    sign = sign_ahead(velocity, gradient, rate, state, unit) if signed else total
    return sign, after, fx.error_peak(magnitudes, o["peak"])


def _expect_velocity(op: str, o: Named[Value], parameter: Value, signed: bool) -> None:
    expect_fraction(op, parameter, o["velocity"])
    peak, exponent, rate = state = o.several("peak", "exponent", "rate")
    if (peak.shape, exponent.shape, rate.shape) != ((), (3,), (8 if signed else 6,)):
        raise ValueError(f"{op}: peak {peak.shape}, exponent {exponent.shape}, rate {rate.shape}")
    expect_dtypes(op, state, ("int32",) * 3)


def _momentum_infer(inputs: tuple[Value, ...], attrs: QMomentumAttrs) -> tuple[TensorType, ...]:
    o = named("QMomentum", inputs, attrs)
    total, shift = o["sum"], o["shift"]
    _expect_velocity("QMomentum", o, total, attrs.signed)
    if shift.shape != total.shape[:1] or any(v.dtype != "int32" for v in (total, *o.several("p", "noise", "salt"))):
        raise ValueError(f"QMomentum: shift {shift.shape} of sums {total.shape}")
    return (total.type, o["velocity"].type, o["peak"].type)


def _momentum_of_sums(arrays: tuple[Array, ...], attrs: QMomentumAttrs) -> tuple[Array, ...]:
    o = named("QMomentum", arrays, attrs)
    total, after, gathered = _momentum(o["sum"], o, attrs.signed)
    return total.astype(np.int32), after, gathered


_SUM_OF_BOTH = (
    "QMomentum",
    "sum += momentum times velocity, which becomes the sum over N, rounded stochastically; operands (sum, "
    "velocity, peak, shift, rate, p, exponent, noise, salt).",
)
_SIGN_OF_BOTH = (
    "QSignMomentum",
    "sum becomes the sign of itself and the velocity, which is updated as in QMomentum; operands (sum, velocity, peak, "
    "shift, rate, p, exponent, noise, salt).",
)
operator(
    "QMomentum",
    "A sum of gradients with its momentum, or the sign of both; the velocity is updated, rounded stochastically.",
    _momentum_infer,
    _momentum_of_sums,
    BACKWARD,
    QMomentumAttrs,
    inputs=("sum", "velocity", "peak", "shift", "rate", "p", "exponent", "noise", "salt"),
    outputs=("sum", "velocity", "peak"),
    owned=Owned({"sum": "SUM", "velocity": "SYMMETRIC", "peak": "SUM"}, "integer"),
    shown=lambda attrs: _SIGN_OF_BOTH if attrs.signed else _SUM_OF_BOTH,
)


# ---- parameters that several layers share ---------------------------------------------------------------------------


def _shared_infer(inputs: tuple[Value, ...], _attrs: Attrs) -> tuple[TensorType, ...]:
    expect_dtypes("QSharedBias", inputs, ("int32", "int32", "int8"))
    bias, *_ = inputs
    if len({value.shape for value in inputs}) != 1 or len(bias.shape) != 1:
        raise ValueError(f"QSharedBias: shapes {[value.shape for value in inputs]}")
    return (bias.type,)


operator(
    "QSharedBias",
    "A bias in the unit of one of the layers that share it; operands (bias, multiplier, shift), one per channel.",
    _shared_infer,
    lambda arrays, _attrs: (fx.requantise(*arrays).astype(np.int32),),
    BACKWARD,
    inputs=("bias", "multiplier", "shift"),
    outputs=("unit_bias",),
)


def _add_infer(inputs: tuple[Value, ...], attrs: GradientAddAttrs) -> tuple[TensorType, ...]:
    expect_dtypes("QGradientAdd", inputs, ("int32",) * 4 + ("int32", "int8") * 2)
    a, b, p_a, p_b, *factors = inputs
    if a.shape != b.shape or not a.shape or any(value.shape != a.shape[:1] for value in factors):
        raise ValueError(f"QGradientAdd: shapes {[value.shape for value in inputs]}")
    if len(p_a.shape) != 1 or len(p_b.shape) != 1 or not 0 <= attrs.lifted <= attrs.lift <= 16:
        raise ValueError(f"QGradientAdd: exponents {p_a.shape} and {p_b.shape}, {attrs}")
    return (a.type, TensorType((1,), "int32"))


def _added(arrays: tuple[Array, ...], attrs: GradientAddAttrs) -> tuple[Array, ...]:
    a, b, p_a, p_b, multiplier_a, shift_a, multiplier_b, shift_b = arrays
    exponent = max(int(p_a[0]) + attrs.lifted, int(p_b[0])) - attrs.lift
    first = _term(a, multiplier_a, shift_a, int(p_a[0]) - exponent)
    second = _term(b, multiplier_b, shift_b, int(p_b[0]) - exponent)
    return fx.saturate(first + second).astype(np.int32), np.asarray([exponent], np.int32)


def _term(sums: Array, multiplier: Array, shift: Array, up: int) -> Any:
    per_channel = (-1,) + (1,) * (sums.ndim - 1)
    exponent = shift.astype(np.int64) - 31 + up
    return fx.scaled(sums, multiplier.reshape(per_channel), exponent.reshape(per_channel))


operator(
    "QGradientAdd",
    "The sum of two gradients of one parameter, each times a factor per channel, at the larger of their exponents "
    "less the lift; operands (a, b, p_a, p_b, multiplier of a, shift of a, multiplier of b, shift of b).",
    _add_infer,
    _added,
    BACKWARD,
    GradientAddAttrs,
    inputs=("a", "b", "p_a", "p_b", "multiplier_a", "shift_a", "multiplier_b", "shift_b"),
    outputs=("total", "exponent"),
    reuses=("a", "b"),
)
