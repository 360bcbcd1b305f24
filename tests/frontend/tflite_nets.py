"""Networks as .tflite files: each is written in float32, measured in LiteRT, and written again in int8 by that."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from testing.networks.tflite_file import TfliteWriter

ACTIVATIONS = {"": 0, "RELU": 1, "RELU_N1_TO_1": 2, "RELU6": 3}
Ranges = Mapping[str, tuple[float, float]]
FIXED = {"LOGISTIC": (1 / 256, -128), "SOFTMAX": (1 / 256, -128), "TANH": (1 / 128, 0)}
"""Scale and zero point that kernels ask of these results."""


@dataclass(frozen=True)
class T:
    """A tensor: index, name, shape, and how it is stored (scale 0: float32)."""

    index: int
    name: str
    shape: tuple[int, ...]
    scale: float = 0.0
    zero: int = 0


class Layers:
    """A network in the making. ranges: of every tensor, if it is to be int8; None: float32."""

    def __init__(self, ranges: Ranges | None = None, seed: int = 0, io: str = "int8") -> None:
        self.file, self.ranges, self.io = TfliteWriter(), ranges, io
        self.random = np.random.default_rng(seed)
        self.count = 0
        self.rings: list[tuple[str, T]] = []

    # ---- tensors ----------------------------------------------------------------------------------------------------

    def made(self, name: str, shape: Any, like: T | None = None, fixed: tuple[float, int] | None = None) -> T:
        """A result; like: stored as that one is."""
        shape = tuple(int(n) for n in shape)
        if self.ranges is None:
            return T(self.file.tensor(name, shape, "float32"), name, shape)
        if like is not None:
            scale, zero = like.scale, like.zero
        elif fixed is not None:
            scale, zero = fixed
        else:
            low, high = self.ranges[name]
            low, high = min(low, 0.0), max(high, 1e-3)
            scale = float(np.float32((high - low) / 255))
            zero = int(np.clip(np.rint(-128 - low / scale), -128, 127))
        return T(self.file.tensor(name, shape, "int8", scale, zero), name, shape, scale, zero)

    def name(self, op: str) -> str:
        self.count += 1
        return f"{op.lower()}{self.count}"

    def input(self, shape: Any) -> T:
        x = self.made("x", shape)
        self.first = x
        if self.ranges is None or self.io == "int8":
            return x
        low = self.made("x_int8", shape, like=x)
        self.file.graphs[0].tensors[x.index] = ("x", list(shape), "uint8", x.scale, x.zero + 128, 0, 0)
        self.file.operator("QUANTIZE", [x.index], [low.index], "Quantize")
        return low

    def constant(self, name: str, array: np.ndarray, scale: float = 0.0, zero: int = 0) -> T:
        """A constant operand; scale 0: its own in int8."""
        if self.ranges is None:
            return T(self.file.tensor(name, array.shape, "float32", data=array.astype(np.float32)), name, array.shape)
        scale = scale or float(np.abs(array).max() / 127) or 1.0
        stored = np.clip(np.rint(array / np.float32(scale)) + zero, -128, 127).astype(np.int8)
        return T(self.file.tensor(name, array.shape, "int8", scale, zero, stored), name, array.shape, scale, zero)

    def weights(self, name: str, array: np.ndarray, axis: int, per_channel: bool = True) -> tuple[int, np.ndarray]:
        """Index of a weight, and its scales."""
        array = array.astype(np.float32)
        if self.ranges is None:
            return self.file.tensor(name, array.shape, "float32", data=array), np.ones(1)
        others = tuple(k for k in range(array.ndim) if k != axis)
        peak = np.abs(array).max(axis=others) if per_channel else np.abs(array).max(keepdims=True).reshape(-1)
        scale = (peak / 127).astype(np.float32)
        along = scale.reshape([-1 if k == axis else 1 for k in range(array.ndim)]) if per_channel else scale[0]
        stored = np.clip(np.rint(array / along), -127, 127).astype(np.int8)
        return self.file.tensor(name, array.shape, "int8", scale, 0, stored, axis), scale

    def bias(self, name: str, array: np.ndarray, x: T, scale: np.ndarray) -> int:
        if self.ranges is None:
            return self.file.tensor(name, array.shape, "float32", data=array.astype(np.float32))
        scales = (np.float32(x.scale) * scale).astype(np.float32)
        stored = np.rint(array / scales).astype(np.int32)
        return self.file.tensor(name, array.shape, "int32", scales, 0, stored)

    # ---- layers -----------------------------------------------------------------------------------------------------

    def conv(
        self,
        x: T,
        channels: int,
        window: Any = 3,
        stride: Any = 1,
        dilation: Any = 1,
        act: str = "",
        pad: str = "SAME",
        depthwise: bool = False,
        per_channel: bool = True,
        groups: int = 1,
        like: T | None = None,
    ) -> T:
        """channels: of the result; like: stored as that one is."""
        (kh, kw), (sh, sw), (dh, dw) = (np.broadcast_to(v, 2).tolist() for v in (window, stride, dilation))
        inputs = x.shape[3]
        shape = (1, kh, kw, channels) if depthwise else (channels, kh, kw, inputs // groups)
        spread = 1 / np.sqrt(kh * kw * (1 if depthwise else inputs // groups))
        name = self.name("dw" if depthwise else "conv")
        array = spread * self.random.standard_normal(shape)
        w, scale = self.weights(f"{name}/w", array, 3 if depthwise else 0, per_channel)
        bias = self.bias(f"{name}/b", 0.2 * self.random.standard_normal(channels), x, scale)
        y = self.made(name, (1, *_sizes(x, ((kh - 1) * dh + 1, (kw - 1) * dw + 1), (sh, sw), pad), channels), like)
        options = {"StrideH": sh, "StrideW": sw, "DilationHFactor": dh, "DilationWFactor": dw}
        options |= {"Padding": int(pad != "SAME"), "FusedActivationFunction": ACTIVATIONS[act]}
        options |= {"DepthMultiplier": channels // inputs} if depthwise else {}
        op, kind = ("DEPTHWISE_CONV_2D", "DepthwiseConv2D") if depthwise else ("CONV_2D", "Conv2D")
        self.file.operator(op, [x.index, w, bias], [y.index], kind, **options)
        return y

    def dense(
        self, x: T, outputs: int, act: str = "", bias: bool = True, per_channel: bool = False, keep: bool = False
    ) -> T:
        inputs = x.shape[-1] if keep else int(np.prod(x.shape))
        name = self.name("dense")
        array = self.random.standard_normal((outputs, inputs)) / np.sqrt(inputs)
        w, scale = self.weights(f"{name}/w", array, 0, per_channel)
        operands = [x.index, w]
        if bias:
            operands.append(self.bias(f"{name}/b", 0.2 * self.random.standard_normal(outputs), x, scale))
        y = self.made(name, (*x.shape[:-1], outputs) if keep else (1, outputs))
        self.file.operator("FULLY_CONNECTED", operands, [y.index], "FullyConnected",
                           FusedActivationFunction=ACTIVATIONS[act], KeepNumDims=keep)  # fmt: skip
        return y

    def transposed_conv(self, x: T, channels: int, window: int, stride: int, pad: str = "SAME", bias: bool = True) -> T:
        name = self.name("tconv")
        array = self.random.standard_normal((channels, window, window, x.shape[3])) / np.sqrt(window * x.shape[3])
        w, scale = self.weights(f"{name}/w", array, 0)
        rows = [n * stride if pad == "SAME" else (n - 1) * stride + window for n in x.shape[1:3]]
        operands = [self.file.constant(f"{name}/shape", [1, *rows, channels]), w, x.index]
        if bias:
            operands.append(self.bias(f"{name}/b", 0.2 * self.random.standard_normal(channels), x, scale))
        y = self.made(name, (1, *rows, channels))
        options = {"Padding": int(pad != "SAME"), "StrideH": stride, "StrideW": stride, "FusedActivationFunction": 0}
        self.file.operator("TRANSPOSE_CONV", operands, [y.index], "TransposeConv", **options)
        return y

    def pool(self, x: T, largest: bool, window: Any, stride: Any, pad: str = "VALID", act: str = "") -> T:
        (kh, kw), (sh, sw) = (np.broadcast_to(v, 2).tolist() for v in (window, stride))
        y = self.made(self.name("pool"), (1, *_sizes(x, (kh, kw), (sh, sw), pad), x.shape[3]), like=x)
        options = {"StrideH": sh, "StrideW": sw, "FilterHeight": kh, "FilterWidth": kw}
        options |= {"Padding": int(pad != "SAME"), "FusedActivationFunction": ACTIVATIONS[act]}
        self.file.operator("MAX_POOL_2D" if largest else "AVERAGE_POOL_2D", [x.index], [y.index], "Pool2D", **options)
        return y

    def op(
        self, op: str, inputs: list[T], shape: Any, tables: Any = (), kind: str = "", same: bool = False, **options: Any
    ) -> T:
        """Any operator of one result; tables: int32 constants behind the operands; same: it moves integers."""
        y = self.made(self.name(op), shape, like=inputs[0] if same else None, fixed=FIXED.get(op))
        extra = [self.file.constant(f"{y.name}/{k}", table) for k, table in enumerate(tables)]
        self.file.operator(op, [*(x.index for x in inputs), *extra], [y.index], kind, **options)
        return y

    def binary(self, op: str, a: T, b: T, act: str = "") -> T:
        shape = np.broadcast_shapes(a.shape, b.shape)
        return self.op(op, [a, b], shape, kind=op.capitalize(), FusedActivationFunction=ACTIVATIONS[act])

    def reshape(self, x: T, shape: Any) -> T:
        return self.op("RESHAPE", [x], shape, [shape], "Reshape", same=True)

    def split(self, x: T, axis: int, sizes: list[int], even: bool) -> list[T]:
        name = self.name("split")
        parts = [
            self.made(f"{name}/{k}", (*x.shape[:axis], n, *x.shape[axis + 1 :]), like=x) for k, n in enumerate(sizes)
        ]
        where = self.file.constant(f"{name}/axis", np.int32(axis))
        outputs = [one.index for one in parts]
        if even:
            self.file.operator("SPLIT", [where, x.index], outputs, "Split", NumSplits=len(sizes))
        else:
            table = self.file.constant(f"{name}/sizes", sizes)
            self.file.operator("SPLIT_V", [x.index, table, where], outputs, "SplitV", NumSplits=len(sizes))
        return parts

    def ring(self, x: T, rows: int) -> T:
        """The last rows of a sequence along axis 1, and x, its new ones."""
        name, kept = self.name("ring"), (1, rows, *x.shape[2:])
        handle = self.file.tensor(f"{name}/handle", (), "resource")
        self.file.operator("VAR_HANDLE", [], [handle], "VarHandle", SharedName=name)
        held = self.made(f"{name}/read", kept, like=x)
        self.file.operator("READ_VARIABLE", [handle], [held.index])
        whole = (1, rows + x.shape[1], *x.shape[2:])
        joined = self.op(
            "CONCATENATION", [held, x], whole, (), "Concatenation", True, Axis=1, FusedActivationFunction=0
        )
        tables = [[0, -rows, *(0 for _ in x.shape[2:])], [0 for _ in x.shape], [1 for _ in x.shape]]
        masks = {"EllipsisMask": 0, "NewAxisMask": 0, "ShrinkAxisMask": 0}
        every = (1 << len(x.shape)) - 1
        end = self.op(
            "STRIDED_SLICE", [joined], kept, tables, "StridedSlice", True, BeginMask=every - 2, EndMask=every, **masks
        )
        self.file.operator("ASSIGN_VARIABLE", [handle, end.index], [])
        self.rings.append((name, held))
        return joined

    def _initialise(self) -> None:
        """A subgraph that fills the rings with zeros, and its call in front of all else."""
        self.file.operator("CALL_ONCE", [], [], "CallOnce", InitSubgraphIndex=1)
        operators = self.file.graphs[0].operators
        operators.insert(0, operators.pop())
        self.file.sub()
        for name, held in self.rings:
            handle = self.file.tensor(f"{name}/handle", (), "resource")
            self.file.operator("VAR_HANDLE", [], [handle], "VarHandle", SharedName=name)
            kind = "float32" if self.ranges is None else "int8"
            first = np.full(held.shape, held.zero, kind)
            scale = None if self.ranges is None else held.scale
            zeros = self.file.tensor(f"{name}/first", held.shape, kind, scale, held.zero, first)
            self.file.operator("ASSIGN_VARIABLE", [handle, zeros], [])

    def finish(self, y: T) -> None:
        """Complete the file, its output in the type of its input."""
        if self.ranges is not None and self.io == "uint8":
            out = T(self.file.tensor("y_uint8", y.shape, "uint8", y.scale, y.zero + 128), "y_uint8", y.shape)
            self.file.operator("QUANTIZE", [y.index], [out.index], "Quantize")
            y = out
        self.file.ends([self.first.index], [y.index])
        if self.rings:
            self._initialise()


def _sizes(x: T, window: tuple[int, int], strides: tuple[int, int], pad: str) -> list[int]:
    """Rows and columns of what a window makes."""
    sizes = zip(x.shape[1:3], window, strides, strict=True)
    return [-(-n // s) if pad == "SAME" else (n - k) // s + 1 for n, k, s in sizes]


Recipe = Callable[[Layers], T]


def writer(recipe: Recipe, ranges: Ranges | None = None, io: str = "int8") -> TfliteWriter:
    net = Layers(ranges, io=io)
    net.finish(recipe(net))
    return net.file


def written(recipe: Recipe, ranges: Ranges | None = None, io: str = "int8") -> bytes:
    return writer(recipe, ranges, io).data()


# ---- LiteRT ----------------------------------------------------------------------------------------------------------


def opened(data: bytes, kind: str = "BUILTIN_REF") -> Any:
    from ai_edge_litert import interpreter as litert

    kinds = litert.OpResolverType
    made = litert.Interpreter(
        model_content=data,
        experimental_op_resolver_type=getattr(kinds, kind),
        experimental_preserve_all_tensors=True,
        num_threads=1,
    )
    made.allocate_tensors()
    return made


def real_values(data: bytes, x: np.ndarray) -> dict[str, np.ndarray]:
    """Every tensor of float32 by name, on one sample."""
    runner = opened(data)
    runner.set_tensor(runner.get_input_details()[0]["index"], x)
    runner.invoke()
    known = (one for one in runner.get_tensor_details() if one["dtype"] is np.float32)
    return {one["name"]: runner.get_tensor(one["index"]).copy() for one in known}


SPREAD = 3.0
"""Deviation of inputs: some sums pass 6."""


def measured(recipe: Recipe, shape: tuple[int, ...], count: int = 4) -> dict[str, tuple[float, float]]:
    """Ranges of all tensors on random samples."""
    data, random = written(recipe), np.random.default_rng(1)
    found: dict[str, tuple[float, float]] = {}
    for _ in range(count):
        for name, array in real_values(data, (SPREAD * random.standard_normal(shape)).astype(np.float32)).items():
            low, high = found.get(name, (np.inf, -np.inf))
            found[name] = min(low, float(array.min())), max(high, float(array.max()))
    return found


# ---- the networks ----------------------------------------------------------------------------------------------------


def _head(net: Layers, x: T) -> T:
    return net.dense(x, 3)


def _image(layer: Callable[[Layers, T], T]) -> Recipe:
    """One layer on an image of 7 x 6 x 4, and a head."""
    return lambda net: _head(net, layer(net, net.input((1, 7, 6, 4))))


def _vector(layer: Callable[[Layers, T], T]) -> Recipe:
    return lambda net: _head(net, layer(net, net.input((1, 24))))


def _noise(net: Layers, name: str, *shape: int) -> T:
    return net.constant(name, net.random.standard_normal(shape))


def _joined(net: Layers, x: T) -> T:
    a, b = net.split(x, 3, [2, 2], even=True)
    y = net.op(
        "CONCATENATION", [b, a, b], (1, 7, 6, 6), kind="Concatenation", same=True, Axis=3, FusedActivationFunction=0
    )
    return net.op(
        "CONCATENATION", [y, y], (1, 14, 6, 6), kind="Concatenation", same=True, Axis=-3, FusedActivationFunction=0
    )


def _parts(net: Layers, x: T) -> T:
    a, b, _ = net.split(x, 1, [2, 3, 2], even=False)
    masks = {"BeginMask": 0, "EndMask": 8, "EllipsisMask": 0, "NewAxisMask": 0, "ShrinkAxisMask": 0}
    a = net.op(
        "STRIDED_SLICE", [a], (1, 1, 3, 4), [[0, -1, 0, 0], [1, 2, 6, 0], [1, 1, 2, 1]], "StridedSlice", True, **masks
    )
    b = net.op("SLICE", [b], (1, 1, 3, 4), [[0, 1, 2, 0], [1, 1, 3, -1]], "Slice", True)
    return net.binary("ADD", a, b)


def _shrunk(net: Layers, x: T) -> T:
    masks = {"BeginMask": 13, "EndMask": 13, "EllipsisMask": 0, "NewAxisMask": 0, "ShrinkAxisMask": 2}
    return net.op(
        "STRIDED_SLICE", [x], (1, 6, 4), [[0, 3, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1]], "StridedSlice", True, **masks
    )


def _views(net: Layers, x: T) -> T:
    y = net.op("TRANSPOSE", [x], (1, 4, 7, 6), [[0, 3, 1, 2]], "Transpose", True)
    y = net.reshape(y, (1, 28, 6))
    y = net.op("EXPAND_DIMS", [y], (1, 1, 28, 6), [1], "ExpandDims", True)
    return net.op("SQUEEZE", [y], (28, 6), (), "Squeeze", True)


def _padv2(net: Layers, x: T) -> T:
    fill = net.constant("fill", np.asarray(0.5), x.scale, x.zero)
    y = net.made("padded", (1, 10, 8, 4), like=x)
    pads = net.file.constant("pads", [[0, 0], [1, 2], [2, 0], [0, 0]])
    net.file.operator("PADV2", [x.index, pads, fill.index], [y.index], "PadV2")
    return y


def _padded(net: Layers, x: T) -> T:
    y = net.op("PAD", [x], (1, 9, 8, 4), [[[0, 0], [1, 1], [0, 2], [0, 0]]], "Pad", True)
    return net.conv(y, 5, 3, 2, pad="VALID", act="RELU")


def _residual(net: Layers, x: T) -> T:
    y = net.conv(x, 4, act="RELU6")
    z = net.conv(net.conv(y, 4, depthwise=True), 4, 1)
    return net.binary("ADD", y, z, "RELU")


def _mean(axes: list[int], shape: tuple[int, ...], keep: bool = False) -> Callable[[Layers, T], T]:
    return lambda net, x: net.op("MEAN", [x], shape, [axes], "Reducer", KeepDims=keep)


def _leaky(net: Layers, x: T) -> T:
    return net.op("LEAKY_RELU", [x], x.shape, kind="LeakyRelu", Alpha=0.2)


def _prelu(net: Layers, x: T) -> T:
    return net.op("PRELU", [x, _noise(net, "alpha", 1, 1, 4)], x.shape)


def _softmax(net: Layers, x: T) -> T:
    return net.op("SOFTMAX", [x], x.shape, kind="Softmax", Beta=0.7)


def _plain(op: str, kind: str = "") -> Callable[[Layers, T], T]:
    return lambda net, x: net.op(op, [x], x.shape, kind=kind)


def _resized(op: str, kind: str, **options: Any) -> Callable[[Layers, T], T]:
    return lambda net, x: net.op(op, [x], (1, 14, 12, 4), [[14, 12]], kind, True, **options)


def _packed(net: Layers, x: T) -> T:
    y = net.reshape(x, (7, 24))
    return net.op("PACK", [y, y], (7, 2, 24), kind="Pack", same=True, Axis=1, ValuesCount=2)


def _with(op: str, *shape: int, act: str = "") -> Callable[[Layers, T], T]:
    return lambda net, x: net.binary(op, x, _noise(net, "other", *shape), act)


def _spotter(net: Layers) -> T:
    x = net.input((1, 12, 8, 1))
    x = net.conv(x, 8, (5, 3), 2, act="RELU")
    for _ in range(2):
        x = net.conv(net.conv(x, 8, depthwise=True, act="RELU"), 8, 1, act="RELU")
    x = net.reshape(net.pool(x, False, (6, 4), (6, 4)), (1, 8))
    return net.op("SOFTMAX", [net.dense(x, 4)], (1, 4), kind="Softmax", Beta=1.0)


def rows(net: Layers, x: T, begin: int, end: int) -> T:
    """Some rows along axis 1."""
    tables = [[0, begin, 0, 0], [0, end, 0, 0], [1, 1, 1, 1]]
    masks = {"BeginMask": 13, "EndMask": 13, "EllipsisMask": 0, "NewAxisMask": 0, "ShrinkAxisMask": 0}
    return net.op("STRIDED_SLICE", [x], (1, end - begin, *x.shape[2:]), tables, "StridedSlice", True, **masks)


def streaming(net: Layers) -> T:
    """Two frames a step, three rings, branches of 3 and 5 rows, of which one reads a row late: a window of 17."""
    x = net.reshape(net.input((1, 2, 6)), (1, 2, 1, 6))
    x = net.conv(net.ring(x, 1), 8, (3, 1), (2, 1), pad="VALID", act="RELU")
    a, b = net.split(net.ring(x, 4), 3, [4, 4], even=False)
    a = net.conv(rows(net, a, 1, 4), 4, (3, 1), pad="VALID", depthwise=True)
    b = net.conv(b, 4, (5, 1), pad="VALID", depthwise=True, like=a)
    x = net.op("CONCATENATION", [a, b], (1, 1, 1, 8), (), "Concatenation", True, Axis=3, FusedActivationFunction=0)
    x = net.conv(x, 6, 1, act="RELU")
    return net.op("LOGISTIC", [net.dense(net.reshape(net.ring(x, 3), (1, 24)), 1)], (1, 1))


def late(net: Layers) -> T:
    """One branch reads all five rows, another the three before the last; a window of six frames."""
    x = net.ring(net.reshape(net.input((1, 1, 6)), (1, 1, 1, 6)), 4)
    a = net.conv(x, 4, (3, 1), pad="VALID", act="RELU")
    b = net.conv(rows(net, x, 0, 4), 4, (2, 1), pad="VALID", act="RELU", like=a)
    ends = [rows(net, a, 2, 3), rows(net, b, 1, 2)]
    y = net.op("CONCATENATION", ends, (1, 1, 1, 8), (), "Concatenation", True, Axis=3, FusedActivationFunction=0)
    return net.dense(net.reshape(net.ring(y, 2), (1, 24)), 2)


EXACT = {
    "conv": _image(lambda net, x: net.conv(x, 5)),
    "conv valid": _image(lambda net, x: net.conv(x, 5, pad="VALID")),
    "conv stride 2": _image(lambda net, x: net.conv(x, 5, stride=2)),
    "conv strides": _image(lambda net, x: net.conv(x, 5, (3, 2), (2, 1))),
    "conv even window": _image(lambda net, x: net.conv(x, 5, 4, 2)),
    "conv dilated": _image(lambda net, x: net.conv(x, 5, dilation=2)),
    "conv dilated valid": _image(lambda net, x: net.conv(x, 5, 2, dilation=(3, 2), pad="VALID")),
    "conv relu": _image(lambda net, x: net.conv(x, 5, act="RELU")),
    "conv relu6": _image(lambda net, x: net.conv(x, 5, act="RELU6")),
    "conv clamped": _image(lambda net, x: net.conv(x, 5, act="RELU_N1_TO_1")),
    "conv pointwise": _image(lambda net, x: net.conv(x, 5, 1)),
    "conv one scale": _image(lambda net, x: net.conv(x, 5, per_channel=False)),
    "conv in groups": _image(lambda net, x: net.conv(x, 6, groups=2)),
    "depthwise": _image(lambda net, x: net.conv(x, 4, depthwise=True)),
    "depthwise valid": _image(lambda net, x: net.conv(x, 4, (5, 1), depthwise=True, pad="VALID")),
    "depthwise stride 2": _image(lambda net, x: net.conv(x, 4, stride=2, depthwise=True, act="RELU")),
    "depthwise multiplier": _image(lambda net, x: net.conv(x, 8, depthwise=True, act="RELU6")),
    "depthwise dilated": _image(lambda net, x: net.conv(x, 4, dilation=2, depthwise=True)),
    "dense": _vector(lambda net, x: net.dense(x, 7)),
    "dense relu": _vector(lambda net, x: net.dense(x, 7, act="RELU")),
    "dense relu6": _vector(lambda net, x: net.dense(x, 7, act="RELU6", bias=False)),
    "dense per channel": _vector(lambda net, x: net.dense(x, 7, per_channel=True)),
    "dense of an image": _image(lambda net, x: net.dense(x, 7)),
    "dense keeps axes": _image(lambda net, x: net.dense(net.reshape(x, (1, 42, 4)), 5, keep=True)),
    "max pool": _image(lambda net, x: net.pool(x, True, 2, 2)),
    "max pool same": _image(lambda net, x: net.pool(x, True, 3, 2, "SAME")),
    "concatenation and split": _image(_joined),
    "slice with a mask": _image(_shrunk),
    "transpose and views": _image(_views),
    "pad": _image(_padded),
    "padv2": _image(_padv2),
    "pack": _image(_packed),
    "logistic": _vector(_plain("LOGISTIC")),
    "resize nearest": _image(
        _resized("RESIZE_NEAREST_NEIGHBOR", "ResizeNearestNeighbor", AlignCorners=False, HalfPixelCenters=False)
    ),
}
"""Operators of which integers are equal to the byte."""
NEAR = {
    "transpose conv": _image(lambda net, x: net.transposed_conv(x, 3, 3, 2)),
    "transpose conv cut": _image(lambda net, x: net.transposed_conv(x, 3, 4, 2)),
    "transpose conv valid": _image(lambda net, x: net.transposed_conv(x, 3, 2, 2, "VALID")),
    "add": _image(_with("ADD", 1, 7, 6, 4)),
    "add channels": _image(_with("ADD", 4, act="RELU")),
    "residual": _image(_residual),
    "sub": _image(_with("SUB", 1, 7, 6, 4)),
    "mul": _image(_with("MUL", 1, 7, 6, 4)),
    "mul channels": _image(_with("MUL", 1, 1, 1, 4, act="RELU6")),
    "average pool": _image(lambda net, x: net.pool(x, False, 2, 2)),
    "average pool same": _image(lambda net, x: net.pool(x, False, 3, 2, "SAME", "RELU")),
    "mean": _image(_mean([1, 2], (1, 4))),
    "mean keeps axes": _image(_mean([1, 2], (1, 1, 1, 4), True)),
    "mean of channels": _image(_mean([3], (1, 7, 6))),
    "slices": _image(_parts),
    "relu": _image(_plain("RELU")),
    "relu6": _image(_plain("RELU6")),
    "leaky relu": _image(_leaky),
    "prelu": _image(_prelu),
    "hard swish": _image(_plain("HARD_SWISH", "HardSwish")),
    "tanh": _vector(_plain("TANH")),
    "softmax": _vector(_softmax),
    "resize bilinear": _image(_resized("RESIZE_BILINEAR", "ResizeBilinear", AlignCorners=False, HalfPixelCenters=True)),
    "spotter": _spotter,
}
"""Operators that may be a step off."""
SHAPES = {**dict.fromkeys((*EXACT, *NEAR), (1, 7, 6, 4)), "spotter": (1, 12, 8, 1)}
SHAPES |= {
    name: (1, 24)
    for name in (*EXACT, *NEAR)
    if name in ("logistic", "tanh", "softmax")
    or (name.startswith("dense") and "of an" not in name and "keeps" not in name)
}
