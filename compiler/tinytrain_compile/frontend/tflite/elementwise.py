"""Sums, products, activations, and what changes the type of a tensor."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np

from tinytrain_compile.frontend.file.model import Refused
from tinytrain_compile.frontend.tflite.activation import CLAMPS, clamped, finish, sum_name
from tinytrain_compile.frontend.tflite.file import ABSENT, Operator
from tinytrain_compile.frontend.tflite.layers import Handler
from tinytrain_compile.frontend.tflite.translate import Translation


def _binary(to: Translation, operator: Operator, op: str) -> None:
    a, b = operator.input(0), operator.input(1)
    to.scales(operator.outputs[0])
    if to.tensor(a).kind != to.tensor(b).kind:
        raise Refused("", f"it takes {to.tensor(a).kind} and {to.tensor(b).kind}", "two operands of one type")
    finish(to, operator, to.node(op, (to.real(a), to.real(b)), sum_name(to, operator)))


def _unary(to: Translation, operator: Operator, op: str) -> None:
    k = operator.outputs[0]
    to.result(k, to.node(op, (_read(to, operator),), to.made(k)))


def _read(to: Translation, operator: Operator) -> str:
    to.scales(operator.input(0))
    return to.real(operator.input(0))


def _clamp(to: Translation, operator: Operator, which: int) -> None:
    k = operator.outputs[0]
    to.result(k, clamped(to, _read(to, operator), to.made(k), *CLAMPS[which]))


def _leaky(to: Translation, operator: Operator) -> None:
    k, alpha = operator.outputs[0], float(operator.options["Alpha"])
    if not np.isfinite(alpha):
        raise Refused("alpha", f"it is {alpha}", "a finite number")
    to.result(k, to.node("LeakyRelu", (_read(to, operator),), to.made(k), alpha=alpha))


def _prelu(to: Translation, operator: Operator) -> None:
    k = operator.outputs[0]
    alpha = to.weight(operator.input(1))
    to.result(k, to.node("PRelu", (_read(to, operator), alpha), to.made(k)))


def _softmax(to: Translation, operator: Operator) -> None:
    k, beta, x = operator.outputs[0], float(operator.options["Beta"]), _read(to, operator)
    if not np.isfinite(beta):
        raise Refused("beta", f"it is {beta}", "a finite number")
    if beta != 1.0:
        name = to.made(k, "scaled")
        x = to.node("Mul", (x, to.table(name, "beta", beta, np.float32)), name)
    to.result(k, to.node("Softmax", (x,), to.made(k), axis=-1))


def _stored_anew(to: Translation, operator: Operator) -> None:
    """Keep the numbers that QUANTIZE and DEQUANTIZE store in another type; constants of float16 are widened."""
    x, k = operator.input(0), operator.outputs[0]
    half = None if x == ABSENT else to.tensor(x).data
    if half is not None and half.dtype == np.float16:
        to.widened(k, x)
        return
    to.result(k, to.node("Identity", (_read(to, operator),), to.made(k)))


HANDLERS: Mapping[str, Handler] = {
    "ADD": partial(_binary, op="Add"),
    "DEQUANTIZE": _stored_anew,
    "HARD_SWISH": partial(_unary, op="HardSwish"),
    "LEAKY_RELU": _leaky,
    "LOGISTIC": partial(_unary, op="Sigmoid"),
    "MUL": partial(_binary, op="Mul"),
    "PRELU": _prelu,
    "QUANTIZE": _stored_anew,
    "RELU": partial(_clamp, which=1),
    "RELU6": partial(_clamp, which=3),
    "RELU_N1_TO_1": partial(_clamp, which=2),
    "SOFTMAX": _softmax,
    "SUB": partial(_binary, op="Sub"),
    "TANH": partial(_unary, op="Tanh"),
}
