"""Gradient rules against an independent source: the gradients of TVM Relax, run through its LLVM virtual machine.

Relax works on NCHW images and OIHW weights; ours on NHWC and OHWI: the same permutation takes both over.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from testing.ops.case import away, nonzero, normal, positive, spaced
from tests.ops.numpy_tape import NumpyTape
from tinytrain_compile.ir.types import Value
from tinytrain_compile.ops.activation import ClipAttrs
from tinytrain_compile.ops.conv import ConvAttrs
from tinytrain_compile.ops.linear import GemmAttrs, MatMulAttrs
from tinytrain_compile.ops.loss import NllAttrs
from tinytrain_compile.ops.normalise import AxisAttrs, NormalizeAttrs
from tinytrain_compile.ops.pool import PoolAttrs
from tinytrain_compile.ops.shape import ConcatAttrs, ExpandAttrs, ReduceAttrs, ReshapeAttrs, SliceAttrs, TransposeAttrs

tvm = pytest.importorskip("tvm")
from tvm import relax  # noqa: E402

R = relax.op
TOLERANCE = 1e-5
CHANNELS_LAST = (0, 2, 3, 1)
CHANNELS_FIRST = (0, 3, 1, 2)

Build = Callable[..., Any]


@dataclass(frozen=True, eq=False)
class Oracle:
    """One function, written for Relax and for us.

    shapes: of the operands as Relax sees them; images: operands and (index -1) output that change their layout.
    """

    name: str
    shapes: tuple[tuple[int, ...], ...]
    theirs: Build
    ours: Callable[..., Value]
    images: tuple[int, ...] = ()
    data: Callable[[np.random.Generator, tuple[int, ...]], np.ndarray] = normal
    labels: int = 0
    decompose: bool = False


def _node(op: str, attrs: Any = None) -> Callable[..., Value]:
    """A function that is one of our operators."""
    return lambda tape, *values: tape.emit(op, values, attrs) if attrs is not None else tape.emit(op, values)


def _conv(**attrs: Any) -> Callable[..., Value]:
    return _node("Conv", ConvAttrs(**attrs))


def _layer_norm(tape: NumpyTape, x: Value, scale: Value, shift: Value) -> Value:
    xhat = tape.emit("Normalize", (x,), NormalizeAttrs((len(x.shape) - 1,), 1e-5))
    return tape.emit("Add", (tape.emit("Mul", (xhat, scale)), shift))


def _variance(tape: NumpyTape, x: Value) -> Value:
    mean = tape.emit("Reduce", (x,), ReduceAttrs((1,), 1 / x.shape[1]))
    centred = tape.emit("Sub", (x, mean))
    return tape.emit("Reduce", (tape.emit("Mul", (centred, centred)),), ReduceAttrs((1,), 1 / x.shape[1]))


def _hard_swish(tape: NumpyTape, x: Value) -> Value:
    return tape.emit("HardSwish", (x,))


def _cross_entropy(reduction: str) -> Callable[..., Value]:
    def ours(tape: NumpyTape, logits: Value, labels: Value) -> Value:
        logp = tape.emit("LogSoftmax", (logits,), AxisAttrs(1))
        return tape.emit("NegativeLogLikelihood", (logp, labels), NllAttrs(1, reduction))

    return ours


def _mean_squared_error(y: Any, target: Any) -> Any:
    error = R.subtract(y, target)
    return R.mean(R.multiply(error, error))


def _zero() -> Any:
    return relax.const(np.float32(0.0))


def _near_six(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return away(normal(rng, shape) * 4.0, -3.0, 0.0, 3.0, 6.0)


def _second(_tape: NumpyTape, pieces: Value) -> Value:
    return _tape.emit("Slice", (pieces,), SliceAttrs((0, 2, 0, 0), (1, 1, 1, 1), (2, 2, 4, 5)))


X = (2, 4, 6, 7)
POOL = PoolAttrs((2, 2), (2, 2), (0, 0, 0, 0), output_hw=(3, 3))
PADDED = PoolAttrs((3, 3), (2, 2), (1, 1, 1, 1), output_hw=(3, 4))
nn = R.nn

ORACLES = (
    Oracle(
        "conv 3x3",
        (X, (6, 4, 3, 3)),
        lambda x, w: nn.conv2d(x, w, padding=1),
        _conv(kernel=(3, 3), pads=(1,) * 4),
        (0, 1, -1),
    ),
    Oracle(
        "conv stride 2, uneven padding",
        (X, (6, 4, 3, 3)),
        lambda x, w: nn.conv2d(x, w, strides=2, padding=(0, 1, 1, 2)),
        _conv(kernel=(3, 3), strides=(2, 2), pads=(0, 1, 1, 2)),
        (0, 1, -1),
    ),
    Oracle(
        "conv 1x1 stride 2",
        (X, (5, 4, 1, 1)),
        lambda x, w: nn.conv2d(x, w, strides=2),
        _conv(kernel=(1, 1), strides=(2, 2)),
        (0, 1, -1),
    ),
    Oracle(
        "conv 2 groups",
        (X, (6, 2, 3, 3)),
        lambda x, w: nn.conv2d(x, w, padding=1, groups=2),
        _conv(kernel=(3, 3), pads=(1,) * 4, groups=2),
        (0, 1, -1),
    ),
    Oracle(
        "conv depthwise stride 2",
        (X, (4, 1, 3, 3)),
        lambda x, w: nn.conv2d(x, w, padding=1, strides=2, groups=4),
        _conv(kernel=(3, 3), strides=(2, 2), pads=(1,) * 4, groups=4),
        (0, 1, -1),
    ),
    Oracle(
        "conv depthwise multiplier 2",
        (X, (8, 1, 3, 3)),
        lambda x, w: nn.conv2d(x, w, padding=1, groups=4),
        _conv(kernel=(3, 3), pads=(1,) * 4, groups=4),
        (0, 1, -1),
    ),
    Oracle("matmul", ((3, 4), (4, 5)), R.matmul, _node("MatMul", MatMulAttrs())),
    Oracle("matmul batched", ((2, 3, 4), (2, 4, 5)), R.matmul, _node("MatMul", MatMulAttrs())),
    Oracle(
        "gemm",
        ((3, 4), (5, 4), (5,)),
        lambda x, w, b: R.add(R.matmul(x, R.permute_dims(w, [1, 0])), b),
        _node("Gemm", GemmAttrs(bias=True)),
    ),
    Oracle("add broadcast", ((2, 3, 4), (4,)), R.add, _node("Add")),
    Oracle("subtract broadcast", ((2, 3, 4), (3, 1)), R.subtract, _node("Sub")),
    Oracle("multiply broadcast", ((2, 3), (2, 1)), R.multiply, _node("Mul")),
    Oracle("divide broadcast", ((2, 3), (3,)), R.divide, _node("Div"), data=nonzero),
    Oracle("negative", (X,), R.negative, _node("Neg")),
    Oracle("sqrt", ((3, 4),), R.sqrt, _node("Sqrt"), data=positive),
    Oracle("exp", ((3, 4),), R.exp, _node("Exp")),
    Oracle("log", ((3, 4),), R.log, _node("Log"), data=positive),
    Oracle("relu", (X,), nn.relu, _node("Clip", ClipAttrs(0.0)), data=_near_six),
    Oracle(
        "relu6 as minimum and maximum",
        (X,),
        lambda x: R.minimum(R.maximum(x, _zero()), relax.const(np.float32(6.0))),
        _node("Clip", ClipAttrs(0.0, 6.0)),
        data=_near_six,
    ),
    Oracle(
        "hard swish as x * min(max(x / 6 + 1/2, 0), 1)",
        (X,),
        lambda x: R.multiply(
            x,
            R.minimum(
                R.maximum(R.add(R.divide(x, relax.const(np.float32(6.0))), relax.const(np.float32(0.5))), _zero()),
                relax.const(np.float32(1.0)),
            ),
        ),
        _hard_swish,
        data=_near_six,
    ),
    Oracle("sigmoid", (X,), R.sigmoid, _node("Sigmoid")),
    Oracle("tanh", (X,), R.tanh, _node("Tanh")),
    Oracle("silu", (X,), nn.silu, _node("Silu")),
    Oracle("softmax", ((2, 5),), lambda x: nn.softmax(x, axis=-1), _node("Softmax", AxisAttrs(1))),
    Oracle("softmax inner axis", ((2, 5, 3),), lambda x: nn.softmax(x, axis=1), _node("Softmax", AxisAttrs(1))),
    Oracle("log softmax", ((2, 5),), lambda x: nn.log_softmax(x, axis=-1), _node("LogSoftmax", AxisAttrs(1))),
    Oracle(
        "cross entropy, mean",
        ((4, 5), (4,)),
        lambda x, t: nn.nll_loss(nn.log_softmax(x, -1), t),
        _cross_entropy("mean"),
        labels=5,
    ),
    Oracle(
        "cross entropy, sum",
        ((4, 5), (4,)),
        lambda x, t: nn.nll_loss(nn.log_softmax(x, -1), t, reduction="sum"),
        _cross_entropy("sum"),
        labels=5,
    ),
    Oracle("mean squared error", ((3, 4), (3, 4)), _mean_squared_error, _node("MeanSquaredError")),
    Oracle("max pool", (X,), lambda x: nn.max_pool2d(x, (2, 2), (2, 2)), _node("MaxPool", POOL), (0, -1), spaced),
    Oracle(
        "max pool padded",
        (X,),
        lambda x: nn.max_pool2d(x, (3, 3), (2, 2), (1, 1)),
        _node("MaxPool", PADDED),
        (0, -1),
        spaced,
    ),
    Oracle("average pool", (X,), lambda x: nn.avg_pool2d(x, (2, 2), (2, 2)), _node("AveragePool", POOL), (0, -1)),
    Oracle(
        "average pool padded",
        (X,),
        lambda x: nn.avg_pool2d(x, (3, 3), (2, 2), (1, 1)),
        _node("AveragePool", PADDED),
        (0, -1),
    ),
    Oracle("mean", (X,), lambda x: R.mean(x, [2, 3], True), _node("Reduce", ReduceAttrs((2, 3), 1 / 42))),
    Oracle("sum", ((2, 3, 4),), lambda x: R.sum(x, [1], True), _node("Reduce", ReduceAttrs((1,)))),
    Oracle("variance", ((2, 6, 3),), lambda x: R.variance(x, [1], True), _variance),
    Oracle("reshape", (X,), lambda x: R.reshape(x, (2, 168)), _node("Reshape", ReshapeAttrs((2, 168)))),
    Oracle(
        "permute", (X,), lambda x: R.permute_dims(x, [0, 2, 3, 1]), _node("Transpose", TransposeAttrs((0, 2, 3, 1)))
    ),
    Oracle("concat", ((2, 3, 4), (2, 1, 4)), lambda a, b: R.concat([a, b], 1), _node("Concat", ConcatAttrs(1))),
    Oracle("split, second part", ((2, 4, 4, 5),), lambda x: R.split(x, 2, 1)[1], _second),
    Oracle("broadcast", ((1, 3),), lambda x: R.broadcast_to(x, (4, 3)), _node("Expand", ExpandAttrs((4, 3)))),
    Oracle(
        "layer norm",
        ((2, 3, 8), (8,), (8,)),
        lambda x, g, b: nn.layer_norm(x, g, b, axes=[-1], epsilon=1e-5),
        _layer_norm,
        decompose=True,
    ),
)


def _operands(oracle: Oracle) -> list[np.ndarray]:
    rng = np.random.default_rng(len(oracle.name))
    arrays: list[np.ndarray] = [oracle.data(rng, shape).astype(np.float32) for shape in oracle.shapes]
    if oracle.labels:
        arrays[-1] = rng.integers(0, oracle.labels, oracle.shapes[-1]).astype(np.int64)
    return arrays


def _trained(oracle: Oracle) -> int:
    """How many leading operands are differentiated: not labels, not the target of a squared error."""
    return 1 if oracle.labels or oracle.name == "mean squared error" else len(oracle.shapes)


def _relax_module(oracle: Oracle, arrays: list[np.ndarray]) -> tuple[Any, list[Any], tuple[int, ...]]:
    """main(operands) = sum(output * a fixed random tensor), the operands, and the output's shape."""
    variables = [relax.Var(f"p{i}", relax.TensorType(a.shape, str(a.dtype))) for i, a in enumerate(arrays)]
    builder = relax.BlockBuilder()
    with builder.function("main", variables):
        with builder.dataflow():
            y = builder.emit(oracle.theirs(*variables))
            shape = tuple(int(dim) for dim in y.ty.shape)
            product = builder.emit(R.multiply(y, relax.const(_seed(shape).astype(np.float32))))
            out = builder.emit_output(R.sum(product))
        builder.emit_func_output(out)
    return builder.finalize(), variables, shape


def _seed(shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(7).standard_normal(shape)


def relax_gradients(oracle: Oracle, arrays: list[np.ndarray]) -> tuple[list[np.ndarray], tuple[int, ...]]:
    """Gradients by Relax, and the shape of the output (in Relax's layout)."""
    module, _, shape = _relax_module(oracle, arrays)
    if oracle.decompose:
        module = relax.transform.DecomposeOpsForTraining("main")(module)
    wanted = list(module["main"].params)[: _trained(oracle)]
    module = relax.transform.Gradient("main", require_grads=wanted)(module)
    executable = relax.build(relax.transform.LegalizeOps()(module), "llvm")
    machine = relax.VirtualMachine(executable, tvm.cpu())
    result = machine["main_adjoint"](*(tvm.runtime.tensor(a) for a in arrays))
    return [g.numpy() for g in result[1]], shape


def our_gradients(oracle: Oracle, arrays: list[np.ndarray], shape: tuple[int, ...]) -> list[np.ndarray]:
    """Gradients by our rules in float64, in Relax's layout."""
    tape = NumpyTape()
    values: list[Value] = []
    for index, array in enumerate(arrays):
        data = array.astype(np.int32) if array.dtype == np.int64 else array.astype(np.float64)
        values.append(tape.input(f"p{index}", data.transpose(CHANNELS_LAST) if index in oracle.images else data))
    output = oracle.ours(tape, *values)
    seed = _seed(shape)
    seed = seed.transpose(CHANNELS_LAST) if -1 in oracle.images else seed
    assert output.shape == seed.shape
    targets = values[: _trained(oracle)]
    found = tape.backward({output.name: seed}, targets)
    grads = [found[value.name] for value in targets]
    return [g.transpose(CHANNELS_FIRST) if i in oracle.images else g for i, g in enumerate(grads)]


def _compare(oracle: Oracle) -> None:
    arrays = _operands(oracle)
    theirs, shape = relax_gradients(oracle, arrays)
    for index, (a, b) in enumerate(zip(our_gradients(oracle, arrays, shape), theirs, strict=True)):
        scale = max(1.0, float(np.abs(b).max()))
        assert float(np.abs(a - b).max()) <= TOLERANCE * scale, f"{oracle.name}, operand {index}"


@pytest.mark.parametrize("oracle", ORACLES, ids=lambda o: o.name)
def test_gradient_equals_relax(oracle: Oracle) -> None:
    _compare(oracle)


def test_the_oracle_notices_another_function() -> None:
    with pytest.raises(AssertionError, match="operand 0"):
        _compare(Oracle("sigmoid for tanh", ((3, 4),), R.tanh, _node("Sigmoid")))


def test_the_oracle_notices_a_stride_that_is_off() -> None:
    wrong = _conv(kernel=(3, 3), strides=(1, 2), pads=(1, 1, 1, 1))
    shapes = ((1, 2, 5, 5), (3, 2, 3, 3))
    with pytest.raises(AssertionError):
        _compare(
            Oracle("wrong stride", shapes, lambda x, w: nn.conv2d(x, w, padding=1, strides=(2, 1)), wrong, (0, 1, -1))
        )
