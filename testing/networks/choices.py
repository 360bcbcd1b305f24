"""A model of the operators that choose between numbers, and of the smaller activations, for tests on boards."""

from __future__ import annotations

import numpy as np
import onnx

from testing.networks.models import Network


def choices() -> onnx.ModelProto:
    """Every comparison, choice, reduction and small activation in one line; an image is resized at its start."""
    net = Network("choices", "float[1, 2, 4, 4] x", "float[1, 5] y", seed=17)
    net.table("roi", np.zeros(0), np.float32)
    net.table("factors", [1.0, 1.0, 1.5, 1.5], np.float32)
    net.table("wide", [1, 72])
    net.table("level", 0.2, np.float32)
    net.table("all", [1])
    net.node("resize", 'big = Resize <mode = "linear"> (x, roi, factors)')
    net.node("flat", "flat = Reshape (big, wide)")
    net.node("first", f"f = Identity ({net.dense('in', 'flat', 72, 12)})")
    for name, op in (("a", "Abs"), ("s", "Sin"), ("c", "Cos"), ("e", "Elu"), ("p", "Softplus"), ("q", "Softsign")):
        net.node(op.lower(), f"{name} = {op} (f)")
    net.node("inside", "sp = Softplus (f)")
    net.node("thinner", "t = Tanh (sp)")
    net.node("mish", "m = Mul (f, t)")
    net.node("larger", "mx = Max (s, c)")
    net.node("smaller", "mn = Min (e, q)")
    net.node("greater", "g = Greater (mx, mn)")
    net.node("at_least", "ge = GreaterOrEqual (m, level)")
    net.node("same", "eq = Equal (a, f)")
    net.node("both", "both = And (g, ge)")
    net.node("either", "either = Or (both, eq)")
    net.node("one", "one = Xor (either, g)")
    net.node("none", "none = Not (one)")
    net.node("where", "w = Where (none, mx, mn)")
    net.node("peak", f"top = ReduceMax{'<axes = [1], keepdims = 1>'} (w)")
    net.node("norm", "length = ReduceL2 <axes = [1], keepdims = 1> (m)")
    net.node("scaled", "h = Mul (w, length)")
    net.node("added", "k = Add (h, top)")
    net.node("mixed", "ka = Add (k, p)")
    net.node("size", "z = Add (ka, a)")
    net.node("y", f"y = Identity ({net.dense('fc', 'z', 12, 5)})")
    return net.model()
